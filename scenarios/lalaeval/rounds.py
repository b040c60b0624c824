"""Rounds of a project: questions sampled from the bank by dimension, difficulty and quota, with the rubric in force."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from viva.engine import seeds
from viva.engine.errors import ConfigurationError
from viva.engine.files import write_atomically

from .project import Counts, Project
from .question_bank import Bank, Pair


def sample_questions(
    pairs: Iterable[Pair],
    seed: int,
    day: date,
    *,
    n: int | None = None,
    quota: Mapping[str, Counts] | None = None,
    exclude: Mapping[str, str] = MappingProxyType({}),
) -> list[Pair]:
    """Questions whose standard answer holds on that day: ``n`` of all, or as many as ``quota`` says of each dimension
    and difficulty, or all of them; by dimension, then in the order of the draw.

    Args:
        without: ids of questions that are not to be drawn, each with the name of the round that it was in.

    :raises ConfigurationError: there are not so many; the message names every dimension and difficulty that lacks some,
        and how many were left out.
    """
    valid = [pair for pair in pairs if pair.valid_on(day)]
    unused = [pair for pair in valid if pair.id not in exclude]
    ranked = sorted(unused, key=lambda pair: (_rank(seed, pair), pair.id))
    used = _exclusion_note(len(valid) - len(unused), {exclude[pair.id] for pair in valid if pair.id in exclude})
    if quota:
        return _fill_quota(ranked, quota, day, used)
    if not ranked:
        raise ConfigurationError(f"no accepted question is valid on {day}{used}; see `viva grade bank list`")
    if n is not None and n > len(ranked):
        raise ConfigurationError(f"{n} questions are wanted, and {len(ranked)} accepted ones are valid on {day}{used}")
    return _sort_pairs(ranked[:n])


def _exclusion_note(count: int, rounds: Collection[str]) -> str:
    """Say how many questions were left out because graders have seen them; nothing where there are none."""
    if not count:
        return ""
    names = " and ".join(f"round {name}" for name in sorted(rounds))
    return f" ({count} more were in {names}; --reuse-questions draws these too)"


def sample_gold_questions(
    pairs: Iterable[Pair], count: int, seen_ids: Collection[str], seed: int, day: date
) -> list[Pair]:
    """Return up to ``wanted`` questions with gold answers, those that graders have ``seen`` last."""
    candidates = [pair for pair in pairs if pair.gold and pair.valid_on(day)]
    return sorted(candidates, key=lambda pair: (pair.id in seen_ids, _rank(seed, pair), pair.id))[:count]


def _fill_quota(ranked: list[Pair], quota: Mapping[str, Counts], day: date, used: str) -> list[Pair]:
    chosen: list[Pair] = []
    short = []
    for dimension, counts in quota.items():
        for difficulty, needed in counts.items():
            candidates = [pair for pair in ranked if pair.dimension == dimension and pair.difficulty == difficulty]
            if len(candidates) < needed:
                short.append(f"{dimension}, {difficulty}: {needed} wanted, {len(candidates)} there")
            chosen += candidates[:needed]
    if short:
        raise ConfigurationError(
            f"the quota cannot be met from accepted questions that are valid on {day}{used}: {'; '.join(short)}; "
            "accept more, or lower the quota"
        )
    return _sort_pairs(chosen)


def _sort_pairs(pairs: list[Pair]) -> list[Pair]:
    return sorted(pairs, key=lambda pair: pair.dimension)  # stable: within a dimension the order of the draw


def _rank(seed: int, pair: Pair) -> float:
    return seeds.uniform(seed, "draw", pair.id)


RoundKind = Literal["evaluation", "trial"]
ANSWERS_FOLDER = "answers"
QUESTIONS_FILE = "questions.jsonl"
_GOLD_FILE = "gold.jsonl"
_ROUND_FILE = "round.json"


class _RoundModel(BaseModel):
    model_config = ConfigDict(extra="forbid")


class GradingCriteria(_RoundModel):
    """What graders of one dimension went by."""

    weight: float
    grades: dict[int, str]
    principle: str = ""


class RoundRecord(_RoundModel):
    """``round.json``: how a round was drawn, and what of the project held then. ``at``: seconds since 1970."""

    name: str
    kind: RoundKind
    at: float
    title: str
    seed: int
    day: date
    n: int | None = None
    quota: dict[str, Counts] | None = None
    overlap: int
    rubric: dict[str, Any]
    dimensions: dict[str, GradingCriteria]
    priority: dict[str, str]
    graders: list[dict[str, str]]
    rules: dict[str, Any]
    training: dict[str, Any]


@dataclass(slots=True)
class Round:
    """A round as it lies on disk: its record, its questions, and those with gold answers."""

    path: Path
    record: RoundRecord
    pairs: list[Pair]
    gold: list[Pair] = field(default_factory=list)

    @property
    def answers(self) -> Path:
        """The run folder of the collected answers."""
        return self.path / ANSWERS_FOLDER

    @property
    def questions(self) -> Path:
        """The file of the drawn questions."""
        return self.path / QUESTIONS_FILE


def make_round(
    project: Project,
    bank: Bank,
    name: str,
    *,
    kind: RoundKind = "evaluation",
    seed: int | None = None,
    n: int | None = None,
    quota: Mapping[str, Counts] | None = None,
    reuse: bool = False,
    day: date,
) -> Round:
    """Draw a new round's questions and write them down. Without ``n`` and ``quota`` the project's quota counts.

    Questions of trials are not drawn for evaluations, nor the other way round, unless ``reuse``: graders would know
    them.

    :raises ConfigurationError: there are not enough questions, or the round cannot be written.
    """
    seed = project.file.seed if seed is None else seed
    effective_quota = dict(quota or {}) or (project.quota() if n is None else {})
    accepted = [entry.pair for entry in bank.entries("accepted")]
    other_questions = {} if reuse else _questions_of_other_kind(project, kind)
    pairs = sample_questions(accepted, seed, day, n=n, quota=effective_quota, exclude=other_questions)
    seen_ids = {*other_questions, *(pair.id for pair in pairs)}
    gold = sample_gold_questions(accepted, math.ceil(project.file.gold * len(pairs) - 1e-9), seen_ids, seed, day)
    file, rubrics = project.file, bank.rubrics()
    record = RoundRecord(
        name=name,
        kind=kind,
        at=time.time(),
        title=file.title,
        seed=seed,
        day=day,
        n=n,
        quota=effective_quota or None,
        overlap=file.overlap,
        rubric={"digest": rubrics[-1].digest, "version": rubrics[-1].number},
        dimensions={
            path: GradingCriteria(weight=dimension.weight, grades=dict(dimension.grades), principle=dimension.principle)
            for path, dimension in project.dimensions.items()
        },
        priority={path: priority for path, priority in project.domains.items() if priority},
        graders=[grader.model_dump() for grader in file.graders],
        rules=file.disputes.model_dump(mode="json"),
        training=file.training.model_dump(mode="json"),
    )
    round_ = Round(project.round(name), record, pairs, gold)
    try:
        round_.path.mkdir(parents=True, exist_ok=True)
        write_atomically(round_.path / QUESTIONS_FILE, _to_jsonl(pairs))
        write_atomically(round_.path / _GOLD_FILE, _to_jsonl(gold))
        # The last of all: where it stands, the round was drawn.
        contents = orjson.dumps(record.model_dump(mode="json"), option=orjson.OPT_INDENT_2)
        write_atomically(round_.path / _ROUND_FILE, contents + b"\n")
    except OSError as error:
        raise ConfigurationError(f"{round_.path}: cannot be written: {error.strerror}") from None
    return round_


def _questions_of_other_kind(project: Project, kind: RoundKind) -> dict[str, str]:
    """Return the ids of questions that rounds of the other kind hold, each with the name of its first such round."""
    round_names: dict[str, str] = {}
    for path in filter(is_round, project.rounds()):
        round_ = open_round(path)
        if round_.record.kind != kind:
            for pair in (*round_.pairs, *round_.gold):
                round_names.setdefault(pair.id, round_.record.name)
    return round_names


def is_round(path: Path) -> bool:
    """Whether a round was drawn here."""
    return (path / _ROUND_FILE).is_file()


def open_round(path: Path) -> Round:
    """A round that was drawn.

    :raises ConfigurationError: there is none, or its files were changed by hand.
    """
    file = path / _ROUND_FILE
    try:
        record = RoundRecord.model_validate_json(file.read_bytes())
        pairs, gold = (
            [Pair.from_record(orjson.loads(line)) for line in (path / name).read_bytes().splitlines()]
            for name in (QUESTIONS_FILE, _GOLD_FILE)
        )
    except (OSError, ValidationError, ValueError, KeyError, TypeError) as error:
        problem = str(error).splitlines()[0]
        raise ConfigurationError(f"{file}: cannot be read as a round: {problem}; restore it from a copy") from None
    return Round(path, record, pairs, gold)


def check_unchanged(
    round_: Round, kind: RoundKind, seed: int | None, n: int | None, quota: Mapping[str, Counts] | None
) -> None:
    """See that a round that goes on was drawn as is asked for now; what is not given is not compared.

    :raises ConfigurationError: it was drawn otherwise.
    """
    record = round_.record
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


def _to_jsonl(pairs: Iterable[Pair]) -> bytes:
    return b"".join(orjson.dumps(pair.to_record(), option=orjson.OPT_APPEND_NEWLINE) for pair in pairs)
