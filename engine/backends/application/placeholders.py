"""What stands in braces in a mapping: ``{message}`` and its like, filled for each request, and ``${NAME}``, filled from
the environment when the backend opens. All other braces are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import ConfigurationError
from ...messages import Message, Request
from ...permissions import permissions

MESSAGES = "{messages}"
_PLACEHOLDER = re.compile(r"\{(message|system|session|seed)\}")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True, slots=True)
class Filling:
    """The values of one request. ``messages`` is the history as chat endpoints take it."""

    message: str = ""
    system: str = ""
    session: str = ""
    seed: int = 0
    messages: Sequence[Mapping[str, Any]] = ()

    def text(self, template: str, quoted: Callable[[str], str] = str) -> str:
        """The template with its placeholders filled, in one pass: what a value holds in braces is left alone.
        ``quoted`` is applied to each value.
        """
        return _PLACEHOLDER.sub(lambda found: quoted(str(getattr(self, found[1]))), template)

    def json(self, template: Any) -> Any:
        """JSON data whose texts are filled. ``{messages}`` as a whole text becomes the list, ``{seed}`` a number."""
        if isinstance(template, str):
            if template == MESSAGES:
                return self.messages
            return self.seed if template == "{seed}" else self.text(template)
        if isinstance(template, dict):
            return {name: self.json(value) for name, value in template.items()}
        return [self.json(value) for value in template] if isinstance(template, list) else template


def filling_of(request: Request, session: str, *, system_apart: bool) -> Filling:
    """The values of a request. ``system_apart``: the template has ``{system}``, so the history is without it."""
    said: Sequence[Message] = request.messages
    message = next((one.content for one in reversed(said) if one.role == "user"), "")
    system = "\n\n".join(one.content for one in said if one.role == "system")
    history = [one.to_openai() for one in said if not (system_apart and one.role == "system")]
    return Filling(message, system, session, request.seed, history)


def texts_of(template: Any) -> Iterator[str]:
    """All texts of JSON data, its keys left out."""
    if isinstance(template, str):
        yield template
    inner = template.values() if isinstance(template, dict) else template if isinstance(template, list) else ()
    for value in inner:
        yield from texts_of(value)


def mentions(template: Any, name: str) -> bool:
    """Whether a placeholder stands in a text of JSON data."""
    return any(f"{{{name}}}" in text for text in texts_of(template))


def from_environment(text: str, field: str, shown: str) -> tuple[str, list[str]]:
    """The text with ``${NAME}`` replaced, and the values that were put in, in their order.

    :raises ConfigurationError: a variable is not set, or empty; the message names it, ``shown`` and the field.
    """
    values: list[str] = []

    def value(found: re.Match[str]) -> str:
        given = (permissions().variable(found[1]) or "").strip()
        if not given:
            raise ConfigurationError(f"{shown}: {field}: no value in the environment variable {found[1]}; set it")
        values.append(given)
        return given

    return _VARIABLE.sub(value, text), values


def has_variable(text: str) -> bool:
    """Whether a text is completed from the environment."""
    return _VARIABLE.search(text) is not None
