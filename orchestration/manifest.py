"""Typed form of a run's manifest, and the check that it matches the recorded settings."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError, create_model

from viva.data.dataset import DataRecord, ManifestPart, PackRecord
from viva.engine.errors import ConfigurationError
from viva.engine.permissions import NotPermitted
from viva.engine.run_folder import RunManifest, field_error, validate_manifest
from viva.scenarios.contract import Role, SupportsManifest
from viva.scenarios.models import model_labels
from viva.scenarios.registry import AnyScenario, scenario_of_manifest
from viva.scenarios.run_settings import RunSettings

Price = Annotated[list[float], Field(min_length=2, max_length=3)]  # prices of (prompt, completion, cached prompt)


def _check_share(counts: list[int]) -> list[int]:
    if counts[0] > counts[1]:
        raise ValueError(f"{counts[0]} of {counts[1]} answers cannot differ")
    return counts


Share = Annotated[list[NonNegativeInt], Field(min_length=2, max_length=2), AfterValidator(_check_share)]


class InvarianceRecord(BaseModel):
    """Measurement whether a model's answers depend on concurrent requests, made on `date`.

    `alone` and `among` count the answers that differ from the first one, and all answers: to the same requests again,
    one at a time, and to `at_once` requests together.
    """

    model_config = ConfigDict(strict=True)

    alone: Share
    among: Share
    at_once: Annotated[int, Field(ge=2)]
    date: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]


class ScenarioManifest(RunManifest):
    """Fields that identify a run. `tier` C promises reproducible transcripts, A only a reproducible report."""

    scenario: str
    seed: int
    tier: Literal["A", "C"]
    settings: dict[str, Any]


class FullManifest(ScenarioManifest):
    """Fields of every run's manifest. `models` has a model for each role; for the compared role, models by label.

    `flash_attention` has the choice for each local model for which one was made, `invariance` what `viva invariance`
    had measured before the run, for each model that it had tested.
    """

    prices: dict[str, Price]
    pack: PackRecord | None = None
    prompts: str | None = None
    dataset: DataRecord
    flash_attention: dict[str, Literal["on", "off"]] = Field(default_factory=dict)
    invariance: dict[str, InvarianceRecord] = Field(default_factory=dict)


def read_manifest_settings(data: dict[str, Any], file: Path) -> tuple[AnyScenario, Any]:
    """Validate a manifest and return its scenario and settings.

    Raises:
        ConfigurationError: The manifest is incomplete or contradictory; the message names file and field.
    """
    validate_manifest(ScenarioManifest, data, file)
    code = code_file(data)
    try:
        scenario = scenario_of_manifest(data)
    except ConfigurationError as error:
        if code is None or isinstance(error, NotPermitted):
            raise ConfigurationError(f"{file}: field 'scenario': {error}") from None
        if not code.is_file():
            raise ConfigurationError(f"{error}; {file} names it as the run's scenario: put it back") from None
        raise  # it begins with the scenario's file
    if code is not None:
        _check_roles(data, scenario, code, file)
    validate_manifest(_manifest_model(scenario.roles, scenario.templates is not None), data, file)
    if isinstance(scenario, SupportsManifest):
        validate_manifest(scenario.manifest, data, file)
    try:
        settings = scenario.settings.model_validate({**scenario.settings.formerly, **data["settings"]})
    except ValidationError as error:
        field = error.errors(include_url=False, include_input=False, include_context=False)[0]["loc"][:1]
        if code is None or not field or field[0] in RunSettings.model_fields:
            raise field_error(file, error, "settings") from None
        problem = str(field_error(code, error, "settings")).removesuffix("; restore the file from a copy")
        raise ConfigurationError(
            f"{problem}. The settings of '{scenario.name}' have changed since {file.parent} was recorded: restore them "
            "in the code, or start a new run"
        ) from None
    except ConfigurationError as error:
        raise ConfigurationError(f"{file}: field 'settings': {error}") from None
    _check_models(data, scenario, settings, file)
    return scenario, settings


def code_file(data: Mapping[str, Any]) -> Path | None:
    """Return the Python file of a run's scenario, as recorded; None if the scenario belongs to a package."""
    code = data.get("code")
    name = code.get("file") if isinstance(code, dict) else None
    return Path(name) if isinstance(name, str) else None


def _check_roles(data: dict[str, Any], scenario: AnyScenario, code: Path, file: Path) -> None:
    """Check that the scenario in a file has the recorded roles.

    Raises:
        ConfigurationError: They have changed; the message has the roles then and now.
    """
    models = data.get("models")
    if not isinstance(models, dict) or not models:
        return
    recorded = {name: isinstance(value, dict) for name, value in models.items()}
    current = {role.name: role.many for role in scenario.roles}
    if recorded != current:
        raise ConfigurationError(
            f"{code}: the roles of '{scenario.name}' have changed since {file.parent} was recorded: were "
            f"{_describe_roles(recorded)}; are {_describe_roles(current)}. Restore them in the code, or start a new run"
        )


def _describe_roles(roles: Mapping[str, bool]) -> str:
    return ", ".join(f"{name} (compared)" if is_compared else name for name, is_compared in sorted(roles.items()))


@cache
def _manifest_model(roles: tuple[Role, ...], packed: bool) -> type[BaseModel]:
    """Return the manifest's model for a scenario with these roles, with or without a prompt pack."""
    fields: dict[str, Any] = {role.name: (dict[str, str], ...) if role.many else (str | None, None) for role in roles}
    models = create_model("Models", __base__=ManifestPart, **fields)
    own: dict[str, Any] = {"models": (models, ...)}
    if packed:
        own |= {"pack": (PackRecord, ...), "prompts": (str, ...)}
    return create_model("Manifest", __base__=FullManifest, **own)


def _check_models(data: dict[str, Any], scenario: AnyScenario, settings: Any, file: Path) -> None:
    """Check that models and seed match the settings, and that every model has an entry in `prices`."""
    if data["seed"] != settings.seed:
        raise _contradiction_error(file, "seed")
    names: list[str] = []
    for role in scenario.roles_of(settings):
        models = role.models(settings)
        recorded = data["models"].get(role.name)
        if recorded != (model_labels(models) if role.many else next(iter(models), None)):
            raise _contradiction_error(file, f"models.{role.name}")
        names += models
    for model in names:
        if model not in data["prices"]:
            raise ConfigurationError(f"{file}: field 'prices.{model}': missing; restore the file from a copy")


def _contradiction_error(file: Path, field: str) -> ConfigurationError:
    return ConfigurationError(f"{file}: field '{field}': contradicts field 'settings'; restore the file from a copy")
