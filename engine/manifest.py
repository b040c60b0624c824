"""The manifest of a run, typed: what the engine itself knows of it, and how it is read from its file.

What never belongs here: what scenarios add to it (``orchestration.manifests``), and writing it (``folder``).
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from .errors import ConfigurationError
from .formats import other_version

MANIFEST_VERSION = 1
_MOST_BYTES = 256 << 20  # a manifest holds a prompt pack's text; no pack comes near this
_SHOWN = 60  # characters of a wrong value that a message repeats
_NAMED = 6  # folders that a message names

M = TypeVar("M", bound=BaseModel)


class RunManifest(BaseModel):
    """What a manifest says to the engine; fields of scenarios stand beside these. ``journal`` names the file that was
    made together with the manifest (None in manifests of earlier versions).
    """

    model_config = ConfigDict(strict=True, extra="allow", defer_build=True)

    manifest: Literal[1]
    journal: Literal["journal.sqlite"] | None = None
    scenario: str | None = None
    seed: int | None = None
    tier: Literal["A", "C"] | None = None
    not_identical: list[str] = []
    files: dict[str, str] = {}
    versions: dict[str, str] = {}
    settings: dict[str, Any] = {}


def read_manifest(file: Path, what: str) -> Any:
    """The JSON in a file that makes its folder ``what`` it is.

    :raises ConfigurationError: there is none, or it cannot be read.
    """
    try:
        return orjson.loads(_bytes(file))
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigurationError(f"{file.parent}: {_not_there(file, what)}") from None
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be read: {error.strerror or error}") from None
    except orjson.JSONDecodeError as error:
        raise ConfigurationError(f"{file}: cannot be read: {error}; restore it from a copy") from None


def _not_there(file: Path, what: str) -> str:
    """Why a folder without the file is not what it should be, with the folders below it that have such a file."""
    folder = file.parent
    if not os.path.lexists(folder):
        return f"not {what}: there is no such folder"
    below = [one.parent for pattern in ("*", "*/*") for one in sorted(folder.glob(f"{pattern}/{file.name}"))]
    named = ", ".join(map(str, below[:_NAMED])) + (", …" if len(below) > _NAMED else "")
    return f"not {what} (it has no {file.name})" + (f"; below it are {named}" if below else "")


def checked(model: type[M], data: Any, file: Path) -> M:
    """A manifest's data as its model.

    :raises ConfigurationError: a field is missing or wrong; the message names the file, the first such field, and what
        was found there.
    """
    if not isinstance(data, dict):
        raise ConfigurationError(f"{file}: expected a JSON object, found {_shown(data)}; restore it from a copy")
    version = data.get("manifest")
    if type(version) is int and version > MANIFEST_VERSION:
        raise ConfigurationError(f"{file}: {other_version('manifest', version, [MANIFEST_VERSION])}")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise wrong_field(file, error) from None


def wrong_field(file: Path, error: ValidationError, inside: str = "") -> ConfigurationError:
    """The error for the first of the fields that a model refused; ``inside`` is the field that holds them all."""
    first, *others = error.errors(include_url=False, include_context=False)
    field = ".".join(filter(None, (inside, *map(str, first["loc"]))))
    found = "missing" if first["type"] == "missing" else f"{first['msg']}, found {_shown(first['input'])}"
    more = f" (and {len(others)} more)" if others else ""
    return ConfigurationError(f"{file}: field '{field[:200]}': {found}{more}; restore the file from a copy")


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    text = repr(value[: 2 * _SHOWN] if isinstance(value, str) else value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _bytes(file: Path) -> bytes:
    """What a regular file holds. A FIFO or device is refused, and not waited for.

    :raises OSError: it is none, too large, or cannot be read.
    """
    opened = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(opened, "rb") as stream:
        found = os.fstat(opened)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if found.st_size > _MOST_BYTES:
            raise OSError(errno.EFBIG, f"{found.st_size:,} bytes, more than a manifest has")
        return stream.read()
