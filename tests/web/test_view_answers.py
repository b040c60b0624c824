"""Answers before the rows of lists, comparisons and transcripts: means, differences, and the meaning of marks."""

from __future__ import annotations

import math
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qsl
from urllib.request import urlopen

import numpy as np
import pytest
from axe import violations
from browser import Browser, Page
from case_tables import case_table
from hypothesis import given
from hypothesis import strategies as st
from multidict import MultiDict
from viewed_runs import make_runs, viewer
from weighed_runs import weighed_run

from viva.scenarios.kieval.score import SCORERS, Interview, Round, Scorer
from viva.scenarios.rendering import Mark, RenderedConversation, RenderedTurn
from viva.scoring.clustered_means import clustered_mean
from viva.web.view import queries
from viva.web.view.conversations import differences, page_turns, pair_turns
from viva.web.view.excerpts import SearchedWords
from viva.web.view.filters import Filter
from viva.web.view.index import index_file
from viva.web.view.indexer import Indexer
from viva.web.view.list_answer import ListAnswer, read_answer
from viva.web.view.matrix import MatrixView, read_matrix
from viva.web.view.pages import Pages
from viva.web.view.queries import IndexReader


def _reader(root: Path, index: Path) -> IndexReader:
    file = index_file(root, index)
    Indexer(root, file).catch_up()
    return IndexReader(file)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_runs(tmp_path_factory.mktemp("viewed"))


@pytest.fixture(scope="module")
def reader(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[IndexReader]:
    reader = _reader(root, tmp_path_factory.mktemp("index"))
    yield reader
    reader.close()


@pytest.fixture(scope="module")
def site(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with viewer(root, tmp_path_factory.mktemp("index")) as address:
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"{address}/c/none/1")  # is answered when the index is complete
        yield address


def _chosen(query: str) -> Filter:
    return Filter.from_query(MultiDict(parse_qsl(query)))


def _words(html: str) -> str:
    """Return the text of the answer above a list."""
    [section] = re.findall(r'<section class="says".*?</section>', html, re.DOTALL)
    return " ".join(re.sub("<[^>]*>", "", section).split())


def _texts(page: Page, selector: str) -> list[str]:
    texts: list[str] = page.evaluate(f"[...document.querySelectorAll({selector!r})].map((one) => one.innerText.trim())")
    return texts


# -- lists ------------------------------------------------------------------------------------------------------------


def test_a_candidate_is_compared_with_the_others_on_the_same_items(root: Path, reader: IndexReader) -> None:
    answer = read_answer(reader, _chosen("run=kieval&candidate=novice"))
    group = next(group for group in reader.groups() if group.names == ["kieval"])
    matrix = read_matrix(reader, group)
    [column] = [own for own in matrix.candidates if own.name == "novice"]
    assert answer.mean == column, "the mean is the matrix's"
    rows = [own for own in reader.selected(_chosen("run=kieval")) if own.score is not None]
    for comparison, value in [
        (answer.score, lambda own: own.score),
        *((aspect, lambda own, name=aspect.name: own.aspects.get(name)) for aspect in answer.aspects),
    ]:
        by_item: dict[str, dict[str, float]] = {}
        for own in rows:
            by_item.setdefault(own.task, {})[own.candidate] = value(own)
        pairs = [(task, own["novice"] - np.mean([own["expert"], own["student"]])) for task, own in by_item.items()]
        expected = clustered_mean([difference for _, difference in pairs], [task for task, _ in pairs])
        assert comparison is not None
        assert expected is not None
        level = 0.95 if comparison is answer.score else 1 - 0.05 / 5
        interval = expected.ends(level=level)
        assert interval is not None
        assert (comparison.difference, comparison.low, comparison.high) == pytest.approx(
            (expected.mean, interval.low, interval.high)
        )
    assert [own.name for own in sorted(answer.aspects, key=lambda own: own.mean)] == [
        own.name for own in answer.aspects
    ], "the lowest first"
    assert {own.name for own in answer.aspects} == {"accuracy", "logic", "relevance", "coherence", "conciseness"}
    view = MatrixView(behind="novice")
    behind = matrix.rows(view)
    assert len(matrix.chosen(view)) == answer.behind == len(behind) > 0
    assert matrix.columns(view)[0].name == "novice"
    means = {own.name: matrix.means[at] for at, own in enumerate(matrix.items)}
    lags = [means[row.name][2] - means[row.name][:2].mean() for row in behind]
    assert lags == sorted(lags)
    assert max(lags) < 0
    words = _words(Pages(root, reader).conversations(_chosen("run=kieval&candidate=novice")))
    assert f"Mean score {column.mean:.1f} on 0–100 (95% interval {column.low:.1f}–{column.high:.1f}, n = 25" in words
    assert "On the same items it is" in words
    assert "below the mean of the 2 other candidates (95% interval" in words
    assert f"The {answer.behind} items on which the others did better" in words


def test_unlike_conversations_have_no_common_mean(root: Path, reader: IndexReader) -> None:
    answer = read_answer(reader, Filter())
    assert answer.mean is None
    assert {kind.group.id: kind.count for kind in answer.kinds} == {
        group.id: sum(run.total.total for run in group.runs) for group in reader.groups()
    }
    words = _words(Pages(root, reader).conversations(Filter()))
    assert "6 kinds of conversations whose scores are not alike" in words
    assert "Mean score" not in words
    one = answer.kinds[0].group
    assert reader.count(Filter(matrix=one.id)) == answer.kinds[0].count


CHOICES = {
    "run=kieval&high=50": "chosen by their score",
    "run=kieval&q=because&end=all+rounds": "chosen by their texts and their end",
    "run=kieval&state=failed": "",
    "run=probe": "Mean score",
    "run=none": "",
    "run=kieval&state=finished&sort=score": "Mean score",
}


@pytest.mark.parametrize(("query", "expected"), CHOICES.items())
def test_a_mean_is_not_of_conversations_that_were_chosen_by_their_outcome(
    root: Path, reader: IndexReader, query: str, expected: str
) -> None:
    words = _words(Pages(root, reader).conversations(_chosen(query)))
    assert expected in words if expected else words == ""
    assert ("Mean score" in words) == (expected == "Mean score")


def _answer_of(folder: Path, scores: dict[str, list[float]], candidate: str = "m00") -> tuple[ListAnswer, str]:
    weighed_run(folder / "runs" / "a", scores)
    reader = _reader(folder / "runs", folder / "index")
    chosen = Filter(candidate=candidate)
    try:
        return read_answer(reader, chosen), _words(Pages(folder / "runs", reader).conversations(chosen))
    finally:
        reader.close()


LEVELS = [0.25, 0.5, 0.25, 0.75, 0.5, 0.25, 0.5, 0.75, 0.25, 0.5]
DIFFERENCES = {
    "few": ({f"t{at}": [0.25 * at, 0.5] for at in range(3)}, "too few items to tell"),
    "equal": ({f"t{at}": [own, own] for at, own in enumerate(LEVELS)}, "it is equal to the mean of"),
    "constant": ({f"t{at}": [own, own + 0.25] for at, own in enumerate(LEVELS)}, "0.25 below the mean of the other "
                 "candidate on each item"),
    "noise": ({f"t{at}": [own, LEVELS[-1 - at]] for at, own in enumerate(LEVELS)}, "0.00 from the mean of the other "
              "candidate (95% interval of the difference −0.24 to 0.24), not significant"),
    "clear": ({f"t{at}": [own / 2, own] for at, own in enumerate(LEVELS)}, "below the mean of the other candidate "
              "(95% interval"),
    "alone": ({f"t{at}": [own] for at, own in enumerate(LEVELS)}, "Mean score 0.45 on 0–1 points"),
}  # fmt: skip


@pytest.mark.parametrize(("scores", "expected"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_a_difference_claims_only_what_its_interval_supports(
    tmp_path: Path, scores: dict[str, list[float]], expected: str
) -> None:
    answer, words = _answer_of(tmp_path, scores)
    assert expected in words
    assert answer.score is not None
    assert answer.score.is_clear == expected.endswith("(95% interval"), "a claim needs an interval without 0"
    hedges = ("too few items to tell", "not significant", "it is equal to")
    assert [hedge for hedge in hedges if hedge in words] == [hedge for hedge in hedges if hedge in expected]


def test_one_item_has_a_mean_without_an_interval(tmp_path: Path) -> None:
    weighed_run(tmp_path / "runs" / "a", {"t1": [0.5, 1.0], "t2": [0.0, 0.0]})
    reader = _reader(tmp_path / "runs", tmp_path / "index")
    [task] = {own.task for own in reader.listed(Filter()) if own.task.endswith("t1")}
    answer = read_answer(reader, Filter(task=task))
    assert answer.mean is not None
    assert (answer.mean.mean, answer.mean.low, answer.score) == (0.75, None, None)
    words = _words(Pages(tmp_path / "runs", reader).conversations(Filter(task=task)))
    assert "over 2 candidates on this one item, which tells nothing of other items" in words
    reader.close()


# -- order ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sort", ["score", "aspect:logic"])
def test_the_index_gives_the_same_order_as_a_sort(root: Path, tmp_path: Path, sort: str) -> None:
    reader = _reader(root / "kieval", tmp_path / "index")  # one kind: no filter is the quick way, a run the slow one
    [run] = [run.name for run in reader.run_rows()]
    for order in ("up", "down"):
        quick, slow = (_chosen(f"sort={sort}&order={order}{more}") for more in ("", f"&run={run}"))
        every = [own.id for own in reader.selected(quick)]
        assert every == [own.id for own in reader.selected(slow)]
        assert [own.id for page in (1, 2) for own in reader.listed(Filter.from_query({
            "sort": sort, "order": order, "page": str(page)}))] == every  # fmt: skip
        assert reader.at(quick, 60) == reader.at(slow, 60)
    reader.close()


def test_scores_of_different_kinds_are_never_in_one_order(browser: Browser, site: str) -> None:
    page = browser.open(f"{site}/conversations?sort=score&columns=score", 1440)
    heads = _texts(page, "tr.kind")
    assert heads[0] == "functionchat · data · judged by judge, 0–100"
    assert "Sorted within each kind" in _texts(page, "#list > .note")[0]
    groups = page.evaluate(
        "[...document.querySelectorAll('.list tbody tr')].reduce((all, row) => {"
        " if (row.matches('.kind')) all.push([row.innerText]);"
        " else if (row.matches('.row')) all.at(-1).push(parseFloat(row.cells[1].innerText));"
        " return all; }, [])"
    )
    assert len(groups) == len({group[0] for group in groups}) > 2
    for _, *scores in groups:
        assert scores == sorted(scores, reverse=True)
    page = browser.open(f"{site}/conversations?sort=tokens", 1440)
    assert _texts(page, "tr.kind") == []
    page = browser.open(f"{site}/conversations?sort=score&run=kieval", 1440)
    assert _texts(page, "tr.kind") == []
    assert page.complaints == []


# -- the matrix while results come in ---------------------------------------------------------------------------------


def test_a_matrix_is_computed_again_only_after_20_times_its_duration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weighed_run(tmp_path / "runs" / "a", {"t1": [0.5, 1.0], "t2": [0.0, 0.0]})
    file = index_file(tmp_path / "runs", tmp_path / "index")
    reader = _reader(tmp_path / "runs", tmp_path / "index")
    now = [100.0]
    monkeypatch.setattr(queries.time, "monotonic", lambda: now[0])
    [group] = reader.groups()
    slowly = reader.scored

    def scored(*about: Any) -> Iterator[Any]:
        now[0] += 2.0
        return slowly(*about)

    monkeypatch.setattr(reader, "scored", scored)
    first = read_matrix(reader, group)
    now[0] += 1000
    assert read_matrix(reader, group) is first, "the index has not changed"
    with sqlite3.connect(file) as index:
        index.execute("update meta set value = value + 1 where name = 'version'")
    now[0] -= 1000 - 30
    assert read_matrix(reader, group) is first
    page = Pages(tmp_path / "runs", reader).matrix(MatrixView())
    assert "New results are coming in: means, spreads and marks are 32.0 s old" in page
    words = _words(Pages(tmp_path / "runs", reader).conversations(Filter(candidate="m00")))
    assert "New results are coming in: these means are 32.0 s old" in words
    now[0] += 11
    assert read_matrix(reader, group) is not first
    assert "New results" not in Pages(tmp_path / "runs", reader).matrix(MatrixView())
    reader.close()


# -- names of matrices, comparisons, marks ----------------------------------------------------------------------------


def test_from_a_matrix_to_its_named_list_and_back(browser: Browser, site: str) -> None:
    page = browser.open(f"{site}/matrix", 1440)
    page.evaluate(
        "const field = document.querySelector('[name=matrix]');"
        "[...field.options].find((one) => one.text.includes('judged by strict')).selected = true;"
    )
    page.leave("document.querySelector('[name=matrix]').dispatchEvent(new Event('change', { bubbles: true }))")
    page.leave("[...document.querySelectorAll('.candidate a')].find((one) => one.innerText === 'novice').click()")
    assert "matrix kieval · science · judged by strict" in _texts(page, ".count")[0]
    assert "same scenario, data, prompts and settings" in page.evaluate("document.getElementById('list').innerText")
    assert _texts(page, "h1") == ["Conversations of novice kieval · science · judged by strict"]
    page.leave("[...document.querySelectorAll('#says a')].find((one) => one.innerText.includes('others')).click()")
    assert "the mean of the other candidates is higher than the score of novice" in _texts(page, ".note")[0]
    assert _texts(page, ".candidate")[0] == "novice"
    assert page.evaluate("document.querySelector('thead [aria-sort]')") is None, "no column gives the order"
    assert page.complaints == []


def test_two_conversations_are_compared_in_a_sentence_with_links(browser: Browser, site: str) -> None:
    page = browser.open(f"{site}/compare?a=kieval/0&b=kieval/2", 1000)
    heads = [float(text.split()[0]) for text in _texts(page, ".heads .score")]
    [sentence] = _texts(page, ".says .lead")
    assert sentence.startswith(f"{heads[0]:.1f} against {heads[1]:.1f} of 100. Marks differ in ")
    links = page.evaluate("[...document.querySelectorAll('.says .lead a')].map((one) => one.getAttribute('href'))")
    for text, anchor in zip(_texts(page, ".says .lead a"), links, strict=True):
        assert page.evaluate(f"document.querySelectorAll('{anchor} .mark.differs').length") > 0, text
    page = browser.open(f"{site}/compare?a=kieval/0&b=probe/0", 1000)
    assert _texts(page, ".says .lead")[0].startswith("Their scores are of different kinds")


def _talk(*rounds: tuple[str, dict[str, str]]) -> Any:
    turns = [RenderedTurn("candidate", text, round=number, marks=[Mark(*mark) for mark in marks.items()])
             for number, (text, marks) in enumerate(rounds, 1)]  # fmt: skip
    return page_turns(RenderedConversation([RenderedTurn("item"), *turns]))


def test_marks_that_only_one_has_differ_and_so_do_rounds() -> None:
    first = _talk(("a", {"logic": "4", "B": "right"}), ("b", {"logic": "4"}), ("c", {"logic": "1"}))
    second = _talk(("a", {"logic": "4", "C": "wrong"}), ("b!", {"logic": "4"}))
    found = differences(pair_turns(first, second))
    assert [(own.round, own.marks, own.anchor) for own in found.marks] == [(1, ["B right", "C wrong"], "t2")]
    assert [own.round for own in found.texts] == [2]
    assert found.lone == ([3], [])
    assert differences(pair_turns(first, first)).marks == []


@given(st.sampled_from(SCORERS), st.booleans(), st.integers(1, 4), st.integers(1, 4))
def test_the_rule_of_the_score_is_that_of_the_scorer(name: Any, decay: bool, first: int, second: int) -> None:
    scorer = Scorer(name, decay)
    match = re.search(r"the marks ([\d, ]+) count ([\d., ]+), and", scorer.rule())
    assert match is not None
    values = dict(zip(*(map(float, group.split(", ")) for group in match.groups()), strict=True))
    share = re.search(r"weighs (\d+)% less", scorer.rule())
    weights = [1.0, 1.0 - (float(share[1]) / 100 if share else 0.0)]
    interview = Interview("c", "i", 2, rounds=[Round([mark] * 6) for mark in (first, second)])
    expected = sum(weight * values[mark] for weight, mark in zip(weights, (first, second), strict=True)) / sum(weights)
    assert scorer.score(interview) == pytest.approx(expected, abs=0.2), "the share is rounded to whole percents"


def test_marks_and_scores_explain_themselves(browser: Browser, site: str) -> None:
    page = browser.open(f"{site}/c/kieval/1", 360)
    marks = _texts(page, ".turn:nth-of-type(4) .mark summary")
    assert [re.fullmatch(r"(\w+) [1-4] of 4", " ".join(mark.split())) is not None for mark in marks] == [True] * 6
    assert re.fullmatch(r"[\d.]+ of 100", _texts(page, ".facts .score")[0])
    [note] = _texts(page, "#talk > .note")
    assert "the marks 1, 2, 3, 4 count 10, 30, 70, 100" in note
    assert "A mark with ▸ opens a comment" in note
    assert math.isclose(page.evaluate("document.documentElement.scrollWidth"), 360)
    assert "100 if the dialog passed" in _texts(browser.open(f"{site}/c/dialogs/0", 360), "#talk > .note")[0]


@pytest.mark.parametrize(
    "path", ["/conversations?run=kieval&candidate=novice", "/conversations?sort=score", "/matrix?behind=novice"]
)
def test_answers_have_no_violations(browser: Browser, site: str, path: str) -> None:
    for width, dark in ((360, True), (1440, False)):
        page = browser.open(f"{site}{path}", width, dark)
        assert violations(page) == [], f"{width} px, {'dark' if dark else 'light'}"
        assert page.evaluate("document.documentElement.scrollWidth") <= width


# -- searches ---------------------------------------------------------------------------------------------------------

JUDGED = '{"logic": {"comment": "it is false: Greywick", "score": 1}, "stop": false}'


@case_table(
    "typed, texts, excerpt",
    [
        ("amber", ["no", "the colour is amber"], "the colour is amber"),
        ("amb", ["lambs", "Amber"], "Amber"),
        ("amber ", ["ambers", "an AMBER one"], "an AMBER one"),
        ("colour amber", ["the colour", "amber", "amber is a colour"], "amber is a colour"),
        ('"is amber"', ["amber is", "is (amber)"], "is (amber)"),
        ('"is am', ["am is", "is amber"], "is amber"),
        ('"is am"', ["is amber", "is: am"], "is: am"),
        ("false Greywick", ["false", JUDGED], "logic: (comment: it is false: Greywick; score: 1); stop: false"),
        ("score", [f"```json\n{JUDGED}\n```"], "logic: (comment: it is false: Greywick; score: 1); stop: false"),
        ("a", ["[" * 600 + '"a"' + "]" * 600], ""),
        ("one", ['{"broken": one'], '{"broken": one'),
        ("圳在", ["我住深圳在广东"], "我住深圳在广东"),
        ("b z", [f"b {'x ' * 200} b z"], f"…{'x ' * 44}b z"),
        ("amber", ["none"], ""),
        ("___", ["a ___ b"], "a ___ b"),
    ],
)
def test_an_excerpt_has_the_words_and_can_be_read(typed: str, texts: list[str], excerpt: str) -> None:
    assert SearchedWords(typed).excerpt(texts) == excerpt


@given(st.text(max_size=20), st.lists(st.text(max_size=400), max_size=4))
def test_an_excerpt_is_short_whatever_is_typed_and_said(typed: str, texts: list[str]) -> None:
    assert len(SearchedWords(typed).excerpt(texts)) <= 272


def test_a_neighbour_is_named_by_what_differs(root: Path, reader: IndexReader) -> None:
    pages = Pages(root, reader)
    listed = reader.listed(Filter(run="kieval"))
    for at, own in enumerate(listed[1:6], 1):
        page = pages.conversation(own.run, own.number, Filter(run="kieval"), at)
        after = listed[at + 1]
        name = " · ".join(
            text
            for text, same in (
                (after.item, after.item == own.item),
                (after.candidate, after.candidate == own.candidate),
            )
            if not same
        )
        assert f">{name} →</a>" in page
    pages.conversations_read.close()
