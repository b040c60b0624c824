"""Check whether a protocol still makes the calls that are recorded of a conversation. No model is called.

The coroutine runs against the recorded calls as in `conversation_replay`; after a request that differs, it continues
with the recorded answer. A call that was made but never answered has no record: the conversation was stopped there, or
the model failed and the protocol caught the error. Such a call is tried both ways before it counts as added.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import orjson

from .cancellation import EndOfRecord, deciding_error, is_failure
from .clock import RealClock
from .computation import StepLocation
from .conversation import Conversation, ConversationStopped, RunServices
from .conversation_replay import Exchange, ReplayConversation, replay_services
from .errors import ConversationCancelled, TranscriptEnded, error_text, user_frame
from .journal import branch_and_role
from .journal_reader import EndedConversation, RecordedCall
from .messages import Message
from .steps import STEP_PREFIX, Computed

Change = Literal["request", "added", "missing", "result", "error", "task"]
_LONGEST = 120  # characters of a text in a difference


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between a conversation and its record.

    `change` is `request` (another request than the recorded one), `added` (a call that is not recorded), `missing` (a
    recorded call that is not made), `result`, `error` (an exception) or `task` (the task cannot be read). The first
    three are at a call: `role`, `ordinal` and `branch` are as in the journal. `now` says in words what the code does,
    `recorded` what the record has; `messages` are those of a request.
    """

    change: Change
    role: str = ""
    ordinal: int = 0
    branch: str = ""
    now: str = ""
    recorded: str = ""
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class _Ending:
    """End of an attempt: a result, an error, or neither if the protocol made a call without a record."""

    result: Any = None
    error: BaseException | None = None
    is_open: bool = False


class _CheckedConversation(ReplayConversation):
    """A conversation that notes how its calls differ from the record.

    `interruption` is raised at each call without a record, if there is one.
    """

    __slots__ = ("_arguments", "_interruption", "differences", "unrecorded")

    def __init__(
        self,
        services: RunServices,
        number: int,
        key: str,
        recorded: Sequence[RecordedCall],
        label: str,
        repeat: int,
        interruption: Exception | None,
    ) -> None:
        super().__init__(services, number, key, recorded, label, repeat)
        self.differences: dict[tuple[str, str], Difference] = {}  # the first one by branch and role
        self.unrecorded: list[Difference] = []
        self._interruption = interruption
        self._arguments: Any = None

    @property
    def is_branched(self) -> bool:
        """True if the protocol opened branches."""
        return self._traffic.branched

    async def compute(
        self,
        name: str,
        function: Callable[..., Any],
        *arguments: Any,
        key: Any = None,
        limit: float = 60.0,
        where: StepLocation = "thread",
    ) -> Computed:
        self._arguments = list(arguments) if key is None else key
        return await super().compute(name, function, *arguments, key=key, limit=limit, where=where)

    async def _recorded_call(
        self, name: str, stored: str, ordinal: int, digest: bytes, exchange: Exchange | None = None
    ) -> tuple[RecordedCall, bool]:
        branch, role = branch_and_role(stored)
        if (stored, ordinal) not in self._answers:
            self.unrecorded.append(self._difference("added", role, ordinal, branch, exchange, "no such call"))
            if self._interruption is not None:
                await self.run_overlapping_calls()
                self._interrupt(role)
        call, matches = await super()._recorded_call(name, stored, ordinal, digest, exchange)
        if not matches and (branch, role) not in self.differences:
            recorded = f"not stored, only its hash {call.digest.hex()[:12]}"
            self.differences[branch, role] = self._difference("request", role, ordinal, branch, exchange, recorded)
        return call, matches

    def _difference(
        self, change: Change, role: str, ordinal: int, branch: str, exchange: Exchange | None, recorded: str
    ) -> Difference:
        if exchange is None:
            return Difference(
                change, role, ordinal, branch, f"the arguments {shorten(to_json(self._arguments))}", recorded
            )
        return Difference(change, role, ordinal, branch, _describe(exchange), recorded, exchange.messages or ())

    def _interrupt(self, role: str) -> None:
        assert self._interruption is not None
        if not isinstance(self._interruption, ConversationStopped):
            raise self._interruption
        if self._interruption.by != "budget" and not role.startswith(STEP_PREFIX):
            self.usage[role].calls -= 1  # only a budget stops a call after it was counted
        raise self.stop(self._interruption.by, self._interruption.reason)


def to_json(value: Any) -> str:
    """Return JSON data, or what is not quite such data, as text."""
    return orjson.dumps(value, default=str, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS).decode()


def shorten(text: str, beginning: int = 0) -> str:
    """Return at most 120 characters of a text, from its `beginning`."""
    part = text[beginning : beginning + _LONGEST]
    return "…" * (beginning > 0) + part + "…" * (beginning + _LONGEST < len(text))


def _describe(exchange: Exchange) -> str:
    """Return in words what is sent: a system message, the last message, and the options."""
    if exchange.reading is not None:
        return f'the context "{shorten(exchange.reading.shared + exchange.reading.context)}"'
    messages = exchange.messages or ()
    parts = [message for message in messages[:-1][:1] if message.role == "system"] + list(messages[-1:])
    text = ", ".join(f'{message.role} "{shorten(message.content)}"' for message in parts) or "no message"
    options = [f"{len(messages)} messages"] * (len(messages) > len(parts))
    if exchange.sampling is not None:
        options += [f"temperature {exchange.sampling.temperature:g}", f"at most {exchange.sampling.max_tokens} tokens"]
    if exchange.tools is not None:
        options.append(f"tools: {', '.join(exchange.tools.names)}")
    return text + f" ({', '.join(options)})" * bool(options)


@dataclass(frozen=True, slots=True)
class ConversationCheck:
    """Check of conversations with one protocol.

    `stop` returns how a conversation was stopped, from its result.
    """

    converse: Callable[[Conversation, Any], Awaitable[Any]]
    seed: int
    stop: Callable[[Any], ConversationStopped]

    async def check(
        self,
        task: Any,
        recorded: Sequence[RecordedCall],
        end: EndedConversation | None,
        *,
        number: int,
        key: str,
        label: str = "",
        repeat: int = 1,
    ) -> list[Difference]:
        """Return how a conversation differs from its record; empty if it fits.

        `end` is None if the conversation has not ended: then it may make further calls. The same holds for one that
        failed at a model's error or was cancelled. Requests that differ are named once per branch and role; any other
        difference only if there is none before it, because it may follow from that.
        """

        async def attempt(interruption: Exception | None) -> tuple[list[Difference], bool]:
            services = replay_services(self.seed, RealClock())
            conversation = _CheckedConversation(services, number, key, recorded, label, repeat, interruption)
            ending = await self._run(conversation, task, interruption)
            differences = list(conversation.differences.values())
            differences = differences or list(filter(None, [_first_difference(conversation, ending, end)]))
            return differences, bool(conversation.unrecorded)

        differences, is_interrupted = await attempt(None)
        if differences and is_interrupted:
            stop = self.stop(None if end is None else end.result)
            for interruption in (stop, TranscriptEnded("no answer was recorded", model="")):
                if not (await attempt(interruption))[0]:
                    return []
        return differences

    async def _run(self, conversation: _CheckedConversation, task: Any, interruption: Exception | None) -> _Ending:
        try:
            ending = _Ending(await self.converse(conversation, task))
        except EndOfRecord:
            ending = _Ending(is_open=True)
        except BaseException as raised:
            if not is_failure(raised):
                raise
            error = deciding_error(raised)
            if isinstance(error, ConversationStopped):
                ending = _Ending({"stopped": {"by": error.by, "reason": error.reason}})
            elif isinstance(error, EndOfRecord) or error is interruption:
                ending = _Ending(is_open=True)
            else:
                ending = _Ending(error=error)
        await conversation.run_overlapping_calls()
        return ending


def _is_model_failure(end: EndedConversation) -> bool:
    """Return True if a conversation failed at a model's error or was cancelled, not in the protocol's own code.

    A fault of the code is recorded with its place.
    """
    return not isinstance(end.result, dict) or "at" not in end.result


def _error_type(end: EndedConversation) -> str:
    return str(end.result.get("type")) if isinstance(end.result, dict) else ""


def _describe_end(end: EndedConversation | None) -> str:
    if end is None:
        return "the conversation has not ended"
    return f"the conversation failed with {_error_type(end)}" if end.failed else "the conversation finished"


def _find_difference(value: Any, recorded: Any, path: str = "") -> tuple[str, Any, Any]:
    """Return the path of the first part in which two results differ, and both values there."""
    if isinstance(value, dict) and isinstance(recorded, dict) and value.keys() == recorded.keys():
        for name in value:
            if value[name] != recorded[name]:
                return _find_difference(value[name], recorded[name], f"{path}.{name}" if path else str(name))
    return path, value, recorded


def _answer_text(call: RecordedCall) -> str:
    completion = call.completion
    text = completion.text or ", ".join(f"{tool.name}({tool.arguments})" for tool in completion.calls or ())
    return f'the answer "{shorten(text)}"'


def _first_difference(
    conversation: _CheckedConversation, ending: _Ending, end: EndedConversation | None
) -> Difference | None:
    """Return how an attempt whose requests equal the recorded ones differs from the record; None if it does not."""
    remaining = conversation.unused_calls()
    may_continue = end is None or (end.failed and _is_model_failure(end))
    if ending.is_open and (remaining or not may_continue):
        return replace(conversation.unrecorded[0], recorded=f"no such call; {_describe_end(end)}")
    if ending.error is not None and (remaining or end is not None):
        name = type(ending.error).__name__
        if end is None or not end.failed or name != _error_type(end):
            now = f"{name}: {shorten(error_text(ending.error))} (at {user_frame(ending.error)})"
            return Difference("error", now=now, recorded=_describe_end(end))
        if conversation.is_branched:
            return None  # the error ended the other branches, and when depended on latency
    if remaining:
        call = remaining[0]
        return Difference("missing", call.role, call.ordinal, call.branch, "no such call", _answer_text(call))
    if ending.is_open or ending.error is not None or end is None:
        return None
    if end.failed:
        if _error_type(end) == ConversationCancelled.__name__:
            return None  # cancelled between its last call and its end
        return Difference("result", now=shorten(to_json(ending.result)), recorded=_describe_end(end))
    try:
        result = orjson.loads(orjson.dumps(ending.result, option=orjson.OPT_SORT_KEYS))
    except TypeError as error:
        return Difference("error", now=f"TypeError: {shorten(str(error))}", recorded=_describe_end(end))
    if result == end.result:
        return None
    path, value, recorded = _find_difference(result, end.result)
    name = path + " " * bool(path)
    return Difference("result", now=name + shorten(to_json(value)), recorded=name + shorten(to_json(recorded)))
