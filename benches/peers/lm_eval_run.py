"""lm-evaluation-harness on given questions: run it with a Python that has lm-eval (``make peers``).

The questions are a JSONL file of ``context``, ``choices`` and ``gold``, rendered by us, so that both programs read the
same words; the model is the same GGUF through the harness's own ``hf`` model type with ``gguf_file`` (weights are
dequantised to float32, which is its choice). Loading is not counted. Prints one line of JSON.
"""

# The type checker's Python need not have lm-eval: what it cannot find, it takes as untyped.
# mypy: disable-error-code="import-not-found, unused-ignore"

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from pathlib import Path
from typing import Any

TASK = {
    "task": "same_questions",
    "dataset_path": "json",
    "output_type": "multiple_choice",
    "test_split": "test",
    "doc_to_text": "{{context}}",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "{{gold}}",
    "target_delimiter": " ",
    "num_fewshot": 0,
    "metric_list": [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in ("acc", "acc_norm")],
}


def _own_pre_tokenizer(tokenizer: Any) -> None:
    """Correct what transformers makes of a GGUF: it puts a space before the texts of our test model, which asks for
    none, and does not split the digits of SmolLM2, whose vocabulary is one of bytes.
    """
    from tokenizers import pre_tokenizers

    backend = tokenizer.backend_tokenizer
    if "Ġ" in tokenizer.get_vocab():
        digits, pieces = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, pieces])
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)


def main() -> dict[str, Any]:
    """One measurement."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--batch", type=int, default=1)
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM

    model = HFLM(
        pretrained=str(options.model.parent),
        gguf_file=options.model.name,
        tokenizer=None,
        device="cpu",
        dtype="float32",
        batch_size=options.batch,
    )
    _own_pre_tokenizer(model.tokenizer)
    task = TASK | {"dataset_kwargs": {"data_files": {"test": str(options.questions)}}}
    began = time.perf_counter()
    evaluation = simple_evaluate(model=model, tasks=[task], log_samples=True, bootstrap_iters=0, verbosity="ERROR")
    wall = time.perf_counter() - began
    samples = sorted(evaluation["samples"]["same_questions"], key=lambda sample: sample["doc_id"])
    sums = [[float(answer[0]) for answer in sample["filtered_resps"]] for sample in samples]
    results = evaluation["results"]["same_questions"]
    return {
        "wall_s": wall,
        "items_per_s": len(samples) / wall,
        "accuracy": results["acc,none"],
        "accuracy_normalised": results["acc_norm,none"],
        "logprobs": sums,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


if __name__ == "__main__":
    print(json.dumps(main()))
