"""A run on a small disk that is made larger twice: ``full_disk.py SETTINGS``, in a namespace where it may mount one.

The run's folder is left beside the disk, under ``run``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import viva.cli.main
import viva.scenarios.kieval.scenario


def viva_ends(*arguments: str) -> int:
    """The exit code of ``viva`` in a process forked from this one, so that imports are not paid for again."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    sys.argv = ["viva", *arguments]
    code: object = 0
    try:
        viva.cli.main.main()
    except SystemExit as left:
        code = left.code
    finally:
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def resized(size: str, how: str = "remount,") -> None:
    """Mount the disk, or give it another size."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"{how}size={size}", "tmpfs", "small"], check=True)
    print("RESIZED", file=sys.stderr, flush=True)


def main() -> None:
    run = ["run", "kieval", "--config", sys.argv[1], "--out", "small/run"]
    Path("small").mkdir()
    resized("16k", how="")
    assert viva_ends(*run) == 1
    resized("400k")
    assert viva_ends(*run) == 1
    resized("64m")
    assert viva_ends("resume", "small/run") == 0
    shutil.copytree("small/run", "run")


if __name__ == "__main__":
    main()
