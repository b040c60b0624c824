"""A judge's corrected figures in words, in tables of 80 columns, and as rows of a CSV file.

What never belongs here: computing figures (``certificate``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from viva.reports.text import Table

from .exports import write_rows

Record = Mapping[str, Any]
COLUMNS = ("candidate", "versus", "figure", "value", "low", "high", "answers", "labels", "worth")
_TEXTS = ("candidate", "versus")
_NONE = "–"
_TRIED = 10  # labels, in ``benches/certified.py``


def sentences(record: Record) -> list[str]:
    """What was found, the most important first."""
    said = [_of_candidate(name, one, record) for name, one in list(record["candidates"].items())[:4]]
    told = [one for one in record["differences"] if _apart(one["corrected"])]
    for one in record["differences"][:6]:
        was, now = _apart(one["judged"]), _apart(one["corrected"])
        if one["corrected"] is not None and was != now:
            said.append(f"By the judge alone {_verdict(one, was)}; corrected, {_verdict(one, now)}.")
    if len(record["differences"]) > 1 and told:
        said.append(f"Corrected, {len(told)} of {len(record['differences'])} pairs are told apart.")
    found = record.get("drift")
    if found is not None:
        if found["found_at"] is not None:
            said.append(f"The judge has drifted from its calibration: found after {found['found_at']} labels.")
        else:
            tested = f"{found['labels']} labels (p at any time {found['p']:.2g})"
            said.append(f"No drift from the calibration is found in {tested}.")
    return said


def notes(record: Record) -> list[str]:
    """What a reader must know of the figures."""
    said = []
    if record["unscored"]:
        said.append(f"{record['unscored']} answers that the judge left unscored are in no figure")
    if record["labels_on_unscored"]:
        said.append(f"{record['labels_on_unscored']} labels are of answers that the judge left unscored, and not used")
    if record["waiting"]:
        said.append(
            f"{record['waiting']} lines have no grade; the figures hold if which ones has nothing to do with what the "
            "grades would be"
        )
    for name, one in record["candidates"].items():
        if one["corrected"] is None:
            said.append(f"{name}: {one['labels']} labels are too few to correct its figure; grade at least 3 items")
        elif one["labels"] < _TRIED:
            tried = f"intervals were tried out with {_TRIED} labels and more"
            said.append(f"{name}: {tried}; this rests on {one['labels']}")
    if record["scale"]["low"] is None or record["scale"]["high"] is None:
        said.append(
            "the ends of the scale are not known, so intervals do not allow for rare grades that no label shows and "
            "that the judge does not see; give --scale LOW:HIGH"
        )
    if record.get("correlations"):
        said.append("intervals of correlations do not allow for rare grades that no label shows")
    if not record["probabilities"]:
        said.append("labels are taken for an even random draw of each candidate's answers; else give 'probability'")
    return said


def tables(record: Record) -> list[Table]:
    """The tables, in the order of the questions that they answer."""
    found: list[Table] = [_candidates(record), _differences(record), _gaps(record)]
    if record["scale"]["passes"]:
        found += [_errors(record)]
    for name, by_candidate in record.get("correlations", {}).items():
        found.append(_correlation(name, by_candidate))
    if record.get("drift") is not None:
        found.append(_drift(record["drift"]))
    return found


def write_csv(record: Record, file: Path) -> None:
    """Every figure in a row of ``COLUMNS``.

    :raises ConfigurationError: the file cannot be written.
    """
    write_rows((dict.fromkeys(COLUMNS, "") | row for row in _rows(record)), COLUMNS, _TEXTS, file)


def _of_candidate(name: str, one: Record, record: Record) -> str:
    what = "pass rate" if record["scale"]["passes"] else "mean grade"
    judged = _plain(one["judged"]["value"], record)
    if one["corrected"] is None:
        return f"{name}: {what} {judged} as judged; too few labels to correct it."
    value = _plain(one["corrected"]["value"], record)
    if one["corrected"]["low"] is None:
        return (
            f"{name}: people's {what} is {value} by {one['labels']} labels that show no spread, from which no interval "
            f"follows where the ends of the scale are not known; the judge says {judged}."
        )
    low, high = (_plain(one["corrected"][end], record) for end in ("low", "high"))
    inside = one["corrected"]["low"] <= one["judged"]["value"] <= one["corrected"]["high"]
    beside = "which is within it" if inside else "which is outside"
    return (
        f"{name}: people's {what} would be {value} ({low} to {high}); the judge says {judged}, {beside}. "
        f"These {one['labels']} labels tell as much as {one['worth']:.0f} labels alone."
    )


def _apart(one: Record | None) -> int:
    """1 or -1 where a difference's interval excludes 0, else 0."""
    if one is None or one["low"] is None or one["high"] is None:
        return 0
    return 1 if one["low"] > 0.0 else -1 if one["high"] < 0.0 else 0


def _verdict(one: Record, sign: int) -> str:
    if sign == 0:
        return f"{one['first']} and {one['second']} are not told apart"
    better, worse = (one["first"], one["second"]) if sign > 0 else (one["second"], one["first"])
    return f"{better} is above {worse}"


def _candidates(record: Record) -> Table:
    header = ["candidate", record["graded"], "labels", "judged", "95%", "corrected", "95%", "worth"]
    header = [_level(record) if name == "95%" else name for name in header]
    rows = [
        [name, str(one["answers"]), str(one["labels"]), *_both(one, record), _worth(one)]
        for name, one in record["candidates"].items()
    ]
    title = "Pass rates" if record["scale"]["passes"] else "Mean grades"
    return f"{title}, as judged and corrected by {record['labels']} human grades", header, rows


def _differences(record: Record) -> Table:
    header = ["first – second", "judged", _level(record), "corrected", _level(record), "worth"]
    rows = [[f"{one['first']} – {one['second']}", *_both(one, record), _worth(one)] for one in record["differences"]]
    title = "Differences" if len(rows) < 2 else f"Differences; intervals hold for all {len(rows)} pairs together"
    return title, header, rows


def _gaps(record: Record) -> Table:
    header = ["candidate", "judge – people", _level(record), "size", "r"]
    rows = [
        [
            name,
            *_estimate(one["mean"], record),
            _plain(one["absolute"], record),
            _NONE if one["r"] is None else f"{one['r']:.2f}",
        ]
        for name, one in record["gaps"].items()
    ]
    return "The judge's gap on the graded", header, rows


def _errors(record: Record) -> Table:
    header = [
        "candidate",
        "sensitivity",
        "specificity",
        "good if passed",
        "good if failed",
        "Rogan–Gladen",
        _level(record),
    ]
    names = ("sensitivity", "specificity", "passed", "failed")
    rows = [
        [name, *(_share(one[field]) for field in names), *_estimate(one["rogan_gladen"], record)]
        for name, one in record["gaps"].items()
    ]
    return "The judge's errors, and the rate by sensitivity and specificity alone", header, rows


def _correlation(name: str, by_candidate: Mapping[str, Any]) -> Table:
    rows = []
    for candidate, pair in by_candidate.items():
        for kind, label in (("pearson", "Pearson r"), ("spearman", "Spearman ρ")):
            one = pair[kind]
            if one is None:
                rows.append([candidate, label, *[_NONE] * 5])
            else:
                rows.append([candidate, label, *_cells(one["judged"], 2), *_cells(one["corrected"], 2), _worth(one)])
    return f"Correlation of grades with {name}", ["candidate", "", "judged", "95%", "corrected", "95%", "worth"], rows


def _drift(found: Record) -> Table:
    gap = found["gap"]
    row = [
        str(found["labels"]),
        f"{found['calibration_gap']:.3g}",
        f"{gap['value']:.3g}",
        f"{gap['low']:.3g} to {gap['high']:.3g}",
        f"{found['evidence']:.3g}",
        f"{found['p']:.2g}",
        _NONE if found["found_at"] is None else str(found["found_at"]),
    ]
    header = ["labels", "gap before", "gap now", "at any time", "evidence", "p", "found at"]
    return f"Drift from {found['calibration_labels']} labels of the calibration (people – judge)", header, [row]


def _both(one: Record, record: Record) -> list[str]:
    return [*_estimate(one["judged"], record), *_estimate(one["corrected"], record)]


def _estimate(one: Record | None, record: Record) -> list[str]:
    if one is None:
        return [_NONE, _NONE]
    ends = [_NONE if one[end] is None else _plain(one[end], record) for end in ("low", "high")]
    return [_plain(one["value"], record), " to ".join(ends)]


def _cells(one: Record | None, digits: int) -> list[str]:
    if one is None:
        return [_NONE, _NONE]
    return [f"{one['value']:.{digits}f}", f"{one['low']:.{digits}f} to {one['high']:.{digits}f}"]


def _plain(value: float, record: Record) -> str:
    """Pass rates in percent; grades with as many digits as their scale asks for."""
    scale = record["scale"]
    if scale["passes"]:
        return f"{100.0 * value:.1f}"
    width = None if scale["low"] is None or scale["high"] is None else scale["high"] - scale["low"]
    return f"{value:.1f}" if width is not None and width >= 20.0 else f"{value:.2f}"


def _share(one: Record | None) -> str:
    return _NONE if one is None else f"{100.0 * one['value']:.0f}% of {one['n']:.0f}"


def _worth(one: Record) -> str:
    return _NONE if one["worth"] is None else f"{one['worth']:.0f}"


def _level(record: Record) -> str:
    return f"{100.0 * record['level']:g}%"


def _rows(record: Record) -> Iterator[dict[str, Any]]:
    def of(one: Record, names: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        counts = {name: one.get(name) for name in ("answers", "labels")}
        for figure in ("judged", "corrected", "labels_alone"):
            if one[figure] is not None:
                worth = {"worth": one["worth"]} if figure == "corrected" else {}
                yield {**names, "figure": figure, **one[figure], **counts, **worth}

    for name, one in record["candidates"].items():
        yield from of(one, {"candidate": name})
    for one in record["differences"]:
        yield from of(one, {"candidate": one["first"], "versus": one["second"]})
    for name, one in record["gaps"].items():
        for figure in ("mean", "rogan_gladen"):
            if one.get(figure) is not None:
                yield {"candidate": name, "figure": f"gap {figure}" if figure == "mean" else figure, **one[figure]}
    for known, by_candidate in record.get("correlations", {}).items():
        for name, pair in by_candidate.items():
            for kind, one in pair.items():
                if one is not None:
                    for row in of(one, {"candidate": name, "versus": known}):
                        yield row | {"figure": f"{kind} {row['figure']}"}
