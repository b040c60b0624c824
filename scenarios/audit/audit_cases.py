"""Settings and cases of an audit: questions with answers, their model families, and human preferences."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

import orjson
from pydantic import Field, field_validator

from viva.data.items import FieldError, preview, record_id, text_field
from viva.data.record_files import located_errors, read_records, sound_records
from viva.engine import seeds
from viva.engine.errors import ConfigurationError, DatasetError

from ..contract import RecordedReply
from ..run_settings import (
    FilePath,
    ModelNames,
    RunSettings,
    count_option,
    file_or,
    pack_option,
    temperature_option,
    tokens_option,
)

AuditName = Literal["position", "verbosity", "format", "self", "labels", "retest"]
AUDITS: tuple[AuditName, ...] = get_args(AuditName)
EXAMPLES = "examples"


class AuditSettings(RunSettings):
    """Audits of judges: do irrelevant changes affect their verdicts?"""

    judge: ModelNames = Field(min_length=1, description="Judge to audit.")
    cases: Annotated[str, file_or(EXAMPLES)] = Field(
        default=EXAMPLES,
        description="JSON or JSONL with question, answers, and optionally id, families (of the models that wrote the "
        "answers), preferred, category; or input, output_1, output_2, label; or 'examples' (shipped).",
    )
    audit: list[AuditName] = Field(
        default=[], description="position, verbosity, format, self, labels, retest (default: all)."
    )
    family: list[str] = Field(
        default=[],
        description="Model family of a judge, as the cases name it (default: the one in its label).",
    )
    n: int | None = count_option("Cases")
    retests: int = Field(default=5, ge=2, le=100, description="How often the same answer is graded (retest).")
    temperature: float = temperature_option("the judge")
    retest_temperature: float = Field(default=0.7, ge=0, le=2, description="Sampling temperature of the audit retest.")
    judge_tokens: int = tokens_option("verdict, including its reasoning", 1024)
    pack: FilePath = pack_option("audit")

    @field_validator("audit")
    @classmethod
    def _once(cls, audits: list[AuditName]) -> list[AuditName]:
        return list(dict.fromkeys(audits))

    @field_validator("family")
    @classmethod
    def _pairs(cls, families: list[str]) -> list[str]:
        for text in families:
            label, sign, family = text.rpartition("=")
            if not (label and sign and family):
                raise ValueError(f"found '{text}', expected LABEL=FAMILY")
        return families

    examples: ClassVar[dict[str, str]] = {}

    @property
    def audits(self) -> tuple[AuditName, ...]:
        return tuple(name for name in AUDITS if not self.audit or name in self.audit)


TIE = "tie"
_MAX_ANSWERS = 20


@dataclass(frozen=True, slots=True)
class AuditCase:
    """A question with answers.

    `families` has the model family of each answer, None if unknown. `preferred` is the index of the answer that people
    prefer, `tie`, or None if nobody has compared them. `category` groups cases in reports.
    """

    id: str
    question: str
    answers: tuple[str, ...]
    families: tuple[str | None, ...]
    preferred: int | str | None = None
    category: str | None = None

    @property
    def paired(self) -> bool:
        return len(self.answers) == 2

    @property
    def single(self) -> int:
        """The index of the answer that audits of a single answer use; it depends on the case's id."""
        at = int(seeds.uniform(self.id, "single") * len(self.answers))
        return at if self.answers[at].strip() else max(range(len(self.answers)), key=lambda i: bool(self.answers[i]))

    def to_record(self) -> dict[str, Any]:
        """Return plain data for `from_record`; a case file has the same fields. Cases without a category omit it."""
        record = {**asdict(self), "answers": list(self.answers), "families": list(self.families)}
        return {name: value for name, value in record.items() if name != "category" or value is not None}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> AuditCase:
        """Return the case of a record; a missing field raises `KeyError`."""
        return cls(**{**record, "answers": tuple(record["answers"]), "families": tuple(record["families"])})


def case_lines(cases: Iterable[AuditCase]) -> bytes:
    """Return cases as JSON lines, which `open_cases` reads."""
    return b"".join(orjson.dumps(case.to_record()) + b"\n" for case in cases)


def open_cases(source: str, limit: int | None, seed: int) -> list[AuditCase]:
    """Return the cases of a file, or for `examples` the shipped ones: all, or `limit` of them sampled by the seed.

    A line with more than two answers becomes one case per pair of answers.

    Raises:
        DatasetError: A line is wrong; the message names file, line and field.
    """
    path = Path(__file__).parent / "items" / "audit.jsonl" if source == EXAMPLES else Path(source)
    cases: list[AuditCase] = []
    lines: dict[str, int] = {}
    for line, raw in sound_records(read_records(path)):
        with located_errors(path, line):
            for case in _parse_cases(raw, line):
                if lines.setdefault(case.id, line) != line or any(case.id == previous.id for previous in cases[-1:]):
                    raise FieldError("id", f"'{case.id}' is already in line {lines[case.id]}; ids must be unique")
                cases.append(case)
    if not cases:
        raise DatasetError("has no cases", path=str(path))
    return sample_cases(cases, limit, seed)


def sample_cases(cases: list[AuditCase], limit: int | None, seed: int) -> list[AuditCase]:
    """Return `limit` of the cases (None: all), sampled by the seed, in their original order."""
    if limit is None or limit >= len(cases):
        return cases
    chosen = sorted(cases, key=lambda case: seeds.uniform(seed, case.id, "case"))[:limit]
    names = {case.id for case in chosen}
    return [case for case in cases if case.id in names]


def reply_cases(replies: Iterable[RecordedReply]) -> list[AuditCase]:
    """Make a case of every two models' answers to the same prompt.

    The family of an answer is its model's label. Empty answers are left out, and so are questions that only one model
    answered.
    """
    by_question: dict[tuple[str, int, str], dict[str, str]] = {}
    for reply in replies:
        if reply.question.strip() and reply.reply.strip():
            by_question.setdefault((reply.item, reply.number, reply.question), {})[reply.label] = reply.reply
    return [
        AuditCase(f"{item}/{number}:{a}-{b}", question, (by_model[a], by_model[b]), (a, b))
        for (item, number, question), by_model in by_question.items()
        for a, b in combinations(by_model, 2)
    ]


def cases_digest(cases: Iterable[AuditCase]) -> str:
    return hashlib.sha256(case_lines(cases)).hexdigest()[:16]


def _parse_cases(raw: Mapping[str, Any], line: int) -> Iterator[AuditCase]:
    question, answers, preferred = _case_parts(raw)
    families = raw.get("families") or [None] * len(answers)
    if not isinstance(families, list) or len(families) != len(answers):
        raise FieldError("families", f"expected one per answer ({len(answers)}), found {preview(families)}")
    if wrong := [
        family for family in families if family is not None and (not isinstance(family, str) or not family.strip())
    ]:
        raise FieldError("families", f"expected texts or null, found {preview(wrong[0])}")
    id_ = next((name for field in _IDS if (name := record_id(raw, field))), f"line {line}")
    case = AuditCase(id_, question, tuple(answers), tuple(families), preferred, _category(raw))
    if len(answers) < 3:
        yield case
        return
    for first, second in combinations(range(len(answers)), 2):
        best = {first: 0, second: 1}.get(preferred) if isinstance(preferred, int) else preferred  # within this pair
        yield replace(
            case,
            id=f"{case.id}:{first}-{second}",
            answers=(answers[first], answers[second]),
            families=(families[first], families[second]),
            preferred=best,
        )


_IDS = ("id", "pair_id", "idx")
_CATEGORIES = ("category", "subset", "source")
_LONGEST_CATEGORY = 60
# Public forms of pairs: the fields of the question and both answers, the field of the label, and its values for a tie
# and for either answer. `input` follows `instruction` if both are there.
_PAIR_FORMS: tuple[tuple[tuple[str, str, str], str, tuple[str, str, str]], ...] = (
    (("input", "output_1", "output_2"), "label", ("0", "1", "2")),
    (("instruction", "output_1", "output_2"), "label", ("0", "1", "2")),
    (("instruction", "response1", "response2"), "label", ("0", "1", "2")),
    (("question", "response_A", "response_B"), "label", ("A=B", "A>B", "B>A")),
)
_CHOSEN = ("prompt", "chosen", "rejected")  # the first answer is preferred


def is_case_record(raw: Mapping[str, Any]) -> bool:
    """Return True if a record has the fields of a case in one of the known forms."""
    return ("question" in raw and isinstance(raw.get("answers"), list)) or _pair_form(raw) is not None


def _pair_form(raw: Mapping[str, Any]) -> tuple[tuple[str, str, str], str | None, tuple[str, str, str]] | None:
    """Return the public form of a pair, None if the record has none."""
    for fields, label, values in _PAIR_FORMS:
        if all(field in raw for field in fields):
            return fields, label, values
    return (_CHOSEN, None, ("0", "1", "2")) if all(field in raw for field in _CHOSEN) else None


def _case_parts(raw: Mapping[str, Any]) -> tuple[str, list[str], int | str | None]:
    """Return question, answers and preference of a record.

    Raises:
        FieldError: A field is missing or has a wrong value.
    """
    form = None if "answers" in raw else _pair_form(raw)
    if form is None:
        question = text_field(raw, "question")
        answers = raw.get("answers")
        if not isinstance(answers, list) or not 1 <= len(answers) <= _MAX_ANSWERS:
            expected = f"expected a list of 1 to {_MAX_ANSWERS} texts"
            raise FieldError("answers", f"{expected}, found {preview(answers)}")
        for at, answer in enumerate(answers):
            if not isinstance(answer, str) or not answer.strip():
                raise FieldError(f"answers.{at}", f"expected text, found {preview(answer)}")
        preferred = raw.get("preferred")
        if (
            preferred is not None
            and preferred != TIE
            and (isinstance(preferred, bool) or not isinstance(preferred, int) or not 0 <= preferred < len(answers))
        ):
            message = f"expected an index from 0 to {len(answers) - 1} or 'tie', found {preview(preferred)}"
            raise FieldError("preferred", message)
        return question, answers, preferred
    (question_field, *answer_fields), label, values = form
    parts = ("instruction", "input") if question_field in ("instruction", "input") else (question_field,)
    texts = [raw[field].strip() for field in parts if isinstance(raw.get(field), str) and raw[field].strip()]
    question = "\n\n".join(texts) if texts else text_field(raw, question_field)
    for field in answer_fields:
        if not isinstance(raw[field], str | int | float):  # published pairs hold empty answers, and answers like `true`
            raise FieldError(field, f"expected text, found {preview(raw[field])}")
    answers = [str(raw[field]) for field in answer_fields]
    return question, answers, 0 if label is None else _labelled_answer(raw, label, values)


def _labelled_answer(raw: Mapping[str, Any], label: str, values: tuple[str, str, str]) -> int | str | None:
    """Return the preferred answer of a public form: its label, or what most annotators preferred; None without one."""
    value = raw.get(label)
    if value is None:
        votes = Counter(str(vote) for field, vote in raw.items() if _ANNOTATOR.fullmatch(field) and vote is not None)
        ranked = votes.most_common(2)
        if not ranked or (len(ranked) > 1 and ranked[0][1] == ranked[1][1]):
            return None
        value = ranked[0][0]
    text = str(value).strip()
    if isinstance(value, bool) or text not in values:
        raise FieldError(label, f"expected {values[1]}, {values[2]}, or {values[0]} for a tie, found {preview(value)}")
    return TIE if text == values[0] else values.index(text) - 1


_ANNOTATOR = re.compile(r"annotator_?\d+")


def _category(raw: Mapping[str, Any]) -> str | None:
    value = next((raw[field] for field in _CATEGORIES if isinstance(raw.get(field), str)), "")
    return " ".join(value.split())[:_LONGEST_CATEGORY] or None


def check_has_pairs(cases: Iterable[AuditCase], audits: Iterable[str]) -> None:
    """Raise `ConfigurationError` if all audits need cases with two answers, and there are none."""
    if not any(case.paired for case in cases) and set(audits) <= {"position", "self"}:
        raise ConfigurationError("cases: no case has two answers; the audits position and self need two")
