"""Adaptive exams of the lab's six models against the full exam of `viva demo`, whose truth is known.

The full exam is made first, by the shipped models. At temperature 0 they repeat their answers, so an adaptive exam with
another seed is replayed exactly from its scores. The banks are those of other models: the court's 136
(``lab/court/evidence.jsonl``), one of right answers by options' texts, one of interview scores. An exam probes up to 40
items (``--until half_width=0.5``) and interviews about up to 30 of 100 (``half_width=3``).

``verdicts``    exams that suspect exactly the two models that the full exam suspects, and rank the four others as it
                does. ``calls``: of probes and interviews together, over those of the full exam's interviews alone.
``covered``     intervals that contain the figure over all items.
``real``        exams that were run (`viva run … --adaptive`) and equal their replay: items, scores, and estimates.
``banks``       the same verdicts with banks of fewer models.
``by heart``    a clean model that knows the answers to the k most informative items of the bank, and nothing more in
                interviews, beside the four clean models: how often it is suspected; likewise with probes of all items.
``outsiders``   models of the court, left out of the banks with all models of their unit, one by one beside the four
                clean models: clean ones that are suspected, and cheaters.

``--quick`` replays 3 seeds by heart instead of 20, judges every eighth outsider, and makes one real exam, not two.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # before numpy is imported

import numpy as np
import table
from numpy.typing import NDArray

from viva.data.bank_file import BankFile, Matrix, fit_bank_file, write_bank_file
from viva.engine import seeds
from viva.engine.clock import RealClock
from viva.engine.journal_reader import History
from viva.engine.run_folder import RunFolder
from viva.lab.corpus import INTERVIEW_PACK, PROBE_PACK
from viva.lab.court_evidence import read_evidence
from viva.lab.experiment import Experiment, trained_family
from viva.lab.world import World, benchmark_items
from viva.orchestration.launch import Launch, new_run, recorded_results
from viva.reports.studies.exam_study import ExamStudy
from viva.reports.studies.study import Study
from viva.scenarios.exam_report import read_steps
from viva.scenarios.kieval.kieval_settings import KievalSettings
from viva.scenarios.kieval.score import Interview, Scorer
from viva.scenarios.kieval.study.exam_verdicts import judge_exams
from viva.scenarios.probes.probe import ProbeSettings
from viva.scoring.adaptive_exam import Exams
from viva.scoring.correlation import ModelScores
from viva.scoring.exam_course import ExamCourse, ExamRule, subject_groups
from viva.scoring.intervals import normal_quantile

SEEDS, WAVE = 20, 8
BY_HEART = (5, 10, 20, 40, 60, 80)
BASES = ("clean-25", "clean-50", "clean-75")
REACH: table.Reach = {
    "verdicts_pct": (">=", 100),
    "calls_share": ("<=", 1 / 3),
    "real_equal_pct": (">=", 100),
}
Floats = NDArray[np.float64]
Courses = Mapping[str, Sequence[ExamCourse]]
Estimate = tuple[float, float, int]  # value, standard error, number of answers


@dataclass(frozen=True)
class Exam:
    """One of the two exams: its name, the bank, the rule that ends it, and the largest number of items."""

    name: str
    bank: BankFile
    rule: str
    limit: int

    def course(self) -> ExamCourse:
        """Return an exam without answers."""
        limit = min(self.limit, len(self.bank.items))
        subjects = {item.id: item.subject for items in benchmark_items(World(1)).values() for item in items}
        exams = Exams(self.bank.to_bank(), groups=subject_groups([subjects[item] for item in self.bank.items]))
        return ExamCourse(exams, ExamRule.parse(self.rule), limit, WAVE, self.bank.to_calibration())


@dataclass(frozen=True)
class Scores:
    """Scores of a model, 0–1, by item: of probes and of interviews; and the calls of each interview."""

    probe: dict[str, float] = field(default_factory=dict)
    interview: dict[str, float] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)

    def on(self, exam: Exam) -> Floats:
        """Return the scores on the items of an exam's bank."""
        own = getattr(self, exam.name)
        return np.array([own[item] for item in exam.bank.items])


def fit_banks(records: Sequence[Mapping[str, Any]]) -> tuple[Exam, Exam]:
    """Return both exams, with banks fitted to these models; a unit of the court counts as an organisation."""
    exams = []
    for name, column, rule, limit in (
        ("probe", "right", "half_width=0.5", 40),
        ("interview", "interview", "half_width=3", 30),
    ):
        scores = np.array([[_number(value) for value in record["benchmark"][column]] for record in records])
        has_scores = ~np.isnan(scores).all(axis=0)
        items = [item for item, known in zip(records[0]["benchmark"]["items"], has_scores, strict=True) if known]
        names = [f"unit-{record['unit']}/{record['model']}" for record in records]
        bank = fit_bank_file(Matrix(scores[:, has_scores], names, items), ["lab/court/evidence.jsonl"])
        exams.append(Exam(name, bank, rule, limit))
    return exams[0], exams[1]


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def run(launch: Launch, clock: RealClock) -> None:
    """Run to the end."""
    outcome = clock.run(launch.run)
    if outcome.how != "done" or outcome.failed:
        raise SystemExit(f"{launch.folder.path}: {outcome.how}, {outcome.failed} failed: {outcome.error}")


def full_scores(experiment: Experiment) -> dict[str, Scores]:
    """Return the recorded scores of all candidates."""
    scores = {candidate.label: Scores() for candidate in experiment.candidates}
    scorer = Scorer("official")
    for scenario in ("probe", "kieval"):
        with History(RunFolder.open(experiment.run_folder(1, scenario)).journal) as history:
            for ended in history.ended():
                own, item = scores[ended.result["candidate"]], ended.item["id"]
                if scenario == "kieval":
                    interview = Interview.from_record(ended.result)
                    own.interview[item] = (scorer.score(interview) or 0.0) / 100.0
                    own.calls[item] = 1 + 3 * len(interview.rounds)  # the first answer, then three roles in each round
                elif not ended.result.get("second"):
                    own.probe[item] = float(ended.result["text"]["right"])
    return scores


def replay(exam: Exam, values: Floats, label: str, seed: int, course: ExamCourse | None = None) -> ExamCourse:
    """Return the course of the exam that a run with this seed makes."""
    course = (course or exam.course()).another()
    while course.end() is None:
        position = len(course.waves) + 1
        wave = course.draw([seeds.uniform(seed, "exam", label, position, index) for index in range(WAVE)])
        course.record(wave, values[list(wave.items)].tolist())
    return course


def estimate(course: ExamCourse) -> Estimate:
    """Return the model-based estimate of a course."""
    value, half = course.spread()
    return value, half / normal_quantile(0.975), course.answered


def judge(estimates: Mapping[str, Sequence[Estimate]]) -> dict[str, Any]:
    """Return the verdicts of `viva report` on the estimates of accuracy and score by candidate."""
    figures = [
        ModelScores(label, "lab_test", *(round(100.0 * own[part][kind], 6) for kind in (0, 1) for part in (0, 1)))
        for label, own in estimates.items()
    ]
    return judge_exams(figures, {label: min(own[2] for own in parts) for label, parts in estimates.items()})


def estimates_of(courses: Mapping[str, Sequence[ExamCourse]]) -> dict[str, list[Estimate]]:
    """Return the estimates of both exams by candidate."""
    return {label: [estimate(course) for course in own] for label, own in courses.items()}


def suspects(verdicts: Mapping[str, Any]) -> set[str]:
    """Return the suspected candidates."""
    return {record["candidate"] for record in verdicts["candidates"] if record["verdict"] == "suspected"}


def informative(bank: BankFile) -> list[int]:
    """Return the items of a bank, first those whose scores explain most of the mean over the models of the bank."""
    parameters = bank.to_bank()
    means, variances = parameters.expected_scores()
    weights, overall = parameters.ability, means.mean(axis=1)
    expected = weights @ means
    covariance = (weights * (overall - weights @ overall)) @ means
    variance = weights @ means**2 - expected**2 + weights @ variances
    return np.argsort(-(covariance**2) / variance, kind="stable").tolist()  # type: ignore[no-any-return]


class Lab:
    """The full exam, and both banks."""

    def __init__(self, folder: Path) -> None:
        self.experiment = Experiment(trained_family(), folder / "full")
        self.clock = RealClock()
        for launch in self.experiment.launches(1, self.clock):
            run(launch, self.clock)
        self.scores = full_scores(self.experiment)
        report = Study(self.experiment.run_folders([1])).report()
        self.suspected = suspects(report["verdicts"])
        means = {label: float(np.mean([*own.interview.values()])) for label, own in self.scores.items()}
        self.order = [label for label in sorted(means, key=lambda label: -means[label]) if label not in self.suspected]
        interviews = recorded_results(RunFolder.open(self.experiment.run_folder(1, "kieval"))).report()
        usage = [part["calls"] for own in interviews["candidates"].values() for part in own["usage"].values()]
        self.calls = sum(usage)
        assert self.calls == sum(sum(own.calls.values()) for own in self.scores.values())
        self.evidence = read_evidence()
        self.exams = fit_banks(self.evidence)
        self.clean = [label for label in self.scores if label not in self.suspected]

    def courses(
        self, seed: int, scores: Mapping[str, Scores], exams: Sequence[Exam] | None = None
    ) -> dict[str, list[ExamCourse]]:
        """Return the courses of both exams of these models with this seed."""
        return {
            label: [replay(exam, own.on(exam), label, seed) for exam in exams or self.exams]
            for label, own in scores.items()
        }

    def measure_banks(self) -> dict[str, float]:
        """Measure the verdicts with banks of fewer models of the court."""
        clean = [record for record in self.evidence if record["kind"] is None]
        rows, figures = [], {}
        for name, records in (("40_clean", clean), ("20_clean", clean[:20]), ("20_mixed", self.evidence[::7])):
            exams = fit_banks(records)
            same, wrong, covered = 0, 0, []
            for seed in range(SEEDS):
                courses = self.courses(seed, self.scores, exams)
                verdicts = judge(estimates_of(courses))
                order = [own["candidate"] for own in verdicts["candidates"] if own["candidate"] not in self.suspected]
                same += suspects(verdicts) == self.suspected and order == self.order
                wrong += bool(suspects(verdicts) - self.suspected)
                for label, own in courses.items():
                    for exam, course in zip(exams, own, strict=True):
                        value, half = course.spread()
                        covered.append(abs(value - self.scores[label].on(exam).mean()) <= half)
            figures[f"bank_of_{name}_verdicts_pct"] = 100 * same / SEEDS
            row = [name.replace("_", " "), f"{100 * same / SEEDS:.0f}", f"{100 * wrong / SEEDS:.0f}"]
            rows.append([*row, f"{100 * np.mean(covered):.0f}"])
        header = ["models of the bank", "verdicts %", "clean models suspected %", "covered %"]
        table.show(f"Verdicts with banks of fewer models, {SEEDS} seeds", header, rows)
        return figures

    def measure_verdicts(self, replays: Sequence[Courses]) -> dict[str, float]:
        """Compare the replays' verdicts with those of the full exam."""
        rows, same, calls, covered = [], [], [], [[], []]  # type: ignore[var-annotated]
        for seed, courses in enumerate(replays):
            verdicts = judge(estimates_of(courses))
            order = [own["candidate"] for own in verdicts["candidates"] if own["candidate"] not in self.suspected]
            same.append([suspects(verdicts) == self.suspected, order == self.order])
            counts = [sum(own[part].length for own in courses.values()) for part in (0, 1)]
            interview_calls = sum(
                self.scores[label].calls[self.exams[1].bank.items[item]]
                for label, (_, own) in courses.items()
                for wave in own.waves
                for item in wave.items
            )
            calls.append((counts[0] + interview_calls) / self.calls)
            for part, exam in enumerate(self.exams):
                for label, own in courses.items():
                    value, half = own[part].spread()
                    covered[part].append(abs(value - self.scores[label].on(exam).mean()) <= half)
            distances = [own["distance"] for own in verdicts["candidates"] if own["candidate"] in self.suspected]
            worst = max(own["p"] for own in verdicts["candidates"] if own["candidate"] in self.suspected)
            yes = ["yes" if own else "no" for own in same[-1]]
            row = [str(seed), *yes, str(counts[0]), str(counts[1]), f"{calls[-1]:.3f}", f"{max(distances):+.1f}"]
            rows.append([*row, f"{worst:.4f}"])
        header = ["seed", "suspects", "order", "probes", "interviews", "calls", "nearest suspect", "its p"]
        title = f"Replays of adaptive exams; full exam: suspected {', '.join(sorted(self.suspected))}"
        table.show(f"{title}; order {', '.join(self.order)}", header, rows)
        return {
            "verdicts_pct": 100 * float(np.mean([all(own) for own in same])),
            "suspects_pct": 100 * float(np.mean([own[0] for own in same])),
            "order_pct": 100 * float(np.mean([own[1] for own in same])),
            "calls_share": max(calls),
            "probes_per_model": float(np.mean([own[0].length for courses in replays for own in courses.values()])),
            "interviews_per_model": float(np.mean([own[1].length for courses in replays for own in courses.values()])),
            "covered_accuracy_pct": 100 * float(np.mean(covered[0])),
            "covered_score_pct": 100 * float(np.mean(covered[1])),
        }

    def measure_real(self, folder: Path, replays: Sequence[Courses], number: int) -> float:
        """Run exams with the seeds 0, 1, …; return the percentage that equals the replays."""
        dataset = str(self.experiment.folder / "benchmark" / "lab_test.jsonl")
        oracle = "oracle:examiner?world=1&seed=1"  # the questions of the full exam
        equal = []
        for seed in range(number):
            common: dict[str, Any] = {
                "dataset": dataset,
                "candidate": [own.model for own in self.experiment.candidates],
            }
            folders = []
            for exam in self.exams:
                bank = folder / f"{exam.name}.json"
                write_bank_file(bank, exam.bank)
                own = common | {"adaptive": str(bank), "until": exam.rule, "n": exam.limit, "seed": seed, "wave": WAVE}
                folders.append(folder / f"{exam.name}-{seed}")
                if exam.name == "probe":
                    settings: Any = ProbeSettings(**own, method=["text"], shots=0, pack=PROBE_PACK)
                else:
                    examiner: dict[str, Any] = {"interactor": oracle, "evaluator": oracle, "candidate_tokens": 64}
                    settings = KievalSettings(**own, **examiner, first_answer="text", pack=INTERVIEW_PACK)
                run(new_run("probe" if exam.name == "probe" else "kieval", settings, folders[-1]), self.clock)
            study = ExamStudy(folders).report()
            equal.append(
                study["verdicts"] == judge(estimates_of(replays[seed]))
                and self._are_equal(folders, study, replays[seed])
            )
        return 100 * float(np.mean(equal))

    def _are_equal(self, folders: Sequence[Path], study: Mapping[str, Any], courses: Courses) -> bool:
        for part, (exam, name) in enumerate(zip(self.exams, ("accuracy", "score"), strict=True)):
            positions = {item: index for index, item in enumerate(exam.bank.items)}
            with History(folders[part] / "journal.sqlite") as history:
                steps = read_steps(history, positions, list(courses))
            for label, own in courses.items():
                means = own[part].model_based()
                value = study["candidates"][label][name]["model_based"]["value"]
                if steps[label].waves != own[part].waves or abs(value - 100.0 * float(means.values[0])) > 1e-5:
                    return False
        return True

    def measure_by_heart(self, replays: Sequence[Courses]) -> dict[str, float]:
        """Measure how often a model that knows the most informative items by heart is suspected."""
        probe = self.exams[0]
        best = [probe.bank.items[item] for item in informative(probe.bank)]
        rows, figures = [], {}
        for base in BASES:
            own = self.scores[base]
            for count in BY_HEART:
                cheater = Scores({**own.probe, **dict.fromkeys(best[:count], 1.0)}, own.interview, own.calls)
                accuracy = float(cheater.on(probe).mean())
                hits, full_hits, estimates, others = [], [], [], 0
                for seed, courses in enumerate(replays):
                    clean = {label: own for label, own in estimates_of(courses).items() if label in self.clean}
                    tested = estimates_of(self.courses(seed, {"by-heart": cheater}))["by-heart"]
                    suspected = suspects(judge(clean | {"by-heart": tested}))
                    hits.append("by-heart" in suspected)
                    others += len(suspected - {"by-heart"})
                    estimates.append(tested[0][0])
                    known = {label: [self._of_all_items(self.scores[label]), own[1]] for label, own in clean.items()}
                    known["by-heart"] = [self._of_all_items(cheater), tested[1]]
                    full_hits.append("by-heart" in suspects(judge(known)))
                shares = [100 * float(np.mean(kind)) for kind in (hits, full_hits)]
                figures[f"{base.replace('-', '_')}_by_heart_{count}_pct"] = shares[0]
                figures[f"{base.replace('-', '_')}_by_heart_{count}_all_probed_pct"] = shares[1]
                row = [base, str(count), f"{100 * own.on(probe).mean():.1f} → {100 * accuracy:.1f}"]
                rows.append(
                    [*row, f"{100 * np.mean(estimates):.1f}", *(f"{share:.0f}" for share in shares), str(others)]
                )
        header = ["model", "by heart", "accuracy", "estimate", "suspected %", "all items probed %", "others suspected"]
        table.show(f"Answers to the most informative items by heart, {len(replays)} seeds", header, rows)
        return figures

    def _of_all_items(self, scores: Scores) -> Estimate:
        """Return the accuracy of an exam that has probed all items: it has no error."""
        values = scores.on(self.exams[0])
        return float(values.mean()), 0.0, len(values)

    def _replayed(
        self, exams: Sequence[Exam], first: Sequence[ExamCourse], scores_on: Callable[[Exam], Floats], label: str
    ) -> list[Estimate]:
        return [estimate(replay(exam, scores_on(exam), label, 0, own)) for exam, own in zip(exams, first, strict=True)]

    def measure_outsiders(self, step: int) -> dict[str, float]:
        """Measure how often models of the court are suspected by banks without their unit."""
        groups: dict[tuple[str, str], list[bool]] = {}
        for side in (0, 1):  # each with five units of every fraction of the facts
            exams = fit_banks([record for record in self.evidence if record["unit"] // 4 % 2 != side])
            first = [exam.course() for exam in exams]
            clean = {label: self._replayed(exams, first, self.scores[label].on, label) for label in self.clean}
            tested = [record for record in self.evidence if record["unit"] // 4 % 2 == side]
            for record in tested[::step]:
                columns = [record["benchmark"][name] for name in ("right", "interview")]
                known = [dict(zip(record["benchmark"]["items"], map(_number, own), strict=True)) for own in columns]
                own = self._replayed(exams, first, Scores(*known).on, record["model"])
                verdicts = judge(clean | {"outsider": own})
                kind = "clean" if record["kind"] is None else f"{record['dose']:.0%} of items"
                groups.setdefault((kind, f"{record['share']:.0%}"), []).append("outsider" in suspects(verdicts))
        rows = [[*name, f"{sum(own)}/{len(own)}"] for name, own in sorted(groups.items())]
        table.show("Models of the court, beside the four clean models", ["seen", "facts taught", "suspected"], rows)
        figures = {}
        for name, kinds in (("clean", ("clean",)), ("cheaters", ("50% of items", "100% of items"))):
            hits = [hit for (kind, share), own in groups.items() if kind in kinds for hit in own]
            figures[f"outsiders_{name}_suspected_pct"] = 100 * float(np.mean(hits))
        return figures


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="adaptive exams of the lab's six models")
    parser.add_argument("--quick", action="store_true", help="3 seeds by heart, every eighth outsider, one real exam")
    options = parser.parse_args()
    began = time.perf_counter()
    with TemporaryDirectory() as name:
        lab = Lab(Path(name))
        replays = [lab.courses(seed, lab.scores) for seed in range(SEEDS)]
        figures = lab.measure_verdicts(replays)
        figures["real_equal_pct"] = lab.measure_real(Path(name), replays, 1 if options.quick else 2)
        figures |= lab.measure_banks()
        figures |= lab.measure_by_heart(replays[:3] if options.quick else replays)
        figures |= lab.measure_outsiders(8 if options.quick else 1)
    table.conclude("adaptive_lab", {name: round(value, 4) for name, value in figures.items()}, REACH)
    print(f"took {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
