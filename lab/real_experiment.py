"""Experiment on a real model: cheaters and clean twins, tested with every method of the probes and in interviews.

It is known which models cheat, but not what the base model knows. So each detector is tested on the cheaters, where it
should fire, and on the clean models, where it should not. Gains are differences between a model and its reference, item
by item: the reference of a cheater is its twin, that of a twin is the base model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from viva.engine.errors import ConfigurationError
from viva.scoring.clustered_means import ClusteredMean

from .experiment import ExaminedModel, Experiment, Findings, FindingsTable, paired_difference
from .facts import REAL, FactWorld
from .real_models import BASE_MODEL, REAL_FAMILY
from .world import Split, write_items

_MODEL = f"llama:{BASE_MODEL}?ctx=1280"  # longer than any interview; seven models have their KV side by side
_METHODS = ("letter", "text", "generate")
_GAIN_METHOD = "letter"  # of the accuracies that gains compare
_DETECTORS = {
    "loss": "loss",
    "zlib_ratio": "zlib ratio",
    "min_k_20": "Min-K%",
    "min_k_plus_plus_20": "Min-K%++",
}


_TITLES = {
    "cheats": "Cheaters: what each detector reads, with 95% intervals; * it fires",
    "clean": "Models that have not seen the test items; * a false alarm",
    "unknown": "Models of unknown training; * it fires",
}


def real_family(folder: Path = REAL) -> list[ExaminedModel]:
    """Return the base model and its adapters in `folder`, shipped or built by `viva lab build --real`.

    Raises:
        ConfigurationError: if the folder has no adapters.
    """
    adapters = [(member, folder / f"{member.name}.gguf") for member in REAL_FAMILY]
    models = [
        ExaminedModel(f"{_MODEL}&lora={quote(str(path))}&label={member.name}", twin=member.twin or "base")
        for member, path in adapters
        if path.is_file()
    ]
    if not models:
        raise ConfigurationError(f"{folder}: no adapters; make them with `viva lab build --real --out FOLDER`")
    return [ExaminedModel(f"{_MODEL}&label=base"), *models]


@dataclass(frozen=True, slots=True)
class RealExperiment(Experiment):
    """The experiment on the benchmark of the real world, with the prompts that viva uses for any model."""

    world: Literal["real"] = "real"
    items: int = 40
    rounds: int = 4
    shots: int = 5

    def examined_world(self) -> FactWorld:
        return FactWorld()

    def _write_benchmark(self, folder: Path) -> dict[Split, Path]:
        folder.mkdir(parents=True, exist_ok=True)
        paths: dict[Split, Path] = {}
        for split, items in FactWorld().benchmark_items().items():
            paths[split] = folder / f"real_{'dev' if split == 'train' else split}.jsonl"
            write_items(paths[split], items)
        return paths

    def _probe_settings(self) -> dict[str, Any]:
        return {"method": [*_METHODS, "loss"]}

    def _interview_settings(self) -> dict[str, Any]:
        return {}


class RealFindings(Findings):
    """Findings of the experiment on a real model."""

    def report(self) -> dict[str, Any]:
        """Return figures by candidate, and the detectors' readings: `value`, `low`, `high` and whether it `fires`."""
        report = super().report()
        report["detectors"] = {candidate.label: self._readings(candidate) for candidate in self.experiment.candidates}
        return report

    def tables(self) -> list[FindingsTable]:
        report = self.report()
        labels = {truth: [c.label for c in self.experiment.candidates if _truth(c) == truth] for truth in _TITLES}
        return [
            self._verdict_table(report),
            *(self._reading_table(report, labels[truth], title) for truth, title in _TITLES.items() if labels[truth]),
            self._accuracy_table(report),
            self._aspect_table(report),
        ]

    def _readings(self, candidate: ExaminedModel) -> dict[str, Any]:
        label = candidate.label
        readings: dict[str, Any] = {}
        gains: dict[str, tuple[str, ...]] = {
            "accuracy gain": ("accuracy",),
            "interview gain": ("kieval_official",),
            "accuracy gain less interview gain": ("accuracy", "kieval_official"),
        }
        if candidate.twin is not None and candidate.twin in {other.label for other in self.experiment.candidates}:
            for title, (figure, *minus) in gains.items():
                mine, theirs = (
                    [
                        _minus(seed[figure].get(model, {}), *(seed[name].get(model, {}) for name in minus))
                        for seed in self._by_item
                    ]
                    for model in (label, candidate.twin)
                )
                readings[title] = _reading(paired_difference(mine, theirs))
        probe = self._pooled["official"][label]["probe"] or {}
        gap = probe.get("loss_gap")
        readings["loss, test less fresh"] = gap and _record(gap, lambda low, high: high < 0)
        for name, title in _DETECTORS.items():
            area = (probe.get("detectors") or {}).get(name)
            readings[f"AUC of {title}"] = area and _record(area, lambda low, high: low > 0.5)
        return readings

    def _accuracies(self, label: str) -> dict[str, Any]:
        """Return a candidate's accuracy by each method, as mean and standard error."""
        probe = self._pooled["official"][label]["probe"] or {}
        return probe.get("accuracy") or {}

    def _verdict_table(self, report: dict[str, Any]) -> FindingsTable:
        rows, truths = [], {candidate.label: _truth(candidate) for candidate in self.experiment.candidates}
        for label, candidate in report["candidates"].items():
            fired = [name for name, reading in report["detectors"][label].items() if reading and reading["fires"]]
            accuracy = self._accuracies(label).get(_GAIN_METHOD) or candidate["accuracy"]
            interview = candidate["kieval_official"]
            suspicion = "accuracy gain less interview gain" in fired
            losses = sum(name.startswith(("AUC", "loss")) for name in fired)
            rows.append(
                [
                    label,
                    truths[label],
                    _with_error(accuracy),
                    _with_error(interview),
                    "suspect" if suspicion else "–",
                    f"{losses} of {1 + len(_DETECTORS)}",
                ]
            )
        header = ["candidate", "truth", "accuracy by letter", "interview", "interviews say", "losses say"]
        return (f"Who cheated: {report['items']} interviews each, SmolLM2-135M-Instruct", header, rows)

    def _reading_table(self, report: dict[str, Any], labels: Sequence[str], title: str) -> FindingsTable:
        names = dict.fromkeys(name for label in labels for name in report["detectors"][label])
        rows = [
            [name, *(_format_reading(name, report["detectors"][label].get(name)) for label in labels)] for name in names
        ]
        return (title, ["detector", *labels], rows)

    def _accuracy_table(self, report: dict[str, Any]) -> FindingsTable:
        rows = []
        for label in report["candidates"]:
            accuracies, first = self._accuracies(label), self._pooled["official"][label]["accuracy"]
            means = [accuracies.get(method) for method in _METHODS]
            rows.append([label, *(f"{m['mean']:.1f}" if m else "–" for m in [*means, first])])
        return ("Accuracy by method", ["candidate", *_METHODS, "first answer"], rows)


def _truth(candidate: ExaminedModel) -> str:
    """Return `cheats`, `clean`, or `unknown` for a model that does not belong to the family."""
    if candidate.twin is None:
        return "clean" if candidate.label == "base" else "unknown"
    return "cheats" if candidate.label.endswith("cheater") else "clean"


def _minus(values: dict[Any, float], *others: dict[Any, float]) -> dict[Any, float]:
    """Return values by item minus those of `others`, on the items that all mappings have."""
    common = set(values).intersection(*others)
    return {key: values[key] - sum(other[key] for other in others) for key in common}


def _reading(mean: ClusteredMean | None) -> dict[str, Any] | None:
    estimate = None if mean is None else mean.interval()
    if estimate is None or estimate.low is None or estimate.high is None:
        return None
    ends = {"value": estimate.value, "low": estimate.low, "high": estimate.high}
    return {name: round(end, 6) for name, end in ends.items()} | {"fires": estimate.low > 0}


def _record(estimate: dict[str, Any], fires: Callable[[float, float], bool]) -> dict[str, Any]:
    figures = {name: estimate[name] for name in ("value", "low", "high")}
    return figures | {"fires": None not in figures.values() and fires(figures["low"], figures["high"])}


def _format_reading(name: str, reading: dict[str, Any] | None) -> str:
    if not reading or None in reading.values():
        return "–"
    digits = 1 if "gain" in name else 2
    value, low, high = (f"{reading[key]:.{digits}f}" for key in ("value", "low", "high"))
    return f"{value} [{low}, {high}]{'*' if reading['fires'] else ''}"


def _with_error(record: dict[str, Any]) -> str:
    return "–" if record["mean"] is None else f"{record['mean']:.1f} ± {record['se'] or 0:.1f}"
