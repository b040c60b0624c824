"""The course of one model's adaptive exam: waves of drawn items, when it ends, and what its answers say.

Everything follows from the bank, the recorded waves and the scores in the order of the waves, so a replay gives the
same draws and the same estimates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .adaptive_exam import LEAST_FIT, Calibration, Draws, Exams, Floats, Ints, Means, bound_means, correct, wave_size
from .intervals import Estimate, normal_quantile

LEAST_ANSWERS = 5  # before an exam may end by its rule
SIMULATED_EXAMS = 200  # of a forecast
_MOST_CHOICES = 1_000_000_000  # of a forecast, drawn items times items of the bank: about ten seconds
_RESAMPLES = 1000
_LEAST_PER_SUBJECT = 10  # items on average: in smaller subjects there is little to choose
_LEVEL = 0.95
_ABOUT_ONE = 1.0 + 1e-9  # probabilities are rounded
_ALLOWED = "half_width=3, decided or above=60, in points of the score; in a file also {half_width: 3} or {above: 60}"


@dataclass(frozen=True, slots=True)
class ExamRule:
    """Rule that ends an exam: exactly one of three, applied to the model-based 95% interval after each wave.

    `half_width`  until the interval is at most twice this value wide, in points of the score.
    `above`       until the interval lies above or below this value.
    `decided`     until the intervals of the differences to all other models exclude 0.

    No rule ends an exam while its answers are implausible under the bank (`ExamCourse.is_plausible`).
    """

    half_width: float | None = None
    above: float | None = None
    decided: bool = False

    @classmethod
    def parse(cls, value: Any) -> ExamRule:
        """Parse `decided`, `half_width=3`, `above=60` or a mapping of one of these.

        Raises:
            ValueError: The rule is invalid.
        """
        if isinstance(value, str):
            name, _, number = value.partition("=")
            value = {name.strip(): number.strip() or True}
        if not isinstance(value, Mapping) or len(value) != 1:
            raise ValueError(f"expected {_ALLOWED}")
        [(name, number)] = value.items()
        if name == "decided" and number is True:
            return cls(decided=True)
        try:
            points = float(number) if name in ("half_width", "above") and number is not True else math.nan
        except (TypeError, ValueError):
            points = math.nan
        if not 0.0 < points < 100.0:
            raise ValueError(f"expected {_ALLOWED}; a number of points lies between 0 and 100")
        return cls(half_width=points) if name == "half_width" else cls(above=points)

    def __str__(self) -> str:
        if self.decided:
            return "decided"
        return f"above={self.above:g}" if self.above is not None else f"half_width={self.half_width:g}"

    @property
    def threshold(self) -> float | None:
        """The score from 0 to 1 that the exam compares the model with, if any."""
        return None if self.above is None else self.above / 100.0

    def is_met(self, means: Means) -> NDArray[np.bool_]:
        """Return by model whether its interval meets the rule; `decided` is met by no interval alone."""
        low, high = 100.0 * means.lows, 100.0 * means.highs
        if self.half_width is not None:
            return np.asarray(high - low <= 2.0 * self.half_width)
        if self.above is not None:
            return (self.above < low) | (self.above > high)
        return np.zeros(len(low), dtype=bool)


@dataclass(frozen=True, slots=True)
class Wave:
    """Items that were drawn together, as positions in the bank; the fields of `Draws` for one model."""

    number: int
    items: Sequence[int]
    probabilities: Sequence[float]
    predictions: Sequence[float]
    known: float

    def to_record(self, ids: Sequence[str]) -> dict[str, Any]:
        """Return plain data with the items' ids."""
        return {
            "wave": self.number,
            "items": [ids[item] for item in self.items],
            "probabilities": list(self.probabilities),
            "predictions": list(self.predictions),
            "known": self.known,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any], positions: Mapping[str, int]) -> Wave:
        """Return the wave of a record; `positions` are those of the items in the bank.

        Raises:
            ValueError: The record is damaged, or names an item that the bank does not have.
        """
        try:
            items = [positions[name] for name in record["items"]]
            chances, predictions = map(float, record["probabilities"]), map(float, record["predictions"])
            wave = cls(int(record["wave"]), items, list(chances), list(predictions), float(record["known"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"a wave of an exam cannot be read: {error!r}") from None
        sizes = {len(items), len(set(items)), len(wave.probabilities), len(wave.predictions)}
        is_valid = len(sizes) == 1 and all(0.0 <= share <= 1.0 for share in (*wave.predictions, wave.known))
        if not items or not is_valid or not all(0.0 < chance <= _ABOUT_ONE for chance in wave.probabilities):
            raise ValueError(f"wave {wave.number} of an exam is not a wave: its lists do not fit together")
        return wave

    def draws(self) -> Draws:
        """Return the wave as draws of one exam."""
        return Draws(
            np.array([self.items], dtype=np.int64),
            np.array([self.probabilities]),
            np.array([self.predictions]),
            np.array([self.known]),
        )


def subject_groups(subjects: Sequence[str]) -> list[int] | None:
    """Return a number for each item's subject, over which an exam spreads its draws; None if it does not.

    It does not if there is one subject, or if they have fewer than ten items on average.
    """
    numbers = {subject: number for number, subject in enumerate(sorted(set(subjects)))}
    if len(numbers) < 2 or len(subjects) < _LEAST_PER_SUBJECT * len(numbers):
        return None
    return [numbers[subject] for subject in subjects]


@dataclass(frozen=True, slots=True)
class SimulatedExams:
    """Results at the end of exams, by group and model: number of items, estimate, half the width of its interval."""

    lengths: Ints
    values: Floats
    halves: Floats


class ExamCourse:
    """The exam of one model.

    Args:
        exams: The exam of one model, without answers.
        rule: When the exam ends.
        limit: The largest number of items.
        largest: The largest wave.
        calibration: The calibration of the bank.
    """

    def __init__(self, exams: Exams, rule: ExamRule, limit: int, largest: int, calibration: Calibration) -> None:
        self._exams, self.rule, self._calibration = exams, rule, calibration
        self._limit, self._largest = min(limit, exams.items), largest
        self.waves: list[Wave] = []
        self._corrected: list[float] = []

    def another(self) -> ExamCourse:
        """Return an exam like this one, without answers."""
        return ExamCourse(self._exams.another(), self.rule, self._limit, self._largest, self._calibration)

    @property
    def length(self) -> int:
        """Number of items in all recorded waves."""
        return int(self._exams.asked.sum())

    @property
    def answered(self) -> int:
        """Number of items with a score."""
        return int((~np.isnan(self._exams.scores)).sum())

    def draw(self, uniforms: Sequence[float]) -> Wave:
        """Draw the next wave with numbers from 0 to 1, of which it uses the first ones."""
        size = min(wave_size(self.answered, self._largest), self._limit - self.length)
        draws = self._exams.draw(size, np.array([uniforms[:size]]))
        return Wave(
            len(self.waves) + 1,
            draws.items[0].tolist(),
            draws.probabilities[0].tolist(),
            draws.predictions[0].tolist(),
            float(draws.known[0]),
        )

    def record(self, wave: Wave, scores: Sequence[float | None]) -> None:
        """Record the scores, 0–1, of a wave's items; None for an item without a score.

        Raises:
            ValueError: The wave does not follow the earlier ones.
        """
        if wave.number != len(self.waves) + 1 or self._exams.asked[0, list(wave.items)].any():
            raise ValueError(f"wave {wave.number} does not follow wave {len(self.waves)} of the exam, or repeats items")
        values = np.array([[math.nan if score is None else score for score in scores]])
        self._exams.record(np.array([wave.items], dtype=np.int64), values)
        self._corrected += correct(wave.draws(), values, self._exams.items)[0].tolist()
        self.waves.append(wave)

    def model_based(self) -> Means:
        """Return the model-based estimate of one model."""
        return self._exams.estimate(self._calibration)

    def spread(self) -> tuple[float, float]:
        """Return the model-based estimate and half the width of its interval, not cut at the ends of the scale."""
        values, errors = self._exams.errors()
        return float(values[0]), self._calibration.width(self.answered) * float(errors[0])

    def assumption_free(self) -> Means:
        """Return the assumption-free estimate of one model."""
        return bound_means(np.array([self._corrected or [math.nan]]), _LEVEL)

    def person_fit(self) -> float:
        """Return how plausible the answers are under the bank, in standard deviations."""
        return float(self._exams.person_fit()[0])

    def is_contradicted(self) -> bool:
        """Return True if the model-based estimate lies outside the assumption-free interval."""
        narrow, wide = self.model_based(), self.assumption_free()
        return self.answered > 0 and not bool(wide.lows[0] <= narrow.values[0] <= wide.highs[0])

    def is_plausible(self) -> bool:
        """Return False if the answers so far contradict the bank, on which the model-based interval rests."""
        return self.person_fit() >= LEAST_FIT and not self.is_contradicted()

    def end(self) -> str | None:
        """Return why the exam ends now, as far as this model alone decides it; None if it goes on."""
        if self.length >= self._exams.items:
            return "all_items"
        if self.answered >= LEAST_ANSWERS and self.rule.is_met(self.model_based())[0] and self.is_plausible():
            return "above" if self.rule.half_width is None else "half_width"
        return "limit" if self.length >= self._limit else None

    def simulate(
        self,
        answer: Callable[[Ints, Ints], Floats],
        groups: int,
        size: int,
        generator: np.random.Generator,
        least_fit: float = LEAST_FIT,
    ) -> SimulatedExams:
        """Simulate exams like this one, of groups of models.

        The models of a group wait for each other after each wave, and `decided` compares them.

        Args:
            answer: Returns the scores of models, by number, on items: models × items.
            groups: Number of groups.
            size: Number of models in a group.
            generator: Draws the items.
            least_fit: No rule ends an exam with a smaller person fit.
        """
        rows = groups * size
        exams, count, choices = self._exams.another(rows), 0, 0
        lengths = np.full(rows, self._limit, dtype=np.int64)
        values, halves = np.zeros(rows), np.full(rows, np.inf)
        going = np.arange(rows)
        while len(going) and count < self._limit and choices < _MOST_CHOICES:
            wave = min(wave_size(count, self._largest), self._limit - count)
            uniforms = generator.random((rows, wave))[going]  # those of one model do not depend on the others
            items = exams.draw(wave, uniforms).items
            exams.record(items, answer(going, items))
            count, choices = count + items.shape[1], choices + items.size * exams.items
            values[going], errors = exams.errors()
            halves[going] = self._calibration.width(count) * errors
            if count < LEAST_ANSWERS:
                continue
            ended = self.rule.is_met(exams.estimate(self._calibration))
            if self.rule.decided:
                answered = np.ones((groups, size), dtype=bool)
                ended = _apart(values.reshape(groups, size), halves.reshape(groups, size), answered).ravel()[going]
            ended &= exams.person_fit() >= least_fit
            lengths[going[ended]] = count
            exams.keep(~ended)
            going = going[~ended]
        shape = (groups, size)
        return SimulatedExams(lengths.reshape(shape), values.reshape(shape), halves.reshape(shape))

    def answer_as_bank(self, models: int, generator: np.random.Generator) -> Callable[[Ints, Ints], Floats]:
        """Return the answers of models that the bank describes, with abilities as in the bank, for `simulate`."""
        bank = self._exams.bank
        abilities = generator.choice(len(bank.ability), models, p=bank.ability)
        levels, means = bank.probabilities().cumsum(axis=2), bank.scale.means

        def answer(rows: Ints, items: Ints) -> Floats:
            reached = (generator.random((*items.shape, 1)) > levels[abilities[rows, None], items]).sum(axis=2)
            scores: Floats = means[np.minimum(reached, len(means) - 1)]
            return scores

        return answer


def separated(courses: Sequence[ExamCourse]) -> list[bool]:
    """Return by exam if the model-based intervals of the differences to all other models exclude 0.

    Together they have the level 95% (Bonferroni). An exam with fewer than five answers is not separated, nor is one
    whose answers are implausible under the bank.
    """
    values, halves = (np.array(part) for part in zip(*(course.spread() for course in courses), strict=True))
    answered = np.array([course.answered >= LEAST_ANSWERS for course in courses])
    apart = _apart(values[None], halves[None], answered[None])[0]
    return [bool(own) and course.is_plausible() for own, course in zip(apart, courses, strict=True)]


def _apart(values: Floats, halves: Floats, answered: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return by group of models and model if the differences to all others of the group exclude 0."""
    models = values.shape[1]
    level = (1.0 - _LEVEL) / max(1, models * (models - 1) // 2)
    factor = normal_quantile(1.0 - level / 2.0) / normal_quantile((1.0 + _LEVEL) / 2.0)
    distances = np.abs(values[:, :, None] - values[:, None, :])
    apart = distances > factor * np.hypot(halves[:, :, None], halves[:, None, :])
    apart &= answered[:, :, None] & answered[:, None, :]
    apart |= np.eye(models, dtype=bool)
    return apart.all(axis=2) & answered


@dataclass(frozen=True, slots=True)
class ExamForecast:
    """Numbers of items of an exam and of all exams of a run together: median, and the range of 95%."""

    each: Estimate
    total: Estimate


def forecast_exams(course: ExamCourse, models: int, seed: int) -> ExamForecast:
    """Simulate exams like `course` of models that answer as the bank says, with abilities as in the bank.

    Exams that do not end within the effort of a forecast count with the largest number of items.
    """
    generator = np.random.default_rng([19, seed])
    groups = max(20, SIMULATED_EXAMS // models) if course.rule.decided else SIMULATED_EXAMS
    size = models if course.rule.decided else 1
    lengths = course.simulate(course.answer_as_bank(groups * size, generator), groups, size, generator).lengths
    totals = lengths.sum(axis=1)
    if size != models:
        totals = generator.choice(lengths[:, 0], (_RESAMPLES, models)).sum(axis=1)
    return ExamForecast(_median(lengths.ravel()), _median(totals))


def _median(lengths: Ints) -> Estimate:
    low, value, high = np.quantile(lengths, [0.025, 0.5, 0.975], method="closest_observation")
    return Estimate(float(value), float(low), float(high))
