"""Tables 3 to 5 of the paper: its printed averages come out, and so do figures of outcomes made by hand."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viva.scenarios.functionchat.functionchat_report import (
    GradedTurn,
    apply_corrections,
    averages,
    dialog_figures,
    dialog_table,
    judge_errors,
    judge_table,
    singlecall_figures,
    singlecall_table,
)
from viva.scenarios.functionchat.turns import OUTPUT_TYPES, TOOL_LISTS, OutputType
from viva.scenarios.functionchat.verdict_review import Correction

COUNTS: dict[OutputType, int] = {"call": 70, "completion": 71, "slot": 36, "relevance": 23}
# Table 3: passes by tool list, sum, average.
SINGLECALL = {
    "gpt-4o": ((87, 87, 90, 88, 86), 438, "87.6"),
    "gpt-4-turbo": ((92, 93, 89, 92, 82), 448, "89.6"),
    "gpt-3.5-turbo": ((94, 94, 90, 92, 87), 457, "91.4"),
    "gemini-1.5-pro": ((49, 67, 59, 69, 62), 306, "61.2"),
    "gemini-1.5-flash": ((45, 49, 52, 57, 62), 265, "53.0"),
    "gemini-1.0-pro": ((60, 65, 63, 70, 64), 322, "64.4"),
    "functionary-medium": ((61, 61, 54, 57, 52), 285, "57.0"),
    "solar-1-mini-chat": ((83, 84, 84, 84, 83), 418, "83.6"),
}
# Table 4: pass rates by type, macro, micro.
DIALOG = {
    "gpt-4o": ("0.94", "0.97", "0.86", "0.91", "0.92", "0.94"),
    "gpt-4-turbo": ("0.96", "0.99", "0.92", "0.96", "0.96", "0.96"),
    "gpt-3.5-turbo": ("0.97", "0.92", "0.58", "0.61", "0.77", "0.84"),
    "gemini-1.5-pro": ("0.70", "0.87", "0.83", "0.97", "0.84", "0.82"),
    "gemini-1.5-flash": ("0.66", "0.94", "0.89", "0.74", "0.81", "0.81"),
    "gemini-1.0-pro": ("0.69", "0.85", "0.67", "0.61", "0.71", "0.73"),
    "functionary-medium": ("0.56", "0.94", "0.69", "0.65", "0.71", "0.73"),
    "solar-1-mini-chat": ("0.63", "0.77", "0.08", "0.13", "0.40", "0.53"),
}


def _half_up(value: float, to: str = "0.01") -> str:
    """Two digits, halves up, as the paper rounds (0.935 is printed as 0.94)."""
    return str(Decimal(str(round(value, 6))).quantize(Decimal(to), ROUND_HALF_UP))


def _passes(label: str) -> dict[OutputType, int]:
    """The whole number of passes that is nearest to each printed rate."""
    rates = zip(COUNTS.items(), DIALOG[label], strict=False)
    return {kind: round(float(rate) * count) for (kind, count), rate in rates}


def _single(label: str) -> list[GradedTurn]:
    return [
        GradedTurn(f"{label}/{name}/{serial}", f"singlecall/{serial}", "singlecall", "call", name, serial < passes)
        for name, passes in zip(TOOL_LISTS, SINGLECALL[label][0], strict=True)
        for serial in range(100)
    ]


def _dialog(label: str) -> list[GradedTurn]:
    return [
        GradedTurn(f"{label}/{kind}/{serial}", f"dialog/{serial % 45}", "dialog", kind, None, serial < passes)
        for kind, passes in _passes(label).items()
        for serial in range(COUNTS[kind])
    ]


@pytest.mark.parametrize("label", SINGLECALL)
def test_table_3(label: str) -> None:
    passes, total, average = SINGLECALL[label]
    figures = singlecall_figures(_single(label))
    assert [figures["lists"][name]["passed"] for name in TOOL_LISTS] == list(passes)
    assert (figures["sum"], f"{figures['average']:.1f}") == (total, average)
    assert figures["rate"]["mean"] == pytest.approx(total / 500)
    _, header, (row,) = singlecall_table("Table 3", {label: figures})
    assert row[: len(TOOL_LISTS) + 3] == [label, *map(str, passes), str(total), average]
    assert header[-2:] == ["SE", "unscored"]


@pytest.mark.parametrize("label", DIALOG)
def test_table_4(label: str) -> None:
    """Each printed average comes out of the printed rates (macro), or of the passes behind them (micro).

    The printed macro is that of rates which were rounded before, the printed micro that of passes: so macro from passes
    is 0.01 lower for gpt-4-turbo and gemini-1.0-pro, and micro from rates for gpt-4o, gemini-1.5-pro and
    solar-1-mini-chat. One printed rate is no share of its count: 0.97 of 23, where 22 are 0.96.
    """
    *rates, macro, micro = DIALOG[label]
    printed = dict(zip(COUNTS, map(float, rates), strict=True))
    from_rates = averages(printed, dict(COUNTS))
    figures = dialog_figures(_dialog(label))
    assert _half_up(from_rates[0]) == macro
    assert _half_up(figures["micro"]["mean"]) == micro
    lower = {"gpt-4-turbo", "gemini-1.0-pro"}
    assert Decimal(macro) - Decimal(_half_up(figures["macro"]["mean"])) == Decimal("0.01") * (label in lower)
    lower = {"gpt-4o", "gemini-1.5-pro", "solar-1-mini-chat"}
    assert Decimal(micro) - Decimal(_half_up(from_rates[1])) == Decimal("0.01") * (label in lower)
    found = {kind: _half_up(figures["types"][kind]["rate"]["value"]) for kind in COUNTS}
    odd = {"relevance": "0.96"} if label == "gemini-1.5-pro" else {}
    assert found == {**dict(zip(COUNTS, rates, strict=True)), **odd}
    _, _, (row,) = dialog_table("Table 4", {label: figures})
    assert (row[0], len(row), row[-1]) == (label, 10, "0")


def test_table_5() -> None:
    """The paper's shares are of 4000 and 1600 cases; the 5000 that it prints beside the first would make 4.0%."""
    shares = {}
    for subset, cases, fp, fn in (("singlecall", 4000, 202, 16), ("dialog", 1600, 62, 26)):
        verdicts = [True] * (cases - 500) + [False] * 500
        outcomes = [
            GradedTurn(str(i), "c", subset, "call", None, said, judged=True)  # type: ignore[arg-type]
            for i, said in enumerate(verdicts)
        ]
        wrong = [*range(fp), *range(cases - fn, cases)]
        standing = {str(i): Correction(str(i), not verdicts[i], "Ann", "no") for i in wrong}
        found = judge_errors(outcomes, standing)
        shares[subset] = [_half_up(100 * share, "0.1") for share in found[subset]["of_cases"].values()]
        assert (found["all"]["false_positives"], found["all"]["false_negatives"]) == (fp, fn)
        _, _, rows = judge_table("Table 5", found)
        assert [row[0] for row in rows] == [subset, "all"]
        assert rows[0][1:4] == [str(cases), str(cases), str(fp + fn)]
    assert shares == {"singlecall": ["5.1", "0.4", "5.5"], "dialog": ["3.9", "1.6", "5.5"]}
    assert _half_up(100 * 202 / 5000, "0.1") == "4.0"


def _small() -> list[GradedTurn]:
    """Two dialogs: calls passed, failed, unscored; one question passed."""
    rows: list[tuple[str, OutputType, bool | None, bool]] = [
        ("1", "call", True, False),
        ("1", "call", False, True),
        ("2", "call", None, True),
        ("2", "slot", True, True),
    ]
    return [
        GradedTurn(str(i), f"dialog/{dialog}", "dialog", kind, None, passed, judged)
        for i, (dialog, kind, passed, judged) in enumerate(rows)
    ]


def test_figures_by_hand() -> None:
    figures = dialog_figures(_small())
    assert figures["types"]["call"] | {"rate": None} == {"n": 3, "passed": 1, "unscored": 1, "rate": None}
    assert figures["types"]["call"]["rate"]["value"] == 0.5
    assert figures["types"]["relevance"] == {"n": 0, "passed": 0, "unscored": 0, "rate": None}
    assert figures["macro"]["mean"] == 0.75  # of the two types there are
    assert figures["macro"]["se"] == 0.0  # both dialogs' residuals sum to nothing
    assert figures["micro"]["mean"] == pytest.approx(2 / 3, abs=1e-6)
    assert figures["micro"]["se"] == pytest.approx(sqrt(2 * ((1 / 3) ** 2 + (1 / 3) ** 2)) / 3, abs=1e-6)
    assert figures["micro"]["clusters"] == 2
    _, _, (row,) = dialog_table("t", {"m": figures})
    assert row == ["m", "0.50", "–", "1.00", "–", "0.75", "0.00", "0.67", "0.22", "1"]
    assert singlecall_table("t", {"m": singlecall_figures(_small())})[2] == []


def test_corrected_figures_stand_beside_judged_ones() -> None:
    outcomes = _small()
    standing = {
        "1": Correction("1", True, "Ann", "same place"),
        "2": Correction("2", False, "Ann", "no call"),
        "3": Correction("3", False, "Ann", "asks what was said"),
    }
    after = dialog_figures(apply_corrections(outcomes, standing))
    assert [after["types"][kind]["passed"] for kind in OUTPUT_TYPES] == [2, 0, 0, 0]
    assert after["types"]["call"]["unscored"] == 0
    assert dialog_figures(outcomes)["types"]["call"]["passed"] == 1
    found = judge_errors(outcomes, standing)["dialog"]
    assert (found["cases"], found["judged"], found["reviewed"]) == (4, 2, 2)  # what is unscored was no error
    assert (found["false_positives"], found["false_negatives"], found["both"]) == (1, 1, 2)
    assert found["of_cases"]["both"] == 0.5
    assert found["of_judged"]["both"] == 1.0


def test_wrong_verdicts_of_rules_count_as_those_of_the_judge_do() -> None:
    standing = {key: Correction(key, False, "Ann", "no") for key in ("0", "3")}  # 0 was passed by rule, 3 by the judge
    found = judge_errors(_small(), standing)["all"]
    assert (found["reviewed"], found["false_positives"], found["by_rule"]) == (2, 2, 1)
    assert (found["of_cases"]["both"], found["of_judged"]["both"]) == (0.5, 0.5)


def test_nothing_at_all() -> None:
    assert singlecall_figures([])["average"] is None
    figures = dialog_figures([])
    assert figures["macro"] == figures["micro"] == {"mean": None, "se": None, "n": 0, "clusters": 0}
    assert dialog_table("t", {"m": figures})[2] == []
    assert judge_errors([], {})["all"]["of_cases"]["both"] is None
    assert judge_table("t", judge_errors([], {}))[2] == []
    with pytest.raises(ValueError, match="at least one rate"):
        averages({}, {})
    with pytest.raises(ValueError, match="a count for each"):
        averages({"call": 1.0}, {})


ROWS = st.lists(st.tuples(st.integers(0, 4), st.sampled_from(OUTPUT_TYPES), st.booleans()), min_size=1, max_size=30)


@given(ROWS, st.randoms(use_true_random=False))
def test_averages_of_any_turns(rows: list[tuple[int, OutputType, bool]], random: object) -> None:
    outcomes = [GradedTurn(str(i), f"d/{d}", "dialog", kind, None, passed) for i, (d, kind, passed) in enumerate(rows)]
    figures = dialog_figures(outcomes)
    kinds = {kind for _, kind, _ in rows}
    held = {kind: [passed for _, one, passed in rows if one == kind] for kind in kinds}
    macro, micro = averages({k: sum(v) / len(v) for k, v in held.items()}, {k: len(v) for k, v in held.items()})
    assert figures["macro"]["mean"] == pytest.approx(macro, abs=2e-6)
    assert figures["micro"]["mean"] == pytest.approx(micro, abs=2e-6)
    assert dialog_figures(outcomes[::-1]) == figures
    if len(kinds) == 1:  # then both averages are one, with one error
        assert figures["macro"] == pytest.approx(figures["micro"], abs=2e-6)


def test_repeated_queries_do_not_narrow_the_error() -> None:
    """The five tool lists of a query that always end alike tell no more than one."""
    once = [GradedTurn(f"{i}", f"singlecall/{i}", "singlecall", "call", "exact", i < 30) for i in range(50)]
    five = [
        GradedTurn(f"{name}/{i}", f"singlecall/{i}", "singlecall", "call", name, i < 30)
        for name in TOOL_LISTS
        for i in range(50)
    ]
    assert singlecall_figures(five)["rate"]["se"] == singlecall_figures(once)["rate"]["se"]
    assert singlecall_figures(five)["rate"]["clusters"] == 50
