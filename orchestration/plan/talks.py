"""Conversations as a plan needs them: who is called after what, how long each call took, and with how many tokens.

Read from journals of runs that have taken place. What was said is not kept. What never belongs here: drawing from them
(``simulation``), and conversations that nobody has held (``guesses``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from viva.engine.backends.base import ModelSpec
from viva.engine.folder import RunFolder
from viva.engine.history import History, RecordedCall
from viva.engine.steps import STEP_PREFIX
from viva.scenarios.models import label_of

from .slowing import SharedPlace, fitted_slowing
from .stations import bounds_of

_UNDISTURBED = 0.5  # quantile of the gaps between calls at which nothing else is taken to have been waited for
_SAME_TIME = 1e-3  # seconds: what begins no sooner than this before an answer's end may have waited for it
PROCESSOR = "this machine"  # where all local models are computed
LOCAL = ("llama", "hf")


@dataclass(slots=True, frozen=True)
class Step:
    """One call, or one computation where ``role`` is None.

    ``after`` is the place of the step whose end it waits for, -1 for the conversation's beginning. ``seconds`` are
    those of a call that is alone at its model; ``before`` are seconds that pass ahead of it in the program itself,
    while it holds no permit. ``requests``: how many requests the call consists of, side by side.
    ``again``: tries that failed before. ``cached`` tokens are some of the prompt's.
    """

    role: str | None
    after: int
    seconds: float
    prompt: float = 0.0
    completion: float = 0.0
    requests: int = 1
    again: int = 0
    before: float = 0.0
    cached: float = 0.0


@dataclass(slots=True, frozen=True)
class Talk:
    """A conversation's steps, in the order of their beginnings."""

    steps: tuple[Step, ...]


@dataclass(slots=True, frozen=True)
class Kin:
    """What tells kinds of conversations apart; ``company`` are the models besides the candidate, as one text."""

    scenario: str
    dataset: str
    model: str
    company: str

    def ladder(self) -> list[tuple[str, ...]]:
        """Names of kinds that this one belongs to, the narrowest first; ``NEAR`` says what each has in common."""
        return [
            (self.scenario, self.dataset, self.model, self.company),
            (self.scenario, "", self.model, self.company),
            (self.scenario, "", self.model, ""),
            (self.scenario, "", "", ""),
        ]


NEAR = ("same data and models", "same models on other data", "same candidate among other models", "other models")


@dataclass(slots=True)
class Heard:
    """All talks that were read, by the names of their kinds. ``slowing``: how calls at each place slow each other down
    (``slowing``); ``most``: the most calls that were in flight there; ``rounds``: conversations held there for each of
    these; ``again``: the share of calls that needed a further try.
    """

    talks: dict[tuple[str, ...], list[Talk]]
    slowing: dict[str, float]
    most: dict[str, int]
    rounds: dict[str, float]
    again: float = 0.0


@dataclass(slots=True)
class _Raw:
    kin: Kin
    models: Mapping[str, str]
    calls: list[RecordedCall]


def place_of_model(model: str) -> str:
    """Where a model's calls are computed: local ones share a processor, each other one has a place of its own."""
    return PROCESSOR if ModelSpec.parse(model).kind in LOCAL else model


def heard(runs: Iterable[tuple[RunFolder, Kin, Mapping[str, str]]]) -> Heard:
    """The finished conversations of runs, each with the kind they are of and its models by role; those of a run with
    several candidates get the candidate's model.

    :raises JournalError: a journal cannot be read.
    """
    raw: list[_Raw] = []
    for run, kin, models in runs:
        if run.begun:
            raw += _conversations(run, kin, models)
    spans: dict[str, list[tuple[int, int, float, float]]] = defaultdict(list)
    for number, one in enumerate(raw):
        for place, call in enumerate(one.calls):
            if (model := one.models.get(call.role)) is not None:
                seconds = call.completion.latency
                spans[place_of_model(model)].append((number, place, call.at - seconds, call.at))
    alone: dict[tuple[int, int], float] = {}
    slowing, most, rounds = {}, {}, {}
    for where, calls in spans.items():
        shared = SharedPlace(np.array([one[2] for one in calls]), np.array([one[3] for one in calls]))
        most[where] = shared.most
        rounds[where] = len({one[0] for one in calls}) / max(1, most[where])
        groups = [f"{raw[one[0]].models[raw[one[0]].calls[one[1]].role]} {raw[one[0]].calls[one[1]].role}"
                  for one in calls]  # fmt: skip
        lengths = np.array([float(raw[one[0]].calls[one[1]].completion.completion_tokens) for one in calls])
        slowing[where] = fitted_slowing(shared.work, lengths, groups, shared=where == PROCESSOR)
        for (number, place, _, _), seconds in zip(calls, shared.work(slowing[where]), strict=True):
            alone[number, place] = float(seconds)
    between, handing = _between(raw), _handing_over(raw)
    talks: dict[tuple[str, ...], list[Talk]] = defaultdict(list)
    for number, one in enumerate(raw):
        own = {place: alone[number, place] + handing.get(one.models[call.role], 0.0)
               for place, call in enumerate(one.calls) if (number, place) in alone}  # fmt: skip
        talk = _talk(one, own, between)
        for name in dict.fromkeys(one.kin.ladder()):
            talks[name].append(talk)
    tries = [step.again for name, some in talks.items() if not any(name[1:]) for talk in some for step in talk.steps]
    return Heard(dict(talks), slowing, most, rounds, sum(map(bool, tries)) / max(1, len(tries)))


def _conversations(run: RunFolder, kin: Kin, models: Mapping[str, str]) -> list[_Raw]:
    found = []
    labels = [role for role in run.manifest["models"].values() if isinstance(role, dict)]
    many = labels[0] if labels else {}
    roles = [name for name, role in run.manifest["models"].items() if isinstance(role, dict)]
    with History(run.journal) as history:
        for ended in history.ended():
            if ended.failed:
                continue
            own, named = kin, dict(models)
            if many and not kin.model:
                model = many[label_of(ended.key, list(many))]
                own, named = replace(kin, model=model), {**named, **dict.fromkeys(roles, model)}
            calls = history.calls(ended.number)
            if calls:
                found.append(_Raw(own, named, sorted(calls, key=lambda call: call.at - call.completion.latency)))
    return found


def _between(raw: Iterable[_Raw]) -> float:
    """Seconds between an answer and the next call that nobody waits for: what the program itself takes.

    Models with bounds make calls wait, so gaps ahead of theirs are looked at only where there are no others.
    """
    free: list[float] = []
    bound: list[float] = []
    for one in raw:
        bounded = {role: bool(bounds_of(model)) for role, model in one.models.items()}
        for before, call in pairwise(one.calls):
            gap = call.at - call.completion.latency - before.at
            if gap >= 0.0:
                (bound if bounded.get(call.role, False) else free).append(gap)
    return float(np.quantile(free or bound or [0.0], _UNDISTURBED))


def _handing_over(raw: Iterable[_Raw]) -> dict[str, float]:
    """By model with a bound of calls at once, the seconds until a place that is free is taken by a call that waits.

    A call that comes is held up by them as if the one before it had lasted longer.
    """
    calls: dict[str, list[tuple[float, float, float]]] = defaultdict(list)  # ready to begin, begin, end
    for one in raw:
        for call, after in zip(one.calls, _order(one.calls), strict=True):
            model = one.models.get(call.role)
            if model is not None and "concurrency" in bounds_of(model):
                begin = call.at - call.completion.latency
                calls[model].append((begin if after < 0 else one.calls[after].at, begin, call.at))
    found = {}
    for model, times in calls.items():
        ready, begins, ends = (np.sort(np.array(column)) for column in zip(*times, strict=True))
        taken = np.searchsorted(begins, ends, side="right")  # calls that had begun when one ended
        level = taken - np.searchsorted(ends, ends, side="right")
        waiting = np.searchsorted(ready, ends, side="right") > taken
        free = (level == bounds_of(model)["concurrency"] - 1) & waiting & (taken < len(begins))
        if free.any():
            found[model] = float(np.mean(begins[taken[free]] - ends[free]))
    return found


def _order(calls: Sequence[RecordedCall]) -> list[int]:
    """For each call, sorted by beginnings, the place of the one whose end it waited for; -1 for none."""
    order: list[int] = []
    ends: list[float] = []
    for call in calls:
        begin = call.at - call.completion.latency
        before = [place for place, end in enumerate(ends) if end <= begin + _SAME_TIME]
        order.append(max(before, key=ends.__getitem__, default=-1))
        ends.append(call.at)
    return order


def _talk(one: _Raw, alone: Mapping[int, float], between: float) -> Talk:
    steps: list[Step] = []
    for (place, call), after in zip(enumerate(one.calls), _order(one.calls), strict=True):
        said = call.completion
        if call.role.startswith(STEP_PREFIX) or place not in alone:
            steps.append(Step(None, after, said.latency))
            continue
        parts = max(1, said.attempts) if said.likelihoods else 1
        again = 0 if said.likelihoods else max(0, said.attempts - 1)
        steps.append(Step(call.role, after, alone[place], said.prompt_tokens, said.completion_tokens, parts, again,
                          between if after >= 0 else 0.0, said.cached_tokens))  # fmt: skip
    return Talk(tuple(steps))
