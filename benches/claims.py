"""Share of untrue claims in reports: simulated studies of models whose truth is known (``simulated_studies``).

By report, what is untrue:

``interviews``  of interviews and probes: an honest model is accused of contamination (``accused``), or a model leads
                that is no better than the next (``lead``). Models are graded, equal, equal but for few items that they
                lose, on items that come in clusters, or on three datasets.
``tasks``       of function scenarios: the interval of the mean does not hold it (``missed``), or cannot be.
``grades``      of people's grades: a candidate leads that is no better.
``plan``        without a pilot: the sweep takes more tokens than the range says, or fewer.
``load``        a judge is said to have changed under load that did not, or to be the same where it is another, or where
                half of its requests failed.
``certified``   of figures corrected by people's grades: one of them does not hold the truth, or equal candidates are
                told apart.

The table has by report, claim and kind the share of studies of each size that make it. At most 5% of a report's studies
of any size should claim anything untrue. Beside them, without a reach: how often a model that cheats is accused, and
how often it is said to show no sign (``cleared``), for few items can tell neither.

``--quick`` makes 8 studies of each kind and size instead of 200.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
import table
from simulated_studies import REPORTS

SIZES = (2, 5, 10, 30, 100)
SEED = 71
REACH: table.Reach = {f"{report}_untrue_{size}_items_pct": ("<=", 5) for report in REPORTS for size in SIZES}


@dataclass(frozen=True)
class Task:
    """So many studies of one report, kind and size."""

    report: str
    kind: str
    size: int
    studies: int


def made(task: Task) -> Mapping[str, int]:
    """Count the studies that made each claim; ``any``: those that made one at all."""
    report = REPORTS[task.report]
    world = {**report.kinds, **report.others}[task.kind]
    counts: dict[str, int] = {"any": 0}
    for number in range(task.studies):
        draw = np.random.default_rng([SEED, task.size, number, *map(ord, task.kind)])
        claims = report.claims(world, task.size, draw)
        counts["any"] += bool(claims)
        for one in claims:
            counts[one] = counts.get(one, 0) + 1
    return counts


def main() -> None:
    """Simulate, print, write."""
    parser = argparse.ArgumentParser(description="how often a report claims something untrue")
    parser.add_argument("--quick", action="store_true", help="8 studies of each kind and size instead of 200")
    options = parser.parse_args()
    began, studies = time.perf_counter(), 8 if options.quick else 200
    work = [
        Task(name, kind, size, studies)
        for size in reversed(SIZES)
        for name, report in REPORTS.items()
        for kind in (*report.kinds, *report.others)
    ]
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with ProcessPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        results = dict(zip(work, pool.map(made, work), strict=True))
    rows: list[list[str]] = []
    figures: dict[str, float] = {}
    for name, report in REPORTS.items():
        told = [(kind, claim) for kind in report.kinds for claim in report.untrue]
        told += [(kind, claim) for kind in report.others for claim in report.said]
        for kind, claim in told:
            counts = [results[Task(name, kind, size, studies)].get(claim, 0) for size in SIZES]
            shares = dict(zip(SIZES, (100 * count / studies for count in counts), strict=True))
            rows.append([name, claim, kind, *(f"{share:.1f}" for share in shares.values())])
            key = f"{name}_{claim}_{kind.replace(' ', '_')}"
            figures |= {f"{key}_{size}_items_pct": share for size, share in shares.items()}
        honest = studies * len(report.kinds)
        for size in SIZES:
            untrue = sum(results[Task(name, kind, size, studies)]["any"] for kind in report.kinds)
            figures[f"{name}_untrue_{size}_items_pct"] = 100 * untrue / honest
        whole = [f"{figures[f'{name}_untrue_{size}_items_pct']:.1f}" for size in SIZES]
        rows.append([name, "anything untrue", f"all {honest:,}", *whole])
        figures[f"{name}_studies_of_each_size"] = float(honest)
    title = f"{studies:,} studies of each kind and size: percent that make a claim, by number of items"
    table.show(title, ["report", "claim", "kind", *map(str, SIZES)], rows)
    order = sorted(figures, key=lambda name: (name not in REACH, name))
    table.conclude("claims", {name: round(figures[name], 3) for name in order}, REACH)
    print(f"took {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
