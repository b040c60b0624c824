"""Results of other tools as runs: what a system that reads such files gives, so that a run folder can be made of it.

A system names what it can read by ``Scenario.imports``. What never belongs here: any one file format, and making the
folder (``exchange.imports``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from viva.data.items import Item
from viva.engine.messages import Completion


@dataclass(slots=True, frozen=True)
class ImportChoices:
    """What the user adds to a file. ``dataset`` is the benchmark that its items are of, None where the file's own words
    have to do; ``models`` are names by role, of models that the file does not name or names otherwise.
    """

    dataset: str | None = None
    models: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class ImportedCall:
    """One recorded answer of a role."""

    role: str
    completion: Completion


@dataclass(slots=True, frozen=True)
class ImportedConversation:
    """One finished conversation about a task; ``result`` is what the system's own protocol would have recorded, and
    names the compared model by the label of its name in the settings.
    """

    task: str
    item: Any
    calls: list[ImportedCall]
    result: Any


@dataclass(slots=True)
class ImportedRun:
    """A run to be made.

    ``settings`` are those of the system but for the data. That is ``source``, the benchmark that the user has named;
    where it is None, it is made of ``items`` and called ``dataset``. ``records`` are further fields of the manifest,
    ``facts`` what it keeps for people. ``notes``: what a person should know of the run, a sentence each.
    """

    settings: dict[str, Any]
    dataset: str
    items: list[Item]
    conversations: Iterable[ImportedConversation]
    source: str | None = None
    records: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True, frozen=True)
class Import:
    """A format. ``read`` reads a whole file; its ``DatasetError`` names the line or entry that is wrong."""

    name: str
    summary: str
    read: Callable[[Path, ImportChoices], ImportedRun]
