"""The settings of an audit: what the command line, a configuration file and an embedding program may say.

What never belongs here: settings of every run, and defaults anywhere else.
"""

from __future__ import annotations

from typing import ClassVar, Literal, get_args

from pydantic import Field, ValidationInfo, field_validator

from viva.engine.backends.registry import full_path

from ..settings import RunSettings, folder_of, full_file

AuditName = Literal["position", "verbosity", "format", "self", "labels", "retest"]
AUDITS: tuple[AuditName, ...] = get_args(AuditName)
EXAMPLES = "examples"


class AuditSettings(RunSettings):
    """Audits of judges: does what should not matter change their verdicts?"""

    judge: list[str] = Field(
        min_length=1, description="Model that judges; may be given several times: all are audited."
    )
    cases: str = Field(
        default=EXAMPLES,
        description="JSONL with question, answers, and optionally id, families, preferred; or 'examples' (shipped).",
    )
    audit: list[AuditName] = Field(
        default=[], description="position, verbosity, format, self, labels, retest (all if not given)."
    )
    family: list[str] = Field(
        default=[],
        description="LABEL=FAMILY: the family of a judge, as the cases name families (else that in its label).",
    )
    n: int | None = Field(default=None, ge=1, description="Cases drawn by the seed (all if not given).")
    retests: int = Field(default=5, ge=2, le=100, description="How often the same answer is graded (retest).")
    temperature: float = Field(default=0.0, ge=0, le=2, description="Sampling temperature of the judge.")
    retest_temperature: float = Field(default=0.7, ge=0, le=2, description="That of the audit retest.")
    judge_tokens: int = Field(default=1024, ge=1, description="Longest reasoning with verdict, in tokens.")
    pack: str = Field(default="audit", description="Prompt pack: a shipped name or a YAML file.")

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

    @field_validator("pack", "cases")
    @classmethod
    def _file_by_full_path(cls, name: str, info: ValidationInfo) -> str | None:
        return name if name == EXAMPLES else full_file(name, folder_of(info))

    @field_validator("judge")
    @classmethod
    def _local_models_by_full_path(cls, models: list[str], info: ValidationInfo) -> list[str]:
        return [full_path(model, folder_of(info)) for model in models]

    examples: ClassVar[dict[str, str]] = {}

    @property
    def audits(self) -> tuple[AuditName, ...]:
        """The audits that are made, in a fixed order."""
        return tuple(name for name in AUDITS if not self.audit or name in self.audit)
