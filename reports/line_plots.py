"""Line plots: latency over throughput, scores over rounds, running means, regressions on accuracy.

Up to `plot_style.LINES` candidates are lines in one panel. With more, each candidate is a row of numbers on tinted
cells, or a strip, because thirty lines are unreadable. In a regression (Yu et al. 2024, Figure 4), models' names are
placed where they cover least.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from . import plot_style

if TYPE_CHECKING:
    from viva.scoring.correlation import DatasetLine, ModelScores


@dataclass(slots=True, frozen=True)
class Curve:
    """Line of a plot.

    `low` and `high` are the ends of intervals, empty if there are none; `flagged` has the positions of points that are
    drawn in the colour of findings; `texts` are drawn beside points.
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
    """Axes of a plot.

    `log_x` and `log_y`: logarithmic, for positive values. `band`: the ends of a band on the y axis, such as a noise
    floor; `marks`: points on the lines. `bounds`: the ends of the y axis.
    """

    x: str
    y: str
    log_x: bool = False
    log_y: bool = False
    marks: bool = True
    band: tuple[float, float] | None = None
    bounds: tuple[float, float] | None = None


@plot_style.as_svg
def curve_plot(title: str, lines: Sequence[Curve], axes: Axes, flagged: str = "") -> Any:
    """Draw the first `plot_style.LINES` lines in one panel. `flagged` names flagged points in the legend."""
    lines = lines[: plot_style.LINES]
    names = list(plot_style.shorten_names([line.name for line in lines]).values())
    flag_label = flagged if any(line.flagged for line in lines) else ""
    labels = [*names, *([flag_label] if flag_label else [])]
    several = len(labels) > 1
    bottom = plot_style.BOTTOM + (plot_style.legend_height(labels) if several else 0.0)
    figure, panel = plot_style.make_panel(2.1, left=0.68, bottom=bottom)
    plot_style.set_title(panel, title)
    panel.set_xlabel(plot_style.escape_label(axes.x))
    panel.set_ylabel(plot_style.escape_label(axes.y))
    panel.grid(axis="y")
    if axes.log_x:
        panel.set_xscale("log")
    if axes.log_y:
        panel.set_yscale("log")
    if axes.band is not None:
        panel.axhspan(*axes.band, color=plot_style.light_colour("grid"), linewidth=0)
    handles = [_draw_curve(panel, line, at, axes) for at, line in enumerate(lines)]
    if flag_label:
        (mark,) = panel.plot([], [], linestyle="none", marker="X", markersize=7, color=plot_style.light_colour("flag"))
        handles.append(mark)
    if axes.bounds is not None:
        panel.set_ylim(*axes.bounds)
    _plain_ticks(panel, axes)
    if several:
        plot_style.draw_legend(figure, handles, labels)
    return figure


def _draw_curve(panel: Any, line: Curve, at: int, axes: Axes) -> Any:
    colour = plot_style.light_colour(plot_style.SERIES[at])
    marker = plot_style.MARKERS[at] if axes.marks else None
    if line.low:
        reach = [
            [max(0.0, value - low) for value, low in zip(line.ys, line.low, strict=True)],
            [max(0.0, high - value) for value, high in zip(line.ys, line.high, strict=True)],
        ]
        panel.errorbar(line.xs, line.ys, yerr=reach, fmt="none", ecolor=colour, elinewidth=0.9, capsize=2)
    (handle,) = panel.plot(line.xs, line.ys, color=colour, linestyle=plot_style.DASHES[at], marker=marker)
    indices = [index for index in line.flagged if index < len(line.xs)]
    if indices:
        xs, ys = [line.xs[index] for index in indices], [line.ys[index] for index in indices]
        panel.plot(xs, ys, linestyle="none", marker="X", markersize=7, color=plot_style.light_colour("flag"), zorder=5)
    for x, y, text in zip(line.xs, line.ys, line.texts, strict=False):
        panel.annotate(
            plot_style.escape_label(text), (x, y), xytext=(3, 5), textcoords="offset points", fontsize=plot_style.TINY
        )
    return handle


def _plain_ticks(panel: Any, axes: Axes) -> None:
    """Write numbers in full, also on logarithmic axes."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for log, axis in ((axes.log_x, panel.xaxis), (axes.log_y, panel.yaxis)):
        if log:
            axis.set_major_locator(LogLocator(10.0, subs=(1.0, 2.0, 5.0), numticks=8))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_formatter(NullFormatter())


_CELL_HEIGHT = 0.19  # inches of a candidate's row
_MAX_TINT = 0.5  # opacity of a full cell: text on it stays legible on light and dark backgrounds


@dataclass(slots=True, frozen=True)
class RoundValue:
    """Value of a round, the round's number from 1, and the interval's reach below and above the value, if any."""

    round: int
    value: float
    reach: tuple[float, float] | None = None


class _SupportsLine(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def line(self) -> tuple[Hashable, ...]: ...


def find_overlaps(candidates: Sequence[_SupportsLine]) -> list[list[str]]:
    """Return groups of candidates that share one line because all their figures are equal; none if rows are drawn."""
    if len(candidates) > plot_style.LINES:
        return []
    return [[candidates[at].name for at in group] for group in _group_lines(candidates)[0] if len(group) > 1]


def _group_lines(candidates: Sequence[_SupportsLine]) -> tuple[list[list[int]], list[str]]:
    """Return the positions of candidates that share a line, and line names; a candidate without values has its own."""
    groups = plot_style.group_equal([candidate.line or index for index, candidate in enumerate(candidates)])
    shorts = list(plot_style.shorten_names(candidate.name for candidate in candidates).values())
    return groups, [plot_style.group_name([shorts[at] for at in group]) for group in groups]


@dataclass(slots=True, frozen=True)
class RoundCurve:
    """Candidate's values by round. A candidate without values has an empty row."""

    name: str
    steps: Sequence[RoundValue]

    @property
    def line(self) -> tuple[RoundValue, ...]:
        """Drawn values."""
        return tuple(self.steps)


def survival_plot(title: str, curves: Sequence[RoundCurve]) -> str:
    """Draw the fraction of conversations (per cent) that reached each round."""
    return _draw_rounds(title, curves, "interviews that reached the round, %", stepped=True)


def round_score_plot(title: str, curves: Sequence[RoundCurve]) -> str:
    """Draw the mean score (0–100) of each round with its interval."""
    return _draw_rounds(title, curves, "score of the round, 0–100", stepped=False)


@plot_style.as_svg
def _draw_rounds(title: str, curves: Sequence[RoundCurve], label: str, stepped: bool) -> Any:
    rounds = sorted({step.round for curve in curves for step in curve.steps})
    if len(curves) <= plot_style.LINES:
        return _round_lines(title, curves, rounds, label, stepped)
    return _round_cells(title, curves, rounds, label)


def _round_lines(title: str, curves: Sequence[RoundCurve], rounds: list[int], label: str, stepped: bool) -> Any:
    groups, names = _group_lines(curves)
    figure, axes = plot_style.make_panel(1.9, bottom=plot_style.BOTTOM + plot_style.legend_height(names))
    plot_style.set_title(axes, title)
    axes.set_xlabel("round")
    axes.set_ylabel(label)
    axes.set_xticks(rounds)
    axes.set_ylim(-3, 104)
    axes.grid(axis="y")
    handles = []
    for position, (index, *_) in enumerate(groups):
        curve = curves[index]
        # Offset the bars of one round, so that none hides another.
        shift = 0.0 if stepped else 0.07 * (position - (len(groups) - 1) / 2)
        xs = [step.round + shift for step in curve.steps]
        ys = [step.value for step in curve.steps]
        colour = plot_style.light_colour(plot_style.SERIES[index])
        (line,) = axes.plot(xs, ys, color=colour, linestyle=plot_style.DASHES[index], marker=plot_style.MARKERS[index])
        handles.append(line)
        with_bars = [(x, step) for x, step in zip(xs, curve.steps, strict=True) if step.reach is not None]
        if with_bars:
            axes.errorbar(
                [x for x, _ in with_bars],
                [step.value for _, step in with_bars],
                yerr=[[step.reach[side] for _, step in with_bars if step.reach] for side in (0, 1)],
                fmt="none",
                color=colour,
                elinewidth=0.9,
                capsize=2,
            )
    plot_style.draw_legend(figure, handles, names)
    return figure


def _round_cells(title: str, curves: Sequence[RoundCurve], rounds: list[int], label: str) -> Any:
    names = list(plot_style.shorten_names(curve.name for curve in curves).values())
    figure, axes = plot_style.make_rows(title, names, _CELL_HEIGHT * len(curves))
    axes.set_xlim(0, len(rounds))
    axes.set_xticks([at + 0.5 for at in range(len(rounds))], [str(number) for number in rounds])
    axes.tick_params(length=0)
    axes.spines[["left", "bottom"]].set_visible(False)
    # The label is wider than the cells, so centre it on the whole figure.
    figure.text(0.5, 0.06 / figure.get_figheight(), f"round (cells: {label})", ha="center", fontsize=plot_style.NORMAL)
    for row, curve in enumerate(curves):
        for step in curve.steps:
            at = rounds.index(step.round)
            opacity = round(_MAX_TINT * min(max(step.value, 0.0), 100.0) / 100, 3)
            tint = {"alpha": opacity, "linewidth": 0}
            axes.add_patch(plot_style.make_box((at + 0.02, row + 0.04), 0.96, 0.92, "blue", **tint))
            axes.text(at + 0.5, row + 0.52, f"{step.value:.0f}", ha="center", va="center", fontsize=plot_style.TINY)
    return figure


_STRIP_HEIGHT = 0.3  # inches of a candidate's strip
_MAX_POINTS = 60  # points of a line; more cannot be told apart at this width
_WARMUP_SHARE = 0.2  # fraction of conversations left out first, because their wide intervals would flatten the rest


@dataclass(slots=True, frozen=True)
class RunningMean:
    """Mean after the first `n[i]` conversations, and its 95% interval; at least one point."""

    n: Sequence[int]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


@dataclass(slots=True, frozen=True)
class CandidateRuns:
    """Candidate's runs, one for each seed and evaluator. A candidate without runs has an empty row."""

    name: str
    runs: Sequence[RunningMean]

    @property
    def line(self) -> tuple[tuple[tuple[float, ...], ...], ...]:
        """Drawn values, run by run."""
        return tuple(tuple(map(tuple, (run.n, run.mean, run.low, run.high))) for run in self.runs)


@plot_style.as_svg
def running_mean_plot(title: str, tracks: Sequence[CandidateRuns]) -> Any:
    """Draw the means (0–100) over the number of conversations, with bands of 95%; at least one track has a run."""
    thin = [CandidateRuns(track.name, [_thin_run(run) for run in track.runs]) for track in tracks]
    return _run_lines(title, thin) if len(thin) <= plot_style.LINES else _run_strips(title, thin)


def _run_lines(title: str, tracks: Sequence[CandidateRuns]) -> Any:
    groups, names = _group_lines(tracks)
    figure, axes = plot_style.make_panel(2.1, bottom=plot_style.BOTTOM + plot_style.legend_height(names))
    plot_style.set_title(axes, title)
    axes.set_xlabel("interviews so far")
    axes.set_ylabel("running mean score, 0–100")
    axes.grid(axis="y")
    handles, reach = [], [100.0, 0.0]
    for index, *_ in groups:
        track = tracks[index]
        colour, dash = plot_style.light_colour(plot_style.SERIES[index]), plot_style.DASHES[index]
        (line,) = axes.plot([], [], color=colour, linestyle=dash, linewidth=1.2)
        for at, *_ in plot_style.group_equal(track.line):
            run = track.runs[at]
            axes.fill_between(run.n, run.low, run.high, color=colour, alpha=0.15, linewidth=0)
            axes.plot(run.n, run.mean, color=colour, linestyle=dash, linewidth=1.2)
            lows, highs = _after_warmup(run.low, run), _after_warmup(run.high, run)
            reach = [min(reach[0], *lows), max(reach[1], *highs)]
        handles.append(line)
    _frame_runs(axes, tracks)
    room = max(2.0, 0.08 * (reach[1] - reach[0]))
    axes.set_ylim(reach[0] - room, reach[1] + room)
    plot_style.draw_legend(figure, handles, names)
    return figure


def _run_strips(title: str, tracks: Sequence[CandidateRuns]) -> Any:
    names = list(plot_style.shorten_names(track.name for track in tracks).values())
    figure, axes = plot_style.make_rows(title, names, _STRIP_HEIGHT * len(tracks))
    deviations = [
        abs(end - run.mean[-1])
        for track in tracks
        for run in track.runs
        for ends in (run.low, run.high)
        for end in _after_warmup(ends, run)
    ]
    span = 1.1 * max(1.0, *deviations)  # points from a strip's middle to its edge
    colour = plot_style.light_colour("blue")
    for row, track in enumerate(tracks):
        for run in track.runs:
            last = run.mean[-1]

            def height(values: Sequence[float], row: int = row, last: float = last) -> list[float]:
                # The axis points down, because the first row is on top; values are clipped at the edge of the strip.
                return [row + 0.5 - max(-0.5, min(0.5, (value - last) / span / 2)) for value in values]

            axes.fill_between(run.n, height(run.low), height(run.high), color=colour, alpha=0.2, linewidth=0)
            axes.plot(run.n, height(run.mean), color=colour, linewidth=1)
        axes.axhline(row, color=plot_style.light_colour("grid"), linewidth=0.6)
    _frame_runs(axes, tracks)
    label = f"interviews so far (height of a strip: last mean ± {span:.1f} points)"
    figure.text(0.5, 0.06 / figure.get_figheight(), label, ha="center", fontsize=plot_style.NORMAL)
    return figure


def _frame_runs(axes: Any, tracks: Sequence[CandidateRuns]) -> None:
    axes.set_xlim(0, max(run.n[-1] for track in tracks for run in track.runs) * 1.01)
    axes.xaxis.get_major_locator().set_params(integer=True, nbins=6)


def _after_warmup(values: Sequence[float], run: RunningMean) -> list[float]:
    """Return the values after the first part of the conversations; at least one."""
    return [value for value, n in zip(values, run.n, strict=True) if n >= _WARMUP_SHARE * run.n[-1]]


def _thin_run(run: RunningMean) -> RunningMean:
    """Return at most `_MAX_POINTS` evenly chosen points, including the last one."""
    last = len(run.n) - 1
    if last < _MAX_POINTS:
        return run
    indices = [round(last * step / (_MAX_POINTS - 1)) for step in range(_MAX_POINTS)]
    mean, low, high = ([values[at] for at in indices] for values in (run.mean, run.low, run.high))
    return RunningMean([run.n[at] for at in indices], mean, low, high)


MAX_NAMES = 12  # with more models only those off the line are named
_ACROSS, _WIDE, _HIGH = 3, 4.2, 3.6  # panels in a row; inches of a panel
_AWAY = 5.0  # points from a mark to its name
# Positions of a name relative to its mark, best first: (across, up, lines of text further off).
_NEAR_PLACES = ((1, 1, 0), (-1, 1, 0), (1, -1, 0), (-1, -1, 0), (0, 1, 0), (0, -1, 0), (1, 0, 0), (-1, 0, 0))
_NAME_PLACES = _NEAR_PLACES + tuple((across, up, off) for off in (1, 2) for up in (1, -1) for across in (1, -1, 0))

AxisLabels = tuple[str, str]  # labels of the x axis and the y axis


def draw_regressions(
    file: Path, figures: Iterable[ModelScores], lines: Mapping[str, DatasetLine | None], without: Collection[str] = ()
) -> None:
    """Draw a panel for each dataset to a file.

    The band ends at the distance from which a point without standard errors is flagged. Flagged points are squares of
    another colour; the models in `without` are hollow points. With more than `MAX_NAMES` models in a panel, only
    flagged models and those in `without` are named.
    """
    from viva.scoring.correlation import group_by_dataset

    groups = group_by_dataset(figures)
    across = min(_ACROSS, len(groups))
    down = math.ceil(len(groups) / across)
    with plot_style.plot_style():
        figure = import_module("matplotlib.figure").Figure((_WIDE * across, _HIGH * down), layout="constrained")
        panels = list(figure.subplots(down, across, squeeze=False).flat)
        for panel, (name, group) in zip(panels, groups.items(), strict=False):
            panel.set_title(plot_style.escape_label(f"{name} (n = {len(group)})"))
            _draw_panel(panel, group, lines[name], without, ("accuracy", "score"))
        for panel in panels[len(groups) :]:
            panel.set_visible(False)
        figure.draw_without_rendering()  # names are placed by the final positions of the points
        for panel, (name, group) in zip(panels, groups.items(), strict=False):
            _draw_names(panel, group, lines[name], without)
        plot_style.save_plot(figure, file)


@plot_style.as_svg
def regression_plot(title: str, group: Sequence[ModelScores], fit: DatasetLine | None, labels: AxisLabels) -> Any:
    """Draw one dataset's panel, with figures from 0 to 100; `labels` are the axis labels, with units."""
    figure, axes = plot_style.make_panel(2.7)
    plot_style.set_title(axes, title)
    _draw_panel(axes, group, fit, (), labels)
    for axis in (axes.xaxis, axes.yaxis):  # the margin for names exceeds the range of values
        low, high = axis.get_view_interval()
        axis.set_ticks([tick for tick in axis.get_ticklocs() if max(0, low) <= tick <= min(100, high)])
    _draw_names(axes, group, fit, ())
    return figure


def _draw_panel(
    axes: Any, group: Sequence[ModelScores], fit: DatasetLine | None, without: Collection[str], labels: AxisLabels
) -> None:
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    ends = [min(figure.accuracy for figure in group), max(figure.accuracy for figure in group)]
    if fit is not None:
        heights = [fit.line.intercept + fit.line.slope * x for x in ends]
        band = fit.line.threshold * fit.spread
        grey = plot_style.light_colour("line")
        axes.plot(ends, heights, color=grey, linewidth=1)
        axes.fill_between(
            ends, [y - band for y in heights], [y + band for y in heights], color=grey, alpha=0.14, linewidth=0
        )
    flagged = _flagged_models(fit)
    for figure in group:
        colour = plot_style.light_colour("flag" if figure.model in flagged else "point")
        axes.errorbar(
            figure.accuracy,
            figure.score,
            xerr=figure.accuracy_se or None,
            yerr=figure.score_se or None,
            fmt="s" if figure.model in flagged else "o",
            color=colour,
            markerfacecolor=plot_style.light_colour("paper") if figure.model in without else colour,
            markersize=5,
            elinewidth=0.8,
        )
    axes.margins(0.18)
    axes.autoscale_view()  # otherwise only drawing would fix the limits, after names are placed


def _flagged_models(fit: DatasetLine | None) -> set[str]:
    return set() if fit is None else {*fit.line.below, *fit.line.above}


def _draw_names(axes: Any, group: Sequence[ModelScores], fit: DatasetLine | None, without: Collection[str]) -> None:
    """Write models' names beside their points, each where it covers least of points, line, edges and other names."""
    flagged = _flagged_models(fit)
    labelled = [
        figure for figure in group if len(group) <= MAX_NAMES or figure.model in flagged or figure.model in without
    ]
    short_names = plot_style.shorten_names((figure.model for figure in labelled), 22)
    scale = axes.figure.dpi / 72
    centres = axes.transData.transform([(figure.accuracy, figure.score) for figure in group]).tolist()
    marks = [(x - 4 * scale, y - 4 * scale, x + 4 * scale, y + 4 * scale) for x, y in centres]
    marks += [box for figure in group for box in _error_boxes(axes, figure, scale)]
    line_boxes = _along_line(axes, group, fit, scale)
    frame = axes.get_window_extent().extents.tolist()
    frame[2] += 0.1 * axes.figure.dpi  # names may extend beyond the right edge, where nothing is drawn
    centre_of = {figure.model: centre for figure, centre in zip(group, centres, strict=True)}
    labels: list[_Box] = []
    # Flagged points first, because they matter most; then from the top.
    for figure in sorted(labelled, key=lambda each: (each.model not in flagged, -each.score, each.model)):
        text, line = short_names[figure.model], plot_style.TINY * 1.1
        size = (plot_style.text_inches([text], plot_style.TINY) * 72 * scale, line * scale)
        shifts = [
            (_AWAY * across * (0.8 if up else 1.2), up * (_AWAY * (0.6 if across else 1.2) + distance * line))
            for across, up, distance in _NAME_PLACES
        ]
        boxes = [
            _name_box(centre_of[figure.model], direction, (shift[0] * scale, shift[1] * scale), size)
            for direction, shift in zip(_NAME_PLACES, shifts, strict=True)
        ]
        costs = [
            2 * _outside(box, frame)
            + sum(10 * _overlap(box, obstacle) for obstacle in line_boxes)  # text across a line is hard to read
            + sum(4 * _overlap(box, obstacle) for obstacle in (*marks, *labels))
            + 0.1 * distance * size[0] * size[1]
            for box, (_, _, distance) in zip(boxes, _NAME_PLACES, strict=True)
        ]
        best = costs.index(min(costs))
        labels.append(boxes[best])
        across, up, distance = _NAME_PLACES[best]
        colour = plot_style.light_colour("flag" if figure.model in flagged else "ink")
        axes.annotate(
            plot_style.escape_label(text),
            (figure.accuracy, figure.score),
            shifts[best],
            textcoords="offset points",
            horizontalalignment=("center", "left", "right")[across],
            verticalalignment=("center", "bottom", "top")[up],
            color=colour,
            fontsize=plot_style.TINY,
            arrowprops={"arrowstyle": "-", "linewidth": 0.5, "color": colour, "shrinkA": 0, "shrinkB": 2}
            if distance
            else None,
        )


_Box = tuple[float, float, float, float]  # left, lower, right and upper edge, in pixels


def _along_line(axes: Any, group: Sequence[ModelScores], fit: DatasetLine | None, scale: float) -> list[_Box]:
    """Return small boxes along the line, so that names avoid it."""
    if fit is None:
        return []
    low, high = min(figure.accuracy for figure in group), max(figure.accuracy for figure in group)
    xs = [low + (high - low) * step / 40 for step in range(41)]
    places = axes.transData.transform([(x, fit.line.intercept + fit.line.slope * x) for x in xs]).tolist()
    return [(x - 2 * scale, y - scale, x + 2 * scale, y + scale) for x, y in places]


def _error_boxes(axes: Any, figure: ModelScores, scale: float) -> list[_Box]:
    """Return the boxes of a point's error bars."""
    x, y, wide, high = figure.accuracy, figure.score, figure.accuracy_se, figure.score_se
    corners = axes.transData.transform([(x - wide, y - high), (x + wide, y + high), (x, y)]).tolist()
    (left, lower), (right, upper), (middle, centre) = corners
    across = (left, centre - scale, right, centre + scale)
    return [across, (middle - scale, lower, middle + scale, upper)]


def _name_box(
    mark: Sequence[float], direction: tuple[int, int, int], shift: tuple[float, float], size: tuple[float, float]
) -> _Box:
    """Return the box of a name at `shift` from its mark; `direction` tells which end of the name is there."""
    x, y = (
        at + offset - (0.0 if step > 0 else extent if step < 0 else extent / 2)
        for at, offset, step, extent in zip(mark, shift, direction[:2], size, strict=True)
    )
    return x, y, x + size[0], y + size[1]


def _overlap(first: _Box, second: _Box) -> float:
    wide = min(first[2], second[2]) - max(first[0], second[0])
    high = min(first[3], second[3]) - max(first[1], second[1])
    return max(0.0, wide) * max(0.0, high)


def _outside(box: _Box, frame: list[float]) -> float:
    area = (box[2] - box[0]) * (box[3] - box[1])
    return area - _overlap(box, (frame[0], frame[1], frame[2], frame[3]))
