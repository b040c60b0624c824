"""A forest plot: a row for each figure, a dot with its interval, and the line of no effect.

What never belongs here: computing figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import style

_ROW = 0.22  # inches


@dataclass(slots=True, frozen=True)
class ForestRow:
    """A figure with the ends of its interval, None where it has none. ``flagged``: drawn in the colour of findings."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    flagged: bool = False


def draw_forest(
    file: Path, title: str, rows: Sequence[ForestRow], axis: str, bounds: tuple[float, float] | None = None
) -> None:
    """Draw to a file, SVG or PNG by its ending.

    :raises ConfigurationError: matplotlib is missing.
    :raises OSError: the file cannot be written.
    """
    with style.drawing():
        style.save(_figure(title, rows, axis, bounds), file)


def forest_svg(title: str, rows: Sequence[ForestRow], axis: str, bounds: tuple[float, float] | None = None) -> str:
    """The same as SVG.

    :raises ConfigurationError: matplotlib is missing.
    """
    with style.drawing():
        return style.write_svg(_figure(title, rows, axis, bounds))


def _figure(title: str, rows: Sequence[ForestRow], axis: str, bounds: tuple[float, float] | None) -> Any:
    names = list(style.short([row.name for row in rows], 30).values())
    if len(names) < len(rows):  # equal names are rows of their own
        names = [style.short([row.name], 30)[row.name] for row in rows]
    figure, axes = style.panel(_ROW * max(1, len(rows)) + 0.1, left=0.15 + style.inches(names))
    style.title(axes, title)
    axes.set_xlabel(style.literal(axis))
    axes.set_ylim(len(rows), 0)
    if bounds is not None:
        axes.set_xlim(*bounds)
    axes.set_yticks([at + 0.5 for at in range(len(rows))], [style.literal(name) for name in names])
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    axes.axvline(0.0, color=style.colour("line"), linewidth=0.9, linestyle=style.DASHES[1])
    for at, row in enumerate(rows):
        colour = style.colour("flag" if row.flagged else "point")
        if row.low is not None and row.high is not None:
            axes.plot([row.low, row.high], [at + 0.5] * 2, color=colour, linewidth=1.6, solid_capstyle="butt")
        axes.plot([row.value], [at + 0.5], marker=style.MARKERS[1], color=colour, linestyle="none")
    return figure
