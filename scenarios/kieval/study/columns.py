"""The interviews of a cell, read once: its aggregate, and columns of numbers by interview.

An interview takes about a hundred bytes here, so that a hundred thousand fit; nothing of its text is kept.
What never belongs here: statistics over several cells.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from viva.engine.folder import RunFolder
from viva.engine.history import History
from viva.reports.figures import Codes, Floats, clustered_score, rounded, score_ends

from ...models import label_of
from ...study.items import ItemNumbers
from ..interviews import InterviewAggregate, remembering
from ..report import KievalAggregate
from ..score import ASPECTS, Interview, Scorer

POINTS = 200  # of a running mean, at most
# The ablation of KIEval's appendix D: decaying weights, early stop.
SWITCHES = ((True, True), (False, True), (True, False), (False, False))
_NAN = float("nan")
_NO_CHOICES = 2  # in place of whether the first answer is right


class InterviewColumns:
    """One candidate's interviews of one run, in the order of their numbers.

    Columns have a row for each finished interview; a score is nan where there is none. ``verdicts`` holds the overall
    scores of all rounds that count, one interview after another, 0 where a round is unscored; ``lengths`` how many of
    them belong to each.
    """

    def __init__(self, aggregate: InterviewAggregate, items: ItemNumbers, recorded_with_early_stop: bool) -> None:
        self.aggregate, self._items = aggregate, items
        self._scorer = aggregate.scorer
        self._numbers, self._item, self._cluster = array("q"), array("i"), array("i")
        self._scores = [array("d") for _ in ASPECTS]
        self._right, self._lengths, self._verdicts = bytearray(), array("i"), bytearray()
        self._variants = {
            (decay, early_stop): (remembering(Scorer(self._scorer.name, decay, early_stop)), array("d"))
            for decay, early_stop in SWITCHES
            # An interview that ended at its flag has no rounds after it: it cannot be scored as if it had gone on.
            if (early_stop or not recorded_with_early_stop)
            and (decay, early_stop) != (self._scorer.decay, self._scorer.early_stop)
        }

    def add(self, number: int, interview: Interview) -> None:
        """The next finished interview."""
        scores = self.aggregate.add(interview)
        self._numbers.append(number)
        self._item.append(self._items.number(interview.item))
        self._cluster.append(self._items.cluster(interview.item, interview.cluster))
        for column, score in zip(self._scores, scores, strict=True):
            column.append(_NAN if score is None else score)
        self._right.append(_NO_CHOICES if interview.free else interview.right)
        held = self._scorer.rounds(interview)
        self._lengths.append(len(held))
        self._verdicts.extend([(one.scores[-1] or 0) if one.scores is not None else 0 for one in held])
        for scorer, column in self._variants.values():
            score = scorer.overall(interview)
            column.append(_NAN if score is None else score)

    # -- columns ----------------------------------------------------------------------------------------------------

    @property
    def numbers(self) -> Codes:
        """The conversations' numbers, ascending."""
        return np.frombuffer(self._numbers, dtype=np.int64)

    @property
    def items(self) -> Codes:
        """Each interview's item, as ``ItemNumbers`` has them."""
        return np.frombuffer(self._item, dtype=np.intc).astype(np.int64)

    @property
    def clusters(self) -> Codes:
        """Each interview's cluster, numbered as items are: its item, where that belongs to no cluster."""
        return np.frombuffer(self._cluster, dtype=np.intc).astype(np.int64)

    @property
    def right(self) -> Floats:
        """1 where the first answer is right, else 0; nan where the question has no choices."""
        found = np.frombuffer(self._right, dtype=np.uint8).astype(np.float64)
        found[found == _NO_CHOICES] = _NAN
        return found

    @property
    def lengths(self) -> Codes:
        """Rounds that count."""
        return np.frombuffer(self._lengths, dtype=np.intc).astype(np.int64)

    @property
    def verdicts(self) -> Codes:
        """Overall scores of the rounds."""
        return np.frombuffer(self._verdicts, dtype=np.uint8).astype(np.int64)

    def scores(self, aspect: str = "overall") -> Floats:
        """The scores of one aspect, 0–100."""
        return np.frombuffer(self._scores[ASPECTS.index(aspect)], dtype=np.float64)

    def variant(self, decay: bool, early_stop: bool) -> Floats | None:
        """The overall scores with other switches; None where the interviews were not recorded for it."""
        if (decay, early_stop) == (self._scorer.decay, self._scorer.early_stop):
            return self.scores()
        found = self._variants.get((decay, early_stop))
        return None if found is None else np.frombuffer(found[1], dtype=np.float64)

    def rounds(self) -> Codes:
        """The number of its round, from 0, for each of ``verdicts``."""
        lengths = self.lengths
        return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)

    # -- what a cell tells ------------------------------------------------------------------------------------------

    def running(self) -> dict[str, list[Any]]:
        """The mean of the first n scored interviews with its 95% interval, at no more than ``POINTS`` of the n."""
        scores = self.scores()
        known = ~np.isnan(scores)
        scores, clusters = scores[known], self.clusters[known]
        if not len(scores):
            return {"n": [], "mean": [], "low": [], "high": []}
        at = np.unique(np.linspace(1, len(scores), min(POINTS, len(scores))).round().astype(np.int64))
        if len(np.unique(clusters)) < len(scores):
            return _clustered_course(scores, clusters, at)
        # Measured from the overall mean, so that squares of small spreads keep their digits.
        centre = float(scores.mean())
        sums, squares = np.cumsum(scores - centre)[at - 1], np.cumsum((scores - centre) ** 2)[at - 1]
        errors = np.full(len(at), np.nan)
        several = at > 1
        n = at[several]
        spread = np.maximum(0.0, squares[several] - sums[several] ** 2 / n) / (n - 1)
        errors[several] = np.sqrt(spread / n)
        means = centre + sums / at
        low, high = score_ends(means, errors, at)
        record: dict[str, list[Any]] = {"n": at.tolist()}
        for name, values in (("mean", means), ("low", low), ("high", high)):
            record[name] = [None if np.isnan(value) else rounded(float(value)) for value in values]
        return record

    def examples(self) -> list[int]:
        """The numbers of the interviews with the lowest, the median and the highest score; each once."""
        scores = self.scores()
        scored = np.flatnonzero(~np.isnan(scores))
        if not len(scored):
            return []
        ordered = scored[np.lexsort((self.numbers[scored], scores[scored]))]
        found = [ordered[0], ordered[(len(ordered) - 1) // 2], ordered[-1]]
        return list(dict.fromkeys(int(self.numbers[index]) for index in found))


def _clustered_course(scores: Floats, clusters: Codes, at: Codes) -> dict[str, list[Any]]:
    """The running mean of scores that come in clusters, at the numbers ``at``."""
    record: dict[str, list[Any]] = {"n": at.tolist(), "mean": [], "low": [], "high": []}
    for n in at.tolist():
        told = clustered_score(scores[:n], [str(code) for code in clusters[:n].tolist()])
        for name in ("mean", "low", "high"):
            record[name].append(told[name])
    return record


@dataclass(slots=True)
class ReadInterviews:
    """A run of interviews read once: the scenario's own aggregate, each candidate's columns, and the names of damaged
    records, which are in neither.
    """

    aggregate: KievalAggregate
    columns: dict[str, InterviewColumns]
    damaged: list[str]


def read_interviews(run: RunFolder, scorer: Scorer, items: ItemNumbers, first: int | None = None) -> ReadInterviews:
    """All ended interviews of a run, or the ``first`` of its order alone (where a stop rule has ended it).

    :raises JournalError: the journal is missing or damaged.
    """
    aggregate = KievalAggregate(scorer, run.manifest)
    stopping = bool(run.manifest["settings"]["early_stop"])
    columns = {label: InterviewColumns(one, items, stopping) for label, one in aggregate.candidates.items()}
    labels = list(columns)
    with History(run.journal) as history:
        for ended in history.ended():
            if first is not None and ended.number >= first:
                break
            if ended.failed:
                columns[label_of(ended.key, labels)].aggregate.add_failure(ended.result)
            else:
                interview = Interview.from_record(ended.result)
                columns[interview.candidate].add(ended.number, interview)
        return ReadInterviews(aggregate, columns, list(history.damage))


def keys_of(run: RunFolder, numbers: Iterable[int]) -> list[str]:
    """The keys of conversations, for ``viva show --conversation``."""
    with History(run.journal) as history:
        return [started[0] for number in numbers if (started := history.started(number)) is not None]
