"""The cases of an audit: a question with one or two answers, the families that wrote them, and whom people prefer.

What never belongs here: what is asked about a case (``protocol``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import orjson

from viva.data.fields import FieldError, own_id, shown, text_field
from viva.data.reading import read_records
from viva.engine import seeds
from viva.engine.errors import ConfigurationError, DatasetError

from ..rated import RecordedReply
from .settings import EXAMPLES

TIE = "tie"
_MOST_ANSWERS = 20


@dataclass(frozen=True, slots=True)
class AuditCase:
    """``families`` has that of each answer, None where it is not known. ``preferred``: the index of the answer that
    people prefer, ``tie``, or None where nobody has said.
    """

    id: str
    question: str
    answers: tuple[str, ...]
    families: tuple[str | None, ...]
    preferred: int | str | None = None

    @property
    def paired(self) -> bool:
        """Whether there are two answers."""
        return len(self.answers) == 2

    @property
    def single(self) -> int:
        """The answer that is taken where one is enough: either, by the id."""
        return int(seeds.uniform(self.id, "single") * len(self.answers))

    def to_record(self) -> dict[str, Any]:
        """Plain data; ``from_record`` reads it back, and so does a file of such lines."""
        return {
            "id": self.id,
            "question": self.question,
            "answers": list(self.answers),
            "families": list(self.families),
            "preferred": self.preferred,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> AuditCase:
        """:raises KeyError: a field is missing."""
        answers, families = tuple(record["answers"]), tuple(record["families"])
        return cls(record["id"], record["question"], answers, families, record["preferred"])


def case_lines(cases: Iterable[AuditCase]) -> bytes:
    """Cases as JSON lines, which ``open_cases`` reads."""
    return b"".join(orjson.dumps(case.to_record()) + b"\n" for case in cases)


def open_cases(source: str, limit: int | None, seed: int) -> list[AuditCase]:
    """The cases of a file, or the shipped ones; ``limit`` of them, drawn by the seed.

    A line with more than two answers is a case for each pair of them.

    :raises DatasetError: naming file, line and field.
    """
    path = Path(__file__).parent / "items" / "audit.jsonl" if source == EXAMPLES else Path(source)
    cases: list[AuditCase] = []
    lines: dict[str, int] = {}
    for line, raw in read_records(path):
        if isinstance(raw, DatasetError):
            raise raw
        try:
            for case in _cases(raw, line):
                if lines.setdefault(case.id, line) != line or any(case.id == other.id for other in cases[-1:]):
                    raise FieldError("id", f"'{case.id}' stands in line {lines[case.id]} already; ids are unique")
                cases.append(case)
        except FieldError as error:
            raise DatasetError(str(error), path=str(path), line=line, field=error.field) from None
    if not cases:
        raise DatasetError("holds no case", path=str(path))
    return drawn_cases(cases, limit, seed)


def drawn_cases(cases: list[AuditCase], limit: int | None, seed: int) -> list[AuditCase]:
    """So many of the cases, drawn by the seed, in their order."""
    if limit is None or limit >= len(cases):
        return cases
    chosen = sorted(cases, key=lambda case: seeds.uniform(seed, case.id, "case"))[:limit]
    names = {case.id for case in chosen}
    return [case for case in cases if case.id in names]


def reply_cases(replies: Iterable[RecordedReply]) -> list[AuditCase]:
    """Two answers to the same words, by different models, as a case, an answer's family being its model's label; empty
    answers, and questions that only one was asked, give none.
    """
    by_question: dict[tuple[str, int, str], dict[str, str]] = {}
    for one in replies:
        if one.question.strip() and one.reply.strip():
            by_question.setdefault((one.item, one.number, one.question), {})[one.label] = one.reply
    return [
        AuditCase(f"{item}/{number}:{a}-{b}", question, (said[a], said[b]), (a, b))
        for (item, number, question), said in by_question.items()
        for a, b in combinations(said, 2)
    ]


def digest_of(cases: Iterable[AuditCase]) -> str:
    """What identifies the cases in a manifest."""
    return hashlib.sha256(case_lines(cases)).hexdigest()[:16]


def _cases(raw: Mapping[str, Any], line: int) -> Iterator[AuditCase]:
    question = text_field(raw, "question")
    answers = raw.get("answers")
    if not isinstance(answers, list) or not 1 <= len(answers) <= _MOST_ANSWERS:
        raise FieldError("answers", f"expected a list of 1 to {_MOST_ANSWERS} texts, found {shown(answers)}")
    for at, answer in enumerate(answers):
        if not isinstance(answer, str) or not answer.strip():
            raise FieldError(f"answers.{at}", f"expected text, found {shown(answer)}")
    families = raw.get("families") or [None] * len(answers)
    if not isinstance(families, list) or len(families) != len(answers):
        raise FieldError("families", f"expected one for each of {len(answers)} answers, found {shown(families)}")
    if wrong := [one for one in families if one is not None and (not isinstance(one, str) or not one.strip())]:
        raise FieldError("families", f"expected texts or null, found {shown(wrong[0])}")
    preferred = raw.get("preferred")
    if (
        preferred is not None
        and preferred != TIE
        and (isinstance(preferred, bool) or not isinstance(preferred, int) or not 0 <= preferred < len(answers))
    ):
        message = f"expected an index from 0 to {len(answers) - 1} or 'tie', found {shown(preferred)}"
        raise FieldError("preferred", message)
    case = AuditCase(own_id(raw, "id") or f"line {line}", question, tuple(answers), tuple(families), preferred)
    if len(answers) < 3:
        yield case
        return
    for one, other in combinations(range(len(answers)), 2):
        best = {one: 0, other: 1}.get(preferred) if isinstance(preferred, int) else preferred  # of this pair
        yield replace(
            case,
            id=f"{case.id}:{one}-{other}",
            answers=(answers[one], answers[other]),
            families=(families[one], families[other]),
            preferred=best,
        )


def check_paired(cases: Iterable[AuditCase], audits: Iterable[str]) -> None:
    """:raises ConfigurationError: there is nothing for any of the audits to look at."""
    if not any(case.paired for case in cases) and set(audits) <= {"position", "self"}:
        raise ConfigurationError("cases: none has two answers, which the audits position and self compare")
