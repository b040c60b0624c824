"""Adaptive runs: the same items and report whatever happens on the way, when they end, and what they refuse."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import command
import orjson
import pytest
from case_tables import case_table
from exam_banks import make_bank, write
from launched import go
from viva_process import completed, ended, killed, recorded_rows, started

import viva
from viva.data.bank_file import read_bank_file
from viva.engine.backends.registry import BackendPool
from viva.engine.clock import RealClock
from viva.engine.computation import StepExecutor
from viva.engine.errors import ConfigurationError, Rejected, VivaError
from viva.engine.event_loop import LoopYield
from viva.engine.journal import Journal
from viva.engine.journal_reader import History
from viva.engine.run_folder import RunFolder
from viva.engine.runner import Slots
from viva.orchestration.completeness import missing_conversations, recorded_report
from viva.orchestration.control import ControlRequest
from viva.orchestration.control_socket import ask
from viva.orchestration.launch import Launch, SharedResources, new_run, resumed_run
from viva.scenarios.probes.probe import ProbeSettings
from viva.web.view.findings import study_answer
from viva.web.view.index import Indexer, index_file
from viva.web.view.index_figures import IndexAnalysis
from viva.web.view.queries import IndexReader

MODELS = ["simulated:strong?knowledge=0.8", "simulated:weak?knowledge=0.35"]


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A dataset of 80 items, and its bank."""
    return make_bank(tmp_path_factory.mktemp("bank"))


def settings(bank: tuple[Path, Path], **more: Any) -> ProbeSettings:
    source, file = bank
    values = {"candidate": MODELS, "dataset": str(source), "method": ["generate"], "shots": 0, "adaptive": str(file)}
    return ProbeSettings.model_validate(values | {"until": "half_width=8"} | more)


def exam(out: Path, bank: tuple[Path, Path], halt_after: int | None = None, **more: Any) -> Launch:
    launch = new_run("probe", settings(bank, **more), out)
    assert go(launch, halt_after) == ("done" if halt_after is None else "halted")
    return launch


def steps(run: Path) -> dict[str, list[Any]]:
    """The recorded steps of each candidate's exam."""
    own: dict[str, list[Any]] = {}
    with History(run / "journal.sqlite") as history:
        for record in history.control():
            for step in record.get("steps", ()):
                own.setdefault(step.pop("candidate"), []).append(step)
    return own


def report(run: Path) -> bytes:
    return orjson.dumps(recorded_report(RunFolder.open(run)))


# -- the same items, whatever happens ---------------------------------------------------------------------------------


def test_concurrency_changes_neither_items_nor_report(tmp_path: Path, bank: tuple[Path, Path]) -> None:
    runs = [tmp_path / str(concurrency) for concurrency in (1, 16, 256)]
    for run in runs:
        exam(run, bank, concurrency=int(run.name))
    assert steps(runs[0]) == steps(runs[1]) == steps(runs[2])
    assert report(runs[0]) == report(runs[1]) == report(runs[2])
    assert all(20 < sum(len(step.get("items", ())) for step in own) < 80 for own in steps(runs[0]).values())


def test_a_run_that_is_halted_again_and_again_asks_the_same_items(tmp_path: Path, bank: tuple[Path, Path]) -> None:
    calm, run = tmp_path / "calm", tmp_path / "run"
    exam(calm, bank)
    draw = random.Random(5)
    exam(run, bank, halt_after=3)
    halts = 1
    while go(resumed_run(run, changes={"concurrency": draw.choice([1, 7, 200])}), draw.randint(1, 12)) == "halted":
        halts += 1
        assert missing_conversations(RunFolder.open(run)) is not None
    assert halts > 5
    assert steps(run) == steps(calm)
    assert report(run) == report(calm)


def test_a_killed_run_asks_the_same_items(tmp_path: Path, bank: tuple[Path, Path]) -> None:
    source, file = bank
    words = ["run", "probe", "--dataset", source, "--method", "generate", "--shots", "0", "--adaptive", file]
    words += ["--until", "half_width=8", "--json"]
    slow = [word for model in MODELS for word in ("--candidate", f"{model}&latency=0.004")]
    calm = completed(*words, *slow, "--out", tmp_path / "calm")
    process = started(*words, *slow, "--out", tmp_path / "run")
    draw, rows = random.Random(2), 0
    for _ in range(3):
        rows = killed(process, tmp_path / "run", rows + draw.randint(5, 25))
        process = started("resume", tmp_path / "run", "--json", "--concurrency", str(draw.choice([1, 16, 256])))
    code, printed, _ = ended(process)
    assert (code, calm.returncode) == (0, 0)
    assert printed == calm.stdout
    assert steps(tmp_path / "run") == steps(tmp_path / "calm")


def test_runs_that_share_a_slot_ask_the_same_items_as_alone(tmp_path: Path, bank: tuple[Path, Path]) -> None:
    """Each of them is at times without a conversation to begin, while the other one has the slot."""
    exam(tmp_path / "alone", bank, n=30)
    launches = [new_run("probe", settings(bank, n=30), tmp_path / name) for name in ("first", "second")]

    async def both() -> None:
        clock = RealClock()
        async with BackendPool(clock, lambda event: None) as pool, anyio.create_task_group() as group:
            for model in MODELS:
                await pool.open(model)
            shared = SharedResources(pool, Slots(1), LoopYield(), StepExecutor(clock))
            for launch in launches:
                group.start_soon(launch.run, None, shared)

    asyncio.run(both())
    assert steps(tmp_path / "first") == steps(tmp_path / "second") == steps(tmp_path / "alone")
    assert report(tmp_path / "first") == report(tmp_path / "alone")


def test_a_drained_run_is_unfinished_and_gets_no_items_by_hand(tmp_path: Path, bank: tuple[Path, Path]) -> None:
    async def steer() -> None:
        launch = new_run("probe", settings(bank), tmp_path / "run")
        answers: list[str] = []

        async def control() -> None:
            await launch.begun.wait()
            assert launch.control is not None
            with pytest.raises(ConfigurationError, match="adaptive exams choose them"):
                await launch.control.handle(ControlRequest(do="add", n=3))
            answers.append((await launch.control.handle(ControlRequest(do="drain"))).message)

        async with anyio.create_task_group() as group:
            group.start_soon(control)
            outcome = await launch.run()
        assert (outcome.how, len(answers)) == ("drained", 1)

    asyncio.run(steer())
    missing = missing_conversations(RunFolder.open(tmp_path / "run"))
    assert missing is not None
    assert missing.planned == 160
    assert go(resumed_run(tmp_path / "run")) == "done"
    exam(tmp_path / "calm", bank)
    assert report(tmp_path / "run") == report(tmp_path / "calm")


def test_a_finished_run_asks_nothing_more(tmp_path: Path, bank: tuple[Path, Path]) -> None:
    exam(tmp_path / "run", bank)
    before, calls = report(tmp_path / "run"), recorded_rows(tmp_path / "run")
    assert go(resumed_run(tmp_path / "run")) == "done"
    assert recorded_rows(tmp_path / "run") == calls
    assert report(tmp_path / "run") == before
    assert missing_conversations(RunFolder.open(tmp_path / "run")) is None


def test_the_bank_may_vanish_once_the_run_has_begun(tmp_path: Path, bank: tuple[Path, Path]) -> None:
    source, file = bank
    own = shutil.copy(file, tmp_path / "mine.json")
    exam(tmp_path / "run", (source, Path(own)), halt_after=9)
    Path(own).unlink()
    assert go(resumed_run(tmp_path / "run")) == "done"
    exam(tmp_path / "calm", bank)
    assert steps(tmp_path / "run") == steps(tmp_path / "calm")


def test_a_bank_that_was_changed_in_the_folder_is_refused(tmp_path: Path, bank: tuple[Path, Path]) -> None:
    exam(tmp_path / "run", bank, halt_after=9)
    path = tmp_path / "run" / "bank.json"
    data = json.loads(path.read_bytes())
    data["slopes"][3] += 1.0
    path.write_text(json.dumps(data))
    with pytest.raises(ConfigurationError, match="changed since the run began: bank"):
        resumed_run(tmp_path / "run")


# -- steered runs -----------------------------------------------------------------------------------------------------


def _asked(run: Path, process: Any, **request: Any) -> str:
    """The answer of a run in another process, which may be loading still."""
    while True:
        try:
            return str(ask(run, ControlRequest(**request))["message"])
        except ConfigurationError as error:
            if not any(words in str(error) for words in ("not going on", "does not listen")):
                raise
            assert process.poll() is None


def _first_item(run: Path, label: str, waves: int) -> str:
    """The key of a candidate's first item, once so many waves of its exam are recorded."""
    while len(steps(run).get(label, ())) < waves:
        pass
    return f"{label}/{steps(run)[label][0]['items'][0]}"


def _steered(run: Path, bank: tuple[Path, Path], *, is_killed: bool) -> bytes:
    """Run exams whose first conversations are cancelled, one of them for good; what the last process prints."""
    models = [f"{model}&concurrency=8" for model in MODELS]
    launch = new_run("probe", settings(bank, candidate=models, n=30), run)

    async def pause() -> None:
        async with Journal(launch.folder.journal, RealClock()) as journal:
            for label in ("strong", "weak"):
                journal.record_control(0.0, {"do": "pause", "model": label})

    asyncio.run(pause())  # as in an earlier process, before its first call
    process = started("resume", run, "--json")
    asked = partial(_asked, run, process)
    assert "of at most 60 conversations ended" in asked(do="status")
    keys = [_first_item(run, label, 1) for label in ("strong", "weak")]
    asked(do="cancel", keys=keys, reason="wrong items")
    for label in ("strong", "weak"):
        _first_item(run, label, 2)  # they count as asked
    with pytest.raises(ConfigurationError, match="adaptive exams choose them"):
        asked(do="add", n=3)
    asked(do="set", model="weak", concurrency=3, rpm=0)
    assert asked(do="requeue", keys=keys[:1]) == f"{keys[0]} goes on"
    if is_killed:
        killed(process, run, 0)
        process = started("resume", run, "--json")
    for label in ("weak", "strong"):
        _asked(run, process, do="resume", model=label)
    code, printed, _ = ended(process)
    assert code == 3
    [failure] = [result for result in viva.load(run).results() if result.error]
    assert failure.key == keys[1]
    return printed


def test_a_steered_run_that_is_killed_asks_the_items_of_one_that_is_not(
    tmp_path: Path, bank: tuple[Path, Path]
) -> None:
    printed = [_steered(tmp_path / name, bank, is_killed=name == "killed") for name in ("live", "killed")]
    assert printed[0] == printed[1] == completed("report", tmp_path / "live", "--json").stdout
    assert steps(tmp_path / "live") == steps(tmp_path / "killed")
    candidates = json.loads(printed[0])["candidates"]
    assert [own["adaptive"]["without_score"] for own in candidates.values()] == [0, 1]
    before = steps(tmp_path / "live")
    assert completed("resume", tmp_path / "live", "--retry-failed").returncode == 0
    assert steps(tmp_path / "live") == before


# -- failed conversations ---------------------------------------------------------------------------------------------


class Moody(viva.Backend):
    """Knows everything; fails on the questions whose number ends with 3 until it is mended."""

    fallible = True
    label = "moody"

    def __init__(self) -> None:
        self.mended = False

    async def generate(self, request: viva.Request) -> viva.Completion:
        if request.conversation.endswith("3") and not self.mended:
            raise Rejected("out of sorts", model=self.label)
        return viva.Completion("The answer is A.", "stop", 3, 4)


def test_a_failed_conversation_counts_as_asked_and_retrying_it_changes_no_choice(
    tmp_path: Path, bank: tuple[Path, Path]
) -> None:
    model = Moody()
    chosen = settings(bank, candidate=["own:moody"], n=25, until="half_width=1")
    launch = new_run("probe", chosen, tmp_path / "run", backends={"own:moody": model})
    assert go(launch) == "done"
    first = steps(tmp_path / "run")
    figures = recorded_report(launch.folder)["candidates"]["moody"]["adaptive"]
    failed = sum(name.endswith("3") for step in first["moody"] for name in step.get("items", ()))
    assert failed
    assert (figures["asked"], figures["without_score"]) == (25, failed)
    model.mended = True
    assert go(resumed_run(tmp_path / "run", retry_failed=True, backends={"own:moody": model})) == "done"
    assert steps(tmp_path / "run") == first
    figures = recorded_report(launch.folder)["candidates"]["moody"]["adaptive"]
    assert (figures["asked"], figures["without_score"]) == (25, 0)


class Opposite(viva.Backend):
    """Right about the items that a bank calls hard, and about no other."""

    label = "opposite"

    def __init__(self, easy: dict[str, bool]) -> None:
        self.easy = easy

    async def generate(self, request: viva.Request) -> viva.Completion:
        item = request.hint.item
        answer = (item.answer + self.easy[item.id]) % len(item.choices)
        return viva.Completion(f"The answer is {'ABCD'[answer]}.", "stop", 3, 4)


# -- when it ends -----------------------------------------------------------------------------------------------------


def figures_of(out: Path, bank: tuple[Path, Path], **more: Any) -> dict[str, dict[str, Any]]:
    found = recorded_report(exam(out, bank, **more).folder)["candidates"]
    return {label: record["adaptive"] for label, record in found.items()}


def test_the_rules_end_an_exam(tmp_path: Path, bank: tuple[Path, Path]) -> None:
    narrow = figures_of(tmp_path / "narrow", bank, until="half_width=10")
    for own in narrow.values():
        assert own["ended_by"] == "half_width"
        assert own["model_based"]["high"] - own["model_based"]["low"] <= 20.0
    above = figures_of(tmp_path / "above", bank, until="above=60")
    assert above["strong"]["ended_by"] == above["weak"]["ended_by"] == "above"
    assert above["strong"]["model_based"]["low"] > 60.0 > above["weak"]["model_based"]["high"]
    decided = figures_of(tmp_path / "decided", bank, until="decided")
    assert {own["ended_by"] for own in decided.values()} == {"decided"}
    assert decided["strong"]["model_based"]["value"] > decided["weak"]["model_based"]["value"] + 15.0
    few = figures_of(tmp_path / "few", bank, n=12)
    assert {(own["ended_by"], own["asked"]) for own in few.values()} == {("limit", 12)}
    everything = figures_of(tmp_path / "all", bank, until="half_width=0.001")
    assert {(own["ended_by"], own["asked"]) for own in everything.values()} == {("all_items", 80)}
    assert all(own["asked"] >= 5 for rule in (narrow, above, decided) for own in rule.values())


def test_waves_have_the_largest_size_that_was_set(tmp_path: Path, bank: tuple[Path, Path]) -> None:
    exam(tmp_path / "one", bank, wave=1, n=20)
    assert {len(step["items"]) for own in steps(tmp_path / "one").values() for step in own if "items" in step} == {1}


# -- the report -------------------------------------------------------------------------------------------------------


def test_interviews_report_two_figures_and_no_mean_over_chosen_items(tmp_path: Path, bank: tuple[Path, Path]) -> None:
    source, file = bank
    words = ["run", "kieval", "--dataset", source, "--adaptive", file, "-n", "15", "--rounds", "2", "--no-qualify"]
    words += ["--interactor", "simulated:asker", "--evaluator", "simulated:judge"]
    done = command.viva(*words, "--candidate", MODELS[0], "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "model-based" in done.stdout
    assert "assumption-free" in done.stdout
    assert "KIEval  " not in done.stdout
    own = recorded_report(RunFolder.open(tmp_path / "run"))["candidates"]["strong"]
    assert own["adaptive"]["asked"] == 15
    assert own["score"]["mean"] is None
    assert own["accuracy"]["mean"] is None
    refused = {
        "fork": command.viva("run", "--fork", tmp_path / "run", "--judge", "simulated:other", "--out", tmp_path / "f"),
        "score": command.viva("score", tmp_path / "run", "--scorer", "linear"),
        "export": command.viva("export", tmp_path / "run", "--format", "inspect", "--out", tmp_path / "logs"),
    }
    assert {name: done.returncode for name, done in refused.items()} == dict.fromkeys(refused, 2)
    assert "cannot be forked" in refused["fork"].stderr
    assert "scored only as its items were chosen" in refused["score"].stderr
    assert "an adaptive run chose other items" in refused["export"].stderr


def test_a_bank_that_is_wrong_about_a_model_is_named(tmp_path: Path, bank: tuple[Path, Path]) -> None:
    """A bank that calls every item very easy, and says so with confidence, about a model that knows nothing."""
    source, file = bank
    data = read_bank_file(file)
    data.thresholds = [[9.0] for _ in data.items]
    data.slopes = [0.1 for _ in data.items]
    data.calibration.counts, data.calibration.widths = [], []
    wrong = write(tmp_path / "wrong.json", data)
    words = ["run", "probe", "--dataset", source, "--method", "generate", "--shots", "0", "--adaptive", wrong]
    words += ["--candidate", "simulated:lost?knowledge=0", "--until", "half_width=0.02", "-n", "45"]
    done = command.viva(*words, "--out", tmp_path / "run")
    assert "the two estimates disagree" in done.stdout.replace("\n", " ")
    assert "is not calibrated" in done.stdout


def test_a_bank_of_other_difficulties_ends_no_exam_early(tmp_path: Path, bank: tuple[Path, Path]) -> None:
    """The easiest items are called the hardest ones; the model answers as the true difficulties say."""
    source, file = bank
    data = read_bank_file(file)
    ranks = [number % 8 - 3.5 for number in range(len(data.items))]
    data.slopes, data.thresholds = [2.0] * len(ranks), [[2.0 * rank] for rank in ranks]
    easy = {name: rank > 0 for name, rank in zip(data.items, ranks, strict=True)}
    model = Opposite(easy)
    wrong = write(tmp_path / "wrong.json", data)
    chosen = settings((source, wrong), candidate=["own:opposite"], n=45, until="half_width=10")
    launch = new_run("probe", chosen, tmp_path / "run", backends={"own:opposite": model})
    assert go(launch) == "done"
    own = recorded_report(launch.folder)["candidates"]["opposite"]["adaptive"]
    assert (own["ended_by"], own["asked"], own["implausible"]) == ("limit", 45, True)
    assert own["person_fit"] < -2.33
    printed = " ".join(command.viva("report", tmp_path / "run").stdout.split())
    assert "spread over 2 subjects" in printed
    assert "opposite: its answers are implausible under the bank: person fit -" in printed or own["disagree"]


def test_a_dry_run_has_the_adaptive_exam_beside_the_full_one(tmp_path: Path, bank: tuple[Path, Path]) -> None:
    source, file = bank
    words = ["run", "probe", "--dataset", source, "--method", "generate", "--shots", "0", "--adaptive", file]
    words += ["--until", "half_width=8", "--candidate", f"{MODELS[0]}&price_in=2&price_out=8", "--dry-run"]
    words += ["--candidate", MODELS[1], "--out", tmp_path / "run"]
    done = command.viva(*words, "--json")
    assert (done.returncode, (tmp_path / "run").exists()) == (0, False)
    assert done.stdout == command.viva(*words, "--json").stdout
    record = json.loads(done.stdout)
    adaptive, full = record["adaptive"], record["models"][f"{MODELS[0]}&price_in=2&price_out=8"]
    own = adaptive["models"][f"{MODELS[0]}&price_in=2&price_out=8"]
    assert (record["conversations"], full["calls"], adaptive["limit"]) == (160, 80, 80)
    for end in ("low", "median", "high"):
        assert own["calls"][end] == adaptive["items"][end] < 80
        for figure in ("prompt_tokens", "completion_tokens", "cost"):
            assert own[figure][end] == pytest.approx(full[figure] * adaptive["items"][end] / 80, rel=0.01)
    exam(tmp_path / "run", bank)
    for candidate in recorded_report(RunFolder.open(tmp_path / "run"))["candidates"].values():
        assert adaptive["items"]["low"] <= candidate["adaptive"]["asked"] <= adaptive["items"]["high"]
    text = " ".join(command.viva(*words).stdout.split())
    items = adaptive["items"]
    assert f"each candidate 80 {items['median']} ({items['low']} to {items['high']})" in text


def test_a_dry_run_of_a_full_run_prints_upper_bounds(tmp_path: Path, bank: tuple[Path, Path]) -> None:
    words = [
        "run",
        "kieval",
        "--dataset",
        bank[0],
        "--rounds",
        "2",
        "-n",
        "5",
        "--no-qualify",
        "--candidate",
        MODELS[0],
    ]
    words += ["--interactor", "simulated:asker", "--evaluator", "openai:judge?price_in=1&price_out=2", "--dry-run"]
    record = json.loads(command.viva(*words, "--json").stdout)
    assert record["conversations"] == 5
    assert "adaptive" not in record
    assert record["models"]["openai:judge?price_in=1&price_out=2"]["cost"] > 0
    assert record["models"][MODELS[0]]["calls"] == 5 * 3, "an answer, and one in each round"
    page = command.viva(*words, "--html", tmp_path / "page.html")
    assert (page.returncode, (tmp_path / "page.html").exists()) == (2, False)


def test_the_bank_of_a_run_serves_an_exam_of_another_model(tmp_path: Path, bank: tuple[Path, Path]) -> None:
    ten = [f"simulated:lab{number}?knowledge={number / 10}" for number in range(10)]
    new_run("probe", settings(bank, adaptive=None, until=None, candidate=ten), tmp_path / "full")
    assert go(resumed_run(tmp_path / "full")) == "done"
    fitted = command.viva("bank", "fit", tmp_path / "full", "--out", tmp_path / "bank.json")
    assert fitted.returncode == 0, fitted.stderr
    own = figures_of(tmp_path / "exam", (bank[0], tmp_path / "bank.json"), n=30)
    assert own["strong"]["model_based"]["value"] > own["weak"]["model_based"]["value"] + 15.0


# -- what is refused --------------------------------------------------------------------------------------------------


def _other_dataset(folder: Path, file: Path) -> dict[str, Any]:
    data = read_bank_file(file)
    data.dataset = "0123456789abcdef"
    return {"adaptive": str(write(folder / "other.json", data))}


def _unknown_item(folder: Path, file: Path) -> dict[str, Any]:
    data = read_bank_file(file)
    data.dataset, data.items[0] = None, "quiz-1000"
    return {"adaptive": str(write(folder / "items.json", data))}


def _text(folder: Path, file: Path, text: str) -> dict[str, Any]:
    (folder / "text.json").write_text(text)
    return {"adaptive": str(folder / "text.json")}


def _only(folder: Path, file: Path, **more: Any) -> dict[str, Any]:
    return more


REFUSED = {
    "another dataset": (_other_dataset, "is a bank of another dataset: .* the digest 0123456789abcdef.*quiz"),
    "an unknown item": (_unknown_item, "1 of the 80 items of .* are not in quiz, such as 'quiz-1000'"),
    "no JSON": (partial(_text, text="[" * 100_000), "not valid JSON"),
    "another JSON": (partial(_text, text='{"bank": 7}'), "no item bank"),
    "a missing file": (partial(_only, adaptive="missing.json"), "missing.json"),
    "two methods": (partial(_only, method=["letter", "generate"]), "scores one method"),
    "a second set": (partial(_only, against="quiz.jsonl"), "against: an adaptive run chooses"),
    "a strange rule": (partial(_only, until="soon"), "half_width=3, decided or above=60"),
    "a rule of 0 points": (partial(_only, until={"half_width": 0}), "between 0 and 100"),
    "a rule without an exam": (partial(_only, adaptive=None), "add --adaptive BANK"),
}


@case_table("change, message", REFUSED.values(), ids=REFUSED)
def test_what_fits_no_exam_is_refused_before_the_run(
    tmp_path: Path, bank: tuple[Path, Path], change: Any, message: str
) -> None:
    with pytest.raises((VivaError, ValueError), match=message):
        new_run("probe", settings(bank, **change(tmp_path, bank[1])), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# -- in the viewer and in studies -------------------------------------------------------------------------------------


def test_an_overview_shows_estimates_and_never_means_over_chosen_items(tmp_path: Path, bank: tuple[Path, Path]) -> None:
    exam(tmp_path / "run", bank)
    candidates = recorded_report(RunFolder.open(tmp_path / "run"))["candidates"]
    answer = study_answer([tmp_path / "run"])
    [finding] = answer.findings
    exams = {label: record["adaptive"] for label, record in candidates.items()}
    sound = not any(own["disagree"] or own["implausible"] for own in exams.values())
    kind = "model_based" if sound else "assumption_free"
    assert {entry["candidate"]: (entry["value"], entry["low"], entry["high"]) for entry in finding["standings"]} == {
        label: tuple(own[kind][end] for end in ("value", "low", "high")) for label, own in exams.items()
    }
    assert answer.ended == sum(own["asked"] for own in exams.values())
    file = index_file(tmp_path, tmp_path / "index")
    Indexer(tmp_path, file).catch_up()
    reader = IndexReader(file)
    try:
        figures = IndexAnalysis(reader).figures()
        assert figures.means == []
        assert [histories for histories in figures.histories.values() if histories] == []
    finally:
        reader.close()
