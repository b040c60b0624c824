"""Baselines beside a judge: text metrics on real texts, a run's turns, BERTScore by a tiny model, mistakes told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from viva.agents.assistants.text_metrics import meteor, rouge_l
from viva.engine.errors import ConfigurationError
from viva.reports.studies import judge_baselines
from viva.reports.studies.judge_baselines import (
    add_grades,
    add_metrics,
    attach_replies,
    grading_tasks,
    metric_names,
    open_scorer,
)
from viva.reports.studies.rating_sheet import Sheet, SheetRow
from viva.scenarios.contract import RecordedReply

_WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "the", "cat", "sat", "dog", "ran", "on", "mat"]
_NEEDED = "needs the extra: pip install 'viva-exam[bertscore]'"


def _sheet(*texts: dict[str, str]) -> Sheet:
    return Sheet("f.csv", [SheetRow(at, f"i{at}", texts=text) for at, text in enumerate(texts, 2)])


def test_metrics_become_judges_and_gaps_are_told() -> None:
    sheet = _sheet(
        {"output": "the cat sat", "reference": "the cat sat down"},
        {"output": "a dog", "reference": "물고기"},  # rouge-score knows Latin letters alone
        {"output": "a dog", "reference": ""},
    )
    add_metrics(sheet, ["rouge-l", "meteor"])
    assert sheet.judges == ["rouge-l", "meteor"]
    assert [row.scores["rouge-l", ""] for row in sheet.rows] == [rouge_l("the cat sat", "the cat sat down"), None, None]
    assert sheet.rows[0].scores["meteor", ""] == meteor("the cat sat", "the cat sat down")
    assert "rouge-l: 2 of 3 texts could not be scored" in sheet.notes


def test_names_and_fields_that_are_not_there_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert metric_names(["rouge,meteor", "bleu"]) == ["rouge-1", "rouge-2", "rouge-l", "meteor", "bleu"]
    with pytest.raises(
        ConfigurationError,
        match=r"unknown baseline 'rogue'; did you mean 'rouge'\? known: rouge, rouge-1, .*bertscore=MODEL, s",
    ):
        metric_names(["rogue"])
    with pytest.raises(ConfigurationError, match="bertscore: name its model, a local folder: bertscore=MODEL"):
        metric_names(["bertscore"])
    with pytest.raises(
        ConfigurationError,
        match=r"f.csv: no field with the references .*there are: output; name it with --reference, or add a field 'ref",
    ):
        add_metrics(_sheet({"output": "x"}), ["bleu"])
    with pytest.raises(ConfigurationError, match=r"f.csv: no field 'ref2' for --baselines"):
        add_metrics(_sheet({"output": "x", "reference": "y"}), ["bleu"], None, "ref2")
    with pytest.raises(ConfigurationError, match=r"f.csv:3: field 'reference': is missing"):
        add_metrics(_sheet({"output": "x", "reference": "y"}, {"output": "x"}), ["bleu"])
    monkeypatch.setattr("viva.agents.assistants.text_metrics.find_spec", lambda package: None)
    with pytest.raises(ConfigurationError, match=r"bert_score; .*viva-exam\[bertscore\]"):
        metric_names(["bertscore=folder"])


def test_turns_of_a_run_have_their_own_texts_and_whole_ones_all_but_the_first() -> None:
    said = [RecordedReply("m", "i", number, f"q{number}", f"r{number}") for number in range(3)]
    rows = [SheetRow(at, "i", "m", turn) for at, turn in enumerate((None, "1", "2", "3"))]
    sheet = Sheet("run", rows)
    attach_replies(sheet, said)
    assert [row.texts.get("output") for row in rows] == ["r1\nr2", "r1", "r2", None]
    assert [task["question"] for task in grading_tasks(sheet)] == ["q1", "q1", "q2"]
    add_grades(sheet, {"g": {"0": 7.0, "2": None}})
    assert [row.scores["single: g", ""] for row in rows] == [7.0, None, None, None]


@pytest.mark.filterwarnings("ignore")  # of the packages' own
def test_bertscore_by_a_tiny_local_model(tmp_path: Path) -> None:
    pytest.importorskip("bert_score", reason=_NEEDED)
    transformers = pytest.importorskip("transformers", reason=_NEEDED)
    (tmp_path / "vocab.txt").write_text("\n".join(_WORDS))
    transformers.BertTokenizer(str(tmp_path / "vocab.txt"), model_max_length=32).save_pretrained(tmp_path)
    sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=len(_WORDS), intermediate_size=64, max_position_embeddings=64, **sizes)
    transformers.BertModel(config).save_pretrained(tmp_path)
    judge_baselines._bertscore.cache_clear()
    [same, other, empty] = open_scorer(f"bertscore={tmp_path}")(
        ["the cat sat", "a dog ran", ""], ["the cat sat", "a cat sat on the mat", "a cat"]
    )
    assert same == pytest.approx(1.0, abs=1e-5)
    assert other is not None
    assert other < 0.99
    assert empty is None
