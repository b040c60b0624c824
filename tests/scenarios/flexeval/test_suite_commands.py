"""The verbs of suites in processes of their own: killed and resumed, gates, budgets, pytest, exports."""

from __future__ import annotations

import csv
import json
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from small_suites import TALK, metric, resume_suite, run_suite, write_suite
from viva_process import ended, started

from viva.engine.clock import RealClock
from viva.engine.permissions import grant
from viva.reports.studies.study import Study
from viva.scenarios.flexeval.result_files import result_rows

if TYPE_CHECKING:
    from tests.servers.process import Server

Chaos = Callable[[dict[str, Any]], "Server"]
TALKS = [{"id": f"t{number}", "messages": [{"role": "user", "content": f"Is {number} even?"}]} for number in range(12)]


def test_killed_and_resumed_the_report_is_the_same(chaos: Chaos, tmp_path: Path) -> None:
    server = chaos({"default": {"do": "slow", "delay": 0.02, "say": "good"}})
    metrics = [{"function": "words", "role": "assistant"}, {"rubric": "q", "role": "assistant", "votes": 2}]
    rubrics = {"q": {"prompt": "{completion}", "choice_scores": {"good": 1, "bad": 0}, "answer": "line"}}
    suite = write_suite(
        tmp_path, TALKS, metrics=metrics, rubrics=rubrics, system=server.model("bot"), grader=server.model("judge"),
        concurrency=3,
    )  # fmt: skip
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    outcome, report = run_suite(suite, whole, RealClock())
    assert outcome.how == "done"
    assert metric(report, "q", "bot")["mean"] == 1
    calls = len(server.log())
    assert calls == 36

    process = started("suite", "run", suite, "--out", killed)
    server.log(requests=calls + calls // 2)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    outcome, resumed = resume_suite(killed, RealClock())
    assert outcome.how == "done"
    assert len(server.log()) < 2 * calls + 10  # what was recorded was not asked again
    assert json.dumps(resumed) == json.dumps(report)
    first, second = (sorted(map(_measured, result_rows(run))) for run in (whole, killed))
    assert first == second


def _measured(row: tuple[str, dict[str, Any]]) -> str:
    """A row of the results, but for how long calls took."""
    return json.dumps([row[0], row[1] | {"latency": None}])


def test_a_budget_begins_nothing_more_finishes_what_is_begun_and_names_the_rest(tmp_path: Path) -> None:
    suite = write_suite(
        tmp_path, TALKS, metrics=[{"rubric": "polite"}], grader="simulated:g", concurrency=1, budget={"calls": 5},
        thresholds=[{"metric": "polite", "statistic": "count", "at_least": 1}],
    )  # fmt: skip
    run = tmp_path / "run"
    code, printed, said = ended(started("suite", "run", suite, "--out", run))
    assert code == 3  # the gate holds, and some tests did not run
    assert "the budget of 5 calls is used up" in said
    assert "9 tests did not run: app/t3, app/t4" in said
    assert b"9 tests did not run" in printed
    with closing(sqlite3.connect(run / "results.sqlite")) as database:
        counted = dict(database.execute("SELECT status, count(*) FROM conversations GROUP BY status"))
    assert counted == {"finished": 3, "untested": 9}
    outcome, report = resume_suite(run, max_calls=100)
    assert outcome.how == "done"
    assert report["untested"] == 0
    assert report["candidates"]["app"]["conversations"] == 12


def test_repeats_are_asked_anew_each_time(chaos: Chaos, tmp_path: Path) -> None:
    server = chaos({"record": True})
    suite = write_suite(tmp_path, TALKS[:2], metrics=[{"function": "length"}], system=server.model("bot"), repeats=3)
    code, _, said = ended(started("suite", "run", suite, "--out", tmp_path / "run"))
    assert code == 0, said
    seeds = [entry["body"]["seed"] for entry in server.log()]
    assert len(seeds) == len(set(seeds)) == 6


def test_a_fall_against_the_baseline_breaks_the_gate(tmp_path: Path) -> None:
    metrics = [{"rubric": "yeasayer", "role": "assistant"}]
    talks = [{**one, "id": f"{one['id']}-{copy}"} for one in TALKS for copy in range(3)]
    suite = write_suite(
        tmp_path, talks, metrics=metrics, grader="simulated:g?noise=0", thresholds=[{"metric": "yeasayer", "fall": 0.1}]
    )
    good, bad = "simulated:app?knowledge=0.95", "simulated:app?knowledge=0.5"
    run_suite(suite, tmp_path / "before", candidate=[good])
    arguments = ("suite", "run", suite, "--baseline", tmp_path / "before")
    code, _, said = ended(started(*arguments, "--candidate", bad, "--out", tmp_path / "after"))
    assert code == 1, said
    assert "viva: BROKEN: mean(yeasayer) falls by at most 0.1: app: 3." in said
    assert "over 36 conversations" in said
    _, report = run_suite(suite, tmp_path / "same", candidate=[good], baseline=str(tmp_path / "before"))
    assert not report["gate"][0]["broken"]
    # Without a baseline there is nothing to hold: that is no green gate.
    code, _, said = ended(started("suite", "gate", tmp_path / "before"))
    assert code == 1
    assert "no baseline; give --baseline RUN" in said
    study = Study([tmp_path / "before", tmp_path / "after"])
    assert any(title.startswith("Differences from before") for title, _, _ in study.tables())


def test_pytest_has_one_test_a_threshold_and_failures_read_like_assertions(tmp_path: Path) -> None:
    thresholds = [{"metric": "words", "at_most": 3}, {"metric": "words", "at_least": 1}]
    suite = write_suite(
        tmp_path, TALKS[:3], metrics=[{"function": "words", "role": "assistant"}], thresholds=thresholds
    )
    (tmp_path / "test_mine.py").write_text("def test_own():\n    assert sum([1, 2]) == 3\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-q",
        "-rA",
        "--viva",
        str(suite),
        "--junitxml",
    ]
    done = subprocess.run(
        [*command, "all.xml", "test_mine.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 3 passed" in done.stdout
    assert re.search(r"E   mean\(words\) <= 3: app: [\d.]+ is [\d.]+ above the maximum of 3 \(n = ", done.stdout)
    assert "Traceback" not in done.stdout
    assert (tmp_path / "all.xml").read_text().count("<testcase") == 4
    broken = suite.with_name("broken.yaml")
    broken.write_text(suite.read_text().replace("function: words", "function: wrods"))
    command[command.index(str(suite))] = str(broken)
    done = subprocess.run([*command, "all.xml"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 4  # pytest's usage error
    assert "there is no function 'wrods'" in done.stderr


def test_the_tables_can_be_asked_in_sql_and_exported(tmp_path: Path) -> None:
    talk = {"id": "a", "city": "Bern", "messages": [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"days": 2, "town": "Bern"}'}}]},
        {"role": "tool", "tool_call_id": "1", "content": "sun"},
        {"role": "assistant", "content": "Sun, in Bern."},
    ]}  # fmt: skip
    metrics = [
        {"function": "tool_call_arguments", "arguments": {"numeric": True}},
        {"function": "messages_per_role"},
        {"function": "words", "level": "message", "role": "assistant"},
        {"function": "=weird", "name": "formula"},
    ][:3]
    suite = write_suite(tmp_path, [talk], metrics=metrics, complete="none")
    run_suite(suite, tmp_path / "run")
    code, printed, said = ended(
        started("suite", "export", tmp_path / "run", "--csv", tmp_path / "csv", "--parquet", tmp_path / "parquet")
    )
    assert code == 0, said
    assert len(printed.splitlines()) == 11
    with closing(sqlite3.connect(tmp_path / "run" / "results.sqlite")) as database:
        assert database.execute("SELECT role, text FROM turns").fetchall() == [
            ("user", "Weather?"), ("assistant", "Sun, in Bern."),
        ]  # fmt: skip
        assert database.execute("SELECT name, result FROM tool_calls").fetchall() == [("look", "sun")]
        asked = "SELECT metric, value FROM metrics WHERE level = 'conversation' ORDER BY metric"
        assert database.execute(asked).fetchall() == [
            ("messages_per_role.assistant", 2), ("messages_per_role.tool", 1), ("messages_per_role.user", 1),
        ]  # fmt: skip
        by_city = "SELECT avg(value) FROM metrics JOIN conversations USING (key) WHERE metric = 'words' AND "
        assert database.execute(by_city + "metadata ->> 'city' = 'Bern'").fetchone() == (1.5,)
    with (tmp_path / "csv" / "metrics.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 6
    import pyarrow.parquet as parquet

    assert parquet.read_table(tmp_path / "parquet" / "messages.parquet").num_rows == 4


@pytest.mark.parametrize("way", ["recorded", "played"])
def test_a_dialog_is_held_anew_with_the_recorded_or_a_played_user(tmp_path: Path, way: str) -> None:
    more = {"interactor": "simulated:user"} if way == "played" else {}
    suite = write_suite(
        tmp_path, [TALK], metrics=[{"function": "turns"}, {"function": "words"}], complete="dialog", **more
    )
    _, report = run_suite(suite, tmp_path / "run")
    assert report["candidates"]["app"]["metrics"]["turns"]["mean"] == 4
    assert report["candidates"]["app"]["usage"]["candidate"]["calls"] == 2
    # New is what the system said, and the played user: recorded words are nobody's doing.
    assert report["candidates"]["app"]["metrics"]["words"]["n"] == (4 if way == "played" else 2)
    said = [row for table, row in result_rows(tmp_path / "run") if table == "messages"]
    assert [row["role"] for row in said] == ["system", "user", "assistant", "user", "assistant"]
    assert said[1]["content"] == "Is two even?"


def test_what_two_metrics_share_is_asked_and_computed_once(chaos: Chaos, tmp_path: Path) -> None:
    server = chaos({"default": {"do": "answer", "say": "yes"}})
    (tmp_path / "count.py").write_text(
        "def counted(text: str) -> int:\n"
        f"    with open({str(tmp_path / 'calls')!r}, 'a') as file:\n        file.write('x')\n"
        "    return len(text)\n"
    )
    grant(tmp_path / "count.py")
    counted = {"function": "count.py#counted", "role": "assistant"}
    metrics = [
        {"name": "first", **counted},
        {"name": "second", **counted, "when": [{"metric": "first", "at_least": 1}]},
        {"name": "kind", "rubric": "polite"},
        {"name": "kind where long", "rubric": "polite", "when": [{"metric": "second", "at_least": 1}]},
    ]  # fmt: skip
    suite = write_suite(tmp_path, TALKS[:3], metrics=metrics, grader=server.model("judge"))
    outcome, report = run_suite(suite, tmp_path / "run", RealClock())
    assert outcome.failed == 0
    assert metric(report, "second")["n"] == metric(report, "kind where long")["n"] == 3
    assert (tmp_path / "calls").read_text() == "xxx"
    assert len(server.log()) == 3
