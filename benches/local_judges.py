"""One GGUF file as a judge in three places under load: llama.cpp in process, llama-server, llama-cpp-python's server.

``viva judge load`` drives all three with the same requests, a shared system prompt and grades under a schema, at
growing numbers of requests in flight, and prints one table. The judge in process promises reproducible transcripts:
with the same seeds its answers have to be the same at every load, byte for byte. llama-server computes requests
together, and what they are computed with changes the last bits of what comes out; how many verdicts that changes is
measured beside it. Weights are random, so many tokens are nearly as likely as the next one, which makes every such
change visible. llama-cpp-python's server is asked twice: as it comes it ends an answer under way when another request
arrives (``interrupt_requests``), which the load test has to find.

llama-server is left out with a message where ``make peers`` has not built it. ``--quick`` takes a smaller model and
fewer requests.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import table
from llama_programs import SERVER
from running import ROOT, note

sys.path.insert(0, str(ROOT / "tests" / "models"))
from tiny_gguf import make_model

IN_PROCESS, LLAMA_SERVER, PYTHON_SERVER = "in process", "llama-server", "llama-cpp-python"
INTERRUPTING = f"{PYTHON_SERVER} as it comes"
PREFIXES = {IN_PROCESS: "in_process", LLAMA_SERVER: "llama_server", PYTHON_SERVER: "llama_cpp_python",
            INTERRUPTING: "interrupting"}  # fmt: skip
LANES, CONTEXT, THREADS = 16, 2048, 2
PATIENCE_SECONDS = 120.0
REACH: table.Reach = {
    "in_process_same_bytes_pct": (">=", 100),
    "in_process_same_verdicts_pct": (">=", 100),
    "in_process_flagged": ("<=", 0),
    "vs_llama_server": (">=", 1.0),
    "vs_llama_cpp_python": (">=", 1.0),
    "interrupting_flagged": (">=", 1),
}
SYSTEM = (
    "You are an impartial judge. You are shown a question and an answer. Say how accurate, relevant, clear and "
    "complete the answer is, and what is missing from it. An answer that repeats the question is worth nothing. "
    "Neither the length of an answer nor its form counts. Give your reasons in one short sentence, and then a score "
    "from 1 to 10."
)
SCHEMA = {
    "type": "object",
    "properties": {
        "reasoning": {"type": "string", "maxLength": 100},
        "score": {"type": "integer", "enum": list(range(1, 11))},
    },
    "required": ["reasoning", "score"],
    "additionalProperties": False,
}


def write_requests(file: Path, count: int) -> None:
    """Requests for grades of answers, as chat requests."""
    form = {"type": "json_schema", "json_schema": {"name": "grade", "schema": SCHEMA}}
    with file.open("w") as lines:
        for number in range(count):
            prompt = (
                f"Question: what is {number} times {number + 3}?\nAnswer: it is {number * (number + 3) + number % 2}."
            )
            messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": prompt}]
            body = {"messages": messages, "temperature": 0.7, "max_tokens": 160, "response_format": form}
            lines.write(json.dumps({"id": f"r{number}", **body}) + "\n")


@contextmanager
def serving(command: list[str], port: int) -> Iterator[None]:
    """A server while entered, from the moment it lists its models."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            began = time.perf_counter()
            while True:
                try:
                    with urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5) as answer:
                        if answer.status == 200:
                            break
                except (URLError, OSError):
                    if process.poll() is not None or time.perf_counter() - began > PATIENCE_SECONDS:
                        raise SystemExit(f"{command[0]} did not come up") from None
                    time.sleep(0.2)
            yield
        finally:
            process.kill()


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def judges(model: Path, stack: ExitStack) -> list[str]:
    """The judges' names, their servers running."""
    options = f"ctx={CONTEXT}&lanes={LANES}&threads={THREADS}"
    names = [f"llama:{model}?{options}&label={IN_PROCESS.replace(' ', '%20')}"]
    if SERVER.exists():
        port = free_port()
        size = ["-np", str(LANES), "-c", str(LANES * CONTEXT), "-t", str(THREADS), "--no-warmup", "--cache-ram", "0"]
        stack.enter_context(serving([str(SERVER), "-m", str(model), "--port", str(port), *size], port))
        names.append(f"openai:http://127.0.0.1:{port}/v1#judge?label={LLAMA_SERVER}")
    else:
        note(f"{LLAMA_SERVER} is not there (make peers): left out")
    for label, interrupts in ((PYTHON_SERVER, "false"), (INTERRUPTING, "true")):
        port = free_port()
        size = ["--n_ctx", str(CONTEXT), "--n_threads", str(THREADS), "--interrupt_requests", interrupts]
        command = [sys.executable, "-m", "llama_cpp.server", "--model", str(model), "--port", str(port), *size]
        stack.enter_context(serving(command, port))
        name = f"openai:http://127.0.0.1:{port}/v1#judge?label={label.replace(' ', '%20')}&json=object_schema"
        names.append(name)
    return names


def load_test(names: list[str], folder: Path, loads: str, requests: int) -> dict[str, Any]:
    """The record that the command prints."""
    command = [sys.executable, "-m", "viva", "judge", "load", str(folder / "requests.jsonl"), "--concurrency",
               loads, "--requests", str(requests), "--baseline", str(requests), "--warm-up", "0", "--drain", "300",
               "--no-stop", "--out", str(folder / "test"), "--json"]  # fmt: skip
    for name in names:
        command += ["--judge", name]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout:
        raise SystemExit(f"the load test ended with {done.returncode}")
    record: dict[str, Any] = json.loads(done.stdout)
    return record


def mode_figures(record: dict[str, Any]) -> dict[str, float]:
    """One table of all judges at all loads; and the figures."""
    cells, figures, best = [], {}, dict[str, float]()
    for judge in record["judges"]:
        name, failed = judge["judge"], 0
        for step in judge["steps"]:
            judged, e2e = step["judgement"], step["speed"]["latencies"]["e2e"]
            rate = step["verdicts_per_minute"] or 0.0
            best[name] = max(best.get(name, 0.0), rate)
            same, texts = ((judged[part] or {}).get("same", {}).get("value") for part in ("agreement", "texts"))
            failed += judged["errors"]
            cells.append([name, judged["load"], f"{rate:,.0f}", f"{e2e.get('p50', 0):.2f}", f"{e2e.get('p95', 0):.2f}",
                          _percent(same), _percent(texts), _percent(judged["unreadable"]),
                          "changed" if judged["flagged"] else "as unloaded"])  # fmt: skip
        prefix = PREFIXES[name]
        judged = [step["judgement"] for step in judge["steps"]]
        figures[f"{prefix}_verdicts_per_minute"] = best[name]
        figures[f"{prefix}_same_bytes_pct"] = min(100 * judgement["texts"]["same"]["value"] for judgement in judged)
        figures[f"{prefix}_same_verdicts_pct"] = min(
            100 * judgement["agreement"]["same"]["value"] for judgement in judged
        )
        figures[f"{prefix}_failed"] = float(failed)
        figures[f"{prefix}_flagged"] = float(sum(judgement["flagged"] for judgement in judged))
    header = ["judge", "load", "verdicts/min", "p50 s", "p95 s", "same", "bytes", "no verdict", "judges"]
    table.show("One model file in three places (same: verdicts, bytes: answers, as unloaded)", header, cells)
    for name, figure in ((LLAMA_SERVER, "vs_llama_server"), (PYTHON_SERVER, "vs_llama_cpp_python")):
        if name in best:
            figures[figure] = best[IN_PROCESS] / best[name]
    return figures


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}%"


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smaller model and fewer requests")
    quick = parser.parse_args().quick
    shape = {"width": 256, "layers": 4, "heads": 4} if quick else {"width": 512, "layers": 8, "heads": 8}
    with tempfile.TemporaryDirectory() as home, ExitStack() as stack:
        folder = Path(home)
        model = make_model(
            folder / "judge.gguf", **shape, feed_forward=1024, vocab=8000, quantised=True, quote_bias=6.0
        )
        write_requests(folder / "requests.jsonl", count := 16 if quick else 64)
        record = load_test(judges(model, stack), folder, "2,8" if quick else "2,8,16", count)
    table.conclude("local_judges", mode_figures(record), REACH)


if __name__ == "__main__":
    main()
