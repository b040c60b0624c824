"""Exports to MLflow and to Weights & Biases, read back by the packages themselves; skipped where these are missing."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest
from planted_keys import KEYS, leaking_files

import viva
from viva.engine.errors import ConfigurationError
from viva.exchange.exports.formats import export

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Interviews of two candidates."""
    models: Any = {"candidate": ["simulated:expert?knowledge=0.9", "simulated:novice?knowledge=0.2"],
                   "interactor": "simulated:asker", "evaluator": "simulated:strict"}  # fmt: skip
    out = tmp_path_factory.mktemp("runs") / "talks"
    viva.run_sync("kieval", models=models, dataset=str(ITEMS), out=out, n=3, rounds=2, seed=3)
    return out


@pytest.fixture
def _planted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keys of trackers in the environment, and a home of the test's own."""
    for name, value in zip(("WANDB_API_KEY", "MLFLOW_TRACKING_TOKEN", "OPENAI_API_KEY"), KEYS.values(), strict=True):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def _check_scores(run: Path, label: str, metrics: dict[str, Any]) -> None:
    report = viva.load(run).report()["candidates"][label]
    assert metrics["report.score"] == pytest.approx(report["score"]["mean"])
    assert metrics["report.score_se"] == pytest.approx(report["score"]["se"])
    assert metrics["score"] == pytest.approx(report["score"]["mean"], abs=1e-6)
    assert metrics["score_se"] == pytest.approx(report["score"]["se"], abs=1e-6)
    assert (metrics["conversations"], metrics["failed"]) == (3, 0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("_planted")
def test_mlflow_reads_parameters_scores_and_the_report(run: Path, tmp_path: Path) -> None:
    for package in ("mlflow", "sqlalchemy", "alembic"):
        pytest.importorskip(package)
    import mlflow

    out = tmp_path / "a folder" / "store.1"
    out.parent.mkdir()
    done = export(run, "mlflow", out)
    assert done.records == 2
    assert all(file.is_file() for file in done.files)
    client = mlflow.MlflowClient(f"sqlite:///{out}/mlflow.db")
    [experiment] = client.search_experiments(filter_string="name != 'Default'")
    runs = {one.data.params["model"]: one for one in client.search_runs([experiment.experiment_id])}
    assert runs.keys() == {"simulated:expert?knowledge=0.9", "simulated:novice?knowledge=0.2"}
    for label, model in zip(("expert", "novice"), sorted(runs), strict=True):
        one = runs[model]
        _check_scores(run, label, one.data.metrics)
        assert one.info.status == "FINISHED"
        assert (one.data.params["rounds"], one.data.params["evaluator"]) == ("2", "simulated:strict")
        assert 0 < one.info.start_time <= one.info.end_time
        local = mlflow.artifacts.download_artifacts(one.info.artifact_uri + "/report.json", dst_path=str(tmp_path))
        assert orjson.loads(Path(local).read_bytes()) == viva.load(run).report()
    with closing(sqlite3.connect(out / "mlflow.db")) as store:
        assert store.execute("select count(*) from runs").fetchone() == (2,)
    assert leaking_files({path for path in tmp_path.rglob("*") if path.is_file()}) == []


def _log_records(data: bytes) -> Iterator[bytes]:
    """The records of a log in LevelDB's format, behind a header of seven bytes."""
    at, parts = 7, b""
    while at + 7 <= len(data):
        if (room := 32_768 - at % 32_768) < 7:
            at += room
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("_planted")
def test_weights_and_biases_has_runs_to_sync(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    out = tmp_path / "runs-wandb"
    done = export(run, "wandb", out)
    assert done.records == 2
    assert all(file.is_file() for file in done.files)
    stores = sorted((out / "wandb").glob("offline-run-*/run-*.wandb"))
    names: dict[str, str] = {}
    for file in stores:
        summary: dict[str, Any] = {}
        saved: set[str] = set()
        for data in _log_records(file.read_bytes()):
            record = wandb_internal_pb2.Record.FromString(data)
            if record.HasField("run"):
                name, group = record.run.display_name, record.run.run_group
                config = {one.key: orjson.loads(one.value_json) for one in record.run.config.update}
            for one in record.summary.update:
                summary[one.key or ".".join(one.nested_key)] = orjson.loads(one.value_json)
            saved |= {one.path for one in record.files.files}
        names[config["model"]] = name
        _check_scores(run, "expert" if "expert" in config["model"] else "novice", summary)
        assert (group, config["rounds"]) == ("kieval", "2")
        assert "report.json" in saved
        assert orjson.loads((file.parent / "files" / "report.json").read_bytes()) == viva.load(run).report()
    assert len(names) == 2
    assert not [path for path in out.rglob("*") if path.is_symlink()]
    assert leaking_files({path for path in tmp_path.rglob("*") if path.is_file()}) == []


@pytest.mark.parametrize("to", ["mlflow", "wandb"])
def test_a_missing_package_is_named(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str) -> None:
    for package in ("alembic", "sqlalchemy", "mlflow", "wandb"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigurationError, match=rf"pip install 'viva-exam\[{to}\]'"):
        export(run, to, tmp_path / "out")
    assert not (tmp_path / "out").exists()
