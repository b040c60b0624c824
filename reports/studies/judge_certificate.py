"""Certificate of a judge from people's grades, as a record, sentences, tables and CSV."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from viva.engine.errors import ConfigurationError
from viva.grading.human_grades import GradedAnswers, HumanGrades, candidates_of
from viva.scoring.certificate import (
    GradeRange,
    JudgeError,
    Proportion,
    certify,
    combine_probabilities,
    corrected_correlation,
    draw_answers,
    even_out,
    expected_spread,
    measure_drift,
)
from viva.scoring.intervals import Floats
from viva.scoring.prediction_powered import GradedSample, number_names

from ..figures import round_figure
from ..tables import DASH, Table
from .export import write_rows


@dataclass(slots=True, frozen=True)
class MatchedGrades:
    """Answers and grades as samples by candidate.

    `places` are the positions of each sample's answers in `answers.answers`.
    """

    answers: GradedAnswers
    grades: HumanGrades
    samples: dict[str, GradedSample]
    places: dict[str, list[int]]

    @property
    def scale(self) -> GradeRange:
        """Scale of scores and grades."""
        return GradeRange(self.answers.low, self.answers.high, self.answers.passes)


def match_grades(answers: GradedAnswers, grades: HumanGrades) -> MatchedGrades:
    """Build samples of all candidates that have a scored answer; answers on one item are one cluster in all of them."""
    samples: dict[str, GradedSample] = {}
    places: dict[str, list[int]] = {}
    numbers: dict[Hashable, int] = {}
    for candidate in candidates_of(answers.answers):
        positions = [
            position
            for position, answer in enumerate(answers.answers)
            if answer.candidate == candidate and answer.score is not None
        ]
        if not positions:
            continue
        chosen = [answers.answers[position] for position in positions]
        samples[candidate] = GradedSample.from_arrays(
            np.array([answer.score for answer in chosen], dtype=np.float64),
            np.array([grades.grades.get(position, math.nan) for position in positions]),
            number_names([answer.cluster for answer in chosen], numbers),
            np.array([grades.probabilities.get(position, 1.0) for position in positions]),
        )
        places[candidate] = positions
    return MatchedGrades(answers, grades, samples, places)


def certificate_record(
    matched: MatchedGrades,
    *,
    level: float = 0.95,
    correlate: Sequence[str] = (),
    calibration: Sequence[tuple[float, float]] | None = None,
) -> dict[str, Any]:
    """Return everything as plain data: figures by candidate, differences, gaps, correlations, drift. Six decimals.

    `correlate` names numbers in the answers' `known`; `calibration` has earlier pairs (judge's score, person's grade).

    Raises:
        ConfigurationError: if answers lack a field to correlate, or a calibration needs a scale.
    """
    certificate = certify(matched.samples, matched.scale, level)
    answers, grades = matched.answers, matched.grades
    record: dict[str, Any] = {
        "source": str(answers.source),
        "level": level,
        "graded": "rounds" if answers.rounds else "answers",
        "scale": {"low": round_figure(answers.low), "high": round_figure(answers.high), "passes": answers.passes},
        "answers": sum(len(sample.scores) for sample in matched.samples.values()),
        "labels": len(grades.grades),
        "unscored": answers.unscored,
        "waiting": grades.waiting,
        "labels_on_unscored": grades.on_unscored,
        "probabilities": bool(grades.probabilities),
        "candidates": {name: _plain(figure) for name, figure in certificate.candidates.items()},
        "differences": [{"first": first, "second": second, **_plain(figure)}
                        for (first, second), figure in certificate.differences.items()],
        "gaps": {name: _error_record(figure) for name, figure in certificate.gaps.items()},
    }  # fmt: skip
    if correlate:
        record["correlations"] = {name: _correlation_records(name, matched, level) for name in correlate}
    if calibration is not None:
        record["drift"] = _drift_record(matched, calibration, level)
    return record


def choose_next_answers(matched: MatchedGrades, count: int, seed: int) -> tuple[list[int], dict[int, float]]:
    """Choose the answers that people should grade next.

    Answers of all candidates are drawn together, each weighted by its share of its candidate's mean.

    Returns:
        (Positions of the chosen answers; by position, each answer's probability of being chosen in this or an earlier
        draw).

    Raises:
        ConfigurationError: if fewer than `count` answers are left, or earlier draws have unknown probabilities.
    """
    samples = matched.samples
    positions = [position for group in matched.places.values() for position in group]
    graded = np.concatenate([sample.graded for sample in samples.values()])
    ungraded = int((~graded).sum())
    if count > ungraded or count < 1:
        raise ConfigurationError(f"--select {count}: {ungraded} answers have no grade; ask for 1 to {ungraded}")
    before = np.concatenate([_prior_probabilities(matched, candidate) for candidate in samples])
    spreads = np.concatenate([expected_spread(sample) / len(sample.scores) for sample in samples.values()])
    draw = draw_answers(spreads, graded, count, seed=seed)
    both = combine_probabilities(before, draw.probabilities)
    chosen = [position for position, is_chosen in zip(positions, draw.chosen.tolist(), strict=True) if is_chosen]
    return chosen, dict(zip(positions, both.tolist(), strict=True))


def _prior_probabilities(matched: MatchedGrades, candidate: str) -> Floats:
    """Return the probability with which each of a candidate's answers was graded so far."""
    sample, positions, probabilities = (
        matched.samples[candidate],
        matched.places[candidate],
        matched.grades.probabilities,
    )
    if not probabilities:
        return np.full(len(positions), sample.labels / len(positions))
    if any(position not in probabilities for position in positions):
        missing = next(position for position in positions if position not in probabilities)
        raise ConfigurationError(
            f"--select: the labels have probabilities, but '{matched.answers.answers[missing].key}' has none; give the "
            "whole file that --out wrote, including the rows that were not chosen"
        )
    return np.array([probabilities[position] for position in positions])


def _correlation_records(name: str, matched: MatchedGrades, level: float) -> dict[str, Any]:
    records: dict[str, Any] = {}
    for candidate, sample in matched.samples.items():
        values = [matched.answers.answers[position].known.get(name) for position in matched.places[candidate]]
        if any(value is None for value in values):
            offered = sorted({entry for answer in matched.answers.answers for entry in answer.known})
            names = ", ".join(offered) or "none"
            raise ConfigurationError(
                f"--correlate {name}: some answers of '{candidate}' have no such number; use one of: {names}"
            )
        covariate = np.array(values, dtype=np.float64)
        pair = {kind: corrected_correlation(covariate, sample, ranks=ranks, level=level)
                for kind, ranks in (("pearson", False), ("spearman", True))}  # fmt: skip
        records[candidate] = {kind: _plain(entry) for kind, entry in pair.items()}
    return records


def _drift_record(
    matched: MatchedGrades, calibration: Sequence[tuple[float, float]], level: float
) -> dict[str, Any] | None:
    scale, grades = matched.scale, matched.grades
    width = scale.high - scale.low
    if not math.isfinite(width):
        raise ConfigurationError("--calibration: the ends of the scale are not known; give --scale LOW:HIGH")
    order = list(grades.grades)
    weights = np.array([1.0 / grades.probabilities.get(position, 1.0) for position in order])
    mask = even_out(weights)
    gaps = [
        grades.grades[position] - float(matched.answers.answers[position].score or 0.0)
        for position, keep in zip(order, mask.tolist(), strict=True)
        if keep
    ]
    calibration_gaps = [grade - score for score, grade in calibration]
    drift = measure_drift(calibration_gaps, gaps, low=-width, high=width, level=level)
    if drift is None:
        return None
    return {
        "labels": drift.labels,
        "left_out": len(order) - drift.labels,
        "calibration_labels": drift.calibrated,
        "found_at": drift.found_at,
        "evidence": _plain(drift.evidence),
        "p": _plain(drift.p),
        "gap": _plain(drift.gap),
        "calibration_gap": _plain(drift.calibration),
    }


def _error_record(error: JudgeError) -> dict[str, Any]:
    record: dict[str, Any] = _plain(error)
    errors, rate = record.pop("errors"), record.pop("rogan_gladen")
    return record if errors is None else record | errors | {"rogan_gladen": rate}


def _plain(figure: Any) -> Any:
    """Return a figure as JSON data with six decimals; a dataclass becomes its fields, a proportion of nothing None."""
    if isinstance(figure, float):
        return round_figure(float(figure))
    if isinstance(figure, tuple):
        return [_plain(item) for item in figure]
    if isinstance(figure, Proportion) and figure.n == 0.0:
        return None
    if is_dataclass(figure):
        return {item.name: _plain(getattr(figure, item.name)) for item in fields(figure)}
    return figure


Record = Mapping[str, Any]
CERTIFICATE_COLUMNS = ("candidate", "versus", "figure", "value", "low", "high", "answers", "labels", "worth")
_TEXT_COLUMNS = ("candidate", "versus")
_TRIED = 10  # smallest number of labels that `benches/certified.py` tests


def certificate_sentences(record: Record) -> list[str]:
    """Return the findings, the most important first."""
    sentences = [_candidate_sentence(name, pair, record) for name, pair in list(record["candidates"].items())[:4]]
    significant = [pair for pair in record["differences"] if _sign_of_difference(pair["corrected"])]
    for pair in record["differences"][:6]:
        judged_sign, corrected_sign = _sign_of_difference(pair["judged"]), _sign_of_difference(pair["corrected"])
        if pair["corrected"] is not None and judged_sign != corrected_sign:
            judged, corrected = (_difference_verdict(pair, sign) for sign in (judged_sign, corrected_sign))
            sentences.append(f"By the judge alone, {judged}; after correction, {corrected}.")
    if len(record["differences"]) > 1 and significant:
        sentences.append(
            f"After correction, {len(significant)} of {len(record['differences'])} pairs differ significantly."
        )
    drift = record.get("drift")
    if drift is not None:
        if drift["found_at"] is not None:
            sentences.append(f"The judge has drifted from its calibration: detected after {drift['found_at']} labels.")
        else:
            tested = f"{drift['labels']} labels (anytime-valid p = {drift['p']:.2g})"
            sentences.append(f"No drift from the calibration detected in {tested}.")
    return sentences


def certificate_notes(record: Record) -> list[str]:
    """Return the caveats of the figures."""
    notes = []
    if record["unscored"]:
        notes.append(f"{record['unscored']} answers that the judge left unscored are not counted")
    if record["labels_on_unscored"]:
        notes.append(f"{record['labels_on_unscored']} labels of answers that the judge left unscored are not used")
    if record["waiting"]:
        notes.append(
            f"{record['waiting']} lines of the labels have no grade; the figures assume that they are missing at random"
        )
    for name, figure in record["candidates"].items():
        if figure["corrected"] is None:
            notes.append(f"{name}: {figure['labels']} labels are too few to correct its figure; grade at least 3 items")
        elif figure["labels"] < _TRIED:
            tried = f"intervals were validated with at least {_TRIED} labels"
            notes.append(f"{name}: {tried}; this figure has {figure['labels']}")
    if record["scale"]["low"] is None or record["scale"]["high"] is None:
        notes.append(
            "the ends of the scale are unknown, so intervals do not allow for rare grades that neither labels nor "
            "judge show; give --scale LOW:HIGH"
        )
    if record.get("correlations"):
        notes.append("intervals of correlations do not allow for rare grades that no label shows")
    if not record["probabilities"]:
        notes.append(
            "labels are assumed to be a uniform random sample of each candidate's answers; if not, give each label its "
            "'probability' of being drawn"
        )
    return notes


def certificate_tables(record: Record) -> list[Table]:
    """Build the tables: figures, differences, judge errors; if there are any, confusions, correlations and drift."""
    tables: list[Table] = [_candidate_table(record), _difference_table(record), _error_table(record)]
    if record["scale"]["passes"]:
        tables += [_confusion_table(record)]
    for name, by_candidate in record.get("correlations", {}).items():
        tables.append(_correlation_table(name, by_candidate))
    if record.get("drift") is not None:
        tables.append(_drift_table(record["drift"]))
    return tables


def write_certificate_csv(record: Record, file: Path) -> None:
    """Write every figure as a row of `CERTIFICATE_COLUMNS`.

    Raises:
        ConfigurationError: if the file cannot be written.
    """
    write_rows(
        (dict.fromkeys(CERTIFICATE_COLUMNS, "") | row for row in _csv_rows(record)),
        CERTIFICATE_COLUMNS,
        _TEXT_COLUMNS,
        file,
    )


def _candidate_sentence(name: str, figure: Record, record: Record) -> str:
    measure = "pass rate" if record["scale"]["passes"] else "mean grade"
    judged = _format_grade(record, figure["judged"]["value"])
    if figure["corrected"] is None:
        return f"{name}: {measure} {judged} as judged; too few labels to correct it."
    value = _format_grade(record, figure["corrected"]["value"])
    if figure["corrected"]["low"] is None:
        return (
            f"{name}: people's {measure} is {value}; no interval: the {figure['labels']} labels are all alike "
            f"and the ends of the scale are unknown; the judge says {judged}."
        )
    low, high = (_format_grade(record, figure["corrected"][end]) for end in ("low", "high"))
    labels, worth = f"{figure['labels']} labels", f"{figure['worth']:.0f}"
    precision = f"as precise as {worth} alone" if figure["worth"] >= figure["labels"] + 0.5 else "no more precise"
    return (
        f"{name}: people's {measure} would be {value} ({low} to {high}). The judge's scores give {judged}"
        f"{_bias_clause(record, name)}. They make these {labels} {precision}."
    )


def _bias_clause(record: Record, name: str) -> str:
    """Return whether the judge is lenient or strict on the graded answers; "" if that is unknown."""
    gap = (record["gaps"].get(name) or {}).get("mean")
    if gap is None or gap["low"] is None:
        return ""
    sign = _sign_of_difference(gap)
    if sign == 0:
        return "; on the graded answers they are not significantly off"
    off = f"{_format_grade(record, abs(gap['value']))} too {'high' if sign > 0 else 'low'}"
    return f"; on the graded answers they are {off}"


def _sign_of_difference(estimate: Record | None) -> int:
    """Return 1 or -1 if a difference's interval excludes 0, else 0."""
    if estimate is None or estimate["low"] is None or estimate["high"] is None:
        return 0
    return 1 if estimate["low"] > 0.0 else -1 if estimate["high"] < 0.0 else 0


def _difference_verdict(pair: Record, sign: int) -> str:
    if sign == 0:
        return f"{pair['first']} and {pair['second']} do not differ significantly"
    better, worse = (pair["first"], pair["second"]) if sign > 0 else (pair["second"], pair["first"])
    return f"{better} is above {worse}"


def _candidate_table(record: Record) -> Table:
    level = _level_text(record)
    header = ["candidate", record["graded"], "labels", "judged", level, "corrected", level, "effective labels"]
    show = partial(_format_grade, record)
    rows = [
        [name, str(figure["answers"]), str(figure["labels"]), *_figure_cells(figure, show)]
        for name, figure in record["candidates"].items()
    ]
    title = "Pass rates" if record["scale"]["passes"] else "Mean grades"
    return f"{title}, as judged and corrected by {record['labels']} human grades", header, rows


def _difference_table(record: Record) -> Table:
    header = ["first – second", "judged", _level_text(record), "corrected", _level_text(record), "effective labels"]
    rows = [[f"{pair['first']} – {pair['second']}", *_figure_cells(pair, partial(_format_grade, record))]
            for pair in record["differences"]]  # fmt: skip
    title = "Differences" if len(rows) < 2 else f"Differences; intervals hold jointly for all {len(rows)} pairs"
    return title, header, rows


def _error_table(record: Record) -> Table:
    header = ["candidate", "judge – people", _level_text(record), "mean absolute", "r"]
    show = partial(_format_grade, record)
    rows = [
        [
            name,
            *_estimate_cells(error["mean"], show),
            show(error["absolute"]),
            DASH if error["r"] is None else _two(error["r"]),
        ]
        for name, error in record["gaps"].items()
    ]
    return "Judge's score minus people's grade, for the answers that people graded", header, rows


def _confusion_table(record: Record) -> Table:
    header = ["candidate", "sensitivity", "specificity", "good if passed", "good if failed", "Rogan–Gladen"]
    names, show = ("sensitivity", "specificity", "passed", "failed"), partial(_format_grade, record)
    rows = [
        [name, *(_share_cell(error[field]) for field in names), *_estimate_cells(error["rogan_gladen"], show)]
        for name, error in record["gaps"].items()
    ]
    title = "Judge's errors, and the pass rate corrected by sensitivity and specificity alone"
    return title, [*header, _level_text(record)], rows


def _correlation_table(name: str, by_candidate: Mapping[str, Any]) -> Table:
    rows = [
        [candidate, label, *([DASH] * 5 if pair[kind] is None else _figure_cells(pair[kind], _two))]
        for candidate, pair in by_candidate.items()
        for kind, label in (("pearson", "Pearson r"), ("spearman", "Spearman ρ"))
    ]
    return (
        f"Correlation of grades with {name}",
        ["candidate", "coefficient", "judged", "95%", "corrected", "95%", "effective labels"],
        rows,
    )


def _drift_table(drift: Record) -> Table:
    gap = drift["gap"]
    row = [
        str(drift["labels"]),
        f"{drift['calibration_gap']:.3g}",
        f"{gap['value']:.3g}",
        f"{gap['low']:.3g} to {gap['high']:.3g}",
        f"{drift['evidence']:.3g}",
        f"{drift['p']:.2g}",
        DASH if drift["found_at"] is None else str(drift["found_at"]),
    ]
    header = ["labels", "bias before", "bias after", "interval", "evidence", "p", "detected at"]
    return f"Drift from {drift['calibration_labels']} calibration labels (people – judge)", header, [row]


def _figure_cells(figure: Record, show: Callable[[float], str]) -> list[str]:
    """Return a figure as judged and as corrected, with intervals, and its effective labels."""
    worth = DASH if figure["worth"] is None else f"{figure['worth']:.0f}"
    return [*_estimate_cells(figure["judged"], show), *_estimate_cells(figure["corrected"], show), worth]


def _estimate_cells(estimate: Record | None, show: Callable[[float], str]) -> list[str]:
    if estimate is None:
        return [DASH, DASH]
    return [
        show(estimate["value"]),
        " to ".join(DASH if estimate[end] is None else show(estimate[end]) for end in ("low", "high")),
    ]


def _two(value: float) -> str:
    return f"{value:.2f}"


def _format_grade(record: Record, value: float) -> str:
    """Format pass rates in per cent, grades with as many digits as their scale needs."""
    scale = record["scale"]
    if scale["passes"]:
        return f"{100.0 * value:.1f}"
    width = None if scale["low"] is None or scale["high"] is None else scale["high"] - scale["low"]
    return f"{value:.1f}" if width is not None and width >= 20.0 else f"{value:.2f}"


def _share_cell(proportion: Record | None) -> str:
    return DASH if proportion is None else f"{100.0 * proportion['value']:.0f}% of {proportion['n']:.0f}"


def _level_text(record: Record) -> str:
    return f"{100.0 * record['level']:g}%"


def _csv_rows(record: Record) -> Iterator[dict[str, Any]]:
    def figure_rows(entry: Record, names: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        counts = {name: entry.get(name) for name in ("answers", "labels")}
        for figure in ("judged", "corrected", "labels_alone"):
            if entry[figure] is not None:
                worth = {"worth": entry["worth"]} if figure == "corrected" else {}
                yield {**names, "figure": figure, **entry[figure], **counts, **worth}

    for name, entry in record["candidates"].items():
        yield from figure_rows(entry, {"candidate": name})
    for entry in record["differences"]:
        yield from figure_rows(entry, {"candidate": entry["first"], "versus": entry["second"]})
    for name, entry in record["gaps"].items():
        for figure in ("mean", "rogan_gladen"):
            if entry.get(figure) is not None:
                yield {"candidate": name, "figure": f"gap {figure}" if figure == "mean" else figure, **entry[figure]}
    for covariate, by_candidate in record.get("correlations", {}).items():
        for name, pair in by_candidate.items():
            for kind, entry in pair.items():
                if entry is not None:
                    for row in figure_rows(entry, {"candidate": name, "versus": covariate}):
                        yield row | {"figure": f"{kind} {row['figure']}"}
