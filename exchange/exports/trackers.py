"""Exports to experiment trackers: a store of MLflow, and offline runs of Weights & Biases.

Each cell is one run of the tracker. Its parameters are the settings; its metrics are the scores, each with its standard
error as a metric of its own, and the figures of the run's report as `report.NAME`; `report.json` is the whole report.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from viva.orchestration.completeness import recorded_report

from ..files import TransferResult, final_path, import_extra, to_json, write_json
from .conversations import ExportCell

_NOT_IN_NAMES = re.compile(r"[^\w\-. /:]")  # characters that MLflow refuses
_LONGEST_PARAMETER = 6000  # characters that MLflow accepts
_REPORT = "report.json"
_DATABASE = "mlflow.db"


def export_mlflow(cells: Sequence[ExportCell], out: Path) -> TransferResult:
    """Write `mlflow.db`, an SQLite store, and the folder `artifacts`."""
    with _environment(MLFLOW_DISABLE_TELEMETRY="true"), tempfile.TemporaryDirectory(prefix="viva-export-") as folder:
        for module in ("alembic", "sqlalchemy"):  # mlflow imports them late
            import_extra(module, "mlflow", "writing an MLflow store")
        mlflow = import_extra("mlflow", "mlflow", "writing an MLflow store")
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)
        client = mlflow.MlflowClient(f"sqlite:///{folder}/{_DATABASE}")
        artifacts = final_path(out).resolve() / "artifacts"
        experiments: dict[str, str] = {}
        files = [out / _DATABASE]
        for cell in cells:
            name = _safe_key(f"{cell.scenario.name} {cell.dataset}")
            if name not in experiments:
                experiments[name] = client.create_experiment(name, artifacts.as_uri())
            began, ended = int((cell.began or 0) * 1000), int((cell.finished or 0) * 1000)
            run = client.create_run(experiments[name], began, run_name=cell.name).info.run_id
            for key, value in parameters(cell).items():
                client.log_param(run, _safe_key(key), value[:_LONGEST_PARAMETER])
            for key, number in metrics(cell).items():
                client.log_metric(run, _safe_key(key), number, ended, 0)
            client.set_terminated(run, "FINISHED" if cell.state == "done" else "KILLED", ended)
            files.append(out / "artifacts" / run / "artifacts" / _REPORT)
            write_json(files[-1], recorded_report(cell.run))
        shutil.copyfile(Path(folder) / _DATABASE, out / _DATABASE)
    return TransferResult(files, len(cells))


def export_wandb(cells: Sequence[ExportCell], out: Path) -> TransferResult:
    """Write one offline run per cell below `wandb`; `wandb sync` uploads it."""
    result = TransferResult(records=len(cells))
    out.mkdir(parents=True)
    with (
        tempfile.TemporaryDirectory(prefix="viva-export-") as cache,
        _environment(WANDB_CACHE_DIR=cache, WANDB_ERROR_REPORTING="false"),
    ):
        wandb = import_extra("wandb", "wandb", "writing a run of Weights & Biases")
        # What the machine, the account and the working folder are is nobody's business.
        quiet = {"console": "off", "silent": True, "save_code": False, "disable_code": True, "disable_git": True}
        quiet |= {"x_disable_meta": True, "x_disable_stats": True, "x_disable_machine_info": True}
        for cell in cells:
            run = wandb.init(
                mode="offline",
                dir=str(out),
                project="viva",
                group=cell.scenario.name,
                name=cell.name,
                config=parameters(cell),
                settings=wandb.Settings(**quiet),
                reinit="create_new",
            )
            run.summary.update(metrics(cell))
            report = Path(run.dir) / _REPORT
            write_json(report, recorded_report(cell.run))
            run.save(str(report), base_path=run.dir, policy="end")
            run.finish()
            shutil.rmtree(report.parents[1] / "logs", ignore_errors=True)
            result.files += [report, *report.parents[1].glob("*.wandb")]
    for link in (out / "wandb").iterdir():  # to the latest run and its logs
        if link.is_symlink():
            link.unlink()
    return result


def parameters(cell: ExportCell) -> dict[str, str]:
    """Return what identifies a cell, and the settings of its run, as texts."""
    named: dict[str, Any] = cell.manifest["settings"] | {"scenario": cell.scenario.name, "cell": cell.name}
    named |= {"model": cell.model, "dataset": cell.dataset, "seed": cell.seed, "judge": cell.judge_model}
    named |= {"viva": cell.manifest["versions"].get("viva")}
    return {name: value if isinstance(value, str) else to_json(value).decode()
            for name, value in named.items() if value is not None}  # fmt: skip


def metrics(cell: ExportCell) -> dict[str, float]:
    """Return scores, figures of the report and counts by name; a standard error has the ending `_se`."""
    values: dict[str, float | None] = {"conversations": cell.ended, "failed": cell.failed}
    for name, criterion in cell.criteria.items():
        if criterion.mean is not None:
            values |= {name: criterion.mean.mean, f"{name}_se": criterion.mean.se}
    for name, row in cell.uncertain_figures.items():
        values |= {f"report.{name}": row["value"], f"report.{name}_se": row["se"]}
    return {name: float(value) for name, value in values.items() if value is not None}


def _safe_key(name: str) -> str:
    return _NOT_IN_NAMES.sub("_", name)


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Set environment variables for the block: both packages read them on import."""
    before: Mapping[str, str | None] = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
