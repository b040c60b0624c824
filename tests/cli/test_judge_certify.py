"""``viva judge certify``: labels are joined with a run or a file, figures corrected, and what to grade next written."""

from __future__ import annotations

import csv
import io
import json
import random
import re
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from case_tables import case_table
from small_dialogs import write_data

from viva.cli.main import app

ROOT = Path(__file__).parents[2]
Row = dict[str, str]


def _viva(*arguments: str | Path, ok: bool = True) -> tuple[str, str]:
    """The command in this process: its start, which others test, is most of its time."""
    out, err, code = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            app([str(one) for one in arguments], standalone_mode=False)
        except SystemExit as left:
            code = int(left.code or 0)
        out.flush()
    assert (code == 0) is ok, err.getvalue()
    assert isinstance(out.buffer, io.BytesIO)
    return out.buffer.getvalue().decode(), err.getvalue()


def _rows(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def _write(path: Path, rows: list[Row]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture(scope="module")
def interviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("interviews") / "run"
    items = ROOT / "scenarios" / "kieval" / "items" / "science.jsonl"
    models = ["--candidate", "simulated:a?knowledge=0.4", "--candidate", "simulated:b?knowledge=0.8"]
    models += ["--interactor", "simulated:i", "--evaluator", "simulated:e"]
    _viva("run", "kieval", "--dataset", items, *models, "--out", run)
    return run


def _key_rows(file: Path) -> list[Row]:
    return _rows(file.with_name(f"{file.stem}.key.csv"))


def _graded(file: Path, to: Path, grade: Callable[[Row], str]) -> Path:
    """The file for people with the grades that they give, beside a copy of its key file."""
    known = {row["id"]: row for row in _key_rows(file)}
    shutil.copy(file.with_name(f"{file.stem}.key.csv"), to.with_name(f"{to.stem}.key.csv"))
    return _write(to, [row | {"grade": grade(known[row["id"]])} for row in _rows(file)])


def _graded_by_people(file: Path, to: Path, *, lenient: int = 1) -> Path:
    """The judge is too lenient by a grade on a third of the answers."""
    draw = random.Random(28)
    return _graded(file, to, lambda row: str(max(1, int(row["score"]) - lenient * (draw.random() < 1 / 3))))


def test_rounds_are_drawn_graded_corrected_and_drawn_again(interviews: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    _viva("judge", "certify", interviews, "--rounds", "--select", "60", "--out", first)
    rows = _key_rows(first)
    assert len(_rows(first)) == 60
    assert [row["chosen"] for row in rows[:61]] == ["yes"] * 60 + ["no"]
    assert sum(float(row["probability"]) for row in rows) == pytest.approx(60)
    labels = _graded_by_people(first, tmp_path / "labels.csv")

    out, _ = _viva(
        "judge",
        "certify",
        interviews,
        "--labels",
        labels,
        "--select",
        "30",
        "--out",
        second,
        "--json",
        "--correlate",
        "right",
    )
    record = json.loads(out)
    assert record["labels"] == 60
    assert record["graded"] == "rounds"
    assert record["scale"] == {"low": 1.0, "high": 4.0, "passes": False}
    for name in ("a", "b"):
        one = record["candidates"][name]
        assert one["corrected"]["value"] < one["judged"]["value"]
        assert one["corrected"]["low"] < one["corrected"]["value"] < one["corrected"]["high"]
        assert one["worth"] > one["labels"]
        assert record["gaps"][name]["mean"]["value"] > 0
        assert -1 <= record["correlations"]["right"][name]["pearson"]["corrected"]["value"] <= 1
    [pair] = record["differences"]
    assert (pair["first"], pair["second"]) == ("a", "b")

    again = _key_rows(second)
    assert [row["grade"] for row in again[:30]] == [""] * 30
    assert sum(row["grade"] != "" for row in again) == 60
    before = {(row["key"], row["round"]): float(row["probability"]) for row in rows}
    assert all(float(row["probability"]) > before[row["key"], row["round"]] for row in again)
    # Its probabilities hold only once all that was chosen is graded.
    _, error = _viva("judge", "certify", interviews, "--labels", second, ok=False)
    assert f"{second}:2: field 'grade': is empty, although the answer was chosen" in error
    assert error.rstrip().endswith(": 30 still to grade")
    whole = _graded(second, tmp_path / "whole.csv", lambda row: row["score"])
    more = json.loads(_viva("judge", "certify", interviews, "--labels", whole, "--json")[0])
    assert more["labels"] == 90
    assert more["candidates"]["a"]["corrected"]["value"] < more["candidates"]["a"]["judged"]["value"]


@pytest.mark.parametrize("existing", ["next.csv", "next.key.csv"])
def test_grades_that_exist_are_never_overwritten(interviews: Path, tmp_path: Path, existing: str) -> None:
    file = tmp_path / "next.csv"
    _viva("judge", "certify", interviews, "--select", "5", "--out", file)
    (tmp_path / ({"next.csv", "next.key.csv"} - {existing}).pop()).unlink()
    content = (tmp_path / existing).read_bytes()
    _, error = _viva("judge", "certify", interviews, "--select", "5", "--out", file, ok=False)
    assert f"{existing} exists and may hold grades; choose another name" in " ".join(error.split())
    assert [path.name for path in tmp_path.iterdir()] == [existing]
    assert (tmp_path / existing).read_bytes() == content


@pytest.mark.parametrize("rounds", [True, False])
def test_people_are_shown_question_and_answer_in_random_order_and_nothing_of_judge_or_candidate(
    interviews: Path, tmp_path: Path, rounds: bool
) -> None:
    file, other = tmp_path / "next.csv", tmp_path / "other.csv"
    more = ["--rounds"] if rounds else []
    _, said = _viva("judge", "certify", interviews, *more, "--select", "40", "--out", file)
    assert "keep it in the same folder" in " ".join(said.split())
    rows, known = _rows(file), {row["id"]: row for row in _key_rows(file)}
    assert list(rows[0]) == ["id", "question", "answer", "grade"]
    assert all(row["question"] and row["answer"] and not row["grade"] for row in rows)
    candidates = [known[row["id"]]["candidate"] for row in rows]
    assert 5 < candidates[:20].count("a") < 15, "in the order of the run the first 20 would be one candidate's"
    assert not any(f"{name}/" in file.read_text() for name in ("a", "b"))
    assert not any(known[row["id"]]["key"] in "".join(row.values()) for row in rows)
    _viva("judge", "certify", interviews, *more, "--select", "40", "--out", other)
    assert other.read_text() == file.read_text()
    # Half of them are graded by somebody whose program sorts the lines: nothing changes.
    labels = _graded(file, tmp_path / "labels.csv", lambda row: row["score"])
    told = _viva("judge", "certify", interviews, "--labels", labels, "--json")[0]
    _write(labels, sorted(_rows(labels), key=lambda row: row["answer"]))
    assert _viva("judge", "certify", interviews, "--labels", labels, "--json")[0] == told
    # The key file alone, with grades in it, is a file of the former form.
    former = _write(
        tmp_path / "former.csv",
        [{name: value for name, value in (row | {"grade": row["score"] if row["chosen"] == "yes" else ""}).items()
          if name != "id"} for row in known.values()],
    )  # fmt: skip
    again = json.loads(_viva("judge", "certify", interviews, "--labels", former, "--json")[0])
    assert again["candidates"] == json.loads(told)["candidates"]


def test_grades_are_read_however_a_spreadsheet_program_saved_them(tmp_path: Path) -> None:
    scores = _scores(tmp_path / "scores.csv", 40)
    _viva("judge", "certify", scores, "--scale", "1:5", "--select", "30", "--out", tmp_path / "next.csv")
    assert (tmp_path / "next.csv").read_bytes().startswith(b"\xef\xbb\xbf"), "else Excel reads the local code page"
    assert all(row["id"].isalpha() for row in _rows(tmp_path / "next.csv")), "08e5 is a number to spreadsheet programs"
    labels = _graded(tmp_path / "next.csv", tmp_path / "labels.csv", lambda row: str(round(float(row["score"]))))
    rows = [[row[name] for name in ("grade", "answer", "id")] for row in _rows(labels)]

    def told(name: str, encoding: str, delimiter: str, ends: str = "\r\n") -> str:
        table = io.StringIO(newline="")
        csv.writer(table, delimiter=delimiter, lineterminator=ends).writerows([["Grade", "ANSWER", "id"], *rows])
        file = tmp_path / name
        file.write_bytes(table.getvalue().encode(encoding))
        shutil.copy(tmp_path / "next.key.csv", tmp_path / f"{file.stem}.key.csv")
        return _viva("judge", "certify", scores, "--scale", "1:5", "--labels", file, "--json")[0]

    plain = _viva("judge", "certify", scores, "--scale", "1:5", "--labels", labels, "--json")[0]
    assert {
        told("semicolons.csv", "utf-8-sig", ";"),
        told("unicode.txt", "utf-16", "\t"),
        told("LOUD.CSV", "utf-8", ",", "\r"),
    } == {plain}
    rows[3].insert(1, "a comma without quotes")
    _viva("judge", "certify", scores, "--scale", "1:5", "--labels", labels)
    with pytest.raises(AssertionError, match="has 4 cells where the header has 3"):
        told("broken.csv", "utf-8", ",")


def test_ids_do_not_follow_from_what_graders_know(tmp_path: Path) -> None:
    ids = []
    for change in ("1.00", "1.01"):
        rows = _rows(_scores(tmp_path / "scores.csv", 20))
        rows[0]["score"] = change
        scores = _write(tmp_path / "scores.csv", rows)
        _viva("judge", "certify", scores, "--scale", "1:5", "--select", "10", "--out", tmp_path / f"next-{change}.csv")
        ids.append({row["key"] + row["candidate"]: row["id"] for row in _key_rows(tmp_path / f"next-{change}.csv")})
    assert ids[0].keys() == ids[1].keys()
    assert not set(ids[0].values()) & set(ids[1].values()), "keys, candidates and seed alone make them"


def test_grades_whose_key_file_is_not_theirs_are_refused(tmp_path: Path) -> None:
    scores = _scores(tmp_path / "scores.csv", 10)
    _viva("judge", "certify", scores, "--scale", "1:5", "--select", "4", "--out", tmp_path / "next.csv")
    labels = _graded(tmp_path / "next.csv", tmp_path / "labels.csv", lambda row: "3")
    rows = _rows(labels)
    arguments: list[str | Path] = [scores, "--scale", "1:5", "--labels", labels]
    assert json.loads(_viva("judge", "certify", *arguments, "--json")[0])["labels"] == 4
    _write(labels, [*rows[:3], rows[0]])
    assert f"{labels}:5: field 'id'" in _viva("judge", "certify", *arguments, ok=False)[1]
    _write(labels, [*rows[:3], rows[3] | {"id": "ffff"}])
    assert "'ffff' is not in labels.key.csv" in _viva("judge", "certify", *arguments, ok=False)[1]
    labels.with_name("labels.key.csv").unlink()
    assert "labels.key.csv, is missing" in _viva("judge", "certify", *arguments, ok=False)[1]


def test_texts_of_a_file_of_scores_are_shown_and_are_no_formulas(tmp_path: Path) -> None:
    rows = [
        {
            "key": f"x/{n}",
            "candidate": "x",
            "score": str(n % 5 + 1),
            "question": f"What is {n}?",
            "answer": f"=1+{n}\n=2;=3",
        }
        for n in range(8)
    ]
    scores = _write(tmp_path / "scores.csv", rows)
    _viva("judge", "certify", scores, "--scale", "1:5", "--select", "3", "--out", tmp_path / "next.csv")
    shown = _rows(tmp_path / "next.csv")
    assert all(row["question"].startswith("What is ") and row["answer"].startswith("'=1+") for row in shown)
    assert all(row["answer"].endswith("\n =2; =3") for row in shown), (
        "other programs begin a cell at ends and semicolons"
    )


def test_the_answer_comes_first_and_tables_fit_100_columns(interviews: Path, tmp_path: Path) -> None:
    first, figures = tmp_path / "first.csv", tmp_path / "figures.csv"
    _viva("judge", "certify", interviews, "--select", "40", "--out", first)
    assert "round" not in _key_rows(first)[0]
    labels = _graded(first, tmp_path / "labels.csv", lambda row: f"{0.9 * float(row['score']):.3f}")
    out, _ = _viva("judge", "certify", interviews, "--labels", labels, "--csv", figures)
    lines = out.splitlines()
    assert lines[0].startswith("a: people's mean grade would be ")
    answer = " ".join(lines[: lines.index("")]).split(" b: ")[0]
    assert re.search(
        r"\. The judge's scores give [\d.]+; on the graded answers they are not significantly off\. ", answer
    )
    assert re.search(r"\. They make these \d+ labels as precise as \d+ alone\.$", answer)  # grades follow from scores
    lenient = _graded(first, tmp_path / "lenient.csv", lambda row: f"{max(0.0, float(row['score']) - 30):.3f}")
    answer = " ".join(_viva("judge", "certify", interviews, "--labels", lenient)[0].split()).split(" b: ")[0]
    assert re.search(r"; on the graded answers they are \d[\d.]+ too high\. ", answer)
    assert max(map(len, lines[: lines.index("")])) <= 80
    table = [line for line in lines if line.startswith("  ")]
    assert table
    assert max(map(len, table)) <= 100
    written = _rows(figures)
    assert {row["figure"] for row in written} >= {"judged", "corrected", "labels_alone"}
    same, _ = _viva("judge", "certify", interviews, "--labels", labels)
    assert same == out


def test_of_a_run_of_rulings_only_what_the_judge_was_asked_about_is_graded(tmp_path: Path) -> None:
    models = ["--candidate", "simulated:c?knowledge=0", "--judge", "simulated:j?noise=0.5", "--repeats", "12"]
    _viva("run", "functionchat", "--data", write_data(tmp_path / "data"), *models, "--out", tmp_path / "run")
    _viva("judge", "certify", tmp_path / "run", "--select", "20", "--out", tmp_path / "next.csv")
    rows = _key_rows(tmp_path / "next.csv")
    assert {row["score"] for row in rows} == {"pass", "fail"}
    labels = _graded(tmp_path / "next.csv", tmp_path / "labels.csv", lambda row: "fail")
    record = json.loads(_viva("judge", "certify", tmp_path / "run", "--labels", labels, "--json")[0])
    assert record["scale"] == {"low": 0.0, "high": 1.0, "passes": True}
    assert record["answers"] == len(rows) < 12 * 40
    assert record["candidates"]["c"]["labels"] == 20
    assert record["gaps"]["c"]["mean"]["value"] > 0
    _, error = _viva(
        "judge", "certify", tmp_path / "run", "--select", "1", "--out", tmp_path / "n", "--rounds", ok=False
    )
    assert "a run of functionchat is graded as a whole; remove 'round' from the labels" in error


def test_pass_and_fail_have_rates_by_both_ways(tmp_path: Path) -> None:
    draw = random.Random(3)
    good = [draw.random() < 0.7 for _ in range(200)]
    told = ["pass" if (draw.random() < 0.95 if one else draw.random() < 0.5) else "fail" for one in good]
    scores = _write(tmp_path / "scores.csv", [{"key": f"q{n}", "score": one} for n, one in enumerate(told)])
    grades = [{"key": f"q{n}", "grade": "pass" if good[n] else "fail"} for n in range(60)]
    labels = _write(tmp_path / "labels.csv", grades)
    out, _ = _viva("judge", "certify", scores, "--labels", labels)
    assert out.startswith("all: people's pass rate would be ")
    assert "Rogan–Gladen" in out
    record = json.loads(_viva("judge", "certify", scores, "--labels", labels, "--json")[0])
    one, gap = record["candidates"]["all"], record["gaps"]["all"]
    assert one["corrected"]["low"] < sum(good) / 200 < one["corrected"]["high"] < one["judged"]["value"] + 0.1
    assert gap["rogan_gladen"]["low"] < sum(good) / 200 < gap["rogan_gladen"]["high"]
    assert gap["sensitivity"]["n"] + gap["specificity"]["n"] == 60


def _scores(path: Path, count: int = 120) -> Path:
    draw = random.Random(1)
    rows = [
        {
            "key": f"q{n}",
            "candidate": name,
            "item": f"i{n // 2}",
            "score": f"{draw.uniform(1, 5):.2f}",
            "length": str(n),
        }
        for n in range(count)
        for name in ("x", "y")
    ]
    return _write(path, rows)


def test_a_file_of_scores_of_any_program_will_do(tmp_path: Path) -> None:
    scores = _scores(tmp_path / "scores.csv")
    lines = [
        {"key": row["key"], "candidate": row["candidate"], "grade": max(1.0, float(row["score"]) - 0.5)}
        for row in _rows(scores)[:80]
    ]
    labels = tmp_path / "labels.jsonl"
    labels.write_text("".join(json.dumps(line) + "\n" for line in lines))
    pairs = [{"score": row["score"], "grade": row["score"]} for row in _rows(scores)[80:140]]
    calibration = _write(tmp_path / "calibration.csv", pairs)
    arguments: list[str | Path] = ["--labels", labels, "--correlate", "length", "--calibration", calibration]
    record = json.loads(_viva("judge", "certify", scores, *arguments, "--scale", "1:5", "--json")[0])
    assert record["candidates"]["x"]["corrected"]["value"] < record["candidates"]["x"]["judged"]["value"] - 0.3
    assert record["drift"]["found_at"] is not None
    assert record["drift"]["gap"]["high"] < 0
    out, _ = _viva("judge", "certify", scores, *arguments, "--scale", "1:5")
    assert "The judge has drifted from its calibration" in out
    _, error = _viva("judge", "certify", scores, *arguments, ok=False)
    assert "give --scale LOW:HIGH" in error


SCENARIOS = """
import viva

@viva.scenario(many="pupil")
async def right(conversation: viva.Conversation, number: int) -> float:
    return float(number % 8 > 0)

@viva.scenario(many="pupil")
async def words(conversation: viva.Conversation, number: int) -> int:
    return 4000 + 37 * number
"""


@pytest.mark.parametrize(("name", "scale", "worst"), [("right", "0:1", "0"), ("words", "0:9000", "4000")])
def test_a_scenario_that_declares_no_range_has_no_scale_of_0_to_100(
    name: str, scale: str, worst: str, tmp_path: Path
) -> None:
    (tmp_path / "scenarios.py").write_text(SCENARIOS)
    (tmp_path / "tasks.jsonl").write_text("".join(f"{number}\n" for number in range(24)))
    run, file = tmp_path / "run", tmp_path / "next.csv"
    of = f"{tmp_path / 'scenarios.py'}#{name}"
    _viva("run", of, "--tasks", tmp_path / "tasks.jsonl", "--pupil", "simulated:a", "--out", run)
    _, told = _viva("judge", "certify", run, "--select", "12", "--out", file)
    assert "Fill in the column 'grade' (numbers)" in " ".join(told.split())
    assert not any(row["question"].startswith("a/") for row in _rows(file)), "its key would name the candidate"
    labels = _graded(file, tmp_path / "labels.csv", lambda row: row["score"])
    out, notes = _viva("judge", "certify", run, "--labels", labels)
    assert "give --scale LOW:HIGH" in notes
    record = json.loads(_viva("judge", "certify", run, "--labels", labels, "--scale", scale, "--json")[0])
    low, high = map(float, scale.split(":"))
    assert low <= record["candidates"]["a"]["corrected"]["low"] < record["candidates"]["a"]["corrected"]["high"] <= high
    assert (record["scale"]["low"], record["scale"]["high"]) == (low, high)
    alike = _graded(file, tmp_path / "alike.csv", lambda row: worst)
    out, _ = _viva("judge", "certify", run, "--labels", alike)
    assert "no interval: the 12 labels are all alike" in " ".join(out.split())
    assert "outside of 5 to 6" in _viva("judge", "certify", run, "--labels", alike, "--scale", "5:6", ok=False)[1]


@case_table(
    ("change", "said"),
    [
        ({"key": "q999"}, "3: field 'key': {scores} has no graded answer 'q999' by 'x'; it has 'q9'"),
        ({"key": "q0"}, "3: field 'key': 'q0' is graded in line 2 already; keep one of them"),
        ({"grade": "6"}, "3: field 'grade': expected a number from 1 to 5, found '6'"),
        ({"grade": "good"}, "3: field 'grade': expected a number from 1 to 5, found 'good'"),
        ({"candidate": ""}, "3: field 'candidate': is missing; {scores} has 'q1' by several candidates"),
        ({"probability": "0"}, "3: field 'probability': expected a number above 0 and at most 1, found '0'"),
        ({"probability": "0.5"}, "2: field 'probability': is missing, although other grades have one"),
        ({"chosen": "no"}, "3: field 'chosen': is no, but there is a grade"),
        ({"chosen": "perhaps"}, "3: field 'chosen': expected yes or no, found 'perhaps'"),
        ({"round": "2"}, "3: field 'round': {scores} has no rounds; remove the field from all lines"),
    ],
)
def test_a_label_that_is_wrong_is_refused_with_its_line(change: Row, said: str, tmp_path: Path) -> None:
    from viva.engine.errors import DatasetError
    from viva.grading.human_grades import read_graded_answers, read_grades

    scores = _scores(tmp_path / "scores.csv", 10)
    empty = {"probability": "", "chosen": "", "round": ""}
    rows: list[Row] = [{"key": f"q{n}", "candidate": "x", "grade": "3", **empty} for n in range(5)]
    rows[1] |= change
    labels = _write(tmp_path / "labels.csv", rows)
    answers = read_graded_answers(scores, by_round=False, scale=(1.0, 5.0))
    with pytest.raises(DatasetError) as caught:
        read_grades(labels, answers)
    assert f"{labels}:{said.format(scores=scores)}" in str(caught.value)


def test_what_cannot_be_is_refused_on_the_command_line(interviews: Path, tmp_path: Path) -> None:
    def error(*arguments: str | Path) -> str:
        return _viva("judge", "certify", *arguments, ok=False)[1]

    assert "give --labels FILE, or --select N --out FILE.csv" in error(interviews)
    assert "--select N and --out FILE.csv need each other" in error(interviews, "--select", "3")
    assert "ask for 1 to 80" in error(interviews, "--select", "1000", "--out", tmp_path / "next.csv")
    assert "this command reads that file" in error(
        _scores(tmp_path / "s.csv"), "--select", "3", "--out", tmp_path / "s.csv"
    )
    assert "--confidence 95: expected a share" in error(interviews, "--labels", "no.csv", "--confidence", "95")
    assert "--scale 5:1: expected LOW:HIGH" in error(
        interviews, "--select", "3", "--out", tmp_path / "n", "--scale", "5:1"
    )


def test_no_name_is_computed_by_a_spreadsheet_or_moves_the_cursor(tmp_path: Path) -> None:
    items = _write(tmp_path / "items.csv", [
        {"id": f"+1+cmd|{n}", "question": "=1+1", "A": "x", "B": "y", "answer": "A"} for n in range(12)
    ])  # fmt: skip
    models = ["--candidate", 'simulated:a?label==HYPERLINK("x")', "--candidate", "simulated:b?label=\x1b[31mred"]
    models += ["--interactor", "simulated:i", "--evaluator", "simulated:e", "--rounds", "1"]
    _viva("run", "kieval", "--dataset", items, *models, "--out", tmp_path / "run")
    file, told = tmp_path / "next.csv", tmp_path / "told.csv"
    _viva("judge", "certify", tmp_path / "run", "--select", "12", "--out", file)
    labels = _graded(file, tmp_path / "labels.csv", lambda row: row["score"])
    _, err = _viva("judge", "certify", tmp_path / "run", "--labels", labels, "--csv", told)
    assert "\x1b" not in err
    named = {
        cell for one in (*_key_rows(file), *_rows(told)) for name in ("key", "candidate") if (cell := one.get(name))
    }
    assert any(cell.startswith("'=HYPERLINK") for cell in named)
    assert not any(cell.startswith(("=", "+", "-", "@")) or "\x1b" in cell for cell in named)
