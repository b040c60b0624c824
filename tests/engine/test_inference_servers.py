"""What vLLM and SGLang add to an OpenAI-compatible endpoint: texts read, answers under a schema, each by an option."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest
from case_tables import case_table
from provider_asks import CLOCK, VERDICT, answers, asking, governed

from viva.engine.backends.openai_likelihood import parse_generated, parse_prompt_logprobs
from viva.engine.backends.redaction import Redactor
from viva.engine.backends.registry import build
from viva.engine.errors import ConfigurationError, Rejected
from viva.engine.likelihood import Likelihood, Reading
from viva.engine.messages import Completion

if TYPE_CHECKING:
    from tests.servers.process import Plan, Server

    StartChaos = Callable[[Plan], Server]

_READING = Reading("Which is a metal?\nAnswer:", (" tin", " fog", " an old song"), "One more. A: B\n\n")
_NO_KEY = Redactor(None)


def _read(model: str, reading: Reading = _READING) -> Completion:
    async def main() -> Completion:
        async with governed(model) as backend:
            return await backend.read(reading)

    return CLOCK.run(main)


def _of_the_server(before: str, *tokens: str) -> Likelihood:
    """What the server says of these tokens behind ``before``: its rule stands in ``chaos_answers.echo``."""
    values = []
    for token in tokens:
        before += token
        values.append(-hashlib.blake2b(before.encode(), digest_size=1).digest()[0] * 12 / 255)
    return Likelihood(values, all(value > -6.0 for value in values))


@pytest.mark.parametrize(
    ("way", "ids", "path"),
    [("prompt_logprobs", True, ""), ("prompt_logprobs", False, ""), ("generate", True, "/generate")],
)
def test_texts_are_read_by_each_way(way: str, ids: bool, path: str, replanned: StartChaos) -> None:
    server = replanned({"default": {"do": "ok", "ids": ids}, "schedule": {"1": "503"}, "record": True})
    got = _read(server.model("m", reading=way))
    before = _READING.shared + _READING.context
    expected = [
        _of_the_server(before, " tin"),
        _of_the_server(before, " fog"),
        _of_the_server(before, " an", " old", " song"),
    ]
    assert got.likelihoods == expected
    assert {one.greedy for one in expected} == {True, False}, "both come up"
    words = sum(len((before + text).split()) for text in _READING.continuations)
    assert (got.prompt_tokens, got.completion_tokens, got.attempts) == (words, 3, 4)
    log = server.log()
    assert {entry.get("path", "") for entry in log} == {path}
    sent = log[0]["body"]
    assert ("echo" in sent, sent.get("prompt_logprobs"), sent.get("return_logprob")) == (
        False,
        1 if way == "prompt_logprobs" else None,
        True if way == "generate" else None,
    )


@pytest.mark.parametrize(("way", "asked"), [("prompt_logprobs", "prompt_logprobs"), ("generate", "return_logprob")])
def test_an_endpoint_that_does_not_know_the_way_is_refused_at_once(way: str, asked: str, replanned: StartChaos) -> None:
    server = replanned({"default": "no_echo"})
    with pytest.raises(Rejected, match=rf"does not give the log-probabilities of a prompt \({asked}\)"):
        _read(server.model("m", reading=way), Reading("Why?", (" tin",)))
    assert len(server.log()) == 1


def _places(*tokens: tuple[str, float], first: str | None = None, ids: bool = True) -> bytes:
    """vLLM's answer about a prompt of these tokens behind one without a figure, whose text is told only by its id."""
    listed: list[Any] = [None]
    for place, (token, value) in enumerate(tokens):
        listed.append({str(place + 10): {"logprob": value, "rank": 2, "decoded_token": token},
                       "9": {"logprob": -0.25, "rank": 1, "decoded_token": " else"}})  # fmt: skip
    choice: dict[str, Any] = {"text": " so", "prompt_logprobs": listed}
    if ids:
        choice["prompt_token_ids"] = [1, *range(10, 10 + len(tokens))]
    usage = {"prompt_tokens": len(listed), "completion_tokens": 1}
    return json.dumps({"choices": [choice], "usage": usage}).encode()


@case_table(
    ("data", "before", "continuation", "expected"),
    [
        (_places(("Is", -1.0), (" it", -2.0), (" A", -3.0)), "Is it", " A", [-3.0]),  # an opening token
        (_places((" it", -2.0), (" A", -3.0)), "Is it", " A", [-3.0]),  # none: the first token is the text's own
        (_places((" it", -2.0), (" A", -3.0)), "", "Is it A", [-2.0, -3.0]),
        (_places((" it", -2.0), (" A", -3.0), ids=False), "Is it", " A", [-3.0]),
        (_places((" i", -1.0), ("t A", -3.0)), "Is it", " A", [-3.0]),  # a token over the border counts
        (_places(("", -1.0), ("", -2.0), ("你", -3.0)), "Is", "你", [-1.0, -2.0, -3.0]),  # told where it is whole
    ],
)
def test_the_tokens_of_the_continuation_are_found(
    data: bytes, before: str, continuation: str, expected: list[float]
) -> None:
    [found] = parse_prompt_logprobs(data, before, continuation, "m", _NO_KEY).likelihoods or []
    assert found.logprobs == expected
    assert not found.greedy


@case_table(
    "data",
    [
        b'{"choices": [{"text": " so"}]}',
        b'{"choices": [{"prompt_logprobs": [null, {"7": {"logprob": -1, "decoded_token": " B"}}]}]}',
        b'{"choices": [{"prompt_logprobs": [null, {"7": {"logprob": null, "decoded_token": " A"}}]}]}',
        b'{"choices": [{"prompt_logprobs": [null, {"7": {"logprob": 1e400, "decoded_token": " A"}}]}]}',
        b'{"choices": [{"prompt_logprobs": [null, {"7": {"logprob": -1}}]}]}',
        b'{"choices": [{"prompt_logprobs": [null, {}], "prompt_token_ids": [1, 2, 3]}]}',
        b'{"choices": [{"prompt_logprobs": []}]}',
        b"<html>",
    ],
)
def test_what_tells_nothing_of_the_prompt_is_rejected_without_the_key(data: bytes) -> None:
    with pytest.raises(Rejected, match="log-probabilities of a prompt"):
        parse_prompt_logprobs(data, "Is it", " A", "m", _NO_KEY)
    generated = data.replace(b'"choices": [{"prompt_logprobs"', b'"meta_info": {"input_token_logprobs"')
    with pytest.raises(Rejected, match="log-probabilities of a prompt") as caught:
        parse_generated(generated + b" sk-123456789", "Is it", " A", "m", Redactor("sk-123456789"))
    assert "123456789" not in str(caught.value)


@pytest.mark.parametrize(("form", "field"), [("structured_outputs", {"json": VERDICT}), ("guided_json", VERDICT)])
def test_the_schema_is_sent_whole_in_vllms_own_field(form: str, field: dict[str, Any], replanned: StartChaos) -> None:
    server = replanned({"record": True})
    answers(server.model("evaluator", json=form), [asking(schema=VERDICT), asking()])
    first, second = (entry["body"] for entry in server.log())
    assert first[form] == field
    assert not {"response_format", form} & second.keys()
    assert "response_format" not in first


@pytest.mark.parametrize("form", ["structured_outputs", "guided_json"])
def test_a_refused_field_is_followed_by_the_usual_forms(form: str, replanned: StartChaos) -> None:
    server = replanned({"default": {"do": "no_schema", "refuses": [form, "json_schema"]}})
    answers(server.model("evaluator", json=form), [asking(schema=VERDICT), asking(("user", "Well?"), schema=VERDICT)])
    assert [entry["format"] for entry in server.log()] == [form, "json_schema", *["json_object+schema"] * 2]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("option", ["on", "off"])
def test_the_tokens_of_an_answer_come_with_it(option: str, streaming: bool, replanned: StartChaos) -> None:
    server = replanned({"default": {"do": "ok", "say": "Steel takes heat from the hand"}})
    [got] = answers(server.model("m", token_ids=option), [asking(on_text=(lambda _: None) if streaming else None)])
    expected = [(True, [crc32(word.encode()) % 100_000 for word in got.text.split()])]
    assert got.pieces == (expected if option == "on" else None)


def test_other_ways_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="reading=all: expected one of echo, prompt_logprobs, generate"):
        build("openai:http://127.0.0.1:9/v1#m?reading=all", CLOCK)
