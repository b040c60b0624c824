"""The command line in a process of its own: started, and waited for."""

from __future__ import annotations

import subprocess
import sys
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
