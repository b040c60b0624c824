"""Small LalaEval projects, and ``viva`` in this process with what it printed."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from viva.cli.main import app
from viva.scenarios.lalaeval.project import Project
from viva.scenarios.lalaeval.question_bank import Bank

TEMPLATES = Path(__file__).parents[2] / "scenarios" / "lalaeval" / "templates"
PROJECT = """\
title: Small
domains: {a: {priority: P1, parts: {b: {priority: P0}, c: {}}}}
dimensions:
  facts:
    weight: 3
    parts:
      dates: {rubric: scale, principle: strict}
      names: {rubric: scale, weight: 2}
  talk: {rubric: yes-no, timely: false}
rubrics:
  scale: {0: wrong, 1: partly right, 2: right, 3: right and more}
  yes-no: {0: lost, 1: kept}
principles: {strict: One error is a 0.}
timeliness: Dates count.
graders: [Ada, Ben, {name: Cleo, role: adjudicator}]
seed: 3
overlap: 2
"""


def viva(*arguments: str | Path, code: int = 0) -> tuple[str, str]:
    """What ``viva`` prints on stdout and stderr; it must leave with this exit code."""
    out, err, left = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            app([str(one) for one in arguments], standalone_mode=False)
        except SystemExit as exit_:
            left = int(exit_.code or 0)
        out.flush()
    assert left == code, err.getvalue()
    assert isinstance(out.buffer, io.BytesIO)
    return out.buffer.getvalue().decode(), err.getvalue()


def project(folder: Path, text: str = PROJECT) -> Project:
    """A project of this file, in this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "project.yaml").write_text(text)
    return Project.open(folder)


def pair(name: str, **changed: Any) -> dict[str, Any]:
    """A row of questions. No two of these are alike."""
    row = {
        "id": name,
        "question": f"{name * 3}?",
        "standard_answer": f"The answer to {name} has several words in it.",
        "source": "a book",
        "designer": "Ada",
        "dimension": "facts/dates",
        "difficulty": "simple",
    }
    return {key: value for key, value in (row | changed).items() if value is not None}


def lines(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    """Rows as a file of JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def accepted(folder: Path, rows: Iterable[dict[str, Any]], text: str = PROJECT) -> Project:
    """A project whose bank has accepted these rows."""
    made = project(folder, text)
    viva("grade", "bank", "import", folder, lines(folder / "questions.jsonl", rows), "--by", "Ada")
    with Bank.open(made) as bank:
        names = [one.pair.id for one in bank.entries("draft")]
        bank.inspect(names, "Ben")
        bank.accept(names, "Ben")
    return made
