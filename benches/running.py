"""Running the programs of ``peers/``: each in a process of its own, answering with one line of JSON."""

from __future__ import annotations

import json
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


def finish(command: list[str], cwd: Path = PEERS) -> str:
    """Run a command to its end and return its stdout.

    :raises PeerFailed: it did not end well.
    """
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PeerFailed(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr.strip()[-2000:]}")
    return done.stdout


def last_line(command: list[str]) -> Line:
    """The figures that a program of ``peers/`` prints as its last line.

    :raises PeerFailed: it did not end well.
    """
    line: Line = json.loads(finish(command).splitlines()[-1])
    return line
