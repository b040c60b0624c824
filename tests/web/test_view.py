"""The viewer in a real browser, over real runs: what was found, lists, conversations, news, files.

What people do with every page, at any width, is in test_viewer_in_browser.py.
"""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.error import HTTPError
from urllib.parse import parse_qsl, unquote, urlsplit
from urllib.request import urlopen

import pytest
from axe import violations
from browser import Browser, Page
from viewed_runs import HOSTILE, gated_run, make_runs, viewer
from weighed_runs import weighed_run

from viva.engine.run_folder import RunFolder
from viva.reports.page import Evidence
from viva.scenarios.study_cells import StudyCell
from viva.web.view.export import export_pages
from viva.web.view.pages import Links
from viva.web.view.report_site import report_site


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_runs(tmp_path_factory.mktemp("viewed"))


@pytest.fixture(scope="module")
def site(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with viewer(root, tmp_path_factory.mktemp("index")) as address:
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"{address}/c/none/1")  # is answered when the index is complete
        yield address


@pytest.fixture(scope="module")
def exported(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("export") / "pages"
    export_pages(root, out, index=tmp_path_factory.mktemp("index"))
    return out


def test_a_link_that_is_opened_as_the_viewer_starts_waits_for_the_index(root: Path, tmp_path: Path) -> None:
    with viewer(root, tmp_path / "index") as address, urlopen(f"{address}/compare?a=kieval/4&b=fork/4") as page:
        assert page.status == 200


def _count(page: Page) -> int:
    return int(page.until("document.querySelector('#count')?.textContent").replace(",", ""))


def _texts(page: Page, selector: str) -> list[str]:
    found: list[str] = page.evaluate(
        f"[...document.querySelectorAll({selector!r})].map((one) => one.textContent.trim())"
    )
    return found


def test_the_overview_answers_before_any_figure(browser: Browser, site: str) -> None:
    page = browser.open(f"{site}/", 1000)
    page.until("document.querySelector('.block .verdict').textContent.startsWith('Best: expert, ')")
    lines = dict(zip(_texts(page, ".verdicts a"), _texts(page, ".verdicts span"), strict=True))
    assert len(lines) == 5, "a line for each scenario and dataset"
    assert lines["kieval · science"] == _texts(page, ".block .verdict")[0]
    assert lines["probe · science"].startswith("expert: mean score "), "its only candidate's"
    assert lines["hostile · tasks"] == "<i>pupil</i>: mean score 50.0 (n = 2).", (
        "two scores are too few for an interval"
    )
    assert _texts(page, ".answer details p")[0].startswith("Suspected or ahead: p below 0.05")
    assert _texts(page, ".block h2")[0] == "kieval · science"
    for at, title in enumerate(_texts(page, ".verdicts a")):
        page.evaluate(f"document.querySelectorAll('.verdicts a')[{at}].click()")
        assert page.evaluate("document.querySelector('.block:target h2').textContent") == title
    assert "2BackendError" in "".join(_texts(page, ".block .counts li"))
    assert any(text.endswith("hostile --retry-failed") for text in _texts(page, ".commands code"))
    assert _texts(page, ".standings .name")[:3] == ["expert", "student", "novice"]
    assert "Not tested for contamination: expert, student, novice (" in "".join(_texts(page, ".lead"))
    assert "kieval · science" in _texts(page, ".about"), "every system and dataset has a chart of its own"
    assert page.evaluate("document.querySelector('#ended').textContent") == "171"
    assert page.complaints == []


def test_lists_are_filtered_ordered_and_opened_and_the_address_says_it_all(browser: Browser, site: str) -> None:
    assert _count(browser.open(f"{site}/conversations", 1000)) == 171
    page = browser.open(f"{site}/conversations?candidate=novice&run=kieval&aspect=logic&high=40&sort=low", 1000)
    scores = [float(text) for text in _texts(page, ".row [data-column='aspect:logic']")]
    assert 0 < len(scores) < 25
    assert scores == sorted(scores)
    assert scores[-1] <= 40
    names = _texts(page, ".row .item")
    page.leave("document.querySelector('.row .item').click()")
    assert names[0] in page.evaluate("document.querySelector('h1').textContent")
    page.leave_by("ArrowRight")
    assert names[1] in page.evaluate("document.querySelector('h1').textContent"), "the next one of the list"
    page.leave_by("u")
    assert _count(page) == len(scores)


def test_words_are_found_in_what_was_said(browser: Browser, site: str) -> None:
    page = browser.open(f"{site}/conversations?q=wonderful", 1000)
    page.until("document.querySelector('.excerpt')?.textContent.includes('wonderful')")
    assert _count(page) == 2
    assert _count(browser.open(f"{site}/conversations?q=%22steel+bench%22", 1000)) > 0, "in tasks, as a phrase"
    assert _count(browser.open(f"{site}/conversations?q=%22bench+steel%22", 1000)) == 0
    assert _count(browser.open(f"{site}/conversations?q=%22%27%28*%5E", 1000)) == 171, "no word, no choice"


def test_an_interview_reads_like_one(browser: Browser, site: str) -> None:
    page = browser.open(f"{site}/c/kieval/1#t4", 1000)
    speakers = _texts(page, ".speaker")
    assert speakers[:5] == ["benchmark", "candidate", "interactor", "candidate", "evaluator"]
    assert _texts(page, "h2.round")[:2] == ["Round 1", "Round 2"]
    marks = _texts(page, "#t4 .mark summary, #t4 span.mark")
    assert [mark.split()[0] for mark in marks] == [
        "accuracy", "logic", "relevance", "coherence", "conciseness", "overall"]  # fmt: skip
    assert page.evaluate("document.querySelector('#t5 .said').textContent").find('"score"') > 0, "raw, but folded"
    assert not page.evaluate("document.querySelector('#t5 .fold').open")
    # The turn of the address is the current one: its prompt is one key away, and exact.
    page.press("p")
    page.until("document.querySelector('#t4 .prompt').open && document.querySelector('#t4 .prompt .message')")
    kinds = _texts(page, "#t4 .prompt .message b")
    assert kinds == ["system", "user", "assistant", "user"]
    question = page.evaluate("document.querySelector('#t3 .text').textContent")
    assert question in _texts(page, "#t4 .prompt .message .text")[-1]


def test_two_judges_of_one_conversation_stand_side_by_side(browser: Browser, site: str) -> None:
    page = browser.open(f"{site}/compare?a=kieval/4&b=fork/4", 1000)
    assert _texts(page, ".heads .facts span:last-child") == ["judged by strict", "judged by lenient"]
    replies = ".turn.compared .said.both"
    said = _texts(page, replies)
    assert len(said) >= 2, "what is the same in both is said once"
    assert len(_texts(page, ".turn.compared .sides .whose")) >= 2
    page = browser.open(f"{site}/compare?a=kieval/0&b=kieval/2", 1000)
    assert _texts(page, ".heads h1") == ["expert", "novice"]
    left, right = page.evaluate(
        "[...document.querySelectorAll('.turn.compared .sides')].map((one) =>"
        " [...one.querySelectorAll('.side')].map((side) => side.querySelector('.text')?.textContent))[0]"
    )
    assert left != right


def test_tools_are_calls_with_results(browser: Browser, site: str) -> None:
    page = browser.open(f"{site}/c/dialogs/0", 1000)
    assert _texts(page, ".called b")[0] == "list_loans"
    assert json.loads(page.evaluate("document.querySelector('.called code').textContent")) == {"card": "48213"}
    assert "Left Hand" in page.evaluate("document.querySelector('.result').textContent")
    page = browser.open(f"{site}/c/tools/1", 1000)
    assert _texts(page, ".speaker")[-2:] == ["candidate", "ground truth"]
    assert "next_tide" in _texts(page, ".called b")
    page = browser.open(f"{site}/c/probe/0", 1000)
    assert "by letter" in _texts(page, ".turn.compared .mark")[0]
    for place in ("tools/1", "dialogs/0", "probe/0", "kieval/1"):
        text = browser.open(f"{site}/c/{place}", 1000).evaluate("document.querySelector('main').textContent")
        assert "Some prompts are unknown" not in text, place


@pytest.mark.parametrize("place", ["/c/hostile/0", "/c/hostile/1", "/conversations?run=hostile", "/", "/run/hostile",
                                   "/compare?a=hostile/0&b=hostile/2"])  # fmt: skip
def test_hostile_texts_do_nothing(browser: Browser, site: str, place: str) -> None:
    page = browser.open(f"{site}{place}", 360)
    assert page.evaluate("window.hurt") is None
    assert (
        page.evaluate(
            "document.querySelectorAll('main script, main img, main link, main i:not(.pulse), main u, main b b').length"
        )
        == 0
    )
    assert [one for one in page.requests if not one.startswith(site)] == []
    assert page.complaints == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    text = page.evaluate("document.querySelector('main').textContent")
    assert "\x1b" not in text
    assert "\u202e" not in text
    if place == "/c/hostile/0":
        assert "\\u202eabc" in text
        assert "{{ 7 * 7 }}" in text, "no template runs twice"
        assert page.evaluate("[...document.querySelectorAll('.rest .text')].map((one) => one.textContent.length)") == [
            len(HOSTILE[1]) - 6000
        ]
    if place == "/c/hostile/1":
        assert "BackendError" in page.evaluate("document.querySelector('.failure').textContent")


def test_the_command_of_a_run_is_copied_and_its_figures_lead_on(browser: Browser, site: str) -> None:
    page = browser.open(f"{site}/run/kieval", 1000)
    assert page.complaints == []
    page.evaluate("document.querySelector('button.copy').click()")
    page.until("document.querySelector('button.copy').textContent !== 'Copy'")
    words = page.evaluate("document.querySelector('button.copy').textContent + getSelection()")
    assert words == "Copied" or "viva run kieval" in words
    expert = page.evaluate("document.querySelector('.standings .note').textContent")
    page.leave("document.querySelector('main a[href^=\"/matrix\"]').click()")
    means = _texts(page, ".matrix .means td.number")
    low, high = expert.split(",")[0].split(" to ")
    assert any(f"{low}–{high}" in mean for mean in means)


def test_a_run_is_watched_while_it_goes_on(browser: Browser, tmp_path: Path) -> None:
    with gated_run(tmp_path / "run") as run:
        assert run.stdin is not None
        run.stdin.write("one\ntwo\n")
        while not (tmp_path / "run" / "manifest.json").exists():  # written after the journal
            assert run.poll() is None
        with viewer(tmp_path / "run", tmp_path / "index") as site:
            page = browser.open(f"{site}/", 800)
            page.until("document.querySelector('#ended').textContent === '2'")
            page.until("document.querySelector('.state').textContent.includes('in progress')")
            page = browser.open(f"{site}/conversations?state=open", 800)
            page.leave("document.querySelector('.row .item').click()")
            assert _texts(page, ".waiting") == ["no answer"]
            place = page.evaluate("location.pathname")
            run.stdin.write("last\n" * 38)
            run.stdin.close()
            page.until("document.querySelector('.compared .text')?.textContent.startsWith('answer')")
            assert page.evaluate("location.pathname") == place
            page = browser.open(f"{site}/", 800)
            page.until("document.querySelector('.state').textContent.trim().startsWith('40 of 40')")


def _answer(site: str, path: str, headers: dict[str, str], method: str = "GET") -> tuple[int, str]:
    where = urlsplit(site)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=30)
    connection.putrequest(method, path, skip_host=True)
    for name, value in headers.items():
        for one in value.split("|"):
            connection.putheader(name, one)
    connection.endheaders()
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_only_this_machine_is_answered_and_only_questions(site: str) -> None:
    own = urlsplit(site).netloc
    assert _answer(site, "/", {"Host": own})[0] == 200
    for host in ("foreign.example", "127.0.0.1.foreign.example", f"{own}|foreign.example", ""):
        assert _answer(site, "/conversations", {"Host": host})[0] in (400, 421), host
    assert _answer(site, "/", {"Host": own, "Content-Length": "0"}, "POST")[0] == 405
    for path in ("/asset/../server.py", "/c/..%2F..%2Fetc/1", "/c/none/1", "/asset/base.html", "/c/kieval/999"):
        assert _answer(site, path, {"Host": own})[0] == 404, path
    status, text = _answer(site, "/conversations?low=many", {"Host": own})
    assert status == 400
    assert "low: expected a number, found &#39;many&#39;" in text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"}, 200),
        ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Dest": "empty", "Origin": "OWN"}, 200),
        ({"Sec-Fetch-Site": "none", "Sec-Fetch-Dest": "document"}, 200),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "image"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "iframe"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Dest": "empty"}, 403),
        ({"Origin": "http://foreign.example", "Sec-Fetch-Dest": "empty"}, 403),
    ],
)
def test_pages_of_other_sites_can_only_link_to_pages(site: str, headers: dict[str, str], status: int) -> None:
    own = urlsplit(site).netloc
    sent = {name: value.replace("OWN", f"http://{own}") for name, value in headers.items()}
    for path in ("/", "/conversations", "/report", "/c/kieval/1", "/asset/view.js"):
        assert _answer(site, path, {"Host": own} | sent)[0] == status, path
    assert _answer(site, "/events", {"Host": own} | sent, "HEAD")[0] == status


def test_modules_in_the_folder_that_the_viewer_is_started_in_are_not_imported(root: Path, tmp_path: Path) -> None:
    for name in ("asyncio", "orjson", "viva"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w').close()\n")
    with viewer(root, tmp_path / "index", tmp_path) as address, urlopen(f"{address}/report") as page:
        assert page.status == 200
    assert not (tmp_path / "imported").exists()


def test_the_first_screen_has_the_verdict_the_plot_and_the_table_with_the_answer(browser: Browser, site: str) -> None:
    pytest.importorskip("matplotlib")
    for width, height in ((1440, 900), (360, 800)):
        page = browser.open(f"{site}/report", width)
        for part in (".answer h1", ".answer .result table", ".answer figure svg"):
            box = page.evaluate(f"document.querySelector('{part}').getBoundingClientRect().toJSON()")
            assert box["top"] >= 0, part
            assert box["top"] + min(box["height"], 200) <= height, part
            assert box["right"] <= width + 1, part


_LINK = re.compile('<a href="([^"]+)"[^>]*>([^<]*)<')


def _report_links(page: str) -> dict[str, str]:
    """The links of a report to other pages, each with its text."""
    found = {unescape(address): unescape(text) for address, text in _LINK.findall(page)}
    return {address: text for address, text in found.items() if not address.startswith("#")}


def test_names_in_the_report_lead_to_their_conversations(site: str) -> None:
    with urlopen(f"{site}/report") as page:
        links = _report_links(page.read().decode())
    lists = {}
    for address in links:
        with urlopen(f"{site}{address}") as page:
            text = page.read().decode()
        if (count := re.search('id="count"[^>]*>([0-9,]+)<', text)) is not None:
            lists[address] = int(count[1].replace(",", ""))
    assert lists["/conversations?candidate=novice&scenario=kieval&dataset=science"] == 50
    assert lists["/conversations?run=fork&candidate=novice"] == 25
    assert lists["/conversations?candidate=failing&scenario=hostile&state=failed"] == 2
    assert lists["/conversations?state=failed"] == 2
    assert {count for address, count in lists.items() if "task=" in address} == {6}, "three candidates and the fork"
    assert min(lists.values()) > 0
    assert sum(address.startswith("/c/") for address in links) >= 9, "transcripts"


def test_evidence_is_addressed_as_the_index_names_it(tmp_path: Path) -> None:
    cells = []
    for name, dataset, shown in (("a", "mmlu", "mmlu (12ab34)"), ("b", "mmlu (hard)", "mmlu (hard)"), ("c", "", "")):
        cell = StudyCell(name, name, "kieval", f"model {name}", "", shown, 1)
        cell.manifest = {"dataset": {"name": dataset}}
        run = SimpleNamespace(begun=name != "c", path=tmp_path / name, journal=tmp_path / name / "journal.sqlite")
        cell.run = cast(RunFolder, run)
        cells.append(cell)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "manifest.json").write_text("{}")
    address = report_site(tmp_path, Links(), cells).address
    for evidence, expected in [
        (Evidence("model a", "kieval", "mmlu (12ab34)"), "?candidate=model+a&scenario=kieval&dataset=mmlu"),
        (Evidence("model b", dataset="mmlu (hard)"), "?candidate=model+b&dataset=mmlu+%28hard%29"),
        (Evidence("model b", dataset="mmlu (hard) (evaluator x)"), "?candidate=model+b&dataset=mmlu+%28hard%29"),
        (Evidence("model a", dataset="2 datasets together (mmlu, b)"), "?candidate=model+a"),
        (Evidence(dataset="mmlu (hard)", item="7&8"), "?dataset=mmlu+%28hard%29&task=7%268"),
        (Evidence("model a", cell="a", state="failed"), "?run=a&candidate=model+a&state=failed"),
        (Evidence("model b", cell="b"), None),  # its folder is not below the viewed one
        (Evidence("model c"), None),  # has not begun
        (Evidence(cell="a", key="model a/1"), None),  # its journal cannot be read
    ]:
        assert address(evidence) == ("" if expected is None else f"/conversations{expected}"), evidence


def test_the_report_has_the_bar_of_the_viewer_and_its_colours(browser: Browser, site: str) -> None:
    page = browser.open(f"{site}/", 360)
    page.press("t")
    page.leave("document.querySelector('nav [href=\"/report\"]').click()")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    bar = ["Overview", "Conversations", "Matrix", "Report"]
    assert _texts(page, ".site a:not(.home)") == bar
    page.leave("document.querySelector('.answer tbody a').click()")
    assert _texts(page, ".row [data-column=candidate]")[:2] == ["expert", "expert"]
    page.press("t")
    assert page.complaints == []


def test_the_report_sends_its_frame_at_once_and_is_kept_for_the_next_viewer(root: Path, tmp_path: Path) -> None:
    with viewer(root, tmp_path / "index") as address, urlopen(f"{address}/report") as page:
        assert page.headers.get("Transfer-Encoding") == "chunked"
        first = ""
        while "The report is being computed" not in first:
            first += page.read1(100_000).decode()
        assert "<h1" not in first, "the figures follow"
        whole = first + page.read().decode()
    assert whole.index("of 6") < whole.index("<h1") < whole.index('id="paper"') < whole.index("</html>")
    tables = unescape(whole[whole.index('id="paper"') :])
    assert "\\begin{tabular}" in tables
    for named in ("simulated:expert?knowledge=0.95", "| viva |", "viva report", "| SE |"):
        assert named in tables, named
    with viewer(root, tmp_path / "index") as address, urlopen(f"{address}/report") as page:
        assert page.headers.get("Transfer-Encoding") is None
        again = page.read().decode()
    bar = re.compile('<nav class="site".*?</nav>', re.DOTALL)
    assert bar.findall(whole) == bar.findall(again)
    assert len(bar.findall(whole)) == 1
    shown = whole[whole.index('<header id="top">') :]
    assert again.endswith(shown)
    assert "being computed" not in again


def test_names_in_an_exported_report_lead_to_files(exported: Path) -> None:
    links = _report_links((exported / "report.html").read_text("utf-8"))
    script = (exported / "asset" / "data.js").read_text("utf-8")
    conversations = json.loads(script[script.index("[") :].rstrip(";\n").replace(",\n]", "]"))
    states = {"open": 0, "finished": 1, "failed": 2}
    for address in links:
        parts = urlsplit(address)
        assert not parts.netloc, address
        assert not parts.path.startswith("/"), address
        assert (exported / unquote(parts.path)).is_file(), address
        chosen: dict[str, Any] = dict(parse_qsl(parts.query))
        chosen |= {"state": states[chosen["state"]]} if "state" in chosen else {}
        assert any(chosen.items() <= one.items() for one in conversations), address
    assert "conversations.html?candidate=novice&scenario=kieval&dataset=science" in links


def test_an_export_opens_from_a_disk(browser: Browser, exported: Path) -> None:
    names = ["index.html", "conversations.html", "c/kieval/1.html", "c/hostile/0.html", "report.html"]
    for name in names:
        page = browser.open(exported / name, 360)
        assert page.complaints == [], name
        assert all(one.startswith(("file://", "data:")) for one in page.requests), name
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, name
        assert page.evaluate("window.hurt") is None
    page = browser.open(f"{(exported / 'conversations.html').as_uri()}?candidate=novice&run=kieval&sort=low", 900)
    assert _count(page) == 25
    scores = [float(text.split()[0]) for text in _texts(page, ".row [data-column=score]")]
    assert scores == sorted(scores)
    page.evaluate(
        "const words = document.querySelector('#filters [name=high]');"
        "words.value = '30'; words.dispatchEvent(new Event('input', { bubbles: true }))"
    )
    assert _count(page) == len([score for score in scores if score <= 30])
    page.leave("document.querySelector('.row .item').click()")
    page.leave("document.querySelector('a.compare').click()")
    assert page.evaluate("document.querySelectorAll('iframe').length") == 2
    assert page.complaints == []


def test_marks_of_runs_over_time_are_read_with_arrow_keys(browser: Browser, tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        weighed_run(tmp_path / "runs" / f"run-{seed}", {f"t{at}": [0.25 * seed, 0.5] for at in range(5)}, seed)
    export_pages(tmp_path / "runs", tmp_path / "pages", index=tmp_path / "index")
    page = browser.open(tmp_path / "pages" / "index.html", 800)
    assert _texts(page, ".standings .note") == ["0.28 to 0.72, n = 15"] * 2, "the export has intervals, too"
    assert _texts(page, ".histories .name") == ["m00", "m01"]
    stops = page.evaluate("[...document.querySelectorAll('.history .mark')].map((one) => one.tabIndex)")
    assert stops == [-1, -1, 0, -1, -1, 0], "one stop of Tab for each candidate, at its latest run"
    page.evaluate("document.querySelector('.history .mark[tabindex=\"0\"]').focus()")
    shown = "[...document.querySelectorAll('.value:not([hidden])')].map((one) => one.textContent)"
    for key, run, value in (
        ("ArrowRight", 3, "0.75"),
        ("ArrowLeft", 2, "0.50"),
        ("ArrowLeft", 1, "0.25"),
        ("ArrowLeft", 1, "0.25"),
        ("End", 3, "0.75"),
        ("Home", 1, "0.25"),
    ):
        page.press(key)
        [text] = page.evaluate(shown)
        assert text.startswith(f"run-{run}, "), key
        assert f": {value} (95% interval 0" in text, "on a scale of 0 to 1, figures have two decimals"
    assert page.evaluate("document.querySelectorAll('.history .mark[tabindex=\"0\"]').length") == 2
    page.press("Escape")
    assert page.evaluate(shown) == []
    assert page.evaluate("location.pathname").endswith("/index.html"), "no key has led to another page"
    assert page.complaints == []
    assert violations(page) == []
