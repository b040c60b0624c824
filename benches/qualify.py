"""Rates at which qualifications tell simulated evaluators of known quality apart, and reject sound ones.

Whole qualifications over hundreds of seeds: the real protocol, exchanges, readers and rules, without a journal
(``tests/models/direct_qualification``). ``--quick`` takes fewer seeds, under a minute.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "models"))

import table
from direct_qualification import qualified
from scipy.stats import binomtest

from viva.scenarios.fitness import FitnessVerdict
from viva.scenarios.kieval.qualification.fitness import WORDS
from viva.scenarios.kieval.qualification.qualification_report import fitness

# Stated: a sound judge is called not usable in 2% of the cases at most, a useless one never usable but in 2%.
REACH: table.Reach = {
    "false_not_usable": ("<=", 0.02),
    "useless_called_usable": ("<=", 0.02),
    "useless_not_usable": (">=", 0.95),
    "bias_named": (">=", 0.9),
}


@dataclass(frozen=True)
class Judge:
    """A simulated evaluator; ``kind`` is sound, useless, or the bias that a verdict has to name."""

    name: str
    kind: str
    noise: float = 0.2
    traits: dict[str, float] = field(default_factory=dict)


JUDGES = (
    Judge("sound", "sound", traits={"random": 0.15}),
    Judge("sound, noisy", "sound", traits={"random": 0.35}),
    Judge("constant", "useless", 0.0, {"constant": 1.0}),
    Judge("constant, noisy", "useless", 0.1, {"constant": 1.0}),
    Judge("random", "useless", traits={"random": 1.0}),
    Judge("copies", "useless", traits={"copy": 1.0}),
    Judge("position, 0.6", "earlier replies higher", 0.1, {"position": 0.6}),
    Judge("position, -0.6", "later replies higher", 0.1, {"position": -0.6}),
    Judge("length, 0.6", "longer replies higher", 0.1, {"length": 0.6}),
    Judge("length, -0.6", "shorter replies higher", 0.1, {"length": -0.6}),
)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="verdicts on simulated evaluators of known quality")
    parser.add_argument("--quick", action="store_true", help="fewer seeds, under a minute")
    parser.add_argument("--seeds", type=int, default=None, help="qualifications of each judge")
    arguments = parser.parse_args()
    count = arguments.seeds or (25 if arguments.quick else 500)
    began = time.perf_counter()
    rows, figures = [], dict[str, float]()
    for brief in (False, True):
        for judge in JUDGES:
            if brief and judge.kind not in ("sound", "useless"):
                continue  # 12 exchanges are too few for biases
            verdicts: Counter[FitnessVerdict] = Counter()
            named = 0
            for seed in range(count):
                turns = qualified("evaluator", seed, brief=brief, noise=judge.noise, traits=judge.traits)
                outcome = fitness("evaluator", turns.figures("evaluator"))
                verdicts[outcome.verdict] += 1
                named += judge.kind in outcome.sentence
            shares = {verdict: verdicts[verdict] / count for verdict in WORDS}
            ends = binomtest(verdicts["not_usable"], count).proportion_ci(method="wilson")
            interval = f"{100 * ends.low:.1f}% to {100 * ends.high:.1f}%"
            columns = [f"{100 * share:.1f}%" for share in shares.values()]
            bias = f"{100 * named / count:.1f}%" if "replies" in judge.kind else ""
            rows.append(["12" if brief else "40", judge.name, *columns, interval, bias])
            prefix = "brief_" if brief else ""
            for name, value in _figures(judge.kind, shares, named / count).items():
                worst = min if REACH[name][0] == ">=" else max
                figures[prefix + name] = worst(figures.get(prefix + name, value), value)
    header = ["exchanges", "judge", *WORDS.values(), "not usable: 95% interval", "bias named"]
    table.show(f"{count} qualifications of each judge", header, rows)
    table.conclude("qualify", figures | {"qualifications": float(count)}, REACH)
    print(f"took {time.perf_counter() - began:.0f} s")


def _figures(kind: str, shares: dict[FitnessVerdict, float], named: float) -> dict[str, float]:
    """The judge's part of the stated figures."""
    if kind == "sound":
        return {"false_not_usable": shares["not_usable"]}
    if kind == "useless":
        return {"useless_called_usable": shares["usable"], "useless_not_usable": shares["not_usable"]}
    return {"bias_named": named}


if __name__ == "__main__":
    main()
