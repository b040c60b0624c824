"""Import of interviews from the authors' program: ``interact_details.json``, rescored from its verdicts.

The file is a JSON list with an entry for each interview: ``uuid`` (the item's published id), ``all_messages``
(interactor, candidate and evaluator in turn), ``role_messages`` (what each role was sent) and ``evaluation_results``
(the verdicts as that program has read them). A score counts as its scorer counts it: whole numbers from 0 to 4,
missing ones left out of that aspect alone.
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
    """One interview of the file; ``place`` is its number from 1."""

    path: Path
    place: int
    raw: Mapping[str, Any]

    def wrong(self, field: str, message: str) -> DatasetError:
        return DatasetError(f"entry {self.place}: {message}", path=str(self.path), field=field)

    def field(self, name: str, kind: type) -> Any:
        """:raises DatasetError: it is missing or of another kind."""
        value = self.raw.get(name)
        if not isinstance(value, kind):
            raise self.wrong(name, f"expected {kind.__name__}, found {type(value).__name__}")
        return value

    def sent(self, role: str, place: int) -> str:
        """A message that a role was sent, or remembers as its own.

        :raises DatasetError: there is none.
        """
        messages = self.field("role_messages", dict).get(role)
        if not isinstance(messages, list) or len(messages) <= place:
            raise self.wrong(f"role_messages.{role}", f"expected at least {place + 1} messages")
        content = messages[place].get("content") if isinstance(messages[place], dict) else None
        if not isinstance(content, str):
            raise self.wrong(f"role_messages.{role}[{place}].content", "expected text")
        return content


def read_details(path: Path, choices: ImportOptions) -> ImportedRun:
    """The interviews of a file. Items are those of ``choices.dataset`` by their published ids, else as the prompts show
    them. Models that nobody names are called ``imported:ROLE``, or as ``results.json`` beside the file has them.

    :raises DatasetError: the file or an entry of it is wrong; the message names the entry.
    """
    entries = _entries(path)
    known = {} if choices.dataset is None else {item.id: item for item in open_dataset(choices.dataset)}
    items = [_item(entry, known, choices.dataset) for entry in entries]
    models = {role: f"imported:{role}" for role in _ROLES} | _named_models(path) | dict(choices.models)
    [label] = model_labels([models["candidate"]])
    planned = max(len(entry.field("evaluation_results", list)) for entry in entries)
    settings = {"candidate": [models["candidate"]], "interactor": models["interactor"], "rounds": max(planned, 1)}
    settings |= {"evaluator": models["evaluator"], "scorer": "official"}
    settings |= {"first_answer": "text" if items[0].free else "five-shot"}
    held = [_conversation(entry, item, label, planned) for entry, item in zip(entries, items, strict=True)]
    notes = ["the file has no counts of tokens and no times: usage counts calls alone"]
    facts = {"file": path.name, "rounds": planned}
    return ImportedRun(settings, path.stem, items, held, choices.dataset, {"examples": None}, facts, notes)


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
    seen: dict[str, int] = {}
    for place, one in enumerate(raw, 1):
        if not isinstance(one, dict):
            raise DatasetError(f"entry {place}: expected an object, found {type(one).__name__}", path=str(path))
        entry = _Entry(path, place, one)
        before = seen.setdefault(entry.field("uuid", str), place)
        if before != place:
            raise entry.wrong("uuid", f"is that of entry {before} too; keep one of them")
        entries.append(entry)
    return entries


def _named_models(path: Path) -> dict[str, str]:
    """The models that ``results.json`` beside the file names, as names here; none where there is no such file."""
    beside = path.with_name("results.json")
    if not beside.is_file():
        return {}
    try:
        roles = orjson.loads(beside.read_bytes()).get("roles", {})
    except (orjson.JSONDecodeError, AttributeError):
        raise DatasetError("expected the results of that program, with roles", path=str(beside)) from None
    found = {}
    for role, named in roles.items():
        kind, _, name = str(named).partition(": ")
        if role in _ROLES and name:
            found[role] = f"openai:{name}" if kind == "openai" else f"imported:{Path(name).name}"
    return found


def _item(entry: _Entry, known: Mapping[str, Item], dataset: str | None) -> Item:
    uuid = entry.raw["uuid"]
    if dataset is not None:
        if uuid not in known:
            raise entry.wrong("uuid", f"'{uuid}' is no item of {dataset}")
        return known[uuid]
    asked = _QUESTION.search(entry.sent("candidate", 1))
    told = _RIGHT.search(entry.sent("interactor", 1))
    right = told[1].strip() if told is not None else ""
    if asked is not None and asked[2] is None and right:  # a question without choices
        return Item(uuid, asked[1].strip(), [], FREE_ANSWER, reference=right)
    pieces = _CHOICE.split(asked[2].strip()) if asked is not None and asked[2] is not None else []
    texts = [text.strip() for text in pieces[2::2]]
    places = [at for at, text in enumerate(texts) if right == f"{chr(65 + at)}. {text}"]
    if asked is None or len(texts) < 2 or len(places) != 1:
        raise entry.wrong(
            "role_messages", "the item cannot be read from the prompts; name its benchmark with --dataset"
        )
    return Item(uuid, asked[1].strip(), texts, places[0])


def _conversation(entry: _Entry, item: Item, label: str, planned: int) -> ImportedConversation:
    answer = entry.sent("candidate", 2)
    interview = Interview(label, item.id, max(planned, 1), free=item.free, cluster=item.cluster())
    if item.free:
        interview.right = _first_was_right(entry)
    else:
        named = [at for at in range(len(item.choices)) if answer.strip() == item.labelled_choice(at).strip()]
        interview.choice = named[0] if named else None
        interview.right = interview.choice == item.answer
    interview.rounds = [_round(entry, at, one) for at, one in enumerate(entry.field("evaluation_results", list), 1)]
    last = interview.rounds[-1] if interview.rounds else None
    if last is not None and last.stop is not None:
        interview.ended_by, interview.reason = "evaluator", last.stop
    elif len(interview.rounds) < planned:
        interview.ended_by = "transcript"
    calls = [ImportedCall("candidate", Completion(answer)), *_calls(entry)]
    interview.usage = {role: [sum(one.role == role for one in calls), 0, 0] for role in sorted(_ROLES)}
    return ImportedConversation(item.id, item.to_record(), calls, interview.to_record())


def _first_was_right(entry: _Entry) -> bool:
    """Whether the verdict that the evaluator begins with is that on a right answer: the best one."""
    try:
        return bool(orjson.loads(entry.sent("evaluator", 2)).get("overall_score") == _MAX_SCORE)
    except (orjson.JSONDecodeError, AttributeError):
        raise entry.wrong("role_messages.evaluator[2]", "expected the verdict on the first answer, as JSON") from None


def _calls(entry: _Entry) -> Iterator[ImportedCall]:
    for at, said in enumerate(entry.field("all_messages", list)):
        role, content = (said.get("role"), said.get("content")) if isinstance(said, dict) else (None, None)
        if role != _ROLES[at % 3] or not isinstance(content, str):
            raise entry.wrong(f"all_messages[{at}]", f"expected the words of the {_ROLES[at % 3]}, found {role!r:.40}")
        yield ImportedCall(role, Completion(content))


def _round(entry: _Entry, number: int, raw: Any) -> Round:
    if not isinstance(raw, dict):
        raise entry.wrong(f"evaluation_results[{number - 1}]", f"expected an object, found {type(raw).__name__}")
    told = [raw.get(name) for name in ASPECTS[:-1]]
    values = [one.get("score") if isinstance(one, dict) else one for one in told]
    scores = [_score(value) for value in (*values, raw.get("overall_score"))]
    stop = (str(raw.get("stop_reason") or "unspecified")) if raw.get("stop_conversation") else None
    missing = [name for name, score in zip(ASPECTS, scores, strict=True) if score is None]
    problem = f"no score of {', '.join(missing)}" if missing else None
    if len(missing) == len(ASPECTS):
        return Round(None, stop, 1, problem)
    return Round(scores, stop, int(bool(missing)), problem)


def _score(value: Any) -> int | None:
    """A whole number from 0 to 4, which that program takes as text as well; None for anything else."""
    if isinstance(value, str) and re.fullmatch(r"\s*[0-9](\.0+)?\s*", value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value <= _MAX_SCORE and value == int(value) else None


DETAILS_FORMAT = ImportFormat(
    "kieval", "interact_details.json of the authors' program: interviews, rescored.", read_details
)
