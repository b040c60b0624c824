"""Simulation of a sweep from traces under the virtual clock; predictions and bottlenecks from several simulations.

Cells begin, take slots and wait for local models as in a real sweep (module `sweep`).
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

from viva.engine.clock import VirtualClock
from viva.scoring.intervals import Estimate, normal_quantile, student_half

from .queueing import Processor, Station, Tally
from .traces import PROCESSOR, Trace, TraceStep, processor_of

_MOST_OPEN = 64  # cells running at once, as in a sweep


@dataclass(slots=True, frozen=True)
class PlannedCell:
    """Remaining conversations of a cell: `remaining` of them, each like one of `traces`; `models` by role."""

    name: str
    models: Mapping[str, str]
    remaining: int
    traces: Sequence[Trace]


@dataclass(slots=True, frozen=True)
class PlannedUnit:
    """Cells that begin together, and the local models' weights that they need in memory."""

    cells: tuple[PlannedCell, ...]
    weights: frozenset[str]


@dataclass(slots=True)
class SimulatedCourse:
    """Outcome of one simulated sweep.

    `full`: seconds in which all slots were taken and conversations waited for one; `slowed`: by processor, the seconds
    lost to concurrency; `peak`: maximum number of conversations in flight.
    """

    seconds: float = 0.0
    models: dict[str, Tally] = field(default_factory=dict)
    peak: int = 0
    full: float = 0.0
    slowed: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class SimulationWorld:
    """Environment of a simulated sweep: slots, local models in memory, slowdown by processor, and renamed models.

    `renamed` maps a model's name to its name with other bounds.
    """

    slots: int
    local_models: int = 1
    slowing: Mapping[str, float] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)


def simulate_sweep(units: Sequence[PlannedUnit], world: SimulationWorld, seed: int) -> SimulatedCourse:
    """Simulate one sweep; deterministic for a seed."""
    clock = VirtualClock()
    return clock.run(lambda: _SimulatedSweep(units, world, seed, clock).run())


class _SimulatedSweep:
    def __init__(self, units: Sequence[PlannedUnit], world: SimulationWorld, seed: int, clock: VirtualClock) -> None:
        self._units, self._world, self._clock = units, world, clock
        self._draw = random.Random(seed)
        self._course = SimulatedCourse()
        self._stations: dict[str, Station] = {}
        self._processors: dict[str, Processor] = {}
        self._slots_in_use = 0
        self._freed = asyncio.Event()
        self._open: dict[str, int] = {}  # conversations of running cells that have not begun
        self._in_use: dict[str, frozenset[str]] = {}
        self._loaded: set[str] = set()

    async def run(self) -> SimulatedCourse:
        shared = frozenset.intersection(*(unit.weights for unit in self._units)) if self._units else frozenset()
        async with asyncio.TaskGroup() as group:
            for unit in self._units:
                allowed = max(self._world.local_models, len(unit.weights - shared))
                while not self._has_room(unit, shared, allowed):
                    await self._change()
                for cell in unit.cells:
                    self._open[cell.name], self._in_use[cell.name] = cell.remaining, unit.weights
                await self._admit(unit, group)
        self._course.seconds = self._clock.now()
        for model, station in self._stations.items():
            station.close()
            self._course.models[model] = station.tally
        self._course.slowed = {name: processor.slowed for name, processor in self._processors.items()}
        return self._course

    def _has_room(self, unit: PlannedUnit, shared: frozenset[str], allowed: int) -> bool:
        """Return True if a unit may begin; unload unused weights to make room for it."""
        if len(self._open) >= _MOST_OPEN:
            return False
        used = frozenset[str]().union(*self._in_use.values())
        if len((self._loaded | unit.weights) - shared) > allowed:
            self._loaded &= used | shared
        if len((self._loaded | unit.weights) - shared) > allowed:
            return False
        self._loaded |= unit.weights
        return True

    async def _admit(self, unit: PlannedUnit, group: asyncio.TaskGroup) -> None:
        """Start all conversations of a unit; its cells take turns."""
        remaining = {cell.name: cell.remaining for cell in unit.cells}
        while any(remaining.values()):
            for cell in unit.cells:
                if remaining[cell.name]:
                    remaining[cell.name] -= 1
                    while self._slots_in_use >= self._world.slots:
                        began = self._clock.now()
                        await self._change()
                        self._course.full += self._clock.now() - began
                    self._slots_in_use += 1
                    self._course.peak = max(self._course.peak, self._slots_in_use)
                    group.create_task(self._run_conversation(cell, self._draw.choice(cell.traces)))

    async def _change(self) -> None:
        self._freed.clear()
        await self._freed.wait()

    async def _run_conversation(self, cell: PlannedCell, trace: Trace) -> None:
        steps = trace.steps
        followers: dict[int, list[int]] = defaultdict(list)
        for index, step in enumerate(steps):
            followers[step.after].append(index)

        async def run_from(index: int) -> None:
            # A chain of steps runs in one task; a step with several followers starts further tasks.
            while True:
                await self._step(cell, steps[index])
                following = followers.get(index, [])
                if not following:
                    return
                if len(following) > 1:
                    await asyncio.gather(*(run_from(follower) for follower in following))
                    return
                index = following[0]

        first = followers[-1]
        await (run_from(first[0]) if len(first) == 1 else asyncio.gather(*(run_from(follower) for follower in first)))
        self._slots_in_use -= 1
        self._open[cell.name] -= 1
        if not self._open[cell.name]:
            del self._open[cell.name], self._in_use[cell.name]
        self._freed.set()

    async def _step(self, cell: PlannedCell, step: TraceStep) -> None:
        model = None if step.role is None else cell.models.get(step.role)
        if model is None:
            await asyncio.sleep(step.seconds)
            return
        if step.before:
            await asyncio.sleep(step.before)
        station = self._station(model)
        if step.requests == 1:
            await station.answer(step.seconds, step.prompt, step.completion, step.cached)
            return
        fraction = 1.0 / step.requests
        request = step.seconds, step.prompt * fraction, step.completion * fraction, step.cached * fraction
        await asyncio.gather(*(station.answer(*request) for _ in range(step.requests)))

    def _station(self, model: str) -> Station:
        if model not in self._stations:
            processor = processor_of(model)
            if processor not in self._processors:
                self._processors[processor] = Processor(self._clock, self._world.slowing.get(processor, 0.0))
            name = self._world.renamed.get(model, model)
            self._stations[model] = Station(name, self._clock, self._processors[processor])
        return self._stations[model]


LEVEL = 0.9
# Measured relative errors of durations that are due to the model, not to the draw (docs/sweeps.md): over HTTP, and for
# calls that this machine computes. The second error falls with the recorded rounds of slots, because a pilot's first
# and last conversations run under less load than those of a long sweep, and some models slow down more than
# proportionally. The remaining error is that the machine's own speed varies.
_MODEL_ERROR = 0.03
_MOST_LOCAL_ERROR, _FIRST_ROUND_ERROR, _LEAST_LOCAL_ERROR = 0.25, 0.3, 0.06
_NOTABLE_SHARE = 0.05  # minimum share of the time for which a reported bound delays calls
_EXPLAINED_SHARE = 0.5  # share of the time with full slots from which a model's bound explains why they are full


@dataclass(slots=True, frozen=True)
class Bottleneck:
    """Bound of a model (or of the sweep, if `model` is None) that delays calls for a `fraction` of the time."""

    model: str | None
    bound: str
    fraction: float


def predict(values: Sequence[float], sample: int, model_error: float = 0.0) -> Estimate:
    """Return the mean of simulated figures and a prediction interval at `LEVEL`.

    Simulations differ by their random draws and by the resampled traces (a bootstrap), so their spread is that of a
    future value; the interval is Student's for one further simulation. It is widened by sqrt(n / (n - 1)), because a
    `sample` of n traces varies less than its population. `model_error`, the relative standard deviation of the
    simulation itself, is added as an independent error. The lower end is never below 0.

    Source: Efron & Tibshirani 1993, section 5.2.
    """
    middle = fmean(values)
    if len(values) < 2 and not model_error:
        return Estimate(middle, middle, middle)
    own = normal_quantile((1.0 + LEVEL) / 2) * model_error * middle
    if len(values) < 2:
        return Estimate(middle, max(0.0, middle - own), middle + own)

    wider = math.sqrt(sample / (sample - 1)) if sample > 1 else 1.0
    quantile = student_half(1.0, len(values) - 1, LEVEL)
    half = math.hypot(quantile * float(stdev(values)) * wider * math.sqrt(1.0 + 1.0 / len(values)), own)
    return Estimate(middle, max(0.0, middle - half), middle + half)


def model_error(courses: Sequence[SimulatedCourse], slowing: float, rounds: float) -> float:
    """Return the relative standard deviation of a duration due to the model rather than the draw.

    The local error applies fully if this machine's speed is the bottleneck at least half of the time; below that, in
    proportion. `slowing` is the slowdown of local models' calls, `rounds` the recorded conversations with local
    models per parallel call.
    """
    total = sum(course.seconds for course in courses)
    if not total or not slowing:
        return 0.0 if not total else _MODEL_ERROR
    fraction = min(1.0, sum(course.slowed.get(PROCESSOR, 0.0) for course in courses) / total)
    local = min(_MOST_LOCAL_ERROR, max(_LEAST_LOCAL_ERROR, _FIRST_ROUND_ERROR / rounds if rounds else math.inf))
    return max(_MODEL_ERROR, min(1.0, 2.0 * fraction) * local)


def bottlenecks(courses: Sequence[SimulatedCourse]) -> list[Bottleneck]:
    """Return the bounds that delay calls for a notable fraction of the time; first the one that is best to widen."""
    total = sum(course.seconds for course in courses)
    if not total:
        return []
    fractions: dict[tuple[str | None, str], float] = {}
    for course in courses:
        for model, tally in course.models.items():
            for bound, seconds in tally.waits.items():
                fractions[model, bound] = fractions.get((model, bound), 0.0) + seconds / total
        for processor, seconds in course.slowed.items():
            fractions[processor, "speed"] = fractions.get((processor, "speed"), 0.0) + seconds / total
    full = sum(course.full for course in courses) / total
    result = [Bottleneck(*name, fraction) for name, fraction in fractions.items() if fraction > _NOTABLE_SHARE]
    result.sort(key=lambda bottleneck: -bottleneck.fraction)
    if full > _NOTABLE_SHARE:
        behind = bool(result) and result[0].fraction >= _EXPLAINED_SHARE * full
        result.insert(1 if behind else 0, Bottleneck(None, "concurrency", full))
    return result


def extrapolate(short: SimulatedCourse, long: SimulatedCourse, fraction: float) -> SimulatedCourse:
    """Extrapolate to a whole sweep from simulations of a `fraction` of its conversations and of half that fraction.

    Constant terms (start-up, the last conversations) are equal in both; all other terms grow linearly.
    """
    if fraction >= 1.0:
        return long
    times = 1.0 / fraction

    def grown(half: float, full: float) -> float:
        return full + max(0.0, full - half) * 2.0 * (times - 1.0)

    course = SimulatedCourse(grown(short.seconds, long.seconds), peak=long.peak)
    course.full = min(course.seconds, grown(short.full, long.full))
    for processor, seconds in long.slowed.items():
        course.slowed[processor] = grown(short.slowed.get(processor, 0.0), seconds)
    for model, tally in long.models.items():
        before = short.models.get(model, Tally())
        waits = {name: grown(before.waits.get(name, 0.0), seconds) for name, seconds in tally.waits.items()}
        course.models[model] = Tally(
            round(tally.calls * times),
            tally.prompt * times,
            tally.completion * times,
            tally.peak,
            tally.cached * times,
            waits,
        )
    return course


def bound_text(bound: str, bounds: Mapping[str, int]) -> str:
    """Return a bound as text, with its value if it has one."""
    return f"{bound}={bounds[bound]}" if bound in bounds else bound
