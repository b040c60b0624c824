"""Load test from its settings to its last step: unloaded passes, choice of the next step, execution, resuming.

The next step depends only on the settings and the steps in the log, so a resumed test continues with the step and the
requests that an uninterrupted test would have had.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import anyio

from viva.engine.clock import Clock, RealClock
from viva.engine.errors import ConfigurationError, JournalError, Unavailable
from viva.scoring.load_latency import LatencyHistogram
from viva.scoring.load_schedule import Objective, ObjectiveTerm, RatePlan, RateResult

from .judge_client import LoadJudge, RequestSender, build_judges
from .load_driver import (
    DONE,
    INTERRUPTED,
    DriverBounds,
    JudgeStream,
    PartDriver,
    check_recorded_times,
    judge_stream,
    planned_requests,
)
from .load_log import LOG_FILE, LoadFolder, LoadHistory, LoadLog, LoggedStep
from .load_records import BASELINE, OTHER_SEEDS, SECOND_BASELINE, Arrivals, LoadRequests, LoadStep, SentRequest
from .load_settings import LoadSettings, check_load_settings
from .step_judgement import VerdictFigures
from .step_speed import ClientHealth, StepMeasurement, end_reason, measure_step
from .workload import Workload, WorkloadOptions, absolute_source, open_workload


@dataclass(slots=True)
class StepResult:
    """Result of a judge in an ended step: its figures by name, and the terms of the objective that it missed."""

    measured: StepMeasurement
    figures: dict[str, float | None]
    missed: tuple[ObjectiveTerm, ...]

    @property
    def met(self) -> bool:
        """True if the step met all terms of the objective and its queue did not grow without bound."""
        return not self.missed and not self.measured.saturated


def unloaded_passes(work: LoadRequests) -> list[int]:
    """Return the unloaded passes of the test, including one with other seeds if answers are sampled."""
    sampled = any(request.sampling.temperature > 0 for request in work)
    return [BASELINE, SECOND_BASELINE, *([OTHER_SEEDS] if sampled else [])]


def tried_rates(results: Mapping[tuple[int, str], StepResult], judge: str, arrivals: Arrivals) -> list[RateResult]:
    """Return a judge's results in all steps with these arrivals, in the form that rate plans need."""
    rates = []
    for (_, label), result in sorted(results.items(), key=lambda item: item[0]):
        step = result.measured.step
        if label == judge and step.arrivals == arrivals and not step.unloaded:
            rate = float(step.concurrency or 0) if arrivals == "closed" else step.rate or 0.0
            rates.append(RateResult(rate, result.met, result.measured.saturated))
    return rates


def plan_step(
    settings: LoadSettings, index: int, labels: Sequence[str], arrivals: Arrivals, rate: float, requests_known: int
) -> LoadStep:
    """Return the step at `rate` (in a closed loop: requests in flight); the workload has `requests_known` requests."""
    requests, seconds = settings.length
    if arrivals == "replay" and settings.requests is None and settings.seconds is None:
        requests, seconds = requests_known, None  # a replay sends the whole recording once
    closed = arrivals == "closed"
    return LoadStep(
        index,
        tuple(labels),
        arrivals,
        rate=None if closed or not rate else rate,  # None for a replay, which keeps the recorded times
        concurrency=int(rate) if closed else None,
        requests=requests,
        seconds=seconds,
        burst=settings.burst,
    )


@dataclass(slots=True)
class LiveJudge:
    """State of one judge in the current step."""

    label: str
    stream: JudgeStream | None = None
    e2e: LatencyHistogram = field(default_factory=LatencyHistogram)
    ttft: LatencyHistogram = field(default_factory=LatencyHistogram)
    dispatch: LatencyHistogram = field(default_factory=LatencyHistogram)
    errors: Counter[str] = field(default_factory=Counter)
    ended: int = 0

    def on_request_end(self, request: SentRequest) -> None:
        """Count a request that has ended."""
        self.ended += 1
        self.dispatch.record(request.dispatched - request.intended)
        if request.error:
            self.errors[request.error] += 1
            return
        self.e2e.record(request.finished - request.intended)
        if request.first_token is not None:
            self.ttft.record(request.first_token - request.intended)


@dataclass(slots=True)
class LiveStep:
    """Current step; `planned` is the total number of requests of all judges, None if unknown."""

    step: LoadStep
    judges: dict[str, LiveJudge]
    planned: int | None = None
    part: PartDriver | None = None
    began: float = 0.0  # time on the clock


# Figures of an ended step besides speed, such as `drift` and `parse_fail`.
ReadVerdictFigures = Callable[[LoadHistory, LoadStep, str], Mapping[str, float | None]]
_FIRST_REQUESTS = 3  # the test stops if this many requests, the first of the first pass, all fail


class LoadTest:
    """Load test; call `run` only once. `results` has the ended steps by index and judge; `live` is the current step.

    `folder` exists, belongs to this test, and has the log or will get it. `judged` returns the figures of a judge's
    verdicts in an ended step, for objectives such as `drift`.
    """

    def __init__(
        self,
        settings: LoadSettings,
        work: LoadRequests,
        judges: Sequence[LoadJudge],
        folder: Path,
        clock: Clock,
        judged: ReadVerdictFigures | None = None,
    ) -> None:
        self.settings, self.work, self.judges, self.folder, self.clock = settings, work, list(judges), folder, clock
        self.objective = Objective.parse(settings.objective) if settings.objective else Objective(())
        self.results: dict[tuple[int, str], StepResult] = {}
        self.unloaded: dict[str, StepMeasurement] = {}
        self.live: LiveStep | None = None
        self.interrupted = False
        self._judged = judged
        self._part: PartDriver | None = None
        self._index = 0
        self._scope = anyio.CancelScope()
        self._pausing: anyio.CancelScope | None = None
        if any(phase == "replay" for phase, _ in settings.phases):
            check_recorded_times(work)

    def interrupt(self) -> None:
        """Admit no further request; the test ends when all requests in flight are answered."""
        self.interrupted = True
        if self._part is not None:
            self._part.stop()
        elif self._pausing is not None:
            self._pausing.cancel()

    def halt(self) -> None:
        """Stop now; requests in flight are sent again when the test is resumed."""
        self.interrupted = True
        self._scope.cancel()

    async def run(self) -> None:
        """Run the test, or resume it from its log.

        Raises:
            VivaError: Every further request would fail, too, for example because the key is refused; or the log cannot
                be written. Ended steps stay in the log.
        """
        async with LoadLog(self.folder / LOG_FILE, self.clock, self._fail) as log:
            self._log = log
            with LoadHistory(self.folder) as history, self._scope:
                self._history = history
                for step in self._take_ended():
                    await self._run_step(step)
                if self.settings.baseline:
                    await self._run_unloaded()
                for arrivals, plan in self.settings.phases:
                    await self._run_phase(arrivals, plan)

    def _fail(self, error: JournalError) -> None:
        if self._part is not None:
            self._part.fail(error)

    # -- what comes next ------------------------------------------------------------------------------------------

    def has_remaining(self) -> bool:
        """Return True if requests remain to be sent. Loads the figures of all ended steps.

        Raises:
            JournalError: The log cannot be read.
        """
        if not (self.folder / LOG_FILE).exists():
            return True
        with LoadHistory(self.folder, checked=True) as history:
            self._history = history
            return (
                bool(self._take_ended())
                or (self.settings.baseline > 0 and bool(self._remaining_unloaded()))
                or any(
                    plan.next(tried_rates(self.results, judge.label, arrivals)) is not None
                    for arrivals, plan in self.settings.phases
                    for judge in self.judges
                )
            )

    def _take_ended(self) -> list[LoadStep]:
        """Load the figures of the ended steps from the log; return the unfinished steps."""
        unfinished = []
        for logged in self._history.steps():
            self._index = max(self._index, logged.step.index + 1)
            if logged.ends is None:
                unfinished.append(logged.step)
            elif (logged.step.index, logged.step.judges[0]) not in self.results:
                self._conclude(logged)
        return unfinished

    def _remaining_unloaded(self) -> list[int]:
        """Return the unloaded passes that have not begun."""
        begun = {logged.step.index for logged in self._history.steps()}
        return [index for index in unloaded_passes(self.work) if index not in begun]

    async def _run_unloaded(self) -> None:
        labels = tuple(judge.label for judge in self.judges)
        requests = min(self.settings.baseline, len(self.work))
        for index in self._remaining_unloaded():
            await self._run_step(LoadStep(index, labels, "closed", concurrency=1, requests=requests))

    async def _run_phase(self, arrivals: Arrivals, plan: RatePlan) -> None:
        while not self.interrupted:
            next_rates = [
                (judge.label, plan.next(tried_rates(self.results, judge.label, arrivals))) for judge in self.judges
            ]
            pending = [(label, rate) for label, rate in next_rates if rate is not None]
            if not pending:
                return
            if self.settings.together:
                lowest = min(rate for _, rate in pending)
                await self._run_step(
                    self._planned(arrivals, lowest, *(label for label, rate in pending if rate == lowest))
                )
            else:  # at each rate all judges take their turn, so that changes over time affect all judges
                for label, rate in pending:
                    await self._run_step(self._planned(arrivals, rate, label))

    def _planned(self, arrivals: Arrivals, rate: float, *labels: str) -> LoadStep:
        return plan_step(self.settings, self._index, labels, arrivals, rate, len(self.work))

    # -- one step -------------------------------------------------------------------------------------------------

    async def _run_step(self, step: LoadStep) -> None:
        """Run a step or, if it was interrupted, the rest of it; compute its figures."""
        if not step.unloaded:
            await self._pause()
        if self.interrupted:
            return
        self._log.begin_step(step)
        await self._log.flush()
        self._index = max(self._index, step.index + 1)
        groups = [step.judges] if not step.unloaded else [(label,) for label in step.judges]
        for group in groups:
            await self._run_part(step, group)
            if self.interrupted:
                return
        logged = self._logged(step)
        self._log.end_step(step.index, {label: end_reason(logged, label) or DONE for label in step.judges})
        await self._log.flush()
        self._conclude(self._logged(step))

    async def _pause(self) -> None:
        """Pause before each step except the first of this process."""
        if self.settings.pause and self.live is not None and not self.interrupted:
            with anyio.CancelScope() as self._pausing:
                await self.clock.sleep(self.settings.pause)

    async def _run_part(self, step: LoadStep, labels: Sequence[str]) -> None:
        logged = self._logged(step)
        part = 1 + max((logged_part.part for logged_part in logged.parts), default=-1)
        judges = [judge for judge in self.judges if judge.label in labels and not end_reason(logged, judge.label)]
        if not judges:
            return
        settings, work, independent = self.settings, self.work, self.settings.together
        earlier = {label: self._elapsed(step, label) for label in labels}
        first = not any(earlier.values())
        finished = {judge.label: self._history.finished(step.index, judge.label) for judge in judges}
        streams = [
            judge_stream(
                step, part, judge, work, settings.seed, finished[judge.label], first=first, independent=independent
            )
            for judge in judges
        ]
        seconds = step.seconds
        if seconds is not None and not first:
            # The rest of an open loop is a number of requests; the rest of a closed loop is a time.
            seconds = max(0.0, seconds - max(earlier.values())) if step.arrivals == "closed" else None
        counts = [planned_requests(step, work, settings.seed, judge, independent=independent) for judge in judges]
        live = {stream.judge.label: LiveJudge(stream.judge.label, stream) for stream in streams}
        salt = OTHER_SEEDS if step.index == OTHER_SEEDS else 0
        sender = RequestSender(self.clock, work, settings.seed, salt, settings.retries)
        bounds = DriverBounds(settings.drain, settings.most_in_flight, settings.stop_at_saturation)

        def on_request_end(request: SentRequest) -> None:
            self._log.record(request)
            live[request.judge].on_request_end(request)
            if step.index == BASELINE and request.error:
                self._check_any_answered(live[request.judge], request)

        driver = PartDriver(self.clock, step, part, streams, sender, bounds, on_request_end, seconds)
        remaining = [
            count - sum(finished[judge.label]) for count, judge in zip(counts, judges, strict=True) if count is not None
        ]
        total = sum(remaining) if len(remaining) == len(judges) else None
        self.live = LiveStep(step, live, total, driver, self.clock.now())
        self._log.begin_part(step.index, part)
        self._part = driver
        try:
            async with ClientHealth(self.clock) as health:
                await driver.run()
        finally:
            self._part = None
        watched = {
            "health": health.record(),
            "judges": {
                stream.judge.label: {
                    "end": stream.end,
                    "let_in": stream.let_in,
                    "most_in_flight": stream.most_in_flight,
                }
                for stream in streams
            },
        }
        self._log.end_part(step.index, part, driver.seconds, watched)
        await self._log.flush()
        if any(stream.end == INTERRUPTED for stream in streams):
            self.interrupted = True

    def _elapsed(self, step: LoadStep, label: str) -> float:
        """Return for how many seconds earlier parts admitted a judge's requests; 0 without earlier parts."""
        longest: dict[int, float] = {}
        for part, _, timing in self._history.timings(step.index, label):
            longest[part] = max(longest.get(part, 0.0), timing.intended)
        return sum(longest.values()) + (1e-9 if longest else 0.0)

    @staticmethod
    def _check_any_answered(judge: LiveJudge, request: SentRequest) -> None:
        """Check that the first requests have not all failed.

        Raises:
            Unavailable: All of them have failed, so nothing would be measured.
        """
        if judge.ended == _FIRST_REQUESTS and sum(judge.errors.values()) == judge.ended:
            raise Unavailable(
                f"the first {judge.ended} requests, sent one by one, all failed; the last: {request.message}",
                model=judge.label,
            )

    def _logged(self, step: LoadStep) -> LoggedStep:
        return next(logged for logged in self._history.steps() if logged.step.index == step.index)

    def _conclude(self, logged: LoggedStep) -> None:
        """Compute the figures of an ended step."""
        step = logged.step
        for label in step.judges:
            [backend] = [judge.backend for judge in self.judges if judge.label == label]
            measured = measure_step(
                self._history,
                logged,
                label,
                limits=self.settings.limits,
                warm_up=self.settings.warm_up,
                cool_down=self.settings.cool_down,
                unloaded=self.unloaded.get(label),
                prices=(backend.price_in, backend.price_out),
            )
            if step.index == BASELINE:
                self.unloaded[label] = measured
            figures = measured.figures(self.objective)
            if self._judged is not None and not step.unloaded:
                figures |= self._judged(self._history, step, label)
            missed = () if step.unloaded else self.objective.missed_terms(figures)
            self.results[step.index, label] = StepResult(measured, figures, missed)


_VERDICT_FIGURES = {"drift", "agreement", "parse_fail", "truncated", "refused"}


@dataclass(slots=True)
class LoadLaunch:
    """Load test ready to `run`; `test` is available from the start of the run."""

    folder: LoadFolder
    settings: LoadSettings
    work: Workload
    clock: Clock = field(default_factory=RealClock)
    test: LoadTest | None = None

    def unloaded_notes(self) -> list[str]:
        """Return a note on the unloaded passes, which come before the requested steps."""
        requests = min(self.settings.baseline, len(self.work.requests))
        if not requests:
            return []
        passes = len(unloaded_passes(self.work.requests))
        return [
            f"{passes} unloaded passes of {requests:,} requests run first, with one request in flight: verdicts under "
            "load are compared with them (--baseline limits them; 0 disables them)"
        ]

    async def run(self, ready: Callable[[LoadTest], None]) -> LoadTest:
        """Open the judges and run the test; `ready` is called as soon as the test can be stopped.

        Raises:
            VivaError: A judge cannot be reached, or every further request would fail, too.
        """
        self.folder.lock()
        try:
            async with build_judges(self.settings.judges, self.clock) as (judges, opening):
                objective = Objective.parse(self.settings.objective) if self.settings.objective else Objective(())
                judged = (
                    VerdictFigures(self.work)
                    if any(term.figure in _VERDICT_FIGURES for term in objective.terms)
                    else None
                )
                self.test = LoadTest(self.settings, self.work.requests, judges, self.folder.path, self.clock, judged)
                if self.test.has_remaining():
                    await opening()
                ready(self.test)
                await self.test.run()
                return self.test
        finally:
            self.folder.unlock()


def new_load_test(out: Path, source: str, options: WorkloadOptions, settings: LoadSettings) -> LoadLaunch:
    """Create a load test in a new folder.

    Raises:
        ConfigurationError: Requests, judges or folder are wrong.
    """
    source = absolute_source(source)
    work = open_workload(source, options)
    fields = {
        "settings": settings.model_dump(mode="json"),
        "work": {"source": source, **_options_record(options)},
        "requests": _requests_digest(work),
    }
    return LoadLaunch(LoadFolder.create(out, fields), settings, work)


def reopen_load_test(out: Path) -> LoadLaunch:
    """Open the load test in a folder to resume it.

    Raises:
        ConfigurationError: The folder has no load test, or the test's requests have changed.
    """
    folder = LoadFolder.open(out)
    work_fields = dict(folder.fields["work"])
    source = work_fields.pop("source")
    if work_fields.get("prompts"):
        work_fields["prompts"] = Path(work_fields["prompts"])
    work = open_workload(source, WorkloadOptions(**work_fields))
    if _requests_digest(work) != folder.fields["requests"]:
        raise ConfigurationError(
            f"{out}: the requests of {source} have changed since the load test began; restore them, or start a new "
            "test with --out"
        )
    return LoadLaunch(folder, check_load_settings(folder.fields["settings"]), work)


def _options_record(options: WorkloadOptions) -> dict[str, Any]:
    fields: Mapping[str, Any] = asdict(options)
    return {name: str(value.resolve()) if isinstance(value, Path) else value for name, value in fields.items()}


def _requests_digest(work: Workload) -> str:
    """Return a digest of these requests in this order."""
    digest = hashlib.blake2b(digest_size=16)
    for request in work.requests:
        digest.update(request.id.encode("utf-8", "surrogatepass") + b"\x1f" + request.sampling.digest)
        for message in request.messages:
            digest.update(message.role.encode() + b"\x1f" + message.content.encode("utf-8", "surrogatepass") + b"\x1e")
    return digest.hexdigest()
