"""Tools at a real endpoint: what is sent, calls read whole and streamed, arguments as they were sent, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from case_tables import case_table
from hypothesis import given, settings
from hypothesis import strategies as st
from provider_asks import answer, asking, read_whole

from viva.engine.backends.sse import CallPieces
from viva.engine.clock import RealClock
from viva.engine.errors import Rejected, Unavailable
from viva.engine.messages import Message, Request, View
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


def offering(*said: Message, tools: Toolbox | None = TOOLS, **more: Any) -> Request:
    """A request that offers tools."""
    return asking(*(said or (("user", "What is it like in Bern?"),)), tools=tools, **more)


@pytest.mark.parametrize("streaming", [False, True])
def test_parallel_calls_come_with_their_arguments_as_sent(chaos: StartChaos, streaming: bool) -> None:
    server = chaos({"default": {"do": "ok", "calls": TWO}})
    heard: list[str] = []
    completion = answer(server.model("candidate"), offering(on_text=heard.append if streaming else None))
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
    completion = answer(server.model("candidate"), offering(on_text=heard.append if streaming else None))
    assert completion.text == "Let me have a look at that first."
    assert "".join(heard) == (completion.text if streaming else "")
    assert completion.calls == [ToolCall("c-1", "weather", '{"place": "Bern"}')]


@pytest.mark.parametrize("streaming", [False, True])
def test_objects_missing_arguments_and_missing_ids_are_read(chaos: StartChaos, streaming: bool) -> None:
    calls = [sent(None, "weather", {"place": "Bern", "days": 2}), sent("", "time", None)]
    server = chaos({"default": {"do": "ok", "calls": calls, "usage": False}})
    completion = answer(server.model("candidate"), offering(on_text=(lambda piece: None) if streaming else None))
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
    answer(server.model("candidate"), offering(*view.messages, tools=None))
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
        answer(server.model("candidate"), offering())
    assert len(server.log()) == 1
    assert got.value.status == 400
    assert not answer(server.model("candidate"), offering(tools=None)).calls


def test_a_server_that_reports_its_missing_tool_support_as_its_own_fault_is_not_asked_again(chaos: StartChaos) -> None:
    server = chaos({"default": {"do": "500", "say": "tools param requires --jinja flag"}})
    with pytest.raises(Rejected, match=r"requires --jinja flag \(the request offered tools"):
        answer(server.model("candidate"), offering())
    assert len(server.log()) == 1


def test_structured_output_is_still_found_out_beside_tools(chaos: StartChaos) -> None:
    refuses = ["json_schema", "json_object+schema"]
    server = chaos({"default": {"do": "no_schema", "refuses": refuses, "calls": TWO[:1]}})
    completion = answer(server.model("candidate"), offering(schema={"type": "object"}))
    assert completion.calls
    assert [entry["format"] for entry in server.log()] == ["json_schema", "json_object+schema", "json_object"]


@pytest.mark.parametrize("trouble", ["half_body", "truncated"])
@pytest.mark.parametrize("streaming", [False, True])
def test_half_a_call_is_no_call(chaos: StartChaos, trouble: str, streaming: bool) -> None:
    server = chaos({"schedule": {"0": {"do": trouble, "calls": TWO}}, "default": {"do": "ok", "calls": TWO}})
    completion = answer(server.model("candidate"), offering(on_text=(lambda piece: None) if streaming else None))
    assert [call.id for call in completion.calls or []] == ["c-1", "c-2"]
    assert [entry["behaviour"] for entry in server.log()] == [trouble, "ok"]


@case_table("call", [{}, {"function": {}}, {"function": {"name": 3}}, {"function": None}, "weather"])
def test_what_is_no_call_makes_the_answer_unreadable(call: Any) -> None:
    data = json.dumps({"choices": [{"message": {"content": None, "tool_calls": [call]}}]}).encode()
    with pytest.raises(Unavailable, match="not a chat completion"):
        read_whole("openai", data)


def piece(index: Any = ..., id_: str | None = None, name: str | None = None, arguments: Any = None) -> dict[str, Any]:
    """A piece of a call, without what is not given."""
    function = {"name": name, "arguments": arguments}
    told = {"id": id_, "function": {field: value for field, value in function.items() if value is not None}}
    return {field: value for field, value in told.items() if value} | ({} if index is ... else {"index": index})


_X, _Y = ["a", "x", '{"p": 1}'], ["b", "y", '{"q": 2}']
_P, _P2, _Q, _Q2 = '{"p"', ": 1}", '{"q"', ": 2}"


@case_table(
    ("chunks", "expected"),
    [
        ([[piece(0, "a", "x", _P)], [piece(0, None, None, _P2)], [piece(1, "b", "y", _Q)], [piece(1, None, None, _Q2)]],
         [_X, _Y]),
        ([[piece(0, "a", "x", '{"p": 1}')], [piece(0, "b", "y", '{"q": 2}')]], [_X, _Y]),
        ([[piece(0, "a", "x", _P)], [piece(0, None, None, _P2)], [piece(0, "b", "y", _Q)], [piece(0, None, None, _Q2)]],
         [_X, _Y]),
        ([[piece(0, "a", "x", _P), piece(0, "b", "y", _Q)], [piece(0, "a", None, _P2), piece(0, "b", None, _Q2)]],
         [_X, _Y]),
        ([[piece(..., "a", "x", _P)], [piece(..., "a", None, _P2)], [piece(..., "b", "y", _Q)],
          [piece(..., "b", None, _Q2)]], [_X, _Y]),
        ([[piece(..., "a", "x", _P)], [piece(..., "b", "y", _Q)], [piece(..., "a", None, _P2)],
          [piece(..., "b", None, _Q2)]], [_X, _Y]),
        ([[piece(..., "a", "x", _P)], [piece(..., "a", "x", _P2)], [piece(..., "b", "y", _Q)],
          [piece(..., "b", "y", _Q2)]], [_X, _Y]),
        ([[piece(None, "a", "x", _P)], [piece(None, None, None, _P2)], [piece(None, "b", "y", '{"q": 2}')]], [_X, _Y]),
        ([[piece("1", "b", "y", '{"q": 2}')], [piece("0", "a", "x", _P)], [piece(0, None, None, _P2)]], [_X, _Y]),
        ([[piece(0, "a", "x", _P)], [piece(0, "a", "x", _P2)], [piece(1, "b", "y", _Q)], [piece(1, "b", "y", _Q2)]],
         [_X, _Y]),
        # another id on each piece of one call
        ([[piece(0, "a", "x", _P)], [piece(0, "r1", None, _P2)], [piece(1, "b", "y", _Q)], [piece(1, "r2", None, _Q2)]],
         [_X, _Y]),
        # an index that counts pieces, an id that says whose they are
        ([[piece(0, "a", "x", _P)], [piece(1, "a", None, _P2)], [piece(2, "b", "y", '{"q": 2}')]], [_X, _Y]),
        # one id for all calls
        ([[piece(0, "f", "x", _P)], [piece(1, "f", "x", _Q)], [piece(0, "f", None, _P2)], [piece(1, "f", None, _Q2)]],
         [["f", "x", '{"p": 1}'], ["call-2", "x", '{"q": 2}']]),
        # no ids
        ([[piece(0, None, "x", '{"p": 1}')], [piece(0, None, "y", _Q)], [piece(0, None, None, _Q2)]],
         [["call-1", *_X[1:]], ["call-2", *_Y[1:]]]),
        ([[piece(0, None, "x", _P)], [piece(0, None, "x", _P2)], [piece(0, None, "x", '{"q": 2}')]],
         [["call-1", *_X[1:]], ["call-2", "x", '{"q": 2}']]),
        ([[piece(..., None, "x", '{"p": 1}'), piece(..., None, "x"), piece(..., None, "x")]],
         [["call-1", *_X[1:]], ["call-2", "x", ""], ["call-3", "x", ""]]),
    ],
)  # fmt: skip
def test_line_22_pieces_of_calls_are_put_together_by_id_and_index(
    chunks: list[list[dict[str, Any]]], expected: list[list[str]]
) -> None:
    calls = CallPieces()
    for chunk in chunks:
        calls.add(chunk)
    assert [call.to_record() for call in calls.whole() or []] == expected


@pytest.mark.parametrize("index", ["first", [0], True, 0.5])
def test_line_22_an_index_that_is_no_number_is_an_error(index: Any) -> None:
    with pytest.raises(TypeError, match="an index is"):
        CallPieces().add([piece(index, "a", "x", "{}")])


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    calls=st.lists(st.tuples(st.text("pq{}: 1", max_size=9), st.integers(1, 4)), min_size=1, max_size=4),
    way=st.sampled_from(["index", "id", "both", "first index"]),
    interleaved=st.booleans(),
)
def test_line_22_any_calls_are_put_together_from_any_pieces(
    calls: list[tuple[str, int]], way: str, interleaved: bool
) -> None:
    rounds: list[tuple[int, dict[str, Any]]] = []
    for number, (arguments, count) in enumerate(calls):
        size = len(arguments) // count + 1
        for part in range(count):
            begins = part == 0
            id_ = f"c{number}" if begins or way != "index" else None
            index = {"id": ..., "first index": 0}.get(way, number)
            told = piece(index, id_, "f" if begins else None, arguments[part * size :][:size])
            rounds.append((part if interleaved else 0, told))
    pieces = CallPieces()
    for _, told in sorted(rounds, key=lambda one: one[0]):
        pieces.add([told])
    got = [call.to_record() for call in pieces.whole() or []]
    assert got == [[f"c{number}", "f", arguments] for number, (arguments, _) in enumerate(calls)]


@pytest.mark.parametrize("streaming", [False, True])
def test_line_22_a_call_as_it_was_sent_before_there_could_be_several_is_read(
    replanned: StartChaos, streaming: bool
) -> None:
    message = {"content": None, "function_call": {"name": "weather", "arguments": '{"place": "Bern"}'}}
    choice = {"delta" if streaming else "message": message, "finish_reason": "function_call"}
    say = json.dumps({"choices": [choice]})
    server = replanned({"default": {"do": "raw", "say": f"data: {say}\n\n" if streaming else say}})
    got = answer(server.model("m"), offering(on_text=print if streaming else None))
    assert (got.calls, got.finish) == ([ToolCall("call-1", "weather", '{"place": "Bern"}')], "stop")


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.tuples(st.text(max_size=3), st.text(min_size=1, max_size=5), st.text(max_size=9)), max_size=4))
def test_any_calls_are_read_as_they_were_sent(calls: list[tuple[str, str, str]]) -> None:
    message = {"content": None, "tool_calls": [sent(*call) for call in calls]}
    data = json.dumps({"choices": [{"message": message, "finish_reason": "tool_calls"}]}).encode()
    read = read_whole("openai", data).calls
    got = [call.to_record() for call in read or []]
    assert [one[1:] for one in got] == [[name, text] for _, name, text in calls]
    assert len({id_ for id_, *_ in got}) == len(calls)
    first = {id_: place for place, (id_, _, _) in reversed(list(enumerate(calls))) if id_}
    assert all(got[place][0] == id_ for id_, place in first.items() if not id_.startswith("call-"))
    assert read is None or read
