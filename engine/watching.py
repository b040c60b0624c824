"""An answer under the eyes of detectors: they see its text as it streams, and end the generation where they find cause.

What detectors look for is in ``detectors``; what ends with the answer is decided in ``conversation``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .backends.base import Backend
from .clock import Clock
from .detectors import Detector
from .messages import Completion, Request
from .thoughts import AnswerStream
from .usage import WATCHED


class _Detected(Exception):  # ends the generation from within ``on_text``
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


async def watched_answer(
    backend: Backend, request: Request, watch: Sequence[Callable[[], Detector]], clock: Clock
) -> Completion:
    """A model's answer, ended early where a detector finds cause: its finish is then ``watch:REASON``.

    :raises BackendError: the model could not answer.
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
                raise _Detected(reason)

    on_restart()
    request.on_text, request.on_restart = on_text, on_restart
    began = clock.now()
    try:
        return await backend.generate(request)
    except _Detected as found:
        text = "".join(pieces)
        # The endpoint never got to say what this cost; four characters a token is the usual rule of thumb.
        completion = Completion(text, WATCHED + found.reason, request.characters // 4, max(1, len(text) // 4))
        completion.latency = clock.now() - began
        return completion
