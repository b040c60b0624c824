"""Drawings by matplotlib (extra ``plots``), as SVG or PNG; the same figures give the same file.

What never belongs here: computing what is drawn.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Collection, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from viva.engine.errors import ConfigurationError

if TYPE_CHECKING:
    from viva.scoring.correlation import Figures, Fit

ENDINGS = (".svg", ".png")
_ACROSS, _WIDE, _HIGH = 3, 4.2, 3.6  # panels in a row; inches of a panel
_POINT, _FLAG, _LINE = "#33658a", "#c8553d", "#555555"


def check_drawable(file: Path) -> None:
    """Say before the work whether there can be a drawing.

    :raises ConfigurationError: the ending is not known, the folder does not exist, or matplotlib is missing.
    """
    if file.suffix not in ENDINGS:
        raise ConfigurationError(f"--plot {file}: expected a name that ends in {' or '.join(ENDINGS)}")
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise ConfigurationError(f"--plot {file}: cannot be written there; name a file in a folder that exists")
    _library()


def draw_regressions(
    file: Path, figures: Iterable[Figures], lines: Mapping[str, Fit | None], without: Collection[str] = ()
) -> None:
    """Score against accuracy, a panel for each dataset, with its line (as in KIEval, Figure 4).

    The band is what a point without standard errors may lie off the line before it is flagged; flagged points are
    squares of another colour, models of ``without`` are hollow.

    :raises ConfigurationError: matplotlib is missing, or the file cannot be written.
    """
    from viva.engine.folder import write_atomically
    from viva.scoring.correlation import by_dataset

    matplotlib = _library()
    groups = by_dataset(figures)
    across = min(_ACROSS, len(groups))
    down = math.ceil(len(groups) / across)
    # Text stays text in SVG, and neither ids nor metadata change from one drawing to the next.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "viva", "font.size": 8, "axes.titlesize": 10}):
        figure = import_module("matplotlib.figure").Figure((_WIDE * across, _HIGH * down), layout="constrained")
        panels = list(figure.subplots(down, across, squeeze=False).flat)
        for panel, (name, group) in zip(panels, groups.items(), strict=False):
            _draw_panel(panel, name, group, lines[name], without)
        for panel in panels[len(groups) :]:
            panel.set_visible(False)
        drawn = io.BytesIO()
        metadata = {"Date": None} if file.suffix == ".svg" else {}
        with warnings.catch_warnings():
            if file.suffix == ".svg":  # the reader's fonts may have what matplotlib's own lack
                warnings.filterwarnings("ignore", "Glyph", UserWarning)
            figure.savefig(drawn, format=file.suffix[1:], dpi=150, metadata=metadata)
    try:
        write_atomically(file, drawn.getvalue())
    except OSError as error:
        raise ConfigurationError(f"--plot {file}: cannot be written: {error.strerror}") from None


def _draw_panel(panel: Any, name: str, group: list[Figures], fit: Fit | None, without: Collection[str]) -> None:
    panel.set_title(f"{_literal(name)} (n = {len(group)})")
    panel.set_xlabel("accuracy")
    panel.set_ylabel("score")
    panel.spines[["top", "right"]].set_visible(False)
    ends = [min(one.accuracy for one in group), max(one.accuracy for one in group)]
    flagged: set[str] = set()
    if fit is not None:
        line = fit.line
        flagged = {*line.below, *line.above}
        heights = [line.intercept + line.slope * x for x in ends]
        band = line.threshold * fit.spread
        panel.plot(ends, heights, color=_LINE, linewidth=1)
        panel.fill_between(ends, [y - band for y in heights], [y + band for y in heights], color=_LINE, alpha=0.12)
    for one in group:
        colour = _FLAG if one.model in flagged else _POINT
        panel.errorbar(
            one.accuracy,
            one.score,
            xerr=one.accuracy_se or None,
            yerr=one.score_se or None,
            fmt="s" if one.model in flagged else "o",
            color=colour,
            markerfacecolor="white" if one.model in without else colour,
            markersize=5,
            elinewidth=0.8,
        )
        _draw_name(panel, one, ends, above=fit is None or fit.line.residuals[one.model] >= 0, colour=colour)
    panel.margins(0.15)


def _draw_name(panel: Any, one: Figures, ends: list[float], *, above: bool, colour: str) -> None:
    """Write the model's name beside its point: away from a rising line, but never over the panel's edge."""
    share = (one.accuracy - ends[0]) / (ends[1] - ends[0]) if ends[1] > ends[0] else 0.5
    left = share > 0.25 if above else share > 0.85
    panel.annotate(
        _literal(one.model),
        (one.accuracy, one.score),
        (-4 if left else 4, 3 if above else -3),
        textcoords="offset points",
        horizontalalignment="right" if left else "left",
        verticalalignment="bottom" if above else "top",
        color=colour,
        fontsize=7,
    )


def _literal(text: str) -> str:
    """Names are shown as they are: matplotlib would read what stands between dollar signs as a formula."""
    return text.replace("$", r"\$")


def _library() -> Any:
    try:
        return import_module("matplotlib")
    except ImportError:
        message = "--plot: drawing needs matplotlib; install it with: pip install 'viva-exam[plots]'"
        raise ConfigurationError(message) from None
