"""What an export is made of: the cells of a run or a sweep, their figures, and their conversations one at a time.

A cell is one compared model in one run. Its figures are those of the run's own report; its criteria are the scores that
viewers list, with means over conversations. What never belongs here: file formats, and what one system's figures mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from viva.engine.errors import ConfigurationError
from viva.engine.folder import RunFolder
from viva.engine.history import History
from viva.orchestration.launch import recorded_settings
from viva.reports.rows import Row, record_rows
from viva.scenarios.contract import Role, judge_role, many_role
from viva.scenarios.measures import SCORE, Ranges, measured_ends
from viva.scenarios.models import label_of
from viva.scenarios.registry import AnyScenario
from viva.scenarios.shown import ResultSummary
from viva.scenarios.study.cells import RunReading, StudyCell
from viva.scenarios.study.reading import read_results
from viva.scoring.clusters import ClusteredMean, clustered_mean
from viva.scoring.intervals import Estimate
from viva.study.cells import find_cells

CONFIDENCE = 0.95  # of the intervals that reports have
# Parts of a candidate's report that count what was spent or went wrong: nobody's score.
_NO_SCORES = frozenset(
    ["usage", "irregular", "failures", "failure_reasons", "discarded_questions", "stopped", "ends", "stop_reasons"]
)
_FIGURE = ("measure", "value", "se", "low", "high", "n")
PERCENT = (0.0, 100.0)


@dataclass(slots=True)
class Criterion:
    """One score over a cell's conversations, 0–100 or on its system's own scale.

    ``mean`` has the standard error over tasks; None where no conversation has this score. ``unscored`` counts the
    conversations that were held and have none. ``interval`` is that of 95%, None where none can be told.
    """

    name: str
    mean: ClusteredMean | None
    unscored: int
    interval: Estimate | None


@dataclass(slots=True)
class ExportCell:
    """One compared model in one run.

    ``tasks`` are the ids of those that have ended; ``figures`` are the rows of the run's own report about it
    (``reports.rows``), by measure; ``criteria`` the scores of its conversations; ``planned`` and ``ended`` count
    conversations, ``failed`` is among the ended; ``began`` and ``finished`` are Unix times of the first and the last
    answer, None where there is none. ``ranges`` has the ends of criteria, as far as they are known.
    """

    name: str
    run: RunFolder
    which: AnyScenario
    settings: Any
    label: str
    model: str
    dataset: str
    seed: int
    compared: str
    judge: str | None
    state: str
    planned: int
    stopped_at: int | None
    ended: int = 0
    failed: int = 0
    tasks: list[str] = field(default_factory=list)
    figures: dict[str, Row] = field(default_factory=dict)
    criteria: dict[str, Criterion] = field(default_factory=dict)
    usage: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    began: float | None = None
    finished: float | None = None
    ranges: Ranges = field(default_factory=dict)

    @property
    def manifest(self) -> dict[str, Any]:
        """The run's manifest."""
        return self.run.manifest

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles that are played, in the order in which reports name them."""
        roles: tuple[Role, ...] = self.which.roles_of(self.settings)
        return roles

    def model_of(self, role: str) -> str | None:
        """The name of the model that plays a role in this cell; None where nobody does."""
        if role == self.compared:
            return self.model
        named = self.manifest["models"].get(role)
        return named if isinstance(named, str) else None

    def scores_of(self, summary: ResultSummary) -> dict[str, float | None]:
        """A conversation's scores by criterion, None where it has none of a criterion that others have."""
        told = summary_scores(summary)
        return {name: told.get(name) for name in self.criteria}


def summary_scores(summary: ResultSummary) -> dict[str, float | None]:
    """The scores in a conversation's summary: ``score``, and its aspects by name."""
    found: dict[str, float | None] = {} if summary.score is None and summary.aspects else {SCORE: summary.score}
    return found | summary.aspects


def open_cells(folder: Path) -> list[ExportCell]:
    """The cells of a run or a sweep that have ended a conversation, with their figures. No model is called.

    :raises ConfigurationError: the folder is neither, or nothing has ended there yet.
    :raises JournalError: a journal is damaged.
    """
    runs: dict[Path, list[StudyCell]] = {}
    for one in find_cells([folder]):
        if one.run is not None and one.run.begun:
            runs.setdefault(one.run.path, []).append(one)
    cells = [cell for several in runs.values() for cell in _of_run(several) if cell.ended]
    if not cells:
        raise ConfigurationError(f"{folder}: no conversation has ended here, so there is nothing to export")
    return cells


def _of_run(several: Sequence[StudyCell]) -> Iterator[ExportCell]:
    run = several[0].run
    assert run is not None
    which, settings = recorded_settings(run)
    readings = [RunReading(one) for one in several]
    read_results(which, readings, which.scoring())
    roles = which.roles_of(settings)
    compared, judge = many_role(roles).name, judge_role(roles)
    for reading in readings:
        cell, result = reading.cell, reading.result or {}
        tasks, criteria = _criteria(run, which, settings, cell)
        scored = {name: value for name, value in result.items() if name not in _NO_SCORES}
        yield ExportCell(
            cell.name,
            run,
            which,
            settings,
            cell.candidate,
            cell.model,
            cell.dataset,
            cell.seed,
            compared,
            None if judge is None or judge.many else judge.name,
            reading.state,
            cell.planned or 0,
            cell.stopped_at,
            reading.ended,
            reading.failed,
            tasks,
            {row["measure"]: {name: row[name] for name in _FIGURE} for row in record_rows({}, "", scored)},
            criteria,
            reading.usage,
            *_times(run),
            which.score_ranges(settings),
        )


def _criteria(
    run: RunFolder, which: AnyScenario, settings: Any, cell: StudyCell
) -> tuple[list[str], dict[str, Criterion]]:
    """The tasks of a cell's ended conversations, each once, and the criteria over them."""
    summary_of, ranges = which.summary_of(settings), which.score_ranges(settings)
    labels = list(run.manifest["models"][cell.compared])
    values: dict[str, tuple[list[float], list[str]]] = {}
    tasks: dict[str, None] = {}
    held = 0
    with History(run.journal) as history:
        for one in history.ended():
            if cell.stopped_at is not None and one.number >= cell.stopped_at:
                break
            if label_of(one.key, labels) != cell.candidate:
                continue
            task = task_of(one.key, cell.candidate)[0]
            tasks[task] = None
            held += not one.failed
            told = {} if one.failed else summary_scores(summary_of(one.result))
            cluster = "" if one.failed else which.cluster_of(one.result)
            for name, value in told.items():
                scores, clusters = values.setdefault(name, ([], []))
                if value is not None:
                    scores.append(value)
                    clusters.append(f"cluster {cluster}" if cluster else task)
    criteria = {}
    for name, (scores, clusters) in values.items():
        mean = clustered_mean(scores, clusters)
        ends = None if mean is None else measured_ends(mean, scores, ranges.get(name))
        criteria[name] = Criterion(name, mean, held - len(scores), ends)
    return list(tasks), criteria


def task_of(key: str, label: str) -> tuple[str, int]:
    """Task and repeat (from 1) in the key of a conversation with the compared model ``label``."""
    task = key.removeprefix(f"{label}/")
    name, mark, number = task.rpartition("#")
    return (name, int(number)) if mark and number.isdecimal() else (task, 1)


def _times(run: RunFolder) -> tuple[float | None, float | None]:
    """When the first conversation of a run got its first answer, and the last one its last."""
    with History(run.journal) as history:
        first = last = None
        for number in history.numbers():
            first = number if first is None else first
            last = number
        began = history.calls(first) if first is not None else []
        ended = history.calls(last) if last is not None else []
    return (began[0].at if began else None), (ended[-1].at if ended else None)
