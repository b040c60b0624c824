"""The simulated model's use of tools: what it knows, every mistake it makes, and its verdicts as a judge."""

from __future__ import annotations

import json
from typing import Any

import pytest
from small_tools import RIGHT, TOOLS

from viva.engine.backends.registry import build
from viva.engine.clock import VirtualClock
from viva.engine.errors import ConfigurationError
from viva.engine.messages import Completion, Request, Sampling, View, request_digest
from viva.engine.tools import Toolbox, ToolCall
from viva.scenarios.functionchat.simulated_dialog import AssistantHint, RulingHint, correct_answer


def asked(name: str, requests: list[Request]) -> list[Completion]:
    clock = VirtualClock()

    async def main() -> list[Completion]:
        async with build(name, clock) as backend:
            return [await backend.generate(request) for request in requests]

    return clock.run(main)


def request(seed: int, truth: Any, tools: Toolbox | None = TOOLS, on_text: Any = None) -> Request:
    view = View()
    view.append("user", "What is it like in Bern?")
    view.append("assistant", "", calls=[ToolCall("c-0", "time", "{}")])
    view.append("tool", '{"hour": 12}', call_id="c-0", name="time")
    digest = request_digest(view, Sampling(), seed, tools)
    return Request(
        view.messages,
        Sampling(),
        seed,
        digest,
        role="candidate",
        hint=AssistantHint(truth),
        on_text=on_text,
        tools=tools,
    )


def kind_of(completion: Completion) -> str:
    """Which mistake an answer to ``RIGHT`` makes."""
    if not completion.calls:
        return "words"
    [call] = completion.calls
    arguments, right = call.parsed(), {"place": "Bern", "days": 2}
    if call.name != "weather":
        return "function"
    if arguments.keys() != right.keys():
        return "missing" if arguments.keys() < right.keys() else "extra"
    return "right" if arguments == right else "type"


def test_what_it_knows_is_answered_as_the_truth_says() -> None:
    for completion in asked("simulated:m?knowledge=1", [request(seed, RIGHT) for seed in range(20)]):
        assert completion.text == ""
        assert completion.calls == [ToolCall("c-1", "weather", '{"place": "Bern", "days": 2}')]
    heard: list[str] = []
    words = {"role": "assistant", "content": "It rains there."}
    [completion] = asked("simulated:m?knowledge=1", [request(1, words, on_text=heard.append)])
    assert (completion.text, completion.calls) == ("It rains there.", None)
    assert "".join(heard).strip() == "It rains there."


def test_what_it_does_not_know_it_gets_wrong_in_every_way() -> None:
    wrong = [kind_of(one) for one in asked("simulated:m?knowledge=0", [request(seed, RIGHT) for seed in range(200)])]
    assert {kind: wrong.count(kind) > 20 for kind in set(wrong)} == dict.fromkeys(
        ("words", "function", "missing", "extra", "type"), True
    )
    assert wrong == [
        kind_of(one) for one in asked("simulated:m?knowledge=0", [request(seed, RIGHT) for seed in range(200)])
    ]
    truth = {"content": "For which place?"}
    answers = asked("simulated:m?knowledge=0", [request(seed, truth) for seed in range(100)])
    assert all((one.text, one.calls) != ("For which place?", None) for one in answers)
    assert any(one.text == '{"hour": 12}' for one in answers)  # a result handed on as it came
    made_up = [one.calls[0] for one in answers if one.calls]
    assert {call.name for call in made_up} == {"weather", "time"}
    assert all(call.parsed() == ({"place": "unknown"} if call.name == "weather" else {}) for call in made_up)


def test_a_lone_function_without_arguments_is_still_got_wrong() -> None:
    tools = Toolbox([{"name": "time"}])
    truth = {"tool_calls": [{"id": "c", "function": {"name": "time", "arguments": "{}"}}]}
    for one in asked("simulated:m?knowledge=0", [request(seed, truth, tools) for seed in range(50)]):
        assert not one.calls or one.calls[0].parsed()


def test_a_truth_that_is_no_message_is_named() -> None:
    with pytest.raises(ConfigurationError, match="hint 'ground_truth' is not an assistant's message"):
        correct_answer({"tool_calls": [{"name": "weather"}]})
    assert correct_answer({"content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}) == (
        "",
        [ToolCall("call-1", "f", '{"a":1}')],
    )


def verdicts(name: str, passed: bool) -> list[str]:
    hint = RulingHint(passed)
    view = View()
    view.append("user", "Did it pass?")
    requests = [
        Request(view.messages, Sampling(), seed, request_digest(view, Sampling(), seed), role="judge", hint=hint)
        for seed in range(300)
    ]
    return [completion.text for completion in asked(name, requests)]


@pytest.mark.parametrize("passed", [True, False])
def test_the_judge_reasons_first_and_errs_as_often_as_it_is_told_to(passed: bool) -> None:
    right = "pass" if passed else "fail"
    for text in verdicts("simulated:j?noise=0", passed):
        reasons, _, verdict = text.rpartition("\n")
        assert len(reasons) > 20
        assert json.loads(verdict) == {"verdict": right}
    noisy = [json.loads(text.rpartition("\n")[2])["verdict"] for text in verdicts("simulated:j?noise=0.3", passed)]
    assert 0.2 < 1 - noisy.count(right) / len(noisy) < 0.4
    broken = verdicts("simulated:j?malformed=0.5", passed)
    assert 0.35 < sum(not text.endswith('"}') for text in broken) / len(broken) < 0.65
