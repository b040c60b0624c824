"""What assistants look at: a response, the texts that it belongs to, and what each assistant said of it.

What never belongs here: how one assistant comes to its number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from viva.engine.errors import VivaError


class AssistantFailed(VivaError):
    """An assistant has no number for an example; the message says why. It becomes a gap that the judge is told of."""


@dataclass(frozen=True, slots=True)
class Example:
    """A response and the texts around it, by name.

    ``against`` names the text that an assistant compares the response with unless it names another one itself;
    ``context`` names those that the response follows, in their order. ``hint`` is what a simulated model may know.
    """

    response: str
    texts: Mapping[str, str] = field(default_factory=dict)
    against: str = ""
    context: tuple[str, ...] = ()
    hint: Any = None

    def text(self, name: str | None) -> str:
        """The text of this name, or the one to compare with where the name is None.

        :raises AssistantFailed: there is none, or it is empty.
        """
        name = name or self.against
        if not name:
            raise AssistantFailed("there is no text to compare the response with")
        if not self.texts.get(name, "").strip():
            raise AssistantFailed(f"the example has no text '{name}'")
        return self.texts[name]

    def preceding(self) -> str:
        """The texts that the response follows, a blank line between any two; those that are empty are left out."""
        return "\n\n".join(text.strip() for name in self.context if (text := self.texts.get(name, "")).strip())

    def to_record(self) -> dict[str, Any]:
        """Plain data, as a user's function is given it: ``response``, ``reference`` (the text of ``against``),
        ``context`` (``preceding``) and ``texts``.
        """
        reference = self.texts.get(self.against, "")
        return {
            "response": self.response,
            "reference": reference,
            "context": self.preceding(),
            "texts": dict(self.texts),
        }


@dataclass(frozen=True, slots=True)
class Advice:
    """What came of one assistant for one example: its number, or None and the ``problem`` that left the gap."""

    name: str
    value: float | None
    problem: str | None = None

    def to_record(self) -> dict[str, Any]:
        """Plain data for the journal."""
        return {"name": self.name, "value": self.value} | ({"problem": self.problem} if self.problem else {})
