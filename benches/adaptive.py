"""Adaptive exams on published matrices of responses (``viva.scoring.item_bank`` and ``adaptive_exam``).

The Open LLM Leaderboard's answers to ARC and GSM8K (``$VIVA_DATA/metabench``). Whole organisations are held out: each
split fits a bank and calibrates it on four fifths of the organisations and examines models of the others, whose mean
over all items is known. A plain exam asks as many items at random and takes their mean.

``accuracy``  items until the root mean square error over held-out models stays at 5 points or below (median of
              splits); the share of pairs, 3 to 10 points apart, that 15 items put in the right order. Plain exams ask
              all models the same items there, which helps them.
``coverage``  of the 95% intervals of both estimates at several numbers of items, in the worst split too; their mean
              half-widths; the same with the difficulties of the bank shuffled. "At any time": the assumption-free
              interval covers at all of these numbers of items, the model-based one after each of 5 to 100 items.
``stopping``  coverage of the model-based interval when each rule ends the exam, and how many items that takes, with the
              fitted bank and with shuffled difficulties; both also without the guard (`LEAST_FIT`). "Prolonged":
              exams that the guard makes longer. "Wrong": on the wrong side of 60, or two models in the wrong order.
              "Forecast": median and 95% of `forecast_exams`, beside the items of the held-out models.
``subjects``  items until half_width=3 in a simulated bank of 57 subjects of MMLU's relative sizes, if draws are spread
              over the subjects, per item without.
``exposure``  the largest share of models that are asked one item, with 15 items each.
``small``     coverage of the model-based interval if the bank rests on few models, with 15 items.
``learned``   items until the root mean square error stays at 5 points or below if so many random models of the matrix
              learn a bank from nothing, and how often the assumption-free interval covers at the end. With 6 models
              items are random, and the figure is that of the assumption-free value.
``choice``    time to choose an item, from a bank of 10,000 items for 100 candidates, in waves of 8, and peak memory;
              time for each item of exams that learn their bank, 60 items each, with all fits.

``--quick`` makes 2 splits instead of 10, examines 100 models instead of 300, and omits `small`; it has
fewer repetitions of `learned`.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # before numpy is imported

import numpy as np
import table
from numpy.typing import NDArray

from viva.scoring.adaptive_exam import LEAST_FIT, Calibration, Exams, bound_means, calibrate, correct, wave_size
from viva.scoring.exam_course import LEAST_ANSWERS, ExamCourse, ExamForecast, ExamRule, SimulatedExams, forecast_exams
from viva.scoring.item_bank import Bank, Scale, fit_bank, learn_bank
from viva.scoring.learned_exam import LEAST_LEARNERS, BankLearner, LearnedCourse, answers_of, starting_exams

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("VIVA_DATA") or ROOT / ".." / "shared" / "data").resolve() / "metabench"
BENCHMARKS = ("arc", "gsm8k")
LARGEST_WAVE, LENGTH, PRECISION = 8, 100, 0.05
POINTS = (5, 10, 15, 20, 30, 40, 60, 80, 100)
PAIRS = 15  # items of the exams whose pairs are compared
LEARNERS = {6: (8, 40), 20: (5, 30), 100: (2, 10)}  # models of a run that learns its bank: repetitions, quick and full
LEARNED_LENGTH = 80
RULES = ("half_width=3", "half_width=8", "above=60", "decided")
SUBJECTS, SUBJECT_ITEMS = 57, 1400
SMALL_BANKS = (20, 50, 100, 200, 500)
REACH: table.Reach = {
    **{f"{name}_items_ratio": ("<=", 0.5) for name in BENCHMARKS},
    **{
        f"{name}_{estimate}_coverage_pct": (">=", 93)
        for name in BENCHMARKS
        for estimate in ("model", "free", "free_shuffled")
    },
    **{f"{name}_learned_by_100_ratio": ("<=", 0.8) for name in BENCHMARKS},
    **{f"{name}_learned_free_coverage_pct": (">=", 93) for name in BENCHMARKS},
    **{f"{name}_stopping_{rule}_coverage_pct": (">=", 93) for name in BENCHMARKS for rule in RULES},
    "choice_ms": ("<=", 1),
    "learn_ms": ("<=", 1),
}
Floats = NDArray[np.float64]


@lru_cache
def read(name: str) -> tuple[Floats, list[str]]:
    """Return the scores of a matrix, and each model's organisation."""
    with np.load(DATA / f"{name}.npz", allow_pickle=False) as file:
        scores, names = file["X"].astype(np.float64), file["names"]
    return scores, [re.split("/|__", str(model))[0] for model in names]


@dataclass(frozen=True)
class Answers:
    """Estimates of one split: an array of models × numbers of items, from 1, for each; and the truth by model."""

    truth: Floats
    values: Floats
    lows: Floats
    highs: Floats
    free: Floats
    free_lows: Floats
    free_highs: Floats
    items: NDArray[np.int64]

    def covered(self, *, free: bool) -> NDArray[np.bool_]:
        """Return by model and number of items whether the interval covers."""
        lows, highs = (self.free_lows, self.free_highs) if free else (self.lows, self.highs)
        covered: NDArray[np.bool_] = (lows <= self.truth[:, None]) & (self.truth[:, None] <= highs)
        return covered


def examine(
    bank: Bank, calibration: Calibration, scores: Floats, generator: np.random.Generator, length: int
) -> Answers:
    """Examine models; estimates are taken after each item."""
    exams, rows = Exams(bank, len(scores)), np.arange(len(scores))[:, None]
    means, values, items = [], [], []
    while len(means) < length:
        size = min(wave_size(len(means), LARGEST_WAVE), length - len(means))
        draws = exams.draw(size, generator.random((len(scores), size)))
        answers = scores[rows, draws.items]
        values.append(correct(draws, answers, exams.items))
        items.append(draws.items)
        for column in range(draws.items.shape[1]):
            exams.record(draws.items[:, [column]], answers[:, [column]])
            means.append(exams.estimate(calibration))
    corrected = np.concatenate(values, axis=1)
    free = [bound_means(corrected[:, :count]) for count in POINTS if count <= length]
    return Answers(
        scores.mean(axis=1),
        *(np.stack([getattr(own, part) for own in means], axis=1) for part in ("values", "lows", "highs")),
        *(np.stack([getattr(own, part) for own in free], axis=1) for part in ("values", "lows", "highs")),
        np.concatenate(items, axis=1),
    )


def root_mean_square(errors: Floats) -> Floats:
    """Return the root mean square over models."""
    result: Floats = np.sqrt((errors**2).mean(axis=0))
    return result


def items_needed(errors: Floats) -> int:
    """Return the number of items from which the error stays within the precision."""
    above = np.flatnonzero(root_mean_square(errors) > PRECISION)
    return int(above[-1]) + 2 if above.size else 1


def right_order(estimates: Floats, truth: Floats) -> tuple[float, float]:
    """Return how many pairs 3 to 10 points apart are in the right order, ties for half, and how many there are."""
    apart = truth[:, None] - truth
    pairs = (apart >= 0.03) & (apart <= 0.10)
    between = estimates[:, None] - estimates
    right = (between > 1e-9)[pairs].sum() + 0.5 * (np.abs(between) <= 1e-9)[pairs].sum()
    return float(right), float(pairs.sum())


@dataclass(frozen=True)
class Split:
    """Figures of one split. Order: pairs in the right order, and pairs; points: coverage and half-width by `POINTS`."""

    models: int
    needed: int
    needed_plain: int
    error: float
    error_plain: float
    order: tuple[float, float]
    order_plain: tuple[float, float]
    exposure: float
    small: dict[int, float]
    points: dict[str, tuple[Floats, Floats]]
    at_any_time: dict[str, float]
    stops: dict[tuple[str, str], Stops]


@dataclass(frozen=True)
class Stops:
    """Exams of one split that ended by a rule: shares of models, items by model, and the forecast of their number."""

    covered: float
    wrong: float
    covered_unguarded: float
    prolonged: float
    items: NDArray[np.int64]
    forecast: ExamForecast


def measure_stops(
    bank: Bank, calibration: Calibration, scores: Floats, rule: ExamRule, seed: int, truth: Floats
) -> Stops:
    """Examine models until the rule ends their exams, with and without the guard; `decided` compares pairs."""
    course = ExamCourse(Exams(bank, threshold=rule.threshold), rule, scores.shape[1], LARGEST_WAVE, calibration)
    size = 2 if rule.decided else 1

    def sit(least_fit: float) -> SimulatedExams:
        generator = np.random.default_rng([59, seed])
        return course.simulate(
            lambda rows, items: scores[rows[:, None], items], len(scores) // size, size, generator, least_fit
        )

    guarded, unguarded = sit(LEAST_FIT), sit(-np.inf)
    real = truth[: guarded.lengths.size].reshape(guarded.lengths.shape)
    covered, covered_unguarded = (
        float((np.abs(exams.values - real) <= exams.halves + 1e-9).mean()) for exams in (guarded, unguarded)
    )
    wrong = np.zeros(1, dtype=bool)
    if rule.threshold is not None:
        wrong = (guarded.values > rule.threshold) != (real > rule.threshold)
    elif rule.decided:
        wrong = np.diff(guarded.values, axis=1) * np.diff(real, axis=1) < -1e-9
    return Stops(
        covered,
        float(wrong.mean()),
        covered_unguarded,
        float((guarded.lengths > unguarded.lengths).mean()),
        guarded.lengths.ravel(),
        forecast_exams(course, size, seed),
    )


def measure_subjects() -> dict[str, float]:
    """Measure what spreading draws over many subjects costs, with models that differ in one ability alone."""
    ratios = []
    for seed in range(4):
        generator = np.random.default_rng([61, seed])
        sizes = generator.lognormal(5.2, 0.65, SUBJECTS)  # as MMLU's 100 to 1,534 items
        counts = np.maximum(np.rint(SUBJECT_ITEMS * sizes / sizes.sum()).astype(np.int64), 2)
        subjects = np.repeat(np.arange(SUBJECTS), counts)
        slopes = generator.lognormal(0.0, 0.4, len(subjects)) * generator.lognormal(0.0, 0.3, SUBJECTS)[subjects]
        ease = generator.normal(0.0, 1.2, len(subjects)) + generator.normal(0.0, 0.7, SUBJECTS)[subjects]
        binary = Scale(np.array([0.5]), np.array([0.0, 1.0]), np.zeros(2))
        ability = np.exp(-0.5 * np.linspace(-6.0, 6.0, 61) ** 2)
        errors, counted = np.ones(len(subjects)), np.ones(len(subjects), dtype=np.int64)
        bank = Bank(binary, slopes, (ease * slopes)[:, None], errors, ability / ability.sum(), counted)
        rule, medians = ExamRule(half_width=3.0), []
        for groups in (None, subjects.tolist()):
            course = ExamCourse(Exams(bank, groups=groups), rule, len(subjects), LARGEST_WAVE, Calibration())
            medians.append(forecast_exams(course, 1, seed).each.value)
        ratios.append(medians[1] / medians[0])
    return {"subjects_items_ratio": float(np.mean(ratios)), "subjects_items_ratio_worst": float(max(ratios))}


def measure_split(name: str, seed: int, models: int, few_splits: int) -> Split:
    """Measure one split."""
    scores, organisations = read(name)
    generator = np.random.default_rng([53, seed])
    names = np.array(sorted(set(organisations)))
    outsiders = set(generator.permutation(names)[: len(names) // 5].tolist())
    outside = np.array([organisation in outsiders for organisation in organisations])
    tested = scores[outside][generator.permutation(int(outside.sum()))[:models]]
    clusters = [organisation for organisation in organisations if organisation not in outsiders]
    fitted = scores[~outside]
    bank, calibration = fit_bank(fitted), calibrate(fitted, clusters, largest_wave=LARGEST_WAVE, seed=seed)
    adaptive = examine(bank, calibration, tested, generator, LENGTH)
    shuffled = replace(bank, thresholds=bank.thresholds[generator.permutation(len(bank.thresholds))])
    wrong = examine(shuffled, calibration, tested, generator, LENGTH)
    order = generator.random(tested.shape).argsort(axis=1)[:, :LENGTH]
    plain = np.take_along_axis(tested, order, axis=1).cumsum(axis=1) / np.arange(1, LENGTH + 1)
    truth = adaptive.truth
    common = [tested[:, generator.permutation(tested.shape[1])[:PAIRS]].mean(axis=1) for _ in range(20)]
    ordered = np.sum([right_order(means, truth) for means in common], axis=0)
    coverages = {}
    for count in SMALL_BANKS if seed < few_splits else ():
        # Whole organisations in random order until there are enough models.
        ranks = {own: rank for rank, own in enumerate(generator.permutation(names).tolist())}
        own = np.argsort([ranks[cluster] for cluster in clusters], kind="stable")[:count]
        narrow, widths = fit_bank(fitted[own]), calibrate(fitted[own], [clusters[index] for index in own], seed=seed)
        coverages[count] = float(
            examine(narrow, widths, tested, generator, PAIRS).covered(free=False)[:, PAIRS - 1].mean()
        )
    worlds = {"": adaptive, "_shuffled": wrong}
    return Split(
        len(tested),
        items_needed(adaptive.values - truth[:, None]),
        items_needed(plain - truth[:, None]),
        float(root_mean_square(adaptive.values - truth[:, None])[PAIRS - 1]),
        float(root_mean_square(plain - truth[:, None])[PAIRS - 1]),
        right_order(adaptive.values[:, PAIRS - 1], truth),
        (float(ordered[0]), float(ordered[1])),
        float(np.bincount(adaptive.items[:, :PAIRS].ravel()).max() / len(tested)),
        coverages,
        {
            f"{kind}{world}": at_points(answers, free=kind == "free")
            for world, answers in worlds.items()
            for kind in ("model", "free")
        },
        {
            f"{kind}{world}": float(answers.covered(free=kind == "free")[:, first:].all(axis=1).mean())
            for world, answers in worlds.items()
            for kind, first in (("free", 0), ("model", LEAST_ANSWERS - 1))
        },
        {
            (rule, world): measure_stops(own_bank, calibration, tested, ExamRule.parse(rule), seed, truth)
            for rule in RULES
            for world, own_bank in (("", bank), ("_shuffled", shuffled))
        },
    )


def at_points(answers: Answers, *, free: bool) -> tuple[Floats, Floats]:
    """Return coverage and mean half-width at each number of items."""
    covered = answers.covered(free=free)
    lows, highs = (answers.free_lows, answers.free_highs) if free else (answers.lows, answers.highs)
    places = np.arange(len(POINTS)) if free else np.array(POINTS) - 1
    return covered[:, places].mean(axis=0), (highs - lows)[:, places].mean(axis=0) / 2


def measure_choice() -> dict[str, float]:
    """Measure the time to choose an item, and the memory of a process that does."""
    generator = np.random.default_rng(53)
    items, candidates, size = 10_000, 100, 8
    slopes = generator.lognormal(0.0, 0.4, items)
    thresholds = (generator.normal(0.0, 1.5, items) * slopes)[:, None]
    binary = Scale(np.array([0.5]), np.array([0.0, 1.0]), np.zeros(2))
    ability = np.exp(-0.5 * np.linspace(-6.0, 6.0, 61) ** 2)
    bank = Bank(binary, slopes, thresholds, np.ones(items), ability / ability.sum(), np.ones(items, dtype=np.int64))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    exams, seconds = Exams(bank, candidates), []
    for _ in range(20):
        begin = time.process_time()
        draws = exams.draw(size, generator.random((candidates, size)))
        exams.record(draws.items, generator.integers(0, 2, draws.items.shape).astype(np.float64))
        exams.errors()
        seconds.append(time.process_time() - begin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "choice_ms": 1000 * float(np.median(seconds)) / (candidates * size),
        "choice_slowest_wave_ms": 1000 * max(seconds),
        "choice_memory_mb": (peak - before) / 1024,
    }


def sit_in_step(
    scores: Floats, generator: np.random.Generator, length: int, *, estimates: bool
) -> tuple[list[LearnedCourse], dict[int, Floats]]:
    """Let all models sit exams that learn a bank, and return them, and the estimates by number of items."""
    models, items = scores.shape
    first = LearnedCourse(starting_exams(items), ExamRule(half_width=0.01), length, LARGEST_WAVE, models)
    courses, learner, values = [first.another() for _ in range(models)], BankLearner(items), {}
    while not courses[0].end():
        learner.teach(courses)
        uniforms = generator.random((models, LARGEST_WAVE)).tolist()
        for own, course, row in zip(scores, courses, uniforms, strict=True):
            wave = course.draw(row)
            course.record(wave, own[list(wave.items)].tolist())
            course.bounds()
        if estimates and models >= LEAST_LEARNERS:
            exams = Exams(learn_bank(answers_of(courses, items)), models)
            for wave in range(len(courses[0].waves)):
                items_of_wave = np.array([course.waves[wave].items for course in courses])
                exams.record(items_of_wave, np.take_along_axis(scores, items_of_wave, axis=1))
            values[courses[0].length] = exams.errors()[0]
        elif estimates:
            values[courses[0].length] = np.array([course.assumption_free().values[0] for course in courses])
    return courses, values


def measure_learning(name: str, models: int, seed: int) -> tuple[dict[int, Floats], float]:
    """Return the errors by number of items, and how often the assumption-free interval covers after the last."""
    generator = np.random.default_rng([59, models, seed])
    scores, _ = read(name)
    own = scores[generator.permutation(len(scores))[:models]]
    truth = own.mean(axis=1)
    courses, values = sit_in_step(own, generator, LEARNED_LENGTH, estimates=True)
    bounds = 0.01 * np.array([course.bounds() for course in courses])
    covered = (bounds[:, 0] <= truth + 1e-9) & (truth <= bounds[:, 1] + 1e-9)
    return {count: estimates - truth for count, estimates in values.items()}, float(covered.mean())


def show_learning(name: str, parts: dict[int, list[tuple[dict[int, Floats], float]]], plain: float) -> dict[str, float]:
    """Print how many items runs need that learn their bank, and return the figures."""
    figures, rows = {}, []
    for models, repetitions in parts.items():
        counts = sorted(repetitions[0][0])
        errors = [float(root_mean_square(np.concatenate([own[count] for own, _ in repetitions]))) for count in counts]
        late = [count for count, error in zip(counts, errors, strict=True) if error > PRECISION]
        needed = next((count for count in counts if count > max(late, default=0)), LEARNED_LENGTH + 1)
        covered = 100 * float(np.mean([own for _, own in repetitions]))
        figures[f"{name}_learned_by_{models}_items"] = float(needed)
        figures[f"{name}_learned_by_{models}_ratio"] = needed / plain
        key = f"{name}_learned_free_coverage_pct"
        figures[key] = min(covered, figures.get(key, 100.0))
        at = {count: f"{100 * error:.1f}" for count, error in zip(counts, errors, strict=True)}
        rows.append([str(models), f"{plain:.0f} → {needed}", *(at[max(c for c in at if c <= n)] for n in (15, 30, 60))])
        rows[-1].append(f"{covered:.1f}")
    header = ["candidates", "items to RMSE ≤ 5", "RMSE at 15", "at 30", "at 60", "free covers %"]
    table.show(f"{name}: plain mean → bank that the candidates' own answers teach", header, rows)
    return figures


def measure_learning_time() -> float:
    """Return the time for each item in milliseconds, for 100 candidates and 10,000 items."""
    generator = np.random.default_rng(61)
    scores = generator.integers(0, 2, (100, 10_000)).astype(np.float64)
    begin = time.process_time()
    sit_in_step(scores, generator, 60, estimates=False)
    return 1000 * (time.process_time() - begin) / (100 * 60)


def show_benchmark(name: str, splits: Sequence[Split]) -> dict[str, float]:
    """Print the tables of a benchmark and return its figures."""
    rows, figures = [], {}
    for kind, title in (("model", "model-based"), ("free", "assumption-free")):
        for world, words in (("", "fitted"), ("_shuffled", "difficulties shuffled")):
            coverage = 100 * np.array([own.points[f"{kind}{world}"][0] for own in splits])
            halves = 100 * np.array([own.points[f"{kind}{world}"][1] for own in splits]).mean(axis=0)
            for index, count in enumerate(POINTS):
                covered = [f"{coverage[:, index].mean():.1f}", f"{coverage[:, index].min():.1f}"]
                rows.append([title, words, str(count), *covered, f"{halves[index]:.1f}"])
                if count in (15, 30, 60):
                    figures[f"{name}_{kind}{world}_half_width_{count}"] = float(halves[index])
            # Of the number of items with the lowest coverage.
            figures[f"{name}_{kind}{world}_coverage_pct"] = float(coverage.mean(axis=0).min())
    models = sum(own.models for own in splits)
    header = ["estimate", "bank", "items", "covered %", "worst split", "half-width"]
    table.show(f"{name}: 95% intervals of {models} held-out models, in {len(splits)} splits", header, rows)
    small = {count: [100 * own.small[count] for own in splits if own.small] for count in splits[0].small}
    table.show(
        f"{name}: model-based interval at {PAIRS} items, by number of models in the bank",
        ["models", "covered %", "worst split"],
        [[str(count), f"{np.mean(own):.1f}", f"{min(own):.1f}"] for count, own in small.items()],
    )
    figures |= show_stops(name, splits)
    adaptive, plain = (float(np.median([getattr(own, key) for own in splits])) for key in ("needed", "needed_plain"))
    order, order_plain = (np.sum([getattr(own, key) for own in splits], axis=0) for key in ("order", "order_plain"))
    return figures | {
        f"{name}_items": adaptive,
        f"{name}_items_plain": plain,
        f"{name}_items_ratio": adaptive / plain,
        f"{name}_rmse_15": 100 * float(np.mean([own.error for own in splits])),
        f"{name}_rmse_15_plain": 100 * float(np.mean([own.error_plain for own in splits])),
        f"{name}_pairs_pct": 100 * float(order[0] / order[1]),
        f"{name}_pairs_plain_pct": 100 * float(order_plain[0] / order_plain[1]),
        **{
            f"{name}_{world}_at_any_time_pct": 100 * float(np.mean([own.at_any_time[world] for own in splits]))
            for world in splits[0].at_any_time
        },
        f"{name}_exposure_pct": 100 * max(own.exposure for own in splits),
        **{f"{name}_model_coverage_bank_of_{count}_pct": float(np.mean(own)) for count, own in small.items()},
    }


def show_stops(name: str, splits: Sequence[Split]) -> dict[str, float]:
    """Print the table of exams that ended by a rule and return its figures."""
    rows, figures = [], {}
    for (rule, world), first in splits[0].stops.items():
        own = [split.stops[rule, world] for split in splits]
        covered, wrong, unguarded, prolonged = (
            100 * np.array([getattr(stops, key) for stops in own])
            for key in ("covered", "wrong", "covered_unguarded", "prolonged")
        )
        items = np.concatenate([stops.items for stops in own])
        low, median, high = np.quantile(items, [0.025, 0.5, 0.975])
        ends = {
            key: np.median([getattr(stops.forecast.each, key) for stops in own]) for key in ("low", "value", "high")
        }
        inside = [
            ((stops.forecast.each.low <= stops.items) & (stops.items <= stops.forecast.each.high)).mean()
            for stops in own
        ]
        rows.append([
            rule, "shuffled" if world else "fitted",
            f"{covered.mean():.1f} ({covered.min():.1f})", f"{unguarded.mean():.1f}",
            "" if first.wrong == 0 and rule.startswith("half") else f"{wrong.mean():.1f}",
            f"{prolonged.mean():.1f}", f"{median:.0f} ({low:.0f} to {high:.0f})",
            f"{ends['value']:.0f} ({ends['low']:.0f} to {ends['high']:.0f})", f"{100 * np.mean(inside):.0f}",
        ])  # fmt: skip
        figures |= {
            f"{name}_stopping_{rule}{world}_coverage_pct": float(covered.mean()),
            f"{name}_stopping_{rule}{world}_unguarded_coverage_pct": float(unguarded.mean()),
            f"{name}_stopping_{rule}{world}_wrong_pct": float(wrong.mean()),
            f"{name}_stopping_{rule}{world}_prolonged_pct": float(prolonged.mean()),
            f"{name}_stopping_{rule}{world}_items": float(median),
            f"{name}_stopping_{rule}{world}_forecast_items": float(ends["value"]),
            f"{name}_stopping_{rule}{world}_in_forecast_pct": 100 * float(np.mean(inside)),
        }
    header = ["rule", "bank", "covered % (worst split)", "without guard", "wrong %", "prolonged %"]
    table.show(f"{name}: when the rule ends the exam", [*header, "items (95%)", "forecast", "in forecast %"], rows)
    return figures


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="adaptive exams on published matrices")
    parser.add_argument("--quick", action="store_true", help="2 splits of 100 models instead of 10 of 300")
    options = parser.parse_args()
    began = time.perf_counter()
    figures = measure_choice() | measure_subjects() | {"learn_ms": measure_learning_time()}
    print(f"57 subjects: draws that are spread need {figures['subjects_items_ratio']:.2f} times the items")
    count, models, few_splits = (2, 100, 0) if options.quick else (10, 300, 5)
    rows = []
    with ProcessPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        waiting = {
            name: [pool.submit(measure_split, name, seed, models, few_splits) for seed in range(count)]
            for name in BENCHMARKS
            if (DATA / f"{name}.npz").exists()
        }
        learning = {
            name: {
                size: [
                    pool.submit(measure_learning, name, size, seed) for seed in range(sizes[0 if options.quick else 1])
                ]
                for size, sizes in LEARNERS.items()
            }
            for name in waiting
        }
        for name, futures in waiting.items():
            own = show_benchmark(name, [future.result() for future in futures])
            results = {size: [future.result() for future in parts] for size, parts in learning[name].items()}
            figures |= own | show_learning(name, results, own[f"{name}_items_plain"])
            items = [f"{own[f'{name}_items_plain']:.0f} → {own[f'{name}_items']:.0f}"]
            pairs = [f".{own[f'{name}_pairs_plain_pct']:.0f} → .{own[f'{name}_pairs_pct']:.0f}"]
            errors = [f"{own[f'{name}_rmse_15_plain']:.1f} → {own[f'{name}_rmse_15']:.1f}"]
            coverage = [f"{own[f'{name}_{kind}_coverage_pct']:.1f}" for kind in ("model", "free", "free_shuffled")]
            rows.append([name, *items, *pairs, *errors, *coverage, f"{own[f'{name}_exposure_pct']:.0f}"])
    if not rows:
        print(f"{DATA}: no matrices; only the time of a choice was measured")
    header = ["benchmark", "items to RMSE ≤ 5", "pairs in order at 15", "RMSE at 15", "model-based covers %"]
    table.show("plain mean → adaptive", [*header, "free covers %", "bank shuffled %", "exposure %"], rows)
    table.conclude("adaptive", {name: round(value, 3) for name, value in figures.items()}, REACH)
    print(f"took {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
