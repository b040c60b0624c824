"""Stop strings: in sampled text, in forced text and across their borders; what is kept of an answer that was cut."""

from __future__ import annotations

import random

import pytest
from growing_answers import FIRST_BYTE, PICK, Make, any_sampled, feed, randoms, spelled, texts, tokens_of
from hypothesis import given, settings
from hypothesis import strategies as st

from viva.engine.backends.llama.sampler import SampledToken, SamplerSettings
from viva.scenarios.kieval.verdicts import verdict_schema

fixed = settings(deadline=None, derandomize=True)
stops = st.text("abehpst é\n", min_size=1, max_size=4)


def up_to_a_stop(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The text before the stop that is complete first (of two at once the longer one), and that stop."""
    for end in range(len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


@settings(fixed, max_examples=200)
@given(texts.map("".join), st.lists(stops, min_size=1, max_size=3), randoms)
def test_the_text_ends_before_the_stop(make: Make, text: str, stops: list[str], rng: random.Random) -> None:
    generation = make(stops=tuple(stop.encode() for stop in stops))
    tokens = tokens_of(generation, text, rng)
    feed(generation, tokens)
    kept, stop = up_to_a_stop(text, stops)
    assert (generation.finish, generation.text()) == ("stop", kept)
    if stop is not None:  # it ended with the token that completed the stop, and no token of its text is vouched for
        assert stop.encode() in spelled(generation, generation.tokens)
        assert stop.encode() not in spelled(generation, generation.tokens[:-1])
        assert (generation.pieces, generation.computed_segments(1)) == ([], [])
    else:
        assert generation.tokens == tokens
        assert generation.pieces == ([(True, tokens)] if tokens else [])


json_stops = st.sampled_from(
    ['"score": ', '"', "}, ", ': "', "comment", '", "score": 2', "og", "overall", ", ", "é", "}"]
)


@settings(fixed, max_examples=120)
@given(st.integers(0, 10**6), st.lists(json_stops, min_size=1, max_size=2), st.booleans())
def test_stops_are_found_in_forced_text_and_across_its_borders(
    make: Make, seed: int, stops: list[str], forcing: bool
) -> None:
    """Under a schema too the text ends just before the stop, wherever the stop lies, and the same is streamed."""
    whole = any_sampled(make(verdict_schema(400), forcing=forcing), seed)
    told: list[bytes] = []
    settings = SamplerSettings(1, logprobs=0)
    encoded = tuple(stop.encode() for stop in stops)
    cut = any_sampled(
        make(verdict_schema(400), forcing=forcing, stops=encoded, on_bytes=told.append, settings=settings), seed
    )
    kept, stop = up_to_a_stop(whole.text(), stops)
    assert (cut.finish, cut.text()) == ("stop", kept)
    assert b"".join(told).decode() == kept
    if stop is not None:
        # The tokens are those up to the one that completed the stop; of a forced run the rest was never computed.
        assert cut.tokens == whole.tokens[: len(cut.tokens)]
        assert stop.encode() in spelled(cut, cut.tokens)
        assert stop.encode() not in spelled(cut, cut.tokens[:-1])
        assert (cut.pieces, cut.computed_segments(1)) == ([], [])


STOPPED: list[tuple[str, str, str, int]] = [
    ("within forced text", "why", '{"grade": 1, "', 1),
    ("at the very beginning", "{", "", 0),
    ("from forced text into a sampled token", 'e": 1', '{"grad', 0),
    ("from a sampled token into forced text", "1, ", '{"grade": ', 0),
    ("from forced text through a sampled token into forced text", ": 1,", '{"grade"', 0),
    ("at the very end", "}", '{"grade": 1, "why": "it"', 2),
]


@pytest.mark.parametrize(("stop", "text", "rows"), [case[1:] for case in STOPPED], ids=[case[0] for case in STOPPED])
def test_the_rows_of_a_stopped_answer_are_those_of_its_text(make: Make, stop: str, text: str, rows: int) -> None:
    generation = make(PICK, stops=(stop.encode(),), settings=SamplerSettings(1, logprobs=0))
    generation.forced_opening()
    for letter in "1t":
        if generation.finish is None:
            generation.add_token(SampledToken(FIRST_BYTE + ord(letter), -0.5, []))
    assert (generation.finish, generation.text()) == ("stop", text)
    assert generation.logprobs == [["1", -0.5, {}], ["t", -0.5, {}]][:rows]
    assert spelled(generation, generation.tokens).endswith(stop.encode())


@pytest.mark.parametrize(("stop", "rows"), [("z", 3), ("q", 2), ("eq", 1), ("heq", 1), (" theq", 0)])
def test_a_row_stays_while_a_part_of_its_token_is_in_the_text(make: Make, stop: str, rows: int) -> None:
    generation = make(stops=(stop.encode(),), settings=SamplerSettings(1, logprobs=0))
    for piece in (b" th", b"e", b"q"):
        generation.add_token(SampledToken(generation.model.pieces.index(piece), -0.5, []))
    assert generation.text() == " theq".partition(stop)[0]
    assert [row[0] for row in generation.logprobs or []] == [" th", "e", "q"][:rows]


@pytest.mark.parametrize(
    ("stop", "grade", "expected"), [('e": 2, ', "2", []), ("2,", "2", []), (', "why', "2", [1.25]), ("t", "1", [1.25])]
)
def test_a_score_behind_the_cut_is_dropped(make: Make, stop: str, grade: str, expected: list[float]) -> None:
    generation = make(PICK, stops=(stop.encode(),))
    generation.forced_opening()
    generation.add_expected_score({1: 0.3, 2: 0.1})
    generation.add_token(SampledToken(FIRST_BYTE + ord(grade)))
    if generation.finish is None:
        generation.add_token(SampledToken(FIRST_BYTE + ord("t")))
    assert stop not in generation.text()
    assert generation.expected == pytest.approx(expected)
