"""A graded round's answer in sentences: who leads and how sure that is, what moved, and what needs a person's eye.

What never belongs here: figures that the report does not have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from viva.reports.page import counted, listed
from viva.reports.text import interval, number, signed

from .tables import PARTS, dimension_name

Record = Mapping[str, Any]


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
        f"{best['candidate']} has {number(figure['value'])}% ({number(figure['low'])} to {number(figure['high'])}) of "
        f"what could be given, by "
        f"{counted(figure['grades'], 'grade')} of {whose} on {counted(figure['questions'], 'question')}."
    )
    pairs = [one for one in report["differences"] if one["group"] == "overall" and one["first"] == best["candidate"]]
    apart = [one for one in pairs if one["low"] > 0]
    close = [one["second"] for one in pairs if one["low"] <= 0]
    if apart:
        least = min(apart, key=lambda one: one["value"])
        yield (
            f"It is ahead of {listed([one['second'] for one in apart])} beyond chance, of {least['second']} by "
            f"{number(least['value'])} points ({number(least['low'])} to {number(least['high'])})."
        )
    if close:
        yield f"It cannot be told from {listed(close)} by these questions."


def _moved(report: Record) -> Iterator[str]:
    told = report["fluctuation"]
    if told is None:
        return
    for one in told["changes"]:
        if one["dimension"] == "overall":
            ranked = sorted(one["parts"].items(), key=lambda part: -abs(part[1]["value"]))
            name, part = ranked[0]
            change = one["change"]
            sure = change["low"] is not None and not change["low"] <= 0 <= change["high"]
            yield (
                f"{one['candidate']} moved by {signed(change['value'])} points since the earlier round"
                f"{'' if sure else ', no more than chance may do'}; the largest part is that of {PARTS[name]}, "
                f"{signed(part['value'])}."
            )
    yield from (f"{note[:1].upper()}{note[1:]}." for note in told["notes"])


def _graders(report: Record) -> Iterator[str]:
    found = report["agreement"]["people"][-1]
    if found["alpha"]["value"] is not None:
        yield f"Graders agree at a Krippendorff's α of {interval(found['alpha'], 2)}, the mean over dimensions."
    retrain = [f"{one['grader']} ({', '.join(one['retrain'])})" for one in report["graders"] if one["retrain"]]
    if retrain:
        yield f"To retrain: {listed(retrain)}."
    severe = [one for one in report["graders"] if one["severity"]["low"] is not None and one["severity"]["low"] > 0]
    if severe:
        most = max(severe, key=lambda one: one["severity"]["value"])
        yield f"{most['grader']} gives {interval(most['severity'], 2)} grades less than the mean of the graders."
    if report["severity"]["groups"] > 1:
        yield (
            f"The graders fall into {report['severity']['groups']} groups that share no answer: severities compare "
            "within a group only, and corrected grades hold differences between the groups."
        )


def _open(report: Record) -> Iterator[str]:
    counts = report["counts"]
    if report["questions"]:
        first = report["questions"][0]
        yield f"{counted(len(report['questions']), 'question')} to review, first of all {first['question']}."
    left = [(counts["undecided"], "dispute without decision", "disputes without decision"),
            (counts["missing"], "grade is still owed", "grades are still owed"),
            (counts["taken_back"], "grade was taken back", "grades were taken back"),
            (counts["invalid"], "grade is invalid", "grades are invalid")]  # fmt: skip
    said = [f"{count:,} {one if count == 1 else many}" for count, one, many in left if count]
    if said:
        yield f"Left out or open: {', '.join(said)}."
    lacking = [
        f"{one['candidate']} in {dimension_name(name)}"
        for one in report["candidates"] for name in report["dimensions"] if one["grade"][name]["value"] is None
    ]  # fmt: skip
    if lacking:
        yield f"Without any grade: {listed(lacking)}; totals weigh the other dimensions."
