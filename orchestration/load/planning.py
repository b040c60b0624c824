"""What comes next in a load test: its steps, made from the settings and from what the steps before have come to alone.

What never belongs here: carrying a step out, and the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from viva.scoring.load.objective import Term
from viva.scoring.load.search import Tried

from .measured import Measured
from .records import BASELINE, BASELINE_AGAIN, OTHER_SEEDS, Arrivals, LoadStep, Work
from .settings import LoadSettings


@dataclass(slots=True)
class StepResult:
    """A judge in an ended step: its figures by name, and the terms of the objective that it missed."""

    measured: Measured
    figures: dict[str, float | None]
    missed: tuple[Term, ...]

    @property
    def met(self) -> bool:
        """Whether the step met the objective, without its queue growing without bound."""
        return not self.missed and not self.measured.saturated


def unloaded_passes(work: Work) -> list[int]:
    """Which passes without load belong to the test; one with other seeds where answers are sampled."""
    sampled = any(one.sampling.temperature > 0 for one in work)
    return [BASELINE, BASELINE_AGAIN, *([OTHER_SEEDS] if sampled else [])]


def tried(results: Mapping[tuple[int, str], StepResult], judge: str, arrivals: Arrivals) -> list[Tried]:
    """What a judge has come to in the steps of one kind of load, as plans of rates take it."""
    found = []
    for (_, label), result in sorted(results.items(), key=lambda one: one[0]):
        step = result.measured.step
        if label == judge and step.arrivals == arrivals and not step.unloaded:
            rate = float(step.concurrency or 0) if arrivals == "closed" else step.rate or 0.0
            found.append(Tried(rate, result.met, result.measured.saturated))
    return found


def planned_step(
    settings: LoadSettings, index: int, labels: Sequence[str], arrivals: Arrivals, rate: float, requests_known: int
) -> LoadStep:
    """The step at a rate; of a closed loop, with so many requests in flight. ``requests_known``: how many there are."""
    requests, seconds = settings.length
    if arrivals == "replay" and settings.requests is None and settings.seconds is None:
        requests, seconds = requests_known, None  # all of the recording, once
    closed = arrivals == "closed"
    return LoadStep(
        index,
        tuple(labels),
        arrivals,
        rate=None if closed or not rate else rate,  # of a replay none: as it was recorded
        concurrency=int(rate) if closed else None,
        requests=requests,
        seconds=seconds,
        burst=settings.burst,
    )
