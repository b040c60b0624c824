"""Interviews as columns of numbers, pooled over seeds and evaluators by candidate and dataset.

Interviews of a cell are read once. Figures by round, and the intervals of scores if a stop rule ended the cell, are
computed from the columns.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viva.engine.journal_reader import History
from viva.engine.run_folder import RunFolder
from viva.reports.figures import (
    EMPTY_MEAN,
    LEVEL,
    SCORES,
    Codes,
    Floats,
    clustered_rate,
    clustered_record,
    clustered_score,
    round_figure,
    score_intervals,
)
from viva.scoring.clustered_means import ClusteredMean, clustered_counts
from viva.scoring.sample_size import items_for_bounded

from ...study_cells import Conditions, ItemNumbers, Pool, RunReading, StudyCell, pools
from ...study_sections import Material, StaticFigures, static_readings
from ..interview_report import InterviewAggregate, cached_scorer
from ..score import ASPECTS, Interview, Scorer

POINTS = 200  # the most points of a running mean
# The ablation of KIEval's appendix D: decaying weights, early stop.
SWITCHES = ((True, True), (False, True), (True, False), (False, False))
_NAN = float("nan")
_NO_CHOICES = 2  # marks questions without choices


class InterviewColumns:
    """The interviews of one candidate in one run, in the order of their numbers.

    Columns have a row for each finished interview; missing scores are nan. `verdicts` holds the overall scores of all
    counted rounds, one interview after another, 0 if unscored; `lengths` has the number of rounds of each interview.
    """

    def __init__(self, aggregate: InterviewAggregate, items: ItemNumbers, recorded_with_early_stop: bool) -> None:
        self.aggregate, self._items = aggregate, items
        self._scorer = aggregate.scorer
        self._numbers, self._item, self._cluster = array("q"), array("i"), array("i")
        self._scores = [array("d") for _ in ASPECTS]
        self._right, self._lengths, self._verdicts = bytearray(), array("i"), bytearray()
        self._variants = {
            (decay, early_stop): (cached_scorer(Scorer(self._scorer.name, decay, early_stop)), array("d"))
            for decay, early_stop in SWITCHES
            # An interview that ended at its flag has no later rounds, so it cannot be scored without early stop.
            if (early_stop or not recorded_with_early_stop)
            and (decay, early_stop) != (self._scorer.decay, self._scorer.early_stop)
        }

    def add(self, number: int, interview: Interview) -> None:
        scores = self.aggregate.add(interview)
        self._numbers.append(number)
        self._item.append(self._items.number(interview.item))
        self._cluster.append(self._items.cluster(interview.item, interview.cluster))
        for column, score in zip(self._scores, scores, strict=True):
            column.append(_NAN if score is None else score)
        self._right.append(_NO_CHOICES if interview.free else interview.right)
        rounds = self._scorer.rounds(interview)
        self._lengths.append(len(rounds))
        self._verdicts.extend([(round_.scores[-1] or 0) if round_.scores is not None else 0 for round_ in rounds])
        for scorer, column in self._variants.values():
            score = scorer.overall(interview)
            column.append(_NAN if score is None else score)

    # -- columns ----------------------------------------------------------------------------------------------------

    @property
    def numbers(self) -> Codes:
        """The numbers of the conversations, ascending."""
        return np.frombuffer(self._numbers, dtype=np.int64)

    @property
    def items(self) -> Codes:
        """The item of each interview, numbered by `ItemNumbers`."""
        return np.frombuffer(self._item, dtype=np.intc).astype(np.int64)

    @property
    def clusters(self) -> Codes:
        """The cluster of each interview, numbered as items are; without a cluster, its item."""
        return np.frombuffer(self._cluster, dtype=np.intc).astype(np.int64)

    @property
    def right(self) -> Floats:
        """The first answers as numbers: 1 if right, else 0; nan for questions without choices."""
        values = np.frombuffer(self._right, dtype=np.uint8).astype(np.float64)
        values[values == _NO_CHOICES] = _NAN
        return values

    @property
    def lengths(self) -> Codes:
        return np.frombuffer(self._lengths, dtype=np.intc).astype(np.int64)

    @property
    def verdicts(self) -> Codes:
        return np.frombuffer(self._verdicts, dtype=np.uint8).astype(np.int64)

    def scores(self, aspect: str = "overall") -> Floats:
        """Return the scores of one aspect, 0–100."""
        return np.frombuffer(self._scores[ASPECTS.index(aspect)], dtype=np.float64)

    def variant(self, decay: bool, early_stop: bool) -> Floats | None:
        """Return the overall scores with other switches; None if the interviews were not recorded for them."""
        if (decay, early_stop) == (self._scorer.decay, self._scorer.early_stop):
            return self.scores()
        variant = self._variants.get((decay, early_stop))
        return None if variant is None else np.frombuffer(variant[1], dtype=np.float64)

    def rounds(self) -> Codes:
        """Return the round of each of `verdicts`, from 0."""
        lengths = self.lengths
        return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)

    # -- what a cell tells ------------------------------------------------------------------------------------------

    def running(self) -> dict[str, list[Any]]:
        """Return the mean of the first n scored interviews with its 95% interval, for at most `POINTS` values of n."""
        scores = self.scores()
        is_scored = ~np.isnan(scores)
        scores, clusters = scores[is_scored], self.clusters[is_scored]
        if not len(scores):
            return {"n": [], "mean": [], "low": [], "high": []}
        at = np.unique(np.linspace(1, len(scores), min(POINTS, len(scores))).round().astype(np.int64))
        if len(np.unique(clusters)) < len(scores):
            return _clustered_running_mean(scores, clusters, at)
        # Relative to the overall mean, so that squares of small spreads keep their digits.
        centre = float(scores.mean())
        sums, squares = np.cumsum(scores - centre)[at - 1], np.cumsum((scores - centre) ** 2)[at - 1]
        errors = np.full(len(at), np.nan)
        several = at > 1
        n = at[several]
        spread = np.maximum(0.0, squares[several] - sums[several] ** 2 / n) / (n - 1)
        errors[several] = np.sqrt(spread / n)
        means = centre + sums / at
        low, high = score_intervals(means, errors, at)
        record: dict[str, list[Any]] = {"n": at.tolist()}
        for name, values in (("mean", means), ("low", low), ("high", high)):
            record[name] = [None if np.isnan(value) else round_figure(float(value)) for value in values]
        return record

    def examples(self) -> list[int]:
        """Return the distinct numbers of the interviews with the lowest, the median and the highest score."""
        scores = self.scores()
        scored = np.flatnonzero(~np.isnan(scores))
        if not len(scored):
            return []
        ordered = scored[np.lexsort((self.numbers[scored], scores[scored]))]
        chosen = [ordered[0], ordered[(len(ordered) - 1) // 2], ordered[-1]]
        return list(dict.fromkeys(int(self.numbers[index]) for index in chosen))


def _clustered_running_mean(scores: Floats, clusters: Codes, at: Codes) -> dict[str, list[Any]]:
    """Return the running mean of clustered scores at the numbers `at`."""
    record: dict[str, list[Any]] = {"n": at.tolist(), "mean": [], "low": [], "high": []}
    for n in at.tolist():
        figures = clustered_score(scores[:n], [str(code) for code in clusters[:n].tolist()])
        for name in ("mean", "low", "high"):
            record[name].append(figures[name])
    return record


def conversation_keys(run: RunFolder, numbers: Iterable[int]) -> list[str]:
    """Return the keys of conversations, for `viva show --conversation`."""
    with History(run.journal) as history:
        return [started[0] for number in numbers if (started := history.started(number)) is not None]


_SCORE_LEVELS = 5  # 0 is a round without a score


def round_figures(columns: Sequence[InterviewColumns], items: Sequence[Codes], scorer: Scorer) -> list[dict[str, Any]]:
    """Return for each round the number of interviews that reached it, and its mean overall score.

    Scores are 0–100 by the scorer's mapping. `items` has the number of each interview's item; errors and intervals are
    clustered by it.
    """
    total = sum(len(column.numbers) for column in columns)
    max_rounds = max((int(column.lengths.max(initial=0)) for column in columns), default=0)
    places = [
        (column.rounds(), column.verdicts, np.repeat(codes, column.lengths))
        for column, codes in zip(columns, items, strict=True)
    ]
    worth = [scorer.combine([verdict]) or 0.0 for verdict in range(1, _SCORE_LEVELS)]
    rounds_found = []
    for number in range(max_rounds):
        verdicts = np.concatenate([verdicts[rounds == number] for rounds, verdicts, _ in places])
        codes = np.concatenate([codes[rounds == number] for rounds, _, codes in places])
        mean = _mean_of_rounds(verdicts, codes, worth)
        record = {"round": number + 1, "held": len(verdicts), "share_held": round_figure(len(verdicts) / total)}
        rounds_found.append(record | clustered_record(mean, SCORES))
    return rounds_found


def _mean_of_rounds(verdicts: Codes, codes: Codes, worth: Sequence[float]) -> ClusteredMean | None:
    """Return the mean over scored rounds; items with equal counts of verdicts are counted together."""
    scored = verdicts > 0
    items, places = np.unique(codes[scored], return_inverse=True)
    counts = np.bincount(places * _SCORE_LEVELS + verdicts[scored], minlength=len(items) * _SCORE_LEVELS)
    alike, times = np.unique(counts.reshape(-1, _SCORE_LEVELS)[:, 1:], axis=0, return_counts=True)
    return clustered_counts(worth, dict(zip(map(tuple, alike.tolist()), times.tolist(), strict=True)))


def with_rule_interval(score: Mapping[str, Any], cells: Sequence[StudyCell], scorer: Scorer) -> dict[str, Any]:
    """Return the record of a mean score, with the interval of the stop rule if the rule ended a cell.

    For several cells the interval is the mean of their intervals, weighted by scored interviews. It covers the true
    mean with probability at least 1 - (cells)·(1 - level), in practice far more. The record is unchanged if no rule
    ended a cell, a cell had no rule, or the rule used another scorer.
    """
    sequences = [_confidence_sequence(cell, scorer) for cell in cells]
    available = [sequence for sequence in sequences if sequence is not None]
    total = sum(sequence["n"] for sequence in available)
    if len(available) < len(sequences) or not total or all(cell.stopped_at is None for cell in cells):
        return dict(score)
    ends = {
        end: round_figure(sum(sequence["n"] * sequence[end] for sequence in available) / total)
        for end in ("low", "high")
    }
    return {**score, **ends}


def _confidence_sequence(cell: StudyCell, scorer: Scorer) -> dict[str, Any] | None:
    """Return the rule's interval of a cell's mean score; None if the rule used other scores."""
    if cell.until is None:
        return None
    watched = Scorer(cell.settings("scorer"), cell.settings("decay"), cell.settings("early_stop"))
    if watched.describe() != scorer.describe():
        return None
    record: dict[str, Any] = cell.until["intervals"][cell.candidate]
    return record


def rule_notes(cells: Sequence[StudyCell], scorer: Scorer) -> list[str]:
    """Return notes on intervals if a rule ended cells."""
    ruled = [cell for cell in cells if cell.stopped_at is not None]
    if not ruled:
        return []
    begun = sum(bool(cell.manifest) for cell in cells)
    if any(_confidence_sequence(cell, scorer) is None for cell in ruled):
        return [
            f"a stopping rule ended {len(ruled)} of {begun} cells by the scores of a scorer other than "
            f"{scorer.describe()}: intervals and p-values are not valid, because they assume a number of interviews "
            "fixed beforehand; intervals of scores are valid with the rule's scorer"
        ]
    units = dict.fromkeys((cell.until or {}).get("independent", "item") for cell in ruled)
    return [
        f"a stopping rule ended {len(ruled)} of {begun} cells by their scores: the intervals of scores come from the "
        f"rule and are valid if {' and '.join(f'{unit}s' for unit in units)} are independent; other intervals and "
        "p-values are not valid, because they assume a number of interviews fixed beforehand"
    ]


HALF_WIDTHS = (1.0, 2.0, 5.0)  # points of the score


class InterviewMaterial(Material):
    """The cells and the pools of their candidates; `scoring` is a `Scorer`.

    `pools` separate candidates that were examined differently; `by_items` does not.
    """

    def __init__(self, material: Material, lent: StaticFigures | None) -> None:
        super().__init__(material.scoring, material.readings, material.catalogue)
        self.lent = lent
        codes = self.catalogue.codes
        for reading in self.readings:
            dataset, columns = reading.cell.dataset, reading.columns
            if isinstance(columns, InterviewColumns):
                self.catalogue.join(codes(dataset, columns.items), codes(dataset, columns.clusters))
            elif lent is not None and lent.holds(reading):
                cluster_of = lent.clusters(Pool(reading.cell.candidate, dataset, [reading], self.catalogue))
                items, clusters = (np.array(list(side), dtype=np.int64) for side in (cluster_of, cluster_of.values()))
                self.catalogue.join(items, clusters)
        self.pools, self.by_items = (
            [InterviewPool(pool.candidate, pool.dataset, pool.readings, self.catalogue, lent) for pool in group]
            for group in (pools(self.readings, self.catalogue, _conditions), pools(self.readings, self.catalogue))
        )

    @property
    def scorer(self) -> Scorer:
        scorer: Scorer = self.scoring
        return scorer

    @property
    def overall_pools(self) -> list[InterviewPool]:
        """The pools of interviewed candidates over all datasets, or of the only dataset."""
        several = len({pool.dataset for pool in self.pools}) > 1
        return [pool for pool in self.pools if (pool.dataset is None or not several) and pool.parts]


@dataclass(slots=True)
class InterviewPool(Pool):
    """The interviews of a pool, and the static figures lent for the same candidate."""

    lent: StaticFigures | None

    @property
    def parts(self) -> list[tuple[StudyCell, str, InterviewColumns]]:
        """The interviews, each with its cell and dataset."""
        interviewed = [reading for reading in self.readings if isinstance(reading.columns, InterviewColumns)]
        return [(reading.cell, reading.cell.dataset, reading.columns) for reading in interviewed]

    @property
    def interviews(self) -> int:
        return sum(len(columns.numbers) for _, _, columns in self.parts)

    def labels(self, codes: Codes) -> list[str]:
        return self.catalogue.labels_of(codes)

    def codes(self) -> Codes:
        """Return the item of each interview as a number of the catalogue, in the order of `column`."""
        return concatenate_columns(self._codes()).astype(np.int64)

    def clusters(self) -> Codes:
        """Return the cluster of each interview as a number of the catalogue, in the order of `column`."""
        return concatenate_columns(self._clusters()).astype(np.int64)

    def codes_of(self, dataset: str, columns: InterviewColumns) -> Codes:
        """Return the items of one of the `parts`."""
        return self.catalogue.codes(dataset, columns.items)

    def column(self, name: str) -> Floats:
        """Return `right`, `rounds` or an aspect's scores of all interviews."""
        return concatenate_columns([_column(columns, name) for _, _, columns in self.parts])

    def variant(self, decay: bool, early_stop: bool) -> dict[str, Any]:
        """Return the overall score with other switches, empty if some interviews were not recorded for them."""
        variants = [columns.variant(decay, early_stop) for _, _, columns in self.parts]
        available = [column for column in variants if column is not None]
        if len(available) < len(variants):
            return dict(EMPTY_MEAN)
        return clustered_score(concatenate_columns(available), self.labels(self.clusters()))

    def score(self, scorer: Scorer) -> dict[str, Any]:
        """Return the mean score, with the interval of the rule that ended the interviews, if any."""
        record = clustered_score(self.column("overall"), self.labels(self.clusters()))
        return with_rule_interval(record, [cell for cell, _, _ in self.parts], scorer)

    def record(self, scorer: Scorer) -> dict[str, Any]:
        """Return the pooled figures as the report shows them."""
        readings, parts = self.readings, self.parts
        merged = InterviewAggregate(scorer)
        for _, _, columns in parts:
            merged.merge(columns.aggregate)
        plain, codes = merged.to_dict(), self.codes()
        labels = self.labels(self.clusters())
        begun = [reading.cell for reading in readings if reading.result is not None]
        record: dict[str, Any] = {
            "scenario": parts[0][0].scenario if parts else readings[0].cell.scenario,
            "candidate": self.candidate,
            "dataset": self.dataset,
            "datasets": list(dict.fromkeys(cell.dataset for cell in begun)),
            "seeds": sorted({cell.seed for cell in begun}),
            "evaluators": sorted({cell.evaluator for cell, _, _ in parts if cell.evaluator}),
            "n_items": len(np.unique(codes)),
            "n_observations": len(codes),
            "accuracy": clustered_rate(self.column("right"), labels),
            "score": self.score(scorer),
            "aspects": {name: clustered_score(self.column(name), labels) for name in ASPECTS[:-1]},
            "rounds": clustered_score(self.column("rounds"), labels, (0.0, self._most_rounds())),
            "by_round": round_figures([columns for _, _, columns in parts], self._clusters(), scorer),
        }
        for name in (
            *("unanswered", "unanswered_rate", "unscored_interviews", "verdicts", "unscored_rounds", "unscored_rate"),
            *("parse_failures", "parse_failure_rate", "failed", "ends", "stop_reasons", "failures"),
        ):
            record[name] = plain[name]
        record |= {name: plain[name] for name in ("failure_reasons", "free") if name in plain}
        record["items_needed"] = _items_needed(
            record["score"], len(np.unique(codes)) / max(1, len(np.unique(self.clusters())))
        )
        record["probe"] = self._static()
        return record

    def _codes(self) -> list[Codes]:
        return [self.codes_of(dataset, columns) for _, dataset, columns in self.parts]

    def _clusters(self) -> list[Codes]:
        catalogue = self.catalogue
        return [catalogue.clusters(catalogue.codes(dataset, columns.clusters)) for _, dataset, columns in self.parts]

    def _most_rounds(self) -> float:
        planned = [cell.settings("rounds") for cell, _, _ in self.parts]
        return float(max([1, *planned, *(int(columns.lengths.max(initial=0)) for _, _, columns in self.parts)]))

    # -- static figures ---------------------------------------------------------------------------------------------

    def _static(self) -> dict[str, Any] | None:
        if self.lent is None or not static_readings(self.lent, self.readings):
            return None
        record = self.lent.pooled(self)
        if self.dataset is not None:
            record["joined"] = self._joined_by_item(self.lent, record["accuracy"])
        return record

    def _joined_by_item(self, lent: StaticFigures, accuracy: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the scores of interviews about items answered correctly, and about all other items.

        An item asked under several seeds counts as correct if most answers were.
        """
        method = next((name for name in lent.methods if name in accuracy), None)
        if method is None or not self.parts:
            return None
        right, codes = lent.right(self, method)
        balance = dict.fromkeys(codes.tolist(), 0.0)
        for code, value in zip(codes.tolist(), right.tolist(), strict=True):
            balance[code] += value - 0.5
        interviewed, scores = self.codes(), self.column("overall")
        labels = self.labels(self.clusters())
        balances = np.array([balance.get(code, np.nan) for code in interviewed.tolist()], dtype=np.float64)
        return {
            "by": method,
            "n": len(np.unique(interviewed[~np.isnan(balances)])),
            "right": clustered_score(np.where(balances > 0, scores, np.nan), labels),
            "wrong": clustered_score(np.where(balances <= 0, scores, np.nan), labels),
        }


def pools_by_dataset(interview_pools: Sequence[InterviewPool]) -> list[tuple[str | None, list[InterviewPool]]]:
    """Return the pools of interviewed candidates by dataset, all datasets last."""
    groups: dict[str | None, list[InterviewPool]] = {}
    for pool in interview_pools:
        if pool.interviews:
            groups.setdefault(pool.dataset, []).append(pool)
    return sorted(groups.items(), key=lambda group: group[0] is None)


def concatenate_columns(columns: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(columns) if columns else np.empty(0)


def _conditions(reading: RunReading) -> Conditions | None:
    """Return the conditions of an interview: evaluator, interactor, rounds and prompts define the scale of scores."""
    cell, columns = reading.cell, reading.columns
    if not isinstance(columns, InterviewColumns) or not len(columns.numbers):
        return None
    asked_by = "a recording" if cell.repeats("interactor") else cell.label("interactor")
    pack = cell.manifest.get("pack") or {}
    values = {"evaluator": cell.evaluator, "interactor": asked_by, "rounds": cell.settings("rounds")}
    values["pack"] = f"{pack['name']} {pack['digest'][:6]}" if pack else None
    return tuple((name, str(value)) for name, value in values.items() if value is not None)


def _items_needed(score: Mapping[str, Any], size: float) -> dict[str, int] | None:
    """Return the items needed for intervals of these half widths, given the observed spread; None without spread.

    `size` is the number of items in a cluster, 1 without clusters.
    """
    if not score["se"]:
        return None
    low, high = SCORES
    level = (score["mean"] - low) / (high - low)
    spread = (score["se"] / (high - low)) ** 2 * (score["items"] - 1) / (level * (1 - level))
    needed = (items_for_bounded(width / (high - low), level, min(1.0, spread), LEVEL) for width in HALF_WIDTHS)
    return {f"{width:g}": math.ceil(size * count) for width, count in zip(HALF_WIDTHS, needed, strict=True)}


def _column(columns: InterviewColumns, name: str) -> Floats:
    if name == "right":
        return columns.right
    return columns.lengths.astype(np.float64) if name == "rounds" else columns.scores(name)
