"""Re-runs a recorded conversation without any model: what each role was sent and what it answered, in order.

The protocol's coroutine runs against the recorded calls. Where a request's digest equals the recorded one, its view is
what the model was sent. Where it differs (code or prompts have changed), the remaining recorded answers follow without
their prompts. The re-run ends where the record ends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from .budget import Budget, Meter
from .clock import Clock, RealClock
from .computation import Computer, Where
from .conversation import Conversation, ConversationStopped
from .detectors import Detector
from .history import RecordedCall
from .journal import Journal
from .likelihood import Likelihood, Reading
from .messages import Completion, Message, Sampling, View, request_digest
from .services import Services
from .steps import STEP_PREFIX, Computed, computed_from, step_digest
from .stream import EventStream
from .tools import Toolbox
from .turnstile import Turnstile


@dataclass(slots=True)
class Line:
    """What the protocol put between the calls: a party, and its words."""

    party: str
    text: str


@dataclass(slots=True)
class Exchange:
    """A recorded call. ``messages`` is what the role was sent (None where it is not known, or where a text was read),
    ``tools`` the functions that it was offered, ``reading`` the texts whose likelihood was asked for.
    """

    role: str
    ordinal: int
    completion: Completion
    messages: tuple[Message, ...] | None = None
    tools: Toolbox | None = None
    reading: Reading | None = None


@dataclass(slots=True)
class Step:
    """A recorded step that is no model call."""

    name: str
    ordinal: int
    computed: Computed


Entry = Line | Exchange | Step


@dataclass(slots=True)
class Rerun:
    """The entries of a re-run. ``problem`` says why the prompts of later calls are unknown; None where none is."""

    lines: list[Entry] = field(default_factory=list)
    problem: str | None = None


class _RecordEnds(BaseException):
    """The coroutine asks for more than was recorded. Not an ``Exception``, so that protocols do not catch it."""


class _Again(Conversation):
    """A conversation that is answered from its record alone."""

    __slots__ = ("_answers", "rerun")

    def __init__(self, services: Services, key: str, recorded: Sequence[RecordedCall], label: str, repeat: int) -> None:
        super().__init__(services, 0, key, {}, (), label, repeat)
        # A call that was asked anew after a divergence stands there twice: the later one counts.
        self._answers = {(call.role, call.ordinal): call for call in recorded}
        self.rerun = Rerun()

    async def generate(
        self,
        role: str,
        view: View,
        sampling: Sampling,
        *,
        tools: Toolbox | None = None,
        hint: Any = None,
        watch: Sequence[Callable[[], Detector]] = (),
    ) -> Completion:
        ordinal = self._next_ordinal(role)
        digest = request_digest(view, sampling, self._seeds.seed(role, ordinal), tools)
        call = self._recorded_call(role, ordinal, digest)
        self.rerun.lines.append(Exchange(role, ordinal, call.completion, view.messages, tools))
        self._count(role, call.completion)
        if watch:
            self._judge_watch(call.completion, watch)
        return call.completion

    async def read(self, role: str, reading: Reading) -> list[Likelihood]:
        ordinal = self._next_ordinal(role)
        call = self._recorded_call(role, ordinal, reading.digest())
        self.rerun.lines.append(Exchange(role, ordinal, call.completion, reading=reading))
        self._count(role, call.completion)
        return call.completion.likelihoods or []

    async def compute(
        self,
        name: str,
        function: Callable[..., Any],
        *arguments: Any,
        key: Any = None,
        limit: float = 60.0,
        where: Where = "thread",
    ) -> Computed:
        ordinal = self.computed.get(name, 0)
        self.computed[name] = ordinal + 1
        call = self._recorded_call(STEP_PREFIX + name, ordinal, step_digest(name, arguments, key))
        computed = computed_from(call.completion)
        self.rerun.lines.append(Step(name, ordinal, computed))
        return computed

    def tell(self, lines: Callable[[], Iterable[tuple[str, str]]]) -> None:
        self.rerun.lines += [Line(party, text) for party, text in lines()]

    def rest(self) -> list[Entry]:
        """The recorded calls that the coroutine has not asked for, in their order."""
        return [entry_of(call) for call in self._answers.values()]

    def _recorded_call(self, role: str, ordinal: int, digest: bytes) -> RecordedCall:
        call = self._answers.get((role, ordinal))
        if call is None:
            raise _RecordEnds
        if call.digest != digest:
            self.rerun.problem = f"{role.removeprefix(STEP_PREFIX)} #{ordinal} was asked otherwise when it was recorded"
            raise _RecordEnds
        del self._answers[role, ordinal]
        return call


def entry_of(call: RecordedCall) -> Exchange | Step:
    """A recorded call or step, of which only the record is known."""
    if call.role.startswith(STEP_PREFIX):
        return Step(call.role.removeprefix(STEP_PREFIX), call.ordinal, computed_from(call.completion))
    return Exchange(call.role, call.ordinal, call.completion)


async def held_again(
    converse: Callable[[Conversation, Any], Awaitable[Any]],
    task: Any,
    recorded: Sequence[RecordedCall],
    *,
    seed: int,
    key: str,
    label: str = "",
    repeat: int = 1,
    clock: Clock | None = None,
) -> Rerun:
    """Re-run a recorded conversation. ``seed`` is the run's; key, label and repeat are the conversation's.

    What the coroutine raises is not raised here: it becomes the ``problem``.
    """
    clock = clock or RealClock()
    meter = Meter(Budget(), "run", clock.now())
    services = Services(seed, clock, cast(Journal, None), EventStream(), meter, Turnstile(), Budget(), Computer(clock))
    conversation = _Again(services, key, recorded, label, repeat)
    try:
        await converse(conversation, task)
    except (_RecordEnds, ConversationStopped):
        pass
    except BaseExceptionGroup as errors:  # of calls that overlapped
        if (others := errors.split((_RecordEnds, ConversationStopped))[1]) is not None:
            conversation.rerun.problem = conversation.rerun.problem or repr(others.exceptions[0])
    except Exception as error:
        conversation.rerun.problem = f"{type(error).__name__}: {error}"
    rest = conversation.rest()
    conversation.rerun.lines += rest
    if rest and conversation.rerun.problem is None:
        conversation.rerun.problem = "the code that held this conversation asks for less than was recorded"
    return conversation.rerun
