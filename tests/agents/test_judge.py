"""The judge: verdicts as judges really write them, and what is none."""

from __future__ import annotations

import pytest

from viva.agents.judge import read_ruling
from viva.engine.errors import MalformedOutput


@pytest.mark.parametrize(
    ("text", "passed", "reasoning"),
    [
        ('{"reasoning": "Same place.", "verdict": "pass"}', True, "Same place."),
        ('Same place.\n{"verdict": "fail"}', False, "Same place."),
        ('Same place.\n```json\n{"verdict": "Pass"}\n```', True, "Same place."),
        ('{"reasoning": "Two\nlines.", "verdict": "fail"}', False, "Two\nlines."),
        ('The call {"name": "f"} is right.\n{"verdict": "pass"}', True, 'The call {"name": "f"} is right.'),
        ("The keys are right.\n\npass\npass", True, "The keys are right."),
        ("A key is missing.\n**Fail**\n", False, "A key is missing."),
        ("A key is missing.\nFinal verdict: fail.", False, "A key is missing."),
        ("키가 같습니다.\n\n최종 판정: pass\npass", True, "키가 같습니다."),
        ("키가 다릅니다.\n판정은 fail입니다.", False, "키가 다릅니다."),
        ("<think>pass? fail?</think>\nWell.\nfail", False, "Well."),
        ("pass", True, ""),
        ('It only says {"verdict": "pass"}, which asks nothing.\nfail\nfail', False, None),
        ('It calls court(verdict={"verdict": "guilty"}), as wanted.\npass', True, None),
    ],
)
def test_a_verdict_is_read_with_its_reasons(text: str, passed: bool, reasoning: str | None) -> None:
    """No reasoning told: it is all that stands before the lines of the verdict."""
    assert read_ruling(text) == (passed, text.partition("\n")[0] if reasoning is None else reasoning)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "empty"),
        ("I would say it can pass, on the whole.", "last line"),
        ("pass\nBut then again, who knows.", "last line"),
        ("pass\nfail", "differ"),
        ('{"verdict": "pass"} or {"verdict": "fail"}', "differ"),
        ('{"verdict": "perhaps"}', "perhaps"),
        ('{"verdict": true}', "True"),
        ('{"reasoning": "cut of', "last line"),
        ("<think>pass", "thinking"),
    ],
)
def test_what_is_no_verdict_is_never_guessed(text: str, problem: str) -> None:
    with pytest.raises(MalformedOutput, match=problem):
        read_ruling(text)


def test_a_text_that_hit_its_limit_says_so() -> None:
    with pytest.raises(MalformedOutput, match="token limit") as caught:
        read_ruling("The keys are", truncated=True)
    assert caught.value.truncated
