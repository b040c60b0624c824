"""The rubrics that come with the program, by name: a YAML file of examples in own words."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from viva.engine.yamlfile import read_yaml

from ..spec import Rubric

_FILE = Path(__file__).parent / "examples" / "rubrics.yaml"
SHIPPED = ("yeasayer", "on_task", "asks_back", "helpful", "polite", "stays_in_scope", "grounded")


def shipped_rubric(name: str) -> Rubric:
    """One of ``SHIPPED``."""
    return _shipped()[name]


@cache
def _shipped() -> dict[str, Rubric]:
    return {name: Rubric.model_validate(body) for name, body in read_yaml(_FILE).items()}
