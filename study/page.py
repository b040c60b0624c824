"""The page of a study, without markup: its sections in order, its drawings, and what was run in words.

Made from the report alone. What never belongs here: computing figures, HTML, and what one system says.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from viva.engine.errors import ConfigurationError
from viva.reports.page import Page, PageSection, Plot, Record, distinct, joined, listed, seeds_of, tiers_of
from viva.reports.text import Table
from viva.scenarios.registry import scenario
from viva.scenarios.study.sections import Section, Subject

from .common import common_sections
from .order import DRAWN, RECORDED, ordered
from .page_repeats import said_once
from .study import in_order, sentences_of
from .systems import SystemsTogether, sections_of, systems_in

_EXAMPLES = {1: ("only",), 2: ("lowest", "highest"), 3: ("lowest", "median", "highest")}
_TIERS = {
    "A": "A: which items, in which order, and all means are the same at every run; answers of models need not be.",
    "B": "B: answers are those of a recorded run, replayed.",
    "C": "C: the models give identical output at any concurrency, so the same settings give the same report.",
}


def page_of(report: Mapping[str, Any]) -> Page:
    """The page of a study's report (``Study.report()``). Without matplotlib it has no plots, and says how to get them.

    :raises ConfigurationError: a scenario of the report is not registered here.
    """
    together = systems_in(report)
    drawn: list[Plot] = []
    missing = ""
    try:
        drawn = _plots(report, together)
    except ConfigurationError as error:
        missing = str(error)
    transcripts = _transcripts(report)
    plots = PageSection("plots", "Plots", plots=True)
    sections = _sections(report, together)
    if drawn or missing:
        place = sum(subject in (Subject.RESULTS, Subject.CONTAMINATION) for subject, _ in sections)
        sections.insert(place, (Subject.CONTAMINATION, plots))
    groups = sentences_of(report)
    about, verdict = groups[0] if groups else ("", [])
    page = Page(
        _heading(report),
        _facts(report, together),
        list(report.get("notes") or ()),
        [
            section
            for _, section in sections
            if section.tables or section.plots or (section.transcripts and transcripts)
        ],
        drawn,
        missing,
        transcripts,
        [*(one for systems in together for one in systems.study.methods(systems.part_of(report))), *_tiers(report)],
        verdict,
        about=about,
        further=groups[1:],
    )
    if verdict and drawn:  # the plot that shows most comes first
        page.decisive, page.plots = drawn[0], drawn[1:]
        page.sections = [one for one in page.sections if page.plots or not one.plots]
    said_once(page)
    return page


def _sections(report: Mapping[str, Any], together: Sequence[SystemsTogether]) -> list[tuple[Subject, PageSection]]:
    """All sections in their order, also those that hold nothing."""
    readers = {name: study for one in together for name, study in one.readers.items()}
    found = [
        (section.subject, (section.subject, _section(section, systems.part_of(report), systems.study.origin)))
        for systems, section in sections_of(together)
    ]
    origin = together[0].study.origin if len(together) == 1 else _origin
    found += [
        (section.subject, (section.subject, _section(section, report, origin))) for section in common_sections(readers)
    ]
    return ordered(RECORDED, found)


def _section(section: Section[Any], report: Record, origin: Any) -> PageSection:
    tables = [_as_texts(table) for table in section.tables(report) if table[2]]
    cells = section.subject is Subject.CELLS
    return PageSection(
        section.anchor, section.heading, tables, "" if cells or not tables else origin(report), transcripts=cells
    )


def _as_texts(table: Table) -> Table:
    title, header, rows = table
    return (str(title), [str(name) for name in header], [[str(cell) for cell in row] for row in rows])


def _plots(report: Mapping[str, Any], together: Sequence[SystemsTogether]) -> list[Plot]:
    """All drawings that the study has figures for.

    :raises ConfigurationError: matplotlib is missing.
    """
    from viva.scoring.plots import style

    if not any(one.study.drawn for one in together):
        return []
    style.library()
    return [plot for systems, section in in_order(DRAWN, together) for plot in section.plots(systems.part_of(report))]


def _heading(report: Mapping[str, Any]) -> str:
    """The page's title."""
    cells = report["cells"]
    kinds = [scenario(name) for name in distinct(cells, "scenario")]
    ran = [which.plural.capitalize() or which.name for which in kinds]
    what = " and ".join([*ran[:1], *(name.lower() for name in ran[1:])]) or "A study"
    numbers = [(len(distinct(cells, name)), name) for name in ("candidate", "dataset")]
    candidates, datasets = (f"{number:,} {name}" + "s" * (number != 1) for number, name in numbers)
    return f"{what}: {candidates} on {datasets}"


def _facts(report: Mapping[str, Any], together: Sequence[SystemsTogether]) -> list[tuple[str, str]]:
    """What was run, as terms and their descriptions."""
    cells = report["cells"]
    failed = sum((cell.get("result") or {}).get("failed") or 0 for cell in cells)
    facts = {
        "Candidates": listed(distinct(cells, "candidate")),
        "Datasets": listed(distinct(cells, "dataset")),
        "Seeds": joined(map(str, sorted(distinct(cells, "seed")))),
        "Evaluator": listed(distinct(cells, "evaluator")),
        "Tier": joined(sorted(distinct(cells, "tier"))),
        "Prompt pack": listed(sorted({_pack(cell.get("pack")) for cell in cells} - {""})),
        "Cells": _states(cells),
        "Failed": f"{failed:,}",
    }
    for systems in together:
        facts = systems.study.page_facts(facts, systems.part_of(report))
    return [(term, text) for term, text in facts.items() if text]


def _origin(report: Record) -> str:
    return f"{seeds_of(report['cells'])} · {tiers_of(report['cells'])}"


def _tiers(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    tiers = [_TIERS[name] for name in sorted(map(str, distinct(report["cells"], "tier"))) if name in _TIERS]
    return [("Tier", " ".join(tiers))] if tiers else []


def _transcripts(report: Mapping[str, Any]) -> dict[str, list[tuple[str, list[tuple[str, str]]]]]:
    """By candidate, for each cell that has them, conversations worth a look, each with the command that shows it."""
    found: dict[str, list[tuple[str, list[tuple[str, str]]]]] = {}
    for cell in report["cells"]:
        record = cell.get("transcripts") or {}
        keys = list(record.get("examples") or ())
        which = _EXAMPLES.get(len(keys), tuple(str(number) for number in range(1, len(keys) + 1)))
        folder = shlex.quote(str(record.get("folder", "")))
        commands = [f"viva show {folder} --conversation {shlex.quote(key)}" for key in keys]
        if keys:
            found.setdefault(cell["candidate"], []).append((cell["name"], list(zip(which, commands, strict=True))))
    return found


def _states(cells: Sequence[Record]) -> str:
    counts: dict[str, int] = {}
    for cell in cells:
        counts[cell["state"]] = counts.get(cell["state"], 0) + 1
    return f"{len(cells):,} (" + joined(f"{count:,} {state}" for state, count in counts.items()) + ")"


def _pack(pack: Any) -> str:
    if not isinstance(pack, Mapping):
        return ""
    digest = str(pack.get("digest", ""))
    return str(pack.get("name", "")) + (f" ({digest[:12]})" if digest else "")
