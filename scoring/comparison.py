"""Two candidates on the same items: how far apart they are, and how sure that is when many pairs are compared.

Comparing item by item takes the items' difficulty out of the difference (Miller 2024, "Adding error bars to evals",
section 3). What never belongs here: means of one candidate (``clusters``), and deciding while scores come
(``sequential``).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

import numpy as np

from .clusters import ClusteredMean, clustered_mean
from .intervals import Estimate, check_level, reaching_0
from .signflips import MOST, sign_flips

# scipy.stats takes half a second to load: the functions that need it import it.

Correction = Literal["holm", "benjamini-hochberg"]
Test = Literal["sign flips", "t"]
# A candidate's scores by item and by what else tells two conversations on it apart (seed, evaluator); None: unscored.
Scores = Mapping[tuple[str, str], float | None]
# Mean differences of an item up to this are rounding, not a win.
_ROUNDING = 1e-9


@dataclass(slots=True, frozen=True)
class Comparison:
    """``first`` against ``second`` on the items on which both are scored.

    ``mean`` is that of first minus second, None without common items; ``difference`` the same with its interval, and
    ``se`` its standard error, both clustered by item; ``p`` two-sided, of there being no difference, by ``test``;
    ``p_corrected`` the same for the whole table that the pair stands in. These five are None below two items.

    ``n`` items were compared, in ``clusters`` clusters and ``pairs`` pairs of conversations; ``dropped`` items both
    have talked about, but no pair of conversations is scored on both sides. ``won``, ``tied`` and ``lost`` are the
    shares of the items, 0–1, on which the first has the higher, the same, the lower mean score; None without common
    items.
    """

    first: str
    second: str
    mean: float | None
    difference: Estimate | None
    se: float | None
    p: float | None
    p_corrected: float | None
    n: int
    pairs: int
    dropped: int
    won: float | None
    tied: float | None
    lost: float | None
    test: Test | None
    clusters: int = 0


def compare(
    first: str,
    second: str,
    scores: Mapping[str, Scores],
    level: float = 0.95,
    most: float = 100.0,
    *,
    clusters: Mapping[str, str] | None = None,
    strata: Mapping[str, str] | None = None,
) -> Comparison:
    """Candidates ``first`` and ``second`` on conversations that both have held, paired by item and seed or evaluator.

    The differences are taken conversation by conversation and clustered by item. The interval is that of the mean of
    values between ± ``most`` (``ClusteredMean.within``), ``most`` being the highest score where the lowest is 0; it is
    that of this pair alone, whatever else is compared. Up to ``MOST`` items ``p`` is that of the sign-flip test, which
    is exact where the candidates could be exchanged on each item; beyond, difference / se is taken for Student's t with
    n - 1 degrees of freedom. No p-value is less than 2/2^n.

    ``clusters`` names the cluster of items that are not independent of one another: it then takes the place of the item
    in error, interval and p. ``strata`` names what items were drawn from, such as a dataset, where they are of several.

    The tests refute a mean of 0 too often where one candidate has few and large losses, for many samples hold none of
    them; the interval makes room for those. So where p is small and the interval holds 0, there are too few items.

    :raises ValueError: ``level`` is not between 0 and 1, a score is not finite, or the mean is beyond ± ``most``.
    """
    check_level(level)
    one, other = scores[first], scores[second]
    shared = one.keys() & other.keys()
    by_item: dict[str, list[float]] = {}
    for key in shared:
        left, right = one[key], other[key]
        if left is not None and right is not None:
            by_item.setdefault(key[0], []).append(left - right)
    dropped = len({item for item, _ in shared}) - len(by_item)
    items = [item for item in by_item for _ in by_item[item]]
    cluster_of = {item: (clusters or {}).get(item, item) for item in by_item}
    by_cluster: dict[str, list[float]] = {}
    for item, values in by_item.items():
        by_cluster.setdefault(cluster_of[item], []).extend(values)
    found = clustered_mean(
        [value for item in by_item for value in by_item[item]],
        [cluster_of[item] for item in items],
        None if strata is None else [strata[item] for item in items],
    )
    if found is None:
        return Comparison(first, second, None, None, None, None, None, 0, 0, dropped, None, None, None, None)
    p, test = tested_mean(found, by_cluster)
    interval = reaching_0(found.within(-most, most, level=level), p, level) if found.se is not None else None
    means = [math.fsum(values) / len(values) for values in by_item.values()]
    won = sum(mean > _ROUNDING for mean in means) / len(means)
    lost = sum(mean < -_ROUNDING for mean in means) / len(means)
    tied = sum(abs(mean) <= _ROUNDING for mean in means) / len(means)
    return Comparison(
        first,
        second,
        found.mean,
        interval,
        found.se,
        p,
        p,
        len(by_item),
        found.n,
        dropped,
        won,
        tied,
        lost,
        test,
        found.clusters,
    )


def tested_mean(found: ClusteredMean, by_item: Mapping[str, Sequence[float]]) -> tuple[float | None, Test | None]:
    """The two-sided p-value of a mean of 0, and the test that gives it; None below two items. As in ``compare``."""
    from scipy.stats import t

    if found.se is None:
        return None, None
    if found.clusters <= MOST:
        items = sorted(by_item)  # signs are drawn by place
        return sign_flips(np.array([math.fsum(by_item[item]) for item in items])), "sign flips"
    ratio = abs(found.mean) / found.se if found.se else math.inf if found.mean else 0.0
    least = max(sys.float_info.min, math.ldexp(1.0, 1 - found.clusters))
    return max(least, float(2.0 * t.sf(ratio, found.freedom))), "t"


@dataclass(slots=True, frozen=True)
class Fall:
    """How far ``first`` lies below ``second`` on the ``n`` items on which both are scored.

    ``first`` and ``second`` are the means over these items, an item weighing as much as another. ``p`` is the chance of
    such a fall, or a larger one, beyond the margin that was allowed; 1 of a single item, which shows no spread.
    """

    first: float
    second: float
    p: float
    n: int


def fall_of(first: Scores, second: Scores, margin: float = 0.0) -> Fall | None:
    """The one-sided test of ``compare``: does ``first`` lie below ``second`` by more than ``margin``? None without
    common items.

    An item's scores are averaged first. Items on which nothing changed say nothing about the direction, so that up to
    ``MOST`` items *that changed* (beyond ``margin`` or less) are tested by sign flips: the chance of a false alarm is
    at most ``p`` where both could be exchanged on each item, however skewed their scores and however many the ties.
    Beyond, it is Student's t, whose error falls with the number of items. Neither test knows the shape of what it has
    not seen: where most items fall a little and a few rise far, so that the mean stays, small samples look like a fall.

    :raises ValueError: a score is not finite.
    """
    own, other = _item_means(first), _item_means(second)
    shared = sorted(own.keys() & other.keys())  # signs are drawn by place
    if not shared:
        return None
    n = len(shared)
    differences = np.array([own[item] - other[item] + margin for item in shared])
    if not np.isfinite(differences).all():
        raise ValueError("scores are not finite; leave out what is unscored")
    total = math.fsum(differences)
    p = 1.0
    if n > 1:
        scale = max(margin, *(abs(one[item]) for one in (own, other) for item in shared))
        changed = differences[np.abs(differences) > _ROUNDING * scale]
        if len(changed) <= MOST:
            both = sign_flips(changed) if len(changed) else 1.0
        else:
            from scipy.special import stdtr

            spread = math.sqrt(math.fsum((differences - total / n) ** 2) / (n - 1) * n)
            both = 2.0 * float(stdtr(n - 1, -abs(total) / spread)) if spread else 0.0
            both = max(both, sys.float_info.min, math.ldexp(1.0, 1 - n))
        p = both / 2 if total < 0 else 1.0 - both / 2
    least, most = (math.fsum(one[item] for item in shared) / n for one in (own, other))
    return Fall(least, most, p, n)


def _item_means(scores: Scores) -> dict[str, float]:
    by_item: dict[str, list[float]] = {}
    for (item, _), score in scores.items():
        if score is not None:
            by_item.setdefault(item, []).append(score)
    return {item: one[0] if len(one) == 1 else math.fsum(one) / len(one) for item, one in by_item.items()}


def compare_all(
    scores: Mapping[str, Scores],
    correction: Correction = "holm",
    level: float = 0.95,
    *,
    clusters: Mapping[str, str] | None = None,
    strata: Mapping[str, str] | None = None,
) -> list[Comparison]:
    """Every pair of candidates, in the order of ``scores``, with p-values corrected over the pairs.

    :raises ValueError: as ``compare`` and ``corrected``.
    """
    found = [
        compare(first, second, scores, level, clusters=clusters, strata=strata)
        for first, second in combinations(scores, 2)
    ]
    ps = corrected([one.p for one in found], correction)
    return [replace(one, p_corrected=p) for one, p in zip(found, ps, strict=True)]


def corrected(ps: Sequence[float | None], correction: Correction = "holm") -> list[float | None]:
    """p-values for reading many tests at once, in the same order; None, a test that could not be made, stays None.

    ``holm``                 Holm 1979, step-down Bonferroni: the chance of any false finding at all, whatever the tests
                             have to do with each other. The default: one false "better" spoils a table of models.
    ``benjamini-hochberg``   Benjamini and Hochberg 1995: the expected share of false ones among the findings
                             (scipy.stats.false_discovery_control); for tests that are independent or hang together
                             positively.

    :raises ValueError: a p-value is not between 0 and 1, or the correction is not one of these.
    """
    from scipy.stats import false_discovery_control

    known = [p for p in ps if p is not None]
    for p in known:
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"p is {p}; p-values lie between 0 and 1")
    if correction == "holm":
        adjusted = _holm(known)
    elif correction == "benjamini-hochberg":
        adjusted = [float(p) for p in false_discovery_control(known, method="bh")] if known else []
    else:
        raise ValueError(f"correction {correction!r}; allowed are holm and benjamini-hochberg")
    following = iter(adjusted)
    return [None if p is None else next(following) for p in ps]


def _holm(ps: Sequence[float]) -> list[float]:
    """The k-th smallest times the number of those not smaller, never less than one before it."""
    adjusted, reached = [0.0] * len(ps), 0.0
    for rank, place in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        reached = max(reached, min(1.0, (len(ps) - rank) * ps[place]))
        adjusted[place] = reached
    return adjusted
