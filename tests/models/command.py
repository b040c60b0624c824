"""The ``viva`` command in this process, for tests that look at what it prints and how it ends.

A process of its own for each command takes most of such a test's time.
"""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

from typer.testing import CliRunner

from viva.cli.main import app


def viva(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The command's end: exit code, stdout, stderr.

    :raises Exception: what the command did not expect; on a terminal it would be a traceback.
    """
    words = [str(one) for one in arguments]
    with contextlib.chdir(cwd or Path.cwd()):
        done = CliRunner().invoke(app, words)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)
