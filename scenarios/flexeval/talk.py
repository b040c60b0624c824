"""What the system under test is asked: the last turn anew, or the whole dialog with a played or recorded user.

What never belongs here: metrics, and prompts' wording (the pack).
"""

from __future__ import annotations

from collections.abc import Sequence

from viva.agents.prompts import PromptPack
from viva.engine.conversation import Conversation
from viva.engine.errors import TaskError
from viva.engine.messages import Completion, Sampling, View
from viva.engine.tools import Toolbox
from viva.engine.tools import ToolCall as EngineCall

from .persona import CandidatePersona, UserPersona
from .rubric import said
from .spec import Suite
from .units import Dialog, Message, ToolCall

CANDIDATE, INTERACTOR = "candidate", "interactor"


class Talk:
    """The part of one conversation in which the system under test speaks."""

    def __init__(self, conversation: Conversation, suite: Suite, pack: PromptPack, *, plays: bool) -> None:
        self._conversation, self._suite, self._pack, self._plays = conversation, suite, pack, plays
        self._sampling = Sampling(temperature=suite.temperature, max_tokens=suite.max_tokens)

    async def completed(self, dialog: Dialog) -> Dialog:
        """The dialog with what the system has answered; as it is where it is scored as it stands.

        :raises TaskError: there is nothing to answer.
        """
        if self._suite.complete == "none":
            self._conversation.tell(lambda: _lines(dialog.messages))
            return dialog
        if self._suite.complete == "last":
            return await self._last(dialog)
        return await self._anew(dialog)

    async def _last(self, dialog: Dialog) -> Dialog:
        kept = list(dialog.messages)
        while kept and kept[-1].role != "user":
            kept.pop()
        if not kept:
            raise TaskError(f"{dialog.id}: no user message to answer; write `complete: none` to score it as it stands")
        view = View()
        for one in kept:
            _append(view, one)
        self._conversation.tell(lambda: _lines(kept))
        answer = await self._answer(view, dialog)
        return Dialog.of(dialog.id, [*kept, answer], dialog.metadata)

    async def _anew(self, dialog: Dialog) -> Dialog:
        """System messages first, then exchange by exchange: the user's words as recorded, or the interactor's."""
        begun = [one for one in dialog.messages if one.role == "system"]
        asked = [one for one in dialog.messages if one.role == "user"]
        if not asked:
            raise TaskError(f"{dialog.id}: no user message to hold the dialog anew from")
        exchanges = self._suite.play.exchanges or len(asked)
        view, said_now = View(), list(begun)
        for one in begun:
            _append(view, one)
        self._conversation.tell(lambda: _lines(begun))
        user = _User(self._conversation, self._suite, self._pack, dialog) if self._plays else None
        last = ""
        for number in range(exchanges):
            if user is not None:
                words = await user.says(last)
            elif number < len(asked):
                words = asked[number].content
                self._conversation.tell(lambda words=words: [("user", words)])  # type: ignore[misc]
            else:
                break
            question = Message("user", words, new=user is not None)
            _append(view, question)
            answer = await self._answer(view, dialog)
            _append(view, answer)
            said_now += [question, answer]
            last = answer.content
        return Dialog.of(dialog.id, said_now, dialog.metadata)

    async def _answer(self, view: View, dialog: Dialog) -> Message:
        tools = dialog.metadata.get("tools")
        toolbox = Toolbox(tools) if isinstance(tools, list) and tools else None
        last = next((one.content for one in reversed(view.messages) if one.role == "user"), "")
        completion = await self._conversation.generate(
            CANDIDATE, view, self._sampling, tools=toolbox, hint=CandidatePersona(last)
        )
        return _message(completion)


class _User:
    """The interactor: it plays the user of a recorded dialog."""

    def __init__(self, conversation: Conversation, suite: Suite, pack: PromptPack, dialog: Dialog) -> None:
        self._conversation, self._pack = conversation, pack
        self._recorded = [one.content for one in dialog.messages if one.role == "user"]
        self._asked = 0
        self._view = View()
        recorded = said([one for one in dialog.messages if one.role != "system"])
        persona = suite.play.persona or str(dialog.metadata.get("persona", ""))
        self._view.append("system", pack.render("user.system", persona=persona, recorded=recorded))
        self._sampling = Sampling(temperature=0.7, max_tokens=400)

    async def says(self, answer: str) -> str:
        """Its next words, after the system's last answer ("" at the beginning).

        :raises ConversationStopped: it said nothing, twice.
        """
        self._view.append("user", answer or self._pack.render("user.begin"))
        hint = UserPersona(self._recorded[min(self._asked, len(self._recorded) - 1)])
        self._asked += 1
        for _ in range(2):
            completion = await self._conversation.generate(INTERACTOR, self._view, self._sampling, hint=hint)
            if completion.text.strip():
                self._view.append("assistant", completion.text, completion.pieces)
                return completion.text.strip()
        raise self._conversation.stop("interactor", "said nothing, twice")


def _lines(messages: Sequence[Message]) -> list[tuple[str, str]]:
    """Messages as lines of a transcript."""
    return [(one.role, one.content or " ".join(call.text for call in one.tool_calls)) for one in messages]


def _append(view: View, one: Message) -> None:
    role = one.role if one.role in ("system", "user", "assistant", "tool") else "user"
    calls = _calls(one.tool_calls)
    view.append(role, one.content, calls=calls, call_id=one.call_id, name=one.name)  # type: ignore[arg-type]


def _calls(calls: Sequence[ToolCall]) -> list[EngineCall]:
    return [EngineCall(call.id or f"call-{number}", call.name, call.arguments) for number, call in enumerate(calls, 1)]


def _message(completion: Completion) -> Message:
    calls = tuple(ToolCall(call.name, call.arguments, call.id) for call in completion.calls or ())
    tokens = {"prompt": completion.prompt_tokens, "completion": completion.completion_tokens}
    metadata = {} if completion.finish == "stop" else {"finish": completion.finish}
    return Message("assistant", completion.text, calls, latency=completion.latency, tokens=tokens, metadata=metadata,
                   new=True)  # fmt: skip
