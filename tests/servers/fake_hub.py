"""A Hugging Face hub with a few small datasets and models: as much of its interface as its packages ask for."""

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
    """``datasets``, ``models``: the files of each by path. ``asked``: the paths of all requests so far.

    Of models: ``cuts`` are the bytes after which the next answers with a file break off; ``spoiled`` answers hold other
    bytes than promised; ``refused`` is the status and the error code of all requests; ``commit`` that of ``main``.
    """

    datasets: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    models: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    url: str = ""
    asked: list[str] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    spoiled: bool = False
    refused: tuple[int, str] | None = None
    commit: str = COMMIT

    @property
    def ranges(self) -> list[str]:
        """Of each request for the bytes of a file: the range that was asked for."""
        return [one.partition(" range ")[2] for one in self.asked if one.startswith("GET") and "/resolve/" in one]


@contextmanager
def fake_hub(
    datasets: Mapping[str, Mapping[str, bytes]] | None = None, models: Mapping[str, Mapping[str, bytes]] | None = None
) -> Iterator[FakeHub]:
    """A hub at a free port while entered."""
    hub = FakeHub(datasets or {}, models or {})

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
            wanted = self.headers.get("Range", "")
            hub.asked.append(f"{self.command} {path} range {wanted}" if wanted else f"{self.command} {path}")
            status, headers, body = self._found(path)
            is_file = with_body and status == 200 and "/resolve/" in path and not path.startswith("/datasets/")
            if is_file and hub.spoiled:
                body = body[::-1]
            if is_file and wanted:
                start = int(wanted.removeprefix("bytes=").rstrip("-"))
                headers |= {"Content-Range": f"bytes {start}-{len(body) - 1}/{len(body)}"}
                status, body = 206, body[start:]
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body and is_file and hub.cuts:
                self.wfile.write(body[: hub.cuts.pop(0)])
                self.close_connection = True
            elif with_body:
                self.wfile.write(body)

        def _found(self, path: str) -> tuple[int, dict[str, str], bytes]:
            if path == "/":
                return 200, {}, b"hub"
            if hub.refused is not None:
                return hub.refused[0], {"X-Error-Code": hub.refused[1]}, b"{}"
            for name, files in hub.models.items():
                if path.startswith(f"/{name}/resolve/"):
                    return self._file(files, path.removeprefix(f"/{name}/resolve/"))
                if path == f"/api/models/{name}" or path.startswith(f"/api/models/{name}/revision/"):
                    return self._api(name, files, path.removeprefix(f"/api/models/{name}").strip("/"))
            for name, files in hub.datasets.items():
                if path.startswith(f"/datasets/{name}/resolve/"):
                    return self._file(files, path.removeprefix(f"/datasets/{name}/resolve/"))
                if path == f"/api/datasets/{name}" or path.startswith(f"/api/datasets/{name}/"):
                    return self._api(name, files, path.removeprefix(f"/api/datasets/{name}").strip("/"))
            return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"

        def _file(self, files: Mapping[str, bytes], place: str) -> tuple[int, dict[str, str], bytes]:
            revision, _, file = place.partition("/")
            if file in files:
                etag = hashlib.sha256(files[file]).hexdigest()
                head = {"ETag": f'"{etag}"', "X-Repo-Commit": _commit(revision, hub.commit)}
                return 200, head | {"Content-Type": "application/octet-stream"}, files[file]
            return 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": _commit(revision, hub.commit)}, b"{}"

        def _api(self, name: str, files: Mapping[str, bytes], rest: str) -> tuple[int, dict[str, str], bytes]:
            what, _, rest = rest.partition("/")
            if what in ("", "revision"):
                siblings = [{"rfilename": file} for file in files]
                facts = {"id": name, "sha": _commit(rest or "main", hub.commit), "siblings": siblings, "private": False}
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


def _commit(revision: str, newest: str) -> str:
    return revision if len(revision) == len(COMMIT) else newest


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
