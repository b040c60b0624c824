"""Talks with tools on a real vocabulary: written as by the templates, only growing, nobody's text as control tokens.

Calls written and read; the grammar of calls.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jsonschema import Draft202012Validator
from tiny_gguf import CHAT_TEMPLATE, make_model
from tool_templates import HERMES, LLAMA, MISTRAL

from viva.engine.backends.llama.calling import call_grammar
from viva.engine.backends.llama.chat import ChatFormat, Segment
from viva.engine.backends.llama.native import NativeModel
from viva.engine.backends.llama.toolchat import ToolTalk
from viva.engine.backends.llama.tools import OWN, CallReader, Notation
from viva.engine.errors import Rejected
from viva.engine.messages import Message
from viva.engine.tools import Toolbox, ToolCall

fixed = settings(deadline=None, derandomize=True, max_examples=30)
MISTRALS = Notation("mistral", "[TOOL_CALLS]", ' [{"name": "', '", "arguments": ', "}")
LLAMAS = Notation("llama", '{"name": "', "", '", "parameters": ', "}")
HERMESS = Notation("hermes", "<tool_call>", '\n{"name": "', '", "arguments": ', "}\n</tool_call>")
TOOLS = Toolbox(
    [
        {"name": "time", "description": "The </s> time.", "parameters": {"properties": {"zone": {"type": "string"}}}},
        {
            "name": "times",
            "parameters": {"properties": {"<|user|>": {"type": "string", "description": "\ue0001\ue001"}}},
        },
    ]
)
LOOKALIKES = [
    "</s><|assistant|>",
    "<s>",
    "\ue0000000001\ue001",
    "\ue0020000001\ue003",
    "[TOOL_CALLS]",
    '"',
    "\\",
    "\n",
    "{{x}}",
]
wild = st.lists(st.sampled_from([*LOOKALIKES, "the ", "é😀"]), min_size=1, max_size=3).map("".join)
values = st.recursive(st.integers(-9, 9) | st.booleans() | st.none() | wild, lambda inner: st.lists(inner, max_size=2))
arguments = st.dictionaries(wild, values, max_size=2).map(lambda value: json.dumps(value, ensure_ascii=False))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NativeModel]:
    path = tmp_path_factory.mktemp("talks") / "tiny.gguf"
    model = NativeModel(make_model(path, marks={"<tool_call>": False, "[TOOL_CALLS]": True}))
    yield model
    model.close()


def talk_with(model: NativeModel, folder: Path, source: str) -> ToolTalk:
    path = folder / "template.jinja"
    path.write_text(source, encoding="utf-8")
    return ToolTalk(ChatFormat(model, str(path)))


def flat(segments: list[Segment]) -> list[int]:
    return [int(token) for segment in segments for token in segment.tokens]


def spelled(model: NativeModel, tokens: list[int]) -> str:
    pieces = (model.control_text(t).encode() if model.controls[t] else model.pieces[t] for t in tokens)
    return b"".join(pieces).decode()


def controls(model: NativeModel, segments: list[Segment]) -> list[int]:
    return [token for token in flat(segments) if model.controls[token]]


def rendered(source: str, messages: list[Message], tools: Toolbox | None) -> str:
    """What the template itself makes of a talk, with everything in its place from the start."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    plain: list[dict[str, Any]] = []
    for message in messages:
        one: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.calls:
            functions = [(call, {"name": call.name, "arguments": call.parsed()}) for call in message.calls]
            one["tool_calls"] = [{"id": c.id, "type": "function", "function": function} for c, function in functions]
        if message.role == "tool":
            one |= {"tool_call_id": message.call_id, "name": message.name}
        plain.append(one)
    specs = None if tools is None else tools.specs
    text = environment.from_string(source).render(
        messages=plain, tools=specs, add_generation_prompt=True, bos_token="<s>", eos_token="</s>"
    )
    return text if text.startswith("<s>") else "<s>" + text


def talk_of(texts: list[str], given: list[str], *, parallel: bool, beside: bool) -> list[Message]:
    """System, question, a call or two, their results, an answer in words, another question, a call, its result."""
    calls = [ToolCall(f"call{n:05}", ("time", "times")[n % 2], text) for n, text in enumerate(given)]
    first = tuple(calls[: 1 + parallel])
    results = [Message("tool", texts[2], call_id=call.id, name=call.name) for call in first]
    return [
        Message("system", texts[0]),
        Message("user", texts[1]),
        Message("assistant", texts[5] if beside else "", calls=first),
        *results,
        Message("assistant", texts[3]),
        Message("user", texts[4]),
        Message("assistant", "", calls=(calls[2],)),
        Message("tool", texts[5], call_id=calls[2].id, name=calls[2].name),
    ]


@pytest.mark.parametrize(
    ("source", "notation"),
    [(HERMES, HERMESS), (LLAMA, LLAMAS), (MISTRAL, MISTRALS)],
    ids=["hermes", "llama", "mistral"],
)
@fixed
@given(st.lists(wild, min_size=6, max_size=6), st.lists(arguments, min_size=3, max_size=3), st.booleans())
def test_a_talk_is_written_as_the_template_writes_it(
    model: NativeModel,
    tmp_path_factory: pytest.TempPathFactory,
    source: str,
    notation: Notation,
    texts: list[str],
    given: list[str],
    offered: bool,
) -> None:
    written = talk_with(model, tmp_path_factory.getbasetemp(), source)
    assert (written.native, written.notation) == (True, notation)
    several = source == HERMES
    tools = TOOLS if offered else None
    talk = talk_of(texts, given, parallel=source != LLAMA, beside=several)
    if source == MISTRAL:  # its system message moves about; without one it is checked as it stands
        texts[1] += " first"  # and it takes two users' messages of the same words for one
        talk = talk_of(texts, given, parallel=True, beside=False)[1:]
    segments = written.segments(talk, tools)
    assert spelled(model, flat(segments)) == rendered(source, talk, tools)
    # Whatever is said, and whatever the specifications say, the control tokens are those of the template.
    tame = talk_of(["x"] * 6, ["{}"] * 3, parallel=source != LLAMA, beside=several)[-len(talk) :]
    names = Toolbox([{"name": "time"}, {"name": "times"}]) if offered else None
    assert controls(model, segments) == controls(model, written.segments(tame, names))


@pytest.mark.parametrize("source", [HERMES, LLAMA, CHAT_TEMPLATE], ids=["hermes", "llama", "own"])
@fixed
@given(st.lists(wild, min_size=6, max_size=6), st.lists(arguments, min_size=3, max_size=3), st.booleans())
def test_a_talk_begins_with_the_segments_of_its_beginning(
    model: NativeModel,
    tmp_path_factory: pytest.TempPathFactory,
    source: str,
    texts: list[str],
    given: list[str],
    known: bool,
) -> None:
    written = talk_with(model, tmp_path_factory.getbasetemp(), source)
    talk = talk_of(texts, given, parallel=source != LLAMA, beside=source == HERMES)
    for message in talk:
        if message.role == "assistant" and known:
            message.pieces = [(True, [70, 71]), (False, [72])]
    keys = [[segment.key() for segment in written.segments(talk, TOOLS)]]
    for index in reversed([index for index, message in enumerate(talk) if message.role == "assistant"]):
        keys.append([segment.key() for segment in written.segments(talk[:index], TOOLS)])
        assert keys[-2][: len(keys[-1])] == keys[-1]
        if known:
            assert [decoded for decoded, _ in keys[-2][len(keys[-1]) :][:2]] == [True, False]
    assert keys[-1][0] == written.segments([talk[0], Message("user", "another")], TOOLS)[0].key()


def test_without_a_system_message_the_tools_are_a_run_of_their_own(model: NativeModel, tmp_path: Path) -> None:
    for source in (HERMES, LLAMA, MISTRAL, CHAT_TEMPLATE):
        written = talk_with(model, tmp_path, source)
        one, other = (written.segments([Message("user", text)], TOOLS) for text in ("of", "another"))
        assert one[0].key() == other[0].key()
        assert '"name": "times"' in spelled(model, one[0].tokens.tolist())
        assert len(one) == 2


def test_a_template_without_tools_is_told_of_them_in_words(model: NativeModel, tmp_path: Path) -> None:
    written = talk_with(model, tmp_path, CHAT_TEMPLATE)
    assert (written.native, written.notation) == (False, OWN)
    tools = Toolbox([{"name": "time"}, {"name": "times"}])
    calls = (ToolCall("a", "time", '{"zone":"utc"}'), ToolCall("b", "times", "{}"))
    talk = [Message("system", "Be brief."), Message("user", "When?"), Message("assistant", "So.", calls=calls)]
    talk += [Message("tool", "noon", call_id="a"), Message("tool", "one", call_id="b"), Message("user", "And?")]
    system, *rest = spelled(model, flat(written.segments(talk, tools))).split("</s>")
    assert system.startswith("<s><|system|>Be brief.\n\nYou may call functions.")
    assert '\n{"name": "time"}\n{"name": "times"}\n' in system
    assert '<tool_call>{"name": …, "arguments": {…}}</tool_call>' in system
    assert rest == [
        "<|user|>When?",
        '<|assistant|>So.\n<tool_call>{"name": "time", "arguments": {"zone": "utc"}}</tool_call>'
        '\n<tool_call>{"name": "times", "arguments": {}}</tool_call>',
        "<|user|><tool_response>noon</tool_response>\n<tool_response>one</tool_response>\nAnd?",
        "<|assistant|>",
    ]


CALLS = "{% for c in m.tool_calls or [] %}"
UNREAD = {
    "names no tools": "{% for m in messages %}{{ m.content }}</s>{% endfor %}",
    "drops calls": "{{ tools }}{% for m in messages %}<|user|>{{ m.content }}</s>{% endfor %}",
    "unknown notation": "{{ tools }}{% for m in messages %}{{ m.content }}"
    + CALLS
    + "<fn {{ c.function.name }}>{{ c.function.arguments | tojson }}</fn>{% endfor %}</s>{% endfor %}",
    "arguments one by one": "{{ tools }}{% for m in messages %}{{ m.content }}"
    + CALLS
    + "{% for k, v in c.function.arguments | items %}{{ k }}{{ v }}{% endfor %}{% endfor %}</s>{% endfor %}",
    "no end of turn": "{{ tools }}{% for m in messages %}{{ m.content }}"
    + CALLS
    + '<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>'
    + "{% endfor %}{% endfor %}",
    "refuses results": "{{ tools }}{% for m in messages %}{{ m.content }}{% if m.role == 'tool' %}"
    + "{{ raise_exception('no') }}{% endif %}{% endfor %}",
}


@pytest.mark.parametrize("source", list(UNREAD.values()), ids=list(UNREAD))
def test_templates_whose_calls_could_not_be_read_get_the_own_notation(
    model: NativeModel, tmp_path: Path, source: str
) -> None:
    assert talk_with(model, tmp_path, source).notation == OWN


def test_a_template_of_its_own_for_tools_is_taken(tmp_path: Path) -> None:
    path = make_model(tmp_path / "two.gguf", tool_template=HERMES)
    model = NativeModel(path)
    assert ToolTalk(ChatFormat(model)).notation == HERMESS
    assert ToolTalk(ChatFormat(model, "chatml")).notation == OWN
    model.close()


def test_calls_that_a_template_refuses_are_refused_by_name(model: NativeModel, tmp_path: Path) -> None:
    written = talk_with(model, tmp_path, LLAMA)
    calls = (ToolCall("a", "time", "{}"), ToolCall("b", "time", "{}"))
    with pytest.raises(Rejected, match="refuses the roles user assistant: one call at a time"):
        written.segments([Message("user", "of"), Message("assistant", "", calls=calls)], TOOLS)


# -- reading ------------------------------------------------------------------------------------------------------

words = st.text("the \n<[{tool_call>", max_size=12)
made = st.builds(ToolCall, st.just(""), st.text('a"\\é</', min_size=1, max_size=4), arguments)


@pytest.mark.parametrize("notation", [OWN, HERMESS, MISTRALS, LLAMAS], ids=["own", "hermes", "mistral", "llama"])
@settings(fixed, max_examples=80)
@given(before=words, between=words, calls=st.lists(made, min_size=1, max_size=3), rng=st.randoms(use_true_random=False))
def test_written_calls_are_read_wherever_the_text_is_cut(
    notation: Notation, before: str, between: str, calls: list[ToolCall], rng: random.Random
) -> None:
    if notation.kind == "hermes":
        text = before + between.join(notation.written(call) for call in calls) + between
        said = [part.strip() for part in (before, *[between] * len(calls))]
    else:
        calls, before = calls[:1], before if notation.kind == "mistral" else ""
        text, said = before + notation.written(calls[0]), [before.rstrip()]
    if any(mark in before + between for mark in ("<tool_call>", "[TOOL_CALLS]")):
        return
    whole, reader = CallReader(notation), CallReader(notation)
    heard = whole.feed(text) + whole.end()
    cuts = sorted(rng.randrange(len(text) + 1) for _ in range(6))
    parts = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert "".join(map(reader.feed, parts)) + reader.end() == heard
    assert [call.to_record() for call in reader.calls] == [call.to_record() for call in whole.calls]
    assert [(c.id, c.name, c.arguments) for c in whole.calls] == [
        (f"call-{n}", c.name, c.arguments) for n, c in enumerate(calls, 1)
    ]
    assert heard.strip() == "\n".join(part for part in said if part).strip()


@pytest.mark.parametrize("notation", [OWN, MISTRALS, LLAMAS], ids=["marked", "mistral", "llama"])
@settings(fixed, max_examples=80)
@given(text=st.text('the \n<[{"name:parameters}]tool_call>', max_size=40), cut=st.integers(0, 40))
def test_what_holds_no_call_is_text_as_it_stands(notation: Notation, text: str, cut: int) -> None:
    reader = CallReader(notation)
    assert reader.feed(text[:cut]) + reader.feed(text[cut:]) + reader.end() == text
    assert reader.calls == []


CLOSED = '["</tool_call>"]'
READ: list[tuple[Notation, str, str, list[tuple[str, str, str]]]] = [
    (OWN, '<tool_call>{"name":"f"}</tool_call>', "", [("call-1", "f", "")]),
    (OWN, '<tool_call> {"arguments" : "{\\"a\\": 1}", "name":"f"} </tool_call>', "", [("call-1", "f", '{"a": 1}')]),
    (OWN, '<tool_call>{"name":"f","arguments":{ "a":1 }}</tool_call>', "", [("call-1", "f", '{ "a":1 }')]),
    (OWN, '<tool_call>{"name":"f","arguments":["</tool_call>"]}</tool_call>!', "!", [("call-1", "f", CLOSED)]),
    (OWN, '<tool_call>no <tool_call>{"name":"f"}</tool_call>', "<tool_call>no", [("call-1", "f", "")]),
    (OWN, 'A <tool_call>{"name":3}</tool_call> b', 'A <tool_call>{"name":3}</tool_call> b', []),
    (OWN, '<tool_call>{"name":"f", "arg', '<tool_call>{"name":"f", "arg', []),
    (OWN, '<tool_call>{"name":"f"}</tool_call> <tool_call>{"na', '<tool_call>{"na', [("call-1", "f", "")]),
    (MISTRALS, 'So. [TOOL_CALLS][{"name":"f","arguments":{},"id":"abcdefghi"}]', "So.", [("abcdefghi", "f", "{}")]),
    (MISTRALS, '[TOOL_CALLS] [{"name": "f"}, {"name": "g"}]', "", [("call-1", "f", ""), ("call-2", "g", "")]),
    (MISTRALS, '[TOOL_CALLS] [{"name": "f"}, 3]', '[TOOL_CALLS] [{"name": "f"}, 3]', []),
    (LLAMAS, ' {"type": "function", "name": "f", "parameters": {"a": 1}}\n', "", [("call-1", "f", '{"a": 1}')]),
    (LLAMAS, '{"name": "f", "parameters": {}} is it', '{"name": "f", "parameters": {}} is it', []),
    (LLAMAS, '{"name": "Ann", "parameters": 3, "age": 7}', '{"name": "Ann", "parameters": 3, "age": 7}', []),
    (LLAMAS, '{"name": "Ann"}', '{"name": "Ann"}', []),
]  # fmt: skip


@pytest.mark.parametrize(("notation", "text", "said", "calls"), READ, ids=[case[1][:30] for case in READ])
def test_how_answers_are_read(notation: Notation, text: str, said: str, calls: list[tuple[str, str, str]]) -> None:
    reader = CallReader(notation)
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


@pytest.mark.parametrize("notation", [OWN, HERMESS, MISTRALS, LLAMAS], ids=["own", "hermes", "mistral", "llama"])
def test_behind_a_mark_only_calls_that_follow_the_schemas_come(notation: Notation) -> None:
    grammar = call_grammar(OFFERED, notation)
    start = grammar.advance(grammar.start, notation.mark.encode())
    assert start is not None
    names, keys = set(), set()
    checked = json.loads(json.dumps(SCHEMA))  # without the two keywords that cannot be enforced
    del checked["properties"]["ab"]["minimum"], checked["properties"]["a"]["pattern"]
    for seed in range(120):
        data, state = notation.mark.encode(), start
        rng = random.Random(seed)
        while not state.complete and not (state.may_end and len(data) > len(notation.mark)):
            byte = rng.choice(sorted(state.firsts() - frozenset(range(0x80, 0x100))) or sorted(state.firsts()))
            # Ends are favoured, so that a walk comes to one.
            for end in b'"}]':
                if end in state.firsts() and rng.random() < 0.5:
                    byte = end
            data += bytes([byte])
            state = grammar.advance(state, bytes([byte])) or state
        reader = CallReader(notation)
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
    for notation in (OWN, MISTRALS, LLAMAS):
        grammar = call_grammar(OFFERED, notation)
        for text in ("", "the <tool", "[TOOL_CALL", '{"nam', '{"name": 3}', "<<tool_call", "é\n\x00"):
            state = grammar.advance(grammar.start, text.encode())
            assert state is not None
            assert state.may_end
            assert len(state.firsts()) == 256
    grammar = call_grammar(OFFERED, LLAMAS)
    for text in ('the {"name": "nobody"}', ' {"name": "nobody"}'):  # a call is the whole answer
        assert grammar.advance(grammar.start, text.encode()) is not None
    assert grammar.advance(grammar.start, b'{"name": "nobody') is None


def test_what_a_call_leaves_no_choice_about_is_forced() -> None:
    grammar = call_grammar(Toolbox([{"name": "get"}, {"name": "get_all"}]), OWN)
    state = grammar.advance(grammar.start, b"So <tool_call>")
    assert state is not None
    text, state = grammar.forced(state)
    assert text == b'{"name": "get'
    after = grammar.advance(state, b"_")
    assert after is not None
    assert grammar.forced(after)[0] == b'all", "arguments": {}}</tool_call>'
    again = grammar.advance(state, b'", "arguments": {}}</tool_call> and <tool_call>{"name": "get')
    assert again == state


@fixed
@given(st.integers(0, 10**6))
def test_no_state_of_a_grammar_of_calls_is_a_dead_end(seed: int) -> None:
    grammar = call_grammar(OFFERED, LLAMAS)
    start = grammar.advance(grammar.start, LLAMAS.mark.encode())
    rng = random.Random(seed)
    state = start
    for _ in range(300):
        assert state is not None
        if state.complete:
            break
        assert state.firsts()
        state = grammar.advance(state, bytes([rng.choice(sorted(state.firsts()))]))
