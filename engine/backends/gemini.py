"""Models of Google's Gemini API: ``gemini:MODEL`` or ``gemini:URL#MODEL``.

Options: ``key_env`` (default GEMINI_API_KEY if the model is named without a URL, none for a URL), those of
``EndpointOptions``, and ``json`` (``schema``, ``object`` or ``prompt``) as for ``openai``; ``thinking``
(``on``, ``off``, ``auto``, ``minimal``, ``low``, ``medium``, ``high`` or a budget in tokens), ``filters=off``.

An error is ``{"error": {"code", "message", "status", "details"}}``, as an answer or within a stream; ``code``
is the HTTP status. Each event of a stream is an answer with the parts that came since the last one; the last
has a finish reason, and a stream without one is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote

import orjson

from ..clock import Clock
from ..errors import BackendError, ConfigurationError, Rejected, Unauthorized, Unavailable
from ..likelihood import clamp_logprob, max_logprob_by_token
from ..messages import Completion, Message, Request, Sampling
from ..tools import Toolbox, argument_text, number_calls
from .base import Backend, ModelSpec
from .endpoint import AnswerBody, Endpoint
from .endpoint_address import EndpointAddress, ProviderApi, resolve_endpoint
from .endpoint_answer import (
    PartWithoutText,
    merge_counts,
    normalise_finish,
    parse_json,
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
    FormFallback,
    ProviderState,
    discard_piece,
)
from .endpoint_errors import Dialect, error_details
from .redaction import Redactor
from .sse import JsonRecordStream

_KEY_REASONS = ("API_KEY_INVALID", "API_KEY_EXPIRED", "API_KEY_SERVICE_BLOCKED")
_DELAY_SECONDS = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s")  # a duration as protocol buffers write it


class GeminiErrors(Dialect):
    """Errors as the Gemini API words them."""

    def kind(self, status: int, error: Mapping[str, Any], message: str) -> type[BackendError] | None:
        if status == 400 and any(detail.get("reason") in _KEY_REASONS for detail in error_details(error)):
            return Unauthorized  # a wrong key is reported as a wrong argument
        return None

    def retry_after(self, error: Mapping[str, Any], headers: Mapping[str, str]) -> float | None:
        """``retryDelay`` of the error's details, or the header ``Retry-After``; the longer of the two."""
        waits = [super().retry_after(error, headers)]
        for detail in error_details(error):
            given = detail.get("retryDelay")
            found = _DELAY_SECONDS.fullmatch(given) if isinstance(given, str) else None
            waits.append(float(found[1]) if found else None)
        return max((wait for wait in waits if wait is not None), default=None)


_OWN_ID = re.compile(r"call-\d+")  # given by the engine where the API gave none
# What a sampling may ask for and the API does not know, with the value that asks for nothing.
_UNSUPPORTED_SAMPLING = {"min_p": 0.0, "repeat_penalty": 1.0}
_MOST_STOPS = 5
_MAX_SEED = 2**31 - 1  # seeds are whole numbers of 32 bits
# From this generation on a call must come back with its signature; the API documents this one for calls without any.
_MODEL_VERSION = re.compile(r"gemini-(\d+)")
_FIRST_SIGNED = 3
_NO_SIGNATURE = "skip_thought_signature_validator"
_HARMS = ("HARASSMENT", "HATE_SPEECH", "SEXUALLY_EXPLICIT", "DANGEROUS_CONTENT")
LEVELS = ("minimal", "low", "medium", "high")


@dataclass(slots=True, frozen=True)
class RequestOptions:
    """What a model's name says of its requests.

    :param thinking: ``""`` for the model's default, ``off``, ``auto``, one of ``LEVELS``, or a budget in tokens as
        text. :param sampling: whether temperature, topP and topK are sent. :param filters: whether the API's filters of
        content keep their thresholds.
    """

    thinking: str = ""
    sampling: bool = True
    filters: bool = True

    def thinking_config(self) -> dict[str, Any]:
        """The API's ``thinkingConfig``; empty for the model's default."""
        if not self.thinking:
            return {}
        if self.thinking == "off":
            return {"thinkingBudget": 0}
        told = (
            {"thinkingLevel": self.thinking.upper()}
            if self.thinking in LEVELS
            else {"thinkingBudget": self.budget or -1}
        )
        return told | {"includeThoughts": True}

    @property
    def budget(self) -> int:
        """Tokens for thoughts; 0 where no number is given."""
        return int(self.thinking) if self.thinking.isdigit() else 0


def build_request(
    request: Request, model: str, options: RequestOptions, form: str, returned: ProviderState
) -> dict[str, Any]:
    """The body of a request.

    :param form: of structured output, ``schema``, ``object`` or none.
    :raises ConfigurationError: the sampling asks for what the API does not have.
    """
    system, contents = _request_turns(request, returned, _must_sign(model))
    body: dict[str, Any] = {"contents": contents, "generationConfig": _generation_config(request, model, options, form)}
    if system:
        body["systemInstruction"] = {"parts": [{"text": system}]}
    if request.tools is not None:
        body |= _tool_fields(request.tools)
    if not options.filters:
        body["safetySettings"] = [{"category": f"HARM_CATEGORY_{harm}", "threshold": "BLOCK_NONE"} for harm in _HARMS]
    return body


def _generation_config(request: Request, model: str, options: RequestOptions, form: str) -> dict[str, Any]:
    sampling: Sampling = request.sampling
    asked = [name for name, off in _UNSUPPORTED_SAMPLING.items() if getattr(sampling, name) != off]
    if asked:
        raise ConfigurationError(
            f"{model}: the Gemini API has no {', '.join(asked)}; leave it off, or ask a model that has it"
        )
    if len(sampling.stop) > _MOST_STOPS:
        raise ConfigurationError(f"{model}: the Gemini API takes {_MOST_STOPS} stop strings, not {len(sampling.stop)}")
    config: dict[str, Any] = {"maxOutputTokens": sampling.max_tokens + options.budget, "seed": request.seed & _MAX_SEED}
    if options.sampling:
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
    thinking = options.thinking_config()
    return config | ({"thinkingConfig": thinking} if thinking else {})


def _tool_fields(tools: Toolbox) -> dict[str, Any]:
    declared = []
    for spec in tools.specs:
        function = spec["function"]
        told = {"name": function["name"], "description": function.get("description", "")}
        if function.get("parameters"):
            told["parametersJsonSchema"] = function["parameters"]
        declared.append(told)
    fields: dict[str, Any] = {"tools": [{"functionDeclarations": declared}]}
    if tools.required:
        fields["toolConfig"] = {"functionCallingConfig": {"mode": "ANY"}}
    return fields


def _request_turns(request: Request, returned: ProviderState, sign: bool) -> tuple[str, list[dict[str, Any]]]:
    """Instructions and turns. System messages are joined, wherever they stand; alone they are said by the user."""
    system = "\n\n".join(one.content for one in request.messages if one.role == "system")
    turns: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for index, message in enumerate(request.messages):
        if message.role == "system":
            continue
        names |= {call.id: call.name for call in message.calls}
        parts = (returned.of(request, index) if message.calls else None) or _message_parts(message, names, sign)
        if parts:
            role = "model" if message.role == "assistant" else "user"
            if turns and turns[-1]["role"] == role:
                turns[-1]["parts"] += parts
            else:
                turns.append({"role": role, "parts": list(parts)})
    if not turns:
        return "", [{"role": "user", "parts": [{"text": system}]}]
    return system, turns


def _message_parts(message: Message, names: dict[str, str], sign: bool) -> list[dict[str, Any]]:
    if message.role == "tool":
        answered = {
            "name": message.name or names.get(message.call_id, "function"),
            "response": _tool_result(message.content),
        }
        return [{"functionResponse": _with_id(answered, message.call_id)}]
    parts: list[dict[str, Any]] = [{"text": message.content}] if message.content else []
    for place, call in enumerate(message.calls):
        part: dict[str, Any] = {"functionCall": _with_id({"name": call.name, "args": call.as_object()}, call.id)}
        if sign and place == 0:  # of calls side by side only the first is signed
            part["thoughtSignature"] = _NO_SIGNATURE
        parts.append(part)
    return parts


def _with_id(record: dict[str, Any], given: str) -> dict[str, Any]:
    return record if not given or _OWN_ID.fullmatch(given) else record | {"id": given}


def _tool_result(content: str) -> dict[str, Any]:
    """A tool's result as the object that the API wants; anything else under the name that the API documents for it."""
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError:
        value = None
    return value if isinstance(value, dict) else {"output": content}


def _must_sign(model: str) -> bool:
    found = _MODEL_VERSION.search(model)
    return found is not None and int(found[1]) >= _FIRST_SIGNED


# Why an answer ended, in the engine's words; other reasons are kept in lower case.
_FINISH_REASONS = dict.fromkeys(
    ("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "LANGUAGE", "IMAGE_SAFETY"), "content_filter"
)
_IGNORED_FIELDS = ("text", "thought", "thoughtSignature", "videoMetadata", "partMetadata")  # fields that are no content
# Documented parts that tell of tools that the API runs itself, and say nothing of the answer.
_SERVER_TOOL_FIELDS = ("executableCode", "codeExecutionResult", "toolCall", "toolResponse")
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
        return read_answer(parse_json(data, label), redact, tools=tools)
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
    usage = parse_usage(_usage_counts(answer.get("usageMetadata")), redact)
    if not answer.get("candidates") and is_blocked(answer):
        silent = Completion("", "content_filter", usage.prompt, usage.completion, cached_tokens=usage.cached)
        return ReadAnswer(silent, None)
    candidate = find_candidate(answer["candidates"])
    parts = (candidate.get("content") or {}).get("parts") or []
    texts: list[str] = []
    thoughts: list[str] = []
    calls, beside = [], []
    for part in parts:
        called = part.get("functionCall")
        if called is not None:
            calls.append(
                (str(called.get("id") or ""), require_text(called["name"]), argument_text(called.get("args") or {}))
            )
        elif part.get("text") is not None:
            (thoughts if part.get("thought") else texts).append(require_text(part["text"]))
        else:
            unknown = [name for name, value in part.items() if value is not None and name not in _IGNORED_FIELDS]
            if unknown and unknown[0] not in _SERVER_TOOL_FIELDS:
                raise PartWithoutText(unknown[0])
            beside += unknown
    if beside and not calls and not any(texts):
        raise PartWithoutText(beside[0])
    given = candidate.get("finishReason")
    finish = _FINISH_REASONS.get(given, given.lower()) if isinstance(given, str) else None
    completion = Completion(
        "".join(texts),
        normalise_finish(finish, tools, False, redact.answer),
        usage.prompt,
        usage.completion,
        logprobs=_parse_logprobs(candidate.get("logprobsResult")),
        calls=number_calls(calls) if calls else None,
        thoughts="".join(thoughts),
        usage_note=usage.note,
        cached_tokens=usage.cached,
    )
    signed = any("thoughtSignature" in part for part in parts)
    return ReadAnswer(redact_completion(completion, redact), parts if calls and signed else None)


def find_candidate(candidates: list[Any]) -> Any:
    """The one that was asked for."""
    return next((one for one in candidates if not one.get("index")), candidates[0])


def is_blocked(answer: Any) -> bool:
    """Whether the prompt was refused: then there is no candidate."""
    feedback = answer.get("promptFeedback")
    return isinstance(feedback, dict) and bool(feedback.get("blockReason"))


def _usage_counts(told: Any) -> Any:
    """The API's counts of tokens under the names of ``parse_usage``."""
    if not isinstance(told, dict):
        return told
    return {
        "prompt_tokens": sum_counts(told, _PROMPT_COUNTS),
        "completion_tokens": sum_counts(told, _ANSWER_COUNTS),
        "total_tokens": told.get("totalTokenCount"),
        "cached_tokens": told.get("cachedContentTokenCount"),
    }


def _parse_logprobs(told: Any) -> list[list[Any]] | None:
    chosen = told.get("chosenCandidates") if isinstance(told, dict) else None
    if not chosen:
        return None
    tops = told.get("topCandidates") or [{}] * len(chosen)
    try:
        return [
            [
                str(one["token"]),
                clamp_logprob(one["logProbability"]),
                max_logprob_by_token(
                    (str(other["token"]), clamp_logprob(other["logProbability"]))
                    for other in top.get("candidates") or ()
                ),
            ]
            for one, top in zip(chosen, tops, strict=True)
        ]
    except (KeyError, TypeError, AttributeError, ValueError):
        return None


_LOGPROB_LISTS = ("chosenCandidates", "topCandidates")


async def read_stream(
    body: AnswerBody, on_text: Callable[[str], None], label: str, clock: Clock, endpoint: Endpoint, *, tools: bool
) -> ReadAnswer:
    """Read to the end, handing on each piece of text, without the key. ``first_token`` is the clock's time of the first
    piece of text, or of a call.

    :raises BackendError: an error that the stream reports, by its status.
    :raises Rejected: a part is of a kind that is no text.
    :raises Unavailable: the stream broke off, or held something that is no answer.
    :raises AnswerTooLarge: it is longer than an answer may be.
    """
    redact = endpoint.redact
    assembly = _Assembly()
    first: float | None = None
    out = redact.stream(on_text)
    stream = JsonRecordStream(body, endpoint, label)
    while (record := await stream.next()) is not None:
        try:
            piece = assembly.take(record)
        except (KeyError, IndexError, TypeError, AttributeError, ValueError):
            raise stream.malformed("what is no answer") from None
        if first is None and assembly.has_begun:
            first = clock.now()
        if piece:
            out.feed(piece)
    out.finish()
    if not assembly.ended:
        raise stream.broken_off()
    try:
        found = read_answer(assembly.answer, redact, tools=tools)
    except PartWithoutText as part:
        raise Rejected(redact.cut(str(part), 200), model=label) from None
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        shown = redact.cut(str(error), 200)
        raise Unavailable(f"the stream is not that of an answer ({shown})", model=label) from None
    found.completion.first_token = first
    return found


class _Assembly:
    """An answer as far as its events have come."""

    def __init__(self) -> None:
        self.answer: dict[str, Any] = {}
        self.ended = False
        self.has_begun = False  # something besides thoughts has come
        self._parts: list[dict[str, Any]] = []

    def take(self, record: dict[str, Any]) -> str:
        """Take an event; the text that it adds to the answer.

        :raises KeyError, TypeError, AttributeError: it is no answer.
        """
        if record.get("usageMetadata"):
            self.answer["usageMetadata"] = merge_counts(self.answer.get("usageMetadata"), record["usageMetadata"])
        if is_blocked(record):
            self.answer["promptFeedback"] = record["promptFeedback"]
            self.ended = True
        candidates = record.get("candidates") or ()
        if not candidates:
            return ""
        candidate = find_candidate(candidates)
        if candidate.get("index"):  # was not asked for
            return ""
        whole = self.answer.setdefault("candidates", [{"content": {"parts": self._parts}}])[0]
        parts = (candidate.get("content") or {}).get("parts") or []
        self._parts += parts
        text = "".join(part.get("text") or "" for part in parts if not part.get("thought"))
        self.has_begun = self.has_begun or bool(text) or any("functionCall" in part for part in parts)
        for name in _LOGPROB_LISTS:
            more = (candidate.get("logprobsResult") or {}).get(name)
            if more:
                whole.setdefault("logprobsResult", {}).setdefault(name, []).extend(more)
        if candidate.get("finishReason"):
            whole["finishReason"] = candidate["finishReason"]
            self.ended = True
        return text


_API_VERSION = "v1beta"  # of the API, as its URLs name it
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


class GeminiBackend(EndpointBackend):
    """See the module."""

    def __init__(
        self,
        clock: Clock,
        place: EndpointAddress,
        asking: EndpointOptions,
        options: RequestOptions,
        *,
        form: str = "schema",
    ) -> None:
        headers = {"x-goog-api-key": place.key} if place.key else {}
        base_url = place.base_url if _HAS_API_VERSION.search(place.base_url) else f"{place.base_url}/{_API_VERSION}"
        super().__init__(clock, place, asking, headers, base_url=base_url, dialect=GeminiErrors())
        self._name = place.model if "/" in place.model else f"models/{place.model}"
        self._options, self._forms, self._returned = options, FormFallback(form, _NEXT_FORM), ProviderState()

    @property
    def _list(self) -> tuple[str, str]:
        return "/models?pageSize=1000", self._name

    def _is_there(self, status: int) -> bool:
        return status != 400 and super()._is_there(status)  # a wrong key is reported as a wrong argument

    @property
    def _advice(self) -> Mapping[str, str]:
        return {
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
                "add max_tokens=NUMBER to the model's name, which sends another limit",
            ),
            "seed": "add body.generationConfig.seed=null to the model's name, which leaves it out",
        }

    def ended(self, affinity: str) -> None:
        self._returned.forget(affinity)

    async def generate(self, request: Request) -> Completion:
        """As the base says; a refused form of structured output raises ``FormRefused`` until one is accepted."""
        return await self._forms.ask(self._asking.settled(request), self._attempt, self.label)

    async def _attempt(self, request: Request, form: str) -> Completion:
        on_text, tools = request.on_text, request.tools is not None
        body = build_request(request, self.model, self._options, form, self._returned)
        found: list[ReadAnswer] = []

        async def receive(answer: AnswerBody) -> Completion:
            if on_text is not None or answer.is_stream:
                hear = on_text or discard_piece
                read = await read_stream(answer, hear, self.label, self._clock, self._endpoint, tools=tools)
            else:
                read = await self._whole(answer, lambda data: parse_answer(data, self.label, self._redact, tools=tools))
            found.append(read)
            return read.completion

        method = "generateContent" if on_text is None else "streamGenerateContent?alt=sse"
        url = f"{self.base_url}/{quote(self._name)}:{method}"
        completion = await self._ask(request, url, self._asking.body_of(body), receive)
        self._returned.keep(request, completion, found[-1].returned)
        return completion

    def statistics(self) -> dict[str, Any]:
        return {"json_mode": self._forms.chosen, "connections": self._endpoint.connections}


def build(spec: ModelSpec, clock: Clock) -> Backend:
    """A model of the Gemini API from its name.

    :raises ConfigurationError: the public API is named but no key is set, or an option is wrong.
    """
    place = resolve_endpoint(spec, _SERVICE)
    asking = EndpointOptions.of(spec)
    options = RequestOptions(
        thinking=_parse_thinking(spec),
        sampling=asking.sampling,
        filters=spec.one_of("filters", ("on", "off")) != "off",
    )
    return GeminiBackend(
        clock,
        place,
        asking,
        options,
        form=spec.one_of("json", (*_NEXT_FORM, PROMPT_ONLY), "schema"),
    )


def _parse_thinking(spec: ModelSpec) -> str:
    effort = spec.one_of("effort", LEVELS)  # by another name
    given = spec.take("thinking", effort) or effort
    if given == "on":
        return "auto"
    if given in ("", "off", "auto", *LEVELS) or (given.isascii() and given.isdigit() and int(given) > 0):
        return given
    raise ConfigurationError(
        f"model '{spec.text}': thinking={given}: expected on, off, auto, {', '.join(LEVELS)}, or a number of tokens"
    )
