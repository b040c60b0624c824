"""How conversations are shown: verdicts as marks on replies, tools with their results, steps folded."""

from __future__ import annotations

from typing import Any

import orjson

from viva.engine.conversation_replay import Aside, Entry, Exchange, Step
from viva.engine.messages import Completion
from viva.engine.steps import Computed
from viva.engine.tools import ToolCall
from viva.scenarios.contract import Role
from viva.scenarios.flexeval.scenario import SCENARIO as FLEXEVAL
from viva.scenarios.functionchat.scenario import SCENARIO as FUNCTIONCHAT
from viva.scenarios.kieval.scenario import SCENARIO as KIEVAL
from viva.scenarios.kieval.verdicts import ASPECTS
from viva.scenarios.rendering import RecordedConversation, render_plain


def _said(role: str, text: str, **more: Any) -> Exchange:
    return Exchange(role, 0, Completion(text, **more))


def _verdict(score: int, *, stop: bool = False) -> str:
    aspects: dict[str, Any] = {name: {"comment": f"on {name}", "score": score} for name in ASPECTS}
    aspects |= {"overall_comment": "in all", "overall_score": score}
    return orjson.dumps(aspects | {"stop_conversation": stop, "stop_reason": "off_topic" if stop else "none"}).decode()


def test_a_verdict_that_was_asked_for_again_takes_the_place_of_the_first() -> None:
    entries: list[Entry] = [
        Aside("benchmark", "Which?"),
        _said("candidate", "A."),
        _said("interactor", "Why?"),
        _said("candidate", "Because."),
        _said("evaluator", "no verdict"),
        _said("evaluator", _verdict(2, stop=True)),
    ]
    shown = KIEVAL.render_conversation(RecordedConversation(entries))
    assert [turn.speaker for turn in shown.turns] == [
        "benchmark", "candidate", "interactor", "candidate", "evaluator", "evaluator"]  # fmt: skip
    assert [turn.round for turn in shown.turns] == [None, None, 1, 1, 1, 1]
    reply, first, second = shown.turns[3:]
    assert [(mark.name, mark.value) for mark in reply.marks] == [(name, "2") for name in (*ASPECTS, "overall")]
    assert reply.marks[0].comment == "on accuracy"
    assert [mark.name for mark in first.marks] == ["unreadable"]
    assert (second.text, [(mark.name, mark.value) for mark in second.marks]) == ("in all", [("stop", "off_topic")])
    assert [detail.text for detail in second.details] == [_verdict(2, stop=True)], "raw, but folded"


def test_each_tool_answers_the_call_that_asked_for_it() -> None:
    calls = [ToolCall("1", "tide", "{}"), ToolCall("2", "alarm", '{"at": 5}')]
    entries: list[Entry] = [
        _said("interactor", "Tide, and wake me."),
        _said("candidate", "", calls=calls, finish="tool_calls"),
        Aside("tool tide", "high"),
        Aside("tool alarm", "set"),
        _said("candidate", "Done."),
    ]
    shown = FUNCTIONCHAT.render_conversation(RecordedConversation(entries))
    assert [turn.speaker for turn in shown.turns] == ["interactor", "candidate", "candidate"]
    assert [(tool.name, tool.result) for tool in shown.turns[1].tools] == [("tide", "high"), ("alarm", "set")]


def test_any_conversation_can_be_shown() -> None:
    entries: list[Entry] = [
        _said("pupil", "cut", finish="length", thoughts="hm"),
        Step("short", 0, Computed(3)),
        Step("long", 0, Computed({"name": "x" * 100})),
        Step("broken", 0, Computed(error={"type": "E", "message": "m", "at": "f:1"})),
    ]
    waiting = Exchange("tutor", 0, None)
    roles = (Role("pupil", many=True), Role("tutor"))
    turns = render_plain(RecordedConversation(entries, [waiting]), roles).turns
    assert [turn.side for turn in turns] == ["compared", "step", "step", "step", "asking"]
    assert [mark.name for mark in turns[0].marks] == ["truncated at the token limit"]
    assert turns[0].details[0].text == "hm"
    assert (turns[1].text, turns[2].text, len(turns[2].details)) == ("3", "", 1)
    assert (turns[3].text, turns[4].waiting) == ("E: m (f:1)", True)


def test_a_suites_values_stand_on_what_they_are_of() -> None:
    task = {"id": "a", "messages": [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [["1", "look", "{}"]]},
        {"role": "tool", "content": "sun", "call_id": "1"},
        {"role": "assistant", "content": "Sun."},
        {"role": "user", "content": "And now?"},
    ]}  # fmt: skip
    choice = {"score": 1.0, "choice": "yes", "reasoning": "So."}
    result = {
        "kept": 5, "said": [{"role": "assistant", "content": "Rain.", "new": True}], "roles": {}, "labels": {},
        "passed": True,
        "metrics": {
            "kind": {"level": "turn", "values": [[3, choice]], "errors": []},
            "calls": {"level": "tool_call", "values": [[0, 2]], "errors": []},
            "broken": {"level": "message", "values": [], "errors": [[3, "ValueError", "no", "x.py:1"]]},
            "turns": {"level": "conversation", "values": [[0, 4]], "errors": []},
        },
    }  # fmt: skip
    entries: list[Entry] = [_said("candidate", "Rain."), _said("grader", '{"reasoning": "So.", "choice": "yes"}')]
    shown = FLEXEVAL.render_conversation(RecordedConversation(entries, task=task, result=result))
    assert [turn.speaker for turn in shown.turns] == [
        "user", "assistant", "assistant", "user", "candidate", "grader"]  # fmt: skip
    assert [(tool.name, tool.result) for tool in shown.turns[1].tools] == [("look", "sun")]
    marks = [[(mark.name, mark.value, mark.comment) for mark in turn.marks] for turn in shown.turns]
    assert marks[1] == [("calls", "2", "")]
    assert marks[2] == [("broken", "no value", "ValueError: no")]
    assert marks[4] == [("kind", "yes (1.00)", "So.")]
    assert (shown.turns[5].text, marks[5]) == ("So.", [("choice", "yes", "")])
    assert [(mark.name, mark.value) for mark in shown.marks] == [("turns", "4")]
    summary = FLEXEVAL.summary_of(None)(result)  # type: ignore[arg-type]
    assert (summary.score, summary.end) == (100.0, "passed, 1 value missing")
