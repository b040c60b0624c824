"""Settings and prompts of comparisons: a file of prompts with one or more turns, in MT-Bench's form or plain."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, ClassVar, Literal

import orjson
from pydantic import Field, field_validator, model_validator

from viva.data.items import FieldError, optional_text, preview, record_id, text_field
from viva.data.record_files import located_errors, read_records, sound_records
from viva.engine.errors import ConfigurationError, DatasetError, did_you_mean

from ..inline_tasks import SampledTasks
from ..models import model_labels
from ..run_settings import (
    ExistingPath,
    FilePath,
    ModelNames,
    RunSettings,
    count_option,
    pack_option,
    temperature_option,
    tokens_option,
)

ALL, BASELINE, ADAPTIVE = "all", "baseline:", "adaptive"
PAIRS, SINGLE = "pairs", "single"
_MAX_TURNS = 10
_MAX_MODELS = 64
_PROMPT_FIELDS = ("prompt", "question", "instruction")


class PairwiseSettings(RunSettings):
    """Models answer prompts; a judge compares their answers in pairs, in both orders, or grades each of them."""

    prompts: FilePath = Field(
        description="MT-Bench's question.jsonl, or JSONL with prompt or turns, and optionally id, category, reference."
    )
    candidate: ModelNames = Field(min_length=1, max_length=_MAX_MODELS, description="Model to compare.")
    judge: ModelNames = Field(
        min_length=1, max_length=9, description="Model that judges; several judge the same answers as a jury."
    )
    mode: Literal["pairs", "single"] = Field(
        default="pairs", description="pairs: answers are compared in pairs; single: each answer is graded 1–10."
    )
    pairs: str = Field(
        default=ALL,
        description="all: every two models; baseline:LABEL: each model with this one; adaptive: those that tell most "
        "by the results of --after.",
    )
    after: ExistingPath | None = Field(
        default=None, description="Finished run of the same models; its comparisons count, its prompts are left out."
    )
    per_prompt: int = Field(default=1, ge=1, description="Pairs for each prompt (adaptive).")
    n: int | None = count_option("Prompts")
    candidate_temperature: float = temperature_option("the candidates")
    candidate_tokens: int = tokens_option("answer of a candidate", 1024)
    judge_temperature: float = temperature_option("the judge")
    judge_tokens: int = tokens_option("verdict, including its reasoning", 1024)
    pack: FilePath = pack_option("pairwise")

    examples: ClassVar[dict[str, str]] = {"prompts": "question.jsonl"}

    @field_validator("pairs")
    @classmethod
    def _known(cls, pairs: str) -> str:
        names_baseline = pairs.startswith(BASELINE) and pairs != BASELINE
        if pairs not in (ALL, ADAPTIVE) and not names_baseline:
            raise ValueError(f"found '{pairs}', expected all, baseline:LABEL or adaptive")
        return pairs

    @model_validator(mode="after")
    def _fits(self) -> PairwiseSettings:
        if self.mode == PAIRS and len(self.candidate) < 2:
            raise ValueError("pairs need at least two candidates; with one, use the mode single")
        if self.pairs == ADAPTIVE and self.after is None:
            raise ValueError("adaptive pairs follow from an earlier run; name it with --after")
        if self.mode == SINGLE and self.after is not None:
            raise ValueError("--after needs the mode pairs")
        return self

    @property
    def labels(self) -> list[str]:
        """Labels of the candidates; `ConfigurationError` if two are equal."""
        return list(model_labels(self.candidate))

    @property
    def judge_labels(self) -> list[str]:
        """Labels of the judges; `ConfigurationError` if two are equal."""
        return list(model_labels(self.judge))

    @property
    def baseline(self) -> int | None:
        """Index of the baseline among the candidates, None without one.

        Raises:
            ConfigurationError: It is no candidate.
        """
        if not self.pairs.startswith(BASELINE):
            return None
        label, labels = self.pairs.removeprefix(BASELINE), self.labels
        if label not in labels:
            near = did_you_mean(label, labels, "candidates")
            raise ConfigurationError(f"pairs: there is no candidate '{label}'{near}")
        return labels.index(label)

    def plain_pairs(self) -> list[tuple[int, int]]:
        """Return the pairs for each prompt, unless they are adaptive; the baseline is second."""
        baseline = self.baseline
        if baseline is None:
            return list(combinations(range(len(self.candidate)), 2))
        return [(at, baseline) for at in range(len(self.candidate)) if at != baseline]


@dataclass(frozen=True, slots=True)
class JudgedPrompt:
    """A prompt: the user's turns, and for each a reference answer, "" without one."""

    id: str
    turns: tuple[str, ...]
    references: tuple[str, ...]
    category: str = ""

    def to_record(self) -> dict[str, Any]:
        """Return plain data for `from_record`."""
        return {**asdict(self), "turns": list(self.turns), "references": list(self.references)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> JudgedPrompt:
        """Return the prompt of a record; a missing field raises `KeyError`."""
        return cls(record["id"], tuple(record["turns"]), tuple(record["references"]), record["category"])


def open_prompts(source: str, limit: int | None, seed: int, without: Sequence[str] = ()) -> SampledTasks[JudgedPrompt]:
    """Return the prompts of a file: all, or `limit` of them sampled by the seed; those in `without` are left out.

    Raises:
        DatasetError: A line is wrong; the message names file, line and field.
    """
    path = Path(source)
    prompts: dict[str, JudgedPrompt] = {}
    lines: dict[str, int] = {}
    for line, raw in sound_records(read_records(path)):
        with located_errors(path, line):
            prompt = parse_prompt(raw, line)
            if prompt.id in lines:
                raise FieldError("id", f"'{prompt.id}' is already in line {lines[prompt.id]}; ids must be unique")
        prompts[prompt.id], lines[prompt.id] = prompt, line
    if not prompts:
        raise DatasetError("has no prompts", path=source)
    used = set(without)
    left = {id_: prompt for id_, prompt in prompts.items() if id_ not in used}
    if not left:
        raise DatasetError("has no prompts besides those of the earlier run", path=source)
    return SampledTasks(path.stem, prompts_digest(prompts.values()), left, "prompts", limit, seed)


def prompts_digest(prompts: Any) -> str:
    """Return the digest of prompts in this order."""
    lines = b"".join(orjson.dumps(prompt.to_record()) + b"\n" for prompt in prompts)
    return hashlib.sha256(lines).hexdigest()[:16]


def parse_prompt(raw: Mapping[str, Any], line: int) -> JudgedPrompt:
    """Return the prompt of a line of a file; a wrong field raises `FieldError`."""
    id_ = record_id(raw, "question_id") or record_id(raw, "id") or f"line {line}"
    turns = raw.get("turns")
    if turns is None:
        name = next((name for name in _PROMPT_FIELDS if raw.get(name) is not None), "turns")
        turns = [text_field(raw, name)]
    if not isinstance(turns, list) or not 1 <= len(turns) <= _MAX_TURNS:
        raise FieldError("turns", f"expected a list of 1 to {_MAX_TURNS} texts, found {preview(turns)}")
    for at, text in enumerate(turns):
        if not isinstance(text, str) or not text.strip():
            raise FieldError(f"turns.{at}", f"expected text, found {preview(text)}")
    references = raw.get("reference") or []
    if isinstance(references, str):
        references = [references]
    if not isinstance(references, list) or len(references) > len(turns):
        raise FieldError("reference", f"expected at most one text per turn ({len(turns)}), found {preview(references)}")
    for at, text in enumerate(references):
        if text is not None and not isinstance(text, str):
            raise FieldError(f"reference.{at}", f"expected text or null, found {preview(text)}")
    padded = [text or "" for text in references] + [""] * (len(turns) - len(references))
    return JudgedPrompt(id_, tuple(turns), tuple(padded), optional_text(raw, "category"))
