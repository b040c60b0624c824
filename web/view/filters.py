"""Which conversations a list shows, as the address of a page says it, and as a condition for the index.

What never belongs here: asking the index (``query``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import urlencode

from viva.engine.errors import ConfigurationError

from .search_text import question_of

PAGE = 50  # conversations on one page
_LONGEST = 300  # characters of one value
STATES = {"finished": 1, "failed": 2, "open": 0}
SORTS = {
    "": ("in order", "c.run, c.number"),
    "low": ("lowest score", "{score} is null, {score}, c.id"),
    "high": ("highest score", "{score} desc, c.id"),
    "latest": ("latest first", "c.at desc, c.id desc"),
    "tokens": ("most tokens", "c.prompt_tokens + c.completion_tokens desc, c.id"),
    "slow": ("most seconds", "c.seconds desc, c.id"),
    "retries": ("most retries", "c.retries desc, c.id"),
}


@dataclass(frozen=True, slots=True)
class Filter:
    """A choice of conversations; an empty field chooses nothing. ``low`` and ``high`` bound the score, or that of the
    ``aspect`` where one is named; ``q`` are words of the text.
    """

    run: str = ""
    candidate: str = ""
    dataset: str = ""
    state: str = ""
    end: str = ""
    error: str = ""
    aspect: str = ""
    low: float | None = None
    high: float | None = None
    unscored: str = ""
    q: str = ""
    sort: str = ""
    page: int = 1

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> Filter:
        """The filter of an address.

        :raises ConfigurationError: a value is not one that its field takes.
        """
        found: dict[str, Any] = {}
        for field in fields(cls):
            text = query.get(field.name, "").strip()[:_LONGEST] if field.name != "q" else query.get("q", "")[:_LONGEST]
            if not text:
                continue
            found[field.name] = _read(field.name, text)
        return cls(**found)

    def query(self, **changes: Any) -> str:
        """The filter as the query of an address, with some fields changed; the first page where others are."""
        other = replace(self, **({"page": 1} | changes))
        pairs = [(field.name, getattr(other, field.name)) for field in fields(other)]
        given = [(name, value) for name, value in pairs if value not in ("", None) and (name, value) != ("page", 1)]
        return urlencode([(name, f"{value:g}" if isinstance(value, float) else value) for name, value in given])

    @property
    def chosen(self) -> list[tuple[str, str]]:
        """The fields that choose, with their values, for a reader."""
        pairs = [(field.name, getattr(self, field.name)) for field in fields(self)]
        skipped = ("page", "sort")
        return [
            (name, f"{value:g}" if isinstance(value, float) else str(value))
            for name, value in pairs
            if value not in ("", None) and name not in skipped
        ]

    @property
    def question(self) -> str | None:
        """The words as a question to the index of texts."""
        return question_of(self.q) if self.q else None

    def condition(self, hits: str | None) -> tuple[str, list[Any]]:
        """What follows ``where``, and its parameters. ``hits``: the table of the conversations that hold the words."""
        parts, values = ["1"], []
        for name in ("candidate", "end", "error"):
            if value := getattr(self, name):
                parts.append(f"c.{name} = ?")
                values.append(value)
        for name, column in (("run", "name"), ("dataset", "dataset")):
            if value := getattr(self, name):
                parts.append(f"c.run in (select id from runs where {column} = ?)")
                values.append(value)
        if self.state:
            parts.append("c.state = ?")
            values.append(STATES[self.state])
        if self.unscored:
            parts.append("c.unscored > 0")
        for bound, sign in ((self.low, ">="), (self.high, "<=")):
            if bound is not None:
                parts.append(f"{self.score} {sign} ?")
                values.append(bound)
        if hits is not None:
            parts.append(f"c.id in (select id from {hits})")
        return " and ".join(parts), values

    @property
    def score(self) -> str:
        """The column of the figure that is shown and sorted by."""
        return "a.value" if self.aspect else "c.score"

    @property
    def order(self) -> str:
        """What follows ``order by``."""
        return SORTS[self.sort][1].format(score=self.score)

    @property
    def tables(self) -> tuple[str, list[Any]]:
        """What follows ``from``, and its parameters."""
        if not self.aspect:
            return "conversations c", []
        return "conversations c join aspects a on a.conversation = c.id and a.name = ?", [self.aspect]


def _read(name: str, text: str) -> Any:
    if name == "page":
        if not (text.isascii() and text.isdigit() and 0 < int(text) < 10**7):
            raise ConfigurationError(f"page: expected a number from 1 on, found '{text[:40]}'")
        return int(text)
    if name in ("low", "high"):
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise ConfigurationError(f"{name}: expected a number, found '{text[:40]}'")
        return value
    known = list(STATES) if name == "state" else list(SORTS) if name == "sort" else []
    if known and text not in known:
        raise ConfigurationError(f"{name}: expected one of {', '.join(filter(None, known))}, found '{text[:40]}'")
    return text
