"""Calls whose answers are evidence of contamination: what each witness in `scoring/evidence` needs, item by item.

All draws (of orders, neighbours and masked choices) follow from the run's seed and the item's id, so every candidate
gets the same questions. Records hold what was measured, not the statistic: that is computed when the evidence is read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

from viva.data.items import Item
from viva.engine import seeds
from viva.engine.conversation import Conversation
from viva.engine.likelihood import Reading
from viva.engine.messages import Sampling
from viva.scoring.evidence.peakedness import peak

from .probe_prompts import ProbeHint, Questions

SHARD_ITEMS, SHUFFLES = 6, 19  # items of a shard, and its other orders: p of one shard is at least 1 in 20
PERMUTATIONS = 5  # other orders of an item's options; four options have five that keep the key's letter
NEIGHBOURS = 2  # items in an item's context
SAMPLES, SAMPLE_TOKENS, TEMPERATURE = 10, 64, 0.8

_SET_PHRASES = re.compile(
    r"\b(?:all|none|both|neither|any|each) (?:of|are|is)\b|\bthe above\b|"
    r"\b(?:[a-f]|i{1,3}|iv)(?:, | ?& ?| and/or |,? (?:and|or) )(?:[a-f]|i{1,3}|iv)\b",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")


@dataclass(slots=True)
class WitnessCalls:
    """The calls of one run. `seed` is the run's."""

    questions: Questions
    seed: int
    candidate: str

    async def order(self, conversation: Conversation, items: Sequence[Item]) -> dict[str, Any]:
        """Return the log-likelihood, in nats, of items as one text: in their published order and shuffled."""
        generator = seeds.generator("probe shard", self.seed, items[0].id)
        orders = [items, *(generator.sample(items, len(items)) for _ in range(SHUFFLES))]
        texts = tuple(self.questions.shard_text(order) for order in orders)
        totals = [likelihood.total for likelihood in await conversation.read(self.candidate, Reading("", texts))]
        return {"published": totals[0], "shuffled": totals[1:]}

    async def options(self, conversation: Conversation, item: Item, unseen: bool) -> dict[str, Any] | None:
        """Return log-likelihoods of the item, and whether its letter was chosen, by order of its options.

        The first order is the published one; the key keeps its letter. None if the options have an order of their own.
        """
        variants = permuted_items(item, self.seed)
        if not variants:
            return None
        texts = tuple(map(self.questions.item_text, variants))
        likelihoods = await conversation.read(self.candidate, Reading("", texts, hint=ProbeHint(item, unseen)))
        totals = [likelihood.total for likelihood in likelihoods]
        right, choices = [], []
        for variant in variants:
            letters = await conversation.read(self.candidate, self.questions.by_letter(variant, ()))
            sums = [likelihood.total for likelihood in letters]
            choice = sums.index(max(sums))
            right.append(choice == item.answer)
            choices.append(item.choices.index(variant.choices[choice]))
        return {"published": totals[0], "permuted": totals[1:], "right": right, "choices": choices}

    async def context(
        self, conversation: Conversation, item: Item, neighbours: Sequence[Item], unseen: bool
    ) -> dict[str, float]:
        """Return the mean log-likelihood per token of the item alone, and after other items; in nats."""
        text, hint = self.questions.item_text(item), ProbeHint(item, unseen)
        before = self.questions.shard_text(neighbours) + "\n\n"
        [alone] = await conversation.read(self.candidate, Reading("", (text,), hint=hint))
        [within] = await conversation.read(self.candidate, Reading(before, (text,), hint=hint))
        # At the beginning of a text, the first token may have no likelihood.
        count = min(len(alone.logprobs), len(within.logprobs))
        return {
            "alone": math.fsum(alone.logprobs[-count:]) / count,
            "within": math.fsum(within.logprobs[-count:]) / count,
        }

    async def guess(self, conversation: Conversation, item: Item) -> dict[str, str] | None:
        """Return a wrong choice that was masked, and the candidate's answer when it is asked for the missing one."""
        wrong = [index for index in range(len(item.choices)) if index != item.answer]
        if not wrong:
            return None
        masked = seeds.generator("probe mask", self.seed, item.id).choice(wrong)
        view = self.questions.masked_view(item, masked)
        sampling = Sampling(max_tokens=SAMPLE_TOKENS)
        completion = await conversation.generate(self.candidate, view, sampling, hint=ProbeHint(item))
        lines = completion.text.strip().splitlines()
        return {"choice": item.choices[masked], "answer": lines[0] if lines else ""}

    async def samples(self, conversation: Conversation, item: Item) -> dict[str, Any]:
        """Return how peaked sampled answers are around the greedy one, and that answer; words count as tokens."""
        view = self.questions.free_view(item)
        answers = []
        for number in range(SAMPLES + 1):
            sampling = Sampling(temperature=TEMPERATURE if number else 0.0, max_tokens=SAMPLE_TOKENS)
            completion = await conversation.generate(self.candidate, view, sampling, hint=ProbeHint(item))
            answers.append(completion.text.split())
        return {"peak": peak(answers[0], answers[1:]), "greedy": " ".join(answers[0]), "samples": SAMPLES}


def option_orders(item: Item, seed: int) -> list[list[str]]:
    """Return other orders of the options in which the key keeps its letter; none if the options have their own order.

    Options have their own order if one of them refers to others, if all are numbers, or if two are alike.
    """
    choices = [choice.strip().casefold() for choice in item.choices]
    numbers = all(_NUMBER.search(choice) for choice in choices)
    if len({*choices}) < len(choices) or numbers or any(map(_SET_PHRASES.search, choices)):
        return []
    places = [index for index in range(len(choices)) if index != item.answer]
    if len(places) < 2:
        return []
    generator = seeds.generator("probe options", seed, item.id)
    if len(places) <= 4:
        orders = [order for order in permutations(places) if list(order) != places]
        orders = generator.sample(orders, min(PERMUTATIONS, len(orders)))
    else:
        others: dict[tuple[int, ...], None] = {}
        while len(others) < PERMUTATIONS:
            order = tuple(generator.sample(places, len(places)))
            others |= {order: None} if list(order) != places else {}
        orders = list(others)
    return [_reordered(item, places, order) for order in orders]


def permuted_items(item: Item, seed: int) -> list[Item]:
    """Return the item, then the item with its options in other orders; none if they have an order of their own."""
    orders = option_orders(item, seed)
    return [item, *(replace(item, choices=choices) for choices in orders)] if orders else []


def _reordered(item: Item, places: Sequence[int], order: Sequence[int]) -> list[str]:
    choices = list(item.choices)
    for target, source in zip(places, order, strict=True):
        choices[target] = item.choices[source]
    return choices


def shards(items: Sequence[Item], count: int | None, seed: int) -> Iterator[tuple[int, list[Item]]]:
    """Yield numbered shards of consecutive items, `count` of them, drawn by `seed`; a short rest is left out."""
    number = len(items) // SHARD_ITEMS
    chosen = sorted(range(number), key=lambda shard: seeds.uniform(seed, "probe shard", shard))[:count]
    for shard in sorted(chosen):
        yield shard, list(items[shard * SHARD_ITEMS : (shard + 1) * SHARD_ITEMS])


def neighbours_of(item: Item, items: Sequence[Item], seed: int) -> list[Item]:
    """Return the items of an item's context, drawn from the same set; none is of the same cluster."""
    generator = seeds.generator("probe neighbours", seed, item.id)
    cluster = item.cluster()
    neighbours: dict[str, Item] = {}
    for _ in range(20 * NEIGHBOURS):
        other = generator.choice(items)
        if other.id != item.id and (not cluster or other.cluster() != cluster):
            neighbours.setdefault(other.id, other)
        if len(neighbours) == NEIGHBOURS:
            break
    return list(neighbours.values())
