"""Everything that happens in a run, as typed records; ``stream`` is how they are published and read. A protocol
reports them as ``Noted`` with a payload of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import orjson


@dataclass(slots=True)
class Event:
    """Base of all events. ``at`` is the clock's wall time, ``conversation`` a key or "" for the run itself.

    ``sequence`` counts the events of one stream from 1; 0 is one that was not published.
    """

    sequence: int = field(init=False, default=0, compare=False, repr=False)
    at: float
    conversation: str

    def to_record(self) -> dict[str, Any]:
        """Plain JSON data: the ``event``'s type name, ``sequence``, ``at``, ``conversation``, and its other fields.

        What a protocol's payload holds besides JSON data is given as text.
        """
        names = [name for base in reversed(type(self).__mro__) for name in getattr(base, "__slots__", ())]
        record = {"event": type(self).__name__} | {name: attrgetter(name)(self) for name in names}
        plain: dict[str, Any] = orjson.loads(orjson.dumps(record, default=str, option=orjson.OPT_NON_STR_KEYS))
        return plain


@dataclass(slots=True)
class RunStarted(Event):
    """The run begins (or is resumed): ``total`` conversations if known, ``done`` of them ended before."""

    total: int | None
    done: int


@dataclass(slots=True)
class ConversationStarted(Event):
    """A conversation was admitted."""

    number: int


@dataclass(slots=True)
class CallFinished(Event):
    """A model call was answered; ``replayed`` means from the journal, at no cost.

    ``branch`` is the path of the branch that it stands in, "" for the conversation itself; ``ordinal`` counts in it.
    """

    role: str
    ordinal: int
    prompt_tokens: int
    completion_tokens: int
    cost: float
    latency: float
    attempts: int
    replayed: bool
    text: None = None  # kept in records, where answers stood once
    branch: str = ""


@dataclass(slots=True)
class StepComputed(Event):
    """A step that is no model call ended; ``failed``: with an error as its result. ``replayed``: from the journal."""

    name: str
    ordinal: int
    failed: bool
    latency: float
    replayed: bool
    text: None = None  # kept in records, where answers stood once
    branch: str = ""


@dataclass(slots=True)
class Diverged(Event):
    """A recorded call was asked differently than now; from here on the conversation is called anew."""

    role: str
    ordinal: int
    branch: str = ""


@dataclass(slots=True)
class Noted(Event):
    """A protocol's own news, e.g. kind ``verdict``; the engine never looks inside."""

    kind: str
    payload: Any


@dataclass(slots=True)
class StopRequested(Event):
    """Somebody ended the conversation early: ``by`` evaluator, detector or budget."""

    by: str
    reason: str


@dataclass(slots=True)
class ConversationFinished(Event):
    """The coroutine returned; ``result`` is what the protocol records. ``restored``: read from the journal."""

    number: int
    result: Any
    restored: bool = False


@dataclass(slots=True)
class ConversationFailed(Event):
    """The conversation ended with an error, kept as data; the run goes on."""

    number: int
    error: dict[str, Any]
    restored: bool = False


@dataclass(slots=True)
class ConversationInterrupted(Event):
    """The run ended first; the conversation will go on when the run is resumed."""

    number: int


@dataclass(slots=True)
class Retried(Event):
    """A model call failed and will be tried again after ``delay`` seconds; ``error`` is the type's name."""

    model: str
    error: str
    delay: float


@dataclass(slots=True)
class EndpointLost(Event):
    """Nobody is there any more where a model was: calls to it wait until it is back. ``reason`` is the last error's."""

    model: str
    reason: str


@dataclass(slots=True)
class EndpointBack(Event):
    """A model that was gone answers again."""

    model: str


@dataclass(slots=True)
class EndpointPaused(Event):
    """A model's endpoint asked for a long pause (``Retry-After``): its calls wait until the wall time ``until``."""

    model: str
    reason: str
    until: float


@dataclass(slots=True)
class LimitHit(Event):
    """A budget took effect; ``limit`` names it."""

    limit: str
    detail: str


@dataclass(slots=True)
class RunFinished(Event):
    """The run is over. ``outcome``: done, drained, halted, budget, failed."""

    outcome: str


@dataclass(slots=True)
class ListenerFailed(Event):
    """A listener raised and is not called any more; ``listener`` names it, ``error`` is what it raised and where."""

    listener: str
    error: dict[str, Any]
