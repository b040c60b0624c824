"""The figures of a meta-evaluation: how judges follow people, how they compare, how people agree with each other.

Plain data; the same rows and seed give the same bytes. What never belongs here: files, tables, formulas (``scoring``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from viva.reports.figures import rounded, significant
from viva.scoring.comparison import corrected
from viva.scoring.juries import fitted_weights, jury_gains
from viva.scoring.levels import RatedRows, compare_judges, level_figures

from .choices import Choices
from .judgments import judgments_of
from .labels import annotator_agreement, judge_confusion, scale_of, why_incomparable
from .sheet import Sheet, SheetRow

VERSION = 1
_OVERALL = ("overall", "score")


def meta_report(sheet: Sheet, choices: Choices) -> dict[str, Any]:
    """Everything that the rows say, as plain data; docs/judges.md names the fields."""
    criteria = list(dict.fromkeys(criterion for row in sheet.rows for criterion in row.human))
    report: dict[str, Any] = {
        "meta": VERSION,
        "source": sheet.source,
        "rows": len(sheet.rows),
        "groups": _count(row.group for row in sheet.rows),
        "systems": _count(row.system for row in sheet.rows),
        "fields": sheet.told,
        "notes": list(sheet.notes),
        "how": {
            "seed": choices.seed,
            "resamples": choices.resamples,
            "level": choices.level,
            "intervals": "percentile bootstrap over groups (BOOT-INPUTS)",
            "permutation": f"PERM-{choices.permutation.upper()}",
        },
        "criteria": [_criterion(sheet, criterion, choices) for criterion in criteria],
        "judgments": [judgments_of(sheet, judge, one) for judge in sheet.judges for one in sheet.criteria_of(judge)],
    }
    _correct(report)
    return report


def _count(values: Any) -> int | None:
    known = {value for value in values if value is not None}
    return len(known) or None


# -- one criterion ----------------------------------------------------------------------------------------------------


def _criterion(sheet: Sheet, criterion: str, choices: Choices) -> dict[str, Any]:
    rows = [row for row in sheet.rows if any(rating is not None for rating in row.human.get(criterion, ()))]
    names = sheet.annotators.get(criterion, [])
    scale = choices.scale or scale_of(rows, criterion)
    judges = _judges_for(sheet, criterion)
    record: dict[str, Any] = {"criterion": criterion, "scale": scale, "annotators": list(names), "n": len(rows)}
    record["agreement"] = annotator_agreement(rows, criterion, names, scale, choices) if len(names) > 1 else None
    numeric = {judge: key for judge, key in judges.items() if _numeric(rows, criterion, key)}
    record["judges"] = [_judge(rows, criterion, judge, key, choices) for judge, key in numeric.items()]
    record["differences"] = [
        one
        for first, second in combinations(numeric, 2)
        if (one := _difference(rows, criterion, first, second, numeric, choices))
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
    record["juries"] = _juries(rows, criterion, numeric, choices) if len(numeric) > 1 else []
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


def _numeric(rows: Sequence[SheetRow], criterion: str, key: tuple[str, str]) -> bool:
    return any(human_value(row, criterion) is not None and isinstance(row.scores.get(key), float) for row in rows)


def _paired(
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
    return RatedRows.of(human, groups, systems), scores


def _judge(
    rows: Sequence[SheetRow], criterion: str, judge: str, key: tuple[str, str], choices: Choices
) -> dict[str, Any]:
    rated, [scores] = _paired(rows, criterion, [key])
    found = level_figures(rated, scores, seed=choices.seed, resamples=choices.resamples, level=choices.level)
    levels: dict[str, Any] = {}
    for (level, name), one in found.items():
        levels.setdefault(level, {})[name] = _figure(one) | {"n": one.n}
    mean = math.fsum(scores) / len(scores)
    variance = math.fsum((score - mean) ** 2 for score in scores) / (len(scores) - 1) if len(scores) > 1 else None
    unscored = sum(key in row.scores and row.scores[key] is None for row in rows)
    return {"judge": judge, "n": len(scores), "unscored": unscored, "variance": significant(variance), "levels": levels}


def _difference(
    rows: Sequence[SheetRow],
    criterion: str,
    first: str,
    second: str,
    judges: Mapping[str, tuple[str, str]],
    choices: Choices,
) -> dict[str, Any] | None:
    rated, [one, other] = _paired(rows, criterion, [judges[first], judges[second]])
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
        levels.setdefault(level, {})[name] = _figure(difference) | {"p": significant(difference.p), "p_corrected": None}
    return {"first": first, "second": second, "n": len(one), "levels": levels}


def _figure(one: Any) -> dict[str, Any]:
    return {name: rounded(getattr(one, name)) for name in ("value", "low", "high")}


def _correct(report: dict[str, Any]) -> None:
    """Holm over all comparisons of judges at one level by one coefficient, whatever the criterion."""
    tests: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for criterion in report["criteria"]:
        for one in criterion["differences"]:
            for level, names in one["levels"].items():
                for name, figure in names.items():
                    tests.setdefault((level, name), []).append(figure)
    for figures in tests.values():
        for figure, p in zip(figures, corrected([figure["p"] for figure in figures]), strict=True):
            figure["p_corrected"] = significant(p)


def _juries(
    rows: Sequence[SheetRow], criterion: str, judges: Mapping[str, tuple[str, str]], choices: Choices
) -> list[dict[str, Any]]:
    rated, columns = _paired(rows, criterion, list(judges.values()))
    if len(rated.human) < 3:
        return []
    scores = dict(zip(judges, columns, strict=True))
    found = []
    for how in choices.juries:
        gains = jury_gains(rated, scores, how, seed=choices.seed, resamples=choices.resamples, level=choices.level)
        levels: dict[str, Any] = {}
        for (level, name), one in gains.items():
            gain = {"value": rounded(one.gain), "low": rounded(one.low), "high": rounded(one.high)}
            levels.setdefault(level, {})[name] = {"value": rounded(one.value), "best": one.best, "gain": gain}
        weights = (
            {name: rounded(one) for name, one in fitted_weights(scores, rated).items()} if how == "fitted" else None
        )
        found.append({"how": how, "judges": list(judges), "n": len(rated.human), "weights": weights, "levels": levels})
    return found
