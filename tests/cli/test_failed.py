"""What a user sees of conversations that failed: the reason, how often, and what to type next, wherever results go."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from viva_process import ended, started

from viva.scoring.aggregates import MAX_REASONS, OTHER_REASONS, Failures, merge_reasons

sys.path.insert(0, str(Path(__file__).parents[1] / "servers"))
import process

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
REASON = "Rejected: modl-a: HTTP 404: there is no such model"
TITLE = "Failed conversations by reason"
SWEEP = """
candidates: ['simulated:fine', '{model}']
datasets: [{items}]
interviews: {{interactor: 'simulated:i', evaluator: 'simulated:e', n: 2, rounds: 1}}
"""


def _viva(*arguments: str | Path) -> tuple[int, bytes, str]:
    return ended(started(*arguments))


@pytest.fixture(scope="module")
def model() -> Iterator[str]:
    """The name of a model that the endpoint lists and does not know."""
    with process.running({"default": "404", "models": ["modl-a"]}) as server:
        yield server.model("modl-a")


@pytest.fixture(scope="module")
def told(model: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, bytes, str]:
    """A run of two good conversations and two that failed: folder, exit code, stdout, stderr."""
    run = tmp_path_factory.mktemp("failed") / "run"
    models = ["--candidate", "simulated:fine", "--candidate", model, "--interactor", "simulated:i"]
    models += ["--evaluator", "simulated:e", "-n", "2", "--rounds", "1"]
    return run, *_viva("run", "kieval", "--dataset", ITEMS, *models, "--out", run)


def test_line_8_the_end_of_a_run_says_why_conversations_failed_and_what_to_type(
    told: tuple[Path, int, bytes, str],
) -> None:
    run, code, printed, said = told
    assert code == 3
    assert f"2 conversations failed:\n  2 × {REASON}\n" in said
    assert f"show all with: viva report {run}\n" in said
    assert f"with: viva resume {run} --retry-failed\n" in said
    table = printed.decode().split(TITLE)[1]
    assert ["modl-a", "2", *REASON.split()] in [line.split() for line in table.splitlines()]


def test_line_8_every_form_of_a_report_has_the_reason(told: tuple[Path, int, bytes, str], tmp_path: Path) -> None:
    run = told[0]
    files = {name: tmp_path / f"all.{name}" for name in ("csv", "html")}
    code, printed, said = _viva("report", run, "--json", "--csv", files["csv"], "--html", files["html"])
    assert code == 0, said
    assert orjson.dumps({REASON: 2}) in printed.replace(b"\n", b"").replace(b"  ", b"").replace(b": 2", b":2")
    rows = list(csv.DictReader(files["csv"].read_text().splitlines()))
    assert {row["value"] for row in rows if row["measure"] == f"failure_reasons.{REASON}"} == {"2"}
    page = files["html"].read_text()
    assert TITLE in page
    assert REASON in page
    for form in ("--latex", "--markdown"):
        shown = _viva("report", run, form)[1].decode().replace("\\", "")
        assert REASON in shown


def test_line_8_show_says_why_a_conversation_failed(told: tuple[Path, int, bytes, str]) -> None:
    run = told[0]
    listed = _viva("show", run)[1].decode()
    assert listed.count(REASON) == 2
    number = next(line.split()[0] for line in listed.splitlines() if REASON in line)
    assert REASON in _viva("show", run, "--conversation", number)[1].decode()
    [one] = [orjson.loads(line) for line in _viva("show", run, "--json")[1].splitlines() if b"404" in line][:1]
    assert one["failed"]["type"] == "Rejected"


def test_line_8_a_sweep_says_why_conversations_failed(model: str, tmp_path: Path) -> None:
    (tmp_path / "grid.yaml").write_text(SWEEP.format(model=model, items=ITEMS))
    out = tmp_path / "out"
    code, printed, said = _viva("sweep", tmp_path / "grid.yaml", "--out", out)
    assert code == 3
    assert REASON in printed.decode().split(TITLE)[1]
    assert f"  2 × {REASON}\n" in said
    assert f"viva resume {out} --retry-failed" in said
    code, again, _ = _viva("sweep", tmp_path / "grid.yaml", "--out", out, "--json")
    told = {cell["candidate"]: cell.get("failure_reasons") for cell in orjson.loads(again)["cells"]}
    assert told == {"fine": None, "modl-a": {REASON: 2}}


def test_line_8_a_run_without_failures_says_nothing_of_them(tmp_path: Path) -> None:
    models = ["--candidate", "simulated:c", "--interactor", "simulated:i", "--evaluator", "simulated:e", "-n", "2"]
    code, printed, said = _viva("run", "kieval", "--dataset", ITEMS, *models, "--json", "--out", tmp_path / "run")
    assert code == 0
    assert b"failure_reasons" not in printed
    assert "failed" not in said


def test_line_8_reasons_that_differ_in_numbers_and_ids_alone_count_as_one() -> None:
    words = ["no answer within {} s (request 4f5e6a7b8c9d0e{})", "the prompt of {} tokens is too long, see {}"]
    errors: list[dict[str, Any]] = [
        {"type": "TimedOut", "message": words[number % 3 == 0].format(number, number)} for number in range(30)
    ]
    one, other = Failures(), Failures()
    for error in errors:
        one.add(error)
    for error in reversed(errors):
        other.add(error)
    assert one.reasons() == other.reasons()
    assert list(one.reasons().values()) == [20, 10]


def test_line_8_very_many_reasons_are_bounded_and_none_is_lost() -> None:
    made = Failures()
    for place in range(3 * MAX_REASONS):
        word = "".join(chr(97 + int(digit)) for digit in str(place))
        made.add({"type": "Rejected", "message": word})
    reasons = made.reasons()
    assert len(reasons) == MAX_REASONS + 1
    assert reasons[OTHER_REASONS] == 2 * MAX_REASONS
    assert sum(merge_reasons([reasons, reasons]).values()) == 6 * MAX_REASONS


def test_line_8_control_characters_of_an_endpoint_are_visible_in_every_form() -> None:
    found = Failures()
    found.add({"type": "Rejected", "message": "no such model \x1b[31m\x9b2J\nhere"})
    assert found.reasons() == {"Rejected: no such model \\x1b[31m\\x9b2J here": 1}
