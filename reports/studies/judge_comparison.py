"""Comparison of judges with people: correlations, differences, juries, confusions, annotators.

Plain data; the same rows and seed give the same bytes. Without ratings of people: means by system and turn, and the
number of unparsed judgments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

from viva.scoring.agreement import Rating, Scale, count_votes, fleiss_kappa, krippendorff_alpha
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
from .judge_votes import OVERALL, are_labels, human_label, judges_for, vote_table, votes_record
from .rating_sheet import MOST_LABELS, Sheet, SheetRow


@dataclass(frozen=True, slots=True)
class ComparisonOptions:
    """Options of the computation. `scale` None: chosen by the values."""

    seed: int = 7
    resamples: int = 1_000
    level: float = 0.95
    permutation: Permutation = "inputs"
    scale: Scale | None = None
    juries: tuple[Pooling, ...] = ()


def summarize_judgments(sheet: Sheet, judge: str, criterion: str) -> dict[str, Any]:
    """Return a judge's mean scores by system and turn, and how many could not be parsed."""
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
    """Return the mean score, clustered by group, with Student's interval if there are at least five groups."""
    scored = [(row.scores[key], row.group or f"line {row.line}") for row in rows if row.scores[key] is not None]
    record: dict[str, Any] = {
        "mean": None,
        "low": None,
        "high": None,
        "n": len(scored),
        "unparsed": len(rows) - len(scored),
    }
    numbers = [(score, group) for score, group in scored if isinstance(score, float)]
    mean = clustered_mean([score for score, _ in numbers], [group for _, group in numbers])
    if mean is not None:
        ends = mean.ends()
        record["mean"] = round_figure(mean.mean)
        record |= {} if ends is None else {"low": round_figure(ends.low), "high": round_figure(ends.high)}
    return record


_MAX_ANNOTATORS = 20  # with more, pairs are not listed
_PAIRED = ({"response1", "response2"}, {"answer_a", "answer_b"}, {"output_1", "output_2"})


def detect_scale(rows: Sequence[SheetRow], criterion: str) -> Scale:
    """Detect the scale of ratings: texts are nominal, a few whole numbers ordinal, other numbers interval.

    Whole numbers from 0 to 2 in rows with two answers are a choice between the answers, and so nominal.
    """
    values = {rating for row in rows for rating in row.human.get(criterion, ()) if rating is not None}
    if any(isinstance(value, str) for value in values):
        return "nominal"
    if len(values) > MOST_LABELS or not all(float(value).is_integer() for value in values):
        return "interval"
    texts = rows[0].texts.keys() if rows else set()
    return "nominal" if values <= {0.0, 1.0, 2.0} and any(pair <= texts for pair in _PAIRED) else "ordinal"


def judge_confusion(
    rows: Sequence[SheetRow], criterion: str, judge: str, key: tuple[str, str], scale: Scale, options: ComparisonOptions
) -> dict[str, Any] | None:
    """Return how a judge's labels agree with people's majority labels; None if either are no labels or of other kinds.

    `key` is that of the judge's scores in the rows; quadratic kappa is computed only for an ordinal `scale`.
    """
    people = [human_label(row, criterion) for row in rows]
    scores = [row.scores.get(key) for row in rows]
    if (
        not are_labels(people)
        or not are_labels(scores)
        or {type(label) for label in people if label is not None}
        != {type(label) for label in scores if label is not None}
    ):
        return None
    record = _confusion_record(people, scores, rows, None, options)
    record |= {"kappa_quadratic": None, "judge": judge}
    if scale == "ordinal":
        weighted = _confusion_record(people, scores, rows, "quadratic", options)
        record["kappa_quadratic"] = weighted["kappa"]
    record["tied"] = sum(label is None for label in people)
    record["unscored"] = sum(key in row.scores and label is None for row, label in zip(rows, scores, strict=True))
    return record


def incomparability_reason(rows: Sequence[SheetRow], criterion: str, key: tuple[str, str]) -> str:
    """Explain why a judge's scores and people's ratings allow neither a correlation nor a confusion."""
    people = [rating for row in rows for rating in row.human.get(criterion, ()) if rating is not None]
    scores = [score for row in rows if (score := row.scores.get(key)) is not None]
    if not people or not scores:
        return "no row has both a score and a rating"
    kinds = ["texts" if any(isinstance(value, str) for value in values) else "numbers" for values in (scores, people)]
    if kinds[0] != kinds[1]:
        return f"its scores are {kinds[0]} ({_examples(scores)}), but the ratings are {kinds[1]} ({_examples(people)})"
    if len(set(scores)) > MOST_LABELS or len(set(people)) > MOST_LABELS:
        return f"there are more than {MOST_LABELS} different texts, too many for labels"
    return "no row has both a score and a majority rating"


def _examples(values: Sequence[Rating]) -> str:
    return ", ".join(_format_label(label) for label in list(dict.fromkeys(values))[:2])


def _confusion_record(
    first: Sequence[Rating | None],
    second: Sequence[Rating | None],
    rows: Sequence[SheetRow],
    weights: Literal["quadratic"] | None,
    options: ComparisonOptions,
) -> dict[str, Any]:
    groups = [row.group or f"line {row.line}" for row in rows]
    confusion: Confusion = label_confusion(
        first,
        second,
        groups=groups,
        weights=weights,
        seed=options.seed,
        resamples=options.resamples,
        level=options.level,
    )
    kappa = {
        "value": round_figure(confusion.kappa),
        "low": round_figure(confusion.low),
        "high": round_figure(confusion.high),
    }
    return {
        "kappa": kappa,
        "agreement": round_figure(confusion.agreement),
        "n": confusion.n,
        "labels": [_format_label(label) for label in confusion.labels],
        "counts": confusion.counts,
    }


def _format_label(label: Rating) -> str:
    return f"{label:g}" if isinstance(label, float) else str(label)


def annotator_agreement(
    rows: Sequence[SheetRow], criterion: str, names: Sequence[str], scale: Scale, options: ComparisonOptions
) -> dict[str, Any]:
    """Return the agreement between annotators: Cohen's kappa by pair and its mean, Fleiss' kappa, alpha, votes."""
    ratings = [row.human[criterion] for row in rows]
    shared = [row for row in ratings if sum(rating is not None for rating in row) > 1]
    weights: Literal["quadratic"] | None = None
    pairs = []
    labels = scale != "interval"
    for first, second in combinations(range(len(names)), 2) if labels and len(names) <= _MAX_ANNOTATORS else ():
        left, right = [row[first] for row in ratings], [row[second] for row in ratings]
        record = _confusion_record(left, right, rows, weights, options)
        record |= {"first": names[first], "second": names[second], "kappa_quadratic": None}
        if scale == "ordinal":
            record["kappa_quadratic"] = _confusion_record(left, right, rows, "quadratic", options)["kappa"]
        pairs.append(record)
    kappas = [pair["kappa"]["value"] for pair in pairs if pair["kappa"]["value"] is not None]
    fleiss, votes = fleiss_kappa(ratings), count_votes(shared)
    alpha = krippendorff_alpha(ratings, scale)
    return {
        "kappa": round_figure(math.fsum(kappas) / len(kappas)) if kappas else None,
        "pairs": pairs,
        "fleiss": round_figure(fleiss.value) if labels else None,
        "fleiss_n": fleiss.n,
        "alpha": round_figure(alpha.value),
        "alpha_n": alpha.n,
        "unanimous": round_figure(votes.unanimous / votes.items) if votes.items else None,
        "decided": round_figure(votes.decided / votes.items) if votes.items else None,
    }


META_VERSION = 1


def meta_report(sheet: Sheet, options: ComparisonOptions) -> dict[str, Any]:
    """Return everything about the rows as plain data; docs/judges.md describes the fields."""
    criteria = list(dict.fromkeys(criterion for row in sheet.rows for criterion in row.human))
    report: dict[str, Any] = {
        "meta": META_VERSION,
        "source": sheet.source,
        "rows": len(sheet.rows),
        "groups": _count_distinct(row.group for row in sheet.rows),
        "systems": _count_distinct(row.system for row in sheet.rows),
        "fields": sheet.fields,
        "notes": list(sheet.notes),
        "one_judge": sheet.one_judge,
        "how": {
            "seed": options.seed,
            "resamples": options.resamples,
            "level": options.level,
            "intervals": "percentile bootstrap over groups (BOOT-INPUTS)",
            "permutation": f"PERM-{options.permutation.upper()}",
        },
        "criteria": [_criterion_record(sheet, criterion, options) for criterion in criteria],
        "judgments": [
            summarize_judgments(sheet, judge, name) for judge in sheet.judges for name in sheet.criteria_of(judge)
        ],
    }
    _adjust_p_values(report)
    return report


def _count_distinct(values: Any) -> int | None:
    distinct = {value for value in values if value is not None}
    return len(distinct) or None


# -- one criterion ----------------------------------------------------------------------------------------------------


def _criterion_record(sheet: Sheet, criterion: str, options: ComparisonOptions) -> dict[str, Any]:
    rows = [row for row in sheet.rows if any(rating is not None for rating in row.human.get(criterion, ()))]
    names = sheet.annotators.get(criterion, [])
    scale = options.scale or detect_scale(rows, criterion)
    judges = judges_for(sheet, criterion)
    record: dict[str, Any] = {"criterion": criterion, "scale": scale, "annotators": list(names), "n": len(rows)}
    record["agreement"] = annotator_agreement(rows, criterion, names, scale, options) if len(names) > 1 else None
    numeric = {judge: key for judge, key in judges.items() if _is_numeric(rows, criterion, key)}
    record["judges"] = [_judge_record(rows, criterion, judge, key, options) for judge, key in numeric.items()]
    record["differences"] = [
        entry
        for first, second in combinations(numeric, 2)
        if (entry := _difference_record(rows, criterion, first, second, numeric, options))
    ]
    record["confusions"] = [
        entry
        for judge, key in judges.items()
        if (entry := judge_confusion(rows, criterion, judge, key, scale, options)) is not None
    ]
    compared = {entry["judge"] for entry in (*record["judges"], *record["confusions"])}
    record["incomparable"] = {
        judge: incomparability_reason(rows, criterion, key) for judge, key in judges.items() if judge not in compared
    }
    record["aspects"] = [] if sheet.one_judge else _aspect_records(sheet, rows, criterion, numeric, options)
    several = len(numeric) > 1 and not sheet.one_judge
    record["juries"] = _jury_records(rows, criterion, numeric, options) if several else []
    table = None if sheet.one_judge else vote_table(rows, criterion, judges)
    record["votes"] = None if table is None else votes_record(table, options.seed, options.resamples, options.level)
    return record


def _aspect_records(
    sheet: Sheet,
    rows: Sequence[SheetRow],
    criterion: str,
    judges: Mapping[str, tuple[str, str]],
    options: ComparisonOptions,
) -> list[dict[str, Any]]:
    """Return each aspect of a judge's scores against people's only score; empty if people rated several criteria."""
    if criterion not in ("", *OVERALL) or any(row.human.keys() - {criterion} for row in sheet.rows):
        return []
    records = []
    for judge, (name, scored) in judges.items():
        aspects = sheet.criteria_of(name)
        if scored in OVERALL and len(aspects) > 1:
            records += [
                _judge_record(rows, criterion, judge, (name, aspect), options) | {"aspect": aspect}
                for aspect in aspects
                if _is_numeric(rows, criterion, (name, aspect))
            ]
    return records


def human_value(row: SheetRow, criterion: str) -> float | None:
    """Return the mean of the annotators' ratings that are numbers; None if there is none."""
    numbers = [rating for rating in row.human.get(criterion, ()) if isinstance(rating, float)]
    return math.fsum(numbers) / len(numbers) if numbers else None


def _is_numeric(rows: Sequence[SheetRow], criterion: str, key: tuple[str, str]) -> bool:
    return any(human_value(row, criterion) is not None and isinstance(row.scores.get(key), float) for row in rows)


def _paired_rows(
    rows: Sequence[SheetRow], criterion: str, keys: Sequence[tuple[str, str]]
) -> tuple[RatedRows, list[list[float]]]:
    """Return the rows that people and all of these judges have scored."""
    human, scores = [], [list[float]() for _ in keys]
    paired = []
    for row in rows:
        value, row_scores = human_value(row, criterion), [row.scores.get(key) for key in keys]
        if value is not None and all(isinstance(score, float) for score in row_scores):
            human.append(value)
            paired.append(row)
            for column, score in zip(scores, row_scores, strict=True):
                column.append(score)  # type: ignore[arg-type]
    groups = [row.group or f"line {row.line}" for row in paired] if any(row.group for row in paired) else None
    systems = [row.system or "" for row in paired] if any(row.system for row in paired) else None
    return RatedRows.from_labels(human, groups, systems), scores


def _judge_record(
    rows: Sequence[SheetRow], criterion: str, judge: str, key: tuple[str, str], options: ComparisonOptions
) -> dict[str, Any]:
    rated, [scores] = _paired_rows(rows, criterion, [key])
    figures = level_figures(rated, scores, seed=options.seed, resamples=options.resamples, level=options.level)
    levels: dict[str, Any] = {}
    for (level, name), figure in figures.items():
        levels.setdefault(level, {})[name] = _level_record(figure) | {"n": figure.n}
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
    options: ComparisonOptions,
) -> dict[str, Any] | None:
    rated, [first_scores, second_scores] = _paired_rows(rows, criterion, [judges[first], judges[second]])
    if len(first_scores) < 3:
        return None
    differences = compare_judges(
        rated,
        first_scores,
        second_scores,
        seed=options.seed,
        permutation=options.permutation,
        resamples=options.resamples,
        level=options.level,
    )
    levels: dict[str, Any] = {}
    for (level, name), difference in differences.items():
        levels.setdefault(level, {})[name] = _level_record(difference) | {
            "p": round_significant(difference.p),
            "p_corrected": None,
        }
    return {"first": first, "second": second, "n": len(first_scores), "levels": levels}


def _level_record(figure: Any) -> dict[str, Any]:
    return {name: round_figure(getattr(figure, name)) for name in ("value", "low", "high")}


def _adjust_p_values(report: dict[str, Any]) -> None:
    """Correct p-values (Holm) over all comparisons of judges with the same level and coefficient, across criteria."""
    tests: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for criterion in report["criteria"]:
        for pair in criterion["differences"]:
            for level, names in pair["levels"].items():
                for name, figure in names.items():
                    tests.setdefault((level, name), []).append(figure)
    for figures in tests.values():
        for figure, p in zip(figures, adjust_p_values([figure["p"] for figure in figures]), strict=True):
            figure["p_corrected"] = round_significant(p)


def _jury_records(
    rows: Sequence[SheetRow], criterion: str, judges: Mapping[str, tuple[str, str]], options: ComparisonOptions
) -> list[dict[str, Any]]:
    rated, columns = _paired_rows(rows, criterion, list(judges.values()))
    if len(rated.human) < 3:
        return []
    scores = dict(zip(judges, columns, strict=True))
    juries = []
    for pooling in options.juries:
        gains = jury_gains(rated, scores, pooling, seed=options.seed, resamples=options.resamples, level=options.level)
        levels: dict[str, Any] = {}
        for (level, name), figure in gains.items():
            gain = {
                "value": round_figure(figure.gain),
                "low": round_figure(figure.low),
                "high": round_figure(figure.high),
            }
            levels.setdefault(level, {})[name] = {
                "value": round_figure(figure.value),
                "best": figure.best,
                "gain": gain,
            }
        weights = (
            {name: round_figure(figure) for name, figure in fitted_weights(scores, rated).items()}
            if pooling == "fitted"
            else None
        )
        juries.append(
            {"how": pooling, "judges": list(judges), "n": len(rated.human), "weights": weights, "levels": levels}
        )
    return juries
