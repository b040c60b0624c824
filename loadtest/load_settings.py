"""Settings of a load test: judges, loads, lengths of steps, objective. Validated on creation, stored with the log."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from viva.engine.backends.base import ModelSpec
from viva.engine.backends.registry import with_absolute_path
from viva.engine.errors import ConfigurationError
from viva.scoring.load_schedule import Objective, RateList, RatePlan, RateSearch

from .load_records import Arrivals

# Options in a model's name that would slow down the load or hide its effects.
_LIMIT_OPTIONS = ("concurrency", "rpm", "rps", "tpm", "adaptive", "retries")
_DEFAULT_SECONDS = 60.0
_DEFAULT_BASELINE = 200


class LoadSettings(BaseModel):
    """Settings of a load test, without its requests.

    `judges` are models' names by label. Each of the `rates` (requests per second, for each judge) is an open loop with
    `arrivals`; each `concurrency` (requests in flight) is a closed loop. `search` looks for the highest rate between
    its two numbers that meets the `objective`, within the relative `tolerance`. A step ends after `requests` (for each
    judge) or `seconds`, whichever comes first. `baseline` is the maximum number of requests of each unloaded pass. The
    first `warm_up` and the last `cool_down` seconds of each step do not count; None: determined automatically. `pause`
    is the time between steps in seconds. With `together`, all judges are loaded at once instead of in turn.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    judges: dict[str, str] = Field(min_length=1)
    arrivals: Literal["constant", "poisson", "bursty", "replay"] = "poisson"
    rates: tuple[float, ...] = ()
    concurrency: tuple[int, ...] = ()
    search: tuple[float, float] | None = None
    tolerance: float = Field(default=0.05, gt=0.0, lt=1.0)
    objective: str | None = None
    requests: int | None = Field(default=None, ge=1)
    seconds: float | None = Field(default=None, gt=0.0)
    baseline: int = Field(default=_DEFAULT_BASELINE, ge=0)
    warm_up: float | None = Field(default=None, ge=0.0)
    cool_down: float | None = Field(default=None, ge=0.0)
    pause: float = Field(default=0.0, ge=0.0)
    drain: float = Field(default=60.0, gt=0.0)
    burst: float = Field(default=4.0, gt=0.0)
    retries: int = Field(default=0, ge=0)
    most_in_flight: int = Field(default=10_000, ge=1)
    stop_at_saturation: bool = True
    together: bool = False
    seed: int = 7

    @model_validator(mode="after")
    def _check(self) -> LoadSettings:
        if not (self.rates or self.concurrency or self.search or self.arrivals == "replay"):
            raise ValueError("name the load: --rates, --rate-search, --concurrency, or --arrivals replay")
        if any(not (rate > 0 and math.isfinite(rate)) for rate in (*self.rates, *(self.search or ()))):
            raise ValueError("rates are numbers above 0, in requests per second")
        if any(number < 1 for number in self.concurrency):
            raise ValueError("concurrency is a number of requests in flight, at least 1")
        if self.search is not None:
            if self.rates:
                raise ValueError("give rates or a rate search, not both")
            if self.search[0] >= self.search[1]:
                raise ValueError("a rate search needs a lower and a higher rate")
            if self.together:
                raise ValueError(
                    "a rate search cannot drive judges together, as each has its own rate; remove --together"
                )
        return self

    @property
    def limits(self) -> dict[str, float]:
        """Maximum seconds by latency; an answer that meets all of them is goodput."""
        return {} if self.objective is None else Objective.parse(self.objective).limits()

    @property
    def length(self) -> tuple[int | None, float | None]:
        """Return (requests, seconds) of a step; the default is a number of seconds."""
        return self.requests, _DEFAULT_SECONDS if self.requests is None and self.seconds is None else self.seconds

    @property
    def phases(self) -> list[tuple[Arrivals, RatePlan]]:
        """Kinds of load in the order in which they are applied, each with its rates."""
        phases: list[tuple[Arrivals, RatePlan]] = []
        if self.search is not None:
            phases.append((self.arrivals, RateSearch(*self.search, self.tolerance)))
        elif self.rates:
            phases.append((self.arrivals, RateList(self.rates)))
        elif self.arrivals == "replay":
            phases.append(("replay", RateList((0.0,))))  # 0 means as recorded
        if self.concurrency:
            phases.append(("closed", RateList(tuple(float(number) for number in self.concurrency))))
        return phases


def check_load_settings(fields: dict[str, Any], names: Mapping[str, str] | None = None) -> LoadSettings:
    """Validate settings. `names` maps fields to the names that users know.

    Raises:
        ConfigurationError: A setting is wrong; the message names the field.
    """
    try:
        settings = LoadSettings.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = (names or {}).get(str(first["loc"][0]), ".".join(map(str, first["loc"]))) if first["loc"] else ""
        message = first["msg"].removeprefix("Value error, ").replace("Input should be", "it should be")
        value = f" {first['input']}" if field else ""
        raise ConfigurationError(f"{field}{value}: {message}" if field else f"load test: {message}") from None
    if settings.objective is not None:
        Objective.parse(settings.objective)
    for model in settings.judges.values():
        governing = sorted(set(_LIMIT_OPTIONS) & ModelSpec.parse(model).options.keys())
        if governing:
            raise ConfigurationError(
                f"model '{model}': {', '.join(governing)}: a load test sets the load itself; remove these options "
                "(--retries N retries failed requests)"
            )
    return settings


def judges_by_label(models: list[str]) -> dict[str, str]:
    """Return judges by the labels of their models' names, with absolute paths.

    Raises:
        ConfigurationError: Two judges have the same label, or a name is wrong or contains a credential.
    """
    by_label: dict[str, str] = {}
    for model in models:
        label = ModelSpec.parse(model).label
        if label in by_label:
            raise ConfigurationError(
                f"two judges have the label '{label}': give one of them another with the option label, as in "
                f"'{model}{'&' if '?' in model else '?'}label=second'"
            )
        by_label[label] = with_absolute_path(model)
    return by_label
