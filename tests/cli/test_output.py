"""What is printed, and that nothing in it can harm: budgets, names with markup, control codes, closed pipes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
from case_tables import case_table
from command import viva

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
_PANEL = ["--interactor", "simulated:i", "--evaluator", "simulated:e", "-n", "2"]


def _process(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "viva", *map(str, arguments)]
    return subprocess.run(command, text=True, check=False, **({"capture_output": True} | options))


def _run(out: Path, *options: str | Path, dataset: Path = ITEMS) -> subprocess.CompletedProcess[str]:
    return viva("run", "kieval", "--dataset", dataset, *_PANEL, *options, "--out", out)


def test_a_budget_of_calls_bounds_the_calls_that_are_made(chaos: Any, tmp_path: Path) -> None:
    server = chaos({"default": {"do": "slow", "delay": 0.05}})
    models = [text for role in ("candidate", "interactor", "evaluator") for text in (f"--{role}", server.model(role))]
    viva("run", "kieval", "--dataset", ITEMS, *models, "--max-calls", "50", "--out", tmp_path / "run")
    assert len(server.log()) <= 50


def test_resume_can_be_given_a_larger_budget_of_calls(tmp_path: Path) -> None:
    assert _run(tmp_path / "run", "--candidate", "simulated:c", "--max-calls", "3").returncode == 1
    assert viva("resume", tmp_path / "run", "--max-calls", "1000").returncode == 0


@pytest.mark.parametrize("model", ["augur:delphi", "simulated:c?knowlege=1", "simulated:c?knowledge=2"])
def test_a_refused_model_leaves_the_folder_free(tmp_path: Path, model: str) -> None:
    assert _run(tmp_path / "run", "--candidate", model).returncode == 2
    mended = _run(tmp_path / "run", "--candidate", "simulated:c")
    assert mended.returncode == 0, mended.stderr


@pytest.mark.parametrize("label", ["a[b]c", "[/a]", ":star:"])
def test_a_label_is_shown_as_it_is(tmp_path: Path, label: str) -> None:
    done = _run(tmp_path / "run", "--candidate", f"simulated:c?label={label}")
    assert done.returncode == 0, done.stderr[-300:]
    assert label in done.stdout


def test_an_item_id_is_shown_as_it_is(tmp_path: Path) -> None:
    items = tmp_path / "mmlu[hard].jsonl"
    items.write_text('{"id": "q[/b]", "question": "Why?", "choices": ["x", "y"], "answer": "A"}\n')
    done = _run(tmp_path / "run", "--candidate", "simulated:c", dataset=items)
    assert "KIEval on mmlu[hard]" in done.stdout
    for options in ([], ["--conversation", "0"]):
        shown = viva("show", tmp_path / "run", *options)
        assert (shown.returncode, "c/q[/b]" in shown.stdout) == (0, True), shown.stderr[-300:]


def test_a_talk_cannot_command_the_terminal(tmp_path: Path) -> None:
    items = tmp_path / "items.jsonl"
    items.write_bytes(orjson.dumps({"question": "Why \x1b]0;owned\x07?", "choices": ["x", "y"], "answer": "A"}))
    assert _run(tmp_path / "run", "--candidate", "simulated:c", dataset=items).returncode == 0
    assert "\x1b" not in viva("show", tmp_path / "run", "--conversation", "0").stdout


def test_line_29_neither_an_endpoint_nor_a_name_commands_the_terminal(chaos: Any, tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07 \u202e\nviva: error: forged"
    server = chaos({"default": {"do": "401", "say": evil}})
    refused = _run(tmp_path / "refused", "--candidate", server.model("candidate"))
    named = _run(tmp_path / "named", "--candidate", f"simulated:c?label={evil}")
    absent = viva("report", tmp_path / evil.replace("/", ""))
    assert (refused.returncode, named.returncode, absent.returncode) == (2, 0, 2)
    for done in (refused, named, absent):
        assert r"\x1b]0;owned\x07 \u202e" in done.stdout + done.stderr
        for stream in (done.stdout, done.stderr):
            assert not {"\x1b", "\x07", "\u202e"} & set(stream)
            assert not any(line.startswith("viva: error: forged") for line in stream.splitlines())


@case_table("command", ["report", "show", "show --conversation 0", "run", "run --json"])
def test_a_reader_that_left_is_no_failure_and_the_run_folder_is_still_named(tmp_path: Path, command: str) -> None:
    run = tmp_path / "run"
    if not command.startswith("run"):
        assert _run(run, "--candidate", "simulated:c").returncode == 0
    read, write = os.pipe()
    os.close(read)
    name, *options = command.split()
    pipes: dict[str, Any] = {"capture_output": False, "stdout": write, "stderr": subprocess.PIPE}
    rest = ["kieval", "--dataset", ITEMS, *_PANEL, "--candidate", "simulated:c", "--out"] if name == "run" else []
    done = _process(name, *rest, run, *options, **pipes)
    os.close(write)
    assert done.returncode == 0
    expected = {"run": "run folder: ", "show": "# the command of such a run:" * (not options)}.get(name, "")
    assert expected in done.stderr if expected else done.stderr == ""


def test_json_into_a_closed_pipe_does_not_hide_failed_talks(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    options = [*_PANEL, "--candidate", "simulated:c?fail=1&retries=0", "--json", "--out", tmp_path / "run"]
    pipes: dict[str, Any] = {"capture_output": False, "stdout": write, "stderr": subprocess.PIPE}
    done = _process("run", "kieval", "--dataset", ITEMS, *options, **pipes)
    os.close(write)
    assert done.returncode == 3


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_full_disk_under_stdout_is_one_clear_line(tmp_path: Path, options: list[str]) -> None:
    assert _run(tmp_path / "run", "--candidate", "simulated:c").returncode == 0
    with open("/dev/full", "w") as full:
        done = _process("report", tmp_path / "run", *options, capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("option", ["--help", "--version"])
def test_line_29_a_full_disk_under_the_help_is_one_clear_line(option: str, unbuffered: str) -> None:
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        done = _process(option, capture_output=False, stdout=full, stderr=subprocess.PIPE, env=environment)
    assert done.stderr == "viva: error: cannot write the results to stdout: No space left on device\n"
    assert done.returncode == 2


def test_all_transcripts_as_json_are_one_a_line(tmp_path: Path) -> None:
    assert _run(tmp_path / "run", "--candidate", "simulated:c").returncode == 0
    lines = viva("show", tmp_path / "run", "--json").stdout.splitlines()
    assert len({orjson.loads(line)["key"] for line in lines}) == len(lines) > 1


def test_a_title_is_not_wrapped_in_a_pipe(tmp_path: Path) -> None:
    items = tmp_path / f"{'long ' * 30}.jsonl"
    items.write_bytes(ITEMS.read_bytes())
    done = _run(tmp_path / "run", "--candidate", "simulated:c", dataset=items)
    assert "reproducible transcripts" in done.stdout.splitlines()[0]
