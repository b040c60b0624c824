"""The Gemini API: what is sent, answers whole and streamed, tools with signatures, structured output, errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from provider_asks import CLOCK, PLACE, TOOLS, VERDICT, after_call, answer, answers, asking, governed

from viva.engine.backends.gemini import GeminiErrors
from viva.engine.backends.registry import build
from viva.engine.errors import (
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

_CALL = {"name": "weather", "args": {"place": "Bern"}}
_OTHER = {"id": "fc-2", "name": "time", "args": {}}


def test_what_is_sent(replanned: StartChaos) -> None:
    server = replanned({})
    said = [("system", "Be brief."), ("user", "Why?"), ("assistant", "So."), ("system", "In rhyme."), ("user", "And?")]
    wanted = {"stop": ("Q:",), "top_k": 5, "presence_penalty": 0.5, "frequency_penalty": 0.25, "top_p": 0.9}
    answer(server.gemini("gemini-2.5-x"), asking(*said, ("user", "Well?"), **wanted))
    [entry] = server.log()
    assert entry["path"] == "/v1beta/models/gemini-2.5-x:generateContent"
    assert entry["body"] == {
        "systemInstruction": {"parts": [{"text": "Be brief.\n\nIn rhyme."}]},
        "contents": [
            {"role": "user", "parts": [{"text": "Why?"}]},
            {"role": "model", "parts": [{"text": "So."}]},
            {"role": "user", "parts": [{"text": "And?"}, {"text": "Well?"}]},
        ],
        "generationConfig": {
            "maxOutputTokens": 512,
            "seed": 7,
            "temperature": 0.0,
            "topP": 0.9,
            "topK": 5,
            "stopSequences": ["Q:"],
            "presencePenalty": 0.5,
            "frequencyPenalty": 0.25,
        },
    }


@pytest.mark.parametrize("streaming", [False, True])
def test_an_answer_with_its_thoughts_and_counts(replanned: StartChaos, streaming: bool) -> None:
    default = {"do": "ok", "say": "Steel conducts heat well, so it feels cold.", "thoughts": "Conduction, then."}
    server = replanned({"default": default})
    heard: list[str] = []
    request = asking(on_text=heard.append if streaming else None)
    got = answer(server.gemini("gemini-3-x", thinking="low", sampling="off", filters="off"), request)
    [entry] = server.log()
    assert (got.text, got.thoughts, got.finish) == (default["say"], default["thoughts"], "stop")
    prompt = len(json.dumps(entry["body"]["contents"])) // 4
    # Cached tokens are part of the prompt's count already; thoughts are not part of the candidate's.
    assert (got.prompt_tokens, got.completion_tokens) == (
        prompt,
        len(default["say"]) // 4 + len("Conduction, then.") // 4,
    )
    assert ("".join(heard), len(heard) > 3) == ((default["say"], True) if streaming else ("", False))
    assert (got.first_token is not None) == streaming
    assert entry["body"]["generationConfig"] == {
        "maxOutputTokens": 512,
        "seed": 7,
        "thinkingConfig": {"thinkingLevel": "LOW", "includeThoughts": True},
    }
    assert {setting["threshold"] for setting in entry["body"]["safetySettings"]} == {"BLOCK_NONE"}


@pytest.mark.parametrize(
    ("thinking", "config", "longest"),
    [
        ("off", {"thinkingBudget": 0}, 512),
        ("auto", {"thinkingBudget": -1, "includeThoughts": True}, 512),
        ("800", {"thinkingBudget": 800, "includeThoughts": True}, 1312),
    ],
)
def test_how_much_is_thought(thinking: str, config: dict[str, Any], longest: int, replanned: StartChaos) -> None:
    server = replanned({})
    answer(server.gemini("gemini-2.5-x", thinking=thinking), asking())
    sent = server.log()[0]["body"]["generationConfig"]
    assert (sent["thinkingConfig"], sent["maxOutputTokens"]) == (config, longest)


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("STOP", "stop"),
        ("MAX_TOKENS", "length"),
        ("SAFETY", "content_filter"),
        ("RECITATION", "content_filter"),
        ("PROHIBITED_CONTENT", "content_filter"),
        ("MALFORMED_FUNCTION_CALL", "malformed_function_call"),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_why_an_answer_ended(reason: str, finish: str, streaming: bool, replanned: StartChaos) -> None:
    server = replanned({"default": {"do": "ok", "stop": reason}})
    assert answer(server.gemini("m"), asking(on_text=(lambda _: None) if streaming else None)).finish == finish


@pytest.mark.parametrize("streaming", [False, True])
def test_a_prompt_that_is_refused_is_an_empty_answer(streaming: bool, replanned: StartChaos) -> None:
    server = replanned({"default": {"do": "ok", "blocked": "PROHIBITED_CONTENT"}})
    got = answer(server.gemini("m"), asking(on_text=(lambda _: None) if streaming else None))
    assert (got.text, got.finish, got.kept_silent, got.prompt_tokens) == ("", "content_filter", "content_filter", 9)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("model", ["gemini-2.5-x", "gemini-3-x"])
def test_results_of_tools_go_back_behind_the_signed_call(replanned: StartChaos, streaming: bool, model: str) -> None:
    calling = {"do": "ok", "calls": [_CALL, _OTHER], "say": "One moment."}
    server = replanned({"schedule": {"0": calling}, "default": {"do": "ok", "say": "It rains."}})
    heard: list[str] = []

    async def main() -> list[Any]:
        async with governed(server.gemini(model)) as backend:
            first = asking(tools=TOOLS, on_text=heard.append if streaming else None)
            called = await backend.generate(first)
            second = asking(*after_call(first, called, '{"sky": "rain"}', "noon"), tools=TOOLS)
            return [called, await backend.generate(second)]

    called, last = CLOCK.run(main)
    assert called.calls == [ToolCall("call-1", "weather", '{"place":"Bern"}'), ToolCall("fc-2", "time", "{}")]
    assert (called.text, called.finish, last.text) == ("One moment.", "stop", "It rains.")
    sent = server.log()[1]["body"]
    *_, turn, results = sent["contents"]
    asked = [part for part in turn["parts"] if "functionCall" in part]
    assert [part["functionCall"] for part in asked] == [_CALL, _OTHER]
    assert ["thoughtSignature" in part for part in asked] == [model == "gemini-3-x", False]
    assert [part["functionResponse"] for part in results["parts"]] == [
        {"name": "weather", "response": {"sky": "rain"}},
        {"name": "time", "response": {"output": "noon"}, "id": "fc-2"},
    ]
    assert sent["tools"] == [
        {
            "functionDeclarations": [
                {"name": "weather", "description": "What it is like.", "parametersJsonSchema": PLACE},
                {"name": "time", "description": ""},
            ]
        }
    ]


def test_a_resumed_conversation_has_the_documented_signature_for_calls_without_any(replanned: StartChaos) -> None:
    server = replanned({})
    history = [
        Message("user", "Is it wet?"),
        Message(
            "assistant", "", calls=(ToolCall("call-1", "weather", '{"place": "Bern"}'), ToolCall("a", "time", "x"))
        ),
        Message("tool", "rain", call_id="call-1"),
        Message("tool", "noon", call_id="a"),
    ]
    answers(server.gemini("gemini-3.1-x"), [asking(*history, tools=TOOLS)])
    answers(server.gemini("gemini-2.5-x"), [asking(*history, tools=TOOLS)])
    third, second = (entry["body"]["contents"][1]["parts"] for entry in server.log())
    assert third[0].pop("thoughtSignature") == "skip_thought_signature_validator"
    assert (
        third
        == second
        == [
            {"functionCall": {"name": "weather", "args": {"place": "Bern"}}},
            {"functionCall": {"name": "time", "args": {"arguments": "x"}, "id": "a"}},
        ]
    )


def test_a_call_may_be_demanded(replanned: StartChaos) -> None:
    server = replanned({})
    answer(server.gemini("m"), asking(tools=Toolbox([{"name": "time"}], required=True)))
    assert server.log()[0]["body"]["toolConfig"] == {"functionCallingConfig": {"mode": "ANY"}}


@pytest.mark.parametrize(
    ("refused", "fields"),
    [
        ([], {"responseMimeType", "responseJsonSchema"}),
        (["responseJsonSchema"], {"responseMimeType"}),
        (["responseMimeType"], set[str]()),
    ],
)
def test_structured_output_is_asked_for_with_less_after_each_refusal(
    refused: list[str], fields: set[str], replanned: StartChaos
) -> None:
    server = replanned({"default": {"do": "no_schema", "refuses": refused, "say": '{"comment": "good", "score": 3}'}})
    got = answers(server.gemini("m"), [asking(schema=VERDICT), asking(("user", "Again"), schema=VERDICT)])
    assert [(json.loads(one.text)["score"], one.attempts) for one in got] == [(3, 1), (3, 1)]
    *_, before, last = (set(entry["body"]["generationConfig"]) for entry in server.log())
    assert {name for name in last if name.startswith("response")} == fields
    assert before == last, "the form that works is remembered"
    if not refused:
        assert server.log()[0]["body"]["generationConfig"]["responseJsonSchema"] == VERDICT


@pytest.mark.parametrize("streaming", [False, True])
def test_log_probabilities(replanned: StartChaos, streaming: bool) -> None:
    server = replanned({"default": {"do": "ok", "say": "Yes indeed"}})
    got = answer(server.gemini("m"), asking(logprobs=2, on_text=(lambda _: None) if streaming else None))
    assert got.logprobs == [[word, -0.25, {word: -0.25, "other": -1.5}] for word in ("Yes", " indeed")]
    assert server.log()[0]["body"]["generationConfig"]["logprobs"] == 2


def test_what_the_api_does_not_have_is_refused_by_name(replanned: StartChaos) -> None:
    with pytest.raises(ConfigurationError, match="the Gemini API has no min_p, repeat_penalty"):
        answer(replanned({}).gemini("m"), asking(min_p=0.1, repeat_penalty=1.2))
    with pytest.raises(ConfigurationError, match="the Gemini API takes 5 stop strings, not 6"):
        answer(replanned({}).gemini("m"), asking(stop=tuple("abcdef")))


def test_reading_is_refused_by_name() -> None:
    async def main() -> None:
        await governed("gemini:http://127.0.0.1:9#m").read(Reading("a", ("b",)))

    with pytest.raises(ConfigurationError, match="m: this kind of model gives no log-probabilities"):
        CLOCK.run(main)


@pytest.mark.parametrize(
    ("do", "expected", "said"),
    [
        ("400", Rejected, "HTTP 400"),
        ("404", Rejected, "HTTP 404: models/gemini-none is not found"),
        ("context_too_long", ContextTooLong, "input token count"),
        ("bad_key", Unauthorized, "API key not valid.*check the key"),
        ("401", Unauthorized, "check the key"),
        ("403", Unauthorized, "check the key"),
    ],
)
def test_a_refusal_is_typed_and_not_asked_again(
    do: str, expected: type[Rejected], said: str, replanned: StartChaos
) -> None:
    server = replanned({"default": do})
    with pytest.raises(Rejected, match=said) as caught:
        answer(server.gemini("m"), asking())
    assert type(caught.value) is expected
    assert len(server.log()) == 1


@pytest.mark.parametrize("do", ["429", "500", "503", "504", "half_body", "truncated", "reset", "garbage"])
@pytest.mark.parametrize("streaming", [False, True])
def test_passing_trouble_is_asked_again_whole(do: str, streaming: bool, replanned: StartChaos) -> None:
    server = replanned({"schedule": {"0": do}, "default": {"do": "ok", "say": "All of it, from the beginning."}})
    heard: list[str] = []
    got = answer(server.gemini("m"), asking(on_text=heard.append if streaming else None))
    assert (got.text, got.attempts, len(server.log())) == ("All of it, from the beginning.", 2, 2)


@pytest.mark.parametrize(
    ("error", "expected"), [("503", Unavailable), ("429", Throttled), ("500", Unavailable), ("400", Rejected)]
)
def test_an_error_in_the_middle_of_a_stream_has_its_type(
    error: str, expected: type[Exception], replanned: StartChaos
) -> None:
    server = replanned(
        {"default": {"do": "reports", "error": error, "say": "This goes on for a while and then stops."}}
    )
    heard: list[str] = []
    with pytest.raises(expected) as caught:
        answer(server.gemini("m"), asking(on_text=heard.append), attempts=1)
    assert type(caught.value) is expected
    assert 0 < len("".join(heard)) < 40


@pytest.mark.parametrize("option", ["retry_delay", "retry_after"])
def test_the_time_to_wait_is_honoured_wherever_it_stands(option: str, replanned: StartChaos) -> None:
    server = replanned({"schedule": {"0": {"do": "429", option: 0.2}}})
    answer(server.gemini("m"), asking())
    first, second = (entry["at"] for entry in server.log())
    assert second - first >= 0.2


def test_the_longer_of_two_times_counts_and_odd_ones_do_not() -> None:
    def after(*delays: Any, header: str | None = None) -> float | None:
        error = {"details": [{"retryDelay": delay} for delay in delays]}
        return GeminiErrors().retry_after(error, {"Retry-After": header} if header else {})

    assert (after("34.5s"), after("3s", header="7"), after("9s", header="7")) == (34.5, 7.0, 9.0)
    assert (after("soon"), after(3), after("-1s"), after("nans")) == (None, None, None, None)
    assert GeminiErrors().retry_after({"details": "none"}, {}) is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gemini:", "name a model (gemini:gemini-2.5-flash) or a URL"),
        ("gemini:http://h", "gemini:http://h#name"),
        (
            "gemini:http://h#m?thinking=deep",
            "thinking=deep: expected on, off, auto, minimal, low, medium, high, or a number",
        ),
        ("gemini:http://h#m?filters=none", "filters=none: expected one of on, off"),
        ("gemini:gemini-2.5-pro", "no key in the environment variable GEMINI_API_KEY"),
        ("gemini:a;gemini:b", "names several models"),
    ],
)
def test_a_name_that_cannot_be_meant_says_what_to_write(name: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    with pytest.raises(ConfigurationError) as caught:
        build(name, CLOCK)
    assert said in str(caught.value)


def test_the_list_of_models_is_looked_at(replanned: StartChaos, caplog: pytest.LogCaptureFixture) -> None:
    server = replanned({"models": ["gemini-known"]})

    async def check(name: str) -> None:
        async with build(server.gemini(name), CLOCK) as backend:
            await backend.check()

    for name in ("gemini-known", "gemini-unknown"):
        CLOCK.run(lambda name=name: check(name))
    assert ["lists models/gemini-known" in one.getMessage() for one in caplog.records] == [True]
    replanned({"model_list": 400})
    with pytest.raises(BackendError, match="API key not valid"):
        CLOCK.run(lambda: check("gemini-known"))


def test_a_url_may_name_the_version(replanned: StartChaos) -> None:
    server = replanned({})
    answer(server.gemini("m").replace("#", "/v1beta#"), asking())
    assert server.log()[0]["path"] == "/v1beta/models/m:generateContent"
