"""Reading an answer of the Gemini API, sent whole or put together from a stream.

What never belongs here: HTTP, events.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

from ...errors import Rejected, Unavailable
from ...likelihood import likeliest, logprob_of
from ...messages import Completion
from ...tools import argument_text, numbered
from ..endpoint_json import decoded, text_at
from ..openai_answer import without_key
from ..openai_message import PartWithoutText, finish_of
from ..openai_usage import summed, usage_of
from ..secrets import Redactor

# Why an answer ended, in the engine's words; other reasons are kept in lower case.
_FINISH = dict.fromkeys(
    ("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "LANGUAGE", "IMAGE_SAFETY"), "content_filter"
)
_BESIDE = ("text", "thought", "thoughtSignature", "videoMetadata", "partMetadata")  # fields that are no content
# Documented parts that tell of tools that the API runs itself, and say nothing of the answer.
_TOOLS = ("executableCode", "codeExecutionResult", "toolCall", "toolResponse")
# The first holds cached tokens already; thoughts are no part of the candidate's tokens.
_PROMPT_COUNTS = ("promptTokenCount", "toolUsePromptTokenCount")
_ANSWER_COUNTS = ("candidatesTokenCount", "thoughtsTokenCount")


class ReadAnswer(NamedTuple):
    """``returned``: the parts that the API wants back with the results of tools; None where it wants none."""

    completion: Completion
    returned: list[Any] | None


def parse_answer(data: bytes, label: str, redact: Redactor, *, tools: bool) -> ReadAnswer:
    """Read an answer that was sent whole.

    :raises Rejected: a part is of a kind that is no text.
    :raises Unavailable: it is no answer of the API; a proxy's page or half a body may pass, so retried.
    :raises AnswerTooLarge: it holds more values than an answer may.
    """
    try:
        return read_answer(decoded(data, label), redact, tools=tools)
    except PartWithoutText as part:
        raise Rejected(redact.cut(str(part), 200), model=label) from None
    except (orjson.JSONDecodeError, KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        shown = f"({redact.cut(str(error), 200)}): {redact.quote(data, 200)}"
        raise Unavailable(f"the answer is not one of the Gemini API {shown}", model=label) from None


def read_answer(answer: Any, redact: Redactor, *, tools: bool) -> ReadAnswer:
    """Read the record of an answer. ``tools``: some were offered. Counts are 0 where they are unknown.

    :raises PartWithoutText: a part is of a kind that is no text, or there is nothing beside tools that the API runs.
    :raises KeyError, IndexError, TypeError, AttributeError: it is of another form.
    """
    usage = usage_of(_counts(answer.get("usageMetadata")), redact)
    if not answer.get("candidates") and blocked(answer):
        silent = Completion("", "content_filter", usage.prompt, usage.completion, cached_tokens=usage.cached)
        return ReadAnswer(silent, None)
    candidate = candidate_of(answer["candidates"])
    parts = (candidate.get("content") or {}).get("parts") or []
    texts: list[str] = []
    thoughts: list[str] = []
    calls, beside = [], []
    for part in parts:
        called = part.get("functionCall")
        if called is not None:
            calls.append(
                (str(called.get("id") or ""), text_at(called["name"]), argument_text(called.get("args") or {}))
            )
        elif part.get("text") is not None:
            (thoughts if part.get("thought") else texts).append(text_at(part["text"]))
        else:
            unknown = [name for name, value in part.items() if value is not None and name not in _BESIDE]
            if unknown and unknown[0] not in _TOOLS:
                raise PartWithoutText(unknown[0])
            beside += unknown
    if beside and not calls and not any(texts):
        raise PartWithoutText(beside[0])
    given = candidate.get("finishReason")
    finish = _FINISH.get(given, given.lower()) if isinstance(given, str) else None
    completion = Completion(
        "".join(texts),
        finish_of(finish, tools, False, redact.answer),
        usage.prompt,
        usage.completion,
        logprobs=_logprobs(candidate.get("logprobsResult")),
        calls=numbered(calls) if calls else None,
        thoughts="".join(thoughts),
        usage_note=usage.note,
        cached_tokens=usage.cached,
    )
    signed = any("thoughtSignature" in part for part in parts)
    return ReadAnswer(without_key(completion, redact), parts if calls and signed else None)


def candidate_of(candidates: list[Any]) -> Any:
    """The one that was asked for."""
    return next((one for one in candidates if not one.get("index")), candidates[0])


def blocked(answer: Any) -> bool:
    """Whether the prompt was refused: then there is no candidate."""
    feedback = answer.get("promptFeedback")
    return isinstance(feedback, dict) and bool(feedback.get("blockReason"))


def _counts(told: Any) -> Any:
    """The API's counts of tokens under the names of ``usage_of``."""
    if not isinstance(told, dict):
        return told
    return {
        "prompt_tokens": summed(told, _PROMPT_COUNTS),
        "completion_tokens": summed(told, _ANSWER_COUNTS),
        "total_tokens": told.get("totalTokenCount"),
        "cached_tokens": told.get("cachedContentTokenCount"),
    }


def _logprobs(told: Any) -> list[list[Any]] | None:
    chosen = told.get("chosenCandidates") if isinstance(told, dict) else None
    if not chosen:
        return None
    tops = told.get("topCandidates") or [{}] * len(chosen)
    try:
        return [
            [
                str(one["token"]),
                logprob_of(one["logProbability"]),
                likeliest(
                    (str(other["token"]), logprob_of(other["logProbability"])) for other in top.get("candidates") or ()
                ),
            ]
            for one, top in zip(chosen, tops, strict=True)
        ]
    except (KeyError, TypeError, AttributeError, ValueError):
        return None
