"""Item banks of runs: the matrix of scores in runs and sweeps, and the reports of `viva bank show` and `check`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from viva.data.bank_file import MOST_CELLS, BankFile, Matrix
from viva.engine.errors import ConfigurationError
from viva.engine.journal_reader import History
from viva.orchestration.launch import recorded_settings
from viva.scenarios.contract import SCORE, SupportsExams, SupportsObservations, score_ranges
from viva.scenarios.models import label_of_key
from viva.scenarios.run_settings import repeats_of
from viva.scenarios.study_cells import StudyCell
from viva.scoring.adaptive_exam import LEAST_ITEMS
from viva.scoring.item_bank import LEAST_ANSWERS, negative_items

from ..figures import round_figure
from ..tables import DASH, Table, number, percent, standard_error
from .cells import find_cells

FEW_MODELS = 100  # with fewer the model-based interval covers less than it says (benches/adaptive.py)
MISFIT = 0.12  # from which PISA looks at an item


def run_matrix(folders: Sequence[Path], scenario: str | None = None, dataset: str | None = None) -> Matrix:
    """Return the scores, 0–1, of all candidates of runs and sweeps; repeats of an item are averaged.

    Args:
        folders: Runs and sweeps.
        scenario: Only runs of this scenario.
        dataset: Only runs on this dataset.

    Raises:
        ConfigurationError: The runs have no scores of known range, or are of several scenarios or datasets.
    """
    cells = [cell for cell in find_cells(folders) if cell.run is not None]
    cells = [cell for cell in cells if scenario in (None, cell.scenario) and dataset in (None, cell.dataset)]
    _check_alike(cells)
    sums: dict[tuple[str, str], tuple[float, int]] = {}
    for cell in cells:
        for item, score in _scores(cell):
            total, count = sums.get((cell.candidate, item), (0.0, 0))
            sums[cell.candidate, item] = total + score, count + 1
    models, items = (sorted({key[part] for key in sums}) for part in (0, 1))
    if not sums:
        raise ConfigurationError(f"{', '.join(map(str, folders))}: no scores; a bank is fitted to finished interviews")
    if len(models) * len(items) > MOST_CELLS:
        raise ConfigurationError(f"{len(models):,} models × {len(items):,} items; at most {MOST_CELLS:,} are read")
    scores = np.full((len(models), len(items)), math.nan)
    rows, columns = ({name: index for index, name in enumerate(names)} for names in (models, items))
    for (model, item), (total, count) in sums.items():
        scores[rows[model], columns[item]] = total / count
    return Matrix(scores, models, items, cells[0].manifest["dataset"].get("digest"), cells[0].dataset)


def _check_alike(cells: Sequence[StudyCell]) -> None:
    """Refuse runs whose scores do not belong into one bank."""
    if not cells:
        raise ConfigurationError("none of these runs has begun, or --scenario and --dataset name none of them")
    scenarios = sorted({cell.scenario for cell in cells})
    if len(scenarios) > 1:
        names = ", ".join(scenarios)
        raise ConfigurationError(f"these runs are of several scenarios ({names}); choose one with --scenario")
    datasets: dict[str, set[str]] = {}
    for cell in cells:
        datasets.setdefault(cell.dataset, set()).add(str(cell.manifest["dataset"].get("digest")))
    if len(datasets) > 1:
        names = ", ".join(sorted(datasets))
        raise ConfigurationError(f"these runs are on several datasets ({names}); choose one with --dataset")
    [(name, digests)] = datasets.items()
    if len(digests) > 1:
        raise ConfigurationError(f"these runs are on {len(digests)} versions of {name}; a bank is about one")


def _scores(cell: StudyCell) -> Iterator[tuple[str, float]]:
    """Yield item and score, 0–1, of each finished conversation of a cell's candidate."""
    assert cell.run is not None
    scenario, settings = recorded_settings(cell.run)
    score_of, repeats = _score_function(cell, scenario, settings), repeats_of(settings)
    with History(cell.run.journal) as history:
        for ended in history.ended():
            if ended.failed or label_of_key(ended.key, cell.labels) != cell.candidate:
                continue
            score = score_of(ended.result)
            if score is None or _is_of_second_set(scenario, ended.result):
                continue
            item = ended.key.removeprefix(f"{cell.candidate}/")
            task, _, ordinal = item.rpartition("#")
            is_repeat = ordinal.isdecimal() and 2 <= int(ordinal) <= repeats
            yield task if is_repeat else item, min(max(score, 0.0), 1.0)


def _score_function(cell: StudyCell, scenario: Any, settings: Any) -> Callable[[Any], float | None]:
    """Return a function from a result to its score, 0–1: that of adaptive exams, if the scenario has any."""
    if isinstance(scenario, SupportsExams):
        return scenario.exam_score(settings)
    low, high = score_ranges(scenario, settings).get(SCORE, (-math.inf, math.inf))
    if not math.isfinite(high - low):
        raise ConfigurationError(
            f"{cell.name}: runs of {scenario.name} have no score with a smallest and largest value"
        )
    summary_of = scenario.summary_of(settings)
    return lambda result: None if (score := summary_of(result).score) is None else (score - low) / (high - low)


def _is_of_second_set(scenario: Any, result: Any) -> bool:
    if not isinstance(scenario, SupportsObservations):
        return False
    observations = scenario.observe([result])
    return bool(len(observations.second)) and not len(observations.benchmark)


@dataclass(frozen=True, slots=True)
class ItemToCheck:
    """An item that a benchmark's owner should look at, and why."""

    item: int
    reasons: tuple[str, ...]


class BankReport:
    """Items of a bank, on a scale of ability on which the models have mean 0 and standard deviation 1."""

    def __init__(self, file: BankFile, source: str) -> None:
        self.file, self.source = file, source
        bank = file.to_bank()
        mean, spread = bank.ability_moments()
        # Without a positive discrimination, no ability makes a right answer likely.
        self._difficulties = np.where(bank.slopes > 0.0, (bank.difficulties() - mean) / spread, math.nan)
        self._slopes = bank.slopes * spread
        self._slope_errors = bank.slope_errors * spread
        has_errors = len(bank.difficulty_errors) == len(file.items)
        self._errors = bank.difficulty_errors / spread if has_errors else np.full(len(file.items), math.nan)
        self._negative = set(negative_items(bank))

    def sentences(self) -> list[str]:
        """Return what the bank is and how far its intervals can be trusted."""
        file = self.file
        about = f" of {file.dataset_name}" if file.dataset_name else ""
        models = f"{file.models:,} models of {file.organisations:,} organisations" if file.models else "unknown models"
        levels = len(file.scale.means)
        scores = "right or wrong" if file.scale.means == [0.0, 1.0] else f"{levels} levels of scores"
        return [f"{self.source}: {len(file.items):,} items{about}, fitted to {models} ({scores}).", *self.limits()]

    def limits(self) -> list[str]:
        """Return what the bank is too small for."""
        file, limits = self.file, []
        if file.models < FEW_MODELS:
            limits.append(
                f"The bank rests on {file.models} models. With fewer than {FEW_MODELS} the model-based interval of an "
                "adaptive exam may cover less than it says: trust the assumption-free one."
            )
        if not file.calibration.counts:
            limits.append(
                "The model-based interval is not calibrated: too few models without a missing score, or too few "
                "organisations, could be left out of the fit."
            )
        if len(file.items) < LEAST_ITEMS:
            limits.append(f"{len(file.items)} items are too few for an adaptive exam, which needs {LEAST_ITEMS}.")
        return limits

    def items_to_check(self) -> list[ItemToCheck]:
        """Return the items to look at, those with a negative discrimination first."""
        listed = []
        for index, count in enumerate(self.file.counts):
            mean = self._mean(index)
            reasons = []
            if index in self._negative:
                reasons.append("better models do worse: perhaps a wrong key")
            if count >= FEW_MODELS and self.file.misfits and self.file.misfits[index] >= MISFIT:
                reasons.append(
                    f"scores lie {number(100.0 * self.file.misfits[index])} points off what ability predicts"
                )
            if mean in (0.0, 1.0) and count >= LEAST_ANSWERS:
                reasons.append(f"all {count:,} models are {'right' if mean else 'wrong'}: does not tell models apart")
            if count < LEAST_ANSWERS:
                reasons.append(f"{count} models are too few to tell" if count else "no score at all")
            if reasons:
                listed.append(ItemToCheck(index, tuple(reasons)))
        return sorted(listed, key=lambda own: (own.item not in self._negative, self._slopes[own.item]))

    def check_sentences(self) -> list[str]:
        """Return the answer of `viva bank check`, and what it rests on."""
        items, file = self.items_to_check(), self.file
        untold = sum(count < LEAST_ANSWERS for count in file.counts)
        suspicious = len(items) - untold
        if untold == len(file.items):
            return [f"Too few models to tell: no item has the scores of {LEAST_ANSWERS} models.", *self.limits()]
        answer = f"{suspicious or 'No'} of {len(file.items) - untold:,} items to look at" + (
            f", {len(self._negative)} of them because better models do worse." if self._negative else "."
        )
        rest = [f"Too few models to tell about {untold:,} further items."] if untold else []
        if file.models < FEW_MODELS:
            rest.append(f"With {file.models} models only gross faults are seen; misfit needs {FEW_MODELS}.")
        if self._negative:
            rest.append("Of the items on which better models do worse, at most 5% are expected by chance.")
        return [answer, *rest]

    def tables(self) -> list[Table]:
        """Return the items by difficulty; those without a difficulty come last."""
        order = sorted(range(len(self.file.items)), key=lambda index: (np.isnan(self._difficulties[index]),
                       self._difficulties[index], index))  # fmt: skip
        header = ["item", "difficulty", "se", "discrimination", "se", "mean score", "models", "misfit (points)"]
        return [("Items by difficulty", header, [self._row(index) for index in order])]

    def check_tables(self) -> list[Table]:
        """Return the items to look at."""
        rows = [
            [self.file.items[own.item], "; ".join(own.reasons), *self._row(own.item)[3:]]
            for own in self.items_to_check()
        ]
        header = ["item", "why", "discrimination", "se", "mean score", "models", "misfit (points)"]
        return [("Items to look at", header, rows)]

    def report(self) -> dict[str, Any]:
        """Return the bank as plain data."""
        file = self.file
        return {
            "bank": 1,
            "answer": self.sentences(),
            "dataset": file.dataset_name,
            "models": file.models,
            "organisations": file.organisations,
            "levels": len(file.scale.means),
            "calibration": file.calibration.model_dump(),
            "items": [self._record(index) for index in range(len(file.items))],
        }

    def check_report(self) -> dict[str, Any]:
        """Return the items to look at as plain data."""
        items = [self._record(own.item) | {"reasons": list(own.reasons)} for own in self.items_to_check()]
        return {"answer": self.check_sentences(), "models": self.file.models, "items": items}

    def _mean(self, index: int) -> float | None:
        return self.file.means[index] if self.file.means else None

    def _misfit(self, index: int) -> float | None:
        return self.file.misfits[index] if self.file.misfits and self.file.counts[index] >= FEW_MODELS else None

    def _row(self, index: int) -> list[str]:
        record = self._record(index)
        return [
            record["item"],
            number(record["difficulty"], 2),
            standard_error(record["difficulty_se"], 2),
            number(record["discrimination"], 2),
            standard_error(record["discrimination_se"], 2),
            percent(record["mean"]),
            f"{record['models']:,}",
            DASH if record["misfit"] is None else number(100.0 * record["misfit"]),
        ]

    def _record(self, index: int) -> dict[str, Any]:
        return {
            "item": self.file.items[index],
            "difficulty": _finite(self._difficulties[index]),
            "difficulty_se": None if np.isnan(self._difficulties[index]) else _finite(self._errors[index]),
            "discrimination": _finite(self._slopes[index]),
            "discrimination_se": _finite(self._slope_errors[index]),
            "mean": _finite(self._mean(index)),
            "models": self.file.counts[index],
            "misfit": _finite(self._misfit(index)),
        }


def _finite(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else round_figure(float(value))
