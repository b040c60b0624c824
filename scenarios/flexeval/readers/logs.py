"""Logs of live systems into dialogs: a whole file at once, or line by line while it grows.

The form of a log is told from its first line that can be read. A whole file is read twice: once to find which calls
make one dialog, keeping no text, and once for the lines that hold the dialogs. What never belongs here: the forms
(``spans``, ``request_logs``, ``records``), and following a file (``growing``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from viva.data.fields import FieldError, Raw
from viva.data.lines import BadLine
from viva.data.reading import Record, json_record
from viva.engine.errors import DatasetError

from ..units import Dialog
from .calls import CallIndex, JoinedCalls, LoggedCall
from .records import LISTS, Unreadable, dialog_of, place_of, unreadable
from .request_logs import is_request, request_calls
from .spans import is_span, span_calls

LogForm: TypeAlias = Literal["dialogs", "spans", "requests"]
MOST_REMEMBERED = 100_000
_SILENT = (
    "{count} calls of models, the first in this line, were recorded without their messages; switch the recording of "
    "message content on where they are recorded (OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT)"
)


@dataclass(frozen=True, slots=True)
class Grown:
    """A dialog as a growing log has it now; its first ``known`` messages were there before, system messages not
    counted.
    """

    dialog: Dialog
    known: int


def form_of(raw: Raw) -> LogForm | None:
    """What a record is; None where nothing tells."""
    if is_span(raw):
        return "spans"
    if is_request(raw):
        return "requests"
    return "dialogs" if any(raw.get(name) is not None for name in LISTS) else None


def read_log(path: Path, form: LogForm, records: Callable[[], Iterator[Record]]) -> Iterator[Dialog | Unreadable]:
    """The dialogs of a log of spans or requests, in the order in which the file completes them.

    :param records: reads the file from its beginning.
    :raises DatasetError: the file cannot be read at all.
    """
    index = CallIndex()
    silent, first = 0, 0
    for line, raw in records():
        try:
            for number, call in enumerate(_calls(raw, form)):
                if not call.sent and not call.answer:
                    silent, first = silent + 1, first or line
                else:
                    index.add(call, (line, number), place_of(path, line))
        except (FieldError, DatasetError) as error:
            yield unreadable(path, line, error)
    if silent:
        yield Unreadable(str(path), first, _SILENT.format(count=f"{silent:,}"))
    wanted: dict[int, dict[int, JoinedCalls]] = {}
    for one in index:
        wanted.setdefault(one.latest[0], {})[one.latest[1]] = one
    for line, raw in records() if wanted else ():
        for number, call in enumerate(_calls(raw, form)) if line in wanted else ():
            if number in wanted[line]:
                yield wanted[line][number].dialog(call)


class GrowingLog:
    """Lines of a growing log into the dialogs that they begin or continue.

    :param form: what the lines are; None: what the first line that can be read is.
    :param most: of how many conversations it is remembered how far they were; the latest ones.
    """

    def __init__(self, path: Path, form: LogForm | None = None, most: int = MOST_REMEMBERED) -> None:
        self._path = path
        self.form = form
        self._index = CallIndex(most)

    def take(self, line: int, text: str | BadLine) -> Iterator[Grown | Unreadable]:
        """What the next line says; ``line`` is its 1-based number."""
        if isinstance(text, BadLine):
            yield Unreadable(str(self._path), line, text.message)
            return
        if not text.strip():
            return
        raw = json_record(self._path, line, text)
        try:
            if not isinstance(raw, DatasetError):
                self.form = self.form or form_of(raw)
            yield from self._grown(raw, line)
        except (FieldError, DatasetError) as error:
            yield unreadable(self._path, line, error)

    def _grown(self, raw: Raw | DatasetError, line: int) -> Iterator[Grown | Unreadable]:
        place = place_of(self._path, line)
        if self.form not in ("spans", "requests"):
            if isinstance(raw, DatasetError):
                raise raw
            yield Grown(dialog_of(raw, place), 0)
            return
        for number, call in enumerate(_calls(raw, self.form)):
            if not call.sent and not call.answer:
                yield Unreadable(str(self._path), line, _SILENT.format(count=1))
            elif found := self._index.add(call, (line, number), place):
                joined, known = found
                yield Grown(joined.dialog(call), known)


def _calls(raw: Raw | DatasetError, form: LogForm) -> Iterator[LoggedCall]:
    if isinstance(raw, DatasetError):
        raise raw
    return span_calls(raw) if form == "spans" else request_calls(raw)
