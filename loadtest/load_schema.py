"""The form of a load test's record, as pydantic models: what each field means, and how figures are rounded."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from viva.reports.figures import round_figure, round_significant

Figure = Annotated[float, AfterValidator(round_figure)]
PValue = Annotated[float, AfterValidator(round_significant)]


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", from_attributes=True)


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


Failure = Literal["parse", "truncated", "refused", "empty"]
Unread = Annotated[
    dict[Failure, str],
    Field(description="For each way in which answers hold no verdict the beginning of the first such answer."),
]


class Interval(_Form):
    """A figure with the ends of its interval at the level 1 - alpha."""

    value: Figure | None
    low: Figure | None = Field(description="Lower end; null where there is none.")
    high: Figure | None


class SameVerdicts(_Form):
    """How far verdicts on the same requests agree."""

    same: Interval = Field(description="Share of pairs of verdicts that are the same, clustered by item.")
    beyond_chance: Figure | None = Field(
        description="Of labels Cohen's kappa, of scores Krippendorff's alpha on the interval scale."
    )
    n: int = Field(description="Requests.")


class SameTexts(_Form):
    """How many answers are byte for byte those of the first unloaded pass: same requests, same seeds."""

    same: Interval
    n: int = Field(description="Requests.")


class Position(_Form):
    """What the order of two answers does to verdicts."""

    favour: Interval = Field(description="How far the answer that stands first is favoured, -1 to 1.")
    consistent: Interval = Field(description="Share of pairs whose two orders say the same of the answers.")
    n: int = Field(description="Pairs.")


class Changed(_Form):
    """One figure at one load beside the same of the unloaded passes, on requests answered in all three."""

    figure: Literal["scores", "verdicts", "spread", "unreadable", "reference", "position"] = Field(
        description="scores: mean score. verdicts: mean distance from the unloaded verdicts of the same requests. "
        "spread: standard deviation of scores. unreadable: share of answers without a verdict. reference: mean "
        "distance from right scores or labels. position: how far the answer that stands first is favoured.",
    )
    aspect: str = Field(description="The score that it is of; 'label' of labels, empty of unreadable answers.")
    loaded: Figure
    unloaded: Figure = Field(description="Of verdicts the distance of the two unloaded passes from one another.")
    change: Interval = Field(description="loaded - unloaded, clustered by item.")
    floor: Interval | None = Field(description="Second unloaded pass less the first: what noise alone does.")
    n: int = Field(description="Requests; of position, pairs.")
    items: int = Field(description="Clusters.")
    p: PValue | None = Field(description="Of no change, corrected for all loads and figures of the judge.")
    changed: bool = Field(description="p is at most alpha.")


class Failed(_Form):
    """The share of answers that failed in one way."""

    loaded: Figure
    unloaded: Figure
    change: Interval


class Running(_Form):
    """The mean change as it could be told at any time while the step went on (a confidence sequence)."""

    n: int = Field(description="Requests taken in, in the order in which they were sent.")
    low: Figure
    high: Figure
    found_at: int | None = Field(description="The number of requests after which 0 was excluded.")


class Judged(_Form):
    """One judge at one load."""

    step: int
    load: str = Field(description="'8/s' or '16 in flight'.")
    answers: int = Field(description="Answers, repeated requests included; failed requests are not among them.")
    errors: int = Field(description="Failed requests.")
    unreadable: Figure | None = Field(description="Share of all answers without a verdict.")
    unread: Unread
    p: PValue | None = Field(description="Of the judge being as it is unloaded; null where nothing was compared.")
    flagged: bool = Field(description="p is at most alpha: it does not judge there as it does unloaded.")
    unseen: Figure | None = Field(
        description="The largest change of scores and verdicts that is left open, as a share of the scale."
    )
    drift: Interval | None = Field(
        description="The larger of two changes of the main score as a share of its scale: the size of the change of "
        "its mean, and how much farther verdicts lie from unloaded ones than these from each other. Of labels alone, "
        "the share of verdicts that change beyond those that change between unloaded passes."
    )
    figures: list[Changed]
    failures: dict[Failure, Failed]
    agreement: SameVerdicts | None = Field(description="With the first unloaded pass.")
    texts: SameTexts | None
    seeds: SameVerdicts | None = Field(description="Of requests that were sent several times, under other seeds.")
    reference: SameVerdicts | None = Field(description="With reference scores or labels.")
    position: Position | None
    running: Running | None


class Noise(_Form):
    """The second unloaded pass less the first, by the main score."""

    change: Interval
    p: PValue | None
    apart: Figure = Field(description="Mean distance of the two verdicts on a request.")
    n: int


class Unloaded(_Form):
    """What two passes with one request in flight say of a judge."""

    second_pass: Literal["same seeds", "other seeds"] = Field(
        description="Other seeds where requests are sampled: then another draw is as good as the first."
    )
    answers: list[int] = Field(description="Of the two passes.")
    mean: Figure | None = Field(description="Of the main score in the first pass.")
    unreadable: Figure | None
    unread: Unread
    noise: Noise | None
    agreement: SameVerdicts | None = Field(description="Of the two passes.")
    texts: SameTexts | None = Field(description="Of the two passes with the same seeds.")
    seeds: SameVerdicts | None
    reference: SameVerdicts | None
    position: Position | None


class Judgement(_Form):
    """One judge's verdicts at all loads."""

    aspect: str = Field(description="The main score; empty where there are labels alone.")
    scale: list[float] | None = Field(description="Its ends, where they are known beforehand.")
    unloaded: Unloaded
    steps: list[Judged]


class LoadedStep(_Form):
    """One judge in one step."""

    step: int
    judgement: Judged
    verdicts_per_minute: Figure | None = Field(description="Answers with a readable verdict.")
    speed: StepSpeed | None


class LoadedJudge(_Form):
    """One judge."""

    judge: str = Field(description="Its label.")
    model: str
    tier: Literal["A", "C"] = Field(description="C: its answers are the same at any load (docs/architecture.md).")
    judgement: Judgement
    unloaded_speed: StepSpeed | None
    steps: list[LoadedStep] = Field(description="From the lowest to the highest load.")


class Work(_Form):
    """What was sent."""

    source: str
    kind: Literal["transcripts", "judgments", "requests", "tasks", "lengths"]
    requests: int
    items: int
    pairs: int
    with_reference: int
    characters: int
    readers: list[str] = Field(description="How answers are read.")
    scales: dict[str, tuple[float, float]]
    notes: list[str]


class LoadReport(_Form):
    """The record of a load test of judges (``viva judge load --json``)."""

    kind: Literal["load"]
    version: Literal[1]
    alpha: float = Field(description="Share of sound judges that are flagged at any load.")
    work: Work
    settings: dict[str, Any] | None = Field(
        description="How the test was set up: the fields of load.json in the test's folder."
    )
    objective: ObjectiveMet | None
    judges: list[LoadedJudge]


def load_schema() -> dict[str, Any]:
    """The JSON schema of the record."""
    return LoadReport.model_json_schema()
