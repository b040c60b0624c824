"""The lanes of one context at work: filled with KV, stepped, sampled, and emptied again. On the inference thread only.

What never belongs here: which step comes next (``scheduler``), how a token is chosen (``sampler``, ``generation``),
threads and waiting (``loop``).
"""

from __future__ import annotations

import time
from collections import Counter, deque
from typing import Any

import numpy as np

from ...errors import BackendError, Rejected, Unavailable, VivaError
from .kv.host_cache import HostKV
from .native import Logits, NativeContext
from .outputs.sampler import pick, shares
from .pending_request import Ask
from .scheduler import DecodeStep, Job, PromptStep, Scheduler
from .segment import Segment

# Reading a text wants logits of all its tokens; this many numbers of them are held at once, at most.
_LOGITS_AT_ONCE = 16_000_000


class Lanes:
    """Carries out the scheduler's steps. ``timings`` are seconds by kind of work, ``counts`` are tokens and steps."""

    def __init__(self, context: NativeContext, scheduler: Scheduler, budget: int) -> None:
        """``budget``: bytes of host memory for KV that is in no lane."""
        self.context, self.scheduler = context, scheduler
        self._idle = HostKV(context, budget)
        self.store = self._idle.store
        self._name = context.model.path.name
        self._asks: dict[int, Ask] = {}
        self._talks: Counter[str] = Counter()  # how many requests of each talk are here
        self._numbers = 0
        self._lengths = [0] * context.lanes
        self.timings = {"decode": 0.0, "prompt": 0.0, "copy": 0.0, "rest": 0.0}
        self.counts = {"decoded": 0, "prompted": 0, "replayed": 0, "generated": 0, "found": 0, "steps": 0}

    def accept(self, ask: Ask) -> None:
        """Put a request before the scheduler, or end it at once where there is nothing to compute.

        :raises ContextTooLong: a lane does not hold it.
        """
        room = ask.room(self.context.context, self.scheduler.spare, self._name)
        ask.prompt_tokens = ask.longest
        if ask.generation is not None and ask.opening is None:
            ask.generation.max_tokens = min(ask.generation.max_tokens, room)
            ask.opening = ask.generation.opening()
            if ask.generation.finish is not None:  # the grammar left nothing to choose: no model was needed
                ask.done(ask)
                return
        self._numbers += 1
        ask.job = Job(self._numbers, deque(ask.segments), begun=ask.begun)
        self._asks[self._numbers] = ask
        self._talks[ask.talk] += 1
        self.scheduler.submit(ask.job)

    def refuse(self, ask: Ask, error: Exception) -> None:
        """End a request with an error: its own, or a fault of ours that it met."""
        if isinstance(error, FloatingPointError):  # asked again, the model would compute the same
            error = Rejected(str(error), model=self._name)
            if ask.job.lane >= 0:
                self.context.wipe(ask.job.lane)
        ask.error = error if isinstance(error, VivaError) else Unavailable(f"{error!r}", model=self._name)
        self.release(ask)
        ask.done(ask)

    def step(self) -> bool:
        """Drop what was cancelled, admit, and compute one step; whether there was one."""
        clock = time.perf_counter
        began = clock()
        self.counts["steps"] += 1
        for ask in [ask for ask in self._asks.values() if ask.cancelled]:
            self.release(ask)
        before = sum(self.timings.values())
        for job in self.scheduler.admit():
            self._fill(self._asks[job.number])
        step = self.scheduler.next_step()
        if isinstance(step, PromptStep):
            self._prompt(step)
        elif step is not None:
            self._decode(step)
        # What was neither llama.cpp nor copying of KV is ours.
        self.timings["rest"] += clock() - began - (sum(self.timings.values()) - before)
        return step is not None

    def release(self, ask: Ask) -> None:
        """Forget a request and free its lane."""
        job = ask.job
        if job.lane >= 0:
            self.context.forget(job.lane)
            self._lengths[job.lane] = 0
        self.scheduler.release(job)
        if self._asks.pop(job.number, None) is not None:
            self._talks[ask.talk] -= 1
            if not self._talks[ask.talk]:
                del self._talks[ask.talk]

    def release_all(self, error: VivaError) -> None:
        """End every request with an error."""
        for ask in list(self._asks.values()):
            ask.error = error
            ask.done(ask)
        self._asks.clear()
        self._talks.clear()

    def _fill(self, ask: Ask) -> None:
        """Give a lane the longest KV that is a prefix of the request, leaving at least one run to compute."""
        began = time.perf_counter()
        job = ask.job
        ask.found = count = self._idle.restore(job.lane, ask.segments[:-1])
        if self._talks[ask.talk] == 1 and not self.context.model.recurrent:
            self._supersede(ask)  # now, for a lane that is done will have use for the memory
        job.runs = deque(ask.segments[count:])
        if ask.opening is not None:
            job.runs.append(ask.opening)
        job.offset = 0
        job.position = sum(len(segment.tokens) for segment in ask.segments[:count])
        ask.computed = list(ask.segments[:count])
        job.common = ask.common()
        self._lengths[job.lane] = job.position
        self.counts["found"] += job.position
        self.timings["copy"] += time.perf_counter() - began

    def _supersede(self, ask: Ask) -> None:
        """Of a talk only the newest state is wanted again: forget the one that this request went on from."""
        if ask.found and ask.found not in ask.shared and ask.found != ask.kept:
            self.store.drop(ask.segments[: ask.found], ask.talk)

    def _keep(self, path: list[Segment], lane: int, owner: str = "") -> None:
        began = time.perf_counter()
        self._idle.save(lane, path, owner)
        self.timings["copy"] += time.perf_counter() - began

    def _completed(self, ask: Ask, run: Segment) -> None:
        """A run is computed; where the talk's next request goes on from here, its KV is kept now."""
        ask.computed.append(run)
        if len(ask.computed) == ask.kept:
            self._supersede(ask)
            self._keep(list(ask.computed), ask.job.lane, ask.talk)

    def _share(self, ask: Ask) -> None:
        """A run is complete: if others begin with all that was computed so far, they are given it."""
        name = ask.job.common
        if len(ask.computed) not in ask.shared:
            return
        ask.job.common = ask.common()
        if not (kept := self.store.has(ask.computed)):
            self._keep(list(ask.computed), ask.job.lane)
            kept = self.store.has(ask.computed)
        for other in self._asks.values():
            if name is not None and other.job.common == name and other is not ask:
                if kept:
                    self._fill(other)
                else:  # the store had no room for it: everybody for themselves
                    other.job.common = None

    def _prompt(self, step: PromptStep) -> None:
        tokens: list[int] = []
        positions: list[int] = []
        lanes: list[int] = []
        wanted: list[int] = []
        for job, part, last in step.parts:
            ask = self._asks[job.number]
            size = step.size or len(part)
            dummies = [0] * (size - len(part))
            tokens.extend([*part.tolist(), *dummies])
            positions.extend(range(job.position, job.position + size))
            lanes.extend([job.lane] * size)
            everything = ask.reading is not None and ask.reading.under_way
            wanted.extend([*([1] * len(part) if everything else [0] * (len(part) - 1) + [int(last)]), *dummies])
        logits = self._computed("prompt", tokens, positions, lanes, wanted, [job for job, _, _ in step.parts])
        if logits is False:
            return
        row = start = 0
        for job, part, last in step.parts:
            ask = self._asks[job.number]
            size = step.size or len(part)
            rows = sum(wanted[start : start + size])
            start += size
            self.counts["prompted"] += len(part)
            self._lengths[job.lane] += len(part)
            if size > len(part):
                self.context.forget(job.lane, self._lengths[job.lane])
            run = job.advance(len(part))
            if run is not None and (ask.reading is None or not ask.reading.under_way):
                self._completed(ask, run)
                self._share(ask)
            if ask.reading is not None and rows:
                self._read(ask, logits[row : row + rows], last)
            elif last:
                self._sampled([ask], logits[row : row + 1])
            row += rows

    def _decode(self, step: DecodeStep) -> None:
        tokens, positions, lanes, wanted = [], [], [], []
        sampling: list[Ask] = []
        for lane, job in step.rows:
            token = job.step_token() if job is not None else 0
            tokens.append(token)
            positions.append(self._lengths[lane])
            lanes.append(lane)
            last = job is not None and job.completes(1)
            wanted.append(int(last))
            if last and job is not None:
                sampling.append(self._asks[job.number])
        logits = self._computed("decode", tokens, positions, lanes, wanted, [job for _, job in step.rows if job])
        if logits is False:
            return
        for lane, job in step.rows:
            if job is None:
                self.context.forget(lane, self._lengths[lane])
                continue
            self._lengths[lane] += 1
            self.counts["decoded" if not job.runs else "replayed"] += 1
            run = job.advance(1)
            if run is not None:
                self._completed(self._asks[job.number], run)
        if sampling:
            self._sampled(sampling, logits)

    def _computed(self, kind: str, tokens: Any, positions: Any, lanes: Any, wanted: Any, jobs: list[Job]) -> Any:
        """The wanted rows, None if none was wanted; False where llama.cpp failed and the jobs have been seen to."""
        began = time.perf_counter()
        try:
            if not self.scheduler.strict or not any(wanted):
                return self.context.decode(tokens, positions, lanes, wanted)
            asked = self.scheduler.shape.filled(wanted)
            logits = self.context.decode(tokens, positions, lanes, asked)
            assert logits is not None
            return logits if asked is wanted else logits[np.array(wanted, dtype=bool)[np.array(asked, dtype=bool)]]
        except Unavailable as error:
            self._failed([self._asks[job.number] for job in jobs], error)
            return False
        finally:
            self.timings[kind] += time.perf_counter() - began

    def _sampled(self, asks: list[Ask], logits: Logits) -> None:
        """Choose the next token of each request, a row each, and set its job on what comes next."""
        generations = [ask.generation for ask in asks if ask.generation is not None]
        choices = [generation.choice for generation in generations]
        positions = [len(generation.tokens) for generation in generations]
        try:
            picked = pick(logits, choices, positions, [generation.mask() for generation in generations])
        except (ValueError, ArithmeticError) as error:
            # One request's grammar is at an end of no return, or its row is no numbers: find out whose, alone; the
            # others go on.
            if len(asks) > 1:
                for index, ask in enumerate(asks):
                    self._sampled([ask], logits[index : index + 1])
            else:
                self.refuse(asks[0], error)
            return
        for row, (ask, generation, choice) in enumerate(zip(asks, generations, picked, strict=True)):
            job = ask.job
            if generation.choice.expected and (options := generation.score_options()):
                generation.note_score(shares(logits[row], options))
            forced = generation.take(choice)
            self.counts["generated"] += 1
            if generation.finish is not None:
                self._finish(ask)
            elif forced is None:
                job.next_token = generation.tokens[-1]
            else:
                job.next_token = None
                job.runs.append(forced)

    def _read(self, ask: Ask, logits: Logits, last: bool) -> None:
        """Rows for a reading have come: the context's last one, or more of the continuation under way."""
        reading, job = ask.reading, ask.job
        assert reading is not None
        try:
            if reading.under_way:
                reading.rows(logits)
            else:
                reading.start(logits[0])
                job.chunk = max(1, _LOGITS_AT_ONCE // self.context.model.n_vocab)
        except ArithmeticError as error:
            self.refuse(ask, error)
            return
        if not last:
            return
        length = sum(len(segment.tokens) for segment in ask.segments)
        run = reading.next_run()
        if run is None:
            self.release(ask)
            ask.done(ask)
            return
        if job.position > length:
            self.context.rewind(job.lane, length, ask.mark)
            job.position = self._lengths[job.lane] = length
        else:
            ask.mark = self.context.mark(job.lane)
        job.runs.append(run)

    def _finish(self, ask: Ask) -> None:
        job, generation = ask.job, ask.generation
        assert generation is not None
        runs = generation.computed(self._lengths[job.lane] - ask.prompt_tokens)
        # Where the talk's next request will not begin with the answer as it was computed, only what stood before it is
        # of use, if that was not kept already.
        answered = ask.continued and (ask.goes_on is None or ask.goes_on())
        runs = runs if answered else []
        length = ask.prompt_tokens + sum(len(run.tokens) for run in runs)
        # A recurrent state that has gone past that is of none: the next turn goes on from an older one.
        usable = length == self._lengths[job.lane] or not self.context.model.recurrent
        if usable and (answered or (ask.continued and not ask.kept)):
            self.context.forget(job.lane, length)
            self._supersede(ask)
            self._keep([*ask.segments, *runs], job.lane, ask.talk)
        self.release(ask)
        ask.done(ask)

    def _failed(self, asks: list[Ask], error: BackendError) -> None:
        """llama.cpp refused a batch: everybody in it begins again, once; who fails again has failed."""
        for ask in asks:
            ask.decode_failures += 1
            if ask.decode_failures > 1 or (ask.generation is not None and ask.generation.sampled):
                self.refuse(ask, error)
                continue
            self.release(ask)
            ask.begin_again()
            self.accept(ask)
