"""What a scenario is to the rest of the house, and how scenarios are found.

A scenario registers under the entry-point group ``viva.scenarios``; the command line makes its options from the
scenario's settings model, and running, resuming, forking and reporting work the same for all of them.

What never belongs here: anything about one scenario.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationInfo, field_validator

from viva.engine.backends.base import Backend
from viva.engine.conversation import Conversation
from viva.engine.errors import ConfigurationError
from viva.engine.plugins import registered
from viva.engine.runner import Plan

GROUP = "viva.scenarios"


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

    # Settings that may change between the parts of one run without making it another experiment.
    circumstances: ClassVar[frozenset[str]] = frozenset(
        {"concurrency", "max_tokens_total", "max_calls", "max_cost", "max_seconds"}
    )


def full_file(name: str | None) -> str | None:
    """A file's full path, so that a run can be resumed from another folder; what is no file stays as it is."""
    try:
        return str(Path(name).resolve()) if name is not None and Path(name).is_file() else name
    except OSError:  # too long to be a path at all
        return name


class Aggregate(Protocol):
    """What a report is made from: takes results one by one, in any order."""

    def add(self, key: str, result: Any) -> None:
        """A conversation's recorded result."""

    def add_failure(self, key: str, error: dict[str, Any]) -> None:
        """A conversation that failed, with its error's record."""

    def headline(self) -> str:
        """The score so far in a few words, for the progress line."""

    def report(self) -> dict[str, Any]:
        """Everything, as plain data; the same results give the same report, byte for byte."""

    def tables(self) -> list[tuple[str, list[str], list[list[str]]]]:
        """The report as titled tables: title, header, rows."""


@runtime_checkable
class TakesReviews(Protocol):
    """An aggregate that heeds what people have put into the run's folder beside the journal."""

    def beside(self, folder: Path) -> None:
        """Take it in, before the first result."""


@runtime_checkable
class HasNotes(Protocol):
    """A prepared scenario that has something to say to a person before the run begins."""

    notes: list[str]


class Prepared(Protocol):
    """A scenario with its settings checked and its files open: ready to run."""

    total: int
    models: list[str]

    def manifest(self) -> dict[str, Any]:
        """The scenario's part of the run's manifest, as plain data without secrets."""

    def plans(self, backends: dict[str, Backend]) -> Iterator[Plan]:
        """The run's conversations, lazily and always in the same order."""

    async def converse(self, conversation: Conversation, payload: Any) -> Any:
        """One conversation; what it returns is recorded."""


class Scenario(Protocol):
    """A registered scenario."""

    name: str
    summary: str
    settings: type[RunSettings]

    def prepare(self, settings: Any) -> Prepared:
        """Check everything that can be checked without a model.

        :raises ConfigurationError: something is wrong; the message names it.
        """

    def forked(self, settings: Any, run: str, changes: dict[str, Any]) -> Any:
        """The settings of a fork: the same talks taken from ``run``, with ``changes`` in who judges them."""

    def aggregate(self, manifest: dict[str, Any], options: dict[str, Any]) -> Aggregate:
        """An empty aggregate for a run; ``options`` are scoring choices that need no model call."""

    def transcript(self, item: Any, calls: list[Any]) -> list[tuple[str, str]]:
        """The talk as (party, text) pairs, from the journal's records."""


def scenario(name: str) -> Scenario:
    """The scenario registered as ``name``.

    :raises ConfigurationError: there is none; the message lists those there are.
    """
    points = registered(GROUP)
    if name not in points:
        raise ConfigurationError(f"unknown scenario '{name}'; known: {', '.join(points)}")
    loaded: Scenario = points[name].load()
    return loaded
