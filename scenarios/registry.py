"""Registry of scenarios by name: from installed packages, from this process, and from single Python files."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from viva.engine.errors import ConfigurationError, did_you_mean, user_frame
from viva.engine.imports import import_file, load_entry_points

from .contract import Scenario

GROUP = "viva.scenarios"
_log = logging.getLogger("viva")
AnyScenario: TypeAlias = "Scenario[Any, Any]"
S = TypeVar("S", bound=Scenario[Any, Any])

# Scenarios of this process by name and file, the latest last: a run is reported and resumed with its own scenario.
_registered: dict[tuple[str, Path | None], AnyScenario] = {}


def register(scenario: S) -> S:
    """Register a scenario. Re-registering the same name and file replaces it."""
    key = scenario.name, getattr(scenario, "file", None)
    _registered.pop(key, None)
    _registered[key] = scenario
    return scenario


def _latest(name: str) -> AnyScenario | None:
    return next((scenario for (registered, _), scenario in reversed(_registered.items()) if registered == name), None)


def get_scenario(name: str) -> AnyScenario:
    """Return a scenario by name, from an installed package, from this process, or from a Python file.

    Raises:
        ConfigurationError: There is none; the message lists the known ones.
    """
    points = load_entry_points(GROUP)
    if name in points:
        return _load_entry_point(points[name])
    if (latest := _latest(name)) is not None:
        return latest
    if is_scenario_file(name):
        file, _, member = name.partition("#")
        return scenario_from_file(Path(file), member or None)
    known_names = list(dict.fromkeys([*points, *(defined for defined, _ in _registered)]))
    near = did_you_mean(name, known_names, "known scenarios")
    raise ConfigurationError(f"unknown scenario '{name}'{near}, or a file: FILE.py, FILE.py#NAME")


def scenario_of_manifest(manifest: Mapping[str, Any]) -> AnyScenario:
    """Return the scenario that a manifest names; one outside of packages is read from its file.

    Raises:
        ConfigurationError: It cannot be found.
    """
    name, code = str(manifest["scenario"]), manifest.get("code")
    if name in load_entry_points(GROUP) or not isinstance(code, dict):
        return get_scenario(name)
    file = Path(str(code.get("file")))
    registered = _registered.get((name, file)) or (None if file.is_file() else _latest(name))
    return scenario_from_file(file, name) if registered is None else registered


def installed_scenarios() -> list[AnyScenario]:
    """Return the scenarios of installed packages by name.

    A scenario that cannot be loaded is left out, with a warning of the logger `viva`.
    """
    scenarios = []
    for point in load_entry_points(GROUP).values():
        try:
            scenarios.append(_load_entry_point(point))
        except ConfigurationError as error:
            _log.warning("%s", error)
    return scenarios


def _load_entry_point(point: EntryPoint) -> AnyScenario:
    """Load the scenario of an entry point; a class is instantiated.

    Raises:
        ConfigurationError: It cannot be imported, is no scenario, or has another name.
    """
    origin = f"the scenario '{point.name}' of the entry point '{point.value}'"
    try:
        loaded = point.load()
        scenario: AnyScenario = loaded() if isinstance(loaded, type) and issubclass(loaded, Scenario) else loaded
    except Exception as error:  # importing a package may raise anything
        raise ConfigurationError(f"{origin}: {type(error).__name__}: {error} (at {user_frame(error)})") from error
    if not isinstance(scenario, Scenario):
        raise ConfigurationError(f"{origin}: expected a viva.Scenario, found {type(scenario).__name__}")
    if getattr(scenario, "name", None) != point.name:  # a recorded run finds its scenario by this name
        raise ConfigurationError(
            f"{origin}: its name is '{getattr(scenario, 'name', '')}'; give the entry point the same name"
        )
    return scenario


def is_scenario_file(name: str) -> bool:
    """Return True if this is the path of a Python file (FILE.py or FILE.py#NAME) rather than a name."""
    return name.partition("#")[0].endswith(".py")


def scenario_from_file(file: Path, name: str | None = None) -> AnyScenario:
    """Run a Python file once and return its scenario called `name`, or its only scenario if `name` is None.

    Raises:
        ConfigurationError: The file cannot be read or run, or does not define exactly one such scenario.
    """
    module = import_file(file)
    scenarios = {
        id(scenario): scenario for scenario in vars(module).values() if isinstance(scenario, Scenario)
    }.values()
    by_name = {scenario.name: scenario for scenario in scenarios}
    chosen = [name] if name is not None else list(by_name)
    if len(chosen) != 1 or chosen[0] not in by_name:
        if name is not None:
            raise ConfigurationError(f"{file}: has no scenario '{name}'{did_you_mean(name, by_name, 'it has')}")
        raise ConfigurationError(
            f"{file}: expected one scenario, or FILE.py#NAME; it has: {', '.join(by_name) or 'none'}"
        )
    if sum(scenario.name == chosen[0] for scenario in scenarios) > 1:
        raise ConfigurationError(f"{file}: several scenarios are called '{chosen[0]}'; give each its own name=")
    return register(by_name[chosen[0]])
