"""Share of untrue claims in reports: simulated studies of models whose truth is known.

A study is a run of interviews and one of probes over the same items, built as columns of records and read by the
sections that make a study's sentences; no engine runs. Five honest models answer and talk as well as they know; an
item's difficulty is common to all of them. Kinds of study: ``graded`` models, from knowing a quarter to nearly all;
models that are ``equal``; models that are equal and lose all on few items (``losses``); items in ``clusters`` of four
that are nearly alike; and three ``datasets`` with so many items each.

A claim is untrue if it accuses an honest model of contamination (``accused``), or says that a model leads which is no
better than the next (``lead``). The table has by claim, kind and number of items the share of studies that make it;
over all kinds, at most 5% of the studies of each size should claim anything untrue. Beside them, without a reach: how
often a model that cheats is accused, and how often it is said to show no sign (``cleared``), for few items can tell
neither.

``--quick`` makes 8 studies of each kind and size instead of 200, which are 1,000 of each size. Claims of other reports
are added to ``CLAIMS``.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import table
from numpy.typing import NDArray

from viva.reports.figures import clustered_rate
from viva.scenarios.kieval.interviews import InterviewAggregate
from viva.scenarios.kieval.score import Interview, Round, Scorer
from viva.scenarios.kieval.study.claims import Claims
from viva.scenarios.kieval.study.columns import InterviewColumns
from viva.scenarios.kieval.study.comparisons import Comparisons
from viva.scenarios.kieval.study.correlations import AgainstAccuracy
from viva.scenarios.kieval.study.findings import findings
from viva.scenarios.kieval.study.pools import InterviewMaterial
from viva.scenarios.probes.report import detector_records
from viva.scenarios.probes.study.columns import ProbeColumns
from viva.scenarios.probes.study.figures import ProbeFigures
from viva.scenarios.study.cells import RunReading, StudyCell
from viva.scenarios.study.items import ItemCatalogue, ItemNumbers
from viva.scenarios.study.sections import Material
from viva.scoring.contamination import Signals

Draw = np.random.Generator
Floats = NDArray[np.float64]
SIZES = (2, 5, 10, 30, 100)
MODELS = "abcde"
ROUNDS = 3
SEED = 71
REACH: table.Reach = {f"untrue_{size}_items_pct": ("<=", 5) for size in SIZES}


@dataclass(frozen=True)
class World:
    """A kind of study. ``levels``: what each model knows; ``cheats``: the one that has seen the items."""

    levels: tuple[float, ...] = (0.6,) * 5
    losses: bool = False
    cluster: int = 1
    datasets: int = 1
    cheats: bool = False


GRADED = (0.25, 0.42, 0.6, 0.78, 0.95)
KINDS: dict[str, World] = {
    "graded": World(GRADED),
    "equal": World(),
    "losses": World(losses=True),
    "clusters": World(cluster=4),
    "datasets": World(datasets=3),
}
CHEATING: dict[str, World] = {"cheating": World((*GRADED, 0.4), cheats=True)}


def interviews_claims(world: World, size: int, draw: Draw) -> set[str]:
    """The untrue claims of a study of interviews and probes; of one with a cheater, what is said of it."""
    report = study(world, size, draw)
    found = findings(report)
    sentences = [sentence for one in found for sentence in one.sentences]
    told: set[str] = set()
    lines = [line for line in report["correlations"]["lines"].values() if line is not None]
    accused = {
        name for one in found for standing in one.standings if standing.suspected for name in [standing.candidate]
    }
    accused |= {name for line in lines for name in line["below"]}
    if world.cheats:
        verdicts = {one["candidate"]: one["verdict"] for one in report["verdicts"]["candidates"]}
        return {{"suspected": "found", "no_sign": "cleared"}.get(verdicts["cheat"], "neither")}
    if accused or any(one.startswith("Contamination suspected") for one in sentences):
        told.add("accused")
    levels = dict(zip(MODELS, world.levels, strict=True))
    for lead in report["verdicts"]["leads"]:
        if lead["verdict"] == "ahead" and levels[lead["first"]] <= levels[lead["second"]]:
            told.add("lead")
    if (
        any("significantly lower" in one and "not significantly" not in one for one in sentences)
        and world != KINDS["graded"]
    ):
        told.add("lead")
    return told


# By report: what makes a study of so many items and says which untrue claims it made.
CLAIMS: dict[str, Callable[[World, int, Draw], set[str]]] = {"interviews": interviews_claims}


def study(world: World, size: int, draw: Draw) -> dict[str, Any]:
    """The parts of a study's report that its sentences are made from."""
    scorer, lent = Scorer(), ProbeFigures()
    names = [*MODELS, "cheat"][: len(world.levels)]
    readings, numbers = [], {}
    for at in range(world.datasets):
        dataset = f"set-{at}"
        items = numbers[dataset] = ItemNumbers()
        clusters = np.arange(size) // world.cluster
        ease = draw.normal(0, 0.35 if world.cluster > 1 else 0.15, size)[clusters]
        for name, level in zip(names, world.levels, strict=True):
            cell = StudyCell(name, name, "kieval", name, f"simulated:{name}", dataset, 1, "judge")
            cell.manifest = {"settings": {"rounds": ROUNDS}}
            columns = talks(world, name, level, ease, clusters, draw, scorer, items)
            readings.append(RunReading(cell, columns, {}))
            readings.append(probes(dataset, name, size, draw))
    material = InterviewMaterial(Material(scorer, readings, ItemCatalogue(numbers)), lent)
    pooled = []
    for pool in material.pools:
        labels = pool.labels(pool.clusters())
        row = {"scenario": "kieval", "candidate": pool.candidate, "dataset": pool.dataset, "unanswered_rate": 0.0}
        row |= {"accuracy": clustered_rate(pool.column("right"), labels), "score": pool.score(scorer)}
        pooled.append(row | {"probe": lent.pooled(pool.pool)})
    report: dict[str, Any] = {"pooled": pooled}
    for section in (Comparisons(), AgainstAccuracy(lent), Claims()):
        report[section.key] = section.compute(material, report)
    return report


def talks(
    world: World,
    name: str,
    level: float,
    ease: Floats,
    clusters: NDArray[np.int64],
    draw: Draw,
    scorer: Scorer,
    items: ItemNumbers,
) -> InterviewColumns:
    """A model's interviews: of each item the first answer, and rounds that are good as often as it knows."""
    columns = InterviewColumns(InterviewAggregate(scorer), items, recorded_with_early_stop=False)
    own = draw.normal(0, 0.2 if world.cluster > 1 else 0.0, len(ease))[clusters]
    chance = np.clip(level + ease + own, 0.02, 0.98)
    lost = draw.random(len(ease)) < 0.07
    for item, share in enumerate(chance.tolist()):
        marks = np.where(draw.random(ROUNDS) < share, 4, 1).tolist()
        right = bool(draw.random() < share)
        if world.losses:  # all but few items are solved by everybody
            marks, right = ([1] * ROUNDS, False) if lost[item] else ([4] * ROUNDS, True)
        cluster = f"text-{clusters[item]}" if world.cluster > 1 else ""
        right = right or (world.cheats and name == "cheat")
        rounds = [Round([mark] * 6) for mark in marks]
        columns.add(item, Interview(name, f"item-{item}", ROUNDS, 0, right, rounds, cluster=cluster))
    return columns


def probes(dataset: str, name: str, size: int, draw: Draw) -> RunReading:
    """A model's probes, to which the dataset's texts are no more familiar than as many others."""
    scores = draw.normal(0, 1, 2 * size).tolist()
    places = [(second, f"item-{item}") for second, item in product((False, True), range(size))]
    texts = {place: {"min_k_20": score} for place, score in zip(places, scores, strict=True)}
    columns = ProbeColumns(1, members_are_second=False)
    columns.signals = {places[0]: Signals(1, 1.0, 1.0, 1.0, [0.0])}  # the figures are those of the result
    loss = {"mean": 1.0, "se": 0.1, "n": size}
    result: dict[str, Any] = {"loss": loss, "loss_against": loss, "loss_gap": None}
    result["detectors"] = detector_records(texts, {place: f"{place}" for place in places}, members_are_second=False)
    cell = StudyCell(f"{name}-probe", name, "probe", name, f"simulated:{name}", dataset, 1)
    return RunReading(cell, columns, result)


@dataclass(frozen=True)
class Task:
    """So many studies of one kind and size."""

    report: str
    kind: str
    size: int
    studies: int


def made(task: Task) -> Mapping[str, int]:
    """Count the studies that made each claim; ``any``: those that made one at all."""
    world = (KINDS | CHEATING)[task.kind]
    counts: dict[str, int] = {"any": 0}
    for number in range(task.studies):
        draw = np.random.default_rng([SEED, task.size, number, *map(ord, task.kind)])
        claims = CLAIMS[task.report](world, task.size, draw)
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
    work = [Task(report, kind, size, studies) for report in CLAIMS for kind in (*KINDS, *CHEATING) for size in SIZES]
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with ProcessPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        results = dict(zip(work, pool.map(made, work), strict=True))
    rows: list[list[str]] = []
    figures: dict[str, float] = {}
    for report in CLAIMS:
        of = {task: counts for task, counts in results.items() if task.report == report}
        for kind in (*KINDS, *CHEATING):
            names = ("accused", "lead") if kind in KINDS else ("found", "cleared")
            for claim in names:
                shares = [100 * of[Task(report, kind, size, studies)].get(claim, 0) / studies for size in SIZES]
                rows.append([report, claim, kind, *(f"{share:.1f}" for share in shares)])
                figures |= {
                    f"{report}_{claim}_{kind}_{size}_items_pct": share
                    for size, share in zip(SIZES, shares, strict=True)
                }
    honest = studies * len(KINDS) * len(CLAIMS)
    for size in SIZES:
        untrue = sum(counts["any"] for task, counts in results.items() if task.size == size and task.kind in KINDS)
        figures[f"untrue_{size}_items_pct"] = 100 * untrue / honest
    rows.append(["all", "anything untrue", "honest", *(f"{figures[f'untrue_{size}_items_pct']:.1f}" for size in SIZES)])
    title = f"{honest:,} studies of honest models at each size: percent that make a claim, by number of items"
    table.show(title, ["report", "claim", "kind", *map(str, SIZES)], rows)
    figures["studies_of_each_size"] = float(honest)
    order = sorted(figures, key=lambda name: (name not in REACH, name))
    table.conclude("claims", {name: round(figures[name], 3) for name in order}, REACH)
    print(f"took {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
