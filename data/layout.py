"""How benchmarks lie in folders: which files belong to which split, and which subject a file holds.

A split is named by a word in the file's name (``test.jsonl``, ``ARC-Challenge-Test.jsonl``, ``anatomy_test.csv``,
``test-00000-of-00002.parquet``) or by a sub-folder (``test/anatomy_test.csv``). ``val``, ``valid`` and ``validation``
are one split, called ``val``. Files without such a word count only where no file has one.

What never belongs here: what stands in the files, and the command line's way of naming datasets (``sources``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from viva.engine.errors import DatasetError

_WORDS = "auxiliary_train|train|test|dev|validation|valid|val"
_IN_NAME = re.compile(rf"(?:^|[-_.])({_WORDS})(?:-\d+-of-\d+)?$", re.IGNORECASE)
_WHOLE = re.compile(_WORDS, re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Stem:
    """A file's name taken apart: what it is called without its split (a subject, say), and the split, if named."""

    rest: str
    split: str

    @classmethod
    def of(cls, path: Path) -> Stem:
        found = _IN_NAME.search(path.stem)
        return cls(path.stem[: found.start()], canonical(found.group(1))) if found else cls(path.stem, "")


def canonical(split: str) -> str:
    """A split's name as it is compared: lower case, and one word for the validation split."""
    name = split.lower()
    return "val" if name in ("valid", "validation") else name


def split_of_folder(path: Path) -> str:
    """The split that a folder's own name says it holds, or the empty text."""
    return canonical(path.name) if _WHOLE.fullmatch(path.name) else ""


def splits(folder: Path, endings: tuple[str, ...]) -> dict[str, list[Path]]:
    """The files of a folder by split, in the order of their names; under the empty text if none names its split.

    :raises DatasetError: the folder cannot be read.
    """
    found: dict[str, list[Path]] = {}
    for path in _entries(folder):
        if path.suffix in endings and path.is_file():
            found.setdefault(Stem.of(path).split, []).append(path)
        elif (split := split_of_folder(path)) and path.is_dir():
            within = [inner for inner in _entries(path) if inner.suffix in endings and inner.is_file()]
            if within:
                found.setdefault(split, []).extend(within)
    if len(found) > 1:
        found.pop("", None)
    return found


def chosen_files(folder: Path, split: str, endings: tuple[str, ...], source: str) -> tuple[str, list[Path]]:
    """The canonical split and its files. Without ``split``, the folder must hold a single one.

    :param source: how the dataset was named, for errors.
    :raises DatasetError: there is no such split, or several to choose from (the message lists them), or two files of
        the split differ in nothing but their endings.
    """
    found = splits(folder, endings)
    if not found:
        inner = [path.name for path in _entries(folder) if path.is_dir()]
        hint = f"; its folders: {', '.join(inner[:8])}" if inner else ""
        raise DatasetError(f"holds no file ending in {', '.join(endings)}{hint}", path=str(folder))
    names = ", ".join(sorted(found))
    if split and canonical(split) not in found:
        there = f"its splits: {names}" if names else "its files name no split"
        raise DatasetError(f"holds no split '{split}'; {there}", path=str(folder))
    if not split and len(found) > 1:
        example = f"{source}:{'test' if 'test' in found else min(found)}"
        raise DatasetError(f"holds several splits: {names}; say which, as in {example}", path=str(folder))
    own = canonical(split) if split else next(iter(found))
    for before, path in pairwise(found[own]):
        if before.with_suffix("") == path.with_suffix(""):
            raise DatasetError(f"stands beside {path.name}: name the one that is meant", path=str(before))
    return own or split_of_folder(folder), found[own]


def development_folder(folder: Path, split: str, endings: tuple[str, ...]) -> tuple[Path, str] | None:
    """Where the development split beside a folder's split lies, as (folder, split); None if it is not to be seen."""
    found = splits(folder, endings)
    own = canonical(split) if split else (next(iter(found)) if len(found) == 1 else "")
    own = own or split_of_folder(folder)
    if own in ("", "dev"):
        return None
    if "dev" in found:
        return folder, "dev"
    beside = folder.parent / "dev"
    return (beside, "") if split_of_folder(folder) and beside.is_dir() and splits(beside, endings) else None


def development_file(path: Path) -> Path | None:
    """The file of the development split that belongs to a file of another split; None if it is not to be seen."""
    stem = Stem.of(path)
    own = stem.split or split_of_folder(path.parent)
    if own in ("", "dev"):
        return None
    beside = [path.parent] + ([path.parent.parent / "dev"] if split_of_folder(path.parent) else [])
    for folder in beside:
        for other in _entries(folder) if folder.is_dir() else []:
            there = Stem.of(other)
            split = there.split or split_of_folder(folder)
            if (there.rest, split, other.suffix) == (stem.rest, "dev", path.suffix):
                return other
    return None


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise DatasetError(f"cannot be read: {error.strerror}", path=str(folder)) from None
