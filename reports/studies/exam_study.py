"""Study of two adaptive runs with the same candidates: one estimates static accuracy, the other the score.

A study of full runs compares means, which adaptive runs do not have. This one compares the model-based estimates of
their reports, and lets the system of the scores judge them (`SystemStudy.judge_exams`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from viva.engine.errors import ConfigurationError
from viva.engine.run_folder import RunFolder
from viva.orchestration.launch import recorded_results
from viva.scenarios.contract import study_of
from viva.scenarios.registry import get_scenario
from viva.scoring.correlation import ModelScores
from viva.sweeps.sweep_folder import is_sweep

from ..tables import Table, interval, p_value, percent, signed

_PAIR = "expected one adaptive run that estimates accuracy (viva run probe) and one that estimates a score"


def are_exams(folders: Sequence[Path]) -> bool:
    """Return True if two folders are adaptive runs, one of them of static accuracy, so that `ExamStudy` reads them."""
    if len(folders) != 2 or any(map(is_sweep, folders)):
        return False
    runs = [RunFolder.open(folder) for folder in folders]
    return all(run.manifest.get("bank") is not None for run in runs) and sum(map(_is_static, runs)) == 1


def _is_static(run: RunFolder) -> bool:
    return study_of(get_scenario(run.manifest["scenario"])).static is not None


class ExamStudy:
    """Study of an adaptive run of probes and an adaptive run of conversations, in any order.

    Raises:
        ConfigurationError: The runs are no such pair, or on different datasets.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        runs = [RunFolder.open(folder) for folder in folders]
        static = [run for run in runs if _is_static(run)]
        others = [run for run in runs if run not in static]
        if len(static) != 1 or len(others) != 1:
            names = ", ".join(f"{run.path} ({run.manifest['scenario']})" for run in runs)
            raise ConfigurationError(f"{names}: {_PAIR}")
        datasets = [run.manifest["dataset"] for run in (*static, *others)]
        if datasets[0]["digest"] != datasets[1]["digest"]:
            names = " and ".join(f"{record['name']} ({record['digest'][:6]})" for record in datasets)
            raise ConfigurationError(f"{_PAIR}, on one dataset; these are on {names}")
        self._dataset = str(datasets[0]["name"])
        self._study = study_of(get_scenario(others[0].manifest["scenario"]))
        self._reports: list[Mapping[str, Any]] = [recorded_results(run).report() for run in (*static, *others)]
        self._report: dict[str, Any] | None = None

    def report(self) -> dict[str, Any]:
        """Return the estimates of each candidate of both runs, and the verdicts, as plain data."""
        if self._report is None:
            self._report = self._compute()
        return self._report

    def _compute(self) -> dict[str, Any]:
        accuracies, scores = (report["candidates"] for report in self._reports)
        labels = [label for label in accuracies if label in scores]
        estimates = {label: [own[label]["adaptive"] for own in (accuracies, scores)] for label in labels}
        estimates = {
            label: own
            for label, own in estimates.items()
            if all(part["model_based"]["value"] is not None for part in own)
        }
        figures, answered = [], {}
        for label, own in estimates.items():
            x, y = (part["model_based"] for part in own)
            figures.append(ModelScores(label, self._dataset, x["value"], y["value"], x["se"], y["se"]))
            answered[label] = min(part["asked"] - part["without_score"] for part in own)
        banks = [report["adaptive"]["bank"] for report in self._reports]
        verdicts = self._study.judge_exams(figures, answered) if all(bank["calibrated"] for bank in banks) else None
        return {
            "dataset": self._dataset,
            "banks": {"accuracy": banks[0], "score": banks[1]},
            "candidates": {
                label: {"accuracy": own[0], "score": own[1]} for label, own in estimates.items()
            },
            "missing": sorted({*accuracies, *scores}.difference(estimates)),
            "verdicts": verdicts,
        }  # fmt: skip

    def tables(self) -> list[Table]:
        """Return the table of both estimates with the verdicts."""
        report = self.report()
        judged = (report["verdicts"] or {}).get("candidates") or [
            {"candidate": label} for label in report["candidates"]
        ]
        rows = []
        for record in judged:
            own = report["candidates"][record["candidate"]]
            row = [record["candidate"], record.get("verdict", "not_tested").replace("_", " ")]
            for name in ("accuracy", "score"):
                mark = " (contradicted)" if own[name]["disagree"] else ""
                row += [str(own[name]["asked"]), interval(own[name]["model_based"]) + mark]
            row += [signed(record.get("distance")), p_value(record.get("p")), percent(record.get("power"))]
            rows.append(row)
        header = ["candidate", "verdict", "items", "accuracy", "items", "score", "distance", "corrected p", "power"]
        title = f"Adaptive exams on {report['dataset']}, model-based estimates with 95% intervals"
        line = (report["verdicts"] or {}).get("line")
        if line is not None:
            sign = "-" if line["slope"] < 0 else "+"
            title += f"; line: score = {line['intercept']:.1f} {sign} {abs(line['slope']):.2f} × accuracy"
        return [(title, header, rows)]

    def sentences(self) -> list[str]:
        """Return the verdicts in words, with what they require."""
        report = self.report()
        sentences = []
        if report["missing"]:
            sentences.append(f"Without an estimate in both runs: {', '.join(report['missing'])}.")
        contradicted = [
            label for label, own in report["candidates"].items() if any(part["disagree"] for part in own.values())
        ]
        if contradicted:
            sentences.append(
                f"The banks do not describe {', '.join(contradicted)}: a model-based estimate lies outside the "
                "assumption-free interval, so do not rely on these verdicts."
            )
        if report["verdicts"] is not None:
            return [*sentences, *report["verdicts"]["sentences"], report["verdicts"]["rule"]]
        names = [bank["name"] for bank in report["banks"].values() if not bank["calibrated"]]
        if names:
            sentences.append(
                f"No verdicts: the error of estimates is unknown, as {' and '.join(names)} is not calibrated."
            )
        return sentences
