"""Small sweeps on disk for tests: invented datasets, a file, and the sweep that follows from it."""

from __future__ import annotations

import json
import random
import sqlite3
from pathlib import Path
from typing import Any

import anyio
import yaml

from viva.engine.clock import Clock
from viva.engine.errors import ConfigurationError
from viva.sweeps.sweep import Sweep, open_sweep

INTERVIEWS = {"interactor": "simulated:i", "evaluator": "simulated:e"}


def dataset(path: Path, count: int, choices: int = 4) -> Path:
    """Write ``count`` items whose ids and texts follow from the file's name."""
    draw = random.Random(path.stem)
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            item = {
                "id": f"{path.stem}-{number}",
                "question": f"Which number belongs to {draw.random():.6f}?",
                "choices": [f"number {draw.random():.9f}" for _ in range(choices)],
                "answer": draw.randrange(choices),
            }
            file.write(json.dumps(item) + "\n")
    return path


def write_file(folder: Path, items: int = 4, names: tuple[str, ...] = ("alpha",), **said: Any) -> Path:
    """A sweep's file over datasets that lie beside it; ``said`` stands over two candidates and short interviews."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        dataset(folder / f"{name}.jsonl", items)
    whole = {
        "candidates": ["simulated:a?knowledge=0.9", "simulated:b?knowledge=0.2"],
        "datasets": [f"{name}.jsonl" for name in names],
        "interviews": {**INTERVIEWS, "rounds": 2},
        **said,
    }
    file = folder / "grid.yaml"
    file.write_text(yaml.safe_dump({name: value for name, value in whole.items() if value is not None}))
    return file


def swept(file: Path, out: Path, clock: Clock | None = None, **how: Any) -> Sweep:
    """Run the sweep of a file to its end."""
    sweep = open_sweep(file, out, clock, **how)
    sweep.clock.run(sweep.run)
    return sweep


def stop_after(sweep: Sweep, calls: int, how: str) -> None:
    """Run a sweep and ask it to ``interrupt`` or ``halt`` once it has made so many calls."""

    async def main() -> None:
        async def stop() -> None:
            while sum(run.calls for run in sweep.runs) < calls:
                await sweep.clock.sleep(0.5)
            getattr(sweep, how)()

        async with anyio.create_task_group() as group:
            group.start_soon(stop)
            await sweep.run()
            group.cancel_scope.cancel()

    sweep.clock.run(main)


def states(sweep: Sweep) -> dict[str, str]:
    """Each cell's state."""
    return {run.cell.name: run.state for run in sweep.runs}


def journals(out: Path) -> dict[str, bytes]:
    """What the journals of a sweep's cells hold, byte for byte, by cell."""
    return {str(file.parent.relative_to(out)): file.read_bytes() for file in sorted(out.rglob("journal.sqlite"))}


def calls_in(out: Path) -> int:
    """How many model calls a sweep's journals hold."""
    count = 0
    for file in out.rglob("journal.sqlite"):
        connection = sqlite3.connect(file)
        try:
            count += connection.execute("select count(*) from calls").fetchone()[0]
        except sqlite3.OperationalError:  # killed before the tables were there
            pass
        connection.close()
    return count


def refused(file: Path) -> str:
    """What is said of a file that cannot be used."""
    try:
        open_sweep(file, file.parent / "out")
    except ConfigurationError as error:
        return str(error)
    raise AssertionError("the file was taken")
