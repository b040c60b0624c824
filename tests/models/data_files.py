"""Small data files, and the items that are read from them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from viva.data.dataset import open_dataset
from viva.data.items import Item

GOOD: dict[str, Any] = {"question": "Which is a metal?", "choices": ["tin", "fog"], "answer": "A"}


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


def lines(*records: Any) -> str:
    """Records as JSON lines; text is a line as it stands."""
    texts = [record if isinstance(record, str) else json.dumps(record, ensure_ascii=False) for record in records]
    return "".join(f"{text}\n" for text in texts)


def jsonl(folder: Path, *records: Any, name: str = "items.jsonl") -> str:
    return str(written(folder / name, lines(*records)))


def numbered(numbers: Iterable[int]) -> list[dict[str, Any]]:
    return [GOOD | {"id": f"item-{number}"} for number in numbers]


def items(source: str, **options: Any) -> list[Item]:
    return list(open_dataset(source, **options))


def ids(source: str, **options: Any) -> list[str]:
    return [item.id for item in items(source, **options)]
