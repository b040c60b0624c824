"""Readers of model text: JSON objects, answers in the form of a pydantic model, and refusals.

Models write texts of any length and shape, and a recorded text is read again at each resume. So readers take linear
time, and the length that they read is bounded.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from viva.engine.errors import MalformedOutput
from viva.engine.json_data import strip_surrogate_escapes
from viva.engine.thoughts import split_thoughts

# Characters; ten times the longest verdicts and rulings seen.
MAX_READ_CHARS = 60_000
# Words that judges write before a verdict, in the languages of their rubrics; for readers' patterns.
VERDICT_WORDS = (
    "verdict|decision|result|judge?ment|conclusion|answer|ruling|판정|결정|결론|결과|평가|답|urteil|ergebnis|antwort"
    "|veredicto|respuesta|verdetto|risposta|réponse|вердикт|ответ|判定|判断|裁定|结论|結論|评价|評価|答案|答え"
)
# Limits: levels of a JSON object, digits of a number, objects in a text.
_MAX_DEPTH = 50
_MAX_DIGITS = 40
_MAX_OBJECTS = 500

# A brace in prose is not followed by a quoted key.
_OBJECT_START = re.compile(r'\{\s*"')
# A string ends at its closing quote or at the end of the text, so that no character is scanned twice.
_BRACE_OR_STRING = re.compile(r'[{}]|"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)


def readable_text(text: str) -> str:
    """Return the part of a model's text that readers look at: without thoughts.

    A text longer than `MAX_READ_CHARS` is reduced to its beginning and end.
    """
    answer = split_thoughts(text)[1]
    if len(answer) <= MAX_READ_CHARS:
        return answer
    half = MAX_READ_CHARS // 2
    return f"{answer[:half]}\n{answer[-half:]}"


def json_object_texts(text: str, judged: str | None = None) -> list[str]:
    """Return the outermost JSON objects in a text, as written; with `judged`, without quotations (`unquoted_objects`).

    Raises:
        MalformedOutput: An object is incomplete or nested too deep, or there are too many.
    """
    spans: list[tuple[int, int]] = []
    match = _OBJECT_START.search(text)
    while match is not None:
        if len(spans) == _MAX_OBJECTS:
            raise MalformedOutput(f"it holds more than {_MAX_OBJECTS} JSON objects")
        end = _end_of_object(text, match.start())
        spans.append((match.start(), end))
        match = _OBJECT_START.search(text, end)
    judged_text = None if judged is None else _strip_whitespace(judged)
    return [
        text[start:end]
        for start, end in spans
        if judged_text is None or not _is_quotation(text, start, end, judged_text)
    ]


def json_objects(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the valid outermost JSON objects in a text with their positions; everything else is skipped."""
    for start, _, value in _objects(strip_surrogate_escapes(text)):
        yield start, value


def unquoted_objects(text: str, judged: str = "") -> list[tuple[int, dict[str, Any]]]:
    """Return the valid outermost JSON objects in a judge's text, with their positions, without quoted ones.

    A quotation is in quotation marks, or is contained in `judged`, the text being judged, or is introduced as what a
    party wrote. An object that is the whole text is the judge's own.
    """
    text, judged_text = strip_surrogate_escapes(text), _strip_whitespace(judged)
    return [(start, value) for start, end, value in _objects(text) if not _is_quotation(text, start, end, judged_text)]


def _objects(text: str) -> Iterator[tuple[int, int, dict[str, Any]]]:
    position = 0
    for _ in range(_MAX_OBJECTS):
        match = _OBJECT_START.search(text, position)
        if match is None:
            return
        try:
            value, position = _DECODER.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            position = match.start() + 1
            continue
        yield match.start(), position, value


def load_json(text: str, **options: Any) -> Any:
    """Parse JSON written by a model; raise `json.JSONDecodeError` if it is not JSON, or nested too deep."""
    try:
        return json.loads(strip_surrogate_escapes(text), parse_int=_bounded_int, **options)
    except RecursionError:
        raise json.JSONDecodeError("nested too deep", text, 0) from None


def _end_of_object(text: str, start: int) -> int:
    depth = 0
    for token in _BRACE_OR_STRING.finditer(text, start):
        character = text[token.start()]
        if character == "{":
            depth += 1
            if depth > _MAX_DEPTH:
                raise MalformedOutput(f"its JSON object has more than {_MAX_DEPTH} levels")
        elif character == "}":
            depth -= 1
            if depth == 0:
                return token.end()
    raise MalformedOutput("its JSON object is not complete")


def _bounded_int(digits: str) -> int | float:
    """Return infinity for huge integers, because Python refuses to parse thousands of digits."""
    return int(digits) if len(digits) <= _MAX_DIGITS else float("inf")


_QUOTES = {'"': '"', "'": "'", "“": "”", "„": "“", "‘": "’", "«": "»", "»": "«", "「": "」", "『": "』", "`": "`"}
_QUOTE_CONTEXT = 60  # characters around an object that may be only code fences
_FENCE = re.compile(r"`{3,}[\w-]*\s*$")
_CLAUSE = re.compile(r"[.;!?,。；！？，]\s|\s[-–—]\s")
# Words by which a judge says that a party wrote something.
_ATTRIBUTION = re.compile(
    r"\b(?:wrote|writes|written|says?|said|reads|repl(?:ied|ies)|answer(?:ed|s)|contain(?:s|ed|ing)?|includ(?:es?|ed|ing)"
    r"|claim(?:s|ed)?|inserted|planted|inject(?:ed|s)|embed(?:s|ded)|quot(?:es?|ed|ing)|append(?:s|ed)|past(?:es|ed)"
    r"|outputs|ends with|starts with|beg(?:ins|an) with|tr(?:ies|ied|ying)|attempt(?:s|ed)?|mentions?|schrieb|schreibt"
    r"|sagt|enthält|écrit|contient|escrib\w+|dice|contiene|пишет|написал\w*|содержит)\b|写道|写了|写着|声称|書い|書か|적었|썼|포함"
    r"|\b(?:candidate|assistant|model|user|student|examinee|respondent|interactor|bot)(?:['’]s)?(?: \w+){0,3}\s?:\s*$"
    r"|(?:\b(?:[ck]andidat|prüfling|кандидат)\w*|(?:候选人|考生|受験者|候補者|응시자|지원자|후보)[\w ]{0,12})"
    r"(?: \w+){0,3}\s?[:：]\s*$"
    r"|<[\w-]{0,20}(?:reply|candidate|quot|transcript|conversation|dialog|user|assistant|submission)[\w-]{0,20}>?\s*$",
    re.IGNORECASE,
)


def _is_quotation(text: str, start: int, end: int, judged: str) -> bool:
    """Return True if the object at this position of a judge's text was written by somebody else."""
    line_start = text.rfind("\n", 0, start) + 1
    prefix = text[max(line_start, start - 300) : start]
    context = f"{text[:start]}\n{text[end:]}" if len(text) - (end - start) < _QUOTE_CONTEXT else "something"
    if not context.replace("json", "").strip(" \n`"):
        return False
    if judged and _strip_whitespace(text[start:end]) in judged:
        return True
    in_code_block = _FENCE.search(prefix) is not None
    closing = _QUOTES.get(prefix[-1:], "") if not in_code_block else ""
    alone = not prefix.strip(" `") and not text[end:].partition("\n")[0].strip(" `")
    if closing and text[end : end + 1] == closing and not (closing == "`" and alone):
        return True
    lead = _FENCE.sub("", prefix).strip("\t*_>`").lstrip()
    if not lead:
        lead = text[max(0, line_start - 300) : line_start].rstrip()
        lead = _FENCE.sub("", lead).rstrip().rpartition("\n")[2]
        if not lead.rstrip(" *_").endswith((":", "：")):
            return False
    return _ATTRIBUTION.search(_CLAUSE.split(lead)[-1]) is not None


def _strip_whitespace(text: str) -> str:
    return "".join(text.split())


# Models write literal line breaks inside strings.
_DECODER = json.JSONDecoder(strict=False, parse_int=_bounded_int)


M = TypeVar("M", bound=BaseModel)
_MAX_ENUM = 100  # a bounded integer with at most this many values becomes an enum
_SCHEMA_KEYWORDS = ("type", "enum", "const", "items", "minItems", "maxItems", "minLength", "maxLength", "anyOf")


@lru_cache(maxsize=256)  # pydantic takes a millisecond, as long as some calls
def form_schema(form: type[BaseModel]) -> dict[str, Any]:
    """Return a model's JSON schema without `$ref`, titles and defaults. The result is shared: do not change it."""
    schema = form.model_json_schema()
    return _inline_schema(schema, schema.get("$defs", {}))


def read_form(form: type[M], text: str, judged: str = "") -> M:
    """Return the last JSON object in a model's text as an instance of the form; quoted objects do not count.

    Raises:
        MalformedOutput: There is no valid object; the message says what is wrong with the last one.
    """
    objects = unquoted_objects(readable_text(text), judged)
    if not objects:
        raise MalformedOutput("it holds no JSON object")
    try:
        return form.model_validate(objects[-1][1])
    except ValidationError as error:
        raise MalformedOutput(explain_mistakes(error, 1)) from None


def explain_mistakes(error: ValidationError, limit: int) -> str:
    """Return the first mistakes by field, in words that a model can act on."""
    messages = []
    for mistake in error.errors(include_url=False)[:limit]:
        field = ".".join(map(str, mistake["loc"]))
        messages.append(f"{field}: {mistake['msg']}" if field else str(mistake["msg"]))
    return "; ".join(messages)


def _inline_schema(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        return _inline_schema(definitions[str(schema["$ref"]).rpartition("/")[2]], definitions)
    if "allOf" in schema and len(schema["allOf"]) == 1:
        return _inline_schema(schema["allOf"][0], definitions)
    plain = {key: schema[key] for key in _SCHEMA_KEYWORDS if key in schema}
    if "description" in schema:
        plain["description"] = schema["description"]
    if "anyOf" in schema:
        plain["anyOf"] = [_inline_schema(part, definitions) for part in schema["anyOf"]]
    if isinstance(schema.get("items"), Mapping):
        plain["items"] = _inline_schema(schema["items"], definitions)
    if "properties" in schema:
        plain["properties"] = {name: _inline_schema(part, definitions) for name, part in schema["properties"].items()}
        plain |= {"required": list(schema["properties"]), "additionalProperties": False}
    if schema.get("type") == "integer":
        low, high = _bounds(schema)
        if low is not None and high is not None and high - low < _MAX_ENUM:
            plain["enum"] = list(range(low, high + 1))
    return plain


def _bounds(schema: Mapping[str, Any]) -> tuple[int | None, int | None]:
    low, high = schema.get("minimum"), schema.get("maximum")
    if "exclusiveMinimum" in schema:
        low = schema["exclusiveMinimum"] + 1
    if "exclusiveMaximum" in schema:
        high = schema["exclusiveMaximum"] - 1
    return low, high


def finite_number(value: Any) -> float | None:
    """Return a value from a model's JSON as a finite number, also if it is text; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


# A refusal is at the beginning of an answer.
_REFUSAL_PHRASES = (
    r"I(?:'| a)?m (?:really |very |so )?(?:sorry|unable|afraid)",
    r"I (?:can(?:no|')t|cannot|can not|won'?t|must decline|am not able to|will not)",
    r"(?:as an?|I am an?|I'm an?) (?:AI|language model|assistant)\b.{0,80}\b(?:can(?:no|')t|cannot|unable|not able)",
    r"es tut mir leid|ich kann (?:das |dabei |dir |Ihnen )?(?:leider )?nicht",
    r"je (?:suis désolé|ne peux pas)|lo siento|no puedo",
)
_REFUSALS = re.compile(rf"\b(?:{'|'.join(_REFUSAL_PHRASES)})|抱歉|无法(?:回答|提供)|죄송|申し訳", re.IGNORECASE)
_REFUSAL_PREFIX = 300  # characters


def is_refusal(text: str) -> bool:
    """Return True if the text begins with a refusal."""
    return _REFUSALS.search(text[:_REFUSAL_PREFIX].replace("’", "'")) is not None
