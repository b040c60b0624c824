"""Reading an endpoint's answer: JSON, token usage, text, thoughts, refusals, finish reasons, calls, logprobs.

Providers agree on little. JSON comes with numbers that JSON does not know (NaN, Infinity) and with texts cut
within a character; a count that is negative, fractional or beyond any context would end the run in its journal,
so it is replaced by an estimate; a part of an unknown type without text is an error, because its content would
be lost in silence.
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

MOST_VALUES = 2_000_000  # in one JSON text; 90 bytes and 0.4 µs each, while the event loop stands still
# At the end of a text: the first half of a pair; the first bytes of a character, as ``surrogateescape`` writes them.
_BEGUN_PAIR = re.compile("[\ud800-\udbff]\\Z")
_BEGUN_BYTES = re.compile("(?:[\udcc2-\udcdf]|[\udce0-\udcef][\udc80-\udcbf]?|[\udcf0-\udcf4][\udc80-\udcbf]{0,2})\\Z")
_BYTES = re.compile("[\udc80-\udcff]+")
_LONGEST_WHOLE = 19  # characters of numbers that are kept as whole ones; orjson makes longer ones floats, too


def require_text(value: Any) -> str:
    """Return a value that must be a text, or raise TypeError."""
    if not isinstance(value, str):
        raise TypeError(f"found {type(value).__name__} in the place of a text")
    return value


class SurrogateJoiner:
    """Parts of characters at the ends of a stream's texts, each joined with its rest where the next text of its place
    begins with it. What has no rest becomes U+FFFD; a part at the end of all is left out.

    A part is a half of a surrogate pair, or some bytes of UTF-8. Texts are of one place if they stand at the same path,
    where an object is known by its ``index`` rather than by where it stands in a list.
    """

    def __init__(self) -> None:
        self.held: dict[tuple[Any, ...], str] = {}

    def joined(self, value: Any, *, in_bytes: bool = False, path: tuple[Any, ...] = ()) -> Any:
        """Return the value with texts that UTF-8 can hold; ``in_bytes``: it was decoded with ``surrogateescape``."""
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
        text = self.held.pop(path, "") + text
        if text.isascii():
            return text
        begun = (_BEGUN_BYTES if in_bytes else _BEGUN_PAIR).search(text)
        if begun is not None:
            self.held[path] = begun[0]
            text = text[: begun.start()]
        if in_bytes:
            text = _BYTES.sub(lambda match: match[0].encode("utf-8", "surrogateescape").decode(), text)
        return strip_surrogates(text)


def parse_json(data: bytes, label: str, halves: SurrogateJoiner | None = None) -> Any:
    """The value that ``data`` spells. Numbers that JSON does not know come as floats, infinite or none; a half of a
    surrogate pair as U+FFFD, but in a stream it waits in ``halves`` for the other.

    :raises orjson.JSONDecodeError: it is no JSON otherwise.
    :raises AnswerTooLarge: it may hold more than ``MOST_VALUES`` lists, objects and entries of them (commas and
        brackets within texts count, too: counting is all that is cheap).
    """
    if len(data) > MOST_VALUES and sum(map(data.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise AnswerTooLarge(f"the answer holds more than {MOST_VALUES:,} values", model=label)
    try:
        value = orjson.loads(data)
        return halves.joined(value) if halves is not None and halves.held else value
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
        orjson.dumps(value)  # nesting beyond what is ever meant
        return value
    except (ValueError, TypeError, RecursionError):
        pass
    try:
        raise problem
    finally:
        del problem


def _parse_whole_number(digits: str) -> int | float:
    return int(digits) if len(digits) <= _LONGEST_WHOLE else float(digits)


# Far beyond any context; sums of as many as a run can have stay within 64 bits.
_MOST_TOKENS = 1_000_000_000
_LONGEST_QUOTE = 40
_CHARACTERS_PER_TOKEN = 4
# Where endpoints say how much of a prompt came from their cache, as a field of a field or alone: OpenAI and most
# others; Anthropic and gateways to it; DeepSeek; Moonshot; the Responses API.
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
    """Tokens of the prompt and of the answer, 0 where they are unknown; ``note`` quotes a count that is of no use.
    ``cached`` are those of the prompt that the endpoint read from its cache.
    """

    prompt: int
    completion: int
    note: str = ""
    cached: int = 0

    def completion_with(self, text: str, finish: str = "stop", **more: Any) -> Completion:
        """Return a completion with these counts; ``more`` are further fields of it."""
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
    """Return the counts of an answer's ``usage``, as they are billed. Missing ones are unknown; so are unusable ones,
    which are noted, without the key.

    Some endpoints count thoughts outside of ``completion_tokens``, or cached tokens outside of the prompt's: what the
    total has beyond the two belongs to one of them.
    """
    if not usage:
        return ReportedUsage(0, 0)
    if not isinstance(usage, dict):
        return ReportedUsage(0, 0, f"usage: {_quote_count(usage, redact)}")
    notes: list[str] = []

    def count(places: Sequence[tuple[str, str]]) -> int:
        """The largest of the counts at these places, 0 where there is none; unusable ones are noted."""
        largest = 0
        for field, name in places:
            inner = usage.get(field) if field else usage
            value = inner.get(name) if isinstance(inner, dict) else None
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if type(value) is int and 0 <= value <= _MOST_TOKENS:  # nearly always
                largest = max(largest, value)
            elif value is not None:
                notes.append(f"{field}{'.' if field else ''}{name}: {_quote_count(value, redact)}")
        return largest

    prompt, completion, total = count(_PROMPT_FIELDS), count(_COMPLETION_FIELDS), count(_TOTAL_FIELDS)
    cached = written = thought = 0
    if not usage.keys() <= _NONE_FURTHER:
        cached, written, thought = count(_CACHED_FIELDS), count(_CACHE_WRITE_FIELDS), count(_THOUGHT_TOKEN_FIELDS)
    if not prompt and not completion and "input_tokens" in usage:  # as the Messages API and the Responses API name them
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
    """Add a stream's later counts, which are cumulative; a 0, which some endpoints fill in, replaces no count."""
    if not isinstance(known, dict) or not isinstance(update, dict):
        return update or known
    return known | {name: count for name, count in update.items() if count or name not in known}


def sum_counts(counts: Any, names: Sequence[str]) -> Any:
    """Sum counts that are given apart; None if all are missing, the first unusable one for ``parse_usage`` to note."""
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
    """Estimate unknown counts, so that totals, budgets and rates go on to mean something."""
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
_LONGEST_GIVEN = 10_000  # characters that are looked at
# Why an answer ended, as endpoints spell it, in small letters alone.
_MEANINGS = dict.fromkeys(
    ("stop", "endturn", "stopsequence", "stoptoken", "eos", "eostoken", "endofturn", "complete"), "stop"
)
_MEANINGS |= dict.fromkeys(("toolcalls", "toolcall", "tooluse", "functioncall"), "tool_calls")
_CUT_REASON = re.compile(r"length|max.*tokens?|max.*output|tokens?limit|limit.*tokens?|context|truncated")
# The endpoint gave up: what came is a part of an answer.
_FAILED_REASON = re.compile(
    r"(internal|network|server|generation|engine)?(error|failure)|abort(ed)?|cancel(l?ed)?|timeout|timedout"
    r"|insufficientsystemresources?"
)
# Types of parts that lose nothing where they have no text; ``is_refusal`` reads refusals.
_KNOWN_PART_TYPES = frozenset(("text", "output_text", "refusal", "reference", "tool_reference", "citation"))
_TEXT_FIELDS = ("text", "content", "output_text")  # fields of parts
_OTHER_FIELDS = ("audio", "images")  # of messages, in place of a content or beside it
_THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking", "reasoning_details")
_THOUGHT_PART_FIELDS = ("thinking", "reasoning", "reasoning_content", "text", "content", "summary")


class PartWithoutText(TypeError):
    """A part of the answer has no text, is of an unknown type, or tells of tools that the provider runs itself."""

    def __init__(self, kind: object) -> None:
        super().__init__(f"the answer holds a part of type '{kind}', which has no text; ask for text alone")


class GenerationFailed(ValueError):
    """The endpoint could not go on: what there is of the answer is no answer."""


# What reading an answer of another form raises.
FORMAT_ERRORS = (orjson.JSONDecodeError, KeyError, IndexError, TypeError, AttributeError, ValueError)


def answer_error(
    subject: str, label: str, redact: Redactor, data: bytes, error: Exception, kind: type[BackendError] = Unavailable
) -> BackendError:
    """Return the error for an answer of another form: it says ``what`` and quotes ``data``, without the key.

    A proxy's page or half a body may pass, so by default the call is tried again; a part without text stays one.
    """
    message = redact.cut(str(error), 200)
    if isinstance(error, PartWithoutText):
        return Rejected(message, model=label)
    quoted = redact.quote(data, 200)
    return kind(f"{subject} ({message}){f': {quoted}' if quoted else ''}", model=label)


class ReadAnswer(NamedTuple):
    """An answer, and its parts that the provider wants back with the results of tools (None: it wants none)."""

    completion: Completion
    returned: list[Any] | None = None


def read_text(content: Any) -> str:
    """Return the words of a message's ``content``: text, null, or a list of parts, of which those with text count."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if isinstance(content, list):
        return "".join(map(part_text, content))
    raise TypeError(f"content is {type(content).__name__}, not text")


def part_text(part: Any) -> str:
    """Return the words of one part of a content, none of a thought; raise PartWithoutText if it can have none."""
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
            raise TypeError(f"found {type(text).__name__} in the place of a part's text")
    if kind not in _KNOWN_PART_TYPES:
        raise PartWithoutText(kind)
    return ""


def is_thought(kind: Any) -> bool:
    """Whether a part of this type is of a model's thoughts."""
    return isinstance(kind, str) and ("think" in kind or "reason" in kind)


def read_thoughts(message: Mapping[str, Any]) -> str:
    """A model's thoughts where the endpoint tells them apart from its words, else nothing."""
    thoughts = next(filter(None, (_join_texts(message.get(name)) for name in _THOUGHT_FIELDS)), "")
    content = message.get("content")
    if isinstance(content, list):  # some put them among the parts of the content
        parts = [part for part in content if isinstance(part, dict) and is_thought(part.get("type"))]
        thoughts += "".join(
            next(filter(None, (_join_texts(part.get(name)) for name in _THOUGHT_PART_FIELDS)), "") for part in parts
        )
    return thoughts


def find_nontext_field(message: Mapping[str, Any]) -> str:
    """The field of a message or a delta that holds a sound or pictures; empty where there is none."""
    return next((name for name in _OTHER_FIELDS if message.get(name)), "")


def is_refusal(message: Mapping[str, Any]) -> bool:
    """Whether a message or a delta holds words of refusal, as a field of its own or as a part of its content."""
    content = message.get("content")
    parts = content if isinstance(content, list) else ()
    return bool(message.get("refusal") or any(isinstance(part, dict) and part.get("refusal") for part in parts))


def normalise_finish(finish: Any, tools: bool, silent_refusal: bool, clean: Callable[[str], str] = str) -> str:
    """Why an answer ended, as the endpoint says it.

    An end by calls is ``stop`` where ``tools`` were offered, one at the token limit ``length``. ``silent_refusal``: the
    model refused and said nothing else. Of words that nobody knows at most 40 characters are kept, and no colon, which
    marks the engine's own; ``clean`` takes the key out of them before they are cut.

    :raises GenerationFailed: it ended because the endpoint could not go on.
    """
    if silent_refusal:
        return "refusal"
    if finish in ("stop", "length"):  # nearly always
        return str(finish)
    if isinstance(finish, dict):  # as SGLang and others have it inside
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
    """Return a reason in small letters alone, without the name of an enumeration before it."""
    return re.sub("[^a-z]", "", finish[:_LONGEST_FINISH].rpartition(".")[2].lower()).removeprefix("finishreason")


def _join_texts(value: Any) -> str:
    """A text, or the texts of parts, joined."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    parts = value if isinstance(value, list) else [value]
    texts = ((part.get("text") or part.get("content")) if isinstance(part, dict) else part for part in parts)
    return "".join(text for text in texts if isinstance(text, str))


def redact_completion(completion: Completion, redact: Redactor) -> Completion:
    """The same answer, with the key taken out of whatever the endpoint could write it into."""
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
        # A key that is spread over tokens cannot be cut out of them: none are kept.
        tokens = "".join(entry[0] for entry in completion.logprobs)
        others = [token for entry in completion.logprobs for token in entry[2]]
        if clean(tokens) != tokens or any(clean(token) != token for token in others):
            completion.logprobs = None
    return completion


def parse_call(entry: Any) -> tuple[str, str, str]:
    """Id, name and arguments of a call; some endpoints send an object for arguments instead of text."""
    function = entry["function"]
    name = function["name"]
    if not isinstance(name, str):
        raise TypeError(f"a call's name is {type(name).__name__}, not text")
    return str(entry.get("id") or ""), name, argument_text(function.get("arguments"))


def parse_logprobs(entries: Sequence[Any]) -> list[list[Any]] | None:
    """Return log-probabilities from fields ``logprobs`` of a choice or its chunks; None if of an unknown form."""
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
