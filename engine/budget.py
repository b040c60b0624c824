"""Usage and budgets: what roles used, and limits on the tokens, calls, cost and seconds of a conversation or a run.

Usage is counted alike for calls to a model and for calls answered from the journal, so a resumed run reports the same
figures. Rates (requests per minute) are in `limits`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .errors import LimitReached
from .messages import Completion

_NO_COUNTS: Mapping[str, int] = {}
WATCH_PREFIX = "watch:"  # prefix of the finish reason if a detector ended the answer


class RoleUsage:
    """Calls and tokens of one role in one conversation, counted alike whether called or replayed.

    `cached_tokens` are the prompt tokens served from the endpoint's cache. `irregular` counts, by name, answers that
    were truncated at the token limit (`cut`), were empty (`empty`), contained reasoning (`thoughts`), or ended for
    another reason than `stop` or a detector (named by that reason).
    """

    __slots__ = ("cached_tokens", "calls", "completion_tokens", "irregular", "prompt_tokens")

    def __init__(self) -> None:
        self.calls = self.prompt_tokens = self.completion_tokens = self.cached_tokens = 0
        self.irregular: Mapping[str, int] = _NO_COUNTS

    def add(self, completion: Completion) -> None:
        """Count an answer's tokens and irregularities; the call itself was counted when it began."""
        self.prompt_tokens += completion.prompt_tokens
        self.completion_tokens += completion.completion_tokens
        if completion.cached_tokens:
            self.cached_tokens += completion.cached_tokens
        if completion.finish != "stop" or completion.thoughts or not completion.text or completion.text.isspace():
            self._count_irregularities(completion)

    def _count_irregularities(self, completion: Completion) -> None:
        if completion.finish != "stop" and not completion.finish.startswith(WATCH_PREFIX):
            self._count("cut" if completion.finish == "length" else completion.finish)
        if completion.thoughts:
            self._count("thoughts")
        if not (completion.calls or completion.likelihoods or completion.text.strip()):
            self._count("empty")

    def _count(self, kind: str) -> None:
        self.irregular = {**self.irregular, kind: self.irregular.get(kind, 0) + 1}

    def to_record(self) -> list[int]:
        """Return `[calls, prompt tokens, completion tokens]`, followed by the cached tokens if there are any."""
        record = [self.calls, self.prompt_tokens, self.completion_tokens]
        return [*record, self.cached_tokens] if self.cached_tokens else record


@dataclass(slots=True, frozen=True)
class Budget:
    """Upper bounds; None means unlimited. `cost` is in the unit of the models' prices, `seconds` in wall time."""

    tokens: int | None = None
    calls: int | None = None
    cost: float | None = None
    seconds: float | None = None

    @property
    def open(self) -> bool:
        """True if nothing is bounded."""
        return self.tokens is None and self.calls is None and self.cost is None and self.seconds is None


@dataclass(slots=True)
class Meter:
    """Consumption of a budget. `scope` names it in errors: `run` or `conversation`."""

    budget: Budget
    scope: str
    started: float
    tokens: int = 0
    calls: int = 0
    cost: float = 0.0
    under_way: int = 0
    bounded: bool = field(init=False)

    def __post_init__(self) -> None:
        self.bounded = not self.budget.open

    def begin(self, now: float) -> None:
        """Reserve one call, or raise `LimitReached`. `end` releases it, `add` counts the answer."""
        if self.bounded:
            self.require(now)
        self.under_way += 1

    def end(self) -> None:
        """Release a reserved call, answered or not."""
        self.under_way -= 1

    def add(self, tokens: int, cost: float) -> None:
        self.calls += 1
        self.tokens += tokens
        self.cost += cost

    def charge(self, other: Meter) -> None:
        """Add what another meter has counted; time then counts from the earlier start of the two."""
        self.calls, self.tokens, self.cost = (
            self.calls + other.calls,
            self.tokens + other.tokens,
            self.cost + other.cost,
        )
        self.started = min(self.started, other.started)

    def require(self, now: float) -> None:
        """Check that one more call may begin; raise `LimitReached`, naming the first bound that is used up.

        Calls in flight count as calls. Their tokens and cost are not known yet, so they can exceed the bounds of tokens
        and cost.
        """
        budget = self.budget
        used = {
            "tokens": self.tokens,
            "calls": self.calls + self.under_way,
            "cost": self.cost,
            "seconds": now - self.started,
        }
        for name, amount in used.items():
            allowed = getattr(budget, name)
            if allowed is not None and amount >= allowed:
                raise LimitReached(name, allowed, self.scope)
