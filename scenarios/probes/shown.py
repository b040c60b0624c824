"""How a probe is shown: the item, each question with what the model made of the choices, and whether that is right.

What never belongs here: how a choice is read (``probe``), and markup.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from viva.data.items import letter
from viva.engine.rerun import Exchange

from ..shown import (
    Detail,
    Mark,
    RecordedConversation,
    ResultSummary,
    ShownConversation,
    Side,
    shown_entry,
    waiting_turns,
)
from .settings import Method

_METHODS: tuple[Method, ...] = ("letter", "text", "generate")
_SAID = {"letter": "by letter", "text": "by text", "generate": "generated", "loss": "loss of the text"}


def shown_probe(recorded: RecordedConversation, sides: Mapping[str, Side]) -> ShownConversation:
    """The item, then a turn a method, in the order in which the methods were tried."""
    turns = []
    result = recorded.result or {}
    # Calls come in the order of the methods; each method that was carried out left its part of the record.
    done = [name for name in result if name in _METHODS or name == "signals"]
    for entry in recorded.entries:
        turn = shown_entry(entry, sides)
        if isinstance(entry, Exchange):
            name = done.pop(0) if done else ""
            if name in _METHODS:
                turn.marks.insert(0, _choice(name, result[name]))
            elif name == "signals":
                turn.marks.insert(0, Mark(_SAID["loss"], f"{result[name]['loss']:.3f} nats a token"))
            if entry.reading is not None:
                turn.details.insert(0, Detail("the text that was read", entry.reading.shared + entry.reading.context))
        turns.append(turn)
    return ShownConversation([*turns, *waiting_turns(recorded, sides)])


def _choice(name: str, found: Mapping[str, Any]) -> Mark:
    choice = found["choice"]
    told = "no choice" if choice is None else f"{letter(choice)}, {'right' if found['right'] else 'wrong'}"
    return Mark(_SAID[name], told, float(found["right"]))


def summary(result: Mapping[str, Any]) -> ResultSummary:
    """A probe's line in a list: 100 where the first method found the right choice, 0 where not; loss in nats a token.

    A probe of the second set is read for its loss alone.
    """
    rights = {_SAID[name]: 100.0 * result[name]["right"] for name in _METHODS if name in result}
    loss = {"loss": float(result["signals"]["loss"])} if "signals" in result else {}
    score = next(iter(rights.values()), None)
    end = "of the second set" if result.get("second") else "" if score is None else "right" if score else "wrong"
    return ResultSummary(score, f"ended by {result['stopped']}" if "stopped" in result else end, rights | loss)
