"""Worth of simulated judges' votes, and effect of the advice on panels on accuracy.

**Effective votes.** Judges err at a known rate with a known correlation of each pair: with probability
sqrt(correlation) a judge copies an error that all may share, else it errs alone. Measured is how often the interval of
the effective votes covers n / (1 + (n - 1) correlation), for every kind of jury, beside the percentile bootstrap. A
further kind has clusters: items in groups of four that share their errors.

**Advice.** 500 panels of three to seven judges with accuracies from 60% to 95% and correlated errors vote on 1,000
items, 50 or 150 of which are labelled at random. If the advice is to label first, the contested items that it asks for
are labelled, up to four times. The panel that is then advised is compared, in its true accuracy over 40,000 other
items, with the best single judge of the labels and with the truly best one. Each advice is tested at 2.5% on the side
that lowers accuracy; the bound is 5% of all panels, for the repeated looks.

``--quick`` makes 100 studies and 40 panels of each kind.
"""

from __future__ import annotations

import argparse
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product

import numpy as np
import table
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import binom, binomtest

from viva.scoring.panels import advise_panel
from viva.scoring.votes import Ballots, contested_items, effective_votes, majority_credit

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
LEVEL, RESAMPLES, LOOKS = 0.95, 400, 4
ITEMS, TRUE_ITEMS = 1_000, 40_000


@dataclass(frozen=True)
class Jury:
    """Judges of one error rate; ``group`` items share their errors."""

    items: int
    judges: int
    rate: float
    correlation: float
    group: int = 1

    @property
    def truth(self) -> float:
        return self.judges / (1 + (self.judges - 1) * self.correlation)

    def errors(self, draw: np.random.Generator) -> Mask:
        n = self.items // self.group
        shared = draw.random((n, 1)) < self.rate
        alone = draw.random((n, self.judges)) < self.rate
        copied = draw.random((n, self.judges)) < np.sqrt(self.correlation)
        return np.repeat(np.where(copied, shared, alone), self.group, axis=0)


JURIES = [
    *(Jury(*kind) for kind in product((50, 200), (2, 3, 5, 9), (0.1, 0.25), (0.0, 0.1, 0.3, 0.7))),
    *(Jury(200, *kind, group=4) for kind in product((3, 9), (0.25,), (0.0, 0.3, 0.7))),
]


def covered(task: tuple[Jury, int]) -> tuple[int, int, float]:
    """Return how often both intervals cover the truth, and the median width of ours."""
    jury, studies = task
    draw = np.random.default_rng([jury.items, jury.judges, round(100 * jury.rate), round(100 * jury.correlation)])
    ours = percentile = 0
    widths = []
    clusters = np.arange(jury.items) // jury.group
    for _ in range(studies):
        errors = jury.errors(draw)
        interval = effective_votes(errors, clusters, LEVEL)
        if interval is None:  # nobody errs: no interval is claimed
            ours += 1
            percentile += 1
            continue
        ours += interval.low <= jury.truth <= interval.high
        widths.append(interval.high - interval.low)
        low, high = _percentiles(errors[:: jury.group].astype(np.float64), draw)
        percentile += low <= jury.truth + 1e-9 and jury.truth <= high + 1e-9
    return ours, percentile, float(np.median(widths))


def _percentiles(errors: Floats, draw: np.random.Generator) -> tuple[float, float]:
    """The percentile bootstrap of the same figure over independent items."""
    n, judges = errors.shape
    counts = draw.multinomial(n, np.full(n, 1 / n), size=RESAMPLES).astype(np.float64)
    means, sums = counts @ errors / n, errors.sum(axis=1)
    total = counts @ sums**2 / n - (counts @ sums / n) ** 2
    parts = (means * (1 - means)).sum(axis=1)
    defined = (parts > 0) & (total > 0)
    values = np.minimum(judges * parts[defined] / total[defined], judges)
    low, high = np.quantile(values, [0.025, 0.975]) if len(values) else (1.0, float(judges))
    return float(low), float(high)


@dataclass(frozen=True)
class Outcome:
    """Outcome of one panel: gains are true ones, of the advised panel, 0 if a single judge is kept."""

    action: str
    labels: int
    gain: float
    gain_over_best: float
    possible: float


def advised(task: tuple[int, int]) -> Outcome:
    """Advise on one panel, label as advised, and measure the true accuracy of what is advised in the end."""
    labelled, seed = task
    draw = np.random.default_rng([labelled, seed])
    judges = int(draw.integers(3, 8))
    accuracy, correlation = draw.uniform(0.6, 0.95, judges), float(draw.choice([0.0, 0.2, 0.5, 0.8]))
    votes = _ballots(draw, accuracy, correlation, ITEMS)
    contested = contested_items(votes.votes)
    known = np.arange(ITEMS) < labelled
    for _ in range(LOOKS):
        advice = advise_panel(votes.subset(known), share=float(contested.mean()))
        free = np.flatnonzero(contested & ~known)
        if advice.action != "label" or advice.labels is None or not len(free):
            break
        known[draw.permutation(free)[: advice.labels.items]] = True
    true = _ballots(draw, accuracy, correlation, TRUE_ITEMS)
    right = true.right.mean(axis=0)
    best = float(right.max())
    others = [at for at in range(judges) if at != int(right.argmax())]
    possible = max(
        float(majority_credit(true.votes[:, [int(right.argmax()), a, b]], true.truth).mean()) - best
        for at, a in enumerate(others)
        for b in others[at + 1 :]
    )
    if advice.action != "add":
        return Outcome(advice.action, int(known.sum()), 0.0, 0.0, possible)
    panel = [true.judges.index(name) for name in advice.panel]
    reached = float(majority_credit(true.votes[:, panel], true.truth).mean())
    return Outcome("add", int(known.sum()), reached - float(right[panel[0]]), reached - best, possible)


def _ballots(draw: np.random.Generator, accuracy: Floats, correlation: float, items: int) -> Ballots:
    latent = np.sqrt(correlation) * draw.normal(size=(items, 1))
    latent = latent + np.sqrt(1 - correlation) * draw.normal(size=(items, len(accuracy)))
    truth = draw.integers(0, 2, items)
    votes = np.where(latent > ndtri(accuracy), 1 - truth[:, None], truth[:, None])
    return Ballots(tuple(f"j{at}" for at in range(len(accuracy))), votes, truth, np.arange(items))


def main() -> None:
    """Simulate, and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100 studies and 40 panels of each kind")
    quick = parser.parse_args().quick
    studies, panels = (100, 40) if quick else (1_000, 500)
    began = time.perf_counter()
    with ProcessPoolExecutor(max_workers=min(2, os.cpu_count() or 1)) as pool:
        coverage = list(pool.map(covered, [(jury, studies) for jury in JURIES]))
        outcomes = {
            labelled: list(pool.map(advised, [(labelled, seed) for seed in range(panels)], chunksize=20))
            for labelled in (50, 150)
        }
    figures = {**coverage_figures(coverage, studies), **advice_figures(outcomes)}
    lowest = 100 * float(binom.ppf(0.005 / len(JURIES), studies, 0.93)) / studies
    highest = 100 * float(binom.ppf(0.995, panels, 0.05)) / panels
    table.conclude(
        "jury",
        figures,
        {
            "effective_votes_covered_pct": (">=", 93),
            "effective_votes_covered_least_pct": (">=", round(lowest, 1)),  # of the worst kind, by chance at 93%
            "lowered_50_pct": ("<=", round(highest, 2)),
            "lowered_150_pct": ("<=", round(highest, 2)),
            "below_best_50_pct": ("<=", round(highest, 2)),
            "below_best_150_pct": ("<=", round(highest, 2)),
            "gain_50_points": (">=", 0),
            "gain_150_points": (">=", 0),
        },
    )
    print(f"took {time.perf_counter() - began:.0f} s")


def coverage_figures(coverage: list[tuple[int, int, float]], studies: int) -> dict[str, float]:
    """Print the coverage of each kind of jury, and return the figures."""
    rows = []
    for jury, (ours, percentile, width) in zip(JURIES, coverage, strict=True):
        ends = binomtest(ours, studies).proportion_ci(0.95, "exact")
        rows.append(
            [str(jury.items), str(jury.judges), f"{jury.rate:g}", f"{jury.correlation:g}", str(jury.group),
             f"{jury.truth:.2f}", f"{100 * ours / studies:.1f} ({100 * ends.low:.1f} to {100 * ends.high:.1f})",
             f"{100 * percentile / studies:.1f}", f"{width:.2f}"]
        )  # fmt: skip
    header = ["items", "judges", "error rate", "correlation", "cluster", "effective votes", "covered, % (95%)",
              "percentile bootstrap, %", "median width"]  # fmt: skip
    table.show(f"Coverage of {100 * LEVEL:g}% intervals of effective votes, {studies:,} studies each", header, rows)
    total = studies * len(JURIES)
    return {
        "effective_votes_covered_pct": 100 * sum(ours for ours, *_ in coverage) / total,
        "effective_votes_covered_least_pct": 100 * min(ours for ours, *_ in coverage) / studies,
        "percentile_covered_pct": 100 * sum(percentile for _, percentile, _ in coverage) / total,
        "percentile_covered_least_pct": 100 * min(percentile for _, percentile, _ in coverage) / studies,
        "studies": float(total),
    }


def advice_figures(outcomes: dict[int, list[Outcome]]) -> dict[str, float]:
    """Print what came of the advice, and return the figures."""
    rows, figures = [], {}
    for labelled, panels in outcomes.items():
        n = len(panels)
        added = [outcome for outcome in panels if outcome.action == "add"]
        worthy = [outcome for outcome in panels if outcome.possible >= 0.03]
        useless = [outcome for outcome in panels if outcome.possible <= 0.0]
        lowered = sum(outcome.gain < 0 for outcome in panels)
        below = sum(outcome.gain_over_best < 0 for outcome in panels)
        mean = 100 * float(np.mean([outcome.gain for outcome in added])) if added else 0.0
        reached = sum(outcome.action == "add" for outcome in worthy)
        needless = sum(outcome.action == "add" for outcome in useless)
        rows.append(
            [str(labelled), f"{np.mean([outcome.labels for outcome in panels]):.0f}", str(len(added)), str(lowered),
             str(below), f"{mean:+.1f}", f"{reached} of {len(worthy)}", f"{needless} of {len(useless)}"]
        )  # fmt: skip
        figures |= {
            f"lowered_{labelled}_pct": 100 * lowered / n,
            f"below_best_{labelled}_pct": 100 * below / n,
            f"gain_{labelled}_points": mean,
            f"added_where_worth_3_points_{labelled}_pct": 100 * reached / max(1, len(worthy)),
            f"added_without_gain_{labelled}_pct": 100 * needless / max(1, len(useless)),
            f"labels_{labelled}_mean": float(np.mean([outcome.labels for outcome in panels])),
        }
    header = ["labels", "labels in the end", "panels advised", "below the best judge of the labels",
              "below the truly best judge", "mean gain, points", "added where worth 3 points",
              "added where nothing helps"]  # fmt: skip
    table.show(f"Advice on {len(next(iter(outcomes.values()))):,} panels each", header, rows)
    return {**figures, "panels": float(sum(map(len, outcomes.values())))}


if __name__ == "__main__":
    main()
