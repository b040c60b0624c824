"""Thoughts and answers: every way in which models mark their thoughts, and texts that only speak of such marks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viva.agents.answers import read_choice
from viva.engine.messages import Completion
from viva.engine.thoughts import AnswerStream, separate_thoughts, split_thoughts, with_thoughts

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


@pytest.mark.parametrize(("text", "thoughts", "answer"), SPLITS.values(), ids=SPLITS.keys())
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


@pytest.mark.parametrize("text", [text for text, thoughts, _ in SPLITS.values() if thoughts])
def test_line_1_thoughts_and_answer_shown_together_come_apart_again(text: str) -> None:
    completion = Completion(text)
    separate_thoughts(completion)
    assert split_thoughts(with_thoughts(completion)) == (completion.thoughts, completion.text)


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


@pytest.mark.parametrize("unit", ["</think>", "</think>   ", "</think>{", "<think>{</think>", "```\n</think>"])
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


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
@pytest.mark.parametrize(
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
