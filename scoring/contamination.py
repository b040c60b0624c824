"""Contamination detectors over token log-probabilities: LM loss, zlib ratio, Min-K% Prob, Min-K%++, AUC.

Detectors (Yu et al. 2024, section 4.2, Table 3) are compared by how well they separate members of the training data
from other texts: AUC, and the true positive rate at a low false positive rate; and by the gap of mean losses between
two sets. Log-probabilities are in nats, one for each predicted token: the first token of a text has none, unless there
is context before it.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .aggregates import Mean
from .intervals import Estimate, check_level, normal_quantile, normal_share, welch

Floats: TypeAlias = Sequence[float] | NDArray[np.floating]

# Percentages of the public Min-K% Prob code (Shi et al. 2024); Yu et al. 2024 report the same range.
# Those from 70 on are ours: earlier records end at 60. Min-K% at 100 is the mean over all tokens, as the loss is.
MIN_K = (5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100)
# +1: members score high; -1: they score low, and `Signals.scores` flips the sign.
DIRECTIONS = {"loss": -1, "perplexity": -1, "zlib_ratio": -1, "min_k": 1, "min_k_plus_plus": 1}
# Tolerance for single precision: log-probabilities above 0, probabilities that do not sum to 1.
POSITIVE_LOGPROB_SLACK = 1e-3
_ROUNDING = 1e-12  # keeps root finding off 0 and 1, where the variance is 0


def loss(logprobs: Floats) -> float:
    """Return the LM loss: mean negative log-probability per token, in nats."""
    return 0.0 - _mean(_check_logprobs(logprobs))


def perplexity(logprobs: Floats) -> float:
    """Return exp of the loss."""
    nats = loss(logprobs)
    try:
        return math.exp(nats)
    except OverflowError:
        raise ValueError(f"logprobs: a loss of {nats:.6g} nats per token has no finite perplexity") from None


def zlib_ratio(text: str, logprobs: Floats) -> float:
    """Return the LM loss per token over the zlib-compressed text's bytes (Carlini et al. 2021, section 5.2)."""
    if not text:
        raise ValueError("text: empty; the zlib ratio needs the text that the logprobs belong to")
    return loss(logprobs) / len(zlib.compress(text.encode()))


def min_k(logprobs: Floats, k: float) -> float:
    """Return Min-K% Prob: the mean log-probability of the k% least likely tokens (Shi et al. 2024)."""
    return _mean_of_lowest(np.sort(_check_logprobs(logprobs)), k)


def min_k_plus_plus(logprobs: Floats, means: Floats, deviations: Floats, k: float) -> float:
    """Return Min-K%++: `min_k` of (log p - mu) / sigma, or 0 if sigma is 0 (Zhang et al. 2024)."""
    return _mean_of_lowest(np.sort(_standardize(_check_logprobs(logprobs), means, deviations)), k)


def moments(row: Floats) -> tuple[float, float]:
    """Return mean and standard deviation of log p over the vocabulary at one position, in double precision.

    mu = E_{z~p}[log p(z)] and sigma = sqrt(E[(log p)^2] - mu^2).

    Args:
        row: The log-probability of each token of the vocabulary; -inf is an impossible token and adds nothing.

    Source: Zhang et al. 2024.
    """
    array = np.asarray(row, dtype=np.float64)
    if array.ndim != 1 or not array.size:
        raise ValueError(f"row: shape {array.shape}; expected a log-probability for each token of the vocabulary")
    peak = float(array.max())
    if not peak <= POSITIVE_LOGPROB_SLACK:  # nan too
        raise ValueError(f"row: its largest value is {peak:.6g}; log-probabilities are at most 0 (are these logits?)")
    weights = np.exp(array)
    total = float(weights.sum())
    if abs(total - 1.0) > POSITIVE_LOGPROB_SLACK:
        raise ValueError(f"row: its probabilities sum to {total:.6g}, not 1; the whole vocabulary is needed")
    possible = weights > 0.0
    weights = weights[possible] / total
    # Relative to the peak, and squared after centring: a certain or uniform row gives exactly 0, none is below 0.
    offsets = array[possible] - peak
    centre = float(weights @ offsets)
    return peak + centre, math.sqrt(float(weights @ (offsets - centre) ** 2))


@dataclass(slots=True, frozen=True)
class Signals:
    """Detector values of one text.

    `min_k` and `min_k_plus_plus` hold one value for each k of `MIN_K`; the latter is None if the vocabulary's moments
    are unknown. Records of earlier versions end at k = 60. All fields are plain JSON data:
    `Signals(**asdict(signals))` restores the record.
    """

    tokens: int
    loss: float
    perplexity: float
    zlib_ratio: float
    min_k: list[float]
    min_k_plus_plus: list[float] | None = None

    @classmethod
    def from_logprobs(
        cls, text: str, logprobs: Floats, means: Floats | None = None, deviations: Floats | None = None
    ) -> Signals:
        """Compute every detector on one text; Min-K%++ only with `means` and `deviations`."""
        if (means is None) != (deviations is None):
            raise ValueError(f"{'means' if means is None else 'deviations'}: missing; Min-K%++ needs both moments")
        array = _check_logprobs(logprobs)
        ordered = np.sort(array)
        signals = cls(
            tokens=len(array),
            loss=loss(array),
            perplexity=perplexity(array),
            zlib_ratio=zlib_ratio(text, array),
            min_k=[_mean_of_lowest(ordered, k) for k in MIN_K],
        )
        if means is None or deviations is None:
            return signals
        standardised = np.sort(_standardize(array, means, deviations))
        return replace(signals, min_k_plus_plus=[_mean_of_lowest(standardised, k) for k in MIN_K])

    def scores(self) -> dict[str, float]:
        """Return scores by detector, higher for likely members; names end in `_5` to `_100` if they depend on k."""
        scores = {name: DIRECTIONS[name] * float(getattr(self, name)) for name in ("loss", "perplexity", "zlib_ratio")}
        for name, values in (("min_k", self.min_k), ("min_k_plus_plus", self.min_k_plus_plus)):
            if values is not None:
                scores |= {f"{name}_{k}": DIRECTIONS[name] * value for k, value in zip(MIN_K, values, strict=False)}
        return scores


def auc(
    scores: Floats, member: Sequence[bool], *, level: float = 0.95, clusters: Sequence[str] | None = None
) -> Estimate:
    """Return the area under the ROC curve of `scores` against `member`, with a score interval.

    The AUC is the chance that a member scores above a non-member, a tie counting half. The interval holds the areas A
    that are within z standard errors of the value. The variance is that of Hanley and McNeil 1982 at A itself, so the
    interval has a width even at perfect separation and stays between 0 and 1. This variance is scaled up if the formula
    of DeLong et al. 1988 (classes of very different spread) or of Obuchowski 1997 (correlated texts in `clusters`)
    gives a larger variance at the value. At perfect separation no such factor can be estimated, and clusters are
    counted instead of texts.

    Source: Newcombe 2006, method 5.
    """
    from scipy.optimize import brentq

    check_level(level)
    inside, outside = _dense_ranks(scores, member)
    value = _area(inside, outside)
    z = normal_quantile((1 + level) / 2)
    variance = _variance_of_auc(value, inside, outside, scores, member, clusters)

    def excess(area: float) -> float:
        return (value - area) ** 2 - z**2 * variance(area)

    low = brentq(excess, 0.0, value - _ROUNDING, xtol=_ROUNDING) if value > _ROUNDING else 0.0
    high = brentq(excess, value + _ROUNDING, 1.0, xtol=_ROUNDING) if value < 1.0 - _ROUNDING else 1.0
    return Estimate(value, low, high)


def chance_error(scores: Floats, member: Sequence[bool], clusters: Sequence[str] | None = None) -> float:
    """Return the standard error that the `auc` would have if members and non-members were alike."""
    inside, outside = _dense_ranks(scores, member)
    return math.sqrt(_variance_of_auc(_area(inside, outside), inside, outside, scores, member, clusters)(0.5))


def area_power(area: float, error: float, members: int, non_members: int, level: float) -> float:
    """Return the power of the one-sided test at the error level `level`, such as 0.05, against a true `area`.

    `error` is that of `chance_error`.
    """
    factor = error**2 / _hanley_mcneil(0.5, members, non_members)
    true_error = math.sqrt(factor * _hanley_mcneil(area, members, non_members))
    return normal_share((area - 0.5 + error * normal_quantile(level)) / true_error)


def sample_factor(area: float, error: float, members: int, non_members: int, level: float, power: float) -> float:
    """Return how many times as many texts give this `power` against a true `area`; see `area_power`."""
    factor = error**2 / _hanley_mcneil(0.5, members, non_members)
    true_error = math.sqrt(factor * _hanley_mcneil(area, members, non_members))
    return ((normal_quantile(1 - level) * error + normal_quantile(power) * true_error) / (area - 0.5)) ** 2


def _variance_of_auc(
    value: float,
    inside: NDArray[np.int64],
    outside: NDArray[np.int64],
    scores: Floats,
    member: Sequence[bool],
    clusters: Sequence[str] | None,
) -> Callable[[float], float]:
    """Return the variance of an AUC as a function of the true area, given the observed `value`."""
    sizes = len(inside), len(outside)
    observed = _delong(inside, outside)
    if clusters is not None and len(set(clusters)) < len(clusters):
        if len(clusters) != len(member):
            raise ValueError(f"clusters: {len(clusters)} for {len(member)} scores; each score needs one")
        labels = np.asarray(member) == 1
        names = np.unique(clusters, return_inverse=True)[1]
        observed = max(observed, _obuchowski(np.asarray(scores, dtype=np.float64), labels, names))
        if not _hanley_mcneil(value, *sizes):
            sizes = len(np.unique(names[labels])), len(np.unique(names[~labels]))
    expected = _hanley_mcneil(value, *sizes)
    factor = max(1.0, observed / expected) if expected else 1.0
    return lambda area: factor * _hanley_mcneil(area, *sizes)


def _obuchowski(scores: NDArray[np.float64], member: NDArray[np.bool_], clusters: NDArray[np.int64]) -> float:
    """Return the variance of an AUC with dependent texts in a cluster (Obuchowski 1997, Biometrics 53, 567)."""
    parts = np.zeros(len(scores))
    for side in (member, ~member):
        opposite = np.sort(scores[~side])
        above = (np.searchsorted(opposite, scores[side], "left") + np.searchsorted(opposite, scores[side], "right")) / 2
        # For non-members, take the fraction of members above instead of below, so that mixed clusters do not cancel.
        above = above / len(opposite) if side is member else 1 - above / len(opposite)
        parts[side] = (above - above.mean()) / side.sum()
    sums = np.bincount(clusters, weights=parts)
    smallest = min(len(np.unique(clusters[side])) for side in (member, ~member))
    return math.fsum((sums**2).tolist()) * (smallest / (smallest - 1) if smallest > 1 else 1.0)


def _hanley_mcneil(area: float, members: int, non_members: int) -> float:
    """Return the variance of an AUC, with averaged sample sizes as in Newcombe: symmetric in the classes."""
    more = (members + non_members) / 2 - 1
    shape = 1 + more * ((1 - area) / (2 - area) + area / (1 + area))
    return area * (1 - area) * shape / (members * non_members)


def _area(inside: NDArray[np.int64], outside: NDArray[np.int64]) -> float:
    """Return the fraction of pairs in which the member ranks above the other text, a tie counting half."""
    twice = np.searchsorted(outside, inside, "left").sum() + np.searchsorted(outside, inside, "right").sum()
    return int(twice) / (2 * len(inside) * len(outside))


def _delong(inside: NDArray[np.int64], outside: NDArray[np.int64]) -> float:
    """Return the variance of an AUC from the spread of each text's rank in the other class."""
    above = [
        (np.searchsorted(opposite, own, "left") + np.searchsorted(opposite, own, "right")) / (2 * len(opposite))
        for own, opposite in ((inside, outside), (outside, inside))
    ]
    return math.fsum(float(np.var(own, ddof=1)) / len(own) for own in above if len(own) > 1)


def tpr_at_fpr(scores: Floats, member: Sequence[bool], fpr: float = 0.05) -> float:
    """Return the highest true positive rate of any threshold with a false positive rate of at most `fpr`.

    Reported as TPR@5%FPR by Shi et al. 2024 and Zhang et al. 2024. No interpolation between thresholds.
    """
    if not 0.0 <= fpr <= 1.0:
        raise ValueError(f"fpr is {fpr}; it must be a share between 0 and 1")
    inside, outside = _dense_ranks(scores, member)
    thresholds = np.arange(max(inside[-1], outside[-1]) + 2)  # the last one finds nothing
    true, false = ((len(ranks) - np.searchsorted(ranks, thresholds)) / len(ranks) for ranks in (inside, outside))
    return float(true[false <= fpr].max())


def fpr_at_tpr(scores: Floats, member: Sequence[bool], tpr: float = 0.95) -> float:
    """Return the lowest false positive rate of any threshold with a true positive rate of at least `tpr` (FPR95).

    No interpolation between thresholds.
    """
    if not 0.0 <= tpr <= 1.0:
        raise ValueError(f"tpr is {tpr}; it must be a share between 0 and 1")
    inside, outside = _dense_ranks(scores, member)
    thresholds = np.arange(max(inside[-1], outside[-1]) + 2)
    true, false = ((len(ranks) - np.searchsorted(ranks, thresholds)) / len(ranks) for ranks in (inside, outside))
    return float(false[true >= tpr].min())


def loss_ratio(own: float, other: float) -> float:
    """Return a text's LM loss over its loss in lower case, or over its loss under a reference model; low if seen.

    Source: Carlini et al. 2021, section 5.2, where the ratios are of log-perplexities.
    """
    if not own >= 0 or not other > 0:
        raise ValueError(f"losses {own} and {other}: a ratio needs losses of at least 0, and the second above 0")
    return own / other


def loss_gap(train: Mean, test: Mean, level: float = 0.95) -> Estimate:
    """Return the difference of mean losses, test minus train (Δ of Yu et al. 2024, Table 3), by Welch."""
    for name, losses in (("train", train), ("test", test)):
        if losses.n < 2:
            raise ValueError(f"{name}: {losses.n} losses; the interval of the gap needs at least two in each set")
    return welch(train, test, level)


def _check_logprobs(logprobs: Floats) -> NDArray[np.float64]:
    array = np.asarray(logprobs, dtype=np.float64)
    if array.ndim != 1 or not array.size:
        raise ValueError(f"logprobs: shape {array.shape}; expected a flat list of at least one number")
    _reject(
        "logprobs",
        array,
        ~(np.isfinite(array) & (array <= POSITIVE_LOGPROB_SLACK)),
        "expected finite log-probabilities of at most 0",
    )
    return array


def _reject(name: str, values: NDArray[np.float64], wrong: NDArray[np.bool_], rule: str) -> None:
    if wrong.any():
        first = int(wrong.argmax())
        raise ValueError(f"{name}[{first}] is {values[first]}; {rule}")


def _mean(array: NDArray[np.float64]) -> float:
    # fsum is exactly rounded: the same bits on every platform.
    return math.fsum(array.tolist()) / len(array)


def _mean_of_lowest(ordered: NDArray[np.float64], k: float) -> float:
    """Return the mean of the lowest k% of ascending values."""
    if not 0 < k <= 100:
        raise ValueError(f"k is {k}; it must be a percentage above 0 and at most 100")
    return _mean(ordered[: max(1, int(len(ordered) * k / 100))])


def _standardize(array: NDArray[np.float64], means: Floats, deviations: Floats) -> NDArray[np.float64]:
    mu, sigma = np.asarray(means, dtype=np.float64), np.asarray(deviations, dtype=np.float64)
    for name, values in (("means", mu), ("deviations", sigma)):
        if values.shape != array.shape:
            raise ValueError(f"{name}: {values.size} for {array.size} logprobs; each logprob needs one")
    _reject("means", mu, ~np.isfinite(mu), "means must be finite")
    _reject("deviations", sigma, ~(np.isfinite(sigma) & (sigma >= 0)), "deviations must be finite and at least 0")
    offsets, even = array - mu, sigma == 0
    _reject(
        "logprobs",
        array,
        even & (np.abs(offsets) > POSITIVE_LOGPROB_SLACK),
        "its deviation is 0, so it must equal its mean",
    )
    return np.divide(offsets, sigma, out=np.zeros_like(offsets), where=~even)


def _dense_ranks(scores: Floats, member: Sequence[bool]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return dense ranks of the scores, ascending: of members, and of non-members."""
    values, labels = np.asarray(scores, dtype=np.float64), np.asarray(member)
    if values.ndim != 1 or values.shape != labels.shape:
        raise ValueError(f"member: {labels.size} labels for {values.size} scores; each score needs one")
    _reject("scores", values, np.isnan(values), "it cannot be ranked")
    inside = labels == 1
    _reject("member", labels, ~(inside | (labels == 0)), "labels must be true or false")
    if inside.all() or not inside.any():
        raise ValueError(f"member: {int(inside.sum())} members of {inside.size}; both classes are needed")
    ranks = np.unique(values, return_inverse=True)[1].astype(np.int64)
    return np.sort(ranks[inside]), np.sort(ranks[~inside])
