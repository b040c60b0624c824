"""Tasks held in memory: plain objects passed from Python or read from JSONL, and samples of files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import nsmallest
from pathlib import Path
from typing import Any, Generic

import orjson
from pydantic import TypeAdapter, ValidationError

from viva.data.record_files import (
    BadLine,
    DuplicateKeyError,
    json_fault,
    misspelt_field_hint,
    parse_json_line,
    read_lines,
)
from viva.engine import seeds
from viva.engine.errors import ConfigurationError, DatasetError, TaskError, VivaError, user_frame

from .contract import T

_LONGEST_ID = 80


@dataclass(slots=True, frozen=True)
class InlineTask:
    """An object that a conversation is about; `record` is its JSON data, `payload` the coroutine's argument."""

    id: str
    payload: Any
    record: Any

    def to_record(self) -> Any:
        return {"id": self.id, "task": self.record}


class InlineTasks:
    """Checked tasks held in memory; `digest` identifies their records in this order.

    Raises:
        ConfigurationError: There are no tasks, two have the same id, or one is not JSON data.
    """

    def __init__(self, tasks: Iterable[InlineTask], source: str) -> None:
        self._tasks = list(tasks)
        if not self._tasks:
            raise ConfigurationError(f"{source}: no tasks")
        ids: set[str] = set()
        digest = hashlib.sha256()
        for task in self._tasks:
            if task.id in ids:
                raise ConfigurationError(f"{source}: two tasks have the id '{task.id}'; ids must be unique")
            ids.add(task.id)
            digest.update(_json(task.to_record(), task.id) + b"\n")
        self.digest = digest.hexdigest()[:16]

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[InlineTask]:
        return iter(self._tasks)

    def to_lines(self) -> bytes:
        """Return the tasks as JSON lines, from which `read_tasks` reads the same tasks."""
        return b"".join(_json(task.record, task.id) + b"\n" for task in self._tasks)


class SampledTasks(Generic[T]):
    """Tasks of a file by id: all of them, or a sample by the seed, in the file's order.

    `unit` is what the manifest calls them.
    """

    def __init__(self, name: str, digest: str, tasks: Mapping[str, T], unit: str, limit: int | None, seed: int) -> None:
        self.name, self.digest, self.total, self._unit = name, digest, len(tasks), unit
        chosen = set(tasks)
        if limit is not None:
            chosen = set(nsmallest(limit, tasks, key=lambda id_: (seeds.uniform(seed, "sample", id_), id_)))
        self._tasks = [task for id_, task in tasks.items() if id_ in chosen]

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[T]:
        return iter(self._tasks)

    def to_record(self) -> dict[str, Any]:
        """Return the manifest's record of the tasks."""
        return {"name": self.name, "digest": self.digest, self._unit: self.total, "chosen": len(self)}


def inline_tasks(payloads: Iterable[Any], kind: TypeAdapter[Any]) -> InlineTasks:
    """Return tasks from Python objects; one of another type than `kind` raises `ConfigurationError`."""
    return InlineTasks((_task(payload, kind, number) for number, payload in enumerate(payloads, 1)), "tasks")


def read_tasks(path: Path, kind: TypeAdapter[Any]) -> InlineTasks:
    """Return the tasks of a JSONL file, one per line.

    Raises:
        DatasetError: A line is not JSON, or not of the type; the message names line and field.
        ConfigurationError: As for `InlineTasks`.
    """

    def read() -> Iterator[InlineTask]:
        for number, line in read_lines(path):
            if isinstance(line, BadLine):
                raise DatasetError(line.message, path=str(path), line=number)
            if not line.strip():
                continue
            try:
                payload = kind.validate_python(parse_json_line(line))
            except DuplicateKeyError as error:
                raise DatasetError(str(error), path=str(path), line=number) from None
            except orjson.JSONDecodeError as error:
                raise DatasetError(json_fault(line, error), path=str(path), line=number) from None
            except ValidationError as error:
                raise DatasetError(_error_text(error), path=str(path), line=number) from None
            yield _task(payload, kind, number)

    return InlineTasks(read(), str(path))


def task_from_record(record: Any, kind: TypeAdapter[Any]) -> InlineTask:
    """Return the task of an `InlineTask.to_record`; pydantic raises if the type of tasks has changed."""
    return InlineTask(record["id"], kind.validate_python(record["task"]), record["task"])


def _task(payload: Any, kind: TypeAdapter[Any], number: int) -> InlineTask:
    try:
        payload = kind.validate_python(payload)
        record = kind.dump_python(payload, mode="json")
    except ValidationError as error:
        raise ConfigurationError(f"task {number}: {_error_text(error)}") from None
    except Exception as error:  # a type that pydantic cannot write
        raise ConfigurationError(f"task {number}: cannot be written as JSON: {error}") from None
    return InlineTask(_id(record, number), payload, record)


def _id(record: Any, number: int) -> str:
    """Return the task's own `id` or its short text, else its number and a hash."""
    if isinstance(record, dict) and isinstance(record.get("id"), str | int) and str(record["id"]).strip():
        return str(record["id"])
    if isinstance(record, str) and 0 < len(record) <= _LONGEST_ID and record.isprintable():
        return record
    return f"{number}-{hashlib.sha256(_json(record, str(number))).hexdigest()[:8]}"


def _json(record: Any, id_: str) -> bytes:
    try:
        return orjson.dumps(record)
    except TypeError as error:
        printable = id_.encode("utf-8", "backslashreplace").decode()
        raise ConfigurationError(f"task '{printable}': cannot be written as JSON: {error}") from None


def _error_text(error: ValidationError) -> str:
    details = error.errors(include_url=False)
    first = details[0]
    path, message = ".".join(map(str, first["loc"])), str(first["msg"])
    if first["type"] == "missing" and isinstance(first.get("input"), Mapping):
        message = "is missing" + misspelt_field_hint(str(first["loc"][-1]), map(str, first["input"]))
    return f"field '{path}': {message}" if path else message


class MisspeltFields:
    """Explains a `KeyError` of a function that reads a field which its task has under a similar name.

    `tasks` are the tasks in memory; `path` is the file of all other tasks. Equal mistakes get equal messages, which
    name the first line with the mistake.
    """

    def __init__(self, tasks: InlineTasks | None, path: Path | None) -> None:
        self._tasks, self._path = tasks, path
        self._messages: dict[tuple[str, str], str] = {}

    def explain(self, error: KeyError, payload: Any) -> TaskError | None:
        """Return an error that names file, line, field and the similar field; None if the task has none."""
        field = error.args[0] if error.args else None
        if not isinstance(payload, Mapping) or not isinstance(field, str) or field in payload:
            return None
        hint = misspelt_field_hint(field, map(str, payload))
        if not hint:
            return None
        if (field, hint) not in self._messages:
            self._messages[field, hint] = f"{self._location(field, hint)}: field '{field}': is missing{hint}"
        return TaskError(f"{self._messages[field, hint]} (read at {user_frame(error)})")

    def _location(self, field: str, hint: str) -> str:
        numbers = [
            number
            for number, record in self._records()
            if isinstance(record, Mapping)
            and field not in record
            and misspelt_field_hint(field, map(str, record)) == hint
        ]
        is_file = self._tasks is None and self._path is not None
        source = f"{self._path}" if is_file else "task"
        if not numbers:  # the file has been changed or removed
            return source
        more = len(numbers) - 1
        unit = ("line" if is_file else "task") + "s" * (more > 1)
        return f"{source}{':' if is_file else ' '}{numbers[0]}" + (f" and {more:,} more {unit}" if more else "")

    def _records(self) -> Iterator[tuple[int, Any]]:
        if self._tasks is not None:
            yield from enumerate((task.record for task in self._tasks), 1)
        elif self._path is not None:
            try:
                for number, line in read_lines(self._path):
                    if not isinstance(line, BadLine) and line.strip():
                        yield number, parse_json_line(line)
            except (VivaError, ValueError):  # it has been changed since the run began
                return
