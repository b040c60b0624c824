"""Scenarios made from one coroutine function: `@scenario(compare="pupil", one="tutor")`.

The decorator derives settings, roles and tasks from its arguments and the function's annotations. Return values are
recorded as plain JSON data.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, ClassVar, Literal, cast, get_type_hints

import orjson
from pydantic import BaseModel, Field, PydanticSchemaGenerationError, TypeAdapter, create_model

from viva.agents.prompts import PromptPack
from viva.engine.cancellation import deciding_error
from viva.engine.conversation import Conversation, ConversationStopped
from viva.engine.errors import ConfigurationError

from .contract import SCORE, Aggregate, Converse, Prepared, Ranges, Role, Scenario
from .default_aggregate import Measures, named_values
from .inline_tasks import InlineTask, InlineTasks, MisspeltFields, inline_tasks, read_tasks, task_from_record
from .meetings import Meetings, check_meeting
from .registry import register
from .rendering import ResultSummary
from .run_settings import FilePath, ModelName, ModelNames, RunSettings, temperature_option, tokens_option

_JSON_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
_MOST_BYTES = 64 * 2**20


def to_json_value(value: Any, name: str) -> Any:
    """Return the value as JSON gives it back, so that it can be recorded.

    Tuples and sets become lists, pydantic models and dataclasses become dicts, and numbers that are not finite become
    None. `name` is the scenario's, for the error.

    Raises:
        TypeError: The value cannot be recorded; the message says what to return.
    """
    if value is None or value is True or value is False:
        return value
    try:
        data = orjson.dumps(value, default=_json_default, option=_JSON_OPTIONS)
    except (TypeError, RecursionError) as error:
        raise TypeError(
            f"{name} returned a value that cannot be recorded ({type(value).__name__}): {error}; return a number, or a "
            "dict of numbers, booleans and strings"
        ) from None
    if len(data) > _MOST_BYTES:
        raise TypeError(f"{name} returned {len(data)} bytes of JSON; at most {_MOST_BYTES} are recorded")
    return orjson.loads(data)


def _json_default(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)  # the same order in every process
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"Type is not JSON serializable: {type(value).__name__}")


POOL = "candidate"  # the setting of models that meet each other
_NAME = re.compile(r"\w[\w-]*")
ScenarioFunction = Callable[..., Awaitable[Any]]
Range = tuple[float | None, float | None]
_TASKS = "JSON Lines file of tasks, in the type of the scenario function's second argument."


class FunctionScenario(Scenario[RunSettings, InlineTask]):
    """A scenario around a coroutine function `function(conversation, task)` or `(conversation, task, settings)`.

    The decorator `scenario` makes it. Calling it calls the function. `own_settings` is the decorator's `settings`,
    `file` the Python file of the function (None in an interactive session), and `ranges` are the ranges that the
    decorator declares.
    """

    function: ClassVar[ScenarioFunction]
    own_settings: ClassVar[type[RunSettings]] = RunSettings
    ranges: ClassVar[Ranges] = {}
    task_type: ClassVar[TypeAdapter[Any]]
    file: ClassVar[Path | None]
    data: ClassVar[str] = "tasks"

    def __init__(self, tasks: InlineTasks | None = None) -> None:
        self._tasks = tasks

    def __call__(self, *arguments: Any) -> Awaitable[Any]:
        return type(self).function(*arguments)

    def with_tasks(self, tasks: Iterable[Any]) -> FunctionScenario:
        return type(self)(inline_tasks(tasks, self.task_type))

    @property
    def tasks(self) -> InlineTasks | None:
        """The tasks passed in Python; None if a file holds them."""
        return self._tasks

    def prepare(self, settings: RunSettings) -> Prepared[InlineTask]:
        source: str | None = getattr(settings, self.data)
        if self._tasks is not None:
            tasks = self._tasks
        elif source is not None:
            tasks = read_tasks(Path(source), self.task_type)
        else:
            raise ConfigurationError(f"{self.name}: no tasks; give tasks=… in Python, or --tasks FILE.jsonl")
        name = "tasks" if source is None or self._tasks is not None else Path(source).stem
        records: dict[str, Any] = {"dataset": {"name": name, "digest": tasks.digest, "chosen": len(tasks)}}
        if self.file is not None:
            records["code"] = {"file": str(self.file)}
        return Prepared(tasks, records)

    def protocol(
        self, settings: RunSettings, pack: PromptPack | None, records: Mapping[str, Any]
    ) -> Converse[InlineTask]:
        function = type(self).function
        more = (settings,) if _has_settings_parameter(function) else ()
        meeting = [role.name for role in self.roles if role.pool]
        # Options that the user's settings declare are left to the function.
        own = self.own_settings.model_fields.keys()
        sampling = {role.name: settings.sampling_of(role.name) for role in self.roles
                    if not own & {"temperature", f"{role.name}_tokens"}}  # fmt: skip

        source: str | None = getattr(settings, self.data)
        fields = MisspeltFields(self._tasks, None if source is None else Path(source))

        async def converse(conversation: Conversation, task: InlineTask) -> dict[str, Any]:
            record: dict[str, Any] = {"task": task.id, "value": None}
            conversation.sampling = sampling
            try:
                value = to_json_value(await function(conversation, task.payload, *more), self.name)
                value = check_meeting(value, meeting, self.name) if meeting else value
                self._check_ranges(value)
                record["value"] = value
            except (ConversationStopped, ExceptionGroup) as error:
                stop = deciding_error(error)
                if not isinstance(stop, ConversationStopped):
                    raise
                await conversation.settle()  # other branches of an `asyncio.gather` still run, and count
                record["stopped"] = {"by": stop.by, "reason": stop.reason}
            except KeyError as error:
                raise fields.explain(error, task.payload) or error from None
            record["usage"] = {role: used.to_record() for role, used in sorted(conversation.usage.items())}
            return record | ({"irregular": conversation.irregular} if conversation.irregular else {})

        return converse

    def _check_ranges(self, value: Any) -> None:
        """Check that all numbers lie within the ranges that the decorator declares.

        Raises:
            ValueError: A number lies outside its range.
        """
        if not self.ranges:
            return
        for name, number in named_values(value).items():
            low, high = self.ranges.get(name, (-math.inf, math.inf))
            if isinstance(number, int | float) and not low <= number <= high:
                raise ValueError(
                    f"{self.name} returned {name} = {number!r}; its decorator declares {low:g} to {high:g} (score=…)"
                )

    def task(self, record: Any) -> InlineTask:
        return task_from_record(record, self.task_type)

    def result_value(self, result: Any) -> Any:
        return result["value"]

    def task_payload(self, task: InlineTask) -> Any:
        return task.payload

    def aggregate(self, manifest: dict[str, Any], scoring: Any) -> Aggregate:
        several = sum(role.many for role in self.roles) > 1
        return (Meetings if several else Measures)(manifest, self.roles, self.ranges, self.unit)

    def score_of(self, settings: RunSettings) -> Callable[[Any], float | None]:
        def score(result: Any) -> float | None:
            value = named_values(result["value"]).get(SCORE)
            return None if value is None or isinstance(value, str) else float(value)

        return score

    def summary_of(self, settings: RunSettings) -> Callable[[Any], ResultSummary]:
        return _summarize_result


def scenario(
    *,
    compare: str | Sequence[str] = (),
    meet: Literal["pairs"] | None = None,
    one: str | Sequence[str] = (),
    judge: str | None = None,
    name: str | None = None,
    settings: type[RunSettings] = RunSettings,
    score: Range | Mapping[str, Range] | None = None,
    unit: str = "",
    many: str | None = None,
) -> Callable[[ScenarioFunction], FunctionScenario]:
    """Make a scenario from a coroutine function.

    The function takes the conversation and a task and, optionally, the settings as a third argument. The annotation of
    its second argument is the type of the tasks: anything that pydantic can read from JSON and write. It returns a
    number, or a dict of named numbers, truth values and texts; None is unscored. If several roles are compared, a
    number under a role's name is the score of the model in that role, and `winner` names the role that won, or is
    `tie`.

    Args:
        compare: The role whose models are compared; each model has its own conversations. With several roles, every
            combination of their models has its own conversations.
        meet: With `pairs`, one setting, `candidate`, names the models of both compared roles. Every two of these models
            meet on each task, in both assignments.
        one: The other roles, each played by one model.
        judge: The role whose model a fork may exchange; it need not be named in `one`.
        name: The scenario's name; default: the function's.
        settings: A subclass of `RunSettings` whose fields become options too.
        score: The smallest and the largest possible score, such as `(0, 1)`; None for an open end. For named
            numbers, a dict of such pairs. Intervals stay within the range, and a value outside fails the
            conversation.
        unit: The score's unit, as tables name it.
        many: The former name of `compare`.

    Raises:
        ConfigurationError: A role occurs twice, or cannot be the name of an option; `score` is no range.
    """
    compared = _to_names(compare or many or ())
    ranges = _score_ranges(score, [SCORE, *compared] if len(compared) > 1 else [SCORE])
    singles = _to_names(one)
    if judge is not None and judge not in singles:
        singles.append(judge)
    pool = "" if meet is None else POOL
    roles = (
        *(Role(role, many=True, pool=pool) for role in compared),
        *(Role(single, judge=single == judge) for single in singles),
    )
    _check_roles(roles, settings)
    if meet is not None and (meet != "pairs" or len(compared) != 2):
        raise ConfigurationError('meet: expected "pairs", with two roles to compare: compare=("pro", "con")')

    def decorate(function: ScenarioFunction) -> FunctionScenario:
        if not inspect.iscoroutinefunction(inspect.unwrap(function)):
            raise ConfigurationError(f"{getattr(function, '__name__', function)}: expected a coroutine function; write "
                                     "`async def`, without `yield`")  # fmt: skip
        types = _parameter_types(function)
        _check_settings(function, types, settings)
        title = name or function.__name__
        if not _NAME.fullmatch(title):
            raise ConfigurationError(
                f"name '{title}': expected letters, digits, '-' and '_', because it is part of folder names"
            )
        summary = (inspect.getdoc(function) or f"The scenario {title}.").split("\n", 1)[0]
        scenario_class = type(
            title,
            (FunctionScenario,),
            {
                "name": title,
                "summary": summary,
                "plural": title,
                "roles": roles,
                "settings": _settings_class(title, roles, settings),
                "own_settings": settings,
                "judging": frozenset(f"{role.name}_tokens" for role in roles if role.judge),
                "function": staticmethod(function),
                "ranges": ranges,
                "unit": unit,
                "task_type": _adapter(function, types[1]),
                "file": _file_of(function),
                "__doc__": function.__doc__,
                "__module__": function.__module__,
            },
        )
        return register(cast(FunctionScenario, scenario_class()))

    return decorate


def _to_names(names: Any) -> list[Any]:
    return list(names) if isinstance(names, Sequence) and not isinstance(names, str) else [names]


def _summarize_result(result: Any) -> ResultSummary:
    values = named_values(result["value"])
    numbers = {name: float(value) for name, value in values.items() if isinstance(value, int | float)}
    texts = [f"{name}: {value}" for name, value in values.items() if isinstance(value, str)]
    if "stopped" in result:
        texts.insert(0, f"{result['stopped']['by']}: {result['stopped']['reason']}")
    unscored = sum(value is None for value in values.values())
    return ResultSummary(numbers.pop(SCORE, None), ", ".join(texts), numbers, unscored)


def _score_ranges(score: Range | Mapping[str, Range] | None, names: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Return the ranges by name; a range without a name applies to all `names`.

    Raises:
        ConfigurationError: An entry is no range.
    """
    ranges: dict[str, tuple[float, float]] = {}
    declared: Mapping[str, Any] = score if isinstance(score, Mapping) else dict.fromkeys(names, score)
    declared = {} if score is None else declared
    for name, ends in declared.items():
        try:
            low, high = ends if isinstance(ends, Sequence) and not isinstance(ends, str) else ()
            pair = -math.inf if low is None else float(low), math.inf if high is None else float(high)
        except (TypeError, ValueError):
            pair = math.nan, math.nan
        if not (isinstance(name, str) and pair[0] < pair[1]):
            raise ConfigurationError(
                f"score: expected (lowest, highest), such as (0, 1) or (0, None), or a dict of such pairs by returned "
                f"name; found {name!r}: {ends!r:.80}"
            )
        ranges[name] = pair
    return ranges


def _check_roles(roles: Sequence[Role], settings: type[RunSettings]) -> None:
    names = [*(role.name for role in roles), *{role.pool for role in roles if role.pool}]
    if not (isinstance(settings, type) and issubclass(settings, RunSettings)):
        raise ConfigurationError(f"settings: expected a subclass of viva.RunSettings, found {settings!r:.80}")
    if not any(role.many for role in roles):
        raise ConfigurationError('no role is compared; name one: compare="pupil"')
    for name in names:
        if not isinstance(name, str):
            raise ConfigurationError(f'role {name!r}: expected a name, such as compare="pupil"')
        if not name.isidentifier() or name.startswith("_") or names.count(name) > 1:
            raise ConfigurationError(f"role '{name}': expected an identifier, different for each role")
        if name in settings.model_fields or name in (
            "tasks",
            "repeats",
            "out",
            "json",
            "config",
            "temperature",
            "max_failures",
            "help",
            "h",
        ):
            raise ConfigurationError(f"role '{name}': this is the name of a setting; choose another name")


def _settings_class(title: str, roles: Sequence[Role], base: type[RunSettings]) -> type[RunSettings]:
    fields: dict[str, Any] = {}
    for role in roles:
        if role.pool:
            description = "Model to compare; give at least two: every pair of them meets."
            fields[role.pool] = (ModelNames, Field(min_length=2, description=description))
        elif role.many:
            description = f"Model that plays the {role.name}; give several to compare them."
            fields[role.name] = (ModelNames, Field(min_length=1, description=description))
        else:
            fields[role.name] = (ModelName, Field(description=f"Model that plays the {role.name}."))
    own = {
        "tasks": (FilePath | None, Field(default=None, description=_TASKS)),
        "repeats": (int, Field(default=1, ge=1, description="How often each task is run with each model.")),
        "temperature": (float | None, temperature_option("all roles (default: set by the scenario)", None)),
        **{f"{role.name}_tokens": (int | None, tokens_option(f"answer of the {role.name}", None)) for role in roles},
    }
    fields |= {name: field for name, field in own.items() if name not in base.model_fields}
    settings_class: type[RunSettings] = create_model(f"{title}_settings", __base__=base, **fields)
    if "tasks" in fields:
        settings_class.examples = {"tasks": "tasks.jsonl"} | base.examples
    return settings_class


def _parameter_types(function: ScenarioFunction) -> list[Any]:
    """Return the types of conversation, task and settings; `Any` if there is no annotation."""
    try:
        hints = get_type_hints(function)
    except NameError as error:
        raise ConfigurationError(f"{function.__name__}: cannot read its annotations: {error}") from None
    parameters = list(inspect.signature(function).parameters)
    if not 2 <= len(parameters) <= 3:
        raise ConfigurationError(
            f"{function.__name__}: expected the parameters (conversation, task), or (conversation, task, settings) "
            "with the settings' type in the decorator: settings=…, a subclass of viva.RunSettings"
        )
    return [hints.get(name, Any) for name in parameters]


def _check_settings(function: ScenarioFunction, types: Sequence[Any], settings: type[RunSettings]) -> None:
    """Check that the function takes the settings that the decorator names."""
    expected = types[2] if len(types) == 3 else Any
    if expected is not Any and isinstance(expected, type) and not issubclass(settings, expected):
        name = expected.__name__
        raise ConfigurationError(f"{function.__name__}: takes settings of the type {name}; name it in the decorator, "
                                 f"settings={name}, a subclass of viva.RunSettings")  # fmt: skip


def _adapter(function: ScenarioFunction, kind: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(kind)
    except PydanticSchemaGenerationError:
        raise ConfigurationError(
            f"{function.__name__}: tasks of the type {kind!r} cannot be read from JSON; take a text, a number, a dict, "
            "a dataclass or a pydantic model"
        ) from None


def _has_settings_parameter(function: ScenarioFunction) -> bool:
    return len(inspect.signature(function).parameters) > 2


def _file_of(function: ScenarioFunction) -> Path | None:
    module = sys.modules.get(function.__module__)
    file = getattr(module, "__file__", None)
    return None if file is None else Path(file).resolve()
