"""What a study of interviews found, in words."""

from __future__ import annotations

from typing import Any

import pytest

from viva.scenarios.contract import Findings
from viva.scenarios.kieval.study.claims import findings

NAMES = ("a", "b", "c", "d")


def line(
    value: float = 0.5, p: float = 1.0, power: float = 0.9, n: int = 50, needed: int | None = 40
) -> dict[str, Any]:
    return {"test": "line", "value": value, "p_corrected": p, "power": power, "n": n, "needed": needed}


def texts(value: float = 0.5, p: float = 1.0, power: float = 0.9, n: int = 50) -> dict[str, Any]:
    return {"test": "texts", "value": value, "p_corrected": p, "power": power, "n": n, "needed": 47}


def report(*tests: list[dict[str, Any]], dataset: str = "set", **lead: Any) -> dict[str, Any]:
    """A report of candidates with these tests, whose scores fall by ten each."""
    judged = []
    for name, own in zip(NAMES, tests, strict=False):
        powered = any(one["power"] >= 0.8 for one in own)
        verdict = "no_sign" if powered else "too_few" if own else "not_tested"
        verdict = "suspected" if any(one["p_corrected"] < 0.05 for one in own) else verdict
        judged.append({"dataset": dataset, "candidate": name, "verdict": verdict, "tests": own})
    standings = [
        {"candidate": name, "mean": 90.0 - 10 * at, "low": 86.0 - 10 * at, "high": 93.0 - 10 * at, "n": 50}
        for at, name in enumerate(NAMES[: len(tests)])
    ]
    told = {"datasets": [dataset], "standings": standings, "verdict": "ahead", "p_corrected": 0.001, "n": 50} | lead
    return {"verdicts": {"candidates": judged, "leads": [told]}}


def of(told: dict[str, Any]) -> Findings:
    [found] = findings(told)
    return found


def test_suspects_come_first_with_what_speaks_against_them() -> None:
    found = of(report([texts(0.9, 0.0001), line()], [texts(), line()], [line(-31.5, 0.004)], [texts(), line()]))
    assert found.sentences == [
        "Contamination suspected: a, c.",
        "a: recalls the texts (AUC 0.90, p < 0.001), but the interviews show no sign; c: 31.5 below the line "
        "(p = 0.004).",
        "No sign of contamination in 2 tested candidates: b, d.",
        "Best: a, 90.0 (95% interval 86.0 to 93.0).",
        "b is second with 80.0, significantly lower (Holm-corrected p = 0.001).",
    ]
    assert [(one.candidate, one.suspected, one.verdict) for one in found.standings] == [
        ("a", True, "suspected"), ("b", False, "no_sign"), ("c", True, "suspected"), ("d", False, "no_sign"),
    ]  # fmt: skip
    assert "p below 0.05" in found.rule
    assert "power of 80%" in found.rule


LEADS = [
    (
        {"verdict": "not_significant", "p_corrected": 0.2},
        "b is second with 80.0, not significantly lower (Holm-corrected p = 0.20).",
    ),
    (
        {"verdict": "not_significant", "p_corrected": 0.02, "difference": {"value": 10.0, "low": -1.5, "high": 19.0}},
        "b is second with 80.0, not a clear lead: the interval of the difference, -1.5 to +19.0, contains 0 "
        "(Holm-corrected p = 0.020).",
    ),
    (
        {"verdict": "not_significant", "p_corrected": 0.02, "difference": {"value": -9.0, "low": -15.0, "high": -3.0}},
        "b is second with 80.0, but is higher on the 50 items in common (Holm-corrected p = 0.020).",
    ),
    (
        {"verdict": "too_few", "n": 2, "needed": 233},
        "b is second with 80.0; too few items to separate them (n = 2 items; about 240 would be needed to see a gap "
        "of 10 points).",
    ),
    (
        {"verdict": "not_comparable", "n": 0},
        "b is second with 80.0; not comparable: 0 items in common.",
    ),
]


@pytest.mark.parametrize(("lead", "told"), LEADS)
def test_what_chance_may_give_is_no_lead(lead: dict[str, Any], told: str) -> None:
    found = of(report([line()], [line()], **lead))
    assert found.sentences[1:] == ["Highest score: a, 90.0 (95% interval 86.0 to 93.0).", told]


def test_candidates_of_equal_scores_have_no_first() -> None:
    told = report([line()], [line()], [line()], verdict="too_few", n=1, needed=40)
    for standing in told["verdicts"]["leads"][0]["standings"][:2]:
        standing["mean"] = 90.0
    assert of(told).sentences[1:] == [
        "Highest score: a, b, 90.0 each.",
        "Their scores are equal; too few items to separate them (n = 1 item; about 40 would be needed to see a gap of "
        "10 points).",
    ]


def test_texts_that_all_recall_may_be_of_another_kind() -> None:
    told = report([texts(0.9, 0.001)], [texts(0.8, 0.01)])
    assert any("if the two sets differ in topic, length or form" in one for one in of(told).sentences)
    told = report([texts(0.9, 0.001)], [texts()], [line(-30, 0.01)])
    assert not any("topic" in one for one in of(told).sentences)


def test_few_items_are_no_acquittal_and_say_how_many_it_takes() -> None:
    weak = line(power=0.3, n=20, needed=123)
    found = of(report([weak], [weak], [weak, texts()], [line(power=0.0, needed=None)]))
    assert found.sentences[:3] == [
        "Recall of the texts shows no sign of contamination in 1 tested candidate: c.",
        "Its interviews tell too little (n = 20 items; about 130 would be needed to see a fall of 30 points below the "
        "line).",
        "Too little data to test for contamination: a, b, d (n = 20–50 items; about 130 would be needed to see a "
        "fall of 30 points below the line).",
    ]
    found = of(report([line(power=0.0, needed=None)], [line(power=0.0, needed=None)]))
    assert "(n = 50 items; more candidates, not more items, would be needed to see a fall" in found.sentences[0]
    found = of(report([line(power=0.0, n=2, needed=None)], [line(power=0.0, n=2, needed=None)]))
    assert "(n = 2 items; at least 10 would be needed to see a fall of 30 points" in found.sentences[0]
    found = of(report([line(power=0.0, n=1)], [line(power=0.0, n=1)]))
    assert "(n = 1 item; about 40 would be needed" in found.sentences[0]


def test_whoever_was_not_tested_is_named_apart_and_last_where_nobody_was() -> None:
    found = of(report([line()], [line()], [line()], []))
    assert found.sentences[0] == "The interviews show no sign of contamination in 3 tested candidates: a, b, c."
    assert found.sentences[1].startswith("Not tested for contamination: d (")
    found = of(report([], []))
    assert found.sentences[0].startswith("Best: a")
    assert found.sentences[2].startswith("Not tested for contamination: a, b (")


def test_probes_alone_say_whose_texts_are_familiar() -> None:
    told = report([texts(0.9, 0.001)], [texts()])
    told["verdicts"]["leads"] = []
    found = of(told)
    assert found.sentences == [
        "Contamination suspected: a.",
        "a: recalls the texts (AUC 0.90, p = 0.001).",
        "Recall of the texts shows no sign of contamination in 1 tested candidate: b.",
    ]
    assert (found.measure, found.standings) == ("", [])


def test_datasets_have_findings_of_their_own_the_suspected_first() -> None:
    told, other = report([line()], [line()]), report([line(-40, 0.001)], [line()], dataset="other")
    both = {key: told["verdicts"][key] + other["verdicts"][key] for key in ("candidates", "leads")}
    both["leads"].append(other["verdicts"]["leads"][0] | {"datasets": ["set", "other"]})
    found = findings({"verdicts": both})
    assert [one.about for one in found] == ["other", "set", "2 datasets together (set, other)"]
    assert found[1].sentences == of(told).sentences
    assert [one.suspected for one in found[2].standings] == [True, False]


def test_nothing_scored_or_probed_is_nothing_found() -> None:
    assert findings({"verdicts": {"candidates": [], "leads": []}}) == []
