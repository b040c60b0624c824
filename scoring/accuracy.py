"""Static accuracy: which option of an item a model prefers, and the share of items it gets right.

Choices follow lm-evaluation-harness (``acc``, ``acc_norm``), so that figures compare; of equals the first is chosen.
What never belongs here: computing log-probabilities, prompts, and reading a choice out of an answer's text
(``agents.answers``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .contamination import SLACK, Floats
from .intervals import Estimate, wilson
from .stream import Tally


def choose_letter(logprobs: Floats) -> int:
    """The option whose letter is likeliest; of equals the first, as lm-evaluation-harness has it.

    -inf is a letter that cannot be said.

    :raises ValueError: there is no option, one is nan or above 0, or all are -inf.
    """
    return int(_options(logprobs).argmax())


def choose_raw(option_sums: Floats) -> int:
    """The option whose text has the highest log-probability, summed over its tokens; ``acc`` of lm-evaluation-harness.

    :raises ValueError: as ``choose_letter``.
    """
    return int(_options(option_sums).argmax())


def choose_normalised(option_sums: Floats, lengths: Sequence[int]) -> int:
    """As ``choose_raw``, each sum divided by its option's length; ``acc_norm`` of lm-evaluation-harness.

    There the length is that of the option's text in characters (Unicode code points), without the space or other
    delimiter before it. With lengths in UTF-8 bytes this is the harness's ``acc_bytes``.

    :raises ValueError: as ``choose_letter``; or the number of lengths differs, or one is below 1.
    """
    sums = _options(option_sums)
    sizes = np.asarray(lengths, dtype=np.float64)
    if sizes.shape != sums.shape:
        raise ValueError(f"lengths: {sizes.size} for {sums.size} options")
    if not (sizes >= 1).all():
        raise ValueError(f"lengths: {list(lengths)}; an option has at least one character")
    return int((sums / sizes).argmax())


@dataclass(slots=True, frozen=True)
class Answer:
    """How one item of a probe was answered. ``unanswered``: no choice could be read from what was generated.

    ``logprobs``: by option, what the choice was made from; empty where the answer was generated.
    """

    right: bool
    unanswered: bool = False
    logprobs: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.right and self.unanswered:
            raise ValueError("an answer cannot be right and unanswered")


class Accuracy:
    """Counts of right, wrong and unanswered items: exact, mergeable, independent of order."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts = Tally()

    def add(self, answer: Answer) -> None:
        """Count one item."""
        self._counts.add("right" if answer.right else "unanswered" if answer.unanswered else "wrong")

    def merge(self, other: Accuracy) -> None:
        """Take in another's counts."""
        self._counts.merge(other._counts)

    @property
    def right(self) -> int:
        """Items answered rightly."""
        return self._counts.counts.get("right", 0)

    @property
    def wrong(self) -> int:
        """Items answered by another option."""
        return self._counts.counts.get("wrong", 0)

    @property
    def unanswered(self) -> int:
        """Items whose answer names no option, or several."""
        return self._counts.counts.get("unanswered", 0)

    def of_all(self, level: float = 0.95) -> Estimate | None:
        """The share of all items that is right, 0–1, with Wilson's interval; None of nothing.

        :raises ValueError: ``level`` is not between 0 and 1.
        """
        return wilson(self.right, self.right + self.wrong + self.unanswered, level)

    def of_answered(self, level: float = 0.95) -> Estimate | None:
        """The share of the answered items that is right, 0–1, with Wilson's interval; None of nothing.

        :raises ValueError: ``level`` is not between 0 and 1.
        """
        return wilson(self.right, self.right + self.wrong, level)


def _options(values: Floats) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not array.size:
        raise ValueError(f"options: of shape {array.shape}; a flat list of at least one is needed")
    if np.isnan(array).any() or array.max() > SLACK:
        raise ValueError(f"options: {array.tolist()}; log-probabilities are at most 0")
    if np.isneginf(array).all():
        raise ValueError("options: all are -inf; none of them can be said")
    return array
