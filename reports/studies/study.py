"""Study of several runs and sweeps: finds, reads and compares their cells; as plain data and as tables.

The same records give the same report, byte for byte, in any order in which conversations were run and folders are
given. A system whose static figures another registered system uses is studied with that system, else by itself.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from viva.engine.errors import ConfigurationError
from viva.engine.run_folder import installed_versions, is_running
from viva.orchestration.completeness import missing_conversations, unfinished_text
from viva.scenarios.contract import Findings, RankedCandidate, judge_role, study_of
from viva.scenarios.exam_report import ESTIMATES, EXAM_HEADER, exam_cells
from viva.scenarios.registry import get_scenario, installed_scenarios
from viva.scenarios.study_cells import ItemCatalogue, ItemNumbers, RunReading, StudyCell
from viva.scenarios.study_sections import Material, Section, Subject, SystemStudy
from viva.scoring.aggregates import merge_reasons
from viva.sweeps.sweep_folder import resumable_folder

from ..page import Record
from ..run_tables import FAILURES_TITLE
from ..tables import DASH, Table, interval
from .cache import ReportCache, cache_key, folder_state
from .cells import exam_records, find_cells, unusable_run
from .court import CourtReport, court_sentences, court_tables, gathers_evidence
from .method_costs import MethodCostSection, method_costs

_T = TypeVar("_T")
# Order in the report's record, in exports and on a page.
RECORD_ORDER = tuple(Subject)
# Order of printed tables and notes: what puts figures into context comes before pairs of candidates.
_FIRST = (Subject.RESULTS, Subject.CONTAMINATION, Subject.CORRELATIONS, Subject.VARIANTS)
PRINT_ORDER = (*_FIRST, *(subject for subject in Subject if subject not in _FIRST))
# Order of drawings: the most informative one comes first.
PAGE_ORDER = (Subject.CORRELATIONS, *(subject for subject in Subject if subject is not Subject.CORRELATIONS))


def sort_by_subject(order: tuple[Subject, ...], about: Iterable[tuple[Subject, _T]]) -> list[_T]:
    """Sort things by their subject; things of one subject keep their order."""
    return [thing for _, thing in sorted(about, key=lambda pair: order.index(pair[0]))]


@dataclass(slots=True)
class SystemGroup:
    """Systems whose cells one study combines.

    `study` makes the sections; `readers` maps each scenario to the study that reads its runs, the group's own first.
    """

    study: SystemStudy
    readers: dict[str, SystemStudy]

    def own(self, cells: Iterable[StudyCell]) -> list[StudyCell]:
        """Return the cells that this group's study combines."""
        return [cell for cell in cells if cell.scenario in self.readers]

    def part_of(self, report: Mapping[str, Any]) -> Record:
        """Return the report with only the cells that this group's study combines."""
        return {**report, "cells": [cell for cell in report["cells"] if cell["scenario"] in self.readers]}


def group_systems(names: Iterable[str]) -> list[SystemGroup]:
    """Group the systems of these scenarios, in order of first appearance.

    Raises:
        ConfigurationError: if a scenario is not registered, or two systems have sections of one name.
    """
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        groups.setdefault(_host_system(name), []).append(name)
    system_groups = []
    for name, members in groups.items():
        readers = {member: study_of(get_scenario(member)) for member in members if member != name}
        static = next((reader.static for reader in readers.values() if reader.static is not None), None)
        study = study_of(get_scenario(name), static)
        system_groups.append(SystemGroup(study, {name: study, **readers}))
    _check_keys(system_groups)
    return system_groups


def systems_of_report(report: Mapping[str, Any]) -> list[SystemGroup]:
    """Return the systems of a report's cells."""
    return group_systems(cell["scenario"] for cell in report["cells"])


def sections_of(groups: Iterable[SystemGroup]) -> Iterator[tuple[SystemGroup, Section[Any]]]:
    """Return all sections, each with the group of runs of the system (scenario) that it reports on."""
    return ((systems, section) for systems in groups for section in systems.study.sections)


def _host_system(name: str) -> str:
    if study_of(get_scenario(name)).static is None:
        return name
    return next((scenario.name for scenario in installed_scenarios() if study_of(scenario).takes_static), name)


def _check_keys(groups: Iterable[SystemGroup]) -> None:
    owners: dict[str, str] = {}
    for systems, section in sections_of(groups):
        name = systems.study.scenario.name
        for key in {section.key, section.anchor} - {""}:
            if owners.setdefault(key, name) != name:
                raise ConfigurationError(
                    f"the studies of {owners[key]} and {name} both have a section '{key}'; report them separately"
                )


class FailureSection(Section[Material]):
    """Failure reasons over all cells, by scenario and candidate."""

    subject, heading, anchor = Subject.FAILURES, "Failures", "failures"

    def tables(self, report: Record) -> list[Table]:
        groups: dict[tuple[str, str], list[Mapping[str, int]]] = {}
        for cell in report["cells"]:
            reasons = (cell["result"] or {}).get("failure_reasons")
            if reasons:
                groups.setdefault((cell["scenario"], cell["candidate"]), []).append(reasons)
        rows = [
            [scenario, candidate, str(count), reason]
            for (scenario, candidate), records in groups.items()
            for reason, count in merge_reasons(records).items()
        ]
        return [(FAILURES_TITLE, ["scenario", "candidate", "failed", "reason"], rows)]


class ExamSection(Section[Material]):
    """Estimates of adaptive exams (`report["adaptive"]`); no plain mean, which would be over chosen items."""

    subject, heading, anchor = Subject.RESULTS, "Adaptive exams", "adaptive"

    def tables(self, report: Record) -> list[Table]:
        rows = []
        for record in report.get("adaptive", ()):
            own = [record["scenario"], record["dataset"], str(record["seed"]), record["evaluator"] or DASH]
            exam = record["exam"]
            cells = [DASH] * (len(EXAM_HEADER) - 1) + ["not begun"] if exam is None else exam_cells(exam)
            rows.append([*own, record["candidate"], *cells])
        title = f"Adaptive exams: mean over all items, 0–100, with 95% intervals. {ESTIMATES}"
        return [(title, ["scenario", "dataset", "seed", "evaluator", "candidate", *EXAM_HEADER], rows)]


class CourtSection(Section[Material]):
    """Rulings of the contamination court, if runs have gathered evidence for it (`report["court"]`)."""

    subject, heading, anchor = Subject.CONTAMINATION, "Contamination court", "court"

    def tables(self, report: Record) -> list[Table]:
        return court_tables(report["court"]) if "court" in report else []


class CellSection(Section[Material]):
    """Cells and their progress. `readers` maps each scenario to the study that describes its results."""

    subject, heading, anchor = Subject.CELLS, "Cells and transcripts", "cells"

    def __init__(self, readers: Mapping[str, SystemStudy]) -> None:
        self._readers = readers

    def tables(self, report: Record) -> list[Table]:
        rows = []
        for cell in report["cells"]:
            result, until = cell["result"] or {}, cell["until"] or {}
            state = f"stopped after {until['stopped_at']}" if cell["state"] == "stopped" else cell["state"]
            row = [
                cell["scenario"],
                cell["candidate"],
                cell["dataset"],
                str(cell["seed"]),
                cell["evaluator"] or DASH,
                state,
            ]
            progress = f"{cell['ended']:,}/{cell['planned']:,}" if cell["planned"] is not None else f"{cell['ended']:,}"
            failed = str(result["failed"]) if result else DASH
            rows.append([*row, progress, failed, self._readers[cell["scenario"]].shown_result(cell)])
        header = ["scenario", "candidate", "dataset", "seed", "evaluator", "state", "ended", "failed", "result"]
        return [(f"{len(rows)} cells", header, rows)]


def common_sections(readers: Mapping[str, SystemStudy]) -> list[Section[Any]]:
    """Return the sections of every study."""
    return [ExamSection(), CourtSection(), FailureSection(), MethodCostSection(), CellSection(readers)]


def describe_differences(cells: Sequence[StudyCell], groups: Sequence[SystemGroup]) -> list[str]:
    """Return a sentence for each unplanned difference between cells."""
    begun = [cell for cell in cells if cell.manifest]
    notes = []
    for candidate in dict.fromkeys(cell.candidate for cell in begun):
        models = {cell.model for cell in begun if cell.candidate == candidate and not cell.model.startswith("replay:")}
        if len(models) > 1:
            notes.append(f"'{candidate}' names {len(models)} different models: {', '.join(sorted(models))}")
    judges: dict[str, set[str]] = {}
    for cell in begun:
        role = judge_role(get_scenario(cell.scenario).roles)
        model = None if role is None or role.many else cell.manifest["models"].get(role.name)
        if cell.evaluator is not None and isinstance(model, str) and not model.startswith("replay:"):
            judges.setdefault(cell.evaluator, set()).add(model)
    notes += [
        f"the judge '{label}' names {len(models)} different models: {', '.join(sorted(models))}"
        for label, models in judges.items()
        if len(models) > 1
    ]
    for dataset, digests in _dataset_versions(begun).items():
        if len(digests) > 1:
            suffix = ", reported separately" if _is_pooled(begun, dataset, groups) else ""
            notes.append(f"'{dataset}' is not the same file everywhere: {len(digests)} versions{suffix}")
    for systems in groups:
        for name, study in systems.readers.items():
            own = [cell for cell in begun if cell.scenario == name]
            notes += _system_differences(own, study.settings, study.parts)
    names_by_key: dict[tuple[Any, ...], list[str]] = {}
    for cell in begun:
        key = (cell.scenario, cell.candidate, cell.dataset, cell.seed, cell.evaluator)
        names_by_key.setdefault(key, []).append(cell.name)
    notes += [
        f"cells with the same scenario, candidate, dataset, seed and judge are all counted: {', '.join(names)}"
        for names in names_by_key.values()
        if len(names) > 1
    ]
    return notes


def disambiguate_datasets(cells: Sequence[StudyCell], groups: Sequence[SystemGroup]) -> None:
    """Tell datasets of one name but different content apart in names, if figures are pooled and compared by item."""
    begun = [cell for cell in cells if cell.manifest]
    versions = _dataset_versions(begun)
    for cell in begun:
        name = cell.manifest["dataset"]["name"]
        if cell.dataset == name and len(versions[name]) > 1 and _is_pooled([cell], name, groups):
            cell.dataset = f"{name} ({cell.manifest['dataset']['digest'][:6]})"


def _dataset_versions(cells: Sequence[StudyCell]) -> dict[str, set[str]]:
    """Return the digests of each dataset, by its name in the manifests."""
    versions: dict[str, set[str]] = {}
    for cell in cells:
        versions.setdefault(cell.manifest["dataset"]["name"], set()).add(cell.manifest["dataset"]["digest"])
    return versions


def _is_pooled(cells: Sequence[StudyCell], dataset: str, groups: Sequence[SystemGroup]) -> bool:
    by_item = {name for systems in groups for name, study in systems.readers.items() if study.by_item}
    return any(cell.scenario in by_item for cell in cells if cell.manifest["dataset"]["name"] == dataset)


def _system_differences(cells: Sequence[StudyCell], settings: Sequence[str], parts: Sequence[str]) -> list[str]:
    """Return sentences about settings, prompt packs and other roles' models that differ between cells."""
    notes = []
    for name in settings:
        values = sorted({cell.settings(name) for cell in cells})
        if len(values) > 1:
            notes.append(f"cells differ in {name}: {', '.join(map(str, values))}")
    for name in parts:
        if name == "pack":
            distinct = {cell.manifest["pack"]["digest"] for cell in cells}
        else:  # a fork's `replay:` models only repeat recorded answers
            models = [cell.manifest["models"].get(name) for cell in cells]
            distinct = {model for model in models if model is not None and not model.startswith("replay:")}
        if len(distinct) > 1:
            notes.append(f"cells differ in their {name}: {len(distinct)} different ones")
    return notes


# Cached fields of a reading.
_CACHED_FIELDS = ("columns", "result", "ended", "failed", "usage", "damaged", "own_tables")


def read_cells(
    cells: Sequence[StudyCell],
    groups: Sequence[SystemGroup],
    scorings: Mapping[str, Any],
    items: dict[str, ItemNumbers],
    cache: ReportCache | None = None,
    on_run: Callable[[int, int], None] | None = None,
    left_out: dict[str, str] | None = None,
) -> list[RunReading]:
    """Read every cell, each journal once.

    Args:
        cells: Cells to read.
        groups: Systems of the cells.
        scorings: By system, how results are scored.
        items: By dataset, the number assigned to each item; new items are added.
        cache: Cache of readings; unchanged runs in it are not read again.
        on_run: Called with the number of runs that were read, and of all.
        left_out: If there are several runs, gets why unreadable ones are left out, by folder; None refuses them.

    Raises:
        JournalError: if a journal is damaged, or no journal can be read.
    """
    readings = [RunReading(cell) for cell in cells]
    runs: dict[Path, list[RunReading]] = {}
    for reading in readings:
        if reading.cell.run is not None and reading.cell.run.begun:
            runs.setdefault(reading.cell.run.path, []).append(reading)
    unreadable: set[Path] = set()
    for count, group in enumerate(runs.values()):
        if on_run is not None:
            on_run(count, len(runs))
        cell = group[0].cell
        numbers = items.setdefault(cell.dataset, ItemNumbers())
        systems = next(candidate for candidate in groups if cell.scenario in candidate.readers)
        reader = systems.readers[cell.scenario]
        # A system whose figures another system uses scores its own results.
        own = scorings[reader.scenario.name] if reader is systems.study else reader.scoring([cell], None)
        try:
            if cache is None:
                reader.read(group, own, numbers)
            else:
                _read_cached(reader, group, own, numbers, cache)
        except Exception as error:
            assert cell.run is not None
            if left_out is None:
                raise
            unreadable.add(cell.run.path)
            left_out[cell.folder] = str(unusable_run(cell.run.path, error))
            if len(unreadable) == len(runs):
                raise unusable_run(cell.run.path, error) from error
    return [reading for reading in readings if reading.cell.run is None or reading.cell.run.path not in unreadable]


def _read_cached(
    reader: SystemStudy, group: list[RunReading], scoring: Any, numbers: ItemNumbers, cache: ReportCache
) -> None:
    """Fill the readings of one run from the cache, or read and cache them."""
    cell = group[0].cell
    before = run_key(cell, scoring)
    # Columns hold item numbers, which depend on the items already numbered.
    key = (
        None if before is None else cache_key("run", before, [member.cell.candidate for member in group], numbers.names)
    )
    shared = {"items": numbers, "run": cell.run, "manifest": cell.manifest}
    if (cached := cache.load(key, shared)) is not None:
        names, fields = cached
        for name in names:
            numbers.number(name)
        for reading, values in zip(group, fields, strict=True):
            for name, value in zip(_CACHED_FIELDS, values, strict=True):
                setattr(reading, name, value)
        return
    known_count = len(numbers.names)
    reader.read(group, scoring, numbers)
    if run_key(cell, scoring) == before and not any(reading.damaged for reading in group):
        fields = [[getattr(reading, name) for name in _CACHED_FIELDS] for reading in group]
        cache.store(key, (numbers.names[known_count:], fields), shared)


def run_key(cell: StudyCell, scoring: Any) -> str | None:
    """Return the cache key of a reading of a cell's run; None if it must not be cached."""
    if cell.run is None:
        return cache_key(None)
    ours = type(get_scenario(cell.scenario)).__module__.startswith("viva.scenarios.")
    state = folder_state(cell.run.path) if ours else None
    return (
        None if state is None else cache_key(str(cell.run.path), state, cell.scenario, cell.stopped_at, repr(scoring))
    )


def cell_record(reading: RunReading) -> dict[str, Any]:
    """Return a cell's record, common to all reports; its system may extend it."""
    cell, manifest = reading.cell, reading.cell.manifest
    record: dict[str, Any] = {
        "name": cell.name,
        "scenario": cell.scenario,
        "candidate": cell.candidate,
        "model": cell.model,
        "dataset": cell.dataset,
        "seed": cell.seed,
        "evaluator": cell.evaluator,
        "tier": manifest.get("tier"),
        "pack": manifest.get("pack"),
        "planned": cell.planned,
        "ended": reading.ended,
        "state": reading.state,
        "result": reading.result,
        "usage": reading.usage,
        "until": cell.until,
    }
    return record | ({"damaged": reading.damaged} if reading.damaged else {})


STUDY_VERSION = 1
_MAX_NAMED_RUNS = 3  # unfinished or unusable runs with a warning of their own; more are counted
_MAX_LISTED_RUNS = 20  # unusable runs that one warning lists


MARKUPS = {"LaTeX": "--latex", "Markdown": "--markdown"}  # with the options that print them
# The folders before a file in a model's name.
_LOCAL_PATH = re.compile(r"(?<=[:=])(?:~|\.{0,2})/(?:[^/?&]+/)*(?=[^/?&])")


@dataclass(slots=True, frozen=True)
class Provenance:
    """The evidence behind a study's figures.

    `tables` has by markup the tables of runs and models; `folders` maps each cell's `folder` to its path, as given.
    """

    tables: dict[str, list[Table]]
    folders: dict[str, str]


class Study:
    """Study of the runs and sweeps in `folders`, read on construction. No model is called.

    `on_run` is called with the number of runs that were read, and of all. `scorings` has by system how its results are
    scored: by `scorer`, or as the runs themselves were. With a `cache`,
    results of earlier reports with unchanged inputs are neither read nor computed again; the report is the same, byte
    for byte. Runs that cannot be read are left out of a study of several, and its warnings name them first; a `strict`
    study refuses them.

    Raises:
        ConfigurationError: if a folder is neither a run nor a sweep, or the runs do not agree on a scorer and none is
            named.
        JournalError: if no run can be read.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        scorer: str | None = None,
        cache: ReportCache | None = None,
        on_run: Callable[[int, int], None] | None = None,
        *,
        strict: bool = False,
    ) -> None:
        self._folders, self._scorer = folders, scorer
        self._left_out: dict[str, str] | None = None if strict else {}
        cells = find_cells(folders, self._left_out)
        # Means over chosen items compare no models: exams have estimates instead.
        self._cells = [cell for cell in cells if not cell.is_adaptive]
        self._exams = [cell for cell in cells if cell.is_adaptive]
        self._groups = group_systems(cell.scenario for cell in self._cells)
        disambiguate_datasets(self._cells, self._groups)
        self.scorings = self._scorings(scorer)
        key = None if cache is None else self._key()
        self._report: dict[str, Any] | None = None if cache is None else cache.load(key, {})
        if self._report is None:
            items: dict[str, ItemNumbers] = {}
            unusable = len(self._left_out or ())
            self._readings = read_cells(self._cells, self._groups, self.scorings, items, cache, on_run, self._left_out)
            self._catalogue = ItemCatalogue(items)
            damaged = len(self._left_out or ()) > unusable or any(reading.damaged for reading in self._readings)
            if damaged:
                self._cells = [reading.cell for reading in self._readings]
                self._groups = group_systems(cell.scenario for cell in self._cells)
            if cache is not None and not damaged and self._key() == key:
                cache.store(key, self.report(), {})

    def _key(self) -> str | None:
        """Return the cache key of the whole report; None if it must not be cached."""
        parts = []
        for cell in (*self._cells, *self._exams):
            if (key := run_key(cell, self.scorings)) is None:
                return None
            identity = (cell.name, cell.folder, cell.candidate, cell.model, cell.dataset, cell.seed, cell.evaluator)
            parts.append((key, identity, cell.planned, cell.until))
        running = {str(cell.run.path) for cell in self.cells if cell.run is not None and is_running(cell.run.path)}
        return cache_key("report", STUDY_VERSION, parts, self._left_out or {}, sorted(running))

    def report(self) -> dict[str, Any]:
        """Return everything as plain data; docs/reports.md describes the fields."""
        if self._report is None:
            self._report = self._compute()
        return self._report

    def tables(self) -> list[Table]:
        """Return the report as titled tables: title, header, rows."""
        return [(table["title"], table["header"], table["rows"]) for table in self.report()["tables"]]

    def provenance(self) -> Provenance:
        """Return what the figures rest on."""
        folders = {cell.folder: str(cell.run.path) for cell in self.cells if cell.run is not None}
        return Provenance({name: self.run_tables(option) for name, option in MARKUPS.items()}, folders)

    def run_tables(self, option: str) -> list[Table]:
        """Return the tables of runs with versions and digests, and of models; `option` is that of their markup."""
        runs: dict[str, list[str]] = {}
        models: dict[tuple[str, ...], None] = {}
        seconds: dict[str, str] = {}
        for cell in self.cells:
            manifest = cell.manifest
            if not manifest:
                continue
            second = manifest.get("against")
            if isinstance(second, Mapping):
                seconds[cell.folder] = f"{second.get('name')} {second.get('digest')}"
            versions, dataset = manifest.get("versions") or {}, manifest.get("dataset") or {}
            pack = manifest.get("pack") or {}
            runs[cell.folder] = [
                *(cell.folder, cell.scenario, cell.dataset, str(dataset.get("digest") or DASH)),
                *(f"{dataset['chosen']:,}" if dataset.get("chosen") else DASH, str(cell.seed)),
                str(pack.get("digest") or DASH)[:12],
                *(str(versions.get(name) or DASH) for name in ("viva", "python")),
            ]
            for role, model in manifest.get("models", {}).items():
                named = model.items() if isinstance(model, Mapping) else [("", model)]
                for label, name in named:
                    plain = _LOCAL_PATH.sub("", str(name))
                    models[role, str(label or DASH), plain, str(manifest.get("files", {}).get(name) or DASH)] = None
        headers = ["run", "scenario", "dataset", "digest", "items", "seed", "prompts", "viva", "Python"]
        if seconds:
            headers.append("second set")
            runs = {folder: [*row, seconds.get(folder, DASH)] for folder, row in runs.items()}
        return [
            (
                f"Runs; report of viva {installed_versions()['viva']}: {self.command(option)}",
                headers,
                list(runs.values()),
            ),
            ("Models", ["role", "label", "model", "file digest"], [list(row) for row in models]),
        ]

    def command(self, option: str) -> str:
        """Return the command that prints this study's tables again."""
        scorer = [] if self._scorer is None else ["--scorer", self._scorer]
        return f"viva report {shlex.join([*map(str, self._folders), *scorer])} {option}"

    @property
    def cells(self) -> list[StudyCell]:
        """The cells of the report, those of adaptive exams last."""
        return [*self._cells, *self._exams]

    def _scorings(self, scorer: str | None) -> dict[str, Any]:
        """Return the scoring of each system.

        Raises:
            ConfigurationError: if no system knows the named scorer, or none is named and the runs do not agree.
        """
        with_scorers = [
            group.study.scenario.name for group in self._groups if "scorer" in group.study.scenario.scoring.model_fields
        ]
        if scorer is not None and not with_scorers:
            names = " and ".join(group.study.scenario.name for group in self._groups)
            raise ConfigurationError(f"--scorer: {names} has no scorer to choose")
        return {
            name: group.study.scoring(group.own(self._cells), scorer if name in with_scorers else None)
            for group in self._groups
            for name in [group.study.scenario.name]
        }

    def _compute(self) -> dict[str, Any]:
        report: dict[str, Any] = {"study": STUDY_VERSION}
        for group in self._groups:
            report |= group.study.head(self.scorings[group.study.scenario.name])
        report |= {"facts": self._facts(), "notes": describe_differences(self._cells, self._groups)}
        report["cells"] = self._records()
        if self._exams:
            report["adaptive"] = exam_records(self._exams, self._left_out if self._cells else None)
            self._exams = [cell for cell in self._exams if cell.folder not in (self._left_out or ())]
        report |= self._shortcomings(report["cells"], report.get("adaptive", []))
        for group in self._groups:
            study = group.study
            begun = [reading for reading in self._group_readings(group) if reading.result is not None]
            material = study.material(begun, self.scorings[study.scenario.name], self._catalogue)
            for section in sort_by_subject(RECORD_ORDER, ((section.subject, section) for section in study.sections)):
                if section.key:
                    report[section.key] = section.compute(material, report)
        if costs := method_costs(self._readings):
            report["method_costs"] = costs
        if any(gathers_evidence(cell) for cell in self._cells):
            try:
                report["court"] = CourtReport(self._cells).report()
            except ConfigurationError as error:  # these runs cannot be judged together
                report["notes"].append(f"contamination court: {error}")
        report["notes"] += self._notes(report)
        report["tables"] = [
            {"title": title, "header": header, "rows": rows}
            for title, header, rows in study_tables(report, self._groups)
        ]
        return report

    def _group_readings(self, group: SystemGroup) -> list[RunReading]:
        return [reading for reading in self._readings if reading.cell.scenario in group.readers]

    def _records(self) -> list[dict[str, Any]]:
        """Return the records of all cells, each extended by its system."""
        by_scenario = {name: group for group in self._groups for name in group.readers}
        records = []
        for reading in self._readings:
            study = by_scenario[reading.cell.scenario].study
            records.append(study.cell(cell_record(reading), reading, self.scorings[study.scenario.name]))
        return records

    def _shortcomings(self, records: Sequence[Mapping[str, Any]], exams: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the runs that lack conversations as `unfinished`, and what readers must know first as `warnings`."""
        runs = {
            reading.cell.run.path: (reading.cell.folder, reading.cell.run)
            for reading in self._readings
            if reading.cell.run is not None and reading.state == "part"
        }
        runs |= {cell.run.path: (cell.folder, cell.run) for cell in self._exams if cell.run and cell.run.begun}
        running = {resumable_folder(path) for path in runs if is_running(path)}
        unfinished, warnings = [], self._unusable_runs()
        named_before = len(warnings)
        for path, (name, run) in runs.items():
            if (missing := missing_conversations(run)) is not None:
                unfinished.append({"run": name, **missing.to_record()})
                folder = resumable_folder(path)
                text = unfinished_text(missing.to_record(), folder, running=folder in running)
                warnings.append(text if len(runs) == 1 else f"{name}: {text}")
        more = len(warnings) - named_before - _MAX_NAMED_RUNS
        if more > 0:
            warnings[-more:] = [f"{more:,} more runs are not finished"]
        damaged = {reading.cell.folder: reading.damaged for reading in self._readings if reading.damaged}
        for name, entries in list(damaged.items())[:_MAX_NAMED_RUNS]:
            others = f" and {len(entries) - 1:,} more" if len(entries) > 1 else ""
            warnings.append(f"{name}: damaged records are left out: {entries[0]}{others}")
        if len(damaged) > _MAX_NAMED_RUNS:
            warnings.append(f"{len(damaged) - _MAX_NAMED_RUNS:,} more runs have damaged records, which are left out")
        for record in records:
            own = (record["result"] or {}).get("warnings", ())
            warnings += [f"{record['name']}: {text}" if len(records) > 1 else text for text in own]
        named = {text: record["folder"] for record in exams for text in record["remarks"]}
        warnings += [text if len(exams) == 1 else f"{folder}: {text}" for text, folder in named.items()]
        return ({"unfinished": unfinished} if unfinished else {}) | ({"warnings": warnings} if warnings else {})

    def _unusable_runs(self) -> list[str]:
        """Return sentences about runs that are left out."""
        left_out = self._left_out or {}
        reasons = [f"left out: {name}: {reason}" for name, reason in left_out.items()]
        names = list(left_out)[_MAX_NAMED_RUNS:]
        if names:
            listed = ", ".join(names[:_MAX_LISTED_RUNS]) + (", …" if len(names) > _MAX_LISTED_RUNS else "")
            reasons[_MAX_NAMED_RUNS:] = [f"{len(names):,} more unusable runs are left out: {listed}"]
        return reasons

    def _notes(self, report: Mapping[str, Any]) -> list[str]:
        notes = _different_banks(report.get("adaptive", ()))
        for group in self._groups:
            notes += group.study.notes(group.own(self._cells), self.scorings[group.study.scenario.name])
        for systems, section in sections_in_order(PRINT_ORDER, self._groups):
            notes += section.notes(systems.part_of(report))
        return notes

    def _facts(self) -> dict[str, Any]:
        """Return what was run, for titles and first lines."""
        read = [reading for reading in self._readings if reading.result is not None]
        states = [reading.state for reading in self._readings]
        cells = [*self._cells, *self._exams]
        facts: dict[str, Any] = {
            "candidates": _distinct_names(cell.candidate for cell in cells),
            "datasets": _distinct_names(cell.dataset for cell in cells),
            "seeds": sorted({cell.seed for cell in cells}),
            "evaluators": _distinct_names(cell.evaluator for cell in cells if cell.evaluator is not None),
            "tiers": sorted({reading.cell.manifest["tier"] for reading in read}),
            "failed": sum(reading.failed for reading in read),
            "states": {name: states.count(name) for name in ("done", "part", "stopped", "not begun")},
        }
        for group in self._groups:
            facts = group.study.facts(facts, self._group_readings(group))
        return facts


def sections_in_order(order: Any, groups: Iterable[SystemGroup]) -> list[tuple[SystemGroup, Section[Any]]]:
    """Return the sections of all systems in an order of subjects."""
    return sort_by_subject(order, ((section.subject, (systems, section)) for systems, section in sections_of(groups)))


def study_tables(report: Mapping[str, Any], groups: Sequence[SystemGroup] | None = None) -> list[Table]:
    """Return all tables of a report that have a row, in print order."""
    groups = systems_of_report(report) if groups is None else groups
    readers = {name: study for group in groups for name, study in group.readers.items()}
    entries = [(section.subject, section.tables(systems.part_of(report))) for systems, section in sections_of(groups)]
    entries += [(section.subject, section.tables(report)) for section in common_sections(readers)]
    return [table for tables in sort_by_subject(PRINT_ORDER, entries) for table in tables if table[2]]


def study_findings(report: Mapping[str, Any]) -> list[Findings]:
    """Return the findings of a report, system by system, then those of adaptive exams."""
    findings = [
        replace(finding, scenario=systems.study.scenario.name)
        for systems in systems_of_report(report)
        for finding in systems.study.findings(systems.part_of(report))
    ]
    return [*findings, *_exam_findings(report.get("adaptive", ()))]


def _exam_findings(records: Sequence[Mapping[str, Any]]) -> Iterator[Findings]:
    """Yield the estimates of exams on one dataset with one seed, judge and bank.

    They are model-based if no candidate contradicts the bank, else assumption-free: one ranking has one kind.
    """
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for record in records:
        if record["exam"] is not None and record["exam"]["assumption_free"]["value"] is not None:
            names = ("scenario", "dataset", "evaluator", "seed")
            key = *(str(record[name] or "") for name in names), str((record["bank"] or {}).get("digest"))
            groups.setdefault(key, []).append(record)
    for (scenario, dataset, *_), group in groups.items():
        exams = {record["candidate"]: record["exam"] for record in group}
        sound = all(exam["model_based"]["low"] is not None and not exam["disagree"] and not exam["implausible"]
                    for exam in exams.values())  # fmt: skip
        kind = "model_based" if sound else "assumption_free"
        standings = [
            RankedCandidate(name, **{end: exam[kind][end] for end in ("value", "low", "high")}, n=exam["asked"])
            for name, exam in exams.items()
        ]
        standings.sort(key=lambda entry: -(entry.value or 0.0))
        means = ", ".join(f"{entry.candidate} {interval(exams[entry.candidate][kind])}" for entry in standings)
        trust = "they hold if the bank describes the models" if sound else "no bank is known to describe all models"
        about = dataset if len(groups) == 1 else f"{dataset} (seed {group[0]['seed']})"
        words = kind.replace("_", "-")
        sentence = f"Means over all items by adaptive exams, {words} estimates: {means}; {trust}."
        yield Findings([sentence], f"adaptive exam, {words}", standings, about, scenario)


def study_sentences(report: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Return all sentences in groups with headings: findings (without a heading if alone), their rules, the court's."""
    findings = [finding for finding in study_findings(report) if finding.sentences]
    groups = [(finding.about if len(findings) > 1 else "", finding.sentences) for finding in findings]
    rules = list(dict.fromkeys(finding.rule for finding in findings if finding.rule))
    if rules:
        groups.append(("", rules))
    if "court" in report:
        groups.append(("Contamination court", court_sentences(report["court"])))
    return groups


def _different_banks(exams: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each dataset whose exams have several banks, so that their means are over other items."""
    banks: dict[tuple[str, str], set[str]] = {}
    for record in exams:
        if record["bank"] is not None:
            banks.setdefault((record["scenario"], record["dataset"]), set()).add(repr(record["bank"]))
    return [
        f"exams of {scenario} on '{dataset}' have {len(own)} different banks: their means may be over different items"
        for (scenario, dataset), own in banks.items()
        if len(own) > 1
    ]


def _distinct_names(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
