"""Assistants of judges: their interface, the example they score, and their results in a judge's prompt.

An assistant returns a number for a response, with its range, its direction and what it compares. An assistant without a
number for an example leaves a gap with a reason, and the conversation continues. Numbers come from
`Conversation.compute` or model calls, so they are recorded and replayed. The wording is in the pack `assistants`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, ClassVar, Literal

from viva.engine.cancellation import gather
from viva.engine.conversation import Conversation
from viva.engine.errors import Forbidden, MalformedOutput, Rejected, Unauthorized, VivaError
from viva.engine.steps import Computed

from ..prompts import PackTemplates, PromptPack


class AssistantFailed(VivaError):
    """An assistant has no number for an example; the message says why and becomes a gap in the judge's prompt."""


@dataclass(frozen=True, slots=True)
class Example:
    """A response and the texts around it, by name.

    `against` names the text that an assistant compares the response with, unless the assistant itself names another
    text. `context` names the texts that precede the response, in order. `hint` is data that only simulated models get.
    """

    response: str
    texts: Mapping[str, str] = field(default_factory=dict)
    against: str = ""
    context: tuple[str, ...] = ()
    hint: Any = None

    def text(self, name: str | None) -> str:
        """Return the text with this name; if None, the text that the response is compared with.

        Raises:
            AssistantFailed: There is no such text, or it is empty.
        """
        name = name or self.against
        if not name:
            raise AssistantFailed("there is no text to compare the response with")
        if not self.texts.get(name, "").strip():
            raise AssistantFailed(f"the example has no text '{name}'")
        return self.texts[name]

    def preceding(self) -> str:
        """Return the texts that precede the response, separated by blank lines; empty ones are omitted."""
        return "\n\n".join(text.strip() for name in self.context if (text := self.texts.get(name, "")).strip())

    def to_record(self) -> dict[str, Any]:
        """Return plain data for a user's function.

        That is `response`, `reference` (the text of `against`), `context` (`preceding`) and `texts`.
        """
        reference = self.texts.get(self.against, "")
        return {
            "response": self.response,
            "reference": reference,
            "context": self.preceding(),
            "texts": dict(self.texts),
        }


@dataclass(frozen=True, slots=True)
class AssistantResult:
    """Result of one assistant for one example: its number, or None and the `problem` behind the gap."""

    name: str
    value: float | None
    problem: str | None = None

    def to_record(self) -> dict[str, Any]:
        """Return plain data for the journal."""
        return {"name": self.name, "value": self.value} | ({"problem": self.problem} if self.problem else {})


Better = Literal["high", "low"]


@dataclass(frozen=True, kw_only=True)
class Assistant(ABC):
    """Base of all assistants.

    `name` identifies the assistant in prompts, plans and reports, and `title` says what it is. `low` and `high` bound
    its numbers, and `better` says which end is good. `spec` is what the user wrote. `compares` says in words what the
    response is compared with. `model` is the name of the model that it calls under the role `role`; None if it calls
    none. `comparing`: the assistant compares the response with one text, which `against` names or, if `against` is
    None, the example.
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
        """Return the number for an example.

        Raises:
            AssistantFailed: There is no number; the message says why.
            ConversationStopped, BackendError, LimitReached: As for `Conversation.generate`.
        """

    def check(self) -> None:
        """Check that the assistant can be used: packages, files.

        Raises:
            ConfigurationError: It cannot be used; the message says what is missing.
        """

    def facts(self) -> dict[str, Any]:
        """Return what a manifest records of the assistant; a run is not resumed if this record has changed."""
        return {
            "name": self.name,
            "title": self.title,
            "compares": self.compares,
            "range": [self.low, self.high],
            "better": self.better,
        }

    def line(self) -> str:
        """Return a one-line description for the judge prompt: name, title, what it compares, range and direction."""
        better = "higher" if self.better == "high" else "lower"
        return f"{self.name}: {self.title}, {self.compares}; from {self.low:g} to {self.high:g}, {better} is better"

    async def get_result(self, conversation: Conversation, example: Example) -> AssistantResult:
        """Return the number, or the gap.

        An unreachable model ends the conversation, which may be retried; a model that refuses this example leaves a
        gap, because it would refuse again.
        """
        try:
            value = await self.score(conversation, example)
        except (AssistantFailed, MalformedOutput) as error:
            return AssistantResult(self.name, None, str(error))
        except (Unauthorized, Forbidden):
            raise
        except Rejected as error:
            return AssistantResult(self.name, None, str(error))
        if not self.low <= value <= self.high:
            ends = f"{self.low:g} to {self.high:g}"
            return AssistantResult(self.name, None, f"its number {value:g} is outside of its range, {ends}")
        return AssistantResult(self.name, value)


def number_from_step(computed: Computed) -> float:
    """Return the number that a step returned.

    Raises:
        AssistantFailed: The step failed, or returned something else.
    """
    if computed.error is not None:
        raise AssistantFailed("{type}: {message}".format(**computed.error))
    if not isinstance(computed.value, int | float):
        raise AssistantFailed(f"it gave {str(computed.value)[:60]!r} ({type(computed.value).__name__}), not a number")
    return float(computed.value)


async def score_all(
    conversation: Conversation, assistants: Sequence[Assistant], example: Example
) -> list[AssistantResult]:
    """Ask all assistants about an example concurrently; return one result per assistant, in their order."""
    return await gather([partial(assistant.get_result, conversation, example) for assistant in assistants])


def to_unit_scale(low: float, high: float, better: Better, value: float) -> float:
    """Map a number to 0–1 by its assistant's range; 1 is the good end."""
    part = (value - low) / (high - low)
    return part if better == "high" else 1.0 - part


_TEMPLATES = PackTemplates({
    "judge.system": frozenset(),
    "judge.question": frozenset({"texts", "response"}),
    "advice.numbers": frozenset({"numbers"}),
})  # fmt: skip


@cache
def load_assistant_pack() -> PromptPack:
    """Return the shipped pack `assistants`."""
    return _TEMPLATES.open("assistants")


def describe_assistants(assistants: Iterable[Assistant]) -> str:
    """Return the assistants' descriptions for a prompt, one per line."""
    return "\n".join(f"- {assistant.line()}" for assistant in assistants)


def format_results(results: Iterable[AssistantResult]) -> str:
    """Return the assistants' numbers for a prompt, one per line; a gap says why there is no number."""
    return "\n".join(f"- {result.name}: {format_result(result)}" for result in results)


def format_result(result: AssistantResult) -> str:
    """Return a number with four significant digits, or why there is none."""
    return f"no number ({result.problem})" if result.value is None else f"{result.value:.4g}"


def with_assistant_results(prompt: str, assistants: Sequence[Assistant], results: Sequence[AssistantResult]) -> str:
    """Return a judge's prompt followed by the assistants' numbers, each with its range and meaning."""
    if not assistants:
        return prompt
    lines = "\n".join(
        f"- {assistant.line()}: {format_result(result)}" for assistant, result in zip(assistants, results, strict=True)
    )
    return f"{prompt}\n\n{load_assistant_pack().render('advice.numbers', numbers=lines)}"
