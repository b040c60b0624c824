"""The report of a load test: judges that change are named with the load at which they do; its form is as documented."""

from __future__ import annotations

import io
import re
from typing import Any

import jsonschema
import pytest
from judged_load import Habit, first_favoured, flattening, grade, graded, paired, reported, smaller, sound, truncating
from rich.console import Console

from viva.cli.tables import lay_out
from viva.loadtest.load_page import csv_rows, load_page
from viva.loadtest.load_schema import LoadReport, load_schema
from viva.loadtest.load_sentences import conclusions, headline, judge_conclusion, report_notes, step_sentence
from viva.loadtest.load_tables import load_tables
from viva.reports import plot_style
from viva.web.report.html_page import page_html

_OBJECTIVE = {
    "text": "drift<0.05",
    "met": False,
    "highest": [{"judge": "flat", "rate": 4.0}, {"judge": "small", "rate": None}],
    "steps": [{"step": 2, "judge": "flat", "rate": 8.0, "met": False, "missed": ["drift<0.05"], "saturated": True,
               "figures": {"drift": 0.1234}}],
}  # fmt: skip
_HABITS: dict[str, Habit] = {"steady": sound, "cutting": truncating, "flat": flattening, "small": smaller}


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    """Four judges on 60 requests at three rates."""
    return reported(_HABITS, models={"small": "openai:http://127.0.0.1:1/v1#small"}, objective=_OBJECTIVE)


def flags(report: dict[str, Any]) -> dict[str, list[str]]:
    return {
        judge["judge"]: [step["load"] for step in judge["judgement"]["steps"] if step["flagged"]]
        for judge in report["judges"]
    }


def test_each_judge_is_flagged_where_it_changes_and_nowhere_else(report: dict[str, Any]) -> None:
    assert flags(report) == {"steady": [], "cutting": ["8/s"], "flat": ["8/s"], "small": ["4/s", "8/s"]}


@pytest.mark.parametrize(
    ("judge", "said"),
    [
        (
            "steady",
            r"^steady: no change in verdicts found up to 8 requests/s \(100\.0% of 60 requests answered, verdicts on "
            r"60 compared, no change above \d\.\d%\)\.$",
        ),
        (
            "cutting",
            r"up to 4 requests/s \(.*\), but they change at 8 requests/s\. At 8 requests/s, 33\.3% of its answers "
            r"contain no verdict, mostly tr",
        ),
        ("flat", r"At 8 requests/s, the spread of its scores falls \(standard deviation 0\.\d\d instead of 2\.\d\d\)"),
        (
            "small",
            r"up to 1 request/s \(.*\), but they change at 4 requests/s\. At 4 requests/s, its scores differ from the "
            r"unloaded ones by \d\.\d\d on average",
        ),
    ],
)
def test_the_answer_comes_first_in_one_sentence(report: dict[str, Any], judge: str, said: str) -> None:
    [one] = [one for one in report["judges"] if one["judge"] == judge]
    assert re.search(said, judge_conclusion(one)), judge_conclusion(one)


def test_too_few_requests_claim_nothing_about_verdicts() -> None:
    found = reported({"one": sound, "other": lambda at, *_: grade(at % 8 + 2)}, graded(7))
    assert headline(found)[0].startswith("No change in verdicts found, but too little is known to say")
    one, other = conclusions(found)
    assert re.match(
        r"one: at 1 request/s, 7 requests are too few to tell: a change of up to \d+\.\d% of its scale may go "
        r"unnoticed; about \d+ items are needed\.$",
        one,
    ), one
    assert "a change of up to 35.4% of its scale may go unnoticed; about 35 items are needed." in other
    assert "found up to" not in " ".join(headline(found))
    judgement = load_tables(found)[0]
    assert {row[2] for row in judgement[2]} == {"too few"}
    enough = reported({"other": lambda at, *_: grade(at % 8 + 2)}, graded(35))
    assert conclusions(enough)[0].startswith("other: no change in verdicts found up to 8 requests/s (")


@pytest.mark.parametrize(
    ("lost", "said"), [(0.5, None), (0.11, None), (0.05, "up to 8 requests/s (95.0% of 60 requests")]
)
def test_where_many_requests_fail_nothing_is_claimed_about_verdicts(lost: float, said: str | None) -> None:
    found = reported({"steady": lambda at, *_: grade(at % 8 + 2)}, graded(60), lost={8.0: lost})
    [one] = conclusions(found)
    if said is not None:
        assert said in one
        return
    failed = round(lost * 60)
    assert "up to 4 requests/s (100.0% of 60 requests answered, verdicts on 60 compared, no change above 6.0%)." in one
    assert f"At 8 requests/s, {100 * failed / 60:.1f}% of 60 requests failed, and not at random" in one
    assert step_sentence(found["judges"][0]["judgement"]["steps"][-1], found["judges"][0]["judgement"]) in one
    assert load_tables(found)[0][2][-1][1] == "many failed"


def test_no_interval_excludes_0_beside_a_p_that_does_not(report: dict[str, Any]) -> None:
    figures = [one for judge in report["judges"] for step in judge["judgement"]["steps"] for one in step["figures"]]
    assert figures
    for one in figures:
        assert one["change"]["low"] <= one["change"]["value"] <= one["change"]["high"]
        assert one["p"] < report["alpha"] or one["change"]["low"] <= 0.0 <= one["change"]["high"], one


def test_verdicts_that_change_to_either_side_are_no_rise_and_no_fall() -> None:
    def either(at: int, load: float, generator: Any) -> tuple[str, str]:
        return grade(at % 8 + 2 + (0 if load < 8 or at > 5 else 3 if at % 2 else -2))

    [judge] = reported({"either": either})["judges"]
    step = judge["judgement"]["steps"][-1]
    assert step["flagged"]
    assert not [one["figure"] for one in step["figures"] if one["changed"] and one["figure"] in ("scores", "spread")]
    sentence = step_sentence(step, judge["judgement"])
    assert "differ from the unloaded ones" in sentence
    assert "rise" not in sentence
    assert "spread" not in sentence


def test_an_objective_of_latencies_names_the_share_that_was_answered_where_many_requests_failed() -> None:
    met = {"judge": "steady", "met": True, "missed": [], "saturated": False, "figures": {}}
    objective = {
        "text": "p95_e2e<3s",
        "met": True,
        "highest": [{"judge": "steady", "rate": 8.0}],
        "steps": [met | {"step": at, "rate": rate} for at, rate in enumerate((1.0, 4.0, 8.0))],
    }
    for lost, said in (
        (0.5, "p95_e2e<3s is met up to 8 requests/s (50.0% of requests answered)"),
        (0.0, "requests/s."),
    ):
        told = conclusions(reported({"steady": sound}, lost={8.0: lost}, objective=objective))
        assert said in told[1]


def test_a_fall_is_told_with_its_size_and_interval() -> None:
    def harsh(at: int, load: float, generator: Any) -> tuple[str, str]:
        from judged_load import grade

        return grade(at % 8 + 2 + generator.normal(0.0, 0.6) - (1.0 if load >= 8 else 0.0))

    [judge] = reported({"harsh": harsh})["judges"]
    step = judge["judgement"]["steps"][-1]
    sentence = step_sentence(step, judge["judgement"])
    told = re.match(r"At 8 requests/s, its scores fall by (\d\.\d\d) \((\d\.\d\d) to (\d\.\d\d)\)", sentence)
    assert told is not None, sentence
    value, low, high = map(float, told.groups())
    assert low < value < high
    assert 0.6 < value < 1.4
    assert sentence.endswith("this exceeds its own noise.")
    assert step["running"]["found_at"] is None or step["running"]["found_at"] <= 60


def test_a_judge_that_comes_to_favour_the_first_answer_is_found() -> None:
    found = reported({"pairs": first_favoured}, paired())
    assert flags(found) == {"pairs": ["4/s", "8/s"]}
    [judge] = found["judges"]
    assert "it favours the first answer" in judge_conclusion(judge)
    unloaded, loaded = judge["judgement"]["unloaded"]["position"], judge["judgement"]["steps"][1]["position"]
    assert unloaded["favour"]["value"] == 0.0
    assert (unloaded["consistent"]["value"], loaded["consistent"]["value"]) == (1.0, 0.0)


def test_without_unloaded_passes_nothing_is_claimed() -> None:
    from judged_load import answers, steps_of

    from viva.loadtest.load_report import make_load_record
    from viva.loadtest.step_judgement import passes_by_judge
    from viva.loadtest.workload import Workload

    requests, steps = graded(20), steps_of(["alone"])
    sent = (one for one in answers("alone", flattening, requests, steps) if one.step >= 0)
    passes = passes_by_judge({one.id: one for one in requests}, steps, sent)
    found = make_load_record(Workload("work", "requests", requests), passes, steps)
    assert conclusions(found) == ["alone: nothing is known about its verdicts under load."]
    jsonschema.validate(found, load_schema())


def test_a_judge_whose_answers_hold_no_verdict_is_not_called_sound() -> None:
    def chatting(at: int, load: float, generator: Any) -> tuple[str, str]:
        return f"A fine answer, number {at}.", "stop"

    found = reported({"chatty": chatting})
    assert conclusions(found) == [
        "chatty: nothing is known about its verdicts under load: none of its unloaded answers contains a verdict."
    ]
    [note] = report_notes(found)
    assert note == (
        "chatty: 100.0% of its unloaded answers contain no verdict, for example (parse): A fine answer, number 0."
    )
    assert flags(found) == {"chatty": []}
    jsonschema.validate(found, load_schema())


def test_the_record_has_the_documented_form(report: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(load_schema())
    jsonschema.validate(report, load_schema())
    assert LoadReport.model_validate(report).judges[0].judge == "steady"
    broken = {**report, "judges": [{**report["judges"][0], "surprise": 1}]}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, load_schema())


def test_no_number_of_a_table_is_folded_at_80_columns(report: dict[str, Any]) -> None:
    for title, header, rows in load_tables(report):
        text = io.StringIO()
        console = Console(file=text, width=80, force_terminal=False)
        for part in lay_out(header, rows, 80):
            console.print(part)
        printed = text.getvalue()
        assert all(len(line.rstrip()) <= 80 for line in printed.splitlines()), title
        words = set(printed.split())
        numbers = {word for row in rows for cell in row for word in cell.split() if re.search(r"\d", word)}
        assert numbers <= words, (title, numbers - words)


def test_the_page_says_the_answer_first_and_draws_drift_against_load(report: dict[str, Any]) -> None:
    page = load_page(report)
    first = "The verdicts of 3 of 4 judges change under load: "
    first += "cutting from 8 requests/s, flat from 8 requests/s, small from 4 requests/s."
    assert page.verdict == headline(report) == [first, *conclusions(report)]
    assert "flat: drift<0.05 is met up to 4 requests/s; at 8 it misses drift<0.05 (0.123), and its queue grows " \
        "without bound." in page.verdict  # fmt: skip
    assert page.decisive is not None
    assert page.decisive.anchor == "drift"
    text = page_html(page)
    assert text.index("no change in verdicts found") < text.index("<table")
    assert "verdicts changed" in text
    assert text.count(plot_style.light_colour("flag")) == 1, "drawings take the page's colours, for light and dark"
    measures = {(row["judge"], row["load"], row["measure"], row["aspect"]) for row in csv_rows(report)}
    assert ("small", "4/s", "verdicts", "score") in measures
    assert ("steady", "8/s", "drift", None) in measures
