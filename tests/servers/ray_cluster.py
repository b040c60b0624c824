"""A Ray cluster of several raylets on this machine: ``with ray_cluster([{"num_cpus": 1}, …]) as cluster``.

Each node has a loopback address of its own, and the cluster ports and a folder that no other has, so clusters of
parallel tests do not meet. Every process carries a mark in its environment, by which all are ended with the cluster.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

_MARK = "VIVA_TEST_CLUSTER"
_STARTED = b"Ray runtime started"


class RayCluster:
    """``address`` is for ``--ray``; ``folder`` holds the sessions, with the logs of all processes; ``environment`` is
    what was given to them.
    """

    def __init__(self, address: str, folder: Path, mark: str, environment: Mapping[str, str]) -> None:
        self.address, self.folder, self._mark, self.environment = address, folder, mark.encode(), environment

    def processes(self) -> dict[int, bytes]:
        """The living processes of the cluster, with their command lines."""
        found = {}
        for one in Path("/proc").iterdir():
            try:
                if one.name.isdigit() and self._mark in (one / "environ").read_bytes():
                    found[int(one.name)] = (one / "cmdline").read_bytes()
            except OSError:  # gone in the meantime, or not ours
                continue
        return found

    def end(self) -> None:
        """Kill all processes of the cluster, until there are none."""
        while left := self.processes():
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue


@contextmanager
def ray_cluster(nodes: Sequence[Mapping[str, Any]], environment: Mapping[str, str]) -> Iterator[RayCluster]:
    """The cluster while entered. ``nodes`` are options of ``ray start``; the first is the head. All of them, and the
    workers, have ``environment``.
    """
    mark = f"{_MARK}={secrets.token_hex(8)}"
    folder = Path(tempfile.mkdtemp(prefix="vr", dir="/tmp"))  # paths of sockets have at most 107 bytes
    port, dashboard = _free_ports(2)
    cluster = RayCluster(f"127.0.0.2:{port}", folder, mark, environment)
    without = ("RAY_ADDRESS", "PYTHONWARNINGS")
    own = {name: value for name, value in {**os.environ, **environment}.items() if name not in without}
    own |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", _MARK: mark.partition("=")[2]}
    with ExitStack() as leaving:
        leaving.callback(shutil.rmtree, folder, ignore_errors=True)
        leaving.callback(cluster.end)
        processes = []
        for number, options in enumerate(nodes):
            command = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--disable-usage-stats"]
            command += [f"--node-ip-address=127.0.0.{number + 2}", "--object-store-memory=80000000"]
            command += ["--min-worker-port=0", "--max-worker-port=0", "--include-log-monitor=false"]
            if number:
                command.append(f"--address={cluster.address}")
            else:
                command += ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={folder}"]
                command.append(f"--dashboard-port={dashboard}")
            command += [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
            process = subprocess.Popen(
                command, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
            )
            processes.append(leaving.enter_context(process))
            leaving.callback(cluster.end)  # before it is waited for
            if not number:
                _until_started(process)  # the others ask it for the cluster
        for process in processes[1:]:
            _until_started(process)
        yield cluster


def _until_started(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if _STARTED in line:
            return
    raise AssertionError(f"Ray ended with {process.wait()}: {b''.join(said).decode()}")


def _free_ports(count: int) -> list[int]:
    with ExitStack() as open_ones:
        sockets = [open_ones.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("", 0))
        return [one.getsockname()[1] for one in sockets]
