"""What conversations take of a model at most, by arithmetic alone: calls, and tokens in and out.

What never belongs here: what one system's conversations take (its own folder), and prices.
"""

from __future__ import annotations

from dataclasses import dataclass

CHARACTERS_PER_TOKEN = 4


@dataclass(slots=True)
class Use:
    """Calls, and tokens in and out; ``a + b`` and ``a * n`` add up and repeat."""

    calls: float = 0.0
    prompt: float = 0.0
    completion: float = 0.0

    def __add__(self, other: Use) -> Use:
        return Use(self.calls + other.calls, self.prompt + other.prompt, self.completion + other.completion)

    def __mul__(self, times: float) -> Use:
        return Use(self.calls * times, self.prompt * times, self.completion * times)


def tokens_in(text: str) -> float:
    """About how many tokens a text has."""
    return len(text) / CHARACTERS_PER_TOKEN
