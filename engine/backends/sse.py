"""Server-sent events of all providers: a streamed body as events, JSON records, and tool calls from their pieces.

Events follow the HTML standard, with common deviations of endpoints: an event ended by the end of the body, one event
per line, a record sent whole although a stream was requested, keep-alives in place of data, errors as events.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import orjson

from ..clock import Clock
from ..errors import BackendError, Unavailable
from ..tools import ToolCall, argument_text, number_calls
from .endpoint import BYTE_ORDER_MARK, AnswerBody, Endpoint
from .endpoint_answer import FORMAT_ERRORS, PartWithoutText, SurrogateJoiner, answer_error, parse_json
from .redaction import Redactor

_LONGEST_TRIED = 1 << 14  # longest arguments that are parsed to see whether a call is complete
_MOST_OTHER = 1000  # bytes kept of lines that are not events
_LONGEST_SIGN = 32  # longest keep-alive or end mark, in bytes
_BLANKS = b" \t\0"
_NO_LETTER = re.compile(rb"[\x00-\x20!-/:-@\[-`{-~]+")
# Keep-alives, as the data or the name of an event, without blanks and punctuation.
_KEEP_ALIVES = frozenset((b"", b"null", b"none", b"undefined", b"ping", b"pong", b"keepalive", b"heartbeat"))
# HTTP status of an error in a stream, by documented codes and types: Anthropic's, OpenAI's and compatible servers',
# Google's.
_NAMES_BY_STATUS = {
    400: "invalid_request_error badrequesterror context_length_exceeded invalid_argument failed_precondition",
    401: "authentication_error authenticationerror invalid_api_key unauthenticated",
    402: "billing_error",
    403: "permission_error permissiondeniederror permission_denied",
    404: "not_found_error notfounderror model_not_found not_found",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error rate_limit_exceeded ratelimiterror insufficient_quota resource_exhausted",
    503: "unavailable",
    504: "deadline_exceeded timeout_error",
    529: "overloaded_error",
}
_STATUS = {name: status for status, names in _NAMES_BY_STATUS.items() for name in names.split()}
_OTHER_STATUS = 500
_MESSAGE_FIELDS = ("message", "detail", "msg", "error_msg")  # fields of errors that are not called `error`


# The name of an event ("" if none) and its data.
SseEvent = tuple[str, bytes]


class SseParser:
    """Parser of events in a body that arrives in arbitrary pieces.

    If `named`, the body has server-sent events; otherwise each non-blank line is one event. If `records`, each event is
    one JSON object. A data line after a complete object then begins another event, because some endpoints leave out the
    blank line; so does a line with a bare object, because gateways insert errors in this form. `non_event` is the
    beginning of all other lines, for errors.
    """

    def __init__(self, *, named: bool = True, records: bool = False) -> None:
        self._named, self._records = named, records
        self._begun: list[bytes] = []  # pieces of an incomplete line
        self._at_start = True
        self._after_return = False  # the last piece ended in "\r": a following "\n" belongs to it
        self._name = ""
        self._data: list[bytes] = []
        self.non_event = b""

    def feed(self, piece: bytes) -> list[SseEvent]:
        """Return the events that a piece completes."""
        events: list[SseEvent] = []
        if self._at_start:
            self._begun.append(piece)
            whole = b"".join(self._begun)
            if len(whole) < len(BYTE_ORDER_MARK) and BYTE_ORDER_MARK.startswith(whole):
                return events
            self._at_start, self._begun, piece = False, [], whole.removeprefix(BYTE_ORDER_MARK)
        begun = self._begun or self._data or self._name or self._after_return or not self._named
        if not begun and piece.endswith(b"\n\n") and b"\r" not in piece:  # the usual case: whole events
            for block in piece[:-2].split(b"\n\n"):
                if block.startswith(b"data: ") and b"\n" not in block:
                    events.append(("", block[6:]))
                else:
                    for line in block.split(b"\n"):
                        self._take(line, events)
                    self._dispatch(events)
            return events
        if self._after_return:
            piece = piece.removeprefix(b"\n")
        self._after_return = piece.endswith(b"\r")
        *lines, rest = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        if lines:
            lines[0] = b"".join([*self._begun, lines[0]])
            self._begun = []
            for line in lines:
                self._take(line, events)
        if rest:
            self._begun.append(rest)
        return events

    def end(self) -> list[SseEvent]:
        """Return the event that the end of the body completes, if any."""
        events: list[SseEvent] = []
        if self._begun:
            self._take(b"".join(self._begun), events)
            self._begun = []
        self._dispatch(events)
        return events

    def _take(self, line: bytes, events: list[SseEvent]) -> None:
        if not self._named:
            if line.strip():
                events.append(("", line))
            return
        if not line:
            self._dispatch(events)
            return
        if self._records and line[0] in b"{ \t\0":
            line = line.lstrip(_BLANKS)
            if line.startswith(b"{"):
                self._dispatch(events)
                events.append(("", line))
                return
        if line.startswith(b"data:") or line == b"data":
            if self._records and len(self._data) == 1 and _is_whole(self._data[0]):
                self._dispatch(events)
            self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            return
        field, _, value = line.partition(b":")
        if field == b"event":
            self._name = value.strip().decode("utf-8", "replace")
        elif field and field not in (b"id", b"retry") and len(self.non_event) < _MOST_OTHER:
            self.non_event += line[:_MOST_OTHER] + b"\n"

    def _dispatch(self, events: list[SseEvent]) -> None:
        if self._data:
            events.append((self._name, b"\n".join(self._data)))
            self._data = []
        self._name = ""


class SseStream:
    """The events of a body; arguments as for `SseParser`."""

    def __init__(self, body: AnswerBody, label: str, *, named: bool = True, records: bool = False) -> None:
        self._body, self.label = body, label
        self._parser = SseParser(named=named, records=records)
        self._ready: deque[SseEvent] = deque()
        self._at_end = False

    @property
    def non_event(self) -> bytes:
        """Beginning of all lines that were not events, for errors."""
        return self._parser.non_event

    async def next(self) -> Any:
        """Return the next event, None at the end; raise BackendError if the stream broke off or reports an error."""
        while not self._ready:
            if self._at_end:
                return None
            self._parse(await self._body.piece())
        return self._ready.popleft()

    def malformed(self, problem: str) -> Unavailable:
        """Return the error for an unexpected event."""
        return Unavailable(f"the stream contains {problem}", model=self.label)

    def _parse(self, piece: bytes) -> None:
        self._at_end = not piece
        self._ready.extend(self._parser.feed(piece) if piece else self._parser.end())


class JsonRecordStream(SseStream):
    """The JSON objects of an answer that was requested as a stream.

    `is_whole` means that the body is JSON instead of a stream: an answer, an error, or a list of events. `data` is the
    last object as received; `done` says that `[DONE]` has arrived.
    """

    def __init__(self, body: AnswerBody, endpoint: Endpoint, label: str) -> None:
        super().__init__(body, label, records=True)
        self._endpoint = endpoint
        self._halves = SurrogateJoiner()
        self._begun = b""  # leading bytes, so far only blanks
        self._has_begun = self.is_whole = self.done = False
        self.data = b""

    async def next(self) -> dict[str, Any] | None:
        """Return the next object, None at the end; raise BackendError if the stream broke off or reports an error."""
        while True:
            while self._ready:
                name, data = self._ready.popleft()
                before, self.data = self.data, data
                record = self._record(name, data)
                if record is not None:
                    return record
                self.data = before
                if self.done:
                    return None
            if self._at_end:
                return None
            piece = await self._body.piece()
            if self._has_begun:
                self._parse(piece)
            else:
                await self._begin(piece)

    async def _begin(self, piece: bytes) -> None:
        """Detect the body's format from its first bytes."""
        self._begun += piece
        head = self._begun.removeprefix(BYTE_ORDER_MARK).lstrip()
        if piece and BYTE_ORDER_MARK.startswith(head):  # only blanks, or a part of the byte order mark
            return
        self._has_begun = True
        if head.startswith((b"{", b"[")):
            self.is_whole = True
            await self._read_whole(head)
            return
        if self._begun:
            self._parse(self._begun)
        if not piece:
            self._parse(b"")

    def malformed(self, problem: str) -> Unavailable:
        """Return the error for an unexpected record; the error quotes the record."""
        quoted = f": {self._endpoint.redact.quote(self.data, 200)}" if self.data else ""
        return Unavailable(f"the stream contains {problem}{quoted}", model=self.label)

    def broken_off(self) -> Unavailable:
        """Return the error for a stream that ended before the answer did."""
        other = self._endpoint.redact.quote(self._parser.non_event, 200).strip()
        quoted = f": {other}" if other else ""
        return Unavailable(f"the stream broke off before its end{quoted}", model=self.label)

    def _record(self, name: str, data: bytes) -> dict[str, Any] | None:
        """Return the object of an event; None for a keep-alive."""
        if name or not data.startswith(b"{"):  # rare
            data = data.strip()
            while data.startswith(b"data:"):  # some servers add the prefix twice
                data = data.removeprefix(b"data:").lstrip()
            if len(data) <= _LONGEST_SIGN and _letters(data) == b"done":
                self.done = True
                return None
            if is_keep_alive(data) or (name and _is_keep_alive_name(name)):
                return None
            if name == "error":
                raise self._reported(_record_of(data), data)
        try:
            record = parse_json(data, self.label, self._halves)
        except (orjson.JSONDecodeError, ValueError):
            raise self.malformed("data that is not JSON") from None
        if isinstance(record, list) and len(record) == 1:
            [record] = record
        if not isinstance(record, dict):
            raise self.malformed("data that is not a JSON object")
        failed = _error_in(record)
        if failed is not None:
            raise self._reported(failed, data if failed is record else orjson.dumps(failed))
        return record

    def _reported(self, record: Mapping[str, Any], data: bytes) -> BackendError:
        return self._endpoint.error(self.label, status_of_error(record), data)

    async def _read_whole(self, head: bytes) -> None:
        """Read a JSON body: one object, a list of objects, or an object on each line."""
        pieces = [head]
        while piece := await self._body.piece():
            pieces.append(piece)
        self._at_end = True
        data = b"".join(pieces).strip()
        try:
            value = parse_json(data, self.label)
        except orjson.JSONDecodeError:
            self._ready.extend(("", line) for line in data.splitlines())
            return
        parts = [orjson.dumps(record) for record in value] if isinstance(value, list) else [data]
        self._ready.extend(("", part) for part in parts)


class StreamAssembly(ABC):
    """An answer assembled from the records of its stream."""

    has_call = False  # a function call has begun
    has_ended = False  # no more records are needed

    @abstractmethod
    def take(self, record: Any) -> str:
        """Add a record; return the text that it adds to the answer. May raise any of `FORMAT_ERRORS`."""

    def remaining_text(self) -> str:
        """Return text that is known to be the answer's only once the stream has ended."""
        return ""


class RecordAssembly(StreamAssembly):
    """An answer assembled into the form that the provider would have sent without streaming."""

    @property
    @abstractmethod
    def is_whole(self) -> bool:
        """Return True if the end of the answer has arrived."""

    @abstractmethod
    def answer(self) -> Any: ...


async def read_stream(
    records: SseStream,
    assembly: StreamAssembly,
    on_text: Callable[[str], None],
    clock: Clock,
    redact: Redactor,
    form: str = "an answer",
) -> float | None:
    """Read a stream to its end, passing on each piece of text without the key.

    Returns:
        The clock's time of the first piece of text, or of a call.

    Raises:
        BackendError: The stream reported an error, broke off, is too long, or is no `form`.
    """
    first: float | None = None
    out = redact.stream(on_text)
    while not assembly.has_ended and (record := await records.next()) is not None:
        try:
            piece = assembly.take(record)
        except PartWithoutText as part:
            raise answer_error("", records.label, redact, b"", part) from None
        except FORMAT_ERRORS:
            raise records.malformed(f"data that is not part of {form}") from None
        if first is None and (piece or assembly.has_call):
            first = clock.now()
        if piece:
            out.feed(piece)
    if remaining := assembly.remaining_text():
        first = clock.now() if first is None else first
        out.feed(remaining)
    out.finish()
    return first


def is_keep_alive(data: bytes) -> bool:
    """Return True for data without meaning, which some endpoints send instead of comments."""
    if len(data) > _LONGEST_SIGN:
        return data[:_LONGEST_SIGN].lstrip().startswith(b":")
    return data.lstrip().startswith(b":") or _letters(data) in _KEEP_ALIVES


@lru_cache(maxsize=64)
def _is_keep_alive_name(name: str) -> bool:
    return _letters(name.encode()) in _KEEP_ALIVES


def _letters(data: bytes) -> bytes:
    return _NO_LETTER.sub(b"", data).lower()


def is_error_record(record: Mapping[str, Any]) -> bool:
    """Return True if a record is an error instead of part of an answer, whatever the HTTP status."""
    if record.get("error"):
        return True
    if "choices" in record or "candidates" in record:
        return False
    if "error" in (record.get("type"), record.get("object")):
        return True
    return "type" not in record and any(isinstance(record.get(name), str) for name in _MESSAGE_FIELDS)


def _error_in(record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the error in a record or in its choice, where OpenRouter writes errors."""
    if is_error_record(record):
        return record
    choices = record.get("choices")
    choice = choices[0] if choices and isinstance(choices, list) else None
    return choice if isinstance(choice, dict) and choice.get("error") else None


def error_in_answer(endpoint: Endpoint, label: str, data: bytes) -> BackendError | None:
    """Return the error that a whole answer or its choice contains; None if there is none."""
    failed = _error_in(_record_of(data))
    return None if failed is None else endpoint.error(label, status_of_error(failed), orjson.dumps(failed))


def _record_of(data: bytes) -> Mapping[str, Any]:
    """Return the JSON object in the data, alone or as the only list item; else an empty one."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {}
    if isinstance(value, list) and len(value) == 1:
        [value] = value
    return value if isinstance(value, dict) else {}


def status_of_error(record: Mapping[str, Any]) -> int:
    """Return the HTTP status for an error within a stream; 500 if unknown."""
    error = record.get("error")
    places = [error, record] if isinstance(error, dict) else [record]
    values = [part.get(name) for part in places for name in ("code", "status", "status_code", "type")]
    for value in values:
        if isinstance(value, str) and value.isascii() and value.isdigit():
            value = int(value[:4])
        if type(value) is int and 400 <= value < 600:
            return value
    names = (value.lower() for value in values if isinstance(value, str))
    return next((_STATUS[name] for name in names if name in _STATUS), _OTHER_STATUS)


def _is_whole(data: bytes) -> bool:
    """Return True if a line of data is a complete event of a stream of objects."""
    data = data.strip()
    if not (data.startswith(b"{") and data.endswith(b"}")):
        return data == b"[DONE]"
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    return True


class _CallPiece:
    """A call assembled from its pieces. `position` is its order among the calls."""

    __slots__ = ("arguments", "id", "name", "position")

    def __init__(self, position: int) -> None:
        self.position, self.id, self.name = position, "", ""
        self.arguments: list[str] = []

    def accepts(self, id_: str, name: str, arguments: str, *, is_next: bool) -> bool:
        """Return True if a piece may belong to this call: a call has one name, and its own id if ids are given.

        `is_next` means that no other piece of the same chunk belongs to this call.
        """
        if not name or not self.name:
            return True
        if id_ and self.id:
            return id_ == self.id and (name == self.name or not self._is_whole())
        return is_next and name == self.name and not (arguments and self._is_whole())

    def add(self, id_: str, name: str, arguments: str) -> None:
        """Add a piece.

        The first id and name count: some endpoints repeat them, repeat the whole call at its end, or begin it with an
        empty object in place of the arguments.
        """
        self.id, self.name = self.id or id_, self.name or name
        if not arguments:
            return
        if arguments.lstrip().startswith("{") and self._is_whole():
            known = "".join(self.arguments)
            if arguments == known:
                return
            if not known.strip("{} "):
                self.arguments.clear()
        self.arguments.append(arguments)

    def _is_whole(self) -> bool:
        if not self.arguments or not self.arguments[-1].rstrip().endswith("}"):
            return False
        if len(self.arguments) > _LONGEST_TRIED or sum(map(len, self.arguments)) > _LONGEST_TRIED:
            return False
        try:
            orjson.loads("".join(self.arguments))
        except orjson.JSONDecodeError:
            return False
        return True


class CallPieces:
    """The calls of a stream, in the order of their indices.

    Some endpoints number calls, some repeat their ids, some do both, and some number every call as the first. A piece
    belongs to the call with its id, else to the latest call with its index, else to the latest call. It begins a new
    call if it has a name and another id, or a name and nothing else to identify its call.
    """

    def __init__(self) -> None:
        self._calls: list[_CallPiece] = []
        self._latest: dict[int, _CallPiece] = {}  # by index
        self._by_id: dict[str, _CallPiece] = {}
        self._next = 0  # position of a call without an index

    @property
    def has_begun(self) -> bool:
        """Return True if there is a call."""
        return bool(self._calls)

    def add(self, parts: list[dict[str, Any]]) -> None:
        """Add the pieces of a chunk.

        Raises:
            KeyError, TypeError, AttributeError: The parts are no pieces of calls.
        """
        earlier: set[_CallPiece] = set()  # calls with a piece in the same chunk, which has at most one per call
        for part in parts:
            function = part.get("function") or {}
            id_, name = str(part.get("id") or ""), str(function.get("name") or "")
            arguments = argument_text(function.get("arguments"))
            call = self._call(parse_index(part), id_, name, arguments, earlier)
            call.add(id_, name, arguments)
            earlier.add(call)
            if id_:
                self._by_id.setdefault(id_, call)

    def _call(self, index: int | None, id_: str, name: str, arguments: str, earlier: set[_CallPiece]) -> _CallPiece:
        """Return the call that a piece belongs to or begins."""
        known = self._by_id.get(id_) if id_ else None
        call: _CallPiece | None
        if index is not None and index in self._latest:
            call = known if known is not None and known.position == index else self._latest[index]
        elif index is None:
            call = known or (self._calls[-1] if self._calls else None)
        else:
            call = None if name else known
        if call is not None and call.accepts(id_, name, arguments, is_next=call not in earlier):
            return call
        call = _CallPiece(self._next if index is None else index)
        self._next = max(self._next, call.position + 1)
        self._calls.append(call)
        self._latest[call.position] = call
        return call

    def whole(self) -> list[ToolCall] | None:
        """Return the calls; None if there are none."""
        if not self._calls:
            return None
        ordered = sorted(self._calls, key=lambda call: call.position)
        return number_calls((call.id, call.name, "".join(call.arguments)) for call in ordered)


def parse_index(part: dict[str, Any]) -> int | None:
    """Return the index of a choice or call piece, None if absent; raise TypeError if it is no number."""
    index = part.get("index")
    if index is None or type(index) is int:
        return index
    if isinstance(index, str) and (not index.strip() or (index.strip().isascii() and index.strip().isdigit())):
        return int(index) if index.strip() else None
    if isinstance(index, float) and index.is_integer():
        return int(index)
    raise TypeError(f"an index is {index!r}, not a number")
