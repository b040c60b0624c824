"""One batch of requests through transformers' own ``generate``, each row with its own sampling, seed and end.

A processor of logits chooses each row's token, and a stopping criterion ends each row, so caches, positions and
architectures are the package's matter. What never belongs here: threads, prompts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import Rejected
from ..llama.outputs.sampler import sample_tokens
from .answer import Answer

if TYPE_CHECKING:
    from .loading import LoadedModel


def generate(model: LoadedModel, answers: list[Answer], is_closing: Callable[[], bool]) -> None:
    """Generate all answers to their ends. What fails for one of them is its ``error``.

    :param is_closing: a function that says whether to stop at once.
    :raises Exception: whatever torch or the architecture raises for the whole batch.
    """
    torch = model.torch
    longest = max(len(one.prompt) for one in answers)
    tokens = torch.full((len(answers), longest), model.pad)
    mask = torch.zeros_like(tokens)
    for row, one in enumerate(answers):  # filled up on the left, so that all answers begin at one place
        tokens[row, longest - len(one.prompt) :] = torch.tensor(one.prompt)
        mask[row, longest - len(one.prompt) :] = 1

    def choose(_: Any, scores: Any) -> Any:
        logits = scores.float().cpu().numpy()
        chosen = torch.full_like(scores, -float("inf"))
        for row, one in enumerate(answers):
            chosen[row, _next(one, np.ascontiguousarray(logits[row : row + 1]), model)] = 0.0
        return chosen

    def ended(input_ids: Any, _: Any, **more: Any) -> Any:
        over = is_closing()
        return torch.tensor([over or one.ended for one in answers], device=input_ids.device)

    with torch.inference_mode():
        model.network.generate(
            input_ids=tokens.to(model.device),
            attention_mask=mask.to(model.device),
            max_new_tokens=max(one.max_tokens for one in answers),
            do_sample=False,
            logits_processor=[choose],
            stopping_criteria=[ended],
        )


def _next(one: Answer, logits: Any, model: LoadedModel) -> int:
    """The next token of a row; of one that has ended anything."""
    if one.ended:
        return model.pad
    try:
        [token] = sample_tokens(logits, [one.settings], [len(one.tokens)], [None])
        one.take(token, is_end=token.token in model.ends)
    except Exception as error:  # fails this request only
        one.error = Rejected(str(error), model="hf")
        return model.pad
    return token.token
