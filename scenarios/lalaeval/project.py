"""A project folder: its file, where its bank and rounds lie, and what follows from its dimensions.

What never belongs here: the file's form (``project_file``), questions (``bank``).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from viva.engine.errors import ConfigurationError

from .project_file import EACH, Counts, Difficulty, Dimension, ProjectFile, read_project_file, walked

FILE = "project.yaml"
BANK = "bank.sqlite"
ROUNDS = "rounds"


@dataclass(slots=True, frozen=True)
class GradedDimension:
    """A dimension that is graded. ``weight`` is its share of the whole, all of them sum to 1. ``grades``: what each
    grade means, from the worst. ``principle``: what graders are told besides, on timeliness too.
    """

    path: str
    weight: float
    grades: Mapping[int, str]
    principle: str = ""
    about: str = ""
    difficulty: Mapping[Difficulty, str] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class Project:
    """A project that was read. ``domains``: the priority of each by its path, empty where it is not evaluated."""

    folder: Path
    file: ProjectFile
    dimensions: Mapping[str, GradedDimension]
    domains: Mapping[str, str]

    @classmethod
    def open(cls, path: Path) -> Project:
        """The project in a folder, or of its file.

        :raises ConfigurationError: there is none, or its file is wrong.
        """
        file = path if path.suffix in (".yaml", ".yml") else path / FILE
        if not file.is_file():
            raise ConfigurationError(f"{path}: no project, for there is no {FILE}; `viva grade init {path}` writes one")
        read = read_project_file(file)
        domains = {"/".join(place): one.priority or "" for place, one in walked(read.domains)}
        return cls(file.parent, read, _graded(read), domains)

    @property
    def bank(self) -> Path:
        """The file of its question bank."""
        return self.folder / BANK

    def round(self, name: str) -> Path:
        """The folder of a round.

        :raises ConfigurationError: the name cannot be that of a folder.
        """
        if not name or name.startswith(".") or any(letter in name for letter in "/\\\0"):
            raise ConfigurationError(f"round '{name}': expected a plain name, such as 2026-06")
        return self.folder / ROUNDS / name

    def rounds(self) -> list[Path]:
        """The folders of its rounds, by name."""
        return sorted(path for path in (self.folder / ROUNDS).glob("*") if path.is_dir())

    def quota(self) -> dict[str, Counts]:
        """How many questions an evaluation draws, by dimension and difficulty; empty where the file has no quota."""
        each = self.file.quota.get(EACH, {})
        found = {path: {**each, **self.file.quota.get(path, {})} for path in self.dimensions}
        return {path: counts for path, counts in found.items() if any(counts.values())}

    def rubric(self) -> dict[str, Any]:
        """What graders go by, as plain data: whatever changes here makes another version of the rubric."""
        return {path: {"grades": {str(grade): text for grade, text in one.grades.items()}, "principle": one.principle}
                for path, one in self.dimensions.items()}  # fmt: skip

    def rubric_digest(self) -> str:
        """16 hex digits that stand for what graders go by."""
        return digest_of(self.rubric())


def digest_of(value: Any) -> str:
    """16 hex digits that stand for plain data."""
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


def _graded(file: ProjectFile) -> dict[str, GradedDimension]:
    found: dict[str, GradedDimension] = {}

    def walk(tree: Mapping[str, Dimension], before: str, share: float) -> None:
        whole = math.fsum(one.weight for one in tree.values())
        for name, one in tree.items():
            path, weight = before + name, share * one.weight / whole
            if one.rubric is None:
                walk(one.parts, f"{path}/", weight)
                continue
            told = [file.principles.get(one.principle or "", ""), file.timeliness if one.timely else ""]
            principle = "\n\n".join(text.strip() for text in told if text.strip())
            found[path] = GradedDimension(path, weight, file.rubrics[one.rubric], principle, one.about, one.difficulty)

    walk(file.dimensions, "", 1.0)
    return found
