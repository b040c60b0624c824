"""One turn of a tool-use dialog: the candidate answers after the recorded dialog; rules, then a judge, grade it.

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
from .matching import Matching
from .persona import Assistant, Ruled
from .rubric import Words
from .toolboxes import Toolboxes
from .turns import DialogTurn, message_calls, said

CANDIDATE, JUDGE = "candidate", "judge"


@dataclass(slots=True)
class Shown:
    """What a candidate is given with a turn: its tools, and the dialog before it."""

    turn: DialogTurn
    tools: Toolbox
    view: View  # shared by all who are given the turn: nobody appends to it


class TurnProtocol:
    """How a run's turns are held."""

    def __init__(self, words: Words, answering: Sampling, judging: Sampling, matching: Matching = "strict") -> None:
        self.words, self.answering, self.judging, self.matching = words, answering, judging, matching
        self._toolboxes = Toolboxes()
        self._shown: Shown | None = None  # of a turn come all candidates and repeats before the next

    def shown(self, turn: DialogTurn) -> Shown:
        """What a candidate is given with a turn."""
        if self._shown is None or self._shown.turn is not turn:
            view = view_of("" if turn.has_system else self.words.system, turn.messages)
            self._shown = Shown(turn, self._toolboxes.of(turn.tools), view)
        return self._shown

    async def hold(self, conversation: Conversation, turn: DialogTurn) -> dict[str, Any]:
        """The turn's record. ``passed`` None: unscored, as the judge gave no verdict, a budget ended the dialog, or the
        candidate was kept from answering (``stopped`` says why).
        """
        record: dict[str, Any] = {
            "candidate": conversation.label,
            "item": turn.id,
            "repeat": conversation.repeat,
            "subset": turn.subset,
            "type": turn.type,
            "tool_list": turn.tool_list,
            "output": None,
            "grade": None,
            "judge": None,
            "passed": None,
        }
        conversation.tell(lambda: ((m["role"], said(m["content"] or "", message_calls(m))) for m in turn.messages))
        try:
            await self._answer_and_grade(conversation, turn, record)
        except ConversationStopped as stop:
            record["stopped"] = stop.by
        if turn.category is not None:
            record |= {"category": turn.category, "cluster": turn.cluster}
        usage = conversation.usage
        record["usage"] = {role: usage[role].to_record() for role in sorted(usage)}
        return record | ({"irregular": conversation.irregular} if conversation.irregular else {})

    async def _answer_and_grade(self, conversation: Conversation, turn: DialogTurn, record: dict[str, Any]) -> None:
        shown, hint = self.shown(turn), Assistant(turn.ground_truth)
        completion = await conversation.generate(CANDIDATE, shown.view, self.answering, tools=shown.tools, hint=hint)
        calls = completion.calls or []
        truth = turn.ground_truth.get("content") or ""
        conversation.tell(lambda: [("ground truth", said(truth, turn.expected()))])
        record["output"] = output_record(completion)
        if completion.kept_silent is not None:
            record["stopped"] = completion.kept_silent
            return
        graded = grade(turn, completion.text, calls, self.matching)
        record["grade"] = grade_record(graded)
        record["passed"] = graded.passed
        if graded.passed is None:
            judge = Judge(conversation, self.words.pack, self.judging)
            question = self.words.question(turn, completion.text, calls)
            # What a simulated judge may know: an answer in the very words of the ground truth is a good one.
            known = not calls and completion.text.strip() == truth.strip()
            ruling = await judge.rule(question, Ruled(known), said(completion.text, calls))
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
    """A recorded dialog in OpenAI's form, behind a system prompt (none if it is empty), as a model is shown it."""
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
