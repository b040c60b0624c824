"""Task files (YAML: the texts and criteria of a task) and data files (JSON: the examples)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import orjson
from pydantic import Field, model_validator

from viva.data.items import preview
from viva.data.record_files import read_records, require_regular_file, sound_records
from viva.engine.errors import ConfigurationError, DatasetError
from viva.engine.yaml_file import parse_with_lines, read_text

from ..inline_tasks import SampledTasks
from ..yaml_models import YamlModel, validate_yaml

_SHIPPED = Path(__file__).parent / "examples"
SHIPPED_TASKS = tuple(sorted(path.stem for path in _SHIPPED.glob("*.yaml")))

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]


class Criterion(YamlModel):
    """A criterion with a continuous scale; `rating` is the data field of the human rating, if any."""

    about: str = Field(min_length=1)
    range: tuple[float, float]
    rating: str | None = None

    @model_validator(mode="after")
    def _check_range(self) -> Criterion:
        low, high = self.range
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(f"range: expected two numbers, the lower one first, found {low:g} and {high:g}")
        return self

    def to_unit(self, score: float) -> float:
        low, high = self.range
        return (score - low) / (high - low)


class Text(YamlModel):
    """A text of an example: the field of the data (`a.b` is b within a) and its heading in prompts."""

    field: str = Field(min_length=1)
    title: str = Field(min_length=1)
    optional: bool = False


class TaskFile(YamlModel):
    """A task: its texts and criteria.

    `response` names the text that is judged, `against` the default text with which assistants compare the response,
    `context` the texts that the response follows. `id`, `system` and `group` are fields of the data: the example's id
    (default: its position), the system that wrote the response, and the group of dependent examples (default: equal
    texts other than the response).
    """

    name: Name
    about: str = Field(min_length=1)
    texts: dict[Name, Text] = Field(min_length=1)
    response: str
    against: str | None = None
    context: list[str] = Field(default=[])
    criteria: dict[Name, Criterion] = Field(min_length=1)
    id: str | None = None
    system: str | None = None
    group: str | None = None

    @model_validator(mode="after")
    def _check_texts(self) -> TaskFile:
        references = {
            "response": [self.response],
            "against": [self.against] if self.against else [],
            "context": self.context,
        }
        for key, names in references.items():
            for name in names:
                if name not in self.texts:
                    raise ValueError(f"{key}: there is no text '{name}'; texts: {', '.join(self.texts)}")
                if name == self.response and key != "response":
                    raise ValueError(f"{key}: '{name}' is the response itself")
        return self

    def describe_criteria(self) -> str:
        """Return the criteria for a prompt, one per line."""
        lines = []
        for name, criterion in self.criteria.items():
            low, high = criterion.range
            lines.append(f"- {name} (any number from {low:g} to {high:g}): {' '.join(criterion.about.split())}")
        return "\n".join(lines)


def task_text(name: str) -> str:
    """Return the text of a task file: a shipped one by name, another by path.

    Raises:
        ConfigurationError: It cannot be read.
    """
    if name in SHIPPED_TASKS:
        return read_text(_SHIPPED / f"{name}.yaml")
    try:
        return read_text(Path(name))
    except ConfigurationError as error:
        raise ConfigurationError(f"task: {error}; shipped tasks: {', '.join(SHIPPED_TASKS)}") from None


def read_task(text: str, name: str) -> TaskFile:
    """Parse a task; raise `ConfigurationError` with file (`name`), line and field of each mistake."""
    value, line = parse_with_lines(text, name)
    return validate_yaml(TaskFile, value, name, line)


def text_digest(text: str) -> str:
    """Return 16 hex digits that identify a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


_MAX_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class JudgedExample:
    """A response with the texts around it; `ratings` are human ratings by criterion, if any."""

    id: str
    texts: dict[str, str]
    system: str = ""
    group: str = ""
    ratings: dict[str, float] = field(default_factory=dict)

    def to_record(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> JudgedExample:
        return cls(**record)


def open_examples(
    path: Path, task: TaskFile, *, limit: int | None, seed: int, source: str = ""
) -> SampledTasks[JudgedExample]:
    """Return the examples of a file, or a sample of `limit` by the seed.

    `source` is the task's file, or the name of a shipped task, for errors.

    Raises:
        DatasetError: The file or an example is wrong; the message names line (or position) and field.
    """
    examples: dict[str, JudgedExample] = {}
    digest = hashlib.sha256()
    for position, (line, raw) in enumerate(_raw_examples(path), 1):
        digest.update(orjson.dumps(raw, option=orjson.OPT_SORT_KEYS))
        example = _parse_example(raw, task, source, position, path, line)
        if example.id in examples:
            problem = (
                f"a second example has the id '{example.id}'; ids must differ (`id:` in the task file names the field; "
            )
            problem += "without it, positions are ids)"
            raise DatasetError(problem, path=str(path), line=line, field=task.id)
        examples[example.id] = example
    if not examples:
        raise DatasetError("has no examples", path=str(path))
    return SampledTasks(path.stem, digest.hexdigest()[:16], examples, "examples", limit, seed)


def _raw_examples(path: Path) -> Iterator[tuple[int | None, dict[str, Any]]]:
    """Yield the raw examples with their lines; examples of an array have no line."""
    require_regular_file(path)
    try:
        with path.open("rb") as file:
            begins = file.read(64).removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
            array = begins == b"[" and file.seek(0) == 0 and file.read(_MAX_BYTES + 1).removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        raise DatasetError(f"cannot be read: {error.strerror}", path=str(path)) from None
    if array is False:
        yield from ((line, dict(raw)) for line, raw in sound_records(read_records(path)))
        return
    if len(array) > _MAX_BYTES:
        raise DatasetError(f"an array of more than {_MAX_BYTES >> 20} MiB; write one object a line", path=str(path))
    try:
        entries = orjson.loads(array)
    except orjson.JSONDecodeError as error:
        raise DatasetError(f"not JSON: {error}", path=str(path)) from None
    for position, raw in enumerate(entries, 1):
        if not isinstance(raw, dict):
            raise DatasetError(f"entry {position}: expected a JSON object, found {preview(raw)}", path=str(path))
        yield None, raw


def _parse_example(
    raw: dict[str, Any], task: TaskFile, source: str, position: int, path: Path, line: int | None
) -> JudgedExample:
    def wrong(name: str, message: str) -> DatasetError:
        detail = message if line is not None else f"{message} (entry {position})"
        return DatasetError(detail, path=str(path), line=line, field=name)

    texts: dict[str, str] = {}
    for name, text in task.texts.items():
        value = _field_text(_value_at(raw, text.field))
        # An empty response can be judged, but not without the texts around it.
        if value is None or not (value.strip() or text.optional or name == task.response):
            if text.optional:
                continue
            raw_value = _value_at(raw, text.field)
            raise wrong(text.field, "is missing" if raw_value is None else f"expected text, found {preview(raw_value)}")
        texts[name] = value
    ratings: dict[str, float] = {}
    for name, criterion in task.criteria.items():
        if criterion.rating is not None and (value := _value_at(raw, criterion.rating)) is not None:
            problem = _rating_problem(value, name, criterion, source)
            if problem:
                raise wrong(criterion.rating, problem)
            ratings[name] = float(value)
    identity = {name: "" if source is None else _label(_value_at(raw, source))
                for name, source in (("id", task.id), ("system", task.system), ("group", task.group))}  # fmt: skip
    for name, needed in (("id", task.id), ("system", task.system)):
        if needed is not None and not identity[name]:
            raise wrong(needed, "is missing, or neither text nor a number")
    around = "\0".join(text for name, text in texts.items() if name != task.response)
    group = identity["group"] or hashlib.sha256(around.encode("utf-8", "replace")).hexdigest()[:12]
    return JudgedExample(identity["id"] or str(position), texts, identity["system"], group, ratings)


def _value_at(raw: Any, path: str) -> Any:
    """Return the value at a path of keys, None if missing. A key may itself contain dots."""
    if isinstance(raw, dict) and path in raw:
        return raw[path]
    for step in path.split("."):
        raw = raw.get(step) if isinstance(raw, dict) else None
    return raw


def _field_text(value: Any) -> str | None:
    """Return a field's text, with the texts of a list on separate lines; None for anything else."""
    if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
        return "\n".join(value)
    return value if isinstance(value, str) else None


def _label(value: Any) -> str:
    usable = isinstance(value, str | int) and not isinstance(value, bool)
    return str(value).strip() if usable else ""


def _rating_problem(value: Any, name: str, criterion: Criterion, source: str) -> str:
    low, high = criterion.range
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"expected a number, found {preview(value)}"
    if low <= value <= high:
        return ""
    own = (
        f"copy the task ({_SHIPPED / source}.yaml)" if source in SHIPPED_TASKS else f"open {source or 'the task file'}"
    )
    return (
        f"the rating {value:g} is outside the range of the criterion '{name}', {low:g} to {high:g}; if people rated on "
        f"another scale, {own}, set criteria.{name}.range to it, and pass the file with --task"
    )
