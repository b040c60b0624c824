"""Marks and plain text: which tokens delimit turns, and text to tokens so that only a template can write a mark.

A mark is a control token, an unknown token, or a user-defined token that looks like markup or stands in the chat
template. llama.cpp parses user-defined tokens in plain text too, so plain text is cut inside each spelling of one.

What never belongs here: messages, templates' languages, runs of a conversation (``runs``).
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator

import llama_cpp.llama_cpp as lib
import numpy as np

from ..native import NativeModel, Tokens, token_attributes, tokenize_behind_mark, tokenize_behind_text

_CONTROL = lib.LLAMA_TOKEN_ATTR_CONTROL
_USER_DEFINED = lib.LLAMA_TOKEN_ATTR_USER_DEFINED
_UNKNOWN = lib.LLAMA_TOKEN_ATTR_UNKNOWN
_LEFT, _RIGHT = lib.LLAMA_TOKEN_ATTR_LSTRIP, lib.LLAMA_TOKEN_ATTR_RSTRIP
_BLANKS = " \t\n\v\f\r"  # what llama.cpp strips beside tokens of those attributes
# Words and runs of spaces are user-defined tokens in some vocabularies; those are text and stay whole.
_MARKUP = re.compile(r"[<\[{(|◁｟【].+[>\]})|▷｠】]", re.DOTALL)
_CACHED_TEXTS, _CACHED_LITERALS = 20_000, 2_000

Cut = tuple["int | str", ...]


class Vocabulary:
    """One model's tokens. ``marks`` maps each mark's spelling to its token; ``is_mark`` has a row for each token."""

    def __init__(self, model: NativeModel, template: str = "") -> None:
        """``template``: the source of the chat templates in use, in which user-defined tokens are marks."""
        self.model = model
        self._attributes = attributes = token_attributes(model)
        special = np.flatnonzero(attributes & (_CONTROL | _USER_DEFINED | _UNKNOWN)).tolist()
        texts = {token: model.control_text(token) for token in special}
        found: list[tuple[str, int]] = []
        spelt: list[str] = []
        for token, text in texts.items():
            user_defined = bool(attributes[token] & _USER_DEFINED)
            # A text of one character cannot be cut, and is a letter.
            if not text or (
                user_defined and (len(text) < 2 or not (_MARKUP.fullmatch(text) or _named(text, template)))
            ):
                continue
            found.append((text, token))
            if user_defined:
                spelt.append(text)
        # Longer ones come first, as llama.cpp has it.
        self.marks = dict(sorted(found, key=lambda entry: -len(entry[0].encode())))
        self._spelt = re.compile(f"(?=(?:{'|'.join(map(re.escape, spelt))}))") if spelt else None
        self.is_mark = np.zeros(model.n_vocab, dtype=bool)
        self.is_mark[[token for _, token in found]] = True
        self._all = np.arange(model.n_vocab, dtype=np.int32)
        self._strips = np.flatnonzero(attributes & (_LEFT | _RIGHT)).tolist()
        self._texts: OrderedDict[tuple[str, bool], Tokens] = OrderedDict()
        self._literals: OrderedDict[str, Cut] = OrderedDict()

    def literal(self, text: str) -> Cut:
        """A template's own text, cut into marks (their tokens) and plain text."""
        known = self._literals.get(text)
        if known is None:
            parts: list[int | str] = [text] if text else []
            for mark, token in self.marks.items():
                if mark in text:
                    parts = list(_parted(parts, mark, token))
            known = self._literals[text] = tuple(parts)
            if len(self._literals) > _CACHED_LITERALS:
                self._literals.popitem(last=False)
        return known

    def holds_mark(self, text: str) -> bool:
        """Whether a template's text would hold a mark."""
        return any(isinstance(part, int) for part in self.literal(text))

    def plain(self, text: str, *, behind_text: bool = True) -> Tokens:
        """Plain text, none of whose tokens is a mark. ``behind_text``: it goes on from other text."""
        key = (text, behind_text)
        tokens = self._texts.pop(key, None)  # each step by itself, for the inference thread asks too
        if tokens is None:
            tokens = self._plain(text, behind_text)
        self._texts[key] = tokens
        if len(self._texts) > _CACHED_TEXTS:
            self._texts.popitem(last=False)
        return tokens

    def single(self, token: int) -> Tokens:
        """One token as a run."""
        return self._all[token : token + 1]

    def strips_right(self, token: int) -> bool:
        """Whether blanks behind this mark are no text."""
        return bool(self._strips) and bool(self._attributes[token] & _RIGHT)

    def strips_left(self, token: int) -> bool:
        """Whether blanks before this mark are no text."""
        return bool(self._strips) and bool(self._attributes[token] & _LEFT)

    def _plain(self, text: str, behind_text: bool) -> Tokens:
        if self._spelt is not None:
            places = [match.start() + 1 for match in self._spelt.finditer(text)]
            if places:
                return self._cut(text, places, behind_text)
        if not text:
            return np.empty(0, dtype=np.int32)
        tokens = (tokenize_behind_text if behind_text else tokenize_behind_mark)(self.model, text)
        # Merging may arrive at a mark's spelling too.
        for token in tokens[self.is_mark[tokens]].tolist():
            spelt = self.model.control_text(token).replace(" ", "▁")
            if len(spelt) < 2:
                continue
            places = [match.start() + 1 for match in re.finditer(f"(?={re.escape(spelt)})", text.replace(" ", "▁"))]
            if places:  # none: a character that the vocabulary does not know
                return self._cut(text, places, behind_text)
        return tokens

    def _cut(self, text: str, places: list[int], behind_text: bool) -> Tokens:
        ends = [*places, len(text)]
        parts = [text[start:end] for start, end in zip([0, *places], ends, strict=True)]
        return np.concatenate([self._plain(part, behind_text or index > 0) for index, part in enumerate(parts)])


def stripped(text: str, *, left: bool, right: bool) -> str:
    """A text without the blanks that the marks beside it swallow."""
    text = text.lstrip(_BLANKS) if left else text
    return text.rstrip(_BLANKS) if right else text


def _named(text: str, template: str) -> bool:
    return bool(text.strip(" \t\r\n▁")) and not text.isalnum() and text in template


def _parted(parts: list[int | str], mark: str, token: int) -> Iterator[int | str]:
    for part in parts:
        if isinstance(part, int):
            yield part
            continue
        for index, text in enumerate(part.split(mark)):
            if index:
                yield token
            if text:
                yield text
