"""The Fusion-Eval report: scores by criterion and judge, and the agreement of each source with human ratings.

Sources are the judge, each assistant, and combinations of both by AVG, LLMSel and CorrW. The report also has the
agreement of the judge with each assistant (Tables 5 to 8 of the paper) and the measured time per example.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from viva.agents.assistants.assistant import to_unit_scale
from viva.agents.verdict_copies import words_digest
from viva.engine.journal import branch_and_role
from viva.engine.journal_reader import History, has_tables
from viva.engine.run_folder import RunFolder
from viva.reports.figures import correlation_record, round_figure
from viva.reports.tables import DASH, Table, mean_and_interval, number
from viva.scoring.aggregates import Mean, Tally
from viva.scoring.clustered_means import clustered_mean
from viva.scoring.correlation import correlation, kendall
from viva.scoring.juries import ScoreColumn, assign_folds, average_columns, average_out_of_fold, correlation_weights
from viva.scoring.verdict_variety import VerdictVariety

from ..run_aggregate import ModelResults, RunAggregate, common_tables, tier_name
from .fusion_judge import prediction_name
from .judge_plan import Plan
from .task_files import Criterion, TaskFile

JUDGE_SOURCE = "judge"
IN_FOLD_SUFFIX = ", in fold"
_COEFFICIENTS = (("spearman", "Spearman by example"), ("system_kendall", "Kendall over systems"))


@dataclass(slots=True)
class ExampleRows:
    """The records of a judge's examples, as `FusionProtocol` makes them, in a fixed order."""

    records: list[dict[str, Any]]
    assistants: list[dict[str, Any]]

    def judge(self, name: str, criterion: Criterion) -> list[float | None]:
        means = [record["scores"].get(name, {}).get("mean") for record in self.records]
        return [None if mean is None else criterion.to_unit(mean) for mean in means]

    def assistant(self, index: int) -> list[float | None]:
        facts = self.assistants[index]
        low, high = facts["range"]
        values = [record["assistants"][index]["value"] if record["assistants"] else None for record in self.records]
        return [None if value is None else to_unit_scale(low, high, facts["better"], value) for value in values]

    def ratings(self, name: str) -> list[float | None]:
        return [record["ratings"].get(name) for record in self.records]


def source_columns(
    rows: ExampleRows, name: str, criterion: Criterion, use: Sequence[str] | None, folds: int, seed: int
) -> tuple[dict[str, list[float | None]], dict[str, float]]:
    """Return the columns by source, and the CorrW weights fitted on all examples.

    CorrW columns are fitted out of fold. Next to each CorrW column is a column fitted on the examples that it scores;
    the agreement of the latter is too high.

    Args:
        rows: The examples.
        name: The name of the criterion.
        criterion: The criterion.
        use: The plan's assistants for this criterion; None if there is no plan.
        folds: Number of folds.
        seed: Seed of the folds.
    """
    judge, ratings = rows.judge(name, criterion), rows.ratings(name)
    names = [assistant["name"] for assistant in rows.assistants]
    assistants = dict(zip(names, map(rows.assistant, range(len(names))), strict=True))
    by_source: dict[str, list[float | None]] = {JUDGE_SOURCE: judge, **assistants}
    weights: dict[str, float] = {}
    if not names:
        return by_source, weights
    fold_of = assign_folds([record["group"] for record in rows.records], folds, seed)
    fitted = len(set(fold_of)) > 1 and any(rating is not None for rating in ratings)
    for title, more in (("AE", {}), ("AE, judge", {JUDGE_SOURCE: judge})):
        by_source[f"AVG({title})"] = average_columns([*assistants.values(), *more.values()])
        if use:
            by_source[f"LLMSel({title})"] = average_columns(
                [*(assistants[assistant] for assistant in use), *more.values()]
            )
        if fitted:
            columns: list[ScoreColumn] = [*assistants.values(), *more.values()]
            by_source[f"CorrW({title})"] = average_out_of_fold(columns, ratings, fold_of)
            all_weights = correlation_weights(columns, ratings)
            by_source[f"CorrW({title}){IN_FOLD_SUFFIX}"] = average_columns(columns, all_weights)
            weights |= {} if more else dict(zip(names, all_weights, strict=True))
    return by_source, weights


def agreement(column: ScoreColumn, ratings: ScoreColumn, systems: Sequence[str]) -> dict[str, Any] | None:
    """Return the agreement of a source's scores with human ratings, None if no example has both.

    The agreement has item-level correlations, and Kendall's tau-b over systems' means.
    """
    pairs = [
        (score, rating, system)
        for score, rating, system in zip(column, ratings, systems, strict=True)
        if score is not None and rating is not None
    ]
    if not pairs:
        return None
    items = correlation([score for score, _, _ in pairs], [rating for _, rating, _ in pairs])
    means: dict[str, tuple[list[float], list[float]]] = {}
    for score, rating, system in pairs:
        if system:
            scores, rated = means.setdefault(system, ([], []))
            scores.append(score)
            rated.append(rating)
    tau = kendall(
        [_rounded_mean(scores) for scores, _ in means.values()], [_rounded_mean(rated) for _, rated in means.values()]
    )
    return {
        "items": correlation_record(items),
        "systems": len(means),
        "system_kendall": None if tau is None else round_figure(tau.value),
    }


def _rounded_mean(values: Sequence[float]) -> float:
    # Rounded, so that means of the same numbers in another order are ties.
    return round(sum(values) / len(values), 12)


def agreement_by_criterion(
    rows: ExampleRows,
    criteria: Mapping[str, Criterion],
    use: Mapping[str, Sequence[str]] | None,
    folds: int,
    seed: int,
) -> dict[str, Any]:
    """Return the agreement of each source and the CorrW weights, by criterion with human ratings."""
    systems = [record["system"] for record in rows.records]
    records: dict[str, Any] = {}
    for name, criterion in criteria.items():
        ratings = rows.ratings(name)
        if all(rating is None for rating in ratings):
            continue
        columns, weights = source_columns(
            rows, name, criterion, None if use is None else use.get(name, ()), folds, seed
        )
        records[name] = {
            "sources": {source: agreement(column, ratings, systems) for source, column in columns.items()},
            "weights": {source: round_figure(weight) for source, weight in weights.items()},
        }
    return records


def assistant_agreement(
    rows: ExampleRows, criteria: Mapping[str, Criterion], use: Mapping[str, Sequence[str]] | None
) -> dict[str, Any]:
    """Return the agreement of the judge's scores with each assistant's numbers, by criterion and assistant.

    `in_plan` says whether the plan names the assistant for the criterion; it is None without a plan.
    """
    systems = [record["system"] for record in rows.records]
    columns = {facts["name"]: rows.assistant(index) for index, facts in enumerate(rows.assistants)}
    records: dict[str, Any] = {}
    for name, criterion in criteria.items() if columns else ():
        judge, records[name] = rows.judge(name, criterion), {}
        for assistant, column in columns.items():
            figures = agreement(judge, column, systems)
            if figures is not None:
                in_plan = None if use is None else assistant in use.get(name, ())
                records[name][assistant] = figures | {"in_plan": in_plan}
    return records


def measured_seconds(folder: Path, labels: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the seconds per example of assistants and judge, by judge, from the latencies in the journal.

    Assistants run at once, and so do predictions, so an example's time is that of the slowest one; a repaired
    prediction takes the time of both calls. Waiting for a free slot does not count.

    Args:
        folder: The run's folder.
        labels: The keys of the examples by judge.
    """
    calls: dict[int, dict[tuple[str, int], float]] = {}
    with History(RunFolder.open(folder).journal) as history:
        numbers = history.keys()
        for number, stored, ordinal, latency in history.latencies():
            calls.setdefault(number, {})[stored, ordinal] = latency  # of a repeated call, the last one
    records: dict[str, Any] = {}
    for label, keys in labels.items():
        seconds: dict[str, list[float]] = {"assistants": [], JUDGE_SOURCE: []}
        for key in keys:
            chains: dict[str, dict[str, float]] = {"assistants": {}, JUDGE_SOURCE: {}}
            for (stored, ordinal), latency in calls.get(numbers.get(key, -1), {}).items():
                kind, chain = _chain_of(stored, ordinal)
                chains[kind][chain] = chains[kind].get(chain, 0.0) + latency
            for kind, chain_seconds in chains.items():
                seconds[kind] += [max(chain_seconds.values())] if chain_seconds else []
        records[label] = {kind: _seconds_record(values) for kind, values in seconds.items()}
    return records


def _chain_of(stored: str, ordinal: int) -> tuple[str, str]:
    """Return who made a call, and which of its concurrent parts: the prediction, or the assistant."""
    branch, role = branch_and_role(stored)
    if role != JUDGE_SOURCE:
        return "assistants", stored
    return JUDGE_SOURCE, branch or prediction_name(ordinal + 1)  # first answers have the positions of consecutive calls


def _seconds_record(seconds: Sequence[float]) -> dict[str, Any]:
    mean, middle = (fmean(seconds), median(seconds)) if seconds else (None, None)
    return {"mean": round_figure(mean), "median": round_figure(middle), "n": len(seconds)}


class JudgeScores(ModelResults):
    """The examples of one judge. They are added in any order; the report is the same."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[tuple[str, dict[str, Any]]] = []
        self.variety = VerdictVariety()

    def add(self, key: str, record: dict[str, Any]) -> None:
        self.records.append((key, record))
        scores = {name: score["mean"] for name, score in record["scores"].items() if score["mean"] is not None}
        if scores:
            self.variety.add(scores.values(), words_digest(record["explanations"]))
        if "stopped" in record:
            self.stops.add(record["stopped"])
        self.add_usage(record)

    def warnings(self) -> list[str]:
        return self.variety.warnings(JUDGE_SOURCE)

    def rows(self, assistants: list[dict[str, Any]]) -> ExampleRows:
        return ExampleRows([record for _, record in sorted(self.records, key=lambda pair: pair[0])], assistants)

    def criterion(self, rows: ExampleRows, name: str, ends: tuple[float, float]) -> dict[str, Any]:
        """Return the mean over examples with an interval within the criterion's range.

        Examples of one group are a cluster. `spread` is the mean standard deviation of an example's predictions.
        """
        scored = [(row["scores"][name], row["group"]) for row in rows.records if name in row["scores"]]
        means = [(score["mean"], group) for score, group in scored if score["mean"] is not None]
        mean = clustered_mean([value for value, _ in means], [group for _, group in means])
        spread = Mean()
        for score, _ in scored:
            if score["sd"] is not None:
                spread.add(score["sd"])
        record: dict[str, Any] = dict.fromkeys(("mean", "se", "low", "high"))
        if mean is not None:
            estimate = mean.bounded_interval(
                min(ends[0], mean.mean), max(ends[1], mean.mean)
            )  # rounding may exceed the range
            record |= {"mean": round_figure(mean.mean), "se": round_figure(mean.se)}
            record |= {"low": round_figure(estimate.low), "high": round_figure(estimate.high)}
        return record | {
            "n": len(means),
            "unscored": len(rows.records) - len(means),
            "spread": round_figure(spread.mean),
        }


class FusionAggregate(RunAggregate[JudgeScores]):
    """The judges of a run; `task` and `plan` come from the manifest."""

    fields = (
        *("scenario", "seed", "tier", "mode", "predictions", "models", "dataset", "pack"),
        *("task", "plan", "assistants"),
    )

    def __init__(self, manifest: dict[str, Any], task: TaskFile, plan: Plan | None) -> None:
        super().__init__(manifest, JudgeScores, JUDGE_SOURCE)
        self._task, self._plan = task, plan
        self._folder: Path | None = None
        self._with_times = False

    def beside(self, folder: Path) -> None:
        """Remember the folder, whose journal has the measured times."""
        self._folder = folder

    def add(self, key: str, result: Any) -> None:
        self.model_of(key).add(key, result)

    def in_brief(self, scores: JudgeScores) -> str:
        name = next(reversed(self._task.criteria))
        means = [record["scores"][name]["mean"] for _, record in scores.records if name in record["scores"]]
        numbers = [mean for mean in means if mean is not None]
        return f"{name} {sum(numbers) / len(numbers):.2f}" if numbers else ""

    def facts(self) -> dict[str, Any]:
        settings = self.manifest["settings"]
        return {"mode": settings["mode"], "predictions": settings["predictions"]}

    def figures(self, label: str, scores: JudgeScores) -> dict[str, Any]:
        manifest, criteria = self.manifest, self._task.criteria
        rows = scores.rows(manifest["assistants"])
        use = None if self._plan is None else self._plan.use
        gaps: dict[str, Tally] = {}
        for record in rows.records:
            for advice in record["assistants"]:
                if advice["value"] is None:
                    gaps.setdefault(advice["name"], Tally()).add(advice["problem"])
        return {
            "examples": len(rows.records),
            "failed": scores.failures.total,
            "repaired": sum(record["repaired"] for record in rows.records),
            "weighted": sum(record["weighted"] for record in rows.records),
            "stopped": scores.stops.to_dict(),
            "criteria": {name: scores.criterion(rows, name, scale.range) for name, scale in criteria.items()},
            "gaps": {name: tally.to_dict() for name, tally in sorted(gaps.items())},
            "agreement": agreement_by_criterion(rows, criteria, use, manifest["settings"]["folds"], manifest["seed"]),
            "assistant_agreement": assistant_agreement(rows, criteria, use),
            "variety": scores.variety.to_record(),
            **({"warnings": warnings} if (warnings := scores.warnings()) else {}),
            **scores.common_figures(self.prices(label)),
        }

    def report(self) -> dict[str, Any]:
        report = super().report()
        if not self._with_times or self._folder is None or not has_tables(RunFolder.open(self._folder).journal):
            return report
        keys = {label: [key for key, _ in scores.records] for label, scores in self.candidates.items()}
        return report | {"timing": measured_seconds(self._folder, keys)}

    def tables(self) -> list[Table]:
        report = self.report()
        tables = [self._scores(report), self._spreads(report), *self._agreement(report)]
        tables += [*self._assistant_agreement(report), self._timing(report)]
        return [*tables, self._gaps(report), *common_tables(report)]

    def _scores(self, report: dict[str, Any]) -> Table:
        criteria = self._task.criteria
        rows = []
        for label, record in report["candidates"].items():
            row = [
                label,
                f"{record['examples']:,}",
                *(mean_and_interval(record["criteria"][name], 2) for name in criteria),
            ]
            unscored = sum(criterion["unscored"] for criterion in record["criteria"].values())
            rows.append([*row, f"{unscored:,}", f"{record['repaired']:,}", f"{record['failed']:,}"])
        header = [JUDGE_SOURCE, "examples", *map(_with_range, criteria.items()), "unscored", "unreadable", "failed"]
        mode = f"mode {report['mode']}, {report['predictions']} predictions"
        origin = f"seed {report['seed']}, {tier_name(report['tier'])}"
        title = f"{self._task.name} on {report['dataset']['name']}, {mode}, {origin}"
        return (title, header, rows)

    def _spreads(self, report: dict[str, Any]) -> Table:
        criteria = list(self._task.criteria)
        rows = [
            [label, *(number(record["criteria"][name]["spread"], 3) for name in criteria)]
            for label, record in report["candidates"].items()
            if any(record["criteria"][name]["spread"] is not None for name in criteria)
        ]
        return ("Spread of an example's predictions (standard deviation)", [JUDGE_SOURCE, *criteria], rows)

    def _agreement(self, report: dict[str, Any]) -> list[Table]:
        by_judge = {label: record["agreement"] for label, record in report["candidates"].items() if record["agreement"]}
        names = [
            name for name in self._task.criteria if any(name in by_criterion for by_criterion in by_judge.values())
        ]
        tables: list[Table] = []
        for coefficient, title in _COEFFICIENTS:
            rows = []
            for label, by_criterion in by_judge.items():
                for source in dict.fromkeys(source for record in by_criterion.values() for source in record["sources"]):
                    figures = [
                        by_criterion[name]["sources"].get(source) if name in by_criterion else None for name in names
                    ]
                    cells = [_coefficient_cell(record, coefficient) for record in figures]
                    rows.append([label, source, *cells])
            if any(cell != DASH for row in rows for cell in row[2:]):
                tables.append((f"Agreement with human ratings: {title}", [JUDGE_SOURCE, "source", *names], rows))
        return tables

    def _assistant_agreement(self, report: dict[str, Any]) -> list[Table]:
        """Return the agreement of judges with assistants; a star marks the assistants that the plan names."""
        by_judge = {label: record["assistant_agreement"] for label, record in report["candidates"].items()}
        names, mark = list(self._task.criteria), " (*: named by the plan)" if self._plan is not None else ""
        tables: list[Table] = []
        for coefficient, title in _COEFFICIENTS:
            rows = []
            for label, by_criterion in by_judge.items():
                for assistant in dict.fromkeys(name for record in by_criterion.values() for name in record):
                    figures = [by_criterion.get(name, {}).get(assistant) for name in names]
                    cells = [
                        _coefficient_cell(record, coefficient) + ("*" if record and record["in_plan"] else "")
                        for record in figures
                    ]
                    rows.append([label, assistant, *cells])
            if any(not cell.startswith(DASH) for row in rows for cell in row[2:]):
                tables.append(
                    (f"Agreement with the assistants: {title}{mark}", [JUDGE_SOURCE, "assistant", *names], rows)
                )
        return tables

    def add_times(self) -> None:
        self._with_times = True

    def _timing(self, report: dict[str, Any]) -> Table:
        rows = []
        for label, record in report.get("timing", {}).items():
            for kind, seconds in record.items():
                if seconds["n"]:
                    times = [number(seconds[name], 3) for name in ("mean", "median")]
                    rows.append([label, kind, *times, f"{seconds['n']:,}"])
        return ("Measured seconds per example", [JUDGE_SOURCE, "step", "mean", "median", "examples"], rows)

    def _gaps(self, report: dict[str, Any]) -> Table:
        rows = [
            [label, name, f"{count:,}", problem]
            for label, record in report["candidates"].items()
            for name, problems in record["gaps"].items()
            for problem, count in problems.items()
        ]
        return ("Missing assistant results", [JUDGE_SOURCE, "assistant", "examples", "reason"], rows)


def _with_range(entry: tuple[str, Criterion]) -> str:
    name, criterion = entry
    low, high = criterion.range
    return f"{name} ({low:g}–{high:g})"


def _coefficient_cell(record: dict[str, Any] | None, coefficient: str) -> str:
    if record is None:
        return DASH
    if coefficient == "system_kendall":
        return number(record[coefficient], 3)
    return number((record["items"][coefficient] or {}).get("value"), 3)
