"""What endpoints say besides words: thoughts, refusals, reasons to end. Whole and streamed answers say the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from viva.engine.backends.registry import build
from viva.engine.clock import RealClock
from viva.engine.history import History
from viva.engine.journal import Journal
from viva.engine.messages import Completion, Request, Sampling, View, request_digest
from viva.engine.tools import Toolbox

if TYPE_CHECKING:
    from tests.servers.process import Plan, Server

    StartChaos = Callable[[Plan], Server]

_CLOCK = RealClock()
_TOOLS = Toolbox([{"name": "look", "parameters": {"type": "object"}}])
_CALL = [{"id": "a", "function": {"name": "look", "arguments": "{}"}}]


def question(on_text: Any = None, tools: Toolbox | None = None) -> Request:
    """A request with one user message."""
    view, sampling = View(), Sampling()
    view.append("user", "Why is steel cold?")
    return Request(view.messages, sampling, 7, request_digest(view, sampling, 7), on_text=on_text, tools=tools)


def whole(message: dict[str, Any], finish: Any) -> str:
    """The body of a whole answer."""
    return json.dumps({"choices": [{"message": message, "finish_reason": finish}]})


def streamed(deltas: list[dict[str, Any]], finish: Any) -> str:
    """The body of a streamed answer."""
    chunks: list[dict[str, Any]] = [{"choices": [{"delta": delta}]} for delta in deltas]
    chunks.append({"choices": [{"delta": {}, "finish_reason": finish}]})
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


def ask(start: StartChaos, body: str, on_text: Any = None, tools: Toolbox | None = None) -> Completion:
    """The completion read from this very body."""
    server = start({"default": {"do": "garbage", "say": body}})

    async def main() -> Completion:
        async with build(server.model("candidate", retries=0), _CLOCK) as backend:
            return await backend.generate(question(on_text, tools))

    return _CLOCK.run(main)


@pytest.mark.parametrize(
    ("message", "text", "thoughts"),
    [
        ({"content": "B.", "reasoning_content": "A? No."}, "B.", "A? No."),
        ({"content": "B.", "reasoning": "A? No."}, "B.", "A? No."),
        ({"content": "B.", "reasoning": [{"type": "text", "text": "A? "}, {"text": "No."}]}, "B.", "A? No."),
        ({"content": "B.", "reasoning": {"text": "A? No."}}, "B.", "A? No."),
        ({"content": "B.", "reasoning": 5, "reasoning_content": [None, 7]}, "B.", ""),
        ({"content": [{"type": "text", "text": "B"}, {"type": "text", "text": "."}]}, "B.", ""),
        ({"content": [{"type": "thinking", "thinking": [{"text": "A?"}]}, {"type": "text", "text": "B."}]}, "B.", "A?"),
    ],
)
def test_thoughts_come_apart_from_the_text(
    chaos: StartChaos, message: dict[str, Any], text: str, thoughts: str
) -> None:
    pieces: list[str] = []
    for completion in (
        ask(chaos, whole(message, "stop")),
        ask(chaos, streamed([message], "stop"), on_text=pieces.append),
    ):
        assert (completion.text, completion.thoughts, completion.finish) == (text, thoughts, "stop")
    assert "".join(pieces) == text


def test_streamed_thoughts_are_joined_and_no_part_of_the_text(chaos: StartChaos) -> None:
    deltas = [{"reasoning_content": "The answer "}, {"reasoning_content": "is A?"}, {"content": "B."}]
    pieces: list[str] = []
    completion = ask(chaos, streamed(deltas, "stop"), on_text=pieces.append)
    assert (completion.text, completion.thoughts, pieces) == ("B.", "The answer is A?", ["B."])


@pytest.mark.parametrize(
    ("message", "given", "tools", "finish"),
    [
        ({"content": "B."}, "length", None, "length"),
        ({"content": "B."}, None, None, "stop"),
        ({"content": None}, "content_filter", None, "content_filter"),
        ({"content": None, "tool_calls": _CALL}, "tool_calls", _TOOLS, "stop"),
        ({"content": None, "tool_calls": _CALL}, "tool_calls", None, "tool_calls"),
        ({"content": "B."}, "eos\n" + "x" * 100, None, "eos" + "x" * 37),
        ({"content": "B."}, "watch:repetition", None, "watch-repetition"),
        ({"content": "B."}, 5, None, "stop"),
        ({"content": None, "refusal": "I cannot."}, "stop", None, "refusal"),
        ({"content": [{"type": "refusal", "refusal": "I cannot."}]}, "stop", None, "refusal"),
        ({"content": "B.", "refusal": ""}, "stop", None, "stop"),
    ],
)
def test_the_reason_for_an_end_is_kept(
    chaos: StartChaos, message: dict[str, Any], given: Any, tools: Toolbox | None, finish: str
) -> None:
    assert ask(chaos, whole(message, given), tools=tools).finish == finish
    if given is not None:
        assert ask(chaos, streamed([message], given), on_text=lambda piece: None, tools=tools).finish == finish


def test_thoughts_come_back_from_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"

    async def main() -> None:
        async with Journal(path, _CLOCK) as journal:
            journal.record_call(0, "candidate", 0, b"", Completion("B.", thoughts="A? No."), 0.0)
            journal.record_call(0, "candidate", 1, b"", Completion("C."), 0.0)

    _CLOCK.run(main)
    with History(path) as history:
        assert [call.completion.thoughts for call in history.calls(0)] == ["A? No.", ""]
        assert history._connection.execute("select extra is null from calls").fetchall() == [(0,), (1,)]
