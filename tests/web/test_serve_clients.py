"""What clients of ``viva serve`` can do to the server and to others: no secrets, no code, no addresses, no waiting."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from command import viva
from served_here import Here, served_here
from tiny_gguf import make_model

from viva.engine.backends.registry import BackendPool
from viva.engine.clock import RealClock
from viva.engine.errors import Rejected
from viva.engine.permissions import Client, Endpoints, Permissions, bound_permissions
from viva.orchestration.control import ControlRequest
from viva.web.api.schemas import ResumeRequest, RunRequest, StopRequest
from viva.web.bodies import MOST_VALUES, check_value_count
from viva.web.openai.requests import ChatForm, TextForm
from viva.web.problems import Problem

SECRET = "sk-canary-of-the-server"
MOST_HELD_SECONDS = 0.1
ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
RUN = {
    "scenario": "kieval",
    "models": {"candidate": ["sim"], "interactor": "sim", "evaluator": "sim"},
    "settings": {"dataset": "items.jsonl", "n": 1, "rounds": 1},
}


class _Listener(BaseHTTPRequestHandler):
    heard: list[str] = []  # noqa: RUF012 - of the class: one listener serves all tests

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        self.heard.append(f"{self.path}\n{self.headers}\n{body}")
        answer = json.dumps({"choices": [{"message": {"content": "hi"}}], "reply": "hi"}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST  # noqa: N815

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def listener() -> Iterator[str]:
    """The address of a client's own server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Listener) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, listener: str) -> Iterator[tuple[Here, Path]]:
    """A server with a key, a simulated model, and files that name things which clients may not."""
    folder = tmp_path_factory.mktemp("clients")
    (folder / "items.jsonl").write_bytes(ITEMS.read_bytes())
    (folder / "talks.jsonl").write_text('{"messages": [{"role": "user", "content": "Hi"}]}\n')
    (folder / "canary.py").write_text(f"open({str(folder / 'mark')!r}, 'a')\ndef f(*a, **k):\n    return 1.0\n")
    mapping = {"url": f"{listener}/app", "headers": {"X-Key": "${OPENAI_API_KEY}"}, "body": {"m": "{message}"}}
    (folder / "app.yaml").write_text(yaml.safe_dump(mapping))
    (folder / "pool.yaml").write_text(yaml.safe_dump({"members": [f"openai:{listener}#m?key_env=OPENAI_API_KEY"]}))
    words = {"function": "words"}
    suites: dict[str, dict[str, Any]] = {
        "inline": {"system": mapping, "metrics": [words]},
        "mapped": {"system": "http:app.yaml", "metrics": [words]},
        "keyed": {"system": f"openai:{listener}#m?key_env=OPENAI_API_KEY", "metrics": [words]},
        "paid": {"system": "openai:gpt-4o", "metrics": [words]},
        "pooled": {"system": "pool:pool.yaml", "metrics": [words]},
        "python": {"system": "python:canary.py#f", "metrics": [words]},
        "file": {"system": "simulated:s", "functions": ["canary.py"], "metrics": [{"function": "f"}]},
        "module": {"system": "simulated:s", "metrics": [{"function": "subprocess:getoutput"}]},
        "moderated": {
            "system": "simulated:s",
            "metrics": [{"function": "moderation", "arguments": {"url": f"{listener}/m", "key": "OPENAI_API_KEY"}}],
        },
        "outside": {"system": "simulated:s", "conversations": ["/etc/passwd"], "metrics": [words]},
        "anchored": {"system": "simulated:s", "conversations": ["/etc/../etc/passwd"], "metrics": [words]},
        "rubrics": {"system": "simulated:s", "rubrics": ["/etc/passwd"], "metrics": [words]},
    }
    for name, suite in suites.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({"conversations": ["talks.jsonl"], **suite}))
    (folder / "anchors.yaml").write_text(
        "conversations: [talks.jsonl]\nsystem: &a simulated:s\n"
        "metrics:\n  - &m {function: 'subprocess:getoutput'}\n  - {<<: *m, name: second}\n"
    )
    before = os.environ.get("OPENAI_API_KEY")
    os.environ["OPENAI_API_KEY"] = SECRET
    try:
        make_model(folder / "tiny.gguf")
        with served_here(folder, ["simulated:sim", "llama:tiny.gguf?label=tiny&ctx=4096"]) as server:
            yield server, folder
    finally:
        os.environ.pop("OPENAI_API_KEY") if before is None else os.environ.update(OPENAI_API_KEY=before)


def _begin(server: Here, body: dict[str, Any]) -> tuple[int, Any]:
    """Begin a run and wait for its end, where it begins."""
    status, answer = server.ask("POST", "/api/v1/runs", body)
    while status == 201 and server.ask("GET", f"/api/v1/runs/{answer['id']}")[1]["hosted"]:
        time.sleep(0.01)
    return status, answer


def _hostile(listener: str) -> list[str]:
    inline = {"url": f"{listener}/in", "headers": {"X-Key": "${OPENAI_API_KEY}"}, "body": {"m": "{message}"}}
    return [
        f"http:{json.dumps(inline)}",
        "http:app.yaml",
        "pool:pool.yaml",
        f"openai:{listener}/v1#m",
        f"openai:{listener}/v1#m?key_env=OPENAI_API_KEY",
        "openai:gpt-4o",
        "python:canary.py#f",
        "canary.py#f",
        "/etc/passwd",
    ]


def _places(schema: dict[str, Any], document: dict[str, Any], path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a body of this schema may hold a text: paths of keys, 0 for a place in a list, ``any`` for any key."""
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    for branch in schema.get("anyOf", []):
        yield from _places(branch, document, path)
    if schema.get("type") == "string" or not schema:
        yield path
    for name, inner in schema.get("properties", {}).items():
        yield from _places(inner, document, (*path, name))
    if isinstance(schema.get("additionalProperties"), dict):
        yield from _places(schema["additionalProperties"], document, (*path, "any"))
    if schema.get("type") == "array":
        yield from _places(schema.get("items", {}), document, (*path, 0))


def _with(body: Any, path: tuple[Any, ...], text: str) -> Any:
    """The body with a text at a place."""
    if not path:
        return text
    if path[0] == 0:
        return [_with(None, path[1:], text)]
    made = dict(body) if isinstance(body, dict) else {}
    for name in list(made) if path[0] == "any" and made else [path[0]]:
        made[name] = _with(made.get(name), path[1:], text)
    return made


def test_no_field_of_any_body_runs_code_or_reads_the_servers_environment(
    here: tuple[Here, Path], listener: str
) -> None:
    server, folder = here
    _Listener.heard.clear()
    document = server.ask("GET", "/api/v1/openapi.json")[1]
    tried = 0
    for path, methods in document["paths"].items():
        content = methods.get("post", {}).get("requestBody", {}).get("content")
        if content is None:
            continue
        schema = content["application/json"]["schema"]
        for place in dict.fromkeys(_places(schema, document)):
            for name in _hostile(listener):
                body = RUN if path.endswith("/runs") else {}
                status, answer = server.ask("POST", path.replace("{run}", "x"), _with(body, place, name))
                assert status in (403, 404, 409, 422), (path, place, name, answer)
                tried += 1
    assert tried > 50
    for field in ("assistant", "pack", "chaos", "python_tools", "dataset"):
        for name in _hostile(listener):
            settings = RUN["settings"] | {field: [name] if field in ("assistant", "python_tools") else name}  # type: ignore[operator]
            assert server.ask("POST", "/api/v1/runs", RUN | {"settings": settings})[0] in (403, 409)
    assert _Listener.heard == []
    assert not (folder / "mark").exists()


@pytest.mark.parametrize("suite", [
    "inline", "mapped", "keyed", "paid", "pooled", "python", "file", "module", "moderated", "outside", "anchored",
    "rubrics", "anchors",
])  # fmt: skip
def test_no_suite_that_a_client_names_does_what_the_client_may_not(here: tuple[Here, Path], suite: str) -> None:
    server, folder = here
    _Listener.heard.clear()
    body = {"scenario": "flexeval", "models": {}, "settings": {"suite": f"{suite}.yaml"}}
    status, answer = _begin(server, body)
    assert _Listener.heard == []
    assert not (folder / "mark").exists()
    if suite != "moderated":  # a function that fails when it is called
        assert status in (403, 409), answer
        assert SECRET not in str(answer)
        assert "root:" not in str(answer)


def test_a_run_folder_on_the_server_is_resumed_within_the_same_bounds(here: tuple[Here, Path], listener: str) -> None:
    server, folder = here
    _Listener.heard.clear()
    assert _begin(server, RUN | {"id": "mine"})[0] == 201
    manifest = folder / "runs" / "mine" / "manifest.json"
    plain = orjson.loads(manifest.read_bytes())
    for number, name in enumerate(_hostile(listener)[:-2]):
        changed = copy.deepcopy(plain)
        changed["settings"]["interactor"] = changed["models"]["interactor"] = name
        changed["prices"][name] = [0.0, 0.0]
        changed["settings"]["n"] = 2 + number
        manifest.write_bytes(orjson.dumps(changed))
        status, answer = server.ask("POST", "/api/v1/runs/mine/resume", {})
        assert status in (403, 409), (name, answer)
    manifest.write_bytes(orjson.dumps(plain | {"scenario": "mine", "code": {"file": str(folder / "canary.py")}}))
    for path in ("", "/report", "/transcripts?prompts=true"):
        server.ask("GET", f"/api/v1/runs/mine{path}")
    manifest.write_bytes(orjson.dumps(plain))
    assert _Listener.heard == []
    assert not (folder / "mark").exists()


def test_endpoints_that_the_operator_allows_get_no_key(tmp_path: Path, listener: str, monkeypatch: Any) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    (tmp_path / "items.jsonl").write_bytes(ITEMS.read_bytes())
    _Listener.heard.clear()
    models = {"candidate": [f"openai:{listener}/v1#m"], "interactor": "simulated:i", "evaluator": "simulated:e"}
    with served_here(tmp_path, ["simulated:sim"], allow=(f"{listener}/v1",)) as server:
        status, answer = _begin(server, RUN | {"models": models, "id": "allowed"})
    assert status == 201, answer
    assert _Listener.heard
    assert all(heard.startswith("/v1/") and SECRET not in heard for heard in _Listener.heard)


def test_a_name_that_comes_to_mean_an_inner_address_is_not_asked(listener: str) -> None:
    _Listener.heard.clear()
    port = int(listener.rpartition(":")[2])
    name = f"openai:http://rebound.example:{port}/v1#m"
    client = Client(Permissions(), endpoints=Endpoints.parse([f"http://rebound.example:{port}/v1"]))

    async def main() -> None:
        async def inner(*_: Any, **__: Any) -> list[Any]:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in ("127.0.0.1", "10.0.0.9")]

        asyncio.get_running_loop().getaddrinfo = inner  # type: ignore[method-assign] - a name server of the client's
        with bound_permissions(Permissions(client=client)):
            async with BackendPool(RealClock()) as pool:
                await pool.open(name)
                with pytest.raises(Rejected, match="not a public address; clients may use it only if the server was"):
                    await pool.check([name])

    asyncio.run(main())
    assert _Listener.heard == []


# -- bodies ------------------------------------------------------------------------------------------------------------

_M = 15_900_000
_NAMED = b',"simulated:%b"' % (b"%2541" * 300)


def _filled(head: bytes, piece: bytes, tail: bytes, count: int | None = None) -> bytes:
    return head + piece * (count or (_M - len(head) - len(tail)) // len(piece)) + tail


def _keys(head: bytes, value: bytes, tail: bytes) -> bytes:
    return head + b",".join(b'"k%d":%b' % (number, value) for number in range(20_000)) + tail


_CHAT = b'{"model":"sim","max_tokens":1,"messages":['
_USER = b'{"role":"user","content":"x"}'
_SCHEMA = b'{"model":"sim","max_tokens":1,"messages":[' + _USER + b'],"response_format":{"type":"json_schema",'
_TINY = _CHAT.replace(b"sim", b"tiny")
_SAID = b'{"role":"assistant","content":"x"}'
_CALLS = b'{"role":"assistant","tool_calls":[' + b",".join([b'{"function":{"name":"f"}}'] * 1_000) + b"]}"
_SCHEMA_OF_TINY = _SCHEMA.replace(b"sim", b"tiny") + b'"json_schema":{"schema":%b}}}'
_MANY = _SCHEMA + b'"json_schema":{"schema":{"type":"array","items":{"type":"integer"},"minItems":%d}}}}'
_GROWING: dict[str, Any] = {
    "$defs": {
        f"a{n}": {"type": "object", "properties": {f"x{m}": {"$ref": f"#/$defs/a{n + 1}"} for m in range(9)}}
        for n in range(9)
    } | {"a9": {"type": "null"}},
    "$ref": "#/$defs/a0",
}  # fmt: skip
HOSTILE: dict[str, tuple[str, bytes]] = {
    "empty messages": ("chat", _filled(_CHAT + b"{}", b",{}", b"]}")),
    "empty messages in small": ("chat", _filled(_CHAT + b"{}", b",{}", b"]}", 20_000)),
    "many messages": ("chat", _filled(_CHAT + _USER, b"," + _USER, b"]}", 10_000)),
    "1,024 messages": ("chat", _filled(_CHAT + _USER, b"," + _USER, b"]}", 1_023)),
    "wrong parts": ("chat", _filled(_CHAT + b'{"role":"user","content":[1', b",1", b"]}]}", 20_000)),
    "empty calls": ("chat", _filled(_CHAT + b'{"role":"assistant","tool_calls":[{}', b",{}", b"]}]}", 20_000)),
    "one long text": ("chat", _filled(_CHAT + b'{"role":"user","content":"', b"a, b", b'"}]}')),
    "escapes": ("chat", _filled(_CHAT + b'{"role":"user","content":"', b"\\u00e9\\n", b'"}]}')),
    "quotes": ("chat", _filled(_CHAT + b'{"role":"user","content":"', b'\\"', b'"}]}')),
    "wide characters": ("chat", _filled(_CHAT + b'{"role":"user","content":"', "😀".encode(), b'"}]}')),
    "unclosed lists": ("chat", b"[" * _M),
    "deep lists": ("chat", _CHAT + b"[" * 900 + b"]" * 900 + b"]}"),
    "deep schema": ("chat", _SCHEMA + b'"json_schema":{"schema":' + b'{"items":' * 300 + b"{}" + b"}" * 300 + b"}}}"),
    "wide schema": (
        "chat", _keys(_SCHEMA + b'"json_schema":{"schema":{"type":"object","properties":{', b"{}", b"}}}}}")
    ),
    "long tool": ("chat", _filled(_CHAT + _USER + b'],"tools":[{"name":"f","description":"', b"d", b'"}]}')),
    "empty tools": ("chat", _filled(_CHAT + _USER + b'],"tools":[{}', b",{}", b"]}", 20_000)),
    "stops": ("chat", _filled(_CHAT + _USER + b'],"stop":["a"', b',"a"', b"]}", 20_000)),
    "digits": ("chat", _filled(_CHAT + _USER + b'],"seed":1', b"1", b"}")),
    "unknown fields": ("chat", _keys(_CHAT + _USER + b"],", b"1", b"}")),
    "a long name": ("chat", _filled(b'{"messages":[' + _USER + b'],"model":"', b"m", b'"}')),
    "blanks": ("chat", b" " * _M),
    "prompts": ("completions", _filled(b'{"model":"sim","prompt":[1', b",1", b"]}", 20_000)),
    "empty tasks": ("runs", _filled(b'{"scenario":"kieval","models":{},"tasks":[{}', b",{}", b"]}")),
    "tasks": ("runs", _filled(b'{"scenario":"kieval","models":{},"tasks":[1', b",1", b"]}", 19_999)),
    "wrong models": ("runs", _filled(b'{"scenario":"kieval","models":{"c":[1', b",1", b"]}}", 20_000)),
    "model roles": ("runs", _keys(b'{"scenario":"kieval","models":{', b"1", b"}}")),
    "setting names": ("runs", _keys(b'{"scenario":"kieval","models":{},"settings":{', b"1", b"}}")),
    "setting texts": (
        "runs", _filled(b'{"scenario":"kieval","models":{},"settings":{"a":["a/b"', b',"a/b"', b"]}}", 9_000)
    ),
    "a setting of paths": ("runs", _filled(b'{"scenario":"kieval","models":{},"settings":{"a":"', b"a:", b'"}}')),
    "escaped model names": (
        "runs",
        _filled(b'{"scenario":"kieval","models":{"c":["simulated:a"', _NAMED, b"]}}", 199),
    ),
    "twice the same": ("runs", _filled(b'{"scenario":"kieval"', b',"scenario":"kieval"', b"}", 20_000)),
    "calls": ("chat", _filled(_TINY + _USER, b"," + _CALLS, b"]}", 8)),
    "answers": ("chat", _filled(_TINY + _SAID, b"," + _SAID, b"]}", 199)),
    "tools for many choices": (
        "chat", _filled(_TINY + _USER + b'],"n":128,"tools":[{"name":"f","description":"', b"d", b'"}]}', 999_900)
    ),
    "a $ref that grows": ("chat", _SCHEMA_OF_TINY % orjson.dumps(_GROWING)),
    "a $ref that grows in a tool": (
        "chat", _TINY + _USER + b'],"tools":[{"name":"f","parameters":%b}]}' % orjson.dumps(
            {"properties": {"a": _GROWING, "b": {"$ref": "#/$defs/a0"}}, "$defs": _GROWING["$defs"]}
        )
    ),
    "branches": (
        "chat", _SCHEMA_OF_TINY % orjson.dumps({"anyOf": [{"type": "string", "maxLength": n} for n in range(4_000)]})
    ),
    "many items": ("chat", _MANY % 10**12),
    "many items of many choices": ("chat", _MANY.replace(b"{", b'{"n":128,', 1) % 1_900),
    "stop": ("runs/x/stop", b"[" * 1_000),
    "control": ("runs/x/control", _filled(b'{"do":"cancel","keys":[""', b',""', b"]}")),
    "resume": ("runs/x/resume", _filled(b'{"retry_failed":1', b"1", b"}")),
}  # fmt: skip
_PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
_FORMS: dict[str, type[Any]] = {"chat": ChatForm, "completions": TextForm, "runs": RunRequest,
                                "runs/x/stop": StopRequest, "runs/x/resume": ResumeRequest,
                                "runs/x/control": ControlRequest}  # fmt: skip


def test_no_body_holds_up_another_clients_requests(here: tuple[Here, Path]) -> None:
    server, _ = here
    server.ask("POST", "/api/v1/runs", RUN)  # modules are imported once
    document = server.ask("GET", "/api/v1/openapi.json")[1]
    posts = {
        path.removeprefix("/api/v1/").replace("{run}", "x") for path, one in document["paths"].items() if "post" in one
    }
    assert posts | _PATHS.keys() == {where for where, _ in HOSTILE.values()}, "each endpoint has its hostile bodies"
    held: dict[str, float] = {}
    for name, (where, body) in HOSTILE.items():
        del server.turns[:]
        status, answer = server.ask("POST", _PATHS.get(where, f"/api/v1/{where}"), body)
        assert status < 500, (name, answer)
        assert server.ask("GET", "/v1/models")[0] == 200
        held[name] = max(server.turns)
    assert not (late := {name: one for name, one in held.items() if one >= MOST_HELD_SECONDS}), late


def test_no_step_of_reading_a_body_holds_the_interpreter() -> None:
    held: dict[str, list[float]] = {}

    def timed(name: str, step: Any) -> Any:
        began = time.thread_time()
        try:
            return step()
        except (Problem, ValueError):  # refused
            return None
        finally:
            held.setdefault(name, []).append(time.thread_time() - began)

    for name, (where, body) in HOSTILE.items():
        if timed(name, lambda body=body: check_value_count(body, 422) or True):
            value = timed(name, lambda body=body: orjson.loads(body))
            timed(name, lambda value=value, where=where: _FORMS[where].model_validate(value))
    assert max(max(steps) for steps in held.values()) < 2 * MOST_HELD_SECONDS, held


def test_texts_do_not_count_as_values_and_values_do() -> None:
    check_value_count(json.dumps({"a": '[{,"\\' * 400_000}).encode(), 422)
    check_value_count(b'{"a":"' + b"\\\\" * 1_000_000 + b'","b":[1,2]}', 422)
    check_value_count(b'["' + b'\\",' * 1_000_000 + b'"]', 422)
    for body in (b"[" + b"1," * (MOST_VALUES + 1) + b"1]", b'["\\\\",' + b'"a",' * (MOST_VALUES + 1) + b"1]",
                 b'["' + b"x" * 262_141 + b'\\\\"' + b",1" * (MOST_VALUES + 1) + b"]",
                 b'["x' + b"\\\\" * 300_000 + b'"' + b",1" * (MOST_VALUES + 1) + b"]"):  # fmt: skip
        with pytest.raises(Problem, match="has more than 50,000 values"):
            check_value_count(body, 422)


def test_a_page_of_many_large_runs_holds_nobody_up(here: tuple[Here, Path]) -> None:
    server, folder = here
    begun = server.ask("POST", "/api/v1/runs", RUN)[1]["id"]
    manifest = folder / "large.json"
    record = json.loads((folder / "runs" / begun / "manifest.json").read_bytes())
    manifest.write_text(json.dumps({**record, "padding": ["a"] * 150_000}))
    for number in range(200):
        run = folder / "runs" / f"z{number:03}"
        run.mkdir(parents=True)
        os.link(manifest, run / "manifest.json")
    del server.turns[:]
    status, answer = server.ask("GET", "/api/v1/runs?after=z&limit=1000")
    assert (status, answer["runs"][-1]["id"]) == (200, "z199")
    assert server.ask("GET", "/v1/models")[0] == 200
    assert max(server.turns) < MOST_HELD_SECONDS


def test_a_packed_body_is_refused_before_it_is_unpacked(here: tuple[Here, Path]) -> None:
    server, _ = here
    del server.turns[:]
    bomb = zlib.compress(b'{"model":"sim","messages":[]}' + b" " * 60_000_000, 1)
    status, answer = server.ask("POST", "/v1/chat/completions", bomb, {"Content-Encoding": "deflate"})
    assert (status, "uncompressed" in answer["error"]["message"]) == (415, True)
    assert max(server.turns) < MOST_HELD_SECONDS


def test_the_command_takes_and_checks_the_operators_list(tmp_path: Path) -> None:
    done = viva("serve", "--allow-endpoint", "api.example.org", "--runs", tmp_path / "runs", "--port", "0")
    assert (done.returncode, "--allow-endpoint api.example.org: expected a URL" in done.stderr) == (2, True)
