"""Log-probabilities of given texts, for models that read instead of generating. Hot-path records, like `messages`."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson


@dataclass(slots=True, frozen=True)
class Reading:
    """A request to a model: how likely is each of `continuations` after `shared + context`?

    `shared` is a prefix that many readings have in common (few-shot examples); a backend may compute it once for all of
    them. An empty context means the beginning of a text. `moments` also requests the mean and the deviation of the
    log-probability over the vocabulary at each token (needed by Min-K%++). `hint` is what a simulated model may know of
    the item; real backends never read it.
    """

    context: str
    continuations: tuple[str, ...]
    shared: str = ""
    moments: bool = False
    hint: Any = None

    def digest(self) -> bytes:
        """Return 16 bytes that identify the request."""
        parts = [self.shared, self.context, self.continuations, self.moments]
        return hashlib.blake2b(orjson.dumps(parts), digest_size=16).digest()


@dataclass(slots=True)
class Likelihood:
    """Likelihood of one continuation, token by token, in nats.

    `greedy` is True if every token was the most likely one at its position. `means` and `deviations` describe log p
    under p itself over the whole vocabulary; None if they were not requested or the backend cannot know them.
    """

    logprobs: list[float]
    greedy: bool = False
    means: list[float] | None = None
    deviations: list[float] | None = None

    @property
    def total(self) -> float:
        """Log-probability of the whole continuation."""
        return math.fsum(self.logprobs)

    def to_record(self) -> list[Any]:
        """Return plain JSON data; `from_record` restores it exactly."""
        return [self.logprobs, self.greedy, self.means, self.deviations]

    @classmethod
    def from_record(cls, record: list[Any]) -> Likelihood:
        """Restore what `to_record` returned. JSON has no -inf, so it is stored as null.

        Raises:
            ValueError: It is no such record.
        """
        if not isinstance(record, list) or not 0 < len(record) < 5 or not isinstance(record[0], list):
            raise ValueError("no record of a likelihood")
        fields: list[Any] = [*record, *(False, None, None)[len(record) - 1 :]]
        logprobs, greedy, *more = fields
        logprobs = [-math.inf if value is None else value for value in logprobs]
        try:
            math.fsum(logprobs)  # the quickest check that all are numbers
            are_numbers = all(value is None or _are_numbers(value) for value in more)
        except (TypeError, OverflowError) as error:
            raise ValueError(f"no record of a likelihood: {error}") from None
        if type(greedy) is not bool or not are_numbers:
            raise ValueError("no record of a likelihood")
        return cls(logprobs, greedy, *more)


def _are_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(value is None or type(value) in (int, float) for value in values)


_MIN_LOGPROB = -9999.0  # how endpoints write -inf, which JSON lacks


def clamp_logprob(value: Any) -> float:
    """Return an endpoint's log-probability as the journal can store it; raise `TypeError` if it is no number."""
    if not isinstance(value, int | float) or math.isnan(value):
        raise TypeError(f"expected a log-probability, found {value!r}")
    return max(_MIN_LOGPROB, value)


def max_logprob_by_token(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return log-probabilities by token; for a repeated token (parts of characters look alike) the highest."""
    highest: dict[str, float] = {}
    for token, value in pairs:
        if token not in highest or value > highest[token]:
            highest[token] = value
    return highest
