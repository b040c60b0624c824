"""Upper bounds for a sweep, by arithmetic alone: conversations, calls, tokens and cost per model.

Prompts are rendered from the actual items and packs. Every reply is assumed to be as long as its limit allows, and
every conversation to reach its last round. No model is opened. `plan` estimates expected values instead.
"""

from __future__ import annotations

from typing import Any

from viva.data.dataset import CheckedDatasets
from viva.engine.backends.base import ModelSpec
from viva.engine.errors import VivaError
from viva.orchestration.prepared_run import PreparedRun
from viva.orchestration.run_forecast import ASSUMPTIONS, ONE_BY_ONE, reads_one, usage_by_role, usage_cost, usage_record
from viva.reports.tables import DASH, Table, money
from viva.scenarios.contract import UsageForecast
from viva.scenarios.models import batch_note
from viva.scenarios.registry import get_scenario

from .cell_run import CellRun
from .sweep import Sweep


class Forecast:
    """Upper bounds for what remains of a sweep; a cell that has begun counts with its unfinished conversations.

    `models` has the totals by model, `remaining` the number of conversations by cell, and `per_conversation` the usage
    of one conversation by cell and role. `parts` are what parts of the totals are for. `problems` are predictable
    failures, by model or cell.
    """

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep
        self.models: dict[str, UsageForecast] = {}
        self.parts: dict[str, UsageForecast] = {}
        self.problems: dict[str, VivaError] = {}
        self.remaining: dict[str, int] = {}
        self.per_conversation: dict[str, dict[str, UsageForecast]] = {}
        self._one_by_one: dict[str, bool] = {}
        with CheckedDatasets().activate() as datasets:
            sweep.survey(datasets)
            usage_by_key: dict[str, dict[str, UsageForecast]] = {}
            for run in sweep.runs:
                if run.error is not None:
                    self.problems[run.cell.name] = run.error
                if run.state in ("waiting", "part") and run.total:
                    self._count(run, usage_by_key)

    @property
    def conversations(self) -> int:
        """Number of remaining conversations."""
        return sum(self.remaining.values())

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions behind the figures, and a note on batches."""
        note = self.batch_note(self._sweep.concurrency)
        return (*ASSUMPTIONS, note) if note else ASSUMPTIONS

    def batch_note(self, at_once: int) -> str:
        """Return a note on the number of batches that must end one after another; "" if no model is batched."""
        calls = max((self._batched_calls(run) for run in self._sweep.runs), default=0.0)
        return batch_note(self.models, self.conversations, at_once, calls)

    def _batched_calls(self, run: CellRun) -> float:
        """Return the maximum number of a conversation's calls that go through batch APIs."""
        usages = self.per_conversation.get(run.cell.name, {})
        batched = [role for role, model in run.cell.roles.items() if ModelSpec.parse(model).is_batched]
        return sum(usages[role].calls for role in batched if role in usages)

    def report(self) -> dict[str, Any]:
        """Return everything as plain data."""
        cells = [{"name": run.cell.name} | run.progress_record() for run in self._sweep.runs]
        models = {model: usage_record(use) | {"cost": usage_cost(model, use)} for model, use in self.models.items()}
        return {
            "forecast": 1,
            "cells": cells,
            "conversations": self.conversations,
            "models": models,
            **({"methods": {part: usage_record(use) for part, use in self.parts.items()}} if self.parts else {}),
            "problems": {name: error.to_record() for name, error in self.problems.items()},
            "assumptions": " ".join(self.assumptions),
        }

    def tables(self) -> list[Table]:
        """Return the report as tables."""
        report = self.report()
        cells = [
            [record["name"], record["state"], str(record["planned"] or DASH), str(record["done"])]
            for record in report["cells"]
        ]
        models = [
            [
                model,
                *(f"{record[name]:,}" for name in ("calls", "prompt_tokens", "completion_tokens")),
                money(record["cost"]),
            ]
            for model, record in report["models"].items()
        ]
        title = f"Upper bounds for the remaining {report['conversations']:,} conversations"
        methods = [
            [method, *(f"{record[name]:,}" for name in ("calls", "prompt_tokens", "completion_tokens"))]
            for method, record in report.get("methods", {}).items()
        ]
        return [
            (f"{len(cells)} cells", ["cell", "state", "planned", "done"], cells),
            (title, ["model", "calls", "prompt tokens", "completion tokens", "cost"], models),
            ("Of these, by method", ["method", "calls", "prompt tokens", "completion tokens"], methods),
        ]

    def _count(self, run: CellRun, usage_by_key: dict[str, dict[str, UsageForecast]]) -> None:
        assert run.total is not None
        cell = run.cell
        key = cell.scenario + cell.settings.model_dump_json(exclude=set(cell.roles))
        if key not in usage_by_key:
            usage_by_key[key] = usage_by_role(PreparedRun(get_scenario(cell.scenario), cell.settings))
        self.remaining[cell.name] = remaining = run.total - run.done + (run.failed if self._sweep.retry_failed else 0)
        usages = self.per_conversation[cell.name] = {}
        for role, model in cell.roles.items():
            usages[role] = usage_by_key[key].get(role, UsageForecast())
            if self._reads_one(model):
                usages[role] = usage_by_key[key].get(f"{role}, {ONE_BY_ONE}", usages[role])
            self.models[model] = self.models.get(model, UsageForecast()) + usages[role] * remaining
            single = self._one_by_one[model]
            for name, use in usage_by_key[key].items():
                whole, _, part = name.partition(", ")
                part, _, mode = part.partition(", ")
                if whole == role and part and part != ONE_BY_ONE and (mode == ONE_BY_ONE) == single:
                    self.parts[part] = self.parts.get(part, UsageForecast()) + use * remaining

    def _reads_one(self, model: str) -> bool:
        """Return True if a model needs a request for each likelihood; note a problem if its name is invalid."""
        if model not in self._one_by_one:
            try:
                self._one_by_one[model] = reads_one(model, self._sweep.clock)
            except VivaError as error:
                self.problems[model] = error
                self._one_by_one[model] = False
        return self._one_by_one[model]
