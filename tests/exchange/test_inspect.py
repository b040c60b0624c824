"""Logs of Inspect: what its own reader and viewer make of an exported run, and dialogs of a log as a suite's data."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from browser import Browser
from command import viva as viva_here

import viva
from viva.engine.errors import DatasetError
from viva.exchange.exports.conversations import open_cells
from viva.exchange.exports.inspect_ai import export_inspect
from viva.exchange.imports import import_file

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"


@pytest.fixture(scope="module", autouse=True)
def _inspect() -> None:
    # Not above: it takes seconds to import, in each worker of pytest.
    pytest.importorskip("inspect_ai.log")


def _read(log: Path) -> Any:
    return pytest.importorskip("inspect_ai.log").read_eval_log(str(log))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Interviews of one candidate on five items."""
    models: Any = {"candidate": ["simulated:student?knowledge=0.6"],
                   "interactor": "simulated:asker", "evaluator": "simulated:strict"}  # fmt: skip
    out = tmp_path_factory.mktemp("runs") / "talks"
    viva.run_sync("kieval", models=models, dataset=str(ITEMS), out=out, n=5, rounds=2, seed=3)
    return out


@pytest.fixture(scope="module")
def log(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Their log."""
    [file] = export_inspect(open_cells(run), tmp_path_factory.mktemp("logs")).files
    return file


def test_the_log_has_the_figures_and_every_word(run: Path, log: Path) -> None:
    read = _read(log)
    own = viva.load(run).report()["candidates"]["student"]
    score = read.results.scores[0]
    assert (read.status, score.name, score.scored_samples) == ("success", "score", 5)
    assert score.metrics["mean"].value == pytest.approx(own["score"]["mean"], abs=1e-6)
    assert score.metrics["stderr"].value == pytest.approx(own["score"]["se"], abs=1e-6)
    assert read.results.metadata["report"]["aspects.logic"]["value"] == own["aspects"]["logic"]["mean"]
    values = [sample.scores["score"].value for sample in read.samples]
    assert math.fsum(values) / 5 == pytest.approx(own["score"]["mean"], abs=1e-6)
    assert {role: one.model for role, one in read.eval.model_roles.items()} == {
        "interactor": "simulated:asker", "evaluator": "simulated:strict",
    }  # fmt: skip
    used = {role: (one.input_tokens, one.output_tokens) for role, one in read.stats.role_usage.items()}
    assert used == {role: (one["prompt_tokens"], one["completion_tokens"]) for role, one in own["usage"].items()}, (
        "tokens by role"
    )
    sample = read.samples[0]
    assert "round 1: " in sample.scores["logic"].explanation
    assert [one.role for one in sample.messages][:3] == ["system", "user", "assistant"]
    said = [(event.role, event.output.completion) for event in sample.events if event.event == "model"]
    calls = [(one.party, one.text) for one in _speeches(run, sample.metadata["key"]) if one.party != "benchmark"]
    assert said == calls, "every call of every role"


def _speeches(run: Path, key: str) -> list[Any]:
    import anyio

    found: list[Any] = anyio.run(viva.load(run).transcript, key).speeches
    return found


def test_a_large_cell_gives_the_same_log_a_few_samples_at_a_time(run: Path, log: Path, tmp_path: Path) -> None:
    [file] = export_inspect(open_cells(run), tmp_path, max_buffered=1).files
    streamed, whole = (_read(one) for one in (file, log))
    assert streamed.model_dump(exclude={"location"}) == whole.model_dump(exclude={"location"})


def test_inspects_viewer_shows_the_log(browser: Browser, log: Path, tmp_path: Path) -> None:
    with _viewer(log.parent, tmp_path) as address:
        page = browser.open(f"{address}/#/logs/{log.name}", 1400)
        text = page.until("document.body.innerText.includes('interactor: simulated:asker') && document.body.innerText")
        assert "simulated:student" in text
        [first, *_] = [one.id for one in _read(log).samples]
        page = browser.open(f"{address}/#/logs/{log.name}/samples/sample/{first}/1", 1400)
        text = page.until("document.body.innerText.includes('conciseness') && document.body.innerText")
        assert first in text
        assert "TRANSCRIPT" in text


@contextmanager
def _viewer(logs: Path, home: Path) -> Iterator[str]:
    """Inspect's viewer in a process of its own; gives its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = Path(sys.executable).with_name("inspect")
    command: list[Any] = [program, "view", "start", "--log-dir", logs, "--host", "127.0.0.1", "--port", str(port)]
    environment = os.environ | {"HOME": str(home), "XDG_DATA_HOME": str(home)}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        try:
            assert process.stdout is not None
            printed = next((line for line in process.stdout if "Running on" in line), None)
            assert printed is not None, "the viewer did not start"
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def test_dialogs_of_a_log_are_judged_by_a_suite(run: Path, log: Path, tmp_path: Path) -> None:
    done = import_file(log, "inspect", tmp_path / "dialogs.jsonl")
    lines = [orjson.loads(line) for line in (tmp_path / "dialogs.jsonl").read_bytes().splitlines()]
    assert done.records == len(lines) == 5
    own = viva.load(run).report()["candidates"]["student"]["score"]["mean"]
    assert math.fsum(line["scores"]["score"] for line in lines) / 5 == pytest.approx(own, abs=1e-6)
    (tmp_path / "suite.yaml").write_text(
        "name: imported\nconversations: [dialogs.jsonl]\ncomplete: none\n"
        "metrics:\n  - {function: length}\n  - {function: is_role, arguments: {role: assistant}, level: turn}\n"
    )
    judged = viva_here("suite", "run", "suite.yaml", "--out", "judged", "--json", cwd=tmp_path)
    assert judged.returncode == 0, judged.stderr
    [figures] = orjson.loads(judged.stdout)["candidates"].values()
    answers = sum(one["role"] == "assistant" for line in lines for one in line["messages"])
    turns = figures["metrics"]["is_role.assistant"]
    assert turns["n"] * turns["mean"] == pytest.approx(answers)


def test_what_is_no_log_is_refused_by_name(log: Path, tmp_path: Path) -> None:
    (tmp_path / "a.eval").write_bytes(b"PK not a zip")
    with pytest.raises(DatasetError, match=r"a\.eval: not an Inspect log"):
        import_file(tmp_path / "a.eval", "inspect", tmp_path / "out.jsonl")
    with zipfile.ZipFile(log) as whole, zipfile.ZipFile(tmp_path / "b.eval", "w") as broken:
        for name in whole.namelist():
            data = whole.read(name)
            broken.writestr(name, data[: len(data) // 2] if name.startswith("samples/") else data)
    with pytest.raises(DatasetError, match=r"b\.eval: sample 1: cannot be read"):
        import_file(tmp_path / "b.eval", "inspect", tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()
