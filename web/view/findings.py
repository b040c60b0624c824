"""Findings and report over all runs of a folder, computed in a separate process so that pages never wait.

`python -m viva.web.view.findings [--gently] FOLDER…` prints the findings as JSON; with `--page FILE ROOT` it prints the
report's page instead, piece by piece as it is computed, and writes the whole page to the file. While a run is in
progress, findings are recomputed after a pause that is many times as long as the computation.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any, NoReturn

import orjson

from viva.engine.errors import VivaError
from viva.engine.journal_reader import journal_state
from viva.engine.run_folder import installed_versions, is_running
from viva.reports.tables import escape_controls
from viva.scenarios.contract import Findings, RankedCandidate

from .run_figures import CandidateFigures, RunFigures
from .runs import find_runs, left_out, study_folders

_log = logging.getLogger("viva")
_PAUSE_FACTOR = 20  # pause before the next computation, as a multiple of the last computation's duration
_LEAST_PAUSE = 3.0
_PARENT_SECONDS = 1.0  # between checks that the viewer has not ended
_REFUSED = 3  # exit code if the page says why there is no report
_PAGE_FORM = 2  # form of the kept page; a page of another form is computed again
_GENTLY, _NICE = "--gently", 14  # niceness while a run is in progress, because the run needs the processor


@dataclass(slots=True)
class StudyAnswer:
    """The findings of a study.

    `problem` says why there are no findings; `ended` counts the conversations that had ended when they were computed.
    `costs` has the cost of each scenario's dataset, under both names with a line end between; None if it is unknown.
    """

    findings: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problem: str = ""
    ended: int = 0
    costs: dict[str, float | None] = field(default_factory=dict)


def study_answer(folders: list[Path], export: tuple[Path, Path] | None = None) -> StudyAnswer:
    """Compute the findings of the runs in these folders.

    `export`: also write the whole report, as a page of an export, for the runs below a folder to a file.
    """
    from viva.reports.studies.cache import users_report_cache
    from viva.reports.studies.study import Study, study_findings

    try:
        study = Study(folders, cache=users_report_cache())
        report = study.report()
        exams = [record["exam"] for record in report.get("adaptive", ()) if record["exam"] is not None]
        ended = sum(cell.get("ended") or 0 for cell in report["cells"]) + sum(exam["asked"] for exam in exams)
        if export is not None:
            from viva.reports.studies.page import study_page

            from ..report.html_page import write_page
            from .pages import Links
            from .report_site import report_site

            root, page = export
            report["notes"] = [*report["notes"], *left_out(root)]
            write_page(study_page(report, study.provenance()), page, report_site(root, Links(0), study.cells))
        notes = [*report.get("warnings", ()), *report["notes"]]
        return StudyAnswer(
            [asdict(finding) for finding in study_findings(report)], notes, "", ended, _costs(report["cells"])
        )
    except VivaError as error:
        return StudyAnswer(problem=str(error))


def _costs(cells: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    costs: dict[str, float | None] = {}
    for cell in cells:
        name = f"{cell['scenario']}\n{cell['dataset']}"
        for usage in cell["usage"].values():
            before, cost = costs.get(name, 0.0), usage.get("cost")
            costs[name] = None if before is None or cost is None else before + cost
    return costs


def page_pieces(folders: list[Path], file: Path, root: Path) -> Iterator[str]:
    """Yield the report's page after its frame, as it is computed; at the end, write the whole page to the file.

    `root` is the viewed folder.
    """
    from viva.reports.studies.cache import users_report_cache
    from viva.reports.studies.page import study_page
    from viva.reports.studies.study import Study

    from ..report.html_page import body_html, opening_html, write_page
    from .pages import Links
    from .report_site import report_site

    study = Study(folders, cache=users_report_cache(), on_run=lambda count, total: print_piece(
        f"<p>Reading run {count + 1:,} of {total:,} …</p>\n"))  # fmt: skip
    yield "<p>Computing the figures …</p>\n"
    report = study.report()
    report["notes"] = [*report["notes"], *left_out(root)]
    site = report_site(root, Links(), study.cells)
    yield f"</div>\n{opening_html(study_page(report, plots=False), site)}"
    page = study_page(report, study.provenance())
    yield body_html(page, site)
    write_page(page, file, site)


def print_piece(text: str) -> None:
    """Write a piece of a page to stdout at once."""
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    sys.stdout.buffer.flush()


def mean_scores_so_far(runs: list[RunFigures]) -> list[dict[str, Any]]:
    """Return mean scores in the form of findings: by dataset, set and judge, the candidates in order, best first.

    The benchmark's items and those of a second set have parts of their own, which have the key `set` as in a filter.
    Mean scores come from the index; standard errors and significance come from the study. Adaptive runs have none,
    because they chose other items for each candidate.
    """
    groups: dict[tuple[str, str], dict[tuple[str, str], list[RunFigures]]] = {}
    for run in (run for run in runs if not run.adaptive):
        groups.setdefault((run.scenario, run.dataset), {}).setdefault((run.digest, run.judge), []).append(run)
    findings = []
    for scales in groups.values():
        files, judges = (len({key[at] for key in scales}) for at in (0, 1))
        for (digest, judge), members in scales.items():
            apart = [digest[:6]] if files > 1 else []
            apart += [f"judged by {judge}"] if judges > 1 and judge else []
            seconds: dict[tuple[str, str], list[RunFigures]] = {}
            for run in members:
                if run.has_second:
                    seconds.setdefault((run.second_name, run.second_digest), []).append(run)
            findings.append(_mean_scores(members, apart, "benchmark" if seconds else ""))
            names = [name for name, _ in seconds]
            for (name, own_digest), own in seconds.items():
                title = f"second set {name}" + f" {own_digest[:6]}" * (names.count(name) > 1)
                findings.append(_mean_scores(own, [*apart, title.rstrip()], "second"))
    return findings


def _mean_scores(runs: Sequence[RunFigures], apart: Sequence[str], of_set: str) -> dict[str, Any]:
    """Return one part of the mean scores. `apart` says what tells it from other parts on the same dataset."""
    second = of_set == "second"
    candidates: dict[str, CandidateFigures] = {}
    for run in runs:
        for name, figures in run.candidates.items():
            candidates.setdefault(name, CandidateFigures(name)).add(figures)
    standings = [
        RankedCandidate(name, entry.second_mean, n=entry.second_scored)
        if second
        else RankedCandidate(name, entry.mean, n=entry.scored)
        for name, entry in candidates.items()
    ]
    standings = [entry for entry in standings if entry.n]
    standings.sort(key=lambda entry: -(entry.value or 0.0))
    scores = ", ".join(f"{entry.candidate} {entry.value:.1f}" for entry in standings)
    so_far = "" if all(run.is_complete for run in runs) else " so far"
    items = f" on the {apart[-1]}" if second else f" on the {of_set}" if of_set else ""
    sentences = [f"Mean scores{items}{so_far}: {scores}."] if standings else []
    about = f"{runs[0].dataset} ({', '.join(apart)})" if apart else runs[0].dataset
    part = asdict(Findings(sentences, f"mean score{so_far}", standings, about, runs[0].scenario))
    return part | {"set": of_set}


class ReportPieces:
    """The pieces of a report's page that is being computed; any number of readers get all of them.

    `key` stands for the state of the journals; `failed`: the page has no report; `cut`: it does not say why.
    """

    def __init__(self, key: str) -> None:
        self.key, self.failed, self.cut = key, False, True
        self.task: asyncio.Task[None] | None = None
        self._pieces: list[bytes] = []
        self._ended = False
        self._more = asyncio.Event()

    def add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._wake()

    def end(self) -> None:
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        event, self._more = self._more, asyncio.Event()
        event.set()

    async def read(self) -> AsyncIterator[bytes]:
        """Yield the pieces so far, then each new one, until the page has ended."""
        position = 0
        while True:
            event = self._more
            while position < len(self._pieces):
                position += 1
                yield self._pieces[position - 1]
            if self._ended:
                return
            await event.wait()


class AnswerUpdater:
    """Keeps the findings of a folder's runs up to date.

    `busy`: findings are being computed. `on_answer` is called when they change. `page` is the file of the report.
    """

    def __init__(self, root: Path, page: Path, on_answer: Callable[[], None] = lambda: None) -> None:
        self._root, self.page, self._on_answer = root, page, on_answer
        self._report: ReportPieces | None = None
        self.answer: StudyAnswer | None = None
        self.busy = False
        self._state: tuple[Any, ...] = ()
        self._next = 0.0
        self._task: asyncio.Task[None] | None = None

    def want(self) -> None:
        """Request new findings if a journal has changed, unless they were just computed."""
        if time.monotonic() >= self._next and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._compute())

    async def report(self) -> str | ReportPieces:
        """Return the report's page if no journal has changed since it was written, else its pieces."""
        state = await asyncio.to_thread(self._journals)
        key = hashlib.blake2b(repr((_PAGE_FORM, installed_versions(), state)).encode(), digest_size=16).hexdigest()
        if (page := await asyncio.to_thread(self._written_page, key)) is not None:
            return page
        if self._report is None or self._report.key != key or self._report.failed:
            self._report = ReportPieces(key)
            self._report.task = asyncio.get_running_loop().create_task(self._write_report(self._report))
        return self._report

    def _written_page(self, key: str) -> str | None:
        try:
            if self._key_file.read_text("ascii") == key:
                return self.page.read_text("utf-8")
        except (OSError, ValueError):
            pass
        return None

    @property
    def _key_file(self) -> Path:
        return self.page.with_suffix(".key")

    async def _write_report(self, pieces: ReportPieces) -> None:
        pieces.failed = True
        try:
            command = await self._command("--page", str(self.page), str(self._root))
            process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
            try:
                assert process.stdout is not None
                while data := await process.stdout.read(1 << 16):
                    pieces.add(data)
                await process.wait()
            except BaseException:
                process.kill()
                await process.wait()
                raise
            pieces.cut = process.returncode not in (0, _REFUSED)
            if process.returncode == 0:
                await asyncio.to_thread(self._key_file.write_text, pieces.key, "ascii")
                pieces.failed = False
        except OSError as error:
            _log.warning("viva view: cannot create the report: %s", error)
        finally:
            pieces.end()

    async def close(self) -> None:
        tasks = [self._task, self._report.task if self._report else None]
        for task in tasks:
            if task is not None and not task.done():
                task.cancel()
                await asyncio.wait([task])

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

    async def _command(self, *more: str) -> list[str]:
        """Return the command of a computation. While a run is in progress, the computation has a lower priority."""
        folders = await asyncio.to_thread(study_folders, self._root)
        if await asyncio.to_thread(lambda: any(is_running(path) for _, path in find_runs(self._root))):
            more = (_GENTLY, *more)
        # -P: do not import modules from the folder in which the viewer was started.
        return [sys.executable, "-P", "-m", __name__, *more, *map(str, folders)]

    async def _run_study(self) -> StudyAnswer:
        command = await self._command()
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


def _end_with_parent(parent: int) -> None:
    """End this process as soon as the viewer that has started it is gone, even if it was killed."""
    while os.getppid() == parent:
        time.sleep(_PARENT_SECONDS)
    os._exit(1)


def main(arguments: list[str]) -> None:
    """Print the findings as JSON, or the page."""
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    if arguments[:1] == [_GENTLY]:
        os.nice(_NICE)
        arguments = arguments[1:]
    if arguments[:1] == ["--page"]:
        file, root, *folders = map(Path, arguments[1:])
        _print_page(folders, file, root)
    sys.stdout.buffer.write(orjson.dumps(asdict(study_answer(list(map(Path, arguments))))))


def _print_page(folders: list[Path], file: Path, root: Path) -> NoReturn:
    """Print the page's pieces and end the process; on an error the page says what is wrong."""
    try:
        for piece in page_pieces(folders, file, root):
            print_piece(piece)
    except VivaError as error:
        text = escape(escape_controls(str(error)))
        print_piece(f"</div>\n<main><h1>Cannot create the report</h1><p>{text}</p></main></body></html>\n")
        raise SystemExit(_REFUSED) from None
    raise SystemExit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
