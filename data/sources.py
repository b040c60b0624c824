"""Names of datasets in one line of text, and how they are resolved.

`FILE` · `form:FILE` · `form:FOLDER` · `form:FOLDER:split` · `benchmark[/subject][:split]` · `benchmark[/subject]:FILE`
· `benchmark[/subject]:FOLDER[:split]` · `hf:owner/name[/config][:split]`

A source is a form and the parts it is read from: files, or configurations of a dataset of the hub.
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
    """A file or hub configuration: its path for errors, its reader, and the subject and split that its name says."""

    path: str
    read: Callable[[], Iterator[Record]]
    subject: str
    split: str


@dataclass(frozen=True, slots=True)
class Source:
    """A resolved dataset. `path` names the dataset in errors; `digest()` identifies the content.

    `published` is the benchmark that was named; if `subject` is set, the source has only items of that subject.
    """

    name: str
    path: str
    form: Form
    parts: list[SourcePart]
    digest: Callable[[], str]
    published: Benchmark | None = None
    subject: str = ""
    revision: str = ""

    def accepts(self, item: Item) -> bool:
        """Return True if the item belongs to the selected subject, or if no subject is selected."""
        return not self.subject or _plain(item.subject) == _plain(self.subject)


@dataclass(frozen=True, slots=True)
class _ParsedSource:
    """Components of a source's text; `form`, `subject` and `split` are empty if missing.

    A text without a path names a benchmark on the hub.
    """

    form: str
    path: str
    split: str
    subject: str = ""


def _shipped_file(path: Path) -> Path | None:
    """Return the file of this package at a relative path that exists only in a checkout of viva; else None."""
    if _exists(path) or path.is_absolute() or ".." in path.parts or permissions().client is not None:
        return None
    shipped = Path(__file__).resolve().parents[1] / path
    return shipped if shipped.is_file() else None


def open_source(text: str) -> Source:
    """Find the files, or load the dataset of the hub, that `text` names.

    Raises:
        ConfigurationError: The form is unknown, or an optional package is missing.
        DatasetError: There is no such file, folder or split, a folder is named without its form, a split is named for
            a file, or the form is not read from files with this ending.
    """
    parsed = _parse_source(text)
    if parsed.form == HUB:
        return _open_hub_dataset(parsed)
    if not parsed.path:
        return _open_published(parsed)
    path = _to_path(parsed.path)
    if _exists(path) and path.is_dir():
        if not parsed.form:
            form_of = next(iter(similar_names(path.resolve().name)), "mmlu")
            message = f"is a folder: name its form, as in {form_of}:{path}; {_list_known()}"
            raise DatasetError(message, path=text)
        form = form_by_name(parsed.form)
        split, files = files_of_split(path, parsed.split, form.endings, f"{parsed.form}:{path}")
        resolved = path.resolve()
        name = (
            f"{resolved.parent.name}-{split}" if split_of_folder(resolved) else f"{resolved.name}-{split}".rstrip("-")
        )
    else:
        if (shipped := _shipped_file(path)) is not None:
            raise DatasetError(f"cannot be read: No such file or directory; viva comes with {shipped}", path=text)
        if not _exists(path) and not permissions().similar_name(path) and (advice := _suggest_source(parsed)):
            raise DatasetError(f"cannot be read: No such file or directory; {advice}", path=text)
        require_regular_file(path)
        if parsed.split:
            raise DatasetError(f"is a file, not a folder with splits; omit ':{parsed.split}'", path=str(path))
        form = form_by_name(parsed.form or _detect_file_form(path))
        if path.suffix not in form.endings:
            endings = ", ".join(form.endings)
            message = f"unknown kind of file '{path.suffix}'; the form {form.name} is read from {endings}"
            raise DatasetError(message, path=str(path))
        split, files = FileStem.from_path(path).split or split_of_folder(path.parent), [path]
        name = f"{path.resolve().parent.name}-{path.stem}" if not FileStem.from_path(path).name else path.stem
    published = load_benchmark(parsed.form) if parsed.form in benchmark_names() else None
    subject = published.subject(parsed.subject) if published is not None and parsed.subject else ""
    if subject:
        files = [file for file in files if _plain(FileStem.from_path(file).name) == _plain(subject)] or files
        name = f"{name}-{subject}"
    parts = [
        SourcePart(
            str(file), partial(read_records, file, form.columns, form.required), FileStem.from_path(file).name, split
        )
        for file in files
    ]
    return Source(name, str(path), form, parts, partial(_digest, files), published, subject)


def absolute_source(text: str, folder: Path = Path()) -> str:
    """Return the same source with an absolute path; unchanged if there is no such file (the error comes later).

    `folder` is the base of relative paths.
    """
    try:
        parsed = _parse_source(text, folder)
    except ConfigurationError:
        return text
    path = _to_path(parsed.path, folder)
    if parsed.form == HUB or not parsed.path or not _exists(path):
        return text
    return ":".join(part for part in (_form_and_subject(parsed), str(path.resolve()), parsed.split) if part)


def development_source(text: str) -> str | None:
    """Return the source of the development split for a source of another split, for few-shot examples.

    The result is None if the layout has no development split, or the source is one itself. For a file of one subject it
    is the development file of that subject, for a benchmark of the hub the split named in its data file.

    Raises:
        ConfigurationError: The form is unknown.
        DatasetError: A folder cannot be read.
    """
    parsed = _parse_source(text)
    if parsed.form != HUB and not parsed.path:
        benchmark = load_benchmark(parsed.form)
        split = benchmark.split(parsed.split or benchmark.evaluated)
        return f"{_form_and_subject(parsed)}:{benchmark.examples}" if benchmark.examples not in (None, split) else None
    path = _to_path(parsed.path)
    if parsed.form == HUB or not _exists(path):
        return None
    prefix = _form_and_subject(parsed)
    if path.is_dir():
        if not parsed.form:
            return None
        sibling = development_folder(path, parsed.split, form_by_name(parsed.form).endings)
        return ":".join(part for part in (prefix, str(sibling[0]), sibling[1]) if part) if sibling else None
    file = development_file(path)
    return ":".join(part for part in (prefix, str(file)) if part) if file else None


def hub_name(text: str) -> str | None:
    """Return the name of a hub dataset in manifests and tables, without loading it; None for a file or folder.

    Raises:
        ConfigurationError: The form is unknown.
    """
    parsed = _parse_source(text)
    if parsed.form == HUB:
        return (
            "-".join(part for part in (*parsed.path.split("/")[1:], canonical_split(parsed.split)) if part)
            or parsed.path
        )
    return None if parsed.path else _published_name(parsed)


def _published_name(parsed: _ParsedSource) -> str:
    benchmark = load_benchmark(parsed.form)
    subject = benchmark.subject(parsed.subject) if parsed.subject else ""
    return "-".join(
        part for part in (benchmark.name, subject, canonical_split(parsed.split or benchmark.evaluated)) if part
    )


def _open_published(parsed: _ParsedSource) -> Source:
    """Open a benchmark as published on the hub."""
    benchmark = load_benchmark(parsed.form)
    subject = benchmark.subject(parsed.subject) if parsed.subject else ""
    split = benchmark.split(parsed.split or benchmark.evaluated)
    if benchmark.hub.by_subject and subject:
        configs: list[str | None] = [subject]
    elif benchmark.hub.by_subject and benchmark.hub.config is None:
        configs = list(benchmark.subjects)
    else:
        configs = [benchmark.hub.config]
    datasets = [
        HubDataset(
            "/".join(filter(None, (benchmark.hub.id, config))),
            split,
            benchmark.hub.revision,
            benchmark.name,
            check_hub=not index,
        )
        for index, config in enumerate(configs)
    ]
    parts = [
        SourcePart(dataset.text, dataset.records, config or "", dataset.split)
        for dataset, config in zip(datasets, configs, strict=True)
    ]
    return Source(
        _published_name(parsed),
        datasets[0].text,
        form_by_name(benchmark.name),
        parts,
        partial(_join_digests, datasets),
        benchmark,
        subject,
        benchmark.hub.revision,
    )


def _open_hub_dataset(parsed: _ParsedSource) -> Source:
    permissions().check_network(f"dataset {HUB}:{parsed.path}")  # uses the operator's token
    hub = HubDataset(parsed.path, parsed.split)
    published = benchmark_at_hub(parsed.path)
    part = SourcePart(hub.text, hub.records, hub.config, hub.split)
    form = form_by_name(published.name if published is not None else hub.form())
    return Source(hub.name, hub.text, form, [part], hub.digest, published)


def _parse_source(text: str, folder: Path = Path()) -> _ParsedSource:
    head, colon, location = text.partition(":")
    form, slash, subject = head.partition("/")
    if _exists(_to_path(text, folder)):
        return _ParsedSource("", text, "")
    if not colon:
        return _ParsedSource(form, "", "", subject) if form in benchmark_names() else _ParsedSource("", text, "")
    if slash and form not in benchmark_names():
        form = head
    if form not in FORMS and form not in benchmark_names() and form != HUB:
        prefix, _, split = text.rpartition(":")
        if _exists(_to_path(prefix, folder)):
            message = f"dataset '{text}': a split needs a form before it, as in mmlu:{prefix}:{split}"
        else:
            message = f"dataset '{text}': unknown form '{form}'; {_suggest(form, FORMS)}{_list_known()}"
        raise ConfigurationError(message)
    if form in benchmark_names() and not _exists(_to_path(location, folder)) and load_benchmark(form).split(location):
        return _ParsedSource(form, "", location, subject)
    path, colon, split = location.rpartition(":")
    if not colon or not _SPLIT.fullmatch(split) or (form != HUB and _exists(_to_path(location, folder))):
        path, split = location, ""
    if not path:
        raise ConfigurationError(f"dataset '{text}': names no file or folder after '{head}:'")
    return _ParsedSource(form, path, split, subject)


def _form_and_subject(parsed: _ParsedSource) -> str:
    return f"{parsed.form}/{parsed.subject}" if parsed.subject else parsed.form


def _suggest_source(parsed: _ParsedSource) -> str:
    """Return what to write instead of a name that looks like a benchmark's and leads to no file, or ""."""
    path, form = parsed.path, parsed.form or (parsed.path if parsed.path in (HUB, *FORMS) else "")
    if "." in path or Path(path).is_absolute() or len(parts := Path(path).parts) > 2:
        return ""
    if parsed.form in benchmark_names():
        splits = ", ".join(load_benchmark(parsed.form).splits)
        return f"the splits of {parsed.form} on the hub: {splits}" if len(parts) == 1 else ""
    if len(parts) == 2:
        if parsed.form:
            return ""
        return (
            f"write a dataset of the hub as {HUB}:{path} (with /config and :split if it has several); {_list_known()}"
        )
    if form == HUB:
        return f"'{HUB}' precedes a dataset of the hub, as in {HUB}:allenai/ai2_arc/ARC-Challenge:test; {_list_known()}"
    if form:
        return (
            f"'{form}' is a form, not a dataset: write {form}:FILE or {form}:FOLDER:split; "
            f"{_suggest(form)}{_list_known()}"
        )
    return (
        f"{_suggest(path)}name a benchmark, a file, a folder with its form (form:FOLDER:split), or "
        f"{HUB}:owner/name:split; {_list_known()}"
    )


def _suggest(name: str, more: Iterable[str] = ()) -> str:
    names = similar_names(name, more)
    return "did you mean " + " or ".join(f"'{near}'" for near in names) + "? " if names else ""


def _list_known() -> str:
    return f"forms: {', '.join([*FORMS, HUB])}; benchmarks (viva list datasets): {', '.join(benchmark_names())}"


def _plain(name: str) -> str:
    return "_".join(name.casefold().replace("_", " ").split())


def _to_path(text: str, folder: Path = Path()) -> Path:
    # The shell expands ~ only at the beginning of a word, not after a form.
    return Path(text).expanduser() if text.startswith("~/") else folder / text


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long for a path, or contains a NUL
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
        pass  # reported by the first pass
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


def _join_digests(parts: Sequence[HubDataset]) -> str:
    digests = [part.digest() for part in parts]
    return digests[0] if len(digests) == 1 else hashlib.sha256(repr(digests).encode()).hexdigest()[:16]
