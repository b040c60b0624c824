"""The KIEval report: mergeable aggregates of interviews by candidate, as plain data and the paper's tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from viva.reports.run_tables import add_counts, failure_table, irregular_table, usage_record, usage_table
from viva.reports.tables import Table
from viva.scoring.aggregates import ClusteredStream, Failures, Mean, Tally

from ..models import label_of_key, recorded_price
from .score import ASPECTS, Interview, Scorer

_UNSCORED_ROUND: tuple[int | None, ...] = (None,) * len(ASPECTS)
_NO_ROUNDS: tuple[tuple[int | None, ...], ...] = ((),) * len(ASPECTS)
# A larger share of first answers without a readable choice makes an accuracy that says little of what a model knows.
MAX_UNANSWERED = 0.10
# Courses of interviews that are remembered; more come of long interviews only.
_CACHE_SIZE = 100_000


class CachedScorer:
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
        columns = zip(*[held.scores or _UNSCORED_ROUND for held in rounds], strict=True) if rounds else _NO_ROUNDS
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
        if self._count >= _CACHE_SIZE:
            self._known.clear()
            self._count = 0
        known[values] = self.scorer.score(interview, aspect)
        self._count += 1


@lru_cache(maxsize=32)
def cached_scorer(scorer: Scorer) -> CachedScorer:
    """The one that all aggregates of a scorer share: candidates' interviews run the same courses."""
    return CachedScorer(scorer)


class InterviewAggregate:
    """Everything a report says about one candidate.

    Interviews about items of one cluster are not independent: errors are over clusters.
    """

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer
        self._remembering = cached_scorer(scorer)
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
            "accuracy": _percent_record(self.accuracy),
            "unanswered": self.unanswered,
            "unanswered_rate": _rate(self.unanswered, self.interviews - self.free),
            **({"unanswered_score": _mean_record(self.unanswered_score)} if self.unanswered else {}),
            **({"free": self.free} if self.free else {}),
            "score": _mean_record(self.scores["overall"]),
            "aspects": {aspect: _mean_record(self.scores[aspect]) for aspect in ASPECTS[:-1]},
            "rounds": _mean_record(self.rounds),
            "verdicts": self.verdicts,
            "unscored_rounds": self.unscored_rounds,
            "unscored_rate": _rate(self.unscored_rounds, self.verdicts),
            "partly_scored_rounds": self.partly_scored_rounds,
            "parse_failures": self.parse_failures,
            "parse_failure_rate": _rate(self.parse_failures, texts),
            "ends": self.ends.to_dict(),
            "stop_reasons": self.stop_reasons.to_dict(),
            **self.failures.to_record(),
            "irregular": {role: counted.to_dict() for role, counted in sorted(self.irregular.items())},
            "usage": {
                role: usage_record(used, prices.get(role, [0.0, 0.0])) for role, used in sorted(self.usage.items())
            },
            "discarded_questions": usage_record(self.discarded, prices.get("interactor", [0.0, 0.0])),
        }


def _mean_record(mean: Mean, factor: float = 1.0) -> dict[str, float | int | None]:
    # Six decimals: far below any error bar, and the same text on every platform.
    value, error = mean.mean, mean.standard_error
    return {
        "mean": None if value is None else round(factor * value, 6),
        "se": None if error is None else round(factor * error, 6),
        "n": mean.n,
    }


def _percent_record(mean: Mean) -> dict[str, float | int | None]:
    return _mean_record(mean, 100.0)


def _rate(part: int, whole: int) -> float | None:
    return round(part / whole, 6) if whole else None


class KievalAggregate:
    """All candidates of a run. Results come in any order; the report is the same."""

    def __init__(self, scorer: Scorer, manifest: dict[str, Any]) -> None:
        self.scorer, self._manifest = scorer, manifest
        self.candidates = {label: InterviewAggregate(scorer) for label in manifest["models"]["candidate"]}

    def add(self, key: str, result: Any) -> None:
        interview = Interview.from_record(result)
        self.candidates[interview.candidate].add(interview)

    def add_failure(self, key: str, error: dict[str, Any]) -> None:
        self.candidates[label_of_key(key, list(self.candidates))].add_failure(error)

    def headline(self) -> str:
        parts = []
        for label, one in self.candidates.items():
            mean, error = one.scores["overall"].mean, one.scores["overall"].standard_error
            if mean is not None:
                parts.append(f"{label} {mean:.1f}" + (f" ± {error:.1f}" if error is not None else ""))
        return "  ".join(parts[:4]) + (f"  +{len(parts) - 4} more" if len(parts) > 4 else "")

    def report(self) -> dict[str, Any]:
        manifest = self._manifest
        models = manifest["models"]
        candidates = {}
        for label, model in models["candidate"].items():
            by_role = {
                "candidate": recorded_price(manifest, model),
                "interactor": recorded_price(manifest, models["interactor"]),
                "evaluator": recorded_price(manifest, models["evaluator"]),
            }
            candidates[label] = self.candidates[label].to_dict(by_role)
        return {
            "scenario": "kieval",
            "scorer": self.scorer.describe(),
            "seed": manifest["seed"],
            "tier": manifest["tier"],
            "rounds": manifest["settings"]["rounds"],
            "recorded_with_early_stop": manifest["settings"]["early_stop"],
            "models": models,
            "dataset": manifest["dataset"],
            "pack": manifest["pack"],
            "candidates": candidates,
        }

    def tables(self) -> list[Table]:
        report = self.report()
        failed, irregular = failure_table(report), self._irregular(report)
        return [self._main(report), self._reasons(report), failed, irregular, usage_table(_with_discarded(report))]

    def _main(self, report: dict[str, Any]) -> Table:
        header = ["candidate", "n", "accuracy", "KIEval", "±", "acc", "log", "rel", "coh", "con", "rounds"]
        header += ["unanswered", "unscored", "unparsed", "failed"]
        free = report["dataset"].get("free", 0)
        known = not free or free < report["dataset"]["items"]  # of some first answers, whether they are right
        rows = []
        for label, one in report["candidates"].items():
            row = [label, str(one["scored"]), _number_text(one["accuracy"]["mean"]), _number_text(one["score"]["mean"])]
            row += [
                _number_text(one["score"]["se"]),
                *(_number_text(aspect["mean"]) for aspect in one["aspects"].values()),
            ]
            row += [_number_text(one["rounds"]["mean"], 2), _percent_text(one["unanswered_rate"])]
            row += [_percent_text(one["unscored_rate"]), _percent_text(one["parse_failure_rate"]), str(one["failed"])]
            rows.append(row if known else _without_static(row, header))
        skipped = report["dataset"]["skipped"]
        dataset = report["dataset"]["name"] + (f" ({skipped} bad lines skipped)" if skipped else "")
        title = f"KIEval on {dataset}, scorer {report['scorer']}, seed {report['seed']}, tier {report['tier']}"
        if free:
            few = f"accuracy leaves out {free:,} questions without choices"
            title += f"; {few}" if known else "; questions without choices have no accuracy"
        silent = [label for label, one in report["candidates"].items() if _is_often_unanswered(one)]
        if silent:
            title += f"; more than {100 * MAX_UNANSWERED:.0f}% of first answers name no choice: {', '.join(silent)}"
        return (title, header if known else _without_static(header, header), rows)

    def _reasons(self, report: dict[str, Any]) -> Table:
        every = [one["stop_reasons"] | {f"failed: {k}": v for k, v in one["failures"].items()}
                 for one in report["candidates"].values()]  # fmt: skip
        reasons = sorted({reason for one in every for reason in one})
        rows = [
            [label, *(str(one.get(reason, 0)) for reason in reasons)]
            for label, one in zip(report["candidates"], every, strict=True)
        ]
        return ("Why talks ended early", ["candidate", *reasons], rows if reasons else [])

    def _irregular(self, report: dict[str, Any]) -> Table:
        return irregular_table(
            (label, one["irregular"], {role: used["calls"] for role, used in one["usage"].items()})
            for label, one in report["candidates"].items()
        )


def _without_static(row: list[str], header: list[str]) -> list[str]:
    """A row without what is known of first answers that name a choice."""
    return [cell for name, cell in zip(header, row, strict=True) if name not in ("accuracy", "unanswered")]


def _with_discarded(report: dict[str, Any]) -> dict[str, Any]:
    """Return the report with what the interactor spent on questions that were not put, as a part of its usage."""
    shown = {}
    for label, one in report["candidates"].items():
        discarded = one["discarded_questions"]
        more = {"(of it discarded questions)": discarded} if discarded["calls"] else {}
        shown[label] = {"usage": one["usage"] | more}
    return {"candidates": shown}


def _number_text(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _is_often_unanswered(one: dict[str, Any]) -> bool:
    """Whether the accuracy says more of the form of answers than of what is known."""
    return (one["unanswered_rate"] or 0.0) > MAX_UNANSWERED


def _percent_text(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}%"
