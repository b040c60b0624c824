"""Upstream's sample conversations and suites, run whole: SQL over the results gives what was counted by hand."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from small_suites import run_suite

from viva.scenarios.flexeval.result_files import write_results

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


def _sides_of_plots() -> tuple[int, int]:
    """Turns of the user and of the assistant in the dialogs about plots, counted from the raw file."""
    counted = {"user": 0, "assistant": 0}
    for line in (DATA / "plot-convos.jsonl").read_text().splitlines():
        sides = [one["role"] for one in json.loads(line)["input"] if one["role"] != "system"]
        for before, side in zip(["", *sides], sides, strict=False):
            counted[side] += side != before
    return counted["user"], counted["assistant"]


@pytest.mark.parametrize("suite", ["test_plots_01", "test_plots_02", "test_suite_04"])
def test_roles_of_turns_in_dialogs_about_plots(tmp_path: Path, suite: str) -> None:
    # Where the assistant speaks twice in a row it is one turn. No message has a tool call: nothing is counted by name.
    sql = "SELECT metric, sum(value), count(*) FROM metrics GROUP BY metric ORDER BY metric"
    found = _asked(f"functional_evals.yaml#{suite}", tmp_path, sql)
    user, assistant = _sides_of_plots()
    assert (user, assistant) == (37, 39)
    assert found == [("is_role_assistant.assistant", assistant, 76), ("is_role_user.user", user, 76)]


def test_the_type_of_a_turn(tmp_path: Path) -> None:
    # Six turns, for a metric without and one with an argument of any name; 1 is a turn.
    sql = "SELECT metric, count(*), sum(value) FROM metrics GROUP BY metric ORDER BY metric"
    assert _asked("functional_evals.yaml#test_default_kwargs_01", tmp_path, sql) == [
        ("identity.object_type", 6, 6.0), ("identity_13.object_type", 6, 6.0),
    ]  # fmt: skip


def test_a_rubric_asked_only_where_a_function_says_so(tmp_path: Path) -> None:
    # Of "I need help.", "Help with what?" and "My homework." one is the assistant's; its grader always says NO.
    sql = "SELECT metric, unit, role, value, category FROM metrics WHERE metric NOT LIKE 'is_role%' ORDER BY 1, 2"
    assert _asked("eval_run.yaml", tmp_path, sql) == [
        ("assistant_asks_a_question", 1, "assistant", 0.0, "NO"),
        ("has_question_mark", 0, "user", 0.0, None),
        ("has_question_mark", 1, "assistant", 1.0, None),
        ("has_question_mark", 2, "user", 0.0, None),
    ]


def test_the_same_metric_at_two_levels(tmp_path: Path) -> None:
    # Two conversations of a system, two user and one assistant message: 8 messages, 6 turns.
    sql = "SELECT metric, sum(value), count(*) FROM metrics GROUP BY metric ORDER BY metric"
    assert _asked("functional_evals.yaml#test_basic_function_metrics_01", tmp_path, sql) == [
        ("is_role_assistant_message.assistant", 2.0, 8),
        ("is_role_assistant_turn.assistant", 2.0, 6),
        ("is_role_user.user", 4.0, 8),
    ]
