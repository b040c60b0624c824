"""Built-in metrics: plain functions with an annotated first argument, by name in `BUILTIN`.

They cover content (phrases, patterns, questions, emojis, JSON, refusals), text (length, readability, language), counts
(messages, turns, tokens, seconds, tool calls, models), positions, the validity of tool calls, and a moderation
endpoint.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

from viva.agents.forms import is_refusal
from viva.engine.imports import import_under_lock
from viva.engine.json_data import find_schema_violations
from viva.engine.permissions import permissions

from .dialog import Dialog, Message, ToolCall, Turn

_FENCE = re.compile(r"\A\s*```(?:json)?\s*\n(.*?)\n?```\s*\Z", re.DOTALL)


def has_question_mark(text: str) -> bool:
    """Return True if the text contains a question mark."""
    return any(mark in text for mark in "?？؟")


def contains(text: str, what: str | list[str], ignore_case: bool = True, every: bool = False) -> bool:
    """Return True if the text contains at least one of the phrases or, with `every`, all of them."""
    phrases = [what] if isinstance(what, str) else what
    folded = text.casefold() if ignore_case else text
    hits = [(phrase.casefold() if ignore_case else phrase) in folded for phrase in phrases]
    return all(hits) if every else any(hits)


def matches(text: str, pattern: str, ignore_case: bool = False) -> int:
    """Count the matches of a regular expression."""
    flags = re.IGNORECASE if ignore_case else 0
    return sum(1 for _ in re.finditer(pattern, text, flags))


# Pictographs, flags, dingbats and symbols; variation selectors, joiners, skin tones and keycaps only extend an emoji.
_EMOJI = "[\U0001f1e6-\U0001f1ff\U0001f300-\U0001f64f\U0001f680-\U0001f6ff\U0001f900-\U0001faff\u2600-\u27bf\u24c2]"
_EMOJI_RUN = re.compile(f"{_EMOJI}(?:[\ufe0f\u200d\u20e3]|{_EMOJI})*")


def emojis(text: str) -> int:
    """Count runs of emojis; adjacent emojis are one run."""
    return len(_EMOJI_RUN.findall(text))


def is_json(text: str, fenced: bool = True) -> bool:
    """Return True if the text is JSON; with `fenced`, it may be in a code fence."""
    return _parse_json(text, fenced) is not None


def follows_schema(text: str, schema: dict[str, Any], fenced: bool = True) -> dict[str, Any]:
    """Check JSON text against a JSON schema; return `valid`, and the `problem` if it is not."""
    value = _parse_json(text, fenced)
    if value is None:
        return {"valid": False, "problem": "not JSON"}
    errors = find_schema_violations(schema, value[0])
    if not errors:
        return {"valid": True, "problem": None}
    error = errors[0]
    path = ".".join(map(str, error.path)) or "the whole"
    return {"valid": False, "problem": f"{path}: {error.validator}"}


def refusal(text: str) -> bool:
    """Return True if the text starts with a refusal, by phrases in several languages; no model is called."""
    return is_refusal(text)


def _parse_json(text: str, fenced: bool) -> list[Any] | None:
    """Return the parsed value in a list, or None if the text is not JSON."""
    inner = _FENCE.match(text) if fenced else None
    try:
        return [json.loads(inner[1] if inner else text)]
    except (ValueError, RecursionError):
        return None


_WORD = re.compile(r"\w+(?:['’]\w+)*")
_SENTENCE = re.compile(r"[^.!?。！？…]+(?:[.!?。！？…]+|$)")
FORMULAS = (
    "automated_readability_index",
    "coleman_liau_index",
    "crawford",
    "dale_chall_readability_score",
    "dale_chall_readability_score_v2",
    "difficult_words",
    "fernandez_huerta",
    "flesch_kincaid_grade",
    "flesch_reading_ease",
    "gulpease_index",
    "gunning_fog",
    "gutierrez_polini",
    "linsear_write_formula",
    "lix",
    "mcalpine_eflaw",
    "osman",
    "reading_time",
    "rix",
    "smog_index",
    "spache_readability",
    "syllable_count",
    "szigriszt_pazos",
)
_MIN_CHARACTERS = 20  # shorter texts do not determine a language


def length(text: str) -> int:
    """Count characters."""
    return len(text)


def words(text: str) -> int:
    """Count words: runs of letters and digits."""
    return len(_WORD.findall(text))


def sentences(text: str) -> int:
    """Count sentences by their final punctuation."""
    return sum(bool(_WORD.search(sentence)) for sentence in _SENTENCE.findall(text))


def flesch_reading_ease(text: str) -> float | None:
    """Return the Flesch reading ease of English text (Flesch 1948), 100 for easy, 0 for hard; None without words."""
    return _textstat_value("flesch_reading_ease", text)


def flesch_kincaid_grade(text: str) -> float | None:
    """Return the school grade level of a text (Kincaid et al. 1975); None without words."""
    return _textstat_value("flesch_kincaid_grade", text)


def readability(text: str, formula: str = "flesch_reading_ease") -> float | None:
    """Return the value of a textstat formula, such as `smog_index`; None without words."""
    if formula not in FORMULAS:
        raise ValueError(f"unknown formula '{formula}'; known: {', '.join(FORMULAS)}")
    return _textstat_value(formula, text)


def language(text: str) -> str | None:
    """Return the language as a two-letter code (py3langid); None below 20 characters."""
    if len(text.strip()) < _MIN_CHARACTERS:
        return None
    return str(_import_extra("py3langid").classify(text)[0])


def _textstat_value(formula: str, text: str) -> float | None:
    if not words(text):
        return None
    return float(getattr(_import_extra("textstat"), formula)(text))


def _import_extra(name: str) -> Any:
    try:
        return import_under_lock(name)
    except ImportError:
        raise ImportError(f"needs the package {name}: pip install 'viva-exam[suites]'") from None


def is_role(unit: Turn | Message, role: str) -> dict[str, int]:
    """Return, under the role's name, 1 if the unit has this role, else 0."""
    return {role: int(unit.role == role)}


def identity(text: str, **anything: Any) -> str:
    """Return the text itself, as a category."""
    return text[:200]


def constant(unit: Turn | Message | Dialog | ToolCall, response: float = 0, **anything: Any) -> float:
    """Return `response`, a number."""
    return response


def object_type(unit: Turn | Message | Dialog | ToolCall, **anything: Any) -> dict[str, int]:
    """Return the kind of unit as `object_type`: 0 conversation, 1 turn, 2 message, 3 tool call."""
    return {"object_type": (Dialog, Turn, Message, ToolCall).index(type(unit))}


def turns(dialog: Dialog) -> int:
    """Count turns."""
    return len(dialog.turns)


def position(unit: Turn | Message | ToolCall) -> int:
    """Return the unit's position in its conversation, from 0."""
    return unit.index


def is_last_turn(turn: Turn) -> bool:
    """Return True for the last turn of a conversation."""
    return turn.last


def messages(unit: Dialog | Turn) -> int:
    """Count messages without system messages."""
    return sum(message.role != "system" for message in unit.messages)


def models(unit: Dialog | Turn) -> dict[str, int]:
    """Count the messages of each recorded model (the message's `model` or `model_name`)."""
    counts: dict[str, int] = {}
    for message in unit.messages:
        model = message.metadata.get("model") or message.metadata.get("model_name")
        if isinstance(model, str):
            counts[model] = counts.get(model, 0) + 1
    return dict(sorted(counts.items()))


def messages_per_role(unit: Dialog | Turn) -> dict[str, int]:
    """Count the messages of each role."""
    counts: dict[str, int] = {}
    for message in unit.messages:
        counts[message.role] = counts.get(message.role, 0) + 1
    return dict(sorted(counts.items()))


def latency(unit: Turn | Message | Dialog) -> float | None:
    """Sum the recorded latencies of answers in seconds; None if none was recorded."""
    latencies = [message.latency for message in _messages_of(unit) if message.latency is not None]
    return math.fsum(latencies) if latencies else None


def tokens(unit: Turn | Message | Dialog) -> dict[str, int] | None:
    """Sum the recorded tokens as `prompt` and `completion`; None if none were recorded."""
    counts = [message.tokens for message in _messages_of(unit) if message.tokens]
    if not counts:
        return None
    return {kind: sum(message.get(kind, 0) for message in counts) for kind in ("prompt", "completion")}


def tool_calls(unit: Turn | Message | Dialog) -> int:
    """Count tool calls."""
    return len(unit.tool_calls)


def calls_tool(unit: Turn | Message | Dialog) -> bool:
    """Return True if a tool is called."""
    return bool(unit.tool_calls)


def tool_calls_by_name(unit: Turn | Message | Dialog | ToolCall) -> dict[str, int]:
    """Count the calls of each tool."""
    counts: dict[str, int] = {}
    for call in (unit,) if isinstance(unit, ToolCall) else unit.tool_calls:
        counts[call.name] = counts.get(call.name, 0) + 1
    return dict(sorted(counts.items()))


def tool_call_arguments(call: ToolCall, numeric: bool = False) -> int | None:
    """Count a call's arguments, or only the `numeric` ones; None if they are not a JSON object."""
    arguments = _parse_object(call.arguments or "{}")
    if arguments is None:
        return None
    if not numeric:
        return len(arguments)
    return sum(isinstance(value, int | float) and not isinstance(value, bool) for value in arguments.values())


def tool_call_numbers(call: ToolCall) -> dict[str, float] | None:
    """Return a call's numeric arguments by name, also numbers in quotes; None if they are not a JSON object."""
    arguments = _parse_object(call.arguments or "{}")
    if arguments is None:
        return None
    numbers = {name: _to_number(value) for name, value in list(arguments.items())[:_MAX_VALUES]}
    return {name: value for name, value in numbers.items() if value is not None}


def tool_result_values(unit: Dialog | Turn, key: str) -> dict[str, int]:
    """Count the values of `key` in the JSON results of tools, as `TOOL_VALUE`; at most 100 different ones."""
    counts: dict[str, int] = {}
    for message in unit.messages:
        parsed = _parse_json(message.content, fenced=False) if message.role == "tool" else None
        for entry in (parsed[0] if isinstance(parsed[0], list) else parsed) if parsed else ():
            value = entry.get(key) if isinstance(entry, dict) else None
            if isinstance(value, str | int | float):
                name = f"{message.name or _called_tool(unit, message)}_{value}"[:_MAX_NAME]
                if name in counts or len(counts) < _MAX_VALUES:
                    counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items()))


def tool_errors(unit: Dialog | Turn | Message) -> dict[str, int]:
    """Count the tool calls of messages with an error of each kind: a field `…_errors` that is not null."""
    counts: dict[str, int] = {}
    for message in _messages_of(unit):
        more = message.metadata.get("additional_kwargs")
        fields = {**message.metadata, **(more if isinstance(more, dict) else {})}
        for name, value in list(fields.items())[:_MAX_VALUES]:
            if name.endswith("_errors") and value is not None and message.tool_calls:
                counts[name] = counts.get(name, 0) + len(message.tool_calls)
    return dict(sorted(counts.items()))


_MAX_VALUES, _MAX_NAME = 100, 80  # numbers by name that one unit yields; characters of a name


def _called_tool(unit: Dialog | Turn, result: Message) -> str:
    return next((call.name for call in unit.tool_calls if call.id == result.call_id), "tool")


def _parse_object(text: str) -> dict[str, Any] | None:
    parsed = _parse_json(text, fenced=False)
    return parsed[0] if parsed and isinstance(parsed[0], dict) else None


def _to_number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _messages_of(unit: Turn | Message | Dialog) -> tuple[Message, ...]:
    return (unit,) if isinstance(unit, Message) else unit.messages


def tool_call_shape(call: ToolCall, tools: list[dict[str, Any]]) -> dict[str, Any]:
    """Check a call against `tools` (OpenAI's format); return `valid`, and the `problem` if it is not.

    The tool must exist, and the arguments must be a JSON object that follows the tool's parameters.
    """
    declared = {}
    for tool in tools:
        function = tool.get("function", tool)
        declared[function["name"]] = function.get("parameters", {})
    if call.name not in declared:
        return _invalid("no such tool")
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return _invalid("arguments are not JSON")
    if not isinstance(arguments, dict):
        return _invalid("arguments are no object")
    errors = sorted(f"{'.'.join(map(str, violation.path)) or 'arguments'}: {violation.validator}"
                    for violation in find_schema_violations(declared[call.name], arguments))  # fmt: skip
    return _invalid(errors[0]) if errors else {"valid": True, "problem": None}


def _invalid(problem: str) -> dict[str, Any]:
    return {"valid": False, "problem": problem}


_PUBLIC_URL = "https://api.openai.com/v1/moderations"
_MAX_BYTES = 1_000_000


def moderation(
    text: str,
    url: str = _PUBLIC_URL,
    model: str = "omni-moderation-latest",
    key: str | None = None,
    seconds: float = 30.0,
) -> dict[str, Any]:
    """Return the scores per category, and `flagged`, of a moderation endpoint in OpenAI's format.

    `key` names the environment variable with the API key, "" for none; the default for the public endpoint is
    OPENAI_API_KEY. Clients of `viva serve` may not use this metric.

    Raises:
        RuntimeError: The endpoint is unreachable or returns an invalid answer.
    """
    import urllib.error  # takes a tenth of a second to load
    import urllib.request

    headers = {"Content-Type": "application/json"}
    permissions().check_network("moderation")
    if key is None:  # never send OpenAI's key to another endpoint by default
        key = "OPENAI_API_KEY" if url == _PUBLIC_URL else ""
    if key:
        value = permissions().variable(key)
        if value is None:
            raise RuntimeError(f"moderation: the environment variable {key} is not set")
        headers["Authorization"] = f"Bearer {value}"
    request = urllib.request.Request(url, json.dumps({"model": model, "input": text}).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=seconds) as response:
            reply = json.loads(response.read(_MAX_BYTES))
        result = reply["results"][0]
        scores = {str(name): float(score) for name, score in result["category_scores"].items()}
        return {"flagged": bool(result["flagged"]), **dict(sorted(scores.items()))}
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"moderation: {url}: HTTP {error.code}") from None
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise RuntimeError(f"moderation: {url}: {type(error).__name__}: {error}") from None


# Versions of functions whose values have changed since version 1, as recorded in manifests.
VERSIONS: dict[str, int] = {}
BUILTIN: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        calls_tool,
        constant,
        contains,
        emojis,
        flesch_kincaid_grade,
        flesch_reading_ease,
        follows_schema,
        has_question_mark,
        identity,
        is_json,
        is_last_turn,
        is_role,
        language,
        latency,
        length,
        matches,
        messages,
        messages_per_role,
        models,
        moderation,
        object_type,
        position,
        readability,
        refusal,
        sentences,
        tokens,
        tool_call_arguments,
        tool_call_numbers,
        tool_call_shape,
        tool_calls,
        tool_calls_by_name,
        tool_errors,
        tool_result_values,
        turns,
        words,
    )
}
