"""``viva serve`` beside llama-server: sixteen chat clients on one model file, the same threads and lanes, alternating.

What our own HTTP layer costs is measured with a model that answers at once. Then inspect_ai runs a small task against
both servers, where it can be installed (into ``.inspect``, as ``make peers`` does). The programs of a row take turns of
a quarter of a second (``turns``). CPU time stands beside throughput: on a busy machine it says more. llama-server is
left out with a message where ``make peers`` has not built it. ``--quick`` takes a model of two layers instead of twelve
and fewer questions.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from pathlib import Path

import table
from llama_programs import SERVER, model_file
from running import ROOT, Line, PeerFailed, last_line, note
from turns import in_turns

REACH: table.Reach = {
    "chat_vs_llama_server": (">=", 1.0),
    "streamed_vs_llama_server": (">=", 1.0),
    "sampled_vs_llama_server": (">=", 1.0),
    "us_per_request": ("<=", 500),
    "us_per_streamed_token": ("<=", 30),
    "chat_cpu_vs_llama_server": ("<=", 1.0),
    "streamed_cpu_vs_llama_server": ("<=", 1.0),
    "inspect_vs_llama_server": (">=", 1.0),
}
INSPECT = ROOT / ".inspect" / "bin" / "python"
WAYS = {"chat": [], "streamed": ["--stream"], "sampled": ["--temperature", "1"]}


def chat(model: Path, quick: bool) -> dict[str, float]:
    """Tokens a second of sixteen clients, in three ways of asking."""
    figures: dict[str, float] = {}
    cells = []
    size = ["--questions", "1" if quick else "2", "--tokens", "32" if quick else "64"]
    for way, options in WAYS.items():
        programs = {"viva serve": ["--viva"]}
        if SERVER.exists():
            programs["llama-server"] = ["--server", str(SERVER)]
        lines = _rates(model, {name: [*command, *size, *options] for name, command in programs.items()}, way)
        ours = lines["viva serve"]["tokens_per_s"]
        for name, line in lines.items():
            rate = line["tokens_per_s"]
            cpu = f"{1000 * line['server_cpu_s'] / line['tokens']:.2f}"
            cells.append([way, name, f"{rate:.1f}", f"{line['requests_per_s']:.2f}", cpu, f"{ours / rate:.3f}"])
        if "llama-server" in lines:
            figures[f"{way}_vs_llama_server"] = ours / lines["llama-server"]["tokens_per_s"]
            both = [lines[name]["server_cpu_s"] / lines[name]["tokens"] for name in ("viva serve", "llama-server")]
            figures[f"{way}_cpu_vs_llama_server"] = both[0] / both[1]
    header = ["way", "program", "tokens/s", "requests/s", "CPU ms/token", "viva is × as fast"]
    table.show("16 chat clients", header, cells)
    return figures


def layer(quick: bool) -> dict[str, float]:
    """What our HTTP layer costs, in CPU time."""
    note("viva serve over a model that answers at once")
    line = last_line([sys.executable, "serve_cost.py", "--requests", "25" if quick else "100"])
    cells = [[name, f"{value:.1f}"] for name, value in line.items()]
    table.show("CPU time of the HTTP layer, 16 clients", ["what", "µs"], cells)
    return dict(line)


def inspect(model: Path, quick: bool) -> dict[str, float]:
    """A small task of inspect_ai against both servers."""
    if not _installed():
        return {}
    samples = ["--samples", "32" if quick else "48", "--inspect-python", str(INSPECT)]
    programs = {"viva serve": ["--viva", *samples]}
    if SERVER.exists():
        programs["llama-server"] = ["--server", str(SERVER), *samples]
    lines = _rates(model, programs, "inspect_ai")
    cells = [[name, f"{line['wall_s']:.1f}", f"{line['tokens_per_s']:.1f}"] for name, line in lines.items()]
    table.show("A task of inspect_ai, 16 connections", ["server", "seconds", "tokens/s"], cells)
    if "llama-server" not in lines:
        return {}
    return {"inspect_vs_llama_server": lines["viva serve"]["tokens_per_s"] / lines["llama-server"]["tokens_per_s"]}


def _rates(model: Path, programs: dict[str, list[str]], title: str) -> dict[str, Line]:
    note(f"{title}: {', '.join(programs)}")
    commands = {name: [sys.executable, "chat_http.py", str(model), *options] for name, options in programs.items()}
    return {name: program.last_line() for name, program in in_turns(commands, 0.25).items()}


def _installed() -> bool:
    """Whether there is an inspect_ai with OpenAI's client; they are installed if they can be."""
    commands = [[str(INSPECT), "-m", "pip", "install", "--quiet", "inspect_ai", "openai"]]
    if not INSPECT.exists():
        commands.insert(0, [sys.executable, "-m", "venv", str(ROOT / ".inspect")])
    check = [str(INSPECT), "-c", "import inspect_ai, openai"]
    if INSPECT.exists() and not subprocess.run(check, capture_output=True, check=False).returncode:
        return True
    for command in commands:
        note(" ".join(command))
        if subprocess.run(command, capture_output=True, check=False).returncode:
            print("inspect_ai is left out: it cannot be installed here")
            return False
    return True


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="viva serve beside llama-server")
    parser.add_argument("--quick", action="store_true", help="a small model, few questions: under a minute")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # or the programs that wait for their turn outlive us
    if not SERVER.exists():
        print(f"llama-server is left out: there is no {SERVER.relative_to(ROOT)}; `make peers` builds it")
    model = model_file(2) if options.quick else model_file()
    began = time.perf_counter()
    try:
        figures = layer(options.quick) | chat(model, options.quick) | inspect(model, options.quick)
    except PeerFailed as failed:
        raise SystemExit(f"serve: {failed}") from None
    table.conclude("serve", {name: round(value, 4) for name, value in figures.items()}, REACH)
    print(f"took {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
