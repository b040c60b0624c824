"""A study of interviews in words: what was run, how figures came about, and how they are computed.

What never belongs here: markup, and figures that need more than adding up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from viva.reports.page import Record, counted, distinct, joined, listed, seeds_of, share, tiers_of

from ...study.sections import inserted
from ...study.static import StaticFigures

NAME = "kieval"
FIRST_ANSWER = "first answer"
_SCORERS = {
    "official": (
        "Verdicts of 1, 2, 3 and 4 count 1, 3, 7 and 10 (0 counts 0); the i-th scored round, from 0, weighs "
        "exp(−0.2 i); a talk's score is ten times the weighted mean of its scored rounds, 0–100. This is how the "
        "published KIEval figures were computed."
    ),
    "linear": (
        "A verdict counts a quarter of its points; the i-th scored round, from 0, weighs exp(−0.2 i); a talk's score "
        "is a hundred times the weighted mean of its scored rounds."
    ),
    "corrected": (
        "Verdicts of 1, 2, 3 and 4 count 1, 3, 7 and 10 (0 counts 0); round i, from 0, weighs exp(−0.2 i) by its true "
        "number; unscored rounds are left out without moving others up, and rounds lost to an early stop count 0."
    ),
}


def title_facts(report: Record) -> str:
    """What titles of tables say of how figures came about."""
    facts = report["facts"]
    seeds = ", ".join(map(str, facts["seeds"])) or "–"
    tiers = " and ".join(facts["tiers"]) or "–"
    scorer = f"scorer {report['scorer']}, " if facts["rounds"] else ""  # without interviews nothing is scored
    return f"{scorer}seed{'s' * (len(facts['seeds']) > 1)} {seeds}, tier {tiers}"


def place(report: Record, **where: Any) -> dict[str, Any]:
    """The first columns of a figure in long form that is of the whole study."""
    return {"scenario": NAME, "scorer": report["scorer"], **where}


def page_facts(common: dict[str, str], report: Record) -> dict[str, str]:
    """What was run, as terms and their descriptions."""
    cells, totals = report["cells"], _totals(report)
    lines = [(name, line) for name, line in ((report.get("correlations") or {}).get("lines") or {}).items() if line]
    facts = inserted(common, "Seeds", Interactor=listed(distinct(cells, "interactor")))
    scored = report["scorer"] if totals["interviews"] else ""
    rounds = joined(map(str, sorted(distinct(cells, "rounds"))))
    facts = inserted(facts, "Evaluator", Scorer=scored, Rounds=rounds)
    facts = inserted(facts, "Cells", Talks=_held(totals))
    return facts | {
        "Unscored rounds": _share_of(totals["unscored_rounds"], totals["verdicts"], "rounds"),
        "Unreadable verdicts": _share_of(totals["parse_failures"], _texts(totals), "texts of the evaluator"),
        "Ended by a rule": _ruled(cells),
        "Below the line": _off(lines, "below") if lines else "",
        "Above the line": _off(lines, "above") if lines else "",
    }


def origin(report: Record) -> str:
    """One line for under a figure: n, scorer, seeds, tier, and the rates of what could not be scored or read."""
    cells, totals = report["cells"], _totals(report)
    probes = sum(cell.get("ended") or 0 for cell in cells if cell["scenario"] != NAME)
    parts = []
    if totals["interviews"] or not probes:
        parts += [f"n = {totals['interviews']:,} talks", f"scorer {report['scorer']}"]
    if probes:
        parts.append(f"n = {probes:,} probes")
    parts += [seeds_of(cells), tiers_of(cells)]
    if totals["interviews"] or not probes:
        parts.append(f"unscored {share(totals['unscored_rounds'], totals['verdicts'])}")
        parts.append(f"unparsed {share(totals['parse_failures'], _texts(totals))}")
    return " · ".join(parts)


def methods(report: Record, lent: StaticFigures | None) -> list[tuple[str, str]]:
    """How figures are computed, as terms and their descriptions."""
    scorer, cells = str(report["scorer"]), report["cells"]
    found: list[tuple[str, str]] = []
    if _totals(report)["interviews"]:
        known = _SCORERS.get(scorer.split(" ")[0], "")
        switched = " No decay: all rounds weigh the same." if "no decay" in scorer else ""
        switched += " No early stop: flags of talks that went on are ignored." if "no early stop" in scorer else ""
        found = [
            (f"Score, scorer {scorer}", known + switched),
            (
                "Errors and intervals",
                "Standard errors are clustered by item: talks about one item under several seeds or evaluators are "
                "not independent. ± stands before one standard error; intervals are of 95% and stay within what a "
                "figure can be: Wilson's for rates, their likes for scores. p-values of comparisons are those of sign "
                "flips up to 100 items, of Student's t beyond."
                + (
                    " Where a rule ended the interviews, those of scores are its confidence sequences, which hold "
                    "however often they are looked at."
                    if any("low" in ((cell.get("result") or {}).get("score") or {}) for cell in cells)
                    else ""
                ),
            ),
            (
                "Unanswered, unscored, unparsed",
                "A first answer that names no choice is unanswered and counts as not right; one to a question without "
                "choices is in no accuracy. "
                "A round whose verdict could not be read, repairs included, is unscored, which is not the same as 0. "
                "Unparsed is the share of the evaluator's texts that could not be read. Failed talks ended with an "
                "error and are counted, not scored.",
            ),
        ]
    if lent is not None and any(cell["scenario"] != NAME for cell in cells):
        found += lent.explained()
    if (report.get("correlations") or {}).get("figures"):
        text = (
            "Coefficients over models with two-sided p-values; pooled over datasets they take figures of one model for "
            "independent, so those p-values are too small. Lines: reweighted least trimmed squares of score on "
            "accuracy; a model is off the line beyond three expected spreads of the residuals, its own standard errors "
            "joined. Of few models without errors, chance alone often puts one off the line."
        )
        found.append(("Correlations and lines", text))
    return found


def said_accuracy(source: str | None, lent: StaticFigures | None) -> str:
    """Where accuracies come from, for an axis."""
    return FIRST_ANSWER if not source or source == FIRST_ANSWER else source if lent is None else lent.said(source)


def of_interviews(report: Record) -> list[Record]:
    """The pooled rows of candidates that were interviewed."""
    return [row for row in report["pooled"] if row["scenario"] == NAME]


def _totals(report: Record) -> dict[str, int]:
    names = ("interviews", "verdicts", "unscored_rounds", "partly_scored_rounds", "parse_failures", "failed")
    totals = dict.fromkeys((*names, "planned"), 0)
    for cell in report["cells"]:
        result = cell.get("result") or {}
        for name in names:
            totals[name] += result.get(name) or 0
        if cell["scenario"] == NAME:
            totals["planned"] += cell.get("planned") or 0
    return totals


def _texts(totals: Mapping[str, int]) -> int:
    # Of a round that is not scored in full the last text is itself a failure.
    return totals["verdicts"] + totals["parse_failures"] - totals["unscored_rounds"] - totals["partly_scored_rounds"]


def _held(totals: Mapping[str, int]) -> str:
    if not totals["planned"] and not totals["interviews"]:
        return ""
    return f"{totals['interviews']:,} finished of {totals['planned']:,} planned"


def _share_of(part: int, whole: int, of: str) -> str:
    return f"{share(part, whole)} ({part:,} of {whole:,} {of})" if whole else ""


def _ruled(cells: Sequence[Record]) -> str:
    stopped = [cell for cell in cells if (cell.get("until") or {}).get("stopped_at") is not None]
    if not stopped:
        return ""
    counting, planned = (
        sum(n) for n in zip(*((c["until"]["stopped_at"], c["planned"] or 0) for c in stopped), strict=True)
    )
    return f"{counted(len(stopped), 'cell')}, after {counting:,} of {planned:,} talks planned"


def _off(lines: Sequence[tuple[str, Record]], side: str) -> str:
    """The models off the line, each with the datasets where it is."""
    found: dict[str, list[str]] = {}
    for dataset, line in lines:
        for model in line[side]:
            found.setdefault(model, []).append(dataset)
    return "; ".join(f"{model} ({joined(datasets)})" for model, datasets in found.items()) or "none"
