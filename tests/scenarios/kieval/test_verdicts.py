"""Reading verdicts: lenient about form, never guessing about substance, and failing in one way only."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from viva.engine.errors import MalformedOutput
from viva.scenarios.kieval.verdicts import (
    ASPECTS,
    STOP_REASONS,
    PartlyReadable,
    Verdict,
    bare_verdict,
    read_verdict,
    verdict_schema,
)

relaxed = settings(deadline=None)


def verdict(score: int = 3, **changes: Any) -> dict[str, Any]:
    """A verdict as an evaluator should send it; ``changes`` replace fields."""
    fields: dict[str, Any] = {name: {"comment": f"On {name}.", "score": score} for name in ASPECTS}
    fields |= {"overall_comment": "All in all.", "overall_score": score}
    return fields | {"stop_conversation": False, "stop_reason": "none"} | changes


def text(score: int = 3, **changes: Any) -> str:
    return json.dumps(verdict(score, **changes))


def without(name: str) -> str:
    return json.dumps({key: value for key, value in verdict().items() if key != name})


THREES = Verdict((3, 3, 3, 3, 3), 3, None)
READABLE = {
    "exact": text(),
    "indented": json.dumps(verdict(), indent=4),
    "fence": f"```json\n{text()}\n```",
    "fence without language": f"```\n{text()}\n```",
    "leading prose": f"Here is my verdict on this exchange:\n\n{text()}",
    "trailing prose": f"{text()}\n\nLet me know if you need anything else.",
    "byte order mark": f"\ufeff{text()}",
    "braces in the prose": f"As asked for ({{comment, score}}): {text()}",
    "thinking with a draft": f"<think>First idea: {text(1)}\nNo, too strict.</think>\n{text()}",
    "said twice": f"{text()}\n\nOnce more:\n{text()}",
    "trailing commas": text().replace('}, "', '},\n "').replace('"score": 3}', '"score": 3,}')[:-1] + ", }",
    "comma in a string is kept": text(overall_comment="braces, like these ,} and ,]")[:-1] + ",}",
    "raw line breaks in a string": text(overall_comment="one\ntwo\tthree").replace("\\n", "\n").replace("\\t", "\t"),
    "scores as text": text(overall_score="3", logic={"comment": "", "score": " 3 "}),
    "scores as decimals": text(overall_score=3.0, logic={"comment": "", "score": "3.0"}),
    "bare scores": text(accuracy=3, logic="3", coherence=3.0),
    "no comments": text(logic={"score": 3}),
    "no stop reason": without("stop_reason"),
    "empty stop reason": text(stop_reason=""),
    "null stop reason": text(stop_reason=None),
    "more fields than asked for": text(confidence=0.7),
    "stop as text": text(stop_conversation="false"),
}


@pytest.mark.parametrize("sent", READABLE.values(), ids=READABLE.keys())
def test_what_has_only_one_meaning_is_read(sent: str) -> None:
    assert read_verdict(sent) == THREES


@pytest.mark.parametrize("reason", STOP_REASONS)
def test_a_stop_has_its_reason(reason: str) -> None:
    assert read_verdict(text(stop_conversation=True, stop_reason=reason)).stop == reason
    assert read_verdict(text(stop_conversation=False, stop_reason=reason)).stop is None


def test_a_stop_without_a_reason_is_unspecified() -> None:
    assert read_verdict(text(stop_conversation=True)).stop == "unspecified"


def test_scores_come_in_the_order_of_the_aspects() -> None:
    found = read_verdict(text(accuracy=1, logic=2, relevance=3, coherence=4, conciseness=1, overall_score=2))
    assert found.scores() == [1, 2, 3, 4, 1, 2]


NOT_SCORES = [0, 5, -1, 2.5, "3/4", "four", "3 of 4", "", None, True, [3], 10**30]


@pytest.mark.parametrize("score", NOT_SCORES, ids=repr)
@pytest.mark.parametrize("form", ["{}", "```json\n{}\n```"], ids=["bare", "fenced"])
def test_a_score_is_never_guessed(form: str, score: object) -> None:
    with pytest.raises(MalformedOutput, match=r"^overall_score: "):
        read_verdict(form.replace("{}", text(overall_score=score)))
    with pytest.raises(MalformedOutput, match=r"^logic\.score: "):
        read_verdict(form.replace("{}", text(logic={"comment": "fine", "score": score})))


@pytest.mark.parametrize("name", [*ASPECTS, "overall_score", "stop_conversation"])
def test_a_missing_field_is_named(name: str) -> None:
    for sent in (without(name), f"My verdict: {without(name)}"):
        with pytest.raises(MalformedOutput, match=f"^{name}: "):
            read_verdict(sent)


def test_line_2_one_bad_aspect_is_named_and_the_other_scores_are_kept() -> None:
    with pytest.raises(PartlyReadable, match="relevance") as caught:
        read_verdict(text(relevance=None, overall_score=2, stop_conversation=True, stop_reason="off_topic"))
    assert caught.value.verdict == Verdict((3, 3, None, 3, 3), 2, "off_topic")
    with pytest.raises(PartlyReadable) as caught:
        read_verdict(text(accuracy={"comment": "", "score": 7}))
    assert caught.value.verdict == Verdict((None, 3, 3, 3, 3), 3, None)
    with pytest.raises(MalformedOutput) as whole:
        read_verdict('{"accuracy": "good", "overall_score": "high"}')
    assert not isinstance(whole.value, PartlyReadable)


def test_line_2_a_stop_with_an_unknown_reason_stops() -> None:
    assert read_verdict(text(stop_conversation=True, stop_reason="bored")) == Verdict((3,) * 5, 3, "unspecified")
    assert read_verdict(text(stop_conversation=False, stop_reason="bored")) == THREES


def test_two_verdicts_that_differ_are_not_chosen_from() -> None:
    with pytest.raises(MalformedOutput, match="several"):
        read_verdict(f"{text(2)}\nOr rather:\n{text(3)}")


@pytest.mark.parametrize("sent", ["", " \n\t "])
def test_an_empty_text_is_called_empty(sent: str) -> None:
    with pytest.raises(MalformedOutput, match="empty"):
        read_verdict(sent)


@pytest.mark.parametrize("sent", ["The candidate did well.", f"<think>{text()}</think>", "[1, 2, 3]", "3", "null"])
def test_a_text_without_a_verdict_is_malformed(sent: str) -> None:
    with pytest.raises(MalformedOutput):
        read_verdict(sent)


@relaxed
@given(st.integers(0, len(text()) - 1))
def test_a_truncated_verdict_is_never_completed(length: int) -> None:
    with pytest.raises(MalformedOutput, match="token limit") as caught:
        read_verdict(text()[:length], truncated=True)
    assert caught.value.truncated
    with pytest.raises(MalformedOutput) as caught:
        read_verdict(text()[:length])
    assert not caught.value.truncated


def test_a_whole_verdict_counts_although_the_text_was_cut_off_after_it() -> None:
    assert read_verdict(text() + "\nAnd furtherm", truncated=True) == THREES


def test_an_error_message_stays_short() -> None:
    with pytest.raises(MalformedOutput) as caught:
        read_verdict(json.dumps({"accuracy": "x" * 10_000}))
    assert len(str(caught.value)) <= 300


def test_the_verdict_that_the_evaluator_starts_from_is_a_verdict() -> None:
    assert read_verdict(bare_verdict(1)) == Verdict((1,) * 5, 1, None)
    assert list(json.loads(bare_verdict(4))) == verdict_schema(400)["required"]


scores = st.integers(1, 4)
aspects = st.builds(lambda comment, score: {"comment": comment, "score": score}, st.text(), scores)
verdicts = st.fixed_dictionaries(
    dict.fromkeys(ASPECTS, aspects)
    | {"overall_comment": st.text(), "overall_score": scores, "stop_conversation": st.booleans()}
    | {"stop_reason": st.sampled_from([*STOP_REASONS, "none"])}
)
spaces = st.text(" \t\n\r", max_size=4)
prose = st.text(st.characters(codec="utf-8", exclude_characters="{}<"))


@relaxed
@given(verdicts, st.data())
def test_any_rendering_of_a_verdict_is_read_back(fields: dict[str, Any], data: st.DataObject) -> None:
    rendered = json.dumps(
        fields,
        indent=data.draw(st.none() | st.integers(0, 4) | st.just("\t")),
        ensure_ascii=data.draw(st.booleans()),
        separators=(data.draw(spaces) + "," + data.draw(spaces), data.draw(spaces) + ":" + data.draw(spaces)),
        sort_keys=data.draw(st.booleans()),
    )
    before, after = data.draw(st.sampled_from([("", ""), ("```json\n", "\n```"), ("```", "```"), ("**", "**")]))
    found = read_verdict(data.draw(prose) + before + rendered + after + data.draw(prose))
    reason = "unspecified" if fields["stop_reason"] == "none" else fields["stop_reason"]
    assert found.aspects == tuple(fields[name]["score"] for name in ASPECTS)
    assert found.overall == fields["overall_score"]
    assert found.stop == (reason if fields["stop_conversation"] else None)


@relaxed
@given(prose, st.booleans())
def test_text_without_braces_is_always_malformed(sent: str, truncated: bool) -> None:
    with pytest.raises(MalformedOutput):
        read_verdict(sent, truncated=truncated)


# Texts that come close: a verdict with a piece replaced by rubbish, and rubbish made of JSON's own characters.
rubbish = st.text(st.characters()) | st.text('{}[]",:\\ \n-.0123456789eEtrufalsn', max_size=40) | st.just("<think>")
spoiled = st.builds(
    lambda whole, start, length, piece: whole[:start] + piece + whole[start + length :],
    verdicts.map(json.dumps),
    st.integers(0, 600),
    st.integers(0, 60),
    rubbish,
)


@relaxed
@given(rubbish | spoiled, st.booleans())
def test_no_text_raises_anything_else(sent: str, truncated: bool) -> None:
    try:
        found = read_verdict(sent, truncated=truncated)
    except MalformedOutput:
        return
    assert all(1 <= score <= 4 for score in found.scores())
    assert all(re.search(rf'"{name}"', sent) for name in (*ASPECTS, "overall_score"))


@pytest.mark.parametrize("tokens", [1, 150, 400, 4000])
def test_line_39_comments_are_bounded_so_that_a_verdict_ends(tokens: int) -> None:
    longest = verdict_schema(tokens)["properties"]["overall_comment"]["maxLength"]
    fields = {name: {"comment": "x" * longest, "score": 4} for name in ASPECTS}
    written = json.dumps(fields | {"overall_comment": "x" * longest, "overall_score": 4, "stop_conversation": False})
    assert longest >= 40
    # At three characters a token; fewer tokens than the frame of a verdict takes cannot hold one.
    assert len(written) / 3 <= tokens or tokens < 250
