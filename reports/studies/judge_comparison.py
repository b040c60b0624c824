"""Comparison of judges with people: correlations, differences, juries, confusions, annotators.

Plain data; the same rows and seed give the same bytes. Without ratings of people: means by system and turn,
unparsed judgments counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

from viva.scoring.agreement import Rating, Scale, count_votes, fleiss_kappa, krippendorff_alpha, majority_ratings
from viva.scoring.clustered_means import clustered_mean
from viva.scoring.comparison import adjust_p_values
from viva.scoring.juries import Pooling, fitted_weights, jury_gains
from viva.scoring.meta_evaluation import (
    Confusion,
    Permutation,
    RatedRows,
    compare_judges,
    label_confusion,
    level_figures,
)

from ..figures import round_figure, round_significant
from .rating_sheet import MOST_LABELS, Sheet, SheetRow


@dataclass(frozen=True, slots=True)
class ComparisonOptions:
    """How figures are computed. ``scale`` None: by the values."""

    seed: int = 7
    resamples: int = 1_000
    level: float = 0.95
    permutation: Permutation = "inputs"
    scale: Scale | None = None
    juries: tuple[Pooling, ...] = ()


def summarize_judgments(sheet: Sheet, judge: str, criterion: str) -> dict[str, Any]:
    """A judge's scores by system and turn: their means, and how many could not be parsed."""
    by_system: dict[str, list[SheetRow]] = {}
    for row in sheet.rows:
        if (judge, criterion) in row.scores:
            by_system.setdefault(row.system or "", []).append(row)
    systems = []
    for system, rows in by_system.items():
        turns = sorted({row.turn for row in rows if row.turn is not None}, key=lambda turn: (len(turn), turn))
        parts = {turn: [row for row in rows if row.turn == turn] for turn in turns}
        systems.append(
            {
                "system": system or None,
                "overall": _mean_judgment(rows, (judge, criterion)),
                "turns": {turn: _mean_judgment(part, (judge, criterion)) for turn, part in parts.items()},
            }
        )
    return {"judge": judge, "criterion": criterion, "systems": systems}


def _mean_judgment(rows: Sequence[SheetRow], key: tuple[str, str]) -> dict[str, Any]:
    """The mean of what was scored with Student's interval, clustered by group, from five groups on.

    ``counts`` where scores are labels.
    """
    scored = [(row.scores[key], row.group or f"line {row.line}") for row in rows if row.scores[key] is not None]
    record: dict[str, Any] = {
        "mean": None,
        "low": None,
        "high": None,
        "n": len(scored),
        "unparsed": len(rows) - len(scored),
    }
    numbers = [(score, group) for score, group in scored if isinstance(score, float)]
    found = clustered_mean([score for score, _ in numbers], [group for _, group in numbers])
    if found is not None:
        ends = found.ends()
        record["mean"] = round_figure(found.mean)
        record |= {} if ends is None else {"low": round_figure(ends.low), "high": round_figure(ends.high)}
    return record


_MAX_ANNOTATORS = 20  # of more of them pairs are not looked at one by one
_PAIRED = ({"response1", "response2"}, {"answer_a", "answer_b"}, {"output_1", "output_2"})


def detect_scale(rows: Sequence[SheetRow], criterion: str) -> Scale:
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
    most = majority_ratings(row.human.get(criterion, ()))
    return most[0] if len(most) == 1 else None


def _are_labels(values: Sequence[Rating | None]) -> bool:
    known = {value for value in values if value is not None}
    return 0 < len(known) <= MOST_LABELS and all(isinstance(one, str) or one.is_integer() for one in known if one != "")


def judge_confusion(
    rows: Sequence[SheetRow], criterion: str, judge: str, key: tuple[str, str], scale: Scale, choices: ComparisonOptions
) -> dict[str, Any] | None:
    people = [human_label(row, criterion) for row in rows]
    said = [row.scores.get(key) for row in rows]
    if (
        not _are_labels(people)
        or not _are_labels(said)
        or {type(one) for one in people if one is not None} != {type(one) for one in said if one is not None}
    ):
        return None
    record = _confusion_record(people, said, rows, None, choices)
    record |= {"kappa_quadratic": None, "judge": judge}
    if scale == "ordinal":
        weighted = _confusion_record(people, said, rows, "quadratic", choices)
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
    return ", ".join(_format_label(one) for one in list(dict.fromkeys(values))[:2])


def _confusion_record(
    first: Sequence[Rating | None],
    second: Sequence[Rating | None],
    rows: Sequence[SheetRow],
    weights: Literal["quadratic"] | None,
    choices: ComparisonOptions,
) -> dict[str, Any]:
    groups = [row.group or f"line {row.line}" for row in rows]
    found: Confusion = label_confusion(
        first,
        second,
        groups=groups,
        weights=weights,
        seed=choices.seed,
        resamples=choices.resamples,
        level=choices.level,
    )
    kappa = {"value": round_figure(found.kappa), "low": round_figure(found.low), "high": round_figure(found.high)}
    return {
        "kappa": kappa,
        "agreement": round_figure(found.agreement),
        "n": found.n,
        "labels": [_format_label(label) for label in found.labels],
        "counts": found.counts,
    }


def _format_label(label: Rating) -> str:
    return f"{label:g}" if isinstance(label, float) else str(label)


def annotator_agreement(
    rows: Sequence[SheetRow], criterion: str, names: Sequence[str], scale: Scale, choices: ComparisonOptions
) -> dict[str, Any]:
    """Annotators among themselves: Cohen's kappa of each pair and their mean, Fleiss' kappa, alpha, votes."""
    ratings = [row.human[criterion] for row in rows]
    shared = [row for row in ratings if sum(rating is not None for rating in row) > 1]
    weights: Literal["quadratic"] | None = None
    pairs = []
    labels = scale != "interval"
    for one, other in combinations(range(len(names)), 2) if labels and len(names) <= _MAX_ANNOTATORS else ():
        left, right = [row[one] for row in ratings], [row[other] for row in ratings]
        record = _confusion_record(left, right, rows, weights, choices)
        record |= {"first": names[one], "second": names[other], "kappa_quadratic": None}
        if scale == "ordinal":
            record["kappa_quadratic"] = _confusion_record(left, right, rows, "quadratic", choices)["kappa"]
        pairs.append(record)
    known = [pair["kappa"]["value"] for pair in pairs if pair["kappa"]["value"] is not None]
    together, votes = fleiss_kappa(ratings), count_votes(shared)
    alpha = krippendorff_alpha(ratings, scale)
    return {
        "kappa": round_figure(math.fsum(known) / len(known)) if known else None,
        "pairs": pairs,
        "fleiss": round_figure(together.value) if labels else None,
        "fleiss_n": together.n,
        "alpha": round_figure(alpha.value),
        "alpha_n": alpha.n,
        "unanimous": round_figure(votes.unanimous / votes.items) if votes.items else None,
        "decided": round_figure(votes.decided / votes.items) if votes.items else None,
    }


META_VERSION = 1
_OVERALL = ("overall", "score")


def meta_report(sheet: Sheet, choices: ComparisonOptions) -> dict[str, Any]:
    """Everything that the rows say, as plain data; docs/judges.md names the fields."""
    criteria = list(dict.fromkeys(criterion for row in sheet.rows for criterion in row.human))
    report: dict[str, Any] = {
        "meta": META_VERSION,
        "source": sheet.source,
        "rows": len(sheet.rows),
        "groups": _whole_number(row.group for row in sheet.rows),
        "systems": _whole_number(row.system for row in sheet.rows),
        "fields": sheet.told,
        "notes": list(sheet.notes),
        "how": {
            "seed": choices.seed,
            "resamples": choices.resamples,
            "level": choices.level,
            "intervals": "percentile bootstrap over groups (BOOT-INPUTS)",
            "permutation": f"PERM-{choices.permutation.upper()}",
        },
        "criteria": [_criterion_record(sheet, criterion, choices) for criterion in criteria],
        "judgments": [
            summarize_judgments(sheet, judge, one) for judge in sheet.judges for one in sheet.criteria_of(judge)
        ],
    }
    _adjust_p_values(report)
    return report


def _whole_number(values: Any) -> int | None:
    known = {value for value in values if value is not None}
    return len(known) or None


# -- one criterion ----------------------------------------------------------------------------------------------------


def _criterion_record(sheet: Sheet, criterion: str, choices: ComparisonOptions) -> dict[str, Any]:
    rows = [row for row in sheet.rows if any(rating is not None for rating in row.human.get(criterion, ()))]
    names = sheet.annotators.get(criterion, [])
    scale = choices.scale or detect_scale(rows, criterion)
    judges = _judges_for(sheet, criterion)
    record: dict[str, Any] = {"criterion": criterion, "scale": scale, "annotators": list(names), "n": len(rows)}
    record["agreement"] = annotator_agreement(rows, criterion, names, scale, choices) if len(names) > 1 else None
    numeric = {judge: key for judge, key in judges.items() if _is_numeric(rows, criterion, key)}
    record["judges"] = [_judge_record(rows, criterion, judge, key, choices) for judge, key in numeric.items()]
    record["differences"] = [
        one
        for first, second in combinations(numeric, 2)
        if (one := _difference_record(rows, criterion, first, second, numeric, choices))
    ]
    record["confusions"] = [
        one
        for judge, key in judges.items()
        if (one := judge_confusion(rows, criterion, judge, key, scale, choices)) is not None
    ]
    told = {one["judge"] for one in (*record["judges"], *record["confusions"])}
    record["incomparable"] = {
        judge: why_incomparable(rows, criterion, key) for judge, key in judges.items() if judge not in told
    }
    record["juries"] = _jury_records(rows, criterion, numeric, choices) if len(numeric) > 1 else []
    return record


def _judges_for(sheet: Sheet, criterion: str) -> dict[str, tuple[str, str]]:
    """The judges that have scored a criterion, or everything at once, with the key of the score.

    A rating without a name is set beside a judge's overall score, or beside all that it has scored where it has none.
    """
    found: dict[str, tuple[str, str]] = {}
    for judge in sheet.judges:
        scored = sheet.criteria_of(judge)
        if criterion in scored:
            found[judge] = (judge, criterion)
        elif "" in scored:
            found[judge] = (judge, "")
        elif criterion == "":
            whole = [one for one in _OVERALL if one in scored][:1]
            found |= {judge if whole else f"{judge}.{one}": (judge, one) for one in whole or scored}
    return found


def human_value(row: SheetRow, criterion: str) -> float | None:
    """The mean of the annotators' ratings."""
    known = [rating for rating in row.human.get(criterion, ()) if isinstance(rating, float)]
    return math.fsum(known) / len(known) if known else None


def _is_numeric(rows: Sequence[SheetRow], criterion: str, key: tuple[str, str]) -> bool:
    return any(human_value(row, criterion) is not None and isinstance(row.scores.get(key), float) for row in rows)


def _paired_rows(
    rows: Sequence[SheetRow], criterion: str, keys: Sequence[tuple[str, str]]
) -> tuple[RatedRows, list[list[float]]]:
    """The rows that people and all of these judges have scored."""
    human, scores = [], [list[float]() for _ in keys]
    kept = []
    for row in rows:
        value, said = human_value(row, criterion), [row.scores.get(key) for key in keys]
        if value is not None and all(isinstance(one, float) for one in said):
            human.append(value)
            kept.append(row)
            for column, one in zip(scores, said, strict=True):
                column.append(one)  # type: ignore[arg-type]
    groups = [row.group or f"line {row.line}" for row in kept] if any(row.group for row in kept) else None
    systems = [row.system or "" for row in kept] if any(row.system for row in kept) else None
    return RatedRows.from_labels(human, groups, systems), scores


def _judge_record(
    rows: Sequence[SheetRow], criterion: str, judge: str, key: tuple[str, str], choices: ComparisonOptions
) -> dict[str, Any]:
    rated, [scores] = _paired_rows(rows, criterion, [key])
    found = level_figures(rated, scores, seed=choices.seed, resamples=choices.resamples, level=choices.level)
    levels: dict[str, Any] = {}
    for (level, name), one in found.items():
        levels.setdefault(level, {})[name] = _level_record(one) | {"n": one.n}
    mean = math.fsum(scores) / len(scores)
    variance = math.fsum((score - mean) ** 2 for score in scores) / (len(scores) - 1) if len(scores) > 1 else None
    unscored = sum(key in row.scores and row.scores[key] is None for row in rows)
    return {
        "judge": judge,
        "n": len(scores),
        "unscored": unscored,
        "variance": round_significant(variance),
        "levels": levels,
    }


def _difference_record(
    rows: Sequence[SheetRow],
    criterion: str,
    first: str,
    second: str,
    judges: Mapping[str, tuple[str, str]],
    choices: ComparisonOptions,
) -> dict[str, Any] | None:
    rated, [one, other] = _paired_rows(rows, criterion, [judges[first], judges[second]])
    if len(one) < 3:
        return None
    found = compare_judges(
        rated,
        one,
        other,
        seed=choices.seed,
        permutation=choices.permutation,
        resamples=choices.resamples,
        level=choices.level,
    )
    levels: dict[str, Any] = {}
    for (level, name), difference in found.items():
        levels.setdefault(level, {})[name] = _level_record(difference) | {
            "p": round_significant(difference.p),
            "p_corrected": None,
        }
    return {"first": first, "second": second, "n": len(one), "levels": levels}


def _level_record(one: Any) -> dict[str, Any]:
    return {name: round_figure(getattr(one, name)) for name in ("value", "low", "high")}


def _adjust_p_values(report: dict[str, Any]) -> None:
    """Holm over all comparisons of judges at one level by one coefficient, whatever the criterion."""
    tests: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for criterion in report["criteria"]:
        for one in criterion["differences"]:
            for level, names in one["levels"].items():
                for name, figure in names.items():
                    tests.setdefault((level, name), []).append(figure)
    for figures in tests.values():
        for figure, p in zip(figures, adjust_p_values([figure["p"] for figure in figures]), strict=True):
            figure["p_corrected"] = round_significant(p)


def _jury_records(
    rows: Sequence[SheetRow], criterion: str, judges: Mapping[str, tuple[str, str]], choices: ComparisonOptions
) -> list[dict[str, Any]]:
    rated, columns = _paired_rows(rows, criterion, list(judges.values()))
    if len(rated.human) < 3:
        return []
    scores = dict(zip(judges, columns, strict=True))
    found = []
    for how in choices.juries:
        gains = jury_gains(rated, scores, how, seed=choices.seed, resamples=choices.resamples, level=choices.level)
        levels: dict[str, Any] = {}
        for (level, name), one in gains.items():
            gain = {"value": round_figure(one.gain), "low": round_figure(one.low), "high": round_figure(one.high)}
            levels.setdefault(level, {})[name] = {"value": round_figure(one.value), "best": one.best, "gain": gain}
        weights = (
            {name: round_figure(one) for name, one in fitted_weights(scores, rated).items()}
            if how == "fitted"
            else None
        )
        found.append({"how": how, "judges": list(judges), "n": len(rated.human), "weights": weights, "levels": levels})
    return found
