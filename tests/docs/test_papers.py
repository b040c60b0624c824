"""The tables and figures of the papers: the page is up to date, and each row's command prints what the row says."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from doc_files import provide
from doc_pages import ROOT
from doc_papers import PAGE, Paper, page, papers

# How many tables and figures each paper has: none may be left out.
_COUNTS = {
    "KIEval": (17, 5),
    "FunctionChat-Bench": (5, 5),
    "FlexEval": (2, 4),
    "Fusion-Eval": (8, 2),
    "LalaEval": (10, 3),
}
_PATIENCE = 120.0


def test_the_page_is_made_from_the_file() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "docs/papers.md is older than docs/papers.yaml: make docs/papers.md"
    )


def test_no_table_and_no_figure_is_left_out() -> None:
    assert {paper.title: tuple(_numbers(paper, kind) for kind in ("Table", "Figure")) for paper in papers()} == {
        title: tuple(list(range(1, count + 1)) for count in counts) for title, counts in _COUNTS.items()
    }


def _numbers(paper: Paper, kind: str) -> list[int]:
    numbers: list[int] = []
    for row in paper.rows:
        if re.match(rf"{kind}s? \d", row.of):
            first, *last = map(int, re.findall(r"\d+", row.of))
            numbers += range(first, last[0] + 1) if "–" in row.of else [first, *last]
    return sorted(set(numbers))  # a table may have several rows


@pytest.mark.parametrize("paper", papers(), ids=lambda paper: paper.title)
def test_every_row_comes_out(paper: Paper, commands: Path, tmp_path: Path) -> None:
    for name in paper.needs:
        provide(tmp_path, name)
    for name, text in paper.files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "scenarios").symlink_to(ROOT / "scenarios")
    printed = {command: _run(command, commands, tmp_path) for command in paper.before}
    for row in paper.rows:
        assert bool(row.run) != bool(row.missing), row.of
        if row.run:
            if row.run not in printed:
                printed[row.run] = _run(row.run, commands, tmp_path)
            text = (tmp_path / row.within).read_text(encoding="utf-8-sig") if row.within else printed[row.run]
            assert row.shows, row.of
            assert [part for part in row.shows if part not in text] == [], f"{row.of}: {text[-3000:]}"
            assert all((tmp_path / name).is_file() for name in row.made), row.of


def _run(command: str, commands: Path, folder: Path) -> str:
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command], cwd=folder, env={**os.environ, "PATH": path, "HOME": str(folder)},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout[-3000:]}"
    return done.stdout
