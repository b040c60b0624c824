"""Published benchmarks: their YAML data files in `benchmarks`, and their layout in folders.

A benchmark's file has its location on the hub, its splits and their sizes, the fields of its records, the ids of its
items in published lists, its licence and citation. In a folder, a split is named by a word in a file's name
(`test.jsonl`, `anatomy_test.csv`, `test-00000-of-00002.parquet`) or by a sub-folder (`test/anatomy_test.csv`).
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
    """A file's name split in two: the name without its split (a subject, say), and the split, if named."""

    name: str
    split: str

    @classmethod
    def from_path(cls, path: Path) -> FileStem:
        match = _IN_NAME.search(path.stem)
        return cls(path.stem[: match.start()], canonical_split(match.group(1))) if match else cls(path.stem, "")


def canonical_split(split: str) -> str:
    """Return a split's name for comparison: lower case, and one word for the validation split."""
    name = split.lower()
    return "val" if name in ("valid", "validation") else name


def split_of_folder(path: Path) -> str:
    """Return the split that a folder's own name says it contains, or ""."""
    return canonical_split(path.name) if _SPLIT_NAME.fullmatch(path.name) else ""


def files_by_split(folder: Path, endings: tuple[str, ...]) -> dict[str, list[Path]]:
    """Return a folder's files by split, sorted by path.

    Files that name no split are under ""; they are left out if any other file names one.
    """
    files: dict[str, list[Path]] = {}
    for path in _visible_entries(folder):
        if path.suffix in endings and path.is_file():
            files.setdefault(FileStem.from_path(path).split, []).append(path)
        elif (split := split_of_folder(path)) and path.is_dir():
            inner_files = [entry for entry in _visible_entries(path) if entry.suffix in endings and entry.is_file()]
            if inner_files:
                files.setdefault(split, []).extend(inner_files)
    if len(files) > 1:
        files.pop("", None)
    return files


def files_of_split(folder: Path, split: str, endings: tuple[str, ...], source: str) -> tuple[str, list[Path]]:
    """Return the canonical split and its files. Without `split`, the folder must contain a single split.

    Args:
        folder: The folder.
        split: Name of the split, or "".
        endings: Endings of the files.
        source: The dataset's name as given, for errors.

    Raises:
        DatasetError: There is no such split, or several to choose from (the message lists them), or two files of the
            split differ only in their endings.
    """
    files = files_by_split(folder, endings)
    if not files:
        folders = [path.name for path in _visible_entries(folder) if path.is_dir()]
        hint = f"; its folders: {', '.join(folders[:8])}" if folders else ""
        raise DatasetError(f"has no file ending in {', '.join(endings)}{hint}", path=str(folder))
    names = ", ".join(sorted(files))
    if split and canonical_split(split) not in files:
        available = f"its splits: {names}" if names else "its files name no split"
        raise DatasetError(f"has no split '{split}'; {available}", path=str(folder))
    if not split and len(files) > 1:
        example = f"{source}:{'test' if 'test' in files else min(files)}"
        raise DatasetError(f"has several splits: {names}; name one, as in {example}", path=str(folder))
    canonical = canonical_split(split) if split else next(iter(files))
    for previous, path in pairwise(files[canonical]):
        if previous.with_suffix("") == path.with_suffix(""):
            raise DatasetError(f"is next to {path.name}: name one of the two", path=str(previous))
    return canonical or split_of_folder(folder), files[canonical]


def development_folder(folder: Path, split: str, endings: tuple[str, ...]) -> tuple[Path, str] | None:
    """Return the development split beside a folder's split, as (folder, split), or None."""
    files = files_by_split(folder, endings)
    canonical = canonical_split(split) if split else (next(iter(files)) if len(files) == 1 else "")
    canonical = canonical or split_of_folder(folder)
    if canonical in ("", "dev"):
        return None
    if "dev" in files:
        return folder, "dev"
    sibling = folder.parent / "dev"
    return (sibling, "") if split_of_folder(folder) and sibling.is_dir() and files_by_split(sibling, endings) else None


def development_file(path: Path) -> Path | None:
    """Return the development split's file that belongs to a file of another split, or None."""
    stem = FileStem.from_path(path)
    split_of_file = stem.split or split_of_folder(path.parent)
    if split_of_file in ("", "dev"):
        return None
    folders = [path.parent] + ([path.parent.parent / "dev"] if split_of_folder(path.parent) else [])
    for folder in folders:
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
    """Convert a plain list of subjects, whose sizes are unknown, to a mapping."""
    return {name: {} for name in value} if isinstance(value, list) else value


class _BenchmarkPart(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class HubLocation(_BenchmarkPart):
    """Location of a benchmark on the Hugging Face hub.

    `config` is the configuration with all of the benchmark, None if there is only one. `by_subject`: each subject is a
    configuration, too; without a `config`, the benchmark consists of all subjects' configurations.
    """

    id: str
    revision: str = "main"
    config: str | None = None
    by_subject: bool = False


class PublishedFields(_BenchmarkPart):
    """Names of a record's fields.

    `choices` is the name of a list, or one name per choice; default: `choices`, or the columns `A`, `B`, …. `context`
    is a text that belongs before the question. `row` is the 0-based row within a subject. `OBJECT.FIELD` is a field of
    an object.
    """

    question: str = "question"
    context: str | None = None
    choices: str | list[str] | None = None
    answer: str = "answer"
    subject: str | None = None
    row: str | None = None


class Benchmark(_BenchmarkPart):
    """Description of a published benchmark.

    `splits` has the number of records by the hub's name of each split. `evaluated` is the split that is used if a
    source names none, and `examples` the split with few-shot examples. `form` is `choices`, `free` (questions without
    choices), `arc` or `self_instruct`. `choices` is the number of choices of every item, and `choice` the pattern of
    one choice if the field of choices is one text. `answers` tells if the right answer is given by its letter, its
    0-based index, or either, or by a 1 in a list of zeros (`one_hot`). `columns` names the columns of tables without a
    header. `subject_in_name`: a file's name is its subject. `subjects` are in the order of publication, each with its
    number of records by split, empty if unknown.

    `id`: what the hash in published lists covers besides question, choices and answer (`content`: nothing; `empty`: an
    empty object; `row`: the row in the concatenation of all subjects); or `own:FIELD`, if items have the record's own
    id. `drops_repeats`: an item with the id of an earlier one is dropped instead of refused. `listed`: how many items
    of a split Yu et al. (2024) list as valid, and how many as invalid.

    `without_answer` is the message for records without an answer, `remove` a pattern of text to remove from a free
    answer, and `copies` the fields that identify copies of the dataset under other names.
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
    form: Literal["choices", "free", "arc", "self_instruct"] = "choices"
    fields: PublishedFields = PublishedFields()
    choices: int | None = Field(default=None, ge=2)
    choice: str = ""
    answers: Literal["letter", "index", "either", "one_hot"] = "either"
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
        """Return the hub's name of a split that is given in any spelling, or ""."""
        return next((split for split in self.splits if canonical_split(split) == canonical_split(name)), "")

    def records(self, split: str, subject: str = "") -> int | None:
        """Return the published number of records of a split, or of one subject of it; None if unknown."""
        name = self.split(split)
        return self.subjects.get(subject, {}).get(name) if subject else self.splits.get(name)

    def subject(self, text: str) -> str:
        """Return the name of a subject that is given in any spelling.

        Raises:
            ConfigurationError: There is no such subject; the message suggests similar ones.
        """
        subjects = {_plain(subject): subject for subject in self.subjects}
        if _plain(text) not in subjects:
            matches = get_close_matches(_plain(text), subjects, n=3) or list(subjects)
            advice = (
                f"its subjects: {_list_few([subjects[name] for name in matches])}" if subjects else "it has no subjects"
            )
            raise ConfigurationError(f"dataset '{self.name}/{text}': {self.title} has no such part; {advice}")
        return subjects[_plain(text)]

    def first_row(self, subject: str, split: str) -> int:
        """Return the 0-based row at which a subject begins in the split's concatenated set; 0 if unknown."""
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
    """Return the names of all benchmarks, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


@cache
def load_benchmark(name: str) -> Benchmark:
    """Return the benchmark of exactly this name; raise `KeyError` if there is none."""
    if name not in benchmark_names():
        raise KeyError(name)
    path = _FOLDER / f"{name}.yaml"
    try:
        return Benchmark(name=name, **read_yaml(path))
    except ValidationError as error:
        raise ConfigurationError(f"{path}: {error}") from None


def benchmark_at_hub(location: str) -> Benchmark | None:
    """Return the benchmark at `owner/name` or `owner/name/config` on the hub, or None."""
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
    """Return names of benchmarks, or of `more`, similar to `name`, the closest first."""
    names = {_plain(candidate): candidate for candidate in (*more, *benchmark_names())}
    plain_name = _plain(name)
    words = plain_name.split("_")
    close = [names[plain] for plain in get_close_matches(plain_name, names, n=3)]
    prefixed = [
        candidate
        for plain, candidate in names.items()
        if plain.partition("_")[0] in words or plain.startswith(plain_name)
    ]
    return list(dict.fromkeys([*close, *prefixed]))[:4] if plain_name else []


def _plain(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name.casefold())


def _list_few(names: list[str], limit: int = 8) -> str:
    return ", ".join(names[:limit]) + (f", … ({len(names)})" if len(names) > limit else "")
