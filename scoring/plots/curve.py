"""Lines over a number: latency over throughput, shares over seconds, drift over rates; marks for what was found.

What never belongs here: computing figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import style


@dataclass(slots=True, frozen=True)
class Curve:
    """One line. ``low`` and ``high`` are the ends of intervals, empty where there are none; ``flagged`` has the places
    of points that are drawn in the colour of findings; ``texts`` stand beside points, empty where none do.
    """

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    flagged: Sequence[int] = ()
    texts: Sequence[str] = ()


@dataclass(slots=True, frozen=True)
class Axes:
    """What the axes show. ``log_x`` and ``log_y``: logarithmic ones, for positive values. ``band``: the ends of a band
    on the y axis, such as a noise floor; ``marks``: points on the lines. ``bounds``: the ends of the y axis.
    """

    x: str
    y: str
    log_x: bool = False
    log_y: bool = False
    marks: bool = True
    band: tuple[float, float] | None = None
    bounds: tuple[float, float] | None = None


def curves(title: str, lines: Sequence[Curve], axes: Axes, flagged: str = "") -> str:
    """Up to ``style.LINES`` lines in one panel, as SVG. ``flagged`` says in the legend what flagged points are.

    :raises ConfigurationError: matplotlib is missing.
    """
    with style.drawing():
        return style.write_svg(_figure(title, lines[: style.LINES], axes, flagged))


def _figure(title: str, lines: Sequence[Curve], axes: Axes, flagged: str) -> Any:
    names = list(style.short([line.name for line in lines]).values())
    found = flagged if any(line.flagged for line in lines) else ""
    told = [*names, *([found] if found else [])]
    several = len(told) > 1
    bottom = style.BOTTOM + (style.legend_height(told) if several else 0.0)
    figure, drawn = style.panel(2.1, left=0.68, bottom=bottom)
    style.title(drawn, title)
    drawn.set_xlabel(style.literal(axes.x))
    drawn.set_ylabel(style.literal(axes.y))
    drawn.grid(axis="y")
    if axes.log_x:
        drawn.set_xscale("log")
    if axes.log_y:
        drawn.set_yscale("log")
    if axes.band is not None:
        drawn.axhspan(*axes.band, color=style.colour("grid"), linewidth=0)
    handles = [_line(drawn, line, at, axes) for at, line in enumerate(lines)]
    if found:
        (mark,) = drawn.plot([], [], linestyle="none", marker="X", markersize=7, color=style.colour("flag"))
        handles.append(mark)
    if axes.bounds is not None:
        drawn.set_ylim(*axes.bounds)
    _plain_ticks(drawn, axes)
    if several:
        style.legend(figure, handles, told)
    return figure


def _line(drawn: Any, line: Curve, at: int, axes: Axes) -> Any:
    colour = style.colour(style.SERIES[at])
    marker = style.MARKERS[at] if axes.marks else None
    if line.low:
        reach = [
            [max(0.0, value - low) for value, low in zip(line.ys, line.low, strict=True)],
            [max(0.0, high - value) for value, high in zip(line.ys, line.high, strict=True)],
        ]
        drawn.errorbar(line.xs, line.ys, yerr=reach, fmt="none", ecolor=colour, elinewidth=0.9, capsize=2)
    (handle,) = drawn.plot(line.xs, line.ys, color=colour, linestyle=style.DASHES[at], marker=marker)
    places = [place for place in line.flagged if place < len(line.xs)]
    if places:
        xs, ys = [line.xs[place] for place in places], [line.ys[place] for place in places]
        drawn.plot(xs, ys, linestyle="none", marker="X", markersize=7, color=style.colour("flag"), zorder=5)
    for x, y, text in zip(line.xs, line.ys, line.texts, strict=False):
        drawn.annotate(style.literal(text), (x, y), xytext=(3, 5), textcoords="offset points", fontsize=style.TINY)
    return handle


def _plain_ticks(drawn: Any, axes: Axes) -> None:
    """Numbers as they are written, also on logarithmic axes."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for log, axis in ((axes.log_x, drawn.xaxis), (axes.log_y, drawn.yaxis)):
        if log:
            axis.set_major_locator(LogLocator(10.0, subs=(1.0, 2.0, 5.0), numticks=8))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_formatter(NullFormatter())
