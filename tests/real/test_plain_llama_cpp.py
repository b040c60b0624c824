"""Questions of ARC for real models, beside plain llama.cpp and lm-evaluation-harness's formulas: `make real`.

With quantised weights llama.cpp's own figures depend on how many rows a batch has. In batches of the same numbers of
rows viva's are those of llama.cpp; the noise is by how much llama.cpp differs from itself in batches without dummies.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jinja2 import Environment
from local_models import at_once, using
from plain_llama import PlainLlama
from probing import probed, recorded

from viva.data.dataset import open_dataset
from viva.data.items import Item
from viva.engine.backends.llama.backend import LlamaBackend
from viva.engine.messages import Message, Request, Sampling

DATA = Path(os.environ.get("VIVA_DATA") or Path(__file__).parents[2] / ".." / "shared" / "data").resolve()
ARC = DATA / "arc" / "ARC-Challenge"
_CONTEXT, _ANSWER = 768, 8  # tokens
_SAMPLE = 16  # items, of 1,172
_ROUNDING = 1e-6  # of a sum of numbers in single precision
Logprobs = list[list[float]]  # of the tokens of each choice


@pytest.mark.parametrize("flash", ["off", "on"])
def test_arc_is_read_and_answered_as_by_plain_llama_cpp(
    model: Path, flash: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    if not ARC.exists():
        pytest.skip(f"{ARC} is missing (set VIVA_DATA to the folder with the benchmark data)")
    count = 200 if flash == "off" and "SmolLM2" in model.name else _SAMPLE
    dataset, name = f"arc:{ARC}:test", f"llama:{model}?ctx={_CONTEXT}&flash_attn={flash}&label=real"
    report, readings = probed(tmp_path / "run", name, dataset=dataset, n=count, shots=0, method=["text"])
    items = [item for item in open_dataset(dataset) if item.id in readings]
    assert len(items) == count
    options: dict[str, Any] = {"flash": flash == "on", "threads": os.cpu_count() or 1}
    with closing(PlainLlama(model, _CONTEXT, multiple=4, **options)) as plain:
        theirs = {item.id: plain.logprobs(*_encoded(plain, item)) for item in items}
        answers = _answers(name, items)
        changed = [item.id for item in items if plain.greedy(_prompt(plain, item), _ANSWER) != answers[item.id]]
    with closing(PlainLlama(model, _CONTEXT, **options)) as plain:
        others = {item.id: plain.logprobs(*_encoded(plain, item)) for item in items[:_SAMPLE]}

    ours: dict[str, Logprobs] = {item: [list(one.logprobs) for one in texts] for item, [texts] in readings.items()}
    results = {result["item"]: result["text"] for result in recorded(tmp_path / "run").values()}
    own = {item.id: (results[item.id]["choice"], results[item.id]["normalised"]) for item in items}
    expected = {item.id: _decide(item, theirs[item.id]) for item in items}
    right = tuple(sum(expected[item.id][index] == item.answer for item in items) for index in (0, 1))
    turned = sum(expected[item.id] != _decide(item, others[item.id]) for item in items[:_SAMPLE])
    record_property(
        "figures",
        f"{model.name}, flash attention {flash}, {count} items: {len(changed)} greedy texts differ from llama.cpp's, "
        f"log p of tokens by up to {_distance(ours, theirs):.1g}; by lm-eval's formulas acc {right[0]}, acc_norm "
        f"{right[1]}. Noise: without dummies log p of tokens of llama.cpp differs by up to "
        f"{_distance(others, theirs):.1g}, and {turned} of {_SAMPLE} items are decided otherwise.",
    )
    assert _distance(ours, theirs) <= _ROUNDING
    assert changed == []
    assert own == expected
    accuracy = report["candidates"]["real"]["accuracy"]
    assert (accuracy["text"]["right"], accuracy["text_normalised"]["right"]) == right


def _question(item: Item) -> str:
    return f"Question: {item.question}\nAnswer:"


def _encoded(plain: PlainLlama, item: Item) -> tuple[list[int], list[list[int]]]:
    """Context and continuations as the harness makes them: tokens of the whole text, cut where the context's end."""
    context = plain.tokens(_question(item), begins=True)
    whole = [plain.tokens(f"{_question(item)} {choice}", begins=True) for choice in item.choices]
    return context, [tokens[len(context) :] for tokens in whole]


def _decide(item: Item, logprobs: Logprobs) -> tuple[int, int]:
    """The harness's two choices: the likeliest, and the likeliest by character."""
    sums = np.array([sum(one) for one in logprobs])
    lengths = np.array([float(len(choice)) for choice in item.choices])
    return int(np.argmax(sums)), int(np.argmax(sums / lengths))


def _distance(some: dict[str, Logprobs], others: dict[str, Logprobs]) -> float:
    """The largest difference between two log-probabilities of a token."""
    pairs = (pair for item in some for pair in zip(some[item], others[item], strict=True))
    return max(float(np.abs(np.subtract(one, other)).max()) for one, other in pairs)


def _prompt(plain: PlainLlama, item: Item) -> list[int]:
    """A question in the file's own chat template, by a template engine of its own; as text if there is none."""
    if not plain.template:
        return plain.tokens(_question(item), begins=True)
    said = [{"role": "user", "content": _question(item)}]
    text = Environment().from_string(plain.template).render(messages=said, add_generation_prompt=True)
    return plain.tokens(text, begins=True, special=True)


def _answers(name: str, items: list[Item]) -> dict[str, list[int]]:
    """The tokens of viva's greedy answers, all asked at once."""

    async def main(backend: LlamaBackend) -> list[list[int]]:
        async def answer(number: int) -> list[int]:
            question = _question(items[number])
            prompt = None if backend.engine.chat.has_template else question
            messages = [] if prompt else [Message("user", question)]
            request = Request(messages, Sampling(max_tokens=_ANSWER), 1, b"", f"item-{number}", prompt=prompt)
            completion = await backend.generate(request)
            return [token for _, tokens in completion.pieces or [] for token in tokens]

        return await at_once(len(items), answer)

    return dict(zip((item.id for item in items), using(name, main), strict=True))
