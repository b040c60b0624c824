"""Which requests a part of a step sends to a judge, and when each is due.

All of it follows from the step, the seed, and which requests have ended before: a part that goes on with a killed step
sends exactly those that are missing. What never belongs here: sending.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from viva.engine.errors import ConfigurationError
from viva.scoring.load import arrivals

from .driver import Stream
from .records import LoadStep, Work
from .sending import Judge


def stream(
    step: LoadStep, part: int, judge: Judge, work: Work, seed: int, done: bytearray, *, first: bool, apart: bool
) -> Stream:
    """A judge's requests in a part.

    :param done: 1 at the number of each request that has ended. :param first: whether it is the judge's first part in
        this step. :param apart: whether the judge's arrivals are drawn apart from those of others at this rate.
    """
    if step.arrivals == "closed":
        return Stream(judge, _left(done, step.requests))
    names = (seed, "arrivals", step.arrivals, step.rate, *([] if first else [part]), *([judge.label] if apart else []))
    if first:
        return Stream(judge, _left(done, step.requests), _times(step, work, *names))
    left = planned(step, work, seed, judge, apart=apart)
    if step.arrivals == "replay":
        return Stream(judge, _left(done, left), _times_left(_left(done, left), _times(step, work)))
    return Stream(judge, _left(done, left), _times(step, work, *names))


def planned(step: LoadStep, work: Work, seed: int, judge: Judge, *, apart: bool) -> int | None:
    """How many requests a step sends to a judge in all, if it runs to its end; None where that depends on answers."""
    if step.arrivals == "closed":
        return step.requests
    if step.seconds is None:
        return step.requests
    times = _times(step, work, seed, "arrivals", step.arrivals, step.rate, *([judge.label] if apart else []))
    bounded = itertools.takewhile(lambda time: time < (step.seconds or 0.0), times)
    return sum(1 for _ in itertools.islice(bounded, step.requests))


def check_recorded_times(work: Work) -> None:
    """See that arrivals can be replayed.

    :raises ConfigurationError: a request has no time, or they are not in the order of their times.
    """
    before = None
    for one in work:
        if one.at is None:
            raise ConfigurationError(
                f"replayed arrivals need a time of each request; '{one.id}' has none: choose constant, poisson or "
                "bursty arrivals, or record times"
            )
        if before is not None and one.at < before:
            raise ConfigurationError(f"replayed arrivals need requests in the order of their times; see '{one.id}'")
        before = one.at


def _left(done: bytearray, limit: int | None) -> Iterator[int]:
    """The numbers of the requests that have not ended, in order."""
    for number in itertools.count() if limit is None else range(limit):
        if number >= len(done) or not done[number]:
            yield number


def _times_left(left: Iterator[int], times: Iterator[float]) -> Iterator[float]:
    """Of recorded times those of the requests that are left, from the first of them on."""
    start: float | None = None
    place = -1
    for number in left:
        time = next(itertools.islice(times, number - place - 1, None))
        place = number
        start = time if start is None else start
        yield time - start


def _times(step: LoadStep, work: Work, *seed: object) -> Iterator[float]:
    rate = step.rate or 0.0
    if step.arrivals == "constant":
        return arrivals.constant(rate)
    if step.arrivals == "poisson":
        return arrivals.poisson(rate, *seed)
    if step.arrivals == "bursty":
        return arrivals.bursty(rate, step.burst, *seed)
    try:
        return arrivals.replayed([one.at or 0.0 for one in work], rate or None)
    except ValueError as error:
        raise ConfigurationError(f"load test: {error}") from None
