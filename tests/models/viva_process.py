"""The command line in a process of its own: started, and waited for.

What never belongs here: signals, assertions about what was printed.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_PATIENCE = 120.0  # far beyond what anything takes: what is stuck fails its test instead of hanging it


def started(*arguments: str | Path, cwd: Path | None = None) -> subprocess.Popen[bytes]:
    """``viva`` with these arguments, on its way."""
    command = [sys.executable, "-m", "viva", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cwd)


def ended(process: subprocess.Popen[bytes]) -> tuple[int, bytes, str]:
    """Exit code, stdout and stderr, once it has ended."""
    try:
        printed, said = process.communicate(timeout=_PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert b"Traceback" not in said, said.decode()
    return process.returncode, printed, said.decode()
