"""Published benchmarks by name: one YAML file each in the folder ``benchmarks`` says all that is known of one.

Where it stands on the hub, its splits and how many records each has, which fields its records have, how its items are
known in published lists, its licence and citation. A benchmark that is published in a form like the others' is one
more file and no code.

What never belongs here: reading records (``mapped``), and finding files (``sources``).
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache, cached_property
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from viva.engine.errors import ConfigurationError
from viva.engine.yamlfile import read_yaml

from .layout import canonical

_FOLDER = Path(__file__).parent / "benchmarks"


def _sizes(value: Any) -> Any:
    """A plain list of subjects says nothing of their sizes."""
    return {name: {} for name in value} if isinstance(value, list) else value


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class OnTheHub(_Part):
    """Where a benchmark stands on the Hugging Face hub.

    ``config`` is the configuration that holds all of it, None where there is a single one. ``by_subject``: each subject
    is a configuration, too; without a ``config``, all of them together are the benchmark.
    """

    id: str
    revision: str = "main"
    config: str | None = None
    by_subject: bool = False


class PublishedFields(_Part):
    """The names of a record's fields. ``choices``: of a list, or one of each choice; by default ``choices``, or the
    columns ``A``, ``B``, …. ``row``: the 0-based place within a subject.
    """

    question: str = "question"
    choices: str | list[str] | None = None
    answer: str = "answer"
    subject: str | None = None
    row: str | None = None


class Benchmark(_Part):
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
    hub: OnTheHub
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

    def split(self, named: str) -> str:
        """The hub's name of a split, however it is written; empty where there is none like it."""
        return next((split for split in self.splits if canonical(split) == canonical(named)), "")

    def records(self, split: str, subject: str = "") -> int | None:
        """How many records a split has as published, or one subject of it; None where that is not known."""
        found = self.split(split)
        return self.subjects.get(subject, {}).get(found) if subject else self.splits.get(found)

    def subject(self, named: str) -> str:
        """A subject's name, however it is written.

        :raises ConfigurationError: there is none like it; the message names near ones.
        """
        found = {_plain(subject): subject for subject in self.subjects}
        if _plain(named) not in found:
            near = get_close_matches(_plain(named), found, n=3) or list(found)
            what = f"its subjects: {_few([found[name] for name in near])}" if found else "it has no subjects"
            raise ConfigurationError(f"dataset '{self.name}/{named}': {self.title} has no such part; {what}")
        return found[_plain(named)]

    def first_row(self, subject: str, split: str) -> int:
        """The 0-based row at which a subject begins in the split's concatenated set; 0 where that is not known."""
        return self._begins.get(split, {}).get(subject, 0)

    @cached_property
    def _begins(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for split in self.splits:
            sizes = [self.subjects[subject].get(split) for subject in self.subjects]
            known = [size for size in sizes if size is not None]
            if len(known) == len(sizes):
                found[canonical(split)] = dict(zip(self.subjects, accumulate(known, initial=0), strict=False))
        return found


@cache
def names() -> tuple[str, ...]:
    """The names of all benchmarks, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


@cache
def benchmark(name: str) -> Benchmark:
    """The benchmark of a name.

    :raises KeyError: there is none of exactly this name.
    :raises ConfigurationError: its file is not one of a benchmark.
    """
    if name not in names():
        raise KeyError(name)
    path = _FOLDER / f"{name}.yaml"
    try:
        return Benchmark(name=name, **read_yaml(path))
    except ValidationError as error:
        raise ConfigurationError(f"{path}: {error}") from None


def at_hub(place: str) -> Benchmark | None:
    """The benchmark that stands on the hub as ``owner/name`` or ``owner/name/config``; None if none does."""
    for name in names():
        found = benchmark(name)
        if place.casefold() == found.hub.id.casefold() or (
            place.casefold().startswith(f"{found.hub.id}/".casefold())
            and (found.hub.by_subject or found.hub.config is None or place.endswith(f"/{found.hub.config}"))
        ):
            return found
    return None


def near(name: str, others: Iterable[str] = ()) -> list[str]:
    """The names of benchmarks, or of ``others``, that somebody who wrote ``name`` may have meant; the nearest first."""
    known = {_plain(one): one for one in (*others, *names())}
    wanted = _plain(name)
    words = wanted.split("_")
    alike = [known[plain] for plain in get_close_matches(wanted, known, n=3)]
    begun = [one for plain, one in known.items() if plain.partition("_")[0] in words or plain.startswith(wanted)]
    return list(dict.fromkeys([*alike, *begun]))[:4] if wanted else []


def _plain(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name.casefold())


def _few(found: list[str], most: int = 8) -> str:
    return ", ".join(found[:most]) + (f", … ({len(found)})" if len(found) > most else "")
