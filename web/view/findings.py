"""Findings and report over all runs of a folder, computed in a separate process so that pages never wait.

`python -m viva.web.view.findings [--gently]` prints the findings as JSON; with `--page FILE ROOT KEY` it prints the
report's page instead, piece by piece as it is computed, and writes the whole page to the file. It reads the runs'
folders from stdin and ends when stdin is closed, so not later than its parent. While a run is in progress, findings
are recomputed after a pause that is many times as long as the computation.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import shlex
import sys
import threading
import time
import traceback
import warnings
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any, NoReturn

import orjson

from viva.engine.errors import ConfigurationError, JournalNotice, VivaError
from viva.engine.files import write_atomically
from viva.engine.journal_reader import journal_state
from viva.engine.run_folder import installed_versions, is_running
from viva.reports.tables import escape_controls

from .runs import RunSearch, find_runs, left_out, study_folders

_log = logging.getLogger("viva")
_PAUSE_FACTOR = 20  # pause before the next computation, as a multiple of the last computation's duration
_LEAST_PAUSE = 3.0
_MOST_SECONDS = 600.0  # of a computation
_TOO_LONG = f"Computing the report takes longer than {_MOST_SECONDS / 60:.0f} minutes. Without a limit:"
_PAGE_FORM = 3  # form of the kept page; a page of another form is computed again
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
    except Exception as error:
        return StudyAnswer(problem=_reason(error, folders))


def _reason(error: Exception, folders: Sequence[Path]) -> str:
    """Return why there is no report; an unexpected error is also printed to stderr."""
    if isinstance(error, VivaError):
        return str(error)
    traceback.print_exception(error)
    from viva.scenarios.study_cells import brief_error

    return f"cannot create the report of {os.path.commonpath(folders) if folders else 'no run'}: {brief_error(error)}"


def _costs(cells: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    costs: dict[str, float | None] = {}
    for cell in cells:
        name = f"{cell['scenario']}\n{cell['dataset']}"
        for usage in cell["usage"].values():
            before, cost = costs.get(name, 0.0), usage.get("cost")
            costs[name] = None if before is None or cost is None else before + cost
    return costs


def page_pieces(folders: list[Path], file: Path, root: Path, key: str) -> Iterator[str]:
    """Yield the report's page after its frame, as it is computed; at the end, write the whole page to the file.

    `root` is the viewed folder; `key` stands for the state of the journals before, and ends the file.
    """
    if not folders:
        raise ConfigurationError(f"{root}: there is no run in this folder yet")
    from viva.reports.studies.cache import users_report_cache
    from viva.reports.studies.page import study_page
    from viva.reports.studies.study import Study

    from ..report.html_page import body_html, opening_html, page_html
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
    with suppress(OSError):  # without the file, the next reader waits for the computation
        write_atomically(file, (page_html(page, site) + _key_comment(key)).encode("utf-8", "replace"))


def print_piece(text: str) -> None:
    """Write a piece of a page to stdout at once."""
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    sys.stdout.buffer.flush()


class ReportPieces:
    """The pieces of a report's page that is being computed; any number of readers get all of them.

    `ended`: there are no more pieces; `cut`: the page does not say why it has no report, or no whole one.
    """

    def __init__(self) -> None:
        self.ended, self.cut = False, True
        self.task: asyncio.Task[None] | None = None
        self._pieces: list[bytes] = []
        self._more = asyncio.Event()

    def add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._wake()

    def end(self) -> None:
        self.ended = True
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
            if self.ended:
                return
            await event.wait()


class Updater(ABC):
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

    @abstractmethod
    async def compute(self) -> bool:
        """Compute, unless nothing has changed; return True if there is something new."""

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
        """Return the report's page if no journal has changed since it was written, else its pieces.

        One page is computed at a time: whoever asks meanwhile gets the same pieces, even if a journal has changed.
        """
        state = await asyncio.to_thread(self._journals)
        key = hashlib.blake2b(repr((_PAGE_FORM, installed_versions(), state)).encode(), digest_size=16).hexdigest()
        if (page := await asyncio.to_thread(self._written_page, key)) is not None:
            return page
        if self._report is None or self._report.ended:
            self._report = ReportPieces()
            self._report.task = asyncio.get_running_loop().create_task(self._write_report(self._report, key))
        return self._report

    def _written_page(self, key: str) -> str | None:
        with suppress(OSError, ValueError), open(self.page, encoding="utf-8", opener=_open_own) as file:
            page = file.read()
            if page.endswith(comment := _key_comment(key)):
                return page.removesuffix(comment)
        return None

    async def _write_report(self, pieces: ReportPieces, key: str) -> None:
        try:
            async with self._process("--page", str(self.page), str(self._root), key) as process:
                assert process.stdout is not None
                while data := await process.stdout.read(1 << 16):
                    pieces.add(data)
                pieces.cut = await process.wait() != 0
        except TimeoutError:
            pieces.add(f"</div><p>{_TOO_LONG} {escape(self._command('--html report.html'))}</p>\n".encode())
            pieces.cut = False
        except Exception as error:
            _log.warning("viva view: cannot create the report: %s", error)
        finally:
            pieces.end()

    def _command(self, option: str = "") -> str:
        return f"viva report {shlex.quote(str(self._root))} {option}".rstrip()

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
        search, files = RunSearch(self._root), ("journal.sqlite", "manifest.json")
        runs = [(name, *(journal_state(path / file) for file in files)) for name, path in search.runs()]
        return *runs, *search.notes

    @asynccontextmanager
    async def _process(self, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
        """Start a computation, and end it at the end of the block, or after the longest time with TimeoutError.

        While a run is in progress, the computation has a lower priority.
        """
        folders = await asyncio.to_thread(study_folders, self._root)
        if await asyncio.to_thread(lambda: any(is_running(path) for _, path in find_runs(self._root))):
            arguments = (_GENTLY, *arguments)
        # -P: do not import modules from the folder in which the viewer was started.
        command = [sys.executable, "-P", "-m", __name__, *arguments]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        try:
            async with asyncio.timeout(_MOST_SECONDS):
                assert process.stdin is not None
                names = b"\0".join(map(os.fsencode, folders))
                with suppress(ConnectionError):  # it has ended: its exit code is read later
                    process.stdin.write(b"%d\n%b" % (len(names), names))
                    await process.stdin.drain()
                yield process
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    async def _run_study(self) -> StudyAnswer:
        try:
            async with self._process() as process:
                assert process.stdout is not None
                answer = await process.stdout.read()
                if await process.wait() == 0:
                    return StudyAnswer(**orjson.loads(answer))
                reason = f"its process ended with {process.returncode}"
        except TimeoutError:
            return StudyAnswer(problem=f"{_TOO_LONG} {self._command()}")
        except OSError as error:
            reason = str(error)
        return StudyAnswer(problem=f"cannot create the report: {reason}; to see more: {self._command()}")


def _open_own(path: str, flags: int) -> int:
    """Open a file that is no link and belongs to this user: in a folder of others it could be anything."""
    descriptor = os.open(path, flags | getattr(os, "O_NOFOLLOW", 0))
    if hasattr(os, "geteuid") and os.fstat(descriptor).st_uid != os.geteuid():
        os.close(descriptor)
        raise PermissionError(f"{path}: belongs to another user")
    return descriptor


def _key_comment(key: str) -> str:
    return f"<!-- {key} -->\n"


def _read_folders() -> list[Path]:
    """Read the folders from stdin: a line with the number of bytes, and names separated by NUL."""
    size = int(sys.stdin.buffer.readline())
    names = sys.stdin.buffer.read(size)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    return [Path(os.fsdecode(name)) for name in names.split(b"\0")] if names else []


def _end_with_parent() -> NoReturn:
    os.read(sys.stdin.fileno(), 1)  # returns when the parent has closed the pipe or has ended
    os._exit(1)


def main(arguments: list[str]) -> None:
    """Print the findings as JSON, or the page."""
    folders = _read_folders()
    warnings.simplefilter("ignore", JournalNotice)  # the report names damaged records
    if arguments[:1] == [_GENTLY]:
        os.nice(_NICE)
        arguments = arguments[1:]
    if arguments[:1] == ["--page"]:
        file, root, key = arguments[1:]
        _print_page(folders, Path(file), Path(root), key)
    else:
        sys.stdout.buffer.write(orjson.dumps(asdict(study_answer(folders))))


def _print_page(folders: list[Path], file: Path, root: Path, key: str) -> None:
    """Print the page's pieces; on an error the page says what is wrong."""
    try:
        for piece in page_pieces(folders, file, root, key):
            print_piece(piece)
    except Exception as error:
        text = escape(escape_controls(_reason(error, folders)))
        print_piece(f"</div>\n<main><h1>Cannot create the report</h1><p>{text}</p></main></body></html>\n")


if __name__ == "__main__":
    main(sys.argv[1:])
