"""Faults from a file: those that pass leave a run's results as they are, the others are results; all are repeatable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from case_tables import case_table
from small_runs import results, small_run

from viva.engine.backends.fault_injection import FaultPlan, read_fault_plan
from viva.engine.errors import ConfigurationError

_PASSING = ["throttled", "unavailable", "gone", "timeout", "slow", "cut", "malformed"]
_SPOILING = {"garbage": "\ufffd", "truncated": "", "empty": "", "long": " and so on"}


def _said(folder: Path, *faults: dict[str, Any], model: str = "simulated:m?latency=0.1") -> list[Any]:
    small_run(folder, model=model, chaos=FaultPlan.model_validate({"seed": 3, "faults": faults}) if faults else None)
    return results(folder)


@case_table("kind", _PASSING)
def test_a_fault_that_passes_leaves_the_results_as_they_are(tmp_path: Path, kind: str) -> None:
    fault = {"kind": kind, "share": 0.3, "seconds": 2}
    assert _said(tmp_path / "run", fault) == _said(tmp_path / "undisturbed")


@case_table("kind", ["throttled", "unavailable", "timeout", "cut", "malformed"])
def test_a_fault_with_no_further_try_fails_its_conversations_alone(tmp_path: Path, kind: str) -> None:
    ended = _said(tmp_path, {"kind": kind, "share": 0.2}, model="simulated:m?retries=0&adaptive=off")
    failed = [result for _, bad, result in ended if bad]
    assert 0 < len(failed) < len(ended)
    assert all("chaos" in result["message"] for result in failed)


@pytest.mark.parametrize("kind", _SPOILING)
def test_what_is_answered_wrongly_is_a_result_and_the_same_each_time(tmp_path: Path, kind: str) -> None:
    fault = {"kind": kind, "share": 0.1, "megabytes": 0.05}
    once, again, whole = (_said(tmp_path / name, *some) for name, some in (("a", [fault]), ("b", [fault]), ("c", [])))
    assert once == again
    texts = [said for _, bad, result in once for said in result if not bad]
    undisturbed = [said for _, _, result in whole for said in result]
    different = [text for text, usual in zip(texts, undisturbed, strict=True) if text != usual]
    assert 0 < len(different) < len(texts)
    assert all(_SPOILING[kind] in text for text in different)
    assert (max(map(len, different)) > 50_000) is (kind == "long")


def test_a_fault_that_is_none_is_named_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "chaos.yaml"
    file.write_text("faults:\n  - {kind: slow}\n  - {kind: flood}\n")
    with pytest.raises(ConfigurationError, match=r"chaos\.yaml: faults\.1\.kind: .*'malformed'"):
        read_fault_plan(file)
