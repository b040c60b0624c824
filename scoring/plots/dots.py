"""Dots with intervals: a row for each dimension, a mark for each of a few compared things.

What never belongs here: computing figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from . import style
from .shares import Bar

_MARK, _SPACE = 0.115, 0.12  # inches of a mark, and between rows


def dots(title: str, rows: Sequence[str], things: Mapping[str, Mapping[str, Bar]], axis: str) -> str:
    """By thing and row a figure from 0 to 100 with its interval, as SVG. ``things``: at most ``style.LINES``.

    :raises ConfigurationError: matplotlib is missing.
    """
    names, shown = style.short(rows, 22), list(style.short(list(things), 20).values())
    with style.drawing():
        tall = max(0.22, _MARK * len(things) + _SPACE)
        figure, axes = style.panel(tall * max(1, len(rows)), left=0.15 + style.inches(names.values()),
                                   bottom=style.BOTTOM + style.legend_height(shown))  # fmt: skip
        style.title(axes, title)
        handles = []
        for number, figures in enumerate(things.values()):
            colour = style.colour(style.SERIES[number])
            shift = (number - (len(things) - 1) / 2) * _MARK / tall
            places = [at + 0.5 + shift for at, row in enumerate(rows) if row in figures]
            known = [figures[row] for row in rows if row in figures]
            for place, one in zip(places, known, strict=True):
                if one.low is not None and one.high is not None:
                    axes.plot([one.low, one.high], [place, place], color=colour, linewidth=1.0)
            handles += axes.plot([one.value for one in known], places, linestyle="none", marker=style.MARKERS[number],
                                 color=colour, markersize=4)  # fmt: skip
        for at in range(1, len(rows)):
            axes.axhline(at, color=style.colour("grid"), linewidth=0.6)
        axes.set_xlim(-2, 102)
        axes.set_ylim(max(1, len(rows)), 0)
        axes.set_yticks([at + 0.5 for at in range(len(rows))], [style.literal(names[row]) for row in rows])
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x")
        axes.set_xlabel(style.literal(axis))
        style.legend(figure, handles, shown)
        return style.write_svg(figure)
