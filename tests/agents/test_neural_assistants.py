"""Entailment and embedding similarity by tiny models with random weights; skipped where the extra is not installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from viva.agents.assistants import model_assistants
from viva.agents.assistants.assistant import Example
from viva.agents.assistants.registry import open_assistants
from viva.engine.errors import ConfigurationError

_WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "the", "cat", "sat", "dog", "ran", "on", "mat"]
_NEEDED = "needs the extra: pip install 'viva-exam[neural]'"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of 32 dimensions, as a classifier of three relations."""
    pytest.importorskip("torch", reason=_NEEDED)
    transformers = pytest.importorskip("transformers", reason=_NEEDED)
    made = tmp_path_factory.mktemp("models") / "tiny-nli"
    made.mkdir()
    (made / "vocab.txt").write_text("\n".join(_WORDS))
    transformers.BertTokenizer(str(made / "vocab.txt"), model_max_length=32).save_pretrained(made)
    transformers.set_seed(3)
    config = transformers.BertConfig(
        vocab_size=len(_WORDS),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        id2label={0: "CONTRADICTION", 1: "NEUTRAL", 2: "ENTAILMENT"},
        label2id={"CONTRADICTION": 0, "NEUTRAL": 1, "ENTAILMENT": 2},
    )
    transformers.BertForSequenceClassification(config).save_pretrained(made)
    return made


@pytest.mark.filterwarnings("ignore")  # of the packages' own
def test_entailment_is_the_share_of_its_class_and_depends_on_the_order(folder: Path) -> None:
    import torch
    import transformers

    share = model_assistants.entailment(str(folder), "the cat sat", "a dog ran")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        logits = model(**tokenizer("the cat sat", "a dog ran", return_tensors="pt")).logits[0]
    assert share == pytest.approx(float(torch.softmax(logits.double(), 0)[2]), abs=1e-6)
    assert share != model_assistants.entailment(str(folder), "a dog ran", "the cat sat")
    model_assistants.entailment(str(folder), "the cat sat on the mat " * 50, "a dog ran")  # cut, not refused


@pytest.mark.filterwarnings("ignore")
def test_similarity_is_1_for_the_same_text_and_symmetric(folder: Path) -> None:
    pytest.importorskip("sentence_transformers", reason=_NEEDED)
    assert model_assistants.similarity(str(folder), "the cat sat", "the cat sat") == pytest.approx(1.0, abs=1e-6)
    first, second = "the cat sat", "a dog ran on the mat"
    assert model_assistants.similarity(str(folder), first, second) == pytest.approx(
        model_assistants.similarity(str(folder), second, first), abs=1e-6
    )
    assert model_assistants.similarity(str(folder), first, second) < 1.0


@pytest.mark.filterwarnings("ignore")
def test_a_changed_model_is_another_one(folder: Path) -> None:
    [one] = open_assistants([f"nli:{folder}@fact"])
    one.check()
    assert one.facts()["compares"] == "the probability that fact entails the response"
    before = one.facts()["digest"]
    (folder / "config.json").write_text((folder / "config.json").read_text() + "\n")
    assert one.facts()["digest"] != before
    assert Example("x", {"fact": "y"}).text(one.against) == "y"  # type: ignore[attr-defined]


def test_without_the_packages_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from viva.agents.assistants import text_metrics

    monkeypatch.setattr(text_metrics, "find_spec", lambda package: None)
    with pytest.raises(ConfigurationError, match=r"sentence_transformers; .*viva-exam\[neural\]"):
        open_assistants([f"embedding:{tmp_path}"])[0].check()
