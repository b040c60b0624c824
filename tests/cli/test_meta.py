"""``viva judge compare`` as a user types it: a run joined with ratings, files written, mistakes told."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import command
import orjson
import pytest

from viva.cli.main import app

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"


class Done(NamedTuple):
    """What a command came to."""

    returncode: int
    stdout: str
    stderr: str


Viva = Callable[..., Done]


@pytest.fixture
def viva(capfd: pytest.CaptureFixture[str]) -> Viva:
    """The command in this process, which has loaded scipy already."""

    def call(*arguments: str | Path) -> Done:
        capfd.readouterr()
        code = 0
        try:
            app([*map(str, arguments)], standalone_mode=False)
        except SystemExit as end:
            code = int(end.code or 0)
        return Done(code, *capfd.readouterr())

    return call


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six interviews of two candidates."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    models = ["--candidate", "simulated:a?knowledge=0.9", "--candidate", "simulated:b?knowledge=0.1"]
    models += ["--interactor", "simulated:i", "--evaluator", "simulated:judge"]
    words = ["run", "kieval", "--dataset", str(ITEMS), "-n", "6", *models, "--rounds", "2", "--out", str(folder)]
    done = command.viva(*words)
    assert done.returncode == 0, done.stderr
    return folder


def _rated(run: Path, file: Path, rounds: bool = False) -> list[dict[str, object]]:
    from viva.reports.studies.rating_sheet import run_sheet

    wanted = [row for row in run_sheet(run).rows if (row.turn is not None) == rounds]
    records: list[dict[str, object]] = []
    for at, row in enumerate(wanted):
        record: dict[str, object] = {"item": row.item, "candidate": row.system, "rating": 1 + at * 7 % 4}
        records.append(record | ({"turn": row.turn} if rounds else {}))
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return records


def test_a_run_beside_ratings_of_whole_interviews_and_of_rounds(run: Path, tmp_path: Path, viva: Viva) -> None:
    whole, rounds = tmp_path / "whole.jsonl", tmp_path / "rounds.jsonl"
    assert len(_rated(run, whole)) == 12
    assert len(_rated(run, rounds, rounds=True)) >= 12
    done = viva("judge", "compare", run, "--ratings", whole, "--json", "--resamples", "100")
    assert done.returncode == 0, done.stderr
    report = orjson.loads(done.stdout)
    [one] = report["criteria"]
    assert [(judge["judge"], judge["n"]) for judge in one["judges"]] == [("kieval: judge", 12)]
    assert (report["systems"], report["groups"]) == (2, 6)
    done = viva("judge", "compare", run, "--ratings", rounds, "--resamples", "100")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Overall, kieval: judge")


def test_files_are_written_and_say_the_same(run: Path, tmp_path: Path, viva: Viva) -> None:
    ratings, table, page, plot = (tmp_path / name for name in ("r.jsonl", "m.csv", "m.html", "m.svg"))
    _rated(run, ratings)
    arguments = ["--ratings", ratings, "--jury", "mean", "--resamples", "100"]
    done = viva("judge", "compare", run, *arguments, "--csv", table, "--html", page, "--plot", plot, "--json")
    assert done.returncode == 0, done.stderr
    report = orjson.loads(done.stdout)
    rows = list(csv.DictReader(table.read_text().splitlines()))
    wanted = {(one["judge"], name): figure["value"] for one in report["criteria"][0]["judges"]
              for name, figure in one["levels"]["item"].items()}  # fmt: skip
    found = {(row["judge"], row["measure"]): row["value"] for row in rows
             if (row["part"], row["level"]) == ("correlation", "item")}  # fmt: skip
    assert {key: "" if value is None else repr(value) for key, value in wanted.items()} == found
    assert "Judges and people: rating: " in page.read_text(), "one judge is a sentence, no chart"
    assert report["answer"].split("'")[0] in page.read_text()
    assert plot.read_text().startswith("<?xml")


def test_mistakes_are_told(run: Path, tmp_path: Path, viva: Viva) -> None:
    ratings = tmp_path / "r.jsonl"
    records = _rated(run, ratings)
    ratings.write_text(json.dumps(records[0] | {"item": "nowhere"}) + "\n")
    done = viva("judge", "compare", run, "--ratings", ratings)
    assert done.returncode == 2
    assert f"{ratings}:1: item 'nowhere', system" in done.stderr
    done = viva("judge", "compare", ratings, "--jury", "best")
    assert done.returncode == 2
    assert "--jury: found 'best', expected one of: mean, median, majority, fitted" in done.stderr
    done = viva("judge", "compare", run)
    assert done.returncode == 2
    assert done.stderr.strip().endswith("name the file with its human ratings: --ratings FILE")


def test_baselines_stand_beside_the_judge_and_grades_are_recorded(run: Path, tmp_path: Path, viva: Viva) -> None:
    ratings, graded = tmp_path / "r.jsonl", tmp_path / "graded"
    records = [record | {"reference": "It follows from the principle."} for record in _rated(run, ratings, rounds=True)]
    ratings.write_text("".join(json.dumps(record) + "\n" for record in records))
    arguments = [
        "judge",
        "compare",
        run,
        "--ratings",
        ratings,
        "--baselines",
        "rouge,meteor,single",
        "--judge",
        "simulated:g",
    ]
    done = viva(*arguments, "--out", graded, "--resamples", "100", "--json")
    assert done.returncode == 0, done.stderr
    [one] = orjson.loads(done.stdout)["criteria"]
    judges = ["kieval: judge", "rouge-1", "rouge-2", "rouge-l", "meteor", "single: g"]
    assert [judge["judge"] for judge in one["judges"]] == judges
    assert {judge["n"] for judge in one["judges"]} == {len(records)}
    again = viva(*arguments, "--out", graded, "--resamples", "100", "--json")
    assert again.stdout == done.stdout
    assert f"{len(records)}/{len(records)} done" in again.stderr
    assert " 0 calls" in again.stderr or "0.0/s" in again.stderr  # all of it was recorded


def test_each_aspect_is_compared_with_the_only_score_of_people(run: Path, tmp_path: Path, viva: Viva) -> None:
    _rated(run, ratings := tmp_path / "people.jsonl")
    words = ["judge", "compare", run, "--ratings", ratings, "--resamples", "100"]
    report = json.loads(viva(*words, "--json").stdout)
    [criterion] = report["criteria"]
    names = ["accuracy", "logic", "relevance", "coherence", "conciseness", "overall"]
    assert [record["aspect"] for record in criterion["aspects"]] == names
    overall = criterion["aspects"][-1]
    assert overall["levels"] == criterion["judges"][0]["levels"]
    assert criterion["aspects"][0]["levels"] != overall["levels"]
    assert [len(criterion[name]) for name in ("judges", "differences", "juries")] == [1, 0, 0]
    assert "Each aspect of a judge against the one score of people" in viva(*words).stdout
    table = tmp_path / "figures.csv"
    viva(*words, "--csv", table)
    rows = list(csv.DictReader(table.read_text("utf-8-sig").splitlines()))
    assert {row["judge"] for row in rows if row["part"] == "aspect"} == {f"kieval: judge.{name}" for name in names}
    lines = [json.loads(line) for line in ratings.read_text().splitlines()]
    both = [{**line, "human_overall": line["rating"], "human_logic": 3} for line in lines]
    for line in both:
        del line["rating"]
    ratings.write_text("".join(json.dumps(line) + "\n" for line in both))
    report = json.loads(viva(*words, "--json").stdout)
    assert [criterion["aspects"] for criterion in report["criteria"]] == [[], []]


def test_a_runs_rounds_are_scored_in_several_ways_against_people(run: Path, tmp_path: Path, viva: Viva) -> None:
    from viva.reports.studies.rating_sheet import run_sheet

    _rated(run, ratings := tmp_path / "people.jsonl")
    words = ["judge", "compare", run, "--ratings", ratings, "--resamples", "100", "--json"]
    plain, linear = (json.loads(viva(*words, *more).stdout) for more in ((), ("--scorer", "linear")))
    assert plain["criteria"][0]["judges"][0]["judge"] == linear["criteria"][0]["judges"][0]["judge"] == "kieval: judge"
    assert plain["criteria"][0]["judges"][0]["levels"] != linear["criteria"][0]["judges"][0]["levels"]
    assert plain["criteria"][0]["judges"][0]["variance"] > linear["criteria"][0]["judges"][0]["variance"]
    several = json.loads(viva(*words, "--scorer", "official", "--scorer", "linear,no-decay").stdout)
    [criterion] = several["criteria"]
    assert [record["judge"] for record in criterion["judges"]] == [
        "kieval: judge (official)",
        "kieval: judge (linear,no-decay)",
    ]
    assert criterion["judges"][0]["levels"] == plain["criteria"][0]["judges"][0]["levels"]
    assert (len(criterion["differences"]), criterion["juries"], criterion["votes"]) == (1, [], None)
    assert "2 judges" not in several["answer"]
    [whole, *_] = run_sheet(run, ["linear,no-decay"]).rows
    rounds = [row.scores["kieval: judge", "overall"] for row in run_sheet(run).rows
              if row.key[:2] == whole.key[:2] and row.turn]  # fmt: skip
    assert whole.scores["kieval: judge", "overall"] == pytest.approx(25 * sum(map(float, rounds)) / len(rounds))
    done = viva(*words, "--scorer", "official,no-early-stop")
    assert "there are no rounds after them" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--scorer", "best"], "--scorer best: Input should be 'official', 'linear' or 'corrected', found 'best'"),
        (["--scorer", "official,decoy"], "unknown switch 'decoy'; known, also with 'no-': decay, early-stop"),
        (["--scorer", "official", "--scorer", "linear", "--jury", "mean"], "several scorers of one judge are no jury"),
    ],
)
def test_wrong_scorers_are_named(run: Path, tmp_path: Path, viva: Viva, options: list[str], message: str) -> None:
    _rated(run, ratings := tmp_path / "people.jsonl")
    done = viva("judge", "compare", run, "--ratings", ratings, *options)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    done = viva("judge", "compare", ratings, "--scorer", "linear")
    assert "is for the recorded rounds of a single run" in done.stderr
