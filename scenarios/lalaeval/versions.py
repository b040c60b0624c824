"""Whether a question, or a candidate's response to it, is the same in two rounds: by digests, or as somebody tagged it.

What never belongs here: what a change makes of grades (``fluctuation``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True, frozen=True)
class Versions:
    """Digests that tell whether a question, or a candidate's response to it, is the same in two rounds.

    Where neither round has a digest, the same id is the same question, and a response counts as different. ``tags`` of
    either round overrule: by question and candidate, whether the response is the same in substance; by question and an
    empty candidate, whether the question is.
    """

    questions: Mapping[str, str] = field(default_factory=dict)
    responses: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    tags: Mapping[tuple[str, str], bool] = field(default_factory=dict)

    def same_question(self, other: Versions, question: str) -> bool:
        """Whether a question of both rounds is the same."""
        tagged = self._tag(other, question, "")
        return self.questions.get(question) == other.questions.get(question) if tagged is None else tagged

    def same_response(self, other: Versions, question: str, candidate: str) -> bool:
        """Whether a candidate's response to a question of both rounds is the same."""
        tagged = self._tag(other, question, candidate)
        if tagged is not None:
            return tagged
        own = self.responses.get(question, {}).get(candidate)
        return own is not None and own == other.responses.get(question, {}).get(candidate)

    def _tag(self, other: Versions, question: str, candidate: str) -> bool | None:
        return self.tags.get((question, candidate), other.tags.get((question, candidate)))
