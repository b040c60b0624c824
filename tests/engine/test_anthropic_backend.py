"""The Messages API: what is sent, answers whole and streamed, tools with thoughts, structured output, errors."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from provider_asks import CLOCK, PLACE, TOOLS, VERDICT, after_call, answer, answers, asking, governed

from viva.engine.backends.anthropic import MessagesErrors, to_supported_schema
from viva.engine.backends.registry import build
from viva.engine.errors import (
    AccountBlocked,
    BackendError,
    ConfigurationError,
    ContextTooLong,
    Rejected,
    Throttled,
    Unauthorized,
    Unavailable,
)
from viva.engine.likelihood import Reading
from viva.engine.messages import Message
from viva.engine.tools import Toolbox, ToolCall

if TYPE_CHECKING:
    from tests.servers.process import Plan, Server

    StartChaos = Callable[[Plan], Server]

_CALL = {"id": "toolu_1", "name": "weather", "input": {"place": "Bern"}}
_OTHER = {"id": "toolu_2", "name": "time", "input": {}}


def test_what_is_sent(replanned: StartChaos) -> None:
    server = replanned({})
    said = [("system", "Be brief."), ("user", "Why?"), ("assistant", ""), ("assistant", "So."), ("system", "In rhyme.")]
    answer(server.anthropic("claude-x"), asking(*said, ("user", "And?"), ("user", "Well?"), stop=("\nQ:",), top_k=5))
    [entry] = server.log()
    assert entry["path"] == "/v1/messages"
    assert entry["body"] == {
        "model": "claude-x",
        "max_tokens": 512,
        "system": "Be brief.\n\nIn rhyme.",
        "messages": [
            {"role": "user", "content": "Why?"},
            {"role": "assistant", "content": "So."},
            {"role": "user", "content": [{"type": "text", "text": "And?"}, {"type": "text", "text": "Well?"}]},
        ],
        "temperature": 0.0,
        "top_k": 5,
        "stop_sequences": ["\nQ:"],
    }


def test_instructions_alone_are_said_by_the_user(replanned: StartChaos) -> None:
    server = replanned({})
    answer(server.anthropic("m"), asking(("system", "Ask the first question.")))
    assert server.log()[0]["body"]["messages"] == [{"role": "user", "content": "Ask the first question."}]


@pytest.mark.parametrize("streaming", [False, True])
def test_an_answer_with_its_thoughts_and_counts(replanned: StartChaos, streaming: bool) -> None:
    default = {"do": "ok", "say": "Steel conducts heat well, so it feels cold.", "thoughts": "Conduction, then."}
    server = replanned({"default": default})
    heard: list[str] = []
    got = answer(server.anthropic("m", thinking="adaptive"), asking(on_text=heard.append if streaming else None))
    [entry] = server.log()
    assert (got.text, got.thoughts, got.finish) == (default["say"], default["thoughts"], "stop")
    prompt = len(json.dumps(entry["body"]["messages"])) // 4
    assert (got.prompt_tokens, got.completion_tokens) == (prompt + 7 + 5, len(default["say"]) // 4)
    assert ("".join(heard), len(heard) > 3) == ((default["say"], True) if streaming else ("", False))
    assert (got.first_token is not None) == streaming
    assert entry["body"]["thinking"] == {"type": "adaptive", "display": "summarized"}
    assert "temperature" not in entry["body"]


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "refusal"),
        ("pause_turn", "pause_turn"),
        ("something: new", "something- new"),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_why_an_answer_ended(reason: str, finish: str, streaming: bool, replanned: StartChaos) -> None:
    server = replanned({"default": {"do": "ok", "stop": reason}})
    assert answer(server.anthropic("m"), asking(on_text=(lambda _: None) if streaming else None)).finish == finish


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("thinking", ["2000", "adaptive", "off"])
def test_results_of_tools_go_back_behind_the_signed_thoughts(
    replanned: StartChaos, streaming: bool, thinking: str
) -> None:
    calling = {"do": "ok", "calls": [_CALL, _OTHER], "thoughts": "I must look.", "say": "One moment."}
    server = replanned({"schedule": {"0": calling}, "default": {"do": "ok", "say": "It rains."}})
    heard: list[str] = []

    async def main() -> list[Any]:
        async with governed(server.anthropic("m", thinking=thinking)) as backend:
            first = asking(tools=TOOLS, on_text=heard.append if streaming else None)
            called = await backend.generate(first)
            second = asking(*after_call(first, called, "rain", "noon"), tools=TOOLS)
            return [called, await backend.generate(second)]

    called, last = CLOCK.run(main)
    assert called.calls == [
        ToolCall("toolu_1", "weather", called.calls[0].arguments),
        ToolCall("toolu_2", "time", "{}"),
    ]
    assert json.loads(called.calls[0].arguments) == {"place": "Bern"}
    assert (called.text, called.finish, last.text) == ("One moment.", "stop", "It rains.")
    assert "".join(heard) == ("One moment." if streaming else "")
    sent = server.log()[1]["body"]
    *_, turn, results = sent["messages"]
    blocks = [block["type"] for block in turn["content"]]
    assert blocks == ([] if thinking == "off" else ["thinking"]) + ["text", "tool_use", "tool_use"]
    assert [block["content"] for block in results["content"]] == ["rain", "noon"]
    assert sent["tools"][0] == {"name": "weather", "description": "What it is like.", "input_schema": PLACE}
    assert sent["tools"][1] == {"name": "time", "input_schema": {"type": "object", "properties": {}}}
    if thinking == "2000":
        assert (sent["thinking"]["budget_tokens"], sent["max_tokens"]) == (2000, 2512)


def test_a_resumed_conversation_without_the_thoughts_does_not_think_until_the_user_speaks(
    replanned: StartChaos,
) -> None:
    server = replanned({})
    history = [
        Message("user", "Is it wet?"),
        Message("assistant", "", calls=(ToolCall("toolu_9", "weather", '{"place": "Bern"}'),)),
        Message("tool", "rain", call_id="toolu_9"),
    ]
    name = server.anthropic("m", thinking=1024)
    answers(name, [asking(*history, tools=TOOLS), asking(*history, ("assistant", "Yes."), ("user", "Why?"))])
    assert ["thinking" in entry["body"] for entry in server.log()] == [False, True]


def test_odd_histories_of_calls_are_taken(replanned: StartChaos) -> None:
    # Identifiers that repeat or hold other signs, arguments that are no object: other models write such calls.
    server = replanned({})
    calls = [ToolCall("call-1", "weather", '{"place": "Bern"'), ToolCall("c:2", "time", "")]
    history: list[Any] = [("user", "Well?")]
    for _ in range(2):
        history += [Message("assistant", " ", calls=tuple(calls))]
        history += [Message("tool", "fine", call_id=one.id) for one in calls]
    answer(server.anthropic("m"), asking(*history, tools=TOOLS), attempts=1)
    turns = server.log()[0]["body"]["messages"]
    used = [[block["id"] for block in turn["content"]] for turn in turns[1::2]]
    assert used == [["call-1", "c_2"], ["call-1-2", "c_2-2"]]
    assert turns[1]["content"][0]["input"] == {"arguments": '{"place": "Bern"'}


@pytest.mark.parametrize(
    ("required", "single", "choice"),
    [
        (True, False, {"type": "any"}),
        (False, True, {"type": "auto", "disable_parallel_tool_use": True}),
        (True, True, {"type": "any", "disable_parallel_tool_use": True}),
    ],
)
def test_how_tools_may_be_used(required: bool, single: bool, choice: dict[str, Any], replanned: StartChaos) -> None:
    server = replanned({})
    answer(server.anthropic("m"), asking(tools=Toolbox([{"name": "time"}], required=required, single=single)))
    assert server.log()[0]["body"]["tool_choice"] == choice


def test_structured_output_is_asked_for_in_a_schema_that_the_api_takes(replanned: StartChaos) -> None:
    server = replanned({"default": {"do": "ok", "say": '{"comment": "good", "score": 3}'}})
    got = answer(server.anthropic("m", effort="low"), asking(schema=VERDICT), attempts=1)
    assert json.loads(got.text)["score"] == 3
    [entry] = server.log()
    assert entry["body"]["output_config"] == {
        "effort": "low",
        "format": {
            "type": "json_schema",
            "schema": {
                "type": "object",
                "properties": {
                    "comment": {"type": "string", "description": "Why. (maxLength: 400)"},
                    "score": {"type": "integer", "description": "(minimum: 1, maximum: 4)"},
                },
                "required": ["comment", "score"],
                "additionalProperties": False,
            },
        },
    }


def test_schemas_keep_their_parts() -> None:
    either = {"oneOf": [{"type": "object", "properties": {}}, {"$ref": "#/$defs/x"}], "$defs": {"x": {"enum": [1, 2]}}}
    assert to_supported_schema(either) == {
        "anyOf": [{"type": "object", "properties": {}, "additionalProperties": False}, {"$ref": "#/$defs/x"}],
        "$defs": {"x": {"enum": [1, 2]}},
    }
    rows = {"type": "array", "items": {"type": "string", "format": "date"}, "minItems": 1, "maxItems": 3}
    assert to_supported_schema(rows) == {
        "type": "array",
        "items": {"type": "string", "format": "date"},
        "minItems": 1,
        "description": "(maxItems: 3)",
    }


def test_a_model_without_structured_output_is_asked_by_the_prompt_alone(replanned: StartChaos) -> None:
    server = replanned({"default": "no_schema"})
    got = answers(server.anthropic("m"), [asking(schema=VERDICT), asking(("user", "Again"), schema=VERDICT)])
    assert [one.attempts for one in got] == [1, 1]
    assert ["output_config" in entry["body"] for entry in server.log()] == [True, False, False]


def test_a_model_that_takes_no_temperature_ends_the_run_with_what_to_do(replanned: StartChaos) -> None:
    server = replanned({"default": "no_temperature"})
    with pytest.raises(ConfigurationError, match="add sampling=off to the model's name"):
        answer(server.anthropic("m"), asking(schema=VERDICT))
    assert len(server.log()) == 1
    plain = replanned({})
    answer(plain.anthropic("m", sampling="off", cache="on"), asking(temperature=0.7, top_p=0.5))
    body = plain.log()[0]["body"]
    assert not {"temperature", "top_p"} & set(body)
    assert body["cache_control"] == {"type": "ephemeral"}


@pytest.mark.parametrize(
    "asked", [{"min_p": 0.1}, {"logprobs": 3}, {"frequency_penalty": 0.5}, {"repeat_penalty": 1.1}]
)
def test_what_the_api_does_not_have_is_refused_by_name(asked: dict[str, Any], replanned: StartChaos) -> None:
    server = replanned({})
    with pytest.raises(ConfigurationError, match=f"the Messages API has no {next(iter(asked))}"):
        answer(server.anthropic("m"), asking(**asked))
    assert server.log() == []


def test_a_stop_string_of_blanks_is_refused_before_the_api_does(replanned: StartChaos) -> None:
    with pytest.raises(ConfigurationError, match="no stop string of blanks alone"):
        answer(replanned({}).anthropic("m"), asking(stop=("Q:", "\n")))


def test_reading_is_refused_by_name() -> None:
    async def main() -> None:
        await governed("anthropic:http://127.0.0.1:9#m").read(Reading("a", ("b",)))

    with pytest.raises(ConfigurationError, match="m: this kind of model gives no log-probabilities"):
        CLOCK.run(main)


@pytest.mark.parametrize(
    ("do", "expected", "said"),
    [
        ("400", Rejected, "HTTP 400: this request makes no sense"),
        ("404", Rejected, "HTTP 404: model: claude-none"),
        ("413", ContextTooLong, "HTTP 413"),
        ("402", AccountBlocked, "HTTP 402"),
        ("spend_limit", AccountBlocked, "spend limit"),
        ("context_too_long", ContextTooLong, "prompt is too long"),
        ("401", Unauthorized, "check the key"),
        ("403", Unauthorized, "check the key"),
    ],
)
def test_a_refusal_is_typed_and_not_asked_again(
    do: str, expected: type[BackendError], said: str, replanned: StartChaos
) -> None:
    server = replanned({"default": do})
    with pytest.raises(BackendError, match=said) as caught:
        answer(server.anthropic("m"), asking())
    assert type(caught.value) is expected
    assert len(server.log()) == 1


@pytest.mark.parametrize("do", ["429", "500", "504", "529", "half_body", "truncated", "reset", "garbage"])
@pytest.mark.parametrize("streaming", [False, True])
def test_passing_trouble_is_asked_again_whole(do: str, streaming: bool, replanned: StartChaos) -> None:
    server = replanned({"schedule": {"0": do}, "default": {"do": "ok", "say": "All of it, from the beginning."}})
    heard: list[str] = []
    got = answer(server.anthropic("m"), asking(on_text=heard.append if streaming else None))
    assert (got.text, got.attempts, len(server.log())) == ("All of it, from the beginning.", 2, 2)


@pytest.mark.parametrize(
    ("error", "expected"), [("529", Unavailable), ("429", Throttled), ("500", Unavailable), ("400", Rejected)]
)
def test_an_error_in_the_middle_of_a_stream_has_its_type(
    error: str, expected: type[Exception], replanned: StartChaos
) -> None:
    server = replanned(
        {"default": {"do": "reports", "error": error, "say": "This goes on for a while and then stops."}}
    )
    heard: list[str] = []
    with pytest.raises(expected) as caught:
        answer(server.anthropic("m"), asking(on_text=heard.append), attempts=1)
    assert type(caught.value) is expected
    assert 0 < len("".join(heard)) < 40


def test_retry_after_is_honoured(replanned: StartChaos) -> None:
    server = replanned({"schedule": {"0": {"do": "529", "retry_after": 0.3}}})
    answer(server.anthropic("m"), asking())
    first, second = (entry["at"] for entry in server.log())
    assert second - first >= 0.3


def test_limits_that_are_used_up_say_when_they_are_whole_again() -> None:
    errors = MessagesErrors()
    headers = {
        "Date": "Fri, 02 Jan 2026 10:00:00 GMT",
        "anthropic-ratelimit-requests-remaining": "0",
        "anthropic-ratelimit-requests-reset": "2026-01-02T10:00:12Z",
        "anthropic-ratelimit-input-tokens-remaining": "0",
        "anthropic-ratelimit-input-tokens-reset": "2026-01-02T10:00:31Z",
        "anthropic-ratelimit-output-tokens-remaining": "500",
        "anthropic-ratelimit-output-tokens-reset": "2026-01-02T10:05:00Z",
    }
    assert errors.retry_after({}, headers) == 31.0
    assert errors.retry_after({}, headers | {"Retry-After": "4"}) == 4.0
    assert errors.retry_after({}, {"Date": headers["Date"]}) is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("anthropic:", "name a model (anthropic:claude-sonnet-4-5) or a URL"),
        ("anthropic:http://h", "anthropic:http://h#name"),
        ("anthropic:127.0.0.1:9000#m", "anthropic:http://127.0.0.1:9000#m"),
        (
            "anthropic:http://h#m?thinking=12",
            "thinking=12: expected on, off, adaptive, or a number of tokens",
        ),
        ("anthropic:http://h#m?effort=huge", "effort=huge: expected one of low, medium, high, xhigh, max"),
        ("anthropic:http://h#m?json=object", "json=object: expected one of schema, prompt"),
        ("anthropic:http://h#m?tool=1", "unknown option tool"),
        ("anthropic:claude-x", "no key in the environment variable ANTHROPIC_API_KEY"),
        ("anthropic:a, anthropic:b", "names several models"),
    ],
)
def test_a_name_that_cannot_be_meant_says_what_to_write(name: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(ConfigurationError) as caught:
        build(name, CLOCK)
    assert said in str(caught.value)


def test_the_list_of_models_is_looked_at(replanned: StartChaos, caplog: pytest.LogCaptureFixture) -> None:
    server = replanned({"models": ["claude-known"]})

    async def main() -> None:
        for name in ("claude-known", "claude-unknown"):
            async with build(server.anthropic(name), CLOCK) as backend:
                await backend.check()

    CLOCK.run(main)
    assert [one.getMessage().partition(" (")[0] for one in caplog.records] == [
        "claude-unknown: the endpoint does not list the model 'claude-unknown'; it lists claude-known"
    ]


def test_the_first_text_of_a_stream_is_timed(replanned: StartChaos) -> None:
    server = replanned({"default": {"do": "slow", "delay": 0.05, "say": "Now."}})
    began = time.monotonic()
    got = answer(server.anthropic("m"), asking(on_text=lambda _: None))
    assert got.first_token is not None
    assert 0.05 <= got.first_token <= got.latency <= time.monotonic() - began
