"""The inference thread of one context: it takes requests from a queue, runs the lanes' steps and reports answers.

All llama.cpp calls of a context are made on this thread. The event loop submits and cancels through a queue and is
woken once per answer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque

from ...errors import Unavailable, VivaError
from .lanes import Lanes
from .pending_request import PendingRequest

_STOP_TIMEOUT = 3.0  # seconds for the thread to stop; llama.cpp checks for an abort between operations
_GRACE = 0.005  # seconds; grace period for ongoing conversations before new ones are admitted


class InferenceLoop:
    """Owns the lanes and their thread. All methods but ``close`` are thread-safe."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.idle_seconds = 0.0
        self._inbox: deque[PendingRequest] = deque()
        self._ended: deque[str] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._error: VivaError | None = None
        self._name = lanes.context.model.path.name
        self._thread = threading.Thread(target=self._run, name="viva-llama", daemon=True)
        self._thread.start()

    def submit(self, request: PendingRequest) -> None:
        """Queue a request. ``request.on_done`` is called on the inference thread when it has finished or failed.

        :raises Unavailable: the thread has stopped.
        """
        with self._wake:
            if self._error is not None:
                raise self._error
            self._inbox.append(request)
            self._wake.notify()

    def cancel(self, request: PendingRequest) -> None:
        """Cancel a request; its lane is free at the next step. ``on_done`` is still called if it has just finished."""
        with self._wake:
            request.cancelled = True
            self._wake.notify()

    def withdraw(self, request: PendingRequest) -> None:
        """Fail a request with ``RunStopping`` at the next step, unless it has a lane by then and is being computed."""
        with self._wake:
            request.withdrawn = True
            self._wake.notify()

    def end_conversation(self, conversation: str) -> None:
        """Release the KV of an ended conversation before the next step."""
        self._ended.append(conversation)

    def close(self) -> bool:
        """Stop the thread; pending requests fail. Returns whether it stopped: a thread that hangs in llama.cpp is
        abandoned, together with everything that it uses, so that the process can exit.
        """
        with self._wake:
            self._closing = True
            self._wake.notify()
        self.lanes.context.interrupt()
        self._thread.join(_STOP_TIMEOUT)
        stopped = not self._thread.is_alive()
        if not stopped:
            message = "%s: llama.cpp hangs; its thread is abandoned"
            logging.getLogger("viva").warning(message, self._name, extra={"label": ""})
        self._fail_all(Unavailable("the model was closed", model=self._name))
        return stopped

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:  # a bug here: nobody may wait for a dead thread
            self._fail_all(Unavailable(f"the inference thread failed: {error!r}", model=self._name))

    def _serve(self) -> None:
        computed = True
        while True:
            began = time.perf_counter()
            with self._wake:
                if not computed:
                    self._wake.wait_for(lambda: self._inbox or self._closing, _GRACE)
                while not self._closing and not self._inbox and not self.lanes.scheduler.busy:
                    self._wake.wait()
                if self._closing:
                    return
                arrived = [self._inbox.popleft() for _ in range(len(self._inbox))]
            self.idle_seconds += time.perf_counter() - began
            while self._ended:
                self.lanes.store.release(self._ended.popleft())
            for request in arrived:
                try:
                    self.lanes.submit(request)
                except Exception as error:  # fails this request only
                    self.lanes.fail(request, error)
            computed = self.lanes.step()

    def _fail_all(self, error: VivaError) -> None:
        with self._wake:
            self._error = self._error or error
            waiting = [self._inbox.popleft() for _ in range(len(self._inbox))]
        self.lanes.release_all(self._error)
        for request in waiting:
            request.error = self._error
            request.on_done(request)
