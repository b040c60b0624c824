"""The scheduler in a simulation without a model: every rule of its module is checked at every step."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from viva.engine.backends.llama.native import Segment
from viva.engine.backends.llama.scheduler import (
    AT_LEAST_TWO,
    MULTIPLES_OF_FOUR,
    UNCONSTRAINED,
    DecodeStep,
    Job,
    PrefillStep,
    Scheduler,
)

fixed = settings(deadline=None, derandomize=True, max_examples=150)


@dataclass
class Call:
    """A request: runs (length, decoded), then what is generated: each token with so many forced ones behind it."""

    segments: list[tuple[int, bool]]
    answer: list[int]
    arrives: int = 0
    ongoing: bool = False
    found: int = 0  # tokens that the lane is given from the store
    cancelled_at: int | None = None


@dataclass
class Progress:
    call: Call
    job: Job
    expected: list[int]  # all tokens that are fed, in order
    computed: list[int] = field(default_factory=list)
    answered: int = 0
    unserved: int = 0  # prompt steps that others have had since this one's last


class Simulation:
    """Does what the inference loop does, and looks closely."""

    def __init__(self, scheduler: Scheduler, calls: list[Call]) -> None:
        self.scheduler = scheduler
        self.waiting = deque(sorted(enumerate(calls), key=lambda entry: entry[1].arrives))
        self.alive: dict[int, Progress] = {}
        self.lanes: dict[int, Progress] = {}
        self.tick = self.between = 0
        self.freed = 0  # lanes since the last admission
        self.ended: list[int] = []

    def run(self) -> None:
        while self.waiting or self.scheduler.busy:
            while self.waiting and self.waiting[0][1].arrives <= self.tick:
                self._submit(*self.waiting.popleft())
            for number, progress in list(self.alive.items()):
                if progress.call.cancelled_at is not None and progress.call.cancelled_at <= self.tick:
                    self._end(number)
            self._admit()
            decoding = any(self._decodes(progress) for progress in self.lanes.values())
            step = self.scheduler.next_step()
            assert (step is None) == (not self.lanes)
            if isinstance(step, PrefillStep):
                self._prompt(step, decoding)
            elif isinstance(step, DecodeStep):
                self._decode(step)
            self.tick += 1
            assert self.tick < 10_000
        assert self.scheduler.next_step() is None
        assert self.scheduler.statistics() == {"running": 0, "waiting_begun": 0, "waiting_new": 0}

    def _submit(self, number: int, call: Call) -> None:
        # Token ids say whose they are and at which place they stand.
        lengths = [length for length, _ in call.segments] + [1 + forced for forced in call.answer]
        tokens = np.arange(sum(lengths), dtype=np.int32) + number * 10_000
        cuts = np.cumsum([length for length, _ in call.segments])
        segments = [Segment(part, call.segments[i][1]) for i, part in enumerate(np.split(tokens, cuts)[:-1])]
        job = Job(number, deque(segments), ongoing=call.ongoing)
        # The last token is never fed, nor what would be forced behind it.
        fed = len(tokens) - 1 - call.answer[-1] if call.answer else len(tokens)
        self.alive[number] = Progress(call, job, tokens[:fed].tolist())
        self.scheduler.submit(job)

    def _admit(self) -> None:
        free = [lane for lane in range(self.scheduler.lanes) if lane not in self.lanes]
        admitted = self.scheduler.admit()
        assert [job.lane for job in admitted] == free[: len(admitted)]
        # Of waiting ones only new ones may be left without a lane, and of lanes only those of the last step's ends.
        left = [progress for progress in self.alive.values() if progress.job.lane < 0]
        spare = len(free) - len(admitted)
        assert not spare or not left or (spare <= self.freed and not any(progress.call.ongoing for progress in left))
        self.freed = 0
        for job in admitted:
            self.lanes[job.lane] = self.alive[job.number]
            job.position = self.alive[job.number].call.found

    def _end(self, number: int) -> None:
        progress = self.alive.pop(number)
        self.freed += self.lanes.pop(progress.job.lane, None) is not None
        self.scheduler.release(progress.job)
        assert progress.job.lane == -1
        self.ended.append(number)

    def _decodes(self, progress: Progress) -> bool:
        segments = progress.job.segments
        return segments[0].decoded if segments else progress.job.next_token is not None

    def _prompt(self, step: PrefillStep, decoding: bool) -> None:
        batch, total = self.scheduler.batch, sum(len(tokens) for _, tokens, _ in step.parts)
        served = [job.lane for job, _, _ in step.parts]
        assert served == sorted(set(served))
        assert 0 < total <= batch
        # Whoever decodes waits for at most the budget and the part that went over it.
        self.between = self.between + total if decoding else 0
        assert self.between < self.scheduler.prefill_budget + batch
        prompting = [progress for progress in self.lanes.values() if progress.job.in_prefill]
        for progress in prompting:
            progress.unserved = 0 if progress.job.lane in served else progress.unserved + 1
            assert progress.unserved < self.scheduler.lanes
        if self.scheduler.strict:
            # Neighbours, each with the same number of rows; the call is the one that each would have alone, repeated.
            assert served == list(range(served[0], served[0] + len(served)))
            assert {self.scheduler.shape.padded_rows(len(tokens)) for _, tokens, _ in step.parts} == {step.size}
            assert len(served) == 1 or len(served) * step.size <= batch
        else:
            assert step.size == 0
        for job, tokens, last in step.parts:
            assert job.in_prefill
            run = job.segments[0].tokens
            if self.scheduler.strict:
                assert job.offset % batch == 0
                assert len(tokens) == min(batch, len(run) - job.offset)
            assert tokens.tolist() == run[job.offset : job.offset + len(tokens)].tolist()
            self._computed(job, tokens.tolist(), last)

    def _decode(self, step: DecodeStep) -> None:
        self.between = 0
        lanes = [lane for lane, _ in step.rows]
        wanted = {lane for lane, progress in self.lanes.items() if self._decodes(progress)}
        assert {lane for lane, job in step.rows if job is not None} == wanted != set()
        if self.scheduler.strict:
            assert lanes == list(range(len(lanes)))
            assert len(lanes) == min(self.scheduler.shape.padded_rows(max(wanted) + 1), self.scheduler.lanes)
        elif self.scheduler.fills_gaps and len(wanted) >= max(wanted) + 1 - min(wanted) - len(wanted):
            assert lanes == list(range(min(wanted), max(wanted) + 1))
        else:
            assert lanes == sorted(wanted)
        for lane, job in step.rows:
            if job is not None:
                assert self.lanes[lane].job is job
                token = job.decode_token()
                assert token is not None
                self._computed(job, [token], job.completes(1))

    def _computed(self, job: Job, tokens: list[int], last: bool) -> None:
        progress = self.alive[job.number]
        assert self.lanes[job.lane] is progress
        assert job.position == progress.call.found + len(progress.computed)
        progress.computed += tokens
        assert progress.computed == progress.expected[: len(progress.computed)]
        job.advance(len(tokens))
        assert last == (not job.segments)
        if last:
            self._sampled(progress)

    def _sampled(self, progress: Progress) -> None:
        job, answer = progress.job, progress.call.answer
        if progress.answered >= len(answer) - 1:  # the last token ends it; without any, only the runs were wanted
            assert progress.computed == progress.expected
            self._end(job.number)
            return
        at = len(progress.computed)
        forced = answer[progress.answered]
        progress.answered += 1
        if forced:
            tokens = np.array(progress.expected[at : at + 1 + forced], dtype=np.int32)
            job.next_token = None
            job.segments.append(Segment(tokens))
        else:
            job.next_token = progress.expected[at]


calls = st.builds(
    Call,
    segments=st.lists(st.tuples(st.integers(1, 20), st.booleans()), min_size=1, max_size=4),
    answer=st.lists(st.sampled_from([0, 0, 0, 1, 5, 9]), max_size=8),
    arrives=st.integers(0, 30),
    ongoing=st.booleans(),
    found=st.sampled_from([0, 7]),
    cancelled_at=st.none() | st.none() | st.integers(0, 60),
)
schedulers = st.builds(
    Scheduler,
    st.integers(1, 6),
    batch=st.integers(1, 9),
    prefill_budget=st.integers(1, 30),
    strict=st.booleans(),
    shape=st.sampled_from([UNCONSTRAINED, AT_LEAST_TWO, MULTIPLES_OF_FOUR]),
    fills_gaps=st.booleans(),
)


@fixed
@given(schedulers, st.lists(calls, max_size=12))
def test_a_simulated_day(scheduler: Scheduler, requests: list[Call]) -> None:
    simulation = Simulation(scheduler, requests)
    simulation.run()
    assert sorted(simulation.ended) == list(range(len(requests)))


@pytest.mark.parametrize("lanes", [1, 3])
def test_new_ones_are_admitted_although_begun_ones_keep_coming(lanes: int) -> None:
    scheduler, news, admitted = Scheduler(lanes), 5, list[int]()
    for number in range(600):
        scheduler.submit(Job(number, deque(), ongoing=number >= news))
    while scheduler.busy:
        for job in scheduler.admit():
            admitted.append(job.number)
            scheduler.release(job)
    turns = [admitted.index(number) for number in range(news)]
    assert turns == sorted(turns)
    assert all(10 < later - earlier <= 65 for earlier, later in pairwise([-1, *turns]))  # what is begun goes first
    assert [number for number in admitted if number >= news] == list(range(news, 600))


def test_a_lane_waits_a_step_for_the_next_request_of_its_talk() -> None:
    scheduler = Scheduler(2)
    for number in range(2):
        scheduler.submit(Job(number, deque([Segment(np.arange(9, dtype=np.int32))])))
    first, second = scheduler.admit()
    scheduler.submit(Job(2, deque()))
    assert scheduler.next_step() is not None
    scheduler.release(first)
    assert scheduler.admit() == []
    scheduler.submit(Job(3, deque(), ongoing=True))
    assert [job.number for job in scheduler.admit()] == [3]  # it came in time
    scheduler.release(second)
    assert scheduler.admit() == []
    assert scheduler.next_step() is None
    assert [job.number for job in scheduler.admit()] == [2]  # none came, so the new one has the lane


def test_lanes_do_not_wait_for_talks_of_a_single_request() -> None:
    scheduler = Scheduler(1)
    for number in range(50):
        scheduler.submit(Job(number, deque()))
    idle = 0
    while scheduler.busy:
        admitted = scheduler.admit()
        idle += not admitted
        scheduler.next_step()
        for job in admitted:
            scheduler.release(job)
    assert idle == 8  # then it is plain that nobody comes back


@pytest.mark.parametrize("strict", [True, False])
def test_of_jobs_at_a_common_prefix_one_computes_it(strict: bool) -> None:
    scheduler = Scheduler(4, batch=8, prefill_budget=100, strict=strict)
    run = Segment(np.arange(20, dtype=np.int32))
    jobs = [Job(number, deque([run]), shared_prefix="rules" if number != 2 else None) for number in range(4)]
    for job in jobs:
        scheduler.submit(job)
    scheduler.admit()
    computed: dict[int, int] = {}
    while jobs[0].segments:
        step = scheduler.next_step()
        assert isinstance(step, PrefillStep)
        for job, tokens, _ in step.parts:
            computed[job.number] = computed.get(job.number, 0) + len(tokens)
            job.advance(len(tokens))
    scheduler.release(jobs[2])
    assert computed == {0: 20, 2: computed[2]}  # the others wait for the first, and nobody for them

    # The first is cancelled half-way and another takes its place; a third may not begin beside it.
    jobs[1].shared_prefix = jobs[3].shared_prefix = "more rules"
    jobs[1].segments = deque([run])
    jobs[3].segments, jobs[3].offset = deque([run]), 8
    scheduler.release(jobs[0])
    step = scheduler.next_step()
    assert isinstance(step, PrefillStep)
    assert 3 in [job.number for job, _, _ in step.parts]
    assert 1 not in [job.number for job, _, _ in step.parts]
