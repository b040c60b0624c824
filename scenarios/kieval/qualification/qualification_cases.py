"""The cases of a qualification: benchmark items with scripted exchanges whose quality is known, and the tasks on them.

`items/exchanges.jsonl` has one item a line. An exchange is a question with a reply of a known kind (`right`, `wrong`,
`partial`, `evasive`, `empty`, `off_topic`, `repeated`), length (`short` or `long`) and grade (1 to 4, the overall score
that it deserves). Right and wrong replies are equally often short and long, in each round, and after right and wrong
first answers, so that a judge gains nothing from length, round, or the verdict that it starts from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import orjson
from pydantic import Field

from viva.data.items import Item

from ...run_settings import (
    ARGUMENT,
    FilePath,
    ModelNames,
    RunSettings,
    pack_option,
    temperature_option,
    tokens_option,
)

RoleName = Literal["candidate", "interactor", "evaluator"]
ROLES: tuple[RoleName, ...] = get_args(RoleName)
_FILE = Path(__file__).parent / "items" / "exchanges.jsonl"
_CHAIN = 3  # exchanges in a conversation that shows an evaluator several
_UNFORCED = 4  # verdicts that are requested without an enforced schema
_BRIEF_ITEMS = 6  # items of a brief qualification, each with one right and one wrong exchange


class QualifySettings(RunSettings):
    """Tests of models in the roles of an interview."""

    model: ModelNames = Field(min_length=1, description="Model to test.", json_schema_extra=ARGUMENT)
    role: list[RoleName] = Field(default=[], description="candidate, interactor or evaluator (default: all three).")
    brief: bool = Field(default=False, description="12 exchanges instead of 40, as before a run.")
    pack: FilePath = pack_option("kieval")
    temperature: float = temperature_option("the model")
    candidate_tokens: int = tokens_option("reply of the candidate", 400)
    interactor_tokens: int = tokens_option("question", 400)
    evaluator_tokens: int = tokens_option("verdict", 400)

    @property
    def tested_roles(self) -> tuple[RoleName, ...]:
        return tuple(role for role in ROLES if not self.role or role in self.role)


@dataclass(frozen=True, slots=True)
class ScriptedExchange:
    """A question and a reply whose quality is known."""

    kind: str
    length: str
    grade: int
    question: str
    reply: str


@dataclass(frozen=True, slots=True)
class QualificationCase:
    """A benchmark item with the candidate's `first` choice, its exchanges, and its reply to any question."""

    id: str
    question: str
    choices: tuple[str, ...]
    answer: int
    first: int
    follow_up: str
    exchanges: tuple[ScriptedExchange, ...]

    @property
    def item(self) -> Item:
        return Item(self.id, self.question, list(self.choices), self.answer)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> QualificationCase:
        exchanges = tuple(ScriptedExchange(**exchange) for exchange in record["exchanges"])
        return cls(**{**record, "choices": tuple(record["choices"]), "exchanges": exchanges})


@dataclass(frozen=True, slots=True)
class QualificationTask:
    """A conversation that tests a model in a role.

    `exchanges` are the indexes of the case's exchanges that an evaluator is shown, in order; `forced` is False if the
    form of its verdicts is only asked for, not enforced. Interactors and candidates have one conversation on each case.
    """

    role: RoleName
    case: QualificationCase
    exchanges: tuple[int, ...] = ()
    forced: bool = True

    @property
    def id(self) -> str:
        places = "-".join(str(index + 1) for index in self.exchanges)
        return "/".join(filter(None, (self.role, self.case.id, places, "" if self.forced else "unforced")))

    def to_record(self) -> dict[str, Any]:
        record = {"role": self.role, "exchanges": list(self.exchanges), "forced": self.forced}
        return record | {"case": orjson.loads(orjson.dumps(asdict(self.case)))}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> QualificationTask:
        case = QualificationCase.from_record(record["case"])
        return cls(record["role"], case, tuple(record["exchanges"]), record["forced"])


@cache
def shipped_cases() -> tuple[QualificationCase, ...]:
    """Return the shipped cases."""
    return tuple(QualificationCase.from_record(orjson.loads(line)) for line in _FILE.read_bytes().splitlines())


def cases_digest(cases: Iterable[QualificationCase]) -> str:
    return hashlib.sha256(orjson.dumps([asdict(case) for case in cases])).hexdigest()[:16]


def qualification_tasks(
    cases: Sequence[QualificationCase], roles: Iterable[RoleName], *, brief: bool
) -> list[QualificationTask]:
    """Return the conversations that test a model in these roles.

    An evaluator judges each exchange as the first of a conversation. The conversation of a case's first exchange shows
    two more, which are thus judged twice, in different rounds; a few exchanges are judged without an enforced schema,
    too. If `brief`, the roles have only the first cases, and an evaluator one right and one wrong exchange of each.
    """
    cases = cases[:_BRIEF_ITEMS] if brief else cases
    tasks: list[QualificationTask] = []
    for role in roles:
        if role != "evaluator":
            tasks += [QualificationTask(role, case) for case in cases]
        elif brief:
            tasks += [QualificationTask(role, case, (index,)) for case in cases for index in _one_of_each(case)]
        else:
            chain = tuple(range(_CHAIN))
            for case in cases:
                tasks.append(QualificationTask(role, case, chain))
                tasks += [QualificationTask(role, case, (index,)) for index in range(1, len(case.exchanges))]
            tasks += [QualificationTask(role, case, (0,), forced=False) for case in cases[:_UNFORCED]]
    return tasks


def _one_of_each(case: QualificationCase) -> list[int]:
    """Return the indexes of the first right and the first wrong exchange."""
    kinds = [exchange.kind for exchange in case.exchanges]
    return sorted((kinds.index("right"), kinds.index("wrong")))
