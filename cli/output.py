"""Output on stdout (tables for people, JSON for programs), and streams that keep working if stderr is closed."""

from __future__ import annotations

import io
import logging
import os
import re
import select
import sys
from collections.abc import Callable, Iterable, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any, Protocol, TextIO, TypeVar, cast

import orjson

from viva.engine.errors import ConfigurationError
from viva.engine.json_data import to_utf8_data
from viva.reports.tables import escape_controls

from .exit_codes import print_message, print_note, terminal_width

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    from viva.orchestration.completeness import MissingConversations
    from viva.scenarios.contract import Aggregate

T = TypeVar("T")
Table = tuple[str, list[str], list[list[str]]]
_STDERR_TIMEOUT = 1.0  # seconds
_UNBOUNDED_WIDTH = 10_000  # of lines that are not printed in a terminal
_TEXT_WIDTH = 80


class Report(Protocol):
    """Results as plain data and as tables."""

    def report(self) -> Any: ...

    def tables(self) -> Iterable[Table]: ...


def print_report(report: Report, *, json: bool) -> None:
    """Print results as tables, or as JSON."""
    if json:
        print_json(report.report())
    else:
        print_tables(report.tables())


def print_results(
    results: Aggregate,
    run: Path,
    *,
    json: bool,
    missing: MissingConversations | None = None,
    damaged: Sequence[str] = (),
) -> None:
    """Print a run's results like `print_report`, with remarks before them and notes after them.

    The first line says how many conversations are `missing`. JSON has a field for these, and one for `damaged` records.
    """
    from viva.scenarios.contract import SupportsNotes, SupportsRemarks

    if json:
        report = results.report() | ({} if missing is None else {"unfinished": missing.to_record()})
        print_json(report | ({"damaged": damaged} if damaged else {}))
    else:
        print_unfinished(run, missing)
        if isinstance(results, SupportsRemarks) and (remarks := results.remarks()):
            print_paragraphs(remarks)
        print_tables(results.tables())
    for note in results.notes() if isinstance(results, SupportsNotes) else ():
        print_note(note)


def print_json(data: Any, *, line: bool = False) -> None:
    """Print indented JSON, or one line of JSON; equal data gives equal bytes."""
    option = orjson.OPT_APPEND_NEWLINE | (0 if line else orjson.OPT_INDENT_2)
    try:
        text = orjson.dumps(data, option=option)
    except TypeError:  # a path is not UTF-8: each invalid byte is printed as \udcHH
        text = orjson.dumps(to_utf8_data(data, "backslashreplace"), option=option)
    _write(text)


def print_text(text: str) -> None:
    """Print text unchanged, in UTF-8."""
    _write(text.encode("utf-8", "replace"))


def print_paragraphs(texts: Iterable[str]) -> None:
    """Print each text wrapped, on lines of its own, and one empty line after the last."""
    print_text("".join(f"{fill(escape_controls(text), _TEXT_WIDTH)}\n" for text in texts) + "\n")


def print_unfinished(run: Path, missing: MissingConversations | None) -> None:
    """Print the first line of an unfinished run's report; print nothing if no conversation is missing."""
    from viva.engine.run_folder import is_running
    from viva.orchestration.completeness import unfinished_text
    from viva.sweeps.sweep_folder import resumable_folder

    if missing is not None:
        text = unfinished_text(missing.to_record(), resumable_folder(run), running=is_running(run))
        print_text(escape_controls(text) + "\n\n")


def print_tables(tables: Iterable[Table]) -> None:
    """Print titled tables, except empty ones. If the output is no terminal, nothing is wrapped or truncated.

    A table that is too wide is printed in parts; each further part repeats the beginning of the title.
    """
    from rich.text import Text

    from .tables import lay_out

    width = terminal_width(sys.stdout.fileno()) if sys.stdout.isatty() else _UNBOUNDED_WIDTH
    for title, header, rows in tables:
        if rows:
            texts = [[escape_controls(text) for text in line] for line in (header, *rows)]
            for part, table in enumerate(lay_out(texts[0], texts[1:], width)):
                part_title = f"{_subject(title)} (continued)" if part else title
                print_rich(Text(escape_controls(part_title), style="bold"), table)


def _subject(title: str) -> str:
    """Return the beginning of a title: up to its first colon or semicolon, or else its first comma."""
    return (re.split("[:;] ", title) if re.search("[:;] ", title) else title.split(", "))[0]


def print_rich(*parts: RenderableType, width: int | None = None) -> None:
    """Print rich renderables; if the output is no terminal, as plain text of `width` columns (None: as many as needed).

    A part that needs more columns gets them.
    """
    from rich.console import Console
    from rich.measure import Measurement

    terminal = sys.stdout.isatty()
    buffer = io.StringIO()
    # Without a height, rich assumes that a dumb terminal has 80 columns.
    console = Console(
        file=buffer, force_terminal=terminal, width=width if terminal or width else _UNBOUNDED_WIDTH, height=25
    )
    columns = terminal_width(sys.stdout.fileno()) if terminal else console.width
    for part in parts:
        # Lines wider than the terminal are printed whole, because rich would truncate them.
        minimum = 0 if isinstance(part, str) else Measurement.get(console, console.options, part).minimum
        console.width = max(columns, minimum)
        console.print(part, soft_wrap=isinstance(part, str))
    text = "\n".join(line.rstrip() for line in buffer.getvalue().split("\n"))
    _write(text.encode(sys.stdout.encoding or "utf-8", "replace"))


class StdoutError(ConfigurationError):
    """Error of writing results to stdout."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"cannot write the results to stdout: {error.strerror}")


def discard_stdout() -> None:
    """Discard all later output, so that the interpreter's last flush does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _ResultStream:
    """Stdout that raises `StdoutError` even for help and version, which typer prints directly."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return self._tried(lambda: self._stream.write(text))

    def flush(self) -> None:
        self._tried(self._stream.flush)

    @staticmethod
    def _tried(act: Callable[[], T]) -> T:
        try:
            return act()
        except BrokenPipeError:  # the reader has gone; typer and Python handle this
            raise
        except OSError as error:
            raise StdoutError(error) from None


class NonBlockingStderr:
    """Stderr for progress and notes that drops what it cannot write, so that a run neither stops nor misses signals.

    The first failure redirects the file descriptor to /dev/null, so that the interpreter's last flush does not fail.
    If the reader accepts nothing (a full pipe, a stopped terminal), writing waits once for `_STDERR_TIMEOUT` seconds,
    then text is dropped until there is room again.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._line = ""  # the unfinished line
        self._stalled = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._line += text
        if "\n" in text:
            self.flush()
        return len(text)

    def flush(self) -> None:
        text, self._line = self._line, ""
        if not text:
            return
        try:
            file = self._stream.fileno()
            remaining = memoryview(text.encode(self._stream.encoding, "backslashreplace"))
            while remaining and self._has_room(file):
                remaining = remaining[
                    os.write(file, remaining[: select.PIPE_BUF]) :
                ]  # PIPE_BUF bytes never block if there is room
        except BlockingIOError:
            self._stalled = True
        except (OSError, ValueError):
            self._give_up()

    def _has_room(self, file: int) -> bool:
        room = bool(select.select([], [file], [], 0 if self._stalled else _STDERR_TIMEOUT)[1])
        self._stalled = not room
        return room

    def _give_up(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, self._stream.fileno())
        except (OSError, ValueError):  # stderr is closed, or has no file descriptor
            self._stream = open(os.devnull, "w")  # noqa: SIM115
        finally:
            os.close(nowhere)


class _StderrHandler(logging.Handler):
    """Handler that prints the engine's log records with the prefix `viva:`; warnings also get a label.

    A record's own `label` replaces that label.
    """

    def emit(self, record: logging.LogRecord) -> None:
        label = getattr(record, "label", "warning" if record.levelno >= logging.WARNING else "")
        print_message("viva: " + (f"{label}: " if label else "") + record.getMessage())
        if record.exc_info:  # a bug; the traceback helps to fix it
            print(logging.Formatter().formatException(record.exc_info), file=sys.stderr)


def show_log(*, verbose: bool = False) -> None:
    """Print the warnings of the logger `viva` on stderr; with `verbose`, also its records of level INFO."""
    log = logging.getLogger("viva")
    if not any(isinstance(handler, _StderrHandler) for handler in log.handlers):
        log.addHandler(_StderrHandler())
        log.setLevel(logging.INFO if verbose else logging.WARNING)


def protect_streams() -> None:
    """Make the process survive a stderr that is closed, full or unread, and a stdout that was never open."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:  # it is closed; no file of ours may get its descriptor
            nowhere = os.open(os.devnull, os.O_WRONLY)
            if nowhere != number and not _is_open(number):
                os.dup2(nowhere, number)
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    sys.stdout = cast("TextIO", _ResultStream(sys.stdout))
    sys.stderr = cast("TextIO", NonBlockingStderr(sys.stderr))


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _write(data: bytes) -> None:
    """Write to stdout, or raise StdoutError, for example if the disk is full."""
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # The reader has gone (`viva show | head`): drop the rest without an error.
        discard_stdout()
    except OSError as error:
        discard_stdout()
        raise StdoutError(error) from None
