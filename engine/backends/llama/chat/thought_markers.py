"""Markers of thoughts: their text in answers, and those that a template's generation prompt has already begun.

Answers contain their thoughts between markers; readers remove them (``viva.engine.thoughts``). Control tokens have no
text of their own, so those that separate thoughts from answers are given one here. Channels of the harmony format are
written as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ..native import NativeModel
from .tokenizer import ChatTokenizer

# Tokens by which model families separate thoughts from answers, and their text, in the forms that readers know.
_TEXT_OF = {
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
    "<|inner_prefix|>": "<think>",
    "<|inner_suffix|>": "</think>",
    "<unused94>": "<unused94>",
    "<unused95>": "<unused95>",
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


def token_bytes_with_markers(model: NativeModel, tokenizer: ChatTokenizer) -> list[bytes]:
    """Each token's bytes, with text for the control tokens that separate thoughts from answers."""
    texts = model.pieces
    channels = message_end_token(model, tokenizer)
    for marker in _TEXT_OF.keys() & tokenizer.special_tokens.keys():
        token = tokenizer.special_tokens[marker]
        if (channels < 0 and marker in _HARMONY) or (model.ends[token] and token != channels):
            continue
        if texts is model.pieces:
            texts = model.pieces.copy()
        texts[token] = _TEXT_OF[marker].encode()
    return texts


def message_end_token(model: NativeModel, tokenizer: ChatTokenizer) -> int:
    """The token that ends a message within a turn of several channels; -1 for a model without channels.

    llama.cpp may list it among the end-of-text tokens; it ends the turn after the final channel only.
    """
    special_tokens = tokenizer.special_tokens
    return special_tokens["<|end|>"] if special_tokens.keys() >= _HARMONY else -1


def in_final_channel(text: bytes | bytearray) -> bool:
    """Whether an answer's current message, or the one just ended, is in the final channel."""
    return text.rfind(b"<|channel|>final") > text.rfind(b"<|start|>")


def opened_marker(prompt: str) -> str:
    """The thought marker that ends a generation prompt, with its whitespace, as readers know it; or ""."""
    found = _OPENED.search(prompt)
    if found is not None:
        return _TEXT_OF[found[1]] + found[2]
    analysis = _ANALYSIS.search(prompt)
    return "" if analysis is None else analysis[0]


def closing_text(prompt: str, tokenizer: ChatTokenizer) -> str:
    """What to append to a generation prompt so that the answer begins at once, without thoughts."""
    found = _OPENED.search(prompt)
    if found is not None:
        return ("" if found[2] else "\n") + f"\n{_CLOSINGS[found[1]]}\n\n"
    if not tokenizer.special_tokens.keys() >= _HARMONY:
        return ""
    if _ANALYSIS.search(prompt):
        return f"<|end|>{_HARMONY_TURN}{_FINAL}"
    return _FINAL if prompt.endswith(_HARMONY_TURN) else ""


def prepend_marker(on_text: Callable[[str], None] | None, opened: str) -> Callable[[str], None] | None:
    """A callback that passes the marker that the prompt has opened before the first piece of the answer."""
    if on_text is None or not opened:
        return on_text
    waiting = [opened]

    def forward(piece: str) -> None:
        on_text(waiting.pop() + piece if waiting else piece)

    return forward
