"""Growing answers: streaming, grammars and forced tokens, limits, expected scores, what can be kept of an answer."""

from __future__ import annotations

import codecs
import copy
import random
import re
from typing import Any

import numpy as np
import pytest
from growing_answers import FIRST_BYTE, PICK, Make, any_sampled, feed, randoms, spelled, texts, tokens_of
from hypothesis import given, settings
from hypothesis import strategies as st

from viva.engine.backends.llama.sampler import SampledToken, SamplerSettings
from viva.scenarios.kieval.verdicts import read_verdict, verdict_schema

fixed = settings(deadline=None, derandomize=True, max_examples=100)


@settings(fixed, max_examples=200)
@given(texts.map("".join), st.none() | st.text("abehpst \n", min_size=1, max_size=4), randoms)
def test_all_that_is_safe_is_streamed(make_any: Make, text: str, stop: str | None, rng: random.Random) -> None:
    told: list[bytes] = []
    generation = make_any(stops=() if stop is None else (stop.encode(),), on_bytes=told.append)
    for token in tokens_of(generation, text, rng):
        generation.add_token(SampledToken(token))
        if generation.finish is not None:
            break
        data = bytes(generation.data)
        # Half a character waits, and so does what may become the stop.
        safe = codecs.utf_8_decode(data, "strict", False)[1]
        for start in range(len(data)):
            safe = min(safe, start) if stop is not None and stop.encode().startswith(data[start:]) else safe
        assert b"".join(told) == data[:safe]
    feed(generation, [])
    assert "".join(chunk.decode() for chunk in told) == generation.text()
    assert all(told)


@fixed
@given(st.lists(st.sampled_from([0x61, 0x80, 0xA9, 0xC3, 0xE2, 0x82, 0xF0, 0x9F, 0xF4, 0xFF]), max_size=12))
def test_broken_characters_are_streamed_as_they_end_up_in_the_text(make: Make, data: list[int]) -> None:
    told: list[bytes] = []
    generation = make(on_bytes=told.append, max_tokens=max(1, len(data)))
    feed(generation, [FIRST_BYTE + byte for byte in data])
    assert b"".join(told) == bytes(data)
    assert "".join(chunk.decode("utf-8", "replace") for chunk in told) == generation.text()


@settings(fixed, max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 250) | st.just(10**6), st.booleans())
def test_a_verdict_of_random_picks_is_read_unless_cut_off(make_any: Make, seed: int, limit: int, forcing: bool) -> None:
    told: list[bytes] = []
    made = make_any(verdict_schema(400), max_tokens=limit, forcing=forcing, on_bytes=told.append)
    generation = any_sampled(made, seed)
    if generation.finish == "stop":
        read_verdict(generation.text())
    else:
        assert (generation.finish, len(generation.tokens)) == ("length", limit)
    assert len(generation.tokens) <= limit
    assert [token for _, run in generation.pieces for token in run] == generation.tokens
    assert spelled(generation, generation.tokens) == bytes(generation.data) == b"".join(told)
    assert not any(generation.model.ends[token] for token in generation.tokens)
    assert forcing or all(decoded for decoded, _ in generation.pieces)


@settings(fixed, max_examples=20)
@given(st.integers(0, 10**6), st.integers(1, 250))
def test_what_was_computed_can_be_cut_anywhere(make: Make, seed: int, limit: int) -> None:
    generation = any_sampled(make(verdict_schema(400), max_tokens=limit), seed)
    original, tokens = copy.deepcopy(generation.pieces), generation.tokens
    for held in range(-1, len(tokens) + 2):
        generation.pieces = copy.deepcopy(original)
        runs = generation.computed_segments(held)
        reach, expected = 0, list[tuple[bool, list[int]]]()
        for decoded, ids in original:
            part = ids[: max(0, held - reach)] if decoded or len(ids) <= held - reach else []
            expected += [(decoded, part)] if part else []
            if len(part) < len(ids):
                break
            reach += len(ids)
        assert [(run.decoded, run.tokens.tolist()) for run in runs] == expected
        # The cut stays: the runs are the first pieces, and what follows is all there.
        assert generation.pieces[: len(runs)] == expected
        assert [token for _, run in generation.pieces for token in run] == tokens


def test_forced_tokens_are_one_run_with_the_token_before_them_and_the_end_comes_at_once(make: Make) -> None:
    generation = make(PICK, settings=SamplerSettings(1, presence=0.5, logprobs=1))
    one, t = FIRST_BYTE + ord("1"), FIRST_BYTE + ord("t")
    segments = [generation.forced_opening(), generation.add_token(SampledToken(one, -0.5, [(one, -0.5), (t, -1.5)]))]
    assert (generation.finish, generation.any_sampled) == (None, True)
    generation.add_token(SampledToken(t, -0.25, []))
    assert (generation.finish, generation.text()) == ("stop", '{"grade": 1, "why": "it"}')
    runs = [(decoded, spelled(generation, ids)) for decoded, ids in generation.pieces]
    assert runs == [(False, b'{"grade": '), (False, b'1, "why": "i'), (False, b't"}')]
    forced = [(segment.decoded, segment.tokens.tolist()) for segment in segments if segment is not None]
    assert forced == generation.pieces[:2]
    # Only what was sampled has odds, and only that counts for penalties.
    assert generation.logprobs == [["1", -0.5, {"1": -0.5, "t": -1.5}], ["t", -0.25, {}]]
    assert generation.settings.counts == {one: 1, t: 1}


@pytest.mark.parametrize("seed", range(5))
def test_without_forcing_the_same_tokens_are_computed_one_by_one(make_any: Make, seed: int) -> None:
    one_by_one, at_once = (
        any_sampled(make_any(verdict_schema(400), forcing=forcing), seed) for forcing in (False, True)
    )
    assert one_by_one.tokens == at_once.tokens
    assert one_by_one.text() == at_once.text()
    assert {decoded for decoded, _ in one_by_one.pieces} == {True} < {decoded for decoded, _ in at_once.pieces}


@pytest.mark.parametrize("limit", [1, 3, 8])
def test_the_limit_counts_what_is_forced(make: Make, limit: int) -> None:
    generation = make({"const": "some long text"}, max_tokens=limit)
    forced_opening = generation.forced_opening()
    assert forced_opening is not None
    assert forced_opening.tokens.tolist() == generation.tokens
    assert (len(generation.tokens), generation.finish) == (limit, "length")
    assert b'"some long text"'.startswith(spelled(generation, generation.tokens))


@pytest.mark.parametrize("schema", [None, {"type": "integer"}])
def test_an_end_token_ends_and_is_no_part_of_the_answer(make: Make, schema: Any) -> None:
    generation = make(schema)
    feed(generation, [FIRST_BYTE + ord("4"), FIRST_BYTE + ord("2")])
    assert (generation.finish, generation.text(), len(generation.tokens)) == ("stop", "42", 2)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "array", "items": {"enum": ["no", "it"]}, "minItems": 2, "maxItems": 2}, '["it", "it"]'),
        ({"type": "object", "properties": {"n": {"type": "integer"}, "of": {"const": "it"}}}, '{"n": 0, "of": "it"}'),
        ({"type": "integer"}, "0"),
    ],
)
def test_nothing_is_sampled_where_there_is_no_choice(make: Make, schema: Any, text: str) -> None:
    generation = make(schema)
    generation.forced_opening()
    while generation.finish is None:
        choices = [token for token in range(generation.model.n_vocab) if generation.mask()[token]]
        assert len({generation.model.pieces[token] for token in choices}) > 1
        [token] = [token for token in choices if generation.model.pieces[token] in (b"i", b"0") and token < 262]
        generation.add_token(SampledToken(token))
    assert (generation.finish, generation.text()) == ("stop", text)


@settings(fixed, max_examples=20)
@given(st.integers(0, 10**6), st.none() | st.sampled_from(['", "score', "coherence", '"conciseness": {"comment": "']))
def test_each_score_of_a_verdict_has_its_expected_value(make: Make, seed: int, stop: str | None) -> None:
    rng = random.Random(seed)
    generation = make(verdict_schema(400), stops=() if stop is None else (stop.encode(),))
    model, said = generation.model, list[int]()
    generation.forced_opening()
    while generation.finish is None:
        options = generation.score_options()
        if options is not None:
            assert generation.score_options() is options  # looked up, not computed again
            assert {value: {model.pieces[token] for token in tokens} for value, tokens in options.items()} == {
                value: {b"%d" % value} for value in (1, 2, 3, 4)
            }
            assert sorted(token for tokens in options.values() for token in tokens) == [
                token for token in range(model.n_vocab) if generation.mask()[token]
            ]
            said.append(rng.choice(list(options)))
            generation.add_expected_score({value: 0.25 if value == said[-1] else 0.0 for value in options})
            generation.add_token(SampledToken(rng.choice(options[said[-1]])))
        else:
            allowed = [token for token in range(model.n_vocab) if generation.mask()[token]]
            quotes = [token for token in allowed if b'"' in model.pieces[token]]
            generation.add_token(SampledToken(rng.choice(quotes if quotes and rng.random() < 0.3 else allowed)))
    # A score that the stop cut off with the text has no expected value either.
    scores = [int(score) for score in re.findall(r'score": ([1-4])', generation.text())]
    assert generation.expected == scores == said[: len(scores)]
    if stop is None:
        assert read_verdict(generation.text()).scores() == scores


@fixed
@given(st.dictionaries(st.integers(-9, 9), st.floats(1e-6, 1.0), min_size=1))
def test_the_expected_score_is_the_weighted_mean(make: Make, values: dict[int, float]) -> None:
    generation = make(PICK)
    generation.add_expected_score(values)
    assert generation.expected == pytest.approx([np.average(list(values), weights=list(values.values()))])


def test_scores_without_any_probability_have_no_mean(make: Make) -> None:
    generation = make(PICK)
    for values in ({}, {1: 0.0, 2: 0.0}, {1: float("nan")}, {1: float("inf")}):
        with pytest.raises(ValueError, match="sum to"):
            generation.add_expected_score(values)
    assert generation.expected == []


def test_free_text_has_no_scores(make: Make) -> None:
    assert make().score_options() is None
