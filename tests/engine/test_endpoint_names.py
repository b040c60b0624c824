"""What is wrong with the name of an endpoint or of its model is said with what to do about it."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from viva.engine.backends.openai_listed import unlisted
from viva.engine.backends.registry import build
from viva.engine.backends.secrets import Redactor
from viva.engine.clock import RealClock
from viva.engine.errors import BackendError, ConfigurationError

if TYPE_CHECKING:
    from tests.servers.process import Plan, Server

    StartChaos = Callable[[Plan], Server]

_CLOCK = RealClock()


def checked(name: str) -> None:
    """Ask an endpoint whether it is there."""

    async def main() -> None:
        async with build(name, _CLOCK) as backend:
            await backend.check()

    _CLOCK.run(main)


def test_line_14_a_closed_port_says_what_to_do() -> None:
    with socket.socket() as taken:  # bound but not listening
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(BackendError, match="nothing listens there: start the server, or mend host and port"):
            checked(f"openai:http://127.0.0.1:{taken.getsockname()[1]}/v1#m")


def test_line_14_https_against_http_says_so(chaos: StartChaos) -> None:
    url = chaos({}).url.replace("http://", "https://")
    with pytest.raises(BackendError, match="write http:// instead of https://"):
        checked(f"openai:{url}#m")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("openai:127.0.0.1:8000/v1#m", "openai:http://127.0.0.1:8000/v1#m"),
        ("openai:localhost:8000/v1#m", "openai:http://localhost:8000/v1#m"),
        ("openai:localhost/v1#m", "openai:http://localhost/v1#m"),
        ("openai:api.example.com/v1", "openai:http://api.example.com/v1#name"),
        ("openai:http://h/v1?timeout=5#m", "the model stands before the options: openai:URL#name?option=value"),
        ("openai:http://h/v1#m?timeout=2m", "timeout=2m: expected a number of seconds, without a unit, from 0.001"),
        ("openai:http://h/v1#m?answer_mb=0", "answer_mb=0: expected a number from 0.001"),
    ],
)
def test_line_14_a_name_that_cannot_be_meant_says_what_to_write(
    monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-other")
    with pytest.raises(ConfigurationError) as caught:
        build(name, _CLOCK)
    assert said in str(caught.value)


@pytest.mark.parametrize("name", ["gpt-4o", "org/name", "ft:gpt-4o:me::1", "qwen2.5:7b", "meta/llama-3.1-8b/v2", "o1"])
def test_line_14_names_of_models_are_no_urls(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-other")
    assert build(f"openai:{name}", _CLOCK).label


@pytest.mark.parametrize(
    ("listed", "model", "said"),
    [
        ({"data": [{"id": "model-a"}, {"id": "model-b"}, {"id": "x"}]}, "modl-a", "it lists model-a, model-b, x"),
        ({"data": [{"id": f"m{n}"} for n in range(9)]}, "m10", "and 6 more"),
        ({"data": [{"id": "a\x1b[31m" + "b" * 200}]}, "c", "it lists a?[31m" + "b" * 74),
        ({"data": [{"id": "modl-a"}]}, "modl-a", ""),
        ({"models": [{"name": "llama3:latest"}]}, "llama3", ""),
        ([{"id": "a"}], "a", ""),
        ({"data": []}, "a", ""),
        ({"data": [{"id": 5}, None, "a"]}, "a", ""),
        ({"error": "no list"}, "a", ""),
        (5, "a", ""),
    ],
)
def test_line_8_a_model_that_is_not_listed_is_named_with_the_nearest(listed: Any, model: str, said: str) -> None:
    warning = unlisted(orjson.dumps(listed), model, Redactor(None))
    assert said in warning
    assert bool(warning) == bool(said)
    if said:
        assert f"the endpoint does not list the model '{model}'" in warning


def test_line_8_the_warning_comes_first_and_the_run_goes_on(chaos: StartChaos, tmp_path: Path) -> None:
    gone = {"do": "404", "say": "The model `modl-a` does not exist"}
    server = chaos({"models": ["model-a", "interactor", "evaluator"], "by_model": {"modl-a": {"default": gone}}})
    dataset = files("viva.scenarios.kieval") / "items" / "science.jsonl"
    arguments = ["run", "kieval", "--dataset", str(dataset), "-n", "2", "--rounds", "1", "--out", str(tmp_path / "r")]
    for role, model in (("candidate", "modl-a"), ("interactor", "interactor"), ("evaluator", "evaluator")):
        arguments += [f"--{role}", server.model(model)]
    done = subprocess.run([sys.executable, "-m", "viva", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    first = done.stderr.splitlines()[0]
    assert first.startswith("viva: warning: modl-a: the endpoint does not list the model 'modl-a'; it lists model-a,")
    assert done.stderr.count("viva: warning") == 1
    assert "2 × Rejected: modl-a: HTTP 404: The model `modl-a` does not exist" in done.stderr
