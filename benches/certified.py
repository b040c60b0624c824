"""How often corrected figures cover the truth: simulated studies of judges that are biased, noisy, skewed or drift.

A study is two candidates' answers on the same items with a judge's scores on all, and people's grades on 30 to 200
drawn evenly from each. Figures are those of ``scoring.certified``: means, differences, Pearson's and Spearman's
correlation with something known, pass rates and their differences, Rogan and Gladen's rates, and means after a second,
uneven draw. 95% intervals should cover the truth in 93–97% of the studies; those of the judge alone stand beside. The
truth of a kind of study is its mean over 800,000 answers. One kind is the lab's: interviews of its oracles, whose
verdicts are right by construction, as judged by a distorted copy.

``hard``: kinds in which no interval from so few labels can be expected to hold, measured and shown without a reach: a
judge that is far off on one answer of ten, and one that is right in 98 of 100, so that few labels show its errors.
``--quick`` makes 50 studies of each kind instead of 2,000.

What never belongs here: formulas.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import table
from numpy.typing import NDArray
from running import note
from scipy.stats import rankdata

from viva.engine.folder import RunFolder
from viva.engine.history import History
from viva.lab.experiment import Experiment, ideal_family
from viva.scoring.certified.choosing import draw, expected_spread, joined
from viva.scoring.certified.correlations import back, corrected_pearson, corrected_spearman
from viva.scoring.certified.figures import Scale, certify
from viva.scoring.certified.means import corrected_mean
from viva.scoring.certified.rates import confusion, remainder, rogan_gladen
from viva.scoring.certified.sample import Sample
from viva.scoring.intervals import Estimate

Floats = NDArray[np.float64]
Draw = np.random.Generator
ITEMS, ROUNDS = 150, 2
LABELS = (30, 60, 200)
JUDGES = ("biased", "noisy", "skewed", "drifting")
REACH: table.Reach = {
    "least_covered_pct": (">=", 93),
    "most_covered_pct": ("<=", 97),
    "median_covered_plain_pct": ("<=", 90),
}
_LARGE = 400_000


@dataclass(frozen=True)
class World:
    """Answers of one candidate: people's grades, the judge's scores, clusters, and something known of each."""

    grades: Floats
    scores: Floats
    items: NDArray[np.int64]
    known: Floats


def scores_world(judge: str, source: Draw, items: int) -> tuple[World, World]:
    """Two candidates on the same items, grades and scores from 0 to 100."""
    number = np.repeat(np.arange(items), ROUNDS)
    count = number.size
    easy = source.normal(0, 8, items)[number]
    known = easy / 8 + source.normal(0, 1, count)
    worlds = []
    for level, lenient in ((62.0, 4.0), (56.0, 9.0)):
        own = source.normal(0, 10, items)[number] + source.normal(0, 10, count) + 3 * known
        if judge == "skewed":  # many good answers and a tail of bad ones, which the judge sees half of
            bad = source.exponential(12, count)
            grades = np.clip(level + 25 + 0.4 * easy + 0.3 * own - bad, 0, 100)
            seen = np.where(source.random(count) < 0.5, 0.0, bad * source.uniform(0.5, 1.5, count))
            scores = np.clip(level + 25 + 0.4 * easy + 0.3 * own + lenient - seen, 0, 100)
        else:
            grades = np.clip(level + easy + own, 0, 100)
            # The order in which items come is that of time: a drifting judge grows lenient.
            off = {"biased": lenient + 8, "noisy": 0.5 * lenient, "drifting": 25 * number / items}[judge]
            spread = {"biased": 7.0, "noisy": 35.0, "drifting": 9.0}[judge]
            pull = 0.75 if judge == "biased" else 1.0
            scores = np.clip(50 + pull * (grades - 50) + off + 0.3 * easy + source.normal(0, spread, count), 0, 100)
        worlds.append(World(grades, scores, number, known))
    return worlds[0], worlds[1]


def passes_world(judge: str, source: Draw, items: int) -> tuple[World, World]:
    """Two candidates on the same items, pass or fail."""
    number = np.repeat(np.arange(items), ROUNDS)
    count = number.size
    easy = source.normal(0, 0.15, items)[number]
    worlds = []
    for level in (0.72, 0.60):
        grades = (source.random(count) < np.clip(level + easy, 0.02, 0.98)).astype(np.float64)
        right, wrong = {
            "biased": (0.97, 0.65),
            "noisy": (0.78, 0.74),
            "skewed": (0.99, 0.80),
            "drifting": (0.9 + 0.08 * number / items, 0.95 - 0.45 * number / items),
            "near": (0.99, 0.98),
        }[judge]
        told = source.random(count)
        scores = np.where(grades == 1, told < right, told >= wrong).astype(np.float64)
        worlds.append(World(grades, scores, number, easy))
    return worlds[0], worlds[1]


def rare_world(judge: str, source: Draw, items: int) -> tuple[World, World]:
    """Full marks by a judge that is far off on one answer of ten."""
    worlds = []
    for share in (0.10, 0.12):
        far = source.random(items) < share
        grades = np.where(far, source.uniform(0, 40, items), source.uniform(85, 100, items))
        scores = np.where(source.random(items) < 0.5, grades, 95.0)
        worlds.append(World(grades, scores, np.arange(items), grades))
    return worlds[0], worlds[1]


def lab_rounds(folder: Path) -> dict[str, Floats]:
    """By candidate the overall verdicts of the lab's oracle, items × rounds, which are right by construction."""
    experiment = Experiment([one for one in ideal_family() if one.label in ("clean-50", "clean-75")], folder / "lab")
    import anyio

    for launch in experiment.launches(1):
        anyio.run(launch.run)
    found: dict[str, list[list[float]]] = {}
    with History(RunFolder.open(experiment.run_folder(1, "kieval")).journal) as history:
        for ended in history.ended():
            rounds = [held[0][-1] for held in ended.result["rounds"] if held[0] is not None]
            if len(rounds) == experiment.rounds:
                found.setdefault(ended.result["candidate"], []).append([float(one) for one in rounds])
    least = min(len(rows) for rows in found.values())
    return {name: np.array(rows[:least]) for name, rows in found.items()}


def lab_world(rounds: dict[str, Floats], source: Draw, items: int) -> tuple[World, World]:
    """Items of the lab drawn anew; the judge is lenient by a grade on four of ten answers that deserve less."""
    worlds = []
    count = min(len(rows) for rows in rounds.values())
    drawn = source.integers(0, count, items)
    for rows in rounds.values():
        grades = rows[drawn].ravel()
        scores = np.where(source.random(grades.size) < 0.4, np.minimum(4.0, grades + 1.0), grades)
        worlds.append(World(grades, scores, np.repeat(np.arange(items), rows.shape[1]), grades))
    return worlds[0], worlds[1]


def sampled(world: World, labels: int, source: Draw) -> Sample:
    """The answers with people's grades on some, drawn evenly."""
    grades = np.full(world.grades.size, np.nan)
    chosen = source.permutation(grades.size)[:labels]
    grades[chosen] = world.grades[chosen]
    return Sample.of(world.scores, grades, world.items)


def second_draw(world: World, labels: int, source: Draw) -> Sample:
    """Half of the labels drawn evenly, the others where gaps are expected."""
    first = sampled(world, labels // 2, source)
    drawn = draw(expected_spread(first), first.graded, labels - labels // 2, seed=int(source.integers(2**31)))
    grades = np.where(first.graded | drawn.chosen, world.grades, np.nan)
    before = np.full(grades.size, first.labels / grades.size)
    return Sample.of(world.scores, grades, world.items, joined(before, drawn.probabilities))


Covered = dict[str, tuple[Estimate, Estimate | None, float]]


def figures_of(kind: str, worlds: tuple[World, World], labels: int, truth: dict[str, float], source: Draw) -> Covered:
    """The corrected figures of a study, with those of the judge alone and the truth."""
    found: Covered = {}
    if kind == "spearman":
        sample = sampled(worlds[0], labels, source)
        found["spearman"] = (back(corrected_spearman(worlds[0].known, sample).interval()), None, truth["spearman"])
        return found
    passes = kind == "passes"
    samples = {name: sampled(world, labels, source) for name, world in zip("ab", worlds, strict=True)}
    low, high = {"passes": (0.0, 1.0), "lab": (1.0, 4.0)}.get(kind, (0.0, 100.0))
    all_ = certify(samples, Scale(low, high, passes))
    one, pair = all_.candidates["a"], all_.differences["a", "b"]
    assert one.corrected is not None
    assert pair.corrected is not None
    name = "rate" if passes else "mean"
    found[name] = (one.corrected, one.judged, truth["mean"])
    found[f"{name}_difference"] = (pair.corrected, pair.judged, truth["difference"])
    if passes:
        told = confusion(samples["a"])
        rate = rogan_gladen(remainder(samples["a"]), told.sensitivity, told.specificity)
        found["rogan_gladen"] = (rate, None, truth["mean"])
    elif kind == "scores":
        known, sample = worlds[0].known, samples["a"]
        judged = Sample.of(sample.scores, sample.scores, sample.clusters)
        pearson, plain = (back(corrected_pearson(known, each).interval()) for each in (sample, judged))
        found["pearson"] = (pearson, plain, truth["pearson"])
        found["second_draw"] = (corrected_mean(second_draw(worlds[0], labels, source)).interval(), None, truth["mean"])
    return found


def truth_of(make: Callable[[Draw, int], tuple[World, World]]) -> dict[str, float]:
    """The figures over 800,000 answers."""
    one, other = make(np.random.default_rng(0), _LARGE)
    found = {"mean": float(one.grades.mean()), "difference": float(one.grades.mean() - other.grades.mean())}
    if one.known is not one.grades:
        found["pearson"] = float(np.corrcoef(one.known, one.grades)[0, 1])
        found["spearman"] = float(np.corrcoef(rankdata(one.known), rankdata(one.grades))[0, 1])
    return found


@dataclass(frozen=True)
class Task:
    """So many studies of one kind, judge and number of labels."""

    kind: str
    judge: str
    labels: int
    studies: int
    truth: dict[str, float]
    rounds: dict[str, Floats] | None = None


WORLDS = {"scores": scores_world, "spearman": scores_world, "passes": passes_world, "rare": rare_world}


def maker(task: Task) -> Callable[[Draw, int], tuple[World, World]]:
    """What makes the worlds of a task."""
    if task.rounds is not None:
        rounds = task.rounds
        return lambda source, items: lab_world(rounds, source, items)
    world = WORLDS[task.kind]
    return lambda source, items: world(task.judge, source, items)


def coverage(task: Task) -> dict[str, tuple[float, float | None, float]]:
    """By figure: how often it covers the truth, how often the judge's does (percent), and the mean width."""
    make = maker(task)
    source = np.random.default_rng([28, task.labels, len(task.judge), sum(map(ord, task.kind + task.judge))])
    hits: dict[str, list[tuple[bool, bool | None, float]]] = {}
    for _ in range(task.studies):
        worlds = make(source, ITEMS)
        for name, (end, plain, truth) in figures_of(task.kind, worlds, task.labels, task.truth, source).items():
            beside = None if plain is None else plain.low <= truth <= plain.high
            hits.setdefault(name, []).append((end.low <= truth <= end.high, beside, end.high - end.low))
    found: dict[str, tuple[float, float | None, float]] = {}
    for name, rows in hits.items():
        covered, beside, width = zip(*rows, strict=True)
        plain_share = None if beside[0] is None else 100.0 * float(np.mean(beside))
        found[name] = (100.0 * float(np.mean(covered)), plain_share, float(np.mean(width)))
    return found


def tasks(studies: int, counts: tuple[int, ...], rounds: dict[str, Floats]) -> Iterator[Task]:
    """All kinds of study, each with its truth."""
    for judge in JUDGES:
        for kind in ("scores", "passes"):
            truth = truth_of(maker(Task(kind, judge, 0, 0, {})))
            yield from (Task(kind, judge, labels, studies, truth) for labels in counts)
            if kind == "scores":
                yield from (Task("spearman", judge, labels, studies, truth) for labels in counts[:1])
    truth = truth_of(maker(Task("lab", "lenient", 0, 0, {}, rounds)))
    yield from (Task("lab", "lenient", labels, studies, truth, rounds) for labels in counts)
    for kind, judge in (("rare", "rare"), ("passes", "near")):
        truth = truth_of(maker(Task(kind, judge, 0, 0, {})))
        yield from (Task(kind, judge, labels, studies, truth) for labels in counts)


def main() -> None:
    """Simulate, print, write."""
    parser = argparse.ArgumentParser(description="how often corrected figures cover the truth")
    parser.add_argument("--quick", action="store_true", help="50 studies of each kind, 30 labels")
    options = parser.parse_args()
    began = time.perf_counter()
    studies, counts = (50, (30,)) if options.quick else (2_000, LABELS)
    with tempfile.TemporaryDirectory() as scratch:
        rounds = lab_rounds(Path(scratch))
    note(f"the lab's oracles: {', '.join(f'{name} {rows.mean():.2f}' for name, rows in rounds.items())}")
    work = list(tasks(studies, counts, rounds))
    with ProcessPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        results = list(pool.map(coverage, work))
    rows, figures = [], {}
    well: list[float] = []
    plains: list[float] = []
    for task, found in zip(work, results, strict=True):
        hard = task.judge in ("rare", "near")
        for name, (covered, plain, width) in found.items():
            shown = "–" if plain is None else f"{plain:.1f}"
            rows.append([name, task.judge, str(task.labels), f"{covered:.1f}", shown, f"{width:.3g}"])
            prefix = "hard_" if hard else ""
            figures[f"{prefix}{name}_{task.judge}_{task.labels}_pct"] = covered
            if not hard:
                well.append(covered)
                plains += [plain] if plain is not None and name in ("mean", "rate") else []
    rows.sort()
    title = f"{studies:,} studies of {ITEMS * ROUNDS} answers a candidate: 95% intervals that cover the truth, percent"
    table.show(title, ["figure", "judge", "labels", "corrected", "judge alone", "mean width"], rows)
    summary = {
        "least_covered_pct": min(well),
        "most_covered_pct": max(well),
        "within_93_97_share": sum(93.0 <= one <= 97.0 for one in well) / len(well),
        "kinds": float(len(well)),
        "median_covered_plain_pct": float(np.median(plains)),
        "studies": float(studies),
    }
    figures = summary | figures
    table.conclude("certified", {name: round(value, 3) for name, value in figures.items()}, REACH)
    print(f"took {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
