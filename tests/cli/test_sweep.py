"""``viva sweep`` as users meet it: killed, stopped, gone on with, failed in part, and said beforehand."""

from __future__ import annotations

import os
import pty
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from small_sweeps import INTERVIEWS, calls_in, dataset, journals, write_file
from viva_process import ended, started

if TYPE_CHECKING:
    from tests.servers.process import Plan, Server

    StartChaos = Callable[[Plan], Server]


def _viva(*arguments: str | Path, cwd: Path | None = None) -> tuple[int, bytes, str]:
    return ended(started(*arguments, cwd=cwd))


def _reports(out: Path) -> bytes:
    """What is reported and shown of all cells, byte for byte."""
    from viva.engine.journal_reader import History
    from viva.orchestration.launch import recorded_results
    from viva.sweeps.recorded_sweep import recorded_cells

    told = b""
    for cell in recorded_cells(out):
        assert cell.folder is not None
        with History(cell.folder.journal) as history:
            talks = [(n, [call.completion.text for call in history.calls(n)]) for n in history.numbers()]
        told += orjson.dumps([cell.name, recorded_results(cell.folder).report(), talks])
    return told


def _until_calls(process: subprocess.Popen[bytes], out: Path, count: int) -> None:
    """Wait until a sweep's journals hold so many calls, or the sweep has ended."""
    while process.poll() is None and calls_in(out) < count:
        try:
            process.wait(timeout=0.1)
        except subprocess.TimeoutExpired:
            pass


def test_killed_three_times_and_grown_by_a_candidate_it_says_the_same(tmp_path: Path) -> None:
    candidates = [f"simulated:c{place}?knowledge=0.{place + 2}" for place in range(7)]
    said: dict[str, Any] = {
        "candidates": candidates[:6],
        "seeds": [1, 2],
        "interviews": {**INTERVIEWS, "evaluator": "simulated:e?malformed=0.1", "rounds": 2},
        "concurrency": 40,
    }
    names = ("alpha", "beta", "gamma")
    file = write_file(tmp_path, items=10, names=names, **said)
    code, whole, told = _viva("sweep", file, "--out", tmp_path / "whole", "--json")
    assert code == 0, told
    calls = calls_in(tmp_path / "whole")

    out = tmp_path / "killed"
    for moment in sorted(random.Random(5).sample(range(calls // 20, calls * 4 // 5), 3)):
        process = started("sweep", file, "--out", out)
        _until_calls(process, out, moment)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL, "it was killed before its end"
        assert calls_in(out) < calls
    code, resumed, told = _viva("sweep", file, "--out", out, "--json")
    assert code == 0, told
    assert resumed == whole
    assert calls_in(out) == calls, "what was recorded was not asked again"
    assert _reports(out) == _reports(tmp_path / "whole")

    before = journals(out)
    file = write_file(tmp_path, items=10, names=names, **{**said, "candidates": candidates})
    code, grown, told = _viva("sweep", file, "--out", out, "--json")
    assert code == 0, told
    assert orjson.loads(grown)["states"] == {"done": 7 * 3 * 2}
    after = journals(out)
    assert len(after) == 7 * 3 * 2
    assert {name: after[name] for name in before} == before


def test_line_10_ctrl_c_finishes_the_calls_under_way_in_all_cells(chaos: StartChaos, tmp_path: Path) -> None:
    # Six places over cells of four talks: two cells are under way when the signal comes.
    server = chaos({"schedule": {str(number): {"do": "slow", "delay": 2.0} for number in range(6)}})
    roles = {role: server.model(role) for role in ("interactor", "evaluator")}
    said = {
        "candidates": [server.model("one"), server.model("two")],
        "seeds": [1, 2],
        "interviews": {**roles, "rounds": 1},
        "concurrency": 6,
    }
    file = write_file(tmp_path, items=4, **said)
    out = tmp_path / "out"
    process = started("sweep", file, "--out", out, "--json")
    server.log(requests=6)
    process.send_signal(signal.SIGINT)
    code, printed, said_to_us = ended(process)
    assert code == 130, said_to_us
    assert f"viva resume {out}" in said_to_us
    cells = orjson.loads(printed)["cells"]
    assert [cell["done"] for cell in cells] == [0, 0, 0, 0]
    assert [cell["state"] for cell in cells] == ["part", "part", "waiting", "waiting"]
    assert not any(entry["left"] for entry in server.log())
    assert len(server.log()) == 6
    code, printed, said_to_us = _viva("resume", out, "--json")
    assert code == 0, said_to_us
    assert orjson.loads(printed)["states"] == {"done": 4}
    assert len(server.log()) == 16 * 4  # a first answer, a question, a reply and a verdict; none was asked twice


def test_terminated_it_stops_at_once_and_goes_on(chaos: StartChaos, tmp_path: Path) -> None:
    # All six places are stuck in the end, whichever talks have ended by then: six more wait.
    server = chaos({"schedule": {str(number): "never" for number in range(8, 14)}})
    models = [server.model(role) for role in ("one", "two", "interactor", "evaluator")]
    interviews = {"interactor": models[2], "evaluator": models[3], "rounds": 1}
    file = write_file(tmp_path, items=6, candidates=models[:2], interviews=interviews, concurrency=6)
    out = tmp_path / "out"
    process = started("sweep", file, "--out", out)
    server.log(requests=14)
    process.send_signal(signal.SIGTERM)
    code, _, said = ended(process)
    assert code == 130, said
    assert len(server.log(left=6)) == 14
    code, printed, said = _viva("sweep", file, "--out", out, "--json")
    assert code == 0, said
    assert orjson.loads(printed)["states"] == {"done": 2}


def test_a_failed_cell_is_told_at_the_end_and_by_the_exit_code(tmp_path: Path) -> None:
    file = write_file(tmp_path, candidates=["simulated:a", "llama:none.gguf?label=gone"])
    code, printed, said = _viva("sweep", file, "--out", tmp_path / "out")
    assert code == 3
    [line] = [line for line in said.splitlines() if line.startswith("viva: error:")]
    assert "cells/kieval/alpha/seed-7/e/gone" in line
    assert "none.gguf" in line
    rows = [line.split() for line in printed.decode().splitlines() if " alpha " in line]
    assert [row[5] for row in rows] == ["done", "failed"]


def test_failed_conversations_count_over_all_cells(tmp_path: Path) -> None:
    file = write_file(tmp_path, candidates=["simulated:a?fail=1&retries=0", "simulated:b?fail=1&retries=0"])
    assert _viva("sweep", file, "--out", tmp_path / "out")[0] == 3
    assert _viva("sweep", file, "--out", tmp_path / "out", "--max-failures", "7")[0] == 3
    assert _viva("sweep", file, "--out", tmp_path / "out", "--max-failures", "8")[0] == 0
    assert _viva("resume", tmp_path / "out", "--max-failures", "8", "--retry-failed")[0] == 0


def test_it_lies_in_runs_under_the_files_name(tmp_path: Path) -> None:
    file = write_file(tmp_path / "files")
    assert _viva("sweep", file, cwd=tmp_path)[0] == 0
    assert (tmp_path / "runs" / "grid" / "sweep.json").is_file()
    cell = tmp_path / "runs" / "grid" / "cells" / "kieval" / "alpha" / "seed-7" / "e" / "a"
    for command in ("report", "show", "resume", "score"):
        code, printed, said = _viva(command, cell, "--json", cwd=tmp_path)
        assert (code, bool(printed)) == (0, True), said


def test_a_dry_run_writes_nothing_and_says_what_there_is_to_do(tmp_path: Path) -> None:
    file = write_file(tmp_path, seeds=[1, 2], candidates=["simulated:a?price_in=1", "llama:none.gguf"])
    code, printed, said = _viva("sweep", file, "--out", tmp_path / "out", "--dry-run")
    assert code == 3
    assert "viva: error: llama:" in said, "what can be seen to fail is said"
    assert "16 conversations" in printed.decode()
    assert "every reply is as long as its limit" in said
    assert not (tmp_path / "out").exists()
    code, printed, _ = _viva("sweep", file, "--out", tmp_path / "out", "--dry-run", "--json")
    told = orjson.loads(printed)
    assert len(told["problems"]) == 1
    assert told["models"]["simulated:a?price_in=1"]["calls"] == 2 * 4 * 3
    assert told["models"]["simulated:a?price_in=1"]["cost"] > 0


def test_wrong_usage_is_two(tmp_path: Path) -> None:
    assert _viva("sweep", tmp_path / "none.yaml")[0] == 2
    file = write_file(tmp_path, n=5)
    code, _, said = _viva("sweep", file)
    assert code == 2
    assert said == f"viva: error: {file}: n: unknown setting\n"
    file = write_file(tmp_path)
    assert _viva("sweep", file, "--out", tmp_path / "out")[0] == 0
    code, _, said = _viva("resume", tmp_path / "out", "--max-cost", "3")
    assert code == 2
    assert "--max-cost" in said


def test_in_a_terminal_the_cells_are_a_table_of_bounded_height(tmp_path: Path) -> None:
    dataset(tmp_path / "beta.jsonl", 3)
    file = write_file(tmp_path, items=3, names=("alpha", "beta"), seeds=list(range(11)))
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "viva", "sweep", str(file), "--out", str(tmp_path / "out")]
    environment = {**os.environ, "LINES": "60", "COLUMNS": "140", "TERM": "xterm"}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs, env=environment) as process:
        os.close(theirs)
        seen = b""
        try:
            while data := os.read(ours, 65536):
                seen += data
        except OSError:  # the other end is closed
            pass
    os.close(ours)
    assert process.returncode == 0
    frames = seen.decode().split("cell ")[1:]
    assert frames
    for frame in frames:
        assert 0 < frame.count("kieval/") <= 40, "never more rows than are readable"
        assert "… and " in frame, "and those that are left out are counted"
    assert "44/44 cells" in seen.decode()


def test_ctrl_c_before_the_first_call_leaves_no_cell_behind(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        file = write_file(tmp_path, candidates=[f"openai:{url}#a", "simulated:b"])
        process = started("sweep", file, "--out", tmp_path / "out", "--json")
        connection, _ = silent.accept()  # it asks whether the model is there, and nobody answers
        with connection:
            process.send_signal(signal.SIGINT)
            code, printed, said = ended(process)
    assert code == 130, said
    assert orjson.loads(printed)["states"] == {"waiting": 2}
    assert not (tmp_path / "out" / "cells" / "kieval" / "alpha" / "seed-7" / "e" / "a").exists()
