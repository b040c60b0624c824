"""Figures of pairwise judges: right verdicts, the same answer in both orders, and right in both orders.

A judge compares two answers, once in each order. Its verdicts name the better *answer*, not its position: 1, 2 or
`TIE`. A verdict is right if it equals people's preferred answer. An unreadable verdict is not right, as in JudgeBench,
and says nothing about consistency.

A judge that always names the answer shown first has an accuracy of 50% and a strict score of 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .clustered_means import ClusteredMean, clustered_mean
from .intervals import Estimate

TIE = 0
# The answer that a single vote names if the two orders disagree.
INCONSISTENT = -1


@dataclass(slots=True, frozen=True)
class PairVerdicts:
    """A judge's verdicts on one pair of answers: 1, 2 or `TIE`; None if unreadable.

    `verdicts` has one verdict for each order in which the pair was shown, one or two. `preferred` is people's choice,
    None if unknown. Pairs of one `group`, such as a question, are not independent.
    """

    pair: str
    group: str
    verdicts: tuple[int | None, ...]
    preferred: int | None = None
    category: str | None = None

    @property
    def vote(self) -> int | None:
        """The judge's vote: the verdict of both orders, `INCONSISTENT` if they differ, None if one is unreadable."""
        if None in self.verdicts:
            return None
        return self.verdicts[0] if len(set(self.verdicts)) == 1 else INCONSISTENT


@dataclass(slots=True, frozen=True)
class PairFigures:
    """Figures of a judge, each None if no pair supports it.

    `pairs` were judged, `labelled` of them have a preferred answer, `unreadable` of `verdicts` verdicts.

    - `accuracy`: right verdicts, over all orders of labelled pairs (the average accuracy of LLMBar).
    - `consistent`: the same answer in both orders, over pairs with two readable verdicts (LLMBar's agreement rate).
    - `strict`: right in both orders, over labelled pairs with two verdicts.
    - `net`: more right than wrong verdicts, over the same pairs: a tie in one order is forgiven (JudgeBench's
      accuracy).

    Sources: Zeng et al. 2024 (LLMBar), section 4.1; Tan et al. 2024 (JudgeBench), section 4.1.
    """

    pairs: int
    labelled: int
    verdicts: int
    unreadable: int
    accuracy: ClusteredMean | None
    consistent: ClusteredMean | None
    strict: ClusteredMean | None
    net: ClusteredMean | None


def pair_figures(judged: Sequence[PairVerdicts]) -> PairFigures:
    """Return the figures of one judge; errors are clustered by group."""
    labelled = [pair for pair in judged if pair.preferred is not None]
    both = [pair for pair in labelled if len(pair.verdicts) == 2]
    readable = [pair for pair in judged if len(pair.verdicts) == 2 and None not in pair.verdicts]
    verdicts = [verdict for pair in judged for verdict in pair.verdicts]
    return PairFigures(
        len(judged),
        len(labelled),
        len(verdicts),
        sum(verdict is None for verdict in verdicts),
        _fraction((pair.group, verdict == pair.preferred) for pair in labelled for verdict in pair.verdicts),
        _fraction((pair.group, pair.verdicts[0] == pair.verdicts[1]) for pair in readable),
        _fraction((pair.group, all(verdict == pair.preferred for verdict in pair.verdicts)) for pair in both),
        _fraction((pair.group, _balance(pair) > 0) for pair in both),
    )


def _balance(pair: PairVerdicts) -> int:
    """Return right minus wrong verdicts. A tie or an unreadable verdict is neither, unless a tie is right."""
    right = sum(verdict == pair.preferred for verdict in pair.verdicts)
    wrong = sum(verdict not in (pair.preferred, TIE, None) for verdict in pair.verdicts)
    return right - wrong


def _fraction(values: Iterable[tuple[str, bool]]) -> ClusteredMean | None:
    pairs = list(values)
    return clustered_mean([float(value) for _, value in pairs], [group for group, _ in pairs])


def fraction_interval(mean: ClusteredMean | None, level: float = 0.95) -> Estimate | None:
    """Return a fraction with its interval (Wilson's, at the effective sample size)."""
    return None if mean is None else mean.bounded_interval(0.0, 1.0, rate=True, level=level)
