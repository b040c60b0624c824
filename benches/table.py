"""What every bench ends with: tables on the terminal, its figures against their reach, and one JSON file of them.

The reach of a figure is the bound that it should keep. A missed reach is printed, never raised: a bench measures, and
whoever reads it judges.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from viva.cli.output import print_tables

Reach = Mapping[str, tuple[Literal["<=", ">="], float]]
RESULTS = Path(__file__).resolve().parent / "results"


def show(title: str, header: list[str], rows: list[list[str]]) -> None:
    """One table on stdout."""
    print_tables([(title, header, rows)])


def machine() -> dict[str, str | int | float]:
    """What the figures depend on and a reader elsewhere cannot see."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return {
        "cpu": _cpu_model(),
        "cores": cores,
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(),
    }


def checkout() -> dict[str, str]:
    """Return the commit that is measured, with ``+`` behind it if files were changed since, and today's date."""
    commit = git("rev-parse", "--short=12", "HEAD")
    changed = "+" if git("status", "--porcelain", "--untracked-files=no") else ""
    return {"commit": f"{commit}{changed}", "date": datetime.now(UTC).date().isoformat()}


def git(*arguments: str) -> str:
    """Return what a git command prints about this checkout; nothing if it fails or there is no git."""
    try:
        done = subprocess.run(["git", *arguments], cwd=RESULTS.parent, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def conclude(bench: str, figures: Mapping[str, float], reach: Reach) -> Path:
    """Print all figures with their reach and write ``results/BENCH.json``; returns its path."""
    about = machine()
    show_figures(bench, figures, reach, about)
    path = RESULTS / f"{bench}.json"
    path.parent.mkdir(exist_ok=True)
    write(path, bench, figures, reach, {**checkout(), "machine": about})
    print(f"written to {path}")
    return path


def show_figures(bench: str, figures: Mapping[str, float], reach: Reach, about: Mapping[str, object]) -> None:
    """Print all figures with their reach, and the machine.

    A figure with a reach that was not measured keeps its row and its reach, and is absent from the figures.
    """
    names = [*figures, *(name for name in reach if name not in figures)]
    rows = []
    for name in names:
        bound = " ".join((reach[name][0], f"{reach[name][1]:g}")) if name in reach else ""
        measured = f"{figures[name]:,.3f}".rstrip("0").rstrip(".") if name in figures else "–"
        rows.append([name, measured, bound, _verdict(figures.get(name), name, reach)])
    show(f"{bench}: figures", ["figure", "measured", "reach", ""], rows)
    print(", ".join(f"{key} {value}" for key, value in about.items()))


def write(
    path: Path, bench: str, figures: Mapping[str, float], reach: Reach, circumstances: Mapping[str, object]
) -> None:
    """Write a result; ``circumstances`` are commit, date and machine."""
    content = {"bench": bench, **circumstances, "figures": dict(figures), "reach": dict(reach)}
    path.write_text(json.dumps(content, indent=2) + "\n")


def _verdict(figure: float | None, name: str, reach: Reach) -> str:
    if name not in reach:
        return ""
    if figure is None:
        return "not measured"
    sign, bound = reach[name]
    return "ok" if (figure <= bound if sign == "<=" else figure >= bound) else "missed"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or platform.machine())
