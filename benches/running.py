"""Running the programs of ``peers/``: each in a process of its own, answering with one line of JSON."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / "benches" / "peers"
Line = dict[str, Any]


class PeerFailed(Exception):
    """A peer ended badly; the text is the end of what it said."""


def note(text: str) -> None:
    """Say on stderr what is going on."""
    print(f"· {text}", file=sys.stderr, flush=True)


def finish(command: list[str], cwd: Path = PEERS, seconds: float | None = None) -> str:
    """Run a command to its end and return its stdout.

    :raises PeerFailed: it did not end well, or not within ``seconds``: then it and what it started are killed.
    """
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=cwd, text=True, start_new_session=seconds is not None, **pipes) as process:
        try:
            output, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise PeerFailed(f"{' '.join(command)} did not end within {seconds:.0f} s") from None
    if process.returncode:
        raise PeerFailed(f"{' '.join(command)} ended with {process.returncode}:\n{errors.strip()[-2000:]}")
    return output


def last_line(command: list[str], seconds: float | None = None) -> Line:
    """The figures that a program of ``peers/`` prints as its last line.

    :raises PeerFailed: it did not end well, or not within ``seconds``.
    """
    line: Line = json.loads(finish(command, seconds=seconds).splitlines()[-1])
    return line
