"""Experiment of the lab: the same candidates probed and interviewed on the invented world, and the findings.

Each seed is one probe run and one KIEval run in separate folders (`seed-1/probe`, `seed-1/kieval`), made by the
same scenarios that users run; a second start resumes the first.

The findings compare each candidate's results over all seeds with the truth, which only the lab knows: a table in the
shape of KIEval's Table 3, the scorers, the cheaters and their clean twins, and the regression of interview score on
static accuracy with the points that lie off it (KIEval, Figure 4). Items about one mineral lead to questions about the
same facts, and other seeds repeat the same items, so minerals are the clusters of all errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from viva.engine.backends.base import ModelSpec
from viva.engine.clock import Clock
from viva.engine.errors import ConfigurationError
from viva.engine.journal_reader import History
from viva.engine.run_folder import RunFolder
from viva.orchestration.launch import Launch, continued_run, recorded_results
from viva.reports.studies.study import Study
from viva.scenarios.kieval.kieval_settings import KievalSettings
from viva.scenarios.kieval.score import ASPECT_TITLE, ASPECTS, SCORERS, Interview, Scorer
from viva.scenarios.kieval.study.correlations import known_figures, known_line
from viva.scenarios.probes.probe import ProbeSettings
from viva.scoring.clustered_means import ClusteredMean, clustered_mean
from viva.scoring.correlation import DatasetLine, ModelScores, pearson

from .corpus import INTERVIEW_PACK, PROBE_PACK
from .facts import ExaminedWorld
from .family import FAMILY, MODELS, model_file, read_card
from .interview import question_in
from .world import Split, World, write_benchmark

_REPLY_TOKENS = 64  # twice the length of trained replies


@dataclass(frozen=True, slots=True)
class ExaminedModel:
    """Model with known training: the `share` of the world's facts it was taught, None if unknown.

    `twin`: the label of the clean candidate with otherwise the same training, if this model is a cheater.
    """

    model: str
    share: float | None = None
    twin: str | None = None

    @property
    def label(self) -> str:
        return ModelSpec.parse(self.model).label

    @property
    def is_clean(self) -> bool:
        """True if the model is known to have seen nothing of the benchmark."""
        return self.share is not None and self.twin is None


def trained_family(world: int = 1, folder: Path = MODELS) -> list[ExaminedModel]:
    """Return the lab's trained models, shipped or from a folder that `viva lab build` has filled."""
    card = read_card(folder)
    if card is not None and card["world"] != world:
        raise ConfigurationError(
            f"{folder}: the models know world {card['world']}, not {world}; build models for world {world}"
        )
    return [
        ExaminedModel(
            f"llama:{model_file(member.name, folder)}?label={member.name}",
            member.share,
            member.twin if member.cheat else None,
        )
        for member in FAMILY
    ]


def ideal_family(world: int = 1) -> list[ExaminedModel]:
    """Return the same family without training: examinees that know exactly their share, and guess the rest."""
    saw = {None: "none", "sft": "answers", "pt": "texts"}
    return [
        ExaminedModel(
            f"oracle:{member.name}?world={world}&knows={member.share:g}&saw={saw[member.cheat]}",
            member.share,
            member.twin if member.cheat else None,
        )
        for member in FAMILY
    ]


@dataclass(frozen=True, slots=True)
class Experiment:
    """Settings of the experiment.

    `items`: number of interviews per candidate, about items drawn from the test split's 112; `probed`: number of items
    to probe in each of the test and the fresh split, None for all; `methods` are those of the probes.
    """

    candidates: Sequence[ExaminedModel]
    folder: Path
    world: int | Literal["real"] = 1
    items: int = 100
    rounds: int = 5
    shots: int = 0
    probed: int | None = None
    concurrency: int = 500
    methods: Sequence[str] = ("text", "loss")

    def launches(self, seed: int, clock: Clock | None = None) -> Iterator[Launch]:
        """Yield the runs of a seed, each prepared once the one before has ended.

        Raises:
            ConfigurationError: if a model's name is wrong, or a folder contains another experiment.
        """
        files = self._write_benchmark(self.folder / "benchmark")
        oracle = f"oracle:examiner?world={self.world}&seed={seed}"
        common = {
            "seed": seed,
            "concurrency": self.concurrency,
            "dataset": str(files["test"]),
            "candidate": [candidate.model for candidate in self.candidates],
        }
        probe: dict[str, Any] = {
            "against": str(files["fresh"]),
            "n": self.probed,
            "shots": self.shots,
            "shots_from": str(files["train"]) if self.shots else None,
        }
        yield continued_run(
            "probe",
            ProbeSettings(**common, **probe, **self._probe_settings()),
            self.run_folder(seed, "probe"),
            clock,
        )
        kieval: dict[str, Any] = {
            "n": self.items,
            "interactor": oracle,
            "evaluator": oracle,
            "rounds": self.rounds,
            "candidate_tokens": _REPLY_TOKENS,
        }
        yield continued_run(
            "kieval",
            KievalSettings(**common, **kieval, **self._interview_settings()),
            self.run_folder(seed, "kieval"),
            clock,
        )

    def examined_world(self) -> ExaminedWorld:
        return World(int(self.world))

    def _write_benchmark(self, folder: Path) -> dict[Split, Path]:
        return write_benchmark(World(int(self.world)), folder)

    def _probe_settings(self) -> dict[str, Any]:
        return {"method": list(self.methods), "against_method": list(self.methods), "pack": PROBE_PACK}

    def _interview_settings(self) -> dict[str, Any]:
        # The models are trained to continue from their own texts.
        return {"first_answer": "text", "pack": INTERVIEW_PACK}

    def run_folders(self, seeds: Sequence[int]) -> list[Path]:
        """Return the folders of these seeds' runs, interviews before probes."""
        return [self.run_folder(seed, scenario) for seed in seeds for scenario in ("kieval", "probe")]

    def run_folder(self, seed: int, scenario: str) -> Path:
        return self.folder / f"seed-{seed}" / scenario


# figure -> candidate -> (mineral, item) -> value
ByItem = dict[str, dict[str, dict[tuple[str, str], float]]]


def results_by_item(world: ExaminedWorld, probe: RunFolder, interviews: RunFolder) -> ByItem:
    """Return results in per cent by figure, candidate, and (mineral, item's id).

    Figures are the probe's `accuracy`, and each scorer's score as `kieval_…`. Failed items, and interviews without a
    score, are left out.
    """
    results: ByItem = {"accuracy": {}, **{f"kieval_{scorer}": {} for scorer in SCORERS}}
    for folder, read in ((probe, _probe_results), (interviews, _interview_results)):
        with History(folder.journal) as history:
            for ended in history.ended():
                if ended.failed:
                    continue
                question = question_in(world, ended.item["question"])
                key = (question.entity if question is not None else ended.item["id"], ended.item["id"])
                for figure, value in read(ended.result).items():
                    results[figure].setdefault(ended.result["candidate"], {})[key] = value
    return results


def paired_difference(
    seeds: Sequence[Mapping[tuple[str, str], float]], baselines: Sequence[Mapping[tuple[str, str], float]]
) -> ClusteredMean | None:
    """Return the mean of a candidate's results minus a baseline's on their common items, clustered by mineral.

    Both arguments have a mapping for each seed, in the same order: from (mineral, item) to the result.
    """
    pairs = [
        (mineral, mine[mineral, item] - theirs[mineral, item])
        for mine, theirs in zip(seeds, baselines, strict=True)
        for mineral, item in sorted(mine.keys() & theirs.keys())
    ]
    return clustered_mean([value for _, value in pairs], [mineral for mineral, _ in pairs])


def _probe_results(result: dict[str, object]) -> dict[str, float]:
    """Return whether the benchmark's item was answered right: by letter if that was probed, else by options' texts."""
    if result.get("second"):
        return {}
    record = result.get("letter") or result.get("text")
    return {"accuracy": 100.0 * bool(record["right"])} if isinstance(record, dict) else {}


def _interview_results(result: dict[str, object]) -> dict[str, float]:
    interview = Interview.from_record(result)
    scores = {f"kieval_{scorer}": Scorer(scorer).score(interview) for scorer in SCORERS}
    return {name: score for name, score in scores.items() if score is not None}


FindingsTable = tuple[str, list[str], list[list[str]]]
_DETECTOR_MEASURE = "min_k_20"  # k = 20, as recommended by Shi et al. 2024
_LINE_FIELDS = ("slope", "intercept", "residuals", "deviations", "threshold", "below", "above")
_NORMAL = 1.959964  # half-width of a 95% interval in standard errors


class Findings:
    """Findings of the seeds that have run. `report` is plain data, and equal for equal runs.

    Static accuracy is by options' texts (`accuracy`), or by the interviews' first answers (`first_answer`); the
    line and the gains use options' texts.
    """

    def __init__(self, experiment: Experiment, seeds: Sequence[int]) -> None:
        """Read the runs.

        Raises:
            ConfigurationError: if there are no seeds, or one has not run.
        """
        if not seeds:
            raise ConfigurationError("no seeds; name at least one")
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
        """Return the candidates' figures with their errors, the correlations, the twins, and the regression."""
        candidates = {
            candidate.label: {"share": candidate.share, "twin": candidate.twin} | self._summary(candidate.label)
            for candidate in self.experiment.candidates
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

    def tables(self) -> list[FindingsTable]:
        report = self.report()
        return [
            self._candidate_table(report),
            self._twin_table(report),
            self._probe_table(report),
            self._aspect_table(report),
            self._scorer_table(report),
        ]

    # -- reading ----------------------------------------------------------------------------------------------------

    def _read(self, seed: int) -> None:
        probe, interviews = (self._results(seed, scenario) for scenario in ("probe", "kieval"))
        for candidate in self.experiment.candidates:
            record = interviews[candidate.label]
            self.interviews += record["interviews"]
            self.failed += record["failed"] + probe[candidate.label]["failed"]
            self.calls += sum(used["calls"] for used in record["usage"].values())
            used = record["usage"].get("candidate", {"prompt_tokens": 0, "completion_tokens": 0})
            self.tokens += used["prompt_tokens"] + used["completion_tokens"]
        runs = [RunFolder.open(self.experiment.run_folder(seed, scenario)) for scenario in ("probe", "kieval")]
        self._by_item.append(results_by_item(self.experiment.examined_world(), *runs))

    def _results(self, seed: int, scenario: str) -> dict[str, Any]:
        report = recorded_results(RunFolder.open(self.experiment.run_folder(seed, scenario))).report()
        candidates: dict[str, Any] = report["candidates"]
        return candidates

    def _summary(self, label: str) -> dict[str, Any]:
        """Return a candidate's figures over all seeds, with the study's errors: minerals are the clusters."""
        pooled = {scorer: rows[label] for scorer, rows in self._pooled.items()}
        official = pooled["official"]
        probe = official["probe"] or {}
        detector = (probe.get("detectors") or {}).get(_DETECTOR_MEASURE)
        figures: dict[str, Any] = {
            "accuracy": (probe.get("accuracy") or {}).get("text"),
            "loss_test": probe.get("loss"),
            "loss_fresh": probe.get("loss_against"),
            "loss_gap": _as_mean(probe.get("loss_gap")),
            "auc": _as_mean(detector),
            **{f"kieval_{scorer}": row["score"] for scorer, row in pooled.items()},
            # The interview's first answer; "accuracy" is the probe's figure, and also an aspect of verdicts.
            "first_answer": official["accuracy"],
            "rounds": official["rounds"],
            **{f"aspect_{aspect}": official["aspects"][aspect] for aspect in ASPECTS[:-1]},
        }
        return {
            name: {"mean": figure["mean"], "se": figure["se"], "n": figure.get("n", 0)}
            if figure
            else {"mean": None, "se": None, "n": 0}
            for name, figure in figures.items()
        }

    # -- what follows -----------------------------------------------------------------------------------------------

    def _clean_candidates(self) -> list[ExaminedModel]:
        return [candidate for candidate in self.experiment.candidates if candidate.is_clean]

    def _correlation(self, candidates: dict[str, Any], figure: str) -> dict[str, float] | None:
        """Correlate true knowledge with a figure over the clean candidates (Pearson's r)."""
        points = [
            (candidate.share, candidates[candidate.label][figure]["mean"]) for candidate in self._clean_candidates()
        ]
        pairs = [(share, value) for share, value in points if share is not None and value is not None]
        result = pearson([share for share, _ in pairs], [value for _, value in pairs])
        return None if result is None else {"r": round(result[0], 6), "p": round(result[1], 6), "n": len(pairs)}

    def _twins(self, candidates: dict[str, Any]) -> dict[str, Any]:
        """Return each cheater's gain over its clean twin, item by item, in accuracy and in interviews."""
        twins = {}
        for candidate in self.experiment.candidates:
            if candidate.twin is None or candidate.twin not in candidates:
                continue
            gains = {}
            for name in self._by_item[0]:
                mine, theirs = (
                    [seed[name].get(label, {}) for seed in self._by_item] for label in (candidate.label, candidate.twin)
                )
                mean = paired_difference(mine, theirs)
                gains[name] = {
                    "mean": _round(mean.mean if mean else None),
                    "se": _round(mean.se if mean else None),
                    "n": mean.clusters if mean else 0,
                }
            twins[candidate.label] = {"twin": candidate.twin, "gain": gains, "auc": candidates[candidate.label]["auc"]}
        return twins

    def _regression(self) -> dict[str, Any] | None:
        """Return the study's line of score on accuracy by options' texts."""
        [line] = self._correlations()["lines"].values() or [None]
        if line is None or self._correlations()["accuracy"] != "text":
            return None
        tests = {name: {"p": test["p"], "power": test["power"]} for name, test in line["tests"].items()}
        return {name: line[name] for name in _LINE_FIELDS} | {"tests": tests}

    def _correlations(self) -> dict[str, Any]:
        correlations: dict[str, Any] = self._studies["official"]["correlations"]
        return correlations

    def figures(self) -> list[ModelScores]:
        """Return accuracy and interview score of each candidate that has both, with their errors."""
        return known_figures(self._correlations())

    def lines(self) -> dict[str, DatasetLine | None]:
        """Return the line through these figures by dataset; None for a dataset with fewer than three models."""
        return {name: known_line(line) for name, line in self._correlations()["lines"].items()}

    # -- tables -----------------------------------------------------------------------------------------------------

    def _candidate_table(self, report: dict[str, Any]) -> FindingsTable:
        line = report["regression"]
        rows = []
        for label, candidate in report["candidates"].items():
            taught = "–" if candidate["share"] is None else f"{100 * candidate['share']:.0f}%"
            row = [label, _position(line, label), taught]
            row += [_format_mean(candidate[name]) for name in ("accuracy", "kieval_official")]
            rows.append([*row, f"{line['residuals'][label]:+.1f}" if _position(line, label) != "–" else "–"])
        seeds = f"seed {self.seeds[0]}" if len(self.seeds) == 1 else f"{len(self.seeds)} seeds"
        title = f"The lab, world {report['world']}: {report['items']} items, {seeds}"
        if line is not None:
            sign = "-" if line["slope"] < 0 else "+"
            title += f"; line: interview = {line['intercept']:.1f} {sign} {abs(line['slope']):.2f} × accuracy"
        return (title, ["candidate", "verdict", "taught", "accuracy", "interview", "distance"], rows)

    def _twin_table(self, report: dict[str, Any]) -> FindingsTable:
        rows = []
        for label, twin in report["twins"].items():
            gains = [_format_mean(twin["gain"][name], "+") for name in ("accuracy", "kieval_official")]
            rows.append([label, twin["twin"], *gains, _format_number(twin["auc"]["mean"], 3)])
        header = ["cheater", "clean twin", "accuracy gain", "interview gain", "AUC of Min-K%"]
        return ("Cheaters and their clean twins", header, rows)

    def _probe_table(self, report: dict[str, Any]) -> FindingsTable:
        rows = []
        for label, candidate in report["candidates"].items():
            losses = [_format_number(candidate[f"loss_{name}"]["mean"], 2) for name in ("fresh", "test", "gap")]
            first, auc = candidate["first_answer"]["mean"], candidate["auc"]["mean"]
            rows.append([label, _format_number(first, 1), *losses, _format_number(auc, 2)])
        header = ["candidate", "first answer", "fresh loss", "test loss", "difference", "AUC"]
        title = "Written first answers (the accuracy above is of the likeliest options), losses, and AUC of Min-K%"
        return (title, header, rows)

    def _aspect_table(self, report: dict[str, Any]) -> FindingsTable:
        aspects = ASPECTS[:-1]
        rows = []
        for label, candidate in report["candidates"].items():
            means = [_format_number(candidate[f"aspect_{aspect}"]["mean"], 1) for aspect in aspects]
            rows.append([label, *means, _format_number(candidate["rounds"]["mean"], 2)])
        return (ASPECT_TITLE, ["candidate", *aspects, "rounds"], rows)

    def _scorer_table(self, report: dict[str, Any]) -> FindingsTable:
        rows = [
            [label, *(_format_number(candidate[f"kieval_{scorer}"]["mean"], 1) for scorer in SCORERS)]
            for label, candidate in report["candidates"].items()
        ]
        results = [report["correlation"][scorer] for scorer in SCORERS]
        rows.append(["r with knowledge", *(_format_number(result and result["r"], 4) for result in results)])
        return ("Interview score by scorer; r is over the clean models", ["candidate", *SCORERS], rows)


def _position(line: dict[str, Any] | None, label: str) -> str:
    if line is None or label not in line["residuals"]:
        return "–"
    return "below" if label in line["below"] else "above" if label in line["above"] else "on the line"


def _as_mean(estimate: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return an estimate as a mean with the standard error that a normal 95% interval implies."""
    return estimate and {
        "mean": estimate["value"],
        "se": _round((estimate["high"] - estimate["low"]) / (2 * _NORMAL)),
        "n": 0,
    }


def _round(value: float | None) -> float | None:
    # Six decimals: far below any error bar, and the same text on every platform.
    return None if value is None else round(value, 6)


def _format_number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _format_mean(record: dict[str, Any], sign: str = "") -> str:
    """Format a mean with its standard error."""
    if record["mean"] is None:
        return "–"
    return f"{record['mean']:{sign}.1f}" + ("" if record["se"] is None else f" ± {record['se']:.1f}")
