"""Benchmark items, and checked access to the fields of the raw records that they are made of.

An item is a question with choices or with a free answer, and the id that published lists know it by. A field
that is missing or wrong raises ``FieldError``, which says which field, what was found and what was expected.
"""

from __future__ import annotations

import hashlib
import json
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

FREE_ANSWER = -1  # the place of the right answer of a question without choices


@dataclass(slots=True)
class Item:
    """``answer`` is an index into ``choices``; ``id`` is unique in its dataset and stable across files.

    A question without choices has a free answer: ``choices`` is empty, ``answer`` is ``FREE_ANSWER``, and
    ``reference`` is the
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
        return "\n".join(f"{choice_letter(index)}. {choice}" for index, choice in enumerate(self.choices))

    def labelled_choice(self, index: int) -> str:
        """One choice with its letter: ``B. the moon``."""
        return f"{choice_letter(index)}. {self.choices[index]}"

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


def format_item(item: Item) -> str:
    """An item as transcripts show it: question, choices, and which is right; or the reference answer."""
    if item.free:
        return f"{item.question}\n(reference answer: {item.reference})"
    return f"{item.question}\n{item.labelled_choices()}\n(correct: {choice_letter(item.answer)})"


def choice_letter(index: int) -> str:
    """0 is A, 1 is B, …"""
    return chr(65 + index)


def content_id(question: str, choices: Sequence[str], answer: int, extra: Mapping[str, Any] | None) -> str:
    """The item's id in the validated lists of Yu et al. (2024): a hash of its content and of ``extra``."""
    text = f"{question}$choices${';'.join(choices)}$ans${answer}$perm$None$ex${json.dumps(extra)}"
    return urlsafe_b64encode(hashlib.md5(text.encode(), usedforsecurity=False).digest()).decode().rstrip("=")


Raw = Mapping[str, Any]

MAX_CHOICES = 26


class FieldError(Exception):
    """A raw record is not an item: which field, what was found, what was expected."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class CaseInsensitiveRecord(Mapping[str, Any]):
    """A raw record whose fields are found in upper and lower case alike: ``Question`` is ``question``.

    A field of exactly the wanted name goes before all others.
    """

    __slots__ = ("_raw",)

    def __init__(self, raw: Raw) -> None:
        self._raw = raw

    def __getitem__(self, name: str) -> Any:
        """:raises KeyError: there is no such field; :raises FieldError: several differ in their case alone."""
        if name in self._raw:
            return self._raw[name]
        names = _lower_case_names(tuple(self._raw))[name.casefold()]
        if len(names) > 1:
            raise FieldError(name, f"stands there more than once: {', '.join(names)}")
        return self._raw[names[0]]

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default

    def __contains__(self, name: object) -> bool:
        return name in self._raw or (isinstance(name, str) and name.casefold() in _lower_case_names(tuple(self._raw)))

    def __iter__(self) -> Iterator[str]:
        return iter(self._raw)

    def __len__(self) -> int:
        return len(self._raw)


@lru_cache(maxsize=64)
def _lower_case_names(names: tuple[str, ...]) -> dict[str, list[str]]:
    """A record's field names by what they are in lower case; the records of a file mostly have the same names."""
    names_by_lower_case: dict[str, list[str]] = {}
    for name in names:
        names_by_lower_case.setdefault(str(name).strip().casefold(), []).append(name)
    return names_by_lower_case


def text_field(raw: Raw, name: str, within: str = "") -> str:
    """A field that must hold text; ``within`` is the path of the object it stands in, for errors.

    :raises FieldError: it is missing, empty or of another type, or holds a NUL character.
    """
    value = raw.get(name)
    if value is None:
        raise FieldError(within + name, "is missing")
    if not isinstance(value, str) or not value.strip():
        raise FieldError(within + name, f"expected text, found {preview(value)}")
    return _printable(value, within + name)


def record_id(raw: Raw, name: str) -> str | None:
    """Return the id that a record gives itself, None without one; ``FieldError`` for what is no id."""
    value = raw.get(name)
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise FieldError(name, f"expected text or a whole number, found {preview(value)}")
    return _printable(str(value), name)


def optional_text(raw: Raw, name: str) -> str:
    """Return a field's text, a number as it is written, "" without one; ``FieldError`` for anything else."""
    value = raw.get(name)
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise FieldError(name, f"expected text, found {preview(value)}")
    return _printable(str(value), name)


def choice_list(values: Any, field: str) -> list[str]:
    """Return the texts of two to 26 choices, or raise ``FieldError``."""
    if not isinstance(values, list) or not all(isinstance(value, str) and value.strip() for value in values):
        raise FieldError(field, f"expected a list of texts, none of them empty, found {preview(values)}")
    if not 2 <= len(values) <= MAX_CHOICES:
        raise FieldError(field, f"expected 2 to {MAX_CHOICES} choices, found {len(values)}")
    return [_printable(value, field) for value in values]


def answer_index(answer: Any, labels: Sequence[str], field: str) -> int:
    """Return the position of the answer's label among the choices' labels, or raise ``FieldError``."""
    if answer is None:
        raise FieldError(field, "is missing")
    label = str(answer).strip()
    if label not in labels:
        raise FieldError(field, f"the answer {preview(answer)} is not among the choices ({', '.join(labels)})")
    return labels.index(label)


def numeric_answer(answer: Any, count: int, field: str, choices: Sequence[str] = ()) -> int | None:
    """The 0-based place that an answer gives as a whole number or as digits, None where it is no such thing.

    ``choices``: their texts, in forms where an answer may also be given as a letter.

    :raises FieldError: there is no choice at that place, or the digits are the text of a choice at another one.
    """
    if isinstance(answer, str) and answer.strip().isascii() and answer.strip().isdigit():  # CSV knows only text
        _reject_choice_text(answer.strip(), choices, field)
        answer = int(answer)
    if not isinstance(answer, int) or isinstance(answer, bool):
        return None
    if not 0 <= answer < count:
        raise FieldError(field, f"the answer {answer} is not among the choices (0 to {count - 1})")
    return answer


def duplicate_choices(choices: Sequence[str]) -> list[list[int]]:
    """The places of choices with the same text, apart from white space around it; none as a rule."""
    if len(set(map(str.strip, choices))) == len(choices):
        return []
    indices: dict[str, list[int]] = {}
    for index, choice in enumerate(choices):
        indices.setdefault(choice.strip(), []).append(index)
    return [several for several in indices.values() if len(several) > 1]


def _reject_choice_text(digits: str, choices: Sequence[str], field: str) -> None:
    """Refuse digits that are the text of a choice, unless they number that very choice."""
    matches = [index for index, choice in enumerate(choices) if choice.strip() == digits]
    index = int(digits) if len(digits) < 3 else len(choices)
    if not matches or matches == [index]:
        return
    choice_names = f"the choice {' or '.join(map(choice_letter, matches))}"
    if index in matches:
        problem = f"may mean {choice_names}, which are equal"
    elif index < len(choices):
        problem = (
            f"may mean {choice_names} or, counted from 0, the choice {choice_letter(index)} ({preview(choices[index])})"
        )
    else:
        problem = f"is the text of {choice_names}"
    raise FieldError(field, f"'{digits}' {problem}: write the letter")


def preview(value: Any) -> str:
    """A value as it may stand in an error message: at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _printable(value: str, field: str) -> str:
    if "\0" in value:
        raise FieldError(field, f"holds a NUL character: {preview(value)}")
    return value
