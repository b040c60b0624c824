"""Several seeds of one evaluator on the same interviews: agreement, majority, and how much variance is its own.

Each seed judges the whole interview with its own earlier verdicts, so a seed is a rater. The first seed's verdicts are
those of the report's other tables.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from viva.reports.figures import estimate_record, mean_record, round_figure
from viva.reports.tables import DASH, Table, interval, number, percent, standard_error
from viva.scoring.aggregates import ClusteredStream
from viva.scoring.agreement import count_votes, krippendorff_alpha, majority_ratings, share_within

from .score import ASPECTS, Interview, Round, Scorer

LEAST_CLUSTERS = 10  # independent interviews from which a share of the variance is stated
_MOST_LISTED = 5  # interviews of each candidate in the table


@dataclass(frozen=True, slots=True)
class SeedRecord:
    """One interview: its score with each seed and by majority, and each round's overall verdicts."""

    item: str
    cluster: str
    equal: bool
    scores: tuple[float | None, ...]
    by_majority: float | None
    verdicts: tuple[tuple[int | None, ...], ...]
    majority: tuple[int | None, ...]

    @property
    def scored(self) -> list[float]:
        """The scores of the seeds that have one."""
        return [score for score in self.scores if score is not None]

    @property
    def spread(self) -> float | None:
        """Standard deviation of the score over seeds; None below two scores."""
        scores = self.scored
        if len(scores) < 2:
            return None
        mean = math.fsum(scores) / len(scores)
        return math.sqrt(math.fsum((score - mean) ** 2 for score in scores) / (len(scores) - 1))

    @property
    def agreement(self) -> float | None:
        """Fraction of pairs of seeds with the same verdict, over rounds; None if no round has two verdicts."""
        same = pairs = 0
        for row in self.verdicts:
            counts = Counter(verdict for verdict in row if verdict is not None)
            same += sum(count * (count - 1) for count in counts.values())
            pairs += counts.total() * (counts.total() - 1)
        return same / pairs if pairs else None

    def to_record(self) -> dict[str, Any]:
        return {
            "item": self.item,
            "agreement": round_figure(self.agreement),
            "majority": list(self.majority),
            "majority_score": round_figure(self.by_majority),
            "scores": [round_figure(score) for score in self.scores],
            "spread": round_figure(self.spread),
        }


def seed_record(interview: Interview, scorer: Scorer) -> SeedRecord:
    """Return what the seeds of an interview say."""
    by_seed = interview.by_seed()
    rounds = [scorer.rounds(judged) for judged in by_seed]
    verdicts = tuple(
        tuple(None if round_ is None or round_.scores is None else round_.scores[-1] for round_ in row)
        for row in zip_longest(*rounds)
    )
    courses = [[(round_.scores, round_.stop) for round_ in own] for own in rounds]
    voted = _voted(interview, rounds)
    return SeedRecord(
        interview.item,
        interview.cluster or interview.item,
        all(course == courses[0] for course in courses),
        tuple(scorer.score(judged) for judged in by_seed),
        scorer.score(voted),
        verdicts,
        tuple(None if round_.scores is None else round_.scores[-1] for round_ in voted.rounds),
    )


def _voted(interview: Interview, rounds: Sequence[Sequence[Round]]) -> Interview:
    """Return the interview with the overall verdicts of most seeds, which ends when most of them have ended.

    A round whose verdicts tie is unscored.
    """
    voted: list[Round] = []
    needed = len(rounds) / 2
    for row in zip_longest(*rounds):
        judged = [round_ for round_ in row if round_ is not None]
        if len(judged) <= needed:
            break
        winners = majority_ratings([None if round_.scores is None else round_.scores[-1] for round_ in judged])
        scores = [*([None] * (len(ASPECTS) - 1)), int(winners[0])] if len(winners) == 1 else None
        voted.append(Round(scores))
    ends = [judged.ended_by for judged in interview.by_seed()]
    stopped = ends.count("evaluator") > needed
    ended_by = "evaluator" if stopped else next((end for end in ends if end != "evaluator"), ends[0])
    return replace(interview, rounds=voted, ended_by=ended_by, seeds=[])


class SeedVotes:
    """The interviews of one candidate that several seeds of the evaluator have judged; mergeable, in any order."""

    def __init__(self) -> None:
        self._records: list[SeedRecord] = []

    def __bool__(self) -> bool:
        return bool(self._records)

    def add(self, interview: Interview, scorer: Scorer) -> None:
        if interview.rounds:
            self._records.append(seed_record(interview, scorer))

    def merge(self, other: SeedVotes) -> None:
        self._records += other._records

    def to_record(self) -> dict[str, Any]:
        """Return the figures over all interviews, the sentence about them, and each interview's own."""
        records = sorted(self._records, key=lambda record: (record.item, str(record.scores)))
        seeds = max(len(record.scores) for record in records)
        rows = [row for record in records for row in record.verdicts if sum(v is not None for v in row) > 1]
        votes = count_votes(rows)
        every, majority = ClusteredStream(), ClusteredStream()
        for record in records:
            if record.scored:
                every.add(math.fsum(record.scored) / len(record.scored), record.cluster)
            if record.by_majority is not None:
                majority.add(record.by_majority, record.cluster)
        spreads = [record.spread**2 for record in records if record.spread is not None]
        own = share_within([record.scored for record in records], [record.cluster for record in records])
        figures: dict[str, Any] = {
            "seeds": seeds,
            "interviews": len(records),
            "rounds": votes.items,
            "equal": all(record.equal for record in records),
            "unanimous": round_figure(votes.unanimous / votes.items) if votes.items else None,
            "decided": round_figure(votes.decided / votes.items) if votes.items else None,
            "alpha": round_figure(krippendorff_alpha(rows, "ordinal").value) if rows else None,
            "score": mean_record(every),
            "majority_score": mean_record(majority),
            "spread": round_figure(math.sqrt(math.fsum(spreads) / len(spreads))) if spreads else None,
            "clusters": len({record.cluster for record in records}),
        }
        enough = figures["clusters"] >= LEAST_CLUSTERS
        figures["own_share"] = estimate_record(own) if enough and own is not None else None
        figures["summary"] = _sentence(figures)
        return figures | {"by_interview": [record.to_record() for record in records]}


def _sentence(record: Mapping[str, Any]) -> str:
    """Return how much of a score's variance is the evaluator's own, as far as the interviews show it."""
    seeds, count = record["seeds"], record["interviews"]
    about = f"{count:,} interview{'s' * (count != 1)}, {seeds} seeds of the evaluator"
    if record["equal"]:
        return f"All verdicts are equal: seeds change nothing ({about})"
    differ, own = "The evaluator's verdicts differ between seeds", record["own_share"]
    if record["clusters"] < LEAST_CLUSTERS or (own is not None and (own["low"], own["high"]) == (0.0, 1.0)):
        return f"{differ}; too few interviews to tell how much of a score's variance is its own ({about})"
    if own is None:
        return f"{differ}, but all scores are equal ({about})"
    share, low, high = (percent(own[name]) for name in ("value", "low", "high"))
    return (
        f"Of the variance of an interview's score, {share} (95% interval {low} to {high}) is the evaluator's own: it "
        f"comes from the seed alone ({about})"
    )


def seed_tables(candidates: Mapping[str, Mapping[str, Any]]) -> list[Table]:
    """Return the figures of each candidate, and the interviews whose scores differ most between seeds."""
    voted = {label: record["judge_seeds"] for label, record in candidates.items() if "judge_seeds" in record}
    rows, examples = [], []
    for label, record in voted.items():
        shares = [percent(record["unanimous"]), percent(record["decided"]), number(record["alpha"], 3)]
        means = [number(record["score"]["mean"]), standard_error(record["score"]["se"])]
        means += [number(record["majority_score"]["mean"]), number(record["spread"])]
        own = record["own_share"]
        part = DASH if own is None else interval({name: 100 * own[name] for name in ("value", "low", "high")}, 0)
        rows.append([label, f"{record['seeds']}", f"{record['interviews']:,}", f"{record['rounds']:,}"])
        rows[-1] += [*shares, *means, part]
        uneven = [example for example in record["by_interview"] if example["spread"]]
        for example in sorted(uneven, key=lambda example: (-example["spread"], example["item"]))[:_MOST_LISTED]:
            scores = " ".join(number(score) for score in example["scores"])
            cells = [number(example["majority_score"]), number(example["spread"]), percent(example["agreement"])]
            examples.append([label, example["item"], scores, *cells])
    header = ["candidate", "seeds", "interviews", "rounds", "unanimous", "majority", "α ordinal"]
    header += ["KIEval, mean of seeds", "SE", "KIEval by majority", "spread", "evaluator's own % of variance"]
    listed = ["candidate", "item", "KIEval by seed", "by majority", "spread", "agreement"]
    return [
        ("The evaluator with several seeds", header, rows),
        ("Interviews whose score differs most between seeds", listed, examples),
    ]
