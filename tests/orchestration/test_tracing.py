"""Traces of runs: the tree of spans, the conventions' attributes, no text unless asked for, no key, no harm done."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import otlp_collector
import process
import pytest
from command import viva as command
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from planted_keys import KEYS, leaks

import viva
from viva.engine.errors import Unavailable
from viva.orchestration import tracing

if TYPE_CHECKING:
    from tests.servers.process import Plan, Server

    Chaos = Callable[[Plan], Server]

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
_COLLECTOR = str(Path(otlp_collector.__file__))
# GenAI semantic conventions, spans of inference: type, and whether every answered call has it.
CONVENTIONS: dict[str, tuple[type, bool]] = {
    "gen_ai.operation.name": (str, True),
    "gen_ai.provider.name": (str, True),
    "gen_ai.request.model": (str, True),
    "gen_ai.conversation.id": (str, True),
    "gen_ai.output.type": (str, False),
    "gen_ai.request.temperature": (float, True),
    "gen_ai.request.top_p": (float, False),
    "gen_ai.request.max_tokens": (int, True),
    "gen_ai.request.seed": (int, True),
    "gen_ai.request.stop_sequences": (tuple, False),
    "gen_ai.response.finish_reasons": (tuple, True),
    "gen_ai.response.time_to_first_chunk": (float, False),
    "gen_ai.usage.input_tokens": (int, True),
    "gen_ai.usage.output_tokens": (int, True),
    "gen_ai.usage.cache_read.input_tokens": (int, False),
    "gen_ai.input.messages": (str, False),
    "gen_ai.output.messages": (str, False),
    "server.address": (str, False),
    "server.port": (int, False),
    "error.type": (str, False),
}
_CONTENT = ("gen_ai.input.messages", "gen_ai.output.messages")


class Teller(viva.Backend):
    """Says secrets; fails on demand; is retried."""

    label = "teller"
    fallible = True

    def __init__(self) -> None:
        self.failures = 0

    async def generate(self, request: viva.Request) -> viva.Completion:
        question = request.messages[-1].content
        await asyncio.sleep(0.01)
        if "never" in question:
            raise viva.BackendError("a secret refusal", model=self.label)
        if "once" in question and not self.failures:
            self.failures += 1
            raise Unavailable("a secret overload", model=self.label)
        return viva.Completion("a secret \ud83d answer", "length", 11, 7, cached_tokens=3, thoughts="a secret thought")


@viva.scenario(many="pupil")
async def lesson(conversation: viva.Conversation, task: str) -> float:
    """Asks in three branches at once, then computes a step."""

    async def ask(name: str) -> None:
        view = viva.View()
        view.append("system", "a secret instruction")
        view.append("user", f"a secret question: {task}")
        part = conversation.branch(name)
        for _ in range(2):
            await part.generate("pupil", view, viva.Sampling(max_tokens=64, stop=("\n\n",)))

    await asyncio.gather(*map(ask, ("a", "b", "c")))
    await conversation.compute("metric", str.upper, "x")
    return 1.0


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[ReadableSpan]]:
    """Traces are on; the function returns the spans so far, in order of their start."""
    exporter = InMemorySpanExporter()
    monkeypatch.setenv(tracing.EXPORTER, "otlp")
    sender = tracing.SpanSender(exporter)
    monkeypatch.setattr(tracing, "_process_sender", lambda: sender)
    return lambda: sorted(exporter.get_finished_spans(), key=lambda span: span.start_time or 0)


def _attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def _calls(spans: Sequence[ReadableSpan]) -> list[ReadableSpan]:
    return [span for span in spans if span.kind is SpanKind.CLIENT]


def _check_conventions(span: ReadableSpan) -> None:
    attributes = _attributes(span)
    assert span.name == f"{attributes['gen_ai.operation.name']} {attributes['gen_ai.request.model']}"
    for name, value in attributes.items():
        assert name.startswith("viva.") or name in CONVENTIONS, name
        if name in CONVENTIONS:
            assert type(value) is CONVENTIONS[name][0], (name, value)
    answered = span.status.status_code is not StatusCode.ERROR
    missing = {name for name, (_, always) in CONVENTIONS.items() if always} - attributes.keys()
    assert not missing or not answered, missing
    assert answered or "error.type" in attributes


def test_conventions_are_those_of_the_package() -> None:
    attributes = pytest.importorskip("opentelemetry.semconv._incubating.attributes.gen_ai_attributes")
    known = {value for value in vars(attributes).values() if isinstance(value, str)}
    assert {name for name in CONVENTIONS if name.startswith("gen_ai.")} <= known


def test_calls_are_below_conversations_and_these_below_the_run(
    tmp_path: Path, spans: Callable[[], list[ReadableSpan]]
) -> None:
    viva.run_sync(lesson, models={"pupil": [Teller()]}, tasks=["x", "y", "z"], out=tmp_path / "run")
    done = spans()
    [root] = [span for span in done if span.parent is None]
    assert (root.name, _attributes(root)["viva.outcome"], _attributes(root)["viva.conversations"]) == (
        "run lesson", "done", 3)  # fmt: skip
    assert len({span.context.trace_id for span in done}) == 1
    assert len({span.context.span_id for span in done}) == len(done) == 1 + 3 * (1 + 6 + 1)
    conversations = {span.context.span_id: span for span in done if span.name == "conversation"}
    for conversation in conversations.values():
        assert conversation.parent is not None
        assert conversation.parent.span_id == root.context.span_id
        assert _attributes(conversation)["viva.outcome"] == "finished"
        below = [span for span in done if span.parent and span.parent.span_id == conversation.context.span_id]
        assert [span.name for span in below].count("step metric") == 1
        calls = _calls(below)
        order = {(_attributes(span)["viva.branch"], _attributes(span)["viva.ordinal"]) for span in calls}
        assert order == {(branch, ordinal) for branch in "abc" for ordinal in (0, 1)}
        key = _attributes(conversation)["gen_ai.conversation.id"]
        for span in calls:
            _check_conventions(span)
            assert _attributes(span)["gen_ai.conversation.id"] == key
            assert conversation.start_time <= span.start_time < span.end_time <= conversation.end_time  # type: ignore[operator]
            assert span.end_time - span.start_time >= 9_000_000  # type: ignore[operator]
        first = _attributes(calls[0])
        assert first["gen_ai.response.finish_reasons"] == ("length",)
        assert (first["gen_ai.usage.input_tokens"], first["gen_ai.usage.output_tokens"]) == (11, 7)
        assert first["gen_ai.usage.cache_read.input_tokens"] == 3
        assert (first["gen_ai.request.max_tokens"], first["gen_ai.request.stop_sequences"]) == (64, ("\n\n",))
    assert len(conversations) == 3
    assert "secret" not in "".join(span.to_json() for span in done)


def test_failures_retries_and_stops_are_marked(tmp_path: Path, spans: Callable[[], list[ReadableSpan]]) -> None:
    viva.run_sync(lesson, models={"pupil": [Teller()]}, tasks=["never", "once"], out=tmp_path / "run", concurrency=1)
    failed, retried = [span for span in spans() if span.name == "conversation"]
    assert failed.status.status_code is StatusCode.ERROR
    assert (_attributes(failed)["error.type"], _attributes(failed)["viva.outcome"]) == ("BackendError", "failed")
    calls = [span for span in _calls(spans()) if span.parent and span.parent.span_id == failed.context.span_id]
    assert calls
    for span in calls:
        _check_conventions(span)
        assert (span.status.status_code, _attributes(span)["error.type"]) == (StatusCode.ERROR, "BackendError")
    assert retried.status.status_code is StatusCode.UNSET
    [event] = retried.events
    assert (event.name, dict(event.attributes or {})["error.type"]) == ("retry", "Unavailable")
    calls = [span for span in _calls(spans()) if span.parent and span.parent.span_id == retried.context.span_id]
    assert sorted(_attributes(span).get("viva.attempts", 1) for span in calls) == [1, 1, 1, 1, 1, 2]
    assert "secret" not in "".join(span.to_json() for span in spans())


@pytest.mark.parametrize("value", ["true", "SPAN_ONLY"])
def test_texts_are_sent_if_the_environment_asks_for_them(
    tmp_path: Path, spans: Callable[[], list[ReadableSpan]], monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv(tracing.CONTENT, value)
    viva.run_sync(lesson, models={"pupil": [Teller()]}, tasks=["x"], out=tmp_path / "run")
    for span in _calls(spans()):
        _check_conventions(span)
        asked, answered = (json.loads(_attributes(span)[name]) for name in _CONTENT)
        assert asked == [
            {"role": "system", "parts": [{"type": "text", "content": "a secret instruction"}]},
            {"role": "user", "parts": [{"type": "text", "content": "a secret question: x"}]},
        ]
        parts = [{"type": "reasoning", "content": "a secret thought"},
                 {"type": "text", "content": "a secret � answer"}]  # fmt: skip
        parts[1]["content"] = answered[0]["parts"][1]["content"]  # half of a pair is stored as it may be
        assert answered == [{"role": "assistant", "parts": parts, "finish_reason": "length"}]
        assert parts[1]["content"].endswith(" answer")


def test_a_resumed_run_continues_the_trace_without_its_recorded_calls(
    tmp_path: Path, spans: Callable[[], list[ReadableSpan]]
) -> None:
    bounds: dict[str, Any] = {"max_calls": 8, "concurrency": 1}
    viva.run_sync(lesson, models={"pupil": [Teller()]}, tasks=["x", "y"], out=tmp_path / "run", **bounds)
    before = spans()
    roots = [span for span in before if span.parent is None]
    assert [_attributes(span)["viva.outcome"] for span in roots] == ["budget"]
    made = len(_calls(before))
    assert 6 <= made < 12
    asyncio.run(viva.resume(tmp_path / "run", models={"pupil": [Teller()]}, max_calls=100))
    after = [span for span in spans() if span not in before]
    assert len({span.context.trace_id for span in spans()}) == 1
    assert len(_calls(after)) == 12 - made, "replayed calls are not sent again"
    [conversation] = [span for span in after if span.name == "conversation"]
    assert _attributes(conversation)["viva.replayed_calls"] == made - 6
    [root] = [span for span in after if span.parent is None]
    assert (_attributes(root)["viva.outcome"], _attributes(root)["viva.resumed_conversations"]) == ("done", 1)
    viva.run_sync(lesson, models={"pupil": [Teller()]}, tasks=["x"], out=tmp_path / "other")
    assert len({span.context.trace_id for span in spans()}) == 2, "another run is another trace"


def test_readings_and_virtual_time(tmp_path: Path, spans: Callable[[], list[ReadableSpan]]) -> None:
    @viva.scenario(many="pupil")
    async def reading(conversation: viva.Conversation, task: str) -> float:
        """Reads."""
        return (await conversation.read("pupil", viva.Reading(task, (" yes", " no"))))[0].total

    clock = viva.VirtualClock()
    models = {"pupil": ["simulated:reader?latency=5"]}
    viva.run_sync(reading, models=models, tasks=["a secret context"], out=tmp_path / "run", clock=clock)
    [call] = _calls(spans())
    assert (call.name, _attributes(call)["viva.role"]) == ("likelihood reader", "pupil")
    assert "secret" not in "".join(span.to_json() for span in spans())


def test_model_names_give_no_more_of_an_address_than_host_and_port() -> None:
    full = tracing.model_attributes("openai:https://gw.example:8443/token/abcdef/v1#big?query.key=$K&temperature=1")
    assert full == {"gen_ai.provider.name": "openai", "gen_ai.request.model": "big", "server.address": "gw.example",
                    "server.port": 8443}  # fmt: skip
    assert tracing.model_attributes("http:https://gw.example/token/abcdef")["gen_ai.request.model"] == "http"
    assert tracing.model_attributes("llama:/home/ada/models/a.gguf")["gen_ai.request.model"] == "a.gguf"
    assert tracing.model_attributes("gemini:flash")["gen_ai.provider.name"] == "gcp.gemini"
    assert tracing.model_attributes("openai:meta-llama/llama-3")["gen_ai.request.model"] == "meta-llama/llama-3"
    assert tracing.model_attributes('http:{"url": "https://a.example/abcdef"}')["gen_ai.request.model"] == "http"


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/x"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, False),
    ],
)
def test_the_usual_variables_switch_traces_on(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], wanted: bool
) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert tracing.is_requested() is wanted


_RUN = ["run", "kieval", "--dataset", str(ITEMS), "-n", "2", "--rounds", "1", "--interactor", "simulated:i",
        "--candidate", "simulated:c?knowledge=0.5", "--evaluator", "simulated:e"]  # fmt: skip


def test_without_the_package_the_option_is_refused_and_the_variable_only_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(tracing.EXPORTER, "otlp")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    done = command(*_RUN, "--out", tmp_path / "a", "--otel")
    assert done.returncode == 2
    assert (
        "viva: error: traces need the package opentelemetry; install it with: pip install 'viva-exam[otel]'"
        in done.stderr
    )
    assert not (tmp_path / "a").exists()
    tracing._process_sender.cache_clear()
    with caplog.at_level(logging.WARNING, "viva"):
        assert command(*_RUN, "--out", tmp_path / "b").returncode == 0
    assert caplog.text.count("but none are sent: traces need the package") == 1
    tracing._process_sender.cache_clear()


@pytest.mark.parametrize(
    ("name", "value"), [("OTEL_TRACES_EXPORTER", "zipkin"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]
)
def test_variables_that_cannot_be_followed_are_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(tracing.EXPORTER, "otlp")
    monkeypatch.setenv(name, value)
    with pytest.raises(viva.ConfigurationError, match=f"{name}={value}: expected"):
        tracing.request_traces()


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "user:my-secret@collector:4318"}, "ENDPOINT: expected an address"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "grpc://my-secret@collector:4318"}, "ENDPOINT: expected an address"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://"}, "OTEL_EXPORTER_OTLP_ENDPOINT: expected an address"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:99999"}, "OTEL_EXPORTER_OTLP_ENDPOINT: expected an address"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "c:1/x"}, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: expected an address"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318/v1/traces/"}, "set OTEL_EXPORTER_OTLP_TRACES_ENDPOINT instead"),
        ({"OTEL_TRACES_SAMPLER": "foo"}, "OTEL_TRACES_SAMPLER=foo: expected always_on"),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "ten"}, "OTEL_TRACES_SAMPLER_ARG=ten: "),
        ({"OTEL_BSP_MAX_QUEUE_SIZE": "x"}, "OTEL_BSP_MAX_QUEUE_SIZE=x: expected a whole number above 0"),
        ({"OTEL_BSP_SCHEDULE_DELAY": "-1"}, "OTEL_BSP_SCHEDULE_DELAY=-1: expected a whole number above 0"),
        ({"OTEL_BSP_MAX_QUEUE_SIZE": "100"}, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE (512): more than the queue holds"),
        ({"OTEL_EXPORTER_OTLP_HEADERS": "a=b,my-secret"}, "OTEL_EXPORTER_OTLP_HEADERS: header 2: expected NAME=VALUE"),
    ],
)
def test_a_wrong_variable_is_refused_with_the_option_and_noted_without_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    variables: dict[str, str],
    sentence: str,
) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(tracing.EXPORTER, "otlp")
    done = command(*_RUN, "--out", tmp_path / "a", "--otel")
    assert done.returncode == 2
    assert sentence in done.stderr
    assert not (tmp_path / "a").exists()
    tracing._process_sender.cache_clear()
    with caplog.at_level(logging.WARNING, "viva"):
        assert tracing._process_sender() is None
    assert sentence in caplog.text
    assert "my-secret" not in done.stderr + caplog.text
    tracing._process_sender.cache_clear()


@pytest.mark.parametrize(
    "variables",
    [
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://c/base", "OTEL_EXPORTER_OTLP_HEADERS": "a=b, c=d%20e"},
        {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:1/v1/traces", "OTEL_EXPORTER_OTLP_ENDPOINT": "wrong"},
        {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.1"},
        {"OTEL_BSP_MAX_QUEUE_SIZE": "100", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "50"},
    ],
)
def test_usable_variables_are_accepted(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(tracing.EXPORTER, "otlp")
    tracing.request_traces()


def _process(words: Sequence[str | Path], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    program = [sys.executable, "-m", "viva", *map(str, words)]
    return subprocess.run(program, cwd=folder, env=clean | variables, capture_output=True, text=True, timeout=60)


def test_off_by_default_the_package_is_not_imported(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom viva.cli.main import app\n"
        f"try: app({[*_RUN, '--out', str(tmp_path / 'run')]!r})\n"
        "finally: print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run([sys.executable, "-c", program], env=clean, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("content", ["", "true"])
def test_a_collector_receives_everything_but_keys(chaos: Chaos, tmp_path: Path, content: str) -> None:
    echo = {"do": "ok", "say": "You sent {key}. Or {key:unicode} {key:percent} {key:login}", "thoughts": "{key}"}
    refused = {"do": "400", "say": "bad key {key}, {key:percent}"}
    server = chaos({"cycle": ["ok", echo, refused, {"do": "503", "say": "busy {key}"}, "ok", "ok"]})
    model = "openai:candidate?retries=1&label=it"
    words = ["run", "kieval", "--dataset", ITEMS, "-n", "6", "--rounds", "1", "--candidate", model, "--interactor",
             "openai:interactor", "--evaluator", "openai:evaluator", "--otel", "--max-failures", "99"]  # fmt: skip
    file = tmp_path / "received"
    with process.serving_port([sys.executable, _COLLECTOR, str(file)]) as port:
        variables = KEYS | {"OPENAI_BASE_URL": server.url, tracing.CONTENT: content}
        variables["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{port}"
        variables["OTEL_EXPORTER_OTLP_HEADERS"] = "api-key=collectors-own-key"
        done = _process(words, tmp_path, **variables)
    assert done.returncode == 0, done.stderr
    assert "traces:" not in done.stderr
    bodies = list(otlp_collector.received(file))
    assert {entry["key"] for entry in server.log()} == {KEYS["OPENAI_API_KEY"]}
    assert not any(map(leaks, bodies))
    assert not leaks((done.stdout + done.stderr).encode())
    assert b"collectors-own-key" not in b"".join(bodies)
    assert (b"You sent ***" in b"".join(bodies)) is bool(content)
    spans = []
    for body in bodies:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            names = {one.key: one.value.string_value for one in resource.resource.attributes}
            assert names["service.name"] == "viva"
            spans += [span for scope in resource.scope_spans for span in scope.spans]
    roots = [span for span in spans if not span.parent_span_id]
    assert [span.name for span in roots] == ["run kieval"]
    conversations = {span.span_id for span in spans if span.name == "conversation"}
    assert len(conversations) == 6
    calls = [span for span in spans if span.kind == span.SPAN_KIND_CLIENT]
    assert {span.name for span in calls} <= {"chat candidate", "chat interactor", "chat evaluator"}
    assert {span.parent_span_id for span in calls} == conversations
    assert any(span.status.code == span.status.STATUS_CODE_ERROR for span in calls)
    sent = {one.key for span in calls for one in span.attributes}
    assert bool(sent & {*_CONTENT}) is bool(content)


@pytest.mark.parametrize("collector", ["gone", "hangs"])
def test_a_dead_collector_harms_no_run_and_is_noted_once(tmp_path: Path, collector: str) -> None:
    with process.serving_port([sys.executable, _COLLECTOR, str(tmp_path / "received"), "--hang"]) as port:
        address = f"http://user:collectors-own-key@127.0.0.1:{port if collector == 'hangs' else 1}"
        began = time.monotonic()
        done = _process([*_RUN, "--out", "run"], tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=address)
        took = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("traces: ") == 1, done.stderr
    lost = f"11 of 11 spans have not reached the collector at {address.rpartition('@')[2]}: it cannot be reached or"
    assert lost in " ".join(done.stderr.split())
    assert "own-key" not in done.stdout + done.stderr
    began = time.monotonic()
    plain = _process([*_RUN, "--out", "plain"], tmp_path)
    assert took < 3 * (time.monotonic() - began) + 15, "a few seconds at the end, on a busy machine too"
    assert plain.stdout == done.stdout


def test_the_warning_names_the_other_variables_address_and_what_the_collector_answers(tmp_path: Path) -> None:
    with process.serving_port([sys.executable, _COLLECTOR, str(tmp_path / "received"), "--refuse"]) as port:
        address = f"http://127.0.0.1:{port}/v1/traces?key=collectors-own-key"
        variables = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": address, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://other:1"}
        done = _process([*_RUN, "--out", "run"], tmp_path, **variables)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stderr.split())
    assert f"spans have not reached the collector at 127.0.0.1:{port}: it answered 401; the run is not" in said
    assert "own-key" not in done.stdout + done.stderr


def test_traces_of_two_sweeps_can_be_told_apart(tmp_path: Path) -> None:
    cell = tmp_path / "grid" / "cells" / "kieval" / "c"
    cell.mkdir(parents=True)
    assert tracing._run_name(cell) == "c"
    (tmp_path / "grid" / "sweep.json").write_text("{}")
    assert tracing._run_name(cell) == "grid/cells/kieval/c"
