"""Pydantic models of YAML files written by people, with errors that name file, line and field."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from viva.engine.errors import ConfigurationError, choice_hint, did_you_mean
from viva.engine.yaml_file import LineOf

M = TypeVar("M", bound=BaseModel)


class YamlModel(BaseModel):
    """A part of a file written by a person: unknown fields are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def validate_yaml(kind: type[M], value: Any, name: str | Path, line: LineOf) -> M:
    """Validate a file's value; `name` names the file in errors.

    Raises:
        ConfigurationError: The value is invalid; the message has file, line and field of each mistake, in order.
    """
    if not isinstance(value, dict):
        raise ConfigurationError(f"{name}:{line([])}: expected fields, found {describe_type(value)}")
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        details = sorted(error.errors(include_url=False), key=lambda mistake: line(_error_path(mistake)))
        messages = [_describe_error(detail, kind, name, line) for detail in details]
        raise ConfigurationError("; ".join(dict.fromkeys(messages))) from None


def describe_type(value: Any) -> str:
    """Return the type of a value in YAML terms."""
    return {dict: "a mapping", list: "a list", str: "a text", type(None): "nothing"}.get(type(value), str(type(value)))


def _describe_error(detail: Any, kind: type[BaseModel], name: str | Path, line: LineOf) -> str:
    loc = _error_path(detail)
    path = ".".join(str(step) for step in loc)
    prefix = f"{name}:{line(loc)}: " + (f"{path}: " if path else "")
    if detail["type"] == "extra_forbidden":
        field_names = [str(name) for name in _fields_at(kind, loc[:-1])]
        return prefix + f"unknown field{did_you_mean(str(loc[-1]), field_names, 'known here' * bool(field_names))}"
    if detail["type"] == "missing":
        return prefix + "is missing"
    message = str(detail["msg"]).removeprefix("Value error, ")
    if loc and detail["type"] == "value_error":
        message = message.removeprefix(f"{loc[-1]}: ")
    if detail["type"] == "string_pattern_mismatch" and loc:
        about = getattr(_fields_at(kind, loc[:-1]).get(loc[-1]), "description", None)
        message = f"expected {about}".rstrip(".") if about else message
    value = detail.get("input")
    suffix = "" if isinstance(value, dict | list) else f", found {value!r:.60}"
    return prefix + message + suffix + choice_hint(detail)


def _error_path(detail: Any) -> list[str | int]:
    """Return the path of keys to a mistake; a validator's message may add the field that it begins with."""
    path = [step for step in detail["loc"] if not (isinstance(step, str) and _is_branch_label(step))]
    field_name, colon, _ = str(detail["msg"]).removeprefix("Value error, ").partition(":")
    of_fields = detail["type"] == "value_error" and isinstance(detail.get("input"), dict)
    return [*path, field_name] if of_fields and colon and field_name.isidentifier() else path


def _is_branch_label(step: str) -> bool:
    """Return True if pydantic added this step to name a branch of a union or a validator."""
    return any(mark in step for mark in ("[", "(")) or step in ("str", "float", "bool", "int")


def _fields_at(kind: Any, loc: Sequence[str | int]) -> dict[str | int, Any]:
    """Return the fields of the model at a path."""
    for step in loc:
        field = getattr(kind, "model_fields", {}).get(step)
        if field is not None:  # otherwise a key or an index, which leads to the same model
            kind = next((model for model in _nested_models(field.annotation)), None)
    return dict(getattr(kind, "model_fields", {}))


def _nested_models(annotation: Any) -> list[Any]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _nested_models(part)]
