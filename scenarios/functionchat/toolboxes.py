"""Toolboxes by the tools in them: turns that offer the same tools share one.

What never belongs here: what a tool is (``engine.tools``).
"""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

from viva.engine.tools import Toolbox


class Toolboxes:
    """Toolboxes by the tools in them: turns with the same tools share one. Holds so many and no more."""

    MOST = 512

    def __init__(self) -> None:
        self._known: dict[bytes, Toolbox] = {}

    def of(self, tools: list[dict[str, Any]]) -> Toolbox:
        """The toolbox of these tools.

        :raises ConfigurationError: one of the tools is not of the form.
        """
        key = hashlib.blake2b(orjson.dumps(tools), digest_size=16).digest()
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= self.MOST:
                self._known.clear()
            found = self._known[key] = Toolbox(tools)
        return found
