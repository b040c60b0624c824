"""A study's report as drawings: which figures go into which, and what their captions say.

What never belongs here: how a drawing looks (``scoring.plots``), and markup.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from viva.scoring.correlation import Figures, Fit, by_dataset
from viva.scoring.plots import regression, rounds, rows, running, style
from viva.scoring.regression import Regression

from .inline import inlined
from .words import circumstances, counted, joined, said_accuracy, span

Record = Mapping[str, Any]
Drawn = tuple[str, str]  # an SVG, and what to say of it in one line


@dataclass(slots=True, frozen=True)
class Plot:
    """One kind of drawing, a panel for each dataset. ``origin`` says how the figures in it came about."""

    anchor: str
    heading: str
    caption: str
    origin: str
    panels: Sequence[Markup]


def plots(study: Record) -> list[Plot]:
    """All drawings that the study has figures for.

    :raises ConfigurationError: matplotlib is missing.
    """
    style.library()
    made = [_regressions(study), _aspects(study), _survival(study), _by_round(study), _stops(study), _running(study)]
    return [plot for plot in made if plot is not None]


def ranking(study: Record) -> list[str]:
    """The candidates of the study, best overall score first; those without a score last, in the study's order."""
    names = list(dict.fromkeys(row["candidate"] for row in study["pooled"]))
    best: dict[str, tuple[bool, float]] = {}
    for row in study["pooled"]:  # that of all datasets counts, or of the only one
        mean = (row.get("score") or {}).get("mean")
        if mean is not None and (row["dataset"] is None or row["candidate"] not in best):
            best[row["candidate"]] = (True, mean)
    return sorted(names, key=lambda name: -best[name][1] if name in best else math.inf)


# -- score against accuracy -----------------------------------------------------------------------------------------


def _regressions(study: Record) -> Plot | None:
    told = study.get("correlations") or {}
    known = [Figures(**{name: one[name] for name in _FIGURE}) for one in told.get("figures", ())]
    groups = by_dataset(known)
    drawn: list[Drawn] = []
    labels = (f"accuracy ({said_accuracy(told.get('accuracy'))}), %", "KIEval score, 0–100")
    for name, group in groups.items():
        fit = _fit((told.get("lines") or {}).get(name))
        title = f"{_dataset(name)} (n = {counted(len(group), 'model')})"
        below = fit.line.below if fit else []
        label = f"{name}: score against accuracy of {counted(len(group), 'model')}; below the line: "
        drawn.append((regression.regression(title, group, fit, labels), label + (joined(below) or "none")))
    if not any(len(group) > 1 for group in groups.values()):
        return None
    caption = (
        "Each point is a model; bars are one standard error. The line is a robust fit that outliers do not draw to "
        "themselves, the band three expected spreads of the residuals. A red square lies off the line by more than "
        "that, its own errors joined. Far below means that a model picks answers better than it talks about them, "
        "which suggests contamination."
    )
    if any(len(group) > regression.NAMED for group in groups.values()):
        caption += f" Of more than {regression.NAMED} models only those off the line are named."
    return _plot(study, "regression", "KIEval score against accuracy", caption, drawn)


_FIGURE = ("model", "dataset", "accuracy", "score", "accuracy_se", "score_se")


def _fit(line: Record | None) -> Fit | None:
    if line is None:
        return None
    # A point off a perfect line is infinitely far off in spreads, which JSON has no number for.
    deviations = {
        name: math.copysign(math.inf, line["residuals"][name]) if value is None else value
        for name, value in line["deviations"].items()
    }
    found = Regression(line["slope"], line["intercept"], dict(line["residuals"]), deviations, line["threshold"])
    return Fit(found, line["spread"])


# -- a row for each candidate ---------------------------------------------------------------------------------------


def _aspects(study: Record) -> Plot | None:
    drawn: list[Drawn] = []
    for name, pooled in _by_dataset(study):
        overall = {row["candidate"]: dot for row in pooled if (dot := _dot(row["score"])) is not None}
        marks = {
            row["candidate"]: {aspect: dot for aspect, told in row["aspects"].items() if (dot := _dot(told))}
            for row in pooled
            if row["candidate"] in overall
        }
        if overall:
            n = [row["score"].get("n", row["n_observations"]) for row in pooled if row["candidate"] in overall]
            title = f"{_dataset(name)} (n = {span(n)} talks each)"
            means = [f"{candidate} {dot.value:.1f}" for candidate, dot in overall.items()]
            drawn.append((rows.aspects(title, overall, marks), f"{name}: overall score of {joined(means)}"))
    caption = (
        "Means over talks of the five aspects, and of the overall score with its 95% interval, errors clustered by "
        "item. An aspect far from the bar is where a candidate is strong or weak beyond its overall level."
    )
    return _plot(study, "aspects", "Aspects", caption, drawn)


def _dot(told: Record | None) -> rows.Dot | None:
    if not told or told.get("mean") is None:
        return None
    return rows.Dot(told["mean"], _reach(told))


def _reach(told: Record) -> tuple[float, float] | None:
    """How far the interval reaches below the mean, and above."""
    low, high = told.get("low"), told.get("high")
    return None if low is None or high is None else (max(0.0, told["mean"] - low), max(0.0, high - told["mean"]))


def _reasons(row: Record) -> dict[str, int]:
    """Why talks ended before their last round: flags of the evaluator, and the end of a recorded talk in a fork."""
    ran_out = (row.get("ends") or {}).get("transcript", 0)
    return {**row["stop_reasons"], **({"recorded talk ran out": ran_out} if ran_out else {})}


def _stops(study: Record) -> Plot | None:
    found = {
        name: [rows.Stops(row["candidate"], row["n_observations"], _reasons(row)) for row in pooled]
        for name, pooled in _by_dataset(study)
    }
    reasons = rows.shown_reasons(one for stops in found.values() for one in stops)
    drawn: list[Drawn] = []
    for name, stops in found.items():
        if reasons[0]:
            title = f"{_dataset(name)} (n = {span(one.talks for one in stops)} talks each)"
            shares = [f"{one.name} {100 * sum(one.reasons.values()) / one.talks:.0f}%" for one in stops]
            drawn.append((rows.stops(title, stops, reasons), f"{name}: talks that stopped early: {joined(shares)}"))
    caption = (
        "Shares of talks that stopped early, by reason, and of those that held all their rounds. Numbers stand in "
        "parts of 9% and more. Talks that failed are not counted. Long coloured parts say that a score rests on short "
        "talks, and their colour says why."
    )
    if reasons[1]:
        caption += f" The rarest reasons are drawn together: {joined(reasons[1])}."
    return _plot(study, "stops", "Why talks stopped", caption, drawn)


# -- over rounds and talks ------------------------------------------------------------------------------------------


def _survival(study: Record) -> Plot | None:
    caption = (
        "How many of its talks a candidate holds through how many rounds. A curve that falls early belongs to a "
        "candidate that loses the thread, or that the evaluator stops."
    )
    return _rounds(study, "survival", "Rounds survived", caption, "talks that held the last round", _held)


def _by_round(study: Record) -> Plot | None:
    caption = (
        "The mean overall score of each round by itself, unweighted, of the talks that held it; bars are 95% "
        "intervals, clustered by item. A falling curve says that further questions reach what a "
        "candidate does not know; later rounds have fewer talks, and the better ones."
    )
    return _rounds(study, "rounds", "Score by round", caption, "score of the last round", _scored)


def _held(told: Record) -> rounds.Step | None:
    share = told.get("share_held")
    return None if share is None else rounds.Step(told["round"], 100 * share)


def _scored(told: Record) -> rounds.Step | None:
    if told.get("mean") is None:
        return None
    return rounds.Step(told["round"], told["mean"], _reach(told))


def _rounds(
    study: Record, anchor: str, heading: str, caption: str, said: str, read: Callable[[Record], rounds.Step | None]
) -> Plot | None:
    draw = rounds.survival if read is _held else rounds.scores
    drawn: list[Drawn] = []
    many = False
    everywhere = list(_by_dataset(study))
    known = {row["candidate"] for _, pooled in everywhere for row in pooled}
    order = [candidate for candidate in ranking(study) if candidate in known]
    for name, pooled in everywhere:
        steps: dict[str, list[rounds.Step]] = {candidate: [] for candidate in order}
        for row in pooled:
            steps[row["candidate"]] = [step for told in row.get("by_round") or () if (step := read(told)) is not None]
        # One without talks here keeps its place, so that a colour means the same candidate in every panel.
        curves = [rounds.Curve(candidate, found) for candidate, found in steps.items()]
        if any(steps.values()):
            many |= len(curves) > style.LINES
            talks = [row["n_observations"] for row in pooled if steps[row["candidate"]]]
            title = f"{_dataset(name)} (n = {span(talks)} talks each)"
            last = [f"{curve.name} {curve.steps[-1].value:.0f}" for curve in curves if curve.steps]
            drawn.append((draw(title, curves), f"{name}: {said}: {joined(last)}"))
    if many:
        caption += (
            f" More than {style.LINES} candidates are rows of numbers, the stronger their tint the higher, without "
            "intervals."
        )
    return _plot(study, anchor, heading, caption, drawn)


def _running(study: Record) -> Plot | None:
    drawn: list[Drawn] = []
    many = False
    runs = [(cell, run) for cell in study["cells"] if (run := _run(cell.get("running"))) is not None]
    known = {cell["candidate"] for cell, _ in runs}
    order = [candidate for candidate in ranking(study) if candidate in known]
    for name in _datasets(study):
        here: dict[str, list[running.Run]] = {candidate: [] for candidate in order}
        for cell, run in runs:
            if cell["dataset"] == name:
                here[cell["candidate"]].append(run)
        kept = [running.Track(candidate, found) for candidate, found in here.items()]
        if any(here.values()):
            many |= len(kept) > style.LINES
            talks = [run.n[-1] for track in kept for run in track.runs]
            title = f"{_dataset(name)} (n = {span(talks)} talks a run)"
            last = [f"{track.name} {track.runs[0].mean[-1]:.1f}" for track in kept if track.runs]
            drawn.append((running.running(title, kept), f"{name}: last running mean of {joined(last)}"))
    caption = (
        "The mean score of the first talks, in their seeded order, with its 95% interval at each number of talks; a "
        "line for each seed and evaluator. The intervals hold at a number fixed beforehand, not at one that was "
        "chosen by looking. Bands that have parted and lines that have levelled off say that more talks would change "
        "little."
    )
    if many:
        caption += (
            f" More than {style.LINES} candidates have a strip each, which shows the mean less its last value, all at "
            "one scale."
        )
    return _plot(study, "running", "Running mean", caption, drawn)


def _run(told: Record | None) -> running.Run | None:
    """The points that have an interval; None of none."""
    if not told:
        return None
    columns = [told[name] for name in ("n", "mean", "low", "high")]
    points = [point for point in zip(*columns, strict=True) if None not in point]
    return running.Run(*(list(column) for column in zip(*points, strict=True))) if points else None


# -- common ---------------------------------------------------------------------------------------------------------


def _plot(study: Record, anchor: str, heading: str, caption: str, drawn: Sequence[Drawn]) -> Plot | None:
    if not drawn:
        return None
    panels = [inlined(svg, f"{anchor}{index}-", label) for index, (svg, label) in enumerate(drawn)]
    return Plot(anchor, heading, caption, circumstances(study), panels)


def _by_dataset(study: Record) -> Iterable[tuple[str, list[Record]]]:
    """Each dataset with the pooled interviews of its candidates, best candidates first."""
    place = {name: index for index, name in enumerate(ranking(study))}
    for name in _datasets(study):
        found = [row for row in study["pooled"] if row["dataset"] == name and row["n_observations"]]
        if found:
            yield name, sorted(found, key=lambda row: place[row["candidate"]])


def _datasets(study: Record) -> list[str]:
    return list(dict.fromkeys(cell["dataset"] for cell in study["cells"]))


def _dataset(name: str) -> str:
    return style.short([name], 26)[name]
