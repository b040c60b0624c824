"""A Hugging Face hub with a few small datasets: as much of its interface as the ``datasets`` package asks for."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"  # of every branch; a commit that is asked for is its own


@dataclass
class FakeHub:
    """``datasets``: the files of each by path. ``asked``: the paths of all requests so far."""

    datasets: Mapping[str, Mapping[str, bytes]]
    url: str = ""
    asked: list[str] = field(default_factory=list)


@contextmanager
def fake_hub(datasets: Mapping[str, Mapping[str, bytes]]) -> Iterator[FakeHub]:
    """A hub at a free port while entered."""
    hub = FakeHub(datasets)

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_POST(self) -> None:
            self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            path = unquote(self.path.partition("?")[0])
            hub.asked.append(f"{self.command} {path}")
            status, headers, body = self._found(path)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def _found(self, path: str) -> tuple[int, dict[str, str], bytes]:
            if path == "/":
                return 200, {}, b"hub"
            for name, files in hub.datasets.items():
                if path.startswith(f"/datasets/{name}/resolve/"):
                    revision, _, file = path.removeprefix(f"/datasets/{name}/resolve/").partition("/")
                    if file in files:
                        etag = hashlib.sha256(files[file]).hexdigest()
                        head = {"ETag": f'"{etag}"', "X-Repo-Commit": _commit(revision)}
                        return 200, head | {"Content-Type": "application/octet-stream"}, files[file]
                    return 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": _commit(revision)}, b"{}"
                if path == f"/api/datasets/{name}" or path.startswith(f"/api/datasets/{name}/"):
                    return self._api(name, files, path.removeprefix(f"/api/datasets/{name}").strip("/"))
            return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"

        def _api(self, name: str, files: Mapping[str, bytes], rest: str) -> tuple[int, dict[str, str], bytes]:
            what, _, rest = rest.partition("/")
            if what in ("", "revision"):
                siblings = [{"rfilename": file} for file in files]
                facts = {"id": name, "sha": _commit(rest or "main"), "siblings": siblings, "private": False}
                return _json(facts | {"gated": False, "disabled": False, "tags": [], "downloads": 0, "likes": 0})
            if what == "tree":
                return _json(_within(rest.partition("/")[2], files))
            if what == "paths-info":
                wanted = json.loads(self.body)["paths"]
                return _json([_entry(file, files) for file in wanted if file in files])
            return 404, {}, b"{}"

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _commit(revision: str) -> str:
    return revision if len(revision) == len(COMMIT) else COMMIT


def _within(folder: str, files: Mapping[str, bytes]) -> list[dict[str, Any]]:
    """What lies in a folder itself; the repository's own has no name."""
    before = f"{folder}/" if folder else ""
    found: dict[str, dict[str, Any]] = {}
    for file in files:
        if file.startswith(before):
            name, below, _ = file.removeprefix(before).partition("/")
            path = before + name
            found[path] = {"type": "directory", "path": path, "oid": COMMIT} if below else _entry(file, files)
    return list(found.values())


def _entry(file: str, files: Mapping[str, bytes]) -> dict[str, Any]:
    oid = hashlib.sha1(files[file], usedforsecurity=False).hexdigest()
    return {"type": "file", "path": file, "size": len(files[file]), "oid": oid}


def _json(data: Any) -> tuple[int, dict[str, str], bytes]:
    return 200, {"Content-Type": "application/json"}, json.dumps(data).encode()
