"""Findings and report over all runs of a folder, computed in a separate process so that pages never wait.

`python -m viva.web.view.findings [--gently] [--page FILE] FOLDER…` prints the findings as JSON. While a run is in
progress, they are recomputed after a pause that is many times as long as the computation.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from viva.engine.errors import VivaError
from viva.engine.journal_reader import journal_state
from viva.engine.run_folder import is_running
from viva.scenarios.contract import Findings, RankedCandidate

from .queries import CandidateFigures, RunFigures
from .runs import find_runs, study_folders

_PAUSE_FACTOR = 20  # pause before the next computation, as a multiple of the last computation's duration
_LEAST_PAUSE = 3.0
_GENTLY, _NICE = "--gently", 14  # niceness while a run is in progress, because the run needs the processor


@dataclass(slots=True)
class StudyAnswer:
    """The findings of a study.

    `problem` says why there are no findings; `ended` counts the conversations that had ended when they were computed.
    """

    findings: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problem: str = ""
    ended: int = 0


def study_answer(folders: list[Path], page: Path | None = None) -> StudyAnswer:
    """Compute the findings of the runs in these folders; write the whole report to `page`, if given."""
    from viva.reports.studies.study import Study, study_findings

    try:
        report = Study(folders).report()
        ended = sum(cell.get("ended") or 0 for cell in report["cells"])
        if page is not None:
            from ..report.html_page import write_html

            write_html(report, page)
        notes = [*report.get("warnings", ()), *report["notes"]]
        return StudyAnswer([asdict(finding) for finding in study_findings(report)], notes, "", ended)
    except VivaError as error:
        return StudyAnswer(problem=str(error))


def mean_scores_so_far(runs: list[RunFigures]) -> list[dict[str, Any]]:
    """Return mean scores in the form of findings: by dataset and judge, the candidates in order, best first.

    Mean scores come from the index; standard errors and significance come from the study.
    """
    groups: dict[tuple[str, str], dict[tuple[str, str], dict[str, CandidateFigures]]] = {}
    for run in runs:
        group = groups.setdefault((run.scenario, run.dataset), {}).setdefault((run.digest, run.judge), {})
        for name, figures in run.candidates.items():
            group.setdefault(name, CandidateFigures(name)).add(figures)
    findings = []
    for (scenario, dataset), scales in groups.items():
        files, judges = (len({key[at] for key in scales}) for at in (0, 1))
        for (digest, judge), candidates in scales.items():
            standings = [
                RankedCandidate(name, entry.mean, n=entry.scored) for name, entry in candidates.items() if entry.scored
            ]
            standings.sort(key=lambda entry: -(entry.value or 0.0))
            apart = [digest[:6]] if files > 1 else []
            apart += [f"judged by {judge}"] if judges > 1 and judge else []
            about = f"{dataset} ({', '.join(apart)})" if apart else dataset
            scores = ", ".join(f"{entry.candidate} {entry.value:.1f}" for entry in standings)
            sentences = [f"Mean scores so far: {scores}."] if standings else []
            findings.append(asdict(Findings(sentences, "score so far", standings, about, scenario)))
    return findings


class AnswerUpdater:
    """Keeps the findings of a folder's runs up to date.

    `busy`: findings are being computed. `on_answer` is called when they change. `page` is the file of the report.
    """

    def __init__(self, root: Path, page: Path, on_answer: Callable[[], None] = lambda: None) -> None:
        self._root, self.page, self._on_answer = root, page, on_answer
        self._reporting = asyncio.Lock()
        self._reported: tuple[Any, ...] = ()
        self.answer: StudyAnswer | None = None
        self.busy = False
        self._state: tuple[Any, ...] = ()
        self._next = 0.0
        self._task: asyncio.Task[None] | None = None

    def want(self) -> None:
        """Request new findings if a journal has changed, unless they were just computed."""
        if time.monotonic() >= self._next and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._compute())

    async def report(self) -> str:
        """Write the report to `page` if it is out of date; return the reason if it cannot be written, else ""."""
        async with self._reporting:
            state = await asyncio.to_thread(self._journals)
            if state == self._reported and self.page.exists():
                return ""
            answer = await self._run_study("--page", str(self.page))
            self._reported = () if answer.problem else state
            return answer.problem

    async def close(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _compute(self) -> None:
        state = await asyncio.to_thread(self._journals)
        began = time.monotonic()
        if state != self._state:
            self.busy = True
            try:
                self.answer = await self._run_study()
            finally:
                self.busy = False
            self._state = state
            self._on_answer()
        self._next = time.monotonic() + max(_LEAST_PAUSE, _PAUSE_FACTOR * (time.monotonic() - began))

    def _journals(self) -> tuple[Any, ...]:
        return tuple(journal_state(path / "journal.sqlite") for _, path in find_runs(self._root))

    async def _run_study(self, *more: str) -> StudyAnswer:
        folders = await asyncio.to_thread(study_folders, self._root)
        if await asyncio.to_thread(lambda: any(is_running(path) for _, path in find_runs(self._root))):
            more = (_GENTLY, *more)
        # -P: do not import modules from the folder in which the viewer was started.
        command = [sys.executable, "-P", "-m", __name__, *more, *map(str, folders)]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            out, err = await process.communicate()
        except BaseException:
            process.kill()
            await process.wait()
            raise
        if process.returncode == 0:
            return StudyAnswer(**orjson.loads(out))
        lines = err.decode("utf-8", "replace").strip().splitlines()
        return StudyAnswer(problem=f"cannot create the report: {lines[-1] if lines else process.returncode}")


def main(arguments: list[str]) -> None:
    """Print the findings as JSON."""
    page = None
    if arguments[:1] == [_GENTLY]:
        os.nice(_NICE)
        arguments = arguments[1:]
    if arguments[:1] == ["--page"]:
        page, arguments = Path(arguments[1]), arguments[2:]
    sys.stdout.buffer.write(orjson.dumps(asdict(study_answer(list(map(Path, arguments)), page))))


if __name__ == "__main__":
    main(sys.argv[1:])
