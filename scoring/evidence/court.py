"""Rulings on models: has a model seen a benchmark? Every witness is heard, and the number of questions is paid for.

A model is tested by each witness under the witness's own null, and, if clean models of the same benchmark are known, by
its rank among them (`combination`). Holm's correction keeps the chance of a false accusation of a clean model at the
level, however the tests depend on each other; Benjamini and Hochberg's then bounds the fraction of clean models among
the accused ones. Witnesses that compare two sets assume that these differ in nothing else. Where enough clean models
are known, that is checked: a witness that accuses too many of them is not believed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..comparison import adjust_p_values
from ..intervals import normal_quantile
from .combination import Conclusion, KnownModels, Verdict, count_clean_models, judge
from .context_gain import WITNESS as CONTEXT_GAIN
from .evidence import Evidence
from .observations import ACCURACY_GAP, LOSS_GAP, MIN_K, OPTION_ANSWERS, Hearing
from .peakedness import WITNESS as PEAKEDNESS
from .reference_models import WITNESS as CONSTAT
from .reference_models import with_constat

COMPARISON = "clean models"  # name of the test by rank
SECOND_SET = (ACCURACY_GAP, LOSS_GAP, MIN_K, CONTEXT_GAIN, PEAKEDNESS, "guessing")  # witnesses that compare two sets
WITNESSES = (*SECOND_SET, CONSTAT, "exchangeability", "option order", OPTION_ANSWERS)
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Trial:
    """One test of a model: by a witness, or by its rank among clean models. `p_adjusted` is corrected by Holm."""

    name: str
    p: float
    p_adjusted: float


@dataclass(frozen=True, slots=True)
class Remedy:
    """A way to settle an open case: `items` on which the witness would decide, if its effect stays as it is."""

    witness: str
    items: int


@dataclass(frozen=True, slots=True)
class Ruling:
    """Ruling on one model.

    Attributes:
        conclusion: The answer.
        p: The chance of such evidence from a clean model: the smallest corrected p-value of its trials.
        p_adjusted: `p` corrected for the number of models that are judged together.
        trials: The tests, by corrected p-value.
        evidence: What each witness says, also those that are not believed.
        comparison: The verdict by rank among clean models, None without enough of them.
        disbelieved: Witnesses that accuse too many clean models.
        remedies: Ways to settle an open case, the one with the fewest items first.
    """

    conclusion: Conclusion
    p: float
    p_adjusted: float
    trials: Sequence[Trial]
    evidence: Sequence[Evidence]
    comparison: Verdict | None
    disbelieved: Sequence[str]
    remedies: Sequence[Remedy]

    @property
    def strongest(self) -> str:
        """Return the name of the test with the smallest corrected p-value; empty without any."""
        return self.trials[0].name if self.trials else ""


def rule(
    accused: Mapping[str, Hearing],
    clean: Sequence[Hearing] = (),
    contaminated: Mapping[str, Sequence[Hearing]] | None = None,
    level: float = 0.05,
) -> dict[str, Ruling]:
    """Return a ruling for each accused model; all have been asked about the same sets.

    Args:
        accused: Hearings by model.
        clean: Those of models that are known to be clean.
        contaminated: Those of known contaminated models, by kind. They give weights to the witnesses; without them, no
            model can be found clean.
        level: The error rate.
    """
    accused, clean, contaminated = with_constat(accused, clean, contaminated or {}, level)
    disbelieved = _disbelieved(clean, level)
    comparisons = _compare(accused, clean, contaminated, level)
    rulings = {}
    for name, hearing in accused.items():
        own_evidence = hearing.evidence
        comparison = comparisons.get(name)
        if comparison is not None and comparison.clean_models < count_clean_models(level):
            comparison = None
        believed = [item for item in own_evidence if item.witness not in disbelieved]
        trials = _trials(believed, comparison)
        p = min((trial.p_adjusted for trial in trials), default=1.0)
        rejected = [item.witness for item in own_evidence if item.witness in disbelieved]
        remedies = _remedies(believed, len(accused) * (1 if comparison is None else 2), level)
        rulings[name] = Ruling("cannot tell", p, p, trials, own_evidence, comparison, rejected, remedies)
    corrected = adjust_p_values([ruling.p for ruling in rulings.values()], "benjamini-hochberg")
    return {
        name: _conclude(replace(ruling, p_adjusted=ruling.p if p is None else p), level)
        for (name, ruling), p in zip(rulings.items(), corrected, strict=True)
    }


def _trials(evidence: Sequence[Evidence], comparison: Verdict | None) -> list[Trial]:
    """Return the tests, the one with the smallest corrected p-value first.

    If there is a comparison with clean models, it gets half of the level, since its p-value cannot be small.
    """
    shares = 1 if comparison is None else 2
    adjusted = adjust_p_values([item.p for item in evidence], "holm")
    trials = [
        Trial(item.witness, item.p, min(1.0, shares * (item.p if p is None else p)))
        for item, p in zip(evidence, adjusted, strict=True)
    ]
    if comparison is not None:
        trials.append(Trial(COMPARISON, comparison.p, min(1.0, shares * comparison.p)))
    return sorted(trials, key=lambda trial: (trial.p_adjusted, trial.p, trial.name))


def _conclude(ruling: Ruling, level: float) -> Ruling:
    if ruling.trials and ruling.p_adjusted <= level + _ROUNDING:
        return replace(ruling, conclusion="contaminated", remedies=())
    if ruling.comparison is not None and ruling.comparison.conclusion == "clean" and ruling.p > level:
        return replace(ruling, conclusion="clean", remedies=())
    return ruling


def _compare(
    accused: Mapping[str, Hearing],
    clean: Sequence[Hearing],
    contaminated: Mapping[str, Sequence[Hearing]],
    level: float,
) -> dict[str, Verdict]:
    figures = {name: hearing.statistics for name, hearing in accused.items()}
    known_clean = [hearing.statistics for hearing in clean]
    usable = {witness for model in known_clean for witness in model}
    figures = {name: values for name, values in figures.items() if values.keys() & usable}
    if not figures:
        return {}
    kinds = {kind: [hearing.statistics for hearing in models] for kind, models in contaminated.items()}
    return judge(figures, known_clean, KnownModels((), kinds), level)


def _disbelieved(clean: Sequence[Hearing], level: float) -> list[str]:
    """Return the witnesses that accuse significantly more clean models than the level says, if there are enough."""
    from scipy.stats import binomtest

    alarms: dict[str, list[bool]] = {}
    for hearing in clean:
        for evidence in hearing.evidence:
            alarms.setdefault(evidence.witness, []).append(evidence.p <= level)
    return [
        witness
        for witness, accused in alarms.items()
        if len(accused) >= count_clean_models(level)
        and binomtest(sum(accused), len(accused), level, alternative="greater").pvalue <= level
    ]


def _remedies(evidence: Sequence[Evidence], shares: int, level: float) -> list[Remedy]:
    """Return for each witness that leans to contamination how many items would reach the level, by its z-value.

    `shares`: into how many parts the level is divided, besides the witnesses.
    """
    needed = normal_quantile(1 - level / (max(1, len(evidence)) * max(1, shares)))
    remedies = []
    for item in evidence:
        z = normal_quantile(1 - max(item.p, 1e-9)) if item.p < 1 else -1.0
        if 0.5 < z < needed:
            remedies.append(Remedy(item.witness, max(item.n + 1, math.ceil(item.n * (needed / z) ** 2))))
    return sorted(remedies, key=lambda remedy: (remedy.items, remedy.witness))
