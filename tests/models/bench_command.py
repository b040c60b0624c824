"""``viva judge load … --json`` in this process: its exit code, the record that it prints, and what it says."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from viva.cli.main import app


def bench(*arguments: str | Path | float) -> tuple[int, Any, str]:
    """The record is None where nothing was printed."""
    out, err, code = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            app(["judge", "load", *map(str, arguments), "--json"], standalone_mode=False)
        except SystemExit as left:
            code = int(left.code or 0)
        out.flush()
    assert isinstance(out.buffer, io.BytesIO)
    printed = out.buffer.getvalue()
    return code, json.loads(printed) if printed else None, err.getvalue()
