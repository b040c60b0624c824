"""Observations of one model, item by item, and what the witnesses say about them.

A witness is absent where its values were not measured, or where it has nothing to compare: no second set, no item that
it can use. Items of one cluster count as one unit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

from .context_gain import WITNESS as CONTEXT_GAIN
from .evidence import Evidence
from .exchangeability import exchangeability
from .guessing import guessing
from .option_order import option_order
from .peakedness import WITNESS as PEAKEDNESS
from .permutation import compare_sets

T = TypeVar("T")
Answers: TypeAlias = tuple[Mapping[str, float], Mapping[str, float]]  # accuracy by cluster, on both sets
ACCURACY_GAP, LOSS_GAP, MIN_K, INTERVIEW_GAP = "accuracy gap", "loss gap", "Min-K%++", "interview gap"
OPTION_ANSWERS = "option answers"
_STANDARDISED = ("exchangeability", "option order", OPTION_ANSWERS)  # witnesses that compare a set with itself
_GUESSES = ("masked", "guesses")
_DIGITS = 4  # of stored values: far below what any witness can tell apart


@dataclass(slots=True)
class SetResults:
    """Results on a set by item, in columns; None where an item has no value.

    Attributes:
        items: The items' ids.
        clusters: Each item's cluster, the item's own id if it has none.
        right: 1 for a correct answer, 0 for a wrong one.
        loss: The loss of the item's text, in nats per token.
        min_k_plus_plus: Min-K%++ of the text at k = 20.
        context_change: The mean log-likelihood per token within a context, minus that of the item alone, in nats.
        peak: The share of sampled answers near the greedy one.
        interview: The score of an interview on the item, from 0 to 1.
        masked, guesses: A masked choice, and the answer to the question for it.
    """

    items: list[str] = field(default_factory=list)
    clusters: list[str] = field(default_factory=list)
    right: list[float | None] = field(default_factory=list)
    loss: list[float | None] = field(default_factory=list)
    min_k_plus_plus: list[float | None] = field(default_factory=list)
    context_change: list[float | None] = field(default_factory=list)
    peak: list[float | None] = field(default_factory=list)
    interview: list[float | None] = field(default_factory=list)
    masked: list[str | None] = field(default_factory=list)
    guesses: list[str | None] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.items)

    def add(self, item: str, cluster: str, **values: Any) -> None:
        """Add an item with its values by column."""
        self.items.append(item)
        self.clusters.append(cluster)
        for name in COLUMNS:
            getattr(self, name).append(values.get(name))


COLUMNS = tuple(name for name in SetResults.__slots__ if name not in ("items", "clusters"))


@dataclass(slots=True)
class Observations:
    """Results of one model on a benchmark and on a second set, which is empty if there is none.

    Attributes:
        benchmark: Results on the benchmark.
        second: Results on the second set.
        shards: For each shard its log-likelihoods in nats, that of the published order first.
        options: For some items the log-likelihoods by order of the options, that of the published order first.
        letters: For some items, whether the key's letter was chosen, by order of the options, likewise.
    """

    benchmark: SetResults = field(default_factory=SetResults)
    second: SetResults = field(default_factory=SetResults)
    shards: list[list[float]] = field(default_factory=list)
    options: list[list[float]] = field(default_factory=list)
    letters: list[list[bool]] = field(default_factory=list)

    def to_record(self) -> dict[str, Any]:
        """Return plain data; values are rounded to four decimals, and columns without any value are left out."""
        record = {name: _columns(results) for name, results in (("benchmark", self.benchmark), ("second", self.second))}
        rows = {name: [_round(row) for row in getattr(self, name)] for name in ("shards", "options")}
        return {**record, **rows, "letters": [[int(right) for right in row] for row in self.letters]}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Observations:
        """Restore observations from `to_record`."""
        letters = [[bool(right) for right in row] for row in record["letters"]]
        own, other = _results(record["benchmark"]), _results(record["second"])
        return cls(own, other, record["shards"], record["options"], letters)


def _results(columns: Mapping[str, Any]) -> SetResults:
    count = len(columns["items"])
    return SetResults(**{name: columns.get(name, [None] * count) for name in SetResults.__slots__})


def _columns(results: SetResults) -> dict[str, Any]:
    columns = {name: getattr(results, name) for name in SetResults.__slots__}
    return {
        name: _round(values)
        for name, values in columns.items()
        if name in ("items", "clusters") or any(value is not None for value in values)
    }


def _round(values: Iterable[Any]) -> list[Any]:
    return [round(value, _DIGITS) if isinstance(value, float) else value for value in values]


def merge(parts: Sequence[Observations]) -> Observations:
    """Merge observations of one model from several runs on the same sets, by item.

    Numbers of one item are averaged; texts, shards and orders of options are those of the first run that has them.
    """
    own, other = ([getattr(part, name) for part in parts] for name in ("benchmark", "second"))
    merged = Observations(_merge_sets(own), _merge_sets(other))
    for part in parts:
        merged.shards = merged.shards or part.shards
        merged.options = merged.options or part.options
        merged.letters = merged.letters or part.letters
    return merged


def _merge_sets(parts: Sequence[SetResults]) -> SetResults:
    values: dict[str, dict[str, list[Any]]] = {}
    clusters: dict[str, str] = {}
    for part in parts:
        for index, item in enumerate(part.items):
            clusters.setdefault(item, part.clusters[index])
            columns = values.setdefault(item, {name: [] for name in COLUMNS})
            for name in COLUMNS:
                # A choice counts only with its answer.
                alone = name in _GUESSES and None in (part.masked[index], part.guesses[index])
                if not alone and (value := getattr(part, name)[index]) is not None:
                    columns[name].append(value)
    merged = SetResults()
    for item, columns in sorted(values.items()):
        merged.add(item, clusters[item], **{name: _merge_values(own) for name, own in columns.items() if own})
    return merged


def _merge_values(values: Sequence[Any]) -> Any:
    return values[0] if isinstance(values[0], str) else math.fsum(values) / len(values)


def weigh(observations: Observations) -> list[Evidence]:
    """Return what each witness says that needs no other model."""
    own, other = observations.benchmark, observations.second
    evidence = [
        _compare(ACCURACY_GAP, own, other, lambda results: results.right),
        _compare(LOSS_GAP, own, other, lambda results: _map(results.loss, lambda loss: -loss)),
        _compare(MIN_K, own, other, lambda results: results.min_k_plus_plus),
        _compare(CONTEXT_GAIN, own, other, lambda results: _map(results.context_change, lambda value: value < 0)),
        _compare(PEAKEDNESS, own, other, lambda results: results.peak),
    ]
    if observations.shards:
        published, others = _split(observations.shards)
        evidence.append(exchangeability(published, others))
    if observations.options:
        evidence.append(option_order(*_split(observations.options)))
    if observations.letters:
        letters = [[float(right) for right in row] for row in observations.letters]
        evidence.append(replace(option_order(*_split(letters)), witness=OPTION_ANSWERS))
    evidence.append(_guess(own, other))
    return [item for item in evidence if item is not None]


@dataclass(frozen=True, slots=True)
class Hearing:
    """Statements of all witnesses about one model.

    `evidence` needs no other model. `statistics` are for comparison with other models on the same sets, by witness,
    larger for contamination: the effect where two sets are compared, but for context gain the difference of mean
    changes, which says more than the share of falls. The interview gap is the accuracy minus the interview score on the
    same items. `answers` are for witnesses that need other models.
    """

    evidence: Sequence[Evidence]
    statistics: Mapping[str, float]
    answers: Answers = ({}, {})


def hear(observations: Observations) -> Hearing:
    """Hear all witnesses."""
    evidence = weigh(observations)
    answers = _accuracies(observations.benchmark), _accuracies(observations.second)
    return Hearing(evidence, _statistics(observations, evidence), answers)


def _accuracies(results: SetResults) -> dict[str, float]:
    right: dict[str, list[float]] = {}
    for cluster, value in zip(results.clusters, results.right, strict=True):
        if value is not None:
            right.setdefault(cluster, []).append(value)
    return {cluster: math.fsum(own) / len(own) for cluster, own in right.items()}


def _statistics(observations: Observations, evidence: Sequence[Evidence]) -> dict[str, float]:
    values = {
        item.witness: item.statistic if item.witness in _STANDARDISED else item.effect or 0.0 for item in evidence
    }
    own, other = observations.benchmark, observations.second
    if CONTEXT_GAIN in values:
        (changes, _), (reference, _) = _samples(own, other, lambda results: results.context_change)
        values[CONTEXT_GAIN] = math.fsum(reference) / len(reference) - math.fsum(changes) / len(changes)
    pairs = [
        (right, score)
        for right, score in zip(own.right, own.interview, strict=True)
        if right is not None and score is not None
    ]
    if pairs:
        values[INTERVIEW_GAP] = math.fsum(right - score for right, score in pairs) / len(pairs)
    return values


def _map(values: Sequence[float | None], function: Callable[[float], float]) -> list[float | None]:
    return [None if value is None else float(function(value)) for value in values]


def _compare(
    witness: str, own: SetResults, other: SetResults, column: Callable[[SetResults], Sequence[float | None]]
) -> Evidence | None:
    (values, clusters), (reference, reference_clusters) = _samples(own, other, column)
    if not values or not reference:
        return None
    return compare_sets(witness, values, reference, clusters, reference_clusters)


_Sample = tuple[list[T], list[str]]


def _samples(
    own: SetResults, other: SetResults, column: Callable[[SetResults], Sequence[T | None]]
) -> tuple[_Sample[T], _Sample[T]]:
    """Return the values of both sets with their clusters.

    If the sets have common clusters, such as items and their rephrased versions, what only one set has is left out.
    """
    pairs = [
        [
            (value, cluster)
            for value, cluster in zip(column(results), results.clusters, strict=True)
            if value is not None
        ]
        for results in (own, other)
    ]
    shared = {cluster for _, cluster in pairs[0]} & {cluster for _, cluster in pairs[1]}
    if shared:
        pairs = [[pair for pair in side if pair[1] in shared] for side in pairs]
    first, second = (([value for value, _ in side], [cluster for _, cluster in side]) for side in pairs)
    return first, second


def _split(rows: Sequence[Sequence[float]]) -> tuple[list[float], list[Sequence[float]]]:
    return [row[0] for row in rows], [row[1:] for row in rows]


def _guess(own: SetResults, other: SetResults) -> Evidence | None:
    (first, clusters), (second, reference_clusters) = _samples(own, other, _guesses)
    if not first or not second:
        return None
    answers, choices = zip(*first, strict=True)
    reference, reference_choices = zip(*second, strict=True)
    try:
        return guessing(answers, choices, reference, reference_choices, clusters, reference_clusters)
    except ValueError:  # no choice belongs to one item alone
        return None


def _guesses(results: SetResults) -> list[tuple[str, str] | None]:
    """Return each item's answer and masked choice."""
    return [
        None if answer is None or choice is None else (answer, choice)
        for answer, choice in zip(results.guesses, results.masked, strict=True)
    ]
