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
from .label_layout import Box, group_points, join_label, place_labels

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
    figures = [(line.name, *figure) for line in lines for figure in _curve_figures(line)]
    if not any(line.flagged for line in lines) and (
        sentence := plot_style.sentence_instead(figures, f"all values ({axes.y})")
    ):
        return sentence
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
    _write_point_texts(panel, lines)
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
    for at_point, (x, (y, low, high), text) in enumerate(
        zip(line.xs, _curve_figures(line), [*line.texts, *[""] * len(line.xs)], strict=False)
    ):
        if not axes.marks and at_point < len(line.xs) - 1:  # a line of many points has one note, at its end
            continue
        name, value = (line.name, f"{axes.y}: {y:.4g}") if line.name else (axes.y, f"{y:.4g}")
        interval = "" if low is None or high is None else f" (interval {low:.4g} to {high:.4g})"
        plot_style.add_mark(panel, x, y, [name, f"{value}{interval}", f"{axes.x}: {x:g}", *([text] if text else [])])
    return handle


def _curve_figures(line: Curve) -> list[tuple[float, float | None, float | None]]:
    """Return the values of a line with the ends of their intervals."""
    ends = zip(line.low, line.high, strict=True) if line.low else [(None, None)] * len(line.ys)
    return [(value, low, high) for value, (low, high) in zip(line.ys, ends, strict=True)]


def _write_point_texts(panel: Any, lines: Sequence[Curve]) -> None:
    """Write the texts beside points where none covers another."""
    points = [(x, y, text) for line in lines for x, y, text in zip(line.xs, line.ys, line.texts, strict=False) if text]
    if not points:
        return
    scale = panel.figure.dpi / 72
    panel.autoscale_view()
    centres = panel.transData.transform([(x, y) for line in lines for x, y in zip(line.xs, line.ys, strict=True)])
    marks = [(x - 3 * scale, y - 3 * scale, x + 3 * scale, y + 3 * scale) for x, y in centres.tolist()]
    frame = panel.get_window_extent().extents.tolist()
    frame[2], frame[3] = frame[2] + 0.1 * panel.figure.dpi, frame[3] + 0.1 * panel.figure.dpi
    texts = [text for _, _, text in points]
    _write_labels(panel, [(x, y) for x, y, _ in points], texts, ["ink"] * len(texts), (frame, marks, []))


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
    """Value of a round, the round's number from 1, the interval's reach below and above the value, if any, and n."""

    round: int
    value: float
    reach: tuple[float, float] | None = None
    n: int | None = None

    @property
    def ends(self) -> tuple[float | None, float | None]:
        """The ends of the interval."""
        return (None, None) if self.reach is None else (self.value - self.reach[0], self.value + self.reach[1])


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


def _shown_groups(candidates: Sequence[_SupportsLine]) -> tuple[list[list[int]], list[str]]:
    """Return groups and names of the lines with values. The others only keep the colours equal in all panels."""
    lines = [(group, name) for group, name in zip(*_group_lines(candidates), strict=True) if candidates[group[0]].line]
    return [group for group, _ in lines], [name for _, name in lines]


@dataclass(slots=True, frozen=True)
class RoundCurve:
    """Candidate's values by round. A candidate without values has an empty row."""

    name: str
    steps: Sequence[RoundValue]

    @property
    def line(self) -> tuple[RoundValue, ...]:
        """Drawn values."""
        return tuple(self.steps)


def survival_plot(title: str, curves: Sequence[RoundCurve], others: Sequence[RoundCurve] = ()) -> str:
    """Draw the fraction of conversations (per cent) that reached each round; the axis also covers `others`."""
    return _draw_rounds(title, curves, "reached the round, %", stepped=True, others=others)


def round_score_plot(title: str, curves: Sequence[RoundCurve], others: Sequence[RoundCurve] = ()) -> str:
    """Draw the mean score (0–100) of each round with its interval; the axis also covers `others`."""
    return _draw_rounds(title, curves, "score of the round, 0–100", stepped=False, others=others)


@plot_style.as_svg
def _draw_rounds(
    title: str, curves: Sequence[RoundCurve], label: str, stepped: bool, others: Sequence[RoundCurve]
) -> Any:
    rounds = sorted({step.round for curve in curves for step in curve.steps})
    figures = [
        (f"{curve.name}, round {step.round}", step.value, *step.ends) for curve in curves for step in curve.steps
    ]
    candidates = plot_style.counted(sum(bool(curve.steps) for curve in curves), "candidate")
    subject = f"shares of {candidates} by round" if stepped else f"round scores of {candidates}"
    if stepped and len(figures) > 1 and all(value == 100 for _, value, _, _ in figures):
        return plot_style.Sentence(f"All interviews of {candidates} reached every round.")
    if sentence := plot_style.sentence_instead(figures, f"all {subject}", "%" if stepped else ""):
        return sentence
    if len(curves) <= plot_style.LINES:
        ends = [
            end for curve in (*curves, *others) for step in curve.steps for end in (step.value, *step.ends)
            if end is not None
        ]  # fmt: skip
        return _round_lines(title, curves, rounds, label, stepped, plot_style.axis_range(ends, (0.0, 100.0)))
    return _round_cells(title, curves, rounds, label)


def _round_lines(
    title: str,
    curves: Sequence[RoundCurve],
    rounds: list[int],
    label: str,
    stepped: bool,
    scale: tuple[float, float],
) -> Any:
    groups, names = _shown_groups(curves)
    figure, axes = plot_style.make_panel(1.9, bottom=plot_style.BOTTOM + plot_style.legend_height(names))
    plot_style.set_title(axes, title)
    axes.set_xlabel("round")
    axes.set_ylabel(label)
    axes.set_xticks(rounds)
    axes.set_ylim(*scale)
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
        for x, step in zip(xs, curve.steps, strict=True):
            _mark_step(axes, x, step.value, names[position], step, "%" if stepped else "")
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


def _mark_step(axes: Any, x: float, y: float, name: str, step: RoundValue, unit: str) -> None:
    lines = plot_style.mark_lines(f"{name}, round {step.round}", step.value, *step.ends, step.n, unit=unit)
    plot_style.add_mark(axes, x, y, lines)


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
            _mark_step(axes, at + 0.5, row + 0.5, curve.name, step, "")
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
    # Intervals narrow as conversations end, which is the subject of this plot, so they do not matter here.
    means = [(track.name, mean, None, None) for track in thin for run in track.runs for mean in run.mean]
    if sentence := plot_style.sentence_instead(means, "all running means"):
        return sentence
    return _run_lines(title, thin) if len(thin) <= plot_style.LINES else _run_strips(title, thin)


def _run_lines(title: str, tracks: Sequence[CandidateRuns]) -> Any:
    groups, names = _shown_groups(tracks)
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
            _mark_last(axes, run, run.mean[-1], track.name)
            lows, highs = _after_warmup(run.low, run), _after_warmup(run.high, run)
            reach = [min(reach[0], *lows), max(reach[1], *highs)]
        handles.append(line)
    _frame_runs(axes, tracks)
    axes.set_ylim(*plot_style.axis_range(reach, (0.0, 100.0)))
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
            _mark_last(axes, run, row + 0.5, track.name)
        axes.axhline(row, color=plot_style.light_colour("grid"), linewidth=0.6)
    _frame_runs(axes, tracks)
    label = f"interviews so far (height of a strip: last mean ± {span:.1f} points)"
    figure.text(0.5, 0.06 / figure.get_figheight(), label, ha="center", fontsize=plot_style.NORMAL)
    return figure


def _mark_last(axes: Any, run: RunningMean, y: float, name: str) -> None:
    lines = plot_style.mark_lines(name, run.mean[-1], run.low[-1], run.high[-1], run.n[-1])
    plot_style.add_mark(axes, run.n[-1], y, lines)


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
_ON_POINT = 2.5  # points; models nearer to each other share a name
_JOINED = 40  # columns of a shared name

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
def regression_plot(
    title: str,
    group: Sequence[ModelScores],
    fit: DatasetLine | None,
    labels: AxisLabels,
    counts: Mapping[str, int] | None = None,
) -> Any:
    """Draw one dataset's panel, with figures from 0 to 100; a sentence if the models cannot be told apart.

    `labels` are the axis labels, with units; `counts` are the conversations of each model.
    """
    if not _flagged_models(fit) and (sentence := _sentence_of_models(group)) is not None:
        return sentence
    figure, axes = plot_style.make_panel(2.7)
    plot_style.set_title(axes, title)
    _draw_panel(axes, group, fit, (), labels)
    for axis in (axes.xaxis, axes.yaxis):  # the margin for names exceeds the range of values
        low, high = axis.get_view_interval()
        axis.set_ticks([tick for tick in axis.get_ticklocs() if max(0, low) <= tick <= min(100, high)])
    _draw_names(axes, group, fit, ())
    for model in group:
        n = (counts or {}).get(model.model)
        lines = [model.model, f"score {model.score:.1f}{_error_text(model.score_se)}"]
        lines += [f"accuracy {model.accuracy:.1f}{_error_text(model.accuracy_se)}", *([f"n = {n:,}"] if n else [])]
        plot_style.add_mark(axes, model.accuracy, model.score, lines)
    return figure


def _error_text(error: float) -> str:
    return f" ± {error:.1f} (standard error)" if error else ""


def _sentence_of_models(group: Sequence[ModelScores]) -> plot_style.Sentence | None:
    """Return a sentence if all models lie within two standard errors of each other in both figures."""
    models = plot_style.counted(len(group), "model")
    if len(group) < 2:
        names = [f"{model.model}: score {model.score:.1f}, accuracy {model.accuracy:.1f}%." for model in group]
        return plot_style.Sentence("".join(names) or "There are no figures yet.")
    spreads = []
    for field in ("score", "accuracy"):
        values = [getattr(model, field) for model in group]
        reaches = [2 * getattr(model, f"{field}_se") for model in group]
        pairs = list(zip(values, reaches, strict=True))
        if max(v - r for v, r in pairs) > min(values) or min(v + r for v, r in pairs) < max(values):
            return None
        spreads.append(math.ceil(10 * (max(values) - min(values)) - 1e-9) / 10)
    if not any(spreads):
        return plot_style.Sentence(f"All {models} have the same score and the same accuracy.")
    return plot_style.Sentence(
        f"All {models} lie within {spreads[0]:g} points of each other in score and within {spreads[1]:g} in accuracy, "
        "less than two standard errors of each: too few items for this figure to tell them apart."
    )


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
            markeredgecolor=colour if figure.model in without else plot_style.light_colour("paper"),
            markeredgewidth=1.0 if figure.model in without else 0.7,  # near marks stay apart
            markersize=5,
            elinewidth=0.8,
        )
    axes.margins(0.18)
    axes.autoscale_view()  # otherwise only drawing would fix the limits, after names are placed


def _flagged_models(fit: DatasetLine | None) -> set[str]:
    return set() if fit is None else {*fit.line.below, *fit.line.above}


def _draw_names(axes: Any, group: Sequence[ModelScores], fit: DatasetLine | None, without: Collection[str]) -> None:
    """Write models' names beside their points; models on one point share a name."""
    flagged = _flagged_models(fit)
    labelled = [
        figure for figure in group if len(group) <= MAX_NAMES or figure.model in flagged or figure.model in without
    ]
    short_names = plot_style.shorten_names((figure.model for figure in labelled), 22)
    scale = axes.figure.dpi / 72
    centres = axes.transData.transform([(figure.accuracy, figure.score) for figure in group]).tolist()
    marks = [(x - 4 * scale, y - 4 * scale, x + 4 * scale, y + 4 * scale) for x, y in centres]
    marks += [box for figure in group for box in _error_boxes(axes, figure, scale)]
    frame = axes.get_window_extent().extents.tolist()
    frame[2] += 0.1 * axes.figure.dpi  # names may extend beyond the right edge, where nothing is drawn
    centre_of = {figure.model: tuple(centre) for figure, centre in zip(group, centres, strict=True)}
    # Flagged points first, because they matter most; then from the top.
    labelled.sort(key=lambda each: (each.model not in flagged, -each.score, each.model))
    points = [centre_of[figure.model] for figure in labelled]
    groups = group_points(points, [figure.model in flagged for figure in labelled], _ON_POINT * scale)
    texts = [join_label([short_names[labelled[at].model] for at in together], _JOINED) for together in groups]
    _write_labels(
        axes,
        [(labelled[together[0]].accuracy, labelled[together[0]].score) for together in groups],
        texts,
        ["flag" if labelled[together[0]].model in flagged else "ink" for together in groups],
        (frame, marks, _along_line(axes, group, fit, scale)),
    )


def _write_labels(
    axes: Any,
    points: Sequence[tuple[float, float]],
    texts: Sequence[str],
    colours: Sequence[str],
    room: tuple[Sequence[float], Sequence[Box], Sequence[Box]],
) -> None:
    """Write texts beside points without overlaps. `room` has the frame, the marks' boxes, and boxes along lines."""
    if not points:
        return
    frame, marks, line_boxes = room
    scale = axes.figure.dpi / 72
    height = plot_style.TINY * 1.1 * scale
    sizes = [(plot_style.measured_points(text, plot_style.TINY) * scale, height) for text in texts]
    centres = [tuple(centre) for centre in axes.transData.transform(points).tolist()]
    labels = place_labels(
        centres, sizes, (frame[0], frame[1], frame[2], frame[3]), away=_AWAY * scale, obstacles=marks, lines=line_boxes
    )
    for point, centre, text, colour, label in zip(points, centres, texts, colours, labels, strict=True):
        if label is None:  # no room: the name is in the mark's note
            continue
        left, lower, right, _ = label.box
        across = (left + right) / 2 if label.side == 0 else left if label.side > 0 else right
        ink = plot_style.light_colour(colour)
        leader = {"arrowstyle": "-", "linewidth": 0.5, "color": ink, "shrinkA": 0, "shrinkB": 2}
        axes.annotate(
            plot_style.escape_label(text),
            point,
            ((across - centre[0]) / scale, (lower - centre[1]) / scale),
            textcoords="offset points",
            horizontalalignment=("center", "left", "right")[label.side],
            verticalalignment="bottom",
            color=ink,
            fontsize=plot_style.TINY,
            annotation_clip=False,
            arrowprops=leader if label.leader else None,
        )


def _along_line(axes: Any, group: Sequence[ModelScores], fit: DatasetLine | None, scale: float) -> list[Box]:
    """Return small boxes along the line, so that names avoid it."""
    if fit is None:
        return []
    low, high = min(figure.accuracy for figure in group), max(figure.accuracy for figure in group)
    xs = [low + (high - low) * step / 40 for step in range(41)]
    places = axes.transData.transform([(x, fit.line.intercept + fit.line.slope * x) for x in xs]).tolist()
    return [(x - 2 * scale, y - scale, x + 2 * scale, y + scale) for x, y in places]


def _error_boxes(axes: Any, figure: ModelScores, scale: float) -> list[Box]:
    """Return the boxes of a point's error bars."""
    x, y, wide, high = figure.accuracy, figure.score, figure.accuracy_se, figure.score_se
    corners = axes.transData.transform([(x - wide, y - high), (x + wide, y + high), (x, y)]).tolist()
    (left, lower), (right, upper), (middle, centre) = corners
    across = (left, centre - scale, right, centre + scale)
    return [across, (middle - scale, lower, middle + scale, upper)]
