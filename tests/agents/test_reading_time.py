"""Reading takes time in proportion to a text's length, whatever a model sends, and fails in one way only."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from case_tables import case_table
from hypothesis import given, settings
from hypothesis import strategies as st

from viva.agents.choices import read_choice
from viva.agents.forms import MAX_READ_CHARS
from viva.agents.free_numbers import read_number
from viva.agents.free_words import read_words
from viva.agents.free_yes_no import read_yes_no
from viva.agents.judge import parse_ruling
from viva.engine.backends.llama.tool_calls import HERMES, CallReader
from viva.engine.detectors import DETECTORS
from viva.engine.errors import MalformedOutput
from viva.engine.thoughts import AnswerStream, split_thoughts
from viva.engine.tools import ToolCall
from viva.scenarios.kieval.verdicts import ASPECTS, read_verdict


def _detect(text: str) -> None:
    for make in DETECTORS.values():
        detector = make()
        for start in range(0, len(text), 7):
            detector.feed(text[start : start + 7])
        detector.finish(text)


def _stream(text: str) -> None:
    stream = AnswerStream(lambda piece: None)
    for start in range(0, len(text), 7):
        stream.feed(text[start : start + 7])


def _calls(text: str) -> None:
    reader = CallReader(HERMES)
    for start in range(0, len(text), 7):
        reader.feed(text[start : start + 7])
    reader.end()


READERS: dict[str, Callable[[str], Any]] = {
    "choice": lambda text: read_choice(text, ("the moon", "the sun", "aaaa", "a star")),
    "number": lambda text: read_number(text, "How many of the 12 eggs are left after 3 days?"),
    "words": lambda text: read_words(text, "Who wrote it, A or B?"),
    "words of a kind": lambda text: read_words(text, "In which city was the author of the novel A born?"),
    "yes or no": lambda text: read_yes_no(text, "Are A and B both the same option?"),
    "verdict": read_verdict,
    "ruling": parse_ruling,
    "thoughts": split_thoughts,
    "stream": _stream,
    "detectors": _detect,
    "calls": _calls,
}
PIECEWISE = (_detect, _stream, _calls)
SHORT = (*PIECEWISE, READERS["choice"])
UNITS = [
    *[
        "答案",
        "\n",
        "(",
        ")",
        "{",
        "}",
        '{"a":1} ',
        '{"verdict":',
        '{"accuracy": {"score": ',
        '"',
        "\\",
        '\\"',
        "[",
        "<",
    ],
    *[
        "<think>",
        "</think>",
        "\n<think>",
        "<|channel|>final",
        "<|channel|>analysis<|message|>",
        " A",
        "A.",
        "answer is ",
    ],
    *[
        "option ",
        "choose (",
        ", ",
        "A or ",
        "pass\n",
        "verdict: ",
        "the ",
        "is ",
        "user:",
        "a",
        "-",
        "> ",
        "\t \n",
        "。",
    ],
    *[
        "\u3000",
        "：",
        "\r",
        "0",
        "9" * 50,
        "<tool_call>",
        "</tool_call>",
        '<tool_call>{"',
        "n't ",
        "[THINK]",
        "◁think▷",
        ",\n]",
        "the moon ",
    ],
    *[
        "A? No. ",
        "A or ",
        "B is wrong. ",
        "not ",
        "~~",
        "<b>",
        "\\boxed{",
        "A) ",
        "是",
        "정답은 ",
        "✗",
        "the answer is not ",
    ],
]


def _seconds(reader: Callable[[str], Any], text: str, enough: float = 0.0) -> float:
    """The least time of three readings; a reading that took no longer than ``enough`` seconds is the last."""
    best = float("inf")
    for _ in range(3):
        began = time.process_time()
        try:
            reader(text)
        except MalformedOutput:
            pass
        best = min(best, time.process_time() - began)
        if best < enough:
            break
    return best


def _is_read_within(seconds: float, reader: Callable[[str], Any], text: str) -> bool:
    return _seconds(reader, text, seconds) < seconds


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS.keys())
@settings(deadline=None, max_examples=40)
@given(st.sampled_from(["", "答案", "The answer is ", '{"accuracy": ', "<think>"]), st.data())
def test_line_16_time_grows_with_the_length_and_not_faster(
    reader: Callable[[str], Any], before: str, data: st.DataObject
) -> None:
    unit = "".join(data.draw(st.lists(st.sampled_from(UNITS), min_size=1, max_size=3)))
    after = data.draw(st.sampled_from(["", "x", "B", "</think>B", "}", '"}', "\nfail"]))
    least = 1_000 if reader in SHORT else 5_000
    short, long = (before + unit * (length // len(unit)) + after for length in (least, 8 * least))
    # Eight times the length: a quadratic reader takes 64 times as long, the one that froze took 512 times.
    assert _is_read_within(30 * _seconds(reader, short) + 0.02, reader, long)


def test_line_16_detectors_take_little_time_for_a_long_reply_that_comes_at_once() -> None:
    def finish(text: str) -> None:
        assert [make().finish(text) for make in DETECTORS.values()] == [None, None, None]

    text = " ".join(f"w{number}" for number in range(160_000))
    # It took forty times as long as to read the words once, and more the longer the text was.
    assert _is_read_within(20 * _seconds(lambda said: re.sub(r"\w+", "", said), text) + 0.05, finish, text)


@pytest.mark.parametrize("unit", ["<tool_call>{</tool_call>", '<tool_call>{"a": "</tool_call>'])
def test_line_16_a_local_model_that_repeats_the_marks_of_calls_is_read_in_proportion(unit: str) -> None:
    # One of 400 such repetitions took minutes, in the thread that serves all conversations.
    assert _is_read_within(40 * _seconds(_calls, unit * 200) + 0.05, _calls, unit * 1_600)


@case_table("reader", READERS.values(), ids=READERS.keys())
@case_table(
    "text",
    [
        "答案" + "\n" * 3_000 + "x",
        "(" * 40_000,
        '{"a":1} ' * 1_250_000,
        "{" * 60_000,
        '{"a":' * 60_000,
        "A" * 10_000_000,
        "A or B? No, " * 100_000,
    ],
    ids=["line breaks", "parentheses", "ten megabytes of objects", "braces", "nested", "ten megabytes", "letters"],
)
def test_line_16_the_texts_that_froze_the_engine_are_read(reader: Callable[[str], Any], text: str) -> None:
    text = text[:200_000] if reader in PIECEWISE else text
    try:
        reader(text)
    except MalformedOutput:
        pass


def test_line_16_a_long_text_is_read_at_its_beginning_and_its_end() -> None:
    choices = ("the moon", "the sun")
    padding = "So it goes on. " * 10_000
    assert len(padding) > 2 * MAX_READ_CHARS
    assert read_choice(f"The answer is B. {padding}", choices) == 1
    assert read_choice(f"{padding} The answer is B.", choices) == 1
    assert parse_ruling(f"{padding}\nfail")[0] is False


def _verdict(**changes: Any) -> str:
    fields: dict[str, Any] = {name: {"comment": "", "score": 3} for name in ASPECTS}
    return json.dumps(fields | {"overall_score": 3, "stop_conversation": False} | changes)


@pytest.mark.parametrize(
    "text",
    [
        _verdict().replace('"overall_score"', '"overall_sc\\u006fre": 1, "overall_score"'),
        _verdict().replace('"score": 3', '"sc\\u006fre": 1, "score": 3', 1),
    ],
)
def test_line_26_a_key_that_stands_twice_in_another_spelling_is_found(text: str) -> None:
    with pytest.raises(MalformedOutput, match="stands there twice"):
        read_verdict(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"accuracy":' * 1_100 + "1" + "}" * 1_100,
        '{"accuracy": ' + "[" * 100_000 + "]" * 100_000 + "}",
        _verdict(overall_score=0).replace('"overall_score": 0', '"overall_score": ' + "9" * 5_000),
        _verdict(extra=0).replace('"extra": 0', '"extra": 1e' + "9" * 5_000 + ', "accuracy": 0'),
    ],
    ids=["objects", "lists", "digits", "exponent"],
)
def test_line_26_a_verdict_that_no_json_reader_takes_is_malformed(text: str) -> None:
    with pytest.raises(MalformedOutput):
        read_verdict(text)
    with pytest.raises(MalformedOutput):
        parse_ruling(text)


HALF = "\\ud83d"  # half of a surrogate pair, as models escape it: no journal and no request can carry the character


@case_table(
    "read",
    [
        lambda: parse_ruling(f'{{"reasoning": "{HALF}, so: {HALF}\\ude00", "verdict": "pass"}}')[1],
        lambda: repr(ToolCall("1", "f", f'{{"a": "{HALF}", "b": "\\\\ud83d", "{HALF}": 1}}').parsed()),
        lambda: _problem(f'{{"accuracy": 1, "{HALF}": 1, "{HALF}": 2}}'),
        lambda: _called(f'{{"name": "f{HALF}", "arguments": "{{\\"a\\": \\"\\ud83d\\"}}"}}').arguments,
        lambda: _called(f'{{"name": "f{HALF}", "arguments": {{}}}}').name,
    ],
    ids=["ruling", "arguments", "verdict", "arguments within text", "name"],
)
def test_line_26_an_escape_that_no_text_can_hold_is_read_as_the_replacement_character(read: Callable[[], str]) -> None:
    text = read()
    assert "\ufffd" in text
    assert orjson.loads(orjson.dumps(text)) == text


def _problem(text: str) -> str:
    with pytest.raises(MalformedOutput) as caught:
        read_verdict(text)
    return str(caught.value)


def _called(text: str) -> ToolCall:
    reader = CallReader(HERMES)
    reader.feed(f"<tool_call>{text}</tool_call>")
    reader.end()
    return reader.calls[0]
