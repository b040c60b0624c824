"""The report of a plan: plain data, tables, what the figures rest on, and what-if comparisons."""

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
_WATCHED = 2  # times as many items as for an interval that is looked at once (``scoring.planning``)
_HALF_WIDTH = 5.0  # points, where the file has no rule
_FEWEST_SCORES = 10


@dataclass(slots=True, frozen=True)
class WhatIf:
    """A change and what it would make of the plan: seconds and cost (None where it is not known)."""

    change: str
    seconds: float
    cost: float | None


def compare_changes(plan: Plan) -> list[WhatIf]:
    """Changes that suggest themselves, each with the plan's figures times what it does under the same draws."""
    if not plan.cells:
        return []
    few = min(_SIMULATIONS, plan.simulations)
    base = plan.expected(plan.world, few)
    slots = plan.world.slots
    worlds = [(f"concurrency: {number} in place of {slots}", replace(plan.world, slots=number))
              for number in (2 * slots, max(1, slots // 2))]  # fmt: skip
    for hold in bottlenecks(plan.outlook.courses):
        if hold.model not in plan.models:  # of the sweep itself, or of the processor
            continue
        bounds = bounds_of(plan.world.renamed.get(hold.model, hold.model))
        if hold.bound in bounds:
            for times, words in ((2.0, "twice"), (0.5, "half")):
                change = f"{words} {bound_text(hold.bound, bounds)} of {hold.model.partition('?')[0]}"
                worlds.append((change, plan.widened(hold.model, hold.bound, times)))
    rows = [_compare(plan, change, base, plan.expected(world, few)) for change, world in worlds]
    half = {name: math.ceil(cell.left / 2) for name, cell in plan.cells.items()}
    rows.append(_compare(plan, "half of the conversations", base, plan.expected(plan.world, few, half)))
    stopped = _stopped_early(plan)
    if stopped is not None:
        width, left = stopped
        change = f"until: {{half_width: {width:g}}}, as far as the scores so far tell"
        rows.append(_compare(plan, change, base, plan.expected(plan.world, few, left)))
    cost = None if plan.outlook.cost is None else plan.outlook.cost.value
    if cost:
        rows.append(WhatIf("half of all prices", plan.outlook.seconds.value, cost / 2))
    return rows


def _compare(plan: Plan, change: str, base: Prediction, other: Prediction) -> WhatIf:
    seconds = plan.outlook.seconds.value * _ratio(other.seconds.value, base.seconds.value)
    cost = None
    if plan.outlook.cost is not None and base.cost is not None and other.cost is not None:
        cost = plan.outlook.cost.value * _ratio(other.cost.value, base.cost.value)
    return WhatIf(change, seconds, cost)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 1.0


def _stopped_early(plan: Plan) -> tuple[float, dict[str, int]] | None:
    """The half width, and the conversations to come under a rule that ends cells at it; None where scores are few."""
    until = plan.file.until
    width = _HALF_WIDTH if until is None or until.half_width is None else until.half_width
    level = 0.95 if until is None else until.level
    left: dict[str, int] = {}
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
        left[cell.name] = max(1, min(plan.cells[cell.name].left, needed - run.done))
    return (width, left) if left else None


_FAR_BEYOND = 1.5  # times as many calls in flight as were seen: what is known of latency does not reach there
_NOTABLE_RETRIES = 0.01  # share of calls with a further try that is worth a word
_ENOUGH_ROUNDS = 8  # of conversations with local models; after fewer, their speed in a long sweep is not known
NOT_COUNTED = (
    "not counted: loading weights, pauses of further tries, faults of endpoints and limits of theirs that are not in "
    "the models' names, and rules that stop early"
)


class PlanReport:
    """What is said of a plan. The what-if table is simulated when it is first asked for."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.holds = bottlenecks(plan.outlook.courses)
        self.changes: list[WhatIf] = compare_changes(plan)

    def report(self) -> dict[str, Any]:
        """Everything as plain data. Shares are 0–1, times seconds, costs in the currency of the prices."""
        plan, outlook = self._plan, self._plan.outlook
        return {
            "plan": 1,
            "conversations": plan.conversations,
            "seconds": estimate_record(outlook.seconds),
            "tokens": estimate_record(outlook.tokens),
            "cost": None if outlook.cost is None else estimate_record(outlook.cost),
            "journal_bytes": round(plan.journal_bytes),
            "level": None if plan.guessed else LEVEL,
            "simulations": plan.simulations,
            "most_conversations_in_flight": max((course.most for course in outlook.courses), default=0),
            "models": {model: self._model(model) for model in plan.models},
            "bottleneck": self.bottleneck(),
            "holds": [{"model": one.model, "bound": one.bound, "share": round(one.share, 4)} for one in self.holds],
            "what_if": [
                {"change": one.change, "seconds": round(one.seconds, 3), "cost": round_figure(one.cost)}
                for one in self.changes
            ],
            "cells": {
                name: {"left": cell.left, "talks": plan.sources[name].talks, "from": plan.sources[name].words}
                for name, cell in plan.cells.items()
            },
            "budget": None if plan.budget is None else {"amount": plan.budget, "kept": self.within_budget()},
            "notes": self.notes(),
            "problems": {name: error.to_record() for name, error in plan.forecast.problems.items()},
        }

    def within_budget(self) -> bool:
        """Whether even the upper end of the cost stays within the budget; True without one."""
        plan = self._plan
        return plan.budget is None or plan.outlook.cost is None or plan.outlook.cost.high <= plan.budget

    def bottleneck(self) -> str:
        """What to widen for the sweep to be faster, in words."""
        if not self.holds:
            return "no bound: the sweep takes as long as its conversations do"
        return self._hold(self.holds[0])

    def tables(self) -> list[Table]:
        """The plan, its models, what holds calls back, and what would be different if."""
        report = self.report()
        plan, outlook = self._plan, self._plan.outlook
        whole = [
            ["duration", *(duration(one) for one in _value_and_ends(outlook.seconds))],
            ["tokens", *(f"{one:,.0f}" for one in _value_and_ends(outlook.tokens))],
            [
                "cost",
                *([DASH] * 3 if outlook.cost is None else [f"{one:,.2f}" for one in _value_and_ends(outlook.cost)]),
            ],
            ["journals on disk", f"{plan.journal_bytes / 1e6:,.1f} MB", "", ""],
        ]
        models = [
            [model, f"{one['calls']:,}", f"{one['prompt_tokens']:,}", f"{one['completion_tokens']:,}",
             number(one["cost"], 2), str(one["most_in_flight"])]
            for model, one in report["models"].items()
        ]  # fmt: skip
        held = [[self._hold(one), f"{one.share:.0%}"] for one in self.holds]
        changes = [[one.change, duration(one.seconds), number(one.cost, 2)]
                   for one in self.changes]  # fmt: skip
        heads = ("guessed", "from", "to") if plan.guessed else ("expected", f"{LEVEL:.0%} from", "to")
        title = (
            f"Planned: {plan.conversations:,} conversations, at most {report['most_conversations_in_flight']:,} at once"
        )
        return [
            (title, ["", *heads], whole),
            ("By model", ["model", "calls", "prompt tokens", "completion tokens", "cost", "most in flight"], models),
            (f"Bottleneck: {report['bottleneck']}", ["holds calls back", "share of the time"], held),
            ("What if", ["change", "duration", "cost"], changes),
        ]

    def notes(self) -> list[str]:
        """What the figures rest on, and where they reach beyond it."""
        plan = self._plan
        notes = []
        for words, cells in Counter(source.words for source in plan.sources.values()).items():
            some = [source.talks for source in plan.sources.values() if source.words == words]
            whose = f"{count_of(cells, 'cell')}: "
            if words == GUESSED:
                notes.append(f"{whose}{GUESS_NOTE}; what sweeps take is promised to be in that range only as far as "
                             "this holds; a pilot (--pilot 0.05) or an earlier run (--from) replaces it")  # fmt: skip
            else:
                notes.append(f"{whose}from {number_range(some)} conversations of {words}")
        for model, price in plan.prices.items():
            if price is not None and price.source:
                notes.append(f"price of {model}: {price.prompt:g} and {price.completion:g} for a million tokens "
                             f"({price.source})")  # fmt: skip
            elif price is None:
                notes.append(f"price of {model}: not known; price_in= and price_out= in its name say it")
        for place in dict.fromkeys(processor_of(model) for model in plan.models):
            seen = self._most_seen(place)
            most = max((self._most_at(place, number) for number in range(len(plan.outlook.courses))), default=0)
            if seen and most > _FAR_BEYOND * seen:
                notes.append(f"{place}: {most} calls in flight at once, where at most {seen} were seen; how long calls "
                             "take among so many is not known")  # fmt: skip
        if 0.0 < plan.rounds < _ENOUGH_ROUNDS and any(hold.model == PROCESSOR for hold in self.holds):
            enough = _ENOUGH_ROUNDS * self._most_seen(PROCESSOR)
            notes.append(f"{PROCESSOR}: {plan.rounds:.1f} conversations for each call in flight were held, and the "
                         "first and the last of them had less company than those of a long sweep; "
                         f"{enough} and more (a larger --pilot) tell its speed")  # fmt: skip
        notes += [f"{one.again:.1%} of the calls that were held needed a further try" for one in plan.heard
                  if one.again > _NOTABLE_RETRIES]  # fmt: skip
        return [*notes, NOT_COUNTED]

    def _most_seen(self, place: str) -> int:
        return max((one.most.get(place, 0) for one in self._plan.heard), default=0)

    def _most_at(self, place: str, number: int) -> int:
        course = self._plan.outlook.courses[number]
        return max((one.most for model, one in course.models.items() if processor_of(model) == place), default=0)

    def _model(self, model: str) -> dict[str, Any]:
        plan = self._plan
        tallies = [course.models[model] for course in plan.outlook.courses if model in course.models]
        if not tallies:
            return {"calls": 0, "prompt_tokens": 0, "completion_tokens": 0, "cost": None, "most_in_flight": 0}
        prompt, completion = fmean(one.prompt for one in tallies), fmean(one.completion for one in tallies)
        cached = fmean(one.cached for one in tallies)
        price = plan.prices[model]
        return {
            "calls": round(fmean(one.calls for one in tallies)),
            "prompt_tokens": round(prompt),
            "completion_tokens": round(completion),
            **({"cached_tokens": round(cached)} if cached else {}),
            "cost": None if price is None else round_figure(price.of(prompt, completion, cached)),
            "most_in_flight": max(one.most for one in tallies),
        }

    def _hold(self, hold: Bottleneck) -> str:
        plan = self._plan
        if hold.model is None:
            return f"concurrency: {plan.world.slots} conversations at once"
        if hold.bound == "speed":
            return f"speed of {hold.model}"
        bounds = bounds_of(plan.world.renamed.get(hold.model, hold.model))
        return f"{bound_text(hold.bound, bounds)} of {hold.model.partition('?')[0]}"


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


def _value_and_ends(one: Estimate) -> tuple[float, float, float]:
    return one.value, one.low, one.high
