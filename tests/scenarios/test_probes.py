"""Probes through the ``viva`` command: accuracies, detectors, and the run store."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import command
import orjson
import pytest
from case_tables import case_table
from probing import ITEMS, make_items, probe, recorded
from viva_process import completed, ended, started

from viva.engine.journal_reader import History

if TYPE_CHECKING:
    from tests.servers.process import Server

Chaos = Callable[[dict[str, Any]], "Server"]


# -- accuracy ---------------------------------------------------------------------------------------------------------


def test_accuracies_are_those_of_the_recorded_likelihoods(tmp_path: Path) -> None:
    options = [arg for method in ("letter", "text", "generate", "loss") for arg in ("--method", method)]
    models = ["--candidate", "simulated:expert?knowledge=1", "--candidate", "simulated:novice?knowledge=0"]
    report = probe(tmp_path / "run", "--dataset", ITEMS, *models, *options, "--shots", "0")
    known = {name: one["accuracy"] for name, one in report["candidates"].items()}
    assert known["expert"]["generate"]["value"] == 100
    for method in ("letter", "text", "text_normalised"):
        assert known["expert"][method]["value"] > 80
        assert 5 < known["novice"][method]["value"] < 50

    right = {name: dict.fromkeys(("letter", "text", "text_normalised"), 0) for name in known}
    with History(tmp_path / "run" / "journal.sqlite") as history:
        for number in history.numbers():
            key, item = history.started(number) or ("", {})
            letters, texts, loss = [call.completion.likelihoods for call in history.calls(number) if call.ordinal != 2]
            assert len(letters or []) == len(texts or []) == len(item["choices"])
            assert len(loss or []) == 1
            sums = [math.fsum(one.logprobs) for one in letters or []]
            whole = [math.fsum(one.logprobs) for one in texts or []]
            per_character = [value / len(choice) for value, choice in zip(whole, item["choices"], strict=True)]
            for method, values in (("letter", sums), ("text", whole), ("text_normalised", per_character)):
                right[key.split("/")[0]][method] += values.index(max(values)) == item["answer"]
    for name, counts in right.items():
        for method, count in counts.items():
            told = known[name][method]
            assert (told["right"], told["value"]) == (count, 100 * count / 40)
            assert told["low"] <= told["value"] <= told["high"]


def test_the_tables_say_what_the_json_says(tmp_path: Path) -> None:
    models = ["--candidate", "simulated:a?knowledge=0.8", "--candidate", "simulated:b?knowledge=0.3"]
    options = ["--method", "letter", "--method", "generate", "--method", "loss", "--shots", "0", "-n", "12"]
    done = completed("run", "probe", "--dataset", ITEMS, *models, *options, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr.decode()
    report = orjson.loads(completed("report", tmp_path / "run", "--json").stdout)
    assert done.stdout.decode().startswith("Accuracy on science, 0 shots, seed 7, reproducible transcripts")
    for name in ("a", "b"):
        lines = [line for line in done.stdout.decode().splitlines() if line.startswith(f"  {name} ")]
        one = report["candidates"][name]
        letter, generated = one["accuracy"]["letter"], one["accuracy"]["generate"]
        shown = [f"{told['value']:.1f} ({told['low']:.1f} to {told['high']:.1f})" for told in (letter, generated)]
        assert lines[0].split() == [name, "12", *" ".join(shown).split(), "0", "0"]
        assert lines[1].split() == [name, f"{one['loss']['mean']:.3f}", f"{one['loss']['se']:.3f}"]


def test_unanswered_items_are_neither_right_nor_wrong(chaos: Chaos, tmp_path: Path) -> None:
    answers = ["A", "I cannot tell.", "B or C", "The answer is C."]  # in order of arrival; all have a C
    server = chaos({"cycle": [{"do": "ok", "say": text} for text in answers]})
    model = server.model("m", label="m")
    report = probe(
        tmp_path / "run", "--dataset", ITEMS, "--candidate", model, "--method", "generate", "--shots", "0", "-n", "32"
    )
    told = report["candidates"]["m"]["accuracy"]["generate"]
    results = [result["generate"] for result in recorded(tmp_path / "run").values()]
    # About half of them: where a broken connection is tried again, the cycle moves on.
    assert 8 < told["unanswered"] == sum(result["choice"] is None for result in results) < 24
    assert told["right"] == sum(result["right"] for result in results) <= 32 - told["unanswered"]
    assert told["value"] == 100 * told["right"] / 32
    header, row = (
        line
        for line in completed("report", tmp_path / "run").stdout.decode().splitlines()
        if line[:3] in ("  c", "  m")
    )
    assert row.split()[-2:] == [str(told["unanswered"]), "0"]
    assert header.split()[-2:] == ["unanswered", "failed"]


def test_an_answer_may_open_with_a_blank_line_and_ends_at_the_next(chaos: Chaos, tmp_path: Path) -> None:
    said = {"do": "ok", "say": "\n\n A \n\nQuestion: and the next?\nAnswer: B"}
    model = chaos({"default": said}).model("m", label="m")
    options = ["--method", "generate", "--shots", "0", "-n", "4"]
    told = probe(tmp_path / "run", "--dataset", ITEMS, "--candidate", model, *options)["candidates"]["m"]
    assert told["accuracy"]["generate"]["unanswered"] == 0
    assert {result["generate"]["choice"] for result in recorded(tmp_path / "run").values()} == {0}


def test_a_conversation_that_its_budget_stopped_counts_as_far_as_it_came(tmp_path: Path) -> None:
    options = ["--method", "letter", "--method", "generate", "--shots", "0", "-n", "6", "--conversation-calls", "1"]
    one = probe(tmp_path / "run", "--dataset", ITEMS, "--candidate", "simulated:c", *options)["candidates"]["c"]
    assert (one["n"], one["stopped"], one["failed"]) == (6, {"budget": 6}, 0)
    assert set(one["accuracy"]) == {"letter"}


# -- detectors --------------------------------------------------------------------------------------------------------


def test_a_memoriser_parts_the_sets_and_a_clean_model_does_not(tmp_path: Path) -> None:
    seen, other = make_items(tmp_path / "seen.jsonl", 60, seed=1), make_items(tmp_path / "other.jsonl", 50, seed=2)
    models = ["--candidate", "simulated:memoriser?memorisation=1&knowledge=0", "--candidate", "simulated:clean"]
    report = probe(tmp_path / "run", "--dataset", seen, "--against", other, *models, "--method", "loss")
    memoriser, clean = (report["candidates"][name] for name in ("memoriser", "clean"))
    assert (memoriser["loss"]["n"], memoriser["loss_against"]["n"]) == (60, 50)
    gap = memoriser["loss"]["mean"] - memoriser["loss_against"]["mean"]
    assert memoriser["loss_gap"]["value"] == pytest.approx(gap, abs=2e-6)
    assert memoriser["loss_gap"]["high"] < -1
    assert clean["loss_gap"]["low"] < 0 < clean["loss_gap"]["high"]
    assert {"loss", "perplexity", "zlib_ratio", "min_k_5", "min_k_60"} <= memoriser["detectors"].keys()
    for name in ("loss", "perplexity", "min_k_20"):
        assert memoriser["detectors"][name]["value"] > 0.85
        assert memoriser["detectors"][name]["tpr_at_5_fpr"] > 0.5
        assert 0.35 < clean["detectors"][name]["value"] < 0.65

    # The same two files, named the other way round: the gap keeps its sign, for it is that of members less others.
    swapped = probe(
        tmp_path / "swapped", "--dataset", other, "--against", seen, *models, "--method", "loss", "--members", "against"
    )
    again = swapped["candidates"]["memoriser"]
    assert again["loss_gap"] == memoriser["loss_gap"]
    assert again["detectors"]["loss"]["value"] == memoriser["detectors"]["loss"]["value"]

    tables = completed("report", tmp_path / "run").stdout.decode()
    assert "gap, members vs. non-members" in tables
    assert "AUC, members vs. non-members" in tables


def test_the_second_set_is_read_for_its_loss_alone(tmp_path: Path) -> None:
    other = make_items(tmp_path / "other.jsonl", 30)
    options = ["--dataset", ITEMS, "-n", "10", "--against", other, "--against-n", "5", "--shots", "0"]
    report = probe(
        tmp_path / "run", *options, "--method", "letter", "--method", "loss", "--candidate", "simulated:c?price_in=1"
    )
    one = report["candidates"]["c"]
    assert (one["n"], one["accuracy"]["letter"]["right"] <= 10, one["loss"]["n"], one["loss_against"]["n"]) == (
        *(10, True),
        *(10, 5),
    )
    ended = recorded(tmp_path / "run")
    second = {key for key in ended if key.startswith("c/against/other-")}
    assert len(second) == 5
    assert {tuple(sorted(ended[key])) for key in second} == {("candidate", "item", "second", "signals", "usage")}


# -- the run store ----------------------------------------------------------------------------------------------------


def _requests(run: Path) -> list[int]:
    """How many requests each recorded call took: an option each, where options were read."""
    with History(run / "journal.sqlite") as history:
        return [len(c.completion.likelihoods or [0]) for n in history.numbers() for c in history.calls(n)]


def test_killed_and_resumed_the_report_is_the_same(chaos: Chaos, tmp_path: Path) -> None:
    make_items(tmp_path / "quiz_test.jsonl", 20, "law art", seed=1)
    make_items(tmp_path / "quiz_dev.jsonl", 8, "law art", seed=2)
    server = chaos({"default": {"do": "slow", "delay": 0.01}})
    options = ["--dataset", tmp_path / "quiz_test.jsonl", "--against", tmp_path / "quiz_dev.jsonl", "--shots", "2"]
    options += [arg for method in ("letter", "text", "loss", "generate") for arg in ("--method", method)]
    arguments = ["run", "probe", *options, "--candidate", server.model("m"), "--concurrency", "4", "--json", "--out"]
    whole = completed(*arguments, tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr.decode()
    requests = len(server.log())
    assert requests == sum(_requests(tmp_path / "whole")) == 20 * (4 + 4 + 1 + 1) + 8

    run = tmp_path / "killed"
    command: list[str | Path] = [*arguments, run]
    for moment in (30, 90):
        before = len(server.log())
        process = started(*command)
        server.log(requests=before + moment)
        process.kill()
        ended(process)
        command = ["resume", run, "--json"]
    recorded, before = sum(_requests(run)), len(server.log())
    assert 0 < recorded < requests
    last = completed(*command)
    assert (last.returncode, last.stdout) == (0, whole.stdout), last.stderr.decode()
    assert len(server.log()) - before == requests - recorded, "a recorded call was made again"
    shown = [completed("show", folder, "--json").stdout for folder in (run, tmp_path / "whole")]
    assert shown[0] == shown[1]
    assert completed("resume", run, "--json").stdout == whole.stdout


@pytest.mark.parametrize("width", ["1", "500"])
def test_the_width_of_a_run_changes_no_byte_of_its_report(tmp_path: Path, width: str) -> None:
    options = ["--dataset", ITEMS, "--shots-from", ITEMS, "--shots", "3", "--method", "letter", "--method", "loss"]
    options += ["--candidate", "simulated:a?fail=0.05&latency=0.001", "--against", ITEMS, "--against-n", "9"]
    done = [
        completed("run", "probe", *options, "--json", "--concurrency", number, "--out", tmp_path / f"{number}-{name}")
        for name, number in (("one", "40"), ("other", width))
    ]
    assert done[0].returncode == 0, done[0].stderr.decode()
    assert done[0].stdout == done[1].stdout


def test_probes_and_interviews_join_by_item(tmp_path: Path) -> None:
    base = ["--dataset", ITEMS, "-n", "9", "--seed", "3", "--candidate", "simulated:c?knowledge=0.5"]
    panel = ["--interactor", "simulated:i", "--evaluator", "simulated:e"]
    assert completed("run", "kieval", *base, *panel, "--out", tmp_path / "talks").returncode == 0
    probe(tmp_path / "probes", *base, "--method", "generate", "--shots", "0")
    talks, probes = recorded(tmp_path / "talks"), recorded(tmp_path / "probes")
    assert talks.keys() == probes.keys()
    assert len(talks) == 9
    assert all(key == f"c/{result['item']}" for key, result in probes.items())


def test_a_probe_is_shown_in_words(tmp_path: Path) -> None:
    methods = [arg for method in ("letter", "generate", "loss") for arg in ("--method", method)]
    probe(tmp_path / "run", "--dataset", ITEMS, "-n", "1", "--shots", "0", "--candidate", "simulated:c", *methods)
    done = completed("show", tmp_path / "run", "--conversation", "0", "--json")
    parties, texts = zip(*((line["party"], line["text"]) for line in orjson.loads(done.stdout)["talk"]), strict=True)
    assert parties == ("benchmark", "candidate", "candidate", "candidate")
    assert texts[1].startswith("log-probabilities: A -")
    assert texts[2].startswith("The answer is ")
    assert " nats over " in texts[3]


# -- questions without choices ----------------------------------------------------------------------------------------

FREE = [
    (
        "How many clips in total?",
        "48/2 = 24\n48+24 = 72\n#### 72",
        "24 in May, and 48 + 24 = 72.\nThe answer is $72.",
        1,
    ),
    ("How many eggs are left?", "12", "16 - 3 = 13 eggs. So 13 eggs are left.", 0),
    ("How long is the river in km?", "1094", "The answer is 840 or 1,094 km.", 0),
    ("Who directed Inception?", "Christopher Nolan", "Inception was directed by Christopher Nolan.", 1),
    ("Which country made it?", "United States of America", "The answer is the United States.", 0),
    ("Were both American?", "yes", "Both were born in Ohio. The answer is yes.", 1),
]


def test_free_answers_are_scored_as_exact_and_by_f1(tmp_path: Path) -> None:
    items = tmp_path / "free.jsonl"
    lines = [{"id": f"q{at}", "question": row[0], "answer": row[1]} for at, row in enumerate(FREE)]
    items.write_bytes(b"\n".join(orjson.dumps(line) for line in lines))
    answers = {row[0]: row[2] for row in FREE}
    (tmp_path / "m.py").write_text(f"def m(messages):\n    return {answers!r}[messages[-1]['content']]\n")
    model = f"python:{tmp_path / 'm.py'}#m"
    options = ["--dataset", f"qa:{items}", "--shots", "0", "--method", "free"]
    one = probe(tmp_path / "run", *options, "--candidate", model)["candidates"]["m"]
    known = one["accuracy"]["free"]
    assert (one["n"], known["right"], known["unanswered"], known["value"]) == (6, 3, 1, 50)
    results = {name.rpartition("/")[2]: result["free"] for name, result in recorded(tmp_path / "run").items()}
    assert [results[f"q{at}"]["right"] for at in range(6)] == [bool(row[3]) for row in FREE]
    assert [results[f"q{at}"]["answer"] for at in (0, 2, 4)] == ["72", None, "the United States"]
    overlap = [1, 0, 0, 1, 2 * 2 / 6, 1]
    assert [results[f"q{at}"]["f1"] for at in range(6)] == pytest.approx(overlap)
    mean = sum(overlap) / 6
    error = math.sqrt(sum((value - mean) ** 2 for value in overlap) / 5 / 6)
    assert known["f1"] == {"mean": pytest.approx(100 * mean), "se": pytest.approx(100 * error), "n": 6}
    shown = command.viva("report", tmp_path / "run").stdout
    assert "exact" in shown
    assert f"{100 * mean:.1f}" in shown


def test_free_answers_need_questions_without_choices(tmp_path: Path) -> None:
    items = tmp_path / "qa.jsonl"
    items.write_text('{"question": "Which metal is liquid?", "answer": "Mercury"}\n')
    model = ["--candidate", "simulated:c?knowledge=1", "--shots", "0"]
    refused = command.viva("probe", "--dataset", ITEMS, *model, "--method", "free", "--out", tmp_path / "a")
    assert "have choices; give --method generate" in refused.stderr
    refused = command.viva("probe", "--dataset", f"qa:{items}", *model, "--method", "letter", "--out", tmp_path / "b")
    assert "give --method free or --method loss" in refused.stderr
    known = probe(tmp_path / "c", "--dataset", f"qa:{items}", *model, "--method", "free")["candidates"]["c"]
    assert known["accuracy"]["free"]["value"] == 100


# -- likelihoods relative to others -----------------------------------------------------------------------------------


def test_options_are_also_chosen_by_token_and_relative_to_their_own_likelihood(tmp_path: Path) -> None:
    options = ["--dataset", ITEMS, "--shots", "0", "-n", "20", "--candidate", "simulated:c?knowledge=0.6"]
    report = probe(tmp_path / "run", *options, "--method", "unconditional", "--method", "text")
    known = report["candidates"]["c"]["accuracy"]
    counts = {"text_per_token": 0, "text_unconditional": 0}
    with History(tmp_path / "run" / "journal.sqlite") as history:
        for number in history.numbers():
            _, item = history.started(number) or ("", {})
            after, alone = [call.completion.likelihoods or [] for call in history.calls(number)]
            per_token = [math.fsum(each.logprobs) / len(each.logprobs) for each in after]
            gains = [
                math.fsum(own.logprobs) - math.fsum(other.logprobs) for own, other in zip(after, alone, strict=True)
            ]
            for name, values in (("text_per_token", per_token), ("text_unconditional", gains)):
                counts[name] += values.index(max(values)) == item["answer"]
    assert {name: known[name]["right"] for name in counts} == counts
    table = command.viva("report", tmp_path / "run").stdout
    assert "text, by token" in table
    assert "text, unconditional" in table


def test_orders_of_options_give_a_strict_accuracy_and_a_vote(tmp_path: Path) -> None:
    line = {
        "id": "q",
        "question": "Which metal is liquid?",
        "choices": ["Iron", "Mercury", "Zinc", "Lead"],
        "answer": 1,
    }
    (tmp_path / "items.jsonl").write_bytes(
        b"\n".join(
            orjson.dumps(line | {"id": f"q{at}", "question": f"Which metal is liquid, {at}?"}) for at in range(3)
        )
    )
    # Model a always takes Mercury, model b the first option, model c the first option unless it is iron.
    (tmp_path / "m.py").write_text(
        "def _options(messages):\n"
        "    return dict(line.split('. ') for line in messages[-1]['content'].split('\\n')[1:5])\n"
        "def a(messages):\n    return next(key for key, text in _options(messages).items() if text == 'Mercury')\n"
        "def b(messages):\n    return 'A'\n"
        "def c(messages):\n    return 'B' if _options(messages)['A'] == 'Iron' else 'A'\n"
    )
    models = [word for name in "abc" for word in ("--candidate", f"python:{tmp_path / 'm.py'}#{name}")]
    options = ["--dataset", tmp_path / "items.jsonl", "--shots", "0", "--method", "permute"]
    report = probe(tmp_path / "run", *options, *models)
    values = {
        name: {kind: record["value"] for kind, record in one["orders"].items() if kind != "n"}
        for name, one in report["candidates"].items()
    }
    assert values["a"] == {"published": 100, "mean": 100, "strict": 100, "vote": 100}
    assert values["b"] == {"published": 0, "mean": 0, "strict": 0, "vote": 0}
    assert (values["c"]["published"], values["c"]["strict"]) == (100, 0)
    results = {key: result["permute"] for key, result in recorded(tmp_path / "run").items()}
    share = [sum(result["right"]) / 6 for key, result in results.items() if key.startswith("c/")]
    assert values["c"]["mean"] == pytest.approx(100 * sum(share) / 3)
    assert all({type(choice) for choice in result["choices"]} == {int} for result in results.values())
    assert "vote over orders" in command.viva("report", tmp_path / "run").stdout


def test_losses_are_compared_with_lower_case_and_with_a_reference_model(tmp_path: Path) -> None:
    seen, other = make_items(tmp_path / "seen.jsonl", 40, seed=1), make_items(tmp_path / "other.jsonl", 40, seed=2)
    models = ["--candidate", "simulated:memoriser?memorisation=1&knowledge=0", "--candidate", "simulated:clean"]
    options = ["--dataset", seen, "--against", other, *models, "--method", "lower", "--method", "loss"]
    report = probe(tmp_path / "run", *options, "--reference", "clean")
    memoriser, clean = (report["candidates"][name]["detectors"] for name in ("memoriser", "clean"))
    assert memoriser["lowercase_ratio"]["value"] > 0.85 > 0.65 > clean["lowercase_ratio"]["value"] > 0.35
    assert memoriser["reference_ratio"]["value"] > 0.85
    assert "reference_ratio" not in clean
    assert memoriser["min_k_100"]["value"] == memoriser["loss"]["value"]
    assert memoriser["loss"]["fpr_at_95_tpr"] < clean["loss"]["fpr_at_95_tpr"]
    assert "reference ratio" in command.viva("report", tmp_path / "run").stdout
    results = recorded(tmp_path / "run")
    some = next(key for key in results if key.startswith("memoriser/"))
    assert results[some]["lower"]["loss"] > results[some]["signals"]["loss"]


WRONG_METHODS = [
    (["--method", "unconditional"], "add --method text"),
    (["--method", "lower"], "add --method loss"),
    (["--method", "letter", "--reference", "c"], "add --method loss"),
    (["--method", "loss", "--reference", "none"], "no candidate has the label 'none'; their labels: c"),
]


@case_table("options, words", WRONG_METHODS)
def test_what_is_relative_needs_the_other_side(tmp_path: Path, options: list[str], words: str) -> None:
    base = ["run", "probe", "--dataset", ITEMS, "--candidate", "simulated:c", "--shots", "0", "--out", tmp_path / "run"]
    done = command.viva(*base, *options)
    assert done.returncode == 2
    assert words in done.stderr
