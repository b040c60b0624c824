"""One candidate's cells on one dataset, or on all, taken together: over seeds and evaluators, errors clustered by item.

An item that several seeds drew, or several evaluators judged, is one cluster: its scores are not independent. *All
datasets* pools observations as they are; where datasets have as many items each, that is the mean of the datasets, as
KIEval's Table 2 has it.
What never belongs here: comparing candidates, and formulas.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viva.scenarios.kieval.interviews import InterviewAggregate
from viva.scenarios.kieval.score import ASPECTS, Scorer
from viva.scenarios.probes.report import ACCURACIES
from viva.scoring.contamination import DIRECTIONS, auc, loss_gap, tpr_at_fpr
from viva.scoring.planning import items_for_bounded
from viva.scoring.stream import Mean

from .cells import Filled
from .figures import (
    LEVEL,
    NOTHING,
    SCORES,
    Codes,
    Floats,
    clustered_rate,
    clustered_score,
    estimate_record,
    mean_record,
    rounded,
)
from .names import Catalogue
from .recall import TO_BE_READ, Recall, averaged_scores
from .rounds import by_round
from .sequences import with_sequence
from .sources import Cell
from .talks import Talks

_LOW_FALSE_POSITIVES = 0.05
HALF_WIDTHS = (1.0, 2.0, 5.0)  # points of the score


@dataclass(slots=True)
class Pool:
    """One candidate's cells; ``dataset`` None stands for all datasets."""

    candidate: str
    dataset: str | None
    cells: list[Filled]
    catalogue: Catalogue

    @property
    def parts(self) -> list[tuple[Cell, str, Talks]]:
        """The interviews, each with its cell and dataset."""
        return [(one.cell, one.cell.dataset, one.talks) for one in self.cells if one.talks is not None]

    @property
    def talks(self) -> list[tuple[str, Talks]]:
        """The interviews, each with its dataset."""
        return [(one.cell.dataset, one.talks) for one in self.cells if one.talks is not None]

    @property
    def recalls(self) -> list[tuple[str, Recall]]:
        """The probes, each with its dataset."""
        return [(one.cell.dataset, one.recall) for one in self.cells if one.recall is not None]

    def codes(self) -> Codes:
        """The item of each interview, in the order of ``column``; numbers of the catalogue."""
        return joined(self._codes()).astype(np.int64)

    def _codes(self) -> list[Codes]:
        return [self.catalogue.codes(dataset, talks.items) for dataset, talks in self.talks]

    def _most_rounds(self) -> float:
        planned = [cell.settings("rounds") for cell, _, _ in self.parts]
        return float(max([1, *planned, *(int(talks.lengths.max(initial=0)) for _, talks in self.talks)]))

    def column(self, name: str) -> Floats:
        """``right``, ``rounds`` or an aspect's scores, of all interviews."""
        return joined([_column(talks, name) for _, talks in self.talks])

    def variant(self, decay: bool, early_stop: bool) -> dict[str, Any]:
        """The overall score with other switches, empty where some talks were not recorded for it."""
        columns = [talks.variant(decay, early_stop) for _, talks in self.talks]
        known = [column for column in columns if column is not None]
        if len(known) < len(columns):
            return dict(NOTHING)
        return clustered_score(joined(known), self.catalogue.named(self.codes()))

    def record(self, scorer: Scorer) -> dict[str, Any]:
        """The pooled figures as the report shows them."""
        merged = InterviewAggregate(scorer)
        for _, talks in self.talks:
            merged.merge(talks.aggregate)
        plain, codes = merged.to_dict(), self.codes()
        labels = self.catalogue.named(codes)
        told: dict[str, Any] = {
            "scenario": "kieval" if self.talks else "probe",
            "candidate": self.candidate,
            "dataset": self.dataset,
            "datasets": list(dict.fromkeys(one.cell.dataset for one in self.cells if one.result is not None)),
            "seeds": sorted({one.cell.seed for one in self.cells if one.result is not None}),
            "evaluators": sorted({one.cell.evaluator for one in self.cells if one.talks and one.cell.evaluator}),
            "n_items": len(np.unique(codes)),
            "n_observations": len(codes),
            "accuracy": clustered_rate(self.column("right"), labels),
            "score": with_sequence(
                clustered_score(self.column("overall"), labels), [cell for cell, _, _ in self.parts], scorer
            ),
            "aspects": {name: clustered_score(self.column(name), labels) for name in ASPECTS[:-1]},
            "rounds": clustered_score(self.column("rounds"), labels, (0.0, self._most_rounds())),
            "by_round": by_round([talks for _, talks in self.talks], self._codes(), scorer),
        }
        for name in (
            "unanswered",
            "unanswered_rate",
            "unscored_interviews",
            "verdicts",
            "unscored_rounds",
            "unscored_rate",
        ):
            told[name] = plain[name]
        for name in ("parse_failures", "parse_failure_rate", "failed", "ends", "stop_reasons", "failures"):
            told[name] = plain[name]
        told |= {name: plain[name] for name in ("failure_reasons",) if name in plain}
        told["items_needed"] = _items_needed(told["score"])
        told["probe"] = self._probed() if self.recalls else None
        return told

    # -- probes -----------------------------------------------------------------------------------------------------

    def _probed(self) -> dict[str, Any]:
        told: dict[str, Any] = {"accuracy": {}, "unanswered": {}}
        for method in ACCURACIES:
            right, codes = self._right(method)
            if len(right):
                silent = sum(recall.unanswered.get(method, 0) for _, recall in self.recalls)
                if method in TO_BE_READ:
                    told["unanswered"][method] = {
                        "unanswered": silent,
                        "unanswered_rate": rounded(silent / len(right)),
                    }
                told["accuracy"][method] = clustered_rate(right, self.catalogue.named(codes))
        told |= {"loss": None, "loss_against": None, "loss_gap": None, "detectors": None}
        if self.dataset is not None:
            told |= _signals(self.cells)
            told["joined"] = self._joined_by_item(told["accuracy"])
        return told

    def _right(self, method: str) -> tuple[Floats, Codes]:
        found = [(dataset, recall.right[method]) for dataset, recall in self.recalls if method in recall.right]
        codes = [
            self.catalogue.codes(dataset, np.fromiter(right, dtype=np.int64, count=len(right)))
            for dataset, right in found
        ]
        values = [np.fromiter(right.values(), dtype=np.float64, count=len(right)) for _, right in found]
        return joined(values), joined(codes).astype(np.int64)

    def _joined_by_item(self, accuracy: Mapping[str, Any]) -> dict[str, Any] | None:
        """The score of interviews about items that the probe answered rightly, and about the others.

        An item that several seeds probed counts as right if it was answered so more often than not.
        """
        method = next((name for name in ACCURACIES if name in accuracy), None)
        if method is None or not self.talks:
            return None
        right, codes = self._right(method)
        share = dict.fromkeys(codes.tolist(), 0.0)
        for code, value in zip(codes.tolist(), right.tolist(), strict=True):
            share[code] += value - 0.5
        met, scores = self.codes(), self.column("overall")
        labels = self.catalogue.named(met)
        probed = np.array([share.get(code, np.nan) for code in met.tolist()], dtype=np.float64)
        return {
            "by": method,
            "n": len(np.unique(met[~np.isnan(probed)])),
            "right": clustered_score(np.where(probed > 0, scores, np.nan), labels),
            "wrong": clustered_score(np.where(probed <= 0, scores, np.nan), labels),
        }


def pools(filled: Sequence[Filled], catalogue: Catalogue) -> Iterator[Pool]:
    """A pool for each candidate and dataset, and of all datasets where there are several; in the cells' order."""
    datasets: dict[str, list[str]] = {}
    groups: dict[tuple[str, str], list[Filled]] = {}
    for one in filled:
        names = datasets.setdefault(one.cell.candidate, [])
        if one.cell.dataset not in names:
            names.append(one.cell.dataset)
        groups.setdefault((one.cell.candidate, one.cell.dataset), []).append(one)
    several = len({one.cell.dataset for one in filled}) > 1
    for candidate, names in datasets.items():
        for dataset in names:
            yield Pool(candidate, dataset, groups[candidate, dataset], catalogue)
        if several:
            everything = [one for dataset in names for one in groups[candidate, dataset]]
            yield Pool(candidate, None, everything, catalogue)


def _signals(cells: Sequence[Filled]) -> dict[str, Any]:
    """Losses and detectors over seeds; where one cell alone has them they are those of its own report."""
    read = [one for one in cells if one.recall is not None and one.recall.signals and one.result is not None]
    recalls = [one.recall for one in read if one.recall is not None]
    names = ("loss", "loss_against", "loss_gap", "detectors")
    if len(read) == 1 and read[0].result is not None:
        return {name: read[0].result.get(name) for name in names}
    scores = averaged_scores(recalls)
    if not scores:
        return dict.fromkeys(names)
    losses = {second: Mean() for second in (False, True)}
    for (second, _), one in scores.items():
        losses[second].add(DIRECTIONS["loss"] * one["loss"])
    told: dict[str, Any] = dict.fromkeys(names)
    for name, second in (("loss", False), ("loss_against", True)):
        if losses[second].n:
            told[name] = mean_record(losses[second])
    second = recalls[0].members_are_second
    if losses[False].n > 1 and losses[True].n > 1 and all(one.members_are_second == second for one in recalls):
        told["loss_gap"] = estimate_record(loss_gap(losses[not second], losses[second]))
        member = [place[0] == second for place in scores]
        told["detectors"] = {}
        for name in next(iter(scores.values())):
            values = [one[name] for one in scores.values()]
            found = estimate_record(auc(values, member))
            found["tpr_at_5_fpr"] = rounded(tpr_at_fpr(values, member, _LOW_FALSE_POSITIVES))
            told["detectors"][name] = found
    return told


def _items_needed(score: Mapping[str, Any]) -> dict[str, int] | None:
    """Items for intervals of these half widths, if items go on to spread as they do; None where no spread is seen."""
    if not score["se"]:
        return None
    low, high = SCORES
    share = (score["mean"] - low) / (high - low)
    spread = (score["se"] / (high - low)) ** 2 * (score["items"] - 1) / (share * (1 - share))
    return {
        f"{width:g}": items_for_bounded(width / (high - low), share, min(1.0, spread), LEVEL) for width in HALF_WIDTHS
    }


def _column(talks: Talks, name: str) -> Floats:
    if name == "right":
        return talks.right
    return talks.lengths.astype(np.float64) if name == "rounds" else talks.scores(name)


def joined(columns: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Columns of several cells, one after another."""
    return np.concatenate(columns) if columns else np.empty(0)
