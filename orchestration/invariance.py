"""Test of batch invariance: do a model's answers depend on concurrent requests?

The requests of `prompts/invariance.yaml` are asked one at a time, then one at a time again, then all together. Answers
are compared byte for byte: texts, and tokens and log-probabilities if the model gives them. Each call is a conversation
of its own, so that no KV of an earlier answer takes the place of computing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from viva.engine import seeds
from viva.engine.backends.base import EventSink, ModelSpec
from viva.engine.backends.registry import BackendPool, file_records, machine_record
from viva.engine.cancellation import gather
from viva.engine.clock import Clock
from viva.engine.errors import BackendError, ConfigurationError, Rejected, VivaError, user_frame
from viva.engine.messages import Completion, Request, Sampling, View, request_digest
from viva.engine.run_folder import installed_versions

from .manifest import InvarianceRecord
from .result_cache import WEEK, ResultCache, result_key

_MAX_TOKENS = 64
_SIGNIFICANT = 0.05
_CACHE = "invariance"


@cache
def prompts() -> list[str]:
    """Return the test's requests."""
    texts = Path(__file__).with_name("prompts").joinpath("invariance.yaml").read_text(encoding="utf-8")
    requests: list[str] = yaml.safe_load(texts)
    return requests


def count_calls() -> int:
    """Return the number of calls that a test makes."""
    return 3 * len(prompts())


def token_limit(model: str) -> str:
    """Return the maximum length of an answer in tokens, which a model's name may set."""
    return ModelSpec.parse(model).options.get("max_tokens", str(_MAX_TOKENS))


@dataclass(frozen=True, slots=True)
class InvarianceTest:
    """Result of a test.

    `first` and `second` (alone) and `among` (others) have one answer per request. `at_once` is how many requests the
    model really had at once; `repeated` is how many of the concurrent ones were refused first and repeated later.
    """

    first: list[Completion]
    second: list[Completion]
    among: list[Completion]
    at_once: int
    repeated: int
    date: str

    @property
    def differ_alone(self) -> int:
        """Number of requests whose second answer alone differs from the first."""
        return sum(_differences(self.first, self.second))

    @property
    def differ_among(self) -> int:
        """Number of requests whose answer among others differs from the first."""
        return sum(_differences(self.first, self.among))

    @property
    def compared(self) -> str:
        """The compared parts of answers, in words."""
        return "texts and log-probabilities" if any(answer.logprobs for answer in self.first) else "texts"

    @property
    def p_value(self) -> float:
        """One-sided p of McNemar's exact test: do more answers differ among others than alone?"""
        pairs = list(zip(_differences(self.first, self.second), _differences(self.first, self.among), strict=True))
        among, either = pairs.count((False, True)), pairs.count((False, True)) + pairs.count((True, False))
        return float(sum(math.comb(either, count) for count in range(among, either + 1)) / 2**either)

    @property
    def flaw(self) -> str:
        """Why the answers say nothing about concurrent requests; "" if they do."""
        if self.at_once < 2:
            return "It took one request at a time, so concurrent requests were not tested."
        answers = [*self.first, *self.second, *self.among]
        if not any(answer.text.strip() or answer.thoughts.strip() for answer in answers):
            return "All its answers are empty, which says nothing about concurrent requests."
        if len(set(map(_answer_bytes, answers))) == 1:
            return f"All {len(self.first)} requests got the same answer, which says nothing about concurrent requests."
        return ""

    def record(self) -> dict[str, Any]:
        """Return the record for manifests."""
        count = len(self.first)
        among = [self.differ_among, count]
        return {"alone": [self.differ_alone, count], "among": among, "at_once": self.at_once, "date": self.date}

    def sentences(self) -> str:
        """Return figures and conclusion, as far as the answers allow one."""
        count, alone, among = len(self.first), self.differ_alone, self.differ_among
        texts = [
            f"Asked twice alone, {alone} of {count} requests got different answers; among {self.at_once} concurrent "
            f"requests, {among} of {count} answers differ from the first one alone ({self.compared} compared)."
        ]
        if self.repeated:
            texts.append(f"{self.repeated} of the concurrent requests were refused first and repeated later.")
        return " ".join([*texts, self.flaw or self._conclusion(count, alone, among)])

    def _conclusion(self, count: int, alone: int, among: int) -> str:
        p = f"p = {self.p_value:.2g}"
        if not alone and not among:
            bound = math.ceil(100 * (1 - _SIGNIFICANT ** (1 / count)))
            return (
                f"All {count} answers are byte for byte those of the request alone: with 95% confidence, fewer than "
                f"{bound}% of such answers depend on concurrent requests."
            )
        if self.p_value < _SIGNIFICANT:
            also = "The model is not deterministic even alone, and its answers also" if alone else "Answers"
            return f"{also} depend on concurrent requests ({p})."
        if alone:
            return (
                "The model is not deterministic even alone, so the second figure says nothing about concurrent "
                f"requests ({p})."
            )
        return (
            "Concurrent requests may have changed them, but so few may also come from a model that is not quite "
            f"deterministic alone ({p})."
        )


def _differences(first: list[Completion], second: list[Completion]) -> list[bool]:
    return [_answer_bytes(answer) != _answer_bytes(repeat) for answer, repeat in zip(first, second, strict=True)]


def _answer_bytes(answer: Completion) -> bytes:
    # Unlike orjson, json accepts lone surrogates.
    return json.dumps([answer.text, answer.thoughts, answer.finish, answer.pieces, answer.logprobs]).encode()


async def measure_invariance(
    model: str, clock: Clock, on_answer: Callable[[], None] = lambda: None, publish: EventSink | None = None
) -> InvarianceTest:
    """Test a model; if its answers say something about concurrent requests, keep the result for manifests.

    `on_answer` is called after each answer, `publish` with events about retries.

    Raises:
        ConfigurationError: The model is invalid.
        BackendError: A call failed.
    """
    name = _name_for_all(model)
    numbers = range(len(prompts()))
    async with BackendPool(clock, publish) as pool:
        backend = await pool.open(name)
        await pool.check([name])

        async def ask(kind: str, number: int, logprobs: int | None) -> Completion:
            request = _request(kind, number, logprobs)
            try:
                answer = await backend.generate(request)
            except Exception as error:
                if isinstance(error, VivaError):
                    raise
                problem = f"raised {type(error).__name__}: {error} ({user_frame(error)})"
                raise BackendError(problem, model=backend.label) from error
            finally:
                backend.ended(request.affinity)
            on_answer()
            return answer

        logprobs: int | None = 1
        try:
            first = [await ask("first", 0, logprobs)]
        except (ConfigurationError, Rejected):  # many kinds of models and endpoints give no log-probabilities
            logprobs = None
            first = [await ask("first", 0, logprobs)]
        first += [await ask("first", number, logprobs) for number in numbers[1:]]
        second = [await ask("second", number, logprobs) for number in numbers]
        among = await gather([partial(ask, "among", number, logprobs) for number in numbers], abandon=True)
        peak = int(backend.statistics()["most_in_flight"])
    repeated = sum(answer.attempts > 1 for answer in among)
    date = f"{datetime.fromtimestamp(clock.wall(), UTC):%Y-%m-%d}"
    test = InvarianceTest(first, second, among, max(1, peak - repeated), repeated, date)
    if not test.flaw:
        ResultCache(_CACHE).store(_key(model)[0], {"model": model, **test.record()})
    return test


def _name_for_all(model: str) -> str:
    """Return the model's name with room for all requests at once, unless its options limit them."""
    options = ModelSpec.parse(model).options
    if "concurrency" in options:
        return model
    return f"{model.removesuffix('?')}{'&' if options else '?'}concurrency={len(prompts())}"


def _request(kind: str, number: int, logprobs: int | None) -> Request:
    view, sampling = View(), Sampling(max_tokens=_MAX_TOKENS, logprobs=logprobs)
    view.append("user", prompts()[number])
    seed = seeds.derive(_CACHE, number)
    conversation = f"{_CACHE}/{kind}/{number}"
    return Request(view.messages, sampling, seed, request_digest(view, sampling, seed), conversation, _CACHE,
                   affinity=conversation)  # fmt: skip


def known_invariance(model: str) -> dict[str, Any] | None:
    """Return what a test of a model has shown, for a manifest; None if nothing is known, or no longer."""
    results = ResultCache(_CACHE)
    if results.is_empty:
        return None
    key, lasting = _key(model)
    record = results.load(key, math.inf if lasting else WEEK)
    try:
        return InvarianceRecord.model_validate(record).model_dump()
    except ValidationError:
        return None


def _key(model: str) -> tuple[str, bool]:
    """Return the key of a model's result, and True if nothing but what it names can change the result."""
    machine = machine_record(model)
    key = result_key(model, file_records(model), machine, installed_versions()["viva"], prompts(), _MAX_TOKENS)
    return key, machine is not None
