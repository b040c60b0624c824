"""Traces of conversations for the simulation: order of calls, exclusive seconds, tokens; observed or guessed.

Observed traces are read from journals of earlier runs. If `k` calls run at once, each is assumed to take
`1 + c (k - 1)` times as long as alone: with c = 0 a model has unlimited capacity, with a large c it does a fixed amount
of work per second, however many calls share it. c is fitted to the recorded calls.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from viva.engine.backends.base import ModelSpec
from viva.engine.journal_reader import History, RecordedCall
from viva.engine.run_folder import RunFolder
from viva.engine.steps import STEP_PREFIX
from viva.scenarios.contract import UsageForecast
from viva.scenarios.models import label_of_key

from .queueing import bounds_of

_SLOWDOWNS_TRIED = (0.0, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0, 2.0, 5.0)
# Default for calls computed on this machine. Measured on two cores: 16 lanes do 1.4 times the work of one, 32 lanes
# 1.7 times, prefill included: c = 0.7 and 0.6.
LOCAL_SLOWDOWN = 0.65
_BETTER = 0.9  # a fit is accepted up to this ratio of squared residuals
_FEWEST_CALLS = 20
_SHORTEST_SECONDS = 1e-9  # seconds; guards against rounding


class SharedProcessor:
    """Calls in flight at one processor, by `begins` and `ends` (seconds). `peak`: maximum number at once."""

    def __init__(self, begins: np.ndarray, ends: np.ndarray) -> None:
        self._begins, self._ends = begins, ends
        times = np.concatenate([begins, ends])
        change = np.concatenate([np.ones(len(begins)), -np.ones(len(ends))])
        order = np.lexsort((change, times))
        self._times, self._level = times[order], np.cumsum(change[order])
        self.peak = int(self._level.max(initial=0.0))

    def work(self, c: float) -> np.ndarray:
        """Return the exclusive seconds of each call: its time in flight, weighted by the speed at each moment."""
        # The mean number in flight would give too little work, because speed is a convex function of this number.
        speeds = 1.0 / (1.0 + c * np.maximum(0.0, self._level - 1.0))
        progress = np.concatenate([[0.0], np.cumsum(speeds[:-1] * np.diff(self._times))])
        begun, ended = (np.interp(moments, self._times, progress) for moments in (self._begins, self._ends))
        return np.asarray(ended - begun)


def fit_slowdown(
    work: Callable[[float], np.ndarray], tokens: np.ndarray, groups: Sequence[str], *, shared: bool
) -> float:
    """Return the c under which calls of one kind vary least, by least squares on the log of exclusive seconds.

    Args:
        work: Exclusive seconds under a given c (`SharedProcessor.work`).
        tokens: Completion tokens of each call.
        groups: Kind of each call; kinds may differ in duration.
        shared: True if the calls are known to be computed on one processor.
    """
    usual = LOCAL_SLOWDOWN if shared else 0.0
    usable = work(0.0) > 0.0
    if usable.sum() < _FEWEST_CALLS:
        return usual
    names = np.array(groups)[usable]
    columns = [(names == name).astype(float) for name in sorted(set(names.tolist()))]
    columns.append(np.log1p(tokens[usable]))
    design = np.stack(columns, axis=1)

    def residual(c: float) -> float:
        target = np.log(np.maximum(work(c)[usable], _SHORTEST_SECONDS))
        fitted = design @ np.linalg.lstsq(design, target, rcond=None)[0]
        return float(((target - fitted) ** 2).sum())

    best = min(_SLOWDOWNS_TRIED, key=residual)
    return best if residual(best) < _BETTER * residual(usual) else usual


_UNDISTURBED = 0.5  # this quantile of the gaps between calls is assumed to contain no waiting
_SAME_TIME = 1e-3  # seconds; a call that begins at most this long before an answer's end may have waited for it
PROCESSOR = "this machine"  # name of the processor that computes all local models
LOCAL = ("llama", "hf")


@dataclass(slots=True, frozen=True)
class TraceStep:
    """A call, or a computation if `role` is None.

    `after` is the index of the step that it waits for, -1 for the beginning of the conversation. `seconds` is the
    exclusive time of the call, `before` the time that the program spends before it, without a permit. `requests`:
    number of parallel requests of the call. `retries`: failed tries before success. `cached` tokens are included in
    those of the prompt.
    """

    role: str | None
    after: int
    seconds: float
    prompt: float = 0.0
    completion: float = 0.0
    requests: int = 1
    retries: int = 0
    before: float = 0.0
    cached: float = 0.0


@dataclass(slots=True, frozen=True)
class Trace:
    """Steps of a conversation in the order in which they begin."""

    steps: tuple[TraceStep, ...]


@dataclass(slots=True, frozen=True)
class SimilarityKey:
    """Key of similar conversations; `company` names the models besides the candidate in one text."""

    scenario: str
    dataset: str
    model: str
    company: str

    def ladder(self) -> list[tuple[str, ...]]:
        """Return this conversation's keys from narrow to broad; `SIMILARITIES` says what each has in common."""
        return [
            (self.scenario, self.dataset, self.model, self.company),
            (self.scenario, "", self.model, self.company),
            (self.scenario, "", self.model, ""),
            (self.scenario, "", "", ""),
        ]


SIMILARITIES = (
    "same data and models",
    "same models on other data",
    "same candidate among other models",
    "other models",
)


@dataclass(slots=True)
class ObservedRuns:
    """Traces of recorded conversations by similarity key.

    By processor: `slowing`, its slowdown c; `peaks`, the maximum number of calls in flight; `rounds`, conversations per
    parallel call. `retry_rate`: share of calls that were retried.
    """

    traces: dict[tuple[str, ...], list[Trace]]
    slowing: dict[str, float]
    peaks: dict[str, int]
    rounds: dict[str, float]
    retry_rate: float = 0.0


@dataclass(slots=True)
class _RecordedConversation:
    key: SimilarityKey
    models: Mapping[str, str]
    calls: list[RecordedCall]


def processor_of(model: str) -> str:
    """Return the processor of a model: local models share one processor, every other model has its own."""
    return PROCESSOR if ModelSpec.parse(model).kind in LOCAL else model


def observe_runs(runs: Iterable[tuple[RunFolder, SimilarityKey, Mapping[str, str]]]) -> ObservedRuns:
    """Read the finished conversations of runs, given with their similarity key and models by role.

    If a run has several candidates, each conversation gets the model of its candidate.

    Raises:
        JournalError: A journal cannot be read.
    """
    raw: list[_RecordedConversation] = []
    for run, key, models in runs:
        if run.begun:
            raw += _read_conversations(run, key, models)
    spans: dict[str, list[tuple[int, int, float, float]]] = defaultdict(list)
    for number, conversation in enumerate(raw):
        for index, call in enumerate(conversation.calls):
            if (model := conversation.models.get(call.role)) is not None:
                seconds = call.completion.latency
                spans[processor_of(model)].append((number, index, call.at - seconds, call.at))
    alone: dict[tuple[int, int], float] = {}
    slowing, peaks, rounds = {}, {}, {}
    for processor, calls in spans.items():
        shared = SharedProcessor(np.array([call[2] for call in calls]), np.array([call[3] for call in calls]))
        peaks[processor] = shared.peak
        rounds[processor] = len({call[0] for call in calls}) / max(1, peaks[processor])
        recorded = [(raw[number], raw[number].calls[index]) for number, index, _, _ in calls]
        groups = [f"{conversation.models[call.role]} {call.role}" for conversation, call in recorded]
        lengths = np.array([float(call.completion.completion_tokens) for _, call in recorded])
        slowing[processor] = fit_slowdown(shared.work, lengths, groups, shared=processor == PROCESSOR)
        for (number, index, _, _), seconds in zip(calls, shared.work(slowing[processor]), strict=True):
            alone[number, index] = float(seconds)
    between, handing = _program_gap(raw), _handover_delays(raw)
    traces: dict[tuple[str, ...], list[Trace]] = defaultdict(list)
    for number, conversation in enumerate(raw):
        own = {index: alone[number, index] + handing.get(conversation.models[call.role], 0.0)
               for index, call in enumerate(conversation.calls) if (number, index) in alone}  # fmt: skip
        trace = _trace(conversation, own, between)
        for name in dict.fromkeys(conversation.key.ladder()):
            traces[name].append(trace)
    tries = [
        step.retries for name, group in traces.items() if not any(name[1:]) for trace in group for step in trace.steps
    ]
    return ObservedRuns(dict(traces), slowing, peaks, rounds, sum(map(bool, tries)) / max(1, len(tries)))


def _read_conversations(run: RunFolder, key: SimilarityKey, models: Mapping[str, str]) -> list[_RecordedConversation]:
    conversations = []
    labels = [role for role in run.manifest["models"].values() if isinstance(role, dict)]
    compared = labels[0] if labels else {}
    roles = [name for name, role in run.manifest["models"].items() if isinstance(role, dict)]
    with History(run.journal) as history:
        for ended in history.ended():
            if ended.failed:
                continue
            own_key, own_models = key, dict(models)
            if compared and not key.model:
                model = compared[label_of_key(ended.key, list(compared))]
                own_key, own_models = replace(key, model=model), {**own_models, **dict.fromkeys(roles, model)}
            calls = history.calls(ended.number)
            if calls:
                conversations.append(
                    _RecordedConversation(
                        own_key, own_models, sorted(calls, key=lambda call: call.at - call.completion.latency)
                    )
                )
    return conversations


def _program_gap(raw: Iterable[_RecordedConversation]) -> float:
    """Return the program's own seconds between an answer and the next call.

    Models with bounds make calls wait, so the gaps before their calls are used only if there are no other gaps.
    """
    free: list[float] = []
    bound: list[float] = []
    for conversation in raw:
        bounded = {role: bool(bounds_of(model)) for role, model in conversation.models.items()}
        for before, call in pairwise(conversation.calls):
            gap = call.at - call.completion.latency - before.at
            if gap >= 0.0:
                (bound if bounded.get(call.role, False) else free).append(gap)
    return float(np.quantile(free or bound or [0.0], _UNDISTURBED))


def _handover_delays(raw: Iterable[_RecordedConversation]) -> dict[str, float]:
    """Return, by model with a concurrency bound, the seconds until a waiting call takes a free place at the model.

    These delay a call as if the previous call had taken longer.
    """
    calls: dict[str, list[tuple[float, float, float]]] = defaultdict(list)  # (ready to begin, begin, end)
    for conversation in raw:
        for call, after in zip(conversation.calls, _awaited_calls(conversation.calls), strict=True):
            model = conversation.models.get(call.role)
            if model is not None and "concurrency" in bounds_of(model):
                begin = call.at - call.completion.latency
                calls[model].append((begin if after < 0 else conversation.calls[after].at, begin, call.at))
    delays = {}
    for model, times in calls.items():
        ready, begins, ends = (np.sort(np.array(column)) for column in zip(*times, strict=True))
        started = np.searchsorted(begins, ends, side="right")  # for each call, how many calls had begun at its end
        level = started - np.searchsorted(ends, ends, side="right")
        waiting = np.searchsorted(ready, ends, side="right") > started
        free = (level == bounds_of(model)["concurrency"] - 1) & waiting & (started < len(begins))
        if free.any():
            delays[model] = float(np.mean(begins[started[free]] - ends[free]))
    return delays


def _awaited_calls(calls: Sequence[RecordedCall]) -> list[int]:
    """Return for each call, sorted by beginning, the index of the call that it waited for; -1 for none."""
    order: list[int] = []
    ends: list[float] = []
    for call in calls:
        begin = call.at - call.completion.latency
        before = [index for index, end in enumerate(ends) if end <= begin + _SAME_TIME]
        order.append(max(before, key=ends.__getitem__, default=-1))
        ends.append(call.at)
    return order


def _trace(conversation: _RecordedConversation, alone: Mapping[int, float], between: float) -> Trace:
    steps: list[TraceStep] = []
    for (index, call), after in zip(enumerate(conversation.calls), _awaited_calls(conversation.calls), strict=True):
        completion = call.completion
        if call.role.startswith(STEP_PREFIX) or index not in alone:
            steps.append(TraceStep(None, after, completion.latency))
            continue
        requests = max(1, completion.attempts) if completion.likelihoods else 1
        retries = 0 if completion.likelihoods else max(0, completion.attempts - 1)
        steps.append(
            TraceStep(
                call.role,
                after,
                alone[index],
                completion.prompt_tokens,
                completion.completion_tokens,
                requests,
                retries,
                between if after >= 0 else 0.0,
                completion.cached_tokens,
            )
        )
    return Trace(tuple(steps))


_TRACES = 40
SHORTEST, LONGEST = 0.2, 1.0  # share of an answer's token limit
FIRST_TOKEN = 0.5  # seconds until an answer begins
TOKENS_PER_SECOND = 50.0
SPREAD = 0.3  # standard deviation of the logarithm of a call's seconds
GUESS_NOTE = (
    "assumptions, since nothing has been measured: a conversation ends anywhere between the first call of each role "
    f"and its last round; prompts and answers have {SHORTEST:.0%} to {LONGEST:.0%} of their token limits; a call takes "
    f"{FIRST_TOKEN:g} s plus one second per {TOKENS_PER_SECOND:g} tokens of its answer"
)
Guess = Literal["least", "middle", "most"]


def guess_traces(uses: Mapping[str, UsageForecast], guess: Guess = "middle", seed: int = 0) -> list[Trace]:
    """Return traces guessed from the maximum usage by role.

    `least` and `most` are the ends of the guess: one call of each role with the shortest texts, or all calls with the
    longest texts. `middle` is a random guess between these ends.
    """
    draw = random.Random(seed)
    return [_guess_trace(uses, draw, guess) for _ in range(_TRACES)]


def _guess_trace(uses: Mapping[str, UsageForecast], draw: random.Random, guess: Guess) -> Trace:
    position = {"least": 0.0, "middle": draw.random(), "most": 1.0}[guess]
    turns: list[tuple[float, str]] = []
    for role, use in uses.items():
        most_calls = math.floor(use.calls + draw.random())  # half a call means one call in every second conversation
        calls = min(most_calls, 1 + round(position * (most_calls - 1))) if most_calls else 0
        turns += [((number + 0.5) / calls, role) for number in range(calls)]
    steps = []
    for index, (_, role) in enumerate(sorted(turns)):
        use = uses[role]
        fraction = {"least": SHORTEST, "middle": draw.uniform(SHORTEST, LONGEST), "most": LONGEST}[guess]
        answer = fraction * use.completion / use.calls
        seconds = (FIRST_TOKEN + answer / TOKENS_PER_SECOND) * math.exp(draw.gauss(0.0, SPREAD))
        steps.append(TraceStep(role, index - 1, seconds, fraction * use.prompt / use.calls, answer))
    return Trace(tuple(steps or [TraceStep(None, -1, 0.0)]))
