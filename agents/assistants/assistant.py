"""An assistant: a number for a response, with its range, its direction and what it compares; and many asked at once.

An assistant that has no number for an example leaves a stated gap and stops nobody. Numbers come through
``Conversation.compute`` or model calls, so they are recorded and replayed.

What never belongs here: how one kind of assistant works, and what its number is used for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from viva.engine.conversation import Conversation
from viva.engine.errors import Forbidden, MalformedOutput, Rejected, Unauthorized
from viva.engine.gathering import gathered
from viva.engine.steps import Computed

from .example import Advice, AssistantFailed, Example

Better = Literal["high", "low"]


@dataclass(frozen=True, kw_only=True)
class Assistant(ABC):
    """See the module. ``name`` stands for it in prompts, plans and reports, ``title`` says what it is; ``low`` and
    ``high`` bound its numbers, and ``better`` says which end is the good one.

    ``spec`` is what the user wrote. ``compares``: the response with what, in words. ``model`` is the name of the model
    that it asks under the role ``role``; None where it asks none. ``comparing`` kinds compare the response with one
    text: ``against`` names it, and None leaves that to the example.
    """

    comparing: ClassVar[bool] = False

    name: str
    spec: str
    title: str
    compares: str
    low: float = 0.0
    high: float = 1.0
    better: Better = "high"
    model: str | None = None
    role: str = ""
    against: str | None = None

    @abstractmethod
    async def score(self, conversation: Conversation, example: Example) -> float:
        """Its number for an example.

        :raises AssistantFailed: it has none; the message says why.
        :raises ConversationStopped, BackendError, LimitReached: as ``Conversation.generate``.
        """

    def check(self) -> None:
        """See that it can be used at all: packages, files.

        :raises ConfigurationError: it cannot; the message says what is missing.
        """

    def facts(self) -> dict[str, Any]:
        """What a manifest says of it; a resumed run is refused where that has changed."""
        return {
            "name": self.name,
            "title": self.title,
            "compares": self.compares,
            "range": [self.low, self.high],
            "better": self.better,
        }

    def line(self) -> str:
        """Itself in a line, for a judge: name, title, what it compares, range and direction."""
        better = "higher" if self.better == "high" else "lower"
        return f"{self.name}: {self.title}, {self.compares}; from {self.low:g} to {self.high:g}, {better} is better"

    async def consult(self, conversation: Conversation, example: Example) -> Advice:
        """Its number, or the gap that it leaves.

        A model that cannot be reached ends the conversation, which may be tried again; one that refuses this very
        example leaves a gap, for it would refuse it again.
        """
        try:
            value = await self.score(conversation, example)
        except (AssistantFailed, MalformedOutput) as error:
            return Advice(self.name, None, str(error))
        except (Unauthorized, Forbidden):
            raise
        except Rejected as error:
            return Advice(self.name, None, str(error))
        if not self.low <= value <= self.high:
            ends = f"{self.low:g} to {self.high:g}"
            return Advice(self.name, None, f"its number {value:g} is outside of its range, {ends}")
        return Advice(self.name, value)


def number_of(computed: Computed) -> float:
    """The number that a step gave.

    :raises AssistantFailed: it failed, or gave something else.
    """
    if computed.error is not None:
        raise AssistantFailed("{type}: {message}".format(**computed.error))
    if not isinstance(computed.value, int | float):
        raise AssistantFailed(f"it gave {str(computed.value)[:60]!r} ({type(computed.value).__name__}), not a number")
    return float(computed.value)


async def consult(conversation: Conversation, assistants: Sequence[Assistant], example: Example) -> list[Advice]:
    """What all assistants say of an example, asked at once, in their order.

    :raises ConversationStopped, BackendError, LimitReached: as ``Conversation.generate``.
    """
    return await gathered([partial(one.consult, conversation, example) for one in assistants])


def share(low: float, high: float, better: Better, value: float) -> float:
    """A number mapped to 0–1 by its assistant's range, 1 being the good end."""
    part = (value - low) / (high - low)
    return part if better == "high" else 1.0 - part
