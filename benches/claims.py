"""Share of untrue claims in reports: simulated studies of models whose truth is known (``simulated_studies``).

By report, what is untrue:

``interviews``  of interviews and probes: an honest model is accused of contamination (``accused``), or a model that
                is no better than the next is said to lead (``lead``). Models differ in steps, are equal, or equal but
                for few items that they fail; equal ones also on items in clusters, or on three datasets.
``tasks``       of function scenarios: the interval does not hold the true mean (``missed``), or is impossible.
``grades``      of people's grades: a candidate that is no better is said to lead.
``plan``        without a pilot: the sweep takes more tokens than the range says, or fewer.
``load``        a judge that did not change under load is said to have changed, or one that did, or that lost half
                of its requests, to be the same.
``certified``   of figures corrected by people's grades: one of them does not hold the truth, or equal candidates are
                told apart.

The table has by report, claim and kind the share of studies of each size that make it. Over all kinds of a report, each
claim should be made by at most 5% of the studies of any size. Also printed, without a bound: how often a model that
cheats is accused, and how often it is said to show no sign (``cleared``), for few items can tell neither.

``--quick`` makes 8 studies of each kind and size instead of 200 (100 for plans and certified figures).
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product

import numpy as np
import table
from simulated_studies import REPORTS

SIZES = (2, 5, 10, 30, 100)
SEED = 71
REACH: table.Reach = {
    f"{name}_{claim}_{size}_items_pct": ("<=", 5)
    for name, report in REPORTS.items()
    for claim in report.untrue
    for size in SIZES
}


@dataclass(frozen=True)
class Task:
    """So many studies of one report, kind and size."""

    report: str
    kind: str
    size: int
    studies: int


def made(task: Task) -> Mapping[str, int]:
    """Count the studies that made each claim."""
    report = REPORTS[task.report]
    world = {**report.kinds, **report.others}[task.kind]
    counts: dict[str, int] = {}
    for number in range(task.studies):
        draw = np.random.default_rng([SEED, task.size, number, *map(ord, task.kind)])
        for claim in report.claims(world, task.size, draw):
            counts[claim] = counts.get(claim, 0) + 1
    return counts


def main() -> None:
    """Simulate, print, write."""
    parser = argparse.ArgumentParser(description="how often a report claims something untrue")
    parser.add_argument("--quick", action="store_true", help="8 studies of each kind and size instead of 100 or 200")
    options = parser.parse_args()
    began = time.perf_counter()
    studies = {name: 8 if options.quick else report.studies for name, report in REPORTS.items()}
    work = [
        Task(name, kind, size, studies[name])
        for size in reversed(SIZES)
        for name, report in REPORTS.items()
        for kind in (*report.kinds, *report.others)
    ]
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with ProcessPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        results = dict(zip(work, pool.map(made, work), strict=True))
    rows: list[list[str]] = []
    figures: dict[str, float] = {}

    def tell(name: str, claim: str, kinds: Iterable[str], words: str, key: str) -> None:
        """Add a row: the share of the studies of these kinds that make a claim, by size."""
        whole = studies[name] * len(list(kinds))
        tasks = {size: [Task(name, kind, size, studies[name]) for kind in kinds] for size in SIZES}
        shares = {
            size: 100 * sum(results[task].get(claim, 0) for task in members) / whole for size, members in tasks.items()
        }
        rows.append([name, claim, words, *(f"{share:.1f}" for share in shares.values())])
        figures.update({f"{key}_{size}_items_pct": share for size, share in shares.items()})

    for name, report in REPORTS.items():
        for kinds, claims in ((report.kinds, report.untrue), (report.others, report.counted_claims)):
            for kind, claim in product(kinds, claims):
                tell(name, claim, [kind], kind, f"{name}_{claim}_{kind.replace(' ', '_')}")
        for claim in report.untrue:
            tell(name, claim, report.kinds, f"all {studies[name] * len(report.kinds):,}", f"{name}_{claim}")
        figures[f"{name}_studies_of_each_size"] = float(studies[name] * len(report.kinds))
    title = "Percent of studies that make a claim, by number of items"
    table.show(title, ["report", "claim", "kind", *map(str, SIZES)], rows)
    order = sorted(figures, key=lambda name: (name not in REACH, name))
    table.conclude("claims", {name: round(figures[name], 3) for name in order}, REACH)
    print(f"took {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
