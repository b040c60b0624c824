"""What a role used in a conversation: calls, tokens, and how many of its answers were irregular.

Counted alike for calls to a model and for calls answered from the journal, so a resumed run reports the same figures.
"""

from __future__ import annotations

from collections.abc import Mapping

from .messages import Completion

_NONE: Mapping[str, int] = {}
WATCHED = "watch:"  # begins the finish reason of an answer that a detector ended


class RoleUsage:
    """What one role used in one conversation: calls and tokens, counted alike whether called or replayed.
    ``cached_tokens`` are those of the prompts that came from the endpoint's cache.

    ``irregular`` counts its answers that were cut at the token limit (``cut``), had no words (``empty``), were thought
    about (``thoughts``), or ended for another reason than that all was said (that reason).
    """

    __slots__ = ("cached_tokens", "calls", "completion_tokens", "irregular", "prompt_tokens")

    def __init__(self) -> None:
        self.calls = self.prompt_tokens = self.completion_tokens = self.cached_tokens = 0
        self.irregular: Mapping[str, int] = _NONE

    def add(self, completion: Completion) -> None:
        """Count an answer's tokens and what is irregular about it; the call itself was counted when it began."""
        self.prompt_tokens += completion.prompt_tokens
        self.completion_tokens += completion.completion_tokens
        if completion.cached_tokens:
            self.cached_tokens += completion.cached_tokens
        if completion.finish != "stop" or completion.thoughts or not completion.text or completion.text.isspace():
            self._count_irregularities(completion)

    def _count_irregularities(self, completion: Completion) -> None:
        if completion.finish != "stop" and not completion.finish.startswith(WATCHED):
            self._count("cut" if completion.finish == "length" else completion.finish)
        if completion.thoughts:
            self._count("thoughts")
        if not (completion.calls or completion.likelihoods or completion.text.strip()):
            self._count("empty")

    def _count(self, kind: str) -> None:
        self.irregular = {**self.irregular, kind: self.irregular.get(kind, 0) + 1}

    def to_record(self) -> list[int]:
        """Return ``[calls, prompt tokens, completion tokens]``, with the cached tokens behind them if there are any."""
        record = [self.calls, self.prompt_tokens, self.completion_tokens]
        return [*record, self.cached_tokens] if self.cached_tokens else record
