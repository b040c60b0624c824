"""What a study of interviews found, in sentences: who is suspected of contamination, who is best, how sure it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from viva.reports.page import Record, counted, joined, span
from viva.reports.text import number, signed

from ...study.findings import Findings, Standing
from .claims import AREA, FALL, FEWEST_CANDIDATES, FEWEST_ITEMS, GAP, LEVEL, POWER, SENTENCE

_MEASURE = "KIEval score, 0–100"
_KINDS = {"line": "interviews", "texts": "the texts"}
_ALL_RECALL = (
    "All candidates that were probed tell the texts of the dataset from the others: so does any model where the two "
    "sets differ in topic, length or form."
)
_SEEN_BY = {("line", "texts"): "", ("line",): " by interviews", ("texts",): " by the texts alone"}


def findings(report: Record) -> list[Findings]:
    """Return what is said of each dataset, the suspected first, then what is said over several datasets together."""
    verdicts = report["verdicts"]
    found = [_of_dataset(name, report) for name in dict.fromkeys(one["dataset"] for one in verdicts["candidates"])]
    found.sort(key=lambda one: not any(standing.suspected for standing in one.standings))
    return [*found, *_over_datasets(report)]


def _of_dataset(dataset: str, report: Record) -> Findings:
    judged = {one["candidate"]: one for one in report["verdicts"]["candidates"] if one["dataset"] == dataset}
    lead = next((one for one in report["verdicts"]["leads"] if one["datasets"] == [dataset]), None)
    scored = [] if lead is None else [one["candidate"] for one in lead["standings"]]
    names = [*scored, *(name for name in judged if name not in scored)]
    contamination = list(_contamination([judged[name] for name in names if name in judged]))
    best = [] if lead is None else list(_best(lead))
    asked = any(one["verdict"] != "not_tested" for one in judged.values())
    # What could not be judged is no answer: who is best comes before it.
    sentences = [*contamination, *best] if asked or not best else [*best, *contamination]
    standings = [] if lead is None else _standings(lead, judged.values())
    rule = SENTENCE if asked or best else ""
    return Findings(sentences, _MEASURE if standings else "", standings, dataset, rule=rule)


def _over_datasets(report: Record) -> Iterator[Findings]:
    for lead in report["verdicts"]["leads"]:
        if len(lead["datasets"]) > 1:
            about = f"{len(lead['datasets'])} datasets together ({joined(lead['datasets'])})"
            judged = [one for one in report["verdicts"]["candidates"] if one["dataset"] in lead["datasets"]]
            yield Findings(list(_best(lead)), _MEASURE, _standings(lead, judged), about, rule=SENTENCE)


def _standings(lead: Record, judged: Iterable[Record]) -> list[Standing]:
    verdicts: dict[str, list[Record]] = {}
    for one in judged:
        verdicts.setdefault(one["candidate"], []).append(one)
    found = []
    for one in lead["standings"]:
        own = verdicts.get(one["candidate"], [])
        suspected = [verdict for verdict in own if verdict["verdict"] == "suspected"]
        remark = "; ".join(dict.fromkeys(", ".join(_reasons(verdict)) for verdict in suspected))
        verdict = "suspected" if suspected else own[0]["verdict"] if len(own) == 1 else ""
        found.append(
            Standing(
                *(one["candidate"], one["mean"], one["low"], one["high"], one["n"]), bool(suspected), remark, verdict
            )
        )
    return found


# -- contamination -----------------------------------------------------------------------------------------------------


def _contamination(judged: Sequence[Record]) -> Iterator[str]:
    by_verdict: dict[str, list[Record]] = {}
    for one in judged:
        by_verdict.setdefault(one["verdict"], []).append(one)
    if suspected := by_verdict.get("suspected"):
        yield f"Contamination suspected: {_names(suspected)}."
        yield "; ".join(f"{one['candidate']}: {', '.join(_reasons(one))}" for one in suspected) + "."
        probed = [test for one in judged for test in one["tests"] if test["test"] == "texts"]
        if probed and all(test["p_corrected"] < LEVEL for test in probed):
            yield _ALL_RECALL
    for tests, group in _by_tests(by_verdict.get("no_sign", [])):
        tested, weak = counted(len(group), "tested candidate"), _weak(group, tests)
        told = f"; too few to tell by {_KINDS[weak[0]]} ({weak[1]})" if weak[0] else ""
        yield f"No sign of contamination in {tested}{_SEEN_BY[tests]}: {_names(group)}{told}."
    if few := by_verdict.get("too_few"):
        yield f"Too few to tell whether there is contamination: {_names(few)} ({_weak(few, ())[1]})."
    if untested := by_verdict.get("not_tested"):
        why = f"it takes scores of {FEWEST_CANDIDATES} candidates that differ in accuracy, or a second set of texts"
        yield f"Not tested for contamination: {_names(untested)} ({why})."


def _by_tests(judged: Sequence[Record]) -> Iterable[tuple[tuple[str, ...], list[Record]]]:
    """Candidates by the tests that could have found something."""
    found: dict[tuple[str, ...], list[Record]] = {}
    for one in judged:
        found.setdefault(tuple(sorted(test["test"] for test in one["tests"] if test["power"] >= POWER)), []).append(one)
    return found.items()


def _weak(judged: Sequence[Record], powered: Sequence[str]) -> tuple[str, str]:
    """The kind of the tests without power, empty where all have it, and what they would take; of two the nearer one."""
    tests = [test for one in judged for test in one["tests"] if test["test"] not in powered]
    if not tests:
        return "", ""
    kind = min(tests, key=lambda test: (test["needed"] is None, test["needed"] or 0))["test"]
    tests = [test for test in tests if test["test"] == kind]
    effect = f"a fall of {FALL:g} points below the line" if kind == "line" else f"an AUC of {AREA:g}"
    needed = [test["needed"] for test in tests if test["needed"] is not None]
    would = "more candidates would be needed, whatever the number of items,"
    if needed:
        would = f"about {_roughly(max(needed)):,} would be needed"
    elif min(test["n"] for test in tests) < FEWEST_ITEMS:
        would = f"{FEWEST_ITEMS} would be needed at least"
    unit, counts = "item" if kind == "line" else "text", {test["n"] for test in tests}
    return kind, f"n = {span(counts)} {unit}{'s' * (counts != {1})}; {would} to see {effect}"


def _reasons(one: Record) -> Iterator[str]:
    """What speaks against a candidate: far below the line, or texts of the benchmark that it knows."""
    for test in one["tests"]:
        if test["p_corrected"] < LEVEL:
            p = _p(test["p_corrected"])
            if test["test"] == "line":
                yield f"{number(-test['value'])} below the line ({p})"
            else:
                yield f"recalls the texts (AUC {number(test['value'], 2)}, {p})"


def _names(judged: Sequence[Record]) -> str:
    return joined(one["candidate"] for one in judged)


# -- leads -------------------------------------------------------------------------------------------------------------


def _best(lead: Record) -> Iterator[str]:
    """Who leads, and whether the next one is told from it beyond chance."""
    first, *others = lead["standings"]
    shown = f"{first['candidate']}, {number(first['mean'])}"
    interval = "" if first["low"] is None else f" (95% interval {number(first['low'])} to {number(first['high'])})"
    if not others:
        yield f"Only {shown}{interval}, over {counted(first['n'], 'interview')}."
        return
    second = others[0]
    behind = f"{second['candidate']} follows with {number(second['mean'])}"
    highest = f"Highest score: {shown}{interval}."
    if first["mean"] == second["mean"] and lead["verdict"] != "ahead":
        level = [one["candidate"] for one in lead["standings"] if one["mean"] == first["mean"]]
        highest, behind = f"Highest score: {joined(level)}, {number(first['mean'])} each.", "Their scores are equal"
    if lead["verdict"] == "ahead":
        yield f"Best: {shown}{interval}."
        yield f"{behind}, significantly lower ({_p(lead['p_corrected'], 'Holm-corrected ')})."
        return
    yield highest
    difference = lead.get("difference") or {"value": 1.0}
    if lead["verdict"] == "not_significant" and lead["p_corrected"] < LEVEL:
        if difference["value"] < 0:
            told = f"but is higher on the {counted(lead['n'], 'item')} that both have"
        else:
            told = f"which is no lead yet: the interval of the difference, {_ends(difference)}, holds 0"
        yield f"{behind}, {told} ({_p(lead['p_corrected'], 'Holm-corrected ')})."
    elif lead["verdict"] == "not_significant":
        yield f"{behind}, not significantly lower ({_p(lead['p_corrected'], 'Holm-corrected ')})."
    elif lead["verdict"] == "too_few":
        needed = f"about {_roughly(lead['needed']):,} would be needed to see a gap of {GAP:g} points"
        yield f"{behind}; too few to tell them apart (n = {counted(lead['n'], 'item')}; {needed})."
    else:
        yield f"{behind}; not comparable: they have {counted(lead['n'], 'item')} in common."


def _ends(difference: Record) -> str:
    return f"{signed(difference['low'])} to {signed(difference['high'])}"


def _p(value: float, before: str = "") -> str:
    return (
        f"{before}p < 0.001"
        if value < 0.001
        else f"{before}p = {value:.3f}"
        if value < 0.1
        else f"{before}p = {value:.2f}"
    )


def _roughly(number: int) -> int:
    """Two digits of a number: what a pilot tells of the items needed is no better known."""
    step: int = 10 ** max(0, len(str(number)) - 2)
    return -(-number // step) * step
