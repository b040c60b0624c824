"""Datasets of the Hugging Face hub (extra `hf`): `hf:owner/name[/config][:split]`.

The package `datasets` downloads them once into its own cache. Before a download, the hub must answer a request within
`HUB_TIMEOUT` seconds, because the package would retry for minutes on a machine without network.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import orjson

from viva.engine.errors import ConfigurationError

from .benchmark import benchmark_names, canonical_split, load_benchmark
from .forms import detect_form
from .items import Raw

HUB_TIMEOUT = 15.0
_NAME = re.compile(r"([\w.-]+/[\w.-]+)(?:/([\w.-]+))?")


class HubDataset:
    """A split of a dataset of the hub, in the cache of the `datasets` package."""

    def __init__(
        self, name: str, split: str, revision: str | None = None, called: str = "", *, check_hub: bool = True
    ) -> None:
        """Load a split.

        Args:
            name: `owner/name` or `owner/name/config`.
            split: Name of the split; "" if there is only one.
            revision: Commit or branch; None for the hub's newest.
            called: Name of the requested benchmark, for errors.
            check_hub: Check first that the hub answers at all.

        Raises:
            ConfigurationError: The extra is missing, the hub is unreachable or has no such dataset or split, or the
                dataset has several splits and `split` is "".
        """
        match = _NAME.fullmatch(name)
        if match is None:
            raise ConfigurationError(f"hf:{name}: expected hf:owner/name[/config][:split]")
        self.text = f"hf:{name}" + (f":{split}" if split else "")
        self.config = match[2] or ""
        self._called, self._revision = called, revision
        library = _datasets_package(self.text)
        if check_hub and not _is_offline():
            _check_reachable(self.text, called)
        if not split:
            names = self._call(library.get_dataset_split_names, match[1], match[2], revision=revision)
            if len(names) != 1:
                raise ConfigurationError(
                    f"{self.text}: name a split, as in {self.text}:{names[0]}; {_list_names(names)}"
                )
            split = names[0]
        self._rows: Any = self._call(library.load_dataset, match[1], match[2], split=split, revision=revision)
        self.split = canonical_split(split)
        self.name = "-".join([*name.split("/")[1:], self.split])

    def form(self) -> str:
        """Return the name of its records' form."""
        for raw in self._rows:
            return next(
                (name for name in benchmark_names() if load_benchmark(name).copies == frozenset(raw)), ""
            ) or detect_form(raw)
        return "generic"

    def records(self) -> Iterator[tuple[int, Raw]]:
        """Yield its records with their 1-based rows."""
        yield from enumerate(self._rows, 1)

    def digest(self) -> str:
        """Return a hash of all records."""
        digest = hashlib.sha256()
        for raw in self._rows:
            digest.update(orjson.dumps(raw, option=orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE, default=str))
        return digest.hexdigest()[:16]

    def _call(self, ask: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return ask(*arguments, **options)
        except Exception as error:  # the package and its dependencies share no base class
            reason = " ".join(str(error).split()) or type(error).__name__
            hint = "; write a configuration as hf:owner/name/config" if "config" in reason.lower() else ""
            if self._called:
                hint = f" (revision {self._revision}); for your own files write {self._called}:FOLDER:split"
            raise ConfigurationError(f"{self.text}: cannot be loaded: {reason[:300]}{hint}") from None


def _datasets_package(text: str) -> Any:
    try:
        library = import_module("datasets")
    except ImportError:
        message = (
            f"{text}: datasets of the hub need the package 'datasets'; install it with: pip install 'viva-exam[hf]'"
        )
        raise ConfigurationError(message) from None
    library.disable_progress_bars()
    # A dataset may include a loading script. Older versions of the package run it unasked.
    library.config.HF_DATASETS_TRUST_REMOTE_CODE = False
    return library


def _is_offline() -> bool:
    """Return True if one of the variables that the package reads tells it to use only its cache."""
    names = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
    return any(os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE") for name in names)


def _check_reachable(text: str, called: str) -> None:
    """Check that the hub answers; any answer will do.

    Raises:
        ConfigurationError: The hub does not answer.
    """
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen  # slow to import and rarely needed

    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    answers: list[str] = []

    def ask() -> None:
        try:
            with urlopen(Request(endpoint, method="HEAD"), timeout=HUB_TIMEOUT):
                answers.append("")
        except HTTPError:
            answers.append("")
        except (OSError, ValueError) as error:
            answers.append(str(getattr(error, "reason", error)))

    # Name resolution has no timeout: hence a thread, abandoned if it does not return.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(HUB_TIMEOUT)
    reason = answers[0] if answers else f"no answer within {HUB_TIMEOUT:g} seconds"
    if reason:
        raise ConfigurationError(
            f"{text}: {endpoint} is unreachable ({reason}); a dataset needs the network when it is first loaded. "
            f"If it is in the cache, set HF_HUB_OFFLINE=1; otherwise name files, as in {called or 'arc'}:FOLDER:test"
        )


def _list_names(names: list[str]) -> str:
    return f"its splits: {', '.join(names)}"
