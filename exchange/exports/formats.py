"""Export formats by name, and the export of a run or sweep to one of them.

Writers are imported on use, because their dependencies are slow to import.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from viva.engine.errors import ConfigurationError, did_you_mean

from ..files import TransferResult, atomic_path

if TYPE_CHECKING:
    from .conversations import ExportCell


@dataclass(frozen=True, slots=True)
class ExportFormat:
    """Export format.

    `ending` is the suffix of the written file; it is empty for a folder. `writer` names the function that writes it, as
    `module:function` in this package.
    """

    summary: str
    ending: str
    writer: str


FORMATS = {
    "inspect": ExportFormat("Inspect logs (.eval), one per cell (extra inspect).", "", "inspect_ai:export_inspect"),
    "every-eval-ever": ExportFormat(
        "aggregates and instance lines in Every Eval Ever's schemas.", "", "every_eval:export_every_eval"
    ),
    "lm-eval": ExportFormat("results_*.json, samples_*.jsonl of lm-evaluation-harness.", "", "lm_eval:export_lm_eval"),
    "mlflow": ExportFormat("a store of MLflow, one run per cell (extra mlflow).", "", "trackers:export_mlflow"),
    "parquet": ExportFormat("a table, one conversation per row (extra parquet).", ".parquet", "parquet:export_parquet"),
    "datasets": ExportFormat("the same for datasets.load_from_disk (extra hf).", "", "parquet:export_datasets"),
    "openai": ExportFormat("dialogs as JSON lines in OpenAI's fine-tuning format.", ".jsonl", "chat:export_openai"),
    "items": ExportFormat("items that a model has written, as a dataset.", ".jsonl", "items:export_items"),
    "sharegpt": ExportFormat("dialogs as JSON lines in ShareGPT's format.", ".jsonl", "chat:export_sharegpt"),
    "wandb": ExportFormat("runs for `wandb sync`, one per cell (extra wandb).", "", "trackers:export_wandb"),
}


def export(folder: Path, format_name: str, out: Path | None = None) -> TransferResult:
    """Export a run or sweep without calling a model.

    The output `out` appears only when it is complete; if the process is killed, run the same command again. The default
    `out` is in the current folder and named after the run and the format.

    Raises:
        ConfigurationError: The format is unknown, `out` exists, a package is missing, or no conversation has ended.
        JournalError: A journal is damaged.
    """
    if format_name not in FORMATS:
        near = did_you_mean(format_name, FORMATS)
        raise ConfigurationError(f"--format {format_name}: expected one of {', '.join(FORMATS)}{near}")
    form = FORMATS[format_name]
    target = out or Path(f"{folder.resolve().name}-{format_name}{form.ending}")
    if target.exists():
        raise ConfigurationError(f"{target} already exists; choose another path with --out")
    from .conversations import open_cells

    module, _, name = form.writer.partition(":")
    write: Callable[[Sequence[ExportCell], Path], TransferResult] = getattr(
        import_module(f".{module}", __package__), name
    )
    cells = open_cells(folder)
    with atomic_path(target) as part:
        result = write(cells, part)
    result.files = [target / file.relative_to(part) for file in result.files]
    return result
