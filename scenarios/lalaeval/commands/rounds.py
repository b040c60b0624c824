"""A round of a project: what was drawn, and by which rubric it is graded, kept beside the answers.

What is drawn is written down before the first answer, so the same command goes on with it whatever happened to the bank
since. What never belongs here: the command line, and grades.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from viva.engine.errors import ConfigurationError
from viva.engine.files import write_atomically

from ..bank import Bank
from ..bank_rows import Pair
from ..drawing import draw, draw_gold
from ..project import Project
from ..project_file import Counts

Kind = Literal["evaluation", "trial"]
ANSWERS = "answers"
QUESTIONS = "questions.jsonl"
_GOLD = "gold.jsonl"
_ROUND = "round.json"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Criteria(_Part):
    """What graders of one dimension went by."""

    weight: float
    grades: dict[int, str]
    principle: str = ""


class Round(_Part):
    """``round.json``: how a round was drawn, and what of the project held then. ``at``: seconds since 1970."""

    name: str
    kind: Kind
    at: float
    title: str
    seed: int
    day: date
    n: int | None = None
    quota: dict[str, Counts] | None = None
    overlap: int
    rubric: dict[str, Any]
    dimensions: dict[str, Criteria]
    priority: dict[str, str]
    graders: list[dict[str, str]]
    rules: dict[str, Any]
    training: dict[str, Any]


@dataclass(slots=True)
class Drawn:
    """A round as it lies on disk: its record, its questions, and those with gold answers."""

    path: Path
    record: Round
    pairs: list[Pair]
    gold: list[Pair] = field(default_factory=list)

    @property
    def answers(self) -> Path:
        """The run folder of the collected answers."""
        return self.path / ANSWERS

    @property
    def questions(self) -> Path:
        """The file of the drawn questions."""
        return self.path / QUESTIONS


def draw_round(
    project: Project,
    bank: Bank,
    name: str,
    *,
    kind: Kind = "evaluation",
    seed: int | None = None,
    n: int | None = None,
    quota: Mapping[str, Counts] | None = None,
    reuse: bool = False,
    day: date,
) -> Drawn:
    """Draw a new round's questions and write them down. Without ``n`` and ``quota`` the project's quota counts.

    Questions of trials are not drawn for evaluations, nor the other way round, unless ``reuse``: graders would know
    them.

    :raises ConfigurationError: there are not enough questions, or the round cannot be written.
    """
    seed = project.file.seed if seed is None else seed
    wanted = dict(quota or {}) or (project.quota() if n is None else {})
    accepted = [entry.pair for entry in bank.entries("accepted")]
    others = {} if reuse else _questions_of_others(project, kind)
    pairs = draw(accepted, seed, day, n=n, quota=wanted, without=others)
    seen = {*others, *(pair.id for pair in pairs)}
    gold = draw_gold(accepted, math.ceil(project.file.gold * len(pairs) - 1e-9), seen, seed, day)
    file, rubrics = project.file, bank.rubrics()
    record = Round(
        name=name,
        kind=kind,
        at=time.time(),
        title=file.title,
        seed=seed,
        day=day,
        n=n,
        quota=wanted or None,
        overlap=file.overlap,
        rubric={"digest": rubrics[-1].digest, "version": rubrics[-1].number},
        dimensions={
            path: Criteria(weight=one.weight, grades=dict(one.grades), principle=one.principle)
            for path, one in project.dimensions.items()
        },
        priority={path: priority for path, priority in project.domains.items() if priority},
        graders=[one.model_dump() for one in file.graders],
        rules=file.disputes.model_dump(mode="json"),
        training=file.training.model_dump(mode="json"),
    )
    drawn = Drawn(project.round(name), record, pairs, gold)
    try:
        drawn.path.mkdir(parents=True, exist_ok=True)
        write_atomically(drawn.path / QUESTIONS, _lines(pairs))
        write_atomically(drawn.path / _GOLD, _lines(gold))
        # The last of all: where it stands, the round was drawn.
        written = orjson.dumps(record.model_dump(mode="json"), option=orjson.OPT_INDENT_2)
        write_atomically(drawn.path / _ROUND, written + b"\n")
    except OSError as error:
        raise ConfigurationError(f"{drawn.path}: cannot be written: {error.strerror}") from None
    return drawn


def _questions_of_others(project: Project, kind: Kind) -> dict[str, str]:
    """Return the ids of questions that rounds of the other kind hold, each with the name of its first such round."""
    found: dict[str, str] = {}
    for path in filter(is_drawn, project.rounds()):
        drawn = open_round(path)
        if drawn.record.kind != kind:
            for pair in (*drawn.pairs, *drawn.gold):
                found.setdefault(pair.id, drawn.record.name)
    return found


def is_drawn(path: Path) -> bool:
    """Whether a round was drawn here."""
    return (path / _ROUND).is_file()


def open_round(path: Path) -> Drawn:
    """A round that was drawn.

    :raises ConfigurationError: there is none, or its files were changed by hand.
    """
    file = path / _ROUND
    try:
        record = Round.model_validate_json(file.read_bytes())
        pairs, gold = (
            [Pair.from_record(orjson.loads(line)) for line in (path / name).read_bytes().splitlines()]
            for name in (QUESTIONS, _GOLD)
        )
    except (OSError, ValidationError, ValueError, KeyError, TypeError) as error:
        said = str(error).splitlines()[0]
        raise ConfigurationError(f"{file}: cannot be read as a round: {said}; restore it from a copy") from None
    return Drawn(path, record, pairs, gold)


def check_same(drawn: Drawn, kind: Kind, seed: int | None, n: int | None, quota: Mapping[str, Counts] | None) -> None:
    """See that a round that goes on was drawn as is asked for now; what is not given is not compared.

    :raises ConfigurationError: it was drawn otherwise.
    """
    record = drawn.record
    compared: list[tuple[str, Any, Any]] = [
        ("--seed", record.seed, seed), ("-n", record.n, n), ("--quota", record.quota, dict(quota or {}) or None)
    ]  # fmt: skip
    different = [f"{name} was {then}" for name, then, now in compared if now is not None and now != then]
    if record.kind != kind:
        different.append(f"it is {'a trial' if record.kind == 'trial' else 'no trial'}")
    if different:
        raise ConfigurationError(
            f"round {record.name} was drawn otherwise ({', '.join(different)}); name another one with --round"
        )


def _lines(pairs: Iterable[Pair]) -> bytes:
    return b"".join(orjson.dumps(pair.to_record(), option=orjson.OPT_APPEND_NEWLINE) for pair in pairs)
