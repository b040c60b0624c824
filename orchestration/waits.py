"""Which roles a run waits for when no call ends any more: calls in flight and queued, and retries with their cause.

What never belongs here: display, and doing anything about it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from viva.engine.backends.base import ModelSpec
from viva.engine.events import EndpointBack, EndpointLost, EndpointPaused, Event, Retried

from .launch import Launch

_CAUSES = {"Throttled": "429", "TimedOut": "a timeout"}  # other errors go by their type's name


class Waits:
    """``roles`` are names of roles with the models that play them, by their full names; ``counters`` gives each model's
    (``BackendPool.statistics``), ``now`` the wall time of the events, in seconds.
    """

    def __init__(
        self,
        roles: Sequence[tuple[str, Sequence[str]]],
        counters: Callable[[], Mapping[str, Mapping[str, Any]]],
        now: Callable[[], float],
    ) -> None:
        self._roles, self._counters, self._now = roles, counters, now
        self._labels = {name: ModelSpec.parse(name).label for _, names in roles for name in names}
        self._pauses: list[tuple[float, str, str]] = []  # until when, the model's label, the error
        self._held: dict[str, tuple[float, str]] = {}  # by label: until when its endpoint asked for a pause, and why
        self._lost: dict[str, tuple[float, str]] = {}  # by the label of a model that is gone: since when, and the error

    @classmethod
    def of_launch(cls, launch: Launch) -> Waits:
        """Those of one run."""
        roles = launch.scenario.roles_of(launch.settings)
        played = [(role.name, role.models(launch.settings)) for role in roles]
        return cls(played, lambda: launch.pool.statistics(), launch.clock.wall)

    def hear(self, event: Event) -> None:
        """The run's listener."""
        if isinstance(event, Retried):
            if len(self._pauses) > 1000:
                self._drop_ended()
            self._pauses.append((event.at + event.delay, event.model, event.error))
        elif isinstance(event, EndpointPaused):
            self._held[event.model] = (event.until, event.reason)
        elif isinstance(event, EndpointLost):
            self._lost[event.model] = (event.at, event.reason)
        elif isinstance(event, EndpointBack):
            self._lost.pop(event.model, None)

    def paused(self) -> str:
        """Return ``paused: judge unreachable since 12:03:04 (…)`` or ``paused: judge until 12:03:04 (…)``, or nothing
        while every model takes calls.
        """
        parts = []
        for label, (since, reason) in self._lost.items():
            parts.append(f"{self._who(label)} unreachable since {datetime.fromtimestamp(since):%H:%M:%S} ({reason})")
        now = self._now()
        self._held = {label: one for label, one in self._held.items() if one[0] > now}
        for label, (until, reason) in self._held.items():
            parts.append(f"{self._who(label)} until {datetime.fromtimestamp(until):%H:%M:%S} ({reason})")
        return f"paused: {'; '.join(parts)}" if parts else ""

    def _who(self, label: str) -> str:
        """Return what a model is called in a line: its roles, or its label where several models share a role."""
        roles = [role for role, names in self._roles if label in {self._labels[name] for name in names}]
        return label if len(self._labels) > len(self._roles) else " and ".join(roles) or label

    def describe(self) -> str:
        """``waiting for judge: 32 in flight, 3 retrying after 429``; empty where nothing is waited for.

        Roles that are played by the same models are named together.
        """
        self._drop_ended()
        counters = self._counters()
        together: dict[tuple[str, ...], list[str]] = {}
        for role, names in self._roles:
            together.setdefault(tuple(sorted(set(names))), []).append(role)
        parts = []
        for names, roles in together.items():
            counts = [f"{count:,} {word}" for key, word in (("in_flight", "in flight"), ("waiting", "queued"))
                      if (count := sum(int(counters.get(name, {}).get(key) or 0) for name in names))]  # fmt: skip
            counts += self._retries({self._labels[name] for name in names})
            if counts:
                parts.append(f"{' and '.join(roles)}: {', '.join(counts)}")
        return f"waiting for {'; '.join(parts)}" if parts else ""

    def _retries(self, labels: set[str]) -> list[str]:
        causes = [error for _, model, error in self._pauses if model in labels]
        return [f"{causes.count(one):,} retrying after {_CAUSES.get(one, one)}" for one in dict.fromkeys(causes)]

    def _drop_ended(self) -> None:
        now = self._now()
        self._pauses = [pause for pause in self._pauses if pause[0] > now]
