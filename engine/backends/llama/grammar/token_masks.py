"""Masks over one vocabulary: which tokens may be sampled in a state of a grammar, and which of them stand for a score.

Within a string only tokens with a quotation mark or a backslash need a closer look; elsewhere only those with a fitting
first byte. What never belongs here: bytes without tokens (``grammar``), the choice among tokens (``sampler``).
"""

from __future__ import annotations

from threading import RLock
from typing import Any

import numpy as np
import numpy.typing as npt

from .automaton import Overlap
from .free_text import Prose
from .grammar import Grammar, State
from .json_text import Text, text_end

ScoreOptions = dict[int, tuple[int, ...]]  # value: the tokens that stand for it
_CACHED = 512


class TokenMasks:
    """The tokens of one vocabulary before any grammar. Made once per model; answers are cached per state.

    Each context's thread asks, so what is not cached yet is computed, and put away, by one at a time.
    """

    def __init__(self, pieces: list[bytes], ends: npt.NDArray[np.bool_], controls: npt.NDArray[np.bool_]) -> None:
        """``pieces``: each token's bytes; ``ends``, ``controls``: which tokens end a text or are no text at all."""
        self._pieces = pieces
        self._ends = np.flatnonzero(ends)
        self._longest = max(map(len, pieces), default=0)
        # Inside of a string most tokens are plain text whatever comes after, of so many characters.
        self._plain = np.zeros(len(pieces), dtype=bool)
        self._characters = np.zeros(len(pieces), dtype=np.int32)
        self._special: list[int] = []
        self._by_first: dict[int, list[int]] = {}
        for token, piece in enumerate(pieces):
            if not piece or controls[token] or ends[token]:
                continue
            self._by_first.setdefault(piece[0], []).append(token)
            if b'"' in piece or b"\\" in piece:
                self._special.append(token)
            elif (end := text_end(piece)) is not None:
                self._plain[token] = True
                self._characters[token] = end[1]
        self._holding: dict[bytes, list[int]] = {}  # tokens that hold a byte, for the bytes that were asked for
        self._one = RLock()
        self._masks: dict[State, npt.NDArray[np.bool_]] = {}
        self._scores: dict[State, ScoreOptions | None] = {}

    def allowed(self, grammar: Grammar, state: State) -> npt.NDArray[np.bool_]:
        """A boolean row over the vocabulary; end-of-text tokens only where the text may end."""
        state = grammar.alike(state, self._longest)
        mask = self._masks.get(state)
        if mask is None:
            with self._one:
                _make_room(self._masks)
                mask = self._masks[state] = self._compute(grammar, state)
        return mask

    def score_options(self, grammar: Grammar, state: State) -> ScoreOptions | None:
        """The tokens that stand for each score, where a state begins a choice among integers alone; else None.

        A token stands for a value if it may come here and no other value can come of it; the tokens of all values are
        then all that may come. None also where one token may become several values (1 of 1, 2 and 10), for its
        probability cannot be divided, and where the vocabulary has no token for a value.
        """
        if state.scores() is None:  # nearly always; and no other state is to fill the cache
            return None
        with self._one:
            if state not in self._scores:
                _make_room(self._scores)
                self._scores[state] = self._standing(grammar, state)
            return self._scores[state]

    def _compute(self, grammar: Grammar, state: State) -> npt.NDArray[np.bool_]:
        head = state.frames[0] if state.frames else None
        if isinstance(head, Prose):
            return self._in_prose(grammar, state, head)
        if isinstance(head, Overlap):
            # A token may come if one of the texts that are open lets it through.
            ways = [grammar.state((*branch, *state.frames[1:])) for branch in head.branches]
            any_way: npt.NDArray[np.bool_] = np.any([self.allowed(grammar, way) for way in ways], axis=0)
            return any_way
        if isinstance(head, Text) and head.mode == "text":
            mask = self._plain.copy() if head.most is None else self._plain & (self._characters <= head.most)
            candidates = self._special
        else:
            mask = np.zeros(len(self._pieces), dtype=bool)
            candidates = [token for byte in state.firsts() for token in self._by_first.get(byte, ())]
        for token in candidates:
            if grammar.advance(state, self._pieces[token]) is not None:
                mask[token] = True
        if state.may_end:
            mask[self._ends] = True
        return mask

    def _in_prose(self, grammar: Grammar, state: State, head: Prose) -> npt.NDArray[np.bool_]:
        """Anything may come in free text, but behind a mark that a token completes only what a call goes on with."""
        mask = np.ones(len(self._pieces), dtype=bool)
        beginnings, held = head.risky()
        candidates = [token for byte in beginnings for token in self._by_first.get(byte, ())]
        if held:
            if held not in self._holding:
                tokens = [token for of_byte in self._by_first.values() for token in of_byte]
                self._holding[held] = [token for token in tokens if held in self._pieces[token]]
            candidates += self._holding[held]
        for token in candidates:
            mask[token] = grammar.advance(state, self._pieces[token]) is not None
        return mask

    def _standing(self, grammar: Grammar, state: State) -> ScoreOptions | None:
        texts = state.scores() or {}
        standing: dict[int, list[int]] = {value: [] for value in texts.values()}
        ends = set(self._ends.tolist())
        for token in np.flatnonzero(self.allowed(grammar, state)).tolist():
            piece = b"" if token in ends else self._pieces[token]
            values = [value for text, value in texts.items() if _may_become(piece, text)]
            if len(values) != 1:
                return None
            standing[values[0]].append(token)
        return {value: tuple(tokens) for value, tokens in standing.items()} if all(standing.values()) else None


def _may_become(piece: bytes, text: bytes) -> bool:
    """Whether a token that may come here, b"" for the end, may stand for what is left of an integer.

    The integer may go on behind the token; or the token behind the integer, but not with another digit.
    """
    if piece and text.startswith(piece):
        return True
    return piece.startswith(text) and not piece[len(text) : len(text) + 1].isdigit()


def _make_room(cache: dict[State, Any]) -> None:
    if len(cache) >= _CACHED:
        del cache[next(iter(cache))]
