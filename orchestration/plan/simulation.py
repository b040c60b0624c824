"""One sweep under the virtual clock: conversations are drawn from talks, and led past stand-ins of their models.

Cells begin, take slots and wait for room of local models as they do in a sweep (``orchestration.sweep.sweep``). What
never belongs here: where talks come from, and what several simulations tell together (``plan``).
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from viva.engine.clock import VirtualClock

from .stations import Processor, Station, Tally
from .talks import Step, Talk, place_of_model

_MOST_OPEN = 64  # cells, as in a sweep


@dataclass(slots=True, frozen=True)
class PlannedCell:
    """A cell's conversations to come: ``left`` of them, each like one of ``talks``; ``models`` by role."""

    name: str
    models: Mapping[str, str]
    left: int
    talks: Sequence[Talk]


@dataclass(slots=True, frozen=True)
class PlannedUnit:
    """Cells that begin together, and the weights of local models that they need in memory."""

    cells: tuple[PlannedCell, ...]
    weights: frozenset[str]


@dataclass(slots=True)
class Course:
    """What one simulated sweep took. ``full``: seconds in which all slots were taken and conversations waited for one;
    ``slowed``: by place, seconds lost to company there; ``most``: conversations in flight at most.
    """

    seconds: float = 0.0
    models: dict[str, Tally] = field(default_factory=dict)
    most: int = 0
    full: float = 0.0
    slowed: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class World:
    """What a sweep meets: the slots it has, how many local models it keeps, how places slow down, and models whose
    bounds are to be others, by their names.
    """

    slots: int
    local_models: int = 1
    slowing: Mapping[str, float] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)


def simulated(units: Sequence[PlannedUnit], world: World, seed: int) -> Course:
    """The course of one sweep; the same seed draws the same."""
    clock = VirtualClock()
    return clock.run(lambda: _Sweep(units, world, seed, clock).run())


class _Sweep:
    def __init__(self, units: Sequence[PlannedUnit], world: World, seed: int, clock: VirtualClock) -> None:
        self._units, self._world, self._clock = units, world, clock
        self._draw = random.Random(seed)
        self._course = Course()
        self._stations: dict[str, Station] = {}
        self._processors: dict[str, Processor] = {}
        self._taken = 0
        self._freed = asyncio.Event()
        self._open: dict[str, int] = {}  # conversations to come of cells under way
        self._in_use: dict[str, frozenset[str]] = {}
        self._kept: set[str] = set()

    async def run(self) -> Course:
        shared = frozenset.intersection(*(unit.weights for unit in self._units)) if self._units else frozenset()
        async with asyncio.TaskGroup() as group:
            for unit in self._units:
                allowed = max(self._world.local_models, len(unit.weights - shared))
                while not self._room(unit, shared, allowed):
                    await self._change()
                for cell in unit.cells:
                    self._open[cell.name], self._in_use[cell.name] = cell.left, unit.weights
                await self._admit(unit, group)
        self._course.seconds = self._clock.now()
        for model, station in self._stations.items():
            station.close()
            self._course.models[model] = station.tally
        self._course.slowed = {place: one.slowed for place, one in self._processors.items()}
        return self._course

    def _room(self, unit: PlannedUnit, shared: frozenset[str], allowed: int) -> bool:
        """Whether a unit may begin; weights that nobody needs now make room."""
        if len(self._open) >= _MOST_OPEN:
            return False
        used = frozenset[str]().union(*self._in_use.values())
        if len((self._kept | unit.weights) - shared) > allowed:
            self._kept &= used | shared
        if len((self._kept | unit.weights) - shared) > allowed:
            return False
        self._kept |= unit.weights
        return True

    async def _admit(self, unit: PlannedUnit, group: asyncio.TaskGroup) -> None:
        """Let all conversations of a unit begin; its cells take turns."""
        left = {cell.name: cell.left for cell in unit.cells}
        while any(left.values()):
            for cell in unit.cells:
                if left[cell.name]:
                    left[cell.name] -= 1
                    while self._taken >= self._world.slots:
                        began = self._clock.now()
                        await self._change()
                        self._course.full += self._clock.now() - began
                    self._taken += 1
                    self._course.most = max(self._course.most, self._taken)
                    group.create_task(self._hold(cell, self._draw.choice(cell.talks)))

    async def _change(self) -> None:
        self._freed.clear()
        await self._freed.wait()

    async def _hold(self, cell: PlannedCell, talk: Talk) -> None:
        steps = talk.steps
        behind: dict[int, list[int]] = defaultdict(list)
        for place, step in enumerate(steps):
            behind[step.after].append(place)

        async def from_(place: int) -> None:
            # A chain of steps is walked in one task; only where a step has several behind it, others branch off.
            while True:
                await self._step(cell, steps[place])
                following = behind.get(place, [])
                if not following:
                    return
                if len(following) > 1:
                    await asyncio.gather(*(from_(one) for one in following))
                    return
                place = following[0]

        first = behind[-1]
        await (from_(first[0]) if len(first) == 1 else asyncio.gather(*(from_(one) for one in first)))
        self._taken -= 1
        self._open[cell.name] -= 1
        if not self._open[cell.name]:
            del self._open[cell.name], self._in_use[cell.name]
        self._freed.set()

    async def _step(self, cell: PlannedCell, step: Step) -> None:
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
        share = 1.0 / step.requests
        one = step.seconds, step.prompt * share, step.completion * share, step.cached * share
        await asyncio.gather(*(station.answer(*one) for _ in range(step.requests)))

    def _station(self, model: str) -> Station:
        if model not in self._stations:
            place = place_of_model(model)
            if place not in self._processors:
                self._processors[place] = Processor(self._clock, self._world.slowing.get(place, 0.0))
            named = self._world.renamed.get(model, model)
            self._stations[model] = Station(named, self._clock, self._processors[place])
        return self._stations[model]
