"""A compiled grammar with cached states: what may come next, what must come next, whether the text is complete.

States are created when they are first reached and then reused, so a byte costs one lookup, and so does the text that a
state *forces*: the only possible continuation, which is prefilled instead of decoded token by token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .automaton import FixedValues, Frames, LiteralText, may_end, next_bytes, step
from .json_text import StringBody
from .schema import compile_schema

_MAX_STATES = 20_000  # cached per grammar, about 13 MB; later ones are created each time
_MAX_FORCED_BYTES = 1 << 16  # bytes at once: a schema may require a thousand million equal items


class GrammarState:
    """A position in a grammar's text. States with equal frames are equal, and continue equally in any grammar."""

    __slots__ = ("_hash", "_next", "complete", "forced", "frames", "may_end")

    def __init__(self, frames: Frames) -> None:
        self.frames = frames
        self.may_end = may_end(frames)  # the text may end here
        self.complete = self.may_end and not next_bytes(frames)  # it must end here
        self.forced: tuple[bytes, GrammarState] | None = None  # cached by ``Grammar.forced``
        self._next: dict[int, GrammarState | None] = {}
        self._hash = hash(frames)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, GrammarState) and self.frames == other.frames)

    def next_bytes(self) -> frozenset[int]:
        """The bytes that may come next."""
        return next_bytes(self.frames)

    def score_values(self) -> Mapping[bytes, int] | None:
        """The texts among which the next bytes choose, with their values, if these are all integers; else None.

        That is the case at one position of each enum, const or bounded range of integers: before the first byte that
        excludes any of them. Of values that begin alike, such as 10, 11 and 12, the texts are what remains of them.
        """
        head = self.frames[0] if self.frames else None
        return head.score_values() if isinstance(head, FixedValues) else None


class Grammar:
    """A compiled schema. ``start`` is its first state, ``advance`` follows text, ``forced`` gives the forced text."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        """:raises ConfigurationError: the schema uses a keyword that is not supported."""
        self._begin(compile_schema(schema))

    @classmethod
    def of(cls, frames: Frames) -> Grammar:
        """The grammar of the texts that these frames accept."""
        grammar = cls.__new__(cls)
        grammar._begin(frames)
        return grammar

    def _begin(self, frames: Frames) -> None:
        self._states: dict[GrammarState, GrammarState] = {}
        self.start = self.state(frames)

    def advance(self, state: GrammarState, data: bytes) -> GrammarState | None:
        """The state after ``data``, None if that cannot come here."""
        current = state
        for byte in data:
            try:
                after = current._next[byte]
            except KeyError:
                after = self._step(current, byte)
            if after is None:
                return None
            current = after
        return current

    def forced(self, state: GrammarState) -> tuple[bytes, GrammarState]:
        """The text that must come next (possibly empty), and the state after it.

        It extends as long as one byte only may come and the text may not end, up to about 64 KiB at once.
        """
        if state.forced is None:
            state.forced = self._forced(state)
        return state.forced

    def equivalent(self, state: GrammarState, length: int) -> GrammarState:
        """A state that accepts the same texts of up to ``length`` bytes; many states of bounded strings share one."""
        head = state.frames[0] if state.frames else None
        if not isinstance(head, StringBody) or (not head.minimum and head.maximum is None):
            return state
        return self.state((head.equivalent(length), *state.frames[1:]))

    def _forced(self, state: GrammarState) -> tuple[bytes, GrammarState]:
        text, frames = bytearray(), state.frames
        while frames and len(text) < _MAX_FORCED_BYTES:
            head = frames[0]
            if isinstance(head, LiteralText):
                text += head.text
                frames = frames[1:]
                continue
            coming = next_bytes(frames)
            if len(coming) != 1 or may_end(frames):
                break
            [byte] = coming
            left = step(frames, byte)
            assert left is not None
            text.append(byte)
            frames = left
        return bytes(text), self.state(frames) if text else state

    def _step(self, state: GrammarState, byte: int) -> GrammarState | None:
        frames = step(state.frames, byte)
        after = None if frames is None else self.state(frames)
        if after is None or after in self._states:  # states that are not cached are not referenced by others
            state._next[byte] = after
        return after

    def state(self, frames: Frames) -> GrammarState:
        """The state of these frames; an existing one is reused."""
        made = GrammarState(frames)
        known = self._states.get(made)
        if known is not None:
            return known
        if len(self._states) < _MAX_STATES:
            self._states[made] = made
        return made
