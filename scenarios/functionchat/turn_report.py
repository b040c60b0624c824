"""The report of judged turns: the paper's tables by candidate, as judged and as corrected, as plain data and as text.

What never belongs here: figures themselves (``figures``), what a correction is (``review``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from viva.reports.failed import failed_table
from viva.reports.irregular import Irregular, add_irregular, irregular_of, irregular_record
from viva.reports.text import Table, percent
from viva.reports.usage import add_usage, usage_of, usage_table
from viva.scoring.failures import Failures
from viva.scoring.stream import Tally

from ..models import label_of, role_prices
from .figures import (
    GradedTurn,
    category_figures,
    category_table,
    corrected,
    dialog_figures,
    dialog_table,
    judge_errors,
    judge_table,
    singlecall_figures,
    singlecall_table,
)
from .review import Correction, disputed, recorded, standing
from .taxonomy import TAGS
from .turns import OUTPUT_TYPES
from .user_report import headline, rounded


class CandidateTurns:
    """One candidate's turns, in any order."""

    def __init__(self) -> None:
        self.outcomes: list[GradedTurn] = []
        self.tags: dict[str, Tally] = {kind: Tally() for kind in OUTPUT_TYPES}
        self.unscored = self.judged = self.parse_failures = 0
        self.stops, self.failures = Tally(), Failures()
        self.usage: dict[str, list[int]] = {}
        self.irregular: Irregular = {}

    def add(self, key: str, result: dict[str, Any]) -> None:
        """One turn's record."""
        judge, passed = result["judge"], result["passed"]
        cluster = result.get("cluster") or result["item"].rpartition("/")[0]
        kind, part, category = result["type"], result["tool_list"], result.get("category")
        self.outcomes.append(
            GradedTurn(key, cluster, result["subset"], kind, part, passed, judge is not None, category)
        )
        self.unscored += passed is None
        if judge is not None:
            self.judged += 1
            self.parse_failures += judge["failures"]
        if passed is False and result["grade"] is not None:
            for tag in result["grade"]["tags"]:
                self.tags[kind].add(tag)
        if "stopped" in result:
            self.stops.add(result["stopped"])
        add_usage(self.usage, result["usage"])
        add_irregular(self.irregular, result.get("irregular", {}))

    def to_dict(self, prices: dict[str, list[float] | None], corrections: dict[str, Correction]) -> dict[str, Any]:
        """Everything as plain data; the corrected figures only where there are corrections of this candidate's."""
        outcomes = sorted(self.outcomes, key=lambda one: one.key)
        turns, texts = len(outcomes), self.judged + self.parse_failures
        texts -= sum(one.judged and one.passed is None for one in outcomes)  # the second failure was the last text
        data: dict[str, Any] = {
            "turns": turns,
            "decided_by_rule": turns - self.judged - sum(self.stops.counts.values()),
            "judged": self.judged,
            "unscored": self.unscored,
            "unscored_rate": _share(self.unscored, turns),
            "parse_failures": self.parse_failures,
            "parse_failure_rate": _share(self.parse_failures, texts),
            "stopped": self.stops.to_dict(),
            "failed": self.failures.total,
            **self.failures.to_record(),
            "irregular": irregular_record(self.irregular),
            "singlecall": singlecall_figures(outcomes),
            "dialog": dialog_figures(outcomes),
            "tags": {
                kind: {name: tally.counts[name] for name in TAGS if name in tally.counts}
                for kind, tally in self.tags.items()
            },
            "usage": usage_of(self.usage, prices),
        }
        data |= _by_category(outcomes)
        if any(one.key in corrections for one in outcomes):
            mended = corrected(outcomes, corrections)
            data["corrected"] = {"singlecall": singlecall_figures(mended), "dialog": dialog_figures(mended)}
            data["corrected"] |= _by_category(mended)
        return data


class TurnAggregate:
    """All candidates of a run in mode turns."""

    def __init__(self, manifest: dict[str, Any]) -> None:
        self._manifest = manifest
        self._corrections: list[Correction] = []
        self.candidates = {label: CandidateTurns() for label in manifest["models"]["candidate"]}

    def beside(self, folder: Path) -> None:
        """Take in what reviewers have corrected in a run's folder.

        :raises DatasetError: the file with corrections cannot be read.
        """
        self._corrections = recorded(folder)

    def add(self, key: str, result: Any) -> None:
        self.candidates[result["candidate"]].add(key, result)

    def add_failure(self, key: str, error: dict[str, Any]) -> None:
        self.candidates[label_of(key, list(self.candidates))].failures.add(error)

    def headline(self) -> str:
        return headline({
            label: (sum(out.passed is True for out in one.outcomes), len(one.outcomes) - one.unscored)
            for label, one in self.candidates.items()
        })  # fmt: skip

    def report(self) -> dict[str, Any]:
        manifest = self._manifest
        counting = standing(self._corrections)
        report = {
            "scenario": "functionchat",
            "mode": "turns",
            "seed": manifest["seed"],
            "tier": manifest["tier"],
            "repeats": manifest["settings"]["repeats"],
            "models": manifest["models"],
            "dataset": manifest["dataset"],
            "pack": manifest["pack"],
            "candidates": {
                label: one.to_dict(role_prices(manifest, label), counting) for label, one in self.candidates.items()
            },
        }
        if self._corrections:
            every = sorted((out for one in self.candidates.values() for out in one.outcomes), key=lambda out: out.key)
            report["corrections"] = {
                "outputs": len(counting),
                "reviewers": sorted({one.reviewer for one in self._corrections}),
                "disputed": disputed(self._corrections),
                "judge_errors": judge_errors(every, counting),
            }
        return report

    def tables(self) -> list[Table]:
        report = self.report()
        of = f"{report['dataset']['name']}, seed {report['seed']}, tier {report['tier']}"
        told = {"": report["candidates"]}
        if "corrections" in report:
            mended = {label: one.get("corrected", one) for label, one in report["candidates"].items()}
            told = {", as judged": report["candidates"], ", as corrected": mended}
        tables = []
        for how, candidates in told.items():
            single = {label: one["singlecall"] for label, one in candidates.items()}
            tables.append(singlecall_table(f"Single calls passed, by tool list: {of}{how}", single))
        for how, candidates in told.items():
            dialogs = {label: one["dialog"] for label, one in candidates.items()}
            tables.append(dialog_table(f"Pass rates in dialogs, by type: {of}{how}", dialogs))
        for subset in sorted({name for one in report["candidates"].values() for name in one.get("categories", ())}):
            for how, candidates in told.items():
                rows = {label: one["categories"][subset] for label, one in candidates.items()
                        if subset in one.get("categories", ())}  # fmt: skip
                tables.append(category_table(f"Passed in {subset}, by category: {of}{how}", rows))
        if "corrections" in report:
            tables.append(judge_table("Wrong verdicts, as far as reviewed", report["corrections"]["judge_errors"]))
        tables += [self._tags(report), self._grading(report), failed_table(report), _left_out(report["dataset"])]
        return [*tables, irregular_of(report), usage_table(report)]

    def _tags(self, report: dict[str, Any]) -> Table:
        """What was wrong with, or struck the eye in, outputs that failed."""
        candidates = report["candidates"]
        rows = [
            [kind, name, *(str(one["tags"][kind].get(name, 0)) for one in candidates.values()), TAGS[name].meaning]
            for kind in OUTPUT_TYPES
            for name in TAGS
            if any(name in one["tags"][kind] for one in candidates.values())
        ]
        return ("What was seen in answers that failed, by type of turn", ["type", "tag", *candidates, "meaning"], rows)

    def _grading(self, report: dict[str, Any]) -> Table:
        rows = []
        for label, one in report["candidates"].items():
            row = [label, *(str(one[name]) for name in ("turns", "decided_by_rule", "judged"))]
            row += [percent(one["unscored_rate"]), percent(one["parse_failure_rate"])]
            rows.append([*row, str(sum(one["stopped"].values())), str(one["failed"])])
        header = ["candidate", "turns", "by rule", "judged", "unscored", "unparsed", "stopped", "failed"]
        return ("How turns were graded", header, rows)


def _by_category(outcomes: list[GradedTurn]) -> dict[str, Any]:
    """The figures by category, where any turn has one."""
    figures = category_figures(outcomes)
    return {"categories": figures} if figures else {}


def _left_out(dataset: dict[str, Any]) -> Table:
    """What stands beside or in the files and was not read."""
    rows = [[name, "", "no known file of the benchmark"] for name in dataset.get("unread_files", ())]
    skipped = dataset.get("skipped_lines", {"count": 0, "first": []})
    rows += [[one["file"], str(one["line"]), one["problem"]] for one in skipped["first"]]
    more = skipped["count"] - len(skipped["first"])
    if more:
        rows.append([f"{more} more lines", "", ""])
    return ("Left out of the data", ["file", "line", "why"], rows)


def _share(part: int, whole: int) -> float | None:
    return rounded(part / whole) if whole else None
