"""What a study of interviews found, in sentences: who is suspected of contamination, who is best, and how sure that is.

What never belongs here: computing figures (the other sections), and markup.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from viva.reports.page import Record, counted, joined
from viva.reports.text import number

from ...study.findings import Findings, Standing
from .words import of_interviews

_DETECTOR = "min_k_20"
_CHANCE = 0.5  # the area under the curve of a detector that sees nothing
_SURE = 0.05
_FEWEST = 4  # candidates on a line: of three, none can be off it


def findings(report: Record) -> Findings | None:
    """The findings of a report; None where nothing was scored and no text was compared with others."""
    rows = [row for row in _overall(of_interviews(report)) if row["score"]["mean"] is not None]
    remarks = _suspicions(report)
    if not rows:
        probed = list(_familiarity(report, remarks))
        return Findings(probed) if probed else None
    rows.sort(key=lambda row: -row["score"]["mean"])
    standings = [_standing(row, remarks.get(row["candidate"], [])) for row in rows]
    contamination, best = list(_contamination(report, rows, remarks)), list(_best(report, rows))
    # What could not be judged is no answer: who is best comes before it.
    sentences = [*contamination, *best] if remarks or _judged(report) else [*best, *contamination]
    return Findings(sentences, "KIEval score, 0–100", standings)


def _overall(rows: Sequence[Record]) -> list[Record]:
    """One row a candidate: that over all datasets where it has several."""
    found: dict[str, Record] = {}
    for row in rows:
        if row["dataset"] is None or row["candidate"] not in found:
            found[row["candidate"]] = row
    return list(found.values())


def _standing(row: Record, remarks: list[str]) -> Standing:
    score = row["score"]
    return Standing(
        row["candidate"],
        score["mean"],
        score.get("low"),
        score.get("high"),
        score.get("n") or 0,
        bool(remarks),
        "; ".join(remarks),
    )


def _suspicions(report: Record) -> dict[str, list[str]]:
    """What speaks against each candidate: far below the line, or texts of the benchmark that it knows."""
    found: dict[str, list[str]] = {}
    several = len((report.get("correlations") or {}).get("lines") or {}) > 1
    for dataset, line in _lines(report):
        for model in line["below"]:
            where = f" on {dataset}" if several else ""
            found.setdefault(model, []).append(f"{number(-line['residuals'][model])} below the line{where}")
    for row in report["pooled"]:
        one = _detected(row)
        if one is not None and one["low"] > _CHANCE:
            where = f" of {row['dataset']}" if several else ""
            text = f"recalls the texts{where} (AUC {number(one['value'], 2)})"
            if text not in found.setdefault(row["candidate"], []):
                found[row["candidate"]].append(text)
    return found


def _detected(row: Record) -> Record | None:
    """What the detector says of a candidate on one dataset; None where it was not asked."""
    one: Record = ((row.get("probe") or {}).get("detectors") or {}).get(_DETECTOR) or {}
    return one if row["dataset"] is not None and one.get("low") is not None else None


def _familiarity(report: Record, remarks: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """What probes alone say; nothing where no texts were compared."""
    names = list(dict.fromkeys(row["candidate"] for row in report["pooled"] if _detected(row) is not None))
    if names and not remarks:
        yield f"No contamination seen: to {joined(names)} the dataset's texts are no more familiar than the others."
    elif names:
        yield from _suspected(names, remarks)


def _lines(report: Record) -> Iterator[tuple[str, Record]]:
    for dataset, line in ((report.get("correlations") or {}).get("lines") or {}).items():
        if line:
            yield dataset, line


def _judged(report: Record) -> set[str]:
    """The candidates on a line that could tell one of them apart."""
    return {m for _, line in _lines(report) if len(line["residuals"]) >= _FEWEST for m in line["residuals"]}


def _contamination(report: Record, rows: Sequence[Record], remarks: Mapping[str, Sequence[str]]) -> Iterator[str]:
    names = [row["candidate"] for row in rows]
    if any(name in remarks for name in names):
        yield from _suspected(names, remarks)
    elif judged := _judged(report):
        told = f"none of {counted(len(judged), 'candidate')} is far below the line of score on accuracy"
        others = [name for name in names if name not in judged]
        if others:
            probed = "".join(_probed_clean(report, name) for name in others)
            yield f"Not judged by interviews: {joined(others)}, of which accuracy or score is missing.{probed}"
        yield f"No contamination seen: {told}."
    else:
        yield f"Contamination cannot be judged: a line of score on accuracy takes {_FEWEST} candidates with both."


def _probed_clean(report: Record, name: str) -> str:
    """A sentence for a candidate whose probe found nothing; empty where it was not probed."""
    found = [one for row in report["pooled"] if row["candidate"] == name and (one := _detected(row)) is not None]
    if not found:
        return ""
    return f" Its probe sees no contamination: {name}, AUC {number(max(one['value'] for one in found), 2)}."


def _suspected(names: Sequence[str], remarks: Mapping[str, Sequence[str]]) -> Iterator[str]:
    suspected = [name for name in names if name in remarks]
    why = "; ".join(f"{name}: {', '.join(remarks[name])}" for name in suspected)
    yield f"Contamination suspected: {joined(suspected)}."
    clean = len(names) - len(suspected)
    yield f"{why}." + (f" Clean as far as seen: {counted(clean, 'candidate')}." if clean else "")


def _best(report: Record, rows: Sequence[Record]) -> Iterator[str]:
    """Who leads, and whether the next one is told from it beyond chance."""
    first = rows[0]
    score = first["score"]
    interval = ""
    if score.get("low") is not None:
        interval = f"95% interval of {first['candidate']}: {number(score['low'])} to {number(score['high'])}"
    if len(rows) == 1:
        yield f"{first['candidate']} scores {number(score['mean'])} over {counted(score['n'], 'interview')}."
        yield from [f"{interval}."] if interval else []
        return
    yield f"Best: {first['candidate']}, {number(score['mean'])}."
    second = rows[1]
    pair = {first["candidate"], second["candidate"]}
    compared = [one for one in report["comparisons"] if {one["first"], one["second"]} == pair]
    p = max((one["p_corrected"] for one in compared if one.get("p_corrected") is not None), default=None)
    behind = f"{second['candidate']} follows with {number(second['score']['mean'])}"
    if p is None:
        sure = "whether that is chance was not tested"
    elif p < _SURE:
        sure = f"more than chance gives (Holm-corrected p {'< 0.001' if p < 0.001 else f'= {p:.3f}'})"
    else:
        sure = f"no more than chance may give (Holm-corrected p = {p:.2f})"
    yield "; ".join(filter(None, (interval, f"{behind}, {sure}.")))
