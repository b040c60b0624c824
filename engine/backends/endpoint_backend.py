"""Base class of chat endpoints: session, key trust, model name check, timed requests, fallbacks.

A 401 or 403 has another meaning once other requests with the same key have succeeded (`KeyTrust`). If an endpoint
refuses a request form (structured output, system messages), the next simpler one is used (`FormFallback`). Opaque parts
of an answer that a provider wants back with tool results are stored per conversation (`ProviderState`).
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
from pathlib import Path
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
from .base import Backend, EventSink, ModelSpec, OnRateLimit, PromptSize
from .batch_api import BatchApi
from .batches import DEFAULT_WAIT, BatchQueue
from .endpoint import AnswerBody, Endpoint
from .endpoint_address import EndpointAddress
from .endpoint_answer import FORMAT_ERRORS, ReadAnswer, answer_error, estimate_missing_counts, parse_json
from .endpoint_errors import Dialect
from .proxies import proxy_secrets
from .redaction import Redactor, make_redactor
from .sse import JsonRecordStream, RecordAssembly, error_in_answer, read_stream


class KeyTrust:
    """Knowledge about one endpoint's key. Enter `call` around each request."""

    def __init__(self) -> None:
        self.proven = False
        self._under_way = 0
        self._refused: list[asyncio.Future[None]] = []

    def call(self) -> _CallOutcome:
        """Wrap one request: a refused key raises `Unauthorized`, or `Forbidden` if other requests succeed."""
        return _CallOutcome(self)

    async def _settle(self) -> None:
        """Wait until a concurrent request succeeds, or all of them are refused too."""
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
                trust.proven = True  # the endpoint answered, even if the caller then ended the call
            elif isinstance(error, Unauthorized) and not trust.proven:
                await trust._settle()
        finally:
            trust._under_way -= 1
            trust._look()
        if isinstance(error, Unauthorized) and trust.proven:
            message = str(error).removeprefix(f"{error.model}: ")
            raise Forbidden(
                f"{message}; other requests with this key succeed", model=error.model, status=error.status
            ) from None


_MAX_LISTED = 3
_MOST_CHARACTERS_PER_TOKEN = 6  # on average over a prompt, of any vocabulary and language
_LONGEST_NAME = 80
_MOST_NAMES = 2_000


def describe_unlisted_model(data: bytes, model: str, redact: Redactor) -> str:
    """Return a warning if the endpoint's list lacks the model; "" if it is listed or the list is unreadable."""
    names = _listed_names(data)
    if not names or any(name in (model, f"{model}:latest") for name in names):
        return ""
    close = difflib.get_close_matches(model, names, _MAX_LISTED, 0.0)
    close_names = ", ".join(_printable_name(redact.cut(name, _LONGEST_NAME)) for name in close)
    more = f", and {len(names) - len(close)} more" if len(names) > len(close) else ""
    return f"the endpoint does not list the model '{model}'; it lists {close_names}{more}"


def listed_context(data: bytes, model: str) -> int | None:
    """Return the tokens of a model's context if the endpoint lists them (vLLM, SGLang: `max_model_len`)."""
    try:
        answer: Any = orjson.loads(data)
        [length] = [
            entry["max_model_len"] for entry in answer["data"] if entry["id"] == model and "max_model_len" in entry
        ]
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return None
    return length if isinstance(length, int) and length > 0 else None


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
    """Return the name in printable characters, cut to a reasonable length."""
    return "".join(character if character.isprintable() else "?" for character in name)


PROMPT_ONLY = "prompt"  # the form without a request field: the prompt alone describes the output


# How endpoints refuse system messages. Servers with chat templates report a template's error as their own fault. If
# "must alternate" concerns other messages, the endpoint refuses again.
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
    """Request forms that one endpoint may accept, and the form currently in use.

    `after` maps each form to the form to try next if it is refused; the last form is `PROMPT_ONLY`. `takes_system`
    becomes False once an endpoint that refused a system message accepted the same text in the user message.
    """

    def __init__(self, first: str, after: Mapping[str, str]) -> None:
        self.chosen = first
        self.takes_system = True
        self._after = after
        # Requests that are currently testing what the endpoint accepts.
        self._probing: dict[bytes, str] = {}
        self._without_system: set[bytes] = set()

    async def ask(
        self, request: Request, attempt: Callable[[Request, str], Awaitable[Completion]], label: str
    ) -> Completion:
        """Make one attempt in the current or next form; raise FormRefused if the form is refused."""
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
            # 400 or 422 may mean that the endpoint does not know this form: retry with a simpler one.
            if type(error) is not Rejected or error.status not in (400, 404, 422):
                raise
            if form == PROMPT_ONLY or error.status == 404:
                if request.tools is None:
                    raise
                raise _add_tools_hint(error, request.tools) from error
            self._probing[request.digest] = self._after[form]
            raise FormRefused(f"refused structured output as '{form}'", model=label, status=error.status) from error
        # Remember the result, so that later requests need not test again.
        if self._probing.pop(request.digest, None) is not None:
            self.chosen = form
        if request.digest in self._without_system:
            self._without_system.discard(request.digest)
            if self.takes_system:
                self.takes_system = False
                logging.getLogger("viva").warning(
                    "%s: accepts no system messages; their text is put before the user's next message", label
                )
        return completion


def _has_system(request: Request) -> bool:
    return any(message.role == "system" for message in request.messages)


def _refuses_system(error: BackendError) -> bool:
    """Return True if an endpoint may have refused the system message."""
    message = str(error)
    return (
        type(error) in (Rejected, Unavailable)
        and error.status in _REFUSAL_STATUSES
        and _MENTIONS_SYSTEM.search(message) is not None
        and _MENTIONS_REFUSAL.search(message) is not None
    )


def _add_tools_hint(error: Rejected, tools: Toolbox) -> Rejected:
    """Return the same error with the most likely cause added."""
    message = str(error).removeprefix(f"{error.model}: ")
    names = ", ".join(tools.names[:3]) + (", …" if len(tools.names) > 3 else "")
    return Rejected(
        f"{message} (the request offered tools: {names}; "
        "an endpoint or model without tool support cannot be used here)",
        model=error.model,
        status=error.status,
    )


class ProviderState:
    """Opaque answer parts of all running conversations."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[tuple[str, str, int], tuple[str, tuple[ToolCall, ...], list[Any]]]] = {}

    def keep(self, request: Request, completion: Completion, parts: list[Any] | None) -> None:
        """Store the parts of an answer with calls, which becomes the next message of its conversation."""
        conversation = request.affinity or request.conversation
        if parts and completion.calls and conversation:
            identity = (completion.text, tuple(completion.calls), parts)
            self._kept.setdefault(conversation, {})[request.branch, request.role, len(request.messages)] = identity

    def parts_of(self, request: Request, index: int) -> list[Any] | None:
        """Return the parts of the answer at `index` of a request's messages; None if that message has changed."""
        message: Message = request.messages[index]
        kept = self._kept.get(request.affinity or request.conversation, {}).get((request.branch, request.role, index))
        if kept is None or kept[0] != message.content or kept[1] != message.calls:
            return None
        return kept[2]

    def forget(self, conversation: str) -> None:
        """Drop the parts of an ended conversation."""
        self._kept.pop(conversation, None)


T = TypeVar("T")

_BATCH_TIMEOUT = 1800.0  # seconds for sending a batch, or for reading its results
_LONGEST_LIST = 8 << 20  # bytes read of an endpoint's model list
SAMPLING_ADVICE = (
    "add sampling=off to the model's name to leave out temperature, top_p and similar settings, or temperature=NUMBER "
    "to replace the run's temperature"
)
_OWN_FIELDS = ("messages", "contents", "model", "stream", "n")  # the engine relies on them to parse answers
_PYTHONS = {"True": "true", "False": "false", "None": "null"}
# Wording of endpoints that refuse an unknown model with another status than 404.
_REFUSES_MODEL = re.compile(
    r"model[^.]{0,100} (does not exist|not found|is unknown)|(no such|unknown|invalid|not a valid) model", re.IGNORECASE
)
# Wording that refuses a setting, and how the setting's name appears in it.
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
    """A model of an endpoint. Subclasses implement a provider's API by attributes and hooks."""

    fallible = True
    form: str  # name of an answer, for messages
    dialect = Dialect()
    models_path = "/models"  # path of the model list
    refusing_statuses: tuple[int, ...] = (401, 403)  # statuses of the model list that mean a wrong key
    next_form: Mapping[str, str]  # structured output: the form to try after each refused form
    unsupported: Mapping[str, Any] = {}  # sampling settings that the API lacks, with their neutral values
    batch_api: type[BatchApi]
    api_name = ""  # the API's name in errors about unsupported settings

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
        wait = self._asking.batch_wait
        self._endpoint = Endpoint(
            self.base_url,
            self._redact,
            self._asking.timeout if wait is None else max(self._asking.timeout, _BATCH_TIMEOUT),
            self._asking.longest_answer,
            {**self._own_headers(address), **address.headers},
            dialect=self.dialect,
            repeatable=wait is None,  # a batch that arrives twice is paid for twice
            query=address.query,
        )
        self._clock = clock
        self._trust = KeyTrust()
        self._context: int | None = None  # tokens, if the endpoint lists them
        self._unlisted = ""  # says that the endpoint does not list the model
        self._forms, self._returned = FormFallback(form, self.next_form), ProviderState()
        self._batches: BatchQueue | None = None
        if wait is not None:
            api = self.batch_api(
                self._endpoint, self.base_url, self._listed_name, self._trust.call, self._asking.longest_answer
            )
            self._batches = BatchQueue(api, clock, wait)

    def _base_url(self, url: str) -> str:
        """Return the base URL of calls."""
        return url

    @abstractmethod
    def _own_headers(self, address: EndpointAddress) -> dict[str, str]: ...

    @abstractmethod
    def _call_url(self, *, streaming: bool) -> str: ...

    @abstractmethod
    def _body(self, request: Request, form: str, *, streaming: bool) -> dict[str, Any]:
        """Return a request's body; raise ConfigurationError if it uses something that the API lacks."""

    @abstractmethod
    def _read(self, answer: Any, *, tools: bool) -> ReadAnswer:
        """Read an answer; raise one of `FORMAT_ERRORS` if it has another form. `tools`: True if tools were offered."""

    @abstractmethod
    def _assembly(self, records: JsonRecordStream) -> RecordAssembly: ...

    @property
    def _advice(self) -> Mapping[str, str]:
        """Return advice for refused settings, by their names in requests."""
        return {}

    @property
    def _listed_name(self) -> str:
        """Name of this model in the endpoint's model list."""
        return self.model

    def on_rate_limit(self, callback: OnRateLimit) -> None:
        self._endpoint.on_rate_limit = callback

    def join_run(self, model: str, folder: Path | None, publish: EventSink | None, patience: float) -> None:
        if self._batches is not None:
            self._batches.join_run(folder, model, self.label, publish, patience)

    async def __aenter__(self) -> Backend:
        await self._endpoint.open()
        if self._batches is not None:
            try:
                self._batches.open()
            except BaseException:
                await self._endpoint.close()  # the caller will not do so
                raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._batches is not None:
            await self._batches.close()
        await self._endpoint.close()

    async def check(self) -> None:
        """Check as in `Backend.check`; also warn (logger `viva`) if the endpoint does not list the model.

        Some servers accept any name, others list only some, so an unlisted model is an error only once it is refused.
        """

        async def receive(body: AnswerBody) -> bytes:
            return await body.head(_LONGEST_LIST) if body.status == 200 else b""

        # Many servers have no model list; any answer but a refused key shows that they are reachable.
        url = self.base_url + self.models_path
        data = await self._endpoint.ask(self.label, url, None, receive, accept=self._is_there)
        self._context = listed_context(data, self._listed_name)
        self._unlisted = describe_unlisted_model(data, self._listed_name, self._redact)
        if self._unlisted:
            logging.getLogger("viva").warning("%s: %s (%s)", self.label, self._unlisted, url.partition("?")[0])

    def prompt_size(self, messages: Sequence[Message]) -> PromptSize | None:
        if self._context is None:
            return None
        characters = sum(len(message.content) for message in messages)
        advice = "start the server with a longer one (vLLM: --max-model-len)"
        return PromptSize(characters // _MOST_CHARACTERS_PER_TOKEN, self._context, advice)

    def _is_there(self, status: int) -> bool:
        return status not in self.refusing_statuses and not 300 <= status < 400

    def ended(self, affinity: str) -> None:
        self._returned.forget(affinity)

    async def generate(self, request: Request) -> Completion:
        """Send one request, alone or in a batch; raise FormRefused until a form of structured output is accepted."""
        return await self._forms.ask(self._asking.settled(request), self._attempt, self.label)

    async def _attempt(self, request: Request, form: str) -> Completion:
        on_text, tools = request.on_text, request.tools is not None
        self._refuse_unsupported(request)
        returned: list[Any] | None = None

        async def receive(answer: AnswerBody) -> Completion:
            nonlocal returned
            completion, returned = await self._receive(answer, on_text, tools=tools)
            return completion

        streaming = on_text is not None and self._batches is None
        body = self._asking.body_of(self._body(request, form, streaming=streaming))
        if self._batches is not None:
            completion, returned = await self._ask_in_batch(self._batches, request, body)
            self._returned.keep(request, completion, returned)
            return completion
        completion = await self._ask(request, self._call_url(streaming=streaming), body, receive)
        self._returned.keep(request, completion, returned)
        return completion

    def _refuse_unsupported(self, request: Request) -> None:
        names = [name for name, off in self.unsupported.items() if getattr(request.sampling, name) != off]
        if names:
            raise ConfigurationError(
                f"{self.model}: the {self.api_name} API has no {', '.join(names)}; remove it, or use a model that "
                "supports it"
            )

    async def _receive(self, answer: AnswerBody, on_text: Callable[[str], None] | None, *, tools: bool) -> ReadAnswer:
        """Read a whole or streamed answer. `first_token` is the clock's time of the first streamed text or call."""
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
            text = f"the stream does not contain {self.form}"
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
        """Return the answer with its timing; missing token counts are estimated."""
        began = self._clock.now()
        try:
            async with self._trust.call():
                completion = await self._endpoint.ask(self.label, url, data, receive)
        except Rejected as error:
            raise self._advised(error, proven=self._trust.proven) from None
        if completion.first_token is not None:
            completion.first_token -= began
        completion.latency = self._clock.now() - began
        estimate_missing_counts(completion, request)
        return completion

    def _advised(self, error: Rejected, *, proven: bool) -> Exception:
        """Return a refusal with advice, if there is any. `proven`: other requests with the same settings succeed."""
        if type(error) is not Rejected or (advice := self._advice_on(error, proven=proven)) is None:
            return error
        message = f"{str(error).removeprefix(f'{error.model}: ').rstrip('.')}; {advice}"
        if proven:
            return Rejected(message, model=error.model, status=error.status)
        return SettingRefused(f"{self.label}: {message}; a resumed run keeps its model names, so start a new run")

    async def _ask_in_batch(self, batches: BatchQueue, request: Request, body: bytes) -> ReadAnswer:
        """Return the answer from a batch. Detectors read the finished text, because nothing is streamed."""
        began = self._clock.now()
        try:
            data = await batches.ask(request, body)
        except Rejected as error:
            raise self._advised(error, proven=batches.has_answers) from None
        try:
            read = self._parse(data, tools=request.tools is not None)
        except (Rejected, Unavailable) as error:
            batches.discard(request)
            raise error_in_answer(self._endpoint, self.label, data) or error from None
        read.completion.latency = self._clock.now() - began
        estimate_missing_counts(read.completion, request)
        return read

    async def _parse_whole(self, answer: AnswerBody, parse: Callable[[bytes], T]) -> T:
        """Parse a whole answer, or raise the error that the endpoint sent in its place."""
        data = await answer.read_all()
        try:
            return parse(data)
        except (Rejected, Unavailable):
            reported = error_in_answer(self._endpoint, self.label, data)
            if reported is None:
                raise
        raise reported

    def statistics(self) -> dict[str, Any]:
        batches = {} if self._batches is None else self._batches.statistics()
        return {"json_mode": self._forms.chosen, "connections": self._endpoint.connections, **batches}

    def _advice_on(self, error: Rejected, *, proven: bool) -> str | None:
        """Return advice if the endpoint refuses the model's name, which it does not list, or one of our settings."""
        text = str(error)
        if self._unlisted and not proven and (error.status == 404 or _REFUSES_MODEL.search(text)):
            return self._unlisted
        if not _REFUSES_SETTING.search(text):
            return None
        for name, advice in self._advice.items():
            if re.search(_NAMES_SETTING.format(re.escape(name)), text):
                return advice
        return None


def discard_piece(text: str) -> None:
    """Ignore a piece of text, because no caller wants it."""


def alternating_turns(
    messages: Sequence[Message],
    field: str,
    assistant: str,
    parts_of: Callable[[int, Message], list[dict[str, Any]]],
) -> tuple[str, list[dict[str, Any]]]:
    """Return instructions and turns for an API with separate instructions and alternating turns.

    System messages are joined, wherever they appear; if there are no other messages, they become a user message.
    Messages without parts are skipped.

    Args:
        messages: The request's messages.
        field: Name of a turn's parts.
        assistant: Role name of the model's turns.
        parts_of: Function of a message's index (-1 for a message made here) and the message; returns its parts.
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
    """Settings in a model's name that apply to each of its requests.

    Args:
        sampling: True to send temperature, top_p and the like.
        settings: Sampling settings that override the run's.
        batch_wait: Seconds without a new call after which a batch is sent; None for single requests.
        body: Values to put into the body, by path; None removes a field.
    """

    timeout: float = 120.0
    longest_answer: int = 64_000_000
    sampling: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)
    batch_wait: float | None = None
    body: Mapping[tuple[str, ...], Any] = field(default_factory=dict)

    @classmethod
    def from_spec(cls, spec: ModelSpec) -> EndpointOptions:
        """Read the options that all kinds of endpoints share."""
        sampling = spec.one_of("sampling", ("on", "off")) != "off"
        settings: dict[str, Any] = {
            "temperature": spec.number("temperature", -1.0, 0.0, 2.0),
            "top_p": spec.number("top_p", -1.0, 0.0, 1.0),
            "max_tokens": spec.whole("max_tokens", -1),
        }
        settings = {name: value for name, value in settings.items() if value != -1}
        if not sampling and settings.keys() - {"max_tokens"}:
            raise ConfigurationError(
                f"model '{spec.text}': sampling=off excludes temperature and top_p; remove it or them"
            )
        return cls(
            timeout=spec.number("timeout", 120.0, 0.001, unit="seconds"),
            longest_answer=int(spec.number("answer_mb", 64.0, 0.001, 100_000.0) * 1e6),
            sampling=sampling,
            settings=settings,
            batch_wait=_parse_batch_wait(spec),
            body={
                tuple(name.split(".")): _parse_body_value(spec, name, text) for name, text in spec.group("body").items()
            },
        )

    def settled(self, request: Request) -> Request:
        """Return the request with this model's own settings; in the journal it remains the same call."""
        if not self.settings:
            return request
        return replace(request, sampling=replace(request.sampling, **self.settings))

    def body_of(self, body: dict[str, Any]) -> bytes:
        """Return the encoded body, with the changes that the model's name specifies."""
        for path, value in self.body.items():
            _set_field(body, path, value)
        return orjson.dumps(body)


def _parse_batch_wait(spec: ModelSpec) -> float | None:
    """Return the wait before a batch is sent; None without `batch=on`."""
    batched = spec.one_of("batch", ("on", "off"), "off") == "on"
    wait = spec.number("batch_wait", DEFAULT_WAIT, 0.001, 3600.0, unit="seconds")
    if not batched and "batch_wait" in spec.options:
        raise ConfigurationError(f"model '{spec.text}': batch_wait needs batch=on")
    return wait if batched else None


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
    """Return the value of an option `body.KEY`: JSON, or a text that does not look like JSON."""
    option = f"model '{spec.text}': body.{name}"
    if name.partition(".")[0] in _OWN_FIELDS or "" in name.split("."):
        raise ConfigurationError(f"{option}: expected the name of a field other than {', '.join(_OWN_FIELDS)}")
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if text in _PYTHONS:
            raise ConfigurationError(f"{option}={text}: not JSON; write {_PYTHONS[text]}") from None
        if text[:1] in ("{", "[", '"'):
            raise ConfigurationError(f"{option}={text}: not JSON: {error}") from None
        return text


def _is_local_address(url: str) -> bool:
    try:
        host = URL(url).host or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
