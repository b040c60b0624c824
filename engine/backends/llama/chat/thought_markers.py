"""Marks of thoughts: how they are spelt in an answer's text, and what a template's generation prompt has begun.

Answers are given with their thoughts between marks in the text; who reads them takes the thoughts off
(``viva.engine.thoughts``). Control tokens have no text of their own, so those that part thoughts from answers are given
one here. Channels of the harmony format are spelt as they are.

What never belongs here: taking thoughts off a text, sampling.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ..native import NativeModel
from .tokenizer import Vocabulary

# Tokens by which families of models part thoughts from answers; the first two marks are what readers know.
_SPELT = {
    "<think>": "<think>",
    "</think>": "</think>",
    "<thinking>": "<thinking>",
    "</thinking>": "</thinking>",
    "[THINK]": "[THINK]",
    "[/THINK]": "[/THINK]",
    "<|START_THINKING|>": "<think>",
    "<|END_THINKING|>": "</think>",
    "<seed:think>": "<think>",
    "</seed:think>": "</think>",
    "<|think_start|>": "<think>",
    "<|think_end|>": "</think>",
    "◁think▷": "<think>",
    "◁/think▷": "</think>",
    "<|channel>": "<think>",
    "<channel|>": "</think>",
    "<|channel|>": "<|channel|>",
    "<|message|>": "<|message|>",
    "<|start|>": "<|start|>",
    "<|end|>": "<|end|>",
}
_CLOSINGS = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "[THINK]": "[/THINK]",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "<seed:think>": "</seed:think>",
    "<|think_start|>": "<|think_end|>",
    "◁think▷": "◁/think▷",
}
_OPENED = re.compile(rf"({'|'.join(map(re.escape, _CLOSINGS))})(\s*)\Z")
_ANALYSIS = re.compile(r"<\|channel\|>analysis<\|message\|>\s*\Z")
_HARMONY = frozenset({"<|start|>", "<|channel|>", "<|message|>", "<|end|>"})
_HARMONY_TURN = "<|start|>assistant"
_FINAL = "<|channel|>final<|message|>"


def spelling_of(model: NativeModel, vocabulary: Vocabulary) -> list[bytes]:
    """Each token's bytes, those of tokens that part thoughts from answers included."""
    spelling = model.pieces
    channels = message_end(model, vocabulary)
    for mark in _SPELT.keys() & vocabulary.marks.keys():
        token = vocabulary.marks[mark]
        if (channels < 0 and mark in _HARMONY) or (model.ends[token] and token != channels):
            continue
        if spelling is model.pieces:
            spelling = model.pieces.copy()
        spelling[token] = _SPELT[mark].encode()
    return spelling


def message_end(model: NativeModel, vocabulary: Vocabulary) -> int:
    """The token that ends a message within a turn of several channels; -1 for a model that has none.

    llama.cpp may list it among the tokens that end a text; it ends the turn behind the final channel alone.
    """
    marks = vocabulary.marks
    return marks["<|end|>"] if marks.keys() >= _HARMONY else -1


def in_final_channel(text: bytes | bytearray) -> bool:
    """Whether the message that an answer is in, or has just ended, is for the user to read."""
    return text.rfind(b"<|channel|>final") > text.rfind(b"<|start|>")


def opened_by(prompt: str) -> str:
    """The mark with which a generation prompt ends, blanks included, as readers know it; "" if there is none."""
    found = _OPENED.search(prompt)
    if found is not None:
        return _SPELT[found[1]] + found[2]
    analysis = _ANALYSIS.search(prompt)
    return "" if analysis is None else analysis[0]


def closing_of(prompt: str, vocabulary: Vocabulary) -> str:
    """What a template would write behind a generation prompt to have the answer come at once, without thoughts."""
    found = _OPENED.search(prompt)
    if found is not None:
        return ("" if found[2] else "\n") + f"\n{_CLOSINGS[found[1]]}\n\n"
    if not vocabulary.marks.keys() >= _HARMONY:
        return ""
    if _ANALYSIS.search(prompt):
        return f"<|end|>{_HARMONY_TURN}{_FINAL}"
    return _FINAL if prompt.endswith(_HARMONY_TURN) else ""


def opened_first(on_text: Callable[[str], None] | None, opened: str) -> Callable[[str], None] | None:
    """A listener that hears, before an answer's first piece, the mark with which the prompt has the answer begin."""
    if on_text is None or not opened:
        return on_text
    waiting = [opened]

    def heard(piece: str) -> None:
        on_text(waiting.pop() + piece if waiting else piece)

    return heard
