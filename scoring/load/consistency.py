"""How far a judge's verdicts on the same requests agree: with unloaded ones, over seeds, with reference labels, over
the two orders of a pair.

What never belongs here: whether agreement has changed beyond noise (``judgement``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..agreement import Rating, cohen, krippendorff
from ..clusters import clustered_mean
from ..intervals import Estimate
from .verdicts import Asked, Columns, Pass, Verdict, clusters_of, score_of

_SAME = 1e-9  # scores that lie closer are the same


@dataclass(slots=True, frozen=True)
class VerdictAgreement:
    """``same``: the share of pairs of verdicts that are the same, with its clustered interval. ``beyond_chance``: of
    labels Cohen's kappa, of scores Krippendorff's alpha on the interval scale; None where it is not defined. ``n``
    requests.
    """

    same: Estimate
    beyond_chance: float | None
    n: int


def agreement(
    one: Pass, other: Pass, asked: Mapping[str, Asked], aspect: str, level: float = 0.95
) -> VerdictAgreement | None:
    """How far two passes agree on the requests that have a verdict in both; ``aspect`` "" compares labels."""
    pairs: list[tuple[Rating, Rating]] = []
    ids = []
    for id_ in one:
        values = [_said(verdict, aspect) for verdict in (one[id_], other.get(id_))]
        if id_ in asked and values[0] is not None and values[1] is not None:
            pairs.append((values[0], values[1]))
            ids.append(id_)
    return _agreement(pairs, ids, asked, level)


def seed_agreement(
    repeats: Mapping[str, Sequence[Verdict]], asked: Mapping[str, Asked], aspect: str, level: float = 0.95
) -> VerdictAgreement | None:
    """How far verdicts on a request under several seeds agree: of all pairs of them. None where none was repeated."""
    pairs: list[tuple[Rating, Rating]] = []
    ids = []
    for id_, verdicts in repeats.items():
        said = [value for verdict in verdicts if (value := _said(verdict, aspect)) is not None]
        for at, value in enumerate(said):
            pairs += [(value, later) for later in said[at + 1 :]]
            ids += [id_] * (len(said) - at - 1)
    return _agreement(pairs, ids, asked, level)


def reference_agreement(
    one: Pass, asked: Mapping[str, Asked], aspect: str, level: float = 0.95
) -> VerdictAgreement | None:
    """How far a pass agrees with the references of its requests."""
    pairs: list[tuple[Rating, Rating]] = []
    ids = []
    for id_, verdict in one.items():
        right = asked[id_].reference if id_ in asked else None
        value = _said(verdict, "" if isinstance(right, str) else aspect)
        if right is not None and value is not None:
            pairs.append((value, right))
            ids.append(id_)
    return _agreement(pairs, ids, asked, level)


@dataclass(slots=True, frozen=True)
class PositionBias:
    """``favour``: how far the answer that stands first is favoured, -1 to 1; ``consistent``: the share of pairs whose
    two orders say the same of the answers. ``n`` pairs.
    """

    favour: Estimate
    consistent: Estimate
    n: int


def position_bias(one: Pass, asked: Mapping[str, Asked], level: float = 0.95) -> PositionBias | None:
    """The position bias of one pass; None without a pair whose two orders have a label."""
    clusters, _, favours = Columns((one,), asked).positions()
    known = ~np.isnan(favours[:, 0])
    labels = [str(code) for code in clusters[known]]
    favour = clustered_mean(favours[known, 0], labels)
    same = clustered_mean((favours[known, 0] == 0.0).astype(np.float64), labels)
    if favour is None or same is None:
        return None
    return PositionBias(
        favour.within(-1.0, 1.0, level=level), same.within(0.0, 1.0, rate=True, level=level), len(labels)
    )


def _said(verdict: Verdict | None, aspect: str) -> Rating | None:
    if verdict is None:
        return None
    return score_of(verdict, aspect) if aspect else verdict.label or None


def _agreement(
    pairs: Sequence[tuple[Rating, Rating]], ids: Sequence[str], asked: Mapping[str, Asked], level: float
) -> VerdictAgreement | None:
    numbers = clusters_of(asked)
    found = clustered_mean([float(_same(*pair)) for pair in pairs], [str(numbers[id_]) for id_ in ids])
    if found is None:
        return None
    same = found.within(0.0, 1.0, rate=True, level=level)
    return VerdictAgreement(same, _beyond_chance(pairs), len(dict.fromkeys(ids)))


def _beyond_chance(pairs: Iterable[tuple[Rating, Rating]]) -> float | None:
    ones, others = zip(*pairs, strict=True)
    if any(isinstance(value, str) for value in (*ones, *others)):
        return cohen(list(map(str, ones)), list(map(str, others)), sorted({*map(str, ones), *map(str, others)})).value
    return krippendorff(list(zip(ones, others, strict=True)), "interval").value


def _same(one: Rating, other: Rating) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    return abs(one - other) <= _SAME
