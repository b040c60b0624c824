"""The figures of adaptive exams in a run's report: two estimates of each candidate's mean over the bank's items.

They follow from the waves in the run's journal, the bank in its folder, and the recorded scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from viva.data.bank_file import read_bank
from viva.engine.errors import JournalError
from viva.engine.journal_reader import History
from viva.reports.tables import DASH, Table, interval
from viva.scoring.adaptive_exam import LEAST_FIT, Exams, Means
from viva.scoring.exam_course import ExamCourse, ExamRule, Wave, subject_groups
from viva.scoring.intervals import normal_quantile
from viva.scoring.learned_exam import LEAST_LEARNERS, LearnedCourse, starting_exams

from .models import label_of_key
from .run_settings import BANK_FILE, ExamSettings

EXAM_STEP = "exam"  # the name of a step in the journal's table `control`
ENDS = {
    "half_width": "narrow enough",
    "above": "above or below",
    "decided": "decided",
    "all_items": "all items asked",
    "limit": "most items asked (-n)",
}
_UNENDED = ", so the rule has not ended this exam"
_PROLONGED = {None: _UNENDED, "limit": _UNENDED}


EXAM_HEADER = ["items", "no score", "model-based", "assumption-free", "bank", "ended"]
ESTIMATES = "Model-based: holds if the bank describes the model; assumption-free: holds for any model and bank"


@dataclass(slots=True)
class ExamSteps:
    """The recorded waves of a candidate's exam, and why it ended, None if it has not."""

    waves: list[Wave] = field(default_factory=list)
    end: str | None = None


def read_steps(history: History, positions: Mapping[str, int], labels: Sequence[str]) -> dict[str, ExamSteps]:
    """Return the steps of all exams of a run; `positions` are those of the items in the bank.

    Raises:
        JournalError: A step is damaged.
    """
    exams = {label: ExamSteps() for label in labels}
    for record in history.control():
        if record.get("do") != EXAM_STEP:
            continue
        try:
            for step in record["steps"]:
                exam = exams[step["candidate"]]
                if "end" in step:
                    exam.end = ENDS[step["end"]] and step["end"]
                else:
                    exam.waves.append(Wave.from_record(step, positions))
        except (KeyError, TypeError, ValueError) as error:
            raise JournalError(f"{history.path}: a step of an adaptive exam cannot be used: {error!r}") from None
    return exams


def count_steps(history: History) -> tuple[int, int]:
    """Return the numbers of items in all recorded waves of all exams, and of ended exams."""
    steps = list(_steps(history))
    return sum(len(step.get("items", ())) for step in steps), sum("end" in step for step in steps)


def _steps(history: History) -> Iterator[Mapping[str, Any]]:
    """Yield the steps of all exams as they are recorded."""
    for record in history.control():
        if record.get("do") == EXAM_STEP:
            yield from record["steps"]


def open_courses(
    bank: Path, settings: ExamSettings, labels: Sequence[str], subjects: Mapping[str, str] | None = None
) -> tuple[list[str], dict[str, ExamCourse]]:
    """Return the ids of the bank's items, and an exam without answers for each candidate.

    `subjects` has the subject of each item, over which draws are spread; without it, an exam only counts answers.

    Raises:
        DatasetError: The bank cannot be read.
    """
    parameters, ids, calibration, _ = read_bank(bank)
    rule = ExamRule.parse(settings.rule)
    limit = getattr(settings, "n", None) or len(ids)
    groups = None if subjects is None else subject_groups([subjects[name] for name in ids])
    first = ExamCourse(
        Exams(parameters, threshold=rule.threshold, groups=groups), rule, limit, settings.wave, calibration
    )
    return ids, {label: first.another() for label in labels}


def open_learned_courses(items: int, settings: ExamSettings, labels: Sequence[str]) -> dict[str, LearnedCourse]:
    """Return an exam without answers and without a bank for each candidate of a run that learns its bank."""
    rule = ExamRule.parse(settings.rule)
    limit = getattr(settings, "n", None) or items
    first = LearnedCourse(starting_exams(items, rule.threshold), rule, limit, settings.wave, len(labels))
    return {label: first.another() for label in labels}


class ExamResults:
    """The scores of a run's adaptive exams, in whatever order they come."""

    def __init__(self, manifest: Mapping[str, Any], labels: Sequence[str]) -> None:
        self._bank: dict[str, Any] = manifest["bank"]
        self._settings = ExamSettings.model_construct(**manifest["settings"])
        self._labels = list(labels)
        self._scores: dict[tuple[str, str], float | None] = {}
        self._known: dict[str, dict[str, Any]] | None = None  # the figures of ended exams
        self.folder: Path | None = None

    def add(self, key: str, score: float | None) -> None:
        """Add the score, 0–1, of an ended conversation; None without."""
        label = label_of_key(key, self._labels)
        self._scores[label, key.removeprefix(f"{label}/")] = score
        self._known = None

    def count(self, label: str) -> int:
        """Return the number of ended conversations of a candidate."""
        return sum(own == label for own, _ in self._scores)

    def figures(self) -> dict[str, dict[str, Any]]:
        """Return the figures of each candidate, in points, without a folder none; only complete waves count.

        Raises:
            JournalError: The recorded waves cannot be used.
        """
        if self.folder is None:
            return {}
        if self._known is not None:
            return self._known
        journal, bank = self.folder / "journal.sqlite", self.folder / BANK_FILE
        learned: Exams | None = None
        courses: Mapping[str, ExamCourse]
        with History(journal) as history:
            if self._settings.learns:
                ids, learned = self._read_learned(bank, history)
                courses = open_learned_courses(self._bank["items"], self._settings, self._labels)
            else:
                ids, courses = open_courses(bank, self._settings, self._labels)
            steps = read_steps(history, {name: position for position, name in enumerate(ids)}, self._labels)
        try:
            figures = {
                label: self._figures(label, course, steps[label], ids, learned) for label, course in courses.items()
            }
        except ValueError as error:
            raise JournalError(f"{journal}: {error}; restore it from a copy") from None
        if all(record["ended_by"] for record in figures.values()):
            self._known = figures
        return figures

    def _read_learned(self, bank: Path, history: History) -> tuple[list[str], Exams | None]:
        """Return the ids of the items, and an exam on the bank that this run has learned; None if it has not ended."""
        if not bank.exists():  # estimates do not depend on the order of items
            return list(dict.fromkeys(item for step in _steps(history) for item in step.get("items", ()))), None
        parameters, ids, _, _ = read_bank(bank)
        if len(ids) != self._bank["items"]:
            raise JournalError(f"{bank}: is not the bank that this run has learned; remove it and resume the run")
        return ids, Exams(parameters)

    def _figures(
        self, label: str, course: ExamCourse, steps: ExamSteps, ids: Sequence[str], learned: Exams | None
    ) -> dict[str, Any]:
        for wave in steps.waves:
            keys = [(label, ids[item]) for item in wave.items]
            if not all(key in self._scores for key in keys):
                break
            course.record(wave, [self._scores[key] for key in keys])
        if learned is not None and isinstance(course, LearnedCourse):
            course.adopt(learned.another())
        narrow, wide = course.model_based(), course.assumption_free()
        figures: dict[str, Any] = {"asked": course.length, "without_score": course.length - course.answered}
        figures |= {"waves": len(course.waves), "ended_by": steps.end}
        fit: dict[str, Any] = {"person_fit": None, "implausible": False}
        if not self._settings.learns:
            fit = {"person_fit": round(course.person_fit(), 6), "implausible": course.person_fit() < LEAST_FIT}
        model_based, free = (_record(means if course.answered else None) for means in (narrow, wide))
        # Of the interval before it is cut at the ends of the scale.
        error = course.spread()[1] / normal_quantile(0.975) if course.answered else None
        model_based["se"] = None if error is None or math.isnan(error) else round(100.0 * error, 6)
        figures |= {"model_based": model_based, "assumption_free": free, "disagree": course.is_contradicted()}
        return figures | fit

    def summary(self) -> dict[str, Any]:
        """Return the report's field about all exams: the bank, the rule, and the largest wave."""
        return {"bank": self._bank, "until": self._settings.rule, "wave": self._settings.wave}

    def remarks(self, report: Mapping[str, Any]) -> list[str]:
        """Return sentences that a reader must see before the figures."""
        remarks = []
        if self._settings.learns:
            remarks.append(self._limits_of_learning())
        elif not self._bank["calibrated"]:
            remarks.append(
                f"The bank {self._bank['name']} is not calibrated: nobody has measured how often its model-based "
                "intervals hold, so rely on the assumption-free ones."
            )
        for label, figures in _of_exams(report):
            if figures["disagree"]:
                model_based, free = figures["model_based"], figures["assumption_free"]
                remarks.append(
                    f"{label}: the two estimates disagree: the model-based {model_based['value']:.1f} is outside the "
                    f"assumption-free interval, {free['low']:.1f} to {free['high']:.1f}. The bank does not describe "
                    "this model; use the assumption-free estimate."
                )
            elif figures["implausible"] and figures["ended_by"] != "all_items":
                remarks.append(
                    f"{label}: its answers are implausible under the bank: person fit {figures['person_fit']:.1f} is "
                    f"below {LEAST_FIT:g}, as for few models that the bank describes. The model-based interval may be "
                    f"wrong{_PROLONGED.get(figures['ended_by'], '')}; use the assumption-free estimate."
                )
        return remarks

    def _limits_of_learning(self) -> str:
        if len(self._labels) < LEAST_LEARNERS:
            return (
                f"{len(self._labels)} candidates are too few to learn an item bank from; that takes {LEAST_LEARNERS}. "
                "So all items were sampled at random, and there is no model-based estimate."
            )
        return (
            "The item bank was learned from the answers of these candidates. Nothing shows how far it is off for them, "
            "so model-based values have no interval and end no exam."
        )

    def table(self, report: Mapping[str, Any]) -> Table:
        """Return the table of both estimates."""
        summary = report["adaptive"]
        header = ["candidate", *EXAM_HEADER]
        rows = [[label, *exam_cells(figures)] for label, figures in _of_exams(report)]
        bank = summary["bank"]
        items = "items of the dataset" if bank.get("learned") else f"items of the bank {bank['name']}"
        count = bank.get("subjects")  # none in runs of earlier versions
        spread = f" spread over {count} subjects," if count else ""
        title = (
            f"Adaptive exams: mean over the {bank['items']:,} {items},{spread} 0–100, with 95% intervals, until "
            f"{summary['until']}. {ESTIMATES}"
        )
        return (title, header, rows)


def exam_cells(figures: Mapping[str, Any]) -> list[str]:
    """Return an exam's figures as cells of a table, for `EXAM_HEADER`."""
    cells = [interval(figures[name]) for name in ("model_based", "assumption_free")]
    # That an interval contains the value is no evidence for the bank: it may contain all values.
    verdict = "contradicted" if figures["disagree"] or figures["implausible"] else "not contradicted"
    if figures["model_based"]["value"] is None:
        verdict = DASH
    ended = ENDS.get(figures["ended_by"] or "", "not yet")
    return [str(figures["asked"]), str(figures["without_score"]), *cells, verdict, ended]


def _of_exams(report: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(label, record["adaptive"]) for label, record in report["candidates"].items() if "adaptive" in record]


def _record(means: Means | None) -> dict[str, float | None]:
    if means is None:
        return dict.fromkeys(("value", "low", "high"))
    ends = {"value": means.values, "low": means.lows, "high": means.highs}
    return {name: None if math.isnan(end[0]) else round(100.0 * float(end[0]), 6) for name, end in ends.items()}
