"""The contamination court's report on runs and sweeps: rulings, evidence and limits, as data, sentences and tables.

All runs of a candidate on one benchmark are merged: probes give the evidence of `viva run probe --method court`,
interviews add their scores. Models of known truth come from a file, or are named as clean among the candidates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from viva.data.record_files import read_records, sound_records
from viva.engine.errors import ConfigurationError, did_you_mean
from viva.engine.journal_reader import History
from viva.orchestration.completeness import missing_conversations, unfinished_text
from viva.scenarios.contract import SupportsObservations
from viva.scenarios.models import label_of_key
from viva.scenarios.registry import get_scenario
from viva.scenarios.study_cells import StudyCell
from viva.scoring.evidence.combination import count_clean_models
from viva.scoring.evidence.court import COMPARISON, SECOND_SET, WITNESSES, Ruling, rule
from viva.scoring.evidence.evidence import Evidence
from viva.scoring.evidence.observations import INTERVIEW_GAP, Hearing, Observations, hear, merge
from viva.scoring.evidence.reference_models import WITNESS as CONSTAT

from ..figures import round_figure
from ..tables import DASH, Table, number, p_value
from .cells import find_cells, refuse_adaptive

_OVERLAP = 0.9  # fraction of a benchmark's items that models of known truth must have been asked
_LARGEST = 1e6  # of a number in a file of known models, in nats
_RANGES = {"right": (0.0, 1.0), "peak": (0.0, 1.0), "interview": (0.0, 1.0)}
# The methods of probes that a witness needs.
_METHODS = {
    "accuracy gap": "text",
    "loss gap": "loss",
    "Min-K%++": "loss",
    "context gain": "context",
    "peakedness": "samples",
    "guessing": "guess",
    "exchangeability": "order",
    "option order": "options",
    "option answers": "options",
}


class _KnownResults(BaseModel):
    """Results on a set, in a line of a file of known models."""

    model_config = ConfigDict(extra="forbid")
    items: list[str]
    clusters: list[str]
    right: list[float | None] | None = None
    loss: list[float | None] | None = None
    min_k_plus_plus: list[float | None] | None = None
    context_change: list[float | None] | None = None
    peak: list[float | None] | None = None
    interview: list[float | None] | None = None
    masked: list[str | None] | None = None
    guesses: list[str | None] | None = None


class KnownModel(BaseModel):
    """A line of a file of models of known truth: `kind` is None for a clean model, else its kind of contamination."""

    model_config = ConfigDict(extra="ignore")
    model: str
    kind: str | None
    benchmark: _KnownResults
    second: _KnownResults
    shards: list[list[float]] = []
    options: list[list[float]] = []
    letters: list[list[int]] = []

    def observations(self) -> Observations:
        """Return the observations.

        Raises:
            ValueError: The columns differ in length, or a number is not finite.
        """
        for name, results in (("benchmark", self.benchmark), ("second", self.second)):
            columns = results.model_dump(exclude_none=True)
            lengths = {column: len(values) for column, values in columns.items()}
            if len({*lengths.values()}) > 1:
                raise ValueError(f"{name}: columns of different lengths: {lengths}")
            for column, values in columns.items():
                low, high = _RANGES.get(column, (-_LARGEST, _LARGEST))
                if any(isinstance(value, float) and not low <= value <= high for value in values):
                    raise ValueError(f"{name}.{column}: expected numbers from {low:g} to {high:g}")
        if self.options and [len(row) for row in self.options] != [len(row) for row in self.letters]:
            raise ValueError("letters: expected rows of the same lengths as those of options")
        for name, low, high in (("shards", -_LARGEST, 0.0), ("options", -_LARGEST, 0.0), ("letters", 0, 1)):
            rows = getattr(self, name)
            if any(len(row) < 2 or not all(low <= value <= high for value in row) for row in rows):
                raise ValueError(f"{name}: each row needs at least two numbers from {low:g} to {high:g}")
        return Observations.from_record(self.model_dump(exclude_none=True))


def read_known_models(path: Path) -> list[tuple[str | None, Observations]]:
    """Return kind and observations of each model in a file of JSON lines, as `viva lab build --family court` makes it.

    Raises:
        DatasetError: The file cannot be read.
        ConfigurationError: A line is not such a record.
    """
    models = []
    for line, record in sound_records(read_records(path)):
        try:
            known = KnownModel.model_validate(record)
            models.append((known.kind, known.observations()))
        except ValidationError as error:
            first = error.errors()[0]
            field_name = ".".join(map(str, first["loc"]))
            raise ConfigurationError(f"{path}, line {line}: {field_name}: {first['msg']}") from None
        except ValueError as error:
            raise ConfigurationError(f"{path}, line {line}: {error}") from None
    if not models:
        raise ConfigurationError(f"{path}: no models; expected one in each line")
    return models


@dataclass(slots=True)
class Case:
    """The candidates of one benchmark; `second` names the second set, empty without one."""

    dataset: str
    second: str = ""
    second_digest: str = ""
    candidates: dict[str, list[Observations]] = field(default_factory=dict)

    def observations(self) -> dict[str, Observations]:
        """Return the observations of each candidate, merged over its runs."""
        return {label: merge(parts) for label, parts in self.candidates.items()}


class CourtReport:
    """Rulings on the candidates of runs and sweeps. `report` is plain data, equal for equal records."""

    def __init__(
        self, cells: Iterable[StudyCell], *, clean: Sequence[str] = (), known: Path | None = None, level: float = 0.05
    ) -> None:
        """Read the runs of the cells; for the arguments see `court`.

        Raises:
            ConfigurationError: The file is invalid, a label is unknown, or no run has evidence.
        """
        if not 0.0 < level < 1.0:
            raise ConfigurationError(f"level: {level:g}; expected a number between 0 and 1")
        self.level = level
        self.notes: list[str] = []
        begun = [cell for cell in cells if cell.run is not None and cell.run.begun]
        self._cases = read_cases(begun)
        if not self._cases:
            raise ConfigurationError(
                "no evidence: none of these runs has probes or interviews; make some with `viva run probe --method "
                "court`"
            )
        labels = {label for case in self._cases for label in case.candidates}
        for label in clean:
            if label not in labels:
                near = did_you_mean(label, sorted(labels), "known")
                raise ConfigurationError(f"--clean: no candidate '{label}'{near}")
        self._clean = {*clean}
        self._known = [] if known is None else read_known_models(known)
        self.notes += _unfinished(begun)
        self._report: dict[str, Any] | None = None

    def report(self) -> dict[str, Any]:
        """Return the rulings by benchmark and candidate."""
        if self._report is None:
            self._report = {"level": self.level, "benchmarks": [self._benchmark(case) for case in self._cases]}
            if self.notes:
                self._report["notes"] = self.notes
        return self._report

    def _benchmark(self, case: Case) -> dict[str, Any]:
        observations = case.observations()
        accused = {label: hear(own) for label, own in observations.items() if label not in self._clean}
        clean = [hear(own) for label, own in observations.items() if label in self._clean]
        contaminated: dict[str, list[Hearing]] = {}
        items = {item for own in observations.values() for item in own.benchmark.items}
        same = [(kind, own) for kind, own in self._known if _overlaps(items, own)]
        if self._known and not same:
            self.notes.append(f"The models of known truth were not asked about {case.dataset}, so they are not used.")
        for kind, own in same:
            if kind is None:
                clean.append(hear(own))
            else:
                contaminated.setdefault(kind, []).append(hear(own))
        rulings = rule(accused, clean, contaminated, self.level)
        records = {
            label: _ruling_record(ruling, accused[label], case, label, len(clean), len(accused), self.level)
            for label, ruling in rulings.items()
        }
        return {
            "dataset": case.dataset,
            "second": case.second or None,
            "known": {"clean": len(clean), "contaminated": {kind: len(own) for kind, own in contaminated.items()}},
            "candidates": records,
            "limits": _limits(case, rulings.values(), len(clean), self.level),
        }

    def summary(self) -> list[str]:
        """Return a sentence for each benchmark: which candidates got which ruling."""
        lines = []
        for benchmark in self.report()["benchmarks"]:
            dataset, parts = benchmark["dataset"], []
            for ruling, words in (
                ("contaminated", f"contaminated with {dataset}"),
                ("clean", f"clean of {dataset}"),
                ("cannot tell", "cannot tell"),
            ):
                labels = [label for label, own in benchmark["candidates"].items() if own["ruling"] == ruling]
                parts += [f"{words}: {', '.join(labels)}"] if labels else []
            lines.append(f"Court, at {self.level:.0%} false alarms: {'; '.join(parts)}.")
        return lines

    def sentences(self) -> list[str]:
        """Return a sentence for each candidate and benchmark, contaminated ones first, then the limits."""
        return court_sentences(self.report())

    def tables(self) -> list[Table]:
        """Return for each benchmark the rulings, and what each witness says."""
        return court_tables(self.report())


def court_sentences(report: Mapping[str, Any]) -> list[str]:
    """Return the sentences of a report (`CourtReport.report`)."""
    order = ("contaminated", "cannot tell", "clean")
    lines = []
    for benchmark in report["benchmarks"]:
        records = sorted(benchmark["candidates"].values(), key=lambda record: order.index(record["ruling"]))
        lines += [record["sentence"] for record in records]
        lines += benchmark["limits"]
    return lines


def court_tables(report: Mapping[str, Any]) -> list[Table]:
    """Return the tables of a report (`CourtReport.report`)."""
    tables: list[Table] = []
    for benchmark in report["benchmarks"]:
        candidates = benchmark["candidates"]
        rows = [
            [
                label,
                record["ruling"],
                p_value(record["p_adjusted"]),
                p_value(record["p"]),
                record["strongest"] or DASH,
            ]
            for label, record in candidates.items()
        ]
        header = ["candidate", "ruling", "p, all candidates", "p", "strongest test"]
        tables.append((f"Rulings on {benchmark['dataset']}", header, rows))
        rows = [
            [label, item["witness"], number(item["effect"], 3), str(item["n"]), p_value(item["p"])]
            for label, record in candidates.items()
            for item in record["evidence"]
        ]
        header = ["candidate", "witness", "effect", "n", "p alone"]
        tables.append((f"Witnesses on {benchmark['dataset']}", header, rows))
    return tables


def court(
    *folders: Path | str, clean: Sequence[str] = (), known: Path | str | None = None, level: float = 0.05
) -> CourtReport:
    """Rule whether the models in runs and sweeps have seen a benchmark (docs/court.md).

    Args:
        folders: Runs and sweeps.
        clean: Labels of candidates that are known to be clean; they are compared with, and not judged.
        known: A file of models of known truth, asked about the same benchmark.
        level: The error rate.

    Raises:
        ConfigurationError: A folder or the file is invalid, a label is unknown, or no run has evidence.
    """
    cells = find_cells([Path(folder) for folder in folders])
    refuse_adaptive(cells)
    return CourtReport(cells, clean=clean, known=None if known is None else Path(known), level=level)


def gathers_evidence(cell: StudyCell) -> bool:
    """Return whether a cell's run was made for the court, and has begun."""
    if cell.run is None or not cell.run.begun:
        return False
    scenario = get_scenario(cell.scenario)
    return isinstance(scenario, SupportsObservations) and scenario.gathers_evidence(cell.manifest)


def read_cases(cells: Sequence[StudyCell]) -> list[Case]:
    """Read the observations in cells that have begun, by benchmark and candidate.

    Raises:
        ConfigurationError: A run calls its second set the one that was seen, or runs have different second sets.
    """
    cases: dict[tuple[str, str], Case] = {}
    runs: dict[Path, list[StudyCell]] = {}
    for cell in cells:
        assert cell.run is not None
        runs.setdefault(cell.run.path, []).append(cell)
    for own in runs.values():
        scenario, manifest = get_scenario(own[0].scenario), own[0].manifest
        if not isinstance(scenario, SupportsObservations):
            continue
        dataset, second = manifest["dataset"], manifest.get("against")
        if second is not None and manifest["settings"].get("members") == "against":
            raise ConfigurationError(
                f"{own[0].folder}: its setting members says that {second['name']} was seen; the court judges "
                f"{dataset['name']}. Probe again, with the two sets exchanged"
            )
        case = cases.setdefault((dataset["name"], dataset["digest"]), Case(dataset["name"]))
        if second is not None:
            if case.second_digest not in ("", second["digest"]):
                raise ConfigurationError(
                    f"{own[0].folder}: its second set {second['name']} is not that of other runs, {case.second}; judge "
                    "these runs separately"
                )
            case.second, case.second_digest = second["name"], second["digest"]
        for label, results in _results(own).items():
            case.candidates.setdefault(label, []).append(scenario.observe(results))
    return [case for case in cases.values() if case.candidates]


def _results(cells: Sequence[StudyCell]) -> dict[str, list[Any]]:
    run = cells[0].run
    assert run is not None
    candidates = {cell.candidate for cell in cells}
    results: dict[str, list[Any]] = {label: [] for label in cells[0].labels if label in candidates}
    with History(run.journal) as history:
        for ended in history.ended():
            label = label_of_key(ended.key, cells[0].labels)
            stopped = cells[0].stopped_at is not None and ended.number >= cells[0].stopped_at
            if not ended.failed and not stopped and label in results:
                results[label].append(ended.result)
    return {label: own for label, own in results.items() if own}


def _unfinished(cells: Sequence[StudyCell]) -> Iterator[str]:
    for run in {cell.run.path: cell.run for cell in cells if cell.run is not None}.values():
        if (missing := missing_conversations(run)) is not None:
            yield unfinished_text(missing.to_record(), run.path)


def _overlaps(items: set[str], known: Observations) -> bool:
    return bool(items) and len(items & {*known.benchmark.items}) >= _OVERLAP * len(items)


def _ruling_record(
    ruling: Ruling, hearing: Hearing, case: Case, label: str, clean: int, accused: int, level: float
) -> dict[str, Any]:
    witnesses = [evidence.witness for evidence in ruling.evidence]
    record: dict[str, Any] = {
        "ruling": ruling.conclusion,
        "p": ruling.p,
        "p_adjusted": ruling.p_adjusted,
        "strongest": ruling.strongest,
        "tests": [asdict(trial) for trial in ruling.trials],
        "evidence": [asdict(evidence) for evidence in ruling.evidence],
        "disbelieved": list(ruling.disbelieved),
        "absent": [witness for witness in WITNESSES if witness not in witnesses],
        "remedies": [asdict(remedy) for remedy in ruling.remedies],
        "comparison": None if ruling.comparison is None else asdict(ruling.comparison),
    }
    interview = hearing.statistics.get(INTERVIEW_GAP)
    if interview is not None:
        record["interview_gap"] = round_figure(interview)
    record["sentence"] = _sentence(ruling, case, label, clean, accused, level)
    return record


def _sentence(ruling: Ruling, case: Case, label: str, clean: int, accused: int, level: float) -> str:
    chance = f"p = {p_value(ruling.p_adjusted)}" + (f", corrected for {accused} candidates" if accused > 1 else "")
    if ruling.conclusion == "contaminated":
        return f"{label} is contaminated with {case.dataset} ({chance}): {_describe(ruling, case, clean)}."
    if ruling.conclusion == "clean":
        assert ruling.comparison is not None
        return (
            f"{label} is clean of {case.dataset}: a known contaminated model looks as clean with p = "
            f"{p_value(ruling.comparison.p_contaminated)}."
        )
    text = f"{label}: cannot tell whether it has seen {case.dataset} ({chance})."
    if not ruling.trials:
        return f"{label}: cannot tell whether it has seen {case.dataset}: no witness was heard."
    if ruling.remedies:
        best = ruling.remedies[0]
        needs = f"{best.items:,} items" if best.witness != "exchangeability" else f"{best.items:,} shards"
        return f"{text} If its {best.witness} stays as it is, {needs} would settle it."
    return f"{text} No witness points to contamination."


def _describe(ruling: Ruling, case: Case, clean: int) -> str:
    """Describe the strongest test in half a sentence."""
    name, second = ruling.strongest, case.second
    if name == COMPARISON:
        assert ruling.comparison is not None
        higher = round(ruling.comparison.p * (ruling.comparison.clean_models + 1)) - 1
        return f"{higher or 'none'} of {ruling.comparison.clean_models} clean models has as much evidence against it"
    evidence = next(item for item in ruling.evidence if item.witness == name)
    return _describe_witness(evidence, case.dataset, second)


def _describe_witness(evidence: Evidence, dataset: str, second: str) -> str:
    effect = evidence.effect or 0.0
    match evidence.witness:
        case "accuracy gap":
            return f"it answers {100 * effect:.0f} points more of {dataset} right than of {second}"
        case "loss gap":
            return f"its loss on {dataset} is {effect:.2f} nats a token lower than on {second}"
        case "Min-K%++":
            return f"unlikely tokens of {dataset} are likelier to it than those of {second}"
        case "context gain":
            points = f"{100 * effect:.0f} points"
            return f"other items in the context make {points} more of {dataset} less likely than of {second}"
        case "peakedness":
            return f"its sampled answers resemble each other {100 * effect:.0f} points more often than on {second}"
        case "guessing":
            return f"it reproduces masked choices {100 * effect:.0f} points more often than on {second}"
        case "constat":
            return (
                f"it answers {100 * effect:.0f} points more of {dataset} right than clean models that are as good at "
                f"{second}"
            )
        case "exchangeability":
            return f"the published order of items is {effect:.1f} nats a shard likelier to it than other orders"
        case "option order":
            return f"the published order of options is {effect:.1f} nats an item likelier to it than other orders"
        case _:
            return f"it answers {100 * effect:.0f} points more right with the options in their published order"


def _limits(case: Case, rulings: Iterable[Ruling], clean: int, level: float) -> list[str]:
    """Return in words what the rulings do not say."""
    rulings = list(rulings)
    limits = []
    rests_on = {trial.name for ruling in rulings for trial in ruling.trials if trial.p_adjusted <= level}
    if rests_on & {*SECOND_SET}:
        limits.append(
            f"Comparisons of two sets assume that {case.second} was seen by none of the candidates and differs from "
            f"{case.dataset} in nothing else: the same source, form and difficulty."
        )
    if CONSTAT in rests_on:
        limits.append(
            f"ConStat assumes that clean models which are equally good at {case.second} are equally good at "
            f"{case.dataset}."
        )
    if rests_on & {"exchangeability", "option order", "option answers"}:
        limits.append("Tests of orders assume that the published order is as good as random.")
    needed = count_clean_models(level)
    if clean < needed:
        limits.append(
            f"Clean models of this benchmark: {clean}. It takes {needed} to check assumptions and to find a candidate "
            "clean."
        )
    disbelieved = sorted({witness for ruling in rulings for witness in ruling.disbelieved})
    if disbelieved:
        limits.append(f"Not believed, because of their alarms on clean models: {', '.join(disbelieved)}.")
    witnesses = {evidence.witness for ruling in rulings for evidence in ruling.evidence}
    absent = [witness for witness in WITNESSES if witness not in witnesses]
    if rulings and not case.second and any(witness in SECOND_SET for witness in absent):
        limits.append("No second set: name one with --against, so that the benchmark can be compared with it.")
        absent = [witness for witness in absent if witness not in SECOND_SET]
    absent = [witness for witness in absent if witness != CONSTAT]  # asked as the accuracy gap is
    methods = sorted({_METHODS[witness] for witness in absent})
    if rulings and methods:
        limits.append(f"Not asked: {', '.join(f'--method {method}' for method in methods)}.")
    return limits
