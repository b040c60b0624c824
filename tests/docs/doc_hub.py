"""A shell in which ``viva`` costs no start: ``with hub(folder) as shell`` and ``shell.environment``.

A process that has loaded viva waits at a socket. The ``viva`` on the shell's path hands it its words, folder,
environment and open files, and a process forked from it is the command. Redirections, pipes, ``&`` and Ctrl-C are the
shell's own, as for the installed command.

A command that serves pages (``_SERVING``) is one that a reader looks at and ends: it gets a free port, the address that
it prints is asked for, and it is interrupted, unless ``STANDS`` is set, when it stands until it is told to end.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from exit_codes import exit_code_of
from forked_viva import modules

_MODELS = Path(__file__).parents[1] / "models"  # where the line above finds it, in tests and in the script
_LATE = (  # packages that commands import when they run, and that take long
    "scipy.stats", "sklearn.feature_extraction.text", "matplotlib.backends.backend_svg", "jsonschema",
)  # fmt: skip
_SERVING = (["view"], ["serve"], ["grade", "serve"], ["grade", "answer"])
_QUICK = {"--export", "--new-token", "--help"}  # with these they serve nothing
_SHIM = """#!{python} -IS
import json, os, signal, socket, sys
link = socket.socket(socket.AF_UNIX)
link.connect({address!r})
asked = {{"words": sys.argv[1:], "cwd": os.getcwd(), "environment": dict(os.environ)}}
socket.send_fds(link, [b"."], [0, 1, 2])
link.sendall(json.dumps(asked).encode() + b"\\n")
answers = link.makefile()
pid = int(answers.readline())
for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(one, lambda number, frame: os.kill(pid, number))
line = answers.readline()
sys.exit(int(line) if line else 70)
"""


# A cluster of one machine, which does at once what it is told: the tasks of an array one after the other.
_SRUN = '#!/bin/sh\nexec "$@"\n'
_SBATCH = """#!/bin/bash
set -e
while [ $# -gt 0 ]; do
    case $1 in
        --wrap) work=$2; shift ;;
        --array=*) array=${1#--array=} ;;
        --*) ;;
        *) work="bash $1"; array=$(sed -n 's/^#SBATCH --array=//p' "$1") ;;
    esac
    shift
done
for SLURM_ARRAY_TASK_ID in $(seq "${array%-*}" "${array#*-}"); do
    export SLURM_ARRAY_TASK_ID
    bash -c "$work" >&2
done
[ -n "$array" ] || bash -c "$work" >&2
echo 17
"""


@contextmanager
def hub(folder: Path) -> Iterator[Path]:
    """The folder to be put first on ``PATH``, while entered."""
    folder.mkdir(parents=True)
    address = folder / "hub"
    (folder / "viva").write_text(_SHIM.format(python=sys.executable, address=str(address)))
    (folder / "viva").chmod(0o755)
    for name, program in (("srun", _SRUN), ("sbatch", _SBATCH)):
        (folder / name).write_text(program)
        (folder / name).chmod(0o755)
    command = [sys.executable, __file__, str(address)]
    environment = {**os.environ, "PYTHONPATH": str(_MODELS)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline(), "the process from which commands are forked has ended"
            yield folder
        finally:
            process.terminate()


def _main(address: str) -> None:
    import importlib.util

    for name in modules():
        # `cli.main` looks at the words of the command when it is imported.
        if not name.endswith(("__main__", "pytest_plugin", "cli.main")):
            with suppress(Exception):  # whoever needs it says so
                importlib.import_module(name)
    for name in _LATE:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen(64)
        print("ready", flush=True)
        while True:
            link, _ = listening.accept()
            if not os.fork():
                listening.close()
                _hold(link)
            link.close()


def _hold(link: socket.socket) -> None:
    """In the new process: be the command."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _, files, _, _ = socket.recv_fds(link, 1, 3)
    asked = json.loads(link.makefile().readline())
    for place, one in enumerate(files):
        os.dup2(one, place)
        os.close(one)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv = ["viva", *asked["words"]]
    link.sendall(f"{os.getpid()}\n".encode())
    serves = _serves(asked["words"])
    if serves:
        sys.argv += ["--port", "0"]
        _be_visited()
    from viva.cli.start import main

    code = exit_code_of(main)
    code = 0 if serves and code == 130 else code
    link.sendall(f"{code}\n".encode())
    os._exit(code)


def _serves(words: list[str]) -> bool:
    """Whether the command shows pages until it is ended."""
    return any(words[: len(verb)] == verb for verb in _SERVING) and not _QUICK & set(words)


def _be_visited() -> None:
    """What the command prints goes through a pipe: behind it somebody reads the address and looks at the page."""
    shown = os.dup(1)
    reading, writing = os.pipe()
    for place in (1, 2):
        os.dup2(writing, place)
    os.close(writing)
    threading.Thread(target=_visit, args=(reading, shown), daemon=True).start()


def _visit(printed: int, shown: int) -> None:
    for line in open(printed, encoding="utf-8"):  # noqa: SIM115 - it is read until the process ends
        os.write(shown, line.encode())
        if (found := re.search(r"http://127\.0\.0\.1:\d+\S*", line)) and "warning" not in line:
            if stands := os.environ.get("STANDS"):
                Path(f"{stands}.part").write_text(found[0])
                os.rename(f"{stands}.part", stands)
                continue
            try:
                urllib.request.urlopen(found[0], timeout=60).close()
            except urllib.error.HTTPError as refused:
                if refused.code >= 500:
                    os.write(shown, f"{found[0]}: {refused}\n".encode())
                    os._exit(70)
            os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    _main(sys.argv[1])
