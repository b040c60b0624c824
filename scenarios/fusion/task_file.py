"""Task files: what is judged, by which criteria, and which fields of the data hold it. YAML, checked with its lines.

What never belongs here: plans (``plan``), reading data (``examples``), and wording (``packs``).
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from viva.engine.errors import ConfigurationError
from viva.engine.yamlfile import parse_places, read_text

from ..yaml_form import Part, checked

_SHIPPED = Path(__file__).parent / "examples"
SHIPPED = tuple(sorted(path.stem for path in _SHIPPED.glob("*.yaml")))

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]


class Criterion(Part):
    """One thing that is judged, on a scale of any number in ``range``. ``rating``: the field of the data that holds the
    human rating, where there is one.
    """

    about: str = Field(min_length=1)
    range: tuple[float, float]
    rating: str | None = None

    @model_validator(mode="after")
    def _in_order(self) -> Criterion:
        low, high = self.range
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(f"range: expected two numbers, the lower one first, found {low:g} and {high:g}")
        return self

    def share(self, score: float) -> float:
        """A score mapped to 0–1."""
        low, high = self.range
        return (score - low) / (high - low)


class Text(Part):
    """One text of an example: the field of the data (``a.b`` is b within a) and its heading in prompts."""

    field: str = Field(min_length=1)
    title: str = Field(min_length=1)
    optional: bool = False


class TaskFile(Part):
    """A task. ``response`` names the text that is judged, ``against`` the one that assistants compare it with unless
    they name another, ``context`` those that it follows.

    ``id``, ``system`` and ``group`` are fields of the data: the example's id (its place where there is none), the
    system whose response it is, and what tells examples about one thing from others (by default all texts but the
    response).
    """

    name: Name
    about: str = Field(min_length=1)
    texts: dict[Name, Text] = Field(min_length=1)
    response: str
    against: str | None = None
    context: list[str] = Field(default=[])
    criteria: dict[Name, Criterion] = Field(min_length=1)
    id: str | None = None
    system: str | None = None
    group: str | None = None

    @model_validator(mode="after")
    def _texts_are_there(self) -> TaskFile:
        named = {
            "response": [self.response],
            "against": [self.against] if self.against else [],
            "context": self.context,
        }
        for field, names in named.items():
            for name in names:
                if name not in self.texts:
                    raise ValueError(f"{field}: there is no text '{name}'; there are {', '.join(self.texts)}")
                if name == self.response and field != "response":
                    raise ValueError(f"{field}: '{name}' is the response itself")
        return self

    def described(self) -> str:
        """The criteria for a prompt, a line each."""
        lines = []
        for name, one in self.criteria.items():
            low, high = one.range
            lines.append(f"- {name} (any number from {low:g} to {high:g}): {' '.join(one.about.split())}")
        return "\n".join(lines)


def task_text(name: str) -> str:
    """The text of a task file: a shipped one by its name, another by its path.

    :raises ConfigurationError: it cannot be read.
    """
    if name in SHIPPED:
        return read_text(_SHIPPED / f"{name}.yaml")
    try:
        return read_text(Path(name))
    except ConfigurationError as error:
        raise ConfigurationError(f"task: {error}; shipped tasks: {', '.join(SHIPPED)}") from None


def read_task(text: str, name: str) -> TaskFile:
    """A task from its text; ``name`` stands for the file in errors.

    :raises ConfigurationError: it is no task; the message has file, line and field of the first mistake.
    """
    value, line = parse_places(text, name)
    return checked(TaskFile, value, name, line)


def digest_of(text: str) -> str:
    """16 hex digits that stand for a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
