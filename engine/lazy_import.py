"""Imports in the middle of work, from several threads: one at a time.

Python 3.11 takes threads that import parts of one package at once for a deadlock now and then, and fails one of them.
What never belongs here: which packages there are.
"""

from __future__ import annotations

import threading
from importlib import import_module
from typing import Any

_one_at_a_time = threading.RLock()


def imported(module: str) -> Any:
    """The module of this name.

    :raises ImportError: it is not installed.
    """
    with _one_at_a_time:
        return import_module(module)
