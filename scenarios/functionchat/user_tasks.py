"""Tasks for dialogs with a simulated user: the goal, the answers of tools, and the conditions of success."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from viva.data.record_files import read_records, sound_records
from viva.engine.errors import ConfigurationError, DatasetError, MalformedOutput
from viva.engine.imports import find_function, import_by_name
from viva.engine.tools import Toolbox, ToolCall
from viva.engine.yaml_file import parse_list, read_text

from ..inline_tasks import SampledTasks
from .call_matching import required_parameters, same_value
from .functionchat_settings import EXAMPLES
from .turn_files import file_digest

EXAMPLE_TASKS = Path(__file__).parent / "examples" / "tasks.yaml"
PythonTool = Callable[[str, dict[str, Any], dict[str, Any]], Any]


@dataclass(slots=True, frozen=True)
class ExecutedCall:
    """An executed call; `text` has its arguments as sent."""

    name: str
    arguments: dict[str, Any]
    text: str


class CallPattern(BaseModel):
    """A call to `name` with exactly these values of the named arguments; others may have any value."""

    model_config = ConfigDict(extra="forbid")

    name: str
    arguments: dict[str, Any] = {}

    def matches(self, call: ExecutedCall) -> bool:
        return call.name == self.name and all(
            key in call.arguments and same_value(value, call.arguments[key]) for key, value in self.arguments.items()
        )


class ScriptedResult(CallPattern):
    """The answer to a matching call: text as it is, everything else as JSON."""

    result: Any


class DialogTask(BaseModel):
    """A task; a model plays the user with a `goal`, or the user `says` the lines one by one."""

    model_config = ConfigDict(extra="forbid", ignored_types=(cached_property,))

    id: str = Field(pattern=r"^[^#]+$")  # in keys, # precedes the number of the repeat
    goal: str | None = None
    says: list[str] | None = Field(default=None, min_length=1)
    system: str | None = None
    tools: list[dict[str, Any]] = Field(min_length=1)
    results: list[ScriptedResult] = []
    python: str | None = None
    state: dict[str, Any] = {}
    expected: list[CallPattern] = []
    expected_state: dict[str, Any] | None = None
    forbidden: list[CallPattern] = []

    @field_validator("python")
    @classmethod
    def _check_function_name(cls, name: str | None) -> str | None:
        # Not imported here: a task is data, also read from records that somebody else may have written.
        if name is not None and not all(name.partition(":")):
            raise ValueError(f"'{name}': expected module:function")
        return name

    @model_validator(mode="after")
    def _check_consistency(self) -> DialogTask:
        if (self.goal is None) == (self.says is None):
            raise ValueError("give either a goal (a model plays the user) or says (the user's lines), not both")
        if not self.expected and self.expected_state is None and not self.forbidden:
            raise ValueError("nothing is expected or forbidden: the task has no success condition")
        if self.python is None and (self.state or self.expected_state is not None):
            raise ValueError("only a Python tool has a state; name the tool under python")
        offered = set(self.toolbox.names)
        for field_name in ("results", "expected", "forbidden"):
            for index, pattern in enumerate(getattr(self, field_name)):
                if pattern.name not in offered:
                    raise ValueError(f"{field_name}.{index}.name: '{pattern.name}' is none of the tools")
        return self

    @cached_property
    def toolbox(self) -> Toolbox:
        try:
            return Toolbox(self.tools)
        except ConfigurationError as error:
            raise ValueError(str(error)) from None

    def to_record(self) -> dict[str, Any]:
        """Return plain data for the journal: the fields that are set in the file."""
        return self.model_dump(mode="json", exclude_unset=True)


def python_tool(name: str) -> PythonTool:
    """Return the function `module:function` of a task.

    Raises:
        ValueError: Nobody has granted the module, or there is no such function.
    """
    module, _, function = name.partition(":")
    try:
        tool: PythonTool | None = find_function(import_by_name(module), function)
    except ConfigurationError as error:
        raise ValueError(f"'{name}': {error}") from None
    if tool is None:
        raise ValueError(f"'{name}': {module} has no function '{function}'")
    return tool


@dataclass(slots=True)
class ToolSimulator:
    """The tools of a task in one dialog: answers calls, keeps the state, and records the calls.

    `calls` has the calls of offered functions with readable arguments, in order.
    """

    task: DialogTask
    state: dict[str, Any]
    calls: list[ExecutedCall] = field(default_factory=list)

    @classmethod
    def from_task(cls, task: DialogTask) -> ToolSimulator:
        return cls(task, copy.deepcopy(task.state))

    def answer(self, call: ToolCall) -> str:
        """Return the result of a call for the candidate; failures are `{"error": …}`."""
        try:
            arguments = call.parsed() if call.arguments.strip() else {}
        except MalformedOutput as error:
            return _result_text({"error": str(error)})
        if call.name not in self.task.toolbox.names:
            return _result_text({"error": f"there is no function {call.name}"})
        self.calls.append(ExecutedCall(call.name, arguments, call.arguments))
        for scripted in self.task.results:
            if scripted.matches(self.calls[-1]):
                return _result_text(scripted.result)
        if self.task.python is None:
            return _result_text({"error": "nothing was found for these arguments"})
        absent = [
            name for name in required_parameters(self.task.toolbox.parameters(call.name)) if name not in arguments
        ]
        if absent:  # tools may rely on required parameters
            return _result_text({"error": f"{call.name} requires {', '.join(absent)}"})
        try:
            return _result_text(python_tool(self.task.python)(call.name, copy.deepcopy(arguments), self.state))
        except ValueError as error:  # a tool refuses with ValueError; other errors are bugs
            return _result_text({"error": str(error)})

    def missing(self) -> list[int]:
        """Return the indices of expected calls that were not made. The order of calls does not matter."""
        # Kuhn's augmenting paths: a call that fits two expectations serves the one that needs it.
        served: dict[int, int] = {}

        def assign(expectation: int, visited: set[int]) -> bool:
            for index, call in enumerate(self.calls):
                if index not in visited and self.task.expected[expectation].matches(call):
                    visited.add(index)
                    if index not in served or assign(served[index], visited):
                        served[index] = expectation
                        return True
            return False

        return [expectation for expectation in range(len(self.task.expected)) if not assign(expectation, set())]

    def forbidden(self) -> list[int]:
        return [
            index
            for index, call in enumerate(self.calls)
            if any(pattern.matches(call) for pattern in self.task.forbidden)
        ]

    def state_reached(self) -> bool:
        """Return True if every part of the state that the task names is as expected."""
        expected = self.task.expected_state or {}
        return all(key in self.state and same_value(value, self.state[key]) for key, value in expected.items())


def _result_text(result: Any) -> str:
    return result if isinstance(result, str) else orjson.dumps(result, option=orjson.OPT_NON_STR_KEYS).decode()


def open_tasks(data: str, *, limit: int | None, seed: int) -> SampledTasks[DialogTask]:
    """Return the tasks of a file, or a sample of `limit` by the seed.

    Raises:
        ConfigurationError: The file or a task in it is wrong, or an id occurs twice.
    """
    path = EXAMPLE_TASKS if data == EXAMPLES else Path(data)
    digest = file_digest([path])
    tasks: dict[str, DialogTask] = {}
    for line, raw in _raw_tasks(path):

        def refuse(problem: str, field: str | None, line: int | None = line) -> DatasetError:
            return DatasetError(problem.removeprefix("Value error, "), path=str(path), line=line, field=field)

        try:
            task = DialogTask.model_validate(raw)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise refuse(str(first["msg"]), ".".join(map(str, first["loc"])) or None) from None
        if task.python is not None:
            try:
                python_tool(task.python)
            except ValueError as error:
                raise refuse(str(error), "python") from None
        if task.id in tasks:
            raise refuse(f"a second task has the id '{task.id}'", "id")
        tasks[task.id] = task
    if not tasks:
        raise DatasetError("has no tasks", path=str(path))
    return SampledTasks(EXAMPLES if data == EXAMPLES else path.stem, digest, tasks, "tasks", limit, seed)


def _raw_tasks(path: Path) -> Iterator[tuple[int | None, Any]]:
    """Yield the raw tasks of a file with their lines, if known."""
    if path.suffix not in (".yaml", ".yml"):
        yield from sound_records(read_records(path))
        return
    read, lines = parse_list(read_text(path), str(path))
    if not isinstance(read, list):
        raise DatasetError(f"expected a list of tasks, found {type(read).__name__}", path=str(path))
    yield from zip(lines, read, strict=True)
