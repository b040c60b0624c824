"""What a study of interviews found, in words."""

from __future__ import annotations

from typing import Any

from viva.scenarios.kieval.study.findings import findings

NAMES = ("a", "b", "c", "d")


def _report(below: tuple[str, ...] = (), *, p: float = 0.001, on_line: int = 4, auc_low: float = 0.4) -> dict[str, Any]:
    def row(at: int, name: str) -> dict[str, Any]:
        score = {"mean": 90.0 - 10 * at, "low": 86.0 - 10 * at, "high": 93.0 - 10 * at, "n": 50}
        detectors = {"min_k_20": {"value": 0.9, "low": auc_low if name == "a" else 0.4, "high": 0.95}}
        return {
            "scenario": "kieval",
            "candidate": name,
            "dataset": "set",
            "score": score,
            "probe": {"detectors": detectors},
        }

    line = {"below": list(below), "above": [], "residuals": dict.fromkeys(NAMES[:on_line], -31.5)}
    return {
        "pooled": [row(at, name) for at, name in enumerate(NAMES)],
        "comparisons": [{"first": "b", "second": "a", "p_corrected": p}],
        "correlations": {"lines": {"set": line}},
    }


def test_suspects_come_first_with_what_speaks_against_them() -> None:
    found = findings(_report(below=("c",), auc_low=0.8))
    assert found is not None
    assert found.sentences[0] == "Contamination suspected: a, c."
    assert found.sentences[1] == (
        "a: recalls the texts (AUC 0.90); c: 31.5 below the line. Clean as far as seen: 2 candidates."
    )
    assert found.sentences[2] == "Best: a, 90.0."
    assert found.sentences[3] == (
        "95% interval of a: 86.0 to 93.0; b follows with 80.0, more than chance gives (Holm-corrected p = 0.001)."
    )
    assert [(one.candidate, one.suspected) for one in found.standings] == [
        ("a", True), ("b", False), ("c", True), ("d", False)]  # fmt: skip


def test_what_chance_may_give_is_no_lead() -> None:
    found = findings(_report(p=0.2))
    assert found is not None
    assert found.sentences[0].startswith("No contamination seen: none of 4 candidates")
    assert "no more than chance may give (Holm-corrected p = 0.20)" in found.sentences[2]


def test_a_line_of_three_clears_nobody() -> None:
    found = findings(_report(on_line=3))
    assert found is not None
    assert found.sentences[0].startswith("Best: a")
    assert found.sentences[2].startswith("Contamination cannot be judged")


def test_whoever_is_not_on_the_line_is_named_first_as_not_judged() -> None:
    report = _report()
    del report["correlations"]["lines"]["set"]["residuals"]["d"]
    report["correlations"]["lines"]["set"]["residuals"]["e"] = 0.0
    found = findings(report)
    assert found is not None
    assert found.sentences[0] == (
        "Not judged by interviews: d, of which accuracy or score is missing. "
        "Its probe sees no contamination: d, AUC 0.90."
    )
    assert found.sentences[1].startswith("No contamination seen: none of 4 candidates")


def _probed(auc_low: float) -> dict[str, Any]:
    report = _report(auc_low=auc_low) | {"correlations": None}
    for row in report["pooled"]:
        row["score"] = {"mean": None}
    return report


def test_probes_alone_say_whose_texts_are_familiar() -> None:
    found = findings(_probed(0.8))
    assert found is not None
    assert found.sentences == [
        "Contamination suspected: a.",
        "a: recalls the texts (AUC 0.90). Clean as far as seen: 3 candidates.",
    ]
    clean = findings(_probed(0.4))
    assert clean is not None
    assert clean.sentences[0].startswith("No contamination seen: to a, b, c, d the dataset's texts are no more")


def test_nothing_scored_or_probed_is_nothing_found() -> None:
    report = _probed(0.4)
    for row in report["pooled"]:
        row["probe"] = None
    assert findings(report) is None
