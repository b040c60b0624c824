"""The inference thread of one model: takes requests, asks the scheduler, runs llama.cpp, hands answers back.

All llama.cpp work of a model happens on this thread. The event loop submits and cancels through a queue and is woken
once per step, with everything that the step finished.

What never belongs here: which step comes next (``scheduler``), how a token is chosen (``sampler``, ``generation``).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import BackendError, ContextTooLong, Unavailable, VivaError
from .chat import Segment
from .generation import Generation
from .native import NativeContext
from .prefix import PrefixStore
from .sampler import log_softmax, pick
from .scheduler import DecodeStep, Job, PromptStep, Scheduler


@dataclass(slots=True)
class Ask:
    """A request on this thread: what to compute, how to go on, and whom to tell.

    ``generation`` None means that only the runs' own log-probabilities are wanted: ``scored`` is how many of the last
    tokens, and ``result`` becomes their log-probabilities (and ``last_row`` those of every token after the last).
    """

    segments: list[Segment]
    done: Callable[[Ask], None]
    generation: Generation | None = None
    scored: int = 0
    begun: bool = False
    shared: tuple[int, ...] = ()  # numbers of leading segments that other requests begin with too: kept for them
    opening: Segment | None = None
    error: VivaError | None = None
    result: list[float] = field(default_factory=list)
    last_row: npt.NDArray[np.float64] | None = None
    job: Job | None = None
    found: int = 0
    computed: list[Segment] = field(default_factory=list)
    cancelled: bool = False
    prompt_tokens: int = 0
    cached_tokens: int = 0
    decode_failures: int = 0


class InferenceLoop:
    """Owns a context and its thread. ``submit`` and ``cancel`` may be called from any thread."""

    def __init__(self, context: NativeContext, scheduler: Scheduler, store: PrefixStore) -> None:
        self.context, self.scheduler, self.store = context, scheduler, store
        self._inbox: deque[Ask] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._broken: VivaError | None = None
        self._asks: dict[int, Ask] = {}
        self._numbers = 0
        self._lengths = [0] * context.lanes
        self.timings = {"decode": 0.0, "prompt": 0.0, "copy": 0.0, "rest": 0.0, "idle": 0.0}
        self.counts = {"decoded": 0, "prompted": 0, "replayed": 0, "steps": 0, "generated": 0}
        self._thread = threading.Thread(target=self._run, name="viva-llama", daemon=True)
        self._thread.start()

    def submit(self, ask: Ask) -> None:
        """Begin a request; ``ask.done`` is called on this thread when it is finished or has failed."""
        if self._broken is not None:
            raise self._broken
        with self._wake:
            self._inbox.append(ask)
            self._wake.notify()

    def cancel(self, ask: Ask) -> None:
        """Drop a request; its lane is free by the next step. ``done`` is not called."""
        with self._wake:
            ask.cancelled = True
            self._wake.notify()

    def close(self) -> None:
        """Stop the thread; requests under way fail."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()
        self._broken = self._broken or Unavailable("the model was closed", model=self.context.model.path.name)
        self._tell_all(self._broken)

    # -- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:  # a fault of ours: nobody may be left waiting for a thread that is gone
            self._broken = Unavailable(f"the inference thread failed: {error!r}", model=self.context.model.path.name)
            self._tell_all(self._broken)

    def _tell_all(self, error: VivaError) -> None:
        for ask in [*self._asks.values(), *self._inbox]:
            ask.error = error
            ask.done(ask)
        self._asks.clear()
        self._inbox.clear()

    def _serve(self) -> None:
        clock = time.perf_counter
        last = clock()
        while True:
            with self._wake:
                while not self._closing and not self._inbox and not self.scheduler.busy:
                    self._wake.wait()
                if self._closing:
                    return
                arrived = [self._inbox.popleft() for _ in range(len(self._inbox))]
            now = clock()
            self.timings["idle"] += now - last
            last = now
            for ask in arrived:
                try:
                    self._accept(ask)
                except Exception as error:  # a fault of ours or of this request: it is told, the others go on
                    self._refuse(ask, error)
            for ask in [ask for ask in self._asks.values() if ask.cancelled]:
                self._release(ask)
            for job in self.scheduler.admit():
                self._fill_lane(self._asks[job.number])
            now = clock()
            self.timings["copy"] += now - last
            last = now
            step = self.scheduler.next_step()
            if isinstance(step, PromptStep):
                self._prompt(step)
            elif step is not None:
                self._decode(step)
            self.counts["steps"] += 1
            now = clock()
            self.timings["rest"] += now - last
            last = now

    def _accept(self, ask: Ask) -> None:
        total = sum(len(segment.tokens) for segment in ask.segments)
        if total + (1 if ask.generation else 0) > self.context.context or total == 0:
            ask.error = ContextTooLong(
                f"the prompt has {total:,} tokens, a lane holds {self.context.context:,}; raise ?ctx=",
                model=self.context.model.path.name,
            )
            ask.done(ask)
            return
        ask.prompt_tokens = total
        if ask.generation is not None and ask.opening is None:
            ask.generation.max_tokens = min(ask.generation.max_tokens, self.context.context - total - 1)
            if ask.generation.max_tokens < 1:
                raise ContextTooLong(
                    f"the prompt of {total:,} tokens leaves no room for an answer; raise ?ctx=",
                    model=self.context.model.path.name,
                )
            ask.opening = ask.generation.opening()
            if ask.generation.finish is not None:  # the grammar left nothing to choose: no model was needed
                ask.done(ask)
                return
        self._numbers += 1
        ask.job = Job(self._numbers, deque(ask.segments), begun=ask.begun)
        self._asks[self._numbers] = ask
        self.scheduler.submit(ask.job)

    def _refuse(self, ask: Ask, error: Exception) -> None:
        known = isinstance(error, VivaError)
        ask.error = error if known else Unavailable(f"{error!r}", model=self.context.model.path.name)  # type: ignore[assignment]
        if ask.job is not None:
            self._release(ask)
        ask.done(ask)

    def _fill_lane(self, ask: Ask) -> None:
        """Give a lane the longest KV that is a prefix of the request, leaving at least one run to compute."""
        job = ask.job
        assert job is not None
        most = len(ask.segments) - 1 if ask.generation is not None else max(ask.shared, default=0)
        count, state = self.store.find(ask.segments[:most])
        job.runs = deque(ask.segments[count:])
        if ask.opening is not None:
            job.runs.append(ask.opening)
        job.offset = 0
        job.position = sum(len(segment.tokens) for segment in ask.segments[:count])
        ask.found, ask.cached_tokens = count, job.position
        ask.computed = list(ask.segments[:count])
        if state is not None:
            self.context.restore(job.lane, state)
        else:
            self.context.forget(job.lane)
        self._lengths[job.lane] = job.position

    def _prompt(self, step: PromptStep) -> None:
        for job, _, _ in step.parts:
            ask = self._asks[job.number]
            untouched = job.offset == 0 and len(ask.computed) == ask.found
            if untouched and any(n > ask.found and self.store.has(ask.segments[:n]) for n in ask.shared):
                # Since this lane was filled another request has computed what both begin with: take it over.
                self._fill_lane(ask)
                return
        tokens: list[int] = []
        positions: list[int] = []
        lanes: list[int] = []
        wanted: list[int] = []
        for job, part, last in step.parts:
            ask = self._asks[job.number]
            tokens.extend(part.tolist())
            positions.extend(range(job.position, job.position + len(part)))
            lanes.extend([job.lane] * len(part))
            want = [0] * len(part)
            if ask.generation is not None:
                want[-1] = 1 if last else 0
            else:
                # The row before each scored token, and the last row, whose distribution is over what might follow.
                first = ask.prompt_tokens - ask.scored - 1 - job.position
                want = [1 if index >= first else 0 for index in range(len(part))]
            wanted.extend(want)
        began = time.perf_counter()
        try:
            logits = self.context.decode(tokens, positions, lanes, wanted)
        except Unavailable as error:
            self._failed([self._asks[job.number] for job, _, _ in step.parts], error)
            return
        spent = time.perf_counter() - began
        self.timings["prompt"] += spent
        self.timings["rest"] -= spent
        self.counts["prompted"] += len(tokens)
        row = 0
        for (job, part, last), start in zip(step.parts, _starts(step), strict=True):
            ask = self._asks[job.number]
            rows = sum(wanted[start : start + len(part)])
            self._lengths[job.lane] += len(part)
            run = job.advance(len(part))
            if run is not None:
                ask.computed.append(run)
                self._maybe_share(ask)
            if ask.generation is None:
                if rows and logits is not None:
                    self._score(ask, part, logits[row : row + rows])
                if last:
                    self._finish(ask)
            elif last and logits is not None:
                self._sampled([(ask, logits[row : row + 1])])
            row += rows

    def _decode(self, step: DecodeStep) -> None:
        tokens, positions, lanes, wanted = [], [], [], []
        sampling: list[Ask] = []
        for lane, job in step.rows:
            token = job.step_token() if job is not None else 0
            tokens.append(token)
            positions.append(self._lengths[lane])
            lanes.append(lane)
            last = job is not None and (
                not job.runs or (len(job.runs) == 1 and job.offset + 1 == len(job.runs[0].tokens))
            )
            wanted.append(1 if last else 0)
            if last and job is not None:
                sampling.append(self._asks[job.number])
        began = time.perf_counter()
        try:
            logits = self.context.decode(tokens, positions, lanes, wanted)
        except Unavailable as error:
            self._failed([self._asks[job.number] for _, job in step.rows if job is not None], error)
            return
        spent = time.perf_counter() - began
        self.timings["decode"] += spent
        self.timings["rest"] -= spent
        for lane, job in step.rows:
            if job is None:
                self.context.forget(lane, self._lengths[lane])
                continue
            self._lengths[lane] += 1
            self.counts["decoded" if not job.runs else "replayed"] += 1
            run = job.advance(1)
            if run is not None:
                self._asks[job.number].computed.append(run)
        if logits is not None:
            self._sampled([(ask, logits[row : row + 1]) for row, ask in enumerate(sampling)], logits)

    def _sampled(self, rows: list[tuple[Ask, Any]], together: Any = None) -> None:
        """Choose the next token of each request and set its job on what comes next."""
        generations = [ask.generation for ask, _ in rows if ask.generation is not None]
        logits = together if together is not None else rows[0][1]
        choices = [generation.choice for generation in generations]
        positions = [len(generation.tokens) for generation in generations]
        try:
            picked = pick(logits, choices, positions, [generation.mask() for generation in generations])
        except ValueError as error:
            # One request's grammar is at an end of no return: find out whose, alone; the others go on.
            if len(rows) > 1:
                for index, one in enumerate(rows):
                    self._sampled([(one[0], logits[index : index + 1])])
            else:
                self._refuse(rows[0][0], error)
            return
        for (ask, _), generation, choice in zip(rows, generations, picked, strict=True):
            job = ask.job
            assert job is not None
            forced = generation.take(choice)
            self.counts["generated"] += 1
            if generation.finish is not None:
                self._finish(ask)
            elif forced is None:
                job.next_token = generation.tokens[-1]
            else:
                # The sampled token is fed as it would have been; then what the grammar forces is computed at once.
                sampled = np.array([choice.token], dtype=np.int32)
                job.next_token = None
                job.runs.extend([Segment(sampled, decoded=True), forced])

    def _finish(self, ask: Ask) -> None:
        job = ask.job
        assert job is not None
        generation = ask.generation
        if generation is not None:
            runs = generation.computed(self._lengths[job.lane] - ask.prompt_tokens)
            length = ask.prompt_tokens + sum(len(run.tokens) for run in runs)
            self.context.forget(job.lane, length)
            self._keep([*ask.segments, *runs], job.lane)
        self._release(ask)
        ask.done(ask)

    def _maybe_share(self, ask: Ask) -> None:
        """Keep what other requests begin with, as soon as it is computed."""
        job = ask.job
        assert job is not None
        if len(ask.computed) in ask.shared and not self.store.has(ask.computed):
            self._keep(list(ask.computed), job.lane)

    def _keep(self, path: list[Segment], lane: int) -> None:
        state = self.context.save(lane)
        self.store.keep(path, state, state.nbytes)

    def _score(self, ask: Ask, part: Any, logits: Any) -> None:
        """Rows precede the tokens they predict; the last row of all is kept whole."""
        job = ask.job
        assert job is not None
        flat = np.concatenate([segment.tokens for segment in ask.segments])
        first = job.position - len(logits)  # position of the first wanted row
        for index, row in enumerate(logits):
            logprobs = log_softmax(row)
            following = first + index + 1
            if following < len(flat):
                ask.result.append(float(logprobs[flat[following]]))
            else:
                ask.last_row = logprobs

    def _release(self, ask: Ask) -> None:
        job = ask.job
        assert job is not None
        if job.lane >= 0:
            self.context.forget(job.lane)
            self._lengths[job.lane] = 0
        self.scheduler.release(job)
        self._asks.pop(job.number, None)

    def _failed(self, asks: list[Ask], error: BackendError) -> None:
        """llama.cpp refused a batch: everybody in it begins again alone, once; who fails again has failed."""
        for ask in asks:
            job = ask.job
            assert job is not None
            ask.decode_failures += 1
            if ask.decode_failures > 1 or (ask.generation is not None and ask.generation.sampled):
                ask.error = error
                self._release(ask)
                ask.done(ask)
                continue
            self._release(ask)
            ask.computed, ask.result = [], []
            self._accept(ask)


def _starts(step: PromptStep) -> list[int]:
    starts, total = [], 0
    for _, part, _ in step.parts:
        starts.append(total)
        total += len(part)
    return starts
