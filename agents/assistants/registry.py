"""Assistants by name: `rouge-l`, `bleu@fact`, `logprob:MODEL`, `nli:FOLDER`, `FILE.py#name` ….

`@TEXT` after a name says which of the example's texts the response is compared with. `LABEL=` before a name sets the
name used in prompts, plans and reports.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from viva.engine.backends.registry import with_absolute_path
from viva.engine.errors import ConfigurationError, did_you_mean

from .assistant import Assistant
from .model_assistants import NEURAL_KINDS, JudgeAssistant, LikelihoodAssistant, NeuralAssistant
from .text_metrics import METRICS, MetricAssistant
from .user_function import FunctionAssistant

_LABEL = re.compile(r"([A-Za-z][\w-]*)=(?=.)")
_AGAINST = re.compile(r"@([A-Za-z_]\w*)$")
# Kinds followed by a colon and a model; those of `NEURAL_KINDS` are followed by a folder.
_MODELS: dict[str, type[LikelihoodAssistant] | type[JudgeAssistant]] = {
    "logprob": LikelihoodAssistant,
    "judge": JudgeAssistant,
}
_MODEL_FORMS = {f"{kind}:MODEL": assistant for kind, assistant in _MODELS.items()}
KNOWN_NAMES = ", ".join([*METRICS, *_MODEL_FORMS, *(f"{kind}:FOLDER" for kind in NEURAL_KINDS), "FILE.py#NAME"])


def describe_names() -> dict[str, str]:
    """Return every assistant's name with a one-line description."""
    descriptions = {name: (function.__doc__ or "") for name, (_, function, _) in METRICS.items()}
    descriptions |= {name: (assistant.__doc__ or "") for name, assistant in _MODEL_FORMS.items()}
    descriptions |= {f"{kind}:FOLDER": (function.__doc__ or "") for kind, (_, function, *_) in NEURAL_KINDS.items()}
    return descriptions | {"FILE.py#NAME": "Your own function from an example to a number, run in a separate process."}


def absolute_name(text: str, folder: Path = Path()) -> str:
    """Return an assistant's name with absolute paths; relative paths begin at `folder`.

    Raises:
        ConfigurationError: The name contains a credential.
    """
    label, text = _split_label(text)
    return f"{label}={_make_absolute(text, folder)}" if label else _make_absolute(text, folder)


def _make_absolute(text: str, folder: Path) -> str:
    kind, colon, target = text.partition(":")
    if colon and kind in _MODELS:
        return f"{kind}:{with_absolute_path(target, folder)}"
    if colon and kind in NEURAL_KINDS:
        path, against = _split_reference(target)
        return f"{kind}:{(folder / Path(path).expanduser()).resolve()}{against}"
    path, hash_, name = text.partition("#")
    return f"{(folder / Path(path).expanduser()).resolve()}#{name}" if hash_ and path.endswith(".py") else text


def open_assistant(text: str, default: str | None = None) -> Assistant:
    """Return the assistant of a name; a ConfigurationError lists the names if there is no such assistant.

    `default` names the text to compare with if the assistant's name has no `@TEXT`; None: the example's `against`.
    """
    label, name = _split_label(text)
    assistant = _open_unlabelled(name, default)
    return replace(assistant, name=label) if label else assistant


def _open_unlabelled(text: str, default: str | None) -> Assistant:
    plain, against = _split_reference(text)
    if plain in METRICS:
        return MetricAssistant.from_name(text, plain, against.removeprefix("@") or default)
    kind, colon, target = text.partition(":")
    if colon and target and kind in _MODELS:
        return _MODELS[kind].from_name(text, target)
    if colon and target and kind in NEURAL_KINDS:
        path, against = _split_reference(target)
        return NeuralAssistant.from_name(text, kind, path, against.removeprefix("@") or default)
    if "#" in text and text.partition("#")[0].endswith(".py"):
        return FunctionAssistant.from_name(text)
    near = did_you_mean(text, describe_names())
    raise ConfigurationError(f"assistant '{text}': unknown{near or ';'} known: {KNOWN_NAMES}")


def open_assistants(names: Sequence[str], default: str | None = None) -> tuple[Assistant, ...]:
    """Return the assistants of some names; `default` is as in `open_assistant`.

    An assistant that calls a model gets the role `assistant-N`; N is its position among all `names`, from 1.

    Raises:
        ConfigurationError: An assistant is unknown, or two have the same name.
    """
    assistants: list[Assistant] = []
    for number, text in enumerate(names, 1):
        assistant = open_assistant(text, default)
        if any(assistant.name == earlier.name for earlier in assistants):
            raise ConfigurationError(
                f"assistant '{text}': two assistants are called '{assistant.name}'; rename one: LABEL={text}"
            )
        assistants.append(assistant if assistant.model is None else replace(assistant, role=f"assistant-{number}"))
    return tuple(assistants)


def _split_label(text: str) -> tuple[str, str]:
    """Return the label of a name ("" if it has none), and the name without it."""
    match = _LABEL.match(text)
    return ("", text) if match is None else (match.group(1), text[match.end() :])


def _split_reference(text: str) -> tuple[str, str]:
    """Return a name, and the `@TEXT` after it ("" if there is none)."""
    match = _AGAINST.search(text)
    return (text, "") if match is None else (text[: match.start()], match.group())
