"""A graded round's report in tables, made from the report alone.

What never belongs here: computing figures, sentences, and where tables are printed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from viva.reports.text import DASH, Table, interval, number, signed, small

Record = Mapping[str, Any]
PARTS = {"question": "questions", "response": "responses", "same_grader": "same graders", "grader": "other graders"}
UNNAMED = "(no dimension)"  # of grades that have none
_TEXT = 48  # letters of a question in a table


def report_tables(report: Record) -> list[Table]:
    """All tables, the most decisive first; those without rows are left out when they are printed."""
    return [
        _by_group("Grade, % of what could be given (95% interval)", report, "grade", report["groups"]),
        _differences(report),
        _by_group("Accuracy, % of grades that are not zero", report, "accuracy", report["groups"]),
        _by_group("Grade by dimension", report, "grade", report["dimensions"]),
        _by_group("Grade corrected for severity, with every grader as severe as the mean", report, "corrected",
                  report["groups"]),
        _disagreement(report),
        _agreement(report),
        _models(report),
        _graders(report),
        _consistency(report),
        _questions(report),
        *_fluctuation(report),
        _given(report),
        _counts(report),
    ]  # fmt: skip


def dimension_name(path: str) -> str:
    """A dimension as tables show it."""
    return path or UNNAMED


def _by_group(title: str, report: Record, measure: str, names: Sequence[str]) -> Table:
    """A row for each dimension or group, a column for each candidate."""
    candidates = report["candidates"]
    rows = [
        [dimension_name(name), *(interval(one[measure][name]) for one in candidates)]
        for name in names
        if any(one[measure][name]["value"] is not None for one in candidates)
    ]
    if len(names) == 1 and measure == "grade" and names == report["dimensions"]:
        rows = []  # the same as over all
    return (title, ["dimension", *(one["candidate"] for one in candidates)], rows)


def _differences(report: Record) -> Table:
    rows = [
        [one["first"], one["second"], signed(one["value"]), _span(one), small(one["p_corrected"]),
         f"{one['questions']:,}"]
        for one in report["differences"] if one["group"] == "overall"
    ]  # fmt: skip
    header = ["first", "second", "first − second", "interval", "Holm p", "questions"]
    return ("Differences on the same questions, percentage points", header, rows)


def _disagreement(report: Record) -> Table:
    rows = [
        [dimension_name(one["dimension"]), f"{one['graders']:,}", f"{one['answers']:,}", interval(one["differs"]),
         interval(one["disputed"])]
        for one in report["disputes"]
    ]  # fmt: skip
    return ("Disagreement: answers that were graded differently, and that are in dispute, %",
            ["dimension", "graders", "answers", "differ", "in dispute"], rows)  # fmt: skip


def _agreement(report: Record) -> Table:
    rows = [
        [dimension_name(one["dimension"]), interval(one["same"]), interval(one["alpha"], 2), interval(one["ac2"], 2)]
        for one in report["agreement"]["people"]
        if one["answers"]
    ]
    return ("Agreement of graders: same grade %, Krippendorff's α (ordinal), Gwet's AC2",
            ["dimension", "same", "α", "AC2"], rows)  # fmt: skip


def _models(report: Record) -> Table:
    rows = [
        [one["grader"], f"{one['answers']:,}", interval(one["same"]), interval(one["people"]),
         interval(one["alpha_with"], 2), interval(one["alpha_people"], 2)]
        for one in report["agreement"]["models"]
    ]  # fmt: skip
    return ("Judge models and people on the same answers",
            ["model", "answers", "same as people", "people", "α with model", "α of people"], rows)  # fmt: skip


def _graders(report: Record) -> Table:
    groups = report["severity"]["groups"] > 1
    rows = []
    for one in report["graders"]:
        row = [grader_name(one), f"{one['grades']:,}", interval(one["disputes"]), interval(one["severity"], 2)]
        rows.append([*row, *([str(one["group"] or DASH)] if groups else []), ", ".join(one["retrain"]) or DASH])
    header = ["grader", "grades", "dispute level, %", "severity", *(["group"] if groups else []), "to retrain for"]
    return ("Graders: disputed share of their grades; severity, in grades below the mean", header, rows)


def grader_name(one: Record) -> str:
    """A grader as tables show them, models marked."""
    return f"{one['grader']} (model)" if one["model"] else str(one["grader"])


def _consistency(report: Record) -> Table:
    """With the gate in trial rounds, which alone decide who may grade."""
    trial = report["round"]["kind"] == "trial"
    rows = [
        [grader_name(one), interval(one["consistency"]), number(one["near"]),
         *(f"{one['references'].get(kind, 0):,}" for kind in ("gold", "decided", "others")),
         *([one["gate"] if one["sure"] or one["gate"] == "too few" else f"{one['gate']}, not sure"] if trial else [])]
        for one in report["graders"] if one["answers"]
    ]  # fmt: skip
    header = ["grader", "equal", "within 1", "gold", "decided", "others", *(["gate"] if trial else [])]
    return ("Consistency: share of grades equal to the reference (gold, decision, most others), %", header, rows)


def _questions(report: Record) -> Table:
    rows = [
        [one["question"], shortened(one["text"]), number(one["level"], 2), f"{one['divided']:,}", f"{one['alone']:,}",
         f"{one['graders']:,}"]
        for one in report["questions"]
    ]  # fmt: skip
    return ("Questions to review, by dispute level",
            ["question", "text", "level", "divided", "alone", "graders"], rows)  # fmt: skip


def shortened(text: str) -> str:
    """A question's text on one line of a table."""
    line = " ".join(text.split())
    return line if len(line) <= _TEXT else f"{line[: _TEXT - 1]}…"


def _fluctuation(report: Record) -> Iterator[Table]:
    told = report["fluctuation"]
    if told is None:
        return
    changes = [one for one in told["changes"] if one["dimension"] in report["groups"]]
    rows = [
        [one["candidate"], dimension_name(one["dimension"]), number(one["before"]), number(one["after"]),
         _moved(one["change"])]
        for one in changes
    ]  # fmt: skip
    yield ("Change since the earlier round, percentage points",
           ["candidate", "dimension", "before", "after", "change"], rows)  # fmt: skip
    parts = [
        [one["candidate"], dimension_name(one["dimension"]), *(_moved(one["parts"][part]) for part in PARTS)]
        for one in changes
    ]
    yield ("What the change is made of", ["candidate", "dimension", *PARTS.values()], parts)


def _given(report: Record) -> Table:
    """The beginning of the table of grades: a row for each question and grader, a column for each candidate."""
    told = report["given"]
    rows = [
        [dimension_name(dimension), shortened(question), grader,
         *(DASH if value is None else f"{value:g}" for value in values)]
        for dimension, question, grader, *values in told["first"]
    ]  # fmt: skip
    which = f" (the first {len(rows)} of {told['rows']:,} rows; all: --grades FILE)" if told["rows"] > len(rows) else ""
    header = [*told["columns"][:3], *(one["candidate"] for one in report["candidates"])]
    return (f"Grades as they were given{which}", header, rows)


def _counts(report: Record) -> Table:
    counts = report["counts"]
    names = {
        "questions": "questions", "gold_questions": "gold questions", "invalid_questions": "invalid questions",
        "answers": "answers", "grades": "grades", "counted": "grades in candidates' figures",
        "missing": "grades still owed", "taken_back": "grades taken back", "invalid": "invalid grades",
        "disputed": "answers in dispute", "decided": "answers decided", "undecided": "disputes without decision",
    }  # fmt: skip
    rows = [[name, f"{counts[field]:,}"] for field, name in names.items()]
    return ("Counts", ["what", "number"], rows)


def _moved(one: Record) -> str:
    if one["low"] is None:
        return signed(one["value"])
    return f"{signed(one['value'])} ({signed(one['low'])} to {signed(one['high'])})"


def _span(one: Record) -> str:
    return DASH if one["low"] is None else f"{signed(one['low'])} to {signed(one['high'])}"
