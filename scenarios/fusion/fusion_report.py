"""The Fusion-Eval report: scores by criterion and judge, and how each source of scores agrees with human ratings.

Sources are the judge, each assistant, and both joined by AVG, LLMSel and CorrW.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from viva.agents.assistants.assistant import to_unit_scale
from viva.reports.figures import correlation_record, round_figure
from viva.reports.tables import DASH, Table, mean_and_interval, number
from viva.scoring.aggregates import Mean, Tally
from viva.scoring.clustered_means import clustered_mean
from viva.scoring.correlation import correlation, kendall
from viva.scoring.juries import ScoreColumn, assign_folds, average_columns, average_out_of_fold, correlation_weights

from ..run_aggregate import ModelResults, RunAggregate, common_tables
from .judge_plan import Plan
from .task_files import Criterion, TaskFile

JUDGE_SOURCE = "judge"
IN_FOLD_SUFFIX = ", in fold"


@dataclass(slots=True)
class ExampleRows:
    """One judge's examples in a fixed order: records as ``protocol`` makes them."""

    records: list[dict[str, Any]]
    assistants: list[dict[str, Any]]

    def judge(self, name: str, criterion: Criterion) -> list[float | None]:
        means = [one["scores"].get(name, {}).get("mean") for one in self.records]
        return [None if mean is None else criterion.share(mean) for mean in means]

    def assistant(self, place: int) -> list[float | None]:
        facts = self.assistants[place]
        low, high = facts["range"]
        values = [one["assistants"][place]["value"] if one["assistants"] else None for one in self.records]
        return [None if value is None else to_unit_scale(low, high, facts["better"], value) for value in values]

    def ratings(self, name: str) -> list[float | None]:
        return [one["ratings"].get(name) for one in self.records]


def source_columns(
    rows: ExampleRows, name: str, criterion: Criterion, use: Sequence[str] | None, folds: int, seed: int
) -> tuple[dict[str, list[float | None]], dict[str, float]]:
    """The columns by source, and the CorrW weights fitted on all examples.

    ``use``: the assistants that the plan names for this criterion; None where there is no plan. CorrW's own columns are
    fitted out of fold; beside each stands the same fitted on the very examples it scores, which is too good.
    """
    judge, ratings = rows.judge(name, criterion), rows.ratings(name)
    names = [one["name"] for one in rows.assistants]
    assistants = dict(zip(names, map(rows.assistant, range(len(names))), strict=True))
    found: dict[str, list[float | None]] = {JUDGE_SOURCE: judge, **assistants}
    weights: dict[str, float] = {}
    if not names:
        return found, weights
    places = assign_folds([one["group"] for one in rows.records], folds, seed)
    fitted = len(set(places)) > 1 and any(rating is not None for rating in ratings)
    for title, more in (("AE", {}), ("AE, judge", {JUDGE_SOURCE: judge})):
        found[f"AVG({title})"] = average_columns([*assistants.values(), *more.values()])
        if use:
            found[f"LLMSel({title})"] = average_columns([*(assistants[one] for one in use), *more.values()])
        if fitted:
            columns: list[ScoreColumn] = [*assistants.values(), *more.values()]
            found[f"CorrW({title})"] = average_out_of_fold(columns, ratings, places)
            whole = correlation_weights(columns, ratings)
            found[f"CorrW({title}){IN_FOLD_SUFFIX}"] = average_columns(columns, whole)
            weights |= {} if more else dict(zip(names, whole, strict=True))
    return found, weights


def agreement(column: ScoreColumn, ratings: ScoreColumn, systems: Sequence[str]) -> dict[str, Any] | None:
    """How a source's scores go with human ratings: item by item, and over systems' means (Kendall's tau-b). None where
    no example has both.
    """
    pairs = [
        (one, other, system)
        for one, other, system in zip(column, ratings, systems, strict=True)
        if one is not None and other is not None
    ]
    if not pairs:
        return None
    items = correlation([one for one, _, _ in pairs], [other for _, other, _ in pairs])
    means: dict[str, tuple[list[float], list[float]]] = {}
    for one, other, system in pairs:
        if system:
            scores, rated = means.setdefault(system, ([], []))
            scores.append(one)
            rated.append(other)
    tau = kendall(
        [_rounded_mean(scores) for scores, _ in means.values()], [_rounded_mean(rated) for _, rated in means.values()]
    )
    return {
        "items": correlation_record(items),
        "systems": len(means),
        "system_kendall": None if tau is None else round_figure(tau.value),
    }


def _rounded_mean(values: Sequence[float]) -> float:
    # Rounded: equal means of equal numbers in another order are ties.
    return round(sum(values) / len(values), 12)


def agreement_by_criterion(
    rows: ExampleRows,
    criteria: Mapping[str, Criterion],
    use: Mapping[str, Sequence[str]] | None,
    folds: int,
    seed: int,
) -> dict[str, Any]:
    """By criterion that people have rated: the agreement of each source, and the weights of CorrW."""
    systems = [one["system"] for one in rows.records]
    found: dict[str, Any] = {}
    for name, criterion in criteria.items():
        ratings = rows.ratings(name)
        if all(rating is None for rating in ratings):
            continue
        columns, weights = source_columns(
            rows, name, criterion, None if use is None else use.get(name, ()), folds, seed
        )
        found[name] = {
            "sources": {source: agreement(column, ratings, systems) for source, column in columns.items()},
            "weights": {one: round_figure(weight) for one, weight in weights.items()},
        }
    return found


class JudgeScores(ModelResults):
    """One judge's examples, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[tuple[str, dict[str, Any]]] = []

    def add(self, key: str, record: dict[str, Any]) -> None:
        self.records.append((key, record))
        if "stopped" in record:
            self.stops.add(record["stopped"])
        self.add_usage(record)

    def rows(self, assistants: list[dict[str, Any]]) -> ExampleRows:
        return ExampleRows([record for _, record in sorted(self.records, key=lambda one: one[0])], assistants)

    def criterion(self, rows: ExampleRows, name: str, ends: tuple[float, float]) -> dict[str, Any]:
        """The mean over examples with an interval between the ends of the criterion's range, examples of one group
        being a cluster; ``spread`` is the mean standard deviation of an example's predictions.
        """
        scored = [(one["scores"][name], one["group"]) for one in rows.records if name in one["scores"]]
        given = [(score["mean"], group) for score, group in scored if score["mean"] is not None]
        mean = clustered_mean([value for value, _ in given], [group for _, group in given])
        spread = Mean()
        for score, _ in scored:
            if score["sd"] is not None:
                spread.add(score["sd"])
        found: dict[str, Any] = dict.fromkeys(("mean", "se", "low", "high"))
        if mean is not None:
            estimate = mean.bounded_interval(
                min(ends[0], mean.mean), max(ends[1], mean.mean)
            )  # it may be beyond by rounding
            found |= {"mean": round_figure(mean.mean), "se": round_figure(mean.se)}
            found |= {"low": round_figure(estimate.low), "high": round_figure(estimate.high)}
        return found | {
            "n": len(given),
            "unscored": len(rows.records) - len(given),
            "spread": round_figure(spread.mean),
        }


class FusionAggregate(RunAggregate[JudgeScores]):
    """All judges of a run. ``task`` and ``plan`` are those of the manifest."""

    fields = (
        *("scenario", "seed", "tier", "mode", "predictions", "models", "dataset", "pack"),
        *("task", "plan", "assistants"),
    )

    def __init__(self, manifest: dict[str, Any], task: TaskFile, plan: Plan | None) -> None:
        super().__init__(manifest, JudgeScores, JUDGE_SOURCE)
        self._task, self._plan = task, plan

    def add(self, key: str, result: Any) -> None:
        self.model_of(key).add(key, result)

    def in_brief(self, one: JudgeScores) -> str:
        name = next(reversed(self._task.criteria))
        means = [record["scores"][name]["mean"] for _, record in one.records if name in record["scores"]]
        known = [mean for mean in means if mean is not None]
        return f"{name} {sum(known) / len(known):.2f}" if known else ""

    def facts(self) -> dict[str, Any]:
        settings = self.manifest["settings"]
        return {"mode": settings["mode"], "predictions": settings["predictions"]}

    def figures(self, label: str, one: JudgeScores) -> dict[str, Any]:
        manifest, criteria = self.manifest, self._task.criteria
        rows = one.rows(manifest["assistants"])
        use = None if self._plan is None else self._plan.use
        gaps: dict[str, Tally] = {}
        for record in rows.records:
            for advice in record["assistants"]:
                if advice["value"] is None:
                    gaps.setdefault(advice["name"], Tally()).add(advice["problem"])
        return {
            "examples": len(rows.records),
            "failed": one.failures.total,
            "repaired": sum(record["repaired"] for record in rows.records),
            "weighted": sum(record["weighted"] for record in rows.records),
            "stopped": one.stops.to_dict(),
            "criteria": {name: one.criterion(rows, name, scale.range) for name, scale in criteria.items()},
            "gaps": {name: tally.to_dict() for name, tally in sorted(gaps.items())},
            "agreement": agreement_by_criterion(rows, criteria, use, manifest["settings"]["folds"], manifest["seed"]),
            **one.common_figures(self.prices(label)),
        }

    def tables(self) -> list[Table]:
        report = self.report()
        tables = [self._scores(report), self._spreads(report), *self._agreement(report)]
        return [*tables, self._gaps(report), *common_tables(report)]

    def _scores(self, report: dict[str, Any]) -> Table:
        criteria = self._task.criteria
        rows = []
        for label, one in report["candidates"].items():
            row = [label, f"{one['examples']:,}", *(mean_and_interval(one["criteria"][name], 2) for name in criteria)]
            unscored = sum(found["unscored"] for found in one["criteria"].values())
            rows.append([*row, f"{unscored:,}", f"{one['repaired']:,}", f"{one['failed']:,}"])
        header = [JUDGE_SOURCE, "examples", *map(_with_range, criteria.items()), "unscored", "unreadable", "failed"]
        mode = f"mode {report['mode']}, {report['predictions']} predictions"
        title = (
            f"{self._task.name} on {report['dataset']['name']}, {mode}, seed {report['seed']}, tier {report['tier']}"
        )
        return (title, header, rows)

    def _spreads(self, report: dict[str, Any]) -> Table:
        criteria = list(self._task.criteria)
        rows = [
            [label, *(number(one["criteria"][name]["spread"], 3) for name in criteria)]
            for label, one in report["candidates"].items()
            if any(one["criteria"][name]["spread"] is not None for name in criteria)
        ]
        return ("Spread of an example's predictions (standard deviation)", [JUDGE_SOURCE, *criteria], rows)

    def _agreement(self, report: dict[str, Any]) -> list[Table]:
        every = {label: one["agreement"] for label, one in report["candidates"].items() if one["agreement"]}
        names = [name for name in self._task.criteria if any(name in found for found in every.values())]
        tables: list[Table] = []
        for coefficient, what in (("spearman", "Spearman by example"), ("system_kendall", "Kendall over systems")):
            rows = []
            for label, found in every.items():
                for source in dict.fromkeys(source for one in found.values() for source in one["sources"]):
                    kept = [found[name]["sources"].get(source) if name in found else None for name in names]
                    cells = [_coefficient_cell(one, coefficient) for one in kept]
                    rows.append([label, source, *cells])
            if any(cell != DASH for row in rows for cell in row[2:]):
                tables.append((f"Agreement with people: {what}", [JUDGE_SOURCE, "source", *names], rows))
        return tables

    def _gaps(self, report: dict[str, Any]) -> Table:
        rows = [
            [label, name, f"{count:,}", problem]
            for label, one in report["candidates"].items()
            for name, problems in one["gaps"].items()
            for problem, count in problems.items()
        ]
        return ("Where assistants had no number", [JUDGE_SOURCE, "assistant", "examples", "reason"], rows)


def _with_range(named: tuple[str, Criterion]) -> str:
    name, criterion = named
    low, high = criterion.range
    return f"{name} ({low:g}–{high:g})"


def _coefficient_cell(found: dict[str, Any] | None, coefficient: str) -> str:
    if found is None:
        return DASH
    if coefficient == "system_kendall":
        return number(found[coefficient], 3)
    return number((found["items"][coefficient] or {}).get("value"), 3)
