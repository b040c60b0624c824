"""CPU time that another process has used, from /proc."""

from __future__ import annotations

import os
from pathlib import Path


def cpu_seconds(process: int) -> float:
    """User and system time of a process and its threads, without its children."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
