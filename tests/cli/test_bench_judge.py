"""``viva judge load`` as a process: Ctrl-C and going on, and its live table in a terminal of 80 columns."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from queues import running_queue
from viva_process import ended, started

from viva.loadtest.load_log import LoadHistory

_REQUESTS = 30


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of requests."""
    file = tmp_path_factory.mktemp("asked") / "requests.jsonl"
    lines = [{"messages": [{"role": "user", "content": f"Judge answer {number}."}]} for number in range(_REQUESTS)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_asked_once_to_stop_it_waits_for_answers_and_says_how_to_go_on(asked: Path, tmp_path: Path) -> None:
    with running_queue(servers=4, mean=0.01) as queue:
        folder = tmp_path / "test"
        process = started(
            "judge", "load", asked, "--judge", queue.model, "--concurrency", "4,8", "--requests", 100,
            "--baseline", 10, "--seed", 3, "--temperature", 0, "--out", folder,
        )  # fmt: skip
        queue.counts(requests=20 + 40)  # in the middle of the first step
        process.send_signal(signal.SIGINT)
        code, _, said = ended(process)
        assert code == 130
        assert "finishing the calls in flight" in said
        assert f"resume with: viva judge load --resume {folder}" in said
        counts = queue.counts()
        assert counts["requests"] == counts["answered"] < 20 + 100
        with LoadHistory(folder) as history:
            assert history.count() == counts["requests"]

        code, printed, said = ended(started("judge", "load", "--resume", folder, "--json"))
        assert code == 0, said
        assert queue.counts()["requests"] == 20 + 100 + 100, "nothing was asked twice"
        [judge] = json.loads(printed)["judges"]
        assert [step["speed"]["sent"] for step in judge["steps"]] == [100, 100]


def test_unloaded_passes_are_announced_and_the_live_table_fits_80_columns(asked: Path, tmp_path: Path) -> None:
    with running_queue(servers=4, mean=0.01) as queue:
        code, shown = _in_terminal(
            "judge", "load", asked, "--judge", f"{queue.model}?label=a-judge-with-quite-a-long-name",
            "--rates", "40", "--requests", 60, "--baseline", 10, "--temperature", 0,
            "--slo", "p95_e2e<1us", "--out", tmp_path / "test",
        )  # fmt: skip
    assert code == 3
    live, _, told = shown.partition("\x1b[?25h")  # where the cursor comes back, the live table has gone
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", live))
    assert any("judge" in line and "answered" in line and "p95" in line for line in lines)
    assert any(re.search(r"a-judge-with\S+ +(40/s|unloaded \d) +\d+ .* running", line) for line in lines)
    assert max(len(line) for line in lines if not line.startswith("viva: note:")) <= 80
    assert lines[0].startswith("viva: note: 2 unloaded passes of 10 requests run first")
    told = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", told)
    tables = [line for line in told.splitlines() if not line.startswith(("viva:", "load test folder:"))]
    assert any(line.startswith("Verdicts under load") for line in tables)
    assert max(map(len, tables)) <= 80


def test_a_test_in_which_nothing_was_answered_has_failed(asked: Path, tmp_path: Path) -> None:
    with running_queue(servers=4, mean=0.01, fail_every=1) as queue:
        code, _, said = ended(started(
            "judge", "load", asked, "--judge", queue.model, "--concurrency", "4", "--requests", 20,
            "--baseline", 0, "--seed", 3, "--temperature", 0, "--out", tmp_path / "test",
        ))  # fmt: skip
    assert code == 1
    assert "no request was answered" in said


def _in_terminal(*arguments: str | int | Path) -> tuple[int, str]:
    """Exit code, and all that is written to a terminal of 80 columns."""
    mine, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    command = [sys.executable, "-m", "viva", *map(str, arguments)]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment | {"TERM": "xterm"}) as process:
        os.close(theirs)
        read = bytearray()
        try:
            while piece := os.read(mine, 1 << 16):
                read += piece
        except OSError:  # the other end is closed
            pass
        os.close(mine)
        return process.wait(), read.decode()
