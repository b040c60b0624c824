"""Requests of random lengths: `synthetic:prompt=lognormal(800,0.5),output=uniform(50,200),shared=0.5,count=200`.

They load a server like real requests of these lengths, but do not test judgement. A prompt consists of short English
words of about one token each. All requests of a group begin with the same text; `shared` is its share of the prompt.
The drawn output length is the limit of the answer.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from viva.agents.prompts import load_pack
from viva.engine import seeds
from viva.engine.errors import ConfigurationError
from viva.engine.messages import Message, Sampling

from .load_records import LoadRequest
from .request_files import LOAD_PACK, LOAD_TEMPLATES

SYNTHETIC_PREFIX = "synthetic:"
Draw: TypeAlias = Callable[[random.Random], float]
_WORD_LIST = (
    "the and that have with this from they would there what about which when make like time just know take people into "
    "year good some could them other than then look only come over think also back after work first well even want"
)
_WORDS = _WORD_LIST.split()
_DISTRIBUTION = re.compile(r"(?P<name>[a-z]+)\((?P<numbers>[^()]*)\)")
_LIMIT = 1_000_000  # maximum tokens, and maximum requests
_SYNTAX = "prompt=DISTRIBUTION,output=DISTRIBUTION,shared=0.5,groups=1,count=100"
_DISTRIBUTIONS = "a number, constant(N), uniform(LOW,HIGH), lognormal(MEDIAN,SIGMA)"


@dataclass(slots=True, frozen=True)
class RequestLengths:
    """Lengths of requests in tokens. `shared`: share of a prompt that its group has in common."""

    prompt: Draw
    output: Draw
    shared: float = 0.0
    groups: int = 1
    count: int = 100

    @classmethod
    def parse(cls, text: str) -> RequestLengths:
        """Parse a description.

        Raises:
            ConfigurationError: The description is wrong; the message says what was expected.
        """
        fields = dict(_split_field(part) for part in re.split(r",(?![^()]*\))", text) if part.strip())
        if unknown := sorted(fields.keys() - {"prompt", "output", "shared", "groups", "count"}):
            raise ConfigurationError(f"{SYNTHETIC_PREFIX}{unknown[0]}: no such field; expected {_SYNTAX}")
        for name in ("prompt", "output"):
            if name not in fields:
                raise ConfigurationError(f"{SYNTHETIC_PREFIX}{name}: is missing; expected {_SYNTAX}")
        return cls(
            _parse_distribution("prompt", fields["prompt"]),
            _parse_distribution("output", fields["output"]),
            _parse_number("shared", fields.get("shared", "0"), 0.0, 1.0),
            int(_parse_number("groups", fields.get("groups", "1"), 1, _LIMIT)),
            int(_parse_number("count", fields.get("count", "100"), 1, _LIMIT)),
        )


def synthetic_requests(source: str, seed: int) -> list[LoadRequest]:
    """Return the requests of a description, deterministic for a seed.

    Raises:
        ConfigurationError: The description is wrong; the message names the field.
    """
    lengths = RequestLengths.parse(source.removeprefix(SYNTHETIC_PREFIX))
    pack = load_pack(str(LOAD_PACK), LOAD_TEMPLATES)
    requests = []
    for number in range(lengths.count):
        generator = seeds.generator(seed, "lengths", number)
        prompt, output = (max(1, min(_LIMIT, round(draw(generator)))) for draw in (lengths.prompt, lengths.output))
        group = number % lengths.groups
        common = round(lengths.shared * prompt)
        words = seeds.generator(seed, "shared", group)
        shared = f"{pack.render('lengths.shared')}\n{_random_words(words, common)}"
        own = f"{pack.render('lengths.task', number=str(number + 1))}\n{_random_words(generator, prompt - common)}"
        messages = (Message("system", shared), Message("user", own)) if common else (Message("user", own),)
        requests.append(
            LoadRequest(
                f"{number:06}",
                messages,
                Sampling(temperature=0.0, max_tokens=output),
                affinity=f"group {group}" if common else "",
                reader="text",
            )
        )
    return requests


def _random_words(generator: random.Random, count: int) -> str:
    """Return random words; with a generator in the same state, a shorter text is a prefix of a longer text."""
    return " ".join(generator.choice(_WORDS) for _ in range(count))


def _split_field(part: str) -> tuple[str, str]:
    name, sign, value = part.partition("=")
    if not sign:
        raise ConfigurationError(f"{SYNTHETIC_PREFIX}{part}: expected {_SYNTAX}")
    return name.strip(), value.strip()


def _parse_distribution(name: str, text: str) -> Draw:
    if not (spec := _DISTRIBUTION.fullmatch(text)):
        constant = _parse_number(name, text, 1, _LIMIT)
        return lambda generator: constant
    numbers = [_parse_number(name, part.strip(), 0, _LIMIT) for part in spec["numbers"].split(",") if part.strip()]
    match spec["name"], numbers:
        case "constant", [number] if number >= 1:
            return lambda generator: number
        case "uniform", [low, high] if 1 <= low <= high:
            return lambda generator: generator.uniform(low, high)
        case "lognormal", [median, sigma] if median >= 1:
            return lambda generator: generator.lognormvariate(math.log(median), sigma)
    raise ConfigurationError(f"{SYNTHETIC_PREFIX}{name}={text}: expected {_DISTRIBUTIONS}, in tokens from 1 on")


def _parse_number(name: str, text: str, low: float, high: float) -> float:
    try:
        value = float(text)
    except ValueError:
        expected = _DISTRIBUTIONS if name in ("prompt", "output") else f"a number from {low:g} to {high:g}"
        raise ConfigurationError(f"{SYNTHETIC_PREFIX}{name}={text}: expected {expected}") from None
    if not low <= value <= high:
        raise ConfigurationError(f"{SYNTHETIC_PREFIX}{name}={text}: expected a number from {low:g} to {high:g}")
    return value
