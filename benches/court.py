"""False alarms and power of the witnesses of contamination, alone and together (``viva.scoring.evidence``).

``null``    ConStat on simulated clean models: the share of p-values up to 1, 5, 10 and 50%, which should be no larger.
            In the last world clean models do not lie on a curve, which ConStat assumes: that row has no reach.
``court``   verdicts on simulated models with four correlated, heavy-tailed witnesses, compared with as few clean models
            as the level allows: how often a clean one is accused, and one of each kind found, also if its kind was
            unknown to the fit; and the false accusations among all in sweeps of six models, two of them contaminated.
``tables``  the published tables of ConStat, such as ARC and HellaSwag (in ``$VIVA_DATA/constat``; skipped if fewer than
            two benchmarks are there). Truth: the models that its authors trained on the benchmark are contaminated (35
            cells), its 20 reference models are clean (40 cells); all others are left out. Everything is fitted on all
            benchmarks but one and judged on that one. Clean models for the p-values: the other reference models on the
            benchmark in question. The smallest p-value that they allow is 5%, so the highest of them is always accused:
            2 of 40. In the last two columns they are those of the benchmarks of the fit instead, without the model in
            question.

``--quick`` simulates 100 cases instead of 2,000.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import table
from scipy.stats import binomtest

from viva.scoring.contamination import auc
from viva.scoring.evidence.combination import Combination, KnownModels, Statistics, count_clean_models, judge
from viva.scoring.evidence.constat import Results, measure_gap
from viva.scoring.evidence.evidence import compare_models

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("VIVA_DATA") or ROOT / ".." / "shared" / "data").resolve() / "constat"
LEVEL = 0.05
LEVELS = (0.01, 0.05, 0.1, 0.5)
RESAMPLES = 200  # of a simulated case
# 5% plus two standard errors of a share of 2,000 cases.
REACH: table.Reach = {
    **{f"null_{name}_alarms_pct": ("<=", 6) for name in ("20_references", "8_references", "100_items")},
    "court_alarms_pct": ("<=", 6),
    "court_false_accusations_of_sweeps_pct": ("<=", 6),
    "tables_court_found_pct": (">=", 95),
    "tables_court_alarms_pct": ("<=", 5),
}


@dataclass(frozen=True)
class World:
    """Clean models for ConStat: numbers of references and of items of each set, and how far models are off a curve."""

    references: int
    items: int
    spread: float = 0.0


WORLDS = {
    "20_references": World(20, 300),
    "8_references": World(8, 300),
    "100_items": World(20, 100),
    "off_the_curve": World(20, 300, 0.3),
}


def clean_p(world: World, seed: int) -> float:
    """Return ConStat's p-value for one simulated clean model."""
    draw = np.random.default_rng([seed, world.references, world.items])
    ability = draw.normal(0.0, 1.0, world.references + 1)
    sets = []
    for shift, spread in ((0.0, 0.0), (-0.3, world.spread)):
        skills = ability + draw.normal(0.0, spread, len(ability))
        right = 0.25 + 0.75 / (1 + np.exp(draw.normal(shift, 1.0, world.items) - skills[:, None]))
        scores = (draw.random(right.shape) < right).astype(float)
        sets.append(Results.from_scores("simulated", scores[-1], scores[:-1], 0.25))
    return measure_gap(sets[0], sets[1], resamples=RESAMPLES, seed=seed).p()


def show_null(pool: ProcessPoolExecutor, cases: int) -> dict[str, float]:
    """Print and return the shares of p-values of clean models up to each level."""
    rows, figures = [], {}
    for name, world in WORLDS.items():
        ps = np.array(list(pool.map(partial(clean_p, world), range(cases), chunksize=10)))
        rows.append([name.replace("_", " "), *(f"{100 * (ps <= level).mean():.1f}" for level in LEVELS)])
        figures[f"null_{name}_alarms_pct"] = 100 * float((ps <= LEVEL).mean())
    title = f"ConStat, percent of {cases:,} clean models with a p-value up to"
    table.show(title, ["world", *(f"{level:.0%}" for level in LEVELS)], rows)
    return figures


WITNESSES = ("order", "guess", "gap", "loss")
SHIFTS = {"text": (6, 0, 2, 6), "answers": (0, 5, 5, 2), "rephrased": (0, -4, 6, 0), "weak": (1, 1, 1, 1)}


def simulate_models(draw: np.random.Generator, count: int, kind: str = "") -> list[Statistics]:
    """Draw models, clean without a kind; witnesses differ in scale and have a common part."""
    values = draw.standard_t(4, (count, 4)) + draw.normal(size=(count, 1)) + SHIFTS.get(kind, (0, 0, 0, 0))
    return [dict(zip(WITNESSES, row, strict=True)) for row in (values * (1.0, 4.0, 0.1, 2.0)).tolist()]


def simulate_verdicts(seed: int) -> dict[str, float]:
    """Return what one simulated court says: 1 for a model found contaminated."""
    draw = np.random.default_rng([50, seed])
    kinds = {kind: simulate_models(draw, 8, kind) for kind in SHIFTS}
    known = KnownModels(simulate_models(draw, 20), kinds)
    clean = simulate_models(draw, count_clean_models(LEVEL))

    def accuse(model: Statistics, known: KnownModels) -> float:
        return float(judge({"model": model}, clean, known, LEVEL)["model"].conclusion == "contaminated")

    findings = {"clean": accuse(simulate_models(draw, 1)[0], known)}
    for kind in SHIFTS:
        model = simulate_models(draw, 1, kind)[0]
        findings |= {f"{kind} known": accuse(model, known), f"{kind} unknown": accuse(model, known.without(kind))}
    honest, cheats = simulate_models(draw, 4), [simulate_models(draw, 1, kind)[0] for kind in ("text", "answers")]
    more = [*clean, *simulate_models(draw, count_clean_models(LEVEL, 6) - len(clean))]
    verdicts = judge({str(number): model for number, model in enumerate([*cheats, *honest])}, more, known, LEVEL)
    accused = [int(name) for name, verdict in verdicts.items() if verdict.conclusion == "contaminated"]
    findings["sweep false"] = sum(number >= len(cheats) for number in accused) / max(1, len(accused))
    findings["sweep found"] = sum(number < len(cheats) for number in accused) / len(cheats)
    return findings


def show_court(pool: ProcessPoolExecutor, cases: int) -> dict[str, float]:
    """Print and return how often simulated models are found contaminated."""
    findings = list(pool.map(simulate_verdicts, range(cases), chunksize=10))
    shares = {name: 100 * float(np.mean([finding[name] for finding in findings])) for name in findings[0]}
    rows = [["clean", f"{shares['clean']:.1f}", ""]]
    rows += [[kind, f"{shares[f'{kind} known']:.1f}", f"{shares[f'{kind} unknown']:.1f}"] for kind in SHIFTS]
    title = f"Court, percent of {cases:,} simulated models found contaminated, {count_clean_models(LEVEL)} clean ones"
    table.show(title, ["kind", "found", "kind unknown to the fit"], rows)
    figures = {f"court_{kind}_unknown_found_pct": shares[f"{kind} unknown"] for kind in SHIFTS}
    return {
        "court_alarms_pct": shares["clean"],
        "court_false_accusations_of_sweeps_pct": shares["sweep false"],
        "court_found_in_sweeps_pct": shares["sweep found"],
        **{f"court_{kind}_found_pct": shares[f"{kind} known"] for kind in SHIFTS},
        **figures,
    }


TABLES = ("rephrase", "synthetic", "reference")
TRAINED = "contamination-models-"  # in the names of models that the authors trained on the benchmark
Published: TypeAlias = dict[str, Statistics]  # by model: delta over its standard error by table, and p-values
Score: TypeAlias = Callable[[Statistics], float]


@dataclass(frozen=True)
class Benchmark:
    """Published cells of a benchmark: clean models, and contaminated ones by kind; each with its name."""

    clean: Published
    contaminated: Mapping[str, Published]
    ps: Mapping[str, Mapping[str, float]]  # by model and table

    @property
    def known(self) -> KnownModels:
        """Return the models as those of known truth."""
        kinds = {kind: list(models.values()) for kind, models in self.contaminated.items()}
        return KnownModels(list(self.clean.values()), kinds)


def read_benchmark(name: str) -> Benchmark:
    """Read the three published tables of a benchmark."""
    statistics: dict[str, dict[str, float]] = {}
    ps: dict[str, dict[str, float]] = {}
    ineffective = set()
    for witness in TABLES:
        with (DATA / f"{name}_{witness}.csv").open() as lines:
            for row in csv.DictReader(lines):
                model = row["model"]
                statistics.setdefault(model, {})[witness] = float(row["delta"]) / float(row["delta_std"])
                ps.setdefault(model, {})[witness] = float(row["p_value"])
                # The authors count a trained model as contaminated if training raised its score above 30%.
                if TRAINED in model and not float(row["score_model"]) > max(0.3, float(row["no_cont"])):
                    ineffective.add(model)
    contaminated: dict[str, Published] = {"exact": {}, "rephrased": {}}
    for model, values in statistics.items():
        if TRAINED in model and model not in ineffective and len(values) == len(TABLES):
            contaminated["rephrased" if "rephrase" in model else "exact"][model] = values
    clean = {model: values for model, values in [*statistics.items()][:20] if len(values) == len(TABLES)}
    return Benchmark(clean, contaminated, ps)


def read_benchmarks() -> list[Benchmark]:
    """Read all benchmarks whose three tables are there."""
    names = {path.stem.rpartition("_")[0] for path in DATA.glob("*.csv")}
    complete = [name for name in names if all((DATA / f"{name}_{witness}.csv").exists() for witness in TABLES)]
    return [read_benchmark(name) for name in sorted(complete)]


def join(benchmarks: Sequence[Benchmark]) -> Benchmark:
    """Return the cells of several benchmarks as those of one; a model's name gets the benchmark's number."""

    def numbered(tables: Sequence[Published]) -> Published:
        return {f"{model} {number}": values for number, table in enumerate(tables) for model, values in table.items()}

    kinds = {kind: numbered([own.contaminated[kind] for own in benchmarks]) for kind in benchmarks[0].contaminated}
    return Benchmark(numbered([own.clean for own in benchmarks]), kinds, {})


def fit_mean(known: KnownModels) -> Score:
    """Fit plain pooling: the mean of witnesses, each standardised by clean models."""
    values = np.array([[model[witness] for witness in TABLES] for model in known.clean])
    centres, scales = values.mean(axis=0), values.std(axis=0, ddof=1)
    return lambda model: float(np.mean(([model[witness] for witness in TABLES] - centres) / scales))


def fit_court(known: KnownModels) -> Score:
    """Fit the score of the court."""
    combination = Combination.fit(known, TABLES)
    return lambda model: combination.score(model)[0]


def fit_largest(known: KnownModels) -> Score:
    """Fit the largest of the standardised witnesses, without kinds."""
    return fit_court(KnownModels(known.clean, {}))


RULES: dict[str, Callable[[KnownModels], Score]] = {
    **{f"{name} alone": lambda _, name=name: lambda model: model[name] for name in TABLES},
    "mean of witnesses": fit_mean,
    "largest witness": fit_largest,
    "court": fit_court,
    "court, kind unknown": fit_court,
}


@dataclass
class Count:
    """Cells that a rule accuses: of contaminated models, and of clean ones; and the scores of both."""

    hits: list[bool]
    alarms: list[bool]
    scores: list[float]


def judge_cells(rule: str, fitted: Benchmark, own: Benchmark, *, elsewhere: bool) -> Count:
    """Judge the cells of `own`, compared with its own clean models or with those `elsewhere`: of `fitted`."""
    count = Count([], [], [])
    base = (fitted if elsewhere else own).clean

    def accuse(score: Score, name: str, model: Statistics) -> bool:
        # The fit's clean models have names with numbers.
        others = [
            score(values) for other, values in base.items() if other != name and other[: other.rfind(" ")] != name
        ]
        return compare_models(rule, score(model), others).p <= LEVEL

    for kind, models in own.contaminated.items():
        score = RULES[rule](fitted.known.without(kind) if "unknown" in rule else fitted.known)
        count.hits += [accuse(score, name, model) for name, model in models.items()]
        count.scores += [score(model) for model in models.values()]
    score = RULES[rule](fitted.known)
    count.alarms += [accuse(score, name, model) for name, model in own.clean.items()]
    count.scores += [score(model) for model in own.clean.values()]
    return count


def share(hits: Sequence[bool]) -> list[str]:
    """Return a count and the exact 95% interval of its share."""
    ends = binomtest(sum(hits), len(hits)).proportion_ci(0.95)
    return [f"{sum(hits)}/{len(hits)}", f"{ends.low:.2f}–{ends.high:.2f}"]


def show_tables() -> dict[str, float]:
    """Print and return what each rule finds in the published tables, with a benchmark held out."""
    benchmarks = read_benchmarks()
    if len(benchmarks) < 2:
        print(f"{DATA}: no tables of two benchmarks (set VIVA_DATA to the folder with the benchmark data)")
        return {}
    rows = []
    for name in TABLES:
        hits = [
            own.ps[model][name] < LEVEL for own in benchmarks for kind in own.contaminated.values() for model in kind
        ]
        alarms = [own.ps[model][name] < LEVEL for own in benchmarks for model in own.clean]
        rows.append([f"{name}, published p", *share(hits), *share(alarms), "", "", ""])
    figures: dict[str, float] = {}
    for rule in RULES:
        pairs = [(join([other for other in benchmarks if other is not own]), own) for own in benchmarks]
        near = [judge_cells(rule, fitted, own, elsewhere=False) for fitted, own in pairs]
        far = [judge_cells(rule, fitted, own, elsewhere=True) for fitted, own in pairs]
        hits, alarms, abroad, abroad_alarms = (
            [accused for count in counts for accused in getattr(count, part)]
            for counts in (near, far)
            for part in ("hits", "alarms")
        )
        # Scores of two fits do not compare: the mean of the areas of the benchmarks.
        area = np.mean(
            [auc(count.scores, [True] * len(count.hits) + [False] * len(count.alarms)).value for count in near]
        )
        row = [rule, *share(hits), *share(alarms), f"{area:.3f}", share(abroad)[0], share(abroad_alarms)[0]]
        rows.append(row)
        key = rule.replace(",", "").replace(" ", "_")
        figures[f"tables_{key}_found_pct"] = 100 * float(np.mean(hits))
        figures[f"tables_{key}_alarms_pct"] = 100 * float(np.mean(alarms))
        figures[f"tables_{key}_auc"] = float(area)
        figures[f"tables_{key}_found_elsewhere_pct"] = 100 * float(np.mean(abroad))
        figures[f"tables_{key}_alarms_elsewhere_pct"] = 100 * float(np.mean(abroad_alarms))
    header = ["rule", "found", "95%", "alarms", "95%", "AUC", "found*", "alarms*"]
    table.show("Published tables of ConStat; * compared with clean models of the other benchmarks", header, rows)
    return figures


def main() -> None:
    """Simulate, judge, print, write."""
    parser = argparse.ArgumentParser(description="false alarms and power of the witnesses of contamination")
    parser.add_argument("--quick", action="store_true", help="100 simulated cases instead of 2,000")
    options = parser.parse_args()
    began = time.perf_counter()
    cases = 100 if options.quick else 2_000
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    figures: dict[str, float] = {"simulated_cases": cases}
    with ProcessPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        figures |= show_null(pool, cases) | show_court(pool, cases)
    figures |= show_tables()
    order = sorted(figures, key=lambda name: (name not in REACH, name))
    table.conclude("court", {name: round(figures[name], 3) for name in order}, REACH)
    print(f"took {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
