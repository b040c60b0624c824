"""What endpoints say besides words: thoughts, refusals, reasons to end. Whole and streamed answers say the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from case_tables import case_table
from hypothesis import given
from hypothesis import strategies as st
from provider_asks import answer, asking, read_whole

from viva.engine.clock import RealClock
from viva.engine.errors import Rejected
from viva.engine.journal import Journal
from viva.engine.journal_reader import History
from viva.engine.likelihood import max_logprob_by_token
from viva.engine.messages import Completion
from viva.engine.tools import Toolbox

if TYPE_CHECKING:
    from tests.servers.process import Plan, Server

    StartChaos = Callable[[Plan], Server]

_CLOCK = RealClock()
_TOOLS = Toolbox([{"name": "look", "parameters": {"type": "object"}}])
_CUT = (
    "model_length", "max_tokens", "MAX_TOKENS", "max_output_tokens", "max-new-tokens", "context_length_exceeded",
    "maxTokens", "FinishReason.MAX_TOKENS", "FINISH_REASON_LENGTH", "max_output_reached", {"type": "length"},
)  # fmt: skip
_CALL = [{"id": "a", "function": {"name": "look", "arguments": "{}"}}]


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
    return answer(server.model("candidate"), asking(on_text=on_text, tools=tools), attempts=1)


@case_table(
    ("message", "text", "thoughts"),
    [
        ({"content": "B.", "reasoning_content": "A? No."}, "B.", "A? No."),
        ({"content": "B.", "reasoning": "A? No."}, "B.", "A? No."),
        ({"content": "B.", "reasoning": [{"type": "text", "text": "A? "}, {"text": "No."}]}, "B.", "A? No."),
        ({"content": "B.", "reasoning": {"text": "A? No."}}, "B.", "A? No."),
        ({"content": "B.", "reasoning": 5, "reasoning_content": [None, 7]}, "B.", ""),
        ({"content": [{"type": "text", "text": "B"}, {"type": "text", "text": "."}]}, "B.", ""),
        ({"content": [{"type": "thinking", "thinking": [{"text": "A?"}]}, {"type": "text", "text": "B."}]}, "B.", "A?"),
        ({"content": [{"type": "output_text", "text": "B", "annotations": []}, {"text": "."}]}, "B.", ""),
        ({"content": ["B", {"type": "a_later_type", "text": "."}]}, "B.", ""),
        ({"content": [{"type": "text", "text": {"value": "B.", "annotations": []}}]}, "B.", ""),
        ({"content": [{"type": "reasoning_text", "text": "A?"}, {"type": "text", "content": "B."}]}, "B.", "A?"),
        ({"content": [{"type": "text", "text": "B."}, {"type": "reference", "reference_ids": [1]}]}, "B.", ""),
    ],
)
def test_thoughts_come_apart_from_the_text(
    replanned: StartChaos, message: dict[str, Any], text: str, thoughts: str
) -> None:
    pieces: list[str] = []
    for completion in (
        ask(replanned, whole(message, "stop")),
        ask(replanned, streamed([message], "stop"), on_text=pieces.append),
    ):
        assert (completion.text, completion.thoughts, completion.finish) == (text, thoughts, "stop")
    assert "".join(pieces) == text


def test_streamed_thoughts_are_joined_and_no_part_of_the_text(replanned: StartChaos) -> None:
    deltas = [{"reasoning_content": "The answer "}, {"reasoning_content": "is A?"}, {"content": "B."}]
    pieces: list[str] = []
    completion = ask(replanned, streamed(deltas, "stop"), on_text=pieces.append)
    assert (completion.text, completion.thoughts, pieces) == ("B.", "The answer is A?", ["B."])


@case_table(
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
        *(({"content": "B."}, word, None, "length") for word in _CUT),
        *(({"content": "B."}, word, None, "stop") for word in ("STOP", "end_turn", "stop_sequence", "eos_token")),
    ],
)
def test_the_reason_for_an_end_is_kept(
    replanned: StartChaos, message: dict[str, Any], given: Any, tools: Toolbox | None, finish: str
) -> None:
    assert ask(replanned, whole(message, given), tools=tools).finish == finish
    if given is not None:
        assert ask(replanned, streamed([message], given), on_text=lambda piece: None, tools=tools).finish == finish


@pytest.mark.parametrize("part", [{"type": "output_audio", "data": "UklG"}, {"type": "image_url", "image_url": {}}])
@pytest.mark.parametrize("beside", [[], [{"type": "text", "text": "B."}]])
def test_line_22_a_part_of_unknown_type_without_text_is_an_error_and_no_silence(
    replanned: StartChaos, part: dict[str, Any], beside: list[dict[str, Any]]
) -> None:
    message = {"content": [*beside, part]}
    for body, on_text in ((whole(message, "stop"), None), (streamed([message], "stop"), print)):
        with pytest.raises(Rejected, match=f"a part of type '{part['type']}', which has no text"):
            ask(replanned, body, on_text=on_text)


def test_line_22_of_a_token_that_comes_twice_the_likelier_log_probability_is_kept() -> None:
    top = [{"token": token, "logprob": value} for token, value in (("�", -1.5), ("A", -2.0), ("�", -0.25), ("�", -3.0))]
    told = {"content": [{"token": "�", "logprob": -0.25, "top_logprobs": top}]}
    choice = {"message": {"content": "�"}, "finish_reason": "stop", "logprobs": told}
    read = read_whole("openai", json.dumps({"choices": [choice]}).encode())
    assert read.logprobs == [["�", -0.25, {"�": -0.25, "A": -2.0}]]


@case_table(
    ("told", "read"),
    [
        ('{"content": [{"token": "A", "logprob": -Infinity, "top_logprobs": null}]}', [["A", -9999.0, {}]]),
        ('{"content": [{"token": "A", "logprob": null}]}', None),
        ('{"content": [{"token": "A", "logprob": "-0.1"}]}', None),
        ('{"content": [{"token": "A", "logprob": -1, "top_logprobs": {"A": -1}}]}', None),
        ('{"tokens": ["A"], "token_logprobs": [-1.0]}', None),
        ('[{"token": "A", "logprob": -1}]', None),
        ("null", None),
    ],
)  # fmt: skip
def test_log_probabilities_that_the_journal_cannot_hold_lose_no_answer(told: str, read: Any) -> None:
    data = f'{{"choices": [{{"message": {{"content": "A"}}, "finish_reason": "stop", "logprobs": {told}}}]}}'
    completion = read_whole("openai", data.encode())
    assert (completion.text, completion.logprobs) == ("A", read)


@given(st.lists(st.tuples(st.sampled_from("AB�"), st.floats(-9, 0))))
def test_line_22_every_backend_keeps_the_highest_value_of_a_token(pairs: list[tuple[str, float]]) -> None:
    assert max_logprob_by_token(pairs) == {
        token: max(value for one, value in pairs if one == token) for token, _ in pairs
    }


def test_s7_a_choice_that_was_not_asked_for_is_left_out() -> None:
    choices = [{"index": index, "message": {"content": text}} for index, text in ((5, "C"), (0, "B"), (1, "A"))]
    assert read_whole("openai", json.dumps({"choices": choices}).encode()).text == "B"


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
