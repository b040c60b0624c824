"""One turn of a tool-use dialog: the candidate answers from the recorded talk before it; rules, then a judge, grade it.

What never belongs here: rules (``grading``), wording (``rubric``), totals (``report``), waiting and recording.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from viva.agents.judge import Judge
from viva.engine.conversation import Conversation, ConversationStopped
from viva.engine.messages import Completion, Sampling, View
from viva.engine.tools import Toolbox

from .grading import Graded, grade
from .rubric import Words
from .turns import Turn, message_calls

CANDIDATE, JUDGE = "candidate", "judge"


@dataclass(slots=True)
class TurnTask:
    """One turn for one candidate to generate."""

    candidate: str
    turn: Turn
    tools: Toolbox
    view: View  # shared by all who are given the turn: nobody appends to it
    repeat: int


@dataclass(slots=True)
class TurnProtocol:
    """What all turns of a run share."""

    words: Words
    answering: Sampling
    judging: Sampling

    async def hold(self, conversation: Conversation, task: TurnTask) -> dict[str, Any]:
        """The turn's record. ``passed`` None: unscored, as the judge gave no verdict, a budget ended the talk, or the
        candidate was kept from answering (``stopped`` says why).
        """
        turn = task.turn
        record: dict[str, Any] = {
            "candidate": task.candidate,
            "item": turn.id,
            "repeat": task.repeat,
            "subset": turn.subset,
            "type": turn.type,
            "tool_list": turn.tool_list,
            "output": None,
            "grade": None,
            "judge": None,
            "passed": None,
        }
        try:
            await self._answer_and_grade(conversation, task, record)
        except ConversationStopped as stop:
            record["stopped"] = stop.by
        if turn.category is not None:
            record |= {"category": turn.category, "cluster": turn.cluster}
        usage = conversation.usage
        return record | {"usage": {role: usage[role].to_record() for role in sorted(usage)}}

    async def _answer_and_grade(self, conversation: Conversation, task: TurnTask, record: dict[str, Any]) -> None:
        turn = task.turn
        hint = {"id": turn.id, "type": turn.type, "ground_truth": turn.ground_truth}
        completion = await conversation.generate(CANDIDATE, task.view, self.answering, tools=task.tools, hint=hint)
        calls = completion.calls or []
        record["output"] = output_record(completion)
        if completion.kept_silent is not None:
            record["stopped"] = completion.kept_silent
            return
        graded = grade(turn, completion.text, calls)
        record["grade"] = grade_record(graded)
        record["passed"] = graded.passed
        if graded.passed is None:
            judge = Judge(conversation, self.words.pack, self.judging)
            question = self.words.question(turn, completion.text, calls)
            # What a simulated judge may know: an answer in the very words of the ground truth is a good one.
            known = not calls and completion.text.strip() == (turn.ground_truth.get("content") or "").strip()
            ruling = await judge.rule(question, {"id": turn.id, "passed": known})
            record["judge"] = ruling.to_record()
            record["passed"] = ruling.passed


def grade_record(graded: Graded) -> dict[str, Any]:
    """What the rules said; half a surrogate pair, which a model may have escaped in an argument, stays escaped."""
    why = graded.why.encode("utf-8", "backslashreplace").decode()
    return {"passed": graded.passed, "tags": graded.tags, "why": why}


def output_record(completion: Completion) -> dict[str, Any]:
    """What a candidate answered: its text, its calls as ``[id, name, arguments]``, and how the answer ended."""
    calls = [call.to_record() for call in completion.calls or ()]
    return {"content": completion.text, "calls": calls, "finish": completion.finish}


def view_of(system: str, messages: Sequence[dict[str, Any]]) -> View:
    """A recorded talk in OpenAI's form, behind a system prompt (none if it is empty), as a model is shown it."""
    view = View()
    if system:
        view.append("system", system)
    for message in messages:
        content = message.get("content") or ""
        match message["role"]:
            case "assistant":
                view.append("assistant", content, calls=message_calls(message))
            case "system":
                view.append("system", content)
            case "tool":
                view.append("tool", content, call_id=message.get("tool_call_id") or "", name=message.get("name") or "")
            case role:
                view.append(role, content)
    return view
