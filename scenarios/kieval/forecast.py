"""What interviews take at most: prompts rendered from the very items and pack, replies as long as their limits allow.

What never belongs here: prices, and what is to be expected rather than the most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from viva.agents.assistants.example import Advice
from viva.agents.assistants.names import assistants
from viva.agents.assistants.words import advised
from viva.agents.prompts import PromptPack
from viva.data.items import Item
from viva.engine.messages import View

from ..forecast import Use, tokens_in
from .evaluator import first_verdict
from .settings import KievalSettings


def interview_use(
    settings: KievalSettings, items: Iterable[Item], pack: PromptPack, examples: Callable[[Item], View | None]
) -> dict[str, Use]:
    """What each role takes for all items of one candidate."""
    s = settings
    replied, asked, judged = s.candidate_tokens, s.interactor_tokens, s.evaluator_tokens
    told = {name: tokens_in(pack.render(f"{name}.system")) for name in ("candidate", "interactor", "evaluator")}
    follow_up = tokens_in(pack.render("interactor.reply", reply="")) + replied
    asked_too = assistants(settings.assistant)
    advice = advised("", asked_too, [Advice(one.name, one.high) for one in asked_too])
    exchange = tokens_in(pack.render("evaluator.exchange", question="", reply="") + advice) + asked + replied
    start = max(sum(map(tokens_in, first_verdict(pack, right=right))) for right in (True, False, None))
    rounds = range(s.rounds)
    total = {name: Use() for name in told} | {one.role: Use() for one in asked_too if one.model is not None}
    for item in items:
        of = "free_" if item.free else ""
        shown = {"question": item.question} | ({} if item.free else {"choices": item.labelled_choices()})
        question = told["candidate"] + tokens_in(pack.render(f"candidate.{of}question", **shown))
        shown |= {"answer": item.labelled_answer(), "reply": ""}
        # What roles see of the first answer: its words, or the choice it names and its words where it names none.
        choice = max((tokens_in(item.labelled_choice(index)) for index in range(len(item.choices))), default=0)
        first = {"text": replied, "choice": max(replied, choice), "five-shot": choice}[s.first_answer]
        solving = examples(item)
        solved = question if solving is None else sum(tokens_in(message.content) for message in solving.messages)
        asks = tokens_in(pack.render("interactor.free_system")) if of and "interactor.free_system" in pack else None
        opening = told["interactor"] if asks is None else asks
        opening += tokens_in(pack.render(f"interactor.{of}opening", **shown)) + first
        begun = told["evaluator"] + tokens_in(pack.render(f"evaluator.{of}opening", **shown)) + first
        begun += 0 if item.free else start
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
        for one in asked_too:
            if one.model is not None:  # each reads the talk so far; what a grade is long does not matter beside that
                total[one.role] += Use(s.rounds, sum((held + 1) * (asked + replied) for held in rounds), 0)
    return total
