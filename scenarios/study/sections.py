"""What a system says of its runs studied together: how a run is read, and the sections that are made of many.

A section is one subject: it computes its figures from what was read, and makes of their records the tables, the rows of
exports, the drawings and the words for a page. Figures are plain data in the report under the section's ``key``; all
else is made from the report alone, so that tables, files and pages cannot disagree.

What never belongs here: one system's figures, and the order and the forms of a report (the room ``study``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from pydantic import ValidationError

from viva.engine.errors import ConfigurationError
from viva.reports.page import Plot, Record, seeds_of, tiers_of
from viva.reports.rows import Row, record_rows
from viva.reports.text import DASH, Table

from .cells import RunReading, StudyCell
from .findings import Findings
from .items import ItemCatalogue, ItemNumbers
from .reading import read_results

if TYPE_CHECKING:
    from ..contract import Scenario
    from .static import StaticFigures


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
    """What sections compute from: everything that was read of one system's cells.

    ``scoring`` is the system's choice of how to score (``SystemStudy.scoring``).
    """

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
    cells of one dataset are pooled and compared item by item, so other files of its name are other datasets; ``drawn``:
    there may be plots.
    """

    settings: ClassVar[tuple[str, ...]] = ()
    takes_static: ClassVar[bool] = False
    by_item: ClassVar[bool] = False
    drawn: ClassVar[bool] = False

    def __init__(self, which: Scenario[Any, Any], lent: StaticFigures | None = None) -> None:
        self.which, self.lent = which, lent
        self.sections: Sequence[Section[Any]] = self.make_sections()

    def make_sections(self) -> Sequence[Section[Any]]:
        """The sections. They are computed in the order of their subjects, and as they come within one."""
        from .tables import OwnTables

        return [OwnTables(self.which)]

    @property
    def static(self) -> StaticFigures | None:
        """The figures that this system offers to others; None where it has none."""
        return None

    @property
    def parts(self) -> tuple[str, ...]:
        """Parts of the manifest in which cells should not differ: the prompt pack, and models of other roles."""
        others = tuple(role.name for role in self.which.roles if not (role.many or role.judge))
        return (("pack",) if self.which.templates is not None else ()) + others

    # -- computing --------------------------------------------------------------------------------------------------

    def scoring(self, cells: Sequence[StudyCell], name: str | None) -> Any:
        """How the results of these cells are scored; ``name`` is the scorer that was asked for.

        :raises ConfigurationError: there is no such scorer, or the runs do not agree on one.
        """
        try:
            return self.which.scoring.model_validate({} if name is None else {"scorer": name})
        except ValidationError as error:
            message = error.errors(include_url=False)[0]["msg"]
            raise ConfigurationError(f"--scorer {name}: {self.which.name}: {message}") from None

    def read(self, readings: Sequence[RunReading], scoring: Any, items: ItemNumbers) -> None:
        """Fill in the readings of one run's cells; ``items`` takes up the names of items.

        :raises JournalError: the journal is missing or damaged.
        """
        read_results(self.which, readings, scoring)

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

    def cell_rows(self, cell: Record, place: Row) -> Iterator[Row]:
        """A cell's figures in long form."""
        yield from record_rows(place, "", cell["result"] or {})

    def page_facts(self, common: dict[str, str], report: Record) -> dict[str, str]:
        """What was run, as terms and their descriptions, empty ones left out later; ``common`` has those of every
        system.
        """
        return common

    def origin(self, report: Record) -> str:
        """One line for under a figure: what it rests on."""
        ended = sum(cell["ended"] for cell in report["cells"])
        return f"n = {ended:,} conversations · {seeds_of(report['cells'])} · {tiers_of(report['cells'])}"

    def methods(self, report: Record) -> list[tuple[str, str]]:
        """How figures are computed, as terms and their descriptions."""
        return []

    def findings(self, report: Record) -> Sequence[Findings]:
        """What the report says in a few sentences, and the candidates in order, once for each dataset; empty where this
        system has no words for it.
        """
        return []


def inserted(mapping: Mapping[str, Any], after: str, **more: Any) -> dict[str, Any]:
    """The mapping with further fields behind one of its own."""
    found: dict[str, Any] = {}
    for name, value in mapping.items():
        found[name] = value
        if name == after:
            found |= more
    return found
