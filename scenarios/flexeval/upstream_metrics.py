"""Metrics of upstream's suites (FlexEval's ``metrics: {function: […], rubric: […]}``) into ours, one by one.

Each gets a name of its own, and each ``depends_on`` the metric that it means. What does not map is named in the notes,
and left out together with what depends on it. What never belongs here: the rest of a suite (``upstream``).

Source: FlexEval's ``schema/eval_schema.py`` (``MetricItem``, ``DependsOnItem``) and ``dependency_graph.py``, which
matches a dependency by name, type, level and keyword arguments.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from viva.engine.errors import ConfigurationError

from .builtin import BUILTIN
from .builtin.rubrics import SHIPPED
from .units import Level

LEVEL: dict[str, Level] = {"Thread": "conversation", "Turn": "turn", "Message": "message", "ToolCall": "tool_call"}
_MOST = 80  # characters of a name


@dataclass(frozen=True, slots=True)
class _Ours:
    """What stands for one of upstream's functions: its name here, fixed arguments, its arguments' and values' names
    where they differ, and how it differs.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, str] | None = None
    differs: str = ""


_ONE: Mapping[str, str] = {}  # of values: it is a plain number here
TABLE: dict[str, _Ours] = {
    "string_length": _Ours(
        "length", differs="counts the text of a turn or conversation as a whole, what stands between messages included"
    ),
    "count_tokens": _Ours(
        "tokens",
        values={"prompt_tokens": "prompt", "completion_tokens": "completion"},
        differs="has no value where nobody recorded tokens; there it is 0",
    ),
    "latency": _Ours("latency", differs="adds up the seconds that were recorded; there it compares times of messages"),
    "count_messages_per_role": _Ours("messages_per_role", differs="counts system messages of a conversation, too"),
    "count_tool_calls": _Ours("tool_calls"),
    "count_tool_calls_by_name": _Ours("tool_calls_by_name"),
    "count_numeric_tool_call_params_by_name": _Ours(
        "tool_call_arguments", {"numeric": True}, differs="counts the numeric arguments; there it gives their values"
    ),
    "message_matches_regex": _Ours("matches", renamed={"expression": "pattern"}, values=_ONE),
    "count_of_parts_matching_regex": _Ours("matches", renamed={"expression": "pattern"}, values=_ONE),
    "openai_moderation_api": _Ours("moderation"),
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
_KNOWN = {"name", "depends_on", "metric_level", "kwargs", "context_only", "last_instance_only", "notes", "type"}
_OLD = ("context_only", "last_instance_only", "last_turn_only")  # of earlier versions
_DEPENDS = {
    "name", "type", "kwargs", "metric_name", "metric_level", "relative_object_position", "metric_min_value",
    "metric_max_value", *_OLD,
}  # fmt: skip


@dataclass(slots=True)
class _Item:
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


def mapped_metrics(
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
        for item in _items(_list(metrics, kind, f"{where}: metrics"), kind, where)
    ]
    notes += [f"metrics.{key}: unknown, and left out" for key in sorted(set(metrics) - {"function", "rubric"})]
    items = _named(items, notes)
    parents = {id(item): _parents(item, items, where) for item in items}
    for item in items:
        item.left_out = _why_left_out(item, own, rubrics)
    _leave_out_dependents(items, parents)
    notes += [f"{item}: left out: {item.left_out}" for item in items if item.left_out]
    return [_in_our_form(item, parents[id(item)], own, notes) for item in items if not item.left_out]


def _list(holder: Any, key: str, where: str) -> list[Any]:
    if not isinstance(holder, Mapping):
        raise ConfigurationError(f"{where}: expected `function` and `rubric`, found {holder!r:.60}")
    value = holder.get(key)
    if value is not None and not isinstance(value, list):
        raise ConfigurationError(f"{where}.{key}: expected a list, found {value!r:.60}")
    return value or []


def _items(values: Sequence[Any], kind: str, where: str) -> list[_Item]:
    found = []
    for number, raw in enumerate(values):
        place = f"metrics.{kind}[{number}]"
        if not isinstance(raw, Mapping) or not isinstance(raw.get("name"), str) or not raw["name"]:
            raise ConfigurationError(f"{where}: {place}: expected an object with a name, found {raw!r:.60}")
        level = raw.get("metric_level") or "Turn"
        if level not in LEVEL:
            raise ConfigurationError(f"{where}: {place}: metric_level {level!r:.40} is none of {', '.join(LEVEL)}")
        kwargs = raw.get("kwargs") or {}
        if not isinstance(kwargs, Mapping):
            raise ConfigurationError(f"{where}: {place}: kwargs: expected an object, found {kwargs!r:.60}")
        found.append(_Item(kind, raw, place, raw["name"], level, dict(kwargs)))
    return found


def _named(items: Sequence[_Item], notes: list[str]) -> list[_Item]:
    """The items, each with a name of its own: upstream's, with arguments and level where several share it."""
    kept: list[_Item] = []
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
            name = f"{name}_{LEVEL[item.level]}"
        name = re.sub(r"[^\w .()=,-]", "_", name)[:_MOST]
        taken[name] += 1
        item.ours = name if taken[name] == 1 else f"{name[: _MOST - 4]}_{taken[name]}"
    return kept


def _with_arguments(item: _Item) -> str:
    return "_".join([item.name, *(str(value) for value in item.kwargs.values())])


def _parents(item: _Item, items: Sequence[_Item], where: str) -> list[tuple[_Item, Mapping[str, Any]]]:
    """What a metric depends on: each dependency's metric, and the dependency."""
    found = []
    for number, raw in enumerate(_list(item.raw, "depends_on", f"{where}: {item}")):
        at = f"{where}: {item}: depends_on[{number}]"
        if not isinstance(raw, Mapping):
            raise ConfigurationError(f"{at}: expected an object, found {raw!r:.60}")
        if unknown := sorted(set(raw) - _DEPENDS):
            raise ConfigurationError(f"{at}: unknown field {unknown[0]!r}; known: {', '.join(sorted(_DEPENDS))}")
        position = raw.get("relative_object_position", 0)
        if not isinstance(position, int) or isinstance(position, bool) or position > 0:
            raise ConfigurationError(
                f"{at}: relative_object_position {position!r}: expected 0 (the same one) or less (one before it)"
            )
        if raw.get("metric_level") is not None and raw["metric_level"] not in LEVEL:
            raise ConfigurationError(f"{at}: metric_level {raw['metric_level']!r} is none of {', '.join(LEVEL)}")
        for bound in ("metric_min_value", "metric_max_value"):
            if isinstance(raw.get(bound), bool) or not isinstance(raw.get(bound), int | float | None):
                raise ConfigurationError(f"{at}: {bound}: expected a number, found {raw[bound]!r:.60}")
        found.append((_meant(raw, item, items, at), raw))
    return found


def _meant(raw: Mapping[str, Any], child: _Item, items: Sequence[_Item], at: str) -> _Item:
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
        raise ConfigurationError(f"{at}: no metric has what it asks for; of that name there are: {_told(named)}")
    if len(found) > 1:  # earlier versions allowed dependencies within one level alone
        found = [one for one in found if one.level == child.level] or found
    if len(found) > 1:
        raise ConfigurationError(
            f"{at}: may mean several metrics: {_told(found)}; give `kwargs`, `metric_level` or `type` to tell them "
            "apart (`metric_name` names a value, not a metric)"
        )
    return found[0]


def _told(items: Sequence[_Item]) -> str:
    return "; ".join(map(str, items))


def _why_left_out(item: _Item, own: Sequence[str], rubrics: Sequence[str]) -> str:
    if old := next((key for key in _OLD if item.raw.get(key)), None):
        return f"there is nothing like `{old}` here"
    if item.kind == "rubric":
        known = item.name in rubrics or item.name in SHIPPED
        return "" if known or item.name not in _UNMAPPED_RUBRICS else (
            "its rubric comes with upstream and not with this program; put it into a file under `rubric_paths`"
        )  # fmt: skip
    if item.name in own or item.name in BUILTIN or item.name not in _UNMAPPED:
        return ""
    return "nothing here stands for this function of upstream's; write it into a file under `function_modules`"


def _leave_out_dependents(
    items: Sequence[_Item], parents: Mapping[int, Sequence[tuple[_Item, Mapping[str, Any]]]]
) -> None:
    changed = True
    while changed:
        changed = False
        for item in items:
            gone = next((parent for parent, _ in parents[id(item)] if parent.left_out), None)
            if gone is not None and not item.left_out:
                item.left_out, changed = f"it depends on {gone.ours}, which is left out", True


def _in_our_form(
    item: _Item, parents: Sequence[tuple[_Item, Mapping[str, Any]]], own: Sequence[str], notes: list[str]
) -> dict[str, Any]:
    found: dict[str, Any] = {"name": item.ours}
    if item.kind == "rubric":
        found["rubric"] = item.name
        if item.kwargs:
            notes.append(f"{item}: kwargs: a rubric takes none here; left out")
    else:
        ours = None if item.name in own else TABLE.get(item.name)
        found["function"] = item.name if ours is None else ours.name
        arguments = item.kwargs
        if ours is not None:
            arguments = {**ours.arguments, **{ours.renamed.get(key, key): value for key, value in item.kwargs.items()}}
            if ours.differs:
                notes.append(f"{item}: measured by `{ours.name}`, which {ours.differs}")
        if arguments:
            found["arguments"] = arguments
    found["level"] = LEVEL[item.level]
    notes += [f"{item}: {key}: unknown, and left out" for key in sorted(set(item.raw) - _KNOWN)]
    if parents:
        found["when"] = [_condition(parent, raw, own) for parent, raw in parents]
    return found


def _condition(parent: _Item, raw: Mapping[str, Any], own: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"metric": parent.ours}
    value = raw.get("metric_name")
    if value is not None and value != parent.name:
        values = TABLE[parent.name].values if parent.name in TABLE and parent.name not in own else None
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
