"""Tables of a load test's report, verdicts first; all fit into 80 columns without a line break in a number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from viva.reports.page import Record
from viva.reports.tables import DASH, Table, number, p_value, percent
from viva.scoring.load_schedule import Objective

from .load_sentences import JudgementStatus, digits_of, has_same_verdicts, judgement_status, seconds_text

_SHORTEST = 5e-5  # seconds; shorter latencies are not shown: they are gaps in answers that came in one piece

_FIGURES = {
    "scores": "mean score",
    "verdicts": "vs. unloaded",
    "spread": "std. deviation",
    "unreadable": "no verdict",
    "reference": "vs. reference",
    "position": "position bias",
}
_STATUS_TEXTS: dict[JudgementStatus, str] = {
    "unknown": DASH,
    "changed": "CHANGED",
    "failed": "many failed",
    "few": "too few",
    "same": "no change",
}


def load_tables(report: Record, *, brief: bool = False) -> list[Table]:
    """Return all tables; those without rows are omitted when they are printed.

    With `brief`, changes are shown only at loads that flag a judge, and agreement only for verdicts, not for bytes.
    """
    return [
        _judgement_table(report),
        _speed_table(report),
        _latency_table(report),
        _change_table(report, brief),
        _agreement_table(report, brief),
        _failure_table(report),
        _noise_table(report),
        _throughput_table(report),
        _error_table(report),
    ]


def _each_step(report: Record) -> Iterator[tuple[list[str], Record, Record, Record]]:
    """Yield (first cells, judge, step, its judgement). If there is only one judge, rows do not name it."""
    several = len(report["judges"]) > 1
    for judge in report["judges"]:
        for step in judge["steps"]:
            yield [*([judge["judge"]] if several else []), step["judgement"]["load"]], judge, step, step["judgement"]


def _key_columns(report: Record) -> list[str]:
    return [*(["judge"] if len(report["judges"]) > 1 else []), "load"]


def _judgement_table(report: Record) -> Table:
    rows = []
    for keys, judge, _, step in _each_step(report):
        scores = _find_figure(step, "scores")
        same = step["agreement"]
        digits = digits_of(judge["judgement"])
        rows.append([
            *keys,
            _STATUS_TEXTS[judgement_status(step)],
            *_change_cells(None if scores is None else scores["change"], digits, same=has_same_verdicts(step)),
            percent(None if same is None else same["same"]["value"]),
            percent(step["unreadable"]),
        ])  # fmt: skip
    header = [*_key_columns(report), "verdict", "change", _level_text(report), "agreement", "no verdict"]
    return "Verdicts under load, compared with two unloaded passes", header, rows


def _speed_table(report: Record) -> Table:
    rows = []
    for keys, _, step, _ in _each_step(report):
        speed = step.get("speed")
        if speed:
            e2e = speed["latencies"]["e2e"]
            rows.append([
                *keys,
                number(step["verdicts_per_minute"]),
                *(seconds_text(e2e[name]) if name in e2e else DASH for name in ("p50", "p95", "p99")),
                percent(_share_of_requests(speed, "answered")),
                percent(speed.get("queueing_share")),
            ])  # fmt: skip
    header = [*_key_columns(report), "verdicts/min", "p50", "p95", "p99", "answered", "queueing"]
    return "Speed, from the intended start of each request", header, rows


def _latency_table(report: Record) -> Table:
    rows = []
    names = {"ttft": "first token", "itl": "between tokens", "service": "from dispatch", "dispatch": "dispatch delay"}
    for keys, _, step, _ in _each_step(report):
        latencies = (step.get("speed") or {}).get("latencies", {})
        for name, title in names.items():
            latency = latencies.get(name, {})
            if latency.get("max", 0.0) >= _SHORTEST:
                rows.append(
                    [*keys, title, *(seconds_text(latency[statistic]) for statistic in ("p50", "p95", "p99", "max"))]
                )
    return "Latency components", [*_key_columns(report), "component", "p50", "p95", "p99", "max"], rows


def _change_table(report: Record, brief: bool) -> Table:
    rows = []
    for keys, judge, _, step in _each_step(report):
        if brief and not step["flagged"]:
            continue
        for figure in step["figures"]:
            if figure["aspect"] not in (judge["judgement"]["aspect"], "", "label") and not figure["changed"]:
                continue  # other aspects are shown only if they changed
            is_share = figure["figure"] == "unreadable" or (
                figure["aspect"] == "label" and figure["figure"] != "position"
            )
            digits = digits_of(judge["judgement"])
            to_text = percent if is_share else lambda value, digits=digits: number(value, digits)
            name = _FIGURES[figure["figure"]]
            if figure["aspect"] not in (judge["judgement"]["aspect"], "", "label"):
                name += f", {figure['aspect']}"
            change = figure["change"]
            rows.append([
                *keys,
                name + (" *" if figure["changed"] else ""),
                to_text(figure["unloaded"]),
                to_text(figure["loaded"]),
                f"{to_text(change['low'])} to {to_text(change['high'])}",
                f"{figure['n']:,}",
                p_value(figure["p"]),
            ])  # fmt: skip
    header = [*_key_columns(report), "figure", "unloaded", "loaded", f"change, {_level_text(report)}", "n", "p"]
    return "Changes (* beyond noise; p corrected for all loads and figures)", header, rows


def _agreement_table(report: Record, brief: bool) -> Table:
    rows = []
    with_what = {"agreement": "unloaded", "seeds": "other seeds", "reference": "reference"}
    several = len(report["judges"]) > 1
    for judge in report["judges"]:
        name = [judge["judge"]] if several else []
        unloaded = judge["judgement"]["unloaded"]
        for load, record in [("unloaded", unloaded), *((step["load"], step) for step in judge["judgement"]["steps"])]:
            for field, partner in with_what.items():
                agreement = record[field]
                if agreement is not None:
                    rows.append(
                        [
                            *name,
                            load,
                            partner,
                            *_same_cells(agreement),
                            number(agreement["beyond_chance"], 2),
                            f"{agreement['n']:,}",
                        ]
                    )
            if record["texts"] is not None and not brief:
                agreement = record["texts"]
                rows.append([*name, load, "unloaded (bytes)", *_same_cells(agreement), DASH, f"{agreement['n']:,}"])
            if record["position"] is not None:
                agreement = record["position"]
                partner = "other order"
                rows.append(
                    [*name, load, partner, *_same_cells({"same": agreement["consistent"]}), DASH, f"{agreement['n']:,}"]
                )
    header = [*_key_columns(report), "compared with", "agreement", _level_text(report), "κ or α", "n"]
    return "Agreement of verdicts", header, rows


def _failure_table(report: Record) -> Table:
    rows = []
    for keys, _, _, step in _each_step(report):
        for kind, failure in step["failures"].items():
            if failure["loaded"] or failure["unloaded"]:
                change = failure["change"]
                ends = f"{percent(change['low'])} to {percent(change['high'])}"
                rows.append([*keys, kind, percent(failure["unloaded"]), percent(failure["loaded"]), ends])
    header = [*_key_columns(report), "failure", "unloaded", "loaded", f"change, {_level_text(report)}"]
    return "Answers without a verdict", header, rows


def _noise_table(report: Record) -> Table:
    rows = []
    for judge in report["judges"]:
        unloaded, digits = judge["judgement"]["unloaded"], digits_of(judge["judgement"])
        noise = unloaded["noise"]
        same = unloaded["agreement"]
        if same is None and unloaded["mean"] is None:
            continue
        rows.append([
            judge["judge"],
            unloaded["second_pass"],
            number(unloaded["mean"], digits),
            *_change_cells(None if noise is None else noise["change"], digits),
            number(None if noise is None else noise["apart"], digits),
            percent(None if same is None else same["same"]["value"]),
        ])  # fmt: skip
    header = ["judge", "second pass", "mean", "change", _level_text(report), "mean abs. difference", "agreement"]
    return "Baseline noise: two unloaded passes compared", header, rows


def _throughput_table(report: Record) -> Table:
    rows = []
    for keys, _, step, _ in _each_step(report):
        speed = step.get("speed")
        if speed:
            rows.append([
                *keys,
                *(number(speed.get(name), 2) for name in ("offered_rate", "throughput")),
                number(speed.get("goodput") if _bounds_latency(report) else None, 2),
                number(speed.get("tokens_per_second"), 0),
                number(speed.get("in_flight"), 1),
                number(speed.get("cost_per_1000"), 2),
                str(speed.get("end", DASH)).replace("_", " "),
            ])  # fmt: skip
    header = [
        *_key_columns(report),
        "offered/s",
        "answered/s",
        "goodput/s",
        "tokens/s",
        "in flight",
        "cost/1,000",
        "end",
    ]
    columns = [index for index in range(len(header)) if any(row[index] != DASH for row in rows)]
    return "Throughput", [header[index] for index in columns], [[row[index] for index in columns] for row in rows]


def _bounds_latency(report: Record) -> bool:
    """Return True if the objective bounds a latency; otherwise goodput equals throughput."""
    objective = report["objective"]
    return bool(objective and Objective.parse(objective["text"]).limits())


def _error_table(report: Record) -> Table:
    rows = []
    for keys, _, step, _ in _each_step(report):
        for kind, count in (step.get("speed") or {}).get("errors", {}).items():
            rows.append([*keys, kind, f"{count:,}"])
    return "Failed requests (not in the latencies)", [*_key_columns(report), "error", "requests"], rows


def _find_figure(step: Record, name: str) -> Any:
    return next((figure for figure in step["figures"] if figure["figure"] == name), None)


def _change_cells(change: Record | None, digits: int, *, same: bool = False) -> tuple[str, str]:
    """Return (change, its interval); the interval is empty if all verdicts are the same."""
    if change is None:
        return DASH, DASH
    if change["low"] is None or same:
        return f"{change['value']:+.{digits}f}", DASH
    return f"{change['value']:+.{digits}f}", f"{change['low']:+.{digits}f} to {change['high']:+.{digits}f}"


def _same_cells(agreement: Record) -> tuple[str, str]:
    same = agreement["same"]
    return percent(same["value"]), f"{percent(same['low'])} to {percent(same['high'])}"


def _share_of_requests(speed: Record, name: str) -> float | None:
    return speed[name] / speed["requests"] if speed["requests"] else None


def _level_text(report: Record) -> str:
    return f"{100 * (1 - report['alpha']):g}%"
