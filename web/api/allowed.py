"""What a client may name in a run: models and files within bounds. Nothing that it names is code.

Clients name files by paths from the folder in which the server was started, and may not leave it. ``python:`` models
and scenarios in files are refused; so are rooms (``human:``), which would be made there, and ``key_env=``, by which a
model's name could send any variable of the server's environment to any place. The models that the server was started
with are allowed as they are.
What never belongs here: making the run.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from viva.engine.backends.base import ModelSpec
from viva.engine.backends.registry import GROUP, KINDS
from viva.engine.errors import ConfigurationError
from viva.engine.plugins import registered

from ..server.problems import Problem

_PARTS = re.compile(r"[:?#&=;,\s]+")


class Allowed:
    """``served``: full model names by served names. ``folders``: what lies in them may be named."""

    def __init__(self, served: Mapping[str, str], folders: Collection[Path]) -> None:
        self._served = served
        self._folders = [folder.resolve() for folder in folders]

    def models(self, models: Mapping[str, str | list[str]]) -> dict[str, str | list[str]]:
        """The models by role under their full names.

        :raises Problem: one may not be named over HTTP.
        """
        found: dict[str, str | list[str]] = {}
        for role, named in models.items():
            field = f"models.{role}"
            found[role] = (
                self._model(named, field) if isinstance(named, str) else [self._model(one, field) for one in named]
            )
        return found

    def settings(self, settings: Mapping[str, Any], roles: Collection[str]) -> None:
        """:raises Problem: a setting names a model, or a file outside of the folders."""
        for name, value in settings.items():
            field = f"settings.{name}"
            if name in roles:
                raise Problem(422, f"{field}: is a role; name its models under models.{name}", field=field)
            self._check_value(value, field)

    def _check_value(self, value: Any, field: str) -> None:
        if isinstance(value, dict):
            for name, one in value.items():
                self._check_value(name, field)
                self._check_value(one, f"{field}.{name}")
        elif isinstance(value, list):
            for one in value:
                self._check_value(one, field)
        elif isinstance(value, str):
            if value.partition(":")[0] in {*KINDS, *registered(GROUP)}:
                self._model(value, field)
            else:
                self._check_paths(value, field)

    def _model(self, named: str, field: str) -> str:
        text = self._served.get(named, named)
        if text in self._served.values():
            return text
        try:
            spec = ModelSpec.parse(text)
        except ConfigurationError as error:
            raise Problem(409, f"{field}: {error}; served here: {', '.join(self._served) or 'none'}") from None
        if spec.kind in ("python", "human"):
            what = "code" if spec.kind == "python" else "a room on the server's disk"
            raise Problem(403, f"{field}: {what} is not taken over HTTP: start the server with this --model",
                          field=field)  # fmt: skip
        if "key_env" in spec.options:
            raise Problem(403, f"{field}: key_env is not taken over HTTP: start the server with this --model",
                          field=field)  # fmt: skip
        if spec.kind not in ("openai", "anthropic", "gemini"):  # whose places are no files
            for part in (spec.where, spec.fragment):
                self._check_path(part, field)
        for value in spec.options.values():
            self._check_path(value, field)
        return text

    def _check_paths(self, text: str, field: str) -> None:
        for part in (text, *_PARTS.split(text)):
            self._check_path(part, field)

    def _check_path(self, text: str, field: str) -> None:
        if not text:
            return
        try:
            path = Path(text)
            # What leaves the folders is refused before it is looked at: the answer must not tell what is there.
            inside = text[0] != "~" and any(path.resolve().is_relative_to(folder) for folder in self._folders)
        except (OSError, RuntimeError, ValueError):  # too long for a path, a NUL, links in a circle: no file at all
            return
        if not inside:
            raise Problem(403, f"{field}: {text[:100]!r} lies outside of the folders that this server may read from",
                          field=field)  # fmt: skip
