"""How reliably audits find biases planted in simulated judges, and how often they find one where there is none.

Whole audits over hundreds of seeds, each with cases of its own: the real protocol, readers and statistics, without a
journal (``tests/models/direct_audits``). The stated power is that of 40 cases; Holm's correction is over all tests of
an audit, so the stated rate is that of any false finding at all. ``--quick`` takes fewer seeds, under a minute.

What never belongs here: real judges.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "models"))

from direct_audits import audited, drawn_cases
from scipy.stats import binomtest

CASES = 40
POWER, RATE = 0.8, 0.05  # stated: at least, at most


@dataclass(frozen=True)
class Planted:
    """A judge: what is planted, and the audit that has to find it (empty: none may find anything, but ``true``)."""

    name: str
    audit: str
    noise: float
    traits: dict[str, float]
    true: str = ""


JUDGES = (
    Planted("fair", "", 0.1, {}),
    Planted("fair, noisy", "", 0.4, {}, true="retest"),  # noise of grades is a spread of grades
    Planted("first answer wins, 0.4", "position", 0.1, {"position": 0.4}),
    Planted("last answer wins, 0.4", "position", 0.1, {"position": -0.4}),
    Planted("longer one wins, 0.4", "verbosity", 0.1, {"length": 0.4}),
    Planted("Markdown wins, 0.4", "format", 0.1, {"format": 0.4}),
    Planted("own family wins, 0.4", "self", 0.1, {"family": 0.4}),
    Planted("other scales higher, 0.1", "labels", 0.1, {"labels": 0.1}),
    Planted("grades at random, 0.4", "retest", 0.1, {"unsteady": 0.4}),
)


def main() -> None:
    """Measure and print; exit code 1 where a stated figure is refuted."""
    parser = argparse.ArgumentParser(description="power and false findings of audits")
    parser.add_argument("--quick", action="store_true", help="fewer seeds, under a minute")
    parser.add_argument("--seeds", type=int, default=None, help="audits of each judge")
    given = parser.parse_args()
    count = given.seeds or (80 if given.quick else 500)
    began, refuted = time.perf_counter(), False
    print(f"{count} audits of {CASES} cases for each judge\n")
    print(f"{'judge':<26} {'audit':<10} {'found':>7} {'95%':>16}   {'others found':>12}")
    for judge in JUDGES:
        hits = others = 0
        for seed in range(count):
            found = audited(drawn_cases(CASES, seed), seed, noise=judge.noise, traits=judge.traits)
            hits += any(one["found"] for one in found if one["audit"] == judge.audit)
            others += any(one["found"] for one in found if one["audit"] not in (judge.audit, judge.true))
        part = others if not judge.audit else hits
        ends = binomtest(part, count).proportion_ci(method="wilson")
        refuted |= ends.high < POWER if judge.audit else ends.low > RATE
        shown = f"{100 * part / count:6.1f}% {100 * ends.low:6.1f} to {100 * ends.high:5.1f}"
        beside = f"{100 * others / count:11.1f}%" if judge.audit else ""
        print(f"{judge.name:<26} {judge.audit or 'any':<10} {shown}   {beside}")
    print(f"\nstated: power {POWER:.0%} at least, any false finding {RATE:.0%} at most: "
          + ("REFUTED" if refuted else "not refuted") + f"; {time.perf_counter() - began:.0f} s")  # fmt: skip
    raise SystemExit(refuted)


if __name__ == "__main__":
    main()
