"""The report of an audit: effects with intervals and corrected p-values, a sentence per judge, and tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from viva.agents.judge import SCALES
from viva.reports.figures import round_figure, round_significant
from viva.reports.page import join_names
from viva.reports.tables import DASH, Table, p_value, percent, signed
from viva.scoring.comparison import Effect, adjust_p_values, balanced_effect, mean_effect, spread_effect
from viva.scoring.intervals import Estimate, extend_to_zero

from ..run_aggregate import ModelResults, RunAggregate, common_tables
from .audit_cases import AuditSettings
from .audit_protocol import BASE_SCALE, JUDGE

ALPHA = 0.05  # a corrected p-value up to this is a finding
TOLERANCE = 0.05  # of the scale: a spread of repeated grades that is nothing to speak of
_LISTED_CASES = 3  # cases that show an effect


@dataclass(slots=True)
class JudgeVerdicts:
    """What one judge said: by question and case the recorded verdicts, and what is known of the cases."""

    said: dict[str, dict[str, dict[str, float | None]]] = field(default_factory=dict)
    families: dict[str, list[str | None]] = field(default_factory=dict)
    preferred: dict[str, Any] = field(default_factory=dict)

    def add(self, record: Mapping[str, Any]) -> None:
        case = record["case"]
        self.said.setdefault(record["question"], {})[case] = record["said"]
        self.families[case], self.preferred[case] = record["families"], record["preferred"]

    def unread(self) -> tuple[int, int]:
        """How many verdicts could not be read, of how many."""
        every = [value for cases in self.said.values() for said in cases.values() for value in said.values()]
        return sum(value is None for value in every), len(every)

    def first_wins(self, question: str = "pair") -> dict[str, float]:
        """By case how much more often what is shown first wins than what is shown second, -1 to 1."""
        return {case: (said["first"] + said["second"]) / 2 for case, said in self._whole(question)}

    def wins(self, question: str) -> dict[str, float]:
        """By case how much more often the first of the two things wins, over both orders, -1 to 1."""
        return {case: (said["first"] - said["second"]) / 2 for case, said in self._whole(question)}

    def consistent(self) -> float | None:
        """The share of cases in which the same answer wins in both orders, or neither does."""
        every = [said["first"] == -said["second"] for _, said in self._whole("pair")]
        return sum(every) / len(every) if every else None

    def scale_shifts(self, scale: str) -> dict[str, float]:
        """By case the grade on a scale less that on the base scale, -1 to 1."""
        found = {}
        for case, said in sorted(self.said.get("labels", {}).items()):
            one, base = said.get(scale), said.get(BASE_SCALE)
            if one is not None and base is not None:
                found[case] = one - base
        return found

    def repeated(self) -> dict[str, list[float]]:
        cases = sorted(self.said.get("retest", {}).items())
        return {case: [value for value in said.values() if value is not None] for case, said in cases}

    def _whole(self, question: str) -> Iterable[tuple[str, dict[str, float]]]:
        """The cases whose verdicts in both orders could be read."""
        for case, said in sorted(self.said.get(question, {}).items()):
            first, second = said.get("first"), said.get("second")
            if first is not None and second is not None:
                yield case, {"first": first, "second": second}


def findings(
    judges: Mapping[str, JudgeVerdicts], families: Mapping[str, str], audits: Iterable[str]
) -> list[dict[str, Any]]:
    """All audits of all judges, p-values corrected over all of them (Holm)."""
    wanted = set(audits)
    found: list[dict[str, Any]] = []
    for label, one in judges.items():
        if "position" in wanted:
            values, consistent = one.first_wins(), round_figure(one.consistent())
            found.append(_finding(label, "position", mean_effect(values, wins=True), values, consistent=consistent))
        named = [name for name in ("verbosity", "format") if name in wanted]
        found += [_finding(label, name, mean_effect(one.wins(name), wins=True), one.wins(name)) for name in named]
        if "self" in wanted and label in families:
            found.append(_self_preference(label, one, judges, families))
        if "labels" in wanted:
            for scale in SCALES:
                if scale != BASE_SCALE:
                    shifts = one.scale_shifts(scale)
                    found.append(_finding(label, "labels", mean_effect(shifts), shifts, scale=scale, base=BASE_SCALE))
        if "retest" in wanted:
            found.append(_test_retest(label, one))
    for record, p in zip(found, adjust_p_values([record["p"] for record in found]), strict=True):
        record["p_corrected"] = round_significant(p)
        effect = record["effect"]
        if effect["low"] is not None:
            ends = extend_to_zero(Estimate(effect["value"], effect["low"], effect["high"]), p)
            effect["low"], effect["high"] = ends.low, ends.high
        if record["audit"] != "retest":
            record["found"] = p is not None and p <= ALPHA
    return found


def _finding(label: str, audit: str, effect: Effect, values: Mapping[str, float], **more: Any) -> dict[str, Any]:
    side = math.copysign(1.0, effect.value or 0.0)
    shown = sorted(((case, value) for case, value in values.items() if value * side > 0),
                   key=lambda pair: (-abs(pair[1]), pair[0]))  # fmt: skip
    return {
        "judge": label,
        "audit": audit,
        "effect": {name: round_figure(getattr(effect, name)) for name in ("value", "low", "high")},
        "p": round_significant(effect.p),
        "p_corrected": None,
        "found": False,
        "n": effect.n,
        **more,
        "cases": [[case, round_figure(value)] for case, value in shown[:_LISTED_CASES]],
        "showing": len(shown),
    }


def _self_preference(
    label: str, one: JudgeVerdicts, judges: Mapping[str, JudgeVerdicts], families: Mapping[str, str]
) -> dict[str, Any]:
    """How much a judge prefers its own family's answers: beyond people, else beyond judges of other families, else as
    it is, which says nothing of who wrote the better answers.
    """
    own: dict[str, float] = {}
    truth: dict[str, int] = {}
    sides: dict[str, int] = {}
    for case, value in one.wins("pair").items():
        of = [family == families[label] for family in one.families[case]]
        if len(of) == 2 and of[0] != of[1]:
            sides[case] = 1 if of[0] else -1
            own[case] = value * sides[case]
            if isinstance(one.preferred[case], int):
                truth[case] = 1 if of[one.preferred[case]] else -1
    if min(sum(side == wanted for side in truth.values()) for wanted in (1, -1)) >= 2:
        effect = balanced_effect(own, truth)
        beyond = {case: own[case] - side for case, side in truth.items()}
        return _finding(label, "self", effect, beyond, beyond="people", family=families[label])
    others = [judge for name, judge in judges.items() if name != label and families.get(name) != families[label]]
    beside: dict[str, float] = {}
    for case, value in own.items():
        said = [wins[case] * sides[case] for judge in others if case in (wins := judge.wins("pair"))]
        if said:
            beside[case] = (value - math.fsum(said) / len(said)) / 2
    if beside:
        return _finding(label, "self", mean_effect(beside), beside, beyond="other judges", family=families[label])
    return _finding(label, "self", mean_effect(own, wins=True), own, beyond=None, family=families[label])


def _test_retest(label: str, one: JudgeVerdicts) -> dict[str, Any]:
    repeated = one.repeated()
    effect = spread_effect(repeated)
    ranges = {case: max(grades) - min(grades) for case, grades in repeated.items() if grades}
    record = _finding(label, "retest", effect, ranges)
    alike = [value == 0 for case, value in ranges.items() if len(repeated[case]) > 1]
    record["unanimous"] = round_figure(sum(alike) / len(alike)) if alike else None
    record["found"] = effect.low is not None and effect.low > TOLERANCE
    return record


_EFFECT_PHRASES = {
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


class JudgeAudit(ModelResults):
    """What one judge's conversations came to, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.verdicts = JudgeVerdicts()
        self.conversations = self.stopped = 0

    def add(self, record: Mapping[str, Any]) -> None:
        self.conversations += 1
        self.stopped += "stopped" in record
        self.verdicts.add(record)
        self.add_usage(record)


class AuditAggregate(RunAggregate[JudgeAudit]):
    """All judges of a run."""

    fields = (*RunAggregate.fields, "families", "answer", "findings")

    def __init__(self, manifest: dict[str, Any]) -> None:
        super().__init__(manifest, JudgeAudit, JUDGE)

    def add(self, key: str, result: Any) -> None:
        self.model_of(key).add(result)

    def in_brief(self, one: JudgeAudit) -> str:
        return f"{one.conversations:,}"

    def facts(self) -> dict[str, Any]:
        settings = AuditSettings.model_validate(self.manifest["settings"])
        judges = {label: one.verdicts for label, one in self.candidates.items()}
        found = findings(judges, self.manifest["families"], settings.audits)
        return {"answer": [summary_sentence(label, found) for label in judges], "findings": found}

    def figures(self, label: str, one: JudgeAudit) -> dict[str, Any]:
        unread, asked = one.verdicts.unread()
        return {
            "conversations": one.conversations,
            "stopped": one.stopped,
            "verdicts": asked,
            "unscored": unread,
            "failed": one.failures.total,
            **one.common_figures(self.prices(label)),
        }

    def tables(self) -> list[Table]:
        report = self.report()
        return [*finding_tables(report), *common_tables(report)]


def summary_sentence(label: str, found: list[dict[str, Any]]) -> str:
    """What the audits say of a judge, in a sentence."""
    own = [one for one in found if one["judge"] == label]
    shown = [_effect_phrase(one) for one in own if one["found"]]
    clean = dict.fromkeys(one["audit"] for one in own if one["n"] and not one["found"])
    biased = {one["audit"] for one in own if one["found"]}
    rest = join_names(name for name in clean if name not in biased)
    if not shown:
        return f"{label}: no effect was found" + (f" ({rest})" if rest else "") + "."
    return f"{label} {'; '.join(shown)}." + (f" Nothing was found in: {rest}." if rest else "")


def _effect_phrase(one: Mapping[str, Any]) -> str:
    effect = one["effect"]
    words = _EFFECT_PHRASES[one["audit"]][effect["value"] < 0]
    where = f" on {one['scale']} than on {one['base']}" if one["audit"] == "labels" else ""
    return f"{words}{where} ({_effect_text(effect)})"


def _effect_text(effect: Mapping[str, Any]) -> str:
    return f"{signed(effect['value'], 2)}, {_interval_text(effect)}"


def _interval_text(effect: Mapping[str, Any]) -> str:
    return DASH if effect["low"] is None else f"{effect['low']:.2f} to {effect['high']:.2f}"


def finding_tables(report: Mapping[str, Any]) -> list[Table]:
    """The effects, what is beside them, and the cases."""
    several = len(report["models"][JUDGE]) > 1
    rows, beside, cases = [], [], []
    for one in report["findings"]:
        what = _TITLES.get(one["audit"]) or f"labels: {one['scale']} − {one['base']}"
        head = ([one["judge"]] if several else []) + [what]
        row = [*head, signed(one["effect"]["value"], 2), _interval_text(one["effect"]), p_value(one["p_corrected"])]
        rows.append([*row, f"{one['n']:,}", "yes" if one["found"] else "no"])
        if (note := _finding_note(one)) is not None:
            beside.append([*head, note])
        if one["found"]:
            listing = join_names(f"{case} ({signed(value, 2)})" for case, value in one["cases"])
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


def _finding_note(one: Mapping[str, Any]) -> str | None:
    if one["audit"] == "position" and one["consistent"] is not None:
        return f"the same answer wins in both orders in {percent(one['consistent'])} of cases"
    if one["audit"] == "retest" and one["unanimous"] is not None:
        return f"all grades of a case are the same in {percent(one['unanimous'])} of cases"
    if one["audit"] == "self":
        if one["beyond"]:
            return f"family {one['family']}, beyond what {one['beyond']} prefer"
        return f"family {one['family']}: nobody else has judged, so better answers of its own look the same"
    return None
