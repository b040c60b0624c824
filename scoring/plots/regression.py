"""Score against accuracy with a line for each dataset, and the models off it (as in Yu et al. 2024, Figure 4).

What never belongs here: computing lines (``scoring.correlation``).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import style

if TYPE_CHECKING:
    from viva.scoring.correlation import Figures, Fit

NAMED = 12  # with more models only those off the line are named
_ACROSS, _WIDE, _HIGH = 3, 4.2, 3.6  # panels in a row; inches of a panel
_AWAY = 5.0  # points from a mark to its name
# Where a name may stand, as seen from its mark, best first: to the side, up or down, and how many lines further off.
_NEAR = ((1, 1, 0), (-1, 1, 0), (1, -1, 0), (-1, -1, 0), (0, 1, 0), (0, -1, 0), (1, 0, 0), (-1, 0, 0))
_PLACES = _NEAR + tuple((across, up, off) for off in (1, 2) for up in (1, -1) for across in (1, -1, 0))

Labels = tuple[str, str]  # of the two axes


def draw_regressions(
    file: Path, figures: Iterable[Figures], lines: Mapping[str, Fit | None], without: Collection[str] = ()
) -> None:
    """Write a file with a panel for each dataset.

    The band is what a point without standard errors may lie off the line before it is flagged; flagged points are
    squares of another colour, models of ``without`` are hollow. Of more than ``NAMED`` models in a panel only those
    flagged or left out are named.

    :raises ConfigurationError: matplotlib is missing.
    :raises OSError: the file cannot be written.
    """
    from viva.scoring.correlation import by_dataset

    groups = by_dataset(figures)
    across = min(_ACROSS, len(groups))
    down = math.ceil(len(groups) / across)
    with style.drawing():
        figure = import_module("matplotlib.figure").Figure((_WIDE * across, _HIGH * down), layout="constrained")
        panels = list(figure.subplots(down, across, squeeze=False).flat)
        for panel, (name, group) in zip(panels, groups.items(), strict=False):
            panel.set_title(style.literal(f"{name} (n = {len(group)})"))
            _draw_panel(panel, group, lines[name], without, ("accuracy", "score"))
        for panel in panels[len(groups) :]:
            panel.set_visible(False)
        figure.draw_without_rendering()  # names are placed by where the points have come to lie
        for panel, (name, group) in zip(panels, groups.items(), strict=False):
            _draw_names(panel, group, lines[name], without)
        style.save(figure, file)


def regression(title: str, group: Sequence[Figures], fit: Fit | None, labels: Labels) -> str:
    """One dataset's panel as SVG, of figures from 0 to 100; ``labels`` are those of the axes, with units.

    :raises ConfigurationError: matplotlib is missing.
    """
    with style.drawing():
        figure, axes = style.panel(2.7)
        style.title(axes, title)
        _draw_panel(axes, group, fit, (), labels)
        for axis in (axes.xaxis, axes.yaxis):  # the room for names goes beyond what there can be
            low, high = axis.get_view_interval()
            axis.set_ticks([tick for tick in axis.get_ticklocs() if max(0, low) <= tick <= min(100, high)])
        _draw_names(axes, group, fit, ())
        return style.write_svg(figure)


def _draw_panel(axes: Any, group: Sequence[Figures], fit: Fit | None, without: Collection[str], labels: Labels) -> None:
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    ends = [min(one.accuracy for one in group), max(one.accuracy for one in group)]
    if fit is not None:
        heights = [fit.line.intercept + fit.line.slope * x for x in ends]
        band = fit.line.threshold * fit.spread
        grey = style.colour("line")
        axes.plot(ends, heights, color=grey, linewidth=1)
        axes.fill_between(
            ends, [y - band for y in heights], [y + band for y in heights], color=grey, alpha=0.14, linewidth=0
        )
    flagged = _flagged(fit)
    for one in group:
        colour = style.colour("flag" if one.model in flagged else "point")
        axes.errorbar(
            one.accuracy,
            one.score,
            xerr=one.accuracy_se or None,
            yerr=one.score_se or None,
            fmt="s" if one.model in flagged else "o",
            color=colour,
            markerfacecolor=style.colour("paper") if one.model in without else colour,
            markersize=5,
            elinewidth=0.8,
        )
    axes.margins(0.18)
    axes.autoscale_view()  # else only drawing would settle the limits, and names are placed before


def _flagged(fit: Fit | None) -> set[str]:
    return set() if fit is None else {*fit.line.below, *fit.line.above}


def _draw_names(axes: Any, group: Sequence[Figures], fit: Fit | None, without: Collection[str]) -> None:
    """Write models' names beside their points, each where it covers least of points, line, edges and other names."""
    flagged = _flagged(fit)
    named = [one for one in group if len(group) <= NAMED or one.model in flagged or one.model in without]
    shown = style.short((one.model for one in named), 22)
    scale = axes.figure.dpi / 72
    centres = axes.transData.transform([(one.accuracy, one.score) for one in group]).tolist()
    marks = [(x - 4 * scale, y - 4 * scale, x + 4 * scale, y + 4 * scale) for x, y in centres]
    marks += [box for one in group for box in _bars(axes, one, scale)]
    line_boxes = _along_line(axes, group, fit, scale)
    frame = axes.get_window_extent().extents.tolist()
    frame[2] += 0.1 * axes.figure.dpi  # there is nothing on that side
    where = {one.model: centre for one, centre in zip(group, centres, strict=True)}
    labels: list[_Box] = []
    # Flagged ones first, for they matter most; then from above.
    for one in sorted(named, key=lambda each: (each.model not in flagged, -each.score, each.model)):
        text, line = shown[one.model], style.TINY * 1.1
        size = (style.inches([text], style.TINY) * 72 * scale, line * scale)
        shifts = [
            (_AWAY * across * (0.8 if up else 1.2), up * (_AWAY * (0.6 if across else 1.2) + off * line))
            for across, up, off in _PLACES
        ]
        boxes = [
            _box(where[one.model], place, (shift[0] * scale, shift[1] * scale), size)
            for place, shift in zip(_PLACES, shifts, strict=True)
        ]
        costs = [
            2 * _outside(box, frame)
            + sum(10 * _overlap(box, other) for other in line_boxes)  # thin, but crossing it reads badly
            + sum(4 * _overlap(box, other) for other in (*marks, *labels))
            + 0.1 * off * size[0] * size[1]
            for box, (_, _, off) in zip(boxes, _PLACES, strict=True)
        ]
        best = costs.index(min(costs))
        labels.append(boxes[best])
        across, up, off = _PLACES[best]
        colour = style.colour("flag" if one.model in flagged else "ink")
        axes.annotate(
            style.literal(text),
            (one.accuracy, one.score),
            shifts[best],
            textcoords="offset points",
            horizontalalignment=("center", "left", "right")[across],
            verticalalignment=("center", "bottom", "top")[up],
            color=colour,
            fontsize=style.TINY,
            arrowprops={"arrowstyle": "-", "linewidth": 0.5, "color": colour, "shrinkA": 0, "shrinkB": 2}
            if off
            else None,
        )


_Box = tuple[float, float, float, float]  # left, lower, right and upper edge, in pixels


def _along_line(axes: Any, group: Sequence[Figures], fit: Fit | None, scale: float) -> list[_Box]:
    """Small boxes that the line runs through, so that names keep off it where they can."""
    if fit is None:
        return []
    low, high = min(one.accuracy for one in group), max(one.accuracy for one in group)
    xs = [low + (high - low) * step / 40 for step in range(41)]
    places = axes.transData.transform([(x, fit.line.intercept + fit.line.slope * x) for x in xs]).tolist()
    return [(x - 2 * scale, y - scale, x + 2 * scale, y + scale) for x, y in places]


def _bars(axes: Any, one: Figures, scale: float) -> list[_Box]:
    """The boxes of a point's error bars."""
    x, y, wide, high = one.accuracy, one.score, one.accuracy_se, one.score_se
    corners = axes.transData.transform([(x - wide, y - high), (x + wide, y + high), (x, y)]).tolist()
    (left, lower), (right, upper), (middle, centre) = corners
    across = (left, centre - scale, right, centre + scale)
    return [across, (middle - scale, lower, middle + scale, upper)]


def _box(
    mark: Sequence[float], place: tuple[int, int, int], shift: tuple[float, float], size: tuple[float, float]
) -> _Box:
    """The box of a name that begins, ends or has its middle at ``shift`` from its mark, as ``place`` says."""
    x, y = (
        at + by - (0.0 if step > 0 else extent if step < 0 else extent / 2)
        for at, by, step, extent in zip(mark, shift, place[:2], size, strict=True)
    )
    return x, y, x + size[0], y + size[1]


def _overlap(one: _Box, other: _Box) -> float:
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    return max(0.0, wide) * max(0.0, high)


def _outside(box: _Box, frame: list[float]) -> float:
    area = (box[2] - box[0]) * (box[3] - box[1])
    return area - _overlap(box, (frame[0], frame[1], frame[2], frame[3]))
