"""A row for each compared thing: one figure as a bar with its interval, or the shares of categories side by side.

What never belongs here: computing the figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module

from . import style

_ROW = 0.26  # inches
CATEGORIES = len(style.SERIES) + 1  # so many have a colour of their own


@dataclass(slots=True, frozen=True)
class Bar:
    """A figure, and the ends of its interval where it has one."""

    value: float
    low: float | None = None
    high: float | None = None


def bars(title: str, rows: Mapping[str, Bar], label: str) -> str:
    """A bar for each row, as SVG. ``label`` says what the axis shows.

    :raises ConfigurationError: matplotlib is missing.
    """
    with style.drawing():
        figure, axes = style.panel(_ROW * max(1, len(rows)) + 0.1, left=1.1)
        style.title(axes, title)
        names = style.short(list(rows), 16)
        for place, bar in enumerate(rows.values()):
            axes.barh(place, bar.value, height=0.62, color=style.colour("point"))
            if bar.low is not None and bar.high is not None:
                reach = [[max(0.0, bar.value - bar.low)], [max(0.0, bar.high - bar.value)]]
                axes.errorbar(bar.value, place, xerr=reach, fmt="none", ecolor=style.colour("ink"), elinewidth=0.9)
            axes.annotate(f" {bar.value:.3g}", (max(bar.value, bar.high or bar.value), place), va="center",
                          fontsize=style.TINY)  # fmt: skip
        axes.set_yticks(range(len(rows)), [style.literal(names[name]) for name in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.margins(x=0.14)
        axes.set_xlabel(style.literal(label))
        axes.tick_params(axis="y", length=0)
        return style.write_svg(figure)


def stacked(title: str, rows: Mapping[str, Mapping[str, int]], order: Sequence[str]) -> str:
    """For each row the shares of its categories, side by side, in one order, as SVG.

    ``rows``: counts by category; ``order``: at most ``CATEGORIES`` of them.

    :raises ConfigurationError: matplotlib is missing.
    """
    with style.drawing():
        figure, axes = style.panel(_ROW * max(1, len(rows)) + 0.1, left=1.1, bottom=style.BOTTOM + 0.3)
        style.title(axes, title)
        names = style.short(list(rows), 16)
        colours = [*style.SERIES, "rest"]
        for place, counts in enumerate(rows.values()):
            whole, left = sum(counts.values()) or 1, 0.0
            for category, colour in zip(order, colours, strict=False):
                share = 100 * counts.get(category, 0) / whole
                axes.barh(place, share, left=left, height=0.62, color=style.colour(colour))
                left += share
        rectangle = import_module("matplotlib.patches").Rectangle
        handles = [rectangle((0, 0), 1, 1, facecolor=style.colour(colour)) for colour in colours[: len(order)]]
        axes.set_yticks(range(len(rows)), [style.literal(names[name]) for name in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlim(0, 100)
        axes.set_xlabel("share, %")
        axes.tick_params(axis="y", length=0)
        style.legend(figure, handles, list(style.short(list(order), 14).values()))
        return style.write_svg(figure)
