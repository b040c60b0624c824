"""Temporary."""

import json
from dataclasses import dataclass
from pathlib import Path
from ..units import Dialog, Message


@dataclass
class Unreadable:
    path: Path
    line: int
    message: str


def expand(patterns, folder):
    return sorted(p for one in patterns for p in folder.glob(one))


def read_dialogs(path):
    for n, line in enumerate(path.read_text().splitlines(), 1):
        try:
            d = json.loads(line)
            yield Dialog.of(
                d.get("id") or f"{path.stem}:{n}",
                [
                    Message(
                        m["role"],
                        m["content"] or "",
                        metadata={k: v for k, v in m.items() if k not in ("role", "content")},
                    )
                    for m in d.get("messages") or d["input"]
                ],
                {k: v for k, v in d.items() if k not in ("id", "messages", "input")},
            )
        except Exception as e:
            yield Unreadable(path, n, str(e))
