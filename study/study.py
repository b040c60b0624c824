"""A study: what several runs and sweeps say together, as plain data and as tables.

The same records give the same report, byte for byte, in whatever order and company the conversations were held.
What never belongs here: figures (sections of systems), markup (``reports.markup``), files (``exports``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from viva.engine.errors import ConfigurationError
from viva.reports.text import Table
from viva.scenarios.study.cells import RunReading
from viva.scenarios.study.findings import Findings
from viva.scenarios.study.items import ItemCatalogue, ItemNumbers
from viva.scenarios.study.sections import Section

from .cache import ReportCache, key_of
from .cells import find_cells
from .common import common_sections
from .differences import differences, tell_datasets_apart
from .order import PRINTED, RECORDED, ordered
from .reading import cell_record, read_cells, run_key
from .systems import SystemsTogether, sections_of, systems_in, systems_of

VERSION = 1


class Study:
    """The study over runs and sweeps in ``folders``, read when it is made. No model is called.

    ``scorings`` has by system how its results are scored. With a ``cache`` nothing is read or computed that an earlier
    report has, as long as it rests on the same; the report is the same, byte for byte.

    :raises ConfigurationError: a folder is neither a run nor a sweep, or the runs do not agree on a scorer and none is
        named.
    :raises JournalError: a journal is damaged.
    """

    def __init__(self, folders: Sequence[Path], scorer: str | None = None, cache: ReportCache | None = None) -> None:
        self._cells = find_cells(folders)
        self._together = systems_of(cell.scenario for cell in self._cells)
        tell_datasets_apart(self._cells, self._together)
        self.scorings = self._scorings(scorer)
        key = None if cache is None else self._key()
        self._report: dict[str, Any] | None = None if cache is None else cache.load(key, {})
        if self._report is None:
            items: dict[str, ItemNumbers] = {}
            self._readings = read_cells(self._cells, self._together, self.scorings, items, cache)
            self._catalogue = ItemCatalogue(items)
            if cache is not None and not any(one.damaged for one in self._readings) and self._key() == key:
                cache.store(key, self.report(), {})

    def _key(self) -> str | None:
        """What the whole report follows from; None where that cannot be told."""
        found = []
        for cell in self._cells:
            if (key := run_key(cell, self.scorings)) is None:
                return None
            named = (cell.name, cell.folder, cell.candidate, cell.model, cell.dataset, cell.seed, cell.evaluator)
            found.append((key, named, cell.planned, cell.until))
        return key_of("report", VERSION, found)

    def report(self) -> dict[str, Any]:
        """Everything as plain data; docs/reports.md names the fields."""
        if self._report is None:
            self._report = self._made()
        return self._report

    def tables(self) -> list[Table]:
        """The report as titled tables: title, header, rows."""
        return [(one["title"], one["header"], one["rows"]) for one in self.report()["tables"]]

    def _scorings(self, scorer: str | None) -> dict[str, Any]:
        """:raises ConfigurationError: a scorer is named that no system knows, or none where the runs do not agree."""
        with_scorers = [
            one.study.which.name for one in self._together if "scorer" in one.study.which.scoring.model_fields
        ]
        if scorer is not None and not with_scorers:
            names = " and ".join(one.study.which.name for one in self._together)
            raise ConfigurationError(f"--scorer: {names} has no scorer to choose")
        return {
            name: one.study.scoring(one.own(self._cells), scorer if name in with_scorers else None)
            for one in self._together
            for name in [one.study.which.name]
        }

    def _made(self) -> dict[str, Any]:
        report: dict[str, Any] = {"study": VERSION}
        for one in self._together:
            report |= one.study.head(self.scorings[one.study.which.name])
        report |= {"facts": self._facts(), "notes": differences(self._cells, self._together)}
        report["cells"] = self._records()
        for one in self._together:
            study = one.study
            begun = [reading for reading in self._own(one) if reading.result is not None]
            material = study.material(begun, self.scorings[study.which.name], self._catalogue)
            for section in ordered(RECORDED, ((section.subject, section) for section in study.sections)):
                if section.key:
                    report[section.key] = section.compute(material, report)
        report["notes"] += self._notes(report)
        report["tables"] = [
            {"title": title, "header": header, "rows": rows}
            for title, header, rows in tables_of(report, self._together)
        ]
        return report

    def _own(self, one: SystemsTogether) -> list[RunReading]:
        return [reading for reading in self._readings if reading.cell.scenario in one.readers]

    def _records(self) -> list[dict[str, Any]]:
        """The records of all cells, each as its system has it."""
        by_scenario = {name: one for one in self._together for name in one.readers}
        records = []
        for reading in self._readings:
            study = by_scenario[reading.cell.scenario].study
            records.append(study.cell(cell_record(reading), reading, self.scorings[study.which.name]))
        return records

    def _notes(self, report: Mapping[str, Any]) -> list[str]:
        notes = []
        for one in self._together:
            notes += one.study.notes(one.own(self._cells), self.scorings[one.study.which.name])
        for systems, section in in_order(PRINTED, self._together):
            notes += section.notes(systems.part_of(report))
        return notes

    def _facts(self) -> dict[str, Any]:
        """What was run, for titles and first lines."""
        read = [one for one in self._readings if one.result is not None]
        states = [one.state for one in self._readings]
        facts: dict[str, Any] = {
            "candidates": _distinct(one.candidate for one in self._cells),
            "datasets": _distinct(one.dataset for one in self._cells),
            "seeds": sorted({one.seed for one in self._cells}),
            "evaluators": _distinct(one.evaluator for one in self._cells if one.evaluator is not None),
            "tiers": sorted({one.cell.manifest["tier"] for one in read}),
            "failed": sum(one.failed for one in read),
            "states": {name: states.count(name) for name in ("done", "part", "stopped", "not begun")},
        }
        for one in self._together:
            facts = one.study.facts(facts, self._own(one))
        return facts


def in_order(order: Any, together: Iterable[SystemsTogether]) -> list[tuple[SystemsTogether, Section[Any]]]:
    """The sections of all systems in an order of subjects."""
    return ordered(order, ((section.subject, (systems, section)) for systems, section in sections_of(together)))


def tables_of(report: Mapping[str, Any], together: Sequence[SystemsTogether] | None = None) -> list[Table]:
    """All tables of a report that have a row, in the order in which they are printed.

    :raises ConfigurationError: a scenario of the report is not registered here.
    """
    together = systems_in(report) if together is None else together
    readers = {name: study for one in together for name, study in one.readers.items()}
    found = [(section.subject, section.tables(systems.part_of(report))) for systems, section in sections_of(together)]
    found += [(section.subject, section.tables(report)) for section in common_sections(readers)]
    return [table for tables in ordered(PRINTED, found) for table in tables if table[2]]


def findings_of(report: Mapping[str, Any]) -> list[Findings]:
    """What a report says in words, system by system; empty where no system has words for it.

    :raises ConfigurationError: a scenario of the report is not registered here.
    """
    return [
        replace(one, scenario=systems.study.which.name)
        for systems in systems_in(report)
        for one in systems.study.findings(systems.part_of(report))
    ]


def sentences_of(report: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """The sentences of ``findings_of`` in groups, each with a heading where there are several; last the rule that they
    keep to, without a heading.

    :raises ConfigurationError: a scenario of the report is not registered here.
    """
    found = [one for one in findings_of(report) if one.sentences]
    groups = [(one.about if len(found) > 1 else "", one.sentences) for one in found]
    rules = list(dict.fromkeys(one.rule for one in found if one.rule))
    return [*groups, ("", rules)] if rules else groups


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
