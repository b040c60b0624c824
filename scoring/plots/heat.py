"""A heat map: a named row and column for each cell, its number written in it.

What never belongs here: computing figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module

from . import style

COLUMNS = 6  # so many are legible on a phone
_ROW = 0.27  # inches
_STRONGEST = 0.55  # of the colour: text on it has to be read


def heat_map(
    title: str, rows: Sequence[str], columns: Sequence[str], cells: Mapping[tuple[str, str], float], most: float
) -> str:
    """Cells by row and column as SVG; ``most`` is what the strongest colour stands for. A missing cell stays empty.

    ``columns``: at most ``COLUMNS`` of them.

    :raises ConfigurationError: matplotlib is missing.
    """
    names, heads = style.short(rows, 22), style.short(columns, 9)
    with style.drawing():
        left = 0.1 + style.inches(names.values())
        figure, axes = style.panel(_ROW * max(1, len(rows)), left=left, bottom=0.12, top=0.55)
        style.title(axes, title)
        rectangle = import_module("matplotlib.patches").Rectangle
        for at, row in enumerate(rows):
            for place, column in enumerate(columns):
                if (value := cells.get((row, column))) is None:
                    continue
                strength = min(1.0, max(0.0, value / most)) if most > 0 else 0.0
                axes.add_patch(rectangle((place + 0.03, at + 0.05), 0.94, 0.9, facecolor=style.colour("flag"),
                                         alpha=_STRONGEST * strength, linewidth=0))  # fmt: skip
                axes.text(place + 0.5, at + 0.53, f"{value:.0f}", ha="center", va="center", fontsize=style.SMALL)
        axes.set_xlim(0, max(1, len(columns)))
        axes.set_ylim(max(1, len(rows)), 0)
        axes.set_yticks([at + 0.5 for at in range(len(rows))], [style.literal(names[row]) for row in rows])
        axes.set_xticks([at + 0.5 for at in range(len(columns))], [style.literal(heads[one]) for one in columns])
        axes.tick_params(length=0, labeltop=True, labelbottom=False)
        for spine in axes.spines.values():
            spine.set_visible(False)
        return style.write_svg(figure)
