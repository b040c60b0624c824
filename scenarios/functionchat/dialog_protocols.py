"""The two protocols of tool-use dialogs: answer one recorded turn, or run a whole dialog with a simulated user.

A turn is graded by rules, then by a judge; a dialog by its task's own conditions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import orjson

from viva.agents.judge import Judge, Ruling
from viva.engine.conversation import Conversation, ConversationStopped
from viva.engine.messages import Completion, Sampling, View
from viva.engine.tools import Toolbox

from ..run_aggregate import conversation_costs
from .call_matching import Matching
from .dialog_prompts import DialogPrompts
from .rule_grading import RuleGrade, grade, read_published_verdict
from .simulated_dialog import AssistantHint, NextCallHint, RulingHint, UserHint
from .turns import DialogTurn, message_calls, output_text
from .user_tasks import DialogTask, ToolSimulator


@lru_cache(maxsize=512)
def _toolbox(tools: bytes) -> Toolbox:
    """Return the toolbox of tools, given as JSON; turns with the same tools share one."""
    return Toolbox(orjson.loads(tools))


CANDIDATE, JUDGE = "candidate", "judge"


@dataclass(slots=True)
class TurnContext:
    """The context of a turn: its tools, and the dialog before it."""

    turn: DialogTurn
    tools: Toolbox
    view: View  # shared by all candidates and repeats, so never appended to


class TurnProtocol:
    """The turns of a run."""

    def __init__(
        self,
        prompts: DialogPrompts,
        answering: Sampling,
        judging: Sampling,
        matching: Matching = "strict",
        *,
        as_published: bool = False,
    ) -> None:
        self.prompts, self.answering, self.judging, self.matching = prompts, answering, judging, matching
        self.as_published = as_published  # the judge is asked and read as in the authors' code
        self._context: TurnContext | None = None  # all candidates and repeats of a turn run before the next turn

    def context_of(self, turn: DialogTurn) -> TurnContext:
        if self._context is None or self._context.turn is not turn:
            view = recorded_view("" if turn.has_system else self.prompts.system, turn.messages)
            self._context = TurnContext(turn, _toolbox(orjson.dumps(turn.tools)), view)
        return self._context

    async def run(self, conversation: Conversation, turn: DialogTurn) -> dict[str, Any]:
        """Run a turn and return its record.

        `passed` is None (unscored) if the judge gave no verdict, a budget ended the dialog, or the candidate could not
        answer (`stopped` says why).
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
        conversation.tell(
            lambda: ((m["role"], output_text(m["content"] or "", message_calls(m))) for m in turn.messages)
        )
        try:
            await self._answer_and_grade(conversation, turn, record)
        except ConversationStopped as stop:
            record["stopped"] = stop.by
        if turn.category is not None:
            record |= {"category": turn.category, "cluster": turn.cluster}
        return record | conversation_costs(conversation)

    async def _answer_and_grade(self, conversation: Conversation, turn: DialogTurn, record: dict[str, Any]) -> None:
        context, known = self.context_of(turn), AssistantHint(turn.ground_truth)
        completion = await conversation.generate(
            CANDIDATE, context.view, self.answering, tools=context.tools, hint=known
        )
        calls = completion.calls or []
        truth = turn.ground_truth.get("content") or ""
        conversation.tell(lambda: [("ground truth", output_text(truth, turn.expected()))])
        record["output"] = output_record(completion)
        if completion.refusal_reason is not None:
            record["stopped"] = completion.refusal_reason
            return
        graded = grade(turn, completion.text, calls, self.matching)
        record["grade"] = grade_record(graded)
        record["passed"] = graded.passed
        if graded.passed is None:
            # A simulated judge may know that an answer equal to the ground truth is good.
            hint = RulingHint(not calls and completion.text.strip() == truth.strip())
            if self.as_published:
                ruling = await self._rule_as_published(conversation, turn, completion, hint)
            else:
                judge = Judge(conversation, self.prompts.pack, self.judging)
                question = self.prompts.question(turn, completion.text, calls)
                ruling = await judge.rule(question, hint, output_text(completion.text, calls))
            record["judge"] = ruling.to_record()
            record["passed"] = ruling.passed

    async def _rule_as_published(
        self, conversation: Conversation, turn: DialogTurn, answer: Completion, hint: RulingHint
    ) -> Ruling:
        """Ask the judge once and read its verdict, as the authors' code does."""
        view = View()
        view.append("user", self.prompts.published_question(turn, answer.text, answer.calls or []))
        completion = await conversation.generate(JUDGE, view, self.judging, hint=hint)
        passed = read_published_verdict(completion.text)
        problem = "its last two lines have neither pass nor fail" if passed is None else None
        return Ruling(passed, completion.text.strip(), int(passed is None), problem)


def grade_record(graded: RuleGrade) -> dict[str, Any]:
    """Return the record of a rule grade; lone surrogates, which a model may have escaped, stay escaped."""
    why = graded.why.encode("utf-8", "backslashreplace").decode()
    return {"passed": graded.passed, "tags": graded.tags, "why": why}


def output_record(completion: Completion) -> dict[str, Any]:
    """Return a candidate's text, its calls as `[id, name, arguments]`, and how the answer ended."""
    calls = [call.to_record() for call in completion.calls or ()]
    return {"content": completion.text, "calls": calls, "finish": completion.finish}


def recorded_view(system: str, messages: Sequence[dict[str, Any]]) -> View:
    """Return a recorded dialog in OpenAI's form as a model's view, after the system prompt unless that is empty."""
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


INTERACTOR = "interactor"
DONE = "[DONE]"  # the simulated user ends the dialog with it


@dataclass(slots=True)
class UserProtocol:
    """The dialogs of a run; `exchanges` limits the user's messages, `steps` the answers to each message."""

    prompts: DialogPrompts
    answering: Sampling
    asking: Sampling
    exchanges: int
    steps: int

    async def run(self, conversation: Conversation, task: DialogTask) -> dict[str, Any]:
        """Run a dialog and return its record.

        `ended_by` is user, exchanges, steps, or what stopped it: a budget, a candidate that could not answer, or an
        interactor without a message.
        """
        if task.goal is not None:
            conversation.tell(lambda: [("task", (task.goal or "").strip())])
        dialog = Dialog(conversation, self, task)
        try:
            ended_by = await dialog.run()
        except ConversationStopped as stop:
            ended_by = stop.by
        simulator = dialog.simulator
        missing, forbidden, reached = simulator.missing(), simulator.forbidden(), simulator.state_reached()
        return {
            "candidate": conversation.label,
            "item": task.id,
            "repeat": conversation.repeat,
            "success": not missing and not forbidden and reached,
            "missing": missing,
            "forbidden": forbidden,
            "state_reached": reached,
            "calls": [[call.name, call.text] for call in simulator.calls],
            "exchanges": dialog.exchanges,
            "ended_by": ended_by,
            **conversation_costs(conversation),
        }


class Dialog:
    """A running dialog."""

    __slots__ = ("_candidate_view", "_conversation", "_protocol", "_task", "_user", "exchanges", "simulator")

    def __init__(self, conversation: Conversation, protocol: UserProtocol, task: DialogTask) -> None:
        self._conversation, self._protocol, self._task = conversation, protocol, task
        self.simulator = ToolSimulator.from_task(task)
        self.exchanges = 0
        self._candidate_view = View()
        self._candidate_view.append("system", task.system or protocol.prompts.system)
        self._user = User(conversation, protocol, task)

    async def run(self) -> str:
        """Run the dialog and return what ended it."""
        reply: str | None = None
        while True:
            message = await self._user.next(reply)
            if message is None:
                return "user"
            if self.exchanges == self._protocol.exchanges:
                return "exchanges"
            self.exchanges += 1
            if self._task.goal is None:
                self._conversation.tell(partial(_line, "user", message))
            self._candidate_view.append("user", message)
            reply = await self._reply()
            if reply is None:
                return "steps"

    async def _reply(self) -> str | None:
        """Return the candidate's answer in words, after all its calls; None if the calls do not end."""
        view = self._candidate_view
        hint = NextCallHint(self.simulator)
        for _ in range(self._protocol.steps):
            completion = await self._conversation.generate(
                CANDIDATE, view, self._protocol.answering, tools=self._task.toolbox, hint=hint
            )
            if completion.refusal_reason is not None:
                raise self._conversation.stop("candidate", completion.refusal_reason)
            calls = completion.calls or []
            view.append("assistant", completion.text, completion.pieces, calls=calls)
            if not calls:
                return completion.text
            for call in calls:
                result = self.simulator.answer(call)
                self._conversation.tell(partial(_line, f"tool {call.name}", result))
                view.append("tool", result, call_id=call.id, name=call.name)
        return None


def _line(party: str, text: str) -> list[tuple[str, str]]:
    return [(party, text)]


class User:
    """The user: a model with a goal, or a list of lines."""

    __slots__ = ("_conversation", "_lines", "_sampling", "_view")

    def __init__(self, conversation: Conversation, protocol: UserProtocol, task: DialogTask) -> None:
        self._conversation, self._sampling = conversation, protocol.asking
        self._lines = None if task.says is None else iter(task.says)
        self._view = View()
        if task.goal is not None:
            self._view.append("system", protocol.prompts.render("user.system", goal=task.goal.strip(), done=DONE))
            self._view.append("user", protocol.prompts.render("user.opening"))

    async def next(self, reply: str | None) -> str | None:
        """Return the user's message after a reply (None at the beginning); None if the dialog is over."""
        if self._lines is not None:
            return next(self._lines, None)
        if reply is not None:
            self._view.append("user", reply)
        hint = UserHint()
        completion = await self._conversation.generate(INTERACTOR, self._view, self._sampling, hint=hint)
        if not completion.text.strip():  # one retry, with another seed
            completion = await self._conversation.generate(INTERACTOR, self._view, self._sampling, hint=hint)
        if not completion.text.strip():
            raise self._conversation.stop("interactor", "no_message")
        self._view.append("assistant", completion.text, completion.pieces)
        return None if DONE in completion.text else completion.text
