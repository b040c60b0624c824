"""Python's cyclic garbage collector, tuned for runs and put back after them.

This concerns the whole process, so the engine does not do it by itself: the ``viva`` command does, and a program that
embeds the engine may put ``with tuned_collector():`` around its runs.
Tens of thousands of live conversations are nearly all of the heap and hold no garbage cycles, yet every full
collection walks them all. The young generation stays small, for its collection is a pause too.
What never belongs here: anything about memory that a user sets.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_THRESHOLDS = (5_000, 10_000, 1_000)
_usual = gc.get_threshold()
_runs = 0


@contextmanager
def tuned_collector() -> Iterator[None]:
    """Take what is loaded out of the collector's sight and let it look less often, until the last of those who entered
    this, from any event loop or thread, has left.
    """
    global _runs, _usual
    if _runs == 0:
        _usual = gc.get_threshold()
        gc.freeze()
        gc.set_threshold(*_THRESHOLDS)
    _runs += 1
    try:
        yield
    finally:
        _runs -= 1
        if _runs == 0:
            gc.set_threshold(*_usual)
            gc.unfreeze()
