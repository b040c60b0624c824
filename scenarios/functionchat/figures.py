"""Figures of the paper's form from graded turns: passes by tool list and their average (Table 3), pass rates by type
with macro and micro average (Table 4), how often the judge was wrong (Table 5); and as tables of text.

Rates are shares, 0–1, of the turns that have a verdict; those that have none are counted beside. Standard errors and
intervals take turns with the same query, or of the same dialog, as one cluster. What never belongs here: grading, and
reading runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from viva.reports.text import DASH, Table, number
from viva.scoring.clusters import clustered_mean

from .review import Correction
from .turns import OUTPUT_TYPES, TOOL_LISTS, OutputType, Subset

_NAMES = {"call": "tool call", "completion": "answer completion", "slot": "slot question"}
_NAMES["relevance"] = "relevance detection"


@dataclass(slots=True, frozen=True)
class GradedTurn:
    """What became of one turn.

    ``key``: unique in the run (the conversation's key); ``cluster``: as ``DialogTurn.cluster``; ``passed``: None where
    there is no verdict; ``judged``: whether a judge was asked.
    """

    key: str
    cluster: str
    subset: Subset
    type: OutputType
    tool_list: str | None
    passed: bool | None
    judged: bool = False
    category: str | None = None


def corrected(outcomes: Iterable[GradedTurn], standing: Mapping[str, Correction]) -> list[GradedTurn]:
    """The outcomes as reviewers left them; ``standing``: the correction that counts, by key."""
    return [replace(one, passed=standing[one.key].passed) if one.key in standing else one for one in outcomes]


def singlecall_figures(outcomes: Iterable[GradedTurn]) -> dict[str, Any]:
    """Passes by tool list, their sum and their average over the tool lists there are (Table 3: the sum by five).

    ``rate``: the share of all turns, with its standard error over queries. Outcomes of dialogs are left out.
    """
    held = [one for one in outcomes if one.subset == "singlecall"]
    lists = {name: _counts([one for one in held if one.tool_list == name]) for name in TOOL_LISTS}
    tried = [one for one in lists.values() if one["n"]]
    total = sum(one["passed"] for one in tried)
    average = _rounded(total / len(tried)) if tried else None
    return {"lists": lists, "sum": total, "average": average, "rate": _rate(held)}


def dialog_figures(outcomes: Iterable[GradedTurn]) -> dict[str, Any]:
    """Pass rates by type; their plain mean over the types there are (macro), and the share of all turns (micro).

    Standard errors of both are over dialogs. Outcomes of single calls are left out.
    """
    held = [one for one in outcomes if one.subset == "dialog"]
    types = {kind: _counts([one for one in held if one.type == kind]) for kind in OUTPUT_TYPES}
    return {"types": types, "macro": _macro(held), "micro": _rate(held)}


def category_figures(outcomes: Iterable[GradedTurn]) -> dict[str, dict[str, Any]]:
    """Of each subset that has categories: pass rates by category, sorted by name, and ``rate``, the share of all turns.

    Its standard error is over turns that begin with the same message of the user. Other subsets are left out.
    """
    held = [one for one in outcomes if one.category is not None]
    found: dict[str, dict[str, Any]] = {}
    for subset in sorted({one.subset for one in held}):
        part = [one for one in held if one.subset == subset]
        names = sorted({str(one.category) for one in part})
        categories = {name: _counts([one for one in part if one.category == name]) for name in names}
        found[subset] = {"categories": categories, "rate": _rate(part)}
    return found


def averages(rates: Mapping[str, float], counts: Mapping[str, int]) -> tuple[float, float]:
    """The macro and the micro average of rates by type: Σ rate / types, and Σ rate · count / Σ count.

    :raises ValueError: there is no rate, or a type has no count.
    """
    if not rates or any(counts.get(name, 0) < 1 for name in rates):
        raise ValueError(f"averages need a rate at least, and a count for each: {dict(rates)}, {dict(counts)}")
    micro = sum(rate * counts[name] for name, rate in rates.items()) / sum(counts[name] for name in rates)
    return sum(rates.values()) / len(rates), micro


def _scored(outcomes: Iterable[GradedTurn]) -> list[GradedTurn]:
    return [one for one in outcomes if one.passed is not None]


def _counts(outcomes: Sequence[GradedTurn]) -> dict[str, Any]:
    scored = _scored(outcomes)
    mean = clustered_mean([float(one.passed is True) for one in scored], [one.cluster for one in scored])
    share = mean and mean.within(0.0, 1.0, rate=True)
    ends = share and {"value": _rounded(share.value), "low": _rounded(share.low), "high": _rounded(share.high)}
    passed = sum(one.passed is True for one in scored)
    return {"n": len(outcomes), "passed": passed, "unscored": len(outcomes) - len(scored), "rate": ends}


def _rate(outcomes: Iterable[GradedTurn]) -> dict[str, Any]:
    scored = _scored(outcomes)
    return _mean([float(one.passed is True) for one in scored], [one.cluster for one in scored])


def _macro(outcomes: Iterable[GradedTurn]) -> dict[str, Any]:
    """The mean of the types' rates with an error over dialogs.

    A turn counts macro + weight · (passed - rate of its type), the weight being turns / (types · turns of its type):
    their mean is the macro average, and their spread that of its linearisation.
    """
    scored = _scored(outcomes)
    groups = {kind: [one for one in scored if one.type == kind] for kind in OUTPUT_TYPES}
    groups = {kind: group for kind, group in groups.items() if group}
    rates: dict[str, float] = {
        kind: sum(one.passed is True for one in group) / len(group) for kind, group in groups.items()
    }
    if not rates:
        return _mean([], [])
    macro, _ = averages(rates, {kind: len(group) for kind, group in groups.items()})
    values = [
        macro + len(scored) / (len(groups) * len(groups[one.type])) * ((one.passed is True) - rates[one.type])
        for one in scored
    ]
    return _mean(values, [one.cluster for one in scored])


def _mean(values: Sequence[float], clusters: Sequence[str]) -> dict[str, Any]:
    mean = clustered_mean(values, clusters)
    if mean is None:
        return {"mean": None, "se": None, "n": 0, "clusters": 0}
    error = None if mean.se is None else _rounded(mean.se)
    return {"mean": _rounded(mean.mean), "se": error, "n": mean.n, "clusters": mean.clusters}


def judge_errors(outcomes: Iterable[GradedTurn], standing: Mapping[str, Correction]) -> dict[str, Any]:
    """Count the verdicts, of rules and of the judge, that reviewers took back, by subset and over ``all`` of them.

    A false positive passed and should have failed, a false negative the reverse. Rates are shares of all cases, graded
    by rule or judged, as in Table 5 (its 202 of 5000 cases are printed as 5.1%, which they are of 4000: 500 items for
    each of eight models); ``of_judged`` has the judge's wrong verdicts as shares of all that it gave, and ``by_rule``
    counts those of the wrong verdicts that rules gave.
    """
    held = list(outcomes)
    names: list[str] = ["singlecall", "dialog", *sorted({one.subset for one in held} - {"singlecall", "dialog"})]
    parts = {name: [one for one in held if one.subset == name] for name in names}
    return {name: _judge_errors(part, standing) for name, part in {**parts, "all": held}.items()}


def _judge_errors(outcomes: Sequence[GradedTurn], standing: Mapping[str, Correction]) -> dict[str, Any]:
    scored = [one for one in outcomes if one.passed is not None]
    judged = [one for one in scored if one.judged]
    counts, of_judge = _wrong_verdicts(scored, standing), _wrong_verdicts(judged, standing)
    return {
        "cases": len(outcomes),
        "judged": len(judged),
        "reviewed": sum(one.key in standing for one in scored),
        **counts,
        "by_rule": counts["both"] - of_judge["both"],
        "of_cases": {name: _share(count, len(outcomes)) for name, count in counts.items()},
        "of_judged": {name: _share(count, len(judged)) for name, count in of_judge.items()},
    }


def _wrong_verdicts(outcomes: Sequence[GradedTurn], standing: Mapping[str, Correction]) -> dict[str, int]:
    reviewed = [(one.passed, standing[one.key].passed) for one in outcomes if one.key in standing]
    passed = sum(said is True and not right for said, right in reviewed)
    failed = sum(said is False and right for said, right in reviewed)
    return {"false_positives": passed, "false_negatives": failed, "both": passed + failed}


def singlecall_table(title: str, rows: Mapping[str, Mapping[str, Any]]) -> Table:
    """Table 3: passes by tool list, sum and average, from ``singlecall_figures`` by candidate."""
    header = ["candidate", *TOOL_LISTS, "SUM", "AVG", "±", "unscored"]
    cells = []
    for label, one in rows.items():
        lists = [one["lists"][name] for name in TOOL_LISTS]
        if any(part["n"] for part in lists):
            row = [label, *(str(part["passed"]) if part["n"] else DASH for part in lists), str(one["sum"])]
            error, tried = one["rate"]["se"], [part["n"] for part in lists if part["n"]]
            # The average counts turns of a list: its error is the rate's, times a list's turns.
            spread = None if error is None else error * sum(tried) / len(tried)
            row += [number(one["average"]), number(spread), str(sum(part["unscored"] for part in lists))]
            cells.append(row)
    return (title, header, cells)


def dialog_table(title: str, rows: Mapping[str, Mapping[str, Any]]) -> Table:
    """Table 4: pass rates by type, macro and micro average, from ``dialog_figures`` by candidate."""
    header = ["candidate", *(_NAMES[kind] for kind in OUTPUT_TYPES), "macro", "±", "micro", "±", "unscored"]
    cells = []
    for label, one in rows.items():
        types = [one["types"][kind] for kind in OUTPUT_TYPES]
        if any(part["n"] for part in types):
            rates = [number((part["rate"] or {}).get("value"), 2) for part in types]
            means = [number(one[name][what], 2) for name in ("macro", "micro") for what in ("mean", "se")]
            cells.append([label, *rates, *means, str(sum(part["unscored"] for part in types))])
    return (title, header, cells)


def category_table(title: str, rows: Mapping[str, Mapping[str, Any]]) -> Table:
    """Passes and turns by category, and their share in all, from one subset's ``category_figures`` by candidate."""
    names = sorted({name for one in rows.values() for name in one["categories"]})
    header = ["candidate", *names, "all", "rate", "±", "unscored"]
    cells = []
    for label, one in rows.items():
        parts = [one["categories"].get(name) for name in names]
        given = [part for part in parts if part is not None]
        row = [label, *(DASH if part is None else _of(part["passed"], part["n"]) for part in parts)]
        row.append(_of(sum(part["passed"] for part in given), sum(part["n"] for part in given)))
        row += [number(one["rate"][what], 2) for what in ("mean", "se")]
        cells.append([*row, str(sum(part["unscored"] for part in given))])
    return (title, header, cells)


def _of(passed: int, turns: int) -> str:
    return f"{passed}/{turns}"


def judge_table(title: str, rows: Mapping[str, Mapping[str, Any]]) -> Table:
    """Table 5: cases, what was judged and reviewed, false positives and negatives, from ``judge_errors`` of a run."""
    header = ["subset", "cases", "judged", "reviewed", "FP", "FP %", "FN", "FN %", "FP+FN", "FP+FN %", "by rule"]
    cells = []
    for name, one in rows.items():
        if one["cases"]:
            row = [name, *(str(one[part]) for part in ("cases", "judged", "reviewed"))]
            for part in ("false_positives", "false_negatives", "both"):
                share = one["of_cases"][part]
                row += [str(one[part]), number(None if share is None else 100 * share)]
            cells.append([*row, str(one["by_rule"])])
    return (title, header, cells)


def _share(part: int, whole: int) -> float | None:
    return _rounded(part / whole) if whole else None


def _rounded(value: float) -> float:
    return round(value, 6)
