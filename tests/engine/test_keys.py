"""No form of a key reaches a record, an error or a screen, whatever an endpoint does with it."""

from __future__ import annotations

import html
import json
import re
import traceback
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest
from command import viva
from provider_asks import asking

from viva.engine.backends.registry import build
from viva.engine.clock import RealClock
from viva.engine.errors import BackendError, ConfigurationError
from viva.engine.messages import Completion

if TYPE_CHECKING:
    from tests.servers.process import Plan, Server

    StartChaos = Callable[[Plan], Server]

_CLOCK = RealClock()
_KEY = "sk-'q\"/7+&<chaos>-0123456789abcdef"
_FORMS = ["{key}", "{key:json}", "{key:unicode}", "{key:percent}", "{key:login}", "{key:repr}", "{key:html}"]


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAOS_KEY", _KEY)


def ask(server: Server, on_text: Any = None) -> Completion:
    """The answer of a server that is sent the key."""

    async def main() -> Completion:
        async with build(server.model("candidate", retries=0, key_env="CHAOS_KEY"), _CLOCK) as backend:
            return await backend.generate(asking(on_text=on_text))

    return _CLOCK.run(main)


def holds_key(text: str) -> bool:
    """Whether somebody who wants the key could read it from a text, or most of it."""
    parts = {text, unquote(text), html.unescape(text)}
    parts |= {re.sub(r"\\u([0-9a-f]{4})", lambda found: chr(int(found[1], 16)), part) for part in parts}
    parts |= {part.replace("\\", "") for part in parts}
    return any("0123456789abcdef" in part for part in parts) or "MTIzNDU2Nzg5YWJj" in text or "xMjM0NTY3ODlhYm" in text


def test_line_18_no_key_in_the_error_of_a_refusal(chaos: StartChaos) -> None:
    cycle = []
    for form in _FORMS:
        inside = form if form in ("{key:json}", "{key:unicode}") else "{key:json}"
        for status in (400, 401, 403, 404, 429, 500):
            body = f'{{"error": {{"message": "bad key {inside}", "code": "{inside}"}}}}'
            cycle += [{"do": "raw", "status": status, "say": body}]
            cycle += [{"do": "raw", "status": status, "say": f"<html>bad key {form}</html>"}]
    server = chaos({"cycle": cycle})
    for _ in cycle:
        with pytest.raises(BackendError, match="bad key") as caught:
            ask(server)
        shown = "".join(traceback.format_exception(caught.value)) + json.dumps(caught.value.to_record())
        assert not holds_key(shown)
    assert {entry["key"] for entry in server.log()} == {_KEY}


def test_line_18_no_key_in_an_answer_that_echoes_it(chaos: StartChaos) -> None:
    cycle = []
    for form in _FORMS:
        call = {"id": form, "function": {"name": form, "arguments": json.dumps({"key": form})}}
        logprobs = {"content": [{"token": form[:9], "logprob": -1, "top_logprobs": [{"token": form, "logprob": -2}]}]}
        message = {"content": f"You sent {form}.", "reasoning": f"They sent {form}", "tool_calls": [call]}
        choice = {"message": message, "finish_reason": form, "logprobs": logprobs}
        body = json.dumps({"choices": [choice], "usage": {"prompt_tokens": form}})
        # Raw inside JSON would end its strings.
        cycle += [{"do": "raw", "say": body.replace("{key}", "{key:json}").replace("{key:repr}", "{key:json}")}]
    server = chaos({"cycle": cycle})
    for _ in cycle:
        completion = ask(server)
        assert "***" in completion.text
        assert not holds_key(repr(completion))


def test_line_18_no_key_in_a_stream_that_echoes_it(chaos: StartChaos) -> None:
    server = chaos(
        {
            "default": {
                "do": "raw",
                "pieces": 7,
                "say": "".join(
                    f"data: {json.dumps({'choices': [{'delta': {'content': piece}}]})}\n\n"
                    for piece in ("You sent ", _KEY[:5], _KEY[5:20], _KEY[20:], " to me.")
                )
                + "data: [DONE]\n\n",
            }
        }
    )
    pieces: list[str] = []
    assert ask(server, pieces.append).text == "You sent *** to me."
    assert "".join(pieces) == "You sent *** to me."


def test_line_18_no_key_in_what_breaks_a_stream(chaos: StartChaos) -> None:
    bodies = [f"data: bad key {form}\n\n" for form in _FORMS]
    bodies += [f'data: {{"error": "bad key {form}"}}\n\n' for form in ("{key:json}", "{key:unicode}")]
    server = chaos({"cycle": [{"do": "raw", "say": body} for body in bodies]})
    for _ in bodies:
        with pytest.raises(BackendError, match="bad key") as caught:
            ask(server, lambda piece: None)
        assert not holds_key("".join(traceback.format_exception(caught.value)))


_LONG = "sk-proj-" + "0123456789abcdef" * 5  # longer than most of what is quoted


def test_line_18_no_part_of_a_key_is_left_where_a_quote_is_cut(
    chaos: StartChaos, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHAOS_KEY", _LONG)
    choice = '{{"message": {{"content": "Yes."}}, "finish_reason": "{0}"}}'
    answer = f'{{{{"choices": [{choice}], "usage": {{{{"prompt_tokens": "{{0}}"}}}}}}}}'
    place = "https://elsewhere.test/" + "a" * 250
    server = chaos(
        {
            "cycle": [
                {"do": "raw", "say": answer.format("{key}")},
                {"do": "raw", "say": answer.format("a:{key}")},
                {"do": "raw", "status": 307, "headers": {"Location": place + _LONG}},
                {"do": "raw", "say": "no completion: {key:unicode}" + " " * 1_100_000},
            ]
        }
    )
    for _ in range(2):
        assert not holds_key(repr(ask(server)))
    for _ in range(2):
        with pytest.raises(BackendError) as caught:
            ask(server)
        assert not holds_key(str(caught.value))


@pytest.mark.parametrize("url", ["http://a.test/v1?api-key=sk-hidden", "http://a.test/v1#sk-hidden", "//a/v1"])
def test_line_18_no_key_in_the_variable_of_a_url(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-other")
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    with pytest.raises(ConfigurationError, match="OPENAI_BASE_URL") as caught:
        build("openai:gpt-4o", _CLOCK)
    assert "sk-hidden" not in str(caught.value)


@pytest.mark.parametrize("bad", ["sk-clé-0123456789", "sk-“0123456789”", "sk-\\0123456789"])
def test_line_18_a_key_that_cannot_be_sent_is_refused(monkeypatch: pytest.MonkeyPatch, bad: str) -> None:
    monkeypatch.setenv("CHAOS_KEY", bad)
    with pytest.raises(ConfigurationError, match="CHAOS_KEY is not plain text") as caught:
        build("openai:http://127.0.0.1:9/v1#m?key_env=CHAOS_KEY", _CLOCK)
    assert "0123456789" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "openai:http://127.0.0.1:9/v1#m?api_key=sk-hidden",
        "openai:http://127.0.0.1:9/v1#m?timeout=2m&api-key=sk-hidden",
        "openai:http://127.0.0.1:9/v1?token=sk-hidden#m",
        "openai:gpt-4o?json=x&password=sk-hidden",
        "nonsense:x?api_key=sk-hidden",
        "nonsense?api_key=sk-hidden",
        "simulated:x?rpm=many&api_key=sk-hidden",
        "llama:/no/such/file.gguf?api_key=sk-hidden",
    ],
)
def test_line_18_a_key_given_as_an_option_is_not_repeated(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-other")
    with pytest.raises(ConfigurationError) as caught:
        build(name, _CLOCK)
    assert "sk-hidden" not in str(caught.value)


def test_line_18_no_key_in_a_run_folder_or_on_the_screen(chaos: StartChaos, tmp_path: Path) -> None:
    echo = '{"choices": [{"message": {"content": "You sent {key:json}"}, "finish_reason": "stop"}]}'
    question = echo.replace("You sent", "Who sent")
    error = {"do": "raw", "status": 400, "say": '{"error": {"message": "bad key {key:unicode}"}}'}
    server = chaos(
        {
            "default": {"do": "raw", "say": echo},
            "by_model": {"evaluator": {"default": error}, "interactor": {"default": {"do": "raw", "say": question}}},
        }
    )
    run = tmp_path / "run"
    dataset = files("viva.scenarios.kieval") / "items" / "science.jsonl"
    arguments = ["run", "kieval", "--dataset", str(dataset), "-n", "2", "--rounds", "1", "--out", str(run)]
    for role in ("candidate", "interactor", "evaluator"):
        arguments += [f"--{role}", server.model(role, key_env="CHAOS_KEY")]
    done = viva(*arguments)
    assert done.returncode == 3, done.stderr
    written = b"".join(path.read_bytes() for path in run.rglob("*") if path.is_file())
    assert b"bad key ***" in written
    assert b"You sent ***" in written
    assert not holds_key(done.stdout + done.stderr + written.decode("latin-1"))
