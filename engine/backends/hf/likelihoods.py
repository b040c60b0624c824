"""Log-probabilities of given texts, several at once.

What never belongs here: threads, tokenisation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...likelihood import Likelihood

if TYPE_CHECKING:
    from .loading import LoadedModel

_MOST_LOGITS = 64_000_000  # computed at once: 256 MB as single floats


@dataclass(slots=True)
class ReadTexts:
    """``texts``: the tokens of each, and how many of its first tokens are not asked about. ``results`` are in their
    order.
    """

    texts: list[tuple[list[int], int]]
    moments: bool = False
    on_done: Callable[[], None] | None = None
    results: list[Likelihood] = field(default_factory=list)
    error: Exception | None = None
    cancelled: bool = False


def read(model: LoadedModel, work: ReadTexts, most: int) -> None:
    """Read all texts, at most ``most`` of them at once.

    :raises FloatingPointError: the logits are not finite. :raises Exception: whatever torch raises.
    """
    vocabulary = model.network.get_output_embeddings().weight.shape[0]
    longest = max(len(tokens) for tokens, _ in work.texts)
    count = max(1, min(most, _MOST_LOGITS // (longest * vocabulary)))
    for start in range(0, len(work.texts), count):
        if work.cancelled:
            return
        work.results += _read(model, work.texts[start : start + count], work.moments)


def _read(model: LoadedModel, texts: list[tuple[list[int], int]], moments: bool) -> list[Likelihood]:
    torch = model.torch
    longest = max(len(tokens) for tokens, _ in texts)
    batch = torch.full((len(texts), longest), model.pad)
    mask = torch.zeros_like(batch)
    for row, (tokens, _) in enumerate(texts):  # filled up on the right: nothing before it sees that
        batch[row, : len(tokens)] = torch.tensor(tokens)
        mask[row, : len(tokens)] = 1
    with torch.inference_mode():
        logits = model.network(input_ids=batch.to(model.device), attention_mask=mask.to(model.device)).logits
        return [_likelihood(torch, logits[row], *text, moments) for row, text in enumerate(texts)]


def _likelihood(torch: Any, logits: Any, tokens: list[int], skipped: int, moments: bool) -> Likelihood:
    # The row of a token predicts the next one.
    rows = logits[skipped - 1 : len(tokens) - 1].double()
    asked = torch.tensor(tokens[skipped:], device=rows.device)
    logprobs = torch.log_softmax(rows, -1)
    own = logprobs.gather(1, asked[:, None])[:, 0]
    if not bool(torch.isfinite(own).all()):
        raise FloatingPointError("its logits are not finite (NaN or infinite): damaged weights, or an overflow")
    found = Likelihood(own.tolist(), bool((rows.argmax(-1) == asked).all()))
    if moments:
        shares = logprobs.exp()
        finite = torch.where(shares > 0, logprobs, 0.0)  # impossible tokens have no weight
        means = (shares * finite).sum(-1)
        found.means = means.tolist()
        found.deviations = (shares * (finite - means[:, None]) ** 2).sum(-1).sqrt().tolist()
    return found
