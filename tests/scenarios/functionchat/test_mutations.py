"""Outputs that are wrong in one way each: they fail without a judge, under the tag of that way."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from small_turns import RIGHT, TOOLS, call, call_turn, text_turn

from viva.engine.tools import ToolCall
from viva.scenarios.functionchat.rule_grading import TAGS, grade
from viva.scenarios.functionchat.turn_files import read_dialogs, read_singlecall
from viva.scenarios.functionchat.turns import Acceptable, DialogTurn

DATA = Path(os.environ.get("VIVA_DATA") or Path(__file__).parents[3] / ".." / "shared" / "data").resolve()

Output = tuple[str, list[ToolCall]]
ONLY = Acceptable("only", text="Only ground truth is allowed.")
SEVERAL = (call("cancel_table", {"restaurant": "Luna"}), call("list_restaurants", "{}"))


def _booking(**changes: Any) -> Output:
    """The right booking with other values; None leaves the argument out."""
    arguments = {name: value for name, value in {**RIGHT, **changes}.items() if value is not None}
    return "", [call("book_table", arguments)]


def _said(text: str) -> Output:
    return text, []


def _called(name: str, arguments: dict[str, Any] | str) -> Output:
    return "", [call(name, arguments)]


BOOK, SLOT = call_turn(), text_turn("slot")
COMPLETION, RELEVANCE = text_turn("completion"), text_turn("relevance")
LIST = call_turn(call("list_restaurants", "{}"))
WRITTEN = json.dumps({"name": "book_table", "arguments": RIGHT})
TRUTH = json.dumps(RIGHT)

# What was due, what came, and the exact tags.
MUTATIONS: list[tuple[str, DialogTurn, Output, list[str]]] = [
    ("silence", BOOK, _said(""), ["empty_output", "no_call"]),
    ("blanks", BOOK, _said(" \n "), ["empty_output", "no_call"]),
    ("promises a call", BOOK, _said("I will book it at once."), ["no_call"]),
    ("says it cannot", BOOK, _said("I have no function for that."), ["no_call"]),
    ("asks again", BOOK, _said("For how many guests?"), ["no_call", "asked_instead"]),
    ("asks again, full width", BOOK, _said("何名様ですか？"), ["no_call", "asked_instead"]),
    ("writes the call", BOOK, _said(WRITTEN), ["no_call", "call_as_text"]),
    ("writes the call as code", BOOK, _said("book_table(guests=4)"), ["no_call", "call_as_text"]),
    ("similar function", BOOK, _called("cancel_table", {"restaurant": "Casa Verde"}), ["wrong_function"]),
    ("another function", BOOK, _called("list_restaurants", "{}"), ["wrong_function"]),
    ("invented function", BOOK, _called("reserve", RIGHT), ["unoffered_function"]),
    ("nameless function", BOOK, _called("", RIGHT), ["unoffered_function"]),
    ("camel case", BOOK, _called("bookTable", RIGHT), ["misspelt_function"]),
    ("hyphen", BOOK, _called("book-table", RIGHT), ["misspelt_function"]),
    ("twice", BOOK, ("", [call("book_table", RIGHT)] * 2), ["extra_call"]),
    ("one more", BOOK, ("", [call("list_restaurants", "{}"), call("book_table", RIGHT)]), ["extra_call"]),
    ("one of two", call_turn(*SEVERAL), ("", [SEVERAL[1]]), ["missing_call"]),
    ("other second", call_turn(*SEVERAL), ("", [SEVERAL[1], call("book_table", RIGHT)]), ["wrong_function"]),
    ("no object", BOOK, _called("book_table", ""), ["no_arguments"]),
    ("null object", BOOK, _called("book_table", "null"), ["no_arguments"]),
    ("no object, none needed", LIST, _called("list_restaurants", ""), ["no_arguments"]),
    ("cut off", BOOK, _called("book_table", TRUTH[:-1]), ["malformed_arguments"]),
    ("single quotes", BOOK, _called("book_table", str(RIGHT)), ["malformed_arguments"]),
    ("an array", BOOK, _called("book_table", f"[{TRUTH}]"), ["malformed_arguments"]),
    ("not a number", BOOK, _called("book_table", TRUTH.replace("4", "NaN")), ["malformed_arguments"]),
    ("required left out", BOOK, _booking(guests=None), ["missing_argument"]),
    ("optional left out", BOOK, _booking(area=None), ["missing_argument"]),
    ("two left out", BOOK, _booking(area=None, restaurant=None), ["missing_argument"]),
    ("added", BOOK, _booking(note="window seat"), ["extra_argument"]),
    ("added, not the default", BOOK, _booking(outdoor=True), ["extra_argument"]),
    ("added empty", BOOK, _booking(note=""), ["extra_argument"]),
    ("invented argument", BOOK, _booking(smoking=False), ["unknown_argument"]),
    ("renamed argument", BOOK, _booking(guests=None, people=4), ["missing_argument", "unknown_argument"]),
    ("argument to one without", LIST, _called("list_restaurants", {"city": "Rome"}), ["unknown_argument"]),
    ("float", BOOK, _booking(guests=4.0), ["wrong_type", "integer_as_float"]),
    ("exponent", BOOK, _called("book_table", TRUTH.replace(" 4,", " 4e0,")), ["wrong_type", "integer_as_float"]),
    ("integer as text", BOOK, _booking(guests="4"), ["wrong_type", "number_as_text"]),
    ("number as text", BOOK, _booking(budget="120.5"), ["wrong_type", "number_as_text"]),
    ("words for a number", BOOK, _booking(guests="four"), ["wrong_type"]),
    ("truth for a number", BOOK, _booking(guests=True), ["wrong_type"]),
    ("text for a truth", BOOK, _booking(outdoor="false"), ["wrong_type"]),
    ("number for text", BOOK, _booking(restaurant=7), ["wrong_type", "text_as_number"]),
    ("text for a list", BOOK, _booking(dishes="soup"), ["wrong_type"]),
    ("number in a list", BOOK, _booking(dishes=[1]), ["wrong_type"]),
    ("other integer", BOOK, _booking(guests=5), ["wrong_value"]),
    ("other number", BOOK, _booking(budget=120), ["wrong_value"]),
    ("negative", BOOK, _booking(guests=-4), ["wrong_value", "flipped_sign"]),
    ("other of the choices", BOOK, _booking(area="hall"), ["wrong_value"]),
    ("none of the choices", BOOK, _booking(area="roof"), ["outside_choices"]),
    ("choice in another case", BOOK, _booking(area="Garden"), ["outside_choices"]),
    ("emptied", BOOK, _booking(restaurant=" "), ["empty_value"]),
    ("wording, none allowed", call_turn(acceptable=ONLY), _booking(restaurant="casa verde"), ["wrong_value"]),
    ("list, none allowed", call_turn(acceptable=ONLY), _booking(dishes=["soup", "soup"]), ["wrong_value"]),
    ("two errors", BOOK, _booking(guests="4", note="x"), ["extra_argument", "wrong_type", "number_as_text"]),
    ("answer: silence", COMPLETION, _said(""), ["empty_output"]),
    ("answer: raw result", COMPLETION, _said('{"cancelled": true}'), ["raw_json"]),
    ("answer: fenced result", COMPLETION, _said('```json\n{"cancelled": true}\n```'), ["raw_json"]),
    ("answer: raw list", COMPLETION, _said(' [{"cancelled": true}] '), ["raw_json"]),
    ("answer: calls on", COMPLETION, _called("list_restaurants", "{}"), ["unneeded_call"]),
    (
        "answer: calls again",
        COMPLETION,
        _called("cancel_table", '{"restaurant":"Casa Verde"}'),
        ["unneeded_call", "repeated_call"],
    ),
    ("question: silence", SLOT, _said("\n"), ["empty_output"]),
    (
        "question: made up",
        SLOT,
        _called("book_table", {"restaurant": "Casa Verde", "guests": 2}),
        ["unneeded_call", "fabricated_argument"],
    ),
    (
        "question: incomplete call",
        SLOT,
        _called("book_table", {"restaurant": "Casa Verde"}),
        ["missing_argument", "unneeded_call"],
    ),
    (
        "question: both made up",
        SLOT,
        _called("book_table", {"restaurant": "John Doe", "guests": 1}),
        ["unneeded_call", "fabricated_argument"],
    ),
    ("question: other function", SLOT, _called("list_restaurants", {}), ["unneeded_call"]),
    ("question: broken call", SLOT, _called("book_table", "{"), ["malformed_arguments", "unneeded_call"]),
    ("small talk: calls", RELEVANCE, _called("list_restaurants", {}), ["unneeded_call"]),
    ("small talk: invents", RELEVANCE, _called("order_taxi", {}), ["unoffered_function", "unneeded_call"]),
    ("small talk: answers and calls", RELEVANCE, ("No.", [call("list_restaurants", {})]), ["unneeded_call"]),
    ("small talk: silence", RELEVANCE, _said(""), ["empty_output"]),
]


@pytest.mark.parametrize(("turn", "output", "tags"), [row[1:] for row in MUTATIONS], ids=[row[0] for row in MUTATIONS])
def test_a_wrong_output_fails_under_its_tag(turn: DialogTurn, output: Output, tags: list[str]) -> None:
    graded = grade(turn, *output)
    assert graded.passed is False
    assert graded.tags == tags
    assert graded.why


def test_every_error_of_the_taxonomy_is_made() -> None:
    made = set(chain.from_iterable(row[3] for row in MUTATIONS))
    assert made == {name for name, tag in TAGS.items() if tag.kind == "error"}
    assert len(MUTATIONS) >= 40


def _published(name: str) -> Path:
    path = DATA / "functionchat" / name
    if not path.is_file():
        pytest.skip(f"{path} is missing (set VIVA_DATA to the folder with the benchmark data)")
    return path


def _turns() -> list[DialogTurn]:
    singlecall = read_singlecall(_published("FunctionChat-Singlecall.jsonl"))
    return [*singlecall, *read_dialogs(_published("FunctionChat-Dialog.jsonl"))]


def _mutated(turn: DialogTurn) -> Iterator[tuple[str, Output]]:
    """Wrong outputs for a turn that wants one call, each with the tag it deserves."""
    (right,) = turn.expected()
    arguments, names = right.parsed(), [tool["function"]["name"] for tool in turn.tools]
    function = next(tool["function"] for tool in turn.tools if tool["function"]["name"] == right.name)
    schemas = function["parameters"].get("properties", {})

    def changed(tag: str, name: str, value: Any) -> tuple[str, Output]:
        return tag, _called(right.name, {**arguments, name: value})

    yield "no_call", _said("지금은 할 수 없습니다.")
    yield "empty_output", _said("")
    yield "call_as_text", _said(f"{right.name}({right.arguments})")
    yield "misspelt_function", _called(right.name.upper(), right.arguments)
    yield "unoffered_function", _called(f"{right.name}_now", right.arguments)
    for other in names:
        if other != right.name:
            yield "wrong_function", _called(other, right.arguments)
    yield "extra_call", ("", [right, right])
    yield "no_arguments", _called(right.name, "")
    yield "malformed_arguments", _called(right.name, right.arguments[:-1])
    yield changed("unknown_argument", "no_such_argument", 1)
    acceptable = dict(turn.acceptable.values[0]) if turn.acceptable.values else {}
    sample = {"string": "다른", "integer": 1, "number": 1.5, "boolean": True}
    for name, schema in schemas.items():
        if name not in arguments and name not in acceptable:
            yield changed("extra_argument", name, sample[schema["type"]])
    for name, value in arguments.items():
        yield "missing_argument", _called(right.name, {one: arguments[one] for one in arguments if one != name})
        match schemas[name]["type"]:
            case "integer":
                yield changed("integer_as_float", name, float(value))
                yield changed("number_as_text", name, str(value))
                yield changed("wrong_type", name, True)
                yield changed("wrong_value", name, value + 1)
                yield changed("flipped_sign", name, -value)
            case "number":
                yield changed("number_as_text", name, str(value))
                yield changed("wrong_value", name, value + 0.5)
                yield changed("flipped_sign", name, -value)
            case "boolean":
                yield changed("wrong_type", name, str(value).lower())
                yield changed("wrong_type", name, int(value))
                yield changed("wrong_value", name, not value)
            case "string":
                yield changed("text_as_number", name, 20240101)
                yield changed("wrong_type", name, [value])
                yield changed("empty_value", name, "")
                if turn.acceptable.kind == "only":
                    yield changed("wrong_value", name, value + " 등")


def test_every_published_call_fails_in_every_way() -> None:
    made = 0
    for turn in _turns():
        for tag, (content, calls) in _mutated(turn) if turn.type == "call" else ():
            graded = grade(turn, content, calls)
            assert graded.passed is False, (turn.id, tag, content, calls)
            assert tag in graded.tags, (turn.id, tag, content, calls, graded)
            made += 1
    assert made > 9_000


def test_every_published_text_fails_as_a_call_or_as_nothing() -> None:
    raw = 0
    for turn in _turns():
        if turn.type == "call":
            continue
        graded = grade(turn, "네.", [ToolCall("call-1", turn.tools[0]["function"]["name"], "{}")])
        assert graded.passed is False
        assert "unneeded_call" in graded.tags
        assert grade(turn, " ", []).tags == ["empty_output"]
        result = turn.messages[-1]["content"]
        if turn.type == "completion" and result.startswith("{"):
            assert grade(turn, result, []).tags == ["raw_json"]
            raw += 1
    assert raw > 50


def test_other_words_in_a_published_call_are_for_the_judge() -> None:
    open_ = 0
    for turn in _turns():
        for right in turn.expected() if turn.acceptable.kind != "only" else ():
            for name, value in right.parsed().items():
                if isinstance(value, str):
                    graded = grade(turn, "", [call(right.name, {**right.parsed(), name: value + " 등"})])
                    assert graded.passed is None, turn.id
                    assert graded.tags[0] == "different_value"
                    assert "extended_value" in graded.tags
                    open_ += 1
    assert open_ > 300


def test_the_small_turns_are_right_themselves() -> None:
    assert len(TOOLS) == 3
    for turn in (BOOK, LIST, call_turn(*SEVERAL), SLOT, COMPLETION, RELEVANCE):
        assert grade(turn, turn.ground_truth["content"] or "", turn.expected()).passed is True
