"""Assistants in a scenario's settings: their full names, and roles for assistants that call a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, ValidationInfo

from viva.agents.assistants.assistant import Assistant
from viva.agents.assistants.registry import absolute_name, open_assistant, open_assistants
from viva.engine.errors import ConfigurationError

from .contract import Role
from .run_settings import RunSettings, context_folder


@dataclass(frozen=True, slots=True)
class AssistantRole(Role):
    """The model of the assistant at index `position` of the setting `assistant`."""

    position: int = 0

    def models(self, settings: RunSettings) -> list[str]:
        names: list[str] = getattr(settings, "assistant", [])
        model = open_assistant(names[self.position]).model if self.position < len(names) else None
        return [] if model is None else [model]


def assistant_roles(names: list[str]) -> tuple[Role, ...]:
    """Return the roles of the assistants that call a model.

    These roles are not replayed, because recordings do not contain the assistants' answers. An unknown name raises
    `ConfigurationError`.
    """
    return tuple(
        AssistantRole(assistant.role, replayed=False, position=position)
        for position, assistant in enumerate(open_assistants(names))
        if assistant.model is not None
    )


def _full_names(names: list[str], info: ValidationInfo) -> list[str]:
    """Return the assistants' names with full paths.

    Raises:
        ValueError: An assistant does not exist.
    """
    try:
        full = [absolute_name(name, context_folder(info)) for name in names]
        open_assistants(full)
    except ConfigurationError as error:
        raise ValueError(str(error)) from None
    return full


AssistantNames = Annotated[list[str], AfterValidator(_full_names)]


def check_assistant_texts(
    assistants: Iterable[Assistant], texts: Sequence[str], default: str | None, source: str
) -> None:
    """Check that each assistant has a text to compare the response with.

    Args:
        assistants: The assistants to check.
        texts: Names of the texts besides the response.
        default: The text for assistants that name none.
        source: What defines the texts, for error messages.

    Raises:
        ConfigurationError: The text of an assistant does not exist.
    """
    for assistant in assistants:
        against = (assistant.against or default) if assistant.comparing else None
        if assistant.comparing and against is None:
            raise ConfigurationError(
                f"assistant '{assistant.name}': {source} has no default text to compare with; append @TEXT, one of: "
                f"{', '.join(texts)}"
            )
        if against is not None and against not in texts:
            raise ConfigurationError(
                f"assistant '{assistant.name}': {source} has no text '{against}' besides the response; available: "
                f"{', '.join(texts)}"
            )


def assistant_facts(assistants: Iterable[Assistant]) -> list[dict[str, Any]]:
    """Check that each assistant can be used, and return its manifest record.

    Raises:
        ConfigurationError: An assistant cannot be used; the message says what is missing.
    """
    facts = []
    for assistant in assistants:
        assistant.check()
        facts.append(assistant.facts())
    return facts
