"""Logs of live systems as dialogs: a whole file, or the new lines of a growing one from a byte offset on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any, Literal, TypeAlias

from viva.data.items import FieldError, Raw
from viva.data.record_files import (
    MAX_LINE_BYTES,
    BadLine,
    Record,
    json_record,
    line_text,
    reject_other_formats,
    require_regular_file,
)
from viva.engine.errors import DatasetError

from ..dialog import Dialog
from .logged_calls import CallIndex, JoinedCalls, LoggedCall
from .otel_spans import is_span, span_calls
from .records import MESSAGE_LISTS, UnreadableRecord, default_id, dialog_from_record, unreadable_record
from .request_logs import is_request, request_calls

_HEAD_BYTES = 512  # initial bytes that identify a file
_BOM = b"\xef\xbb\xbf"


class GrowingFile:
    """Reader of a growing file. Close it, or use it as a context manager.

    `notes` says what happened to the file. With an earlier `state`, reading continues after the lines that had been
    read by then.
    """

    def __init__(self, path: Path, state: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self.notes: list[str] = []
        self._offset = self._line = 0
        self._inode = (0, 0)
        self._head = ""
        self._skipping = False  # inside a line that is too long
        self._file: FileIO | None = None
        if state is not None:
            self._offset, self._line = int(state["offset"]), int(state["line"])
            self._inode, self._head = (int(state["device"]), int(state["inode"])), str(state["head"])
            self._skipping = bool(state["skipping"])

    def __enter__(self) -> GrowingFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def state(self) -> dict[str, Any]:
        """Position after the last line yielded by `lines`, as JSON data."""
        device, inode = self._inode
        return {
            "offset": self._offset,
            "line": self._line,
            "device": device,
            "inode": inode,
            "head": self._head,
            "skipping": self._skipping,
        }

    def lines(self) -> Iterator[tuple[int, str | BadLine]]:
        """Yield new complete lines with their 1-based numbers; none if the file does not exist.

        Raises:
            DatasetError: The file is not text, or cannot be read.
        """
        try:
            if not self._ensure_open():
                return
            yield from self._read_lines()
            while self._is_replaced():
                yield from self._read_lines(last=True)
                self._reopen("was replaced")
                if not self._ensure_open():
                    return
                yield from self._read_lines()
        except OSError as error:
            raise DatasetError(f"cannot be read: {error.strerror}", path=str(self.path)) from None

    def _ensure_open(self) -> bool:
        """Open the file if needed, and restart if the path is another file now; return False if it does not exist."""
        if self._file is None:
            if not self.path.exists():
                return False
            require_regular_file(self.path)
            try:
                self._file = FileIO(self.path)
            except FileNotFoundError:
                return False
            status = os.fstat(self._file.fileno())
            if self._offset and (status.st_dev, status.st_ino) != self._inode:
                self._restart("was replaced since it was last read; unread lines of the old file are lost")
            self._inode = (status.st_dev, status.st_ino)
        if os.fstat(self._file.fileno()).st_size < self._offset or not self._same_head():
            self._restart("was truncated; it is read from its beginning")
            self._same_head()
        return True

    def _same_head(self) -> bool:
        """Return True if the file starts as before; remember a longer start if it has grown."""
        assert self._file is not None
        head = os.pread(self._file.fileno(), _HEAD_BYTES, 0)
        if not self._head:
            reject_other_formats(self.path, head)
        length, _, digest = self._head.partition(":")
        is_same = not self._head or _head_digest(head[: int(length)]) == digest
        if is_same and len(head) > int(length or 0):
            self._head = f"{len(head)}:{_head_digest(head)}"
        return is_same

    def _read_lines(self, last: bool = False) -> Iterator[tuple[int, str | BadLine]]:
        """Yield the complete lines after the offset and, if `last`, an incomplete line at the end."""
        assert self._file is not None
        file = BufferedReader(self._file)  # a new buffer each time, as the file may have changed
        try:
            file.seek(self._offset)
            while True:
                line = file.readline(MAX_LINE_BYTES + 1)
                complete = line.endswith(b"\n")
                if not line or not (complete or last or len(line) > MAX_LINE_BYTES):
                    return
                self._offset += len(line)
                if self._skipping:
                    self._skipping = not complete
                    continue
                self._line += 1
                if len(line) > MAX_LINE_BYTES:
                    self._skipping = not complete
                    yield self._line, BadLine(f"has more than the maximum of {MAX_LINE_BYTES:,} bytes", 0)
                else:
                    yield self._line, line_text(line.removeprefix(_BOM) if self._line == 1 else line)
        finally:
            with suppress(ValueError):  # closed meanwhile
                file.detach()

    def _is_replaced(self) -> bool:
        """Return True if the path is another file now."""
        with suppress(FileNotFoundError):
            status = self.path.stat()
            return (status.st_dev, status.st_ino) != self._inode
        return False

    def _reopen(self, event: str) -> None:
        self.close()
        self._restart(f"{event}; the new file is read from its beginning")
        self._inode = (0, 0)

    def _restart(self, event: str) -> None:
        self._offset = self._line = 0
        self._head, self._skipping = "", False
        self.notes.append(f"{self.path} {event}")


def _head_digest(head: bytes) -> str:
    return blake2b(head, digest_size=8).hexdigest()


LogForm: TypeAlias = Literal["dialogs", "spans", "requests"]
MAX_REMEMBERED = 100_000
_NO_MESSAGES_NOTE = (
    "{count} model calls, the first in this line, were recorded without messages; enable the capture of message "
    "content in the instrumentation (OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT)"
)


@dataclass(frozen=True, slots=True)
class GrownDialog:
    """A dialog as it is in a growing log now; apart from system messages, its first `known_count` messages are old."""

    dialog: Dialog
    known_count: int


def detect_form(raw: Raw) -> LogForm | None:
    """Return the form of a record, or None if it is unclear."""
    if is_span(raw):
        return "spans"
    if is_request(raw):
        return "requests"
    return "dialogs" if any(raw.get(name) is not None for name in MESSAGE_LISTS) else None


def read_log(path: Path, form: LogForm, records: Callable[[], Iterator[Record]]) -> Iterator[Dialog | UnreadableRecord]:
    """Yield the dialogs of a log of spans or requests, in order of completion; `records` reads the file from its start.

    Raises:
        DatasetError: The file cannot be read at all.
    """
    index = CallIndex()
    silent, first = 0, 0
    for line, raw in records():
        try:
            for number, call in enumerate(_logged_calls(raw, form)):
                if not call.prompt and not call.answer:
                    silent, first = silent + 1, first or line
                else:
                    index.add(call, (line, number), default_id(path, line))
        except (FieldError, DatasetError) as error:
            yield unreadable_record(path, line, error)
    if silent:
        yield UnreadableRecord(str(path), first, _NO_MESSAGES_NOTE.format(count=f"{silent:,}"))
    latest_calls: dict[int, dict[int, JoinedCalls]] = {}
    for joined in index:
        latest_calls.setdefault(joined.latest[0], {})[joined.latest[1]] = joined
    for line, raw in records() if latest_calls else ():
        for number, call in enumerate(_logged_calls(raw, form)) if line in latest_calls else ():
            if number in latest_calls[line]:
                yield latest_calls[line][number].dialog(call)


class GrowingLog:
    """Converter from the lines of a growing log to new or longer dialogs.

    `form` defaults to the form of the first readable line. The latest `capacity` conversations are remembered.
    """

    def __init__(self, path: Path, form: LogForm | None = None, capacity: int = MAX_REMEMBERED) -> None:
        self._path = path
        self.form = form
        self._index = CallIndex(capacity)

    def take(self, line: int, text: str | BadLine) -> Iterator[GrownDialog | UnreadableRecord]:
        """Yield the dialogs of the next line; `line` is its 1-based number."""
        if isinstance(text, BadLine):
            yield UnreadableRecord(str(self._path), line, text.message)
            return
        if not text.strip():
            return
        raw = json_record(self._path, line, text)
        try:
            if not isinstance(raw, DatasetError):
                self.form = self.form or detect_form(raw)
            yield from self._grown(raw, line)
        except (FieldError, DatasetError) as error:
            yield unreadable_record(self._path, line, error)

    def _grown(self, raw: Raw | DatasetError, line: int) -> Iterator[GrownDialog | UnreadableRecord]:
        fallback_id = default_id(self._path, line)
        if self.form not in ("spans", "requests"):
            if isinstance(raw, DatasetError):
                raise raw
            yield GrownDialog(dialog_from_record(raw, fallback_id), 0)
            return
        for number, call in enumerate(_logged_calls(raw, self.form)):
            if not call.prompt and not call.answer:
                yield UnreadableRecord(str(self._path), line, _NO_MESSAGES_NOTE.format(count=1))
            elif addition := self._index.add(call, (line, number), fallback_id):
                joined, known_count = addition
                yield GrownDialog(joined.dialog(call), known_count)


def _logged_calls(raw: Raw | DatasetError, form: LogForm) -> Iterator[LoggedCall]:
    if isinstance(raw, DatasetError):
        raise raw
    return span_calls(raw) if form == "spans" else request_calls(raw)
