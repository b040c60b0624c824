"""Choosing the next tokens of all lanes at once, each by its own settings, none depending on its company.

Every random draw is a hash of the request's seed and the token's position, so the same request draws the same numbers
in any batch. All arithmetic is row by row.

What never belongs here: grammars (they come as masks), KV, stop strings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..native import Logits
from .draw import best, check_numbers, draw

Mask = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Choice:
    """Settings of one request. ``temperature`` 0 is greedy; ``top_k`` 0 and ``top_p`` 1 and ``min_p`` 0 are off.

    ``logprobs``: how many of the best alternatives to report with each token, None for no report at all.
    ``repeat``, ``frequency``, ``presence``: penalties on tokens already generated (1, 0, 0 are off).
    ``expected``: report the mean of every score that a grammar lets choose from.
    ``penalises``: whether what was generated so far changes the odds; ``plain``: whether the best token is all there is
    to find. Settings do not change: both are worked out once, for behind a step of the model every lookup is slow.
    """

    seed: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repeat: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    logprobs: int | None = None
    expected: bool = False
    counts: dict[int, int] = field(default_factory=dict)
    penalises: bool = field(init=False)
    plain: bool = field(init=False)

    def __post_init__(self) -> None:
        self.penalises = self.repeat != 1.0 or self.frequency != 0.0 or self.presence != 0.0
        self.plain = self.temperature <= 0 and not self.penalises and self.logprobs is None


@dataclass(slots=True)
class Picked:
    """One chosen token; its log-probability and the best alternatives where they were asked for."""

    token: int
    logprob: float = 0.0
    top: list[tuple[int, float]] | None = None


def pick(logits: Logits, choices: list[Choice], positions: list[int], masks: list[Mask | None]) -> list[Picked]:
    """The next token of each row; a row whose mask allows nothing is an error of the grammar, not a choice.

    Log-probabilities are of the model's own distribution, before any setting or mask.

    :raises ValueError: a mask allows no token. :raises FloatingPointError: a row is no numbers.
    """
    for choice, mask in zip(choices, masks, strict=True):
        if mask is not None or not choice.plain:
            break
    else:  # the usual case: one pass over the whole batch
        tokens = logits.argmax(axis=1)
        check_numbers(logits[np.arange(len(tokens)), tokens])
        return [Picked(token) for token in tokens.tolist()]
    return [
        _pick_row(logits[row], choice, position, mask)
        for row, (choice, position, mask) in enumerate(zip(choices, positions, masks, strict=True))
    ]


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on the seed and the position alone (splitmix64)."""
    value = (seed * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03 + 0x632BE59BD9B4E019) & 0xFFFFFFFFFFFFFFFF
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        value = ((value ^ (value >> shift)) * factor) & 0xFFFFFFFFFFFFFFFF
    return ((value ^ (value >> 31)) >> 11) / (1 << 53)


def log_softmax(row: Logits) -> npt.NDArray[np.float64]:
    """Log-probabilities of one row, in double precision."""
    wide = row.astype(np.float64)
    wide -= wide.max()
    wide -= np.log(np.exp(wide).sum())
    return wide


def shares(row: Logits, options: Mapping[int, Sequence[int]]) -> dict[int, float]:
    """How a row of logits weighs values against each other, each standing for its tokens: shares that sum to 1."""
    best = max(float(row[token]) for tokens in options.values() for token in tokens)
    weights = {
        value: math.fsum(math.exp(float(row[token]) - best) for token in tokens) for value, tokens in options.items()
    }
    total = math.fsum(weights.values())
    return {value: weight / total for value, weight in weights.items()}


def _pick_row(row: Logits, choice: Choice, position: int, mask: Mask | None) -> Picked:
    if mask is not None and not mask.any():
        raise ValueError("the grammar allows no token here")
    given = row
    if choice.penalises and choice.counts:
        row = _penalised(row, choice)
    if choice.temperature <= 0:
        token = int((row if mask is None else np.where(mask, row, -np.inf)).argmax())
        check_numbers(row[token])
    else:
        token = draw(
            row,
            uniform(choice.seed, position),
            temperature=choice.temperature,
            top_p=choice.top_p,
            top_k=choice.top_k,
            min_p=choice.min_p,
            mask=mask,
        )
    if choice.logprobs is None:
        return Picked(token)
    logprobs = log_softmax(given)
    top = best(logprobs, choice.logprobs)
    return Picked(token, float(logprobs[token]), [(int(t), float(logprobs[t])) for t in top])


def _penalised(row: Logits, choice: Choice) -> Logits:
    row = row.copy()
    tokens = np.fromiter(choice.counts.keys(), dtype=np.int64)
    counts = np.fromiter(choice.counts.values(), dtype=np.float32)
    values = row[tokens]
    values = np.where(values > 0, values / choice.repeat, values * choice.repeat)
    row[tokens] = values - counts * choice.frequency - choice.presence
    return row
