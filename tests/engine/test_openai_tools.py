"""Tools at a real endpoint: what is sent, calls read whole and streamed, arguments as they were sent, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from viva.engine.backends import openai
from viva.engine.backends.base import ModelSpec
from viva.engine.backends.openai_answer import parse_completion
from viva.engine.backends.retry import Governed, RetryPolicy
from viva.engine.clock import RealClock
from viva.engine.errors import Rejected, Unavailable
from viva.engine.limits import Limits
from viva.engine.messages import Completion, Request, Sampling, View, request_digest
from viva.engine.tools import Toolbox, ToolCall

if TYPE_CHECKING:
    from tests.servers.process import Plan, Server

    StartChaos = Callable[[Plan], Server]

_CLOCK = RealClock()
_PLACE = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
TOOLS = Toolbox(
    [
        {"type": "function", "function": {"name": "weather", "description": "What it is like.", "parameters": _PLACE}},
        {"name": "time"},
    ]
)


def sent(id_: str | None, name: str, arguments: Any) -> dict[str, Any]:
    """A call as endpoints send it."""
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


TWO = [sent("c-1", "weather", '{"place": "Bern"}'), sent("c-2", "time", '{ "zone":"한국",\n"now": tru')]


def asking(view: View | None = None, schema: Any = None, on_text: Any = None, tools: Toolbox | None = TOOLS) -> Request:
    sampling = Sampling(schema=schema)
    if view is None:
        view = View()
        view.append("user", "What is it like in Bern?")
    digest = request_digest(view, sampling, 7, tools)
    return Request(view.messages, sampling, 7, digest, on_text=on_text, tools=tools)


def answer(model: str, request: Request, attempts: int = 3) -> Completion:
    async def main() -> Completion:
        inner = openai.build(ModelSpec.parse(model), _CLOCK)
        inner.label = "chaos"
        policy = RetryPolicy(attempts=attempts, first=0.001)
        async with Governed(inner, Limits(_CLOCK), _CLOCK, policy) as backend:
            return await backend.generate(request)

    return _CLOCK.run(main)


@pytest.mark.parametrize("streaming", [False, True])
def test_parallel_calls_come_with_their_arguments_as_sent(chaos: StartChaos, streaming: bool) -> None:
    server = chaos({"default": {"do": "ok", "calls": TWO}})
    heard: list[str] = []
    completion = answer(server.model("candidate"), asking(on_text=heard.append if streaming else None))
    assert completion.calls == [
        ToolCall("c-1", "weather", '{"place": "Bern"}'),
        ToolCall("c-2", "time", '{ "zone":"한국",\n"now": tru'),
    ]
    assert (completion.text, completion.finish, heard) == ("", "stop", [])
    assert (completion.first_token is not None) == streaming
    [entry] = server.log()
    assert entry["tools"] == TOOLS.specs
    assert [spec["type"] for spec in entry["tools"]] == ["function", "function"]


@pytest.mark.parametrize("streaming", [False, True])
def test_words_beside_a_call_are_text_and_only_they_are_streamed(chaos: StartChaos, streaming: bool) -> None:
    server = chaos({"default": {"do": "ok", "say": "Let me have a look at that first.", "calls": TWO[:1]}})
    heard: list[str] = []
    completion = answer(server.model("candidate"), asking(on_text=heard.append if streaming else None))
    assert completion.text == "Let me have a look at that first."
    assert "".join(heard) == (completion.text if streaming else "")
    assert completion.calls == [ToolCall("c-1", "weather", '{"place": "Bern"}')]


@pytest.mark.parametrize("streaming", [False, True])
def test_objects_missing_arguments_and_missing_ids_are_read(chaos: StartChaos, streaming: bool) -> None:
    calls = [sent(None, "weather", {"place": "Bern", "days": 2}), sent("", "time", None)]
    server = chaos({"default": {"do": "ok", "calls": calls, "usage": False}})
    completion = answer(server.model("candidate"), asking(on_text=(lambda piece: None) if streaming else None))
    assert completion.calls == [
        ToolCall("call-1", "weather", '{"place":"Bern","days":2}'),
        ToolCall("call-2", "time", ""),
    ]
    assert completion.calls[0].parsed() == {"place": "Bern", "days": 2}
    # Nobody counted, so the tools and the calls are estimated with the rest.
    assert (
        completion.prompt_tokens
        == (len("What is it like in Bern?") + len(json.dumps(TOOLS.specs, separators=(",", ":")))) // 4
    )
    assert completion.completion_tokens == len('weathertime{"place":"Bern","days":2}') // 4


def test_calls_and_results_go_back_as_the_endpoint_wants_them(chaos: StartChaos) -> None:
    server = chaos({})
    view = View()
    view.append("user", "And in Rome?")
    view.append("assistant", "", calls=[ToolCall("c-1", "weather", '{"place": "Rome"}'), ToolCall("c-2", "time", "")])
    view.append("tool", '{"sky": "blue"}', call_id="c-1", name="weather")
    view.append("tool", "noon", call_id="c-2")
    view.append("assistant", "One more.", calls=[ToolCall("c-3", "time", "{}")])
    view.append("tool", "one", call_id="c-3")
    answer(server.model("candidate"), asking(view, tools=None))
    [entry] = server.log()
    assert entry["tools"] is None
    assert entry["messages"] == [
        {"role": "user", "content": "And in Rome?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [sent("c-1", "weather", '{"place": "Rome"}'), sent("c-2", "time", "")],
        },
        {"role": "tool", "tool_call_id": "c-1", "content": '{"sky": "blue"}', "name": "weather"},
        {"role": "tool", "tool_call_id": "c-2", "content": "noon"},
        {"role": "assistant", "content": "One more.", "tool_calls": [sent("c-3", "time", "{}")]},
        {"role": "tool", "tool_call_id": "c-3", "content": "one"},
    ]


def test_an_endpoint_that_takes_no_tools_says_so_once(chaos: StartChaos) -> None:
    server = chaos({"default": "no_tools"})
    with pytest.raises(
        Rejected, match=r"chaos does not support tools \(the request offered tools: weather, time;"
    ) as got:
        answer(server.model("candidate"), asking())
    assert len(server.log()) == 1
    assert got.value.status == 400
    assert not answer(server.model("candidate"), asking(tools=None)).calls


def test_a_server_that_reports_its_missing_tool_support_as_its_own_fault_is_not_asked_again(chaos: StartChaos) -> None:
    server = chaos({"default": {"do": "500", "say": "tools param requires --jinja flag"}})
    with pytest.raises(Rejected, match=r"requires --jinja flag \(the request offered tools"):
        answer(server.model("candidate"), asking())
    assert len(server.log()) == 1


def test_structured_output_is_still_found_out_beside_tools(chaos: StartChaos) -> None:
    refuses = ["json_schema", "json_object+schema"]
    server = chaos({"default": {"do": "no_schema", "refuses": refuses, "calls": TWO[:1]}})
    completion = answer(server.model("candidate"), asking(schema={"type": "object"}))
    assert completion.calls
    assert [entry["format"] for entry in server.log()] == ["json_schema", "json_object+schema", "json_object"]


@pytest.mark.parametrize("trouble", ["half_body", "truncated"])
@pytest.mark.parametrize("streaming", [False, True])
def test_half_a_call_is_no_call(chaos: StartChaos, trouble: str, streaming: bool) -> None:
    server = chaos({"schedule": {"0": {"do": trouble, "calls": TWO}}, "default": {"do": "ok", "calls": TWO}})
    completion = answer(server.model("candidate"), asking(on_text=(lambda piece: None) if streaming else None))
    assert [call.id for call in completion.calls or []] == ["c-1", "c-2"]
    assert [entry["behaviour"] for entry in server.log()] == [trouble, "ok"]


@pytest.mark.parametrize("call", [{}, {"function": {}}, {"function": {"name": 3}}, {"function": None}, "weather"])
def test_what_is_no_call_makes_the_answer_unreadable(call: Any) -> None:
    data = json.dumps({"choices": [{"message": {"content": None, "tool_calls": [call]}}]}).encode()
    with pytest.raises(Unavailable, match="not a chat completion"):
        parse_completion(data, "chaos")


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.tuples(st.text(max_size=3), st.text(min_size=1, max_size=5), st.text(max_size=9)), max_size=4))
def test_any_calls_are_read_as_they_were_sent(calls: list[tuple[str, str, str]]) -> None:
    message = {"content": None, "tool_calls": [sent(*call) for call in calls]}
    data = json.dumps({"choices": [{"message": message, "finish_reason": "tool_calls"}]}).encode()
    read = parse_completion(data, "chaos").calls
    expected = [[id_ or f"call-{n}", name, text] for n, (id_, name, text) in enumerate(calls, 1)]
    assert [call.to_record() for call in read or []] == expected
    assert read is None or read
