"""Masks over a toy vocabulary: they equal brute force, bounded strings share them, and scores have their tokens."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
from case_tables import case_table
from hypothesis import given, settings
from hypothesis import strategies as st
from random_schemas import Schema, schemas, walk

from viva.engine.backends.llama.grammar import Grammar, GrammarState, ScoreOptions, TokenMasks
from viva.engine.backends.llama.native import NativeModel
from viva.scenarios.kieval.verdicts import verdict_schema

fixed = settings(deadline=None, derandomize=True, max_examples=60)
BYTES = [bytes([byte]) for byte in range(256)]


def masks_of(*pieces: bytes) -> tuple[list[bytes], TokenMasks]:
    """A vocabulary of all bytes and some pieces; its last three tokens are a control token and two ends."""
    whole = [*BYTES, *pieces, b"<control>", b"<end>", b""]
    places = np.arange(len(whole))
    return whole, TokenMasks(whole, places >= len(whole) - 2, places == len(whole) - 3)


PIECES, MASKS = masks_of(
    *[b"", b"true", b"10", b'"', b'": ', b'", "', b'"}', b'"]', b"}}", b"]", b'{"', b'\\"', b"\\u00", b"\\", b'\\\\"'],
    *[b'ab"', b"a\n", b'"\x1f', "é".encode(), b"\xc3\xa9\xc3", b'\xa9"', b", ", b"], [", b"1, 1", b"0]", b"null"],
    *[b"\\q", "aé😀".encode(), b"\xed\xa0\x80", b"\xf0\x9f", b"\\ud83d\\u", b'ab1", ', b"ab1 ab1 "],
)


@fixed
@given(schemas, st.integers(0, 10**6))
def test_masks_equal_brute_force(schema: Schema, seed: int) -> None:
    grammar = Grammar(schema)
    for state, _ in walk(grammar, seed, patience=20):
        expected = [piece != b"" and grammar.advance(state, piece) is not None for piece in PIECES]
        expected[-3:] = [False, state.may_end, state.may_end]
        assert np.flatnonzero(MASKS.allowed(grammar, state) != expected).tolist() == []


def test_masks_over_a_real_vocabulary_equal_brute_force(real: NativeModel) -> None:
    masks = TokenMasks(real.pieces, real.ends, real.controls)
    grammar = Grammar(verdict_schema(400))
    for state, said in [*islice(walk(grammar, 1, patience=400), 0, None, 25), *walk(grammar, 2, patience=9)][-20:]:
        pieces = [piece != b"" and grammar.advance(state, piece) is not None for piece in real.pieces]
        expected = np.where(real.ends, state.may_end, pieces)
        assert np.flatnonzero(masks.allowed(grammar, state) != expected).tolist() == [], said


@pytest.mark.parametrize("limits", [{"maxLength": 50}, {"minLength": 50}, {"minLength": 20, "maxLength": 60}], ids=str)
def test_bounded_strings_share_masks_away_from_their_bounds(limits: dict[str, Any]) -> None:
    grammar = Grammar({"type": "string", **limits})
    longest = max(map(len, PIECES))
    state: GrammarState | None = grammar.advance(grammar.start, b'"')
    seen = []
    while state is not None and grammar.advance(state, b"a") is not None and len(seen) < 80:
        seen.append(MASKS.allowed(grammar, state))
        for piece, mask in zip(PIECES[256:-3], seen[-1][256:-3], strict=True):
            assert mask == (piece != b"" and grammar.advance(state, piece) is not None)
        state = grammar.advance(state, b"a")
    assert len({id(mask) for mask in seen}) <= 2 * longest + 2


def scores(schema: Schema, said: str, masks: TokenMasks = MASKS) -> ScoreOptions | None:
    grammar = Grammar(schema)
    state = grammar.advance(grammar.start, said.encode())
    assert state is not None
    return masks.score_options(grammar, state)


def graded(score: Schema) -> Schema:
    return {"type": "object", "properties": {"s": score, "why": {"type": "string"}}}


def test_each_score_has_all_tokens_that_stand_for_it() -> None:
    pieces, masks = masks_of(b"1", b'2, "', b"2.", b"3, ", b"34", b" 1", b'": 1')
    found = scores(graded({"enum": [4, 1, 2, 3]}), '{"s": ', masks)
    assert found is not None
    spelled = {value: [pieces[token] for token in tokens] for value, tokens in found.items()}
    assert spelled == {1: [b"1", b"1"], 2: [b"2", b'2, "'], 3: [b"3", b"3, "], 4: [b"4"]}


def one(byte: str) -> tuple[int, ...]:
    return (ord(byte),)


SCORES: list[tuple[Schema, str, ScoreOptions | None]] = [
    ({"type": "integer", "minimum": 1, "maximum": 3}, '{"s": ', {n: one(str(n)) for n in (1, 2, 3)}),
    ({"anyOf": [{"const": 5}, {"const": 7}]}, '{"s": ', {5: one("5"), 7: one("7")}),
    ({"enum": [2, 30]}, '{"s": ', {2: one("2"), 30: one("3")}),  # the first token tells
    ({"enum": [-1, 0, 1]}, '{"s": ', {-1: one("-"), 0: one("0"), 1: one("1")}),
    ({"enum": [20, 21]}, '{"s": 2', {20: one("0"), 21: one("1")}),  # what is forced is no choice
    ({"enum": [2, 21]}, '{"s": 2', {2: one(","), 21: one("1")}),
    ({"type": "integer", "minimum": 1, "maximum": 10}, '{"s": ', None),  # 1 may become 10
    ({"type": "integer", "minimum": 1, "maximum": 10}, '{"s": 1', None),  # and 2 to 9 are ruled out
    ({"enum": [-1, -2]}, '{"s": ', None),
    ({"enum": [1]}, '{"s": ', None),  # no choice
    ({"enum": [1, "2"]}, '{"s": ', None),
    ({"enum": [1.5, 2]}, '{"s": ', None),
    ({"type": "integer"}, '{"s": ', None),
    ({"enum": ["1", "2"]}, '{"s": "', None),
    ({"enum": [1, 2]}, '{"s"', None),
    ({"enum": [1, 2]}, '{"s": 1', None),
    ({"enum": [1, 2]}, '{"s": 1, "why": "', None),
]


@case_table(("score", "said", "expected"), SCORES)
def test_scores_are_known_where_a_token_tells(score: Schema, said: str, expected: ScoreOptions | None) -> None:
    found = scores(graded(score), said)
    if found is not None:  # of the vocabulary's tokens only single bytes are looked at here
        found = {value: tuple(token for token in tokens if token < 256) for value, tokens in found.items()}
    assert found == expected


def test_the_end_of_the_text_may_stand_for_a_score() -> None:
    ends = tuple(range(len(PIECES) - 2, len(PIECES)))
    assert scores({"enum": [1, 12]}, "1") == {1: ends, 12: one("2")}


def test_a_vocabulary_without_a_token_for_a_score_leaves_it_out() -> None:
    pieces = [b'{"s": ', b"1", b"2", b"}"]
    none = np.zeros(len(pieces), dtype=bool)
    masks = TokenMasks(pieces, none, none)
    schema: Schema = {"type": "object", "properties": {"s": {"enum": [1, 2]}}}
    assert scores(schema, '{"s": ', masks) == {1: (1,), 2: (2,)}
    schema["properties"]["s"]["enum"].append(3)
    assert scores(schema, '{"s": ', masks) is None


tails = st.sampled_from([b"", b"}", b"0", b"1", b"12", b"}x"])
ten = st.lists(st.integers(-12, 130), min_size=2, max_size=6, unique=True)


@settings(fixed, max_examples=200)
@given(ten, st.lists(st.builds(lambda n, tail: str(n).encode() + tail, st.integers(-12, 130), tails), max_size=30))
def test_scores_equal_brute_force(values: list[int], more: list[bytes]) -> None:
    pieces, masks = masks_of(*more)
    texts = {value: f'{{"s": {value}}}'.encode() for value in values}
    grammar = Grammar({"type": "object", "properties": {"s": {"enum": values}}})
    for text in texts.values():
        for place in range(len(text)):
            alive = {value: other for value, other in texts.items() if other.startswith(text[:place])}
            state = grammar.advance(grammar.start, text[:place])
            assert state is not None
            standing: dict[int, list[int]] = {value: [] for value in values}
            ambiguous = len(alive) < len(values) or place < len(b'{"s": ')
            for token, piece in enumerate(pieces[:-3]):
                of = [value for value, other in alive.items() if piece and other.startswith(piece, place)]
                ambiguous |= len(of) > 1
                for value in of:
                    standing[value].append(token)
            expected = None if ambiguous else {value: tuple(tokens) for value, tokens in standing.items()}
            assert masks.score_options(grammar, state) == expected
