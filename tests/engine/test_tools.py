"""Tools in the engine: specifications, calls, digests, the journal, and replay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from case_tables import case_table
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import after_calls, results, small_run
from small_tools import PLACE, RIGHT, TOOLS, WEATHER

from viva.engine.conversation import Conversation
from viva.engine.detectors import detector_factories
from viva.engine.errors import ConfigurationError, MalformedOutput
from viva.engine.events import CallFinished
from viva.engine.journal_reader import History
from viva.engine.messages import Sampling, View, request_digest
from viva.engine.runner import Runner
from viva.engine.tools import Toolbox, ToolCall
from viva.scenarios.functionchat.simulated_dialog import AssistantHint

relaxed = settings(deadline=None, derandomize=True)
texts = st.text(max_size=4) | st.sampled_from(["{}", '{"a": 1}', "1:", "A"])
calls = st.builds(ToolCall, texts, texts, texts)


# -- specifications and calls -------------------------------------------------------------------------------------


def test_a_toolbox_has_openais_form_whichever_it_was_given() -> None:
    assert TOOLS.specs == [WEATHER, {"type": "function", "function": {"name": "time"}}]
    assert TOOLS.names == ["weather", "time"]
    assert TOOLS.parameters("weather") == PLACE
    assert TOOLS.parameters("time") is None
    assert TOOLS.parameters("nothing") is None
    assert Toolbox([WEATHER["function"], {"name": "time"}]).digest == TOOLS.digest  # type: ignore[list-item]


def test_a_toolbox_is_a_copy_and_its_digest_knows_every_order() -> None:
    spec: dict[str, Any] = {"name": "f", "parameters": {"properties": {"a": {}, "b": {}}}}
    box = Toolbox([spec])
    spec["parameters"]["properties"]["c"] = {}
    assert "c" not in box.specs[0]["function"]["parameters"]["properties"]
    other = Toolbox([{"name": "f", "parameters": {"properties": {"b": {}, "a": {}}}}])
    assert len({box.digest, other.digest, Toolbox([{"name": "f"}]).digest, TOOLS.digest}) == 4
    assert Toolbox([{"name": "time"}, WEATHER]).digest != TOOLS.digest


@case_table(
    ("spec", "says"),
    [
        ("weather", r"tools\[1\]: expected an object, found 'weather'"),
        ({"type": "retrieval", "function": {"name": "f"}}, r"tools\[1\].type: expected 'function', found 'retrieval'"),
        ({"type": "function", "function": 3}, r"tools\[1\].function: expected an object"),
        ({"type": "function", "function": {}}, r"tools\[1\].function.name: expected the function's name, found None"),
        ({"name": ""}, r"tools\[1\].name: expected"),
        ({"name": "f", "description": 3}, r"tools\[1\].description: expected text"),
        ({"name": "f", "parameters": []}, r"tools\[1\].parameters: expected a JSON schema"),
        ({"function": {"name": "f", "parameters": {"type": "string"}}}, r"\[1\].function.parameters.type: .*'string'"),
        ({"name": "f", "parameters": {"properties": ["a"]}}, r"tools\[1\].parameters.properties: expected an object"),
        ({"name": "f", "parameters": {"default": {1, 2}}}, r"tools\[1\]: cannot be written as JSON"),
        ({"name": "weather"}, r"tools\[1\].name: 'weather' is offered twice"),
    ],
)
def test_what_is_no_specification_is_named_with_its_place(spec: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Toolbox([WEATHER, spec])


def test_no_tools_are_no_toolbox() -> None:
    with pytest.raises(ConfigurationError, match="empty"):
        Toolbox([])


def test_arguments_are_parsed_exactly() -> None:
    text = '{"n": 12345678901234567890123, "x": 1.0, "one": 1, "s": "1", "deep": {"a": [null, true]}}'
    parsed = ToolCall("c", "f", text).parsed()
    assert parsed == {"n": 12345678901234567890123, "x": 1.0, "one": 1, "s": "1", "deep": {"a": [None, True]}}
    assert [type(parsed[name]) for name in ("n", "x", "one", "s")] == [int, float, int, str]


@case_table("text", ["", " ", "[]", "null", '"{}"', '{"a": NaN}', '{"a": 1', "{'a': 1}", "[" * 100_000])
def test_arguments_that_are_no_object_are_malformed(text: str) -> None:
    with pytest.raises(MalformedOutput, match="the arguments of f are not"):
        ToolCall("c", "f", text).parsed()


@relaxed
@given(calls)
def test_a_call_comes_back_from_its_record(call: ToolCall) -> None:
    assert ToolCall.from_record(json.loads(json.dumps(call.to_record()))) == call


# -- digests ------------------------------------------------------------------------------------------------------


def test_digests_without_tools_are_what_they_were_before_there_were_any() -> None:
    view = View()
    view.append("user", "Wörter")
    assert view.digest.hex() == "42a4e59e8333bc4d2b68e4cac9462327"
    assert request_digest(view, Sampling(), 3).hex() == "72b14602d66fa9c491d284059fdae49c"
    view = View()
    view.append("system", "Be brief.")
    view.append("user", "Why?")
    view.append("assistant", "Because.", [(True, [1])])
    view.append("user", "And?")
    sampling = Sampling(temperature=0.7, stop=("\n",), schema={"type": "object"})
    assert view.digest.hex() == "654b6483d5fddf9afcc0bb924a4f1886"
    assert request_digest(view, sampling, 2**31 - 1).hex() == "fd9be4d7617508b196a1af9019685860"


Said = tuple[str, list[ToolCall], str, str]
said = st.tuples(st.text("aA1:{", max_size=3), st.lists(calls, max_size=2), texts, texts)


@settings(relaxed, max_examples=300)
@given(st.lists(said, max_size=3), st.lists(said, max_size=3))
def test_views_with_calls_have_the_same_digest_only_if_they_hold_the_same(one: list[Said], other: list[Said]) -> None:
    def digest(talk: list[Said]) -> bytes:
        view = View()
        for content, made, call_id, name in talk:
            view.append("assistant", content, calls=made, call_id=call_id, name=name)
        return view.digest

    assert (digest(one) == digest(other)) == (one == other)


def test_the_tools_offered_are_part_of_a_requests_identity() -> None:
    view = View()
    view.append("user", "Why?")
    digests = {request_digest(view, Sampling(), seed, tools) for seed in (1, 11) for tools in (None, TOOLS)}
    digests.add(request_digest(view, Sampling(), 1, Toolbox([WEATHER])))
    assert len(digests) == 5


def test_a_tools_result_is_not_what_a_user_said() -> None:
    view, other = View(), View()
    view.append("user", "noon")
    other.append("tool", "noon")
    assert view.digest != other.digest


# -- the journal, resume and replay -------------------------------------------------------------------------------


async def two_turns(conversation: Conversation, payload: Any) -> list[Any]:
    """A turn in which a call is due, its result, and a turn in words."""
    view, sampling, made = View(), Sampling(), []
    view.append("user", f"What is it like in Bern? ({payload})")
    hints: list[Any] = [RIGHT, {"role": "assistant", "content": "It rains."}]
    for hint in hints:
        completion = await conversation.generate(
            "candidate", view, sampling, tools=TOOLS, hint=AssistantHint(hint), watch=detector_factories(["empty"])
        )
        view.append("assistant", completion.text, calls=completion.calls or ())
        for call in completion.calls or ():
            view.append("tool", '{"sky": "grey"}', call_id=call.id, name=call.name)
        made.append([completion.text, [call.to_record() for call in completion.calls or ()]])
    return made


MODEL = "simulated:m?knowledge=0.5&latency=0.5"


def test_calls_are_recorded_and_come_back(tmp_path: Path) -> None:
    small_run(tmp_path, converse=two_turns, model=MODEL)
    made = {number: result for number, _, result in results(tmp_path)}
    with History(tmp_path / "journal.sqlite") as history:
        for number, result in made.items():
            recorded = [call.completion for call in history.calls(number)]
            assert [[c.text, [call.to_record() for call in c.calls or ()]] for c in recorded] == result
            assert all(c.calls is None or isinstance(c.calls[0], ToolCall) for c in recorded)
    first = [result[0] for result in made.values()]
    right = ["", [["c-1", "weather", '{"place": "Bern", "days": 2}']]]
    assert 4 <= first.count(right) <= 16  # of twenty, at even odds


def test_a_run_with_calls_resumes_where_it_was_halted(tmp_path: Path) -> None:
    cut, before = small_run(tmp_path / "cut", converse=two_turns, model=MODEL, prepare=after_calls(11, Runner.halt))
    assert cut.interrupted
    _, after = small_run(tmp_path / "cut", converse=two_turns, model=MODEL, resume=True)
    replayed = [event for event in after if isinstance(event, CallFinished) and event.replayed]
    fresh = [event for event in after if isinstance(event, CallFinished) and not event.replayed]
    assert replayed
    assert len(fresh) + sum(isinstance(event, CallFinished) for event in before) == 40
    small_run(tmp_path / "whole", converse=two_turns, model=MODEL)
    assert results(tmp_path / "cut") == results(tmp_path / "whole")
