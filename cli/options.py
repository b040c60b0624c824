"""Command-line options: shared ones, and those made from a settings model.

A setting's name, default and description are defined in its model alone.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import typer

from viva.engine.errors import ConfigurationError, choice_hint, did_you_mean
from viva.orchestration.run_command import is_argument, option_name

from .app import MODELS

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

    from viva.scenarios.run_settings import RunSettings

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Csv = Annotated[Path | None, typer.Option("--csv", help="Also write every figure to this CSV file.")]
Html = Annotated[Path | None, typer.Option("--html", help="Also write one self-contained HTML page.")]
Plot = Annotated[
    Path | None, typer.Option("--plot", help="Also draw a plot to this file, .svg or .png (needs the extra `plots`).")
]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="FOLDER", help="Run folder to create (default: runs/NAME-TIME).")
]
Config = Annotated[Path | None, typer.Option("--config", help="YAML file with settings; options override it.")]
Concurrency = Annotated[
    int | None, typer.Option("--concurrency", min=1, help="Maximum number of conversations in flight.")
]
MaxCost = Annotated[
    float | None,
    typer.Option("--max-cost", metavar="COST", help="Start no more conversations after spending this much."),
]
MaxFailures = Annotated[int, typer.Option("--max-failures", min=0, help="Number of failed conversations to tolerate.")]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Retry failed conversations.")]
Otel = Annotated[
    bool,
    typer.Option(
        "--otel", help="Send traces to the OpenTelemetry collector that OTEL_… variables name (needs the extra `otel`)."
    ),
]
Selected = Annotated[
    Path | None,
    typer.Option(
        "--select",
        metavar="FILE",
        help="File with the field `key` of conversations, such as a selection downloaded from `viva view`.",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print what would run and what it may cost, without opening a model.")
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the run.")]
Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")]

_MOST_SELECTED = 1_000_000  # keys in a file


def selected_keys(file: Path) -> list[str]:
    """Return the keys of conversations in a file of JSON lines or a table; each once.

    Raises:
        DatasetError: The file cannot be read, a line has no key, or there are no or too many keys.
    """
    from viva.data.items import FieldError, text_field
    from viva.data.record_files import read_records
    from viva.engine.errors import DatasetError

    keys: dict[str, None] = {}
    for line, raw in read_records(file, required=("key",)):
        if isinstance(raw, DatasetError):
            raise raw
        try:
            keys[text_field(raw, "key")] = None
        except FieldError as error:
            raise DatasetError(str(error), path=str(file), line=line, field=error.field) from None
        if len(keys) > _MOST_SELECTED:
            raise DatasetError(f"has more than {_MOST_SELECTED:,} conversations; select fewer", path=str(file))
    if not keys:
        raise DatasetError("selects no conversation; expected lines with the field 'key'", path=str(file))
    return list(keys)


_EXAMPLES = {
    "dataset": "items.jsonl",
    "candidate": "openai:gpt-4o-mini",
    "interactor": "openai:gpt-4o",
    "evaluator": "openai:gpt-4o",
}

_MODEL = "openai:gpt-4o"
COMPARE_OPTION = "--compare"  # second name for the compared role's option, the same in all scenarios
_METAVARS = {
    "max_cost": "COST", "conversation_cost": "COST", "patience": "SECONDS", "pack": "PACK", "by": "role|turn|KEY",
    "baseline": "RUN", "family": "LABEL=FAMILY", "cases": "FILE", "suite": "FILE", "questions": "FILE",
    "pages": "FILE", "prompts": "FILE", "after": "RUN",
}  # fmt: skip
_LONGEST_CHOICE = 30

S = TypeVar("S", bound="RunSettings")


def request_traces(otel: bool) -> None:
    """Switch traces on if `--otel` is given; raise ConfigurationError if they cannot be sent."""
    if otel:
        from viva.orchestration.tracing import request_traces as switch_on

        switch_on()


def with_settings(
    command: Callable[..., None], settings: type[BaseModel], *, without: Collection[str] = (), compared: str = ""
) -> Callable[..., None]:
    """Add an option for each field of `settings` to `command(options, **own)`; `options` has the options in use.

    Unused options are absent from `options`, so that a file or the default can supply them. Fields `without` an option
    are decided by the command; the `compared` field also gets `--compare`.
    """
    from viva.scenarios.run_settings import RunSettings

    names = [name for name in settings.model_fields if name not in without]

    def wrapper(**values: Any) -> None:
        options = {name: value for name in names if (value := values.pop(name)) not in (None, [])}
        command(options, **values)

    parameters = [_parameter(name, settings.model_fields[name], is_compared=name == compared) for name in names]
    own = [p for name, p in inspect.signature(command, eval_str=True).parameters.items() if name != "options"]

    def rank(parameter: inspect.Parameter) -> int:
        """Rank required options first, then the command's own, then the scenario's, then those of every run."""
        field = settings.model_fields.get(parameter.name) if parameter.name in names else None
        if parameter.default is inspect.Parameter.empty:
            return -1  # Python requires parameters without a default to come first
        if field is not None and field.is_required():
            return 0
        return 1 if field is None else 3 if parameter.name in RunSettings.model_fields else 2

    ordered = sorted([*parameters, *own], key=rank)
    wrapper.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in ordered}
    wrapper.__doc__, wrapper.__name__ = command.__doc__, command.__name__
    return wrapper


def settings_example(command: str, settings: type[RunSettings], roles: Collection[str] = ()) -> str:
    """Return the end of a command's help: one call with all required options, and how models are named.

    `roles` are the settings that name models.
    """
    values = settings.examples | _EXAMPLES
    values |= {name: _MODEL if name in roles else "…" for name in settings.model_fields if name not in values}
    required = {name for name, field in settings.model_fields.items() if field.is_required()}
    needed = [value if is_argument(settings.model_fields[name]) else f"{option_name(name)} {value}"
              for name, value in values.items() if name in required or name in settings.examples]  # fmt: skip
    lines = " \\\n      ".join(needed)
    return f"\b\nExample:\n  {command} \\\n      {lines}\n\n{MODELS}"


def read_settings(settings: type[S], options: dict[str, Any], file: Path | None) -> S:
    """Return the settings of a YAML file, if there is one, overridden by options of the command line.

    Raises:
        ConfigurationError: A setting is wrong; the message names the file or option.
    """
    from pydantic import ValidationError

    from viva.engine.permissions import check_names
    from viva.engine.yaml_file import read_yaml

    values: dict[str, Any] = {}
    if file is not None:
        values = read_yaml(file, "settings (YAML)")
        if values is None:  # the file is empty
            values = {}
        if not isinstance(values, dict):
            raise ConfigurationError(f"{file}: expected a mapping of settings, found {type(values).__name__}")
        check_names(values, str(file))
    for name, field in settings.model_fields.items():  # compared models: a single name stands for a list
        if field.is_required() and get_origin(field.annotation) is list and isinstance(values.get(name), str):
            values[name] = [values[name]]
    try:
        return settings.model_validate({**values, **options})
    except ValidationError as error:
        problems = [
            _problem(detail, options, file, settings.model_fields) for detail in error.errors(include_url=False)
        ]
        raise ConfigurationError("; ".join(problems)) from None


def _problem(detail: Any, options: dict[str, Any], file: Path | None, fields: Iterable[str]) -> str:
    from viva.engine.backends.model_name import describe_value

    if not detail["loc"]:  # the settings exclude each other; the message names them
        return str(detail["msg"]).removeprefix("Value error, ")
    name = str(detail["loc"][0])
    subject = f"{file}: {name}" if file is not None and name not in options else option_name(name)
    if detail["type"] == "missing":
        return f"{subject} is missing"
    if detail["type"] == "extra_forbidden":
        return f"{subject}: unknown setting{did_you_mean(name, fields)}"
    message = str(detail["msg"]).removeprefix("Value error, ")
    ending = "" if message.startswith("found") else f", found {describe_value(detail.get('input'))}"
    return f"{subject}: {message}{ending}{choice_hint(detail)}"


def _parameter(name: str, field: FieldInfo, *, is_compared: bool = False) -> inspect.Parameter:
    kind = _plain(field.annotation)
    flag = option_name(name)
    declared = [f"{flag}/--no-{flag[2:]}"] if kind is bool else [flag, *[COMPARE_OPTION] * is_compared]
    text = field.description or ""
    if field.is_required():
        text += "" if is_argument(field) else " (required, here or in --config)"
    elif field.default not in (None, []):
        text += f" (default: {_default_text(field.default)})"
    metavar = _metavar(name, field)
    option = (
        typer.Argument(metavar=f"{metavar}...", help=text, show_default=False)
        if is_argument(field)
        else typer.Option(*declared, metavar=metavar, help=text, show_default=False)
    )
    is_list = get_origin(kind) is list
    annotation: Any = Annotated[kind if is_list else kind | None, option]
    default: Any = [] if is_list else None
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation)


def _default_text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return ", ".join(map(_default_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _metavar(name: str, field: FieldInfo) -> str | None:
    """Return the word for a setting's value in help; None if its type is clear enough."""
    from viva.scenarios.run_settings import DataSource, FilePath, ModelName, ModelNames, NewPath

    if name in _METAVARS:
        return _METAVARS[name]
    parts = [*_parts(field.annotation), *field.metadata]
    for kind, word in (
        (ModelName, "MODEL"), (ModelNames, "MODEL"), (DataSource, "DATASET"), (FilePath, "FILE"), (NewPath, "FILE"),
    ):  # fmt: skip
        if get_args(kind)[1] in parts:
            return word
    choices = "|".join(str(part) for part in parts if isinstance(part, str))
    if choices:
        return choices if len(choices) <= _LONGEST_CHOICE else name.rpartition("_")[2].upper()
    return None


def _parts(annotation: Any) -> Iterator[Any]:
    """Yield the arguments of an annotation, at all depths: types, metadata, and the values of literals."""
    for part in get_args(annotation):
        yield part
        yield from _parts(part)


def _plain(annotation: Any) -> Any:
    """Return the type that typer parses: without None, and `str` for a literal, which the settings model validates."""
    if get_origin(annotation) in (Union, types.UnionType):
        return _plain(next(part for part in get_args(annotation) if part is not type(None)))
    if get_origin(annotation) is Annotated:  # as in `ModelName | None`: the model validates it
        return _plain(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return str
    if get_origin(annotation) is list:
        return list[_plain(get_args(annotation)[0])]  # type: ignore[misc]
    return annotation
