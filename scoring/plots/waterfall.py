"""A waterfall: from one figure to another, a step for each part of the change.

What never belongs here: computing figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import style

_ROW = 0.27  # inches


@dataclass(slots=True, frozen=True)
class Step:
    """A part of the change, and the ends of its interval where it has one."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None


def waterfall(title: str, before: tuple[str, float], steps: Sequence[Step], after: tuple[str, float], axis: str) -> str:
    """Bars from the figure ``before`` over the steps to the one ``after``, each a name and a value, as SVG.

    :raises ConfigurationError: matplotlib is missing.
    """
    names = [before[0], *(step.name for step in steps), after[0]]
    with style.drawing():
        figure, axes = style.panel(_ROW * len(names) + 0.1, left=0.15 + style.inches(names))
        style.title(axes, title)
        reached, ends = before[1], [before[1], after[1]]
        for place, (_, value) in ((0, before), (len(names) - 1, after)):
            axes.plot([value], [place + 0.5], marker=style.MARKERS[0], color=style.colour("ink"), linestyle="none")
            axes.annotate(f" {value:.1f}", (value, place + 0.5), va="center", fontsize=style.TINY, xytext=(5, 0),
                          textcoords="offset points")  # fmt: skip
        for place, step in enumerate(steps, 1):
            colour = style.colour("blue" if step.value >= 0 else "orange")
            axes.barh(place + 0.5, step.value, left=reached, height=0.6, color=colour)
            axes.plot([reached, reached], [place - 0.5, place + 0.5], color=style.colour("faint"), linewidth=0.7)
            right = max(reached, reached + step.value)
            if step.low is not None and step.high is not None:
                span = [reached + step.low, reached + step.high]
                axes.plot(span, [place + 0.5] * 2, color=style.colour("ink"), linewidth=0.9)
                ends += span
                right = max(right, span[1])
            axes.annotate(f"{step.value:+.1f}", (right, place + 0.5), va="center", fontsize=style.TINY, xytext=(5, 0),
                          textcoords="offset points")  # fmt: skip
            reached += step.value
            ends.append(reached)
        axes.plot([reached, reached], [len(names) - 1.5, len(names) - 0.5], color=style.colour("faint"), linewidth=0.7)
        width = max(max(ends) - min(ends), 1.0)
        axes.set_xlim(min(ends) - 0.08 * width, max(ends) + 0.24 * width)  # room for numbers
        axes.set_ylim(len(names), 0)
        axes.set_yticks([at + 0.5 for at in range(len(names))], [style.literal(name) for name in names])
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(style.literal(axis))
        axes.grid(axis="x")
        return style.write_svg(figure)
