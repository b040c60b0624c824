"""How a dataset is named in one line of text, and what that name leads to.

``FILE`` · ``form:FILE`` · ``form:FOLDER`` · ``form:FOLDER:split`` · ``hf:owner/name[/config][:split]``

A source is a form and the parts it is read from, one per file. What never belongs here: reading records, and what they
mean.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from viva.engine.errors import ConfigurationError, DatasetError

from .forms import FORMS, Form, recognise, recognise_table
from .hub import HubDataset
from .layout import Stem, chosen_files, development_file, development_folder, split_of_folder
from .lines import check_regular
from .reading import TABLE_ENDINGS, Record, read_records, table_rows

HUB = "hf"
# Where the benchmarks of the forms stand on the hub.
_ON_THE_HUB = {
    "arc": "allenai/ai2_arc/ARC-Challenge:test",
    "mmlu": "cais/mmlu/all:test",
    "hellaswag": "Rowan/hellaswag:validation",
    "ceval": "ceval/ceval-exam/computer_network:val",
}
_SPLIT = re.compile(r"\w[\w-]*")


@dataclass(frozen=True, slots=True)
class SourcePart:
    """One file of a source: its path for errors, how its records are read, and what its name says of them."""

    path: str
    read: Callable[[], Iterator[Record]]
    subject: str
    split: str


@dataclass(frozen=True, slots=True)
class Source:
    """A dataset that has been found. ``path`` stands for the whole in errors; ``digest()`` identifies the content."""

    name: str
    path: str
    form: Form
    parts: list[SourcePart]
    digest: Callable[[], str]


@dataclass(frozen=True, slots=True)
class _Named:
    """A source's text taken apart; form and split are empty where it has none."""

    form: str
    place: str
    split: str


def open_source(text: str) -> Source:
    """Find the files, or load the dataset of the hub, that ``text`` names.

    :raises ConfigurationError: the form is unknown, or an optional package is missing.
    :raises DatasetError: file, folder or split is not there, or the form's first record cannot be read.
    """
    named = _take_apart(text)
    if named.form == HUB:
        hub = HubDataset(named.place, named.split)
        part = SourcePart(hub.text, hub.records, hub.config, hub.split)
        return Source(hub.name, hub.text, FORMS[hub.form()], [part], hub.digest)
    path = _path(named.place)
    if _exists(path) and path.is_dir():
        if not named.form:
            form_of = _benchmark(path.resolve().name) or "mmlu"
            message = f"is a folder: name its form, as in {form_of}:{path}; forms: {', '.join(FORMS)}"
            raise DatasetError(message, path=text)
        form = FORMS[named.form]
        split, files = chosen_files(path, named.split, form.endings, f"{named.form}:{path}")
        whole = path.resolve()
        name = f"{whole.parent.name}-{split}" if split_of_folder(whole) else f"{whole.name}-{split}".rstrip("-")
    else:
        if not _exists(path) and (advice := _advice(named)):
            raise DatasetError(f"cannot be read: No such file or directory; {advice}", path=text)
        check_regular(path)
        if named.split:
            raise DatasetError(f"is a file, not a folder with splits; leave ':{named.split}' out", path=str(path))
        form = FORMS[named.form or _recognised(path)]
        if path.suffix not in form.endings:
            endings = ", ".join(form.endings)
            message = f"unknown kind of file '{path.suffix}'; the form {form.name} is read from {endings}"
            raise DatasetError(message, path=str(path))
        split, files = Stem.of(path).split or split_of_folder(path.parent), [path]
        name = f"{path.resolve().parent.name}-{path.stem}" if not Stem.of(path).rest else path.stem
    parts = [
        SourcePart(str(file), partial(read_records, file, form.columns, form.required), Stem.of(file).rest, split)
        for file in files
    ]
    return Source(name, str(path), form, parts, partial(_digest, files))


def full_source(text: str, folder: Path = Path()) -> str:
    """The same source with its file or folder by full path; as it is where there is none (the error comes later).

    ``folder`` is where relative paths begin.
    """
    try:
        named = _take_apart(text, folder)
    except ConfigurationError:
        return text
    path = _path(named.place, folder)
    if named.form == HUB or not _exists(path):
        return text
    return ":".join(part for part in (named.form, str(path.resolve()), named.split) if part)


def dev_source(text: str) -> str | None:
    """The source of the development split that belongs to a source of another split, for few-shot examples.

    None where the layout does not show one, and for a source that is a development split itself. A file of one subject
    leads to the development file of that subject.

    :raises ConfigurationError: the form is unknown; :raises DatasetError: a folder cannot be read.
    """
    named = _take_apart(text)
    path = _path(named.place)
    if named.form == HUB or not _exists(path):
        return None
    if path.is_dir():
        beside = development_folder(path, named.split, FORMS[named.form].endings) if named.form else None
        return ":".join(part for part in (named.form, str(beside[0]), beside[1]) if part) if beside else None
    file = development_file(path)
    return ":".join(part for part in (named.form, str(file)) if part) if file else None


def _take_apart(text: str, folder: Path = Path()) -> _Named:
    form, colon, rest = text.partition(":")
    if not colon or _exists(_path(text, folder)):
        return _Named("", text, "")
    if form not in FORMS and form != HUB:
        before, _, split = text.rpartition(":")
        if _exists(_path(before, folder)):
            message = f"dataset '{text}': a split needs a form before it, as in mmlu:{before}:{split}"
        else:
            message = f"dataset '{text}': unknown form '{form}'; known: {', '.join([*FORMS, HUB])}"
        raise ConfigurationError(message)
    place, colon, split = rest.rpartition(":")
    if not colon or not _SPLIT.fullmatch(split) or (form != HUB and _exists(_path(rest, folder))):
        place, split = rest, ""
    if not place:
        raise ConfigurationError(f"dataset '{text}': names no file or folder after '{form}:'")
    return _Named(form, place, split)


def _advice(named: _Named) -> str:
    """What to write instead of a name that looks like a benchmark's and leads to no file; empty where it does not."""
    forms = f"forms: {', '.join([*FORMS, HUB])}"
    place = named.place
    form = named.form or (HUB if place == HUB else _benchmark(place))
    if "." in place or Path(place).is_absolute() or len(parts := Path(place).parts) > 2:
        return ""
    if len(parts) == 2:
        if named.form:
            return ""
        return f"a dataset of the hub is named {HUB}:{place} (with /config and :split where it has several); {forms}"
    if not form:
        return f"name a file, a folder with its form (form:FOLDER:split), or hf:owner/name:split; {forms}"
    if form == HUB:
        return f"'{HUB}' stands before a dataset of the hub, as in {HUB}:{_ON_THE_HUB['arc']}; {forms}"
    hub = f", or the hub's: {HUB}:{_ON_THE_HUB[form]}" if form in _ON_THE_HUB else ""
    return f"'{form}' is a form and names no data: write {form}:FILE or {form}:FOLDER:split{hub}; {forms}"


def _benchmark(name: str) -> str:
    """The form of the benchmark that a name seems to be of (ARC-Challenge, ai2_arc, C-Eval); empty where of none."""
    letters = "".join(filter(str.isalpha, name.casefold())).removeprefix("ai")
    return next((form for form in FORMS if letters.startswith(form)), "")


def _path(text: str, folder: Path = Path()) -> Path:
    # The shell expands ~ only at the beginning of a word, not behind a form.
    return Path(text).expanduser() if text.startswith("~/") else folder / text


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long to be a path at all, or holds a NUL
        return False


def _recognised(path: Path) -> str:
    try:
        if path.suffix in TABLE_ENDINGS:
            for _, row in table_rows(path):
                if isinstance(row, list):
                    return recognise_table(row)
        else:
            for _, raw in read_records(path):
                if not isinstance(raw, DatasetError):
                    return recognise(raw)
    except DatasetError:
        pass  # said by the first pass, which also knows whether to go on
    return "generic"


def _digest(files: list[Path]) -> str:
    digests = []
    for file in files:
        try:
            with file.open("rb") as content:
                digests.append((file.name, hashlib.file_digest(content, "sha256").hexdigest()))
        except OSError as error:
            raise DatasetError(f"cannot be read: {error.strerror}", path=str(file)) from None
    if len(digests) == 1:
        return digests[0][1][:16]
    return hashlib.sha256(repr(digests).encode()).hexdigest()[:16]
