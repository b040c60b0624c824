"""Forecast of a run before it begins: upper bounds of its calls, tokens and cost; no model is opened.

Prompts are rendered from the actual items and packs. Every reply is assumed to be as long as its limit allows, and
every conversation to reach its last round. An adaptive run has its exam beside the full one: how many items it asks is
simulated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from viva.engine.backends.endpoint_address import without_keys
from viva.engine.backends.registry import build
from viva.engine.clock import Clock, RealClock
from viva.reports.run_tables import token_cost
from viva.reports.tables import Table, money
from viva.scenarios.contract import CHARACTERS_PER_TOKEN, Prepared, Role, SupportsForecast, UsageForecast
from viva.scenarios.models import known_price, model_labels
from viva.scoring.exam_course import ExamForecast, forecast_exams
from viva.scoring.intervals import Estimate

from .exams import open_exam
from .prepared_run import PreparedRun

ASSUMPTIONS = (
    f"assumptions: one token is {CHARACTERS_PER_TOKEN} characters, for local models too; every conversation reaches",
    "its last round, and every reply is as long as its limit. Early ends, short replies and early stopping lower",
    "the figures. Not counted: repeated calls after unreadable verdicts or failures, chat templates, and schemas.",
)
EXAM_ASSUMPTIONS = (
    "adaptive exams: median and 95% of simulated exams; their models answer as the bank says, with abilities like",
    "those of the bank's models. Each item has the calls and tokens of the full exam's mean item.",
)
ONE_BY_ONE = "one by one"  # the entry of a role for models that need a request for each text
_USAGE = ("calls", "prompt_tokens", "completion_tokens")
_HEADER = ["calls", "prompt tokens", "completion tokens", "cost"]


def usage_by_role(prepared: PreparedRun) -> dict[str, UsageForecast]:
    """Return the maximum usage of a mean conversation by the entries of `SupportsForecast`; empty if it is unknown."""
    if not isinstance(prepared.scenario, SupportsForecast):
        return {}
    opened: Prepared[Any] = prepared.opened
    if prepared.is_adaptive and not prepared.settings.learns:  # type: ignore[attr-defined]
        ids = set(open_exam(prepared)[0])
        opened = replace(opened, tasks=[task for task in opened.tasks if task.id in ids])
    uses = prepared.scenario.forecast(prepared.settings, opened, prepared.pack)
    return {role: use * (1.0 / max(1, len(opened.tasks))) for role, use in uses.items()}


def reads_one(model: str, clock: Clock) -> bool:
    """Return True if a model needs a request for each likelihood.

    Raises:
        VivaError: The model's name is invalid.
    """
    backend = build(model, clock)
    return bool(getattr(getattr(backend, "inner", backend), "reads_one", False))


def usage_record(use: UsageForecast) -> dict[str, int]:
    """Return calls and tokens as plain data."""
    numbers = (round(use.calls), math.ceil(use.prompt), math.ceil(use.completion))
    return dict(zip(_USAGE, numbers, strict=True))


def usage_cost(model: str, use: UsageForecast) -> float | None:
    """Return the cost of a model's tokens; None if its price is unknown."""
    price = known_price(model)
    return None if price is None else round(token_cost(price, use.prompt, use.completion), 6)


class RunForecast:
    """Upper bounds of calls, tokens and cost of a run that has not begun, by model.

    Raises:
        ConfigurationError: A bank or a model's name is wrong.
    """

    def __init__(self, prepared: PreparedRun) -> None:
        self._prepared = prepared
        self._labels = len(prepared.lineups)
        self.exams: ExamForecast | None = None
        self._items = len(prepared.opened.tasks)
        if prepared.is_adaptive and prepared.settings.learns:  # type: ignore[attr-defined]
            self._items = prepared.total // self._labels  # who ends earlier cannot be known without a bank
        elif prepared.is_adaptive:
            ids, course = open_exam(prepared)
            self._items = len(ids)
            self.exams = forecast_exams(course, self._labels, prepared.settings.seed)
        self._uses = usage_by_role(prepared)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions behind the figures, or why there are none."""
        if not self._uses:
            return (f"{self._prepared.scenario.name}: this scenario forecasts no calls and tokens",)
        return (*ASSUMPTIONS, *(EXAM_ASSUMPTIONS if self.exams else ()))

    def report(self) -> dict[str, Any]:
        """Return everything as plain data; of an adaptive run, `models` is about the full exam."""
        prepared = self._prepared
        whole = self._items * self._labels * prepared.repeats
        uses = self._by_model(self._items * prepared.repeats, whole)
        report = {
            "forecast": 1,
            "scenario": prepared.scenario.name,
            "conversations": whole,
            "models": {model: _with_cost(model, use) for model, use in uses.items()},
            "assumptions": " ".join(self.assumptions),
        }
        return report if self.exams is None else report | {"adaptive": self._exams(self.exams)}

    def tables(self) -> list[Table]:
        """Return the report as tables."""
        report = self.report()
        exams = report.get("adaptive")
        rows = []
        for model, record in report["models"].items():
            cells = [f"{record[name]:,}" for name in _USAGE]
            rows.append([model, *(["full"] if exams else []), *cells, money(record["cost"])])
            if exams:
                own = exams["models"][model]
                rows.append([model, "adaptive", *(_range(own[name]) for name in _USAGE), _range(own["cost"])])
        if exams is None:
            title = f"Upper bounds for {report['conversations']:,} conversations"
            return [(title, ["model", *_HEADER], rows)]
        settings: Any = self._prepared.settings
        title = (
            f"Items until {settings.rule}, at most {exams['limit']:,} for each candidate, in waves of up to "
            f"{settings.wave}"
        )
        items = [
            ["each candidate", f"{self._items:,}", _range(exams["items"])],
            [f"all {self._labels} together", f"{report['conversations']:,}", _range(exams["conversations"])],
        ]
        return [
            (title, ["exam of", "full", "adaptive"], items[: 1 + (self._labels > 1)]),
            ("Upper bounds of the full exam, and of the adaptive one", ["model", "exam", *_HEADER], rows),
        ]

    def _exams(self, exams: ExamForecast) -> dict[str, Any]:
        """Return the field about adaptive exams: median, low and high of everything."""
        ends = {
            name: self._by_model(getattr(exams.each, name), getattr(exams.total, name))
            for name in ("value", "low", "high")
        }
        models: dict[str, Any] = {}
        for model in ends["value"]:
            records = {name: _with_cost(model, uses[model]) for name, uses in ends.items()}
            models[model] = {
                figure: None if records["value"][figure] is None else _ends(*(own[figure] for own in records.values()))
                for figure in (*_USAGE, "cost")
            }
        return {
            "items": _ends(*_numbers(exams.each)),
            "conversations": _ends(*_numbers(exams.total)),
            "limit": self._prepared.total // self._labels,
            "models": models,
        }

    def _by_model(self, each: float, total: float) -> dict[str, UsageForecast]:
        """Return usage by model: `each` conversations for a lineup of compared models, `total` for all lineups."""
        uses: dict[str, UsageForecast] = {}
        for role in self._prepared.roles if self._uses else ():
            labels = model_labels(role.models(self._prepared.settings))
            for label, model in labels.items():
                times = sum(lineup.get(role.name) == label for lineup in self._prepared.lineups.values())
                use = self._of_role(role, model) * (each * times if role.many else total)
                uses[model] = uses.get(model, UsageForecast()) + use
        return uses

    def _of_role(self, role: Role, model: str) -> UsageForecast:
        with without_keys():
            single = reads_one(model, RealClock())
        use = self._uses.get(role.name, UsageForecast())
        return self._uses.get(f"{role.name}, {ONE_BY_ONE}", use) if single else use


def _with_cost(model: str, use: UsageForecast) -> dict[str, Any]:
    return usage_record(use) | {"cost": usage_cost(model, use)}


def _numbers(estimate: Estimate) -> tuple[int, int, int]:
    return round(estimate.value), round(estimate.low), round(estimate.high)


def _ends(value: float, low: float, high: float) -> dict[str, float]:
    return {"median": value, "low": low, "high": high}


def _range(ends: Mapping[str, float] | None) -> str:
    if ends is None:
        return money(None)
    texts = {name: f"{number:,}" if isinstance(number, int) else money(number) for name, number in ends.items()}
    median, low, high = (texts[name] for name in ("median", "low", "high"))
    return median if low == high else f"{median} ({low} to {high})"
