"""A manifest that somebody edited, or that is no file: one line that names file and field, never a traceback."""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from study_runs import interviewed, probed
from typer.testing import CliRunner

from viva.cli.main import app

_WRONG: list[Any] = [None, 10**19, -1, "x" * 100_000, [], {}, [[[1]]], {"a": {"b": []}}, True]


@pytest.fixture(scope="module", params=["kieval", "probe"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two conversations."""
    make = interviewed if request.param == "kieval" else probed
    return make(tmp_path_factory.mktemp(request.param) / "run", "simulated:c", n=2)


def _refusal(command: str, run: Path) -> str:
    """What a command says on stderr; empty where it does its work. Whatever it does, it does it without a traceback."""
    done = CliRunner().invoke(app, [command, str(run)])
    assert isinstance(done.exception, SystemExit | None), (command, repr(done.exception))
    if done.exit_code == 0:
        return ""
    assert done.exit_code in (1, 2)
    lines = [line for line in done.stderr.splitlines() if line.startswith("viva: error: ")]
    assert len(lines) == 1, done.stderr[-500:]
    assert len(lines[0]) < 2000
    return lines[0]


def _places(data: dict[str, Any], before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in data.items():
        yield (*before, name)
        if isinstance(value, dict) and value:
            yield from _places(value, (*before, name))


def _edits(manifest: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each field dropped or, where its number is odd, given one of the wrong values in turn."""
    for number, place in enumerate(_places(manifest)):
        for what in ["drop"] if number % 2 == 0 else [number // 2]:
            edited = copy.deepcopy(manifest)
            holder = edited
            for name in place[:-1]:
                holder = holder[name]
            if what == "drop":
                del holder[place[-1]]
            else:
                holder[place[-1]] = copy.deepcopy(_WRONG[int(what) % len(_WRONG)])
            yield f"{'.'.join(place)}: {what}", edited


def test_line_28_no_edit_of_a_manifest_gives_a_traceback(run: Path, tmp_path: Path) -> None:
    whole = orjson.loads((run / "manifest.json").read_bytes())
    edited = Path(shutil.copytree(run, tmp_path / "run"))
    file = edited / "manifest.json"
    refused, edits = 0, 0
    for number, (what, manifest) in enumerate(_edits(whole)):
        try:
            file.write_bytes(orjson.dumps(manifest))
        except TypeError:  # whole numbers beyond 64 bits
            file.write_text(json.dumps(manifest))
        said = _refusal(("report", "show", "resume")[number % 3], edited)
        edits += 1
        if said:
            refused += 1
            # A setting that was dropped has its default, which a resume may refuse by the setting's name.
            own = f"viva: error: {what.removeprefix('settings.').partition(':')[0]}: "
            assert str(file) in said or "changed since the run began" in said or said.startswith(own), (what, said)
    assert 0 < refused < edits


@pytest.mark.parametrize("field", ["scenario", "seed", "settings", "models", "prices", "pack", "dataset", "tier"])
def test_line_28_the_field_that_is_missing_is_named(run: Path, tmp_path: Path, field: str) -> None:
    edited = Path(shutil.copytree(run, tmp_path / "run"))
    manifest = orjson.loads((run / "manifest.json").read_bytes())
    del manifest[field]
    (edited / "manifest.json").write_bytes(orjson.dumps(manifest))
    for command in ("report", "show", "resume"):
        assert f"manifest.json: field '{field}': missing" in _refusal(command, edited)


@pytest.mark.parametrize("what", ["fifo", "folder", "empty", "text", "list", "deep", "bytes"])
def test_line_28_what_is_no_manifest_is_refused_at_once(run: Path, tmp_path: Path, what: str) -> None:
    edited = Path(shutil.copytree(run, tmp_path / "run"))
    file = edited / "manifest.json"
    file.unlink()
    contents = {"empty": b"", "text": b"seed: 7", "list": b"[1]", "deep": b"[" * 100_000, "bytes": b"\xff\x00"}
    if what == "fifo":
        os.mkfifo(file)
    elif what == "folder":
        file.mkdir()
    else:
        file.write_bytes(contents[what])
    for command in ("report", "show", "resume"):
        assert str(file) in _refusal(command, edited)
