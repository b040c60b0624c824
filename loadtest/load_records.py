"""Records of a load test: requests, steps, outcomes of requests, and judgements read from the answers.

A load test is a list of steps. Each step sends requests to its judges at one rate (open loop) or with a fixed number in
flight (closed loop). A step that was interrupted and resumed has several parts. Times are seconds on a monotonic clock
that starts with the part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from viva.engine.messages import Message, Sampling
from viva.engine.tools import Toolbox

BASELINE = -1  # first unloaded pass, with one request in flight
SECOND_BASELINE = -2  # second unloaded pass, with the same seeds: its differences from the first are the baseline noise
OTHER_SEEDS = -3  # third unloaded pass, with other seeds; only if a request is sampled (temperature above 0)

Arrivals = Literal["closed", "constant", "poisson", "bursty", "replay"]
Failure = Literal["", "parse", "truncated", "refused", "empty", "error"]
Label = str | float


@dataclass(slots=True, frozen=True)
class LoadRequest:
    """Request to a judge, sent as many times as the load needs it.

    `id` is stable from run to run. Requests with the same `affinity` begin with the same messages. `reader` names how
    the answer is read. `reference` is the correct answer, None if unknown. `pair` is the id of the same pair of answers
    in the other order, or "". `at` is the second at which the request came in a recording, for replayed timestamps.
    `hint` is for simulated judges only. Requests about the same thing have the same `item`, by which figures are
    clustered; "" means independent. `role` received the request in a recording; models of several roles need it.
    """

    id: str
    messages: tuple[Message, ...]
    sampling: Sampling
    affinity: str = ""
    reader: str = ""
    reference: Label | None = None
    pair: str = ""
    at: float | None = None
    tools: Toolbox | None = None
    hint: Any = None
    item: str = ""
    role: str = "judge"


# Requests that a step sends in turn; it starts over if it needs more.
LoadRequests = Sequence[LoadRequest]


@dataclass(slots=True, frozen=True)
class LoadStep:
    """Step of a load test.

    `index` counts steps from 0 in the order in which they run; that of unloaded passes is negative (`BASELINE`).
    `judges` are the labels of the judges that get the requests. `rate` is in requests per second for each judge, None
    in a closed loop; `concurrency` is the number in flight for each judge, None in an open loop. The step ends after
    `requests` (for each judge) or `seconds`, whichever comes first; at least one is set. `burst` is the shape of bursty
    arrivals: the squared coefficient of variation of the gaps (1 is Poisson).
    """

    index: int
    judges: tuple[str, ...]
    arrivals: Arrivals
    rate: float | None = None
    concurrency: int | None = None
    requests: int | None = None
    seconds: float | None = None
    burst: float = 1.0

    @property
    def unloaded(self) -> bool:
        """True for an unloaded pass, with which the loaded steps are compared."""
        return self.index < 0


@dataclass(slots=True)
class SentRequest:
    """Request of a step with its outcome.

    `number` counts the judge's requests of the step from 0. `occurrence` says how often the request was sent before in
    this step. The `seed` depends on the request's id and the occurrence, so that it is the same in every step (and in
    `BASELINE` and `SECOND_BASELINE` with occurrence 0). Times are in seconds from the start of `part`: `intended` when
    the request was due, `dispatched` when the backend got it, `first_token` when text came (None: never). `finish` is
    the finish reason, as in `Completion`. `error` is the type of the failure ("" for success), `message` its text; a
    failed request keeps the text it received. `throttled` is the time between tries in seconds.
    """

    step: int
    judge: str
    number: int
    request: str
    occurrence: int
    seed: int
    intended: float
    dispatched: float
    first_token: float | None
    finished: float
    text: str
    finish: str
    prompt_tokens: int
    completion_tokens: int
    error: str = ""
    message: str = ""
    tries: int = 1
    throttled: float = 0.0
    part: int = 0


@dataclass(slots=True)
class Judgement:
    """Judgement read from the answer to a `SentRequest` by the request's reader.

    `scores` are by aspect. `label` is that of a pairwise or categorical verdict, or "". `failure` says why there is no
    verdict; "" if there is one. `excerpt` is the beginning of an answer without a verdict. Byte-identical answers
    have the same `digest`.
    """

    request: str
    step: int
    judge: str
    number: int
    occurrence: int
    scores: dict[str, float] = field(default_factory=dict)
    label: str = ""
    failure: Failure = ""
    excerpt: str = ""
    digest: str = ""
