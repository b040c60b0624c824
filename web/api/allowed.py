"""The settings and models of a client's run, checked before anything is made of them.

What a name may mean is decided in ``engine.permissions``, which also holds for what files name in turn.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from viva.engine.backends.base import ModelSpec
from viva.engine.backends.registry import GROUP, KINDS
from viva.engine.errors import ConfigurationError
from viva.engine.permissions import NotPermitted, permissions
from viva.engine.plugins import registered

from ..server.problems import Problem

_PARTS = re.compile(r"[:?#&=;,\s]+")
_MOST_TEXTS, _MOST_CHARACTERS = 1_000, 100_000  # in the settings of a run


class Allowed:
    """``served``: full model names by served names."""

    def __init__(self, served: Mapping[str, str]) -> None:
        self._served = served

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
        """:raises Problem: a setting names a model, or a file outside of the folders, or grants something."""
        for name in settings:
            field = f"settings.{name}"
            if name in roles:
                raise Problem(422, f"{field}: is a role; name its models under models.{name}", field=field)
            if name == "python_tools":
                raise Problem(403, f"{field}: is code, and a client may name none", field=field)
        kinds = {*KINDS, *registered(GROUP)}
        left = _MOST_CHARACTERS
        for count, (field, text) in enumerate(_texts(settings, "settings"), 1):
            left -= len(text)
            if count > _MOST_TEXTS or left < 0:
                most = f"{_MOST_TEXTS:,} texts of {_MOST_CHARACTERS:,} characters together"
                raise Problem(422, f"settings: expected at most {most}", field="settings")
            if text.partition(":")[0] in kinds:
                self._model(text, field)
            else:
                for part in (text, *_PARTS.split(text)):
                    _check_path(part, field)

    def _model(self, named: str, field: str) -> str:
        text = self._served.get(named, named)
        if text in self._served.values():
            return text
        served = ", ".join(self._served) or "none"
        try:
            if "\0" in text:
                raise ConfigurationError("the name of no model: it holds the character NUL")
            permissions().check_model(text)
            spec = ModelSpec.parse(text)
        except NotPermitted as error:
            raise Problem(403, f"{field}: {error}; served here: {served}", field=field) from None
        except ConfigurationError as error:
            raise Problem(409, f"{field}: {error}; served here: {served}") from None
        if spec.kind == "replay":
            _check_path(spec.where, field)
        for value in spec.options.values():
            _check_path(value, field)
        return text


def _texts(value: Any, field: str) -> Iterator[tuple[str, str]]:
    """Every text in settings with its field; the names of fields, too."""
    if isinstance(value, str):
        yield field, value
    elif isinstance(value, dict):
        for name, one in value.items():
            yield field, name
            yield from _texts(one, f"{field}.{name}")
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one, field)


def _check_path(text: str, field: str) -> None:
    if text:
        try:
            permissions().check_file(Path(text))
        except NotPermitted as error:
            raise Problem(403, f"{field}: {error}", field=field) from None
