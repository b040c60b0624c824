"""Examples with known truth for judges with assistants, and a run over them in this process."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import viva
from viva.engine.clock import VirtualClock

TASK = """
name: essays
about: You are shown a question and an answer.
texts:
  question: {field: question, title: Question}
  good: {field: good, title: Signal, optional: true}
  noise: {field: noise, title: Other signal, optional: true}
  answer: {field: answer, title: Answer}
response: answer
against: question
context: [question]
id: id
system: by
criteria:
  depth: {range: [1, 5], rating: depth, about: "Does it go below the surface?"}
  style: {range: [0, 1], about: "Is it well written?"}
"""
PLAN = """
text: Trust good for depth; noise says nothing.
use:
  depth: [good]
"""
# Assistants of known noise: they read a number that the data hold.
FUNCTIONS = """
def good(example):
    return float(example["texts"]["good"])

def noise(example):
    return float(example["texts"]["noise"])
"""


def make_files(folder: Path, count: int, *, noise: float = 0.15, seed: int = 3) -> dict[str, str]:
    """Writes task, plan, functions and ``count`` examples whose assistant ``good`` is off by ``noise`` (a standard
    deviation, as a share of the range); the settings that name them.
    """
    draw = random.Random(seed)
    rows = []
    for place in range(count):
        truth = draw.random()
        good = min(1.0, max(0.0, truth + draw.gauss(0, noise)))
        rows.append({
            "id": f"e{place}",
            "by": f"system-{place % 4}",
            "question": f"What is the use of thing {place}?",
            "answer": f"The thing {place} is of use for what things are used for.",
            "good": f"{good:.4f}",
            "noise": f"{draw.random():.4f}",
            "depth": 1 + 4 * truth,
        })  # fmt: skip
    (folder / "examples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "task.yaml").write_text(TASK)
    (folder / "plan.yaml").write_text(PLAN)
    (folder / "mine.py").write_text(FUNCTIONS)
    return {name: str(folder / file) for name, file in (("task", "task.yaml"), ("data", "examples.jsonl"))}


def judged(out: Path, judges: Sequence[str], **settings: Any) -> viva.Run:
    """A run of these judges in this process, finished."""
    return viva.run_sync("fusion", models={"judge": list(judges)}, out=out, clock=VirtualClock(), **settings)
