"""Settings of every run; a scenario's own settings extend `RunSettings`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from viva.data.sources import absolute_source
from viva.engine.backends.registry import with_absolute_path
from viva.engine.journal import Durability
from viva.engine.messages import Sampling


def check_unicode(value: Any) -> None:
    """Raise `ValueError` for lone surrogates, which come from paths or arguments that are not UTF-8."""
    if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"found {value!r}, which is not UTF-8; rename the file or the model")


def context_folder(info: ValidationInfo) -> Path:
    """Return the base of relative paths: `folder` in the validation's context, else the current folder."""
    return Path((info.context or {}).get("folder", ""))


def absolute_file(name: str | None, folder: Path = Path()) -> str | None:
    """Return a file's full path, so that a run can be resumed from another folder; other names stay as they are."""
    if name is None:
        return None
    try:
        return str((folder / name).resolve()) if (folder / name).is_file() else name
    except OSError:  # too long to be a path at all
        return name


def _resolve_with(resolve: Callable[[str, Path], str | None]) -> AfterValidator:
    def validate(value: str | list[str], info: ValidationInfo) -> Any:
        if isinstance(value, list):
            return [validate(entry, info) for entry in value]
        check_unicode(value)
        return resolve(value, context_folder(info))

    return AfterValidator(validate)


def absolute_path(name: str, folder: Path) -> str:
    """Return the full path of a file or folder; a name of neither stays as it is."""
    try:
        return str((folder / name).resolve()) if (folder / name).exists() else name
    except (OSError, ValueError):  # too long to be a path at all, or holds a NUL
        return name


def file_or(*names: str) -> AfterValidator:
    """Return a validator for a text that names a file or is one of these words."""
    return _resolve_with(lambda name, folder: name if name in names else absolute_file(name, folder))


# Settings that name something on this machine. They are stored with their full path, so that a run can be resumed
# from another folder; a missing file keeps its name, for the later error.
FilePath = Annotated[str, _resolve_with(absolute_file)]
ExistingPath = Annotated[str, _resolve_with(absolute_path)]  # the path of a file or a folder
NewPath = Annotated[str, _resolve_with(lambda name, folder: str((folder / Path(name).expanduser()).resolve()))]
DataSource = Annotated[str, _resolve_with(absolute_source)]
ModelName = Annotated[str, _resolve_with(with_absolute_path)]
ModelNames = Annotated[list[str], _resolve_with(with_absolute_path)]


def repeats_of(settings: RunSettings) -> int:
    """Return how often each task is run with each model."""
    return int(getattr(settings, "repeats", 1))


# Options of roles, the same for all scenarios; `RunSettings.sampling_of` reads them.


def temperature_option(subject: str, default: float | None = 0.0) -> Any:
    """Return the field `temperature` or `ROLE_temperature`, for the sampling temperature of `subject`."""
    return Field(default=default, ge=0, le=2, description=f"Sampling temperature of {subject}.")


def tokens_option(output: str, default: int | None) -> Any:
    """Return the field `ROLE_tokens`, for the token limit of `output`, such as an answer of the candidate."""
    return Field(
        default=default,
        ge=1,
        description=f"Maximum tokens per {output}.",
    )


# Marks the setting that a command takes as its argument instead of an option: `json_schema_extra=ARGUMENT`.
ARGUMENT: dict[str, Any] = {"argument": True}


def pack_option(name: str) -> Any:
    """Return the field `pack` with a scenario's shipped prompt pack as default."""
    return Field(default=name, description="Prompt pack: a shipped name or a YAML file.")


def count_option(unit: str) -> Any:
    """Return the field `n`."""
    return Field(default=None, ge=1, description=f"{unit} to sample with the seed (default: all).")


def skip_option(problem: str) -> Any:
    """Return the field `skip_bad_items`."""
    return Field(default=False, description=f"Skip and count lines that {problem}.")


class RunSettings(BaseModel):
    """Settings of every run; scenarios extend it for the command line and files alike."""

    model_config = ConfigDict(extra="forbid")

    seed: int = Field(default=7, description="Seed of every random choice of the run.")
    concurrency: int = Field(default=500, ge=1, description="Maximum number of conversations in flight.")
    max_tokens_total: int | None = Field(default=None, ge=1, description="Stop the run after this many tokens.")
    max_calls: int | None = Field(default=None, ge=1, description="Stop the run after this many model calls.")
    max_cost: float | None = Field(
        default=None, gt=0, description="Stop the run at this cost (see price_in, price_out)."
    )
    max_seconds: float | None = Field(default=None, gt=0, description="Stop the run after this many seconds.")
    patience: float = Field(
        default=600.0,
        ge=0,
        description="Seconds to wait for an unreachable model before the run stops, to be resumed (0: none).",
    )
    durability: Durability = Field(
        default="commit", description="What recorded answers survive: commit (a kill) or power (also a power cut)."
    )
    chaos: FilePath | None = Field(default=None, description="YAML file of faults to inject (docs/models.md).")
    strict: bool = Field(default=False, description="Refuse models without reproducible transcripts.")
    conversation_tokens: int | None = Field(
        default=None, ge=1, description="End a conversation after this many tokens."
    )
    conversation_calls: int | None = Field(
        default=None, ge=1, description="End a conversation after this many model calls."
    )
    conversation_cost: float | None = Field(default=None, gt=0, description="End a conversation at this cost.")
    conversation_seconds: float | None = Field(
        default=None, gt=0, description="End a conversation after this many seconds."
    )

    # The prompt pack's text from a manifest; None before the run has begun.
    _recorded_prompts: str | None = PrivateAttr(default=None)

    @property
    def recorded_prompts(self) -> str | None:
        """The prompt pack's text as recorded with the run; None for a new run."""
        return self._recorded_prompts

    def remember_prompts(self, text: str) -> None:
        """Store the text of the manifest's prompt pack, for a resumed run or a fork."""
        self._recorded_prompts = text

    # Values for runs recorded before a setting existed, if they differ from its default.
    formerly: ClassVar[dict[str, Any]] = {}
    # Defaults at the time of version 1 of sweep.json, which left out default values.
    first_defaults: ClassVar[dict[str, Any]] = {}

    # Settings whose defaults the scenario's data may change, so that a run's command says them in any case.
    defaults_in_data: ClassVar[frozenset[str]] = frozenset()

    # Values of required settings in the example of the command's help.
    examples: ClassVar[dict[str, str]] = {}

    @field_validator("*", mode="before")
    @classmethod
    def _no_switch_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        # `yes` in YAML would be 1 round, 1 item or seed 1.
        field = cls.model_fields[info.field_name or ""]
        if isinstance(value, bool) and "bool" not in str(field.annotation):
            raise ValueError(f"found {value}, expected {'text' if 'str' in str(field.annotation) else 'a number'}")
        return value

    @field_validator("*")
    @classmethod
    def _of_unicode(cls, value: Any) -> Any:
        for text in value if isinstance(value, list) else [value]:
            check_unicode(text)
        return value

    @field_validator("*")
    @classmethod
    def _of_64_bits(cls, value: Any) -> Any:
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError(f"Input should be a whole number from {-(2**63)} to {2**63 - 1}")
        return value

    def sampling_of(self, role: str) -> Sampling:
        """Return the sampling of a role's model: by the role's own options, else by the options of all roles."""
        temperature = getattr(self, f"{role}_temperature", getattr(self, "temperature", None))
        tokens = getattr(self, f"{role}_tokens", None)
        options = {"temperature": temperature, "max_tokens": tokens}
        return Sampling(**{name: value for name, value in options.items() if value is not None})

    # Settings that may change when a run is resumed, without making it another experiment.
    circumstances: ClassVar[frozenset[str]] = frozenset(
        {"concurrency", "max_tokens_total", "max_calls", "max_cost", "max_seconds", "patience", "durability"}
    )


DEFAULT_RULE = "half_width=3"
BANK_FILE = "bank.json"  # the item bank in the folder of an adaptive run: a copy, or what the run has learned
LEARN = "learn"  # the bank of a run that learns one


class ExamSettings(RunSettings):
    """Settings of runs whose items may be chosen by adaptive exams (docs/adaptive.md)."""

    adaptive: Annotated[str, file_or(LEARN)] | None = Field(
        default=None,
        description="Choose each candidate's items by its earlier answers, with this item bank of the dataset, or with "
        "one that the candidates' answers teach (learn); -n is the largest number of items (docs/adaptive.md).",
    )
    wave: int = Field(default=8, ge=1, le=256, description="Largest number of items chosen at once (with --adaptive).")
    until: str | None = Field(
        default=None,
        description="When an adaptive exam ends: half_width=POINTS, above=POINTS or decided (default: half_width=3).",
    )

    @field_validator("until", mode="before")
    @classmethod
    def _readable_rule(cls, value: Any) -> str | None:
        if value is None:
            return None
        from viva.scoring.exam_course import ExamRule

        return str(ExamRule.parse(value))

    @model_validator(mode="after")
    def _options_have_a_use(self) -> Self:
        if self.adaptive is None and self.until is not None:
            raise ValueError("until: only an adaptive run ends by a rule; add --adaptive BANK or learn")
        return self

    @property
    def learns(self) -> bool:
        """True if the run begins without an item bank and learns one."""
        return self.adaptive == LEARN

    @property
    def rule(self) -> str:
        """The rule by which an adaptive exam ends."""
        return self.until or DEFAULT_RULE

    @property
    def sample_size(self) -> int | None:
        """The number of items to sample; None for all, from which an adaptive exam chooses."""
        return None if self.adaptive is not None else getattr(self, "n", None)
