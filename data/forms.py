"""Dataset forms: how raw records of general files and of published benchmarks become items.

`generic`    `question`, `choices` (list of texts; in a table columns `A`, `B`, `C`, …), `answer` (letter, or 0-based
             index), optional `id`, `subject` and `passage` (its name; a hash replaces a long text). Id: the field
             `id`, else the hash without `id`.
`qa`         Questions without choices: `question`, `answer` (the reference's text, or a number), optional `id`,
             `subject` and `passage`. Id: the field `id`, else the hash with the answer as the only choice.
`arc`        AI2 ARC in both of its schemas: the Hugging Face one (`choices.text[]`, `choices.label[]`) and AI2's own
             (`question.stem`, `question.choices[].text/label`); labels A–E or 1–5. Id: the hash with `id`.

Every other benchmark's form is made from its data file (see `data/benchmarks`). "The hash" means `content_id`, as in
the validated lists of Yu et al. 2024. A second item with the id of an earlier item is an error, unless the form drops
repeats. A form drops them if its ids are hashes of only question, choices and answer, so that equal ids mean exact
repeats. The first of equal items is used; the others are dropped and counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from .benchmark import Benchmark, load_benchmark
from .items import (
    FREE_ANSWER,
    MAX_CHOICES,
    CaseInsensitiveRecord,
    FieldError,
    Item,
    Raw,
    answer_index,
    choice_letter,
    choice_list,
    cluster_name,
    content_id,
    numeric_answer,
    optional_text,
    preview,
    record_id,
    text_field,
)
from .record_files import DATA_SUFFIXES, JSON_SUFFIXES

_FOUR_LETTERS = ("A", "B", "C", "D")


@dataclass(slots=True)
class RecordLocation:
    """Location of a record: 0-based `position` in its file and `row` in its whole source, and its subject and split."""

    position: int = 0
    row: int = 0
    subject: str = ""
    split: str = ""


@dataclass(frozen=True, slots=True)
class Form:
    """Conversion of records to items, and facts about their files.

    `read` raises `FieldError`. `columns` names the columns of a table without header, `required` the columns that a
    header must have. `unique` is the field of a record that must be unique; None: the item's id. `summary` describes
    the form in one line, unless a benchmark's data file does.
    """

    name: str
    read: Callable[[Raw, RecordLocation], Item]
    endings: tuple[str, ...] = DATA_SUFFIXES
    columns: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    unique: str | None = None
    drops_repeats: bool = False
    summary: str = ""


def _generic(raw: Raw, location: RecordLocation) -> Item:
    question = text_field(raw, "question")
    choices = choice_list(raw["choices"], "choices") if "choices" in raw else lettered_choices(raw)
    index = numeric_answer(raw.get("answer"), len(choices), "answer", choices)
    if index is None:
        index = answer_index(raw.get("answer"), [choice_letter(i) for i in range(len(choices))], "answer")
    identity = record_id(raw, "id") or content_id(question, choices, index, None)
    return Item(identity, question, choices, index, optional_text(raw, "subject"), _passage_name(raw))


def _qa(raw: Raw, location: RecordLocation) -> Item:
    question, answer = text_field(raw, "question"), free_answer(raw, "answer")
    identity = record_id(raw, "id") or content_id(question, [answer], 0, {})
    return Item(identity, question, [], FREE_ANSWER, optional_text(raw, "subject"), _passage_name(raw), answer)


def free_answer(raw: Raw, field: str) -> str:
    """Return the text of a free answer, a number as written; raise `FieldError` if there is none."""
    text = optional_text(raw, field)
    if not text.strip():
        raise FieldError(field, "is missing")
    return text


def lettered_choices(raw: Raw) -> list[str]:
    """Return the texts of a table's columns `A`, `B`, `C`, …; raise `FieldError` if one is missing."""
    columns = [choice_letter(i) for i in range(MAX_CHOICES) if str(raw.get(choice_letter(i)) or "").strip()]
    if columns != [choice_letter(i) for i in range(len(columns))] or not columns:
        problem = "is missing (a list, or columns A, B, C, … without gaps; questions without choices are named qa:FILE)"
        raise FieldError("choices", problem)
    return choice_list([str(raw[column]) for column in columns], "choices")


def to_form(item: Item) -> dict[str, Any]:
    """Return an item as a record of the form `generic` or, without choices, `qa`."""
    record: dict[str, Any] = {"id": item.id, "question": item.question, "answer": item.reference}
    if item.choices:
        record |= {"choices": item.choices, "answer": choice_letter(item.answer)}
    return record | {name: text for name in ("subject", "passage") if (text := getattr(item, name))}


def _passage_name(raw: Raw) -> str:
    return cluster_name(optional_text(raw, "passage"))


def _arc(raw: Raw, location: RecordLocation) -> Item:
    name = text_field(raw, "id")
    body = raw.get("question")
    if isinstance(body, dict):
        body = CaseInsensitiveRecord(body)
        question = text_field(body, "stem", "question.")
        pairs = body.get("choices")
        if not isinstance(pairs, list) or not all(isinstance(pair, dict) for pair in pairs):
            raise FieldError("question.choices", "expected a list of objects with text and label")
        texts: Any = [pair.get("text") for pair in pairs]
        labels: Any = [pair.get("label") for pair in pairs]
        field = "question.choices"
    else:
        question = text_field(raw, "question")
        columns = raw.get("choices")
        if not isinstance(columns, dict):
            raise FieldError("choices", "expected an object with text and label")
        texts, labels = columns.get("text"), columns.get("label")
        field = "choices"
    choices = choice_list(texts, f"{field}.text")
    if not isinstance(labels, list) or len(labels) != len(choices) or len(set(map(str, labels))) != len(labels):
        raise FieldError(f"{field}.label", f"expected {len(choices)} different labels, found {preview(labels)}")
    index = answer_index(raw.get("answerKey"), [str(label) for label in labels], "answerKey")
    return Item(content_id(question, choices, index, {"id": name}), question, choices, index)


def _self_instruct(raw: Raw, location: RecordLocation) -> Item:
    """Read a task; its first instance counts, and the input follows the instruction after a blank line."""
    instances = raw.get("instances")
    if isinstance(instances, Mapping):  # as the hub's library stores a list of objects
        instances = (
            [dict(zip(instances, values, strict=False)) for values in zip(*instances.values(), strict=False)]
            if all(isinstance(values, list) for values in instances.values())
            else None
        )
    if not isinstance(instances, list) or not instances or not isinstance(instances[0], Mapping):
        raise FieldError("instances", f"expected objects with input and output, found {preview(raw.get('instances'))}")
    instruction, task_input = text_field(raw, "instruction"), optional_text(instances[0], "input").strip()
    question = f"{instruction}\n\n{task_input}" if task_input else instruction
    identity = record_id(raw, "id")
    if identity is None:
        raise FieldError("id", "is missing")
    return Item(identity, question, [], FREE_ANSWER, reference=text_field(instances[0], "output", "instances[0]."))


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
            (*JSON_SUFFIXES, ".parquet"),
            unique="id",
            summary="Questions in either published schema of AI2 ARC.",
        ),
    )
}


def detect_form(raw: Raw) -> str:
    """Return the name of the form, or of the benchmark, that a record seems to have."""
    record = CaseInsensitiveRecord(raw)
    question, choices = record.get("question"), record.get("choices")
    if "answerKey" in record or isinstance(question, dict) or isinstance(choices, dict):
        return "arc"
    if "ctx" in record and "endings" in record:
        return "hellaswag"
    return "generic"


def detect_table_form(first: list[str]) -> str:
    """Return the form of a table by its first row. C-Eval's header looks like a generic one, so it must be named."""
    names = {cell.strip().casefold() for cell in first}
    return (
        "mmlu"
        if len(first) == 6 and first[5].strip() in _FOUR_LETTERS and not names & {"question", "answer"}
        else "generic"
    )


@cache
def form_by_name(name: str) -> Form:
    """Return the form or the benchmark's form of this name; raise `KeyError` if there is neither."""
    return FORMS[name] if name in FORMS else _benchmark_form(load_benchmark(name))


def _benchmark_form(benchmark: Benchmark) -> Form:
    if benchmark.form == "arc":
        return FORMS["arc"]
    if benchmark.form == "self_instruct":
        return Form(benchmark.name, _self_instruct, (*JSON_SUFFIXES, ".parquet"), unique="id")
    read = _MappedReader(benchmark)
    listed = isinstance(benchmark.fields.choices, str)  # tables have no lists
    return Form(
        benchmark.name,
        read.free_item if benchmark.form == "free" else read.item,
        (*JSON_SUFFIXES, ".parquet") if listed else DATA_SUFFIXES,
        benchmark.columns,
        read.required(),
        drops_repeats=benchmark.drops_repeats,
    )


def _value_at(raw: Raw, name: str) -> Any:
    """Return a field, or `OBJECT.FIELD` of a record; None if there is none."""
    outer, dot, inner = name.partition(".")
    value = raw.get(outer)
    return value.get(inner) if dot and isinstance(value, Mapping) else None if dot else value


class _MappedReader:
    """Reader of one benchmark's records."""

    def __init__(self, benchmark: Benchmark) -> None:
        self._benchmark, self._fields = benchmark, benchmark.fields
        self._letters = tuple(choice_letter(i) for i in range(benchmark.choices or MAX_CHOICES))
        self._choice = re.compile(benchmark.choice) if benchmark.choice else None
        self._removed = re.compile(benchmark.remove) if benchmark.remove else None

    def required(self) -> tuple[str, ...]:
        """Return the columns that the header of a table must have."""
        if self._benchmark.columns:
            return ()
        names = self._fields.choices
        choices = tuple(names) if isinstance(names, list) else self._letters[: self._benchmark.choices or 2]
        return (self._fields.question, *(() if self._benchmark.form == "free" else choices), self._fields.answer)

    def item(self, raw: Raw, location: RecordLocation) -> Item:
        """Read a question with choices; raise `FieldError` if it is invalid."""
        question, choices = text_field(raw, self._fields.question), self._choices(raw)
        passage = ""
        if self._fields.context:
            context = text_field(raw, self._fields.context)
            # In the words of the authors' code, whose ids cover them.
            question, passage = f"Context: {context}\n Question: {question}", cluster_name(context)
        index = self._answer(raw, choices)
        subject = self._subject(raw, location)
        return Item(self._id(raw, location, question, choices, index), question, choices, index, subject, passage)

    def free_item(self, raw: Raw, location: RecordLocation) -> Item:
        """Read a question with a free answer; raise `FieldError` if it is invalid."""
        question, answer = text_field(raw, self._fields.question), free_answer(raw, self._fields.answer)
        # In published lists, the answer is such a question's single choice.
        identity = self._id(raw, location, question, [answer], 0)
        reference = answer if self._removed is None else self._removed.sub("", answer).strip()
        return Item(identity, question, [], FREE_ANSWER, self._subject(raw, location), reference=reference)

    def _choices(self, raw: Raw) -> list[str]:
        names, count = self._fields.choices, self._benchmark.choices
        if isinstance(names, list):
            return [text_field(raw, name) for name in names]
        if isinstance(names, str) or "choices" in raw:
            field = names or "choices"
            value = _value_at(raw, field)
            if self._choice is not None and isinstance(value, str):
                value = [match.strip() for match in self._choice.findall(value)]
            choices = choice_list(value, field)
            if count is not None and len(choices) != count:
                raise FieldError(field, f"expected {count} choices, found {len(choices)}")
            return choices
        return lettered_choices(raw) if count is None else [text_field(raw, name) for name in self._letters]

    def _answer(self, raw: Raw, choices: list[str]) -> int:
        field = self._fields.answer
        value = _value_at(raw, field)
        if value in (None, ""):
            missing = (
                f"is missing; {self._benchmark.without_answer}" if self._benchmark.without_answer else "is missing"
            )
            raise FieldError(field, missing)
        if self._benchmark.columns and str(value).strip() == field:
            problem = (
                f"found a header; {self._benchmark.title}'s files have none: use generic: for a file with a header"
            )
            raise FieldError(field, problem)
        if self._benchmark.answers == "one_hot":
            if not isinstance(value, list) or sorted(map(str, value)) != ["0"] * (len(choices) - 1) + ["1"]:
                raise FieldError(field, f"expected {len(choices)} numbers, one of them 1, found {preview(value)}")
            return value.index(1)
        if self._benchmark.answers != "letter":
            index = numeric_answer(value, len(choices), field, choices if self._benchmark.answers == "either" else ())
            if index is not None:
                return index
            if self._benchmark.answers == "index":
                raise FieldError(field, f"expected an index from 0 to {len(choices) - 1}, found {preview(value)}")
        if isinstance(value, str):
            value = value.upper()
        return answer_index(value, [choice_letter(i) for i in range(len(choices))], field)

    def _subject(self, raw: Raw, location: RecordLocation) -> str:
        own_subject = optional_text(raw, self._fields.subject) if self._fields.subject else ""
        return own_subject or (location.subject if self._benchmark.subject_in_name else "")

    def _id(self, raw: Raw, location: RecordLocation, question: str, choices: list[str], answer: int) -> str:
        kind, _, field = self._benchmark.id.partition(":")
        if kind == "own":
            identity = record_id(raw, field)
            if identity is None:
                raise FieldError(field, "is missing")
            return identity
        extra = {"content": None, "empty": {}}[kind] if kind != "row" else {"id": self._row(raw, location)}
        return content_id(question, choices, answer, extra)

    def _row(self, raw: Raw, location: RecordLocation) -> int:
        """Return the record's 0-based row in the concatenation of all subjects."""
        if not self._benchmark.subjects:
            return location.row
        # A record's own row number stays correct if earlier rows were removed.
        own_row = str(raw.get(self._fields.row, "")).strip() if self._fields.row else ""
        position = int(own_row) if own_row.isascii() and own_row.isdigit() and len(own_row) < 10 else location.position
        return self._benchmark.first_row(location.subject, location.split) + position
