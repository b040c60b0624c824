"""Adaptive exams without an item bank: the exams of several models learn one while they go on.

All models answer in step. The first items of each model are a random sample; then a bank is fitted to all answers so
far, again whenever their number has grown by half, and items are chosen with it. Models draw different items, because
the bank then covers more of the benchmark than if all met the same ones.

Each draw has a known probability given everything that is recorded before its wave, so the assumption-free estimate
covers whatever was learned, and the rules look at its interval. The model-based estimate has no interval here: the bank
was fitted to these very models, and no other models are left to calibrate it with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .adaptive_exam import RANGE, Calibration, Exams, Means
from .confidence_sequences import ConfidenceSequences
from .exam_course import LEAST_ANSWERS, ExamCourse, ExamRule, Wave
from .item_bank import GRID, Bank, Floats, Scale, learn_bank

LEAST_LEARNERS = 20  # models: with 6 nothing is gained over random items, with 20 little (benches/adaptive.py)
FIRST_ITEMS = 10  # of each model, at random
_GROWTH = 1.5
_LEVEL = 0.95


def starting_exams(items: int, threshold: float | None = None) -> Exams:
    """Return an exam of one model on items that are all alike, as far as anybody knows."""
    ability = np.exp(-0.5 * GRID**2)
    binary = Scale(np.array([0.5]), np.array([0.0, 1.0]), np.zeros(2))
    counts = np.zeros(items, dtype=np.int64)
    bank = Bank(binary, np.ones(items), np.zeros((items, 1)), np.ones(items), ability / ability.sum(), counts)
    return Exams(bank, threshold=threshold)


class LearnedCourse(ExamCourse):
    """The exam of one of several models that learn a bank together.

    Args:
        exams: The exam of one model on items that are all alike, without answers.
        rule: When the exam ends.
        limit: The largest number of items.
        largest: The largest wave.
        models: Number of models.
    """

    def __init__(self, exams: Exams, rule: ExamRule, limit: int, largest: int, models: int) -> None:
        super().__init__(exams, rule, limit, largest, Calibration())
        self._start, self._models = exams, models
        # Under `decided` the intervals of all models together have the level 95% (Bonferroni).
        level = 1.0 - (1.0 - _LEVEL) / models if rule.decided else _LEVEL
        low, high = -100.0 * RANGE, 100.0 * (1.0 + RANGE)
        self._bounds = ConfidenceSequences(1, low=low, high=high, level=level, steps=1000)
        self._bounded = 0  # number of values that the bounds rest on
        self.answers: list[list[float]] = []  # by wave; nan without a score
        self.has_bank = False

    def another(self) -> LearnedCourse:
        """Return an exam of another model of these, without answers."""
        return LearnedCourse(self._start.another(), self.rule, self._limit, self._largest, self._models)

    def adopt(self, exams: Exams) -> None:
        """Choose items with another bank from now on; `exams` is the exam of one model on it, without answers."""
        for wave, answers in zip(self.waves, self.answers, strict=True):
            exams.record(np.array([wave.items], dtype=np.int64), np.array([answers]))
        self._exams, self.has_bank = exams, True

    def draw(self, uniforms: Sequence[float]) -> Wave:
        """Draw the next wave: at random without a bank."""
        if self.has_bank:
            return super().draw(uniforms)
        left = np.flatnonzero(~self._exams.asked[0]).tolist()
        size = min(self._largest, self._limit - self.length)
        if self._models >= LEAST_LEARNERS and self.length < FIRST_ITEMS:
            size = min(size, FIRST_ITEMS - self.length)
        chances = [1.0 / (len(left) - position) for position in range(size)]
        items = [left.pop(min(int(uniform * len(left)), len(left) - 1)) for uniform in uniforms[:size]]
        total, answered = float(np.nansum(self._exams.scores)), self.answered
        expected = (total + 0.5) / (answered + 1)
        known = (total + expected * (self._exams.items - answered)) / self._exams.items
        return Wave(len(self.waves) + 1, items, chances, [expected] * size, min(known, 1.0))

    def record(self, wave: Wave, scores: Sequence[float | None]) -> None:
        """Record the scores of a wave's items, as `ExamCourse` does."""
        super().record(wave, scores)
        self.answers.append([math.nan if score is None else score for score in scores])

    def bounds(self) -> tuple[float, float]:
        """Return the ends of the assumption-free interval that the rule looks at, in points."""
        for value in self._corrected[self._bounded :]:
            # Rounding may leave the range by a few units in the last place.
            self._bounds.add([min(max(100.0 * value, self._bounds.low), self._bounds.high)])
        self._bounded = len(self._corrected)
        return max(float(self._bounds.lows[0]), 0.0), min(float(self._bounds.highs[0]), 100.0)

    def model_based(self) -> Means:
        """Return the model-based estimate: no value without a bank, and no interval with one."""
        unknown = np.full(1, math.nan)
        return Means(self._exams.errors()[0] if self.has_bank else unknown, unknown, unknown)

    def spread(self) -> tuple[float, float]:
        """Return the model-based estimate, and no error."""
        return float(self.model_based().values[0]), math.nan

    def is_contradicted(self) -> bool:
        """Return True if there is a model-based estimate, and it lies outside the assumption-free interval."""
        return self.has_bank and super().is_contradicted()

    def end(self) -> str | None:
        """Return why the exam ends now, as far as this model alone decides it; None if it goes on."""
        if self.length >= self._exams.items:
            return "all_items"
        if self.answered >= LEAST_ANSWERS and not self.rule.decided:
            low, high = (np.array([0.01 * end]) for end in self.bounds())
            if self.rule.is_met(Means(low, low, high))[0]:
                return "above" if self.rule.half_width is None else "half_width"
        return "limit" if self.length >= self._limit else None


def bounds_apart(courses: Sequence[LearnedCourse]) -> list[bool]:
    """Return by exam if its assumption-free interval overlaps with that of no other model."""
    ends = [course.bounds() for course in courses]
    return [
        course.answered >= LEAST_ANSWERS
        and all(high < other_low or other_high < low for own, (other_low, other_high) in enumerate(ends) if own != row)
        for row, (course, (low, high)) in enumerate(zip(courses, ends, strict=True))
    ]


def answers_of(courses: Sequence[LearnedCourse], items: int, waves: int | None = None) -> Floats:
    """Return the scores of models on items, nan if there is none, of the first `waves` waves or of all."""
    scores = np.full((len(courses), items), np.nan)
    for row, course in enumerate(courses):
        for wave, answers in zip(course.waves[:waves], course.answers[:waves], strict=True):
            scores[row, list(wave.items)] = answers
    return scores


class BankLearner:
    """The bank that the exams of several models learn.

    Which answers it is fitted to follows from the recorded waves alone, so a replay has the same bank. `threshold` and
    `groups` are those of `Exams`.
    """

    def __init__(self, items: int, threshold: float | None = None, groups: Sequence[int] | None = None) -> None:
        self._items, self._threshold, self._groups = items, threshold, groups
        self._fitted = 0  # number of the wave whose answers were the last ones

    def forget(self) -> None:
        """Fit again at the next chance, because answers have changed."""
        self._fitted = 0

    def teach(self, courses: Sequence[LearnedCourse]) -> None:
        """Give these exams, which are in step, the bank of the answers so far, if these have grown enough."""
        wave = _last_fit(courses)
        if wave == self._fitted or len(courses) < LEAST_LEARNERS:
            return
        self._fitted = wave
        try:
            bank = learn_bank(answers_of(courses, self._items, wave))
        except ValueError:
            return  # all scores are equal so far: no item is better than another
        exams = Exams(bank, threshold=self._threshold, groups=self._groups)
        for course in courses:
            course.adopt(exams.another())


def _last_fit(courses: Sequence[LearnedCourse]) -> int:
    """Return the number of the last wave after which the answers had grown enough for a fit; 0 without."""
    fitted = answered = before = 0
    for wave in range(1, max(len(course.waves) for course in courses) + 1):
        begun = [course for course in courses if len(course.waves) >= wave]
        answered += sum(not math.isnan(score) for course in begun for score in course.answers[wave - 1])
        longest = max(sum(len(own.items) for own in course.waves[:wave]) for course in begun)
        if longest >= FIRST_ITEMS and answered >= max(_GROWTH * before, 1):
            fitted, before = wave, answered
    return fitted
