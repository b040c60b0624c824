"""Published outputs of pairwise judges, small: JudgeBench's, LLMBar's and MT-Bench's forms, written for the tests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_FLIP = {"A>B": "B>A", "B>A": "A>B"}


def judgebench(path: Path, judge: str, decisions: Sequence[tuple[str, str | None, str | None]]) -> Path:
    """A file of JudgeBench: for each pair its label and the decision in both orders, as the answers are shown."""
    rows = []
    for number, (label, first, second) in enumerate(decisions):
        judgments = [{"judgment": {"judge_model": judge, "response": "…"}, "decision": one} for one in (first, second)]
        rows.append(
            {"pair_id": f"pair-{number}", "original_id": number, "source": f"subject-{number % 2}",
             "question": f"Question {number}?", "response_A": "One.", "response_B": "Two.", "label": label,
             "judge_name": "arena", "judgments": judgments}
        )  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def judgebench_votes(path: Path, judge: str, labels: Sequence[int], wrong: Sequence[bool]) -> Path:
    """A consistent judge: right in both orders, or wrong in both."""
    decisions: list[tuple[str, str | None, str | None]] = []
    for label, is_wrong in zip(labels, wrong, strict=True):
        truth = "A>B" if label else "B>A"
        said = _FLIP[truth] if is_wrong else truth
        decisions.append((truth, said, _FLIP[said]))
    return judgebench(path, judge, decisions)


def llmbar(folder: Path, judge: str, rows: Sequence[tuple[int, Any, Any]]) -> Path:
    """A result of LLMBar in its folders: for each pair its label and the winner in both orders, as they are listed."""
    path = folder / "Natural" / "evaluators" / judge / "result.json"
    path.parent.mkdir(parents=True)
    records = [
        {"input": f"Do {number}.", "output_1": "One.", "output_2": "Two.", "label": label,
         "results": [{"swap = False": {"winner": first}, "swap = True": {"winner": second}}]}
        for number, (label, first, second) in enumerate(rows)
    ]  # fmt: skip
    path.write_text(json.dumps(records, indent=1))
    return path
