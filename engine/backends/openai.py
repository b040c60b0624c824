"""Any OpenAI-compatible chat endpoint, over aiohttp: ``openai:gpt-4o`` or ``openai:http://host:port/v1#name``.

Options: ``key_env`` (name of the environment variable that holds the key; default OPENAI_API_KEY where the model is
named without a URL, none for a URL), ``timeout`` (seconds per attempt, default 120), ``json`` (``schema``,
``object_schema``, ``object`` or ``prompt``: the first form of structured output to try), ``seed=off`` for endpoints
that refuse a seed, ``tokens_field`` (``max_tokens`` or ``max_completion_tokens``).

What never belongs here: retries and limits (wrappers do that), and the key in any message, log or record.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import orjson

from ..clock import Clock
from ..errors import ConfigurationError, FormRefused, Rejected
from ..likelihood import Reading
from ..messages import Completion, Message, Request, Sampling
from ..tools import Toolbox
from .base import Backend, ModelSpec
from .credentials import url_credentials
from .openai_answer import parse_completion
from .openai_echo import parse_echo
from .openai_errors import error_from_response, scrub, transport_error
from .sse import read_stream

_PUBLIC_API = "https://api.openai.com/v1"
# From the most to the least an endpoint can do about the form of an answer. ``object_schema`` is the dialect of
# llama.cpp's servers, which take the schema inside of json_object.
_JSON_MODES = ("schema", "object_schema", "object", "prompt")


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
    ) -> None:
        self.base_url, self.model = base_url.rstrip("/"), model
        self._key = key
        self._timeout = aiohttp.ClientTimeout(total=timeout, sock_connect=min(10.0, timeout))
        self._clock = clock
        self._json_mode = json_mode
        self._send_seed, self._tokens_field = send_seed, tokens_field
        self._session: aiohttp.ClientSession | None = None
        self._probing: dict[bytes, str] = {}  # requests under way whose form is being found out
        self._url = f"{self.base_url}/chat/completions"

    async def __aenter__(self) -> Backend:
        headers = {"Content-Type": "application/json", "User-Agent": "viva"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        # limit=0: the pool's default of 100 connections would silently cap concurrency; our own limits decide.
        connector = aiohttp.TCPConnector(limit=0, ttl_dns_cache=300, keepalive_timeout=60)
        self._session = aiohttp.ClientSession(connector=connector, headers=headers, timeout=self._timeout)
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def check(self) -> None:
        url = f"{self.base_url}/models"
        async with self._translated(), self._open.get(url) as response:
            # Many servers have no model list; any answer but a refusal of the key shows that they are there.
            if response.status in (401, 403):
                raise error_from_response(self.label, response.status, await response.read(), None, self._key)

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
        streaming, tools = request.on_text is not None, request.tools is not None
        body = self._body(request, mode, streaming)
        began = self._clock.now()
        async with self._translated(), self._open.post(self._url, data=body) as response:
            if response.status != 200:
                raise error_from_response(
                    self.label, response.status, await response.read(), response.headers.get("Retry-After"), self._key
                )
            if streaming:
                completion = await read_stream(
                    response.content,
                    request.on_text,
                    self.label,
                    self._clock,
                    lambda text: scrub(text, self._key),
                    tools=tools,
                )
                if completion.first_token is not None:
                    completion.first_token -= began
            else:
                completion = parse_completion(await response.read(), self.label, self._key, tools=tools)
        completion.latency = self._clock.now() - began
        if not completion.prompt_tokens:  # endpoint without usage: keep totals meaningful
            completion.prompt_tokens = request.characters // 4
            said = len(completion.text) + len(completion.thoughts)
            said += sum(len(call.name) + len(call.arguments) for call in completion.calls or ())
            completion.completion_tokens = completion.completion_tokens or max(1, said // 4)
        return completion

    async def read(self, reading: Reading) -> Completion:
        """Through the completions endpoint, which must be able to echo a prompt with its log-probabilities (vLLM,
        llama-cpp-python's server and others can; the public API's chat models cannot).
        """
        before = reading.shared + reading.context
        body = {"model": self.model, "prompt": before + reading.continuations[0], "max_tokens": 1}
        body |= {"temperature": 0, "echo": True, "logprobs": 1}
        async with self._translated(), self._open.post(f"{self.base_url}/completions", data=orjson.dumps(body)) as got:
            if got.status != 200:
                raise error_from_response(
                    self.label, got.status, await got.read(), got.headers.get("Retry-After"), self._key
                )
            return parse_echo(await got.read(), before, reading.continuations[0], self.label, self._key)

    def _body(self, request: Request, mode: str, streaming: bool) -> bytes:
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [
                _message(message)
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
            schema = {"name": "answer", "schema": sampling.schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif mode == "object_schema":
            body["response_format"] = {"type": "json_object", "schema": sampling.schema}
        elif mode == "object":
            body["response_format"] = {"type": "json_object"}
        if streaming:
            body["stream"] = True
            body["stream_options"] = {"include_usage": True}
        return orjson.dumps(body)

    @property
    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise ConfigurationError(f"{self.label}: the backend is used outside its `async with`")
        return self._session

    @asynccontextmanager
    async def _translated(self) -> AsyncIterator[None]:
        try:
            yield
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise transport_error(self.label, self.base_url, error, self._key) from error

    def statistics(self) -> dict[str, Any]:
        return {"json_mode": self._json_mode}


def _message(message: Message) -> dict[str, Any]:
    """An assistant's message with calls, or a tool's result, as endpoints take them."""
    if message.role == "tool":
        result = {"role": "tool", "tool_call_id": message.call_id, "content": message.content}
        return result | {"name": message.name} if message.name else result
    calls = [call.to_openai() for call in message.calls]
    return {"role": message.role, "content": message.content or None, "tool_calls": calls}


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
    if spec.where.startswith(("http://", "https://")):
        base_url, model = spec.where, spec.fragment or "default"
        # A key for one place is never sent to another: a URL's key is named with it, or there is none.
        usual: str | None = None
    elif spec.where:
        usual = "OPENAI_API_KEY"
        base_url, model = os.environ.get("OPENAI_BASE_URL", _PUBLIC_API), spec.where
    else:
        raise ConfigurationError(
            f"model '{spec.text}': name a model (openai:gpt-4o) or a URL (openai:http://…/v1#name)"
        )
    if url_credentials(base_url):  # of OPENAI_BASE_URL; names were looked at when they were parsed
        raise ConfigurationError("OPENAI_BASE_URL must not hold a password; put the key in OPENAI_API_KEY")
    variable = spec.take("key_env", usual)
    key = (os.environ.get(variable) or "").strip() or None if variable else None
    if variable and key is None and (variable != usual or base_url == _PUBLIC_API):
        raise ConfigurationError(f"model '{spec.text}': no key in the environment variable {variable}; set it")
    if key is not None and not key.isprintable():
        raise ConfigurationError(f"the key in the environment variable {variable} is not plain text")
    mode = spec.take("json", "schema")
    if mode not in _JSON_MODES:
        raise ConfigurationError(f"model '{spec.text}': json={mode}: expected one of {', '.join(_JSON_MODES)}")
    return OpenAIBackend(
        clock,
        base_url=base_url,
        model=model,
        key=key,
        timeout=spec.number("timeout", 120.0, 0.001),
        json_mode=mode,
        send_seed=spec.take("seed", "on") != "off",
        tokens_field=spec.take("tokens_field", "max_tokens") or "max_tokens",
    )
