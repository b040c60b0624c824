"""A judge's figures set right by people's grades: from graded answers to the record that is printed and written.

What never belongs here: reading files (``orchestration``), formulas (``scoring.certified``), tables
(``certificate_tables``).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from viva.engine.errors import ConfigurationError
from viva.orchestration.graded_answers import GradedAnswers
from viva.orchestration.human_grades import HumanGrades, candidates_of
from viva.scoring.certified.choosing import draw, expected_spread, joined
from viva.scoring.certified.drift import Drift, drift, evened
from viva.scoring.certified.figures import Certificate, Figure, Gap, Scale, certify, correlation
from viva.scoring.certified.rates import Share
from viva.scoring.certified.sample import Sample, numbered
from viva.scoring.intervals import Estimate, Floats

_DECIMALS = 6


@dataclass(slots=True, frozen=True)
class Matched:
    """Answers and grades as samples by candidate; ``places`` are those of each sample's answers in the whole list."""

    answers: GradedAnswers
    grades: HumanGrades
    samples: dict[str, Sample]
    places: dict[str, list[int]]

    @property
    def scale(self) -> Scale:
        """The scale of scores and grades."""
        return Scale(self.answers.low, self.answers.high, self.answers.passes)


def join(answers: GradedAnswers, grades: HumanGrades) -> Matched:
    """Samples of all candidates that have a scored answer; answers on one item are one cluster in all of them."""
    samples: dict[str, Sample] = {}
    places: dict[str, list[int]] = {}
    numbers: dict[Hashable, int] = {}
    for candidate in candidates_of(answers.answers):
        held = [
            place for place, one in enumerate(answers.answers) if one.candidate == candidate and one.score is not None
        ]
        if not held:
            continue
        chosen = [answers.answers[place] for place in held]
        samples[candidate] = Sample.of(
            np.array([one.score for one in chosen], dtype=np.float64),
            np.array([grades.grades.get(place, math.nan) for place in held]),
            numbered([one.cluster for one in chosen], numbers),
            np.array([grades.probabilities.get(place, 1.0) for place in held]),
        )
        places[candidate] = held
    return Matched(answers, grades, samples, places)


def certificate_record(
    matched: Matched,
    *,
    level: float = 0.95,
    correlate: Sequence[str] = (),
    calibration: Sequence[tuple[float, float]] | None = None,
) -> dict[str, Any]:
    """Everything as plain data: figures by candidate, differences, gaps, correlations, drift. Six decimals.

    :raises ConfigurationError: nothing of that name is known of the answers, or a calibration needs a scale.
    """
    found = certify(matched.samples, matched.scale, level)
    answers, grades = matched.answers, matched.grades
    record: dict[str, Any] = {
        "source": str(answers.source),
        "level": level,
        "graded": "rounds" if answers.rounds else "answers",
        "scale": {"low": _number(answers.low), "high": _number(answers.high), "passes": answers.passes},
        "answers": sum(len(sample.scores) for sample in matched.samples.values()),
        "labels": len(grades.grades),
        "unscored": answers.unscored,
        "waiting": grades.waiting,
        "labels_on_unscored": grades.on_unscored,
        "probabilities": bool(grades.probabilities),
        **_figures(found),
    }
    if correlate:
        record["correlations"] = {name: _correlations(name, matched, level) for name in correlate}
    if calibration is not None:
        record["drift"] = _drift(matched, calibration, level)
    return record


def next_answers(matched: Matched, count: int, seed: int) -> tuple[list[int], dict[int, float]]:
    """Which answers people should grade next, and the probability of each answer to have been chosen by then.

    Answers of all candidates are drawn from together, each weighed by its share of its candidate's mean.

    :raises ConfigurationError: fewer answers are left, or what was drawn before has unknown probabilities.
    """
    samples = matched.samples
    places = [place for held in matched.places.values() for place in held]
    graded = np.concatenate([sample.graded for sample in samples.values()])
    left = int((~graded).sum())
    if count > left or count < 1:
        raise ConfigurationError(f"--next {count}: {left} answers have no grade; ask for 1 to {left}")
    before = np.concatenate([_before(matched, candidate) for candidate in samples])
    spreads = np.concatenate([expected_spread(sample) / len(sample.scores) for sample in samples.values()])
    drawn = draw(spreads, graded, count, seed=seed)
    both = joined(before, drawn.probabilities)
    chosen = [place for place, now in zip(places, drawn.chosen.tolist(), strict=True) if now]
    return chosen, dict(zip(places, both.tolist(), strict=True))


def _before(matched: Matched, candidate: str) -> Floats:
    """With which probability each of a candidate's answers was to be graded so far."""
    sample, places, known = matched.samples[candidate], matched.places[candidate], matched.grades.probabilities
    if not known:
        return np.full(len(places), sample.labels / len(places))
    if any(place not in known for place in places):
        one = next(place for place in places if place not in known)
        raise ConfigurationError(
            "--next: the labels have probabilities, but none is known of "
            f"'{matched.answers.answers[one].key}'; give the whole file that --out wrote, also the rows that were not "
            "chosen"
        )
    return np.array([known[place] for place in places])


def _correlations(name: str, matched: Matched, level: float) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for candidate, sample in matched.samples.items():
        values = [matched.answers.answers[place].known.get(name) for place in matched.places[candidate]]
        if any(value is None for value in values):
            offered = sorted({one for answer in matched.answers.answers for one in answer.known})
            known_ones = ", ".join(offered) or "none"
            raise ConfigurationError(
                f"--correlate {name}: not known of every answer of '{candidate}'; known are: {known_ones}"
            )
        known = np.array(values, dtype=np.float64)
        pair = {kind: correlation(known, sample, ranks=ranks, level=level)
                for kind, ranks in (("pearson", False), ("spearman", True))}  # fmt: skip
        found[candidate] = {kind: None if one is None else _figure(one) for kind, one in pair.items()}
    return found


def _drift(matched: Matched, calibration: Sequence[tuple[float, float]], level: float) -> dict[str, Any] | None:
    scale, grades = matched.scale, matched.grades
    width = scale.high - scale.low
    if not math.isfinite(width):
        raise ConfigurationError("--calibration: the ends of the scale are not known; give --scale LOW:HIGH")
    order = list(grades.grades)
    weights = np.array([1.0 / grades.probabilities.get(place, 1.0) for place in order])
    kept = evened(weights)
    gaps = [
        grades.grades[place] - float(matched.answers.answers[place].score or 0.0)
        for place, keep in zip(order, kept.tolist(), strict=True)
        if keep
    ]
    known = [grade - score for score, grade in calibration]
    found: Drift | None = drift(known, gaps, low=-width, high=width, level=level)
    if found is None:
        return None
    return {
        "labels": found.labels,
        "left_out": len(order) - found.labels,
        "calibration_labels": found.calibrated,
        "found_at": found.found_at,
        "evidence": _number(found.evidence),
        "p": _number(found.p),
        "gap": _estimate(found.gap),
        "calibration_gap": _number(found.calibration),
    }


def _figures(found: Certificate) -> dict[str, Any]:
    return {
        "candidates": {name: _figure(one) for name, one in found.candidates.items()},
        "differences": [
            {"first": first, "second": second, **_figure(one)} for (first, second), one in found.differences.items()
        ],
        "gaps": {name: _gap(one) for name, one in found.gaps.items()},
    }


def _figure(one: Figure) -> dict[str, Any]:
    return {
        "answers": one.answers,
        "labels": one.labels,
        "judged": _estimate(one.judged),
        "corrected": _estimate(one.corrected),
        "labels_alone": _estimate(one.labels_alone),
        "worth": _number(one.worth),
        "powers": [_number(power) for power in one.powers],
    }


def _gap(one: Gap) -> dict[str, Any]:
    record: dict[str, Any] = {"mean": _estimate(one.mean), "absolute": _number(one.absolute), "r": _number(one.r)}
    if one.errors is not None:
        record |= {name: _share(getattr(one.errors, name)) for name in one.errors.__slots__}
        record["rogan_gladen"] = _estimate(one.rogan_gladen)
    return record


def _share(one: Share) -> dict[str, Any] | None:
    return None if one.n == 0.0 else {"value": _number(one.value), "n": _number(one.n)}


def _estimate(one: Estimate | None) -> dict[str, Any] | None:
    return None if one is None else {name: _number(getattr(one, name)) for name in ("value", "low", "high")}


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(float(value), _DECIMALS)
