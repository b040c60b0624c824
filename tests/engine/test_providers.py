"""What every provider's models must do: what is sent, answers whole and streamed, tools, structured output, errors.

What all have in common runs over all of them from one table; what only one API has follows it.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from provider_asks import CLOCK, PLACE, TOOLS, VERDICT, after_call, answer, answers, asking, governed

from viva.engine.backends.anthropic import MessagesErrors, to_supported_schema
from viva.engine.backends.gemini import GeminiErrors
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

_SAID = (("system", "Be brief."), ("user", "Why?"), ("assistant", ""), ("assistant", "So."), ("system", "In rhyme."))
_ALONE = ("system", "Ask the first question.")
_KEY = "sk-chaos-0123456789abcdef"
_ANSWER = {"do": "ok", "say": "Steel conducts heat well, so it feels cold.", "thoughts": "Conduction, then."}
_THOUGHT_TOKENS = len("Conduction, then.") // 4
_WHOLE = "All of it, from the beginning."


@dataclass(frozen=True)
class Provider:
    """One provider's API, as far as it differs from the others'.

    ``sampling`` is asked for, and the request's body is then ``body``, at ``path``; ``alone`` are the turns of
    instructions without a question; ``forms`` what a body holds of a schema after each refusal. ``refusals``: an
    error's name, its type and words. ``errors``: of a stream in its middle. ``names``: wrong ones, and what is said.
    """

    kind: str
    path: str
    sampling: dict[str, Any]
    body: dict[str, Any]
    alone: dict[str, Any]
    refusals: tuple[tuple[str, type[BackendError], str], ...]
    names: tuple[tuple[str, str], ...]
    key_variable: str
    passing: tuple[str, ...] = ("429", "500", "half_body", "truncated", "reset", "garbage")
    ends: tuple[tuple[str, str], ...] = ()
    errors: tuple[tuple[str, type[BackendError]], ...] = ()
    lacks: tuple[tuple[dict[str, Any], str], ...] = ()
    forms: tuple[tuple[list[str], set[str]], ...] = ()
    reads: bool = False

    def __str__(self) -> str:
        return self.kind

    def model(self, server: Server, name: str = "m", **options: object) -> str:
        """A model's name on this server."""
        start = server.model if self.kind == "openai" else getattr(server, self.kind)
        model: str = start(name, **options)
        return model

    def config(self, body: dict[str, Any]) -> dict[str, Any]:
        """The settings of a request."""
        settings: dict[str, Any] = body["generationConfig"] if self.kind == "gemini" else body
        return settings


_OPENAI = Provider(
    kind="openai",
    path="/v1/chat/completions",
    sampling={"stop": ("\nQ:",), "top_k": 5, "presence_penalty": 0.5},
    body={
        "model": "m",
        "messages": [{"role": role, "content": text} for role, text in (*_SAID, ("user", "And?"), ("user", "Well?"))],
        "temperature": 0.0,
        "top_p": 1.0,
        "max_tokens": 512,
        "seed": 7,
        "presence_penalty": 0.5,
        "top_k": 5,
        "stop": ["\nQ:"],
    },
    alone={"messages": [{"role": "system", "content": _ALONE[1]}]},
    refusals=(
        ("400", Rejected, "HTTP 400: this request makes no sense"),
        ("404", Rejected, "HTTP 404: there is no such model"),
        ("401", Unauthorized, "check the key"),
        ("403", Unauthorized, "check the key"),
        ("context_too_long", ContextTooLong, "maximum context length"),
    ),
    passing=("429", "500", "503", "half_body", "truncated", "reset", "garbage"),
    names=(
        ("openai:", "name a model (openai:gpt-4o) or a URL"),
        ("openai:127.0.0.1:9000/v1#m", "openai:http://127.0.0.1:9000/v1#m"),
        ("openai:http://h#m?json=all", "json=all: expected one of schema, object_schema, object"),
        ("openai:gpt-4o", "no key in the environment variable OPENAI_API_KEY"),
        ("openai:http://127.0.0.1:1/v1#candidate?key_env=CHAOS_KEY", "CHAOS_KEY"),
        ("openai:a, openai:b", "names several models"),
    ),
    key_variable="OPENAI_API_KEY",
    forms=(
        ([], {"json_schema"}),
        (["json_schema"], {"json_object+schema"}),
        (["json_schema", "json_object+schema"], {"json_object"}),
        (["json_schema", "json_object+schema", "json_object"], set[str]()),
    ),
    reads=True,
)
_ANTHROPIC = Provider(
    kind="anthropic",
    path="/v1/messages",
    sampling={"stop": ("\nQ:",), "top_k": 5},
    body={
        "model": "m",
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
    },
    alone={"messages": [{"role": "user", "content": _ALONE[1]}]},
    refusals=(
        ("400", Rejected, "HTTP 400: this request makes no sense"),
        ("404", Rejected, "HTTP 404: model: claude-none"),
        ("413", ContextTooLong, "HTTP 413"),
        ("402", AccountBlocked, "HTTP 402"),
        ("spend_limit", AccountBlocked, "spend limit"),
        ("context_too_long", ContextTooLong, "prompt is too long"),
        ("401", Unauthorized, "check the key"),
        ("403", Unauthorized, "check the key"),
    ),
    passing=("429", "500", "504", "529", "half_body", "truncated", "reset", "garbage"),
    ends=(
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "refusal"),
        ("pause_turn", "pause_turn"),
        ("something: new", "something- new"),
    ),
    errors=(("529", Unavailable), ("429", Throttled), ("500", Unavailable), ("400", Rejected)),
    lacks=(
        *(({name: 0.5}, f"the Messages API has no {name}") for name in ("min_p", "frequency_penalty")),
        ({"logprobs": 3}, "the Messages API has no logprobs"),
        ({"repeat_penalty": 1.1}, "the Messages API has no repeat_penalty"),
        ({"stop": ("Q:", "\n")}, "no stop string that consists of blanks"),
    ),
    names=(
        ("anthropic:", "name a model (anthropic:claude-sonnet-4-5) or a URL"),
        ("anthropic:http://h", "anthropic:http://h#name"),
        ("anthropic:127.0.0.1:9000#m", "anthropic:http://127.0.0.1:9000#m"),
        ("anthropic:http://h#m?thinking=12", "thinking=12: expected on, off, adaptive, or a number of tokens"),
        ("anthropic:http://h#m?effort=huge", "effort=huge: expected one of low, medium, high, xhigh, max"),
        ("anthropic:http://h#m?json=object", "json=object: expected one of schema, prompt"),
        ("anthropic:http://h#m?tool=1", "unknown option tool"),
        ("anthropic:claude-x", "no key in the environment variable ANTHROPIC_API_KEY"),
        ("anthropic:a, anthropic:b", "names several models"),
    ),
    key_variable="ANTHROPIC_API_KEY",
    forms=(([], {"output_config"}), (["output_config"], set[str]())),
)
_GEMINI = Provider(
    kind="gemini",
    path="/v1beta/models/m:generateContent",
    sampling={"stop": ("Q:",), "top_k": 5, "presence_penalty": 0.5, "frequency_penalty": 0.25, "top_p": 0.9},
    body={
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
    },
    alone={"contents": [{"role": "user", "parts": [{"text": _ALONE[1]}]}]},
    refusals=(
        ("400", Rejected, "HTTP 400"),
        ("404", Rejected, "HTTP 404: models/gemini-none is not found"),
        ("context_too_long", ContextTooLong, "input token count"),
        ("bad_key", Unauthorized, "API key not valid.*check the key"),
        ("401", Unauthorized, "check the key"),
        ("403", Unauthorized, "check the key"),
    ),
    passing=("429", "500", "503", "504", "half_body", "truncated", "reset", "garbage"),
    ends=(
        ("STOP", "stop"),
        ("MAX_TOKENS", "length"),
        ("SAFETY", "content_filter"),
        ("RECITATION", "content_filter"),
        ("PROHIBITED_CONTENT", "content_filter"),
        ("MALFORMED_FUNCTION_CALL", "malformed_function_call"),
    ),
    errors=(("503", Unavailable), ("429", Throttled), ("500", Unavailable), ("400", Rejected)),
    lacks=(
        ({"min_p": 0.1, "repeat_penalty": 1.2}, "the Gemini API has no min_p, repeat_penalty"),
        ({"stop": tuple("abcdef")}, "the Gemini API takes 5 stop strings, not 6"),
    ),
    names=(
        ("gemini:", "name a model (gemini:gemini-2.5-flash) or a URL"),
        ("gemini:http://h", "gemini:http://h#name"),
        (
            "gemini:http://h#m?thinking=deep",
            "thinking=deep: expected on, off, auto, minimal, low, medium, high, or a number",
        ),
        ("gemini:http://h#m?filters=none", "filters=none: expected one of on, off"),
        ("gemini:gemini-2.5-pro", "no key in the environment variable GEMINI_API_KEY"),
        ("gemini:a;gemini:b", "names several models"),
    ),
    key_variable="GEMINI_API_KEY",
    forms=(
        ([], {"responseMimeType", "responseJsonSchema"}),
        (["responseJsonSchema"], {"responseMimeType"}),
        (["responseMimeType"], set[str]()),
    ),
)
_PROVIDERS = (_OPENAI, _ANTHROPIC, _GEMINI)
_ALL = pytest.mark.parametrize("api", _PROVIDERS, ids=str)
_BOTH_WAYS = pytest.mark.parametrize("streaming", [False, True])


def _each(field: str) -> Any:
    """Each provider with each entry of one of its lists."""
    cases = [(api, one) for api in _PROVIDERS for one in getattr(api, field)]
    names = [f"{api} {one[0] if isinstance(one, tuple) else one}" for api, one in cases]
    return pytest.mark.parametrize(("api", "case"), cases, ids=names)


def _heard(streaming: bool, heard: list[str] | None = None) -> Callable[[str], None] | None:
    return ([] if heard is None else heard).append if streaming else None


# -- all of them ------------------------------------------------------------------------------------------------------


@_ALL
def test_what_is_sent(api: Provider, replanned: StartChaos) -> None:
    server = replanned({"record": True})
    answer(api.model(server), asking(*_SAID, ("user", "And?"), ("user", "Well?"), **api.sampling))
    answer(api.model(server), asking(_ALONE))
    first, second = server.log()
    assert (first.get("path", api.path), first["body"]) == (api.path, api.body)
    assert {name: second["body"][name] for name in api.alone} == api.alone


@_BOTH_WAYS
@_ALL
def test_an_answer_with_its_pieces_and_times(api: Provider, streaming: bool, replanned: StartChaos) -> None:
    server = replanned({"default": {"do": "slow", "delay": 0.05, "say": _ANSWER["say"]}})
    heard: list[str] = []
    began = time.monotonic()
    got = answer(api.model(server), asking(on_text=_heard(streaming, heard)))
    assert (got.text, got.finish, got.attempts) == (_ANSWER["say"], "stop", 1)
    assert ("".join(heard), len(heard) > 2) == ((got.text, True) if streaming else ("", False))
    assert got.completion_tokens == len(got.text) // 4
    assert 0.05 <= (got.first_token or 0.05) <= got.latency <= time.monotonic() - began
    assert (got.first_token is not None) == streaming


@_BOTH_WAYS
@_each("ends")
def test_why_an_answer_ended(api: Provider, case: tuple[str, str], streaming: bool, replanned: StartChaos) -> None:
    reason, finish = case
    server = replanned({"default": {"do": "ok", "stop": reason}})
    assert answer(api.model(server), asking(on_text=_heard(streaming))).finish == finish


@_each("refusals")
def test_a_refusal_is_typed_and_not_asked_again(
    api: Provider, case: tuple[str, type[BackendError], str], replanned: StartChaos
) -> None:
    do, expected, said = case
    server = replanned({"default": do})
    with pytest.raises(BackendError, match=said) as caught:
        answer(api.model(server), asking())
    assert type(caught.value) is expected
    assert len(server.log()) == 1


@_BOTH_WAYS
@_each("passing")
def test_passing_trouble_is_asked_again_whole(api: Provider, case: str, streaming: bool, replanned: StartChaos) -> None:
    server = replanned({"schedule": {"0": case, "1": case}, "default": {"do": "ok", "say": _WHOLE}})
    heard: list[str] = []
    got = answer(api.model(server), asking(on_text=_heard(streaming, heard)))
    assert (got.text, got.attempts) == (_WHOLE, 3)  # nothing of a broken stream is left in it
    assert [entry["behaviour"] for entry in server.log()] == [case, case, "ok"]
    assert len({entry["hash"] for entry in server.log()}) == 1


@_each("errors")
def test_an_error_in_the_middle_of_a_stream_has_its_type(
    api: Provider, case: tuple[str, type[BackendError]], replanned: StartChaos
) -> None:
    error, expected = case
    say = "This goes on for a while and then stops."
    server = replanned({"default": {"do": "reports", "error": error, "say": say}})
    heard: list[str] = []
    with pytest.raises(expected) as caught:
        answer(api.model(server), asking(on_text=heard.append), attempts=1)
    assert type(caught.value) is expected
    assert 0 < len("".join(heard)) < len(say)


@pytest.mark.parametrize(
    ("api", "option"), [*((api, "retry_after") for api in _PROVIDERS), (_GEMINI, "retry_delay")], ids=str
)
def test_the_time_to_wait_is_honoured_wherever_it_stands(api: Provider, option: str, replanned: StartChaos) -> None:
    server = replanned({"schedule": {"0": {"do": "429", option: 0.2}}})
    answer(api.model(server), asking())
    first, second = (entry["at"] for entry in server.log())
    assert second - first >= 0.2


@_each("lacks")
def test_what_the_api_does_not_have_is_refused_by_name(
    api: Provider, case: tuple[dict[str, Any], str], replanned: StartChaos
) -> None:
    asked, said = case
    server = replanned({})
    with pytest.raises(ConfigurationError, match=said):
        answer(api.model(server), asking(**asked))
    assert server.log() == []


@_each("forms")
def test_structured_output_is_asked_for_with_less_after_each_refusal(
    api: Provider, case: tuple[list[str], set[str]], replanned: StartChaos
) -> None:
    refused, fields = case
    do = "no_schema" if refused else "ok"
    plan = {"do": do, "refuses": refused, "say": '{"comment": "good", "score": 3}'}
    server = replanned({"default": plan, "record": True})
    got = answers(api.model(server), [asking(schema=VERDICT), asking(("user", "Again"), schema=VERDICT)])
    assert [(json.loads(one.text)["score"], one.attempts) for one in got] == [(3, 1), (3, 1)]
    *_, before, last = server.log()
    for entry in (before, last):  # the form that works is remembered
        found = {name for name in api.config(entry["body"]) if name.startswith(("output_", "response"))}
        assert ({entry["format"]} - {None} if api.kind == "openai" else found) == fields


@_each("names")
def test_a_name_that_cannot_be_meant_says_what_to_write(
    api: Provider, case: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, said = case
    for variable in (api.key_variable, "CHAOS_KEY"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ConfigurationError) as caught:
        build(name, CLOCK)
    assert said in str(caught.value)


@_ALL
def test_the_list_of_models_is_looked_at(
    api: Provider, replanned: StartChaos, caplog: pytest.LogCaptureFixture
) -> None:
    server = replanned({"models": ["m-known"]})

    async def main() -> None:
        for name in ("m-known", "m-unknown"):
            async with build(api.model(server, name), CLOCK) as backend:
                await backend.check()

    CLOCK.run(main)
    listed = "models/" if api.kind == "gemini" else ""
    assert [one.getMessage().partition(" (")[0] for one in caplog.records] == [
        f"m-unknown: the endpoint does not list the model '{listed}m-unknown'; it lists {listed}m-known"
    ]


@pytest.mark.parametrize("api", [api for api in _PROVIDERS if not api.reads], ids=str)
def test_reading_is_refused_by_name(api: Provider) -> None:
    async def main() -> None:
        await governed(f"{api.kind}:http://127.0.0.1:9#m").read(Reading("a", ("b",)))

    with pytest.raises(ConfigurationError, match="m: this kind of model gives no log-probabilities"):
        CLOCK.run(main)


@pytest.mark.parametrize("trouble", ["401", "400", "500", "garbage"])
@_ALL
def test_the_key_is_sent_and_never_repeated(
    api: Provider, trouble: str, replanned: StartChaos, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHAOS_KEY", _KEY)
    server = replanned({"default": {"do": trouble, "say": "no such key: {key}"}})
    with pytest.raises(BackendError, match="no such key") as caught:
        answer(api.model(server, key_env="CHAOS_KEY"), asking())
    assert {entry["key"] for entry in server.log()} == {_KEY}
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + str(caught.value.to_record())
    assert _KEY not in shown


@pytest.mark.parametrize(
    ("api", "options", "counts", "settings"),
    [
        # Tokens of the cache are none of the input tokens.
        (_ANTHROPIC, {"thinking": "adaptive"}, (7 + 5, 0),
         {"max_tokens": 512, "thinking": {"type": "adaptive", "display": "summarized"}}),
        # Cached tokens are part of the prompt's count already; thoughts are not part of the candidate's.
        (_GEMINI, {"thinking": "low", "sampling": "off"}, (0, _THOUGHT_TOKENS),
         {"maxOutputTokens": 512, "seed": 7, "thinkingConfig": {"thinkingLevel": "LOW", "includeThoughts": True}}),
        (_GEMINI, {"thinking": "off", "sampling": "off"}, (0, _THOUGHT_TOKENS),
         {"maxOutputTokens": 512, "seed": 7, "thinkingConfig": {"thinkingBudget": 0}}),
        (_GEMINI, {"thinking": "auto", "sampling": "off"}, (0, _THOUGHT_TOKENS),
         {"maxOutputTokens": 512, "seed": 7, "thinkingConfig": {"thinkingBudget": -1, "includeThoughts": True}}),
        (_GEMINI, {"thinking": "800", "sampling": "off"}, (0, _THOUGHT_TOKENS),
         {"maxOutputTokens": 1312, "seed": 7, "thinkingConfig": {"thinkingBudget": 800, "includeThoughts": True}}),
    ],
    ids=str,
)  # fmt: skip
@_BOTH_WAYS
def test_thoughts_come_apart_and_are_counted(
    api: Provider,
    options: dict[str, str],
    counts: tuple[int, int],
    settings: dict[str, Any],
    streaming: bool,
    replanned: StartChaos,
) -> None:
    server = replanned({"default": _ANSWER})
    heard: list[str] = []
    got = answer(api.model(server, "gemini-3-x", **options), asking(on_text=_heard(streaming, heard)))
    body = server.log()[0]["body"]
    expected = "" if options["thinking"] == "off" else _ANSWER["thoughts"]
    assert (got.text, got.thoughts, got.finish) == (_ANSWER["say"], expected, "stop")
    assert "".join(heard) == (_ANSWER["say"] if streaming else "")
    prompt = len(json.dumps(body["messages" if api is _ANTHROPIC else "contents"])) // 4
    assert (got.prompt_tokens, got.completion_tokens) == (prompt + counts[0], len(_ANSWER["say"]) // 4 + counts[1])
    sent = {name: value for name, value in api.config(body).items() if name not in ("model", "messages", "stream")}
    assert sent == settings


# -- the Messages API -------------------------------------------------------------------------------------------------


@_BOTH_WAYS
@pytest.mark.parametrize("thinking", ["2000", "adaptive", "off"])
def test_results_of_tools_go_back_behind_the_signed_thoughts(
    replanned: StartChaos, streaming: bool, thinking: str
) -> None:
    calls = [
        {"id": "toolu_1", "name": "weather", "input": {"place": "Bern"}},
        {"id": "toolu_2", "name": "time", "input": {}},
    ]
    called, sent = _call_and_go_on(
        lambda server: server.anthropic("m", thinking=thinking),
        {"do": "ok", "calls": calls, "thoughts": "I must look.", "say": "One moment."},
        ("rain", "noon"),
        streaming,
        replanned,
    )
    assert called.calls == [
        ToolCall("toolu_1", "weather", called.calls[0].arguments),
        ToolCall("toolu_2", "time", "{}"),
    ]
    assert json.loads(called.calls[0].arguments) == {"place": "Bern"}
    *_, turn, results = sent["messages"]
    blocks = [block["type"] for block in turn["content"]]
    assert blocks == ([] if thinking == "off" else ["thinking"]) + ["text", "tool_use", "tool_use"]
    assert [block["content"] for block in results["content"]] == ["rain", "noon"]
    assert sent["tools"][0] == {"name": "weather", "description": "What it is like.", "input_schema": PLACE}
    assert sent["tools"][1] == {"name": "time", "input_schema": {"type": "object", "properties": {}}}
    if thinking == "2000":
        assert (sent["thinking"]["budget_tokens"], sent["max_tokens"]) == (2000, 2512)


def _call_and_go_on(
    model: Callable[[Server], str], calling: Plan, results: tuple[str, ...], streaming: bool, replanned: StartChaos
) -> tuple[Any, dict[str, Any]]:
    """An answer that calls tools, and the body in which their results were sent."""
    server = replanned({"schedule": {"0": calling}, "default": {"do": "ok", "say": "It rains."}})
    heard: list[str] = []

    async def main() -> tuple[Any, Any]:
        async with governed(model(server)) as backend:
            first = asking(tools=TOOLS, on_text=_heard(streaming, heard))
            called = await backend.generate(first)
            return called, await backend.generate(asking(*after_call(first, called, *results), tools=TOOLS))

    called, last = CLOCK.run(main)
    assert (called.text, called.finish, last.text) == ("One moment.", "stop", "It rains.")
    assert "".join(heard) == ("One moment." if streaming else "")
    return called, server.log()[1]["body"]


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


# -- the Gemini API ---------------------------------------------------------------------------------------------------


@_BOTH_WAYS
def test_a_prompt_that_is_refused_is_an_empty_answer(streaming: bool, replanned: StartChaos) -> None:
    server = replanned({"default": {"do": "ok", "blocked": "PROHIBITED_CONTENT"}})
    got = answer(server.gemini("m"), asking(on_text=_heard(streaming)))
    assert (got.text, got.finish, got.refusal_reason, got.prompt_tokens) == ("", "content_filter", "content_filter", 9)


@_BOTH_WAYS
@pytest.mark.parametrize("model", ["gemini-2.5-x", "gemini-3-x"])
def test_results_of_tools_go_back_behind_the_signed_call(replanned: StartChaos, streaming: bool, model: str) -> None:
    calls = [{"name": "weather", "args": {"place": "Bern"}}, {"id": "fc-2", "name": "time", "args": {}}]
    called, sent = _call_and_go_on(
        lambda server: server.gemini(model),
        {"do": "ok", "calls": calls, "say": "One moment."},
        ('{"sky": "rain"}', "noon"),
        streaming,
        replanned,
    )
    assert called.calls == [ToolCall("call-1", "weather", '{"place":"Bern"}'), ToolCall("fc-2", "time", "{}")]
    *_, turn, results = sent["contents"]
    asked = [part for part in turn["parts"] if "functionCall" in part]
    assert [part["functionCall"] for part in asked] == calls
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


@_BOTH_WAYS
def test_log_probabilities(replanned: StartChaos, streaming: bool) -> None:
    server = replanned({"default": {"do": "ok", "say": "Yes indeed"}})
    got = answer(server.gemini("m"), asking(logprobs=2, on_text=_heard(streaming)))
    assert got.logprobs == [[word, -0.25, {word: -0.25, "other": -1.5}] for word in ("Yes", " indeed")]
    assert server.log()[0]["body"]["generationConfig"]["logprobs"] == 2


def test_the_longer_of_two_times_counts_and_odd_ones_do_not() -> None:
    def after(*delays: Any, header: str | None = None) -> float | None:
        error = {"details": [{"retryDelay": delay} for delay in delays]}
        return GeminiErrors().retry_after(error, {"Retry-After": header} if header else {})

    assert (after("34.5s"), after("3s", header="7"), after("9s", header="7")) == (34.5, 7.0, 9.0)
    assert (after("soon"), after(3), after("-1s"), after("nans")) == (None, None, None, None)
    assert GeminiErrors().retry_after({"details": "none"}, {}) is None


def test_a_url_may_name_the_version(replanned: StartChaos) -> None:
    server = replanned({})
    answer(server.gemini("m").replace("#", "/v1beta#"), asking())
    assert server.log()[0]["path"] == "/v1beta/models/m:generateContent"


def test_gemini_is_sent_the_whole_schema_and_may_be_told_to_filter_nothing(replanned: StartChaos) -> None:
    server = replanned({})
    answer(server.gemini("m", filters="off"), asking(schema=VERDICT))
    body = server.log()[0]["body"]
    assert body["generationConfig"]["responseJsonSchema"] == VERDICT
    assert {setting["threshold"] for setting in body["safetySettings"]} == {"BLOCK_NONE"}


def test_a_wrong_key_is_known_where_models_are_listed(replanned: StartChaos) -> None:
    async def check() -> None:
        async with build(replanned({"model_list": 400}).gemini("gemini-known"), CLOCK) as backend:
            await backend.check()

    with pytest.raises(BackendError, match="API key not valid"):
        CLOCK.run(check)
