"""YAML file of a sweep: candidates, datasets, seeds, evaluators, one section per scenario, resources of models.

Relative paths are resolved against the file's own folder, so that a sweep means the same wherever it is started.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    StrictInt,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from viva.data.dataset import Cluster
from viva.data.sources import absolute_source
from viva.engine.backends.model_name import describe_value, refuse_credentials
from viva.engine.backends.registry import with_absolute_path
from viva.engine.errors import ConfigurationError, choice_hint, did_you_mean
from viva.engine.journal import Durability
from viva.engine.permissions import check_names
from viva.engine.yaml_file import read_yaml
from viva.scenarios.contract import Scenario, compared_role, judge_role
from viva.scenarios.models import model_labels
from viva.scenarios.registry import AnyScenario, installed_scenarios
from viva.scenarios.run_settings import FilePath, context_folder
from viva.scoring.early_stopping import StoppingRule


@dataclass(frozen=True, slots=True)
class SweepPart:
    """Scenario section of a sweep file; `candidate` names the setting for the compared models."""

    name: str
    scenario: AnyScenario
    candidate: str

    @property
    def grid_fields(self) -> dict[str, str]:
        """Fields of the sweep file that determine a setting of every section, by this setting."""
        fields = {self.scenario.data: "datasets", self.candidate: "candidates"}
        return fields | {"seed": "seeds", "concurrency": "concurrency", "patience": "patience", "chaos": "chaos"}

    @property
    def fields(self) -> set[str]:
        """Names of the settings that the section may contain."""
        return set(self.scenario.settings.model_fields)

    def judge(self, values: dict[str, Any]) -> str | None:
        """Return the setting of the judge model under these values; None without a judge."""
        settings = self.scenario.settings.model_construct(**values)
        role = judge_role(self.scenario.roles_of(settings))
        return None if role is None else role.name

    @property
    def scored(self) -> bool:
        """True if conversations have scores, so that a rule may stop its runs early."""
        return type(self.scenario).score_of is not _NO_SCORE


_NO_SCORE = Scenario.score_of


@cache
def parts() -> dict[str, SweepPart]:
    """Return all scenario sections by name, those without a judge first because they cost least."""
    scenarios = [scenario for scenario in installed_scenarios() if sum(role.many for role in scenario.roles) == 1]
    scenarios.sort(key=lambda scenario: (judge_role(scenario.roles) is not None, scenario.name))
    names = [(scenario.plural or scenario.name, scenario) for scenario in scenarios]
    return {name: SweepPart(name, scenario, compared_role(scenario.roles).name) for name, scenario in names}


def part_of(scenario: str) -> SweepPart:
    """Return the section of a scenario, or raise ValueError."""
    for part in parts().values():
        if part.scenario.name == scenario:
            return part
    raise ValueError(f"unknown scenario '{scenario}'")


_RAY_RESOURCES = ("CPU", "GPU", "memory", "object_store_memory")


class ModelResources(BaseModel):
    """Resources of a model.

    `memory` is in bytes; below 1, `num_gpus` may be a fraction; `resources` are custom ones (`ray start --resources`).
    Ray decides about unset values: one CPU per task.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    num_cpus: float | None = Field(default=None, ge=0)
    num_gpus: float | None = Field(default=None, ge=0)
    memory: StrictInt | None = Field(default=None, ge=1)
    resources: dict[str, float] = {}

    def amounts(self) -> dict[str, float]:
        """Return the amount of each resource by Ray's name, without zeros."""
        own = {"CPU": self.num_cpus, "GPU": self.num_gpus, "memory": self.memory}
        return {name: float(amount) for name, amount in [*own.items(), *self.resources.items()] if amount}


def check_resources(needs: Mapping[str, ModelResources], models: Iterable[str], file_name: str) -> None:
    """Check that each entry is the label of a model of the sweep and that Ray accepts its amounts.

    Raises:
        ConfigurationError: An entry is wrong; the message names it.
    """
    labels = dict.fromkeys(model_label(model) for model in models)
    for label, need in needs.items():
        field = f"{file_name}: resources.{label}"
        if label not in labels:
            raise ConfigurationError(
                f"{field}: no model of this sweep has this label; the labels are {', '.join(labels)}"
            )
        for name, amount in need.resources.items():
            if name in _RAY_RESOURCES:
                raise ConfigurationError(f"{field}.resources.{name}: use num_cpus, num_gpus or memory instead")
            if amount < 0:
                raise ConfigurationError(f"{field}.resources.{name}: expected 0 or more, found {amount:g}")
        if (need.num_gpus or 0) > 1 and need.num_gpus != int(need.num_gpus or 0):
            raise ConfigurationError(f"{field}.num_gpus: expected a whole number above 1, found {need.num_gpus:g}")


def model_label(model: str) -> str:
    """Return a model's label as in tables and `resources`."""
    [label] = model_labels([model])
    return label


_LISTS = ("candidates", "datasets", "seeds", "evaluators")


class DatasetEntry(BaseModel):
    """Dataset, with settings that apply only to this dataset."""

    model_config = ConfigDict(extra="allow")

    dataset: str

    @property
    def own(self) -> dict[str, Any]:
        """Settings that apply to this dataset only."""
        return dict(self.__pydantic_extra__ or {})


class SweepFile(BaseModel):
    """Contents of a sweep file, with absolute paths. `parts` has the settings of each scenario section by name."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    candidates: list[str] = Field(min_length=1)
    datasets: list[DatasetEntry] = Field(min_length=1)
    seeds: list[StrictInt] = Field(default=[7], min_length=1)
    evaluators: list[str] | None = Field(default=None, min_length=1)
    parts: dict[str, dict[str, Any]] = {}
    concurrency: StrictInt = Field(default=500, ge=1)
    patience: float = Field(default=600.0, ge=0)
    durability: Durability | None = None
    chaos: FilePath | None = None
    local_models: StrictInt = Field(default=1, ge=1)
    resources: dict[str, ModelResources] = {}
    until: StoppingRule | None = None
    _own_judges: dict[str, list[str]] = PrivateAttr(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _check_forms(cls, contents: Any) -> Any:
        """Reject values that would be misread: a field without a value, or a single value instead of a list."""
        known_parts = parts()
        for name, value in contents.items():
            if value is None:
                hint = f"; `{name}: {{}}` takes the defaults" if name in known_parts else ""
                raise ValueError(f"{name}: is empty; write a value or leave it out{hint}")
            if name in _LISTS and not isinstance(value, list):
                raise ValueError(f"{name}: found {describe_value(value)}, expected a list: {_list_hint(name, value)}")
        if "parts" in contents:
            raise ValueError("parts: unknown setting")
        settings = {name: value for name, value in contents.items() if name not in known_parts}
        return settings | {"parts": {name: contents[name] for name in known_parts if name in contents}}

    @field_validator("datasets", mode="before")
    @classmethod
    def _plain_names(cls, entries: list[Any]) -> list[Any]:
        return [{"dataset": entry} if isinstance(entry, str) else entry for entry in entries]

    @field_validator("until", mode="before")
    @classmethod
    def _rule(cls, value: Any) -> StoppingRule:
        rule = StoppingRule.parse(value)
        if rule.cluster not in (None, *get_args(Cluster)):
            raise ValueError(f"until.cluster: {rule.cluster!r}; allowed is {' or '.join(get_args(Cluster))}")
        return rule

    @field_validator("candidates", "evaluators")
    @classmethod
    def _full_names(cls, models: list[str] | None, info: ValidationInfo) -> list[str] | None:
        return None if models is None else _full_model_names(models, context_folder(info))

    @field_validator("seeds")
    @classmethod
    def _seeds_differ(cls, seeds: list[int]) -> list[int]:
        _check_unique(seeds)
        return seeds

    @field_validator("datasets")
    @classmethod
    def _datasets_differ(cls, entries: list[DatasetEntry], info: ValidationInfo) -> list[DatasetEntry]:
        for entry in entries:
            entry.dataset = absolute_source(entry.dataset, context_folder(info))
        _check_unique(entry.dataset for entry in entries)
        return entries

    @model_validator(mode="after")
    def _check_together(self, info: ValidationInfo) -> SweepFile:
        known_parts = parts()
        if not self.parts:
            raise ValueError(f"neither {' nor '.join(known_parts)}: add at least one of them, with its settings")
        for name, values in self.parts.items():
            for setting, field in known_parts[name].grid_fields.items():
                if setting in values:
                    raise ValueError(f"{name}.{setting}: is set by the sweep's own `{field}`; remove it here")
        self._check_judges(context_folder(info))
        if self.until is not None:
            if not any(known_parts[name].scored for name in self.parts):
                could = " and ".join(name for name, part in known_parts.items() if part.scored)
                raise ValueError(f"until: applies only to {could}, and the sweep has none; remove it")
            if self.until.decided and len(self.candidates) < 2:
                raise ValueError("until: decided needs at least two candidates")
        for index, entry in enumerate(self.datasets):
            self._check_own(f"datasets.{index}", entry)
        return self

    def _check_judges(self, folder: Path) -> None:
        judged = {name: judge for name, values in self.parts.items() if (judge := parts()[name].judge(values))}
        if self.evaluators is not None and not judged:
            could = " and ".join(name for name, part in parts().items() if part.judge({}))
            raise ValueError(f"evaluators: applies only to {could}, and the sweep has none; remove it")
        for name, judge in judged.items():
            own = self.parts[name].get(judge)
            if own is not None and self.evaluators is not None:
                raise ValueError(f"{name}.{judge}: is also set under `evaluators`; remove one of the two")
            if own is None and self.evaluators is None:
                raise ValueError(f"{name}.{judge} is missing: set it there, or list several under `evaluators`")
            if own is not None:
                try:
                    self._own_judges[name] = _full_model_names([str(own)], folder)
                except ValueError as error:
                    raise ValueError(f"{name}.{judge}: {error}") from None

    def _check_own(self, field: str, entry: DatasetEntry) -> None:
        known_parts = parts()
        for name in entry.own:
            if any(name in known_parts[part].grid_fields or name == known_parts[part].judge(values)
                   for part, values in self.parts.items()):  # fmt: skip
                raise ValueError(f"{field}.{name}: cannot differ between datasets; remove it here")
            if not any(name in known_parts[part].fields for part in self.parts):
                raise ValueError(f"{field}.{name}: not a setting of {' or '.join(self.parts)}")

    def judges(self, part: str) -> list[str]:
        """Return the judge models of a section; empty if the scenario has no judge."""
        if parts()[part].judge(self.parts[part]) is None:
            return []
        return self.evaluators or self._own_judges[part]


def read_sweep_file(path: Path) -> tuple[SweepFile, dict[str, Any]]:
    """Return a sweep's file, validated, and its raw contents.

    Raises:
        ConfigurationError: The file is wrong; the message names the field, the value and what to do.
    """
    contents = read_yaml(path, "a sweep's file (YAML)")
    if not isinstance(contents, dict):
        kind = "nothing" if contents is None else type(contents).__name__
        raise ConfigurationError(f"{path}: expected a mapping with candidates and datasets, found {kind}")
    return check_sweep_file(contents, path.resolve().parent, str(path)), contents


def check_sweep_file(contents: dict[str, Any], folder: Path, file_name: str) -> SweepFile:
    """Validate the contents of a sweep's file.

    `folder` is the base of its relative paths, `file_name` its name in error messages.

    Raises:
        ConfigurationError: As for `read_sweep_file`.
    """
    for name in contents:
        if not isinstance(name, str):
            raise ConfigurationError(f"{file_name}: {name}: unknown setting; names must be text")
    _refuse_credentials(contents, file_name)
    check_names(contents, file_name, folder)
    try:
        return SweepFile.model_validate(contents, context={"folder": folder})
    except ValidationError as error:
        raise ConfigurationError(
            "; ".join(
                validation_message(detail, file_name, known_names=SweepFile.model_fields)
                for detail in error.errors(include_url=False)
            )
        ) from None


def _refuse_credentials(entry: Any, file_name: str, field: str = "") -> None:
    """Check that no text that is recorded as a model's name contains an API key."""
    if isinstance(entry, str):
        try:
            refuse_credentials(entry)
        except ConfigurationError as error:
            raise ConfigurationError(f"{file_name}: {field}: {error}") from None
        return
    inner = entry.items() if isinstance(entry, dict) else enumerate(entry) if isinstance(entry, list) else ()
    for name, value in inner:
        if isinstance(name, str):  # because of a stray colon, YAML reads the text as a mapping
            _refuse_credentials(name, file_name, field or "a setting's name")
        _refuse_credentials(value, file_name, f"{field}.{name}" if field else str(name))


def validation_message(detail: Any, file_name: str, part: str = "", known_names: Iterable[str] = ()) -> str:
    """Return a pydantic error as our message: file, field, value. `part` is prefixed to the field."""
    loc = [str(item) for item in detail["loc"]]
    field = ".".join([part] * bool(part) + (loc[1:] if loc[:1] == ["parts"] else loc))
    if detail["type"] == "missing":
        return f"{file_name}: {field} is missing"
    if detail["type"] == "extra_forbidden":
        return f"{file_name}: {field}: unknown setting{did_you_mean(loc[-1], known_names)}"
    message = str(detail["msg"]).removeprefix("Value error, ")
    if detail["type"] == "value_error":  # our own messages already name the value
        return (
            f"{file_name}: {message}" if not field or message.startswith(field) else f"{file_name}: {field}: {message}"
        )
    return f"{file_name}: {field}: {message}, found {describe_value(detail.get('input'))}{choice_hint(detail)}"


def _full_model_names(models: list[str], folder: Path) -> list[str]:
    try:
        model_labels(models)  # checked: valid names with unique labels
    except ConfigurationError as error:
        raise ValueError(str(error).replace("two candidates", "two models")) from None
    return [with_absolute_path(model, folder) for model in models]


def _list_hint(name: str, value: Any) -> str:
    """Return what to write when a list is expected."""
    if name == "seeds" and isinstance(value, int) and not isinstance(value, bool):
        more_seeds = f"; for {value} seeds, [{', '.join(map(str, range(1, value + 1)))}]" if 2 <= value <= 10 else ""
        return f"for the one seed {value} write `seeds: [{value}]`{more_seeds}"
    if isinstance(value, str):
        return f"write `{name}: [{value}]`, or a line `- …` for each"
    return "write a line `- …` for each"


def lists_of_values(contents: dict[str, Any]) -> dict[str, Any]:
    """Return old file contents with single values replaced by lists."""
    return {name: [value] if name in _LISTS and not isinstance(value, list) else value
            for name, value in contents.items() if value is not None}  # fmt: skip


def _check_unique(values: Iterable[Any]) -> None:
    seen = set()
    for value in values:
        if value in seen:
            raise ValueError(f"{value} is listed twice")
        seen.add(value)
