"""The parts that ``measure.py`` measures, the most important first, each with a limit of time.

Figures are kept in a file after each part. A part that fails or takes too long is left out with a message, and what it
started is killed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import table
from llama_programs import SERVER, Bench
from models import SHAPES, small, write_model
from running import Line, PeerFailed, finish, last_line, note

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".peers" / "gpu-work"
MAIN = "8b-q4_k_m"
REACH: table.Reach = {
    "decode_vs_batched_bench_16": (">=", 0.95),
    "decode_vs_batched_bench_64": (">=", 0.95),
    "decode_vs_batched_bench_256": (">=", 0.95),
    "interviews_vs_llama_server": (">=", 2),
    "outside_llama_share": ("<=", 0.05),
    "prompt_tokens_vs_minimum": ("<=", 1.05),
    "layers_on_device": (">=", 1),
}
Figures = dict[str, float]


def out() -> Path:
    """Return the folder for results."""
    return Path(os.environ.get("OUT") or WORK)


def model_path(name: str, quick: bool) -> Path:
    """Return the path of a model's file."""
    return WORK / f"{name}{'-quick' * quick}.gguf"


class GpuBench(Bench):
    """A model of random weights, its options, and programs that have to end in time."""

    def __init__(self, name: str, quick: bool, gpu: bool, seconds: float) -> None:
        """Write the model if it is not there."""
        self.quick, self._end = quick, time.monotonic() + seconds
        programs = WORK / f"build-{'cuda' if gpu else 'cpu'}" / "bin"
        super().__init__(self._model_file(name), quick, gpu, programs, lanes=16 if quick else 64, name=name)
        self.rounds = 3

    def line(self, name: str, command: list[str]) -> Line:
        """Run a program of ``peers/`` and return its last line."""
        note(f"{self.name}: {name}")
        line = last_line(command, self._left())
        if "config" in line:
            note(line["config"])
        with (out() / "gpu-lines.jsonl").open("a") as file:
            file.write(json.dumps({"model": self.name, "program": name, **line}) + "\n")
        return line

    def decode(self, lanes: int, options: str = "") -> Line:
        """Decode plainly in so many lanes."""
        command = self.viva("decode", lanes, "--tokens", str(self.tokens), lanes=lanes, context=512, options=options)
        return self.line(f"decode in {lanes} lanes {options}", command)

    def peer_decode(self, lanes: int) -> float:
        """Return llama-batched-bench's rate for the same, the median of two rows."""
        note(f"{self.name}: llama-batched-bench, {lanes} lanes")
        output = finish(self.batched(64, self.tokens, lanes, 2, context=512), seconds=self._left())
        rows = [json.loads(line[line.index("{") :]) for line in output.splitlines() if '"speed_tg"' in line]
        speeds = [row["speed_tg"] for row in rows if row["pl"] == lanes]
        if not speeds:
            raise PeerFailed(f"llama-batched-bench printed no rates: {output.strip()[-500:]!r}")
        return median(speeds)

    @property
    def tokens(self) -> int:
        """How many each lane decodes."""
        return 32 if self.quick else 128

    @property
    def vocabulary(self) -> Path:
        """A small model of the same vocabulary."""
        return self._model_file(f"{self.name.rpartition('-')[0]}-vocabulary")

    def _model_file(self, name: str) -> Path:
        path = model_path(name, self.quick)
        if not path.exists():
            began = time.perf_counter()
            size, _, kind = name.rpartition("-")
            shape = small(SHAPES[size]) if self.quick else SHAPES[size]
            if kind == "vocabulary":
                write_model(path, small(shape, shape.vocab), "q8_0")
            else:
                write_model(path, shape, kind)
            note(f"{path.name}: {path.stat().st_size / 1e9:.1f} GB in {time.perf_counter() - began:.0f} s")
        return path

    def _left(self) -> float:
        left = self._end - time.monotonic()
        if left <= 0:
            raise PeerFailed("the part's time is over")
        return left


def decode(bench: GpuBench, lanes: int = 0) -> Figures:
    """Plain decode beside llama-batched-bench: of the main model in some ``lanes``, of another in as many as usual."""
    label = bench.name.replace("-", "_")
    if lanes:
        lanes = label = max(8, lanes // 4) if bench.quick else lanes
    line, theirs = bench.decode(lanes or bench.lanes), bench.peer_decode(lanes or bench.lanes)
    ours = line["tokens_per_s"]
    row = [str(lanes or bench.lanes), f"{ours:,.0f}", f"{theirs:,.0f}", f"{ours / theirs:.3f}", *_shares(line)]
    header = ["lanes", "viva", "llama-batched-bench", "ratio", *_SHARES]
    table.show(f"Decode of {bench.name}, tokens/s", header, [row])
    figures = {f"decode_tokens_per_s_{label}": ours, f"decode_vs_batched_bench_{label}": ours / theirs}
    return figures | {"layers_on_device": line["layers_on_device"]}


_SHARES = ["sampling, %", "other Python, %", "copies of KV, %"]


def _shares(line: Line) -> list[str]:
    return [f"{100 * share:.1f}" for share in _parts_of_time(line)]


def _parts_of_time(line: Line) -> tuple[float, float, float]:
    """Return the shares of sampling, of the inference thread's other Python, and of copies of KV in the time."""
    statistics, sampling = line["told"], line["sampling_s"]
    total = line.get("whole_s", line["wall_s"]) * statistics["contexts"]
    return sampling / total, (statistics["rest_s"] - sampling) / total, statistics["copy_s"] / total


def interviews(bench: GpuBench) -> Figures:
    """KIEval-shaped interviews beside llama-server over HTTP."""
    count = 4 if bench.quick else bench.lanes
    ours = bench.line("interviews", bench.interviews(count))
    server = ["--server", str(bench.programs / SERVER.name), "--vocabulary", str(bench.vocabulary)]
    server += ["-ngl", "99"] if bench.gpu else []
    peers = {"llama-server, one cache a slot": ["-no-kvu", "--cache-ram", "0"], "llama-server, as it comes": []}
    cells = [["viva", f"{ours['talks_per_s']:.3f}", "1.00", f"{ours['prompt_tokens']:,}", *_shares(ours)]]
    rates = []
    for name, options in peers.items():
        line = bench.line(name, bench.http(count, *server, *options))
        rates.append(line["talks_per_s"])
        ratio = ours["talks_per_s"] / rates[-1]
        cells.append([name, f"{rates[-1]:.3f}", f"{ratio:.2f}", f"{line['prompt_tokens']:,}", "–", "–", "–"])
    header = ["program", "interviews/s", "viva is × as fast", "prompt tokens", *_SHARES]
    table.show(f"{count} interviews of 3 rounds with {bench.name}, {bench.lanes} lanes", header, cells)
    sampling, python, copies = _parts_of_time(ours)
    computed = (ours["told"]["decode_s"] + ours["told"]["prompt_s"]) / ours["told"]["contexts"]
    return {
        "interviews_per_s": ours["talks_per_s"],
        "interviews_vs_llama_server": ours["talks_per_s"] / max(rates),
        "prompt_tokens_vs_minimum": ours["prompt_tokens"] / ours["fewest_prompt_tokens"],
        "sampling_share": sampling,
        "python_share": python,
        "copy_share": copies,
        "outside_llama_share": 1 - computed / ours["wall_s"],  # all of these, and waiting for requests
        "gpu_hours_200_interviews": 200 / ours["talks_per_s"] * 5 / 3 / 3600,  # of five rounds
    }


def verdicts(bench: GpuBench) -> Figures:
    """Evaluator turns with the verdict's grammar, and as many tokens without one."""
    count = bench.lanes
    bound = bench.line("verdicts", bench.viva("verdicts", count))
    length = str(round(bound["tokens"] / count))
    free = bench.line("verdicts without a grammar", bench.viva("free", count, "--tokens", length))
    cells = [
        [name, f"{line['turns_per_s']:.2f}", f"{line['turns_per_s'] * float(length):,.0f}", *_shares(line)]
        for name, line in (("with a grammar", bound), ("without one", free))
    ]
    header = ["verdicts", "a second", "tokens/s", *_SHARES]
    table.show(f"{count} verdicts of {length} tokens with {bench.name}, {bench.lanes} lanes", header, cells)
    return {"verdicts_per_s": bound["turns_per_s"], "verdict_vs_free": bound["turns_per_s"] / free["turns_per_s"]}


def likelihoods(bench: GpuBench) -> Figures:
    """5-shot log-likelihoods: four letters of a question, and four options of eight tokens."""
    count = 4 if bench.quick else 256
    figures, cells = Figures(), []
    for workload, label in (("letters", "letters"), ("options", "options of 8 tokens")):
        line = bench.line(workload, bench.viva(workload, count))
        figures[f"loglikelihoods_per_s_{workload}"] = 4 * line["questions_per_s"]
        cells.append([label, f"{4 * line['questions_per_s']:.1f}", *_shares(line)])
    table.show(f"Log-likelihoods of {bench.name}, {count} questions", ["of", "a second", *_SHARES], cells)
    return figures


def tier(bench: GpuBench) -> Figures:
    """Whether an answer is the same alone, again, and in company; and what ``strict`` costs."""
    figures, cells = Figures(), []
    for strict in ("on", "off"):
        options = f"&strict={strict}"
        line = bench.line(f"determinism {options}", bench.viva("tier", bench.lanes, options=f"{options}&kv_cache=0"))
        rate = bench.decode(bench.lanes, options)["tokens_per_s"]
        figures[f"again_same_strict_{strict}"] = line["again"] / line["answers"]
        figures[f"among_same_strict_{strict}"] = line["among"] / line["answers"]
        figures[f"decode_tokens_per_s_strict_{strict}"] = rate
        same = [f"{line[key]} of {line['answers']}" for key in ("again", "among", "tokens_among")]
        cells.append([strict, *same, f"{line['largest_gap']:.1e}", f"{rate:,.0f}"])
    rates = [figures[f"decode_tokens_per_s_strict_{strict}"] for strict in ("on", "off")]
    figures["strict_vs_free"] = rates[0] / rates[1]
    header = ["strict", "same again", f"same among {bench.lanes}", "same tokens", "largest gap", "decode, tokens/s"]
    table.show(f"Answers of {bench.name} alone, alone again and among others", header, cells)
    return figures


OTHERS = ("30b-moe-q4_k_m", "8b-f16", "8b-q8_0", "1b-q4_k_m", "1b-f16")
PARTS: dict[str, tuple[Callable[[GpuBench], Figures], str, float]] = {  # function, model, limit in seconds
    "decode-64": (partial(decode, lanes=64), MAIN, 80),
    "decode-256": (partial(decode, lanes=256), MAIN, 60),
    "interviews": (interviews, MAIN, 120),
    "verdicts": (verdicts, MAIN, 60),
    "tier": (tier, MAIN, 90),
    "likelihoods": (likelihoods, MAIN, 60),
    "decode-16": (partial(decode, lanes=16), MAIN, 60),
    **{name: (decode, name, 90) for name in OTHERS},
}
_SHORTEST = 15  # seconds in which a part can end


def measure(options: argparse.Namespace, took: dict[str, float], end: float) -> None:
    """Measure the parts that are missing until ``end``, a moment of ``time.monotonic``; write and print the results."""
    kept = WORK / f"figures-{options.device}{'-quick' * options.quick}.json"
    parts: dict[str, Figures] = json.loads(kept.read_text()) if kept.exists() else {}
    pack = json.loads((WORK / "pack.json").read_text())
    checkout = {key: value or pack[key] for key, value in table.checkout().items()}
    machine = {**table.machine(), "gpu": _card(), "llama": pack["llama"], **took}
    target = out() / "gpu.json"
    for name, (part, model, limit) in PARTS.items():
        if name in parts if options.only is None else name not in options.only:
            continue
        seconds = end - time.monotonic() - 5
        if options.device == "cuda":
            seconds = min(limit, seconds)
        if seconds < _SHORTEST:
            print(f"{name}: left out, for the time is over", flush=True)
            continue
        try:
            bench = GpuBench(model, options.quick, options.device == "cuda", seconds)
            parts[name] = part(bench)
        except Exception as failed:  # the others are measured all the same
            print(f"{name}: {failed if isinstance(failed, PeerFailed) else repr(failed)}", flush=True)
            continue
        finally:
            if model != MAIN:
                model_path(model, options.quick).unlink(missing_ok=True)
        kept.write_text(json.dumps(parts))
        table.write(target, "gpu", _joined(parts), REACH, {**checkout, "machine": machine})
        sys.stdout.flush()
    table.write(target, "gpu", _joined(parts), REACH, {**checkout, "machine": machine})
    table.show_figures("gpu", _joined(parts), REACH, machine)
    print(f"written to {target}; it belongs to benches/results/ if the device is a GPU")


def _joined(parts: Mapping[str, Figures]) -> Figures:
    return {name: round(value, 4) for part in parts.values() for name, value in part.items()}


def _card() -> str:
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "none"
