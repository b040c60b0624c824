"""How often judges are flagged under load: sound ones, which should be at the stated rate, and changed ones.

A simulated judge grades the same requests in two unloaded passes and at one, four or eight loads. It is sound if its
answers come from one distribution in all passes and loads, whatever its noise; each kind of sound judge is made 1,000
times, and 5% of them should be flagged at any load. Kinds differ in noise, in unreadable answers, in how many requests
were answered at which load, and in whether requests share items. Changed judges lose a third of their answers, give
nearly the same score to everything, answer as another model does, or are a little harsher, at the highest load alone:
measured are how often that load is flagged, and how often a lower one, at which nothing has changed.

``--quick`` makes 60 judges of each kind.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
import table
from numpy.typing import NDArray
from scipy.stats import binom, binomtest

from viva.scoring.load_drift import judge_rates
from viva.scoring.load_verdicts import JudgedRequest, Verdict, VerdictPass

Floats = NDArray[np.float64]
Draw = np.random.Generator
ALPHA, DRAWS = 0.05, 499
SCALES = {"score": (1.0, 10.0)}


@dataclass(frozen=True)
class Kind:
    """A kind of judge. ``per_item``: requests that share an item; ``nested``: lower loads answered fewer requests."""

    name: str
    rates: int
    requests: int = 40
    noise: float = 1.0
    unreadable: float = 0.05
    per_item: int = 1
    nested: bool = False
    change: str = ""


SOUND = (
    Kind("one load", 1),
    Kind("four loads", 4),
    Kind("eight loads", 8),
    Kind("little noise", 4, noise=0.2),
    Kind("much noise, many unreadable", 4, noise=2.0, unreadable=0.25),
    Kind("few requests", 4, requests=15),
    Kind("many requests", 4, requests=200),
    Kind("three requests an item", 4, requests=60, per_item=3),
    Kind("fewer answers at lower loads", 4, requests=60, nested=True),
)
CHANGED = tuple(
    Kind(change, 4, requests=60, change=change) for change in ("truncates", "flattens", "smaller", "harsher")
)


def judged(kind: Kind, seed: int) -> list[bool]:
    """At which loads one judge of a kind is flagged."""
    generator = np.random.default_rng([seed, *kind.name.encode()])
    truth = generator.uniform(2, 9, kind.requests)
    passes = [_simulated_pass(kind, truth, generator, "") for _ in range(kind.rates + 2)]
    if kind.change:
        passes[kind.rates - 1] = _simulated_pass(kind, truth, generator, kind.change)
    rates = [
        {id_: verdict for at, (id_, verdict) in enumerate(rating.items())
         if not kind.nested or at < kind.requests * (index + 1) / kind.rates}
        for index, rating in enumerate(passes[: kind.rates])
    ]  # fmt: skip
    requests = {f"r{at}": JudgedRequest(item=f"i{at // kind.per_item}") for at in range(kind.requests)}
    statistics = judge_rates(rates, passes[-2], passes[-1], requests, SCALES, alpha=ALPHA, draws=DRAWS, seed=seed)
    return [rating.flagged(ALPHA) for rating in statistics]


def _simulated_pass(kind: Kind, truth: Floats, generator: Draw, change: str) -> VerdictPass:
    changes: dict[str, Callable[[Floats], Floats]] = {
        "flattens": lambda values: np.full(len(values), 5.5),
        "smaller": lambda values: generator.permutation(values),
        "harsher": lambda values: values - 1.0,
    }
    mean = changes[change](truth) if change in changes else truth
    scores = np.clip(np.round(mean + generator.normal(0.0, kind.noise, len(truth))), 1, 10)
    lost = generator.uniform(size=len(truth)) < (0.33 if change == "truncates" else kind.unreadable)
    return {
        f"r{at}": Verdict(failure="truncated") if is_lost else Verdict({"score": float(score)})
        for at, (score, is_lost) in enumerate(zip(scores, lost, strict=True))
    }


def counts(task: tuple[Kind, int]) -> tuple[int, int]:
    """Of so many judges of a kind: how many are flagged at any load (of changed judges: at any load but the highest),
    and how many at the highest.
    """
    kind, judges = task
    results = [judged(kind, seed) for seed in range(judges)]
    unchanged = [passes_flagged[:-1] if kind.change else passes_flagged for passes_flagged in results]
    return sum(map(any, unchanged)), sum(passes_flagged[-1] for passes_flagged in results)


def reach(sound: int, changed: int) -> table.Reach:
    """Bounds that 99 of 100 benches of so many judges keep, if each judge is flagged at the stated rate."""
    low, high = (100 * float(end) / sound for end in binom.ppf([0.005, 0.995], sound, ALPHA))
    return {
        "sound_flagged_least_pct": (">=", round(low, 2)),  # of all sound judges together
        "sound_flagged_pct": ("<=", round(high, 2)),
        "changed_found_least_pct": (">=", 90),
        "unchanged_beside_pct": ("<=", round(100 * float(binom.ppf(0.995, changed, ALPHA)) / changed, 2)),
    }


def main() -> None:
    """Simulate, and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="60 judges of each kind")
    judges = 60 if parser.parse_args().quick else 1_000
    began = time.perf_counter()
    with ProcessPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        results = list(pool.map(counts, [(kind, judges) for kind in (*SOUND, *CHANGED)]))
    sound, changed = results[: len(SOUND)], results[len(SOUND) :]
    rows = []
    for kind, (flagged, _) in zip(SOUND, sound, strict=True):
        ends = binomtest(flagged, judges).proportion_ci(0.95, "exact")
        rows.append([kind.name, str(kind.rates), str(kind.requests), f"{100 * flagged / judges:.1f}",
                     f"{100 * ends.low:.1f} to {100 * ends.high:.1f}"])  # fmt: skip
    header = ["sound judges", "loads", "requests", "flagged, %", "95%"]
    table.show(f"{judges:,} judges of each kind, flagged at any load; stated is {100 * ALPHA:g}%", header, rows)
    rows = [[kind.name, f"{100 * highest / judges:.1f}", f"{100 * beside / judges:.1f}"]
            for kind, (beside, highest) in zip(CHANGED, changed, strict=True)]  # fmt: skip
    table.show("Judges that change at the highest of four loads", ["change", "found, %", "flagged beside, %"], rows)
    pooled = 100 * sum(flagged for flagged, _ in sound) / (judges * len(SOUND))
    figures = {
        "sound_flagged_pct": pooled,
        "sound_flagged_least_pct": pooled,
        "changed_found_least_pct": 100 * min(highest for _, highest in changed) / judges,
        "unchanged_beside_pct": 100 * sum(beside for beside, _ in changed) / (judges * len(CHANGED)),
        "judges": float(judges * len(SOUND)),
    }
    figures |= {f"sound_{kind.name.replace(' ', '_').replace(',', '')}_pct": 100 * flagged / judges
                for kind, (flagged, _) in zip(SOUND, sound, strict=True)}  # fmt: skip
    table.conclude("judgement", figures, reach(judges * len(SOUND), judges * len(CHANGED)))
    print(f"took {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
