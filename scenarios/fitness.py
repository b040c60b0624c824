"""Fitness of models for their roles: short tests before a run, and their results beside a run's manifest.

A scenario states the tests (`contract.SupportsFitnessChecks`), `orchestration` runs them, and reports name models that
are not usable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import orjson

from viva.engine.backends.base import ModelSpec
from viva.engine.errors import ConfigurationError
from viva.engine.files import write_atomically

from .models import model_labels
from .run_settings import RunSettings

if TYPE_CHECKING:
    from .contract import Scenario

FitnessVerdict = Literal["usable", "not_usable", "too_few"]
FITNESS_FILE = "qualification.json"
# Kinds of models whose answers come from the item, a recording or a person; tests on other texts say nothing here.
_UNTESTED = ("simulated", "oracle", "fixed", "recorded", "replay", "human")


@dataclass(frozen=True, slots=True)
class Fitness:
    """A verdict on a model in a role, with the sentence that says why."""

    verdict: FitnessVerdict
    sentence: str


@dataclass(frozen=True, slots=True)
class FitnessCheck:
    """A run of another scenario that tests a model in its role.

    `read` returns the verdict in that run's report, or None if the report has none.
    """

    role: str
    model: str
    scenario: Scenario[Any, Any]
    settings: RunSettings
    read: Callable[[Mapping[str, Any]], Fitness | None]


def is_testable(model: str) -> bool:
    """Return True if a model answers by itself, so that a test on other texts says something about it."""
    return ModelSpec.parse(model).kind not in _UNTESTED


def fitness_record(check: FitnessCheck, fitness: Fitness) -> dict[str, str]:
    """Return a verdict as plain data."""
    label = next(iter(model_labels([check.model])))
    return {"role": check.role, "model": label, "verdict": fitness.verdict, "sentence": fitness.sentence}


def write_fitness(folder: Path, records: list[dict[str, str]]) -> None:
    """Write the verdicts on a run's models beside its manifest."""
    write_atomically(folder / FITNESS_FILE, orjson.dumps(records, option=orjson.OPT_INDENT_2))


def read_fitness(folder: Path) -> list[dict[str, str]]:
    """Return the verdicts on a run's models; empty if they were not tested.

    Raises:
        ConfigurationError: The file is damaged.
    """
    file = folder / FITNESS_FILE
    try:
        data = file.read_bytes()
    except OSError:
        return []
    try:
        records = orjson.loads(data)
        return [{name: str(record[name]) for name in ("role", "model", "verdict", "sentence")} for record in records]
    except (KeyError, TypeError, ValueError):
        raise ConfigurationError(f"{file}: damaged; remove it, or restore it from a copy") from None


def fitness_warnings(folder: Path) -> list[str]:
    """Return a sentence for each model of a run that is not usable in its role."""
    unfit = [record for record in read_fitness(folder) if record["verdict"] == "not_usable"]
    return [f"{record['model']} is {record['sentence']}" for record in unfit]
