"""Queueing model of an endpoint under the virtual clock: its limits, and calls that share a processor."""

from __future__ import annotations

import asyncio
import heapq
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import urlencode, urlsplit

from viva.engine.adaptive_limit import FIRST_WINDOW, AdaptiveLimit
from viva.engine.backends.base import ModelSpec
from viva.engine.clock import Clock
from viva.engine.errors import ConfigurationError
from viva.engine.limits import Limits, Rate

BOUNDS = ("concurrency", "rpm", "rps", "tpm")
_REMOTE = ("openai", "anthropic", "gemini")
_FULL_SHARE = 0.9  # share of the permitted tokens per minute from which these are the bottleneck


@dataclass(slots=True)
class Tally:
    """Totals of one model; `waits` has, by its bound, the seconds during which at least one call waited."""

    calls: int = 0
    prompt: float = 0.0
    completion: float = 0.0
    peak: int = 0
    cached: float = 0.0
    waits: dict[str, float] = field(default_factory=dict)


class Processor:
    """Processor on which calls slow each other down.

    With `k` concurrent calls, each runs at 1 / (1 + c (k - 1)) of full speed. `slowed` is the time during which calls
    were running, weighted by their loss of speed.
    """

    def __init__(self, clock: Clock, slowing: float) -> None:
        self._clock, self._slowing = clock, slowing
        self._ends: list[tuple[float, int, asyncio.Future[None]]] = []
        self._done = 0.0  # seconds of work that a call would have received since the beginning
        self._seen = clock.now()
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None
        self.slowed = 0.0

    async def work(self, seconds: float) -> None:
        """Wait until a call that needs `seconds` of exclusive time has finished."""
        if not self._slowing:
            await asyncio.sleep(seconds)
            return
        self._advance()
        self._number += 1
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._ends, (self._done + seconds, self._number, end))
        self._set_timer()
        await end

    def _factor(self) -> float:
        return 1.0 + self._slowing * max(0, len(self._ends) - 1)

    def _advance(self) -> None:
        now = self._clock.now()
        if self._ends:
            factor = self._factor()
            self._done += (now - self._seen) / factor
            self.slowed += (now - self._seen) * (1.0 - 1.0 / factor)
        self._seen = now

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._ends:
            wait = max(0.0, self._ends[0][0] - self._done) * self._factor()
            self._timer = asyncio.get_running_loop().call_later(wait, self._due)

    def _due(self) -> None:
        self._advance()
        # The timer was set for the first call, so this call is done, whatever rounding says.
        first = self._ends[0][0]
        while self._ends and self._ends[0][0] <= max(first, self._done) + 1e-9:
            heapq.heappop(self._ends)[2].set_result(None)
        self._set_timer()


class Station:
    """Stand-in for one model. `tally` is complete after `close`."""

    def __init__(self, model: str, clock: Clock, processor: Processor) -> None:
        self.tally = Tally()
        self._clock, self._processor = clock, processor
        self._limits, self._bounds = _limits_of(ModelSpec.parse(model), clock)
        self._in_flight = self._waiting = 0
        self._seen = clock.now()

    async def answer(self, seconds: float, prompt: float, completion: float, cached: float = 0.0) -> None:
        """Process one request, from the wait for a permit to the end of the answer."""
        tokens = round(prompt + completion)
        self._look()
        self._waiting += 1
        try:
            async with self._limits.permit(tokens) as permit:
                self._look()
                self._waiting -= 1
                self._in_flight += 1
                self.tally.peak = max(self.tally.peak, self._in_flight)
                await self._processor.work(seconds)
                self._look()
                self._in_flight -= 1
                permit.succeeded()
                permit.record_usage(tokens)
        finally:
            self.tally.calls += 1
            self.tally.prompt += prompt
            self.tally.completion += completion
            self.tally.cached += cached

    def close(self) -> None:
        """Account for the time up to now."""
        self._look()

    def _look(self) -> None:
        """Add the time since the last look to the bound for which calls waited, if they waited for one."""
        now = self._clock.now()
        if self._waiting and now > self._seen:
            name = self._binding()
            self.tally.waits[name] = self.tally.waits.get(name, 0.0) + now - self._seen
        self._seen = now

    def _binding(self) -> str:
        bounds = self._bounds
        if self._in_flight >= bounds.get("concurrency", self._in_flight + 1):
            return "concurrency"
        rate = next((name for name in ("rpm", "rps") if name in bounds), None)
        if "tpm" in bounds and (
            rate is None or self._limits.statistics()["tokens_in_window"] >= _FULL_SHARE * bounds["tpm"]
        ):
            return "tpm"
        return rate or "slow start"


def _limits_of(spec: ModelSpec, clock: Clock) -> tuple[Limits, dict[str, int]]:
    """Return the limits of a run's model, as in `engine.backends.registry.build`, and the value of each."""
    bounds = {name: bound for name in BOUNDS if (bound := spec.whole(name)) is not None}
    rate = Rate(bounds["rpm"]) if "rpm" in bounds else Rate(bounds["rps"], 1.0) if "rps" in bounds else None
    adaptive = None
    if spec.kind in _REMOTE and spec.take("adaptive") != "off" and not _is_loopback(spec.where):
        adaptive = AdaptiveLimit(clock.now(), None if "concurrency" in bounds else FIRST_WINDOW)
    limits = Limits(
        clock,
        concurrency=bounds.get("concurrency"),
        requests=rate,
        tokens=Rate(bounds["tpm"]) if "tpm" in bounds else None,
        adaptive=adaptive,
    )
    return limits, bounds


def _is_loopback(address: str) -> bool:
    host = urlsplit(address).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def bounds_of(model: str) -> dict[str, int]:
    """Return the bounds that a model's name gives: concurrency, rpm, rps, tpm."""
    spec = ModelSpec.parse(model)
    return {name: bound for name in BOUNDS if (bound := spec.whole(name)) is not None}


def with_bounds(model: str, bounds: dict[str, int]) -> str:
    """Return the model's name with these bounds added or replaced."""
    spec = ModelSpec.parse(model)
    rates = {"rpm": "rps", "rps": "rpm"}  # a name has only one of rpm and rps
    replaced = {rates[name] for name in bounds if name in rates}
    options = {name: value for name, value in spec.options.items() if name not in replaced}
    options |= {name: str(value) for name, value in bounds.items()}
    head = model.removesuffix("?" + model.partition("?")[2]) if "?" in model else model
    return f"{head}?{urlencode(options)}" if options else head


def parse_limits(arguments: list[str], models: list[str]) -> dict[str, dict[str, int]]:
    """Parse the values of `--limit MODEL=bound:number,…` by model name; MODEL is a label or a full name.

    Raises:
        ConfigurationError: There is no such model or bound.
    """
    limits: dict[str, dict[str, int]] = {}
    for text in arguments:
        name, equals, bounds_text = text.rpartition("=")
        chosen = [model for model in models if name in (model, ModelSpec.parse(model).label)]
        if not equals or not chosen:
            labels = ", ".join(ModelSpec.parse(model).label for model in models)
            raise ConfigurationError(f"--limit {text}: expected MODEL=BOUND:NUMBER,… with one of the models {labels}")
        bounds = {}
        for part in bounds_text.split(","):
            bound, _, number = part.partition(":")
            if bound not in BOUNDS or not number.isdecimal() or int(number) < 1:
                raise ConfigurationError(
                    f"--limit {text}: found {part!r}, expected one of {', '.join(BOUNDS)} with a whole number above 0, "
                    "such as rpm:500"
                )
            bounds[bound] = int(number)
        for model in chosen:
            limits[model] = limits.get(model, {}) | bounds
    return limits
