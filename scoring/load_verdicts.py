"""Verdicts of a judge on the same requests in several passes: as columns, their changes, their agreement.

A change compares a pass under load with two unloaded ones on the same requests. It is 0 on average if the three
answers to a request are draws of the same kind, whatever the judge's own noise. Agreement is with unloaded
passes, over seeds, with reference labels, and over the two orders of a pair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .agreement import Rating, cohen_kappa, krippendorff_alpha
from .clustered_means import clustered_mean
from .intervals import Estimate

Floats: TypeAlias = NDArray[np.float64]
Codes: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]
# ``level``: the loaded value less the mean of the unloaded ones. ``distance``: how far the loaded value lies from the
# unloaded ones, less how far those lie apart. ``spread``: the squared deviation from the mean of all, likewise.
Kind = Literal["level", "distance", "spread"]


@dataclass(slots=True, frozen=True)
class PassValues:
    """The values of one figure: a row for each request, a column for each pass, nan where an answer has none.

    The last two columns are the unloaded passes. ``upwards``: only a rise counts, else both directions do.
    ``nominal``: values are codes of names, of which only equality means anything.
    """

    kind: Kind
    values: Floats
    upwards: bool = False
    nominal: bool = False

    @property
    def centre(self) -> float:
        """The mean over all passes, which does not change when passes are exchanged; 0 of nothing."""
        known = self.values[~np.isnan(self.values)]
        return float(known.mean()) if known.size else 0.0

    def rate(self, place: int) -> Floats:
        """The values of one rate beside the unloaded ones, in three columns."""
        return self.values[:, [place, -2, -1]]


@dataclass(slots=True, frozen=True)
class PassTable:
    """Figures of the same requests. ``clusters`` has the cluster of each, numbered from 0 over all tables of a judge;
    ``answered`` says in which passes it was answered at all, for only these can be exchanged.
    """

    clusters: Codes
    answered: Flags
    figures: Sequence[PassValues]


def contribution(figure: PassValues, loaded: Floats, first: Floats, second: Floats) -> Floats:
    """What requests add to a figure, nan where one of the three passes has no value."""
    if figure.kind == "level":
        return np.asarray(loaded - (first + second) / 2)
    if figure.kind == "distance":
        return loaded_distance(figure, loaded, first, second) - distance(figure, first, second)
    centre = figure.centre
    squares = [(part - centre) ** 2 for part in (loaded, first, second)]
    return np.asarray(squares[0] - (squares[1] + squares[2]) / 2)


def loaded_distance(figure: PassValues, loaded: Floats, first: Floats, second: Floats) -> Floats:
    """How far values under load lie from unloaded ones, on average over the two."""
    return (distance(figure, loaded, first) + distance(figure, loaded, second)) / 2


def distance(figure: PassValues, one: Floats, other: Floats) -> Floats:
    """How far values lie apart; of names 1 where they are not the same."""
    apart = np.abs(one - other)
    return np.where(np.isnan(apart), np.nan, apart > 0.0) if figure.nominal else np.asarray(apart)


# The score that a judge is spoken of by, where it gives several: the first of these names, else the mean of all.
_OVERALL_ASPECTS = ("overall_score", "overall", "score", "rating", "total", "verdict")
MEAN_ASPECT = "mean"
# Signs of a pairwise label: 1 where the answer that stands first wins.
PAIR_SIGNS = {"A": 1.0, "B": -1.0, "tie": 0.0}
VERDICT_FAILURES = ("parse", "truncated", "refused", "empty")


@dataclass(slots=True, frozen=True)
class JudgedRequest:
    """What is known of a request without any answer.

    ``item`` names what requests about the same thing have in common, ``pair`` is the id of the request with the same
    answers in the other order; both are "" where there is none. ``reference``: the right score or label.
    """

    item: str = ""
    pair: str = ""
    reference: float | str | None = None


@dataclass(slots=True, frozen=True)
class Verdict:
    """What one answer said: ``scores`` by aspect and a ``label``, or the ``failure``: one of ``VERDICT_FAILURES``."""

    scores: Mapping[str, float] = field(default_factory=dict)
    label: str = ""
    failure: str = ""


# A judge's verdicts by the request's id, in the order in which they were asked for.
VerdictPass: TypeAlias = Mapping[str, Verdict]


def main_aspect(aspects: Iterable[str]) -> str:
    """Return the score that a judge is spoken of by, ``MEAN_ASPECT`` if no name says that it is of the whole, or ""."""
    names = list(dict.fromkeys(aspects))
    if len(names) < 2:
        return names[0] if names else ""
    return next((name for name in _OVERALL_ASPECTS if name in names), MEAN_ASPECT)


def aspects_of(passes: Iterable[VerdictPass]) -> list[str]:
    """All aspects that have scores, in the order in which they first appear."""
    return list(dict.fromkeys(name for one in passes for verdict in one.values() for name in verdict.scores))


def aspect_score(verdict: Verdict, aspect: str) -> float | None:
    """A score; that of ``MEAN_ASPECT`` is the mean of all. None where there is none."""
    if aspect == MEAN_ASPECT and MEAN_ASPECT not in verdict.scores:
        return sum(verdict.scores.values()) / len(verdict.scores) if verdict.scores else None
    return verdict.scores.get(aspect)


class VerdictColumns:
    """Passes of one judge side by side, the unloaded ones last; values are nan where an answer has none.

    ``ids`` are the requests that were answered in both of the last two passes, ``answered`` says in which others,
    ``clusters`` has their clusters. These are numbered over all of ``asked``: a request without item, and the two
    orders of a pair without item, are a cluster of their own.
    """

    def __init__(self, passes: Sequence[VerdictPass], asked: Mapping[str, JudgedRequest]) -> None:
        self.passes, self.asked = passes, asked
        self.ids = [id_ for id_ in asked if all(id_ in one for one in passes[-2:])]
        self._numbers = request_clusters(asked)
        self.clusters = self._rows(self.ids)
        self.answered = self._matrix(self.ids, lambda id_, one: float(id_ in one)) > 0.0

    def scores(self, aspect: str) -> Floats:
        """The scores of one aspect."""
        return self._matrix(self.ids, lambda id_, one: aspect_score(one[id_], aspect) if id_ in one else None)

    def labels(self) -> tuple[Floats, list[str]]:
        """The codes of labels, and their names in the order of codes."""
        names = sorted({one[id_].label for id_ in self.ids for one in self.passes if id_ in one} - {""})
        codes = {name: float(code) for code, name in enumerate(names)}
        return self._matrix(self.ids, lambda id_, one: codes.get(one[id_].label) if id_ in one else None), names

    def failures(self, kinds: Sequence[str] = VERDICT_FAILURES) -> Floats:
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
        favours = self._matrix(ids, lambda id_, one: _first_answer_bias(one.get(id_), one.get(pairs[id_])))
        return self._rows(ids), answered, favours

    def _error(self, id_: str, one: VerdictPass, aspect: str) -> float | None:
        right = self.asked[id_].reference
        if right is None or id_ not in one:
            return None
        if isinstance(right, str):
            return float(one[id_].label != right) if one[id_].label else None
        score = aspect_score(one[id_], aspect)
        return None if score is None else abs(score - right)

    def _rows(self, ids: Sequence[str]) -> Codes:
        return np.array([self._numbers[id_] for id_ in ids], dtype=np.int64)

    def _matrix(self, ids: Sequence[str], value: Callable[[str, VerdictPass], float | None]) -> Floats:
        cells = [[value(id_, one) for one in self.passes] for id_ in ids]
        return np.array(cells, dtype=np.float64).reshape(len(ids), len(self.passes))


def request_clusters(asked: Mapping[str, JudgedRequest]) -> dict[str, int]:
    """The cluster of each request, numbered from 0."""
    numbers: dict[tuple[str, str], int] = {}
    found = {}
    for id_, one in asked.items():
        key = ("item", one.item) if one.item else ("request", min(id_, one.pair) if one.pair else id_)
        found[id_] = numbers.setdefault(key, len(numbers))
    return found


def _first_answer_bias(one: Verdict | None, other: Verdict | None) -> float | None:
    first, second = (None if verdict is None else PAIR_SIGNS.get(verdict.label) for verdict in (one, other))
    return None if first is None or second is None else (first + second) / 2


_SCORE_TOLERANCE = 1e-9  # scores that lie closer are the same


@dataclass(slots=True, frozen=True)
class VerdictAgreement:
    """``same``: the share of pairs of verdicts that are the same, with its clustered interval. ``beyond_chance``: of
    labels Cohen's kappa, of scores Krippendorff's alpha on the interval scale; None where it is not defined. ``n``
    requests.
    """

    same: Estimate
    beyond_chance: float | None
    n: int


def verdict_agreement(
    one: VerdictPass, other: VerdictPass, asked: Mapping[str, JudgedRequest], aspect: str, level: float = 0.95
) -> VerdictAgreement | None:
    """How far two passes agree on the requests that have a verdict in both; ``aspect`` "" compares labels."""
    pairs: list[tuple[Rating, Rating]] = []
    ids = []
    for id_ in one:
        values = [_rating_of(verdict, aspect) for verdict in (one[id_], other.get(id_))]
        if id_ in asked and values[0] is not None and values[1] is not None:
            pairs.append((values[0], values[1]))
            ids.append(id_)
    return _agreement_of_pairs(pairs, ids, asked, level)


def seed_agreement(
    repeats: Mapping[str, Sequence[Verdict]], asked: Mapping[str, JudgedRequest], aspect: str, level: float = 0.95
) -> VerdictAgreement | None:
    """How far verdicts on a request under several seeds agree: of all pairs of them. None where none was repeated."""
    pairs: list[tuple[Rating, Rating]] = []
    ids = []
    for id_, verdicts in repeats.items():
        said = [value for verdict in verdicts if (value := _rating_of(verdict, aspect)) is not None]
        for at, value in enumerate(said):
            pairs += [(value, later) for later in said[at + 1 :]]
            ids += [id_] * (len(said) - at - 1)
    return _agreement_of_pairs(pairs, ids, asked, level)


def reference_agreement(
    one: VerdictPass, asked: Mapping[str, JudgedRequest], aspect: str, level: float = 0.95
) -> VerdictAgreement | None:
    """How far a pass agrees with the references of its requests."""
    pairs: list[tuple[Rating, Rating]] = []
    ids = []
    for id_, verdict in one.items():
        right = asked[id_].reference if id_ in asked else None
        value = _rating_of(verdict, "" if isinstance(right, str) else aspect)
        if right is not None and value is not None:
            pairs.append((value, right))
            ids.append(id_)
    return _agreement_of_pairs(pairs, ids, asked, level)


@dataclass(slots=True, frozen=True)
class PositionBias:
    """``favour``: how far the answer that stands first is favoured, -1 to 1; ``consistent``: the share of pairs whose
    two orders say the same of the answers. ``n`` pairs.
    """

    favour: Estimate
    consistent: Estimate
    n: int


def position_bias(one: VerdictPass, asked: Mapping[str, JudgedRequest], level: float = 0.95) -> PositionBias | None:
    """The position bias of one pass; None without a pair whose two orders have a label."""
    clusters, _, favours = VerdictColumns((one,), asked).positions()
    known = ~np.isnan(favours[:, 0])
    labels = [str(code) for code in clusters[known]]
    favour = clustered_mean(favours[known, 0], labels)
    same = clustered_mean((favours[known, 0] == 0.0).astype(np.float64), labels)
    if favour is None or same is None:
        return None
    return PositionBias(
        favour.within(-1.0, 1.0, level=level), same.within(0.0, 1.0, rate=True, level=level), len(labels)
    )


def _rating_of(verdict: Verdict | None, aspect: str) -> Rating | None:
    if verdict is None:
        return None
    return aspect_score(verdict, aspect) if aspect else verdict.label or None


def _agreement_of_pairs(
    pairs: Sequence[tuple[Rating, Rating]], ids: Sequence[str], asked: Mapping[str, JudgedRequest], level: float
) -> VerdictAgreement | None:
    numbers = request_clusters(asked)
    found = clustered_mean([float(_is_same(*pair)) for pair in pairs], [str(numbers[id_]) for id_ in ids])
    if found is None:
        return None
    same = found.within(0.0, 1.0, rate=True, level=level)
    return VerdictAgreement(same, _beyond_chance(pairs), len(dict.fromkeys(ids)))


def _beyond_chance(pairs: Iterable[tuple[Rating, Rating]]) -> float | None:
    ones, others = zip(*pairs, strict=True)
    if any(isinstance(value, str) for value in (*ones, *others)):
        return cohen_kappa(
            list(map(str, ones)), list(map(str, others)), sorted({*map(str, ones), *map(str, others)})
        ).value
    return krippendorff_alpha(list(zip(ones, others, strict=True)), "interval").value


def _is_same(one: Rating, other: Rating) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    return abs(one - other) <= _SCORE_TOLERANCE
