"""Settings of a FunctionChat run, for the command line, configuration files and embedding programs."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, ValidationInfo, model_validator

from ..run_settings import (
    ExistingPath,
    FilePath,
    ModelName,
    ModelNames,
    RunSettings,
    absolute_path,
    context_folder,
    file_or,
    pack_option,
    skip_option,
    temperature_option,
    tokens_option,
)
from .call_matching import Matching

Subsets = Literal["singlecall", "dialog", "calldecision", "parallel", "sequential", "common", "both", "all"]
PACK, DATA = "pack", "data"  # the pack's system prompt; the data's system prompt or language
EXAMPLES = "examples"  # the shipped tasks


class FunctionChatSettings(RunSettings):
    """Tool-use dialogs: FunctionChat-Bench (Lee et al. 2024), and dialogs with a simulated user."""

    data: str = Field(
        description="Folder with FunctionChat's files, or a JSONL file of their form; in mode user a YAML or JSONL "
        "file of tasks, or 'examples'."
    )
    candidate: ModelNames = Field(min_length=1, description="Model to examine.")
    judge: ModelName | None = Field(
        default=None, description="Model that judges what cannot be decided exactly (mode turns)."
    )
    interactor: ModelName | None = Field(default=None, description="Model that plays the user (mode user).")
    mode: Literal["turns", "user"] = Field(
        default="turns",
        description="turns: each turn after its recorded history; user: whole dialogs with a simulated user.",
    )
    subset: Subsets = Field(
        default="all",
        description="singlecall, dialog, calldecision, parallel, sequential; both (the paper's two) or all in the "
        "folder (mode turns).",
    )
    skip_bad_items: bool = skip_option("cannot be used (mode turns)")
    n: int | None = Field(default=None, ge=1, description="Turns or tasks to sample with the seed (default: all).")
    repeats: int = Field(default=1, ge=1, le=1000, description="Number of runs of each turn or task.")
    system: Annotated[str, file_or(PACK, DATA)] = Field(
        default=PACK,
        description="The candidate's system prompt: pack (the pack's), data (system_prompt.txt next to the data) or a "
        "file.",
    )
    rubrics: ExistingPath | None = Field(
        default=None,
        description="Folder with rubric_call.txt, rubric_completion.txt, …, used in place of the pack's rubrics.",
    )
    matching: Matching = Field(
        default="strict",
        description="Grading without the judge: strict (rules can pass or fail an answer) or official (the authors' "
        "exact match can only pass one; with --rubrics, the judge is asked and read as in the authors' code, too) "
        "(mode turns).",
    )
    # None occurs only in older runs and means Korean in mode turns.
    language: str | None = Field(
        default=DATA,
        description="Language of replies: data (the language of the users in the data if their script shows it, else "
        "any), a language, or '' for any.",
    )
    pack: FilePath = pack_option("functionchat")
    temperature: float = temperature_option("the candidate")
    judge_temperature: float = temperature_option("the judge")
    interactor_temperature: float = temperature_option("the interactor")
    candidate_tokens: int = tokens_option("answer of the candidate", 512)
    judge_tokens: int = tokens_option("verdict, including its reasoning", 1024)
    interactor_tokens: int = tokens_option("message of the interactor", 256)
    exchanges: int = Field(
        default=10, ge=1, le=1000, description="Maximum number of messages of the simulated user (mode user)."
    )
    steps: int = Field(
        default=10, ge=1, le=1000, description="Maximum number of answers to a user message (mode user)."
    )

    # The command line takes the option out before the settings are made (`engine.permissions`), so it is not recorded.
    python_tools: list[str] = Field(
        default=[],
        exclude=True,
        description="Module whose functions tasks may name under python (mode user).",
    )

    examples: ClassVar[dict[str, str]] = {"data": "FunctionChat-Bench/data"}

    @model_validator(mode="after")
    def _data_by_full_path(self, info: ValidationInfo) -> FunctionChatSettings:
        if (self.mode, self.data) != ("user", EXAMPLES):
            self.data = absolute_path(self.data, context_folder(info))
        return self

    @model_validator(mode="after")
    def _roles_of_the_mode(self) -> FunctionChatSettings:
        if self.mode == "turns":
            if self.judge is None:
                raise ValueError("judge: mode turns needs a judge; give one with --judge")
            if self.interactor is not None:
                raise ValueError("interactor: only mode user has a simulated user; add --mode user")
        elif self.judge is not None:
            raise ValueError("judge: mode user compares calls exactly and needs no judge; omit it")
        if self.mode == "user" and self.subset not in ("both", "all"):
            raise ValueError("subset: mode user has its own tasks and no subsets; omit it")
        return self

    def reply_language(self, data_language: str) -> str:
        """Return the required language of replies, empty for any; `data_language` is that of the data."""
        if self.language is None:
            return "Korean" if self.mode == "turns" else ""
        return data_language if self.language == DATA else self.language
