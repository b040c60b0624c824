"""What the lab's experiment found: results by candidate over seeds, beside the truth that only the lab knows.

The first table has the shape of KIEval's Table 3; then come the scorers, the cheaters beside their clean twins, and the
regression of interview score on static accuracy with the points that lie off it (KIEval, Figure 4).
What never belongs here: running anything (``experiment``), formulas (``scoring``), drawing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from viva.engine.errors import ConfigurationError
from viva.engine.folder import RunFolder
from viva.orchestration.launch import recorded_results
from viva.scenarios.kieval.score import ASPECTS, SCORERS
from viva.scenarios.kieval.study.correlations import known_figures, known_line
from viva.scoring.correlation import Figures, Fit
from viva.scoring.regression import pearson
from viva.study.study import Study

from .experiment import ExaminedModel, Experiment
from .pairs import ByItem, by_item, difference
from .world import World

Table = tuple[str, list[str], list[list[str]]]
_DETECTOR = "min_k_20"  # k = 20, as Shi et al. 2024 recommend
_LINE = ("slope", "intercept", "residuals", "deviations", "threshold", "below", "above")
_NORMAL = 1.959964  # half a 95% interval in standard errors


class Findings:
    """Everything about the seeds that have run. ``report`` is plain data, the same for the same runs.

    Static accuracy is by options' words (``accuracy``), and that of the interviews' first answers (``first_answer``);
    the line and the gains are by options' words.
    """

    def __init__(self, experiment: Experiment, seeds: Sequence[int]) -> None:
        """:raises ConfigurationError: there are no seeds, or one has not run."""
        if not seeds:
            raise ConfigurationError("seeds: none are given; name one at least")
        self.experiment, self.seeds = experiment, list(seeds)
        self._by_item: list[ByItem] = []
        self.interviews = self.calls = self.tokens = self.failed = 0
        for seed in seeds:
            self._read(seed)
        folders = experiment.run_folders(seeds)
        self._studies = {scorer: Study(folders, scorer).report() for scorer in SCORERS}
        self._pooled = {
            scorer: {row["candidate"]: row for row in report["pooled"]} for scorer, report in self._studies.items()
        }

    def report(self) -> dict[str, Any]:
        """The candidates' figures with their errors, the correlations, the twins, and the regression."""
        candidates = {
            one.label: {"share": one.share, "twin": one.twin} | self._summary(one.label)
            for one in self.experiment.candidates
        }
        return {
            "world": self.experiment.world,
            "seeds": self.seeds,
            "items": self.experiment.items,
            "rounds": self.experiment.rounds,
            "shots": self.experiment.shots,
            "interviews": self.interviews,
            "failed": self.failed,
            "calls": self.calls,
            "candidate_tokens": self.tokens,
            "candidates": candidates,
            "correlation": {scorer: self._correlation(candidates, f"kieval_{scorer}") for scorer in SCORERS},
            "twins": self._twins(candidates),
            "regression": self._regression(),
        }

    def tables(self) -> list[Table]:
        """The report as titled tables: title, header, rows."""
        report = self.report()
        return [self._main(report), self._scorers(report), self._beside_twins(report), self._line(report)]

    # -- reading ----------------------------------------------------------------------------------------------------

    def _read(self, seed: int) -> None:
        probe, interviews = (self._results(seed, scenario) for scenario in ("probe", "kieval"))
        for candidate in self.experiment.candidates:
            one = interviews[candidate.label]
            self.interviews += one["interviews"]
            self.failed += one["failed"] + probe[candidate.label]["failed"]
            self.calls += sum(used["calls"] for used in one["usage"].values())
            used = one["usage"].get("candidate", {"prompt_tokens": 0, "completion_tokens": 0})
            self.tokens += used["prompt_tokens"] + used["completion_tokens"]
        runs = [RunFolder.open(self.experiment.run_folder(seed, scenario)) for scenario in ("probe", "kieval")]
        self._by_item.append(by_item(World(self.experiment.world), *runs))

    def _results(self, seed: int, scenario: str) -> dict[str, Any]:
        report = recorded_results(RunFolder.open(self.experiment.run_folder(seed, scenario))).report()
        candidates: dict[str, Any] = report["candidates"]
        return candidates

    def _summary(self, label: str) -> dict[str, Any]:
        """A candidate's figures over all seeds, with the errors that the study has: minerals are the clusters."""
        pooled = {scorer: rows[label] for scorer, rows in self._pooled.items()}
        one = pooled["official"]
        probe = one["probe"] or {}
        detector = (probe.get("detectors") or {}).get(_DETECTOR)
        figures: dict[str, Any] = {
            "accuracy": (probe.get("accuracy") or {}).get("text"),
            "loss_test": probe.get("loss"),
            "loss_fresh": probe.get("loss_against"),
            "loss_gap": _as_mean(probe.get("loss_gap")),
            "auc": _as_mean(detector),
            **{f"kieval_{scorer}": row["score"] for scorer, row in pooled.items()},
            # Of the interview's own first answer; "accuracy" is the probe's, an aspect of that name is the verdicts'.
            "first_answer": one["accuracy"],
            "rounds": one["rounds"],
            **{f"aspect_{aspect}": one["aspects"][aspect] for aspect in ASPECTS[:-1]},
        }
        return {
            name: {"mean": told["mean"], "se": told["se"], "n": told.get("n", 0)}
            if told
            else {"mean": None, "se": None, "n": 0}
            for name, told in figures.items()
        }

    # -- what follows -----------------------------------------------------------------------------------------------

    def _clean(self) -> list[ExaminedModel]:
        return [one for one in self.experiment.candidates if one.clean]

    def _correlation(self, candidates: dict[str, Any], figure: str) -> dict[str, float] | None:
        """Pearson's r of true knowledge and a figure over the clean candidates."""
        known = [(one.share, candidates[one.label][figure]["mean"]) for one in self._clean()]
        pairs = [(share, value) for share, value in known if share is not None and value is not None]
        found = pearson([share for share, _ in pairs], [value for _, value in pairs])
        return None if found is None else {"r": round(found[0], 6), "p": round(found[1], 6), "n": len(pairs)}

    def _twins(self, candidates: dict[str, Any]) -> dict[str, Any]:
        """Each cheater less its clean twin, item by item: what cheating gained in accuracy and in interviews."""
        found = {}
        for one in self.experiment.candidates:
            if one.twin is None or one.twin not in candidates:
                continue
            gains = {}
            for name in self._by_item[0]:
                mine, others = (
                    [seed[name].get(label, {}) for seed in self._by_item] for label in (one.label, one.twin)
                )
                mean = difference(mine, others)
                gains[name] = {
                    "mean": _rounded(mean.mean if mean else None),
                    "se": _rounded(mean.se if mean else None),
                    "n": mean.clusters if mean else 0,
                }
            found[one.label] = {"twin": one.twin, "gain": gains, "auc": candidates[one.label]["auc"]}
        return found

    def _regression(self) -> dict[str, Any] | None:
        """The study's line of score on accuracy, by options' words."""
        [line] = self._correlations()["lines"].values() or [None]
        if line is None or self._correlations()["accuracy"] != "text":
            return None
        tests = {name: {"p": one["p"], "power": one["power"]} for name, one in line["tests"].items()}
        return {name: line[name] for name in _LINE} | {"tests": tests}

    def _correlations(self) -> dict[str, Any]:
        found: dict[str, Any] = self._studies["official"]["correlations"]
        return found

    def figures(self) -> list[Figures]:
        """Accuracy and interview score of each candidate that has both, with their errors."""
        return known_figures(self._correlations())

    def lines(self) -> dict[str, Fit | None]:
        """The line through them, by the name of the dataset; none through fewer than three."""
        return {name: known_line(line) for name, line in self._correlations()["lines"].items()}

    # -- tables -----------------------------------------------------------------------------------------------------

    def _main(self, report: dict[str, Any]) -> Table:
        header = ["candidate", "knows", "accuracy", "±", "first", "loss fresh", "loss test", "Δ", "AUC"]
        header += ["acc", "log", "rel", "coh", "con", "KIEval", "±", "rounds"]
        rows = []
        for label, one in report["candidates"].items():
            row = [label, "–" if one["share"] is None else f"{100 * one['share']:.0f}%", *_both(one["accuracy"], 1)]
            row.append(_number(one["first_answer"]["mean"], 1))
            row += [_number(one[name]["mean"], 2) for name in ("loss_fresh", "loss_test", "loss_gap", "auc")]
            row += [_number(one[f"aspect_{aspect}"]["mean"], 1) for aspect in ASPECTS[:-1]]
            rows.append([*row, *_both(one["kieval_official"], 1), _number(one["rounds"]["mean"], 2)])
        seeds = f"seed {self.seeds[0]}" if len(self.seeds) == 1 else f"{len(self.seeds)} seeds, mean ± standard error"
        return (f"The lab, world {report['world']}: {report['items']} items, {seeds}", header, rows)

    def _scorers(self, report: dict[str, Any]) -> Table:
        rows = []
        for scorer in SCORERS:
            means = [one[f"kieval_{scorer}"]["mean"] for one in report["candidates"].values()]
            found = report["correlation"][scorer]
            rows.append([scorer, *(_number(mean, 1) for mean in means), _number(found and found["r"], 4)])
        header = ["scorer", *report["candidates"], "r with knowledge, clean ones"]
        return ("KIEval overall by scorer", header, rows)

    def _beside_twins(self, report: dict[str, Any]) -> Table:
        rows = []
        for label, one in report["twins"].items():
            gains = [_signed(one["gain"][name]) for name in ("accuracy", "kieval_official")]
            rows.append([label, one["twin"], *gains, _number(one["auc"]["mean"], 3)])
        header = ["cheater", "clean twin", "accuracy gained", "KIEval gained", "AUC of Min-K%"]
        return ("Cheaters beside their twins", header, rows)

    def _line(self, report: dict[str, Any]) -> Table:
        line = report["regression"]
        header = ["candidate", "distance from line", "deviation (spreads)", "verdict"]
        if line is None:
            return ("KIEval on accuracy", header, [])
        rows = []
        for label, residual in line["residuals"].items():
            told = "below" if label in line["below"] else "above" if label in line["above"] else "on the line"
            rows.append([label, f"{residual:+.1f}", _number(line["deviations"][label], 1), told])
        sign = "-" if line["slope"] < 0 else "+"
        return (f"KIEval = {line['intercept']:.1f} {sign} {abs(line['slope']):.2f} accuracy", header, rows)


def _as_mean(told: dict[str, Any] | None) -> dict[str, Any] | None:
    """An estimate as a mean with the standard error that its 95% interval comes from, were it a normal one."""
    return told and {"mean": told["value"], "se": _rounded((told["high"] - told["low"]) / (2 * _NORMAL)), "n": 0}


def _rounded(value: float | None) -> float | None:
    # Six decimals: far below any error bar, and the same text on every platform.
    return None if value is None else round(value, 6)


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _both(told: dict[str, Any], digits: int) -> tuple[str, str]:
    return _number(told["mean"], digits), _number(told["se"], digits)


def _signed(told: dict[str, Any]) -> str:
    if told["mean"] is None:
        return "–"
    return f"{told['mean']:+.1f}" + ("" if told["se"] is None else f" ± {told['se']:.1f}")
