"""Models of Anthropic's Messages API, over aiohttp: ``anthropic:MODEL`` or ``anthropic:URL#MODEL``.

Options: ``key_env`` (default ANTHROPIC_API_KEY where the model is named without a URL, none for a URL), those of
``AskOptions``, and ``json`` (``schema`` or ``prompt``) as for ``openai``; ``thinking`` (``on``, ``off``, ``adaptive``
or a budget in tokens), ``effort``, ``cache=on``.

What never belongs here: retries and limits (wrappers do that), and the key in any message, log or record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...clock import Clock
from ...errors import ConfigurationError
from ...messages import Completion, Request
from ..answer_forms import NOTHING, AnswerForms
from ..base import Backend, ModelSpec
from ..endpoint import Body
from ..endpoint_backend import SAMPLING_ADVICE, AskOptions, EndpointBackend, unheard
from ..endpoint_name import Place, Service, place_of
from ..returned_parts import ReturnedParts
from .answer import ReadMessage, parse_message
from .errors import MessagesErrors
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
        asking: AskOptions,
        options: RequestOptions,
        *,
        form: str = "schema",
    ) -> None:
        headers = {"anthropic-version": _VERSION} | ({"x-api-key": place.key} if place.key else {})
        base_url = place.base_url.removesuffix("/v1")
        super().__init__(clock, place, asking, headers, base_url=base_url, dialect=MessagesErrors())
        self._options, self._forms, self._returned = options, AnswerForms(form, _AFTER), ReturnedParts()

    @property
    def _list(self) -> tuple[str, str]:
        return "/v1/models?limit=1000", self.model

    @property
    def _advice(self) -> Mapping[str, str]:
        return {
            **dict.fromkeys(("temperature", "top_p", "top_k"), SAMPLING_ADVICE),
            **dict.fromkeys(
                ("thinking", "thinking.type.enabled", "thinking.type.adaptive", "thinking.type.disabled"),
                "give another thinking= in the model's name (off, adaptive, a number of tokens), or none",
            ),
            **dict.fromkeys(("effort", "output_config.effort"), "give another effort= in the model's name, or none"),
            "max_tokens": "add max_tokens=NUMBER to the model's name, which sends another limit",
        }

    def ended(self, affinity: str) -> None:
        self._returned.forget(affinity)

    async def generate(self, request: Request) -> Completion:
        """As the base says; a refused form of structured output raises ``FormRefused`` until one is accepted."""
        return await self._forms.ask(self._asking.settled(request), self._attempt, self.label)

    async def _attempt(self, request: Request, form: str) -> Completion:
        on_text, tools = request.on_text, request.tools is not None
        body = body_of(request, self.model, self._options, form, self._returned, streaming=on_text is not None)
        found: list[ReadMessage] = []

        async def receive(answer: Body) -> Completion:
            if on_text is not None or answer.is_stream:
                hear = on_text or unheard
                read = await read_stream(answer, hear, self.label, self._clock, self._endpoint, tools=tools)
            else:
                read = await self._whole(
                    answer, lambda data: parse_message(data, self.label, self._redact, tools=tools)
                )
            found.append(read)
            return read.completion

        completion = await self._ask(request, f"{self.base_url}/v1/messages", self._asking.body_of(body), receive)
        self._returned.keep(request, completion, found[-1].returned)
        return completion

    def statistics(self) -> dict[str, Any]:
        return {"json_mode": self._forms.chosen, "connections": self._endpoint.connections}


def build(spec: ModelSpec, clock: Clock) -> Backend:
    """A model of the Messages API from its name.

    :raises ConfigurationError: the public API is named but no key is set, or an option is wrong.
    """
    place = place_of(spec, _SERVICE)
    asking = AskOptions.of(spec)
    options = RequestOptions(
        thinking=_thinking(spec),
        effort=spec.one_of("effort", _EFFORTS),
        sampling=asking.sampling,
        cache=spec.one_of("cache", ("on", "off")) == "on",
    )
    return AnthropicBackend(
        clock,
        place,
        asking,
        options,
        form=spec.one_of("json", ("schema", NOTHING), "schema"),
    )


def _thinking(spec: ModelSpec) -> str:
    given = spec.take("thinking", "") or ""
    if given == "on":
        return "adaptive"
    if given in ("", "off", "adaptive") or (given.isascii() and given.isdigit() and int(given) >= _LEAST_BUDGET):
        return given
    raise ConfigurationError(
        f"model '{spec.text}': thinking={given}: expected on, off, adaptive, or a number of tokens from {_LEAST_BUDGET}"
    )
