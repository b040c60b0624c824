"""Tokenisation in which only a template can write special tokens, and the text of tokens that mark thoughts.

Special tokens are control tokens, unknown tokens, and user-defined tokens that look like markup or occur in the chat
template. llama.cpp parses user-defined tokens in plain text too, so plain text is cut inside each occurrence. Control
tokens have no text; those that separate thoughts from answers get a text here.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator

import numpy as np

from .native import (
    CONTROL_TOKEN,
    STRIPS_LEFT,
    STRIPS_RIGHT,
    UNKNOWN_TOKEN,
    USER_DEFINED_TOKEN,
    NativeModel,
    Tokens,
    token_attributes,
    tokenize_after_special,
    tokenize_after_text,
)

_BLANKS = " \t\n\v\f\r"  # whitespace that llama.cpp strips beside some special tokens
# In some vocabularies words and runs of spaces are user-defined tokens; these are text and are not cut.
_MARKUP = re.compile(r"[<\[{(|◁｟【].+[>\]})|▷｠】]", re.DOTALL)
_CACHED_TEXTS, _CACHED_LITERALS = 20_000, 2_000

TemplateText = tuple["int | str", ...]


class ChatTokenizer:
    """A model's tokenizer.

    `special_tokens` maps the text of each special token to its id; `is_special` has an entry for each token.
    """

    def __init__(self, model: NativeModel, template: str = "") -> None:
        """Find the special tokens, including user-defined ones that occur in the chat templates' source."""
        self.model = model
        self._attributes = attributes = token_attributes(model)
        special = np.flatnonzero(attributes & (CONTROL_TOKEN | USER_DEFINED_TOKEN | UNKNOWN_TOKEN)).tolist()
        texts = {token: model.control_text(token) for token in special}
        specials: list[tuple[str, int]] = []
        spellings: list[str] = []
        for token, text in texts.items():
            user_defined = bool(attributes[token] & USER_DEFINED_TOKEN)
            # A single character cannot be cut, and is a letter.
            if not text or (
                user_defined and (len(text) < 2 or not (_MARKUP.fullmatch(text) or _token_named(text, template)))
            ):
                continue
            specials.append((text, token))
            if user_defined:
                spellings.append(text)
        # Longest first, as in llama.cpp.
        self.special_tokens = dict(sorted(specials, key=lambda entry: -len(entry[0].encode())))
        self._spellings = re.compile(f"(?=(?:{'|'.join(map(re.escape, spellings))}))") if spellings else None
        self.is_special = np.zeros(model.n_vocab, dtype=bool)
        self.is_special[[token for _, token in specials]] = True
        self._all = np.arange(model.n_vocab, dtype=np.int32)
        self._strips = np.flatnonzero(attributes & (STRIPS_LEFT | STRIPS_RIGHT)).tolist()
        self._texts: OrderedDict[tuple[str, bool], Tokens] = OrderedDict()
        self._literals: OrderedDict[str, TemplateText] = OrderedDict()

    def split_template(self, text: str) -> TemplateText:
        """Split a template's own text into special tokens (ids) and plain text."""
        known = self._literals.get(text)
        if known is None:
            parts: list[int | str] = [text] if text else []
            for spelling, token in self.special_tokens.items():
                if spelling in text:
                    parts = list(_split_at_tokens(parts, spelling, token))
            known = self._literals[text] = tuple(parts)
            if len(self._literals) > _CACHED_LITERALS:
                self._literals.popitem(last=False)
        return known

    def has_special(self, text: str) -> bool:
        """Return True if a template's text would contain a special token."""
        return any(isinstance(part, int) for part in self.split_template(text))

    def plain(self, text: str, *, after_text: bool = True) -> Tokens:
        """Return the tokens of plain text, none of them special. `after_text` means that it continues a text."""
        key = (text, after_text)
        tokens = self._texts.pop(key, None)  # atomic steps: the inference thread calls this too
        if tokens is None:
            tokens = self._plain(text, after_text)
        self._texts[key] = tokens
        if len(self._texts) > _CACHED_TEXTS:
            self._texts.popitem(last=False)
        return tokens

    def single(self, token: int) -> Tokens:
        """Return one token as an array."""
        return self._all[token : token + 1]

    def strips_right(self, token: int) -> bool:
        """Return True if whitespace after this special token is stripped."""
        return bool(self._strips) and bool(self._attributes[token] & STRIPS_RIGHT)

    def strips_left(self, token: int) -> bool:
        """Return True if whitespace before this special token is stripped."""
        return bool(self._strips) and bool(self._attributes[token] & STRIPS_LEFT)

    def _plain(self, text: str, after_text: bool) -> Tokens:
        if self._spellings is not None:
            places = [match.start() + 1 for match in self._spellings.finditer(text)]
            if places:
                return self._cut(text, places, after_text)
        if not text:
            return np.empty(0, dtype=np.int32)
        tokens = (tokenize_after_text if after_text else tokenize_after_special)(self.model, text)
        # Merges may produce a special token's text too.
        for token in tokens[self.is_special[tokens]].tolist():
            spellings = self.model.control_text(token).replace(" ", "▁")
            if len(spellings) < 2:
                continue
            places = [match.start() + 1 for match in re.finditer(f"(?={re.escape(spellings)})", text.replace(" ", "▁"))]
            if places:  # empty for an unknown character
                return self._cut(text, places, after_text)
        return tokens

    def _cut(self, text: str, places: list[int], after_text: bool) -> Tokens:
        ends = [*places, len(text)]
        parts = [text[start:end] for start, end in zip([0, *places], ends, strict=True)]
        return np.concatenate([self._plain(part, after_text or index > 0) for index, part in enumerate(parts)])


def strip_blanks(text: str, *, left: bool, right: bool) -> str:
    """Return the text without the whitespace that adjacent special tokens strip."""
    text = text.lstrip(_BLANKS) if left else text
    return text.rstrip(_BLANKS) if right else text


def _token_named(text: str, template: str) -> bool:
    return bool(text.strip(" \t\r\n▁")) and not text.isalnum() and text in template


def _split_at_tokens(parts: list[int | str], spelling: str, token: int) -> Iterator[int | str]:
    for part in parts:
        if isinstance(part, int):
            yield part
            continue
        for index, text in enumerate(part.split(spelling)):
            if index:
                yield token
            if text:
                yield text


# Tokens by which model families separate thoughts from answers, and their text, in the forms that our parser of
# thoughts knows.
_SPELT = ("<think>", "</think>", "<thinking>", "</thinking>", "[THINK]", "[/THINK]", "<unused94>", "<unused95>")
_CHANNELS = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>")
_OPENINGS = ("<|START_THINKING|>", "<seed:think>", "<|think_start|>", "◁think▷", "<|channel>", "<|inner_prefix|>")
_ENDINGS = ("<|END_THINKING|>", "</seed:think>", "<|think_end|>", "◁/think▷", "<channel|>", "<|inner_suffix|>")
_TEXT_OF = {text: text for text in (*_SPELT, *_CHANNELS)}
_TEXT_OF |= dict.fromkeys(_OPENINGS, "<think>") | dict.fromkeys(_ENDINGS, "</think>")
_CLOSINGS = {"<think>": "</think>", "<thinking>": "</thinking>", "[THINK]": "[/THINK]"}
_CLOSINGS |= dict(zip(_OPENINGS[:4], _ENDINGS[:4], strict=True))
_OPENED = re.compile(rf"({'|'.join(map(re.escape, _CLOSINGS))})(\s*)\Z")
_ANALYSIS = re.compile(r"<\|channel\|>analysis<\|message\|>\s*\Z")
_HARMONY = frozenset(_CHANNELS)
_HARMONY_TURN = "<|start|>assistant"
_FINAL = "<|channel|>final<|message|>"


def token_bytes_with_markers(model: NativeModel, tokenizer: ChatTokenizer) -> list[bytes]:
    """Return each token's bytes, with text for the control tokens that separate thoughts from answers."""
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
    """Return the token that ends a message of a channel (and the turn, if that was final); -1 without channels."""
    special_tokens = tokenizer.special_tokens
    return special_tokens["<|end|>"] if special_tokens.keys() >= _HARMONY else -1


def in_final_channel(text: bytes | bytearray) -> bool:
    """Return True if an answer's current message, or the one just ended, is in the final channel."""
    return text.rfind(b"<|channel|>final") > text.rfind(b"<|start|>")


def opened_marker(prompt: str) -> str:
    """Return the thought marker that ends a generation prompt, with its whitespace, in its known form; or ""."""
    match = _OPENED.search(prompt)
    if match is not None:
        return _TEXT_OF[match[1]] + match[2]
    analysis = _ANALYSIS.search(prompt)
    return "" if analysis is None else analysis[0]


def closing_text(prompt: str, tokenizer: ChatTokenizer) -> str:
    """Return what to append to a generation prompt so that the answer begins at once, without thoughts."""
    match = _OPENED.search(prompt)
    if match is not None:
        return ("" if match[2] else "\n") + f"\n{_CLOSINGS[match[1]]}\n\n"
    if not tokenizer.special_tokens.keys() >= _HARMONY:
        return ""
    if _ANALYSIS.search(prompt):
        return f"<|end|>{_HARMONY_TURN}{_FINAL}"
    return _FINAL if prompt.endswith(_HARMONY_TURN) else ""


def prepend_marker(on_text: Callable[[str], None] | None, opened: str) -> Callable[[str], None] | None:
    """Return a callback that passes on the marker opened by the prompt before the first piece of the answer."""
    if on_text is None or not opened:
        return on_text
    waiting = [opened]

    def forward(piece: str) -> None:
        on_text(waiting.pop() + piece if waiting else piece)

    return forward
