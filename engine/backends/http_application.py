"""An HTTP application under test, described by a mapping: `http:FILE.yaml` or `http:{…}` (JSON).

Option: `answer_mb`, as for OpenAI-compatible endpoints. An application receives only what its mapping says: no sampling
settings, tools or schema. A session's identifier depends only on the conversation's key, branch and role, so a resumed
run continues the session. Temporary failures (an HTML page, a truncated body or stream) raise `Unavailable` and are
retried; a path that does not exist raises `Rejected`. No message, log or record contains a header's value.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from codecs import getincrementaldecoder
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp
import orjson
from yarl import URL

from ..clock import Clock
from ..errors import BackendError, ConfigurationError, Forbidden, Rejected, Unauthorized, Unavailable
from ..journal import role_in_branch
from ..messages import Completion, Request
from ..tools import number_calls
from .base import Backend, ModelSpec
from .endpoint import AnswerBody, Endpoint
from .endpoint_answer import (
    SurrogateJoiner,
    estimate_missing_counts,
    merge_counts,
    parse_call,
    parse_json,
    parse_usage,
    read_text,
    redact_completion,
)
from .endpoint_backend import KeyTrust, discard_piece
from .http_application_mapping import (
    Application,
    PlaceholderValues,
    RequestTemplate,
    fill_from_environment,
    fill_values,
    has_placeholder,
    has_variable,
    parse_mapping,
    read_mapping,
)
from .model_name import find_inline_mapping, has_url_credentials
from .proxies import proxy_secrets
from .redaction import MultiRedactor, Redactor, is_usable_key
from .sse import CallPieces, SseEvent, SseStream, StreamAssembly, is_keep_alive, read_stream


class MissingInAnswer(Exception):
    """No value at the path; it becomes a BackendError. The message says how far the path leads and what is there."""


class AnswerPath:
    """A path such as `reply.text`. A number is a list index (`-1` is the last) or an object's key."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._steps = text.split(".")

    def find(self, value: Any) -> Any:
        """Return the value at the path, or raise MissingInAnswer."""
        passed: list[str] = []
        for step in self._steps:
            try:
                if isinstance(value, list):
                    value = value[int(step)]
                elif isinstance(value, dict):
                    value = value[step]
                else:
                    raise KeyError(step)
            except (KeyError, IndexError, ValueError):
                where_text = f"'{'.'.join(passed)}'" if passed else "the answer"
                raise MissingInAnswer(f"no value at '{self.text}': {where_text} {describe_json(value)}") from None
            passed.append(step)
        return value


def describe_json(value: Any) -> str:
    """Describe a JSON value for a message: an object's keys, a list's length, or the type."""
    if isinstance(value, dict):
        return f"has the keys {', '.join(map(str, value))}" if value else "is an empty object"
    if isinstance(value, list):
        return f"is a list of {len(value)}"
    if value is None:
        return "is null"
    kinds = {str: "text", bool: "true or false", int: "a number", float: "a number"}
    return f"is {kinds.get(type(value), type(value).__name__)}"


_LONGEST_QUOTE = 200
_USUAL_END = b"[DONE]"


class AnswerReader:
    """Reader of one application's answers. `label` names the application in errors; `redact` removes its keys."""

    def __init__(self, application: Application, label: str, redact: Redactor, clock: Clock) -> None:
        self._stream, self._done = application.stream, application.done
        self.answer = _path_or_none(application.answer)
        self.calls, self.tokens = _path_or_none(application.tool_calls), _path_or_none(application.tokens)
        self._label, self._redact, self._clock = label, redact, clock

    async def read(self, body: AnswerBody, on_text: Callable[[str], None] | None) -> Completion:
        """Return the reply, passing stream pieces to `on_text`. `first_token` is the clock's time of the first."""
        if self._stream == "none":
            return redact_completion(await self._read_whole(body), self._redact)
        events = SseStream(body, self._label, named=self._stream == "sse", records=self.answer is not None)
        reply = _StreamedReply(self)
        first = await read_stream(events, reply, on_text or discard_piece, self._clock, self._redact)
        calls = reply.calls.whole()
        if self._done is not None and not reply.has_ended:
            self._refuse_html(events.non_event, "a stream")
            raise Unavailable(f"the stream broke off before its end ({self._done!r} did not come)", model=self._label)
        if not reply.has_text and not calls:
            raise self._no_answer_error(events, reply.missing)
        completion = parse_usage(reply.counts, self._redact).completion_with(
            "".join(reply.pieces), first_token=first, calls=calls
        )
        return redact_completion(completion, self._redact)

    async def identifier(self, body: AnswerBody, path: str) -> str:
        """Return the session identifier from the answer to the opening request."""
        try:
            value = AnswerPath(path).find(self.json(await body.read_all()))
        except MissingInAnswer as missing:
            raise self._rejected(str(missing)) from None
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            raise self._rejected(f"no identifier at '{path}': it {describe_json(value)}")
        text = str(value)
        if not text.isascii() or not text.isprintable():
            raise self._rejected(f"the identifier at '{path}' is not printable ASCII: {text!r}")
        return text

    async def _read_whole(self, body: AnswerBody) -> Completion:
        data = await body.read_all()
        if self.answer is None:
            self._refuse_html(data, "text")
            return Completion(data.decode("utf-8", "replace"))
        value = self.json(data)
        calls = self.optional(self.calls, value)
        try:
            text = self.text(self.answer.find(value))
        except MissingInAnswer as missing:
            if not calls:
                raise self._rejected(f"{missing}; fix 'answer' in the mapping") from None
            text = ""
        usage = parse_usage(self.optional(self.tokens, value), self._redact)
        try:
            called = number_calls(map(parse_call, calls)) if calls else None
        except (KeyError, TypeError, AttributeError) as error:
            raise self.no_calls(error) from None
        return usage.completion_with(text, calls=called)

    def ends(self, name: str, data: bytes) -> bool:
        """Return True if an event ends the stream."""
        if isinstance(self._done, str):
            return self._done in (name, data.decode("utf-8", "replace").strip())
        return self._stream == "sse" and data.strip() == _USUAL_END

    def ends_with(self, value: Any) -> bool:
        """Return True if an event's value is the stream's last."""
        if not isinstance(self._done, dict) or not isinstance(value, dict):
            return False
        return all(name in value and value[name] == member for name, member in self._done.items())

    def text(self, value: Any) -> str:
        try:
            return read_text(value)
        except TypeError:
            assert self.answer is not None
            problem = f"the value at '{self.answer.text}' {describe_json(value)}, not text; fix 'answer' in the mapping"
            raise self._rejected(problem) from None

    def json(self, data: bytes, subject: str = "the answer", halves: SurrogateJoiner | None = None) -> Any:
        if not data.strip():
            raise Unavailable(f"{subject} is empty; expected JSON", model=self._label)
        try:
            return parse_json(data, self._label, halves)
        except orjson.JSONDecodeError as error:
            self._refuse_html(data, "JSON")
            quoted = self._redact.quote(data, _LONGEST_QUOTE)
            raise Unavailable(f"{subject} is not JSON ({error}): {quoted}", model=self._label) from None

    def _refuse_html(self, data: bytes, expected: str) -> None:
        head = data[:1000].lstrip().lower()
        if head.startswith((b"<!doctype html", b"<html")) or (expected != "text" and head.startswith(b"<")):
            quoted = self._redact.quote(data, _LONGEST_QUOTE)
            raise Unavailable(f"the answer is a page of HTML, not {expected}: {quoted}", model=self._label)

    def _no_answer_error(self, events: SseStream, missing: MissingInAnswer | None) -> BackendError:
        if missing is not None:
            return self._rejected(f"no event of the stream contains the answer: {missing}; fix 'answer' in the mapping")
        self._refuse_html(events.non_event, "a stream")
        quoted = self._redact.quote(events.non_event, _LONGEST_QUOTE)
        return Unavailable(f"the stream contains no event{f': {quoted}' if quoted else ''}", model=self._label)

    def reported(self, data: bytes) -> BackendError:
        quoted = self._redact.quote(data, _LONGEST_QUOTE)
        return Unavailable(f"the stream reported an error: {quoted}", model=self._label)

    def _rejected(self, message: str) -> Rejected:
        return Rejected(self._redact.cut(message, 1000), model=self._label)

    def no_calls(self, error: Exception) -> Rejected:
        assert self.calls is not None
        return self._rejected(f"the value at '{self.calls.text}' is not a list of calls in OpenAI's form: {error}")

    @staticmethod
    def optional(path: AnswerPath | None, value: Any) -> Any:
        try:
            return None if path is None else path.find(value)
        except MissingInAnswer:
            return None


def _path_or_none(text: str | None) -> AnswerPath | None:
    return None if text is None else AnswerPath(text)


class _StreamedReply(StreamAssembly):
    """A reply assembled from stream events."""

    def __init__(self, reader: AnswerReader) -> None:
        self._reader = reader
        self.pieces: list[str] = []
        self.calls, self.counts = CallPieces(), None
        self.has_text = False
        self.missing: MissingInAnswer | None = None  # why an event has no text
        self._halves = SurrogateJoiner()
        self._characters = getincrementaldecoder("utf-8")("replace")  # events may end within a character

    def take(self, record: SseEvent) -> str:
        name, data = record
        reader = self._reader
        if reader.ends(name, data):
            self.has_ended = True
            return ""
        if name == "error":
            raise reader.reported(data)
        if reader.answer is None:
            piece, self.has_text = self._characters.decode(data), True
        else:
            piece = "" if is_keep_alive(data) else self._take_json(data, reader.answer)
        self.pieces.append(piece)
        return piece

    def _take_json(self, data: bytes, answer: AnswerPath) -> str:
        reader = self._reader
        value = reader.json(data, "an event of the stream", self._halves)
        piece = ""
        try:
            piece, self.has_text = reader.text(answer.find(value)), True
        except MissingInAnswer as error:
            if isinstance(value, dict) and value.get("error"):
                raise reader.reported(data) from None
            self.missing = error
        try:
            self.calls.add(reader.optional(reader.calls, value) or [])
        except (KeyError, TypeError, AttributeError) as error:
            raise reader.no_calls(error) from None
        self.counts = merge_counts(self.counts, reader.optional(reader.tokens, value))
        self.has_ended = reader.ends_with(value)
        return piece


_SESSION_NAMESPACE = uuid.UUID("6f1c0d1e-0f0b-5a53-9d3e-8f3a2f6f4c11")


@dataclass(slots=True)
class Session:
    """Session of one conversation. `contacted` is True once the application has received a request of it."""

    id: str
    jar: aiohttp.CookieJar | None
    opened: bool = False
    contacted: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def cookie_header(self, url: str) -> dict[str, str]:
        """Return the header with the cookies stored for a URL; empty if there are none."""
        cookies = self.jar.filter_cookies(URL(url)) if self.jar is not None else {}
        text = "; ".join(f"{name}={cookie.coded_value}" for name, cookie in cookies.items())
        return {"Cookie": text} if text else {}

    def keep_cookies(self, body: AnswerBody) -> None:
        """Store the cookies of an answer, if enabled."""
        if self.jar is not None:
            self.jar.update_cookies(body.response.cookies, body.response.url)


class Sessions:
    """Sessions of the running conversations. `salt` changes all identifiers; `cookies` enables cookies."""

    def __init__(self, salt: str, *, cookies: bool) -> None:
        self._salt, self._cookies = salt, cookies
        self._open: dict[str, dict[str, Session]] = {}

    def for_request(self, request: Request) -> Session:
        """Return the session for a request's conversation, branch and role."""
        roles = self._open.setdefault(request.affinity, {})
        role = role_in_branch(request.branch, request.role)
        session = roles.get(role)
        if session is None:
            jar = aiohttp.CookieJar(unsafe=True) if self._cookies else None  # unsafe: accept IP addresses
            session = roles[role] = Session(self.identifier(request.conversation, role), jar)
        return session

    def identifier(self, conversation: str, role: str) -> str:
        """Return a UUID derived from the salt, the conversation's key and the role in its branch."""
        return str(uuid.uuid5(_SESSION_NAMESPACE, "\x1f".join((self._salt, conversation, role))))

    def forget(self, affinity: str) -> list[Session]:
        """Remove a conversation's sessions; return the sessions that the application knows."""
        return [session for session in self._open.pop(affinity, {}).values() if session.contacted]


T = TypeVar("T")

_log = logging.getLogger("viva")
_CLOSING_SECONDS = 10.0  # real seconds, at the end of a run
_KEY_ADVICE = "check the key in the headers of the mapping, and the environment variable that it comes from"
_NO_KEY_ADVICE = "the mapping sends no key; if the application wants one, give headers with ${NAME}"
# Headers whose values are not secret and may well occur in answers.
_PLAIN_HEADERS = ("accept", "accept-encoding", "accept-language", "content-type", "origin", "referer", "user-agent")


class _ResolvedMapping:
    """An application's mapping with environment variables filled in."""

    def __init__(self, application: Application, mapping_name: str, longest: int) -> None:
        self.secrets: list[str] = []
        self._mapping_name = mapping_name
        self.urls = {template.url: self._url(template.url, field) for field, template in _all_requests(application)}
        headers = {name: self._header(name, value) for name, value in application.headers.items()}
        self.by_session = {name: value for name, value in headers.items() if has_placeholder(value, "session")}
        self.salt = fill_from_environment(application.session_salt, "session_salt", mapping_name)[0]
        self.redact: Redactor = MultiRedactor([*self.secrets, *proxy_secrets()])
        address = self.redact(self.urls[application.url].partition("?")[0])
        fixed = {name: value for name, value in headers.items() if name not in self.by_session}
        advice = _KEY_ADVICE if self.secrets else _NO_KEY_ADVICE
        self.endpoint = Endpoint(address, self.redact, application.timeout, longest, fixed, advice, repeatable=False)

    def _url(self, template: str, field: str) -> str:
        address, slash, rest = _split_url(template)
        address, _ = fill_from_environment(
            address, field, self._mapping_name
        )  # the application's address, which errors must show
        rest, values = fill_from_environment(rest, field, self._mapping_name)
        self._keep(values, field)
        url = address + slash + rest
        try:
            known = URL(url).origin().scheme in ("http", "https")
        except ValueError:
            known = False
        if has_url_credentials(url) or not known:
            raise ConfigurationError(
                f"{self._mapping_name}: {field}: its environment variables must make it a URL that begins with http:// "
                "or https:// and contains no password; fix them"
            )
        return url

    def _header(self, name: str, template: str) -> str:
        value, values = fill_from_environment(template, f"headers.{name}", self._mapping_name)
        plain = name.lower() in _PLAIN_HEADERS or has_placeholder(template, "session")
        self._keep(values if has_variable(template) else [] if plain else [value], f"headers.{name}")
        return value

    def _keep(self, values: list[str], field: str) -> None:
        """Record secret values."""
        for value in values:
            if not is_usable_key(value):
                raise ConfigurationError(
                    f"{self._mapping_name}: {field}: the value is not plain text: printable ASCII characters without a "
                    "backslash; set its environment variable again"
                )
            self.secrets.append(value)


class ApplicationBackend(Backend):
    """An HTTP application. `name` names the mapping in errors; `longest` limits the bytes of an answer."""

    fallible = True

    def __init__(self, clock: Clock, application: Application, name: str, longest: int = 64_000_000) -> None:
        self._application, self._mapping_name, self._longest = application, name, longest
        self._clock = clock
        self._trust = KeyTrust()
        self._opened: _ResolvedMapping | None = None
        self._reader: AnswerReader | None = None
        self._sessions = Sessions("", cookies=False)
        self._closing: set[asyncio.Task[None]] = set()
        self._warned: set[str] = set()
        self._system_apart = has_placeholder(application.body, "system")

    async def __aenter__(self) -> Backend:
        opened = _ResolvedMapping(self._application, self._mapping_name, self._longest)
        await opened.endpoint.open()
        self._opened = opened
        self._reader = AnswerReader(self._application, self.label, opened.redact, self._clock)
        self._sessions = Sessions(opened.salt, cookies=self._application.cookies)
        return self

    async def __aexit__(self, *exc: object) -> None:
        try:
            if self._closing:
                await asyncio.wait(self._closing, timeout=_CLOSING_SECONDS)
        finally:
            if self._closing:
                self._warn("close", f"{len(self._closing)} sessions were not closed within {_CLOSING_SECONDS:g} s")
            for task in self._closing:
                task.cancel()
            if self._opened is not None:
                await self._opened.endpoint.close()

    async def check(self) -> None:
        """Check that the application's host answers at all."""

        async def receive(body: AnswerBody) -> None:
            return None

        opened = self._open
        origin = str(URL(opened.urls[self._application.url]).origin())
        await opened.endpoint.ask(self.label, origin, None, receive, accept=lambda status: True, method="HEAD")

    async def generate(self, request: Request) -> Completion:
        """Answer one request. The first request of a conversation opens its session if the mapping says how."""
        began = self._clock.now()
        session = self._sessions.for_request(request)
        if not session.contacted:
            self._look_at_history(request)
        await self._open_session(session)
        filling = fill_values(request, session.id, system_apart=self._system_apart)
        reader = self._answers

        async def receive(body: AnswerBody) -> Completion:
            session.keep_cookies(body)
            return await reader.read(body, request.on_text)

        session.contacted = True
        completion = await self._send(self._application, filling, session, receive)
        if completion.first_token is not None:
            completion.first_token -= began
        completion.latency = self._clock.now() - began
        estimate_missing_counts(completion, request)
        return completion

    def ended(self, affinity: str) -> None:
        """Close the conversation's sessions if the mapping says how; failures are warnings."""
        for session in self._sessions.forget(affinity):
            if self._application.close is not None:
                # A separate context: a stopping run must not interrupt the closing of a session.
                task = asyncio.get_running_loop().create_task(self._close_session(session), context=Context())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)

    def interrupted(self, affinity: str) -> None:
        """Keep the session open, because a resumed run continues it."""
        self._sessions.forget(affinity)

    def statistics(self) -> dict[str, Any]:
        return {} if self._opened is None else {"connections": self._opened.endpoint.connections}

    @property
    def _open(self) -> _ResolvedMapping:
        if self._opened is None:
            raise ConfigurationError(f"{self.label}: the backend is used outside its `async with`")
        return self._opened

    @property
    def _answers(self) -> AnswerReader:
        if self._reader is None:
            raise ConfigurationError(f"{self.label}: the backend is used outside its `async with`")
        return self._reader

    async def _open_session(self, session: Session) -> None:
        template = self._application.open
        if template is None or session.opened:
            return
        async with session.lock:  # calls of one conversation may overlap
            if session.opened:
                return
            path, reader = template.id, self._answers

            async def receive(body: AnswerBody) -> str:
                session.keep_cookies(body)
                if path is None:
                    await body.read_all()
                    return session.id
                return await reader.identifier(body, path)

            try:
                session.id = await self._send(template, PlaceholderValues(session=session.id), session, receive)
            except BackendError as error:
                error.args = (f"{self.label}: opening the session: {str(error).removeprefix(f'{self.label}: ')}",)
                raise
            session.opened = True

    async def _close_session(self, session: Session) -> None:
        template = self._application.close
        assert template is not None
        try:
            await self._send(template, PlaceholderValues(session=session.id), session, AnswerBody.read_all)
        except BackendError as error:
            self._warn("close", f"a session could not be closed: {str(error).removeprefix(f'{self.label}: ')}")

    async def _send(
        self,
        template: RequestTemplate,
        filling: PlaceholderValues,
        session: Session,
        receive: Callable[[AnswerBody], Awaitable[T]],
    ) -> T:
        opened = self._open
        url = filling.text(opened.urls[template.url], lambda value: quote(value, safe=""))
        body = None if template.body is None else orjson.dumps(filling.json(template.body))
        headers = {name: filling.text(value) for name, value in opened.by_session.items()} | session.cookie_header(url)
        try:
            async with self._trust.call():
                return await opened.endpoint.ask(
                    self.label, url, body, receive, accept=_is_success, method=template.method, headers=headers
                )
        except Unauthorized as error:
            if opened.secrets:
                raise
            # The key is not wrong: the application refuses this conversation, and the run continues.
            message = str(error).removeprefix(f"{error.model}: ")
            raise Forbidden(message, model=error.model, status=error.status) from None

    def _look_at_history(self, request: Request) -> None:
        """Warn, or raise Rejected, if the application can neither receive nor know the history."""
        replies = sum(message.role == "assistant" for message in request.messages)
        if not replies or self._application.sends_history:
            return
        opens = self._application.open
        if request.ordinal and opens is not None and opens.id is not None:
            raise Rejected(
                f"the session of this conversation was opened by a process that has ended, and the body does not "
                f"send the history: the application cannot know the {replies} earlier turns. Send {{messages}}, use "
                "sessions without open.id, or rerun the conversation",
                model=self.label,
            )
        if not request.ordinal:
            self._warn(
                "history",
                f"conversations begin with turns that the application has not seen ({replies} of the assistant), and "
                f"the body sends only the last message; send {{messages}} ({self._mapping_name})",
            )

    def _warn(self, subject: str, message: str) -> None:
        """Log a warning once."""
        if subject not in self._warned:
            self._warned.add(subject)
            _log.warning("%s: %s", self.label, message)


def _is_success(status: int) -> bool:
    return 200 <= status < 300


def _all_requests(application: Application) -> list[tuple[str, RequestTemplate]]:
    """Return all requests of a mapping with the names of their URL fields."""
    requests: list[tuple[str, RequestTemplate | None]] = [("url", application)]
    requests += [("open.url", application.open), ("close.url", application.close)]
    return [(field, template) for field, template in requests if template is not None]


def _split_url(url: str) -> tuple[str, str, str]:
    """Split a URL into origin, separator, and path with the remainder; `${…}` may occur anywhere."""
    scheme, mark, rest = url.partition("://")
    if not mark:
        scheme, rest = "", url
    at = min((rest.find(sign) for sign in "/?" if sign in rest), default=len(rest))
    return scheme + mark + rest[:at], rest[at : at + 1], rest[at + 1 :]


def build(spec: ModelSpec, clock: Clock) -> Backend:
    """Build an application from its model name."""
    if not spec.where:
        raise ConfigurationError(f"model '{spec.text}': name the mapping's file (http:app.yaml), or write it in braces")
    if spec.where.startswith("//"):
        raise ConfigurationError(
            f"model '{spec.text}': the kind http takes the file of a mapping, not a URL; write a mapping with url, "
            f"body and answer, or, for an OpenAI-compatible endpoint, openai:{spec.text}"
        )
    longest = int(spec.number("answer_mb", 64.0, 0.001, 100_000.0) * 1e6)
    inline = find_inline_mapping(spec.text)
    if inline is not None:
        return ApplicationBackend(clock, parse_mapping(inline.value, "http:{…}"), "http:{…}", longest)
    return ApplicationBackend(clock, read_mapping(Path(spec.where).expanduser()), spec.where, longest)
