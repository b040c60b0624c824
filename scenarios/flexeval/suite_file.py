"""Reads a suite file: YAML in our form or upstream's, checked, with the line of each mistake, and made self-contained.

Self-contained: rubric files are read into it, and paths are full ones, so that a manifest that keeps it says all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from viva.engine.backends.http_application_mapping import parse_mapping
from viva.engine.backends.registry import with_absolute_path
from viva.engine.errors import ConfigurationError
from viva.engine.permissions import check_names, permissions
from viva.engine.yaml_file import LineOf, parse_with_lines, read_text

from ..yaml_models import describe_type, validate_yaml
from .rubric import BUILTIN_RUBRICS, builtin_rubric
from .spec import Rubric, Suite
from .upstream_suites import convert_rubrics, convert_suite, is_upstream


@dataclass(frozen=True, slots=True)
class SuiteFile:
    """A suite as it was read. ``folder`` is where its relative paths begin; ``notes`` name what could not be taken over
    from another tool's form.
    """

    suite: Suite
    folder: Path
    notes: list[str] = field(default_factory=list)


def read_suite(path: Path, name: str | None = None) -> SuiteFile:
    """The suite in a file; of a file with several (upstream's form), the one called ``name``.

    :raises ConfigurationError: it cannot be read, or says what a suite cannot; the message names file, line and field.
    """
    value, line = parse_with_lines(read_text(path), str(path))
    notes: list[str] = []
    if not isinstance(value, dict):
        raise ConfigurationError(f"{path}:1: expected the fields of a suite, found {describe_type(value)}; "
                                 "`viva suite init` writes an example")  # fmt: skip
    if is_upstream(value):
        value, notes = convert_suite(value, path, name)
        line = lambda _: 1  # noqa: E731 - the fields are no longer those of the file
    elif name is not None:
        raise ConfigurationError(f"{path}: holds one suite; leave '#{name}' out")
    suite = validate_yaml(Suite, value, path, line)
    folder = path.parent.absolute()
    return SuiteFile(_self_contained(suite, folder, path, line), folder, notes)


def _self_contained(suite: Suite, folder: Path, path: Path, line: LineOf) -> Suite:
    rubrics = _read_suite_rubrics(suite, folder, path, line)
    functions = [str(_permitted_path(folder, one, path, line(["functions", place]), f"functions.{place}"))
                 for place, one in enumerate(suite.functions)]  # fmt: skip
    metrics = []
    for place, metric in enumerate(suite.metrics):
        where = f"{path}:{line(['metrics', place])}: metrics.{place}"
        if metric.rubric is not None and metric.rubric not in rubrics:
            if metric.rubric not in BUILTIN_RUBRICS:
                known = ", ".join([*rubrics, *BUILTIN_RUBRICS])
                raise ConfigurationError(f"{where}: there is no rubric '{metric.rubric}'; known: {known}")
            rubrics[metric.rubric] = builtin_rubric(metric.rubric)
        if metric.function is not None and metric.function.partition("#")[0].endswith(".py"):
            file, _, wanted = metric.function.partition("#")
            full = _permitted_path(
                folder, file, path, line(["metrics", place, "function"]), f"metrics.{place}.function"
            )
            metric = metric.model_copy(update={"function": f"{full}#{wanted or metric.name}"})
        elif metric.function is not None and ":" in metric.function:
            at = f"{path}:{line(['metrics', place, 'function'])}: metrics.{place}.function: "
            permissions().check_code(metric.function.partition(":")[0], at)
        metrics.append(metric)
    for within, mapping in _applications(suite):
        parse_mapping(mapping, str(path), partial(_line_below, line, within))
    models = {
        "interactor": None if suite.interactor is None else with_absolute_path(suite.interactor, folder),
        "grader": _with_full_paths(suite.grader, folder),
        "system": _with_full_paths(suite.system, folder),
    }
    baseline = None if suite.baseline is None else str((folder / suite.baseline).absolute())
    check_names({name: one for name, one in models.items() if one is not None}, str(path), folder, line)
    return suite.model_copy(
        update={"rubrics": rubrics, "functions": functions, "metrics": metrics, "baseline": baseline, **models}
    )


def _line_below(line: LineOf, within: tuple[str, ...], path: Sequence[str | int]) -> int:
    return line([*within, *path])


def _applications(suite: Suite) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    """The mappings of HTTP applications, each with its place in the file."""
    if isinstance(suite.system, str):
        return []
    if "url" in suite.system:
        return [(("system",), suite.system)]
    return [(("system", label), one) for label, one in suite.system.items() if isinstance(one, dict)]


def _with_full_paths(models: Any, folder: Path) -> Any:
    if isinstance(models, str):
        return with_absolute_path(models, folder)
    if isinstance(models, Mapping):
        return {
            label: with_absolute_path(one, folder) if isinstance(one, str) else one for label, one in models.items()
        }
    return models


def _read_suite_rubrics(suite: Suite, folder: Path, path: Path, line: LineOf) -> dict[str, Rubric]:
    if isinstance(suite.rubrics, dict):
        return dict(suite.rubrics)
    found: dict[str, Rubric] = {}
    for place, name in enumerate(suite.rubrics):
        file = _existing_path(folder, name, path, line(["rubrics", place]))
        for key, rubric in read_rubrics(file).items():
            if key in found:
                raise ConfigurationError(f"{file}: rubric '{key}' stands in an earlier file, too; name it otherwise")
            found[key] = rubric
    return found


def read_rubrics(file: Path) -> dict[str, Rubric]:
    """The rubrics of a YAML file, by name; in upstream's form too (no ``answer``: the prompt asks for a line).

    :raises ConfigurationError: it cannot be read; the message names file, line and field.
    """
    value, line = parse_with_lines(read_text(file), str(file))
    if not isinstance(value, dict) or not value:
        raise ConfigurationError(f"{file}:1: expected rubrics by name, found {describe_type(value)}")
    found = {}
    for name, body in convert_rubrics(value).items():
        found[str(name)] = validate_yaml(Rubric, body, file, partial(_line_below, line, (name,)))
    return found


def _existing_path(folder: Path, name: str, path: Path, line: int) -> Path:
    file = (folder / name).expanduser()
    if not file.is_file():
        raise ConfigurationError(f"{path}:{line}: there is no file {file}")
    return file.resolve()


def _permitted_path(folder: Path, name: str, path: Path, line: int, field: str) -> Path:
    """As ``_existing_path``, of a Python file that is going to run."""
    file = _existing_path(folder, name, path, line)
    permissions().check_code(file, f"{path}:{line}: {field}: ")
    return file
