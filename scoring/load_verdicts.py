"""Verdicts of a judge on the same requests in several passes; their changes and their agreement.

A change compares a pass under load with two unloaded ones on the same requests. The change is 0 on average if the three
answers to a request are exchangeable, whatever the judge's noise. Agreement is measured with unloaded passes, between
seeds, with reference labels, and between the two orders of a pair.
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
# `level`: loaded value minus the mean of the unloaded ones. `distance`: distance of the loaded value from the unloaded
# ones, minus the distance between the unloaded ones. `spread`: likewise for the squared deviation from the overall
# mean.
Kind = Literal["level", "distance", "spread"]


@dataclass(slots=True, frozen=True)
class PassValues:
    """Values of one figure: a row for each request, a column for each pass, nan if an answer has none.

    The last two columns are the unloaded passes. `upwards`: only a rise counts; otherwise a fall counts, too.
    `nominal`: values are codes of names, which can only be equal or not.
    """

    kind: Kind
    values: Floats
    upwards: bool = False
    nominal: bool = False

    @property
    def centre(self) -> float:
        """Mean over all passes, which exchanging passes does not change; 0 if there are no values."""
        defined = self.values[~np.isnan(self.values)]
        return float(defined.mean()) if defined.size else 0.0

    def rate(self, column: int) -> Floats:
        """Return the values of one rate and of the unloaded passes, in three columns."""
        return self.values[:, [column, -2, -1]]


@dataclass(slots=True, frozen=True)
class PassTable:
    """Figures of the same requests.

    `clusters` has the cluster of each request, numbered from 0 over all tables of a judge; `answered` tells which
    passes answered each request, because only these passes can be exchanged.
    """

    clusters: Codes
    answered: Flags
    figures: Sequence[PassValues]


def contribution(figure: PassValues, loaded: Floats, first: Floats, second: Floats) -> Floats:
    """Return what each request adds to a figure's change, nan if one of the three passes has no value."""
    if figure.kind == "level":
        return np.asarray(loaded - (first + second) / 2)
    if figure.kind == "distance":
        return loaded_distance(figure, loaded, first, second) - distance(figure, first, second)
    centre = figure.centre
    squares = [(part - centre) ** 2 for part in (loaded, first, second)]
    return np.asarray(squares[0] - (squares[1] + squares[2]) / 2)


def loaded_distance(figure: PassValues, loaded: Floats, first: Floats, second: Floats) -> Floats:
    """Return the mean distance of values under load from the two unloaded ones."""
    return (distance(figure, loaded, first) + distance(figure, loaded, second)) / 2


def distance(figure: PassValues, left: Floats, right: Floats) -> Floats:
    """Return the distance of values; for names 1 if they differ."""
    distances = np.abs(left - right)
    return np.where(np.isnan(distances), np.nan, distances > 0.0) if figure.nominal else np.asarray(distances)


# A judge's overall score, if it gives several: the first of these names, else the mean of all.
_OVERALL_ASPECTS = ("overall_score", "overall", "score", "rating", "total", "verdict")
MEAN_ASPECT = "mean"
# Signs of a pairwise label: 1 if the answer that stands first wins.
PAIR_SIGNS = {"A": 1.0, "B": -1.0, "tie": 0.0}
VERDICT_FAILURES = ("parse", "truncated", "refused", "empty")


@dataclass(slots=True, frozen=True)
class JudgedRequest:
    """Properties of a request, known before any answer.

    `item` is shared by requests about the same thing; `pair` is the id of the request with the same answers in the
    other order; "" if there is none. `reference`: the correct score or label.
    """

    item: str = ""
    pair: str = ""
    reference: float | str | None = None


@dataclass(slots=True, frozen=True)
class Verdict:
    """Parsed answer: `scores` by aspect and a `label`, or the `failure`, one of `VERDICT_FAILURES`."""

    scores: Mapping[str, float] = field(default_factory=dict)
    label: str = ""
    failure: str = ""


# A judge's verdicts by request id, in the order of the requests.
VerdictPass: TypeAlias = Mapping[str, Verdict]


def main_aspect(aspects: Iterable[str]) -> str:
    """Return the only aspect, else the one with an overall name, else `MEAN_ASPECT`; "" if there are no aspects."""
    names = list(dict.fromkeys(aspects))
    if len(names) < 2:
        return names[0] if names else ""
    return next((name for name in _OVERALL_ASPECTS if name in names), MEAN_ASPECT)


def aspects_of(passes: Iterable[VerdictPass]) -> list[str]:
    """Return all aspects that have scores, in order of first appearance."""
    return list(dict.fromkeys(name for verdicts in passes for verdict in verdicts.values() for name in verdict.scores))


def aspect_score(verdict: Verdict, aspect: str) -> float | None:
    """Return a score; for `MEAN_ASPECT` the mean of all. None if there is none."""
    if aspect == MEAN_ASPECT and MEAN_ASPECT not in verdict.scores:
        return sum(verdict.scores.values()) / len(verdict.scores) if verdict.scores else None
    return verdict.scores.get(aspect)


class VerdictColumns:
    """Passes of one judge side by side, the unloaded ones last; values are nan if an answer has none.

    `ids` are the requests that both unloaded passes answered, `answered` tells which of all passes answered each of
    them, and `clusters` has their clusters. Clusters are numbered over all `requests`. A request without an item is a
    cluster of its own, and so are the two orders of a pair without an item.
    """

    def __init__(self, passes: Sequence[VerdictPass], requests: Mapping[str, JudgedRequest]) -> None:
        self.passes, self.requests = passes, requests
        self.ids = [id_ for id_ in requests if all(id_ in verdicts for verdicts in passes[-2:])]
        self._numbers = request_clusters(requests)
        self.clusters = self._rows(self.ids)
        self.answered = self._matrix(self.ids, lambda id_, verdicts: float(id_ in verdicts)) > 0.0

    def scores(self, aspect: str) -> Floats:
        """Return the scores of one aspect."""
        return self._matrix(
            self.ids, lambda id_, verdicts: aspect_score(verdicts[id_], aspect) if id_ in verdicts else None
        )

    def labels(self) -> tuple[Floats, list[str]]:
        """Return the codes of labels, and their names in the order of codes."""
        names = sorted({verdicts[id_].label for id_ in self.ids for verdicts in self.passes if id_ in verdicts} - {""})
        codes = {name: float(code) for code, name in enumerate(names)}
        return self._matrix(
            self.ids, lambda id_, verdicts: codes.get(verdicts[id_].label) if id_ in verdicts else None
        ), names

    def failures(self, kinds: Sequence[str] = VERDICT_FAILURES) -> Floats:
        """Return 1 if an answer failed in one of these ways, else 0."""
        return self._matrix(
            self.ids, lambda id_, verdicts: float(verdicts[id_].failure in kinds) if id_ in verdicts else None
        )

    def errors(self, aspect: str) -> Floats:
        """Return the distance of scores from the reference; for labels 1 if they differ."""
        return self._matrix(self.ids, lambda id_, verdicts: self._error(id_, verdicts, aspect))

    def positions(self) -> tuple[Codes, Flags, Floats]:
        """Return for each pair its cluster, the passes that answered both orders, and the position bias.

        The bias is 1 if the answer that stands first wins in both orders, -1 if it loses in both, 0 if the same answer
        wins.
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
    """Return the cluster of each request, numbered from 0."""
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
    """Agreement of pairs of verdicts on `n` requests.

    `same`: the fraction of equal verdicts, with its clustered interval. `beyond_chance`: Cohen's kappa for labels,
    Krippendorff's alpha on the interval scale for scores; None if undefined.
    """

    same: Estimate
    beyond_chance: float | None
    n: int


def verdict_agreement(
    first: VerdictPass, second: VerdictPass, requests: Mapping[str, JudgedRequest], aspect: str, level: float = 0.95
) -> VerdictAgreement | None:
    """Return the agreement of two passes on requests with a verdict in both; `aspect` "" compares labels."""
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
    """Return the agreement of all pairs of verdicts on a request under several seeds; None without repeats."""
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
    """Return the agreement of a pass with the references of its requests."""
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
    """Position bias over `n` pairs.

    `favour`: mean bias, from -1 (the answer that stands first always loses) to 1 (it always wins); `consistent`: the
    fraction of pairs with the same verdict in both orders.
    """

    favour: Estimate
    consistent: Estimate
    n: int


def position_bias(
    verdicts: VerdictPass, requests: Mapping[str, JudgedRequest], level: float = 0.95
) -> PositionBias | None:
    """Return the position bias of one pass; None without a pair whose two orders have a label."""
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
