"""Addresses of pages: as a server has them, and as files beside one another.

What never belongs here: what is on a page.
"""

from __future__ import annotations

import hashlib
import re
from typing import Protocol
from urllib.parse import quote, urlencode

from .filters import Filter
from .query import Listed

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


class Links(Protocol):
    """Where pages are. ``live``: there is a server that can be asked."""

    live: bool

    def overview(self) -> str: ...

    def conversations(self, query: str = "") -> str: ...

    def conversation(self, one: Listed, query: str = "", anchor: str = "") -> str: ...

    def compare(self, one: Listed, other: Listed) -> str: ...

    def asset(self, name: str) -> str: ...

    def report(self) -> str: ...


class ServedLinks:
    """On a server."""

    live = True

    def overview(self) -> str:
        return "/"

    def conversations(self, query: str = "") -> str:
        return f"/conversations?{query}" if query else "/conversations"

    def conversation(self, one: Listed, query: str = "", anchor: str = "") -> str:
        return f"/c/{one.place}" + (f"?{query}" if query else "") + (f"#{anchor}" if anchor else "")

    def compare(self, one: Listed, other: Listed) -> str:
        return "/compare?" + urlencode({"a": f"{one.run}/{one.number}", "b": f"{other.run}/{other.number}"})

    def asset(self, name: str) -> str:
        return f"/asset/{name}"

    def report(self) -> str:
        return "/report"


class FileLinks:
    """Files below one folder; ``depth`` is how many folders the linking page lies below it."""

    live = False

    def __init__(self, depth: int) -> None:
        self._up = "../" * depth

    def overview(self) -> str:
        return f"{self._up}index.html"

    def conversations(self, query: str = "") -> str:
        return f"{self._up}conversations.html" + (f"?{query}" if query else "")

    def conversation(self, one: Listed, query: str = "", anchor: str = "") -> str:
        return f"{self._up}{quote(conversation_file(one))}" + (f"#{anchor}" if anchor else "")

    def compare(self, one: Listed, other: Listed) -> str:
        return f"{self._up}compare.html?" + urlencode({"a": conversation_file(one), "b": conversation_file(other)})

    def asset(self, name: str) -> str:
        return f"{self._up}asset/{name}"

    def report(self) -> str:
        return f"{self._up}report.html"


def conversation_file(one: Listed) -> str:
    """The file of a conversation in an export."""
    return f"c/{run_folder(one.run)}/{one.number}.html"


def run_folder(run: str) -> str:
    """A run's name as the name of a folder, another one for each run."""
    plain = _UNSAFE.sub("-", run).strip(".-")[:60] or "run"
    if plain == run:
        return plain
    return f"{plain}-{hashlib.blake2b(run.encode('utf-8', 'surrogatepass'), digest_size=4).hexdigest()}"


def query_of(filter: Filter, place: int | None = None) -> str:  # noqa: A002
    """A filter as the query of a conversation's address, with the conversation's place in the list."""
    query = filter.query()
    return query if place is None else "&".join(part for part in (query, f"at={place}") if part)
