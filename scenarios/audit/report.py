"""The report of an audit: what was found, in one sentence a judge, and tables with the cases that show it.

What never belongs here: computing findings (``figures``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from viva.reports.failed import failed_table
from viva.reports.irregular import Irregular, add_irregular, irregular_of, irregular_record
from viva.reports.page import joined
from viva.reports.text import DASH, Table, percent, signed, small
from viva.reports.usage import add_usage, usage_of, usage_table
from viva.scoring.failures import Failures

from ..models import label_of, role_prices
from .figures import JudgeVerdicts, findings
from .protocol import JUDGE
from .settings import AuditSettings

_WORDS = {
    "position": ("prefers the answer shown first", "prefers the answer shown last"),
    "verbosity": ("prefers longer answers", "prefers shorter answers"),
    "format": ("prefers answers in Markdown", "prefers answers in plain text"),
    "self": ("prefers answers of its own family", "prefers answers of other families"),
    "labels": ("grades higher", "grades lower"),
    "retest": ("grades the same answer differently", ""),
}
_TITLES = {
    "position": "position: first − second",
    "verbosity": "verbosity: padded − plain",
    "format": "format: Markdown − plain",
    "self": "self: own − other family",
    "retest": "retest: spread of grades",
}


class AuditedJudge:
    """What one judge's conversations came to, in any order."""

    def __init__(self) -> None:
        self.verdicts = JudgeVerdicts()
        self.conversations = self.stopped = 0
        self.failures = Failures()
        self.usage: dict[str, list[int]] = {}
        self.irregular: Irregular = {}

    def add(self, record: Mapping[str, Any]) -> None:
        """One conversation's record."""
        self.conversations += 1
        self.stopped += "stopped" in record
        self.verdicts.add(record)
        add_usage(self.usage, record["usage"])
        add_irregular(self.irregular, record.get("irregular", {}))

    def to_dict(self, prices: Mapping[str, list[float] | None]) -> dict[str, Any]:
        """Everything but the findings, as plain data."""
        unread, asked = self.verdicts.unread()
        return {
            "conversations": self.conversations,
            "stopped": self.stopped,
            "verdicts": asked,
            "unscored": unread,
            "failed": self.failures.total,
            **self.failures.to_record(),
            "irregular": irregular_record(self.irregular),
            "usage": usage_of(self.usage, prices),
        }


class AuditAggregate:
    """All judges of a run."""

    def __init__(self, manifest: dict[str, Any]) -> None:
        self._manifest = manifest
        self.judges = {label: AuditedJudge() for label in manifest["models"][JUDGE]}

    def add(self, key: str, result: Any) -> None:
        self.judges[label_of(key, list(self.judges))].add(result)

    def add_failure(self, key: str, error: dict[str, Any]) -> None:
        self.judges[label_of(key, list(self.judges))].failures.add(error)

    def headline(self) -> str:
        parts = [f"{label} {one.conversations:,}" for label, one in self.judges.items()]
        return "  ".join(parts[:4]) + (f"  +{len(parts) - 4} more" if len(parts) > 4 else "")

    def report(self) -> dict[str, Any]:
        manifest = self._manifest
        settings = AuditSettings.model_validate(manifest["settings"])
        judges = {label: one.verdicts for label, one in self.judges.items()}
        found = findings(judges, manifest["families"], settings.audits)
        return {
            "scenario": manifest["scenario"],
            "seed": manifest["seed"],
            "tier": manifest["tier"],
            "models": manifest["models"],
            "dataset": manifest["dataset"],
            "pack": manifest["pack"],
            "families": manifest["families"],
            "answer": [answer(label, found) for label in self.judges],
            "findings": found,
            "candidates": {label: one.to_dict(role_prices(manifest, label)) for label, one in self.judges.items()},
        }

    def tables(self) -> list[Table]:
        report = self.report()
        return [*finding_tables(report), failed_table(report), irregular_of(report), usage_table(report)]


def answer(label: str, found: list[dict[str, Any]]) -> str:
    """What the audits say of a judge, in a sentence."""
    own = [one for one in found if one["judge"] == label]
    shown = [_said(one) for one in own if one["found"]]
    clean = dict.fromkeys(one["audit"] for one in own if one["n"] and not one["found"])
    biased = {one["audit"] for one in own if one["found"]}
    rest = joined(name for name in clean if name not in biased)
    if not shown:
        return f"{label}: no effect was found" + (f" ({rest})" if rest else "") + "."
    return f"{label} {'; '.join(shown)}." + (f" Nothing was found in: {rest}." if rest else "")


def _said(one: Mapping[str, Any]) -> str:
    effect = one["effect"]
    words = _WORDS[one["audit"]][effect["value"] < 0]
    where = f" on {one['scale']} than on {one['base']}" if one["audit"] == "labels" else ""
    return f"{words}{where} ({_ranged(effect)})"


def _ranged(effect: Mapping[str, Any]) -> str:
    return f"{signed(effect['value'], 2)}, {_span(effect)}"


def _span(effect: Mapping[str, Any]) -> str:
    return DASH if effect["low"] is None else f"{effect['low']:.2f} to {effect['high']:.2f}"


def finding_tables(report: Mapping[str, Any]) -> list[Table]:
    """The effects, what is beside them, and the cases."""
    several = len(report["models"][JUDGE]) > 1
    rows, beside, cases = [], [], []
    for one in report["findings"]:
        what = _TITLES.get(one["audit"]) or f"labels: {one['scale']} − {one['base']}"
        head = ([one["judge"]] if several else []) + [what]
        row = [*head, signed(one["effect"]["value"], 2), _span(one["effect"]), small(one["p_corrected"])]
        rows.append([*row, f"{one['n']:,}", "yes" if one["found"] else "no"])
        if (note := _note(one)) is not None:
            beside.append([*head, note])
        if one["found"]:
            listing = joined(f"{case} ({signed(value, 2)})" for case, value in one["cases"])
            cases.append([*head, f"{one['showing']:,}", listing])
    head = (["judge"] if several else []) + ["audit"]
    title = f"Audit on {report['dataset']['name']}, seed {report['seed']}, tier {report['tier']}"
    unread = [[label, f"{one['unscored']:,} of {one['verdicts']:,}"]
              for label, one in report["candidates"].items() if one["unscored"]]  # fmt: skip
    return [
        (title, [*head, "effect", "interval", "Holm p", "cases", "found"], rows),
        ("Beside the effects", [*head, "note"], beside),
        ("Cases that show it", [*head, "cases", "strongest"], cases),
        ("Verdicts that could not be read", ["judge", "unscored"], unread),
    ]


def _note(one: Mapping[str, Any]) -> str | None:
    if one["audit"] == "position" and one["consistent"] is not None:
        return f"the same answer wins in both orders in {percent(one['consistent'])} of cases"
    if one["audit"] == "retest" and one["unanimous"] is not None:
        return f"all grades of a case are the same in {percent(one['unanimous'])} of cases"
    if one["audit"] == "self":
        if one["beyond"]:
            return f"family {one['family']}, beyond what {one['beyond']} prefer"
        return f"family {one['family']}: nobody else has judged, so better answers of its own look the same"
    return None
