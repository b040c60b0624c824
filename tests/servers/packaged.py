"""The packaged server of llama-cpp-python over one GGUF file: ``with packaged_server(model, folder) as url``."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def packaged_server(model: Path, folder: Path, *options: str) -> Iterator[str]:
    """The address of its API while entered; its log stands in ``folder``."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "llama_cpp.server", "--model", str(model), "--port", str(port)]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen([*command, "--verbose", "false", *options], stdout=log, stderr=log)
        try:
            yield _when_up(f"http://127.0.0.1:{port}/v1", process, folder / "server.log")
        finally:
            process.terminate()
            process.wait()


def _when_up(url: str, process: subprocess.Popen[bytes], log: Path) -> str:
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"{url}/models"):
                return url
        except (urllib.error.URLError, ConnectionError):
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
    raise AssertionError(f"the server did not come up: {log.read_text()}")
