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
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any, NoReturn

import orjson

from viva.engine.errors import ConfigurationError, VivaError
from viva.engine.journal_reader import journal_state
from viva.engine.run_folder import installed_versions, is_running
from viva.reports.tables import escape_controls

from .runs import find_runs, study_folders

_log = logging.getLogger("viva")
_PAUSE_FACTOR = 20  # pause before the next computation, as a multiple of the last computation's duration
_LEAST_PAUSE = 3.0
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
    if not folders:
        raise ConfigurationError(f"{root}: there is no run in this folder yet")
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
    site = report_site(root, Links(), study.cells)
    yield f"</div>\n{opening_html(study_page(report, plots=False), site)}"
    page = study_page(report, study.provenance())
    yield body_html(page, site)
    write_page(page, file, site)


def print_piece(text: str) -> None:
    """Write a piece of a page to stdout at once."""
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    sys.stdout.buffer.flush()


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


class Updater:
    """Computes something again when asked to, after a pause that is many times as long as the last computation.

    A request during the computation or the pause is remembered. `on_change` is called when there is something new.
    `cpu_seconds` is what the last computation took if it is known; otherwise its duration counts.
    """

    cpu_seconds: float | None = None

    def __init__(self, on_change: Callable[[], None], least_pause: float = _LEAST_PAUSE) -> None:
        self._on_change, self._least_pause = on_change, least_pause
        self._next = 0.0
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_wanted = False

    async def compute(self) -> bool:
        """Compute, unless nothing has changed; return True if there is something new."""
        raise NotImplementedError

    def want(self) -> None:
        """Request a computation."""
        if self._task is not None and not self._task.done():
            self._is_wanted = True
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, self._next - time.monotonic()), self._begin)

    async def wait(self, seconds: float) -> None:
        """Wait for a computation that is due now, at most so long."""
        if self._timer is not None and time.monotonic() >= self._next:
            self._timer.cancel()
            self._begin()
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task], timeout=seconds)

    def _begin(self) -> None:
        self._timer = None
        self._task = asyncio.get_running_loop().create_task(self._update())

    async def _update(self) -> None:
        self._is_wanted = False
        began = time.monotonic()
        try:
            if await self.compute():
                self._on_change()
        except Exception:
            _log.warning("viva view: figures of the overview cannot be computed", exc_info=True)
        seconds = time.monotonic() - began if self.cpu_seconds is None else self.cpu_seconds
        self._next = time.monotonic() + max(self._least_pause, _PAUSE_FACTOR * seconds)
        if self._is_wanted:
            self._timer = asyncio.get_running_loop().call_later(self._next - time.monotonic(), self._begin)

    async def close(self) -> None:
        """End the computation."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])


class AnswerUpdater(Updater):
    """Keeps the findings of a folder's runs up to date.

    `busy`: findings are being computed. `page` is the file of the report.
    """

    def __init__(self, root: Path, page: Path, on_answer: Callable[[], None] = lambda: None) -> None:
        super().__init__(on_answer)
        self._root, self.page = root, page
        self._report: ReportPieces | None = None
        self.answer: StudyAnswer | None = None
        self.busy = False
        self._state: tuple[Any, ...] = ()

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
        await super().close()
        task = self._report.task if self._report else None
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task])

    async def compute(self) -> bool:
        state = await asyncio.to_thread(self._journals)
        if state == self._state:
            return False
        self.busy = True
        try:
            self.answer = await self._run_study()
        finally:
            self.busy = False
        self._state = state
        return True

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


def main(arguments: list[str]) -> None:
    """Print the findings as JSON, or the page."""
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
