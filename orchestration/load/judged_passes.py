"""A judge's verdicts by step, as the formulas of judgement under load take them; and the figures of an objective.

What never belongs here: formulas (``scoring.load``), words and tables (``study.load``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from viva.scoring.load.consistency import agreement
from viva.scoring.load.judgement import RateJudgement, judged_rates, ordered_aspects
from viva.scoring.load.verdicts import Asked, Pass, Verdict

from .judging import judgement
from .records import BASELINE, BASELINE_AGAIN, OTHER_SEEDS, Failure, Judgement, LoadRequest, LoadStep, Sent

_DRAWS = 199  # of a search's steps, whose p-values are not looked at


def asked_of(requests: Iterable[LoadRequest]) -> dict[str, Asked]:
    """What is known of each request without any answer."""
    return {one.id: Asked(one.item, one.pair, one.reference) for one in requests}


@dataclass(slots=True)
class JudgedStep:
    """One judge in one step: its verdicts on first occurrences, in the order in which they were asked for; and all
    verdicts by request, each under a seed of its own. Failed requests are in neither: they are counted. ``unread`` has
    for each way in which answers are no verdicts the beginning of the first such answer; ``texts`` the digest of each
    first answer as a label.
    """

    first: dict[str, Verdict] = field(default_factory=dict)
    every: dict[str, list[Verdict]] = field(default_factory=dict)
    answers: int = 0
    errors: int = 0
    unread: dict[Failure, str] = field(default_factory=dict)
    texts: dict[str, Verdict] = field(default_factory=dict)

    def share(self, *failures: str) -> float | None:
        """The share of all answers that failed in one of these ways; any of them if none is named."""
        if not self.answers:
            return None
        found = sum(
            verdict.failure in failures if failures else verdict.failure != ""
            for verdicts in self.every.values()
            for verdict in verdicts
        )
        return found / self.answers


class JudgedPasses:
    """All steps of one judge. Judgements are added in any order."""

    def __init__(self) -> None:
        self._judgements: dict[int, list[Judgement]] = {}

    def add(self, one: Judgement) -> None:
        """Take in a judgement."""
        self._judgements.setdefault(one.step, []).append(one)

    def step(self, index: int) -> JudgedStep:
        """The verdicts of a step; empty where it has none."""
        found = JudgedStep()
        for one in sorted(self._judgements.get(index, []), key=lambda one: one.number):
            if one.failure == "error":
                found.errors += 1
                continue
            verdict = Verdict(one.scores, one.label, one.failure)
            if one.failure:
                found.unread.setdefault(one.failure, one.excerpt)
            found.answers += 1
            found.every.setdefault(one.request, []).append(verdict)
            if one.occurrence == 0:
                found.first[one.request] = verdict
                found.texts[one.request] = Verdict(label=one.digest)
        return found

    @property
    def steps(self) -> list[int]:
        """Steps that have judgements, unloaded ones first."""
        return sorted(self._judgements)

    def unloaded(self) -> tuple[Pass, Pass]:
        """The two unloaded passes that others are compared with.

        The second is that of other seeds where there is one: answers are sampled then, and another draw is as good.
        Else it is the one with the same seeds. Empty where a pass was not made.
        """
        other = OTHER_SEEDS if OTHER_SEEDS in self._judgements else BASELINE_AGAIN
        return self.step(BASELINE).first, self.step(other).first


def judged_passes(
    requests: Mapping[str, LoadRequest], steps: Iterable[LoadStep], sent: Iterable[Sent]
) -> dict[str, JudgedPasses]:
    """The verdicts of all judges, read from what was sent. Requests that the work does not have any more are left out.

    :param steps: those whose judges are looked at, so that one without any answer has its place.
    """
    found: dict[str, JudgedPasses] = {label: JudgedPasses() for step in steps for label in step.judges}
    for one in sent:
        if one.request in requests:
            found.setdefault(one.judge, JudgedPasses()).add(judgement(requests[one.request], one))
    return found


def objective_figures(
    passes: JudgedPasses, step: int, asked: Mapping[str, Asked], scales: Mapping[str, tuple[float, float]]
) -> dict[str, float | None]:
    """The figures of judgement that an objective may be about, of one step; None where nothing is known of one."""
    judged = passes.step(step)
    first, second = passes.unloaded()
    [compared] = judged_rates([judged.first], first, second, asked, scales, draws=_DRAWS)
    same = agreement(judged.first, first, asked, agreeing_aspect([first, second]))
    return {
        "drift": drift(compared),
        "parse_fail": judged.share(),
        "truncated": judged.share("truncated"),
        "refused": judged.share("refused"),
        "agreement": None if same is None else same.same.value,
    }


def drift(compared: RateJudgement) -> float | None:
    """The drift as one number."""
    return None if compared.drift is None else compared.drift.value


def agreeing_aspect(passes: Sequence[Pass]) -> str:
    """The aspect by which verdicts are said to be the same: the main score, "" where there are labels alone."""
    return next(iter(ordered_aspects(passes)), "")
