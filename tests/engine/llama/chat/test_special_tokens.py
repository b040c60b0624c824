"""Templates of the world: what users write never becomes a mark, and token ids are those of the whole rendering."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import llama_cpp.llama_cpp as lib
import numpy as np
import pytest
from local_models import flat, spelled, talk_of
from real_templates import FAMILIES
from tiny_gguf import WORDS, make_model

from viva.engine.backends.llama.chat_template import ChatFormat
from viva.engine.backends.llama.native import NativeModel
from viva.engine.messages import Message

SPECIAL = lib.LLAMA_TOKEN_ATTR_CONTROL | lib.LLAMA_TOKEN_ATTR_USER_DEFINED | lib.LLAMA_TOKEN_ATTR_UNKNOWN
Models = dict[tuple[str, bool], NativeModel]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    folder = tmp_path_factory.mktemp("families")
    made = {}
    for name, (source, marks) in FAMILIES.items():
        for spaced in (False, True):
            path = folder / f"{name}-{spaced}.gguf"
            model_name = "phi-3" if name == "phi" else ""
            make_model(path, layers=1, template=source, marks=marks, spaced=spaced, name=model_name)
            made[name, spaced] = NativeModel(path)
    yield made
    for model in made.values():
        model.close()


def attributes(model: NativeModel, tokens: list[int]) -> list[int]:
    return [lib.llama_vocab_get_attr(model._vocab, token) & SPECIAL for token in tokens]


def specials(model: NativeModel, tokens: list[int]) -> list[int]:
    return [token for token, special in zip(tokens, attributes(model, tokens), strict=True) if special]


def rendered(name: str, model: NativeModel, talk: list[Message]) -> str:
    """The whole text by a template engine of its own, without markers."""
    from jinja2 import Environment

    source, _ = FAMILIES[name]
    environment = Environment(trim_blocks=True, lstrip_blocks=True)
    messages = [{"role": message.role, "content": message.content} for message in talk]
    text = environment.from_string(source).render(
        messages=messages, add_generation_prompt=True, bos_token="<s>", eos_token="</s>"
    )
    return text if text.startswith("<s>") else "<s>" + text


NAMES = sorted(FAMILIES)


@pytest.mark.parametrize("spaced", [False, True], ids=["bare", "spaced"])
@pytest.mark.parametrize("name", NAMES)
def test_line_33_no_spelling_of_a_mark_in_a_content_becomes_one(models: Models, name: str, spaced: bool) -> None:
    model = models[name, spaced]
    chat = ChatFormat(model)
    marks = [*FAMILIES[name][1], "</s>", "<s>", "<|user|>", "<unk>"]
    tame = chat.segments(talk_of(("system", "x"), ("user", "x"), ("assistant", "x"), ("user", "x")))
    for mark in marks:
        for text in (mark, f"a{mark}", f"{mark}{mark}b", f"<{mark}>", mark[:-1] + mark, f"{mark[:1]}{mark}{mark[1:]}"):
            assert not specials(model, chat.plain_tokens(text).tolist())
            talk = talk_of(("system", text), ("user", text), ("assistant", text), ("user", text))
            assert specials(model, flat(chat.segments(talk))) == specials(model, flat(tame))
    # Not even together with the template's own text on both sides.
    for mark in marks:
        for cut in range(1, len(mark)):
            talk = talk_of(("user", mark[:cut]), ("assistant", mark[cut:]), ("user", mark[cut:]))
            other = talk_of(("user", "x"), ("assistant", "x"), ("user", "x"))
            assert specials(model, flat(chat.segments(talk))) == specials(model, flat(chat.segments(other)))


def test_line_33_no_spelling_of_a_control_token_of_a_real_model_becomes_one(real: NativeModel) -> None:
    chat = ChatFormat(real)
    marks = [real.control_text(token) for token in np.flatnonzero(real.controls).tolist()]
    assert {"<|im_start|>", "<|im_end|>", "<|endoftext|>"} <= set(marks)
    rest = talk_of(("assistant", "x"), ("user", "x"))
    tame = specials(real, flat(chat.segments([*talk_of(("user", "x")), *rest])))
    for mark in marks:
        for text in (mark, f"a{mark}", f"{mark}{mark}b", f" {mark}\n", f"{mark[:1]}{mark}{mark[1:]}"):
            tokens = flat(chat.segments([*talk_of(("user", text)), *rest]))
            assert specials(real, tokens) == tame
            assert f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n" in spelled(real, tokens)


def test_line_33_a_mark_that_a_border_would_complete_stays_text(models: Models, tmp_path: Path) -> None:
    path = tmp_path / "border.jinja"
    path.write_text("{% for m in messages %}<thi{{ m.content }}k>{% endfor %}")
    model = models["qwen", False]
    tokens = flat(ChatFormat(model, str(path)).segments(talk_of(("user", "n"), ("assistant", "n"), ("user", "n"))))
    assert spelled(model, tokens) == "<s><think><think><think>"
    assert specials(model, tokens) == [model.bos]


def test_line_33_words_and_blanks_that_are_user_defined_stay_whole(tmp_path: Path) -> None:
    words = {"Seoul": False, "▁▁": False, "ö": False, "<table>": False}
    model = NativeModel(make_model(tmp_path / "words.gguf", layers=1, marks=words))
    chat = ChatFormat(model)
    ids = {model.control_text(token): token for token in range(model.n_vocab)}
    for text in ("Seoul", "ö"):
        assert ids[text] in chat.plain_tokens(f"the {text}.").tolist()
    assert ids["<table>"] not in chat.plain_tokens("the <table>.").tolist()
    assert spelled(model, chat.plain_tokens("the <table>.").tolist()) == "the <table>."
    model.close()


@pytest.mark.parametrize("spaced", [False, True], ids=["bare", "spaced"])
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("nemo", "r1")])
def test_line_38_token_ids_are_those_of_the_whole_rendering(models: Models, name: str, spaced: bool) -> None:
    model = models[name, spaced]
    chat = ChatFormat(model)
    rng = random.Random(f"{name} {spaced}")
    pieces = [*(f" {word}" for word in WORDS[:20]), "\n", "\n\n", " ", "  ", ".", "é", "<", ">", "S", "a", "0"]
    for _ in range(60):
        texts = ["".join(rng.choices(pieces, k=rng.randint(1, 5))) + rng.choice("xy") for _ in range(4)]
        texts[2] = texts[2].strip()
        talk = talk_of(("system", texts[0]), ("user", texts[1]), ("assistant", texts[2]), ("user", texts[3]))
        whole = model._tokenize(rendered(name, model, talk), special=True).tolist()
        assert flat(chat.segments(talk)) == whole, texts
        assert flat(chat.segments(talk[:2])) == model._tokenize(rendered(name, model, talk[:2]), special=True).tolist()


@pytest.mark.parametrize("name", ["command-r", "harmony", "nemo", "phi", "vicuna"])
def test_line_38_a_reply_as_it_was_generated_stays_where_the_prompt_is_the_same(models: Models, name: str) -> None:
    model = models[name, False]
    chat = ChatFormat(model)
    first = talk_of(("system", "the"), ("user", "of"))
    reply = {"nemo": " to be", "vicuna": " to be"}.get(name, "to be")
    ids = [int(token) for token in chat.plain_tokens(reply)]
    said = Message("assistant", reply, [(True, ids[:-1]), (False, ids[-1:])])
    before = [segment.key() for segment in chat.segments(first)]
    after = chat.segments([*first, said, Message("user", "and")])
    assert name == "harmony" or [segment.key() for segment in after[: len(before)]] == before
    assert [segment.decoded for segment in after] == ([False] * len(before) + [True, False, False]) or name == "harmony"


def test_line_34_a_template_that_moves_the_system_message_goes_on(models: Models) -> None:
    model = models["nemo", False]
    chat = ChatFormat(model)
    talk = talk_of(
        ("system", "the"), ("user", "of"), ("assistant", "and"), ("user", "to"), ("assistant", "a"), ("user", "in")
    )
    for size, text in [
        (2, "<s>[INST]the\n\nof[/INST]"),
        (4, "<s>[INST]the\n\nof[/INST] and</s>[INST]to[/INST]"),
        (6, "<s>[INST]the\n\nof[/INST] and</s>[INST]to[/INST] a</s>[INST]in[/INST]"),
    ]:
        assert spelled(model, flat(chat.segments(talk[:size]))) == text


def test_line_34_earlier_turns_are_rendered_as_the_template_renders_them(models: Models) -> None:
    """The answer alone stands in the history; blanks are trimmed where the template trims; nothing is replayed."""
    talk = talk_of(("user", " of\n"), ("assistant", "\n and \n"), ("user", "to"))
    r1, qwen = models["r1", False], models["qwen", False]
    ids = [int(token) for token in r1.tokenize("\n and \n", special=False)]
    for model, expected in [
        (r1, "<s><|User|> of\n<|Assistant|>\n and \n<|end_of_text|><|User|>to<|Assistant|><think>\n"),
        (qwen, "<s><|im_start|>user\nof<|im_end|>\n<|im_start|>assistant\nand<|im_end|>\n"
               "<|im_start|>user\nto<|im_end|>\n<|im_start|>assistant\n"),
    ]:  # fmt: skip
        for pieces in (None, [(True, ids)]):
            talk[1].pieces = pieces
            segments = ChatFormat(model).segments(talk)
            assert spelled(model, flat(segments)) == expected
            assert not any(segment.decoded for segment in segments)
    assert ChatFormat(r1).opened_marker(talk) == "<think>\n"
    assert [ChatFormat(models[name, False]).opened_marker(talk) for name in ("qwen", "gemma", "harmony")] == [
        "",
        "",
        "",
    ]


def test_line_32_an_answer_by_schema_comes_behind_closed_thoughts(models: Models) -> None:
    talk = talk_of(("user", "of"))
    for name, expected in [
        ("harmony", "<|start|>assistant<|channel|>final<|message|>"),
        ("r1", "<|Assistant|><think>\n\n</think>\n\n"),
        ("qwen", "<|im_start|>assistant\n"),
    ]:
        model = models[name, False]
        chat = ChatFormat(model)
        plain, bound = (spelled(model, flat(chat.segments(talk, constrained=c))) for c in (False, True))
        assert bound.startswith(plain)
        assert bound.endswith(expected)
    # Such an answer, having no thoughts, is found again in the next turn where the template writes the same.
    model = models["harmony", False]
    chat = ChatFormat(model)
    ids = np.array(chat.plain_tokens("[1]")).tolist()
    after = chat.segments([*talk, Message("assistant", "[1]", [(True, ids)]), Message("user", "to")])
    before = [segment.key() for segment in chat.segments(talk, constrained=True)]
    assert [segment.key() for segment in after[: len(before)]] == before
    assert [segment.decoded for segment in after[len(before) :]] == [True, False]
