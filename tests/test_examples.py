"""The programs and the notebook in examples/ as a reader has them: each runs as written and says what it promises."""

from __future__ import annotations

import os
import re
import runpy
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from tiny_gguf import make_model

EXAMPLES = Path(__file__).parents[1] / "examples"
ITEMS = Path(__file__).parents[1] / "scenarios" / "kieval" / "items" / "science.jsonl"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def printed(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    """What a program prints."""
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


def numbers(text: str, line: str) -> list[float]:
    """The numbers of the line that begins so."""
    [found] = re.findall(rf"^{line}(.*)$", text, re.MULTILINE)
    return [float(one) for one in re.findall(r"-?\d+(?:\.\d+)?", found)]


def test_every_example_is_tested_and_listed() -> None:
    names = {path.name for path in EXAMPLES.iterdir() if path.is_file()}
    tested = set(re.findall(r'"(\w+\.(?:py|ipynb))"', Path(__file__).read_text()))
    assert names == tested
    assert "examples/" in (EXAMPLES.parent / "README.md").read_text()


def test_contamination(here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    items = ITEMS.read_text().splitlines()
    Path("suspect.jsonl").write_text("\n".join(items[:8]))
    Path("fresh.jsonl").write_text("\n".join(items[8:16]))
    model = make_model(here / "tiny.gguf")
    text = printed("contamination.py", capsys, monkeypatch, f"llama:{model}?ctx=2048", "suspect.jsonl", "fresh.jsonl")
    _, _, _, low, high = numbers(text, "LM loss per token, nats: suspect")
    assert low < 0 < high  # a model of random weights has seen neither
    assert "familiar" not in text
    assert len(re.findall(r"^  min k", text, re.MULTILINE)) > 5


def test_certified_judge(here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = printed("certified_judge.py", capsys, monkeypatch)
    [_, truth] = numbers(text, "what people would say of all")
    judge, people, certified = (numbers(text, name) for name in ("judge", "people", "certified"))
    assert not judge[1] <= truth <= judge[2]
    assert certified[1] <= truth <= certified[2]
    assert certified[2] - certified[1] < people[2] - people[1]


def test_debate(here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = printed("debate.py", capsys, monkeypatch)
    shares, meetings = zip(*(numbers(text, f"{name} won") for name in "abc"), strict=True)
    assert sum(shares) == pytest.approx(1.5)
    assert meetings == (8, 8, 8)  # two motions, two others, both sides


def test_judge_under_load(here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = printed("judge_under_load.py", capsys, monkeypatch)
    basis = "(100.0% of 60 requests answered, verdicts on 60 compared, no change above 6.0%)"
    assert f"Steady: no change in verdicts found up to 16 requests in flight {basis}." in text
    tiring = f"Tiring: no change in verdicts found up to 2 requests in flight {basis}, but they change at 16 requests"
    assert f"{tiring} in flight." in text


def test_early_stop(here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = printed("early_stop.py", capsys, monkeypatch)
    held, planned = numbers(text, "drained:")
    assert 100 <= held < planned == 2000
    _, low, high = numbers(text, "score")
    assert high - low < 0.08
    assert "'operator: this topic is being rewritten': 1" in text


def test_the_notebook(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("MPLBACKEND", "agg")
    book = nbformat.read(EXAMPLES / "sweep_tables.ipynb", as_version=4)
    assert all(not cell.get("outputs") for cell in book.cells)  # kept without results, which change with versions
    NotebookClient(book, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(here)}}).execute()
    shown = [output.data["text/plain"] for cell in book.cells for output in cell.get("outputs", ()) if "data" in output]
    [table] = [text for text in shown if "interview" in text]
    rows = {name: (float(accuracy), float(score))
            for name, accuracy, score in re.findall(r"^(\w+) +(\d+\.\d) +(\d+\.\d)$", table, re.MULTILINE)}  # fmt: skip
    assert rows.keys() == {"weak", "middle", "strong", "crammer"}
    assert rows["crammer"][0] > rows["weak"][0]
    assert rows["crammer"][1] < rows["middle"][1] < rows["strong"][1]
    assert (here / "interviews.svg").stat().st_size > 1000
