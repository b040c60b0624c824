"""A run's folder: `manifest.json` beside `journal.sqlite`, and the lock that keeps other writers out.

The manifest records what was run, in enough detail to run it again: versions, seed, models, hashes of prompt pack and
dataset, what is reproducible (`tier`), and the protocol's own options. It never contains a key or password. Results are
in the journal.
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import stat
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from .errors import ConfigurationError, JournalError
from .files import describe_version_problem, is_leftover, shell_path, write_atomically
from .journal import creation_advice, missing_journal_error, open_database, refuse_special_file
from .journal_reader import has_records, has_tables, is_unfinished
from .permissions import SEAL, grant_from_seal, permissions, seal_manifest

MANIFEST_VERSION = 1
_MAX_BYTES = 256 << 20  # a manifest contains a prompt pack's text, far smaller than this
_LONGEST_VALUE = 60  # characters of a wrong value in a message
_MAX_NAMED_FOLDERS = 6  # folders named in a message
_RECENT_SECONDS = 20.0
_LOCKS = Path("/proc/locks")

M = TypeVar("M", bound=BaseModel)


class RunManifest(BaseModel):
    """Fields of a manifest that the engine reads; scenarios add their own.

    `journal` names the file that was created together with the manifest (None in manifests of earlier versions).
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


def read_manifest(file: Path, kind: str) -> Any:
    """Return the JSON in the file that makes its folder a folder of this kind.

    Raises:
        ConfigurationError: There is no such file, or it cannot be read.
    """
    try:
        return orjson.loads(_read_regular_file(file))
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigurationError(f"{file.parent}: {_explain_missing_manifest(file, kind)}") from None
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be read: {error.strerror or error}") from None
    except orjson.JSONDecodeError as error:
        raise ConfigurationError(f"{file}: cannot be read: {error}; restore it from a copy") from None


def _explain_missing_manifest(file: Path, kind: str) -> str:
    """Explain why a folder is not of this kind, and list subfolders that are."""
    folder = file.parent
    if not os.path.lexists(folder):
        return f"not {kind}: no such folder{permissions().similar_name(folder)}"
    below = [entry.parent for pattern in ("*", "*/*") for entry in sorted(folder.glob(f"{pattern}/{file.name}"))]
    names = ", ".join(map(str, below[:_MAX_NAMED_FOLDERS])) + (", …" if len(below) > _MAX_NAMED_FOLDERS else "")
    return f"not {kind} (it has no {file.name})" + (f"; these subfolders have one: {names}" if below else "")


def validate_manifest(model: type[M], data: Any, file: Path) -> M:
    """Validate a manifest's data.

    Raises:
        ConfigurationError: A field is missing or wrong; the message names the file, the first such field, and its
            value.
    """
    if not isinstance(data, dict):
        raise ConfigurationError(f"{file}: expected a JSON object, found {_short_value(data)}; restore it from a copy")
    version = data.get("manifest")
    if type(version) is int and version > MANIFEST_VERSION:
        raise ConfigurationError(f"{file}: {describe_version_problem('manifest', version, [MANIFEST_VERSION])}")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise field_error(file, error) from None


def field_error(file: Path, error: ValidationError, inside: str = "") -> ConfigurationError:
    """Return the error for the first field that a model refused; `inside` is the field that contains them all."""
    first, *remaining = error.errors(include_url=False, include_context=False)
    field = ".".join(filter(None, (inside, *map(str, first["loc"]))))
    problem = "missing" if first["type"] == "missing" else f"{first['msg']}, found {_short_value(first['input'])}"
    suffix = f" (and {len(remaining)} more)" if remaining else ""
    return ConfigurationError(f"{file}: field '{field[:200]}': {problem}{suffix}; restore the file from a copy")


def _short_value(value: Any) -> str:
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    text = repr(value[: 2 * _LONGEST_VALUE] if isinstance(value, str) else value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


def _read_regular_file(file: Path) -> bytes:
    """Return a regular file's content; refuse a FIFO or device without waiting for it.

    Raises:
        OSError: It is not a regular file, too large, or cannot be read.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if status.st_size > _MAX_BYTES:
            raise OSError(errno.EFBIG, f"{status.st_size:,} bytes, too large for a manifest")
        return stream.read()


_JOURNAL = "journal.sqlite"
_JOURNAL_FILES = (_JOURNAL, f"{_JOURNAL}-wal", f"{_JOURNAL}-shm", f"{_JOURNAL}-journal")
# Files that a kill may leave before the run begins.
_LEFTOVERS = (
    "lock",
    "control.sock",
    "control.sock.part",
    "manifest.json.part",
    *_JOURNAL_FILES,
)  # and leftovers of `write_atomically`
# Circumstances of a run; runs that differ only here are the same experiment.
_CIRCUMSTANCES = ("versions", "added", "replaced", "flash_attention", "invariance", "manifest", "journal", SEAL)


def installed_versions() -> dict[str, str]:
    """Return the versions of viva, Python and the platform."""
    from importlib.metadata import version

    return {"viva": version("viva-exam"), "python": platform.python_version(), "platform": platform.platform()}


class RunFolder:
    """A run on disk. Create it with `create` or `open`; `lock` before writing."""

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        self.path = path
        self.manifest = manifest
        self._lock: int | None = None
        self._created: list[Path] = []  # files that this object created, and its folder

    @property
    def journal(self) -> Path:
        """The SQLite file with calls and results."""
        return self.path / _JOURNAL

    @classmethod
    def create(cls, path: Path, manifest: dict[str, Any], files: Mapping[str, bytes] | None = None) -> RunFolder:
        """Create the folder, an empty journal in it, and then the manifest.

        In this order, a manifest without a journal means that somebody removed the journal. `files`, by name, are
        added.

        Raises:
            ConfigurationError: The folder already contains a run; the message says if it is the same. Or a text in the
                manifest is not UTF-8.
            JournalError: The folder cannot be written.
        """
        folder = cls(path, seal_manifest({"manifest": MANIFEST_VERSION, "journal": _JOURNAL, **manifest}))
        data = _manifest_bytes(folder.manifest)
        try:
            _require_free_folder(path, manifest)
            if not path.exists():
                path.mkdir(parents=True)
                folder._created.append(path)
            folder._make_journal()
            for name, content in (files or {}).items():
                folder._created.append(path / name)
                write_atomically(path / name, content)
            folder._created.append(path / "manifest.json")
            write_atomically(path / "manifest.json", data)
        except (OSError, JournalError) as error:
            folder.remove()
            # The advice of a JournalError is for runs that have begun.
            cause = error.__cause__ if isinstance(error, JournalError) else None
            reason = f"{cause or error}{creation_advice(cause or error)}"
            raise JournalError(f"{path}: cannot make the run folder: {reason}") from error
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open an existing run.

        Raises:
            ConfigurationError: There is no run here, or its manifest cannot be read.
        """
        file = path / "manifest.json"
        permissions().check_file(path)
        manifest = read_manifest(file, "a run folder")
        validate_manifest(RunManifest, manifest, file)
        grant_from_seal(manifest)
        return cls(path, manifest)

    @property
    def begun(self) -> bool:
        """True if the journal has its tables, or had them: then reading it reports any damage."""
        return "journal" in self.manifest or has_tables(self.journal)

    def require_journal(self) -> None:
        """Check that the journal exists; create the journal if certainly nothing was ever written to it.

        Earlier versions wrote the manifest before the journal: a kill before the run took its lock left a folder with
        only the manifest, and a kill before the tables were created left a journal without tables.

        Raises:
            JournalError: The journal was removed or emptied.
        """
        if self.journal.exists():
            if not is_unfinished(self.journal):
                return
            if "journal" in self.manifest:
                raise JournalError(
                    f"{self.journal}: the journal of this run was emptied: restore it from a copy, or start the run "
                    "again in another folder"
                )
        elif "journal" in self.manifest or [entry.name for entry in self.path.iterdir()] != ["manifest.json"]:
            raise missing_journal_error(self.journal)
        self._make_journal()

    def change_manifest(self, changes: Mapping[str, Any]) -> None:
        """Replace fields of the manifest.

        Raises:
            JournalError: The folder cannot be written.
        """
        manifest = seal_manifest({**self.manifest, **changes})
        try:
            write_atomically(self.path / "manifest.json", _manifest_bytes(manifest))
        except OSError as error:
            raise JournalError(f"{self.path / 'manifest.json'}: cannot be written: {error.strerror}") from None
        self.manifest = manifest

    def lock(self) -> None:
        """Keep other processes from writing this run until this one ends.

        Raises:
            ConfigurationError: Another process is running this run.
            JournalError: The folder cannot be written, or its lock is a link.
        """
        file = self.path / "lock"
        refuse_special_file(file)
        is_new = not file.exists()
        try:
            self._lock = os.open(file, os.O_CREAT | os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.unlock()
            raise ConfigurationError(
                f"{self.path}: another process is running this run; if it is paused: "
                f"`viva control {shell_path(self.path)} resume`"
            ) from None
        except OSError as error:
            self.unlock()
            raise JournalError(f"{file}: cannot lock the run folder: {error.strerror}; make it writable") from None
        if is_new:
            self._created.append(file)

    def sync(self) -> None:
        """Wait until the folder, its path and its files survive a power cut.

        Raises:
            JournalError: The disk reports an error.
        """
        path = self.path.resolve()
        for entry in (*(file for file in path.iterdir() if file.is_file()), path, *path.parents):
            try:
                descriptor = os.open(entry, os.O_RDONLY)
            except PermissionError:
                continue  # this user did not create it
            try:
                os.fsync(descriptor)
            except OSError as error:
                raise JournalError(f"{entry}: cannot be written to the disk: {error.strerror}") from None
            finally:
                os.close(descriptor)

    def remove(self) -> None:
        """Delete what this object created, unless something is recorded there by now.

        Nothing else is touched: neither a folder that was opened, nor files that somebody put beside ours.
        """
        if has_records(self.journal):
            return
        order = {self.path: 2, self.path / "manifest.json": 0}  # manifest before journal, folder last
        for path in sorted(self._created, key=lambda path: order.get(path, 1)):
            with suppress(OSError):
                path.rmdir() if path == self.path else path.unlink()
        self._created.clear()

    def _make_journal(self) -> None:
        self._created += [file for name in _JOURNAL_FILES if not (file := self.path / name).exists()]
        open_database(self.journal).close()

    def unlock(self) -> None:
        """Let other processes write."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _manifest_bytes(manifest: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(manifest, option=orjson.OPT_INDENT_2)
    except TypeError as error:
        raise ConfigurationError(
            f"the manifest cannot be written: {error}; rename files and folders whose names are not UTF-8"
        ) from None


def _is_run_leftover(name: str) -> bool:
    return name in _LEFTOVERS or is_leftover(name, "manifest.json")


def _require_free_folder(path: Path, manifest: dict[str, Any]) -> None:
    """Check that a new run can be created here.

    Raises:
        ConfigurationError: Something is here already.
    """
    if (path / "manifest.json").exists():
        different = compare_manifests(RunFolder.open(path).manifest, manifest)
        if different:
            raise ConfigurationError(
                f"{path} already contains a run with other settings (different: {', '.join(different)}); "
                "choose another folder with --out"
            )
        raise ConfigurationError(
            f"{path} already contains this run; continue it with `viva resume {shell_path(path)}` (with "
            "--retry-failed, its failed conversations are repeated)"
        )
    if path.exists() and not path.is_dir():
        raise ConfigurationError(f"{path} is not a folder; choose a folder with --out")
    if path.exists() and any(not _is_run_leftover(entry.name) for entry in path.iterdir()):
        raise ConfigurationError(f"{path} exists and is not a run folder; choose another folder with --out")
    if has_records(path / _JOURNAL):
        raise ConfigurationError(
            f"{path} contains the journal of a run whose manifest.json is missing; put that back, or choose another "
            "folder with --out"
        )


def is_running(folder: Path) -> bool:
    """Return True if a process holds the lock of a run.

    If the system does not list locks, a recently written journal counts instead.
    """
    if not _locks_are_listed():
        return _is_recent(folder)
    try:
        return _is_lock_listed(os.lstat(folder / "lock").st_ino)  # a link may lead to any program's lock
    except OSError:
        return False


@cache
def _locks_are_listed() -> bool:
    """Return True if the system lists a lock that this process takes; some containers list no locks."""
    try:
        with tempfile.TemporaryFile() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            return _is_lock_listed(os.fstat(file.fileno()).st_ino)
    except OSError:
        return False


def _is_lock_listed(inode: int) -> bool:
    return any("FLOCK" in line and f":{inode} " in line for line in _LOCKS.read_text().splitlines())


def _is_recent(folder: Path) -> bool:
    latest = 0.0
    for name in ("journal.sqlite", "journal.sqlite-wal"):
        try:
            latest = max(latest, os.stat(folder / name).st_mtime)
        except OSError:
            continue
    return time.time() - latest < _RECENT_SECONDS


def compare_manifests(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """Return the names of the manifest fields and settings in which two runs differ as experiments."""
    names = []
    for name in sorted((first.keys() | second.keys()) - set(_CIRCUMSTANCES)):
        value, other_value = first.get(name), second.get(name)
        if name == "settings" and isinstance(value, dict) and isinstance(other_value, dict):
            names += [
                f"settings.{key}"
                for key in sorted(value.keys() | other_value.keys())
                if value.get(key) != other_value.get(key)
            ]
        elif value != other_value:
            names.append(name)
    return names
