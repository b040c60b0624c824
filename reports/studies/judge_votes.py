"""Judges' votes beside people's labels: effective votes, shared errors, the majority and the best single judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from viva.scoring.agreement import Rating, majority_ratings
from viva.scoring.intervals import Estimate
from viva.scoring.votes import Ballots, JuryWorth, Mask, contested_items, jury_worth

from ..figures import estimate_record, round_figure
from ..tables import DASH, Table, number, percent, signed
from .rating_sheet import MOST_LABELS, Sheet, SheetRow

OVERALL = ("overall", "score")
_MOST_PAIRS = 15  # pairs of judges in the table, those with the highest correlation
_SMALLEST_MAJORITY = 3  # with two judges, the majority is one of them at random
_CHOSEN_P = 0.01  # p-value below which labels are no even draw from all items


def human_label(row: SheetRow, criterion: str) -> Rating | None:
    """Return the label of most annotators; None if several tie, or nobody gave one."""
    winners = majority_ratings(row.human.get(criterion, ()))
    return winners[0] if len(winners) == 1 else None


def are_labels(values: Sequence[Rating | None]) -> bool:
    """Return True for labels: texts or whole numbers, few different ones."""
    labels = {value for value in values if value is not None}
    return 0 < len(labels) <= MOST_LABELS and all(
        isinstance(label, str) or label.is_integer() for label in labels if label != ""
    )


def judges_for(sheet: Sheet, criterion: str) -> dict[str, tuple[str, str]]:
    """Return the judges that have scored a criterion, or everything at once, with the key of the score.

    A rating without a name is compared with a judge's overall score, or with all its scores if it has no overall score.
    """
    keys: dict[str, tuple[str, str]] = {}
    for judge in sheet.judges:
        scored = sheet.criteria_of(judge)
        if criterion in scored:
            keys[judge] = (judge, criterion)
        elif "" in scored:
            keys[judge] = (judge, "")
        elif criterion == "":
            overall = [name for name in OVERALL if name in scored][:1]
            keys |= {judge if overall else f"{judge}.{name}": (judge, name) for name in overall or scored}
    return keys


@dataclass(frozen=True, slots=True)
class VoteTable:
    """Votes of judges on the items on which all have voted.

    `ballots` has the labelled items; `contested` tells for each row of `rows` whether its votes differ, `labelled`
    whether people have labelled it. `left_out` counts labelled rows on which some judge has no readable vote.
    """

    criterion: str
    ballots: Ballots
    rows: list[SheetRow]
    contested: Mask
    labelled: Mask
    left_out: int

    @property
    def share(self) -> float:
        """Fraction of all items that are contested."""
        return float(self.contested.mean()) if len(self.rows) else 0.0

    @property
    def is_even_draw(self) -> bool:
        """True unless the labelled items are clearly more or less often contested than all items."""
        from scipy.stats import hypergeom

        total, contested, n = len(self.rows), int(self.contested.sum()), int(self.labelled.sum())
        both = int((self.contested & self.labelled).sum())
        law = hypergeom(total, contested, n)
        return 2.0 * float(min(law.cdf(both), law.sf(both - 1))) >= _CHOSEN_P


def vote_table(rows: Sequence[SheetRow], criterion: str, judges: Mapping[str, tuple[str, str]]) -> VoteTable | None:
    """Return the votes of the judges whose scores are labels like people's; None for fewer than two, or without labels.

    `judges` has the key of each judge's scores in the rows.
    """
    people = [human_label(row, criterion) for row in rows]
    kinds = {type(label) for label in people if label is not None}
    if not are_labels(people) or len(kinds) != 1:
        return None
    columns = {judge: [row.scores.get(key) for row in rows] for judge, key in judges.items()}
    columns = {
        judge: votes
        for judge, votes in columns.items()
        if are_labels(votes) and {type(vote) for vote in votes if vote is not None} == kinds
    }
    if len(columns) < 2:
        return None
    complete = [at for at in range(len(rows)) if all(votes[at] is not None for votes in columns.values())]
    if not complete:
        return None
    labelled = [people[at] is not None for at in complete]
    groups = [rows[at].group or f"line {rows[at].line}" for at in complete]
    every = Ballots.from_labels(
        {judge: [votes[at] for at in complete] for judge, votes in columns.items()},
        [people[at] for at in complete],
        groups,
    )
    ballots = every.subset(_mask(labelled))
    left_out = sum(label is not None for label in people) - sum(labelled)
    return VoteTable(
        criterion, ballots, [rows[at] for at in complete], contested_items(every.votes), _mask(labelled), left_out
    )


def _mask(values: Sequence[bool]) -> Mask:
    import numpy as np

    return np.array(values, dtype=bool)


def votes_record(table: VoteTable, seed: int, resamples: int, level: float) -> dict[str, Any] | None:
    """Return the worth of the judges' votes as plain data; None without labels, or if the labels are no even draw."""
    if not len(table.ballots.truth) or not table.is_even_draw:
        return None
    worth = jury_worth(table.ballots, seed=seed, resamples=resamples, level=level)
    return {
        "judges": list(table.ballots.judges),
        "n": worth.n,
        "clusters": worth.clusters,
        "left_out": table.left_out,
        "effective": _estimate(worth.effective),
        "accuracy": {judge: estimate_record(estimate) for judge, estimate in worth.accuracy.items()},
        "majority": estimate_record(worth.majority),
        "independent": estimate_record(worth.independent),
        "best": worth.best,
        "gain": _gain(worth),
        "pairs": [
            {
                "first": pair.first,
                "second": pair.second,
                "correlation": _estimate(pair.correlation),
                "both_wrong": round_figure(pair.both_wrong),
                "expected": round_figure(pair.expected),
            }
            for pair in worth.pairs
        ],
    }


def _estimate(estimate: Estimate | None) -> dict[str, Any] | None:
    return None if estimate is None else estimate_record(estimate)


def _gain(worth: JuryWorth) -> dict[str, Any]:
    ends = {"value": worth.gain, "low": worth.gain_low, "high": worth.gain_high}
    return {name: round_figure(value) for name, value in ends.items()}


def votes_sentence(record: Mapping[str, Any]) -> str:
    """Summarize what the judges' votes are worth."""
    judges, effective = len(record["judges"]), record["effective"]
    if effective is None:
        value = "no judge errs" if record["majority"]["value"] == 1.0 else "too few items"
        start = f"How many independent votes {judges} judges are worth cannot be told: {value}."
    else:
        ends = f"{number(effective['low'], 1)} to {number(effective['high'], 1)}"
        start = f"The votes of {judges} judges are worth {number(effective['value'], 1)} independent ones ({ends})."
    if judges < _SMALLEST_MAJORITY:
        return start
    best, gain = record["accuracy"][record["best"]], record["gain"]
    is_better = gain["low"] is not None and gain["low"] > 0.0
    against = "significantly fewer" if is_better else "so the majority is not shown to be better"
    return (
        f"{start} Their majority is right on {_share(record['majority'])} of {record['n']:,} items, the best single "
        f"judge, {record['best']}, on {_share(best)}, {against}. With independent errors the majority would be right "
        f"on {_share(record['independent'])}."
    )


def votes_tables(record: Mapping[str, Any], name: str = "") -> list[Table]:
    """Return the tables of judges' accuracies and of shared errors; `name` ends the titles."""
    rows = [[judge, _share(estimate)] for judge, estimate in record["accuracy"].items()]
    if len(record["judges"]) >= _SMALLEST_MAJORITY:
        rows += [["majority of all", _share(record["majority"])], ["if independent", _share(record["independent"])]]
    pairs = sorted(record["pairs"], key=lambda pair: -(pair["correlation"] or {"value": -2.0})["value"])[:_MOST_PAIRS]
    shared = [
        [pair["first"], pair["second"], _correlation(pair["correlation"]), percent(pair["both_wrong"]),
         percent(pair["expected"])]
        for pair in pairs
    ]  # fmt: skip
    header = ["judge", "judge", "error correlation", "both wrong", "if independent"]
    return [(f"Right votes{name}", ["judge", "right"], rows), (f"Shared errors{name}", header, shared)]


def _correlation(estimate: Mapping[str, Any] | None) -> str:
    if estimate is None:
        return DASH
    return f"{signed(estimate['value'], 2)} ({estimate['low']:.2f} to {estimate['high']:.2f})"


def _share(estimate: Mapping[str, Any]) -> str:
    return f"{percent(estimate['value'])} ({100 * estimate['low']:.0f} to {100 * estimate['high']:.0f})"
