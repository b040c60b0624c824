"""What several simulated sweeps tell together: figures with intervals, and what held calls back.

What never belongs here: simulating, tables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from viva.scoring.intervals import Estimate

from .simulation import Course
from .stations import Tally
from .talks import PROCESSOR

LEVEL = 0.9
# Relative errors of durations that are due to the model and not to the draw, as measured (docs/sweeps.md): of answers
# over HTTP; and of calls that this machine computes. A pilot's first and last conversations have less company than
# those of a long sweep, and some models slow down in company more than in proportion, so the error falls with the
# rounds of slots that were held; what is left is that the machine's own speed changes.
_MODEL_ERROR = 0.03
_MOST_LOCAL_ERROR, _FIRST_ROUND_ERROR, _LEAST_LOCAL_ERROR = 0.25, 0.3, 0.06
_MATTERS = 0.05  # share of the time from which on a bound is named
_HALF = 0.5  # of the time in which slots are full: from this on it is a model behind it that holds them


@dataclass(slots=True, frozen=True)
class Hold:
    """What holds calls back for a ``share`` of the time: a bound of a model, or of the sweep (``model`` is None)."""

    model: str | None
    bound: str
    share: float


def predicted(values: Sequence[float], sample: int, model_error: float = 0.0) -> Estimate:
    """The mean of simulated figures and an interval for the figure to come.

    :param model_error: the relative error of the simulation itself, as a standard deviation; it adds to the spread of
        the simulated figures as an independent error does.

    The simulations differ by what they drew and by which of the sample's talks they drew from (a bootstrap), so their
    spread is that of the figure to come; the interval is Student's for one more of them, at ``LEVEL``. It is widened by
    sqrt(n / (n - 1)), for a sample of n talks varies less than what it was drawn from (Efron & Tibshirani 1993,
    section 5.2). The lower end is at least 0.
    """
    middle = fmean(values)
    if len(values) < 2 and not model_error:
        return Estimate(middle, middle, middle)
    from scipy.stats import norm, t

    own = float(norm.ppf((1.0 + LEVEL) / 2)) * model_error * middle
    if len(values) < 2:
        return Estimate(middle, max(0.0, middle - own), middle + own)

    wider = math.sqrt(sample / (sample - 1)) if sample > 1 else 1.0
    quantile = float(t.ppf((1.0 + LEVEL) / 2, len(values) - 1))
    half = math.hypot(quantile * float(stdev(values)) * wider * math.sqrt(1.0 + 1.0 / len(values)), own)
    return Estimate(middle, max(0.0, middle - half), middle + half)


def model_error(courses: Sequence[Course], slowing: float, rounds: float) -> float:
    """The relative error of a duration that is due to the model and not to the draw, as a standard deviation: the local
    one where this machine's speed holds calls back for half of the time, less of it where it does so for less.

    :param slowing: how local models' calls slow each other down; :param rounds: of conversations with local models that
        were held, 0 where there were none.
    """
    whole = sum(course.seconds for course in courses)
    if not whole or not slowing:
        return 0.0 if not whole else _MODEL_ERROR
    share = min(1.0, sum(course.slowed.get(PROCESSOR, 0.0) for course in courses) / whole)
    local = min(_MOST_LOCAL_ERROR, max(_LEAST_LOCAL_ERROR, _FIRST_ROUND_ERROR / rounds if rounds else math.inf))
    return max(_MODEL_ERROR, min(1.0, 2.0 * share) * local)


def holds(courses: Sequence[Course]) -> list[Hold]:
    """What holds calls back for more than a few hundredths of the time; what is to be widened first comes first."""
    whole = sum(course.seconds for course in courses)
    if not whole:
        return []
    shares: dict[tuple[str | None, str], float] = {}
    for course in courses:
        for model, tally in course.models.items():
            for bound, seconds in tally.held.items():
                shares[model, bound] = shares.get((model, bound), 0.0) + seconds / whole
        for place, seconds in course.slowed.items():
            shares[place, "speed"] = shares.get((place, "speed"), 0.0) + seconds / whole
    full = sum(course.full for course in courses) / whole
    found = [Hold(*name, share) for name, share in shares.items() if share > _MATTERS]
    found.sort(key=lambda one: -one.share)
    if full > _MATTERS:
        behind = bool(found) and found[0].share >= _HALF * full
        found.insert(1 if behind else 0, Hold(None, "concurrency", full))
    return found


def extended(short: Course, long: Course, share: float) -> Course:
    """The course of a whole sweep, from those of a part of it with ``share`` of its conversations and of half of that.

    What takes no longer with more conversations (filling up, the last ones) is the same in both; the rest grows evenly.
    """
    if share >= 1.0:
        return long
    times = 1.0 / share

    def grown(half: float, full: float) -> float:
        return full + max(0.0, full - half) * 2.0 * (times - 1.0)

    found = Course(grown(short.seconds, long.seconds), most=long.most)
    found.full = min(found.seconds, grown(short.full, long.full))
    for place, seconds in long.slowed.items():
        found.slowed[place] = grown(short.slowed.get(place, 0.0), seconds)
    for model, tally in long.models.items():
        before = short.models.get(model, Tally())
        held = {name: grown(before.held.get(name, 0.0), seconds) for name, seconds in tally.held.items()}
        found.models[model] = Tally(
            round(tally.calls * times),
            tally.prompt * times,
            tally.completion * times,
            tally.most,
            tally.cached * times,
            held,
        )
    return found


def named(bound: str, bounds: Mapping[str, int]) -> str:
    """A bound with its figure, where it has one."""
    return f"{bound}={bounds[bound]}" if bound in bounds else bound
