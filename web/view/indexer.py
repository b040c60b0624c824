"""The follower of runs: keeps the viewer's index up to date with the journals below a folder, until it is stopped.

A run folder may be by somebody else, and hold anything: what cannot be read is left out and named, and hides no other
run. Two viewers of one folder may share an index; each row of a journal is counted once.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from viva.engine.errors import VivaError
from viva.engine.journal_reader import JournalAdditions, JournalTail, journal_state
from viva.engine.run_folder import RunFolder, is_running
from viva.orchestration.completeness import planned_in_total
from viva.orchestration.launch import recorded_settings
from viva.scenarios.contract import SCORE, SupportsClusters, judge_role, score_ranges
from viva.scenarios.models import label_of_key, lineup_labels, model_labels
from viva.scenarios.registry import AnyScenario
from viva.scenarios.rendering import SETS, ResultSummary, set_function
from viva.scenarios.run_settings import repeats_of
from viva.scoring.aggregates import failure_reason

from .index import LONGEST_TEXT, CallTotals, IndexedRun, IndexWriter, is_damage, pace_slot, remove_index, strings_in
from .live import clip_text
from .run_figures import CallUsage
from .run_record import json_text, likeness_of, manifest_part, name_of
from .runs import RunSearch


def run_identity(manifest: dict[str, Any], journal: Path) -> str:
    """Return a key that distinguishes a run from a later one in the same folder."""
    digest = hashlib.blake2b(json_text(manifest).encode(), digest_size=12).hexdigest()
    try:
        return f"{digest}/{os.stat(journal).st_ino}"
    except OSError:
        return digest


def _file_state(file: Path) -> tuple[int, ...]:
    """Return what changes when a file is written."""
    try:
        status = os.stat(file)
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _planned(folder: RunFolder) -> int | None:
    """Return the number of conversations of a run; None if it is unknown, or no number that a run can have."""
    try:
        planned = planned_in_total(folder)
    except Exception:  # a damaged journal, or a manifest by others
        return None
    return planned if planned is not None and 0 <= planned < 1 << 53 else None


def _count(value: int) -> int:
    """Return a number of a call as one whose sums fit into the index."""
    return min(max(0, value), _LARGEST_COUNT)


def _checked(summary: ResultSummary) -> ResultSummary:
    """Return a summary whose values have their types; a scenario may copy them from a result by others."""
    whole = {summary.unscored, *([] if summary.rounds is None else [summary.rounds])}
    numbers = [*summary.aspects.values(), *([] if summary.score is None else [summary.score])]
    is_valid = (
        isinstance(summary.end, str)
        and all(isinstance(value, int) and abs(value) <= _LARGEST_COUNT for value in whole)
        and all(isinstance(value, int | float) and math.isfinite(value) for value in numbers)
        and all(isinstance(name, str) for name in summary.aspects)
    )
    return summary if is_valid else ResultSummary(end="of another form")


def _cluster_and_set(run: _FollowedRun, result: Any) -> tuple[str, bool]:
    """Return the cluster of a result ("" if none), and whether its item is of a second set."""
    cluster, is_second = "", False
    try:
        if isinstance(run.scenario, SupportsClusters):
            cluster = run.scenario.cluster_of(result)
        if (set_of := set_function(run.scenario, run.folder.manifest)) is not None:
            is_second = set_of(result) == SETS[1]
    except Exception:  # another version has recorded the result in another form
        return "", False
    return (cluster if isinstance(cluster, str) else ""), is_second


_LARGEST_COUNT = 10**9  # a larger number in one call is damage; sums of it would not fit into SQLite
_ROW_BATCH = 4_000  # maximum rows per read
_IDLE_SECONDS = 0.4
_REST_FACTOR = 4  # pause between reads while a run needs the processor, as a multiple of the last read's duration
_SEARCH_SECONDS = 5.0  # seconds between searches for new runs
_OPEN_JOURNALS = 16
_MOST_PROBLEMS = 100  # maximum problems reported
_MOST_SHOWN_PROBLEMS = 20
_MOST_REBUILDS = 3  # a disk that damages the index again and again is left to its owner
_STOP_SECONDS = 10.0  # seconds that the end of the viewer waits for the thread
_log = logging.getLogger("viva")
OnChange = Callable[[int, list[tuple[str, int]]], None]


@dataclass(slots=True)
class _FollowedRun:
    """A followed run. `summary` summarizes a result; it and `scenario` are None if the scenario is unknown here."""

    folder: RunFolder
    row: IndexedRun
    labels: list[str]
    summary: Callable[[Any], ResultSummary] | None
    planned: int | None
    scenario: AnyScenario | None = None
    repeats: int = 1
    manifest: tuple[int, ...] = ()
    state: tuple[int, ...] = ()
    problem: str = ""
    tail: JournalTail | None = None
    checked: bool = False
    running: bool = False
    used: float = field(default_factory=time.monotonic)


class Indexer:
    """Keeps an index up to date until it is stopped.

    `on_change` is called in the thread with the version and some of the changed conversations, each as (run, number).
    """

    def __init__(self, root: Path, file: Path, on_change: OnChange | None = None) -> None:
        self._root, self._file, self._on_change = root, file, on_change
        self._followed: dict[Path, _FollowedRun] = {}
        self._refused: dict[Path, tuple[tuple[int, ...], str]] = {}  # folders: state of the manifest, and the problem
        self._left_out: list[str] = []
        self._noted: list[str] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="viva-view-index", daemon=True)
        self.caught_up = threading.Event()
        self._damaged = threading.Event()
        self._rebuilds = 0
        self._reported_problems: set[str] = set()
        self.problem = ""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; do not wait for a disk that does not answer."""
        self._stop.set()
        self._thread.join(_STOP_SECONDS)

    def rebuild(self) -> None:
        """Have the index made again, because a reader has met damage; call it from any thread."""
        self.caught_up.clear()
        self._damaged.set()

    def catch_up(self) -> None:
        """Read everything available, in the caller's thread."""
        writer = IndexWriter(self._file)
        try:
            if not writer.is_sound:
                writer = self._rebuilt(writer)
            self._find(writer)
            while self._look(writer):
                pass
            self._note_left_out(writer)
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
        searched = -math.inf
        try:
            while not self._stop.is_set():
                began = time.monotonic()
                busy = False
                try:
                    if self._damaged.is_set() and self._rebuilds < _MOST_REBUILDS:
                        writer = self._rebuilt(writer)
                        searched = -math.inf
                    if began - searched > _SEARCH_SECONDS:
                        self._find(writer)
                        searched = began
                    busy = self._look(writer)
                    if not busy:
                        self._note_left_out(writer)
                except Exception as error:
                    with suppress(sqlite3.Error):
                        writer.rollback()
                    if is_damage(error):
                        self._damaged.set()
                    self._say(f"{self._file}: {type(error).__name__}: {error}")
                if not busy:
                    if not self.caught_up.is_set():
                        self.caught_up.set()
                        self._report_changes(0, [])  # open pages say that the index is still being built
                    self._stop.wait(_IDLE_SECONDS)
                elif any(run.running for run in self._followed.values()):
                    self._stop.wait(_REST_FACTOR * (time.monotonic() - began))
        finally:
            self._close(writer)

    def _rebuilt(self, writer: IndexWriter) -> IndexWriter:
        """Remove a damaged index and return the writer of a new one, which continues the numbers of its versions."""
        self._damaged.clear()
        self._noted = None
        self._rebuilds += 1
        self.caught_up.clear()
        self._say(f"{self._file}: the viewer's index is damaged and is made again")
        self._close(writer)
        remove_index(self._file)
        return IndexWriter(self._file, writer.version + 1)

    def _close(self, writer: IndexWriter) -> None:
        for run in self._followed.values():
            if run.tail is not None:
                run.tail.close()
        self._followed.clear()
        writer.close()

    # -- finding runs ---------------------------------------------------------------------------------------------

    def _find(self, writer: IndexWriter) -> None:
        """Add new runs, and remove those that no longer exist."""
        search = RunSearch(self._root)
        paths = {path: (position, name) for position, (name, path) in enumerate(search.runs())}
        self._left_out = search.notes
        self._refused = {path: refused for path, refused in self._refused.items() if path in paths}
        removed = self._followed.keys() - paths.keys()
        new = [path for path in paths if path not in self._followed and not self._is_refused(path)]
        names = {name for _, name in paths.values()}
        unknown = [name for name in writer.names() if name not in names]
        if not (removed or new or unknown):
            return
        writer.begin()
        for path in removed:
            tail = self._followed.pop(path).tail
            if tail is not None:
                tail.close()
        known = writer.names()
        for name in unknown:
            if name in known:
                writer.forget(known[name])
        for path in new:
            position, name = paths[path]
            state = _file_state(path / "manifest.json")
            try:
                with writer.part():
                    self._followed[path] = self._taken_up(writer, path, name, position)
                self._refused.pop(path, None)
            except Exception as error:  # one damaged folder must not hide other runs
                if is_damage(error) or isinstance(error, sqlite3.OperationalError):
                    raise
                problem = str(error) if isinstance(error, VivaError) else f"{path}: {type(error).__name__}: {error}"
                self._refused[path] = state, problem
                self._say(problem)
        self._report_changes(writer.commit(texts=bool(unknown)), [])

    def _is_refused(self, path: Path) -> bool:
        """Return True if the run in a folder could not be read, and its manifest has not changed since."""
        return path in self._refused and self._refused[path][0] == _file_state(path / "manifest.json")

    def _note_left_out(self, writer: IndexWriter) -> None:
        """Record what pages do not show: what the search left out, and the runs that cannot be read."""
        problems = [problem for _, problem in self._refused.values()]
        problems += [run.problem for run in self._followed.values() if run.problem]
        sentences = [*self._left_out, *(clip_text(problem) for problem in problems)]
        if len(sentences) > _MOST_SHOWN_PROBLEMS:
            sentences[_MOST_SHOWN_PROBLEMS:] = [f"{len(sentences) - _MOST_SHOWN_PROBLEMS:,} more"]
        if sentences == self._noted:
            return
        writer.begin()
        if writer.leave_out(sentences):
            self._report_changes(writer.commit(), [])
        else:
            writer.rollback()
        self._noted = sentences

    def _taken_up(self, writer: IndexWriter, path: Path, name: str, position: int) -> _FollowedRun:
        state = _file_state(path / "manifest.json")
        folder = RunFolder.open(path)
        manifest = folder.manifest
        facts: dict[str, Any] = {"place": position, "scenario": name_of(manifest.get("scenario"))}
        dataset, second, seed = (
            manifest_part(manifest, "dataset"),
            manifest_part(manifest, "against"),
            manifest.get("seed"),
        )
        facts |= {"seed": seed if isinstance(seed, int) and -(2**63) <= seed < 2**63 else None}
        facts |= {"dataset": name_of(dataset.get("name")), "digest": name_of(dataset.get("digest"))}
        facts |= {f"second_{key}": name_of(second[key]) for key in ("name", "digest") if key in second}
        labels = next(
            (list(model) for model in manifest_part(manifest, "models").values() if isinstance(model, dict)), []
        )
        summary, planned, scenario, repeats = None, None, None, 1
        facts |= {"likeness": json_text(likeness_of(manifest, manifest_part(manifest, "settings"), ()))}
        facts |= {"adaptive": int(manifest.get("bank") is not None)}
        try:
            scenario, settings = recorded_settings(folder)
            labels = lineup_labels(scenario.roles_of(settings), manifest)
            summary, planned = scenario.summary_of(settings), _planned(folder)
            repeats = repeats_of(settings)
            compared = [role.name for role in scenario.roles_of(settings) if role.many]
            likeness = likeness_of(manifest, settings.model_dump(mode="json"), {*compared, scenario.data})
            facts["likeness"] = orjson.dumps(likeness).decode()
            facts["models"] = orjson.dumps({name: manifest["models"].get(name) for name in compared}).decode()
            ranges = scenario.ranges if scenario.rate else score_ranges(scenario, settings)
            low, high = ranges.get(SCORE, (-math.inf, math.inf))
            facts |= {"low": low if math.isfinite(low) else None, "high": high if math.isfinite(high) else None}
            facts |= {"unit": scenario.unit, "rate": int(scenario.rate)}
            judge = judge_role(scenario.roles_of(settings))
            if judge is not None and isinstance(manifest["models"].get(judge.name), str):
                facts["judge"] = next(iter(model_labels([manifest["models"][judge.name]])))
        except Exception as error:  # the scenario is not installed, or another version recorded the run
            facts["problem"] = f"its scenario is not available: {error}"[:300]
        row = writer.run(name, run_identity(manifest, folder.journal), facts | {"planned": planned})
        return _FollowedRun(folder, row, labels, summary, planned, scenario, repeats, state)

    # -- reading --------------------------------------------------------------------------------------------------

    def _look(self, writer: IndexWriter) -> bool:
        """Read each journal that has changed; return True if there was anything new."""
        busy = False
        for run in list(self._followed.values()):
            if self._stop.is_set():
                return False
            state = journal_state(run.folder.journal)
            if run.state and state[:1] != run.state[:1]:
                # The folder now has another run or none; the next search for runs finds out which.
                self._followed.pop(run.folder.path, None)
                if run.tail is not None:
                    run.tail.close()
                continue
            if state == run.state:
                self._finish_run(writer, run)
                continue
            try:
                more = self._read(writer, run)
                run.problem = ""
            except Exception as error:  # one damaged journal must not hide other runs
                if is_damage(error) or isinstance(error, sqlite3.OperationalError):
                    raise  # of the index; those of a journal are a JournalError
                writer.rollback()
                if self._stop.is_set():
                    return False
                run.state = state
                path = run.folder.path
                run.problem = str(error) if isinstance(error, VivaError) else f"{path}: {type(error).__name__}: {error}"
                self._say(run.problem)
                continue
            if more:
                busy = True
            else:
                run.state = state
        return busy

    def _read(self, writer: IndexWriter, run: _FollowedRun) -> bool:
        """Index what was added to a journal; return True if there may be more."""
        if run.tail is None:
            self._make_room()
            run.tail = JournalTail(run.folder.journal, self._stop.is_set)
        run.used = time.monotonic()
        row = run.row
        repeated = [] if run.checked else list(self._changed_ends(writer, run))
        unended = {*writer.unended(row), *repeated}
        added = run.tail.read_additions(row.last_number, row.last_row, unended, _ROW_BATCH, writer.known(row))
        run.checked = not added.cut
        running = run.running = is_running(run.folder.path)
        if not (added.started or added.calls or added.ended or added.more):
            self._set_state(writer, run, running)
            return False
        changed = {number for number, _, _ in added.started} | {call.number for call in added.calls}
        writer.begin()
        try:
            is_current = writer.is_current(row)
        except KeyError:  # another viewer took it for removed; the next search for runs adds it again
            writer.rollback()
            self._followed.pop(run.folder.path, None)
            return False
        if not is_current:  # another viewer of this folder was faster
            writer.rollback()
            changed |= {end.number for end in added.ended}
            self._report_changes(writer.version, [(row.name, number) for number in sorted(changed)])
            return True
        checksums = writer.checksums(row, [end.number for end in added.ended])
        ends = [end for end in added.ended if checksums.get(end.number) != end.checksum]
        self._take_in(writer, run, added)
        for end in ends:
            changed.add(end.number)
            if end.failed:
                kind = str(end.result.get("type", "unknown"))
                writer.fail(row, end.number, kind, failure_reason(end.result), end.checksum)
            else:
                cluster, is_second = _cluster_and_set(run, end.result)
                writer.end(row, end.number, self._summary(run, end.result), end.checksum, cluster, is_second)
        self._note_state(writer, run, running)
        writer.reached(row, added.last_number, added.last_row)
        texts = bool(added.started or added.calls)
        self._report_changes(writer.commit(texts=texts), [(row.name, number) for number in sorted(changed)])
        return added.more

    def _changed_ends(self, writer: IndexWriter, run: _FollowedRun) -> Iterator[int]:
        """Iterate over conversations whose end has changed since the index was written, such as retried ones."""
        assert run.tail is not None
        checksums = writer.checksums(run.row)
        if checksums:
            for number, checksum in run.tail.end_checksums().items():
                if number in checksums and checksums[number] != checksum:
                    yield number

    def _take_in(self, writer: IndexWriter, run: _FollowedRun, added: JournalAdditions) -> None:
        for number, key, item in added.started:
            try:
                candidate = label_of_key(key, run.labels)
            except VivaError:
                candidate = key.partition("/")[0]
            name = key.removeprefix(f"{candidate}/")
            task, _, repeat = name.rpartition("#")
            is_repeat = repeat.isascii() and repeat.isdigit() and len(repeat) < 9 and 2 <= int(repeat) <= run.repeats
            text = " ".join(strings_in(item))[:20_000]
            writer.start(run.row, number, key, candidate, name, task if is_repeat else name, text)
        calls: dict[int, CallTotals] = {}
        by_slot: Counter[int] = Counter()
        for call in added.calls:
            by_slot[slot := pace_slot(call.call.at)] += 1
            c, so_far = call.call.completion, calls.setdefault(call.number, CallTotals())
            prompt_tokens, completion_tokens = _count(c.prompt_tokens), _count(c.completion_tokens)
            so_far.count += 1
            so_far.prompt_tokens += prompt_tokens
            so_far.completion_tokens += completion_tokens
            so_far.seconds += c.latency if 0.0 <= c.latency <= _LARGEST_COUNT else 0.0
            so_far.retries += _count(c.attempts - 1)
            so_far.at = max(so_far.at, call.call.at if slot else 0.0)
            so_far.texts.append(
                c.text[:LONGEST_TEXT] + "".join(f" {tool.name} {tool.arguments}" for tool in c.calls or ())
            )
            if (used := so_far.roles.get(call.call.role)) is None:
                used = so_far.roles[call.call.role] = CallUsage()
            used.count(prompt_tokens, completion_tokens, _count(c.cached_tokens))
            if slot:
                used.span(call.call.at - c.latency, call.call.at)
        usage: dict[tuple[str, str], CallUsage] = {}
        for number, together in calls.items():
            candidate = writer.called(run.row, number, together)
            for role, used in together.roles.items():
                usage.setdefault((role, candidate), CallUsage()).add(used)
        writer.use(run.row, usage)
        writer.pace(run.row, by_slot)

    def _summary(self, run: _FollowedRun, result: Any) -> ResultSummary:
        if run.summary is None:
            return ResultSummary()
        try:
            return _checked(run.summary(result))
        except Exception:  # another version has recorded the result in another form
            return ResultSummary(end="from another version")

    def _finish_run(self, writer: IndexWriter, run: _FollowedRun) -> None:
        """Update a run whose journal has not changed, because the run may have ended."""
        if time.monotonic() - run.used > 1:
            run.used = time.monotonic()
            run.running = is_running(run.folder.path)
            self._set_state(writer, run, run.running)

    def _set_state(self, writer: IndexWriter, run: _FollowedRun, running: bool) -> None:
        writer.begin()
        if self._note_state(writer, run, running):
            self._report_changes(writer.commit(), [])
        else:
            writer.rollback()

    def _note_state(self, writer: IndexWriter, run: _FollowedRun, running: bool) -> bool:
        """Record whether a run is in progress, and how many conversations it has in all.

        Conversations are added while a run is in progress, and an exam ends early.
        """
        changed = writer.set_state(run.row, running)
        manifest = _file_state(run.folder.path / "manifest.json")
        if manifest != run.manifest or (changed and not running):
            run.manifest = manifest
            with suppress(VivaError):
                changed |= writer.plan(run.row, _planned(RunFolder.open(run.folder.path)))
        return changed

    def _make_room(self) -> None:
        """Close the least recently read journal if many are open."""
        opened = sorted((run for run in self._followed.values() if run.tail is not None), key=lambda run: run.used)
        for run in opened[: max(0, len(opened) - _OPEN_JOURNALS + 1)]:
            assert run.tail is not None
            run.tail.close()
            run.tail = None

    def _say(self, problem: str) -> None:
        """Report a problem once."""
        if problem not in self._reported_problems and len(self._reported_problems) < _MOST_PROBLEMS:
            self._reported_problems.add(problem)
            _log.warning("viva view: %s", problem)

    def _report_changes(self, version: int, changed: list[tuple[str, int]]) -> None:
        if self._on_change is not None:
            self._on_change(version, changed)
