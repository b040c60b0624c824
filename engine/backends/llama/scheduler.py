"""The scheduler decides which tokens llama.cpp computes next. Synchronous, without a model.

A job is prefilled segment by segment, then decoded until its request is done. Free lanes are assigned from the lowest
on, because llama.cpp batches consecutive lanes only. Decoding goes first; after each decode step, prefill steps follow
until they have computed `prefill_budget` tokens, so decoding lanes never wait long.

Strict mode relies on batch shapes for which a row's result does not depend on the other rows. llama.cpp's CPU kernels
depend on the number of rows in a batch, and some compute the rows after the last multiple of four differently. The
shapes were measured on x86-64 by comparing logits and KV bit for bit, and a test repeats this for each weight type.
"""

from __future__ import annotations

import platform
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from .native import Segment, Tokens

_ROW_INVARIANT = {"F32", "F16", "BF16", "Q8_0"}


@dataclass(slots=True, frozen=True)
class BatchShape:
    """Shape of batches: at least `minimum` rows and a multiple of `multiple`; the same holds for rows with logits."""

    minimum: int
    multiple: int

    def padded_rows(self, count: int) -> int:
        """Return the smallest allowed number of rows that is not below `count`."""
        return -(-max(count, self.minimum) // self.multiple) * self.multiple

    def with_spare_rows(self, logit_rows: list[int]) -> list[int]:
        """Return the flags of rows with logits; from the end, more are set until their number is allowed."""
        count = sum(logit_rows)
        missing = self.padded_rows(count) - count
        spare = [index for index, flag in enumerate(logit_rows) if not flag][-missing:] if missing else []
        if not spare:
            return logit_rows
        padded = list(logit_rows)
        for index in spare:
            padded[index] = 1
        return padded

    def fits(self, lanes: int) -> bool:
        """Return True if decode batches of up to `lanes` rows can keep the shape. A single lane always does."""
        return lanes == 1 or self.padded_rows(lanes) == lanes


UNCONSTRAINED = BatchShape(1, 1)
AT_LEAST_TWO = BatchShape(2, 1)
MULTIPLES_OF_FOUR = BatchShape(8, 4)


def shape_for_weights(weight_types: frozenset[str]) -> BatchShape:
    """Return the shape that these weight types (GGUF names) need; the strictest one on machines other than x86-64."""
    return (
        AT_LEAST_TWO
        if weight_types <= _ROW_INVARIANT and platform.machine().lower() in ("x86_64", "amd64")
        else MULTIPLES_OF_FOUR
    )


_MAX_PASSED_OVER = 64  # maximum number of ongoing jobs admitted before a waiting new job
_MAX_WASTED_RESERVATIONS = 8  # reserving ends if unused reservations exceed ongoing jobs by this number


@dataclass(slots=True)
class Job:
    """A request as the scheduler sees it.

    `segments` are still to be computed, the first from `offset` on; `position` is the number of tokens in the lane.
    `next_token` is the token to decode; None while segments are left, or if nothing more is requested. Of the jobs with
    an equal `shared_prefix`, one computes it. `max_chunk` limits the job's tokens per batch, if set below the batch
    size.
    """

    number: int
    segments: deque[Segment]
    ongoing: bool = False
    lane: int = -1
    position: int = 0
    offset: int = 0
    next_token: int | None = None
    shared_prefix: Hashable | None = None
    max_chunk: int = 1 << 30

    @property
    def in_prefill(self) -> bool:
        """Return True if a prefill segment is next."""
        return bool(self.segments) and not self.segments[0].decoded

    def decode_token(self) -> int | None:
        """Return the token to decode: the next token of a segment that was generated earlier, or the newest token."""
        if self.segments:
            return int(self.segments[0].tokens[self.offset]) if self.segments[0].decoded else None
        return self.next_token

    def completes(self, count: int) -> bool:
        """Return True if no segment is left after `count` more tokens, so that the next token is to be sampled."""
        return not self.segments or (len(self.segments) == 1 and self.offset + count == len(self.segments[0].tokens))

    def advance(self, count: int) -> Segment | None:
        """Record that `count` tokens were computed; return the segment that this completed, if any."""
        self.position += count
        if not self.segments:
            return None
        self.offset += count
        if self.offset < len(self.segments[0].tokens):
            return None
        self.offset = 0
        return self.segments.popleft()


@dataclass(slots=True)
class PrefillStep:
    """Prefill of each job's next tokens in its current segment; a part's flag says that it completes the last segment.

    `next_lane` is the lane served next. `size` is the number of rows of each part in the batch (0: as many as it has
    tokens); surplus rows are dummies whose KV must be removed.
    """

    parts: list[tuple[Job, Tokens, bool]]
    next_lane: int
    size: int = 0

    @property
    def tokens(self) -> int:
        """Number of tokens that are computed, without dummies."""
        return sum(len(tokens) for _, tokens, _ in self.parts)


@dataclass(slots=True)
class DecodeStep:
    """Decoding of one token per lane, in order. A lane without a job gets a dummy; its KV must be removed."""

    rows: list[tuple[int, Job | None]]


@dataclass(slots=True)
class Scheduler:
    """The scheduler of one context.

    `batch` is the maximum number of tokens in a batch; `shape` is for strict mode. With `fills_gaps`, idle lanes
    between decoding ones get dummies if they are fewer: llama.cpp splits a batch at gaps, and each part reads all
    weights.
    """

    lanes: int
    batch: int = 512
    prefill_budget: int = 512
    strict: bool = True
    shape: BatchShape = UNCONSTRAINED
    fills_gaps: bool = False
    _ongoing: deque[Job] = field(default_factory=deque)
    _new: deque[Job] = field(default_factory=deque)
    _running: list[Job | None] = field(default_factory=list)
    _reserved: deque[int] = field(default_factory=deque)  # for each reserved lane, the step in which it became free
    _steps: int = 0
    _ongoing_arrivals: int = 0
    _wasted_reservations: int = 0
    _passed_over: int = 0
    _prefill_spent: int = 0
    _next_lane: int = 0

    def __post_init__(self) -> None:
        self._running = [None] * self.lanes

    def submit(self, job: Job) -> None:
        """Add a waiting job."""
        self._ongoing_arrivals += job.ongoing
        (self._ongoing if job.ongoing else self._new).append(job)

    def admit(self) -> list[Job]:
        """Assign free lanes to waiting jobs; return these jobs, for which the caller sets KV, position and segments."""
        while self._reserved and self._reserved[0] < self._steps:
            self._reserved.popleft()
            self._wasted_reservations += bool(self._new)
        admitted = []
        free = [lane for lane, running in enumerate(self._running) if running is None]
        for index, lane in enumerate(free):
            job = self._next_waiting(len(free) - index)
            if job is None:
                break
            job.lane = lane
            self._running[lane] = job
            admitted.append(job)
        return admitted

    def release(self, job: Job) -> None:
        """Remove a finished or cancelled job, waiting or running."""
        if job.lane >= 0:
            self._running[job.lane] = None
            job.lane = -1
            if self._wasted_reservations < self._ongoing_arrivals + _MAX_WASTED_RESERVATIONS:
                self._reserved.append(self._steps)
        else:
            for queue in (self._ongoing, self._new):
                if job in queue:
                    queue.remove(job)

    def next_step(self) -> PrefillStep | DecodeStep | None:
        """Return what to compute now; None if no running job has work."""
        self._steps += 1
        prompts = self._prefilling()
        decoding = [job for job in self._running if job is not None and job.decode_token() is not None]
        if prompts and (not decoding or self._prefill_spent < self.prefill_budget):
            step = self._prefill_step(prompts)
            self._prefill_spent += step.tokens
            self._next_lane = step.next_lane
            return step
        self._prefill_spent = 0
        return self._decode_step(decoding) if decoding else None

    @property
    def busy(self) -> bool:
        """True if any job waits or runs."""
        return bool(self._ongoing or self._new) or any(job is not None for job in self._running)

    @property
    def dummy_positions(self) -> int:
        """Number of positions at the end of a lane that must stay free for dummies."""
        return self.shape.padded_rows(1) - 1 if self.strict else 0

    def statistics(self) -> dict[str, int]:
        """Return the numbers of running and waiting jobs."""
        running = sum(job is not None for job in self._running)
        return {"running": running, "waiting_begun": len(self._ongoing), "waiting_new": len(self._new)}

    def _next_waiting(self, free: int) -> Job | None:
        if self._ongoing and (not self._new or self._passed_over < _MAX_PASSED_OVER):
            self._passed_over += bool(self._new)
            if self._reserved:
                self._reserved.popleft()
            return self._ongoing.popleft()
        if self._new and (self._ongoing or free > len(self._reserved)):
            self._passed_over = 0
            return self._new.popleft()
        return None

    def _prefilling(self) -> list[Job]:
        prompts = [job for job in self._running if job is not None and job.in_prefill]
        # Of the jobs with a common prefix, only the most advanced continues; the other jobs will get its KV.
        first: dict[Hashable, Job] = {}
        for job in prompts:
            if job.shared_prefix is not None and (
                job.shared_prefix not in first or job.offset > first[job.shared_prefix].offset
            ):
                first[job.shared_prefix] = job
        return [job for job in prompts if job.shared_prefix is None or first[job.shared_prefix] is job]

    def _prefill_step(self, prompts: Sequence[Job]) -> PrefillStep:
        if not self.strict:
            return self._mixed_step(prompts)
        # Round-robin over lanes, so that a long prompt does not delay a short one forever.
        steps = self._strict_steps(prompts)
        return next((step for step in steps if step.next_lane > self._next_lane), steps[0])

    def _strict_steps(self, prompts: Sequence[Job]) -> list[PrefillStep]:
        steps: list[PrefillStep] = []
        room = 0
        for job in prompts:
            part = self._part(job, self.batch)
            size = self.shape.padded_rows(len(part[1]))
            step = steps[-1] if steps else None
            if step is not None and (step.size, step.next_lane, True) == (
                size,
                job.lane,
                size <= min(room, job.max_chunk),
            ):
                step.parts.append(part)
                step.next_lane = job.lane + 1
            else:
                steps.append(PrefillStep([part], job.lane + 1, size))
                room = self.batch
            room = min(room, job.max_chunk) - size
        return steps

    def _mixed_step(self, prompts: Sequence[Job]) -> PrefillStep:
        start = next((index for index, job in enumerate(prompts) if job.lane >= self._next_lane), 0)
        parts, room = [], self.batch
        for index in range(len(prompts)):
            if room <= 0:
                break
            # The first job takes what it needs, but leaves a share to all later jobs.
            part = self._part(prompts[(start + index) % len(prompts)], max(1, room // (len(prompts) - index)))
            room -= len(part[1])
            parts.append(part)
        return PrefillStep(sorted(parts, key=lambda part: part[0].lane), prompts[start].lane + 1)

    def _part(self, job: Job, limit: int) -> tuple[Job, Tokens, bool]:
        tokens = job.segments[0].tokens
        part = tokens[job.offset : job.offset + min(limit, job.max_chunk)]
        return job, part, job.completes(len(part))

    def _decode_step(self, decoding: Sequence[Job]) -> DecodeStep:
        by_lane = {job.lane: job for job in decoding}
        top = max(by_lane) + 1
        if self.strict:
            # Idle lanes below the highest get dummies: llama.cpp splits a batch at gaps, which changes its shape.
            return DecodeStep(
                [(lane, by_lane.get(lane)) for lane in range(min(self.shape.padded_rows(top), self.lanes))]
            )
        lanes: Iterable[int] = sorted(by_lane)
        if self.fills_gaps and top - min(by_lane) <= 2 * len(by_lane):
            lanes = range(min(by_lane), top)
        return DecodeStep([(lane, by_lane.get(lane)) for lane in lanes])
