"""The running mean of a score as conversations end, with its interval: has it settled, and how sure is it?

Up to ``style.LINES`` candidates are lines in one panel; more have a strip each, which shows the mean less its last
value, all strips at one scale.
What never belongs here: computing means and intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import style

_STRIP = 0.3  # inches of a candidate's strip
_POINTS = 60  # of a line; more could not be told apart at this width
_SETTLED = 0.2  # of the conversations: intervals of the first few would flatten all the rest


@dataclass(slots=True, frozen=True)
class Run:
    """The mean after the first ``n[i]`` conversations, and its 95% interval; at least one point."""

    n: Sequence[int]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


@dataclass(slots=True, frozen=True)
class Track:
    """One candidate's runs, one for each seed and evaluator; none keeps its place."""

    name: str
    runs: Sequence[Run]


def running(title: str, tracks: Sequence[Track]) -> str:
    """The means (0–100) over the number of conversations, as SVG; bands are 95% intervals. A track at least has a run.

    :raises ConfigurationError: matplotlib is missing.
    """
    thin = [Track(track.name, [_thinned(run) for run in track.runs]) for track in tracks]
    with style.drawing():
        return style.write_svg(_lines(title, thin) if len(thin) <= style.LINES else _strips(title, thin))


def overlapping(tracks: Sequence[Track]) -> list[list[str]]:
    """The names of candidates that share one line, for all their runs are the same."""
    if len(tracks) > style.LINES:
        return []
    return [[tracks[at].name for at in group] for group in _groups(tracks) if len(group) > 1]


def _groups(tracks: Sequence[Track]) -> list[list[int]]:
    return style.alike([tuple(map(_points, track.runs)) or place for place, track in enumerate(tracks)])


def _points(run: Run) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, (run.n, run.mean, run.low, run.high)))


def _lines(title: str, tracks: Sequence[Track]) -> Any:
    groups, shorts = _groups(tracks), list(style.short(track.name for track in tracks).values())
    names = [style.group_name([shorts[at] for at in group]) for group in groups]
    figure, axes = style.panel(2.1, bottom=style.BOTTOM + style.legend_height(names))
    style.title(axes, title)
    axes.set_xlabel("talks so far")
    axes.set_ylabel("running mean score, 0–100")
    axes.grid(axis="y")
    handles, reach = [], [100.0, 0.0]
    for index, *_ in groups:
        track = tracks[index]
        colour, dash = style.colour(style.SERIES[index]), style.DASHES[index]
        (drawn,) = axes.plot([], [], color=colour, linestyle=dash, linewidth=1.2)
        for at, *_ in style.alike(list(map(_points, track.runs))):
            run = track.runs[at]
            axes.fill_between(run.n, run.low, run.high, color=colour, alpha=0.15, linewidth=0)
            axes.plot(run.n, run.mean, color=colour, linestyle=dash, linewidth=1.2)
            lows, highs = _settled(run.low, run), _settled(run.high, run)
            reach = [min(reach[0], *lows), max(reach[1], *highs)]
        handles.append(drawn)
    _frame(axes, tracks)
    room = max(2.0, 0.08 * (reach[1] - reach[0]))
    axes.set_ylim(reach[0] - room, reach[1] + room)
    style.legend(figure, handles, names)
    return figure


def _strips(title: str, tracks: Sequence[Track]) -> Any:
    names = list(style.short(track.name for track in tracks).values())
    left = 0.15 + style.inches(names)
    figure, axes = style.panel(_STRIP * len(tracks), left=left)
    style.title(axes, title)
    off = [
        abs(end - run.mean[-1])
        for track in tracks
        for run in track.runs
        for ends in (run.low, run.high)
        for end in _settled(ends, run)
    ]
    span = 1.1 * max(1.0, *off)  # points from a strip's middle to its edge
    colour = style.colour("blue")
    for row, track in enumerate(tracks):
        for run in track.runs:
            last = run.mean[-1]

            def height(values: Sequence[float], row: int = row, last: float = last) -> list[float]:
                # Downwards, for the first row is on top; what leaves the strip is cut off at its edge.
                return [row + 0.5 - max(-0.5, min(0.5, (value - last) / span / 2)) for value in values]

            axes.fill_between(run.n, height(run.low), height(run.high), color=colour, alpha=0.2, linewidth=0)
            axes.plot(run.n, height(run.mean), color=colour, linewidth=1)
        axes.axhline(row, color=style.colour("grid"), linewidth=0.6)
    _frame(axes, tracks)
    axes.set_ylim(len(tracks), 0)
    axes.set_yticks([row + 0.5 for row in range(len(tracks))], [style.literal(name) for name in names])
    axes.tick_params(axis="y", length=0)
    label = f"talks so far (a strip: last mean ± {span:.1f} points)"
    figure.text(0.5, 0.06 / figure.get_figheight(), label, ha="center", fontsize=style.NORMAL)
    return figure


def _frame(axes: Any, tracks: Sequence[Track]) -> None:
    axes.set_xlim(0, max(run.n[-1] for track in tracks for run in track.runs) * 1.01)
    axes.xaxis.get_major_locator().set_params(integer=True, nbins=6)


def _settled(values: Sequence[float], run: Run) -> list[float]:
    """The values after the first share of the conversations; one at least."""
    return [value for value, n in zip(values, run.n, strict=True) if n >= _SETTLED * run.n[-1]]


def _thinned(run: Run) -> Run:
    """At most ``_POINTS`` points, evenly chosen, the last one among them."""
    last = len(run.n) - 1
    if last < _POINTS:
        return run
    kept = [round(last * step / (_POINTS - 1)) for step in range(_POINTS)]
    mean, low, high = ([values[at] for at in kept] for values in (run.mean, run.low, run.high))
    return Run([run.n[at] for at in kept], mean, low, high)
