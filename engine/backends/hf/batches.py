"""The thread that computes one model's requests: as many at once as the batch holds, first in, first out.

A batch is computed to its end before the next begins. What never belongs here: how a batch is computed.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from ...errors import Rejected, Unavailable
from ...stopping import RunStopping
from .answer import Answer
from .decoding import generate
from .likelihoods import ReadTexts, read

if TYPE_CHECKING:
    from .loading import LoadedModel

_STOP_SECONDS = 3.0  # for the thread to stop; it looks after each token
_GATHER_SECONDS = 0.005  # in which conversations that answer one another come together


class BatchLoop:
    """Owns the thread. ``submit``, ``withdraw`` and ``cancel`` may be called from any other."""

    def __init__(self, model: LoadedModel, most: int) -> None:
        self._model, self._most = model, most
        self._waiting: deque[Answer | ReadTexts] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self.batches = self.computed = 0
        self._thread = threading.Thread(target=self._run, name="viva-hf", daemon=True)
        self._thread.start()

    def submit(self, work: Answer | ReadTexts) -> None:
        """Queue a request; its ``on_done`` is called on the thread when it has ended.

        :raises Unavailable: the model is closed.
        """
        with self._wake:
            if self._closing:
                raise Unavailable("the model was closed", model="hf")
            self._waiting.append(work)
            self._wake.notify()

    def withdraw(self, work: Answer | ReadTexts) -> None:
        """Fail a request with ``RunStopping``, unless it is being computed."""
        with self._wake:
            if work not in self._waiting:
                return
            self._waiting.remove(work)
        _finish(work, RunStopping())

    def cancel(self, work: Answer | ReadTexts) -> None:
        """Nobody waits for it any more."""
        work.cancelled = True

    def close(self) -> None:
        """Stop the thread; what waits fails. A thread that does not stop within seconds is left behind."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(_STOP_SECONDS)
        for work in self._waiting:
            _finish(work, Unavailable("the model was closed", model="hf"))

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._waiting or self._closing)
                if not self._closing and len(self._waiting) < self._most:
                    self._wake.wait_for(lambda: len(self._waiting) >= self._most or self._closing, _GATHER_SECONDS)
                if self._closing:
                    return
                taken = self._take()
            if taken:
                self._compute(taken)

    def _take(self) -> list[Answer | ReadTexts]:
        """The next requests: answers as many as the batch holds, or one reading."""
        taken: list[Answer | ReadTexts] = []
        while self._waiting and len(taken) < self._most:
            if self._waiting[0].cancelled:
                self._waiting.popleft()
            elif isinstance(self._waiting[0], ReadTexts):
                return taken or [self._waiting.popleft()]
            else:
                taken.append(self._waiting.popleft())
        return taken

    def _compute(self, taken: list[Answer | ReadTexts]) -> None:
        self.batches += 1
        self.computed += len(taken)
        error: Exception | None = None
        try:
            if isinstance(taken[0], ReadTexts):
                read(self._model, taken[0], self._most)
            else:
                answers = [one for one in taken if isinstance(one, Answer)]
                generate(self._model, answers, lambda: self._closing)
        except Exception as raised:  # whatever torch and the architecture raise: nobody may wait for a dead thread
            error = _rejected(raised, self._most)
        if self._closing:
            error = error or Unavailable("the model was closed", model="hf")
        for work in taken:
            unfinished = isinstance(work, ReadTexts) or not work.ended
            _finish(work, error if unfinished else None)


def _finish(work: Answer | ReadTexts, error: Exception | None) -> None:
    work.error = work.error or error
    if work.on_done is not None:
        work.on_done()


def _rejected(error: Exception, most: int) -> Rejected:
    said = " ".join(str(error).split())[:300]
    advice = f"; a smaller batch than {most} (option batch), or ctx, needs less" if "out of memory" in said else ""
    return Rejected(f"{type(error).__name__}: {said}{advice}", model="hf")
