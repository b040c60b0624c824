"""`viva run kieval --as-published`: it sends what the authors' code sends, replaces items, and shows their figures."""

from __future__ import annotations

import json
import random
import sys
import threading
import types
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import viva
from published_calls import DATA, EXAMPLES, ITEMS, facts_of_calls, scripted_answer

from viva.data.dataset import open_dataset
from viva.engine.backends import registry
from viva.engine.backends.base import Backend, ModelSpec
from viva.engine.backends.simulated import SimulatedBackend
from viva.engine.clock import Clock, VirtualClock
from viva.engine.errors import ConfigurationError
from viva.engine.journal_reader import History
from viva.engine.messages import Completion, Request
from viva.engine.run_folder import RunFolder
from viva.orchestration.completeness import missing_conversations, planned_conversations, recorded_report
from viva.orchestration.launch import forked_run, new_run, resumed_run
from viva.scenarios.kieval.kieval_settings import PUBLISHED, KievalSettings
from viva.scenarios.kieval.pack_templates import TEMPLATES
from viva.scenarios.kieval.published import published_choice, published_examples, published_figures
from viva.scenarios.kieval.scenario import SCENARIO
from viva.scenarios.kieval.score import Interview
from viva.scenarios.kieval.verdicts import STOP_REASONS

AUTHORS: dict[str, Any] = DATA["authors"]
INTERVIEWED = [index for index, interview in AUTHORS["interviews"].items() if len(interview["order"]) > 1]
SIMULATED = {"candidate": ["simulated:c"], "interactor": "simulated:i", "evaluator": "simulated:e"}


def write_arc(path: Path, items: list[dict[str, Any]]) -> Path:
    """Write items as ARC publishes its own."""
    letters = "ABCDE"
    rows = [
        {
            "id": item["id"],
            "question": item["question"],
            "choices": {"text": item["choices"], "label": list(letters[: len(item["choices"])])},
            "answerKey": letters[item["answer"]],
        }
        for item in items
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


@pytest.fixture
def benchmark(tmp_path: Path) -> list[str | Path]:
    """The options of a benchmark with the items of the frozen facts, and of the authors' list of validated items."""
    valid = [id_ for id_, item in zip(AUTHORS["ids"], ITEMS, strict=True) if not item.get("invalid")]
    invalid = [id_ for id_, item in zip(AUTHORS["ids"], ITEMS, strict=True) if item.get("invalid")]
    ids = tmp_path / "validated.json"
    ids.write_text(json.dumps({"valid_uuids": valid, "invalid_uuids": invalid}), "utf-8")
    test = write_arc(tmp_path / "ARC-Challenge" / "test.jsonl", ITEMS)
    train = write_arc(tmp_path / "ARC-Challenge" / "train.jsonl", EXAMPLES)
    return ["--dataset", f"arc:{test}", "--shots-from", f"arc:{train}", "--ids", ids]


@pytest.fixture
def endpoint() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A chat endpoint that plays all roles from the script; its model name, and the bodies of its requests."""
    bodies: list[dict[str, Any]] = []

    class Chat(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            bodies.append(body)
            message = {"role": "assistant", "content": scripted_answer(body["messages"])}
            usage = {"prompt_tokens": 1, "completion_tokens": 1}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            data = json.dumps({"choices": [choice], "usage": usage}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Chat) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"openai:http://127.0.0.1:{server.server_address[1]}/v1#m", bodies
        server.shutdown()


def test_it_sends_what_the_authors_code_sends(
    tmp_path: Path, benchmark: list[str | Path], endpoint: tuple[str, list[dict[str, Any]]]
) -> None:
    model, bodies = endpoint
    run = tmp_path / "run"
    models = [word for role in ("candidate", "interactor", "evaluator") for word in (f"--{role}", model)]
    done = viva("run", "kieval", "--as-published", *benchmark, "-n", "10", *models, "--json", "--out", run)
    assert done.returncode == 0, done.stderr
    ours = facts_of_calls([(body["messages"], {name: body[name] for name in _SAMPLING}) for body in bodies])
    # One item of ours at a time, all at once of theirs: only the order within an item is the protocol's.
    for index in INTERVIEWED:
        assert ours["interviews"][index] == AUTHORS["interviews"][index], f"item {index}"
    # They ask for every first answer of the benchmark; viva for those it needs.
    asked_only = {index: one for index, one in ours["interviews"].items() if index not in INTERVIEWED}
    assert sorted(asked_only) == [str(n) for n, item in enumerate(ITEMS) if item.get("dropped")]
    assert all(one == AUTHORS["interviews"][index] for index, one in asked_only.items())
    for role, options in ours["sampling"].items():
        assert options == [{name: one[name] for name in _SAMPLING} for one in AUTHORS["sampling"][role]], role
    # Beyond that, their requests have n (1) and ours top_p (1), which change nothing; neither has a stop or a schema.
    assert {name for body in bodies for name in body} == {"model", "messages", "top_p", *_SAMPLING}
    assert {body["top_p"] for body in bodies} == {1.0}
    assert [len(AUTHORS["sampling"][role]) for role in ours["sampling"]] == [1, 1, 1, 1]

    report = json.loads(done.stdout)
    one = report["candidates"]["m"]
    assert one["score"]["mean"] == pytest.approx(AUTHORS["score"], abs=1e-6)
    assert (one["scored"], one["interviews"], one["unanswered"]) == (10, 12, 2)
    settings = RunFolder.open(run).manifest["settings"]
    assert {name: settings[name] for name in PUBLISHED} == PUBLISHED
    assert settings["n"] == 10
    # The paper's figures, apart from those of the user's model.
    assert report["published"]["table"] == 14
    assert report["published"]["models"]["LLaMA2 7B"] == {
        "first answer": 55.7, "KIEval": 74.4, "rounds": 4.44, "accuracy": 70.6, "logic": 71.6, "relevance": 90.4,
        "coherence": 77.9, "conciseness": 71.7,
    }  # fmt: skip
    shown = viva("report", run).stdout
    own, published = shown.index("set up as published"), shown.index("table 14, ARC-Challenge")
    assert own < shown.index("m ", own) < published < shown.index("LLaMA2 7B")


_SAMPLING = ("max_tokens", "temperature", "seed")


def settings(tmp_path: Path, **changes: Any) -> KievalSettings:
    items = [*ITEMS, *({**ITEMS[0], "id": f"more-{n}", "question": f"Number {n}?"} for n in range(12))]
    sources = {
        "dataset": f"arc:{write_arc(tmp_path / 'test.jsonl', items)}",
        "shots_from": f"arc:{write_arc(tmp_path / 'train.jsonl', EXAMPLES)}",
    }
    return KievalSettings(**{**SIMULATED, **sources, "as_published": True, "n": 6, **changes})


def interviewed(run: RunFolder, label: str) -> tuple[list[str], list[str]]:
    """Return the questions of a candidate's interviews and of its dropped items, in the order of the dataset."""
    kept: list[str] = []
    dropped: list[str] = []
    with History(run.journal) as history:
        for ended in history.ended():
            interview = Interview.from_record(ended.result)
            if interview.candidate == label:
                (kept if interview.rounds else dropped).append(interview.item)
    order = {item.id: at for at, item in enumerate(open_dataset(run.manifest["settings"]["dataset"]))}
    return [*sorted(kept, key=order.__getitem__)], [*sorted(dropped, key=order.__getitem__)]


class Silent(SimulatedBackend):
    """A simulated model that names no choice of about every `share`-th item, by the question's characters."""

    share = 1

    async def generate(self, request: Request) -> Completion:
        completion = await super().generate(request)
        if request.messages[0].role != "system":
            question = request.messages[0].content.rpartition("Question: ")[2].partition("\n")[0]
            completion.text = "B" if speaks(question, self.share) else "no idea"
        return completion


def speaks(question: str, share: int) -> bool:
    return sum(map(ord, question)) % share != 0


def build(spec: ModelSpec, clock: Clock) -> Backend:
    """The factory the registry asks for: `silent:3` is silent about every third item."""
    backend = Silent(clock, knowledge=1.0, noise=0.0)
    backend.share = int(spec.where)
    return backend


@pytest.fixture(autouse=True)
def _silent_models(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("silent_kind")
    module.build = build  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "silent_kind", module)
    monkeypatch.setitem(registry.KINDS, "silent", "silent_kind")


@pytest.mark.parametrize("concurrency", [1, 40])
def test_each_candidate_has_the_first_n_items_of_the_file_that_it_answers(tmp_path: Path, concurrency: int) -> None:
    candidates = ["silent:2", "silent:3"]
    launch = new_run("kieval", settings(tmp_path, candidate=candidates, concurrency=concurrency), tmp_path / "run",
                     VirtualClock())  # fmt: skip
    assert launch.clock.run(launch.run).how == "done"
    run = RunFolder.open(tmp_path / "run")
    items = list(open_dataset(run.manifest["settings"]["dataset"]))
    for label, share in (("2", 2), ("3", 3)):
        answered = [item.id for item in items if speaks(item.question, share)][:6]
        before = [item.id for item in items[: [item.id for item in items].index(answered[-1])]]
        assert interviewed(run, label) == (answered, [id_ for id_ in before if id_ not in answered])
        assert planned_conversations(run, label) == len(before) + 1
    assert missing_conversations(run) is None
    assert "unfinished" not in recorded_report(run)


def test_an_interrupted_run_goes_on_to_the_same_items(tmp_path: Path) -> None:
    candidates = ["silent:2", "silent:3"]
    whole = new_run("kieval", settings(tmp_path, candidate=candidates), tmp_path / "whole", VirtualClock())
    whole.clock.run(whole.run)
    part = new_run("kieval", settings(tmp_path, candidate=candidates, max_calls=3, concurrency=2), tmp_path / "part",
                   VirtualClock())  # fmt: skip
    part.clock.run(part.run)
    for calls in (9, 20, 21, 60, None):  # each resume begins its budget anew
        assert missing_conversations(RunFolder.open(tmp_path / "part")) is not None
        again = resumed_run(tmp_path / "part", VirtualClock(), changes={"max_calls": calls})
        again.clock.run(again.run)
    for label in ("2", "3"):
        one, other = (interviewed(RunFolder.open(tmp_path / name), label) for name in ("whole", "part"))
        assert one == other
    reports = [recorded_report(RunFolder.open(tmp_path / name)) for name in ("whole", "part")]
    assert reports[0] == reports[1]


def test_a_fork_has_the_items_of_its_source_and_only_another_judge(tmp_path: Path) -> None:
    launch = new_run("kieval", settings(tmp_path, candidate=["silent:2"]), tmp_path / "run", VirtualClock())
    launch.clock.run(launch.run)
    fork = forked_run(tmp_path / "run", tmp_path / "fork", VirtualClock(), changes={"evaluator": "simulated:other"})
    assert fork.clock.run(fork.run).how == "done"
    assert interviewed(RunFolder.open(tmp_path / "fork"), "2") == interviewed(RunFolder.open(tmp_path / "run"), "2")
    changes = {"evaluator": "simulated:other", "scorer": "corrected"}
    with pytest.raises(ConfigurationError, match="as_published sets scorer to official, found corrected"):
        forked_run(tmp_path / "run", tmp_path / "other", VirtualClock(), changes=changes)


def test_a_run_whose_dataset_has_too_few_answered_items_ends_with_fewer(tmp_path: Path) -> None:
    launch = new_run("kieval", settings(tmp_path, candidate=["silent:1"]), tmp_path / "run", VirtualClock())
    assert launch.clock.run(launch.run).how == "done"
    run = RunFolder.open(tmp_path / "run")
    assert interviewed(run, "1")[0] == []
    assert missing_conversations(run) is None
    report = recorded_report(run)["candidates"]["1"]
    assert (report["unanswered"], report["scored"]) == (len(ITEMS) + 12, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"first_answer": "text"}, "as_published sets first_answer to published, found text"),
        ({"rounds": 3}, "as_published sets rounds to 5, found 3"),
        ({"early_stop": False}, "as_published sets early_stop to on, found off"),
        ({"temperature": 0.7}, "as_published sets temperature to 0.0, found 0.7"),
        ({"detectors": ["empty"]}, "as_published sets detectors to none"),
        ({"pack": "kieval"}, "as_published sets pack to kieval-as-published, found kieval"),
        ({"as_published": False, "in_order": True, "shuffled": True, "shots_from": None}, "in_order: shuffled asks"),
        ({"as_published": False, "replace_unanswered": True, "shots_from": None}, "replace_unanswered: needs in_order"),
    ],
)
def test_options_that_contradict_it_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settings(tmp_path, **changes)


def test_it_says_on_the_command_line_which_option_contradicts_it(benchmark: list[str | Path]) -> None:
    models = ["--candidate", "simulated:c", "--interactor", "simulated:i", "--evaluator", "simulated:e"]
    done = viva("run", "kieval", "--as-published", "--scorer", "corrected", *benchmark, *models)
    assert done.returncode == 2
    assert "as_published sets scorer to official, found corrected; leave one of the two out" in done.stderr


def test_given_values_that_agree_with_it_and_other_numbers_of_items_are_accepted(tmp_path: Path) -> None:
    assert settings(tmp_path, n=None).n == 200
    agreed = settings(tmp_path, rounds=5, temperature=0, first_answer="published")
    assert agreed == settings(tmp_path)
    assert KievalSettings(**agreed.model_dump()) == agreed  # as a manifest or a sweep file has them


def test_it_is_not_divided_into_shards_and_gets_no_further_items(tmp_path: Path) -> None:
    from viva.orchestration.prepared_run import PreparedRun, Shard

    with pytest.raises(ConfigurationError, match="cannot be divided into shards"):
        PreparedRun(SCENARIO, settings(tmp_path), Shard(1, 2))
    with pytest.raises(ConfigurationError, match="replaces dropped items by later ones"):
        PreparedRun(SCENARIO, settings(tmp_path)).add_tasks(2)


def test_without_a_list_of_validated_items_it_says_so(tmp_path: Path) -> None:
    launch = new_run("kieval", settings(tmp_path), tmp_path / "run", VirtualClock())
    assert any("as_published without ids" in note for note in launch.prepared.notes)


# What the parser of the authors' code makes of the text that their server returns: it ends with the first letter.
@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("B", 1), (" C. Mercury", 2), ("The answer is D", 3), ("I am not sure.", None), ("", None), ("e", None),
        ("D or A", 3), ("Not A but B", 0), ("Comparing, I say D", 2), ("E", None), ("(B)", 1), ("答案是C。", 2),
    ],
)  # fmt: skip
def test_the_first_letter_of_a_choice_that_ends_a_word_ends_the_answer(text: str, choice: int | None) -> None:
    assert published_choice(text, 4) == choice


def test_the_examples_are_those_of_the_authors_shuffle(tmp_path: Path) -> None:
    rows = [{**EXAMPLES[0], "id": f"row-{n}", "question": f"Row {n}?"} for n in range(57)]
    source = open_dataset(f"arc:{write_arc(tmp_path / 'train.jsonl', rows)}")
    order = list(range(57))
    random.Random(2).shuffle(order)
    assert [item.question for item in published_examples(source)] == [f"Row {n}?" for n in order[:5]]
    with pytest.raises(ConfigurationError, match="5 requested, few has 3 items"):
        published_examples(open_dataset(f"arc:{write_arc(tmp_path / 'few.jsonl', rows[:3])}"))


@pytest.mark.parametrize(
    ("dataset", "table"),
    [
        ({"name": "ARC-Easy-test"}, 13), ({"name": "arc_challenge-test", "benchmark": "arc_challenge"}, 14),
        ({"name": "mmlu-test", "benchmark": "mmlu"}, 15), ({"name": "hellaswag-validation"}, 16),
        ({"name": "ceval-val", "benchmark": "ceval"}, 17), ({"name": "mmlu_pro-test", "benchmark": "mmlu_pro"}, None),
        ({"name": "mmlu-astronomy-test"}, None), ({"name": "science"}, None),
    ],
)  # fmt: skip
def test_the_papers_figures_are_those_of_the_runs_benchmark(dataset: dict[str, str], table: int | None) -> None:
    figures = published_figures(dataset)
    assert (None if figures is None else figures["table"]) == table


def test_every_table_has_every_model_and_overall_scores_within_those_of_the_aspects() -> None:
    for name in ("arc_easy", "arc_challenge", "mmlu", "hellaswag", "ceval"):
        models = (published_figures({"name": name, "benchmark": name}) or {})["models"]
        assert list(models) == ["GPT-3.5", "LLaMA2 70B", "LLaMA2 13B", "LLaMA2 7B", "Mistral 7B", "Yi 6B", "MPT 7B"]
        for one in models.values():
            aspects = [one[aspect] for aspect in ("accuracy", "logic", "relevance", "coherence", "conciseness")]
            assert min(filter(None, aspects)) <= one["KIEval"] <= max(filter(None, aspects))
            assert 3 < one["rounds"] <= 5


def test_a_sweep_runs_its_interviews_as_published(tmp_path: Path, benchmark: list[str | Path]) -> None:
    words = dict(zip(benchmark[::2], map(str, benchmark[1::2]), strict=True))
    (tmp_path / "sweep.yaml").write_text(
        yaml.safe_dump(
            {
                "candidates": ["simulated:a", "simulated:b?knowledge=0.2"],
                "datasets": [words["--dataset"]],
                "interviews": {
                    "as_published": True, "n": 3, "ids": words["--ids"], "shots_from": words["--shots-from"],
                    "interactor": "simulated:i", "evaluator": "simulated:e",
                },
            }
        ),
        "utf-8",
    )  # fmt: skip
    done = viva("sweep", tmp_path / "sweep.yaml", "--out", tmp_path / "sweep")
    assert done.returncode == 0, done.stderr
    runs = [RunFolder.open(path.parent) for path in sorted((tmp_path / "sweep").rglob("manifest.json"))]
    assert len(runs) == 2
    for run in runs:
        assert run.manifest["settings"]["first_answer"] == "published"
        assert len(interviewed(run, next(iter(run.manifest["models"]["candidate"])))[0]) == 3


@pytest.mark.parametrize("pack", ["kieval", "kieval-informed", "kieval-as-published"])
def test_the_stop_rule_names_cases_and_no_further_condition(pack: str) -> None:
    system = " ".join(TEMPLATES.open(pack).render("evaluator.system").split())
    rule = system[system.index("Set stop_conversation") :].partition(". ")[0]
    assert all(reason in rule for reason in STOP_REASONS)
    assert "only" not in rule
