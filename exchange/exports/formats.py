"""Formats that runs can be exported to, by name, and the export of a run or a sweep to one of them.

The writer of a format is imported when it is used: what formats need takes a while to import.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from viva.engine.errors import ConfigurationError

from ..files import TransferResult, atomic_path

if TYPE_CHECKING:
    from .conversations import ExportCell


@dataclass(frozen=True, slots=True)
class ExportFormat:
    """``ending`` is that of the file which is written; empty where it is a folder. ``where`` names the function, as
    ``module:function`` of this room: what formats need takes a while to import.
    """

    summary: str
    ending: str
    writer: str


FORMATS = {
    "inspect": ExportFormat("logs of Inspect (.eval), one a cell (extra inspect).", "", "inspect_ai:export_inspect"),
    "every-eval-ever": ExportFormat(
        "aggregates and lines in the schemas of Every Eval Ever.", "", "every_eval:export_every_eval"
    ),
    "lm-eval": ExportFormat(
        "results_*.json and samples_*.jsonl of lm-evaluation-harness.", "", "lm_eval:export_lm_eval"
    ),
    "parquet": ExportFormat("a table, one conversation a row (extra parquet).", ".parquet", "parquet:export_parquet"),
    "datasets": ExportFormat("the same for datasets.load_from_disk (extra hf).", "", "parquet:export_datasets"),
    "openai": ExportFormat("dialogs as JSON lines in OpenAI's form for fine-tuning.", ".jsonl", "chat:export_openai"),
    "sharegpt": ExportFormat("dialogs as JSON lines in ShareGPT's form.", ".jsonl", "chat:export_sharegpt"),
}


def export(folder: Path, format_name: str, out: Path | None = None) -> TransferResult:
    """Export a run or a sweep. ``out`` is the file or folder that is made; None: one in the current folder that is
    called after the run and the format. It is there only when it is whole; after a kill the same command begins anew.
    No model is called.

    :raises ConfigurationError: the format is unknown, ``out`` exists, a package is missing, or nothing has ended yet.
    :raises JournalError: a journal is damaged.
    """
    if format_name not in FORMATS:
        raise ConfigurationError(f"--format {format_name}: expected one of {', '.join(FORMATS)}")
    form = FORMATS[format_name]
    target = out or Path(f"{folder.resolve().name}-{format_name}{form.ending}")
    if target.exists():
        raise ConfigurationError(f"{target} exists; name another place with --out")
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
