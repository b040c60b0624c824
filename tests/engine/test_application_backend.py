"""An HTTP application as a model: asked by its mapping, over real connections to a real server."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from case_tables import case_table

from viva.engine.backends.base import Backend
from viva.engine.backends.http_application_mapping import Application, inline_name, parse_mapping
from viva.engine.backends.registry import build, file_records, with_absolute_path
from viva.engine.backends.retry import RetryPolicy
from viva.engine.clock import RealClock
from viva.engine.errors import (
    AnswerTooLarge,
    BackendError,
    ConfigurationError,
    Forbidden,
    Redirected,
    Rejected,
    Throttled,
    TimedOut,
    Unauthorized,
    Unavailable,
)
from viva.engine.messages import Completion, Request, Sampling, View, request_digest
from viva.engine.yaml_file import parse_yaml

_CLOCK = RealClock()
_KEY = "sk-app-0123456789abcdef"
_SERVER = Path(__file__).parents[1] / "servers" / "application.py"


@pytest.fixture(scope="module")
def place() -> Iterator[str]:
    """The address of a running application."""
    with importlib.import_module("process").serving_port([sys.executable, str(_SERVER)]) as port:
        yield f"http://127.0.0.1:{port}"


def log(place: str) -> list[dict[str, Any]]:
    """The requests that came so far."""
    with urlopen(f"{place}/log") as answer:
        entries: list[dict[str, Any]] = json.load(answer)
    return entries


def chat(place: str, path: str = "/chat", **fields: Any) -> dict[str, Any]:
    """A mapping for an address of the application."""
    mapping = {"url": place + path, "body": {"text": "{message}"}, "answer": "reply.text"} | fields
    return {name: value for name, value in mapping.items() if value is not None}


def request(*texts: str, conversation: str = "app/one", ordinal: int = 0, on_text: Any = None) -> Request:
    """A request whose messages are the user's and the assistant's in turn, the first from the system where it begins
    with ``system:``.
    """
    view, sampling = View(), Sampling()
    said = list(texts)
    if said[0].startswith("system:"):
        view.append("system", said.pop(0).removeprefix("system:"))
    for index, text in enumerate(said):
        view.append("assistant" if index % 2 else "user", text)
    digest = request_digest(view, sampling, 7)
    return Request(
        view.messages, sampling, 7, digest, conversation, "app", ordinal, None, on_text, affinity=conversation
    )


def answers(model: str, *requests: Request, end: bool = True) -> list[Completion]:
    """The completions of these requests, asked one after another; then their conversations end."""

    async def main() -> list[Completion]:
        async with build(f"{model}", _CLOCK) as backend:
            completions = [await backend.generate(one) for one in requests]
            for affinity in dict.fromkeys(one.affinity for one in requests):
                (backend.ended if end else backend.interrupted)(affinity)
            return completions

    return _CLOCK.run(main)


def ask(mapping: dict[str, Any], text: str = "hello", on_text: Any = None, options: str = "?retries=0") -> Completion:
    """The completion of one request."""
    return answers(inline_name(mapping) + options, request(text, on_text=on_text))[0]


def test_an_application_answers_by_its_mapping(place: str) -> None:
    body = {"text": "{message}", "all": "{messages}", "who": "{system} {other} {}", "n": ["{seed}", 1, "seed {seed}"]}
    model = inline_name(chat(place, body=body, tokens="usage"))
    [completion] = answers(model, request("system:Be brief.", "One {session}?", "Two", "Three {seed}"))
    assert completion.text == "You say Three {seed}."
    assert (completion.prompt_tokens, completion.completion_tokens, completion.finish) == (11, 3, "stop")
    assert completion.latency > 0
    history = [{"role": "user", "content": "One {session}?"}, {"role": "assistant", "content": "Two"}]
    history.append({"role": "user", "content": "Three {seed}"})
    sent = {"text": "Three {seed}", "all": history, "who": "Be brief. {other} {}", "n": [7, 1, "seed 7"]}
    assert log(place)[-1]["body"] == sent


def test_a_get_request_carries_the_message_in_its_url(place: str) -> None:
    mapping = {"url": place + "/plain?text={message}", "method": "GET"}
    assert ask(mapping, "a&b=c/ü 1").text == "You say a&b=c/ü 1."


def test_a_file_holds_the_mapping_and_the_environment_the_key(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "app.yaml"
    file.write_text(
        'url: "${APP_PLACE}/chat"\nheaders: {Authorization: "Bearer ${APP_KEY}"}\n'
        'body: {text: "{message}", echo: true}\nanswer: reply.text\n'
    )
    model = with_absolute_path("http:app.yaml?label=bot", tmp_path)
    assert model == f"http:{file}?label=bot"
    monkeypatch.delenv("APP_KEY", raising=False)
    monkeypatch.setenv("APP_PLACE", place)
    with pytest.raises(ConfigurationError, match=r"app\.yaml: headers\.Authorization: .*variable APP_KEY; set it"):
        answers(model, request("hello"))
    monkeypatch.setenv("APP_KEY", _KEY)
    before = file_records(model)
    [completion] = answers(model, request("hello"))
    assert log(place)[-1]["headers"]["Authorization"] == f"Bearer {_KEY}"
    assert completion.text == "key Bearer ***", "the key is taken out of answers"
    with pytest.raises(Unavailable) as caught:
        answers(f"{model}&retries=0", request("do:leak"))
    assert "cannot log in with Bearer ***" in str(caught.value)
    assert place in str(caught.value) or "HTTP 500" in str(caught.value)
    file.write_text(file.read_text() + "timeout: 5\n")
    assert file_records(model) != before, "a resumed run sees that the mapping has changed"


def test_no_header_and_no_parameter_is_shown(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APP_KEY", _KEY)
    monkeypatch.setenv("APP_CODE", "pin-4711-code")
    headers = {"Authorization": "Bearer ${APP_KEY}", "X-Tenant": "tenant-0815-eu"}
    body = {"text": "{message}", "echo": True, "also": "pin-4711-code"}
    mapping = chat(place, "/sse?code=${APP_CODE}", headers=headers, body=body, stream="sse", answer="delta.text")
    pieces: list[str] = []
    completion = ask(mapping, on_text=pieces.append)
    assert completion.text == "".join(pieces) == "key Bearer ***", "though it came in pieces of three characters"
    assert log(place)[-1]["headers"]["X-Tenant"] == "tenant-0815-eu"
    for word in ("leak", "404", "nothing"):
        with pytest.raises(BackendError) as caught:
            ask(mapping | {"timeout": 0.1}, f"do:{word}")
        assert not any(secret in str(caught.value) for secret in (_KEY, "pin-4711", "tenant-0815"))


@pytest.mark.parametrize(
    ("word", "kind", "said"),
    [
        ("html", Unavailable, "the answer is a page of HTML, not JSON: <!DOCTYPE html>"),
        ("500", Unavailable, "HTTP 500: status 500"),
        ("429", Throttled, "HTTP 429"),
        ("404", Rejected, "HTTP 404: status 404"),
        ("403", Forbidden, "the mapping sends no key"),
        ("empty", Unavailable, "the answer is empty; expected JSON"),
        ("cut", Unavailable, "the answer is not JSON"),
        ("otherwise", Rejected, "no value at 'reply.text': 'reply' has the keys txt, lang"),
        ("number", Rejected, "the value at 'reply.text' is a number, not text"),
        ("away", Redirected, "redirects to http://elsewhere.example/chat; nothing was sent there"),
        ("large", AnswerTooLarge, "longer than 2 MB"),
        ("nothing", TimedOut, "/chat: no answer in time"),
    ],
)
def test_each_trouble_has_its_own_message(place: str, word: str, kind: type[BackendError], said: str) -> None:
    timeout = 0.05 if word == "nothing" else 30
    with pytest.raises(BackendError) as caught:
        ask(chat(place, timeout=timeout), f"do:{word}", options="?retries=0&answer_mb=2&label=bot")
    assert type(caught.value) is kind
    assert said in str(caught.value)
    assert caught.value.model == "bot"


def test_a_refused_key_ends_the_run(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APP_KEY", _KEY)
    with pytest.raises(Unauthorized, match="check the key in the headers of the mapping"):
        ask(chat(place, headers={"X-Api-Key": "${APP_KEY}"}), "do:401")


def test_passing_trouble_is_asked_again(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RetryPolicy, "delay", lambda self, failures, seed, after: 0.0)
    completion = ask(chat(place), "do:once", options="")
    assert (completion.text, completion.attempts) == ("You say do:once.", 2)


def test_nothing_listens(place: str) -> None:
    async def main() -> None:
        async with build(inline_name(chat("http://127.0.0.1:9")), _CLOCK) as backend:
            await backend.check()

    with pytest.raises(Unavailable, match=r"http://127\.0\.0\.1:9/chat|http://127\.0\.0\.1:9: .*nothing listens there"):
        _CLOCK.run(main)


def test_check_accepts_any_answer(place: str) -> None:
    async def main() -> None:
        async with build(inline_name(chat(place)), _CLOCK) as backend:
            await backend.check()

    before = len(log(place))
    _CLOCK.run(main)
    assert len(log(place)) == before, "no conversation is begun"


@pytest.mark.parametrize("path", ["/sse", "/lines"])
@pytest.mark.parametrize("marked", [True, False])
def test_a_stream_is_joined_and_handed_on(place: str, path: str, marked: bool) -> None:
    done = {"kind": "end"} if path == "/lines" else "end"
    form = path[1:]
    pieces: list[str] = []
    mapping = chat(place, path, stream=form, answer="delta.text", done=done if marked else None, tokens="usage")
    completion = ask(mapping, on_text=pieces.append)
    assert completion.text == "".join(pieces) == "You say hello."
    assert len(pieces) == 5
    assert completion.first_token is not None
    assert 0 < completion.first_token <= completion.latency
    if path == "/lines" or not marked:
        assert (completion.prompt_tokens, completion.completion_tokens) == (5, 6)


@pytest.mark.parametrize(
    ("path", "word", "said"),
    [
        ("/sse", "half", "the stream broke off before its end ('end' did not come)"),
        ("/lines", "half", "the stream broke off before its end"),
        ("/sse", "broken", "ClientPayloadError"),
        ("/sse", "html", "the answer is a page of HTML, not a stream"),
        ("/lines", "html", "the answer is a page of HTML, not JSON"),
        ("/sse", "failing", 'the stream reported an error: {"error": "the model is gone"}'),
        ("/sse", "wordless", "no event of the stream contains the answer: no value at 'delta.text': 'delta' has"),
    ],
)
def test_a_stream_that_fails_is_an_error_whole(place: str, path: str, word: str, said: str) -> None:
    done = {"kind": "end"} if path == "/lines" else "end"
    with pytest.raises(BackendError) as caught:
        ask(chat(place, path, stream=path[1:], answer="delta.text", done=done), f"do:{word}")
    assert said in str(caught.value)
    assert type(caught.value) is (Rejected if word == "wordless" else Unavailable)


def test_a_stream_without_a_mark_may_lose_its_connection(place: str) -> None:
    with pytest.raises(Unavailable):
        ask(chat(place, "/lines", stream="lines", answer="delta.text"), "do:broken")


def test_calls_of_tools_are_read(place: str) -> None:
    completion = ask(chat(place, tool_calls="reply.calls"), "do:tool")
    assert completion.text == ""
    assert completion.calls is not None
    assert [call.to_record() for call in completion.calls] == [["c1", "look_up", '{"q":1}']]


def test_a_conversation_is_a_session_that_a_resumed_run_continues(place: str) -> None:
    body = {"text": "{message}", "session": "{session}"}
    mapping = chat(place, body=body, session="conversation", headers={"X-Session": "{session}"})
    mapping["close"] = {"url": place + "/close/{session}"}
    model = inline_name(mapping)
    first = request("one", conversation="app/a")
    other = request("one", conversation="app/b")
    texts = [one.text for one in answers(model, first, other, end=False)]
    assert texts == ["Turn 1: ONE", "Turn 1: ONE"]
    [again] = answers(model, request("one", "Turn 1: ONE", "two", conversation="app/a", ordinal=1))
    assert again.text == "Turn 2: TWO", "another process, the same session"
    entry, closing = log(place)[-2:]
    assert entry["headers"]["X-Session"] == entry["body"]["session"]
    assert closing["path"] == f"/close/{entry['body']['session']}"
    closed = [one["path"] for one in log(place) if one["path"].startswith("/close")]
    assert len(closed) == 1, "interrupted conversations are not closed"
    salted = inline_name(mapping | {"session_salt": "release 2"})
    assert answers(salted, request("one", conversation="app/a"))[0].text == "Turn 1: ONE"


def test_the_application_opens_its_own_sessions(place: str, caplog: pytest.LogCaptureFixture) -> None:
    body = {"text": "{message}", "session": "{session}"}
    opens = {"url": place + "/sessions", "body": {"for": "{session}"}, "id": "data.id"}
    mapping = chat(place, body=body, session="conversation", open=opens, close={"url": place + "/close/{session}"})
    before = len(log(place))
    answers(inline_name(mapping), request("one"), request("one", "x", "two"))
    came = log(place)[before:]
    assert [one["path"].partition("/s%2F")[0] for one in came][:3] == ["/sessions", "/chat", "/chat"]
    assert came[1]["body"]["session"] == came[2]["body"]["session"] != came[0]["body"]["for"]
    assert came[3]["path"].startswith("/close/s")
    mapping["open"] = opens | {"body": {"refuse": True}}
    with pytest.raises(Rejected, match="opening the session: HTTP 409: no more sessions"):
        answers(inline_name(mapping), request("one"))
    mapping["open"] = opens | {"id": "data.key"}
    with pytest.raises(Rejected, match=r"opening the session: no value at 'data\.key': 'data' has the keys id"):
        answers(inline_name(mapping), request("one"))
    mapping["open"] = opens
    with pytest.raises(Rejected, match=r"opened by a process that has ended.* the 1 earlier turns"):
        answers(inline_name(mapping), request("one", "x", "two", ordinal=1))


def test_an_application_that_never_saw_the_history_is_warned_of(place: str, caplog: pytest.LogCaptureFixture) -> None:
    answers(inline_name(chat(place)) + "#bot", request("one", "x", "two"), request("one", "x", "two", conversation="b"))
    assert [record.message for record in caplog.records if "has not seen" in record.message] == [
        "bot: conversations begin with turns that the application has not seen (1 of the assistant), and the body "
        "sends only the last message; send {messages} (http:{…})"
    ]


@pytest.mark.parametrize("cookies", [True, False])
def test_cookies_are_kept_on_request_for_each_conversation(place: str, cookies: bool) -> None:
    before = len(log(place))
    asked = [request(text, conversation=key) for text, key in (("1", "a"), ("2", "b"), ("3", "a"), ("4", "b"))]
    answers(inline_name(chat(place, cookies=cookies)), *asked)
    sent = [one["headers"].get("Cookie") for one in log(place)[before:]]
    kept = [f"visit={before + 1}", f"visit={before + 2}"] if cookies else [None, None]
    assert sent == [None, None, *kept]


@case_table(
    ("text", "said"),
    [
        ("url: http://h/c\nbody: '{message}'\nanwser: x\n", "app.yaml:3: field 'anwser': unknown; known are url"),
        ("body: '{message}'\n", "app.yaml:1: field 'url': is missing"),
        ("url: h/c\nbody: '{message}'\n", "app.yaml:1: field 'url': found 'h/c'; a URL begins with http://"),
        ("url: http://h/c\nbody: hello\n", "app.yaml:1: neither url nor body contains {message} or {messages}"),
        ("url: http://h/c\nbody:\n  a: 'x {messages}'\n", "app.yaml:2: field 'body': found 'x {messages}'"),
        ("url: http://h/c\nbody: '{message} {session}'\n", "it contains {session}, but sessions are off"),
        ("url: http://h/c\nbody: '{message}'\ntimeout: soon\n", "app.yaml:3: field 'timeout': "),
        ("url: http://u:p@h/c\nbody: '{message}'\n", "field 'url': the URL holds a user name or a password"),
        ("url: http://h/c?api_key=abc\nbody: '{message}'\n", "holds a key, in its parameter api_key"),
        ("url: http://h/c\nbody: '{message}'\nheaders:\n  X-Api-Key: sk-1\n", "app.yaml:3: field 'headers': the"),
        ("url: http://h/c\nbody: '{message}'\nsession: conversation\nopen:\n  url: http://h/o\n  idd: x\n",
         "app.yaml:6: field 'open.idd': unknown"),
        ("- 1\n", "app.yaml: expected the mapping of an application"),
    ],
)  # fmt: skip
def test_a_wrong_mapping_is_named_by_file_line_and_field(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "app.yaml").write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        build(f"http:{tmp_path / 'app.yaml'}", _CLOCK)
    assert said in str(caught.value)
    assert "sk-1" not in str(caught.value)


@case_table(
    ("model", "said"),
    [
        ('http:{"url": "http://h", "body": "{message}"', "is not JSON"),
        ('http:{"url": "http://h", "body": "{message}"}x', "comes 'x'; expected nothing"),
        ('http:{"url": "http://h", "url": "http://h"}', "the key 'url' is given twice"),
        ('http:{"url": "http://u:secret@h", "body": "{message}"}', "its url holds a user name or a password"),
        ('http:{"url": "http://h", "headers": {"Authorization": "secret"}}', "its header Authorization holds a key"),
        ('http:{"url": "http://h", "body": "{message}"}?token=secret', "its option token would put a key"),
        ('http:{"url": "http://h", "body": "{message}"}?speed=1', "unknown option speed"),
        ("http://127.0.0.1/chat", "takes the file of a mapping, not a URL"),
        ("http:", "name the mapping's file"),
    ],
)
def test_a_wrong_name_is_refused(model: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        build(with_absolute_path(model), _CLOCK)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_mapping_in_the_name_may_hold_any_sign(place: str) -> None:
    body = {"text": "{message}", "note": "a, b: c? d#e & llama:x, openai:y @ 100%"}
    name = with_absolute_path(inline_name(chat(place, body=body)) + "#bot?retries=0")
    built: Backend = build(name, _CLOCK)
    assert built.label == "bot"
    assert answers(name, request("hi"))[0].text == "You say hi."
    assert log(place)[-1]["body"] == {"text": "hi", "note": body["note"]}


def test_the_example_of_the_documentation_is_a_mapping() -> None:
    text = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    section = text.partition("## `http`")[2].partition("\n## ")[0]
    example = section.partition("```yaml\n")[2].partition("```")[0]
    mapping = parse_mapping(parse_yaml(example, "docs"), "docs")
    assert mapping.open is not None
    for name, field in Application.model_fields.items():
        assert field.description, f"the reference lacks {name}"
