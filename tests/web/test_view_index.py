"""The viewer's index follows journals, and its news reaches readers; without a browser."""

from __future__ import annotations

import asyncio
import hashlib
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from html import unescape
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qsl
from urllib.request import urlopen

import aiohttp
import orjson
import pytest
from aiohttp import web
from probing import make_items
from viewed_runs import viewer

import viva
from viva.engine.errors import ConfigurationError
from viva.scenarios.contract import Findings, RankedCandidate
from viva.scenarios.rendering import RenderedConversation, RenderedTurn
from viva.scoring.intervals import Estimate
from viva.web.page_server import PageServer
from viva.web.view.conversations import PageConversation, page_turns, pair_turns
from viva.web.view.export import export_pages
from viva.web.view.filters import Filter
from viva.web.view.findings import StudyAnswer, Updater
from viva.web.view.index import fts_query, index_file
from viva.web.view.index_figures import IndexAnalysis, mean_findings
from viva.web.view.indexer import Indexer
from viva.web.view.matrix import read_matrix
from viva.web.view.pages import PageContext, Pages
from viva.web.view.queries import IndexReader, ListedConversation
from viva.web.view.run_figures import MeanScore, run_groups
from viva.web.view.run_history import CandidateHistory, RunHistories
from viva.web.view.server import LiveUpdates, Viewer


class Says(viva.Backend):
    """Says one text; nothing at all while it is broken."""

    label = "model"
    broken = False

    def __init__(self, text: str = "fine") -> None:
        self._text = text

    async def generate(self, request: viva.Request) -> viva.Completion:
        if self.broken:
            raise viva.BackendError("out of order", model=self.label)
        return viva.Completion(self._text)


@viva.scenario(many="pupil")
async def asked(conversation: viva.Conversation, task: str) -> float:
    """One question."""
    view = viva.View()
    view.append("user", task)
    return float(len((await conversation.generate("pupil", view, viva.Sampling())).text))


def _run(out: Path, model: Says, tasks: list[str]) -> None:
    viva.run_sync(asked, models={"pupil": [model]}, tasks=tasks, out=out)


def _listed(root: Path, index: Path, chosen: Filter | None = None) -> list[ListedConversation]:
    file = index_file(root, index)
    Indexer(root, file).catch_up()
    reader = IndexReader(file)
    try:
        return reader.listed(chosen or Filter())
    finally:
        reader.close()


class Grades(viva.Backend):
    """Answers with a grade for each task."""

    label = "pupil"

    def __init__(self, grades: list[int]) -> None:
        self._grades = iter(grades)

    async def generate(self, request: viva.Request) -> viva.Completion:
        return viva.Completion(str(next(self._grades)))


@viva.scenario(many="pupil", score=(0, 100))
async def graded(conversation: viva.Conversation, task: str) -> float:
    """One grade."""
    view = viva.View()
    view.append("user", task)
    return float((await conversation.generate("pupil", view, viva.Sampling())).text)


def _histories(root: Path, index: Path) -> list[CandidateHistory]:
    file = index_file(root, index)
    Indexer(root, file).catch_up()
    reader = IndexReader(file)
    try:
        return RunHistories(reader).histories(reader.runs())
    finally:
        reader.close()


@pytest.mark.parametrize(
    ("before", "after", "start", "changed"),
    [
        (
            [30 + at % 3 for at in range(20)],
            [80 - at % 5 for at in range(20)],
            "since first: higher (+47.0 on the 20 common items, ",
            True,
        ),
        (
            [80 - at % 5 for at in range(20)],
            [30 + at % 3 for at in range(20)],
            "since first: lower (-47.0 on the 20 common items, ",
            True,
        ),
        ([50, 40, 60, 55], [55, 60, 40, 50], "since first: no significant change (+0.0 on the 4 common items, ", False),
        ([90], [10], "since first: too few to tell on the 1 common item", False),
    ],
)
def test_a_change_between_runs_is_claimed_only_if_its_interval_excludes_0(
    tmp_path: Path, before: list[int], after: list[int], start: str, changed: bool
) -> None:
    for name, grades in (("first", before), ("second", after)):
        tasks = [f"task {at}" for at in range(len(grades))]
        viva.run_sync(
            graded, models={"pupil": [Grades(grades)]}, tasks=tasks, out=tmp_path / "runs" / name, concurrency=1
        )
    [history] = _histories(tmp_path / "runs", tmp_path / "index")
    assert [(point.run, point.n) for point in history.points] == [("first", len(before)), ("second", len(before))]
    assert history.sentence.startswith(start)
    assert history.changed is changed
    low, high = history.scale
    assert all(low <= end <= high for point in history.points for end in (point.low, point.value, point.high) if end)


def test_a_change_is_tested_by_cluster_if_items_are_repeated(tmp_path: Path) -> None:
    """Four tasks, each 20 times: that 80 differences of 4 tasks have one sign tells little."""
    for name, shift in (("first", 0), ("second", 9)):
        grades = [40 + shift * (at % 4 < 3) for at in range(80)]
        viva.run_sync(
            graded,
            models={"pupil": [Grades(grades)]},
            tasks=[f"task {at}" for at in range(4)],
            repeats=20,
            out=tmp_path / "runs" / name,
            concurrency=1,
        )
    [history] = _histories(tmp_path / "runs", tmp_path / "index")
    assert "+6.8 on the 80 common conversations in 4 clusters, interval" in history.sentence
    assert not history.changed
    assert history.sentence.startswith("since first: no significant change (+6.8 ")


def test_runs_on_other_scales_have_no_common_history(tmp_path: Path) -> None:
    tasks = ["a", "b"]
    viva.run_sync(graded, models={"pupil": [Grades([1, 2])]}, tasks=tasks, out=tmp_path / "runs" / "first")
    viva.run_sync(graded, models={"pupil": [Grades([3, 4])]}, tasks=["c"], out=tmp_path / "runs" / "other-items")
    _run(tmp_path / "runs" / "other-scenario", Says(), tasks)
    assert _histories(tmp_path / "runs", tmp_path / "index") == []


@pytest.fixture(scope="module")
def two_sets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, IndexReader]]:
    """Two probes of a benchmark and a second set, and interviews on the same benchmark with one of the candidates."""
    folder = tmp_path_factory.mktemp("sets")
    items, others = make_items(folder / "items.jsonl", 12), make_items(folder / "others.jsonl", 8, seed=2)
    models = ["simulated:clean?knowledge=0.9", "simulated:cheat?knowledge=0.1&memorisation=1"]
    for seed in (1, 2):
        methods: dict[str, Any] = {"against": str(others), "method": ["letter"], "against_method": ["letter"]}
        viva.run_sync("probe", models={"candidate": models}, dataset=str(items), shots=0, seed=seed,
                      out=folder / "runs" / f"probe-{seed}", **methods)  # fmt: skip
    roles: Any = {"candidate": models[:1], "interactor": "simulated:asker", "evaluator": "simulated:strict"}
    viva.run_sync("kieval", models=roles, dataset=str(items), n=3, rounds=1, out=folder / "runs" / "kieval")
    file = index_file(folder / "runs", folder / "index")
    Indexer(folder / "runs", file).catch_up()
    reader = IndexReader(file)
    yield folder / "runs", reader
    reader.close()


def _rights(run: Path, candidate: str, second: bool) -> list[float]:
    return [
        100.0 * result.value["letter"]["right"]
        for result in viva.load(run).results()
        if result.key.startswith(f"{candidate}/") and bool(result.value.get("second")) is second
    ]


def test_the_benchmark_and_a_second_set_have_means_of_their_own(two_sets: tuple[Path, IndexReader]) -> None:
    root, reader = two_sets
    means = IndexAnalysis(reader).figures().means
    parts = {part["set"]: part for part in means if part["scenario"] == "probe"}
    assert parts["benchmark"]["about"] == "items"
    assert parts["second"]["about"] == "items (second set others)"
    for name, size in (("benchmark", 12), ("second", 8)):
        for standing in parts[name]["standings"]:
            rights = [
                right
                for seed in (1, 2)
                for right in _rights(root / f"probe-{seed}", standing["candidate"], name == "second")
            ]
            assert standing["n"] == len(rights) == 2 * size
            assert standing["value"] == pytest.approx(sum(rights) / len(rights))
    histories = RunHistories(reader).histories([run for run in reader.runs() if run.scenario == "probe"])
    assert {history.candidate for history in histories} == {"clean", "cheat"}
    for history in histories:
        assert [point.n for point in history.points] == [12, 12]
        assert "on the 12 common items" in history.sentence
        for point in history.points:
            rights = _rights(root / point.run, history.candidate, second=False)
            assert point.value == pytest.approx(sum(rights) / len(rights))
            matrix = next(group for group in reader.groups() if point.run in group.names and not group.second)
            [mean] = [own for own in read_matrix(reader, matrix, point.run).candidates if own.name == history.candidate]
            assert (point.low, point.high) == (mean.low, mean.high), "one figure has one interval"


def test_a_mean_on_the_overview_is_the_matrix_s_to_the_last_bit(two_sets: tuple[Path, IndexReader]) -> None:
    reader = two_sets[1]
    parts = {part["matrix"]: part for part in IndexAnalysis(reader).figures().means}
    groups = reader.groups()
    assert {*parts} == {group.id for group in groups}
    for group in groups:
        matrix = read_matrix(reader, group)
        standings = {own["candidate"]: own for own in parts[group.id]["standings"]}
        for own in matrix.candidates:
            if own.n == 0:
                assert own.name not in standings
                continue
            seen = [standings[own.name][name] for name in ("value", "low", "high", "n")]
            assert seen == [own.mean, own.low, own.high, own.n]
            assert own.low is not None
        assert parts[group.id]["digits"] == matrix.digits
    means = {(part["scenario"], part["set"]): part["clusters"] for part in parts.values()}
    assert means["probe", "benchmark"] == "12", "both runs have had the same items, so 24 scores are 12 clusters"


def test_means_are_so_far_only_until_all_has_ended(two_sets: tuple[Path, IndexReader]) -> None:
    runs = two_sets[1].runs()
    own = [
        MeanScore(name, 12, 12, Estimate(value, value - 5, value + 5), True)
        for name, value in (("a", 50.0), ("b", 90.0))
    ]
    for changes, words in (({}, False), ({"running": True}, True), ({"planned": 10_000}, True)):
        groups = run_groups([replace(run, **changes) for run in runs])
        assert len(groups) == 3
        for group in groups:
            for means in (own, own[:1]):
                part = mean_findings(group, means)
                assert ("so far" in part["measure"], "so far" in part["sentences"][0]) == (words, words)


def test_without_a_test_no_sentence_compares(two_sets: tuple[Path, IndexReader]) -> None:
    root, reader = two_sets
    figures = IndexAnalysis(reader).figures()
    for part in figures.means:
        [sentence] = part["sentences"]
        names = [name for name in ("clean", "cheat") if name in sentence]
        if part["scenario"] == "probe":
            of_set = {"benchmark": "benchmark", "second": "second set others"}[part["set"]]
            assert sentence == f"Mean scores only: no test compares the candidates on the {of_set}."
            assert names == []
        else:
            [only] = part["standings"]
            assert sentence == (f"clean: mean score {only['value']:.1f} (95% interval {only['low']:.1f} to "
                                f"{only['high']:.1f}, n = 3).")  # fmt: skip
    page = Pages(root, reader).overview(PageContext(StudyAnswer(), figures=figures))
    answer = page.split('<section class="block"')[0]
    assert answer.count("Mean scores only: no test compares the candidates.") == 1
    assert "Best" not in page
    assert "higher" not in answer
    broken = Pages(root, reader).overview(PageContext(StudyAnswer(problem="no item"), figures=figures))
    assert "Verdicts cannot be computed, as the notes say" in broken
    assert "no test compares" not in broken
    pending = Pages(root, reader).overview(PageContext(None, True, figures))
    assert "no test compares" not in pending, "as long as the tests are being computed"
    assert "Verdicts are being computed" in pending
    nothing = Pages(root, reader).overview(PageContext())
    assert nothing.count("Mean scores are being computed.") == 4, "a line at the top and one in each block"


def test_a_dataset_without_findings_keeps_its_means_beside_one_with_findings(tmp_path: Path) -> None:
    for name, seed in (("first", 1), ("second", 2)):
        items = make_items(tmp_path / f"{name}.jsonl", 6, seed=seed)
        viva.run_sync("probe", models={"candidate": ["simulated:a?knowledge=0.5"]}, dataset=str(items), shots=0,
                      out=tmp_path / "runs" / name)  # fmt: skip
    file = index_file(tmp_path / "runs", tmp_path / "index")
    Indexer(tmp_path / "runs", file).catch_up()
    reader = IndexReader(file)
    finding = Findings(["The first is found."], "score", [RankedCandidate("a", 50.0, n=6)], "first", "probe")
    context = PageContext(StudyAnswer([asdict(finding)]), figures=IndexAnalysis(reader).figures())
    page = Pages(tmp_path / "runs", reader).overview(context)
    reader.close()
    lines = re.findall(r'<a href="#block-\w+">([^<]+)</a> <span[^>]*>([^<]+)<', page)
    assert lines[0] == ("probe · first", "The first is found.")
    assert [subject for subject, _ in lines] == ["probe · first", "probe · second"]
    assert lines[1][1].startswith("a: mean score ")


def test_ways_to_end_are_those_of_a_block_and_lead_to_its_conversations(two_sets: tuple[Path, IndexReader]) -> None:
    root, reader = two_sets
    page = Pages(root, reader).overview(PageContext(figures=IndexAnalysis(reader).figures()))
    ends: dict[str, set[str]] = {}
    for block in page.split('<section class="block"')[1:]:
        scenario = re.findall(r'class="about">(\w+) ·', block)[0]
        part = block.split("Ends of conversations")[1].split("</ul>")[0]
        for query, count in re.findall(r'href="/conversations\?([^"]+)"><span class="figure">([\d,]+)<', part):
            chosen = Filter.from_query(dict(parse_qsl(unescape(query))))
            assert reader.count(chosen) == int(count)
            assert {one.scenario for one in reader.listed(chosen)} == {scenario}
            ends.setdefault(scenario, set()).add(chosen.end)
    assert ends["probe"] == {"right", "wrong", "right, second set", "wrong, second set"}
    assert not ends["kieval"] & ends["probe"]


def test_ends_on_a_second_set_say_right_or_wrong_and_are_counted_apart(two_sets: tuple[Path, IndexReader]) -> None:
    root, reader = two_sets
    for second, ending in ((False, ""), (True, ", second set")):
        rights = [
            right
            for seed in (1, 2)
            for name in ("clean", "cheat")
            for right in _rights(root / f"probe-{seed}", name, second)
        ]
        assert 0 < sum(rights) < 100 * len(rights)
        assert reader.count(Filter(end=f"right{ending}")) == rights.count(100.0)
        assert reader.count(Filter(end=f"wrong{ending}")) == rights.count(0.0)


@pytest.mark.parametrize("tested", [True, False])
def test_a_block_leads_to_its_own_conversations(two_sets: tuple[Path, IndexReader], tested: bool) -> None:
    """Of the same candidate and dataset there are conversations of another scenario."""
    root, reader = two_sets
    pages = Pages(root, reader)
    finding = Findings([], "KIEval score", [RankedCandidate("clean", 50.0, n=3)], "items", "kieval")
    answer = StudyAnswer([asdict(finding)]) if tested else None
    context = PageContext(answer, figures=IndexAnalysis(reader).figures())
    blocks = pages.overview_part(context).split('<section class="block"')[1:]
    seen = set()
    for block in blocks:
        scenario = re.search(r'class="about">(\w+) · items', block)
        assert scenario is not None
        for query in re.findall(r'class="name" href="/conversations\?([^"]+)"', block):
            chosen = Filter.from_query(dict(parse_qsl(unescape(query))))
            listed = reader.listed(chosen)
            assert len(listed) == reader.count(chosen) > 0
            assert {(one.scenario, one.candidate) for one in listed} == {(scenario[1], chosen.candidate)}
            assert len({one.second for one in listed}) == 1
            seen.add((scenario[1], chosen.candidate, bool(listed[0].second), len(listed)))
    probes = {("probe", name, *own) for name in ("clean", "cheat") for own in ((False, 24), (True, 16))}
    assert seen == {("kieval", "clean", False, 3), *probes}


def test_an_empty_list_says_why(two_sets: tuple[Path, IndexReader], tmp_path: Path) -> None:
    root, reader = two_sets
    pages = Pages(root, reader)
    assert "No conversation matches: none has failed." in pages.conversations(Filter(state="failed"))
    assert "No conversation matches.<" in pages.conversations(Filter(candidate="nobody"))
    assert "No conversation matches" not in pages.conversations(Filter(set="second"))
    reading = pages.conversations(Filter(state="failed"), busy=True)
    assert "still reading the runs" in reading
    assert "No conversation matches" not in reading
    file = index_file(tmp_path, tmp_path / "index")
    Indexer(tmp_path, file).catch_up()
    nothing = IndexReader(file)
    assert "There is no conversation yet." in Pages(tmp_path, nothing).conversations(Filter())
    nothing.close()


def test_a_viewer_of_an_empty_folder_shows_the_first_run(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    root.mkdir()
    with viewer(root, tmp_path / "index") as address:
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"{address}/c/none/1")  # is answered when the index is complete
        assert "<h1>No run yet</h1>" in urlopen(f"{address}/").read().decode()
        assert "there is no run in this folder yet" in urlopen(f"{address}/report").read().decode()
        with pytest.raises(HTTPError, match="404") as refused:
            urlopen(f"{address}/matrix")
        assert "There is no run with a conversation yet." in refused.value.read().decode()
        with urlopen(f"{address}/events?page=overview", timeout=60) as events:
            _run(root / "first", Says("yes"), ["a", "b"])
            assert any(b"/run/first" in line for line in events)
        assert "2</span> of 2 conversations ended" in urlopen(f"{address}/").read().decode()


@pytest.mark.parametrize(("name", "problem"), [("none", "no such folder"), ("file", "not a folder")])
def test_only_a_folder_can_be_viewed(tmp_path: Path, name: str, problem: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=f"{name}: {problem}; "):
        Viewer(tmp_path / name, PageServer())
    with pytest.raises(ConfigurationError, match="no run in this folder"):
        export_pages(tmp_path, tmp_path / "pages")


def test_only_known_sets_can_be_chosen(two_sets: tuple[Path, IndexReader]) -> None:
    choices = two_sets[1].choices()
    assert (choices.sets, choices.scenarios) == (["benchmark", "second"], ["kieval", "probe"])
    with pytest.raises(ConfigurationError, match="set: expected one of benchmark, second, found 'third'"):
        Filter.from_query({"set": "third"})


def test_what_is_wanted_during_a_computation_or_its_pause_is_computed_later() -> None:
    class Counts(Updater):
        begun, changes = 0, 3

        async def compute(self) -> bool:
            self.begun += 1
            await asyncio.sleep(0)
            self.changes -= 1
            return self.changes >= 0

    async def main() -> None:
        news = asyncio.Queue[int]()
        counts = Counts(lambda: news.put_nowait(counts.begun), least_pause=0.0)
        counts.want()
        await counts.wait(10)
        assert await news.get() == 1
        counts.want()  # in the pause
        counts.want()
        assert await news.get() == 2
        counts.want()
        await counts.wait(0)
        counts.want()  # while it computes, or later
        assert await news.get() == 3
        await counts.close()

    asyncio.run(main())


def _digests(folder: Path) -> dict[str, str]:
    return {one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in folder.iterdir()}


def test_an_index_takes_in_what_came_and_what_ended_otherwise(tmp_path: Path) -> None:
    run, index, model = tmp_path / "run", tmp_path / "index", Says()
    model.broken = True
    _run(run, model, ["a", "b"])
    before = _digests(run)
    failed = _listed(run, index)
    assert [(one.state, one.error, "out of order" in one.reason) for one in failed] == [(2, "BackendError", True)] * 2
    assert _digests(run) == before, "a run that is looked at stays as it is"
    model.broken = False
    asyncio.run(viva.resume(run, models={"pupil": [model]}, retry_failed=True))
    assert [(one.state, one.error, one.score) for one in _listed(run, index)] == [(1, "", 4.0)] * 2
    shutil.rmtree(run)
    _run(run, Says("another"), ["c"])
    [other] = _listed(run, index)
    assert (other.item, other.score) == ("c", 7.0), "another run in its place"


def test_a_damaged_index_is_made_again(tmp_path: Path) -> None:
    _run(tmp_path / "run", Says(), ["a"])
    file = index_file(tmp_path / "run", tmp_path / "index")
    file.write_bytes(b"no database" * 1000)
    assert len(_listed(tmp_path / "run", tmp_path / "index")) == 1


def test_a_run_of_an_unknown_scenario_is_listed_without_scores(tmp_path: Path) -> None:
    _run(tmp_path / "run", Says(), ["a"])
    file = tmp_path / "run" / "manifest.json"
    manifest = orjson.loads(file.read_bytes()) | {"scenario": "nobody"}
    manifest.pop("code", None)
    file.write_bytes(orjson.dumps(manifest))
    [one] = _listed(tmp_path / "run", tmp_path / "index")
    assert (one.candidate, one.state, one.score, one.calls) == ("model", 1, None, 1)


@pytest.mark.parametrize(
    ("typed", "count"),
    [
        ("深圳", 1),
        ("圳在", 1),
        ("圳深", 0),
        ("Straß", 1),
        ("strasse", 0),
        ('"rains often"', 1),
        ('"often rains"', 0),
        ('"rains oft', 1),
        ('"often ra', 0),
        ('Straße "rains often', 1),
        ('"rains oft"', 0),
        ("of", 1),
    ],
)
def test_words_of_any_script_are_found(tmp_path: Path, typed: str, count: int) -> None:
    _run(tmp_path / "run", Says("我住深圳在广东 Straße rains often"), ["a"])
    assert len(_listed(tmp_path / "run", tmp_path / "index", Filter(q=typed))) == count


@pytest.mark.parametrize("typed", ["", '"', "(*)", "AND OR", 'a" OR "b', "NEAR(", "-x", "text:a", "\x00"])
def test_no_words_break_the_question(tmp_path: Path, typed: str) -> None:
    _run(tmp_path / "run", Says(), ["a"])
    assert fts_query(typed) is None or _listed(tmp_path / "run", tmp_path / "index", Filter(q=typed)) is not None


def test_an_export_takes_no_folder_of_something_else(tmp_path: Path) -> None:
    _run(tmp_path / "run", Says(), ["a"])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("")
    for place in (tmp_path / "mine", tmp_path / "run"):
        with pytest.raises(ConfigurationError, match="choose another"):
            export_pages(tmp_path / "run", place, index=tmp_path / "index")


def _with_live(test: Callable[[LiveUpdates, str, aiohttp.ClientSession], Any]) -> None:
    async def main() -> None:
        live = LiveUpdates(tick=0.0)
        app = web.Application()
        app.router.add_get("/events", live.serve)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        live.start(10)
        try:
            async with aiohttp.ClientSession() as session, asyncio.timeout(60):
                await test(live, f"http://127.0.0.1:{runner.addresses[0][1]}/events", session)
        finally:
            await live.stop()
            await runner.cleanup()

    asyncio.run(main())


async def _events(answer: aiohttp.ClientResponse, count: int) -> list[tuple[int, dict[str, Any]]]:
    """The next events of a stream."""
    found: list[tuple[int, dict[str, Any]]] = []
    number = 0
    while len(found) < count:
        line = (await answer.content.readline()).decode().strip()
        if line.startswith("id: "):
            number = int(line[4:])
        elif line.startswith("data: "):
            found.append((number, orjson.loads(line[6:])))
    return found


def test_news_goes_on_where_a_reader_left_and_begins_anew_where_that_is_forgotten() -> None:
    async def test(live: LiveUpdates, address: str, session: aiohttp.ClientSession) -> None:
        async with session.get(address) as stays:
            seen = []
            for version in range(11, 14):
                live.changed(version, [("run", version)])
                seen += await _events(stays, 1)
            assert [(number, news["changed"]) for number, news in seen] == [
                (version, [f"run/{version}"]) for version in range(11, 14)
            ]
            async with session.get(address, headers={"Last-Event-ID": "11"}) as back:
                assert [number for number, _ in await _events(back, 2)] == [12, 13]
            async with session.get(f"{address}?since=12") as loaded_before:
                assert [number for number, _ in await _events(loaded_before, 1)] == [13]
            for unknown in ("3", "99"):
                async with session.get(address, headers={"Last-Event-ID": unknown}) as late:
                    assert await _events(late, 1) == [(13, {"reset": True})]

    _with_live(test)


def test_a_reader_that_takes_nothing_holds_nobody_up() -> None:
    async def test(live: LiveUpdates, address: str, session: aiohttp.ClientSession) -> None:
        live.overview = lambda: "x" * 100_000
        host, port = address.removeprefix("http://").removesuffix("/events").split(":")
        with socket.create_connection((host, int(port))) as stuck:
            stuck.sendall(f"GET /events?page=overview HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            async with session.get(address) as reads:
                for version in range(11, 311):
                    live.changed(version, [("run", version)])
                    [(number, news)] = await _events(reads, 1)
                    assert (number, news["changed"]) == (version, [f"run/{version}"])

    _with_live(test)


def test_where_one_interview_ends_earlier_the_others_rounds_stand_alone_and_in_order() -> None:
    def drawn(rounds: int) -> PageConversation:
        turns = [RenderedTurn(speaker, f"{speaker} {number}", round=number)
                 for number in range(1, rounds + 1) for speaker in ("examiner", "candidate")]  # fmt: skip
        return page_turns(RenderedConversation([RenderedTurn("item"), *turns, RenderedTurn("end", f"after {rounds}")]))

    told = [
        tuple(
            None if turn is None else (turn.rendered.speaker, turn.rendered.round) for turn in (pair.left, pair.right)
        )
        for pair in pair_turns(drawn(1), drawn(3))
    ]
    both = [("item", None), ("examiner", 1), ("candidate", 1)]
    later = [("examiner", 2), ("candidate", 2), ("examiner", 3), ("candidate", 3)]
    end = ("end", None)
    assert told == [*((one, one) for one in both), *((None, one) for one in later), (end, end)]
