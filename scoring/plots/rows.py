"""A row for each candidate: the aspects of its score, and why conversations stopped. Thirty rows are readable.

What never belongs here: averaging and counting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from ..stream import Tally
from . import style

_ROW = 0.34, 0.2  # inches of a row, of few candidates and of many
_FEW = 12
REASONS = len(style.SERIES)  # so many reasons have a colour of their own
OTHERS, HELD = "other reasons", "none: all rounds held"


@dataclass(slots=True, frozen=True)
class Dot:
    """A mean from 0 to 100, and how far its interval reaches below and above it (None where it has none)."""

    value: float
    reach: tuple[float, float] | None = None


@dataclass(slots=True, frozen=True)
class Stops:
    """One candidate's conversations: how many, and of them how many stopped early for which reason."""

    name: str
    talks: int
    reasons: Mapping[str, int]


def aspects(title: str, overall: Mapping[str, Dot], rows: Mapping[str, Mapping[str, Dot]]) -> str:
    """By candidate the mean of each aspect and, with its interval, the overall score, as SVG.

    ``rows``: candidate to aspect to mean, at most ``style.LINES - 1`` aspects; ``overall`` has the same candidates.

    :raises ConfigurationError: matplotlib is missing.
    """
    marks = list(dict.fromkeys(aspect for one in rows.values() for aspect in one))
    legend = ["overall, 95% interval", *marks]
    with style.drawing():
        figure, axes, row = _rows(title, list(rows), legend)
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
                marker=style.MARKERS[index],
                color=style.colour(style.SERIES[index]),
                markersize=4 if row > 0.25 else 3.2,
            )
            handles.append(drawn)
        known_overall = [(place, overall[name]) for place, name in places if name in overall]
        bars = axes.errorbar(
            [dot.value for _, dot in known_overall],
            [place for place, _ in known_overall],
            xerr=[[(dot.reach or (0.0, 0.0))[side] for _, dot in known_overall] for side in (0, 1)],
            fmt="|",
            color=style.colour("ink"),
            markersize=9 if row > 0.25 else 7,
            markeredgewidth=1.6,
            elinewidth=0.9,
        )
        style.legend(figure, [bars, *handles], legend)
        return style.write_svg(figure)


def shown_reasons(rows: Iterable[Stops]) -> tuple[list[str], list[str]]:
    """The reasons that have a colour of their own, most frequent first, and those that are drawn together.

    Give the rows of all panels, so that a reason has the same colour in each.
    """
    total = Tally()
    for row in rows:
        for reason, count in row.reasons.items():
            total.add(reason, count)
    counts = total.to_dict()
    ranked = sorted(counts, key=lambda reason: -counts[reason])
    own = ranked if len(ranked) <= REASONS else ranked[: REASONS - 1]
    return own, ranked[len(own) :]


def stops(title: str, rows: Sequence[Stops], reasons: tuple[list[str], list[str]]) -> str:
    """By candidate the shares of conversations (percent) that held all rounds or stopped early, and why, as SVG.

    ``reasons`` are those of ``shown_reasons``. Candidates without a conversation have an empty row.

    :raises ConfigurationError: matplotlib is missing.
    """
    own, rest = reasons
    names = [*(style.short(own, 30).values()), *([OTHERS] if rest else [])]
    with style.drawing():
        figure, axes, _ = _rows(title, [row.name for row in rows], [*names, HELD])
        axes.set_xlabel("share of talks, %")
        axes.set_xlim(0, 100)
        rectangle = import_module("matplotlib.patches").Rectangle
        colours = [*style.SERIES[: len(names)], "rest"]
        handles = [rectangle((0, 0), 1, 1, facecolor=style.colour(name)) for name in colours]
        for at, row in enumerate(rows):
            counts = [row.reasons.get(reason, 0) for reason in own]
            counts += [sum(row.reasons.get(reason, 0) for reason in rest)] if rest else []
            _bar(axes, rectangle, at, row.talks, counts)
        style.legend(figure, handles, [*names, HELD])
        return style.write_svg(figure)


def _bar(axes: Any, rectangle: Any, at: int, talks: int, counts: Sequence[int]) -> None:
    """One candidate's bar: reasons from the left, with a base in common, then conversations held in full."""
    if not talks:
        return
    begin = 0.0
    for index, count in enumerate([*counts, talks - sum(counts)]):
        wide = 100 * count / talks
        if wide:
            name = "rest" if index == len(counts) else style.SERIES[index]
            box = rectangle((begin, at + 0.14), wide, 0.72, facecolor=style.colour(name))
            box.set(edgecolor=style.colour("paper"), linewidth=0.6)
            axes.add_patch(box)
        if wide >= 9:
            ground = "ink" if index == len(counts) else "paper"
            axes.text(
                begin + wide / 2,
                at + 0.52,
                f"{wide:.0f}",
                ha="center",
                va="center",
                fontsize=style.TINY,
                color=style.colour(ground),
            )
        begin += wide


def _rows(title: str, candidates: list[str], legend: Sequence[str]) -> tuple[Any, Any, float]:
    """A figure with a row for each candidate, its axes, and the inches of a row."""
    row = _ROW[len(candidates) > _FEW]
    names = list(style.short(candidates).values())
    left = 0.15 + style.inches(names)
    figure, axes = style.panel(row * len(candidates), left=left, bottom=style.BOTTOM + style.legend_height(legend))
    style.title(axes, title)
    axes.set_ylim(len(candidates), 0)
    axes.set_yticks([at + 0.5 for at in range(len(candidates))], [style.literal(name) for name in names])
    axes.tick_params(axis="y", length=0)
    return figure, axes, row
