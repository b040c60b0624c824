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
        defined = self.values[~np.isnan(self.values)]
        return float(defined.mean()) if defined.size else 0.0

    def rate(self, column: int) -> Floats:
        """The values of one rate beside the unloaded ones, in three columns."""
        return self.values[:, [column, -2, -1]]


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


def distance(figure: PassValues, left: Floats, right: Floats) -> Floats:
    """How far values lie apart; of names 1 where they are not the same."""
    apart = np.abs(left - right)
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
    return list(dict.fromkeys(name for verdicts in passes for verdict in verdicts.values() for name in verdict.scores))


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

    def __init__(self, passes: Sequence[VerdictPass], requests: Mapping[str, JudgedRequest]) -> None:
        self.passes, self.requests = passes, requests
        self.ids = [id_ for id_ in requests if all(id_ in verdicts for verdicts in passes[-2:])]
        self._numbers = request_clusters(requests)
        self.clusters = self._rows(self.ids)
        self.answered = self._matrix(self.ids, lambda id_, verdicts: float(id_ in verdicts)) > 0.0

    def scores(self, aspect: str) -> Floats:
        """The scores of one aspect."""
        return self._matrix(
            self.ids, lambda id_, verdicts: aspect_score(verdicts[id_], aspect) if id_ in verdicts else None
        )

    def labels(self) -> tuple[Floats, list[str]]:
        """The codes of labels, and their names in the order of codes."""
        names = sorted({verdicts[id_].label for id_ in self.ids for verdicts in self.passes if id_ in verdicts} - {""})
        codes = {name: float(code) for code, name in enumerate(names)}
        return self._matrix(
            self.ids, lambda id_, verdicts: codes.get(verdicts[id_].label) if id_ in verdicts else None
        ), names

    def failures(self, kinds: Sequence[str] = VERDICT_FAILURES) -> Floats:
        """1 where an answer failed in one of these ways, else 0."""
        return self._matrix(
            self.ids, lambda id_, verdicts: float(verdicts[id_].failure in kinds) if id_ in verdicts else None
        )

    def errors(self, aspect: str) -> Floats:
        """How far scores lie from the reference; of labels 1 where it is another one."""
        return self._matrix(self.ids, lambda id_, verdicts: self._error(id_, verdicts, aspect))

    def positions(self) -> tuple[Codes, Flags, Floats]:
        """By pair: its cluster, in which passes both orders were answered, and how far the answer that stands first is
        favoured there: 1 where it wins in both orders, -1 where it loses in both, 0 where the same answer wins.
        """
        pairs = {id_: self.requests[id_].pair for id_ in self.ids}
        ids = [id_ for id_, partner in pairs.items() if pairs.get(partner) == id_ and id_ < partner]
        answered = self._matrix(ids, lambda id_, verdicts: float(id_ in verdicts and pairs[id_] in verdicts)) > 0.0
        favours = self._matrix(
            ids, lambda id_, verdicts: _first_answer_bias(verdicts.get(id_), verdicts.get(pairs[id_]))
        )
        return self._rows(ids), answered, favours

    def _error(self, id_: str, verdicts: VerdictPass, aspect: str) -> float | None:
        right = self.requests[id_].reference
        if right is None or id_ not in verdicts:
            return None
        if isinstance(right, str):
            return float(verdicts[id_].label != right) if verdicts[id_].label else None
        score = aspect_score(verdicts[id_], aspect)
        return None if score is None else abs(score - right)

    def _rows(self, ids: Sequence[str]) -> Codes:
        return np.array([self._numbers[id_] for id_ in ids], dtype=np.int64)

    def _matrix(self, ids: Sequence[str], value: Callable[[str, VerdictPass], float | None]) -> Floats:
        cells = [[value(id_, verdicts) for verdicts in self.passes] for id_ in ids]
        return np.array(cells, dtype=np.float64).reshape(len(ids), len(self.passes))


def request_clusters(requests: Mapping[str, JudgedRequest]) -> dict[str, int]:
    """The cluster of each request, numbered from 0."""
    numbers: dict[tuple[str, str], int] = {}
    clusters = {}
    for id_, request in requests.items():
        key = ("item", request.item) if request.item else ("request", min(id_, request.pair) if request.pair else id_)
        clusters[id_] = numbers.setdefault(key, len(numbers))
    return clusters


def _first_answer_bias(forward: Verdict | None, swapped: Verdict | None) -> float | None:
    first, second = (None if verdict is None else PAIR_SIGNS.get(verdict.label) for verdict in (forward, swapped))
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
    first: VerdictPass, second: VerdictPass, requests: Mapping[str, JudgedRequest], aspect: str, level: float = 0.95
) -> VerdictAgreement | None:
    """How far two passes agree on the requests that have a verdict in both; ``aspect`` "" compares labels."""
    pairs: list[tuple[Rating, Rating]] = []
    ids = []
    for id_ in first:
        values = [_rating_of(verdict, aspect) for verdict in (first[id_], second.get(id_))]
        if id_ in requests and values[0] is not None and values[1] is not None:
            pairs.append((values[0], values[1]))
            ids.append(id_)
    return _agreement_of_pairs(pairs, ids, requests, level)


def seed_agreement(
    repeats: Mapping[str, Sequence[Verdict]], requests: Mapping[str, JudgedRequest], aspect: str, level: float = 0.95
) -> VerdictAgreement | None:
    """How far verdicts on a request under several seeds agree: of all pairs of them. None where none was repeated."""
    pairs: list[tuple[Rating, Rating]] = []
    ids = []
    for id_, verdicts in repeats.items():
        values = [value for verdict in verdicts if (value := _rating_of(verdict, aspect)) is not None]
        for at, value in enumerate(values):
            pairs += [(value, later) for later in values[at + 1 :]]
            ids += [id_] * (len(values) - at - 1)
    return _agreement_of_pairs(pairs, ids, requests, level)


def reference_agreement(
    verdicts: VerdictPass, requests: Mapping[str, JudgedRequest], aspect: str, level: float = 0.95
) -> VerdictAgreement | None:
    """How far a pass agrees with the references of its requests."""
    pairs: list[tuple[Rating, Rating]] = []
    ids = []
    for id_, verdict in verdicts.items():
        right = requests[id_].reference if id_ in requests else None
        value = _rating_of(verdict, "" if isinstance(right, str) else aspect)
        if right is not None and value is not None:
            pairs.append((value, right))
            ids.append(id_)
    return _agreement_of_pairs(pairs, ids, requests, level)


@dataclass(slots=True, frozen=True)
class PositionBias:
    """``favour``: how far the answer that stands first is favoured, -1 to 1; ``consistent``: the share of pairs whose
    two orders say the same of the answers. ``n`` pairs.
    """

    favour: Estimate
    consistent: Estimate
    n: int


def position_bias(
    verdicts: VerdictPass, requests: Mapping[str, JudgedRequest], level: float = 0.95
) -> PositionBias | None:
    """The position bias of one pass; None without a pair whose two orders have a label."""
    clusters, _, favours = VerdictColumns((verdicts,), requests).positions()
    defined = ~np.isnan(favours[:, 0])
    labels = [str(code) for code in clusters[defined]]
    favour = clustered_mean(favours[defined, 0], labels)
    same = clustered_mean((favours[defined, 0] == 0.0).astype(np.float64), labels)
    if favour is None or same is None:
        return None
    return PositionBias(
        favour.bounded_interval(-1.0, 1.0, level=level),
        same.bounded_interval(0.0, 1.0, rate=True, level=level),
        len(labels),
    )


def _rating_of(verdict: Verdict | None, aspect: str) -> Rating | None:
    if verdict is None:
        return None
    return aspect_score(verdict, aspect) if aspect else verdict.label or None


def _agreement_of_pairs(
    pairs: Sequence[tuple[Rating, Rating]], ids: Sequence[str], requests: Mapping[str, JudgedRequest], level: float
) -> VerdictAgreement | None:
    numbers = request_clusters(requests)
    mean = clustered_mean([float(_is_same(*pair)) for pair in pairs], [str(numbers[id_]) for id_ in ids])
    if mean is None:
        return None
    same = mean.bounded_interval(0.0, 1.0, rate=True, level=level)
    return VerdictAgreement(same, _beyond_chance(pairs), len(dict.fromkeys(ids)))


def _beyond_chance(pairs: Iterable[tuple[Rating, Rating]]) -> float | None:
    first_ratings, second_ratings = zip(*pairs, strict=True)
    if any(isinstance(value, str) for value in (*first_ratings, *second_ratings)):
        return cohen_kappa(
            list(map(str, first_ratings)),
            list(map(str, second_ratings)),
            sorted({*map(str, first_ratings), *map(str, second_ratings)}),
        ).value
    return krippendorff_alpha(list(zip(first_ratings, second_ratings, strict=True)), "interval").value


def _is_same(left: Rating, right: Rating) -> bool:
    if isinstance(left, str) or isinstance(right, str):
        return left == right
    return abs(left - right) <= _SCORE_TOLERANCE
