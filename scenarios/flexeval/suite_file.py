"""Reader of suite files: YAML in our format or upstream's, validated with line numbers, and made self-contained.

Rubric files are read into the suite, and paths are made absolute, so that a manifest with the suite is complete.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from viva.engine.backends.http_application_mapping import parse_mapping
from viva.engine.backends.registry import with_absolute_path
from viva.engine.errors import ConfigurationError, did_you_mean
from viva.engine.permissions import check_names, permissions
from viva.engine.yaml_file import LineOf, parse_with_lines, read_text, read_yaml

from ..yaml_models import describe_type, validate_yaml
from .rubric import BUILTIN_RUBRICS, builtin_rubric
from .spec import Rubric, Suite
from .upstream_suites import SUITES_FILE, convert_rubrics, convert_suite, is_upstream

_SUITE_FILE = "suite.yaml"  # the name that `viva suite init` gives
_EXPECTED = f"a suite (YAML, or a folder with {_SUITE_FILE} or {SUITES_FILE}; `viva suite init` writes an example)"
_MAX_FILES = 50  # YAML files of a folder that are looked at


@dataclass(frozen=True, slots=True)
class SuiteFile:
    """A suite that was read from a file.

    Its relative paths start in `folder`. `notes` name what could not be converted from another tool's format.
    """

    suite: Suite
    folder: Path
    notes: list[str] = field(default_factory=list)


def find_suite_file(path: Path) -> Path:
    """Return the suite file of a folder; the path itself if it is no folder, or has no suite.

    Raises:
        ConfigurationError: The folder has several suite files; the message names them.
    """
    if not os.path.isdir(path):  # False for names that cannot be paths, where Path.is_dir raises
        return path
    known = [path / name for name in (_SUITE_FILE, SUITES_FILE) if (path / name).is_file()]
    if known:
        return known[0]
    others = [file for file in sorted(path.glob("*.y*ml"))[:_MAX_FILES] if _is_suite(file)]
    if len(others) < 2:
        return others[0] if others else path  # the reader says what the folder is instead
    names = ", ".join(file.name for file in others)
    raise ConfigurationError(
        f"{path}: the folder has no {_SUITE_FILE} or {SUITES_FILE}, but several other suites: {names}; name the file "
        "(FILE.yaml, or FILE.yaml#NAME if it has several suites)"
    )


def _is_suite(file: Path) -> bool:
    try:
        value = read_yaml(file)
    except ConfigurationError:
        return False
    return is_upstream(value) or (isinstance(value, dict) and {"conversations", "metrics"} <= value.keys())


def read_suite(path: Path, name: str | None = None) -> SuiteFile:
    """Read the suite in a file, or the one called `name` in a file with several (upstream's format).

    A folder stands for its suite file.

    Raises:
        ConfigurationError: The file cannot be read or is invalid; the message names file, line and field.
    """
    path = find_suite_file(path)
    value, line = parse_with_lines(read_text(path, _EXPECTED), str(path))
    notes: list[str] = []
    if not isinstance(value, dict):
        raise ConfigurationError(f"{path}:1: expected the fields of a suite, found {describe_type(value)}; "
                                 "`viva suite init` writes an example")  # fmt: skip
    if is_upstream(value):
        value, notes = convert_suite(value, path, name)
        line = lambda _: 1  # noqa: E731 - converted fields have no line
    elif name is not None:
        raise ConfigurationError(f"{path}: contains a single suite; omit '#{name}'")
    suite = validate_yaml(Suite, value, path, line)
    folder = path.parent.absolute()
    return SuiteFile(_self_contained(suite, folder, path, line), folder, notes)


def _self_contained(suite: Suite, folder: Path, path: Path, line: LineOf) -> Suite:
    rubrics = _read_suite_rubrics(suite, folder, path, line)
    functions = [str(_permitted_path(folder, file, path, line(["functions", index]), f"functions.{index}"))
                 for index, file in enumerate(suite.functions)]  # fmt: skip
    metrics = []
    for index, metric in enumerate(suite.metrics):
        source = f"{path}:{line(['metrics', index])}: metrics.{index}"
        if metric.rubric is not None and metric.rubric not in rubrics:
            if metric.rubric not in BUILTIN_RUBRICS:
                near = did_you_mean(metric.rubric, [*rubrics, *BUILTIN_RUBRICS], "known")
                raise ConfigurationError(f"{source}: there is no rubric '{metric.rubric}'{near}")
            rubrics[metric.rubric] = builtin_rubric(metric.rubric)
        if metric.function is not None and metric.function.partition("#")[0].endswith(".py"):
            file, _, metric_name = metric.function.partition("#")
            full = _permitted_path(
                folder, file, path, line(["metrics", index, "function"]), f"metrics.{index}.function"
            )
            metric = metric.model_copy(update={"function": f"{full}#{metric_name or metric.name}"})
        elif metric.function is not None and ":" in metric.function:
            prefix = f"{path}:{line(['metrics', index, 'function'])}: metrics.{index}.function: "
            permissions().check_code(metric.function.partition(":")[0], prefix)
        metrics.append(metric)
    for keys, mapping in _applications(suite):
        parse_mapping(mapping, str(path), partial(_line_below, line, keys))
    models = {
        "interactor": None if suite.interactor is None else with_absolute_path(suite.interactor, folder),
        "grader": _with_full_paths(suite.grader, folder),
        "system": _with_full_paths(suite.system, folder),
    }
    baseline = None if suite.baseline is None else str((folder / suite.baseline).absolute())
    check_names({name: model for name, model in models.items() if model is not None}, str(path), folder, line)
    return suite.model_copy(
        update={"rubrics": rubrics, "functions": functions, "metrics": metrics, "baseline": baseline, **models}
    )


def _line_below(line: LineOf, keys: tuple[str, ...], path: Sequence[str | int]) -> int:
    return line([*keys, *path])


def _applications(suite: Suite) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    """Return the mappings of HTTP applications, each with its keys in the file."""
    if isinstance(suite.system, str):
        return []
    if "url" in suite.system:
        return [(("system",), suite.system)]
    return [(("system", label), system) for label, system in suite.system.items() if isinstance(system, dict)]


def _with_full_paths(models: Any, folder: Path) -> Any:
    if isinstance(models, str):
        return with_absolute_path(models, folder)
    if isinstance(models, Mapping):
        return {
            label: with_absolute_path(model, folder) if isinstance(model, str) else model
            for label, model in models.items()
        }
    return models


def _read_suite_rubrics(suite: Suite, folder: Path, path: Path, line: LineOf) -> dict[str, Rubric]:
    if isinstance(suite.rubrics, dict):
        return dict(suite.rubrics)
    rubrics: dict[str, Rubric] = {}
    for index, name in enumerate(suite.rubrics):
        file = _existing_path(folder, name, path, line(["rubrics", index]))
        for key, rubric in read_rubrics(file).items():
            if key in rubrics:
                raise ConfigurationError(f"{file}: rubric '{key}' is also in an earlier file; rename it")
            rubrics[key] = rubric
    return rubrics


def read_rubrics(file: Path) -> dict[str, Rubric]:
    """Read the rubrics of a YAML file by name, in our format or upstream's.

    Raises:
        ConfigurationError: The file cannot be read; the message names file, line and field.
    """
    value, line = parse_with_lines(read_text(file), str(file))
    if not isinstance(value, dict) or not value:
        raise ConfigurationError(f"{file}:1: expected rubrics by name, found {describe_type(value)}")
    rubrics = {}
    for name, body in convert_rubrics(value).items():
        rubrics[str(name)] = validate_yaml(Rubric, body, file, partial(_line_below, line, (name,)))
    return rubrics


def _existing_path(folder: Path, name: str, path: Path, line: int) -> Path:
    file = (folder / name).expanduser()
    if not file.is_file():
        raise ConfigurationError(f"{path}:{line}: no such file: {file}{permissions().similar_name(file)}")
    return file.resolve()


def _permitted_path(folder: Path, name: str, path: Path, line: int, field: str) -> Path:
    """Return the path of an existing Python file, if it may be executed."""
    file = _existing_path(folder, name, path, line)
    permissions().check_code(file, f"{path}:{line}: {field}: ")
    return file
