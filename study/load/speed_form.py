"""The form of the speed part of a load test's record: what each field means.

What never belongs here: making the record (``orchestration.load.measured``), and verdicts (``schema``).
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Latency(_Form):
    """Seconds; no field but the count where that is 0."""

    count: int
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    p999: float | None = Field(default=None, alias="p99.9")
    max: float | None = None


class Lag(_Form):
    """How late the client's event loop was, in milliseconds."""

    p50_ms: float
    p99_ms: float
    max_ms: float


class Health(_Form):
    """The client while the step ran; all fields are missing under a virtual clock."""

    seconds: float | None = None
    cpu: float | None = Field(default=None, description="Share of a core that the event loop's thread used.")
    cpu_process: float | None = Field(default=None, description="Of all threads: a local judge computes there too.")
    cpu_seconds: float | None = Field(default=None, description="CPU seconds of the event loop's thread.")
    lag: Lag | None = None


class StepSpeed(_Form):
    """How fast a judge was in the steady part of a step. Errors are apart from all latencies."""

    step: int
    judge: str
    arrivals: Literal["closed", "constant", "poisson", "bursty", "replay"]
    rate: float | None = Field(description="Requests a second that were asked for; null of closed loops.")
    concurrency: int | None = Field(description="Requests in flight that were asked for; null of open loops.")
    end: str = Field(description="done, saturated, too_many_in_flight, interrupted or running.")
    sent: int = Field(description="All requests of the step; the other counts leave out warm-up and cool-down.")
    windows: list[tuple[int, float, float]] = Field(
        description="By part of the step (several of a resumed one): from when to when requests were due that count."
    )
    steady: bool | None = Field(description="Whether latencies had no trend any more; null of too few to tell.")
    requests: int
    answered: int
    errors: dict[str, int] = Field(description="Failed requests by type of failure.")
    error_messages: dict[str, str] = Field(description="What the first failure of each type said.")
    throttles: int = Field(description="Requests that failed because the endpoint throttled them.")
    retries: int
    throttled_seconds: float = Field(description="Seconds between tries.")
    no_first_token: int = Field(description="Answers whose first token is not known: they came whole.")
    seconds: float = Field(description="Length of the windows: what rates are counted over.")
    offered_rate: float | None = Field(description="Requests a second that were due.")
    throughput: float | None = Field(description="Answers a second.")
    goodput: float | None = Field(description="Answers a second within the objective's latencies.")
    goodput_share: float | None
    prompt_tokens: int
    completion_tokens: int
    tokens_per_second: float | None = Field(description="Completion tokens.")
    cost: float = Field(description="By price_in and price_out of the judge's name; 0 without them.")
    cost_per_1000: float | None = Field(description="Of 1,000 answers; null without prices.")
    latencies: dict[Literal["e2e", "ttft", "itl", "service", "dispatch"], Latency] = Field(
        description="e2e: from the intended start to the last token. ttft: to the first token. itl: mean gap between "
        "tokens. service: from dispatch to the last token. dispatch: from the intended start to dispatch."
    )
    failed_latencies: Latency = Field(description="From the intended start to the failure.")
    in_flight: float | None = Field(description="Mean number of requests in flight.")
    most_in_flight: int
    unloaded: float | None = Field(description="Mean service time without load.")
    queueing_share: float | None = Field(description="Share of the mean latency that is not there without load.")
    busy: float | None = Field(description="Requests computed at once, by Little's law from the unloaded service time.")
    distributions: dict[str, list[tuple[float, float]]] = Field(
        description="Of each latency: seconds, and the share of requests that take at most so long."
    )
    health: Health
    bottleneck: str = Field(description="Why the client was the bottleneck; empty where it was not.")


class Highest(_Form):
    """The highest load of a judge that met the objective, below all that did not; null where none did."""

    judge: str
    rate: float | None = None
    concurrency: float | None = None


class ObjectiveStep(_Form):
    """One judge in one step beside the objective."""

    step: int
    judge: str
    rate: float | None = None
    concurrency: float | None = None
    met: bool
    missed: list[str] = Field(description="The terms that were missed, or whose figure is not known.")
    saturated: bool = Field(description="Its queue grew without bound.")
    figures: dict[str, float | None] = Field(description="By name, in seconds or as shares.")


class ObjectiveMet(_Form):
    """What was asked for, and what came of it."""

    text: str
    met: bool = Field(description="Every step met it or, in a search, some rate did.")
    highest: list[Highest]
    steps: list[ObjectiveStep]
