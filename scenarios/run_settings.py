"""Settings that every run has; a scenario's own settings extend ``RunSettings``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationInfo, field_validator


class RunSettings(BaseModel):
    """Settings of every run. Scenarios extend it; this is their one home, for the command line and files alike."""

    model_config = ConfigDict(extra="forbid")

    seed: int = Field(default=7, description="Every random choice of the run derives from it.")
    concurrency: int = Field(default=500, ge=1, description="Conversations in flight at most.")
    max_tokens_total: int | None = Field(default=None, ge=1, description="Stop the run after this many tokens.")
    max_calls: int | None = Field(default=None, ge=1, description="Stop the run after this many model calls.")
    max_cost: float | None = Field(
        default=None, gt=0, description="Stop the run after this much money (see price_in, price_out)."
    )
    max_seconds: float | None = Field(default=None, gt=0, description="Stop the run after this many seconds.")
    patience: float = Field(
        default=600.0,
        ge=0,
        description="Wait so many seconds for a model that is gone, then stop; 0: do not wait.",
    )
    chaos: str | None = Field(default=None, description="YAML file of faults to meet on purpose (docs/models.md).")
    strict: bool = Field(
        default=False, description="Refuse models that cannot give byte-identical transcripts (tier C)."
    )
    conversation_tokens: int | None = Field(
        default=None, ge=1, description="End a conversation after this many tokens."
    )
    conversation_calls: int | None = Field(
        default=None, ge=1, description="End a conversation after this many model calls."
    )
    conversation_cost: float | None = Field(default=None, gt=0, description="End a conversation after this much money.")
    conversation_seconds: float | None = Field(
        default=None, gt=0, description="End a conversation after this many seconds."
    )

    # The text of the prompt pack that a manifest keeps; None in settings of a run that has not begun.
    _recorded_prompts: str | None = PrivateAttr(default=None)

    @property
    def recorded_prompts(self) -> str | None:
        """The prompt pack's text as the run was recorded with it; None for a new run."""
        return self._recorded_prompts

    def remember_prompts(self, text: str) -> None:
        """Keep the text of the manifest's prompt pack: the run, or a fork of it, goes on with it."""
        self._recorded_prompts = text

    # What runs did that were recorded before a setting existed, where that is not its default.
    formerly: ClassVar[dict[str, Any]] = {}
    # Defaults of the time when sweeps left out settings that had them (version 1 of sweep.json).
    first_defaults: ClassVar[dict[str, Any]] = {}

    # What stands for a required setting in the example of the command's help, where its name is the system's own.
    examples: ClassVar[dict[str, str]] = {}

    @field_validator("*", mode="before")
    @classmethod
    def _no_switch_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        # ``yes`` in YAML would be 1 round, 1 item or seed 1.
        field = cls.model_fields[info.field_name or ""]
        if isinstance(value, bool) and "bool" not in str(field.annotation):
            raise ValueError(f"found {value}, expected {'text' if 'str' in str(field.annotation) else 'a number'}")
        return value

    @field_validator("*")
    @classmethod
    def _of_unicode(cls, value: Any) -> Any:
        # Bytes of a path or an argument that are not UTF-8 arrive as lone surrogates, which no manifest can hold.
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and any("\ud800" <= character <= "\udfff" for character in text):
                raise ValueError(f"found {text!r}, which is not UTF-8; rename the file or the model")
        return value

    @field_validator("*")
    @classmethod
    def _of_64_bits(cls, value: Any) -> Any:
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError(f"Input should be a whole number from {-(2**63)} to {2**63 - 1}")
        return value

    @field_validator("chaos")
    @classmethod
    def _faults_by_full_path(cls, name: str | None, info: ValidationInfo) -> str | None:
        return absolute_file(name, context_folder(info))

    # Settings that may change between the parts of one run without making it another experiment.
    circumstances: ClassVar[frozenset[str]] = frozenset(
        {"concurrency", "max_tokens_total", "max_calls", "max_cost", "max_seconds", "patience"}
    )


def context_folder(info: ValidationInfo) -> Path:
    """Where relative paths in settings begin: at ``folder`` in the validation's context, else at the current folder."""
    return Path((info.context or {}).get("folder", ""))


def absolute_file(name: str | None, folder: Path = Path()) -> str | None:
    """A file's full path, so that a run can be resumed from another folder; what is no file stays as it is."""
    if name is None:
        return None
    try:
        return str((folder / name).resolve()) if (folder / name).is_file() else name
    except OSError:  # too long to be a path at all
        return name
