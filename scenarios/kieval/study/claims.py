"""What a study may claim, dataset by dataset: who is suspected of contamination, who leads, and what cannot be told.

The figures are those of the sections before. One rule holds for sentences, lines, pages and JSON: an accusation or a
lead takes a p-value, corrected for all tests on the same items, below ``LEVEL``; an accusation also corrects for the
tests of the same candidate on other datasets. That nothing was found is said only where the test would have found an
effect of a stated size with probability ``POWER`` at the same level; else the answer is that there are too few items to
tell.

Each dataset is judged by itself. Runs of other candidates on other items change nothing; runs of the same candidate
on other items change the number of its tests alone. A lead over several datasets is that of the candidates that have
met all of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import Any

from viva.reports.figures import LEVEL as INTERVALS
from viva.reports.figures import rounded, significant
from viva.reports.page import Record
from viva.reports.text import DASH, Table, number, percent, signed, small
from viva.scoring import regression
from viva.scoring.contamination import area_power, area_times
from viva.scoring.planning import items_for_difference

from ...study.cells import Pool
from ...study.sections import Section, Subject
from .comparisons import compared
from .pools import InterviewMaterial, InterviewPool
from .words import title_facts

LEVEL = regression.LEVEL  # of all claims of one kind on the same items
POWER = 0.8
KINDS_OF_TEST = 2  # against the line, and of the texts: each has half of the level
FALL = 30.0  # points below the line; the cheaters of the lab lie 36 to 40 below it
SCATTER = 5.0  # points by which honest models may lie about the line (standard deviation), besides their items' errors
AREA = 0.7  # under the curve of a detector that knows some of the texts
GAP = 10.0  # points between two candidates
FEWEST_ITEMS = regression.FEWEST  # or clusters of items
FEWEST_CANDIDATES = 4  # on a line: of three, none can be off it

SENTENCE = (
    f"Suspected or ahead: p below {LEVEL}, corrected for all tests on the same items; suspected also for those of the "
    f"candidate on other datasets. No sign: a fall of {FALL:g} points below the line, or an AUC of {AREA:g}, would be "
    f"found with a power of {POWER:.0%}. Else too few to tell."
)

DETECTOR = "min_k_20"  # k = 20, as Shi et al. 2024 recommend
_TESTS = {"line": "line", "texts": "AUC"}


class Claims(Section[InterviewMaterial]):
    """The verdict on each candidate, and the lead of the first one."""

    key, subject, heading, anchor = "verdicts", Subject.FURTHER, "Verdicts", "verdicts"

    def compute(self, material: InterviewMaterial, report: Mapping[str, Any]) -> dict[str, Any]:
        datasets = list(dict.fromkeys(pool.dataset for pool in material.pools if pool.dataset is not None))
        rule = {"level": LEVEL, "power": POWER, "fall": FALL, "auc": AREA, "gap": GAP}
        return {
            "rule": rule | {"fewest_items": FEWEST_ITEMS, "fewest_candidates": FEWEST_CANDIDATES},
            "candidates": list(_judged(report, datasets)),
            "leads": list(_leads(material, report, datasets)),
        }

    def tables(self, report: Record) -> list[Table]:
        rows = []
        for one in report["verdicts"]["candidates"]:
            for test in one["tests"] or [{}]:
                value = test.get("value")
                told = DASH if value is None else signed(value) if test["test"] == "line" else number(value, 2)
                row = [
                    one["dataset"],
                    one["candidate"],
                    one["verdict"].replace("_", " "),
                    _TESTS.get(test.get("test"), DASH),
                ]
                row += [told, small(test.get("p_corrected")), percent(test.get("power"))]
                needed = test.get("needed")
                rows.append([*row, f"{test['n']:,}" if test else DASH, DASH if needed is None else f"{needed:,}"])
        header = ["dataset", "candidate", "verdict", "test", "value", "corrected p", "power", "items", "items needed"]
        title = f"Verdicts: {title_facts(report)}; power for {FALL:g} points below the line, for an AUC of {AREA:g}"
        return [(title, header, rows)]


# -- contamination -----------------------------------------------------------------------------------------------------


def _judged(report: Mapping[str, Any], datasets: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The candidates of each dataset, each with its tests and what they say.

    Texts are tested of all candidates that were asked on the dataset, and of the candidate on all datasets.
    """
    probed = [row for row in report["pooled"] if detected(row) is not None]
    together = Counter(row["candidate"] for row in probed if _texts_of(row) >= FEWEST_ITEMS)
    for dataset in datasets:
        line = report["correlations"]["lines"].get(dataset) or {"tests": {}, "residuals": {}}
        asked = sum(row["dataset"] == dataset for row in probed)
        for row in report["pooled"]:
            if row["dataset"] != dataset:
                continue
            name = row["candidate"]
            tests: list[dict[str, Any]] = []
            found = line["tests"].get(name)
            if found is not None and len(line["residuals"]) >= FEWEST_CANDIDATES:
                value = line["residuals"][name]
                tests.append({"test": "line", **found, "value": value, "p_corrected": found["p"] if value < 0 else 1.0})
            if detected(row) is not None:
                tests.append(_of_texts(row, asked * (together[name] + (_texts_of(row) < FEWEST_ITEMS))))
            yield {"dataset": dataset, "candidate": name, "verdict": _verdict(tests), "tests": tests}


def _verdict(tests: Sequence[Mapping[str, Any]]) -> str:
    if any(one["p_corrected"] < LEVEL for one in tests):
        return "suspected"
    if any(one["power"] >= POWER for one in tests):
        return "no_sign"
    return "too_few" if tests else "not_tested"


def detected(row: Record) -> Record | None:
    """What the detector says of a candidate on one dataset; None where it was not asked."""
    one: Record = ((row.get("probe") or {}).get("detectors") or {}).get(DETECTOR) or {}
    return one if row["dataset"] is not None and one.get("chance_se") else None


def _texts_of(row: Record) -> int:
    """Count the independent texts that the detector was asked about, of the set that has fewer."""
    fewest = min(row["probe"][name]["n"] for name in ("loss", "loss_against"))
    return int((detected(row) or {}).get("items", fewest))


def _of_texts(row: Record, tests: int) -> dict[str, Any]:
    """Test whether a candidate tells the dataset's texts from the others: one of so many ``tests``."""
    probe, detector = row["probe"], detected(row) or {}
    error, value = detector["chance_se"], detector["value"]
    if probe.get("members") == "against":  # the area is that of the other set's texts
        value = rounded(1.0 - value) or 0.0
    sizes, level = (probe["loss"]["n"], probe["loss_against"]["n"]), LEVEL / KINDS_OF_TEST / tests
    enough = _texts_of(row) >= FEWEST_ITEMS
    p = KINDS_OF_TEST * tests * NormalDist().cdf((0.5 - value) / error) if enough else 1.0
    times = area_times(AREA, error, *sizes, level, POWER)
    return {
        "test": "texts",
        "value": value,
        "se": error,
        "p": significant(min(1.0, p)),
        "power": rounded(area_power(AREA, error, *sizes, level)) if enough else 0.0,
        "n": min(sizes),
        "needed": max(FEWEST_ITEMS, math.ceil(times * min(sizes))),
        "p_corrected": significant(min(1.0, p)),
    }


# -- leads -------------------------------------------------------------------------------------------------------------


def _leads(material: InterviewMaterial, report: Mapping[str, Any], datasets: Sequence[str]) -> Iterator[dict[str, Any]]:
    """On each dataset, and over each set of datasets that two candidates have met, who leads and how sure that is."""
    met: dict[str, list[InterviewPool]] = {}
    for pool in material.pools:
        if pool.dataset is not None and pool.interviews:
            met.setdefault(pool.candidate, []).append(pool)
    sets: list[tuple[str, ...]] = [(name,) for name in datasets]
    several = [tuple(name for name in datasets if name in {one.dataset for one in pools}) for pools in met.values()]
    sets += dict.fromkeys(names for names in several if len(names) > 1)
    for names in sets:
        group = []
        for candidate, pools in met.items():
            readings = [one for pool in pools if pool.dataset in names for one in pool.pool.readings]
            if {pool.dataset for pool in pools} >= set(names):
                group.append(InterviewPool(Pool(candidate, None, readings, material.catalogue), material.lent))
        if len(names) == 1 or len(group) > 1:
            everything = len(names) == len(datasets) and len(group) == len(met)
            dataset = names[0] if len(names) == 1 else None
            known = [one for one in report["comparisons"] if one["dataset"] == dataset]
            pairs = known if len(names) == 1 or everything else compared(group)
            yield from _lead(list(names), {pool.candidate: pool.score(material.scorer) for pool in group}, pairs)


def _lead(
    datasets: list[str], scores: Mapping[str, Record], pairs: Sequence[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    standings = [{"candidate": name, **score} for name, score in scores.items() if score["mean"] is not None]
    standings.sort(key=lambda one: -one["mean"])
    if not standings:
        return
    lead: dict[str, Any] = {"datasets": datasets, "standings": standings, "verdict": "alone"}
    if len(standings) > 1:
        first, second = (one["candidate"] for one in standings[:2])
        lead |= {"first": first, "second": second}
        lead |= _told_apart(
            first, [one for one in pairs if {one["first"], one["second"]} == {first, second}], len(pairs)
        )
    yield lead


def _told_apart(first: str, found: Sequence[Mapping[str, Any]], pairs: int) -> dict[str, Any]:
    """Whether the first is ahead of the second, of ``pairs`` pairs that were compared."""
    if not found or found[0]["p_corrected"] is None:
        return {"verdict": "not_comparable", "p_corrected": None, "n": found[0]["n"] if found else 0, "needed": None}
    one = found[0]
    difference = one["difference"]
    if one["first"] != first:
        turned = {"value": difference["value"], "low": difference["high"], "high": difference["low"]}
        difference = {name: -value for name, value in turned.items()}
    ahead = difference["value"] > 0
    apart = not difference["low"] <= 0 <= difference["high"]
    half = (difference["high"] - difference["low"]) / 2 / NormalDist().inv_cdf((1 + INTERVALS) / 2)
    error = one["se"] if one["se"] and one["clusters"] >= FEWEST_ITEMS else half
    clusters = items_for_difference(GAP, one["clusters"] * error**2, POWER, 1 - LEVEL / pairs)
    verdict = "ahead" if ahead and apart and one["p_corrected"] < LEVEL else "not_significant"
    if verdict != "ahead" and one["clusters"] < clusters:
        verdict = "too_few"
    needed = math.ceil(clusters * one["n"] / one["clusters"])
    lead = {"verdict": verdict, "difference": difference, "p_corrected": one["p_corrected"]}
    return lead | {"n": one["n"], "needed": needed}
