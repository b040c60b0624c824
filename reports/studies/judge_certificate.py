"""Certificate of a judge from people's grades: its record, in sentences, tables and CSV."""

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
    """Answers and grades as samples by candidate; ``places`` are those of each sample's answers in the whole list."""

    answers: GradedAnswers
    grades: HumanGrades
    samples: dict[str, GradedSample]
    places: dict[str, list[int]]

    @property
    def scale(self) -> GradeRange:
        """The scale of scores and grades."""
        return GradeRange(self.answers.low, self.answers.high, self.answers.passes)


def match_grades(answers: GradedAnswers, grades: HumanGrades) -> MatchedGrades:
    """Samples of all candidates that have a scored answer; answers on one item are one cluster in all of them."""
    samples: dict[str, GradedSample] = {}
    places: dict[str, list[int]] = {}
    numbers: dict[Hashable, int] = {}
    for candidate in candidates_of(answers.answers):
        held = [
            place for place, one in enumerate(answers.answers) if one.candidate == candidate and one.score is not None
        ]
        if not held:
            continue
        chosen = [answers.answers[place] for place in held]
        samples[candidate] = GradedSample.from_arrays(
            np.array([one.score for one in chosen], dtype=np.float64),
            np.array([grades.grades.get(place, math.nan) for place in held]),
            number_names([one.cluster for one in chosen], numbers),
            np.array([grades.probabilities.get(place, 1.0) for place in held]),
        )
        places[candidate] = held
    return MatchedGrades(answers, grades, samples, places)


def certificate_record(
    matched: MatchedGrades,
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
        "scale": {"low": round_figure(answers.low), "high": round_figure(answers.high), "passes": answers.passes},
        "answers": sum(len(sample.scores) for sample in matched.samples.values()),
        "labels": len(grades.grades),
        "unscored": answers.unscored,
        "waiting": grades.waiting,
        "labels_on_unscored": grades.on_unscored,
        "probabilities": bool(grades.probabilities),
        "candidates": {name: _plain(one) for name, one in found.candidates.items()},
        "differences": [{"first": first, "second": second, **_plain(one)}
                        for (first, second), one in found.differences.items()],
        "gaps": {name: _error_record(one) for name, one in found.gaps.items()},
    }  # fmt: skip
    if correlate:
        record["correlations"] = {name: _correlation_records(name, matched, level) for name in correlate}
    if calibration is not None:
        record["drift"] = _drift_record(matched, calibration, level)
    return record


def choose_next_answers(matched: MatchedGrades, count: int, seed: int) -> tuple[list[int], dict[int, float]]:
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
    before = np.concatenate([_prior_probabilities(matched, candidate) for candidate in samples])
    spreads = np.concatenate([expected_spread(sample) / len(sample.scores) for sample in samples.values()])
    drawn = draw_answers(spreads, graded, count, seed=seed)
    both = combine_probabilities(before, drawn.probabilities)
    chosen = [place for place, now in zip(places, drawn.chosen.tolist(), strict=True) if now]
    return chosen, dict(zip(places, both.tolist(), strict=True))


def _prior_probabilities(matched: MatchedGrades, candidate: str) -> Floats:
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


def _correlation_records(name: str, matched: MatchedGrades, level: float) -> dict[str, Any]:
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
        pair = {kind: corrected_correlation(known, sample, ranks=ranks, level=level)
                for kind, ranks in (("pearson", False), ("spearman", True))}  # fmt: skip
        found[candidate] = {kind: _plain(one) for kind, one in pair.items()}
    return found


def _drift_record(
    matched: MatchedGrades, calibration: Sequence[tuple[float, float]], level: float
) -> dict[str, Any] | None:
    scale, grades = matched.scale, matched.grades
    width = scale.high - scale.low
    if not math.isfinite(width):
        raise ConfigurationError("--calibration: the ends of the scale are not known; give --scale LOW:HIGH")
    order = list(grades.grades)
    weights = np.array([1.0 / grades.probabilities.get(place, 1.0) for place in order])
    kept = even_out(weights)
    gaps = [
        grades.grades[place] - float(matched.answers.answers[place].score or 0.0)
        for place, keep in zip(order, kept.tolist(), strict=True)
        if keep
    ]
    known = [grade - score for score, grade in calibration]
    found = measure_drift(known, gaps, low=-width, high=width, level=level)
    if found is None:
        return None
    return {
        "labels": found.labels,
        "left_out": len(order) - found.labels,
        "calibration_labels": found.calibrated,
        "found_at": found.found_at,
        "evidence": _plain(found.evidence),
        "p": _plain(found.p),
        "gap": _plain(found.gap),
        "calibration_gap": _plain(found.calibration),
    }


def _error_record(one: JudgeError) -> dict[str, Any]:
    record: dict[str, Any] = _plain(one)
    errors, rate = record.pop("errors"), record.pop("rogan_gladen")
    return record if errors is None else record | errors | {"rogan_gladen": rate}


def _plain(figure: Any) -> Any:
    """Return a figure as JSON data: six decimals, a dataclass by its fields, a share of nothing as None."""
    if isinstance(figure, float):
        return round_figure(float(figure))
    if isinstance(figure, tuple):
        return [_plain(one) for one in figure]
    if isinstance(figure, Proportion) and figure.n == 0.0:
        return None
    if is_dataclass(figure):
        return {one.name: _plain(getattr(figure, one.name)) for one in fields(figure)}
    return figure


Record = Mapping[str, Any]
CERTIFICATE_COLUMNS = ("candidate", "versus", "figure", "value", "low", "high", "answers", "labels", "worth")
_TEXT_COLUMNS = ("candidate", "versus")
_TRIED = 10  # labels, in ``benches/certified.py``


def certificate_sentences(record: Record) -> list[str]:
    """What was found, the most important first."""
    said = [_candidate_sentence(name, one, record) for name, one in list(record["candidates"].items())[:4]]
    told = [one for one in record["differences"] if _sign_of_difference(one["corrected"])]
    for one in record["differences"][:6]:
        was, now = _sign_of_difference(one["judged"]), _sign_of_difference(one["corrected"])
        if one["corrected"] is not None and was != now:
            said.append(
                f"By the judge alone {_difference_verdict(one, was)}; corrected, {_difference_verdict(one, now)}."
            )
    if len(record["differences"]) > 1 and told:
        said.append(f"Corrected, {len(told)} of {len(record['differences'])} pairs are told apart.")
    found = record.get("drift")
    if found is not None:
        if found["found_at"] is not None:
            said.append(f"The judge has drifted from its calibration: found after {found['found_at']} labels.")
        else:
            tested = f"{found['labels']} labels (p at any time {found['p']:.2g})"
            said.append(f"No drift from the calibration is found in {tested}.")
    return said


def certificate_notes(record: Record) -> list[str]:
    """What a reader must know of the figures."""
    said = []
    if record["unscored"]:
        said.append(f"{record['unscored']} answers that the judge left unscored are in no figure")
    if record["labels_on_unscored"]:
        said.append(f"{record['labels_on_unscored']} labels are of answers that the judge left unscored, and not used")
    if record["waiting"]:
        said.append(
            f"{record['waiting']} lines have no grade; the figures hold if which ones has nothing to do with what the "
            "grades would be"
        )
    for name, one in record["candidates"].items():
        if one["corrected"] is None:
            said.append(f"{name}: {one['labels']} labels are too few to correct its figure; grade at least 3 items")
        elif one["labels"] < _TRIED:
            tried = f"intervals were tried out with {_TRIED} labels and more"
            said.append(f"{name}: {tried}; this rests on {one['labels']}")
    if record["scale"]["low"] is None or record["scale"]["high"] is None:
        said.append(
            "the ends of the scale are not known, so intervals do not allow for rare grades that no label shows and "
            "that the judge does not see; give --scale LOW:HIGH"
        )
    if record.get("correlations"):
        said.append("intervals of correlations do not allow for rare grades that no label shows")
    if not record["probabilities"]:
        said.append("labels are taken for an even random draw of each candidate's answers; else give 'probability'")
    return said


def certificate_tables(record: Record) -> list[Table]:
    """The tables, in the order of the questions that they answer."""
    found: list[Table] = [_candidate_table(record), _difference_table(record), _error_table(record)]
    if record["scale"]["passes"]:
        found += [_confusion_table(record)]
    for name, by_candidate in record.get("correlations", {}).items():
        found.append(_correlation_table(name, by_candidate))
    if record.get("drift") is not None:
        found.append(_drift_table(record["drift"]))
    return found


def write_certificate_csv(record: Record, file: Path) -> None:
    """Every figure in a row of ``CERTIFICATE_COLUMNS``.

    :raises ConfigurationError: the file cannot be written.
    """
    write_rows(
        (dict.fromkeys(CERTIFICATE_COLUMNS, "") | row for row in _csv_rows(record)),
        CERTIFICATE_COLUMNS,
        _TEXT_COLUMNS,
        file,
    )


def _candidate_sentence(name: str, one: Record, record: Record) -> str:
    what = "pass rate" if record["scale"]["passes"] else "mean grade"
    judged = _format_grade(record, one["judged"]["value"])
    if one["corrected"] is None:
        return f"{name}: {what} {judged} as judged; too few labels to correct it."
    value = _format_grade(record, one["corrected"]["value"])
    if one["corrected"]["low"] is None:
        return (
            f"{name}: people's {what} is {value} by {one['labels']} labels that show no spread, from which no interval "
            f"follows where the ends of the scale are not known; the judge says {judged}."
        )
    low, high = (_format_grade(record, one["corrected"][end]) for end in ("low", "high"))
    inside = one["corrected"]["low"] <= one["judged"]["value"] <= one["corrected"]["high"]
    beside = "which is within it" if inside else "which is outside"
    return (
        f"{name}: people's {what} would be {value} ({low} to {high}); the judge says {judged}, {beside}. "
        f"These {one['labels']} labels tell as much as {one['worth']:.0f} labels alone."
    )


def _sign_of_difference(one: Record | None) -> int:
    """1 or -1 where a difference's interval excludes 0, else 0."""
    if one is None or one["low"] is None or one["high"] is None:
        return 0
    return 1 if one["low"] > 0.0 else -1 if one["high"] < 0.0 else 0


def _difference_verdict(one: Record, sign: int) -> str:
    if sign == 0:
        return f"{one['first']} and {one['second']} are not told apart"
    better, worse = (one["first"], one["second"]) if sign > 0 else (one["second"], one["first"])
    return f"{better} is above {worse}"


def _candidate_table(record: Record) -> Table:
    level = _level_text(record)
    header = ["candidate", record["graded"], "labels", "judged", level, "corrected", level, "worth"]
    rows = [[name, str(one["answers"]), str(one["labels"]), *_figure_cells(one, partial(_format_grade, record))]
            for name, one in record["candidates"].items()]  # fmt: skip
    title = "Pass rates" if record["scale"]["passes"] else "Mean grades"
    return f"{title}, as judged and corrected by {record['labels']} human grades", header, rows


def _difference_table(record: Record) -> Table:
    header = ["first – second", "judged", _level_text(record), "corrected", _level_text(record), "worth"]
    rows = [[f"{one['first']} – {one['second']}", *_figure_cells(one, partial(_format_grade, record))]
            for one in record["differences"]]  # fmt: skip
    title = "Differences" if len(rows) < 2 else f"Differences; intervals hold for all {len(rows)} pairs together"
    return title, header, rows


def _error_table(record: Record) -> Table:
    header = ["candidate", "judge – people", _level_text(record), "size", "r"]
    show = partial(_format_grade, record)
    rows = [
        [name, *_estimate_cells(one["mean"], show), show(one["absolute"]), DASH if one["r"] is None else _two(one["r"])]
        for name, one in record["gaps"].items()
    ]
    return "The judge's gap on the graded", header, rows


def _confusion_table(record: Record) -> Table:
    header = ["candidate", "sensitivity", "specificity", "good if passed", "good if failed", "Rogan–Gladen"]
    names, show = ("sensitivity", "specificity", "passed", "failed"), partial(_format_grade, record)
    rows = [
        [name, *(_share_cell(one[field]) for field in names), *_estimate_cells(one["rogan_gladen"], show)]
        for name, one in record["gaps"].items()
    ]
    title = "The judge's errors, and the rate by sensitivity and specificity alone"
    return title, [*header, _level_text(record)], rows


def _correlation_table(name: str, by_candidate: Mapping[str, Any]) -> Table:
    rows = [
        [candidate, label, *([DASH] * 5 if pair[kind] is None else _figure_cells(pair[kind], _two))]
        for candidate, pair in by_candidate.items()
        for kind, label in (("pearson", "Pearson r"), ("spearman", "Spearman ρ"))
    ]
    return f"Correlation of grades with {name}", ["candidate", "", "judged", "95%", "corrected", "95%", "worth"], rows


def _drift_table(found: Record) -> Table:
    gap = found["gap"]
    row = [
        str(found["labels"]),
        f"{found['calibration_gap']:.3g}",
        f"{gap['value']:.3g}",
        f"{gap['low']:.3g} to {gap['high']:.3g}",
        f"{found['evidence']:.3g}",
        f"{found['p']:.2g}",
        DASH if found["found_at"] is None else str(found["found_at"]),
    ]
    header = ["labels", "gap before", "gap now", "at any time", "evidence", "p", "found at"]
    return f"Drift from {found['calibration_labels']} labels of the calibration (people – judge)", header, [row]


def _figure_cells(one: Record, show: Callable[[float], str]) -> list[str]:
    """Return a figure as judged and as corrected, with intervals, and how many labels alone it is worth."""
    worth = DASH if one["worth"] is None else f"{one['worth']:.0f}"
    return [*_estimate_cells(one["judged"], show), *_estimate_cells(one["corrected"], show), worth]


def _estimate_cells(one: Record | None, show: Callable[[float], str]) -> list[str]:
    if one is None:
        return [DASH, DASH]
    return [show(one["value"]), " to ".join(DASH if one[end] is None else show(one[end]) for end in ("low", "high"))]


def _two(value: float) -> str:
    return f"{value:.2f}"


def _format_grade(record: Record, value: float) -> str:
    """Pass rates in percent; grades with as many digits as their scale asks for."""
    scale = record["scale"]
    if scale["passes"]:
        return f"{100.0 * value:.1f}"
    width = None if scale["low"] is None or scale["high"] is None else scale["high"] - scale["low"]
    return f"{value:.1f}" if width is not None and width >= 20.0 else f"{value:.2f}"


def _share_cell(one: Record | None) -> str:
    return DASH if one is None else f"{100.0 * one['value']:.0f}% of {one['n']:.0f}"


def _level_text(record: Record) -> str:
    return f"{100.0 * record['level']:g}%"


def _csv_rows(record: Record) -> Iterator[dict[str, Any]]:
    def of(one: Record, names: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        counts = {name: one.get(name) for name in ("answers", "labels")}
        for figure in ("judged", "corrected", "labels_alone"):
            if one[figure] is not None:
                worth = {"worth": one["worth"]} if figure == "corrected" else {}
                yield {**names, "figure": figure, **one[figure], **counts, **worth}

    for name, one in record["candidates"].items():
        yield from of(one, {"candidate": name})
    for one in record["differences"]:
        yield from of(one, {"candidate": one["first"], "versus": one["second"]})
    for name, one in record["gaps"].items():
        for figure in ("mean", "rogan_gladen"):
            if one.get(figure) is not None:
                yield {"candidate": name, "figure": f"gap {figure}" if figure == "mean" else figure, **one[figure]}
    for known, by_candidate in record.get("correlations", {}).items():
        for name, pair in by_candidate.items():
            for kind, one in pair.items():
                if one is not None:
                    for row in of(one, {"candidate": name, "versus": known}):
                        yield row | {"figure": f"{kind} {row['figure']}"}
