"""The lanes of one context and its inference thread: restore KV, compute batches, sample, store KV.

All llama.cpp calls for a context are made on this thread. The event loop submits and cancels requests through a queue
and is woken once per answer.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ...cancellation import RunStopping, withdrawable
from ...clock import Clock
from ...errors import BackendError, ContextTooLong, Rejected, Unavailable, VivaError
from .generation import ContinuationReading, Generation
from .kv_reuse import KVCache
from .native import Logits, NativeContext, SavedState, Segment
from .sampler import SamplingThreads, option_shares, sample_tokens
from .scheduler import DecodeStep, Job, PrefillStep, Scheduler


@dataclass(slots=True)
class PendingRequest:
    """A prompt as segments, followed by a `generation` or a `reading` of given continuations.

    `on_done` is called on the inference thread. `conversation` owns the KV kept after the request; `ongoing` says that
    this conversation has had requests before. `shared_prefixes`, ascending, are the numbers of leading segments that
    other requests share: KV up to there is stored for all. `stable_segments`, `may_continue` and
    `continues_from_answer` predict how the conversation's next prompt begins (`kv_reuse`); the last one is called on
    the inference thread, and None means True. All other fields belong to the inference thread.
    """

    segments: list[Segment]
    on_done: Callable[[PendingRequest], None]
    generation: Generation | None = None
    reading: ContinuationReading | None = None
    conversation: str = ""
    ongoing: bool = False
    shared_prefixes: tuple[int, ...] = ()
    stable_segments: int = 0
    may_continue: bool = True
    continues_from_answer: Callable[[], bool] | None = None
    error: Exception | None = None
    cancelled: bool = False
    withdrawn: bool = False  # to be failed with `RunStopping` unless it has a lane
    prompt_tokens: int = 0
    restored: int = 0  # leading segments whose KV came from the host cache
    forced_opening: Segment | None = None
    job: Job = field(default_factory=lambda: Job(-1, deque()))
    computed: list[Segment] = field(default_factory=list)
    decode_failures: int = 0
    checkpoint: SavedState | None = None  # recurrent state at which a reading's continuations begin

    @property
    def prompt_length(self) -> int:
        """Return the maximum number of tokens in the lane before generation."""
        total = sum(len(segment.tokens) for segment in self.segments)
        if self.reading is not None:
            total += max(len(tokens) for tokens in self.reading.continuations) - 1
        return total

    def answer_room(self, context: int, spare: int, model: str) -> int:
        """Return how many of a lane's `context` tokens remain for the answer; `spare` of them are never used.

        Raises:
            ContextTooLong: The lane cannot hold the request.
        """
        total = self.prompt_length
        room = context - total - spare - 1
        if room < 0 or not self.segments or (self.generation is not None and room < 1):
            raise ContextTooLong(
                f"the {'text' if self.reading else 'prompt'} has {total:,} tokens and leaves no room"
                f"{'' if self.reading else ' for an answer'}: a lane holds {context:,}; raise ?ctx=",
                model=model,
            )
        return room

    def reset(self) -> None:
        """Discard what was computed before the first token is generated, to start over."""
        self.computed = []
        if self.reading is not None:
            self.reading = ContinuationReading(self.reading.continuations, self.reading.moments)

    def pending_prefix(self) -> tuple[tuple[bool, bytes], ...] | None:
        """Return the key of the next shared prefix to compute; None if only the request's own segments are left."""
        for count in self.shared_prefixes:
            if count > len(self.computed):
                return tuple(segment.key() for segment in self.segments[:count])
        return None


# Reading a text needs the logits of all its tokens; at most this many numbers are held at once.
_MAX_LOGITS = 16_000_000


class Lanes:
    """Executor of the scheduler's steps. `timings` are seconds by kind of work, `counts` are tokens and steps."""

    def __init__(self, context: NativeContext, scheduler: Scheduler, budget: int) -> None:
        """Set up the lanes; `budget` is in bytes of host memory for cached KV."""
        self.context, self.scheduler = context, scheduler
        self._kv_cache = KVCache(context, budget)
        self.store = self._kv_cache.store
        self.sampling_threads = SamplingThreads(context.threads)
        self._name = context.model.path.name
        self._requests: dict[int, PendingRequest] = {}
        self._conversations: Counter[str] = Counter()  # number of requests of each conversation
        self._numbers = 0
        self._lengths = [0] * context.lanes
        self.timings = {"decode": 0.0, "prompt": 0.0, "copy": 0.0, "rest": 0.0}
        self.counts = {"decoded": 0, "prompted": 0, "replayed": 0, "generated": 0, "found": 0, "steps": 0}

    def submit(self, request: PendingRequest) -> None:
        """Hand a request to the scheduler, or finish it at once if there is nothing to compute.

        Raises:
            ContextTooLong: A lane cannot hold the request.
        """
        room = request.answer_room(self.context.context, self.scheduler.dummy_positions, self._name)
        request.prompt_tokens = request.prompt_length
        if request.generation is not None and request.forced_opening is None:
            request.generation.max_tokens = min(request.generation.max_tokens, room)
            request.forced_opening = request.generation.forced_opening()
            if request.generation.finish is not None:  # the grammar forces the whole answer
                request.on_done(request)
                return
        self._numbers += 1
        request.job = Job(self._numbers, deque(request.segments), ongoing=request.ongoing)
        self._requests[self._numbers] = request
        self._conversations[request.conversation] += 1
        self.scheduler.submit(request.job)

    def fail(self, request: PendingRequest, error: Exception) -> None:
        """Finish a request with an error, possibly an internal one that it caused."""
        if isinstance(error, FloatingPointError):  # a retry would compute the same
            error = Rejected(str(error), model=self._name)
            if request.job.lane >= 0:
                self.context.wipe(request.job.lane)
        request.error = error if isinstance(error, VivaError) else Unavailable(f"{error!r}", model=self._name)
        self.release(request)
        request.on_done(request)

    def step(self) -> bool:
        """Drop cancelled and withdrawn requests, admit waiting requests, compute one batch.

        Returns:
            True if there was a batch to compute.
        """
        clock = time.perf_counter
        began = clock()
        self.counts["steps"] += 1
        for request in [running for running in self._requests.values() if running.cancelled or running.withdrawn]:
            if request.cancelled:
                self.release(request)
            elif request.job.lane < 0:
                request.error = RunStopping()
                self.release(request)
                request.on_done(request)
        before = sum(self.timings.values())
        for job in self.scheduler.admit():
            self._restore_kv(self._requests[job.number])
        step = self.scheduler.next_step()
        if isinstance(step, PrefillStep):
            self._prefill(step)
        elif step is not None:
            self._decode(step)
        # All work except llama.cpp and copying of KV.
        self.timings["rest"] += clock() - began - (sum(self.timings.values()) - before)
        return step is not None

    def release(self, request: PendingRequest) -> None:
        """Remove a request and free its lane."""
        job = request.job
        if job.lane >= 0:
            self.context.forget(job.lane)
            self._lengths[job.lane] = 0
        self.scheduler.release(job)
        if self._requests.pop(job.number, None) is not None:
            self._conversations[request.conversation] -= 1
            if not self._conversations[request.conversation]:
                del self._conversations[request.conversation]

    def release_all(self, error: VivaError) -> None:
        """Finish every request with this error."""
        for request in list(self._requests.values()):
            request.error = error
            request.on_done(request)
        self._requests.clear()
        self._conversations.clear()

    def _restore_kv(self, request: PendingRequest) -> None:
        """Fill a lane with the request's longest cached prefix; at least one segment is left to compute."""
        began = time.perf_counter()
        job = request.job
        request.restored = count = self._kv_cache.restore(job.lane, request.segments[:-1])
        if self._conversations[request.conversation] == 1 and not self.context.model.recurrent:
            self._drop_superseded(request)  # now, so that its memory can be reused
        job.segments = deque(request.segments[count:])
        if request.forced_opening is not None:
            job.segments.append(request.forced_opening)
        job.offset = 0
        job.position = sum(len(segment.tokens) for segment in request.segments[:count])
        request.computed = list(request.segments[:count])
        job.shared_prefix = request.pending_prefix()
        self._lengths[job.lane] = job.position
        self.counts["found"] += job.position
        self.timings["copy"] += time.perf_counter() - began

    def _drop_superseded(self, request: PendingRequest) -> None:
        """Drop the state that this request continued from: only a conversation's newest state is used again."""
        if (
            request.restored
            and request.restored not in request.shared_prefixes
            and request.restored != request.stable_segments
        ):
            self.store.drop(request.segments[: request.restored], request.conversation)

    def _save_kv(self, path: list[Segment], lane: int, owner: str = "") -> None:
        began = time.perf_counter()
        self._kv_cache.save(lane, path, owner)
        self.timings["copy"] += time.perf_counter() - began

    def _segment_computed(self, request: PendingRequest, segment: Segment) -> None:
        """Record a computed segment; store KV here if the conversation's next prompt branches off at this point."""
        request.computed.append(segment)
        if len(request.computed) == request.stable_segments:
            self._drop_superseded(request)
            self._save_kv(list(request.computed), request.job.lane, request.conversation)

    def _publish_prefix(self, request: PendingRequest) -> None:
        """Store the KV of a shared prefix that has just been completed, and give it to the waiting requests."""
        name = request.job.shared_prefix
        if len(request.computed) not in request.shared_prefixes:
            return
        request.job.shared_prefix = request.pending_prefix()
        if not (stored := self.store.has(request.computed)):
            self._save_kv(list(request.computed), request.job.lane)
            stored = self.store.has(request.computed)
        for other in self._requests.values():
            if name is not None and other.job.shared_prefix == name and other is not request:
                if stored:
                    self._restore_kv(other)
                else:  # no room in the host cache: each request computes its own
                    other.job.shared_prefix = None

    def _prefill(self, step: PrefillStep) -> None:
        tokens: list[int] = []
        positions: list[int] = []
        lanes: list[int] = []
        logit_rows: list[int] = []
        for job, part, last in step.parts:
            request = self._requests[job.number]
            size = step.size or len(part)
            dummies = [0] * (size - len(part))
            tokens.extend([*part.tolist(), *dummies])
            positions.extend(range(job.position, job.position + size))
            lanes.extend([job.lane] * size)
            everything = request.reading is not None and request.reading.in_continuations
            logit_rows.extend([*([1] * len(part) if everything else [0] * (len(part) - 1) + [int(last)]), *dummies])
        logits = self._compute("prompt", tokens, positions, lanes, logit_rows, [job for job, _, _ in step.parts])
        if logits is False:
            return
        row = start = 0
        for job, part, last in step.parts:
            request = self._requests[job.number]
            size = step.size or len(part)
            rows = sum(logit_rows[start : start + size])
            start += size
            self.counts["prompted"] += len(part)
            self._lengths[job.lane] += len(part)
            if size > len(part):
                self.context.forget(job.lane, self._lengths[job.lane])
            segment = job.advance(len(part))
            if segment is not None and (request.reading is None or not request.reading.in_continuations):
                self._segment_computed(request, segment)
                self._publish_prefix(request)
            if request.reading is not None and rows:
                self._take_logits(request, logits[row : row + rows], last)
            elif last:
                self._sample([request], logits[row : row + 1])
            row += rows

    def _decode(self, step: DecodeStep) -> None:
        tokens, positions, lanes, logit_rows = [], [], [], []
        sampling: list[PendingRequest] = []
        for lane, job in step.rows:
            token = job.decode_token() if job is not None else 0
            tokens.append(token)
            positions.append(self._lengths[lane])
            lanes.append(lane)
            last = job is not None and job.completes(1)
            logit_rows.append(int(last))
            if last and job is not None:
                sampling.append(self._requests[job.number])
        logits = self._compute("decode", tokens, positions, lanes, logit_rows, [job for _, job in step.rows if job])
        if logits is False:
            return
        for lane, job in step.rows:
            if job is None:
                self.context.forget(lane, self._lengths[lane])
                continue
            self._lengths[lane] += 1
            self.counts["decoded" if not job.segments else "replayed"] += 1
            segment = job.advance(1)
            if segment is not None:
                self._segment_computed(self._requests[job.number], segment)
        if sampling:
            self._sample(sampling, logits)

    def _compute(self, kind: str, tokens: Any, positions: Any, lanes: Any, logit_rows: Any, jobs: list[Job]) -> Any:
        """Return the logits of the requested rows, None if no row is requested, False if llama.cpp failed."""
        began = time.perf_counter()
        try:
            if not self.scheduler.strict or not any(logit_rows):
                return self.context.decode(tokens, positions, lanes, logit_rows)
            padded = self.scheduler.shape.with_spare_rows(logit_rows)
            logits = self.context.decode(tokens, positions, lanes, padded)
            assert logits is not None
            return (
                logits
                if padded is logit_rows
                else logits[np.array(logit_rows, dtype=bool)[np.array(padded, dtype=bool)]]
            )
        except Unavailable as error:
            self._retry([self._requests[job.number] for job in jobs], error)
            return False
        finally:
            self.timings[kind] += time.perf_counter() - began

    def _sample(self, requests: list[PendingRequest], logits: Logits) -> None:
        """Sample the next token of each request from its row, and set what the request's job computes next."""
        generations = [request.generation for request in requests if request.generation is not None]
        settings = [generation.settings for generation in generations]
        positions = [len(generation.tokens) for generation in generations]
        try:
            masks = [generation.mask() for generation in generations]
            sampled = sample_tokens(logits, settings, positions, masks, self.sampling_threads)
        except (ValueError, ArithmeticError) as error:
            # A request's mask is empty or its logits are not finite. Sampling one by one finds the request.
            if len(requests) > 1:
                for index, request in enumerate(requests):
                    self._sample([request], logits[index : index + 1])
            else:
                self.fail(requests[0], error)
            return
        for row, (request, generation, token) in enumerate(zip(requests, generations, sampled, strict=True)):
            job = request.job
            if generation.settings.expected and (options := generation.score_options()):
                generation.add_expected_score(option_shares(logits[row], options))
            forced = generation.add_token(token)
            self.counts["generated"] += 1
            if generation.finish is not None:
                self._finish(request)
            elif forced is None:
                job.next_token = generation.tokens[-1]
            else:
                job.next_token = None
                job.segments.append(forced)

    def _take_logits(self, request: PendingRequest, logits: Logits, last: bool) -> None:
        """Pass logits to a reading: its context's last row, or the rows of the current continuation."""
        reading, job = request.reading, request.job
        assert reading is not None
        try:
            if reading.in_continuations:
                reading.read_rows(logits)
            else:
                reading.read_context(logits[0])
                job.max_chunk = max(1, _MAX_LOGITS // self.context.model.n_vocab)
        except ArithmeticError as error:
            self.fail(request, error)
            return
        if not last:
            return
        length = sum(len(segment.tokens) for segment in request.segments)
        segment = reading.next_segment()
        if segment is None:
            self.release(request)
            request.on_done(request)
            return
        if job.position > length:
            self.context.rewind(job.lane, length, request.checkpoint)
            job.position = self._lengths[job.lane] = length
        else:
            request.checkpoint = self.context.checkpoint(job.lane)
        job.segments.append(segment)

    def _finish(self, request: PendingRequest) -> None:
        job, generation = request.job, request.generation
        assert generation is not None
        segments = generation.computed_segments(self._lengths[job.lane] - request.prompt_tokens)
        # If the next prompt will not begin with the answer as it was computed, only the KV before the answer can be
        # reused; it may already be stored.
        answered = request.may_continue and (request.continues_from_answer is None or request.continues_from_answer())
        segments = segments if answered else []
        length = request.prompt_tokens + sum(len(segment.tokens) for segment in segments)
        # A recurrent state past that point is useless: the next turn continues from an older one.
        usable = length == self._lengths[job.lane] or not self.context.model.recurrent
        if usable and (answered or (request.may_continue and not request.stable_segments)):
            self.context.forget(job.lane, length)
            self._drop_superseded(request)
            self._save_kv([*request.segments, *segments], job.lane, request.conversation)
        self.release(request)
        request.on_done(request)

    def _retry(self, requests: list[PendingRequest], error: BackendError) -> None:
        """Restart the requests of a batch that llama.cpp refused; fail requests that have sampled or failed before."""
        for request in requests:
            request.decode_failures += 1
            if request.decode_failures > 1 or (request.generation is not None and request.generation.any_sampled):
                self.fail(request, error)
                continue
            self.release(request)
            request.reset()
            self.submit(request)


class ThreadAnswer:
    """Channel for an answer computed on an inference thread: its text as it comes, then its end.

    `put` and `end` are called on the thread, `wait` in the task.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._loop = clock, asyncio.get_running_loop()
        self._pieces: asyncio.Queue[str | None] = asyncio.Queue()

    def put(self, piece: str | None) -> None:
        """Pass on a piece of text; None ends the answer."""
        with suppress(RuntimeError):  # the event loop has ended, and nobody waits
            self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)

    def end(self) -> None:
        """End the answer."""
        self.put(None)

    async def wait(self, thread: Any, request: Any, on_text: Callable[[str], None] | None) -> float | None:
        """Compute the request, passing text to `on_text`; return the time of the first piece."""
        first: float | None = None
        try:
            with withdrawable(partial(thread.withdraw, request)), self._clock.external():
                thread.submit(request)
                while (piece := await self._pieces.get()) is not None:
                    first = self._clock.now() if first is None else first
                    if on_text is not None:
                        on_text(piece)
        except BaseException:
            thread.cancel(request)
            raise
        return first


_STOP_TIMEOUT = 3.0  # seconds for the thread to stop; llama.cpp checks for an abort between operations
_GRACE = 0.005  # seconds; grace period for ongoing conversations before new conversations are admitted


class InferenceLoop:
    """Owner of the lanes and their thread. All methods but `close` are thread-safe."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.idle_seconds = 0.0
        self._inbox: deque[PendingRequest] = deque()
        self._ended: deque[str] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._error: VivaError | None = None
        self._name = lanes.context.model.path.name
        self._thread = threading.Thread(target=self._run, name="viva-llama", daemon=True)
        self._thread.start()

    def submit(self, request: PendingRequest) -> None:
        """Queue a request. `request.on_done` is called on the inference thread when it has finished or failed.

        Raises:
            Unavailable: The thread has stopped.
        """
        with self._wake:
            if self._error is not None:
                raise self._error
            self._inbox.append(request)
            self._wake.notify()

    def cancel(self, request: PendingRequest) -> None:
        """Cancel a request; its lane is free at the next step. `on_done` is still called if the request just ended."""
        with self._wake:
            request.cancelled = True
            self._wake.notify()

    def withdraw(self, request: PendingRequest) -> None:
        """Fail a request with `RunStopping` at the next step, unless it has a lane by then."""
        with self._wake:
            request.withdrawn = True
            self._wake.notify()

    def end_conversation(self, conversation: str) -> None:
        """Release the KV of an ended conversation before the next step."""
        self._ended.append(conversation)

    def close(self) -> bool:
        """Stop the thread and fail pending requests; return True if it stopped.

        A thread that hangs in llama.cpp is abandoned with everything that it uses, so that the process can exit.
        """
        with self._wake:
            self._closing = True
            self._wake.notify()
        self.lanes.context.interrupt()
        self._thread.join(_STOP_TIMEOUT)
        stopped = not self._thread.is_alive()
        if not stopped:
            message = "%s: llama.cpp hangs; its thread is abandoned"
            logging.getLogger("viva").warning(message, self._name, extra={"label": ""})
        self._fail_all(Unavailable("the model was closed", model=self._name))
        return stopped

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:  # a bug here: no caller may wait for a dead thread
            self._fail_all(Unavailable(f"the inference thread failed: {error!r}", model=self._name))

    def _serve(self) -> None:
        computed = True
        while True:
            began = time.perf_counter()
            with self._wake:
                if not computed:
                    self._wake.wait_for(lambda: self._inbox or self._closing, _GRACE)
                while not self._closing and not self._inbox and not self.lanes.scheduler.busy:
                    self._wake.wait()
                if self._closing:
                    return
                arrived = [self._inbox.popleft() for _ in range(len(self._inbox))]
            self.idle_seconds += time.perf_counter() - began
            while self._ended:
                self.lanes.store.release(self._ended.popleft())
            for request in arrived:
                try:
                    self.lanes.submit(request)
                except Exception as error:  # fails only this request
                    self.lanes.fail(request, error)
            computed = self.lanes.step()

    def _fail_all(self, error: VivaError) -> None:
        with self._wake:
            self._error = self._error or error
            waiting = [self._inbox.popleft() for _ in range(len(self._inbox))]
        self.lanes.release_all(self._error)
        for request in waiting:
            request.error = self._error
            request.on_done(request)
