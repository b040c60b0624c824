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

from viva.data.record_files import BadLine, DuplicateKeyError, parse_json_line, read_lines
from viva.engine import seeds
from viva.engine.errors import ConfigurationError, DatasetError

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
        """Return the tasks as JSON lines, from which `read_tasks` reads the same ones."""
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
                raise DatasetError(f"not JSON: {error}", path=str(path), line=number) from None
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
    first = error.errors(include_url=False)[0]
    path = ".".join(map(str, first["loc"]))
    return f"field '{path}': {first['msg']}" if path else str(first["msg"])
