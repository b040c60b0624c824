"""The report of dialogs with a played user: success and its reliability, by candidate, as plain data and as tables.

What never belongs here: what a success is (``users``), statistics themselves (``scoring``).
"""

from __future__ import annotations

from typing import Any

from viva.reports.failed import failed_table
from viva.reports.irregular import Irregular, add_irregular, irregular_of, irregular_record
from viva.reports.text import Table, interval, number
from viva.reports.usage import add_usage, usage_of, usage_table
from viva.scoring.clusters import clustered_mean
from viva.scoring.failures import Failures
from viva.scoring.repeats import pass_hat_k
from viva.scoring.stream import Mean, Tally

from ..models import label_of, role_prices


class CandidateDialogs:
    """One candidate's dialogs, in any order."""

    def __init__(self) -> None:
        self.trials: dict[str, list[int]] = {}  # by task: tried, succeeded
        self.ends, self.faults, self.failures = Tally(), Tally(), Failures()
        self.calls, self.exchanges = Mean(), Mean()
        self.usage: dict[str, list[int]] = {}
        self.irregular: Irregular = {}

    def add(self, result: dict[str, Any]) -> None:
        """One dialog's record."""
        trial = self.trials.setdefault(result["item"], [0, 0])
        trial[0] += 1
        trial[1] += result["success"]
        self.ends.add(result["ended_by"])
        for fault, there in (
            ("expected call missing", result["missing"]),
            ("forbidden call made", result["forbidden"]),
            ("state not reached", not result["state_reached"]),
        ):
            if there:
                self.faults.add(fault)
        self.calls.add(len(result["calls"]))
        self.exchanges.add(result["exchanges"])
        add_usage(self.usage, result["usage"])
        add_irregular(self.irregular, result.get("irregular", {}))

    def to_dict(self, prices: dict[str, list[float] | None], repeats: int) -> dict[str, Any]:
        """Everything as plain data."""
        trials = [(tried, succeeded) for tried, succeeded in self.trials.values()]
        tried, succeeded = sum(n for n, _ in trials), sum(c for _, c in trials)
        outcomes = [(float(at < won), task) for task, (held, won) in self.trials.items() for at in range(held)]
        mean = clustered_mean([value for value, _ in outcomes], [task for _, task in outcomes])
        share = mean and mean.within(0.0, 1.0, rate=True)
        return {
            "tasks": len(trials),
            "talks": tried,
            "succeeded": succeeded,
            "success": None
            if share is None
            else {name: rounded(100 * getattr(share, name)) for name in ("value", "low", "high")},
            "pass_hat": {str(k): _mean(pass_hat_k(trials, k)) for k in range(1, repeats + 1)},
            "faults": self.faults.to_dict(),
            "ends": self.ends.to_dict(),
            "calls": _mean(self.calls),
            "exchanges": _mean(self.exchanges),
            "failed": self.failures.total,
            **self.failures.to_record(),
            "irregular": irregular_record(self.irregular),
            "usage": usage_of(self.usage, prices),
        }


class UserAggregate:
    """All candidates of a run in mode user."""

    def __init__(self, manifest: dict[str, Any]) -> None:
        self._manifest = manifest
        self.candidates = {label: CandidateDialogs() for label in manifest["models"]["candidate"]}

    def add(self, key: str, result: Any) -> None:
        self.candidates[result["candidate"]].add(result)

    def add_failure(self, key: str, error: dict[str, Any]) -> None:
        self.candidates[label_of(key, list(self.candidates))].failures.add(error)

    def headline(self) -> str:
        return headline({
            label: (sum(c for _, c in one.trials.values()), sum(n for n, _ in one.trials.values()))
            for label, one in self.candidates.items()
        })  # fmt: skip

    def report(self) -> dict[str, Any]:
        manifest, repeats = self._manifest, self._manifest["settings"]["repeats"]
        return {
            "scenario": "functionchat",
            "mode": "user",
            "seed": manifest["seed"],
            "tier": manifest["tier"],
            "repeats": repeats,
            "models": manifest["models"],
            "dataset": manifest["dataset"],
            "pack": manifest["pack"],
            "candidates": {
                label: one.to_dict(role_prices(manifest, label), repeats) for label, one in self.candidates.items()
            },
        }

    def tables(self) -> list[Table]:
        report = self.report()
        return [self._main(report), self._ends(report), failed_table(report), irregular_of(report), usage_table(report)]

    def _main(self, report: dict[str, Any]) -> Table:
        ks = _shown_ks(report["repeats"])
        header = ["candidate", "tasks", "talks", "success", *(f"pass^{k}" for k in ks), "calls", "exchanges", "failed"]
        rows = []
        for label, one in report["candidates"].items():
            row = [label, str(one["tasks"]), str(one["talks"]), interval(one["success"])]
            row += [number(one["pass_hat"][str(k)]["mean"], 3) for k in ks]
            row += [number(one[name]["mean"]) for name in ("calls", "exchanges")]
            rows.append([*row, str(one["failed"])])
        title = f"Talks with a played user on {report['dataset']['name']}, {report['repeats']} times each, "
        return (title + f"seed {report['seed']}, tier {report['tier']}", header, rows)

    def _ends(self, report: dict[str, Any]) -> Table:
        candidates = report["candidates"]
        every: dict[str, dict[str, int]] = {label: {} for label in candidates}
        for part, prefix in (("faults", ""), ("ends", "ended by "), ("failures", "failed: ")):
            for name in sorted({name for one in candidates.values() for name in one[part]}):
                for label, one in candidates.items():
                    every[label][prefix + name] = one[part].get(name, 0)
        names = list(next(iter(every.values())))
        rows = [[label, *map(str, one.values())] for label, one in every.items()]
        return ("What went wrong, and how talks ended", ["candidate", *names], rows)


def _shown_ks(repeats: int) -> list[int]:
    """The ks that a table has room for: all up to 4, then powers of two, and the last."""
    return [k for k in range(1, repeats + 1) if k <= 4 or k == repeats or k.bit_count() == 1]


def headline(counts: dict[str, tuple[int, int]]) -> str:
    """The shares of (passed, of) by label in a few words, for the progress line."""
    parts = [f"{label} {100 * part / whole:.1f}%" for label, (part, whole) in counts.items() if whole]
    return "  ".join(parts[:4]) + (f"  +{len(parts) - 4} more" if len(parts) > 4 else "")


def rounded(value: float | None) -> float | None:
    """Six decimals: far below any error bar, and the same text on every platform."""
    return None if value is None else round(value, 6)


def _mean(mean: Mean) -> dict[str, Any]:
    return {"mean": rounded(mean.mean), "se": rounded(mean.standard_error), "n": mean.n}
