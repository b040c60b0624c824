"""The report's answer in sentences: what is beyond chance is told from what may be chance."""

from __future__ import annotations

from viva.scenarios.lalaeval.round_report import summary_sentences


def test_the_answer_says_who_leads_and_what_may_be_chance() -> None:
    def told(first: tuple[float, float, float | None], second: tuple[float, float, float | None]) -> str:
        """The sentences of three candidates; of each lead the lower end, the upper end and the p."""
        grades = {"alpha": 70.0, "beta": 50.0, "gamma": 40.0}
        report = {
            "round": {"whose": "people"},
            "candidates": [
                {"candidate": name, "grade": {"overall": {"value": value, "low": value - 9, "high": value + 9,
                                                          "grades": 36, "questions": 12}}}
                for name, value in grades.items()
            ],
            "differences": [
                {"group": "overall", "first": "alpha", "second": name, "value": 70 - grades[name], "low": low,
                 "high": high, "p_corrected": p}
                for name, (low, high, p) in (("beta", first), ("gamma", second))
            ],
            "fluctuation": None, "agreement": {"people": [{"alpha": {"value": None}}]}, "graders": [],
            "severity": {"groups": 1}, "questions": [], "dimensions": [],
            "counts": {"undecided": 2, "missing": 1, "taken_back": 0, "invalid": 0},
        }  # fmt: skip
        return " ".join(summary_sentences(report)[1:])

    surely, barely, not_at_all = (5.0, 35.0, 0.01), (-1.0, 41.0, 0.04), (-20.0, 60.0, 0.4)
    open_ = " Open or excluded: 2 disputes without a decision and 1 grade still owed."
    assert told(surely, surely) == (
        "Its lead over beta and gamma is significant; the smallest is 20.0 points (5.0 to 35.0), over beta." + open_
    )
    assert told(surely, barely) == (
        "Its lead over beta is significant: 20.0 points (5.0 to 35.0). Its lead over gamma is not significant." + open_
    )
    assert told(not_at_all, not_at_all) == "Its lead over beta and gamma is not significant." + open_
    unknown = (5.0, 35.0, None)  # too few questions in common
    assert told(unknown, unknown) == told(not_at_all, not_at_all)
