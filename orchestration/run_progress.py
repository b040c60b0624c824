"""Progress of a run from its events: counts, remaining time, and which roles it waits for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

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

if TYPE_CHECKING:
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


_LATEST = 253_402_300_799.0  # the last second of the year 9999: times come from other processes, too
Moment = Annotated[float, Field(ge=0.0, le=_LATEST)]  # wall time in seconds since 1970
_Count = Annotated[int, Field(ge=0)]


class RetryWait(BaseModel):
    """Calls that are tried again after one kind of error (`429`, `a timeout`, an error's type); `next` is the first."""

    model_config = ConfigDict(strict=True)

    after: str
    calls: _Count
    next: Moment


class EndpointWait(BaseModel):
    """A model whose endpoint asked for a pause (`until`), or that is unreachable (`since`)."""

    model_config = ConfigDict(strict=True)

    model: str
    reason: str
    until: Moment | None = None
    since: Moment | None = None


class BatchWait(BaseModel):
    """A batch of calls that a provider is computing."""

    model_config = ConfigDict(strict=True)

    model: str
    calls: _Count
    since: Moment


class RoleWait(BaseModel):
    """Calls of roles with the same models, by what they wait for.

    `in_flight` counts calls that were sent, `queued` those that wait at a limit (None: these models count neither),
    `paused` those that wait until somebody resumes the run or the model. `person`: people answer some of the calls in
    flight; `person_calls` counts these.
    """

    model_config = ConfigDict(strict=True)

    roles: list[str]
    models: list[str]
    person: bool = False
    person_calls: _Count | None = None
    in_flight: _Count | None = None
    queued: _Count | None = None
    paused: _Count = 0
    retrying: list[RetryWait] = []
    endpoints: list[EndpointWait] = []
    batches: list[BatchWait] = []


class ModelWaits:
    """Waits of models' calls, from the events of their backends; models are named by their labels.

    Runs that share models share it, because most of these events are published once.
    """

    def __init__(self) -> None:
        self.retries: list[tuple[float, str, str]] = []  # (time of the next attempt, model, error)
        self.pauses: dict[str, tuple[float, str]] = {}  # (end of the pause that the endpoint requested, reason)
        self.lost: dict[str, tuple[float, str]] = {}  # unreachable models: (start, error)
        self.batches: dict[str, dict[int, tuple[float, int]]] = {}  # by model and number: (start, calls)

    def hear(self, event: Event) -> None:
        """Handle an event of a model; others have no effect."""
        if isinstance(event, Retried):
            if len(self.retries) > 1000:
                self.drop_ended(event.at)
            self.retries.append((event.at + event.delay, event.model, event.error))
        elif isinstance(event, EndpointPaused):
            self.pauses[event.model] = (event.until, event.reason)
        elif isinstance(event, EndpointLost):
            self.lost[event.model] = (event.at, event.reason)
        elif isinstance(event, EndpointBack):
            self.lost.pop(event.model, None)
        elif isinstance(event, BatchChanged):
            batches = self.batches.setdefault(event.model, {})
            batches.pop(event.number, None)
            if event.state == "sent":
                batches[event.number] = (event.at, event.calls)

    def drop_ended(self, now: float) -> None:
        """Forget what is over at this wall time."""
        self.retries = [retry for retry in self.retries if retry[0] > now]
        self.pauses = {label: pause for label, pause in self.pauses.items() if pause[0] > now}


class WaitStatus:
    """Status of what a run waits for.

    Args:
        roles: Role names with the full names of their models.
        counters: Returns each model's counters (`BackendPool.statistics`).
        now: Returns the wall time of the events, in seconds.
        gate: Returns the gate of the run, which holds back calls (`viva control RUN pause`); None before it begins.
        models: What the models' calls wait for; None if this object's `hear` gets their events.
    """

    def __init__(
        self,
        roles: Sequence[tuple[str, Sequence[str]]],
        counters: Callable[[], Mapping[str, Mapping[str, Any]]],
        now: Callable[[], float],
        gate: Callable[[], Gate | None] = lambda: None,
        models: ModelWaits | None = None,
    ) -> None:
        self._roles, self._counters, self._now, self._gate = roles, counters, now, gate
        self._specs = {name: ModelSpec.parse(name) for _, names in roles for name in names}
        self._labels = {name: spec.label for name, spec in self._specs.items()}
        self._models = models or ModelWaits()

    @classmethod
    def from_launch(cls, launch: Launch, models: ModelWaits | None = None) -> WaitStatus:
        """Return the status of one run."""
        roles = launch.scenario.roles_of(launch.settings)
        played = [(role.name, role.models(launch.settings)) for role in roles]
        return cls(
            played,
            lambda: launch.pool.statistics(),
            launch.clock.wall,
            lambda: None if launch.runner is None else launch.runner.services.gate,
            models,
        )

    def hear(self, event: Event) -> None:
        """Handle an event of the run."""
        self._models.hear(event)

    def paused(self) -> str:
        """Return `paused: judge unreachable since 12:03:04 (…)`, `paused: judge until 12:03:04 (…)`, or ""."""
        parts = []
        for label, (since, reason) in self._models.lost.items():
            parts.append(
                f"{self._display_name(label)} unreachable since {datetime.fromtimestamp(since):%H:%M:%S} ({reason})"
            )
        self._models.drop_ended(self._now())
        for label, (until, reason) in self._models.pauses.items():
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
        now = self._now()
        parts = []
        for wait in self.roles():
            counts = [f"{count:,} {word}" for count, word in ((wait.in_flight, "in flight"), (wait.queued, "queued"))
                      if count]  # fmt: skip
            counts += [f"{retry.calls:,} retrying after {retry.after}" for retry in wait.retrying]
            counts += [f"batch of {batch.calls:,} since {moment_text(batch.since, now)}" for batch in wait.batches]
            if counts:
                parts.append(f"{' and '.join(wait.roles)}: {', '.join(counts)}")
        return f"waiting for {'; '.join(parts)}" if parts else ""

    def roles(self) -> list[RoleWait]:
        """Return what each group of roles with the same models waits for."""
        waits, gate, counters = self._models, self._gate(), self._counters()
        waits.drop_ended(self._now())
        roles_by_models: dict[tuple[str, ...], list[str]] = {}
        for role, names in self._roles:
            roles_by_models.setdefault(tuple(sorted(set(names))), []).append(role)
        records = []
        for names, roles in roles_by_models.items():
            labels = list(dict.fromkeys(self._labels[name] for name in names))
            counted = [counters[name] for name in names if name in counters]
            in_flight, queued = (_sum_counts(counted, key) for key in ("in_flight", "waiting"))
            people = [name for name in names if self._specs[name].kind == "human"]
            endpoints = [EndpointWait(model=label, since=since, reason=reason)
                         for label in labels if label in waits.lost
                         for since, reason in [waits.lost[label]]]  # fmt: skip
            endpoints += [EndpointWait(model=label, until=min(until, _LATEST), reason=reason)
                          for label in labels if label in waits.pauses
                          for until, reason in [waits.pauses[label]]]  # fmt: skip
            records.append(
                RoleWait(
                    roles=roles,
                    models=labels,
                    person=bool(people),
                    person_calls=_sum_counts([counters[name] for name in people if name in counters], "in_flight"),
                    in_flight=in_flight,
                    queued=queued,
                    paused=0 if gate is None else sum(gate.waiting(label) for label in labels),
                    retrying=_retries(waits.retries, labels),
                    endpoints=endpoints,
                    batches=[
                        BatchWait(model=label, calls=calls, since=since)
                        for label in labels
                        for since, calls in waits.batches.get(label, {}).values()
                    ],
                )
            )
        return records


def _sum_counts(counters: Iterable[Mapping[str, Any]], key: str) -> int | None:
    counts = [int(count) for each in counters if (count := each.get(key)) is not None]
    return sum(counts) if counts else None


def _retries(retries: Iterable[tuple[float, str, str]], labels: Sequence[str]) -> list[RetryWait]:
    """Group the waiting attempts of these models by their error."""
    by_cause: dict[str, list[float]] = {}
    for at, model, error in retries:
        if model in labels:
            by_cause.setdefault(_CAUSES.get(error, error), []).append(min(at, _LATEST))
    return [RetryWait(after=cause, calls=len(times), next=min(times)) for cause, times in by_cause.items()]


def moment_text(moment: float, now: float) -> str:
    """Return a wall time as `12:03:04`, with the date if it is on another day than `now`."""
    at, today = datetime.fromtimestamp(moment), datetime.fromtimestamp(now)
    return f"{at:{'%H:%M:%S' if at.date() == today.date() else '%Y-%m-%d %H:%M'}}"


@dataclass(frozen=True, slots=True)
class Remaining:
    """Estimated seconds until a run ends, with a 95% interval (`low`, `high`)."""

    seconds: float
    low: float
    high: float


_FEWEST_ENDED, _FEWEST_WINDOWS = 10, 4  # conversations, windows: below, lengths and pace are too uncertain


def estimate_remaining(
    ended: Mapping[int, int], open_calls: Sequence[int], unstarted: int, windows: Sequence[int], window_seconds: float
) -> Remaining | None:
    """Estimate when a run ends, if its recent pace holds; None if it is too early to tell, or nothing is left to begin.

    The distribution of a conversation's length in calls is the Kaplan-Meier estimate from ended conversations and, as
    censored ones, open ones: those that have ended are shorter than the rest. m and s² are its mean and variance, n
    the number of ended conversations, u that of those not begun, c that of the open ones. The last slot makes

        path = (u m + Σ residuals of the open ones) / c + (E[longest of c residuals] − E[residual])

    calls; the second part is the time in which the last conversations run side by side. A slot makes r/c calls a
    second, with r from k windows of w seconds whose rates have the standard deviation d. So T = path c/r, and

        v = (u s² + u² s²/n + Σ variances of the residuals)/c² + Var[longest residual]
        cv² = v/path² + (d/r)² (1/k + min(1, w/T))

    where 1/k is for the pace so far and w/T for the pace to come. The interval is T exp(± t cv), with Student's t for
    min(n, k) − 1 degrees of freedom. In simulated runs with a steady pace it covers the real end about 9 times in 10
    (`tests/orchestration/test_remaining_time.py`).

    Args:
        ended: Number of ended conversations by their calls.
        open_calls: Calls so far of each open conversation.
        unstarted: Number of conversations that have not begun.
        windows: Calls in recent windows of equal length.
        window_seconds: Length of a window.
    """
    import numpy as np
    from scipy.special import stdtrit

    count, k, c = sum(ended.values()), len(windows), len(open_calls)
    if count < _FEWEST_ENDED or k < _FEWEST_WINDOWS or not sum(windows) or not unstarted or not c:
        return None
    longest = max(*ended, *open_calls)
    calls = np.arange(longest + 1)
    ends = np.zeros(longest + 1)
    ends[list(ended)] = list(ended.values())
    begun = ends + np.bincount(open_calls, minlength=longest + 1)
    at_risk = np.maximum(np.cumsum(begun[::-1])[::-1], 1.0)
    survival = np.cumprod(1.0 - ends / at_risk)  # the probability of more calls
    survival[-1] = 0.0  # none is longer than the longest so far
    mean = survival.sum()
    square = ((2 * calls + 1) * survival).sum()
    variance = max(0.0, square - mean * mean)
    if mean <= 0.0:
        return None
    # Sums over more than a calls give the residual length of a conversation that has made a calls.
    first = np.cumsum(survival[::-1])[::-1]
    second = np.cumsum(((2 * calls + 1) * survival)[::-1])[::-1]
    at = np.asarray(open_calls)
    alive = survival[at] > 0.0
    safe = np.where(alive, survival[at], 1.0)
    residual = np.where(alive, first[at] / safe, 1.0)
    residual_variance = np.where(alive, (second[at] - 2 * at * first[at]) / safe - residual**2, 1.0)
    beyond = 1.0 - np.concatenate([[0.0], (np.cumsum(survival) / mean) ** c])[:-1]
    last = beyond.sum()
    last_variance = max(0.0, ((2 * calls + 1) * beyond).sum() - last * last)
    path = (unstarted * mean + residual.sum()) / c + max(0.0, last - square / (2 * mean))
    spread = unstarted * variance * (1 + unstarted / count) + np.maximum(residual_variance, 0.0).sum()
    rates = np.asarray(windows) / window_seconds
    pace = rates.mean()
    seconds = float(path * c / pace)
    relative = (spread / c**2 + last_variance) / path**2
    relative += (rates.std(ddof=1) / pace) ** 2 * (1 / k + min(1.0, window_seconds / seconds))
    factor = math.exp(min(50.0, float(stdtrit(min(count, k) - 1, 0.975)) * math.sqrt(relative)))
    return Remaining(seconds, seconds / factor, seconds * factor)
