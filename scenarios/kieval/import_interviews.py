"""Import of interviews from the authors' program: `interact_details.json`, rescored from its verdicts.

The file is a JSON list with an entry for each interview: `uuid` (the item's published id), `all_messages` (interactor,
candidate and evaluator in turn), `role_messages` (the messages sent to each role) and `evaluation_results` (the
verdicts as parsed by that program). Scores count as in its scorer: whole numbers from 0 to 4, missing ones left out of
that aspect alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from viva.data.dataset import open_dataset
from viva.data.items import FREE_ANSWER, Item
from viva.data.record_files import require_regular_file
from viva.engine.errors import DatasetError
from viva.engine.messages import Completion

from ..contract import ImportedCall, ImportedConversation, ImportedRun, ImportFormat, ImportOptions
from ..models import model_labels
from .score import ASPECTS, Interview, Round

_ROLES = ("interactor", "candidate", "evaluator")
_QUESTION = re.compile(r"### Question: (.*?)\s*(?:### Choices: ?\n?(.*))?\Z", re.DOTALL)
_CHOICE = re.compile(r"^([A-Z])\. ", re.MULTILINE)
_RIGHT = re.compile(r"### Correct Answer: (.*?)\n### My Answer: ", re.DOTALL)
_MAX_SCORE = 4


@dataclass(slots=True, frozen=True)
class _Entry:
    """An interview of the file; `number` counts from 1."""

    path: Path
    number: int
    raw: Mapping[str, Any]

    def wrong(self, field: str, message: str) -> DatasetError:
        return DatasetError(f"entry {self.number}: {message}", path=str(self.path), field=field)

    def field(self, name: str, kind: type) -> Any:
        """Return a field of the entry; raise `DatasetError` if it is missing or of another type."""
        value = self.raw.get(name)
        if not isinstance(value, kind):
            raise self.wrong(name, f"expected {kind.__name__}, found {type(value).__name__}")
        return value

    def message(self, role: str, index: int) -> str:
        """Return a message that was sent to a role, or that the role wrote; raise `DatasetError` if there is none."""
        messages = self.field("role_messages", dict).get(role)
        if not isinstance(messages, list) or len(messages) <= index:
            raise self.wrong(f"role_messages.{role}", f"expected at least {index + 1} messages")
        content = messages[index].get("content") if isinstance(messages[index], dict) else None
        if not isinstance(content, str):
            raise self.wrong(f"role_messages.{role}[{index}].content", "expected text")
        return content


def read_details(path: Path, choices: ImportOptions) -> ImportedRun:
    """Read the interviews of a file.

    Items come from `choices.dataset` by their published ids, else from the prompts. Unnamed models get their names from
    `results.json` beside the file, else the name `imported:ROLE`.

    Raises:
        DatasetError: The file or an entry of it is wrong; the message names the entry.
    """
    entries = _entries(path)
    known_items = {} if choices.dataset is None else {item.id: item for item in open_dataset(choices.dataset)}
    items = [_item(entry, known_items, choices.dataset) for entry in entries]
    models = {role: f"imported:{role}" for role in _ROLES} | _named_models(path) | dict(choices.models)
    [label] = model_labels([models["candidate"]])
    planned = max(len(entry.field("evaluation_results", list)) for entry in entries)
    settings = {"candidate": [models["candidate"]], "interactor": models["interactor"], "rounds": max(planned, 1)}
    settings |= {"evaluator": models["evaluator"], "scorer": "official"}
    settings |= {"first_answer": "text" if items[0].free else "five-shot"}
    conversations = [_conversation(entry, item, label, planned) for entry, item in zip(entries, items, strict=True)]
    notes = ["the file has no token counts and no times: usage counts calls only"]
    facts = {"file": path.name, "rounds": planned}
    return ImportedRun(settings, path.stem, items, conversations, choices.dataset, {"examples": None}, facts, notes)


def _entries(path: Path) -> list[_Entry]:
    require_regular_file(path)
    text = path.read_bytes()
    try:
        raw = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        line = text[: error.pos].count(b"\n") + 1
        raise DatasetError(f"not valid JSON: {error.msg}", path=str(path), line=line) from None
    if not isinstance(raw, list) or not raw:
        raise DatasetError(f"expected a list of interviews, found {type(raw).__name__}", path=str(path), line=1)
    entries = []
    numbers: dict[str, int] = {}
    for number, record in enumerate(raw, 1):
        if not isinstance(record, dict):
            raise DatasetError(f"entry {number}: expected an object, found {type(record).__name__}", path=str(path))
        entry = _Entry(path, number, record)
        before = numbers.setdefault(entry.field("uuid", str), number)
        if before != number:
            raise entry.wrong("uuid", f"is already used by entry {before}; remove one of them")
        entries.append(entry)
    return entries


def _named_models(path: Path) -> dict[str, str]:
    """Return model names by role from `results.json` beside the file; empty if there is no such file."""
    beside = path.with_name("results.json")
    if not beside.is_file():
        return {}
    try:
        roles = orjson.loads(beside.read_bytes()).get("roles", {})
    except (orjson.JSONDecodeError, AttributeError):
        raise DatasetError(
            "expected the results of the authors' program, with the field 'roles'", path=str(beside)
        ) from None
    models = {}
    for role, model in roles.items():
        kind, _, name = str(model).partition(": ")
        if role in _ROLES and name:
            models[role] = f"openai:{name}" if kind == "openai" else f"imported:{Path(name).name}"
    return models


def _item(entry: _Entry, known_items: Mapping[str, Item], dataset: str | None) -> Item:
    uuid = entry.raw["uuid"]
    if dataset is not None:
        if uuid not in known_items:
            raise entry.wrong("uuid", f"'{uuid}' is no item of {dataset}")
        return known_items[uuid]
    question = _QUESTION.search(entry.message("candidate", 1))
    answer = _RIGHT.search(entry.message("interactor", 1))
    right = answer[1].strip() if answer is not None else ""
    if question is not None and question[2] is None and right:  # a question without choices
        return Item(uuid, question[1].strip(), [], FREE_ANSWER, reference=right)
    pieces = _CHOICE.split(question[2].strip()) if question is not None and question[2] is not None else []
    texts = [text.strip() for text in pieces[2::2]]
    places = [at for at, text in enumerate(texts) if right == f"{chr(65 + at)}. {text}"]
    if question is None or len(texts) < 2 or len(places) != 1:
        raise entry.wrong(
            "role_messages", "the item cannot be read from the prompts; name its benchmark with --dataset"
        )
    return Item(uuid, question[1].strip(), texts, places[0])


def _conversation(entry: _Entry, item: Item, label: str, planned: int) -> ImportedConversation:
    answer = entry.message("candidate", 2)
    interview = Interview(label, item.id, max(planned, 1), free=item.free, cluster=item.cluster())
    if item.free:
        interview.right = _first_was_right(entry)
    else:
        matches = [at for at in range(len(item.choices)) if answer.strip() == item.labelled_choice(at).strip()]
        interview.choice = matches[0] if matches else None
        interview.right = interview.choice == item.answer
    interview.rounds = [
        _round(entry, at, verdict) for at, verdict in enumerate(entry.field("evaluation_results", list), 1)
    ]
    last = interview.rounds[-1] if interview.rounds else None
    if last is not None and last.stop is not None:
        interview.ended_by, interview.reason = "evaluator", last.stop
    elif len(interview.rounds) < planned:
        interview.ended_by = "transcript"
    calls = [ImportedCall("candidate", Completion(answer)), *_calls(entry)]
    interview.usage = {role: [sum(call.role == role for call in calls), 0, 0] for role in sorted(_ROLES)}
    return ImportedConversation(item.id, item.to_record(), calls, interview.to_record())


def _first_was_right(entry: _Entry) -> bool:
    """Return True if the evaluator's initial verdict is the best one, as for a right answer."""
    try:
        return bool(orjson.loads(entry.message("evaluator", 2)).get("overall_score") == _MAX_SCORE)
    except (orjson.JSONDecodeError, AttributeError):
        raise entry.wrong("role_messages.evaluator[2]", "expected the verdict on the first answer, as JSON") from None


def _calls(entry: _Entry) -> Iterator[ImportedCall]:
    for at, message in enumerate(entry.field("all_messages", list)):
        role, content = (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
        if role != _ROLES[at % 3] or not isinstance(content, str):
            raise entry.wrong(f"all_messages[{at}]", f"expected a message of the {_ROLES[at % 3]}, found {role!r:.40}")
        yield ImportedCall(role, Completion(content))


def _round(entry: _Entry, number: int, raw: Any) -> Round:
    if not isinstance(raw, dict):
        raise entry.wrong(f"evaluation_results[{number - 1}]", f"expected an object, found {type(raw).__name__}")
    raw_scores = [raw.get(name) for name in ASPECTS[:-1]]
    values = [part.get("score") if isinstance(part, dict) else part for part in raw_scores]
    scores = [_score(value) for value in (*values, raw.get("overall_score"))]
    stop = (str(raw.get("stop_reason") or "unspecified")) if raw.get("stop_conversation") else None
    missing = [name for name, score in zip(ASPECTS, scores, strict=True) if score is None]
    problem = f"no score of {', '.join(missing)}" if missing else None
    if len(missing) == len(ASPECTS):
        return Round(None, stop, 1, problem)
    return Round(scores, stop, int(bool(missing)), problem)


def _score(value: Any) -> int | None:
    """Return a whole number from 0 to 4, also parsed from text; None for anything else."""
    if isinstance(value, str) and re.fullmatch(r"\s*[0-9](\.0+)?\s*", value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value <= _MAX_SCORE and value == int(value) else None


DETAILS_FORMAT = ImportFormat("kieval", "interact_details.json of the authors' program, rescored.", read_details)
