"""A selection of conversations: the commands that act on them, to be copied, and their records as JSON lines.

The viewer itself changes nothing. Small selections are named by their keys, larger ones by a file (`--select`).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlencode

import orjson
from multidict import MultiMapping

from viva.engine.errors import ConfigurationError
from viva.engine.files import shell_path
from viva.orchestration.control import MOST_KEYS
from viva.sweeps.sweep_folder import is_sweep

from .filters import Filter
from .index import FAILED, FINISHED
from .queries import IndexReader, ListedConversation

_MOST_NAMED = 20  # maximum conversations that a command names one by one
_LONGEST_KEY = 1_000  # characters of a key in a command
_MOST_RUNS = 20  # runs of which commands are shown
_MOST_PICKED = 500
_MOST_LEVELS = 8  # levels of folders between a sweep and a cell
_STATES = ("open", "finished", "failed")


@dataclass(frozen=True, slots=True)
class Selection:
    """Selected conversations: those that were `picked` one by one, by run and number, else all that match `filter`."""

    filter: Filter
    picked: tuple[tuple[str, int], ...] = ()

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> Selection:
        """Parse a selection's address.

        Raises:
            ConfigurationError: A value is not valid for its field.
        """
        texts = query.getall("pick", []) if isinstance(query, MultiMapping) else []
        return cls(Filter.from_query(query), tuple(parse_conversation(text, "pick") for text in texts[:_MOST_PICKED]))

    def query(self, run: str, only: str = "") -> str:
        """Return the query of the address of the conversations of one run, of one state ("" for all)."""
        own = {"of": run} | ({"only": only} if only else {})
        picked = [("pick", f"{name}/{number}") for name, number in self.picked if name == run]
        return urlencode([*own.items(), *picked]) if picked else f"{urlencode(own)}&{self.filter.query()}".rstrip("&")

    def conversations(self, reader: IndexReader, run: str = "", only: str = "") -> Iterator[ListedConversation]:
        """Iterate over the conversations, or those of one run, of one state."""
        every: Iterable[ListedConversation] = (
            reader.picked(self.picked) if self.picked else reader.selected(self.filter)
        )
        return (own for own in every if run in ("", own.run) and only in ("", _STATES[own.state]))


def parse_conversation(text: str, name: str) -> tuple[str, int]:
    """Return the run and the number in RUN/NUMBER."""
    run, _, number = text.rpartition("/")
    if not run or not (number.isascii() and number.isdigit() and len(number) < 16):
        raise ConfigurationError(f"{name}: expected RUN/NUMBER, found '{text[:80]}'")
    return run, int(number)


@dataclass(slots=True)
class Action:
    """A command and what it does.

    If the command reads the selection from a `file`, that must be downloaded first; `only` is the state of the
    conversations in it, "" for all.
    """

    purpose: str
    command: str
    file: str = ""
    only: str = ""


@dataclass(slots=True)
class SelectedRun:
    """The selected conversations of one run: counts, the keys of the first ones, and one that has finished."""

    name: str
    total: int = 0
    failed: int = 0
    finished: int = 0
    keys: list[str] = field(default_factory=list)
    failed_keys: list[str] = field(default_factory=list)
    example: ListedConversation | None = None
    actions: list[Action] = field(default_factory=list)

    def add(self, conversation: ListedConversation) -> None:
        self.total += 1
        self.failed += conversation.state == FAILED
        self.finished += conversation.state == FINISHED
        if conversation.state == FINISHED and self.example is None:
            self.example = conversation
        if self.total <= _MOST_NAMED:
            self.keys.append(conversation.key)
        if conversation.state == FAILED and self.failed <= _MOST_NAMED:
            self.failed_keys.append(conversation.key)


def selected_runs(
    selection: Selection, reader: IndexReader, root: Path, has_answer: Callable[[ListedConversation], bool]
) -> tuple[list[SelectedRun], int]:
    """Return the runs with selected conversations, the first ones with commands, and the number of conversations.

    `has_answer` tells if a finished conversation has an answer that people can grade; it is asked once for each run.
    """
    runs: dict[str, SelectedRun] = {}
    if selection.picked:
        for conversation in selection.conversations(reader):
            runs.setdefault(conversation.run, SelectedRun(conversation.run)).add(conversation)
    else:
        counts = reader.selected_by_run(selection.filter)
        runs = {name: SelectedRun(name, total, failed, finished) for name, total, failed, finished in counts}
        for run in list(runs.values())[:_MOST_RUNS]:
            run.keys = [own.key for own in _first(reader, selection.filter, run.name, "")]
            if 0 < run.failed <= _MOST_NAMED:
                run.failed_keys = [own.key for own in _first(reader, selection.filter, run.name, "failed")]
            if run.finished:
                run.example = next(iter(_first(reader, selection.filter, run.name, "finished")), None)
    all_failed = {run.name: (run.total.failed, run.running) for run in reader.runs()}
    for run in list(runs.values())[:_MOST_RUNS]:
        failed, is_running = all_failed.get(run.name, (0, False))
        is_gradable = run.example is not None and has_answer(run.example)
        run.actions = list(_actions(run, _folder(root, run.name), failed, is_running, is_gradable))
    return list(runs.values()), sum(run.total for run in runs.values())


def _first(reader: IndexReader, chosen: Filter, run: str, state: str) -> list[ListedConversation]:
    return reader.listed(replace(chosen, run=run, page=1, state=state or chosen.state))[:_MOST_NAMED]


def _folder(root: Path, run: str) -> Path:
    return root if (root / "manifest.json").is_file() else root / run


def _sweep_of(folder: Path) -> Path | None:
    """Return the sweep of which a run is a cell, None if it is none."""
    return next((parent for parent in list(folder.parents)[:_MOST_LEVELS] if is_sweep(parent)), None)


def _actions(run: SelectedRun, folder: Path, all_failed: int, is_running: bool, is_gradable: bool) -> Iterator[Action]:
    name = shell_path(folder)
    if run.failed and is_running:
        purpose, command = f"Repeat the {run.failed:,} failed, while the run goes on", f"viva control {name} requeue"
        if run.failed == all_failed or run.failed > MOST_KEYS:
            yield Action(f"Repeat all {all_failed:,} failed, while the run goes on", f"{command} --failed")
        elif run.failed <= _MOST_NAMED and _are_short(run.failed_keys):
            yield Action(purpose, f"{command} {_words(run.failed_keys)}")
        else:
            file = download_name(run.name, "failed")
            yield Action(purpose, f"{command} --select {file}", file, "failed")
    elif run.failed:
        sweep = _sweep_of(folder)
        target = name if sweep is None else shell_path(sweep)
        rest = "" if sweep is None else ", and those of the sweep's other runs"
        counts = f"all {all_failed:,} failed of this run" if run.failed < all_failed else f"the {run.failed:,} failed"
        yield Action(f"Repeat {counts}{rest}", f"viva resume {target} --retry-failed")
    if run.total == 1 and _are_short(run.keys):
        yield Action("Read it in the terminal", f"viva show {name} {_option('--conversation', run.keys[0])}")
    else:
        file = download_name(run.name)
        purpose = f"Write the {run.total:,} transcript{'s' * (run.total != 1)} as JSON lines"
        yield Action(purpose, f"viva show {name} --json --select {file}", file)
    if is_gradable:
        file, purpose = download_name(run.name, "finished"), f"Let people grade the {run.finished:,} finished"
        command = f"viva grade queue {name} --select {file} --out {_file_name(run.name)}-grades"
        yield Action(purpose, command, file, "finished")


def _are_short(keys: Sequence[str]) -> bool:
    return all(len(key) <= _LONGEST_KEY for key in keys)


def _option(name: str, value: str) -> str:
    return f"{name} {shlex.quote(value)}" if not value.startswith("-") else shlex.quote(f"{name}={value}")


def _words(keys: Sequence[str]) -> str:
    dashed = any(key.startswith("-") for key in keys)
    return ("-- " if dashed else "") + " ".join(map(shlex.quote, keys))


def _file_name(run: str) -> str:
    """Return a run's name as a plain file name."""
    return (
        "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in run)[
            -80:
        ].lstrip(".-")
        or "run"
    )


def download_name(run: str, only: str = "") -> str:
    """Return the file name of a download."""
    return "-".join(filter(None, (_file_name(run) if run else "selection", only))) + ".jsonl"


def selection_lines(conversations: Iterable[ListedConversation]) -> Iterator[bytes]:
    """Return the conversations as JSON lines."""
    for own in conversations:
        record = {
            "run": own.run,
            "number": own.number,
            "key": own.key,
            "candidate": own.candidate,
            "item": own.item,
            "dataset": own.dataset,
            "state": _STATES[own.state],
            "score": own.score,
            "aspects": own.aspects,
            "end": own.end,
            "error": own.error,
            "reason": own.reason,
            "rounds": own.rounds,
            "calls": own.calls,
            "prompt_tokens": own.prompt_tokens,
            "completion_tokens": own.completion_tokens,
            "seconds": own.seconds,
            "retries": own.retries,
            "at": own.at,
        }
        yield orjson.dumps(record) + b"\n"
