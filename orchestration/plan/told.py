"""A plan in words: plain data for programs, tables for people, and what the figures rest on.

What never belongs here: figures.
"""

from __future__ import annotations

from collections import Counter
from statistics import fmean
from typing import Any

from viva.reports.page import counted, span
from viva.scoring.intervals import Estimate

from .guesses import WORDS
from .plan import GUESSED, Plan
from .stations import bounds_of
from .summary import LEVEL, Hold, holds, named
from .talks import PROCESSOR, place_of_model
from .what_if import WhatIf, what_ifs

Table = tuple[str, list[str], list[list[str]]]
_FAR = 1.5  # times as many calls in flight as were seen: what is known of latency does not reach there
_TRIES = 0.01  # share of calls with a further try that is worth a word
_ROUNDS = 8  # of conversations with local models; after fewer, their speed in a long sweep is not known
NOT_COUNTED = (
    "not counted: loading weights, pauses of further tries, faults of endpoints and limits of theirs that are not in "
    "the models' names, and rules that stop early"
)


class Told:
    """What is said of a plan. The what-if table is simulated when it is first asked for."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.holds = holds(plan.outlook.courses)
        self.changes: list[WhatIf] = what_ifs(plan)

    def report(self) -> dict[str, Any]:
        """Everything as plain data. Shares are 0–1, times seconds, costs in the currency of the prices."""
        plan, outlook = self._plan, self._plan.outlook
        return {
            "plan": 1,
            "conversations": plan.conversations,
            "seconds": _record(outlook.seconds),
            "tokens": _record(outlook.tokens),
            "cost": None if outlook.cost is None else _record(outlook.cost),
            "journal_bytes": round(plan.journal_bytes),
            "level": None if plan.guessed else LEVEL,
            "simulations": plan.simulations,
            "most_conversations_in_flight": max((course.most for course in outlook.courses), default=0),
            "models": {model: self._model(model) for model in plan.models},
            "bottleneck": self.bottleneck(),
            "holds": [{"model": one.model, "bound": one.bound, "share": round(one.share, 4)} for one in self.holds],
            "what_if": [
                {"change": one.change, "seconds": round(one.seconds, 3), "cost": _rounded(one.cost)}
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
            ["duration", *(duration(one) for one in _ends(outlook.seconds))],
            ["tokens", *(f"{one:,.0f}" for one in _ends(outlook.tokens))],
            ["cost", *(["–"] * 3 if outlook.cost is None else [f"{one:,.2f}" for one in _ends(outlook.cost)])],
            ["journals on disk", f"{plan.journal_bytes / 1e6:,.1f} MB", "", ""],
        ]
        models = [
            [model, f"{one['calls']:,}", f"{one['prompt_tokens']:,}", f"{one['completion_tokens']:,}",
             "–" if one["cost"] is None else f"{one['cost']:,.2f}", str(one["most_in_flight"])]
            for model, one in report["models"].items()
        ]  # fmt: skip
        held = [[self._hold(one), f"{one.share:.0%}"] for one in self.holds]
        changes = [[one.change, duration(one.seconds), "–" if one.cost is None else f"{one.cost:,.2f}"]
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
            whose = f"{counted(cells, 'cell')}: "
            if words == GUESSED:
                notes.append(f"{whose}{WORDS}; what sweeps take is promised to be in that range only as far as this "
                             "holds; a pilot (--pilot 0.05) or an earlier run (--from) replaces it")  # fmt: skip
            else:
                notes.append(f"{whose}from {span(some)} conversations of {words}")
        for model, price in plan.prices.items():
            if price is not None and price.source:
                notes.append(f"price of {model}: {price.prompt:g} and {price.completion:g} for a million tokens "
                             f"({price.source})")  # fmt: skip
            elif price is None:
                notes.append(f"price of {model}: not known; price_in= and price_out= in its name say it")
        for place in dict.fromkeys(place_of_model(model) for model in plan.models):
            seen = self._most_seen(place)
            most = max((self._most_at(place, number) for number in range(len(plan.outlook.courses))), default=0)
            if seen and most > _FAR * seen:
                notes.append(f"{place}: {most} calls in flight at once, where at most {seen} were seen; how long calls "
                             "take among so many is not known")  # fmt: skip
        if 0.0 < plan.rounds < _ROUNDS and any(hold.model == PROCESSOR for hold in self.holds):
            enough = _ROUNDS * self._most_seen(PROCESSOR)
            notes.append(f"{PROCESSOR}: {plan.rounds:.1f} conversations for each call in flight were held, and the "
                         "first and the last of them had less company than those of a long sweep; "
                         f"{enough} and more (a larger --pilot) tell its speed")  # fmt: skip
        notes += [f"{one.again:.1%} of the calls that were held needed a further try" for one in plan.heard
                  if one.again > _TRIES]  # fmt: skip
        return [*notes, NOT_COUNTED]

    def _most_seen(self, place: str) -> int:
        return max((one.most.get(place, 0) for one in self._plan.heard), default=0)

    def _most_at(self, place: str, number: int) -> int:
        course = self._plan.outlook.courses[number]
        return max((one.most for model, one in course.models.items() if place_of_model(model) == place), default=0)

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
            "cost": None if price is None else _rounded(price.of(prompt, completion, cached)),
            "most_in_flight": max(one.most for one in tallies),
        }

    def _hold(self, hold: Hold) -> str:
        plan = self._plan
        if hold.model is None:
            return f"concurrency: {plan.world.slots} conversations at once"
        if hold.bound == "speed":
            return f"speed of {hold.model}"
        bounds = bounds_of(plan.world.renamed.get(hold.model, hold.model))
        return f"{named(hold.bound, bounds)} of {hold.model.partition('?')[0]}"


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


def _ends(one: Estimate) -> tuple[float, float, float]:
    return one.value, one.low, one.high


def _record(one: Estimate) -> dict[str, float]:
    return {"value": round(one.value, 6), "low": round(one.low, 6), "high": round(one.high, 6)}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
