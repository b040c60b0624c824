"""Running the programs of ``peers/``: each in a process of its own, answering with one line of JSON.

What never belongs here: what is measured, or how a peer does its work.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / "benches" / "peers"
STAT = Path("/proc/stat")
DISTURBED = 0.04  # of the processors' time; on a calm host a fortieth of this is lost
Line = dict[str, Any]


class PeerFailed(Exception):
    """A peer ended badly; the text is the end of what it said."""


def note(text: str) -> None:
    """Say on stderr what is going on."""
    print(f"· {text}", file=sys.stderr, flush=True)


def finish(command: list[str], cwd: Path = PEERS, tries: int = 1) -> str:
    """Run a command to its end and return its stdout.

    A run that lost processor time to other guests of the host is made again, up to ``tries`` in all; the one that lost
    the least counts. So runs are chosen by what happened to them, never by their figures.

    :raises PeerFailed: it did not end well.
    """
    runs: list[tuple[float, str]] = []
    while len(runs) < tries and (not runs or runs[-1][0] > DISTURBED):
        before = _processor_time()
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
        if done.returncode:
            raise PeerFailed(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr.strip()[-2000:]}")
        spent, stolen = (now - then for now, then in zip(_processor_time(), before, strict=True))
        runs.append((stolen / max(1, spent), done.stdout))
        if runs[-1][0] > DISTURBED:
            note(f"  {runs[-1][0]:.0%} of the processors' time went to other guests meanwhile")
    return min(runs)[1]


def last_line(command: list[str], tries: int = 1) -> Line:
    """The figures that a program of ``peers/`` prints as its last line; ``tries`` as for ``finish``.

    :raises PeerFailed: it did not end well.
    """
    line: Line = json.loads(finish(command, tries=tries).splitlines()[-1])
    return line


def _processor_time() -> tuple[int, int]:
    """Ticks of all processors since the start that were not idle, and those of them that the host gave to others."""
    try:
        user, nice, system, _idle, _io, irq, softirq, stolen = map(int, STAT.read_text().split()[1:9])
    except (OSError, ValueError):  # no Linux: nothing is known
        return 0, 0
    return user + nice + system + irq + softirq + stolen, stolen
