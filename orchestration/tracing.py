"""Traces of runs: OpenTelemetry spans of runs, conversations and calls, made from the event stream.

Attributes follow the GenAI semantic conventions (docs/traces.md). The package `opentelemetry` is imported only if
traces are on.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import orjson

from viva.engine.backends.base import Backend, ModelSpec
from viva.engine.clock import Clock
from viva.engine.errors import ConfigurationError
from viva.engine.events import (
    CallDetails,
    CallFailed,
    CallFinished,
    ConversationFailed,
    ConversationFinished,
    ConversationInterrupted,
    ConversationStarted,
    Event,
    LimitHit,
    Retried,
    RunFinished,
    RunStarted,
    StepComputed,
    StopRequested,
)
from viva.engine.json_data import strip_surrogates, to_utf8_data
from viva.engine.messages import Completion, Message, Request
from viva.engine.tools import ToolCall

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.sdk.trace.id_generator import IdGenerator
    from opentelemetry.trace import Span

    from .launch import Launch

_log = logging.getLogger("viva")
EXPORTER = "OTEL_TRACES_EXPORTER"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_CONTENT_VALUES = ("true", "span_only", "span_and_event")
_TRACES_PATH = "/v1/traces"
_DEFAULT_ENDPOINT = "http://localhost:4318"
_HEADERS = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
_SAMPLER, _SAMPLER_SHARE = "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"
_SHARES = ("traceidratio", "parentbased_traceidratio")
_SAMPLERS = ("always_on", "always_off", "parentbased_always_on", "parentbased_always_off", *_SHARES)
_QUEUE, _BATCH = "OTEL_BSP_MAX_QUEUE_SIZE", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"
_SIZES = {_QUEUE: 2048, _BATCH: 512, "OTEL_BSP_SCHEDULE_DELAY": 5000, "OTEL_BSP_EXPORT_TIMEOUT": 30000}
_FLUSH_SECONDS = 3.0  # maximum wait for the collector at the end of a run
_PROVIDERS = {"gemini": "gcp.gemini"}  # kinds whose name in the conventions differs

_HEADER = re.compile(r"[!#$%&'*+.^`|~\w-]+\s*=\s*[ !#-+\--:<-\[\]-~]*", re.ASCII)  # as the package reads them
_IDENTIFIER = re.compile(r"[!-~]+")  # ASCII without blanks

Attributes = dict[str, Any]


def is_requested() -> bool:
    """Return True if the environment asks for traces: it names an exporter or an endpoint."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporter = os.environ.get(EXPORTER)
    return exporter != "none" if exporter else any(map(os.environ.get, _ENDPOINTS))


def request_traces() -> None:
    """Switch traces on for this process and its children.

    Raises:
        ConfigurationError: The package is missing, or a variable is not usable.
    """
    os.environ.setdefault(EXPORTER, "otlp")
    if is_requested():
        _make_exporter()


def _endpoint() -> tuple[str, str]:
    """Return the variable that names the collector ("" if none does), and the URL to which spans are sent."""
    name = next(filter(os.environ.get, _ENDPOINTS), "")
    value = os.environ.get(name, _DEFAULT_ENDPOINT)
    return name, value if name == _ENDPOINTS[0] else value.rstrip("/") + _TRACES_PATH


def _collector() -> str:
    """Return host and port of the collector; nothing else of its address, which may contain a credential."""
    parts = urlsplit(_endpoint()[1])
    return f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


def _check_variables() -> None:
    """Check the variables that the package would replace by its defaults, or with which nothing can be sent.

    No value of an address or a header is shown, because it may contain a credential.

    Raises:
        ConfigurationError: A variable is not usable; the message names it.
    """
    name, url = _endpoint()
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address:
        raise ConfigurationError(f"{name}: expected an address that begins with http:// or https:// and a host")
    if name != _ENDPOINTS[0] and parts.path.endswith(_TRACES_PATH * 2):
        raise ConfigurationError(
            f"{name}: ends with {_TRACES_PATH}, which is added to it: leave that out, or set {_ENDPOINTS[0]} instead"
        )
    _check_headers()
    sampler, share = (os.environ.get(variable, "").strip().lower() for variable in (_SAMPLER, _SAMPLER_SHARE))
    if sampler and sampler not in _SAMPLERS:
        raise ConfigurationError(f"{_SAMPLER}={sampler:.40}: expected {', '.join(_SAMPLERS)}")
    if sampler in _SHARES and share and not _is_share(share):
        raise ConfigurationError(f"{_SAMPLER_SHARE}={share:.40}: expected a number from 0 to 1")
    sizes = dict(_SIZES)
    for variable in _SIZES:
        if text := os.environ.get(variable, "").strip():
            if not re.fullmatch(r"0*[1-9]\d{0,9}", text, re.ASCII):
                raise ConfigurationError(f"{variable}={text:.40}: expected a whole number above 0")
            sizes[variable] = int(text)
    if sizes[_BATCH] > sizes[_QUEUE]:
        raise ConfigurationError(
            f"{_BATCH} ({sizes[_BATCH]:,}): more than the queue holds ({_QUEUE}: {sizes[_QUEUE]:,}); set both"
        )


def _check_headers() -> None:
    """Check that the package reads every header, because its own warnings show the values."""
    name = next(filter(os.environ.get, _HEADERS), _HEADERS[-1])
    for number, header in enumerate(os.environ.get(name, "").split(","), 1):
        if header.strip() and not _HEADER.fullmatch(header.strip()):
            raise ConfigurationError(f"{name}: header {number}: expected NAME=VALUE, several separated by commas")


def _is_share(text: str) -> bool:
    try:
        return 0.0 <= float(text) <= 1.0
    except ValueError:
        return False


def _make_exporter(on_answer: Callable[[int], None] | None = None) -> SpanExporter:
    """Return the package's exporter; `on_answer` is called with the status of each answer of the collector.

    Raises:
        ConfigurationError: The package is missing, or a variable is not usable.
    """
    exporter = os.environ.get(EXPORTER) or "otlp"
    protocol = next(filter(None, map(os.environ.get, _PROTOCOLS)), "http/protobuf")
    if exporter != "otlp":
        raise ConfigurationError(f"{EXPORTER}={exporter}: expected otlp or none")
    if protocol != "http/protobuf":
        raise ConfigurationError(f"{_PROTOCOLS[1]}={protocol}: expected http/protobuf (port 4318 of most collectors)")
    _check_variables()
    # Without any handler, Python prints the package's warnings on stderr, some with a header's value.
    logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        return OTLPSpanExporter(session=_make_session(on_answer))
    except ImportError:
        message = "traces need the package opentelemetry; install it with: pip install 'viva-exam[otel]'"
        raise ConfigurationError(message) from None
    except (OSError, ValueError) as error:  # its message may contain a credential
        raise ConfigurationError(f"an OTEL_EXPORTER_OTLP_… variable is not usable: {type(error).__name__}") from None


def _make_session(on_answer: Callable[[int], None] | None) -> Any:
    """Return an HTTP session that reports the status of each answer; None if a variable names another session."""
    if on_answer is None or any(name.endswith("_CREDENTIAL_PROVIDER") for name in os.environ if "OTLP" in name):
        return None
    import requests  # the package sends with it

    session = requests.Session()
    session.hooks["response"].append(lambda answer, *_, **__: on_answer(answer.status_code))
    return session


class _CountingExporter:
    """An exporter that counts the spans that the collector has accepted."""

    def __init__(self, inner: SpanExporter) -> None:
        self.inner = inner
        self.delivered = 0

    def export(self, spans: Sequence[Any]) -> Any:
        result = self.inner.export(spans)
        if result.name == "SUCCESS":
            self.delivered += len(spans)
        return result

    def shutdown(self) -> None:
        self.inner.shutdown()


class _RunIds:
    """Ids of spans; the root span of a run gets the trace id set in `trace`."""

    trace = 0

    def generate_trace_id(self) -> int:
        return self.trace

    def generate_span_id(self) -> int:
        return secrets.randbits(64) or 1

    def is_trace_id_random(self) -> bool:
        return True


class SpanSender:
    """Sender of a process's spans: a bounded queue and one thread. A collector that is slow or gone delays no run."""

    def __init__(self, exporter: SpanExporter | None = None) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        self._status = 0  # of the collector's last answer; 0 without one
        # Imported lazily, the package's base classes cannot be ours.
        self.ids, self._exporter = _RunIds(), _CountingExporter(exporter or _make_exporter(self._note_answer))
        self._processor = BatchSpanProcessor(cast("SpanExporter", self._exporter))
        resource = Resource.create({} if named else {"service.name": "viva"})
        provider = TracerProvider(resource=resource, id_generator=cast("IdGenerator", self.ids), shutdown_on_exit=False)
        provider.add_span_processor(self._processor)
        self.tracer = provider.get_tracer("viva", version("viva-exam"))
        self.active = 0  # runs that are traced now
        self.ended = 0
        self._has_warned = False

    def _note_answer(self, status: int) -> None:
        self._status = status

    def _reason(self) -> str:
        """Return why spans are lost, as far as it is known."""
        if not self._status:
            return "it cannot be reached or does not answer"
        return f"it answered {self._status}" if self._status >= 400 else "it accepts them too slowly"

    def end(self, span: Span, at: float) -> None:
        """End a span and queue it."""
        self.ended += span.is_recording()
        span.end(_nanoseconds(at))

    async def flush(self, clock: Clock) -> None:
        """Send what is queued within a few seconds of real time; log once if spans were lost."""
        loop, sent = asyncio.get_running_loop(), asyncio.Event()

        def send() -> None:
            sending = threading.Thread(target=self._processor.force_flush, daemon=True)  # ignores its own time limit
            sending.start()
            sending.join(0.0 if self._has_warned else _FLUSH_SECONDS)
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(sent.set)

        threading.Thread(target=send, daemon=True).start()
        with clock.external():
            await sent.wait()
        lost = self.ended - self._exporter.delivered
        if lost and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "traces: %s of %s spans have not reached the collector at %s: %s; the run is not affected",
                f"{lost:,}",
                f"{self.ended:,}",
                _collector(),
                self._reason(),
            )


@cache
def _process_sender() -> SpanSender | None:
    try:
        return SpanSender()
    except ConfigurationError as error:  # the environment may be meant for other programs
        _log.warning("OTEL_… variables ask for traces, but none are sent: %s", error)
    except ValueError as error:  # a variable for other parts of the package, such as a limit of attributes
        kind = type(error).__name__  # its message may contain a credential
        _log.warning("OTEL_… variables ask for traces, but one is not usable, so none are sent: %s", kind)
    return None


@asynccontextmanager
async def traced(launch: Launch, backends: Mapping[str, Backend]) -> AsyncIterator[None]:
    """Trace the run in the block if the environment asks for it.

    Args:
        launch: The launch whose events are traced.
        backends: The run's models, by name.
    """
    sender = _process_sender() if is_requested() else None
    if sender is None:
        yield
        return
    trace = RunTrace(sender, launch, backends)
    launch.events.detailed = True
    launch.events.listen(trace.on_event)
    sender.active += 1
    try:
        yield
    finally:
        trace.close(launch.clock.wall())
        sender.active -= 1
        if not sender.active:
            await sender.flush(launch.clock)


def _run_name(path: Path) -> str:
    """Return the name of a run's folder; in a sweep, its path from the sweep's folder on (`SWEEP/cells/…`)."""
    path = path.resolve()
    sweep = next((parent for parent in path.parents if (parent / "sweep.json").is_file()), None)
    return path.name if sweep is None else path.relative_to(sweep.parent).as_posix()


@dataclass(slots=True)
class _OpenConversation:
    """Span of a conversation in flight, the id that its calls name, and its number of replayed calls."""

    span: Span
    key: str
    replayed: int = 0


class RunTrace:
    """Listener that turns a run's events into one trace.

    A resumed run continues the trace: the id follows from the run's manifest and the time it was written. Replayed
    calls and conversations that ended before are counted, not sent again.
    """

    def __init__(self, sender: SpanSender, launch: Launch, backends: Mapping[str, Backend]) -> None:
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context

        self._sender, self._kind, self._error = sender, SpanKind, StatusCode.ERROR
        self._no_parent, self._below = Context(), set_span_in_context  # the program's own spans are no parents
        self._models = {id(backend): model_attributes(name) for name, backend in backends.items()}
        self._content = os.environ.get(CONTENT, "").lower() in _CONTENT_VALUES
        manifest = launch.folder.path / "manifest.json"
        identity = manifest.read_bytes() + str(manifest.stat().st_mtime_ns).encode()
        self._trace_id = int.from_bytes(hashlib.blake2b(identity, digest_size=16).digest(), "big") or 1
        self._attributes = {"viva.scenario": launch.scenario.name, "viva.run": _run_name(launch.folder.path)}
        self._root: Span | None = None
        self._conversations: dict[str, _OpenConversation] = {}

    def on_event(self, event: Event) -> None:
        """Handle an event of the run."""
        match event:
            case CallFinished():
                conversation = self._conversations.get(event.conversation)
                if event.details is not None:
                    self._add_call(event, event.details)
                elif conversation is not None:
                    conversation.replayed += event.replayed
            case CallFailed():
                self._add_call(event, event.details)
            case StepComputed():
                if not event.replayed:
                    self._add_step(event)
            case ConversationStarted():
                # A key may contain a task's text.
                is_text = not self._content and not _IDENTIFIER.fullmatch(event.conversation)
                key = f"#{event.number}" if is_text else strip_surrogates(event.conversation)
                attributes = {"gen_ai.conversation.id": key, "viva.number": event.number}
                span = self._start("conversation", self._root, event.at, attributes)
                self._conversations[event.conversation] = _OpenConversation(span, key)
            case ConversationFinished() | ConversationFailed() | ConversationInterrupted():
                self._end_conversation(event)
            case RunStarted():
                self._sender.ids.trace = self._trace_id
                attributes = self._attributes | {"viva.resumed_conversations": event.done}
                if event.total is not None:
                    attributes["viva.conversations"] = event.total
                self._root = self._start(f"run {self._attributes['viva.scenario']}", None, event.at, attributes)
            case RunFinished():
                self._end_root(event.outcome, event.at)
            case Retried():
                delay = {"gen_ai.request.model": event.model, "error.type": event.error, "viva.delay": event.delay}
                self._add_event("retry", event, delay)
            case StopRequested():
                self._add_event("stop", event, {"viva.by": event.by})
            case LimitHit():
                self._add_event("limit", event, {"viva.limit": event.limit})

    def close(self, at: float) -> None:
        """End the spans of a run that raised."""
        for conversation in self._conversations.values():
            self._sender.end(conversation.span, at)
        self._conversations.clear()
        self._end_root("failed", at)

    def _start(
        self, name: str, parent: Span | None, at: float, attributes: Attributes, *, calls_model: bool = False
    ) -> Span:
        context = self._no_parent if parent is None else self._below(parent, self._no_parent)
        kind = self._kind.CLIENT if calls_model else self._kind.INTERNAL
        return self._sender.tracer.start_span(name, context, kind, attributes, None, _nanoseconds(at))

    def _fail(self, span: Span, error: str, message: str = "") -> None:
        span.set_attribute("error.type", error)
        span.set_status(self._error, strip_surrogates(message) if self._content and message else None)

    def _parent(self, event: Event) -> Span | None:
        conversation = self._conversations.get(event.conversation)
        return self._root if conversation is None else conversation.span

    def _add_call(self, event: CallFinished | CallFailed, details: CallDetails) -> None:
        request, completion = details.request, details.completion
        model = self._models.get(id(details.backend)) or {"gen_ai.request.model": details.backend.label}
        attributes: Attributes = {"viva.role": event.role, "viva.ordinal": event.ordinal} | model
        conversation = self._conversations.get(event.conversation)
        if conversation is not None:
            attributes["gen_ai.conversation.id"] = conversation.key
        if event.branch:
            attributes["viva.branch"] = event.branch
        operation = "likelihood"
        if isinstance(request, Request):
            operation = "chat" if request.prompt is None else "text_completion"
            attributes |= request_attributes(request)
            if self._content:
                attributes["gen_ai.input.messages"] = _to_json(list(map(message_record, request.messages)))
        attributes["gen_ai.operation.name"] = operation
        if isinstance(event, CallFinished) and completion is not None:
            attributes |= answer_attributes(event, completion)
            if self._content and completion.likelihoods is None:
                attributes["gen_ai.output.messages"] = _to_json([answer_record(completion)])
        name = f"{operation} {attributes['gen_ai.request.model']}"
        span = self._start(name, self._parent(event), event.at - event.latency, attributes, calls_model=True)
        if isinstance(event, CallFailed):
            self._fail(span, event.error)
        self._sender.end(span, event.at)

    def _add_step(self, event: StepComputed) -> None:
        attributes = {"viva.ordinal": event.ordinal} | ({"viva.branch": event.branch} if event.branch else {})
        span = self._start(f"step {event.name}", self._parent(event), event.at - event.latency, attributes)
        if event.failed:
            self._fail(span, "_OTHER")
        self._sender.end(span, event.at)

    def _add_event(self, name: str, event: Event, attributes: Attributes) -> None:
        span = self._parent(event)
        if span is not None:
            span.add_event(name, attributes, _nanoseconds(event.at))

    def _end_conversation(self, event: ConversationFinished | ConversationFailed | ConversationInterrupted) -> None:
        conversation = self._conversations.pop(event.conversation, None)
        if conversation is None:  # it ended before this run was resumed
            return
        span = conversation.span
        if conversation.replayed:
            span.set_attribute("viva.replayed_calls", conversation.replayed)
        if isinstance(event, ConversationFailed):
            self._fail(span, str(event.error.get("type", "_OTHER")), str(event.error.get("message", "")))
        span.set_attribute("viva.outcome", type(event).__name__.removeprefix("Conversation").lower())
        self._sender.end(span, event.at)

    def _end_root(self, outcome: str, at: float) -> None:
        if self._root is not None:
            self._root.set_attribute("viva.outcome", outcome)
            if outcome == "failed":
                self._fail(self._root, outcome)
            self._sender.end(self._root, at)
            self._root = None


def model_attributes(name: str) -> Attributes:
    """Return the attributes of a model by its name: provider, model, and an endpoint's host and port.

    No other part of an address is returned, because it may contain a credential.
    """
    try:
        spec = ModelSpec.parse(name)
    except ConfigurationError:  # a name given to a caller's own backend
        return {"gen_ai.provider.name": "custom", "gen_ai.request.model": name}
    model = spec.fragment or spec.where
    attributes: Attributes = {"gen_ai.provider.name": _PROVIDERS.get(spec.kind, spec.kind)}
    if spec.where.startswith(("http://", "https://")):
        address = urlsplit(spec.where)
        attributes |= {"server.address": address.hostname or ""}
        attributes |= {"server.port": address.port} if address.port else {}
    if model.startswith(("http://", "https://", "{")) or not model:
        model = spec.options.get("label") or spec.kind
    elif model.startswith(("/", ".", "~")):
        model = Path(model).name
    return attributes | {"gen_ai.request.model": model}


def request_attributes(request: Request) -> Attributes:
    """Return the attributes of a request: its seed, and its sampling options if they differ from the defaults."""
    sampling = request.sampling
    attributes: Attributes = {
        "gen_ai.request.temperature": float(sampling.temperature),
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.seed": request.seed,
    }
    if sampling.top_p != 1.0:
        attributes["gen_ai.request.top_p"] = float(sampling.top_p)
    if sampling.schema is not None:
        attributes["gen_ai.output.type"] = "json"
    if sampling.stop:
        attributes["gen_ai.request.stop_sequences"] = list(map(strip_surrogates, sampling.stop))
    return attributes


def answer_attributes(event: CallFinished, completion: Completion) -> Attributes:
    """Return the attributes of an answer: finish reason, tokens, several attempts, cost."""
    attributes: Attributes = {
        "gen_ai.response.finish_reasons": [strip_surrogates(completion.finish)],
        "gen_ai.usage.input_tokens": completion.prompt_tokens,
        "gen_ai.usage.output_tokens": completion.completion_tokens,
    }
    if completion.attempts > 1:
        attributes["viva.attempts"] = completion.attempts
    if completion.cached_tokens:
        attributes["gen_ai.usage.cache_read.input_tokens"] = completion.cached_tokens
    if completion.first_token is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = completion.first_token
    return attributes | ({"viva.cost": event.cost} if event.cost else {})


def message_record(message: Message) -> dict[str, Any]:
    """Return a message in the format of the conventions."""
    if message.role == "tool":
        parts: list[Any] = [{"type": "tool_call_response", "id": message.call_id, "response": message.content}]
    else:
        parts = [{"type": "text", "content": message.content}] if message.content else []
        parts += map(_call_record, message.calls)
    return {"role": message.role, "parts": parts}


def answer_record(completion: Completion) -> dict[str, Any]:
    """Return an answer in the format of the conventions."""
    texts = (("reasoning", completion.thoughts), ("text", completion.text))
    parts: list[Any] = [{"type": kind, "content": text} for kind, text in texts if text]
    parts += map(_call_record, completion.calls or [])
    return {"role": "assistant", "parts": parts, "finish_reason": completion.finish}


def _call_record(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments}


def _to_json(record: Any) -> str:
    return orjson.dumps(to_utf8_data(record)).decode()


def _nanoseconds(at: float) -> int:
    return int(at * 1e9)
