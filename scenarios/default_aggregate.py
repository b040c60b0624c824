"""Default aggregate of a scenario: means and counts of the values that its conversations return."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from viva.engine.errors import did_you_mean
from viva.reports.tables import Table, mean_and_interval, number
from viva.scoring.aggregates import Tally
from viva.scoring.clustered_means import ClusteredMean, clustered_mean
from viva.scoring.intervals import Estimate

from .contract import SCORE, Ranges, Role
from .models import lineups
from .run_aggregate import ModelResults, RunAggregate, common_tables, tier_name

TRUTH_RANGE = (0.0, 1.0)


class CandidateMeasures(ModelResults):
    """The values returned by the conversations of one compared model. The order of adding them means nothing."""

    def __init__(self, ranges: Ranges | None = None) -> None:
        super().__init__()
        self.ranges = ranges or {}
        self.conversations = 0
        self.values: dict[str, list[tuple[str, float]]] = {}  # by measure: pairs (task, value)
        self._truths: dict[str, bool] = {}  # by measure: True if all values are booleans
        self.unscored = Tally()
        self.counts: dict[str, Tally] = {}

    def add(self, record: Mapping[str, Any]) -> None:
        """Add a conversation's record, as `FunctionScenario` makes it."""
        self.conversations += 1
        stopped = "stopped" in record and record["value"] is None  # it ended without a value
        for name, value in [] if stopped else named_values(record["value"]).items():
            if value is None:
                self.unscored.add(name)
            elif isinstance(value, str):
                self.counts.setdefault(name, Tally()).add(value)
            else:
                self.values.setdefault(name, []).append((record["task"], float(value)))
                self._truths[name] = self._truths.get(name, True) and isinstance(value, bool)
        if "stopped" in record:
            self.stops.add(f"{record['stopped']['by']}: {record['stopped']['reason']}")
        self.add_usage(record)

    def mean(self, name: str) -> ClusteredMean | None:
        """Return the mean of a measure; conversations about one task are a cluster."""
        values = self.values.get(name, [])
        return clustered_mean([value for _, value in values], [task for task, _ in values])

    def interval(self, name: str, mean: ClusteredMean) -> Estimate | None:
        """Return the mean of a measure with its interval, None if unknown."""
        declared = TRUTH_RANGE if self._truths[name] else self.ranges.get(name)
        return measure_interval(mean, [value for _, value in self.values[name]], declared)

    def to_dict(self, prices: Mapping[str, list[float] | None]) -> dict[str, Any]:
        """Return all figures as plain data."""
        names = sorted(self.values.keys() | self.unscored.counts.keys())
        return {
            "conversations": self.conversations,
            "failed": self.failures.total,
            "measures": {name: self._measure(name) for name in names},
            "counts": {name: tally.to_dict() for name, tally in sorted(self.counts.items())},
            "stopped": self.stops.to_dict(),
            **self.common_figures(prices),
        }

    def _measure(self, name: str) -> dict[str, Any]:
        mean = self.mean(name)
        ends = None if mean is None else self.interval(name, mean)
        return estimate_record(mean, ends) | {"unscored": self.unscored.counts.get(name, 0)}


class Measures(RunAggregate[CandidateMeasures]):
    """The compared models of a run, or the lineups of models that meet.

    `roles` are the scenario's, `unit` is the unit of the score.
    """

    def __init__(
        self, manifest: dict[str, Any], roles: Sequence[Role], ranges: Ranges | None = None, unit: str = ""
    ) -> None:
        super().__init__(manifest, lambda: CandidateMeasures(ranges), lineups(roles, manifest["models"]))
        self._ranges, self._unit = ranges or {}, unit
        compared = [role.name for role in roles if role.many]
        self._header = compared[0] if len(compared) == 1 else "pairing"

    def add(self, key: str, result: Any) -> None:
        self.model_of(key).add(result)

    def in_brief(self, measures: CandidateMeasures) -> str:
        mean = measures.mean(SCORE if SCORE in measures.values else next(iter(sorted(measures.values)), ""))
        return "" if mean is None else number(mean.mean, 2)

    def figures(self, label: str, measures: CandidateMeasures) -> dict[str, Any]:
        return measures.to_dict(self.prices(label))

    def report(self) -> dict[str, Any]:
        return super().report() | ({"unit": self._unit} if self._unit else {})

    def tables(self) -> list[Table]:
        report = self.report()
        return [self._main(report), *self._counts(report), self._stops(report), *common_tables(report, self._header)]

    def notes(self) -> list[str]:
        """Return notes on declared measures that no conversation returned, probably because of another name."""
        returned: Counter[str] = Counter()
        for measures in self.candidates.values():
            returned.update({name: len(values) for name, values in measures.values.items()})
            returned.update(measures.unscored.counts)
            returned.update({name: sum(tally.counts.values()) for name, tally in measures.counts.items()})
        notes = []
        has_declared = any(name in returned for name in self._ranges)
        for name in [name for name in self._ranges if name not in returned]:
            near = next((other for other in sorted(returned)
                         if other not in self._ranges and did_you_mean(other, [name])), None)  # fmt: skip
            if near is not None:
                end = f"{returned[near]:,} returned '{near}'{did_you_mean(near, [name])}"
            elif returned and not has_declared:
                end = f"they returned: {', '.join(sorted(returned))}"
            else:
                continue
            notes.append(f"no conversation returned '{name}', whose range the scenario declares (score=…); {end}")
        return notes

    def score_header(self) -> str:
        """Return the header of scores, with their unit."""
        return f"{SCORE} ({self._unit})" if self._unit else SCORE

    def _main(self, report: dict[str, Any]) -> Table:
        names = sorted({name for record in report["candidates"].values() for name in record["measures"]})
        names.sort(key=lambda name: name != SCORE)
        unscored = any(measure["unscored"] for record in report["candidates"].values()
                       for measure in record["measures"].values())  # fmt: skip
        rows = []
        for label, record in report["candidates"].items():
            row = [label, f"{record['conversations']:,}"]
            row += [mean_and_interval(record["measures"].get(name), 2) for name in names]
            row += [f"{sum(measure['unscored'] for measure in record['measures'].values()):,}"] if unscored else []
            rows.append([*row, f"{record['failed']:,}"])
        titles = [self.score_header() if name == SCORE else name for name in names]
        header = [self._header, "conversations", *titles, *(["unscored"] if unscored else []), "failed"]
        title = (
            f"{report['scenario']} on {report['dataset']['name']}, seed {report['seed']}, {tier_name(report['tier'])}"
        )
        return (title, header, rows)

    def _counts(self, report: dict[str, Any]) -> list[Table]:
        tables = []
        for name in sorted({name for record in report["candidates"].values() for name in record["counts"]}):
            counts = {label: record["counts"].get(name, {}) for label, record in report["candidates"].items()}
            values = sorted({value for record in counts.values() for value in record})
            rows = [[label, *(f"{record.get(value, 0):,}" for value in values)] for label, record in counts.items()]
            tables.append((f"Values of {name}, number of conversations", [self._header, *values], rows))
        return tables

    def _stops(self, report: dict[str, Any]) -> Table:
        rows = [
            [label, reason, f"{count:,}"]
            for label, record in report["candidates"].items()
            for reason, count in record["stopped"].items()
        ]
        return ("Early stops", [self._header, "reason", "conversations"], rows)


def estimate_record(mean: ClusteredMean | None, ends: Estimate | None) -> dict[str, Any]:
    """Return a mean with its interval as plain data, None if unknown."""
    record: dict[str, Any] = dict.fromkeys(("mean", "se", "low", "high"))
    if mean is not None:
        record |= {"mean": _rounded(mean.mean), "se": _rounded(mean.se)}
    if ends is not None:
        record |= {"low": _rounded(ends.low), "high": _rounded(ends.high)}
    return record | {"n": 0 if mean is None else mean.n}


def measure_interval(
    mean: ClusteredMean, values: Sequence[float], declared: tuple[float, float] | None, *, rate: bool = False
) -> Estimate | None:
    """Return the mean of a measure with its interval, None if unknown.

    Without a `declared` range, values that are all 0 or 1 are a proportion, and non-negative whole numbers are counts.
    A declared range that a value exceeds is ignored: the run may be older than the declaration. `rate`: values at the
    ends of the range are a proportion, as they always are if it is from 0 to 1.
    """
    distinct = set(values)
    low, high = declared or (-math.inf, math.inf)
    if not low <= min(distinct) <= max(distinct) <= high:
        low, high = -math.inf, math.inf
    if math.isinf(high - low) and distinct == set(TRUTH_RANGE):
        low, high = TRUTH_RANGE
    elif math.isinf(low) and min(distinct) >= 0.0 and all(value.is_integer() for value in distinct):
        low = 0.0
    return mean.ends(low, high, rate=(rate or (low, high) == TRUTH_RANGE) and distinct <= {low, high})


def named_values(value: Any) -> dict[str, float | bool | str | None]:
    """Return the named values of a conversation's result; a lone number is the score.

    Values that do not fit into a table are left out; numbers that are not finite are unscored.
    """
    values = value if isinstance(value, Mapping) else {SCORE: value}
    result: dict[str, float | bool | str | None] = {}
    for name, entry in values.items():
        if entry is None or isinstance(entry, bool | str | int):
            result[str(name)] = entry
        elif isinstance(entry, float):
            result[str(name)] = entry if math.isfinite(entry) else None
    return result


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
