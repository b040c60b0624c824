"""The command line many times over, each time in a process forked from one that has loaded it: ``forked_viva.py``.

It reads steps from stdin, a JSON object a line: ``arguments``, ``screen`` (the path that stdout and stderr go to, with
``.out`` and ``.err``), ``audited`` (the file that lists each file opened for writing, and each command started), and
``wait`` (false: a server, which goes on). For each it writes a line: the exit code, or the process id of a server.
"""

from __future__ import annotations

import json
import os
import pkgutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from exit_codes import exit_code_of

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND
_SLOW = (  # packages that commands import late, and that take long
    "scipy.stats", "sklearn.feature_extraction.text", "matplotlib.backends.backend_svg", "matplotlib.pyplot",
    "pyarrow.parquet", "jsonschema",
)  # fmt: skip
_SPAWNING = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system")


class Forked:
    """The running script. ``screens``: where each step's stdout and stderr went."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process, self._folder, self._count = process, folder, 0
        self.screens: list[Path] = []
        (folder / "screens").mkdir()

    @property
    def pid(self) -> int:
        """The process from which all are forked."""
        return self._process.pid

    def run(self, *arguments: str | Path, wait: bool = True) -> tuple[int, Path]:
        """Exit code of a command (of a server, its process id), and its screen without ending."""
        screen = self._folder / "screens" / f"{self._count:03}"
        self._count += 1
        for ending in (".out", ".err"):
            self.screens.append(screen.with_suffix(ending))
            self.screens[-1].touch()
        step = {"arguments": [str(one) for one in arguments], "screen": str(screen), "wait": wait}
        step["audited"] = str(self._folder / "audited.jsonl")
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(step) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the process from which commands are forked has ended"
        return int(line), screen

    def audited(self) -> tuple[set[Path], list[str]]:
        """What was written by any step, as paths; and the words of each command that any started."""
        paths, words = set(), []
        for line in (self._folder / "audited.jsonl").read_text().splitlines():
            kind, value = json.loads(line)
            if kind == "written":
                paths.add(Path(value))
            else:
                words.append(value)
        return paths, words


@contextmanager
def forked_viva(folder: Path, environment: dict[str, str], cwd: Path) -> Iterator[Forked]:
    """The script while entered; its own files are in ``folder``."""
    folder.mkdir()
    with subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=cwd
    ) as process:
        try:
            yield Forked(process, folder)
        finally:
            process.terminate()


def modules() -> Iterator[str]:
    """Iterate over the names of all modules of ``viva``; ``viva.__path__`` alone leads to none of its folders."""
    for init in Path(__file__).parents[2].glob("*/__init__.py"):
        package = "viva" if init.parent.name == "viva" else f"viva.{init.parent.name}"
        yield package
        for module in pkgutil.walk_packages([str(init.parent)], f"{package}."):
            yield module.name


def _main() -> None:
    import importlib.util

    for name in modules():  # what one step imports is there for all
        if not name.endswith(("__main__", "pytest_plugin")):
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:  # a package of an extra that is not installed
                if str(error.name).startswith("viva"):
                    raise
    for name in _SLOW:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            importlib.import_module(name)
    import viva.cli.main

    for line in sys.stdin:
        step = json.loads(line)
        pid = os.fork()
        if not pid:
            _hold(step, viva.cli.main.main)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if step["wait"] else pid, flush=True)


def _hold(step: dict[str, Any], command: Any) -> None:
    """In the new process: be the command."""
    with open("/dev/null") as nothing:
        os.dup2(nothing.fileno(), 0)
    for number, ending in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{step['screen']}.{ending}", os.O_WRONLY | os.O_CREAT), number)
    audited = os.open(step["audited"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def heard(event: str, arguments: tuple[Any, ...]) -> None:
        value = _of_interest(event, arguments)
        if value is not None:
            os.write(audited, json.dumps(value).encode() + b"\n")

    sys.addaudithook(heard)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["viva", *step["arguments"]]
    os._exit(exit_code_of(command))


def _of_interest(event: str, arguments: tuple[Any, ...]) -> tuple[str, str] | None:
    if event == "open":
        path, mode, flags = arguments
        writes = bool(flags & _WRITING) if isinstance(flags, int) else any(one in str(mode) for one in "wax+")
        return ("written", os.path.abspath(os.fsdecode(path))) if writes and isinstance(path, str | bytes) else None
    if event == "sqlite3.connect" and not str(arguments[0]).startswith("file:"):
        return "written", os.path.abspath(os.fsdecode(arguments[0]))
    if event in _SPAWNING:
        return "spawned", repr(arguments[:2])
    return None


if __name__ == "__main__":
    _main()
