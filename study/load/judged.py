"""The judgement part of a load test's record: each judge at each step beside its two unloaded passes, as plain data.

What never belongs here: formulas (``scoring.load``), speed, words and tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from viva.orchestration.load.judged_passes import JudgedPasses, JudgedStep, agreeing_aspect
from viva.orchestration.load.records import BASELINE, BASELINE_AGAIN, OTHER_SEEDS, LoadStep
from viva.reports.figures import estimate_record, rounded, significant
from viva.scoring.clusters import clustered_mean
from viva.scoring.comparison import tested_mean
from viva.scoring.load.consistency import (
    PositionBias,
    VerdictAgreement,
    agreement,
    position_bias,
    reference_agreement,
    seed_agreement,
)
from viva.scoring.load.judgement import ChangedFigure, RateJudgement, Scales, failure_shares, judged_rates
from viva.scoring.load.running_change import RunningChange
from viva.scoring.load.verdicts import Asked, Pass, clusters_of, score_of


def judged_record(
    passes: JudgedPasses, steps: Sequence[LoadStep], asked: Mapping[str, Asked], scales: Scales, alpha: float = 0.05
) -> dict[str, Any]:
    """One judge: ``unloaded`` (what two passes without load say of its noise) and ``steps``, the loaded ones in the
    order given. ``alpha`` is the share of sound judges that are flagged at any step.
    """
    first, second = passes.unloaded()
    aspect = agreeing_aspect([first, second])
    loaded = [step for step in steps if not step.unloaded]
    judged = [passes.step(step.index) for step in loaded]
    rates = judged_rates([one.first for one in judged], first, second, asked, scales, alpha=alpha)
    return {
        "aspect": aspect,
        "scale": list(scales[aspect]) if aspect in scales else None,
        "unloaded": _unloaded(passes, first, second, asked, aspect, 1.0 - alpha),
        "steps": [
            _step(place, step, one, rate, (first, second), asked, aspect, alpha)
            | {"texts": _texts(one, passes.step(BASELINE), asked, 1.0 - alpha)}
            for place, (step, one, rate) in enumerate(zip(loaded, judged, rates, strict=True), 1)
        ],
    }


def load_name(step: LoadStep) -> str:
    """A step's load in a few letters: ``8/s`` for each judge, or ``16 in flight``."""
    if step.concurrency is not None:
        return f"{step.concurrency} in flight"
    return "recorded times" if step.rate is None else f"{step.rate:g}/s"


def _step(
    place: int,
    step: LoadStep,
    judged: JudgedStep,
    rate: RateJudgement,
    unloaded: tuple[Pass, Pass],
    asked: Mapping[str, Asked],
    aspect: str,
    alpha: float,
) -> dict[str, Any]:
    first, second = unloaded
    level = 1.0 - alpha
    kinds = failure_shares(judged.first, first, second, asked, level)
    return {
        "step": step.index,
        "load": load_name(step),
        "answers": judged.answers,
        "errors": judged.errors,
        "unreadable": rounded(judged.share()),
        "unread": dict(judged.unread),
        "p": significant(rate.p),
        "flagged": rate.flagged(alpha),
        "unseen": rounded(rate.unseen),
        "drift": None if rate.drift is None else estimate_record(rate.drift),
        "figures": [_figure(one, alpha) for one in rate.figures],
        "failures": {
            one.kind: {
                "loaded": rounded(one.loaded),
                "unloaded": rounded(one.unloaded),
                "change": estimate_record(one.change),
            }
            for one in kinds
        },
        "agreement": _agreement(agreement(judged.first, first, asked, aspect, level)),
        "seeds": _agreement(seed_agreement(judged.every, asked, aspect, level)),
        "reference": _agreement(reference_agreement(judged.first, asked, aspect, level)),
        "position": _position(position_bias(judged.first, asked, level)),
        "running": _running(judged.first, first, second, rate, aspect, place, alpha),
    }


def _figure(one: ChangedFigure, alpha: float) -> dict[str, Any]:
    return {
        "figure": one.name,
        "aspect": one.aspect,
        "loaded": rounded(one.loaded),
        "unloaded": rounded(one.unloaded),
        "change": estimate_record(one.change),
        "floor": None if one.floor is None else estimate_record(one.floor),
        "n": one.n,
        "items": one.items,
        "p": significant(one.p),
        "changed": one.p <= alpha,
    }


def _unloaded(
    passes: JudgedPasses, first: Pass, second: Pass, asked: Mapping[str, Asked], aspect: str, level: float
) -> dict[str, Any]:
    """What is known of a judge without load: its mean score, and how far two passes differ."""
    numbers = clusters_of(asked)
    scores = [(score_of(verdict, aspect), str(numbers[id_])) for id_, verdict in first.items() if id_ in numbers]
    mean = clustered_mean(*_columns(scores)) if aspect else None
    seeds = {id_: [verdict, other[id_]] for id_, verdict in first.items()
             if id_ in (other := passes.step(OTHER_SEEDS).first)}  # fmt: skip
    every = [verdict for one in (first, second) for verdict in one.values()]
    return {
        "second_pass": "other seeds" if OTHER_SEEDS in passes.steps else "same seeds",
        "answers": [len(first), len(second)],
        "mean": None if mean is None else rounded(mean.mean),
        "unreadable": rounded(sum(verdict.failure != "" for verdict in every) / len(every)) if every else None,
        "unread": dict(passes.step(BASELINE).unread),
        "noise": _noise(first, second, asked, aspect, level),
        "agreement": _agreement(agreement(second, first, asked, aspect, level)),
        "texts": _texts(passes.step(BASELINE_AGAIN), passes.step(BASELINE), asked, level),
        "seeds": _agreement(seed_agreement(seeds, asked, aspect, level)),
        "reference": _agreement(reference_agreement(first, asked, aspect, level)),
        "position": _position(position_bias(first, asked, level)),
    }


def _noise(first: Pass, second: Pass, asked: Mapping[str, Asked], aspect: str, level: float) -> dict[str, Any] | None:
    """The second unloaded pass less the first, by the main score: ``change`` of the mean with its p-value, and
    ``apart``, the mean distance of two verdicts on a request. None where there are no scores in both.
    """
    numbers = clusters_of(asked)
    pairs = [
        (later - score, str(numbers[id_]))
        for id_, verdict in first.items()
        if id_ in second
        and id_ in numbers
        and (score := score_of(verdict, aspect)) is not None
        and (later := score_of(second[id_], aspect)) is not None
    ]
    found = clustered_mean([one for one, _ in pairs], [label for _, label in pairs])
    if not aspect or found is None:
        return None
    by_item: dict[str, list[float]] = {}
    for value, label in pairs:
        by_item.setdefault(label, []).append(value)
    ends = found.interval(level)
    return {
        "change": {
            "value": rounded(found.mean),
            "low": None if ends is None else rounded(ends.low),
            "high": None if ends is None else rounded(ends.high),
        },
        "p": significant(tested_mean(found, by_item)[0]),
        "apart": rounded(sum(abs(value) for value, _ in pairs) / len(pairs)),
        "n": found.n,
    }


def _columns(rows: Sequence[tuple[float | None, str]]) -> tuple[list[float], list[str]]:
    known = [(value, label) for value, label in rows if value is not None]
    return [value for value, _ in known], [label for _, label in known]


def _agreement(one: VerdictAgreement | None) -> dict[str, Any] | None:
    if one is None:
        return None
    return {"same": estimate_record(one.same), "beyond_chance": rounded(one.beyond_chance), "n": one.n}


def _texts(one: JudgedStep, unloaded: JudgedStep, asked: Mapping[str, Asked], level: float) -> dict[str, Any] | None:
    """How many answers are byte for byte those of the first unloaded pass, to the same requests with the same seeds."""
    found = agreement(one.texts, unloaded.texts, asked, "", level)
    return None if found is None else {"same": estimate_record(found.same), "n": found.n}


def _position(one: PositionBias | None) -> dict[str, Any] | None:
    if one is None:
        return None
    return {"favour": estimate_record(one.favour), "consistent": estimate_record(one.consistent), "n": one.n}


def _running(
    loaded: Pass, first: Pass, second: Pass, rate: RateJudgement, aspect: str, place: int, alpha: float
) -> dict[str, Any] | None:
    """The mean change as it could be told while the step went on, by the order in which requests were sent."""
    figure = rate.of("scores")
    if figure is None:
        return None
    running = RunningChange(figure.bound, step=place, alpha=alpha)
    for number, (id_, verdict) in enumerate(loaded.items()):
        scores = [None if one is None else score_of(one, aspect) for one in (verdict, first.get(id_), second.get(id_))]
        running.add(number, _change(scores))
    return {
        "n": running.n,
        "low": rounded(running.low),
        "high": rounded(running.high),
        "found_at": running.found_at,
    }


def _change(scores: Sequence[float | None]) -> float | None:
    loaded, first, second = scores
    return None if loaded is None or first is None or second is None else loaded - (first + second) / 2
