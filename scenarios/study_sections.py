"""The contract of studies: how a system's runs are read together, and the sections made of many of them.

A section is one subject: it computes its figures from what was read, and makes of their records the tables, the rows
of exports, the plots and the text of a page. Figures are plain data in the report under the section's ``key``;
everything else is made from the report alone, so that tables, files and pages cannot disagree. A system that asks
each item once lends its ``StaticFigures`` to the studies of other systems.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import takewhile
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from pydantic import ValidationError

from viva.engine.errors import ConfigurationError
from viva.reports.figures import Codes, Floats
from viva.reports.page import Plot, Record, describe_seeds, describe_tiers
from viva.reports.tables import DASH, Row, Table, record_rows

from .contract import Findings
from .study_cells import ItemCatalogue, ItemNumbers, Pool, RunReading, StudyCell, read_results

if TYPE_CHECKING:
    from .contract import Scenario


class StaticFigures(Protocol):
    """The figures that a system lends."""

    @property
    def methods(self) -> tuple[str, ...]:
        """All ways of answering, in the order in which reports name them."""

    @property
    def preferred(self) -> tuple[str, ...]:
        """The ways of answering whose accuracy stands for the model's, the best first."""

    def holds(self, reading: RunReading) -> bool:
        """Whether a reading is one of this system's cells."""

    def pooled(self, pool: Pool) -> dict[str, Any]:
        """A pool's figures as plain data: ``accuracy`` and ``unanswered`` by way of answering, ``loss``,
        ``loss_against``, ``loss_gap``, ``detectors``, and ``members``: whose texts detectors rank above the others,
        the ``dataset``'s or those ``against`` it.
        """

    def right(self, pool: Pool, method: str) -> tuple[Floats, Codes]:
        """Whether each item was answered rightly, 1 or 0, and the items by their numbers in the pool's catalogue."""

    def clusters(self, pool: Pool) -> dict[int, int]:
        """The cluster of each item: numbers of the pool's catalogue."""

    def method_label(self, method: str) -> str:
        """A way of answering in words, for an axis."""

    def explanations(self) -> list[tuple[str, str]]:
        """How the figures are computed, as terms and their descriptions."""


def static_readings(figures: StaticFigures | None, readings: Sequence[RunReading]) -> list[RunReading]:
    """Those of a system's cells that have static figures."""
    return [] if figures is None else [reading for reading in readings if figures.holds(reading)]


class Subject(Enum):
    """What a section is about: it gives the section its place in reports."""

    RESULTS = auto()  # scores by candidate and dataset
    CONTAMINATION = auto()  # what was recalled beside what was understood
    COMPARISONS = auto()  # candidates against one another
    AGREEMENT = auto()  # judges, and repetitions, with one another
    ITEMS = auto()  # single items, and how many are needed
    CORRELATIONS = auto()  # one figure with another over candidates
    VARIANTS = auto()  # the same records scored otherwise
    ENDS = auto()  # why conversations ended
    COURSE = auto()  # how figures settle as conversations end
    FAILURES = auto()  # why conversations failed
    COSTS = auto()  # calls, tokens, money
    FURTHER = auto()  # anything else
    CELLS = auto()  # what was run


@dataclass(slots=True)
class Material:
    """Everything that was read of one system's cells; ``scoring`` is the system's choice of how to score."""

    scoring: Any
    readings: list[RunReading]
    catalogue: ItemCatalogue


M = TypeVar("M", bound=Material)


class Section(Generic[M]):
    """One subject of a study. ``key`` is the field of the report that holds the section's figures, empty where it has
    none of its own; ``heading`` and ``anchor`` are those of its part of a page, empty where it has no tables. A study
    has each key and anchor once.
    """

    key: str = ""
    subject: Subject
    heading: str = ""
    anchor: str = ""

    def compute(self, material: M, report: Mapping[str, Any]) -> Any:
        """The figures, as plain data, of a section with a ``key``; ``report`` has those of the sections before it."""
        return None

    def tables(self, report: Record) -> list[Table]:
        """Titled tables: title, header, rows. Those without rows are left out."""
        return []

    def rows(self, report: Record) -> Iterator[Row]:
        """The figures in long form."""
        return iter(())

    def plots(self, report: Record) -> list[Plot]:
        """Drawings, where there are figures for them; matplotlib is there."""
        return []

    def notes(self, report: Record) -> list[str]:
        """What a reader should know of the figures before trusting them."""
        return []


class SystemStudy:
    """How one system's runs are studied. As it is it has a section of the tables that the runs' own reports have.

    ``settings`` are those in which cells should not differ; ``takes_static``: runs of systems that offer ``static``
    figures are part of this system's study, which is made with the figures that they lend (``lent``); ``by_item``:
    cells of one dataset are pooled and compared item by item, so other files of its name are other datasets;
    `has_plots`: there may be plots.
    """

    settings: ClassVar[tuple[str, ...]] = ()
    takes_static: ClassVar[bool] = False
    by_item: ClassVar[bool] = False
    has_plots: ClassVar[bool] = False

    def __init__(self, scenario: Scenario[Any, Any], lent: StaticFigures | None = None) -> None:
        self.scenario, self.lent = scenario, lent
        self.sections: Sequence[Section[Any]] = self.make_sections()

    def make_sections(self) -> Sequence[Section[Any]]:
        """The sections. They are computed in the order of their subjects, and as they come within one."""

        return [RunTables(self.scenario)]

    @property
    def static(self) -> StaticFigures | None:
        """The figures that this system offers to others; None where it has none."""
        return None

    @property
    def parts(self) -> tuple[str, ...]:
        """Parts of the manifest in which cells should not differ: the prompt pack, and models of other roles."""
        other_roles = tuple(role.name for role in self.scenario.roles if not (role.many or role.judge))
        return (("pack",) if self.scenario.templates is not None else ()) + other_roles

    # -- computing --------------------------------------------------------------------------------------------------

    def scoring(self, cells: Sequence[StudyCell], name: str | None) -> Any:
        """How the results of these cells are scored; ``name`` is the scorer that was asked for.

        :raises ConfigurationError: there is no such scorer, or the runs do not agree on one.
        """
        try:
            return self.scenario.scoring.model_validate({} if name is None else {"scorer": name})
        except ValidationError as error:
            message = error.errors(include_url=False)[0]["msg"]
            raise ConfigurationError(f"--scorer {name}: {self.scenario.name}: {message}") from None

    def read(self, readings: Sequence[RunReading], scoring: Any, items: ItemNumbers) -> None:
        """Fill in the readings of one run's cells; ``items`` takes up the names of items.

        :raises JournalError: the journal is missing or damaged.
        """
        read_results(self.scenario, readings, scoring)

    def material(self, readings: list[RunReading], scoring: Any, catalogue: ItemCatalogue) -> Material:
        """What the sections compute from; ``readings`` are those of cells that have begun."""
        return Material(scoring, readings, catalogue)

    def head(self, scoring: Any) -> dict[str, Any]:
        """What stands first in the report."""
        return {}

    def facts(self, common: dict[str, Any], readings: Sequence[RunReading]) -> dict[str, Any]:
        """What was run, for titles and first lines; ``common`` has what is said of every system."""
        return common

    def cell(self, common: dict[str, Any], reading: RunReading, scoring: Any) -> dict[str, Any]:
        """The record of a cell; ``common`` has what is said of every system's."""
        return common

    def notes(self, cells: Sequence[StudyCell], scoring: Any) -> list[str]:
        """What a reader should know of the cells together, beside in what they differ."""
        return []

    # -- from the report --------------------------------------------------------------------------------------------

    def shown_result(self, cell: Record) -> str:
        """A cell's result in a few words."""
        return str((cell["result"] or {}).get("headline") or DASH)

    def cell_rows(self, cell: Record, prefix: Row) -> Iterator[Row]:
        """A cell's figures in long form."""
        yield from record_rows(prefix, "", cell["result"] or {})

    def page_facts(self, common: dict[str, str], report: Record) -> dict[str, str]:
        """What was run, as terms and their descriptions, empty ones left out later; ``common`` has those of every
        system.
        """
        return common

    def origin(self, report: Record) -> str:
        """One line for under a figure: what it rests on."""
        ended = sum(cell["ended"] for cell in report["cells"])
        return f"n = {ended:,} conversations · {describe_seeds(report['cells'])} · {describe_tiers(report['cells'])}"

    def methods(self, report: Record) -> list[tuple[str, str]]:
        """How figures are computed, as terms and their descriptions."""
        return []

    def findings(self, report: Record) -> Sequence[Findings]:
        """What the report says in a few sentences, and the candidates in order, once for each dataset; empty where this
        system has no words for it.
        """
        return []


def insert_after(mapping: Mapping[str, Any], after: str, **more: Any) -> dict[str, Any]:
    """The mapping with further fields behind one of its own."""
    extended: dict[str, Any] = {}
    for name, value in mapping.items():
        extended[name] = value
        if name == after:
            extended |= more
    return extended


class RunTables(Section[Material]):
    """Each table of the runs' own reports once, with the rows of all runs that have it."""

    subject = Subject.RESULTS

    def __init__(self, scenario: Scenario[Any, Any]) -> None:
        self.key = self.anchor = scenario.name
        self.heading = (scenario.plural or scenario.name).capitalize()

    def compute(self, material: Material, report: Mapping[str, Any]) -> list[dict[str, Any]]:
        """For each run its name and its tables."""
        runs: dict[str, list[dict[str, Any]]] = {}
        for reading in material.readings:
            if reading.own_tables is not None and reading.cell.folder not in runs:
                runs[reading.cell.folder] = [
                    {"title": title, "header": list(header), "rows": [list(row) for row in rows]}
                    for title, header, rows in reading.own_tables()
                    if rows
                ]
        return [{"run": name, "tables": tables} for name, tables in runs.items()]

    def tables(self, report: Record) -> list[Table]:
        runs = report[self.key]
        groups: dict[tuple[Any, ...], list[tuple[str, Mapping[str, Any]]]] = {}
        for run in runs:
            met: dict[tuple[str, ...], int] = {}
            for table in run["tables"]:
                header = tuple(table["header"])
                met[header] = met.get(header, 0) + 1  # tables with the same columns are numbered
                groups.setdefault((header, met[header]), []).append((run["run"], table))
        tables: list[Table] = []
        for (header, _), entries in groups.items():
            title = _shared_title([str(table["title"]) for _, table in entries])
            if len(runs) == 1:
                tables.append((title, list(header), [list(row) for _, table in entries for row in table["rows"]]))
            else:
                rows = [[name, *row] for name, table in entries for row in table["rows"]]
                tables.append((title, ["run", *header], rows))
        return tables


def _shared_title(titles: list[str]) -> str:
    """What all titles say, part by part between commas; "…" stands where they go different ways."""
    parts = [title.split(", ") for title in titles]
    if len({len(texts) for texts in parts}) > 1:
        return titles[0]
    shared = []
    for texts in zip(*parts, strict=True):
        words = takewhile(lambda same: len(set(same)) == 1, zip(*(part.split() for part in texts), strict=False))
        shared.append(texts[0] if len(set(texts)) == 1 else " ".join([*(same[0] for same in words), "…"]))
    return ", ".join(shared)
