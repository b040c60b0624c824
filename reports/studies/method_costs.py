"""Cost of each method for more models: interviews beside comparisons in pairs, which grow with their square.

There is such a table only if a study has runs of a scenario whose usage is not proportional to its models
(`SupportsProjection`). Each scenario is projected from its own items or prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from viva.orchestration.launch import recorded_settings
from viva.scenarios.contract import SupportsProjection
from viva.scenarios.registry import get_scenario
from viva.scenarios.study_cells import RunReading
from viva.scenarios.study_sections import Material, Section, Subject

from ..figures import round_figure
from ..page import Record
from ..tables import Table, money, number

_MODELS = (1, 10, 100)
_COUNTS = ("calls", "prompt_tokens", "completion_tokens", "cost")
_Usage = dict[str, float | None]


def method_costs(readings: Sequence[RunReading]) -> list[dict[str, Any]]:
    """Return the usage of each scenario for 1, 10 and 100 models; empty if all are proportional to their models.

    A usage is None if it cannot be projected, for example because pairs were chosen from results.
    """
    own: dict[str, list[RunReading]] = {}
    for reading in readings:
        if reading.usage and reading.ended:
            own.setdefault(reading.cell.scenario, []).append(reading)
    if not any(isinstance(get_scenario(name), SupportsProjection) for name in own):
        return []
    return [
        {
            "scenario": name,
            "conversations": sum(reading.ended for reading in group),
            "projected": [{"models": models, "usage": _projected(name, group, models)} for models in _MODELS],
        }
        for name, group in own.items()
    ]


def _projected(name: str, readings: Sequence[RunReading], models: int) -> _Usage | None:
    """Return the usage of all of a scenario's runs with another number of models."""
    scenario = get_scenario(name)
    total: _Usage = dict.fromkeys(_COUNTS, 0.0)
    compared = len({reading.cell.candidate for reading in readings})
    for reading in readings:
        assert reading.cell.run is not None
        factors: Mapping[str, float] | None = None
        if isinstance(scenario, SupportsProjection):
            factors = scenario.usage_factors(recorded_settings(reading.cell.run)[1], models)
            if factors is None:
                return None
        for role, used in reading.usage.items():
            model = reading.cell.manifest.get("models", {}).get(role)
            if (role == reading.cell.compared or isinstance(model, str)) and reading.cell.repeats(role):
                continue  # a fork's replayed calls belong to the original run
            factor = models / compared if factors is None else factors.get(role, 1.0)
            for count in _COUNTS:
                value, so_far = used.get(count), total[count]
                total[count] = None if value is None or so_far is None else so_far + factor * value
    return {count: round_figure(value) for count, value in total.items()}


class MethodCostSection(Section[Material]):
    """The costs of the scenarios of a study for more models (`report["method_costs"]`)."""

    subject, heading, anchor = Subject.COSTS, "Cost of each method", "method-costs"

    def tables(self, report: Record) -> list[Table]:
        rows = []
        for record in report.get("method_costs", ()):
            name = get_scenario(record["scenario"]).plural or record["scenario"]
            for projected in record["projected"]:
                used = projected["usage"] or dict.fromkeys(_COUNTS)
                counts = [number(used[count], 0) for count in _COUNTS[:-1]]
                row = [name, f"{record['conversations']:,}", str(projected["models"]), *counts, money(used["cost"])]
                rows.append(row)
        header = ["method", "conversations", "models", "calls", "prompt tokens", "completion tokens", "cost"]
        return [("Cost of each method for more models, each on its own items or prompts", header, rows)]
