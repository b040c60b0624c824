"""Scenarios by name: those of installed packages, those that this process has defined, and those of single files.

What never belongs here: what a scenario is (``contract``).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from viva.engine.errors import ConfigurationError
from viva.engine.plugins import registered
from viva.engine.pyfile import module_of

from .contract import Scenario

GROUP = "viva.scenarios"
AnyScenario: TypeAlias = "Scenario[Any, Any]"
S = TypeVar("S", bound=Scenario[Any, Any])

# Scenarios made in this process, by name: a run recorded with one is reported and resumed by its name.
_defined: dict[str, AnyScenario] = {}


def define(which: S) -> S:
    """Make a scenario known by its name in this process; one of the same name takes the place of an earlier one."""
    _defined[which.name] = which
    return which


def scenario(name: str) -> AnyScenario:
    """The scenario of a name: that of a package, one that this process has defined, or the one in a Python file.

    :raises ConfigurationError: there is none; the message lists those there are.
    """
    points = registered(GROUP)
    if name in points:
        loaded: AnyScenario = points[name].load()
        return loaded
    if name in _defined:
        return _defined[name]
    if is_file(name):
        return scenario_in(Path(name))
    raise ConfigurationError(f"unknown scenario '{name}'; known: {', '.join([*points, *_defined])}, or FILE.py")


def recorded_scenario(manifest: Mapping[str, Any]) -> AnyScenario:
    """The scenario that a manifest names; one that no package has is read from the file that it was defined in.

    :raises ConfigurationError: it is not to be found.
    """
    name, code = str(manifest["scenario"]), manifest.get("code")
    if name in registered(GROUP) or name in _defined or not isinstance(code, dict):
        return scenario(name)
    scenario_in(Path(str(code.get("file"))))
    return scenario(name)


def scenarios() -> list[AnyScenario]:
    """All scenarios of installed packages, by name."""
    return [scenario(name) for name in registered(GROUP)]


def is_file(name: str) -> bool:
    """Whether this is the path of a Python file rather than a name."""
    return name.endswith(".py")


def scenario_in(file: Path) -> AnyScenario:
    """The only scenario that a Python file defines. The file is run once, as a module of its own.

    :raises ConfigurationError: the file cannot be read or run, or defines none or several.
    """
    module = module_of(file)
    found = {id(one): one for one in vars(module).values() if isinstance(one, Scenario)}
    if len(found) != 1:
        names = ", ".join(one.name for one in found.values()) or "none"
        raise ConfigurationError(f"{file}: expected one scenario (@viva.scenario, or an object), found {names}")
    [one] = found.values()
    return define(one)
