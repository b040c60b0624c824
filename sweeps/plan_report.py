"""Report of a plan: plain data, tables, notes on assumptions, and what-if comparisons."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from viva.engine.errors import JournalError
from viva.engine.journal_reader import History
from viva.engine.run_folder import RunFolder
from viva.reports.figures import estimate_record, round_figure
from viva.reports.page import count_of, number_range
from viva.reports.tables import DASH, Table, number
from viva.scenarios.registry import get_scenario
from viva.scoring.aggregates import Mean
from viva.scoring.intervals import Estimate
from viva.scoring.sample_size import items_for_half_width

from .plan import GUESSED, Plan, Prediction
from .queueing import bounds_of
from .simulation import LEVEL, Bottleneck, bottlenecks, bound_text
from .sweep_file import part_of
from .traces import GUESS_NOTE, PROCESSOR, processor_of

_SIMULATIONS = 3
_WATCHED = 2  # early stopping needs this many times the items of a fixed-sample interval (`scoring.sample_size`)
_HALF_WIDTH = 5.0  # half width in points, if the file has no rule
_FEWEST_SCORES = 10


@dataclass(slots=True, frozen=True)
class WhatIf:
    """A change, and the sweep's predicted seconds and cost (None if unknown) after it."""

    change: str
    seconds: float
    cost: float | None


def compare_changes(plan: Plan) -> list[WhatIf]:
    """Return plausible changes; each scales the plan's figures by its effect, simulated with the plan's own draws."""
    if not plan.cells:
        return []
    simulations = min(_SIMULATIONS, plan.simulations)
    base = plan.expected(plan.world, simulations)
    slots = plan.world.slots
    worlds = [(f"concurrency: {number} instead of {slots}", replace(plan.world, slots=number))
              for number in (2 * slots, max(1, slots // 2))]  # fmt: skip
    for bottleneck in bottlenecks(plan.prediction.courses):
        if bottleneck.model not in plan.models:  # the sweep's slots or the processor
            continue
        bounds = bounds_of(plan.world.renamed.get(bottleneck.model, bottleneck.model))
        if bottleneck.bound in bounds:
            for times, words in ((2.0, "twice"), (0.5, "half")):
                change = f"{words} {bound_text(bottleneck.bound, bounds)} of {bottleneck.model.partition('?')[0]}"
                worlds.append((change, plan.widened(bottleneck.model, bottleneck.bound, times)))
    rows = [_compare(plan, change, base, plan.expected(world, simulations)) for change, world in worlds]
    half = {name: math.ceil(cell.remaining / 2) for name, cell in plan.cells.items()}
    rows.append(_compare(plan, "half of the conversations", base, plan.expected(plan.world, simulations, half)))
    stopped = _stopped_early(plan)
    if stopped is not None:
        width, remaining = stopped
        change = f"until: {{half_width: {width:g}}} (estimated from the scores so far)"
        rows.append(_compare(plan, change, base, plan.expected(plan.world, simulations, remaining)))
    cost = None if plan.prediction.cost is None else plan.prediction.cost.value
    if cost:
        rows.append(WhatIf("half of all prices", plan.prediction.seconds.value, cost / 2))
    return rows


def _compare(plan: Plan, change: str, base: Prediction, changed: Prediction) -> WhatIf:
    seconds = plan.prediction.seconds.value * _ratio(changed.seconds.value, base.seconds.value)
    cost = None
    if plan.prediction.cost is not None and base.cost is not None and changed.cost is not None:
        cost = plan.prediction.cost.value * _ratio(changed.cost.value, base.cost.value)
    return WhatIf(change, seconds, cost)


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else 1.0


def _stopped_early(plan: Plan) -> tuple[float, dict[str, int]] | None:
    """Return (half width, remaining conversations by cell) under early stopping; None if there are too few scores."""
    until = plan.file.until
    width = _HALF_WIDTH if until is None or until.half_width is None else until.half_width
    level = 0.95 if until is None else until.level
    remaining: dict[str, int] = {}
    for run in plan.sweep.runs:
        cell = run.cell
        if cell.name not in plan.cells or not part_of(cell.scenario).scored:
            continue
        score_of = get_scenario(cell.scenario).score_of(cell.settings)
        if score_of is None or not run.done:
            return None
        scores = Mean()
        try:
            with History(RunFolder.open(plan.sweep.out / cell.name).journal) as history:
                for ended in history.ended():
                    score = None if ended.failed else score_of(ended.result)
                    if score is not None:
                        scores.add(score)
        except JournalError:
            return None
        if scores.n < _FEWEST_SCORES or scores.variance is None:
            return None
        needed = _WATCHED * items_for_half_width(width, scores.variance, level)
        remaining[cell.name] = max(1, min(plan.cells[cell.name].remaining, needed - run.done))
    return (width, remaining) if remaining else None


_FAR_BEYOND = 1.5  # above this ratio of planned to observed calls in flight, latency is unknown
_NOTABLE_RETRIES = 0.01  # share of retried calls from which a note is printed
_ENOUGH_ROUNDS = 8  # rounds of conversations (`Plan.rounds`) from which the speed of local models is known
NOT_COUNTED = (
    "not counted: loading weights, retry back-off, endpoint failures, rate limits that are not in the models' names, "
    "and early stopping"
)


class PlanReport:
    """Report of a plan, including simulated what-if comparisons."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.bottlenecks = bottlenecks(plan.prediction.courses)
        self.changes: list[WhatIf] = compare_changes(plan)

    def report(self) -> dict[str, Any]:
        """Return the whole report as plain data: shares 0–1, times in seconds, costs in the currency of the prices."""
        plan, prediction = self._plan, self._plan.prediction
        return {
            "plan": 1,
            "conversations": plan.conversations,
            "seconds": estimate_record(prediction.seconds),
            "tokens": estimate_record(prediction.tokens),
            "cost": None if prediction.cost is None else estimate_record(prediction.cost),
            "journal_bytes": round(plan.journal_bytes),
            "level": None if plan.guessed else LEVEL,
            "simulations": plan.simulations,
            "most_conversations_in_flight": max((course.peak for course in prediction.courses), default=0),
            "models": {model: self._model(model) for model in plan.models},
            "bottleneck": self.bottleneck(),
            "holds": [
                {"model": bottleneck.model, "bound": bottleneck.bound, "share": round(bottleneck.fraction, 4)}
                for bottleneck in self.bottlenecks
            ],
            "what_if": [
                {"change": row.change, "seconds": round(row.seconds, 3), "cost": round_figure(row.cost)}
                for row in self.changes
            ],
            "cells": {
                name: {
                    "left": cell.remaining,
                    "talks": plan.sources[name].conversations,
                    "from": plan.sources[name].words,
                }
                for name, cell in plan.cells.items()
            },
            "budget": None if plan.budget is None else {"amount": plan.budget, "kept": self.within_budget()},
            "notes": self.notes(),
            "problems": {name: error.to_record() for name, error in plan.forecast.problems.items()},
        }

    def within_budget(self) -> bool:
        """Return True if there is no budget, or the upper end of the cost is within it."""
        plan = self._plan
        return plan.budget is None or plan.prediction.cost is None or plan.prediction.cost.high <= plan.budget

    def bottleneck(self) -> str:
        """Return the main bottleneck as text."""
        if not self.bottlenecks:
            return "none: the sweep takes as long as its conversations"
        return self._bottleneck_text(self.bottlenecks[0])

    def tables(self) -> list[Table]:
        """Return the tables: totals, models, bottlenecks, and what-if comparisons."""
        report = self.report()
        plan, prediction = self._plan, self._plan.prediction
        totals = [
            ["duration", *(duration(value) for value in _value_and_ends(prediction.seconds))],
            ["tokens", *(f"{value:,.0f}" for value in _value_and_ends(prediction.tokens))],
            [
                "cost",
                *(
                    [DASH] * 3
                    if prediction.cost is None
                    else [f"{value:,.2f}" for value in _value_and_ends(prediction.cost)]
                ),
            ],
            ["journals on disk", f"{plan.journal_bytes / 1e6:,.1f} MB", "", ""],
        ]
        models = [
            [model, f"{usage['calls']:,}", f"{usage['prompt_tokens']:,}", f"{usage['completion_tokens']:,}",
             number(usage["cost"], 2), str(usage["most_in_flight"])]
            for model, usage in report["models"].items()
        ]  # fmt: skip
        bottleneck_rows = [
            [self._bottleneck_text(bottleneck), f"{bottleneck.fraction:.0%}"] for bottleneck in self.bottlenecks
        ]
        changes = [[row.change, duration(row.seconds), number(row.cost, 2)] for row in self.changes]
        headers = ("guessed", "from", "to") if plan.guessed else ("expected", f"{LEVEL:.0%} from", "to")
        title = (
            f"Plan: {plan.conversations:,} conversations, at most {report['most_conversations_in_flight']:,} at once"
        )
        return [
            (title, ["", *headers], totals),
            ("By model", ["model", "calls", "prompt tokens", "completion tokens", "cost", "most in flight"], models),
            (f"Bottleneck: {report['bottleneck']}", ["bottleneck", "share of time"], bottleneck_rows),
            ("What if", ["change", "duration", "cost"], changes),
        ]

    def notes(self) -> list[str]:
        """Return notes on the assumptions behind the figures and on their limits."""
        plan = self._plan
        notes = []
        if exams := plan.forecast.exams:
            low, high = (round(sum(own[end] for own in exams.values())) for end in (1, 2))
            full = sum(plan.forecast.remaining[name] for name in exams)
            notes.append(
                f"{len(exams):,} adaptive cells count with the median of simulated exams, together {low:,} to {high:,} "
                f"conversations (95%) of at most {full:,}; their models answer as the bank says."
            )
        for words, cells in Counter(source.words for source in plan.sources.values()).items():
            counts = [source.conversations for source in plan.sources.values() if source.words == words]
            prefix = f"{count_of(cells, 'cell')}: "
            if words == GUESSED:
                notes.append(f"{prefix}{GUESS_NOTE}. The range holds only if these assumptions do; a pilot "
                             "(--pilot 0.05) or an earlier run (--from) gives measurements")  # fmt: skip
            else:
                notes.append(f"{prefix}from {number_range(counts)} conversations of {words}")
        for model, price in plan.prices.items():
            if price is not None and price.source:
                notes.append(f"price of {model}: {price.prompt:g} and {price.completion:g} per million tokens "
                             f"({price.source})")  # fmt: skip
            elif price is None:
                notes.append(f"price of {model}: unknown; set price_in= and price_out= in the model's name")
        if note := plan.forecast.batch_note(plan.world.slots):
            notes.append(f"{note}; the duration assumes single calls")
        for processor in dict.fromkeys(processor_of(model) for model in plan.models):
            observed = self._observed_peak(processor)
            planned = max(
                (self._planned_peak(processor, number) for number in range(len(plan.prediction.courses))), default=0
            )
            if observed and planned > _FAR_BEYOND * observed:
                notes.append(f"{processor}: {planned} calls in flight at once, but at most {observed} were observed; "
                             "how long calls take at that load is unknown")  # fmt: skip
        if 0.0 < plan.rounds < _ENOUGH_ROUNDS and any(bottleneck.model == PROCESSOR for bottleneck in self.bottlenecks):
            enough = _ENOUGH_ROUNDS * self._observed_peak(PROCESSOR)
            notes.append(f"{PROCESSOR}: only {plan.rounds:.1f} conversations per parallel call were measured, and the "
                         "first and last of them ran under less load than those of a long sweep; "
                         f"{enough} or more (a larger --pilot) give a reliable speed")  # fmt: skip
        notes += [f"{runs.retry_rate:.1%} of the measured calls were retried" for runs in plan.observed
                  if runs.retry_rate > _NOTABLE_RETRIES]  # fmt: skip
        return [*notes, NOT_COUNTED]

    def _observed_peak(self, processor: str) -> int:
        return max((runs.peaks.get(processor, 0) for runs in self._plan.observed), default=0)

    def _planned_peak(self, processor: str, number: int) -> int:
        course = self._plan.prediction.courses[number]
        return max(
            (tally.peak for model, tally in course.models.items() if processor_of(model) == processor), default=0
        )

    def _model(self, model: str) -> dict[str, Any]:
        plan = self._plan
        tallies = [course.models[model] for course in plan.prediction.courses if model in course.models]
        if not tallies:
            return {"calls": 0, "prompt_tokens": 0, "completion_tokens": 0, "cost": None, "most_in_flight": 0}
        prompt, completion = fmean(tally.prompt for tally in tallies), fmean(tally.completion for tally in tallies)
        cached = fmean(tally.cached for tally in tallies)
        price = plan.prices[model]
        return {
            "calls": round(fmean(tally.calls for tally in tallies)),
            "prompt_tokens": round(prompt),
            "completion_tokens": round(completion),
            **({"cached_tokens": round(cached)} if cached else {}),
            "cost": None if price is None else round_figure(price.cost(prompt, completion, cached)),
            "most_in_flight": max(tally.peak for tally in tallies),
        }

    def _bottleneck_text(self, bottleneck: Bottleneck) -> str:
        plan = self._plan
        if bottleneck.model is None:
            return f"concurrency: {plan.world.slots} conversations at once"
        if bottleneck.bound == "speed":
            return f"speed of {bottleneck.model}"
        bounds = bounds_of(plan.world.renamed.get(bottleneck.model, bottleneck.model))
        return f"{bound_text(bottleneck.bound, bounds)} of {bottleneck.model.partition('?')[0]}"


def duration(seconds: float) -> str:
    """Return seconds as text in a readable unit."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


def _value_and_ends(estimate: Estimate) -> tuple[float, float, float]:
    return estimate.value, estimate.low, estimate.high
