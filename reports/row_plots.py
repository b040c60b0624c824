"""Plots with a row for each thing: bars, shares, dots, stop reasons, forest plot, heat map, waterfall.

Thirty rows are readable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from viva.scoring.aggregates import Tally

from . import plot_style

_BAR_HEIGHT = 0.26  # inches
_COLOURS = (*plot_style.SERIES, "rest")
MAX_CATEGORIES = len(_COLOURS)  # so many have a colour of their own


@dataclass(slots=True, frozen=True)
class Bar:
    """A figure, and the ends of its interval where it has one."""

    value: float
    low: float | None = None
    high: float | None = None


def bar_plot(title: str, rows: Mapping[str, Bar], label: str) -> str:
    """A bar for each row, as SVG. ``label`` says what the axis shows.

    :raises ConfigurationError: matplotlib is missing.
    """
    with plot_style.plot_style():
        figure, axes = _bar_rows(title, list(rows), _BAR_HEIGHT * len(rows))
        for place, bar in enumerate(rows.values()):
            axes.barh(place, bar.value, height=0.62, color=plot_style.light_colour("point"))
            if bar.low is not None and bar.high is not None:
                reach = [[max(0.0, bar.value - bar.low)], [max(0.0, bar.high - bar.value)]]
                axes.errorbar(
                    bar.value, place, xerr=reach, fmt="none", ecolor=plot_style.light_colour("ink"), elinewidth=0.9
                )
            _write_value(axes, bar.value, bar.value if bar.high is None else max(bar.value, bar.high), place)
        axes.margins(x=0.14)
        if not any(bar.value or bar.high for bar in rows.values()):
            axes.set_xlim(0, 1)  # nothing but zeros: an axis around 0 would show numbers that cannot be
        axes.set_xlabel(plot_style.escape_label(label))
        return plot_style.write_svg(figure)


def grouped_bar_plot(title: str, rows: Mapping[str, Mapping[str, float]], order: Sequence[str], label: str) -> str:
    """In each row a bar for each category that it has, as SVG; values lie between 0 and 1.

    ``order``: at most ``MAX_CATEGORIES`` categories.

    :raises ConfigurationError: matplotlib is missing.
    """
    names = list(plot_style.shorten_names(list(order), 14).values())
    with plot_style.plot_style():
        height = 0.85 / max(1, len(order))
        tall = max(_BAR_HEIGHT, 0.17 * len(order) + 0.08) * len(rows)
        figure, axes = _bar_rows(title, list(rows), tall, plot_style.legend_height(names))
        for place, values in enumerate(rows.values()):
            for number, category in enumerate(order):
                if (value := values.get(category)) is not None:
                    at = place + (number - (len(order) - 1) / 2) * height
                    axes.barh(at, value, height=0.85 * height, color=plot_style.light_colour(_COLOURS[number]))
                    _write_value(axes, value, value, at)
        axes.set_xlim(0, 1.12)
        axes.set_xticks([0, 0.2, 0.4, 0.6, 0.8, 1])
        axes.set_xlabel(plot_style.escape_label(label))
        plot_style.draw_legend(figure, _legend_patches(len(order)), names)
        return plot_style.write_svg(figure)


def stacked_bar_plot(title: str, rows: Mapping[str, Mapping[str, int]], order: Sequence[str]) -> str:
    """For each row the shares of its categories, side by side, in one order, as SVG.

    ``rows``: counts by category; ``order``: at most ``MAX_CATEGORIES`` of them.

    :raises ConfigurationError: matplotlib is missing.
    """
    names = list(plot_style.shorten_names(list(order), 14).values())
    with plot_style.plot_style():
        figure, axes = _bar_rows(title, list(rows), _BAR_HEIGHT * len(rows), plot_style.legend_height(names))
        for place, counts in enumerate(rows.values()):
            whole, left = sum(counts.values()) or 1, 0.0
            for category, colour in zip(order, _COLOURS, strict=False):
                share = 100 * counts.get(category, 0) / whole
                if share:
                    axes.barh(place, share, left=left, height=0.62, color=plot_style.light_colour(colour),
                              edgecolor=plot_style.light_colour("paper"), linewidth=0.6)  # fmt: skip
                left += share
        axes.set_xlim(0, 100)
        axes.set_xlabel("share, %")
        plot_style.draw_legend(figure, _legend_patches(len(order)), names)
        return plot_style.write_svg(figure)


def _bar_rows(title: str, names: Sequence[str], height: float, legend: float = 0.0) -> tuple[Any, Any]:
    """A panel with a named row for each name, ``height`` inches high, ``legend`` inches left free below."""
    shown = [plot_style.shorten_names(names, 20)[name] for name in names]
    left = min(1.45, max(0.5, plot_style.text_inches(shown) + 0.1))
    figure, axes = plot_style.make_panel(max(_BAR_HEIGHT, height) + 0.1, left=left, bottom=plot_style.BOTTOM + legend)
    plot_style.set_title(axes, title)
    axes.set_yticks(range(len(names)), [plot_style.escape_label(name) for name in shown])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    return figure, axes


def _write_value(axes: Any, value: float, end: float, place: float) -> None:
    axes.annotate(f" {value:.3g}", (end, place), va="center", fontsize=plot_style.TINY)


def _legend_patches(count: int) -> list[Any]:
    rectangle = import_module("matplotlib.patches").Rectangle
    return [rectangle((0, 0), 1, 1, facecolor=plot_style.light_colour(colour)) for colour in _COLOURS[:count]]


_MARK_HEIGHT, _MARK_SPACE = 0.115, 0.12  # inches of a mark, and between rows


def dot_plot(title: str, rows: Sequence[str], things: Mapping[str, Mapping[str, Bar]], axis: str) -> str:
    """By thing and row a figure from 0 to 100 with its interval, as SVG. ``things``: at most ``style.LINES``.

    :raises ConfigurationError: matplotlib is missing.
    """
    names, shown = plot_style.shorten_names(rows, 22), list(plot_style.shorten_names(list(things), 20).values())
    with plot_style.plot_style():
        tall = max(0.22, _MARK_HEIGHT * len(things) + _MARK_SPACE)
        figure, axes = plot_style.make_panel(tall * max(1, len(rows)),
            left=0.15 + plot_style.text_inches(names.values()),
                                   bottom=plot_style.BOTTOM + plot_style.legend_height(shown))  # fmt: skip
        plot_style.set_title(axes, title)
        handles = []
        for number, figures in enumerate(things.values()):
            colour = plot_style.light_colour(plot_style.SERIES[number])
            shift = (number - (len(things) - 1) / 2) * _MARK_HEIGHT / tall
            places = [at + 0.5 + shift for at, row in enumerate(rows) if row in figures]
            known = [figures[row] for row in rows if row in figures]
            for place, one in zip(places, known, strict=True):
                if one.low is not None and one.high is not None:
                    axes.plot([one.low, one.high], [place, place], color=colour, linewidth=1.0)
            handles += axes.plot([one.value for one in known], places, linestyle="none",
                marker=plot_style.MARKERS[number],
                                 color=colour, markersize=4)  # fmt: skip
        for at in range(1, len(rows)):
            axes.axhline(at, color=plot_style.light_colour("grid"), linewidth=0.6)
        axes.set_xlim(-2, 102)
        axes.set_ylim(max(1, len(rows)), 0)
        axes.set_yticks([at + 0.5 for at in range(len(rows))], [plot_style.escape_label(names[row]) for row in rows])
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x")
        axes.set_xlabel(plot_style.escape_label(axis))
        plot_style.draw_legend(figure, handles, shown)
        return plot_style.write_svg(figure)


_CANDIDATE_HEIGHTS = 0.34, 0.2  # inches of a row, of few candidates and of many
_MAX_TALL_ROWS = 12
MAX_REASONS_SHOWN = len(plot_style.SERIES)  # so many reasons have a colour of their own
OTHER_STOPS, ALL_ROUNDS = "other reasons", "none: all rounds held"


@dataclass(slots=True, frozen=True)
class AspectMean:
    """A mean from 0 to 100, and how far its interval reaches below and above it (None where it has none)."""

    value: float
    reach: tuple[float, float] | None = None


@dataclass(slots=True, frozen=True)
class StopCounts:
    """One candidate's conversations: how many, and of them how many stopped early for which reason."""

    name: str
    talks: int
    reasons: Mapping[str, int]


def aspect_plot(title: str, overall: Mapping[str, AspectMean], rows: Mapping[str, Mapping[str, AspectMean]]) -> str:
    """By candidate the mean of each aspect and, with its interval, the overall score, as SVG.

    ``rows``: candidate to aspect to mean, at most ``style.LINES - 1`` aspects; ``overall`` has the same candidates.

    :raises ConfigurationError: matplotlib is missing.
    """
    marks = list(dict.fromkeys(aspect for one in rows.values() for aspect in one))
    legend = ["overall, 95% interval", *marks]
    with plot_style.plot_style():
        figure, axes, row = _candidate_rows(title, list(rows), legend)
        axes.set_xlabel("mean score, 0–100")
        axes.set_xlim(-2, 102)
        axes.grid(axis="both")
        handles = []
        places = [(at + 0.5, name) for at, name in enumerate(rows)]
        for index, aspect in enumerate(marks):
            # Marks of one row stand a little apart, so that equal ones are all seen.
            shift = (index - (len(marks) - 1) / 2) * 0.13
            known = [(place + shift, rows[name][aspect].value) for place, name in places if aspect in rows[name]]
            (drawn,) = axes.plot(
                [value for _, value in known],
                [place for place, _ in known],
                linestyle="none",
                marker=plot_style.MARKERS[index],
                color=plot_style.light_colour(plot_style.SERIES[index]),
                markersize=4 if row > 0.25 else 3.2,
            )
            handles.append(drawn)
        known_overall = [(place, overall[name]) for place, name in places if name in overall]
        bars = axes.errorbar(
            [dot.value for _, dot in known_overall],
            [place for place, _ in known_overall],
            xerr=[[(dot.reach or (0.0, 0.0))[side] for _, dot in known_overall] for side in (0, 1)],
            fmt="|",
            color=plot_style.light_colour("ink"),
            markersize=9 if row > 0.25 else 7,
            markeredgewidth=1.6,
            elinewidth=0.9,
        )
        plot_style.draw_legend(figure, [bars, *handles], legend)
        return plot_style.write_svg(figure)


def shown_reasons(rows: Iterable[StopCounts]) -> tuple[list[str], list[str]]:
    """The reasons that have a colour of their own, most frequent first, and those that are drawn together.

    Give the rows of all panels, so that a reason has the same colour in each.
    """
    total = Tally()
    for row in rows:
        for reason, count in row.reasons.items():
            total.add(reason, count)
    counts = total.to_dict()
    ranked = sorted(counts, key=lambda reason: -counts[reason])
    own = ranked if len(ranked) <= MAX_REASONS_SHOWN else ranked[: MAX_REASONS_SHOWN - 1]
    return own, ranked[len(own) :]


def stop_plot(title: str, rows: Sequence[StopCounts], reasons: tuple[list[str], list[str]]) -> str:
    """By candidate the shares of conversations (percent) that held all rounds or stopped early, and why, as SVG.

    ``reasons`` are those of ``shown_reasons``. Candidates without a conversation have an empty row.

    :raises ConfigurationError: matplotlib is missing.
    """
    own, rest = reasons
    names = [*(plot_style.shorten_names(own, 30).values()), *([OTHER_STOPS] if rest else [])]
    with plot_style.plot_style():
        figure, axes, _ = _candidate_rows(title, [row.name for row in rows], [*names, ALL_ROUNDS])
        axes.set_xlabel("share of talks, %")
        axes.set_xlim(0, 100)
        rectangle = import_module("matplotlib.patches").Rectangle
        colours = [*plot_style.SERIES[: len(names)], "rest"]
        handles = [rectangle((0, 0), 1, 1, facecolor=plot_style.light_colour(name)) for name in colours]
        for at, row in enumerate(rows):
            counts = [row.reasons.get(reason, 0) for reason in own]
            counts += [sum(row.reasons.get(reason, 0) for reason in rest)] if rest else []
            _draw_stops(axes, rectangle, at, row.talks, counts)
        plot_style.draw_legend(figure, handles, [*names, ALL_ROUNDS])
        return plot_style.write_svg(figure)


def _draw_stops(axes: Any, rectangle: Any, at: int, talks: int, counts: Sequence[int]) -> None:
    """One candidate's bar: reasons from the left, with a base in common, then conversations held in full."""
    if not talks:
        return
    begin = 0.0
    for index, count in enumerate([*counts, talks - sum(counts)]):
        wide = 100 * count / talks
        if wide:
            name = "rest" if index == len(counts) else plot_style.SERIES[index]
            box = rectangle((begin, at + 0.14), wide, 0.72, facecolor=plot_style.light_colour(name))
            box.set(edgecolor=plot_style.light_colour("paper"), linewidth=0.6)
            axes.add_patch(box)
        if wide >= 9:
            ground = "ink" if index == len(counts) else "paper"
            axes.text(
                begin + wide / 2,
                at + 0.52,
                f"{wide:.0f}",
                ha="center",
                va="center",
                fontsize=plot_style.TINY,
                color=plot_style.light_colour(ground),
            )
        begin += wide


def _candidate_rows(title: str, candidates: list[str], legend: Sequence[str]) -> tuple[Any, Any, float]:
    """A figure with a row for each candidate, its axes, and the inches of a row."""
    row = _CANDIDATE_HEIGHTS[len(candidates) > _MAX_TALL_ROWS]
    names = list(plot_style.shorten_names(candidates).values())
    left = 0.15 + plot_style.text_inches(names)
    figure, axes = plot_style.make_panel(
        row * len(candidates), left=left, bottom=plot_style.BOTTOM + plot_style.legend_height(legend)
    )
    plot_style.set_title(axes, title)
    axes.set_ylim(len(candidates), 0)
    axes.set_yticks([at + 0.5 for at in range(len(candidates))], [plot_style.escape_label(name) for name in names])
    axes.tick_params(axis="y", length=0)
    return figure, axes, row


_FOREST_HEIGHT = 0.22  # inches


@dataclass(slots=True, frozen=True)
class ForestRow:
    """A figure with the ends of its interval, None where it has none. ``flagged``: drawn in the colour of findings."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    flagged: bool = False


def save_forest_plot(
    file: Path, title: str, rows: Sequence[ForestRow], axis: str, bounds: tuple[float, float] | None = None
) -> None:
    """Draw to a file, SVG or PNG by its ending.

    :raises ConfigurationError: matplotlib is missing.
    :raises OSError: the file cannot be written.
    """
    with plot_style.plot_style():
        plot_style.save_plot(_draw_forest(title, rows, axis, bounds), file)


def forest_plot(title: str, rows: Sequence[ForestRow], axis: str, bounds: tuple[float, float] | None = None) -> str:
    """The same as SVG.

    :raises ConfigurationError: matplotlib is missing.
    """
    with plot_style.plot_style():
        return plot_style.write_svg(_draw_forest(title, rows, axis, bounds))


def _draw_forest(title: str, rows: Sequence[ForestRow], axis: str, bounds: tuple[float, float] | None) -> Any:
    names = list(plot_style.shorten_names([row.name for row in rows], 30).values())
    if len(names) < len(rows):  # equal names are rows of their own
        names = [plot_style.shorten_names([row.name], 30)[row.name] for row in rows]
    figure, axes = plot_style.make_panel(
        _FOREST_HEIGHT * max(1, len(rows)) + 0.1, left=0.15 + plot_style.text_inches(names)
    )
    plot_style.set_title(axes, title)
    axes.set_xlabel(plot_style.escape_label(axis))
    axes.set_ylim(len(rows), 0)
    if bounds is not None:
        axes.set_xlim(*bounds)
    axes.set_yticks([at + 0.5 for at in range(len(rows))], [plot_style.escape_label(name) for name in names])
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    axes.axvline(0.0, color=plot_style.light_colour("line"), linewidth=0.9, linestyle=plot_style.DASHES[1])
    for at, row in enumerate(rows):
        colour = plot_style.light_colour("flag" if row.flagged else "point")
        if row.low is not None and row.high is not None:
            axes.plot([row.low, row.high], [at + 0.5] * 2, color=colour, linewidth=1.6, solid_capstyle="butt")
        axes.plot([row.value], [at + 0.5], marker=plot_style.MARKERS[1], color=colour, linestyle="none")
    return figure


MAX_HEAT_COLUMNS = 6  # so many are legible on a phone
_HEAT_HEIGHT = 0.27  # inches
_MAX_TINT = 0.55  # of the colour: text on it has to be read


def heat_map(
    title: str, rows: Sequence[str], columns: Sequence[str], cells: Mapping[tuple[str, str], float], most: float
) -> str:
    """Cells by row and column as SVG; ``most`` is what the strongest colour stands for. A missing cell stays empty.

    ``columns``: at most ``MAX_HEAT_COLUMNS`` of them.

    :raises ConfigurationError: matplotlib is missing.
    """
    names, heads = plot_style.shorten_names(rows, 22), plot_style.shorten_names(columns, 9)
    with plot_style.plot_style():
        left = 0.1 + plot_style.text_inches(names.values())
        figure, axes = plot_style.make_panel(_HEAT_HEIGHT * max(1, len(rows)), left=left, bottom=0.12, top=0.55)
        plot_style.set_title(axes, title)
        rectangle = import_module("matplotlib.patches").Rectangle
        for at, row in enumerate(rows):
            for place, column in enumerate(columns):
                if (value := cells.get((row, column))) is None:
                    continue
                strength = min(1.0, max(0.0, value / most)) if most > 0 else 0.0
                axes.add_patch(rectangle((place + 0.03, at + 0.05), 0.94, 0.9,
                    facecolor=plot_style.light_colour("flag"),
                                         alpha=_MAX_TINT * strength, linewidth=0))  # fmt: skip
                axes.text(place + 0.5, at + 0.53, f"{value:.0f}", ha="center", va="center", fontsize=plot_style.SMALL)
        axes.set_xlim(0, max(1, len(columns)))
        axes.set_ylim(max(1, len(rows)), 0)
        axes.set_yticks([at + 0.5 for at in range(len(rows))], [plot_style.escape_label(names[row]) for row in rows])
        axes.set_xticks(
            [at + 0.5 for at in range(len(columns))], [plot_style.escape_label(heads[one]) for one in columns]
        )
        axes.tick_params(length=0, labeltop=True, labelbottom=False)
        for spine in axes.spines.values():
            spine.set_visible(False)
        return plot_style.write_svg(figure)


_STEP_HEIGHT = 0.27  # inches


@dataclass(slots=True, frozen=True)
class WaterfallStep:
    """A part of the change, and the ends of its interval where it has one."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None


def waterfall_plot(
    title: str, before: tuple[str, float], steps: Sequence[WaterfallStep], after: tuple[str, float], axis: str
) -> str:
    """Bars from the figure ``before`` over the steps to the one ``after``, each a name and a value, as SVG.

    :raises ConfigurationError: matplotlib is missing.
    """
    names = [before[0], *(step.name for step in steps), after[0]]
    with plot_style.plot_style():
        figure, axes = plot_style.make_panel(_STEP_HEIGHT * len(names) + 0.1, left=0.15 + plot_style.text_inches(names))
        plot_style.set_title(axes, title)
        reached, ends = before[1], [before[1], after[1]]
        for place, (_, value) in ((0, before), (len(names) - 1, after)):
            axes.plot(
                [value],
                [place + 0.5],
                marker=plot_style.MARKERS[0],
                color=plot_style.light_colour("ink"),
                linestyle="none",
            )
            axes.annotate(f" {value:.1f}", (value, place + 0.5), va="center", fontsize=plot_style.TINY, xytext=(5, 0),
                          textcoords="offset points")  # fmt: skip
        for place, step in enumerate(steps, 1):
            colour = plot_style.light_colour("blue" if step.value >= 0 else "orange")
            axes.barh(place + 0.5, step.value, left=reached, height=0.6, color=colour)
            axes.plot(
                [reached, reached], [place - 0.5, place + 0.5], color=plot_style.light_colour("faint"), linewidth=0.7
            )
            right = max(reached, reached + step.value)
            if step.low is not None and step.high is not None:
                span = [reached + step.low, reached + step.high]
                axes.plot(span, [place + 0.5] * 2, color=plot_style.light_colour("ink"), linewidth=0.9)
                ends += span
                right = max(right, span[1])
            axes.annotate(f"{step.value:+.1f}", (right, place + 0.5), va="center", fontsize=plot_style.TINY,
                xytext=(5, 0),
                          textcoords="offset points")  # fmt: skip
            reached += step.value
            ends.append(reached)
        axes.plot(
            [reached, reached],
            [len(names) - 1.5, len(names) - 0.5],
            color=plot_style.light_colour("faint"),
            linewidth=0.7,
        )
        width = max(max(ends) - min(ends), 1.0)
        axes.set_xlim(min(ends) - 0.08 * width, max(ends) + 0.24 * width)  # room for numbers
        axes.set_ylim(len(names), 0)
        axes.set_yticks([at + 0.5 for at in range(len(names))], [plot_style.escape_label(name) for name in names])
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(plot_style.escape_label(axis))
        axes.grid(axis="x")
        return plot_style.write_svg(figure)
