"""Runs in notebooks: what a cell shows, and runs and tables as data frames."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nbclient import NotebookClient

import viva
from viva.orchestration.notebook import ReportTable
from viva.reports.tables import DASH, number

HOSTILE = "<script>alert(1)</script>\x1b[2J\u202e"


@viva.scenario(compare="pupil")
async def lesson(conversation: viva.Conversation, topic: str) -> dict[str, float | None]:
    """A pupil explains a topic."""
    if topic == "storm":
        raise ValueError(f"{topic}: {HOSTILE}")
    answer = (await viva.Agent(conversation, "pupil").ask(f"Explain {topic}.")).text
    return {"score": None if topic == HOSTILE else float(len(answer) % 7)}


def lesson_run(out: Path, topics: Sequence[str] = ("tides", "storm", HOSTILE)) -> viva.Run:
    return viva.run_sync(lesson, tasks=topics, models={"pupil": ["simulated:a", "simulated:b"]}, out=out)


def test_conversations_are_a_data_frame_in_run_order(tmp_path: Path) -> None:
    run = lesson_run(tmp_path / "run")
    frame = run.to_pandas()
    results = list(run.results())
    assert frame["key"].tolist() == [result.key for result in results]
    assert frame["state"].tolist() == ["finished" if result.error is None else "failed" for result in results]
    assert frame["score"].isna().tolist() == [
        result.error is not None or result.value["score"] is None for result in results
    ]
    assert set(frame["candidate"]) == {"a", "b"}
    assert frame["error"].dropna().str.contains("storm").all()
    assert run.to_polars().to_dicts() == [
        {name: None if value != value else value for name, value in row.items()} for row in frame.to_dict("records")
    ]


def test_what_a_model_or_a_file_says_is_never_markup(tmp_path: Path) -> None:
    run = lesson_run(tmp_path / "run")
    shown = [run._repr_html_(), *(result._repr_html_() for result in run.results())]
    shown.append(ReportTable(HOSTILE, [HOSTILE], [[HOSTILE]])._repr_html_())
    assert "storm" in shown[0]
    for html in shown:
        assert not [part for part in ("<script", "\x1b", "\u202e") if part in html]


figures = st.one_of(st.none(), st.floats(-1e6, 1e6, allow_nan=False))


@given(st.lists(st.tuples(figures, figures, figures), min_size=1, max_size=8), st.sampled_from(["±", "to", "of", "%"]))
def test_figures_of_a_table_are_numbers_as_shown(rows: list[tuple[float | None, ...]], form: str) -> None:
    def rounded(value: float | None) -> float | None:
        return None if value is None else round(value, 1)

    def cell(value: float | None, low: float | None, high: float | None) -> str:
        texts = number(value), number(low), number(high)
        if form == "%":
            return texts[0] if value is None else f"{texts[0]}%"
        if form == "to":
            return "{} ({} to {})".format(*texts)
        return "{0} {form} {1}".format(*texts, form=form)

    columns = ReportTable("t", ["model", "score"], [[f"m{at}", cell(*row)] for at, row in enumerate(rows)]).columns()
    assert columns["score"] == [rounded(row[0]) for row in rows]
    names = {"±": ["score ±"], "of": ["of score"], "to": ["score low", "score high"], "%": []}[form]
    assert list(columns) == ["model", "score", *names]
    for position, name in enumerate(names, 1):
        assert columns[name] == [rounded(row[position]) for row in rows]


@pytest.mark.parametrize("cells", [["a", "1"], ["1-2", "3"], [""], [f"{DASH}x"]])
def test_other_columns_stay_texts(cells: list[str]) -> None:
    table = ReportTable("t", ["x", "x"], [[cell, cell] for cell in cells])
    assert table.columns() == {"x": cells, "x 2": cells}
    assert table.to_polars().shape == table.to_pandas().shape == (len(cells), 2)


def test_a_cell_shows_the_progress_and_the_report(tmp_path: Path) -> None:
    scenario = tmp_path / "lessons.py"
    scenario.write_text(
        'import viva\n\n\n@viva.scenario(compare="pupil")\nasync def lessons(conversation, topic):\n'
        '    """A pupil explains."""\n    answer = await viva.Agent(conversation, "pupil").ask(topic)\n'
        '    return {"score": len(answer.text) % 7}\n'
    )
    code = (
        f"import viva\nviva.run_sync({str(scenario)!r}, tasks=['tides', 'rust'], "
        f"models={{'pupil': 'simulated:a'}}, out={str(tmp_path / 'run')!r})"
    )
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    NotebookClient(book, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    progress, report = (output.data["text/html"] for output in book.cells[0].outputs if "data" in output)
    assert "2 of 2 conversations ended, 2 calls" in progress
    assert "<table>" in report
    assert str(tmp_path / "run") in report
