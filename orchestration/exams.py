"""Adaptive exams in a run: waves of items, chosen for each candidate from its earlier answers.

An adaptive run has the conversations of a full run, with the same numbers, keys and seeds, and runs only those that are
chosen. A candidate's next wave is drawn when all conversations of its earlier waves have ended, from their recorded
results and the seed alone, so concurrency and interruptions do not change the choice. If a choice depends on all
candidates (the rule `decided`, and a bank that they teach), it waits for the waves of all. Each step is a row in the
journal's table `control`, queued before the wave's conversations begin: a resumed run repeats it from there, even if a
failed conversation has a score by then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from viva.data.bank_file import read_bank, write_learned_bank
from viva.engine import seeds
from viva.engine.backends.base import Backend
from viva.engine.errors import ConfigurationError, JournalError
from viva.engine.events import ConversationFailed, ConversationFinished, ConversationReopened, Event
from viva.engine.journal import Journal
from viva.engine.journal_reader import History
from viva.engine.runner import Plan, Runner
from viva.scenarios.contract import Prepared, SupportsExams
from viva.scenarios.exam_report import EXAM_STEP, open_courses, open_learned_courses, read_steps
from viva.scenarios.registry import AnyScenario
from viva.scenarios.run_settings import BANK_FILE, LEARN, ExamSettings
from viva.scoring.adaptive_exam import LEAST_ITEMS
from viva.scoring.exam_course import ExamCourse, ExamRule, Wave, separated, subject_groups
from viva.scoring.item_bank import learn_bank
from viva.scoring.learned_exam import LEAST_LEARNERS, BankLearner, LearnedCourse, answers_of, bounds_apart

if TYPE_CHECKING:
    from .prepared_run import PreparedRun


def exam_record(scenario: AnyScenario, settings: Any, prepared: Prepared[Any], recorded: Path | None) -> dict[str, Any]:
    """Return the manifest's field `bank` of an adaptive run; no field if the run is not adaptive.

    `recorded` is the bank in the folder of a recorded run; None for a new run, whose settings name its bank.

    Raises:
        ConfigurationError: The bank cannot be read or is not of this dataset.
    """
    if getattr(settings, "adaptive", None) is None:
        return {}
    if not isinstance(scenario, SupportsExams) or not isinstance(settings, ExamSettings):
        raise ConfigurationError(f"adaptive: {scenario.name} has no adaptive exams")
    assert settings.adaptive is not None
    if settings.learns:
        return {"bank": _record_of_learning(prepared)}
    path = recorded or Path(settings.adaptive)
    _, ids, calibration, digest = read_bank(path)
    dataset = prepared.records["dataset"]
    if digest is not None and digest != dataset["digest"]:
        raise ConfigurationError(
            f"adaptive: {path} is a bank of another dataset: of one with the digest {digest}, and that of "
            f"{dataset['name']} is {dataset['digest']}; fit a bank of {dataset['name']} (viva bank fit)"
        )
    unknown = {*ids}.difference(task.id for task in prepared.tasks)
    if unknown:
        raise ConfigurationError(
            f"adaptive: {len(unknown):,} of the {len(ids):,} items of {path} are not in {dataset['name']}, such as "
            f"'{min(unknown)[:60]}'; use a bank of this dataset"
        )
    rest = len(prepared.tasks) - len(ids)
    if rest:
        prepared.notes.append(
            f"{rest:,} of the {len(prepared.tasks):,} items of {dataset['name']} are not in the bank and are never "
            f"asked: all figures are about the bank's {len(ids):,} items"
        )
    file_digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    record = {"name": Path(settings.adaptive).name, "digest": file_digest, "items": len(ids)}
    subjects = item_subjects(prepared)
    groups = subject_groups([subjects[name] for name in ids])
    spread = {} if groups is None else {"subjects": len(set(groups))}
    return {"bank": record | {"calibrated": bool(calibration.counts)} | spread}


def item_subjects(prepared: Prepared[Any]) -> dict[str, str]:
    """Return the subject of each item by its id; "" without."""
    return {task.id: str(task.to_record().get("subject", "")) for task in prepared.tasks}


def open_exam(prepared: PreparedRun) -> tuple[list[str], ExamCourse]:
    """Return the ids of the bank's items and the exam of one candidate, without answers, of a run that has not begun.

    Raises:
        DatasetError: The bank cannot be read.
    """
    settings = prepared.settings
    assert isinstance(settings, ExamSettings)
    assert settings.adaptive is not None
    ids, courses = open_courses(Path(settings.adaptive), settings, [""], item_subjects(prepared.opened))
    return ids, courses[""]


def _record_of_learning(prepared: Prepared[Any]) -> dict[str, Any]:
    items, name = len(prepared.tasks), prepared.records["dataset"]["name"]
    if items < LEAST_ITEMS:
        raise ConfigurationError(
            f"adaptive: {name} has {items} items, and an adaptive exam needs at least {LEAST_ITEMS}; remove adaptive"
        )
    return {"name": LEARN, "items": items, "calibrated": False, "learned": True}


@dataclass(slots=True)
class _Candidate:
    """The exam of one candidate; `open` is the wave whose conversations have not all ended or been counted yet."""

    label: str
    course: ExamCourse
    open: Wave | None = None
    end: str | None = None
    later: list[Wave] = field(default_factory=list)  # recorded waves that follow `open`

    def restart(self) -> None:
        """Count all waves again."""
        begun = [] if self.open is None else [self.open]
        self.later, self.open = [*self.course.waves, *begun, *self.later], None
        self.course = self.course.another()


class ExamFeed:
    """Chooses the conversations of an adaptive run; `Runner.run` awaits the instance as its feed."""

    def __init__(self, prepared: PreparedRun, folder: Path, backends: dict[str, Backend], journal: Journal) -> None:
        settings, scenario = prepared.settings, prepared.scenario
        assert isinstance(settings, ExamSettings)
        assert isinstance(scenario, SupportsExams)
        self._prepared, self._settings, self._journal = prepared, settings, journal
        self._backends = backends
        self._score: Callable[[Any], float | None] = scenario.exam_score(settings)
        self._rule, labels = ExamRule.parse(settings.rule), [*prepared.lineups]
        subjects = item_subjects(prepared.opened)
        tasks = {task.id: position for position, task in enumerate(prepared.opened.tasks)}
        self._bank, self._learner = folder / BANK_FILE, None
        if settings.learns:
            self._ids = list(tasks)
            courses: Mapping[str, ExamCourse] = open_learned_courses(len(tasks), settings, labels)
            groups = subject_groups([subjects[name] for name in self._ids])
            self._learner = BankLearner(len(tasks), self._rule.threshold, groups)
        else:
            self._ids, courses = open_courses(self._bank, settings, labels, subjects)
        self._candidates = [_Candidate(label, course) for label, course in courses.items()]
        self._in_step = self._rule.decided or settings.learns
        self._tasks = [tasks[name] for name in self._ids]
        self._scores: dict[int, float | None] = {}  # of ended conversations, by number
        self._changed = anyio.Event()
        self._reopened = False  # a failed conversation goes on, so its wave has to be counted again

    def listen(self, event: Event) -> None:
        """Note the score of an ended conversation."""
        match event:
            case ConversationFinished():
                self._scores[event.number] = self._score(event.result)
            case ConversationFailed():
                self._scores[event.number] = None
            case ConversationReopened():
                self._scores.pop(event.number, None)
                self._reopened = True
            case _:
                return
        self._changed.set()

    def restore(self, history: History) -> None:
        """Read the steps that the journal has.

        Raises:
            JournalError: A step is damaged, so the run cannot go on as it began.
        """
        positions = {name: position for position, name in enumerate(self._ids)}
        steps = read_steps(history, positions, [candidate.label for candidate in self._candidates])
        for candidate in self._candidates:
            candidate.later, candidate.end = steps[candidate.label].waves, steps[candidate.label].end

    async def __call__(self, runner: Runner) -> None:
        """Feed the runner until all exams have ended."""
        for candidate in self._candidates:
            for wave in candidate.later:
                self._begin(runner, candidate, wave)
        while True:
            self._changed = anyio.Event()
            if self._reopened:
                self._reopened = False
                for candidate in self._candidates:
                    candidate.restart()
                if self._learner is not None:
                    self._learner.forget()
            try:
                for candidate in self._candidates:
                    self._close_waves(candidate)
            except ValueError as error:
                raise JournalError(f"{self._journal.path}: candidate {candidate.label}: {error}") from None
            ready = [candidate for candidate in self._candidates if not candidate.end and candidate.open is None]
            going = [candidate for candidate in self._candidates if not candidate.end]
            if not going:
                if all(candidate.open is None for candidate in self._candidates):
                    self._write_bank()
                    return
            elif len(ready) == len(going) if self._in_step else ready:
                await self._journal.flush()  # what a choice is made from must be recorded before it
                if not self._reopened:
                    self._step(runner, ready)
                continue
            await self._changed.wait()

    def _close_waves(self, candidate: _Candidate) -> None:
        """Count the waves whose conversations have all ended, in order."""
        while True:
            if candidate.open is None and candidate.later:
                candidate.open = candidate.later.pop(0)
            if candidate.open is None:
                return
            numbers = [self._number(candidate, item) for item in candidate.open.items]
            if not all(number in self._scores for number in numbers):
                return
            candidate.course.record(candidate.open, [self._scores[number] for number in numbers])
            candidate.open = None

    def _step(self, runner: Runner, ready: Sequence[_Candidate]) -> None:
        """Choose the next wave of each of these candidates, or end its exam, and record all of it at once."""
        courses = [candidate.course for candidate in self._candidates]
        if self._learner is not None:
            self._learner.teach(_learned(courses))
        apart: list[bool] = []
        if self._rule.decided:
            apart = separated(courses) if self._learner is None else bounds_apart(_learned(courses))
        record: list[dict[str, Any]] = []
        for candidate in ready:
            candidate.end = candidate.course.end()
            if self._rule.decided and apart[self._candidates.index(candidate)]:
                candidate.end = "decided"
            if candidate.end is None:
                candidate.open = candidate.course.draw(self._uniforms(candidate))
                own = candidate.open.to_record(self._ids)
            else:
                own = {"end": candidate.end}
            record.append({"candidate": candidate.label, **own})
        self._journal.record_control(runner.services.clock.wall(), {"do": EXAM_STEP, "steps": record})
        for candidate in ready:
            if candidate.open is not None:
                self._begin(runner, candidate, candidate.open)

    def _write_bank(self) -> None:
        """Write the bank that all answers of this run teach, for its report and for later exams."""
        courses = [candidate.course for candidate in self._candidates]
        if self._learner is None or len(courses) < LEAST_LEARNERS:
            return
        try:
            bank = learn_bank(answers_of(_learned(courses), len(self._ids)))
        except ValueError:
            return  # all scores are equal
        dataset, labels = self._prepared.opened.records["dataset"], [candidate.label for candidate in self._candidates]
        write_learned_bank(self._bank, bank, self._ids, labels, dataset.get("digest"), dataset["name"])

    def _begin(self, runner: Runner, candidate: _Candidate, wave: Wave) -> None:
        fresh = [item for item in wave.items if self._number(candidate, item) not in self._scores]
        runner.feed(self._plan(candidate, item) for item in fresh)

    def _number(self, candidate: _Candidate, item: int) -> int:
        return self._prepared.number_of(candidate.label, self._tasks[item])

    def _plan(self, candidate: _Candidate, item: int) -> Plan:
        return self._prepared.plan_of(candidate.label, self._tasks[item], self._backends)

    def _uniforms(self, candidate: _Candidate) -> list[float]:
        wave = len(candidate.course.waves) + 1
        return [
            seeds.uniform(self._settings.seed, "exam", candidate.label, wave, position)
            for position in range(self._settings.wave)
        ]


def _learned(courses: Sequence[ExamCourse]) -> list[LearnedCourse]:
    return [course for course in courses if isinstance(course, LearnedCourse)]
