"""What the engine does to the process that embeds it: nothing. The command tunes it, and shows what is logged."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from small_runs import small_run, three_questions
from small_sweeps import write_file

from viva.engine.conversation import Conversation
from viva.engine.event_loop import gc_tuned
from viva.sweeps.sweep import open_sweep


def test_a_run_leaves_the_collector_alone_unless_its_program_tunes_it(tmp_path: Path) -> None:
    seen: list[tuple[tuple[int, int, int], int]] = []

    async def converse(conversation: Conversation, payload: int) -> Any:
        seen.append((gc.get_threshold(), gc.get_freeze_count()))
        return await three_questions(conversation, payload)

    before = gc.get_threshold(), gc.get_freeze_count()
    small_run(tmp_path / "plain", converse=converse, count=1)
    assert seen == [before]
    with gc_tuned():
        small_run(tmp_path / "tuned", converse=converse, count=1)
    assert seen[1] != before
    assert (gc.get_threshold(), gc.get_freeze_count()) == before


def test_a_sweep_is_planned_without_leaving_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: object) -> None:
        raise AssertionError(f"the process went to {folder}")

    file = write_file(tmp_path, names=("alpha", "beta"))
    monkeypatch.setattr(os, "chdir", refuse)
    assert len(open_sweep(file, tmp_path / "out").runs) == 4


_SAYING = """
import logging, sys
if "viva" in sys.argv:
    from viva.cli import main
    main.app = lambda: None
    sys.argv.append("-v")  # else what is no warning is not shown
    main.main()
    sys.argv.append("-v")
    main.main()
log = logging.getLogger("viva")
log.info("m.gguf: 4 lanes")
log.warning("m: odd %d%%", 5)
log.warning("api: few files", extra={"label": "note"})
print("on it goes")
"""


@pytest.mark.parametrize("stderr", ["open", "closed", "unread"])
def test_the_command_shows_what_is_logged_once_and_outlives_a_broken_stderr(stderr: str) -> None:
    read, write = os.pipe()
    if stderr == "unread":
        os.close(read)
    command = [sys.executable, "-c", _SAYING, "viva"]
    if stderr == "closed":
        command = ["sh", "-c", 'exec "$@" 2>&-', "sh", *command]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=write, check=False)
    os.close(write)
    assert (done.returncode, done.stdout) == (0, b"on it goes\n")
    if stderr != "unread":
        with os.fdopen(read, "rb") as said:
            lines = said.read().decode().splitlines()
        shown = ["viva: m.gguf: 4 lanes", "viva: warning: m: odd 5%", "viva: note: api: few files"]
        assert lines == (shown if stderr == "open" else [])


def test_an_embedder_decides_what_is_shown() -> None:
    assert logging.getLogger("viva").handlers == []
    done = subprocess.run([sys.executable, "-c", _SAYING], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines() == ["m: odd 5%", "api: few files"]  # as Python shows warnings nobody took
