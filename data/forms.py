"""The forms in which items are written whatever benchmark they are of, and the ids that items of each form get.

``generic``    ``question``, ``choices`` (list of texts; in a table columns ``A``, ``B``, ``C``, …), ``answer`` (letter,
               or 0-based index), optional ``id``, ``subject`` and ``passage`` (its name; of a long text a
               hash stands for it). Id: its own, else the hash without an own id.
``qa``         Questions without choices: ``question``, ``answer`` (the reference's text, or a number), optional ``id``,
               ``subject`` and ``passage``. Id: its own, else the hash with the answer for a single choice.
``arc``        AI2 ARC in both of its schemas: the Hugging Face one (``choices.text[]``, ``choices.label[]``) and AI2's
               own (``question.stem``, ``question.choices[].text/label``); labels A–E or 1–5. Id: the hash with its own.

Every other benchmark's form is made from its data file (``mapped``). "The hash" is that of the validated lists of Yu
et al. 2024 (``items.content_id``). A second item with the id of an earlier one is an error, unless a form drops
repeats: an id that is a hash of question, choices and answer and of nothing else is an exact repeat's. The first one
counts, the others are dropped and counted.

What never belongs here: files and lines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .fields import (
    MOST_CHOICES,
    AnyCase,
    FieldError,
    Raw,
    answer_index,
    answer_place,
    choice_list,
    optional_text,
    own_id,
    shown,
    text_field,
)
from .items import FREE, Item, content_id, letter
from .reading import ENDINGS, JSON_ENDINGS

_LONGEST_NAME = 80  # characters
_FOUR = ("A", "B", "C", "D")


@dataclass(slots=True)
class Where:
    """Where a record stands: 0-based ``place`` in its file and ``row`` in the whole source, and what names say."""

    place: int = 0
    row: int = 0
    subject: str = ""
    split: str = ""


@dataclass(frozen=True, slots=True)
class Form:
    """How records become items, and what is known of the files they stand in.

    ``read`` raises ``FieldError``. ``columns`` name those of a table without header, ``required`` those that a header
    must name. ``unique`` is the field of a record that no other may share; None: the item's id is. ``summary`` says
    what it is in one line, of forms that no benchmark's data file tells of.
    """

    name: str
    read: Callable[[Raw, Where], Item]
    endings: tuple[str, ...] = ENDINGS
    columns: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    unique: str | None = None
    drops_repeats: bool = False
    summary: str = ""


def _generic(raw: Raw, where: Where) -> Item:
    question = text_field(raw, "question")
    choices = choice_list(raw["choices"], "choices") if "choices" in raw else lettered_choices(raw)
    index = answer_place(raw.get("answer"), len(choices), "answer", choices)
    if index is None:
        index = answer_index(raw.get("answer"), [letter(i) for i in range(len(choices))], "answer")
    identity = own_id(raw, "id") or content_id(question, choices, index, None)
    return Item(identity, question, choices, index, optional_text(raw, "subject"), _passage(raw))


def _qa(raw: Raw, where: Where) -> Item:
    question, answer = text_field(raw, "question"), free_answer(raw, "answer")
    identity = own_id(raw, "id") or content_id(question, [answer], 0, {})
    return Item(identity, question, [], FREE, optional_text(raw, "subject"), _passage(raw), answer)


def free_answer(raw: Raw, field: str) -> str:
    """The text of a free answer; a number is taken as it is written.

    :raises FieldError: it is missing or empty, or neither text nor a number.
    """
    text = optional_text(raw, field)
    if not text.strip():
        raise FieldError(field, "is missing")
    return text


def lettered_choices(raw: Raw) -> list[str]:
    """The texts of the columns ``A``, ``B``, ``C``, … of a table.

    :raises FieldError: there are none, or not all up to the last.
    """
    columns = [letter(i) for i in range(MOST_CHOICES) if str(raw.get(letter(i)) or "").strip()]
    if columns != [letter(i) for i in range(len(columns))] or not columns:
        said = "is missing (a list, or columns A, B, C, … without gaps; questions without choices are named qa:FILE)"
        raise FieldError("choices", said)
    return choice_list([str(raw[column]) for column in columns], "choices")


def _passage(raw: Raw) -> str:
    """The passage's name; some files hold the passage itself, and journals would hold it again with each item."""
    text = optional_text(raw, "passage")
    return text if len(text) <= _LONGEST_NAME else hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _arc(raw: Raw, where: Where) -> Item:
    name = text_field(raw, "id")
    body = raw.get("question")
    if isinstance(body, dict):
        body = AnyCase(body)
        question = text_field(body, "stem", "question.")
        pairs = body.get("choices")
        if not isinstance(pairs, list) or not all(isinstance(pair, dict) for pair in pairs):
            raise FieldError("question.choices", "expected a list of objects with text and label")
        texts: Any = [pair.get("text") for pair in pairs]
        labels: Any = [pair.get("label") for pair in pairs]
        field = "question.choices"
    else:
        question = text_field(raw, "question")
        both = raw.get("choices")
        if not isinstance(both, dict):
            raise FieldError("choices", "expected an object with text and label")
        texts, labels = both.get("text"), both.get("label")
        field = "choices"
    choices = choice_list(texts, f"{field}.text")
    if not isinstance(labels, list) or len(labels) != len(choices) or len(set(map(str, labels))) != len(labels):
        raise FieldError(f"{field}.label", f"expected {len(choices)} different labels, found {shown(labels)}")
    index = answer_index(raw.get("answerKey"), [str(label) for label in labels], "answerKey")
    return Item(content_id(question, choices, index, {"id": name}), question, choices, index)


FORMS: dict[str, Form] = {
    form.name: form
    for form in (
        Form(
            "generic",
            _generic,
            required=("question", "A", "B", "answer"),
            summary="Own questions with choices: question, choices (or columns A, B, …), answer.",
        ),
        Form(
            "qa",
            _qa,
            required=("question", "answer"),
            summary="Own questions without choices: question, answer (the reference).",
        ),
        Form(
            "arc",
            _arc,
            (*JSON_ENDINGS, ".parquet"),
            unique="id",
            summary="Questions in either of the schemas in which AI2 ARC is published.",
        ),
    )
}


def recognise(raw: Raw) -> str:
    """The name of the form, or of the benchmark, that a record seems to have."""
    record = AnyCase(raw)
    question, choices = record.get("question"), record.get("choices")
    if "answerKey" in record or isinstance(question, dict) or isinstance(choices, dict):
        return "arc"
    if "ctx" in record and "endings" in record:
        return "hellaswag"
    return "generic"


def recognise_table(first: list[str]) -> str:
    """The same from the first row of a table. C-Eval's header is that of many a generic file: it must be named."""
    names = {cell.strip().casefold() for cell in first}
    return "mmlu" if len(first) == 6 and first[5].strip() in _FOUR and not names & {"question", "answer"} else "generic"
