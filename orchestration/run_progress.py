"""Progress of a run from its events: counts, remaining time, and which roles it waits for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from viva.engine.backends.base import ModelSpec
from viva.engine.cancellation import Gate
from viva.engine.events import (
    BatchChanged,
    CallFinished,
    ConversationFailed,
    ConversationFinished,
    ConversationInterrupted,
    ConversationReopened,
    ConversationsAdded,
    ConversationStarted,
    EndpointBack,
    EndpointLost,
    EndpointPaused,
    Event,
    Retried,
    RunStarted,
)
from viva.scenarios.contract import Aggregate
from viva.scoring.aggregates import Failures

from .launch import Launch


class RunProgress:
    """Counters of a run.

    `done`, `failed` and `in_flight` count conversations; `done` includes failed and `restored` conversations.
    `calls`, `tokens` and `cost` count this process only. `failures` counts failures by reason. `aggregate`, if given,
    receives every result; it is out of date once a conversation was reopened (`reopened`).
    """

    def __init__(self, aggregate: Aggregate | None = None) -> None:
        self.aggregate = aggregate
        self.done = self.restored = self.failed = self.in_flight = self.calls = self.tokens = 0
        self.cost = 0.0
        self.reopened = 0
        self.failures = Failures()

    def hear(self, event: Event) -> None:
        """Handle an event of the run."""
        match event:
            case CallFinished():
                if not event.replayed:
                    self.calls += 1
                    self.tokens += event.prompt_tokens + event.completion_tokens
                    self.cost += event.cost
            case ConversationStarted():
                self.in_flight += 1
            case ConversationFinished():
                self._end(event.restored)
                if self.aggregate is not None:
                    self.aggregate.add(event.conversation, event.result)
            case ConversationFailed():
                self.failed += 1
                self.failures.add(event.error)
                self._end(event.restored)
                if self.aggregate is not None:
                    self.aggregate.add_failure(event.conversation, event.error)
            case ConversationInterrupted():
                self.in_flight -= 1
            case ConversationReopened():
                self.done -= 1
                self.failed -= 1
                self.reopened += 1

    def _end(self, restored: bool) -> None:
        self.done += 1
        if restored:
            self.restored += 1
        else:
            self.in_flight -= 1


class RemainingTime:
    """Estimator of a run's remaining time. Conversations that ended before the run was resumed count, too."""

    def __init__(self) -> None:
        self._total: int | None = None
        self._done = self._ended = self._calls_of_ended = self._fresh = 0
        self._open: dict[str, int] = {}  # calls so far of running conversations

    def hear(self, event: Event) -> None:
        """Handle an event of the run."""
        match event:
            case RunStarted():
                self._total = event.total
            case CallFinished():
                self._fresh += not event.replayed
                self._open[event.conversation] = self._open.get(event.conversation, 0) + 1
            case ConversationFinished() | ConversationFailed():
                self._done += 1
                calls = self._open.pop(event.conversation, 0)
                if not event.restored:
                    self._ended += 1
                    self._calls_of_ended += calls
            case ConversationInterrupted():
                self._open.pop(event.conversation, None)
            case ConversationReopened():
                self._done -= 1
            case ConversationsAdded():
                self._total = None if self._total is None else self._total + event.count

    @property
    def fresh(self) -> int:
        """Number of calls answered by models in this process."""
        return self._fresh

    def fraction_done(self) -> float | None:
        """Return the finished fraction of the run, or None if unknown."""
        if self._total is None:
            return None
        if self._done >= self._total:
            return 1.0
        if not self._calls_of_ended:
            return self._done / self._total
        total = self._total * self._calls_of_ended / self._ended
        return max(0.0, 1 - self._calls_left() / total)

    def seconds(self, elapsed: float) -> float | None:
        """Estimate the remaining seconds from the progress made in `elapsed` seconds; None if unknown."""
        if self._total is None or self._done >= self._total or not self._calls_of_ended or not self._fresh:
            return None
        return self._calls_left() / self._fresh * elapsed

    def _calls_left(self) -> float:
        """Estimate the remaining calls; a running conversation has at least one left."""
        assert self._total is not None
        mean = self._calls_of_ended / self._ended
        open_calls = sum(max(1.0, mean - calls) for calls in self._open.values())
        return open_calls + mean * max(0, self._total - self._done - len(self._open))


_CAUSES = {"Throttled": "429", "TimedOut": "a timeout"}  # an error that is not listed is named by its type


class WaitStatus:
    """Status of what a run waits for.

    Args:
        roles: Role names with the full names of their models.
        counters: Returns each model's counters (`BackendPool.statistics`).
        now: Returns the wall time of the events, in seconds.
        gate: Returns the gate of the run, which holds back calls (`viva control RUN pause`); None before it begins.
    """

    def __init__(
        self,
        roles: Sequence[tuple[str, Sequence[str]]],
        counters: Callable[[], Mapping[str, Mapping[str, Any]]],
        now: Callable[[], float],
        gate: Callable[[], Gate | None] = lambda: None,
    ) -> None:
        self._roles, self._counters, self._now, self._gate = roles, counters, now, gate
        self._labels = {name: ModelSpec.parse(name).label for _, names in roles for name in names}
        self._pauses: list[tuple[float, str, str]] = []  # (end, model label, error)
        # By label: (end of the pause that the endpoint requested, reason).
        self._endpoint_pauses: dict[str, tuple[float, str]] = {}
        self._lost: dict[str, tuple[float, str]] = {}  # unreachable models by label: (start, error)
        self._batches: dict[str, dict[int, tuple[float, int]]] = {}  # by label and number: (start, calls)

    @classmethod
    def from_launch(cls, launch: Launch) -> WaitStatus:
        """Return the status of one run."""
        roles = launch.scenario.roles_of(launch.settings)
        played = [(role.name, role.models(launch.settings)) for role in roles]
        return cls(
            played,
            lambda: launch.pool.statistics(),
            launch.clock.wall,
            lambda: None if launch.runner is None else launch.runner.services.gate,
        )

    def hear(self, event: Event) -> None:
        """Handle an event of the run."""
        if isinstance(event, Retried):
            if len(self._pauses) > 1000:
                self._drop_ended()
            self._pauses.append((event.at + event.delay, event.model, event.error))
        elif isinstance(event, EndpointPaused):
            self._endpoint_pauses[event.model] = (event.until, event.reason)
        elif isinstance(event, EndpointLost):
            self._lost[event.model] = (event.at, event.reason)
        elif isinstance(event, EndpointBack):
            self._lost.pop(event.model, None)
        elif isinstance(event, BatchChanged):
            batches = self._batches.setdefault(event.model, {})
            batches.pop(event.number, None)
            if event.state == "sent":
                batches[event.number] = (event.at, event.calls)

    def paused(self) -> str:
        """Return `paused: judge unreachable since 12:03:04 (…)`, `paused: judge until 12:03:04 (…)`, or ""."""
        parts = []
        for label, (since, reason) in self._lost.items():
            parts.append(
                f"{self._display_name(label)} unreachable since {datetime.fromtimestamp(since):%H:%M:%S} ({reason})"
            )
        now = self._now()
        self._endpoint_pauses = {label: pause for label, pause in self._endpoint_pauses.items() if pause[0] > now}
        for label, (until, reason) in self._endpoint_pauses.items():
            parts.append(f"{self._display_name(label)} until {datetime.fromtimestamp(until):%H:%M:%S} ({reason})")
        return f"paused: {'; '.join(parts)}" if parts else ""

    def requested_pauses(self) -> list[str]:
        """Return a sentence for each pause that was requested: `model-a is paused: 2 calls wait until …`."""
        gate = self._gate()
        return [] if gate is None else gate.describe()

    def _display_name(self, label: str) -> str:
        """Return a model's display name: its roles, or its label if several models share a role."""
        roles = [role for role, names in self._roles if label in {self._labels[name] for name in names}]
        return label if len(self._labels) > len(self._roles) else " and ".join(roles) or label

    def describe(self) -> str:
        """Return `waiting for judge: 32 in flight, 3 retrying after 429`, or "".

        A batch is `batch of 500 since 12:03:04`, with the date if it was sent on another day. Roles with the same
        models are grouped.
        """
        self._drop_ended()
        counters = self._counters()
        roles_by_models: dict[tuple[str, ...], list[str]] = {}
        for role, names in self._roles:
            roles_by_models.setdefault(tuple(sorted(set(names))), []).append(role)
        parts = []
        for names, roles in roles_by_models.items():
            counts = [f"{count:,} {word}" for key, word in (("in_flight", "in flight"), ("waiting", "queued"))
                      if (count := sum(int(counters.get(name, {}).get(key) or 0) for name in names))]  # fmt: skip
            counts += self._retries({self._labels[name] for name in names})
            counts += [self._describe_batch(*batch) for name in names
                       for batch in self._batches.get(self._labels[name], {}).values()]  # fmt: skip
            if counts:
                parts.append(f"{' and '.join(roles)}: {', '.join(counts)}")
        return f"waiting for {'; '.join(parts)}" if parts else ""

    def _describe_batch(self, since: float, calls: int) -> str:
        start, now = datetime.fromtimestamp(since), datetime.fromtimestamp(self._now())
        return f"batch of {calls:,} since {start:{'%H:%M:%S' if start.date() == now.date() else '%Y-%m-%d %H:%M'}}"

    def _retries(self, labels: set[str]) -> list[str]:
        causes = [error for _, model, error in self._pauses if model in labels]
        return [
            f"{causes.count(cause):,} retrying after {_CAUSES.get(cause, cause)}" for cause in dict.fromkeys(causes)
        ]

    def _drop_ended(self) -> None:
        now = self._now()
        self._pauses = [pause for pause in self._pauses if pause[0] > now]
