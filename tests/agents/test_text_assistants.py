"""Text metrics as assistants: their figures, what they compare, the gaps that they leave, and their record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_runs import results, small_run

from viva.agents.assistants import text_metrics
from viva.agents.assistants.assistant import (
    AssistantResult,
    Example,
    describe_assistants,
    format_results,
    score_all,
    to_unit_scale,
    with_assistant_results,
)
from viva.agents.assistants.registry import open_assistants
from viva.engine.conversation import Conversation
from viva.engine.errors import ConfigurationError
from viva.engine.journal_reader import History

_ALL = ["rouge-1", "rouge-2", "rouge-l", "bleu", "chrf", "meteor"]
_FOX, _DOG = "The quick brown fox jumps over the lazy dog", "The quick brown dog jumps on the log."


def test_figures_are_those_of_the_formulas() -> None:
    assert text_metrics.rouge_1(_DOG, _FOX) == pytest.approx(2 * 6 / (8 + 9))
    assert text_metrics.rouge_2(_DOG, _FOX) == pytest.approx(2 * 2 / (7 + 8))
    assert text_metrics.rouge_l(_DOG, _FOX) == pytest.approx(2 * 5 / (8 + 9))
    # One word of two is right, and one pair of one is smoothed to 1/2: sqrt(1/2 * 1/2), no brevity penalty.
    assert text_metrics.bleu("big cat", "big dog") == pytest.approx(0.5)
    # nltk 3.10.1 refused to be imported from a .venv below the current folder, which is where tests run.
    # P = 1, R = 1/2, in one run of three words: 10 P R / (R + 9 P) * (1 - 0.5 (1/3)³).
    assert text_metrics.meteor("the cat sat", "the cat sat on a mat") == pytest.approx(5 / 9.5 * (1 - 0.5 / 27))


@pytest.mark.parametrize("name", _ALL)
def test_every_metric_runs_from_nothing_in_common_to_the_same_text(name: str) -> None:
    _, metric, _ = text_metrics.METRICS[name]
    assert metric("zzz qqq", "the cat sat on the mat") == metric("", "the cat") == 0.0
    assert 0.98 < metric(_FOX, _FOX) <= 1.0
    assert 0.0 < metric(_DOG, _FOX) < 1.0


def _consulted(folder: Path, names: list[str], example: Example, **how: Any) -> list[Any]:
    asked = open_assistants(names)

    async def converse(conversation: Conversation, payload: int) -> Any:
        advice = await score_all(conversation, asked, example)
        return [[one.to_record() for one in advice], format_results(advice), describe_assistants(asked)]

    small_run(folder, converse=converse, count=1, **how)
    [(_, failed, result)] = results(folder)
    assert not failed
    return result  # type: ignore[no-any-return]


def test_assistants_compare_with_the_text_that_they_name_and_are_recorded_once(tmp_path: Path) -> None:
    example = Example("the cat sat", {"fact": "the cat sat", "talk": "a dog ran"}, against="fact")
    advice, said, told = _consulted(tmp_path, ["rouge-l", "rouge-l@talk", "bleu"], example)
    assert [one["value"] for one in advice] == [1.0, 0.0, pytest.approx(1.0)]
    assert said.splitlines()[1] == "- rouge-l@talk: 0"
    assert told.splitlines()[1] == "- rouge-l@talk: ROUGE-L, the response with talk; from 0 to 1, higher is better"
    with History(tmp_path / "journal.sqlite") as history:
        assert sorted(call.role for call in history.calls(0)) == [
            "compute:bleu", "compute:rouge-l", "compute:rouge-l@talk",
        ]  # fmt: skip


def test_a_metric_that_fails_leaves_a_gap_and_the_others_go_on(tmp_path: Path) -> None:
    example = Example("고양이", {"fact": "고양이가 앉았다", "empty": " "}, against="fact")
    advice, said, _ = _consulted(tmp_path, ["rouge-l", "chrf", "bleu@empty", "bleu@nowhere"], example)
    assert [one["value"] is None for one in advice] == [True, False, True, True]
    assert "no word of Latin letters" in advice[0]["problem"]
    assert "the example has no text 'empty'" in advice[2]["problem"]
    assert "no number (the example has no text 'nowhere')" in said


@pytest.mark.parametrize(
    ("names", "what"),
    [
        (["rouge-5"], "rouge-5': unknown; did you mean 'rouge-"),
        (["bleu", "bleu"], "two assistants are called 'bleu'; rename one: LABEL=bleu"),
    ],
)
def test_names_that_mean_nothing_are_refused(names: list[str], what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        open_assistants(names)


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_metrics, "find_spec", lambda package: None)
    with pytest.raises(ConfigurationError, match=r"needs the package sacrebleu; .*viva-exam\[metrics\]"):
        open_assistants(["chrf"])[0].check()


def test_numbers_map_to_shares_by_range_and_direction() -> None:
    assert to_unit_scale(1, 3, "high", 2.5) == 0.75
    assert to_unit_scale(1, 3, "low", 2.5) == 0.25


def test_a_prompt_is_followed_by_the_numbers_with_their_meaning() -> None:
    [one] = open_assistants(["bleu"])
    told = with_assistant_results("Judge this.", [one], [AssistantResult("bleu", 0.25)])
    assert told.startswith("Judge this.\n\nAssistants have measured")
    assert told.endswith("- bleu: BLEU, the response with the reference; from 0 to 1, higher is better: 0.25")
    assert with_assistant_results("Judge this.", [], []) == "Judge this."


def test_meteor_says_whether_it_has_word_lists() -> None:
    assert open_assistants(["meteor"])[0].facts()["wordnet"] is text_metrics.has_wordnet()
