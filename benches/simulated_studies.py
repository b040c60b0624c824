"""Simulated studies of honest models and judges whose truth is known, and what reports claim of them that is untrue.

No engine runs but for plans. ``REPORTS`` has by report its kinds of studies and what makes and reads one; counting and
printing are those of ``claims``.
"""

from __future__ import annotations

import math
import sqlite3
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from viva.engine.clock import VirtualClock
from viva.loadtest.load_records import BASELINE, SECOND_BASELINE, Judgement, LoadStep
from viva.loadtest.load_sentences import judgement_status
from viva.loadtest.step_judgement import JudgePasses, judgement_record
from viva.reports.figures import clustered_rate
from viva.scenarios.contract import SCORE
from viva.scenarios.default_aggregate import CandidateMeasures
from viva.scenarios.kieval.interview_report import InterviewAggregate
from viva.scenarios.kieval.score import Interview, Round, Scorer
from viva.scenarios.kieval.study.claims import Claims, Comparisons, findings
from viva.scenarios.kieval.study.correlations import AgainstAccuracy
from viva.scenarios.kieval.study.interview_pools import InterviewColumns, InterviewMaterial
from viva.scenarios.lalaeval.candidate_grades import GradeSums, compare_candidates
from viva.scenarios.probes.probe_report import detector_records
from viva.scenarios.probes.probe_study import ProbeColumns, ProbeFigures
from viva.scenarios.study_cells import ItemCatalogue, ItemNumbers, RunReading, StudyCell
from viva.scenarios.study_sections import Material
from viva.scoring.certificate import GradeRange, certify
from viva.scoring.contamination import Signals
from viva.scoring.graders import GradeRow, GradeTable
from viva.scoring.intervals import Estimate
from viva.scoring.load_verdicts import JudgedRequest
from viva.scoring.prediction_powered import GradedSample
from viva.sweeps.plan import Plan
from viva.sweeps.sweep import open_sweep

Draw = np.random.Generator
Floats = NDArray[np.float64]
MODELS = "abcde"
ROUNDS = 3


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
    conclusions = findings(report)
    sentences = [sentence for conclusion in conclusions for sentence in conclusion.sentences]
    claims: set[str] = set()
    lines = [line for line in report["correlations"]["lines"].values() if line is not None]
    accused = {
        name
        for conclusion in conclusions
        for standing in conclusion.standings
        if standing.suspected
        for name in [standing.candidate]
    }
    accused |= {name for line in lines for name in line["below"]}
    if world.cheats:
        verdicts = {verdict["candidate"]: verdict["verdict"] for verdict in report["verdicts"]["candidates"]}
        return {{"suspected": "found", "no_sign": "cleared"}.get(verdicts["cheat"], "neither")}
    if accused or any(sentence.startswith("Contamination suspected") for sentence in sentences):
        claims.add("accused")
    levels = dict(zip(MODELS, world.levels, strict=True))
    for lead in report["verdicts"]["leads"]:
        if lead["verdict"] == "ahead" and levels[lead["first"]] <= levels[lead["second"]]:
            claims.add("lead")
    if (
        any("significantly lower" in sentence and "not significantly" not in sentence for sentence in sentences)
        and world != KINDS["graded"]
    ):
        claims.add("lead")
    return claims


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
            columns = conversation_columns(world, name, level, ease, clusters, draw, scorer, items)
            readings.append(RunReading(cell, columns, {}))
            readings.append(probes(dataset, name, clusters, draw))
    material = InterviewMaterial(Material(scorer, readings, ItemCatalogue(numbers)), lent)
    pooled = []
    for pool in material.pools:
        labels = pool.labels(pool.clusters())
        row = {"scenario": "kieval", "candidate": pool.candidate, "dataset": pool.dataset, "unanswered_rate": 0.0}
        row |= {"accuracy": clustered_rate(pool.column("right"), labels), "score": pool.score(scorer)}
        pooled.append(row | {"probe": lent.pooled(pool)})
    report: dict[str, Any] = {"pooled": pooled}
    for section in (Comparisons(), AgainstAccuracy(lent), Claims()):
        report[section.key] = section.compute(material, report)
    return report


def conversation_columns(
    world: World,
    name: str,
    level: float,
    ease: Floats,
    clusters: NDArray[np.int64],
    draw: Draw,
    scorer: Scorer,
    items: ItemNumbers,
) -> InterviewColumns:
    """A model's interviews: the first answer and each round are right with the chance that it knows the item."""
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


def probes(dataset: str, name: str, clusters: NDArray[np.int64], draw: Draw) -> RunReading:
    """Probes of a model to which the dataset's texts are no more familiar than as many other texts.

    Texts of a cluster are half alike.
    """
    size = len(clusters)
    common = np.concatenate([draw.normal(0, math.sqrt(0.5), size)[clusters] for _ in range(2)])
    scores = (common + draw.normal(0, math.sqrt(0.5), 2 * size)).tolist()
    places = [(second, f"item-{item}") for second, item in product((False, True), range(size))]
    labels = {pair: f"{pair[0]} {cluster}" for pair, cluster in zip(places, [*clusters, *clusters], strict=True)}
    texts = {pair: {"min_k_20": score} for pair, score in zip(places, scores, strict=True)}
    columns = ProbeColumns(1, members_are_second=False)
    columns.signals = {places[0]: Signals(1, 1.0, 1.0, 1.0, [0.0])}  # the figures are those of the result
    loss = {"mean": 1.0, "se": 0.1, "n": size}
    result: dict[str, Any] = {"loss": loss, "loss_against": loss, "loss_gap": None}
    result["detectors"] = detector_records(texts, labels, members_are_second=False)
    cell = StudyCell(f"{name}-probe", name, "probe", name, f"simulated:{name}", dataset, 1)
    return RunReading(cell, columns, result)


# What functions return: values of tasks, the range that the scenario declares, and the mean over all tasks.
def _passed(size: int, draw: Draw) -> list[Any]:
    return [bool(outcome) for outcome in draw.random(size) < 0.8]


def _shares(size: int, draw: Draw) -> list[Any]:
    return draw.beta(4, 1, size).tolist()


def _points(size: int, draw: Draw) -> list[Any]:
    return draw.choice([0.0, 25.0, 50.0, 75.0, 100.0], size, p=[0.05, 0.1, 0.2, 0.3, 0.35]).tolist()


def _lengths(size: int, draw: Draw) -> list[Any]:
    return np.ceil(draw.gamma(4, 100, size)).astype(int).tolist()


def _repeated(size: int, draw: Draw) -> list[Any]:
    chance = np.clip(draw.normal(0.7, 0.25, size), 0, 1)
    return [bool(outcome) for outcome in draw.random((size, 3)).ravel() < np.repeat(chance, 3)]


@dataclass(frozen=True)
class Returned:
    """Values of a function scenario, their declared range, and ``each``: conversations on a task."""

    values: Callable[[int, Draw], list[Any]]
    low: float = -math.inf
    high: float = math.inf
    each: int = 1


@cache
def mean_returned(world: Returned) -> float:
    """Return the mean over many tasks."""
    return float(np.mean(world.values(1_000_000, np.random.default_rng(0))))


TASKS = {
    "passed": Returned(_passed),
    "repeated": Returned(_repeated, each=3),
    "shares": Returned(_shares, 0.0, 1.0),
    "points": Returned(_points, 0.0, 100.0),
    "lengths": Returned(_lengths),
}


def tasks_claims(world: Returned, size: int, draw: Draw) -> set[str]:
    """The untrue claims of a function scenario's report: its interval misses the mean, or is impossible."""
    ranges = {SCORE: (world.low, world.high)} if math.isfinite(world.low) else None
    measures = CandidateMeasures(ranges)
    for index, value in enumerate(world.values(size, draw)):
        measures.add({"task": f"task-{index // world.each}", "value": {SCORE: value}, "usage": {}})
    measure = measures.to_dict({})["measures"][SCORE]
    if measure["low"] is None:
        return set()
    claims = set() if measure["low"] <= mean_returned(world) <= measure["high"] else {"missed"}
    lowest = min(world.values(1000, draw))
    return claims | ({"impossible"} if measure["low"] == measure["high"] or (measure["low"] < 0 <= lowest) else set())


@dataclass(frozen=True)
class Graded:
    """People's grades of equal candidates: ``graders`` of each answer, the highest grade of each dimension."""

    graders: int
    tops: tuple[float, ...]


GRADES = {"one grader": Graded(1, (1.0,)), "three graders": Graded(3, (3.0, 3.0, 1.0))}


def grades_claims(world: Graded, size: int, draw: Draw) -> set[str]:
    """The untrue claims of graded answers: a candidate that is no better leads, or the interval misses the truth."""
    rows = []
    for item in range(size):
        dimension = item % len(world.tops)
        top, hard = world.tops[dimension], draw.normal(0, 0.25)
        for name in MODELS:
            worth = draw.normal(0.7 + hard, 0.25)
            for grader in range(world.graders):
                value = float(np.clip(np.round(top * (worth + draw.normal(0, 0.1))), 0, top))
                rows.append(GradeRow(f"part/{dimension}", f"q{item}", name, f"g{grader}", value, top))
    pairs = [
        comparison
        for comparison in compare_candidates(GradeSums(GradeTable.from_rows(rows), None))
        if comparison.group == "overall"
    ]
    claims = {"lead" for comparison in pairs if comparison.p_corrected is not None and comparison.p_corrected < 0.05}
    return claims | {"lead" for comparison in pairs if comparison.low is not None and comparison.low > 0}


@dataclass(frozen=True)
class Planned:
    """A sweep of so many candidates that is planned without a pilot."""

    candidates: int


PLANS = {"talks": Planned(2)}


def plan_claims(world: Planned, size: int, draw: Draw) -> set[str]:
    """The untrue claims of a plan: the sweep takes more tokens than the range says, or fewer."""
    rounds = int(draw.integers(1, 6))
    ends = _planned(world.candidates, size, rounds)
    talkative = np.exp(draw.uniform(math.log(0.3), math.log(3.0), world.candidates + 1))
    with tempfile.TemporaryDirectory() as scratch:
        file = _sweep_file(Path(scratch), size, rounds, talkative, int(draw.integers(1_000_000)))
        sweep = open_sweep(file, Path(scratch) / "out", clock := VirtualClock())
        clock.run(sweep.run)
        tokens = 0
        for journal in sweep.out.rglob("journal.sqlite"):
            with closing(sqlite3.connect(journal)) as connection:
                tokens += connection.execute("select sum(prompt_tokens + completion_tokens) from calls").fetchone()[0]
    return set() if ends.low <= tokens <= ends.high else {"missed"}


@cache
def _planned(candidates: int, size: int, rounds: int) -> Estimate:
    """The tokens that a plan tells of a sweep; they follow from its file alone."""
    with tempfile.TemporaryDirectory() as scratch:
        file = _sweep_file(Path(scratch), size, rounds, np.ones(candidates + 1), 1)
        return Plan(file, Path(scratch) / "out", simulations=3).prediction.tokens


def _sweep_file(folder: Path, size: int, rounds: int, talkative: Floats, seed: int) -> Path:
    lines = [
        f'{{"id": "{at}", "question": "Which of the four numbers belongs to {at}?", '
        f'"choices": ["{at}1", "{at}2", "{at}3", "{at}4"], "answer": {at % 4}}}\n'
        for at in range(size)
    ]
    (folder / "items.jsonl").write_text("".join(lines))
    names = [f"simulated:{MODELS[at]}?verbosity={verbosity:.3f}" for at, verbosity in enumerate(talkative[1:])]
    roles = {"interactor": f"simulated:i?verbosity={talkative[0]:.3f}", "evaluator": "simulated:e"}
    file = folder / "sweep.yaml"
    settings = {
        "candidates": names,
        "datasets": ["items.jsonl"],
        "seeds": [seed],
        "interviews": roles | {"rounds": rounds},
    }
    file.write_text(yaml.safe_dump(settings))
    return file


@dataclass(frozen=True)
class Loaded:
    """A judge under load. ``noise`` of its scores from 1 to 10; ``lost``: the share of requests that fail under load,
    the hardest first; ``shift``: by how much its scores fall at the greater load.
    """

    noise: float = 0.0
    lost: float = 0.0
    shift: float = 0.0


LOADS = {
    "exact": Loaded(),
    "noisy": Loaded(0.8),
    "failing": Loaded(0.8, lost=0.5),
    "shifted": Loaded(0.8, shift=1.8),  # a fifth of the scale
}
LOAD_STEPS = (4.0, 8.0)


def load_claims(world: Loaded, size: int, draw: Draw) -> set[str]:
    """The untrue claims of a load test: an unchanged judge changed, or one that changed or is unknown is the same."""
    passes = JudgePasses()
    hard = draw.random(size)
    steps = [LoadStep(at, ("judge",), "closed", concurrency=1, requests=1) for at in (BASELINE, SECOND_BASELINE)]
    steps += [LoadStep(at, ("judge",), "poisson", rate=rate, requests=1) for at, rate in enumerate(LOAD_STEPS)]
    for step in steps:
        is_highest = step.rate == LOAD_STEPS[-1]
        failed = hard < (world.lost if is_highest else 0.0)
        for at in range(size):
            score = at % 8 + 2 + draw.normal(0, world.noise) - (world.shift if is_highest else 0.0)
            scores = {} if failed[at] else {"score": float(np.clip(round(score), 1, 10))}
            failure = "error" if failed[at] else ""
            passes.add(Judgement(f"r{at}", step.index, "judge", at, 0, scores, failure=failure))
    requests = {f"r{at}": JudgedRequest(f"item {at}") for at in range(size)}
    step_records = judgement_record(passes, steps, requests, {"score": (1.0, 10.0)})["steps"]
    claims = {
        "changed"
        for record in step_records
        if judgement_status(record) == "changed" and not (world.shift and record is step_records[-1])
    }
    sound = not world.shift and not world.lost
    return claims | ({"same"} if judgement_status(step_records[-1]) == "same" and not sound else set())


@dataclass(frozen=True)
class Certified:
    """Answers with a judge's scores and people's grades on ``share`` of them, two an item."""

    share: float = 0.4
    passes: bool = False
    rare: float = 0.0

    def sample(self, items: int, draw: Draw) -> tuple[Floats, Floats]:
        """Return grades and scores of a candidate."""
        ease = np.repeat(draw.normal(0, 0.1, items), 2)
        if self.passes:
            grades = (draw.random(2 * items) < np.clip(0.7 + ease, 0, 1)).astype(np.float64)
            return grades, np.where(draw.random(2 * items) < 0.85, grades, 1.0)
        grades = np.clip(75 + 100 * ease + draw.normal(0, 12, 2 * items), 0, 100)
        scores = np.clip(grades + draw.normal(6, 8, 2 * items), 0, 100)
        return np.where(draw.random(2 * items) < self.rare, 0.0, grades), scores


@cache
def mean_grade(world: Certified) -> float:
    """Return the mean grade over many items."""
    return float(world.sample(500_000, np.random.default_rng(0))[0].mean())


CERTIFIED = {"scores": Certified(), "passes": Certified(passes=True), "rare failures": Certified(rare=0.05)}


def certified_claims(world: Certified, size: int, draw: Draw) -> set[str]:
    """The untrue claims of corrected figures: the interval misses the truth, or equal candidates are told apart."""
    samples = {}
    items = np.repeat(np.arange(size), 2)
    for name in MODELS:
        grades, scores = world.sample(size, draw)
        labelled = np.isin(np.arange(2 * size), draw.permutation(2 * size)[: math.ceil(world.share * 2 * size)])
        samples[name] = GradedSample.from_arrays(scores, np.where(labelled, grades, np.nan), items)
    certificate = certify(samples, GradeRange(0.0, 1.0 if world.passes else 100.0, world.passes))
    first = certificate.candidates["a"].corrected
    claims = set() if first is None or first.low <= mean_grade(world) <= first.high else {"missed"}
    pairs = [
        difference.corrected for difference in certificate.differences.values() if difference.corrected is not None
    ]
    return claims | {"lead" for difference in pairs if difference.low > 0 or difference.high < 0}


@dataclass(frozen=True)
class Report:
    """A kind of report: its honest studies by kind, and what makes one of some size and tells its untrue claims.

    ``others``: studies in which something is to be found, of which ``counted_claims`` are counted.
    """

    claims: Callable[[Any, int, Draw], set[str]]
    untrue: tuple[str, ...]
    kinds: Mapping[str, Any]
    others: Mapping[str, Any] = field(default_factory=dict)
    counted_claims: tuple[str, ...] = ()
    studies: int = 200  # of each kind and size


REPORTS: dict[str, Report] = {
    "interviews": Report(interviews_claims, ("accused", "lead"), KINDS, CHEATING, ("found", "cleared")),
    "tasks": Report(tasks_claims, ("missed", "impossible"), TASKS),
    "grades": Report(grades_claims, ("lead",), GRADES),
    "plan": Report(plan_claims, ("missed",), PLANS, studies=100),
    "load": Report(load_claims, ("changed", "same"), LOADS),
    "certified": Report(certified_claims, ("missed", "lead"), CERTIFIED, studies=100),
}
