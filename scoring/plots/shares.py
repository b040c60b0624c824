"""A row for each compared thing: a bar with its interval, bars of several categories, or their shares side by side.

What never belongs here: computing the figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from . import style

_ROW = 0.26  # inches
_COLOURS = (*style.SERIES, "rest")
CATEGORIES = len(_COLOURS)  # so many have a colour of their own


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
        figure, axes = _rows(title, list(rows), _ROW * len(rows))
        for place, bar in enumerate(rows.values()):
            axes.barh(place, bar.value, height=0.62, color=style.colour("point"))
            if bar.low is not None and bar.high is not None:
                reach = [[max(0.0, bar.value - bar.low)], [max(0.0, bar.high - bar.value)]]
                axes.errorbar(bar.value, place, xerr=reach, fmt="none", ecolor=style.colour("ink"), elinewidth=0.9)
            _say(axes, bar.value, bar.value if bar.high is None else max(bar.value, bar.high), place)
        axes.margins(x=0.14)
        if not any(bar.value or bar.high for bar in rows.values()):
            axes.set_xlim(0, 1)  # nothing but zeros: an axis around 0 would show numbers that cannot be
        axes.set_xlabel(style.literal(label))
        return style.write_svg(figure)


def grouped(title: str, rows: Mapping[str, Mapping[str, float]], order: Sequence[str], label: str) -> str:
    """In each row a bar for each category that it has, as SVG; values lie between 0 and 1.

    ``order``: at most ``CATEGORIES`` categories.

    :raises ConfigurationError: matplotlib is missing.
    """
    names = list(style.short(list(order), 14).values())
    with style.drawing():
        height = 0.85 / max(1, len(order))
        tall = max(_ROW, 0.17 * len(order) + 0.08) * len(rows)
        figure, axes = _rows(title, list(rows), tall, style.legend_height(names))
        for place, values in enumerate(rows.values()):
            for number, category in enumerate(order):
                if (value := values.get(category)) is not None:
                    at = place + (number - (len(order) - 1) / 2) * height
                    axes.barh(at, value, height=0.85 * height, color=style.colour(_COLOURS[number]))
                    _say(axes, value, value, at)
        axes.set_xlim(0, 1.12)
        axes.set_xticks([0, 0.2, 0.4, 0.6, 0.8, 1])
        axes.set_xlabel(style.literal(label))
        style.legend(figure, _patches(len(order)), names)
        return style.write_svg(figure)


def stacked(title: str, rows: Mapping[str, Mapping[str, int]], order: Sequence[str]) -> str:
    """For each row the shares of its categories, side by side, in one order, as SVG.

    ``rows``: counts by category; ``order``: at most ``CATEGORIES`` of them.

    :raises ConfigurationError: matplotlib is missing.
    """
    names = list(style.short(list(order), 14).values())
    with style.drawing():
        figure, axes = _rows(title, list(rows), _ROW * len(rows), style.legend_height(names))
        for place, counts in enumerate(rows.values()):
            whole, left = sum(counts.values()) or 1, 0.0
            for category, colour in zip(order, _COLOURS, strict=False):
                share = 100 * counts.get(category, 0) / whole
                if share:
                    axes.barh(place, share, left=left, height=0.62, color=style.colour(colour),
                              edgecolor=style.colour("paper"), linewidth=0.6)  # fmt: skip
                left += share
        axes.set_xlim(0, 100)
        axes.set_xlabel("share, %")
        style.legend(figure, _patches(len(order)), names)
        return style.write_svg(figure)


def _rows(title: str, names: Sequence[str], height: float, legend: float = 0.0) -> tuple[Any, Any]:
    """A panel with a named row for each name, ``height`` inches high, ``legend`` inches left free below."""
    shown = [style.short(names, 20)[name] for name in names]
    left = min(1.45, max(0.5, style.inches(shown) + 0.1))
    figure, axes = style.panel(max(_ROW, height) + 0.1, left=left, bottom=style.BOTTOM + legend)
    style.title(axes, title)
    axes.set_yticks(range(len(names)), [style.literal(name) for name in shown])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    return figure, axes


def _say(axes: Any, value: float, end: float, place: float) -> None:
    axes.annotate(f" {value:.3g}", (end, place), va="center", fontsize=style.TINY)


def _patches(count: int) -> list[Any]:
    rectangle = import_module("matplotlib.patches").Rectangle
    return [rectangle((0, 0), 1, 1, facecolor=style.colour(colour)) for colour in _COLOURS[:count]]
