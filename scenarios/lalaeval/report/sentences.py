"""A graded round's answer in sentences: who leads and how sure that is, what moved, and what needs a person's eye.

What never belongs here: figures that the report does not have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from viva.reports.page import counted, joined, listed
from viva.reports.text import interval, number, signed

from .tables import dimension_name

Record = Mapping[str, Any]
SURE = 0.05  # a lead needs a smaller Holm-corrected p, and an interval above 0
_MOST_NAMED = 8
_CAUSES = {
    "question": "changed questions", "response": "changed responses",
    "same_grader": "the same graders grading otherwise", "grader": "other graders",
}  # fmt: skip


def answer(report: Record) -> list[str]:
    """What a reader wants to know first, a sentence each, the most decisive first."""
    return [*_leader(report), *_moved(report), *_graders(report), *_open(report)]


def _leader(report: Record) -> Iterator[str]:
    known = [one for one in report["candidates"] if one["grade"]["overall"]["value"] is not None]
    ranked = sorted(known, key=lambda one: (-one["grade"]["overall"]["value"], one["candidate"]))
    if not ranked:
        return
    best, figure = ranked[0], ranked[0]["grade"]["overall"]
    whose = {"people": "people", "models": "judge models", "all": "people and judge models"}[report["round"]["whose"]]
    yield (
        f"{best['candidate']} {'leads with' if ranked[1:] else 'has'} {number(figure['value'])}% "
        f"({number(figure['low'])} to {number(figure['high'])}) of the attainable grade, from "
        f"{counted(figure['grades'], 'grade')} by {whose} on {counted(figure['questions'], 'question')}."
    )
    pairs = [one for one in report["differences"] if one["group"] == "overall" and one["first"] == best["candidate"]]
    # Of too few questions in common there is no p: then a lead may be chance.
    sure = [one for one in pairs if one["p_corrected"] is not None and one["p_corrected"] < SURE and one["low"] > 0]
    close = [one["second"] for one in pairs if one not in sure]
    if len(sure) == 1:
        yield f"Its lead over {sure[0]['second']} is {_points(sure[0])}."
    elif sure:
        least = min(sure, key=lambda one: one["value"])
        yield (
            f"It leads {_and([one['second'] for one in sure])} beyond chance; the smallest lead is "
            f"{_points(least)}, over {least['second']}."
        )
    if close:
        yield f"Its lead over {_and(close)} may be chance."


def _points(one: Record) -> str:
    return f"{number(one['value'])} points ({number(one['low'])} to {number(one['high'])})"


def _moved(report: Record) -> Iterator[str]:
    told = report["fluctuation"]
    if told is None:
        return
    whole = [one for one in told["changes"] if one["dimension"] == "overall"]
    still = []
    for one in whole:
        change, low, high = (one["change"][name] for name in ("value", "low", "high"))
        if low is None or low <= 0 <= high:
            still.append(f"{one['candidate']} ({signed(change)})")
            continue
        ends = sorted((abs(low), abs(high)))
        name, part = max(one["parts"].items(), key=lambda part: abs(part[1]["value"]))
        yield (
            f"Since the earlier round {one['candidate']} has {'gained' if change > 0 else 'lost'} "
            f"{number(abs(change))} points ({number(ends[0])} to {number(ends[1])}); the largest part, "
            f"{signed(part['value'])}, is due to {_CAUSES[name]}."
        )
    if still:
        yield (
            f"{'The change' if len(still) == 1 else 'Changes'} of {_and(still)} since the earlier round may be chance."
        )
    yield from (f"{note[:1].upper()}{note[1:]}." for note in told["notes"])


def _graders(report: Record) -> Iterator[str]:
    found = report["agreement"]["people"][-1]
    if found["alpha"]["value"] is not None:
        yield f"Krippendorff's α of the graders is {interval(found['alpha'], 2)}, averaged over dimensions."
    retrain = [f"{one['grader']} ({' and '.join(one['retrain'])})" for one in report["graders"] if one["retrain"]]
    if retrain:
        yield f"Retrain {_and(retrain)}."
    severe = [one for one in report["graders"] if one["severity"]["low"] is not None and one["severity"]["low"] > 0]
    if severe:
        most = max(severe, key=lambda one: one["severity"]["value"])
        yield f"{most['grader']} is the most severe grader, {interval(most['severity'], 2)} below the graders' mean."
    if report["severity"]["groups"] > 1:
        yield (
            f"The graders fall into {report['severity']['groups']} groups that share no answer: severities compare "
            "within a group only, and corrected grades hold differences between the groups."
        )


def _open(report: Record) -> Iterator[str]:
    counts = report["counts"]
    if report["questions"]:
        yield f"Review {counted(len(report['questions']), 'disputed question')}, first {_first(report)}."
    left = [(counts["undecided"], "dispute without a decision", "disputes without a decision"),
            (counts["missing"], "grade still owed", "grades still owed"),
            (counts["taken_back"], "grade taken back", "grades taken back"),
            (counts["invalid"], "invalid grade", "invalid grades")]  # fmt: skip
    said = [f"{count:,} {one if count == 1 else many}" for count, one, many in left if count]
    if said:
        yield f"Open or left out: {_and(said)}."
    lacking = [
        f"{one['candidate']} in {dimension_name(name)}"
        for one in report["candidates"] for name in report["dimensions"] if one["grade"][name]["value"] is None
    ]  # fmt: skip
    if lacking:
        yield f"No grade yet of {listed(lacking)}; their totals rest on the other dimensions."


def _first(report: Record) -> str:
    return f"'{report['questions'][0]['question']}'"


def _and(names: Sequence[str]) -> str:
    """Names in a sentence; of many the first ones."""
    if len(names) > _MOST_NAMED:
        return listed(names)
    return " and ".join([joined(names[:-1]), names[-1]]) if names[1:] else names[0]
