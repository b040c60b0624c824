"""Growing answers: stop strings, streaming, grammars and forced tokens, limits, and what can be kept of an answer."""

from __future__ import annotations

import codecs
import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_gguf import make_model

from viva.agents.verdicts import VERDICT_SCHEMA, read_verdict
from viva.engine.backends.llama.generation import Generation
from viva.engine.backends.llama.grammar import Grammar, TokenMasks
from viva.engine.backends.llama.native import NativeModel
from viva.engine.backends.llama.sampler import Choice, Picked

fixed = settings(deadline=None, derandomize=True, max_examples=100)
FIRST_BYTE = 6  # tokens of single bytes follow the control tokens
Make = Callable[..., Generation]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    """``make(schema, **settings)``: a generation over a small real vocabulary."""
    model = NativeModel(make_model(tmp_path_factory.mktemp("generation") / "tiny.gguf"))
    masks = TokenMasks(model.pieces, model.ends, model.controls)

    def generation(schema: Any = None, *, max_tokens: int = 10**6, choice: Choice | None = None, **more: Any) -> Any:
        grammar = None if schema is None else Grammar(schema)
        made = Generation(model, masks, choice or Choice(1), max_tokens, grammar=grammar, **more)
        made.tokenize = lambda text: model.tokenize(text, special=False)
        return made

    yield generation
    model.close()


def tokens_of(generation: Generation, text: str, rng: random.Random) -> list[int]:
    """Tokens that spell a text: as the vocabulary would have it in some places, byte by byte in others."""
    tokens: list[int] = []
    for token in generation.model.tokenize(text, special=False):
        piece = generation.model.pieces[token]
        tokens += [FIRST_BYTE + byte for byte in piece] if rng.random() < 0.3 else [int(token)]
    assert spelled(generation, tokens) == text.encode()
    return tokens


def spelled(generation: Generation, tokens: list[int]) -> bytes:
    return b"".join(generation.model.pieces[token] for token in tokens)


def feed(generation: Generation, tokens: list[int]) -> None:
    """As a model that says these tokens, as far as it is let, and then ends."""
    for token in [*tokens, generation.model.eos]:
        if generation.finish is None:
            generation.take(Picked(token))


def sampled(generation: Generation, seed: int) -> Generation:
    """As a model that says anything that is allowed, now and then a quotation mark."""
    rng, model = random.Random(seed), generation.model
    generation.opening()
    while generation.finish is None:
        mask = generation.mask()
        allowed = [token for token in range(model.n_vocab) if mask is None or mask[token]]
        quotes = [token for token in allowed if b'"' in model.pieces[token]]
        generation.take(Picked(rng.choice(quotes if quotes and rng.random() < 0.2 else allowed)))
    return generation


texts = st.lists(st.sampled_from(["the", " of", " stop", "a", "ab", "b", "\n", " ", "é", "😀", "."]), max_size=12)
stops = st.text("abehpst é\n", min_size=1, max_size=4)
randoms = st.randoms(use_true_random=False)


@settings(fixed, max_examples=200)
@given(texts.map("".join), stops, randoms)
def test_the_text_ends_before_the_stop(make: Make, text: str, stop: str, rng: random.Random) -> None:
    generation = make(stops=(stop.encode(),))
    tokens = tokens_of(generation, text, rng)
    feed(generation, tokens)
    assert generation.finish == "stop"
    assert generation.text() == text.partition(stop)[0]
    if stop in text:  # it ended with the token that completed the stop, and no token of its text is vouched for
        assert stop.encode() in spelled(generation, generation.tokens)
        assert stop.encode() not in spelled(generation, generation.tokens[:-1])
        assert (generation.pieces, generation.computed(1)) == ([], [])
    else:
        assert generation.tokens == tokens
        assert generation.pieces == ([(True, tokens)] if tokens else [])


@fixed
@given(texts.map("".join), st.lists(stops, max_size=4))
def test_no_stop_is_ever_in_the_text(make: Make, text: str, several: list[str]) -> None:
    generation = make(stops=tuple(stop.encode() for stop in several))
    feed(generation, [FIRST_BYTE + byte for byte in text.encode()])
    assert text.startswith(generation.text())
    assert not any(stop in generation.text() for stop in several)
    assert (generation.text() == text) == (not any(stop in text for stop in several))


@settings(fixed, max_examples=200)
@given(texts.map("".join), st.none() | st.text("abehpst \n", min_size=1, max_size=4), randoms)
def test_all_that_is_safe_is_streamed(make: Make, text: str, stop: str | None, rng: random.Random) -> None:
    told: list[bytes] = []
    generation = make(stops=() if stop is None else (stop.encode(),), on_bytes=told.append)
    for token in tokens_of(generation, text, rng):
        generation.take(Picked(token))
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
def test_a_verdict_of_random_picks_is_read_unless_cut_off(make: Make, seed: int, limit: int, forcing: bool) -> None:
    told: list[bytes] = []
    generation = sampled(make(VERDICT_SCHEMA, max_tokens=limit, forcing=forcing, on_bytes=told.append), seed)
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
    generation = sampled(make(VERDICT_SCHEMA, max_tokens=limit), seed)
    original, tokens = copy.deepcopy(generation.pieces), generation.tokens
    for held in range(-1, len(tokens) + 2):
        generation.pieces = copy.deepcopy(original)
        runs = generation.computed(held)
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


PICK = {"type": "object", "properties": {"grade": {"enum": [1, 2]}, "why": {"enum": ["it", "is"]}}}


def test_forced_tokens_are_runs_of_their_own_and_the_end_comes_at_once(make: Make) -> None:
    generation = make(PICK, choice=Choice(1, presence=0.5, logprobs=1))
    one, t = FIRST_BYTE + ord("1"), FIRST_BYTE + ord("t")
    segments = [generation.opening(), generation.take(Picked(one, -0.5, [(one, -0.5), (t, -1.5)]))]
    assert (generation.finish, generation.sampled) == (None, True)
    generation.take(Picked(t, -0.25, []))
    assert (generation.finish, generation.text()) == ("stop", '{"grade": 1, "why": "it"}')
    runs = [(decoded, spelled(generation, ids)) for decoded, ids in generation.pieces]
    assert runs == [(False, b'{"grade": '), (True, b"1"), (False, b', "why": "i'), (True, b"t"), (False, b'"}')]
    forced = [(segment.decoded, segment.tokens.tolist()) for segment in segments if segment is not None]
    assert forced == [generation.pieces[0], generation.pieces[2]]
    # Only what was sampled has odds, and only that counts for penalties.
    assert generation.logprobs == [["1", -0.5, {"1": -0.5, "t": -1.5}], ["t", -0.25, {}]]
    assert generation.choice.counts == {one: 1, t: 1}


def test_without_forcing_the_same_text_is_sampled_and_ends_by_itself(make: Make) -> None:
    generation = make(PICK, forcing=False)
    assert generation.opening() is None
    text = json.dumps({"grade": 2, "why": "is"})
    feed(generation, [*tokens_of(generation, text, random.Random(1)), FIRST_BYTE])
    assert (generation.finish, generation.text()) == ("stop", text)
    assert generation.pieces == [(True, generation.tokens)]


@pytest.mark.parametrize("limit", [1, 3, 8])
def test_the_limit_counts_what_is_forced(make: Make, limit: int) -> None:
    generation = make({"const": "some long text"}, max_tokens=limit)
    opening = generation.opening()
    assert opening is not None
    assert opening.tokens.tolist() == generation.tokens
    assert (len(generation.tokens), generation.finish) == (limit, "length")
    assert b'"some long text"'.startswith(spelled(generation, generation.tokens))


@pytest.mark.parametrize("schema", [None, {"type": "integer"}])
def test_an_end_token_ends_and_is_no_part_of_the_answer(make: Make, schema: Any) -> None:
    generation = make(schema)
    feed(generation, [FIRST_BYTE + ord("4"), FIRST_BYTE + ord("2")])
    assert (generation.finish, generation.text(), len(generation.tokens)) == ("stop", "42", 2)
