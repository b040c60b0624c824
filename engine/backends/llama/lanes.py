"""The lanes of one context: restoring KV, computing batches, sampling, storing KV. Inference thread only."""

from __future__ import annotations

import time
from collections import Counter, deque
from typing import Any

import numpy as np

from ...errors import BackendError, Rejected, Unavailable, VivaError
from ...stopping import RunStopping
from .kv.host_cache import HostCache
from .native import Logits, NativeContext
from .outputs.sampler import option_shares, sample_tokens
from .pending_request import PendingRequest
from .scheduler import DecodeStep, Job, PrefillStep, Scheduler
from .segment import Segment

# Reading a text needs the logits of all its tokens; at most this many numbers are held at once.
_MAX_LOGITS = 16_000_000


class Lanes:
    """Executes the scheduler's steps. ``timings`` are seconds by kind of work, ``counts`` are tokens and steps."""

    def __init__(self, context: NativeContext, scheduler: Scheduler, budget: int) -> None:
        """``budget``: bytes of host memory for cached KV."""
        self.context, self.scheduler = context, scheduler
        self._host_cache = HostCache(context, budget)
        self.store = self._host_cache.store
        self._name = context.model.path.name
        self._requests: dict[int, PendingRequest] = {}
        self._conversations: Counter[str] = Counter()  # number of requests of each conversation
        self._numbers = 0
        self._lengths = [0] * context.lanes
        self.timings = {"decode": 0.0, "prompt": 0.0, "copy": 0.0, "rest": 0.0}
        self.counts = {"decoded": 0, "prompted": 0, "replayed": 0, "generated": 0, "found": 0, "steps": 0}

    def submit(self, request: PendingRequest) -> None:
        """Hand a request to the scheduler, or finish it at once if there is nothing to compute.

        :raises ContextTooLong: a lane cannot hold it.
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
        """Finish a request with an error: one of its own, or an internal one that it caused."""
        if isinstance(error, FloatingPointError):  # a retry would compute the same
            error = Rejected(str(error), model=self._name)
            if request.job.lane >= 0:
                self.context.wipe(request.job.lane)
        request.error = error if isinstance(error, VivaError) else Unavailable(f"{error!r}", model=self._name)
        self.release(request)
        request.on_done(request)

    def step(self) -> bool:
        """Drop cancelled and withdrawn requests, admit waiting ones, compute one batch.

        Returns whether there was one to compute.
        """
        clock = time.perf_counter
        began = clock()
        self.counts["steps"] += 1
        for request in [one for one in self._requests.values() if one.cancelled or one.withdrawn]:
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
        # Everything but llama.cpp and copying of KV.
        self.timings["rest"] += clock() - began - (sum(self.timings.values()) - before)
        return step is not None

    def release(self, request: PendingRequest) -> None:
        """Forget a request and free its lane."""
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
        """Fill a lane with the longest cached prefix of the request; at least one segment is left to compute."""
        began = time.perf_counter()
        job = request.job
        request.restored = count = self._host_cache.restore(job.lane, request.segments[:-1])
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
        """Drop the state that this request continued from: only the newest state of a conversation is used again."""
        if (
            request.restored
            and request.restored not in request.shared_prefixes
            and request.restored != request.stable_segments
        ):
            self.store.drop(request.segments[: request.restored], request.conversation)

    def _save_kv(self, path: list[Segment], lane: int, owner: str = "") -> None:
        began = time.perf_counter()
        self._host_cache.save(lane, path, owner)
        self.timings["copy"] += time.perf_counter() - began

    def _segment_computed(self, request: PendingRequest, segment: Segment) -> None:
        """Note a computed segment, and store KV here if the conversation's next prompt branches off at this point."""
        request.computed.append(segment)
        if len(request.computed) == request.stable_segments:
            self._drop_superseded(request)
            self._save_kv(list(request.computed), request.job.lane, request.conversation)

    def _publish_prefix(self, request: PendingRequest) -> None:
        """If a shared prefix has just been completed, store its KV and give it to the requests that wait for it."""
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
                else:  # no room in the host cache: each computes its own
                    other.job.shared_prefix = None

    def _prefill(self, step: PrefillStep) -> None:
        tokens: list[int] = []
        positions: list[int] = []
        lanes: list[int] = []
        wanted: list[int] = []
        for job, part, last in step.parts:
            request = self._requests[job.number]
            size = step.size or len(part)
            dummies = [0] * (size - len(part))
            tokens.extend([*part.tolist(), *dummies])
            positions.extend(range(job.position, job.position + size))
            lanes.extend([job.lane] * size)
            everything = request.reading is not None and request.reading.in_continuations
            wanted.extend([*([1] * len(part) if everything else [0] * (len(part) - 1) + [int(last)]), *dummies])
        logits = self._compute("prompt", tokens, positions, lanes, wanted, [job for job, _, _ in step.parts])
        if logits is False:
            return
        row = start = 0
        for job, part, last in step.parts:
            request = self._requests[job.number]
            size = step.size or len(part)
            rows = sum(wanted[start : start + size])
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
        tokens, positions, lanes, wanted = [], [], [], []
        sampling: list[PendingRequest] = []
        for lane, job in step.rows:
            token = job.decode_token() if job is not None else 0
            tokens.append(token)
            positions.append(self._lengths[lane])
            lanes.append(lane)
            last = job is not None and job.completes(1)
            wanted.append(int(last))
            if last and job is not None:
                sampling.append(self._requests[job.number])
        logits = self._compute("decode", tokens, positions, lanes, wanted, [job for _, job in step.rows if job])
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

    def _compute(self, kind: str, tokens: Any, positions: Any, lanes: Any, wanted: Any, jobs: list[Job]) -> Any:
        """The logits of the wanted rows, None if none was wanted; False if llama.cpp failed (``_retry``)."""
        began = time.perf_counter()
        try:
            if not self.scheduler.strict or not any(wanted):
                return self.context.decode(tokens, positions, lanes, wanted)
            asked = self.scheduler.shape.with_spare_rows(wanted)
            logits = self.context.decode(tokens, positions, lanes, asked)
            assert logits is not None
            return logits if asked is wanted else logits[np.array(wanted, dtype=bool)[np.array(asked, dtype=bool)]]
        except Unavailable as error:
            self._retry([self._requests[job.number] for job in jobs], error)
            return False
        finally:
            self.timings[kind] += time.perf_counter() - began

    def _sample(self, requests: list[PendingRequest], logits: Logits) -> None:
        """Choose the next token of each request, one row each, and set what its job computes next."""
        generations = [request.generation for request in requests if request.generation is not None]
        settings = [generation.settings for generation in generations]
        positions = [len(generation.tokens) for generation in generations]
        try:
            sampled = sample_tokens(logits, settings, positions, [generation.mask() for generation in generations])
        except (ValueError, ArithmeticError) as error:
            # Some request's mask is empty or its logits are not finite: find it by sampling one by one.
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
        """Pass logits to a reading: the last row of its context, or the rows of the continuation being computed."""
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
        # used again; it may have been stored already.
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
        """llama.cpp refused a batch: restart its requests, or fail those that have sampled or failed before."""
        for request in requests:
            request.decode_failures += 1
            if request.decode_failures > 1 or (request.generation is not None and request.generation.any_sampled):
                self.fail(request, error)
                continue
            self.release(request)
            request.reset()
            self.submit(request)
