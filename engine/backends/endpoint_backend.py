"""The skeleton of chat endpoint backends: session, key trust, check of the model's name, timed requests, fallbacks.

A 401 or 403 means something else once other requests with the same key were answered (``KeyTrust``). A request
form that an endpoint refuses (structured output, system messages) is replaced by the next simpler one
(``FormFallback``). Opaque parts of an answer that a provider wants back with tool results are kept per
conversation (``ProviderState``).
"""

from __future__ import annotations

import asyncio
import difflib
import logging
import re
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from types import TracebackType
from typing import Any, TypeVar

import orjson
from yarl import URL

from ..cancellation import RunStopping
from ..clock import Clock
from ..errors import (
    BackendError,
    ConfigurationError,
    Forbidden,
    FormRefused,
    Rejected,
    SettingRefused,
    Unauthorized,
    Unavailable,
)
from ..messages import Completion, Message, Request, fold_system_messages
from ..tools import Toolbox, ToolCall
from .base import Backend, ModelSpec, OnRateLimit
from .endpoint import AnswerBody, Endpoint
from .endpoint_address import EndpointAddress
from .endpoint_answer import FORMAT_ERRORS, ReadAnswer, answer_error, estimate_missing_counts, parse_json
from .endpoint_errors import Dialect
from .proxies import proxy_secrets
from .redaction import Redactor, make_redactor
from .sse import JsonRecordStream, RecordAssembly, error_in_answer, read_stream


class KeyTrust:
    """What is known of one endpoint's key. Enter ``call`` around each request."""

    def __init__(self) -> None:
        self.proven = False
        self._under_way = 0
        self._refused: list[asyncio.Future[None]] = []

    def call(self) -> _CallOutcome:
        """Surround one request: a refused key is ``Unauthorized``, or ``Forbidden`` if others are answered."""
        return _CallOutcome(self)

    async def _settle(self) -> None:
        """Wait until one of the others is answered, or all that are under way are refused too."""
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._refused.append(settled)
        self._look()
        try:
            await settled
        finally:
            if settled in self._refused:
                self._refused.remove(settled)

    def _look(self) -> None:
        if self._refused and (self.proven or len(self._refused) >= self._under_way):
            for refused in self._refused:
                if not refused.done():
                    refused.set_result(None)


class _CallOutcome:
    __slots__ = ("_trust",)

    def __init__(self, trust: KeyTrust) -> None:
        self._trust = trust

    async def __aenter__(self) -> None:
        self._trust._under_way += 1

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        trust = self._trust
        try:
            if error is None or (isinstance(error, Exception) and not isinstance(error, BackendError | RunStopping)):
                trust.proven = True  # answered, though perhaps ended by whoever heard it
            elif isinstance(error, Unauthorized) and not trust.proven:
                await trust._settle()
        finally:
            trust._under_way -= 1
            trust._look()
        if isinstance(error, Unauthorized) and trust.proven:
            message = str(error).removeprefix(f"{error.model}: ")
            raise Forbidden(
                f"{message}; other requests with this key are answered", model=error.model, status=error.status
            ) from None


_MAX_LISTED = 3
_LONGEST_NAME = 80
_MOST_NAMES = 2_000


def describe_unlisted_model(data: bytes, model: str, redact: Redactor) -> str:
    """What to say of a model that is not in the endpoint's list; nothing if it is there or the list cannot be read."""
    names = _listed_names(data)
    if not names or any(name in (model, f"{model}:latest") for name in names):
        return ""
    close = difflib.get_close_matches(model, names, _MAX_LISTED, 0.0)
    close_names = ", ".join(_printable_name(redact.cut(name, _LONGEST_NAME)) for name in close)
    more = f", and {len(names) - len(close)} more" if len(names) > len(close) else ""
    return f"the endpoint does not list the model '{model}'; it lists {close_names}{more}"


def _listed_names(data: bytes) -> list[str]:
    try:
        answer: Any = orjson.loads(data)
    except orjson.JSONDecodeError:
        return []
    listed = (answer.get("data") or answer.get("models")) if isinstance(answer, dict) else answer
    if not isinstance(listed, list):
        return []
    names = [
        entry[field]
        for entry in listed
        if isinstance(entry, dict)
        for field in ("id", "name", "model")
        if isinstance(entry.get(field), str)
    ]
    return list(dict.fromkeys(names))[:_MOST_NAMES]


def _printable_name(name: str) -> str:
    """Printable on a terminal, and not longer than a name is."""
    return "".join(character if character.isprintable() else "?" for character in name)


PROMPT_ONLY = "prompt"  # the form that asks for nothing: the prompt's own words must do


# How endpoints say that they take no system message; servers of chat templates report what a template raises as their
# own fault. "must alternate" may be about other messages: then the refusal comes again.
_MENTIONS_SYSTEM = re.compile(
    r"\bsystem[ _-]?(role|message|prompt|instruction)|\b(role|message)s?\b[^.\n]{0,40}\bsystem\b"
    r"|developer instruction|roles? must alternate|\brole\b[^\n]{0,60}\buser\b[^\n]{0,20}\bassistant\b"
    r"|\bonly user\b[^\n]{0,40}\broles\b|\bfirst message\b[^\n]{0,40}\buser\b"
    r"|\b(start|begin)s? with [^\n]{0,20}\buser\b",
    re.IGNORECASE,
)
_MENTIONS_REFUSAL = re.compile(
    r"\bnot\b|n't\b|\bno\b|unsupported|invalid|unexpected|unknown|must|should|only|cannot", re.I
)
_REFUSAL_STATUSES = (400, 422, 500)


class FormFallback:
    """The ladder of one endpoint, and the step that it stands on.

    ``after`` names for each form the one to try when it is refused; ``PROMPT_ONLY`` ends all of them.
    ``takes_system`` is false once an endpoint that refused a system message took the same text as the user's.
    """

    def __init__(self, first: str, after: Mapping[str, str]) -> None:
        self.chosen = first
        self.takes_system = True
        self._after = after
        # Requests under way for which is being found out what is taken.
        self._probing: dict[bytes, str] = {}
        self._without_system: set[bytes] = set()

    async def ask(
        self, request: Request, attempt: Callable[[Request, str], Awaitable[Completion]], label: str
    ) -> Completion:
        """Make one attempt in the form that is known or next; raise FormRefused if that is refused."""
        structured = request.sampling.schema is not None
        form = self._probing.get(request.digest, self.chosen) if structured else PROMPT_ONLY
        sent = request
        if (not self.takes_system or request.digest in self._without_system) and _has_system(request):
            sent = replace(request, messages=fold_system_messages(request.messages))
        try:
            completion = await attempt(sent, form)
        except BackendError as error:
            if sent is request and _refuses_system(error) and _has_system(request):
                self._without_system.add(request.digest)
                raise FormRefused("refused a system message", model=label, status=error.status) from error
            if not isinstance(error, Rejected):
                raise
            self._without_system.discard(request.digest)
            self._probing.pop(request.digest, None)
            # 400/422 may mean that the endpoint does not know this form of answer: ask again with less.
            if type(error) is not Rejected or error.status not in (400, 404, 422):
                raise
            if form == PROMPT_ONLY or error.status == 404:
                if request.tools is None:
                    raise
                raise _add_tools_hint(error, request.tools) from error
            self._probing[request.digest] = self._after[form]
            raise FormRefused(f"refused structured output as '{form}'", model=label, status=error.status) from error
        # Remembered: the next request does not pay for finding out.
        if self._probing.pop(request.digest, None) is not None:
            self.chosen = form
        if request.digest in self._without_system:
            self._without_system.discard(request.digest)
            if self.takes_system:
                self.takes_system = False
                logging.getLogger("viva").warning(
                    "%s: takes no system messages; what they say stands before the user's next message", label
                )
        return completion


def _has_system(request: Request) -> bool:
    return any(message.role == "system" for message in request.messages)


def _refuses_system(error: BackendError) -> bool:
    """Whether an endpoint may have refused a request for its system message."""
    message = str(error)
    return (
        type(error) in (Rejected, Unavailable)
        and error.status in _REFUSAL_STATUSES
        and _MENTIONS_SYSTEM.search(message) is not None
        and _MENTIONS_REFUSAL.search(message) is not None
    )


def _add_tools_hint(error: Rejected, tools: Toolbox) -> Rejected:
    """The same refusal, and what is most likely behind it."""
    message = str(error).removeprefix(f"{error.model}: ")
    names = ", ".join(tools.names[:3]) + (", …" if len(tools.names) > 3 else "")
    return Rejected(
        f"{message} (the request offered tools: {names}; an endpoint or a model that takes none cannot be asked this)",
        model=error.model,
        status=error.status,
    )


class ProviderState:
    """The parts of the answers of all conversations that are under way."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[tuple[str, str, int], tuple[str, tuple[ToolCall, ...], list[Any]]]] = {}

    def keep(self, request: Request, completion: Completion, parts: list[Any] | None) -> None:
        """Keep the parts of an answer with calls, which will be the next message of its conversation."""
        conversation = request.affinity or request.conversation
        if parts and completion.calls and conversation:
            identity = (completion.text, tuple(completion.calls), parts)
            self._kept.setdefault(conversation, {})[request.branch, request.role, len(request.messages)] = identity

    def parts_of(self, request: Request, index: int) -> list[Any] | None:
        """The parts of the answer that stands at ``index`` in a request's messages; None if it is not as it was."""
        message: Message = request.messages[index]
        kept = self._kept.get(request.affinity or request.conversation, {}).get((request.branch, request.role, index))
        if kept is None or kept[0] != message.content or kept[1] != message.calls:
            return None
        return kept[2]

    def forget(self, conversation: str) -> None:
        """A conversation has ended."""
        self._kept.pop(conversation, None)


T = TypeVar("T")

_LONGEST_LIST = 8 << 20  # bytes read of an endpoint's list of models
SAMPLING_ADVICE = (
    "add sampling=off to the model's name, which leaves temperature, top_p and the like out, or temperature=NUMBER, "
    "which sends that in place of the run's"
)
_OWN_FIELDS = ("messages", "contents", "model", "stream", "n")  # which the engine's reading of answers rests on
_PYTHONS = {"True": "true", "False": "false", "None": "null"}
# Words that refuse a setting, and the ways in which its name then stands in them.
_REFUSES_SETTING = re.compile(
    r"unsupported|n[o']t (be )?(support|accept|allow|permit|available|compatible)"
    r"|unknown|unrecogni[sz]ed|unexpected|extra (inputs|fields)|deprecated|no longer|only (the default|be set|one of)"
    r"|cannot (both )?be|(must|should) be|invalid|incompatible|too (large|high|low)|at most|(greater|less) than"
    r"|maximum allowed|only works",
    re.IGNORECASE,
)
_NAMES_SETTING = (
    r"(?i:['\"`‘“]{0}['\"`’”]|(?<![\w.]){0} ?[:=]|parameters?(:? |\.){0}(?!\w)|: {0}(?=[.,;)]|$)"
    r"|(?<![\w.]){0} (\d+ )?(parameter|is|are|was|does|do|can|cannot|may|must|should|and|or)\b)"
)


class EndpointBackend(Backend):
    """One model of one endpoint: how every provider's models are asked; what differs are attributes and hooks."""

    fallible = True
    form: str  # what an answer is, for messages
    dialect = Dialect()
    models_path = "/models"  # of the list of models
    refusing_statuses: tuple[int, ...] = (401, 403)  # of the list of models, that tell of a wrong key
    next_form: Mapping[str, str]  # of structured output, for each the one to try when it is refused
    unsupported: Mapping[str, Any] = {}  # settings of a sampling that the API lacks, with the value that asks for none
    api_name = ""  # as such refusals name it

    def __init__(
        self,
        clock: Clock,
        address: EndpointAddress,
        asking: EndpointOptions | None = None,
        form: str = "schema",
    ) -> None:
        self.base_url, self.model = self._base_url(address.base_url), address.model
        self.nearby = _is_local_address(self.base_url)
        self._redact = make_redactor([address.key, *address.secrets, *proxy_secrets()])
        self._asking = asking or EndpointOptions()
        self._endpoint = Endpoint(
            self.base_url,
            self._redact,
            self._asking.timeout,
            self._asking.longest_answer,
            {**self._own_headers(address), **address.headers},
            dialect=self.dialect,
            query=address.query,
        )
        self._clock = clock
        self._trust = KeyTrust()
        self._forms, self._returned = FormFallback(form, self.next_form), ProviderState()

    def _base_url(self, url: str) -> str:
        """Return the URL that paths of calls begin with."""
        return url

    @abstractmethod
    def _own_headers(self, address: EndpointAddress) -> dict[str, str]:
        """Return the headers of each request, the key's among them."""

    @abstractmethod
    def _call_url(self, *, streaming: bool) -> str:
        """Return where a request is sent to."""

    @abstractmethod
    def _body(self, request: Request, form: str, *, streaming: bool) -> dict[str, Any]:
        """Return the body of a request; raise ConfigurationError if it asks for what the API does not have."""

    @abstractmethod
    def _read(self, answer: Any, *, tools: bool) -> ReadAnswer:
        """Read the record of an answer; raise ``FORMAT_ERRORS`` if it is none. ``tools``: some were offered."""

    @abstractmethod
    def _assembly(self, records: JsonRecordStream) -> RecordAssembly:
        """Return what puts a streamed answer together."""

    @property
    def _advice(self) -> Mapping[str, str]:
        """What helps where the endpoint refuses a setting, by the setting's name in requests."""
        return {}

    @property
    def _listed_name(self) -> str:
        """This model's name in the endpoint's list of models."""
        return self.model

    def hear_allowance(self, hear: OnRateLimit) -> None:
        self._endpoint.hear_allowance = hear

    async def __aenter__(self) -> Backend:
        await self._endpoint.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._endpoint.close()

    async def check(self) -> None:
        """As the base says; warns (logger ``viva``) of a model's name that the endpoint does not list."""

        async def receive(body: AnswerBody) -> bytes:
            return await body.head(_LONGEST_LIST) if body.status == 200 else b""

        # Many servers have no model list; any answer but a refusal of the key shows that they are there.
        url = self.base_url + self.models_path
        data = await self._endpoint.ask(self.label, url, None, receive, accept=self._is_there)
        warning = describe_unlisted_model(data, self._listed_name, self._redact)
        if warning:
            logging.getLogger("viva").warning("%s: %s (%s)", self.label, warning, url.partition("?")[0])

    def _is_there(self, status: int) -> bool:
        return status not in self.refusing_statuses and not 300 <= status < 400

    def ended(self, affinity: str) -> None:
        self._returned.forget(affinity)

    async def generate(self, request: Request) -> Completion:
        """Make one HTTP request; raise FormRefused until a form of structured output is accepted."""
        return await self._forms.ask(self._asking.settled(request), self._attempt, self.label)

    async def _attempt(self, request: Request, form: str) -> Completion:
        on_text, tools = request.on_text, request.tools is not None
        self._refuse_unsupported(request)
        returned: list[Any] | None = None

        async def receive(answer: AnswerBody) -> Completion:
            nonlocal returned
            completion, returned = await self._receive(answer, on_text, tools=tools)
            return completion

        streaming = on_text is not None
        body = self._asking.body_of(self._body(request, form, streaming=streaming))
        completion = await self._ask(request, self._call_url(streaming=streaming), body, receive)
        self._returned.keep(request, completion, returned)
        return completion

    def _refuse_unsupported(self, request: Request) -> None:
        names = [name for name, off in self.unsupported.items() if getattr(request.sampling, name) != off]
        if names:
            raise ConfigurationError(
                f"{self.model}: the {self.api_name} API has no {', '.join(names)}; leave it off, or ask a model that "
                "has it"
            )

    async def _receive(self, answer: AnswerBody, on_text: Callable[[str], None] | None, *, tools: bool) -> ReadAnswer:
        """Read an answer, whole or streamed. ``first_token`` is the clock's time of a stream's first text or call."""
        if on_text is None and not answer.is_stream:
            return await self._parse_whole(answer, lambda data: self._parse(data, tools=tools))
        records = JsonRecordStream(answer, self._endpoint, self.label)
        assembly = self._assembly(records)
        first = await read_stream(records, assembly, on_text or discard_piece, self._clock, self._redact, self.form)
        if not assembly.is_whole:
            raise records.broken_off()
        try:
            read = self._read(assembly.answer(), tools=tools)
        except FORMAT_ERRORS as error:
            text = f"the stream is not that of {self.form}"
            raise answer_error(text, self.label, self._redact, records.data, error) from None
        read.completion.first_token = first
        return read

    def _parse(self, data: bytes, *, tools: bool) -> ReadAnswer:
        try:
            return self._read(parse_json(data, self.label), tools=tools)
        except FORMAT_ERRORS as error:
            raise answer_error(f"the answer is not {self.form}", self.label, self._redact, data, error) from None

    async def _ask(
        self, request: Request, url: str, data: bytes, receive: Callable[[AnswerBody], Awaitable[Completion]]
    ) -> Completion:
        """Return the answer to one request, with its times, and estimates in the place of missing counts of tokens."""
        began = self._clock.now()
        try:
            async with self._trust.call():
                completion = await self._endpoint.ask(self.label, url, data, receive)
        except Rejected as error:
            if type(error) is not Rejected or (advice := self._refused_setting(str(error))) is None:
                raise
            message = f"{str(error).removeprefix(f'{error.model}: ').rstrip('.')}; {advice}"
            if self._trust.proven:  # others are answered with the same settings
                raise Rejected(message, model=error.model, status=error.status) from None
            raise SettingRefused(f"{self.label}: {message}; a resumed run keeps its names, so start anew") from None
        if completion.first_token is not None:
            completion.first_token -= began
        completion.latency = self._clock.now() - began
        estimate_missing_counts(completion, request)
        return completion

    async def _parse_whole(self, answer: AnswerBody, parse: Callable[[bytes], T]) -> T:
        """Parse a whole answer, or raise the error that the endpoint reported as if it were one."""
        data = await answer.read_all()
        try:
            return parse(data)
        except (Rejected, Unavailable):
            reported = error_in_answer(self._endpoint, self.label, data)
            if reported is None:
                raise
        raise reported

    def statistics(self) -> dict[str, Any]:
        return {"json_mode": self._forms.chosen, "connections": self._endpoint.connections}

    def _refused_setting(self, text: str) -> str | None:
        """Return what helps, where an endpoint's words are that it does not take one of our settings."""
        if not _REFUSES_SETTING.search(text):
            return None
        for name, advice in self._advice.items():
            if re.search(_NAMES_SETTING.format(re.escape(name)), text):
                return advice
        return None


def discard_piece(text: str) -> None:
    """Hear a piece of a stream that nobody asked for."""


def alternating_turns(
    messages: Sequence[Message],
    field: str,
    assistant: str,
    parts_of: Callable[[int, Message], list[dict[str, Any]]],
) -> tuple[str, list[dict[str, Any]]]:
    """Return the instructions and turns of an API that takes instructions apart, and turns that alternate.

    System messages are joined, wherever they stand; alone they are said by the user. Messages without parts are left
    out.

    Args:
        messages: The request's.
        field: The name of a turn's parts.
        assistant: The name of the role of the model's turns.
        parts_of: Returns the parts of a message, from its index (-1: none) and itself.
    """
    system = "\n\n".join(part.content for part in messages if part.role == "system")
    turns: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        parts = parts_of(index, message) if message.role != "system" else None
        role = assistant if message.role == "assistant" else "user"
        if parts and turns and turns[-1]["role"] == role:
            turns[-1][field] += parts
        elif parts:
            turns.append({"role": role, field: list(parts)})
    if not turns:
        return "", [{"role": "user", field: parts_of(-1, Message("user", system))}]
    return system, turns


@dataclass(slots=True, frozen=True)
class EndpointOptions:
    """What a model's name says of each of its requests.

    :param sampling: whether temperature, top_p and the like are sent. :param settings: settings of the sampling in the
        place of the run's. :param body: values to put into the body, by their paths in it; None takes a field out.
    """

    timeout: float = 120.0
    longest_answer: int = 64_000_000
    sampling: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[tuple[str, ...], Any] = field(default_factory=dict)

    @classmethod
    def from_spec(cls, spec: ModelSpec) -> EndpointOptions:
        """Read the options that all kinds of endpoints have."""
        sampling = spec.one_of("sampling", ("on", "off")) != "off"
        settings: dict[str, Any] = {
            "temperature": spec.number("temperature", -1.0, 0.0, 2.0),
            "top_p": spec.number("top_p", -1.0, 0.0, 1.0),
            "max_tokens": spec.whole("max_tokens", -1),
        }
        settings = {name: value for name, value in settings.items() if value != -1}
        if not sampling and settings.keys() - {"max_tokens"}:
            raise ConfigurationError(f"model '{spec.text}': sampling=off leaves out temperature and top_p; give one")
        return cls(
            timeout=spec.number("timeout", 120.0, 0.001, unit="seconds"),
            longest_answer=int(spec.number("answer_mb", 64.0, 0.001, 100_000.0) * 1e6),
            sampling=sampling,
            settings=settings,
            body={
                tuple(name.split(".")): _parse_body_value(spec, name, text) for name, text in spec.group("body").items()
            },
        )

    def settled(self, request: Request) -> Request:
        """Return the request with this model's own settings. It stays the same call in the journal."""
        if not self.settings:
            return request
        return replace(request, sampling=replace(request.sampling, **self.settings))

    def body_of(self, body: dict[str, Any]) -> bytes:
        """Return a request's body as it is sent, with what the model's name puts into it."""
        for path, value in self.body.items():
            _set_field(body, path, value)
        return orjson.dumps(body)


def _set_field(body: dict[str, Any], path: Sequence[str], value: Any) -> None:
    *outer, last = path
    for name in outer:
        inner = body.get(name)
        body[name] = body = dict(inner) if isinstance(inner, dict) else {}
    if value is None:
        body.pop(last, None)
    else:
        body[last] = value


def _parse_body_value(spec: ModelSpec, name: str, text: str) -> Any:
    """Return the value of an option ``body.KEY``: JSON, or a text that is not meant to be JSON."""
    option = f"model '{spec.text}': body.{name}"
    if name.partition(".")[0] in _OWN_FIELDS or "" in name.split("."):
        raise ConfigurationError(f"{option}: expected the name of a field other than {', '.join(_OWN_FIELDS)}")
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if text in _PYTHONS:
            raise ConfigurationError(f"{option}={text}: JSON writes {_PYTHONS[text]}") from None
        if text[:1] in ("{", "[", '"'):
            raise ConfigurationError(f"{option}={text}: is no JSON: {error}") from None
        return text


def _is_local_address(url: str) -> bool:
    try:
        host = URL(url).host or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
