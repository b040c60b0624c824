"""Parse an endpoint's answer: JSON, token usage, text, thoughts, refusals, finish reasons, calls, logprobs.

Providers agree on little. JSON may contain invalid numbers (NaN, Infinity) and text cut within a character. A negative,
fractional or impossibly large count would end the run in its journal, so it is replaced by an estimate. A part of
unknown type without text is an error, because its content would be lost silently.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from ..errors import AnswerTooLarge, BackendError, Rejected, Unavailable
from ..json_data import strip_surrogate_escapes, strip_surrogates
from ..likelihood import clamp_logprob, max_logprob_by_token
from ..messages import Completion, Request
from ..tools import ToolCall, argument_text
from .redaction import Redactor

MOST_VALUES = 2_000_000  # per JSON text; each takes 90 bytes and 0.4 µs, during which the event loop is blocked
# At the end of a text: a high surrogate, or the first bytes of a character as `surrogateescape` represents them.
_BEGUN_PAIR = re.compile("[\ud800-\udbff]\\Z")
_BEGUN_BYTES = re.compile("(?:[\udcc2-\udcdf]|[\udce0-\udcef][\udc80-\udcbf]?|[\udcf0-\udcf4][\udc80-\udcbf]{0,2})\\Z")
_BYTES = re.compile("[\udc80-\udcff]+")
_LONGEST_WHOLE = 19  # digits of numbers kept as int; longer numbers become floats, as in orjson


def require_text(value: Any) -> str:
    """Return the value if it is a string, else raise TypeError."""
    if not isinstance(value, str):
        raise TypeError(f"found {type(value).__name__} instead of a text")
    return value


class SurrogateJoiner:
    """Repair of characters that a stream cuts: the end of a text is joined with the next text at the same path.

    Fragments are surrogates or single bytes of UTF-8. A fragment that is not continued becomes U+FFFD; one at the end
    of the stream is dropped. In a path, an object is identified by its `index` rather than by its position in a list.
    """

    def __init__(self) -> None:
        self.pending: dict[tuple[Any, ...], str] = {}

    def joined(self, value: Any, *, in_bytes: bool = False, path: tuple[Any, ...] = ()) -> Any:
        """Return the value with valid UTF-8 texts; `in_bytes` means that it was decoded by `surrogateescape`."""
        if isinstance(value, str):
            return self._text(value, path, in_bytes) if value else value
        if isinstance(value, dict):
            index = value.get("index")
            path = (*path, index) if isinstance(index, int) else path
            return {
                strip_surrogates(name): self.joined(item, in_bytes=in_bytes, path=(*path, name))
                for name, item in value.items()
            }
        if isinstance(value, list):
            return [
                self.joined(
                    item,
                    in_bytes=in_bytes,
                    path=path if isinstance(item, dict) and "index" in item else (*path, position),
                )
                for position, item in enumerate(value)
            ]
        return value

    def _text(self, text: str, path: tuple[Any, ...], in_bytes: bool) -> str:
        text = self.pending.pop(path, "") + text
        if text.isascii():
            return text
        begun = (_BEGUN_BYTES if in_bytes else _BEGUN_PAIR).search(text)
        if begun is not None:
            self.pending[path] = begun[0]
            text = text[: begun.start()]
        if in_bytes:
            text = _BYTES.sub(lambda match: match[0].encode("utf-8", "surrogateescape").decode(), text)
        return strip_surrogates(text)


def parse_json(data: bytes, label: str, halves: SurrogateJoiner | None = None) -> Any:
    """Parse JSON leniently.

    Invalid numbers become infinite floats or NaN. Lone surrogates become U+FFFD, except that in a stream the first of a
    pair waits in `halves` for the second.

    Raises:
        orjson.JSONDecodeError: The data is not JSON otherwise.
        AnswerTooLarge: The data may contain more than `MOST_VALUES` lists, objects and entries. Commas and brackets
            inside strings count, too, because a simple count is cheap.
    """
    if len(data) > MOST_VALUES and sum(map(data.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise AnswerTooLarge(f"the answer contains more than {MOST_VALUES:,} values", model=label)
    try:
        value = orjson.loads(data)
        return halves.joined(value) if halves is not None and halves.pending else value
    except orjson.JSONDecodeError as error:
        problem = error
    try:
        in_bytes, text = False, ""
        try:
            text = data.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            if halves is None:
                raise
            in_bytes, text = True, data.decode("utf-8", "surrogateescape")
        value = json.loads(
            text if halves is not None else strip_surrogate_escapes(strip_surrogates(text)),
            parse_int=_parse_whole_number,
            strict=False,
        )
        if halves is not None:
            value = halves.joined(value, in_bytes=in_bytes)
        orjson.dumps(value)  # refuse absurdly deep nesting
        return value
    except (ValueError, TypeError, RecursionError):
        pass
    try:
        raise problem
    finally:
        del problem


def _parse_whole_number(digits: str) -> int | float:
    return int(digits) if len(digits) <= _LONGEST_WHOLE else float(digits)


# Far beyond any context, yet the sum over a run fits into 64 bits.
_MOST_TOKENS = 1_000_000_000
_LONGEST_QUOTE = 40
_CHARACTERS_PER_TOKEN = 4
# Where endpoints report cached prompt tokens, as nested or plain fields: OpenAI and most others; Anthropic and its
# gateways; DeepSeek; Moonshot; the Responses API.
_CACHED_FIELDS = (
    ("prompt_tokens_details", "cached_tokens"),
    ("", "cache_read_input_tokens"),
    ("", "prompt_cache_hit_tokens"),
    ("", "cached_tokens"),
    ("input_tokens_details", "cached_tokens"),
)
_CACHE_WRITE_FIELDS = (("", "cache_creation_input_tokens"),)
_THOUGHT_TOKEN_FIELDS = (
    ("completion_tokens_details", "reasoning_tokens"),
    ("output_tokens_details", "reasoning_tokens"),
    ("", "reasoning_tokens"),
)
_PROMPT_FIELDS, _COMPLETION_FIELDS, _TOTAL_FIELDS = (
    (("", "prompt_tokens"),),
    (("", "completion_tokens"),),
    (("", "total_tokens"),),
)
_INPUT_FIELDS, _OUTPUT_FIELDS = (("", "input_tokens"),), (("", "output_tokens"),)
_NONE_FURTHER = frozenset(("prompt_tokens", "completion_tokens", "total_tokens"))


class ReportedUsage(NamedTuple):
    """Token counts of the prompt and the answer, 0 if unknown.

    `cached` are the prompt tokens read from the endpoint's cache. `note` quotes an unusable count.
    """

    prompt: int
    completion: int
    note: str = ""
    cached: int = 0

    def completion_with(self, text: str, finish: str = "stop", **more: Any) -> Completion:
        """Return a completion with these counts; `more` are further fields."""
        return Completion(
            text,
            finish,
            self.prompt,
            self.completion,
            usage_note=self.note,
            cached_tokens=self.cached,
            **more,
        )


def parse_usage(usage: Any, redact: Redactor) -> ReportedUsage:
    """Return the billed counts of an answer's `usage`.

    Missing and unusable counts are unknown; an unusable count is noted, without the key. Some endpoints count thoughts
    outside `completion_tokens`, or cached tokens outside `prompt_tokens`: the excess of the total over these two counts
    is added to one of them.
    """
    if not usage:
        return ReportedUsage(0, 0)
    if not isinstance(usage, dict):
        return ReportedUsage(0, 0, f"usage: {_quote_count(usage, redact)}")
    notes: list[str] = []

    def count(places: Sequence[tuple[str, str]]) -> int:
        """Return the largest of the counts at these paths, 0 if there is none; note unusable counts."""
        largest = 0
        for field, name in places:
            inner = usage.get(field) if field else usage
            value = inner.get(name) if isinstance(inner, dict) else None
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if type(value) is int and 0 <= value <= _MOST_TOKENS:  # the usual case
                largest = max(largest, value)
            elif value is not None:
                notes.append(f"{field}{'.' if field else ''}{name}: {_quote_count(value, redact)}")
        return largest

    prompt, completion, total = count(_PROMPT_FIELDS), count(_COMPLETION_FIELDS), count(_TOTAL_FIELDS)
    cached = written = thought = 0
    if not usage.keys() <= _NONE_FURTHER:
        cached, written, thought = count(_CACHED_FIELDS), count(_CACHE_WRITE_FIELDS), count(_THOUGHT_TOKEN_FIELDS)
    if not prompt and not completion and "input_tokens" in usage:  # the names of the Messages API and the Responses API
        prompt, completion = count(_INPUT_FIELDS), count(_OUTPUT_FIELDS)
        if "input_tokens_details" not in usage:
            prompt += written + cached
    elif prompt and cached > prompt:
        prompt += written + cached
    if total > prompt + completion and prompt:
        beyond = total - prompt - completion
        if thought != beyond and beyond in (cached, cached + written):
            prompt += beyond
        else:
            completion += beyond
    elif total > completion and completion and not prompt:
        prompt = total - completion
    elif thought > completion:
        completion += thought
    return ReportedUsage(prompt, completion, "; ".join(notes), min(cached, prompt))


def merge_counts(known: Any, update: Any) -> Any:
    """Merge a stream's later cumulative counts. A 0, which some endpoints fill in, replaces nothing."""
    if not isinstance(known, dict) or not isinstance(update, dict):
        return update or known
    return known | {name: count for name, count in update.items() if count or name not in known}


def sum_counts(counts: Any, names: Sequence[str]) -> Any:
    """Sum separate counts. Return None if all are missing, or the first unusable one for `parse_usage` to note."""
    total = None
    for name in names:
        value = counts.get(name)
        if value is None:
            continue
        if type(value) is not int or not 0 <= value <= _MOST_TOKENS:
            return value
        total = value + (total or 0)
    return total


def _quote_count(value: Any, redact: Redactor) -> str:
    if isinstance(value, int) and value.bit_length() > 1000:
        return "a number of too many digits"
    return redact.cut(repr(value), _LONGEST_QUOTE) if isinstance(value, int | float | str) else type(value).__name__


def estimate_missing_counts(completion: Completion, request: Request) -> None:
    """Estimate unknown counts, so that totals, budgets and rates stay meaningful."""
    if not completion.prompt_tokens:
        completion.prompt_tokens = request.characters // _CHARACTERS_PER_TOKEN
        unknown = True
    else:
        unknown = bool(completion.text or completion.thoughts or completion.calls)
    if unknown and not completion.completion_tokens:
        text = len(completion.text) + len(completion.thoughts)
        text += sum(len(call.name) + len(call.arguments) for call in completion.calls or ())
        completion.completion_tokens = max(1, text // _CHARACTERS_PER_TOKEN)


_LONGEST_FINISH = 40
_LONGEST_GIVEN = 10_000  # characters of a finish reason that are examined
# Finish reasons as endpoints spell them, letters only, in lower case.
_MEANINGS = dict.fromkeys(
    ("stop", "endturn", "stopsequence", "stoptoken", "eos", "eostoken", "endofturn", "complete"), "stop"
)
_MEANINGS |= dict.fromkeys(("toolcalls", "toolcall", "tooluse", "functioncall"), "tool_calls")
_CUT_REASON = re.compile(r"length|max.*tokens?|max.*output|tokens?limit|limit.*tokens?|context|truncated")
# Finish reasons of an endpoint that gave up: the answer is incomplete.
_FAILED_REASON = re.compile(
    r"(internal|network|server|generation|engine)?(error|failure)|abort(ed)?|cancel(l?ed)?|timeout|timedout"
    r"|insufficientsystemresources?"
)
# Parts that may have no text; `is_refusal` handles refusals.
_KNOWN_PART_TYPES = frozenset(("text", "output_text", "refusal", "reference", "tool_reference", "citation"))
_TEXT_FIELDS = ("text", "content", "output_text")  # fields of a part
_OTHER_FIELDS = ("audio", "images")  # fields of a message, instead of or beside its content
_THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking", "reasoning_details")
_THOUGHT_PART_FIELDS = ("thinking", "reasoning", "reasoning_content", "text", "content", "summary")


class PartWithoutText(TypeError):
    """A part of the answer has no text, has an unknown type, or reports tools that the provider runs itself."""

    def __init__(self, kind: object) -> None:
        super().__init__(f"the answer holds a part of type '{kind}', which has no text; ask for text alone")


class GenerationFailed(ValueError):
    """The endpoint could not continue: what it sent is not an answer."""


# Exceptions from parsing an answer of an unexpected form.
FORMAT_ERRORS = (orjson.JSONDecodeError, KeyError, IndexError, TypeError, AttributeError, ValueError)


def answer_error(
    subject: str, label: str, redact: Redactor, data: bytes, error: Exception, kind: type[BackendError] = Unavailable
) -> BackendError:
    """Return the error for an unexpected answer. The error states `subject` and quotes `data` without the key.

    By default the call is retried, because a proxy's page or a truncated body may be temporary. After a part without
    text it is not retried.
    """
    message = redact.cut(str(error), 200)
    if isinstance(error, PartWithoutText):
        return Rejected(message, model=label)
    quoted = redact.quote(data, 200)
    return kind(f"{subject} ({message}){f': {quoted}' if quoted else ''}", model=label)


class ReadAnswer(NamedTuple):
    """A completion, and the parts that the provider wants back with tool results, or None."""

    completion: Completion
    returned: list[Any] | None = None


def read_text(content: Any) -> str:
    """Return the text of a message's `content`: a string, null, or a list of parts."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if isinstance(content, list):
        return "".join(map(part_text, content))
    raise TypeError(f"content is {type(content).__name__}, not text")


def part_text(part: Any) -> str:
    """Return the text of one content part, "" for a thought. Raise PartWithoutText if the part cannot have text."""
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise TypeError(f"a part of the content is {type(part).__name__}, not an object")
    kind = part.get("type") or "text"
    if is_thought(kind):
        return ""
    for name in _TEXT_FIELDS:
        text = part.get(name)
        if isinstance(text, dict):
            text = text.get("value")
        if isinstance(text, str):
            return text
        if text is not None:
            raise TypeError(f"found {type(text).__name__} instead of a part's text")
    if kind not in _KNOWN_PART_TYPES:
        raise PartWithoutText(kind)
    return ""


def is_thought(kind: Any) -> bool:
    """Return True if a part of this type is a thought."""
    return isinstance(kind, str) and ("think" in kind or "reason" in kind)


def read_thoughts(message: Mapping[str, Any]) -> str:
    """Return the model's thoughts if the endpoint separates them from the text, else ""."""
    thoughts = next(filter(None, (_join_texts(message.get(name)) for name in _THOUGHT_FIELDS)), "")
    content = message.get("content")
    if isinstance(content, list):  # some endpoints put them into content parts
        parts = [part for part in content if isinstance(part, dict) and is_thought(part.get("type"))]
        thoughts += "".join(
            next(filter(None, (_join_texts(part.get(name)) for name in _THOUGHT_PART_FIELDS)), "") for part in parts
        )
    return thoughts


def find_nontext_field(message: Mapping[str, Any]) -> str:
    """Return the field of a message or delta that holds audio or images, "" if there is none."""
    return next((name for name in _OTHER_FIELDS if message.get(name)), "")


def is_refusal(message: Mapping[str, Any]) -> bool:
    """Return True if a message or delta contains a refusal, as a field or as a content part."""
    content = message.get("content")
    parts = content if isinstance(content, list) else ()
    return bool(message.get("refusal") or any(isinstance(part, dict) and part.get("refusal") for part in parts))


def normalise_finish(finish: Any, tools: bool, silent_refusal: bool, clean: Callable[[str], str] = str) -> str:
    """Return a normalised finish reason.

    An end by calls is `stop` if `tools` were offered, else `tool_calls`; an end at the token limit is `length`.
    `silent_refusal` means that the model refused without any text: the reason is `refusal`. An unknown reason is cut to
    40 characters and loses its colons, which mark the engine's own reasons; `clean` first removes the key from it.

    Raises:
        GenerationFailed: The endpoint could not continue.
    """
    if silent_refusal:
        return "refusal"
    if finish in ("stop", "length"):  # the usual case
        return str(finish)
    if isinstance(finish, dict):  # SGLang and others nest the reason
        finish = finish.get("type")
    if not isinstance(finish, str):
        return "stop"
    word = _reason_letters(finish)
    if word in _MEANINGS:
        return "stop" if tools and _MEANINGS[word] == "tool_calls" else _MEANINGS[word]
    if _CUT_REASON.search(word):
        return "length"
    if _FAILED_REASON.fullmatch(word):
        raise GenerationFailed(f"the endpoint ended the answer with {finish[:_LONGEST_FINISH]!r}")
    kept = "".join(
        character for character in clean(finish[:_LONGEST_GIVEN])[: 4 * _LONGEST_FINISH] if character.isprintable()
    )
    return kept.replace(":", "-")[:_LONGEST_FINISH].strip() or "stop"


def _reason_letters(finish: str) -> str:
    """Return a reason's letters in lower case, without an enumeration prefix."""
    return re.sub("[^a-z]", "", finish[:_LONGEST_FINISH].rpartition(".")[2].lower()).removeprefix("finishreason")


def _join_texts(value: Any) -> str:
    """Return a text, or the joined texts of parts."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    parts = value if isinstance(value, list) else [value]
    texts = ((part.get("text") or part.get("content")) if isinstance(part, dict) else part for part in parts)
    return "".join(text for text in texts if isinstance(text, str))


def redact_completion(completion: Completion, redact: Redactor) -> Completion:
    """Remove the key from the given completion wherever the endpoint could have written it, and return it."""
    if not redact.key:
        return completion
    clean = redact.answer
    completion.text, completion.finish = clean(completion.text), clean(completion.finish)
    if completion.thoughts:
        completion.thoughts = clean(completion.thoughts)
    if completion.calls:
        completion.calls = [
            ToolCall(clean(call.id), clean(call.name), clean(call.arguments)) for call in completion.calls
        ]
    if completion.logprobs:
        # A key spread over several tokens cannot be removed from them, so no tokens are kept.
        tokens = "".join(entry[0] for entry in completion.logprobs)
        others = [token for entry in completion.logprobs for token in entry[2]]
        if clean(tokens) != tokens or any(clean(token) != token for token in others):
            completion.logprobs = None
    return completion


def parse_call(entry: Any) -> tuple[str, str, str]:
    """Return id, name and arguments of a call. Some endpoints send arguments as an object instead of text."""
    function = entry["function"]
    name = function["name"]
    if not isinstance(name, str):
        raise TypeError(f"a call's name is {type(name).__name__}, not text")
    return str(entry.get("id") or ""), name, argument_text(function.get("arguments"))


def parse_logprobs(entries: Sequence[Any]) -> list[list[Any]] | None:
    """Return the log-probabilities of a choice or its chunks; None if their form is unknown."""
    try:
        return [
            [
                str(entry["token"]),
                clamp_logprob(entry["logprob"]),
                max_logprob_by_token(
                    (str(top["token"]), clamp_logprob(top["logprob"])) for top in entry.get("top_logprobs") or ()
                ),
            ]
            for item in entries
            if item
            for entry in item.get("content") or ()
        ] or None
    except (KeyError, TypeError, AttributeError):
        return None
