"""The contract of studies, which read several runs of a scenario together, and of a study's sections.

A section has one subject: it computes figures from the readings, and makes tables, export rows, plots and page text of
the figures' records. Figures are plain data in the report under the section's `key`; everything else is made from the
report alone, so that tables, files and pages cannot disagree. A scenario that asks each item once lends its
`StaticFigures` to the studies of other scenarios.
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
from viva.scoring.correlation import ModelScores

from .contract import Findings
from .study_cells import ItemCatalogue, ItemNumbers, Pool, RunReading, StudyCell, read_results

if TYPE_CHECKING:
    from .contract import Scenario


class StaticFigures(Protocol):
    """The figures that a scenario lends to others."""

    @property
    def methods(self) -> tuple[str, ...]:
        """The answering methods, in report order."""

    @property
    def preferred(self) -> tuple[str, ...]:
        """The answering methods whose accuracy counts as the model's, the best first."""

    def holds(self, reading: RunReading) -> bool:
        """Return True if a reading is one of this scenario's cells."""

    def pooled(self, pool: Pool) -> dict[str, Any]:
        """Return a pool's figures as plain data.

        The fields are `accuracy` and `unanswered` by answering method, `loss`, `loss_against`, `loss_gap`, `detectors`,
        and `members`: the set whose texts detectors rank higher, `dataset` or `against`.
        """

    def right(self, pool: Pool, method: str) -> tuple[Floats, Codes]:
        """Return for each answer 1 if it is right, else 0, and its item's number; items have an answer in each cell."""

    def clusters(self, pool: Pool) -> dict[int, int]:
        """Return the cluster of each item, as numbers of the pool's catalogue."""

    def method_label(self, method: str) -> str:
        """Return an answering method in words, for an axis."""

    def explanations(self) -> list[tuple[str, str]]:
        """Return how the figures are computed, as terms and descriptions."""


def static_readings(figures: StaticFigures | None, readings: Sequence[RunReading]) -> list[RunReading]:
    """Return the readings that have static figures."""
    return [] if figures is None else [reading for reading in readings if figures.holds(reading)]


class Subject(Enum):
    """The subject of a section, which decides its place in reports."""

    RESULTS = auto()  # scores by candidate and dataset
    CONTAMINATION = auto()  # recall compared with understanding
    COMPARISONS = auto()  # candidates against one another
    AGREEMENT = auto()  # among judges, and among repetitions
    ITEMS = auto()  # single items, and the number needed
    CORRELATIONS = auto()  # between figures over candidates
    VARIANTS = auto()  # the same records under other scorers
    ENDS = auto()  # why conversations ended
    COURSE = auto()  # how figures converge as conversations end
    FAILURES = auto()  # why conversations failed
    COSTS = auto()  # calls, tokens, money
    FURTHER = auto()  # anything else
    CELLS = auto()  # what was run


@dataclass(slots=True)
class Material:
    """The readings of one scenario's cells; `scoring` holds the scoring options."""

    scoring: Any
    readings: list[RunReading]
    catalogue: ItemCatalogue


M = TypeVar("M", bound=Material)


class Section(Generic[M]):
    """A subject of a study.

    `key` is the field of the report that holds the section's figures, empty if it has none; `heading` and `anchor`
    belong to its part of a page, empty if it has no tables. Keys and anchors are unique within a study.
    """

    key: str = ""
    subject: Subject
    heading: str = ""
    anchor: str = ""

    def compute(self, material: M, report: Mapping[str, Any]) -> Any:
        """Return the figures of a section with a `key`, as plain data; `report` has the figures of earlier sections."""
        return None

    def tables(self, report: Record) -> list[Table]:
        """Return titled tables: title, header, rows. Tables without rows are left out."""
        return []

    def rows(self, report: Record) -> Iterator[Row]:
        """Yield the figures in long form."""
        return iter(())

    def plots(self, report: Record) -> list[Plot]:
        """Return plots, if there are figures for them; matplotlib is available."""
        return []

    def notes(self, report: Record) -> list[str]:
        """Return caveats that a reader should know before trusting the figures."""
        return []


class SystemStudy:
    """The study of one scenario's runs; by default, one section with the tables of their reports.

    Attributes:
        settings: The settings in which cells should not differ.
        takes_static: Runs of scenarios with `static` figures are part of this study, which gets these figures as
            `lent`.
        by_item: Cells of one dataset are pooled and compared item by item, so different files of one name count as
            different datasets.
        has_plots: There may be plots.
    """

    settings: ClassVar[tuple[str, ...]] = ()
    takes_static: ClassVar[bool] = False
    by_item: ClassVar[bool] = False
    has_plots: ClassVar[bool] = False

    def __init__(self, scenario: Scenario[Any, Any], lent: StaticFigures | None = None) -> None:
        self.scenario, self.lent = scenario, lent
        self.sections: Sequence[Section[Any]] = self.make_sections()

    def make_sections(self) -> Sequence[Section[Any]]:
        """Return the sections; they are computed in the order of their subjects, then in this order."""
        return [RunTables(self.scenario)]

    @property
    def static(self) -> StaticFigures | None:
        """The figures that this scenario lends to others; None if it has none."""
        return None

    @property
    def parts(self) -> tuple[str, ...]:
        """The fields of the manifest in which cells should not differ: the prompt pack, and models of other roles."""
        other_roles = tuple(role.name for role in self.scenario.roles if not (role.many or role.judge))
        return (("pack",) if self.scenario.templates is not None else ()) + other_roles

    # -- computing --------------------------------------------------------------------------------------------------

    def scoring(self, cells: Sequence[StudyCell], name: str | None) -> Any:
        """Return how the results of these cells are scored; `name` is the scorer from the command line.

        Raises:
            ConfigurationError: There is no such scorer, or the runs do not agree on one.
        """
        try:
            return self.scenario.scoring.model_validate({} if name is None else {"scorer": name})
        except ValidationError as error:
            message = error.errors(include_url=False)[0]["msg"]
            raise ConfigurationError(f"--scorer {name}: {self.scenario.name}: {message}") from None

    def read(self, readings: Sequence[RunReading], scoring: Any, items: ItemNumbers) -> None:
        """Fill the readings of one run's cells, and add the names of items to `items`."""
        read_results(self.scenario, readings, scoring)

    def material(self, readings: list[RunReading], scoring: Any, catalogue: ItemCatalogue) -> Material:
        """Return the material of the sections; `readings` are of cells that have begun."""
        return Material(scoring, readings, catalogue)

    def head(self, scoring: Any) -> dict[str, Any]:
        """Return the first fields of the report."""
        return {}

    def facts(self, common: dict[str, Any], readings: Sequence[RunReading]) -> dict[str, Any]:
        """Return the facts about the runs for titles and first lines; `common` has the facts of every scenario."""
        return common

    def cell(self, common: dict[str, Any], reading: RunReading, scoring: Any) -> dict[str, Any]:
        """Return the record of a cell; `common` has the fields of every scenario."""
        return common

    def notes(self, cells: Sequence[StudyCell], scoring: Any) -> list[str]:
        """Return notes on the cells together, besides their differences."""
        return []

    def judge_exams(self, figures: Sequence[ModelScores], answered: Mapping[str, int]) -> Record | None:
        """Return verdicts on candidates of whom two adaptive exams estimate static accuracy and score.

        Args:
            figures: The estimates of each candidate with their errors, in points, all of one dataset.
            answered: The smaller number of answers of each candidate.

        Returns:
            `candidates`, each with `verdict` and its test, `sentences`, and the `rule`; None if there are no verdicts.
        """
        return None

    # -- from the report --------------------------------------------------------------------------------------------

    def shown_result(self, cell: Record) -> str:
        """Return a cell's result in a few words."""
        return str((cell["result"] or {}).get("headline") or DASH)

    def cell_rows(self, cell: Record, prefix: Row) -> Iterator[Row]:
        """Yield a cell's figures in long form."""
        yield from record_rows(prefix, "", cell["result"] or {})

    def page_facts(self, common: dict[str, str], report: Record) -> dict[str, str]:
        """Return facts about the runs as terms and descriptions; `common` has the facts of every scenario."""
        return common

    def origin(self, report: Record) -> str:
        """Return a line to print below a figure: the data that the figure is based on."""
        ended = sum(cell["ended"] for cell in report["cells"])
        return f"n = {ended:,} conversations · {describe_seeds(report['cells'])} · {describe_tiers(report['cells'])}"

    def methods(self, report: Record) -> list[tuple[str, str]]:
        """Return how figures are computed, as terms and descriptions."""
        return []

    def findings(self, report: Record) -> Sequence[Findings]:
        """Return conclusions and a ranking of the candidates, once for each dataset; empty by default."""
        return []


def insert_after(mapping: Mapping[str, Any], after: str, **more: Any) -> dict[str, Any]:
    """Return the mapping with the fields `more` after its field `after`; unchanged if it lacks that field."""
    extended: dict[str, Any] = {}
    for name, value in mapping.items():
        extended[name] = value
        if name == after:
            extended |= more
    return extended


class RunTables(Section[Material]):
    """The tables of the runs' own reports, each once, with the rows of all runs that have the table."""

    subject = Subject.RESULTS

    def __init__(self, scenario: Scenario[Any, Any]) -> None:
        self.key = self.anchor = scenario.name
        self.heading = (scenario.plural or scenario.name).capitalize()

    def compute(self, material: Material, report: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return each run's name and tables."""
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
    """Return the common words of all titles, part by part between commas; "…" replaces differing ends."""
    parts = [title.split(", ") for title in titles]
    if len({len(texts) for texts in parts}) > 1:
        return titles[0]
    shared = []
    for texts in zip(*parts, strict=True):
        words = takewhile(lambda same: len(set(same)) == 1, zip(*(part.split() for part in texts), strict=False))
        shared.append(texts[0] if len(set(texts)) == 1 else " ".join([*(same[0] for same in words), "…"]))
    return ", ".join(shared)
