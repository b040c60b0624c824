"""Conversations as a plan needs them: who is called after what, how long each call took, and with how many tokens.

Read from journals of runs that have taken place. What was said is not kept. What never belongs here: drawing from them
(``simulation``), and conversations that nobody has held (``guesses``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from viva.engine.backends.base import ModelSpec
from viva.engine.folder import RunFolder
from viva.engine.history import History, RecordedCall
from viva.engine.steps import STEP_PREFIX
from viva.scenarios.models import label_of

from .slowing import fitted_slowing

_SAME_TIME = 1e-3  # seconds: what begins no sooner than this before an answer's end may have waited for it
PROCESSOR = "this machine"  # where all local models are computed
LOCAL = ("llama", "hf")


@dataclass(slots=True, frozen=True)
class Step:
    """One call, or one computation where ``role`` is None.

    ``after`` is the place of the step whose end it waits for, -1 for the conversation's beginning. ``seconds`` are
    those of a call that is alone at its model. ``requests``: how many requests the call consists of, side by side.
    ``again``: tries that failed before.
    """

    role: str | None
    after: int
    seconds: float
    prompt: float = 0.0
    completion: float = 0.0
    requests: int = 1
    again: int = 0


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
    (``slowing``); ``most``: the most calls that were in flight there; ``again``: the share of calls that needed a
    further try.
    """

    talks: dict[tuple[str, ...], list[Talk]]
    slowing: dict[str, float]
    most: dict[str, int]
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
    slowing, most = {}, {}
    for where, calls in spans.items():
        begins, ends = np.array([one[2] for one in calls]), np.array([one[3] for one in calls])
        levels, most[where] = _levels(begins, ends)
        groups = [f"{raw[one[0]].models[raw[one[0]].calls[one[1]].role]} {raw[one[0]].calls[one[1]].role}"
                  for one in calls]  # fmt: skip
        lengths = np.array([float(raw[one[0]].calls[one[1]].completion.completion_tokens) for one in calls])
        slowing[where] = fitted_slowing(ends - begins, levels, lengths, groups, shared=where == PROCESSOR)
        for (number, place, _, _), level, taken in zip(calls, levels, ends - begins, strict=True):
            alone[number, place] = float(taken / (1.0 + slowing[where] * (level - 1.0)))
    talks: dict[tuple[str, ...], list[Talk]] = defaultdict(list)
    for number, one in enumerate(raw):
        talk = _talk(one, {place: alone[number, place] for place in range(len(one.calls)) if (number, place) in alone})
        for name in dict.fromkeys(one.kin.ladder()):
            talks[name].append(talk)
    tries = [step.again for name, some in talks.items() if not any(name[1:]) for talk in some for step in talk.steps]
    return Heard(dict(talks), slowing, most, sum(map(bool, tries)) / max(1, len(tries)))


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


def _levels(begins: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, int]:
    """How many calls were in flight on average during each, itself counted, and how many there were at most."""
    times = np.concatenate([begins, ends])
    change = np.concatenate([np.ones(len(begins)), -np.ones(len(ends))])
    order = np.lexsort((change, times))
    times, level = times[order], np.cumsum(change[order])
    area = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(times))])
    spans = np.maximum(ends - begins, 1e-9)
    mean = (np.interp(ends, times, area) - np.interp(begins, times, area)) / spans
    return np.maximum(mean, 1.0), int(level.max(initial=0.0))


def _talk(one: _Raw, alone: Mapping[int, float]) -> Talk:
    steps: list[Step] = []
    ends: list[float] = []
    for place, call in enumerate(one.calls):
        said = call.completion
        begin = call.at - said.latency
        before = [index for index, end in enumerate(ends) if end <= begin + _SAME_TIME]
        after = max(before, key=ends.__getitem__, default=-1)
        ends.append(call.at)
        if call.role.startswith(STEP_PREFIX) or place not in alone:
            steps.append(Step(None, after, said.latency))
            continue
        parts = max(1, said.attempts) if said.likelihoods else 1
        again = 0 if said.likelihoods else max(0, said.attempts - 1)
        steps.append(Step(call.role, after, alone[place], said.prompt_tokens, said.completion_tokens, parts, again))
    return Talk(tuple(steps))
