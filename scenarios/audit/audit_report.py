"""The report of an audit: effects with intervals and corrected p-values, a sentence per judge, and tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from viva.agents.judge import SCALES
from viva.reports.figures import round_figure, round_significant
from viva.reports.page import join_names
from viva.reports.pair_figures import pair_record, pair_sentence, pair_tables
from viva.reports.tables import DASH, Table, p_value, percent, signed
from viva.scoring import pairwise
from viva.scoring.comparison import Effect, adjust_p_values, balanced_effect, mean_effect, spread_effect
from viva.scoring.intervals import Estimate, extend_to_zero
from viva.scoring.pairwise import PairVerdicts

from ..run_aggregate import ModelResults, RunAggregate, common_tables, tier_name
from .audit_cases import TIE, AuditSettings
from .audit_protocol import BASE_SCALE, JUDGE

ALPHA = 0.05  # a corrected p-value of at most this is a finding
TOLERANCE = 0.05  # a spread of repeated grades up to this fraction of the scale is negligible
_LISTED_CASES = 3  # cases that show an effect


@dataclass(slots=True)
class JudgeVerdicts:
    """The verdicts of one judge by question and case, with the facts known about the cases."""

    by_question: dict[str, dict[str, dict[str, float | None]]] = field(default_factory=dict)
    families: dict[str, list[str | None]] = field(default_factory=dict)
    preferred: dict[str, Any] = field(default_factory=dict)
    compared: dict[str, PairVerdicts] = field(default_factory=dict)

    def add(self, record: Mapping[str, Any]) -> None:
        case = record["case"]
        self.by_question.setdefault(record["question"], {})[case] = record["said"]
        self.families[case], self.preferred[case] = record["families"], record["preferred"]
        if (pair := pair_verdicts(record)) is not None and pair.preferred is not None:
            self.compared[case] = pair

    def pairs(self) -> list[PairVerdicts]:
        """Return the verdicts on pairs that people have compared."""
        return [self.compared[case] for case in sorted(self.compared)]

    def unread(self) -> tuple[int, int]:
        """Return the number of unreadable verdicts, and the number of all verdicts."""
        values = [
            value for cases in self.by_question.values() for verdicts in cases.values() for value in verdicts.values()
        ]
        return sum(value is None for value in values), len(values)

    def first_wins(self, question: str = "pair") -> dict[str, float]:
        """Return by case how much more often the answer shown first wins than the second, from -1 to 1."""
        return {case: (signs["first"] + signs["second"]) / 2 for case, signs in self._complete_verdicts(question)}

    def wins(self, question: str) -> dict[str, float]:
        """Return by case how much more often the first variant wins than the second, in both orders, from -1 to 1."""
        return {case: (signs["first"] - signs["second"]) / 2 for case, signs in self._complete_verdicts(question)}

    def consistent(self) -> float | None:
        """Return the share of cases with the same winner, or a tie, in both orders."""
        matches = [signs["first"] == -signs["second"] for _, signs in self._complete_verdicts("pair")]
        return sum(matches) / len(matches) if matches else None

    def scale_shifts(self, scale: str) -> dict[str, float]:
        """Return by case the grade on a scale minus the grade on the base scale, from -1 to 1."""
        shifts = {}
        for case, grades in sorted(self.by_question.get("labels", {}).items()):
            grade, base = grades.get(scale), grades.get(BASE_SCALE)
            if grade is not None and base is not None:
                shifts[case] = grade - base
        return shifts

    def repeated(self) -> dict[str, list[float]]:
        cases = sorted(self.by_question.get("retest", {}).items())
        return {case: [value for value in grades.values() if value is not None] for case, grades in cases}

    def _complete_verdicts(self, question: str) -> Iterable[tuple[str, dict[str, float]]]:
        """Yield the cases whose verdicts could be read in both orders."""
        for case, verdicts in sorted(self.by_question.get(question, {}).items()):
            first, second = verdicts.get("first"), verdicts.get("second")
            if first is not None and second is not None:
                yield case, {"first": first, "second": second}


def pair_verdicts(record: Mapping[str, Any]) -> PairVerdicts | None:
    """Return the verdicts of a recorded conversation on a pair of answers, in both orders; None for other questions."""
    verdicts = record["said"]
    if record["question"] != "pair" or not {"first", "second"} <= verdicts.keys():
        return None
    preferred = record["preferred"]
    chosen = pairwise.TIE if preferred == TIE else None if preferred is None else int(preferred) + 1
    # The second verdict is on the answers in reverse order.
    answer_of = {1: (1, 2), -1: (2, 1), 0: (pairwise.TIE, pairwise.TIE)}
    answers = tuple(
        None if verdicts[order] is None else answer_of[int(verdicts[order])][at]
        for at, order in enumerate(("first", "second"))
    )
    return PairVerdicts(record["case"], record["case"], answers, chosen, record.get("category"))


def findings(
    judges: Mapping[str, JudgeVerdicts], families: Mapping[str, str], audits: Iterable[str]
) -> list[dict[str, Any]]:
    """Return all audits of all judges, with p-values corrected over all of them (Holm).

    `families` has the model family of judges; a judge without one has no audit `self`.
    """
    requested = set(audits)
    records: list[dict[str, Any]] = []
    for label, verdicts in judges.items():
        if "position" in requested:
            values, consistent = verdicts.first_wins(), round_figure(verdicts.consistent())
            records.append(_finding(label, "position", mean_effect(values, wins=True), values, consistent=consistent))
        names = [name for name in ("verbosity", "format") if name in requested]
        records += [
            _finding(label, name, mean_effect(verdicts.wins(name), wins=True), verdicts.wins(name)) for name in names
        ]
        if "self" in requested and label in families:
            records.append(_self_preference(label, verdicts, judges, families))
        if "labels" in requested:
            for scale in SCALES:
                if scale != BASE_SCALE:
                    shifts = verdicts.scale_shifts(scale)
                    records.append(_finding(label, "labels", mean_effect(shifts), shifts, scale=scale, base=BASE_SCALE))
        if "retest" in requested:
            records.append(_test_retest(label, verdicts))
    for record, p in zip(records, adjust_p_values([record["p"] for record in records]), strict=True):
        record["p_corrected"] = round_significant(p)
        effect = record["effect"]
        if effect["low"] is not None:
            ends = extend_to_zero(Estimate(effect["value"], effect["low"], effect["high"]), p)
            effect["low"], effect["high"] = ends.low, ends.high
        if record["audit"] != "retest":
            record["found"] = p is not None and p <= ALPHA
    return records


def _finding(label: str, audit: str, effect: Effect, values: Mapping[str, float], **more: Any) -> dict[str, Any]:
    side = math.copysign(1.0, effect.value or 0.0)
    supporting = sorted(((case, value) for case, value in values.items() if value * side > 0),
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
        "cases": [[case, round_figure(value)] for case, value in supporting[:_LISTED_CASES]],
        "showing": len(supporting),
    }


def _self_preference(
    label: str, verdicts: JudgeVerdicts, judges: Mapping[str, JudgeVerdicts], families: Mapping[str, str]
) -> dict[str, Any]:
    """Measure how much a judge prefers its own family's answers.

    The baseline is human preference or, without it, judges of other families. Without either, better answers by its own
    family look like a preference.
    """
    own: dict[str, float] = {}
    truth: dict[str, int] = {}
    sides: dict[str, int] = {}
    for case, value in verdicts.wins("pair").items():
        is_own = [family == families[label] for family in verdicts.families[case]]
        if len(is_own) == 2 and is_own[0] != is_own[1]:
            sides[case] = 1 if is_own[0] else -1
            own[case] = value * sides[case]
            if isinstance(verdicts.preferred[case], int):
                truth[case] = 1 if is_own[verdicts.preferred[case]] else -1
    if min(sum(side == sign for side in truth.values()) for sign in (1, -1)) >= 2:
        effect = balanced_effect(own, truth)
        beyond = {case: own[case] - side for case, side in truth.items()}
        return _finding(label, "self", effect, beyond, beyond="people", family=families[label])
    other_judges = [judge for name, judge in judges.items() if name != label and families.get(name) != families[label]]
    relative: dict[str, float] = {}
    for case, value in own.items():
        effects = [wins[case] * sides[case] for judge in other_judges if case in (wins := judge.wins("pair"))]
        if effects:
            relative[case] = (value - math.fsum(effects) / len(effects)) / 2
    if relative:
        return _finding(label, "self", mean_effect(relative), relative, beyond="other judges", family=families[label])
    return _finding(label, "self", mean_effect(own, wins=True), own, beyond=None, family=families[label])


def _test_retest(label: str, verdicts: JudgeVerdicts) -> dict[str, Any]:
    repeated = verdicts.repeated()
    effect = spread_effect(repeated)
    ranges = {case: max(grades) - min(grades) for case, grades in repeated.items() if grades}
    record = _finding(label, "retest", effect, ranges)
    unanimous = [value == 0 for case, value in ranges.items() if len(repeated[case]) > 1]
    record["unanimous"] = round_figure(sum(unanimous) / len(unanimous)) if unanimous else None
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
    "self": "self-preference: own − other family",
    "retest": "retest: spread of grades",
}


class JudgeAudit(ModelResults):
    """The results of one judge's conversations. They are added in any order; the report is the same."""

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
    """The judges of a run."""

    fields = (*RunAggregate.fields, "families", "answer", "findings", "pairs")

    def __init__(self, manifest: dict[str, Any]) -> None:
        super().__init__(manifest, JudgeAudit, JUDGE)

    def add(self, key: str, result: Any) -> None:
        self.model_of(key).add(result)

    def in_brief(self, audit: JudgeAudit) -> str:
        return f"{audit.conversations:,} conversations"

    def facts(self) -> dict[str, Any]:
        settings = AuditSettings.model_validate(self.manifest["settings"])
        judges = {label: audit.verdicts for label, audit in self.candidates.items()}
        records = findings(judges, self.manifest["families"], settings.audits)
        pairs = {label: pair_record(compared) for label, verdicts in judges.items() if (compared := verdicts.pairs())}
        answer = [summary_sentence(label, records) for label in judges]
        answer += [pair_sentence(label, record) for label, record in pairs.items()]
        return {"answer": answer, "findings": records, "pairs": pairs}

    def figures(self, label: str, audit: JudgeAudit) -> dict[str, Any]:
        unread, total = audit.verdicts.unread()
        return {
            "conversations": audit.conversations,
            "stopped": audit.stopped,
            "verdicts": total,
            "unscored": unread,
            "failed": audit.failures.total,
            **audit.common_figures(self.prices(label)),
        }

    def tables(self) -> list[Table]:
        report = self.report()
        return [*finding_tables(report), *pair_tables(report["pairs"]), *common_tables(report)]


def summary_sentence(label: str, records: list[dict[str, Any]]) -> str:
    """Summarize the audits of a judge in a sentence."""
    own = [record for record in records if record["judge"] == label]
    phrases = [_effect_phrase(record) for record in own if record["found"]]
    clean = dict.fromkeys(record["audit"] for record in own if record["n"] and not record["found"])
    biased = {record["audit"] for record in own if record["found"]}
    unaffected = join_names(name for name in clean if name not in biased)
    if not phrases:
        return f"{label}: no effect found" + (f" ({unaffected})" if unaffected else "") + "."
    return f"{label} {'; '.join(phrases)}." + (f" No effect found: {unaffected}." if unaffected else "")


def _effect_phrase(record: Mapping[str, Any]) -> str:
    effect = record["effect"]
    phrase = _EFFECT_PHRASES[record["audit"]][effect["value"] < 0]
    comparison = f" on {record['scale']} than on {record['base']}" if record["audit"] == "labels" else ""
    return f"{phrase}{comparison} ({_effect_text(effect)})"


def _effect_text(effect: Mapping[str, Any]) -> str:
    return f"{signed(effect['value'], 2)}, {_interval_text(effect)}"


def _interval_text(effect: Mapping[str, Any]) -> str:
    return DASH if effect["low"] is None else f"{effect['low']:.2f} to {effect['high']:.2f}"


def finding_tables(report: Mapping[str, Any]) -> list[Table]:
    """Return the tables of effects, notes and examples."""
    several = len(report["models"][JUDGE]) > 1
    rows, notes, cases = [], [], []
    for record in report["findings"]:
        audit = _TITLES.get(record["audit"]) or f"labels: {record['scale']} − {record['base']}"
        head = ([record["judge"]] if several else []) + [audit]
        row = [
            *head,
            signed(record["effect"]["value"], 2),
            _interval_text(record["effect"]),
            p_value(record["p_corrected"]),
        ]
        rows.append([*row, f"{record['n']:,}", "yes" if record["found"] else "no"])
        if (note := _finding_note(record)) is not None:
            notes.append([*head, note])
        if record["found"]:
            listing = join_names(f"{case} ({signed(value, 2)})" for case, value in record["cases"])
            cases.append([*head, f"{record['showing']:,}", listing])
    head = (["judge"] if several else []) + ["audit"]
    title = f"Audit on {report['dataset']['name']}, seed {report['seed']}, {tier_name(report['tier'])}"
    unread = [[label, f"{record['unscored']:,} of {record['verdicts']:,}"]
              for label, record in report["candidates"].items() if record["unscored"]]  # fmt: skip
    return [
        (title, [*head, "effect", "interval", "Holm p", "cases", "finding"], rows),
        ("Notes", [*head, "note"], notes),
        ("Examples", [*head, "cases", "strongest"], cases),
        ("Unreadable verdicts", ["judge", "unscored"], unread),
    ]


def _finding_note(record: Mapping[str, Any]) -> str | None:
    if record["audit"] == "position" and record["consistent"] is not None:
        return f"the same answer wins in both orders in {percent(record['consistent'])} of cases"
    if record["audit"] == "retest" and record["unanimous"] is not None:
        return f"all grades of a case are the same in {percent(record['unanimous'])} of cases"
    if record["audit"] == "self":
        if record["beyond"]:
            return f"family {record['family']}, compared with {record['beyond']}"
        return f"family {record['family']}: no other judge to compare with; its answers may simply be better"
    return None
