"""Error rates of the witnesses of contamination (``scoring/evidence``), on simulated models whose truth is known.

By witness and design: the percentage of clean models whose p-value is at most 1, 5, 10 and 50%, which must not be
larger than that but for the error of the simulation; and the percentage of heavily contaminated models with a p-value
of at most 5%. Models are simulated at the level of items: likelihoods of orders, correct answers, falls, guesses,
peaks. Items differ in difficulty, models in skill, and orders are liked or disliked for no reason.

``--quick`` makes 200 clean models for each witness instead of 2,000.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from math import exp, sqrt
from typing import Literal

import numpy as np
import table
from numpy.typing import NDArray

from viva.scoring.evidence.context_gain import WITNESS as CONTEXT_GAIN
from viva.scoring.evidence.context_gain import context_falls, context_gain
from viva.scoring.evidence.evidence import compare_models
from viva.scoring.evidence.exchangeability import exchangeability, sharded_t
from viva.scoring.evidence.guessing import guessing
from viva.scoring.evidence.option_order import option_order
from viva.scoring.evidence.peakedness import peakedness

Draw = np.random.Generator
Numbers = NDArray[np.float64]
# Simulate a model, contaminated by a dose from 0 (clean) to 1, and return the p-value of a witness.
World = Callable[[Draw, float], float]

LEVELS = (0.01, 0.05, 0.1, 0.5)
CASES, QUICK_CASES, CHEATERS = 2_000, 200, 200
SEED = 50


def _shards(
    draw: Draw, dose: float, shards: int, shuffles: int, items: int = 8
) -> tuple[list[float], list[list[float]]]:
    """Return likelihoods of shards in the published and in shuffled orders; a model likes some neighbours more."""
    published_order: list[float] = []
    shuffled_orders: list[list[float]] = []
    for _ in range(shards):
        base, liking = -draw.gamma(50.0, 5.0), draw.standard_t(3, (items, items))
        memory = np.zeros((items, items))
        memory[np.arange(items - 1), np.arange(1, items)] = 5.0 * dose
        # The published order is 0, 1, 2, …: likings are as random as the order of a real file.
        orders = [np.arange(items), *(draw.permutation(items) for _ in range(shuffles))]
        values = [float(base + (liking + memory)[order[:-1], order[1:]].sum() - 200) for order in orders]
        published_order.append(values[0])
        shuffled_orders.append(values[1:])
    return published_order, shuffled_orders


def _orders(draw: Draw, dose: float, shards: int, shuffles: int) -> float:
    return exchangeability(*_shards(draw, dose, shards, shuffles)).p


def _paper_t(draw: Draw, dose: float) -> float:
    return sharded_t(*_shards(draw, dose, 10, 20))[1]


def _options(draw: Draw, dose: float, *, likelihoods: bool) -> float:
    """Simulate four orders of each item's options in which the key keeps its letter; letters are liked unevenly."""
    letters = draw.normal(size=4)
    published_order: list[float] = []
    permuted_orders: list[list[float]] = []
    for _ in range(60):
        level = draw.normal() + letters[min(3, int(draw.exponential()))]
        merits = level + draw.normal(0.0, 0.7, 4) + np.array([3.0 * dose, 0.0, 0.0, 0.0])
        if likelihoods:
            values = [-float(np.logaddexp(0.0, -merit)) for merit in merits]
        else:
            values = [float(draw.random() < 1 / (1 + exp(-merit))) for merit in merits]
        published_order.append(values[0])
        permuted_orders.append(values[1:])
    return option_order(published_order, permuted_orders).p


def _falls(draw: Draw, dose: float, size: int, effects: Numbers | float = 0.0) -> list[bool]:
    alone = -draw.gamma(4.0, 0.5, size)
    return context_falls(alone, np.minimum(0.0, alone + draw.normal(0.3 - dose, 0.4, size) + effects))


def _context(draw: Draw, dose: float) -> float:
    return context_gain(_falls(draw, dose, 60), _falls(draw, 0.0, 40)).p


def _clusters(draw: Draw, prefix: str, number: int) -> list[str]:
    """Return clusters of one to six items."""
    return [f"{prefix}{cluster}" for cluster in range(number) for _ in range(draw.integers(1, 7))]


def _context_clusters(draw: Draw, dose: float) -> float:
    names, others = _clusters(draw, "a", 20), _clusters(draw, "b", 15)
    samples = []
    for clusters, strength in ((names, dose), (others, 0.0)):
        effects = dict.fromkeys(clusters, 0.0) | {name: draw.normal(0.0, 0.6) for name in sorted(set(clusters))}
        samples.append(_falls(draw, strength, len(clusters), np.array([effects[name] for name in clusters])))
    return context_gain(samples[0], samples[1], names, others).p


def _context_pairs(draw: Draw, dose: float) -> float:
    """Compare items with their rephrased versions; both are as easy to predict."""
    effects, names = draw.normal(0.0, 0.6, 50), [str(item) for item in range(50)]
    return context_gain(_falls(draw, dose, 50, effects), _falls(draw, 0.0, 50, effects), names, names).p


def _context_models(draw: Draw, dose: float) -> float:
    shares = []
    for number in range(40):  # a model has its own gain from context
        effect = draw.normal(0.0, 0.1)
        shares.append(float(np.mean(_falls(draw, dose if number == 0 else 0.0, 60, effect))))
    return compare_models(CONTEXT_GAIN, shares[0], shares[1:]).p


_WORDS = [f"word{number}" for number in range(40)]


def _guesses(draw: Draw, dose: float, size: int) -> tuple[list[str], list[str]]:
    """Return answers and masked choices: some choices are usual or short, and easy ones are guessed."""
    answers, choices = [], []
    for _ in range(size):
        usual = draw.random() < 0.15
        choice = "None of the above" if usual else " ".join(draw.choice(_WORDS, draw.integers(1, 6)))
        known = draw.random() < draw.beta(1.0, 4.0) * (1 - dose) + 0.7 * dose
        answers.append(f"(b) {choice.upper()}." if known else " ".join(draw.choice(_WORDS, 3)))
        choices.append(choice)
    return answers, choices


def _matches(draw: Draw, dose: float) -> float:
    return guessing(*_guesses(draw, dose, 60), *_guesses(draw, 0.0, 60)).p


def _overlaps(draw: Draw, dose: float) -> float:
    return guessing(*_guesses(draw, dose, 60), *_guesses(draw, 0.0, 60), overlap=True).p


def _peaks(draw: Draw, dose: float, size: int) -> Numbers:
    return draw.binomial(20, draw.beta(0.3, 2.0, size) * (1 - dose) + 0.6 * dose) / 20


def _peakedness(draw: Draw, dose: float) -> float:
    return peakedness(_peaks(draw, dose, 50), _peaks(draw, 0.0, 50)).p


def _peak_pairs(draw: Draw, dose: float) -> float:
    shares = draw.beta(0.3, 2.0, 50)
    own = draw.binomial(20, shares * (1 - dose) + 0.6 * dose) / 20
    names = [str(item) for item in range(50)]
    return peakedness(own, draw.binomial(20, shares) / 20, names, names).p


WORLDS: dict[str, World] = {
    "exchangeability: 10 shards, 20 shuffles": lambda draw, dose: _orders(draw, dose, 10, 20),
    "exchangeability: 3 shards, 9 shuffles": lambda draw, dose: _orders(draw, dose, 3, 9),
    "exchangeability: 1 shard, 99 shuffles": lambda draw, dose: _orders(draw, dose, 1, 99),
    "option order: correct answers": lambda draw, dose: _options(draw, dose, likelihoods=False),
    "option order: likelihoods": lambda draw, dose: _options(draw, dose, likelihoods=True),
    "context gain: second set": _context,
    "context gain: clusters": _context_clusters,
    "context gain: pairs": _context_pairs,
    "context gain: 39 models": _context_models,
    "guessing: matches": _matches,
    "guessing: overlap": _overlaps,
    "peakedness: second set": _peakedness,
    "peakedness: pairs": _peak_pairs,
}
# The published t-test of exchangeability is an approximation: it is shown beside the exact test, without a bound.
APPROXIMATE: dict[str, World] = {"exchangeability: t of the paper": _paper_t}


def p_values(name: str, cases: int, dose: float = 0.0) -> list[float]:
    """Return the p-values of simulated models; the same on every call."""
    world = {**WORLDS, **APPROXIMATE}[name]
    return [
        world(np.random.default_rng([SEED, case, round(100 * dose), *map(ord, name)]), dose) for case in range(cases)
    ]


def bound(level: float, cases: int) -> float:
    """Return the largest share of p-values up to ``level`` that a uniform p-value gives, within three errors."""
    return level + 3 * sqrt(level * (1 - level) / cases)


def _rates(name: str, cases: int) -> dict[str, float]:
    ps, cheaters = np.array(p_values(name, cases)), np.array(p_values(name, CHEATERS, 1.0))
    rates = {f"{round(100 * level)}": 100 * float((ps <= level).mean()) for level in LEVELS}
    return {**rates, "power": 100 * float((cheaters <= 0.05).mean())}


def measure(cases: int) -> tuple[list[list[str]], dict[str, float], table.Reach]:
    """Return the rows of the table, the figures and their reach."""
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    names = [*WORLDS, *APPROXIMATE]
    with ProcessPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        results: Mapping[str, dict[str, float]] = dict(
            zip(names, pool.map(_rates, names, [cases] * len(names)), strict=True)
        )
    rows = [[name, *(f"{rate:.1f}" for rate in rates.values())] for name, rates in results.items()]
    figures: dict[str, float] = {}
    reach: dict[str, tuple[Literal["<=", ">="], float]] = {}
    for name, rates in results.items():
        key = name.replace(":", "").replace(",", "").replace(" ", "_")
        for level in LEVELS:
            figure = f"{key}_p_at_most_{round(100 * level)}_pct"
            figures[figure] = round(rates[f"{round(100 * level)}"], 3)
            if name in WORLDS:
                reach[figure] = ("<=", round(100 * bound(level, cases), 3))
        figures[f"{key}_cheaters_pct"] = round(rates["power"], 3)
    return rows, figures, reach


def main() -> None:
    """Simulate, print, write."""
    parser = argparse.ArgumentParser(description="how often a witness accuses a clean model")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_CASES} clean models instead of {CASES:,}")
    cases = QUICK_CASES if parser.parse_args().quick else CASES
    began = time.perf_counter()
    rows, figures, reach = measure(cases)
    header = ["witness", *(f"clean: p ≤ {100 * level:g}%" for level in LEVELS), "cheaters: p ≤ 5%"]
    table.show(f"Percent of {cases:,} clean models, and of {CHEATERS} cheaters", header, rows)
    table.conclude("court_nulls", {**figures, "clean_models": cases}, reach)
    print(f"took {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
