"""A share of a run: every n-th of its conversations, held by a process that knows nothing of the others.

Which conversations those are follows from their numbers alone, so shares need no common lock and cannot overlap; an
attempt's id tells apart two processes that began the same share without knowing of each other.
What never belongs here: where shares lie (``sweep.shards``), and joining them (``sweep.merge``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from viva.engine.errors import ConfigurationError

_TEXT = re.compile(r"(\d{1,6})/(\d{1,6})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Share:
    """Share ``index`` (from 1) of ``of``; ``attempt`` is the id of one making of it, empty where none was made yet."""

    index: int
    of: int
    attempt: str = ""

    @classmethod
    def parse(cls, text: str) -> Share:
        """``2/8``, the second of eight.

        :raises ConfigurationError: it is none.
        """
        found = _TEXT.fullmatch(text)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise ConfigurationError(f"--shard {text}: expected i/n with i from 1 to n, such as 2/8")
        return cls(int(found[1]), int(found[2]))

    @classmethod
    def of_manifest(cls, manifest: Mapping[str, Any]) -> Share | None:
        """The share that a run's manifest says it is; None where it is a whole run.

        :raises ConfigurationError: the field is damaged.
        """
        record = manifest.get("shard")
        if record is None:
            return None
        try:
            share = cls(int(record["index"]), int(record["of"]), str(record["attempt"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(f"manifest.json: field 'shard' cannot be used: {error!r}") from None
        if not 1 <= share.index <= share.of:
            raise ConfigurationError(f"manifest.json: field 'shard': there is no share {share}")
        return share

    def __str__(self) -> str:
        return f"{self.index}/{self.of}"

    def to_record(self) -> dict[str, Any]:
        """Plain data for a manifest."""
        return {"index": self.index, "of": self.of, "attempt": self.attempt}

    def holds(self, number: int) -> bool:
        """Whether the conversation of this number is one of it."""
        return number % self.of == self.index - 1

    def count(self, total: int) -> int:
        """How many of ``total`` conversations, numbered from 0, are of it."""
        return len(range(self.index - 1, total, self.of))
