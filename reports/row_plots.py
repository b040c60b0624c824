"""Plots with a row for each thing: bars, fractions, dots, stop reasons, forest plot, heat map, waterfall.

Such plots stay readable with thirty rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from viva.scoring.aggregates import Tally

from . import plot_style

_BAR_HEIGHT = 0.26  # inches
_COLOURS = (*plot_style.SERIES, "rest")
MAX_CATEGORIES = len(_COLOURS)  # categories with separate colours


@dataclass(slots=True, frozen=True)
class Bar:
    """Figure with the ends of its interval, if it has one, and n."""

    value: float
    low: float | None = None
    high: float | None = None
    n: int | None = None


@plot_style.as_svg
def bar_plot(title: str, rows: Mapping[str, Bar], label: str) -> Any:
    """Draw a bar for each row, from 0; a sentence if all figures are the same. `label` is the axis label."""
    figures = [(name, bar.value, bar.low, bar.high) for name, bar in rows.items()]
    if sentence := plot_style.sentence_instead(figures, f"all {plot_style.counted(len(rows), 'figure')} ({label})"):
        return sentence
    figure, axes = _bar_rows(title, list(rows), _BAR_HEIGHT)
    for index, (name, bar) in enumerate(rows.items()):
        plot_style.add_mark(
            axes, bar.value, index + 0.5, plot_style.mark_lines(name, bar.value, bar.low, bar.high, bar.n, digits=3)
        )
        axes.barh(index + 0.5, bar.value, height=0.62, color=plot_style.light_colour("point"))
        if bar.low is not None and bar.high is not None:
            reach = [[max(0.0, bar.value - bar.low)], [max(0.0, bar.high - bar.value)]]
            ink = plot_style.light_colour("ink")
            axes.errorbar(bar.value, index + 0.5, xerr=reach, fmt="none", ecolor=ink, elinewidth=0.9)
        _write_value(axes, bar.value, bar.value if bar.high is None else max(bar.value, bar.high), index + 0.5)
    axes.margins(x=0.14)
    axes.set_xlabel(plot_style.escape_label(label))
    return figure


@plot_style.as_svg
def grouped_bar_plot(title: str, rows: Mapping[str, Mapping[str, float]], order: Sequence[str], label: str) -> Any:
    """Draw in each row a bar for each of its categories; values lie between 0 and 1.

    `order`: at most `MAX_CATEGORIES` categories.
    """
    figures = [(f"{row}, {name}", value, None, None) for row, own in rows.items() for name, value in own.items()]
    if sentence := plot_style.sentence_instead(figures, f"all {plot_style.counted(len(figures), 'figure')} ({label})"):
        return sentence
    names = list(plot_style.shorten_names(list(order), 14).values())
    height = 0.85 / max(1, len(order))
    figure, axes = _bar_rows(title, list(rows), max(_BAR_HEIGHT, 0.17 * len(order) + 0.08), names)
    for index, (row, values) in enumerate(rows.items()):
        for number, category in enumerate(order):
            if (value := values.get(category)) is not None:
                at = index + 0.5 + (number - (len(order) - 1) / 2) * height
                axes.barh(at, value, height=0.85 * height, color=plot_style.light_colour(_COLOURS[number]))
                _write_value(axes, value, value, at)
                plot_style.add_mark(axes, value, at, plot_style.mark_lines(f"{row}, {category}", value, digits=3))
    axes.set_xlim(0, 1.12)
    axes.set_xticks([0, 0.2, 0.4, 0.6, 0.8, 1])
    axes.set_xlabel(plot_style.escape_label(label))
    plot_style.draw_legend(figure, _legend_patches(_COLOURS[: len(order)]), names)
    return figure


@plot_style.as_svg
def stacked_bar_plot(title: str, rows: Mapping[str, Mapping[str, int]], order: Sequence[str]) -> Any:
    """Draw for each row the fractions of its categories, side by side, in one order.

    Args:
        title: Title of the plot.
        rows: Counts by category.
        order: At most `MAX_CATEGORIES` categories.
    """
    if sentence := _sentence_of_shares(rows, "row"):
        return sentence
    names = list(plot_style.shorten_names(list(order), 14).values())
    figure, axes = _bar_rows(title, list(rows), _BAR_HEIGHT, names)
    edge = {"edgecolor": plot_style.light_colour("paper"), "linewidth": 0.6}
    for index, (row, counts) in enumerate(rows.items()):
        total, left = sum(counts.values()) or 1, 0.0
        for category, colour in zip(order, _COLOURS, strict=False):
            percentage = 100 * counts.get(category, 0) / total
            if percentage:
                axes.barh(
                    index + 0.5, percentage, left=left, height=0.62, color=plot_style.light_colour(colour), **edge
                )
                share = plot_style.mark_lines(f"{row}, {category}", percentage, n=total, unit="%")
                plot_style.add_mark(axes, left + percentage / 2, index + 0.5, share)
            left += percentage
    axes.set_xlim(0, 100)
    axes.set_xlabel("share, %")
    plot_style.draw_legend(figure, _legend_patches(_COLOURS[: len(order)]), names)
    return figure


def _sentence_of_shares(rows: Mapping[str, Mapping[str, int]], thing: str) -> plot_style.Sentence | None:
    """Return a sentence if all rows have the same shares, or one row has a single category; else None."""
    totals = [(counts, sum(counts.values())) for counts in rows.values()]
    shares = [{name: n / total for name, n in counts.items() if n} for counts, total in totals if total]
    if not shares:
        return plot_style.Sentence("There are no figures yet.")
    if any(other != shares[0] for other in shares) or (len(shares) == 1 and len(shares[0]) > 1):
        return None
    parts = ", ".join(f"{100 * share:.0f}% {name}" for name, share in shares[0].items())
    if len(rows) == 1:
        return plot_style.Sentence(f"{next(iter(rows))}: {parts}.")
    return plot_style.Sentence(f"All {plot_style.counted(len(shares), thing)} have the same shares: {parts}.")


def _bar_rows(title: str, names: Sequence[str], height: float, legend: Sequence[str] | None = None) -> tuple[Any, Any]:
    """Make a panel with a row of this height for each name."""
    labels = [plot_style.shorten_names(names, 20)[name] for name in names]
    left = min(1.45, max(0.5, plot_style.text_inches(labels) + 0.1))
    return plot_style.make_rows(title, labels, max(_BAR_HEIGHT, height * len(names)) + 0.1, left=left, legend=legend)


def _write_value(axes: Any, value: float, end: float, y: float) -> None:
    axes.annotate(f" {value:.3g}", (end, y), va="center", fontsize=plot_style.TINY)


def _legend_patches(colours: Iterable[str]) -> list[Any]:
    return [plot_style.make_box((0, 0), 1, 1, colour) for colour in colours]


_MARK_HEIGHT, _MARK_SPACE = 0.115, 0.12  # inches of a mark, and between rows


@plot_style.as_svg
def dot_plot(title: str, rows: Sequence[str], things: Mapping[str, Mapping[str, Bar]], axis: str) -> Any:
    """Draw for each row one figure (0–100) of each thing with its interval; at most `plot_style.LINES` things."""
    every = [
        (f"{row}, {thing}", figures[row].value, figures[row].low, figures[row].high)
        for thing, figures in things.items() for row in rows if row in figures
    ]  # fmt: skip
    if sentence := plot_style.sentence_instead(every, f"all {plot_style.counted(len(every), 'figure')} ({axis})"):
        return sentence
    names, legend = plot_style.shorten_names(rows, 22), list(plot_style.shorten_names(list(things), 20).values())
    tall = max(0.22, _MARK_HEIGHT * len(things) + _MARK_SPACE)
    figure, axes = plot_style.make_rows(title, [names[row] for row in rows], tall * max(1, len(rows)), legend=legend)
    handles = []
    for number, (thing, figures) in enumerate(things.items()):
        colour = plot_style.light_colour(plot_style.SERIES[number])
        shift = (number - (len(things) - 1) / 2) * _MARK_HEIGHT / tall
        ys = [at + 0.5 + shift for at, row in enumerate(rows) if row in figures]
        bars = [figures[row] for row in rows if row in figures]
        own = [row for row in rows if row in figures]
        for y, row, bar in zip(ys, own, bars, strict=True):
            lines = plot_style.mark_lines(f"{thing}: {row}", bar.value, bar.low, bar.high, bar.n)
            plot_style.add_mark(axes, bar.value, y, lines)
            if bar.low is not None and bar.high is not None:
                axes.plot([bar.low, bar.high], [y, y], color=colour, linewidth=1.0)
        dots = {"linestyle": "none", "marker": plot_style.MARKERS[number], "color": colour, "markersize": 4}
        handles += axes.plot([bar.value for bar in bars], ys, **dots)
    for at in range(1, len(rows)):
        axes.axhline(at, color=plot_style.light_colour("grid"), linewidth=0.6)
    ends = [end for _, *figure in every for end in figure if end is not None]
    axes.set_xlim(*plot_style.axis_range(ends, (0.0, 100.0)))
    axes.grid(axis="x")
    axes.set_xlabel(plot_style.escape_label(axis))
    plot_style.draw_legend(figure, handles, legend)
    return figure


_CANDIDATE_HEIGHTS = 0.34, 0.2  # inches of a row with few and with many candidates
_MAX_TALL_ROWS = 12
MAX_REASONS_SHOWN = len(plot_style.SERIES)  # reasons with separate colours
OTHER_STOPS, ALL_ROUNDS = "other reasons", "none: all rounds completed"


@dataclass(slots=True, frozen=True)
class AspectMean:
    """Mean from 0 to 100, the reach of its interval below and above (None: no interval), and n."""

    value: float
    reach: tuple[float, float] | None = None
    n: int | None = None

    @property
    def ends(self) -> tuple[float | None, float | None]:
        """The ends of the interval."""
        return (None, None) if self.reach is None else (self.value - self.reach[0], self.value + self.reach[1])


@dataclass(slots=True, frozen=True)
class StopCounts:
    """Candidate's number of conversations, and how many stopped early for each reason."""

    name: str
    conversations: int
    reasons: Mapping[str, int]


@plot_style.as_svg
def aspect_plot(
    title: str,
    overall: Mapping[str, AspectMean],
    rows: Mapping[str, Mapping[str, AspectMean]],
    others: Iterable[AspectMean] = (),
) -> Any:
    """Draw by candidate the mean of each aspect and, with its interval, the overall score.

    Args:
        title: Title of the plot.
        overall: Overall score of each candidate.
        rows: Means by candidate and aspect, at most `plot_style.LINES - 1` aspects.
        others: Means of other panels, which the axis also covers.
    """
    dots_by_name = [("overall", overall), *((name, aspects) for name, aspects in rows.items())]
    figures = [(f"{name}, {key}", dot.value, *dot.ends) for name, dots in dots_by_name for key, dot in dots.items()]
    candidates = plot_style.counted(len(overall), "candidate")
    if sentence := plot_style.sentence_instead(figures, f"all mean scores of {candidates}, overall and by aspect,"):
        return sentence
    marks = list(dict.fromkeys(aspect for aspects in rows.values() for aspect in aspects))
    legend = ["overall, 95% interval", *marks]
    figure, axes, row = _candidate_rows(title, list(rows), legend)
    axes.set_xlabel("mean score, 0–100")
    covered = [*(figure for _, *figure in figures), *([dot.value, *dot.ends] for dot in others)]
    ends = [end for figure in covered for end in figure if end is not None]
    axes.set_xlim(*plot_style.axis_range(ends, (0.0, 100.0)))
    axes.grid(axis="both")
    handles = []
    positions = [(at + 0.5, name) for at, name in enumerate(rows)]
    for index, aspect in enumerate(marks):
        # Offset the marks of a row, so that equal ones are visible.
        shift = (index - (len(marks) - 1) / 2) * 0.13
        points = [(y + shift, rows[name][aspect].value) for y, name in positions if aspect in rows[name]]
        for y, name in positions:
            if (dot := rows[name].get(aspect)) is not None:
                lines = plot_style.mark_lines(f"{name}, {aspect}", dot.value, *dot.ends, dot.n)
                plot_style.add_mark(axes, dot.value, y + shift, lines)
        handles += axes.plot(
            [value for _, value in points],
            [y for y, _ in points],
            linestyle="none",
            marker=plot_style.MARKERS[index],
            color=plot_style.light_colour(plot_style.SERIES[index]),
            markersize=4 if row > 0.25 else 3.2,
        )
    overall_points = [(y, overall[name]) for y, name in positions if name in overall]
    for y, name in positions:
        if (dot := overall.get(name)) is not None:
            lines = plot_style.mark_lines(f"{name}, overall", dot.value, *dot.ends, dot.n)
            plot_style.add_mark(axes, dot.value, y, lines)
    bars = axes.errorbar(
        [dot.value for _, dot in overall_points],
        [y for y, _ in overall_points],
        xerr=[[(dot.reach or (0.0, 0.0))[side] for _, dot in overall_points] for side in (0, 1)],
        fmt="|",
        color=plot_style.light_colour("ink"),
        markersize=9 if row > 0.25 else 7,
        markeredgewidth=1.6,
        elinewidth=0.9,
    )
    plot_style.draw_legend(figure, [bars, *handles], legend)
    return figure


def shown_reasons(rows: Iterable[StopCounts]) -> tuple[list[str], list[str]]:
    """Return the reasons that get separate colours, most frequent first, and the reasons that are drawn together.

    Pass the rows of all panels, so that a reason has the same colour in each.
    """
    total = Tally()
    for row in rows:
        for reason, count in row.reasons.items():
            total.add(reason, count)
    counts = total.to_dict()
    ranked = sorted(counts, key=lambda reason: -counts[reason])
    own = ranked if len(ranked) <= MAX_REASONS_SHOWN else ranked[: MAX_REASONS_SHOWN - 1]
    return own, ranked[len(own) :]


@plot_style.as_svg
def stop_plot(title: str, rows: Sequence[StopCounts], reasons: tuple[list[str], list[str]]) -> Any:
    """Draw by candidate the fraction of conversations that ended in full or stopped early, by reason.

    `reasons` come from `shown_reasons`. Candidates without a conversation have an empty row.
    """
    own, other_reasons = reasons
    shares = {
        row.name: {**row.reasons, ALL_ROUNDS: row.conversations - sum(row.reasons.values())}
        for row in rows if row.conversations
    }  # fmt: skip
    if shares and not any(sum(row.reasons.values()) for row in rows):
        return plot_style.Sentence("No interview stopped early.")
    if sentence := _sentence_of_shares(shares, "candidate"):
        return sentence
    names = [*(plot_style.shorten_names(own, 30).values()), *([OTHER_STOPS] if other_reasons else [])]
    figure, axes, _ = _candidate_rows(title, [row.name for row in rows], [*names, ALL_ROUNDS])
    axes.set_xlabel("interviews, %")
    axes.set_xlim(0, 100)
    for at, row in enumerate(rows):
        counts = [row.reasons.get(reason, 0) for reason in own]
        counts += [sum(row.reasons.get(reason, 0) for reason in other_reasons)] if other_reasons else []
        _draw_stops(axes, at, row, counts, [*names, ALL_ROUNDS])
    colours = [*plot_style.SERIES[: len(names)], "rest"]
    plot_style.draw_legend(figure, _legend_patches(colours), [*names, ALL_ROUNDS])
    return figure


def _draw_stops(axes: Any, at: int, row: StopCounts, counts: Sequence[int], names: Sequence[str]) -> None:
    """Draw one candidate's bar: reasons from the left, on a common base, then full conversations."""
    conversations = row.conversations
    if not conversations:
        return
    begin = 0.0
    edge = {"edgecolor": plot_style.light_colour("paper"), "linewidth": 0.6}
    for index, count in enumerate([*counts, conversations - sum(counts)]):
        wide, full = 100 * count / conversations, index == len(counts)
        if wide:
            colour = "rest" if full else plot_style.SERIES[index]
            axes.add_patch(plot_style.make_box((begin, at + 0.14), wide, 0.72, colour, **edge))
            share = plot_style.mark_lines(f"{row.name}, {names[index]}", wide, n=conversations, unit="%")
            plot_style.add_mark(axes, begin + wide / 2, at + 0.5, share)
        if wide >= 9:
            ground = plot_style.light_colour("ink" if full else "paper")
            middle = {"ha": "center", "va": "center", "fontsize": plot_style.TINY, "color": ground}
            axes.text(begin + wide / 2, at + 0.52, f"{wide:.0f}", **middle)
        begin += wide


def _candidate_rows(title: str, candidates: list[str], legend: Sequence[str]) -> tuple[Any, Any, float]:
    """Make a figure with a row for each candidate; also return the inches of a row."""
    row = _CANDIDATE_HEIGHTS[len(candidates) > _MAX_TALL_ROWS]
    names = list(plot_style.shorten_names(candidates).values())
    return *plot_style.make_rows(title, names, row * len(candidates), legend=legend), row


_FOREST_HEIGHT = 0.22  # inches


@dataclass(slots=True, frozen=True)
class NamedBar:
    """Named figure with the ends of its interval (None: no interval). `flagged`: in the colour of findings."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    flagged: bool = False
    n: int | None = None


def save_forest_plot(
    file: Path, title: str, rows: Sequence[NamedBar], axis: str, bounds: tuple[float, float] | None = None
) -> None:
    """Draw a forest plot to a file, SVG or PNG by its ending."""
    with plot_style.plot_style():
        plot_style.save_plot(_draw_forest(title, rows, axis, bounds), file)


def _forest_or_sentence(
    title: str, rows: Sequence[NamedBar], axis: str, bounds: tuple[float, float] | None = None
) -> Any:
    """Draw a forest plot; a sentence for fewer than two rows or equal ones, none of which is flagged."""
    figures = [(row.name, row.value, row.low, row.high) for row in rows]
    equal = len({row.value for row in rows}) < 2  # the plot also compares each row with 0, so intervals do not matter
    if equal and not any(row.flagged for row in rows):
        return plot_style.sentence_instead(figures, f"all {plot_style.counted(len(rows), 'row')} ({axis})")
    return _draw_forest(title, rows, axis, bounds)


def _draw_forest(title: str, rows: Sequence[NamedBar], axis: str, bounds: tuple[float, float] | None = None) -> Any:
    names = list(plot_style.shorten_names([row.name for row in rows], 30).values())
    if len(names) < len(rows):  # equal names are separate rows
        names = [plot_style.shorten_names([row.name], 30)[row.name] for row in rows]
    figure, axes = plot_style.make_rows(title, names, _FOREST_HEIGHT * max(1, len(rows)) + 0.1)
    axes.set_xlabel(plot_style.escape_label(axis))
    if bounds is not None:
        axes.set_xlim(*bounds)
    axes.grid(axis="x")
    axes.axvline(0.0, color=plot_style.light_colour("line"), linewidth=0.9, linestyle=plot_style.DASHES[1])
    for at, row in enumerate(rows):
        colour = plot_style.light_colour("flag" if row.flagged else "point")
        if row.low is not None and row.high is not None:
            axes.plot([row.low, row.high], [at + 0.5] * 2, color=colour, linewidth=1.6, solid_capstyle="butt")
        axes.plot([row.value], [at + 0.5], marker=plot_style.MARKERS[1], color=colour, linestyle="none")
        lines = plot_style.mark_lines(row.name, row.value, row.low, row.high, row.n, digits=3)
        plot_style.add_mark(axes, row.value, at + 0.5, lines)
    return figure


forest_plot = plot_style.as_svg(_forest_or_sentence)

MAX_HEAT_COLUMNS = 6  # legible on a phone
_HEAT_HEIGHT = 0.27  # inches
_MAX_TINT = 0.55  # opacity: text on it must stay legible


@plot_style.as_svg
def heat_map(
    title: str, rows: Sequence[str], columns: Sequence[str], cells: Mapping[tuple[str, str], float], maximum: float
) -> Any:
    """Draw cells by row and column; `maximum` gets the strongest colour. A missing cell stays empty.

    `columns`: at most `MAX_HEAT_COLUMNS` of them.
    """
    figures = [(f"{row}, {column}", value, None, None) for (row, column), value in cells.items()]
    if sentence := plot_style.sentence_instead(figures, f"all {plot_style.counted(len(figures), 'cell')}"):
        return sentence
    names, heads = plot_style.shorten_names(rows, 22), plot_style.shorten_names(columns, 9)
    left, height = 0.1 + plot_style.text_inches(names.values()), _HEAT_HEIGHT * max(1, len(rows))
    labels = [names[row] for row in rows]
    figure, axes = plot_style.make_rows(title, labels, height, left=left, bottom=0.12, top=0.55)
    for at, row in enumerate(rows):
        for index, column in enumerate(columns):
            if (value := cells.get((row, column))) is None:
                continue
            tint = {"alpha": _MAX_TINT * (min(1.0, max(0.0, value / maximum)) if maximum > 0 else 0.0), "linewidth": 0}
            axes.add_patch(plot_style.make_box((index + 0.03, at + 0.05), 0.94, 0.9, "flag", **tint))
            axes.text(index + 0.5, at + 0.53, f"{value:.0f}", ha="center", va="center", fontsize=plot_style.SMALL)
            plot_style.add_mark(axes, index + 0.5, at + 0.5, plot_style.mark_lines(f"{row}, {column}", value))
    axes.set_xlim(0, max(1, len(columns)))
    axes.set_xticks(
        [at + 0.5 for at in range(len(columns))], [plot_style.escape_label(heads[name]) for name in columns]
    )
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return figure


_STEP_HEIGHT = 0.27  # inches


@plot_style.as_svg
def waterfall_plot(
    title: str, before: tuple[str, float], steps: Sequence[NamedBar], after: tuple[str, float], axis: str
) -> Any:
    """Draw bars from the figure `before` over the steps to the figure `after`, both given as (name, value)."""
    if not any(step.value or step.low or step.high for step in steps) and before[1] == after[1]:
        return plot_style.Sentence(f"no change; {before[0]} and {after[0]} are at {before[1]:.1f}.")
    names = [before[0], *(step.name for step in steps), after[0]]
    figure, axes = plot_style.make_rows(title, names, _STEP_HEIGHT * len(names) + 0.1)
    ink, faint = plot_style.light_colour("ink"), plot_style.light_colour("faint")
    label_style = {"va": "center", "fontsize": plot_style.TINY, "xytext": (5, 0), "textcoords": "offset points"}
    reached, ends = before[1], [before[1], after[1]]
    for index, (_, value) in ((0, before), (len(names) - 1, after)):
        axes.plot([value], [index + 0.5], marker=plot_style.MARKERS[0], color=ink, linestyle="none")
        axes.annotate(f" {value:.1f}", (value, index + 0.5), **label_style)
        plot_style.add_mark(axes, value, index + 0.5, plot_style.mark_lines(names[index], value))
    for index, step in enumerate(steps, 1):
        colour = plot_style.light_colour("blue" if step.value >= 0 else "orange")
        axes.barh(index + 0.5, step.value, left=reached, height=0.6, color=colour)
        axes.plot([reached, reached], [index - 0.5, index + 0.5], color=faint, linewidth=0.7)
        right = max(reached, reached + step.value)
        if step.low is not None and step.high is not None:
            span = [reached + step.low, reached + step.high]
            axes.plot(span, [index + 0.5] * 2, color=ink, linewidth=0.9)
            ends += span
            right = max(right, span[1])
        axes.annotate(f"{step.value:+.1f}", (right, index + 0.5), **label_style)
        lines = plot_style.mark_lines(step.name, step.value, step.low, step.high, step.n)
        plot_style.add_mark(axes, reached + step.value / 2, index + 0.5, lines)
        reached += step.value
        ends.append(reached)
    axes.plot([reached, reached], [len(names) - 1.5, len(names) - 0.5], color=faint, linewidth=0.7)
    width = max(max(ends) - min(ends), 1.0)
    axes.set_xlim(min(ends) - 0.08 * width, max(ends) + 0.24 * width)  # room for numbers
    axes.set_xlabel(plot_style.escape_label(axis))
    axes.grid(axis="x")
    return figure
