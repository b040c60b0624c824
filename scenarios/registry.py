"""Scenarios by name: those of installed packages, found by their entry points, and those of single files.

What never belongs here: what a scenario is (``contract``).
"""

from __future__ import annotations

from typing import Any, TypeAlias

from viva.engine.errors import ConfigurationError
from viva.engine.plugins import registered

from .contract import Scenario

GROUP = "viva.scenarios"
AnyScenario: TypeAlias = "Scenario[Any, Any]"


def scenario(name: str) -> AnyScenario:
    """The scenario registered as ``name``.

    :raises ConfigurationError: there is none; the message lists those there are.
    """
    points = registered(GROUP)
    if name not in points:
        raise ConfigurationError(f"unknown scenario '{name}'; known: {', '.join(points)}")
    loaded: AnyScenario = points[name].load()
    return loaded


def scenarios() -> list[AnyScenario]:
    """All registered scenarios, by name."""
    return [scenario(name) for name in registered(GROUP)]
