"""Page of a study without markup: its sections in order, its plots, and a description of what was run.

Made from the report alone.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from viva.engine.errors import ConfigurationError
from viva.engine.files import shell_path
from viva.scenarios.registry import get_scenario
from viva.scenarios.study_sections import Section, Subject

from ..page import (
    Evidence,
    Page,
    PageSection,
    Plot,
    Record,
    Reference,
    describe_seeds,
    describe_tiers,
    distinct_values,
    join_names,
    list_names,
)
from ..tables import DASH, Table, is_numeric_column, number
from .study import (
    PAGE_ORDER,
    RECORD_ORDER,
    ExamSection,
    Provenance,
    SystemGroup,
    common_sections,
    sections_in_order,
    sections_of,
    sort_by_subject,
    study_findings,
    study_sentences,
    systems_of_report,
)

_MIN_ROWS = 3  # fewest rows for which a shared value moves to the title
_MIN_COLUMNS = 3
_MAX_PLOTTED = 100  # candidates
_MAX_ANSWERS = 8  # rows of the table beside the verdict
_MAX_ERRORS = 60  # rows of a paper's table of standard errors


def dedupe_facts(page: Page) -> None:
    """Avoid repetition on a page.

    The origin that all sections and plots share moves to `page.origin` and is removed from titles, one that only the
    plots share to their section; values that are the same in all rows of a table move from columns to its title.
    """
    plots = [*page.plots, *([page.decisive] if page.decisive else [])]
    origins = {*(plot.origin for plot in plots), *(section.origin for section in page.sections)} - {""}
    if len(origins) == 1:
        page.origin = origins.pop()
        for section in page.sections:
            section.origin = ""
        page.plots = [replace(plot, origin="") for plot in page.plots]
        page.decisive = page.decisive and replace(page.decisive, origin="")
    origin = page.plots[0].origin if page.plots else ""
    if len(page.plots) > 1 and all(plot.origin == origin for plot in page.plots):
        page.plots = [replace(plot, origin="") for plot in page.plots]
        for section in page.sections:
            section.origin = origin if section.plots else section.origin
    parts = page.origin.split(" · ") if page.origin else []
    for section in page.sections:
        section.tables = [_drop_constant_columns(_strip_title_parts(table, parts)) for table in section.tables]


def _strip_title_parts(table: Table, parts: list[str]) -> Table:
    """Remove the parts of a table's title, between commas, that the page's origin already contains."""
    title, header, rows = table
    head, colon, tail = title.partition(": ")
    tail = f", {tail},"
    for part in parts:
        tail = tail.replace(f", {part},", ",").replace(f", {part};", ";")
    tail = tail.strip(",; ")
    return (f"{head}{colon}{tail}" if tail else head, header, rows)


def _drop_constant_columns(table: Table) -> Table:
    """Move columns of words that are the same in every row to the table's title."""
    title, header, rows = table
    constant: list[int] = []
    for at in range(len(header)):
        cells = {row[at] for row in rows}
        remaining = len(header) - len(constant)
        if len(rows) >= _MIN_ROWS and len(cells) == 1 and remaining > _MIN_COLUMNS and not is_numeric_column(rows, at):
            constant.append(at)
    if not constant:
        return table
    indices = [at for at in range(len(header)) if at not in constant]
    constants = ", ".join(f"{header[at]} {rows[0][at]}" for at in constant)
    return (f"{title} · {constants}", [header[at] for at in indices], [[row[at] for at in indices] for row in rows])


_EXAMPLES = {1: ("only",), 2: ("lowest", "highest"), 3: ("lowest", "median", "highest")}
_TIERS = {
    "A": "Reproducible report: the same records give the same report; in a new run, models may answer differently.",
    "B": "Replay: the answers come from a recorded run.",
    "C": "Reproducible transcripts: the models' output is identical at any concurrency, so a new run with the same "
    "settings gives the same report.",
}


def study_page(report: Mapping[str, Any], provenance: Provenance | None = None, *, plots: bool = True) -> Page:
    """Build the page of a study's report (`Study.report()`). Without matplotlib it explains how to get plots.

    Args:
        report: The report.
        provenance: What the figures rest on, for the appendix and commands (`Study.provenance()`).
        plots: False for a page without plots, which takes no time to draw.

    Raises:
        ConfigurationError: if a scenario of the report is not registered here.
    """
    system_groups = systems_of_report(report)
    figures: list[Plot] = []
    missing = ""
    try:
        figures = _section_plots(report, system_groups) if plots else []
    except ConfigurationError as error:
        missing = str(error)
    folders = {} if provenance is None else provenance.folders
    transcripts, references = _transcripts(report, folders), _References(report)
    plot_section = PageSection("plots", "Plots", plots=True)
    sections = _page_sections(report, system_groups, references)
    if figures or missing:
        position = sum(subject in (Subject.RESULTS, Subject.CONTAMINATION) for subject, _ in sections)
        sections.insert(position, (Subject.CONTAMINATION, plot_section))
    groups = study_sentences(report)
    answer, terms = _answer_table(report, references)
    about, verdict = groups[0] if groups else ("", [])
    if verdict and not about and len(distinct_values(report["cells"], "dataset")) > 1:
        about = next((finding.about for finding in study_findings(report) if finding.sentences), "")
    page = Page(
        _heading(report),
        _facts(report, system_groups),
        list(report.get("notes") or ()),
        [
            section
            for _, section in sections
            if section.tables or section.plots or (section.transcripts and transcripts)
        ],
        figures,
        missing,
        transcripts,
        [
            *(method for systems in system_groups for method in systems.study.methods(systems.part_of(report))),
            *_tiers(report),
        ],
        verdict,
        about=about,
        further=groups[1:],
        warnings=list(report.get("warnings") or ()),
        answer=answer,
        terms=terms,
    )
    if provenance is not None:
        results = _result_tables(report, system_groups)
        page.appendix = {markup: [*results, *tables] for markup, tables in provenance.tables.items()}
        page.commands_in = "in the folder in which the report was made"
    if verdict and figures:  # the most informative plot comes first
        page.decisive = next((plot for plot in figures if plot.is_drawn), figures[0])
        page.plots = [plot for plot in figures if plot is not page.decisive]
        page.plots.sort(key=lambda plot: not plot.is_drawn)  # a sentence in between would leave a gap
        page.sections = [section for section in page.sections if page.plots or not section.plots]
    dedupe_facts(page)
    return page


class _References:
    """Makes the names of candidates and items in tables, and counts of failures, references to conversations."""

    def __init__(self, report: Mapping[str, Any]) -> None:
        records = [*report["cells"], *report.get("adaptive", ())]
        self._candidates = {(record["scenario"], record["candidate"]) for record in records}
        self._candidates |= {("", name) for _, name in self._candidates}
        datasets = distinct_values(records, "dataset")
        self._dataset = datasets[0] if len(datasets) == 1 else ""
        self._cells = {record["name"] for record in records}

    def name(self, text: str, evidence: Evidence) -> str:
        """Return the name of a candidate as a reference; unchanged if it is none."""
        known = (evidence.scenario, text) in self._candidates
        return Reference(text, replace(evidence, candidate=text)) if known else text

    def table(self, table: Table, scenario: str, cells: Sequence[str] = (), *, items: bool = False) -> Table:
        """Return a table with references.

        Args:
            table: The table.
            scenario: The scenario of rows that name none; empty if the table is about several.
            cells: The cell of each row, if rows are cells.
            items: The column `item` has names of items.
        """
        title, header, rows = table
        linked = []
        for at, row in enumerate(rows):
            fields = dict(zip(header, row, strict=True))
            dataset = fields.get("dataset", self._dataset)
            evidence = Evidence("", fields.get("scenario", scenario), "" if dataset in ("all", DASH) else dataset)
            candidate, run = fields.get("candidate", ""), fields.get("run", "")
            names = [cells[at]] if cells else [f"{run}#{candidate}", run]
            evidence = replace(evidence, cell=next((name for name in names if name in self._cells), ""))
            owner = self.name(candidate, evidence)
            linked.append([self._cell(*cell, evidence, owner, items) for cell in zip(header, row, strict=True)])
        return title, header, linked

    def _cell(self, column: str, text: str, evidence: Evidence, owner: str, items: bool) -> str:
        if column in _CANDIDATE_COLUMNS:
            return self.name(text, evidence)
        if column == "item" and items:
            return Reference(text, replace(evidence, item=text))
        if column == "failed" and isinstance(owner, Reference) and text not in ("0", DASH):
            return Reference(text, replace(owner.evidence, state="failed"))
        return text


_CANDIDATE_COLUMNS = ("candidate", "first", "second")


def _answer_table(report: Mapping[str, Any], references: _References) -> tuple[Table | None, dict[str, str]]:
    """Return the first ranking of the findings as a table that fits beside the verdict, and what its verdicts mean.

    The table is None if there is no ranking.
    """
    finding = next((finding for finding in study_findings(report) if finding.sentences), None)
    if finding is None or not finding.standings:
        return None, {}
    evidence = Evidence(scenario=finding.scenario, dataset=finding.about)
    standings = finding.standings[:_MAX_ANSWERS]
    rows = [
        [
            references.name(entry.candidate, evidence),
            number(entry.value),
            DASH if entry.low is None or entry.high is None else f"{entry.low:.0f} to {entry.high:.0f}",
            f"{entry.n:,}" if entry.n else DASH,
            *([entry.verdict.replace("_", " ") or DASH] if any(other.verdict for other in finding.standings) else []),
        ]
        for entry in standings
    ]
    more = len(finding.standings) - len(rows)
    title = finding.measure + (", with 95% intervals" if any(entry.low is not None for entry in standings) else "")
    title += f"; {more} more in the tables below" if more > 0 else ""
    met = {entry.verdict for entry in standings}
    terms = {name.replace("_", " "): text for name, text in finding.terms.items() if name in met}
    return (title, ["candidate", "score", "95%", "n", *(["verdict"] if len(rows[0]) > 4 else [])], rows), terms


_PAPER_SUBJECTS = (Subject.RESULTS, Subject.CONTAMINATION, Subject.FURTHER)


def _result_tables(report: Mapping[str, Any], groups: Sequence[SystemGroup]) -> list[Table]:
    """Return the results for a paper: the systems' own tables, with a table of standard errors if these have none."""
    tables = [
        _as_texts(table)
        for systems, section in sections_of(groups)
        if section.subject in _PAPER_SUBJECTS
        for table in section.tables(systems.part_of(report))
        if table[2]
    ]
    tables += [table for table in ExamSection().tables(report) if table[2]]
    if any("SE" in header for _, header, _ in tables):
        return tables
    rows = [
        [
            cell["candidate"],
            cell["dataset"],
            str(row["measure"]),
            number(row["value"], 2),
            number(row["se"], 2),
            f"{row['n']:,}",
        ]
        for systems in groups
        for cell in report["cells"]
        if cell["scenario"] in systems.readers
        for row in systems.readers[cell["scenario"]].cell_rows(cell, {})
        if row["se"] is not None and row["n"]
    ]
    header = ["candidate", "dataset", "figure", "mean", "SE", "n"]
    return [*tables, ("Means with standard errors", header, rows[:_MAX_ERRORS])] if rows else tables


def _page_sections(
    report: Mapping[str, Any], groups: Sequence[SystemGroup], references: _References
) -> list[tuple[Subject, PageSection]]:
    """Return all sections in order, including empty ones."""
    readers = {name: study for group in groups for name, study in group.readers.items()}
    entries: list[tuple[Section[Any], Record, Any, str]] = []
    for systems, section in sections_of(groups):
        is_joint = len(systems.readers) > 1 and section.subject in _JOINT_SUBJECTS
        scenario = "" if is_joint else systems.study.scenario.name
        entries.append((section, systems.part_of(report), systems.study.origin, scenario))
    origin = groups[0].study.origin if len(groups) == 1 else _origin
    entries += [(section, report, origin, "") for section in common_sections(readers)]
    sections = [(entry[0].subject, (entry[0].subject, _page_section(*entry, references))) for entry in entries]
    return sort_by_subject(RECORD_ORDER, sections)


# Tables about the runs of all scenarios that one study combines.
_JOINT_SUBJECTS = (Subject.CONTAMINATION, Subject.CORRELATIONS, Subject.FURTHER)


def _page_section(
    section: Section[Any], report: Record, origin: Any, scenario: str, references: _References
) -> PageSection:
    cells, items = section.subject is Subject.CELLS, section.subject is Subject.ITEMS
    names = [cell["name"] for cell in report["cells"]] if cells else []
    tables = [
        references.table(_as_texts(table), scenario, names, items=items) for table in section.tables(report) if table[2]
    ]
    return PageSection(
        section.anchor, section.heading, tables, "" if cells or not tables else origin(report), transcripts=cells
    )


def _as_texts(table: Table) -> Table:
    title, header, rows = table
    return (str(title), [str(name) for name in header], [[str(cell) for cell in row] for row in rows])


def _section_plots(report: Mapping[str, Any], groups: Sequence[SystemGroup]) -> list[Plot]:
    """Return all drawings that the study has figures for.

    Raises:
        ConfigurationError: if matplotlib is missing, or there are too many candidates.
    """
    from .. import plot_style

    if not any(group.study.has_plots for group in groups):
        return []
    count = len(distinct_values(report["cells"], "candidate"))
    if count > _MAX_PLOTTED:
        raise ConfigurationError(f"{count:,} candidates do not fit into plots; report at most {_MAX_PLOTTED}")
    plot_style.load_matplotlib()
    return [
        plot
        for systems, section in sections_in_order(PAGE_ORDER, groups)
        for plot in section.plots(systems.part_of(report))
    ]


def _heading(report: Mapping[str, Any]) -> str:
    """Return the page's title."""
    cells = [*report["cells"], *report.get("adaptive", ())]
    kinds = [get_scenario(name) for name in distinct_values(cells, "scenario")]
    ran = [scenario.plural.capitalize() or scenario.name for scenario in kinds]
    names = [*ran[:1], *(name.lower() for name in ran[1:])]
    title = " and ".join(part for part in (join_names(names[:-1]), *names[-1:]) if part) or "A study"
    numbers = [(len(distinct_values(cells, name)), name) for name in ("candidate", "dataset")]
    candidates, datasets = (f"{number:,} {name}" + "s" * (number != 1) for number, name in numbers)
    return f"{title}: {candidates} on {datasets}"


def _facts(report: Mapping[str, Any], groups: Sequence[SystemGroup]) -> list[tuple[str, str]]:
    """Describe what was run, as terms and descriptions."""
    cells = report["cells"]
    failed = sum((cell.get("result") or {}).get("failed") or 0 for cell in cells)
    everything = [*cells, *report.get("adaptive", ())]
    facts = {
        "Candidates": list_names(distinct_values(everything, "candidate")),
        "Datasets": list_names(distinct_values(everything, "dataset")),
        "Seeds": join_names(map(str, sorted(distinct_values(everything, "seed")))),
        "Evaluator": list_names(distinct_values(everything, "evaluator")),
        "Reproducibility": describe_tiers(cells) if distinct_values(cells, "tier") else "",
        "Prompt pack": list_names(sorted({_pack(cell.get("pack")) for cell in cells} - {""})),
        "Cells": _run_states(cells) if cells else "",
        "Failed": Reference(f"{failed:,}", Evidence(state="failed")) if failed else "0" if cells else "",
    }
    for systems in groups:
        facts = systems.study.page_facts(facts, systems.part_of(report))
    return [(term, text) for term, text in facts.items() if text]


def _origin(report: Record) -> str:
    cells = report["cells"]
    if not cells:  # adaptive runs
        return describe_seeds(report.get("adaptive", ()))
    return f"{describe_seeds(cells)} · {describe_tiers(cells)}"


def _tiers(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    tiers = [_TIERS[name] for name in sorted(map(str, distinct_values(report["cells"], "tier"))) if name in _TIERS]
    return [("Reproducibility", " ".join(tiers))] if tiers else []


def _transcripts(
    report: Mapping[str, Any], folders: Mapping[str, str]
) -> dict[str, list[tuple[str, list[tuple[str, str]]]]]:
    """Return, by candidate and cell, the conversations to look at first, each with the command that shows it."""
    transcripts: dict[str, list[tuple[str, list[tuple[str, str]]]]] = {}
    for cell in report["cells"]:
        record = cell.get("transcripts") or {}
        keys = list(record.get("examples") or ())
        labels = _EXAMPLES.get(len(keys), tuple(str(number) for number in range(1, len(keys) + 1)))
        folder = str(record.get("folder", ""))
        folder = shell_path(folders.get(folder, folder))
        examples: list[tuple[str, str]] = [
            (
                Reference(label, Evidence(cell=cell["name"], key=key)),
                f"viva show {folder} --conversation {shlex.quote(key)}",
            )
            for label, key in zip(labels, keys, strict=True)
        ]
        if keys:
            transcripts.setdefault(cell["candidate"], []).append((cell["name"], examples))
    return transcripts


def _run_states(cells: Sequence[Record]) -> str:
    counts: dict[str, int] = {}
    for cell in cells:
        counts[cell["state"]] = counts.get(cell["state"], 0) + 1
    return f"{len(cells):,} (" + join_names(f"{count:,} {state}" for state, count in counts.items()) + ")"


def _pack(pack: Any) -> str:
    if not isinstance(pack, Mapping):
        return ""
    digest = str(pack.get("digest", ""))
    return str(pack.get("name", "")) + (f" ({digest[:12]})" if digest else "")
