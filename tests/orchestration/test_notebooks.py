"""Runs in notebooks: what a cell shows, and runs and tables as data frames."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import Any

import nbformat
import pandas
import pytest
from case_tables import case_table
from hypothesis import given
from hypothesis import strategies as st
from nbclient import NotebookClient
from probing import make_items

import viva
from viva.engine.journal_format import short_checksum
from viva.exchange.exports.formats import export
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


@case_table(
    "cell, figure",
    [
        *[("1", 1), ("1,234", 1234), ("12.5%", 12.5), ("3 ± 1", 3), ("2e1", 20), (DASH, None)],
        *[("−∞", -inf), ("9" * 5_000, inf)],
        *[(cell, cell) for cell in ("١٢", "²", "1,,,2", "1.2.3", "1_000", "+-1")],
    ],
)
def test_names_stay_texts_and_only_plain_numbers_are_read(cell: str, figure: float | str | None) -> None:
    columns = ReportTable("t", ["name", "figure"], [[cell, cell]]).columns()
    assert (columns["name"], columns["figure"]) == ([cell], [figure])


@case_table(
    "value",
    [
        json.loads("[" * 900 + "1" + "]" * 900),
        {"deep": json.loads('{"a":' * 300 + "1" + "}" * 300)},
        2**70,
        {1: 2},
        {"a": "\ud800"},
        "\ud800",
        b"\xff",
        float("nan"),
        {"k" * 10**6: "x" * 10**6},
        "x" * 10**6,
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_result_of_any_form_is_shown_in_short(value: Any) -> None:
    for result in (viva.Result("a/b", value, value), viva.Result("a/b", None, None, {"type": "E", "more": value})):
        html = result._repr_html_()
        assert html.encode()
        assert len(html) < 10_000


@case_table(
    "record",
    [[1], 3, "text", None, {}, {"score": "much"}, {"score": [1]}, {"score": 10**30}],
    ids=lambda value: repr(value),
)
def test_results_of_another_form_hide_no_run(tmp_path: Path, record: Any) -> None:
    run = lesson_run(tmp_path / "run", ("tides",))
    text = json.dumps(record)
    journal = sqlite3.connect(tmp_path / "run" / "journal.sqlite", isolation_level=None)
    row = (0, "finished", text)
    journal.execute("insert or replace into ended values (?, ?, ?, ?)", (*row, short_checksum(row)))
    journal.close()
    assert str(tmp_path / "run") in run._repr_html_()
    frame = run.to_pandas()
    assert frame["state"].tolist() == ["finished", "finished"]
    assert run.to_polars().shape == frame.shape
    assert "2 of 2 conversations ended" in repr(run)


def test_sets_of_a_probe_are_told_apart_and_other_runs_have_no_such_column(tmp_path: Path) -> None:
    items, others = make_items(tmp_path / "items.jsonl", 12), make_items(tmp_path / "others.jsonl", 8, seed=2)
    run = viva.run_sync(
        "probe",
        models={"candidate": ["simulated:clean?knowledge=0.9", "simulated:cheat?knowledge=0.1&memorisation=1"]},
        dataset=str(items),
        against=str(others),
        method=["text"],
        against_method=["text"],
        shots=0,
        out=tmp_path / "run",
    )
    frame = run.to_pandas()
    assert frame["set"].value_counts().to_dict() == {"benchmark": 24, "second": 16}
    means = frame.groupby(["set", "candidate"])["score"].mean()
    own = run.report()["candidates"]
    for name in ("clean", "cheat"):
        assert means["benchmark", name] == pytest.approx(own[name]["accuracy"]["text"]["value"], abs=1e-4)
    assert run.to_polars()["set"].to_list() == frame["set"].tolist()
    assert "set" not in lesson_run(tmp_path / "lessons", ("tides",)).to_pandas()
    export(run.path, "lm-eval", tmp_path / "lm")
    for name in ("clean", "cheat"):
        [file] = (tmp_path / "lm" / name).glob("results_*")
        [figures] = json.loads(file.read_bytes())["results"].values()
        assert figures["score,none"] == pytest.approx(own[name]["accuracy"]["text"]["value"], abs=1e-4)
    export(run.path, "parquet", tmp_path / "rows.parquet")
    rows = pandas.read_parquet(tmp_path / "rows.parquet")
    assert rows.groupby("set").size().to_dict() == {"benchmark": 24, "second": 16}


def test_tables_without_rows_are_left_out_and_the_list_shows_itself(tmp_path: Path) -> None:
    tables = lesson_run(tmp_path / "run").tables()
    assert all(table.rows for table in tables)
    html = tables._repr_html_()  # type: ignore[attr-defined]
    assert html.count("<table>") == len(tables)


@case_table(
    "make, words",
    [
        (lambda folder: viva.load(folder / "none"), "none: not a run folder"),
        (lambda folder: lesson_run(folder), "choose another folder with `out`"),
        (
            lambda folder: viva.run_sync(
                "probe", models={"candidate": "simulated:a"}, dataset=str(folder / "no.jsonl")
            ),
            "no.jsonl: cannot be read",
        ),
        (
            lambda folder: viva.run_sync(
                "probe", models={"candidate": "simulated:a"}, dataset="x", against_method=["text"], method=["text"]
            ),
            "add `against`",
        ),
    ],
)
def test_errors_name_parameters_and_show_only_own_lines(
    tmp_path: Path, make: Callable[[Path], Any], words: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(viva.VivaError) as raised:
        make(tmp_path)
    assert words in str(raised.value)
    assert "--" not in str(raised.value)
    lines = raised.value._render_traceback_()
    assert lines[-1] == f"{type(raised.value).__name__}: {raised.value}"
    assert len(lines) <= 1 + 3 * 3
    assert any(Path(__file__).name in line for line in lines)
    assert not any("python_api.py" in line for line in lines)


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
    cells = [
        nbformat.v4.new_code_cell(text) for text in (code, "viva.run_sync('kieval', models={}, dataset='none.jsonl')")
    ]
    book = nbformat.v4.new_notebook(cells=cells)
    client = NotebookClient(
        book, timeout=120, allow_errors=True, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    progress, report = (output.data["text/html"] for output in book.cells[0].outputs if "data" in output)
    assert "2 of 2 conversations ended, 2 calls" in progress
    assert "<table>" in report
    assert str(tmp_path / "run") in report
    [error] = book.cells[1].outputs
    assert len(error.traceback) == 3, error.traceback
    assert error.traceback[-1].startswith("ConfigurationError: kieval: models: candidate: is missing; ")
