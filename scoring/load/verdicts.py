"""What a judge said of the same requests in several passes, as columns of numbers side by side.

What never belongs here: figures and tests (``judgement``), reading answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from .changes import Codes, Flags, Floats

# The score that a judge is spoken of by, where it gives several: the first of these names, else the mean of all.
_WHOLE = ("overall_score", "overall", "score", "rating", "total", "verdict")
MEAN = "mean"
# Signs of a pairwise label: 1 where the answer that stands first wins.
PAIR_SIGNS = {"A": 1.0, "B": -1.0, "tie": 0.0}
FAILURES = ("parse", "truncated", "refused", "empty")


@dataclass(slots=True, frozen=True)
class Asked:
    """What is known of a request without any answer.

    ``item`` names what requests about the same thing have in common, ``pair`` is the id of the request with the same
    answers in the other order; both are "" where there is none. ``reference``: the right score or label.
    """

    item: str = ""
    pair: str = ""
    reference: float | str | None = None


@dataclass(slots=True, frozen=True)
class Verdict:
    """What one answer said: ``scores`` by aspect and a ``label``, or the ``failure``: one of ``FAILURES``."""

    scores: Mapping[str, float] = field(default_factory=dict)
    label: str = ""
    failure: str = ""


# A judge's verdicts by the request's id, in the order in which they were asked for.
Pass: TypeAlias = Mapping[str, Verdict]


def main_aspect(aspects: Iterable[str]) -> str:
    """The score that a judge is spoken of by; ``MEAN`` where no name says that it is of the whole; "" of none."""
    names = list(dict.fromkeys(aspects))
    if len(names) < 2:
        return names[0] if names else ""
    return next((name for name in _WHOLE if name in names), MEAN)


def aspects_of(passes: Iterable[Pass]) -> list[str]:
    """All aspects that have scores, in the order in which they first appear."""
    return list(dict.fromkeys(name for one in passes for verdict in one.values() for name in verdict.scores))


def score_of(verdict: Verdict, aspect: str) -> float | None:
    """A score; that of ``MEAN`` is the mean of all. None where there is none."""
    if aspect == MEAN and MEAN not in verdict.scores:
        return sum(verdict.scores.values()) / len(verdict.scores) if verdict.scores else None
    return verdict.scores.get(aspect)


class Columns:
    """Passes of one judge side by side, the unloaded ones last; values are nan where an answer has none.

    ``ids`` are the requests that were answered in both of the last two passes, ``answered`` says in which others,
    ``clusters`` has their clusters. These are numbered over all of ``asked``: a request without item, and the two
    orders of a pair without item, are a cluster of their own.
    """

    def __init__(self, passes: Sequence[Pass], asked: Mapping[str, Asked]) -> None:
        self.passes, self.asked = passes, asked
        self.ids = [id_ for id_ in asked if all(id_ in one for one in passes[-2:])]
        self._numbers = clusters_of(asked)
        self.clusters = self._rows(self.ids)
        self.answered = self._matrix(self.ids, lambda id_, one: float(id_ in one)) > 0.0

    def scores(self, aspect: str) -> Floats:
        """The scores of one aspect."""
        return self._matrix(self.ids, lambda id_, one: score_of(one[id_], aspect) if id_ in one else None)

    def labels(self) -> tuple[Floats, list[str]]:
        """The codes of labels, and their names in the order of codes."""
        names = sorted({one[id_].label for id_ in self.ids for one in self.passes if id_ in one} - {""})
        codes = {name: float(code) for code, name in enumerate(names)}
        return self._matrix(self.ids, lambda id_, one: codes.get(one[id_].label) if id_ in one else None), names

    def failures(self, kinds: Sequence[str] = FAILURES) -> Floats:
        """1 where an answer failed in one of these ways, else 0."""
        return self._matrix(self.ids, lambda id_, one: float(one[id_].failure in kinds) if id_ in one else None)

    def errors(self, aspect: str) -> Floats:
        """How far scores lie from the reference; of labels 1 where it is another one."""
        return self._matrix(self.ids, lambda id_, one: self._error(id_, one, aspect))

    def positions(self) -> tuple[Codes, Flags, Floats]:
        """By pair: its cluster, in which passes both orders were answered, and how far the answer that stands first is
        favoured there: 1 where it wins in both orders, -1 where it loses in both, 0 where the same answer wins.
        """
        pairs = {id_: self.asked[id_].pair for id_ in self.ids}
        ids = [id_ for id_, other in pairs.items() if pairs.get(other) == id_ and id_ < other]
        answered = self._matrix(ids, lambda id_, one: float(id_ in one and pairs[id_] in one)) > 0.0
        favours = self._matrix(ids, lambda id_, one: _favour(one.get(id_), one.get(pairs[id_])))
        return self._rows(ids), answered, favours

    def _error(self, id_: str, one: Pass, aspect: str) -> float | None:
        right = self.asked[id_].reference
        if right is None or id_ not in one:
            return None
        if isinstance(right, str):
            return float(one[id_].label != right) if one[id_].label else None
        score = score_of(one[id_], aspect)
        return None if score is None else abs(score - right)

    def _rows(self, ids: Sequence[str]) -> Codes:
        return np.array([self._numbers[id_] for id_ in ids], dtype=np.int64)

    def _matrix(self, ids: Sequence[str], value: Callable[[str, Pass], float | None]) -> Floats:
        cells = [[value(id_, one) for one in self.passes] for id_ in ids]
        return np.array(cells, dtype=np.float64).reshape(len(ids), len(self.passes))


def clusters_of(asked: Mapping[str, Asked]) -> dict[str, int]:
    """The cluster of each request, numbered from 0."""
    numbers: dict[tuple[str, str], int] = {}
    found = {}
    for id_, one in asked.items():
        key = ("item", one.item) if one.item else ("request", min(id_, one.pair) if one.pair else id_)
        found[id_] = numbers.setdefault(key, len(numbers))
    return found


def _favour(one: Verdict | None, other: Verdict | None) -> float | None:
    first, second = (None if verdict is None else PAIR_SIGNS.get(verdict.label) for verdict in (one, other))
    return None if first is None or second is None else (first + second) / 2
