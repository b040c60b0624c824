"""Forms made from what a benchmark's data file says of its records: which field is what, and how answers are given.

What never belongs here: any one benchmark (its file in ``benchmarks``), and forms that no benchmark has (``forms``).
"""

from __future__ import annotations

import re
from functools import cache

from .benchmark import Benchmark, benchmark, names
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
from .forms import FORMS, Form, Where, free_answer, lettered_choices
from .items import FREE, Item, content_id, letter
from .reading import ENDINGS, JSON_ENDINGS


@cache
def form_named(name: str) -> Form:
    """The form of this name, or that of the benchmark of this name.

    :raises KeyError: there is neither.
    """
    return FORMS[name] if name in FORMS else _form_of(benchmark(name))


def known_forms() -> tuple[str, ...]:
    """The names that may stand before a file or folder."""
    return (*FORMS, *names())


def _form_of(of: Benchmark) -> Form:
    if of.form == "arc":
        return FORMS["arc"]
    read = _Reader(of)
    listed = isinstance(of.fields.choices, str)  # a list is in no table
    return Form(
        of.name,
        read.free_item if of.form == "free" else read.item,
        (*JSON_ENDINGS, ".parquet") if listed else ENDINGS,
        of.columns,
        read.required(),
        drops_repeats=of.drops_repeats,
    )


class _Reader:
    """Reads records of one benchmark."""

    def __init__(self, of: Benchmark) -> None:
        self._of, self._fields = of, of.fields
        self._letters = tuple(letter(i) for i in range(of.choices or MOST_CHOICES))
        self._removed = re.compile(of.remove) if of.remove else None

    def required(self) -> tuple[str, ...]:
        """The columns that the header of a table must name."""
        if self._of.columns:
            return ()
        named = self._fields.choices
        choices = tuple(named) if isinstance(named, list) else self._letters[: self._of.choices or 2]
        return (self._fields.question, *(() if self._of.form == "free" else choices), self._fields.answer)

    def item(self, raw: Raw, where: Where) -> Item:
        """:raises FieldError: the record is no question with choices."""
        question, choices = text_field(raw, self._fields.question), self._choices(raw)
        index = self._answer(raw, choices)
        subject = self._subject(raw, where)
        return Item(self._id(raw, where, question, choices, index), question, choices, index, subject)

    def free_item(self, raw: Raw, where: Where) -> Item:
        """:raises FieldError: the record is no question with an answer."""
        question, answer = text_field(raw, self._fields.question), free_answer(raw, self._fields.answer)
        # In published lists such a question has its answer as its single choice.
        identity = self._id(raw, where, question, [answer], 0)
        reference = answer if self._removed is None else self._removed.sub("", answer).strip()
        return Item(identity, question, [], FREE, self._subject(raw, where), reference=reference)

    def _choices(self, raw: Raw) -> list[str]:
        named, count = self._fields.choices, self._of.choices
        if isinstance(named, list):
            return [text_field(raw, name) for name in named]
        if isinstance(named, str) or "choices" in raw:
            field = named or "choices"
            choices = choice_list(raw.get(field), field)
            if count is not None and len(choices) != count:
                raise FieldError(field, f"expected {count} choices, found {len(choices)}")
            return choices
        return lettered_choices(raw) if count is None else [text_field(raw, name) for name in self._letters]

    def _answer(self, raw: Raw, choices: list[str]) -> int:
        field = self._fields.answer
        value = raw.get(field)
        if value in (None, ""):
            missing = f"is missing; {self._of.without_answer}" if self._of.without_answer else "is missing"
            raise FieldError(field, missing)
        if self._of.columns and str(value).strip() == field:
            said = f"found a header; {self._of.title}'s files have none: use generic: for a file with header"
            raise FieldError(field, said)
        if self._of.answers != "letter":
            place = answer_place(value, len(choices), field, choices if self._of.answers == "either" else ())
            if place is not None:
                return place
            if self._of.answers == "index":
                raise FieldError(field, f"expected an index from 0 to {len(choices) - 1}, found {shown(value)}")
        return answer_index(value, [letter(i) for i in range(len(choices))], field)

    def _subject(self, raw: Raw, where: Where) -> str:
        own = optional_text(raw, self._fields.subject) if self._fields.subject else ""
        return own or (where.subject if self._of.subject_in_name else "")

    def _id(self, raw: Raw, where: Where, question: str, choices: list[str], answer: int) -> str:
        kind, _, field = self._of.id.partition(":")
        if kind == "own":
            identity = own_id(raw, field)
            if identity is None:
                raise FieldError(field, "is missing")
            return identity
        extra = {"content": None, "empty": {}}[kind] if kind != "row" else {"id": self._row(raw, where)}
        return content_id(question, choices, answer, extra)

    def _row(self, raw: Raw, where: Where) -> int:
        """The row number of the concatenated set."""
        if not self._of.subjects:
            return where.row
        # A row within its subject that the record names is right also where rows before it have been taken out.
        own = str(raw.get(self._fields.row, "")).strip() if self._fields.row else ""
        place = int(own) if own.isascii() and own.isdigit() and len(own) < 10 else where.place
        return self._of.first_row(where.subject, where.split) + place
