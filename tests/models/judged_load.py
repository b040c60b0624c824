"""What judges of known habits answer at each load, as the log of a load test has it, without any server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from viva.agents.forms import form_schema
from viva.agents.judge import SCALES, PairVerdict, grade_form
from viva.engine.messages import Message, Sampling
from viva.loadtest.load_records import BASELINE, SECOND_BASELINE, LoadRequest, LoadStep, SentRequest
from viva.loadtest.load_report import make_load_record
from viva.loadtest.step_judgement import passes_by_judge
from viva.loadtest.workload import Workload

GRADE = form_schema(grade_form(SCALES["1-10"]))
PAIR = form_schema(PairVerdict)
RATES = (1.0, 4.0, 8.0)
# From a request's number, the load (0 unloaded) and a private generator to text and finish.
Habit = Callable[[int, float, np.random.Generator], tuple[str, str]]


def graded(count: int = 60) -> list[LoadRequest]:
    """Requests for grades, a third of which have a reference."""
    return [
        LoadRequest(
            f"r{at:03}",
            (Message("user", f"Grade {at}"),),
            Sampling(schema=GRADE),
            reader="schema",
            reference=float(at % 8 + 2) if at % 3 == 0 else None,
        )
        for at in range(count)
    ]


def paired(count: int = 40) -> list[LoadRequest]:
    """Requests for pairwise verdicts, both orders of each pair."""
    return [
        LoadRequest(f"p{at}{order}", (Message("user", f"Compare {at}{order}"),), Sampling(schema=PAIR), reader="schema",
                    pair=f"p{at}{'yx'['xy'.index(order)]}", reference="AB"[(at + (order == "y")) % 2])
        for at in range(count)
        for order in "xy"
    ]  # fmt: skip


def grade(score: float) -> tuple[str, str]:
    """A verdict with a score from 1 to 10."""
    return json.dumps({"reasoning": "as it is", "score": int(min(10, max(1, round(score))))}), "stop"


def sound(at: int, load: float, generator: np.random.Generator) -> tuple[str, str]:
    """The same at any load, with some noise."""
    return grade(at % 8 + 2 + generator.normal(0.0, 0.6))


def truncating(at: int, load: float, generator: np.random.Generator) -> tuple[str, str]:
    """Cuts a third of its answers from 8/s on."""
    text, finish = sound(at, load, generator)
    return (text[:18], "length") if load >= 8 and at % 3 == 0 else (text, finish)


def flattening(at: int, load: float, generator: np.random.Generator) -> tuple[str, str]:
    """Gives nearly everything the same score from 8/s on."""
    return grade(5.5 + generator.normal(0.0, 0.4)) if load >= 8 else sound(at, load, generator)


def smaller(at: int, load: float, generator: np.random.Generator) -> tuple[str, str]:
    """From 4/s on another model answers, whose scores have the same mean and spread."""
    return grade((at * 5 + 3) % 8 + 2 + generator.normal(0.0, 0.6)) if load >= 4 else sound(at, load, generator)


def first_favoured(at: int, load: float, generator: np.random.Generator) -> tuple[str, str]:
    """A pairwise judge that prefers whatever stands first from 4/s on."""
    better = "A" if load >= 4 else "AB"[(at // 2 + at % 2) % 2]
    return json.dumps({"reasoning": "", "verdict": better}), "stop"


def steps_of(judges: Sequence[str], rates: Sequence[float] = RATES) -> list[LoadStep]:
    """Two unloaded passes and a step for each rate."""
    every = tuple(judges)
    unloaded = [LoadStep(step, every, "closed", concurrency=1, requests=1) for step in (BASELINE, SECOND_BASELINE)]
    return unloaded + [LoadStep(at, every, "poisson", rate=rate, requests=1) for at, rate in enumerate(rates)]


def answers(
    judge: str,
    habit: Habit,
    requests: Sequence[LoadRequest],
    steps: Sequence[LoadStep],
    seed: int = 0,
    lost: Mapping[float, float] | None = None,
) -> Iterator[SentRequest]:
    """What a judge's log holds. ``lost``: the share of requests that fail, by rate."""
    for step in steps:
        generator = np.random.default_rng([seed, len(judge), ord(judge[0]), step.index + 10])
        for at, request in enumerate(requests):
            text, finish = habit(at, step.rate or 0.0, generator)
            if at < round((lost or {}).get(step.rate or 0.0, 0.0) * len(requests)):
                yield SentRequest(
                    step.index,
                    judge,
                    at,
                    request.id,
                    0,
                    7,
                    0.1 * at,
                    0.1 * at,
                    None,
                    0.1 * at,
                    "",
                    "",
                    0,
                    0,
                    "Throttled",
                )
                continue
            yield SentRequest(step.index, judge, at, request.id, 0, 7, 0.1 * at, 0.1 * at, 0.1 * at + 0.05,
                0.1 * at + 0.2,
                       text, finish, 100, 20)  # fmt: skip


def reported(
    habits: dict[str, Habit],
    requests: Sequence[LoadRequest] = (),
    *,
    lost: Mapping[float, float] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """The record of judges of these habits. ``lost``: the share of requests that fail, by rate."""
    held = list(requests) or graded()
    steps = steps_of(list(habits))
    sent = (one for judge, habit in habits.items() for one in answers(judge, habit, held, steps, lost=lost))
    passes = passes_by_judge({request.id: request for request in held}, steps, sent)
    return make_load_record(Workload("work.jsonl", "requests", held), passes, steps, **more)
