"""What is wrong with the name of an endpoint or of its model is said with what to do about it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from case_tables import case_table
from provider_asks import answers, asking, governed
from viva_process import ended, started

from viva.engine.backends.endpoint_backend import describe_unlisted_model, listed_context
from viva.engine.backends.redaction import Redactor
from viva.engine.backends.registry import build
from viva.engine.clock import RealClock
from viva.engine.errors import BackendError, ConfigurationError, Rejected
from viva.engine.messages import Message, fold_system_messages

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
        with pytest.raises(BackendError, match="nothing listens there: start the server, or fix the host and port"):
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
        ("openai:http://h/v1?timeout=5#m", "the model comes before the options: openai:URL#name?option=value"),
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


@case_table(
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
    warning = describe_unlisted_model(orjson.dumps(listed), model, Redactor(None))
    assert said in warning
    assert bool(warning) == bool(said)
    if said:
        assert f"the endpoint does not list the model '{model}'" in warning


_UNLISTED = "; the endpoint does not list the model 'modl-a'; it lists model-a, evaluator, interactor; a resumed run "


@case_table(
    ("answers", "code", "said"),
    [
        ({"default": {"do": "404", "say": "The model `modl-a` does not exist"}}, 2,
         "viva: error: modl-a: HTTP 404: The model `modl-a` does not exist" + _UNLISTED),
        ({"default": {"do": "400", "say": "modl-a is not a valid model ID"}}, 2,
         "viva: error: modl-a: HTTP 400: modl-a is not a valid model ID" + _UNLISTED),
        ({"default": "400"}, 3, "2 × Rejected: modl-a: HTTP 400: this request makes no sense\n"),
        ({"schedule": {"0": "ok"}, "default": "404"}, 3, "2 × Rejected: modl-a: HTTP 404: there is no such model\n"),
        ({"default": "ok"}, 0, "2/2"),
    ],
)  # fmt: skip
def test_an_unlisted_model_stops_the_run_only_if_the_endpoint_refuses_it(
    chaos: StartChaos, tmp_path: Path, answers: dict[str, Any], code: int, said: str
) -> None:
    server = chaos({"models": ["model-a", "interactor", "evaluator"], "by_model": {"modl-a": answers}})
    dataset = files("viva.scenarios.kieval") / "items" / "science.jsonl"
    arguments = ["run", "kieval", "--dataset", str(dataset), "-n", "2", "--rounds", "1", "--out", str(tmp_path / "r")]
    for role, model in (("candidate", "modl-a"), ("interactor", "interactor"), ("evaluator", "evaluator")):
        arguments += [f"--{role}", server.model(model)]
    ended_with, _, stderr = ended(started(*arguments, "--concurrency", "1"))
    assert ended_with == code, stderr
    first = stderr.splitlines()[0]
    assert first.startswith("viva: warning: modl-a: the endpoint does not list the model 'modl-a'; it lists model-a,")
    assert stderr.count("viva: warning") == 1
    assert said in stderr, stderr
    assert ("viva resume" in stderr) == (code == 3)


@case_table(
    ("name", "base"),
    [
        ("openai:http://h/v1/chat/completions#m", "http://h/v1"),
        ("openai:http://h/v1/chat/completions/#m?timeout=5", "http://h/v1"),
        ("openai:http://h/V1/Chat/Completions//#m", "http://h/V1"),
        ("openai:http://h/v1/completions#m", "http://h/v1"),
        ("openai:http://h/v1/models#m", "http://h/v1"),
        ("openai:http://h/chat/completions#m", "http://h"),
        ("openai:http://h/v1/#m", "http://h/v1"),
        ("openai:http://h/completions/v1#m", "http://h/completions/v1"),
        ("openai:http://h/models#m", "http://h/models"),
        ("anthropic:http://h/v1/messages/#m", "http://h"),
        ("anthropic:http://h/messages#m", "http://h"),
        ("anthropic:http://h/v1#m", "http://h"),
        ("gemini:http://h/v1beta/models/g:generateContent#g", "http://h/v1beta"),
        ("gemini:http://h/v1beta/models/#g", "http://h/v1beta"),
    ],
)
def test_line_22_the_url_of_a_single_call_is_understood(name: str, base: str) -> None:
    backend: Any = build(name, _CLOCK)
    while hasattr(backend, "inner"):
        backend = backend.inner
    assert backend.base_url == base


def test_line_22_the_environments_url_may_be_that_of_a_single_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://h/v1/chat/completions/")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789abcdef")
    backend: Any = build("openai:m", _CLOCK)
    while hasattr(backend, "inner"):
        backend = backend.inner
    assert backend.base_url == "http://h/v1"


def test_line_22_a_call_at_the_url_of_a_call_arrives(replanned: StartChaos) -> None:
    server = replanned({})
    checked(f"openai:{server.url}/chat/completions#candidate")
    [got] = answers(f"openai:{server.url}/chat/completions/#candidate", [asking()])
    assert got.text == server.log()[0]["text"]


_NO_SYSTEM = [
    "System role not supported",
    "Unsupported value: 'messages[0].role' does not support 'system' with this model.",
    "Conversation roles must alternate user/assistant/user/assistant/...",
    "messages.0.role: Input should be 'user' or 'assistant'",
    "Jinja Exception: System message must not be given",
    "This model does not accept system instructions",
    "Jinja Exception: Only user and assistant roles are supported!",
    "The first message must be from the user",
    "Conversations should start with a user message",
]


@pytest.mark.parametrize("status", ["400", "500"])
@pytest.mark.parametrize("said", _NO_SYSTEM)
def test_line_22_an_endpoint_without_a_system_role_is_asked_without_it(
    replanned: StartChaos, said: str, status: str, caplog: pytest.LogCaptureFixture
) -> None:
    refusal = {"do": status, "say": said}
    server = replanned({"record": True, "schedule": {"0": refusal}})
    asked = [asking(("system", "Be brief."), ("user", "Why?")), asking(("system", "Be brief."), ("user", "And wood?"))]
    answers(server.model("candidate"), asked, attempts=1)
    texts = [[(one["role"], one["content"]) for one in entry["body"]["messages"]] for entry in server.log()]
    assert texts[0] == [("system", "Be brief."), ("user", "Why?")]
    assert texts[1:] == [[("user", "Be brief.\n\nWhy?")], [("user", "Be brief.\n\nAnd wood?")]]
    assert [record.getMessage() for record in caplog.records if "no system messages" in record.getMessage()] == [
        "candidate: accepts no system messages; their text is put before the user's next message"
    ]


@pytest.mark.parametrize(
    ("say", "system"),
    [
        ("System role not supported", False),  # there is none to leave out
        ("the system is overloaded, not you", True),
        ("this request makes no sense", True),
    ],
)
def test_line_22_no_other_refusal_costs_a_system_message(replanned: StartChaos, say: str, system: bool) -> None:
    server = replanned({"default": {"do": "400", "say": say}})
    with pytest.raises(Rejected, match=say):
        answers(server.model("candidate"), [asking(*[("system", "Be brief.")] * system, ("user", "Why?"))])
    assert len(server.log()) == 1


def test_line_22_a_refusal_that_stays_without_the_system_message_is_raised_and_nothing_remembered(
    replanned: StartChaos,
) -> None:
    refusal = {"do": "400", "say": "roles must alternate, not like this"}
    server = replanned({"record": True, "schedule": {"0": refusal, "1": refusal}})
    asked = asking(("system", "Be brief."), ("user", "Why?"))

    async def main() -> None:
        async with governed(server.model("candidate")) as backend:
            with pytest.raises(Rejected, match="must alternate"):
                await backend.generate(asked)
            await backend.generate(asked)

    _CLOCK.run(main)
    assert [entry["body"]["messages"][0]["role"] for entry in server.log()] == ["system", "user", "system"]


def test_line_22_system_messages_become_the_users_words() -> None:
    def told(*roles: str) -> list[tuple[str, str]]:
        given = [Message(role, f"{role[0]}{place}") for place, role in enumerate(roles)]  # type: ignore[arg-type]
        return [(one.role, one.content) for one in fold_system_messages(given)]

    assert told("system", "user", "assistant") == [("user", "s0\n\nu1"), ("assistant", "a2")]
    assert told("system", "system", "user") == [("user", "s0\n\ns1\n\nu2")]
    assert told("user", "assistant", "system", "user") == [("user", "u0"), ("assistant", "a1"), ("user", "s2\n\nu3")]
    assert told("user", "system", "assistant") == [("user", "u0\n\ns1"), ("assistant", "a2")]
    assert told("system", "assistant", "user") == [("user", "s0"), ("assistant", "a1"), ("user", "u2")]
    assert told("system") == [("user", "s0")]
    assert told("user", "assistant") == [("user", "u0"), ("assistant", "a1")]


def test_line_22_models_of_gemini_without_instructions_are_told_them_by_the_user(replanned: StartChaos) -> None:
    say = "Developer instruction is not enabled for models/gemma-3-27b-it"
    server = replanned({"schedule": {"0": {"do": "400", "say": say}}})
    answers(server.gemini("gemma-3-27b-it"), [asking(("system", "Be brief."), ("user", "Why?"))], attempts=1)
    first, second = (entry["body"] for entry in server.log())
    assert first["systemInstruction"] == {"parts": [{"text": "Be brief."}]}
    assert "systemInstruction" not in second
    assert second["contents"] == [{"role": "user", "parts": [{"text": "Be brief.\n\nWhy?"}]}]


@pytest.mark.parametrize(
    ("listed", "context"),
    [
        ({"data": [{"id": "m", "max_model_len": 4096}, {"id": "other", "max_model_len": 8}]}, 4096),
        ({"data": [{"id": "m"}]}, None),
        ({"data": [{"id": "m", "max_model_len": "long"}]}, None),
        ({"data": [{"id": "m", "max_model_len": -1}]}, None),
        ({"data": "m"}, None),
        ([], None),
    ],
)
def test_a_context_that_an_endpoint_lists_is_known(listed: Any, context: int | None) -> None:
    assert listed_context(orjson.dumps(listed), "m") == context
    assert listed_context(b"no JSON", "m") is None
