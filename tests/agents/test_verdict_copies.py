"""Copied verdicts: which copies count, what a report may say of them, and that sound judges are not accused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viva.agents.verdict_copies import CopyCounter, WordedVerdict
from viva.scoring.verdict_variety import VerdictVariety

ASPECTS = ("accuracy", "logic", "relevance")
START = {"accuracy": "The answer is correct.", "logic": "Only an answer is given.", "relevance": "It keeps to it."}
OWN = {"accuracy": "Copper does conduct.", "logic": "It follows.", "relevance": "To the point."}
ALL_FOUR, ALL_TWO = (4, 4, 4), (2, 2, 2)


def counted(*verdicts: tuple[tuple[int, ...], dict[str, str], str]) -> CopyCounter:
    counter = CopyCounter(WordedVerdict.from_texts(ALL_FOUR, START))
    for scores, comments, judged in verdicts:
        counter.add(scores, comments, judged)
    return counter


def variety_of(*counters: CopyCounter, scores: tuple[int, ...] = ALL_FOUR) -> VerdictVariety:
    variety = VerdictVariety()
    for counter in counters:
        variety.add_copies(counter.to_record())
        for _ in counter.digests:
            variety.add(scores)
    return variety


@pytest.mark.parametrize(
    ("scores", "comments", "copied"),
    [
        (ALL_FOUR, START, True),
        (ALL_FOUR, {name: text.upper().replace(".", " !") for name, text in START.items()}, True),
        (ALL_FOUR, START | {"accuracy": "Copper does conduct."}, True),
        (ALL_FOUR, OWN | {"accuracy": START["accuracy"]}, False),
        (ALL_TWO, START, False),
        (ALL_FOUR, dict.fromkeys(ASPECTS, ""), False),
    ],
)
def test_a_copy_has_the_scores_and_most_of_the_words(
    scores: tuple[int, ...], comments: dict[str, str], copied: bool
) -> None:
    assert counted((scores, comments, "a reply")).from_start == copied


def test_the_same_verdict_on_the_same_reply_is_no_copy() -> None:
    assert counted((ALL_TWO, OWN, "Yes."), (ALL_TWO, OWN, "yes")).repeated == 0
    assert counted((ALL_TWO, OWN, "Yes."), (ALL_TWO, OWN, "No."), (ALL_TWO, OWN, "Or.")).repeated == 2
    assert counted((ALL_TWO, OWN, "Yes."), ((3, 3, 3), OWN, "No.")).repeated == 0


@pytest.mark.parametrize(
    ("copies", "of", "expected"),
    [
        (5, 5, "judge not usable: 5 of 5"),
        (25, 50, "judge not usable: 25 of 50"),
        (24, 50, "24 of 50 verdicts copy"),
        (3, 40, None),
        (2, 2, None),
    ],
)
def test_the_sentence_claims_what_the_share_of_copies_allows(copies: int, of: int, expected: str | None) -> None:
    own = [((4, 4, 4), {name: f"{name} {number}" for name in ASPECTS}, str(number)) for number in range(of - copies)]
    counter = counted(*[(ALL_FOUR, START, str(number)) for number in range(copies)], *own)
    variety = variety_of(counter)
    variety.add(ALL_TWO)
    warnings = variety.warnings("judge")
    assert [text[: len(expected or "")] for text in warnings] == ([] if expected is None else [expected])
    assert variety.unusable == (expected is not None and "not usable" in expected)


def test_one_verdict_for_everything_is_stated_and_nobody_accused() -> None:
    variety = variety_of(*[counted((ALL_TWO, OWN, "r")) for _ in range(10)], scores=ALL_TWO)
    assert variety.warnings("judge") == [
        "all 10 verdicts are equal, word for word, so the run does not show whether the judge tells good from bad"
    ]
    assert not variety.unusable
    assert variety_of(*[counted((ALL_TWO, OWN, "r")) for _ in range(9)], scores=ALL_TWO).warnings("judge") == []


@given(st.lists(st.tuples(st.sampled_from([ALL_FOUR, ALL_TWO]), st.sampled_from([START, OWN]), st.text(max_size=3))))
def test_any_split_gives_the_same_counts(verdicts: list[tuple[tuple[int, ...], dict[str, str], str]]) -> None:
    """Every order and split of conversations gives one record; no verdict is counted twice."""
    conversations = [counted(*verdicts[start : start + 3]) for start in range(0, len(verdicts), 3)]
    together, first, second = (
        variety_of(*conversations),
        variety_of(*conversations[::2]),
        variety_of(*conversations[1::2]),
    )
    second.merge(first)
    assert second.to_record() == together.to_record()
    record = together.to_record()
    assert record["from_start"] + record["repeated"] <= record["verdicts"] == len(verdicts)
