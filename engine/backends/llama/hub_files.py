"""GGUF files of the Hugging Face hub, in the cache of the package `huggingface_hub`: `hf/OWNER/REPO[:QUANT]`.

The package keeps cache, tokens and endpoint (`HF_HOME`, `HF_TOKEN`, `HF_ENDPOINT`, `HF_HUB_OFFLINE`). The package's own
download begins anew in each process. So this module downloads into a partial file next to the blobs, which the next
attempt continues. A file with the SHA-256 that the hub states is moved into the cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from ...errors import ChecksumMismatch, ConfigurationError
from .model_files import ModelFiles, choose_quant, part_names

_TIMEOUT = 15.0  # seconds until the hub's first answer; then the cache is used
_ATTEMPTS = 5  # consecutive attempts without a new byte
_PAUSE = 0.5  # seconds before the second attempt; doubled for each further one
_BLOCK = 1 << 20
_NAME = re.compile(r"([\w-][\w.-]*/[\w-][\w.-]*)(?::([\w.-]+))?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SUM = re.compile(r"[0-9a-f]{64}")
_RECORD = re.compile(r"(?P<file>.+)@(?P<commit>[0-9a-f]{40}) \S+")


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository of the hub and a quantisation; "" means the usual one."""

    repository: str
    quant: str

    @classmethod
    def parse(cls, name: str) -> HubName:
        """Parse `OWNER/REPO[:QUANT]`, or raise ConfigurationError."""
        match = _NAME.fullmatch(name)
        if match is None:
            raise ConfigurationError(
                f"hf/{name}: expected hf/OWNER/REPO or hf/OWNER/REPO:QUANT; for a local path, write ./hf/…"
            )
        return cls(match[1], match[2] or "")


class HubCache:
    """The cache of `huggingface_hub`, read without the package."""

    def __init__(self) -> None:
        environment = os.environ
        home = environment.get("HF_HOME") or os.path.join(
            environment.get("XDG_CACHE_HOME") or Path.home() / ".cache", "huggingface"
        )
        cache = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE")
        self.folder = Path(cache or os.path.join(home, "hub")).expanduser()

    def repository(self, name: str) -> Path:
        """Return the folder of a repository of models."""
        return self.folder / f"models--{name.replace('/', '--')}"

    def commit(self, name: str, revision: str) -> str:
        """Return the last known commit of a branch or tag, "" if unknown; a commit is returned as it is."""
        if _COMMIT.fullmatch(revision):
            return revision
        try:
            commit = (self.repository(name) / "refs" / revision).read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return ""
        return commit if _COMMIT.fullmatch(commit) else ""

    def files(self, name: str, commit: str) -> dict[str, Path]:
        """Return the GGUF files of a commit that are in the cache, by their names in the repository.

        Links that lead out of the cache are left out. Within the cache, repositories may share blobs.
        """
        snapshot, real = self.repository(name) / "snapshots" / commit, self.folder.resolve()
        return {
            str(path.relative_to(snapshot)): path
            for path in snapshot.rglob("*")
            if path.suffix.lower() == ".gguf" and path.is_file() and path.resolve().is_relative_to(real)
        }

    def repositories(self) -> Iterator[tuple[str, dict[str, Path]]]:
        """Yield repositories with GGUF files, and their files at the commit of `main`."""
        for folder in sorted(self.folder.glob("models--*--*")):
            name = folder.name.removeprefix("models--").replace("--", "/", 1)
            commit = self.commit(name, "main")
            if commit and (files := self.files(name, commit)):
                yield name, files


_COMMITS: dict[tuple[str, ...], tuple[str, str]] = {}  # the commit and file of each name, the same for a whole process


def locate_on_hub(name: str, revision: str = "", recorded: str = "") -> ModelFiles:
    """Return the files of a model of the hub, downloading what is missing.

    All runs of a process get the same commit. A resumed run gets the recorded commit; if that is in the cache, the hub
    is not asked.

    Raises:
        ConfigurationError: The package is missing, the hub has no such model or refuses access, or it is unreachable
            and the model is not in the cache.
        ChecksumMismatch: A file from the hub or the cache does not have the SHA-256 that the hub states.
    """
    hub = _Hub(HubName.parse(name), revision)
    key = (name, revision, str(hub.cache.folder), hub.endpoint)
    if key not in _COMMITS:
        match = _RECORD.fullmatch(recorded)
        if match:
            cached = hub.cache.files(hub.repository, match["commit"])
            files = [file for file in cached if Path(file).name == match["file"]]
            _COMMITS[key] = (match["commit"], files[0]) if len(files) == 1 else hub.choose(match["commit"])
        else:
            _COMMITS[key] = hub.choose(revision or "main")
    commit, file = _COMMITS[key]
    names = part_names(file)
    paths = tuple(hub.fetch(part, commit, f"{number} of {len(names)}") for number, part in enumerate(names, 1))
    if _COMMIT.fullmatch(revision) is None and not recorded:
        hub.remember(revision or "main", commit)
    return ModelFiles(paths, tuple(map(_known_sum, paths)), commit)


def _known_sum(path: Path) -> str:
    """Return the SHA-256 of a cached file as the hub states it, which is the name of the linked blob."""
    blob = Path(os.readlink(path)).name if path.is_symlink() else ""  # which may be a link to a blob of another name
    return blob if _SUM.fullmatch(blob) else ""


class _Hub:
    """A repository of the hub as `locate_on_hub` asks for it."""

    def __init__(self, name: HubName, revision: str) -> None:
        if revision and (not re.fullmatch(r"[\w./-]+", revision, re.ASCII) or ".." in revision or revision[0] == "/"):
            raise ConfigurationError(f"hf/{name.repository}: revision={revision}: expected a branch, tag or commit")
        self.repository, self._quant = name.repository, name.quant
        self.cache = HubCache()
        self.endpoint = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
        self._offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")

    def choose(self, revision: str) -> tuple[str, str]:
        """Return commit and file of the quantisation, from the hub or, if that is unreachable, from the cache."""
        reason = "HF_HUB_OFFLINE is set"
        if not self._offline:
            api = _package(self.repository).HfApi(endpoint=self.endpoint)
            try:
                info = api.model_info(self.repository, revision=revision, timeout=_TIMEOUT)
                return info.sha, choose_quant([entry.rfilename for entry in info.siblings], self._quant, self._text)
            except ConfigurationError:
                raise
            except Exception as error:  # the package and its dependencies share no base class
                status = _status(error)
                if status and status < 500 and status != 429:
                    raise self._refusal(status, error) from None
                reason = f"{self.endpoint} is unreachable ({_first_line(error)})"
        commit = self.cache.commit(self.repository, revision)
        files = self.cache.files(self.repository, commit) if commit else {}
        if not files:
            raise ConfigurationError(f"{self._text}: {reason}, and the model is not in the cache {self.cache.folder}")
        file = choose_quant(list(files), self._quant, f"{self._text} (in the cache)")
        if not self._offline:
            logging.getLogger("viva").warning("%s: %s; using the cache, commit %s", self._text, reason, commit[:12])
        return commit, file

    def fetch(self, file: str, commit: str, position: str) -> Path:
        """Return a file in the cache, downloaded if it is not there."""
        cached = self.cache.files(self.repository, commit).get(file)
        if cached is not None:
            return cached
        if self._offline:
            raise ConfigurationError(
                f"{self._text}: {file} (part {position}) is not in the cache {self.cache.folder}, and HF_HUB_OFFLINE "
                "is set; unset it to download the file"
            )
        package = _package(self.repository)
        url = package.hf_hub_url(self.repository, file, revision=commit, endpoint=self.endpoint)
        try:
            facts = package.get_hf_file_metadata(url, timeout=_TIMEOUT, endpoint=self.endpoint)
        except Exception as error:
            raise self._refusal(_status(error), error) from None
        blob = self.cache.repository(self.repository) / "blobs" / str(facts.etag)
        if not _SUM.fullmatch(str(facts.etag)) or not facts.size:
            raise ConfigurationError(f"{self._text}: the hub gives no SHA-256 for {file}")
        try:
            blob.parent.mkdir(parents=True, exist_ok=True)
            with blob.with_name(f"{blob.name}.viva.partial").open("ab+") as partial:
                fcntl.flock(partial, fcntl.LOCK_EX)  # another process may be downloading it
                if not blob.exists():
                    self._download(url, file, partial, facts.size, facts.etag)
                    os.replace(partial.name, blob)
            path = package.hf_hub_download(
                self.repository, file, revision=commit, cache_dir=self.cache.folder, endpoint=self.endpoint
            )
        except OSError as error:
            if _status(error):
                raise self._refusal(_status(error), error) from None
            raise ConfigurationError(f"{self._text}: {file}: cannot be stored: {error.strerror or error}") from None
        return Path(path)

    def _download(self, url: str, file: str, partial: BinaryIO, size: int, expected: str) -> None:
        """Append the missing end of a file, and verify the whole file."""
        partial.seek(0)
        digest = hashlib.file_digest(partial, "sha256")  # type: ignore[arg-type]
        present = partial.tell()
        begun = f", {present / 1e6:,.1f} of them already here" if present else ""
        logging.getLogger("viva").warning(
            "downloading %s of %s from %s (%s MB%s)", file, self.repository, self.endpoint, f"{size / 1e6:,.1f}", begun
        )
        package = _package(self.repository)
        attempts = 0
        with package.utils.tqdm(
            total=size, initial=present, unit="B", unit_scale=True, desc=file[-40:], disable=None
        ) as progress:
            while present < size:
                headers = package.utils.build_hf_headers() | {"Accept-Encoding": "identity"}
                if present:
                    headers["Range"] = f"bytes={present}-"
                before = present
                try:
                    with package.get_session().stream("GET", url, headers=headers, follow_redirects=True) as response:
                        package.utils.hf_raise_for_status(response)
                        if present and response.status_code != 206:  # the server sends the file from the beginning
                            partial.truncate(0)
                            progress.update(-present)
                            digest, present = hashlib.sha256(), 0
                        for block in response.iter_bytes():
                            partial.write(block)
                            digest.update(block)
                            present += len(block)
                            progress.update(len(block))
                except Exception as error:
                    status = _status(error)
                    attempts = attempts + 1 if present <= before else 1
                    if (status and status < 500 and status != 429) or attempts >= _ATTEMPTS:
                        partial.flush()
                        raise ConfigurationError(
                            f"{self._text}: {file}: the download broke off after {present:,} of {size:,} bytes "
                            f"({_first_line(error)}); the same command continues it"
                        ) from None
                    time.sleep(_PAUSE * 2 ** (attempts - 1))
                partial.flush()
        if (actual := digest.hexdigest()) != expected:
            os.unlink(partial.name)
            raise ChecksumMismatch(
                f"{self._text}: {file}: the SHA-256 of the {present:,} bytes that were downloaded is {actual}, "
                f"expected {expected}; they were deleted: try again; if it happens again, tell the operator of "
                f"{self.endpoint}"
            )

    def remember(self, revision: str, commit: str) -> None:
        """Store the commit of a branch or tag where the package looks for it, for use without a network."""
        path = self.cache.repository(self.repository) / "refs" / revision
        try:
            if not path.is_file() or path.read_text(encoding="ascii") != commit:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(commit, encoding="ascii")
        except (OSError, ValueError):  # a read-only cache
            pass

    @property
    def _text(self) -> str:
        return f"hf/{self.repository}"

    def _refusal(self, status: int, error: Exception) -> ConfigurationError:
        """Return the error for the hub's refusal, with advice."""
        kind = type(error).__name__
        token = "with a token that may read it: hf auth login, or HF_TOKEN"
        if kind == "GatedRepoError":
            page = f"{self.endpoint}/{self.repository}"
            reason = f"its owner asks you to accept terms first: open {page}, then repeat the command {token}"
        elif kind == "RevisionNotFoundError":
            reason = "there is no such revision"
        elif kind == "RepositoryNotFoundError" or status in (401, 403, 404):
            reason = f"{self.endpoint} has no such repository, or only shows it {token}"
        else:
            reason = f"{self.endpoint} answered: {_first_line(error)}"
        return ConfigurationError(f"{self._text}: {reason}" + (f" (status {status})" if status else ""))


def _package(repository: str) -> Any:
    try:
        package = import_module("huggingface_hub")
    except ImportError:
        package = None
    if package is None or package.__version__.startswith("0."):
        raise ConfigurationError(
            f"hf/{repository}: models of the hub need the package huggingface_hub, version 1 or newer; install it "
            "with: pip install 'viva-exam[local]'"
        )
    return package


def _status(error: Exception) -> int:
    """Return the HTTP status of an error of the package; 0 if the hub did not answer."""
    return int(getattr(getattr(error, "response", None), "status_code", 0) or 0)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:200]
