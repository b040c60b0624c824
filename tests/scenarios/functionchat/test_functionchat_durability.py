"""A FunctionChat run that is killed goes on as if it had not been: over HTTP, and with a local model."""

from __future__ import annotations

import os
import re
from pathlib import Path

import orjson
import pytest
from benchmark import key_of, serving
from small_dialogs import write_data
from spoken import speeches_of
from tiny_gguf import make_model
from viva_process import completed, killed, recorded_rows, started

from viva.engine.run_folder import RunFolder
from viva.orchestration.launch import recorded_results
from viva.scenarios.functionchat.turn_files import read_dialogs, read_singlecall

DATA = (
    Path(os.environ.get("VIVA_DATA") or Path(__file__).parents[3] / ".." / "shared" / "data").resolve() / "functionchat"
)


def _told(run: Path) -> bytes:
    """The report, and all transcripts."""
    report = recorded_results(RunFolder.open(run)).report()
    return orjson.dumps([report, speeches_of(run)])


def test_all_700_turns_over_http_killed_and_resumed_are_reported_the_same(tmp_path: Path) -> None:
    if not (DATA / "FunctionChat-Dialog.jsonl").exists():
        pytest.skip(f"{DATA} is missing (set VIVA_DATA to the folder with the benchmark data)")
    singlecall, dialogs = DATA / "FunctionChat-Singlecall.jsonl", DATA / "FunctionChat-Dialog.jsonl"
    turns = [*read_singlecall(singlecall), *read_dialogs(dialogs)]
    answers = {key_of(turn.messages): turn.ground_truth for turn in turns}
    with serving(tmp_path, answers, delay=0.005) as server:
        arguments: list[str | Path] = ["run", "functionchat", "--data", DATA, "--rubrics", DATA, "--system", "data"]
        arguments += ["--candidate", server.model("candidate"), "--judge", server.model("judge"), "--concurrency", "16"]
        whole = completed(*arguments, "--out", tmp_path / "whole", "--json")
        assert whole.returncode == 0, whole.stderr.decode()
        one = orjson.loads(whole.stdout)["candidates"]["candidate"]
        assert (one["turns"], one["failed"], one["unscored"]) == (700, 0, 0)
        assert one["judged"] > 0
        assert 50 < one["singlecall"]["average"] < 70
        asked = sum(server.asked().values())
        assert asked == recorded_rows(tmp_path / "whole")
        before = killed(started(*arguments, "--out", tmp_path / "killed"), tmp_path / "killed", 300)
        assert 300 <= before < asked
        resumed = completed("resume", tmp_path / "killed", "--json")
        assert resumed.returncode == 0, resumed.stderr.decode()
        assert resumed.stdout == whole.stdout
        told = re.search(r"([\d,]+) calls", resumed.stderr.decode())  # the last line of the progress
        assert told is not None
        assert int(told[1].replace(",", "")) == asked - before  # what was recorded is not asked again
    assert _told(tmp_path / "killed") == _told(tmp_path / "whole")


def test_a_local_model_answers_and_judges_and_a_killed_run_goes_on_as_it_was(tmp_path: Path) -> None:
    model = make_model(tmp_path / "tiny.gguf", quote_bias=3.0, quantised=True)
    data = write_data(tmp_path / "data")
    (tmp_path / "pack.yaml").write_text(PACK)
    arguments: list[str | Path] = ["run", "functionchat", "--data", data, "-n", "9", "--pack", tmp_path / "pack.yaml"]
    arguments += ["--candidate", f"llama:{model}?label=tiny&ctx=8192&lanes=4", "--temperature", "0.7"]
    arguments += ["--judge", f"llama:{model}?ctx=8192&lanes=4", "--candidate-tokens", "40", "--judge-tokens", "120"]
    whole = completed(*arguments, "--concurrency", "1", "--out", tmp_path / "whole", "--json")
    assert whole.returncode == 0, whole.stderr.decode()
    report = orjson.loads(whole.stdout)
    one = report["candidates"]["tiny"]
    assert report["tier"] == "C"
    assert (one["turns"], one["failed"]) == (9, 0)
    # The schema held: where the judge was asked, there are verdicts of a model of random weights.
    assert one["judged"] > 0
    assert one["unscored"] < one["judged"]
    process = started(*arguments, "--concurrency", "4", "--out", tmp_path / "killed")
    before = killed(process, tmp_path / "killed", 5)
    assert before >= 5
    resumed = completed("resume", tmp_path / "killed", "--json")
    assert resumed.returncode == 0, resumed.stderr.decode()
    assert resumed.stdout == whole.stdout
    assert _told(tmp_path / "killed") == _told(tmp_path / "whole")


PACK = """
name: short
candidate: {system: "Help. {language_rule}", language: "In {language}."}
judge:
  system: Grade.
  language: "In {language}."
  call: "{query} {response}"
  completion: "{query} {response}"
  slot: "{query} {response}"
  relevance: "{query} {response}"
  again: "Again: {problem}"
user: {system: "{goal} {done}", language: "In {language}.", opening: Begin.}
"""
