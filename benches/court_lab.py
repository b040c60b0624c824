"""False alarms and power of the contamination court on the lab's models of known truth (``lab/court/evidence.jsonl``).

Each model is judged alone at 5%, beside all other clean models, with the cheaters of all other kinds as known ones: its
own kind is never seen. The best witness is the one that finds most of this kind, after the fact, by its own p-value. A
cheater that was taught all facts has nothing to gain from the benchmark.

By kind and dose, beside the exact 95% interval of the share; AUC is that of p-values of this kind against those of
clean models, followed by some points of the same curve. ``--quick`` judges every fourth model.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

import table
from scipy.stats import binomtest

from viva.lab.court_evidence import read_evidence
from viva.scoring.contamination import auc
from viva.scoring.evidence.court import Ruling, rule
from viva.scoring.evidence.observations import Hearing, Observations, hear

LEVEL = 0.05
ALARMS = (0.0, 0.05, 0.1, 0.2, 0.3)  # shares of clean models
REACH: table.Reach = {"clean_alarms_pct": ("<=", 100 * LEVEL)}
_hearings: list[tuple[dict[str, object], Hearing]] = []


def load(records: Sequence[dict[str, object]]) -> None:
    """Keep the hearing of each model in this process."""
    _hearings.extend((record, hear(Observations.from_record(record))) for record in records)


def judge_model(index: int) -> Ruling:
    """Judge one model alone."""
    record, own = _hearings[index]
    others = [(other, hearing) for number, (other, hearing) in enumerate(_hearings) if number != index]
    clean = [hearing for other, hearing in others if other["kind"] is None]
    kinds: dict[str, list[Hearing]] = {}
    for other, hearing in others:
        if other["kind"] not in (None, record["kind"]):
            kinds.setdefault(str(other["kind"]), []).append(hearing)
    return rule({"model": own}, clean, kinds, LEVEL)["model"]


def _share(hits: Sequence[bool]) -> list[str]:
    ends = binomtest(sum(hits), len(hits)).proportion_ci(0.95)
    return [f"{sum(hits)}/{len(hits)}", f"{ends.low:.2f}–{ends.high:.2f}"]


def _best_witness(rulings: Sequence[Ruling]) -> str:
    counts: dict[str, int] = {}
    for ruling in rulings:
        for evidence in ruling.evidence:
            counts[evidence.witness] = counts.get(evidence.witness, 0) + (evidence.p <= LEVEL)
    witness = max(counts, key=lambda name: (counts[name], name))
    return f"{witness}: {counts[witness]}"


def main() -> None:
    """Judge, print, write."""
    parser = argparse.ArgumentParser(description="the court on models of known truth")
    parser.add_argument("--quick", action="store_true", help="every fourth model")
    options = parser.parse_args()
    began = time.perf_counter()
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    records = read_evidence()
    if not records:
        raise SystemExit("lab/court/evidence.jsonl is missing; make it with `viva lab build --family court`")
    chosen = range(0, len(records), 4 if options.quick else 1)
    jobs = os.cpu_count() or 1
    with ProcessPoolExecutor(max_workers=jobs, initializer=load, initargs=(records,)) as pool:
        rulings = dict(zip(chosen, pool.map(judge_model, chosen, chunksize=4), strict=True))
    groups: dict[tuple[str, float], list[Ruling]] = {}
    for index, ruling in rulings.items():
        groups.setdefault((records[index]["kind"] or "clean", records[index]["dose"]), []).append(ruling)
    clean = [ruling.p for ruling in groups[("clean", 0.0)]]
    rows, figures = [], {"models": float(len(rulings))}
    for (kind, dose), own in sorted(groups.items(), key=lambda group: (group[0][0] != "clean", group[0])):
        accusations = [ruling.conclusion == "contaminated" for ruling in own]
        acquitted = sum(ruling.conclusion == "clean" for ruling in own)
        row = [kind, f"{dose:.0%}" if dose else "–", *_share(accusations), str(acquitted), _best_witness(own)]
        key = f"{kind.replace(' ', '_')}_{round(100 * dose)}"
        if kind == "clean":
            figures["clean_alarms_pct"] = 100 * sum(accusations) / len(accusations)
            figures["clean_alarms_high_pct"] = (
                100 * binomtest(sum(accusations), len(accusations)).proportion_ci(0.95).high
            )
            rows.append([*row, ""])
            continue
        scores = [-ruling.p for ruling in own] + [-p for p in clean]
        area = auc(scores, [True] * len(own) + [False] * len(clean)).value
        figures |= {f"{key}_found_pct": 100 * sum(accusations) / len(accusations), f"{key}_auc": area}
        rows.append([*row, f"{area:.2f}"])
    header = ["kind", "dose", "contaminated", "95%", "clean", "best witness", "AUC"]
    table.show(f"The court on {len(rulings)} models, their own kind unknown", header, rows)
    # A point of the receiver operating characteristic: cheaters with a smaller p than all but so many clean models.
    ordered = sorted(clean)
    thresholds = [ordered[int(rate * len(ordered))] for rate in ALARMS]
    rows = []
    for (kind, dose), own in sorted(groups.items()):
        if kind != "clean":
            counts = [sum(ruling.p < threshold for ruling in own) for threshold in thresholds]
            rows.append([kind, f"{dose:.0%}", *(f"{count}/{len(own)}" for count in counts)])
    table.show(
        "Cheaters with less p than all clean models but", ["kind", "dose", *(f"{rate:.0%}" for rate in ALARMS)], rows
    )
    shares: dict[str, list[bool]] = {}
    for index, ruling in rulings.items():
        if records[index]["kind"] is not None:
            shares.setdefault(f"{records[index]['share']:.0%}", []).append(ruling.conclusion == "contaminated")
    rows = [
        [share, *_share(accusations)]
        for share, accusations in sorted(shares.items(), key=lambda item: float(item[0][:-1]))
    ]
    table.show("Cheaters found by what they were taught", ["facts taught", "contaminated", "95%"], rows)
    table.conclude("court_lab", {name: round(value, 3) for name, value in figures.items()}, REACH)
    print(f"took {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
