"""The same finished conversations for every tool: ten turns each, in JSON lines, drawn from a seed."""

from __future__ import annotations

import json
import random
from pathlib import Path

TURNS = 10  # of a conversation; user and assistant take turns
_TEXT = (
    "the answer is that we could try another way because every number of this list divides it without a remainder "
    "please look at my question again and tell me why water boils earlier on mountains than by the sea"
)


def sentence(draw: random.Random) -> str:
    """A few words that end with a mark."""
    words = draw.choices(_TEXT.split(), k=draw.randint(5, 16))
    return " ".join(words).capitalize() + draw.choice("..?!")


def write_conversations(path: Path, conversations: int) -> None:
    """Write so many conversations; the file's first n lines are the same whatever the number."""
    draw = random.Random(7)
    with path.open("w", encoding="utf-8") as lines:
        for number in range(conversations):
            messages = [
                {
                    "role": "assistant" if turn % 2 else "user",
                    "content": " ".join(sentence(draw) for _ in range(draw.randint(2, 6) if turn % 2 else 1)),
                }
                for turn in range(TURNS)
            ]
            record = {"id": f"talk-{number:06}", "topic": f"topic-{number % 7}", "input": messages}
            lines.write(json.dumps(record) + "\n")
