"""The report of comparisons: win rates, strengths and ratings, grades, and how far the judges can be trusted.

A comparison is one pair of models on one turn. A model wins it if the judge prefers its answer in both orders;
otherwise it is a tie (Zheng et al. 2023, section 3.4). A jury's verdict is the side that more of its judges take.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from viva.engine.errors import ConfigurationError
from viva.reports.figures import clustered_rate, clustered_score, round_figure, round_significant
from viva.reports.page import count_of, join_names
from viva.reports.tables import Table, interval, mean_and_interval, number, p_value, signed
from viva.scoring.comparison import adjust_p_values, mean_effect
from viva.scoring.pairwise_rank import (
    Comparisons,
    Interval,
    Strengths,
    bradley_terry,
    elo,
    length_controlled_rate,
)

from ..models import EVERYBODY
from ..run_aggregate import ModelResults, RunAggregate, common_tables, tier_name
from .pairwise_judging import CANDIDATE, judge_role
from .pairwise_settings import PAIRS, SINGLE, PairwiseSettings

GRADES = 1.0, 10.0
_MOST_CATEGORIES = 20  # columns of a table
_ALPHA = 0.05


def outcome_of(first: int | None, second: int | None) -> int | None:
    """Return a judge's verdict on a pair: 1 if the first model wins in both orders, -1 if the second one does, else 0.

    `first` and `second` are the verdicts in both orders, 1 if the answer shown first wins. None if one is unreadable.
    """
    if first is None or second is None:
        return None
    return first if first == -second else 0


def jury_outcome(outcomes: Iterable[int | None]) -> int | None:
    """Return the side that more judges take, 0 if neither; None if no judge's verdict could be read."""
    known = [outcome for outcome in outcomes if outcome is not None]
    total = sum(known)
    return (total > 0) - (total < 0) if known else None


@dataclass(slots=True, frozen=True)
class JudgedPair:
    """A comparison: numbers of the models, the jury's outcome, and the difference in length of their answers."""

    prompt: str
    turn: int
    first: int
    second: int
    outcome: int | None
    longer: float
    verdicts: Sequence[Sequence[int | None]]

    @property
    def score(self) -> float | None:
        """The first model's score: 1, 0.5 or 0; None if unscored."""
        return None if self.outcome is None else (1 + self.outcome) / 2


class PairwiseResults(ModelResults):
    """The records of a run. They are added in any order; the report is the same."""

    def __init__(self) -> None:
        super().__init__()
        self.records: dict[str, Mapping[str, Any]] = {}

    def add(self, record: Mapping[str, Any]) -> None:
        self.records[record["prompt"]] = record
        if "stopped" in record:
            self.stops.add(record["stopped"])
        self.add_usage(record)

    def sorted_records(self) -> list[Mapping[str, Any]]:
        return [self.records[prompt] for prompt in sorted(self.records)]

    def pairs(self) -> Iterator[JudgedPair]:
        """Yield the comparisons by prompt, in the order in which they were planned."""
        for record in self.sorted_records():
            for entry in record["pairs"]:
                first, second = entry["models"]
                lengths = record["lengths"]
                longer = math.nan
                if lengths is not None:
                    at = entry["turn"] - 1
                    longer = float(lengths[first][at] - lengths[second][at])
                outcome = jury_outcome(outcome_of(*verdicts) for verdicts in entry["verdicts"])
                yield JudgedPair(record["prompt"], entry["turn"], first, second, outcome, longer, entry["verdicts"])


class PairwiseAggregate(RunAggregate[PairwiseResults]):
    """The comparisons or grades of a run."""

    def __init__(self, manifest: dict[str, Any]) -> None:
        super().__init__(manifest, PairwiseResults, {EVERYBODY: {}})
        self.settings = PairwiseSettings.model_validate(manifest["settings"])
        self.labels, self.judges = self.settings.labels, self.settings.judge_labels
        self.results = self.candidates[EVERYBODY]
        self._figures: tuple[int, dict[str, Any]] | None = None

    def add(self, key: str, result: Any) -> None:
        self.model_of(key).add(result)
        self._figures = None

    def in_brief(self, results: PairwiseResults) -> str:
        return f"{count_of(len(results.records), 'prompt')} judged" if results.records else ""

    def headline(self) -> str:
        return self.in_brief(self.results)

    def figures(self, label: str, results: PairwiseResults) -> dict[str, Any]:
        if self._figures is None:
            own = self._grades() if self.settings.mode == SINGLE else self._comparisons()
            head = {"prompts": len(results.records), "stopped": results.stops.to_dict(), "judges": self.judges}
            self._figures = len(results.records), head | own
        return {
            **self._figures[1],
            "failed": results.failures.total,
            **results.common_figures(self.prices(label)),
        }

    # -- comparisons -------------------------------------------------------------------------------------------------

    def _earlier(self) -> list[tuple[str, int, int, float, float]]:
        """Return the comparisons of the run named by `after`."""
        rows = (self.manifest.get("earlier") or {}).get("comparisons", [])
        for at, (_, first, second, score, _) in enumerate(rows):
            if not (0 <= first != second >= 0 and max(first, second) < len(self.labels) and 0 <= score <= 1):
                raise ConfigurationError(
                    f"manifest.json: field 'earlier.comparisons[{at}]': expected two different candidates and a score "
                    f"from 0 to 1, found {first}, {second} and {score}; restore the file from a copy"
                )
        named = set(self.settings.plain_pairs())  # in the order in which this run names the models of a pair
        result = []
        for prompt, first, second, score, longer in rows:
            difference = math.nan if longer is None else longer
            if (first, second) in named or (second, first) not in named:
                result.append((prompt, first, second, score, difference))
            else:
                result.append((prompt, second, first, 1.0 - score, -difference))
        return result

    def _comparisons(self) -> dict[str, Any]:
        pairs = list(self.results.pairs())
        own = [(pair.prompt, pair.first, pair.second, pair.score, pair.longer)
               for pair in pairs if pair.score is not None]  # fmt: skip
        earlier = self._earlier()
        comparisons = Comparisons.from_rows(len(self.labels), [*earlier, *own])
        seed = self.settings.seed
        strengths = bradley_terry(comparisons, seed)
        ratings = elo(comparisons, seed) if len(comparisons.scores) else [None] * len(self.labels)
        standings = {
            label: self._standing(at, comparisons, strengths, ratings[at]) for at, label in enumerate(self.labels)
        }
        return {
            "comparisons": {"judged": len(own), "unscored": len(pairs) - len(own), "earlier": len(earlier)},
            "standings": standings,
            "leader": self._leader(strengths),
            "pairs": self._pair_records(comparisons, pairs),
            "orders": {judge: self._orders(at, pairs) for at, judge in enumerate(self.judges)},
            "jury": {judge: self._agreement(at, pairs) for at, judge in enumerate(self.judges) if len(self.judges) > 1},
        }

    def _standing(
        self, at: int, comparisons: Comparisons, strengths: Strengths | None, rating: Interval | None
    ) -> dict[str, Any]:
        scores, clusters, longer = comparisons.of_model(at)
        won, lost = int((scores > 0.5).sum()), int((scores < 0.5).sum())
        controlled = None
        if at != self.settings.baseline:
            controlled = length_controlled_rate(scores, longer, clusters, self.settings.seed)
        lengths = [
            length
            for record in self.results.sorted_records()
            if record["lengths"] is not None
            for length in record["lengths"][at] or ()
        ]
        return {
            "won": won,
            "tied": len(scores) - won - lost,
            "lost": lost,
            "win_rate": _rate_record(scores, clusters.astype(str).tolist()),
            "length_controlled": _interval_record(controlled, 100.0),
            "strength": _interval_record(None if strengths is None else strengths.interval(at)),
            "elo": _interval_record(rating),
            "length": round_figure(math.fsum(lengths) / len(lengths)) if lengths else None,
        }

    def _leader(self, strengths: Strengths | None) -> dict[str, Any] | None:
        """Return the model with the greatest strength, and those above which it surely is (`Strengths.above`)."""
        if strengths is None or len(self.labels) < 2:
            return None
        best = int(np.argmax(strengths.values))
        above = [label for label, is_below in zip(self.labels, strengths.above()[best], strict=True) if is_below]
        return {"model": self.labels[best], "above": above, "others": len(self.labels) - 1}

    def _pair_records(self, comparisons: Comparisons, pairs: Sequence[JudgedPair]) -> dict[str, dict[str, Any]]:
        disagreed: dict[tuple[int, int], int] = {}
        unscored: dict[tuple[int, int], int] = {}
        for pair in pairs:
            key = pair.first, pair.second
            unscored[key] = unscored.get(key, 0) + (pair.outcome is None)
            disagreed[key] = disagreed.get(key, 0) + any(_is_disagreement(*verdicts) for verdicts in pair.verdicts)
        met = dict.fromkeys([*zip(comparisons.first.tolist(), comparisons.second.tolist(), strict=True), *disagreed])
        records: dict[str, dict[str, Any]] = {}
        for first, second in sorted(met):
            chosen = (comparisons.first == first) & (comparisons.second == second)
            scores = comparisons.scores[chosen]
            won, lost = int((scores > 0.5).sum()), int((scores < 0.5).sum())
            records[f"{self.labels[first]} and {self.labels[second]}"] = {
                "models": [self.labels[first], self.labels[second]],
                "won": won,
                "tied": len(scores) - won - lost,
                "lost": lost,
                "orders_differ": disagreed.get((first, second), 0),
                "unscored": unscored.get((first, second), 0),
                "win_rate": _rate_record(scores, comparisons.clusters[chosen].astype(str).tolist()),
            }
        return records

    def _orders(self, judge: int, pairs: Sequence[JudgedPair]) -> dict[str, Any]:
        """Return how often a judge says the same in both orders, and how much more often the answer shown first wins.

        The latter is from -1 to 1, and 0 without a preference whichever answers are better.
        """
        same: list[float] = []
        prompts: list[str] = []
        by_prompt: dict[str, list[float]] = {}
        for pair in pairs:
            first, second = pair.verdicts[judge]
            if first is not None and second is not None:
                same.append(float(first == -second))
                prompts.append(pair.prompt)
                by_prompt.setdefault(pair.prompt, []).append((first + second) / 2)
        effect = mean_effect({prompt: math.fsum(values) / len(values) for prompt, values in by_prompt.items()})
        return {
            "pairs": len(same),
            "unscored": len(pairs) - len(same),
            "agree": clustered_rate(np.array(same), prompts),
            "first": {name: round_figure(getattr(effect, name)) for name in ("value", "low", "high")},
            "p": round_significant(effect.p),
        }

    def _agreement(self, judge: int, pairs: Sequence[JudgedPair]) -> dict[str, Any]:
        """Return how often a judge's outcome is that of the other judges."""
        same, prompts = [], []
        for pair in pairs:
            outcomes = [outcome_of(*verdicts) for verdicts in pair.verdicts]
            others = jury_outcome(outcome for at, outcome in enumerate(outcomes) if at != judge)
            if outcomes[judge] is not None and others is not None:
                same.append(float(outcomes[judge] == others))
                prompts.append(pair.prompt)
        return {"agree": clustered_rate(np.array(same), prompts)}

    # -- grades ------------------------------------------------------------------------------------------------------

    def _grades(self) -> dict[str, Any]:
        rows: list[tuple[str, str, int, int, float]] = []  # prompt, category, model, turn, grade
        unscored = [0] * len(self.labels)
        for record in self.results.sorted_records():
            for entry in record["grades"]:
                known = [grade for grade in entry["verdicts"] if grade is not None]
                if known:
                    grade = math.fsum(known) / len(known)
                    rows.append((record["prompt"], record["category"], entry["model"], entry["turn"], grade))
                unscored[entry["model"]] += not known
        turns = sorted({row[3] for row in rows})
        categories = list(dict.fromkeys(sorted(row[1] for row in rows if row[1])))[:_MOST_CATEGORIES]
        standings: dict[str, dict[str, Any]] = {}
        for at, label in enumerate(self.labels):
            own = [row for row in rows if row[2] == at]
            standings[label] = {
                "grade": _grade_record(own),
                "turns": {str(turn): _grade_record([row for row in own if row[3] == turn]) for turn in turns},
                "categories": {name: _grade_record([row for row in own if row[1] == name]) for name in categories},
                "unscored": unscored[at],
            }
        return {"standings": standings}

    # -- tables ------------------------------------------------------------------------------------------------------

    def remarks(self) -> list[str]:
        if not self.results.records or self.settings.mode != PAIRS:
            return []
        figures = self.figures(EVERYBODY, self.results)
        sentences = [_leader_sentence(figures, self.labels)]
        if earlier := figures["comparisons"]["earlier"]:
            sentences.append(
                f"{earlier:,} comparisons of the earlier run count too; lengths, both orders and the jury's agreement "
                "are of this run alone."
            )
        tests = adjust_p_values([record["p"] for record in figures["orders"].values()])
        for (judge, record), p in zip(figures["orders"].items(), tests, strict=True):
            if p is not None and p <= _ALPHA:
                value = record["first"]["value"]
                sentences.append(
                    f"{judge} prefers the answer shown {'first' if value > 0 else 'last'} "
                    f"({signed(value, 2)}, p = {p_value(p)}); both orders are judged, so this makes ties, no winners."
                )
        return sentences

    def tables(self) -> list[Table]:
        report = self.report()
        figures = report["candidates"][EVERYBODY]
        judges = join_names(self.judges)
        title = f"{report['dataset']['name']}, judged by {judges}, seed {report['seed']}, {tier_name(report['tier'])}"
        own = self._grade_tables if self.settings.mode == SINGLE else self._pair_tables
        names = {
            **{f"{CANDIDATE}-{at}": f"candidate {label}" for at, label in enumerate(self.labels, 1)},
            **{judge_role(at): f"judge {label}" for at, label in enumerate(self.judges)},
        }
        common = [
            (heading, header, [[names.get(cell, cell) for cell in row] for row in rows])
            for heading, header, rows in common_tables(report, "models")
        ]
        return [*own(title, figures), *common]

    def _pair_tables(self, title: str, figures: Mapping[str, Any]) -> list[Table]:
        baseline = self.settings.baseline
        against = "win rate, %" if baseline is None else f"win rate against {self.labels[baseline]}, %"
        rows = []
        for label, standing in sorted(figures["standings"].items(), key=lambda item: -_sort_value(item[1])):
            counts = [f"{standing[name]:,}" for name in ("won", "tied", "lost")]
            rates = [mean_and_interval(standing["win_rate"]), interval(standing["length_controlled"])]
            ranks = [interval(standing["strength"], 2), interval(standing["elo"], 0)]
            rows.append([label, *counts, *rates, *ranks, number(standing["length"], 0)])
        header = ["model", "won", "tied", "lost", against, "at equal length, %", "Bradley–Terry", "Elo", "characters"]
        pairs = []
        for record in figures["pairs"].values():
            counts = [f"{record[name]:,}" for name in ("won", "tied", "lost", "orders_differ", "unscored")]
            pairs.append([*record["models"], *counts, mean_and_interval(record["win_rate"])])
        orders = []
        for judge, record in figures["orders"].items():
            agree, first = mean_and_interval(record["agree"]), interval(record["first"], 2)
            orders.append([judge, f"{record['pairs']:,}", agree, first, f"{record['unscored']:,}"])
        jury = [[judge, mean_and_interval(record["agree"])] for judge, record in figures["jury"].items()]
        return [
            (title, header, rows),
            (
                "Pairs: results of the first model",
                ["first", "second", "won", "tied", "lost", "orders differ", "unscored", "win rate, %"],
                pairs,
            ),
            ("Both orders", ["judge", "pairs", "same verdict, %", "first − second shown", "unscored"], orders),
            ("Jury", ["judge", "agrees with the other judges, %"], jury),
        ]

    def _grade_tables(self, title: str, figures: Mapping[str, Any]) -> list[Table]:
        standings = sorted(figures["standings"].items(), key=lambda item: -(item[1]["grade"]["mean"] or 0.0))
        [(_, first), *_] = standings
        turns = list(first["turns"]) if len(first["turns"]) > 1 else []
        rows = [
            [
                label,
                f"{standing['grade']['n']:,}",
                mean_and_interval(standing["grade"], 2),
                *(mean_and_interval(standing["turns"][turn], 2) for turn in turns),
                f"{standing['unscored']:,}",
            ]
            for label, standing in standings
        ]
        categories = list(first["categories"])
        by_category = [[label, *(number(standing["categories"][name]["mean"], 2) for name in categories)]
                       for label, standing in standings]  # fmt: skip
        return [
            (title, ["model", "grades", "grade", *(f"turn {turn}" for turn in turns), "unscored"], rows),
            ("Mean grade by category", ["model", *categories], by_category if categories else []),
        ]


def _is_disagreement(first: int | None, second: int | None) -> bool:
    return first is not None and second is not None and first != -second


def _leader_sentence(figures: Mapping[str, Any], labels: Sequence[str]) -> str:
    leader = figures["leader"]
    if leader is None:
        return (
            "Too few comparisons for Bradley–Terry strengths: they are finite only if chains of wins connect every two "
            "models in both directions."
        )
    if not leader["above"]:
        return f"Too few comparisons to tell whether {leader['model']}, which has the greatest strength, is the best."
    above = join_names(leader["above"])
    missing = leader["others"] - len(leader["above"])
    rest = f"; too few comparisons to tell it from {missing:,} other{'s' * (missing > 1)}" if missing else ""
    return f"{leader['model']} is ranked above {above} (95%, all pairs together){rest}."


def _sort_value(standing: Mapping[str, Any]) -> float:
    strength = standing["strength"]
    if strength is not None:
        return float(strength["value"])
    mean = standing["win_rate"]["mean"]
    return -math.inf if mean is None else float(mean) / 100.0


def _rate_record(scores: Any, prompts: Sequence[str]) -> dict[str, Any]:
    """Return the mean score in per cent with its interval; ties count one half."""
    return clustered_score(100.0 * scores, prompts)


def _grade_record(rows: Sequence[tuple[str, str, int, int, float]]) -> dict[str, Any]:
    return clustered_score(np.array([row[4] for row in rows]), [row[0] for row in rows], GRADES)


def _interval_record(value: Interval | None, factor: float = 1.0) -> dict[str, Any] | None:
    if value is None:
        return None
    return {name: round_figure(getattr(value, name), factor) for name in ("value", "low", "high")}
