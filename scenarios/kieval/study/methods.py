"""Shared parts of the sections of a study: explanations of figures, the source of accuracies, plot panels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from viva.reports import plot_style
from viva.reports.page import (
    Plot,
    Record,
    count_of,
    describe_seeds,
    describe_tiers,
    distinct_values,
    join_names,
    list_names,
    percentage,
)

from ...run_aggregate import tier_name
from ...study_sections import StaticFigures, insert_after
from ..interview_report import MAX_UNANSWERED

NAME = "kieval"
FIRST_ANSWER = "first answer"
_SCORERS = {
    "official": (
        "Verdicts of 1, 2, 3 and 4 count 1, 3, 7 and 10 (0 counts 0); the i-th scored round, from 0, weighs "
        "exp(−0.2 i); an interview's score is ten times the weighted mean of its scored rounds, 0–100. This is how the "
        "published KIEval figures were computed."
    ),
    "linear": (
        "A verdict counts a quarter of its points; the i-th scored round, from 0, weighs exp(−0.2 i); an interview's "
        "score is a hundred times the weighted mean of its scored rounds."
    ),
    "corrected": (
        "Verdicts of 1, 2, 3 and 4 count 1, 3, 7 and 10 (0 counts 0); round i, from 0, weighs exp(−0.2 i) by its true "
        "number; unscored rounds are left out without moving others up, and rounds lost to an early stop count 0."
    ),
}


def title_facts(report: Record) -> str:
    """Return the facts for table titles: scorer, seeds, and reproducibility."""
    facts = report["facts"]
    seeds = ", ".join(map(str, facts["seeds"])) or "–"
    tiers = " and ".join(map(tier_name, facts["tiers"])) or "–"
    scorer = f"scorer {report['scorer']}, " if facts["rounds"] else ""  # without interviews nothing is scored
    return f"{scorer}seed{'s' * (len(facts['seeds']) > 1)} {seeds}, {tiers}"


def row_prefix(report: Record, **columns: Any) -> dict[str, Any]:
    """Return the first columns of a long-form figure of the whole study."""
    return {"scenario": NAME, "scorer": report["scorer"], **columns}


def page_facts(common: dict[str, str], report: Record) -> dict[str, str]:
    """Return facts about the runs as terms and descriptions."""
    cells, totals = report["cells"], _totals(report)
    lines = [(name, line) for name, line in ((report.get("correlations") or {}).get("lines") or {}).items() if line]
    facts = insert_after(common, "Seeds", Interactor=list_names(distinct_values(cells, "interactor")))
    scored = report["scorer"] if totals["interviews"] else ""
    rounds = join_names(map(str, sorted(distinct_values(cells, "rounds"))))
    facts = insert_after(facts, "Evaluator", Scorer=scored, Rounds=rounds)
    facts = insert_after(facts, "Cells", Interviews=_finished_text(totals))
    return facts | {
        "Unscored rounds": _share_of(totals["unscored_rounds"], totals["verdicts"], "rounds"),
        "Unreadable verdicts": _share_of(totals["parse_failures"], _text_count(totals), "texts of the evaluator"),
        "Ended by a rule": _stopped_by_rule(cells),
        "Below the line": _outliers(lines, "below") if lines else "",
        "Above the line": _outliers(lines, "above") if lines else "",
    }


def origin(report: Record) -> str:
    """Return a line to print below a figure: n, scorer, seeds, reproducibility, and rates of unread verdicts."""
    cells, totals = report["cells"], _totals(report)
    probes = sum(cell.get("ended") or 0 for cell in cells if cell["scenario"] != NAME)
    parts = []
    if totals["interviews"] or not probes:
        parts += [f"n = {totals['interviews']:,} interviews", f"scorer {report['scorer']}"]
    if probes:
        parts.append(f"n = {probes:,} probes")
    parts += [describe_seeds(cells), describe_tiers(cells)]
    if totals["interviews"] or not probes:
        parts.append(f"unscored {percentage(totals['unscored_rounds'], totals['verdicts'])}")
        parts.append(f"unparsed {percentage(totals['parse_failures'], _text_count(totals))}")
    return " · ".join(parts)


def methods(report: Record, lent: StaticFigures | None) -> list[tuple[str, str]]:
    """Return how figures are computed, as terms and descriptions."""
    scorer, cells = str(report["scorer"]), report["cells"]
    entries: list[tuple[str, str]] = []
    if _totals(report)["interviews"]:
        description = _SCORERS.get(scorer.split(" ")[0], "")
        switched = " No decay: all rounds weigh the same." if "no decay" in scorer else ""
        switched += (
            " No early stop: flags of interviews that continued are ignored." if "no early stop" in scorer else ""
        )
        entries = [
            (f"Score, scorer {scorer}", description + switched),
            (
                "Errors and intervals",
                "Standard errors are clustered by item: interviews about one item under several seeds or evaluators "
                "are not independent. SE and ± are one standard error; intervals are 95% intervals within the range "
                "of the figure: Wilson's for rates, similar ones for scores. p-values of comparisons are from a "
                "sign-flip permutation test up to 100 items, from Student's t beyond."
                + (
                    " If a rule ended the interviews, the intervals of scores are its confidence sequences, which "
                    "are valid however often you look."
                    if any("low" in ((cell.get("result") or {}).get("score") or {}) for cell in cells)
                    else ""
                ),
            ),
            (
                "Unanswered, unscored, unparsed",
                "A first answer that names no choice is unanswered and counts as wrong; accuracy leaves out questions "
                "without choices. "
                "A round is unscored, which does not count as 0, if its verdict could not be read even after repairs. "
                "Unparsed is the share of the evaluator's texts that could not be read. Failed interviews ended with "
                "an error and are counted, not scored.",
            ),
        ]
    if lent is not None and any(cell["scenario"] != NAME for cell in cells):
        entries += lent.explanations()
    if (report.get("correlations") or {}).get("figures"):
        text = (
            "Coefficients over models with two-sided p-values. If pooled over datasets, figures of one model are "
            "treated as independent, so these p-values are too small. Lines: reweighted least trimmed squares of score "
            "on accuracy; a model is off the line beyond three expected spreads of the residuals, combined with its "
            "own standard errors. With few models and no standard errors, chance alone often puts one off the line."
        )
        entries.append(("Correlations and lines", text))
    return entries


def accuracy_label(source: str | None, lent: StaticFigures | None) -> str:
    """Return the source of accuracies, for an axis."""
    return (
        FIRST_ANSWER if not source or source == FIRST_ANSWER else source if lent is None else lent.method_label(source)
    )


def of_interviews(report: Record) -> list[Record]:
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


def _text_count(totals: Mapping[str, int]) -> int:
    # The last text of a round without all scores is itself a failure.
    return totals["verdicts"] + totals["parse_failures"] - totals["unscored_rounds"] - totals["partly_scored_rounds"]


def _finished_text(totals: Mapping[str, int]) -> str:
    if not totals["planned"] and not totals["interviews"]:
        return ""
    return f"{totals['interviews']:,} finished of {totals['planned']:,} planned"


def _share_of(part: int, total: int, unit: str) -> str:
    return f"{percentage(part, total)} ({part:,} of {total:,} {unit})" if total else ""


def _stopped_by_rule(cells: Sequence[Record]) -> str:
    stopped = [cell for cell in cells if (cell.get("until") or {}).get("stopped_at") is not None]
    if not stopped:
        return ""
    counting, planned = (
        sum(n) for n in zip(*((c["until"]["stopped_at"], c["planned"] or 0) for c in stopped), strict=True)
    )
    return f"{count_of(len(stopped), 'cell')}, together after {counting:,} of their {planned:,} planned interviews"


def _outliers(lines: Sequence[tuple[str, Record]], side: str) -> str:
    """Return the models off the line, each with its datasets."""
    datasets_of: dict[str, list[str]] = {}
    for dataset, line in lines:
        for model in line[side]:
            datasets_of.setdefault(model, []).append(dataset)
    return "; ".join(f"{model} ({join_names(datasets)})" for model, datasets in datasets_of.items()) or "none"


def accuracy_source(pooled: Sequence[Record], lent: StaticFigures | None) -> str:
    """Return the source of accuracies: the best static method that all interviewed candidates have, else first answers.

    All rows have accuracies of one kind, because those of different kinds are not comparable. `pooled` are the rows of
    one dataset, or all rows.
    """
    rows = [row for row in pooled if row["dataset"] is not None and row["score"]["n"]]
    for method in () if lent is None else lent.preferred:
        if rows and all(row["probe"] is not None and method in row["probe"]["accuracy"] for row in rows):
            return method
    return FIRST_ANSWER


def accuracy_of(row: Record, source: str) -> dict[str, Any]:
    """Return a pooled row's accuracy by that source, in per cent."""
    if source == FIRST_ANSWER:
        own: dict[str, Any] = row["accuracy"]
        return own
    return dict((row["probe"] or {}).get("accuracy", {}).get(source, {"mean": None, "se": None}))


def unanswered_of(row: Record, source: str) -> float | None:
    """Return the share (0–1) of items with an answer by that source that names no choice and counts as wrong."""
    record = row if source == FIRST_ANSWER else (row["probe"] or {}).get("unanswered", {}).get(source, {})
    rate: float | None = record.get("unanswered_rate")
    return rate


def is_too_seldom_answered(row: Record, source: str) -> bool:
    """Return True if the accuracy shows how often an answer could be read rather than what a model knows."""
    return (unanswered_of(row, source) or 0.0) > MAX_UNANSWERED


def accuracy_titles(correlations: Record) -> str:
    """Return the sources as table titles name them, by dataset if they differ."""
    sources = correlations.get("accuracies") or {}
    if len(set(sources.values())) < 2:
        return _source_title(next(iter(sources.values()), correlations["accuracy"]))
    return join_names(f"{_source_title(source)} on {name}" for name, source in sources.items())


def _source_title(source: str) -> str:
    return f"of the {FIRST_ANSWER}s" if source == FIRST_ANSWER else f"probed by {source}"


Drawing = tuple[str, str]  # an SVG and its one-line description


def plot_group(report: Record, anchor: str, heading: str, caption: str, panels: Sequence[Drawing]) -> list[Plot]:
    """Return a plot with several panels, or nothing without panels."""
    return [Plot(anchor, heading, caption, origin(report), panels)] if panels else []


def overlap_sentence(groups: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Return a caption sentence on candidates that share a line, by dataset; empty if none do."""
    if not groups:
        return ""
    several = len({dataset for dataset, _ in groups}) > 1
    text = "; ".join(join_names(names) + (f" ({dataset})" if several else "") for dataset, names in groups)
    return f" Candidates with identical figures share one line: {text}."


def ranked_candidates(report: Record) -> list[str]:
    """Return the candidates, best overall score first; candidates without a score come last, in the study's order."""
    names = list(dict.fromkeys(row["candidate"] for row in report["pooled"]))
    best: dict[str, tuple[bool, float]] = {}
    for row in report["pooled"]:  # the row over all datasets counts, or the only one
        mean = (row.get("score") or {}).get("mean")
        if mean is not None and (row["dataset"] is None or row["candidate"] not in best):
            best[row["candidate"]] = (True, mean)
    return sorted(names, key=lambda name: -best[name][1] if name in best else math.inf)


def rows_by_dataset(report: Record) -> Iterable[tuple[str, list[Record]]]:
    """Yield each dataset with the pooled interviews of its candidates, best candidates first."""
    rank = {name: index for index, name in enumerate(ranked_candidates(report))}
    rows = [row for row in report["pooled"] if row["dataset"] is not None and row["n_observations"]]
    for name in dict.fromkeys(row["dataset"] for row in rows):
        yield name, sorted((row for row in rows if row["dataset"] == name), key=lambda row: rank[row["candidate"]])


def dataset_names(report: Record) -> list[str]:
    return list(dict.fromkeys(cell["dataset"] for cell in report["cells"]))


def short_dataset_name(name: str) -> str:
    """Return a dataset's name, shortened for the title of a panel."""
    return plot_style.shorten_names([name], 100)[name]


def interval_reach(record: Record) -> tuple[float, float] | None:
    """Return how far the interval extends below and above the mean."""
    low, high = record.get("low"), record.get("high")
    return None if low is None or high is None else (max(0.0, record["mean"] - low), max(0.0, high - record["mean"]))
