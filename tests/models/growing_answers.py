"""Growing answers over a vocabulary: models that say given tokens, or anything that they may say."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from hypothesis import strategies as st

from viva.engine.backends.llama.generation import Generation
from viva.engine.backends.llama.grammar import Grammar, TokenMasks
from viva.engine.backends.llama.native import NativeModel
from viva.engine.backends.llama.sampler import SampledToken, SamplerSettings

FIRST_BYTE = 6  # tokens of single bytes follow the control tokens of the small vocabulary
Make = Callable[..., Generation]
PICK = {"type": "object", "properties": {"grade": {"enum": [1, 2]}, "why": {"enum": ["it", "is"]}}}
texts = st.lists(st.sampled_from(["the", " of", " stop", "a", "ab", "b", "\n", " ", "é", "😀", "."]), max_size=12)
randoms = st.randoms(use_true_random=False)


def making(model: NativeModel) -> Make:
    """``make(schema, **settings)``: a generation over the vocabulary of a model."""
    masks = TokenMasks(model.pieces, model.ends, model.controls)

    def generation(
        schema: Any = None, *, max_tokens: int = 10**6, settings: SamplerSettings | None = None, **more: Any
    ) -> Any:
        grammar = None if schema is None else Grammar(schema)
        made = Generation(model, masks, settings or SamplerSettings(1), max_tokens, grammar=grammar, **more)
        made.tokenize = lambda text: model.tokenize(text, special=False)
        return made

    return generation


@cache
def byte_tokens(model: NativeModel) -> dict[int, int]:
    """The token of each byte that has one by itself."""
    single = {piece[0]: token for token, piece in enumerate(model.pieces) if len(piece) == 1}
    return single | {byte: FIRST_BYTE + byte for byte in range(256) if model.pieces[FIRST_BYTE + byte] == bytes([byte])}


def tokens_of(generation: Generation, text: str, rng: random.Random) -> list[int]:
    """Tokens that spell a text: as the vocabulary would have it in some places, byte by byte in others."""
    tokens: list[int] = []
    for token in generation.model.tokenize(text, special=False):
        piece = generation.model.pieces[token]
        tokens += [byte_tokens(generation.model)[byte] for byte in piece] if rng.random() < 0.3 else [int(token)]
    assert spelled(generation, tokens) == text.encode()
    return tokens


def spelled(generation: Generation, tokens: list[int]) -> bytes:
    return b"".join(generation.model.pieces[token] for token in tokens)


def feed(generation: Generation, tokens: list[int]) -> None:
    """As a model that says these tokens, as far as it is let, and then ends."""
    for token in [*tokens, generation.model.eos]:
        if generation.finish is None:
            generation.add_token(SampledToken(token))


def any_sampled(generation: Generation, seed: int) -> Generation:
    """As a model that says anything that is allowed, now and then a quotation mark."""
    rng, model = random.Random(seed), generation.model
    quotes = np.array([b'"' in piece for piece in model.pieces])
    generation.forced_opening()
    while generation.finish is None:
        mask = generation.mask()
        allowed = np.ones(model.n_vocab, dtype=bool) if mask is None else mask
        quoting = allowed & quotes
        chosen = np.flatnonzero(quoting if quoting.any() and rng.random() < 0.2 else allowed)
        generation.add_token(SampledToken(int(rng.choice(chosen))))
    return generation
