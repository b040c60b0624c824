"""Rounds of a project: questions sampled from the bank by dimension, difficulty and quota, with the current rubric."""

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
    """Sample questions whose standard answer is valid on that day, by dimension, then in the order of the draw.

    The sample has `n` questions, or as many per dimension and difficulty as `quota` says, or all. `exclude` maps the
    ids of questions that are not drawn to the names of their rounds.

    Raises:
        ConfigurationError: There are too few; the message lists every dimension and difficulty that lacks some, and how
            many were excluded.
    """
    valid = [pair for pair in pairs if pair.valid_on(day)]
    unused = [pair for pair in valid if pair.id not in exclude]
    ranked = sorted(unused, key=lambda pair: (_rank(seed, pair), pair.id))
    note = _exclusion_note(len(valid) - len(unused), {exclude[pair.id] for pair in valid if pair.id in exclude})
    if quota:
        return _fill_quota(ranked, quota, day, note)
    if not ranked:
        raise ConfigurationError(f"no accepted question is valid on {day}{note}; see `viva grade bank list`")
    if n is not None and n > len(ranked):
        raise ConfigurationError(f"-n {n}: only {len(ranked)} accepted questions are valid on {day}{note}")
    return _sort_pairs(ranked[:n])


def _exclusion_note(count: int, rounds: Collection[str]) -> str:
    """Return a note on the questions excluded because graders have seen them, or ""."""
    if not count:
        return ""
    names = " and ".join(f"round {name}" for name in sorted(rounds))
    return f" ({count} more were in {names}; --reuse-questions includes them)"


def sample_gold_questions(
    pairs: Iterable[Pair], count: int, seen_ids: Collection[str], seed: int, day: date
) -> list[Pair]:
    """Return up to `count` questions with gold answers; pairs that graders have seen come last."""
    candidates = [pair for pair in pairs if pair.gold and pair.valid_on(day)]
    return sorted(candidates, key=lambda pair: (pair.id in seen_ids, _rank(seed, pair), pair.id))[:count]


def _fill_quota(ranked: list[Pair], quota: Mapping[str, Counts], day: date, note: str) -> list[Pair]:
    chosen: list[Pair] = []
    short = []
    for dimension, counts in quota.items():
        for difficulty, needed in counts.items():
            candidates = [pair for pair in ranked if pair.dimension == dimension and pair.difficulty == difficulty]
            if len(candidates) < needed:
                short.append(f"{dimension}, {difficulty}: {needed} needed, {len(candidates)} available")
            chosen += candidates[:needed]
    if short:
        raise ConfigurationError(
            f"the quota cannot be met from accepted questions that are valid on {day}{note}: {'; '.join(short)}; "
            "accept more, or lower the quota"
        )
    return _sort_pairs(chosen)


def _sort_pairs(pairs: list[Pair]) -> list[Pair]:
    return sorted(pairs, key=lambda pair: pair.dimension)  # stable: keeps the order of the draw within a dimension


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
    """Instructions to graders for one dimension."""

    weight: float
    grades: dict[int, str]
    principle: str = ""


class RoundRecord(_RoundModel):
    """Contents of `round.json`: how a round was drawn, and the project at that time. `at`: seconds since 1970."""

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
    """Round on disk: its record, its questions, and its questions with gold answers."""

    path: Path
    record: RoundRecord
    pairs: list[Pair]
    gold: list[Pair] = field(default_factory=list)

    @property
    def answers(self) -> Path:
        """Run folder of the collected answers."""
        return self.path / ANSWERS_FOLDER

    @property
    def questions(self) -> Path:
        """File of the drawn questions."""
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
    """Draw and store a new round's questions. Without `n` and `quota` the project's quota applies.

    Questions of trials are not drawn for evaluations, and vice versa, unless `reuse`: graders would know them.

    Raises:
        ConfigurationError: There are too few questions, or the round cannot be written.
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
        # Written last: its presence means that the round was drawn.
        contents = orjson.dumps(record.model_dump(mode="json"), option=orjson.OPT_INDENT_2)
        write_atomically(round_.path / _ROUND_FILE, contents + b"\n")
    except OSError as error:
        raise ConfigurationError(f"{round_.path}: cannot be written: {error.strerror}") from None
    return round_


def _questions_of_other_kind(project: Project, kind: RoundKind) -> dict[str, str]:
    """Return the ids of questions in rounds of the other kind, each with the name of its first such round."""
    round_names: dict[str, str] = {}
    for path in filter(is_round, project.rounds()):
        round_ = open_round(path)
        if round_.record.kind != kind:
            for pair in (*round_.pairs, *round_.gold):
                round_names.setdefault(pair.id, round_.record.name)
    return round_names


def is_round(path: Path) -> bool:
    """Return True if a round was drawn here."""
    return (path / _ROUND_FILE).is_file()


def open_round(path: Path) -> Round:
    """Open an existing round.

    Raises:
        ConfigurationError: There is none, or its files were changed by hand.
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
    """Check that an existing round was drawn with these options; omitted ones are not compared.

    Raises:
        ConfigurationError: It was drawn with others.
    """
    record = round_.record
    compared: list[tuple[str, Any, Any]] = [
        ("--seed", record.seed, seed), ("-n", record.n, n), ("--quota", record.quota, dict(quota or {}) or None)
    ]  # fmt: skip
    different = [f"{name} was {then}" for name, then, now in compared if now is not None and now != then]
    if record.kind != kind:
        different.append(f"it is {'a trial' if record.kind == 'trial' else 'not a trial'}")
    if different:
        raise ConfigurationError(
            f"round {record.name} was drawn with other options ({', '.join(different)}); choose another --round"
        )


def _to_jsonl(pairs: Iterable[Pair]) -> bytes:
    return b"".join(orjson.dumps(pair.to_record(), option=orjson.OPT_APPEND_NEWLINE) for pair in pairs)
