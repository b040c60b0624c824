"""Probes that gather evidence of contamination: their questions, settings, records, runs and forecasts."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from case_tables import case_table
from command import viva
from hypothesis import given
from hypothesis import strategies as st
from probing import ITEMS, PACK, make_items, probe, recorded
from viva_process import completed, killed, recorded_rows, started

from viva.data.items import Item
from viva.engine.journal_reader import History
from viva.engine.run_folder import RunFolder
from viva.lab.family import CARD_FILE, MODELS, model_file
from viva.lab.world import World, write_benchmark
from viva.orchestration.completeness import missing_conversations
from viva.scenarios.probes.probe import ProbeSettings, ProbeTask, ShardTask, read_task
from viva.scenarios.probes.probe_prompts import MASK
from viva.scenarios.probes.scenario import SCENARIO
from viva.scenarios.probes.witness_calls import (
    NEIGHBOURS,
    PERMUTATIONS,
    SAMPLES,
    SHARD_ITEMS,
    SHUFFLES,
    neighbours_of,
    option_orders,
    shards,
)
from viva.web.view.conversations import ConversationReader, PageConversation

_COURT = ["text", "loss", "order", "options", "context", "guess", "samples"]
_LAB_METHODS = ("text", "loss", "order", "options", "context", "samples")  # the lab's pack has no question for a guess
_LAB_SECOND = ("text", "loss", "context", "samples")
_CANDIDATES = ("clean-50", "pt-cheater")
_ITEMS = 12  # of each set in the lab's run
_WORDS = ("tin", "fog", "steel", "rain", "glass")


def _methods(*methods: str, option: str = "--method") -> list[str]:
    return [word for method in methods for word in (option, method)]


# -- orders of options ------------------------------------------------------------------------------------------------


@st.composite
def _items(draw: st.DrawFn, least: int, most: int) -> Item:
    """An item whose options have no order of their own."""
    choices = draw(st.lists(st.sampled_from(_WORDS), min_size=least, max_size=most, unique=True))
    answer = draw(st.integers(0, len(choices) - 1))
    return Item(draw(st.text("abc", min_size=1, max_size=4)), "Which one?", choices, answer)


@given(_items(3, 5), st.integers(0, 2**32))
def test_other_orders_have_the_same_options_and_the_key_in_its_place(item: Item, seed: int) -> None:
    orders = option_orders(item, seed)
    assert all(sorted(order) == sorted(item.choices) for order in orders)
    assert all(order[item.answer] == item.choices[item.answer] for order in orders)
    assert item.choices not in orders
    assert (
        len({tuple(order) for order in orders})
        == len(orders)
        == {3: 1, 4: PERMUTATIONS, 5: PERMUTATIONS}[len(item.choices)]
    )
    assert option_orders(item, seed) == orders


@given(_items(1, 2), st.integers(0, 2**32))
def test_two_options_have_no_other_order_that_keeps_the_key(item: Item, seed: int) -> None:
    assert option_orders(item, seed) == []


@case_table(
    "choices, reordered",
    [
        (["tin", "fog", "steel", "rain"], True),
        (["tin", "fog", "steel", "all of the above"], False),
        (["tin", "fog", "steel", "None of these"], False),
        (["tin", "fog", "both A and B", "rain"], False),
        (["tin", "fog", "steel", "a or c"], False),
        (["tin", "fog", "Neither of them", "rain"], False),
        (["tin", "The above", "steel", "rain"], False),
        (["1", "2", "3", "4"], False),
        (["3 kg", "-2.5 kg", "1,000 kg", "+4 kg"], False),
        (["1", "2", "3", "unknown"], True),
        (["tin", "fog", "tin", "rain"], False),
        (["tin", "fog", " tin ", "rain"], False),
        (["a tin and a fog", "the fog", "an allotment", "rain"], True),
        ([], False),
        (["tin"], False),
    ],
)
def test_options_with_an_order_of_their_own_are_not_reordered(choices: list[str], reordered: bool) -> None:
    assert bool(option_orders(Item("i", "Which one?", choices, 0), 7)) is reordered


# -- shards and neighbours --------------------------------------------------------------------------------------------


def _numbered(count: int, clusters: int = 0) -> list[Item]:
    def passage(number: int) -> str:
        return f"p{number % clusters}" if clusters else ""

    return [Item(f"i{number}", f"Q{number}?", ["a", "b"], 0, passage=passage(number)) for number in range(count)]


@given(st.integers(0, 60), st.none() | st.integers(1, 12), st.integers(0, 2**32))
def test_shards_are_consecutive_items_of_which_none_is_in_two(items: int, count: int | None, seed: int) -> None:
    source = _numbered(items)
    drawn = list(shards(source, count, seed))
    whole = items // SHARD_ITEMS
    assert len(drawn) == (whole if count is None else min(count, whole))
    assert [number for number, _ in drawn] == sorted({number for number, _ in drawn})
    for number, shard in drawn:
        assert shard == source[number * SHARD_ITEMS : (number + 1) * SHARD_ITEMS]
        assert len(shard) == SHARD_ITEMS
    ids = [item.id for _, shard in drawn for item in shard]
    assert len({*ids}) == len(ids)
    assert list(shards(source, count, seed)) == drawn


def test_which_shards_are_drawn_depends_on_the_seed() -> None:
    source = _numbered(60)
    drawn = {tuple(number for number, _ in shards(source, 3, seed)) for seed in range(8)}
    assert len(drawn) > 4


@given(st.integers(2, 30), st.sampled_from([0, 2, 5]), st.integers(0, 2**32), st.data())
def test_neighbours_are_other_items_of_other_clusters(
    items: int, clusters: int, seed: int, data: st.DataObject
) -> None:
    source = _numbered(items, clusters)
    item = data.draw(st.sampled_from(source))
    neighbours = neighbours_of(item, source, seed)
    ids = {neighbour.id for neighbour in neighbours}
    assert item.id not in ids
    assert len(ids) == len(neighbours) <= NEIGHBOURS
    assert all(neighbour in source for neighbour in neighbours)
    if clusters:
        assert item.cluster() not in {neighbour.cluster() for neighbour in neighbours}
    if items > 10:
        assert len(neighbours) == NEIGHBOURS
    assert neighbours_of(item, source, seed) == neighbours


def test_neighbours_depend_on_the_seed_and_the_item() -> None:
    source = _numbered(30)
    by_seed = {tuple(item.id for item in neighbours_of(source[0], source, seed)) for seed in range(8)}
    by_item = {tuple(other.id for other in neighbours_of(item, source, 7)) for item in source[:8]}
    assert min(len(by_seed), len(by_item)) > 4


@case_table("second, neighbours", [(False, 0), (True, 0), (False, 2), (True, 2)])
def test_a_task_is_restored_from_its_record(second: bool, neighbours: int) -> None:
    source = _numbered(9, 3)
    task = ProbeTask(source[0], second, source[4 : 4 + neighbours])
    restored = read_task(json.loads(json.dumps(task.to_record())))
    assert isinstance(restored, ProbeTask)
    assert (restored.id, restored.item, restored.second, [*restored.neighbours]) == (
        *(task.id, task.item, second),
        [*task.neighbours],
    )
    shard = read_task(json.loads(json.dumps(ShardTask(3, source[:6]).to_record())))
    assert shard == ShardTask(3, source[:6])
    assert shard.id == "shard/3"


# -- settings ---------------------------------------------------------------------------------------------------------


@case_table(
    "options, words",
    [
        (
            _methods("loss") + _methods("loss", option="--against-method"),
            ["against_method", "no second set", "--against"],
        ),
        (
            ["--against", ITEMS, *_methods("loss"), *_methods("text", option="--against-method")],
            ["against_method: text is not among the methods", "--method text"],
        ),
        (
            ["--against", ITEMS, *_methods("loss", "order"), *_methods("order", option="--against-method")],
            ["against_method: order needs no second set"],
        ),
        (
            ["--against", ITEMS, *_methods("loss", "options"), *_methods("options", option="--against-method")],
            ["against_method: options needs no second set"],
        ),
        (["--against", ITEMS, *_methods("letter", "text")], ["against: no method compares two sets", "--method court"]),
        (
            ["--against", ITEMS, *_methods("order", "options")],
            ["against: no method compares two sets", "--method court"],
        ),
        (["--against", ITEMS, *_methods("orders")], ["--method", "'order'", "'orders'"]),
        ([*_methods("court"), "--members", "against"], ["members: there is no second set"]),
    ],
)
def test_a_wrong_combination_of_methods_is_named_before_the_run(
    options: list[str | Path], words: list[str], tmp_path: Path
) -> None:
    base: list[str | Path] = [
        "run",
        "probe",
        "--dataset",
        ITEMS,
        "--shots",
        "0",
        "--candidate",
        "simulated:c",
        "--out",
        tmp_path / "run",
    ]
    done = viva(*base, *options)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    for word in words:
        assert word in done.stderr
    assert not (tmp_path / "run").exists()


@case_table(
    "count, method, words",
    [
        (5, "order", ["order needs at least 6 items", "few has 5"]),
        (1, "context", ["context needs at least 2 items", "few has 1"]),
    ],
)
def test_too_few_items_for_a_method_are_named(count: int, method: str, words: list[str], tmp_path: Path) -> None:
    few = make_items(tmp_path / "few.jsonl", count)
    base: list[str | Path] = ["run", "probe", "--shots", "0", "--candidate", "simulated:c", "--out", tmp_path / "run"]
    done = viva(*base, "--dataset", few, "--method", method)
    assert done.returncode == 2
    for word in words:
        assert word in done.stderr


@case_table(
    "given, methods, second",
    [
        ({"method": ["court"]}, _COURT, []),
        ({"method": "court"}, _COURT, []),
        ({"method": ["letter", "court"]}, ["letter", *_COURT], []),
        ({"method": ["court", "letter", "loss"]}, [*_COURT, "letter"], []),
        ({"method": ["court"], "against": "x"}, _COURT, ["text", "loss", "context", "guess", "samples"]),
        ({"method": ["court"], "against": "x", "against_method": ["loss"]}, _COURT, ["loss"]),
        ({"method": ["letter", "loss", "order"], "against": "x"}, ["letter", "loss", "order"], ["loss"]),
        ({"method": ["text", "loss"], "against": "x", "against_method": ["text", "text"]}, ["text", "loss"], ["text"]),
        ({}, ["letter"], []),
    ],
)
def test_court_stands_for_all_methods_and_for_their_second_set(
    given: dict[str, Any], methods: list[str], second: list[str]
) -> None:
    settings = ProbeSettings(dataset="d", candidate=["simulated:c"], shots=0, **given)
    assert (settings.method, settings.second_methods) == (methods, second)
    assert "court" not in settings.method
    restored = ProbeSettings(**settings.model_dump())
    assert (restored.method, restored.second_methods) == (methods, second)


def test_a_run_of_an_earlier_version_is_reported_and_resumed_as_ever(tmp_path: Path) -> None:
    other, run = make_items(tmp_path / "other.jsonl", 5), tmp_path / "run"
    options: list[str | Path] = [
        "--dataset",
        ITEMS,
        "-n",
        "6",
        "--against",
        other,
        "--shots",
        "0",
        "--candidate",
        "simulated:c",
    ]
    probe(run, *options, *_methods("letter", "loss"))
    printed: list[list[str | Path]] = [["report", run], ["report", run, "--json"], ["show", run, "--json"]]
    before = [viva(*words).stdout for words in printed]
    manifest = orjson.loads((run / "manifest.json").read_bytes())
    del manifest["settings"]["against_method"]
    manifest.pop("shards", None)
    (run / "manifest.json").write_bytes(orjson.dumps(manifest))
    after = [viva(*words).stdout for words in printed]
    assert after == before
    assert SCENARIO.tasks_in(manifest) == 6 + 5
    resumed = viva("resume", run, "--json")
    assert (resumed.returncode, resumed.stdout) == (0, before[1]), resumed.stderr


# -- a run with trained models ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Path]:
    """The lab's benchmark and its second set."""
    if not (MODELS / CARD_FILE).exists():
        pytest.skip("the lab's models are not there; `viva lab build` makes them")
    paths = write_benchmark(World(1), tmp_path_factory.mktemp("benchmark"))
    return paths["test"], paths["fresh"]


def _lab_options(files: Sequence[Path], count: int, candidates: Sequence[str]) -> list[str | Path]:
    models = [f"llama:{model_file(name)}?label={name}&threads=1" for name in candidates]
    options: list[str | Path] = ["--dataset", files[0], "--against", files[1], "-n", str(count), "--shots", "0"]
    options += ["--pack", "lab-probe", *_methods(*_LAB_METHODS), *_methods(*_LAB_SECOND, option="--against-method")]
    return [*options, *(word for model in models for word in ("--candidate", model))]


@pytest.fixture(scope="module")
def lab_run(files: Sequence[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("lab") / "run"
    probe(run, *_lab_options(files, _ITEMS, _CANDIDATES))
    return run


def test_each_item_has_a_part_for_each_method_of_its_set(lab_run: Path) -> None:
    results = recorded(lab_run)
    common = {"candidate", "item", "second", "cluster", "usage"}
    own = common | {"text", "signals", "options", "context", "samples"}
    by_kind: dict[str, list[dict[str, Any]]] = {"own": [], "second": [], "shard": []}
    for key, result in results.items():
        kind = "shard" if "shard" in result else "second" if result["second"] else "own"
        by_kind[kind].append(result)
        assert result["candidate"] == key.partition("/")[0]
    assert {len(found) for found in by_kind.values()} == {2 * _ITEMS, 2 * _ITEMS // SHARD_ITEMS}
    assert all(result.keys() == own for result in by_kind["own"])
    assert all(result.keys() == own - {"options"} for result in by_kind["second"])
    for result in by_kind["shard"]:
        assert result.keys() == {"candidate", "item", "second", "shard", "order", "usage"}
        assert result["item"] == f"shard/{result['shard']}"
        assert len(result["order"]["shuffled"]) == SHUFFLES
        assert len({*result["order"]["shuffled"]}) > SHUFFLES / 2
    for result in by_kind["own"]:
        options = result["options"]
        assert (len(options["permuted"]), len(options["right"])) == (PERMUTATIONS, 1 + PERMUTATIONS)
    for result in [*by_kind["own"], *by_kind["second"]]:
        assert max(result["context"].values()) < 0
        assert result["context"]["alone"] != result["context"]["within"]
        assert 0 <= result["samples"]["peak"] <= 1
        assert result["samples"]["samples"] == SAMPLES


def test_all_candidates_get_the_same_questions(lab_run: Path) -> None:
    asked: dict[str, dict[str, Any]] = {name: {} for name in _CANDIDATES}
    with History(lab_run / "journal.sqlite") as history:
        for number in history.numbers():
            key, task = history.started(number) or ("", {})
            label, _, item = key.partition("/")
            calls = [call.digest for call in history.calls(number) if call.completion.likelihoods]
            asked[label][item] = (task, calls)
    clean, cheater = asked.values()
    assert clean == cheater
    for task, _ in clean.values():
        if "shard" not in task:
            assert len(task["neighbours"]) == NEIGHBOURS
            assert task["passage"] not in {neighbour["passage"] for neighbour in task["neighbours"]}


def test_shards_are_in_the_order_of_the_file(lab_run: Path, files: Sequence[Path]) -> None:
    published = [orjson.loads(line)["id"] for line in files[0].read_bytes().splitlines()]
    with History(lab_run / "journal.sqlite") as history:
        tasks = [task for number in history.numbers() for _, task in [history.started(number) or ("", {})]]
    drawn = [task for task in tasks if "shard" in task]
    assert len(drawn) == len(_CANDIDATES) * _ITEMS // SHARD_ITEMS
    for task in drawn:
        begin = task["shard"] * SHARD_ITEMS
        assert [item["id"] for item in task["items"]] == published[begin : begin + SHARD_ITEMS]


def test_the_report_counts_items_of_the_benchmark_alone(lab_run: Path) -> None:
    report = orjson.loads(viva("report", lab_run, "--json").stdout)
    results = recorded(lab_run).values()
    for name in _CANDIDATES:
        record = report["candidates"][name]
        own = [result for result in results if result["candidate"] == name and not result["second"]]
        texts = [result["text"] for result in own if "text" in result]
        assert (record["n"], record["failed"], record["stopped"]) == (_ITEMS, 0, {})
        assert record["accuracy"]["text"]["right"] == sum(text["right"] for text in texts)
        assert record["accuracy"]["text"]["value"] == pytest.approx(100 * record["accuracy"]["text"]["right"] / _ITEMS)
        assert (record["loss"]["n"], record["loss_against"]["n"]) == (_ITEMS, _ITEMS)


def test_all_planned_conversations_have_ended(lab_run: Path) -> None:
    folder = RunFolder.open(lab_run)
    assert SCENARIO.tasks_in(folder.manifest) == 2 * _ITEMS + _ITEMS // SHARD_ITEMS
    assert len(recorded(lab_run)) == len(_CANDIDATES) * SCENARIO.tasks_in(folder.manifest)
    assert missing_conversations(folder) is None


def _pages(run: Path) -> Iterator[tuple[str, PageConversation]]:
    """Key and rendering of each conversation."""
    reader = ConversationReader()
    with History(run / "journal.sqlite") as history:
        keys = [(history.started(number) or ("", {}))[0] for number in history.numbers()]
    for number, key in enumerate(keys):
        page = reader.read(run, number)
        assert (page.problem, page.damaged, page.ended) == (None, False, True)
        yield key, page
    reader.close()


def _marks(page: PageConversation) -> list[tuple[str, str]]:
    return [(mark.name, mark.value) for turn in page.rendered.turns for mark in turn.marks]


def test_each_conversation_is_shown_with_all_its_calls(lab_run: Path) -> None:
    for number, key in enumerate(key for key, _ in _pages(lab_run)):
        done = viva("show", lab_run, "--conversation", str(number), "--json")
        assert done.returncode == 0, done.stderr
        shown = orjson.loads(done.stdout)
        assert shown["key"] == key
        calls = [turn for turn in shown["talk"] if turn["party"] == "candidate"]
        items = len(shown["talk"]) - len(calls)
        if "/shard/" in key:
            assert (items, len(calls)) == (SHARD_ITEMS, 1)
        else:
            orders = 0 if "/against/" in key else 1 + 1 + PERMUTATIONS
            assert (items, len(calls)) == (1, 2 + orders + 2 + 1 + SAMPLES)
        if number % 10 == 0:  # as text the calls are the same
            text = viva("show", lab_run, "--conversation", str(number))
            assert text.returncode == 0, text.stderr
            assert text.stdout.count("[candidate]") == len(calls)


def test_each_methods_result_is_marked_once(lab_run: Path) -> None:
    own = {"by text", "loss of the text", "orders of options", "alone and in context", "sampled answers"}
    results, methods = recorded(lab_run), RunFolder.open(lab_run).manifest["settings"]["method"]
    titles = {"text": "by text", "loss": "loss of the text", "options": "orders of options"}
    titles |= {"context": "alone and in context", "samples": "sampled answers"}
    for key, page in _pages(lab_run):
        result = results[key]
        marks = [(name, value) for name, value in _marks(page) if name in {*own, "published and shuffled orders"}]
        if "/shard/" in key:
            higher = sum(other < result["order"]["published"] for other in result["order"]["shuffled"])
            assert marks == [("published and shuffled orders", f"published likelier than {higher} of {SHUFFLES}")]
            continue
        values = dict(marks)
        assert len(marks) == len(values)
        assert list(values) == [titles[method] for method in methods if titles.get(method) in values]
        assert values.keys() == (own - {"orders of options"} if "/against/" in key else own)
        assert values["by text"].endswith("right" if result["text"]["right"] else "wrong")
        assert values["loss of the text"] == f"{result['signals']['loss']:.3f} nats per token"
        assert values["sampled answers"] == f"{result['samples']['peak']:.0%} near the first"


def _rows(run: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"file:{run}/journal.sqlite?mode=ro", uri=True)) as journal:
        return journal.execute("select * from calls").fetchall()


def test_killed_and_resumed_the_report_is_the_same_and_no_recorded_call_is_made_again(
    files: Sequence[Path], tmp_path: Path
) -> None:
    run, whole = tmp_path / "killed", tmp_path / "whole"
    options = [*_lab_options(files, 4, _CANDIDATES[1:]), "--concurrency", "3", "--json", "--out"]
    uninterrupted = completed("run", "probe", *options, whole)
    assert uninterrupted.returncode == 0, uninterrupted.stderr.decode()
    calls = recorded_rows(whole)
    kept = []
    process = started("run", "probe", *options, run)
    for moment in (20, 70):
        assert 0 < killed(process, run, moment) < calls
        kept += _rows(run)
        process = started("resume", run, "--json")
    printed, said = process.communicate()
    assert (process.returncode, printed) == (0, uninterrupted.stdout), said.decode()
    assert recorded_rows(run) == calls
    rows = _rows(run)
    assert all(row in rows for row in kept), "a recorded call was made again"
    assert completed("report", run, "--json").stdout == uninterrupted.stdout
    assert completed("show", run, "--json").stdout == completed("show", whole, "--json").stdout


# -- the default pack -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def court_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("court")
    other = make_items(root / "other.jsonl", 9, seed=2)
    models = [
        "--candidate",
        "simulated:seen?memorisation=1&knowledge=0.3",
        "--candidate",
        "simulated:clean?knowledge=1",
    ]
    options: list[str | Path] = [
        "--dataset",
        ITEMS,
        "-n",
        "8",
        "--against",
        other,
        "--shots",
        "0",
        "--method",
        "court",
        *models,
    ]
    probe(root / "run", *options)
    return root / "run"


def test_court_asks_simulated_models_for_everything(court_run: Path) -> None:
    manifest = orjson.loads((court_run / "manifest.json").read_bytes())
    assert manifest["settings"]["method"] == _COURT
    results = recorded(court_run)
    assert len(results) == 2 * (8 + 8 + 2)
    for result in results.values():
        if "shard" in result:
            continue
        masked = result["guess"]
        assert masked["choice"]
        assert masked["answer"]
        assert result["samples"].keys() == {"peak", "greedy", "samples"}
        assert ("options" in result) is not result["second"]
    with History(court_run / "journal.sqlite") as history:
        for number in history.numbers():
            key, task = history.started(number) or ("", {})
            if key in results and "shard" not in task:
                wrong = {choice for index, choice in enumerate(task["choices"]) if index != task["answer"]}
                assert results[key]["guess"]["choice"] in wrong
    assert viva("report", court_run).returncode == 0
    for key, page in _pages(court_run):
        if "shard" not in results[key]:
            assert ("masked choice", f"masked: {results[key]['guess']['choice']}") in _marks(page)


def test_the_masked_choice_is_not_in_its_question(court_run: Path) -> None:
    masked = []
    for key, page in _pages(court_run):
        result = recorded(court_run)[key]
        questions = [text for _, text in page.messages if MASK in text]
        assert len(questions) == ("shard" not in result)
        for question in questions:
            masked.append(result["guess"]["choice"])
            assert f". {masked[-1]}\n" not in question
    assert len(masked) == 2 * (8 + 8)


@case_table("section", ["guess", "samples"])
def test_a_pack_without_a_methods_templates_is_refused_before_the_first_call(section: str, tmp_path: Path) -> None:
    pack = yaml.safe_load(PACK.read_text())
    del pack[section]
    (tmp_path / "old.yaml").write_text(yaml.safe_dump(pack | {"name": "old"}))
    base: list[str | Path] = [
        "run",
        "probe",
        "--dataset",
        ITEMS,
        "-n",
        "6",
        "--shots",
        "0",
        "--candidate",
        "simulated:c",
    ]
    done = viva(*base, "--method", "court", "--pack", tmp_path / "old.yaml", "--out", tmp_path / "run")
    assert (done.returncode, done.stdout) == (2, "")
    for word in (f"'old' has no template {section}.system or {section}.question", f"method {section}", "leave"):
        assert word in done.stderr
    assert recorded_rows(tmp_path / "run") == 0
    others = _methods(*(method for method in _COURT if method != section))
    assert viva(*base, *others, "--pack", tmp_path / "old.yaml", "--out", tmp_path / "other").returncode == 0


# -- forecasts --------------------------------------------------------------------------------------------------------


def _forecast(run: Path) -> dict[str, Any]:
    settings = ProbeSettings(**RunFolder.open(run).manifest["settings"])
    return SCENARIO.forecast(settings, SCENARIO.prepare(settings), SCENARIO.open_pack(settings))


def _calls(run: Path) -> tuple[float, float]:
    """Recorded calls of one candidate, and requests if each likelihood takes one."""
    candidates = len(RunFolder.open(run).manifest["models"]["candidate"])
    with History(run / "journal.sqlite") as history:
        sizes = [len(call.completion.likelihoods or [0]) for n in history.numbers() for call in history.calls(n)]
    return len(sizes) / candidates, sum(sizes) / candidates


def test_a_forecast_names_calls_and_tokens_by_method(court_run: Path) -> None:
    forecast = _forecast(court_run)
    by_method = {
        name.removeprefix("candidate, "): use
        for name, use in forecast.items()
        if name != "candidate" and not name.endswith(", one by one")
    } | {"one by one": forecast["candidate, one by one"]}
    one_by_one = by_method.pop("one by one")
    assert by_method.keys() == {*_COURT}
    reordered = sum(bool(result.get("options")) for result in recorded(court_run).values()) / 2
    assert {method: use.calls for method, use in by_method.items()} == {
        "text": 16,
        "loss": 16,
        "order": 2,
        "options": 7 * reordered,
        "context": 32,
        "guess": 16,
        "samples": 16 * (1 + SAMPLES),
    }
    for part in ("calls", "prompt", "completion"):
        total = sum(getattr(use, part) for use in by_method.values())
        assert getattr(forecast["candidate"], part) == pytest.approx(total)
    assert (forecast["candidate"].calls, one_by_one.calls) == _calls(court_run)


def test_a_run_makes_as_many_calls_as_were_forecast(lab_run: Path) -> None:
    forecast = _forecast(lab_run)
    assert (forecast["candidate"].calls, forecast["candidate, one by one"].calls) == _calls(lab_run)


def test_the_forecast_of_a_plain_probe_names_no_method(tmp_path: Path) -> None:
    options: list[str | Path] = ["--dataset", ITEMS, "-n", "5", "--shots", "0", "--candidate", "simulated:c"]
    probe(tmp_path / "run", *options, *_methods("letter", "text", "generate", "loss"))
    forecast = _forecast(tmp_path / "run")
    assert [*forecast] == ["candidate", "candidate, one by one"]
    assert (forecast["candidate"].calls, forecast["candidate, one by one"].calls) == _calls(tmp_path / "run")


def _swept(tmp_path: Path, name: str, *methods: str) -> dict[str, Any]:
    """The forecast of a sweep of two candidates over two seeds."""
    other = make_items(tmp_path / "other.jsonl", 9, seed=2)
    probes = {"method": [*methods], "against": str(other), "shots": 0, "n": 8}
    sweep = {"candidates": ["simulated:a", "simulated:b"], "datasets": [str(ITEMS)], "seeds": [1, 2], "probes": probes}
    (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(sweep))
    done = viva("sweep", tmp_path / f"{name}.yaml", "--out", tmp_path / name, "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = orjson.loads(done.stdout)
    return report


def test_the_forecast_of_a_sweep_names_the_methods_that_gather_evidence(tmp_path: Path) -> None:
    report = _swept(tmp_path, "evidence", "court")
    assert report["methods"].keys() == {*_COURT}
    for part in ("calls", "prompt_tokens", "completion_tokens"):
        total = sum(model[part] for model in report["models"].values())
        assert sum(method[part] for method in report["methods"].values()) == pytest.approx(total, abs=len(_COURT))
    assert "methods" not in _swept(tmp_path, "plain", "letter", "loss")


def test_both_sets_are_asked_with_the_same_examples(tmp_path: Path) -> None:
    data, second, examples = (make_items(tmp_path / f"{name}.jsonl", 8) for name in ("data", "second", "examples"))
    options = ["--against", second, *_methods("text", "loss"), "--against-method", "text", "--against-method", "loss"]
    options += ["--shots", "2", "--shots-from", examples, "--candidate", "simulated:c", "-n", "3"]
    probe(tmp_path / "run", "--dataset", data, *options)
    with History(RunFolder.open(tmp_path / "run").journal) as history:
        prompts = {
            (history.started(number) or ("", {}))[0]: history.calls(number)[0].completion.prompt_tokens
            for number in history.numbers()
        }
    own, other = ([tokens for key, tokens in prompts.items() if ("/against/" in key) == side] for side in (False, True))
    assert len(own) == len(other) == 3
    assert max(own) - min(own + other) < min(own + other) / 4  # an example is more than a third of each prompt


# -- models without likelihoods ---------------------------------------------------------------------------------------

_TEXT_MODELS = '''
import json
from pathlib import Path

ITEMS = [json.loads(line) for line in Path(__file__).with_name("items.jsonl").read_text().splitlines()]


def learned(messages):
    """Know items whose options stand in their published order."""
    lines = messages[-1]["content"].splitlines()
    for item in ITEMS:
        if item["question"] in lines[0] and lines[1:] == [f"{'ABCD'[i]}. {c}" for i, c in enumerate(item["choices"])]:
            return "ABCD"[item["answer"]]
    return "A"


def clean(messages):
    """Know every second answer by its contents."""
    question, *choices = messages[-1]["content"].splitlines()
    [number] = [number for number, item in enumerate(ITEMS) if item["question"] in question]
    key = ITEMS[number]["choices"][ITEMS[number]["answer"]]
    right = [choice[0] for choice in choices if choice.endswith(f". {key}")]
    return right[0] if number % 2 else "B"
'''


@pytest.fixture(scope="module")
def text_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("text")
    items = make_items(root / "items.jsonl", 24)
    (root / "models.py").write_text(_TEXT_MODELS)
    models = [word for name in ("learned", "clean") for word in ("--candidate", f"python:{root / 'models.py'}#{name}")]
    methods = _methods("generate", "permute", "guess")
    probe(root / "run", "--dataset", items, "-n", "24", "--shots", "0", *methods, *models)
    return root / "run"


def test_the_order_of_options_accuses_a_model_without_likelihoods_that_learned_it(text_run: Path) -> None:
    done = viva("court", text_run, "--json")
    assert done.returncode == 0, done.stderr
    [benchmark] = orjson.loads(done.stdout)["benchmarks"]
    said = {
        label.rpartition("#")[2]: {witness["witness"]: witness for witness in ruling["evidence"]}
        for label, ruling in benchmark["candidates"].items()
    }
    assert said["learned"]["option answers"]["p"] < 0.001
    assert said["learned"]["option answers"]["effect"] > 0.5
    assert said["clean"]["option answers"]["p"] > 0.2
    assert "option order" not in said["learned"]


def test_answers_by_order_of_options_are_shown_once_and_forecast(text_run: Path) -> None:
    forecast = _forecast(text_run)
    assert forecast["candidate, permute"].calls == 24 * (1 + PERMUTATIONS)
    assert (forecast["candidate"].calls, forecast["candidate, one by one"].calls) == _calls(text_run)
    for _, page in _pages(text_run):
        names = [name for name, _ in _marks(page)]
        assert names == ["generated", "answers by order of options", "masked choice"]
        marked = [bool(turn.marks) for turn in page.rendered.turns][-(3 + PERMUTATIONS) :]
        assert marked == [True, True, *[False] * PERMUTATIONS, True]
