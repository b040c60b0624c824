"""Files of exports and imports, written under a temporary name and renamed once complete."""

from __future__ import annotations

import glob
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson

from viva.engine.errors import ConfigurationError
from viva.engine.imports import import_under_lock
from viva.engine.json_data import to_utf8_data


@dataclass(slots=True)
class TransferResult:
    """Result of an export or import.

    `files` are the files or the run folder that were created, `records` counts their conversations, dialogs, lines or
    samples, `notes` are sentences for the user. `run` is True for a run folder.
    """

    files: list[Path] = field(default_factory=list)
    records: int = 0
    notes: list[str] = field(default_factory=list)
    run: bool = False


# Characters that Python's `splitlines`, and therefore many readers, treat as line ends.
_LINE_ENDS = {letter.encode(): b"\\u%04x" % ord(letter) for letter in ("\x85", "\u2028", "\u2029")}
_UNSAFE_CHARACTERS = re.compile(r"[^\w.+=-]+")


@contextmanager
def json_lines(path: Path) -> Iterator[Callable[[Any], None]]:
    """Open a JSON Lines file for writing, as a function that writes one record."""
    with atomic_file(path) as part:
        try:
            with part.open("wb") as file:
                yield lambda record: _write_line(file.write, record)
        except OSError as error:
            raise _write_error(path, error) from None


def _write_line(write: Callable[[bytes], Any], record: Any) -> None:
    line = to_json(record)
    for character, escaped in _LINE_ENDS.items():
        if character in line:
            line = line.replace(character, escaped)
    write(line + b"\n")


def write_json(path: Path, record: Any) -> None:
    """Write an indented JSON file."""
    with atomic_file(path) as part:
        try:
            part.write_bytes(to_json(record, orjson.OPT_INDENT_2) + b"\n")
        except OSError as error:
            raise _write_error(path, error) from None


def to_json(record: Any, option: int = 0) -> bytes:
    """Return plain data as JSON; a lone surrogate, which models may send, becomes `?`."""
    try:
        return orjson.dumps(record, option=option)
    except TypeError:
        return orjson.dumps(to_utf8_data(record), option=option)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Create the folder of a file, then yield a temporary path as `atomic_path` does."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _write_error(path, error) from None
    with atomic_path(path) as part:
        yield part


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it to `path` if the block succeeds, else delete it.

    Leftovers of killed processes are deleted first.

    Raises:
        ConfigurationError: The path cannot be written.
    """
    for leftover in path.parent.glob(f".{glob.escape(path.stem)}.*.part{glob.escape(path.suffix)}"):
        process = leftover.name.removesuffix(path.suffix).split(".")[-2]
        if process.isdecimal() and not _is_alive(int(process)):
            _remove(leftover)
    part = path.with_name(f".{path.stem}.{os.getpid()}.part{path.suffix}")  # some writers need the suffix
    try:
        _remove(part)
        yield part
        part.replace(path)
    except OSError as error:
        raise _write_error(path, error) from None
    finally:
        _remove(part)


def final_path(part: Path) -> Path:
    """Return the path to which `atomic_path` of this process renames a temporary path."""
    stem, _, suffix = part.name.rpartition(f".{os.getpid()}.part")
    return part.with_name(stem.removeprefix(".") + suffix)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # the process belongs to another user
        return True
    return process != os.getpid()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _write_error(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(f"{path}: cannot be written: {error.strerror or error}; choose another path with --out")


def safe_name(name: str) -> str:
    """Return a name that is safe as one path component."""
    return _UNSAFE_CHARACTERS.sub("_", name).strip("._") or "unnamed"


def import_extra(module: str, extra: str, purpose: str) -> Any:
    """Import a module of an optional dependency; `purpose` says in errors what needs it."""
    try:
        return import_under_lock(module)
    except ImportError:
        package = module.partition(".")[0]
        message = f"{purpose} needs the package {package}; install it with: pip install 'viva-exam[{extra}]'"
        raise ConfigurationError(message) from None


def viva_version() -> str:
    return version("viva-exam")
