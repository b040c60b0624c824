"""Models of Google's Gemini API, over aiohttp: ``gemini:MODEL`` or ``gemini:URL#MODEL``.

Options: ``key_env`` (default GEMINI_API_KEY where the model is named without a URL, none for a URL), ``timeout``,
``answer_mb`` and ``json`` (``schema``, ``object`` or ``prompt``) as for ``openai``; ``thinking`` (``off``, ``auto``,
``minimal``, ``low``, ``medium``, ``high`` or a budget in tokens), ``sampling=off``, ``filters=off``.

What never belongs here: retries and limits (wrappers do that), and the key in any message, log or record.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import orjson

from ...clock import Clock
from ...errors import ConfigurationError
from ...messages import Completion, Request
from ..answer_forms import NOTHING, AnswerForms
from ..base import Backend, ModelSpec
from ..endpoint import Body, Endpoint
from ..endpoint_backend import EndpointBackend
from ..endpoint_name import Place, Service, place_of
from ..network import proxy_secrets
from ..returned_parts import ReturnedParts
from ..secrets import redactor_of
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
        options: RequestOptions,
        *,
        timeout: float = 120.0,
        form: str = "schema",
        longest_answer: int = 64_000_000,
    ) -> None:
        self._redact = redactor_of([place.key, *proxy_secrets()])
        headers = {"x-goog-api-key": place.key} if place.key else {}
        base_url = place.base_url if _VERSIONED.search(place.base_url) else f"{place.base_url}/{_VERSION}"
        endpoint = Endpoint(base_url, self._redact, timeout, longest_answer, headers, dialect=GeminiErrors())
        super().__init__(clock, endpoint, place.model)
        self._name = place.model if "/" in place.model else f"models/{place.model}"
        self._options, self._forms, self._returned = options, AnswerForms(form, _AFTER), ReturnedParts()

    @property
    def _list(self) -> tuple[str, str]:
        return "/models?pageSize=1000", self._name

    def _is_there(self, status: int) -> bool:
        return status != 400 and super()._is_there(status)  # a wrong key is reported as a wrong argument

    def ended(self, affinity: str) -> None:
        self._returned.forget(affinity)

    async def generate(self, request: Request) -> Completion:
        """As the base says; a refused form of structured output raises ``FormRefused`` until one is accepted."""
        return await self._forms.ask(request, self._attempt, self.label)

    async def _attempt(self, request: Request, form: str) -> Completion:
        on_text, tools = request.on_text, request.tools is not None
        body = body_of(request, self.model, self._options, form, self._returned)
        found: list[ReadAnswer] = []

        async def receive(answer: Body) -> Completion:
            if on_text is not None:
                read = await read_stream(answer, on_text, self.label, self._clock, self._endpoint, tools=tools)
            else:
                read = parse_answer(await answer.whole(), self.label, self._redact, tools=tools)
            found.append(read)
            return read.completion

        method = "generateContent" if on_text is None else "streamGenerateContent?alt=sse"
        url = f"{self.base_url}/{quote(self._name)}:{method}"
        completion = await self._ask(request, url, orjson.dumps(body), receive)
        self._returned.keep(request, completion, found[-1].returned)
        return completion

    def statistics(self) -> dict[str, Any]:
        return {"json_mode": self._forms.chosen, "connections": self._endpoint.connections}


def build(spec: ModelSpec, clock: Clock) -> Backend:
    """A model of the Gemini API from its name.

    :raises ConfigurationError: the public API is named but no key is set, or an option is wrong.
    """
    place = place_of(spec, _SERVICE)
    options = RequestOptions(
        thinking=_thinking(spec),
        sampling=spec.one_of("sampling", ("on", "off")) != "off",
        filters=spec.one_of("filters", ("on", "off")) != "off",
    )
    return GeminiBackend(
        clock,
        place,
        options,
        timeout=spec.number("timeout", 120.0, 0.001, unit="seconds"),
        form=spec.one_of("json", (*_AFTER, NOTHING), "schema"),
        longest_answer=int(spec.number("answer_mb", 64.0, 0.001, 100_000.0) * 1e6),
    )


def _thinking(spec: ModelSpec) -> str:
    given = spec.take("thinking", "") or ""
    if given in ("", "off", "auto", *LEVELS) or (given.isascii() and given.isdigit() and int(given) > 0):
        return given
    raise ConfigurationError(
        f"model '{spec.text}': thinking={given}: expected off, auto, {', '.join(LEVELS)}, or a number of tokens"
    )
