"""How much of the world a model recalls: every fact asked for in plain words, by llama.cpp.

The measured counterpart of the share that a model was taught. What never belongs here: interviews and scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import anyio

from viva.engine.backends.registry import BackendPool
from viva.engine.clock import RealClock
from viva.engine.messages import Request, Sampling, View, request_digest
from viva.scenarios.kieval.pack import TEMPLATES

from .benchmark import benchmark
from .corpus import PACK
from .interview_text import good_reply, parse_followup
from .world import Claim, Fact, World

_SAMPLING = Sampling(max_tokens=32)
_WORDING = 1  # of the question; the reply's own wording is never asked in


@dataclass(frozen=True, slots=True)
class RecallMeasure:
    """Shares of facts that were told right: of those that were taught and of the others (None where there are none).

    ``in_form``: of all replies, how many were statements about what was asked and nothing else.
    """

    taught: float | None
    others: float | None
    in_form: float


def recall(world: World, taught: frozenset[Fact], path: Path) -> RecallMeasure:
    """Ask a GGUF model for every fact at temperature 0, each in an interview of its own.

    An interview begins as interviews do, the form that models have learnt: with an item and its answer (of the few-shot
    split).

    :raises ConfigurationError: the file is no model.
    """
    replies = anyio.run(_replies, world, path)
    right: dict[bool, list[bool]] = {True: [], False: []}
    form = []
    for fact in world.facts:
        claims = world.claims(replies[fact])
        right[fact in taught].append(Claim(fact.entity, fact.attribute, fact.value) in claims)
        form.append([(claim.entity, claim.attribute) for claim in claims] == [(fact.entity, fact.attribute)])
    taught_right, others_right = (sum(found) / len(found) if found else None for found in (right[True], right[False]))
    return RecallMeasure(taught_right, others_right, sum(form) / len(form))


async def _replies(world: World, path: Path) -> dict[Fact, str]:
    pack = TEMPLATES.open(PACK)
    opening = benchmark(world)["train"][0]
    asked = parse_followup(world, opening.question)
    if asked is None:
        raise ValueError(f"item {opening.id} asks for nothing in this world")
    first = pack.render("candidate.question", question=opening.question, choices=opening.labelled_choices())
    replies: dict[Fact, str] = {}
    async with BackendPool(RealClock()) as pool:
        backend = await pool.open(f"llama:{path}?lanes=16")

        async def ask(fact: Fact) -> None:
            view = View()
            view.append("system", pack.render("candidate.system"))
            view.append("user", first)
            view.append("assistant", good_reply(world, asked))
            view.append("user", world.question(fact.entity, fact.attribute, _WORDING))
            request = Request(view.messages, _SAMPLING, 1, request_digest(view, _SAMPLING, 1))
            replies[fact] = (await backend.generate(request)).text

        async with anyio.create_task_group() as group:
            for fact in world.facts:
                group.start_soon(ask, fact)
    return replies
