"""Plan of a sweep before it is paid for: duration, tokens, cost and disk space, with intervals.

Future conversations are assumed to resemble recorded ones from the sweep's folder (of a pilot or the sweep itself) or
from earlier runs. If there are none, they are guessed, and labelled as guesses. Several sweeps are simulated, each from
another resample; guesses are also simulated at their lower and upper ends.
"""

from __future__ import annotations

import math
import random
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from viva.engine.backends.endpoint_address import without_keys
from viva.engine.errors import ConfigurationError
from viva.engine.run_folder import RunFolder
from viva.scenarios.contract import UsageForecast, compared_role
from viva.scenarios.registry import get_scenario
from viva.scoring.intervals import Estimate

from .cells import Cell, group_cells
from .forecast import Forecast
from .local_models import order_by_weights, weights_of
from .pilot import FEWEST_CONVERSATIONS
from .prices import Price, price_of, require_prices
from .queueing import bounds_of, parse_limits, with_bounds
from .recorded_sweep import recorded_cells
from .simulation import (
    PlannedCell,
    PlannedUnit,
    SimulatedCourse,
    SimulationWorld,
    extrapolate,
    model_error,
    predict,
    simulate_sweep,
)
from .sweep import Sweep, open_sweep
from .sweep_file import read_sweep_file
from .traces import LOCAL_SLOWDOWN, PROCESSOR, SIMILARITIES, Guess, SimilarityKey, Trace, guess_traces, observe_runs

GUESSED_BYTES = 400.0  # bytes of a call's row with its indices, without texts
GUESSED_PER_TOKEN = 4.5  # bytes per token of an answer
_EMPTY_PAGES = 6  # bytes of a journal without records


def bytes_per_call(journals: Iterable[Path]) -> float | None:
    """Return the mean bytes of a recorded call, with its share of the conversation's rows; None without recorded calls.

    A `-wal` file beside a journal is not counted, because its contents move into the journal.
    """
    size = calls = 0
    for journal in journals:
        try:
            with closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True)) as database:
                (count,) = database.execute("select count(*) from calls").fetchone()
                (pages,) = database.execute("pragma page_count").fetchone()
                (page,) = database.execute("pragma page_size").fetchone()
        except sqlite3.Error:
            continue  # the error is reported when the conversations are read
        if count:
            size, calls = size + (pages - _EMPTY_PAGES) * page, calls + count
    return size / calls if calls else None


_MOST_CALLS = 6_000  # calls in one simulation; longer sweeps are extrapolated from their beginning
_ROUNDS = 4  # a simulation has at least this many conversations per slot
_ENDS = 3  # simulations of the lower guess, and as many of the upper one
GUESSED = "guessed"


@dataclass(slots=True, frozen=True)
class TraceSource:
    """Source of a cell's traces: the number of conversations, and a description."""

    conversations: int
    words: str


@dataclass(slots=True, frozen=True)
class Prediction:
    """Predicted totals of a sweep.

    Intervals are those of `simulation.predict`; if a cell's traces are guessed, they span the lower to the upper guess.
    `cost` is None if a model has no price.
    """

    seconds: Estimate
    tokens: Estimate
    cost: Estimate | None
    courses: list[SimulatedCourse]


class Plan:
    """Plan of what remains of a sweep.

    Args:
        earlier: Folders of runs or sweeps to learn from.
        limits: Bounds of models to assume, as for `--limit`.
        simulations: Number of simulated sweeps.

    Raises:
        ConfigurationError: The file, a folder or a limit is wrong, or there is a `budget` but a model has no price.
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
        self.file, _ = read_sweep_file(file)
        self.sweep = open_sweep(file, out)
        self.models = list(dict.fromkeys(model for run in self.sweep.runs for model in run.cell.models))
        self.prices: dict[str, Price | None] = {model: price_of(model) for model in self.models}
        require_prices(budget, self.models)
        self.budget, self.simulations, self._seed = budget, simulations, seed
        self.forecast = _PlanForecast(self.sweep)
        runs = [[*_own_runs(self.sweep)], *(_earlier_runs(path) for path in earlier)]
        self.observed = [observe_runs(group) for group in runs]
        self.bytes_per_call = bytes_per_call(folder.journal for group in runs for folder, _, _ in group)
        self.sources: dict[str, TraceSource] = {}
        self.cells = {run.cell.name: self._cell(run.cell) for run in self.sweep.runs if self._remaining(run.cell)}
        renamed = {model: with_bounds(model, bounds) for model, bounds in parse_limits([*limits], self.models).items()}
        slowing = {PROCESSOR: LOCAL_SLOWDOWN}
        for observed in reversed(self.observed):
            slowing |= observed.slowing
        self.world = SimulationWorld(concurrency or self.file.concurrency, self.file.local_models, slowing, renamed)
        self.prediction = self._with_guesses(self.expected(self.world, self.simulations))

    @property
    def guessed(self) -> bool:
        """True if a cell's traces are guessed; then intervals have no coverage guarantee."""
        return any(source.words == GUESSED for source in self.sources.values())

    def _with_guesses(self, prediction: Prediction) -> Prediction:
        """Widen the intervals of a prediction to span the lower and upper guesses."""
        if not self.guessed:
            return prediction
        predictions, cells = [prediction], self.cells
        for guess in ("least", "most"):
            self.cells = {name: self._guessed(cell, guess) for name, cell in cells.items()}
            predictions.append(self.expected(self.world, min(_ENDS, self.simulations)))
        self.cells = cells
        costs = [estimate.cost for estimate in predictions if estimate.cost is not None]
        return replace(
            prediction,
            seconds=_span([estimate.seconds for estimate in predictions]),
            tokens=_span([estimate.tokens for estimate in predictions]),
            cost=_span(costs) if len(costs) == len(predictions) else None,
        )

    def _guessed(self, cell: PlannedCell, guess: Guess) -> PlannedCell:
        if self.sources[cell.name].words != GUESSED:
            return cell
        return replace(cell, traces=guess_traces(self._uses(cell.name, cell.models), guess))

    def _uses(self, name: str, roles: Mapping[str, str]) -> dict[str, UsageForecast]:
        """Return the maximum usage of a conversation by role; roles with the same model share its usage evenly."""
        usage_by_role, models = self.forecast.per_conversation[name], list(roles.values())
        usage: dict[str, UsageForecast] = {}
        for role, model in roles.items():
            usage[model] = usage.get(model, UsageForecast()) + usage_by_role[role]
        return {role: usage[model] * (1.0 / models.count(model)) for role, model in roles.items()}

    @property
    def journal_bytes(self) -> float:
        """Predicted size on disk of the journals of the remaining conversations."""
        courses = self.prediction.courses
        calls = sum(tally.calls for course in courses for tally in course.models.values()) / max(1, len(courses))
        if self.bytes_per_call is not None:
            return calls * self.bytes_per_call
        tokens = sum(tally.completion for course in courses for tally in course.models.values()) / max(1, len(courses))
        return calls * GUESSED_BYTES + tokens * GUESSED_PER_TOKEN

    @property
    def rounds(self) -> float:
        """Recorded conversations with local models, divided by the number of parallel calls."""
        return max((observed.rounds.get(PROCESSOR, 0.0) for observed in self.observed), default=0.0)

    @property
    def conversations(self) -> int:
        """Number of remaining conversations."""
        return sum(cell.remaining for cell in self.cells.values())

    def expected(
        self, world: SimulationWorld, simulations: int, remaining: Mapping[str, int] | None = None, price: float = 1.0
    ) -> Prediction:
        """Predict the totals of the sweep in this world.

        `remaining` replaces the plan's remaining conversations by cell; all prices are multiplied by `price`.
        """
        numbers = {name: cell.remaining for name, cell in self.cells.items()} | dict(remaining or {})
        fraction = self._simulated_fraction(numbers, world)
        courses = []
        for number in range(simulations):
            cells = self._resampled(self._seed + number)
            parts = [_scale(cells, numbers, part) for part in ((fraction / 2, fraction) if fraction < 1.0 else (1.0,))]
            simulated = [simulate_sweep(self._units(part), world, self._seed + number) for part in parts]
            courses.append(extrapolate(simulated[0], simulated[-1], fraction))
        sample = min((source.conversations for source in self.sources.values()), default=0)
        own = model_error(courses, world.slowing.get(PROCESSOR, 0.0), self.rounds)
        costs = [self._cost(course, price) for course in courses]
        known_costs = [cost for cost in costs if cost is not None]
        return Prediction(
            predict([course.seconds for course in courses], sample, own),
            predict([_tokens(course) for course in courses], sample),
            predict(known_costs, sample) if len(known_costs) == len(costs) else None,
            courses,
        )

    def widened(self, model: str, bound: str, times: float) -> SimulationWorld:
        """Return a simulated world in which this bound of a model is multiplied by `times`."""
        name = self.world.renamed.get(model, model)
        wider = max(1, math.ceil(bounds_of(name)[bound] * times))
        return replace(self.world, renamed={**self.world.renamed, model: with_bounds(name, {bound: wider})})

    def _remaining(self, cell: Cell) -> int:
        """Return the number of remaining conversations; of an adaptive cell, the median of simulated exams."""
        remaining = self.forecast.remaining.get(cell.name, 0)
        return round(self.forecast.exams[cell.name][0]) if cell.name in self.forecast.exams else remaining

    def _cell(self, cell: Cell) -> PlannedCell:
        key = _similarity_key(cell)
        traces: list[Trace] = []
        for rank in range(len(key.ladder())):
            for position, observed in enumerate(self.observed):
                matching = observed.traces.get(key.ladder()[rank], [])
                if len(matching) >= FEWEST_CONVERSATIONS and not traces:
                    traces = matching
                    origin = "this sweep" if position == 0 else "an earlier run"
                    self.sources[cell.name] = TraceSource(len(matching), f"{origin}, {SIMILARITIES[rank]}")
        if not traces:
            traces = guess_traces(self._uses(cell.name, cell.roles))
            self.sources[cell.name] = TraceSource(0, GUESSED)
        return PlannedCell(cell.name, cell.roles, self._remaining(cell), traces)

    def _simulated_fraction(self, numbers: Mapping[str, int], world: SimulationWorld) -> float:
        """Return the fraction of the conversations that is simulated."""
        total = sum(numbers.values())
        calls = sum(
            number * sum(sum(step.requests for step in trace.steps) for trace in self.cells[name].traces)
            / len(self.cells[name].traces)
            for name, number in numbers.items()
        )  # fmt: skip
        if not calls:
            return 1.0
        return min(1.0, max(_MOST_CALLS / calls, _ROUNDS * world.slots / total))

    def _resampled(self, seed: int) -> dict[str, PlannedCell]:
        """Return the cells with traces resampled with replacement; cells with the same traces get the same sample."""
        draw = random.Random(f"talks {seed}")
        resampled: dict[int, list[Trace]] = {}
        for cell in self.cells.values():
            if id(cell.traces) not in resampled:
                resampled[id(cell.traces)] = draw.choices(cell.traces, k=len(cell.traces))
        return {name: replace(cell, traces=resampled[id(cell.traces)]) for name, cell in self.cells.items()}

    def _units(self, cells: Mapping[str, PlannedCell]) -> list[PlannedUnit]:
        until = self.file.until
        units = []
        for group in group_cells(self.sweep.recorded.cells, until is not None and until.decided):
            planned = tuple(cells[cell.name] for cell in group if cell.name in cells and cells[cell.name].remaining)
            if planned:
                models = {model for cell in group if cell.name in cells for model in cell.models}
                units.append(PlannedUnit(planned, weights_of(models)))
        return [units[index] for index in order_by_weights([unit.weights for unit in units])]

    def _cost(self, course: SimulatedCourse, factor: float) -> float | None:
        total = 0.0
        for model, tally in course.models.items():
            price = self.prices[model]
            if price is None:
                return None
            total += factor * price.cost(tally.prompt, tally.completion, tally.cached)
        return total


class _PlanForecast(Forecast):
    """Forecast that contacts no endpoint and needs no key."""

    def _reads_one(self, model: str) -> bool:
        with without_keys():
            return super()._reads_one(model)


def _span(estimates: Sequence[Estimate]) -> Estimate:
    """Return the first estimate, with an interval that covers the intervals of all estimates."""
    return Estimate(
        estimates[0].value, min(estimate.low for estimate in estimates), max(estimate.high for estimate in estimates)
    )


def _tokens(course: SimulatedCourse) -> float:
    return sum(tally.prompt + tally.completion for tally in course.models.values())


def _similarity_key(cell: Cell) -> SimilarityKey:
    compared = compared_role(get_scenario(cell.scenario).roles).name
    return SimilarityKey(cell.scenario, cell.dataset, cell.model, _other_models({**cell.roles, compared: ""}))


def _other_models(models: Mapping[str, str]) -> str:
    return " ".join(f"{role}={model}" for role, model in sorted(models.items()) if model)


def _own_runs(sweep: Sweep) -> Iterable[tuple[RunFolder, SimilarityKey, Mapping[str, str]]]:
    for run in sweep.runs:
        folder = sweep.out / run.cell.name
        if run.done and run.state != "failed" and (folder / "manifest.json").exists():
            yield RunFolder.open(folder), _similarity_key(run.cell), run.cell.roles


def _earlier_runs(path: Path) -> list[tuple[RunFolder, SimilarityKey, Mapping[str, str]]]:
    """Return the runs in a folder of a run or a sweep, each with its similarity key and its models by role.

    Raises:
        ConfigurationError: The folder has no recorded run.
    """
    runs: list[tuple[RunFolder, SimilarityKey, Mapping[str, str]]] = []
    if (path / "sweep.json").exists():
        runs += [_run_with_key(cell.folder) for cell in recorded_cells(path) if cell.folder is not None]
    else:
        runs.append(_run_with_key(RunFolder.open(path)))
    if not any(folder.begun for folder, _, _ in runs):
        raise ConfigurationError(f"{path}: nothing has been recorded there to plan from; choose another run")
    return runs


def _run_with_key(folder: RunFolder) -> tuple[RunFolder, SimilarityKey, Mapping[str, str]]:
    manifest: dict[str, Any] = folder.manifest
    models = {role: model for role, model in manifest["models"].items() if isinstance(model, str)}
    dataset = manifest["dataset"]
    name = dataset.get("name", "") if isinstance(dataset, dict) else ""
    return folder, SimilarityKey(manifest["scenario"], str(name), "", _other_models(models)), models


def _scale(cells: Mapping[str, PlannedCell], numbers: Mapping[str, int], fraction: float) -> dict[str, PlannedCell]:
    return {name: replace(cell, remaining=math.ceil(numbers[name] * fraction)) for name, cell in cells.items()}
