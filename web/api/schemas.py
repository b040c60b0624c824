"""Bodies, queries and answers of the HTTP API as pydantic models, from which the OpenAPI document is generated."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, RootModel, StringConstraints

RUN_ID = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
State = Literal["starting", "running", "stopping", "done", "stopped", "failed", "elsewhere"]


def _to_whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


Name = Annotated[str, StringConstraints(max_length=2_000)]
# In JSON, 7.0 is an integer too.
WholeNumber = Annotated[int, BeforeValidator(_to_whole)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class NoQuery(BaseModel):
    """A query without parameters."""

    model_config = ConfigDict(extra="forbid")


class RunsQuery(NoQuery):
    """Selection of runs to list."""

    after: str = Field(default="", max_length=100, description="List runs whose ids come after this id.")
    limit: int = Field(default=100, ge=1, le=1000, description="Maximum number of runs.")


class TranscriptsQuery(NoQuery):
    """Selection of transcripts."""

    after: int = Field(default=-1, ge=-1, lt=2**63, description="List conversations with numbers above this one.")
    limit: int = Field(default=20, ge=1, le=200, description="Maximum number of transcripts.")
    prompts: bool = Field(default=False, description="Include the prompt of each answer.")


class TranscriptQuery(NoQuery):
    """Format of a transcript."""

    prompts: bool = Field(default=True, description="Include the prompt of each answer.")


class RunRequest(_Strict):
    """A run to begin."""

    scenario: str = Field(max_length=100, description="The name of a registered scenario (see /scenarios).")
    models: dict[Name, Name | Annotated[list[Name], Field(fail_fast=True, max_length=200)]] = Field(
        max_length=100,
        description="Model by role; a list for the role whose models are compared. A model is the name of one that "
        "this server serves, or kind:where#name?option=value.",
    )
    settings: dict[Name, JsonValue] = Field(
        default={}, max_length=500, description="The scenario's other settings, by name."
    )
    tasks: Annotated[list[JsonValue], Field(fail_fast=True, max_length=20_000)] | None = Field(
        default=None, description="Tasks of the conversations, for scenarios that accept tasks directly."
    )
    seed: WholeNumber = Field(default=7, ge=-(2**63), lt=2**63, description="Seed of all random choices of the run.")
    id: str | None = Field(
        default=None, pattern=RUN_ID, description="The run's id; made from scenario and time if absent."
    )


class ResumeRequest(_Strict):
    """Options for resuming a run."""

    retry_failed: bool = Field(default=False, description="Repeat failed conversations.")


class StopRequest(_Strict):
    """A request to stop a run. Calls in flight are answered and recorded; the run can be resumed."""


class ControlRecord(BaseModel):
    """Answer to a request: a sentence on what was done, and the state of the run afterwards."""

    message: str
    status: dict[str, Any] = Field(description="Counts of conversations; `models` by label, with limits.")


class RunSummary(BaseModel):
    """A run in a list."""

    id: str
    scenario: str
    seed: int
    hosted: bool = Field(description="True if this server is running it now.")


class RunList(BaseModel):
    """Runs in the order of their ids."""

    runs: list[RunSummary]
    next: str | None = Field(description="`after` for the next page; null on the last one.")


class RunRecord(RunSummary):
    """A run and its progress.

    `state`: `stopped` runs can be resumed, and so can `failed` ones if their error allows it; `elsewhere` means that
    the run is running in another process.
    """

    state: State
    models: dict[str, Any] = Field(description="Model by role, or models by label for the compared role.")
    total: int | None = Field(description="Number of conversations in the run; null if unknown.")
    finished: int = Field(description="Conversations that ended without an error.")
    failed: int
    in_flight: int
    calls: int = Field(
        description="Model calls that this server has made for the run; `tokens` and `cost` count the same calls."
    )
    tokens: int
    cost: float
    error: str | None = Field(description="The error that ended a failed run.")


class SpeechRecord(BaseModel):
    """An entry of a transcript."""

    party: str
    text: str
    prompt: Any = Field(default=None, description="The prompt of this entry, if requested and known.")
    branch: str = Field(default="", description="Path of its branch, if any.")


class TranscriptRecord(BaseModel):
    """A conversation as it was recorded."""

    number: int
    key: str
    state: Literal["finished", "failed", "unfinished"]
    speeches: list[SpeechRecord]
    result: Any = Field(description="The recorded result, or the error of a failed conversation.")
    problem: str | None = Field(description="Why some prompts are unknown.")


class TranscriptPage(BaseModel):
    """Transcripts in the order of the run."""

    transcripts: list[TranscriptRecord]
    next: int | None = Field(description="`after` for the next page; null on the last one.")


class RoleRecord(BaseModel):
    """A role that models play."""

    name: str
    many: bool = Field(description="True if several models are compared in this role.")


class ScenarioRecord(BaseModel):
    """A scenario that can be run."""

    name: str
    summary: str
    roles: list[RoleRecord]
    settings: dict[str, Any] = Field(description="JSON schema of its settings, including roles.")


class ScenarioList(BaseModel):
    """The registered scenarios."""

    scenarios: list[ScenarioRecord]


class EventRecord(BaseModel):
    """A server-sent event: `State` first, then the run's own events (see the Python API) and `End`.

    `Gap` stands for events that were lost.
    """

    event: str = Field(description="The kind of event.")
    id: str = Field(default="", description="Value of Last-Event-ID to continue after this event.")
    data: str = Field(description="The event as JSON.")


class ReportRecord(RootModel[dict[str, Any]]):
    """A run's report; its fields depend on the scenario."""


class DocumentRecord(RootModel[dict[str, Any]]):
    """The OpenAPI document."""
