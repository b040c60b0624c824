"""A compiled schema as a machine that remembers: what may come next, what must come next, when the text is complete.

States are made when they are first reached and found again afterwards, so a byte costs one look-up, and so does the
text that a state *forces*: the one continuation there is, which is appended as prompt instead of being decoded token by
token. What never belongs here: how schemas become frames (``schema``), which bytes a frame lets through
(``automaton``, ``spelling``), tokens (``masks``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .automaton import Alternatives, Frames, Literal, firsts, may_end, step
from .json_text import Text
from .schema import compile_schema

_MOST_STATES = 20_000  # kept per grammar, some 13 MB; later ones are made anew each time
_LONGEST_FORCED = 1 << 16  # bytes at a time: a schema may ask for a thousand million equal items


class State:
    """A place in the text of a grammar. States with the same frames are equal, and go on equally in any grammar."""

    __slots__ = ("_hash", "_next", "complete", "forced", "frames", "may_end")

    def __init__(self, frames: Frames) -> None:
        self.frames = frames
        self.may_end = may_end(frames)  # the text may end here
        self.complete = self.may_end and not firsts(frames)  # it must
        self.forced: tuple[bytes, State] | None = None  # what ``Grammar.forced`` found
        self._next: dict[int, State | None] = {}
        self._hash = hash(frames)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, State) and self.frames == other.frames)

    def firsts(self) -> frozenset[int]:
        """The bytes that may come next."""
        return firsts(self.frames)

    def scores(self) -> Mapping[bytes, int] | None:
        """The texts among which the next bytes choose, with their values, where these are integers only; else None.

        That is so at one place of each enum, const list or bounded range of integers: before the first byte that rules
        any of them out. Of values that begin alike, such as 10, 11 and 12, the texts are what is left of them.
        """
        head = self.frames[0] if self.frames else None
        return head.scores() if isinstance(head, Alternatives) else None


class Grammar:
    """A compiled schema. ``start`` is its first state; ``advance`` moves on; ``forced`` says what must come."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        """:raises ConfigurationError: the schema uses a keyword that is not supported."""
        self._begin(compile_schema(schema))

    @classmethod
    def of(cls, frames: Frames) -> Grammar:
        """The grammar of the texts that these frames let through."""
        grammar = cls.__new__(cls)
        grammar._begin(frames)
        return grammar

    def _begin(self, frames: Frames) -> None:
        self._states: dict[State, State] = {}
        self.start = self.state(frames)

    def advance(self, state: State, data: bytes) -> State | None:
        """The state after ``data``, or None if it cannot come here."""
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

    def forced(self, state: State) -> tuple[bytes, State]:
        """The text that must come next (maybe empty), and the state after it.

        It goes on as long as one byte alone may come and the text may not end, but for at most about 64 KiB at once.
        """
        if state.forced is None:
            state.forced = self._forced(state)
        return state.forced

    def alike(self, state: State, length: int) -> State:
        """A state that lets the same texts of up to ``length`` bytes through: one for many within bounded strings."""
        head = state.frames[0] if state.frames else None
        if not isinstance(head, Text) or (not head.least and head.most is None):
            return state
        return self.state((head.alike(length), *state.frames[1:]))

    def _forced(self, state: State) -> tuple[bytes, State]:
        text, frames = bytearray(), state.frames
        while frames and len(text) < _LONGEST_FORCED:
            head = frames[0]
            if isinstance(head, Literal):
                text += head.text
                frames = frames[1:]
                continue
            coming = firsts(frames)
            if len(coming) != 1 or may_end(frames):
                break
            [byte] = coming
            left = step(frames, byte)
            assert left is not None
            text.append(byte)
            frames = left
        return bytes(text), self.state(frames) if text else state

    def _step(self, state: State, byte: int) -> State | None:
        frames = step(state.frames, byte)
        after = None if frames is None else self.state(frames)
        if after is None or after in self._states:  # what is not kept is not held by another state either
            state._next[byte] = after
        return after

    def state(self, frames: Frames) -> State:
        """The state of these frames, found again if it was there before."""
        made = State(frames)
        known = self._states.get(made)
        if known is not None:
            return known
        if len(self._states) < _MOST_STATES:
            self._states[made] = made
        return made
