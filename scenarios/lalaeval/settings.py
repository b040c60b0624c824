"""The settings of both scenarios: collecting answers, and judge models as graders.

What never belongs here: settings of every run (``RunSettings``), and what a project says.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from viva.engine.backends.registry import full_path

from ..settings import RunSettings, folder_of, full_file


class AnswersSettings(RunSettings):
    """Answers of candidates to the questions of a LalaEval round (Sun et al. 2024)."""

    questions: str = Field(description="JSON lines of questions, as `viva grade bank export` writes them.")
    candidate: list[str] = Field(min_length=1, description="Model that answers; may be given several times.")
    temperature: float = Field(default=0.0, ge=0, le=2, description="Sampling temperature of the candidates.")
    candidate_tokens: int = Field(default=1024, ge=1, description="Longest answer to a round, in tokens.")
    pack: str = Field(default="lalaeval", description="Prompt pack: a shipped name or a YAML file.")

    examples: ClassVar[dict[str, str]] = {"questions": "questions.jsonl"}

    @field_validator("questions", "pack")
    @classmethod
    def _file_by_full_path(cls, name: str, info: ValidationInfo) -> str | None:
        return full_file(name, folder_of(info))

    @field_validator("candidate")
    @classmethod
    def _local_models_by_full_path(cls, models: list[str], info: ValidationInfo) -> list[str]:
        return [full_path(model, folder_of(info)) for model in models]


class JudgesSettings(RunSettings):
    """Judge models that grade the pages of a grading folder as people do."""

    pages: str = Field(description="JSON lines of pages, as `viva grade judge` writes them.")
    grader: list[str] = Field(min_length=1, description="Model that grades; may be given several times.")
    shown: Literal["one", "all"] = Field(
        default="one", description="one: each answer by itself; all: all answers of a question, in blind positions."
    )
    temperature: float = Field(default=0.0, ge=0, le=2, description="Sampling temperature of the graders.")
    grader_tokens: int = Field(default=1024, ge=1, description="Longest reasoning with grades, in tokens.")
    pack: str = Field(default="lalaeval-judge", description="Prompt pack: a shipped name or a YAML file.")

    examples: ClassVar[dict[str, str]] = {"pages": "pages.jsonl", "grader": "openai:gpt-4o"}

    @field_validator("pages", "pack")
    @classmethod
    def _file_by_full_path(cls, name: str, info: ValidationInfo) -> str | None:
        return full_file(name, folder_of(info))

    @field_validator("grader")
    @classmethod
    def _local_models_by_full_path(cls, models: list[str], info: ValidationInfo) -> list[str]:
        return [full_path(model, folder_of(info)) for model in models]
