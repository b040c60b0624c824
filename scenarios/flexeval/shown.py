"""How a suite's conversation is shown: what was said, with each metric's value as a small mark where it belongs.

What never belongs here: computing metrics, and markup.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from viva.agents.reading import decoded_objects
from viva.engine.rerun import Exchange
from viva.reports.text import number

from ..shown import (
    Detail,
    Mark,
    RecordedConversation,
    ResultSummary,
    ShownConversation,
    ShownTurn,
    Side,
    ToolUse,
    shown_entry,
    waiting_turns,
)
from .talk import CANDIDATE, INTERACTOR
from .units import Dialog, Message, message_of

_SHORTEST = 40  # characters of a value that stand on a mark


def shown_suite(recorded: RecordedConversation, sides: Mapping[str, Side]) -> ShownConversation:
    """The dialog, a turn a message, and behind it the graders' answers."""
    task = recorded.task if isinstance(recorded.task, Mapping) else {}
    result = recorded.result if isinstance(recorded.result, Mapping) else {}
    calls = {role: [one for one in recorded.entries if isinstance(one, Exchange) and one.role == role]
             for role in (CANDIDATE, INTERACTOR)}  # fmt: skip
    turns: list[ShownTurn] = []
    dialog = None if "messages" not in task else _whole(Dialog.from_record(task), result)
    if dialog is not None:
        turns = [_message(one, calls, sides) for one in dialog.messages if one.role != "tool" or not one.call_id]
        turns = [one for one in turns if one.text or one.tools or one.call is not None]
        _mark(dialog, turns, result)
    if "said" not in result:  # it failed, or goes on: what the system has said stands behind what it was given
        turns += [shown_entry(one, sides) for one in calls[CANDIDATE] if one.completion is not None]
    turns += [_graded(one, sides) for one in recorded.entries
              if isinstance(one, Exchange) and one.role not in calls]  # fmt: skip
    marks = _marks(result, "conversation").get(0, [])
    return ShownConversation([*turns, *waiting_turns(recorded, sides)], marks)


def summary(result: Mapping[str, Any]) -> ResultSummary:
    """A test's line in a list: 100 where it passed, 0 where it failed, and each metric's mean."""
    if "metrics" not in result:
        return ResultSummary(end=f"{result['stopped']['by']}: {result['stopped']['reason']}")
    aspects: dict[str, float] = {}
    for name, one in result["metrics"].items():
        numbers = [float(value) for _, value in map(_plain, one["values"]) if isinstance(value, int | float)]
        if numbers:
            aspects[name] = sum(numbers) / len(numbers)
    errors = sum(len(one["errors"]) for one in result["metrics"].values())
    passed = result.get("passed")
    end = {True: "passed", False: "failed", None: "measured"}[passed]
    if errors:
        end += f", {errors} value{'s' * (errors != 1)} missing"
    return ResultSummary(None if passed is None else 100.0 * passed, end, aspects, errors)


def _whole(task: Dialog, result: Mapping[str, Any]) -> Dialog:
    if "said" not in result:
        return task
    said = [message_of(one) for one in result["said"]]
    return Dialog.of(task.id, [*task.messages[: result["kept"]], *said], task.metadata)


def _message(one: Message, calls: Mapping[str, list[Exchange]], sides: Mapping[str, Side]) -> ShownTurn:
    side: Side = {"user": "asking", "assistant": "given", "tool": "tool"}.get(one.role, "given")  # type: ignore[assignment]
    role = (CANDIDATE if one.role == "assistant" else INTERACTOR) if one.new else ""
    turn = ShownTurn(one.role, one.content, sides.get(role, side))
    turn.tools = [ToolUse(call.name, call.arguments, call.result) for call in one.tool_calls]
    if role and calls[role]:
        turn.call = calls[role].pop(0)
        turn.speaker = role
    turn.round = one.index  # until it is marked: which message it is
    return turn


def _mark(dialog: Dialog, turns: list[ShownTurn], result: Mapping[str, Any]) -> None:
    """Put each unit's marks on the turn that holds it, a turn's on its last message."""
    by_message = {turn.round: turn for turn in turns}
    for turn in turns:
        turn.round = None
    places = {
        "turn": {one.index: one.messages[-1].index for one in dialog.turns},
        "message": {one.index: one.index for one in dialog.messages},
        "tool_call": {one.index: one.message for one in dialog.tool_calls},
    }
    for level, messages in places.items():
        for unit, marks in _marks(result, level).items():
            place = messages.get(unit)
            while place is not None and place >= 0 and place not in by_message:
                place -= 1  # a tool's result is shown with its call
            if place in by_message:
                by_message[place].marks += marks


def _marks(result: Mapping[str, Any], level: str) -> dict[int, list[Mark]]:
    found: dict[int, list[Mark]] = {}
    for name, one in result.get("metrics", {}).items():
        if one["level"] != level:
            continue
        for unit, value in one["values"]:
            found.setdefault(unit, []).append(_valued(name, value))
        for unit, kind, message, *_ in one["errors"]:
            found.setdefault(unit or 0, []).append(Mark(name, "no value", 0, f"{kind}: {message}"))
    return found


def _valued(name: str, value: Any) -> Mark:
    if isinstance(value, Mapping) and "choice" in value:
        return Mark(name, f"{value['choice']} ({number(value['score'], 2)})", None, value["reasoning"])
    if isinstance(value, Mapping):
        told = ", ".join(f"{key} {_short(part)}" for key, part in value.items())
        return Mark(name, told if len(told) <= _SHORTEST else f"{len(value)} values", None, told)
    return Mark(name, _short(value))


def _short(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number(value, 2)
    text = "–" if value is None else str(value)
    return text if len(text) <= _SHORTEST else f"{text[: _SHORTEST - 1]}…"


def _graded(call: Exchange, sides: Mapping[str, Side]) -> ShownTurn:
    """A grader's reasons in place of the form that they came in, which is folded."""
    turn = shown_entry(call, sides)
    turn.side = "judging"
    for _, value in decoded_objects(turn.text):
        if isinstance(value.get("reasoning"), str) and "choice" in value:
            turn.details.append(Detail("as it was written", turn.text))
            turn.text = value["reasoning"]
            turn.marks.append(Mark("choice", _short(value["choice"])))
            break
    return turn


def _plain(pair: list[Any]) -> tuple[int, Any]:
    unit, value = pair
    return unit, value["score"] if isinstance(value, Mapping) and "choice" in value else value
