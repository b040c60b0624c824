"""What happens over the rounds of a conversation: how many conversations hold each round, and the score of each.

Up to ``style.LINES`` candidates are lines in one panel. More are rows of numbers on tinted cells, which thirty lines
could not be read as.
What never belongs here: counting and averaging.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from . import style

_ROW = 0.19  # inches of a candidate's row
_STRONGEST = 0.5  # opacity of a full cell: text on it keeps its contrast on light and dark ground


@dataclass(slots=True, frozen=True)
class Step:
    """One round: its number from 1, the value, and how far its interval (None: has none) reaches below and above."""

    round: int
    value: float
    reach: tuple[float, float] | None = None


@dataclass(slots=True, frozen=True)
class Curve:
    """One candidate's values by round; one without any keeps its place."""

    name: str
    steps: Sequence[Step]


def survival(title: str, curves: Sequence[Curve]) -> str:
    """The share of conversations (percent) that held each round, as SVG.

    :raises ConfigurationError: matplotlib is missing.
    """
    return _draw(title, curves, "talks that held the round, %", stepped=True)


def scores(title: str, curves: Sequence[Curve]) -> str:
    """The mean score (0–100) of each round with its interval, as SVG.

    :raises ConfigurationError: matplotlib is missing.
    """
    return _draw(title, curves, "score of the round, 0–100", stepped=False)


def overlapping(curves: Sequence[Curve]) -> list[list[str]]:
    """The names of candidates that share one line, for their figures are the same in every round."""
    if len(curves) > style.LINES:
        return []
    return [[curves[at].name for at in group] for group in _groups(curves) if len(group) > 1]


def _groups(curves: Sequence[Curve]) -> list[list[int]]:
    """The places of curves that share a line; those without any figure keep a place each."""
    return style.alike([tuple(curve.steps) or place for place, curve in enumerate(curves)])


def _draw(title: str, curves: Sequence[Curve], label: str, stepped: bool) -> str:
    rounds = sorted({step.round for curve in curves for step in curve.steps})
    with style.drawing():
        if len(curves) <= style.LINES:
            return style.write_svg(_lines(title, curves, rounds, label, stepped))
        return style.write_svg(_cells(title, curves, rounds, label))


def _lines(title: str, curves: Sequence[Curve], rounds: list[int], label: str, stepped: bool) -> Any:
    shorts = list(style.short(curve.name for curve in curves).values())
    groups = _groups(curves)
    names = [style.group_name([shorts[at] for at in group]) for group in groups]
    figure, axes = style.panel(1.9, bottom=style.BOTTOM + style.legend_height(names))
    style.title(axes, title)
    axes.set_xlabel("round")
    axes.set_ylabel(label)
    axes.set_xticks(rounds)
    axes.set_ylim(-3, 104)
    axes.grid(axis="y")
    handles = []
    for place, (index, *_) in enumerate(groups):
        curve = curves[index]
        # Bars of one round stand side by side, so that none hides another.
        shift = 0.0 if stepped else 0.07 * (place - (len(groups) - 1) / 2)
        xs = [step.round + shift for step in curve.steps]
        ys = [step.value for step in curve.steps]
        colour = style.colour(style.SERIES[index])
        (drawn,) = axes.plot(xs, ys, color=colour, linestyle=style.DASHES[index], marker=style.MARKERS[index])
        handles.append(drawn)
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
    style.legend(figure, handles, names)
    return figure


def _cells(title: str, curves: Sequence[Curve], rounds: list[int], label: str) -> Any:
    rectangle = import_module("matplotlib.patches").Rectangle
    names = list(style.short(curve.name for curve in curves).values())
    left = 0.15 + style.inches(names)
    figure, axes = style.panel(_ROW * len(curves), left=left)
    style.title(axes, title)
    axes.set_xlim(0, len(rounds))
    axes.set_ylim(len(curves), 0)
    axes.set_xticks([at + 0.5 for at in range(len(rounds))], [str(number) for number in rounds])
    axes.set_yticks([at + 0.5 for at in range(len(curves))], [style.literal(name) for name in names])
    axes.tick_params(length=0)
    axes.spines[["left", "bottom"]].set_visible(False)
    # Longer than the cells are wide, so it is centred on the whole figure.
    figure.text(0.5, 0.06 / figure.get_figheight(), f"round (cells: {label})", ha="center", fontsize=style.NORMAL)
    for row, curve in enumerate(curves):
        for step in curve.steps:
            at = rounds.index(step.round)
            opacity = round(_STRONGEST * min(max(step.value, 0.0), 100.0) / 100, 3)
            box = rectangle(
                (at + 0.02, row + 0.04), 0.96, 0.92, facecolor=style.colour("blue"), alpha=opacity, linewidth=0
            )
            axes.add_patch(box)
            axes.text(at + 0.5, row + 0.52, f"{step.value:.0f}", ha="center", va="center", fontsize=style.TINY)
    return figure
