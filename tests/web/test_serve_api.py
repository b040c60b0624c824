"""``viva serve``'s API for runs: begin, watch, stop, resume, read; and that nobody gets what is not for them."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import validate
from serving import serving

import viva
from viva.engine.errors import ConfigurationError
from viva.engine.events import Noted
from viva.engine.stream import EventStream
from viva.web.api.hosted_runs import RecentEvents
from viva.web.application import ServerOptions
from viva.web.auth import Access, Tokens, add_token, read_tokens

ROLES = {"candidate": ["sim"], "interactor": "simulated:i", "evaluator": "simulated:e"}


def asked(id_: str, **settings: Any) -> dict[str, Any]:
    settings = {"dataset": "items.jsonl", "n": 4, "rounds": 2} | settings
    return {"scenario": "kieval", "models": ROLES, "settings": settings, "id": id_}


def ended(server: Any, id_: str, last: str = "") -> list[tuple[str, str, Any]]:
    """The events of a run up to its end."""
    with server.watching(f"/api/v1/runs/{id_}/events", last) as events:
        return list(events)


def test_a_run_is_begun_watched_and_read(served: Any) -> None:
    server, folder = served.server, served.folder
    scenarios = server.api("GET", "/scenarios")["scenarios"]
    [kieval] = [one for one in scenarios if one["name"] == "kieval"]
    assert {"name": "candidate", "many": True} in kieval["roles"]
    assert "rounds" in kieval["settings"]["properties"]
    status, headers, made = server.ask("POST", "/api/v1/runs", asked("read"))
    assert (status, headers["location"], made["id"]) == (201, "/api/v1/runs/read", "read")
    assert [name for _, name, _ in ended(server, "read")][-1] == "End"
    record = server.api("GET", "/runs/read")
    assert (record["state"], record["total"], record["finished"], record["failed"]) == ("done", 4, 4, 0)
    run = viva.load(folder / "runs" / "read")
    assert server.api("GET", "/runs/read/report") == run.report()
    first = server.api("GET", "/runs/read/transcripts?limit=3&prompts=true")
    rest = server.api("GET", f"/runs/read/transcripts?after={first['next']}")
    assert [one["number"] for one in first["transcripts"] + rest["transcripts"]] == [0, 1, 2, 3]
    assert rest["next"] is None
    told = asyncio.run(run.transcript(first["transcripts"][0]["key"]))
    speeches = [(one["party"], one["text"], one["prompt"]) for one in first["transcripts"][0]["speeches"]]
    assert speeches == [(one.party, one.text, one.prompt) for one in told.speeches]
    assert server.api("GET", "/runs/read/transcripts/0") == first["transcripts"][0]
    assert "read" in [one["id"] for one in server.api("GET", "/runs")["runs"]]
    page = server.api("GET", "/runs?limit=1&after=rea")
    assert [one["id"] for one in page["runs"]] == ["read"]


def test_a_reader_who_comes_back_misses_nothing(served: Any) -> None:
    server = served.server
    server.api("POST", "/runs", asked("back", n=12))
    events: list[tuple[str, str, Any]] = []
    with server.watching("/api/v1/runs/back/events") as watched:
        for event in watched:
            events.append(event)
            if event[0]:
                break
    while events[-1][1] != "End":
        with server.watching("/api/v1/runs/back/events", events[-1][0]) as watched:
            for event in watched:
                if event[1] == "State":
                    continue
                events.append(event)
                if len(events) % 40 == 0:  # gone again
                    break
    numbered = [int(id_.rpartition("-")[2]) for id_, name, _ in events if id_ and name != "End"]
    assert numbered == list(range(numbered[0], numbered[-1] + 1))
    assert events[-2][1] == "RunFinished"
    assert server.ask("GET", "/api/v1/runs/back/events", headers={"Last-Event-ID": events[-1][0]})[0] == 204


def test_a_reader_who_falls_behind_is_told_so_and_holds_nobody_back() -> None:
    async def main() -> list[bytes]:
        stream, recent = EventStream(), RecentEvents("e", capacity=8)
        stream.listen(recent.hear)
        reader = recent.events_after(0)
        stream.publish(Noted(0.0, "", "first", None))
        got = [await anext(reader)]
        for number in range(20):
            stream.publish(Noted(0.0, "", "more", number))
        assert not stream.congested
        recent.close()
        return got + [block async for block in reader]

    first, rest = asyncio.run(main())
    assert first.startswith(b"id: e-1\nevent: Noted\n")
    assert rest.startswith(b'id: e-13\nevent: Gap\ndata: {"lost":12}\n\nid: e-14\n')
    assert rest.count(b"event: Noted") == 8


def test_a_run_stopped_by_sigterm_goes_on_after_a_restart(served: Any, tmp_path: Path) -> None:
    (tmp_path / "items.jsonl").write_bytes((served.folder / "items.jsonl").read_bytes())
    slow = {role: f"simulated:{role}?latency=0.01" for role in ("interactor", "evaluator")}
    wanted = asked("cut", n=20, rounds=3, concurrency=4) | {
        "models": {"candidate": ["simulated:c?latency=0.01"]} | slow
    }
    with serving(tmp_path) as server:
        server.api("POST", "/runs", wanted)
        with server.watching("/api/v1/runs/cut/events") as events:
            next(data for _, name, data in events if name == "ConversationFinished")
            assert server.terminate() == 0
            names = [name for _, name, _ in events]
        assert names[-2:] == ["RunFinished", "End"], "a watcher sees the end"
    with serving(tmp_path, "--grace", "0") as server:
        stopped = server.api("GET", "/runs/cut")
        assert stopped["state"] == "stopped"
        assert 0 < stopped["finished"] < 20
        server.api("POST", "/runs/cut/resume", {})
        ended(server, "cut")
        assert server.api("GET", "/runs/cut")["state"] == "done"
        report = server.api("GET", "/runs/cut/report")
    items = str(tmp_path / "items.jsonl")
    whole = viva.run_sync("kieval", models=wanted["models"], out=tmp_path / "whole", dataset=items, n=20, rounds=3)
    assert report == whole.report()


def test_a_run_is_stopped_and_resumed_on_request(served: Any) -> None:
    server = served.server
    slow = ROLES | {"interactor": "simulated:i?latency=0.01"}
    server.api("POST", "/runs", asked("held", n=20, rounds=5) | {"models": slow})
    with server.watching("/api/v1/runs/held/events") as events:
        next(name for _, name, _ in events if name == "CallFinished")
        assert server.api("POST", "/runs/held/stop", {})["state"] == "stopping"
        *_, (_, name, last) = events
    assert (name, last["state"]) == ("End", "stopped")
    assert server.ask("POST", "/api/v1/runs/held/stop", {})[0] == 409
    assert server.ask("POST", "/api/v1/runs", asked("held"))[0] == 409
    server.api("POST", "/runs/held/resume", {})
    assert ended(server, "held")[-1][2]["state"] == "done"


def test_a_run_is_steered_on_request(served: Any) -> None:
    server = served.server
    slow = ROLES | {"interactor": "simulated:i?latency=0.01&concurrency=1"}
    assert server.ask("POST", "/api/v1/runs/steered/control", {"do": "pause"})[0] == 404
    server.api("POST", "/runs", asked("steered", n=4, rounds=3) | {"models": slow})
    assert server.api("POST", "/runs/steered/control", {"do": "pause"})["status"]["state"] == "paused"
    answer = server.api("POST", "/runs/steered/control", {"do": "set", "model": "i", "concurrency": 9})
    assert answer["message"] == "i: concurrency 9, rpm none, tpm none"
    answer = server.api("POST", "/runs/steered/control", {"do": "set", "model": "i", "concurrency": 0})
    assert answer["message"] == "i: concurrency none, rpm none, tpm none"
    assert server.api("POST", "/runs/steered/control", {"do": "add", "n": 2})["status"]["total"] == 6
    for wrong, code in (({"do": "explode"}, 422), ({"do": "pause", "model": "x"}, 409), ({"do": "add"}, 409)):
        assert server.ask("POST", "/api/v1/runs/steered/control", wrong)[0] == code, wrong
    server.api("POST", "/runs/steered/control", {"do": "resume"})
    assert ended(server, "steered")[-1][2]["state"] == "done"
    assert server.api("GET", "/runs/steered")["finished"] == 6
    assert server.ask("POST", "/api/v1/runs/steered/control", {"do": "pause"})[0] == 409


def _refusals(folder: Path) -> dict[str, tuple[int, dict[str, Any]]]:
    evil = {"models": ROLES | {"interactor": "openai:http://127.0.0.1:9/v1#m?key_env=HOME"}}
    model = {"models": ROLES | {"evaluator": f"llama:{folder.parent}/other.gguf"}}
    return {
        "a file elsewhere": (403, asked("x", dataset="/etc/passwd")),
        "a folder above": (403, asked("x", dataset="generic:../../secret.jsonl")),
        "a link that leads away": (403, asked("x", dataset="away.jsonl")),
        "a model's file elsewhere": (403, asked("x") | model),
        "a variable of the server's": (403, asked("x") | evil),
        "a model of code": (403, asked("x") | {"models": ROLES | {"evaluator": "python:mine.py"}}),
        "a room": (403, asked("x") | {"models": ROLES | {"evaluator": "human:room"}}),
        "a scenario of code": (409, asked("x") | {"scenario": "mine.py"}),
        "a role in the settings": (422, asked("x", candidate="python:mine.py")),
        "a run elsewhere": (422, asked("../x")),
        "another's home": (403, asked("x", dataset="~root/items.jsonl")),
        "a name that is none": (409, asked("x", dataset="items\0.jsonl")),
        "a model that is none": (409, asked("x") | {"models": ROLES | {"evaluator": "llama:no\0model.gguf"}}),
        "a setting that is none": (409, asked("x", colour="red")),
        "an unknown field": (422, asked("x") | {"colour": "red"}),
    }


@pytest.mark.parametrize("what", list(_refusals(Path("/"))))
def test_a_run_names_nothing_outside_of_the_folder(served: Any, what: str) -> None:
    (served.folder / "mine.py").write_text("raise SystemExit\n")
    away = served.folder / "away.jsonl"
    if not away.is_symlink():
        away.symlink_to("/etc/passwd")
    expected, body = _refusals(served.folder)[what]
    status, headers, problem = served.server.ask("POST", "/api/v1/runs", body)
    assert status == expected, problem
    assert headers["content-type"] == "application/problem+json"
    assert problem["status"] == expected
    assert "root:" not in problem["detail"]
    assert not (served.folder / "runs" / "x").exists()


@pytest.mark.parametrize("id_", ["..", "%2e%2e%2fserved", "..%2f..%2fetc", "linked", "a%00b", "nothing", ".hidden"])
def test_ids_lead_to_no_other_folder(served: Any, id_: str) -> None:
    link = served.folder / "runs" / "linked"
    if not link.is_symlink():
        link.symlink_to(served.folder)
    for path in ("", "/report", "/transcripts", "/transcripts/0", "/events"):
        assert served.server.ask("GET", f"/api/v1/runs/{id_}{path}")[0] == 404
    assert served.server.ask("POST", f"/api/v1/runs/{id_}/resume", {})[0] == 404


def test_a_wrong_path_and_a_missing_header_are_answered_by_the_right_ones(served: Any) -> None:
    status, _, answer = served.server.ask("GET", "/v1/chat/completion")
    assert (status, "GET /v1/models" in answer["error"]["message"]) == (404, True)
    status, _, answer = served.server.ask("POST", "/api/v1/runs/x/stop", b"", {"Content-Type": "text/plain"})
    assert (status, "Content-Type: application/json, with an empty body too" in answer["detail"]) == (415, True)


def test_an_empty_body_is_an_object_without_fields(served: Any) -> None:
    status, _, answer = served.server.ask(
        "POST", "/api/v1/runs/nothing/resume", b"", {"Content-Type": "application/json"}
    )
    assert (status, answer["detail"]) == (404, "no run 'nothing' on this server")


_HTML = {"Content-Type": "application/x-www-form-urlencoded"}
_TOKEN = {"Authorization": "Bearer a token of the tests"}


@pytest.mark.parametrize("path", ["/api/v1/runs", "/v1/chat/completions"])
@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Authorization": "Bearer another one"}, 401),
        ({"Authorization": "Basic YTpi"}, 401),
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1.evil.example:80"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        (_HTML, 415),
    ],
)
def test_strangers_and_pages_of_other_sites_get_nothing(
    served: Any, path: str, headers: dict[str, str], expected: int
) -> None:
    for method, body in (("POST", b"{}"), ("GET", None)):
        if method == "GET" and expected == 415:
            continue
        status, found, answer = served.server.ask(method, path, body, headers)
        assert status == expected
        assert not [name for name in found if name.startswith("access-control")]
        assert ("error" in answer) == path.startswith("/v1")


@pytest.mark.parametrize(
    ("target", "hosts"),
    [
        ("/api/v1/runs", ["127.0.0.1", "evil.example"]),
        ("http://evil.example/api/v1/runs", ["127.0.0.1"]),
        ("/api/v1/runs", []),
    ],
)
def test_a_second_host_is_refused(served: Any, target: str, hosts: list[str]) -> None:
    with socket.create_connection(("127.0.0.1", served.server.port)) as raw:
        named = "".join(f"Host: {host}\r\n" for host in hosts)
        head = f"GET {target} HTTP/1.1\r\n{named}Connection: close\r\n"
        raw.sendall(f"{head}Authorization: Bearer {served.server.token}\r\n\r\n".encode())
        answer = b"".join(iter(lambda: raw.recv(65536), b""))
    assert b" 400 " in answer.splitlines()[0]


def test_an_answer_to_head_has_no_body(served: Any) -> None:
    server = served.server
    server.api("POST", "/runs", asked("head", n=1, rounds=1))
    ended(server, "head")
    paths = [path for path, methods in server.api("GET", "/openapi.json")["paths"].items() if "get" in methods]
    assert "/api/v1/runs/{run}/events" in paths
    for path in [*paths, "/v1/models", "/v1/models/sim", "/nothing"]:
        with socket.create_connection(("127.0.0.1", server.port)) as raw:
            head = f"HEAD {path.format(run='head', number=0)} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            raw.sendall(f"{head}Authorization: Bearer {server.token}\r\n\r\n".encode())
            answer = b"".join(iter(lambda: raw.recv(65536), b""))
        assert answer.partition(b"\r\n\r\n")[2] == b"", path


def test_a_body_beyond_the_bound_is_refused(served: Any) -> None:
    status, _, problem = served.server.ask("POST", "/api/v1/runs", b'{"scenario": "' + b"x" * 17_000_000 + b'"}')
    assert (status, problem["status"]) == (413, 413)


def test_tokens_are_kept_as_hashes_and_asked_of_strangers(tmp_path: Path) -> None:
    token = add_token(tmp_path / "tokens", "laptop")
    kept = (tmp_path / "tokens").read_text()
    assert kept.startswith("laptop sha256:")
    assert token not in kept
    assert (tmp_path / "tokens").stat().st_mode & 0o077 == 0
    with pytest.raises(ConfigurationError, match="already has a token called laptop"):
        add_token(tmp_path / "tokens", "laptop")
    for host in ("0.0.0.0", "::", "192.0.2.1", "somewhere.example"):
        with pytest.raises(ConfigurationError, match="--token-file"):
            ServerOptions(Access(Tokens([])), host=host).check()
    (tmp_path / "plain").write_text(f"laptop {token}\n")
    with pytest.raises(ConfigurationError, match="plain:1: expected NAME sha256:"):
        read_tokens(tmp_path / "plain")
    with pytest.raises(ConfigurationError, match="none: no such file; create it with `viva serve"):
        read_tokens(tmp_path / "none")
    with serving(tmp_path, "--token-file", "tokens", "--allow-origin", "http://mine.example") as server:
        assert server.ask("GET", "/api/v1/runs")[0] == 401
        server.token = token
        headers = {"Origin": "http://mine.example"}
        status, found, _ = server.ask("GET", "/api/v1/runs", headers=headers)
        assert (status, found["access-control-allow-origin"]) == (200, "http://mine.example")
        status, found, _ = server.ask("OPTIONS", "/api/v1/runs", headers=headers)
        assert (status, found["access-control-allow-methods"]) == (204, "GET, POST")


def test_answers_are_as_the_document_says(served: Any) -> None:
    server = served.server
    server.api("POST", "/runs", asked("told", n=2, rounds=1))
    ended(server, "told")
    document = server.api("GET", "/openapi.json")
    for path, methods in document["paths"].items():
        content = methods.get("get", {"responses": {"200": {"content": {}}}})["responses"]["200"]["content"]
        if "application/json" in content:
            place = path.removeprefix("/api/v1").replace("{run}", "told").replace("{number}", "1")
            schema = content["application/json"]["schema"] | {"components": document["components"]}
            validate(server.api("GET", place), schema)


def test_schemathesis_finds_nothing(served: Any, tmp_path: Path) -> None:
    server = served.server
    command = [str(Path(sys.executable).with_name("schemathesis")), "run", f"{server.url}/api/v1/openapi.json"]
    command += ["--phases", "coverage,fuzzing", "--max-examples", "3", "--generation-deterministic", "--no-color"]
    command += ["-H", f"Authorization: Bearer {server.token}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
