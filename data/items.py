"""A benchmark item: a question with choices or with a free answer, and the id that published lists know it by.

What never belongs here: file formats (``forms``) and what is done with an item.
"""

from __future__ import annotations

import hashlib
import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FREE = -1  # the place of the right answer of a question without choices


@dataclass(slots=True)
class Item:
    """``answer`` is an index into ``choices``; ``id`` is unique in its dataset and stable across files.

    A question without choices has a free answer: ``choices`` is empty, ``answer`` is ``FREE``, and ``reference`` is the
    text of the right answer. ``passage`` names the text that several questions are about; it is shown to no model.
    """

    id: str
    question: str
    choices: list[str]
    answer: int
    subject: str = ""
    passage: str = ""
    reference: str = ""

    @property
    def free(self) -> bool:
        """Whether the question is answered freely, without choices."""
        return not self.choices

    @property
    def right_text(self) -> str:
        """The text of the right answer: of the right choice, or the reference."""
        return self.choices[self.answer] if self.choices else self.reference

    def cluster(self, field: str | None = None) -> str:
        """Return what the item shares with others that are not independent of it: its ``field``, else its passage."""
        return str(getattr(self, field) if field else "") or self.passage

    def labelled_choices(self) -> str:
        """The choices as lines ``A. …``, as every prompt shows them; empty where there are none."""
        return "\n".join(f"{letter(index)}. {choice}" for index, choice in enumerate(self.choices))

    def labelled_choice(self, index: int) -> str:
        """One choice with its letter: ``B. the moon``."""
        return f"{letter(index)}. {self.choices[index]}"

    def labelled_answer(self) -> str:
        """The correct choice with its letter, or the reference."""
        return self.labelled_choice(self.answer) if self.choices else self.reference

    def to_record(self) -> dict[str, Any]:
        """Plain data for the journal; ``Item(**record)`` is the item again."""
        return {
            "id": self.id,
            "question": self.question,
            "choices": self.choices,
            "answer": self.answer,
            "subject": self.subject,
            **({"passage": self.passage} if self.passage else {}),
            **({"reference": self.reference} if self.reference else {}),
        }


def shown_item(item: Item) -> str:
    """An item as transcripts show it: question, choices, and which is right; or the reference answer."""
    if item.free:
        return f"{item.question}\n(reference answer: {item.reference})"
    return f"{item.question}\n{item.labelled_choices()}\n(correct: {letter(item.answer)})"


def letter(index: int) -> str:
    """0 is A, 1 is B, …"""
    return chr(65 + index)


def content_id(question: str, choices: Sequence[str], answer: int, extra: Mapping[str, Any] | None) -> str:
    """The item's id in the validated lists of Yu et al. (2024): a hash of its content and of ``extra``."""
    text = f"{question}$choices${';'.join(choices)}$ans${answer}$perm$None$ex${json.dumps(extra)}"
    return urlsafe_b64encode(hashlib.md5(text.encode(), usedforsecurity=False).digest()).decode().rstrip("=")
