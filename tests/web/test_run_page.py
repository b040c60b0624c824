"""The page of a run that has ended: its answer, its cost, what it was, and manifests that anybody may have written."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from case_tables import case_table
from probing import make_items
from viewed_runs import MARKUP, opened_pages

import viva
from viva.web.view.index import IndexWriter, index_file
from viva.web.view.indexer import Indexer
from viva.web.view.matrix import MatrixView
from viva.web.view.pages import Pages
from viva.web.view.queries import IndexReader
from viva.web.view.run_record import read_record, value_text


class Says(viva.Backend):
    """Says one text; the third call fails if it is to."""

    price_in, price_out = 2.0, 10.0

    def __init__(self, label: str, text: str, fails: bool = False) -> None:
        self.label, self._text, self._fails, self._calls = label, text, fails, 0

    async def generate(self, request: viva.Request) -> viva.Completion:
        self._calls += 1
        if self._fails and self._calls == 3:
            raise viva.BackendError("the endpoint closed", model=self.label)
        return viva.Completion(self._text, prompt_tokens=1000, completion_tokens=100)


@viva.scenario(compare="pupil", judge="examiner", score=(0, 10))
async def quiz(conversation: viva.Conversation, task: str) -> float | None:
    """Asks one question, and has the answer judged."""
    view = viva.View()
    view.append("user", task)
    said = await conversation.generate("pupil", view, viva.Sampling())
    await conversation.generate("examiner", view, viva.Sampling())
    return None if task.endswith("x" * 8) else float(len(said.text) + len(task) % 3)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``quiz`` has a failed conversation, ``probe`` a seed and settings of its own."""
    root = tmp_path_factory.mktemp("runs")
    models: Any = {
        "pupil": [Says("short", "no"), Says("long", "surely", fails=True)],
        "examiner": Says("judge", "good"),
    }
    tasks = [f"question {'x' * number}" for number in range(9)]
    viva.run_sync(quiz, models=models, tasks=tasks, out=root / "quiz", max_cost=5.0)
    items = make_items(root / "items.jsonl", 6)
    named = {"candidate": ["simulated:a?knowledge=0.9", "simulated:b?knowledge=0.2"]}
    viva.run_sync("probe", models=named, dataset=str(items), out=root / "probe", shots=0, seed=11)
    return root


def _text(html: str) -> str:
    """The words of a page's main part."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html.partition("<main")[2])).split())


def test_a_run_that_has_ended_says_its_answer_first(root: Path, tmp_path: Path) -> None:
    with opened_pages(root, tmp_path) as pages:
        html = pages.run("quiz", None)
        text = _text(html)
        found = [text.find(words) for words in (
            "Done: all 18 conversations have ended, 1 of them failed.", "Candidates mean score 0–10 with 95% interval",
            "Failures", "repeats the failed ones: viva resume", "Calls and tokens", "What was run")]  # fmt: skip
        assert -1 not in found
        assert found == sorted(found)
        assert "--retry-failed" in text
        # Each candidate has the figures of the matrix, and the matrix is linked.
        address = re.search(r'href="/matrix\?([^"]+)"', html)
        assert address is not None
        query = dict(pair.split("=") for pair in unescape(address[1]).split("&"))
        matrix = pages.matrix(MatrixView.from_query(query))
        means = re.findall(
            r"<td class=\"number\"><b>([\d.]+)</b> <small>([\d.]+)–([\d.]+)</small> <small>n (\d+)", matrix
        )
        assert len(means) == 2
        for mean, low, high, n in means:
            assert f"{mean} {low} to {high}, n = {n}" in text
        assert float(means[0][0]) < float(means[1][0])
        assert text.index("long ") < text.index("short "), "the highest mean is first"
        assert "conversations?run=quiz&amp;candidate=long&amp;state=failed" in html
        assert "n = 8 1 finished without a score" in text
        # 18 judged answers less a failed one, at 2 and 10 for a million tokens.
        assert "34 calls 37,400 tokens cost 0.10" in text
        assert "examiner judge 17 calls · 17,000 → 1,700 tokens · cost 0.051" in text
        assert "pupil long 8 calls · 8,000 → 800 tokens · cost 0.024" in text


def test_what_was_run_is_in_the_page(root: Path, tmp_path: Path) -> None:
    with opened_pages(root, tmp_path) as pages:
        text = _text(pages.run("probe", None))
        assert "Failures" not in text
        assert "viva run probe --seed 11" in text
        assert "shots 0 default: 5" in text
        assert "concurrency" not in text.partition("Settings")[2], "it has its default"
        for words in ("Dataset items (", "6 items", "Seed 11", "Reproducibility reproducible transcripts", "Python 3.",
                      "Prompt pack probe version", "candidate a simulated:a?knowledge=0.9"):  # fmt: skip
            assert words in text, words
        assert re.search(r"\d{4}-\d\d-\d\d [\d:]{8} to .* UTC: \d+ s from the first call to the last", text)
        assert "cost 0.00" in text
        objects = _text(pages.run("quiz", None))
        assert "# pupil: object:short price_in=2.0 price_out=10.0 is an object of a Python program" in objects
        assert "max_cost 5 default: none" in objects


_DEEP: Any = "end"
for _ in range(300):
    _DEEP = [_DEEP]


def _set(**values: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda manifest: manifest | values


def _inside(part: str, **values: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda manifest: manifest | {part: manifest[part] | values}


# Edits of a manifest, each with words of the page that follows.
_EDITS: list[tuple[Callable[[dict[str, Any]], dict[str, Any]], str]] = [
    (_set(scenario=MARKUP), "unknown scenario"),
    (_set(scenario="\x1b[31m\u202e" + "x" * 100_000), "unknown scenario"),
    (_set(models=[1, 2]), "field &#39;models&#39;"),
    (_set(models={"candidate": {MARKUP: MARKUP}}), "contradicts"),
    (_set(models={f"role {number}": f"m{number}" for number in range(5000)}), "and 4,940 more models"),
    (_set(dataset="text"), "field &#39;dataset&#39;"),
    (_set(dataset={"name": MARKUP, "digest": "\x00\x1b", "chosen": 3, "form": "z" * 10_000}), "3 items"),
    (_set(dataset={"name": ["a"], "digest": {"b": 1}, "chosen": "3", "items": 10**18}), ""),
    (_set(versions={MARKUP: MARKUP, "python": "y" * 10**6}), "Python yyy"),
    (_set(pack={"name": _DEEP, "version": _DEEP, "digest": _DEEP}), "field &#39;pack"),
    (_set(not_identical=[MARKUP * 100] * 1000), "Not identical"),
    (_set(files={f"m{number}": "x" * 100 for number in range(3000)}), ""),
    (_set(extra={"digest": _DEEP, "name": MARKUP}), "Extra"),
    (_set(against="second"), "Seed 11"),
    (_set(code={"file": "/none/mine.py"}, scenario="mine"), "/none/mine.py"),
    (_set(shard={"index": _DEEP, "of": MARKUP}), "Shard a list of 1 of"),
    (_set(granted={"code": [MARKUP] * 1000, "seal": "x"}), "permitted to run"),
    (_set(imported={"from": MARKUP}), "no command of viva made this run"),
    (_set(seed=2**63), "contradicts"),
    (_set(prices={}), "prices.simulated:a"),
    (_set(flash_attention={"simulated:a?knowledge=0.9": MARKUP}), "flash_attention"),
    (_inside("settings", n=_DEEP), "settings.n"),
    (_inside("settings", pack=MARKUP + "\x1b]0;title\x07"), "$&#39;&lt;script&gt;"),
    (_inside("settings", surprise={"a": 1}), "surprise an object of 1"),
    (_inside("settings", **{f"s{number}": number for number in range(5000)}), "more settings"),
    (_inside("settings", candidate=[f"simulated:{number}" for number in range(3000)]), "contradicts"),
]


@pytest.fixture(scope="module")
def edited(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    """Pages of a folder with a run for each edit, and of one that nobody edited."""
    folder = tmp_path_factory.mktemp("edited")
    for number, (edit, _) in enumerate(_EDITS):
        file = shutil.copytree(root / "probe", folder / f"a{number}") / "manifest.json"
        file.write_text(json.dumps(edit(json.loads(file.read_text()))))
    shutil.copytree(root / "quiz", folder / "b")
    with opened_pages(folder, tmp_path_factory.mktemp("index")) as pages:
        yield pages


@case_table("number, words", [(number, words) for number, (_, words) in enumerate(_EDITS)])
def test_a_manifest_by_anybody_is_shown_bounded_and_escaped(edited: Pages, number: int, words: str) -> None:
    html = edited.run(f"a{number}", None)
    main = html.partition("<main")[2]
    assert words in main or words in _text(html), _text(html)[:2000]
    assert len(html) < 200_000
    assert re.search(r"<(script|img|b>bold)", main) is None
    assert not any(sign in html for sign in "\x00\x07\x1b\u202e")


def test_no_manifest_hides_another_run(edited: Pages) -> None:
    assert "Done: all 18 conversations" in _text(edited.run("b", None))


@case_table("content, words", [
    (b"", "cannot be read"), (b"[" * 100_000, "cannot be read"), (b'{"manifest": 99}', "version"),
    (b'{"manifest": 1, "settings": 3}', "settings"), (b" " * (17 << 20), "too large to be shown here: 18 MB"),
])  # fmt: skip
def test_a_file_that_is_no_manifest_is_a_sentence(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "manifest.json").write_bytes(content)
    assert words in read_record(tmp_path).problem
    assert read_record(tmp_path).facts == []


def test_a_key_in_a_manifest_is_not_shown_as_a_command(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "probe", tmp_path / "run")
    file = tmp_path / "run" / "manifest.json"
    file.write_text(file.read_text().replace("simulated:a?", "openai:a?api_key=sk-planted&"))
    assert read_record(tmp_path / "run").command == ""


def test_the_number_of_planned_conversations_follows_the_run(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(root / "probe", tmp_path / "run" / "probe")
    planned, running = 60, True
    monkeypatch.setattr("viva.web.view.indexer.planned_in_total", lambda folder: planned)
    monkeypatch.setattr("viva.web.view.indexer.is_running", lambda path: running)
    file = index_file(tmp_path / "run", tmp_path)
    indexer, writer = Indexer(tmp_path / "run", file), IndexWriter(file)
    indexer._find(writer)
    indexer._look(writer)
    reader = IndexReader(file)
    assert [run.planned for run in reader.runs()] == [60]
    manifest = tmp_path / "run" / "probe" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes() + b"\n")  # conversations are added to the run in progress
    planned = 80
    indexer._followed[tmp_path / "run" / "probe"].used = 0.0
    indexer._look(writer)
    assert [(run.planned, run.running) for run in reader.runs()] == [(80, True)]
    planned, running = 12, False  # an exam has ended
    indexer._followed[tmp_path / "run" / "probe"].used = 0.0
    indexer._look(writer)
    assert [(run.planned, run.running) for run in reader.runs()] == [(12, False)]
    reader.close()
    writer.close()


def test_values_are_lines() -> None:
    assert value_text(None) == "none"
    assert value_text(False) == "off"
    assert value_text([]) == "none"
    assert value_text([1.5, "a\nb", [2], {}]) == "1.5, a b, a list of 1, an object of 0"
    assert value_text(list(range(10_000))).endswith("… (10,000 in all)")
    assert len(value_text("x" * 10**6)) < 400
