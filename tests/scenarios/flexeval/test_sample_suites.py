"""Upstream's sample conversations and suites, run whole: SQL over the results gives what was counted by hand."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from small_suites import run_suite

from viva.scenarios.flexeval.results import write_results

DATA = Path(os.environ.get("VIVA_DATA") or Path(__file__).parents[3] / ".." / "shared" / "data").resolve() / "flexeval"


def _asked(suite: str, folder: Path, sql: str) -> list[tuple[Any, ...]]:
    """A query over the results of one of the sample suites."""
    if not DATA.exists():
        pytest.skip(f"{DATA} is missing (set VIVA_DATA to the folder with the benchmark data)")
    outcome, _ = run_suite(DATA / suite, folder / "run")
    assert (outcome.how, outcome.failed) == ("done", 0)
    with closing(sqlite3.connect(write_results(folder / "run"))) as database:
        return database.execute(sql).fetchall()


def test_lengths_of_turns(tmp_path: Path) -> None:
    # "I need help." 12, "Help with what?" 15, "My homework." 12; 21, 48 and 33 in the other conversation.
    sql = "SELECT turns.role, value FROM metrics JOIN turns ON turns.key = metrics.key AND turn = unit ORDER BY 1, 2"
    assert _asked("functional_evals.yaml#test_suite_01", tmp_path, sql) == [
        ("assistant", 15.0), ("assistant", 48.0), ("user", 12.0), ("user", 12.0), ("user", 21.0), ("user", 33.0),
    ]  # fmt: skip


def test_readability_only_where_a_turn_is_long_enough(tmp_path: Path) -> None:
    # Of the six turns two have fewer than 15 characters.
    sql = "SELECT metric, count(*), count(value), min(value > 50) FROM metrics GROUP BY metric"
    assert _asked("functional_evals.yaml#test_suite_02", tmp_path, sql) == [
        ("flesch_reading_ease", 4, 4, 1), ("string_length", 6, 6, 0),
    ]  # fmt: skip


def test_two_files_of_conversations(tmp_path: Path) -> None:
    # Messages of one side in a row are one turn: 3 + 3 in the first file, 3 + 3 + 4 in the other.
    sql = "SELECT count(DISTINCT key), count(*) FROM metrics"
    assert _asked("functional_evals.yaml#test_suite_03", tmp_path, sql) == [(5, 16)]


def test_roles_of_turns_in_dialogs_with_tools(tmp_path: Path) -> None:
    sql = "SELECT metric, sum(value), count(*) FROM metrics GROUP BY metric"
    found = _asked("functional_evals.yaml#test_plots_01", tmp_path, sql)
    by_hand = {"user": 0, "assistant": 0}
    import json

    for line in (DATA / "plot-convos.jsonl").read_text().splitlines():
        sides = [one["role"] for one in json.loads(line)["input"] if one["role"] != "system"]
        for before, side in zip(["", *sides], sides, strict=False):
            by_hand[side] += side != before
    assert {(name, value) for name, value, _ in found} >= {
        ("is_role_assistant.assistant", by_hand["assistant"]), ("is_role_user.user", by_hand["user"]),
    }  # fmt: skip


def test_the_same_metric_at_two_levels(tmp_path: Path) -> None:
    # Two conversations of a system, two user and one assistant message: 8 messages, 6 turns.
    sql = "SELECT metric, sum(value), count(*) FROM metrics GROUP BY metric ORDER BY metric"
    assert _asked("functional_evals.yaml#test_basic_function_metrics_01", tmp_path, sql) == [
        ("is_role_assistant_message.assistant", 2.0, 8),
        ("is_role_assistant_turn.assistant", 2.0, 6),
        ("is_role_user.user", 4.0, 8),
    ]
