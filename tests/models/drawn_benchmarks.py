"""Small random benchmarks in each of the published forms."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

_WORDS = "people question answer time number other first water 水 热 now been some these would about"


def drawn_items(count: int, seed: int) -> list[tuple[str, list[str], int]]:
    draw = random.Random(seed)
    made = []
    for number in range(count):
        question = f"{' '.join(draw.choices(_WORDS.split(), k=draw.randint(2, 12)))} {seed}-{number}"
        choices = [f"{' '.join(draw.choices(_WORDS.split(), k=draw.randint(1, 4)))} {n}" for n in range(4)]
        made.append((question, choices, draw.randrange(4)))
    return made


def _lines(path: Path, records: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))


def _table(path: Path, rows: list[list[str]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def _arc(folder: Path, split: str, drawn: list[tuple[str, list[str], int]]) -> str:
    records = [
        {
            "id": f"{split}-{number}",
            "question": {
                "stem": question,
                "choices": [{"text": text, "label": "1234"[n]} for n, text in enumerate(choices)],
            },
            "answerKey": "1234"[answer],
        }
        for number, (question, choices, answer) in enumerate(drawn)
    ]
    _lines(folder / f"ARC-Easy-{split.title()}.jsonl", records)
    return f"arc:{folder}:{split}"


def _mmlu(folder: Path, split: str, drawn: list[tuple[str, list[str], int]]) -> str:
    for number, subject in enumerate(("world_law", "art")):
        rows = [[question, *choices, "ABCD"[answer]] for question, choices, answer in drawn[number::2]]
        _table(folder / f"{subject}_{split}.csv", rows)
    return f"mmlu:{folder}:{split}"


def _hellaswag(folder: Path, split: str, drawn: list[tuple[str, list[str], int]]) -> str:
    records = [
        {"ctx": question, "endings": choices, "label": str(answer), "activity_label": "Waiting"}
        for question, choices, answer in drawn
    ]
    _lines(folder / f"hellaswag_{split}.jsonl", records)
    return f"hellaswag:{folder}:{split}"


def _ceval(folder: Path, split: str, drawn: list[tuple[str, list[str], int]]) -> str:
    header = ["id", "question", "A", "B", "C", "D", "answer"]
    rows = [[str(n), f"问：{question}", *choices, "ABCD"[a]] for n, (question, choices, a) in enumerate(drawn)]
    _table(folder / f"law_{split}.csv", [header, *rows])
    return f"ceval:{folder}:{split}"


def _generic(folder: Path, split: str, drawn: list[tuple[str, list[str], int]]) -> str:
    records = [
        {"id": f"{split}-{n}", "question": question, "choices": choices, "answer": answer}
        for n, (question, choices, answer) in enumerate(drawn)
    ]
    _lines(folder / f"own_{split}.jsonl", records)
    return f"generic:{folder}:{split}"


Maker = Callable[[Path, str, list[tuple[str, list[str], int]]], str]
FORMS: dict[str, Maker] = {"arc": _arc, "mmlu": _mmlu, "hellaswag": _hellaswag, "ceval": _ceval, "generic": _generic}
