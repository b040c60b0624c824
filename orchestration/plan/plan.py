"""A sweep planned before it is paid for: how long it takes, with how many tokens, for how much, and what holds it up.

Conversations to come are taken to be like those that have been held: in the sweep's folder (by a pilot, or by the sweep
itself), in earlier runs, or, where there are none, by guesses that are named as such. They are led through several
simulated sweeps, each from another resample of them. Of guesses the sweep is simulated with the least and with the most
of what is guessed as well, and that is the range. What never belongs here: words and tables (``told``).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from viva.engine.backends.endpoint_name import without_keys
from viva.engine.errors import ConfigurationError
from viva.engine.folder import RunFolder
from viva.scenarios.contract import many_role
from viva.scenarios.forecast import Use
from viva.scenarios.registry import scenario
from viva.scoring.intervals import Estimate

from ..sweep.cells import Cell, groups
from ..sweep.file import read_file
from ..sweep.forecast import Forecast
from ..sweep.loaded_models import weights_of
from ..sweep.order import ordered
from ..sweep.progress import CellRun
from ..sweep.results import cells_of
from ..sweep.sweep import Sweep, planned_sweep
from .disk import GUESSED_BYTES, GUESSED_PER_TOKEN, bytes_per_call
from .guesses import Guess, guessed_talks
from .pilot import FEWEST
from .prices import Price, check_all_priced, price_of
from .simulation import Course, PlannedCell, PlannedUnit, World, simulated
from .slowing import ONE_PROCESSOR
from .stations import bounds_of, parsed_limits, with_bounds
from .summary import extended, model_error, predicted
from .talks import NEAR, PROCESSOR, Kin, Talk, heard

_MOST_CALLS = 6_000  # in one simulation; of longer sweeps the beginning is simulated, and the rest follows from it
_ROUNDS = 4  # of all slots at least are filled in it
_ENDS = 3  # simulations of the least and of the most that is guessed
GUESSED = "guessed"


@dataclass(slots=True, frozen=True)
class Source:
    """Where a cell's talks come from: how many there are, and in words which."""

    talks: int
    words: str


@dataclass(slots=True, frozen=True)
class Outlook:
    """What a sweep is expected to take; intervals are those of ``summary.predicted``, and reach from the least to the
    most that is guessed where a cell rests on guesses. ``cost`` is None where a model has no price.
    """

    seconds: Estimate
    tokens: Estimate
    cost: Estimate | None
    courses: list[Course]


class Plan:
    """What is left of a sweep, planned. ``earlier``: folders of runs or sweeps to learn from; ``limits``: bounds that
    models are to have, as ``--limit`` has them; ``simulations``: of how many simulated sweeps figures are made.

    :raises ConfigurationError: the file, a folder or a limit is wrong; there is a ``budget``, and a model has no price.
    """

    def __init__(
        self,
        file: Path,
        out: Path | None = None,
        *,
        earlier: Sequence[Path] = (),
        limits: Sequence[str] = (),
        budget: float | None = None,
        concurrency: int | None = None,
        simulations: int = 20,
        seed: int = 0,
    ) -> None:
        self.file, _ = read_file(file)
        self.sweep = planned_sweep(file, out)
        self.models = list(dict.fromkeys(model for run in self.sweep.runs for model in run.cell.models))
        self.prices: dict[str, Price | None] = {model: price_of(model) for model in self.models}
        check_all_priced(budget, self.models)
        self.budget, self.simulations, self._seed = budget, simulations, seed
        self.forecast = _Each(self.sweep)
        runs = [[*_own_runs(self.sweep)], *(_earlier_runs(path) for path in earlier)]
        self.heard = [heard(some) for some in runs]
        self.bytes_per_call = bytes_per_call(folder.journal for some in runs for folder, _, _ in some)
        self.sources: dict[str, Source] = {}
        self.cells = {run.cell.name: self._cell(run.cell) for run in self.sweep.runs if self._left(run.cell)}
        renamed = {model: with_bounds(model, bounds) for model, bounds in parsed_limits([*limits], self.models).items()}
        slowing = {PROCESSOR: ONE_PROCESSOR}
        for one in reversed(self.heard):
            slowing |= one.slowing
        self.world = World(concurrency or self.file.concurrency, self.file.local_models, slowing, renamed)
        self.outlook = self._with_guesses(self.expected(self.world, self.simulations))

    @property
    def guessed(self) -> bool:
        """Whether a cell rests on guesses: then no share of sweeps is promised to be within an interval."""
        return any(source.words == GUESSED for source in self.sources.values())

    def _with_guesses(self, outlook: Outlook) -> Outlook:
        """Return an outlook whose intervals reach from the least to the most that is guessed."""
        if not self.guessed:
            return outlook
        found, cells = [outlook], self.cells
        for guess in ("least", "most"):
            self.cells = {name: self._guessed(cell, guess) for name, cell in cells.items()}
            found.append(self.expected(self.world, min(_ENDS, self.simulations)))
        self.cells = cells
        costs = [one.cost for one in found if one.cost is not None]
        return replace(
            outlook,
            seconds=_spanned([one.seconds for one in found]),
            tokens=_spanned([one.tokens for one in found]),
            cost=_spanned(costs) if len(costs) == len(found) else None,
        )

    def _guessed(self, cell: PlannedCell, guess: Guess) -> PlannedCell:
        if self.sources[cell.name].words != GUESSED:
            return cell
        return replace(cell, talks=guessed_talks(self.forecast.each[cell.name], guess))

    @property
    def journal_bytes(self) -> float:
        """What the journals of the conversations to come will hold on disk."""
        courses = self.outlook.courses
        calls = sum(tally.calls for course in courses for tally in course.models.values()) / max(1, len(courses))
        if self.bytes_per_call is not None:
            return calls * self.bytes_per_call
        said = sum(tally.completion for course in courses for tally in course.models.values()) / max(1, len(courses))
        return calls * GUESSED_BYTES + said * GUESSED_PER_TOKEN

    @property
    def rounds(self) -> float:
        """Conversations that were held with local models, for each of their calls in flight at most."""
        return max((one.rounds.get(PROCESSOR, 0.0) for one in self.heard), default=0.0)

    @property
    def conversations(self) -> int:
        """Those to come."""
        return sum(cell.left for cell in self.cells.values())

    def expected(
        self, world: World, simulations: int, left: Mapping[str, int] | None = None, price: float = 1.0
    ) -> Outlook:
        """What the sweep takes in this world. ``left``: conversations to come by cell, where there are to be others;
        ``price``: a factor to all prices.
        """
        numbers = {name: cell.left for name, cell in self.cells.items()} | dict(left or {})
        share = self._share(numbers, world)
        courses = []
        for number in range(simulations):
            drawn = self._resampled(self._seed + number)
            parts = [_scaled(drawn, numbers, part) for part in ((share / 2, share) if share < 1.0 else (1.0,))]
            found = [simulated(self._units(part), world, self._seed + number) for part in parts]
            courses.append(extended(found[0], found[-1], share))
        sample = min((source.talks for source in self.sources.values()), default=0)
        own = model_error(courses, world.slowing.get(PROCESSOR, 0.0), self.rounds)
        costs = [self._cost(course, price) for course in courses]
        known = [cost for cost in costs if cost is not None]
        return Outlook(
            predicted([course.seconds for course in courses], sample, own),
            predicted([_tokens(course) for course in courses], sample),
            predicted(known, sample) if len(known) == len(costs) else None,
            courses,
        )

    def widened(self, model: str, bound: str, times: float) -> World:
        """The world in which a bound of a model is so many times as wide."""
        name = self.world.renamed.get(model, model)
        wider = max(1, math.ceil(bounds_of(name)[bound] * times))
        return replace(self.world, renamed={**self.world.renamed, model: with_bounds(name, {bound: wider})})

    def _left(self, cell: Cell) -> int:
        return self.forecast.left.get(cell.name, 0)

    def _cell(self, cell: Cell) -> PlannedCell:
        kin = _kin(cell)
        found: list[Talk] = []
        for rank in range(len(kin.ladder())):
            for place, one in enumerate(self.heard):
                talks = one.talks.get(kin.ladder()[rank], [])
                if len(talks) >= FEWEST and not found:
                    found = talks
                    where = "this sweep" if place == 0 else "an earlier run"
                    self.sources[cell.name] = Source(len(talks), f"{where}, {NEAR[rank]}")
        if not found:
            found = guessed_talks(self.forecast.each[cell.name])
            self.sources[cell.name] = Source(0, GUESSED)
        return PlannedCell(cell.name, cell.roles, self._left(cell), found)

    def _share(self, numbers: Mapping[str, int], world: World) -> float:
        """The share of the conversations that a simulation has."""
        total = sum(numbers.values())
        calls = sum(
            number * sum(sum(step.requests for step in talk.steps) for talk in self.cells[name].talks)
            / len(self.cells[name].talks)
            for name, number in numbers.items()
        )  # fmt: skip
        if not calls:
            return 1.0
        return min(1.0, max(_MOST_CALLS / calls, _ROUNDS * world.slots / total))

    def _resampled(self, seed: int) -> dict[str, PlannedCell]:
        """The cells, each with as many talks as it has, drawn from them with repeats; cells of the same talks alike."""
        draw = random.Random(f"talks {seed}")
        drawn: dict[int, list[Talk]] = {}
        for cell in self.cells.values():
            if id(cell.talks) not in drawn:
                drawn[id(cell.talks)] = draw.choices(cell.talks, k=len(cell.talks))
        return {name: replace(cell, talks=drawn[id(cell.talks)]) for name, cell in self.cells.items()}

    def _units(self, cells: Mapping[str, PlannedCell]) -> list[PlannedUnit]:
        until = self.file.until
        units = []
        for group in groups(self.sweep.recorded.cells, until is not None and until.decided):
            planned = tuple(cells[cell.name] for cell in group if cell.name in cells and cells[cell.name].left)
            if planned:
                models = {model for cell in group if cell.name in cells for model in cell.models}
                units.append(PlannedUnit(planned, weights_of(models)))
        return [units[place] for place in ordered([unit.weights for unit in units])]

    def _cost(self, course: Course, factor: float) -> float | None:
        total = 0.0
        for model, tally in course.models.items():
            price = self.prices[model]
            if price is None:
                return None
            total += factor * price.of(tally.prompt, tally.completion, tally.cached)
        return total


class _Each(Forecast):
    """A forecast that keeps, for each cell, how many conversations are to come, and what one takes of each role."""

    def __init__(self, sweep: Sweep) -> None:
        self.left: dict[str, int] = {}
        self.each: dict[str, dict[str, Use]] = {}
        super().__init__(sweep)

    def _reads_one(self, model: str) -> bool:
        with without_keys():  # a plan asks no endpoint
            return super()._reads_one(model)

    def _count(self, run: CellRun, by_kin: dict[str, dict[str, Use]]) -> None:
        before, used = self.conversations, self.models
        self.models = {}
        super()._count(run, by_kin)
        left = self.conversations - before
        self.left[run.cell.name] = left
        # What roles of one model take together is shared among them evenly.
        models = list(run.cell.roles.values())
        self.each[run.cell.name] = {
            role: self.models.get(model, Use()) * (1.0 / max(1, left) / models.count(model))
            for role, model in run.cell.roles.items()
        }
        for model, use in self.models.items():
            used[model] = used.get(model, Use()) + use
        self.models = used


def _spanned(estimates: Sequence[Estimate]) -> Estimate:
    """Return the first estimate with the ends of all."""
    return Estimate(estimates[0].value, min(one.low for one in estimates), max(one.high for one in estimates))


def _tokens(course: Course) -> float:
    return sum(one.prompt + one.completion for one in course.models.values())


def _kin(cell: Cell) -> Kin:
    many = many_role(scenario(cell.scenario).roles).name
    return Kin(cell.scenario, cell.dataset, cell.model, _company({**cell.roles, many: ""}))


def _company(models: Mapping[str, str]) -> str:
    return " ".join(f"{role}={model}" for role, model in sorted(models.items()) if model)


def _own_runs(sweep: Sweep) -> Iterable[tuple[RunFolder, Kin, Mapping[str, str]]]:
    for run in sweep.runs:
        folder = sweep.out / run.cell.name
        if run.done and run.state != "failed" and (folder / "manifest.json").exists():
            yield RunFolder.open(folder), _kin(run.cell), run.cell.roles


def _earlier_runs(path: Path) -> list[tuple[RunFolder, Kin, Mapping[str, str]]]:
    """The runs in a folder of a run or of a sweep.

    :raises ConfigurationError: there is none.
    """
    found: list[tuple[RunFolder, Kin, Mapping[str, str]]] = []
    if (path / "sweep.json").exists():
        found += [_run(one.folder) for one in cells_of(path) if one.folder is not None]
    else:
        found.append(_run(RunFolder.open(path)))
    if not any(folder.begun for folder, _, _ in found):
        raise ConfigurationError(f"{path}: nothing has been recorded there to plan from; name another run")
    return found


def _run(folder: RunFolder) -> tuple[RunFolder, Kin, Mapping[str, str]]:
    manifest: dict[str, Any] = folder.manifest
    models = {role: model for role, model in manifest["models"].items() if isinstance(model, str)}
    dataset = manifest["dataset"]
    name = dataset.get("name", "") if isinstance(dataset, dict) else ""
    return folder, Kin(manifest["scenario"], str(name), "", _company(models)), models


def _scaled(cells: Mapping[str, PlannedCell], numbers: Mapping[str, int], share: float) -> dict[str, PlannedCell]:
    return {name: replace(cell, left=math.ceil(numbers[name] * share)) for name, cell in cells.items()}
