"""Readings: how likely given texts are. Through limits and retries, and over HTTP."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from case_tables import case_table
from packaged import packaged_server
from small_runs import small_run
from tiny_gguf import make_model

from viva.engine.backends import openai
from viva.engine.backends.base import ModelSpec
from viva.engine.backends.openai_likelihood import parse_echo
from viva.engine.backends.redaction import Redactor
from viva.engine.backends.registry import build
from viva.engine.backends.retry import RetryingBackend, RetryPolicy
from viva.engine.clock import RealClock
from viva.engine.errors import ConfigurationError, ContextTooLong, Rejected, Unavailable
from viva.engine.likelihood import Reading
from viva.engine.limits import Limits
from viva.engine.messages import Completion

if TYPE_CHECKING:
    from tests.servers.process import Plan, Server

    StartChaos = Callable[[Plan], Server]

_CLOCK = RealClock()
FOUR = Reading("Which is a metal?\nAnswer:", (" tin", " fog", " a song", " an old song"), "One more. A: B\n\n")


def read(
    model: str, reading: Reading, *, concurrency: int | None = None, attempts: int = 8
) -> tuple[Completion, dict[str, Any]]:
    """A reading through limits and retries, and the wrapper's counters."""

    async def main() -> tuple[Completion, dict[str, Any]]:
        inner = openai.build(ModelSpec.parse(model), _CLOCK)
        inner.label = "echo"
        limits = Limits(_CLOCK, concurrency=concurrency)
        async with RetryingBackend(inner, limits, _CLOCK, RetryPolicy(attempts=attempts, first=0.001)) as backend:
            return await backend.read(reading), backend.statistics()

    return _CLOCK.run(main)


def values(completion: Completion) -> list[list[float]]:
    return [likelihood.logprobs for likelihood in completion.likelihoods or []]


def of_the_server(before: str, *tokens: str) -> list[float]:
    """What the chaos server says of these tokens behind ``before``; its rule stands in its ``echo``."""
    told = []
    for token in tokens:
        before += token
        told.append(-hashlib.blake2b(before.encode(), digest_size=1).digest()[0] * 12 / 255)
    return told


# -- through limits and retries ---------------------------------------------------------------------------------------


def test_each_continuation_is_a_request_of_its_own_and_answers_keep_their_places(chaos: StartChaos) -> None:
    server = chaos({})
    completion, counted = read(server.model("m"), FOUR, concurrency=2)
    before = FOUR.shared + FOUR.context
    assert {entry["prompt"] for entry in server.log()} == {before + text for text in FOUR.continuations}
    assert values(completion) == [
        of_the_server(before, " tin"),
        of_the_server(before, " fog"),
        of_the_server(before, " a", " song"),
        of_the_server(before, " an", " old", " song"),
    ]
    assert (counted["granted"], counted["most_in_flight"], counted["retries"]) == (4, 2, 0)
    prompts = [len((before + text).split()) for text in FOUR.continuations]
    assert (completion.prompt_tokens, completion.completion_tokens, completion.attempts) == (sum(prompts), 4, 4)


def test_what_fails_in_passing_is_asked_again_on_a_permit_of_its_own(chaos: StartChaos) -> None:
    plan = {"schedule": {"0": "503", "3": "429", "5": "reset"}}
    completion, counted = read(chaos(plan).model("m"), FOUR)
    assert values(completion) == values(read(chaos({}).model("m"), FOUR)[0])
    # The reset one had gone out on a kept connection, and goes out once more at once: no failure of the endpoint's.
    assert (counted["granted"], counted["retries"], completion.attempts) == (6, 2, 6)


@pytest.mark.parametrize(
    ("plan", "error"),
    [
        ({"schedule": {"1": "400"}}, Rejected),
        ({"schedule": {"1": "context_too_long"}}, ContextTooLong),
        ({"default": "503"}, Unavailable),
    ],
    ids=["refused", "too long", "down"],
)
def test_one_continuation_that_cannot_be_read_fails_the_reading_with_its_own_error(
    chaos: StartChaos, plan: Plan, error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"^echo: ") as raised:
        read(chaos(plan).model("m"), FOUR, attempts=2)
    assert type(raised.value) is error


def test_tokens_a_minute_count_what_is_read(chaos: StartChaos) -> None:
    async def main() -> dict[str, Any]:
        async with build(chaos({}).model("m", tpm=100_000), _CLOCK) as backend:
            completion = await backend.read(FOUR)
            assert backend.statistics()["tokens_in_window"] == completion.prompt_tokens + completion.completion_tokens
            return backend.statistics()

    assert _CLOCK.run(main)["granted"] == 4


def test_an_endpoint_that_cannot_echo_is_refused_at_once_and_says_so(chaos: StartChaos) -> None:
    server = chaos({"default": "no_echo"})
    with pytest.raises(Rejected, match=r"does not give the log-probabilities of a prompt \(echo with logprobs\)"):
        read(server.model("m"), Reading("Why?", (" tin",)))
    assert len(server.log()) == 1


def test_a_model_that_only_speaks_says_so(tmp_path: Path) -> None:
    small_run(tmp_path / "run", count=1)
    (tmp_path / "run" / "manifest.json").write_text('{"manifest": 1}')

    async def main() -> None:
        async with build(f"replay:{tmp_path / 'run'}?label=old", _CLOCK) as backend:
            await backend.read(FOUR)

    with pytest.raises(ConfigurationError, match="old: this kind of model gives no log-probabilities"):
        _CLOCK.run(main)


# -- what endpoints echo ----------------------------------------------------------------------------------------------


def echoed(tokens: list[str], offsets: list[int], *, generated: int | None = 1, nulls: tuple[int, ...] = (0,)) -> bytes:
    """An endpoint's answer; the token at place n has the log-probability -n."""
    told: dict[str, Any] = {"tokens": tokens, "text_offset": offsets}
    told["token_logprobs"] = [None if n in nulls else -float(n) for n in range(len(tokens))]
    usage = {} if generated is None else {"usage": {"prompt_tokens": 50, "completion_tokens": generated}}
    return orjson.dumps({"choices": [{"text": "", "logprobs": told}], **usage})


@case_table(
    ("tokens", "offsets", "generated", "before", "continuation", "counted"),
    [
        (["Is", " it", " A", " B"], [0, 2, 5, 7], 1, "Is it", " A", [2]),
        (["Is", " it", " A", " B"], [0, 2, 5, 7], None, "Is it", " A", [2]),
        # The end of a text was generated: it has no token.
        (["Is", " it", " A"], [0, 2, 5], 0, "Is it", " A", [2]),
        # A token that reaches into the continuation counts.
        (["Is", " it:", " A B", "."], [0, 2, 6, 10], 1, "Is it: A", " B", [2]),
        (["Is", " it", " a", " tin", " can", "."], [0, 2, 5, 7, 11, 15], 1, "Is it", " a tin can", [2, 3, 4]),
        # The opening token stands in the list, and its text counts in the offsets.
        (["<s>", "Is", " it", " A", " B"], [0, 3, 5, 8, 10], 1, "Is it", " A", [3]),
        (["<s>", "Is", " it", " B"], [0, 3, 5, 8], 1, "", "Is it", [1, 2]),
        # Without an opening token nothing is known of the first.
        (["Is", " it", " B"], [0, 2, 5], 1, "", "Is it", [1]),
        # Blanks that tokens begin with are dropped; a blank that is a token of its own is empty then.
        (["<s>", "Is", "it", "A", "B"], [0, 3, 5, 7, 8], 1, "Is it", " A", [3]),
        (["<s>", "Is", "it", "", "A", "B"], [0, 3, 5, 7, 7, 8], 1, "Is it", " A", [3, 4]),
        (["Is", "it", "", "A", "B"], [0, 2, 4, 4, 5], 1, "Is it ", "A", [3]),
        # A character of three tokens: none of them spells it, but offsets that count characters tell where they are.
        (["问", "：", "", "", "", "好", "。"], [0, 1, 2, 2, 2, 3, 4], 1, "问：", "你好", [2, 3, 4, 5]),
        (["", "", "", "好", "。"], [0, 0, 0, 1, 2], 1, "", "你好", [1, 2, 3]),
        # Before the end, what is not spelled does not matter.
        (["<s>", "�", "�", "：", " A", "B"], [0, 3, 4, 5, 6, 8], 1, "你：", " A", [4]),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_the_tokens_of_the_continuation_are_found(
    tokens: list[str], offsets: list[int], generated: int | None, before: str, continuation: str, counted: list[int]
) -> None:
    completion = parse_echo(echoed(tokens, offsets, generated=generated), before, continuation, "m")
    assert values(completion) == [[-float(n) for n in counted]]
    assert completion.completion_tokens == (1 if generated is None else generated)


@case_table(
    ("data", "before", "continuation"),
    [
        (b"<html>It works!</html>", "Is it", " A"),
        (b'{"choices": []}', "Is it", " A"),
        (b'{"choices": [{"text": " B", "logprobs": null}]}', "Is it", " A"),
        # Only what was generated has log-probabilities.
        (echoed([" B"], [0], nulls=()), "Is it", " A"),
        # Shifted by one against the tokens, as llama-cpp-python does where no opening token is: the last is missing.
        (echoed(["Is", " it", " A"], [0, 2, 5]), "Is it", " A"),
        (echoed(["Is", " it", " B"], [0, 2, 5]), "Is it", " A"),
        # Parts of a character, each counted as one.
        (echoed(["<s>", "A", "�", "�", "B"], [0, 3, 4, 5, 6]), "A", "你"),
        # A text of one token, of which nothing is known.
        (echoed(["Is", " it"], [0, 2]), "", "Is"),
        (echoed(["Is", " it", " A", " B"], [0, 2, 5, 7], nulls=(0, 2)), "Is it", " A"),
    ],
    ids=["page", "no choice", "none", "generated only", "shifted", "other text", "parts", "one token", "a null"],
)
def test_what_is_no_echo_of_the_prompt_is_rejected(data: bytes, before: str, continuation: str) -> None:
    with pytest.raises(Rejected, match=r"m: the endpoint does not give the log-probabilities of a prompt"):
        parse_echo(data, before, continuation, "m")


@case_table("value", ["NaN", '"nan"', "Infinity", "1e999", "-1e308"])
def test_line_21_a_log_probability_that_is_none_is_rejected(value: str) -> None:
    data = echoed(["Is", " it", " A", " B"], [0, 2, 5, 7]).replace(b"-2.0", value.encode())
    with pytest.raises(Rejected, match="a log-probability of"):
        parse_echo(data, "Is it", " A", "m")


def test_a_key_that_an_endpoint_repeats_is_not_shown() -> None:
    with pytest.raises(Rejected) as raised:
        parse_echo(b'{"error": "your key sk-123456789 may not"}', "Is it", " A", "m", redact=Redactor("sk-123456789"))
    assert "sk-123456789" not in str(raised.value)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "tiny.gguf", seed=3, context=512)


@pytest.fixture(scope="module")
def url(model: Path) -> Iterator[str]:
    options = ["--n_ctx", "512", "--n_threads", "1", "--flash_attn", "false"]
    with packaged_server(model, model.parent, *options) as address:
        yield address


@pytest.mark.parametrize(
    "reading",
    [
        Reading("what is this", (" A", " B", " one answer", " the other answer")),
        Reading("what is this", (" people", " 你好 people"), "how many people know.\n\n"),
        Reading("地球：", (" A", " 月亮", " 太阳 is the answer")),
    ],
    ids=["letters and words", "shared", "Chinese"],
)
def test_an_endpoint_reads_as_the_same_file_in_this_process_does(url: str, model: Path, reading: Reading) -> None:
    async def here() -> Completion:
        async with build(f"llama:{model}?ctx=512&lanes=1&threads=1&flash_attn=off", _CLOCK) as backend:
            return await backend.read(reading)

    there, counted = read(f"openai:{url}#tiny", reading, concurrency=1)
    for mine, others in zip(values(_CLOCK.run(here)), values(there), strict=True):
        assert others == pytest.approx(mine, abs=1e-4)
    assert counted["granted"] == len(reading.continuations)


def test_an_endpoint_reads_a_whole_text_but_for_its_first_token(url: str, model: Path) -> None:
    reading = Reading("", ("how many people know the question 你好",), moments=True)

    async def here() -> Completion:
        async with build(f"llama:{model}?ctx=512&lanes=1&threads=1&flash_attn=off", _CLOCK) as backend:
            return await backend.read(reading)

    [mine], [others] = _CLOCK.run(here).likelihoods or [], read(f"openai:{url}#tiny", reading)[0].likelihoods or []
    assert others.logprobs == pytest.approx(mine.logprobs[1:], abs=1e-4)
    assert others.means is others.deviations is None
    assert mine.means is not None
