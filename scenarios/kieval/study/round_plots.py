"""Drawings over rounds: how many interviews hold each round, and the score of each round by itself.

What never belongs here: computing the figures (``rounds``).
"""

from __future__ import annotations

from collections.abc import Callable

from viva.reports.page import Plot, Record, joined, span
from viva.scoring.plots import rounds, style

from .drawing import Drawn, plot, ranking, reach, rows_by_dataset, said_alike, shown_dataset


def round_plots(report: Record) -> list[Plot]:
    """Survival, and scores by round."""
    survival = (
        "How many of its talks a candidate holds through how many rounds. A curve that falls early belongs to a "
        "candidate that loses the thread, or that the evaluator stops."
    )
    scores = (
        "The mean overall score of each round by itself, unweighted, of the talks that held it; bars are 95% "
        "intervals, clustered by item. A falling curve says that further questions reach what a "
        "candidate does not know; later rounds have fewer talks, and the better ones."
    )
    return [
        *_rounds(report, "survival", "Rounds survived", survival, "talks that held the last round", _held),
        *_rounds(report, "rounds", "Score by round", scores, "score of the last round", _scored),
    ]


def _held(record: Record) -> rounds.Step | None:
    share = record.get("share_held")
    return None if share is None else rounds.Step(record["round"], 100 * share)


def _scored(record: Record) -> rounds.Step | None:
    if record.get("mean") is None:
        return None
    return rounds.Step(record["round"], record["mean"], reach(record))


def _rounds(
    report: Record, anchor: str, heading: str, caption: str, said: str, read: Callable[[Record], rounds.Step | None]
) -> list[Plot]:
    draw = rounds.survival if read is _held else rounds.scores
    drawn: list[Drawn] = []
    many, shared = False, list[tuple[str, list[str]]]()
    everywhere = list(rows_by_dataset(report))
    known = {row["candidate"] for _, pooled in everywhere for row in pooled}
    order = [candidate for candidate in ranking(report) if candidate in known]
    for name, pooled in everywhere:
        steps: dict[str, list[rounds.Step]] = {candidate: [] for candidate in order}
        for row in pooled:
            steps[row["candidate"]] = [
                step for record in row.get("by_round") or () if (step := read(record)) is not None
            ]
        # One without interviews here keeps its place, so that a colour means the same candidate in every panel.
        curves = [rounds.Curve(candidate, found) for candidate, found in steps.items()]
        if any(steps.values()):
            many |= len(curves) > style.LINES
            shared += [(name, group) for group in rounds.overlapping(curves)]
            n = [row["n_observations"] for row in pooled if steps[row["candidate"]]]
            title = f"{shown_dataset(name)} (n = {span(n)} talks each)"
            last = [f"{curve.name} {curve.steps[-1].value:.0f}" for curve in curves if curve.steps]
            drawn.append((draw(title, curves), f"{name}: {said}: {joined(last)}"))
    caption += said_alike(shared)
    if many:
        caption += (
            f" More than {style.LINES} candidates are rows of numbers, the stronger their tint the higher, without "
            "intervals."
        )
    return plot(report, anchor, heading, caption, drawn)
