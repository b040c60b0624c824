"""Import of lm-evaluation-harness samples as a run of probes: documents are items, answers are choices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from viva.agents.choices import read_choice
from viva.data.dataset import open_dataset
from viva.data.forms import RecordLocation, detect_form, form_by_name
from viva.data.items import FieldError, Item, Raw, choice_letter, preview
from viva.data.record_files import located_errors, read_jsonl, sound_records
from viva.engine.errors import DatasetError
from viva.engine.likelihood import Likelihood
from viva.engine.messages import Completion
from viva.scoring.accuracy import choose_normalized, choose_raw

from ..contract import ImportedCall, ImportedConversation, ImportedRun, ImportFormat, ImportOptions
from ..models import model_labels
from .probe import CANDIDATE, Method, ProbeTask

_RIGHT = {"letter": ("acc",), "text": ("acc",), "generate": ("exact_match", "acc")}


@dataclass(slots=True)
class _AnsweredItem:
    """A line of the file: its item, the method, and that method's part of a probe's record."""

    item: Item
    method: Method
    result: dict[str, Any]
    completion: Completion


def read_samples(path: Path, choices: ImportOptions) -> ImportedRun:
    """Read the samples of one task; if a document was filtered in several ways, the first way counts.

    Items come from `choices.dataset` by id if it is given, else from the documents. The model is
    `choices.models["candidate"]`, else the one that `results_DATE.json` beside the file names.

    Raises:
        DatasetError: A line is no sample or contradicts itself, or two lines are on one document.
    """
    known_items = {} if choices.dataset is None else {item.id: item for item in open_dataset(choices.dataset)}
    results = _results_beside(path)
    models = {CANDIDATE: _model(results, path)} | dict(choices.models)
    [label] = model_labels([models[CANDIDATE]])
    answered: list[_AnsweredItem] = []
    lines: dict[str, int] = {}
    chosen: str | None = None
    left_out = 0
    for line, raw in sound_records(read_jsonl(path)):
        filter_name = str(raw.get("filter", "none"))
        chosen = filter_name if chosen is None else chosen
        if filter_name != chosen:
            left_out += 1
            continue
        with located_errors(path, line):
            sample = _answered_item(raw, known_items, choices.dataset)
            before = lines.setdefault(sample.item.id, line)
            if before != line:
                raise FieldError("doc", f"the item {preview(sample.item.id)} is in line {before} already")
            if sample.method != (answered or [sample])[0].method:
                raise FieldError("arguments", f"has method {sample.method}; earlier lines have {answered[0].method}")
        answered.append(sample)
    if not answered:
        raise DatasetError("has no samples", path=str(path))
    task = _task(path)
    shots = int(next(iter((results.get("n-shot") or {}).values()), 0) or 0) if results else 0
    settings = {"candidate": [models[CANDIDATE]], "method": [answered[0].method], "shots": min(shots, 100)}
    notes = [f"lines of other filters than '{chosen}' are left out: {left_out:,}"] if left_out else []
    if not results:
        notes.append("no results_*.json beside the file: the number of shots is unknown and set to 0")
    facts = {"file": path.name, "task": task, "filter": chosen, "metrics": (results.get("results") or {}).get(task)}
    conversations = [_conversation(sample, label) for sample in answered]
    records = {"against": None, "examples": None}
    items = [sample.item for sample in answered]
    return ImportedRun(settings, task, items, conversations, choices.dataset, records, facts, notes)


def _answered_item(raw: Raw, known_items: Mapping[str, Item], dataset: str | None) -> _AnsweredItem:
    doc = raw.get("doc")
    if not isinstance(doc, Mapping):
        raise FieldError("doc", f"expected an object, found {preview(doc)}")
    item = _item(doc, raw)
    if dataset is not None:
        if item.id not in known_items:
            raise FieldError("doc", f"the item {preview(item.id)} is not in {dataset}")
        item = known_items[item.id]
    arguments, answers = _arguments(raw), raw.get("filtered_resps")
    if not isinstance(answers, list) or not answers:
        raise FieldError("filtered_resps", f"expected a list of answers, found {preview(answers)}")
    if len(arguments) == len(answers) == len(item.choices) > 1 and all(isinstance(answer, list) for answer in answers):
        return _read(raw, item, [texts[1] if len(texts) > 1 else "" for texts in arguments], answers)
    text = answers[0][0] if isinstance(answers[0], list) and answers[0] else answers[0]
    if not isinstance(text, str):
        raise FieldError("filtered_resps", f"expected an answer in words, found {preview(text)}")
    right = _right(raw, "generate")
    choice = read_choice(text, item.choices)
    result = {"choice": item.answer if right else None if choice == item.answer else choice, "right": right}
    return _AnsweredItem(item, "generate", result, Completion(text))


def _read(raw: Raw, item: Item, texts: Sequence[str], answers: Sequence[Any]) -> _AnsweredItem:
    likely = [_likelihood(at, answer) for at, answer in enumerate(answers)]
    sums = [likelihood.total for likelihood in likely]
    letters = [choice_letter(at) for at in range(len(item.choices))]
    method: Method = "letter" if [text.strip() for text in texts] == letters else "text"
    choice = choose_raw(sums)
    right = _right(raw, method)
    if right != (choice == item.answer):
        likeliest = f"the likeliest text is {choice_letter(choice)}, the right one {choice_letter(item.answer)}"
        raise FieldError("acc", f"says {'right' if right else 'wrong'}, but {likeliest}")
    result: dict[str, Any] = {"choice": choice, "right": right, "logprobs": sums}
    if method == "text":
        normalised = choose_normalized(sums, [len(text.strip()) for text in texts])
        result |= {"normalised": normalised, "normalised_right": normalised == item.answer}
        if "acc_norm" in raw and bool(raw["acc_norm"]) != result["normalised_right"]:
            likeliest = f"the likeliest text per character is {choice_letter(normalised)}"
            problem = f"{likeliest}, the right one {choice_letter(item.answer)}"
            raise FieldError("acc_norm", f"says {preview(raw['acc_norm'])}, but {problem}")
    return _AnsweredItem(item, method, result, Completion("", likelihoods=likely))


def _item(doc: Raw, raw: Raw) -> Item:
    """Return the item of a document: a benchmark's own record, or a question with texts and the right index."""
    row = raw.get("doc_id")
    location = RecordLocation(position=0, row=row if isinstance(row, int) else 0)
    try:
        return form_by_name(detect_form(doc)).read(doc, location)
    except FieldError:
        question = next(
            (doc[name] for name in ("query", "question", "problem") if isinstance(doc.get(name), str)), None
        )
        texts, gold = doc.get("choices"), doc.get("gold", doc.get("label"))
        if question is not None and texts is None:
            raise FieldError("doc", "has no choices; static answers are those to multiple-choice questions") from None
        if question is None or not isinstance(texts, list) or not isinstance(gold, int) or not 0 <= gold < len(texts):
            raise
        return Item(str(doc.get("id", row)), question, [str(text) for text in texts], gold)


def _arguments(raw: Raw) -> list[list[str]]:
    """Return the requests' arguments, in either of the tool's two forms."""
    arguments = raw.get("arguments")
    if isinstance(arguments, Mapping):
        arguments = [
            list(request.values()) if isinstance(request, Mapping) else request for request in arguments.values()
        ]
    if not isinstance(arguments, list) or not all(isinstance(request, list) for request in arguments):
        raise FieldError("arguments", f"expected the requests' arguments, found {preview(arguments)}")
    return [[str(text) for text in request] for request in arguments]


def _likelihood(at: int, answer: Any) -> Likelihood:
    try:
        value = float(answer[0])
    except (TypeError, ValueError, IndexError):
        value = math.nan
    if not math.isfinite(value):
        raise FieldError(f"filtered_resps[{at}]", f"expected a log-probability, found {preview(answer)}")
    return Likelihood([value], str(answer[1]) == "True" if len(answer) > 1 else False)


def _right(raw: Raw, method: Method) -> bool:
    for name in _RIGHT[method]:
        if name in raw:
            if raw[name] not in (0, 1):
                raise FieldError(name, f"expected 0 or 1, found {preview(raw[name])}")
            return bool(raw[name])
    raise FieldError(_RIGHT[method][0], "is missing: the file does not say whether the answer is right")


def _conversation(sample: _AnsweredItem, label: str) -> ImportedConversation:
    task = ProbeTask(sample.item)
    record = {"candidate": label, "item": sample.item.id, "second": False, sample.method: sample.result}
    if (cluster := sample.item.cluster()) != "":
        record["cluster"] = cluster
    record["usage"] = {CANDIDATE: [1, 0, 0]}
    return ImportedConversation(task.id, task.to_record(), [ImportedCall(CANDIDATE, sample.completion)], record)


def _task(path: Path) -> str:
    """Return the task in the name `samples_TASK_DATE.jsonl`."""
    return path.stem.removeprefix("samples_").rpartition("_")[0] or path.stem


def _results_beside(path: Path) -> dict[str, Any]:
    """Return the results of the same date; empty if there are none."""
    beside = path.with_name(f"results_{path.stem.rpartition('_')[2]}.json")
    if not beside.is_file():
        return {}
    try:
        results = orjson.loads(beside.read_bytes())
    except orjson.JSONDecodeError as error:
        raise DatasetError(f"not valid JSON: {error.msg}", path=str(beside)) from None
    return results if isinstance(results, dict) else {}


def _model(results: Mapping[str, Any], path: Path) -> str:
    model_name = str(results.get("model_name") or path.parent.name or "candidate")
    return "imported:" + "".join(letter for letter in model_name if letter not in "?#,&+ ")


SAMPLES_FORMAT = ImportFormat("lm-eval", "samples_*.jsonl of lm-evaluation-harness, as probes.", read_samples)
