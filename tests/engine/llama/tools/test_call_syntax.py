"""Calls as they stand in text: read wherever it is cut, and the grammar that lets a model write no others."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from case_tables import case_table
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from tool_texts import HERMESS, LLAMAS, MISTRALS, arguments

from viva.engine.backends.llama.tool_calls import HERMES, CallReader, CallSyntax, call_grammar
from viva.engine.tools import Toolbox, ToolCall

fixed = settings(deadline=None, derandomize=True, max_examples=30)

words = st.text("the \n<[{tool_call>", max_size=12)
made = st.builds(ToolCall, st.just(""), st.text('a"\\é</', min_size=1, max_size=4), arguments)


@pytest.mark.parametrize("syntax", [HERMES, HERMESS, MISTRALS, LLAMAS], ids=["own", "hermes", "mistral", "llama"])
@settings(fixed, max_examples=80)
@given(before=words, between=words, calls=st.lists(made, min_size=1, max_size=3), rng=st.randoms(use_true_random=False))
def test_written_calls_are_read_wherever_the_text_is_cut(
    syntax: CallSyntax, before: str, between: str, calls: list[ToolCall], rng: random.Random
) -> None:
    if syntax.kind == "hermes":
        text = before + between.join(syntax.render(call) for call in calls) + between
        said = [part.strip() for part in (before, *[between] * len(calls))]
    else:
        calls, before = calls[:1], before if syntax.kind == "mistral" else ""
        text, said = before + syntax.render(calls[0]), [before.rstrip()]
    if any(marker in before + between for marker in ("<tool_call>", "[TOOL_CALLS]")):
        return
    whole, reader = CallReader(syntax), CallReader(syntax)
    heard = whole.feed(text) + whole.end()
    cuts = sorted(rng.randrange(len(text) + 1) for _ in range(6))
    parts = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert "".join(map(reader.feed, parts)) + reader.end() == heard
    assert [call.to_record() for call in reader.calls] == [call.to_record() for call in whole.calls]
    assert [(c.id, c.name, c.arguments) for c in whole.calls] == [
        (f"call-{n}", c.name, c.arguments) for n, c in enumerate(calls, 1)
    ]
    assert heard.strip() == "\n".join(part for part in said if part).strip()


@pytest.mark.parametrize("syntax", [HERMES, MISTRALS, LLAMAS], ids=["marked", "mistral", "llama"])
@settings(fixed, max_examples=80)
@given(text=st.text('the \n<[{"name:parameters}]tool_call>', max_size=40), cut=st.integers(0, 40))
def test_what_holds_no_call_is_text_as_it_stands(syntax: CallSyntax, text: str, cut: int) -> None:
    reader = CallReader(syntax)
    assert reader.feed(text[:cut]) + reader.feed(text[cut:]) + reader.end() == text
    assert reader.calls == []


CLOSED = '["</tool_call>"]'
READ: list[tuple[CallSyntax, str, str, list[tuple[str, str, str]]]] = [
    (HERMES, '<tool_call>{"name":"f"}</tool_call>', "", [("call-1", "f", "")]),
    (HERMES, '<tool_call> {"arguments" : "{\\"a\\": 1}", "name":"f"} </tool_call>', "", [("call-1", "f", '{"a": 1}')]),
    (HERMES, '<tool_call>{"name":"f","arguments":{ "a":1 }}</tool_call>', "", [("call-1", "f", '{ "a":1 }')]),
    (HERMES, '<tool_call>{"name":"f","arguments":["</tool_call>"]}</tool_call>!', "!", [("call-1", "f", CLOSED)]),
    (HERMES, '<tool_call>no <tool_call>{"name":"f"}</tool_call>', "<tool_call>no", [("call-1", "f", "")]),
    (HERMES, 'A <tool_call>{"name":3}</tool_call> b', 'A <tool_call>{"name":3}</tool_call> b', []),
    (HERMES, '<tool_call>{"name":"f", "arg', '<tool_call>{"name":"f", "arg', []),
    (HERMES, '<tool_call>{"name":"f"}</tool_call> <tool_call>{"na', '<tool_call>{"na', [("call-1", "f", "")]),
    (MISTRALS, 'So. [TOOL_CALLS][{"name":"f","arguments":{},"id":"abcdefghi"}]', "So.", [("abcdefghi", "f", "{}")]),
    (MISTRALS, '[TOOL_CALLS] [{"name": "f"}, {"name": "g"}]', "", [("call-1", "f", ""), ("call-2", "g", "")]),
    (MISTRALS, '[TOOL_CALLS] [{"name": "f"}, 3]', '[TOOL_CALLS] [{"name": "f"}, 3]', []),
    (LLAMAS, ' {"type": "function", "name": "f", "parameters": {"a": 1}}\n', "", [("call-1", "f", '{"a": 1}')]),
    (LLAMAS, '{"name": "f", "parameters": {}} is it', '{"name": "f", "parameters": {}} is it', []),
    (LLAMAS, '{"name": "Ann", "parameters": 3, "age": 7}', '{"name": "Ann", "parameters": 3, "age": 7}', []),
    (LLAMAS, '{"name": "Ann"}', '{"name": "Ann"}', []),
]  # fmt: skip


@case_table(("syntax", "text", "said", "calls"), READ, ids=[case[1][:30] for case in READ])
def test_how_answers_are_read(syntax: CallSyntax, text: str, said: str, calls: list[tuple[str, str, str]]) -> None:
    reader = CallReader(syntax)
    assert reader.feed(text) + reader.end() == said
    assert [(call.id, call.name, call.arguments) for call in reader.calls] == calls


# -- the grammar of calls -----------------------------------------------------------------------------------------

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a": {"type": "string", "maxLength": 3, "pattern": "^.*$"},
        "ab": {"type": "integer", "minimum": 0},
        "one": {"enum": ["x", "xy", 3]},
        "list": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
        "deep": {"type": "object", "properties": {"n": {"type": ["number", "null"]}}, "required": ["n"]},
        "free": {"description": "Anything at all."},
        "same": {"$ref": "#/$defs/small"},
    },
    "required": ["ab", "deep", "unknown"],
    "$defs": {"small": {"type": "integer", "minimum": 1, "maximum": 3}},
}
OFFERED = Toolbox(
    [{"name": name, "parameters": SCHEMA} for name in ("get", "get_all", 'odd "name"')] + [{"name": "now"}]
)


@pytest.mark.parametrize("syntax", [HERMES, HERMESS, MISTRALS, LLAMAS], ids=["own", "hermes", "mistral", "llama"])
def test_behind_a_mark_only_calls_that_follow_the_schemas_come(syntax: CallSyntax) -> None:
    grammar = call_grammar(OFFERED, syntax)
    start = grammar.advance(grammar.start, syntax.marker.encode())
    assert start is not None
    names, keys = set(), set()
    checked = json.loads(json.dumps(SCHEMA))  # without the two keywords that cannot be enforced
    del checked["properties"]["ab"]["minimum"], checked["properties"]["a"]["pattern"]
    for seed in range(120):
        data, state = syntax.marker.encode(), start
        rng = random.Random(seed)
        while not state.complete and not (state.may_end and len(data) > len(syntax.marker)):
            byte = rng.choice(sorted(state.next_bytes() - frozenset(range(0x80, 0x100))) or sorted(state.next_bytes()))
            # Ends are favoured, so that a walk comes to one.
            for end in b'"}]':
                if end in state.next_bytes() and rng.random() < 0.5:
                    byte = end
            data += bytes([byte])
            state = grammar.advance(state, bytes([byte])) or state
        reader = CallReader(syntax)
        assert reader.feed(data.decode("utf-8", "replace")) + reader.end() == ""
        for call in reader.calls:
            names.add(call.name)
            arguments = call.parsed()
            keys |= arguments.keys()
            if call.name == "now":
                assert arguments == {}
            else:
                assert Draft202012Validator(checked).is_valid(arguments)
    assert names == set(OFFERED.names)
    assert keys == {*SCHEMA["properties"], "unknown"}


def test_text_without_a_mark_is_free_and_may_end_anywhere() -> None:
    for syntax in (HERMES, MISTRALS, LLAMAS):
        grammar = call_grammar(OFFERED, syntax)
        for text in ("", "the <tool", "[TOOL_CALL", '{"nam', '{"name": 3}', "<<tool_call", "é\n\x00"):
            state = grammar.advance(grammar.start, text.encode())
            assert state is not None
            assert state.may_end
            assert len(state.next_bytes()) == 256
    grammar = call_grammar(OFFERED, LLAMAS)
    for text in ('the {"name": "nobody"}', ' {"name": "nobody"}'):  # a call is the whole answer
        assert grammar.advance(grammar.start, text.encode()) is not None
    assert grammar.advance(grammar.start, b'{"name": "nobody') is None


def test_what_a_call_leaves_no_choice_about_is_forced() -> None:
    grammar = call_grammar(Toolbox([{"name": "get"}, {"name": "get_all"}]), HERMES)
    state = grammar.advance(grammar.start, b"So <tool_call>")
    assert state is not None
    text, state = grammar.forced(state)
    assert text == b'{"name": "get'
    after = grammar.advance(state, b"_")
    assert after is not None
    assert grammar.forced(after)[0] == b'all", "arguments": {}}</tool_call>'
    again = grammar.advance(state, b'", "arguments": {}}</tool_call> and <tool_call>{"name": "get')
    assert again == state
