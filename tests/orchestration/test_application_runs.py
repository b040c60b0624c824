"""Runs that examine an HTTP application: what is recorded, what a resumed run continues, what fails alone."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

import viva
from viva.engine.backends.http_application_mapping import inline_name
from viva.orchestration.python_api import run_blocking

_KEY = "sk-app-0123456789abcdef"
_SERVER = Path(__file__).parents[1] / "servers" / "application.py"


@viva.scenario(many="app")
async def dialog(conversation: viva.Conversation, topic: str) -> list[str]:
    app = viva.Agent(conversation, "app")
    return [(await app.ask(text)).text for text in (f"{topic} one", "two", "three")]


@viva.scenario(many="app")
async def once(conversation: viva.Conversation, topic: str) -> str:
    return (await viva.Agent(conversation, "app").ask(topic)).text


@pytest.fixture
def place() -> Iterator[str]:
    """The address of a running application."""
    with importlib.import_module("process").serving_port([sys.executable, str(_SERVER)]) as port:
        yield f"http://127.0.0.1:{port}"


def _paths(place: str) -> list[str]:
    with urlopen(f"{place}/log") as answer:
        entries: list[dict[str, Any]] = json.load(answer)
    return [entry["path"].rpartition("/")[0] + "/" if "close" in entry["path"] else entry["path"] for entry in entries]


def test_a_resumed_run_continues_sessions_and_no_file_holds_the_key(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APP_KEY", _KEY)
    mapping = {
        "url": f"{place}/chat",
        "headers": {"Authorization": "Bearer ${APP_KEY}"},
        "body": {"text": "{message}", "session": "{session}"},
        "answer": "reply.text",
        "session": "conversation",
        "close": {"url": f"{place}/close/{{session}}"},
    }
    models = {"app": [f"{inline_name(mapping)}#bot"]}
    run = viva.run_sync(dialog, tasks=["a", "b"], models=models, out=tmp_path / "run", max_calls=4, concurrency=1)
    assert run.outcome is not None
    assert (run.outcome.how, run.outcome.finished) == ("budget", 1)
    assert _paths(place).count("/close/") == 1, "the interrupted conversation's session stays open"
    run = run_blocking(lambda: viva.resume(tmp_path / "run"))
    told = {result.key: result.value for result in run.results()}
    assert told == {
        f"bot/{topic}": [f"Turn 1: {topic.upper()} ONE", "Turn 2: TWO", "Turn 3: THREE"] for topic in ("a", "b")
    }
    assert _paths(place).count("/close/") == 2
    assert _paths(place).count("/chat") == 6, "no turn is said twice"
    for file in (tmp_path / "run").rglob("*"):
        assert not file.is_file() or _KEY.encode() not in file.read_bytes(), file
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert mapping["url"] in json.dumps(manifest["models"])
    assert manifest["tier"] == "A"


def test_each_trouble_fails_its_conversation_and_the_rest_completes(place: str, tmp_path: Path) -> None:
    mapping = {"url": f"{place}/chat", "body": {"text": "{message}"}, "answer": "reply.text", "timeout": 0.5}
    models = {"app": [f"{inline_name(mapping)}#bot?retries=0"]}
    words = ["html", "500", "cut", "otherwise", "nothing"]
    tasks = ["hello", *(f"do:{word}" for word in words), "good bye"]
    run = viva.run_sync(once, tasks=tasks, models=models, out=tmp_path / "run")
    assert run.outcome is not None
    assert (run.outcome.how, run.outcome.finished, run.outcome.failed) == ("done", 2, len(words))
    errors = {result.key: result.error["message"] for result in run.results() if result.error}
    expected = ["a page of HTML", "HTTP 500", "is not JSON", "no value at 'reply.text'", "no answer in time"]
    assert [said in errors[f"bot/do:{word}"] for word, said in zip(words, expected, strict=True)] == [True] * len(words)
