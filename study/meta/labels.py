"""Labels of annotators and judges: confusions and agreement corrected for chance, as plain data.

What never belongs here: correlations (``figures``), formulas (``scoring``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any, Literal

from viva.reports.figures import rounded
from viva.scoring.agreement import Rating, Scale, fleiss, krippendorff, majority, voting
from viva.scoring.confusion import Confusion, confusion

from .choices import Choices
from .sheet import MOST_LABELS, SheetRow

_MOST_ANNOTATORS = 20  # of more of them pairs are not looked at one by one
_PAIRED = ({"response1", "response2"}, {"answer_a", "answer_b"}, {"output_1", "output_2"})


def scale_of(rows: Sequence[SheetRow], criterion: str) -> Scale:
    """Texts are names, few whole numbers a scale, other numbers an interval scale. Whole numbers from 0 to 2 beside two
    answers are which of the two is better.
    """
    values = {rating for row in rows for rating in row.human.get(criterion, ()) if rating is not None}
    if any(isinstance(value, str) for value in values):
        return "nominal"
    if len(values) > MOST_LABELS or not all(float(value).is_integer() for value in values):
        return "interval"
    texts = rows[0].texts.keys() if rows else set()
    return "nominal" if values <= {0.0, 1.0, 2.0} and any(pair <= texts for pair in _PAIRED) else "ordinal"


def human_label(row: SheetRow, criterion: str) -> Rating | None:
    """The label of most annotators; None where several tie."""
    most = majority(row.human.get(criterion, ()))
    return most[0] if len(most) == 1 else None


def _labels(values: Sequence[Rating | None]) -> bool:
    known = {value for value in values if value is not None}
    return 0 < len(known) <= MOST_LABELS and all(isinstance(one, str) or one.is_integer() for one in known if one != "")


def judge_confusion(
    rows: Sequence[SheetRow], criterion: str, judge: str, key: tuple[str, str], scale: Scale, choices: Choices
) -> dict[str, Any] | None:
    people = [human_label(row, criterion) for row in rows]
    said = [row.scores.get(key) for row in rows]
    if (
        not _labels(people)
        or not _labels(said)
        or {type(one) for one in people if one is not None} != {type(one) for one in said if one is not None}
    ):
        return None
    record = _confused(people, said, rows, None, choices)
    record |= {"kappa_quadratic": None, "judge": judge}
    if scale == "ordinal":
        weighted = _confused(people, said, rows, "quadratic", choices)
        record["kappa_quadratic"] = weighted["kappa"]
    record["tied"] = sum(one is None for one in people)
    record["unscored"] = sum(key in row.scores and one is None for row, one in zip(rows, said, strict=True))
    return record


def why_incomparable(rows: Sequence[SheetRow], criterion: str, key: tuple[str, str]) -> str:
    """Return why neither a correlation nor a confusion can be made of a judge's scores and people's ratings."""
    people = [rating for row in rows for rating in row.human.get(criterion, ()) if rating is not None]
    said = [score for row in rows if (score := row.scores.get(key)) is not None]
    if not people or not said:
        return "no row has both a score and a rating"
    kinds = ["texts" if any(isinstance(one, str) for one in values) else "numbers" for values in (said, people)]
    if kinds[0] != kinds[1]:
        return f"its scores are {kinds[0]} ({_examples(said)}), their ratings {kinds[1]} ({_examples(people)})"
    if len(set(said)) > MOST_LABELS or len(set(people)) > MOST_LABELS:
        return f"there are more than {MOST_LABELS} different texts, too many for labels"
    return "no row has both a score and a rating that most people gave"


def _examples(values: Sequence[Rating]) -> str:
    return ", ".join(_shown(one) for one in list(dict.fromkeys(values))[:2])


def _confused(
    first: Sequence[Rating | None],
    second: Sequence[Rating | None],
    rows: Sequence[SheetRow],
    weights: Literal["quadratic"] | None,
    choices: Choices,
) -> dict[str, Any]:
    groups = [row.group or f"line {row.line}" for row in rows]
    found: Confusion = confusion(
        first,
        second,
        groups=groups,
        weights=weights,
        seed=choices.seed,
        resamples=choices.resamples,
        level=choices.level,
    )
    kappa = {"value": rounded(found.kappa), "low": rounded(found.low), "high": rounded(found.high)}
    return {
        "kappa": kappa,
        "agreement": rounded(found.agreement),
        "n": found.n,
        "labels": [_shown(label) for label in found.labels],
        "counts": found.counts,
    }


def _shown(label: Rating) -> str:
    return f"{label:g}" if isinstance(label, float) else str(label)


def annotator_agreement(
    rows: Sequence[SheetRow], criterion: str, names: Sequence[str], scale: Scale, choices: Choices
) -> dict[str, Any]:
    """Annotators among themselves: Cohen's kappa of each pair and their mean, Fleiss' kappa, alpha, votes."""
    ratings = [row.human[criterion] for row in rows]
    shared = [row for row in ratings if sum(rating is not None for rating in row) > 1]
    weights: Literal["quadratic"] | None = None
    pairs = []
    labels = scale != "interval"
    for one, other in combinations(range(len(names)), 2) if labels and len(names) <= _MOST_ANNOTATORS else ():
        left, right = [row[one] for row in ratings], [row[other] for row in ratings]
        record = _confused(left, right, rows, weights, choices)
        record |= {"first": names[one], "second": names[other], "kappa_quadratic": None}
        if scale == "ordinal":
            record["kappa_quadratic"] = _confused(left, right, rows, "quadratic", choices)["kappa"]
        pairs.append(record)
    known = [pair["kappa"]["value"] for pair in pairs if pair["kappa"]["value"] is not None]
    together, votes = fleiss(ratings), voting(shared)
    alpha = krippendorff(ratings, scale)
    return {
        "kappa": rounded(math.fsum(known) / len(known)) if known else None,
        "pairs": pairs,
        "fleiss": rounded(together.value) if labels else None,
        "fleiss_n": together.n,
        "alpha": rounded(alpha.value),
        "alpha_n": alpha.n,
        "unanimous": rounded(votes.unanimous / votes.items) if votes.items else None,
        "decided": rounded(votes.decided / votes.items) if votes.items else None,
    }
