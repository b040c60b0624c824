"""Files of conversations into dialogs, one at a time: JSON lines, JSON lists, logs, and folders of finished runs.

Each file is read in bounded memory. A line that cannot be read comes as ``Unreadable`` and the next one follows; a file
that cannot be read at all is an error. What never belongs here: the forms themselves (``records``, ``logs``, ``runs``).
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import orjson

from viva.data.fields import FieldError
from viva.data.json_values import read_values
from viva.data.lines import BadLine, read_lines
from viva.data.reading import ENDINGS, Record, read_jsonl, read_records
from viva.engine.errors import DatasetError

from ..units import Dialog
from .logs import LogForm, form_of, read_log
from .records import Unreadable, dialog_of, place_of, unreadable
from .runs import is_run, read_run

_OTHER_ENDINGS = tuple(ending for ending in ENDINGS if ending not in (".jsonl", ".json", ".ndjson"))


def expand(patterns: Sequence[str], folder: Path) -> list[Path]:
    """The files and run folders that globs stand for (``**``: folders at any depth), each once, sorted by path.

    :param folder: relative patterns begin here.
    :raises DatasetError: a pattern stands for no file; the message names it.
    """
    found: set[Path] = set()
    for pattern in patterns:
        whole = Path(pattern).expanduser()
        whole = whole if whole.is_absolute() else folder / whole
        # The folder's own name may hold brackets: only what the user wrote is a pattern, unless a file has that name.
        root = Path(glob.escape(str(folder))) / pattern if whole.is_relative_to(folder) else whole
        named = [whole] if whole.exists() else [Path(one) for one in glob.glob(str(root), recursive=True)]
        files = [one for one in named if one.is_file() or is_run(one)]
        if not files:
            what = "is a folder without a run in it" if named else "there is no such file"
            raise DatasetError(f"{what}; patterns begin at {folder.resolve()}", path=pattern)
        found.update(files)
    return sorted(found)


def read_all(
    paths: Sequence[Path], form: LogForm | None = None, known: set[bytes] | None = None
) -> Iterator[Dialog | Unreadable]:
    """The dialogs of several files, each with an id of its own, lines that cannot be read too: where an id was there
    before, the later one is called ``FILESTEM:ID`` instead, or with a number behind it. ``#`` becomes ``:``, for behind
    it a conversation's key has the number of the repeat. A dialog's own id is then in its metadata as ``id``.

    :param known: digests of the ids so far; added to.
    :raises DatasetError: as ``read_dialogs``.
    """
    known = set() if known is None else known
    for path in paths:
        for one in read_dialogs(path, form):
            own = one.id.replace("#", ":") if isinstance(one, Dialog) else place_of(path, one.line)
            id_ = _free(own, path, known)
            known.add(_digest(id_))
            if isinstance(one, Dialog) and id_ != one.id:
                yield replace(one, id=id_, metadata={"id": one.id, **one.metadata})
            else:
                yield one if isinstance(one, Dialog) else replace(one, id=id_)


def read_dialogs(path: Path, form: LogForm | None = None) -> Iterator[Dialog | Unreadable]:
    """The dialogs of a file, or of the folder of a finished run.

    :param form: what the lines are; None: what the first line that can be read is.
    :raises DatasetError: the file cannot be read at all.
    """
    if is_run(path):
        yield from read_run(path)
        return
    detected = form or _detected(path)
    if detected == "dialogs":
        for line, raw in _records(path):
            try:
                if isinstance(raw, DatasetError):
                    raise raw
                one: Dialog | Unreadable = dialog_of(raw, place_of(path, line))
            except (FieldError, DatasetError) as error:
                one = unreadable(path, line, error)
            yield one
    else:
        yield from read_log(path, detected, lambda: _records(path))


def _detected(path: Path) -> LogForm:
    for _, raw in _records(path):
        if not isinstance(raw, DatasetError) and (form := form_of(raw)) is not None:
            return form
    return "dialogs"


def _records(path: Path) -> Iterator[Record]:
    if path.suffix in _OTHER_ENDINGS:
        return read_records(path)
    return read_values(path) if _is_one_text(path) else read_jsonl(path)


def _is_one_text(path: Path) -> bool:
    """Whether a file is one JSON text, a list or an object over several lines, instead of one a line."""
    begun = False
    for _, line in read_lines(path):
        if isinstance(line, BadLine):
            return False
        text = line.strip()
        if begun:
            return not text.startswith("{")
        if not text:
            continue
        if text[0] == "[":
            return True
        if text[0] != "{" or path.suffix != ".json":
            return False
        try:
            orjson.loads(text)
            return False
        except orjson.JSONDecodeError:
            begun = True
    return begun


def _free(id_: str, path: Path, known: set[bytes]) -> str:
    """An id that no dialog has yet."""
    if _digest(id_) not in known:
        return id_
    named = id_ if id_.startswith(f"{path.stem}:") else f"{path.stem}:{id_}"
    number = 2
    found = named
    while _digest(found) in known:
        found, number = f"{named}:{number}", number + 1
    return found


def _digest(id_: str) -> bytes:
    return blake2b(id_.encode("utf-8", "surrogatepass"), digest_size=8).digest()
