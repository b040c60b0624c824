"""Exports of a run, each read back by what reads that form: the same figures, and every conversation."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as parquet
import pytest
from pydantic import TypeAdapter
from small_sweeps import swept, write_file
from typer.testing import CliRunner

import viva
from viva.cli.main import app
from viva.engine.errors import ConfigurationError
from viva.exchange.exports.every_eval import check_schema
from viva.exchange.exports.formats import FORMATS, export
from viva.scenarios.flexeval.conversation_files import read_dialogs
from viva.scenarios.flexeval.dialog import Dialog

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
_PEERS = Path(__file__).parents[2] / ".peers"
_PEER = _PEERS / "lmeval" / "bin" / "python"
_VALIDATOR = _PEERS / "eee" / "bin" / "python"


class Says(viva.Backend):
    """Says what no file likes; the second conversation fails."""

    label = "rude"

    async def generate(self, request: viva.Request) -> viva.Completion:
        if request.conversation.endswith("2"):
            raise viva.BackendError("no", model=self.label)
        return viva.Completion("half \ud83d of it\x00\u2028 <b>&", prompt_tokens=3, completion_tokens=4)


@viva.scenario(many="pupil")
async def rudely(conversation: viva.Conversation, task: str) -> float:
    """Asks twice, the second time anew."""
    for word in ("one", "two"):
        view = viva.View()
        view.append("user", f"{word} {task}")
        await conversation.generate("pupil", view, viva.Sampling())
    return 25.0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Interviews of two candidates on six items."""
    models: Any = {"candidate": ["simulated:expert?knowledge=0.9", "simulated:novice?knowledge=0.2"],
                   "interactor": "simulated:asker", "evaluator": "simulated:strict"}  # fmt: skip
    out = tmp_path_factory.mktemp("runs") / "talks"
    viva.run_sync("kieval", models=models, dataset=str(ITEMS), out=out, n=6, rounds=2, seed=3)
    return out


@pytest.fixture(scope="module")
def rude(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "rude"
    viva.run_sync(rudely, models={"pupil": [Says()]}, tasks=["1", "2", "3"], out=out)
    return out


def _scores(run: Path) -> dict[str, dict[str, Any]]:
    """The run's own figures: each candidate's score."""
    found: dict[str, dict[str, Any]] = {
        label: one["score"] for label, one in viva.load(run).report()["candidates"].items()
    }
    return found


def _lines(file: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in file.read_bytes().splitlines()]


def test_every_eval_ever_has_the_figures_and_follows_its_schemas(run: Path, tmp_path: Path) -> None:
    done = export(run, "every-eval-ever", tmp_path / "out")
    found: dict[str, float] = {}
    for file in done.files[::2]:
        aggregate = orjson.loads(file.read_bytes())
        check_schema("eval", aggregate)
        label = aggregate["model_info"]["name"]
        score = next(one for one in aggregate["evaluation_results"] if one["metric_config"]["metric_name"] == "score")
        own = _scores(run)[label]
        told = score["score_details"]
        assert told["score"] == pytest.approx(own["mean"], abs=1e-6)
        assert told["uncertainty"]["standard_error"]["value"] == pytest.approx(own["se"], abs=1e-6)
        assert told["uncertainty"]["num_samples"] == own["n"]
        ends = told["uncertainty"]["confidence_interval"]
        assert ends["lower"] < told["score"] < ends["upper"]
        [judge] = score["metric_config"]["llm_scoring"]["judges"]
        assert judge["model_info"]["id"] == "simulated/strict"
        named = aggregate["detailed_evaluation_results"]
        lines = _lines(tmp_path / "out" / named["file_path"])
        assert len(lines) == named["total_rows"] == 36
        own_lines = [line for line in lines if line["evaluation_result_id"] == score["evaluation_result_id"]]
        for line in lines:
            check_schema("instance_level_eval", line)
        assert {line["metadata"]["judge"] for line in own_lines} == {"simulated:strict"}
        assert any("turn_scores_sd" in line["metadata"] for line in own_lines)
        values = [line["evaluation"]["score"] for line in own_lines]
        found[label] = math.fsum(values) / len(values)
    assert found == {label: pytest.approx(one["mean"], abs=1e-6) for label, one in _scores(run).items()}
    again = export(run, "every-eval-ever", tmp_path / "again")
    assert [file.name for file in again.files] == [file.name for file in done.files], "a cell keeps its name"


@pytest.mark.skipif(not _VALIDATOR.exists(), reason="every-eval-ever is not in .peers/eee")
def test_every_eval_evers_own_validator_passes_all_files(run: Path, rude: Path, tmp_path: Path) -> None:
    for one in (run, rude):
        export(one, "every-eval-ever", tmp_path / one.name)
        command = [_VALIDATOR, "-m", "every_eval_ever", "validate", "data/*/*/*/*", "--format", "json"]
        done = subprocess.run(command, cwd=tmp_path / one.name, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_lm_eval_has_the_figures_where_that_tool_looks_for_them(run: Path, tmp_path: Path) -> None:
    export(run, "lm-eval", tmp_path / "out")
    for label, own in _scores(run).items():
        [results], [samples] = ((tmp_path / "out" / label).glob(f"{kind}_*") for kind in ("results", "samples"))
        task, date = samples.stem.removeprefix("samples_").rsplit("_", 1)
        assert results.stem == f"results_{date}"
        told = orjson.loads(results.read_bytes())
        assert told["results"][task]["score,none"] == pytest.approx(own["mean"], abs=1e-6)
        assert told["results"][task]["score_stderr,none"] == pytest.approx(own["se"], abs=1e-6)
        assert told["results"][task]["report.score,none"] == own["mean"]
        lines = _lines(samples)
        assert told["n-samples"][task] == {"original": 6, "effective": len(lines)}
        assert math.fsum(line["score"] for line in lines) / 6 == pytest.approx(own["mean"], abs=1e-6)
        # The fields that its own log has of every sample, and its readers take for granted.
        for line in lines:
            assert {"doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics"} <= {*line}
            assert all({*line["metrics"]} <= {*line} for line in lines)
            [asked] = line["arguments"].values()
            assert [one["role"] for one in json.loads(asked["arg_0"])] == ["system", "user", *["assistant", "user"] * 2]


@pytest.mark.skipif(not _PEER.exists(), reason="lm-evaluation-harness is not in .peers/lmeval")
def test_lm_evals_own_readers_find_files_and_table(run: Path, tmp_path: Path) -> None:
    export(run, "lm-eval", tmp_path / "out")
    program = """
import glob, json, os, sys
from lm_eval.utils import (
    get_file_task_name, get_latest_filename, get_results_filenames, get_sample_results_filenames, make_table)
files = glob.glob(sys.argv[1] + "/*")
[samples], [results] = get_sample_results_filenames(files), get_results_filenames(files)
print(get_file_task_name(os.path.basename(samples)))
print(make_table(json.load(open(get_latest_filename([results])))))
"""
    done = subprocess.run([_PEER, "-c", program, tmp_path / "out" / "expert"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    own = _scores(run)["expert"]
    assert done.stdout.startswith("kieval_science\n")
    [row] = [line for line in done.stdout.splitlines() if "|score " in line]
    assert f"|{own['mean']:.4f}|" in row.replace(" ", "")


def test_tables_have_a_row_for_each_conversation(run: Path, tmp_path: Path) -> None:
    export(run, "parquet", tmp_path / "talks.parquet")
    table = parquet.read_table(tmp_path / "talks.parquet")
    rows = table.to_pylist()
    own = _scores(run)
    for label, one in own.items():
        values = [row["score"] for row in rows if row["candidate"] == label]
        assert math.fsum(values) / len(values) == pytest.approx(one["mean"], abs=1e-6)
    assert {row["state"] for row in rows} == {"finished"}
    assert {row["judge"] for row in rows} == {"simulated:strict"}
    assert "round 1: " in next(one["explanation"] for one in rows[0]["scores"] if one["criterion"] == "logic")
    assert [one["role"] for one in rows[0]["messages"]][:3] == ["system", "user", "assistant"]
    figures = orjson.loads(table.schema.metadata[b"viva"])
    told = {row["measure"]: row for row in figures[0]["figures"]}
    assert told["score"]["value"] == own["expert"]["mean"]


def test_the_package_datasets_loads_the_same_rows(run: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    export(run, "datasets", tmp_path / "rows")
    loaded = datasets.load_from_disk(str(tmp_path / "rows"))
    values = loaded.filter(lambda row: row["candidate"] == "novice", keep_in_memory=True)["score"]
    assert math.fsum(values) / 6 == pytest.approx(_scores(run)["novice"]["mean"], abs=1e-6)
    assert loaded[0]["messages"][-1]["role"] == "assistant"
    assert not [one for one in tmp_path.rglob("*") if ".cache" in one.name or one.suffix == ".parquet"]


def test_dialogs_are_what_clients_and_suites_read(run: Path, tmp_path: Path) -> None:
    export(run, "openai", tmp_path / "openai.jsonl")
    export(run, "sharegpt", tmp_path / "sharegpt.jsonl")
    import openai.types.chat as chat_types

    message = TypeAdapter(chat_types.ChatCompletionMessageParam)
    lines = _lines(tmp_path / "openai.jsonl")
    assert len(lines) == 12
    for line in lines:
        assert {*line} == {"messages"}
        assert [message.validate_python(one)["role"] for one in line["messages"]][-1] == "assistant"
    dialogs = {file: list(_dialogs(tmp_path / file)) for file in ("openai.jsonl", "sharegpt.jsonl")}
    said = [
        [[(one.role, one.content) for one in dialog.messages] for dialog in several] for several in dialogs.values()
    ]
    assert said[0] == said[1]
    assert len({dialog.id for dialog in dialogs["sharegpt.jsonl"]}) == 12


def _dialogs(file: Path) -> Iterator[Dialog]:
    for one in read_dialogs(file):
        assert isinstance(one, Dialog)
        yield one


def test_what_models_say_and_fail_at_is_exported_too(rude: Path, tmp_path: Path) -> None:
    notes = export(rude, "openai", tmp_path / "rude.jsonl").notes
    assert notes == ["1 conversations failed and were skipped"]
    lines = _lines(tmp_path / "rude.jsonl")
    assert [line["messages"][0]["content"] for line in lines] == ["one 1", "two 1", "one 3", "two 3"]
    assert "\x00\u2028" in lines[0]["messages"][1]["content"]
    assert len((tmp_path / "rude.jsonl").read_text().splitlines()) == 4
    export(rude, "parquet", tmp_path / "rude.parquet")
    rows = parquet.read_table(tmp_path / "rude.parquet").to_pylist()
    assert [(row["state"], row["score"]) for row in rows] == [("finished", 25), ("failed", None), ("finished", 25)]
    assert "rude: no" in rows[1]["error"]
    done = export(rude, "every-eval-ever", tmp_path / "eee")
    assert done.notes == ["rude: 1 conversations without a score were skipped"]
    assert [line["evaluation"]["score"] for line in _lines(done.files[1])] == [25, 25]
    assert [line["interaction_type"] for line in _lines(done.files[1])] == ["multi_turn"] * 2


def test_a_sweep_is_exported_cell_by_cell(tmp_path: Path) -> None:
    swept(write_file(tmp_path / "files", items=2, seeds=[1, 2]), tmp_path / "sweep")
    done = export(tmp_path / "sweep", "lm-eval", tmp_path / "out")
    assert len({*done.files}) == len(done.files) == 8, "two files for each of two candidates and two seeds"
    assert {file.parent.name for file in done.files} == {"a", "b"}


@pytest.mark.parametrize("label", ["..", ".", "...", "a/../../b"])
def test_no_label_leads_out_of_the_folder_that_an_export_is_to_make(tmp_path: Path, label: str) -> None:
    models: Any = {"pupil": [f"fixed:?text=hi&label={label}"]}
    viva.run_sync(rudely, models=models, tasks=["1"], out=tmp_path / "run")
    done = export(tmp_path / "run", "lm-eval", tmp_path / "deep" / "out")
    assert [file for file in tmp_path.rglob("*_2*") if tmp_path / "deep" / "out" not in file.parents] == []
    assert all(file.resolve().parent.parent == tmp_path / "deep" / "out" for file in done.files)


def test_the_verb_names_formats_and_never_writes_over_anything(run: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    assert all(f"  {name}" in runner.invoke(app, ["export", "--help"]).output for name in FORMATS)
    out, beside = tmp_path / "talks.jsonl", tmp_path / "talks.part.jsonl"
    beside.write_text("mine")
    done = runner.invoke(app, ["export", str(run), "--format", "openai", "--out", str(out), "--json"])
    assert orjson.loads(done.stdout) == {"export": 1, "to": "openai", "records": 12, "files": [str(out)], "notes": []}
    written = out.read_bytes()
    again = runner.invoke(app, ["export", str(run), "--format", "openai", "--out", str(out)])
    assert (again.exit_code, out.read_bytes()) == (2, written)
    assert "already exists; choose another path with --out" in again.output
    with pytest.raises(ConfigurationError, match="--format csv: expected one of inspect, every-eval-ever"):
        export(run, "csv")
    assert beside.read_text() == "mine"
    beside.unlink()
    assert not list(tmp_path.glob("*.part*"))


def _killed_export(run: Path, to: str, out: Path, at: int) -> bool:
    """Export in a process of its own that is killed as it opens its ``at``-th file for writing; whether it was."""
    pid = os.fork()
    if not pid:
        opened = 0

        def kill(event: str, given: tuple[Any, ...]) -> None:
            nonlocal opened
            if event == "open" and str(out.parent) in str(given[0]) and isinstance(given[1], str) and "w" in given[1]:
                opened += 1
                if opened == at:
                    os.kill(os.getpid(), signal.SIGKILL)
            if event == "os.rename" and at == 0 and str(given[1]) == str(out):
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(kill)
        try:
            export(run, to, out)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize(
    "to", [name for name in FORMATS if name not in ("datasets", "inspect", "items", "mlflow", "wandb")]
)
def test_a_killed_export_leaves_nothing_that_the_same_command_refuses(run: Path, tmp_path: Path, to: str) -> None:
    ending = FORMATS[to].ending
    whole, out = tmp_path / "whole" / f"e{ending}", tmp_path / "mine" / f"e{ending}"
    whole.parent.mkdir()
    out.parent.mkdir()
    wanted = [file.relative_to(whole) for file in export(run, to, whole).files]
    killed = 0
    for at in (0, 1, 2, 3):  # 0: when all of it is written, before it gets its name
        killed += _killed_export(run, to, out, at)
        if out.exists():  # so few files were opened that nobody was killed
            _clear(out)
        assert len(list(out.parent.iterdir())) <= 1, "one leftover at most"
        done = export(run, to, out)
        assert [file.relative_to(out) for file in done.files] == wanted
        assert all(file.is_file() for file in done.files)
        assert list(out.parent.iterdir()) == [out], "and it is taken away"
        _clear(out)
    assert killed


def _clear(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()
