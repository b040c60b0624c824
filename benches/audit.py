"""How reliably audits find biases planted in simulated judges, and how often they find one where there is none.

Whole audits over hundreds of seeds, each with cases of its own: the real protocol, readers and statistics, without a
journal (``tests/models/direct_audits``). The power bound in ``REACH`` is for 40 cases; Holm's correction is over all
tests of an audit, so the bound on false findings is the share of audits with one or more. ``--quick`` takes fewer
seeds, under a minute.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "models"))

import table
from direct_audits import audited, drawn_cases
from scipy.stats import binomtest

CASES = 40
# Stated: each planted bias is found in 80% at least, anything at all in an unbiased judge in 5% at most.
REACH: table.Reach = {"least_found_high_pct": (">=", 80), "most_false_low_pct": ("<=", 5)}


@dataclass(frozen=True)
class Planted:
    """A judge: the planted bias, and the audit that has to find it (empty: no audit but ``true`` may find one)."""

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
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="power and false findings of audits")
    parser.add_argument("--quick", action="store_true", help="fewer seeds, under a minute")
    parser.add_argument("--seeds", type=int, default=None, help="audits of each judge")
    options = parser.parse_args()
    count = options.seeds or (80 if options.quick else 500)
    began = time.perf_counter()
    rows, found_pct, false_pct = [], [], []
    figures: dict[str, float] = {}
    for judge in JUDGES:
        hits = others = 0
        for seed in range(count):
            findings = audited(drawn_cases(CASES, seed), seed, noise=judge.noise, traits=judge.traits)
            hits += any(finding["found"] for finding in findings if finding["audit"] == judge.audit)
            others += any(finding["found"] for finding in findings if finding["audit"] not in (judge.audit, judge.true))
        part = hits if judge.audit else others
        ends = binomtest(part, count).proportion_ci(method="wilson")
        text = f"{100 * part / count:.1f}% ({100 * ends.low:.1f}% to {100 * ends.high:.1f}%)"
        rows.append([judge.name, judge.audit or "any", text, f"{100 * others / count:.1f}%" if judge.audit else "–"])
        (found_pct if judge.audit else false_pct).append(100 * (ends.high if judge.audit else ends.low))
        word = re.sub(r"\W+", "_", judge.name).lower()
        figures[f"{'found' if judge.audit else 'false'}_{word}_pct"] = round(100 * part / count, 3)
    table.show(f"{count} audits of {CASES} cases for each judge", ["judge", "audit", "found", "others found"], rows)
    # A stated figure is refuted where the whole interval lies beyond it.
    bounds = {"least_found_high_pct": min(found_pct), "most_false_low_pct": max(false_pct), "audits": float(count)}
    table.conclude("audit", bounds | figures, REACH)
    print(f"took {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
