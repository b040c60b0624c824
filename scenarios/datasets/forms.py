"""The forms in which multiple-choice items are written.

``generic``  JSONL: ``question``, ``choices`` (list of texts), ``answer`` (letter, or 0-based index), optional ``id``
             and ``subject``. CSV: the same with columns ``A``, ``B``, ``C``, … in place of ``choices``.
``arc``      AI2 ARC in both of its schemas: the Hugging Face one (``choices.text[]``, ``choices.label[]``) and AI2's
             own (``question.stem``, ``question.choices[].text/label``); labels A–E or 1–5.

What never belongs here: files and lines.
"""

from __future__ import annotations

from typing import Any

from ..items import Item, kieval_id, letter
from .reading import FieldError, Form, Raw, answer_index, choice_list, text_field


def generic(raw: Raw) -> Item:
    """One item of the generic form. Without an ``id`` its content's hash is the id."""
    question = text_field(raw, "question")
    if "choices" in raw:
        choices = choice_list(raw["choices"], "choices")
    else:
        columns = [letter(i) for i in range(26) if str(raw.get(letter(i)) or "").strip()]
        if columns != [letter(i) for i in range(len(columns))] or not columns:
            raise FieldError("choices", "is missing (a list, or columns A, B, C, … without gaps)")
        choices = choice_list([str(raw[column]) for column in columns], "choices")
    answer = raw.get("answer")
    if isinstance(answer, str) and answer.strip().isdigit():  # all that a CSV file can hold is text
        answer = int(answer)
    if isinstance(answer, int) and not isinstance(answer, bool):
        if not 0 <= answer < len(choices):
            raise FieldError("answer", f"the answer {answer} is not among the choices (0 to {len(choices) - 1})")
        index = answer
    else:
        index = answer_index(answer, [letter(i) for i in range(len(choices))], "answer")
    name = raw.get("id")
    identity = str(name) if name not in (None, "") else kieval_id(question, choices, index, None)
    return Item(identity, question, choices, index, str(raw.get("subject") or ""))


def arc(raw: Raw) -> Item:
    """One ARC item in either schema. Its id is the one in the KIEval authors' lists."""
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
        raise FieldError(f"{field}.label", f"expected {len(choices)} different labels, found {labels!r}")
    index = answer_index(raw.get("answerKey"), [str(label) for label in labels], "answerKey")
    return Item(kieval_id(question, choices, index, {"id": name}), question, choices, index, "")


FORMS: dict[str, Form] = {"generic": generic, "arc": arc}


def recognise(raw: Raw) -> str:
    """The name of the form that a record seems to have."""
    if "answerKey" in raw or isinstance(raw.get("question"), dict) or isinstance(raw.get("choices"), dict):
        return "arc"
    return "generic"
