"""``viva probe`` is ``viva run probe``: the same options, the same run, and no cost to other commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from command import viva

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
_SLOW = ("pydantic", "numpy", "scipy", "sklearn", "viva.scenarios.probes", "viva.scenarios.kieval")


def test_the_short_command_runs_what_the_long_one_runs(tmp_path: Path) -> None:
    options = ["--dataset", ITEMS, "-n", "7", "--shots", "0", "--method", "letter", "--method", "loss", "--json"]
    options += ["--candidate", "simulated:c?knowledge=0.5", "--seed", "3"]
    short = viva("probe", *options, "--out", tmp_path / "short")
    long = viva("run", "probe", *options, "--out", tmp_path / "long")
    assert (short.returncode, long.returncode) == (0, 0), short.stderr
    assert short.stdout == long.stdout
    manifests = [orjson.loads((tmp_path / name / "manifest.json").read_bytes()) for name in ("short", "long")]
    assert manifests[0] == manifests[1]
    resumed = viva("resume", tmp_path / "short", "--json")
    assert (resumed.returncode, resumed.stdout) == (0, short.stdout)


def test_without_a_name_the_folder_is_called_like_that_of_the_long_one(tmp_path: Path) -> None:
    done = viva("probe", "--dataset", ITEMS, "-n", "1", "--shots=0", "--candidate", "simulated:c", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    [folder] = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("probe-")


def test_both_have_the_same_options() -> None:
    short, long = viva("probe", "--help"), viva("run", "probe", "--help")
    assert (short.returncode, long.returncode) == (0, 0)
    assert " probe [OPTIONS]" in short.stdout
    assert "--shots-from" in short.stdout
    assert short.stdout == long.stdout.replace("viva run probe", "viva probe")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--candidate", "simulated:c"], ["viva: error: --dataset is missing"]),
        (["--nope"], ["no option '--nope'; "]),
        (["--dataset", "none.jsonl", "--candidate", "simulated:c", "--shots", "0"], ["none.jsonl: cannot be read"]),
    ],
)
def test_what_is_wrong_is_named_by_the_short_command_too(options: list[str], words: list[str]) -> None:
    done = viva("probe", *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


def test_the_list_of_commands_names_them_and_imports_none_of_what_they_need() -> None:
    look = f"[name for name in {_SLOW} if name in sys.modules]"
    code = f"import sys; from viva.cli.main import main\ntry: main()\nfinally: print({look})"
    command = [sys.executable, "-c", code, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("run", "probe", "validate", "resume", "data"):
        assert f"\n  {name} " in done.stdout
    assert done.stdout.endswith("\n[]\n")
