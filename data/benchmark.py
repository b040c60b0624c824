"""Published benchmarks: what the YAML files in ``benchmarks`` say of each, and how they lie in folders.

A benchmark's file says where it stands on the hub, its splits and their sizes, the fields of its records, how
its items are known in published lists, its licence and citation. In a folder a split is named by a word in a
file's name (``test.jsonl``, ``anatomy_test.csv``, ``test-00000-of-00002.parquet``) or by a sub-folder
(``test/anatomy_test.csv``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from viva.engine.errors import ConfigurationError, DatasetError
from viva.engine.yaml_file import read_yaml

_WORDS = "auxiliary_train|train|test|dev|validation|valid|val"
_IN_NAME = re.compile(rf"(?:^|[-_.])({_WORDS})(?:-\d+-of-\d+)?$", re.IGNORECASE)
_SPLIT_NAME = re.compile(_WORDS, re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class FileStem:
    """A file's name taken apart: what it is called without its split (a subject, say), and the split, if named."""

    name: str
    split: str

    @classmethod
    def from_path(cls, path: Path) -> FileStem:
        match = _IN_NAME.search(path.stem)
        return cls(path.stem[: match.start()], canonical_split(match.group(1))) if match else cls(path.stem, "")


def canonical_split(split: str) -> str:
    """A split's name as it is compared: lower case, and one word for the validation split."""
    name = split.lower()
    return "val" if name in ("valid", "validation") else name


def split_of_folder(path: Path) -> str:
    """The split that a folder's own name says it holds, or the empty text."""
    return canonical_split(path.name) if _SPLIT_NAME.fullmatch(path.name) else ""


def files_by_split(folder: Path, endings: tuple[str, ...]) -> dict[str, list[Path]]:
    """Return a folder's files by split in the order of their names; those that name none under ""."""
    files: dict[str, list[Path]] = {}
    for path in _visible_entries(folder):
        if path.suffix in endings and path.is_file():
            files.setdefault(FileStem.from_path(path).split, []).append(path)
        elif (split := split_of_folder(path)) and path.is_dir():
            within = [inner for inner in _visible_entries(path) if inner.suffix in endings and inner.is_file()]
            if within:
                files.setdefault(split, []).extend(within)
    if len(files) > 1:
        files.pop("", None)
    return files


def files_of_split(folder: Path, split: str, endings: tuple[str, ...], source: str) -> tuple[str, list[Path]]:
    """The canonical split and its files. Without ``split``, the folder must hold a single one.

    :param source: how the dataset was named, for errors.
    :raises DatasetError: there is no such split, or several to choose from (the message lists them), or two files of
        the split differ in nothing but their endings.
    """
    files = files_by_split(folder, endings)
    if not files:
        inner = [path.name for path in _visible_entries(folder) if path.is_dir()]
        hint = f"; its folders: {', '.join(inner[:8])}" if inner else ""
        raise DatasetError(f"holds no file ending in {', '.join(endings)}{hint}", path=str(folder))
    names = ", ".join(sorted(files))
    if split and canonical_split(split) not in files:
        available = f"its splits: {names}" if names else "its files name no split"
        raise DatasetError(f"holds no split '{split}'; {available}", path=str(folder))
    if not split and len(files) > 1:
        example = f"{source}:{'test' if 'test' in files else min(files)}"
        raise DatasetError(f"holds several splits: {names}; say which, as in {example}", path=str(folder))
    own = canonical_split(split) if split else next(iter(files))
    for before, path in pairwise(files[own]):
        if before.with_suffix("") == path.with_suffix(""):
            raise DatasetError(f"stands beside {path.name}: name the one that is meant", path=str(before))
    return own or split_of_folder(folder), files[own]


def development_folder(folder: Path, split: str, endings: tuple[str, ...]) -> tuple[Path, str] | None:
    """Where the development split beside a folder's split lies, as (folder, split); None if it is not to be seen."""
    files = files_by_split(folder, endings)
    own = canonical_split(split) if split else (next(iter(files)) if len(files) == 1 else "")
    own = own or split_of_folder(folder)
    if own in ("", "dev"):
        return None
    if "dev" in files:
        return folder, "dev"
    beside = folder.parent / "dev"
    return (beside, "") if split_of_folder(folder) and beside.is_dir() and files_by_split(beside, endings) else None


def development_file(path: Path) -> Path | None:
    """The file of the development split that belongs to a file of another split; None if it is not to be seen."""
    stem = FileStem.from_path(path)
    own = stem.split or split_of_folder(path.parent)
    if own in ("", "dev"):
        return None
    beside = [path.parent] + ([path.parent.parent / "dev"] if split_of_folder(path.parent) else [])
    for folder in beside:
        for candidate in _visible_entries(folder) if folder.is_dir() else []:
            candidate_stem = FileStem.from_path(candidate)
            split = candidate_stem.split or split_of_folder(folder)
            if (candidate_stem.name, split, candidate.suffix) == (stem.name, "dev", path.suffix):
                return candidate
    return None


def _visible_entries(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise DatasetError(f"cannot be read: {error.strerror}", path=str(folder)) from None


_FOLDER = Path(__file__).parent / "benchmarks"


def _sizes(value: Any) -> Any:
    """A plain list of subjects says nothing of their sizes."""
    return {name: {} for name in value} if isinstance(value, list) else value


class _BenchmarkPart(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class HubLocation(_BenchmarkPart):
    """Where a benchmark stands on the Hugging Face hub.

    ``config`` is the configuration that holds all of it, None where there is a single one. ``by_subject``: each subject
    is a configuration, too; without a ``config``, all of them together are the benchmark.
    """

    id: str
    revision: str = "main"
    config: str | None = None
    by_subject: bool = False


class PublishedFields(_BenchmarkPart):
    """The names of a record's fields. ``choices``: of a list, or one of each choice; by default ``choices``, or the
    columns ``A``, ``B``, …. ``row``: the 0-based place within a subject.
    """

    question: str = "question"
    choices: str | list[str] | None = None
    answer: str = "answer"
    subject: str | None = None
    row: str | None = None


class Benchmark(_BenchmarkPart):
    """What is known of a benchmark.

    ``splits``: records by the hub's name of each split; ``evaluated`` is the one that a name without a split means, and
    ``examples`` the one that few-shot examples come from. ``form``: ``choices``, ``free`` (questions without choices)
    or ``arc``. ``choices``: how many every item has. ``answers``: whether the right one is given by its letter, its
    0-based index, or either. ``columns``: those of tables without a header. ``subject_in_name``: a file's name says its
    subject. ``subjects``: in the order of publication, with the records of each split where they are known.

    ``id``: what a published list's hash covers besides question, choices and answer (``content``: nothing; ``empty``:
    an empty object; ``row``: the row number), or ``own:FIELD``, the record's own id. ``listed``: how many items of a
    split Yu et al. (2024) list as valid and as invalid.

    ``without_answer`` is said of records without an answer, ``remove`` a pattern of what is taken out of a free answer,
    and ``copies`` the fields by which copies of the dataset under other names are recognised.
    """

    name: str
    title: str
    summary: str
    language: str
    licence: str
    citation: str
    url: str
    hub: HubLocation
    splits: dict[str, int]
    evaluated: str
    examples: str | None = None
    form: Literal["choices", "free", "arc"] = "choices"
    fields: PublishedFields = PublishedFields()
    choices: int | None = Field(default=None, ge=2)
    answers: Literal["letter", "index", "either"] = "either"
    columns: tuple[str, ...] = ()
    subject_in_name: bool = False
    subjects: Annotated[dict[str, dict[str, int]], BeforeValidator(_sizes)] = {}
    id: str = Field(default="content", pattern=r"content|empty|row|own:\w+")
    drops_repeats: bool = False
    listed: dict[str, tuple[int, int]] = {}
    without_answer: str = ""
    remove: str = ""
    copies: frozenset[str] = frozenset()

    def split(self, name: str) -> str:
        """The hub's name of a split, however it is written; empty where there is none like it."""
        return next((split for split in self.splits if canonical_split(split) == canonical_split(name)), "")

    def records(self, split: str, subject: str = "") -> int | None:
        """How many records a split has as published, or one subject of it; None where that is not known."""
        name = self.split(split)
        return self.subjects.get(subject, {}).get(name) if subject else self.splits.get(name)

    def subject(self, text: str) -> str:
        """A subject's name, however it is written.

        :raises ConfigurationError: there is none like it; the message names near ones.
        """
        subjects = {_plain(subject): subject for subject in self.subjects}
        if _plain(text) not in subjects:
            near = get_close_matches(_plain(text), subjects, n=3) or list(subjects)
            advice = (
                f"its subjects: {_list_few([subjects[name] for name in near])}" if subjects else "it has no subjects"
            )
            raise ConfigurationError(f"dataset '{self.name}/{text}': {self.title} has no such part; {advice}")
        return subjects[_plain(text)]

    def first_row(self, subject: str, split: str) -> int:
        """The 0-based row at which a subject begins in the split's concatenated set; 0 where that is not known."""
        return self._first_rows.get(split, {}).get(subject, 0)

    @cached_property
    def _first_rows(self) -> dict[str, dict[str, int]]:
        rows: dict[str, dict[str, int]] = {}
        for split in self.splits:
            sizes = [self.subjects[subject].get(split) for subject in self.subjects]
            known_sizes = [size for size in sizes if size is not None]
            if len(known_sizes) == len(sizes):
                rows[canonical_split(split)] = dict(
                    zip(self.subjects, accumulate(known_sizes, initial=0), strict=False)
                )
        return rows


@cache
def benchmark_names() -> tuple[str, ...]:
    """The names of all benchmarks, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


@cache
def load_benchmark(name: str) -> Benchmark:
    """Return the benchmark of exactly this name (else ``KeyError``)."""
    if name not in benchmark_names():
        raise KeyError(name)
    path = _FOLDER / f"{name}.yaml"
    try:
        return Benchmark(name=name, **read_yaml(path))
    except ValidationError as error:
        raise ConfigurationError(f"{path}: {error}") from None


def benchmark_at_hub(location: str) -> Benchmark | None:
    """The benchmark that stands on the hub as ``owner/name`` or ``owner/name/config``; None if none does."""
    for name in benchmark_names():
        benchmark = load_benchmark(name)
        if location.casefold() == benchmark.hub.id.casefold() or (
            location.casefold().startswith(f"{benchmark.hub.id}/".casefold())
            and (
                benchmark.hub.by_subject
                or benchmark.hub.config is None
                or location.endswith(f"/{benchmark.hub.config}")
            )
        ):
            return benchmark
    return None


def similar_names(name: str, more: Iterable[str] = ()) -> list[str]:
    """The names of benchmarks, or of ``others``, that somebody who wrote ``name`` may have meant; the nearest first."""
    names = {_plain(candidate): candidate for candidate in (*more, *benchmark_names())}
    plain_name = _plain(name)
    words = plain_name.split("_")
    alike = [names[plain] for plain in get_close_matches(plain_name, names, n=3)]
    begun = [
        candidate
        for plain, candidate in names.items()
        if plain.partition("_")[0] in words or plain.startswith(plain_name)
    ]
    return list(dict.fromkeys([*alike, *begun]))[:4] if plain_name else []


def _plain(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name.casefold())


def _list_few(names: list[str], limit: int = 8) -> str:
    return ", ".join(names[:limit]) + (f", … ({len(names)})" if len(names) > limit else "")
