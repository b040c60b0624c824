"""One request's answer while it is generated: tokens, text, stop strings, log-probabilities, the end.

Bookkeeping without a model: it is told each token and keeps what comes of it. What never belongs here: choosing tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ...likelihood import likeliest
from ..llama.outputs.sampler import SampledToken, SamplerSettings

_BROKEN = "\ufffd"  # what part of a character is decoded to


@dataclass(slots=True)
class Answer:
    """``decode`` gives the text of tokens; ``on_text`` is told the pieces that no stop string can take back. ``error``
    says why there is no answer.
    """

    prompt: list[int]
    settings: SamplerSettings
    max_tokens: int
    decode: Callable[[list[int]], str]
    stops: tuple[str, ...] = ()
    on_text: Callable[[str], None] | None = None
    on_done: Callable[[], None] | None = None
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish: str = ""
    error: Exception | None = None
    cancelled: bool = False
    _rows: list[tuple[int, SampledToken]] = field(default_factory=list)
    _before: int = 0  # tokens whose text the next ones are decoded behind, as neighbours change each other's
    _decoded: int = 0  # tokens that the text has
    _told: int = 0  # characters that ``on_text`` has

    @property
    def ended(self) -> bool:
        """Whether nothing more is to be generated."""
        return bool(self.finish) or self.cancelled or self.error is not None

    def take(self, token: SampledToken, *, is_end: bool) -> None:
        """Take the next token; ``is_end``: it ends the answer and is no part of it."""
        if is_end:
            self._end("stop")
            return
        self._rows.append((len(self.text), token))
        self.tokens.append(token.token)
        if self.settings.has_penalties:
            self.settings.counts[token.token] = self.settings.counts.get(token.token, 0) + 1
        before = len(self.text)
        self._decode(whole=False)
        if not self._stopped(before):
            if len(self.tokens) >= self.max_tokens:
                self._end("length")
            else:
                self._tell(len(self.text) - self._held_back())

    @property
    def logprobs(self) -> list[list[Any]] | None:
        """A row for each token that is at least partly in the text, where they were asked for."""
        if self.settings.logprobs is None:
            return None
        return [
            [self.decode([one.token]), one.logprob, self._alternatives(one)]
            for start, one in self._rows
            if start < len(self.text)
        ]

    def _alternatives(self, one: SampledToken) -> dict[str, float]:
        """The likeliest tokens by their texts; of several with the same text (parts of characters) the likeliest."""
        return likeliest((self.decode([token]), value) for token, value in one.top or ())

    def _decode(self, *, whole: bool) -> None:
        known = self.decode(self.tokens[self._before : self._decoded])
        more = self.decode(self.tokens[self._before :])
        if len(more) > len(known) and (whole or not more.endswith(_BROKEN)):
            self.text += more[len(known) :]
            self._before, self._decoded = self._decoded, len(self.tokens)

    def _stopped(self, before: int) -> bool:
        """Whether a stop string stands in the text since ``before``; then it ends before the first of them."""
        places = (self.text.find(stop, max(0, before - len(stop) + 1)) for stop in self.stops)
        found = min((place for place in places if place >= 0), default=-1)
        if found < 0:
            return False
        self.text = self.text[:found]
        self.finish = "stop"
        self._tell(len(self.text))
        return True

    def _end(self, finish: str) -> None:
        before = len(self.text)
        self._decode(whole=True)
        if not self._stopped(before):
            self.finish = finish
            self._tell(len(self.text))

    def _held_back(self) -> int:
        """Characters at the end of the text that may be the beginning of a stop string."""
        longest = 0
        for stop in self.stops:
            for length in range(min(len(stop) - 1, len(self.text)), longest, -1):
                if self.text.endswith(stop[:length]):
                    longest = length
                    break
        return longest

    def _tell(self, end: int) -> None:
        if self.on_text is not None and end > self._told:
            piece, self._told = self.text[self._told : end], end
            self.on_text(piece)
