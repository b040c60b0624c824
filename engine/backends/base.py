"""The backend interface, and model names: `kind:where[?option=value]`.

Limits, retries and fault injection are wrappers with the same interface, so they can be stacked. This module also
parses rate-limit headers: OpenAI's (`x-ratelimit-…`, a duration), Anthropic's (`anthropic-ratelimit-…`, a time) and
those of the IETF draft (`ratelimit-…`, seconds).
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from ..durations import seconds_until
from ..errors import ConfigurationError, did_you_mean
from ..events import Event
from ..likelihood import Reading
from ..messages import Completion, Message, Request
from .model_name import find_inline_mapping, refuse_credentials

_HEADER_NAMES = (
    ("requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
    ("tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
    ("requests", "anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-reset"),
    ("tokens", "anthropic-ratelimit-input-tokens-remaining", "anthropic-ratelimit-input-tokens-reset"),
    ("requests", "ratelimit-remaining", "ratelimit-reset"),
)


@dataclass(slots=True, frozen=True)
class RateLimitHeaders:
    """Remaining quota of `what` (requests or tokens); the full quota is available again after `seconds`."""

    what: str
    remaining: float
    seconds: float


OnRateLimit = Callable[[RateLimitHeaders], None]


def parse_rate_limit_headers(headers: Mapping[str, str]) -> Iterator[RateLimitHeaders]:
    """Yield the limits found in the headers of an answer; unreadable values are skipped."""
    for key, remaining, reset in _HEADER_NAMES:
        count = headers.get(remaining)
        if count is None:
            continue
        seconds = seconds_until(headers.get(reset), headers.get("Date"))
        try:
            left = float(count)
        except ValueError:
            continue
        if seconds is not None and 0.0 <= left < math.inf:
            yield RateLimitHeaders(key, left, seconds)


EventSink = Callable[[Event], None]


@dataclass(slots=True, frozen=True)
class PromptSize:
    """Number of tokens of a prompt, and of the `context` that must hold prompt and answer.

    An estimate is too low rather than too high. `advice` says how to get a longer context.
    """

    tokens: int
    context: int
    advice: str


class Backend(ABC):
    """A model. Use it with `async with`, and call `check` before the first conversation.

    `label` is the short name in tables and errors. Prices are per million tokens; `price_cached` applies to cached
    prompt tokens and defaults to `price_in`. If `reads_one` is set, a reading passed to `read` has exactly one
    continuation (the wrapper that counts requests ensures this). Only backends with `continues_text` accept requests
    with a `prompt`.
    """

    label: str = "model"
    replays: bool = False  # returns recorded answers unchanged
    reads_one: bool = False  # a reading with several continuations takes several requests
    fallible: bool = False  # calls can fail temporarily and are retried
    nearby: bool = True  # runs on this machine or needs no endpoint; it queues calls beyond its capacity itself
    continues_text: bool = False  # accepts `Request.prompt`: text without a chat template
    price_in: float = 0.0
    price_out: float = 0.0
    price_cached: float | None = None

    @abstractmethod
    async def generate(self, request: Request) -> Completion:
        """Answer one request.

        A streaming backend calls `request.on_text`, if set, with each piece of text; an exception raised there ends the
        call at once. Cancelling this coroutine frees the backend's capacity at once.

        Raises:
            BackendError: The type says whether a retry can help.
        """

    async def read(self, reading: Reading) -> Completion:
        """Return the likelihood of each continuation, in order, as `likelihoods` of an otherwise empty completion."""
        raise ConfigurationError(f"{self.label}: this kind of model gives no log-probabilities of a given text")

    def ended(self, affinity: str) -> None:
        """Free what is stored for a conversation (`Request.affinity`) that has ended."""

    def interrupted(self, affinity: str) -> None:
        """Free what this process stores for a conversation. A resumed run may continue it, unlike after `ended`."""
        self.ended(affinity)

    def prompt_size(self, messages: Sequence[Message]) -> PromptSize | None:
        """Return the size of a prompt in this model's context; None if it is unknown before a call."""
        return None

    def join_run(self, model: str, folder: Path | None, publish: EventSink | None, patience: float) -> None:
        """Take notice, before opening, of the model's whole name and of the run.

        A backend may keep records of its own in the run's `folder` (None: there is no run), `publish` events, and wait
        for an endpoint that fails for `patience` seconds.
        """

    async def check(self) -> None:
        """Check within seconds that the model is reachable; raise the matching BackendError if it is not."""

    def on_rate_limit(self, callback: OnRateLimit) -> None:
        """Register a callback for the endpoint's rate-limit headers."""

    async def __aenter__(self) -> Backend:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    def cost(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> float:
        """Return the cost of a call, in the unit of the prices. Cached tokens are part of the prompt tokens."""
        cost = prompt_tokens * self.price_in + completion_tokens * self.price_out
        if cached_tokens and self.price_cached is not None:
            cost += cached_tokens * (self.price_cached - self.price_in)
        return cost / 1e6

    def statistics(self) -> dict[str, Any]:
        """Return counters for display; empty if there are none."""
        return {}


# File names may contain blanks and semicolons. After these, only one of our own kinds starts another model name.
_SEVERAL_MODELS = re.compile(r",\s*\w+:|[;|\s]\s*(?:openai|anthropic|gemini|llama|simulated|oracle|replay|human|pool):")
_KINDS_WITHOUT_COMMA = ("openai", "anthropic", "gemini", "simulated")  # kinds whose names are not file paths
_BATCH_KINDS = ("openai", "anthropic", "gemini")
_BATCH_PRICE = 0.5
MAX_WHOLE_OPTION = 2**31 - 1  # maximum of integer options: llama.cpp accepts no more


def _parse_options(query: str, text: str) -> dict[str, str]:
    """Return the options in the model name `text`; each may be given only once."""
    options = parse_qsl(query, keep_blank_values=True)
    for name, times in Counter(name for name, _ in options).items():
        if times > 1:
            raise ConfigurationError(f"model '{text}': the option {name} is given {times} times; give it once")
    return dict(options)


@dataclass(slots=True)
class ModelSpec:
    """A parsed model name. Options that the backend does not read are errors (see `finish`)."""

    text: str
    kind: str
    where: str
    fragment: str
    options: dict[str, str]
    _used: set[str] = field(default_factory=set)

    @classmethod
    def parse(cls, text: str) -> ModelSpec:
        """Parse `kind:where[#fragment][?option=value&…]`. A name with a credential is refused."""
        refuse_credentials(text)
        inline = find_inline_mapping(text)
        if inline is not None:
            fragment, _, query = inline.behind.partition("?")
            return cls(text, inline.kind, inline.text, fragment.removeprefix("#"), _parse_options(query, text))
        head, _, query = text.partition("?")
        kind, colon, location = head.partition(":")
        if not colon or not kind:
            raise ConfigurationError(
                f"model '{text}': expected kind:where[?option=value], e.g. openai:gpt-4o, "
                "openai:http://127.0.0.1:8000/v1#name, simulated:strong?knowledge=0.9"
            )
        if _SEVERAL_MODELS.search(head) or ("," in head and kind in _KINDS_WITHOUT_COMMA):
            raise ConfigurationError(
                f"model '{text}': names several models; give each one separately (repeat the "
                "option, or use one line per model in YAML)"
            )
        location, _, fragment = location.partition("#")
        return cls(text, kind, location, fragment, _parse_options(query, text))

    @property
    def is_batched(self) -> bool:
        """Return True if the calls go through the provider's batch API."""
        return self.kind in _BATCH_KINDS and self.options.get("batch") == "on"

    @property
    def price_factor(self) -> float:
        """Factor of the list prices: providers ask half of them in batches."""
        return _BATCH_PRICE if self.is_batched else 1.0

    def take(self, name: str, default: str | None = None) -> str | None:
        """Return the option's text, or `default`."""
        self._used.add(name)
        return self.options.get(name, default)

    def number(self, name: str, default: float, low: float = 0.0, high: float = float("inf"), unit: str = "") -> float:
        """Return the option as a number within bounds, or `default`; `unit` is used in the error message."""
        text = self.take(name)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not low <= value <= high or math.isinf(value):
            unit_text = f" of {unit}, without a unit," if unit else ""
            upper = "" if high == float("inf") else f" to {high:g}"
            raise ConfigurationError(
                f"model '{self.text}': {name}={text}: expected a number{unit_text} from {low:g}{upper}"
            )
        return value

    def whole(self, name: str, default: int | None = None, low: int = 1, high: int = MAX_WHOLE_OPTION) -> int | None:
        """Return the option as an integer within bounds, or `default`."""
        if name not in self.options:
            self._used.add(name)
            return default
        value = self.number(name, 0, low, high)
        if value != int(value):
            raise ConfigurationError(f"model '{self.text}': {name}={self.options[name]}: expected a whole number")
        return int(value)

    def one_of(self, name: str, known: Sequence[str], default: str = "") -> str:
        """Return the option if it is one of the known values, or `default` if it is not given."""
        value = self.take(name)
        if value is not None and value not in known:
            near = did_you_mean(value, known)
            raise ConfigurationError(f"model '{self.text}': {name}={value}: expected one of {', '.join(known)}{near}")
        return default if value is None else value

    def group(self, name: str) -> dict[str, str]:
        """Return the options `name.KEY` as a mapping from KEY to value."""
        options = {key: value for key, value in self.options.items() if key.startswith(f"{name}.")}
        self._used |= {f"{name}.KEY", *options}
        return {key.removeprefix(f"{name}."): value for key, value in options.items()}

    def finish(self) -> None:
        """Raise ConfigurationError if an option was given that this kind does not know."""
        unknown = sorted(self.options.keys() - self._used)
        if unknown:
            of_url = "; write a parameter of the endpoint's URL as query.KEY=VALUE" if "query.KEY" in self._used else ""
            near = "".join(did_you_mean(name, self._used) for name in unknown) or ";"
            raise ConfigurationError(
                f"model '{self.text}': unknown option {', '.join(unknown)}{near} "
                f"{self.kind} knows {', '.join(sorted(self._used))}{of_url}"
            )

    @property
    def label(self) -> str:
        """Label: the option `label=`, else the fragment, the location, or, for a JSON object, the kind."""
        address = "" if self.where.startswith("{") else self.where
        return self.take("label") or self.fragment or address or self.kind
