"""The formats that can be imported, by name: those of this room, and those that systems read into runs of theirs.

What never belongs here: reading a format.
"""

from __future__ import annotations

from pathlib import Path

from viva.engine.errors import ConfigurationError
from viva.scenarios.imported import Import, ImportChoices
from viva.scenarios.registry import AnyScenario, scenarios

from .imported import Imported

_INSPECT = "inspect"
_OWN = {_INSPECT: "dialogs of a log of Inspect (.eval, .json), as JSON lines that a suite judges."}


def import_formats() -> dict[str, str]:
    """Every format's name, with one line about it."""
    return _OWN | {one.name: one.summary for one in _of_systems()}


def import_file(path: Path, source: str, out: Path | None = None, choices: ImportChoices | None = None) -> Imported:
    """Import a file in the format ``source``. ``out`` is the run folder or file that is made; None: one in the current
    folder that is called after the file.

    :raises ConfigurationError: the format is unknown, ``out`` exists, a choice is of no use, or a package is missing.
    :raises DatasetError: the file is wrong; the message names the line or entry.
    """
    choices = choices or ImportChoices()
    systems = _of_systems()
    if source not in import_formats():
        raise ConfigurationError(f"--from {source}: expected one of {', '.join(import_formats())}")
    if source == _INSPECT:
        if choices.dataset is not None or choices.models:
            raise ConfigurationError(f"--from {source}: takes neither --dataset nor --model")
        from .inspect_log import import_inspect

        file = out or Path(f"{path.stem}.jsonl")
        if file.exists():
            raise ConfigurationError(f"{file} exists; name another file with --out")
        return import_inspect(path, file)
    from .run_folder import make_run

    [(one, which)] = [pair for pair in systems.items() if pair[0].name == source]
    folder = out or Path("runs", path.stem)
    if folder.exists():
        raise ConfigurationError(f"{folder} exists; name another folder with --out")
    roles = [role.name for role in which.roles]
    if unknown := sorted(choices.models.keys() - set(roles)):
        raise ConfigurationError(f"--model {unknown[0]}=…: no role of {which.name}; it has {', '.join(roles)}")
    made = one.read(path, choices)
    return Imported([folder], make_run(which, made, source, folder), made.notes, run=True)


def _of_systems() -> dict[Import, AnyScenario]:
    return {one: which for which in scenarios() for one in which.imports()}
