"""What was accepted in silence, or ended with a traceback, and is now said in a line: sweeps, commas, counts, sizes."""

from __future__ import annotations

import csv
from pathlib import Path
from urllib.parse import quote

import pytest
from case_tables import case_table
from study_runs import SCIENCE, interviewed
from viva_process import ended, started

PANEL = ["--interactor", "simulated:i", "--evaluator", "simulated:e", "--rounds", "1"]
HUGE = "99999999999999999999"


def _viva(*arguments: str | Path) -> tuple[int, str, str]:
    code, printed, said = ended(started(*arguments))
    return code, printed.decode(), said


def _run(out: Path, *options: str) -> tuple[int, str, str]:
    return _viva("run", "kieval", "--dataset", SCIENCE, *PANEL, *options, "--out", out)


def _refused(done: tuple[int, str, str], words: str) -> None:
    code, printed, said = done
    assert (code, printed) == (2, ""), said
    assert words.replace("\n", "\\n") in said  # an error is one line


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("said")
    said = f"candidates: ['simulated:a', 'simulated:b']\ndatasets: [{SCIENCE}]\n"
    said += "interviews: {interactor: 'simulated:i', evaluator: 'simulated:e', n: 1, rounds: 1}\n"
    (folder / "grid.yaml").write_text(said)
    code, _, said = _viva("sweep", folder / "grid.yaml", "--out", folder / "out")
    assert code == 0, said
    return folder / "out"


def test_line_14_show_lists_the_cells_of_a_sweep_and_how_to_see_one(sweep: Path) -> None:
    code, printed, said = _viva("show", sweep)
    assert code == 0
    [command] = [line.split(": ")[1] for line in said.splitlines() if line.startswith("conversations of a cell: ")]
    assert command.split()[-1].removeprefix(f"{sweep}/") in printed
    code, printed, _ = _viva(*command.split()[1:])
    assert (code, "1 conversations" in printed) == (0, True)
    _refused(_viva("show", sweep, "--conversation", "0"), command)


@case_table(
    "model",
    [
        "simulated:a,simulated:b",
        "simulated:a,b",
        "openai:http://127.0.0.1:9/v1#a,b",
        "simulated:a;simulated:b",
        "simulated:a simulated:b",
        "simulated:a\nsimulated:b",
    ],
)
def test_line_14_several_models_in_one_name_are_refused(tmp_path: Path, model: str) -> None:
    _refused(_run(tmp_path / "run", "--candidate", model), f"model '{model}': names several models")


def test_line_14_a_label_may_hold_a_comma(tmp_path: Path) -> None:
    assert _run(tmp_path / "run", "--candidate", "simulated:a?label=a,b", "-n", "1")[0] == 0


def test_line_14_fewer_items_than_were_asked_for_are_said(tmp_path: Path) -> None:
    _, _, said = _run(tmp_path / "run", "--candidate", "simulated:a", "-n", "1000")
    assert "viva: note: -n 1000: science has 40 items; all are used\n" in said
    _, _, said = _run(tmp_path / "all", "--candidate", "simulated:a", "-n", "40")
    assert "note" not in said


@case_table("option", ["--seed", "-n", "--max-calls", "--concurrency", "--candidate-tokens"])
def test_line_29_a_number_beyond_64_bits_is_refused_by_name(tmp_path: Path, option: str) -> None:
    _refused(_run(tmp_path / "run", "--candidate", "simulated:a", option, HUGE), f"{option}: ")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "command",
    [
        ("lab", "run", "--ideal", "--seed", HUGE),
        ("lab", "run", "--ideal", "--world", HUGE),
        ("lab", "run", "--ideal", "-n", HUGE),
        ("resume", "RUN", "--max-calls", HUGE),
        ("resume", "RUN", "--concurrency", HUGE),
        ("run", "--fork", "RUN", "--judge", "simulated:o", "--concurrency", HUGE, "--out", "OUT"),
    ],
    ids=" ".join,
)
def test_line_29_commands_with_options_of_their_own_refuse_them_too(sweep: Path, command: tuple[str, ...]) -> None:
    run = next(sweep.rglob("manifest.json")).parent
    places = {"RUN": str(run), "OUT": str(run.parent / "never")}
    _refused(
        _viva(*(places.get(word, word) for word in command)),
        f"{command[command.index(HUGE) - 1]}: expected a whole number of at most 64 bits, found {HUGE}",
    )


@pytest.mark.parametrize(("option", "most"), [("threads=9999", "512"), (f"ctx={HUGE}", "2147483647")])
def test_line_29_options_of_local_models_are_bounded(tmp_path: Path, option: str, most: str) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    done = _run(tmp_path / "run", "--candidate", f"llama:{tmp_path}/m.gguf?{option}")
    _refused(done, f"{option}: expected a number from 1 to {float(most):g}")


def test_line_29_a_text_of_a_csv_is_no_formula_for_a_spreadsheet(tmp_path: Path) -> None:
    labels = ["+a", "-b", "@c", "d=1"]
    run = interviewed(tmp_path / "run", *(f"simulated:c?label={quote(label)}" for label in labels), n=2)
    assert _viva("report", run, "--csv", tmp_path / "a.csv")[0] == 0
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    names = {row["candidate"] for row in rows} - {""}
    assert names == {"'+a", "'-b", "'@c", "d=1"}
    numbers = [row[name] for row in rows for name in ("value", "low", "high", "se") if row[name]]
    assert any(number.startswith("-") for number in numbers), "numbers stay numbers"
    assert all(float(number) is not None for number in numbers)


def test_line_29_a_text_of_a_csv_commands_no_terminal(tmp_path: Path) -> None:
    label = "a\x1b]0;owned\x07\u202eb"
    run = interviewed(tmp_path / "run", f"simulated:c?label={quote(label)}", n=2)
    assert _viva("report", run, "--csv", tmp_path / "a.csv")[0] == 0
    written = (tmp_path / "a.csv").read_text()
    assert {row["candidate"] for row in csv.DictReader(written.splitlines())} - {""} == {"a\\x1b]0;owned\\x07\\u202eb"}
    assert written.isascii()
