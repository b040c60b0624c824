"""Converter of suites and rubrics from FlexEval's own (upstream) formats; notes name what has no counterpart."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson

from viva.engine.backends.http_application_mapping import inline_name
from viva.engine.errors import ConfigurationError
from viva.engine.imports import import_file
from viva.engine.permissions import PYTHON_TOOLS_OPTION, NotPermitted, permissions
from viva.engine.yaml_file import read_yaml

from .builtin_metrics import BUILTIN
from .dialog import Level
from .metrics import find_function
from .readers.checkpoints import CHECKPOINT_SUFFIXES
from .rubric import BUILTIN_RUBRICS

LEVELS_UPSTREAM: dict[str, Level] = {
    "Thread": "conversation",
    "Turn": "turn",
    "Message": "message",
    "ToolCall": "tool_call",
}
_MAX_NAME = 80  # characters
_MAX_CODE_BYTES = 4_000_000


@dataclass(frozen=True, slots=True)
class _Counterpart:
    """Counterpart of an upstream function.

    It has a name, fixed arguments, new names of arguments and values, and a note on how it `differs`. `ignored` are
    arguments that it does not take, `missing_levels` the levels at which only upstream's function works.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    argument_names: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, str] | None = None
    differs: str = ""
    ignored: Sequence[str] = ()
    missing_levels: Sequence[str] = ()


_NO_NAMES: Mapping[str, str] = {}  # the value is a plain number here
_ROLES = {"human": "user", "ai": "assistant"}  # LangGraph's types of messages
COUNTERPARTS: dict[str, _Counterpart] = {
    "count_emojis": _Counterpart("emojis", differs="takes no Chinese, Japanese or Korean letters for emojis"),
    "count_errors": _Counterpart("tool_errors", missing_levels=("ToolCall",)),
    "count_llm_models": _Counterpart("models"),
    "count_messages": _Counterpart("messages"),
    "count_messages_per_role": _Counterpart(
        "messages_per_role",
        differs="also counts system messages of a conversation, and tool results as `tool`",
        ignored=("use_langgraph_roles",),
    ),
    "count_numeric_tool_call_params_by_name": _Counterpart("tool_call_numbers"),
    "count_of_parts_matching_regex": _Counterpart(
        "matches", argument_names={"expression": "pattern"}, values=_NO_NAMES
    ),
    "count_tokens": _Counterpart(
        "tokens",
        values={"prompt_tokens": "prompt", "completion_tokens": "completion"},
        differs="has no value if no tokens were recorded; upstream returns 0",
    ),
    "count_tool_calls": _Counterpart("tool_calls"),
    "count_tool_calls_by_name": _Counterpart("tool_calls_by_name"),
    "count_turns": _Counterpart("turns"),
    "identity": _Counterpart("object_type"),
    "index_in_thread": _Counterpart("position", differs="counts system messages too, at the level Message"),
    "is_langgraph_type": _Counterpart(
        "is_role",
        argument_names={"type": "role"},
        values=_ROLES,
        differs="compares the message's role, of any file",
    ),
    "is_last_turn_in_thread": _Counterpart("is_last_turn"),
    "latency": _Counterpart("latency", differs="sums the recorded seconds; upstream compares message timestamps"),
    "message_matches_regex": _Counterpart("matches", argument_names={"expression": "pattern"}, values=_NO_NAMES),
    "openai_moderation_api": _Counterpart("moderation"),
    "string_length": _Counterpart(
        "length", differs="counts the whole text of a turn or conversation, including separators between messages"
    ),
    "tool_was_called": _Counterpart("calls_tool"),
    "value_counts_by_tool_name": _Counterpart("tool_result_values", argument_names={"json_key": "key"}),
}
_TEMPLATES = ("process_conversation", "process_single_message")  # upstream's examples, which return nothing
_UNMAPPED_RUBRICS = (
    "are_bounds_reasonable_with_plot_generated_correctly",
    "is_correct_plot",
    "is_plot_generated_upon_request_pedagogically_appropriate",
    "is_request_for_plot",
    "is_student_acting_as_tutor",
    "plot_bounds_are_reasonable",
    "plot_matches_followup_description",
)
_METRIC_KEYS = {"name", "depends_on", "metric_level", "kwargs", "context_only", "last_instance_only", "notes", "type"}
_OBSOLETE_KEYS = ("context_only", "last_instance_only", "last_turn_only")  # of earlier versions
_DEPENDENCY_KEYS = {
    "name", "type", "kwargs", "metric_name", "metric_level", "relative_object_position", "metric_min_value",
    "metric_max_value", *_OBSOLETE_KEYS,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class OwnFunction:
    """A function in a file of the suite.

    `problem` says why it cannot be used, and is empty if it can. `level` is the level of a metric that states none.
    """

    reference: str
    problem: str = ""
    level: str = "Turn"


@dataclass(slots=True)
class _UpstreamMetric:
    """An upstream metric.

    `location` names it in errors and notes, `converted_name` is its new name, `omission` the reason if it is left out.
    """

    kind: str
    raw: Mapping[str, Any]
    location: str
    name: str
    level: str
    kwargs: dict[str, Any]
    converted_name: str = ""
    omission: str = ""

    def __str__(self) -> str:
        arguments = ", ".join(f"{key}: {value}" for key, value in self.kwargs.items())
        return f"{self.location} ({self.name}{f' with {arguments}' if arguments else ''}, {self.level})"


def convert_metrics(
    metrics: Any, own: Mapping[str, OwnFunction], rubrics: Sequence[str], source: str, notes: list[str]
) -> list[dict[str, Any]]:
    """Convert upstream metrics to our format, adding notes.

    Functions of the suite's own files (`own`, by name) take precedence over upstream's if they can be used. `rubrics`
    are the names of the suite's rubrics; `source` names the suite in errors.

    Raises:
        ConfigurationError: The metrics are invalid, or a dependency matches none or several.
    """
    items = [
        item
        for kind in ("function", "rubric")
        for item in _read_metrics(_read_list(metrics, kind, f"{source}: metrics"), kind, source, own)
    ]
    notes += [f"metrics.{key}: unknown; left out" for key in sorted(set(metrics) - {"function", "rubric"})]
    items = _with_unique_names(items, notes)
    parents = {id(item): _find_parents(item, items, source) for item in items}
    for item in items:
        item.omission = _omission_reason(item, own, rubrics)
    _leave_out_dependents(items, parents)
    notes += [f"{item}: left out: {item.omission}" for item in items if item.omission]
    notes += _replacement_notes([item for item in items if not item.omission], own)
    return [_convert_metric(item, parents[id(item)], own, notes) for item in items if not item.omission]


def _replacement_notes(items: Sequence[_UpstreamMetric], own: Mapping[str, OwnFunction]) -> list[str]:
    """Return a note for each reason for which functions of the suite's files are replaced by built-in ones."""
    replaced: dict[str, dict[str, str]] = {}
    for item in items:
        function = own.get(item.name) if item.kind == "function" else None
        if function is not None and function.problem:
            counterpart = COUNTERPARTS.get(item.name)
            replaced.setdefault(function.problem, {})[item.name] = counterpart.name if counterpart else item.name
    return [
        f"{problem}; built-in functions measure instead: "
        + ", ".join(name if name == new else f"{name} (`{new}`)" for name, new in names.items())
        for problem, names in replaced.items()
    ]


def _read_list(holder: Any, key: str, source: str) -> list[Any]:
    if not isinstance(holder, Mapping):
        raise ConfigurationError(f"{source}: expected `function` and `rubric`, found {holder!r:.60}")
    value = holder.get(key)
    if value is not None and not isinstance(value, list):
        raise ConfigurationError(f"{source}.{key}: expected a list, found {value!r:.60}")
    return value or []


def _read_metrics(
    values: Sequence[Any], kind: str, source: str, own: Mapping[str, OwnFunction]
) -> list[_UpstreamMetric]:
    metrics = []
    for number, raw in enumerate(values):
        location = f"metrics.{kind}[{number}]"
        if not isinstance(raw, Mapping) or not isinstance(raw.get("name"), str) or not raw["name"]:
            raise ConfigurationError(f"{source}: {location}: expected an object with a name, found {raw!r:.60}")
        function = own.get(raw["name"]) if kind == "function" else None
        level = raw.get("metric_level") or (function.level if function is not None else "Turn")
        if level not in LEVELS_UPSTREAM:
            raise ConfigurationError(
                f"{source}: {location}: metric_level {level!r:.40} is not one of {', '.join(LEVELS_UPSTREAM)}"
            )
        kwargs = raw.get("kwargs") or {}
        if not isinstance(kwargs, Mapping):
            raise ConfigurationError(f"{source}: {location}: kwargs: expected an object, found {kwargs!r:.60}")
        metrics.append(_UpstreamMetric(kind, raw, location, raw["name"], level, dict(kwargs)))
    return metrics


def _with_unique_names(items: Sequence[_UpstreamMetric], notes: list[str]) -> list[_UpstreamMetric]:
    """Drop duplicates and give each item a unique name: upstream's name, with arguments and level if it is shared."""
    unique: list[_UpstreamMetric] = []
    for item in items:
        matches = (
            other for other in unique if (other.name, other.level, other.kwargs) == (item.name, item.level, item.kwargs)
        )
        duplicate = next((other for other in matches if other.kind == item.kind and other.raw == item.raw), None)
        if duplicate is None:
            unique.append(item)
        else:
            notes.append(f"{item}: duplicate of {duplicate.location}; left out")
    by_name = Counter(other.name for other in unique)
    by_arguments = Counter(_name_with_arguments(other) for other in unique)
    uses: Counter[str] = Counter()
    for item in unique:
        name = item.name if by_name[item.name] == 1 else _name_with_arguments(item)
        if by_name[item.name] > 1 and by_arguments[_name_with_arguments(item)] > 1:
            name = f"{name}_{LEVELS_UPSTREAM[item.level]}"
        name = re.sub(r"[^\w .()=,-]", "_", name)[:_MAX_NAME]
        uses[name] += 1
        item.converted_name = name if uses[name] == 1 else f"{name[: _MAX_NAME - 4]}_{uses[name]}"
    return unique


def _name_with_arguments(item: _UpstreamMetric) -> str:
    return "_".join([item.name, *(str(value) for value in item.kwargs.values())])


def _find_parents(
    item: _UpstreamMetric, items: Sequence[_UpstreamMetric], source: str
) -> list[tuple[_UpstreamMetric, Mapping[str, Any]]]:
    """Return the dependencies of a metric, each with the metric that it names."""
    parents = []
    for number, raw in enumerate(_read_list(item.raw, "depends_on", f"{source}: {item}")):
        location = f"{source}: {item}: depends_on[{number}]"
        if not isinstance(raw, Mapping):
            raise ConfigurationError(f"{location}: expected an object, found {raw!r:.60}")
        if unknown := sorted(set(raw) - _DEPENDENCY_KEYS):
            raise ConfigurationError(
                f"{location}: unknown field {unknown[0]!r}; known: {', '.join(sorted(_DEPENDENCY_KEYS))}"
            )
        position = raw.get("relative_object_position", 0)
        if not isinstance(position, int) or isinstance(position, bool) or position > 0:
            raise ConfigurationError(
                f"{location}: relative_object_position {position!r}: expected 0 (same unit) or less (earlier unit)"
            )
        if raw.get("metric_level") is not None and raw["metric_level"] not in LEVELS_UPSTREAM:
            raise ConfigurationError(
                f"{location}: metric_level {raw['metric_level']!r} is not one of {', '.join(LEVELS_UPSTREAM)}"
            )
        for bound in ("metric_min_value", "metric_max_value"):
            if isinstance(raw.get(bound), bool) or not isinstance(raw.get(bound), int | float | None):
                raise ConfigurationError(f"{location}: {bound}: expected a number, found {raw[bound]!r:.60}")
        parents.append((_find_parent(raw, item, items, location), raw))
    return parents


def _find_parent(
    raw: Mapping[str, Any], child: _UpstreamMetric, items: Sequence[_UpstreamMetric], location: str
) -> _UpstreamMetric:
    """Return the single metric that a dependency names."""
    candidates = [metric for metric in items if metric is not child]
    if raw.get("name") is not None:
        candidates = [metric for metric in candidates if metric.name == raw["name"]]
    if not candidates:
        known_names = (
            ", ".join(dict.fromkeys(metric.name for metric in items if metric is not child)) or "no other metric"
        )
        raise ConfigurationError(f"{location}: unknown metric {raw.get('name')!r}; known: {known_names}")
    namesakes = candidates
    if raw.get("type") is not None:
        candidates = [metric for metric in candidates if metric.kind == raw["type"]]
    if raw.get("metric_level") is not None:
        candidates = [metric for metric in candidates if metric.level == raw["metric_level"]]
    if raw.get("kwargs") is not None:
        candidates = [metric for metric in candidates if metric.kwargs == raw["kwargs"]]
    for key in _OBSOLETE_KEYS:  # they distinguish metrics of one name
        if raw.get(key) is not None:
            candidates = [metric for metric in candidates if bool(metric.raw.get(key)) == bool(raw[key])]
    if not candidates:
        raise ConfigurationError(f"{location}: no metric matches; metrics of that name: {_join_names(namesakes)}")
    if len(candidates) > 1:  # earlier versions only allowed dependencies within one level
        candidates = [metric for metric in candidates if metric.level == child.level] or candidates
    if len(candidates) > 1:
        raise ConfigurationError(
            f"{location}: matches several metrics: {_join_names(candidates)}; add `kwargs`, `metric_level` or `type` "
            "to pick one (`metric_name` names a value, not a metric)"
        )
    return candidates[0]


def _join_names(items: Sequence[_UpstreamMetric]) -> str:
    return "; ".join(map(str, items))


def _omission_reason(item: _UpstreamMetric, own: Mapping[str, OwnFunction], rubrics: Sequence[str]) -> str:
    if old := next((key for key in _OBSOLETE_KEYS if item.raw.get(key)), None):
        return f"`{old}` is not supported"
    if item.kind == "rubric":
        is_known = item.name in rubrics or item.name in BUILTIN_RUBRICS
        return "" if is_known or item.name not in _UNMAPPED_RUBRICS else (
            "its rubric ships with upstream only; put it into a file under `rubric_paths`"
        )  # fmt: skip
    function = own.get(item.name)
    if function is not None and not function.problem:
        return ""
    counterpart = COUNTERPARTS.get(item.name)
    if counterpart is not None and item.level in counterpart.missing_levels:
        return f"its counterpart `{counterpart.name}` has no level {item.level}; use Message"
    if function is not None and counterpart is None and item.name not in BUILTIN:
        return function.problem
    return "it is upstream's template, which returns nothing" if item.name in _TEMPLATES else ""


def _leave_out_dependents(
    items: Sequence[_UpstreamMetric], parents: Mapping[int, Sequence[tuple[_UpstreamMetric, Mapping[str, Any]]]]
) -> None:
    changed = True
    while changed:
        changed = False
        for item in items:
            missing = next((parent for parent, _ in parents[id(item)] if parent.omission), None)
            if missing is not None and not item.omission:
                item.omission, changed = f"it depends on {missing.converted_name}, which is left out", True


def _convert_metric(
    item: _UpstreamMetric,
    parents: Sequence[tuple[_UpstreamMetric, Mapping[str, Any]]],
    own: Mapping[str, OwnFunction],
    notes: list[str],
) -> dict[str, Any]:
    converted: dict[str, Any] = {"name": item.converted_name}
    if item.kind == "rubric":
        converted["rubric"] = item.name
        if item.kwargs:
            notes.append(f"{item}: kwargs: not supported for rubrics; left out")
    else:
        converted["function"], arguments = _convert_function(item, own.get(item.name), notes)
        if arguments:
            converted["arguments"] = arguments
    converted["level"] = LEVELS_UPSTREAM[item.level]
    notes += [f"{item}: {key}: unknown; left out" for key in sorted(set(item.raw) - _METRIC_KEYS)]
    if parents:
        converted["when"] = [_convert_condition(parent, raw, own) for parent, raw in parents]
    return converted


def _convert_function(
    item: _UpstreamMetric, function: OwnFunction | None, notes: list[str]
) -> tuple[str, dict[str, Any]]:
    """Return the name of a metric's function and its arguments: the suite's own function, or the counterpart."""
    if function is not None and not function.problem:
        return function.reference, item.kwargs
    counterpart = COUNTERPARTS.get(item.name) or _Counterpart(item.name)
    known = {key: value for key, value in item.kwargs.items() if key not in counterpart.ignored}
    renamed = {counterpart.argument_names.get(key, key): value for key, value in known.items()}
    if item.name == "is_langgraph_type" and isinstance(renamed.get("role"), str):
        renamed["role"] = _ROLES.get(renamed["role"], renamed["role"])
    if counterpart.differs:
        notes.append(f"{item}: measured by `{counterpart.name}`, which {counterpart.differs}")
    notes += [f"{item}: {key}: left out" for key in item.kwargs if key in counterpart.ignored]
    return counterpart.name, {**counterpart.arguments, **renamed}


def _convert_condition(
    parent: _UpstreamMetric, raw: Mapping[str, Any], own: Mapping[str, OwnFunction]
) -> dict[str, Any]:
    condition: dict[str, Any] = {"metric": parent.converted_name}
    value = raw.get("metric_name")
    if value is not None and value != parent.name:
        function = own.get(parent.name)
        is_own = function is not None and not function.problem
        values = COUNTERPARTS[parent.name].values if parent.name in COUNTERPARTS and not is_own else None
        value_name = value if values is None else values.get(value)
        if value_name is not None:
            condition["value"] = value_name
    if raw.get("relative_object_position"):
        condition["position"] = raw["relative_object_position"]
    low, high = raw.get("metric_min_value"), raw.get("metric_max_value")
    if low is not None or high is None:
        # If there are no bounds, upstream accepts every number, by this lower bound.
        condition["at_least"] = -sys.float_info.max if low is None else low
    if high is not None:
        condition["at_most"] = high
    return condition


_SUITE_KEYS = {"data", "metrics", "do_completion", "grader_llm", "completion_llm", "name", "notes", "config"}
_RUN_KEYS = {"data_sources", "eval", "rubric_paths", "function_modules", "add_default_functions", "config"}
# Files beside a file of several suites (Christie et al. 2024, section 2): functions, rubrics, completion functions.
SUITES_FILE = "evals.yaml"
_FUNCTIONS_FILE, _RUBRICS_FILE, _COMPLETIONS_FILE = (
    "function_metrics.py",
    "rubric_metrics.yaml",
    "completion_functions.py",
)
_FIXED_ANSWERS = {"no_completion_fn": "hello world", "placeholder_completion": "hi"}


def is_upstream(value: Any) -> bool:
    """Return True if a file's value has one of upstream's formats."""
    return isinstance(value, Mapping) and (isinstance(value.get("eval"), Mapping) or bool(suite_names(value)))


def suite_names(value: Any) -> list[str]:
    """Return the names of the suites in a file's value, if it has several."""
    if not isinstance(value, Mapping):
        return []
    return [
        str(name)
        for name, body in value.items()
        if isinstance(body, Mapping)
        and isinstance(body.get("metrics"), Mapping)
        and body["metrics"].keys() & {"function", "rubric"}
    ]


def convert_suite(value: Mapping[str, Any], path: Path, name: str | None = None) -> tuple[dict[str, Any], list[str]]:
    """Convert the suite of a file, or its suite `name`, to our format; return it with notes on what did not map.

    Raises:
        ConfigurationError: There is no such suite, it has no readable conversations, or a metric's dependency matches
            none or several.
    """
    if isinstance(value.get("eval"), Mapping):
        if name is not None and name != value["eval"].get("name"):
            raise ConfigurationError(f"{path}: contains a single suite; omit '#{name}'")
        suite, own = dict(value["eval"]), dict(value)
        suite_name = str(suite.get("name") or path.stem)
    else:
        suite_name = _choose_suite(suite_names(value), path, name)
        suite = dict(next(body for key, body in value.items() if str(key) == suite_name))
        own = {"config": suite.get("config")}
        for key, sibling in (("function_modules", _FUNCTIONS_FILE), ("rubric_paths", _RUBRICS_FILE)):
            own[key] = [sibling] if (path.parent / sibling).is_file() else []
    source = f"{path}: suite '{suite_name}'"
    notes: list[str] = []
    converted: dict[str, Any] = {"name": suite_name}
    converted["conversations"] = _conversation_files(suite.get("data"), own.get("data_sources"), path, source, notes)
    converted["complete"] = "last" if suite.get("do_completion") else "none"
    completions = path.parent / _COMPLETIONS_FILE
    if suite.get("do_completion") and (
        model := _convert_model(suite.get("completion_llm"), "completion_llm", source, completions, notes)
    ):
        converted["system"] = model
    if suite.get("completion_llm") and not suite.get("do_completion"):
        notes.append("completion_llm: not used, because do_completion is off")
    if model := _convert_model(suite.get("grader_llm"), "grader_llm", source, completions, notes):
        converted["grader"] = model
    files = _existing_files(own.get("function_modules"), "function_modules", path, notes)
    rubrics = _existing_files(own.get("rubric_paths"), "rubric_paths", path, notes)
    functions = _own_functions(files, path.parent, suite.get("metrics"))
    known_rubrics = [str(rubric) for file in rubrics for rubric in read_yaml(path.parent / file) or ()]
    converted["metrics"] = convert_metrics(suite.get("metrics"), functions, known_rubrics, source, notes)
    if not converted["metrics"]:
        raise ConfigurationError(f"{source}: no metric could be converted: {'; '.join(notes)}")
    if rubrics:
        converted["rubrics"] = rubrics
    _convert_rest(own, suite, converted, notes)
    return converted, [f"{suite_name}: {note}" for note in notes]


def convert_rubrics(value: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the rubrics of a file to our format; by default their choice is on a line, as their prompts ask."""
    rubrics: dict[str, Any] = {}
    for name, body in value.items():
        if isinstance(body, Mapping) and "choice_scores" in body:
            body = {
                "answer": "line",
                **{key: field_value for key, field_value in body.items() if field_value is not None and key != "name"},
            }
        rubrics[str(name)] = body
    return rubrics


def _choose_suite(names: Sequence[str], path: Path, name: str | None) -> str:
    if name is None and len(names) == 1:
        return names[0]
    if name in names:
        return str(name)
    problem = "contains several suites" if name is None else f"contains no suite '{name}'"
    raise ConfigurationError(f"{path}: {problem}; select one as {path.name}#NAME: {', '.join(names)}")


def _conversation_files(data: Any, sources: Any, path: Path, source: str, notes: list[str]) -> list[str]:
    """Return the files of conversations; unsupported ones are noted."""
    files: list[str] = []
    for key, values in (("data", data), ("data_sources", sources)):
        if values is not None and not isinstance(values, list):
            raise ConfigurationError(f"{source}: {key}: expected a list, found {values!r:.60}")
        for number, entry in enumerate(values or ()):
            location = f"{key}[{number}]"
            name = entry.get("path") if isinstance(entry, Mapping) else entry
            if not isinstance(name, str):
                kind = entry.get("type") if isinstance(entry, Mapping) else entry
                notes.append(f"{location}: {kind!r:.60} is not a file; left out")
            else:
                files.append(_resolve_path(name, path, location, notes))
                if Path(name).suffix in CHECKPOINT_SUFFIXES:
                    notes.append(f"{location}: tool results have the role `tool`; upstream counts them as assistant")
    if not files:
        reasons = f": {'; '.join(notes)}" if notes else ""
        raise ConfigurationError(f"{source}: no readable conversations{reasons}")
    return list(dict.fromkeys(files))


def _resolve_path(name: str, path: Path, location: str, notes: list[str]) -> str:
    """Resolve a path from the suite's file; upstream's paths may start in any folder above it."""
    folder = path.parent.absolute()
    if Path(name).is_absolute() or (folder / name).exists():
        return name
    below = name
    while below.startswith("../"):  # relative to upstream's own code, which is elsewhere
        below = below[3:]
    for relative in dict.fromkeys((name, below)):
        ancestor = next((parent for parent in (folder, *folder.parents) if (parent / relative).exists()), None)
        if ancestor is not None:
            return str(ancestor / relative)
    file_name = Path(name).name
    if (folder / file_name).exists():
        notes.append(f"{location}: {name} does not exist; using {file_name} next to the suite's file")
        return file_name
    return name


def _existing_files(values: Any, field: str, path: Path, notes: list[str]) -> list[str]:
    """Return the existing files of a list; missing ones are noted."""
    files = []
    for number, name in enumerate(values if isinstance(values, list) else []):
        location = f"{field}[{number}]"
        if not isinstance(name, str):
            notes.append(f"{location}: {name!r:.60} is not a file; left out")
            continue
        file = _resolve_path(name, path, location, notes)
        if (path.parent / file).is_file():
            files.append(file)
        else:
            notes.append(f"{location}: {name} does not exist; left out")
    return files


def _first_parameters(file: Path) -> dict[str, str]:
    """Return the first parameter of each function in a Python file, "" if it has none, without executing it."""
    try:
        if file.stat().st_size > _MAX_CODE_BYTES:
            raise ConfigurationError(f"{file}: has more than {_MAX_CODE_BYTES:,} bytes")
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigurationError(f"{file}: cannot be read as Python: {error}") from None
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    parameters = {node.name: [*node.args.posonlyargs, *node.args.args] for node in functions}
    return {name: names[0].arg if names else "" for name, names in parameters.items()}


def _own_functions(files: Sequence[str], folder: Path, metrics: Any) -> dict[str, OwnFunction]:
    """Return the functions of a suite's files that its metrics name; the first file that defines a name counts."""
    used = {
        entry["name"]
        for entry in _read_list(metrics, "function", "metrics")
        if isinstance(entry, Mapping) and isinstance(entry.get("name"), str)
    }
    functions: dict[str, OwnFunction] = {}
    for file in files:
        parameters = {
            name: parameter
            for name, parameter in _first_parameters(folder / file).items()
            if name in used and name not in functions
        }
        problem = _import_problem(folder / file) if parameters else ""
        for name, parameter in parameters.items():
            function_problem = problem or _function_problem(f"{(folder / file).resolve()}#{name}")
            # In the paper's version, the parameter's name decides: `turn`, or `conversation`.
            level = "Thread" if parameter == "conversation" else "Turn"
            functions[name] = OwnFunction(f"{file}#{name}", function_problem, level)
    return functions


def _import_problem(file: Path) -> str:
    """Return why the functions of a Python file cannot be used; empty if it was granted and can be imported."""
    path = file.resolve()
    try:
        permissions().check_code(path)
        import_file(path)
    except NotPermitted as error:
        if permissions().client is not None:
            return str(error)
        return f"{file.name} is not run without {PYTHON_TOOLS_OPTION} {path}"
    except ConfigurationError as error:
        return f"cannot be imported: {error}"
    return ""


def _function_problem(reference: str) -> str:
    try:
        find_function(reference, ())
    except ConfigurationError as error:
        return str(error)
    return ""


def _convert_model(value: Any, field: str, source: str, completions: Path, notes: list[str]) -> str | None:
    """Return the model for an upstream completion function, or None if there is none.

    `completions` is the file of completion functions beside the suites; its functions with a counterpart are not run.
    """
    if value is None:
        return None
    if not isinstance(value, Mapping) or not isinstance(value.get("function_name"), str):
        raise ConfigurationError(f"{source}: {field}: expected function_name and kwargs, found {value!r:.60}")
    function, kwargs = value["function_name"], dict(value.get("kwargs") or {})
    if value.get("include_system_prompt") is False:
        notes.append(f"{field}: include_system_prompt: system messages are always sent")
    text = _FIXED_ANSWERS.get(function)
    if function == "echo_completion" and isinstance(kwargs.get("response"), str):
        # Upstream suites write \n in plain YAML scalars, where it stays two characters.
        text = kwargs.pop("response").replace("\\n", "\n")
    model = kwargs.pop("model_name", None) if function != "gpt_3p5_turbo" else "gpt-3.5-turbo"
    converted = None
    if text is not None:
        converted = f"fixed:?label=echo&text={quote(text, safe='')}"
    elif function in ("open_ai_completion", "open_ai_completion_async", "gpt_3p5_turbo") and model:
        key = kwargs.pop("api_key_name", None) or kwargs.pop("key_name", None)
        converted = f"openai:{model}" + (f"?key_env={key}" if key not in (None, "OPENAI_API_KEY") else "")
    elif function in ("jan_completion", "lm_studio_completion") and model and isinstance(kwargs.get("endpoint"), str):
        converted = f"openai:{kwargs.pop('endpoint')}#{model}"
    elif function == "generic_rest_api_completion" and isinstance(kwargs.get("endpoint"), str):
        converted = _rest_application(kwargs.pop("endpoint"), kwargs.pop("api_key_name", None))
    elif completions.is_file() and function in _first_parameters(completions):
        arguments = quote(orjson.dumps(dict(value.get("kwargs") or {})).decode(), safe="")
        return f"python:{_COMPLETIONS_FILE}#{function}?arguments={arguments}"
    if converted is None:
        notes.append(
            f"{field}: {function}: no counterpart; name a model with --candidate or --grader, or define the function "
            f"in {_COMPLETIONS_FILE} beside the suites"
        )
        return None
    notes += [f"{field}: {key}: left out; set model options in the model's name or in the suite" for key in kwargs]
    return converted


def _rest_application(endpoint: str, key: Any) -> str:
    """Return the model of an application that gets the whole history and answers with the field `completion`."""
    headers = (
        {"headers": {"Authorization": f"Bearer ${{{key}}}"}} if isinstance(key, str) and key.isidentifier() else {}
    )
    return inline_name({"url": endpoint, **headers, "body": "{messages}", "answer": "completion"})


def _convert_rest(
    own: Mapping[str, Any], suite: Mapping[str, Any], converted: dict[str, Any], notes: list[str]
) -> None:
    """Convert the remaining fields, and note those without a counterpart."""
    config = own.get("config")
    for key, value in config.items() if isinstance(config, Mapping) else ():
        if key == "nb_evaluations_per_thread" and isinstance(value, int) and value > 0:
            converted["repeats"] = value
        elif key == "random_seed_conversation_sampling" and isinstance(value, int):
            converted["seed"] = value
        elif key == "max_n_conversation_threads":
            notes.append(f"config.{key}: all conversations are tested; -n {value} tests the first {value}")
        else:
            notes.append(f"config.{key}: no counterpart; left out")
    unknown = [key for key in own if key not in _RUN_KEYS] + [key for key in suite if key not in _SUITE_KEYS]
    notes += [f"{key}: no counterpart; left out" for key in unknown]
