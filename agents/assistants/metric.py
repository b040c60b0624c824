"""Assistants that compute a number from the response and another text: the text metrics.

What never belongs here: the metrics themselves (``text_metrics``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from viva.engine.conversation import Conversation

from .assistant import Assistant, number_of
from .example import Example
from .text_metrics import EXTRA, METRICS, has_wordnet, require_package

_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Metric(Assistant):
    """A text metric."""

    comparing = True
    function: Callable[[str, str], float]
    package: str

    @classmethod
    def named(cls, name: str, metric: str, against: str | None) -> Metric:
        """The metric called ``metric``.

        :raises KeyError: there is none.
        """
        title, function, package = METRICS[metric]
        return cls(
            name=name,
            spec=name,
            title=title,
            compares=f"the response with {against or 'the reference'}",
            function=function,
            package=package,
            against=against,
        )

    async def score(self, conversation: Conversation, example: Example) -> float:
        other = example.text(self.against)
        return number_of(await conversation.compute(self.name, self.function, example.response, other, limit=_SECONDS))

    def check(self) -> None:
        require_package(self.name, self.package, EXTRA)

    def facts(self) -> dict[str, Any]:
        # Figures with synonyms and without are not the same figures.
        return super().facts() | ({"wordnet": has_wordnet()} if self.package == "nltk" else {})
