"""Style of all plots: colours for light and dark, marks, sizes, names that fit, and output as SVG and PNG.

Drawn by matplotlib (extra `plots`): without it all drawings raise `ConfigurationError`. The same figures give the same
bytes under one version of matplotlib. Colours are safe for colour-blind readers; dashes and markers distinguish lines,
too.
"""

from __future__ import annotations

import io
import unicodedata
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any, ParamSpec

from viva.engine.errors import ConfigurationError

P = ParamSpec("P")
ENDINGS = (".svg", ".png")
WIDTH = 3.7  # inches of a panel: as wide as a phone, with text of about the phone's size
BOTTOM = 0.44  # inches below a panel's axes, without a legend
LINES = 6  # lines in one panel; more candidates are shown in rows

# By name: (colour on white, colour on black). Text and lines have a contrast of at least 4.5; `grid` and `rest` are
# backgrounds. All colours on white must differ, because a page finds them in the SVG and substitutes its own.
COLOURS: dict[str, tuple[str, str]] = {
    "paper": ("#ffffff", "#14171a"),
    "ink": ("#1f2429", "#e6e8ea"),
    "faint": ("#565e66", "#a3abb3"),
    "grid": ("#d9dde1", "#3a4148"),
    "rest": ("#c3c9cf", "#515a63"),
    "point": ("#33658a", "#86b8dd"),
    "flag": ("#c0452c", "#ff8d73"),
    "line": ("#555555", "#b0b0b0"),
    "blue": ("#0072b2", "#5cb8ec"),
    "orange": ("#b85000", "#ff9f5c"),
    "green": ("#007a5a", "#35cfa2"),
    "purple": ("#9c4484", "#e59fcd"),
    "ochre": ("#856a00", "#e0c243"),
    "grey": ("#4a4a4a", "#cfcfcf"),
}
SERIES = ("blue", "orange", "green", "purple", "ochre", "grey")
MARKERS = ("o", "s", "^", "D", "v", "P")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)), (0, (3, 1)), (0, (8, 2)))
TINY, SMALL, NORMAL, LARGE = 8, 8.5, 9, 10  # points; a phone shows a point as 1.2 pixels


def load_matplotlib() -> Any:
    """Import matplotlib."""
    try:
        return import_module("matplotlib")
    except ImportError:
        message = "drawing needs matplotlib; install it with: pip install 'viva-exam[plots]'"
        raise ConfigurationError(message) from None


def light_colour(name: str) -> str:
    """Return the colour `name` as drawn on a white background."""
    return COLOURS[name][0]


@contextmanager
def plot_style() -> Iterator[None]:
    """Draw in viva's style while entered. Text stays text in SVG; ids are reproducible."""
    settings = {
        "svg.fonttype": "none",
        "svg.hashsalt": "viva",
        "font.size": SMALL,
        "axes.titlesize": LARGE,
        "axes.labelsize": NORMAL,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": light_colour("faint"),
        "axes.labelcolor": light_colour("ink"),
        "axes.titlecolor": light_colour("ink"),
        "text.color": light_colour("ink"),
        "xtick.color": light_colour("faint"),
        "ytick.color": light_colour("faint"),
        "xtick.labelcolor": light_colour("ink"),
        "ytick.labelcolor": light_colour("ink"),
        "grid.color": light_colour("grid"),
        "grid.linewidth": 0.6,
        "axes.axisbelow": True,
        "legend.frameon": False,
        "legend.fontsize": SMALL,
        "lines.linewidth": 1.4,
        "lines.markersize": 4.5,
    }
    with load_matplotlib().rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # the reader's fonts may have the missing glyphs
        yield


def as_svg(draw: Callable[P, Any]) -> Callable[P, str]:
    """Make a function that draws a figure return it as SVG, in viva's style."""

    @wraps(draw)
    def wrapper(*arguments: P.args, **keywords: P.kwargs) -> str:
        with plot_style():
            return write_svg(draw(*arguments, **keywords))

    return wrapper


def make_panel(height: float, *, left: float = 0.55, bottom: float = BOTTOM, top: float = 0.3) -> tuple[Any, Any]:
    """Make a figure of one panel with axes of `height`, plus margins, in inches."""
    total_height = height + bottom + top
    figure = import_module("matplotlib.figure").Figure((WIDTH, total_height))
    width = WIDTH - left - 0.12
    return figure, figure.add_axes((left / WIDTH, bottom / total_height, width / WIDTH, height / total_height))


def make_rows(
    title: str,
    names: Sequence[str],
    height: float,
    *,
    left: float | None = None,
    legend: Sequence[str] | None = None,
    bottom: float = BOTTOM,
    top: float = 0.3,
) -> tuple[Any, Any]:
    """Make a panel with a row for each name, the first on top: row k lies between k and k + 1."""
    left = 0.15 + text_inches(names) if left is None else left
    figure, axes = make_panel(
        height, left=left, bottom=bottom + (0.0 if legend is None else legend_height(legend)), top=top
    )
    set_title(axes, title)
    axes.set_ylim(max(1, len(names)), 0)
    axes.set_yticks([at + 0.5 for at in range(len(names))], [escape_label(name) for name in names])
    axes.tick_params(axis="y", length=0)
    return figure, axes


def make_box(corner: tuple[float, float], width: float, height: float, colour: str, **more: Any) -> Any:
    """Make a rectangle from its lower left corner, filled with the colour called `colour`."""
    rectangle = import_module("matplotlib.patches").Rectangle
    return rectangle(corner, width, height, facecolor=light_colour(colour), **more)


def set_title(axes: Any, text: str) -> None:
    """Set a title over the left end of the whole figure."""
    axes.figure.text(0.06 / WIDTH, 1 - 0.06 / axes.figure.get_figheight(), escape_label(text), va="top", fontsize=LARGE)


def write_svg(figure: Any) -> str:
    """Return the figure as SVG with a transparent background."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    return buffer.getvalue().decode()


def save_plot(figure: Any, file: Path) -> None:
    """Write the figure to a file, SVG or PNG by its ending."""
    from viva.engine.files import write_atomically

    buffer = io.BytesIO()
    metadata = {"Date": None} if file.suffix == ".svg" else {}
    figure.savefig(buffer, format=file.suffix[1:], dpi=150, metadata=metadata)
    write_atomically(file, buffer.getvalue())


# -- lines ----------------------------------------------------------------------------------------------------------


def group_equal(lines: Sequence[Hashable]) -> list[list[int]]:
    """Return the positions of lines in groups of equal ones, which are drawn on top of each other."""
    groups: dict[Hashable, list[int]] = {}
    for index, line in enumerate(lines):
        groups.setdefault(line, []).append(index)
    return list(groups.values())


def group_name(names: Sequence[str]) -> str:
    """Return the legend's name of one line that is drawn for several names."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


# -- names ----------------------------------------------------------------------------------------------------------


def escape_label(text: str) -> str:
    """Escape a name: matplotlib reads formulas between dollar signs, and SVG may not contain control characters."""
    visible = "".join(f"\\x{ord(c):02x}" if unicodedata.category(c) in ("Cc", "Cs") else c for c in text)
    return visible.replace("$", r"\$")


def shorten_names(names: Iterable[str], room: int = 24) -> dict[str, str]:
    """Cut each name in its middle to `room` columns, no two to the same text."""
    short: dict[str, str] = {}
    for name in names:
        cut, number = _cut_middle(name, room), 1
        while cut in short.values():
            number += 1
            cut = _cut_middle(name, room - 4) + f" ({number})"
        short[name] = cut
    return short


def text_width(text: str) -> int:
    """Return the columns that a text takes; wide letters take two."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def text_inches(texts: Iterable[str], size: float = SMALL) -> float:
    """Estimate the width of the widest text, for a font of `size` points."""
    return max((text_width(text) for text in texts), default=0) * 0.58 * size / 72


def draw_legend(figure: Any, handles: Sequence[Any], names: Sequence[str]) -> None:
    """Draw a legend at the figure's lower end, `legend_height` inches high, in as many columns as names allow."""
    figure.legend(
        handles,
        [escape_label(name) for name in names],
        loc="lower left",
        bbox_to_anchor=(0.0, 0.0),
        ncols=_legend_columns(names),
        handlelength=2.2,
        columnspacing=1.2,
        borderaxespad=0.2,
        labelspacing=0.3,
    )


def legend_height(names: Sequence[str]) -> float:
    """Return the inches that a legend of these names needs."""
    rows = -(-len(names) // _legend_columns(names))
    return 0.08 + 0.165 * rows


def _legend_columns(names: Sequence[str]) -> int:
    column_width = text_inches(names) + 0.45
    return max(1, min(3, len(names), int(WIDTH / column_width)))


def _cut_middle(name: str, room: int) -> str:
    if text_width(name) <= room:
        return name
    head, tail = "", ""
    for letter in name:
        if text_width(head + letter) > room * 3 // 5:
            break
        head += letter
    for letter in reversed(name):
        if text_width(letter + tail) > room - 1 - room * 3 // 5:
            break
        tail = letter + tail
    return f"{head}…{tail}"
