"""Costs of a study: tokens of one model's interviews, and the price of one, ten or a hundred models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from viva.reports.figures import round_figure
from viva.reports.page import Record
from viva.reports.tables import DASH, Row, Table, money, number, record_rows

from ...study_cells import RunReading
from ...study_sections import Section, Subject, static_readings
from .interview_pools import InterviewColumns, InterviewMaterial
from .methods import row_prefix

MODELS = (1, 10, 100)
_COUNTS = ("calls", "prompt_tokens", "completion_tokens")
_ROLES = ("candidate", "interactor", "evaluator")


class Costs(Section[InterviewMaterial]):
    """Tokens by dataset and role for one model on average, and the projection."""

    key, subject, heading, anchor = "costs", Subject.COSTS, "Tokens and cost", "costs"

    def compute(self, material: InterviewMaterial, report: Mapping[str, Any]) -> dict[str, Any]:
        """Return mean usage over finished interviews; `models` and `interviews` count the models and interviews."""
        read = [
            reading
            for reading in material.readings
            if isinstance(reading.columns, InterviewColumns)
            and reading.result is not None
            and reading.result["interviews"]
        ]
        datasets = list(dict.fromkeys(reading.cell.dataset for reading in read))
        overall = _mean_usage(read)
        static = [reading for reading in static_readings(material.lent, material.readings) if reading.ended]
        return {
            "models": len({reading.cell.candidate for reading in read}),
            "interviews": sum(reading.result["interviews"] for reading in read if reading.result is not None),
            "seeds": sorted({reading.cell.seed for reading in read}),
            "datasets": {
                name: _mean_usage([reading for reading in read if reading.cell.dataset == name]) for name in datasets
            },
            "overall": overall,
            "probes": _mean_usage(static),
            "priced": any(used["cost"] is not None for used in overall.values()),
            "projected": [
                {"models": count, "roles": {role: _times(used, count) for role, used in overall.items()}}
                for count in MODELS
            ],
        }

    def tables(self, report: Record) -> list[Table]:
        costs = report["costs"]
        used = costs["datasets"] | ({"all": costs["overall"]} if len(costs["datasets"]) > 1 else {})
        rows = []
        for dataset, roles in used.items():
            for role in _in_order(roles):
                counts = [number(roles[role][name], 0) for name in _COUNTS]
                rows.append([dataset, role, *counts, money(roles[role]["cost"])])
        header = ["dataset", "role", "calls", "prompt tokens", "completion tokens", "cost"]
        seeds = ", ".join(map(str, costs["seeds"]))
        over = f"mean of {costs['models']} model{'s' * (costs['models'] != 1)}, {costs['interviews']:,} interviews in "
        over += f"all, seed{'s' * (len(costs['seeds']) > 1)} {seeds}"
        unpriced = "" if costs["priced"] else "; prices unknown"
        tables: list[Table] = [(f"Tokens and cost of one model: {over}{unpriced}", header, rows)]
        rows = []
        for record in costs["projected"]:
            roles = record["roles"]
            total = {name: _sum(roles, name) for name in ("prompt_tokens", "completion_tokens", "cost")}
            role_costs = [money(roles[role]["cost"]) if role in roles else DASH for role in _ROLES]
            counts = [number(total[name], 0) for name in ("prompt_tokens", "completion_tokens")]
            rows.append([str(record["models"]), *counts, *role_costs, money(total["cost"])])
        header = ["models", "prompt tokens", "completion tokens", *(f"cost {role}" for role in _ROLES), "cost"]
        tables.append(
            (f"Projection for more models, proportional to their number{unpriced}", header, rows if used else [])
        )
        return tables

    def rows(self, report: Record) -> Iterator[Row]:
        for dataset, roles in report["costs"]["datasets"].items():
            yield from record_rows(row_prefix(report, dataset=dataset), "per_model", roles)
        for record in report["costs"]["projected"]:
            yield from record_rows(row_prefix(report), f"projected.{record['models']}", record["roles"])


def _mean_usage(readings: Sequence[RunReading]) -> dict[str, dict[str, float | None]]:
    """Return the usage of one model by role: totals over its cells, averaged over the models that have usage.

    A fork's replayed calls belong to the original run.
    """
    models = {reading.cell.candidate for reading in readings}
    totals: dict[str, dict[str, float | None]] = {}
    for reading in readings:
        for role, used in reading.usage.items():
            if reading.cell.repeats(role):
                continue
            total = totals.setdefault(role, dict.fromkeys((*_COUNTS, "cost"), 0.0))
            for name, value in used.items():
                so_far = total.get(name, 0.0)
                total[name] = None if value is None or so_far is None else so_far + value
    return {
        role: {name: round_figure(None if value is None else value / len(models)) for name, value in total.items()}
        for role, total in sorted(totals.items())
    }


def _times(used: dict[str, float | None], count: int) -> dict[str, float | None]:
    return {name: round_figure(None if value is None else value * count) for name, value in used.items()}


def _in_order(roles: Mapping[str, Any]) -> list[str]:
    return [*(role for role in _ROLES if role in roles), *(role for role in roles if role not in _ROLES)]


def _sum(roles: Mapping[str, Any], name: str) -> float | None:
    values = [used[name] for used in roles.values()]
    return None if None in values else float(sum(values))
