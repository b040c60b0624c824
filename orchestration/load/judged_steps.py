"""The verdicts of a load test's steps, read from its log: all of them for the report, of one step for an objective.

Of a long step every so-manieth answer is read besides the first ones to each request, so that memory stays bounded
however long it was. What never belongs here: formulas, reading one answer (``judging``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from viva.scoring.load.verdicts import Asked

from .judged_passes import JudgedPasses, asked_of, judged_passes, objective_figures
from .log_reading import LoadHistory
from .records import LoadRequest, LoadStep, Sent
from .work import OpenedWork

_MOST = 20_000  # answers of a judge in a step that are read, besides the first one to each request


@dataclass(slots=True)
class StepFigures:
    """Figures of verdicts in ended steps, as objectives need them: call it with the log, a step and a judge."""

    work: OpenedWork
    _by_id: dict[str, LoadRequest] = field(init=False)
    _asked: dict[str, Asked] = field(init=False)

    def __post_init__(self) -> None:
        self._by_id = {one.id: one for one in self.work.requests}
        self._asked = asked_of(self.work.requests)

    def __call__(self, history: LoadHistory, step: LoadStep, judge: str) -> dict[str, float | None]:
        steps = [one.step for one in history.steps() if one.step.unloaded or one.step.index == step.index]
        steps = [one for one in steps if judge in one.judges]
        passes = judged_passes(self._by_id, steps, _read(history, steps, [judge]))
        return objective_figures(passes[judge], step.index, self._asked, self.work.scales)


def all_passes(history: LoadHistory, work: OpenedWork) -> dict[str, JudgedPasses]:
    """All verdicts by judge."""
    steps = [one.step for one in history.steps()]
    return judged_passes({one.id: one for one in work.requests}, steps, _read(history, steps))


def _read(history: LoadHistory, steps: Iterable[LoadStep], judges: Iterable[str] | None = None) -> Iterator[Sent]:
    for step in steps:
        for judge in step.judges if judges is None else judges:
            every = math.ceil(len(history.finished(step.index, judge)) / _MOST)
            for one in history.sent(step.index, judge):
                if one.occurrence == 0 or one.number % every == 0:
                    yield one
