"""The figures of adaptive exams in a run's report: two estimates of each candidate's mean over the bank's items.

They follow from the waves in the run's journal, the bank in its folder, and the recorded scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from viva.data.bank_file import read_bank
from viva.engine.errors import JournalError
from viva.engine.journal_reader import History
from viva.reports.tables import Table, interval
from viva.scoring.adaptive_exam import LEAST_FIT, Exams, Means
from viva.scoring.exam_course import ExamCourse, ExamRule, Wave, subject_groups
from viva.scoring.intervals import normal_quantile

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
    steps = [step for record in history.control() if record.get("do") == EXAM_STEP for step in record["steps"]]
    return sum(len(step.get("items", ())) for step in steps), sum("end" in step for step in steps)


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
        ids, courses = open_courses(self.folder / BANK_FILE, self._settings, self._labels)
        journal = self.folder / "journal.sqlite"
        with History(journal) as history:
            steps = read_steps(history, {name: position for position, name in enumerate(ids)}, self._labels)
        try:
            figures = {label: self._figures(label, course, steps[label], ids) for label, course in courses.items()}
        except ValueError as error:
            raise JournalError(f"{journal}: {error}; restore it from a copy") from None
        if all(record["ended_by"] for record in figures.values()):
            self._known = figures
        return figures

    def _figures(self, label: str, course: ExamCourse, steps: ExamSteps, ids: Sequence[str]) -> dict[str, Any]:
        for wave in steps.waves:
            keys = [(label, ids[item]) for item in wave.items]
            if not all(key in self._scores for key in keys):
                break
            course.record(wave, [self._scores[key] for key in keys])
        narrow, wide = course.model_based(), course.assumption_free()
        figures: dict[str, Any] = {"asked": course.length, "without_score": course.length - course.answered}
        figures |= {"waves": len(course.waves), "ended_by": steps.end}
        fit = {"person_fit": round(course.person_fit(), 6), "implausible": course.person_fit() < LEAST_FIT}
        model_based, free = (_record(means if course.answered else None) for means in (narrow, wide))
        # Of the interval before it is cut at the ends of the scale.
        error = course.spread()[1] / normal_quantile(0.975) if course.answered else None
        model_based["se"] = None if error is None else round(100.0 * error, 6)
        figures |= {"model_based": model_based, "assumption_free": free, "disagree": course.is_contradicted()}
        return figures | fit

    def summary(self) -> dict[str, Any]:
        """Return the report's field about all exams: the bank, the rule, and the largest wave."""
        return {"bank": self._bank, "until": self._settings.rule, "wave": self._settings.wave}

    def remarks(self, report: Mapping[str, Any]) -> list[str]:
        """Return sentences that a reader must see before the figures."""
        remarks = []
        if not self._bank["calibrated"]:
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

    def table(self, report: Mapping[str, Any]) -> Table:
        """Return the table of both estimates."""
        summary = report["adaptive"]
        header = ["candidate", "items", "no score", "model-based", "assumption-free", "bank", "ended"]
        rows = []
        for label, figures in _of_exams(report):
            cells = [interval(figures[name]) for name in ("model_based", "assumption_free")]
            # That an interval contains the value is no evidence for the bank: it may contain all values.
            verdict = "contradicted" if figures["disagree"] or figures["implausible"] else "not contradicted"
            ended = ENDS.get(figures["ended_by"] or "", "not yet")
            rows.append([label, str(figures["asked"]), str(figures["without_score"]), *cells, verdict, ended])
        count = summary["bank"].get("subjects")  # none in runs of earlier versions
        spread = f" spread over {count} subjects," if count else ""
        title = (
            f"Adaptive exams: mean over the {summary['bank']['items']:,} items of the bank {summary['bank']['name']},"
            f"{spread} 0–100, with 95% intervals, until {summary['until']}. Model-based: holds if the bank describes "
            "the model; assumption-free: holds for any model and bank"
        )
        return (title, header, rows)


def _of_exams(report: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(label, record["adaptive"]) for label, record in report["candidates"].items() if "adaptive" in record]


def _record(means: Means | None) -> dict[str, float | None]:
    if means is None:
        return dict.fromkeys(("value", "low", "high"))
    ends = {"value": means.values, "low": means.lows, "high": means.highs}
    return {name: round(100.0 * float(numbers[0]), 6) for name, numbers in ends.items()}
