"""The report of a grading folder: by hand, byte by byte, with every export, through the command line."""

from __future__ import annotations

import csv
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest
from typer.testing import CliRunner, Result

from viva.engine.errors import ConfigurationError
from viva.grading.disputes import read_criteria, read_disputes, read_grade_table
from viva.grading.records import Answer, Label, Question, Turn
from viva.grading.store import GradeStore
from viva.scenarios.lalaeval.commands.grading_folder import read_round
from viva.scenarios.lalaeval.commands.verbs import app
from viva.scenarios.lalaeval.graded_round import grader_consistency
from viva.scenarios.lalaeval.round_figures import ReportOptions, figure_rows, make_report
from viva.scenarios.lalaeval.round_report import report_tables

DIMENSIONS = ("domain/facts/terms", "domain/facts/rules", "domain/wording", "general/logic")
WEIGHTS = dict(zip(DIMENSIONS, (0.4, 0.2, 0.2, 0.2), strict=True))
CANDIDATES = ("alpha", "beta", "gamma/7b")
PEOPLE = ("Ada", "Ben", "Cleo")


def value_of(question: int, candidate: int, grader: int, shift: int = 0) -> float:
    """An invented grade, 0–3."""
    return float(
        min(3, max(0, (5 * question + 3 * candidate + question * grader) % 4 + (candidate - 1) - grader + shift))
    )


def make_folder(folder: Path, *, shift: int = 0, graders: Sequence[str] = PEOPLE, questions: int = 12) -> Path:
    """A folder in which everybody grades everything; each fourth question is of the next dimension."""
    labels = [Label(float(value), f"meaning {value}") for value in range(4)]
    listed = [
        Question(f"q{k}", f"What of {k}?", labels,
                 [Answer(one, [Turn("assistant", f"{one} {k}")]) for one in CANDIDATES], dimension=DIMENSIONS[k % 4])
        for k in reversed(range(questions))
    ]  # fmt: skip
    listed.append(Question("gold", "Gold?", labels, [Answer("gold 1", [Turn("assistant", "x")], expected=1.0)],
                           dimension=DIMENSIONS[0], gold=True, overlap=None))  # fmt: skip
    about = {
        "round": folder.name, "weights": WEIGHTS, "rubric": {"version": 1, "digest": "d"},
        "versions": {f"q{k}": "same" for k in range(questions)},
        "responses": {f"q{k}": {one: "same" if k else str(shift) for one in CANDIDATES} for k in range(questions)},
    }  # fmt: skip
    with (
        GradeStore.create(folder, listed, title="Library", seed=1, about=about, clock=lambda: 1.0) as store,
        store.batch(),
    ):
        for at, name in enumerate(graders):
            number = store.add_grader(name).number
            for question in list(store.questions()):
                for answer in question.answers:
                    value = 1.0 if question.gold else value_of(int(question.id[1:]), CANDIDATES.index(answer.candidate),
                                                               at, shift)  # fmt: skip
                    store.grade(number, answer.id, value, submission=f"{name}/{answer.id}")
        store.add_grader("Dora", role="adjudicator")
    return folder


def called(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    assert result.exit_code == code, result.output
    return result


def test_grades_are_those_of_a_hand_computation(tmp_path: Path) -> None:
    report = json.loads(called("report", make_folder(tmp_path / "june"), "--json").stdout)
    for q, one in enumerate(report["candidates"]):
        assert one["candidate"] == CANDIDATES[q]
        by_hand = {}
        for j, dimension in enumerate(DIMENSIONS):
            given = [value_of(k, q, i) for k in range(j, 12, 4) for i in range(3)]
            by_hand[dimension] = 100 * sum(given) / (3 * len(given))
            assert one["grade"][dimension]["value"] == pytest.approx(by_hand[dimension], abs=1e-5)
            accuracy = 100 * sum(value > 0 for value in given) / len(given)
            assert one["accuracy"][dimension]["value"] == pytest.approx(accuracy, abs=1e-5)
        total = sum(WEIGHTS[name] * by_hand[name] for name in DIMENSIONS)
        assert one["grade"]["overall"]["value"] == pytest.approx(total, abs=1e-5)
    assert report["counts"]["grades"] == 12 * 3 * 3
    assert report["counts"]["missing"] == 0
    assert report["dimensions"] == list(DIMENSIONS), "as the project names them"
    assert report["groups"] == ["domain/facts", "domain", "general", "overall"]
    best = max(report["candidates"], key=lambda one: one["grade"]["overall"]["value"])
    assert report["answer"][0].startswith(best["candidate"])


def test_the_same_grades_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = make_folder(tmp_path / "one" / "june"), make_folder(tmp_path / "two" / "june")
    for name, options in {"json": ["--json"], "text": []}.items():
        assert called("report", first, *options).stdout == called("report", second, *options).stdout, name
    for folder, page in ((first, "a.html"), (second, "b.html")):
        called("report", folder, "--html", tmp_path / page)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_every_export_holds_what_the_report_says(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "june")
    files = {name: tmp_path / f"out.{name}" for name in ("csv", "html", "parquet", "grades", "inspect")}
    options = [each for name, file in files.items() for each in (f"--{name}", file)]
    report = json.loads(called("report", folder, "--json", *options).stdout)
    with files["csv"].open(newline="") as file:
        figures = {(row["candidate"], row["measure"], row["dimension"]): row["value"] for row in csv.DictReader(file)
                   if row["part"] == "candidates"}  # fmt: skip
    for one in report["candidates"]:
        assert float(figures[one["candidate"], "grade", "overall"]) == one["grade"]["overall"]["value"]
    with files["grades"].open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == report["given"]["rows"] == 12 * 3
    shown = [["" if value is None else str(value) for value in row] for row in report["given"]["first"]]
    assert shown == [list(row.values()) for row in rows[:12]], "the report shows the beginning of the table"
    assert list(rows[0]) == ["dimension", "question", "grader", *(f"grade of {one}" for one in CANDIDATES)]
    assert parquet.read_table(files["parquet"]).num_rows == 12 * 3
    page = files["html"].read_text()
    assert page.count("<svg") >= 2
    assert "Grade by dimension" in page
    assert all(f">{one.rpartition('/')[2]}</text>" in page or f"<!-- {one.rpartition('/')[2]} -->" in page
               for one in DIMENSIONS), "a drawing names the last step of a path"  # fmt: skip
    assert sorted(path.name for path in files["inspect"].iterdir()) == ["alpha.jsonl", "beta.jsonl", "gamma-7b.jsonl"]
    records = [json.loads(line) for line in (files["inspect"] / "beta.jsonl").read_text().splitlines()]
    assert len({record["id"] for record in records}) == len(records) == 12
    for record in records:
        k = int(record["id"][1:])
        assert record["value"] == pytest.approx(sum(value_of(k, 1, i) for i in range(3)) / 9, abs=1e-5)
        assert set(record) == {"id", "value", "metadata"}


_INSPECT = """
import json, sys
from inspect_ai import Task, eval, score
from inspect_ai.dataset import Sample
from inspect_ai.scorer import precomputed_scores
from inspect_ai.solver import solver

@solver
def nothing():
    async def solve(state, generate):
        return state
    return solve

samples = [Sample(input="?", target="x", id=name) for name in (*(f"q{k}" for k in range(12)), "ungraded")]
[log] = eval(Task(dataset=samples, solver=nothing()), model="mockllm/model", display="none", log_dir=sys.argv[2])
found = score(log, precomputed_scores(sys.argv[1]), display="none")
scores = {str(one.id): [each.value for each in (one.scores or {}).values()] for one in found.samples}
print(json.dumps([scores, found.results.scores[0].metrics["accuracy"].value]))
"""


def test_inspect_reads_the_scores_that_are_written_for_it(tmp_path: Path) -> None:
    python = Path(__file__).parents[3] / ".inspect" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"there is no {python} (make .inspect/bin/python)")
    folder, out = make_folder(tmp_path / "june"), tmp_path / "inspect"
    with GradeStore.open(folder) as store, store.batch():
        judge = store.add_grader("judge", kind="model", model="simulated:judge").number
        for answer in [answer for question in store.questions() for answer in question.answers]:
            store.grade(judge, answer.id, 3.0, submission=answer.id)
    called("report", folder, "--inspect", out)
    arguments = [str(python), "-c", _INSPECT, str(out / "beta.jsonl"), str(tmp_path / "logs")]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    scores, mean = json.loads(done.stdout.splitlines()[-1])
    by_hand = {f"q{k}": [pytest.approx(sum(value_of(k, 1, i) for i in range(3)) / 9, abs=1e-6)] for k in range(12)}
    assert scores == by_hand | {"ungraded": []}
    assert mean == pytest.approx(sum(value_of(k, 1, i) for k in range(12) for i in range(3)) / 108, abs=1e-6)


def test_changes_against_an_earlier_round(tmp_path: Path) -> None:
    june = make_folder(tmp_path / "june")
    july = make_folder(tmp_path / "july", shift=1, graders=("Ada", "Ben", "Eve"), questions=14)
    report = json.loads(called("report", july, "--against", june, "--json", "--html", tmp_path / "r.html").stdout)
    overall = [one for one in report["fluctuation"]["changes"] if one["dimension"] == "overall"]
    assert [one["candidate"] for one in overall] == list(CANDIDATES)
    for one, candidate in zip(overall, report["candidates"], strict=True):
        assert one["after"] == candidate["grade"]["overall"]["value"]
        assert sum(part["value"] for part in one["parts"].values()) == pytest.approx(one["change"]["value"], abs=5e-6)
        assert one["parts"]["same_grader"]["value"] != 0
    assert "Parts of changes" in (tmp_path / "r.html").read_text()
    assert any("since the earlier round" in sentence for sentence in report["answer"])
    tags = tmp_path / "tags.csv"
    tags.write_text("question,candidate,same\n" + "".join(f"q0,{one},yes\n" for one in CANDIDATES))
    tagged = json.loads(called("report", july, "--against", june, "--tags", tags, "--json").stdout)
    for one in tagged["fluctuation"]["changes"]:
        assert one["parts"]["response"]["value"] == 0, "the only response with another digest is tagged as the same"
    tags.write_text("question,candidate,same\nq0,alpha,perhaps\n")
    with pytest.raises(ConfigurationError, match=r"tags\.csv:2: expected a question, and yes or no"):
        read_round(july, None, tags)


def test_adjudicators_decide_what_the_report_calls_disputed(tmp_path: Path) -> None:
    # Of six graders two against four are no dispute, neither of one grader nor in halves.
    folder = make_folder(tmp_path / "june", graders=("Ada", "Ben", "Cleo", "Eve", "Finn", "Gil"))
    with GradeStore.open(folder) as store:
        found = read_disputes(store, read_criteria(store.meta("about")))
    sides = [sum(value_of(k, q, i) > 0 for i in range(6)) for k in range(12) for q in range(3)]
    assert 0 < len(found.disputed) < sum(0 < side < 6 for side in sides)
    counts = make_report(read_round(folder))["counts"]
    assert counts["disputed"] == counts["undecided"] == len(found.disputed)
    assert found.agreed == 36 - len(found.disputed)


def test_decisions_count_and_original_grades_are_disputed(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "june")
    before = make_report(read_round(folder))
    with GradeStore.open(folder) as store:
        answer = next(one for one in store.question(1).answers)
        store.decide(answer.id, store.grader("Dora").number, 3.0, "all points are there")
        place, question = CANDIDATES.index(answer.candidate), int(store.question(1).id[1:])
        as_read = read_grade_table(store)
    assert np.array_equal(read_round(folder).table.values, as_read.values, equal_nan=True)
    after = make_report(read_round(folder))
    moved = 9 - sum(value_of(question, place, i) for i in range(3))
    dimension = DIMENSIONS[question % 4]
    gained = [one["candidates"][place]["grade"][dimension]["value"] for one in (before, after)]
    assert gained[1] - gained[0] == pytest.approx(100 * moved / 27, abs=1e-5)
    assert (before["counts"]["decided"], after["counts"]["decided"]) == (0, 1)
    assert after["disputes"] == before["disputes"]
    for earlier, later in zip(before["candidates"], after["candidates"], strict=True):
        assert later["before_adjudication"] == earlier["grade"]
        assert "before_adjudication" not in earlier  # nothing was decided
    titles = [title for title, _, rows in report_tables(after) if rows]
    assert "Grade before adjudication, % of the attainable (95% interval)" in titles
    measures = {row["measure"] for row in figure_rows(after) if row["part"] == "candidates"}
    assert measures == {"grade", "before_adjudication", "accuracy", "corrected"}
    assert [one["severity"] for one in after["graders"]] == [one["severity"] for one in before["graders"]]


def test_an_invalid_question_and_an_invalid_grade_leave_the_figures_and_come_back(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "june")
    whole = called("report", folder, "--json").stdout
    called("invalidate", folder, "q3", "--by", "Dora", "--reason", "the source is outdated")
    called("invalidate", folder, "q4", "--grader", "Cleo", "--candidate", "beta", "--by", "Dora", "--reason", "misread")
    counts = json.loads(called("report", folder, "--json").stdout)["counts"]
    assert (counts["questions"], counts["invalid_questions"]) == (11, 1)
    assert (counts["grades"], counts["invalid"]) == (12 * 9 - 10, 10)
    with GradeStore.open(folder) as store:
        assert any(who == "Dora" and "outdated" in what for _, who, what in store.audit_log())
        assert sum(bool(one.invalid) for one in store.grades()) == 1
    called("invalidate", folder, "q3", "--by", "Dora", "--reason", "")
    called("invalidate", folder, "q4", "--grader", "Cleo", "--by", "Dora", "--reason", "")
    assert called("report", folder, "--json").stdout == whole


def test_what_cannot_be_invalidated_is_named(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "june")
    by = ("--by", "Dora", "--reason", "wrong")
    assert "there is no question 'q99'" in called("invalidate", folder, "q99", *by, code=2).output
    assert "there is no grader 'Zoe'" in called("invalidate", folder, "q1", "--grader", "Zoe", *by, code=2).output
    assert (
        "has no answer of 'delta'"
        in called("invalidate", folder, "q1", "--grader", "Ada", "--candidate", "delta", *by, code=2).output
    )


def test_models_are_told_apart_from_people(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "june")
    people = make_report(read_round(folder))
    with GradeStore.open(folder) as store, store.batch():
        judge = store.add_grader("judge", kind="model", model="simulated:judge")
        for question in list(store.questions()):
            for answer in question.answers:
                store.grade(judge.number, answer.id, 3.0, submission=f"judge/{answer.id}")
    report = make_report(read_round(folder))
    assert [one["grade"] for one in report["candidates"]] == [one["grade"] for one in people["candidates"]]
    [model] = report["agreement"]["models"]
    assert (model["grader"], model["answers"]) == ("judge", 36)
    [told] = [one for one in report["graders"] if one["model"]]
    assert told["severity"]["value"] < 0, "full marks for everybody are mild"
    everybody = make_report(read_round(folder), None, ReportOptions("all"))
    assert (
        everybody["candidates"][0]["grade"]["overall"]["value"] > people["candidates"][0]["grade"]["overall"]["value"]
    )


def _with_judge(folder: Path) -> Path:
    """The folder with a judge that agrees with Cleo on everything, and with a person who graded nothing."""
    with GradeStore.open(folder) as store, store.batch():
        judge = store.add_grader("judge", kind="model", model="simulated:judge")
        for question in list(store.questions()):
            for answer in question.answers:
                if question.gold:
                    continue
                value = value_of(int(question.id[1:]), CANDIDATES.index(answer.candidate), 2)
                store.grade(judge.number, answer.id, value, submission=f"judge/{answer.id}")
    return folder


def test_a_judge_neither_acquits_a_person_of_retraining_nor_opens_disputes_among_people(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "june")
    people = make_report(read_round(folder))
    report = make_report(read_round(_with_judge(folder)))
    for part in ("disputes", "questions", "counts"):
        without = {"grades", "counted"} if part == "counts" else set()
        assert without or report[part] == people[part]
    assert report["counts"]["disputed"] == people["counts"]["disputed"]
    told = ("disputes", "by_dimension", "consistency", "gate", "references", "retrain")
    assert [{name: one[name] for name in told} for one in report["graders"] if not one["model"]] == [
        {name: one[name] for name in told} for one in people["graders"]
    ]
    [judge] = [one for one in report["graders"] if one["model"]]
    assert judge["consistency"]["value"] is not None  # it is compared with people
    asked = make_report(read_round(folder), None, ReportOptions("all"))
    cleo = [next(one for one in each["graders"] if one["grader"] == "Cleo") for each in (report, asked)]
    assert cleo[1]["disputes"]["value"] < cleo[0]["disputes"]["value"]


def test_a_judge_opens_disputes_for_adjudicators_only_where_the_rules_say_so(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "june", graders=("Ada", "Ben"))
    with GradeStore.open(folder) as store:
        before = read_disputes(store, read_criteria(None))
    with GradeStore.open(_with_judge(folder)) as store:
        assert read_disputes(store, read_criteria(None)) == before
        asked = read_disputes(store, read_criteria({"rules": {"models": True}}))
    assert {one.answer for one in asked.disputed} - {one.answer for one in before.disputed}


def test_consistency_decides_who_may_grade(tmp_path: Path) -> None:
    labels = [Label(float(value), "m") for value in range(4)]
    questions = [
        Question(f"q{k}", "?", labels, [Answer("alpha", [Turn("assistant", "x")], expected=2.0)], dimension="d",
                 gold=True, overlap=None)
        for k in range(10)
    ]  # fmt: skip
    questions.append(Question("open", "?", labels, [Answer("alpha", [Turn("assistant", "x")])], dimension="d"))
    with GradeStore.create(tmp_path / "trial", questions, title="Trial", about={"kind": "trial"}) as store:
        for name, right in (("Ada", 10), ("Ben", 3), ("Cleo", 0)):
            grader = store.add_grader(name).number
            for k, question in enumerate(list(store.questions())[: 4 if name == "Cleo" else 11]):
                value = 2.0 if k < right or not question.gold else 0.0
                store.grade(grader, question.answers[0].id, value, submission=f"{name}/{k}")
    graded = read_round(tmp_path / "trial")
    ada, ben, cleo = grader_consistency(graded)
    assert (ada.gate, ada.answers, ada.references) == ("passes", 11, {"gold": 10, "others": 1})
    assert (ben.gate, ben.consistency and round(ben.consistency.value, 6)) == ("retrain", round(4 / 11, 6))
    assert (cleo.gate, cleo.answers) == ("too few", 4)
    assert [one["grader"] for one in make_report(graded)["graders"] if one["retrain"]] == ["Ben"]


def test_tables_fit_a_terminal_and_a_folder_without_grades_is_told(tmp_path: Path) -> None:
    text = called("report", make_folder(tmp_path / "june")).stdout
    assert max(map(len, text.split("\n\n")[0].splitlines())) <= 80
    for title in ("Grade, %", "Accuracy", "Disagreement", "Agreement of graders", "Consistency", "Questions to review",
                  "Individual grades (the first 12 of 36 rows; all: --grades FILE)"):  # fmt: skip
        assert title in text
    assert (
        "there are no grades to report yet"
        in called("report", make_folder(tmp_path / "empty", graders=()), code=2).output
    )
    assert "--tags" in called("report", tmp_path / "june", "--tags", tmp_path / "x.csv", code=2).output
    assert "expected one of" in called("report", tmp_path / "june", "--grader", "nobody", code=2).output
