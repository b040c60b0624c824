"""Tasks that a trainer hands over, in the form in which a scenario takes them.

What never belongs here: data that a scenario reads from a file of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from viva.engine.files import write_atomically
from viva.scenarios.function import FunctionScenario
from viva.scenarios.registry import AnyScenario


def tasks_for(which: AnyScenario, tasks: Sequence[Any], run: Path) -> list[Any] | Path:
    """The tasks themselves for a scenario from a function. Other scenarios read a file of JSON lines, which is written
    beside the folder of the ``run`` and must stay as long as that is to be resumed.
    """
    if isinstance(which, FunctionScenario):
        return list(tasks)
    file = run.with_name(f"{run.name}.jsonl").absolute()
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, b"".join(orjson.dumps(task) + b"\n" for task in tasks))
    return file
