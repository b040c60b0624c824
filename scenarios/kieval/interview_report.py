"""The KIEval report: mergeable aggregates of interviews by candidate, as plain data and the paper's tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from viva.engine.errors import ConfigurationError
from viva.reports.run_tables import (
    add_counts,
    add_irregular,
    add_usage,
    usage_record,
    usage_table,
)
from viva.reports.tables import Table, number, percent, standard_error
from viva.scoring.aggregates import ClusteredStream, Mean, Tally
from viva.scoring.verdict_variety import VerdictVariety

from ..fitness import fitness_warnings, read_fitness
from ..run_aggregate import ModelResults, RunAggregate, common_tables, hours_table, model_hours, tier_name
from .judge_seeds import SeedVotes, seed_tables
from .published import published_figures, published_table
from .score import ASPECT_TITLE, ASPECTS, Interview, KievalScoring, Scorer

_UNSCORED_ROUND: tuple[int | None, ...] = (None,) * len(ASPECTS)
_NO_ROUNDS: tuple[tuple[int | None, ...], ...] = ((),) * len(ASPECTS)
# If a larger share of first answers has no readable choice, accuracy says little about knowledge.
MAX_UNANSWERED = 0.10
_COUNTS = (
    *("unanswered", "free", "interviews", "unscored_interviews", "verdicts", "unscored_rounds"),
    *("partly_scored_rounds", "parse_failures", "recorded_rounds", "cut_rounds", "cut_interviews"),
)
# The maximum number of cached courses; only long interviews have more courses.
_CACHE_SIZE = 100_000


class CachedScorer:
    """A scorer that computes each course of an interview once, because most interviews repeat a course.

    A score depends only on the scores of the rounds, their flags, how the interview ended and how many rounds were
    planned.
    """

    __slots__ = ("_count", "_known", "scorer")

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer
        self._known: dict[Any, dict[tuple[int | None, ...], float | None]] = {}
        self._count = 0

    def scores(self, interview: Interview) -> list[float | None]:
        """Return `Scorer.score` for each aspect, in the order of `ASPECTS`."""
        rounds = interview.rounds
        columns = zip(*[round_.scores or _UNSCORED_ROUND for round_ in rounds], strict=True) if rounds else _NO_ROUNDS
        cached = self._cached_scores(interview)
        scores = []
        for aspect, values in enumerate(columns):
            if values not in cached:
                self._store(cached, values, interview, aspect)
            scores.append(cached[values])
        return scores

    def overall(self, interview: Interview) -> float | None:
        values = tuple([round_.scores[-1] if round_.scores else None for round_ in interview.rounds])
        cached = self._cached_scores(interview)
        if values not in cached:
            self._store(cached, values, interview, len(ASPECTS) - 1)
        return cached[values]

    def _cached_scores(self, interview: Interview) -> dict[tuple[int | None, ...], float | None]:
        """Return the cached scores of interviews with equal ends and flags, by the scores of their rounds."""
        flags = tuple([round_.stop is not None for round_ in interview.rounds])
        return self._known.setdefault((interview.planned, interview.ended_by, flags), {})

    def _store(
        self,
        cached: dict[tuple[int | None, ...], float | None],
        values: tuple[int | None, ...],
        interview: Interview,
        aspect: int,
    ) -> None:
        if self._count >= _CACHE_SIZE:
            self._known.clear()
            self._count = 0
        cached[values] = self.scorer.score(interview, aspect)
        self._count += 1


@lru_cache(maxsize=32)
def cached_scorer(scorer: Scorer) -> CachedScorer:
    """Return the cached scorer shared by all aggregates with this scorer."""
    return CachedScorer(scorer)


class InterviewAggregate(ModelResults):
    """The report figures of one candidate.

    Interviews about items of one cluster are not independent: errors are over clusters.
    """

    def __init__(self, scorer: Scorer) -> None:
        super().__init__()
        self.scorer = scorer
        self._cached_scorer = cached_scorer(scorer)
        self.scores = {aspect: ClusteredStream() for aspect in ASPECTS}
        self.accuracy = ClusteredStream()
        self.unanswered_score = ClusteredStream()
        self.rounds = ClusteredStream()
        self.interviews = self.unscored_interviews = self.unanswered = self.free = 0
        self.verdicts = self.unscored_rounds = self.partly_scored_rounds = self.parse_failures = 0
        self.ends, self.stop_reasons = Tally(), Tally()
        self.variety = VerdictVariety()
        self.recorded_rounds = self.cut_rounds = self.cut_interviews = 0
        self.discarded = [0, 0, 0]
        self.seed_votes = SeedVotes()

    def add(self, interview: Interview) -> list[float | None]:
        """Add a finished interview, and return its score for each aspect, None if unscored."""
        self.interviews += 1
        cluster = interview.cluster
        if interview.free:
            self.free += 1
        else:
            self.accuracy.add(1.0 if interview.right else 0.0, cluster)
            self.unanswered += interview.choice is None
        rounds = self.scorer.rounds(interview)
        self.rounds.add(len(rounds), cluster)
        scores = self._cached_scorer.scores(interview)
        for aspect, score in zip(ASPECTS, scores, strict=True):
            if score is not None:
                self.scores[aspect].add(score, cluster)
            elif aspect == "overall":
                self.unscored_interviews += 1
        if scores[-1] is not None and interview.choice is None and not interview.free:
            self.unanswered_score.add(scores[-1], cluster)
        self.verdicts += len(rounds)
        self.recorded_rounds += len(interview.rounds)
        self.cut_rounds += len(interview.rounds) - len(rounds)
        self.cut_interviews += len(interview.rounds) > len(rounds)
        for round_ in rounds:
            self.unscored_rounds += round_.scores is None
            self.partly_scored_rounds += round_.scores is not None and None in round_.scores
            self.parse_failures += round_.failures
        self.ends.add(interview.ended_by)
        if self.scorer.early_stop and rounds and rounds[-1].stop is not None:
            self.stop_reasons.add(rounds[-1].stop)
        elif interview.ended_by != "rounds":
            self.stop_reasons.add(interview.reason or interview.ended_by)
        add_usage(self.usage, interview.usage)
        add_irregular(self.irregular, interview.irregular)
        add_counts(self.discarded, interview.discarded)
        for round_ in interview.rounds:
            if round_.scores is not None:
                self.variety.add("–" if score is None else score for score in round_.scores)
        if interview.copies:
            self.variety.add_copies(interview.copies)
        if interview.seeds:
            self.seed_votes.add(interview, self.scorer)
        return scores

    def merge(self, other: InterviewAggregate) -> None:
        """Add all interviews of another aggregate with the same scorer."""
        for aspect in ASPECTS:
            self.scores[aspect].merge(other.scores[aspect])
        for name in ("accuracy", "rounds", "unanswered_score", "ends", "stop_reasons", "failures", "variety"):
            getattr(self, name).merge(getattr(other, name))
        self.seed_votes.merge(other.seed_votes)
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        add_usage(self.usage, other.usage)
        add_irregular(self.irregular, other.irregular)
        add_counts(self.discarded, other.discarded)

    def warnings(self) -> list[str]:
        return self.variety.warnings("evaluator")

    def saved(self) -> dict[str, Any]:
        """Return what early stop would have saved, of interviews that went on after the flag; a call a role and round.

        Repeated calls are not counted, nor are other seeds of the evaluator.
        """
        return {
            "interviews": self.cut_interviews,
            "rounds": self.cut_rounds,
            "of_rounds": self.recorded_rounds,
            "calls": dict.fromkeys(("candidate", "interactor", "evaluator"), self.cut_rounds),
        }

    def to_dict(self, prices: Mapping[str, list[float] | None] | None = None) -> dict[str, Any]:
        """Return the aggregate as plain data.

        `prices` maps roles to prices per million [prompt, completion] tokens, None if unknown.
        """
        prices = defaultdict[str, list[float] | None](lambda: [0.0, 0.0], prices or {})
        # Each repair adds a text; a round with a failed repair has two failures and one repair.
        texts = self.verdicts + self.parse_failures - self.unscored_rounds - self.partly_scored_rounds
        return {
            "interviews": self.interviews,
            "scored": self.scores["overall"].n,
            "unscored_interviews": self.unscored_interviews,
            "failed": self.failures.total,
            "accuracy": _mean_record(self.accuracy, 100.0),
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
            "variety": self.variety.to_record(),
            **({"warnings": warnings} if (warnings := self.warnings()) else {}),
            "ends": self.ends.to_dict(),
            "stop_reasons": self.stop_reasons.to_dict(),
            **({"saved_by_early_stop": self.saved()} if self.cut_rounds else {}),
            **({"judge_seeds": self.seed_votes.to_record()} if self.seed_votes else {}),
            **self.common_figures(prices),
            "discarded_questions": usage_record(self.discarded, prices["interactor"]),
        }


def _mean_record(mean: Mean, factor: float = 1.0) -> dict[str, float | int | None]:
    # Six decimals: far below any error bar, and the same text on every platform.
    value, error = mean.mean, mean.standard_error
    return {
        "mean": None if value is None else round(factor * value, 6),
        "se": None if error is None else round(factor * error, 6),
        "n": mean.n,
    }


def _rate(part: int, total: int) -> float | None:
    return round(part / total, 6) if total else None


class KievalAggregate(RunAggregate[InterviewAggregate]):
    """The candidates of a run. Results come in any order; the report is the same."""

    fields = (
        *("scenario", "scorer", "seed", "tier", "rounds", "recorded_with_early_stop"),
        *("models", "dataset", "pack"),
    )

    def __init__(self, scorer: Scorer, manifest: dict[str, Any]) -> None:
        super().__init__(manifest, lambda: InterviewAggregate(scorer), "candidate")
        recorded = KievalScoring().scorer_of(manifest["settings"])
        if self.exams is not None and scorer != recorded:
            raise ConfigurationError(
                f"an adaptive run is scored only as its items were chosen: with the scorer {recorded.describe()}, not "
                f"{scorer.describe()}"
            )
        self.scorer = scorer
        self._folder: Path | None = None
        self._with_times = False

    def add_times(self) -> None:
        self._with_times = True

    def beside(self, folder: Path) -> None:
        """Remember the folder, to read times and the results of fitness tests later: models may not be tested yet."""
        super().beside(folder)
        self._folder = folder

    def remarks(self) -> list[str]:
        """Return the remarks on judges, first a warning for each model that was found not usable before the run."""
        warnings = [] if self._folder is None else fitness_warnings(self._folder)
        unfit = [f"Do not rely on these scores: {warning}." for warning in warnings]
        seeds = [
            f"{label}: {aggregate.seed_votes.to_record()['summary']}."
            for label, aggregate in self.candidates.items()
            if aggregate.seed_votes
        ]
        return [*unfit, *super().remarks(), *seeds]

    def report(self) -> dict[str, Any]:
        tested = [] if self._folder is None else read_fitness(self._folder)
        published = published_figures(self.manifest["dataset"]) if self._as_published else None
        report = super().report() | ({"qualification": tested} if tested else {})
        report |= {"published": published} if published else {}
        if self._with_times and self._folder is not None:
            report["timing"] = model_hours(self._folder, self.manifest)
        return report

    @property
    def _as_published(self) -> bool:
        return bool(self.manifest["settings"].get("as_published"))

    def add(self, key: str, result: Any) -> None:
        interview = Interview.from_record(result)
        scores = self.candidates[interview.candidate].add(interview)
        if self.exams is not None:
            self.exams.add(key, None if scores[-1] is None else scores[-1] / 100.0)

    def in_brief(self, aggregate: InterviewAggregate) -> str:
        mean, error = aggregate.scores["overall"].mean, aggregate.scores["overall"].standard_error
        return "" if mean is None else f"{mean:.1f}" + (f" ± {error:.1f}" if error else "")

    def facts(self) -> dict[str, Any]:
        settings = self.manifest["settings"]
        facts = {"scorer": self.scorer.describe(), "rounds": settings["rounds"]}
        return facts | {"recorded_with_early_stop": settings["early_stop"]}

    def figures(self, label: str, aggregate: InterviewAggregate) -> dict[str, Any]:
        prices = self.prices(label)
        figures = aggregate.to_dict({role: prices[role] for role in ("candidate", "interactor", "evaluator")})
        if "saved_by_early_stop" in figures and self.manifest["settings"].get("overlap"):
            saved = figures["saved_by_early_stop"]  # the next question is asked before the flag is known
            saved["calls"]["interactor"] -= saved["interviews"]
        return figures if self.exams is None else _without_means(figures)

    def tables(self) -> list[Table]:
        report = self.report()
        *common, _ = common_tables(report)
        usage = usage_table(_with_discarded(report))
        if self.exams is not None:
            return [self.exams.table(report), self._of_chosen(report), self._reasons(report), *common, usage]
        published = [published_table(report["published"])] if "published" in report else []
        more = [*seed_tables(report["candidates"]), self._reasons(report), saved_table(report["candidates"].items())]
        usage_tables = [*common, usage, hours_table(report.get("timing", ()))]
        return [self._main(report), _aspect_table(report), *published, *more, *usage_tables]

    def _main(self, report: dict[str, Any]) -> Table:
        header = ["candidate", "n", "first answer", "KIEval", "SE", "rounds"]
        header += ["no answer", "no score", "not parsed", "failed"]
        free = report["dataset"].get("free", 0)
        has_accuracy = not free or free < report["dataset"]["items"]  # some first answers are right or wrong
        rows = []
        for label, record in report["candidates"].items():
            row = [label, str(record["scored"]), number(record["accuracy"]["mean"]), number(record["score"]["mean"])]
            row += [standard_error(record["score"]["se"]), number(record["rounds"]["mean"], 2)]
            row += [percent(record["unanswered_rate"]), percent(record["unscored_rate"])]
            row += [percent(record["parse_failure_rate"]), str(record["failed"])]
            rows.append(row if has_accuracy else _without_static(row, header))
        skipped = report["dataset"]["skipped"]
        dataset = report["dataset"]["name"] + (f" ({skipped} bad lines skipped)" if skipped else "")
        title = f"KIEval on {dataset}, scorer {report['scorer']}, seed {report['seed']}, {tier_name(report['tier'])}"
        if self._as_published:
            title += "; set up as published"
        if free:
            note = f"{free:,} questions without choices are left out of the first answer's accuracy"
            title += f"; {note}" if has_accuracy else "; first answers to questions without choices have no accuracy"
        silent = [label for label, record in report["candidates"].items() if _is_often_unanswered(record)]
        if silent:
            title += f"; more than {100 * MAX_UNANSWERED:.0f}% of first answers name no choice: {', '.join(silent)}"
        if any(record["score"]["se"] == 0 for record in report["candidates"].values()):
            title += "; no SE where all scores are equal: too few interviews to tell"
        return (title, header if has_accuracy else _without_static(header, header), rows)

    def _of_chosen(self, report: dict[str, Any]) -> Table:
        """Return the table of an adaptive run's interviews: no figure in it is a mean over the benchmark."""
        header = ["candidate", "n", "no answer", "no score", "not parsed", "failed"]
        rows = []
        for label, record in report["candidates"].items():
            shares = [percent(record[name]) for name in ("unanswered_rate", "unscored_rate", "parse_failure_rate")]
            rows.append([label, str(record["scored"]), *shares, str(record["failed"])])
        title = f"Interviews on the chosen items of {report['dataset']['name']}, scorer {report['scorer']}"
        return (f"{title}, seed {report['seed']}, {tier_name(report['tier'])}", header, rows)

    def _reasons(self, report: dict[str, Any]) -> Table:
        counts = [record["stop_reasons"] | {f"failed: {k}": v for k, v in record["failures"].items()}
                 for record in report["candidates"].values()]  # fmt: skip
        reasons = sorted({reason for record in counts for reason in record})
        rows = [
            [label, *(str(record.get(reason, 0)) for reason in reasons)]
            for label, record in zip(report["candidates"], counts, strict=True)
        ]
        return ("Early stops", ["candidate", *reasons], rows if reasons else [])


def _without_means(record: dict[str, Any]) -> dict[str, Any]:
    """Return a candidate's figures in an adaptive run, without means, which would be over chosen items."""
    nothing = {"mean": None, "se": None, "n": 0}
    chosen = {name: nothing for name in ("accuracy", "unanswered_score", "score", "rounds") if name in record}
    return record | chosen | {"aspects": dict.fromkeys(record["aspects"], nothing)}


def _aspect_table(report: dict[str, Any]) -> Table:
    rows = [
        [label, *(number(aspect["mean"]) for aspect in record["aspects"].values())]
        for label, record in report["candidates"].items()
    ]
    return (ASPECT_TITLE, ["candidate", *ASPECTS[:-1]], rows)


def saved_table(results: Iterable[tuple[str, Mapping[str, Any]]]) -> Table:
    """Return the calls that early stop would have saved by candidate, from the records of its results."""
    sums: dict[str, list[int]] = {}
    for label, record in results:
        if (saved := record.get("saved_by_early_stop")) is not None:
            calls = saved["calls"]
            counts = [saved["interviews"], saved["rounds"], saved["of_rounds"], *calls.values(), sum(calls.values())]
            add_counts(sums.setdefault(label, [0] * len(counts)), counts)
    rows = [
        [label, f"{counts[0]:,}", f"{counts[1]:,}", percent(_rate(counts[1], counts[2])), *map(_thousands, counts[3:])]
        for label, counts in sums.items()
    ]
    header = ["candidate", "interviews cut", "rounds saved", "of rounds", "candidate", "interactor", "evaluator"]
    return ("Calls saved by early stop, one for each role and round", [*header, "calls saved"], rows)


def _thousands(count: int) -> str:
    return f"{count:,}"


def _without_static(row: list[str], header: list[str]) -> list[str]:
    return [cell for name, cell in zip(header, row, strict=True) if name not in ("first answer", "no answer")]


def _with_discarded(report: dict[str, Any]) -> dict[str, Any]:
    """Return the report with the interactor's usage for discarded questions as part of its usage."""
    candidates = {}
    for label, record in report["candidates"].items():
        discarded = record["discarded_questions"]
        more = {"(of which discarded questions)": discarded} if discarded["calls"] else {}
        candidates[label] = {"usage": record["usage"] | more}
    return {"candidates": candidates}


def _is_often_unanswered(record: dict[str, Any]) -> bool:
    """Return True if the accuracy depends more on the form of answers than on knowledge."""
    return (record["unanswered_rate"] or 0.0) > MAX_UNANSWERED
