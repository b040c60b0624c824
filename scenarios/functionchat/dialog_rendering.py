"""Tool-use dialogs as people read them: calls with their results, the expected answer beside the model's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from viva.engine.conversation_replay import Aside, Exchange

from ..rendering import (
    Detail,
    Mark,
    RecordedConversation,
    RenderedConversation,
    RenderedTurn,
    ResultSummary,
    Side,
    ToolUse,
    pass_mark,
    pending_turns,
    render_entry,
)
from .dialog_protocols import CANDIDATE, JUDGE
from .turns import message_calls

_TOOL = "tool "  # prefix of tools' answers in whole dialogs
_PARTIES: dict[str, Side] = {"user": "asking", "assistant": "given", "system": "given"}


def render_dialog(recorded: RecordedConversation, sides: Mapping[str, Side]) -> RenderedConversation:
    """Return the turns; a tool's answer is shown with its call."""
    task = recorded.task if isinstance(recorded.task, Mapping) else {}
    if "ground_truth" not in task:
        return _render_whole_dialog(recorded, sides)
    turns = _render_history(task["messages"])
    result = recorded.result or {}
    for entry in recorded.entries:
        if isinstance(entry, Aside):
            continue  # the history and the ground truth, which come from the task
        turn = render_entry(entry, sides)
        if isinstance(entry, Exchange) and entry.role == CANDIDATE:
            turn.marks += _grade_marks(result)
            turns += [turn, _expected_answer(task["ground_truth"])]
            continue
        if isinstance(entry, Exchange) and entry.role == JUDGE:
            _render_ruling(turn, result.get("judge"))
        turns.append(turn)
    return RenderedConversation([*turns, *pending_turns(recorded, sides)])


def _render_history(messages: list[dict[str, Any]]) -> list[RenderedTurn]:
    """Return the recorded dialog before the candidate's turn."""
    turns: list[RenderedTurn] = []
    uses: dict[str, ToolUse] = {}
    for message in messages:
        text, role = message.get("content") or "", message["role"]
        use = uses.get(message.get("tool_call_id") or "") if role == "tool" else None
        if use is not None:
            use.result = text
            continue
        calls = message_calls(message)
        turn = RenderedTurn(role, text, _PARTIES.get(role, "tool"))
        turn.tools = [ToolUse(call.name, call.arguments) for call in calls]
        uses |= {call.id: tool for call, tool in zip(calls, turn.tools, strict=True)}
        turns.append(turn)
    return turns


def _expected_answer(truth: Mapping[str, Any]) -> RenderedTurn:
    tools = [ToolUse(call.name, call.arguments) for call in message_calls(truth)]
    return RenderedTurn("ground truth", truth.get("content") or "", "given", tools=tools)


def _grade_marks(result: Mapping[str, Any]) -> list[Mark]:
    grade = result.get("grade")
    if grade is None:
        return []
    decided = "by rule" if grade["passed"] is not None else "by the judge"
    return [
        pass_mark(decided, result.get("passed"), grade["why"]),
        *(Mark(tag.replace("_", " "), level=0.0 if grade["passed"] is False else None) for tag in grade["tags"]),
    ]


def _render_ruling(turn: RenderedTurn, ruling: Mapping[str, Any] | None) -> None:
    """Show the judge's reasons instead of the raw text, which is folded."""
    if ruling is None:
        return
    turn.details.append(Detail("raw text", turn.text))
    turn.text = ruling["reasoning"]
    turn.marks.append(pass_mark("ruling", ruling["passed"], ruling["problem"] or ""))


def _render_whole_dialog(recorded: RecordedConversation, sides: Mapping[str, Side]) -> RenderedConversation:
    """Return a whole dialog with a simulated user; answers of tools come in the order of the calls."""
    turns: list[RenderedTurn] = []
    open_uses: list[ToolUse] = []
    exchanges = 0
    for entry in recorded.entries:
        if isinstance(entry, Aside) and entry.party.startswith(_TOOL) and open_uses:
            open_uses.pop(0).result = entry.text
            continue
        turn = render_entry(entry, sides)
        if turn.speaker in ("user", "interactor"):
            exchanges += 1
            turn.side = "asking"
        turn.round = exchanges or None
        open_uses = turn.tools.copy() if turn.tools else open_uses
        turns.append(turn)
    return RenderedConversation([*turns, *pending_turns(recorded, sides)], _success_marks(recorded.result))


def _success_marks(result: Mapping[str, Any] | None) -> list[Mark]:
    if result is None:
        return []
    marks = [pass_mark("task", result["success"])]
    marks += [Mark("missing", _call_text(call), 0) for call in result["missing"]]
    marks += [Mark("forbidden", _call_text(call), 0) for call in result["forbidden"]]
    marks += [] if result["state_reached"] else [Mark("state not reached", level=0)]
    return marks


def _call_text(call: Any) -> str:
    return call if isinstance(call, str) else str(call)


def summarize_dialog(result: Mapping[str, Any]) -> ResultSummary:
    """Return a dialog's summary line: 100 if it passed, 0 if it failed, and why."""
    passed = result["success"] if "success" in result else result["passed"]
    if "success" in result:
        end = f"ended by {result['ended_by']}"
    else:
        tags = (result.get("grade") or {}).get("tags") or []
        end = {True: "passed", False: "failed", None: "unscored"}[passed]
        end += f": {tags[0].replace('_', ' ')}" if passed is False and tags else ""
        end += f": {result['stopped']}" if "stopped" in result else ""
    score = None if passed is None else 100.0 * passed
    return ResultSummary(score, end, {}, int(passed is None))
