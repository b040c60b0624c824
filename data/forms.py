"""The forms in which multiple-choice items are written, and the ids that items of each form get.

``generic``    ``question``, ``choices`` (list of texts; in a table columns ``A``, ``B``, ``C``, …), ``answer`` (letter,
               or 0-based index), optional ``id``, ``subject`` and ``passage`` (its name; of a long text a
               hash stands for it). Id: its own, else the hash without an own id.
``arc``        AI2 ARC in both of its schemas: the Hugging Face one (``choices.text[]``, ``choices.label[]``) and AI2's
               own (``question.stem``, ``question.choices[].text/label``); labels A–E or 1–5. Id: the hash with its own.
``mmlu``       MMLU: tables without header of question, four choices and letter, the subject in the file's name; or
               records with ``question``, ``choices``, ``answer``, ``subject``. Id: the hash without an own id.
``hellaswag``  HellaSwag: ``ctx``, ``endings`` (4), ``label`` (index), ``activity_label``. Id: the hash with the row.
``ceval``      C-Eval: tables with ``question``, ``A`` to ``D``, ``answer``, with or without ``id`` and
               ``explanation``, the subject in the file's name. Id: the hash with the row of the concatenated set.

"The hash" is that of the validated lists of Yu et al. 2024 (``items.content_id``).

A second item with the id of an earlier one is an error in all forms but ``mmlu``. An MMLU id is a hash of question,
choices and answer and of nothing else, so an equal id means an exact repeat; the published files hold some (105 in the
test split, most of them under two subjects). The first one counts, the others are dropped and counted.

What never belongs here: files and lines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .ceval import first_row
from .fields import (
    MOST_CHOICES,
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
from .items import Item, content_id, letter
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
    must name. ``unique`` is the field of a record that no other may share; None: the item's id is.
    """

    name: str
    read: Callable[[Raw, Where], Item]
    endings: tuple[str, ...] = ENDINGS
    columns: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    unique: str | None = None
    drops_repeats: bool = False


def _generic(raw: Raw, where: Where) -> Item:
    question = text_field(raw, "question")
    if "choices" in raw:
        choices = choice_list(raw["choices"], "choices")
    else:
        columns = [letter(i) for i in range(MOST_CHOICES) if str(raw.get(letter(i)) or "").strip()]
        if columns != [letter(i) for i in range(len(columns))] or not columns:
            raise FieldError("choices", "is missing (a list, or columns A, B, C, … without gaps)")
        choices = choice_list([str(raw[column]) for column in columns], "choices")
    index = answer_place(raw.get("answer"), len(choices), "answer", choices)
    if index is None:
        index = answer_index(raw.get("answer"), [letter(i) for i in range(len(choices))], "answer")
    identity = own_id(raw, "id") or content_id(question, choices, index, None)
    return Item(identity, question, choices, index, optional_text(raw, "subject"), _passage(raw))


def _passage(raw: Raw) -> str:
    """The passage's name; some files hold the passage itself, and journals would hold it again with each item."""
    text = optional_text(raw, "passage")
    return text if len(text) <= _LONGEST_NAME else hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _arc(raw: Raw, where: Where) -> Item:
    name = text_field(raw, "id")
    body = raw.get("question")
    if isinstance(body, dict):
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


def _mmlu(raw: Raw, where: Where) -> Item:
    question = text_field(raw, "question")
    if "choices" in raw:
        choices = _exactly_four(raw["choices"], "choices")
    else:
        choices = [text_field(raw, column) for column in _FOUR]
    index = answer_place(raw.get("answer"), len(choices), "answer", choices)
    if index is None:
        if str(raw.get("answer")).strip() == "answer":
            raise FieldError("answer", "found a header; MMLU's files have none: use generic: for a file with header")
        index = answer_index(raw.get("answer"), _FOUR, "answer")
    subject = optional_text(raw, "subject") or where.subject
    return Item(content_id(question, choices, index, None), question, choices, index, subject)


def _hellaswag(raw: Raw, where: Where) -> Item:
    question = text_field(raw, "ctx")
    choices = _exactly_four(raw.get("endings"), "endings")
    if raw.get("label") in (None, ""):
        raise FieldError("label", "is missing; HellaSwag's test split has no labels")
    index = answer_place(raw["label"], 4, "label")
    if index is None:
        raise FieldError("label", f"expected an index from 0 to 3, found {shown(raw['label'])}")
    identity = content_id(question, choices, index, {"id": where.row})
    return Item(identity, question, choices, index, optional_text(raw, "activity_label"))


def _ceval(raw: Raw, where: Where) -> Item:
    question = text_field(raw, "question")
    choices = [text_field(raw, column) for column in _FOUR]
    if raw.get("answer") in (None, ""):
        raise FieldError("answer", "is missing; C-Eval's test split has no answers")
    index = answer_index(raw["answer"], _FOUR, "answer")
    # Its own id is the row within the subject: right also where rows before it have been taken out.
    own = str(raw.get("id", "")).strip()
    place = int(own) if own.isascii() and own.isdigit() and len(own) < 10 else where.place
    row = first_row(where.subject, where.split) + place
    return Item(content_id(question, choices, index, {"id": row}), question, choices, index, where.subject)


def _exactly_four(values: Any, field: str) -> list[str]:
    choices = choice_list(values, field)
    if len(choices) != 4:
        raise FieldError(field, f"expected 4 choices, found {len(choices)}")
    return choices


FORMS: dict[str, Form] = {
    form.name: form
    for form in (
        Form("generic", _generic, required=("question", "A", "B", "answer")),
        Form("arc", _arc, (*JSON_ENDINGS, ".parquet"), unique="id"),
        Form("mmlu", _mmlu, columns=("question", *_FOUR, "answer"), drops_repeats=True),
        Form("hellaswag", _hellaswag, (*JSON_ENDINGS, ".parquet")),
        Form("ceval", _ceval, required=("question", *_FOUR, "answer")),
    )
}


def recognise(raw: Raw) -> str:
    """The name of the form that a record seems to have."""
    if "answerKey" in raw or isinstance(raw.get("question"), dict) or isinstance(raw.get("choices"), dict):
        return "arc"
    if "ctx" in raw and "endings" in raw:
        return "hellaswag"
    return "generic"


def recognise_table(first: list[str]) -> str:
    """The same from the first row of a table. C-Eval's header is that of many a generic file: it must be named."""
    names = {cell.strip() for cell in first}
    return "mmlu" if len(first) == 6 and first[5].strip() in _FOUR and not names & {"question", "answer"} else "generic"
