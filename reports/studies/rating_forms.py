"""Forms of published files of human ratings, converted to fields that are recognised by name.

A form is recognised by the fields of the first record. Converted records have the fields `item`, `group`, `system`,
human ratings (`human`, `annotations`, `label`) and, if the file has a judge's verdicts, `verdict`. Texts keep their
names.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, TypeAlias

from viva.data.items import preview
from viva.engine.errors import ConfigurationError, DatasetError, did_you_mean

from .rating_files import MAX_LIST, parse_ratings

RawRecord: TypeAlias = Mapping[str, Any]
NumberedRecords: TypeAlias = Sequence[tuple[int, RawRecord]]
PLAIN = "plain"  # fields are recognised by name alone
_FLIPPED = {"A>B": "B>A", "B>A": "A>B"}
_MAX_ORDERS = 2  # judgments of a pair: in the order of the file, and swapped


@dataclass(frozen=True, slots=True)
class RatingForm:
    """A form. The first record has all `fields`, of these types; `convert` returns a file's records with our fields.

    If `by_people`, the form is only recognised in a file that is known to hold human ratings: elsewhere the same fields
    may hold a judge's scores.
    """

    fields: Mapping[str, type | UnionType]
    convert: Callable[[NumberedRecords, str], list[tuple[int, RawRecord]]]
    by_people: bool = False


def convert_published(
    records: NumberedRecords, path: Path, form: str | None, *, of_people: bool
) -> tuple[list[tuple[int, RawRecord]], str]:
    """Return a file's records with our fields, and the name of its form; without a form the records are unchanged.

    Args:
        records: The records of the file, each with its line.
        path: The file, for messages.
        form: Name of the form; None to recognise it.
        of_people: The file is known to hold human ratings.

    Raises:
        ConfigurationError: There is no such form.
        DatasetError: A record has not the form; the message names the line and the field.
    """
    if form is not None and form not in (*FORMS, PLAIN):
        raise ConfigurationError(f"--form: there is no form '{form}'{did_you_mean(form, [*FORMS, PLAIN], 'known')}")
    name = form or _recognise(records[0][1], of_people=of_people)
    if name == PLAIN:
        return list(records), ""
    return FORMS[name].convert(records, str(path)), name


def _recognise(record: RawRecord, *, of_people: bool) -> str:
    for name, form in FORMS.items():
        matches = all(isinstance(record.get(key), kind) for key, kind in form.fields.items())
        if matches and (of_people or not form.by_people):
            return name
    return PLAIN


def _field(record: RawRecord, name: str, path: str, line: int, kind: type = str) -> Any:
    value = record.get(name)
    if not isinstance(value, kind):
        expected = "text" if kind is str else "a list" if kind is list else "an object"
        raise DatasetError(f"expected {expected}, found {preview(value)}", path=path, line=line, field=name)
    return value


def _convert_fed(records: NumberedRecords, path: str) -> list[tuple[int, RawRecord]]:
    """FED: ratings of a response, or of a whole dialog if there is no response; a dialog's criteria are set apart."""
    dialogs: dict[str, list[str]] = {}
    for line, raw in records:
        if "response" not in raw:
            dialogs.setdefault(str(raw.get("system")), []).append(_field(raw, "context", path, line))
    for contexts in dialogs.values():
        contexts.sort()
    converted: list[tuple[int, RawRecord]] = []
    for number, (line, raw) in enumerate(records, 1):
        context = _field(raw, "context", path, line)
        ratings = _field(raw, "annotations", path, line, dict)
        whole = dialogs.get(str(raw.get("system")), [])
        at = bisect_left(whole, context)  # a dialog begins with the context of each of its responses
        group = whole[at] if at < len(whole) and whole[at].startswith(context) else context
        record = {key: value for key, value in raw.items() if key != "annotations"}
        record |= {"item": number, "group": group}
        record["annotations"] = ratings if "response" in raw else {"dialog": ratings}
        converted.append((line, record))
    return converted


def _convert_grade(records: NumberedRecords, path: str) -> list[tuple[int, RawRecord]]:
    """GRADE: a list of ratings of coherence inside a text; responses to one context form a group."""
    converted: list[tuple[int, RawRecord]] = []
    for line, raw in records:
        text = _field(raw, "HumanScores", path, line)
        ratings = parse_ratings(text)
        if not isinstance(ratings, list) or len(ratings) > MAX_LIST:
            message = f"expected a list of up to {MAX_LIST} ratings as text, such as [3, 4], found {preview(text)}"
            raise DatasetError(message, path=path, line=line, field="HumanScores")
        context = _field(raw, "Context", path, line)
        record = {
            "item": raw.get("ID"),
            "group": f"{raw.get('Dataset')}: {context}",
            "system": raw.get("DialogModel"),
            "human": {"coherence": ratings},
        }
        converted.append((line, {**record, "context": context, "response": raw.get("Response")}))
    return converted


def _convert_judgebench(records: NumberedRecords, path: str) -> list[tuple[int, RawRecord]]:
    """JudgeBench: the better response of a pair; a second judgment saw the responses swapped and is turned back."""
    converted: list[tuple[int, RawRecord]] = []
    for line, raw in records:
        judgments = _field(raw, "judgments", path, line, list) if raw.get("judgments") is not None else []
        if len(judgments) > _MAX_ORDERS:
            message = f"expected one or two judgments, found {len(judgments)}"
            raise DatasetError(message, path=path, line=line, field="judgments")
        verdicts: dict[str, Any] = {}
        for order, judgment in zip(("first order", "swapped order"), judgments, strict=False):
            if judgment is None:
                continue
            if not isinstance(judgment, Mapping):
                message = f"expected an object with a decision, found {preview(judgment)}"
                raise DatasetError(message, path=path, line=line, field="judgments")
            inner = judgment.get("judgment")
            judge = (inner.get("judge_model") if isinstance(inner, Mapping) else None) or raw.get("judge_name")
            decision = judgment.get("decision")
            flipped = _FLIPPED.get(decision, decision) if isinstance(decision, str) else None
            verdicts[f"{judge or 'judge'}, {order}"] = decision if order == "first order" else flipped
        kept = {key: raw.get(key) for key in ("question", "response_A", "response_B", "label")}
        original = raw.get("original_id")
        group = raw.get("pair_id") if original is None else f"{raw.get('source')} {original}"
        converted.append((line, {"item": raw.get("pair_id"), "group": group, **kept, "verdict": verdicts}))
    return converted


def _convert_llmbar(records: NumberedRecords, path: str) -> list[tuple[int, RawRecord]]:
    """LLMBar: the better output (1 or 2), and the winners of an evaluator's last result in both orders."""
    converted: list[tuple[int, RawRecord]] = []
    for number, (line, raw) in enumerate(records, 1):
        record = {key: value for key, value in raw.items() if key != "results"} | {"item": number}
        if raw.get("results") is not None:
            results = _field(raw, "results", path, line, list)
            last = results[-1] if results and isinstance(results[-1], Mapping) else {}
            orders = {"first order": last.get("swap = False"), "swapped order": last.get("swap = True")}
            record["verdict"] = {
                order: result.get("winner") if isinstance(result, Mapping) else None for order, result in orders.items()
            }
        converted.append((line, record))
    return converted


def _convert_summeval(records: NumberedRecords, path: str) -> list[tuple[int, RawRecord]]:
    """SummEval: ratings by experts; those by crowd workers are left out."""
    converted: list[tuple[int, RawRecord]] = []
    for line, raw in records:
        _field(raw, "expert_annotations", path, line, list)
        record = {key: value for key, value in raw.items() if key not in ("turker_annotations", "id", "model_id")}
        record |= {"item": raw.get("id"), "group": raw.get("id"), "system": raw.get("model_id")}
        converted.append((line, record))
    return converted


def _convert_unieval(records: NumberedRecords, path: str) -> list[tuple[int, RawRecord]]:
    """UniEval: mean ratings by criterion, and predictions if there are some."""
    converted: list[tuple[int, RawRecord]] = []
    for number, (line, raw) in enumerate(records, 1):
        scores = _field(raw, "scores", path, line, dict)
        record = {key: value for key, value in raw.items() if key != "scores"}
        record |= {"item": raw.get("doc_id", number), "human": scores}
        converted.append((line, record))
    return converted


# The fields are those of the published files. The first match counts.
FORMS: dict[str, RatingForm] = {
    "fed": RatingForm({"context": str, "system": str, "annotations": dict}, _convert_fed),
    "grade": RatingForm({"DialogModel": str, "Context": str, "HumanScores": str}, _convert_grade),
    "judgebench": RatingForm({"pair_id": str, "response_A": str, "response_B": str, "label": str}, _convert_judgebench),
    "llmbar": RatingForm({"input": str, "output_1": str, "output_2": str, "label": str | int}, _convert_llmbar),
    "summeval": RatingForm({"id": str, "model_id": str, "expert_annotations": list}, _convert_summeval),
    "unieval": RatingForm({"source": str, "system_output": str, "scores": dict}, _convert_unieval, by_people=True),
}
