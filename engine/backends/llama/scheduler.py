"""Which tokens llama.cpp computes next: a small, synchronous decision with no model in it.

A job is a request on its way: first its prompt's runs are computed, then it is decoded until it says it is done.
Lanes are 0 … n−1, the lowest free one is taken first, for llama.cpp batches consecutive lanes only. Decoding goes
first; after each decode step prompt calls follow until ``prompt_budget`` tokens are passed, so that decoding lanes
never wait long. Jobs that begin with a prefix in common wait while one of them computes it. Jobs of conversations
already begun are admitted before new ones: what is begun gets finished, and less KV is alive. For the same reason a
lane that has just come free waits for one step for the next request of a talk under way, which is being made meanwhile,
before a new one is given it. A new one is admitted all the same when it has been passed over often enough.

In the strict mode nothing that is computed depends on company: prompt runs are cut at borders that follow from the run
alone, share a call only with runs of the same length in neighbouring lanes, and a decode call holds one row a lane
without gaps; all of it in the ``shape`` that the weights want.
What never belongs here: KV, sampling, threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from .batch_shape import ANY, Shape
from .native import Tokens
from .segment import Segment

_PATIENCE = 64  # admissions of begun jobs that a new one lets pass
_TRUST = 8  # lanes held back in vain, beyond the begun jobs that came, until none is any more


@dataclass(slots=True)
class Job:
    """A request as the scheduler sees it.

    ``runs`` are still to be computed, the first from ``offset`` on; ``position`` is how many tokens the lane holds.
    ``next_token`` is what to feed when decoding; None while runs are left, or when nothing more is wanted. ``common``
    names the prefix that the job is at and shares with others: of those that name the same, one computes. ``chunk`` is
    the most tokens one call computes of it where that is less than a batch.
    """

    number: int
    runs: deque[Segment]
    begun: bool = False
    lane: int = -1
    position: int = 0
    offset: int = 0
    next_token: int | None = None
    common: Hashable | None = None
    chunk: int = 1 << 30

    @property
    def in_prompt(self) -> bool:
        """Whether the next work is a prompt run (computed at once)."""
        return bool(self.runs) and not self.runs[0].decoded

    def step_token(self) -> int | None:
        """The token this job would feed in a decode step: of a run that was generated once, or its newest."""
        if self.runs:
            return int(self.runs[0].tokens[self.offset]) if self.runs[0].decoded else None
        return self.next_token

    def completes(self, count: int) -> bool:
        """Whether ``count`` more tokens leave no run to compute, so that the next token is to be chosen."""
        return not self.runs or (len(self.runs) == 1 and self.offset + count == len(self.runs[0].tokens))

    def advance(self, count: int) -> Segment | None:
        """Note that ``count`` tokens were computed; the run that this completed, if any."""
        self.position += count
        if not self.runs:
            return None
        self.offset += count
        if self.offset < len(self.runs[0].tokens):
            return None
        self.offset = 0
        return self.runs.popleft()


@dataclass(slots=True)
class PromptStep:
    """Compute the next tokens of each job's current run; ``last`` says for each whether that completes its runs.

    ``turn``: the lane whose turn it is after this. ``size``: how many rows each part has in the call, those beyond its
    tokens being dummies that must be forgotten again; 0: as many as it has tokens.
    """

    parts: list[tuple[Job, Tokens, bool]]
    turn: int
    size: int = 0

    @property
    def tokens(self) -> int:
        """How many tokens are computed."""
        return sum(len(tokens) for _, tokens, _ in self.parts)


@dataclass(slots=True)
class DecodeStep:
    """Feed one token to each lane in order; a lane without a job gets a dummy that must be forgotten again."""

    rows: list[tuple[int, Job | None]]


@dataclass(slots=True)
class Scheduler:
    """See the module. ``batch``: the most tokens one call takes, a multiple of the shape's unit. ``shape`` counts in
    the strict mode only.
    """

    lanes: int
    batch: int = 512
    prompt_budget: int = 512
    strict: bool = True
    shape: Shape = ANY
    _begun: deque[Job] = field(default_factory=deque)
    _new: deque[Job] = field(default_factory=deque)
    _running: list[Job | None] = field(default_factory=list)
    _held: deque[int] = field(default_factory=deque)  # the step after which each lane not for new jobs came free
    _steps: int = 0
    _came: int = 0
    _in_vain: int = 0
    _passed: int = 0
    _spent: int = 0
    _turn: int = 0

    def __post_init__(self) -> None:
        self._running = [None] * self.lanes

    def submit(self, job: Job) -> None:
        """A request has come."""
        self._came += job.begun
        (self._begun if job.begun else self._new).append(job)

    def admit(self) -> list[Job]:
        """Give free lanes to waiting jobs; the caller fills the lanes' KV and sets position and runs."""
        while self._held and self._held[0] < self._steps:
            self._held.popleft()
            self._in_vain += bool(self._new)
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
        """A job is done or cancelled, waiting or running."""
        if job.lane >= 0:
            self._running[job.lane] = None
            job.lane = -1
            if self._in_vain < self._came + _TRUST:
                self._held.append(self._steps)
        else:
            for queue in (self._begun, self._new):
                if job in queue:
                    queue.remove(job)

    def next_step(self) -> PromptStep | DecodeStep | None:
        """What to compute now; None if no running job has work."""
        self._steps += 1
        prompts = self._prompts()
        decoding = [job for job in self._running if job is not None and job.step_token() is not None]
        if prompts and (not decoding or self._spent < self.prompt_budget):
            step = self._prompt_step(prompts)
            self._spent += step.tokens
            self._turn = step.turn
            return step
        self._spent = 0
        return self._decode_step(decoding) if decoding else None

    @property
    def busy(self) -> bool:
        """Whether anything waits or runs."""
        return bool(self._begun or self._new) or any(job is not None for job in self._running)

    @property
    def spare(self) -> int:
        """How many positions at the end of a lane have to stay free for dummies."""
        return self.shape.rows(1) - 1 if self.strict else 0

    def statistics(self) -> dict[str, int]:
        """Jobs running and waiting."""
        running = sum(job is not None for job in self._running)
        return {"running": running, "waiting_begun": len(self._begun), "waiting_new": len(self._new)}

    def _next_waiting(self, free: int) -> Job | None:
        if self._begun and (not self._new or self._passed < _PATIENCE):
            self._passed += bool(self._new)
            if self._held:
                self._held.popleft()
            return self._begun.popleft()
        if self._new and (self._begun or free > len(self._held)):
            self._passed = 0
            return self._new.popleft()
        return None

    def _prompts(self) -> list[Job]:
        prompts = [job for job in self._running if job is not None and job.in_prompt]
        # Of those with a prefix in common the one that has come furthest goes on, the others will be given its KV.
        first: dict[Hashable, Job] = {}
        for job in prompts:
            if job.common is not None and (job.common not in first or job.offset > first[job.common].offset):
                first[job.common] = job
        return [job for job in prompts if job.common is None or first[job.common] is job]

    def _prompt_step(self, prompts: Sequence[Job]) -> PromptStep:
        if not self.strict:
            return self._mixed(prompts)
        # In turn by lane, so that a long prompt does not hold up the short one beside it for ever.
        steps = self._blocks(prompts)
        return next((step for step in steps if step.turn > self._turn), steps[0])

    def _blocks(self, prompts: Sequence[Job]) -> list[PromptStep]:
        steps: list[PromptStep] = []
        room = 0
        for job in prompts:
            part = self._part(job, self.batch)
            size = self.shape.rows(len(part[1]))
            step = steps[-1] if steps else None
            if step is not None and (step.size, step.turn, True) == (size, job.lane, size <= min(room, job.chunk)):
                step.parts.append(part)
                step.turn = job.lane + 1
            else:
                steps.append(PromptStep([part], job.lane + 1, size))
                room = self.batch
            room = min(room, job.chunk) - size
        return steps

    def _mixed(self, prompts: Sequence[Job]) -> PromptStep:
        start = next((index for index, job in enumerate(prompts) if job.lane >= self._turn), 0)
        parts, room = [], self.batch
        for index in range(len(prompts)):
            if room <= 0:
                break
            # Whoever's turn it is takes what it needs, but leaves a share to those behind it.
            part = self._part(prompts[(start + index) % len(prompts)], max(1, room // (len(prompts) - index)))
            room -= len(part[1])
            parts.append(part)
        return PromptStep(sorted(parts, key=lambda part: part[0].lane), prompts[start].lane + 1)

    def _part(self, job: Job, most: int) -> tuple[Job, Tokens, bool]:
        run = job.runs[0].tokens
        tokens = run[job.offset : job.offset + min(most, job.chunk)]
        return job, tokens, job.completes(len(tokens))

    def _decode_step(self, decoding: Sequence[Job]) -> DecodeStep:
        by_lane = {job.lane: job for job in decoding}
        top = max(by_lane) + 1
        if self.strict:
            # Idle lanes below the highest are filled, for a gap would part the others into calls of other shapes.
            return DecodeStep([(lane, by_lane.get(lane)) for lane in range(min(self.shape.rows(top), self.lanes))])
        return DecodeStep([(lane, by_lane[lane]) for lane in sorted(by_lane)])
