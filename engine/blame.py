"""Where an error was raised: file and line of the user's own code rather than of a library that it called."""

from __future__ import annotations

import sysconfig
import traceback
from types import TracebackType

_LIBRARY = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
_INSTALLED = ("site-packages", "dist-packages")


def place_of(error: BaseException) -> str:
    """``FILE:LINE in FUNCTION`` of the innermost frame that is neither of the standard library nor of an installed
    package nor of viva; where there is none, of viva; else of the innermost of all.
    """
    while isinstance(error, BaseExceptionGroup):  # raised together in a task group: the first is told
        error = error.exceptions[0]
    found = {_rank(frame): frame for frame in _frames(error.__traceback__)}  # of each rank the innermost
    return "nowhere" if not found else "{0.filename}:{0.lineno} in {0.name}".format(found[min(found)][1])


def _frames(trace: TracebackType | None) -> list[tuple[str, traceback.FrameSummary]]:
    return [
        (
            str(frame.f_globals.get("__name__", "")),
            traceback.FrameSummary(frame.f_code.co_filename, line, frame.f_code.co_name, lookup_line=False),
        )
        for frame, line in traceback.walk_tb(trace)
    ]


def _rank(told: tuple[str, traceback.FrameSummary]) -> int:
    module, frame = told
    if module == "viva" or module.startswith("viva."):
        return 1
    foreign = frame.filename.startswith(("<", *_LIBRARY)) or any(part in frame.filename for part in _INSTALLED)
    return 2 if foreign else 0
