"""The list of conversations as a table, the matrix of items and candidates, selections; in a browser and without."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qsl, quote
from urllib.request import urlopen

import numpy as np
import orjson
import pytest
from browser import Browser, Page
from command import viva as viva_here
from multidict import MultiDict
from viewed_runs import SCIENCE, make_runs, viewer
from weighed_runs import weighed_run

import viva
from viva.engine.errors import ConfigurationError
from viva.reports.studies.study import Study, study_findings
from viva.scenarios.probes.probe_report import CandidateProbes
from viva.web.view.export import export_pages
from viva.web.view.filters import COLUMNS, Filter
from viva.web.view.index import index_file
from viva.web.view.indexer import Indexer
from viva.web.view.matrix import Matrix, MatrixView, read_cells, read_matrix
from viva.web.view.pages import Pages
from viva.web.view.queries import IndexReader
from viva.web.view.run_figures import run_groups
from viva.web.view.selections import Selection


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_runs(tmp_path_factory.mktemp("viewed"))


@pytest.fixture(scope="module")
def reader(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[IndexReader]:
    yield from _reader(root, tmp_path_factory.mktemp("index"))


@pytest.fixture(scope="module")
def site(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with viewer(root, tmp_path_factory.mktemp("index")) as address:
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"{address}/c/none/1")  # is answered when the index is complete
        yield address


def _reader(root: Path, index: Path) -> Iterator[IndexReader]:
    file = index_file(root, index)
    Indexer(root, file).catch_up()
    reader = IndexReader(file)
    yield reader
    reader.close()


def _chosen(query: str) -> Filter:
    return Filter.from_query(MultiDict(parse_qsl(query)))


def _texts(page: Page, selector: str) -> list[str]:
    texts: list[str] = page.evaluate(
        f"[...document.querySelectorAll({selector!r})].map((one) => one.textContent.trim())"
    )
    return texts


# -- the list ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [*COLUMNS, "aspect:logic"])
def test_any_column_sorts_both_ways_with_unknown_values_last(reader: IndexReader, key: str) -> None:
    def value(conversation: Any) -> Any:
        name = {"end": "end", "seconds": "seconds", "time": "at"}.get(key, key)
        if key.startswith("aspect:"):
            return conversation.aspects.get(key.removeprefix("aspect:"))
        if key == "run":
            return [run.name for run in reader.runs()].index(conversation.run)
        if key == "tokens":
            return conversation.prompt_tokens + conversation.completion_tokens
        return getattr(conversation, name) or (
            None if key in ("end", "time", "dataset") else getattr(conversation, name)
        )

    seen = []
    for order in ("up", "down"):
        chosen = _chosen(f"sort={key}&order={order}")
        conversations = [*reader.selected(chosen)]
        values = [value(conversation) for conversation in conversations]
        known = [own for own in values if own is not None]
        kinds = [own.kind if chosen.by_score else None for own in conversations[: len(known)]]
        for kind in dict.fromkeys(kinds):  # scores of one kind are sorted by themselves
            together = [at for at, own in enumerate(kinds) if own == kind]
            assert together == [*range(together[0], together[-1] + 1)]
            assert [known[at] for at in together] == sorted((known[at] for at in together), reverse=order == "down")
        assert values == known + [None] * (171 - len(known))
        assert values[:50] == [value(conversation) for conversation in reader.listed(chosen)]
        seen.append(len(known))
    assert seen[0] == seen[1] > 0


def test_addresses_of_earlier_lists_mean_what_they_meant(reader: IndexReader) -> None:
    for earlier, now in (
        ("sort=low", "sort=score&order=up"),
        ("sort=high", "sort=score"),
        ("sort=latest", "sort=time"),
        ("sort=slow", "sort=seconds"),
        ("sort=low&aspect=logic", "sort=aspect:logic&order=up&aspect=logic"),
    ):
        assert [own.id for own in reader.listed(_chosen(earlier))] == [own.id for own in reader.listed(_chosen(now))]
    with pytest.raises(ConfigurationError, match=r"sort: expected one of item, candidate, .*found 'colour'"):
        _chosen("sort=colour")


def test_columns_are_chosen_and_kept_in_the_address(browser: Browser, site: str) -> None:
    page = browser.open(f"{site}/conversations?run=kieval&sort=score&order=up", 1440)
    heads = "thead th a"
    assert {"item", "candidate", "run", "rounds", "tokens", "retries"} <= {*_texts(page, heads)}
    page.leave(
        "document.querySelector('#choose').open = true;"
        "for (const box of document.querySelectorAll('form.columns [type=checkbox]'))"
        "  box.checked = ['candidate', 'score', 'aspect:logic'].includes(box.value);"
        "document.querySelector('form.columns button').click()"
    )
    assert [text.split()[0] for text in _texts(page, heads)] == ["item", "candidate", "score", "logic"]
    address = page.evaluate("location.search")
    kept = [("run", "kieval"), ("sort", "score"), ("order", "up")]
    columns = ["item", "candidate", "score", "aspect:logic"]
    assert parse_qsl(address[1:]) == [*kept, *(("columns", key) for key in columns)]
    page.leave(
        "const field = document.querySelector('[name=candidate]');"
        "field.value = 'novice'; field.dispatchEvent(new Event('change', { bubbles: true }))"
    )
    assert len(_texts(page, heads)) == 4, "a filter keeps the columns"
    assert {*_texts(page, "td[data-column=candidate]")} == {"novice"}
    assert page.complaints == []


@pytest.mark.parametrize(("width", "place"), [(360, "/conversations"), (1440, "/matrix")])
def test_heads_and_the_first_column_stay(browser: Browser, site: str, width: int, place: str) -> None:
    page = browser.open(f"{site}{place}", width)
    moved = page.evaluate(
        "(() => { const region = document.querySelector('.scroll'); region.scrollTo(200, 300);"
        " const first = document.querySelector('tbody tr:nth-child(12) .first').getBoundingClientRect();"
        " const head = document.querySelector('thead .first').getBoundingClientRect();"
        " const box = region.getBoundingClientRect();"
        " return [first.left - box.left, head.left - box.left, head.top - box.top]; })()"
    )
    assert all(0 <= distance <= 2 for distance in moved)


# -- the matrix -------------------------------------------------------------------------------------------------------


def test_unlike_runs_have_matrices_of_their_own(reader: IndexReader) -> None:
    groups = reader.groups()
    assert [group.names for group in groups] == [[name] for name in
            ("dialogs", "fork", "hostile", "kieval", "probe", "tools")]  # fmt: skip
    assert len({group.title for group in groups}) == len(groups), "each title tells its matrix from the others"
    assert [group.title for group in groups if "kieval" in group.title] == [
        "kieval · science · judged by lenient", "kieval · science · judged by strict"]  # fmt: skip


def test_a_title_says_where_a_setting_is_cut(reader: IndexReader) -> None:
    run = next(own for own in reader.runs() if own.scenario == "kieval")
    values = ["simulated:judge?latency=0.1&throttle=0.02&retries=7", "x" * 300]
    runs = [replace(run, id=at, likeness=json.dumps({"evaluator": value})) for at, value in enumerate(values)]
    assert [group.title for group in run_groups(runs)] == [
        f"kieval · science · evaluator {values[0]}", f"kieval · science · evaluator {'x' * 80}…"]  # fmt: skip


def _matrix_of(root: Path, index: Path, run: str = "") -> tuple[Matrix, IndexReader]:
    reader = next(_reader(root, index))
    [group] = reader.groups()
    return read_matrix(reader, group, run), reader


def test_a_matrix_counts_repeats_once_and_says_what_all_and_none_can(tmp_path: Path) -> None:
    nan = math.nan
    first = {"t1": [0, 0, 0.0], "t10": [1, 1, 1.0], "t2": [0, 1, 0.5], "t3": [1, nan, nan], "t4": [nan, nan, nan]}
    second = {task: [1.0 if task == "t2" else value for value in row] for task, row in first.items()}
    weighed_run(tmp_path / "runs" / "a", first, 1)
    weighed_run(tmp_path / "runs" / "b", second, 2)
    matrix, reader = _matrix_of(tmp_path / "runs", tmp_path / "index")
    assert matrix.scale == "0–1 points"
    rows = {row.name.split("/")[-1]: row for row in matrix.rows(MatrixView())}
    assert [*rows] == ["t1", "t2", "t3", "t4", "t10"], "as people count"
    assert [rows[name].marks for name in rows] == [("all fail",), (), (), (), ("all pass",)]
    assert rows["t2"].mean == pytest.approx(np.mean([0.5, 1, 0.75]))
    assert rows["t2"].spread == pytest.approx(np.std([0.5, 1, 0.75], ddof=1))
    assert (rows["t4"].mean, rows["t3"].spread) == (None, None)
    for order, names in (("mean", ["t1", "t2", "t3", "t10", "t4"]), ("spread", ["t2", "t1", "t10", "t3", "t4"])):
        assert [row.name.split("/")[-1] for row in matrix.rows(MatrixView(sort=order))] == names
    assert [own.name for own in matrix.columns(MatrixView(candidates="mean"))] == ["m01", "m00", "m02"]
    cells = read_cells(reader, matrix, [row.name for row in matrix.items])
    assert cells[rows["t2"].name, "m00"].count == 2, "both runs are in one cell"
    assert cells[rows["t4"].name, "m00"].state == "failed"
    [note] = [note for note in matrix.notes if "better models" in note]
    assert note == ("On which items better models do worse cannot be tested with 3 models: that needs 20 with "
                    "different scores. Look at items that good models fail.")  # fmt: skip
    assert matrix.counts == {"fail": 1, "pass": 1, "worse": None}
    assert [row.name for row in matrix.rows(MatrixView(show="pass"))] == [rows["t10"].name]
    page = Pages(tmp_path / "runs", reader).matrix(MatrixView(show="fail", sort="mean"))
    assert '<b id="count">1</b> of 5 items' in page
    assert "sort=mean&amp;show=pass" in page, "the order stays"
    assert f"task={quote(rows['t1'].name, safe='')}" in page, "an item leads to its conversations"
    assert page.count("<tr>") == 2
    assert "different numbers of items" in " ".join(matrix.notes)
    alone = read_matrix(reader, matrix.group, "a")
    assert alone.candidates[0].n == 4
    reader.close()


def test_items_on_which_better_models_do_worse_are_marked_once_there_are_enough_models(tmp_path: Path) -> None:
    draw = np.random.default_rng(5)
    ability = np.sort(draw.random(30))
    scores = {f"t{at:02}": (draw.random(30) < ability).astype(float).tolist() for at in range(30)}
    scores["wrong-key"] = [float(1 - round(own)) for own in ability]
    weighed_run(tmp_path / "runs" / "a", scores)
    matrix, reader = _matrix_of(tmp_path / "runs", tmp_path / "index")
    assert [row.name.split("/")[-1] for row in matrix.items if "better models do worse" in row.marks] == ["wrong-key"]
    assert "on 1 of 31 tested items better models do worse" in " ".join(matrix.notes)
    assert matrix.counts["worse"] == len(matrix.chosen(MatrixView(show="worse"))) == 1
    pages = Pages(tmp_path / "runs", reader)
    assert pages.matrix(MatrixView(across=2)).count('class="candidate"') == 30 - 24, "candidates have pages, too"
    pages.close()


def test_a_mean_has_the_interval_that_the_report_gives_it(reader: IndexReader, root: Path) -> None:
    group = next(group for group in reader.groups() if group.names == ["kieval"])
    [finding] = study_findings(Study([root / "kieval"]).report())
    standings = {own.candidate: own for own in finding.standings}
    for own in read_matrix(reader, group).candidates:
        expected = standings[own.name]
        assert [own.mean, own.low, own.high] == pytest.approx([expected.value, expected.low, expected.high], abs=1e-4)


def test_a_probe_has_the_intervals_of_its_report_on_both_sets(tmp_path: Path) -> None:
    names: Any = {
        "candidate": ["simulated:all?knowledge=1", "simulated:half?knowledge=0.5", "simulated:none?knowledge=0"]
    }
    lines = SCIENCE.read_text().splitlines()
    files = [tmp_path / "first.jsonl", tmp_path / "second.jsonl"]
    for file, own in zip(files, (lines[:12], lines[12:24]), strict=True):
        file.write_text("".join(f"{line}\n" for line in own))
    run = viva.run_sync(
        "probe",
        models=names,
        dataset=str(files[0]),
        against=str(files[1]),
        method=["generate"],
        against_method=["generate"],
        shots=0,
        out=tmp_path / "runs" / "a",
    )
    results = [result.value for result in run.results()]
    reader = next(_reader(tmp_path / "runs", tmp_path / "index"))
    first, second = reader.groups()
    for group, members in ((first, False), (second, True)):
        own = {mean.name: mean for mean in read_matrix(reader, group).candidates}
        assert [*own] == ["all", "half", "none"]
        for name, mean in own.items():
            reported = CandidateProbes()  # has accuracies of the first set only, so each set is once the first
            for result in results:
                if (result["candidate"], result["second"]) == (name, members):
                    reported.add(result | {"second": False})
            record = reported.to_dict(False)["accuracy"]["generate"]
            ends = [record[end] for end in ("value", "low", "high")]
            assert [mean.mean, mean.low, mean.high] == pytest.approx(ends, abs=1e-3)
            assert mean.n == 12
        assert own["all"].low < own["all"].high == 100
    reader.close()


def test_the_label_of_a_filter_says_which_end_it_limits() -> None:
    chosen = [("score from", "2"), ("score up to", "15"), ("text", "a b")]
    assert _chosen("high=15&low=2&q=a+b&page=3").chosen == chosen
    assert ("logic up to", "3") in _chosen("high=3&aspect=logic").chosen


def test_a_cell_of_several_conversations_leads_to_their_list(browser: Browser, tmp_path: Path) -> None:
    for seed in (1, 2):
        weighed_run(tmp_path / "runs" / f"run-{seed}", {"t1": [0.5, 1], "t2": [1, 0.25]}, seed)
    with viewer(tmp_path / "runs", tmp_path / "index") as site:
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"{site}/c/none/1")
        page = browser.open(f"{site}/matrix", 800)
        page.leave("document.querySelector('.cell a').click()")
        assert _texts(page, "#count") == ["2"]
        assert _texts(page, "td[data-column=run]") == ["run-1", "run-2"]
        assert {*_texts(page, "td[data-column=candidate]")} == {"m00"}


# -- selections -------------------------------------------------------------------------------------------------------


def _run_command(page: Page, verb: str, folder: Path) -> str:
    """Download the file of the page's action with this verb, run its command, and return what is printed."""
    command, link = page.evaluate(
        "[...document.querySelectorAll('.action')].map((one) => [one.querySelector('pre').textContent,"
        f" one.querySelector('a')?.href]).find(([text]) => text.startsWith('viva {verb}'))"
    )
    words = shlex.split(command)
    if link:
        with urlopen(link) as answer:
            name = answer.headers["Content-Disposition"].partition('filename="')[2].rstrip('"')
            assert name in words
            (folder / name).write_bytes(answer.read())
    done = viva_here(*words[1:], cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_selected_conversations_become_commands_that_run(browser: Browser, site: str, tmp_path: Path) -> None:
    page = browser.open(f"{site}/conversations?run=kieval&sort=score", 1000)
    page.press("j")
    page.press("x")
    page.press("j")
    page.press("j")
    page.press("x")
    items = [_texts(page, ".row .item")[at] for at in (0, 2)]
    names = [_texts(page, "td[data-column=candidate]")[at] for at in (0, 2)]
    keys = [f"{name}/{item}" for name, item in zip(names, items, strict=True)]
    assert _texts(page, "#use-picked") == ["Use the 2 selected"]
    page.leave("document.querySelector('#use-picked').click()")
    shown = [json.loads(line)["key"] for line in _run_command(page, "show", tmp_path).splitlines()]
    assert shown == keys
    assert "2 answers" in _run_command(page, "grade queue", tmp_path)
    page.leave("document.querySelector('a[rel=up]').click()")
    assert page.evaluate("location.search").startswith("?run=kieval&sort=score")
    page.leave("document.querySelector('a.button').click()")
    assert _texts(page, "h1") == ["75 selected conversations"]
    with urlopen(page.evaluate("document.querySelector('.download').href")) as answer:
        records = [orjson.loads(line) for line in answer.read().splitlines()]
    assert len(records) == 75
    scores = [record["score"] for record in records]
    assert scores == sorted(scores, reverse=True), "in the order of the list"
    assert page.complaints == []


def test_failed_conversations_are_repeated_by_the_verb_that_can(reader: IndexReader, root: Path) -> None:
    page = Pages(root, reader).selection(Selection(_chosen("state=failed")))
    assert f"viva resume {root / 'hostile'} --retry-failed" in page
    assert "Repeat the 2 failed" in page
    part = Pages(root, reader).selection(Selection(Filter(), (("hostile", 1),)))
    assert "Repeat all 2 failed of this run" in part, "that verb cannot repeat one alone, and says so"
    assert "No conversation is selected" in Pages(root, reader).selection(Selection(_chosen("candidate=nobody")))


def test_ticked_conversations_have_all_that_filtered_ones_have(reader: IndexReader) -> None:
    filtered = [own for own in Selection(_chosen("run=kieval")).conversations(reader) if own.number < 5]
    picked = Selection(Filter(), tuple((own.run, own.number) for own in filtered))
    assert list(picked.conversations(reader)) == filtered
    assert all(own.aspects for own in filtered)


def test_people_grade_only_what_was_answered(reader: IndexReader, root: Path, tmp_path: Path) -> None:
    pages = Pages(root, reader)
    for run, answers in (("kieval", True), ("dialogs", True), ("probe", False)):
        for selection in (Selection(Filter(run=run)), Selection(Filter(), ((run, 0), (run, 1)))):
            assert ("viva grade queue" in pages.selection(selection)) is answers, run
    pages.conversations_read.close()
    done = viva_here("grade", "queue", root / "probe", "--out", tmp_path / "grades")
    assert done.returncode == 2
    assert "no answer to grade: in these conversations the models have only read texts" in done.stderr
    assert not (tmp_path / "grades").exists()


def test_a_selection_that_fits_no_conversation_is_refused(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "selection.jsonl"
    for text, message in (
        ('{"key": "expert/none"}', "has no conversation 'expert/none'"),
        ('{"number": 3}', "key"),
        ("", "selects no conversation"),
        ("no json", "selection.jsonl:1: not valid JSON"),
    ):
        file.write_text(f"{text}\n")
        done = viva_here("show", root / "kieval", "--select", file)
        assert (done.returncode, done.stdout) == (2, ""), text
        assert message in done.stderr, text
    both = viva_here("show", root / "kieval", "--select", file, "--conversation", "3")
    assert "give only one of them" in both.stderr


# -- the export -------------------------------------------------------------------------------------------------------


def _texts_of_items(root: Path) -> list[str]:
    return [json.loads(line)["id"] for line in SCIENCE.read_text("utf-8").splitlines()]


def test_an_export_has_the_table_and_the_matrix(browser: Browser, root: Path, tmp_path: Path) -> None:
    export_pages(root, tmp_path / "pages", index=tmp_path / "index")
    address = (tmp_path / "pages" / "conversations.html").as_uri()
    page = browser.open(f"{address}?run=kieval&columns=item&columns=score&columns=rounds&sort=score", 360)
    assert page.evaluate("[...document.querySelectorAll('thead th')].map((one) => one.dataset.column)") == [
        "item", "score", "rounds"]  # fmt: skip
    scores = [float(text.split()[0]) for text in _texts(page, "td[data-column=score]")]
    assert scores == sorted(scores, reverse=True)
    page.leave("document.querySelector('th[data-column=score] a').click()")
    scores = [float(text.split()[0]) for text in _texts(page, "td[data-column=score]")]
    assert scores == sorted(scores)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page = browser.open(f"{address}?sort=score&columns=score", 360)
    heads = _texts(page, "tr.kind")
    assert heads == sorted({*heads})
    assert len(heads) > 1, "scores of different kinds are not in one order"
    page = browser.open(f"{address}?scenario=probe&candidate=expert&columns=dataset", 360)
    assert (
        page.evaluate("document.querySelector('.count').innerText")
        == "4 conversations · candidate expert · scenario probe · all"
    )
    assert _texts(page, ".paging span") == []
    page = browser.open(f"{address}?scenario=probe&state=failed", 360)
    assert page.evaluate("document.querySelector('.count').innerText") == (
        "0 conversations · No conversation matches. · scenario probe · state failed · all"
    )
    page = browser.open(f"{address}?q=%22novice+{_texts_of_items(root)[0]}&run=kieval&aspect=logic&columns=score", 360)
    assert len(_texts(page, ".row")) == 1, "a phrase is found by its words"
    assert "not the texts of conversations" in page.evaluate("document.querySelector('#list .note').textContent")
    page = browser.open(f"{address}?run=kieval&aspect=logic&low=1", 360)
    assert "aspect logic · logic from 1" in page.evaluate("document.querySelector('.count').innerText")
    assert "aspect:logic" in page.evaluate(
        "[...document.querySelectorAll('thead th')].map((one) => one.dataset.column)"
    )
    assert _texts(page, ".paging span") == ["page 1 of 2"]
    assert "select the row" not in page.evaluate("document.querySelector('#keys').textContent")
    page = browser.open(f"{(tmp_path / 'pages' / 'matrix.html').as_uri()}?sort=mean", 360)
    page.evaluate(
        "const field = document.querySelector('[name=matrix]');"
        "[...field.options].find((one) => one.text.includes('judged by strict')).selected = true;"
    )
    page.leave("document.querySelector('[name=matrix]').dispatchEvent(new Event('change', { bubbles: true }))")
    means = [float(text) for text in _texts(page, "tbody td:nth-child(2)")]
    assert len(means) == 25
    assert means == sorted(means)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    address = page.evaluate("location.href")
    page.leave("document.querySelector('.item-kinds a').click()")
    marked = page.evaluate("document.querySelector('.item-kinds a[aria-current]').textContent")
    assert marked.startswith(f"{len(_texts(page, 'tbody tr'))} all ")
    page.leave("document.querySelector('tbody .first a').click()")
    assert len({*_texts(page, ".row .item")}) == 1, "the conversations about that item"
    assert "matrix kieval · science · judged by strict" in page.evaluate("document.querySelector('.count').innerText")
    assert page.complaints == []
    page = browser.open(address, 360)
    cell = page.evaluate("document.querySelector('.cell a').ariaLabel")
    page.leave("document.querySelector('.cell a').click()")
    assert cell.split(",")[0] in page.evaluate("document.querySelector('h1').textContent")
    assert page.complaints == []


def test_a_page_of_picks_with_long_names_is_one_address(site: str) -> None:
    long = "&".join(f"pick={'folder%2F' * 30}run%2F{number}" for number in range(50))
    with urlopen(f"{site}/selection?{long}&pick=kieval%2F3") as answer:
        assert "1 selected conversation</h1>" in answer.read().decode()
