"""What backends of chat endpoints have in common: the session, the check of the model's name, a timed request, and what
a model's name says of its requests whatever the provider.

What never belongs here: what a request or an answer looks like, retries and limits (wrappers do that).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import Any, TypeVar

import orjson
from yarl import URL

from ..clock import Clock
from ..errors import ConfigurationError, Rejected, SettingRefused, Unavailable
from ..messages import Completion, Request
from .allowance import Hear
from .base import Backend, ModelSpec
from .endpoint import Body, Endpoint
from .endpoint_errors import Dialect
from .endpoint_name import Place
from .event_stream import reported_error
from .key_trust import Trust
from .network import proxy_secrets
from .openai_listed import unlisted
from .openai_usage import estimated
from .secrets import redactor_of

T = TypeVar("T")

_LONGEST_LIST = 8 << 20  # bytes read of an endpoint's list of models
SAMPLING_ADVICE = (
    "add sampling=off to the model's name, which leaves temperature, top_p and the like out, or temperature=NUMBER, "
    "which sends that in place of the run's"
)
_OWN_FIELDS = ("messages", "contents", "model", "stream", "n")  # which the engine's reading of answers rests on
_PYTHONS = {"True": "true", "False": "false", "None": "null"}
# Words that refuse a setting, and the ways in which its name then stands in them.
_REFUSAL = re.compile(
    r"unsupported|n[o']t (be )?(support|accept|allow|permit|available|compatible)"
    r"|unknown|unrecogni[sz]ed|unexpected|extra (inputs|fields)|deprecated|no longer|only (the default|be set|one of)"
    r"|cannot (both )?be|(must|should) be|invalid|incompatible|too (large|high|low)|at most|(greater|less) than"
    r"|maximum allowed|only works",
    re.IGNORECASE,
)
_NAMED = (
    r"(?i:['\"`‘“]{0}['\"`’”]|(?<![\w.]){0} ?[:=]|parameters?(:? |\.){0}(?!\w)|: {0}(?=[.,;)]|$)"
    r"|(?<![\w.]){0} (\d+ )?(parameter|is|are|was|does|do|can|cannot|may|must|should|and|or)\b)"
)


class EndpointBackend(Backend):
    """One model of one endpoint. ``base_url`` stands for the endpoint in messages."""

    fallible = True

    def __init__(
        self,
        clock: Clock,
        place: Place,
        asking: AskOptions,
        key_header: Mapping[str, str],
        *,
        base_url: str = "",
        dialect: Dialect | None = None,
    ) -> None:
        self.base_url, self.model = base_url or place.base_url, place.model
        self.nearby = _is_nearby(self.base_url)  # a server of this machine's own, which queues what it cannot take
        self._redact = redactor_of([place.key, *place.secrets, *proxy_secrets()])
        self._endpoint = Endpoint(
            self.base_url,
            self._redact,
            asking.timeout,
            asking.longest_answer,
            {**key_header, **place.headers},
            dialect=dialect,
            query=place.query,
        )
        self._clock, self._asking = clock, asking
        self._trust = Trust()

    @property
    def _advice(self) -> Mapping[str, str]:
        """What helps where the endpoint refuses a setting, by the setting's name in requests."""
        return {}

    @property
    def _list(self) -> tuple[str, str]:
        """The path of the endpoint's list of models, and this model's name in it."""
        return "/models", self.model

    def _is_there(self, status: int) -> bool:
        """Whether an answer to the request for the list shows that the endpoint is there and takes the key."""
        return status not in (401, 403) and not 300 <= status < 400

    def hear_allowance(self, hear: Hear) -> None:
        self._endpoint.hear_allowance = hear

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
        path, name = self._list
        data = await self._endpoint.ask(self.label, self.base_url + path, None, receive, accept=self._is_there)
        warning = unlisted(data, name, self._endpoint.redact)
        if warning:
            place = self.base_url + path.partition("?")[0]
            logging.getLogger("viva").warning("%s: %s (%s)", self.label, warning, place)

    async def _ask(
        self, request: Request, url: str, data: bytes, receive: Callable[[Body], Awaitable[Completion]]
    ) -> Completion:
        """The answer to one request, with its times, and with estimates in the place of missing counts of tokens.

        ``receive`` gives the clock's time of the first piece as ``first_token``.
        """
        began = self._clock.now()
        try:
            async with self._trust.call():
                completion = await self._endpoint.ask(self.label, url, data, receive)
        except Rejected as error:
            if type(error) is not Rejected or (advice := self._refused_setting(str(error))) is None:
                raise
            said = f"{str(error).removeprefix(f'{error.model}: ').rstrip('.')}; {advice}"
            if self._trust.proven:  # others are answered with the same settings
                raise Rejected(said, model=error.model, status=error.status) from None
            raise SettingRefused(f"{self.label}: {said}; a resumed run keeps its names, so start anew") from None
        if completion.first_token is not None:
            completion.first_token -= began
        completion.latency = self._clock.now() - began
        estimated(completion, request)
        return completion

    async def _whole(self, answer: Body, parse: Callable[[bytes], T]) -> T:
        """Return what ``parse`` makes of an answer that was sent whole.

        :raises BackendError: the endpoint reported an error as if it were an answer, or as ``parse`` says.
        """
        data = await answer.whole()
        try:
            return parse(data)
        except (Rejected, Unavailable):
            reported = reported_error(self._endpoint, self.label, data)
            if reported is None:
                raise
        raise reported

    def _refused_setting(self, said: str) -> str | None:
        """Return what helps, where an endpoint's words are that it does not take one of our settings."""
        if not _REFUSAL.search(said):
            return None
        for name, advice in self._advice.items():
            if re.search(_NAMED.format(re.escape(name)), said):
                return advice
        return None


def unheard(text: str) -> None:
    """Hear a piece of a stream that nobody asked for."""


@dataclass(slots=True, frozen=True)
class AskOptions:
    """What a model's name says of each of its requests.

    :param sampling: whether temperature, top_p and the like are sent. :param settings: settings of the sampling in the
        place of the run's. :param body: values to put into the body, by their paths in it; None takes a field out.
    """

    timeout: float = 120.0
    longest_answer: int = 64_000_000
    sampling: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[tuple[str, ...], Any] = field(default_factory=dict)

    @classmethod
    def of(cls, spec: ModelSpec) -> AskOptions:
        """Read the options that all kinds of endpoints have.

        :raises ConfigurationError: one of them is wrong.
        """
        sampling = spec.one_of("sampling", ("on", "off")) != "off"
        settings: dict[str, Any] = {
            "temperature": spec.number("temperature", -1.0, 0.0, 2.0),
            "top_p": spec.number("top_p", -1.0, 0.0, 1.0),
            "max_tokens": spec.whole("max_tokens", -1),
        }
        settings = {name: value for name, value in settings.items() if value != -1}
        if not sampling and settings.keys() - {"max_tokens"}:
            raise ConfigurationError(f"model '{spec.text}': sampling=off leaves out temperature and top_p; give one")
        return cls(
            timeout=spec.number("timeout", 120.0, 0.001, unit="seconds"),
            longest_answer=int(spec.number("answer_mb", 64.0, 0.001, 100_000.0) * 1e6),
            sampling=sampling,
            settings=settings,
            body={tuple(name.split(".")): _value(spec, name, text) for name, text in spec.group("body").items()},
        )

    def settled(self, request: Request) -> Request:
        """Return the request with this model's own settings. It stays the same call in the journal."""
        if not self.settings:
            return request
        return replace(request, sampling=replace(request.sampling, **self.settings))

    def body_of(self, body: dict[str, Any]) -> bytes:
        """Return a request's body as it is sent, with what the model's name puts into it."""
        for path, value in self.body.items():
            _put(body, path, value)
        return orjson.dumps(body)


def _put(body: dict[str, Any], path: Sequence[str], value: Any) -> None:
    *outer, last = path
    for name in outer:
        inner = body.get(name)
        body[name] = body = dict(inner) if isinstance(inner, dict) else {}
    if value is None:
        body.pop(last, None)
    else:
        body[last] = value


def _value(spec: ModelSpec, name: str, text: str) -> Any:
    """Return the value of an option ``body.KEY``: JSON, or a text that is none.

    :raises ConfigurationError: it was meant to be JSON, or what the engine sends itself is to be replaced.
    """
    option = f"model '{spec.text}': body.{name}"
    if name.partition(".")[0] in _OWN_FIELDS or "" in name.split("."):
        raise ConfigurationError(f"{option}: expected the name of a field other than {', '.join(_OWN_FIELDS)}")
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if text in _PYTHONS:
            raise ConfigurationError(f"{option}={text}: JSON writes {_PYTHONS[text]}") from None
        if text[:1] in ("{", "[", '"'):
            raise ConfigurationError(f"{option}={text}: is no JSON: {error}") from None
        return text


def _is_nearby(url: str) -> bool:
    try:
        host = URL(url).host or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
