"""Claims that a study supports: paired comparisons, suspected contamination, and the leader."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import Any

from viva.reports.figures import LEVEL as INTERVALS
from viva.reports.figures import round_figure, round_significant
from viva.reports.page import Record, count_of, join_names, list_names, number_range
from viva.reports.tables import DASH, Row, Table, figure_row, number, p_value, percent, signed
from viva.scoring import correlation
from viva.scoring.comparison import MAX_PAIRED, MAX_SIGN_FLIPS, Correction, compare_all
from viva.scoring.contamination import area_power, sample_factor
from viva.scoring.sample_size import items_for_difference

from ...contract import Findings, RankedCandidate
from ...study_sections import Section, Subject
from .interview_pools import InterviewMaterial, InterviewPool, pools_by_dataset
from .methods import row_prefix, title_facts

CORRECTION: Correction = "holm"
_LEVEL = 0.05
_MAX_NAMED = 5  # pairs named in a note; more are counted


class Comparisons(Section[InterviewMaterial]):
    """Pairs of candidates by dataset and over all datasets; p-values are corrected within each such group."""

    key, subject, heading, anchor = "comparisons", Subject.COMPARISONS, "Comparisons", "comparisons"

    def compute(self, material: InterviewMaterial, report: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Compare all pairs; interviews are paired by item, seed and evaluator.

        `won`, `tied` and `lost` count items, by their mean difference.
        """
        return [
            {"dataset": dataset, **record}
            for dataset, group in pools_by_dataset(material.pools)
            for record in compare_pairs(group)
        ]

    def notes(self, report: Record) -> list[str]:
        """Return notes on candidates that are not compared, and on pairs with p-values from few items."""
        compared = report["comparisons"]
        small = [record for record in compared if record["p"] is not None and record["clusters"] <= MAX_SIGN_FLIPS]
        scored = Counter(row["dataset"] for row in report["pooled"] if row["score"]["mean"] is not None)
        notes = [
            f"{dataset or 'all datasets'}: of {count:,} candidates, only the {MAX_PAIRED} with the highest scores are "
            "compared with each other; p-values are corrected for the pairs of all"
            for dataset, count in scored.items()
            if count > MAX_PAIRED
        ]
        if small:
            notes.append(
                f"{len(small)} of {len(compared)} comparisons have {MAX_SIGN_FLIPS} items or fewer: their p-values, "
                "from a sign-flip permutation test, are too small if a candidate loses rarely but heavily"
            )
        unsure = [
            record
            for record in small
            if record["p"] < _LEVEL and record["difference"]["low"] <= 0 <= record["difference"]["high"]
        ]
        if unsure:
            pairs = [
                f"{record['first']} and {record['second']} on {record['dataset'] or 'all'}"
                for record in unsure[:_MAX_NAMED]
            ]
            more = f" and {len(unsure) - _MAX_NAMED} more" if len(unsure) > _MAX_NAMED else ""
            notes.append(
                f"p is below {_LEVEL} but the interval, which allows for unseen items, contains 0: "
                f"{'; '.join(pairs)}{more}: more items are needed to separate them"
            )
        return notes

    def tables(self, report: Record) -> list[Table]:
        rows = []
        for record in report["comparisons"]:
            difference = record["difference"]
            text = signed(difference["value"])
            if difference["low"] is not None:
                text += f" ({signed(difference['low'])} to {signed(difference['high'])})"
            line = [record["dataset"] or "all", record["first"], record["second"], text]
            line += [p_value(record["p"]), p_value(record["p_corrected"])]
            rows.append([*line, str(record["n"]), *(str(record[name]) for name in ("won", "tied", "lost"))])
        header = ["dataset", "first", "second", "first − second", "p", "Holm p", "items", "won", "tied", "lost"]
        return [(f"KIEval compared item by item: {title_facts(report)}", header, rows)]

    def rows(self, report: Record) -> Iterator[Row]:
        for record in report["comparisons"]:
            prefix = row_prefix(report, candidate=record["first"], dataset=record["dataset"])
            name = f"less {record['second']}"
            yield figure_row(prefix, name, **record["difference"], se=record["se"], n=record["n"])
            for field in ("p", "p_corrected", "won", "tied", "lost", "pairs", "dropped"):
                yield figure_row(prefix, f"{name}.{field}", value=record[field], n=record["n"])


def compare_pairs(group: Sequence[InterviewPool]) -> list[dict[str, Any]]:
    """Compare every pair of candidates with a common item, at most those of `MAX_PAIRED`; each dataset is a stratum."""
    scores = {pool.candidate: _item_scores(pool) for pool in group}
    clusters: dict[str, str] = {}
    for pool in group:
        clusters |= zip(pool.labels(pool.codes()), pool.labels(pool.clusters()), strict=True)
    strata = {label: dataset for pool in group for dataset, label in _dataset_labels(pool)}
    several = len(set(strata.values())) > 1
    records = []
    for comparison in compare_all(scores, CORRECTION, clusters=clusters, strata=strata if several else None):
        if comparison.mean is None:
            continue
        ends = (
            comparison.mean,
            *(
                (None, None)
                if comparison.difference is None
                else (comparison.difference.low, comparison.difference.high)
            ),
        )
        records.append(
            {
                "first": comparison.first,
                "second": comparison.second,
                "difference": dict(zip(("value", "low", "high"), map(round_figure, ends), strict=True)),
                "se": round_figure(comparison.se),
                "test": comparison.test,
                "p": round_significant(comparison.p),
                "p_corrected": round_significant(comparison.p_corrected),
                "correction": CORRECTION,
                "n": comparison.n,
                "clusters": comparison.clusters,
                "pairs": comparison.pairs,
                "dropped": comparison.dropped,
                **{name: round(getattr(comparison, name) * comparison.n) for name in ("won", "tied", "lost")},
            }
        )
    return records


def _dataset_labels(pool: InterviewPool) -> Iterator[tuple[str, str]]:
    for _, dataset, columns in pool.parts:
        yield from ((dataset, label) for label in pool.labels(pool.codes_of(dataset, columns)))


def _item_scores(pool: InterviewPool) -> dict[tuple[str, str], float | None]:
    """Return overall scores by item and by seed and evaluator; repeated conditions are numbered."""
    scores: dict[tuple[str, str], float | None] = {}
    turns: dict[str, int] = {}
    for cell, dataset, columns in pool.parts:
        circumstances = f"{dataset}\n{cell.seed}\n{cell.evaluator}"
        turns[circumstances] = turns.get(circumstances, 0) + 1
        conditions = f"{cell.seed}\n{cell.evaluator}\n{turns[circumstances]}"
        labels = pool.labels(pool.codes_of(dataset, columns))
        for label, score in zip(labels, columns.scores().tolist(), strict=True):
            scores[label, conditions] = None if math.isnan(score) else score
    return scores


LEVEL = correlation.DEPARTURE_LEVEL  # of all claims of one kind on the same items
POWER = 0.8
KINDS_OF_TEST = 2  # line tests and text tests; each kind gets half of the level
LINE_DROP = 30.0  # points below the line; the cheaters of the lab lie 36 to 40 below it
SCATTER = 5.0  # points (standard deviation) of honest models around the line, besides their items' errors
AREA = 0.7  # area under the curve of a detector that knows some of the texts
GAP = 10.0  # points between two candidates
FEWEST_ITEMS = correlation.MIN_POINTS  # or fewest clusters of items
FEWEST_CANDIDATES = 4  # on a line; with three, no candidate can be off it

RULE = (
    f"Suspected or ahead: p below {LEVEL}, corrected for all tests on the same items and, for suspicions, for the "
    f"candidate's tests on other datasets. No sign: the tests would detect a fall of {LINE_DROP:g} points below the "
    f"line, or an AUC of {AREA:g}, with a power of {POWER:.0%}. Otherwise there is too little data to tell."
)

# What the verdicts on a candidate mean.
TERMS = {
    "suspected": f"a test found signs of contamination (corrected p below {LEVEL}).",
    "no_sign": f"no test found any, and at least one would find strong contamination with a power of {POWER:.0%}. This "
    "is no proof that there is none.",
    "too_few": "no test found any, but none has enough data to find even strong contamination. Nothing is known.",
    "not_tested": "no test for contamination was possible.",
}

DETECTOR = "min_k_20"  # k = 20, as Shi et al. 2024 recommend
_TESTS = {"line": "line", "texts": "AUC"}


class Claims(Section[InterviewMaterial]):
    """The verdict on each candidate, and the lead of the first candidate."""

    key, subject, heading, anchor = "verdicts", Subject.FURTHER, "Verdicts", "verdicts"

    def compute(self, material: InterviewMaterial, report: Mapping[str, Any]) -> dict[str, Any]:
        datasets = list(dict.fromkeys(pool.dataset for pool in material.pools if pool.dataset is not None))
        rule = {"level": LEVEL, "power": POWER, "fall": LINE_DROP, "auc": AREA, "gap": GAP}
        return {
            "rule": rule | {"fewest_items": FEWEST_ITEMS, "fewest_candidates": FEWEST_CANDIDATES},
            "candidates": list(_judge_candidates(report, datasets)),
            "leads": list(_leads(material, report, datasets)),
        }

    def tables(self, report: Record) -> list[Table]:
        rows = []
        for record in report["verdicts"]["candidates"]:
            for test in record["tests"] or [{}]:
                value = test.get("value")
                value_text = DASH if value is None else signed(value) if test["test"] == "line" else number(value, 2)
                row = [
                    record["dataset"],
                    record["candidate"],
                    record["verdict"].replace("_", " "),
                    _TESTS.get(test.get("test"), DASH),
                    _verdict([test] if test else []).replace("_", " "),
                ]
                row += [value_text, p_value(test.get("p_corrected")), percent(test.get("power"))]
                needed = test.get("needed")
                rows.append([*row, f"{test['n']:,}" if test else DASH, DASH if needed is None else f"{needed:,}"])
        header = ["dataset", "candidate", "verdict", "test", "it says", "value", "corrected p", "power", "items"]
        header.append("items needed")
        effects = f"{LINE_DROP:g} points below the line, or an AUC of {AREA:g}"
        title = f"Verdicts: {title_facts(report)}; power to detect {effects}"
        return [(title, header, rows)]


# -- contamination -----------------------------------------------------------------------------------------------------


def _judge_candidates(report: Mapping[str, Any], datasets: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the candidates of each dataset with their tests and verdicts.

    The number of text tests is the number of candidates probed on the dataset, times the candidate's probed datasets.
    """
    probed = [row for row in report["pooled"] if detector_result(row) is not None]
    together = Counter(row["candidate"] for row in probed if _count_texts(row) >= FEWEST_ITEMS)
    for dataset in datasets:
        line = report["correlations"]["lines"].get(dataset) or {"tests": {}, "residuals": {}}
        probed_candidates = sum(row["dataset"] == dataset for row in probed)
        for row in report["pooled"]:
            if row["dataset"] != dataset:
                continue
            name = row["candidate"]
            tests: list[dict[str, Any]] = []
            line_test = line["tests"].get(name)
            if line_test is not None and len(line["residuals"]) >= FEWEST_CANDIDATES:
                value = line["residuals"][name]
                tests.append(
                    {"test": "line", **line_test, "value": value, "p_corrected": line_test["p"] if value < 0 else 1.0}
                )
            if detector_result(row) is not None:
                tests.append(
                    _texts_test(row, probed_candidates * (together[name] + (_count_texts(row) < FEWEST_ITEMS)))
                )
            yield {"dataset": dataset, "candidate": name, "verdict": _verdict(tests), "tests": tests}


def _verdict(tests: Sequence[Mapping[str, Any]]) -> str:
    if any(test["p_corrected"] < LEVEL for test in tests):
        return "suspected"
    if any(test["power"] >= POWER for test in tests):
        return "no_sign"
    return "too_few" if tests else "not_tested"


def detector_result(row: Record) -> Record | None:
    """Return the detector's result for a candidate on one dataset; None if it was not used."""
    result: Record = ((row.get("probe") or {}).get("detectors") or {}).get(DETECTOR) or {}
    return result if row["dataset"] is not None and result.get("chance_se") else None


def _count_texts(row: Record) -> int:
    """Count the independent texts of the smaller set that the detector was used on."""
    fewest = min(row["probe"][name]["n"] for name in ("loss", "loss_against"))
    return int((detector_result(row) or {}).get("items", fewest))


def _texts_test(row: Record, tests: int) -> dict[str, Any]:
    """Test whether a candidate separates the dataset's texts from the other texts, as one of `tests` tests."""
    probe, detector = row["probe"], detector_result(row) or {}
    error, value = detector["chance_se"], detector["value"]
    if probe.get("members") == "against":  # the area is that of the other set's texts
        value = round_figure(1.0 - value) or 0.0
    sizes, level = (probe["loss"]["n"], probe["loss_against"]["n"]), LEVEL / KINDS_OF_TEST / tests
    enough = _count_texts(row) >= FEWEST_ITEMS
    p = KINDS_OF_TEST * tests * NormalDist().cdf((0.5 - value) / error) if enough else 1.0
    times = sample_factor(AREA, error, *sizes, level, POWER)
    return {
        "test": "texts",
        "value": value,
        "se": error,
        "p": round_significant(min(1.0, p)),
        "power": round_figure(area_power(AREA, error, *sizes, level)) if enough else 0.0,
        "n": min(sizes),
        "needed": max(FEWEST_ITEMS, math.ceil(times * min(sizes))),
        "p_corrected": round_significant(min(1.0, p)),
    }


# -- leads -------------------------------------------------------------------------------------------------------------


def _leads(material: InterviewMaterial, report: Mapping[str, Any], datasets: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the leader on each dataset, and on each set of datasets that two candidates share."""
    met: dict[str, list[InterviewPool]] = {}
    for pool in material.pools:
        if pool.dataset is not None and pool.interviews:
            met.setdefault(pool.candidate, []).append(pool)
    sets: list[tuple[str, ...]] = [(name,) for name in datasets]
    several = [tuple(name for name in datasets if name in {pool.dataset for pool in pools}) for pools in met.values()]
    sets += dict.fromkeys(names for names in several if len(names) > 1)
    for names in sets:
        group = []
        for candidate, pools in met.items():
            readings = [reading for pool in pools if pool.dataset in names for reading in pool.readings]
            if {pool.dataset for pool in pools} >= set(names):
                group.append(InterviewPool(candidate, None, readings, material.catalogue, material.lent))
        if len(names) == 1 or len(group) > 1:
            everything = len(names) == len(datasets) and len(group) == len(met)
            dataset = names[0] if len(names) == 1 else None
            recorded = [record for record in report["comparisons"] if record["dataset"] == dataset]
            pairs = recorded if len(names) == 1 or everything else compare_pairs(group)
            yield from _lead(list(names), {pool.candidate: pool.score(material.scorer) for pool in group}, pairs)


def _lead(
    datasets: list[str], scores: Mapping[str, Record], pairs: Sequence[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    standings = [{"candidate": name, **score} for name, score in scores.items() if score["mean"] is not None]
    standings.sort(key=lambda record: -record["mean"])
    if not standings:
        return
    lead: dict[str, Any] = {"datasets": datasets, "standings": standings, "verdict": "alone"}
    if len(standings) > 1:
        first, second = (record["candidate"] for record in standings[:2])
        lead |= {"first": first, "second": second}
        own = [record for record in pairs if {record["first"], record["second"]} == {first, second}]
        tested = len(pairs) if len(standings) <= MAX_PAIRED else math.comb(len(standings), 2)
        lead |= _compare_leaders(first, own, tested)
    yield lead


def _compare_leaders(first: str, comparisons: Sequence[Mapping[str, Any]], pairs: int) -> dict[str, Any]:
    """Compare the first candidate with the second; `pairs` pairs were compared in total."""
    if not comparisons or comparisons[0]["p_corrected"] is None:
        return {
            "verdict": "not_comparable",
            "p_corrected": None,
            "n": comparisons[0]["n"] if comparisons else 0,
            "needed": None,
        }
    comparison = comparisons[0]
    difference = comparison["difference"]
    if comparison["first"] != first:
        negated = {"value": difference["value"], "low": difference["high"], "high": difference["low"]}
        difference = {name: -value for name, value in negated.items()}
    ahead = difference["value"] > 0
    excludes_zero = not difference["low"] <= 0 <= difference["high"]
    half = (difference["high"] - difference["low"]) / 2 / NormalDist().inv_cdf((1 + INTERVALS) / 2)
    error = comparison["se"] if comparison["se"] and comparison["clusters"] >= FEWEST_ITEMS else half
    clusters = items_for_difference(GAP, comparison["clusters"] * error**2, POWER, 1 - LEVEL / pairs)
    verdict = "ahead" if ahead and excludes_zero and comparison["p_corrected"] < LEVEL else "not_significant"
    if verdict != "ahead" and comparison["clusters"] < clusters:
        verdict = "too_few"
    needed = math.ceil(clusters * comparison["n"] / comparison["clusters"])
    lead = {"verdict": verdict, "difference": difference, "p_corrected": comparison["p_corrected"]}
    return lead | {"n": comparison["n"], "needed": needed}


_MEASURE = "KIEval score, 0–100"
_TOO_WEAK = {"line": "interviews tell too little", "texts": "recall of the texts tells too little"}
_ALL_RECALL = (
    "All probed candidates separate the texts of the dataset from the others: any model does if the two sets differ "
    "in topic, length or form."
)
_SOURCES = {
    ("line", "texts"): "No sign",
    ("line",): "The interviews show no sign",
    ("texts",): "Recall of the texts shows no sign",
}


def findings(report: Record) -> list[Findings]:
    """Return the findings of each dataset, with suspicions first, then the findings over several datasets together."""
    verdicts = report["verdicts"]
    by_dataset = [
        _dataset_findings(name, report)
        for name in dict.fromkeys(finding["dataset"] for finding in verdicts["candidates"])
    ]
    by_dataset.sort(key=lambda finding: not any(standing.suspected for standing in finding.standings))
    return [*by_dataset, *_joint_findings(report)]


def _dataset_findings(dataset: str, report: Record) -> Findings:
    judged = {
        record["candidate"]: record for record in report["verdicts"]["candidates"] if record["dataset"] == dataset
    }
    lead = next((record for record in report["verdicts"]["leads"] if record["datasets"] == [dataset]), None)
    scored = [] if lead is None else [record["candidate"] for record in lead["standings"]]
    names = [*scored, *(name for name in judged if name not in scored)]
    contamination = list(_contamination_sentences([judged[name] for name in names if name in judged]))
    best = [] if lead is None else list(_leader_sentence(lead))
    is_tested = any(record["verdict"] != "not_tested" for record in judged.values())
    # If contamination was not tested, the best candidate comes first.
    sentences = [*contamination, *best] if is_tested or not best else [*best, *contamination]
    standings = [] if lead is None else _rank(lead, judged.values())
    rule = RULE if is_tested or best else ""
    return Findings(sentences, _MEASURE if standings else "", standings, dataset, rule=rule, terms=TERMS)


def _joint_findings(report: Record) -> Iterator[Findings]:
    for lead in report["verdicts"]["leads"]:
        if len(lead["datasets"]) > 1:
            about = f"{len(lead['datasets'])} datasets together ({join_names(lead['datasets'])})"
            judged = [record for record in report["verdicts"]["candidates"] if record["dataset"] in lead["datasets"]]
            yield Findings(list(_leader_sentence(lead)), _MEASURE, _rank(lead, judged), about, rule=RULE, terms=TERMS)


def _rank(lead: Record, judged: Iterable[Record]) -> list[RankedCandidate]:
    verdicts: dict[str, list[Record]] = {}
    for record in judged:
        verdicts.setdefault(record["candidate"], []).append(record)
    ranked = []
    for record in lead["standings"]:
        own = verdicts.get(record["candidate"], [])
        suspected = [verdict for verdict in own if verdict["verdict"] == "suspected"]
        remark = "; ".join(dict.fromkeys(", ".join(_suspicions(verdict)) for verdict in suspected))
        verdict = "suspected" if suspected else own[0]["verdict"] if len(own) == 1 else ""
        ranked.append(
            RankedCandidate(
                *(record["candidate"], record["mean"], record["low"], record["high"], record["n"]),
                bool(suspected),
                remark,
                verdict,
            )
        )
    return ranked


# -- contamination -----------------------------------------------------------------------------------------------------


def _contamination_sentences(judged: Sequence[Record]) -> Iterator[str]:
    by_verdict: dict[str, list[Record]] = {}
    for record in judged:
        by_verdict.setdefault(record["verdict"], []).append(record)
    if suspected := by_verdict.get("suspected"):
        yield f"Contamination suspected: {_join_names(suspected)}."
        yield (
            "; ".join(
                f"{record['candidate']}: {', '.join(_suspicions(record))}{_contrary(record)}" for record in suspected
            )
            + "."
        )
        probed = [test for record in judged for test in record["tests"] if test["test"] == "texts"]
        if probed and all(test["p_corrected"] < LEVEL for test in probed):
            yield _ALL_RECALL
    for tests, group in _by_tests(by_verdict.get("no_sign", [])):
        tested, (weak, needed) = count_of(len(group), "tested candidate"), _weak_tests(group, tests)
        yield f"{_SOURCES[tests]} of contamination in {tested}: {_join_names(group)}."
        if weak:
            yield f"{'Its' if len(group) == 1 else 'Their'} {_TOO_WEAK[weak]} ({needed})."
    if unclear := by_verdict.get("too_few"):
        yield f"Too little data to test for contamination: {_join_names(unclear)} ({_weak_tests(unclear, ())[1]})."
    if untested := by_verdict.get("not_tested"):
        why = f"requires {FEWEST_CANDIDATES} candidates that differ in accuracy, or a second set of texts"
        yield f"Not tested for contamination: {_join_names(untested)} ({why})."


def _contrary(record: Record) -> str:
    """Return what a suspected candidate's other test says if it has the power to find contamination and did not."""
    for test in record["tests"]:
        if test["p_corrected"] >= LEVEL and test["power"] >= POWER:
            if test["test"] == "texts":
                return f", but recall of the texts shows no sign (AUC {number(test['value'], 2)})"
            return ", but the interviews show no sign"
    return ""


def _by_tests(judged: Sequence[Record]) -> Iterable[tuple[tuple[str, ...], list[Record]]]:
    """Group candidates by the tests that have enough power."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in judged:
        groups.setdefault(tuple(sorted(test["test"] for test in record["tests"] if test["power"] >= POWER)), []).append(
            record
        )
    return groups.items()


def _weak_tests(judged: Sequence[Record], powered: Sequence[str]) -> tuple[str, str]:
    """Return the kind of the tests without power (empty if all have power), and what these tests require.

    If both kinds lack power, the one that requires fewer items is returned.
    """
    tests = [test for record in judged for test in record["tests"] if test["test"] not in powered]
    if not tests:
        return "", ""
    kind = min(tests, key=lambda test: (test["needed"] is None, test["needed"] or 0))["test"]
    tests = [test for test in tests if test["test"] == kind]
    effect = f"a fall of {LINE_DROP:g} points below the line" if kind == "line" else f"an AUC of {AREA:g}"
    needed = [test["needed"] for test in tests if test["needed"] is not None]
    would = "more candidates, not more items, would be needed"
    if needed:
        would = f"about {_two_digits(max(needed)):,} would be needed"
    elif min(test["n"] for test in tests) < FEWEST_ITEMS:
        would = f"at least {FEWEST_ITEMS} would be needed"
    unit, counts = "item" if kind == "line" else "text", {test["n"] for test in tests}
    return kind, f"n = {number_range(counts)} {unit}{'s' * (counts != {1})}; {would} to see {effect}"


def _suspicions(record: Record) -> Iterator[str]:
    """Yield the evidence against a candidate: far below the line, or recalled texts of the benchmark."""
    for test in record["tests"]:
        if test["p_corrected"] < LEVEL:
            p = _p_text(test["p_corrected"])
            if test["test"] == "line":
                yield f"{number(-test['value'])} below the line ({p})"
            else:
                yield f"recalls the texts (AUC {number(test['value'], 2)}, {p})"


def _join_names(judged: Sequence[Record]) -> str:
    return list_names([record["candidate"] for record in judged])


# -- leads -------------------------------------------------------------------------------------------------------------


def _leader_sentence(lead: Record) -> Iterator[str]:
    """Yield the leader, and whether the lead over the second is significant."""
    first, *followers = lead["standings"]
    leader = f"{first['candidate']}, {number(first['mean'])}"
    interval = "" if first["low"] is None else f" (95% interval {number(first['low'])} to {number(first['high'])})"
    if not followers:
        yield f"Only {leader}{interval}, over {count_of(first['n'], 'interview')}."
        return
    second = followers[0]
    behind = f"{second['candidate']} is second with {number(second['mean'])}"
    highest = f"Highest score: {leader}{interval}."
    if first["mean"] == second["mean"] and lead["verdict"] != "ahead":
        level = [record["candidate"] for record in lead["standings"] if record["mean"] == first["mean"]]
        highest, behind = (
            f"Highest score: {list_names(level)}, {number(first['mean'])} each.",
            "Their scores are equal",
        )
    if lead["verdict"] == "ahead":
        yield f"Best: {leader}{interval}."
        yield f"{behind}, significantly lower ({_p_text(lead['p_corrected'], 'Holm-corrected ')})."
        return
    yield highest
    difference = lead.get("difference") or {"value": 1.0}
    if lead["verdict"] == "not_significant" and lead["p_corrected"] < LEVEL:
        if difference["value"] < 0:
            clause = f"but is higher on the {count_of(lead['n'], 'item')} in common"
        else:
            clause = f"not a clear lead: the interval of the difference, {_interval_text(difference)}, contains 0"
        yield f"{behind}, {clause} ({_p_text(lead['p_corrected'], 'Holm-corrected ')})."
    elif lead["verdict"] == "not_significant":
        yield f"{behind}, not significantly lower ({_p_text(lead['p_corrected'], 'Holm-corrected ')})."
    elif lead["verdict"] == "too_few":
        needed = f"about {_two_digits(lead['needed']):,} would be needed to see a gap of {GAP:g} points"
        yield f"{behind}; too few items to separate them (n = {count_of(lead['n'], 'item')}; {needed})."
    else:
        yield f"{behind}; not comparable: {count_of(lead['n'], 'item')} in common."


def _interval_text(difference: Record) -> str:
    return f"{signed(difference['low'])} to {signed(difference['high'])}"


def _p_text(value: float, before: str = "") -> str:
    return (
        f"{before}p < 0.001"
        if value < 0.001
        else f"{before}p = {value:.3f}"
        if value < 0.1
        else f"{before}p = {value:.2f}"
    )


def _two_digits(number: int) -> int:
    """Round up to two digits: the number of items needed is no more precise."""
    step: int = 10 ** max(0, len(str(number)) - 2)
    return -(-number // step) * step
