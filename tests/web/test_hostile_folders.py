"""Folders by anybody beside a good run: they hide nothing, lead nowhere else, and end nothing; without a browser."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from case_tables import case_table
from probing import make_items

import viva
from viva.engine.errors import ConfigurationError, JournalError
from viva.engine.journal_format import call_checksum, short_checksum
from viva.engine.run_folder import is_running
from viva.sweeps.cells import check_cell_name
from viva.web.view.filters import Filter
from viva.web.view.index import IndexWriter, index_file, open_index, private_file
from viva.web.view.indexer import Indexer
from viva.web.view.matrix import MatrixView
from viva.web.view.pages import PageContext, Pages
from viva.web.view.queries import IndexReader
from viva.web.view.runs import RunSearch, left_out, study_folders


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of six conversations, 18 calls."""
    folder = tmp_path_factory.mktemp("good")
    data = make_items(folder / "items.jsonl", 3)
    models: dict[str, Any] = {"candidate": ["simulated:a?knowledge=0.9", "simulated:b?knowledge=0.2"]}
    models |= {"interactor": "simulated:asker", "evaluator": "simulated:strict"}
    viva.run_sync("kieval", models=models, dataset=str(data), out=folder / "run", rounds=1, seed=5)
    return folder / "run"


def _nested(depth: int) -> str:
    return "[" * depth + '"x"' + "]" * depth


Edit = Callable[[Path], None]


def _manifest(**values: Any) -> Edit:
    def edit(run: Path) -> None:
        file = run / "manifest.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | values))

    return edit


def _text(more: str) -> Edit:
    def edit(run: Path) -> None:
        file = run / "manifest.json"
        file.write_text(file.read_text().rstrip()[:-1] + f', "zz": {more}}}')

    return edit


def _rows(*statements: tuple[str, tuple[Any, ...]] | str) -> Edit:
    def edit(run: Path) -> None:
        with closing(sqlite3.connect(run / "journal.sqlite", isolation_level=None)) as connection:
            for statement in statements:
                connection.execute(*((statement,) if isinstance(statement, str) else statement))

    return edit


def _start(key: str, item: str, number: int = 999) -> Edit:
    row = (number, key, item, short_checksum((number, key, item)))
    return _rows(("insert or replace into started values (?, ?, ?, ?)", row))


def _end(status: str, result: str, number: int = 0) -> Edit:
    row = (number, status, result, short_checksum((number, status, result)))
    return _rows(("insert or replace into ended values (?, ?, ?, ?)", row))


def _call(extra: str | None = None, tokens: int = 1, at: float = 1.7e9, latency: float = 0.1, count: int = 1) -> Edit:
    answer = (b"\0" * 16, "x", "stop", tokens, tokens, at, latency, extra)
    rows = [(0, "candidate", 50 + number, *answer) for number in range(count)]
    return _rows(*((f"insert into calls values ({'?,' * 11} ?)", (*row, call_checksum(row))) for row in rows))


_FORM = "tables of another form"
_ENDLESS = "with recursive n(i) as (select 0 union all select i + 1 from n) select"


def _view(table: str, columns: str) -> Edit:
    return _rows(f"drop table {table}", f"create view {table} as {_ENDLESS} {columns} from n")


def _special(name: str, make: Callable[[Path], Any]) -> Edit:
    def edit(run: Path) -> None:
        (run / name).unlink(missing_ok=True)
        make(run / name)

    return edit


def _renamed(name: bytes) -> Edit:
    return lambda run: os.rename(run, os.path.join(os.fsencode(run.parent), name))


# Edits of a run, each with words of the overview about what is left out ("" if all is shown).
_EDITS: dict[str, tuple[Edit, str]] = {
    "seed": (_manifest(seed=2**63 + 5), ""),
    "dataset": (_manifest(dataset="x"), ""),
    "models": (_manifest(models=[1]), ""),
    "no models": (_manifest(models=None), ""),
    "pack": (_manifest(pack="a"), ""),
    "replaced": (_manifest(replaced={"a": 2**62, "b": 2**62, "c": 2**62}), ""),
    "replaced words": (_manifest(replaced={"a": "b"}), ""),
    "bank": (_manifest(bank={"items": "x"}), ""),
    "chosen": (_manifest(dataset={"name": "d", "chosen": 2**63 - 1}), ""),
    "nested manifest": (_text(_nested(300)), ""),
    "deep manifest": (_text(_nested(100_000)), "depth limit"),
    "nested item": (_start("a/x", '{"a": ' + _nested(1_020) + "}"), ""),
    "number": (_start("a/x", "{}", 2**63 - 1), ""),
    "tokens": (_call(tokens=2**62, count=4), ""),
    "negative": (_call(tokens=-(2**63), at=-1e300, latency=-1e300), ""),
    "infinite": (_call(at=float("inf"), latency=float("inf")), ""),
    "attempts": (_call('{"attempts": "9"}'), ""),
    "many attempts": (_call('{"attempts": 18446744073709551615}'), ""),
    "texts": (_call('{"text": [1]}'), ""),
    "latency": (_call('{"latency": "x"}'), ""),
    "methods": (_call('{"calls": [{"name": 5, "arguments": 7}]}'), ""),
    "likelihoods": (_call('{"likelihoods": [["x"], 3]}'), ""),
    "failed list": (_end("failed", "[1, 2]"), ""),
    "failed types": (_end("failed", '{"type": {"a": 1}, "message": [1]}'), ""),
    "result": (_end("finished", "null"), ""),
    "result numbers": (_end("finished", '{"planned": 18446744073709551615, "rounds": [[[1e308], null, 0, null]]}'), ""),
    "endless starts": (_view("started", "i as number, 'k' as key, '{}' as item, 0 as checksum"), _FORM),
    "endless ends": (_view("ended", "-i as number, 'k' as status, '{}' as result, 0 as checksum"), _FORM),
    "endless meta": (_view("meta", "'x' as key, '2' as value"), _FORM),
    "computed": (_rows("drop table ended", "create table ended (number integer primary key, status text, result text"
                       " generated always as (hex(zeroblob(1000000))), checksum)"), _FORM),
    "text numbers": (_rows("drop table started", "create table started (number, key, item, checksum)",
                           "insert into started values ('abc', x'ff', '{}', 0)"), _FORM),
    "lying kind": (_rows("pragma writable_schema = on", "update sqlite_master set type = 'table', rootpage = 3,"
                         f" sql = 'create  view ended as {_ENDLESS} i as number from n' where name = 'ended'"),
                   "malformed"),
    "no calls": (_rows("drop table calls"), "it has no table 'calls'"),
    "FIFO": (_special("journal.sqlite", os.mkfifo), "not a regular file"),
    "FIFO of changes": (_special("journal.sqlite-journal", os.mkfifo), "not a regular file"),
    "FIFO of the log": (_special("journal.sqlite-wal", os.mkfifo), "not a regular file"),
    "link out": (_special("journal.sqlite", lambda path: path.symlink_to("/dev/zero")), "link out of the folder"),
    "manifest link": (_special("manifest.json", lambda path: path.symlink_to("/etc/passwd")), "link out of the folder"),
    "name": (_renamed(b"a_\xff"), "not UTF-8"),
    "lines": (_renamed(b"a\n<b>"), ""),
}  # fmt: skip


@contextmanager
def _reader(root: Path, index: Path) -> Iterator[IndexReader]:
    file = index_file(root, index)
    Indexer(root, file).catch_up()
    with closing(IndexReader(file)) as reader:
        yield reader


@pytest.mark.filterwarnings("ignore::viva.engine.errors.JournalNotice")
def test_no_folder_hides_another_run(good: Path, tmp_path: Path) -> None:
    """All of them are beside the good run, which comes last."""
    root = tmp_path / "runs"
    for number, (edit, _) in enumerate(_EDITS.values()):
        edit(shutil.copytree(good, root / f"bad-{number:02}"))
    shutil.copytree(good, root / "z_good")
    with _reader(root, tmp_path / "index") as reader:
        assert reader.count(Filter(run="z_good")) == 6
        notes = reader.left_out()
        for number, (name, (_, words)) in enumerate(_EDITS.items()):
            own = " ".join(note for note in notes if f"bad-{number:02}" in note or (name == "name" and "\\xff" in note))
            assert words in own if words else own == "", f"{name}: {own}"
        pages = Pages(root, reader)
        assert pages.overview(PageContext()).count("Not shown: ") == len(notes)
        pages.conversations(Filter())
        pages.matrix(MatrixView())
    assert left_out(root) == [note for note in notes if "link out" in note or "UTF-8" in note]


def test_a_refused_folder_is_read_again_when_it_changes(good: Path, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    run = shutil.copytree(good, root / "run")
    manifest = (run / "manifest.json").read_bytes()
    (run / "manifest.json").write_bytes(b"{")
    file = index_file(root, tmp_path / "index")
    indexer, writer = Indexer(root, file), IndexWriter(file)
    indexer._find(writer)
    version = writer.version
    indexer._find(writer)
    assert writer.version == version, "an unchanged folder is no news"
    (run / "manifest.json").write_bytes(manifest)
    indexer._find(writer)
    while indexer._look(writer):
        pass
    with closing(IndexReader(file)) as reader:
        assert reader.count(Filter()) == 6
    indexer._close(writer)


@case_table("name", ["../x", "/etc", "a/../../x", "a//x", "", ".", "a\0b", None, 3, ["a"], "./a", "a/."])
def test_a_cell_is_below_its_sweep(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="no folder below the sweep"):
        check_cell_name(name)


def test_a_sweep_by_others_shows_nothing_outside(good: Path, tmp_path: Path) -> None:
    shutil.copytree(good, tmp_path / "private" / "secret")
    root = tmp_path / "viewed"
    shutil.copytree(good, root / "z_good")
    sweep = root / "sweep"
    sweep.mkdir()
    (sweep / "linked").symlink_to(tmp_path / "private")
    cells = [[str(tmp_path / "private" / "secret")], ["../../private/secret"], ["linked/secret"]]
    for names in cells:
        (sweep / "sweep.json").write_text(json.dumps({"sweep": 2, "cells": [{"name": name} for name in names]}))
        assert [name for name, _ in RunSearch(root).runs()] == ["z_good"]
    run = shutil.copytree(good, sweep / "cell")
    (run / "journal.sqlite").unlink()
    (run / "journal.sqlite").symlink_to(tmp_path / "private" / "secret" / "journal.sqlite")
    (sweep / "sweep.json").write_text(json.dumps({"sweep": 2, "cells": [{"name": "cell"}]}))
    assert study_folders(root) == [root / "z_good"], "nor does the report read the sweep as a whole"


def test_many_folders_hide_no_run_beside_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("viva.web.view.runs._MOST_FOLDERS", 50)
    for number in range(60):
        (tmp_path / "a" / f"{number:03}").mkdir(parents=True)
        (tmp_path / "m" / f"{number:03}").mkdir(parents=True)
        (tmp_path / "m" / f"{number:03}" / "manifest.json").write_text("{}")
    (tmp_path / "z").mkdir()
    (tmp_path / "z" / "manifest.json").write_text("{}")
    search = RunSearch(tmp_path)
    names = [name for name, _ in search.runs()]
    assert "z" in names
    assert "m/000" in names
    assert len(search.notes) == 2
    assert "of the 60 folders in" in search.notes[1]
    assert f"{len(names) - 1} of the 60" in search.notes[1]


def test_two_viewers_of_one_folder_count_each_call_once(good: Path, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    run = shutil.copytree(good, root / "run")
    file = index_file(root, tmp_path / "index")
    news: list[list[tuple[str, int]]] = []
    viewers = [Indexer(root, file, lambda version, changed: news.append(changed)) for _ in range(2)]
    writers = [IndexWriter(file) for _ in viewers]
    for round_ in range(3):
        if round_:
            _call(tokens=100, count=5)(run)
            _end("failed", json.dumps({"type": f"E{round_}"}))(run)
        news.clear()
        for viewer, writer in zip(viewers, writers, strict=True):
            viewer._find(writer)
            while viewer._look(writer):
                pass
        assert not round_ or news.count([("run", 0)]) == 2, "pages of both get the news"
        with closing(sqlite3.connect(run / "journal.sqlite")) as journal, closing(sqlite3.connect(file)) as index:
            sums = journal.execute("select count(*), sum(prompt_tokens) from calls").fetchone()
            assert index.execute("select sum(calls), sum(prompt_tokens) from conversations").fetchone() == sums
            assert index.execute("select sum(calls), sum(prompt_tokens) from usage").fetchone() == sums
            [(version,)] = index.execute("select value from meta where name = 'version'")
            assert version == str(max(writer.version for writer in writers))
    for viewer, writer in zip(viewers, writers, strict=True):
        viewer._close(writer)


_DAMAGES: dict[str, Callable[[bytearray], bytes]] = {
    "pages": lambda data: _flipped(data, 8192, len(data)),
    "later pages": lambda data: _flipped(data, 24576, len(data)),
    "schema": lambda data: _flipped(data, 100, 4096),
    "header": lambda data: _flipped(data, 0, 100),
    "cut": lambda data: bytes(data[: len(data) // 2]),
    "empty": lambda data: b"",
    "text": lambda data: b"hello" * 1000,
}


def _flipped(data: bytearray, first: int, last: int) -> bytes:
    chance = random.Random(0)
    for _ in range((last - first) // 4):
        data[chance.randrange(first, last)] ^= 0xFF
    return bytes(data)


def _is_listed(reader: IndexReader) -> bool:
    return len(reader.runs()) == 1 and reader.count(Filter()) == len(reader.listed(Filter())) == 6


@case_table("damage", list(_DAMAGES.values()), ids=_DAMAGES)
def test_a_damaged_index_is_made_again(good: Path, tmp_path: Path, damage: Callable[[bytearray], bytes]) -> None:
    file = index_file(good, tmp_path)
    Indexer(good, file).catch_up()
    data = bytearray(file.read_bytes())
    file.write_bytes(damage(data))
    Indexer(good, file).catch_up()
    with closing(IndexReader(file)) as reader:
        assert _is_listed(reader)
        # The same while pages are shown.
        file.write_bytes(_flipped(bytearray(file.read_bytes()), 8192, file.stat().st_size))
        for suffix in ("-wal", "-shm"):
            file.with_name(file.name + suffix).unlink(missing_ok=True)
        indexer = Indexer(good, file)
        indexer.rebuild()
        indexer.start()
        assert indexer.caught_up.wait(60)
        assert _is_listed(reader)
        indexer.stop()


@case_table("statements", [
    f"create table meta (name, value); create view conversations as {_ENDLESS} i as id from n",
    "create table meta (name, value)", "create table other (name)", "delete from meta",
    "update meta set value = 'many' where name = 'version'",
    "create trigger t after insert on runs begin select 1; end",
])  # fmt: skip
def test_an_index_of_another_form_is_not_used(tmp_path: Path, statements: str) -> None:
    file = tmp_path / "planted.sqlite"
    if "create table" not in statements:
        open_index(file).close()
    with closing(sqlite3.connect(file)) as connection:
        if "create table" not in statements:
            connection.execute("insert into runs (name, identity) values ('planted', '')")
            connection.commit()
        connection.executescript(statements)
    with closing(open_index(file)) as connection:
        assert connection.execute("select count(*) from runs").fetchone() == (0,)
        assert connection.execute("select value from meta where name = 'version'").fetchone() == ("0",)


def test_what_is_in_place_of_the_index_is_not_written(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    for make in (lambda path: path.symlink_to(victim), os.mkfifo, Path.mkdir):
        file = tmp_path / f"index-{len(list(tmp_path.iterdir()))}"
        make(file)
        for write in (private_file, open_index):
            with pytest.raises(JournalError):
                write(file)
    assert not victim.exists()
    folder = tmp_path / "new"
    file = index_file(tmp_path, folder)
    open_index(file).close()
    assert [path.stat().st_mode & 0o777 for path in (folder, file)] == [0o700, 0o600]


def test_a_link_to_another_lock_is_no_run_in_progress(good: Path, tmp_path: Path) -> None:
    import fcntl

    run = shutil.copytree(good, tmp_path / "run")
    with (tmp_path / "other.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        (run / "lock").unlink(missing_ok=True)
        (run / "lock").symlink_to(other.name)
        os.utime(run / "journal.sqlite", (0, 0))
        assert not is_running(run)


def test_a_computation_ends_with_its_viewer() -> None:
    """Also if the viewer is killed: the computation's output ends, because nobody has it open any more."""
    computing = (
        "import os, threading, time; from viva.web.view import findings; findings._PARENT_SECONDS = 0.05\n"
        "threading.Thread(target=findings._end_with_parent, args=(os.getppid(),)).start(); print('ready', flush=True)"
    )
    viewer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {computing!r}])"
    with subprocess.Popen([sys.executable, "-c", viewer], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGKILL)
        assert process.stdout.read() == b""
