"""Events of a run, as typed records; `stream` publishes them. Protocols report their own as `Noted` with a payload."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from .backends.base import Backend
    from .likelihood import Reading
    from .messages import Completion, Request


@dataclass(slots=True)
class Event:
    """Base of all events. `at` is the clock's wall time, `conversation` a key, or "" for the run itself.

    `sequence` counts the events of one stream from 1; 0 means not published.
    """

    sequence: int = field(init=False, default=0, compare=False, repr=False)
    at: float
    conversation: str

    def to_record(self) -> dict[str, Any]:
        """Return JSON data: the type's name as `event`, `sequence`, `at`, `conversation`, and the other fields.

        Payload values that are not JSON data are converted to text.
        """
        slots = [name for base in reversed(type(self).__mro__) for name in getattr(base, "__slots__", ())]
        names = [name for name in slots if name != "details"]
        record = {"event": type(self).__name__} | {name: attrgetter(name)(self) for name in names}
        plain: dict[str, Any] = orjson.loads(orjson.dumps(record, default=str, option=orjson.OPT_NON_STR_KEYS))
        return plain


@dataclass(slots=True)
class RunStarted(Event):
    """The run begins or is resumed: `total` conversations if known, `done` of them already ended."""

    total: int | None
    done: int


@dataclass(slots=True)
class ConversationStarted(Event):
    """A conversation was admitted."""

    number: int


@dataclass(slots=True)
class CallDetails:
    """Request and answer of a call, for listeners in this process; not part of an event's record.

    `completion` is None if the call failed.
    """

    backend: Backend
    request: Request | Reading
    completion: Completion | None = None


@dataclass(slots=True)
class CallFinished(Event):
    """A model call was answered; `replayed` means that the answer is from the journal, at no cost.

    `branch` is the path of the call's branch, "" for the conversation itself; `ordinal` counts within the branch.
    `details` are set for new answers if a listener asked for them (`EventStream.detailed`).
    """

    role: str
    ordinal: int
    prompt_tokens: int
    completion_tokens: int
    cost: float
    latency: float
    attempts: int
    replayed: bool
    text: None = None  # kept in the record, which once had answers
    branch: str = ""
    details: CallDetails | None = field(default=None, compare=False, repr=False)


@dataclass(slots=True)
class CallFailed(Event):
    """A model call failed for good, after `latency` seconds with all retries. `error` is the type's name.

    Published only if a listener asked for details (`EventStream.detailed`).
    """

    role: str
    ordinal: int
    error: str
    latency: float
    branch: str
    details: CallDetails = field(compare=False, repr=False)


@dataclass(slots=True)
class StepComputed(Event):
    """A step that is no model call ended. `failed`: the result is an error; `replayed`: it is from the journal."""

    name: str
    ordinal: int
    failed: bool
    latency: float
    replayed: bool
    text: None = None  # kept in the record, which once had answers
    branch: str = ""


@dataclass(slots=True)
class Diverged(Event):
    """A request differs from the recorded one; from here on the conversation calls its models again."""

    role: str
    ordinal: int
    branch: str = ""


@dataclass(slots=True)
class Noted(Event):
    """A protocol's own event, e.g. of kind `verdict`; the engine never inspects it."""

    kind: str
    payload: Any


@dataclass(slots=True)
class StopRequested(Event):
    """The conversation is to end early; `by` is evaluator, detector or budget."""

    by: str
    reason: str


@dataclass(slots=True)
class ConversationFinished(Event):
    """The coroutine returned; `result` is what the protocol records. `restored`: it is from the journal."""

    number: int
    result: Any
    restored: bool = False


@dataclass(slots=True)
class ConversationFailed(Event):
    """The conversation ended with an error, stored as data; the run continues."""

    number: int
    error: dict[str, Any]
    restored: bool = False


@dataclass(slots=True)
class ConversationInterrupted(Event):
    """The run ended before the conversation, which continues when the run is resumed."""

    number: int


@dataclass(slots=True)
class Retried(Event):
    """A model call failed and is retried after `delay` seconds; `error` is the type's name."""

    model: str
    error: str
    delay: float


@dataclass(slots=True)
class EndpointLost(Event):
    """A model's endpoint became unreachable: its calls wait until it is back. `reason` is the last error."""

    model: str
    reason: str


@dataclass(slots=True)
class EndpointBack(Event):
    """An unreachable model answers again."""

    model: str


@dataclass(slots=True)
class EndpointPaused(Event):
    """A model's endpoint asked for a long pause (`Retry-After`): its calls wait until the wall time `until`."""

    model: str
    reason: str
    until: float


@dataclass(slots=True)
class Controlled(Event):
    """The run was asked to do something while it went on (`viva control`); `request` says what."""

    request: dict[str, Any]


@dataclass(slots=True)
class ConversationReopened(Event):
    """A failed conversation goes on: what was published of its end no longer holds."""

    number: int
    error: dict[str, Any]


@dataclass(slots=True)
class ConversationsAdded(Event):
    """The run has more conversations than it had when it began: `count` more."""

    count: int


@dataclass(slots=True)
class BatchChanged(Event):
    """A batch of a model's calls was sent or has ended (`state`); `number` counts the model's batches from 1."""

    model: str
    number: int
    calls: int
    state: str


@dataclass(slots=True)
class LimitHit(Event):
    """A budget took effect; `limit` names it."""

    limit: str
    detail: str


@dataclass(slots=True)
class RunFinished(Event):
    """The run is over. `outcome`: done, drained, halted, budget, failed."""

    outcome: str


@dataclass(slots=True)
class ListenerFailed(Event):
    """A listener raised and is not called again; `listener` names it, `error` says what it raised and where."""

    listener: str
    error: dict[str, Any]
