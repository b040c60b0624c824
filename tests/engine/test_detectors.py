"""Detectors: what ends a reply, what does not, and that it makes no difference how the text was cut into pieces."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from case_tables import case_table
from hypothesis import given, settings
from hypothesis import strategies as st

from viva.engine.detectors import Detector, EmptyReply, Repetition, RoleShift, detector_factories
from viva.engine.errors import ConfigurationError

relaxed = settings(deadline=None)


def made(names: list[str]) -> list[Detector]:
    """New detectors of these names."""
    return [make() for make in detector_factories(names)]


sizes = st.lists(st.integers(1, 60), min_size=1, max_size=12)

PROSE = """The moon keeps one face towards the earth because its rotation and its revolution take the same time. Tides
raised in the moon long ago slowed its spin until the two agreed; that is called tidal locking. Would it end if the moon
were moved farther out? No: the lock would weaken, but nothing would be there to spin the moon up again.

First, the bulge. First, the friction. First of all, however, the torque: it acts on the bulge, and only on the bulge.

Human evolution is no argument here, nor is what a user might prefer. The user, the human and the interviewer agree.
"""
CODE = """```python
def mean(values):
    total = 0
    for value in values:
        total += value
    if not values:
        return None
    return total / len(values)

def median(values):
    middle = len(values) // 2
    ordered = sorted(values)
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


for name in ("a", "b", "c", "d"):
    print(name, mean(DATA[name]), median(DATA[name]))
    print(name, mean(DATA[name]), median(DATA[name]))
```
"""
TABLE = """| Planet  | Radius / km | Days in a year | Moons | Rings |
|---------|------------:|---------------:|------:|------:|
| Mercury |        2440 |             88 |     0 |    no |
| Venus   |        6052 |            225 |     0 |    no |
| Earth   |        6371 |            365 |     1 |    no |
| Mars    |        3390 |            687 |     2 |    no |
| Jupiter |       69911 |           4333 |    95 |   yes |

0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0
"""
REFRAIN = (
    "Row, row, row your boat,\ngently down the stream.\nMerrily, merrily, merrily, merrily,\nlife is but a dream.\n"
)
CHINESE = "潮汐使月球的自转逐渐变慢，直到自转周期与公转周期相同。这种现象叫做潮汐锁定。用户：也可以这样理解。" * 2
ORDINARY = {
    "prose": PROSE,
    "code": CODE,
    "table": TABLE,
    "refrain": REFRAIN * 3,
    "Chinese": CHINESE,
    "laughter": "ha " * 30,
}

PHRASE = "I cannot answer that. "


def cut(text: str, lengths: list[int]) -> Iterator[str]:
    """The text in pieces of these lengths, over and over."""
    start, number = 0, 0
    while start < len(text):
        end = start + lengths[number % len(lengths)]
        yield text[start:end]
        start, number = end, number + 1


def stream(detector: Detector, text: str, lengths: list[int]) -> tuple[str | None, int]:
    """The first reason that ``feed`` gave, and how many characters had come by then."""
    seen = 0
    for piece in cut(text, lengths):
        seen += len(piece)
        reason = detector.feed(piece)
        if reason is not None:
            return reason, seen
    return None, seen


@pytest.mark.parametrize("text", ORDINARY.values(), ids=ORDINARY.keys())
@relaxed
@given(lengths=sizes)
def test_ordinary_replies_pass_however_they_are_cut(text: str, lengths: list[int]) -> None:
    for detector in made(["empty", "repetition", "role_shift"]):
        assert stream(detector, text, lengths)[0] is None
        assert detector.finish(text) is None


@relaxed
@given(st.text(" \t\n\r\u3000x", max_size=20), sizes)
def test_an_empty_reply_is_found_at_its_end_only(text: str, lengths: list[int]) -> None:
    detector = EmptyReply()
    assert stream(detector, text, lengths)[0] is None
    assert detector.finish(text) == (None if "x" in text else "empty_response")


# Lines that begin, or nearly begin, with a marker.
BEGINNINGS = (
    "user:|USER|User :|human:|Human: |interviewer|:|[BEGIN INTERACTOR]|[begin candidate| |\n|\r\n|**|# |> |well|İ"
)
shifty = st.lists(st.sampled_from(BEGINNINGS.split("|")), max_size=10).map("".join)


@relaxed
@given(shifty, sizes)
def test_a_role_shift_is_found_while_streaming_if_and_only_if_it_is_in_the_whole(text: str, lengths: list[int]) -> None:
    assert stream(RoleShift(), text, lengths)[0] == RoleShift().finish(text)


@case_table(
    "text",
    [
        "It is so.\nUser: And why?",
        "It is so.\n\n**Human:** And why?",
        "Interviewer: What do you mean?",
        "It is so.\n[BEGIN INTERACTOR]\nAnd why?",
        "### [BEGIN CANDIDATE]\nWell",
        "> user: and why?",
    ],
)
def test_speaking_for_the_other_party(text: str) -> None:
    assert RoleShift().finish(text) == "unpermitted_role_shift"
    reason, seen = stream(RoleShift(), text + " and so on" * 50, [1])
    assert reason == "unpermitted_role_shift"
    assert seen <= len(text)


@pytest.mark.parametrize("text", ["The user: a person.", "Users: many", "A human: mortal", "See [BEGIN INTERACTOR]."])
def test_naming_a_party_is_not_speaking_for_it(text: str) -> None:
    assert RoleShift().finish(text) is None


def test_markers_can_be_chosen() -> None:
    assert RoleShift(["Prüfer:"]).finish("Ja.\nPRÜFER: Warum?") == "unpermitted_role_shift"
    assert RoleShift(["Prüfer:"]).finish("Ja.\nUser: Warum?") is None


@pytest.mark.parametrize("phrase", ["ab", PHRASE, "\n", "重复。", "x" * 150 + " "])
@relaxed
@given(lengths=sizes)
def test_a_loop_is_ended_soon_after_it_began(phrase: str, lengths: list[int]) -> None:
    text = PROSE + phrase * (3000 // len(phrase))
    reason, seen = stream(Repetition(), text, lengths)
    assert reason == "repetition"
    # Four times the phrase, or 120 characters; the next check; the piece that came with it.
    assert seen <= len(PROSE) + max(120, 4 * len(phrase)) + 32 + max(lengths)
    assert Repetition().finish(text) == "repetition"


def test_three_times_is_not_a_loop_and_four_short_times_are_not() -> None:
    sentence = "The tide slows the spin of the moon until both periods agree. "
    assert Repetition().finish(sentence * 3) is None
    assert Repetition().finish(sentence * 4) == "repetition"
    assert Repetition().finish("no " * 39) is None
    assert Repetition().finish("no " * 40) == "repetition"
    assert Repetition(repeats=2, shortest=10).finish("to and fro to and fro ") == "repetition"


def test_a_loop_in_the_middle_is_found_whether_or_not_the_reply_was_streamed() -> None:
    text = PHRASE * 20 + PROSE
    assert stream(Repetition(), text, [1])[0] == stream(Repetition(), text, [7])[0] == Repetition().finish(text)
    assert Repetition().finish(text) == "repetition"


loops = st.text("ab", min_size=1, max_size=4).map(lambda phrase: phrase * (130 // len(phrase)))


@relaxed
@given(st.lists(loops | st.text("abc ", max_size=40), max_size=5).map("".join), sizes)
def test_the_last_word_depends_on_the_text_alone(text: str, lengths: list[int]) -> None:
    for streamed, fresh in zip(made(NAMES), made(NAMES), strict=True):
        stream(streamed, text, lengths)
        assert streamed.finish(text) == fresh.finish(text)


NAMES = ["empty", "repetition", "role_shift"]


def test_detectors_are_made_anew_and_by_name() -> None:
    one, other = made(["repetition"])[0], made(["repetition"])[0]
    assert stream(one, PHRASE * 20, [7])[0] == "repetition"
    assert stream(other, PROSE, [7])[0] is None
    assert [type(detector) for detector in made(NAMES)] == [EmptyReply, Repetition, RoleShift]
    assert made([]) == []
    with pytest.raises(ConfigurationError, match="unknown detector 'loops'; known: empty, repetition, role_shift"):
        made(["empty", "loops"])
