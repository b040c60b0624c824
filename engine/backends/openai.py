"""Any OpenAI-compatible chat endpoint, over aiohttp: `openai:gpt-4o` or `openai:http://host:port/v1#name`.

Options: `key_env` (environment variable that holds the key; default: OPENAI_API_KEY for a model without a URL, none for
a URL), those of `EndpointOptions`, `effort`, `thinking`, `json` (the first form of structured output to try: `schema`,
`object_schema`, `object`, `prompt`, or vLLM's `structured_outputs` or `guided_json`), `reading` (how texts are scored:
`echo`, `prompt_logprobs` or `generate`), `seed=off` for endpoints that refuse a seed, `tokens_field` (`max_tokens` or
`max_completion_tokens`), `token_ids=on` to request the ids of an answer's tokens, `cache_key=on` to send the
conversation as `prompt_cache_key`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from yarl import URL

from ..clock import Clock
from ..errors import SettingRefused
from ..likelihood import Reading
from ..messages import Completion, Request, Sampling
from .base import Backend, ModelSpec
from .batch_api import OpenAIBatches
from .endpoint import AnswerBody
from .endpoint_address import EndpointAddress, ProviderApi, resolve_endpoint
from .endpoint_answer import ReadAnswer
from .endpoint_backend import PROMPT_ONLY, SAMPLING_ADVICE, EndpointBackend, EndpointOptions
from .openai_answer import CompletionAssembly, read_completion
from .openai_likelihood import LIKELIHOOD_METHODS, build_likelihood_url
from .sse import JsonRecordStream, RecordAssembly

_SERVICE = ProviderApi(
    kind="openai",
    url="https://api.openai.com/v1",
    url_variable="OPENAI_BASE_URL",
    key_variable="OPENAI_API_KEY",
    example="gpt-4o",
    path="/v1",
    unnamed="default",
    calls="(/chat)?/completions|(?<=/v1)/models",
)
_AZURE = (".azure.com", ".azure.us", ".azure.cn")
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_ALL_SETTINGS = Sampling(top_k=1, min_p=0.5, repeat_penalty=2.0, frequency_penalty=1.0, presence_penalty=1.0)
# Forms of structured output, from the strongest to the weakest. `object_schema` is the dialect of llama.cpp's servers,
# which take the schema inside json_object. The last two are vLLM's own, for versions from 0.12 on and before; other
# endpoints may silently ignore them, so they are used only on request.
_NEXT_FORM = {
    "schema": "object_schema",
    "object_schema": "object",
    "object": PROMPT_ONLY,
    "structured_outputs": "schema",
    "guided_json": "schema",
}


class OpenAIBackend(EndpointBackend):
    """A model of an OpenAI-compatible endpoint. Remembers which form of structured output the endpoint accepts."""

    reads_one = True
    form = "a chat completion"
    next_form = _NEXT_FORM
    batch_api = OpenAIBatches

    def __init__(
        self,
        clock: Clock,
        address: EndpointAddress,
        asking: EndpointOptions | None = None,
        form: str = "schema",
        *,
        send_seed: bool = True,
        tokens_field: str = "max_tokens",
        token_ids: bool = False,
        cache_key: bool = False,
        reading: str = "echo",
        reasoning: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(clock, address, asking, form)
        self._reasoning = reasoning or {}
        self._token_ids = token_ids
        self._send_seed, self._tokens_field = send_seed, tokens_field
        self._cache_key, self._way = cache_key, LIKELIHOOD_METHODS[reading]
        self._schemas: dict[bytes, Any] = {}  # as sent, by sampling settings

    def _own_headers(self, address: EndpointAddress) -> dict[str, str]:
        """Return the header that contains the key; Azure uses its own."""
        if not address.key:
            return {}
        host = (URL(address.base_url).host or "").lower()
        return {"api-key": address.key} if host.endswith(_AZURE) else {"Authorization": f"Bearer {address.key}"}

    def _call_url(self, *, streaming: bool) -> str:
        return f"{self.base_url}/chat/completions"

    def _read(self, answer: Any, *, tools: bool) -> ReadAnswer:
        return ReadAnswer(read_completion(answer, self._redact, tools=tools, token_ids=self._token_ids))

    def _assembly(self, records: JsonRecordStream) -> RecordAssembly:
        return CompletionAssembly(records)

    async def read(self, reading: Reading) -> Completion:
        """Score a text at an endpoint that reports log-probabilities of a prompt (vLLM, SGLang and others)."""
        if self._batches is not None:
            raise SettingRefused(
                f"{self.label}: a batch API gives no log-probabilities of a given text; leave batch=on out (a resumed "
                "run keeps its model names, so start a new run)"
            )
        before, after = reading.shared + reading.context, reading.continuations[0]
        data = orjson.dumps(self._way.body(self.model, before + after))

        async def receive(answer: AnswerBody) -> Completion:
            return await self._parse_whole(
                answer, lambda data: self._way.parse(data, before, after, self.label, self._redact)
            )

        async with self._trust.call():
            return await self._endpoint.ask(self.label, build_likelihood_url(self._way, self.base_url), data, receive)

    def _body(self, request: Request, form: str, *, streaming: bool) -> dict[str, Any]:
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [
                message.to_openai()
                if message.calls or message.role == "tool"
                else {"role": message.role, "content": message.content}
                for message in request.messages
            ],
            **({"temperature": sampling.temperature, "top_p": sampling.top_p} if self._asking.sampling else {}),
            self._tokens_field: sampling.max_tokens,
            **self._reasoning,
        }
        if self._send_seed:
            body["seed"] = request.seed
        if self._asking.sampling:
            body |= _optional_settings(sampling)
        if request.tools is not None:
            body["tools"] = request.tools.specs
            if request.tools.required:
                body["tool_choice"] = "required"
            if request.tools.single:
                body["parallel_tool_calls"] = False
        if sampling.stop:
            body["stop"] = sampling.stop
        if sampling.logprobs is not None:
            body["logprobs"] = True
            body["top_logprobs"] = sampling.logprobs
        body |= self._form_fields(sampling, form)
        if self._token_ids:
            body["return_token_ids"] = True
        if self._cache_key and (request.affinity or request.conversation):
            body["prompt_cache_key"] = f"{request.affinity or request.conversation} {request.role}"
        if streaming:
            body["stream"] = True
            body["stream_options"] = {"include_usage": True}
        return body

    def _form_fields(self, sampling: Sampling, form: str) -> dict[str, Any]:
        """Return the fields that request structured output in this form."""
        match form:
            case "structured_outputs":
                return {"structured_outputs": {"json": sampling.schema}}
            case "guided_json":
                return {"guided_json": sampling.schema}
            case "schema":
                schema = {"name": "answer", "schema": self._unbounded(sampling), "strict": True}
                return {"response_format": {"type": "json_schema", "json_schema": schema}}
            case "object_schema":
                return {"response_format": {"type": "json_object", "schema": self._unbounded(sampling)}}
            case "object":
                return {"response_format": {"type": "json_object"}}
        return {}

    @property
    def _advice(self) -> Mapping[str, str]:
        other = "max_completion_tokens" if self._tokens_field == "max_tokens" else "max_tokens"
        return {
            "temperature": SAMPLING_ADVICE,
            "top_p": SAMPLING_ADVICE,
            self._tokens_field: f"add tokens_field={other} to the model's name to send the limit in that field, "
            "or max_tokens=NUMBER to send another limit",
            "seed": "add seed=off to the model's name to leave it out",
            **dict.fromkeys(_optional_settings(_ALL_SETTINGS), SAMPLING_ADVICE),
            **dict.fromkeys(("reasoning_effort", "effort"), "give another effort= in the model's name, or none"),
            **dict.fromkeys(
                ("chat_template_kwargs", "enable_thinking"),
                "remove thinking= from the model's name, or use a setting that the endpoint knows "
                "(body.enable_thinking=false, body.thinking.type=disabled, effort=none)",
            ),
            **{
                name: f"add body.{name}=null to the model's name to leave it out"
                for name in ("stop", "stream_options", "parallel_tool_calls", "prompt_cache_key", "return_token_ids")
            },
        }

    def _unbounded(self, sampling: Sampling) -> Any:
        """Return the schema without length bounds of texts, because many endpoints refuse these."""
        schema = self._schemas.get(sampling.digest)
        if schema is None:
            schema = self._schemas[sampling.digest] = _without_max_length(sampling.schema)
        return schema


def _without_max_length(schema: Any) -> Any:
    if isinstance(schema, Mapping):
        bounded = schema.get("type") == "string"
        return {
            name: _without_max_length(value) for name, value in schema.items() if not (bounded and name == "maxLength")
        }
    return [_without_max_length(item) for item in schema] if isinstance(schema, list) else schema


def _optional_settings(sampling: Sampling) -> dict[str, float]:
    """Return settings that are sent only if they are set: some endpoints do not know all of their fields."""
    fields = {"frequency_penalty": sampling.frequency_penalty, "presence_penalty": sampling.presence_penalty}
    fields |= {"top_k": sampling.top_k, "min_p": sampling.min_p}
    if sampling.repeat_penalty != 1.0:
        fields |= {"repeat_penalty": sampling.repeat_penalty, "repetition_penalty": sampling.repeat_penalty}
    return {name: value for name, value in fields.items() if value}


def build(spec: ModelSpec, clock: Clock) -> Backend:
    """Build a model of an OpenAI-compatible endpoint from its name."""
    address = resolve_endpoint(spec, _SERVICE)
    is_public = address.base_url == _SERVICE.url
    usual = "max_completion_tokens" if is_public else "max_tokens"  # public reasoning models refuse max_tokens
    return OpenAIBackend(
        clock,
        address,
        EndpointOptions.from_spec(spec),
        spec.one_of("json", (*_NEXT_FORM, PROMPT_ONLY), "schema"),
        send_seed=spec.take("seed", "on") != "off",
        tokens_field=spec.take("tokens_field", usual) or usual,
        reasoning=_reasoning_fields(spec, is_public),
        token_ids=spec.take("token_ids", "off") == "on",
        cache_key=spec.take("cache_key", "off") == "on",
        reading=spec.one_of("reading", tuple(LIKELIHOOD_METHODS), "echo"),
    )


def _reasoning_fields(spec: ModelSpec, is_public: bool) -> dict[str, Any]:
    """Return the fields for thinking: an effort for the public API, a chat template setting for open models."""
    effort = spec.one_of("effort", _EFFORTS)
    thinking = spec.one_of("thinking", ("on", "off"))
    if is_public and thinking and not effort:
        effort = "none" if thinking == "off" else "medium"
    fields: dict[str, Any] = {"reasoning_effort": effort} if effort else {}
    if thinking and not is_public:
        switch = thinking == "on"
        fields["chat_template_kwargs"] = {"enable_thinking": switch, "thinking": switch}  # Qwen's name, DeepSeek's name
    return fields
