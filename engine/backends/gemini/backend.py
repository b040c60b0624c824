"""Models of Google's Gemini API, over aiohttp: ``gemini:MODEL`` or ``gemini:URL#MODEL``.

Options: ``key_env`` (default GEMINI_API_KEY where the model is named without a URL, none for a URL), those of
``AskOptions``, and ``json`` (``schema``, ``object`` or ``prompt``) as for ``openai``; ``thinking`` (``on``, ``off``,
``auto``, ``minimal``, ``low``, ``medium``, ``high`` or a budget in tokens), ``filters=off``.

What never belongs here: retries and limits (wrappers do that), and the key in any message, log or record.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from ...clock import Clock
from ...errors import ConfigurationError
from ...messages import Completion, Request
from ..answer_forms import NOTHING, AnswerForms
from ..base import Backend, ModelSpec
from ..endpoint import Body
from ..endpoint_backend import SAMPLING_ADVICE, AskOptions, EndpointBackend, unheard
from ..endpoint_name import Place, Service, place_of
from ..returned_parts import ReturnedParts
from .answer import ReadAnswer, parse_answer
from .errors import GeminiErrors
from .request import LEVELS, RequestOptions, body_of
from .stream import read_stream

_VERSION = "v1beta"  # of the API, as its URLs name it
_VERSIONED = re.compile(r"/v\d+\w*$")
_SERVICE = Service(
    kind="gemini",
    url="https://generativelanguage.googleapis.com",
    url_variable="GOOGLE_GEMINI_BASE_URL",
    key_variable="GEMINI_API_KEY",
    example="gemini-2.5-flash",
    calls="/models(/[^/]*)?",
)
_AFTER = {"schema": "object", "object": NOTHING}


class GeminiBackend(EndpointBackend):
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
        headers = {"x-goog-api-key": place.key} if place.key else {}
        base_url = place.base_url if _VERSIONED.search(place.base_url) else f"{place.base_url}/{_VERSION}"
        super().__init__(clock, place, asking, headers, base_url=base_url, dialect=GeminiErrors())
        self._name = place.model if "/" in place.model else f"models/{place.model}"
        self._options, self._forms, self._returned = options, AnswerForms(form, _AFTER), ReturnedParts()

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
        body = body_of(request, self.model, self._options, form, self._returned)
        found: list[ReadAnswer] = []

        async def receive(answer: Body) -> Completion:
            if on_text is not None or answer.is_stream:
                hear = on_text or unheard
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
    place = place_of(spec, _SERVICE)
    asking = AskOptions.of(spec)
    options = RequestOptions(
        thinking=_thinking(spec),
        sampling=asking.sampling,
        filters=spec.one_of("filters", ("on", "off")) != "off",
    )
    return GeminiBackend(
        clock,
        place,
        asking,
        options,
        form=spec.one_of("json", (*_AFTER, NOTHING), "schema"),
    )


def _thinking(spec: ModelSpec) -> str:
    effort = spec.one_of("effort", LEVELS)  # by another name
    given = spec.take("thinking", effort) or effort
    if given == "on":
        return "auto"
    if given in ("", "off", "auto", *LEVELS) or (given.isascii() and given.isdigit() and int(given) > 0):
        return given
    raise ConfigurationError(
        f"model '{spec.text}': thinking={given}: expected on, off, auto, {', '.join(LEVELS)}, or a number of tokens"
    )
