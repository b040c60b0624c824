"""Models of Anthropic's Messages API, over aiohttp: ``anthropic:MODEL`` or ``anthropic:URL#MODEL``.

Options: ``key_env`` (default ANTHROPIC_API_KEY where the model is named without a URL, none for a URL), ``timeout``,
``answer_mb`` and ``json`` (``schema`` or ``prompt``) as for ``openai``; ``thinking`` (``off``, ``adaptive`` or a budget
in tokens), ``effort``, ``sampling=off`` for models that take no temperature, ``cache=on``.

What never belongs here: retries and limits (wrappers do that), and the key in any message, log or record.
"""

from __future__ import annotations

from typing import Any

import orjson

from ...clock import Clock
from ...errors import ConfigurationError, Rejected
from ...messages import Completion, Request
from ..answer_forms import NOTHING, AnswerForms
from ..base import Backend, ModelSpec
from ..endpoint import Body, Endpoint
from ..endpoint_backend import EndpointBackend
from ..endpoint_name import Place, Service, place_of
from ..network import proxy_secrets
from ..returned_parts import ReturnedParts
from ..secrets import redactor_of
from .answer import ReadMessage, parse_message
from .errors import MessagesErrors, refuses_sampling
from .request import RequestOptions, body_of
from .stream import read_stream

_VERSION = "2023-06-01"  # of the API, as the header anthropic-version names it
_SERVICE = Service(
    kind="anthropic",
    url="https://api.anthropic.com",
    url_variable="ANTHROPIC_BASE_URL",
    key_variable="ANTHROPIC_API_KEY",
    example="claude-sonnet-4-5",
    calls="(/v1)?/(messages|models)",
)
_AFTER = {"schema": NOTHING}
_LEAST_BUDGET = 1024  # tokens, as the API demands
_EFFORTS = ("low", "medium", "high", "xhigh", "max")


class AnthropicBackend(EndpointBackend):
    """See the module."""

    def __init__(
        self,
        clock: Clock,
        place: Place,
        options: RequestOptions,
        *,
        timeout: float = 120.0,
        form: str = "schema",
        longest_answer: int = 64_000_000,
    ) -> None:
        self._redact = redactor_of([place.key, *proxy_secrets()])
        headers = {"anthropic-version": _VERSION} | ({"x-api-key": place.key} if place.key else {})
        base_url = place.base_url.removesuffix("/v1")
        endpoint = Endpoint(base_url, self._redact, timeout, longest_answer, headers, dialect=MessagesErrors())
        super().__init__(clock, endpoint, place.model)
        self._options, self._forms, self._returned = options, AnswerForms(form, _AFTER), ReturnedParts()

    @property
    def _list(self) -> tuple[str, str]:
        return "/v1/models?limit=1000", self.model

    def ended(self, affinity: str) -> None:
        self._returned.forget(affinity)

    async def generate(self, request: Request) -> Completion:
        """As the base says; a refused form of structured output raises ``FormRefused`` until one is accepted."""
        return await self._forms.ask(request, self._attempt, self.label)

    async def _attempt(self, request: Request, form: str) -> Completion:
        on_text, tools = request.on_text, request.tools is not None
        body = body_of(request, self.model, self._options, form, self._returned, streaming=on_text is not None)
        found: list[ReadMessage] = []

        async def receive(answer: Body) -> Completion:
            if on_text is not None:
                read = await read_stream(answer, on_text, self.label, self._clock, self._endpoint, tools=tools)
            else:
                read = parse_message(await answer.whole(), self.label, self._redact, tools=tools)
            found.append(read)
            return read.completion

        try:
            completion = await self._ask(request, f"{self.base_url}/v1/messages", orjson.dumps(body), receive)
        except Rejected as error:
            if self._options.sampling and refuses_sampling(error):
                said = str(error).removeprefix(f"{error.model}: ")
                raise ConfigurationError(
                    f"{self.label}: the model does not take the temperature, top_p or top_k of this run: {said}; add "
                    "sampling=off to its name, which leaves them out"
                ) from None
            raise
        self._returned.keep(request, completion, found[-1].returned)
        return completion

    def statistics(self) -> dict[str, Any]:
        return {"json_mode": self._forms.chosen, "connections": self._endpoint.connections}


def build(spec: ModelSpec, clock: Clock) -> Backend:
    """A model of the Messages API from its name.

    :raises ConfigurationError: the public API is named but no key is set, or an option is wrong.
    """
    place = place_of(spec, _SERVICE)
    options = RequestOptions(
        thinking=_thinking(spec),
        effort=spec.one_of("effort", _EFFORTS),
        sampling=spec.one_of("sampling", ("on", "off")) != "off",
        cache=spec.one_of("cache", ("on", "off")) == "on",
    )
    return AnthropicBackend(
        clock,
        place,
        options,
        timeout=spec.number("timeout", 120.0, 0.001, unit="seconds"),
        form=spec.one_of("json", ("schema", NOTHING), "schema"),
        longest_answer=int(spec.number("answer_mb", 64.0, 0.001, 100_000.0) * 1e6),
    )


def _thinking(spec: ModelSpec) -> str:
    given = spec.take("thinking", "") or ""
    if given in ("", "off", "adaptive") or (given.isascii() and given.isdigit() and int(given) >= _LEAST_BUDGET):
        return given
    raise ConfigurationError(
        f"model '{spec.text}': thinking={given}: expected off, adaptive, or a number of tokens from {_LEAST_BUDGET}"
    )
