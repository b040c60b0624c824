"""Follows the journals of the runs below a folder and keeps the viewer's index up to date, in a thread of its own.

The runs are other processes: nothing is asked of them, and journals are only read, in short looks. What never belongs
here: questions of pages, and how a run is shown.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from viva.engine.errors import VivaError
from viva.engine.folder import RunFolder
from viva.engine.journal_tail import Additions, JournalTail, journal_state
from viva.orchestration.launch import recorded_settings
from viva.orchestration.sweep.results import planned_of
from viva.scenarios.contract import judge_role, many_role
from viva.scenarios.models import label_of, model_labels
from viva.scenarios.shown import ResultSummary
from viva.scoring.failures import reason_of

from .index import Calls, IndexedRun, IndexWriter, identity_of
from .runs import find_runs, is_held
from .search_text import strings_in

_BATCH = 4_000  # rows of one look
_IDLE_SECONDS = 0.4
_REST = 4  # times as long as a look took, before the next one, while a run goes on: the processor is the run's
_SEARCH_SECONDS = 5.0  # between looks for new runs
_OPEN_JOURNALS = 16
_MOST_PROBLEMS = 100  # that are told of
_log = logging.getLogger("viva")
OnChange = Callable[[int, list[tuple[str, int]]], None]


@dataclass(slots=True)
class _Followed:
    """A run that is followed. ``summary`` makes a line of a result, None where its scenario is not known here."""

    folder: RunFolder
    row: IndexedRun
    labels: list[str]
    summary: Callable[[Any], ResultSummary] | None
    planned: int | None
    state: tuple[int, ...] = ()
    tail: JournalTail | None = None
    checked: bool = False
    running: bool = False
    used: float = field(default_factory=time.monotonic)


class Indexer:
    """Keeps an index up to date until it is stopped. ``on_change`` is called, in the thread, with the version and some
    of the conversations that changed, as run and number.
    """

    def __init__(self, root: Path, file: Path, on_change: OnChange | None = None) -> None:
        self._root, self._file, self._on_change = root, file, on_change
        self._followed: dict[Path, _Followed] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="viva-view-index", daemon=True)
        self.caught_up = threading.Event()
        self._said: set[str] = set()
        self.problem = ""

    def start(self) -> None:
        """Begin, in the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and wait for it."""
        self._stop.set()
        self._thread.join()

    def catch_up(self) -> None:
        """Read everything there is, in the caller's thread."""
        writer = IndexWriter(self._file)
        try:
            self._find(writer)
            while self._look(writer):
                pass
        finally:
            self._close(writer)

    def _follow(self) -> None:
        try:
            writer = IndexWriter(self._file)
        except Exception as error:
            self.problem = f"{self._file}: the viewer's index cannot be written: {error}"
            _log.warning(self.problem)
            self.caught_up.set()
            return
        searched = 0.0
        try:
            while not self._stop.is_set():
                began = time.monotonic()
                try:
                    if began - searched > _SEARCH_SECONDS:
                        self._find(writer)
                        searched = began
                    busy = self._look(writer)
                except Exception as error:  # a damaged folder is no reason to stop looking at the others
                    writer.rollback()
                    self._say(f"{type(error).__name__}: {error}")
                    busy = False
                if not busy:
                    self.caught_up.set()
                    self._stop.wait(_IDLE_SECONDS)
                elif any(one.running for one in self._followed.values()):
                    self._stop.wait(_REST * (time.monotonic() - began))
        finally:
            self._close(writer)

    def _close(self, writer: IndexWriter) -> None:
        for one in self._followed.values():
            if one.tail is not None:
                one.tail.close()
        self._followed.clear()
        writer.close()

    # -- finding runs ---------------------------------------------------------------------------------------------

    def _find(self, writer: IndexWriter) -> None:
        """Take up runs that are new, and leave out those that are gone."""
        found = {path: (place, name) for place, (name, path) in enumerate(find_runs(self._root))}
        gone = self._followed.keys() - found.keys()
        new = [path for path in found if path not in self._followed]
        unknown = [name for name in writer.names() if name not in {name for _, name in found.values()}]
        if not (gone or new or unknown):
            return
        writer.begin()
        for path in gone:
            tail = self._followed.pop(path).tail
            if tail is not None:
                tail.close()
        for name in unknown:
            writer.forget(writer.names()[name])
        for path in new:
            place, name = found[path]
            followed = self._taken_up(writer, path, name, place)
            if followed is not None:
                self._followed[path] = followed
        self._told(writer.commit(texts=bool(unknown)), [])

    def _taken_up(self, writer: IndexWriter, path: Path, name: str, place: int) -> _Followed | None:
        try:
            folder = RunFolder.open(path)
        except VivaError as error:
            self._say(str(error))
            return None
        manifest = folder.manifest
        facts: dict[str, Any] = {"place": place, "scenario": str(manifest.get("scenario", ""))}
        dataset = manifest.get("dataset") or {}
        facts |= {"seed": manifest.get("seed"), "dataset": str(dataset.get("name", ""))}
        facts |= {"digest": str(dataset.get("digest", ""))}
        labels = next((list(model) for model in manifest.get("models", {}).values() if isinstance(model, dict)), [])
        summary, planned = None, None
        try:
            which, settings = recorded_settings(folder)
            labels = list(manifest["models"][many_role(which.roles_of(settings)).name])
            summary, planned = which.summary_of(settings), planned_of(folder) * max(1, len(labels))
            judge = judge_role(which.roles_of(settings))
            if judge is not None and isinstance(manifest["models"].get(judge.name), str):
                facts["judge"] = next(iter(model_labels([manifest["models"][judge.name]])))
        except Exception as error:  # of a scenario that is not installed, or that another version recorded
            facts["problem"] = f"its scenario cannot be used here: {error}"[:300]
        row = writer.run(name, identity_of(manifest, folder.journal), facts | {"planned": planned})
        return _Followed(folder, row, labels, summary, planned)

    # -- reading --------------------------------------------------------------------------------------------------

    def _look(self, writer: IndexWriter) -> bool:
        """One look at each journal that has changed; whether there was anything new."""
        busy = False
        for one in list(self._followed.values()):
            if self._stop.is_set():
                return False
            state = journal_state(one.folder.journal)
            if one.state and state[:1] != one.state[:1]:
                self._leave(one)  # another run lies there by now, or none: the next look for runs finds out
                continue
            if state == one.state:
                self._rest(writer, one)
                continue
            try:
                more = self._read(writer, one)
            except VivaError as error:
                writer.rollback()
                one.state = state
                self._say(str(error))
                continue
            if more:
                busy = True
            else:
                one.state = state
        return busy

    def _leave(self, one: _Followed) -> None:
        """Follow a run no more."""
        self._followed.pop(one.folder.path, None)
        if one.tail is not None:
            one.tail.close()

    def _read(self, writer: IndexWriter, one: _Followed) -> bool:
        """Take in what was added to a journal; whether there may be more."""
        if one.tail is None:
            self._make_room()
            one.tail = JournalTail(one.folder.journal)
        one.used = time.monotonic()
        row = one.row
        again = [] if one.checked else list(self._changed_ends(writer, one))
        added = one.tail.added(row.last_number, row.last_row, {*writer.unended(row), *again}, _BATCH)
        one.checked = True
        known = writer.checksums(row, [end.number for end in added.ended])
        ends = [end for end in added.ended if known.get(end.number) != end.checksum]
        running = one.running = is_held(one.folder.path)
        if not (added.started or added.calls or ends or added.more):
            self._set_state(writer, one, running)
            return False
        writer.begin()
        self._take_in(writer, one, added)
        changed = {number for number, _, _ in added.started} | {call.number for call in added.calls}
        for end in ends:
            changed.add(end.number)
            if end.failed:
                writer.fail(
                    row, end.number, str(end.result.get("type", "unknown")), reason_of(end.result), end.checksum
                )
            else:
                writer.end(row, end.number, self._summary(one, end.result), end.checksum)
        writer.set_state(row, self._state(one, running))
        writer.reached(row, added.last_number, added.last_row)
        texts = bool(added.started or added.calls)
        self._told(writer.commit(texts=texts), [(row.name, number) for number in sorted(changed)])
        return added.more

    def _changed_ends(self, writer: IndexWriter, one: _Followed) -> Iterator[int]:
        """Conversations that ended otherwise since the index was written, such as failed ones that were tried again."""
        assert one.tail is not None
        known = writer.checksums(one.row)
        if known:
            for number, checksum in one.tail.end_checksums().items():
                if number in known and known[number] != checksum:
                    yield number

    def _take_in(self, writer: IndexWriter, one: _Followed, added: Additions) -> None:
        for number, key, item in added.started:
            try:
                candidate = label_of(key, one.labels)
            except VivaError:
                candidate = key.partition("/")[0]
            task = key.removeprefix(f"{candidate}/")
            writer.start(one.row, number, key, candidate, task, " ".join(strings_in(item))[:20_000])
        calls: dict[int, Calls] = {}
        for call in added.calls:
            c, so_far = call.call.completion, calls.setdefault(call.number, Calls())
            so_far.count += 1
            so_far.prompt_tokens += c.prompt_tokens
            so_far.completion_tokens += c.completion_tokens
            so_far.seconds += c.latency
            so_far.retries += max(0, c.attempts - 1)
            so_far.at = max(so_far.at, call.call.at)
            so_far.texts.append(c.text + "".join(f" {tool.name} {tool.arguments}" for tool in c.calls or ()))
        for number, together in calls.items():
            writer.called(one.row, number, together)

    def _summary(self, one: _Followed, result: Any) -> ResultSummary:
        if one.summary is None:
            return ResultSummary()
        try:
            return one.summary(result)
        except Exception:  # of a result that another version recorded in another form
            return ResultSummary(end="of another version")

    def _rest(self, writer: IndexWriter, one: _Followed) -> None:
        """A journal that has not changed: the run may have ended."""
        if time.monotonic() - one.used > 1:
            one.used = time.monotonic()
            one.running = is_held(one.folder.path)
            self._set_state(writer, one, one.running)

    def _set_state(self, writer: IndexWriter, one: _Followed, running: bool) -> None:
        writer.begin()
        if writer.set_state(one.row, self._state(one, running)):
            self._told(writer.commit(), [])
        else:
            writer.rollback()

    def _state(self, one: _Followed, running: bool) -> str:
        return "running" if running else "ended"

    def _make_room(self) -> None:
        """Close the journal that was read longest ago where many are open."""
        opened = sorted((one for one in self._followed.values() if one.tail is not None), key=lambda one: one.used)
        for one in opened[: max(0, len(opened) - _OPEN_JOURNALS + 1)]:
            assert one.tail is not None
            one.tail.close()
            one.tail = None

    def _say(self, problem: str) -> None:
        """Tell of a problem once."""
        if problem not in self._said and len(self._said) < _MOST_PROBLEMS:
            self._said.add(problem)
            _log.warning("viva view: %s", problem)

    def _told(self, version: int, changed: list[tuple[str, int]]) -> None:
        if self._on_change is not None:
            self._on_change(version, changed)


def index_size(file: Path) -> int:
    """Bytes of the index."""
    return os.stat(file).st_size
