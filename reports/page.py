"""Page of a report as plain texts, tables and drawings, and phrases that such texts share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .plot_style import Sentence
from .tables import Table

_MAX_LISTED = 40  # names in a list; the names beyond it are only counted
Record = Mapping[str, Any]
TIER_NAMES = {"A": "reproducible report", "B": "replay", "C": "reproducible transcripts"}


@dataclass(slots=True, frozen=True)
class Evidence:
    """The conversations behind a name or a count, as the fields that select them; an empty field selects all.

    `dataset` is named as in the report. `cell` names a cell, and `key` one of its conversations.
    """

    candidate: str = ""
    scenario: str = ""
    dataset: str = ""
    item: str = ""
    state: str = ""
    cell: str = ""
    key: str = ""


class Reference(str):
    """Text with its evidence. A page that stands beside the conversations links the text to them."""

    evidence: Evidence

    def __new__(cls, text: str, evidence: Evidence) -> Reference:
        reference = super().__new__(cls, text)
        reference.evidence = evidence
        return reference


@dataclass(slots=True, frozen=True)
class Plot:
    """Plot of one kind.

    `panels`: by dataset, (SVG, one-line description); a `Sentence` replaces the SVG if it would show nothing. `origin`:
    source of its figures.
    """

    anchor: str
    heading: str
    caption: str
    origin: str
    panels: Sequence[tuple[str, str]]

    @property
    def is_drawn(self) -> bool:
        """True if there is at least one drawing, which the caption then explains."""
        return any(not isinstance(svg, Sentence) for svg, _ in self.panels)


@dataclass(slots=True)
class PageSection:
    """Heading with the tables below it; `origin` is the source of their figures, if not empty.

    `plots`: the section holds the page's plots; `transcripts`: it holds the commands that show transcripts.
    """

    anchor: str
    heading: str
    tables: list[Table] = field(default_factory=list)
    origin: str = ""
    plots: bool = False
    transcripts: bool = False


@dataclass(slots=True)
class Page:
    """Whole page.

    `facts` and `methods` are terms with their descriptions. `no_plots` is the reason for missing plots. `transcripts`
    has, by candidate, the name of each cell with its pairs (which conversation, command that shows it).

    `verdict`: findings in sentences, the most decisive first. `decisive` is the plot that shows these findings; `plots`
    does not contain it. `about`: the items that the verdict is about, if there are several sets of items. `further` has
    the other sets, each with its own verdict. `origin` applies to all sections and plots without their own. `warnings`
    come before everything else. `answer` is the short table that stands beside the verdict, and `terms` explains words
    in it. `appendix` has the tables for a paper, by markup. `commands_in` says in which folder commands run.

    Texts of tables and facts, and the names of a candidate's transcripts, may be a `Reference`.
    """

    heading: str
    facts: list[tuple[str, str]]
    notes: list[str]
    sections: list[PageSection]
    plots: list[Plot]
    no_plots: str
    transcripts: dict[str, list[tuple[str, list[tuple[str, str]]]]]
    methods: list[tuple[str, str]]
    verdict: list[str] = field(default_factory=list)
    decisive: Plot | None = None
    origin: str = ""
    about: str = ""
    further: list[tuple[str, list[str]]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    answer: Table | None = None
    terms: dict[str, str] = field(default_factory=dict)
    appendix: dict[str, list[Table]] = field(default_factory=dict)
    commands_in: str = "in the sweep's folder, or in the folder that contains the reported runs"


def join_names(names: Iterable[str]) -> str:
    """Join names by commas."""
    return ", ".join(names)


def list_names(names: Sequence[str]) -> str:
    """Join names by commas; list only the first of many, and count the rest."""
    more = len(names) - _MAX_LISTED
    return join_names(names[:_MAX_LISTED]) + (f" and {more:,} more" if more > 0 else "")


def count_of(number: int, name: str) -> str:
    """Return a count such as `1 model` or `2 models`."""
    return f"{number:,} {name}" + "s" * (number != 1)


def number_range(numbers: Iterable[int]) -> str:
    """Return one number, or the lowest and highest of several."""
    low, high = min(values := list(numbers)), max(values)
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def percentage(part: int, total: int) -> str:
    """Return a fraction in per cent; a dash if the total is 0."""
    return f"{100 * part / total:.1f}%" if total else "–"


def distinct_values(cells: Iterable[Record], name: str) -> list[Any]:
    """Return the distinct values of a field of cells, in order of first appearance, without None."""
    return list(dict.fromkeys(cell.get(name) for cell in cells if cell.get(name) is not None))


def describe_seeds(cells: Sequence[Record]) -> str:
    """Return `seed 7` or `seeds 7, 8`."""
    seeds = sorted(distinct_values(cells, "seed"))
    return f"seed{'s' * (len(seeds) > 1)} {join_names(map(str, seeds)) or '–'}"


def describe_tiers(cells: Sequence[Record]) -> str:
    """Return how reproducible the cells are."""
    tiers = sorted(distinct_values(cells, "tier"))
    return join_names(TIER_NAMES.get(tier, f"tier {tier}") for tier in tiers) or "reproducibility unknown"
