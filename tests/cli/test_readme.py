"""Every snippet of the README runs, in its order, in one folder; and what it prints is as the README says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from study_runs import interviewed
from tiny_gguf import make_model

from viva.data.selection import open_dataset

sys.path.insert(0, str(Path(__file__).parents[1] / "servers"))
import process

ROOT = Path(__file__).parents[2]
SNIPPETS = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
_ELSEWHERE = ("make demo", "viva show runs/demo")  # the demo has a test of its own; its talks are named after its items
_PLACE = "http://127.0.0.1:8000"
_GRID = """
candidates: ['simulated:a']
datasets: [scenarios/kieval/items/science.jsonl]
interviews: {interactor: 'simulated:i', evaluator: 'simulated:e', n: 3, rounds: 1}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a reader may stand: with the project's files, two models, and the file of a sweep."""
    here = tmp_path_factory.mktemp("readme")
    for name in ("scenarios",):
        (here / name).symlink_to(ROOT / name)
    for name in ("model-b", "examiner"):
        make_model(here / f"{name}.gguf")
    (here / "grid.yaml").write_text(_GRID)
    return here


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with process.running({}) as server:
        yield server.url.removesuffix("/v1")


def _run(command: list[str], folder: Path) -> str:
    # Errors as a reader would see them, and the command that is installed.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, cwd=folder, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def test_line_12_every_snippet_of_the_readme_runs(folder: Path, endpoint: str) -> None:
    kinds = []
    for kind, text in SNIPPETS:
        snippet = text.replace(_PLACE, endpoint).replace("-n 20", "-n 2").replace("--duration 60", "--duration 0.5")
        if kind == "sh" and not any(words in text for words in _ELSEWHERE):
            _run(["bash", "-euc", snippet], folder)
        elif kind == "python":
            printed = _run([sys.executable, "-c", snippet], folder)
            assert printed.splitlines()[-1].startswith("done")
        else:
            continue
        kinds.append(kind)
    assert (kinds.count("sh"), kinds.count("python")) == (7, 1)


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_line_12_the_forms_of_items_in_the_readme_are_read(tmp_path: Path, kind: str) -> None:
    [text] = [text for name, text in SNIPPETS if name == kind]
    file = tmp_path / f"items.{'jsonl' if kind == 'json' else kind}"
    file.write_text(text)
    [item] = open_dataset(str(file))
    assert (item.id, item.choices[item.answer]) == ("g-1", "Mars")


def test_line_12_a_forks_ends_are_among_the_reasons(tmp_path: Path) -> None:
    # The run's evaluator ends talks early; the fork's is never readable, so that talks would go on, but they are over.
    run = interviewed(tmp_path / "run", "simulated:c?knowledge=0.2", evaluator="simulated:e?noise=0")
    command = [sys.executable, "-m", "viva", "run", "--fork", str(run), "--out", str(tmp_path / "fork"), "--json"]
    report = orjson.loads(_run([*command, "--evaluator", "simulated:mute?malformed=1"], tmp_path))
    one = report["candidates"]["c"]
    assert one["ends"]["transcript"] > 0
    assert one["stop_reasons"]["transcript"] == one["ends"]["transcript"]
    assert sum(one["stop_reasons"].values()) == one["interviews"] - one["ends"].get("rounds", 0)
