"""Upper bounds of what a sweep takes, by arithmetic alone: conversations, calls, tokens and cost for each model.

Prompts are rendered from the very items and packs; replies are taken to be as long as their limits allow and
conversations to go on to the last round. No model is opened. ``plan`` estimates what is to be expected.
"""

from __future__ import annotations

import math
from typing import Any

from viva.data.dataset import CheckedDatasets
from viva.engine.backends.registry import build
from viva.engine.errors import VivaError
from viva.orchestration.prepared_run import PreparedRun
from viva.reports.run_tables import token_cost
from viva.reports.tables import DASH, Table
from viva.scenarios.contract import CHARACTERS_PER_TOKEN, SupportsForecast, UsageForecast
from viva.scenarios.models import known_price
from viva.scenarios.registry import get_scenario

from .cell_run import CellRun
from .sweep import Sweep

ASSUMPTIONS = (
    f"assumed: a token is {CHARACTERS_PER_TOKEN} characters, of local models too; every talk goes to its last round,",
    "and every reply is as long as its limit. Early ends, short replies and rules that stop early make it less. Not",
    "counted: second tries for unreadable verdicts and failed calls, and what chat templates and schemas add.",
)


class Forecast:
    """What is left to do of a sweep: of a cell under way, the share of its conversations that have not ended.

    ``models`` has the totals by model, ``left`` the conversations to come by cell, ``each`` what one of them takes of
    each role. ``problems`` are by model or cell: what will fail, as far as that can be seen.
    """

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep
        self.models: dict[str, UsageForecast] = {}
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
        """Conversations to come."""
        return sum(self.remaining.values())

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the figures rest on."""
        return ASSUMPTIONS

    def report(self) -> dict[str, Any]:
        """Everything as plain data."""
        cells = [{"name": run.cell.name} | run.progress_record() for run in self._sweep.runs]
        models = {
            model: {
                "calls": round(use.calls),
                "prompt_tokens": math.ceil(use.prompt),
                "completion_tokens": math.ceil(use.completion),
                "cost": _cost(model, use),
            }
            for model, use in self.models.items()
        }
        return {
            "forecast": 1,
            "cells": cells,
            "conversations": self.conversations,
            "models": models,
            "problems": {name: error.to_record() for name, error in self.problems.items()},
            "assumptions": " ".join(ASSUMPTIONS),
        }

    def tables(self) -> list[Table]:
        """The report as tables."""
        report = self.report()
        cells = [
            [record["name"], record["state"], str(record["planned"] or DASH), str(record["done"])]
            for record in report["cells"]
        ]
        models = [
            [
                model,
                *(f"{record[name]:,}" for name in ("calls", "prompt_tokens", "completion_tokens")),
                DASH if record["cost"] is None else f"{record['cost']:.2f}",
            ]
            for model, record in report["models"].items()
        ]
        title = f"At most, for the {report['conversations']:,} conversations that are left"
        return [
            (f"{len(cells)} cells", ["cell", "state", "planned", "done"], cells),
            (title, ["model", "calls", "prompt tokens", "completion tokens", "cost"], models),
        ]

    def _count(self, run: CellRun, usage_by_key: dict[str, dict[str, UsageForecast]]) -> None:
        assert run.total is not None
        cell = run.cell
        key = cell.scenario + cell.settings.model_dump_json(exclude=set(cell.roles))
        if key not in usage_by_key:
            prepared = PreparedRun(get_scenario(cell.scenario), cell.settings)
            scenario, uses = prepared.scenario, dict[str, UsageForecast]()
            if isinstance(scenario, SupportsForecast):
                uses = scenario.forecast(cell.settings, prepared.opened, prepared.pack)
            usage_by_key[key] = {role: use * (prepared.repeats / prepared.total) for role, use in uses.items()}
        self.remaining[cell.name] = remaining = run.total - run.done + (run.failed if self._sweep.retry_failed else 0)
        each = self.per_conversation[cell.name] = {}
        for role, model in cell.roles.items():
            each[role] = usage_by_key[key].get(role, UsageForecast())
            if self._reads_one(model):
                each[role] = usage_by_key[key].get(f"{role}, one by one", each[role])
            self.models[model] = self.models.get(model, UsageForecast()) + each[role] * remaining

    def _reads_one(self, model: str) -> bool:
        """Whether a reading of several texts takes several requests of this model; a wrong name is noted."""
        if model not in self._one_by_one:
            try:
                backend = build(model, self._sweep.clock)
            except VivaError as error:
                self.problems[model] = error
                backend = None
            self._one_by_one[model] = bool(getattr(getattr(backend, "inner", backend), "reads_one", False))
        return self._one_by_one[model]


def _cost(model: str, use: UsageForecast) -> float | None:
    price = known_price(model)
    return None if price is None else round(token_cost(price, use.prompt, use.completion), 6)
