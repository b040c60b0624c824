"""What a sweep will take, said before it begins, against what it took."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from case_tables import case_table
from command import viva
from small_sweeps import INTERVIEWS, dataset, swept, write_file

from viva.orchestration.launch import recorded_results
from viva.scenarios.models import batch_note
from viva.sweeps.forecast import Forecast
from viva.sweeps.recorded_sweep import recorded_cells
from viva.sweeps.sweep import open_sweep


def _forecast(file: Path, out: Path) -> dict[str, Any]:
    return Forecast(open_sweep(file, out)).report()


def _used(out: Path) -> dict[str, dict[str, dict[str, int]]]:
    """By candidate and role, from the reports of a sweep's interviews."""
    return {
        cell.candidate: recorded_results(cell.folder).report()["candidates"][cell.candidate]["usage"]
        for cell in recorded_cells(out)
        if cell.folder is not None
    }


def test_calls_are_those_of_talks_that_go_to_their_end_and_tokens_bound_them(tmp_path: Path) -> None:
    said = {"interviews": {**INTERVIEWS, "rounds": 3, "early_stop": False}, "candidates": ["simulated:a?knowledge=1"]}
    file = write_file(tmp_path, items=6, **said)
    told = _forecast(file, tmp_path / "out")
    assert told["conversations"] == 6
    swept(file, tmp_path / "out")
    [used] = _used(tmp_path / "out").values()
    models = {"candidate": "simulated:a?knowledge=1", "interactor": "simulated:i", "evaluator": "simulated:e"}
    for role, model in models.items():
        assert told["models"][model]["calls"] == used[role]["calls"]
        assert told["models"][model]["prompt_tokens"] >= used[role]["prompt_tokens"]
        assert told["models"][model]["completion_tokens"] >= used[role]["completion_tokens"]


def test_with_limits_as_long_as_the_answers_the_tokens_are_right(tmp_path: Path) -> None:
    # A simulated interactor's question is 25 tokens long on average; a limit of that makes the arithmetic exact to
    # what remains unknown, the lengths of the answers.
    talks = {**INTERVIEWS, "rounds": 4, "early_stop": False, "first_answer": "text"}
    said: dict[str, Any] = {"interviews": talks, "candidates": ["simulated:a?knowledge=1"]}
    file = write_file(tmp_path, items=8, **said)
    swept(file, tmp_path / "out")
    [used] = _used(tmp_path / "out").values()
    means = {f"{role}_tokens": round(one["completion_tokens"] / one["calls"]) for role, one in used.items()}
    file = write_file(tmp_path, items=8, **{**said, "interviews": {**said["interviews"], **means}})
    told = _forecast(file, tmp_path / "other")
    models = {"candidate": "simulated:a?knowledge=1", "interactor": "simulated:i", "evaluator": "simulated:e"}
    for role, model in models.items():
        for name in ("prompt_tokens", "completion_tokens"):
            assert abs(told["models"][model][name] / used[role][name] - 1) < 0.04, (role, name)


def test_five_solved_examples_are_counted(tmp_path: Path) -> None:
    dataset(tmp_path / "dev.jsonl", 6)
    talks = {**INTERVIEWS, "rounds": 1, "early_stop": False, "first_answer": "five-shot", "shots_from": "dev.jsonl"}
    file = write_file(tmp_path, items=6, interviews=talks, candidates=["simulated:a?knowledge=1"])
    told = _forecast(file, tmp_path / "out")
    swept(file, tmp_path / "out")
    [used] = _used(tmp_path / "out").values()
    assert told["models"]["simulated:a?knowledge=1"]["prompt_tokens"] >= used["candidate"]["prompt_tokens"]


def test_what_is_finished_costs_nothing_more(tmp_path: Path) -> None:
    file = write_file(tmp_path, seeds=[1])
    swept(file, tmp_path / "out")
    assert _forecast(file, tmp_path / "out")["models"] == {}
    more = write_file(tmp_path, seeds=[1, 2])
    again = _forecast(more, tmp_path / "out")
    assert again["conversations"] == 2 * 4
    assert [cell["state"] for cell in again["cells"]] == ["done", "done", "waiting", "waiting"]


def test_probes_are_counted_reading_by_reading(tmp_path: Path) -> None:
    probes = {"method": ["letter", "text", "loss", "generate"], "shots": 0, "answer_tokens": 8}
    file = write_file(
        tmp_path, items=5, interviews=None, probes=probes, candidates=["simulated:a", "openai:http://127.0.0.1:9/v1#b"]
    )
    told = _forecast(file, tmp_path / "out")["models"]
    assert told["simulated:a"]["calls"] == 5 * 4
    assert told["openai:http://127.0.0.1:9/v1#b"]["calls"] == 5 * (
        4 + 4 + 1 + 1
    )  # of an endpoint each option is a request
    assert told["openai:http://127.0.0.1:9/v1#b"]["prompt_tokens"] > told["simulated:a"]["prompt_tokens"]
    assert told["simulated:a"]["completion_tokens"] == 5 * 8


def test_prices_make_costs_and_a_broken_dataset_is_said(tmp_path: Path) -> None:
    priced = "simulated:a?price_in=2&price_out=10"
    file = write_file(tmp_path, candidates=[priced, "simulated:b"], datasets=["alpha.jsonl", "none.jsonl"])
    told = _forecast(file, tmp_path / "out")
    one = told["models"][priced]
    assert abs(one["cost"] - (one["prompt_tokens"] * 2 + one["completion_tokens"] * 10) / 1e6) < 1e-4
    assert told["models"]["simulated:b"]["cost"] == 0
    assert [cell["state"] for cell in told["cells"]] == ["waiting", "waiting", "failed", "failed"]
    assert list(told["problems"]) == [cell["name"] for cell in told["cells"][2:]]
    assert not (tmp_path / "out").exists()


def test_dry_run_and_plan_give_the_same_number_of_batches(tmp_path: Path) -> None:
    batched = {"candidates": ["openai:http://127.0.0.1:9/v1#c?batch=on"], "concurrency": 3}
    file = write_file(tmp_path, items=8, **batched)
    for words in (["--dry-run"], ["--json"]):
        verb = ["sweep", file] if "--dry-run" in words else ["sweep", "plan", file]
        done = viva(*verb, *words, "--out", tmp_path / "out")
        said = " ".join((done.stdout + done.stderr).split())
        assert "batch=on (c): about 3 to 9 batches one after another, and up to one more for each call" in said, said


@case_table(
    "conversations, at_once, calls, words",
    [
        (1, 5, 0.0, "at least 1 batch one after another"),
        (1, 5, 1.0, "at least 1 batch one after another"),
        (6, 5, 0.0, "at least 2 batches one after another"),
        (6, 5, 2.5, "about 2 to 5 batches one after another"),
        (1, 5, 4.0, "about 1 to 4 batches one after another"),
    ],
)
def test_the_number_of_batches(conversations: int, at_once: int, calls: float, words: str) -> None:
    note = batch_note(["openai:m?batch=on"], conversations, at_once, calls)
    assert note.startswith(f"batch=on (m): {words}")
    assert "1 conversations" not in note
    assert not batch_note(["openai:m"], conversations, at_once, calls)
