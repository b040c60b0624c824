"""Thoughts and answers: every way in which models mark their thoughts, and texts that only speak of such marks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from case_tables import case_table
from hypothesis import given
from hypothesis import strategies as st

from viva.agents.choices import read_choice
from viva.engine.backends.registry import build
from viva.engine.clock import RealClock
from viva.engine.errors import ConfigurationError
from viva.engine.messages import Completion, Request, Sampling, View
from viva.engine.permissions import grant
from viva.engine.thoughts import AnswerStream, ThoughtMarks, has_marks, join_thoughts, separate_thoughts, split_thoughts

HARMONY = "<|channel|>analysis<|message|>Is it B?<|end|><|start|>assistant<|channel|>final<|message|>C. It is."

CODE = 'Call\n```python\nre.sub(r"<think>.*?</think>", "", text)\n```\nand the thoughts are gone.'
TAGGED = "<thinking>\nIs it B?\n</thinking>\n<answer>C</answer>"

SPLITS = {
    "none": ("B. The moon.", "", "B. The moon."),
    "think": ("<think>Is it B?</think>\n\nC. It is.", "Is it B?", "C. It is."),
    "thinking": ("<thinking>\nIs it B?\n</thinking>C. It is.", "Is it B?", "C. It is."),
    "capitals": ("<THINK>Is it B?</THINK>C. It is.", "Is it B?", "C. It is."),
    "mistral": ("[THINK]Is it B?[/THINK]C. It is.", "Is it B?", "C. It is."),
    "seed": ("<seed:think>Is it B?</seed:think>C. It is.", "Is it B?", "C. It is."),
    "kimi": ("◁think▷Is it B?◁/think▷C. It is.", "Is it B?", "C. It is."),
    "harmony": (HARMONY, "Is it B?", "C. It is."),
    "harmony with its end": (HARMONY + "<|return|>", "Is it B?", "C. It is."),
    "harmony without thoughts": ("<|channel|>final<|message|>C. It is.", "", "C. It is."),
    "harmony cut in its analysis": ("<|channel|>analysis<|message|>Is it", "Is it", ""),
    "opened by the template": ("Is it B?\n</think>\n\nC. It is.", "Is it B?", "C. It is."),
    "closed twice": ("Is it B?</think>Or A?</think>C. It is.", "Is it B?\n\nOr A?", "C. It is."),
    "never closed": ("<think>Is it B? Or perhaps", "Is it B? Or perhaps", ""),
    "never closed, on a line of its own": ("Sure.\n  <think>Is it B?", "Is it B?", "Sure."),
    "empty thoughts": ("<think>\n\n</think>\n\nC. It is.", "", "C. It is."),
    "two": ("<think>B?</think>C,<think>or A?</think> it is.", "B?\n\nor A?", "C, it is."),
    "in the middle": ("So: <think>Is it B?</think>C. It is.", "Is it B?", "So: C. It is."),
    "quoted": ("Write `<think>` first.", "", "Write `<think>` first."),
    "a word about a tag": ("Models open a <think> tag to reason.", "", "Models open a <think> tag to reason."),
    "nothing": ("", "", ""),
    "code about tags": (CODE, "", CODE),
    "an example in code": (f"Like this:\n```\n{TAGGED}\n```", "", f"Like this:\n```\n{TAGGED}\n```"),
    "half an example": ("So:\n```\n<think>\n```\nopens.", "", "So:\n```\n<think>\n```\nopens."),
    "code in thoughts and answer": (
        f"<think>Draft:\n```\n{TAGGED}\n```\n</think>```\n{TAGGED}\n```",
        f"Draft:\n```\n{TAGGED}\n```",
        f"```\n{TAGGED}\n```",
    ),
    "code left open in thoughts": ("Draft:\n```\nf(</think>```\nf()\n```", "Draft:\n```\nf(", "```\nf()\n```"),
    "a comment of a verdict": ('{"comment": "leaks </think>"}', "", '{"comment": "leaks </think>"}'),
    "closed once more at the end": ("<think>Is it B?</think>C. It is.\n</think>", "Is it B?", "C. It is."),
}


@case_table(("text", "thoughts", "answer"), SPLITS.values(), ids=SPLITS.keys())
def test_line_1_thoughts_are_split_from_the_answer(text: str, thoughts: str, answer: str) -> None:
    assert split_thoughts(text) == (thoughts, answer)


def test_line_1_a_choice_is_read_from_the_answer_alone() -> None:
    choices = ("the sun", "the moon", "a star")
    assert read_choice("<think>The answer is C maybe</think>B. the moon", choices) == 1
    assert read_choice("The answer is A? No, the answer is B.</think>B.", choices) == 1
    assert read_choice("<think>The answer is B.", choices) is None


def test_line_1_thoughts_that_came_apart_are_kept_before_those_in_the_text() -> None:
    completion = Completion("<think>Or A?</think>C.", thoughts="Is it B?", pieces=[(True, [1, 2])])
    separate_thoughts(completion)
    assert (completion.text, completion.thoughts, completion.pieces) == ("C.", "Is it B?\n\nOr A?", None)
    plain = Completion("C.", pieces=[(True, [1, 2])])
    separate_thoughts(plain)
    assert plain == Completion("C.", pieces=[(True, [1, 2])])


@case_table("text", [text for text, thoughts, _ in SPLITS.values() if thoughts])
def test_line_1_thoughts_and_answer_shown_together_come_apart_again(text: str) -> None:
    completion = Completion(text)
    separate_thoughts(completion)
    assert split_thoughts(join_thoughts(completion)) == (completion.thoughts, completion.text)


words = st.text(st.characters(codec="utf-8", exclude_characters="<>[]◁▷`'\"“”‘’"), min_size=1).filter(
    lambda text: text.strip() == text
)
tags = st.sampled_from([("<think>", "</think>"), ("<thinking>", "</thinking>"), ("[THINK]", "[/THINK]")])


@given(tags, words, words, st.booleans())
def test_line_1_whatever_was_thought_and_said_comes_apart(
    tag: tuple[str, str], thought: str, said: str, opened: bool
) -> None:
    text = f"{tag[0] if opened else ''}{thought}{tag[1]}\n{said}"
    assert split_thoughts(text) == (thought, said)


@pytest.mark.parametrize("frame", ["%s", "\n```json\n%s\n```"])
def test_line_1_marks_within_a_json_answer_behind_thoughts_are_its_text(frame: str) -> None:
    answer = frame % '{"comment": "It ended with </think> and began <think> anew.", "score": 3}'
    assert split_thoughts(f"<think>A {{ here.</think>{answer}") == ("A { here.", answer.strip())
    assert split_thoughts(f"The template opened.</think>{answer}") == ("The template opened.", answer.strip())


class _Counted(str):
    """A text that counts the characters that are copied out of it."""

    copied = 0

    def __getitem__(self, key: Any) -> str:
        part = super().__getitem__(key)
        self.copied += len(part)
        return part


@case_table("unit", ["</think>", "</think>   ", "</think>{", "<think>{</think>", "```\n</think>"])
def test_line_16_repeated_marks_do_not_have_the_text_copied_for_each(unit: str) -> None:
    # 100,000 closing marks took 4 seconds, and four times as long where there were twice as many.
    text = _Counted(unit * 2_000 + "x")
    split_thoughts(text)
    assert text.copied < 20 * len(text)


@given(st.lists(st.sampled_from([*"ab \n<>|", "<think>", "</think>", "<|channel|>final<|message|>"])), st.data())
def test_line_1_splitting_twice_changes_nothing_more(parts: list[str], data: st.DataObject) -> None:
    _, answer = split_thoughts("".join(parts))
    if "<" not in answer:  # what is left may spell a new mark where a thought was taken out
        assert split_thoughts(answer) == ("", answer)


@case_table("size", [1, 3, 7, 1000])
@case_table(
    ("text", "heard"),
    [
        ("<think>user: hm</think>C. It is.", "C. It is."),
        (HARMONY, "C. It is."),
        ("a < b and c <b> d [1] too", "a < b and c <b> d [1] too"),
        ("plain", "plain"),
        ("Write `<think>` first,\nuser: why?", "Write `<think>` first,\nuser: why?"),
    ],
)
def test_line_1_a_detector_hears_the_answer_alone(text: str, heard: str, size: int) -> None:
    pieces: list[str] = []
    stream = AnswerStream(pieces.append)
    for start in range(0, len(text), size):
        stream.feed(text[start : start + size])
    said = "".join(pieces)
    # What may still become a mark is held back until more has come.
    assert heard.startswith(said)
    stream.feed("." * 400)
    assert "".join(pieces).startswith(heard)


KIN = {
    "thought": ("<thought>", "</thought>"),
    "reasoning": ("<reasoning>", "</reasoning>"),
    "analysis": ("<analysis>", "</analysis>"),
    "reflection": ("<reflection>", "</reflection>"),
    "scratchpad": ("<Scratchpad>", "</Scratchpad>"),
    "sky": ("<|begin_of_thought|>", "<|end_of_thought|>"),
    "cohere": ("<|START_THINKING|>", "<|END_THINKING|>"),
    "gemma": ("<unused94>thought", "<unused95>"),
    "gemma without its word": ("<unused94>", "<unused95>"),
    "longcat": ("<longcat_think>", "</longcat_think>"),
    "minimax": ("<mm:think>", "</mm:think>"),
    "apertus": ("<|inner_prefix|>", "<|inner_suffix|>"),
    "seed": ("<seed:think>", "</seed:think>"),
    "brackets": ("[THINKING]", "[/THINKING]"),
    "gemma 4": ("<|channel>thought", "<channel|>"),
    "gemma 4 with a channel for its answer": ("<|channel>thought", "<|channel>response"),
    "solar": ("<|think|>", "<|end|><|begin|>assistant<|content|>"),
    "claude": ("<antThinking>", "</antThinking>"),
    "a name of its own": ("<internal_reasoning>", "</internal_reasoning>"),
    "cot": ("<CoT>", "</CoT>"),
}


@case_table(("opening", "closing"), KIN.values(), ids=KIN.keys())
def test_thoughts_between_the_marks_of_every_family_are_no_answer(opening: str, closing: str) -> None:
    thought, said = "Is it B? The answer is B.", "C. It is."
    assert split_thoughts(f"{opening}\n{thought}\n{closing}\n\n{said}") == (thought, said)
    assert split_thoughts(f"{opening}{thought}{closing}{said}") == (thought, said)
    assert split_thoughts(f"{thought}\n{closing}\n\n{said}") == (thought, said)  # the template opened them
    assert split_thoughts(f"{opening}{thought} Or perhaps") == (f"{thought} Or perhaps", "")
    assert split_thoughts(f"Write `{opening}` first.") == ("", f"Write `{opening}` first.")
    for size in (1, 3, 1000):
        assert "".join(_heard(f"{opening}{thought}{closing}{said}", size)) == said
        assert "".join(_heard(f"{opening}{thought}", size)) == ""


@case_table(
    ("text", "thoughts", "answer"),
    [
        ("Here is my thought process: Is it B?\n\nHere is my response:\nC. It is.", "Is it B?", "C. It is."),
        ("Here's my thought process:\nIs it", "Is it", ""),
        ("analysisIs it B?assistantfinalC. It is.", "Is it B?", "C. It is."),
        ("analysis of it shows C.", "", "analysis of it shows C."),
        ("So: Here is my thought process: no. Here is my response: C.", "",
         "So: Here is my thought process: no. Here is my response: C."),
        ("<|START_THINKING|>B?<|END_THINKING|><|START_TEXT|>C.<|END_TEXT|>", "B?", "C."),
        ("<|channel>thought\nB?<channel|><|channel>final\nC.<channel|>", "B?", "C."),
        ("<|content|>C. It is.", "", "C. It is."),
        ("<think>B?</think><think>Or", "B?\n\nOr", ""),
        ("Write:\n~~~\n<think>x</think>\n~~~\nfirst.", "", "Write:\n~~~\n<think>x</think>\n~~~\nfirst."),
    ],
)  # fmt: skip
def test_thoughts_of_families_without_marks_of_their_own_and_what_frames_an_answer(
    text: str, thoughts: str, answer: str
) -> None:
    assert split_thoughts(text) == (thoughts, answer)
    completion = Completion(text)
    if has_marks(text):
        separate_thoughts(completion)
    assert completion.text == answer


def _heard(text: str, size: int, marks: ThoughtMarks | None = None) -> list[str]:
    pieces: list[str] = []
    stream = AnswerStream(pieces.append) if marks is None else AnswerStream(pieces.append, marks)
    for start in range(0, len(text), size):
        stream.feed(text[start : start + size])
    return pieces


LESSON = "An XML report has parts:\n<report>\n<analysis>It grows.</analysis>\n<reflection>Odd.</reflection>\n</report>"


@case_table(
    ("text", "thoughts", "answer"),
    [
        (LESSON, "", LESSON),
        ("So <reasoning>is a tag</reasoning> here.", "", "So <reasoning>is a tag</reasoning> here."),
        ("End it with </analysis> and go on.", "", "End it with </analysis> and go on."),
        ("<think>B?</think>\n<reflection>No, C.</reflection>\nC.", "B?\n\nNo, C.", "C."),
        ("<thinking>B?\n<reflection>No.</reflection>\nC!</thinking>\nC.", "B?\n<reflection>No.</reflection>\nC!", "C."),
        ("<reasoning>In <think> tags?</think> No.</reasoning>C.", "In <think> tags?</think> No.", "C."),
        ("<analysis>One.</analysis>\n<report>\n<analysis>Two.</analysis>\n</report>", "One.",
         "<report>\n<analysis>Two.</analysis>\n</report>"),
        ("<|begin_of_thought|>B?<|end_of_thought|>\n\n<|begin_of_solution|>C.<|end_of_solution|>", "B?", "C."),
        ("<|START_THINKING|>B?<|END_THINKING|><|START_RESPONSE|>C.<|END_RESPONSE|>", "B?", "C."),
        ("Write:\n```\n<analysis>\nx\n</analysis>\n```", "", "Write:\n```\n<analysis>\nx\n</analysis>\n```"),
        ('{"reasoning": "<analysis>B</analysis>", "verdict": "pass"}', "",
         '{"reasoning": "<analysis>B</analysis>", "verdict": "pass"}'),
    ],
)  # fmt: skip
def test_elements_that_are_part_of_an_answer_stay_in_it(text: str, thoughts: str, answer: str) -> None:
    assert split_thoughts(text) == (thoughts, answer)
    heard = "".join(_heard(text + "." * 400, 5))
    assert ("<analysis>" in answer) == ("<analysis>" in heard)


def test_a_mark_that_a_models_name_gives_holds_thoughts() -> None:
    marks = ThoughtMarks.from_option("«mull»...«/mull»")
    text = "«mull»Is it B?«/mull»<think>Or A?</think>C. It is."
    assert split_thoughts(text, marks) == ("Is it B?\n\nOr A?", "C. It is.")
    assert split_thoughts("Is it B?«/mull»C. It is.", marks) == ("Is it B?", "C. It is.")
    assert split_thoughts("«mull»Is it", marks) == ("Is it", "")
    assert split_thoughts(text) == ("Or A?", "«mull»Is it B?«/mull»C. It is.")
    assert "".join(_heard(text, 3, marks)) == "C. It is."


@case_table("option", ["", "<a>", "…", "<a>…", "…</a>", "<a>…<A>", "x" * 400 + "…y"])
def test_a_mark_that_cannot_be_told_from_text_is_refused_with_the_form(option: str) -> None:
    with pytest.raises(ConfigurationError, match=r"thoughts=.*such as <a>…</a>"):
        build(f"simulated:m?thoughts={option}", RealClock())


@pytest.mark.parametrize("retries", ["", "&retries=1"])
def test_every_kind_of_model_takes_a_mark_by_its_name(tmp_path: Path, retries: str) -> None:
    file = tmp_path / "says.py"
    file.write_text("def answer(messages):\n    return '<a>Is it B?</a>C. It is.'\n")
    grant(file)
    backend = build(f"python:{file}#answer?thoughts=<a>…</a>{retries}", RealClock())
    view = View()
    view.append("user", "Which?")
    completion = anyio.run(backend.generate, Request(view.messages, Sampling(), 1, b""))
    assert (completion.text, completion.thoughts) == ("C. It is.", "Is it B?")


@case_table(
    "text",
    ["<think >a</think >B", "<think>a</ think>B", "<|reasoning|>a<|/reasoning|>B", "<|think|>a<|end_think|>B"]
    + [f"<{name}>a</{name}>B" for name in ("chain-of-thought", "inner_thoughts", "inner-monologue", "reason")],
)
def test_marks_are_known_in_other_spellings(text: str) -> None:
    assert split_thoughts(text) == ("a", "B")
    said: list[str] = []
    stream = AnswerStream(said.append)
    for character in text:
        stream.feed(character)
    assert "a" not in "".join(said)
