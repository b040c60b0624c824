"""The report: scores by criterion and judge, and, where people have rated the examples, how each source goes with them.

What never belongs here: formulas (``scoring``), and which sources there are (``sources``).
"""

from __future__ import annotations

from typing import Any

from viva.reports.failed import failed_table
from viva.reports.figures import rounded
from viva.reports.irregular import Irregular, add_irregular, irregular_of, irregular_record
from viva.reports.text import DASH, Table, number, ranged
from viva.reports.usage import add_usage, usage_of, usage_table
from viva.scoring.clusters import clustered_mean
from viva.scoring.failures import Failures
from viva.scoring.stream import Mean, Tally

from ..models import label_of, role_prices
from .plan import Plan
from .sources import JUDGE, Rows, of_all
from .task_file import Criterion, TaskFile


class JudgedExamples:
    """One judge's examples, in any order."""

    def __init__(self) -> None:
        self.records: list[tuple[str, dict[str, Any]]] = []
        self.failures, self.stops = Failures(), Tally()
        self.usage: dict[str, list[int]] = {}
        self.irregular: Irregular = {}

    def add(self, key: str, record: dict[str, Any]) -> None:
        """One example's record."""
        self.records.append((key, record))
        if "stopped" in record:
            self.stops.add(record["stopped"])
        add_usage(self.usage, record["usage"])
        add_irregular(self.irregular, record.get("irregular", {}))

    def rows(self, assistants: list[dict[str, Any]]) -> Rows:
        """The records in the order of their keys."""
        return Rows([record for _, record in sorted(self.records, key=lambda one: one[0])], assistants)

    def criterion(self, rows: Rows, name: str, ends: tuple[float, float]) -> dict[str, Any]:
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
            estimate = mean.within(min(ends[0], mean.mean), max(ends[1], mean.mean))  # it may be beyond by rounding
            found |= {"mean": rounded(mean.mean), "se": rounded(mean.se)}
            found |= {"low": rounded(estimate.low), "high": rounded(estimate.high)}
        return found | {
            "n": len(given),
            "unscored": len(rows.records) - len(given),
            "spread": rounded(spread.mean),
        }


class FusionAggregate:
    """All judges of a run. ``task`` and ``plan`` are those of the manifest."""

    def __init__(self, manifest: dict[str, Any], task: TaskFile, plan: Plan | None) -> None:
        self._manifest, self._task, self._plan = manifest, task, plan
        self.candidates = {label: JudgedExamples() for label in manifest["models"][JUDGE]}

    def add(self, key: str, result: Any) -> None:
        self.candidates[result["judge"]].add(key, result)

    def add_failure(self, key: str, error: dict[str, Any]) -> None:
        self.candidates[label_of(key, list(self.candidates))].failures.add(error)

    def headline(self) -> str:
        name = next(reversed(self._task.criteria))
        parts = []
        for label, one in self.candidates.items():
            means = [record["scores"][name]["mean"] for _, record in one.records if name in record["scores"]]
            held = [mean for mean in means if mean is not None]
            parts += [f"{label} {name} {sum(held) / len(held):.2f}"] if held else []
        return "  ".join(parts[:4]) + (f"  +{len(parts) - 4} more" if len(parts) > 4 else "")

    def report(self) -> dict[str, Any]:
        manifest = self._manifest
        settings = manifest["settings"]
        return {
            "scenario": manifest["scenario"],
            "seed": manifest["seed"],
            "tier": manifest["tier"],
            "mode": settings["mode"],
            "predictions": settings["predictions"],
            "models": manifest["models"],
            "dataset": manifest["dataset"],
            "pack": manifest["pack"],
            "task": manifest["task"],
            "plan": manifest["plan"],
            "assistants": manifest["assistants"],
            "candidates": {label: self._judge(label, one) for label, one in self.candidates.items()},
        }

    def _judge(self, label: str, one: JudgedExamples) -> dict[str, Any]:
        manifest, criteria = self._manifest, self._task.criteria
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
            "agreement": of_all(rows, criteria, use, manifest["settings"]["folds"], manifest["seed"]),
            **one.failures.to_record(),
            "irregular": irregular_record(one.irregular),
            "usage": usage_of(one.usage, role_prices(manifest, label)),
        }

    def tables(self) -> list[Table]:
        report = self.report()
        tables = [self._scores(report), self._spreads(report), *self._agreement(report)]
        return [*tables, self._gaps(report), failed_table(report), irregular_of(report), usage_table(report)]

    def _scores(self, report: dict[str, Any]) -> Table:
        criteria = self._task.criteria
        rows = []
        for label, one in report["candidates"].items():
            row = [label, f"{one['examples']:,}", *(ranged(one["criteria"][name], 2) for name in criteria)]
            unscored = sum(found["unscored"] for found in one["criteria"].values())
            rows.append([*row, f"{unscored:,}", f"{one['repaired']:,}", f"{one['failed']:,}"])
        header = [JUDGE, "examples", *map(_with_range, criteria.items()), "unscored", "unreadable", "failed"]
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
        return ("Spread of an example's predictions (standard deviation)", [JUDGE, *criteria], rows)

    def _agreement(self, report: dict[str, Any]) -> list[Table]:
        every = {label: one["agreement"] for label, one in report["candidates"].items() if one["agreement"]}
        names = [name for name in self._task.criteria if any(name in found for found in every.values())]
        tables: list[Table] = []
        for coefficient, what in (("spearman", "Spearman by example"), ("system_kendall", "Kendall over systems")):
            rows = []
            for label, found in every.items():
                for source in dict.fromkeys(source for one in found.values() for source in one["sources"]):
                    kept = [found[name]["sources"].get(source) if name in found else None for name in names]
                    cells = [_cell(one, coefficient) for one in kept]
                    rows.append([label, source, *cells])
            if any(cell != DASH for row in rows for cell in row[2:]):
                tables.append((f"Agreement with people: {what}", [JUDGE, "source", *names], rows))
        return tables

    def _gaps(self, report: dict[str, Any]) -> Table:
        rows = [
            [label, name, f"{count:,}", problem]
            for label, one in report["candidates"].items()
            for name, problems in one["gaps"].items()
            for problem, count in problems.items()
        ]
        return ("Where assistants had no number", [JUDGE, "assistant", "examples", "reason"], rows)


def _with_range(named: tuple[str, Criterion]) -> str:
    name, criterion = named
    low, high = criterion.range
    return f"{name} ({low:g}–{high:g})"


def _cell(found: dict[str, Any] | None, coefficient: str) -> str:
    if found is None:
        return DASH
    if coefficient == "system_kendall":
        return number(found[coefficient], 3)
    return number((found["items"][coefficient] or {}).get("value"), 3)
