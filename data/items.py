"""Benchmark items, and checked access to the fields of raw records.

An item is a question with choices or with a free answer, and its id in published lists. A missing or wrong field raises
`FieldError`, which says which field, what was found and what was expected.
"""

from __future__ import annotations

import hashlib
import json
import re
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

FREE_ANSWER = -1  # `answer` of a question without choices


@dataclass(slots=True)
class Item:
    """A benchmark item. `answer` is an index into `choices`; `id` is unique in its dataset and stable across files.

    A question without choices has a free answer: `choices` is empty, `answer` is `FREE_ANSWER`, and `reference` is the
    text of the right answer. `passage` names the text that several questions are about; no model sees it.
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
        """True if the question has a free answer instead of choices."""
        return not self.choices

    @property
    def right_text(self) -> str:
        """Text of the right answer: the right choice, or the reference."""
        return self.choices[self.answer] if self.choices else self.reference

    def cluster(self, field: str | None = None) -> str:
        """Return the value that dependent items share: that of `field`, or the passage if it is empty or None."""
        return str(getattr(self, field) if field else "") or self.passage

    def labelled_choices(self) -> str:
        """Return the choices as lines `A. …`, as in every prompt; "" if there are none."""
        return "\n".join(f"{choice_letter(index)}. {choice}" for index, choice in enumerate(self.choices))

    def labelled_choice(self, index: int) -> str:
        """Return one choice with its letter: `B. the moon`."""
        return f"{choice_letter(index)}. {self.choices[index]}"

    def labelled_answer(self) -> str:
        """Return the correct choice with its letter, or the reference."""
        return self.labelled_choice(self.answer) if self.choices else self.reference

    def to_record(self) -> dict[str, Any]:
        """Return plain data for the journal; `Item(**record)` restores the item."""
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
    """Return an item's text for transcripts: the question with its choices or reference answer."""
    if item.free:
        return f"{item.question}\n(reference answer: {item.reference})"
    return f"{item.question}\n{item.labelled_choices()}\n(correct: {choice_letter(item.answer)})"


_MAX_CLUSTER_NAME = 80  # characters


def cluster_name(text: str) -> str:
    """Return the name of a cluster: the text or, if it is long, its hash, because journals store it with each item."""
    return text if len(text) <= _MAX_CLUSTER_NAME else hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def choice_letter(index: int) -> str:
    """Return the letter of a choice: A for 0, B for 1, and so on."""
    return chr(65 + index)


def content_id(question: str, choices: Sequence[str], answer: int, extra: Mapping[str, Any] | None) -> str:
    """Return the item's id in the validated lists of Yu et al. (2024): a hash of its content and of `extra`."""
    text = f"{question}$choices${';'.join(choices)}$ans${answer}$perm$None$ex${json.dumps(extra)}"
    return urlsafe_b64encode(hashlib.md5(text.encode(), usedforsecurity=False).digest()).decode().rstrip("=")


Raw = Mapping[str, Any]

MAX_CHOICES = 26


# A choice after its letter: "A. the moon", "(a) the moon", "B、the moon".
_LETTERED_CHOICE = re.compile(r"\s*[(（]?([A-Za-z])(?:[.):．）：、]\s*|\s+[-–—]\s+)(.*)", re.DOTALL)


def strip_letters(choices: Sequence[str]) -> list[str] | None:
    """Return the choices without `A. `, `B) `, … before them, or None unless all have their own letter."""
    stripped = [
        match[2]
        if (match := _LETTERED_CHOICE.match(choice)) is not None and match[1].upper() == choice_letter(index)
        else ""
        for index, choice in enumerate(choices)
    ]
    return stripped if all(map(str.strip, stripped)) else None


class FieldError(Exception):
    """A raw record is not an item; the error says which field, what was found, and what was expected."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class CaseInsensitiveRecord(Mapping[str, Any]):
    """A raw record with case-insensitive field names: `Question` is `question`.

    A field of exactly the requested name takes precedence.
    """

    __slots__ = ("_raw",)

    def __init__(self, raw: Raw) -> None:
        self._raw = raw

    def __getitem__(self, name: str) -> Any:
        """Return a field.

        Raises:
            KeyError: There is no such field.
            FieldError: Several fields differ only in their case.
        """
        if name in self._raw:
            return self._raw[name]
        names = _lower_case_names(tuple(self._raw))[name.casefold()]
        if len(names) > 1:
            raise FieldError(name, f"is given more than once: {', '.join(names)}")
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
    """Return a record's field names by their lower case; most records of a file have the same names."""
    names_by_lower_case: dict[str, list[str]] = {}
    for name in names:
        names_by_lower_case.setdefault(str(name).strip().casefold(), []).append(name)
    return names_by_lower_case


def text_field(raw: Raw, name: str, prefix: str = "") -> str:
    """Return a field that must be text; `prefix` is the path of the object that contains it, for errors.

    Raises:
        FieldError: The field is missing, empty or of another type, or contains a NUL character.
    """
    value = raw.get(name)
    if value is None:
        raise FieldError(prefix + name, "is missing")
    if not isinstance(value, str) or not value.strip():
        raise FieldError(prefix + name, f"expected text, found {preview(value)}")
    return _require_printable(value, prefix + name)


def record_id(raw: Raw, name: str) -> str | None:
    """Return a record's own id, None without one; raise `FieldError` for an invalid id."""
    value = raw.get(name)
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise FieldError(name, f"expected text or a whole number, found {preview(value)}")
    return _require_printable(str(value), name)


def optional_text(raw: Raw, name: str) -> str:
    """Return a field's text, a number as written, "" without one; raise `FieldError` for anything else."""
    value = raw.get(name)
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise FieldError(name, f"expected text, found {preview(value)}")
    return _require_printable(str(value), name)


def choice_list(values: Any, field: str) -> list[str]:
    """Return the texts of two to 26 choices, or raise `FieldError`."""
    if not isinstance(values, list) or not all(isinstance(value, str) and value.strip() for value in values):
        raise FieldError(field, f"expected a list of texts, none of them empty, found {preview(values)}")
    if not 2 <= len(values) <= MAX_CHOICES:
        raise FieldError(field, f"expected 2 to {MAX_CHOICES} choices, found {len(values)}")
    return [_require_printable(value, field) for value in values]


def answer_index(answer: Any, labels: Sequence[str], field: str) -> int:
    """Return the position of the answer's label among the choices' labels, or raise `FieldError`."""
    if answer is None:
        raise FieldError(field, "is missing")
    label = str(answer).strip()
    if label not in labels:
        raise FieldError(field, f"the answer {preview(answer)} is not among the choices ({', '.join(labels)})")
    return labels.index(label)


def numeric_answer(answer: Any, count: int, field: str, choices: Sequence[str] = ()) -> int | None:
    """Return the 0-based index that an answer gives as a whole number or as digits; None for other answers.

    `choices`: the choices' texts, given only if the form also allows letters as answers; without them, digits are
    always an index.

    Raises:
        FieldError: There is no choice at that index, or the digits are the text of a choice at another one.
    """
    if isinstance(answer, str) and answer.strip().isascii() and answer.strip().isdigit():  # CSV has only text
        _reject_choice_text(answer.strip(), choices, field)
        answer = int(answer)
    if not isinstance(answer, int) or isinstance(answer, bool):
        return None
    if not 0 <= answer < count:
        raise FieldError(field, f"the answer {answer} is not among the choices (0 to {count - 1})")
    return answer


def duplicate_choices(choices: Sequence[str]) -> list[list[int]]:
    """Return a list of indices for each text that several choices have, ignoring surrounding white space."""
    if len(set(map(str.strip, choices))) == len(choices):
        return []
    indices: dict[str, list[int]] = {}
    for index, choice in enumerate(choices):
        indices.setdefault(choice.strip(), []).append(index)
    return [group for group in indices.values() if len(group) > 1]


def _reject_choice_text(digits: str, choices: Sequence[str], field: str) -> None:
    """Refuse digits that are the text of a choice, unless they are the number of that choice."""
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
    """Return a value for an error message, at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _require_printable(value: str, field: str) -> str:
    if "\0" in value:
        raise FieldError(field, f"contains a NUL character: {preview(value)}")
    return value
