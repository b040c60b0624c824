"""What a grader sees of a question: texts as safe HTML, answers by position, labels with their keys, and nothing else.

Grading is blind: names of candidates, keys and scores of conversations, and the ids of answers, which follow from
names, are not among what pages are made from. What never belongs here: whose turn it is, and what was graded.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from viva.orchestration.grading.records import Label, Question, Said

from ..people.markdown import ModelText, model_text

_KEPT = 256  # rendered questions
_EXCERPT = 120  # characters of a question in a list
_LONG_CONTEXT = 3  # turns before the question; more are folded


@dataclass(slots=True, frozen=True)
class ShownLabel:
    """A grade that may be given; ``key`` gives it, empty where there are more grades than digits."""

    value: float
    name: str
    meaning: str
    key: str


@dataclass(slots=True, frozen=True)
class ShownTurn:
    """Who said something, and what."""

    role: str
    text: ModelText


@dataclass(slots=True, frozen=True)
class ShownAnswer:
    """The answer at a position."""

    position: int
    turns: tuple[ShownTurn, ...]


@dataclass(slots=True, frozen=True)
class ShownQuestion:
    """A page's content; it is the same for everybody."""

    number: int
    dimension: tuple[str, ...]
    context: tuple[ShownTurn, ...]
    fold_context: bool
    text: ModelText
    standard_answer: ModelText | None
    principle: ModelText | None
    labels: tuple[ShownLabel, ...]
    answers: tuple[ShownAnswer, ...]


class ShownQuestions:
    """Questions as they are shown, the last ones kept: making HTML of long answers takes a while."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[int, bool], ShownQuestion] = OrderedDict()

    async def of(self, question: Question, *, plain: bool = False) -> ShownQuestion:
        """This question; ``plain``: all texts as they were written. Longer work is done beside the event loop."""
        key = question.number, plain
        found = self._known.get(key)
        if found is None:
            found = await asyncio.to_thread(shown, question, plain=plain)
            self._known[key] = found
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        return found


def shown(question: Question, *, plain: bool = False) -> ShownQuestion:
    """What is shown of a question."""
    return ShownQuestion(
        question.number,
        tuple(part for part in question.dimension.split("/") if part),
        _turns(question.context, plain),
        len(question.context) > _LONG_CONTEXT,
        model_text(question.text, plain=plain),
        model_text(question.standard_answer, plain=plain) if question.standard_answer else None,
        model_text(question.principle, plain=plain) if question.principle else None,
        shown_labels(question.labels),
        tuple(ShownAnswer(answer.position, _turns(answer.turns, plain)) for answer in question.answers),
    )


def shown_labels(labels: Sequence[Label]) -> tuple[ShownLabel, ...]:
    """The labels with their keys: the digit that a grade is, else the digits from 1 on in order."""
    digits = [f"{label.value:g}" for label in labels]
    if not all(len(digit) == 1 for digit in digits):
        digits = [str(place) if place < 10 else "" for place in range(1, len(labels) + 1)]
    return tuple(
        ShownLabel(label.value, f"{label.value:g}", label.meaning, key)
        for label, key in zip(labels, digits, strict=True)
    )


def _turns(said: Sequence[Said], plain: bool) -> tuple[ShownTurn, ...]:
    return tuple(ShownTurn(one.role, model_text(one.text, plain=plain)) for one in said)


def excerpt(text: str) -> str:
    """The beginning of a text on one line, for lists."""
    line = " ".join(text[: 4 * _EXCERPT].split())
    return line[:_EXCERPT] + "…" if len(line) > _EXCERPT else line
