"""Settings of a FunctionChat run, for the command line, configuration files and embedding programs."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from viva.engine.backends.registry import with_absolute_path

from ..run_settings import RunSettings, absolute_file, context_folder
from .call_matching import Matching

Subsets = Literal["singlecall", "dialog", "calldecision", "parallel", "sequential", "common", "both", "all"]
PACK, DATA = "pack", "data"  # where the candidate's system prompt may come from, besides a file; so the language
EXAMPLES = "examples"  # the tasks that come with the program


class FunctionChatSettings(RunSettings):
    """Tool-use dialogs: FunctionChat-Bench (Lee et al. 2024), and dialogs with a simulated user."""

    data: str = Field(
        description="Folder with FunctionChat's files, or a JSONL file of their form; in mode user a YAML or JSONL "
        "file of tasks, or 'examples'."
    )
    candidate: list[str] = Field(min_length=1, description="Model under examination; may be given several times.")
    judge: str | None = Field(
        default=None, description="Model that judges what cannot be decided exactly (mode turns)."
    )
    interactor: str | None = Field(default=None, description="Model that plays the user (mode user).")
    mode: Literal["turns", "user"] = Field(
        default="turns",
        description="turns: each turn from the recorded talk before it; user: whole talks with a played user.",
    )
    subset: Subsets = Field(
        default="all",
        description="singlecall, dialog, calldecision, parallel, sequential; both (the paper's two) or all that the "
        "folder has (mode turns).",
    )
    skip_bad_items: bool = Field(
        default=False, description="Leave out lines that cannot be used, and count them (mode turns)."
    )
    n: int | None = Field(default=None, ge=1, description="Turns, or tasks, drawn by the seed (all if not given).")
    repeats: int = Field(default=1, ge=1, le=1000, description="How often each of them is held.")
    system: str = Field(
        default=PACK,
        description="The candidate's system prompt: pack (the pack's), data (system_prompt.txt beside the data) or a "
        "file.",
    )
    rubrics: str | None = Field(
        default=None,
        description="Folder with rubric_call.txt, rubric_completion.txt, …, used in place of the pack's rubrics.",
    )
    matching: Matching = Field(
        default="strict",
        description="What decides without the judge: strict (rules that pass and fail) or official (the authors' exact "
        "match, which only passes) (mode turns).",
    )
    # None is what older runs have: Korean in mode turns.
    language: str | None = Field(
        default=DATA,
        description="Language that the pack has replies in: data (that of the data's users where their script tells "
        "it, else none), its name, or '' for none.",
    )
    pack: str = Field(default="functionchat", description="Prompt pack: a shipped name or a YAML file.")
    temperature: float = Field(default=0.0, ge=0, le=2, description="Sampling temperature of the candidate.")
    judge_temperature: float = Field(default=0.0, ge=0, le=2, description="Sampling temperature of the judge.")
    interactor_temperature: float = Field(
        default=0.0, ge=0, le=2, description="Sampling temperature of the interactor."
    )
    candidate_tokens: int = Field(default=512, ge=1, description="Longest answer of the candidate, in tokens.")
    judge_tokens: int = Field(default=1024, ge=1, description="Longest reasoning with verdict.")
    interactor_tokens: int = Field(default=256, ge=1, description="Longest message of the interactor.")
    exchanges: int = Field(default=10, ge=1, le=1000, description="Messages of the played user at most (mode user).")
    steps: int = Field(
        default=10, ge=1, le=1000, description="Answers of the candidate to one of them at most (mode user)."
    )

    # The command line takes the option out before the settings are made (``engine.permissions``): nothing is recorded.
    python_tools: list[str] = Field(
        default=[],
        exclude=True,
        description="Module whose functions tasks may name under python; may be given several times (mode user).",
    )

    # Files are remembered by their full path, so that a run can be resumed from another folder.
    examples: ClassVar[dict[str, str]] = {"data": "FunctionChat-Bench/data"}

    @field_validator("rubrics")
    @classmethod
    def _folder_by_full_path(cls, name: str | None, info: ValidationInfo) -> str | None:
        return _absolute_path(name, context_folder(info)) if name is not None else None

    @field_validator("pack", "system")
    @classmethod
    def _file_by_full_path(cls, name: str, info: ValidationInfo) -> str | None:
        return name if name in (PACK, DATA) else absolute_file(name, context_folder(info))

    @field_validator("candidate", "judge", "interactor")
    @classmethod
    def _local_models_by_full_path(cls, models: str | list[str] | None, info: ValidationInfo) -> str | list[str] | None:
        if models is None:
            return None
        folder = context_folder(info)
        return (
            [with_absolute_path(model, folder) for model in models]
            if isinstance(models, list)
            else with_absolute_path(models, folder)
        )

    @model_validator(mode="after")
    def _data_by_full_path(self, info: ValidationInfo) -> FunctionChatSettings:
        if (self.mode, self.data) != ("user", EXAMPLES):
            self.data = _absolute_path(self.data, context_folder(info))
        return self

    @model_validator(mode="after")
    def _roles_of_the_mode(self) -> FunctionChatSettings:
        if self.mode == "turns":
            if self.judge is None:
                raise ValueError("judge: mode turns needs a model that judges; give one with --judge")
            if self.interactor is not None:
                raise ValueError("interactor: only mode user has a played user; add --mode user")
        elif self.judge is not None:
            raise ValueError("judge: in mode user calls are compared exactly and nothing is judged; leave it out")
        if self.mode == "user" and self.subset not in ("both", "all"):
            raise ValueError("subset: mode user has tasks of its own and no subsets; leave it out")
        return self

    def spoken(self, of_data: str) -> str:
        """The language that replies must be in, empty where any will do; ``of_data``: that of the data's users."""
        if self.language is None:
            return "Korean" if self.mode == "turns" else ""
        return of_data if self.language == DATA else self.language


def _absolute_path(name: str, folder: Path) -> str:
    """The full path of a file or folder; as it is where there is none (the error comes later)."""
    try:
        return str((folder / name).resolve()) if (folder / name).exists() else name
    except (OSError, ValueError):  # too long to be a path at all, or holds a NUL
        return name
