"""Suites and rubrics in FlexEval's own (upstream) forms, converted to ours; notes name what has no counterpart."""

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

from viva.engine.errors import ConfigurationError
from viva.engine.yaml_file import read_yaml

from .builtin_metrics import BUILTIN
from .dialog import Level
from .rubric import BUILTIN_RUBRICS

LEVELS_UPSTREAM: dict[str, Level] = {
    "Thread": "conversation",
    "Turn": "turn",
    "Message": "message",
    "ToolCall": "tool_call",
}
_MAX_NAME = 80  # characters of a name


@dataclass(frozen=True, slots=True)
class _Counterpart:
    """What stands for one of upstream's functions: its name here, fixed arguments, its arguments' and values' names
    where they differ, and how it differs.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, str] | None = None
    differs: str = ""


_NO_NAMES: Mapping[str, str] = {}  # of values: it is a plain number here
COUNTERPARTS: dict[str, _Counterpart] = {
    "string_length": _Counterpart(
        "length", differs="counts the text of a turn or conversation as a whole, what stands between messages included"
    ),
    "count_tokens": _Counterpart(
        "tokens",
        values={"prompt_tokens": "prompt", "completion_tokens": "completion"},
        differs="has no value where nobody recorded tokens; there it is 0",
    ),
    "latency": _Counterpart(
        "latency", differs="adds up the seconds that were recorded; there it compares times of messages"
    ),
    "count_messages_per_role": _Counterpart(
        "messages_per_role", differs="counts system messages of a conversation, too"
    ),
    "count_tool_calls": _Counterpart("tool_calls"),
    "count_tool_calls_by_name": _Counterpart("tool_calls_by_name"),
    "count_numeric_tool_call_params_by_name": _Counterpart(
        "tool_call_arguments", {"numeric": True}, differs="counts the numeric arguments; there it gives their values"
    ),
    "message_matches_regex": _Counterpart("matches", renamed={"expression": "pattern"}, values=_NO_NAMES),
    "count_of_parts_matching_regex": _Counterpart("matches", renamed={"expression": "pattern"}, values=_NO_NAMES),
    "openai_moderation_api": _Counterpart("moderation"),
}
# Functions and rubrics of upstream's own that nothing stands for here.
_UNMAPPED = (
    "count_emojis",
    "count_errors",
    "count_llm_models",
    "count_messages",
    "index_in_thread",
    "is_langgraph_type",
    "is_last_turn_in_thread",
    "tool_was_called",
    "value_counts_by_tool_name",
)
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


@dataclass(slots=True)
class _UpstreamMetric:
    """A metric of upstream's. ``place`` names it in errors and notes, ``ours`` is its name here."""

    kind: str
    raw: Mapping[str, Any]
    place: str
    name: str
    level: str
    kwargs: dict[str, Any]
    ours: str = ""
    left_out: str = ""

    def __str__(self) -> str:
        told = ", ".join(f"{key}: {value}" for key, value in self.kwargs.items())
        return f"{self.place} ({self.name}{f' with {told}' if told else ''}, {self.level})"


def convert_metrics(
    metrics: Any, own: Sequence[str], rubrics: Sequence[str], where: str, notes: list[str]
) -> list[dict[str, Any]]:
    """The metrics in our form.

    :param own: names of functions that files of the suite define; they come before upstream's.
    :param rubrics: names of the suite's rubrics.
    :param where: the suite, for errors.
    :raises ConfigurationError: they are no metrics, or a dependency names none or several; the message lists which.
    """
    items = [
        item
        for kind in ("function", "rubric")
        for item in _read_metrics(_read_list(metrics, kind, f"{where}: metrics"), kind, where)
    ]
    notes += [f"metrics.{key}: unknown, and left out" for key in sorted(set(metrics) - {"function", "rubric"})]
    items = _with_unique_names(items, notes)
    parents = {id(item): _parents(item, items, where) for item in items}
    for item in items:
        item.left_out = _why_left_out(item, own, rubrics)
    _leave_out_dependents(items, parents)
    notes += [f"{item}: left out: {item.left_out}" for item in items if item.left_out]
    return [_convert_metric(item, parents[id(item)], own, notes) for item in items if not item.left_out]


def _read_list(holder: Any, key: str, where: str) -> list[Any]:
    if not isinstance(holder, Mapping):
        raise ConfigurationError(f"{where}: expected `function` and `rubric`, found {holder!r:.60}")
    value = holder.get(key)
    if value is not None and not isinstance(value, list):
        raise ConfigurationError(f"{where}.{key}: expected a list, found {value!r:.60}")
    return value or []


def _read_metrics(values: Sequence[Any], kind: str, where: str) -> list[_UpstreamMetric]:
    found = []
    for number, raw in enumerate(values):
        place = f"metrics.{kind}[{number}]"
        if not isinstance(raw, Mapping) or not isinstance(raw.get("name"), str) or not raw["name"]:
            raise ConfigurationError(f"{where}: {place}: expected an object with a name, found {raw!r:.60}")
        level = raw.get("metric_level") or "Turn"
        if level not in LEVELS_UPSTREAM:
            raise ConfigurationError(
                f"{where}: {place}: metric_level {level!r:.40} is none of {', '.join(LEVELS_UPSTREAM)}"
            )
        kwargs = raw.get("kwargs") or {}
        if not isinstance(kwargs, Mapping):
            raise ConfigurationError(f"{where}: {place}: kwargs: expected an object, found {kwargs!r:.60}")
        found.append(_UpstreamMetric(kind, raw, place, raw["name"], level, dict(kwargs)))
    return found


def _with_unique_names(items: Sequence[_UpstreamMetric], notes: list[str]) -> list[_UpstreamMetric]:
    """The items, each with a name of its own: upstream's, with arguments and level where several share it."""
    kept: list[_UpstreamMetric] = []
    for item in items:
        same = (one for one in kept if (one.name, one.level, one.kwargs) == (item.name, item.level, item.kwargs))
        twin = next((one for one in same if one.kind == item.kind and one.raw == item.raw), None)
        if twin is None:
            kept.append(item)
        else:
            notes.append(f"{item}: stands there before, at {twin.place}; left out")
    plain = Counter(one.name for one in kept)
    argued = Counter(_with_arguments(one) for one in kept)
    taken: Counter[str] = Counter()
    for item in kept:
        name = item.name if plain[item.name] == 1 else _with_arguments(item)
        if plain[item.name] > 1 and argued[_with_arguments(item)] > 1:
            name = f"{name}_{LEVELS_UPSTREAM[item.level]}"
        name = re.sub(r"[^\w .()=,-]", "_", name)[:_MAX_NAME]
        taken[name] += 1
        item.ours = name if taken[name] == 1 else f"{name[: _MAX_NAME - 4]}_{taken[name]}"
    return kept


def _with_arguments(item: _UpstreamMetric) -> str:
    return "_".join([item.name, *(str(value) for value in item.kwargs.values())])


def _parents(
    item: _UpstreamMetric, items: Sequence[_UpstreamMetric], where: str
) -> list[tuple[_UpstreamMetric, Mapping[str, Any]]]:
    """What a metric depends on: each dependency's metric, and the dependency."""
    found = []
    for number, raw in enumerate(_read_list(item.raw, "depends_on", f"{where}: {item}")):
        at = f"{where}: {item}: depends_on[{number}]"
        if not isinstance(raw, Mapping):
            raise ConfigurationError(f"{at}: expected an object, found {raw!r:.60}")
        if unknown := sorted(set(raw) - _DEPENDENCY_KEYS):
            raise ConfigurationError(
                f"{at}: unknown field {unknown[0]!r}; known: {', '.join(sorted(_DEPENDENCY_KEYS))}"
            )
        position = raw.get("relative_object_position", 0)
        if not isinstance(position, int) or isinstance(position, bool) or position > 0:
            raise ConfigurationError(
                f"{at}: relative_object_position {position!r}: expected 0 (the same one) or less (one before it)"
            )
        if raw.get("metric_level") is not None and raw["metric_level"] not in LEVELS_UPSTREAM:
            raise ConfigurationError(
                f"{at}: metric_level {raw['metric_level']!r} is none of {', '.join(LEVELS_UPSTREAM)}"
            )
        for bound in ("metric_min_value", "metric_max_value"):
            if isinstance(raw.get(bound), bool) or not isinstance(raw.get(bound), int | float | None):
                raise ConfigurationError(f"{at}: {bound}: expected a number, found {raw[bound]!r:.60}")
        found.append((_find_parent(raw, item, items, at), raw))
    return found


def _find_parent(
    raw: Mapping[str, Any], child: _UpstreamMetric, items: Sequence[_UpstreamMetric], at: str
) -> _UpstreamMetric:
    """The one metric that a dependency names."""
    found = [one for one in items if one is not child]
    if raw.get("name") is not None:
        found = [one for one in found if one.name == raw["name"]]
    if not found:
        known = ", ".join(dict.fromkeys(one.name for one in items if one is not child)) or "no other metric"
        raise ConfigurationError(f"{at}: there is no metric {raw.get('name')!r}; there are: {known}")
    named = found
    if raw.get("type") is not None:
        found = [one for one in found if one.kind == raw["type"]]
    if raw.get("metric_level") is not None:
        found = [one for one in found if one.level == raw["metric_level"]]
    if raw.get("kwargs") is not None:
        found = [one for one in found if one.kwargs == raw["kwargs"]]
    if not found:
        raise ConfigurationError(f"{at}: no metric has what it asks for; of that name there are: {_join_names(named)}")
    if len(found) > 1:  # earlier versions allowed dependencies within one level alone
        found = [one for one in found if one.level == child.level] or found
    if len(found) > 1:
        raise ConfigurationError(
            f"{at}: may mean several metrics: {_join_names(found)}; give `kwargs`, `metric_level` or `type` to tell "
            f"them "
            "apart (`metric_name` names a value, not a metric)"
        )
    return found[0]


def _join_names(items: Sequence[_UpstreamMetric]) -> str:
    return "; ".join(map(str, items))


def _why_left_out(item: _UpstreamMetric, own: Sequence[str], rubrics: Sequence[str]) -> str:
    if old := next((key for key in _OBSOLETE_KEYS if item.raw.get(key)), None):
        return f"there is nothing like `{old}` here"
    if item.kind == "rubric":
        known = item.name in rubrics or item.name in BUILTIN_RUBRICS
        return "" if known or item.name not in _UNMAPPED_RUBRICS else (
            "its rubric comes with upstream and not with this program; put it into a file under `rubric_paths`"
        )  # fmt: skip
    if item.name in own or item.name in BUILTIN or item.name not in _UNMAPPED:
        return ""
    return "nothing here stands for this function of upstream's; write it into a file under `function_modules`"


def _leave_out_dependents(
    items: Sequence[_UpstreamMetric], parents: Mapping[int, Sequence[tuple[_UpstreamMetric, Mapping[str, Any]]]]
) -> None:
    changed = True
    while changed:
        changed = False
        for item in items:
            gone = next((parent for parent, _ in parents[id(item)] if parent.left_out), None)
            if gone is not None and not item.left_out:
                item.left_out, changed = f"it depends on {gone.ours}, which is left out", True


def _convert_metric(
    item: _UpstreamMetric,
    parents: Sequence[tuple[_UpstreamMetric, Mapping[str, Any]]],
    own: Sequence[str],
    notes: list[str],
) -> dict[str, Any]:
    found: dict[str, Any] = {"name": item.ours}
    if item.kind == "rubric":
        found["rubric"] = item.name
        if item.kwargs:
            notes.append(f"{item}: kwargs: a rubric takes none here; left out")
    else:
        ours = None if item.name in own else COUNTERPARTS.get(item.name)
        found["function"] = item.name if ours is None else ours.name
        arguments = item.kwargs
        if ours is not None:
            arguments = {**ours.arguments, **{ours.renamed.get(key, key): value for key, value in item.kwargs.items()}}
            if ours.differs:
                notes.append(f"{item}: measured by `{ours.name}`, which {ours.differs}")
        if arguments:
            found["arguments"] = arguments
    found["level"] = LEVELS_UPSTREAM[item.level]
    notes += [f"{item}: {key}: unknown, and left out" for key in sorted(set(item.raw) - _METRIC_KEYS)]
    if parents:
        found["when"] = [_convert_condition(parent, raw, own) for parent, raw in parents]
    return found


def _convert_condition(parent: _UpstreamMetric, raw: Mapping[str, Any], own: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"metric": parent.ours}
    value = raw.get("metric_name")
    if value is not None and value != parent.name:
        values = COUNTERPARTS[parent.name].values if parent.name in COUNTERPARTS and parent.name not in own else None
        renamed = value if values is None else values.get(value)
        if renamed is not None:
            found["value"] = renamed
    if raw.get("relative_object_position"):
        found["position"] = raw["relative_object_position"]
    low, high = raw.get("metric_min_value"), raw.get("metric_max_value")
    if low is not None or high is None:
        # Without bounds upstream asks for any number at all, by the same one.
        found["at_least"] = -sys.float_info.max if low is None else low
    if high is not None:
        found["at_most"] = high
    return found


_SUITE_KEYS = {"data", "metrics", "do_completion", "grader_llm", "completion_llm", "name", "notes"}
_RUN_KEYS = {"data_sources", "eval", "rubric_paths", "function_modules", "add_default_functions", "config"}
_FIXED_ANSWERS = {"no_completion_fn": "hello world", "placeholder_completion": "hi"}


def is_upstream(value: Any) -> bool:
    """Whether a file's value has one of upstream's forms."""
    return isinstance(value, Mapping) and (isinstance(value.get("eval"), Mapping) or bool(suite_names(value)))


def suite_names(value: Any) -> list[str]:
    """The names of the suites in a file's value of the first form."""
    if not isinstance(value, Mapping):
        return []
    return [
        str(name)
        for name, one in value.items()
        if isinstance(one, Mapping)
        and isinstance(one.get("metrics"), Mapping)
        and one["metrics"].keys() & {"function", "rubric"}
    ]


def convert_suite(value: Mapping[str, Any], path: Path, name: str | None = None) -> tuple[dict[str, Any], list[str]]:
    """The suite of a file in our form, and what did not map, a sentence each.

    :param name: which suite, where the file holds several.
    :raises ConfigurationError: there is none of that name, it has no conversations that can be read, or a dependency
        of its metrics names none or several.
    """
    if isinstance(value.get("eval"), Mapping):
        if name is not None and name != value["eval"].get("name"):
            raise ConfigurationError(f"{path}: holds one suite; leave '#{name}' out")
        suite, own = dict(value["eval"]), dict(value)
        found_name = str(suite.get("name") or path.stem)
    else:
        found_name = _choose_suite(suite_names(value), path, name)
        suite, own = dict(value[found_name]), {}
    where = f"{path}: suite '{found_name}'"
    notes: list[str] = []
    found: dict[str, Any] = {"name": found_name}
    found["conversations"] = _conversation_files(suite.get("data"), own.get("data_sources"), path, where, notes)
    found["complete"] = "last" if suite.get("do_completion") else "none"
    if suite.get("do_completion") and (
        model := _convert_model(suite.get("completion_llm"), "completion_llm", where, notes)
    ):
        found["system"] = model
    if suite.get("completion_llm") and not suite.get("do_completion"):
        notes.append("completion_llm: not asked, for do_completion is off")
    if model := _convert_model(suite.get("grader_llm"), "grader_llm", where, notes):
        found["grader"] = model
    files = _existing_files(own.get("function_modules"), "function_modules", path, notes)
    rubrics = _existing_files(own.get("rubric_paths"), "rubric_paths", path, notes)
    names = [one for file in files for one in _function_names(path.parent / file)]
    known = [str(one) for file in rubrics for one in read_yaml(path.parent / file) or ()]
    found["metrics"] = convert_metrics(suite.get("metrics"), names, known, where, notes)
    if not found["metrics"]:
        raise ConfigurationError(f"{where}: none of its metrics maps: {'; '.join(notes)}")
    found |= {key: of for key, of in (("functions", files), ("rubrics", rubrics)) if of}
    _convert_rest(own, suite, found, notes)
    return found, [f"{found_name}: {note}" for note in notes]


def convert_rubrics(value: Mapping[str, Any]) -> dict[str, Any]:
    """The rubrics of a rubric file in our form: those that say nothing else have their choice on a line, as their
    prompts ask for it.
    """
    found: dict[str, Any] = {}
    for name, body in value.items():
        if isinstance(body, Mapping) and "choice_scores" in body:
            body = {"answer": "line", **{key: one for key, one in body.items() if one is not None and key != "name"}}
        found[str(name)] = body
    return found


def _choose_suite(names: Sequence[str], path: Path, name: str | None) -> str:
    if name is None and len(names) == 1:
        return names[0]
    if name in names:
        return str(name)
    problem = "holds several suites" if name is None else f"holds no suite '{name}'"
    raise ConfigurationError(f"{path}: {problem}; name one of them as {path.name}#NAME: {', '.join(names)}")


def _conversation_files(data: Any, sources: Any, path: Path, where: str, notes: list[str]) -> list[str]:
    """The files of conversations, those that are not read named."""
    found: list[str] = []
    for key, values in (("data", data), ("data_sources", sources)):
        if values is not None and not isinstance(values, list):
            raise ConfigurationError(f"{where}: {key}: expected a list, found {values!r:.60}")
        for number, one in enumerate(values or ()):
            at = f"{key}[{number}]"
            named = one.get("path") if isinstance(one, Mapping) else one
            if not isinstance(named, str):
                kind = one.get("type") if isinstance(one, Mapping) else one
                notes.append(f"{at}: {kind!r:.60} names no file; left out")
            elif Path(named).suffix in (".db", ".sqlite") or (
                isinstance(one, Mapping) and one.get("format") == "langgraph_sqlite"
            ):
                notes.append(f"{at}: {named}: checkpoints of LangGraph are not read; left out")
            else:
                found.append(_resolve_path(named, path, at, notes))
    if not found:
        told = f": {'; '.join(notes)}" if notes else ""
        raise ConfigurationError(f"{where}: names no conversations that can be read{told}")
    return list(dict.fromkeys(found))


def _resolve_path(named: str, path: Path, at: str, notes: list[str]) -> str:
    """A path as it is found from the suite's file. Upstream's paths begin at the folder in which it is started: that
    may be any folder above the file.
    """
    folder = path.parent.absolute()
    if Path(named).is_absolute() or (folder / named).exists():
        return named
    above = next((one for one in folder.parents if (one / named).exists()), None)
    if above is not None:
        return str(above / named)
    beside = Path(named).name
    if (folder / beside).exists():
        notes.append(f"{at}: {named} is not there; {beside} beside the suite's file is read")
        return beside
    return named


def _existing_files(values: Any, field: str, path: Path, notes: list[str]) -> list[str]:
    """The files of a list that are there."""
    found = []
    for number, one in enumerate(values if isinstance(values, list) else []):
        at = f"{field}[{number}]"
        if not isinstance(one, str):
            notes.append(f"{at}: {one!r:.60} is no file; left out")
            continue
        file = _resolve_path(one, path, at, notes)
        if (path.parent / file).is_file():
            found.append(file)
        else:
            notes.append(f"{at}: {one} is not there; left out")
    return found


def _function_names(file: Path) -> list[str]:
    """The functions that a Python file defines, by its text: nothing is run."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise ConfigurationError(f"{file}: cannot be read as Python: {error}") from None
    return [one.name for one in tree.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]


def _convert_model(value: Any, field: str, where: str, notes: list[str]) -> str | None:
    """The model that stands for one of upstream's completion functions; None where none does."""
    if value is None:
        return None
    if not isinstance(value, Mapping) or not isinstance(value.get("function_name"), str):
        raise ConfigurationError(f"{where}: {field}: expected function_name and kwargs, found {value!r:.60}")
    function, kwargs = value["function_name"], dict(value.get("kwargs") or {})
    if value.get("include_system_prompt") is False:
        notes.append(f"{field}: include_system_prompt: the system is sent system messages here")
    text = _FIXED_ANSWERS.get(function)
    if function == "echo_completion" and isinstance(kwargs.get("response"), str):
        # Their suites write \n in plain YAML scalars, where it stays two characters.
        text = kwargs.pop("response").replace("\\n", "\n")
    model = kwargs.pop("model_name", None) if function != "gpt_3p5_turbo" else "gpt-3.5-turbo"
    found = None
    if text is not None:
        found = f"fixed:?label=echo&text={quote(text, safe='')}"
    elif function in ("open_ai_completion", "open_ai_completion_async", "gpt_3p5_turbo") and model:
        key = kwargs.pop("api_key_name", None) or kwargs.pop("key_name", None)
        found = f"openai:{model}" + (f"?key_env={key}" if key not in (None, "OPENAI_API_KEY") else "")
    elif function in ("jan_completion", "lm_studio_completion") and model and isinstance(kwargs.get("endpoint"), str):
        found = f"openai:{kwargs.pop('endpoint')}#{model}"
    if found is None:
        notes.append(f"{field}: {function}: nothing here stands for it; name a model as `system` or `grader`")
        return None
    notes += [f"{field}: {key}: left out; options of models stand in their names or in the suite" for key in kwargs]
    return found


def _convert_rest(own: Mapping[str, Any], suite: Mapping[str, Any], found: dict[str, Any], notes: list[str]) -> None:
    """Take over what maps of the rest, and name what does not."""
    config = own.get("config")
    for key, value in config.items() if isinstance(config, Mapping) else ():
        if key == "nb_evaluations_per_thread" and isinstance(value, int) and value > 0:
            found["repeats"] = value
        elif key == "random_seed_conversation_sampling" and isinstance(value, int):
            found["seed"] = value
        else:
            notes.append(f"config.{key}: has no counterpart here; left out")
    unknown = [key for key in own if key not in _RUN_KEYS] + [key for key in suite if key not in _SUITE_KEYS]
    notes += [f"{key}: has no counterpart here; left out" for key in unknown]
