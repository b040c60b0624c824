"""Comparisons of simulated models: how often intervals cover, how often claims are wrong, what adaptive pairs gain.

The answers of a model to a prompt share an impression, so comparisons on one prompt are not independent. The true
strengths are those that the fit approaches with unlimited prompts. ``--quick`` takes fewer studies, under a minute.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from itertools import combinations

import numpy as np
import table
from scipy.stats import binomtest

from viva.scoring.pairwise_rank import (
    Comparisons,
    Interval,
    bradley_terry,
    fit_bradley_terry,
    informative_pairs,
    length_controlled_rate,
)

REACH: table.Reach = {
    "strength_coverage": (">=", 0.93),
    "equal_length_coverage": (">=", 0.93),
    "false_claim": ("<=", 0.07),
}
SPREAD = (1.0, 0.4, 0.0, -0.4, -1.0)
CLOSE = (0.3, 0.15, 0.0, -1.0, -1.5)
IMPRESSION = 0.8  # standard deviation of a model's answer to a prompt
TIES = 0.2  # chance that the judge contradicts itself in the other order
Row = tuple[str, int, int, float, float]


def judged(
    strengths: Sequence[float], prompts: Sequence[str], pairs: Sequence[Sequence[tuple[int, int]]], seed: int
) -> list[Row]:
    """Return the comparisons of these pairs on each prompt."""
    generator = np.random.default_rng(seed)
    rows = []
    for prompt, chosen in zip(prompts, pairs, strict=True):
        quality = np.array(strengths) + generator.normal(0, IMPRESSION, len(strengths))
        for i, j in chosen:
            score = float(generator.random() < 1 / (1 + math.exp(quality[j] - quality[i])))
            rows.append((prompt, i, j, 0.5 if generator.random() < TIES else score, math.nan))
    return rows


def true_strengths(strengths: Sequence[float]) -> np.ndarray:
    """Return the strengths that the fit approaches with all pairs on unlimited prompts."""
    points, weights = np.polynomial.hermite_e.hermegauss(41)
    wins = np.zeros((len(strengths), len(strengths)))
    for i, j in combinations(range(len(strengths)), 2):
        gaps = strengths[i] - strengths[j] + math.sqrt(2) * IMPRESSION * points
        chance = float((weights / (1 + np.exp(-gaps))).sum() / weights.sum())
        wins[i, j] = TIES / 2 + (1 - TIES) * chance
        wins[j, i] = 1 - wins[i, j]
    fitted = fit_bradley_terry(wins)
    assert fitted is not None
    return fitted


def covers(interval: Interval | None, truth: float) -> bool | None:
    """Return whether the interval has the truth; None without one."""
    if interval is None or interval.low is None or interval.high is None:
        return None
    return interval.low <= truth <= interval.high


def share(outcomes: Sequence[bool | None]) -> tuple[float, str, int]:
    """Return the share of True among those that are known, its 95% interval in words, and the number without one."""
    known = [outcome for outcome in outcomes if outcome is not None]
    ends = binomtest(sum(known), len(known)).proportion_ci(method="wilson")
    return sum(known) / len(known), f"{100 * ends.low:.1f} to {100 * ends.high:.1f}", len(outcomes) - len(known)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="comparisons of simulated models")
    parser.add_argument("--quick", action="store_true", help="fewer studies, under a minute")
    arguments = parser.parse_args()
    count, began = (60 if arguments.quick else 500), time.perf_counter()
    figures: dict[str, float] = {"studies": float(count)}
    rows = []
    everything = list(combinations(range(5), 2))
    for prompts in (20, 80):
        names = [str(at) for at in range(prompts)]
        truth = true_strengths(SPREAD)
        covered: list[bool | None] = []
        false = 0
        for seed in range(count):
            study = Comparisons.from_rows(5, judged(SPREAD, names, [everything] * prompts, seed))
            strengths = bradley_terry(study, seed)
            covered += [None if strengths is None else covers(strengths.interval(at), truth[at]) for at in range(5)]
            equal = Comparisons.from_rows(5, judged([0.0] * 5, names, [everything] * prompts, seed))
            if (fitted := bradley_terry(equal, seed)) is not None:
                false += bool(fitted.above().any())
        value, ends, missing = share(covered)
        key = "strength_coverage"
        figures[key] = min(figures.get(key, 1.0), value)
        figures["false_claim"] = max(figures.get("false_claim", 0.0), false / count)
        rows.append([f"{prompts}", "strengths", f"{100 * value:.1f}", ends, f"{missing:,}"])
        ends = binomtest(false, count).proportion_ci(method="wilson")
        interval = f"{100 * ends.low:.1f} to {100 * ends.high:.1f}"
        rows.append([f"{prompts}", "equal models: a false rank", f"{100 * false / count:.1f}", interval, ""])
    for prompts in (40, 160):
        covered = []
        for seed in range(count):
            generator = np.random.default_rng(seed)
            longer = generator.normal(60, 100, prompts)
            logits = 0.3 + 1.5 * np.tanh(longer / longer.std())
            scores = (generator.random(prompts) < 1 / (1 + np.exp(-logits))).astype(np.float64)
            covered.append(
                covers(length_controlled_rate(scores, longer, np.arange(prompts), seed), 1 / (1 + math.exp(-0.3)))
            )
        value, ends, missing = share(covered)
        figures["equal_length_coverage"] = min(figures.get("equal_length_coverage", 1.0), value)
        rows.append([f"{prompts}", "win rate at equal length", f"{100 * value:.1f}", ends, f"{missing:,}"])
    table.show(
        f"{count} studies each: intervals that cover the truth, and wrong claims, in %",
        ["prompts", "figure", "share", "95% interval", "without interval"],
        rows,
    )
    _show_designs(count, figures)
    table.conclude("pairwise", figures, REACH)
    print(f"took {time.perf_counter() - began:.0f} s")


def _show_designs(count: int, figures: dict[str, float]) -> None:
    """Compare ways of spending the same number of comparisons after the same first prompts."""
    everything = list(combinations(range(5), 2))
    truth = true_strengths(CLOSE)
    rows = []
    for name in ("all pairs", "random pairs", "adaptive pairs"):
        best = right = 0
        errors = []
        for seed in range(count):
            generator = np.random.default_rng([seed, 1])
            first = [f"first {at}" for at in range(10)]
            start = judged(CLOSE, first, [everything] * 10, seed)
            names = [str(at) for at in range(20 if name == "all pairs" else 200)]
            if name == "adaptive pairs":
                wins = Comparisons.from_rows(5, start).wins()
                pairs = informative_pairs(wins, names, 1, seed)
            elif name == "random pairs":
                pairs = [[everything[int(generator.integers(len(everything)))]] for _ in names]
            else:
                pairs = [everything] * len(names)
            rest = judged(CLOSE, names, pairs, seed + count)
            fitted = fit_bradley_terry(Comparisons.from_rows(5, [*start, *rest]).wins())
            if fitted is None:
                continue
            best += int(np.argmax(fitted)) == 0
            right += bool((np.diff(fitted) < 0).all())
            gaps = (fitted - truth)[:3]
            errors.append(float(np.square(gaps - gaps.mean()).mean()))
        calls = {"all pairs": 20 * (5 + 2 * 10), "random pairs": 200 * 4, "adaptive pairs": 200 * 4}[name]
        key = name.replace(" ", "_")
        figures |= {f"{key}_best_first": best / count, f"{key}_whole_order": right / count}
        figures[f"{key}_error"] = math.sqrt(sum(errors) / len(errors))
        rows.append([name, f"{calls:,}", f"{100 * best / count:.1f}", f"{100 * right / count:.1f}",
                     f"{figures[f'{key}_error']:.3f}"])  # fmt: skip
    table.show(
        "300 comparisons of five models, the first 100 of all pairs",
        ["the other 200", "calls for them", "best model first, %", "whole order right, %", "error of the three best"],
        rows,
    )


if __name__ == "__main__":
    main()
