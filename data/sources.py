"""How a dataset is named in one line of text, and what that name leads to.

``FILE`` · ``form:FILE`` · ``form:FOLDER`` · ``form:FOLDER:split`` · ``benchmark[/subject][:split]`` ·
``benchmark[/subject]:FILE`` · ``benchmark[/subject]:FOLDER[:split]`` · ``hf:owner/name[/config][:split]``

A source is a form and the parts it is read from, one per file.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from viva.engine.errors import ConfigurationError, DatasetError
from viva.engine.permissions import permissions

from .benchmark import (
    Benchmark,
    FileStem,
    benchmark_at_hub,
    benchmark_names,
    canonical_split,
    development_file,
    development_folder,
    files_of_split,
    load_benchmark,
    similar_names,
    split_of_folder,
)
from .forms import FORMS, Form, detect_form, detect_table_form, form_by_name
from .hub import HubDataset
from .items import Item
from .record_files import TABLE_SUFFIXES, Record, read_records, require_regular_file, table_rows

HUB = "hf"
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
    """A dataset that has been found. ``path`` stands for the whole in errors; ``digest()`` identifies the content.

    ``published``: the benchmark that it was named as; of it, only items of ``subject`` are meant where one is named.
    """

    name: str
    path: str
    form: Form
    parts: list[SourcePart]
    digest: Callable[[], str]
    published: Benchmark | None = None
    subject: str = ""
    revision: str = ""

    def takes(self, item: Item) -> bool:
        """Whether the item is of the subject that is meant."""
        return not self.subject or _plain(item.subject) == _plain(self.subject)


@dataclass(frozen=True, slots=True)
class _ParsedSource:
    """A source's text taken apart; ``form``, ``subject`` and ``split`` are empty where it has none. Without a place, a
    benchmark is meant as the hub has it.
    """

    form: str
    place: str
    split: str
    subject: str = ""


def open_source(text: str) -> Source:
    """Find the files, or load the dataset of the hub, that ``text`` names.

    :raises ConfigurationError: the form is unknown, or an optional package is missing.
    :raises DatasetError: file, folder or split is not there, or the form's first record cannot be read.
    """
    named = _parse_source(text)
    if named.form == HUB:
        return _open_hub_dataset(named)
    if not named.place:
        return _open_published(named)
    path = _path(named.place)
    if _exists(path) and path.is_dir():
        if not named.form:
            form_of = next(iter(similar_names(path.resolve().name)), "mmlu")
            message = f"is a folder: name its form, as in {form_of}:{path}; {_list_known()}"
            raise DatasetError(message, path=text)
        form = form_by_name(named.form)
        split, files = files_of_split(path, named.split, form.endings, f"{named.form}:{path}")
        whole = path.resolve()
        name = f"{whole.parent.name}-{split}" if split_of_folder(whole) else f"{whole.name}-{split}".rstrip("-")
    else:
        if not _exists(path) and (advice := _suggest_source(named)):
            raise DatasetError(f"cannot be read: No such file or directory; {advice}", path=text)
        require_regular_file(path)
        if named.split:
            raise DatasetError(f"is a file, not a folder with splits; leave ':{named.split}' out", path=str(path))
        form = form_by_name(named.form or _detect_file_form(path))
        if path.suffix not in form.endings:
            endings = ", ".join(form.endings)
            message = f"unknown kind of file '{path.suffix}'; the form {form.name} is read from {endings}"
            raise DatasetError(message, path=str(path))
        split, files = FileStem.of(path).split or split_of_folder(path.parent), [path]
        name = f"{path.resolve().parent.name}-{path.stem}" if not FileStem.of(path).rest else path.stem
    published = load_benchmark(named.form) if named.form in benchmark_names() else None
    subject = published.subject(named.subject) if published is not None and named.subject else ""
    if subject:
        files = [file for file in files if _plain(FileStem.of(file).rest) == _plain(subject)] or files
        name = f"{name}-{subject}"
    parts = [
        SourcePart(str(file), partial(read_records, file, form.columns, form.required), FileStem.of(file).rest, split)
        for file in files
    ]
    return Source(name, str(path), form, parts, partial(_digest, files), published, subject)


def absolute_source(text: str, folder: Path = Path()) -> str:
    """The same source with its file or folder by full path; as it is where there is none (the error comes later).

    ``folder`` is where relative paths begin.
    """
    try:
        named = _parse_source(text, folder)
    except ConfigurationError:
        return text
    path = _path(named.place, folder)
    if named.form == HUB or not named.place or not _exists(path):
        return text
    return ":".join(part for part in (_form_and_subject(named), str(path.resolve()), named.split) if part)


def development_source(text: str) -> str | None:
    """The source of the development split that belongs to a source of another split, for few-shot examples.

    None where the layout does not show one, and for a source that is a development split itself. A file of one subject
    leads to the development file of that subject; a benchmark of the hub to the split that its data file names.

    :raises ConfigurationError: the form is unknown; :raises DatasetError: a folder cannot be read.
    """
    named = _parse_source(text)
    if named.form != HUB and not named.place:
        of = load_benchmark(named.form)
        split = of.split(named.split or of.evaluated)
        return f"{_form_and_subject(named)}:{of.examples}" if of.examples not in (None, split) else None
    path = _path(named.place)
    if named.form == HUB or not _exists(path):
        return None
    before = _form_and_subject(named)
    if path.is_dir():
        if not named.form:
            return None
        beside = development_folder(path, named.split, form_by_name(named.form).endings)
        return ":".join(part for part in (before, str(beside[0]), beside[1]) if part) if beside else None
    file = development_file(path)
    return ":".join(part for part in (before, str(file)) if part) if file else None


def hub_name(text: str) -> str | None:
    """The name by which manifests and tables know a dataset of the hub, which is not loaded for it; None where the
    source is a file or folder.

    :raises ConfigurationError: the form is unknown.
    """
    named = _parse_source(text)
    if named.form == HUB:
        return (
            "-".join(part for part in (*named.place.split("/")[1:], canonical_split(named.split)) if part)
            or named.place
        )
    return None if named.place else _published_name(named)


def _published_name(named: _ParsedSource) -> str:
    of = load_benchmark(named.form)
    subject = of.subject(named.subject) if named.subject else ""
    return "-".join(part for part in (of.name, subject, canonical_split(named.split or of.evaluated)) if part)


def _open_published(named: _ParsedSource) -> Source:
    """A benchmark as it stands on the hub."""
    of = load_benchmark(named.form)
    subject = of.subject(named.subject) if named.subject else ""
    split = of.split(named.split or of.evaluated)
    if of.hub.by_subject and subject:
        configs: list[str | None] = [subject]
    elif of.hub.by_subject and of.hub.config is None:
        configs = list(of.subjects)
    else:
        configs = [of.hub.config]
    loaded = [
        HubDataset("/".join(filter(None, (of.hub.id, config))), split, of.hub.revision, of.name, asks=not place)
        for place, config in enumerate(configs)
    ]
    parts = [
        SourcePart(one.text, one.records, config or "", one.split) for one, config in zip(loaded, configs, strict=True)
    ]
    return Source(
        _published_name(named),
        loaded[0].text,
        form_by_name(of.name),
        parts,
        partial(_joined_digest, loaded),
        of,
        subject,
        of.hub.revision,
    )


def _open_hub_dataset(named: _ParsedSource) -> Source:
    permissions().check_network(f"dataset {HUB}:{named.place}")  # it is asked with the operator's token
    hub = HubDataset(named.place, named.split)
    published = benchmark_at_hub(named.place)
    part = SourcePart(hub.text, hub.records, hub.config, hub.split)
    form = form_by_name(published.name if published is not None else hub.form())
    return Source(hub.name, hub.text, form, [part], hub.digest, published)


def _parse_source(text: str, folder: Path = Path()) -> _ParsedSource:
    head, colon, rest = text.partition(":")
    form, slash, subject = head.partition("/")
    if _exists(_path(text, folder)):
        return _ParsedSource("", text, "")
    if not colon:
        return _ParsedSource(form, "", "", subject) if form in benchmark_names() else _ParsedSource("", text, "")
    if slash and form not in benchmark_names():
        form = head
    if form not in FORMS and form not in benchmark_names() and form != HUB:
        before, _, split = text.rpartition(":")
        if _exists(_path(before, folder)):
            message = f"dataset '{text}': a split needs a form before it, as in mmlu:{before}:{split}"
        else:
            message = f"dataset '{text}': unknown form '{form}'; {_suggest(form, FORMS)}{_list_known()}"
        raise ConfigurationError(message)
    if form in benchmark_names() and not _exists(_path(rest, folder)) and load_benchmark(form).split(rest):
        return _ParsedSource(form, "", rest, subject)
    place, colon, split = rest.rpartition(":")
    if not colon or not _SPLIT.fullmatch(split) or (form != HUB and _exists(_path(rest, folder))):
        place, split = rest, ""
    if not place:
        raise ConfigurationError(f"dataset '{text}': names no file or folder after '{head}:'")
    return _ParsedSource(form, place, split, subject)


def _form_and_subject(named: _ParsedSource) -> str:
    return f"{named.form}/{named.subject}" if named.subject else named.form


def _suggest_source(named: _ParsedSource) -> str:
    """What to write instead of a name that looks like a benchmark's and leads to no file; empty where it does not."""
    place, form = named.place, named.form or (named.place if named.place in (HUB, *FORMS) else "")
    if "." in place or Path(place).is_absolute() or len(parts := Path(place).parts) > 2:
        return ""
    if named.form in benchmark_names():
        splits = ", ".join(load_benchmark(named.form).splits)
        return f"the splits of {named.form} on the hub: {splits}" if len(parts) == 1 else ""
    if len(parts) == 2:
        if named.form:
            return ""
        return (
            f"a dataset of the hub is named {HUB}:{place} (with /config and :split where it has several); "
            f"{_list_known()}"
        )
    if form == HUB:
        return (
            f"'{HUB}' stands before a dataset of the hub, as in {HUB}:allenai/ai2_arc/ARC-Challenge:test; "
            f"{_list_known()}"
        )
    if form:
        return (
            f"'{form}' is a form and names no data: write {form}:FILE or {form}:FOLDER:split; "
            f"{_suggest(form)}{_list_known()}"
        )
    return (
        f"{_suggest(place)}name a benchmark, a file, a folder with its form (form:FOLDER:split), or "
        f"{HUB}:owner/name:split; {_list_known()}"
    )


def _suggest(name: str, others: Iterable[str] = ()) -> str:
    found = similar_names(name, others)
    return f"did you mean {' or '.join(found)}? " if found else ""


def _list_known() -> str:
    return f"forms: {', '.join([*FORMS, HUB])}; benchmarks (viva list datasets): {', '.join(benchmark_names())}"


def _plain(name: str) -> str:
    return "_".join(name.casefold().replace("_", " ").split())


def _path(text: str, folder: Path = Path()) -> Path:
    # The shell expands ~ only at the beginning of a word, not behind a form.
    return Path(text).expanduser() if text.startswith("~/") else folder / text


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long to be a path at all, or holds a NUL
        return False


def _detect_file_form(path: Path) -> str:
    try:
        if path.suffix in TABLE_SUFFIXES:
            for _, row in table_rows(path):
                if isinstance(row, list):
                    return detect_table_form(row)
        else:
            for _, raw in read_records(path):
                if not isinstance(raw, DatasetError):
                    return detect_form(raw)
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


def _joined_digest(parts: Sequence[HubDataset]) -> str:
    digests = [part.digest() for part in parts]
    return digests[0] if len(digests) == 1 else hashlib.sha256(repr(digests).encode()).hexdigest()[:16]
