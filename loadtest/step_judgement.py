"""Verdicts of a judge in each step and in its two unloaded passes: read from the log, as figures and as a record.

To bound memory, only every n-th answer of a long step is read, besides the first answer to each request. The formulas
are in `scoring`.
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
_DRAWS = 199  # for steps of a search, because their p-values are not used


def describe_requests(requests: Iterable[LoadRequest]) -> dict[str, JudgedRequest]:
    """Return the facts about each request that are known before an answer."""
    return {request.id: JudgedRequest(request.item, request.pair, request.reference) for request in requests}


@dataclass(slots=True)
class StepVerdicts:
    """Verdicts of one judge in one step.

    `first` has the verdicts on the first occurrence of each request, in sending order; `every` has all verdicts by
    request, each under another seed. Failed requests are only counted. `unread` has, by reason for a missing verdict,
    the beginning of the first answer without one for this reason; `texts` has the digest of each first answer as a
    label.
    """

    first: dict[str, Verdict] = field(default_factory=dict)
    every: dict[str, list[Verdict]] = field(default_factory=dict)
    answers: int = 0
    errors: int = 0
    unread: dict[Failure, str] = field(default_factory=dict)
    texts: dict[str, Verdict] = field(default_factory=dict)

    def failure_share(self, *failures: str) -> float | None:
        """Return the share of answers that failed in one of these ways, or in any way if none is named."""
        if not self.answers:
            return None
        failed = sum(
            verdict.failure in failures if failures else verdict.failure != ""
            for verdicts in self.every.values()
            for verdict in verdicts
        )
        return failed / self.answers


class JudgePasses:
    """Judgements of one judge in all steps; the order in which they are added does not change the report."""

    def __init__(self) -> None:
        self._judgements: dict[int, list[Judgement]] = {}

    def add(self, judgement: Judgement) -> None:
        """Add a judgement."""
        self._judgements.setdefault(judgement.step, []).append(judgement)

    def step(self, index: int) -> StepVerdicts:
        """Return the verdicts of a step; empty if there are none."""
        verdicts = StepVerdicts()
        for judgement in sorted(self._judgements.get(index, []), key=lambda judgement: judgement.number):
            if judgement.failure == "error":
                verdicts.errors += 1
                continue
            verdict = Verdict(judgement.scores, judgement.label, judgement.failure)
            if judgement.failure:
                verdicts.unread.setdefault(judgement.failure, judgement.excerpt)
            verdicts.answers += 1
            verdicts.every.setdefault(judgement.request, []).append(verdict)
            if judgement.occurrence == 0:
                verdicts.first[judgement.request] = verdict
                verdicts.texts[judgement.request] = Verdict(label=judgement.digest)
        return verdicts

    @property
    def steps(self) -> list[int]:
        """Steps that have judgements, with the unloaded ones first."""
        return sorted(self._judgements)

    def unloaded(self) -> tuple[VerdictPass, VerdictPass]:
        """Return the two unloaded passes that the loaded steps are compared with; a missing pass is empty."""
        second = OTHER_SEEDS if OTHER_SEEDS in self._judgements else SECOND_BASELINE
        return self.step(BASELINE).first, self.step(second).first


def passes_by_judge(
    requests: Mapping[str, LoadRequest], steps: Iterable[LoadStep], sent_requests: Iterable[SentRequest]
) -> dict[str, JudgePasses]:
    """Return the verdicts of all judges, read from sent requests; requests that the workload no longer has are skipped.

    All judges of `steps` are included, even those without an answer.
    """
    passes: dict[str, JudgePasses] = {label: JudgePasses() for step in steps for label in step.judges}
    for request in sent_requests:
        if request.request in requests:
            passes.setdefault(request.judge, JudgePasses()).add(read_judgement(requests[request.request], request))
    return passes


def objective_figures(
    passes: JudgePasses, step: int, requests: Mapping[str, JudgedRequest], scales: Mapping[str, tuple[float, float]]
) -> dict[str, float | None]:
    """Return those judgement figures of one step that an objective may use; an unknown figure is None."""
    judged = passes.step(step)
    first, second = passes.unloaded()
    [compared] = judge_rates([judged.first], first, second, requests, scales, draws=_DRAWS)
    same = verdict_agreement(judged.first, first, requests, main_aspect([first, second]))
    return {
        "drift": drift(compared),
        "parse_fail": judged.failure_share(),
        "truncated": judged.failure_share("truncated"),
        "refused": judged.failure_share("refused"),
        "agreement": None if same is None else same.same.value,
    }


def drift(compared: RateJudgement) -> float | None:
    """Return the drift as a fraction of the scale, or None if unknown."""
    return None if compared.drift is None else compared.drift.value


def main_aspect(passes: Sequence[VerdictPass]) -> str:
    """Return the aspect for comparing verdicts: the main score, or "" if there are only labels."""
    return next(iter(sort_aspects(passes)), "")


_MOST_ANSWERS = 20_000  # maximum answers read per judge and step, besides the first answer to each request


@dataclass(slots=True)
class VerdictFigures:
    """Figures of verdicts in ended steps for objectives; call it with the log, a step and a judge."""

    work: Workload
    _by_id: dict[str, LoadRequest] = field(init=False)
    _requests: dict[str, JudgedRequest] = field(init=False)

    def __post_init__(self) -> None:
        self._by_id = {request.id: request for request in self.work.requests}
        self._requests = describe_requests(self.work.requests)

    def __call__(self, history: LoadHistory, step: LoadStep, judge: str) -> dict[str, float | None]:
        steps = [logged.step for logged in history.steps() if logged.step.unloaded or logged.step.index == step.index]
        steps = [candidate for candidate in steps if judge in candidate.judges]
        passes = passes_by_judge(self._by_id, steps, _read_sent(history, steps, [judge]))
        return objective_figures(passes[judge], step.index, self._requests, self.work.scales)


def read_passes(history: LoadHistory, work: Workload) -> dict[str, JudgePasses]:
    """Return all verdicts by judge."""
    steps = [logged.step for logged in history.steps()]
    return passes_by_judge({request.id: request for request in work.requests}, steps, _read_sent(history, steps))


def _read_sent(
    history: LoadHistory, steps: Iterable[LoadStep], judges: Iterable[str] | None = None
) -> Iterator[SentRequest]:
    for step in steps:
        for judge in step.judges if judges is None else judges:
            stride = math.ceil(len(history.finished(step.index, judge)) / _MOST_ANSWERS)
            for request in history.sent_requests(step.index, judge):
                if request.occurrence == 0 or request.number % stride == 0:
                    yield request


def judgement_record(
    passes: JudgePasses,
    steps: Sequence[LoadStep],
    requests: Mapping[str, JudgedRequest],
    scales: Scales,
    alpha: float = 0.05,
) -> dict[str, Any]:
    """Return one judge as plain data (`load_schema.Judgement`): noise of unloaded passes, and the loaded steps.

    `alpha` is the share of unaffected judges that are flagged at one step or more.
    """
    first, second = passes.unloaded()
    aspect = main_aspect([first, second])
    loaded = [step for step in steps if not step.unloaded]
    judged = [passes.step(step.index) for step in loaded]
    rates = judge_rates([verdicts.first for verdicts in judged], first, second, requests, scales, alpha=alpha)
    record = {
        "aspect": aspect,
        "scale": list(scales[aspect]) if aspect in scales else None,
        "unloaded": _unloaded_fields(passes, first, second, requests, aspect, 1.0 - alpha),
        "steps": [
            _step_fields(position, step, verdicts, rate, (first, second), requests, aspect, alpha)
            | {"texts": _same_texts(verdicts, passes.step(BASELINE), requests, 1.0 - alpha)}
            for position, (step, verdicts, rate) in enumerate(zip(loaded, judged, rates, strict=True), 1)
        ],
    }
    return load_schema.Judgement.model_validate(record).model_dump(mode="json")


def load_name(step: LoadStep) -> str:
    """Return a short name of a step's load: `8/s` for each judge, or `16 in flight`."""
    if step.concurrency is not None:
        return f"{step.concurrency} in flight"
    return "recorded times" if step.rate is None else f"{step.rate:g}/s"


def _step_fields(
    position: int,
    step: LoadStep,
    judged: StepVerdicts,
    rate: RateJudgement,
    unloaded: tuple[VerdictPass, VerdictPass],
    requests: Mapping[str, JudgedRequest],
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
        "unreadable": judged.failure_share(),
        "unread": judged.unread,
        "p": rate.p,
        "flagged": rate.flagged(alpha),
        "unseen": rate.unseen,
        "drift": rate.drift,
        "figures": [
            {name: getattr(figure, name) for name in _FIGURE_FIELDS}
            | {"figure": figure.name, "changed": figure.p <= alpha}
            for figure in rate.figures
        ],
        "failures": {figure.kind: figure for figure in failure_shares(judged.first, first, second, requests, level)},
        "agreement": verdict_agreement(judged.first, first, requests, aspect, level),
        "seeds": seed_agreement(judged.every, requests, aspect, level),
        "reference": reference_agreement(judged.first, requests, aspect, level),
        "position": position_bias(judged.first, requests, level),
        "running": _running_change(judged.first, first, second, rate, aspect, position, alpha),
    }


def _unloaded_fields(
    passes: JudgePasses,
    first: VerdictPass,
    second: VerdictPass,
    requests: Mapping[str, JudgedRequest],
    aspect: str,
    level: float,
) -> dict[str, Any]:
    """Return the figures of a judge without load: its mean score, and the difference between the two passes."""
    numbers = request_clusters(requests)
    scores = [(aspect_score(verdict, aspect), str(numbers[id_])) for id_, verdict in first.items() if id_ in numbers]
    mean = clustered_mean(*_known_columns(scores)) if aspect else None
    seeds = {id_: [verdict, resampled[id_]] for id_, verdict in first.items()
             if id_ in (resampled := passes.step(OTHER_SEEDS).first)}  # fmt: skip
    verdicts = [verdict for verdict_pass in (first, second) for verdict in verdict_pass.values()]
    return {
        "second_pass": "other seeds" if OTHER_SEEDS in passes.steps else "same seeds",
        "answers": [len(first), len(second)],
        "mean": None if mean is None else mean.mean,
        "unreadable": sum(verdict.failure != "" for verdict in verdicts) / len(verdicts) if verdicts else None,
        "unread": passes.step(BASELINE).unread,
        "noise": _noise_fields(first, second, requests, aspect, level),
        "agreement": verdict_agreement(second, first, requests, aspect, level),
        "texts": _same_texts(passes.step(SECOND_BASELINE), passes.step(BASELINE), requests, level),
        "seeds": seed_agreement(seeds, requests, aspect, level),
        "reference": reference_agreement(first, requests, aspect, level),
        "position": position_bias(first, requests, level),
    }


def _noise_fields(
    first: VerdictPass, second: VerdictPass, requests: Mapping[str, JudgedRequest], aspect: str, level: float
) -> dict[str, Any] | None:
    """Return the second unloaded pass minus the first, by the main score; None unless both passes have scores.

    `change` is the change of the mean, with its p-value; `apart` is the mean distance between both verdicts on a
    request.
    """
    numbers = request_clusters(requests)
    pairs = [
        (later - score, str(numbers[id_]))
        for id_, verdict in first.items()
        if id_ in second
        and id_ in numbers
        and (score := aspect_score(verdict, aspect)) is not None
        and (later := aspect_score(second[id_], aspect)) is not None
    ]
    mean = clustered_mean([change for change, _ in pairs], [label for _, label in pairs])
    if not aspect or mean is None:
        return None
    by_item: dict[str, list[float]] = {}
    for value, label in pairs:
        by_item.setdefault(label, []).append(value)
    ends = mean.interval(level)
    return {
        "change": {"value": mean.mean, "low": ends and ends.low, "high": ends and ends.high},
        "p": mean_difference_p(mean, by_item)[0],
        "apart": sum(abs(value) for value, _ in pairs) / len(pairs),
        "n": mean.n,
    }


def _known_columns(rows: Sequence[tuple[float | None, str]]) -> tuple[list[float], list[str]]:
    pairs = [(value, label) for value, label in rows if value is not None]
    return [value for value, _ in pairs], [label for _, label in pairs]


def _same_texts(
    loaded: StepVerdicts, unloaded: StepVerdicts, requests: Mapping[str, JudgedRequest], level: float
) -> VerdictAgreement | None:
    """Compare answers byte by byte with the first unloaded pass, for the same requests and seeds."""
    return verdict_agreement(loaded.texts, unloaded.texts, requests, "", level)


def _running_change(
    loaded: VerdictPass,
    first: VerdictPass,
    second: VerdictPass,
    rate: RateJudgement,
    aspect: str,
    position: int,
    alpha: float,
) -> RunningChange | None:
    """Return the mean change after each request of the step, in the order in which requests were sent."""
    figure = rate.figure("scores")
    if figure is None:
        return None
    running = RunningChange(figure.bound, step=position, alpha=alpha)
    for number, (id_, verdict) in enumerate(loaded.items()):
        scores = [
            None if own is None else aspect_score(own, aspect) for own in (verdict, first.get(id_), second.get(id_))
        ]
        running.add(number, _score_change(scores))
    return running


def _score_change(scores: Sequence[float | None]) -> float | None:
    loaded, first, second = scores
    return None if loaded is None or first is None or second is None else loaded - (first + second) / 2
