"""Folders as earlier versions of the project wrote them, from their text in ``earlier/``, and what they said that day.

Each text was made by running the version of ``commit``: a run that its budget ended half-way, in some a sweep, and the
reports of that day (``whole`` is that of the same run led to its end).
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

_TEXTS = Path(__file__).parent / "earlier"
EARLIER = ("first", "sweep-1", "checksums", "contract", "suite")
_ITEMS = [
    ("a-1", "Which metal is liquid at room temperature?", ["iron", "mercury", "gold", "tin"], 1),
    ("a-2", "Which gas do plants take up?", ["oxygen", "helium", "carbon dioxide", "neon"], 2),
    ("a-3", "What orbits the Earth?", ["the Moon", "Mars", "the Sun", "Venus"], 0),
    ("a-4", "At what temperature does water freeze?", ["0 °C", "10 °C", "50 °C", "100 °C"], 0),
]


def earlier_folder(name: str, folder: Path) -> dict[str, Any]:
    """Write the folders of an earlier version: ``folder/part`` is a run, ``folder/sweep`` a sweep where it has one.

    :returns: ``reports`` of its day by name, ``calls``: those of the whole run.
    """
    text = (_TEXTS / f"{name}.json").read_text().replace("@FOLDER@", str(folder))
    data: dict[str, Any] = json.loads(text)
    names = ("id", "question", "choices", "answer")
    lines = [json.dumps(dict(zip(names, item, strict=True)), ensure_ascii=False) for item in _ITEMS]
    (folder / "items.jsonl").write_text("\n".join(lines) + "\n")
    for file, content in data.get("files", {}).items():
        (folder / file).write_text(content)
    for place, run in data["runs"].items():
        path = folder / place
        path.mkdir(parents=True)
        manifest = run["manifest.json"]
        if manifest["prompts"] is not None:
            manifest["prompts"] = "".join(data["prompts"][manifest["prompts"]])
        (path / "manifest.json").write_text(json.dumps(manifest))
        (path / "lock").touch()
        with closing(sqlite3.connect(path / "journal.sqlite")) as journal:
            journal.executescript("\n".join(run["journal.sql"]))
    if "sweep.json" in data:
        (folder / "sweep" / "sweep.json").write_text(json.dumps(data["sweep.json"]))
    return data
