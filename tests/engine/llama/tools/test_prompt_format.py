"""Talks with tools on a real vocabulary: written as by the templates, only growing, nobody's text as control tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment
from local_models import flat, spelled, template
from tiny_gguf import CHAT_TEMPLATE, make_model
from tool_templates import HERMES, LLAMA, MISTRAL
from tool_texts import HERMESS, LLAMAS, MISTRALS, arguments, wild

from viva.engine.backends.llama.chat_template import ChatFormat
from viva.engine.backends.llama.native import NativeModel, Segment
from viva.engine.backends.llama.tool_calls import HERMES as HERMES_SYNTAX
from viva.engine.backends.llama.tool_calls import CallSyntax
from viva.engine.backends.llama.tool_prompts import ToolPromptFormat
from viva.engine.errors import Rejected
from viva.engine.messages import Message
from viva.engine.tools import Toolbox, ToolCall

fixed = settings(deadline=None, derandomize=True, max_examples=30)
TOOLS = Toolbox(
    [
        {"name": "time", "description": "The </s> time.", "parameters": {"properties": {"zone": {"type": "string"}}}},
        {
            "name": "times",
            "parameters": {"properties": {"<|user|>": {"type": "string", "description": "\ue0001\ue001"}}},
        },
    ]
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NativeModel]:
    path = tmp_path_factory.mktemp("talks") / "tiny.gguf"
    model = NativeModel(make_model(path, marks={"<tool_call>": False, "[TOOL_CALLS]": True}))
    yield model
    model.close()


def talk_with(model: NativeModel, folder: Path, source: str) -> ToolPromptFormat:
    return ToolPromptFormat(ChatFormat(model, template(folder, source)))


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
    ("source", "syntax"),
    [(HERMES, HERMESS), (LLAMA, LLAMAS), (MISTRAL, MISTRALS)],
    ids=["hermes", "llama", "mistral"],
)
@fixed
@given(st.lists(wild, min_size=6, max_size=6), st.lists(arguments, min_size=3, max_size=3), st.booleans())
def test_a_talk_is_written_as_the_template_writes_it(
    model: NativeModel,
    tmp_path_factory: pytest.TempPathFactory,
    source: str,
    syntax: CallSyntax,
    texts: list[str],
    given: list[str],
    offered: bool,
) -> None:
    written = talk_with(model, tmp_path_factory.getbasetemp(), source)
    assert (written.native, written.syntax) == (True, syntax)
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
    assert (written.native, written.syntax) == (False, HERMES_SYNTAX)
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
    "unknown syntax": "{{ tools }}{% for m in messages %}{{ m.content }}"
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
def test_templates_whose_calls_could_not_be_read_get_the_own_syntax(
    model: NativeModel, tmp_path: Path, source: str
) -> None:
    assert talk_with(model, tmp_path, source).syntax == HERMES_SYNTAX


def test_a_template_of_its_own_for_tools_is_taken(tmp_path: Path) -> None:
    path = make_model(tmp_path / "two.gguf", tool_template=HERMES)
    model = NativeModel(path)
    assert ToolPromptFormat(ChatFormat(model)).syntax == HERMESS
    assert ToolPromptFormat(ChatFormat(model, "chatml")).syntax == HERMES_SYNTAX
    model.close()


def test_calls_that_a_template_refuses_are_refused_by_name(model: NativeModel, tmp_path: Path) -> None:
    written = talk_with(model, tmp_path, LLAMA)
    calls = (ToolCall("a", "time", "{}"), ToolCall("b", "time", "{}"))
    with pytest.raises(Rejected, match="refuses the roles user assistant: one call at a time"):
        written.segments([Message("user", "of"), Message("assistant", "", calls=calls)], TOOLS)
