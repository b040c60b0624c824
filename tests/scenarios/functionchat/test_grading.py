"""What passes, what is left to the judge and with which hints; that the order of calls does not matter."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_turns import RIGHT, TOOLS, call, call_turn, message, text_turn, tool, user

from viva.engine.tools import ToolCall
from viva.scenarios.functionchat.call_matching import fits_schema, same_value
from viva.scenarios.functionchat.rule_grading import TAGS, grade, read_published_verdict, sort_tags, tag_rows
from viva.scenarios.functionchat.turns import Acceptable, DialogTurn, OutputType

VALUES = Acceptable("values", ({"restaurant": ("La Casa Verde",), "note": ("window", "at the window")},))
REMARK = Acceptable("remark", text="Any number of guests above 3 will do.")


def _book(**changes: Any) -> list[ToolCall]:
    return [call("book_table", {**RIGHT, **changes})]


BACKWARDS = dict(reversed(RIGHT.items()))
PASSES: dict[str, tuple[DialogTurn, str, list[ToolCall]]] = {
    "the ground truth": (call_turn(), "", _book()),
    "other order and spaces": (
        call_turn(),
        "",
        [call("book_table", json.dumps(dict(reversed(RIGHT.items())), indent=1))],
    ),
    "words beside the call": (call_turn(), "One moment.", _book()),
    "the default, given": (call_turn(), "", _book(outdoor=False)),
    "the default, left out": (call_turn(call("book_table", {**RIGHT, "outdoor": False})), "", _book()),
    "an integer for a number": (call_turn(call("book_table", {**RIGHT, "budget": 120})), "", _book(budget=120)),
    "170.0 for 170": (call_turn(call("book_table", {**RIGHT, "budget": 170})), "", _book(budget=170.0)),
    "an exponent": (call_turn(), "", [call("book_table", json.dumps(RIGHT).replace("120.5", "1.205e2"))]),
    "an acceptable value": (call_turn(acceptable=VALUES), "", _book(restaurant="La Casa Verde")),
    "an acceptable addition": (call_turn(acceptable=VALUES), "", _book(note="window")),
    "the ground truth, others acceptable": (call_turn(acceptable=VALUES), "", _book()),
    "the ground truth under a remark": (call_turn(acceptable=REMARK), "", _book()),
    "composed letters": (
        call_turn(call("cancel_table", {"restaurant": "한"})),
        "",
        [call("cancel_table", {"restaurant": "\u1112\u1161\u11ab"})],
    ),
    "the very answer": (text_turn("completion"), " It is cancelled.\n", []),
    "the very question": (text_turn("slot"), "For how many guests?", []),
    "the very refusal": (text_turn("relevance"), "I cannot order a taxi.", []),
}
KOREAN = DialogTurn(
    "dialog/3/1", "dialog", "slot", TOOLS, [user("식당 예약해줘")], {"role": "assistant", "content": "몇 명인가요?"}
)
SEOUL = call_turn(call("cancel_table", {"restaurant": "서울"}), asked="서울 취소해줘")

OPEN: dict[str, tuple[DialogTurn, str, list[ToolCall], list[str]]] = {
    "another name": (call_turn(), "", _book(restaurant="Villa Rossa"), ["different_value", "unmentioned_value"]),
    "another case": (call_turn(), "", _book(restaurant="casa verde"), ["different_value", "different_case"]),
    "no space": (call_turn(), "", _book(restaurant="CasaVerde"), ["different_value", "different_spacing"]),
    "a part": (call_turn(), "", _book(restaurant="Verde"), ["different_value", "partial_value"]),
    "more": (
        call_turn(),
        "",
        _book(restaurant="Casa Verde 2024"),
        ["different_value", "extended_value", "unmentioned_value"],
    ),
    "a translation": (
        SEOUL,
        "",
        [call("cancel_table", {"restaurant": "Seoul"})],
        ["different_value", "other_script", "unmentioned_value"],
    ),
    "other dishes": (call_turn(), "", _book(dishes=["stew"]), ["different_value", "unmentioned_value"]),
    "an addition in other words": (
        call_turn(acceptable=VALUES),
        "",
        _book(note="at the windows"),
        ["different_value", "extended_value", "unmentioned_value"],
    ),
    "a number under a remark": (call_turn(acceptable=REMARK), "", _book(guests=5), ["different_value"]),
    "another answer": (text_turn("completion"), "Done, your table is cancelled.", [], []),
    "an answer with a number": (text_turn("completion"), "Cancelled at a fee of 25.", [], ["unmentioned_number"]),
    "an answer around JSON": (text_turn("completion"), 'Result: {"cancelled": true}', [], ["holds_json"]),
    "an echo": (text_turn("completion"), "Cancel my table at Casa Verde.", [], ["mirrored_message"]),
    "JSON as a question": (text_turn("slot"), '{"question": "For how many?"}', [], ["holds_json"]),
    "a call in words": (text_turn("slot"), "book_table(guests=2)", [], ["holds_call"]),
    "another question": (text_turn("slot"), "How many will you be?", [], []),
    "small talk": (text_turn("relevance"), "Sorry, taxis are beyond me.", [], []),
    "another language": (KOREAN, "For how many guests?", [], ["other_language"]),
    "the language with a name": (KOREAN, "Casa Verde에 몇 분이세요?", [], []),
}


@pytest.mark.parametrize(("turn", "content", "calls"), PASSES.values(), ids=PASSES)
def test_what_is_right_passes_without_a_judge(turn: DialogTurn, content: str, calls: list[ToolCall]) -> None:
    graded = grade(turn, content, calls)
    assert (graded.passed, graded.tags, graded.why) == (True, [], "")


@pytest.mark.parametrize(("turn", "content", "calls", "tags"), OPEN.values(), ids=OPEN)
def test_what_is_open_goes_to_the_judge(turn: DialogTurn, content: str, calls: list[ToolCall], tags: list[str]) -> None:
    graded = grade(turn, content, calls)
    assert (graded.passed, graded.tags) == (None, tags)
    assert bool(graded.why) is bool(tags)


def test_every_hint_is_given_somewhere() -> None:
    assert {tag for row in OPEN.values() for tag in row[3]} == {
        name for name, tag in TAGS.items() if tag.kind == "hint"
    }


def test_an_error_beside_something_open_is_all_that_is_told() -> None:
    graded = grade(call_turn(), "", _book(restaurant="Villa Rossa", guests="4"))
    assert (graded.passed, graded.tags) == (False, ["wrong_type", "number_as_text"])


SINGLE_NUMBER = Acceptable("values", ({"guests": (4,)},), '{"guests": 4}')
LISTED_NUMBER = Acceptable("values", ({"guests": (4,)},), '{"guests": [4]}')


def _book_without(name: str) -> list[ToolCall]:
    return [call("book_table", {key: value for key, value in RIGHT.items() if key != name})]


@pytest.mark.parametrize(
    ("turn", "content", "calls", "passed"),
    [
        (call_turn(), "", _book(), True),
        (call_turn(), "", _book(restaurant="casaverde"), True),  # without spaces, in small letters
        (call_turn(), "", [*_book(), *_book(guests=9)], True),  # the first call alone
        (call_turn(acceptable=SINGLE_NUMBER), "", _book(guests=99), True),  # any value, …
        (call_turn(acceptable=SINGLE_NUMBER), "", _book_without("guests"), True),  # … even a missing one
        (call_turn(acceptable=LISTED_NUMBER), "", _book(guests=4), True),
        (call_turn(acceptable=LISTED_NUMBER), "", _book(guests=99), None),
        (call_turn(acceptable=REMARK), "", _book(guests=5), None),
        (call_turn(), "", _book(outdoor=False), None),  # an argument that the ground truth lacks
        (call_turn(), "", [call("cancel_table", {"restaurant": "Casa Verde"})], None),
        (call_turn(), "", [], None),
        (call_turn(), "", [call("book_table", "{")], None),
        (text_turn("slot"), "For how many guests?", [], None),
    ],
)
def test_official_matching_passes_what_the_authors_code_passes_and_leaves_the_rest_to_the_judge(
    turn: DialogTurn, content: str, calls: list[ToolCall], passed: bool | None
) -> None:
    assert grade(turn, content, calls, "official").passed is passed


@pytest.mark.parametrize(
    ("text", "passed"),
    [
        ("The call is right.\n\npass\npass", True),
        ("The call is wrong.\nFail\nFail", False),
        ("It does not pass the rubric.\nfail", True),  # pass comes first
        ("It would pass.\nBut no.\nNo.\nfail", False),  # only the last two lines
        ("맞지 않습니다.\n불합격", True),  # it contains 합격
        ("좋습니다.\n통과\n입니다.", True),
        ("fail\n\n\n입니다.", False),  # the last four lines
        ("fail\n입니다.\nSo it is.\nYes.", None),
        ("", None),
    ],
)
def test_a_verdict_is_read_as_by_the_authors_code(text: str, passed: bool | None) -> None:
    assert read_published_verdict(text) is passed


def test_a_slot_question_may_name_what_was_said() -> None:
    """Values that messages mention are not called fabricated: also with marks, or as 3만 for 30000."""
    spec = [tool("save", ["name", "amount"], name={"type": "string"}, amount={"type": "integer"})]
    asked = [user("Mr. O'Hara 앞으로 3만 원 저장해줘")]
    turn = DialogTurn("dialog/4/1", "dialog", "slot", spec, asked, {"role": "assistant", "content": "어디에요?"})
    known = grade(turn, "", [call("save", {"name": "mr ohara", "amount": 30000})])
    assert known.tags == ["unneeded_call"]
    assert grade(turn, "", [call("save", {"name": "mr ohara", "amount": 40000})]).tags == [
        "unneeded_call",
        "fabricated_argument",
    ]


ORDER = tool(
    "order",
    [],
    order={"type": "object", "properties": {"item": {"type": "string"}, "count": {"type": "integer"}}},
    count={"anyOf": [{"type": "integer"}, {"type": "null"}]},
)


@pytest.mark.parametrize(
    ("given_", "passed", "tags"),
    [
        ({"order": {"item": "tea", "count": 2}, "count": 2}, None, ["different_value", "unmentioned_value"]),
        ({"order": {"item": "coffee", "count": 3}, "count": 2}, False, ["wrong_value"]),
        ({"order": {"item": "coffee"}, "count": 2}, False, ["wrong_value"]),
        ({"order": {"item": "coffee", "count": 2}, "count": 2.0}, False, ["wrong_type", "integer_as_float"]),
        ({"order": {"item": "coffee", "count": 2}, "count": "2"}, False, ["wrong_type", "number_as_text"]),
    ],
)
def test_within_objects_texts_alone_are_left_to_the_judge(
    given_: dict[str, Any], passed: bool | None, tags: list[str]
) -> None:
    right = message(call("order", {"order": {"item": "coffee", "count": 2}, "count": 2}))
    turn = DialogTurn("dialog/5/1", "dialog", "call", [ORDER], [user("Two coffees.")], right)
    graded = grade(turn, "", [call("order", given_)])
    assert (graded.passed, graded.tags) == (passed, tags)


def test_values_are_found_in_escaped_json() -> None:
    spec = [tool("send", ["to", "amount"], to={"type": "string"}, amount={"type": "integer"})]
    told = [user("보내줘"), {"role": "tool", "content": json.dumps({"name": "김민수"}), "tool_call_id": "a"}]
    turn = DialogTurn("dialog/6/1", "dialog", "slot", spec, told, {"role": "assistant", "content": "얼마요?"})
    named = grade(turn, "", [call("send", {"to": "김민수", "amount": 218})])  # 218 stands in the escape of 수 alone
    assert "'amount' is 218, which no message mentions" in named.why
    assert "'to'" not in named.why


@pytest.mark.parametrize("text", ['```{"a": 1}```', '```json {"a": 1}```', '```json\n{"a": 1}\n```', '{"a": 1}'])
def test_json_is_bare_json_however_it_is_fenced(text: str) -> None:
    assert grade(text_turn("completion"), text, []).tags == ["raw_json"]


def test_a_ground_truth_that_is_json_passes() -> None:
    turn = DialogTurn(
        "dialog/7/1", "dialog", "completion", TOOLS, [user("Which?")], {"role": "assistant", "content": "[1]"}
    )
    assert grade(turn, "[1]", []).passed is True


def test_words_before_a_bracket_are_no_call() -> None:
    spec = [tool("search", ["query"], query={"type": "string"})]
    right = message(call("search", {"query": "x"}))
    turn = DialogTurn("dialog/8/1", "dialog", "call", spec, [user("Look for x.")], right)
    assert grade(turn, "Do you want me to search (the web) for it?", []).tags == ["no_call", "asked_instead"]
    assert grade(turn, 'search(query="x")', []).tags == ["no_call", "call_as_text"]


NAMES = st.sampled_from(["Luna", "Sol", "Mar"])
CALLS = st.lists(
    st.builds(lambda name: call("cancel_table", {"restaurant": name}), NAMES)
    | st.builds(lambda name, n: call("book_table", {"restaurant": name, "guests": n}), NAMES, st.integers(1, 3))
    | st.just(call("list_restaurants", "{}")),
    min_size=1,
    max_size=4,
)


@given(CALLS, CALLS, st.randoms(use_true_random=False))
def test_the_order_of_calls_does_not_matter(expected: list[ToolCall], given_: list[ToolCall], random: Any) -> None:
    turn = call_turn(*expected)
    assert grade(turn, "", random.sample(expected, len(expected))).passed is True
    graded = grade(turn, "", given_)
    assert grade(turn, "", random.sample(given_, len(given_))) == graded
    assert grade(call_turn(*random.sample(expected, len(expected))), "", given_).tags == graded.tags
    if sorted(map(repr, expected)) != sorted(map(repr, given_)):
        assert graded.passed is not True
    if len(expected) != len(given_):
        assert graded.passed is False
        assert ("missing_call" in graded.tags) is (len(expected) > len(given_))
        assert ("extra_call" in graded.tags) is (len(expected) < len(given_))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(JSON, JSON)
def test_sameness(first: Any, second: Any) -> None:
    assert same_value(first, first)
    assert same_value(first, second) is same_value(second, first)
    assert same_value(first, json.loads(json.dumps(first)))
    assert not same_value(first, [first])


@given(JSON)
def test_a_value_is_of_one_type_only(value: Any) -> None:
    """But integers are numbers too."""
    fitting = {
        kind
        for kind in ("string", "integer", "number", "boolean", "object", "array", "null")
        if fits_schema(value, {"type": kind})
    }
    assert fitting == {"integer", "number"} or len(fitting) == 1
    assert fits_schema(value, {"type": list(fitting)})
    assert fits_schema(value, {})
    assert fits_schema(value, {"anyOf": [{"type": kind} for kind in fitting]})


def test_types_within_values_and_of_several_kinds() -> None:
    schema = {"type": "object", "properties": {"n": {"type": ["integer", "null"]}}}
    assert fits_schema({"n": None}, schema)
    assert fits_schema({"n": 3, "other": "x"}, schema)
    assert not fits_schema({"n": 3.0}, schema)
    assert not fits_schema([1, "2"], {"type": "array", "items": {"type": "integer"}})
    assert not fits_schema("x", {"anyOf": [{"type": "integer"}, {"type": "null"}]})
    assert not same_value(True, 1)
    assert not same_value([1], [True])
    assert same_value([1, {"a": 2.0}], [1.0, {"a": 2}])


def test_endless_brackets_are_graded_in_no_time() -> None:
    endless = "[" * 100_000
    assert grade(text_turn("slot"), endless, []).passed is None
    assert grade(text_turn("completion"), endless, []).passed is None
    assert grade(call_turn(), "", [call("book_table", endless)]).tags == ["malformed_arguments"]


def test_the_table_of_tags() -> None:
    rows = tag_rows()
    assert [row[0] for row in rows] == list(TAGS)
    assert all(row[1] in ("error", "hint") and row[2].endswith(".") for row in rows)
    assert sort_tags(["wrong_value", "no_call", "wrong_value"]) == ["no_call", "wrong_value"]


@pytest.mark.parametrize("kind", ["completion", "slot", "relevance"])
def test_records_of_turns_come_back(kind: OutputType) -> None:
    for turn in (text_turn(kind), call_turn(acceptable=VALUES)):
        assert DialogTurn.from_record(json.loads(json.dumps(turn.to_record()))) == turn
