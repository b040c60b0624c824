"""Style of all plots: colours for light and dark, marks, axes, names that fit, and output as SVG and PNG.

Drawn by matplotlib (extra `plots`): without it all drawings raise `ConfigurationError`. The same figures give the same
bytes under one version of matplotlib. Colours are safe for colour-blind readers; dashes and markers distinguish lines,
too. In SVG each mark shows its figure on hover and on keyboard focus, without a script (`add_mark`). A plot that would
show nothing is replaced by a sentence (`sentence_instead`).
"""

from __future__ import annotations

import io
import math
import re
import unicodedata
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any, ParamSpec
from xml.sax.saxutils import escape

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
_TITLE_LINE = 0.17  # inches of a further line of a title
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


class Sentence(str):
    """Sentence in the position of a plot that would show nothing."""

    __slots__ = ()


def as_svg(draw: Callable[P, Any]) -> Callable[P, str]:
    """Make a function that draws a figure return it as SVG, in viva's style.

    The function's first argument is the title. If it returns a `Sentence`, the title is put in front.
    """

    @wraps(draw)
    def wrapper(*arguments: P.args, **keywords: P.kwargs) -> str:
        with plot_style():
            figure = draw(*arguments, **keywords)
            svg = "" if isinstance(figure, Sentence) else write_svg(figure)
        return Sentence(f"{arguments[0]}: {figure}") if isinstance(figure, Sentence) else svg

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
    """Set a title over the left end of the whole figure, which grows by each further line."""
    figure = axes.figure
    lines = _wrap(text, int(72 * (WIDTH - 0.12) / (0.58 * LARGE)))
    before, height = figure.get_figheight(), figure.get_figheight() + _TITLE_LINE * (len(lines) - 1)
    figure.set_figheight(height)
    for each in figure.axes:
        x, y, width, tall = each.get_position().bounds
        each.set_position((x, y * before / height, width, tall * before / height))
    title = "\n".join(map(escape_label, lines))
    figure.text(0.06 / WIDTH, 1 - 0.06 / height, title, va="top", fontsize=LARGE, linespacing=1.15)


def _wrap(text: str, columns: int) -> list[str]:
    """Break a text between words, but not in `(n = …)`; a word that is wider than a line is cut in its middle."""
    lines: list[str] = []
    for word in re.findall(r"\(n = [^()]*\)|\S+", text):
        if lines and text_width(f"{lines[-1]} {word}") <= columns:
            lines[-1] += f" {word}"
        else:
            lines.append(_cut_middle(word, columns))
    return lines or [""]


def write_svg(figure: Any) -> str:
    """Return the figure as SVG with a transparent background."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    drawing, closing, _ = buffer.getvalue().decode().rpartition("</svg>")
    return f"{drawing}{_marks_svg(figure)}{closing}\n"


def save_plot(figure: Any, file: Path) -> None:
    """Write the figure to a file, SVG or PNG by its ending."""
    from viva.engine.files import write_atomically

    buffer = io.BytesIO()
    metadata = {"Date": None} if file.suffix == ".svg" else {}
    figure.savefig(buffer, format=file.suffix[1:], dpi=150, metadata=metadata)
    data = buffer.getvalue()
    if file.suffix == ".svg":
        drawing, closing, _ = data.decode().rpartition("</svg>")
        data = f"{drawing}{_marks_svg(figure)}{closing}\n".encode()
    write_atomically(file, data)


# -- marks ----------------------------------------------------------------------------------------------------------

_REACH = 8.0  # points around a mark in which the pointer shows its figure
_SAME_MARK = 3.0  # points; nearer marks share one note
_MAX_NOTES = 6  # figures in one note
_NOTE_SIZE, _NOTE_LINE, _NOTE_EDGE, _NOTE_COLUMNS = 8.0, 10.5, 5.0, 50
# Only for SVG files: pages bring these rules with their own colours.
_NOTE_STYLE = (
    ".hit{fill:none;pointer-events:all}.mark{outline:none}.mark:focus .hit{stroke:#1f2429;stroke-width:1.5}"
    ".note{visibility:hidden}.mark:hover .note,.mark:focus .note{visibility:visible}"
    ".note rect{fill:#fff;stroke:#565e66;stroke-width:.7}.note text{fill:#1f2429;font:8px sans-serif}"
    ".note .name{font-weight:600}@media print{.note{display:none}}"
)


def add_mark(axes: Any, x: float, y: float, lines: Sequence[str]) -> None:
    """Let the mark at (x, y) of these axes show these lines on hover and on focus; the first one is its name."""
    axes.figure.__dict__.setdefault("viva_marks", []).append((axes, x, y, tuple(lines)))


def mark_lines(
    name: str,
    value: float,
    low: float | None = None,
    high: float | None = None,
    n: int | None = None,
    *,
    unit: str = "",
    digits: int = 1,
) -> tuple[str, ...]:
    """Return the lines of a mark: its name, its value with the 95% interval, and n."""
    text = f"{value:.{digits}f}{unit}"
    if low is not None and high is not None:
        text += f" (95% interval {low:.{digits}f} to {high:.{digits}f})"
    return (name, text, *([] if n is None else [f"n = {n:,}"]))


def _marks_svg(figure: Any) -> str:
    """Return the layer of marks that follows the drawing, so that no line covers a note; empty without marks."""
    marks = getattr(figure, "viva_marks", ())
    if not marks:
        return ""
    width, height = figure.get_figwidth() * 72, figure.get_figheight() * 72
    scale = 72 / figure.dpi
    groups: list[tuple[float, float, list[tuple[str, ...]]]] = []
    for axes, x, y, lines in marks:
        across, up = (float(end) * scale for end in axes.transData.transform((x, y)))
        down = height - up
        near = (group for group in groups if math.hypot(group[0] - across, group[1] - down) < _SAME_MARK)
        if (group := next(near, None)) is not None:
            group[2].append(lines)
        else:
            groups.append((across, down, [lines]))
    parts = [_mark_svg(across, down, notes, width) for across, down, notes in groups]
    return f'<style type="text/css">{_NOTE_STYLE}</style>\n<g class="marks">\n{"".join(parts)}</g>\n'


def _mark_svg(x: float, y: float, notes: Sequence[tuple[str, ...]], width: float) -> str:
    more = len(notes) - _MAX_NOTES
    lines = [
        (_cut_middle(_visible(text), _NOTE_COLUMNS), at == 0)
        for note in notes[:_MAX_NOTES]
        for at, text in enumerate(note)
    ]
    if more > 0:
        lines.append((f"and {more} more", False))
    wide = text_inches((text for text, _ in lines), _NOTE_SIZE) * 72 + 2 * _NOTE_EDGE
    high = _NOTE_LINE * len(lines) + 2 * _NOTE_EDGE - 2
    left = max(1.0, min(x - wide / 2, width - wide - 1))
    top = y - _REACH - high if y - _REACH - high > 0 else y + _REACH
    kinds = {True: ' class="name"', False: ""}
    texts = "".join(
        f'<tspan x="{left + _NOTE_EDGE:.1f}" y="{top + _NOTE_EDGE - 2 + (at + 0.85) * _NOTE_LINE:.1f}"'
        f"{kinds[is_name]}>{escape(text)}</tspan>"
        for at, (text, is_name) in enumerate(lines)
    )
    title = "; ".join(": ".join((note[0], ", ".join(note[1:]))) if len(note) > 1 else note[0] for note in notes)
    return (
        f'<g class="mark" tabindex="0" role="img"><title>{escape(_visible(title))}</title>'
        f'<circle class="hit" cx="{x:.1f}" cy="{y:.1f}" r="{_REACH:g}"/>'
        f'<g class="note" aria-hidden="true"><rect x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" '
        f'height="{high:.1f}" rx="3"/><text>{texts}</text></g></g>\n'
    )


# -- axes and sentences ---------------------------------------------------------------------------------------------

_WHOLE_SHARE = 0.4  # figures that cover this share of a scale are drawn on the whole of it
_LEAST_SHARE = 0.1  # of a scale that an axis covers at least, so that tiny differences do not look large
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def axis_range(values: Iterable[float], whole: tuple[float, float] | None = None) -> tuple[float, float]:
    """Return the ends of an axis that contains all values, with room around them.

    Args:
        values: Values and the ends of their intervals.
        whole: Ends of the scale. The axis shows it all if the values cover a large part of it.
    """
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return whole or (0.0, 1.0)
    low, high = min(known), max(known)
    if whole is None:
        room = 0.08 * (high - low) or 0.08 * abs(high) or 1.0
        return low - room, high + room
    scale = whole[1] - whole[0]
    if high - low >= _WHOLE_SHARE * scale:
        return min(low, whole[0]) - 0.03 * scale, max(high, whole[1]) + 0.03 * scale
    wide = max(1.2 * (high - low), _LEAST_SHARE * scale)
    bottom, top = (low + high - wide) / 2, (low + high + wide) / 2
    # Shift the axis back onto the scale, then widen it again if values lie beyond the scale.
    edge = 0.02 * scale
    shift = max(0.0, whole[0] - edge - bottom) - max(0.0, top - whole[1] - edge)
    return min(bottom + shift, low), max(top + shift, high)


Figure = tuple[str, float, float | None, float | None]  # name, value, and the ends of its interval


def sentence_instead(figures: Sequence[Figure], subject: str, unit: str = "") -> Sentence | None:
    """Return a sentence if a plot of the figures would show nothing, else None.

    That is so if there are fewer than two figures, if all are equal, or if each lies inside the intervals of all.

    Args:
        figures: The figures to draw.
        subject: The figures as the subject of a sentence in the plural, such as `all six models`.
        unit: Unit that follows a value, such as `%`.
    """
    if not figures:
        return Sentence("There are no figures yet.")
    values = [value for _, value, _, _ in figures]
    ends = [(low, high) for _, _, low, high in figures if low is not None and high is not None]
    subject = subject[:1].upper() + subject[1:]
    if len(figures) == 1:
        name, value = figures[0][:2]
        about = f" (95% interval {ends[0][0]:.1f} to {ends[0][1]:.1f})" if ends else ""
        return Sentence(f"{name}: {value:.1f}{unit}{about}.")
    if max(values) - min(values) <= 1e-9 * max(1.0, abs(max(values))):
        about = ""
        if len(ends) == len(figures):
            low, high = min(low for low, _ in ends), max(high for _, high in ends)
            about = f"; their intervals reach from {low:.1f} to {high:.1f}" if high > low else ""
        return Sentence(f"{subject} are at {values[0]:.3g}{unit}{about}.")
    if len(ends) == len(figures) and max(low for low, _ in ends) <= min(values) <= max(values) <= min(
        high for _, high in ends
    ):
        spread = math.ceil(10 * (max(values) - min(values)) - 1e-9) / 10
        points = "point" if spread == 1 else "points"
        return Sentence(
            f"{subject} lie within {spread:g} {points} of each other, inside every 95% interval: too few items for "
            "this figure to tell them apart."
        )
    return None


def counted(number: int, name: str) -> str:
    """Return a number in words, if it is small, and a name in the plural: `six models`."""
    return f"{_NUMBERS[number] if 2 <= number < len(_NUMBERS) else f'{number:,}'} {name}{'s' * (number != 1)}"


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
    return _visible(text).replace("$", r"\$")


def _visible(text: str) -> str:
    return "".join(f"\\x{ord(c):02x}" if unicodedata.category(c) in ("Cc", "Cs") else c for c in text)


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


def measured_points(text: str, size: float) -> float:
    """Return the width of a text in points, as wide as a wide font draws it."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    width = text_to_path.get_text_width_height_descent(_visible(text), FontProperties(size=size), ismath=False)[0]
    return max(float(width), text_inches([text], size) * 72)


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
