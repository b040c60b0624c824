"""A study's report as titled tables, those of the KIEval paper first: scores, aspects, contamination, correlation.

Made from the report alone, so that tables and data cannot disagree. What never belongs here: computing figures, and
markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from viva.reports.text import Table, both, facts, interval, mean, number, percent, ranged
from viva.scenarios.kieval.score import ASPECTS

from .following import COEFFICIENTS, FIRST_ANSWER, PREFERRED, accuracy_of
from .further import agreement, cells, comparisons, cost_tables, difficulty, failed, needed, reasons, variants

_DETECTOR = "min_k_20"  # k = 20, as Shi et al. 2024 recommend
_NAMES = {"pearson": "Pearson r", "spearman": "Spearman ρ", "kendall": "Kendall τ"}
_ASPECTS = ("acc", "log", "rel", "coh", "con")


def tables(report: Mapping[str, Any]) -> list[Table]:
    """All tables that have a row; titles say scorer, seeds and tier."""
    rows = [row for row in report["pooled"] if row["scenario"] == "kieval"]
    made = [main(report, rows), aspects(report, rows), *contamination(report), *probes(report)]
    made += [*correlation(report), variants(report), *comparisons(report), agreement(report), difficulty(report)]
    made += [needed(report), reasons(report), failed(report), *cost_tables(report), cells(report)]
    return [table for table in made if table[2]]


def main(report: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Table:
    """Accuracy, KIEval and rounds by dataset and over all of them (Table 2)."""
    source = report["correlations"]["accuracy"]
    datasets = list(dict.fromkeys(row["dataset"] for row in rows if row["dataset"] is not None))
    several = len(datasets) > 1
    header = ["candidate"]
    for name in datasets if several else []:
        header += [f"{name} acc", f"{name} KIEval", f"{name} rnds"]
    before = "overall " if several else ""
    header += [f"{before}accuracy", f"{before}KIEval", "±", f"{before}rounds"]
    header += ["n", "unanswered", "unscored", "unparsed", "failed"]
    cells = []
    for candidate in dict.fromkeys(row["candidate"] for row in rows):
        own = {row["dataset"]: row for row in rows if row["candidate"] == candidate}
        line = [candidate]
        for name in datasets if several else []:
            one = own.get(name)
            line += ["–"] * 3 if one is None else _three(one, source)
        # A mean over fewer datasets than the others' would be compared with theirs.
        whole = own.get(None if several else datasets[0])
        complete = whole is not None and all(name in own and own[name]["score"]["n"] for name in datasets)
        told = whole or next(iter(own.values()))
        accuracy, score, rounds = _three(told, source) if complete else ["–"] * 3
        line += [accuracy, score, number(told["score"]["se"]) if complete else "–", rounds]
        line += [str(told["score"]["n"]), percent(told["unanswered_rate"]), percent(told["unscored_rate"])]
        cells.append([*line, percent(told["parse_failure_rate"]), str(told["failed"])])
    return (f"KIEval on {', '.join(datasets)}: {facts(report)}; accuracy: {_said(source)}", header, cells)


def aspects(report: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Table:
    """Each aspect's score by candidate and dataset (Tables 13–17)."""
    lines = []
    for row in rows:
        values = [number(row["aspects"][name]["mean"]) for name in ASPECTS[:-1]]
        lines.append([row["candidate"], row["dataset"] or "all", *values, *both(row["score"]), str(row["score"]["n"])])
    return (f"Aspects: {facts(report)}", ["candidate", "dataset", *_ASPECTS, "overall", "±", "n"], lines)


def contamination(report: Mapping[str, Any]) -> list[Table]:
    """Accuracy, losses and Min-K% beside the interview (Table 3), of candidates with losses.

    Accuracy is a probe's where there is one, by options' words if it was so probed, else that of the first answers.
    """
    lines = []
    for row in report["pooled"]:
        probe = row["probe"]
        if row["dataset"] is None or probe is None or probe["loss"] is None:
            continue
        detector = (probe["detectors"] or {}).get(_DETECTOR)
        shown = accuracy_of(row, next((name for name in PREFERRED if name in probe["accuracy"]), FIRST_ANSWER))
        loss = [number((probe[name] or {}).get("mean"), 2) for name in ("loss", "loss_against")]
        line = [row["candidate"], row["dataset"], number(shown["mean"]), *loss]
        line += [interval(probe["loss_gap"], 2), interval(detector, 2)]
        line += [number(row["aspects"][name]["mean"]) for name in ASPECTS[:-1]]
        lines.append([*line, *both(row["score"])])
    header = ["candidate", "dataset", "accuracy", "loss", "loss against", "gap", "AUC Min-20%"]
    title = f"Contamination: {facts(report)}; gap: members less others, nats per token"
    return [(title, [*header, *_ASPECTS, "KIEval", "±"], lines)]


def probes(report: Mapping[str, Any]) -> list[Table]:
    """Accuracies of the probes, and the score of interviews about items answered rightly and wrongly."""
    rows = [row for row in report["pooled"] if row["probe"] is not None and row["probe"]["accuracy"]]
    methods = list(dict.fromkeys(name for row in rows for name in row["probe"]["accuracy"]))
    lines = []
    for row in rows:
        probe = row["probe"]
        line = [row["candidate"], row["dataset"] or "all"]
        line += [ranged(probe["accuracy"].get(name)) for name in methods]
        found = probe.get("joined")
        line += ["–", "–", "–"] if found is None else [str(found["n"]), *_sides(found)]
        lines.append(line)
    header = ["candidate", "dataset", *(name.replace("_", " ") for name in methods)]
    header += ["items in both", "KIEval where right", "KIEval where wrong"]
    return [(f"Probed accuracy, and KIEval on the same items: {facts(report)}", header, lines)]


def correlation(report: Mapping[str, Any]) -> list[Table]:
    """Coefficients (Table 7), once more and without p-values without the models below a line; the lines."""
    told = report["correlations"]
    without = told["excluding"]
    header = ["dataset", "n", *(text for name in COEFFICIENTS for text in (_NAMES[name], "p"))]
    chosen = ["dataset", "n", *(_NAMES[name] for name in COEFFICIENTS)]
    title = f"KIEval against accuracy ({_said(told['accuracy'])}): {facts(report)}"
    made: list[Table] = [(title, header, _coefficients(told))]
    if without is not None:
        title = (
            f"The same without {', '.join(without['models'])} (below a line), who were chosen by these figures: no p"
        )
        made.append((title, chosen, _coefficients(without, chosen=True)))
    lines = []
    for name, fit in told["lines"].items():
        if fit is not None:
            numbers = [number(fit["slope"], 3), number(fit["intercept"]), number(fit["spread"])]
            lines.append([name, *numbers, *(", ".join(fit[side]) or "–" for side in ("below", "above"))])
    header = ["dataset", "slope", "intercept", "spread", "below", "above"]
    made.append(("KIEval = intercept + slope × accuracy", header, lines))
    return made


def _coefficients(told: Mapping[str, Any], chosen: bool = False) -> list[list[str]]:
    several = len(told["datasets"]) > 1
    parts = {"overall": told["overall"]} if several else {}
    rows = []
    for name, one in (parts | told["datasets"]).items():
        row = [name, str(one["n"])]
        for coefficient in COEFFICIENTS:
            found = one[coefficient]
            row.append("–" if found is None else f"{found['value']:.3f}")
            if not chosen:
                row.append("–" if found is None else f"{found['p']:.2e}")
        rows.append(row)
    return rows if any(text != "–" for row in rows for text in row[2:]) else []


def _three(row: Mapping[str, Any], source: str) -> list[str]:
    accuracy = accuracy_of(dict(row), source)
    return [number(accuracy["mean"]), number(row["score"]["mean"]), number(row["rounds"]["mean"], 2)]


def _sides(found: Mapping[str, Any]) -> list[str]:
    return [mean(found[side]) for side in ("right", "wrong")]


def _said(source: str) -> str:
    return f"of the {FIRST_ANSWER}s" if source == FIRST_ANSWER else f"probed by {source}"
