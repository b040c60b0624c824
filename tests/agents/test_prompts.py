"""Prompt packs: the shipped one fits its protocol, a user's is checked by name, what is filled in is only text."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from case_tables import case_table
from hypothesis import given, settings
from hypothesis import strategies as st

from viva.agents.prompts import PromptPack, Template, load_pack, read_pack
from viva.engine.errors import ConfigurationError
from viva.scenarios.kieval.pack_templates import TEMPLATES

SMALL = {"judge.system": frozenset[str](), "judge.ask": frozenset({"question", "reply"})}


def write(folder: Path, text: str) -> str:
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def small(ask: str = "{question}", system: str = "Be fair.") -> str:
    return yaml.safe_dump({"name": "mine", "version": "2", "judge": {"system": system, "ask": ask}})


def test_the_shipped_pack_fits_its_protocol() -> None:
    pack = TEMPLATES.open("kieval")
    assert pack.name == "kieval"
    assert pack.version
    assert pack.templates.keys() >= TEMPLATES.needed.keys()
    for name, allowed in {**TEMPLATES.needed, **TEMPLATES.optional}.items():
        if name not in pack:
            continue
        rendered = pack.render(name, **{placeholder: f"<{placeholder}>" for placeholder in allowed})
        assert rendered == rendered.strip() != ""
        assert all(f"<{used}>" in rendered for used in pack.templates[name].placeholders)


def test_the_shipped_pack_shows_the_form_of_a_verdict_in_single_braces() -> None:
    system = TEMPLATES.open("kieval").render("evaluator.system")
    assert '{"accuracy": {"comment": "", "score": 0}' in system
    assert "{{" not in system


def test_a_copy_of_the_shipped_pack_works_as_a_file(tmp_path: Path) -> None:
    shipped = TEMPLATES.open("kieval")
    copied = TEMPLATES.open(write(tmp_path, shipped.text))
    assert (copied.name, copied.digest, copied.text) == (shipped.name, shipped.digest, shipped.text)
    changed = TEMPLATES.open(write(tmp_path, shipped.text.replace("oral examination", "viva")))
    assert changed.digest != shipped.digest


def test_a_shipped_pack_is_read_as_a_manifest_keeps_it(tmp_path: Path) -> None:
    shipped = TEMPLATES.open("kieval")
    again = TEMPLATES.open("kieval", shipped.text.replace("oral examination", "viva"))
    assert "viva" in again.render("evaluator.system")
    assert again.render("interactor.reply", reply="So be it.") == "So be it."
    # A file of the user's is read as it is now, so that a resumed run notices what has changed.
    assert TEMPLATES.open(write(tmp_path, shipped.text), again.text).digest == shipped.digest


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    assert load_pack(write(tmp_path, "\ufeff" + small()), SMALL).name == "mine"


@case_table(
    ("text", "named"),
    [
        (small(ask="Grade {anser}"), ["judge.ask", "{anser}", "{question}, {reply}"]),
        (small(system="Grade {reply}"), ["judge.system", "{reply}", "no placeholders"]),
        (small(ask="Grade {reply!r}"), ["judge.ask", "{reply}"]),
        (small(ask="Grade {reply:>9}"), ["judge.ask", "{reply}"]),
        (small(ask="Grade {reply.text}"), ["judge.ask", "{reply.text}"]),
        (small(ask="Grade {reply[0]}"), ["judge.ask", "{reply[0]}"]),
        (small(ask="Grade {}"), ["judge.ask", "{}"]),
        (small(ask="Grade {reply"), ["judge.ask"]),
        (small(ask="Grade reply}"), ["judge.ask"]),
        ("judge: {system: Be fair., ask: 7}", ["judge.ask", "expected text", "int"]),
        ("judge: {system: Be fair.}", ["lacks", "judge.ask"]),
        ("judge: {system: Be fair., ask: Well, asked: Well}", ["judge.asked", "unused"]),
        ("judge: {system: [", [":1:18: cannot be read: expected the node content"]),
        ("judge: \x07", [":1:8: cannot be read: the character U+0007"]),
        ("- judge", ["expected a mapping"]),
        ("", ["expected a mapping"]),
    ],
)
def test_what_is_wrong_with_a_pack_is_named(tmp_path: Path, text: str, named: list[str]) -> None:
    source = write(tmp_path, text)
    with pytest.raises(ConfigurationError) as caught:
        load_pack(source, SMALL)
    for part in (source, *named):
        assert part in str(caught.value)


def test_an_unknown_pack_names_the_shipped_ones(tmp_path: Path) -> None:
    for source in ("kievall", str(tmp_path / "none.yaml"), str(tmp_path)):
        with pytest.raises(ConfigurationError) as caught:
            load_pack(source, TEMPLATES.needed)
        assert source in str(caught.value)
        assert "shipped packs: assistants, " in str(caught.value)


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"\xff\xfe\x00name")
    with pytest.raises(ConfigurationError, match=r"mine\.yaml"):
        load_pack(str(path), SMALL)


def pack(ask: str) -> PromptPack:
    return read_pack(small(ask), "mine", SMALL)


def test_what_is_filled_in_is_not_read_as_a_template() -> None:
    filled = pack("Q: {question} A: {reply}").render("judge.ask", question="{reply} {{x}} {0}", reply="} {question")
    assert filled == "Q: {reply} {{x}} {0} A: } {question"


def test_doubled_braces_are_literal() -> None:
    assert (
        pack('{{"score": {reply}}} {{{question}}}').render("judge.ask", question="q", reply="3") == '{"score": 3} {q}'
    )
    assert pack("{{only}} {{braces}}").render("judge.ask") == "{only} {braces}"


@settings(deadline=None)
@given(st.text(), st.text(), st.text())
def test_any_text_goes_in_and_comes_out_unchanged(around: str, question: str, reply: str) -> None:
    literal = around.replace("{", "{{").replace("}", "}}")
    template = Template(f"{literal}{{question}}|{{reply}}{literal}")
    assert template.placeholders == {"question", "reply"}
    assert template.render({"question": question, "reply": reply}) == f"{around}{question}|{reply}{around}"
