"""Functions that conversations compute in tests, some in worker processes: those that work, and all that can go
wrong.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any


def noted(file: str, value: Any) -> Any:
    """The value; each call leaves a line in the file."""
    with Path(file).open("a") as lines:
        lines.write(f"{value}\n")
    return value


def whole(value: int) -> int:
    """The value again."""
    return value


def hang(_: int) -> None:
    """Never come back."""
    threading.Event().wait()


def hang_known(fifo: str) -> None:
    """Say the process's number, keep the pipe open, and never come back."""
    with open(fifo, "w") as pipe:
        print(os.getpid(), file=pipe, flush=True)
        threading.Event().wait()


def first_line(fifo: str) -> int:
    """The number that somebody says at the other end of a pipe."""
    with open(fifo) as pipe:
        return int(pipe.readline())


def divide(_: int) -> float:
    """Fail."""
    return 1 / 0


def exit_hard(_: int) -> None:
    """End the process with code 3."""
    os._exit(3)


def leave(_: int) -> None:
    """Ask the interpreter to end."""
    sys.exit("enough")


def kill_itself(_: int) -> None:
    """End the process as the out-of-memory killer does."""
    os.kill(os.getpid(), signal.SIGKILL)


def unserialisable(_: int) -> Any:
    """An object."""
    return {"found": object()}


def not_a_number(_: int) -> Any:
    """What JSON cannot say."""
    return {"scores": [1.0, None, math.nan]}


def print_much(value: int) -> int:
    """A megabyte on both streams, and from a child process too."""
    print("x" * 2**20)
    print("x" * 2**20, file=sys.stderr)
    subprocess.run(["echo", "more"], check=True)
    return value
