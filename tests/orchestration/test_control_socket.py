"""The socket of a run: what stands in its way, and a client that meets something else than a run there."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from case_tables import case_table
from command import viva as viva_here
from fake_socket import fake_socket

import viva
from viva.engine.errors import ConfigurationError
from viva.engine.run_folder import RunFolder
from viva.orchestration import control_socket
from viva.orchestration.control import ControlRequest
from viva.orchestration.control_socket import SOCKET, ask

STATUS = {"state": "running", "total": 3, "finished": 1, "failed": 0, "restored": 0, "in_flight": 1, "models": {}}
NO_RUN = "its answer is not that of a run"


def _answer(**changes: Any) -> bytes:
    return json.dumps({"message": "hi", "status": STATUS | changes}).encode() + b"\n"


@case_table(
    "answer, words",
    [
        (b"", "closed the connection without an answer"),
        (b"\n", NO_RUN),
        (b"null\n", NO_RUN),
        (b"[]\n", NO_RUN),
        (b"{nope\n", NO_RUN),
        (b"\xff\xfe\n", NO_RUN),
        (b'{"message": "hi"}\n', NO_RUN),
        (b'{"status": {}}\n', NO_RUN),
        (b'{"message": 3, "status": {}}\n', NO_RUN),
        (b'{"message": "hi", "status": 5}\n', NO_RUN),
        (b'{"error": 5}\n', NO_RUN),
        (b'{"error": "not now"}\n', "not now"),
        (_answer(models=5), NO_RUN),
        (_answer(models={"m": 5}), NO_RUN),
        (_answer(models={"m": {}}), NO_RUN),
        (_answer(models={"m": {"paused": "yes"}}), NO_RUN),
        (_answer(total="many"), NO_RUN),
        (_answer()[:-9], NO_RUN),
        (b"[" * 100_000 + b"\n", NO_RUN),
        (b"x" * (3 << 20), NO_RUN),
    ],
)
def test_an_answer_that_is_not_that_of_a_run_is_refused_in_words(tmp_path: Path, answer: bytes, words: str) -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(answer)

    with fake_socket(tmp_path / SOCKET, serve), pytest.raises(ConfigurationError) as error:
        ask(tmp_path, ControlRequest())
    assert words in str(error.value)


def test_an_answer_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    evil = "\x1b]0;title\x07\u202e\x9b31m\nviva: done"
    record = {"message": evil, "status": STATUS | {"models": {evil: {"paused": True, "rpm": 3}}}, "more": evil}
    answers = [json.dumps(answer).encode() + b"\n" for answer in (record, {"error": evil})]

    def serve(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(answers.pop())

    for _ in range(2):
        with fake_socket(tmp_path / SOCKET, serve):
            done = viva_here("control", tmp_path)
        printed = done.stdout + done.stderr
        assert "title" in printed
        assert not {*printed} & {*"\x1b\x07\u202e\x9b"}
        assert "\nviva: done" not in printed
        (tmp_path / SOCKET).unlink()


@pytest.mark.parametrize("drip", [b"", b"x"])
def test_a_client_waits_for_an_answer_for_a_bounded_time(
    tmp_path: Path, drip: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_socket, "_ANSWER_SECONDS", 0.05)
    over = threading.Event()

    def serve(connection: socket.socket) -> None:
        while not over.wait(0.001):
            connection.sendall(drip)

    with fake_socket(tmp_path / SOCKET, serve):
        with pytest.raises(ConfigurationError, match=r"no answer within 0\.05 s, so it is unknown if"):
            ask(tmp_path, ControlRequest())
        over.set()


def test_neither_a_link_nor_another_users_socket_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []
    own, other = tmp_path / "own", tmp_path / "other"
    for folder in (own, other):
        folder.mkdir()
    with fake_socket(other / SOCKET, lambda connection: asked.append(connection.recv(1 << 16))):
        (own / SOCKET).symlink_to(other / SOCKET)
        with pytest.raises(ConfigurationError, match="this run is not going on"):
            ask(own, ControlRequest(do="stop"))
        monkeypatch.setattr(os, "getuid", lambda: (other / SOCKET).stat().st_uid + 1)
        with pytest.raises(ConfigurationError, match=r"belongs to another user \(number \d+\), so it is not asked"):
            ask(other, ControlRequest(do="stop"))
    assert asked == []


def test_a_process_that_holds_the_lock_and_does_not_listen_is_not_called_absent(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"manifest": 1}')
    run = RunFolder.open(tmp_path)
    run.lock()
    try:
        with pytest.raises(ConfigurationError, match="a process is running this run, but it does not listen"):
            ask(tmp_path, ControlRequest())
    finally:
        run.unlock()


def _link(path: Path) -> None:
    path.symlink_to("nowhere")


@case_table(
    "name, make, kind",
    [
        (SOCKET, Path.touch, "a file"),
        (SOCKET, os.mkfifo, "a device or pipe"),
        (SOCKET, Path.mkdir, "a folder"),
        (SOCKET, _link, "a link"),
        (f"{SOCKET}.part", _link, "a link"),
        (f"{SOCKET}.part", Path.touch, "a file"),
    ],
)
def test_what_stands_in_the_way_of_the_socket_is_named_and_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, make: Callable[[Path], None], kind: str
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    make(run / name)
    mode = (run / name).lstat().st_mode

    @viva.scenario(compare="pupil")
    async def ask_itself(conversation: viva.Conversation, topic: str) -> dict[str, Any]:
        with pytest.raises(ConfigurationError) as error:
            ask(run, ControlRequest())
        return {"score": 1.0, "error": str(error.value)}

    caplog.clear()
    with caplog.at_level(logging.WARNING, "viva"):
        done = viva.run_sync(ask_itself, models={"pupil": "simulated:a"}, tasks=["t"], out=run)
    assert caplog.text.count(f"{name}: is {kind}, so this run goes on but cannot be steered by viva control") == 1
    [result] = done.results()
    expected = f"is {kind}, not the socket of the process" if name == SOCKET else "it does not listen"
    assert expected in result.value["error"]
    assert (run / name).lstat().st_mode == mode
