"""Further tables of a study: variants of the scorer, comparisons, agreement, hard items, stop reasons, costs, cells.

What never belongs here: the tables of ``tables``, and computing figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from viva.reports.failed import TITLE as FAILED
from viva.reports.text import DASH, Table, facts, interval, mean, number, percent, signed, small
from viva.scoring.failures import joined_reasons

_HARDEST = 5  # of each dataset; the report has more
_ROLES = ("candidate", "interactor", "evaluator")


def variants(report: Mapping[str, Any]) -> Table:
    """Decay and early stop on and off (Table 8)."""
    told = report["ablation"]
    header = ["candidate", *(_switches(one) for one in told)]
    candidates = list(dict.fromkeys(name for one in told for name in one["candidates"]))
    rows = [[name, *(mean(one["candidates"].get(name)) for one in told)] for name in candidates]
    if any(one["accuracy"] is not None for one in told):
        r = [number(one["accuracy"] and one["accuracy"]["r"], 3) for one in told]
        rows.append(["r with accuracy", *r])
    note = "talks that were ended at a flag have no score without early stop"
    title = f"KIEval with decaying weights (DW) and early stop (ES) on and off: {facts(report)}; {note}"
    return (title, header, rows)


def _switches(one: Mapping[str, Any]) -> str:
    told = [name for name, on in (("DW", one["decay"]), ("ES", one["early_stop"])) if on]
    return " + ".join(told) or "neither"


def comparisons(report: Mapping[str, Any]) -> list[Table]:
    """Pairs of candidates on the same items."""
    rows = []
    for one in report["comparisons"]:
        difference = one["difference"]
        text = signed(difference["value"])
        if difference["low"] is not None:
            text += f" ({signed(difference['low'])} to {signed(difference['high'])})"
        row = [one["dataset"] or "all", one["first"], one["second"], text, small(one["p"]), small(one["p_corrected"])]
        rows.append([*row, str(one["n"]), *(str(one[name]) for name in ("won", "tied", "lost"))])
    header = ["dataset", "first", "second", "first less second", "p", "p corrected", "items", "won", "tied", "lost"]
    correction = next((one["correction"] for one in report["comparisons"]), "")
    return [(f"KIEval compared item by item: {facts(report)}; p corrected by {correction}", header, rows)]


def agreement(report: Mapping[str, Any]) -> Table:
    """Whether other evaluators, or other seeds, come to the same verdicts."""
    rows = []
    for one in report["agreement"]:
        row = [one["over"], one["dataset"] or "all", one["candidate"] or "all"]
        votes = [percent(one["unanimous"]), percent(one["decided"])]
        rows.append(
            [*row, *(number(one[name], 3) for name in _AGREEMENTS), *votes, str(one["n"]), str(one["fleiss_n"])]
        )
    header = ["over", "dataset", "candidate", "κ", "κ quadratic", "κ Fleiss", "α ordinal", "α interval"]
    header += ["unanimous", "decided", "rounds", "rounds rated by all"]
    return (f"Agreement of verdicts: {facts(report)}", header, rows)


_AGREEMENTS = ("kappa", "kappa_quadratic", "fleiss", "alpha_ordinal", "alpha_interval")


def difficulty(report: Mapping[str, Any]) -> Table:
    """The hardest items of each dataset."""
    rows: list[list[str]] = []
    seen: dict[str, int] = {}
    for one in report["difficulty"]:
        seen[one["dataset"]] = seen.get(one["dataset"], 0) + 1
        if seen[one["dataset"]] <= _HARDEST:
            rows.append([one["dataset"], one["item"], number(one["mean"]), str(one["n"])])
            rows[-1].append(number(one["discrimination"], 2))
    header = ["dataset", "item", "KIEval", "candidates", "discrimination"]
    return (f"Hardest items: {facts(report)}", header, rows)


def needed(report: Mapping[str, Any]) -> Table:
    """How many items would make the interval of a score so narrow, from the spread that was seen."""
    rows = []
    for row in report["pooled"]:
        if row["items_needed"] is not None:
            half = (row["score"]["high"] - row["score"]["low"]) / 2
            counts = [f"{count:,}" for count in row["items_needed"].values()]
            rows.append([row["candidate"], row["dataset"] or "all", str(row["score"]["items"]), number(half), *counts])
    found = [row["items_needed"] for row in report["pooled"] if row["items_needed"] is not None]
    widths = list(found[0]) if found else []
    header = ["candidate", "dataset", "items", "half width", *(f"for ± {width}" for width in widths)]
    return (f"Items needed for a 95% interval of KIEval: {facts(report)}", header, rows)


def reasons(report: Mapping[str, Any]) -> Table:
    """Why talks ended early, and what failed."""
    every = {
        row["candidate"]: row["stop_reasons"] | {f"failed: {name}": count for name, count in row["failures"].items()}
        for row in report["pooled"]
        if row["scenario"] == "kieval"  # all datasets, where there are several, come last
    }
    names = sorted({name for one in every.values() for name in one})
    rows = [[candidate, *(str(one.get(name, 0)) for name in names)] for candidate, one in every.items()]
    return (f"Why talks ended early: {facts(report)}", ["candidate", *names], rows if names else [])


def failed(report: Mapping[str, Any]) -> Table:
    """Why conversations failed, over all cells."""
    told: dict[tuple[str, str], list[Mapping[str, int]]] = {}
    for one in report["cells"]:
        reasons = (one["result"] or {}).get("failure_reasons")
        if reasons:
            told.setdefault((one["scenario"], one["candidate"]), []).append(reasons)
    rows = [
        [scenario, candidate, str(count), reason]
        for (scenario, candidate), found in told.items()
        for reason, count in joined_reasons(found).items()
    ]
    return (FAILED, ["scenario", "candidate", "failed", "reason"], rows)


def cost_tables(report: Mapping[str, Any]) -> list[Table]:
    """Tokens of one model by dataset and role (Table 11), and the projection for more models (Table 9)."""
    told = report["costs"]
    used = told["datasets"] | ({"all": told["overall"]} if len(told["datasets"]) > 1 else {})
    rows = []
    for dataset, roles in used.items():
        for role in _in_order(roles):
            counts = [number(roles[role][name], 0) for name in ("calls", "prompt_tokens", "completion_tokens")]
            rows.append([dataset, role, *counts, number(roles[role]["cost"], 2)])
    header = ["dataset", "role", "calls", "prompt tokens", "completion tokens", "cost"]
    seeds = ", ".join(map(str, told["seeds"]))
    over = f"mean of {told['models']} model{'s' * (told['models'] != 1)}, {told['interviews']:,} interviews in all"
    over += f", seed{'s' * (len(told['seeds']) > 1)} {seeds}"
    unpriced = "" if told["priced"] else "; no price is known"
    made: list[Table] = [(f"Tokens and cost of one model: {over}{unpriced}", header, rows)]
    rows = []
    for one in told["projected"]:
        roles = one["roles"]
        total = {name: _sum(roles, name) for name in ("prompt_tokens", "completion_tokens", "cost")}
        costs = [number(roles[role]["cost"], 2) if role in roles else DASH for role in _ROLES]
        counts = [number(total[name], 0) for name in ("prompt_tokens", "completion_tokens")]
        rows.append([str(one["models"]), *counts, *costs, number(total["cost"], 2)])
    header = ["models", "prompt tokens", "completion tokens", *(f"cost {role}" for role in _ROLES), "cost"]
    made.append((f"Projected for more models, linear in their number{unpriced}", header, rows if used else []))
    return made


def _in_order(roles: Mapping[str, Any]) -> list[str]:
    return [*(role for role in _ROLES if role in roles), *(role for role in roles if role not in _ROLES)]


def _sum(roles: Mapping[str, Any], name: str) -> float | None:
    """None where a part of it is not known."""
    values = [used[name] for used in roles.values()]
    return None if None in values else float(sum(values))


def cells(report: Mapping[str, Any]) -> Table:
    """What was run, and how far it has come."""
    rows = []
    for one in report["cells"]:
        result, until = one["result"] or {}, one["until"] or {}
        state = one["state"]
        if state == "stopped":
            state = f"stopped after {until['stopped_at']}"
        score = mean(result.get("score"))
        if "low" in (told := result.get("score") or {}):  # a rule ended the cell: its own interval
            score = interval({"value": told["mean"], "low": told["low"], "high": told["high"]})
        if "score" not in result and result.get("accuracy"):
            score = f"accuracy {interval(next(iter(result['accuracy'].values())))}"
        row = [one["scenario"], one["candidate"], one["dataset"], str(one["seed"]), one["evaluator"] or DASH, state]
        done = f"{one['ended']:,}/{one['planned']:,}" if one["planned"] is not None else f"{one['ended']:,}"
        rows.append([*row, done, str(result["failed"]) if result else DASH, score])
    header = ["scenario", "candidate", "dataset", "seed", "evaluator", "state", "ended", "failed", "result"]
    return (f"{len(rows)} cells", header, rows)
