"""Detectors watch a reply while it streams and may end it if it is blank, loops, or speaks for the other party.

A detector is a small object, created for each call. `feed` sees each piece of text and returns a reason to stop, or
None; `finish` judges the whole text. Both must depend on the text alone. The caller in `conversation` decides what ends
with the reply.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from .backends.base import Backend
from .budget import WATCH_PREFIX
from .clock import Clock
from .errors import ConfigurationError, did_you_mean
from .messages import Completion, Request
from .thoughts import AnswerStream


class Detector(Protocol):
    """Interface of a detector."""

    def feed(self, piece: str) -> str | None:
        """Take a piece of text; return a reason to end the generation, or None."""

    def finish(self, text: str) -> str | None:
        """Take the whole reply; return a reason to stop the conversation, or None."""


class EmptyReply:
    """A reply of white space only."""

    def feed(self, piece: str) -> str | None:
        return None

    def finish(self, text: str) -> str | None:
        return None if text.strip() else "empty_response"


class Repetition:
    """A text that ends in one phrase, repeated `repeats` times.

    The repeats must have at least `shortest` characters and contain letters, or be white space only. A check is made
    after every 32 characters, however the pieces are cut, and at the end.
    """

    _STEP = 32  # a check takes tens of microseconds; once every few tokens is enough

    def __init__(self, repeats: int = 4, shortest: int = 120, longest_phrase: int = 200) -> None:
        self._repeats, self._shortest, self._longest = repeats, shortest, longest_phrase
        # Any loop is longer than its period by at least this many characters.
        self._end = max(1, min(24, shortest * (repeats - 1) // repeats))
        self._tail = ""
        self._length = 0

    def feed(self, piece: str) -> str | None:
        start = 0
        while start < len(piece):
            step = piece[start : start + self._STEP - self._length % self._STEP]
            self._tail = (self._tail + step)[-self._longest * self._repeats :]
            self._length += len(step)
            start += len(step)
            if self._length % self._STEP == 0 and self._is_looping():
                return "repetition"
        return None

    def finish(self, text: str) -> str | None:
        fresh = Repetition(self._repeats, self._shortest, self._longest)
        return "repetition" if fresh.feed(text) or fresh._is_looping() else None

    def _is_looping(self) -> bool:
        tail = self._tail
        if len(tail) < self._shortest:
            return False
        # A period can begin only where the last characters occur again. The nearest position is tried first.
        last = len(tail) - self._end
        end, start = tail[last:], last
        while (start := tail.rfind(end, 0, start + self._end - 1)) >= 0:
            period = last - start
            if period > min(self._longest, len(tail) // self._repeats):
                return False
            span = max(period * self._repeats, self._shortest)
            if span <= len(tail) and tail[-span:-period] == tail[-span + period :]:
                phrase = tail[-period:]  # words or blanks, not a table's rule or a row of zeros
                return phrase.isspace() or any(character.isalpha() for character in phrase)
        return False


_LINE_BEGINNING = 200  # characters of a line that show its speaker


class RoleShift:
    """A reply that continues in another party's name: a line that begins with one of `markers`.

    `headings` count only with their signs; without these they are words of an ordinary text.
    """

    def __init__(
        self,
        markers: Sequence[str] = ("user:", "human:", "interviewer:", "[begin interactor]", "[begin candidate]"),
        headings: Sequence[str] = ("### assistant:", "### system:"),
    ) -> None:
        self._markers = tuple(marker.lower() for marker in markers)
        self._headings = tuple(heading.lower() for heading in headings)
        self._line = ""

    def feed(self, piece: str) -> str | None:
        *lines, self._line = (self._line + piece).split("\n")
        shifted = any(self._is_role_shift(line) for line in [*lines, self._line])
        self._line = self._line[:_LINE_BEGINNING]
        return "unpermitted_role_shift" if shifted else None

    def finish(self, text: str) -> str | None:
        return "unpermitted_role_shift" if any(self._is_role_shift(line) for line in text.split("\n")) else None

    def _is_role_shift(self, line: str) -> bool:
        # An indented line is code or data, in which `user:` is an ordinary key.
        line = line[:_LINE_BEGINNING]
        if line.startswith("    "):
            return False
        return line.lstrip(" *#>").lower().startswith(self._markers) or line.lower().startswith(self._headings)


DETECTORS: dict[str, Callable[[], Detector]] = {
    "empty": EmptyReply,
    "repetition": Repetition,
    "role_shift": RoleShift,
}


def detector_factories(names: Sequence[str]) -> list[Callable[[], Detector]]:
    """Return the factories of the named detectors, or raise `ConfigurationError`."""
    unknown = [name for name in names if name not in DETECTORS]
    if unknown:
        raise ConfigurationError(f"unknown detector '{unknown[0]}'{did_you_mean(unknown[0], DETECTORS, 'known')}")
    return [DETECTORS[name] for name in names]


class _DetectorStop(Exception):  # ends the generation from within `on_text`
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


async def generate_with_detectors(
    backend: Backend, request: Request, watch: Sequence[Callable[[], Detector]], clock: Clock
) -> Completion:
    """Return a model's answer; if a detector ends it early, its finish is `watch:REASON`, and its counts are estimates.

    The callbacks `on_text` and `on_restart` of the request are replaced.
    """
    pieces: list[str] = []
    detectors: list[Detector] = []
    answers: list[AnswerStream] = []

    def on_restart() -> None:
        # Text of a failed attempt is discarded.
        pieces.clear()
        detectors[:] = [make() for make in watch]
        answers[:] = [AnswerStream(on_answer)]

    def on_text(piece: str) -> None:
        pieces.append(piece)
        answers[0].feed(piece)

    def on_answer(piece: str) -> None:
        for detector in detectors:
            reason = detector.feed(piece)
            if reason is not None:
                raise _DetectorStop(reason)

    on_restart()
    request.on_text, request.on_restart = on_text, on_restart
    began = clock.now()
    try:
        return await backend.generate(request)
    except _DetectorStop as stop:
        text = "".join(pieces)
        # The endpoint did not report usage; four characters per token is the usual rule of thumb.
        completion = Completion(text, WATCH_PREFIX + stop.reason, request.characters // 4, max(1, len(text) // 4))
        completion.latency = clock.now() - began
        return completion
