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

    after: str = Field(default="", max_length=100, description="List runs whose ids come after this one.")
    limit: int = Field(default=100, ge=1, le=1000, description="At most so many.")


class TranscriptsQuery(NoQuery):
    """Selection of transcripts."""

    after: int = Field(default=-1, ge=-1, lt=2**63, description="Those of conversations with larger numbers than this.")
    limit: int = Field(default=20, ge=1, le=200, description="At most so many.")
    prompts: bool = Field(default=False, description="With what each model was sent for each answer.")


class TranscriptQuery(NoQuery):
    """Format of a transcript."""

    prompts: bool = Field(default=True, description="With what each model was sent for each answer.")


class RunRequest(_Strict):
    """A run to begin."""

    scenario: str = Field(max_length=100, description="The name of a registered scenario (see /scenarios).")
    models: dict[Name, Name | Annotated[list[Name], Field(fail_fast=True, max_length=200)]] = Field(
        max_length=100,
        description="By role a model, or several for the role whose models are compared: a name under which this "
        "server serves one, or kind:where#name?option=value.",
    )
    settings: dict[Name, JsonValue] = Field(
        default={}, max_length=500, description="The scenario's other settings, by name."
    )
    tasks: Annotated[list[JsonValue], Field(fail_fast=True, max_length=20_000)] | None = Field(
        default=None, description="What the conversations are about, for scenarios that take tasks directly."
    )
    seed: WholeNumber = Field(
        default=7, ge=-(2**63), lt=2**63, description="Every random choice of the run derives from it."
    )
    id: str | None = Field(default=None, pattern=RUN_ID, description="The run's id; from scenario and time if absent.")


class ResumeRequest(_Strict):
    """How to resume a run."""

    retry_failed: bool = Field(default=False, description="Hold failed conversations once more.")


class StopRequest(_Strict):
    """How to stop a run. Calls in flight are answered and recorded; the run can be resumed."""


class RunSummary(BaseModel):
    """A run in a list."""

    id: str
    scenario: str
    seed: int
    hosted: bool = Field(description="Whether this server carries it now.")


class RunList(BaseModel):
    """Runs in the order of their ids."""

    runs: list[RunSummary]
    next: str | None = Field(description="``after`` for the next page; null on the last one.")


class RunRecord(RunSummary):
    """A run and its progress.

    `state`: `stopped` runs can be resumed, and so can `failed` ones if their error allows it; `elsewhere` means that
    the run is running in another process.
    """

    state: State
    models: dict[str, Any] = Field(description="By role the model, or models by label.")
    total: int | None = Field(description="Conversations to be held; null where that is not known.")
    finished: int = Field(description="Conversations that have ended without an error.")
    failed: int
    in_flight: int
    calls: int = Field(description="Model calls that this server has made for it; so for tokens and cost.")
    tokens: int
    cost: float
    error: str | None = Field(description="What ended a failed run.")


class SpeechRecord(BaseModel):
    """One entry of a transcript."""

    party: str
    text: str
    prompt: Any = Field(default=None, description="What the model was sent for it, where asked for and known.")
    branch: str = Field(default="", description="Path of the branch that it belongs to, if any.")


class TranscriptRecord(BaseModel):
    """A conversation as it was recorded."""

    number: int
    key: str
    state: Literal["finished", "failed", "unfinished"]
    speeches: list[SpeechRecord]
    result: Any = Field(description="What the scenario recorded, or the error of a failed conversation.")
    problem: str | None = Field(description="Why some prompts are not known.")


class TranscriptPage(BaseModel):
    """Transcripts in the order of the run."""

    transcripts: list[TranscriptRecord]
    next: int | None = Field(description="``after`` for the next page; null on the last one.")


class RoleRecord(BaseModel):
    """A role that models play."""

    name: str
    many: bool = Field(description="Whether several models are compared in it.")


class ScenarioRecord(BaseModel):
    """A scenario that can be run."""

    name: str
    summary: str
    roles: list[RoleRecord]
    settings: dict[str, Any] = Field(description="The JSON schema of its settings, roles among them.")


class ScenarioList(BaseModel):
    """The registered scenarios."""

    scenarios: list[ScenarioRecord]


class EventRecord(BaseModel):
    """A server-sent event: `State` first, then the run's own events (see the Python API) and `End`.

    `Gap` stands for events that were lost.
    """

    event: str = Field(description="The kind of event.")
    id: str = Field(default="", description="What Last-Event-ID names to go on behind it.")
    data: str = Field(description="The event as JSON.")


class ReportRecord(RootModel[dict[str, Any]]):
    """A run's report; its fields depend on the scenario."""


class DocumentRecord(RootModel[dict[str, Any]]):
    """The OpenAPI document."""
