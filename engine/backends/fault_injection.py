"""Fault injection: a backend wrapper that fails the way endpoints do, as described in a file (`--chaos FILE`).

The faults of a call depend only on the seed, the call and its attempt, so a run with faults can be repeated. Temporary
faults do not change a run's results; garbage, truncated or empty answers test the parsing of verdicts.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .. import seeds
from ..cancellation import cancellable_wait
from ..clock import Clock
from ..errors import BackendError, ConfigurationError, Throttled, TimedOut, Unavailable
from ..likelihood import Reading
from ..messages import Completion, Request
from ..yaml_file import read_yaml
from .base import Backend
from .wrappers import BackendWrapper

_GARBAGE = '{"score": �ÿ][,, \\u12 <|im_end|> 5 5 5 Ã©…'
_FILLER = " and so on, and so forth,"
_MEGABYTES = 10.0
# Faults that raise an error: type, status and message.
_ERRORS: dict[str, tuple[type[BackendError], int | None, str]] = {
    "throttled": (Throttled, 429, "HTTP 429: chaos"),
    "unavailable": (Unavailable, 500, "HTTP 500: chaos"),
    "cut": (Unavailable, None, "chaos: the stream broke off"),
    "malformed": (Unavailable, None, "chaos: the answer is not valid UTF-8"),
    "timeout": (TimedOut, None, "chaos: no answer in time"),
    "gone": (Unavailable, None, "chaos: nothing listens there"),
}
FaultKind = Literal[
    "throttled", "unavailable", "gone", "timeout", "slow", "cut", "malformed", "garbage", "truncated", "empty", "long"
]


class Fault(BaseModel):
    """A fault for a `share` of the calls in a time window, in seconds since the model was opened.

    `models` and `roles` restrict it; empty means all. `seconds` is the delay of a slow call, the duration of a timeout,
    or the value of Retry-After; `megabytes` is the size of a long answer.
    """

    model_config = ConfigDict(extra="forbid")

    kind: FaultKind
    share: float = Field(default=1.0, ge=0.0, le=1.0)
    since: float = Field(default=0.0, ge=0.0, alias="from")
    until: float = Field(default=float("inf"), gt=0.0, alias="to")
    seconds: float | None = Field(default=None, ge=0.0)
    megabytes: float = Field(default=_MEGABYTES, gt=0.0, le=1000.0)
    models: list[str] = []
    roles: list[str] = []


class FaultPlan(BaseModel):
    """Faults in the order in which they are tried; a call gets at most one."""

    model_config = ConfigDict(extra="forbid")

    seed: int = 0
    faults: list[Fault] = Field(min_length=1)


def read_fault_plan(path: Path) -> FaultPlan:
    """Read a plan from a YAML file."""
    try:
        return FaultPlan.model_validate(read_yaml(path))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "file"
        raise ConfigurationError(f"{path}: {field}: {first['msg']}; see docs/models.md, Fault injection") from None


class FaultInjector(BackendWrapper):
    """A backend with injected faults."""

    def __init__(self, inner: Backend, plan: FaultPlan, clock: Clock) -> None:
        super().__init__(inner)
        self.fallible = True
        self._faults = [
            (index, fault) for index, fault in enumerate(plan.faults) if not fault.models or self.label in fault.models
        ]
        self._seed, self._clock = plan.seed, clock
        self._opened = clock.now()
        self._tries: dict[bytes, int] = {}  # attempts of each unanswered call
        self._met: dict[str, int] = {}

    async def __aenter__(self) -> Backend:
        await self.inner.__aenter__()
        self._opened = self._clock.now()
        return self

    async def generate(self, request: Request) -> Completion:
        fault = self._draw_fault(request.digest, request.role)
        if fault is not None:
            await self._fail(fault)
        completion = await self.inner.generate(request)
        self._tries.pop(request.digest, None)
        return completion if fault is None else _corrupt_completion(completion, fault)

    async def read(self, reading: Reading) -> Completion:
        fault = self._draw_fault(reading.digest(), "")
        if fault is not None:
            await self._fail(fault)
        completion = await self.inner.read(reading)
        self._tries.pop(reading.digest(), None)
        return completion

    def statistics(self) -> dict[str, Any]:
        return {**self.inner.statistics(), **({"faults": dict(sorted(self._met.items()))} if self._met else {})}

    def _draw_fault(self, digest: bytes, role: str) -> Fault | None:
        now = self._clock.now() - self._opened
        tried = self._tries.get(digest, 0)
        self._tries[digest] = tried + 1
        for index, fault in self._faults:
            if not fault.since <= now < fault.until or (fault.roles and role not in fault.roles):
                continue
            if fault.share == 1.0 or seeds.uniform(self._seed, "chaos", index, digest.hex(), tried) < fault.share:
                self._met[fault.kind] = self._met.get(fault.kind, 0) + 1
                return fault
        return None

    async def _fail(self, fault: Fault) -> None:
        """Raise BackendError if the fault is an error."""
        if fault.kind in ("slow", "timeout"):
            with cancellable_wait():
                await self._clock.sleep(1.0 if fault.seconds is None else fault.seconds)
        if fault.kind not in _ERRORS:
            return
        kind, status, message = _ERRORS[fault.kind]
        failure = kind(message, model=self.label, status=status)
        if fault.kind == "throttled":
            failure.retry_after = fault.seconds
        failure.absent = fault.kind == "gone"
        raise failure


def _corrupt_completion(completion: Completion, fault: Fault) -> Completion:
    match fault.kind:
        case "long":
            return replace(completion, text=completion.text + _FILLER * int(fault.megabytes * 1e6 / len(_FILLER)))
        case "garbage":
            return replace(completion, text=_GARBAGE)
        case "empty":
            return replace(completion, text="")
        case "truncated":
            return replace(completion, text=completion.text[: len(completion.text) // 2], finish="length")
    return completion
