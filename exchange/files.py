"""Files of exports and imports: written under another name and moved to their own only when they are whole."""

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
    """What an export or import has made: its ``files`` or run folder, how many ``records`` (conversations, dialogs,
    lines or samples) they hold, and ``notes``, a sentence each. ``run``: it is a run folder.
    """

    files: list[Path] = field(default_factory=list)
    records: int = 0
    notes: list[str] = field(default_factory=list)
    run: bool = False


# What Python's ``splitlines``, and so many a reader, takes for the end of a line.
_LINE_ENDS = {letter.encode(): b"\\u%04x" % ord(letter) for letter in ("\x85", "\u2028", "\u2029")}
_UNSAFE_CHARACTERS = re.compile(r"[^\w.+=-]+")


@contextmanager
def json_lines(path: Path) -> Iterator[Callable[[Any], None]]:
    """A file of JSON lines, as a function that writes one."""
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
    """One JSON file, indented."""
    with atomic_file(path) as part:
        try:
            part.write_bytes(to_json(record, orjson.OPT_INDENT_2) + b"\n")
        except OSError as error:
            raise _write_error(path, error) from None


def to_json(record: Any, option: int = 0) -> bytes:
    """JSON of plain data; halves of surrogate pairs, which models may send, are written as ``?``."""
    try:
        return orjson.dumps(record, option=option)
    except TypeError:
        return orjson.dumps(to_utf8_data(record), option=option)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """As ``atomic_path``, of a file whose folder is made."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _write_error(path, error) from None
    with atomic_path(path) as part:
        yield part


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A place beside a file or folder to write it to; moved there when the block ends well, else taken away. What a
    killed process has left of the same name is taken away first.

    :raises ConfigurationError: it cannot be put there.
    """
    for leftover in path.parent.glob(f".{glob.escape(path.stem)}.*.part{glob.escape(path.suffix)}"):
        process = leftover.name.removesuffix(path.suffix).split(".")[-2]
        if process.isdecimal() and not _is_alive(int(process)):
            _remove(leftover)
    part = path.with_name(f".{path.stem}.{os.getpid()}.part{path.suffix}")  # some writers go by the ending
    try:
        _remove(part)
        yield part
        part.replace(path)
    except OSError as error:
        raise _write_error(path, error) from None
    finally:
        _remove(part)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        return True
    return process != os.getpid()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _write_error(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(f"{path}: cannot be written: {error.strerror or error}; name another place with --out")


def safe_name(name: str) -> str:
    """A name as one part of a path."""
    return _UNSAFE_CHARACTERS.sub("_", name).strip("._") or "unnamed"


def import_extra(module: str, extra: str, purpose: str) -> Any:
    """A module of a package that an export needs."""
    try:
        return import_under_lock(module)
    except ImportError:
        package = module.partition(".")[0]
        message = f"{purpose} needs the package {package}; install it with: pip install 'viva-exam[{extra}]'"
        raise ConfigurationError(message) from None


def viva_version() -> str:
    return version("viva-exam")
