"""Batches for a model of transformers: generation, log-probabilities of given texts, the thread for both.

One batch goes through transformers' own ``generate``, each row with its own sampling, seed and end: a logits
processor chooses each row's token and a stopping criterion ends each row, so caches, positions and
architectures are the package's matter. A batch is computed to its end before the next begins, first in, first
out.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..cancellation import RunStopping
from ..errors import Rejected, Unavailable
from ..likelihood import Likelihood, max_logprob_by_token
from .llama.generation import find_stop, held_back
from .llama.sampler import SampledToken, SamplerSettings, sample_tokens

if TYPE_CHECKING:
    from .hf import LoadedModel

_REPLACEMENT_CHARACTER = "\ufffd"  # what part of a character is decoded to


@dataclass(slots=True)
class HfGeneration:
    """``decode`` gives the text of tokens; ``on_text`` is told the pieces that no stop string can take back. ``error``
    says why there is no answer.
    """

    prompt: list[int]
    settings: SamplerSettings
    max_tokens: int
    decode: Callable[[list[int]], str]
    stops: tuple[str, ...] = ()
    on_text: Callable[[str], None] | None = None
    on_done: Callable[[], None] | None = None
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish: str = ""
    error: Exception | None = None
    cancelled: bool = False
    _rows: list[tuple[int, SampledToken]] = field(default_factory=list)
    _before: int = 0  # tokens whose text the next ones are decoded behind, as neighbours change each other's
    _decoded: int = 0  # tokens that the text has
    _streamed: int = 0  # characters that ``on_text`` has

    @property
    def ended(self) -> bool:
        """Whether nothing more is to be generated."""
        return bool(self.finish) or self.cancelled or self.error is not None

    def take(self, token: SampledToken, *, is_end: bool) -> None:
        """Take the next token; ``is_end``: it ends the answer and is no part of it."""
        if is_end:
            self._end("stop")
            return
        self._rows.append((len(self.text), token))
        self.tokens.append(token.token)
        if self.settings.has_penalties:
            self.settings.counts[token.token] = self.settings.counts.get(token.token, 0) + 1
        before = len(self.text)
        self._decode(whole=False)
        if not self._stopped(before):
            if len(self.tokens) >= self.max_tokens:
                self._end("length")
            else:
                self._tell(len(self.text) - held_back(self.text, self.stops))

    @property
    def logprobs(self) -> list[list[Any]] | None:
        """A row for each token that is at least partly in the text, where they were asked for."""
        if self.settings.logprobs is None:
            return None
        return [
            [self.decode([row.token]), row.logprob, self._alternatives(row)]
            for start, row in self._rows
            if start < len(self.text)
        ]

    def _alternatives(self, sampled_token: SampledToken) -> dict[str, float]:
        """The likeliest tokens by their texts; of several with the same text (parts of characters) the likeliest."""
        return max_logprob_by_token((self.decode([token]), value) for token, value in sampled_token.top or ())

    def _decode(self, *, whole: bool) -> None:
        known = self.decode(self.tokens[self._before : self._decoded])
        more = self.decode(self.tokens[self._before :])
        if len(more) > len(known) and (whole or not more.endswith(_REPLACEMENT_CHARACTER)):
            self.text += more[len(known) :]
            self._before, self._decoded = self._decoded, len(self.tokens)

    def _stopped(self, before: int) -> bool:
        """Return True if a stop string ends in the text since ``before``; the answer then ends in front of it."""
        stop = find_stop(self.text, self.stops, len(self.text) - before)
        if stop is None:
            return False
        self.text = self.text[: stop[1]]
        self.finish = "stop"
        self._tell(len(self.text))
        return True

    def _end(self, finish: str) -> None:
        before = len(self.text)
        self._decode(whole=True)
        if not self._stopped(before):
            self.finish = finish
            self._tell(len(self.text))

    def _tell(self, end: int) -> None:
        if self.on_text is not None and end > self._streamed:
            piece, self._streamed = self.text[self._streamed : end], end
            self.on_text(piece)


_MOST_LOGITS = 64_000_000  # computed at once: 256 MB as single floats


@dataclass(slots=True)
class LikelihoodRequest:
    """``texts``: the tokens of each, and how many of its first tokens are not asked about. ``results`` are in their
    order.
    """

    texts: list[tuple[list[int], int]]
    moments: bool = False
    on_done: Callable[[], None] | None = None
    results: list[Likelihood] = field(default_factory=list)
    error: Exception | None = None
    cancelled: bool = False


def compute_likelihoods(model: LoadedModel, work: LikelihoodRequest, limit: int) -> None:
    """Read all texts, at most ``most`` of them at once.

    :raises FloatingPointError: the logits are not finite. :raises Exception: whatever torch raises.
    """
    vocabulary = model.network.get_output_embeddings().weight.shape[0]
    longest = max(len(tokens) for tokens, _ in work.texts)
    count = max(1, min(limit, _MOST_LOGITS // (longest * vocabulary)))
    for start in range(0, len(work.texts), count):
        if work.cancelled:
            return
        work.results += _compute_batch(model, work.texts[start : start + count], work.moments)


def _compute_batch(model: LoadedModel, texts: list[tuple[list[int], int]], moments: bool) -> list[Likelihood]:
    torch = model.torch
    longest = max(len(tokens) for tokens, _ in texts)
    batch = torch.full((len(texts), longest), model.pad)
    mask = torch.zeros_like(batch)
    for row, (tokens, _) in enumerate(texts):  # filled up on the right: nothing before it sees that
        batch[row, : len(tokens)] = torch.tensor(tokens)
        mask[row, : len(tokens)] = 1
    with torch.inference_mode():
        logits = model.network(input_ids=batch.to(model.device), attention_mask=mask.to(model.device)).logits
        return [_row_likelihood(torch, logits[row], *text, moments) for row, text in enumerate(texts)]


def _row_likelihood(torch: Any, logits: Any, tokens: list[int], skipped: int, moments: bool) -> Likelihood:
    # The row of a token predicts the next one.
    rows = logits[skipped - 1 : len(tokens) - 1].double()
    targets = torch.tensor(tokens[skipped:], device=rows.device)
    logprobs = torch.log_softmax(rows, -1)
    own = logprobs.gather(1, targets[:, None])[:, 0]
    if not bool(torch.isfinite(own).all()):
        raise FloatingPointError("its logits are not finite (NaN or infinite): damaged weights, or an overflow")
    likelihood = Likelihood(own.tolist(), bool((rows.argmax(-1) == targets).all()))
    if moments:
        shares = logprobs.exp()
        finite = torch.where(shares > 0, logprobs, 0.0)  # impossible tokens have no weight
        means = (shares * finite).sum(-1)
        likelihood.means = means.tolist()
        likelihood.deviations = (shares * (finite - means[:, None]) ** 2).sum(-1).sqrt().tolist()
    return likelihood


def generate_batch(model: LoadedModel, answers: list[HfGeneration], is_closing: Callable[[], bool]) -> None:
    """Generate all answers to their ends. What fails for one of them is its ``error``.

    :param is_closing: a function that says whether to stop at once.
    :raises Exception: whatever torch or the architecture raises for the whole batch.
    """
    torch = model.torch
    longest = max(len(generation.prompt) for generation in answers)
    tokens = torch.full((len(answers), longest), model.pad)
    mask = torch.zeros_like(tokens)
    for row, generation in enumerate(answers):  # filled up on the left, so that all answers begin at one place
        tokens[row, longest - len(generation.prompt) :] = torch.tensor(generation.prompt)
        mask[row, longest - len(generation.prompt) :] = 1

    def choose(_: Any, scores: Any) -> Any:
        logits = scores.float().cpu().numpy()
        chosen = torch.full_like(scores, -float("inf"))
        for row, answer in enumerate(answers):
            chosen[row, _next_token(answer, np.ascontiguousarray(logits[row : row + 1]), model)] = 0.0
        return chosen

    def ended(input_ids: Any, _: Any, **more: Any) -> Any:
        over = is_closing()
        return torch.tensor([over or answer.ended for answer in answers], device=input_ids.device)

    with torch.inference_mode():
        model.network.generate(
            input_ids=tokens.to(model.device),
            attention_mask=mask.to(model.device),
            max_new_tokens=max(generation.max_tokens for generation in answers),
            do_sample=False,
            logits_processor=[choose],
            stopping_criteria=[ended],
        )


def _next_token(generation: HfGeneration, logits: Any, model: LoadedModel) -> int:
    """The next token of a row; of one that has ended anything."""
    if generation.ended:
        return model.pad
    try:
        [token] = sample_tokens(logits, [generation.settings], [len(generation.tokens)], [None])
        generation.take(token, is_end=token.token in model.ends)
    except Exception as error:  # fails this request only
        generation.error = Rejected(str(error), model="hf")
        return model.pad
    return token.token


_STOP_SECONDS = 3.0  # for the thread to stop; it looks after each token
_GATHER_SECONDS = 0.005  # in which conversations that answer one another come together


class BatchLoop:
    """Owns the thread. ``submit``, ``withdraw`` and ``cancel`` may be called from any other."""

    def __init__(self, model: LoadedModel, limit: int) -> None:
        self._model, self._most = model, limit
        self._waiting: deque[HfGeneration | LikelihoodRequest] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self.batches = self.computed = 0
        self._thread = threading.Thread(target=self._run, name="viva-hf", daemon=True)
        self._thread.start()

    def submit(self, work: HfGeneration | LikelihoodRequest) -> None:
        """Queue a request; its ``on_done`` is called on the thread when it has ended.

        :raises Unavailable: the model is closed.
        """
        with self._wake:
            if self._closing:
                raise Unavailable("the model was closed", model="hf")
            self._waiting.append(work)
            self._wake.notify()

    def withdraw(self, work: HfGeneration | LikelihoodRequest) -> None:
        """Fail a request with ``RunStopping``, unless it is being computed."""
        with self._wake:
            if work not in self._waiting:
                return
            self._waiting.remove(work)
        _finish_request(work, RunStopping())

    def cancel(self, work: HfGeneration | LikelihoodRequest) -> None:
        """Nobody waits for it any more."""
        work.cancelled = True

    def close(self) -> None:
        """Stop the thread; what waits fails. A thread that does not stop within seconds is left behind."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(_STOP_SECONDS)
        for work in self._waiting:
            _finish_request(work, Unavailable("the model was closed", model="hf"))

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._waiting or self._closing)
                if not self._closing and len(self._waiting) < self._most:
                    self._wake.wait_for(lambda: len(self._waiting) >= self._most or self._closing, _GATHER_SECONDS)
                if self._closing:
                    return
                batch = self._take()
            if batch:
                self._compute(batch)

    def _take(self) -> list[HfGeneration | LikelihoodRequest]:
        """The next requests: answers as many as the batch holds, or one reading."""
        batch: list[HfGeneration | LikelihoodRequest] = []
        while self._waiting and len(batch) < self._most:
            if self._waiting[0].cancelled:
                self._waiting.popleft()
            elif isinstance(self._waiting[0], LikelihoodRequest):
                return batch or [self._waiting.popleft()]
            else:
                batch.append(self._waiting.popleft())
        return batch

    def _compute(self, batch: list[HfGeneration | LikelihoodRequest]) -> None:
        self.batches += 1
        self.computed += len(batch)
        error: Exception | None = None
        try:
            if isinstance(batch[0], LikelihoodRequest):
                compute_likelihoods(self._model, batch[0], self._most)
            else:
                answers = [item for item in batch if isinstance(item, HfGeneration)]
                generate_batch(self._model, answers, lambda: self._closing)
        except Exception as raised:  # whatever torch and the architecture raise: nobody may wait for a dead thread
            error = _rejection(raised, self._most)
        if self._closing:
            error = error or Unavailable("the model was closed", model="hf")
        for work in batch:
            unfinished = isinstance(work, LikelihoodRequest) or not work.ended
            _finish_request(work, error if unfinished else None)


def _finish_request(work: HfGeneration | LikelihoodRequest, error: Exception | None) -> None:
    work.error = work.error or error
    if work.on_done is not None:
        work.on_done()


def _rejection(error: Exception, limit: int) -> Rejected:
    message = " ".join(str(error).split())[:300]
    advice = f"; a smaller batch than {limit} (option batch), or ctx, needs less" if "out of memory" in message else ""
    return Rejected(f"{type(error).__name__}: {message}{advice}", model="hf")
