"""From recorded verdicts to findings: by judge and audit an effect, its interval, a corrected p-value, the cases.

What never belongs here: statistics themselves (``scoring.biases``), tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from viva.agents.grades import SCALES
from viva.reports.figures import rounded, significant
from viva.scoring.biases import Effect, balanced_effect, mean_effect, spread_effect
from viva.scoring.comparison import corrected
from viva.scoring.intervals import Estimate, reaching_0

from .protocol import BASE

FOUND = 0.05  # a corrected p-value up to this is a finding
TOLERATED = 0.05  # of the scale: a spread of repeated grades that is nothing to speak of
_SHOWN = 3  # cases that show an effect


@dataclass(slots=True)
class JudgeVerdicts:
    """What one judge said: by question and case the recorded verdicts, and what is known of the cases."""

    said: dict[str, dict[str, dict[str, float | None]]] = field(default_factory=dict)
    families: dict[str, list[str | None]] = field(default_factory=dict)
    preferred: dict[str, Any] = field(default_factory=dict)

    def add(self, record: Mapping[str, Any]) -> None:
        """One conversation's record."""
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
            one, base = said.get(scale), said.get(BASE)
            if one is not None and base is not None:
                found[case] = one - base
        return found

    def repeated(self) -> dict[str, list[float]]:
        """By case the grades of the same answer."""
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
            values = one.first_wins()
            found.append(
                _finding(
                    label, "position", mean_effect(values, wins=True), values, consistent=rounded(one.consistent())
                )
            )
        found += [_finding(label, name, mean_effect(one.wins(name), wins=True), one.wins(name))
                  for name in ("verbosity", "format") if name in wanted]  # fmt: skip
        if "self" in wanted and label in families:
            found.append(_self(label, one, judges, families))
        if "labels" in wanted:
            for scale in SCALES:
                if scale != BASE:
                    shifts = one.scale_shifts(scale)
                    found.append(_finding(label, "labels", mean_effect(shifts), shifts, scale=scale, base=BASE))
        if "retest" in wanted:
            found.append(_retest(label, one))
    for record, p in zip(found, corrected([record["p"] for record in found]), strict=True):
        record["p_corrected"] = significant(p)
        effect = record["effect"]
        if effect["low"] is not None:
            ends = reaching_0(Estimate(effect["value"], effect["low"], effect["high"]), p)
            effect["low"], effect["high"] = ends.low, ends.high
        if record["audit"] != "retest":
            record["found"] = p is not None and p <= FOUND
    return found


def _finding(label: str, audit: str, effect: Effect, values: Mapping[str, float], **more: Any) -> dict[str, Any]:
    side = math.copysign(1.0, effect.value or 0.0)
    shown = sorted(((case, value) for case, value in values.items() if value * side > 0),
                   key=lambda pair: (-abs(pair[1]), pair[0]))  # fmt: skip
    return {
        "judge": label,
        "audit": audit,
        "effect": {"value": rounded(effect.value), "low": rounded(effect.low), "high": rounded(effect.high)},
        "p": significant(effect.p),
        "p_corrected": None,
        "found": False,
        "n": effect.n,
        **more,
        "cases": [[case, rounded(value)] for case, value in shown[:_SHOWN]],
        "showing": len(shown),
    }


def _self(
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


def _retest(label: str, one: JudgeVerdicts) -> dict[str, Any]:
    repeated = one.repeated()
    effect = spread_effect(repeated)
    ranges = {case: max(grades) - min(grades) for case, grades in repeated.items() if grades}
    record = _finding(label, "retest", effect, ranges)
    alike = [value == 0 for case, value in ranges.items() if len(repeated[case]) > 1]
    record["unanimous"] = rounded(sum(alike) / len(alike)) if alike else None
    record["found"] = effect.low is not None and effect.low > TOLERATED
    return record
