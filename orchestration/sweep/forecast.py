"""What a sweep will take, before it begins: conversations, calls, tokens and cost for each model, by arithmetic alone.

Prompts are rendered from the very items and packs; replies are taken to be as long as their limits allow and talks to
go on to the last round. So it is what a sweep may come to, not what is to be expected of it. No model is opened.
What never belongs here: measuring, and prices other than those in the models' names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from viva.agents.evaluator import first_verdict
from viva.data.selection import each_checked_once
from viva.engine.backends.registry import build
from viva.engine.errors import VivaError
from viva.scenarios.candidates import known_price
from viva.scenarios.kieval.scenario import PreparedKieval
from viva.scenarios.probes.probe import ROLE
from viva.scenarios.probes.scenario import PreparedProbe
from viva.scenarios.scenario import scenario

from .progress import CellRun
from .sweep import Sweep

CHARACTERS_PER_TOKEN = 4
ASSUMPTIONS = (
    f"assumed: a token is {CHARACTERS_PER_TOKEN} characters, of local models too; every talk goes to its last round,",
    "and every reply is as long as its limit. Early ends, short replies and rules that stop early make it less. Not",
    "counted: second tries for unreadable verdicts and failed calls, and what chat templates and schemas add.",
)
Table = tuple[str, list[str], list[list[str]]]


@dataclass(slots=True)
class Use:
    """Calls, and tokens in and out; ``a + b`` and ``a * n`` add up and repeat."""

    calls: float = 0.0
    prompt: float = 0.0
    completion: float = 0.0

    def __add__(self, other: Use) -> Use:
        return Use(self.calls + other.calls, self.prompt + other.prompt, self.completion + other.completion)

    def __mul__(self, times: float) -> Use:
        return Use(self.calls * times, self.prompt * times, self.completion * times)


class Forecast:
    """What is left to do of a sweep: of a cell under way, the share of its conversations that have not ended."""

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep
        self.models: dict[str, Use] = {}
        self.problems: dict[str, VivaError] = {}  # by model or cell: what will fail, as far as that can be seen
        self.conversations = 0
        self._one_by_one: dict[str, bool] = {}
        with each_checked_once():
            sweep.survey()
            by_kin: dict[str, dict[str, Use]] = {}
            for run in sweep.runs:
                if run.error is not None:
                    self.problems[run.cell.name] = run.error
                if run.state in ("waiting", "part") and run.total:
                    self._count(run, by_kin)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the figures rest on."""
        return ASSUMPTIONS

    def report(self) -> dict[str, Any]:
        """Everything as plain data."""
        cells = [
            {
                "name": run.cell.name,
                "state": run.state,
                "planned": run.total,
                "done": run.done,
            }
            for run in self._sweep.runs
        ]
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
        cells = [[one["name"], one["state"], str(one["planned"] or "–"), str(one["done"])] for one in report["cells"]]
        models = [
            [
                model,
                *(f"{one[name]:,}" for name in ("calls", "prompt_tokens", "completion_tokens")),
                "–" if one["cost"] is None else f"{one['cost']:.2f}",
            ]
            for model, one in report["models"].items()
        ]
        title = f"At most, for the {report['conversations']:,} conversations that are left"
        return [
            (f"{len(cells)} cells", ["cell", "state", "planned", "done"], cells),
            (title, ["model", "calls", "prompt tokens", "completion tokens", "cost"], models),
        ]

    def _count(self, run: CellRun, by_kin: dict[str, dict[str, Use]]) -> None:
        assert run.total is not None
        cell = run.cell
        kin = cell.settings.model_dump_json(exclude={"candidate", "evaluator", "interactor"})
        if kin not in by_kin:
            prepared = scenario(cell.scenario).prepare(cell.settings)
            uses = _interviews(prepared) if isinstance(prepared, PreparedKieval) else _probes(prepared)
            by_kin[kin] = {role: use * (1 / run.total) for role, use in uses.items()}
        left = run.total - run.done + (run.failed if self._sweep.retry_failed else 0)
        self.conversations += left
        models = {ROLE: cell.model}
        models |= {role: getattr(cell.settings, role) for role in ("interactor", "evaluator") if cell.evaluator}
        for role, model in models.items():
            one = by_kin[kin].get(role, Use())
            if self._reads_one(model):
                one = by_kin[kin].get(f"{role}, one by one", one)
            self.models[model] = self.models.get(model, Use()) + one * left

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


def _interviews(prepared: PreparedKieval) -> dict[str, Use]:
    """What each role takes for all items of one candidate."""
    s, pack = prepared.settings, prepared.pack
    replied, asked, judged = s.candidate_tokens, s.interactor_tokens, s.evaluator_tokens
    told = {name: _tokens(pack.render(f"{name}.system")) for name in ("candidate", "interactor", "evaluator")}
    follow_up = _tokens(pack.render("interactor.reply", reply="")) + replied
    exchange = _tokens(pack.render("evaluator.exchange", question="", reply="")) + asked + replied
    start = max(sum(map(_tokens, first_verdict(pack, right=right))) for right in (True, False))
    rounds = range(s.rounds)
    total = {name: Use() for name in told}
    for item in prepared.dataset.items():
        shown = {"question": item.question, "choices": item.labelled_choices()}
        question = told["candidate"] + _tokens(pack.render("candidate.question", **shown))
        shown |= {"answer": item.labelled_answer(), "reply": ""}
        # What roles see of the first answer: its words, or the choice it names and its words where it names none.
        choice = max(_tokens(item.labelled_choice(index)) for index in range(len(item.choices)))
        first = {"text": replied, "choice": max(replied, choice), "five-shot": choice}[s.first_answer]
        examples = prepared.protocol.examples(item)
        solved = question if examples is None else sum(_tokens(message.content) for message in examples.messages)
        opening = told["interactor"] + _tokens(pack.render("interactor.opening", **shown)) + first
        begun = told["evaluator"] + _tokens(pack.render("evaluator.opening", **shown)) + first + start
        total["candidate"] += Use(
            s.rounds + 1,
            solved + sum(question + first + asked + held * (replied + asked) for held in rounds),
            (s.rounds + 1) * replied,
        )
        total["interactor"] += Use(
            s.rounds, sum(opening + held * (asked + follow_up) for held in rounds), s.rounds * asked
        )
        total["evaluator"] += Use(
            s.rounds, sum(begun + (held + 1) * exchange + held * judged for held in rounds), s.rounds * judged
        )
    return total


def _probes(prepared: Any) -> dict[str, Use]:
    """What the candidate takes for all items: by readings of several continuations, and with a request for each."""
    assert isinstance(prepared, PreparedProbe)
    probe, whole, single = prepared.probe, Use(), Use()
    for item in prepared.dataset.items():
        shots = probe.shots.of(item) if probe.shots is not None else []
        for method in probe.methods:
            match method:
                case "loss":
                    use = Use(1, _tokens(probe.questions.whole(item)))
                    whole, single = whole + use, single + use
                case "generate":
                    said = sum(_tokens(message.content) for message in probe.questions.talk(item, shots).messages)
                    use = Use(1, said, probe.sampling.max_tokens)
                    whole, single = whole + use, single + use
                case _:
                    make = probe.questions.by_letter if method == "letter" else probe.questions.by_text
                    reading = make(item, shots)
                    before = _tokens(reading.shared) + _tokens(reading.context)
                    read = sum(map(_tokens, reading.continuations))
                    whole += Use(1, before + read)
                    single += Use(len(reading.continuations), len(reading.continuations) * before + read)
    if prepared.against is not None:
        for item in prepared.against.items():
            use = Use(1, _tokens(probe.questions.whole(item)))
            whole, single = whole + use, single + use
    return {ROLE: whole, f"{ROLE}, one by one": single}


def _tokens(text: str) -> float:
    return len(text) / CHARACTERS_PER_TOKEN


def _cost(model: str, use: Use) -> float | None:
    price = known_price(model)
    return None if price is None else round((use.prompt * price[0] + use.completion * price[1]) / 1e6, 6)
