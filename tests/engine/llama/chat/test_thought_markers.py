"""Thoughts of local models: marks stand in the text, the template's own too, and turns end where they do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

import pytest
from jsonschema import Draft202012Validator
from local_models import using
from real_templates import FAMILIES
from tiny_gguf import make_model

from viva.engine.backends.llama.backend import LlamaBackend
from viva.engine.backends.llama.chat_template import ChatFormat
from viva.engine.backends.llama.generation import Generation
from viva.engine.backends.llama.grammar import TokenMasks
from viva.engine.backends.llama.native import NativeModel
from viva.engine.backends.llama.sampler import SampledToken, SamplerSettings
from viva.engine.backends.llama.tool_prompts import ToolSupport
from viva.engine.messages import Completion, Message, Party, Request, Sampling
from viva.engine.thoughts import split_thoughts

T = TypeVar("T")
SCHEMA = {
    "type": "object",
    "properties": {"comment": {"type": "string", "maxLength": 20}, "score": {"enum": [1, 2, 3]}},
    "required": ["comment", "score"],
}


def family(folder: Path, name: str, *, bias: float = 0.0, **more: float) -> str:
    source, marks = FAMILIES[name]
    biases = {**dict.fromkeys(marks, bias), "</s>": 4.0}
    path = make_model(folder / f"{name}.gguf", template=source, marks=marks, biases=biases, **more)
    return f"llama:{path}?ctx=2048&threads=1&lanes=2"


def asked(*talk: tuple[Party, str], seed: int = 1, most: int = 24, **more: object) -> Request:
    messages = [Message(role, content) for role, content in talk]
    return Request(messages, Sampling(temperature=1.0, max_tokens=most, **more), seed, b"digest")  # type: ignore[arg-type]


def test_line_34_a_tag_that_the_template_wrote_begins_the_answer(tmp_path: Path) -> None:
    pieces: list[str] = []

    async def main(backend: LlamaBackend) -> tuple[Completion, Completion]:
        request = asked(("user", "the"))
        request.on_text = pieces.append
        return await backend.generate(request), await backend.generate(asked(("user", "the"), most=200, schema=SCHEMA))

    free, bound = using(family(tmp_path, "r1", quote_bias=3.0), main)
    assert free.text.startswith("<think>\n")
    assert pieces[0].startswith("<think>\n")
    assert "".join(pieces) == free.text
    Draft202012Validator(SCHEMA).validate(json.loads(bound.text))


def test_line_32_channels_stand_in_the_text_and_history_is_rendered_by_the_template(tmp_path: Path) -> None:
    async def main(backend: LlamaBackend) -> list[Completion]:
        made = [await backend.generate(asked(("user", "the"), seed=seed)) for seed in range(4)]
        made.append(await backend.generate(asked(("user", "the"), ("assistant", "an answer"), ("user", "of"))))
        return made

    made = using(family(tmp_path, "harmony", bias=6.0), main)
    assert any("<|channel|>" in completion.text for completion in made)
    assert any("<|end|>" in completion.text for completion in made)
    assert all("<|return|>" not in completion.text and "<|call|>" not in completion.text for completion in made)


@pytest.mark.parametrize("known", [["<|return|>", "<|call|>"], ["<|return|>"]], ids=["all", "without-call"])
def test_line_32_an_end_of_analysis_is_not_the_end_of_the_turn(tmp_path: Path, known: list[str]) -> None:
    """Also where llama.cpp takes ``<|end|>`` for an end of text, as it does without a token ``<|call|>``."""
    source, marks = FAMILIES["harmony"]
    marks = {
        mark: control for mark, control in marks.items() if mark not in ("<|return|>", "<|call|>") or mark in known
    }
    model = NativeModel(make_model(tmp_path / "harmony.gguf", layers=1, template=source, marks=marks))
    chat = ChatFormat(model)
    masks = TokenMasks(model.pieces, model.ends, model.controls)

    def said(text: str) -> Generation:
        made = Generation(
            model,
            masks,
            SamplerSettings(1),
            1000,
            token_bytes=chat.token_bytes,
            message_end_token=chat.message_end_token,
        )
        for token in model.tokenize(text, special=True).tolist():
            if made.finish is None:
                made.add_token(SampledToken(token, None, None))
        return made

    analysis = "<|channel|>analysis<|message|>the<|end|><|start|>assistant"
    final = "<|channel|>final<|message|>of"
    assert (said(analysis).finish, said(analysis).text()) == (None, analysis)
    for end in ("<|return|>", "<|end|>"):
        made = said(analysis + final + end + "and")
        assert (made.finish, made.text()) == ("stop", analysis + final)
    model.close()


def test_line_32_control_tokens_around_thoughts_are_spelt(tmp_path: Path) -> None:
    marks = dict.fromkeys(["<|START_THINKING|>", "<|END_THINKING|>", "[THINK]", "[/THINK]", "<|START_RESPONSE|>"], True)
    model = NativeModel(make_model(tmp_path / "control.gguf", layers=1, marks=marks))
    token_bytes = ChatFormat(model).token_bytes
    found = {mark: token_bytes[int(model.tokenize(mark, special=True)[0])] for mark in marks}
    assert list(found.values()) == [b"<think>", b"</think>", b"[THINK]", b"[/THINK]", b""]
    model.close()


def test_line_34_a_talk_goes_on_where_the_template_moves_the_system_message(tmp_path: Path) -> None:
    async def main(backend: LlamaBackend) -> list[Completion]:
        talk: list[tuple[Party, str]] = [("system", "the"), ("user", "of")]
        made = []
        for turn in range(3):
            made.append(await backend.generate(asked(*talk, seed=turn)))
            talk += [("assistant", made[-1].text or "x"), ("user", f"and {turn}")]
        return made

    assert len(using(family(tmp_path, "nemo"), main)) == 3


def test_line_39_a_verdict_of_a_model_that_rambles_ends(tmp_path: Path) -> None:
    """Its comments are held to their length, so its verdict is complete well within its tokens."""

    async def main(backend: LlamaBackend) -> list[Completion]:
        sampling = Sampling(temperature=1.0, max_tokens=200, schema=SCHEMA)
        return [
            await backend.generate(Request([Message("user", "the")], sampling, seed, b"digest")) for seed in range(4)
        ]

    for completion in using(family(tmp_path, "qwen", quote_bias=-40.0), main):
        assert completion.finish == "stop"
        Draft202012Validator(SCHEMA).validate(json.loads(completion.text))
        assert len(json.loads(completion.text)["comment"]) == 20


def test_line_32_a_call_that_is_only_thought_of_is_no_call(tmp_path: Path) -> None:
    model = NativeModel(make_model(tmp_path / "calls.gguf", layers=1))
    use = ToolSupport(model, ChatFormat(model), TokenMasks(model.pieces, model.ends, model.controls))
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    thought = f"<think>\nI might write {call} now.\n</think>\n\n"
    assert use.read(f"{thought}Done.") == (f"{thought}Done.", None)
    assert use.read(f"<think>\n{call}") == (f"<think>\n{call}", None)
    words, calls = use.read(f"{thought}Done. {call}")
    assert (words, [one.name for one in calls or []]) == (f"{thought}Done.", ["f"])
    assert use.read(f"Done. {call}")[0] == "Done."
    empty = "<think>\n\n</think>\n\n"
    assert use.read(f"{empty}Done.") == (f"{empty}Done.", None)  # so the answer's own tokens, with marks, are not taken
    for answer in (f"Let me see.\n<think>a\n</think>\n{call}", f"<think>a</think>{call}\n<think>{call}</think>{call}"):
        words, calls = use.read(answer)
        assert len(calls or []) == answer.count(call) - answer.count(f"<think>{call}")
        thoughts, said = split_thoughts(words)
        assert said == ("Let me see." if "Let" in answer else "")
        assert thoughts == ("a" if "Let" in answer else f"a\n\n{call}")
    model.close()
