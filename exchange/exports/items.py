"""Export of the items that a model has written, as a dataset: one item per line, in the order of the run's dataset."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from viva.data.forms import to_form
from viva.engine.errors import ConfigurationError
from viva.engine.journal_reader import History
from viva.scenarios.contract import SupportsItems
from viva.scenarios.models import label_of_key
from viva.scenarios.registry import installed_scenarios

from ..files import TransferResult, json_lines
from .conversations import ExportCell


def export_items(cells: Sequence[ExportCell], out: Path) -> TransferResult:
    """Write the items of a run in the form `generic` or, without choices, `qa`.

    Raises:
        ConfigurationError: The scenario's models write no items, several models have written some, or none was kept.
    """
    cell, *others = cells
    if not isinstance(cell.scenario, SupportsItems):
        names = ", ".join(other.name for other in installed_scenarios() if isinstance(other, SupportsItems))
        raise ConfigurationError(f"--format items: {cell.scenario.name} writes no items; export a run of: {names}")
    if others:
        names = ", ".join(dict.fromkeys(cell.label for cell in cells))
        raise ConfigurationError(
            f"--format items: found {len(cells)} sets of items ({names}), expected one; export a single run with one "
            f"{cell.compared}"
        )
    result = TransferResult(files=[out])
    labels = list(cell.manifest["models"][cell.compared])
    with History(cell.run.journal) as history, json_lines(out) as write:
        for number in history.numbers():
            ended = history.end(number)
            if ended is None or ended.failed or label_of_key(ended.key, labels) != cell.label:
                continue
            if (item := cell.scenario.item_of(ended.result)) is not None:
                write(to_form(item))
                result.records += 1
    if not result.records:
        raise ConfigurationError(f"{cell.run.path}: no item was kept; viva report says why")
    left_out = {
        "added no item": cell.ended - cell.failed - result.records,
        "failed": cell.failed,
        "have not ended": cell.planned - cell.ended,
    }
    result.notes += [f"{count:,} of {cell.planned:,} conversations {end}" for end, count in left_out.items() if count]
    return result
