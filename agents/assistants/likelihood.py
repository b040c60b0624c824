"""The assistant that says how probable a model takes the response to be after the texts before it.

What never belongs here: how a model reads (``Conversation.read``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from viva.engine.backends.base import ModelSpec
from viva.engine.conversation import Conversation
from viva.engine.likelihood import Reading

from .assistant import Assistant
from .example import AssistantFailed, Example


@dataclass(frozen=True, kw_only=True)
class Likelihood(Assistant):
    """exp of the mean log-probability of the response's tokens given its context: the geometric mean of their
    probabilities, 0 to 1, and one over the perplexity (Fu et al. 2023, GPTScore, take its logarithm).

    Being a mean over tokens it does not fall with the response's length. It depends on the model's vocabulary: figures
    of two models are not on one scale.
    """

    @classmethod
    def named(cls, spec: str, model: str) -> Likelihood:
        """The assistant that has ``model`` read."""
        return cls(
            name=f"logprob:{short_label(model)}",
            spec=spec,
            title="token probability",
            compares="how probable a language model finds the response after its context, as a mean over tokens",
            model=model,
        )

    async def score(self, conversation: Conversation, example: Example) -> float:
        if not example.response.strip():
            raise AssistantFailed("the response is empty")
        context = example.preceding()
        # A blank line before the response, as between the texts before it; a model is told of nothing else.
        reading = Reading(f"{context}\n\n" if context else "", (example.response,), hint=example.hint)
        found = await conversation.read(self.role, reading)
        if not found or not found[0].logprobs:
            raise AssistantFailed("the model read no token of the response")
        return math.exp(found[0].total / len(found[0].logprobs))


def short_label(model: str) -> str:
    """The label of a model by its name; of a path its last part."""
    label = ModelSpec.parse(model).label
    return label.rpartition("/")[2] or label
