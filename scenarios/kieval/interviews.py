"""Aggregates over interviews, one per candidate: streaming, mergeable, independent of order.

What never belongs here: the formula of one interview's score (``score``) and how a table looks (``tables``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from viva.reports.usage import add_counts, usage_record
from viva.scoring.failures import Failures
from viva.scoring.stream import ClusteredStream, Mean, Tally

from .score import ASPECTS, Interview, Scorer

_UNSCORED: tuple[int | None, ...] = (None,) * len(ASPECTS)
_NO_ROUNDS: tuple[tuple[int | None, ...], ...] = ((),) * len(ASPECTS)
# A larger share of first answers without a readable choice makes an accuracy that says little of what a model knows.
MOST_UNANSWERED = 0.10
# Courses of interviews that are remembered; more come of long interviews only.
_MOST_KNOWN = 100_000


class Remembering:
    """A scorer that computes each course of an interview once: few interviews run a course that no other has run.

    A score depends on the scores of the rounds, where they are flagged, how the interview ended and how many were
    planned, and on nothing else of it.
    """

    __slots__ = ("_count", "_known", "scorer")

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer
        self._known: dict[Any, dict[tuple[int | None, ...], float | None]] = {}
        self._count = 0

    def scores(self, interview: Interview) -> list[float | None]:
        """``Scorer.score`` of each aspect, in the order of ``ASPECTS``."""
        rounds = interview.rounds
        columns = zip(*[held.scores or _UNSCORED for held in rounds], strict=True) if rounds else _NO_ROUNDS
        known = self._alike(interview)
        scores = []
        for aspect, values in enumerate(columns):
            if values not in known:
                self._learn(known, values, interview, aspect)
            scores.append(known[values])
        return scores

    def overall(self, interview: Interview) -> float | None:
        """``Scorer.score`` of the overall aspect alone."""
        values = tuple([held.scores[-1] if held.scores else None for held in interview.rounds])
        known = self._alike(interview)
        if values not in known:
            self._learn(known, values, interview, len(ASPECTS) - 1)
        return known[values]

    def _alike(self, interview: Interview) -> dict[tuple[int | None, ...], float | None]:
        """Scores of interviews that ended alike, by the scores of their rounds."""
        flags = tuple([held.stop is not None for held in interview.rounds])
        return self._known.setdefault((interview.planned, interview.ended_by, flags), {})

    def _learn(
        self,
        known: dict[tuple[int | None, ...], float | None],
        values: tuple[int | None, ...],
        interview: Interview,
        aspect: int,
    ) -> None:
        if self._count >= _MOST_KNOWN:
            self._known.clear()
            self._count = 0
        known[values] = self.scorer.score(interview, aspect)
        self._count += 1


@lru_cache(maxsize=32)
def remembering(scorer: Scorer) -> Remembering:
    """The one that all aggregates of a scorer share: candidates' interviews run the same courses."""
    return Remembering(scorer)


class InterviewAggregate:
    """Everything a report says about one candidate.

    Interviews about items of one cluster are not independent: errors are over clusters.
    """

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer
        self._remembering = remembering(scorer)
        self.scores = {aspect: ClusteredStream() for aspect in ASPECTS}
        self.accuracy = ClusteredStream()
        self.unanswered = 0
        self.unanswered_score = ClusteredStream()
        self.free = 0
        self.rounds = ClusteredStream()
        self.interviews = 0
        self.unscored_interviews = 0
        self.verdicts = 0
        self.unscored_rounds = 0
        self.partly_scored_rounds = 0
        self.parse_failures = 0
        self.irregular: dict[str, Tally] = {}
        self.ends = Tally()
        self.stop_reasons = Tally()
        self.failures = Failures()
        self.usage: dict[str, list[int]] = {}
        self.discarded = [0, 0, 0]

    def add(self, interview: Interview) -> list[float | None]:
        """Take in one finished interview; returns its score of each aspect, None where it has none."""
        self.interviews += 1
        cluster = interview.cluster
        if interview.free:
            self.free += 1
        else:
            self.accuracy.add(1.0 if interview.right else 0.0, cluster)
            self.unanswered += interview.choice is None
        held = self.scorer.rounds(interview)
        self.rounds.add(len(held), cluster)
        scores = self._remembering.scores(interview)
        for aspect, score in zip(ASPECTS, scores, strict=True):
            if score is not None:
                self.scores[aspect].add(score, cluster)
            elif aspect == "overall":
                self.unscored_interviews += 1
        if scores[-1] is not None and interview.choice is None and not interview.free:
            self.unanswered_score.add(scores[-1], cluster)
        self.verdicts += len(held)
        for one in held:
            self.unscored_rounds += one.scores is None
            self.partly_scored_rounds += one.scores is not None and None in one.scores
            self.parse_failures += one.failures
        self.ends.add(interview.ended_by)
        if self.scorer.early_stop and held and held[-1].stop is not None:
            self.stop_reasons.add(held[-1].stop)
        elif interview.ended_by != "rounds":
            self.stop_reasons.add(interview.reason or interview.ended_by)
        for role, used in interview.usage.items():
            add_counts(self.usage.setdefault(role, [0, 0, 0]), used)
        for role, kinds in interview.irregular.items():
            counted = self.irregular.setdefault(role, Tally())
            for kind, count in kinds.items():
                counted.add(kind, count)
        add_counts(self.discarded, interview.discarded)
        return scores

    def add_failure(self, error: dict[str, Any]) -> None:
        """Take in an interview that ended with an error: counted by its type and reason, never scored."""
        self.failures.add(error)

    def merge(self, other: InterviewAggregate) -> None:
        """Take in all that another aggregate of the same scorer has seen."""
        for aspect in ASPECTS:
            self.scores[aspect].merge(other.scores[aspect])
        self.accuracy.merge(other.accuracy)
        self.rounds.merge(other.rounds)
        self.unanswered_score.merge(other.unanswered_score)
        for name in (
            "unanswered",
            "free",
            "interviews",
            "unscored_interviews",
            "verdicts",
            "unscored_rounds",
            "partly_scored_rounds",
            "parse_failures",
        ):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.ends.merge(other.ends)
        self.stop_reasons.merge(other.stop_reasons)
        self.failures.merge(other.failures)
        for role, used in other.usage.items():
            add_counts(self.usage.setdefault(role, [0, 0, 0]), used)
        for role, counted in other.irregular.items():
            self.irregular.setdefault(role, Tally()).merge(counted)
        add_counts(self.discarded, other.discarded)

    def to_dict(self, prices: Mapping[str, Sequence[float] | None] | None = None) -> dict[str, Any]:
        """The aggregate as plain data. ``prices``: role to prices per million [prompt, completion] tokens, None where
        they are not known.
        """
        prices = prices or {}
        # Each repair is one more text; a round whose repair failed too has two failures and one repair.
        texts = self.verdicts + self.parse_failures - self.unscored_rounds - self.partly_scored_rounds
        return {
            "interviews": self.interviews,
            "scored": self.scores["overall"].n,
            "unscored_interviews": self.unscored_interviews,
            "failed": self.failures.total,
            "accuracy": _percent(self.accuracy),
            "unanswered": self.unanswered,
            "unanswered_rate": _share(self.unanswered, self.interviews - self.free),
            **({"unanswered_score": _rounded(self.unanswered_score)} if self.unanswered else {}),
            **({"free": self.free} if self.free else {}),
            "score": _rounded(self.scores["overall"]),
            "aspects": {aspect: _rounded(self.scores[aspect]) for aspect in ASPECTS[:-1]},
            "rounds": _rounded(self.rounds),
            "verdicts": self.verdicts,
            "unscored_rounds": self.unscored_rounds,
            "unscored_rate": _share(self.unscored_rounds, self.verdicts),
            "partly_scored_rounds": self.partly_scored_rounds,
            "parse_failures": self.parse_failures,
            "parse_failure_rate": _share(self.parse_failures, texts),
            "ends": self.ends.to_dict(),
            "stop_reasons": self.stop_reasons.to_dict(),
            **self.failures.to_record(),
            "irregular": {role: counted.to_dict() for role, counted in sorted(self.irregular.items())},
            "usage": {
                role: usage_record(used, prices.get(role, [0.0, 0.0])) for role, used in sorted(self.usage.items())
            },
            "discarded_questions": usage_record(self.discarded, prices.get("interactor", [0.0, 0.0])),
        }


def _rounded(mean: Mean, factor: float = 1.0) -> dict[str, float | int | None]:
    # Six decimals: far below any error bar, and the same text on every platform.
    value, error = mean.mean, mean.standard_error
    return {
        "mean": None if value is None else round(factor * value, 6),
        "se": None if error is None else round(factor * error, 6),
        "n": mean.n,
    }


def _percent(mean: Mean) -> dict[str, float | int | None]:
    return _rounded(mean, 100.0)


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 6) if whole else None
