"""Models of Google's Gemini API: `gemini:MODEL` or `gemini:URL#MODEL`.

Options: `key_env` (default: GEMINI_API_KEY for a model without a URL, none for a URL), those of `EndpointOptions`,
`json` (`schema`, `object` or `prompt`) as for `openai`, `thinking` (`on`, `off`, `auto`, `minimal`, `low`, `medium`,
`high` or a budget in tokens), `filters=off`.

Errors have the form `{"error": {"code", "message", "status", "details"}}`, as an answer or within a stream; `code` is
the HTTP status. Each stream event is an answer with the new parts. The last event has a finish reason; a stream without
one is an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import orjson

from ..clock import Clock
from ..durations import parse_duration
from ..errors import BackendError, ConfigurationError, Unauthorized
from ..messages import Completion, Message, Request
from ..tools import Toolbox, argument_text, number_calls
from .base import Backend, ModelSpec
from .batch_api import GeminiBatches
from .endpoint_address import EndpointAddress, ProviderApi, resolve_endpoint
from .endpoint_answer import (
    PartWithoutText,
    ReadAnswer,
    merge_counts,
    normalise_finish,
    parse_logprobs,
    parse_usage,
    redact_completion,
    require_text,
    sum_counts,
)
from .endpoint_backend import (
    PROMPT_ONLY,
    SAMPLING_ADVICE,
    EndpointBackend,
    EndpointOptions,
    alternating_turns,
)
from .endpoint_errors import Dialect, error_details
from .sse import JsonRecordStream, RecordAssembly

_KEY_REASONS = ("API_KEY_INVALID", "API_KEY_EXPIRED", "API_KEY_SERVICE_BLOCKED")


class GeminiErrors(Dialect):
    """Errors as the Gemini API words them."""

    def kind(self, status: int, error: Mapping[str, Any], message: str) -> type[BackendError] | None:
        if status == 400 and any(detail.get("reason") in _KEY_REASONS for detail in error_details(error)):
            return Unauthorized  # a wrong key is reported as an invalid argument
        return None

    def retry_after(self, error: Mapping[str, Any], headers: Mapping[str, str]) -> float | None:
        """Return the longer of the error details' `retryDelay` and the header `Retry-After`."""
        delays = [detail.get("retryDelay") for detail in error_details(error)]
        waits = [super().retry_after(error, headers)]
        waits += [parse_duration(delay) for delay in delays if isinstance(delay, str)]
        return max((wait for wait in waits if wait is not None), default=None)


_OWN_ID = re.compile(r"call-\d+")  # created by the engine if the API sends no id
# Sampling settings that the API lacks, with their neutral values.
_UNSUPPORTED_SAMPLING = {"min_p": 0.0, "repeat_penalty": 1.0}
_MOST_STOPS = 5
_MAX_SEED = 2**31 - 1  # seeds are 32-bit integers
# From this model generation on, a call must be sent back with its signature; the API documents this value for calls
# without a signature.
_MODEL_VERSION = re.compile(r"gemini-(\d+)")
_FIRST_SIGNED = 3
_NO_SIGNATURE = "skip_thought_signature_validator"
_HARMS = ("HARASSMENT", "HATE_SPEECH", "SEXUALLY_EXPLICIT", "DANGEROUS_CONTENT")
LEVELS = ("minimal", "low", "medium", "high")


def _tool_fields(tools: Toolbox) -> dict[str, Any]:
    declared = []
    for spec in tools.specs:
        function = spec["function"]
        declaration = {"name": function["name"], "description": function.get("description", "")}
        if function.get("parameters"):
            declaration["parametersJsonSchema"] = function["parameters"]
        declared.append(declaration)
    fields: dict[str, Any] = {"tools": [{"functionDeclarations": declared}]}
    if tools.required:
        fields["toolConfig"] = {"functionCallingConfig": {"mode": "ANY"}}
    return fields


def _message_parts(message: Message, names: dict[str, str], sign: bool) -> list[dict[str, Any]]:
    if message.role == "tool":
        answered = {
            "name": message.name or names.get(message.call_id, "function"),
            "response": _tool_result(message.content),
        }
        return [{"functionResponse": _with_id(answered, message.call_id)}]
    parts: list[dict[str, Any]] = [{"text": message.content}] if message.content else []
    for index, call in enumerate(message.calls):
        part: dict[str, Any] = {"functionCall": _with_id({"name": call.name, "args": call.as_object()}, call.id)}
        if sign and index == 0:  # only the first of parallel calls is signed
            part["thoughtSignature"] = _NO_SIGNATURE
        parts.append(part)
    return parts


def _with_id(record: dict[str, Any], call_id: str) -> dict[str, Any]:
    return record if not call_id or _OWN_ID.fullmatch(call_id) else record | {"id": call_id}


def _tool_result(content: str) -> dict[str, Any]:
    """Return a tool's result as an object; the API documents a field for any other value."""
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError:
        value = None
    return value if isinstance(value, dict) else {"output": content}


def _must_sign(model: str) -> bool:
    match = _MODEL_VERSION.search(model)
    return match is not None and int(match[1]) >= _FIRST_SIGNED


# Finish reasons in the engine's terms; others are kept in lower case.
_FINISH_REASONS = dict.fromkeys(
    ("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "LANGUAGE", "IMAGE_SAFETY"), "content_filter"
)
_IGNORED_FIELDS = ("text", "thought", "thoughtSignature", "videoMetadata", "partMetadata")  # fields without content
# Documented parts about tools that the API runs itself; they carry no part of the answer.
_SERVER_TOOL_FIELDS = ("executableCode", "codeExecutionResult", "toolCall", "toolResponse")
# The prompt count already includes cached tokens; the candidate count excludes thoughts.
_PROMPT_COUNTS = ("promptTokenCount", "toolUsePromptTokenCount")
_ANSWER_COUNTS = ("candidatesTokenCount", "thoughtsTokenCount")


def _find_candidate(candidates: list[Any]) -> Any:
    """Return the requested candidate."""
    return next((candidate for candidate in candidates if not candidate.get("index")), candidates[0])


def _is_blocked(answer: Any) -> bool:
    """Return True if the prompt was refused; there is then no candidate."""
    feedback = answer.get("promptFeedback")
    return isinstance(feedback, dict) and bool(feedback.get("blockReason"))


def _usage_counts(usage: Any) -> Any:
    """Return the API's token counts under the names that `parse_usage` expects."""
    if not isinstance(usage, dict):
        return usage
    return {
        "prompt_tokens": sum_counts(usage, _PROMPT_COUNTS),
        "completion_tokens": sum_counts(usage, _ANSWER_COUNTS),
        "total_tokens": usage.get("totalTokenCount"),
        "cached_tokens": usage.get("cachedContentTokenCount"),
    }


def _parse_logprobs(result: Any) -> list[list[Any]] | None:
    """Return the log-probabilities in OpenAI's form."""
    chosen = result.get("chosenCandidates") if isinstance(result, dict) else None
    if not chosen:
        return None
    try:
        entries = [_logprob_entry(candidate) for candidate in chosen]
        for entry, top in zip(entries, result.get("topCandidates") or [{}] * len(entries), strict=True):
            entry["top_logprobs"] = [_logprob_entry(candidate) for candidate in top.get("candidates") or ()]
    except (KeyError, TypeError, AttributeError, ValueError):
        return None
    return parse_logprobs([{"content": entries}])


def _logprob_entry(item: Any) -> dict[str, Any]:
    return {"token": item["token"], "logprob": item["logProbability"]}


_LOGPROB_LISTS = ("chosenCandidates", "topCandidates")


class _AnswerAssembly(RecordAssembly):
    """An answer assembled from stream events."""

    def __init__(self) -> None:
        self._answer: dict[str, Any] = {}
        self._has_finished = False
        self._parts: list[dict[str, Any]] = []

    @property
    def is_whole(self) -> bool:
        """Return True if the finish reason has arrived; counts may follow."""
        return self._has_finished

    def answer(self) -> dict[str, Any]:
        return self._answer

    def take(self, record: dict[str, Any]) -> str:
        """Add an event; return the text that it adds to the answer."""
        if record.get("usageMetadata"):
            self._answer["usageMetadata"] = merge_counts(self._answer.get("usageMetadata"), record["usageMetadata"])
        if _is_blocked(record):
            self._answer["promptFeedback"] = record["promptFeedback"]
            self._has_finished = True
        candidates = record.get("candidates") or ()
        if not candidates:
            return ""
        candidate = _find_candidate(candidates)
        if candidate.get("index"):  # a candidate that was not requested
            return ""
        whole = self._answer.setdefault("candidates", [{"content": {"parts": self._parts}}])[0]
        parts = (candidate.get("content") or {}).get("parts") or []
        self._parts += parts
        text = "".join(part.get("text") or "" for part in parts if not part.get("thought"))
        self.has_call = self.has_call or any("functionCall" in part for part in parts)
        for name in _LOGPROB_LISTS:
            more = (candidate.get("logprobsResult") or {}).get(name)
            if more:
                whole.setdefault("logprobsResult", {}).setdefault(name, []).extend(more)
        if candidate.get("finishReason"):
            whole["finishReason"] = candidate["finishReason"]
            self._has_finished = True
        return text


_API_VERSION = "v1beta"  # as in the API's URLs
_HAS_API_VERSION = re.compile(r"/v\d+\w*$")
_SERVICE = ProviderApi(
    kind="gemini",
    url="https://generativelanguage.googleapis.com",
    url_variable="GOOGLE_GEMINI_BASE_URL",
    key_variable="GEMINI_API_KEY",
    example="gemini-2.5-flash",
    calls="/models(/[^/]*)?",
)
_NEXT_FORM = {"schema": "object", "object": PROMPT_ONLY}
_ADVICE = {
    **dict.fromkeys(("temperature", "top_p", "topP", "top_k", "topK"), SAMPLING_ADVICE),
    **dict.fromkeys(
        (
            *("thinking_level", "thinkingLevel", "thinking level"),
            *("thinking_budget", "thinkingBudget", "thinking budget", "budget", "thinking"),
        ),
        "give another thinking= in the model's name, or none",
    ),
    **dict.fromkeys(
        ("max_output_tokens", "maxOutputTokens"),
        "add max_tokens=NUMBER to the model's name to send another limit",
    ),
    "seed": "add body.generationConfig.seed=null to the model's name to leave it out",
}


class GeminiBackend(EndpointBackend):
    """Backend for the Gemini API.

    Args:
        thinking: "" for the model's default, `off`, `auto`, one of `LEVELS`, or a token budget as text.
        filters: Keep the default thresholds of the API's content filters.
    """

    form = "an answer of the Gemini API"
    dialect = GeminiErrors()
    models_path = "/models?pageSize=1000"
    refusing_statuses = (400, 401, 403)  # a wrong key is reported as an invalid argument
    next_form = _NEXT_FORM
    api_name = "Gemini"
    batch_api = GeminiBatches
    unsupported = _UNSUPPORTED_SAMPLING

    def __init__(
        self,
        clock: Clock,
        address: EndpointAddress,
        asking: EndpointOptions,
        form: str = "schema",
        *,
        thinking: str = "",
        filters: bool = True,
    ) -> None:
        self._name = address.model if "/" in address.model else f"models/{address.model}"
        super().__init__(clock, address, asking, form)
        self._thinking, self._filters = thinking, filters

    def _base_url(self, url: str) -> str:
        return url if _HAS_API_VERSION.search(url) else f"{url}/{_API_VERSION}"

    def _own_headers(self, address: EndpointAddress) -> dict[str, str]:
        return {"x-goog-api-key": address.key} if address.key else {}

    def _call_url(self, *, streaming: bool) -> str:
        method = "streamGenerateContent?alt=sse" if streaming else "generateContent"
        return f"{self.base_url}/{quote(self._name)}:{method}"

    @property
    def _listed_name(self) -> str:
        return self._name

    @property
    def _advice(self) -> Mapping[str, str]:
        return _ADVICE

    def _body(self, request: Request, form: str, *, streaming: bool) -> dict[str, Any]:
        system, contents = self._turns(request)
        body: dict[str, Any] = {"contents": contents, "generationConfig": self._generation_config(request, form)}
        if system:
            body["systemInstruction"] = {"parts": [{"text": system}]}
        if request.tools is not None:
            body |= _tool_fields(request.tools)
        if not self._filters:
            body["safetySettings"] = [
                {"category": f"HARM_CATEGORY_{harm}", "threshold": "BLOCK_NONE"} for harm in _HARMS
            ]
        return body

    def _generation_config(self, request: Request, form: str) -> dict[str, Any]:
        sampling = request.sampling
        if len(sampling.stop) > _MOST_STOPS:
            raise ConfigurationError(
                f"{self.model}: the Gemini API takes {_MOST_STOPS} stop strings, not {len(sampling.stop)}"
            )
        budget = int(self._thinking) if self._thinking.isdigit() else 0
        config: dict[str, Any] = {"maxOutputTokens": sampling.max_tokens + budget, "seed": request.seed & _MAX_SEED}
        if self._asking.sampling:
            config |= {"temperature": sampling.temperature, "topP": sampling.top_p}
            if sampling.top_k:
                config["topK"] = sampling.top_k
        if sampling.stop:
            config["stopSequences"] = sampling.stop
        if sampling.frequency_penalty:
            config["frequencyPenalty"] = sampling.frequency_penalty
        if sampling.presence_penalty:
            config["presencePenalty"] = sampling.presence_penalty
        if sampling.logprobs is not None:
            config |= {"responseLogprobs": True, "logprobs": sampling.logprobs}
        if form != PROMPT_ONLY:
            config["responseMimeType"] = "application/json"
        if form == "schema":
            config["responseJsonSchema"] = sampling.schema
        if self._thinking == "off":
            config["thinkingConfig"] = {"thinkingBudget": 0}
        elif self._thinking in LEVELS:
            config["thinkingConfig"] = {"thinkingLevel": self._thinking.upper(), "includeThoughts": True}
        elif self._thinking:
            config["thinkingConfig"] = {"thinkingBudget": budget or -1, "includeThoughts": True}
        return config

    def _turns(self, request: Request) -> tuple[str, list[dict[str, Any]]]:
        names: dict[str, str] = {}
        sign = _must_sign(self.model)

        def parts_of(index: int, message: Message) -> list[dict[str, Any]]:
            names.update((call.id, call.name) for call in message.calls)
            kept = self._returned.parts_of(request, index) if message.calls else None
            return kept or _message_parts(message, names, sign)

        return alternating_turns(request.messages, "parts", "model", parts_of)

    def _read(self, answer: Any, *, tools: bool) -> ReadAnswer:
        usage = parse_usage(_usage_counts(answer.get("usageMetadata")), self._redact)
        if not answer.get("candidates") and _is_blocked(answer):
            return ReadAnswer(usage.completion_with("", "content_filter"))
        candidate = _find_candidate(answer["candidates"])
        parts = (candidate.get("content") or {}).get("parts") or []
        texts: list[str] = []
        thoughts: list[str] = []
        calls, beside = [], []
        for part in parts:
            called = part.get("functionCall")
            if called is not None:
                name = require_text(called["name"])
                calls.append((str(called.get("id") or ""), name, argument_text(called.get("args") or {})))
            elif part.get("text") is not None:
                (thoughts if part.get("thought") else texts).append(require_text(part["text"]))
            else:
                unknown = [name for name, value in part.items() if value is not None and name not in _IGNORED_FIELDS]
                if unknown and unknown[0] not in _SERVER_TOOL_FIELDS:
                    raise PartWithoutText(unknown[0])
                beside += unknown
        if beside and not calls and not any(texts):
            raise PartWithoutText(beside[0])
        reason = candidate.get("finishReason")
        finish = _FINISH_REASONS.get(reason, reason.lower()) if isinstance(reason, str) else None
        completion: Completion = usage.completion_with(
            "".join(texts),
            normalise_finish(finish, tools, False, self._redact.answer),
            logprobs=_parse_logprobs(candidate.get("logprobsResult")),
            calls=number_calls(calls) if calls else None,
            thoughts="".join(thoughts),
        )
        signed = any("thoughtSignature" in part for part in parts)
        return ReadAnswer(redact_completion(completion, self._redact), parts if calls and signed else None)

    def _assembly(self, records: JsonRecordStream) -> RecordAssembly:
        return _AnswerAssembly()


def build(spec: ModelSpec, clock: Clock) -> Backend:
    """Build a Gemini API model from its name."""
    return GeminiBackend(
        clock,
        resolve_endpoint(spec, _SERVICE),
        EndpointOptions.from_spec(spec),
        spec.one_of("json", (*_NEXT_FORM, PROMPT_ONLY), "schema"),
        thinking=_parse_thinking(spec),
        filters=spec.one_of("filters", ("on", "off")) != "off",
    )


def _parse_thinking(spec: ModelSpec) -> str:
    effort = spec.one_of("effort", LEVELS)  # alias of `thinking`
    option = spec.take("thinking", effort) or effort
    if option == "on":
        return "auto"
    if option in ("", "off", "auto", *LEVELS) or (option.isascii() and option.isdigit() and int(option) > 0):
        return option
    raise ConfigurationError(
        f"model '{spec.text}': thinking={option}: expected on, off, auto, {', '.join(LEVELS)}, or a number of tokens"
    )
