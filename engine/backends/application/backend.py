"""An HTTP application under examination, by a small mapping: ``http:FILE.yaml``, or ``http:{…}`` with the mapping as
compact JSON in the name. Option: ``answer_mb``, as for OpenAI-compatible endpoints.

An application is asked with what its mapping sends: no sampling settings, no tools, no schema. What never belongs here:
retries and limits (wrappers do that), and a header's value in any message, log or record.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import Context
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import orjson
from yarl import URL

from ...clock import Clock
from ...errors import BackendError, ConfigurationError, Forbidden, Rejected, Unauthorized
from ...messages import Completion, Request
from ..base import Backend, ModelSpec
from ..credentials import url_credentials
from ..endpoint import Body, Endpoint
from ..inline_place import inline_place
from ..key_trust import Trust
from ..network import proxy_secrets
from ..openai_usage import estimated
from ..secrets import Redactor, Redactors, usable_key
from .answers import AnswerReader
from .mapping import Application, RequestTemplate, check_mapping, read_mapping
from .placeholders import Filling, filling_of, from_environment, has_variable, mentions
from .sessions import Session, Sessions

T = TypeVar("T")

_log = logging.getLogger("viva")
_CLOSING_SECONDS = 10.0  # real ones, at the end of a run
_KEY_ADVICE = "check the key in the headers of the mapping, and the environment variable that it comes from"
_NO_KEY_ADVICE = "the mapping sends no key; if the application wants one, give headers with ${NAME}"
# Headers whose values are no secrets; they may well occur in answers.
_PLAIN_HEADERS = ("accept", "accept-encoding", "accept-language", "content-type", "origin", "referer", "user-agent")


class _Opened:
    """What an application's mapping becomes once the environment is read."""

    def __init__(self, application: Application, shown: str, longest: int) -> None:
        self.secrets: list[str] = []
        self._shown = shown
        self.urls = {template.url: self._url(template.url, field) for field, template in _requests(application)}
        headers = {name: self._header(name, value) for name, value in application.headers.items()}
        self.by_session = {name: value for name, value in headers.items() if mentions(value, "session")}
        self.salt = from_environment(application.session_salt, "session_salt", shown)[0]
        self.redact: Redactor = Redactors([*self.secrets, *proxy_secrets()])
        place = self.redact(self.urls[application.url].partition("?")[0])
        fixed = {name: value for name, value in headers.items() if name not in self.by_session}
        advice = _KEY_ADVICE if self.secrets else _NO_KEY_ADVICE
        self.endpoint = Endpoint(place, self.redact, application.timeout, longest, fixed, advice, repeatable=False)

    def _url(self, template: str, field: str) -> str:
        place, slash, rest = _split(template)
        place, _ = from_environment(place, field, self._shown)  # where the application is, which errors must show
        rest, values = from_environment(rest, field, self._shown)
        self._keep(values, field)
        url = place + slash + rest
        try:
            known = URL(url).origin().scheme in ("http", "https")
        except ValueError:
            known = False
        if url_credentials(url) or not known:
            raise ConfigurationError(
                f"{self._shown}: {field}: with its environment variables it is no URL that begins with http:// or "
                "https:// and holds no password; mend it"
            )
        return url

    def _header(self, name: str, template: str) -> str:
        value, values = from_environment(template, f"headers.{name}", self._shown)
        plain = name.lower() in _PLAIN_HEADERS or mentions(template, "session")
        self._keep(values if has_variable(template) else [] if plain else [value], f"headers.{name}")
        return value

    def _keep(self, values: list[str], field: str) -> None:
        """Remember what must not be shown."""
        for value in values:
            if not usable_key(value):
                raise ConfigurationError(
                    f"{self._shown}: {field}: the value is not plain text: printable ASCII characters without a "
                    "backslash; set its environment variable anew"
                )
            self.secrets.append(value)


class ApplicationBackend(Backend):
    """See the module. ``shown`` names the mapping in errors; ``longest`` bounds the bytes of an answer."""

    fallible = True

    def __init__(self, clock: Clock, application: Application, shown: str, longest: int = 64_000_000) -> None:
        self._application, self._shown, self._longest = application, shown, longest
        self._clock = clock
        self._trust = Trust()
        self._opened: _Opened | None = None
        self._reader: AnswerReader | None = None
        self._sessions = Sessions("", cookies=False)
        self._closing: set[asyncio.Task[None]] = set()
        self._warned: set[str] = set()
        self._system_apart = mentions(application.body, "system")

    async def __aenter__(self) -> Backend:
        opened = _Opened(self._application, self._shown, self._longest)
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
        """As the base says: any answer of the place shows that it is there."""

        async def receive(body: Body) -> None:
            return None

        opened = self._open
        place = str(URL(opened.urls[self._application.url]).origin())
        await opened.endpoint.ask(self.label, place, None, receive, accept=lambda status: True, method="HEAD")

    async def generate(self, request: Request) -> Completion:
        """As the base says. The first request of a conversation opens its session, where the mapping says how."""
        began = self._clock.now()
        session = self._sessions.of(request)
        if not session.asked:
            self._look_at_history(request)
        await self._open_session(session)
        filling = filling_of(request, session.id, system_apart=self._system_apart)
        reader = self._answers

        async def receive(body: Body) -> Completion:
            session.keep_cookies(body)
            return await reader.read(body, request.on_text)

        session.asked = True
        completion = await self._send(self._application, filling, session, receive)
        if completion.first_token is not None:
            completion.first_token -= began
        completion.latency = self._clock.now() - began
        estimated(completion, request)
        return completion

    def ended(self, affinity: str) -> None:
        """Close the conversation's sessions, where the mapping says how; failures are warnings."""
        for session in self._sessions.forget(affinity):
            if self._application.close is not None:
                # A context of its own: a run that stops ends no conversation's session half-way.
                task = asyncio.get_running_loop().create_task(self._close_session(session), context=Context())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)

    def interrupted(self, affinity: str) -> None:
        """The session stays open: a resumed run continues it."""
        self._sessions.forget(affinity)

    def statistics(self) -> dict[str, Any]:
        return {} if self._opened is None else {"connections": self._opened.endpoint.connections}

    @property
    def _open(self) -> _Opened:
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

            async def receive(body: Body) -> str:
                session.keep_cookies(body)
                if path is None:
                    await body.whole()
                    return session.id
                return await reader.identifier(body, path)

            try:
                session.id = await self._send(template, Filling(session=session.id), session, receive)
            except BackendError as error:
                error.args = (f"{self.label}: opening the session: {str(error).removeprefix(f'{self.label}: ')}",)
                raise
            session.opened = True

    async def _close_session(self, session: Session) -> None:
        template = self._application.close
        assert template is not None
        try:
            await self._send(template, Filling(session=session.id), session, Body.whole)
        except BackendError as error:
            self._warn("close", f"a session could not be closed: {str(error).removeprefix(f'{self.label}: ')}")

    async def _send(
        self, template: RequestTemplate, filling: Filling, session: Session, receive: Callable[[Body], Awaitable[T]]
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
            # No key can be wrong: the application refuses this conversation, and the run goes on.
            said = str(error).removeprefix(f"{error.model}: ")
            raise Forbidden(said, model=error.model, status=error.status) from None

    def _look_at_history(self, request: Request) -> None:
        """See that an application which is not sent the history can know it."""
        said = sum(message.role == "assistant" for message in request.messages)
        if not said or self._application.sends_history:
            return
        opens = self._application.open
        if request.ordinal and opens is not None and opens.id is not None:
            raise Rejected(
                f"the session of this conversation was opened by a process that has ended, and the body does not send "
                f"the history: the application cannot know the {said} earlier turns. Send {{messages}}, use sessions "
                "without open.id, or run the conversation anew",
                model=self.label,
            )
        if not request.ordinal:
            self._warn(
                "history",
                f"conversations begin with turns that the application has not seen ({said} of the assistant), and the "
                f"body sends the last message alone; send {{messages}} ({self._shown})",
            )

    def _warn(self, what: str, message: str) -> None:
        """Say something once."""
        if what not in self._warned:
            self._warned.add(what)
            _log.warning("%s: %s", self.label, message)


def _is_success(status: int) -> bool:
    return 200 <= status < 300


def _requests(application: Application) -> list[tuple[str, RequestTemplate]]:
    """All requests of a mapping, with the fields that hold their URLs."""
    found: list[tuple[str, RequestTemplate | None]] = [("url", application)]
    found += [("open.url", application.open), ("close.url", application.close)]
    return [(field, template) for field, template in found if template is not None]


def _split(url: str) -> tuple[str, str, str]:
    """A URL's place, and its path with what follows, by the sign between them; ``${…}`` may be part of either."""
    scheme, mark, rest = url.partition("://")
    if not mark:
        scheme, rest = "", url
    at = min((rest.find(sign) for sign in "/?" if sign in rest), default=len(rest))
    return scheme + mark + rest[:at], rest[at : at + 1], rest[at + 1 :]


def build(spec: ModelSpec, clock: Clock) -> Backend:
    """An application from its model name.

    :raises ConfigurationError: there is no mapping, or it is wrong, or an option is.
    """
    if not spec.where:
        raise ConfigurationError(f"model '{spec.text}': name the mapping's file (http:app.yaml), or write it in braces")
    if spec.where.startswith("//"):
        raise ConfigurationError(
            f"model '{spec.text}': the kind http takes the file of a mapping, not a URL; write a mapping with url, "
            f"body and answer, or, for an OpenAI-compatible endpoint, openai:{spec.text}"
        )
    longest = int(spec.number("answer_mb", 64.0, 0.001, 100_000.0) * 1e6)
    inline = inline_place(spec.text)
    if inline is not None:
        return ApplicationBackend(clock, check_mapping(inline.value, "http:{…}"), "http:{…}", longest)
    return ApplicationBackend(clock, read_mapping(Path(spec.where).expanduser()), spec.where, longest)
