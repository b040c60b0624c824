"""Form of a load test's record as pydantic models: meaning and rounding of each field."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from viva.reports.figures import round_figure, round_significant

Figure = Annotated[float, AfterValidator(round_figure)]
PValue = Annotated[float, AfterValidator(round_significant)]


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", from_attributes=True)


class Latency(_Form):
    """Latency in seconds; only the count if that is 0."""

    count: int
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    p999: float | None = Field(default=None, alias="p99.9")
    max: float | None = None


class Lag(_Form):
    """Lag of the client's event loop, in milliseconds."""

    p50_ms: float
    p99_ms: float
    max_ms: float


class Health(_Form):
    """Client during the step; all fields are missing under a virtual clock."""

    seconds: float | None = None
    cpu: float | None = Field(default=None, description="Share of a core used by the event loop's thread.")
    cpu_process: float | None = Field(
        default=None, description="Of all threads, which include a local judge's computation."
    )
    cpu_seconds: float | None = Field(default=None, description="CPU seconds of the event loop's thread.")
    lag: Lag | None = None


class StepSpeed(_Form):
    """Speed of a judge in the steady part of a step. Errors are not part of any latency."""

    step: int
    judge: str
    arrivals: Literal["closed", "constant", "poisson", "bursty", "replay"]
    rate: float | None = Field(description="Requested requests per second; null for closed loops.")
    concurrency: int | None = Field(description="Requested number in flight; null for open loops.")
    end: str = Field(description="done, saturated, too_many_in_flight, interrupted or running.")
    sent: int = Field(description="All requests of the step; the other counts exclude warm-up and cool-down.")
    windows: list[tuple[int, float, float]] = Field(
        description="By part of the step (several if it was resumed): start and end of the due times that count."
    )
    steady: bool | None = Field(
        description="True if latencies had no trend any more; null if there are too few to tell."
    )
    requests: int
    answered: int
    errors: dict[str, int] = Field(description="Failed requests by type of failure.")
    error_messages: dict[str, str] = Field(description="Message of the first failure of each type.")
    throttles: int = Field(description="Requests that failed because the endpoint throttled them.")
    retries: int
    throttled_seconds: float = Field(description="Seconds between tries.")
    no_first_token: int = Field(description="Answers whose first token time is unknown because they came whole.")
    seconds: float = Field(description="Length of the windows, over which rates are counted.")
    offered_rate: float | None = Field(description="Requests per second that were due.")
    throughput: float | None = Field(description="Answers per second.")
    goodput: float | None = Field(description="Answers per second within the objective's latencies.")
    goodput_share: float | None
    prompt_tokens: int
    completion_tokens: int
    tokens_per_second: float | None = Field(description="Completion tokens.")
    cost: float = Field(description="Computed from price_in and price_out in the judge's name; 0 without them.")
    cost_per_1000: float | None = Field(description="Cost of 1,000 answers; null without prices.")
    latencies: dict[Literal["e2e", "ttft", "itl", "service", "dispatch"], Latency] = Field(
        description="e2e: from the intended start to the last token. ttft: to the first token. itl: mean gap between "
        "tokens. service: from dispatch to the last token. dispatch: from the intended start to dispatch."
    )
    failed_latencies: Latency = Field(description="From the intended start to the failure.")
    in_flight: float | None = Field(description="Mean number of requests in flight.")
    most_in_flight: int
    unloaded: float | None = Field(description="Mean service time without load.")
    queueing_share: float | None = Field(description="Share of the mean latency that is absent without load.")
    busy: float | None = Field(description="Requests computed at once, from the unloaded service time by Little's law.")
    distributions: dict[str, list[tuple[float, float]]] = Field(
        description="By latency: seconds, and the share of requests that take at most this long."
    )
    health: Health
    bottleneck: str = Field(description="Reason why the client was the bottleneck; empty if it was not.")


class Highest(_Form):
    """Highest load of a judge that met the objective, below all that did not; null if none did."""

    judge: str
    rate: float | None = None
    concurrency: float | None = None


class ObjectiveStep(_Form):
    """Result of one judge in one step with respect to the objective."""

    step: int
    judge: str
    rate: float | None = None
    concurrency: float | None = None
    met: bool
    missed: list[str] = Field(description="Terms that were missed or whose figure is unknown.")
    saturated: bool = Field(description="Its queue grew without bound.")
    figures: dict[str, float | None] = Field(description="By name, in seconds or as shares.")


class ObjectiveMet(_Form):
    """Objective and its result."""

    text: str
    met: bool = Field(description="Every step met it or, in a search, some rate did.")
    highest: list[Highest]
    steps: list[ObjectiveStep]


Failure = Literal["parse", "truncated", "refused", "empty"]
Unread = Annotated[
    dict[Failure, str],
    Field(description="By reason for a missing verdict, the beginning of the first such answer."),
]


class Interval(_Form):
    """Figure with its interval at the level 1 - alpha."""

    value: Figure | None
    low: Figure | None = Field(description="Lower end; null if there is none.")
    high: Figure | None


class SameVerdicts(_Form):
    """Agreement of verdicts on the same requests."""

    same: Interval = Field(description="Share of pairs of verdicts that are the same, clustered by item.")
    beyond_chance: Figure | None = Field(
        description="Cohen's kappa for labels, Krippendorff's alpha on the interval scale for scores."
    )
    n: int = Field(description="Requests.")


class SameTexts(_Form):
    """Share of answers that are byte-identical to the first unloaded pass: same requests, same seeds."""

    same: Interval
    n: int = Field(description="Requests.")


class Position(_Form):
    """Effect of the order of two answers on verdicts."""

    favour: Interval = Field(description="Preference for the answer in the first position, -1 to 1.")
    consistent: Interval = Field(description="Share of pairs with the same result in both orders.")
    n: int = Field(description="Pairs.")


class Changed(_Form):
    """Figure at one load and in the unloaded passes, on requests answered in all three."""

    figure: Literal["scores", "verdicts", "spread", "unreadable", "reference", "position"] = Field(
        description="scores: mean score. verdicts: mean distance from the unloaded verdicts of the same requests. "
        "spread: standard deviation of scores. unreadable: share of answers without a verdict. reference: mean "
        "distance from right scores or labels. position: preference for the answer in the first position.",
    )
    aspect: str = Field(description="Score name; 'label' for labels, empty for unreadable answers.")
    loaded: Figure
    unloaded: Figure = Field(description="For verdicts, the distance between the two unloaded passes.")
    change: Interval = Field(description="loaded - unloaded, clustered by item.")
    floor: Interval | None = Field(description="Second unloaded pass minus the first: the effect of noise alone.")
    n: int = Field(description="Requests; pairs for position.")
    items: int = Field(description="Clusters.")
    p: PValue | None = Field(description="For no change, corrected for all loads and figures of the judge.")
    changed: bool = Field(description="p is at most alpha.")


class Failed(_Form):
    """Share of answers that failed in one way."""

    loaded: Figure
    unloaded: Figure
    change: Interval


class Running(_Form):
    """Mean change as known at any time during the step (a confidence sequence)."""

    n: int = Field(description="Requests included so far, in sending order.")
    low: Figure
    high: Figure
    found_at: int | None = Field(description="Number of requests after which the interval first excluded 0.")


class Judged(_Form):
    """Result of one judge at one load."""

    step: int
    load: str = Field(description="'8/s' or '16 in flight'.")
    answers: int = Field(description="Answers, including repeated requests, excluding failed ones.")
    errors: int = Field(description="Failed requests.")
    unreadable: Figure | None = Field(description="Share of all answers without a verdict.")
    unread: Unread
    p: PValue | None = Field(description="For unchanged verdicts; null if nothing was compared.")
    flagged: bool = Field(description="p is at most alpha: verdicts change at this load.")
    unseen: Figure | None = Field(
        description="Largest change of scores and verdicts that is not ruled out, as a share of the scale."
    )
    drift: Interval | None = Field(
        description="As a share of the main score's scale, the larger of two figures: the change of the mean, and the "
        "distance between loaded and unloaded verdicts less the distance between two unloaded passes. For labels: the "
        "share of verdicts that change under load less the share that changes between unloaded passes."
    )
    figures: list[Changed]
    failures: dict[Failure, Failed]
    agreement: SameVerdicts | None = Field(description="Agreement with the first unloaded pass.")
    texts: SameTexts | None
    seeds: SameVerdicts | None = Field(description="Agreement of repeated requests under other seeds.")
    reference: SameVerdicts | None = Field(description="Agreement with reference scores or labels.")
    position: Position | None
    running: Running | None


class Noise(_Form):
    """Second unloaded pass minus the first, by the main score."""

    change: Interval
    p: PValue | None
    apart: Figure = Field(description="Mean absolute difference of the two verdicts on a request.")
    n: int


class Unloaded(_Form):
    """Results of two passes with one request in flight."""

    second_pass: Literal["same seeds", "other seeds"] = Field(
        description="Other seeds if requests are sampled, since another draw is equally valid."
    )
    answers: list[int] = Field(description="By pass.")
    mean: Figure | None = Field(description="Mean main score in the first pass.")
    unreadable: Figure | None
    unread: Unread
    noise: Noise | None
    agreement: SameVerdicts | None = Field(description="Agreement of the second pass with the first.")
    texts: SameTexts | None = Field(description="Agreement of the two passes with the same seeds.")
    seeds: SameVerdicts | None
    reference: SameVerdicts | None
    position: Position | None


class Judgement(_Form):
    """Verdicts of one judge at all loads."""

    aspect: str = Field(description="Main score; empty for labels only.")
    scale: list[float] | None = Field(description="Ends of the scale, if known in advance.")
    unloaded: Unloaded
    steps: list[Judged]


class LoadedStep(_Form):
    """Results of one judge in one step."""

    step: int
    judgement: Judged
    verdicts_per_minute: Figure | None = Field(description="Answers with a readable verdict.")
    speed: StepSpeed | None


class LoadedJudge(_Form):
    """Results of one judge."""

    judge: str = Field(description="Its label.")
    model: str
    tier: Literal["A", "C"] = Field(
        description="C: reproducible transcript (identical answers at any load); A: reproducible report."
    )
    judgement: Judgement
    unloaded_speed: StepSpeed | None
    steps: list[LoadedStep] = Field(description="From the lowest to the highest load.")


class Work(_Form):
    """Workload that was sent."""

    source: str
    kind: Literal["transcripts", "judgments", "requests", "tasks", "lengths"]
    requests: int
    items: int
    pairs: int
    with_reference: int
    characters: int
    readers: list[str] = Field(description="Readers of the answers.")
    scales: dict[str, tuple[float, float]]
    notes: list[str]


class LoadReport(_Form):
    """Record of a load test of judges (`viva judge load --json`)."""

    kind: Literal["load"]
    version: Literal[1]
    alpha: float = Field(description="Significance: share of stable judges flagged by chance at one load or more.")
    work: Work
    settings: dict[str, Any] | None = Field(description="Settings of the test: the fields of load.json in its folder.")
    objective: ObjectiveMet | None
    judges: list[LoadedJudge]


def load_schema() -> dict[str, Any]:
    """Return the JSON schema of the record."""
    return LoadReport.model_json_schema()
