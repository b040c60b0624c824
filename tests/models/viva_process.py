"""The command line in a process of its own: started, waited for, or killed when its run has come so far."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path

from process_template import VIVA, Process, can_fork, forked

_PATIENCE = 600.0  # far beyond what anything takes: what is stuck fails its test instead of hanging it


def started(
    *arguments: str | Path, cwd: Path | None = None, errors: int | None = None
) -> subprocess.Popen[bytes] | Process:
    """Start ``viva`` with these arguments; ``errors``: where its stderr goes instead of a pipe."""
    start = partial(forked, VIVA) if can_fork() else started_afresh
    return start(*arguments, cwd=cwd, errors=errors)


def started_afresh(
    *arguments: str | Path, cwd: Path | None = None, errors: int | None = None
) -> subprocess.Popen[bytes]:
    """Start ``viva`` as a shell does, so that it inherits what this process ignores and imports all itself."""
    command = [sys.executable, "-m", "viva", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors or subprocess.PIPE, cwd=cwd)


def ended(process: subprocess.Popen[bytes] | Process) -> tuple[int, bytes, str]:
    """Return exit code, stdout and stderr, once it has ended."""
    try:
        printed, said = process.communicate(timeout=_PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert b"Traceback" not in said, said.decode()
    assert process.returncode is not None
    return process.returncode, printed, said.decode()


def completed(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[bytes]:
    """Run ``viva`` with these arguments to its end."""
    code, printed, said = ended(started(*arguments, cwd=cwd))
    return subprocess.CompletedProcess(arguments, code, printed, said.encode())


def killed(process: subprocess.Popen[bytes] | Process, run: Path, rows: int, table: str = "calls") -> int:
    """Kill the process once its run has recorded so many calls, or rows of another table; how many there are then."""
    while process.poll() is None and recorded_rows(run, table) < rows:
        time.sleep(0.01)  # a look now and then: a busy look would take a local model's processor
    process.kill()
    assert ended(process)[0] == -signal.SIGKILL, "it had ended before"
    return recorded_rows(run, table)


def recorded_rows(run: Path, table: str = "calls") -> int:
    """How many calls, or rows of another table, a run's journal has; 0 while there is no journal."""
    try:
        with closing(sqlite3.connect(f"file:{run}/journal.sqlite?mode=ro", uri=True)) as journal:
            return int(journal.execute(f"select count(*) from {table}").fetchone()[0])
    except sqlite3.OperationalError:  # not made yet
        return 0
