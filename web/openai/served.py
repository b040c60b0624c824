"""The models that a server answers for: opened once, known by short names, shared by clients and by runs.

What never belongs here: requests.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from viva.engine.backends.base import Backend, ModelSpec
from viva.engine.backends.registry import BackendPool, fingerprint
from viva.engine.errors import ConfigurationError
from viva.engine.folder import versions

from ..server.problems import Problem
from .remembered import Remembered


@dataclass(slots=True)
class ServedModel:
    """A model under its served ``name``; ``text`` is its full name. ``fingerprint`` stands for everything that an
    answer depends on besides the request: the model's name with its options, its file, and this program's version.
    """

    name: str
    text: str
    backend: Backend
    fingerprint: str
    opened_at: int
    remembered: Remembered


class ServedModels:
    """The served models by name."""

    def __init__(self, models: Iterable[ServedModel] = ()) -> None:
        self._models = {model.name: model for model in models}

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models.values())

    def get(self, name: str) -> ServedModel:
        """The model of this name.

        :raises Problem: there is none; the message lists those there are.
        """
        model = self._models.get(name)
        if model is None:
            known = ", ".join(self._models) or "none; start it with --model"
            shown = name[:100]
            raise Problem(404, f"no model '{shown}' here; served: {known}", field="model", code="model_not_found")
        return model

    @property
    def texts(self) -> Mapping[str, str]:
        """The full names by served names."""
        return {name: model.text for name, model in self._models.items()}


def served_names(texts: Iterable[str]) -> dict[str, str]:
    """Full model names by the names under which they are served: the label, of a local file its stem.

    :raises ConfigurationError: two have one name.
    """
    found: dict[str, str] = {}
    for text in texts:
        spec = ModelSpec.parse(text)
        plain = spec.take("label") is None and not spec.fragment and "/" in spec.where and spec.kind != "openai"
        name = Path(spec.where).stem if plain else spec.label
        if name in found:
            raise ConfigurationError(f"--model '{text}': '{name}' is served already; add ?label=NAME")
        found[name] = text
    return found


async def opened_models(pool: BackendPool, names: Mapping[str, str]) -> ServedModels:
    """Open and check the models.

    :raises ConfigurationError, BackendError: one cannot be used or reached.
    """
    made = []
    for name, text in names.items():
        backend = await pool.open(text)
        facts = f"{text} {fingerprint(text)} {versions()['viva']}"
        print_of = f"viva-{hashlib.blake2b(facts.encode(), digest_size=6).hexdigest()}"
        made.append(ServedModel(name, text, backend, print_of, int(time.time()), Remembered(name, backend)))
    await pool.check(names.values())
    return ServedModels(made)
