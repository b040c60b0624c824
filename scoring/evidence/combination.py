"""Verdicts from several witnesses: one score by kind of contamination, compared with clean models.

Kinds of contamination differ in the witnesses that notice them, and a witness may point the other way: a model that
was trained on rephrased items does better on these than on the benchmark. A mean of witnesses therefore dilutes the
evidence. The score here is the largest of several standardised sums, one for each witness alone, which needs no known
kind, and one for each known kind, weighted by what that kind does to the witnesses. Medians and weights are fitted on
models of known truth.

How high clean models score is not derived but counted, on other clean models: with m of them the conformal p-value is
(1 + number that score as high) / (m + 1), whatever the distribution of the witnesses and however poor the fit (Vovk et
al. 2005). It holds for a clean model that is exchangeable with those m, and averaged over the choice of the m.
Split conformal p-values were chosen because nothing is lost: jackknife+ promises only twice the error rate (Barber et
al. 2021), and e-values are weaker evidence from as many models. Besides, several accused models that are compared with
the same clean ones can be corrected by Benjamini and Hochberg (Bates et al. 2023, theorem 2.1). Clean models of the fit
cannot count again, unless the fit treats clean and accused models alike: medians and spreads of all of them together
leave both guarantees (Marandon et al. 2024).

No p-value is below 1 / (m + 1): with fewer than 19 clean models the answer at 5% is always "cannot tell".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..comparison import adjust_p_values
from ..intervals import check_level
from .evidence import compare_models

Floats = NDArray[np.float64]
Statistics: TypeAlias = Mapping[str, float]  # of a model, by witness; `Evidence.statistic`
Conclusion: TypeAlias = Literal["contaminated", "clean", "cannot tell"]
_ROUNDING = 1e-12  # of a p-value that equals the level


@dataclass(frozen=True, slots=True)
class KnownModels:
    """Models of known truth: clean ones, and contaminated ones by kind."""

    clean: Sequence[Statistics]
    contaminated: Mapping[str, Sequence[Statistics]]

    def without(self, kind: str) -> KnownModels:
        """Return the models without a kind of contamination."""
        return KnownModels(self.clean, {name: models for name, models in self.contaminated.items() if name != kind})


@dataclass(frozen=True, slots=True)
class Combination:
    """Score of a model from the witnesses `witnesses`: the largest of standardised sums.

    `names` are those of the sums (a witness or a kind of contamination), `weights` has a row for each; `centres` and
    `scales` are of the sums of clean models.
    """

    witnesses: tuple[str, ...]
    names: tuple[str, ...]
    weights: Floats
    centres: Floats
    scales: Floats

    @classmethod
    def fit(cls, known: KnownModels, witnesses: Sequence[str]) -> Combination:
        """Fit on the models that have all these witnesses.

        A kind's weights are those of a matched filter: the mean shift of its models over the clean variance.
        """
        clean = _table(known.clean, witnesses)
        if not len(clean):
            raise ValueError(f"known.clean: no model has all of {', '.join(witnesses)}")
        centres, scales = _locate(clean)
        weights, names = [*np.eye(len(witnesses))], list(witnesses)
        for kind, models in sorted(known.contaminated.items()):
            table = _table(models, witnesses)
            if len(table) and len(witnesses) > 1:
                weights.append((table.mean(axis=0) - centres) / scales**2)
                names.append(kind)
        rows = np.array(weights)
        return cls(tuple(witnesses), tuple(names), rows, *_locate(clean @ rows.T))

    def score(self, statistics: Statistics) -> tuple[float, str]:
        """Return the score of a model, larger for contamination, and the name of the largest sum."""
        values = np.array([statistics[witness] for witness in self.witnesses])
        sums = (self.weights @ values - self.centres) / self.scales
        largest = int(sums.argmax())
        return float(sums[largest]), self.names[largest]


def _table(models: Sequence[Statistics], witnesses: Sequence[str]) -> Floats:
    """Return the statistics of models that have all witnesses, one model a row."""
    rows = [[model[witness] for witness in witnesses] for model in models if model.keys() >= set(witnesses)]
    return np.array(rows, dtype=np.float64).reshape(-1, len(witnesses))


def _locate(table: Floats) -> tuple[Floats, Floats]:
    """Return median and robust standard deviation by column; 1 for a column without any spread."""
    from scipy.stats import median_abs_deviation

    scales = np.asarray(median_abs_deviation(table, axis=0, scale="normal"))
    spread = table.std(axis=0)  # if more than half of the values are equal
    return np.median(table, axis=0), np.where(scales > 0.0, scales, np.where(spread > 0.0, spread, 1.0))


@dataclass(frozen=True, slots=True)
class Verdict:
    """Conclusion about one model, and what it rests on.

    `p` is the chance that a clean model scores as high, `p_adjusted` the same corrected for the number of accused
    models. `p_contaminated` is the chance that a known contaminated model scores as low, if its kind were unknown; None
    without such models. `strongest` names the witness or kind of the score, `clean_models` counts those compared.
    """

    conclusion: Conclusion
    score: float
    strongest: str
    p: float
    p_adjusted: float
    p_contaminated: float | None
    clean_models: int


def judge(
    accused: Mapping[str, Statistics], clean: Sequence[Statistics], known: KnownModels, level: float = 0.05
) -> dict[str, Verdict]:
    """Return a verdict for each accused model, with at most a fraction `level` of false accusations.

    A single clean model is accused with a probability of at most `level`. Among several accused models, the expected
    fraction of clean ones among those found contaminated is at most `level`, if all have the same witnesses. "Clean"
    means that a known contaminated model would score as low with a probability of at most `level`.

    Args:
        accused: Statistics by model. Witnesses that no clean model of `known` has are not used.
        clean: Clean models for the p-values; none of them may be in `known` or among the accused. Only those that have
            all witnesses of an accused model are compared with it.
        known: Models of the fit. Without clean ones, medians and spreads are those of `clean` and `accused` together.
        level: The error rate.
    """
    check_level(level)
    usable = {witness for model in known.clean or clean for witness in model}
    if not known.clean:
        known = KnownModels([*clean, *accused.values()], known.contaminated)
    contaminated_models = [model for models in known.contaminated.values() for model in models]
    for model in [*accused.values(), *clean, *known.clean, *contaminated_models]:
        for witness, value in model.items():
            if not math.isfinite(value):
                raise ValueError(f"{witness}: a statistic is {value}; leave out what was not measured")

    @cache
    def calibrate(witnesses: tuple[str, ...]) -> tuple[Combination, list[float], list[float]]:
        combination = Combination.fit(known, witnesses)
        return combination, _scores(combination, clean), _contaminated_scores(known, witnesses)

    verdicts: dict[str, Verdict] = {}
    for name, model in accused.items():
        witnesses = tuple(sorted(model.keys() & usable))
        if not witnesses:
            raise ValueError(f"{name}: none of its witnesses is known; known are {', '.join(sorted(usable)) or 'none'}")
        combination, clean_scores, contaminated = calibrate(witnesses)
        score, strongest = combination.score(model)
        p = compare_models("court", score, clean_scores).p if clean_scores else 1.0
        lower = sum(other <= score for other in contaminated)
        p_contaminated = (1 + lower) / (1 + len(contaminated)) if contaminated else None
        verdicts[name] = Verdict("cannot tell", score, strongest, p, p, p_contaminated, len(clean_scores))
    adjusted = adjust_p_values([verdict.p for verdict in verdicts.values()], "benjamini-hochberg")
    return {
        name: _conclude(replace(verdict, p_adjusted=verdict.p if p is None else p), level)
        for (name, verdict), p in zip(verdicts.items(), adjusted, strict=True)
    }


def _conclude(verdict: Verdict, level: float) -> Verdict:
    """Return the verdict with its conclusion; without enough clean models it remains "cannot tell"."""
    if verdict.clean_models < count_clean_models(level):
        return verdict
    if verdict.p_adjusted <= level + _ROUNDING:
        return replace(verdict, conclusion="contaminated")
    if verdict.p > level and verdict.p_contaminated is not None and verdict.p_contaminated <= level + _ROUNDING:
        return replace(verdict, conclusion="clean")
    return verdict


def count_clean_models(level: float = 0.05, accused: int = 1, contaminated: int = 1) -> int:
    """Return how many clean models are needed to find `contaminated` of `accused` models contaminated."""
    return math.ceil(round(accused / (contaminated * level), 9)) - 1


def _scores(combination: Combination, models: Sequence[Statistics]) -> list[float]:
    return [combination.score(model)[0] for model in models if model.keys() >= set(combination.witnesses)]


def _contaminated_scores(known: KnownModels, witnesses: Sequence[str]) -> list[float]:
    """Return the scores of known contaminated models, each with its kind held out of the fit."""
    return [
        score
        for kind, models in known.contaminated.items()
        for score in _scores(Combination.fit(known.without(kind), witnesses), models)
    ]
