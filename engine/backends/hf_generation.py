"""Batches for transformers models: generation, likelihoods of given texts, and their thread.

A batch runs through transformers' own `generate`; each row has its own sampling, seed and end. A logits processor
chooses each row's token and a stopping criterion ends it, so that caches, positions and architectures are left to the
package. Batches are computed one at a time, in order of arrival.
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

_REPLACEMENT_CHARACTER = "\ufffd"  # decoding of an incomplete character


@dataclass(slots=True)
class HfGeneration:
    """An answer while it is generated.

    `decode` returns the text of tokens; `on_text` receives pieces that no stop string can retract. `error` says why
    there is no answer.
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
    _before: int = 0  # earlier tokens to decode again with the new ones, because neighbours change each other's text
    _decoded: int = 0  # number of tokens whose text is complete
    _streamed: int = 0  # number of characters that `on_text` has received

    @property
    def ended(self) -> bool:
        """Return True if nothing more is to be generated."""
        return bool(self.finish) or self.cancelled or self.error is not None

    def take(self, token: SampledToken, *, is_end: bool) -> None:
        """Add the next token; `is_end` means that it only ends the answer and has no text."""
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
        """Return a row for each token at least partly in the text, if requested."""
        if self.settings.logprobs is None:
            return None
        return [
            [self.decode([row.token]), row.logprob, self._alternatives(row)]
            for start, row in self._rows
            if start < len(self.text)
        ]

    def _alternatives(self, sampled_token: SampledToken) -> dict[str, float]:
        """Return the best alternatives by text; if several have the same text (parts of characters), the likeliest."""
        return max_logprob_by_token((self.decode([token]), value) for token, value in sampled_token.top or ())

    def _decode(self, *, whole: bool) -> None:
        known = self.decode(self.tokens[self._before : self._decoded])
        more = self.decode(self.tokens[self._before :])
        if len(more) > len(known) and (whole or not more.endswith(_REPLACEMENT_CHARACTER)):
            self.text += more[len(known) :]
            self._before, self._decoded = self._decoded, len(self.tokens)

    def _stopped(self, before: int) -> bool:
        """Return True and cut the text if a stop string ends after `before`."""
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


_MOST_LOGITS = 64_000_000  # computed at once: 256 MB in single precision


@dataclass(slots=True)
class LikelihoodRequest:
    """A likelihood request.

    `texts` has (tokens, number of first tokens that are not scored) of each text. `results` are in the same order.
    """

    texts: list[tuple[list[int], int]]
    moments: bool = False
    on_done: Callable[[], None] | None = None
    results: list[Likelihood] = field(default_factory=list)
    error: Exception | None = None
    cancelled: bool = False


def compute_likelihoods(model: LoadedModel, work: LikelihoodRequest, limit: int) -> None:
    """Score all texts, at most `limit` at once.

    Raises:
        FloatingPointError: The logits are not finite.
        Exception: Anything that torch raises.
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
    for row, (tokens, _) in enumerate(texts):  # padding on the right: earlier positions do not see it
        batch[row, : len(tokens)] = torch.tensor(tokens)
        mask[row, : len(tokens)] = 1
    with torch.inference_mode():
        logits = model.network(input_ids=batch.to(model.device), attention_mask=mask.to(model.device)).logits
        return [_row_likelihood(torch, logits[row], *text, moments) for row, text in enumerate(texts)]


def _row_likelihood(torch: Any, logits: Any, tokens: list[int], skipped: int, moments: bool) -> Likelihood:
    # Each token's row predicts the next token.
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
    """Generate all answers to their ends. A failure of one answer is stored as its `error`.

    If `is_closing` returns True, stop at once.

    Raises:
        Exception: Anything that torch or the architecture raises for the whole batch.
    """
    torch = model.torch
    longest = max(len(generation.prompt) for generation in answers)
    tokens = torch.full((len(answers), longest), model.pad)
    mask = torch.zeros_like(tokens)
    for row, generation in enumerate(answers):  # padding on the left: all answers begin at the same position
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
    """Return the next token of a row; any token if the row has ended."""
    if generation.ended:
        return model.pad
    try:
        [token] = sample_tokens(logits, [generation.settings], [len(generation.tokens)], [None])
        generation.take(token, is_end=token.token in model.ends)
    except Exception as error:  # fails only this request
        generation.error = Rejected(str(error), model="hf")
        return model.pad
    return token.token


_STOP_SECONDS = 3.0  # time for the thread to stop; the thread checks after each token
_GATHER_SECONDS = 0.005  # time in which concurrent conversations join a batch


class BatchLoop:
    """Owner of the inference thread. `submit`, `withdraw` and `cancel` are thread-safe."""

    def __init__(self, model: LoadedModel, limit: int) -> None:
        self._model, self._limit = model, limit
        self._waiting: deque[HfGeneration | LikelihoodRequest] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self.batches = self.computed = 0
        self._thread = threading.Thread(target=self._run, name="viva-hf", daemon=True)
        self._thread.start()

    def submit(self, work: HfGeneration | LikelihoodRequest) -> None:
        """Queue a request; its `on_done` is called on the thread when it has ended.

        Raises:
            Unavailable: The model is closed.
        """
        with self._wake:
            if self._closing:
                raise Unavailable("the model was closed", model="hf")
            self._waiting.append(work)
            self._wake.notify()

    def withdraw(self, work: HfGeneration | LikelihoodRequest) -> None:
        """Fail a request with `RunStopping`, unless it is being computed."""
        with self._wake:
            if work not in self._waiting:
                return
            self._waiting.remove(work)
        _finish_request(work, RunStopping())

    def cancel(self, work: HfGeneration | LikelihoodRequest) -> None:
        """Cancel a request whose caller no longer waits."""
        work.cancelled = True

    def close(self) -> None:
        """Stop the thread and fail waiting requests. A thread that does not stop within seconds is abandoned."""
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
                if not self._closing and len(self._waiting) < self._limit:
                    self._wake.wait_for(lambda: len(self._waiting) >= self._limit or self._closing, _GATHER_SECONDS)
                if self._closing:
                    return
                batch = self._take()
            if batch:
                self._compute(batch)

    def _take(self) -> list[HfGeneration | LikelihoodRequest]:
        """Return the next requests: a batch of answers, or one reading."""
        batch: list[HfGeneration | LikelihoodRequest] = []
        while self._waiting and len(batch) < self._limit:
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
                compute_likelihoods(self._model, batch[0], self._limit)
            else:
                answers = [item for item in batch if isinstance(item, HfGeneration)]
                generate_batch(self._model, answers, lambda: self._closing)
        except Exception as raised:  # torch and architectures may raise anything; no caller may wait for a dead thread
            error = _rejection(raised, self._limit)
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
    advice = f"; set option batch below {limit}, or reduce ctx" if "out of memory" in message else ""
    return Rejected(f"{type(error).__name__}: {message}{advice}", model="hf")
