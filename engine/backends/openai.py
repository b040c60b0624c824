"""Any OpenAI-compatible chat endpoint, over aiohttp: ``openai:gpt-4o`` or ``openai:http://host:port/v1#name``.

Options: ``key_env`` (name of the environment variable that holds the key; default OPENAI_API_KEY where the model is
named without a URL, none for a URL), ``timeout`` (seconds per attempt, default 120), ``json`` (``schema``,
``object_schema``, ``object`` or ``prompt``: the first form of structured output to try), ``seed=off`` for endpoints
that refuse a seed, ``tokens_field`` (``max_tokens`` or ``max_completion_tokens``), ``answer_mb`` (the most
megabytes of one answer, unpacked; default 64).

What never belongs here: retries and limits (wrappers do that), and the key in any message, log or record.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from typing import Any

import orjson

from ..clock import Clock
from ..errors import ConfigurationError, FormRefused, Rejected
from ..likelihood import Reading
from ..messages import Completion, Request, Sampling
from ..tools import Toolbox
from .base import Backend, ModelSpec
from .credentials import url_credentials
from .endpoint import Body, Endpoint
from .key_trust import Trust
from .openai_answer import parse_completion
from .openai_echo import parse_echo
from .openai_listed import unlisted
from .openai_usage import estimated
from .secrets import Redactor, usable_key
from .sse import read_stream

_PUBLIC_API = "https://api.openai.com/v1"
# From the most to the least an endpoint can do about the form of an answer. ``object_schema`` is the dialect of
# llama.cpp's servers, which take the schema inside of json_object.
_JSON_MODES = ("schema", "object_schema", "object", "prompt")

# host:port, localhost, or a path that ends as endpoints' paths do; models' names are none of these.
_LIKE_URL = re.compile(
    r"//|[\w.-]+:\d+(/|$)|localhost(/|$)|\d+(\.\d+){3}(/|$)|[\w.-]+\.[a-z]+/(.*/)?v\d+/?$", re.IGNORECASE
)
_LONGEST_LIST = 8 << 20  # bytes read of an endpoint's list of models


class OpenAIBackend(Backend):
    """See the module. Remembers for its endpoint which form of structured output it accepts."""

    fallible = True
    reads_one = True

    def __init__(
        self,
        clock: Clock,
        *,
        base_url: str,
        model: str,
        key: str | None,
        timeout: float = 120.0,
        json_mode: str = "schema",
        send_seed: bool = True,
        tokens_field: str = "max_tokens",
        longest_answer: int = 64_000_000,
        token_ids: bool = False,
    ) -> None:
        self.base_url, self.model = base_url.rstrip("/"), model
        self._redact = Redactor(key)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._endpoint = Endpoint(self.base_url, self._redact, timeout, longest_answer, headers)
        self._trust = Trust()
        self._clock = clock
        self._json_mode, self._token_ids = json_mode, token_ids
        self._send_seed, self._tokens_field = send_seed, tokens_field
        self._schemas: dict[bytes, Any] = {}  # as they are sent, by the sampling that has them
        self._probing: dict[bytes, str] = {}  # requests under way whose form is being found out

    async def __aenter__(self) -> Backend:
        await self._endpoint.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._endpoint.close()

    async def check(self) -> None:
        """As the base says; warns (logger ``viva``) of a model's name that the endpoint does not list."""

        async def receive(body: Body) -> bytes:
            return await body.head(_LONGEST_LIST) if body.status == 200 else b""

        # Many servers have no model list; any answer but a refusal of the key shows that they are there.
        data = await self._endpoint.ask(self.label, f"{self.base_url}/models", None, receive, accept=_is_there)
        warning = unlisted(data, self.model, self._redact)
        if warning:
            logging.getLogger("viva").warning("%s: %s (%s/models)", self.label, warning, self.base_url)

    async def generate(self, request: Request) -> Completion:
        """As the base says. One HTTP request a call: finding out which form of structured output the endpoint knows
        takes several calls, each of which raises ``FormRefused`` until one is accepted.
        """
        structured = request.sampling.schema is not None
        mode = self._probing.get(request.digest, self._json_mode) if structured else "prompt"
        try:
            completion = await self._attempt(request, mode)
        except Rejected as error:
            self._probing.pop(request.digest, None)
            # 400/422 may mean that the endpoint does not know this response format: ask again with less.
            if type(error) is not Rejected or error.status not in (400, 404, 422):
                raise
            if mode == "prompt" or error.status == 404:
                if request.tools is None:
                    raise
                raise _with_tools(error, request.tools) from error
            self._probing[request.digest] = _JSON_MODES[_JSON_MODES.index(mode) + 1]
            raise FormRefused(
                f"refused structured output as '{mode}'", model=self.label, status=error.status
            ) from error
        if self._probing.pop(request.digest, None) is not None:
            self._json_mode = mode  # remembered: the next request does not pay for finding out
        return completion

    async def _attempt(self, request: Request, mode: str) -> Completion:
        on_text, tools = request.on_text, request.tools is not None
        body = self._body(request, mode, on_text is not None)
        began = self._clock.now()

        async def receive(answer: Body) -> Completion:
            if on_text is not None:
                return await read_stream(answer, on_text, self.label, self._clock, self._redact, tools=tools)
            return parse_completion(
                await answer.whole(), self.label, self._redact, tools=tools, token_ids=self._token_ids
            )

        async with self._trust.call():
            completion = await self._endpoint.ask(self.label, f"{self.base_url}/chat/completions", body, receive)
        if completion.first_token is not None:
            completion.first_token -= began
        completion.latency = self._clock.now() - began
        estimated(completion, request)
        return completion

    async def read(self, reading: Reading) -> Completion:
        """Through the completions endpoint, which must be able to echo a prompt with its log-probabilities (vLLM,
        llama-cpp-python's server and others can; the public API's chat models cannot).
        """
        before, after = reading.shared + reading.context, reading.continuations[0]
        body = {"model": self.model, "prompt": before + after, "max_tokens": 1}
        body |= {"temperature": 0, "echo": True, "logprobs": 1}

        async def receive(answer: Body) -> Completion:
            return parse_echo(await answer.whole(), before, after, self.label, self._redact)

        async with self._trust.call():
            return await self._endpoint.ask(self.label, f"{self.base_url}/completions", orjson.dumps(body), receive)

    def _body(self, request: Request, mode: str, streaming: bool) -> bytes:
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [
                message.to_openai()
                if message.calls or message.role == "tool"
                else {"role": message.role, "content": message.content}
                for message in request.messages
            ],
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            self._tokens_field: sampling.max_tokens,
        }
        if self._send_seed:
            body["seed"] = request.seed
        body |= _unusual(sampling)
        if request.tools is not None:
            body["tools"] = request.tools.specs
        if sampling.stop:
            body["stop"] = sampling.stop
        if sampling.logprobs is not None:
            body["logprobs"] = True
            body["top_logprobs"] = sampling.logprobs
        if mode == "schema":
            schema = {"name": "answer", "schema": self._unbounded(sampling), "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif mode == "object_schema":
            body["response_format"] = {"type": "json_object", "schema": self._unbounded(sampling)}
        elif mode == "object":
            body["response_format"] = {"type": "json_object"}
        if self._token_ids and not streaming:
            body["return_token_ids"] = True
        if streaming:
            body["stream"] = True
            body["stream_options"] = {"include_usage": True}
        return orjson.dumps(body)

    def _unbounded(self, sampling: Sampling) -> Any:
        """The schema without bounds of texts, for which many endpoints (the public API too) refuse all of it."""
        schema = self._schemas.get(sampling.digest)
        if schema is None:
            schema = self._schemas[sampling.digest] = _without_max_length(sampling.schema)
        return schema

    def statistics(self) -> dict[str, Any]:
        return {"json_mode": self._json_mode, "connections": self._endpoint.connections}


def _without_max_length(schema: Any) -> Any:
    if isinstance(schema, Mapping):
        bounded = schema.get("type") == "string"
        return {
            name: _without_max_length(value) for name, value in schema.items() if not (bounded and name == "maxLength")
        }
    return [_without_max_length(one) for one in schema] if isinstance(schema, list) else schema


def _is_there(status: int) -> bool:
    return status not in (401, 403) and not 300 <= status < 400


def _with_tools(error: Rejected, tools: Toolbox) -> Rejected:
    """The same refusal, and what is most likely behind it."""
    said = str(error).removeprefix(f"{error.model}: ")
    names = ", ".join(tools.names[:3]) + (", …" if len(tools.names) > 3 else "")
    return Rejected(
        f"{said} (the request offered tools: {names}; an endpoint or a model that takes none cannot be asked this)",
        model=error.model,
        status=error.status,
    )


def _unusual(sampling: Sampling) -> dict[str, float]:
    """Settings that are sent only where they are on: not every endpoint knows all of these fields."""
    fields = {"frequency_penalty": sampling.frequency_penalty, "presence_penalty": sampling.presence_penalty}
    fields |= {"top_k": sampling.top_k, "min_p": sampling.min_p}
    if sampling.repeat_penalty != 1.0:
        fields |= {"repeat_penalty": sampling.repeat_penalty, "repetition_penalty": sampling.repeat_penalty}
    return {name: value for name, value in fields.items() if value}


def build(spec: ModelSpec, clock: Clock) -> Backend:
    """An endpoint from its model name.

    :raises ConfigurationError: the public API is named but no key is set, or an option is wrong.
    """
    base_url, model, usual = _place(spec)
    variable = spec.take("key_env", usual)
    key = (os.environ.get(variable) or "").strip() or None if variable else None
    if variable and key is None and (variable != usual or base_url == _PUBLIC_API):
        raise ConfigurationError(f"model '{spec.text}': no key in the environment variable {variable}; set it")
    if key is not None and not usable_key(key):
        raise ConfigurationError(
            f"the key in the environment variable {variable} is not plain text: a header can hold printable ASCII "
            "characters, and no backslash; set it anew (typographic quotes, line breaks?)"
        )
    mode = spec.take("json", "schema")
    if mode not in _JSON_MODES:
        raise ConfigurationError(f"model '{spec.text}': json={mode}: expected one of {', '.join(_JSON_MODES)}")
    return OpenAIBackend(
        clock,
        base_url=base_url,
        model=model,
        key=key,
        timeout=spec.number("timeout", 120.0, 0.001, unit="seconds"),
        json_mode=mode,
        send_seed=spec.take("seed", "on") != "off",
        tokens_field=spec.take("tokens_field", "max_tokens") or "max_tokens",
        longest_answer=int(spec.number("answer_mb", 64.0, 0.001, 100_000.0) * 1e6),
        token_ids=spec.take("token_ids", "off") == "on",
    )


def _place(spec: ModelSpec) -> tuple[str, str, str | None]:
    """URL, model, and the variable that usually holds the key for it."""
    if "#" in spec.text.partition("?")[2]:
        raise ConfigurationError(
            f"model '{spec.text}': a '#' behind the '?'; the model stands before the options: "
            "openai:URL#name?option=value (a '#' in a value is written %23)"
        )
    if spec.where.lower().startswith(("http://", "https://")):
        # A key for one place is never sent to another: a URL's key is named with it, or there is none.
        base_url, model, usual = spec.where, spec.fragment or "default", None
    elif _LIKE_URL.match(spec.where):
        raise ConfigurationError(
            f"model '{spec.text}': an endpoint's URL begins with http:// or https://: "
            f"openai:http://{spec.where}#{spec.fragment or 'name'}"
        )
    elif spec.where:
        usual = "OPENAI_API_KEY"
        base_url, model = os.environ.get("OPENAI_BASE_URL", _PUBLIC_API), spec.where
        _check_variable(base_url)
    else:
        raise ConfigurationError(
            f"model '{spec.text}': name a model (openai:gpt-4o) or a URL (openai:http://…/v1#name)"
        )
    return base_url, model, usual


def _check_variable(base_url: str) -> None:
    """What is looked at in names when they are parsed, of a URL that none was seen to."""
    if url_credentials(base_url) or "?" in base_url or "#" in base_url:
        raise ConfigurationError(
            "OPENAI_BASE_URL must not hold a password, nor anything behind '?' or '#': it stands in messages and "
            "records; put the key in OPENAI_API_KEY"
        )
    if not base_url.lower().startswith(("http://", "https://")):
        raise ConfigurationError(f"OPENAI_BASE_URL={base_url}: a URL begins with http:// or https://")
