"""What a Python program gives to a run (a scenario, models by role, tasks, settings), checked and made into a launch.

What never belongs here: running (``launch``), and a run while it goes on (``embedding``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import FunctionType
from typing import Any, TypeAlias

from pydantic import ValidationError

from viva.engine.backends.base import Backend, ModelSpec
from viva.engine.backends.registry import GIVEN
from viva.engine.clock import Clock
from viva.engine.errors import ConfigurationError, did_you_mean
from viva.engine.permissions import grant, grant_typed
from viva.scenarios.contract import Scenario
from viva.scenarios.function import FunctionScenario
from viva.scenarios.registry import AnyScenario, scenario
from viva.scenarios.settings import RunSettings

from .folders import fresh_folder
from .launch import Launch, new_run

Model: TypeAlias = "str | Backend"
Models: TypeAlias = Mapping[str, "Model | Sequence[Model]"]
_TASKS = "tasks.jsonl"


def new_launch(
    which: str | PathLike[str] | AnyScenario,
    models: Models,
    tasks: Iterable[Any] | PathLike[str] | None,
    seed: int,
    out: str | Path | None,
    clock: Clock | None,
    settings: Mapping[str, Any],
) -> Launch:
    """A new run from the arguments of ``viva.run``.

    :raises ConfigurationError: something of this is wrong; nothing has been asked of any model.
    """
    settings = dict(settings)
    tools = settings.pop("python_tools", None) or ()
    grant(*([tools] if isinstance(tools, str) else tools))
    for value in settings.values():  # what a program names is the person's own
        words = value if isinstance(value, list | tuple) else [value]
        grant_typed(*(one for one in words if isinstance(one, str)))
    chosen = scenario_of(which)
    files: dict[str, bytes] = {}
    path = (Path(out) if out is not None else fresh_folder(chosen.name)).absolute()
    names, given = named_models(_by_role(chosen, models))
    options = {**settings, **names, "seed": seed}
    if isinstance(tasks, PathLike):
        options[chosen.data] = str(tasks)
    elif tasks is not None:
        if not isinstance(chosen, FunctionScenario):
            raise ConfigurationError(f"{chosen.name}: takes its tasks from the setting '{chosen.data}', not tasks=")
        if isinstance(tasks, str | bytes | Mapping) or not isinstance(tasks, Iterable):
            raise ConfigurationError(
                f"tasks: expected a list of tasks, found {type(tasks).__name__}; one task stands in a list, too, and a "
                "file of JSON lines is named by a pathlib.Path"
            )
        chosen = chosen.with_tasks(tasks)
        assert chosen.tasks is not None
        files[_TASKS] = chosen.tasks.to_lines()
        options["tasks"] = str(path / _TASKS)
    return new_run(chosen, settings_of(chosen, options), path, clock, given=given, files=files)


def scenario_of(which: object) -> AnyScenario:
    """A scenario from whatever names it.

    :raises ConfigurationError: it is none.
    """
    if isinstance(which, str | PathLike):
        grant_typed(str(which))
        return scenario(str(which))
    if isinstance(which, type) and issubclass(which, Scenario) and which is not Scenario:
        return which()
    if not isinstance(which, Scenario):
        what = f"the function {which.__name__}" if isinstance(which, FunctionType) else type(which).__name__
        raise ConfigurationError(
            f"expected a scenario: its name, its Python file, or what @viva.scenario(many=…) makes; found {what}"
        )
    if isinstance(file := getattr(which, "file", None), Path):
        grant(file)  # it is this program's own, and is read again where the run goes on without it
    return which


def _by_role(which: AnyScenario, models: Models) -> dict[str, Any]:
    """The models as the settings have them: a list for the role whose models are compared, else one."""
    known = {role.name: role for role in which.roles}
    if not isinstance(models, Mapping):
        example = ", ".join(f"{name!r}: …" for name in known)
        raise ConfigurationError(f"models: expected a dict by role, {{{example}}}; found {type(models).__name__}")
    unknown = sorted(models.keys() - known.keys())
    if unknown:
        raise ConfigurationError(f"{which.name} has no role '{unknown[0]}'; its roles: {', '.join(known)}")
    found: dict[str, Any] = {}
    for name, value in models.items():
        if isinstance(value, set | frozenset | Iterator):
            raise ConfigurationError(
                f"models: {name}: expected a name, a viva.Backend or a list of them, in their order"
            )
        several = isinstance(value, Sequence) and not isinstance(value, str)
        if several and not value:
            raise ConfigurationError(f"models: {name}: the list is empty; name at least one model")
        if several and not known[name].many:
            raise ConfigurationError(f"{which.name}: the role '{name}' is played by one model; give one, not a list")
        found[name] = value if several or not known[name].many else [value]
    return found


def named_models(models: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Backend]]:
    """The models' names, and the backends among them by name."""
    given: dict[str, Backend] = {}

    def name(model: Model) -> str:
        if isinstance(model, str):
            grant_typed(model)
            return model
        if not isinstance(model, Backend):
            made = isinstance(model, type) and issubclass(model, Backend)
            hint = f"; write {model.__name__}(…)" if made else ""
            raise ConfigurationError(
                f"model {model!r}: expected a name, such as 'llama:a.gguf', or a viva.Backend object{hint}"
            )
        text = f"{GIVEN}:{model.label}"
        if ModelSpec.parse(text).label != model.label:
            raise ConfigurationError(f"model {model!r}: its label '{model.label}' may hold no ?, # or &")
        if model.price_in or model.price_out:
            text += f"?price_in={model.price_in}&price_out={model.price_out}"
            text += "" if model.price_cached is None else f"&price_cached={model.price_cached}"
        if given.setdefault(text, model) is not model:
            raise ConfigurationError(f"two backends have the label '{model.label}'; give each one of its own")
        return text

    names = {
        role: name(model) if isinstance(model, str | Backend) or not isinstance(model, Sequence)
        else [name(one) for one in model]
        for role, model in models.items()
    }  # fmt: skip
    return names, given


def settings_of(which: Scenario[Any, Any], options: Mapping[str, Any]) -> RunSettings:
    """A scenario's settings with these options.

    :raises ConfigurationError: an option is wrong, unknown or missing; the message names all of these.
    """
    try:
        settings: RunSettings = which.settings.model_validate(options)
    except ValidationError as error:
        problems = []
        for detail in error.errors(include_url=False):
            name = ".".join(map(str, detail["loc"]))
            what = {"missing": "is missing", "extra_forbidden": "unknown setting"}.get(detail["type"], detail["msg"])
            if detail["type"] == "extra_forbidden":
                what += did_you_mean(name, which.settings.model_fields)
            role = any(name == role.name for role in which.roles)
            problems.append(f"{'models: ' if role else ''}{name}: {str(what).removeprefix('Value error, ')}")
        raise ConfigurationError(f"{which.name}: {'; '.join(problems)}") from None
    return settings
