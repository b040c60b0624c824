"""`viva court`: rulings as text and as JSON, known models from a file, and what is refused in which words."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest
from case_tables import case_table
from command import viva
from probing import make_items, probe, recorded
from small_dialogs import write_data
from study_runs import probed

from viva.lab.court_evidence import write_evidence
from viva.lab.family import CARD_FILE, MODELS, model_file
from viva.lab.world import World, write_benchmark
from viva.scenarios.probes.probe_report import observe
from viva.scoring.evidence.combination import count_clean_models

_CANDIDATES = ("clean-50", "sft-cheater", "pt-cheater")
_FIELDS = {
    *("ruling", "p", "p_adjusted", "strongest", "tests", "evidence", "disbelieved", "absent", "remedies"),
    *("comparison", "sentence"),
}
_WITNESSES = ["accuracy gap", "loss gap", "Min-K%++"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean model and two cheaters, probed on the lab's benchmark and on its second set."""
    if not (MODELS / CARD_FILE).exists():
        pytest.skip("the lab's models are not there; `viva lab build` makes them")
    root = tmp_path_factory.mktemp("court")
    files = write_benchmark(World(1), root / "benchmark")
    options = [
        word for option in ("--method", "--against-method") for name in ("text", "loss") for word in (option, name)
    ]
    for name in _CANDIDATES:
        options += ["--candidate", f"llama:{model_file(name)}?label={name}&threads=1"]
    sets: list[str | Path] = [
        "--dataset",
        files["test"],
        "--against",
        files["fresh"],
        "--pack",
        "lab-probe",
        "--shots",
        "0",
    ]
    probe(root / "run", *sets, *options)
    return root / "run"


def _court(*arguments: str | Path) -> dict[str, Any]:
    """The JSON of a command that succeeds."""
    done = viva("court", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = orjson.loads(done.stdout)
    return report


# -- the report -------------------------------------------------------------------------------------------------------


def test_each_candidate_has_a_sentence_contaminated_ones_first(run: Path) -> None:
    done = viva("court", run)
    assert (done.returncode, done.stderr) == (0, "")
    sentences, _, tables = done.stdout.partition("\n\n")
    assert tables.startswith("Rulings on lab_test\n")
    flowing = " ".join(sentences.split())
    places = [
        flowing.index(f"{name} is contaminated with lab_test (p = ") for name in _CANDIDATES if name != "clean-50"
    ]
    places.append(flowing.index("clean-50: cannot tell whether it has seen lab_test (p = "))
    places.append(flowing.index("Comparisons of two sets assume that lab_fresh was seen by none of the candidates"))
    places.append(flowing.index(f"It takes {count_clean_models(0.05)} to check assumptions"))
    assert places == sorted(places)
    assert flowing.count("corrected for 3 candidates") == 3


def test_text_and_tables_fit_80_columns(run: Path) -> None:
    lines = viva("court", run).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    for name in _CANDIDATES:
        rows = [line for line in lines if line.startswith(f"  {name} ")]
        assert len(rows) == 1 + len(_WITNESSES)


def test_the_json_has_ruling_evidence_tests_and_limits(run: Path) -> None:
    report = _court(run)
    assert report.keys() == {"level", "benchmarks"}
    [benchmark] = report["benchmarks"]
    assert (report["level"], benchmark["dataset"], benchmark["second"]) == (0.05, "lab_test", "lab_fresh")
    assert benchmark["known"] == {"clean": 0, "contaminated": {}}
    assert [*benchmark["candidates"]] == [*_CANDIDATES]
    rulings = {name: record["ruling"] for name, record in benchmark["candidates"].items()}
    assert rulings == {"clean-50": "cannot tell", "sft-cheater": "contaminated", "pt-cheater": "contaminated"}
    shown = " ".join(viva("court", run).stdout.split())
    for record in benchmark["candidates"].values():
        assert record.keys() == _FIELDS
        assert [evidence["witness"] for evidence in record["evidence"]] == _WITNESSES
        assert all(evidence.keys() == {"witness", "statistic", "p", "effect", "n"} for evidence in record["evidence"])
        assert sorted(trial["name"] for trial in record["tests"]) == sorted(_WITNESSES)
        assert record["strongest"] == record["tests"][0]["name"]
        assert record["p"] == record["tests"][0]["p_adjusted"] <= record["p_adjusted"]
        assert len(record["absent"]) == 7
        assert record["comparison"] is None
        assert record["sentence"] in shown
    assert all(limit in shown for limit in benchmark["limits"])


def test_equal_records_give_equal_bytes(run: Path) -> None:
    first, second = viva("court", run, "--json"), viva("court", run, "--json")
    assert first.stdout == second.stdout
    assert viva("court", run).stdout == viva("court", run).stdout


def test_a_run_that_is_named_twice_counts_once(run: Path) -> None:
    assert _court(run, run) == _court(run)


def test_several_runs_of_a_benchmark_are_judged_together(run: Path, tmp_path: Path) -> None:
    probed(tmp_path / "other", "simulated:other?knowledge=0.5", n=6, seed=1)
    first, second = _court(run, tmp_path / "other")["benchmarks"]
    assert [first["dataset"], second["dataset"]] == ["lab_test", "science"]
    assert first == _court(run)["benchmarks"][0]
    record = second["candidates"]["other"]
    assert (record["ruling"], record["evidence"], record["tests"]) == ("cannot tell", [], [])
    assert record["sentence"] == "other: cannot tell whether it has seen science: no witness was heard."


def test_an_unfinished_run_is_said_to_be_unfinished(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    with closing(sqlite3.connect(copy / "journal.sqlite")) as journal, journal:
        ended = journal.execute("select count(*) from ended").fetchone()[0]
        journal.execute("delete from ended where number >= ?", (ended - 5,))
    words = f"{ended - 5} of {ended} conversations; 5 not finished: viva resume {copy}"
    shown = viva("court", copy)
    assert shown.returncode == 0
    assert f"viva: note: {words}" in shown.stderr
    assert words in _court(copy)["notes"][0]


# -- beside other reports ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gathered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that gathers evidence for the court."""
    root = tmp_path_factory.mktemp("gathered")
    options = ["--method", "text", "--method", "samples", "--method", "options", "--shots", "0"]
    models = ["--candidate", "simulated:a?knowledge=0.9", "--candidate", "simulated:b?knowledge=0.2"]
    sets = ["--dataset", str(make_items(root / "one.jsonl", 12)), "--against", str(make_items(root / "two.jsonl", 12))]
    probe(root / "runs" / "probe", *sets, *options, *models)
    return root / "runs"


def test_a_folder_that_contains_runs_is_judged(gathered: Path) -> None:
    done = viva("court", gathered)
    assert done.returncode == 0
    assert done.stdout == viva("court", gathered / "probe").stdout
    assert f"{gathered} contains 1 run: {gathered / 'probe'}" in done.stderr


def test_reports_of_runs_that_gather_evidence_end_with_the_court(gathered: Path, run: Path, tmp_path: Path) -> None:
    judged = _court(gathered / "probe")
    done = viva("report", gathered / "probe", "--fresh", "--html", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    *_, sentences = done.stdout.partition("Contamination court:\n")
    page = (tmp_path / "page.html").read_text()
    for record in judged["benchmarks"][0]["candidates"].values():
        assert record["sentence"] in sentences
        assert record["sentence"] in page
    assert "Rulings on one" in page
    # Runs that were not made for the court have reports as before.
    assert "court" not in viva("report", run, "--fresh").stdout


# -- the command ------------------------------------------------------------------------------------------------------


def test_a_clean_candidate_is_compared_with_and_not_judged(run: Path) -> None:
    [benchmark] = _court(run, "--clean", "clean-50")["benchmarks"]
    assert [*benchmark["candidates"]] == ["sft-cheater", "pt-cheater"]
    assert benchmark["known"] == {"clean": 1, "contaminated": {}}
    shown = viva("court", run, "--clean", "clean-50").stdout
    assert "clean-50" not in shown
    assert "corrected for 2 candidates" in " ".join(shown.split())


@case_table(
    "options, words",
    [
        (["--clean", "clean-5"], ["--clean: no candidate 'clean-5'", "did you mean 'clean-50'?"]),
        (["--clean", "nobody"], ["--clean: no candidate 'nobody'", "known: clean-50, pt-cheater, sft-cheater"]),
        (["--level", "0"], ["level: 0; expected a number between 0 and 1"]),
        (["--level", "1"], ["level: 1; expected a number between 0 and 1"]),
        (["--level", "nan"], ["level: nan; expected a number between 0 and 1"]),
        (["--known", "missing.jsonl"], ["missing.jsonl: cannot be read"]),
        (["nowhere"], ["nowhere: not a run folder"]),
    ],
)
def test_a_wrong_option_is_named(run: Path, options: list[str], words: list[str]) -> None:
    done = viva("court", run, *options)
    assert (done.returncode, done.stdout) == (2, "")
    for word in words:
        assert word in done.stderr


def test_a_run_without_evidence_is_refused_with_what_to_do(tmp_path: Path) -> None:
    models = ["--candidate", "simulated:c", "--judge", "simulated:j"]
    made = viva("run", "functionchat", "--data", write_data(tmp_path / "data"), *models, "--out", tmp_path / "run")
    assert made.returncode == 0, made.stderr
    done = viva("court", tmp_path / "run")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no evidence: none of these runs has probes or interviews" in done.stderr
    assert "`viva run probe --method court`" in done.stderr


# -- models of known truth --------------------------------------------------------------------------------------------


def _record(run: Path, label: str, unit: int, kind: str | None = None) -> dict[str, Any]:
    """A candidate's observations as a line of a file of known models."""
    results = [result for result in recorded(run).values() if result["candidate"] == label]
    about = {"model": f"{label}-{unit}", "unit": unit, "kind": kind, "dose": 0.0, "share": 0.5}
    return about | observe(results).to_record()


@pytest.fixture(scope="module")
def records(run: Path) -> list[dict[str, Any]]:
    clean, cheater = _record(run, "clean-50", 0), _record(run, "pt-cheater", 0, "text")
    units = range(2 * count_clean_models(0.05))
    return [record | {"unit": unit, "model": f"m{unit}"} for record in (clean, cheater) for unit in units]


def test_with_models_of_known_truth_a_candidate_can_be_clean(
    run: Path, records: Sequence[dict[str, Any]], tmp_path: Path
) -> None:
    write_evidence(tmp_path / "known.jsonl", records)
    done = viva("court", run, "--known", tmp_path / "known.jsonl")
    assert (done.returncode, done.stderr) == (0, "")
    [benchmark] = _court(run, "--known", tmp_path / "known.jsonl")["benchmarks"]
    number = 2 * count_clean_models(0.05)
    assert benchmark["known"] == {"clean": number, "contaminated": {"text": number}}
    rulings = {name: record["ruling"] for name, record in benchmark["candidates"].items()}
    assert rulings == {"clean-50": "clean", "sft-cheater": "contaminated", "pt-cheater": "contaminated"}
    assert "clean-50 is clean of lab_test: a known contaminated model looks as clean with p = " in " ".join(
        done.stdout.split()
    )
    for record in benchmark["candidates"].values():
        assert record["comparison"]["clean_models"] >= count_clean_models(0.05)
    assert "to check assumptions" not in done.stdout


def test_models_that_were_asked_about_other_items_are_not_used(
    run: Path, records: Sequence[dict[str, Any]], tmp_path: Path
) -> None:
    others = [
        record | {"benchmark": record["benchmark"] | {"items": [f"x-{item}" for item in record["benchmark"]["items"]]}}
        for record in records
    ]
    write_evidence(tmp_path / "known.jsonl", others)
    note = "The models of known truth were not asked about lab_test, so they are not used."
    assert note in viva("court", run, "--known", tmp_path / "known.jsonl").stderr
    report = _court(run, "--known", tmp_path / "known.jsonl")
    assert report.pop("notes") == [note]
    assert report == _court(run)


_Line = Callable[[dict[str, Any]], bytes]


def _changed(**fields: Any) -> _Line:
    return lambda record: orjson.dumps(record | fields)


def _column(**columns: Any) -> _Line:
    return lambda record: orjson.dumps(record | {"benchmark": record["benchmark"] | columns})


def _replaced(old: bytes, new: bytes) -> _Line:
    def replace(record: dict[str, Any]) -> bytes:
        line = orjson.dumps(record)
        assert old in line
        return line.replace(old, new, 1)

    return replace


@case_table(
    "line, words",
    [
        (lambda _: b"{nope", []),
        (lambda _: b"[1, 2]", []),
        (lambda _: b"null", []),
        (lambda _: b'{"model": "\xff"}', []),
        (lambda _: b'{"model": "a", "model": "b"}', []),
        (lambda _: b'{"model": "a"}', ["kind", "required"]),
        (lambda _: b'{"model":' + b"[" * 100_000 + b"]" * 100_000 + b"}", []),
        (lambda _: b'{"model":' + b"[" * 900 + b"]" * 900 + b"}", ["model", "valid string"]),
        (_changed(kind=3), ["kind", "valid string"]),
        (_changed(benchmark=[]), ["benchmark"]),
        (_column(bogus=[]), ["benchmark.bogus", "not permitted"]),
        (_column(right=["x"]), ["benchmark.right.0", "valid number"]),
        (_column(right=[1.0]), ["benchmark: columns of different lengths", "'right': 1"]),
        (_column(items=None), ["benchmark.items"]),
        (_replaced(b'"right":[', b'"right":[NaN,'), []),
        (_replaced(b'"loss":[', b'"loss":[Infinity,'), []),
        (_replaced(b'"loss":[', b'"loss":[1e400,'), []),
        (_replaced(b'"loss":[', b'"loss":["NaN",'), ["benchmark"]),
        (_changed(options=[[-1.0, -2.0]]), ["letters: expected rows of the same lengths"]),
        (
            _changed(options=[[-1.0, -2.0]], letters=[[1, 10**18], [0, 1]]),
            ["letters: expected rows of the same lengths"],
        ),
        (_changed(options=[[-1.0, -2.0]], letters=[["yes", 0]]), ["letters.0.0"]),
        (_changed(options=[[-1.0, -2.0]], letters=[[1]]), ["letters: expected rows of the same lengths"]),
        (_changed(options=[[-1.0, -2.0]], letters=[[1, 5]]), ["letters: each row needs at least two numbers"]),
        (_changed(shards=[[-1.0]]), ["shards: each row needs at least two numbers"]),
        (_changed(shards=[["Infinity", -1.0]]), ["shards: each row needs at least two numbers"]),
        (_changed(shards=[[-1e308, 1e308]]), ["shards: each row needs at least two numbers"]),
        (_changed(shards=[[-1.0, 3.0]]), ["shards: each row needs at least two numbers"]),
        (_replaced(b'"right":[0.0', b'"right":[1e308'), ["right: expected numbers from 0 to 1"]),
        (_replaced(b'"loss":[', b'"loss":[-1e308,'), ["benchmark"]),
        (_changed(shards=-1.0), ["shards"]),
        (_column(**{"\x1b[31mred": [1.0]}), ["red", "not permitted"]),
    ],
)
def test_a_faulty_line_of_known_models_is_named(
    line: _Line, words: list[str], run: Path, records: Sequence[dict[str, Any]], tmp_path: Path
) -> None:
    path = tmp_path / "known.jsonl"
    path.write_bytes(orjson.dumps(records[0]) + b"\n" + line(records[0]) + b"\n")
    done = viva("court", run, "--known", path)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{path}, line 2: " in done.stderr or f"{path}:2: " in done.stderr
    assert done.stderr.count("\n") == 1
    assert "\x1b" not in done.stderr
    for word in words:
        assert word in done.stderr


def test_the_page_has_the_sentences_and_tables(run: Path, tmp_path: Path) -> None:
    done = viva("court", run, "--html", tmp_path / "court.html")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "court.html").read_text()
    for words in ("pt-cheater is contaminated with lab_test", "Rulings on lab_test", "Witnesses on lab_test"):
        assert words in page


def test_a_file_without_models_is_refused(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "known.jsonl"
    path.write_bytes(b"\n")
    done = viva("court", run, "--known", path)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{path}: no models" in done.stderr


# -- names ------------------------------------------------------------------------------------------------------------


def test_control_characters_of_names_do_not_reach_the_terminal(tmp_path: Path) -> None:
    data = make_items(tmp_path / "da\x1b[2Jta.jsonl", 8)
    label = "x\x1b[31mred\x07"
    probe(
        tmp_path / "run",
        "--dataset",
        data,
        "--shots",
        "0",
        "--method",
        "order",
        "--candidate",
        f"simulated:c?label={label}",
    )
    known = {"model": label, "kind": label, "benchmark": {"items": [], "clusters": []}}
    (tmp_path / "known.jsonl").write_bytes(orjson.dumps(known | {"second": known["benchmark"]}))
    for options in ([], ["--json"], ["--known", tmp_path / "known.jsonl"], ["--clean", "x\x1b"]):
        done = viva("court", tmp_path / "run", *options)
        assert done.returncode == (2 if "--clean" in options else 0)
        assert not {"\x1b", "\x07"} & {*done.stdout, *done.stderr}
    assert list(_court(tmp_path / "run")["benchmarks"][0]["candidates"]) == [label]
