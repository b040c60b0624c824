"""A plain function in a Python file as a model: ``python:mine.py#answer``."""

from __future__ import annotations

from pathlib import Path

import pytest

from viva.engine.backends.registry import build
from viva.engine.clock import RealClock
from viva.engine.errors import BackendError, ConfigurationError, Rejected, TimedOut
from viva.engine.messages import Completion, Request, Sampling, View, request_digest
from viva.engine.permissions import grant

_CLOCK = RealClock()
_FILE = '''
import asyncio, threading
from dataclasses import dataclass

def answer(messages: list[dict]) -> str:
    """Runs off the event loop."""
    assert threading.current_thread() is not threading.main_thread()
    return f"{len(messages)} {messages[-1]['role']}: {messages[-1]['content'].upper()}"

async def later(messages):
    await asyncio.sleep(0)
    return f"later {messages[0]['content']}"

class Bot:
    def __call__(self, messages):
        return "called"

bot = Bot()

def broken(messages):
    return messages[99]["content"]

def silent(messages):
    return None

async def hangs(messages):
    await asyncio.Event().wait()

def two(messages, temperature):
    return ""

def completes(messages, suffix="", **more):
    return {"choices": [{"message": {"content": messages[1]["content"] + suffix}}],
            "usage": {"prompt_tokens": 9, "completion_tokens": more.get("tokens")}}

def chooses(messages):
    return {"choices": []}
'''


def answered(file: Path, name: str) -> Completion:
    """What the function says to two messages."""
    grant(file)
    view, sampling = View(), Sampling()
    view.append("system", "Be brief.")
    view.append("user", "hello")
    request = Request(view.messages, sampling, 7, request_digest(view, sampling, 7))

    async def main() -> Completion:
        async with build(f"python:{file}#{name}", _CLOCK) as backend:
            return await backend.generate(request)

    return _CLOCK.run(main)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of functions."""
    path = tmp_path / "mine.py"
    path.write_text(_FILE)
    return path


def test_a_function_takes_arguments_and_may_return_a_completion(file: Path) -> None:
    said = answered(file, "completes?arguments=%7B%22suffix%22%3A%20%22%21%22%2C%20%22tokens%22%3A%204%7D")
    assert (said.text, said.prompt_tokens, said.completion_tokens) == ("hello!", 9, 4)
    assert answered(file, "completes").completion_tokens == 1  # estimated
    assert answered(file, 'two?arguments={"temperature": 1}').text == ""


@pytest.mark.parametrize(
    ("name", "text"), [("answer", "2 user: HELLO"), ("later", "later Be brief."), ("bot", "called")]
)
def test_a_function_answers(file: Path, name: str, text: str) -> None:
    completion = answered(file, name)
    assert completion.text == text
    assert completion.completion_tokens == max(1, len(text) // 4)


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("broken", Rejected, "broken: IndexError: list index out of range (at "),
        ("silent", Rejected, "silent returned NoneType; a model's answer is text"),
        ("chooses", Rejected, "chooses returned an object that is no chat completion; a model's answer is text"),
        ("hangs?timeout=0.01", TimedOut, "hangs: TimeoutError: no result after 0.01 s"),
    ],
)
def test_what_goes_wrong_is_an_error_of_the_call(file: Path, name: str, kind: type[BackendError], said: str) -> None:
    with pytest.raises(BackendError) as caught:
        answered(file, name)
    assert type(caught.value) is kind
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("answer?arguments=[1]", "arguments: expected a JSON object, found"),
        ("answer?arguments={", "arguments: expected a JSON object"),
        ('answer?arguments={"top": 1}', "answer is called with the list of messages and top: got an unexpected"),
        ("two", "two is called with only the list of messages: missing a required argument: 'temperature'"),
        ("", "or a function of the messages, named by #NAME; found none, and the functions answer, later, broken"),
        ("nobody", "mine.py has no 'nobody'; it has: answer, later, broken, silent, hangs, two"),
        ("anser", "mine.py has no 'anser'; did you mean 'answer'? it has: answer, later, broken, silent, hangs, two"),
    ],
)
def test_a_wrong_name_says_what_the_file_has(file: Path, name: str, said: str) -> None:
    grant(file)
    with pytest.raises(ConfigurationError) as caught:
        build(f"python:{file}#{name}", _CLOCK)
    assert said in str(caught.value)
