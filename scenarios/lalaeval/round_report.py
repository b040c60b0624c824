"""Report of a graded round for readers, made from its figures: summary sentences, tables, and a page with plots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from viva.engine.errors import ConfigurationError
from viva.reports import plot_style
from viva.reports.page import Page, PageSection, Plot, count_of, join_names, list_names
from viva.reports.row_plots import MAX_HEAT_COLUMNS, Bar, NamedBar, dot_plot, heat_map, waterfall_plot
from viva.reports.tables import DASH, Table, interval, number, p_value, signed

from .round_figures import BEFORE

Record = Mapping[str, Any]
PART_NAMES = {
    "question": "questions",
    "response": "responses",
    "same_grader": "same graders",
    "grader": "other graders",
}
UNNAMED = "(no dimension)"
_TEXT_LENGTH = 48  # letters of a question in a table


def report_tables(report: Record) -> list[Table]:
    """Return all tables, the most decisive first; tables without rows are omitted when they are printed."""
    return [
        _group_table("Grade, % of the attainable (95% interval)", report, "grade", report["groups"]),
        _difference_table(report),
        _group_table("Accuracy, % of grades that are not zero", report, "accuracy", report["groups"]),
        _group_table("Grade by dimension", report, "grade", report["dimensions"]),
        *_tables_before_adjudication(report),
        _group_table("Grade corrected for graders' severity", report, "corrected",
                  report["groups"]),
        _disagreement_table(report),
        _agreement_table(report),
        _model_table(report),
        _grader_table(report),
        _consistency_table(report),
        _question_table(report),
        *_fluctuation_tables(report),
        _grade_table(report),
        _count_table(report),
    ]  # fmt: skip


def dimension_name(path: str) -> str:
    """Return a dimension's name as shown in tables."""
    return path or UNNAMED


def _group_table(title: str, report: Record, measure: str, names: Sequence[str]) -> Table:
    """Return a table with a row for each dimension or group and a column for each candidate."""
    candidates = report["candidates"]
    rows = [
        [dimension_name(name), *(interval(candidate[measure][name]) for candidate in candidates)]
        for name in names
        if any(candidate[measure][name]["value"] is not None for candidate in candidates)
    ]
    if len(names) == 1 and measure == "grade" and names == report["dimensions"]:
        rows = []  # the same figures as over all dimensions
    return (title, ["dimension", *(candidate["candidate"] for candidate in candidates)], rows)


def _tables_before_adjudication(report: Record) -> Iterator[Table]:
    if any(BEFORE in candidate for candidate in report["candidates"]):
        names = list(dict.fromkeys([*report["groups"], *report["dimensions"]]))
        yield _group_table("Grade before adjudication, % of the attainable (95% interval)", report, BEFORE, names)


def _difference_table(report: Record) -> Table:
    rows = [
        [
            difference["first"],
            difference["second"],
            signed(difference["value"]),
            _interval_cell(difference),
            p_value(difference["p_corrected"]),
            f"{difference['questions']:,}",
        ]
        for difference in report["differences"]
        if difference["group"] == "overall"
    ]
    header = ["first", "second", "first − second", "interval", "Holm p", "questions"]
    return ("Differences on the same questions, percentage points", header, rows)


def _disagreement_table(report: Record) -> Table:
    rows = [
        [
            dimension_name(record["dimension"]),
            f"{record['graders']:,}",
            f"{record['answers']:,}",
            interval(record["differs"]),
            interval(record["disputed"]),
        ]
        for record in report["disputes"]
    ]
    return ("Disagreement: answers with different grades, and in dispute, %",
            ["dimension", "graders", "answers", "differ", "in dispute"], rows)  # fmt: skip


def _agreement_table(report: Record) -> Table:
    rows = [
        [
            dimension_name(record["dimension"]),
            interval(record["same"]),
            interval(record["alpha"], 2),
            interval(record["ac2"], 2),
        ]
        for record in report["agreement"]["people"]
        if record["answers"]
    ]
    return ("Agreement of graders: same grade %, Krippendorff's α (ordinal), Gwet's AC2",
            ["dimension", "same grade", "α", "AC2"], rows)  # fmt: skip


def _model_table(report: Record) -> Table:
    rows = [
        [model["grader"], f"{model['answers']:,}", interval(model["same"]), interval(model["people"]),
         interval(model["alpha_with"], 2), interval(model["alpha_people"], 2)]
        for model in report["agreement"]["models"]
    ]  # fmt: skip
    return ("Judge models and people on the same answers",
            ["model", "answers", "same as people", "people", "α with model", "α of people"], rows)  # fmt: skip


def _grader_table(report: Record) -> Table:
    groups = report["severity"]["groups"] > 1
    rows = []
    for grader in report["graders"]:
        row = [
            grader_name(grader),
            f"{grader['grades']:,}",
            interval(grader["disputes"]),
            interval(grader["severity"], 2),
        ]
        rows.append([*row, *([str(grader["group"] or DASH)] if groups else []), ", ".join(grader["retrain"]) or DASH])
    header = ["grader", "grades", "dispute level, %", "severity", *(["group"] if groups else []), "retrain for"]
    return ("Graders: share of disputed grades; severity in grades below the mean", header, rows)


def grader_name(grader: Record) -> str:
    """Return a grader's name as shown in tables, with models marked."""
    return f"{grader['grader']} (model)" if grader["model"] else str(grader["grader"])


def _consistency_table(report: Record) -> Table:
    """Return the consistency table; in trial rounds with the gate."""
    trial = report["round"]["kind"] == "trial"
    rows = [
        [
            grader_name(grader),
            interval(grader["consistency"]),
            number(grader["near"]),
            *(f"{grader['references'].get(kind, 0):,}" for kind in ("gold", "decided", "others")),
            *(
                [grader["gate"] if grader["sure"] or grader["gate"] == "too few" else f"{grader['gate']}, not sure"]
                if trial
                else []
            ),
        ]
        for grader in report["graders"]
        if grader["answers"]
    ]
    header = ["grader", "equal", "within 1", "gold", "decided", "others", *(["gate"] if trial else [])]
    return ("Consistency: share of grades equal to the reference (gold, decision, most others), %", header, rows)


def _question_table(report: Record) -> Table:
    rows = [
        [
            question["question"],
            shorten(question["text"]),
            number(question["level"], 2),
            f"{question['divided']:,}",
            f"{question['alone']:,}",
            f"{question['graders']:,}",
        ]
        for question in report["questions"]
    ]
    return ("Questions to review, by dispute level",
            ["question", "text", "level", "divided", "alone", "graders"], rows)  # fmt: skip


def shorten(text: str) -> str:
    """Return a question's text on one line of a table."""
    line = " ".join(text.split())
    return line if len(line) <= _TEXT_LENGTH else f"{line[: _TEXT_LENGTH - 1]}…"


def _fluctuation_tables(report: Record) -> Iterator[Table]:
    fluctuation = report["fluctuation"]
    if fluctuation is None:
        return
    changes = [change for change in fluctuation["changes"] if change["dimension"] in report["groups"]]
    rows = [
        [change["candidate"], dimension_name(change["dimension"]), number(change["before"]), number(change["after"]),
         _change_cell(change["change"])]
        for change in changes
    ]  # fmt: skip
    yield ("Change since the earlier round, percentage points",
           ["candidate", "dimension", "before", "after", "change"], rows)  # fmt: skip
    parts = [
        [
            change["candidate"],
            dimension_name(change["dimension"]),
            *(_change_cell(change["parts"][part]) for part in PART_NAMES),
        ]
        for change in changes
    ]
    yield ("Parts of the change", ["candidate", "dimension", *PART_NAMES.values()], parts)


def _grade_table(report: Record) -> Table:
    """Return the first rows of the table of grades: by question and grader, a column for each candidate."""
    grades = report["given"]
    rows = [
        [dimension_name(dimension), shorten(question), grader,
         *(DASH if value is None else f"{value:g}" for value in values)]
        for dimension, question, grader, *values in grades["first"]
    ]  # fmt: skip
    suffix = (
        f" (the first {len(rows)} of {grades['rows']:,} rows; all: --grades FILE)" if grades["rows"] > len(rows) else ""
    )
    header = [*grades["columns"][:3], *(candidate["candidate"] for candidate in report["candidates"])]
    return (f"Individual grades{suffix}", header, rows)


def _count_table(report: Record) -> Table:
    counts = report["counts"]
    names = {
        "questions": "questions", "gold_questions": "gold questions", "invalid_questions": "invalid questions",
        "answers": "answers", "grades": "grades", "counted": "grades in candidates' figures",
        "missing": "grades still owed", "taken_back": "grades taken back", "invalid": "invalid grades",
        "disputed": "answers in dispute", "decided": "answers decided", "undecided": "disputes without decision",
    }  # fmt: skip
    rows = [[name, f"{counts[field]:,}"] for field, name in names.items()]
    return ("Counts", ["count", "number"], rows)


def _change_cell(change: Record) -> str:
    if change["low"] is None:
        return signed(change["value"])
    return f"{signed(change['value'])} ({signed(change['low'])} to {signed(change['high'])})"


def _interval_cell(record: Record) -> str:
    return DASH if record["low"] is None else f"{signed(record['low'])} to {signed(record['high'])}"


ALPHA = 0.05  # a significant lead has a smaller Holm-corrected p and an interval above 0
_MAX_NAMED = 8
_CAUSES = {
    "question": "changed questions", "response": "changed responses",
    "same_grader": "the same graders changing their grades", "grader": "other graders",
}  # fmt: skip


def summary_sentences(report: Record) -> list[str]:
    """Return the main results as sentences, the most decisive first."""
    return [
        *_leader_sentences(report),
        *_change_sentences(report),
        *_grader_sentences(report),
        *_open_point_sentences(report),
    ]


def _leader_sentences(report: Record) -> Iterator[str]:
    graded = [record for record in report["candidates"] if record["grade"]["overall"]["value"] is not None]
    ranked = sorted(graded, key=lambda record: (-record["grade"]["overall"]["value"], record["candidate"]))
    if not ranked:
        return
    best, figure = ranked[0], ranked[0]["grade"]["overall"]
    graders = {"people": "people", "models": "judge models", "all": "people and judge models"}[report["round"]["whose"]]
    yield (
        f"{best['candidate']} {'leads with' if ranked[1:] else 'has'} {number(figure['value'])}% "
        f"({number(figure['low'])} to {number(figure['high'])}) of the attainable grade, from "
        f"{count_of(figure['grades'], 'grade')} by {graders} on {count_of(figure['questions'], 'question')}."
    )
    pairs = [
        record
        for record in report["differences"]
        if record["group"] == "overall" and record["first"] == best["candidate"]
    ]
    # With too few common questions there is no p, and a lead is not significant.
    significant = [
        record
        for record in pairs
        if record["p_corrected"] is not None and record["p_corrected"] < ALPHA and record["low"] > 0
    ]
    rivals = [record["second"] for record in pairs if record not in significant]
    if len(significant) == 1:
        yield f"Its lead over {significant[0]['second']} is significant: {_difference_phrase(significant[0])}."
    elif significant:
        smallest = min(significant, key=lambda record: record["value"])
        yield (
            f"Its lead over {_join_names([record['second'] for record in significant])} is significant; the smallest "
            f"is {_difference_phrase(smallest)}, over {smallest['second']}."
        )
    if rivals:
        yield f"Its lead over {_join_names(rivals)} is not significant."


def _difference_phrase(difference: Record) -> str:
    return f"{number(difference['value'])} points ({number(difference['low'])} to {number(difference['high'])})"


def _change_sentences(report: Record) -> Iterator[str]:
    fluctuation = report["fluctuation"]
    if fluctuation is None:
        return
    overall = [record for record in fluctuation["changes"] if record["dimension"] == "overall"]
    insignificant = []
    for record in overall:
        change, low, high = (record["change"][name] for name in ("value", "low", "high"))
        if low is None or low <= 0 <= high:
            insignificant.append(f"{record['candidate']} ({signed(change)})")
            continue
        ends = sorted((abs(low), abs(high)))
        name, part = max(record["parts"].items(), key=lambda part: abs(part[1]["value"]))
        yield (
            f"Since the earlier round {record['candidate']} has {'gained' if change > 0 else 'lost'} "
            f"{number(abs(change))} points ({number(ends[0])} to {number(ends[1])}); the largest part, "
            f"{signed(part['value'])}, is due to {_CAUSES[name]}."
        )
    if insignificant:
        names, single = _join_names(insignificant), len(insignificant) == 1
        yield (
            f"{'The change' if single else 'Changes'} of {names} since the earlier round "
            f"{'is' if single else 'are'} not significant."
        )
    yield from (f"{note[:1].upper()}{note[1:]}." for note in fluctuation["notes"])


def _grader_sentences(report: Record) -> Iterator[str]:
    agreement = report["agreement"]["people"][-1]
    if agreement["alpha"]["value"] is not None:
        yield f"Krippendorff's α of the graders is {interval(agreement['alpha'], 2)}, averaged over dimensions."
    retrain = [
        f"{grader['grader']} ({' and '.join(grader['retrain'])})" for grader in report["graders"] if grader["retrain"]
    ]
    if retrain:
        yield f"Retrain {_join_names(retrain)}."
    severe = [
        grader
        for grader in report["graders"]
        if grader["severity"]["low"] is not None and grader["severity"]["low"] > 0
    ]
    if severe:
        severest = max(severe, key=lambda grader: grader["severity"]["value"])
        size = interval(severest["severity"], 2)
        yield f"{severest['grader']} is the most severe grader, {size} below the graders' mean."
    if report["severity"]["groups"] > 1:
        yield (
            f"The graders fall into {report['severity']['groups']} groups without a common answer: severities "
            "are comparable within a group only, and corrected grades include differences between groups."
        )


def _open_point_sentences(report: Record) -> Iterator[str]:
    counts = report["counts"]
    if report["questions"]:
        first = report["questions"][0]["question"]
        yield f"Review {count_of(len(report['questions']), 'disputed question')}, starting with '{first}'."
    open_points = [(counts["undecided"], "dispute without a decision", "disputes without a decision"),
            (counts["missing"], "grade still owed", "grades still owed"),
            (counts["taken_back"], "grade taken back", "grades taken back"),
            (counts["invalid"], "invalid grade", "invalid grades")]  # fmt: skip
    phrases = [f"{count:,} {singular if count == 1 else plural}" for count, singular, plural in open_points if count]
    if phrases:
        yield f"Open or excluded: {_join_names(phrases)}."
    ungraded = [
        f"{candidate['candidate']} in {dimension_name(name)}"
        for candidate in report["candidates"]
        for name in report["dimensions"]
        if candidate["grade"][name]["value"] is None
    ]
    if ungraded:
        yield f"No grades yet for {list_names(ungraded)}; their totals are based on the other dimensions."


def _join_names(names: Sequence[str]) -> str:
    """Join names in a sentence; a long list is shortened."""
    if len(names) > _MAX_NAMED:
        return list_names(names)
    return " and ".join([join_names(names[:-1]), names[-1]]) if names[1:] else names[0]


def grade_page(report: Record) -> Page:
    """Return the page. Without matplotlib it explains how to get plots and contains everything else."""
    plots, no_plots = list[Plot](), ""
    try:
        plots = list(_plots(report))
    except ConfigurationError as error:
        no_plots = str(error)
    tables = [table for table in report_tables(report) if table[2]]
    sections = [PageSection("plots", "Plots", plots=True)] if plots[1:] or no_plots else []
    sections.append(PageSection("figures", "Figures", tables=tables))
    about = report["round"]
    facts = [("Round", about["name"] or about["title"]), ("Kind", about["kind"])]
    if about["rubric"].get("version") is not None:
        facts.append(("Rubric", f"version {about['rubric']['version']}"))
    facts.append(
        ("Grades of", {"people": "people", "models": "judge models", "all": "people and models"}[about["whose"]])
    )
    return Page(f"Grades: {about['title']}", facts, [], sections, plots[1:], no_plots, {}, _methods(report),
                summary_sentences(report), plots[0] if plots else None)  # fmt: skip


def _plots(report: Record) -> Iterator[Plot]:
    names = [*report["dimensions"], "overall"] if len(report["dimensions"]) > 1 else ["overall"]
    leaf = _leaf_names(names)
    panels = []
    for chunk in _chunks(report["candidates"], plot_style.LINES):
        things = {
            candidate["candidate"]: {
                leaf[name]: Bar(figure["value"], figure["low"], figure["high"])
                for name in names if (figure := candidate["grade"][name])["value"] is not None
            }
            for candidate in chunk
        }  # fmt: skip
        summary = join_names(
            f"{candidate['candidate']} {candidate['grade']['overall']['value']}" for candidate in chunk
        )
        panels.append(
            (dot_plot("Grade by dimension", list(leaf.values()), things, "grade, %"), f"Grades over all: {summary}")
        )
    yield Plot("grades", "Grade by dimension", "Marks are grades, lines their 95% intervals.", "", panels)
    yield from _heat_plots(report)
    yield from _waterfall_plots(report)


def _heat_plots(report: Record) -> Iterator[Plot]:
    graders = [grader for grader in report["graders"] if grader["by_dimension"]]
    leaf = _leaf_names(report["dimensions"])
    cells = {
        (leaf[name], grader["grader"]): cell["value"]
        for grader in graders for name, cell in grader["by_dimension"].items() if cell["value"] is not None
    }  # fmt: skip
    if not cells:
        return
    rows = list(leaf.values())
    panels = [
        (
            heat_map(
                "Disputes by grader, %", rows, [grader["grader"] for grader in chunk], cells, max(20.0, *cells.values())
            ),
            f"Shares of disputed grades of {join_names(grader['grader'] for grader in chunk)}",
        )
        for chunk in _chunks(graders, MAX_HEAT_COLUMNS)
    ]
    yield Plot("disputes", "Disputes of graders by dimension", "Numbers are the share of a grader's grades in dispute, "
               "in per cent.", "", panels)  # fmt: skip


def _waterfall_plots(report: Record) -> Iterator[Plot]:
    fluctuation = report["fluctuation"]
    panels = []
    for change in fluctuation["changes"] if fluctuation else []:
        if change["dimension"] == "overall":
            steps = [
                NamedBar(PART_NAMES[name], part["value"], part["low"], part["high"])
                for name, part in change["parts"].items()
            ]
            svg = waterfall_plot(
                change["candidate"], ("before", change["before"]), steps, ("after", change["after"]), "grade, %"
            )
            panels.append((svg, f"{change['candidate']} from {change['before']} to {change['after']}"))
    if panels:
        yield Plot("fluctuation", "Parts of changes", "Bars are parts of the change, lines their 95% "
                   "intervals.", "", panels)  # fmt: skip


def _leaf_names(paths: Sequence[str]) -> dict[str, str]:
    """Return short names of dimensions for plots: the last step of a path if it is unique."""
    last = [path.rpartition("/")[2] for path in paths]
    return {
        path: dimension_name(leaf if last.count(leaf) == 1 else path) for path, leaf in zip(paths, last, strict=True)
    }


def _chunks(things: Sequence[Record], size: int) -> list[Sequence[Record]]:
    return [things[at : at + size] for at in range(0, len(things), size)]


def _methods(report: Record) -> list[tuple[str, str]]:
    methods = [
        ("Grade", "The sum of grades divided by the sum of the highest grades, by dimension; groups and the total are "
                  "weighted means of dimensions, with weights normalized to 1."),
        ("Accuracy", "The share of grades that are not zero, averaged over dimensions in the same way."),
        ("Intervals", "95%, clustered by question, with dimensions as strata; they stay between 0 and 100, and are "
                      "not empty even if all grades are equal."),
        ("Differences", "On the questions for which both have grades; p is the larger of two p-values, from the "
                        "sign-flip test (Student's t above 100 questions) and from the interval, Holm-corrected over "
                        "all pairs. Intervals are corrected likewise: they contain 0 exactly if p is 0.05 or more."),
        ("Disputes", "A grade is in dispute if it is the only zero, or the only one above zero. An answer is in "
                     "dispute if half of its grades are zero; with an odd number of grades, if the smaller side has at "
                     "least two. Folders can set other rules."),
        ("Severity", "An additive model of answers and graders, so that only grades of the same answers are compared; "
                     "in grades; positive if a grader grades below the mean. Corrected grades add each grader's "
                     "severity; adjudicators' decisions are unchanged."),
        ("Differently graded", "An answer with at least two grades that are not all equal."),
        ("Missing grades", "Excluded from sums, and counted."),
    ]  # fmt: skip
    if report["fluctuation"] is not None:
        methods.append((
            "Changes", "Split by question (different question, different response, both the same) and grader (same or "
            "different). The four parts sum to the change; intervals by the jackknife over questions."
        ))  # fmt: skip
    return methods
