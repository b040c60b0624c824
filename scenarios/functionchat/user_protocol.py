"""Whole tool-use dialogs: an interactor plays a user with a goal, the candidate calls tools, and the task's own answer.

Success is decided by what was called and, where a Python tool keeps one, by the state that is left; no judge is asked.
What never belongs here: the form of tasks and their tools (``tasks``), wording (``rubric``), totals (``userreport``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from viva.engine.conversation import Conversation, ConversationStopped
from viva.engine.messages import Sampling, View

from .persona import NextCall, PlayedUser
from .rubric import Words
from .tasks import DialogTask, Workshop
from .turn_protocol import CANDIDATE

INTERACTOR = "interactor"
DONE = "[DONE]"  # how a played user says that the dialog is over


@dataclass(slots=True)
class UserProtocol:
    """What all dialogs of a run share. ``exchanges`` bounds the user's messages, ``steps`` the answers to one."""

    words: Words
    answering: Sampling
    asking: Sampling
    exchanges: int
    steps: int

    async def hold(self, conversation: Conversation, task: DialogTask) -> dict[str, Any]:
        """The dialog's record. ``ended_by``: user, exchanges, steps, or who stopped it: a budget, the candidate
        that was kept from answering, the interactor that said nothing.
        """
        if task.goal is not None:
            conversation.tell(lambda: [("task", (task.goal or "").strip())])
        talk = Dialog(conversation, self, task)
        try:
            ended_by = await talk.hold()
        except ConversationStopped as stop:
            ended_by = stop.by
        workshop = talk.workshop
        missing, forbidden, reached = workshop.missing(), workshop.forbidden(), workshop.state_reached()
        usage = conversation.usage
        return {
            "candidate": conversation.label,
            "item": task.id,
            "repeat": conversation.repeat,
            "success": not missing and not forbidden and reached,
            "missing": missing,
            "forbidden": forbidden,
            "state_reached": reached,
            "calls": [[made.name, made.text] for made in workshop.calls],
            "exchanges": talk.exchanges,
            "ended_by": ended_by,
            "usage": {role: usage[role].to_record() for role in sorted(usage)},
            **({"irregular": conversation.irregular} if conversation.irregular else {}),
        }


class Dialog:
    """One dialog under way."""

    __slots__ = ("_conversation", "_protocol", "_seen_by_candidate", "_task", "_user", "exchanges", "workshop")

    def __init__(self, conversation: Conversation, protocol: UserProtocol, task: DialogTask) -> None:
        self._conversation, self._protocol, self._task = conversation, protocol, task
        self.workshop = Workshop.of(task)
        self.exchanges = 0
        self._seen_by_candidate = View()
        self._seen_by_candidate.append("system", task.system or protocol.words.system)
        self._user = User(conversation, protocol, task)

    async def hold(self) -> str:
        """Hold the dialog to its end; says what ended it."""
        reply: str | None = None
        while True:
            said = await self._user.next(reply)
            if said is None:
                return "user"
            if self.exchanges == self._protocol.exchanges:
                return "exchanges"
            self.exchanges += 1
            if self._task.goal is None:
                self._conversation.tell(partial(_line, "user", said))
            self._seen_by_candidate.append("user", said)
            reply = await self._reply()
            if reply is None:
                return "steps"

    async def _reply(self) -> str | None:
        """The candidate's answer in words, after all its calls; None where the calls do not end."""
        view = self._seen_by_candidate
        hint = NextCall(self.workshop)
        for _ in range(self._protocol.steps):
            completion = await self._conversation.generate(
                CANDIDATE, view, self._protocol.answering, tools=self._task.toolbox, hint=hint
            )
            if completion.kept_silent is not None:
                raise self._conversation.stop("candidate", completion.kept_silent)
            calls = completion.calls or []
            view.append("assistant", completion.text, completion.pieces, calls=calls)
            if not calls:
                return completion.text
            for call in calls:
                result = self.workshop.answer(call)
                self._conversation.tell(partial(_line, f"tool {call.name}", result))
                view.append("tool", result, call_id=call.id, name=call.name)
        return None


def _line(party: str, text: str) -> list[tuple[str, str]]:
    return [(party, text)]


class User:
    """The user: a model with a goal, or lines that are read out."""

    __slots__ = ("_conversation", "_lines", "_sampling", "_view")

    def __init__(self, conversation: Conversation, protocol: UserProtocol, task: DialogTask) -> None:
        self._conversation, self._sampling = conversation, protocol.asking
        self._lines = None if task.says is None else iter(task.says)
        self._view = View()
        if task.goal is not None:
            self._view.append("system", protocol.words.render("user.system", goal=task.goal.strip(), done=DONE))
            self._view.append("user", protocol.words.render("user.opening"))

    async def next(self, reply: str | None) -> str | None:
        """What the user says to the candidate's reply (None at the beginning); None when the dialog is over."""
        if self._lines is not None:
            return next(self._lines, None)
        if reply is not None:
            self._view.append("user", reply)
        hint = PlayedUser()
        completion = await self._conversation.generate(INTERACTOR, self._view, self._sampling, hint=hint)
        if not completion.text.strip():  # asked once more, in another seed
            completion = await self._conversation.generate(INTERACTOR, self._view, self._sampling, hint=hint)
        if not completion.text.strip():
            raise self._conversation.stop("interactor", "no_message")
        self._view.append("assistant", completion.text, completion.pieces)
        return None if DONE in completion.text else completion.text
