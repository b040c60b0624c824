"""Faults of endpoints, disks and clocks: no call is lost, none is recorded twice, and the report is the same."""

from __future__ import annotations

import itertools
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from faulted_runs import Count, counted, held, recorded, report, settings
from small_sweeps import dataset

from viva.engine.backends.retry import RetryPolicy
from viva.engine.events import ConversationFinished, Event
from viva.engine.journal_reader import History

if TYPE_CHECKING:
    from tests.servers.process import Server

Replanned = Callable[[dict[str, Any]], "Server"]

_NAMESPACE = ["unshare", "--user", "--mount", "--map-root-user"]
_FULL_DISK = Path(__file__).parents[1] / "models" / "full_disk.py"


def _can_mount() -> bool:
    command = [*_NAMESPACE, "sh", "-c", "mount -t tmpfs tmpfs /mnt"]
    return (
        shutil.which("unshare") is not None and not subprocess.run(command, capture_output=True, check=False).returncode
    )


@pytest.fixture
def undisturbed(replanned: Replanned, tmp_path: Path) -> Path:
    """A run of 12 interviews at a server without faults."""
    dataset(tmp_path / "items.jsonl", 12)
    held(settings(replanned({}), tmp_path / "items.jsonl"), tmp_path / "undisturbed")
    return tmp_path / "undisturbed"


@pytest.mark.parametrize("fault", ["malformed", "half_body", "reset"])
def test_a_fault_that_passes_costs_one_more_try(
    replanned: Replanned, undisturbed: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(RetryPolicy, "delay", lambda *_: 0.0)
    server = replanned({"drawn": [{"do": fault, "share": 0.15, "times": 1}]})
    run = undisturbed.with_name("run")
    held(settings(server, undisturbed.with_name("items.jsonl")), run)
    log = server.log()
    met = sum(entry["behaviour"] == fault for entry in log)
    assert met > 3
    assert counted(run, undisturbed, log) == Count(lost=0, doubled=0, again=0, tries=met)
    assert report(run) == report(undisturbed)


def test_an_answer_that_trickles_in_is_given_up_at_the_timeout_and_asked_again(
    replanned: Replanned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RetryPolicy, "delay", lambda *_: 0.0)
    what = settings(replanned({}), dataset(tmp_path / "items.jsonl", 12), timeout=1)
    held(what, tmp_path / "undisturbed")
    server = replanned({"drawn": [{"do": "trickle", "share": 0.1, "times": 1}]})
    held(what, tmp_path / "run")
    log = server.log()
    cost = counted(tmp_path / "run", tmp_path / "undisturbed", log)
    assert cost.tries >= sum(entry["behaviour"] == "trickle" for entry in log) > 3
    assert (cost.lost, cost.doubled) == (0, 0)
    assert report(tmp_path / "run") == report(tmp_path / "undisturbed")


def test_answers_that_are_never_utf_8_fail_their_conversations_alone(replanned: Replanned, tmp_path: Path) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    what = settings(replanned({}), dataset(tmp_path / "items.jsonl", 12), streamed=True, retries=0)
    held(what, whole)
    server = replanned({"drawn": [{"do": "malformed", "share": 0.1}]})
    held(what, run)
    with History(run / "journal.sqlite") as history:
        ended = list(history.ended())
    failed = [one.result for one in ended if one.failed]
    assert (len(ended), len(failed) > 1) == (12, True)
    for error in failed:
        assert error["type"] == "Unavailable"
        assert "is not a ch" in error["message"] or "is not JSON" in error["message"]  # a chat completion; a stream
    before = server.log()
    held(what, run)  # the endpoint still does the same
    assert len(server.log()) == len(before) + len(failed), "what was answered is not asked again"
    log = server.log() + replanned({}).log()
    held(what, run)
    assert counted(run, whole, log + server.log()) == Count(lost=0, doubled=0, again=0, tries=2 * len(failed))
    assert report(run) == report(whole)


def test_answers_of_10_mb_are_kept_and_sent_on(replanned: Replanned, tmp_path: Path) -> None:
    server = replanned({"drawn": [{"do": "long", "share": 0.15, "megabytes": 10}]})
    what = settings(server, dataset(tmp_path / "items.jsonl", 4), concurrency=4)
    held(what, tmp_path / "whole")
    assert max(len(row[4]) for row in recorded(tmp_path / "whole")) > 10_000_000
    once = len(server.log())
    assert held(what, tmp_path / "run", calls=once // 2).how == "halted"
    held(what, tmp_path / "run")
    log = server.log()[once:]
    cost = counted(tmp_path / "run", tmp_path / "whole", log)
    assert (cost.lost, cost.doubled) == (0, 0)
    assert cost.again + cost.tries <= 4, "nothing was asked again but what was in flight"
    assert report(tmp_path / "run") == report(tmp_path / "whole")


def test_a_clock_that_is_set_changes_neither_calls_nor_their_order_nor_the_report(
    replanned: Replanned, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Day by day to and fro while the run goes on, and once more between its two parts."""
    server, run = replanned({}), undisturbed.with_name("run")
    what = settings(server, undisturbed.with_name("items.jsonl"))
    real, days = time.time, itertools.cycle([0, 1, -1, 400])
    monkeypatch.setattr(time, "time", lambda: real() + 86_400 * next(days))
    held(what, run, calls=20)
    held(what, run)
    assert counted(run, undisturbed, server.log()).lost == counted(run, undisturbed, server.log()).doubled == 0
    assert report(run) == report(undisturbed)
    with closing(sqlite3.connect(run / "journal.sqlite")) as journal:
        ends = [at for (at,) in journal.execute("select at from calls order by rowid")]
    assert ends[:20] == sorted(ends[:20])
    assert ends[19] - ends[0] < 3600


def test_a_clock_that_jumps_an_hour_ahead_ends_calls_and_no_conversation(
    replanned: Replanned, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a machine was halted: all timeouts are over at once, and every answer on its way is asked for again."""
    server, run = replanned({"default": {"do": "slow", "delay": 0.02}}), undisturbed.with_name("run")
    real, passed = time.monotonic, 0.0
    monkeypatch.setattr(time, "monotonic", lambda: real() + passed)

    def jump(event: Event) -> None:
        nonlocal passed
        passed += 3600.0 * isinstance(event, ConversationFinished)

    held(settings(server, undisturbed.with_name("items.jsonl")), run, hear=jump)
    cost = counted(run, undisturbed, server.log())
    assert passed == 12 * 3600.0
    assert (cost.lost, cost.doubled) == (0, 0)
    assert cost.again + cost.tries > 0
    assert report(run) == report(undisturbed)


@pytest.mark.skipif(not _can_mount(), reason="no namespace of one's own to mount a small disk in")
def test_a_full_disk_loses_no_call_that_was_recorded_and_asks_none_again(replanned: Replanned, tmp_path: Path) -> None:
    """A real one: a file system of 16 KB, then of 400 KB, which is made larger before the run goes on."""
    plan = {"by_model": {"candidate": {"default": {"do": "long", "megabytes": 0.02}}}}
    # One after the other: eight at once may have ended all before the journal's first rows are written.
    what = settings(replanned(plan), dataset(tmp_path / "items.jsonl", 16), concurrency=1)
    held(what, tmp_path / "whole")
    server = replanned(plan)
    (tmp_path / "models.yaml").write_text(yaml.safe_dump(what.model_dump(mode="json", exclude_defaults=True)))
    command = [*_NAMESPACE, sys.executable, str(_FULL_DISK), "models.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    _, none, full, later = done.stderr.split("RESIZED\n")
    assert "cannot make the run folder" in none
    assert "free space on that disk, then repeat the command" in none
    assert "database or disk is full" in full
    assert "free space on that disk (or raise the file-size limit), then `viva resume` the run" in full
    assert "Traceback" not in none + full + later
    cost = counted(tmp_path / "run", tmp_path / "whole", server.log())
    assert (cost.lost, cost.doubled) == (0, 0)
    assert cost.again + cost.tries < 64, "what had been recorded was not asked again"
    assert report(tmp_path / "run") == report(tmp_path / "whole")
