"""Where in an answer's JSON something stands: keys and indices, joined by dots (``choices.0.message.content``)."""

from __future__ import annotations

from typing import Any


class MissingInAnswer(Exception):
    """Nothing stands at the path; the message says how far it leads, and what stands there. Becomes a BackendError."""


class AnswerPath:
    """A path: ``reply.text``. A number is an index in a list (``-1`` is the last), and a key in an object."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._steps = text.split(".")

    def find(self, value: Any) -> Any:
        """What stands at the path in ``value``.

        :raises MissingInAnswer: nothing does.
        """
        passed: list[str] = []
        for step in self._steps:
            try:
                if isinstance(value, list):
                    value = value[int(step)]
                elif isinstance(value, dict):
                    value = value[step]
                else:
                    raise KeyError(step)
            except (KeyError, IndexError, ValueError):
                where = f"'{'.'.join(passed)}'" if passed else "the answer"
                raise MissingInAnswer(f"nothing stands at '{self.text}': {where} {described(value)}") from None
            passed.append(step)
        return value


def described(value: Any) -> str:
    """What a value of JSON is, for a message: the keys of an object, the length of a list, the type of the rest."""
    if isinstance(value, dict):
        return f"has the keys {', '.join(map(str, value))}" if value else "is an empty object"
    if isinstance(value, list):
        return f"is a list of {len(value)}"
    if value is None:
        return "is null"
    kinds = {str: "text", bool: "true or false", int: "a number", float: "a number"}
    return f"is {kinds.get(type(value), type(value).__name__)}"
