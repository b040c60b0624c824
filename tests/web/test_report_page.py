"""The report as a page: what stands in it, as text and in a real browser, on a phone and on a desk, light and dark."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from browser import Browser
from hypothesis import given
from hypothesis import strategies as st

from viva.engine.errors import ConfigurationError
from viva.reports.page import Evidence
from viva.reports.plot_style import COLOURS
from viva.reports.studies.page import study_page
from viva.reports.studies.study import Provenance, study_tables
from viva.reports.tables import escape_controls
from viva.web.report.html_page import Site, isolated, page_html, write_html

HEADINGS = ["Results", "Contamination", "Plots", "Comparisons", "Agreement", "Difficulty of items", "Correlations"]
HEADINGS += ["Scorer variants", "Early stops", "Failures", "Tokens and cost", "Verdicts", "Cells and transcripts"]
NASTY = "<script>alert('1')</script>"
Study = dict[str, Any]
Make = Callable[..., Study]


class _Outline(HTMLParser):
    """Headings by level, and the tags that a page should or should not have."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.levels: list[int] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if re.fullmatch("h[1-6]", tag):
            self.levels.append(int(tag[1]))


@pytest.fixture(scope="module")
def study(make_study: Make) -> Study:
    """Nobody changes it."""
    return make_study(["expert", "cheater", "student", "novice"], ["science", "history & law"], [7, 8])


@pytest.fixture(scope="module")
def report(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("report") / "report.html"
    write_html(study, file)
    return file


def test_the_same_study_gives_the_same_bytes_and_nothing_else_is_left(report: Path, study: Study) -> None:
    before = report.read_bytes()
    write_html(json.loads(json.dumps(study)), report)
    assert report.read_bytes() == before
    assert [one.name for one in report.parent.iterdir()] == ["report.html"]


def test_what_was_run_stands_first_and_every_plot_says_what_it_rests_on(report: Path) -> None:
    pytest.importorskip("matplotlib")
    text = report.read_text("utf-8")
    begin = text[: text.index("<main>")]
    for fact in ("expert, cheater, student, novice", "7, 8", "960 finished of 960 planned", "standard (0f0f0f0f0f0f)"):
        assert fact in begin
    assert "<dt>Below the line</dt><dd>cheater (science, history &amp; law)</dd>" in begin
    assert len(re.findall("<figcaption>(.*?)</figcaption>", text)) == 6
    origin = (
        "n = 960 interviews · scorer official · seeds 7, 8 · reproducible transcripts · unscored 0.7% · unparsed 1.8%"
    )
    assert f"All figures: {origin}" in begin
    assert not any("scorer official" in title for title in re.findall("<caption>.*?</caption>", text))
    assert text.count(origin) == 1


def test_the_verdict_stands_first_with_the_plot_that_shows_it_and_nowhere_else(report: Path) -> None:
    pytest.importorskip("matplotlib")
    text = report.read_text("utf-8")
    assert "<h1>Contamination suspected: cheater.</h1>" in text
    assert text.index("<h1>") < text.index('id="plot-regression"') < text.index("<nav") < text.index("<dl")
    assert text.count("KIEval score against accuracy") == 1


def test_what_all_rows_share_stands_in_the_title_alone(make_study: Make, tmp_path: Path) -> None:
    write_html(make_study(["one", "two", "three"], ["science"], [7]), tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text("utf-8")
    [cells] = [part for part in re.findall("<table.*?</table>", text, re.DOTALL) if "3 cells" in part]
    assert "3 cells · scenario kieval, dataset science, evaluator judge, state done" in cells
    assert cells.count("science") == 1


def test_lines_that_are_the_same_are_drawn_once_and_said_to_be(make_study: Make, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    study = make_study(["one", "two", "three"], ["science"], [7])
    for row in study["pooled"]:
        row["by_round"] = study["pooled"][0]["by_round"]
    write_html(study, tmp_path / "report.html")
    figures = re.findall("<figure.*?</figure>", (tmp_path / "report.html").read_text("utf-8"), re.DOTALL)
    [survival] = [one for one in figures if 'id="plot-survival"' in one]
    assert "Candidates with identical figures share one line: one, two, three." in survival
    assert ">one and 2 more<" in survival


def test_the_rates_of_the_facts_are_those_of_all_cells(report: Path, study: Study) -> None:
    cells = [cell["result"] for cell in study["cells"]]
    rounds, unscored = (sum(cell[name] for cell in cells) for name in ("verdicts", "unscored_rounds"))
    share = f"{100 * unscored / rounds:.1f}% ({unscored:,} of {rounds:,} rounds)"
    assert f"<dt>Unscored rounds</dt><dd>{share}</dd>" in report.read_text("utf-8")


def test_line_1_control_characters_of_names_are_visible_in_the_page(make_study: Make, tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07\x9b31m\u202egnp"
    write_html(make_study(["student", evil], ["science"], [7]), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text("utf-8")
    assert not set(evil[:1] + "\x07\x9b\u202e") & set(text)
    assert r"\x1b]0;owned\x07\x9b31m\u202egnp" in text


def test_direction_marks_in_names_are_visible() -> None:
    for mark in "\u200e\u200f\u061c\u202a\u202e\u2066\u2069":
        assert escape_controls(f"a{mark}b") == f"a\\u{ord(mark):04x}b"


_NAMES = ["א", "שלום עולם", "نموذج", "model-א", "א 5", "a&<b>", "ב/x", "\u202eא", "x"]


@given(st.lists(st.sampled_from(_NAMES) | st.text("אبa 1.,<&-", max_size=8), min_size=1, max_size=6))
def test_names_written_from_right_to_left_do_not_move_the_figures_beside_them(names: list[str]) -> None:
    sentence = "Mean scores: " + ", ".join(f"{name} {at}0.5" for at, name in enumerate(names)) + "."
    shown = isolated(sentence)
    assert unescape(re.sub("</?bdi>", "", shown)) == escape_controls(sentence)
    inside, outside = re.findall("<bdi>(.*?)</bdi>", shown), re.sub("<bdi>.*?</bdi>", "", shown)
    directions = [{unicodedata.bidirectional(sign) for sign in text} for text in (outside, "".join(inside))]
    assert not directions[0] & {"R", "AL", "AN", "RLE", "RLO", "RLI"}
    assert directions[1] <= {"R", "AL", "WS", "CS", "ES", "ON"}, "no figure and no Latin letter"


def test_transcripts_are_commands_that_a_shell_reads_as_they_are_meant(make_study: Make, tmp_path: Path) -> None:
    study = make_study(["it's one"], ["science"], [7])
    write_html(study, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text("utf-8")
    commands = [unescape(found) for found in re.findall("<code>(.*?)</code>", text)]
    words = subprocess.run(["sh", "-c", f"printf '%s\\n' {commands[0]}"], capture_output=True, text=True, check=True)
    key = study["cells"][0]["transcripts"]["examples"][0]
    assert words.stdout.splitlines() == ["viva", "show", study["cells"][0]["name"], "--conversation", key]
    assert len(commands) == 3


def test_names_and_reasons_stay_text(make_study: Make, tmp_path: Path) -> None:
    study = make_study([NASTY, "$b_{$", "c\x1b[2J"], [f"set {NASTY}"], [7])
    for place in (*study["cells"], *study["pooled"]):
        (place.get("result") or place)["stop_reasons"] = {NASTY: 3}
    study["notes"] = [NASTY]
    write_html(study, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text("utf-8")
    assert text.lower().count("<script") == 1  # its own
    assert "&lt;script&gt;" in text


def test_the_outline_is_in_order_and_all_is_labelled(report: Path) -> None:
    text = report.read_text("utf-8")
    outline = _Outline(text)
    assert outline.levels[0] == 1
    assert outline.levels.count(1) == 1
    assert all(level <= before + 1 for before, level in zip(outline.levels, outline.levels[1:], strict=False))
    assert all(told.get("scope") in ("row", "col") for tag, told in outline.tags if tag == "th")
    assert all(told.get("role") == "group" and told.get("aria-label") for tag, told in outline.tags if tag == "svg")
    ids = [told["id"] for _, told in outline.tags if "id" in told]
    assert len(ids) == len(set(ids))
    anchors = {told["href"] for tag, told in outline.tags if tag in ("a", "use")}
    assert anchors <= {f"#{one}" for one in ids}
    styles = "".join(told.get("style") or "" for _, told in outline.tags)
    assert "#" not in re.sub(r"url\(#[^)]*\)", "", styles)  # colours of drawings are those of the theme


def test_a_page_by_itself_has_no_bar_and_leads_nowhere(report: Path) -> None:
    text = report.read_text("utf-8")
    assert "<nav class=" not in text
    assert set(re.findall('href="(.)', text)) == {"#", "d"}, "sections, and the icon's data"
    assert text.count("'sha256-") == 1


def test_names_lead_to_conversations_if_the_page_has_a_site(make_study: Make) -> None:
    study = make_study(["student", NASTY], ["science"], [7])
    study["cells"][0]["result"]["failed"] = 3
    met: list[Evidence] = []

    def address(evidence: Evidence) -> str:
        met.append(evidence)
        return f"/list?{evidence.candidate}{evidence.key}&{evidence.state}" if evidence.candidate != "student" else ""

    site = Site("<b>runs</b>", [("Overview", "/"), ("Report", "/report?a&b")], address)
    text = page_html(study_page(study, plots=False), site)
    bar = text[text.index('<nav class="site"') : text.index("</nav>")]
    assert '<a href="/report?a&amp;b" aria-current="page">Report</a>' in bar
    assert "&lt;b&gt;runs&lt;/b&gt;" in bar
    shown = "&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;"
    assert f'<a href="/list?{shown}&amp;">{shown}</a>' in text
    assert '<th scope="row">student</th>' in text, "without an address there is no link"
    assert text.count("<script") == 2  # its own
    science = {"scenario": "kieval", "dataset": "science"}
    cell = study["cells"][0]
    assert Evidence(NASTY, **science) in met
    assert Evidence("student", **science, cell=cell["name"], state="failed") in met
    assert Evidence(state="failed") in met
    assert Evidence(cell=cell["name"], key=cell["transcripts"]["examples"][0]) in met


def test_verdicts_in_the_first_table_are_explained_below_it(make_study: Make) -> None:
    study = make_study(["one", "two"], ["science"], [7])
    standings = [{"candidate": name, "mean": 50.0, "low": 40.0, "high": 60.0, "n": 60} for name in ("one", "two")]
    study["verdicts"]["leads"] = [
        {"datasets": ["science"], "standings": standings, "verdict": "not_comparable", "n": 0}
    ]
    text = page_html(study_page(study, plots=False))
    answer = text[text.index('<div class="result">') : text.index("</dl>")]
    assert re.findall('<td title="([^"]+)">(.*?)</td>', answer) == [
        (text, term) for term, text in reversed(re.findall("<dt>(.*?):</dt> <dd>(.*?)</dd>", answer))
    ]
    assert re.findall('<td title="[^"]+">(.*?)</td>', answer) == ["no sign", "suspected"]


@pytest.mark.parametrize(("candidates", "shown"), [((6, 19), False), ((19, 20), True)])
def test_few_candidates_tell_no_discrimination(make_study: Make, candidates: tuple[int, int], shown: bool) -> None:
    study = make_study(["one"], ["science"], [7])
    study["difficulty"] = [
        {
            "dataset": "science",
            "item": f"item-{n}",
            "mean": 30.0,
            "n": n,
            "discrimination": 0.5,
            "solved_by": None,
            "of": 9,
        }
        for n in candidates
    ]
    [section] = [section for section in study_page(study, plots=False).sections if section.anchor == "difficulty"]
    title, header, rows = section.tables[0]
    assert ("discrimination" in header) is shown
    assert ("discrimination is shown with 20 candidates or more" in title) is not shown
    assert [row[-1] for row in rows] == (["–", "0.50"] if shown else ["6", "19"])


def test_empty_sections_are_left_out(make_study: Make, tmp_path: Path) -> None:
    study = make_study(["one"], ["science"], [7])
    for cell in study["cells"]:
        cell |= {"result": None, "running": None, "transcripts": None, "state": "not begun", "by_round": None}
    study["pooled"] = []
    study["correlations"] |= {"figures": [], "lines": {}}
    study["verdicts"]["candidates"] = []
    write_html(study, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text("utf-8")
    assert re.findall("<h2>(.*?)</h2>", text) == [
        "Cells and transcripts",
        "Facts about the runs",
        "How figures are computed",
    ]
    assert "1 (1 not begun)" in text


def test_tables_stand_in_their_sections_and_none_is_lost(make_study: Make, tmp_path: Path) -> None:
    study = make_study(["one", "two", "three"], ["science"], [7])
    value = {"value": 0.5, "p": 0.1}
    study["correlations"] |= {"datasets": {"science": {"n": 3, "pearson": value, "spearman": value, "kendall": value}}}
    without = {"n": 2, "pearson": {"value": 1.0}, "spearman": None, "kendall": None}
    study["correlations"]["excluding"] = {"models": ["one"], "overall": without, "datasets": {"science": without}}
    pair = {"dataset": "science", "first": "one", "second": "two", "p": 0.1, "p_corrected": 0.2, "correction": "holm"}
    pair |= {"difference": {"value": 1.0, "low": -1.0, "high": 3.0}, "n": 9, "won": 5, "tied": 1, "lost": 3}
    study["comparisons"] = [pair]
    study["cells"][0]["result"]["failure_reasons"] = {"TimedOut": 1}
    write_html(study, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text("utf-8")
    sections = {
        heading: [unescape(title) for title in re.findall("<caption><span>(.*?)</span></caption>", part)]
        for heading, part in re.findall("<h2>(.*?)</h2>(.*?)</section>", text, re.DOTALL)
    }
    begin = {heading: [re.split("[ :(]+", title)[:2] for title in titles] for heading, titles in sections.items()}
    assert begin["Correlations"] == [["KIEval", "against"], ["The", "same"], ["KIEval", "="]]
    assert begin["Comparisons"] == [["KIEval", "compared"]]
    assert sections["Failures"] == ["Failed conversations by reason"]
    assert sections["Cells and transcripts"][0].startswith("3 cells")
    shown = [title for titles in sections.values() for title in titles]
    assert len(study_tables(study)) <= len(shown)
    assert {re.split("[:,·]", title)[0] for title, _, _ in study_tables(study)} <= {
        re.split("[:,·]", title)[0].strip() for title in shown
    }
    assert list(sections) == sorted(sections, key=HEADINGS.index)


def test_a_colour_means_the_same_candidate_in_every_panel(make_study: Make, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    study = make_study(["first", "second", "third"], ["whole", "less"], [7])
    for part in ("cells", "pooled"):
        study[part] = [one for one in study[part] if (one["candidate"], one["dataset"]) != ("first", "less")]
    write_html(study, tmp_path / "report.html")
    figures = re.findall("<figure.*?</figure>", (tmp_path / "report.html").read_text("utf-8"), re.DOTALL)
    for figure in (figures[2], figures[3], figures[5]):  # survival, by round, running mean
        for panel in re.findall("<svg.*?</svg>", figure, re.DOTALL):
            colours = {"first": "var(--blue)", "second": "var(--orange)", "third": "var(--green)"}
            drawn = [name for name in colours if f">{name}<" in panel]
            assert drawn in (["first", "second", "third"], ["second", "third"]), "a legend names only what is drawn"
            assert [name for name, colour in colours.items() if colour in panel] == drawn


def test_without_matplotlib_there_is_a_page_that_says_so(study: Study, tmp_path: Path) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ImportError('not installed')\n")
    (tmp_path / "study.json").write_text(json.dumps(study))
    code = (
        "import json, pathlib; from viva.web.report.html_page import write_html;"
        "write_html(json.loads(pathlib.Path('study.json').read_text()), pathlib.Path('report.html'))"
    )
    variables = os.environ | {"PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=variables, check=True)
    text = (tmp_path / "report.html").read_text("utf-8")
    assert "pip install &#39;viva-exam[plots]&#39;" in text
    assert "<svg" not in text
    assert "79." in text  # its tables are there


def test_a_place_that_cannot_be_written_is_named(study: Study, tmp_path: Path) -> None:
    empty = study | {"pooled": [], "cells": [], "correlations": {}}
    with pytest.raises(ConfigurationError, match=r"none/report\.html: cannot write the page"):
        write_html(empty, tmp_path / "none" / "report.html")


def test_thirty_candidates_on_five_datasets_stay_below_five_megabytes(make_study: Make, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    names = [f"family-{number // 3}-{number}b-instruct" for number in range(30)]
    write_html(make_study(names, ["arc-e", "arc-c", "mmlu", "hellaswag", "c-eval"], [1, 2], 200), tmp_path / "big.html")
    assert (tmp_path / "big.html").stat().st_size < 5e6


# -- in a browser ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [320, 360, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_a_browser_opens_it_without_complaint_or_request(
    browser: Browser, report: Path, width: int, dark: bool
) -> None:
    page = browser.open(report, width, dark)
    assert page.complaints == []
    assert page.requests == [report.resolve().as_uri()]
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth && innerWidth") == width
    paper = COLOURS["paper"][dark]
    shown = tuple(int(paper[at : at + 2], 16) for at in (1, 3, 5))
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == f"rgb{shown}"


def test_on_paper_tables_fit_figures_stay_whole_and_nothing_is_folded(browser: Browser, report: Path) -> None:
    page = browser.open(report, 680)  # A4 without its margins
    folded = "[...document.querySelectorAll('details code')].filter(c => !c.checkVisibility()).length"
    assert page.evaluate(folded) > 0
    browser.ask("Emulation.setEmulatedMedia", media="print")
    assert page.evaluate("document.documentElement.scrollWidth") == 680
    wide = "[...document.querySelectorAll('table')].filter(t => t.getBoundingClientRect().right > 681).length"
    assert page.evaluate(wide) == 0
    broken = (
        "[...document.querySelectorAll('td.number')].filter(t => t.firstChild && "
        "(range => (range.selectNodeContents(t), range.getClientRects().length))(document.createRange()) > 1)"
        ".map(t => t.textContent).join()"
    )
    assert page.evaluate(broken) == ""
    assert page.evaluate(folded) == 0
    browser.ask("Emulation.setEmulatedMedia", media="")


def test_wide_tables_scroll_in_their_box(browser: Browser, report: Path) -> None:
    page = browser.open(report, 320)
    wide = "[...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth > box.clientWidth + 1)"
    told = "[...document.querySelectorAll('.hint:not([hidden])')].map(hint => hint.nextElementSibling)"
    assert page.evaluate(f"{wide}.length") > 0
    assert page.evaluate(f"{wide}.every(box => {told}.includes(box))")


def test_words_of_plots_are_legible_on_a_phone(browser: Browser, report: Path) -> None:
    pytest.importorskip("matplotlib")
    page = browser.open(report, 360)
    sizes = """[...document.querySelectorAll('svg')].flatMap(svg => [...svg.querySelectorAll('text')].map(text =>
        parseFloat(getComputedStyle(text).fontSize) * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width))"""
    assert page.evaluate(f"Math.min(...{sizes})") >= 9


def test_clicking_a_heading_sorts_by_numbers(browser: Browser, report: Path) -> None:
    page = browser.open(report, 1280)
    column = "[...document.querySelector('table').tBodies[0].rows].map(row => parseFloat(row.cells[3].textContent))"
    head = "document.querySelectorAll('table thead th')[3]"
    before = page.evaluate(column)
    page.evaluate(f"{head}.querySelector('button').click()")
    assert page.evaluate(column) == sorted(before, reverse=True)
    assert page.evaluate(f"{head}.getAttribute('aria-sort')") == "descending"
    page.evaluate(f"{head}.querySelector('button').click()")
    assert page.evaluate(column) == sorted(before)
    assert page.complaints == []


def test_a_mark_shows_its_figure_on_focus_and_arrows_lead_to_the_next(browser: Browser, report: Path) -> None:
    pytest.importorskip("matplotlib")
    page = browser.open(report, 360)
    seen = "[...document.querySelectorAll('.note')].filter((one) => getComputedStyle(one).visibility == 'visible')"
    assert page.evaluate(f"{seen}.length") == 0
    stops = "document.querySelector('#plot-regression svg').querySelectorAll('.mark[tabindex=\"0\"]')"
    assert page.evaluate(f"{stops}.length") == 1
    page.evaluate(f"{stops}[0].focus()")
    first = page.evaluate(f"{seen}.map((one) => one.textContent).join()")
    assert re.search(r"score \d+\.\d ± 2\.1 \(standard error\)accuracy .*n = 120", first)
    page.press("ArrowRight")
    second = page.evaluate(f"{seen}.map((one) => one.textContent).join()")
    assert second
    assert second != first
    box = f"{seen}[0].getBoundingClientRect()"
    assert page.evaluate(f"{box}.left >= 0 && {box}.right <= innerWidth")
    page.press("Escape")
    assert page.evaluate(f"{seen}.length") == 0
    assert page.complaints == []


def test_tables_for_a_paper_are_copied_by_key(browser: Browser, study: Study, tmp_path: Path) -> None:
    runs = [("Runs", ["run", "viva"], [["a_b", "1.0"]])]
    page_model = study_page(study, Provenance({"LaTeX": runs, "Markdown": runs}, {}), plots=False)
    (tmp_path / "report.html").write_text(page_html(page_model), "utf-8")
    page = browser.open(tmp_path / "report.html", 1280)
    page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    page.evaluate("document.querySelectorAll('#paper button')[0].focus()")
    page.press("Enter")
    assert "a\\_b & 1.0 \\\\" in page.until("window.copied")
    assert page.until("document.activeElement.textContent.startsWith('Copied')")
    page.evaluate("navigator.clipboard.writeText = async () => { throw new Error('not allowed'); }")
    page.evaluate("document.execCommand = () => false")
    page.evaluate("document.querySelectorAll('#paper button')[1].focus()")
    page.press("Enter")
    assert page.until("document.activeElement.textContent.includes('is selected')")
    assert "| a\\_b | 1.0 |" in page.evaluate("getSelection().toString()")


def test_plots_stand_in_columns_with_their_captions_below(browser: Browser, make_study: Make, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_html(make_study(["one", "two", "three"], ["science"], [7]), tmp_path / "report.html")
    for width, columns in ((360, 1), (768, 2), (1440, 2)):
        page = browser.open(tmp_path / "report.html", width)
        lefts = page.evaluate(
            "[...document.querySelectorAll('.figures figure')].map((one) => one.getBoundingClientRect().left)"
        )
        assert len(set(lefts)) == columns, width
        below = """[...document.querySelectorAll('.figures figcaption')].every((one) =>
            one.getBoundingClientRect().top >= one.previousElementSibling.getBoundingClientRect().bottom)"""
        assert page.evaluate(below), width


def test_what_slips_into_the_page_as_script_does_not_run(browser: Browser, report: Path, tmp_path: Path) -> None:
    text = report.read_text("utf-8").replace("<main>", "<main><script>document.title = 'taken'</script>")
    (tmp_path / "slipped.html").write_text(text, "utf-8")
    page = browser.open(tmp_path / "slipped.html", 1280)
    assert page.evaluate("document.title") == "Interviews: 4 candidates on 2 datasets"
