"""Tables in a terminal of any width: each number stands there whole, and each row can be told by its labels."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from study_runs import interviewed

from viva.cli.tables import lay_out

WIDTHS = st.integers(60, 200)
NUMBERS = st.one_of(
    st.floats(-1e4, 1e4).map(lambda value: f"{value:,.1f}"),
    st.floats(1e-30, 1e-3).map(lambda value: f"{value:.1e}"),
    st.tuples(st.floats(0, 100), st.floats(0, 9)).map(lambda both: f"{both[0]:.1f} ± {both[1]:.1f}"),
    st.floats(0, 100).map(lambda value: f"{value:.1f} ({value - 1:.1f} to {value + 1:.1f})"),
    st.integers(0, 10**9).map(lambda value: f"{value:,}"),
    st.just("–"),
)
LABELS = st.text(st.characters(categories=["Ll", "Lo"]), min_size=1, max_size=50)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], list[list[str]]]:
    """A header and rows: labels, numbers, and maybe words at the end that hold numbers."""
    labels, columns = draw(st.integers(1, 2)), draw(st.integers(1, 14))
    header = [draw(LABELS) for _ in range(labels)]
    header += [draw(st.sampled_from(["±", "p", "loss fresh", "first − second", "n"])) for _ in range(columns)]
    rows = [
        [*(draw(LABELS) for _ in range(labels)), *(draw(NUMBERS) for _ in range(columns))]
        for _ in range(draw(st.integers(1, 3)))
    ]
    if draw(st.booleans()):
        header.append("result")
        rows = [[*row, f"{draw(LABELS)} {draw(NUMBERS)}"] for row in rows]
    return header, rows


def drawn(header: list[str], rows: list[list[str]], width: int) -> list[list[str]]:
    """The lines of each part of a table, in a terminal so wide."""
    parts = []
    for part in lay_out(header, rows, width):
        buffer = io.StringIO()
        Console(file=buffer, width=width, color_system=None).print(part)
        parts.append(buffer.getvalue().splitlines())
    return parts


@settings(max_examples=30)
@given(tables(), WIDTHS)
def test_line_9_no_number_is_folded_or_lost_at_any_width(table: tuple[list[str], list[list[str]]], width: int) -> None:
    header, rows = table
    parts = drawn(header, rows, width)
    lines = [line for part in parts for line in part]
    assert max(map(cell_len, lines)) <= width
    words = [word for line in lines for word in line.split()]
    expected = [word for row in rows for cell in row for word in cell.split() if re.search(r"\d", word)]
    # What tells rows of the same labels apart may stand in several parts.
    assert set(expected) == {word for word in words if re.search(r"\d", word)}
    assert not Counter(expected) - Counter(words)
    for row in rows:
        for cell, name in zip(row, header, strict=True):
            if name != "result" and re.match(r"[-\d]", cell):
                assert any(cell in line for line in lines), f"{cell!r} is folded"


@settings(max_examples=15)
@given(st.lists(NUMBERS, min_size=6, max_size=16), WIDTHS)
def test_line_9_each_part_repeats_the_labels(numbers: list[str], width: int) -> None:
    header = ["candidate", *(f"column {place}" for place in range(len(numbers)))]
    for part in drawn(header, [["model-a", *numbers], ["model-b", *numbers]], width):
        assert sum("model-a" in line for line in part) == sum("model-b" in line for line in part) == 1


@pytest.mark.parametrize("width", [56, 60, 70, 80])
def test_line_9_each_row_of_each_part_can_be_told_from_the_others(width: int) -> None:
    names = ["a-model-of-70-b", "a-model-of-8-b", "another-of-1"]
    pairs = [["science", *pair, "+2.1 (-68.9 to +71.0)", "1.0"] for pair in combinations(names, 2)]
    header = ["dataset", "first", "second", "first − second", "p", *(f"further {n}" for n in range(6))]
    cells = [["kieval", "a", "arc", seed, judge, "done"] for seed in "12" for judge in ("j", "another-judge")]
    named = ["scenario", "candidate", "dataset", "seed", "evaluator", "state", *(f"further {n}" for n in range(6))]
    for names, table in ((header, pairs), (named, cells)):
        parts = list(lay_out(names, [[*row, *["12.3 ± 4.5"] * 6] for row in table], width))
        assert len(parts) > 1
        for part in parts:
            rows = list(zip(*([str(cell) for cell in column.cells] for column in part.columns), strict=True))
            told = [tuple(cell for cell in row if cell != "12.3 ± 4.5") for row in rows]
            assert len(set(told)) == len(table), told


def test_line_9_an_error_stays_beside_its_figure() -> None:
    header = ["candidate", *(name for _ in range(9) for name in ("KIEval", "±"))]
    for part in drawn(header, [["m", *("12.3" for _ in range(18))]], 60):
        names = next(line.split() for line in part if "candidate" in line)
        assert names[1::2] == ["KIEval"] * (len(names) // 2)
        assert names[2::2] == ["±"] * (len(names) // 2)


def test_line_9_what_fits_stands_in_one_part_on_lines_of_its_own() -> None:
    [part] = drawn(["candidate", "KIEval", "±"], [["m", "12.3", "0.1"]], 60)
    assert [line.split() for line in part if line.strip(" ─")] == [["candidate", "KIEval", "±"], ["m", "12.3", "0.1"]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    candidates = [f"simulated:a-candidate-of-some-length-{place}?knowledge=0.4" for place in "xyz"]
    return interviewed(tmp_path_factory.mktemp("runs") / "run", *candidates, n=5)


def _in_terminal(width: int, *arguments: Any) -> str:
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    command = [sys.executable, "-m", "viva", *map(str, arguments)]
    seen = b""
    with subprocess.Popen(command, stdout=terminal, env=os.environ | {"TERM": "dumb", "NO_COLOR": "1"}) as process:
        os.close(terminal)
        with os.fdopen(screen, "rb", buffering=0) as file:
            try:
                while piece := file.read(65536):
                    seen += piece
            except OSError:  # nobody holds the other end
                pass
    assert process.returncode == 0
    return re.sub(r"\x1b\[[\d;]*m", "", seen.decode()).replace("\r", "")


@pytest.mark.parametrize("width", [60, 80])
def test_line_9_a_report_in_a_narrow_terminal_has_the_numbers_of_a_wide_one(run: Path, width: int) -> None:
    narrow, wide = (_in_terminal(one, "report", run) for one in (width, 200))
    # Of titles, which fold at their blanks, the numbers are those of a wide terminal too.
    numbers = r"(?<!\S)-?\d[\d.,%]*(?!\S)"
    assert sorted(re.findall(numbers, narrow)) == sorted(re.findall(numbers, wide))
    table = [line for line in narrow.splitlines() if not line.startswith(("KIEval on", "Why", "Tokens"))]
    assert max(map(len, table)) <= width
    # Each part of a table has a title, and each title but the first says that it continues.
    parts = [line for line in narrow.splitlines() if line.startswith("KIEval on")]
    assert len(parts) > 1
    assert parts[1:] == ["KIEval on science (continued)"] * (len(parts) - 1)


def test_the_table_of_scores_fits_80_columns(tmp_path: Path) -> None:
    labels = ("sft-cheater", "strong", "answer")
    runs = [interviewed(tmp_path / str(n), *(f"simulated:{label}" for label in labels), n=10, seed=n) for n in (1, 2)]
    for folders in (runs[:1], runs):
        lines = _in_terminal(80, "report", *folders).splitlines()
        assert not any(line.startswith("KIEval on science (continued)") for line in lines)
        assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("width", [80, 100])
def test_keys_and_ids_are_never_broken_inside_a_word(width: int) -> None:
    keys = ["candidate-of-some-length/0JqPsN2vX1YtRrWbq7cF8w", "candidate-of-some-length/7cF8w0JqPsN2vX1YtRrWbq"]
    ids = [key.rpartition("/")[2] for key in keys]
    rows = [[ids[0], "some words about it that may well be folded over lines", "1.5"], [ids[1], "more of them", "2.5"]]
    [part] = drawn(["item", "what is wrong", "score"], rows, width)
    assert all(any(one in line.split() for line in part) for one in ids)
