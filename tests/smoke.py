"""Every verb of the command line once, with simulated models and nothing but viva's own dependencies: `make lowest`.

It needs no pytest, so that it runs where the lowest permitted versions are installed and nothing else.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import tempfile
import traceback
import urllib.error
import urllib.request
import warnings
from itertools import chain
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "models"))

from every_verb import named_steps, prepare, steps

from viva.cli.main import app

_MODEL = re.compile(r"\b(?:openai|anthropic|gemini):(\w+)(?:\?retries=0(&(?=\w))?)?\b")
_ENDS = {"suite run": (0, 1), "suite gate": (0, 1)}  # whether simulated answers pass a gate is not what is tried
_DRAWN = [  # what needs packages of the extras
    "grade demo --out graded",
    "report runs/sweep --html drawn.html",
    "judge compare rated.csv --human people --score judge --item item --resamples 100 --plot forest.svg "
    "--baselines rouge,meteor,bleu,chrf --output text --reference question",
]
_SERVED = ["view runs/run", "serve --runs runs --model simulated:app", "grade serve queue", "grade answer room"]


def _simulated(text: str) -> str:
    return _MODEL.sub(lambda found: f"simulated:{found[1]}" + ("?" if found[2] else ""), text)


def _run(words: list[str]) -> tuple[int, str]:
    """A command's exit code and all that it printed; a traceback is an exit code of its own."""
    printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    code = 0
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            app(words, standalone_mode=False)
        except SystemExit as end:
            code = int(end.code or 0)
        except Exception:
            traceback.print_exc()
            code = 70
    printed.seek(0)
    return code, printed.read()


def _served(words: list[str]) -> str | None:
    """What is wrong with a verb that serves pages; None if its first page answers and it ends when told to."""
    command = [sys.executable, "-m", "viva", *words, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None
        printed = ""
        for line in server.stdout:
            printed += line
            if found := re.search(r"(?<!warning: )http://127\.0\.0\.1:\d+", line):
                try:
                    urllib.request.urlopen(found[0], timeout=60).read()
                except urllib.error.HTTPError as error:  # a page that wants a token answers too
                    if error.code >= 500:
                        printed += f"{found[0]}: {error}"
                        break
                server.send_signal(signal.SIGTERM)
                server.stdout.read()
                return None
        server.kill()
    return printed


def main() -> int:
    """Return the number of verbs that failed."""
    tried = failed = 0
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        os.environ["MPLCONFIGDIR"] = folder
        prepare(Path())
        for path in Path().glob("*.yaml"):
            path.write_text(_simulated(path.read_text()))
        recorded = ([_simulated(word) for word in words] for words, _ in steps())
        for words in chain(recorded, named_steps(Path()), map(str.split, _DRAWN)):
            tried += 1
            code, printed = _run(words)
            if code not in _ENDS.get(" ".join(words[:2]), (0, 3)):
                failed += 1
                print(f"viva {' '.join(words)}\n  ended with {code}: {printed[-3000:]}\n", flush=True)
        for line in _SERVED:
            tried += 1
            if (wrong := _served(line.split())) is not None:
                failed += 1
                print(f"viva {line}\n  served nothing: {wrong[-3000:]}\n", flush=True)
    print(f"{tried} commands, {failed} failed")
    return failed


if __name__ == "__main__":
    warnings.simplefilter("default")
    sys.exit(min(1, main()))
