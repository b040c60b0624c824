"""When the requests of an open loop are due: schedules that follow from a rate and a seed alone.

Times are absolute, in seconds from the start. They are known ahead and made one by one, so that a schedule of hours
takes no memory, and nothing that happens while it is carried out can move it.

What never belongs here: waiting, or requests.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from viva.engine import seeds


def constant(rate: float) -> Iterator[float]:
    """Even gaps, the first request at 0; products, not sums, so that rounding does not add up."""
    return (number / rate for number in itertools.count())


def poisson(rate: float, *seed: object) -> Iterator[float]:
    """A Poisson process: independent exponential gaps with a mean of 1/rate."""
    draw = seeds.generator(*seed, "poisson").expovariate
    return itertools.accumulate(draw(rate) for _ in itertools.repeat(None))


def bursty(rate: float, burst: float, *seed: object) -> Iterator[float]:
    """Independent gamma gaps with a mean of 1/rate and a squared coefficient of variation of ``burst``.

    1 is a Poisson process; above 1 requests come in bursts with pauses between them, below 1 more evenly.
    """
    draw = seeds.generator(*seed, "bursty").gammavariate
    shape, scale = 1.0 / burst, burst / rate
    return itertools.accumulate(draw(shape, scale) for _ in itertools.repeat(None))


def replayed(times: Sequence[float], rate: float | None = None) -> Iterator[float]:
    """Recorded times, sorted, from the first one on; again from the beginning after the last.

    :param rate: stretches or compresses time so that this is the mean rate; None keeps the recorded speed.
    :raises ValueError: there are fewer than two times, or all are the same.
    """
    ordered = sorted(times)
    span = ordered[-1] - ordered[0] if len(ordered) > 1 else 0.0
    if span <= 0:
        raise ValueError("replayed arrivals need at least two recorded times that differ")
    own = (len(ordered) - 1) / span
    factor = 1.0 if rate is None else own / rate
    period = span + 1.0 / own  # the mean gap before the first request comes again
    return (factor * (lap * period + time - ordered[0]) for lap in itertools.count() for time in ordered)
