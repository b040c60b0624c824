"""Programs compared by taking turns: while one runs a quarter of a second, the others are stopped.

Other guests of a host make it faster and slower within seconds, and by more than the programs differ; in turns all of
them meet the same machine. What each took is its own time alone: programs of ``peers/`` are given a clock that stands
still while they are stopped (``peers/stopwatch.py``), for others ``ProgramOutput.own`` leaves it out. A program that
outlasts the others then has the machine alone: if a few percent count, compare programs of about equal duration.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping

from running import PEERS, Line, PeerFailed

sys.path.insert(0, str(PEERS))
from stopwatch import PAUSED

SECONDS = 0.25  # a turn: many steps of a model, so that changing over costs little, yet shorter than most disturbances


class ProgramOutput:
    """What a program said, and when it ran; moments are of ``time.perf_counter``."""

    def __init__(self) -> None:
        self.lines: list[tuple[float, str]] = []
        self.turns: list[tuple[float, float]] = []

    def own(self, begin: float, end: float) -> float:
        """The part of a stretch of time in which the program was not stopped, seconds."""
        return sum(max(0.0, min(end, last) - max(begin, first)) for first, last in self.turns)

    def last_line(self) -> Line:
        """The figures that a program of ``peers/`` prints as its last line."""
        line: Line = json.loads(self.lines[-1][1])
        return line


def in_turns(commands: Mapping[str, list[str]], seconds: float) -> dict[str, ProgramOutput]:
    """Run all to their ends, ``seconds`` a turn.

    :raises PeerFailed: one of them did not end well; the others are killed.
    """
    with contextlib.ExitStack() as stack:
        programs = {name: stack.enter_context(_Program(command)) for name, command in commands.items()}
        waiting = list(programs.values())
        while waiting:
            for program in list(waiting):
                if program.turn(seconds if len(waiting) > 1 else None):
                    waiting.remove(program)
        return {name: program.output for name, program in programs.items()}


class _Program:
    """One of them, in a process group of its own."""

    def __init__(self, command: list[str]) -> None:
        self.output = ProgramOutput()
        self._command = command
        self._process: subprocess.Popen[str] | None = None
        self._ended = threading.Event()
        self._paused = 0.0

    def __enter__(self) -> _Program:
        self._errors = tempfile.TemporaryFile("w+")
        self._file = tempfile.NamedTemporaryFile()
        self._file.write(struct.pack("d", 0.0))
        self._file.flush()
        self._shared = mmap.mmap(self._file.fileno(), 8)
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._errors.close()
        self._shared.close()
        self._file.close()

    def turn(self, seconds: float | None) -> bool:
        """Let it run so long, or to its end, and say whether that was the end.

        :raises PeerFailed: it was, and a bad one.
        """
        began = time.perf_counter()
        if self._process is None:
            self._start()
        else:
            self._paused += began - self.output.turns[-1][1]
            self._shared[:] = struct.pack("d", self._paused)
            os.killpg(self._process.pid, signal.SIGCONT)
        assert self._process is not None
        ended = self._ended.wait(seconds)
        if not ended:
            os.killpg(self._process.pid, signal.SIGSTOP)
        self.output.turns.append((began, time.perf_counter()))
        if ended and self._process.wait():
            self._errors.seek(0)
            errors = self._errors.read().strip()[-2000:]
            raise PeerFailed(f"{' '.join(self._command)} ended with {self._process.returncode}:\n{errors}")
        return ended

    def _start(self) -> None:
        self._process = subprocess.Popen(
            self._command,
            cwd=PEERS,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, PAUSED: self._file.name},
            start_new_session=True,
        )
        threading.Thread(target=self._listen, args=[self._process], daemon=True).start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self.output.lines.append((time.perf_counter(), line))
        self._ended.set()
