"""Python's cyclic garbage collector, tuned for a run and put back after it.

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
    """Take what is loaded out of the collector's sight and let it look less often, until the last run has ended."""
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
