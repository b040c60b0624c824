"""Masks over one vocabulary: which tokens a grammar state allows, and which tokens represent a score.

Inside a string only tokens with a quotation mark or a backslash are tested one by one; elsewhere only those whose first
byte fits.
"""

from __future__ import annotations

from threading import RLock
from typing import Any

import numpy as np
import numpy.typing as npt

from .automaton import OpenBranches
from .free_text import FreeText
from .grammar import Grammar, GrammarState
from .json_text import StringBody, state_after_text

ScoreOptions = dict[int, tuple[int, ...]]  # value: the tokens that represent it
_CACHED = 512


class TokenMasks:
    """Allowed tokens by grammar state. Made once per model; results are cached.

    The threads of all contexts use it; what is not cached is computed under a lock.
    """

    def __init__(self, pieces: list[bytes], ends: npt.NDArray[np.bool_], controls: npt.NDArray[np.bool_]) -> None:
        """``pieces``: each token's bytes; ``ends``, ``controls``: which tokens end the text, or are no text."""
        self._pieces = pieces
        self._ends = np.flatnonzero(ends)
        self._longest = max(map(len, pieces), default=0)
        # Inside a string most tokens are plain text in any state, of this many characters.
        self._plain = np.zeros(len(pieces), dtype=bool)
        self._character_counts = np.zeros(len(pieces), dtype=np.int32)
        self._quoting: list[int] = []
        self._by_first_byte: dict[int, list[int]] = {}
        for token, piece in enumerate(pieces):
            if not piece or controls[token] or ends[token]:
                continue
            self._by_first_byte.setdefault(piece[0], []).append(token)
            if b'"' in piece or b"\\" in piece:
                self._quoting.append(token)
            elif (end := state_after_text(piece)) is not None:
                self._plain[token] = True
                self._character_counts[token] = end[1]
        self._tokens_holding: dict[bytes, list[int]] = {}  # tokens that contain a byte, cached by byte
        self._lock = RLock()
        self._masks: dict[GrammarState, npt.NDArray[np.bool_]] = {}
        self._score_options: dict[GrammarState, ScoreOptions | None] = {}

    def allowed(self, grammar: Grammar, state: GrammarState) -> npt.NDArray[np.bool_]:
        """A boolean row over the vocabulary. End-of-text tokens are allowed only if the text may end."""
        state = grammar.equivalent(state, self._longest)
        mask = self._masks.get(state)
        if mask is None:
            with self._lock:
                _make_room(self._masks)
                mask = self._masks[state] = self._compute(grammar, state)
        return mask

    def score_options(self, grammar: Grammar, state: GrammarState) -> ScoreOptions | None:
        """The tokens that represent each score, if a state begins a choice among integers only; else None.

        A token represents a value if it may come here and can become no other value. None also if a token can become
        several values (1 of 1, 2 and 10), because its probability cannot be divided, or if a value has no token.
        """
        if state.score_values() is None:  # the usual case, which is not cached
            return None
        with self._lock:
            if state not in self._score_options:
                _make_room(self._score_options)
                self._score_options[state] = self._score_tokens(grammar, state)
            return self._score_options[state]

    def _compute(self, grammar: Grammar, state: GrammarState) -> npt.NDArray[np.bool_]:
        head = state.frames[0] if state.frames else None
        if isinstance(head, FreeText):
            return self._in_free_text(grammar, state, head)
        if isinstance(head, OpenBranches):
            # A token is allowed if one of the open branches allows it.
            states = [grammar.state((*branch, *state.frames[1:])) for branch in head.branches]
            any_way: npt.NDArray[np.bool_] = np.any(
                [self.allowed(grammar, branch_state) for branch_state in states], axis=0
            )
            return any_way
        if isinstance(head, StringBody) and head.mode == "text":
            mask = (
                self._plain.copy() if head.maximum is None else self._plain & (self._character_counts <= head.maximum)
            )
            candidates = self._quoting
        else:
            mask = np.zeros(len(self._pieces), dtype=bool)
            candidates = [token for byte in state.next_bytes() for token in self._by_first_byte.get(byte, ())]
        for token in candidates:
            if grammar.advance(state, self._pieces[token]) is not None:
                mask[token] = True
        if state.may_end:
            mask[self._ends] = True
        return mask

    def _in_free_text(self, grammar: Grammar, state: GrammarState, head: FreeText) -> npt.NDArray[np.bool_]:
        """All tokens, but after a marker completed by a token only what a call continues with."""
        mask = np.ones(len(self._pieces), dtype=bool)
        beginnings, held = head.marker_candidates()
        candidates = [token for byte in beginnings for token in self._by_first_byte.get(byte, ())]
        if held:
            if held not in self._tokens_holding:
                tokens = [token for of_byte in self._by_first_byte.values() for token in of_byte]
                self._tokens_holding[held] = [token for token in tokens if held in self._pieces[token]]
            candidates += self._tokens_holding[held]
        for token in candidates:
            mask[token] = grammar.advance(state, self._pieces[token]) is not None
        return mask

    def _score_tokens(self, grammar: Grammar, state: GrammarState) -> ScoreOptions | None:
        texts = state.score_values() or {}
        of_value: dict[int, list[int]] = {value: [] for value in texts.values()}
        ends = set(self._ends.tolist())
        for token in np.flatnonzero(self.allowed(grammar, state)).tolist():
            piece = b"" if token in ends else self._pieces[token]
            values = [value for text, value in texts.items() if _may_become(piece, text)]
            if len(values) != 1:
                return None
            of_value[values[0]].append(token)
        return {value: tuple(tokens) for value, tokens in of_value.items()} if all(of_value.values()) else None


def _may_become(piece: bytes, text: bytes) -> bool:
    """Whether a token that may come here (b"" for the end) may represent the remaining text of an integer.

    The integer may continue after the token, or the token after the integer, but not with another digit.
    """
    if piece and text.startswith(piece):
        return True
    return piece.startswith(text) and not piece[len(text) : len(text) + 1].isdigit()


def _make_room(cache: dict[GrammarState, Any]) -> None:
    if len(cache) >= _CACHED:
        del cache[next(iter(cache))]
