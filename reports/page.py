"""Page of a report as plain texts, tables and drawings, and the small phrases that such texts share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .tables import Table

_MAX_LISTED = 40  # names in a list; a longer list says how many more
Record = Mapping[str, Any]


@dataclass(slots=True, frozen=True)
class Plot:
    """One kind of drawing. ``panels``: for each dataset an SVG, and in one line what it shows. ``origin`` says how its
    figures came about.
    """

    anchor: str
    heading: str
    caption: str
    origin: str
    panels: Sequence[tuple[str, str]]


@dataclass(slots=True)
class PageSection:
    """A heading with the tables below it; ``origin`` says how their figures came about, where it is not empty.

    ``plots``: the section holds the page's plots; ``transcripts``: the commands that show transcripts.
    """

    anchor: str
    heading: str
    tables: list[Table] = field(default_factory=list)
    origin: str = ""
    plots: bool = False
    transcripts: bool = False


@dataclass(slots=True)
class Page:
    """A whole page. ``facts`` and ``methods`` are terms with their descriptions; ``no_plots`` says why there are none
    where there could be; ``transcripts`` has by candidate the name of each cell with its commands.

    ``verdict``: what was found, in sentences, the most decisive first, with the plot that shows it, ``decisive``, which
    is not among ``plots``. ``about``: which items the verdict is of, where there are several; ``further`` has the
    others, each with its own. ``origin`` is said once for all sections and plots whose own is empty.
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


def join_names(names: Iterable[str]) -> str:
    """Names with commas between them."""
    return ", ".join(names)


def list_names(names: Sequence[str]) -> str:
    """As ``join_names``; of very many names the first, and how many more there are."""
    more = len(names) - _MAX_LISTED
    return join_names(names[:_MAX_LISTED]) + (f" and {more} more" if more > 0 else "")


def count_of(number: int, name: str) -> str:
    """``1 model``, ``2 models``."""
    return f"{number:,} {name}" + "s" * (number != 1)


def number_range(numbers: Iterable[int]) -> str:
    """One number, or the least and the greatest of several."""
    low, high = min(values := list(numbers)), max(values)
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def percentage(part: int, total: int) -> str:
    """A share as per cent; a dash of nothing."""
    return f"{100 * part / total:.1f}%" if total else "–"


def distinct_values(cells: Iterable[Record], name: str) -> list[Any]:
    """What cells have under a name, each once, in their order; None is left out."""
    return list(dict.fromkeys(cell.get(name) for cell in cells if cell.get(name) is not None))


def describe_seeds(cells: Sequence[Record]) -> str:
    """``seed 7``, ``seeds 7, 8``."""
    seeds = sorted(distinct_values(cells, "seed"))
    return f"seed{'s' * (len(seeds) > 1)} {join_names(map(str, seeds)) or '–'}"


def describe_tiers(cells: Sequence[Record]) -> str:
    """``tier C``."""
    return f"tier {join_names(sorted(distinct_values(cells, 'tier'))) or '–'}"
