"""Models that the server answers for: opened once, known by short names, shared by clients and runs.

A client may name its conversation (OpenAI's `prompt_cache_key`). A reply comes back in the next request as text. In a
named conversation the server knows that reply's tokens, so the next answer is the one that a run would get.
Without a name, nothing is kept, and an answer depends on its request alone.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from viva.engine.backends.base import Backend, ModelSpec
from viva.engine.backends.registry import BackendPool, file_records
from viva.engine.errors import ConfigurationError
from viva.engine.messages import Completion, Message, Pieces, View
from viva.engine.run_folder import installed_versions

from ..problems import Problem

_MOST_CONVERSATIONS = 1_000
_MOST_REPLIES = 200  # maximum remembered replies of one conversation


class NamedConversations:
    """The named conversations of one model; only the most recently used are kept."""

    def __init__(self, model: str, backend: Backend) -> None:
        self._model, self._backend = model, backend
        self._replies: OrderedDict[str, OrderedDict[bytes, Pieces]] = OrderedDict()

    def affinity(self, name: str) -> str:
        """Return the backend's affinity key of a conversation."""
        return f"served {self._model} {name}"

    def view(self, name: str | None, messages: list[Message]) -> View:
        """Return the messages as a view, with the tokens of remembered replies."""
        replies = {} if name is None else self._touched(name)
        view = View()
        for message in messages:
            pieces = None
            if message.role == "assistant" and replies:
                ahead = view.branch()
                ahead.append(message.role, message.content, calls=message.calls)
                pieces = replies.get(ahead.digest)
            view.append(
                message.role, message.content, pieces, calls=message.calls, call_id=message.call_id, name=message.name
            )
        return view

    def add(self, name: str, view: View, completion: Completion) -> None:
        """Remember a reply to these messages in the conversation `name`."""
        if completion.pieces is None:
            return
        ahead = view.branch()
        ahead.append("assistant", completion.text, calls=completion.calls or ())
        replies = self._touched(name)
        replies[ahead.digest] = completion.pieces
        if len(replies) > _MOST_REPLIES:
            replies.popitem(last=False)

    def _touched(self, name: str) -> OrderedDict[bytes, Pieces]:
        replies = self._replies.setdefault(name, OrderedDict())
        self._replies.move_to_end(name)
        if len(self._replies) > _MOST_CONVERSATIONS:
            oldest, _ = self._replies.popitem(last=False)
            self._backend.ended(self.affinity(oldest))
        return replies


@dataclass(slots=True)
class ServedModel:
    """A served model.

    Attributes:
        name: Served name.
        text: Full name.
        fingerprint: Hash of everything an answer depends on besides the request: the full name with options, the model
            file, and our version.
    """

    name: str
    text: str
    backend: Backend
    fingerprint: str
    opened_at: int
    remembered: NamedConversations


class ServedModels:
    """The served models by name."""

    def __init__(self, models: Iterable[ServedModel] = ()) -> None:
        self._models = {model.name: model for model in models}

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models.values())

    def get(self, name: str) -> ServedModel:
        """Return the model of this name."""
        model = self._models.get(name)
        if model is None:
            labels = ", ".join(self._models) or "none; start the server with --model"
            label = name[:100]
            raise Problem(
                404, f"model '{label}' is not served; served models: {labels}", field="model", code="model_not_found"
            )
        return model

    @property
    def texts(self) -> Mapping[str, str]:
        """The full names by served name."""
        return {name: model.text for name, model in self._models.items()}


_FILE_ENDING = re.compile(r"\.(gguf|py|ya?ml)$", re.IGNORECASE)


def served_names(texts: Iterable[str]) -> dict[str, str]:
    """Return full model names by served name: the label, or the last part of a path or of a name in a model store."""
    names: dict[str, str] = {}
    for text in texts:
        spec = ModelSpec.parse(text)
        plain = spec.take("label") is None and not spec.fragment and "/" in spec.where and spec.kind != "openai"
        name = _FILE_ENDING.sub("", Path(spec.where).name) if plain else spec.label
        if name in names:
            raise ConfigurationError(f"--model '{text}': '{name}' is already served; add ?label=NAME")
        names[name] = text
    return names


async def open_models(pool: BackendPool, names: Mapping[str, str]) -> ServedModels:
    """Open and check the models."""
    models = []
    for name, text in names.items():
        backend = await pool.open(text)
        records = " ".join(file_records(text).values()) or None
        facts = f"{text} {records} {installed_versions()['viva']}"
        print_of = f"viva-{hashlib.blake2b(facts.encode(), digest_size=6).hexdigest()}"
        models.append(ServedModel(name, text, backend, print_of, int(time.time()), NamedConversations(name, backend)))
    await pool.check(names.values())
    return ServedModels(models)
