"""Verdicts of a judge in each step beside its two unloaded passes: read from the log, as figures and as a record.

Of a long step every so-manieth answer is read besides the first ones to each request, so that memory stays
bounded however long it was. The formulas are in ``scoring``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from viva.scoring.clustered_means import clustered_mean
from viva.scoring.comparison import mean_difference_p
from viva.scoring.load_drift import (
    RateJudgement,
    RunningChange,
    Scales,
    failure_shares,
    judge_rates,
    sort_aspects,
)
from viva.scoring.load_verdicts import (
    JudgedRequest,
    Verdict,
    VerdictAgreement,
    VerdictPass,
    aspect_score,
    position_bias,
    reference_agreement,
    request_clusters,
    seed_agreement,
    verdict_agreement,
)

from . import load_schema
from .load_log import LoadHistory
from .load_records import BASELINE, OTHER_SEEDS, SECOND_BASELINE, Failure, Judgement, LoadRequest, LoadStep, SentRequest
from .verdict_readers import read_judgement
from .workload import Workload

_FIGURE_FIELDS = load_schema.Changed.model_fields.keys() - {"figure", "changed"}
_DRAWS = 199  # of a search's steps, whose p-values are not looked at


def requests_asked(requests: Iterable[LoadRequest]) -> dict[str, JudgedRequest]:
    """What is known of each request without any answer."""
    return {one.id: JudgedRequest(one.item, one.pair, one.reference) for one in requests}


@dataclass(slots=True)
class StepVerdicts:
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


class JudgePasses:
    """All steps of one judge. Judgements are added in any order."""

    def __init__(self) -> None:
        self._judgements: dict[int, list[Judgement]] = {}

    def add(self, one: Judgement) -> None:
        """Take in a judgement."""
        self._judgements.setdefault(one.step, []).append(one)

    def step(self, index: int) -> StepVerdicts:
        """The verdicts of a step; empty where it has none."""
        found = StepVerdicts()
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

    def unloaded(self) -> tuple[VerdictPass, VerdictPass]:
        """The two unloaded passes that others are compared with.

        The second is that of other seeds where there is one: answers are sampled then, and another draw is as good.
        Else it is the one with the same seeds. Empty where a pass was not made.
        """
        other = OTHER_SEEDS if OTHER_SEEDS in self._judgements else SECOND_BASELINE
        return self.step(BASELINE).first, self.step(other).first


def passes_by_judge(
    requests: Mapping[str, LoadRequest], steps: Iterable[LoadStep], sent: Iterable[SentRequest]
) -> dict[str, JudgePasses]:
    """The verdicts of all judges, read from what was sent. Requests that the work does not have any more are left out.

    :param steps: those whose judges are looked at, so that one without any answer has its place.
    """
    found: dict[str, JudgePasses] = {label: JudgePasses() for step in steps for label in step.judges}
    for one in sent:
        if one.request in requests:
            found.setdefault(one.judge, JudgePasses()).add(read_judgement(requests[one.request], one))
    return found


def objective_figures(
    passes: JudgePasses, step: int, asked: Mapping[str, JudgedRequest], scales: Mapping[str, tuple[float, float]]
) -> dict[str, float | None]:
    """The figures of judgement that an objective may be about, of one step; None where nothing is known of one."""
    judged = passes.step(step)
    first, second = passes.unloaded()
    [compared] = judge_rates([judged.first], first, second, asked, scales, draws=_DRAWS)
    same = verdict_agreement(judged.first, first, asked, main_aspect([first, second]))
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


def main_aspect(passes: Sequence[VerdictPass]) -> str:
    """The aspect by which verdicts are said to be the same: the main score, "" where there are labels alone."""
    return next(iter(sort_aspects(passes)), "")


_MOST_ANSWERS = 20_000  # answers of a judge in a step that are read, besides the first one to each request


@dataclass(slots=True)
class VerdictFigures:
    """Figures of verdicts in ended steps, as objectives need them: call it with the log, a step and a judge."""

    work: Workload
    _by_id: dict[str, LoadRequest] = field(init=False)
    _asked: dict[str, JudgedRequest] = field(init=False)

    def __post_init__(self) -> None:
        self._by_id = {one.id: one for one in self.work.requests}
        self._asked = requests_asked(self.work.requests)

    def __call__(self, history: LoadHistory, step: LoadStep, judge: str) -> dict[str, float | None]:
        steps = [one.step for one in history.steps() if one.step.unloaded or one.step.index == step.index]
        steps = [one for one in steps if judge in one.judges]
        passes = passes_by_judge(self._by_id, steps, _read_sent(history, steps, [judge]))
        return objective_figures(passes[judge], step.index, self._asked, self.work.scales)


def read_passes(history: LoadHistory, work: Workload) -> dict[str, JudgePasses]:
    """All verdicts by judge."""
    steps = [one.step for one in history.steps()]
    return passes_by_judge({one.id: one for one in work.requests}, steps, _read_sent(history, steps))


def _read_sent(
    history: LoadHistory, steps: Iterable[LoadStep], judges: Iterable[str] | None = None
) -> Iterator[SentRequest]:
    for step in steps:
        for judge in step.judges if judges is None else judges:
            every = math.ceil(len(history.finished(step.index, judge)) / _MOST_ANSWERS)
            for one in history.sent(step.index, judge):
                if one.occurrence == 0 or one.number % every == 0:
                    yield one


def judgement_record(
    passes: JudgePasses,
    steps: Sequence[LoadStep],
    asked: Mapping[str, JudgedRequest],
    scales: Scales,
    alpha: float = 0.05,
) -> dict[str, Any]:
    """Return one judge as plain data (``load_schema.Judgement``): what two passes without load say of its noise, and
    the loaded steps in the order given.

    Args:
        alpha: The share of sound judges that are flagged at any step.
    """
    first, second = passes.unloaded()
    aspect = main_aspect([first, second])
    loaded = [step for step in steps if not step.unloaded]
    judged = [passes.step(step.index) for step in loaded]
    rates = judge_rates([one.first for one in judged], first, second, asked, scales, alpha=alpha)
    record = {
        "aspect": aspect,
        "scale": list(scales[aspect]) if aspect in scales else None,
        "unloaded": _unloaded_fields(passes, first, second, asked, aspect, 1.0 - alpha),
        "steps": [
            _step_fields(place, step, one, rate, (first, second), asked, aspect, alpha)
            | {"texts": _same_texts(one, passes.step(BASELINE), asked, 1.0 - alpha)}
            for place, (step, one, rate) in enumerate(zip(loaded, judged, rates, strict=True), 1)
        ],
    }
    return load_schema.Judgement.model_validate(record).model_dump(mode="json")


def load_name(step: LoadStep) -> str:
    """A step's load in a few letters: ``8/s`` for each judge, or ``16 in flight``."""
    if step.concurrency is not None:
        return f"{step.concurrency} in flight"
    return "recorded times" if step.rate is None else f"{step.rate:g}/s"


def _step_fields(
    place: int,
    step: LoadStep,
    judged: StepVerdicts,
    rate: RateJudgement,
    unloaded: tuple[VerdictPass, VerdictPass],
    asked: Mapping[str, JudgedRequest],
    aspect: str,
    alpha: float,
) -> dict[str, Any]:
    first, second = unloaded
    level = 1.0 - alpha
    return {
        "step": step.index,
        "load": load_name(step),
        "answers": judged.answers,
        "errors": judged.errors,
        "unreadable": judged.share(),
        "unread": judged.unread,
        "p": rate.p,
        "flagged": rate.flagged(alpha),
        "unseen": rate.unseen,
        "drift": rate.drift,
        "figures": [
            {name: getattr(one, name) for name in _FIGURE_FIELDS} | {"figure": one.name, "changed": one.p <= alpha}
            for one in rate.figures
        ],
        "failures": {one.kind: one for one in failure_shares(judged.first, first, second, asked, level)},
        "agreement": verdict_agreement(judged.first, first, asked, aspect, level),
        "seeds": seed_agreement(judged.every, asked, aspect, level),
        "reference": reference_agreement(judged.first, asked, aspect, level),
        "position": position_bias(judged.first, asked, level),
        "running": _running_change(judged.first, first, second, rate, aspect, place, alpha),
    }


def _unloaded_fields(
    passes: JudgePasses,
    first: VerdictPass,
    second: VerdictPass,
    asked: Mapping[str, JudgedRequest],
    aspect: str,
    level: float,
) -> dict[str, Any]:
    """Return what is known of a judge without load: its mean score, and how far two passes differ."""
    numbers = request_clusters(asked)
    scores = [(aspect_score(verdict, aspect), str(numbers[id_])) for id_, verdict in first.items() if id_ in numbers]
    mean = clustered_mean(*_known_columns(scores)) if aspect else None
    seeds = {id_: [verdict, other[id_]] for id_, verdict in first.items()
             if id_ in (other := passes.step(OTHER_SEEDS).first)}  # fmt: skip
    every = [verdict for one in (first, second) for verdict in one.values()]
    return {
        "second_pass": "other seeds" if OTHER_SEEDS in passes.steps else "same seeds",
        "answers": [len(first), len(second)],
        "mean": None if mean is None else mean.mean,
        "unreadable": sum(verdict.failure != "" for verdict in every) / len(every) if every else None,
        "unread": passes.step(BASELINE).unread,
        "noise": _noise_fields(first, second, asked, aspect, level),
        "agreement": verdict_agreement(second, first, asked, aspect, level),
        "texts": _same_texts(passes.step(SECOND_BASELINE), passes.step(BASELINE), asked, level),
        "seeds": seed_agreement(seeds, asked, aspect, level),
        "reference": reference_agreement(first, asked, aspect, level),
        "position": position_bias(first, asked, level),
    }


def _noise_fields(
    first: VerdictPass, second: VerdictPass, asked: Mapping[str, JudgedRequest], aspect: str, level: float
) -> dict[str, Any] | None:
    """The second unloaded pass less the first, by the main score: ``change`` of the mean with its p-value, and
    ``apart``, the mean distance of two verdicts on a request. None where there are no scores in both.
    """
    numbers = request_clusters(asked)
    pairs = [
        (later - score, str(numbers[id_]))
        for id_, verdict in first.items()
        if id_ in second
        and id_ in numbers
        and (score := aspect_score(verdict, aspect)) is not None
        and (later := aspect_score(second[id_], aspect)) is not None
    ]
    found = clustered_mean([one for one, _ in pairs], [label for _, label in pairs])
    if not aspect or found is None:
        return None
    by_item: dict[str, list[float]] = {}
    for value, label in pairs:
        by_item.setdefault(label, []).append(value)
    ends = found.interval(level)
    return {
        "change": {"value": found.mean, "low": ends and ends.low, "high": ends and ends.high},
        "p": mean_difference_p(found, by_item)[0],
        "apart": sum(abs(value) for value, _ in pairs) / len(pairs),
        "n": found.n,
    }


def _known_columns(rows: Sequence[tuple[float | None, str]]) -> tuple[list[float], list[str]]:
    known = [(value, label) for value, label in rows if value is not None]
    return [value for value, _ in known], [label for _, label in known]


def _same_texts(
    one: StepVerdicts, unloaded: StepVerdicts, asked: Mapping[str, JudgedRequest], level: float
) -> VerdictAgreement | None:
    """Compare answers byte for byte with those of the first unloaded pass, to the same requests with the same seeds."""
    return verdict_agreement(one.texts, unloaded.texts, asked, "", level)


def _running_change(
    loaded: VerdictPass,
    first: VerdictPass,
    second: VerdictPass,
    rate: RateJudgement,
    aspect: str,
    place: int,
    alpha: float,
) -> RunningChange | None:
    """Return the mean change as it could be told while the step went on, by the order in which requests were sent."""
    figure = rate.figure("scores")
    if figure is None:
        return None
    running = RunningChange(figure.bound, step=place, alpha=alpha)
    for number, (id_, verdict) in enumerate(loaded.items()):
        scores = [
            None if one is None else aspect_score(one, aspect) for one in (verdict, first.get(id_), second.get(id_))
        ]
        running.add(number, _score_change(scores))
    return running


def _score_change(scores: Sequence[float | None]) -> float | None:
    loaded, first, second = scores
    return None if loaded is None or first is None or second is None else loaded - (first + second) / 2
