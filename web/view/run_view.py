"""The page of a run: its state, progress, pace, end, budget, what each role waits for, scores, tokens and cost.

The figures are those of the run's journal, except what only the process that runs it knows (`live`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from viva.engine.errors import ConfigurationError
from viva.engine.files import shell_path
from viva.engine.steps import STEP_PREFIX
from viva.orchestration.control import RunStatus
from viva.orchestration.run_progress import RoleWait, estimate_remaining, moment_text
from viva.reports.run_tables import token_cost
from viva.reports.tables import money
from viva.scenarios.models import model_labels
from viva.sweeps.sweep_folder import resumable_folder

from .index import FINISHED, OPEN, PACE_SECONDS, pace_slot
from .live import LiveAnswer, clip_text
from .matrix import MatrixView, read_matrix
from .queries import IndexReader
from .run_figures import CallUsage, CandidateFigures, RunFigures, RunGroup
from .run_record import RunRecord

PACE_SPAN = 300  # seconds of the recent pace
_MOST_WINDOWS = 10  # of the recent pace
_FEWEST_SLOTS = 3  # of the recent pace: half a minute
_WIDEST = 20.0  # an interval that is wider, as the ratio of its ends, says nothing
_MOST_SHOWN = 40  # roles, and sentences about one of them
_MOST_CANDIDATES = 60
_PAUSE_SECONDS = 600.0  # without a call
_RECENT_SECONDS = 60.0  # after the last call, in which a run that is not running here may run elsewhere
_NOT_COUNTED = "calls in flight are not counted for this model"
_STOPPED = {"stop": "Stopped", "drain": "Drained"}
_STATES = {
    "running": "In progress",
    "paused": "Paused: no call begins until the run is resumed",
    "draining": "Draining: no further conversation begins",
    "stopping": "Stopping: no further call begins",
}


@dataclass(slots=True)
class RunLoad:
    """Work done by a run and its recent pace, from its journal.

    `lengths` counts the ended conversations by their calls, `open_calls` has the calls so far of the others; `failures`
    counts failed conversations by (error type, an example's reason). `pace` has the calls and ends in each slot of
    `PACE_SECONDS` of the last minutes, oldest first, without the slot that is not over; `latest` is the time of the
    last call.
    """

    finished: int = 0
    failed: int = 0
    open_calls: list[int] = field(default_factory=list)
    lengths: dict[int, int] = field(default_factory=dict)
    retries: int = 0
    latest: float = 0.0
    failures: list[tuple[str, str, int]] = field(default_factory=list)
    pace: list[tuple[int, int]] = field(default_factory=list)


def read_load(reader: IndexReader, run: str, now: float) -> RunLoad:
    """Return what a run has done until now, and its recent pace at this time."""
    load = reader.keep(("load", run), lambda: _read_totals(reader, run))
    end = pace_slot(now)
    rows = reader.rows(
        "select slot, calls, ended from pace where run = (select id from runs where name = ?) and slot between ? and ?",
        run,
        end - PACE_SPAN // PACE_SECONDS,
        end - 1,
    )
    by_slot = {slot: (calls, ended) for slot, calls, ended in rows}
    pace = [by_slot.get(slot, (0, 0)) for slot in range(min(by_slot, default=end), end)]
    return replace(load, pace=pace)


def _read_totals(reader: IndexReader, run: str) -> RunLoad:
    load = RunLoad()
    rows = reader.rows(
        "select state, calls, count(*), total(retries), max(at) from conversations"
        " where run = (select id from runs where name = ?) group by state, calls",
        run,
    )
    for state, length, count, retries, latest in rows:
        if state == OPEN:
            load.open_calls += [length] * count
        else:
            load.finished += count * (state == FINISHED)
            load.failed += count * (state != FINISHED)
            load.lengths[length] = load.lengths.get(length, 0) + count
        load.retries += int(retries)
        load.latest = max(load.latest, latest)
    load.failures = reader.rows(
        "select error, min(reason), count(*) from conversations where run = (select id from runs where name = ?)"
        " and error != '' group by error order by 3 desc, 1 limit 20",
        run,
    )
    return load


@dataclass(frozen=True, slots=True)
class ScoreLine:
    """A candidate's mean score with its 95% interval, as in the run's matrix, and counts of other conversations."""

    name: str
    value: float | None
    low: float | None
    high: float | None
    n: int
    failed: int = 0
    scoreless: int = 0
    suspected: bool = False


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """The candidates of a run on one set of items, the highest mean first; `matrix` is the query of their matrix."""

    title: str
    set: str
    matrix: str
    scale: str
    ends: tuple[float, float]
    digits: int
    lines: list[ScoreLine]
    hidden: int
    adaptive: bool


@dataclass(frozen=True, slots=True)
class UsageLine:
    """Calls and tokens of a role with one model; `cost` is None if it is unknown."""

    role: str
    model: str
    calls: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cost: float | None


@dataclass(slots=True)
class RunResults:
    """Scores and usage of a run. `cost` is the sum of the known ones, None if there are none; `times` is a sentence."""

    tables: list[ScoreTable] = field(default_factory=list)
    calls: int = 0
    tokens: int = 0
    usage: list[UsageLine] = field(default_factory=list)
    hidden_usage: int = 0
    cost: float | None = None
    unpriced: list[str] = field(default_factory=list)
    times: str = ""


def read_results(reader: IndexReader, run: str, record: RunRecord) -> RunResults:
    """Return the scores and the usage of a run."""
    results = RunResults([_score_table(reader, group, run) for group in reader.groups() if run in group.names])
    rows = reader.rows(
        "select role, candidate, calls, prompt_tokens, completion_tokens, cached_tokens, first, last from usage"
        " where run = (select id from runs where name = ?)",
        run,
    )
    usage: dict[tuple[str, str], CallUsage] = {}
    for role, candidate, *counts in rows:
        usage.setdefault((role, record.model_of(role, candidate)), CallUsage()).add(CallUsage(*counts))
    lines = [_usage_line(role, model, used, record) for (role, model), used in usage.items()]
    lines.sort(key=lambda line: (-line.prompt_tokens - line.completion_tokens, line.role, line.model))
    results.usage, results.hidden_usage = lines[:_MOST_SHOWN], max(0, len(lines) - _MOST_SHOWN)
    costs = [line.cost for line in lines if line.cost is not None]
    results.cost = math.fsum(costs) if costs else None
    results.unpriced = list(dict.fromkeys(line.role for line in lines if line.cost is None))[:_MOST_SHOWN]
    total = CallUsage()
    for used in usage.values():
        total.add(used)
    results.calls, results.tokens = total.calls, total.prompt_tokens + total.completion_tokens
    results.times = _times_sentence(reader, run, total)
    return results


def _score_table(reader: IndexReader, group: RunGroup, run: str) -> ScoreTable:
    matrix = read_matrix(reader, group, run)
    figures = next((own.candidates for own in reader.runs() if own.name == run), {})
    lines = []
    for own in matrix.candidates:
        counts = CandidateFigures("") if group.second else figures.get(own.name, CandidateFigures(""))
        scoreless = max(0, counts.finished - counts.second - counts.scored)
        lines.append(ScoreLine(own.name, own.mean, own.low, own.high, own.n, counts.failed, scoreless))
    lines.sort(key=lambda line: math.inf if line.value is None else -line.value)
    values = [end for line in lines for end in (line.value, line.low, line.high) if end is not None]
    ends = min([matrix.low, *values]), max([matrix.high, *values])
    title = "Candidates, second set" if group.second else "Candidates"
    two_sets = any(own.second for own in figures.values())
    set_name = "second" if group.second else "benchmark" if two_sets else ""
    return ScoreTable(
        title, set_name, MatrixView(matrix=group.id, run=run).query(), matrix.scale, ends, matrix.digits,
        lines[:_MOST_CANDIDATES], max(0, len(lines) - _MOST_CANDIDATES), any(own.adaptive for own in group.runs),
    )  # fmt: skip


def _usage_line(role: str, model: str, used: CallUsage, record: RunRecord) -> UsageLine:
    is_step = role.startswith(STEP_PREFIX)
    price = [0.0, 0.0] if is_step else record.prices.get(model)
    counts = used.prompt_tokens, used.completion_tokens, used.cached_tokens
    cost = None if price is None else token_cost(price, *counts)
    try:
        label = next(iter(model_labels([model]))) if model else ""
    except ConfigurationError:
        label = model
    name = f"step {role.removeprefix(STEP_PREFIX)}" if is_step else role
    return UsageLine(clip_text(name, 80), clip_text(label, 120), used.calls, used.prompt_tokens, used.completion_tokens,
                     used.cached_tokens, cost)  # fmt: skip


def _times_sentence(reader: IndexReader, run: str, total: CallUsage) -> str:
    """Return when the first and the last call were, and how long pauses between them took together."""
    if total.first is None or total.last is None:
        return ""
    rows = reader.rows(
        "select slot from pace where run = (select id from runs where name = ?) and calls and slot > 0 order by slot",
        run,
    )
    gaps = [PACE_SECONDS * (later - slot) for (slot,), (later,) in pairwise(rows)]
    pauses = sum(gap for gap in gaps if gap > _PAUSE_SECONDS)
    first, last = _moment(total.first), _moment(total.last)
    if first[:10] == last[:10]:  # the same day
        last = last[11:]
    span = f"{duration_text(total.last - total.first)} from the first call to the last"
    idle = f"; in {duration_text(pauses)} of it no call ended" if pauses else ""
    return f"{first} to {last} UTC: {span}{idle}" if first and last else span


def _moment(at: float) -> str:
    """Return a time; "" if it is that of a simulated clock."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at)) if 1e9 < at < 1e11 else ""


@dataclass(frozen=True, slots=True)
class BudgetLine:
    """Usage of one budget by the run's process, and the bound, "" if there is none."""

    name: str
    used: str
    bound: str
    share: float | None


@dataclass(frozen=True, slots=True)
class RoleLine:
    """Roles with the same models, and what they wait for."""

    name: str
    models: str
    waits: list[str]
    trouble: bool


def resume_command(path: Path) -> str:
    """Return the command that continues the run, or the sweep that it is a cell of."""
    return f"viva resume {shell_path(resumable_folder(path))}"


def duration_text(seconds: float) -> str:
    """Return a duration as `45 s`, `12 min` or `3 h 20 min`."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours = minutes / 60
    return f"{minutes // 60} h {minutes % 60:02} min" if hours < 48 else f"{hours / 24:.1f} days"


class RunView:
    """The facts of one run's page.

    `live` is what the run says of itself, None unless it is in progress; `busy`: the index is still being built;
    `stopped`: what last ended the run from a page of this viewer, "stop" or "drain".
    """

    def __init__(
        self,
        figures: RunFigures,
        load: RunLoad,
        live: LiveAnswer | None,
        now: float,
        command: str,
        busy: bool = False,
        results: RunResults | None = None,
        imported: bool = False,
        stopped: str = "",
    ) -> None:
        self.figures, self.load, self.now, self.command, self.busy = figures, load, now, command, busy
        self.results, self.imported, self.stopped = results or RunResults(), imported, stopped
        self.status: RunStatus | None = None if live is None else live.status
        self.problem = "" if live is None else clip_text(live.problem)
        self.ended = load.finished + load.failed
        self.open = len(load.open_calls)
        total = figures.planned if self.status is None else self.status.total
        self.planned = None if total is None else max(total, self.ended + self.open)

    @property
    def running(self) -> bool:
        return self.figures.running

    @property
    def complete(self) -> bool:
        return not self.running and self.planned is not None and self.ended >= self.planned

    @property
    def state(self) -> str:
        """The state, as a sentence without figures that change all the time."""
        if self.running:
            state = "running" if self.status is None else self.status.state
            return f"{_STATES.get(state, clip_text(state, 40))}."
        if self.busy:
            return "The viewer is still reading the journals."
        failed = f", {self.load.failed:,} of them failed" if self.load.failed else ""
        if self.complete:
            return f"Done: all {self.ended:,} conversations have ended{failed}."
        if self.imported:
            return f"Imported: {self.ended:,} conversations{failed}."
        if self.stopped:
            return f"{_STOPPED[self.stopped]} from a page of this viewer, and not finished."
        if self.now - self.load.latest < _RECENT_SECONDS:
            return "No process of this machine is running this run; its last call is recent, so it may run elsewhere."
        if self.planned is None:
            return "Not in progress on this machine; how many conversations it was to have is not known here."
        return "Not in progress on this machine, and not finished."

    @property
    def continuing(self) -> tuple[str, str] | None:
        """The purpose of the command that continues the run, and the command; None if there is nothing to continue."""
        if self.running or self.busy or self.imported or self.figures.problem:
            return None
        if self.load.failed:
            purpose = "repeats the failed ones" if self.complete else "continues it and repeats the failed ones"
            return purpose, f"{self.command} --retry-failed"
        return None if self.complete else ("continues it", self.command)

    @property
    def counts(self) -> str:
        """`12 of 40 conversations have ended, 2 of them failed; 3 are in flight`."""
        of_all = "" if self.planned is None else f" of {self.planned:,}"
        failed = f", {self.load.failed:,} of them failed" if self.load.failed else ""
        text = f"{self.ended:,}{of_all} conversations have ended{failed}"
        if self.running:
            in_flight = self.open if self.status is None else self.status.in_flight
            return f"{text}; {in_flight:,} {'is' if in_flight == 1 else 'are'} in flight"
        return f"{text}; {self.open:,} had begun" if self.open else text

    @property
    def minutes(self) -> float:
        """Minutes that the recent pace covers."""
        return len(self.load.pace) * PACE_SECONDS / 60

    @property
    def pace(self) -> str:
        """Sentence such as `In the last 5 min: 3.2 conversations and 41 calls a minute`."""
        if self.now - self.load.latest > PACE_SPAN:
            return f"No call has ended in the last {duration_text(PACE_SPAN)}."
        if len(self.load.pace) < _FEWEST_SLOTS:
            return "Too early to tell its pace."
        calls, ended = (sum(slot[at] for slot in self.load.pace) / self.minutes for at in (0, 1))
        span = duration_text(60 * self.minutes)
        of_conversations = f"{_rate(ended)} conversations" if ended else "no conversation"
        return f"In the last {span}: {of_conversations} and {_rate(calls)} calls a minute."

    @property
    def remaining(self) -> str:
        """Estimated end of the run, with an interval, or why there is no estimate."""
        if self.status is not None and self.status.state != "running":
            return "When it ends is not estimated now."
        if self.planned is None:
            return "When it ends is unknown: the run decides while it goes on how many conversations it has."
        unstarted = self.planned - self.ended - self.open
        if unstarted <= 0:
            return "Every conversation has begun; when the last one ends depends on its length."
        windows, seconds = self._windows()
        estimate = estimate_remaining(self.load.lengths, self.load.open_calls, unstarted, windows, seconds)
        if estimate is None or estimate.high > _WIDEST * estimate.low:
            return "Too early to tell when it ends." if len(self.load.pace) >= _FEWEST_SLOTS else ""
        low, high = duration_text(estimate.low), duration_text(estimate.high)
        end = moment_text(min(self.now + estimate.seconds, 4e9), self.now)
        end = end[:5] if len(end) == 8 else end
        between = f"95% interval {low} to {high}" if low != high else f"95% interval: {low}"
        return f"About {duration_text(estimate.seconds)} left ({between}), until {end}, if the recent pace holds."

    def _windows(self) -> tuple[list[int], float]:
        """Return the calls in at most ten windows of the recent pace, and the seconds of a window."""
        slots = [calls for calls, _ in self.load.pace]
        width = max(1, len(slots) // _MOST_WINDOWS)
        skipped = len(slots) % width
        windows = [sum(slots[at : at + width]) for at in range(skipped, len(slots), width)]
        return windows, float(width * PACE_SECONDS)

    @property
    def budgets(self) -> list[BudgetLine]:
        """Usage of each budget by the process that runs the run, and the bounds that were set."""
        if self.status is None:
            return []
        names = [name for name in ("tokens", "calls", "cost", "seconds") if name in self.status.budgets]
        return [self._budget(name) for name in names if name != "cost" or self.status.budgets[name].used
                or self.status.budgets[name].bound]  # fmt: skip

    def _budget(self, name: str) -> BudgetLine:
        assert self.status is not None
        budget = self.status.budgets[name]
        writers: dict[str, Callable[[float], str]] = {"cost": money, "seconds": duration_text}
        write = writers.get(name, _whole)
        share = budget.used / budget.bound if budget.bound else None
        share = None if share is None else min(1.0, max(0.0, share))
        title = "time" if name == "seconds" else name
        return BudgetLine(title, write(budget.used), "" if budget.bound is None else write(budget.bound), share)

    @property
    def roles(self) -> list[RoleLine]:
        """A line for each group of roles with the same models."""
        if self.status is None:
            return []
        return [self._role(wait) for wait in self.status.roles[:_MOST_SHOWN]]

    def _role(self, wait: RoleWait) -> RoleLine:
        sentences = [clip_text(sentence) for sentence in self._waits(wait)]
        hidden = len(sentences) - _MOST_SHOWN
        more = [f"and {hidden:,} more"] if hidden > 0 else []
        trouble = bool(wait.retrying or wait.endpoints)
        name, models = " and ".join(wait.roles), ", ".join(wait.models)
        return RoleLine(
            clip_text(name, 120), clip_text(models, 200) if models != name else "",
            [*sentences[:_MOST_SHOWN], *more] or [_NOT_COUNTED if wait.in_flight is None else "no call"], trouble,
        )  # fmt: skip

    def _waits(self, wait: RoleWait) -> Iterator[str]:
        several = len(wait.models) > 1
        in_flight = wait.in_flight or 0
        by_person = min(in_flight, in_flight if wait.person_calls is None else wait.person_calls) if wait.person else 0
        if by_person:
            yield f"{by_person:,} waiting for a person"
        if in_flight > by_person:
            yield f"{in_flight - by_person:,} in flight"
        if wait.queued:
            yield f"{wait.queued:,} queued at a limit"
        if wait.paused:
            yield f"{wait.paused:,} held back until resumed"
        for retry in wait.retrying:
            yield f"{retry.calls:,} retrying after {retry.after}, the next at {self._at(retry.next)}"
        for endpoint in wait.endpoints:
            model = f"{endpoint.model} " if several else ""
            if endpoint.since is not None:
                yield f"{model}unreachable since {self._at(endpoint.since)}: {endpoint.reason}"
            if endpoint.until is not None:
                yield f"{model}paused by the endpoint until {self._at(endpoint.until)}: {endpoint.reason}"
        for batch in wait.batches:
            yield f"batch of {batch.calls:,} since {self._at(batch.since)}"

    def _at(self, moment: float) -> str:
        try:
            return moment_text(moment, self.now)
        except (OverflowError, OSError, ValueError):  # beyond this machine's calendar
            return "an unknown time"

    @property
    def latest(self) -> str:
        """Time of the last recorded call; "" if there is none."""
        try:
            return f"{datetime.fromtimestamp(self.load.latest):%Y-%m-%d %H:%M:%S}" if self.load.latest > 0 else ""
        except (OverflowError, OSError, ValueError):
            return ""

    @property
    def announcement(self) -> str:
        """Announcement for screen readers: the state, and roles in trouble."""
        troubles = [f"{role.name}: {role.waits[-1].partition(',')[0]}" for role in self.roles if role.trouble]
        return " ".join([self.state, *troubles])[:400]


def _whole(number: float) -> str:
    return f"{number:,.0f}"


def _rate(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}"
