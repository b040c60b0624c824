"""Coverage of corrected figures: simulated studies of judges that are biased, noisy, skewed, blind.

A study is two candidates' answers on the same items with a judge's scores on all, and people's grades on some drawn
evenly from each. Figures are those of a certificate: means, differences, Pearson's and Spearman's correlation with a
number known for each answer, pass rates and their differences, Rogan and Gladen's rates, and means after a second,
uneven draw. The truth of a kind of study is its mean over 800,000 answers. One kind is the lab's: the grades are its
oracles' verdicts, which are right by construction, the judge's scores a distorted copy of them.

Four kinds of studies:

``general``     judges that are biased, noisy, skewed or drift, 30 to 200 labels.
``rare``        2% to 50% of the answers get the lowest grade; the judge sees none, half, or all of these; 10 to 60
                labels, drawn by answer or with whole items.
``clustered``   pass rates of four answers an item, whole items labelled.
``near``        a judge that is right in 98 of 100, and one that is far off on one answer of ten.

95% intervals should cover the truth in at least 93.5% of the studies of a kind, figure and number of labels. They are
wider than Student's where few labels leave room for grades at the ends of the scale that none of them shows; how wide
corrected intervals are relative to those of the labels alone is measured too.
``--quick`` makes 50 studies of each kind instead of 2,000.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import table
from numpy.typing import NDArray
from running import note
from scipy.stats import rankdata

from viva.engine.journal_reader import History
from viva.engine.run_folder import RunFolder
from viva.lab.experiment import Experiment, ideal_family
from viva.scoring.certificate import (
    GradeRange,
    certify,
    combine_probabilities,
    draw_answers,
    expected_spread,
    judge_confusion,
    rogan_gladen,
    ungraded_pass_rate,
)
from viva.scoring.intervals import Estimate
from viva.scoring.prediction_powered import (
    GradedSample,
    corrected_mean,
    corrected_pearson,
    corrected_spearman,
    from_fisher,
)

Floats = NDArray[np.float64]
Draw = np.random.Generator
ITEMS, ROUNDS = 150, 2
LABELS = (30, 60, 200)
JUDGES = ("biased", "noisy", "skewed", "drifting")
REACH: table.Reach = {
    "general_least_covered_pct": (">=", 93.5),
    "rare_least_covered_pct": (">=", 93.5),
    "clustered_least_covered_pct": (">=", 93.5),
    "near_least_covered_pct": (">=", 93.5),
    "median_covered_plain_pct": ("<=", 90),
    "general_median_width_share": ("<=", 1.0),
}
SMALL_COUNTS = (10, 20, 40, 60)
RARE = (0.02, 0.05, 0.10, 0.50)
SEEN = {"blind": 0.0, "partly": 0.5, "good": 1.0}
_LARGE = 400_000
DASH = "–"


@dataclass(frozen=True)
class World:
    """Answers of one candidate: people's grades, the judge's scores, clusters, and a known number for each answer."""

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
        draws = source.random(count)
        scores = np.where(grades == 1, draws < right, draws >= wrong).astype(np.float64)
        worlds.append(World(grades, scores, number, easy))
    return worlds[0], worlds[1]


def far_world(judge: str, source: Draw, items: int) -> tuple[World, World]:
    """Full marks by a judge that is far off on one answer of ten."""
    worlds = []
    for share in (0.10, 0.12):
        far = source.random(items) < share
        grades = np.where(far, source.uniform(0, 40, items), source.uniform(85, 100, items))
        scores = np.where(source.random(items) < 0.5, grades, 95.0)
        worlds.append(World(grades, scores, np.arange(items), grades))
    return worlds[0], worlds[1]


def failures_world(seen: float, rate: float, whole: bool, source: Draw, items: int) -> tuple[World, World]:
    """Answers of which few have the grade 0; the judge scores the share ``seen`` of these near 0, the others as usual.

    ``whole``: an item's answers fail together.
    """
    number = np.repeat(np.arange(items), ROUNDS)
    count = number.size
    worlds = []
    for share, level in ((rate, 75.0), (0.6 * rate, 70.0)):
        far = (source.random(items) < share)[number] if whole else source.random(count) < share
        usual = np.clip(source.normal(level, 12, count), 0, 100)
        met = far & (source.random(count) < seen)
        scores = np.where(met, np.abs(source.normal(0, 5, count)), np.clip(usual + source.normal(5, 5, count), 0, 100))
        worlds.append(World(np.where(far, 0.0, usual), scores, number, usual))
    return worlds[0], worlds[1]


def clustered_world(seen: float, rate: float, source: Draw, items: int) -> tuple[World, World]:
    """Four answers an item, pass or fail, alike within an item; the judge passes failures that it does not see."""
    number = np.repeat(np.arange(items), 4)
    worlds = []
    for share in (rate, 0.6 * rate):
        easy = source.beta(2 * share, 2 * (1 - share), items)[number]
        failed = source.random(number.size) < easy
        verdicts = np.where(failed, source.random(number.size) < seen, source.random(number.size) < 0.03)
        worlds.append(World((~failed).astype(np.float64), (~verdicts).astype(np.float64), number, easy))
    return worlds[0], worlds[1]


def lab_rounds(folder: Path) -> dict[str, Floats]:
    """By candidate the overall verdicts of the lab's oracle, items × rounds, which are right by construction."""
    experiment = Experiment(
        [model for model in ideal_family() if model.label in ("clean-50", "clean-75")], folder / "lab"
    )
    import anyio

    for launch in experiment.launches(1):
        anyio.run(launch.run)
    scores: dict[str, list[list[float]]] = {}
    with History(RunFolder.open(experiment.run_folder(1, "kieval")).journal) as history:
        for ended in history.ended():
            rounds = [passes[0][-1] for passes in ended.result["rounds"] if passes[0] is not None]
            if len(rounds) == experiment.rounds:
                scores.setdefault(ended.result["candidate"], []).append([float(verdict) for verdict in rounds])
    smallest = min(len(rows) for rows in scores.values())
    return {name: np.array(rows[:smallest]) for name, rows in scores.items()}


def lab_world(rounds: dict[str, Floats], source: Draw, items: int) -> tuple[World, World]:
    """Items of the lab drawn anew; the judge adds a grade, up to the highest, to four of ten answers."""
    worlds = []
    count = min(len(rows) for rows in rounds.values())
    chosen = source.integers(0, count, items)
    for rows in rounds.values():
        grades = rows[chosen].ravel()
        scores = np.where(source.random(grades.size) < 0.4, np.minimum(4.0, grades + 1.0), grades)
        worlds.append(World(grades, scores, np.repeat(np.arange(items), rows.shape[1]), grades))
    return worlds[0], worlds[1]


def sampled(world: World, labels: int, source: Draw) -> GradedSample:
    """The answers with people's grades on some, drawn evenly."""
    grades = np.full(world.grades.size, np.nan)
    chosen = source.permutation(grades.size)[:labels]
    grades[chosen] = world.grades[chosen]
    return GradedSample.from_arrays(world.scores, grades, world.items)


def whole_items(world: World, labels: int, source: Draw) -> GradedSample:
    """The answers with people's grades on all of some items, drawn evenly."""
    each = int((world.items == 0).sum())
    labelled = np.isin(world.items, source.permutation(int(world.items.max()) + 1)[: labels // each])
    return GradedSample.from_arrays(world.scores, np.where(labelled, world.grades, np.nan), world.items)


def second_draw(world: World, labels: int, source: Draw) -> GradedSample:
    """Half of the labels drawn evenly, the others where judge and people are expected to differ."""
    first = sampled(world, labels // 2, source)
    sample = draw_answers(expected_spread(first), first.graded, labels - labels // 2, seed=int(source.integers(2**31)))
    grades = np.where(first.graded | sample.chosen, world.grades, np.nan)
    before = np.full(grades.size, first.labels / grades.size)
    return GradedSample.from_arrays(
        world.scores, grades, world.items, combine_probabilities(before, sample.probabilities)
    )


Covered = dict[str, tuple[Estimate, Estimate | None, Estimate | None, float]]


def figures_of(task: Task, worlds: tuple[World, World], source: Draw) -> Covered:
    """The corrected figures of a study, those of the judge and of the labels alone, and the truth."""
    kind, labels, truth = task.kind, task.labels, task.truth
    covered: Covered = {}
    if kind == "spearman":
        sample = sampled(worlds[0], labels, source)
        end = from_fisher(corrected_spearman(worlds[0].known, sample).interval())
        return {"spearman": (end, None, None, truth["spearman"])}
    passes = kind in ("passes", "clustered")
    draw_labels = whole_items if kind == "clustered" or task.whole else sampled
    samples = {name: draw_labels(world, labels, source) for name, world in zip("ab", worlds, strict=True)}
    low, high = {"passes": (0.0, 1.0), "clustered": (0.0, 1.0), "lab": (1.0, 4.0)}.get(kind, (0.0, 100.0))
    all_ = certify(samples, GradeRange(low, high, passes))
    estimate, pair = all_.candidates["a"], all_.differences["a", "b"]
    name = "rate" if passes else "mean"
    for figure, one_name, value in ((estimate, name, truth["mean"]), (pair, f"{name}_difference", truth["difference"])):
        if figure.corrected is not None:
            covered[one_name] = (figure.corrected, figure.judged, figure.labels_alone, value)
    if passes:
        confusion = judge_confusion(samples["a"])
        rate = rogan_gladen(ungraded_pass_rate(samples["a"]), confusion.sensitivity, confusion.specificity)
        covered["rogan_gladen"] = (rate, None, None, truth["mean"])
    elif kind == "scores":
        known, sample = worlds[0].known, samples["a"]
        judged = GradedSample.from_arrays(sample.scores, sample.scores, sample.clusters)
        pearson, plain = (from_fisher(corrected_pearson(known, each).interval()) for each in (sample, judged))
        covered["pearson"] = (pearson, plain, None, truth["pearson"])
    if kind in ("scores", "failures") and not task.whole:
        second = corrected_mean(second_draw(worlds[0], labels, source)).interval(low=low, high=high)
        covered["second_draw"] = (second, None, None, truth["mean"])
    return covered


def truth_of(make: Callable[[Draw, int], tuple[World, World]]) -> dict[str, float]:
    """The figures over 800,000 answers."""
    first, second = make(np.random.default_rng(0), _LARGE)
    truth = {"mean": float(first.grades.mean()), "difference": float(first.grades.mean() - second.grades.mean())}
    if first.known is not first.grades:
        truth["pearson"] = float(np.corrcoef(first.known, first.grades)[0, 1])
        truth["spearman"] = float(np.corrcoef(rankdata(first.known), rankdata(first.grades))[0, 1])
    return truth


@dataclass(frozen=True)
class Task:
    """So many studies of one group and kind, judge and number of labels."""

    group: str
    kind: str
    judge: str
    labels: int
    studies: int
    truth: dict[str, float]
    rounds: dict[str, Floats] | None = None
    rate: float = 0.0
    whole: bool = False

    @property
    def words(self) -> str:
        """The judge, and how many answers fail, in words."""
        return self.judge + (f", {self.rate:.0%} fail" if self.rate else "") + (", by item" if self.whole else "")


WORLDS = {"scores": scores_world, "spearman": scores_world, "passes": passes_world, "far": far_world}


def maker(task: Task) -> Callable[[Draw, int], tuple[World, World]]:
    """The function that makes the worlds of a task."""
    if task.rounds is not None:
        rounds = task.rounds
        return lambda source, items: lab_world(rounds, source, items)
    if task.kind == "failures":
        return lambda source, items: failures_world(SEEN[task.judge], task.rate, task.whole, source, items)
    if task.kind == "clustered":
        return lambda source, items: clustered_world(SEEN[task.judge], task.rate, source, items)
    world = WORLDS[task.kind]
    return lambda source, items: world(task.judge, source, items)


@dataclass(frozen=True)
class CoverageFigure:
    """A figure of a task: percent of intervals that cover the truth (``plain``, ``alone``: those of judge and labels
    alone), mean width, and the median ratio of widths to those of the labels alone.
    """

    covered: float
    plain: float | None
    alone: float | None
    width: float
    share: float | None


def coverage(task: Task) -> dict[str, CoverageFigure]:
    """By figure: how often intervals cover the truth, and how wide they are."""
    make = maker(task)
    source = np.random.default_rng([28, task.labels, *map(ord, task.kind + task.words)])
    hits: dict[str, list[tuple[float, ...]]] = {}
    for _ in range(task.studies):
        worlds = make(source, ITEMS)
        for name, (end, plain, alone, truth) in figures_of(task, worlds, source).items():
            sides = [
                math.nan if values is None else float(values.low <= truth <= values.high)
                for values in (end, plain, alone)
            ]
            width = end.high - end.low
            share = math.nan if alone is None or alone.high == alone.low else width / (alone.high - alone.low)
            hits.setdefault(name, []).append((*sides, width, share))
    figures: dict[str, CoverageFigure] = {}
    for name, rows in hits.items():
        covered, beside, labels, width, share = np.array(rows).T
        known = [None if np.isnan(values).all() else 100.0 * float(np.nanmean(values)) for values in (beside, labels)]
        wider = None if np.isnan(share).all() else float(np.nanmedian(share))
        figures[name] = CoverageFigure(100.0 * float(covered.mean()), known[0], known[1], float(width.mean()), wider)
    return figures


def tasks(studies: int, quick: bool, rounds: dict[str, Floats]) -> Iterator[Task]:
    """All kinds of study, each with its truth."""
    counts, small_counts = ((30,), (20,)) if quick else (LABELS, SMALL_COUNTS)
    kinds = [(Task("general", kind, judge, 0, studies, {}), counts)
             for judge in JUDGES for kind in ("scores", "spearman", "passes")]  # fmt: skip
    kinds.append((Task("general", "lab", "lenient", 0, studies, {}, rounds), counts))
    kinds += [
        (Task("near", kind, judge, 0, studies, {}), counts) for kind, judge in (("far", "far"), ("passes", "near"))
    ]
    kinds += [(Task("rare", "failures", judge, 0, studies, {}, rate=rate, whole=whole), small_counts)
              for judge in SEEN for rate in RARE for whole in (False, True)]  # fmt: skip
    kinds += [(Task("clustered", "clustered", judge, 0, studies, {}, rate=rate), (20, 40, 60))
              for judge in SEEN for rate in (0.05, 0.10, 0.30, 0.50)]  # fmt: skip
    for task, numbers in kinds:
        truth = truth_of(maker(task))
        yield from (replace(task, labels=labels, truth=truth) for labels in numbers)


def main() -> None:
    """Simulate, print, write."""
    parser = argparse.ArgumentParser(description="how often corrected figures cover the truth")
    parser.add_argument("--quick", action="store_true", help="50 studies of each kind, one number of labels")
    parser.add_argument("--studies", type=int, default=2_000)
    options = parser.parse_args()
    began = time.perf_counter()
    studies = 50 if options.quick else options.studies
    with tempfile.TemporaryDirectory() as scratch:
        rounds = lab_rounds(Path(scratch))
    note(f"the lab's oracles: {', '.join(f'{name} {rows.mean():.2f}' for name, rows in rounds.items())}")
    work = list(tasks(studies, options.quick, rounds))
    with ProcessPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        results = list(pool.map(coverage, work))
    rows, figures = [], {}
    by_group: dict[str, list[CoverageFigure]] = {}
    plains: list[float] = []
    for task, task_figures in zip(work, results, strict=True):
        for name, figure in task_figures.items():
            beside = [DASH if value is None else f"{value:.1f}" for value in (figure.alone, figure.plain)]
            share = DASH if figure.share is None else f"{figure.share:.2f}"
            rows.append(
                [name, task.words, str(task.labels), f"{figure.covered:.1f}", *beside, f"{figure.width:.3g}", share]
            )
            key = "_".join([name, *task.words.replace(",", "").replace("%", "").split(), str(task.labels)])
            figures[f"{key}_pct"] = figure.covered
            by_group.setdefault(task.group, []).append(figure)
            if task.group == "general" and name in ("mean", "rate") and figure.plain is not None:
                plains.append(figure.plain)
    rows.sort()
    title = f"{studies:,} studies of each kind: 95% intervals that cover the truth, percent"
    header = ["figure", "judge", "labels", "corrected", "labels alone", "judge alone", "mean width", "of labels' width"]
    table.show(title, header, rows)
    summary = {"median_covered_plain_pct": float(np.median(plains)), "studies": float(studies)}
    for group, group_figures in by_group.items():
        covered = [figure.covered for figure in group_figures]
        summary[f"{group}_least_covered_pct"] = min(covered)
        summary[f"{group}_mean_covered_pct"] = float(np.mean(covered))
        summary[f"{group}_labels_alone_least_covered_pct"] = min(
            figure.alone for figure in group_figures if figure.alone is not None
        )
        summary[f"{group}_median_width_share"] = float(
            np.median([figure.share for figure in group_figures if figure.share is not None])
        )
    figures = summary | figures
    table.conclude("certified", {name: round(value, 3) for name, value in figures.items()}, REACH)
    print(f"took {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
