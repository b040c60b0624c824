"""A parametric model: free, and deterministic for a run's seed.

The request's hint decides the answer: each scenario has personas for its roles (`Persona`), and the model's parameters
determine how well they answer. Without such a hint the answer fills in the requested schema, or is a sentence. Every
draw depends on the call's seed. Used in the demo, in tests, and in forecasts under the virtual clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Protocol

import orjson

from .. import seeds
from ..clock import Clock
from ..errors import ConfigurationError, Rejected, Throttled, Unavailable
from ..likelihood import Likelihood, Reading
from ..messages import Completion, Request
from ..tools import ToolCall
from .base import Backend, ModelSpec

_NORMAL = NormalDist()
_MOST_VALUES = 2_000  # in an answer that follows a schema
SimulatedReply = tuple[str, list[ToolCall] | None]
SENTENCES = (
    "That follows from the principle the question rests on.",
    "The other options do not fit the observations described.",
    "One can check this by changing one condition at a time.",
    "The effect grows with the cause and vanishes without it.",
)


@dataclass(slots=True, frozen=True)
class SimulatedReading:
    """Reading of given texts by a simulated model.

    `right` is the index of the right text (None: there is only one); the model `knows` it, or `recites` the text from
    memory.
    """

    right: int | None = None
    knows: bool = False
    recites: bool = False


class Persona(Protocol):
    """A request's hint that determines a simulated answer; a hint for readings has `simulated_reading`."""

    def simulated(self, model: SimulatedBackend, request: Request, chance: list[float]) -> SimulatedReply:
        """Return the answer as text and calls. `chance` are the call's draws, numbers in [0, 1)."""


class SimulatedBackend(Backend):
    """A simulated model. All rates are probabilities in 0…1; the hint decides what they mean for the answer.

    Args:
        knowledge: Share of items that the model understands, or chance that an answer is right.
        memorisation: Share of items whose answer the model can recite without understanding.
        verbosity: Scale of the number of extra sentences, which is between 0 and twice this.
        noise: Chance that a judgement is wrong.
        malformed: Chance that a judgement is unreadable.
        latency: Median seconds of a log-normal distribution with `sigma`.
        traits: Habits by name that personas may know, from -1 to 1 (`traits=position:0.3,length:-0.1`).
        fail: Chance that an attempt raises Unavailable.
        throttle: Chance that an attempt raises Throttled.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        knowledge: float = 0.7,
        memorisation: float = 0.0,
        verbosity: float = 1.0,
        noise: float = 0.1,
        malformed: float = 0.0,
        latency: float = 0.0,
        sigma: float = 0.8,
        fail: float = 0.0,
        throttle: float = 0.0,
        traits: Mapping[str, float] | None = None,
    ) -> None:
        self.knowledge, self.memorisation, self.verbosity = knowledge, memorisation, verbosity
        self.noise, self.malformed = noise, malformed
        self.latency, self.sigma = latency, sigma
        self.fail, self.throttle = fail, throttle
        self.traits = dict(traits or {})
        self.fallible = fail > 0 or throttle > 0
        self._clock = clock
        self._tries: dict[bytes, int] = {}
        self._calls = 0

    async def generate(self, request: Request) -> Completion:
        self._calls += 1
        chance = seeds.draws(request.seed, "simulated")
        seconds = 0.0
        if self.latency:
            seconds = self.latency * math.exp(self.sigma * _NORMAL.inv_cdf(min(max(chance[0], 1e-9), 1 - 1e-9)))
        await self._clock.sleep(seconds)
        if self.fallible:
            self._maybe_fail(request.digest, request.seed)
        persona = getattr(request.hint, "simulated", None)
        text, calls = _default_reply(request, chance, self.label) if persona is None else persona(self, request, chance)
        if request.on_text is not None and (text or not calls):
            for piece in text.split(" "):
                request.on_text(piece + " ")
        length = len(text)
        if calls:
            length += sum(len(call.name) + len(call.arguments) for call in calls)
        return Completion(text, "stop", request.characters // 4, max(1, length // 4), seconds, calls=calls)

    async def read(self, reading: Reading) -> Completion:
        """Return high likelihoods for the right options of known or recited items, and for recited texts."""
        self._calls += 1
        digest = int.from_bytes(reading.digest()[:8])
        await self._clock.sleep(self.latency)
        if self.fallible:
            self._maybe_fail(reading.digest(), digest)
        chance = seeds.draws(digest, "read")
        persona = getattr(reading.hint, "simulated_reading", None)
        known: SimulatedReading = SimulatedReading() if persona is None else persona(self, reading)
        right, knows, recites = known.right, known.knows, known.recites
        likelihoods = []
        for index, text in enumerate(reading.continuations):
            # About one token per four characters; a token's surprisal is exponential, roughly as in natural text.
            count = max(1, len(text) // 4)
            mean = 0.7 if (index == right and (knows or recites)) or (right is None and recites) else 2.5
            logprobs = [mean * math.log(1 - seeds.uniform(digest, index, token) * 0.9999) for token in range(count)]
            if index == right and (knows or recites):
                logprobs[0] = -0.05 * (1 + chance[index % len(chance)])
            likelihoods.append(Likelihood(logprobs, index == right and knows))
        prompt = sum(map(len, [reading.shared, reading.context, *reading.continuations])) // 4
        return Completion("", "stop", prompt, 0, self.latency, likelihoods=likelihoods)

    def statistics(self) -> dict[str, Any]:
        return {"calls": self._calls}

    def _maybe_fail(self, digest: bytes, seed: int) -> None:
        # Drawn per attempt, so that a retry may succeed; dropped on success, so that memory does not grow.
        attempt = self._tries.get(digest, 0)
        chance = seeds.uniform(seed, "attempt", attempt)
        if chance < self.fail + self.throttle:
            self._tries[digest] = attempt + 1
            if chance < self.fail:
                raise Unavailable("simulated failure", model=self.label)
            raise Throttled("simulated 429", model=self.label, status=429, retry_after=1.0)
        self._tries.pop(digest, None)


def _default_reply(request: Request, chance: list[float], model: str) -> SimulatedReply:
    """Return the answer to a request without a persona."""
    if request.sampling.schema is not None:
        try:
            return orjson.dumps(_SchemaFiller().value(request.sampling.schema, request.seed)).decode(), None
        except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise Rejected(f"the JSON schema cannot be filled in: {error}", model=model) from None
    return SENTENCES[int(chance[2] * len(SENTENCES))], None


class _SchemaFiller:
    """Generator of values that a JSON schema allows, by its plain keywords. A schema may require very many values."""

    def __init__(self) -> None:
        self._left = _MOST_VALUES

    def value(self, schema: Any, *path: Any) -> Any:
        """Return one value; the draw depends on `path`."""
        self._left -= 1
        if self._left < 0:
            raise ValueError(f"it asks for more than {_MOST_VALUES:,} values")
        draw = seeds.uniform("schema", *path)
        if "const" in schema:
            return schema["const"]
        if choices := schema.get("enum"):
            return choices[int(draw * len(choices))]
        if alternatives := schema.get("anyOf") or schema.get("oneOf"):
            return self.value(alternatives[int(draw * len(alternatives))], *path, "of")
        kind = schema.get("type", "object" if "properties" in schema else "string")
        match kind if isinstance(kind, str) else kind[0]:
            case "object":
                return {name: self.value(inner, *path, name) for name, inner in schema.get("properties", {}).items()}
            case "array":
                count = max(int(schema.get("minItems", 1)), 0)
                return [self.value(schema.get("items", {}), *path, index) for index in range(count)]
            case "integer":
                low, high = int(schema.get("minimum", 0)), int(schema.get("maximum", schema.get("minimum", 0) + 10))
                return low + int(draw * (high - low + 1))
            case "number":
                minimum = float(schema.get("minimum", 0))
                return round(minimum + draw * (float(schema.get("maximum", minimum + 1)) - minimum), 3)
            case "boolean":
                return draw < 0.5
            case "null":
                return None
            case _:
                return SENTENCES[int(draw * len(SENTENCES))][: schema.get("maxLength")]


def build(spec: ModelSpec, clock: Clock) -> Backend:
    """Build a model from `simulated:label?knowledge=…&…`; the options are the constructor's parameters."""
    rate = {name: spec.number(name, default, 0.0, 1.0) for name, default in _RATES.items()}
    amount = {name: spec.number(name, default) for name, default in _AMOUNTS.items()}
    return SimulatedBackend(clock, **rate, **amount, traits=_parse_traits(spec))


def _parse_traits(spec: ModelSpec) -> dict[str, float]:
    """Parse traits; raise ConfigurationError if one is not `name:number`, or not from -1 to 1."""
    traits = {}
    for part in filter(None, (spec.take("traits") or "").split(",")):
        name, _, amount = part.partition(":")
        try:
            traits[name.strip()] = float(amount)
        except ValueError:
            traits[name.strip()] = math.nan
        if not name.strip() or not -1.0 <= traits[name.strip()] <= 1.0:
            raise ConfigurationError(f"{spec.text}: traits: found '{part}', expected NAME:AMOUNT, from -1 to 1")
    return traits


_RATES = {"knowledge": 0.7, "memorisation": 0.0, "noise": 0.1, "malformed": 0.0, "fail": 0.0, "throttle": 0.0}
_AMOUNTS = {"verbosity": 1.0, "latency": 0.0, "sigma": 0.8}
