"""The KIEval report: results by candidate, as plain data and as the paper's tables.

What never belongs here: statistics themselves (``scoring``) and drawing.
"""

from __future__ import annotations

from typing import Any

from viva.reports.failed import failed_table
from viva.reports.irregular import Table, irregular_table
from viva.reports.usage import usage_table

from ..models import label_of, recorded_price
from .interviews import MOST_UNANSWERED, InterviewAggregate
from .score import Interview, Scorer


class KievalAggregate:
    """All candidates of a run. Results come in any order; the report is the same."""

    def __init__(self, scorer: Scorer, manifest: dict[str, Any]) -> None:
        self.scorer, self._manifest = scorer, manifest
        self.candidates = {label: InterviewAggregate(scorer) for label in manifest["models"]["candidate"]}

    def add(self, key: str, result: Any) -> None:
        interview = Interview.from_record(result)
        self.candidates[interview.candidate].add(interview)

    def add_failure(self, key: str, error: dict[str, Any]) -> None:
        self.candidates[label_of(key, list(self.candidates))].add_failure(error)

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
        failed, irregular = failed_table(report), self._irregular(report)
        return [self._main(report), self._reasons(report), failed, irregular, usage_table(_with_discarded(report))]

    def _main(self, report: dict[str, Any]) -> Table:
        header = ["candidate", "n", "accuracy", "KIEval", "±", "acc", "log", "rel", "coh", "con", "rounds"]
        header += ["unanswered", "unscored", "unparsed", "failed"]
        free = report["dataset"].get("free", 0)
        known = not free or free < report["dataset"]["items"]  # of some first answers, whether they are right
        rows = []
        for label, one in report["candidates"].items():
            row = [label, str(one["scored"]), _number(one["accuracy"]["mean"]), _number(one["score"]["mean"])]
            row += [_number(one["score"]["se"]), *(_number(aspect["mean"]) for aspect in one["aspects"].values())]
            row += [_number(one["rounds"]["mean"], 2), _percent(one["unanswered_rate"])]
            row += [_percent(one["unscored_rate"]), _percent(one["parse_failure_rate"]), str(one["failed"])]
            rows.append(row if known else _without_static(row, header))
        skipped = report["dataset"]["skipped"]
        dataset = report["dataset"]["name"] + (f" ({skipped} bad lines skipped)" if skipped else "")
        title = f"KIEval on {dataset}, scorer {report['scorer']}, seed {report['seed']}, tier {report['tier']}"
        if free:
            few = f"accuracy leaves out {free:,} questions without choices"
            title += f"; {few}" if known else "; questions without choices have no accuracy"
        silent = [label for label, one in report["candidates"].items() if _often_unanswered(one)]
        if silent:
            title += f"; more than {100 * MOST_UNANSWERED:.0f}% of first answers name no choice: {', '.join(silent)}"
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


def _number(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _often_unanswered(one: dict[str, Any]) -> bool:
    """Whether the accuracy says more of the form of answers than of what is known."""
    return (one["unanswered_rate"] or 0.0) > MOST_UNANSWERED


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}%"
