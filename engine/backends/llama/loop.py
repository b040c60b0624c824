"""The inference thread of one context: takes requests, has the lanes step, hands answers back.

All llama.cpp work of a context happens on this thread. The event loop submits and cancels through a queue and is woken
once per answer. What never belongs here: what a step does (``lanes``) and which comes next (``scheduler``).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque

from ...errors import Unavailable, VivaError
from .ask import Ask
from .lanes import Lanes

_LAST_WAIT = 3.0  # seconds for a thread to stop; llama.cpp gives up between two operations
_BREATH = 0.005  # seconds; with nothing to compute, so long the talks under way have to ask before new ones begin


class InferenceLoop:
    """Owns the lanes and their thread. ``submit`` and ``cancel`` may be called from any thread."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.idle = 0.0
        self._inbox: deque[Ask] = deque()
        self._ended: deque[str] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._broken: VivaError | None = None
        self._name = lanes.context.model.path.name
        self._thread = threading.Thread(target=self._run, name="viva-llama", daemon=True)
        self._thread.start()

    def submit(self, ask: Ask) -> None:
        """Begin a request; ``ask.done`` is called on the thread when it is finished or has failed.

        :raises Unavailable: the thread is gone.
        """
        with self._wake:
            if self._broken is not None:
                raise self._broken
            self._inbox.append(ask)
            self._wake.notify()

    def cancel(self, ask: Ask) -> None:
        """Drop a request; its lane is free by the next step. ``done`` may still be called if it was just finished."""
        with self._wake:
            ask.cancelled = True
            self._wake.notify()

    def end(self, talk: str) -> None:
        """Nothing more will be asked in a talk: its KV goes before the next step."""
        self._ended.append(talk)

    def close(self) -> bool:
        """Stop the thread; requests under way fail. Whether it did stop: one that hangs in llama.cpp is left behind
        with all that it uses, so that the process can end.
        """
        with self._wake:
            self._closing = True
            self._wake.notify()
        self.lanes.context.interrupt()
        self._thread.join(_LAST_WAIT)
        stopped = not self._thread.is_alive()
        if not stopped:
            message = "%s: llama.cpp hangs; its thread is left behind"
            logging.getLogger("viva").warning(message, self._name, extra={"label": ""})
        self._end(Unavailable("the model was closed", model=self._name))
        return stopped

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:  # a fault of ours: nobody may be left waiting for a thread that is gone
            self._end(Unavailable(f"the inference thread failed: {error!r}", model=self._name))

    def _serve(self) -> None:
        computed = True
        while True:
            began = time.perf_counter()
            with self._wake:
                if not computed:
                    self._wake.wait_for(lambda: self._inbox or self._closing, _BREATH)
                while not self._closing and not self._inbox and not self.lanes.scheduler.busy:
                    self._wake.wait()
                if self._closing:
                    return
                arrived = [self._inbox.popleft() for _ in range(len(self._inbox))]
            self.idle += time.perf_counter() - began
            while self._ended:
                self.lanes.store.release(self._ended.popleft())
            for ask in arrived:
                try:
                    self.lanes.accept(ask)
                except Exception as error:  # a fault of ours or of this request: it is told, the others go on
                    self.lanes.refuse(ask, error)
            computed = self.lanes.step()

    def _end(self, error: VivaError) -> None:
        with self._wake:
            self._broken = self._broken or error
            waiting = [self._inbox.popleft() for _ in range(len(self._inbox))]
        self.lanes.release_all(self._broken)
        for ask in waiting:
            ask.error = self._broken
            ask.done(ask)
