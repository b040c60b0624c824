"""The llama.cpp loop beside llama.cpp's own programs, on one model file with the same threads, turn about.

Peers: ``llama-batched-bench`` and ``llama-server``, built by ``make peers`` from the sources that the Python package
was built from; ``xllamacpp`` (the server in process); ``llama_cpp.Llama`` in a loop. A peer that is absent is left
out with a message. A virtual machine is faster in one minute than in the next: of short runs the median of the ratios
counts, each of two runs next to each other, and of verdicts, which are one program's, the best. ``--quick`` takes a
model of two layers instead of twelve, fewer conversations and fewer repetitions. ``--gpu`` puts all layers of an
8B-shaped random model on the device and counts the GPU-hours of 200 interviews of five rounds.

What never belongs here: how a program does its work (``peers/``), or pass and fail.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from statistics import median

import table
from running import ROOT, Line, PeerFailed, finish, last_line, note

sys.path.insert(0, str(ROOT / "tests" / "models"))
from tiny_gguf import make_model

# As our own backend has it, for everybody: without it a peer's threads are at the mercy of any other process.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
HOME = ROOT / ".peers"
SERVER = HOME / "llama" / "bin" / "llama-server"
BATCHED = HOME / "llama" / "bin" / "llama-batched-bench"
XLLAMACPP = HOME / "xllamacpp" / "bin" / "python"
LANES = 16
CONTEXT = 2048
REACH: table.Reach = {
    "decode_vs_batched_bench_1": (">=", 0.95),
    "decode_vs_batched_bench_16": (">=", 0.95),
    "decode_vs_batched_bench_32": (">=", 0.95),
    "interviews_vs_llama_server": (">=", 1.5),
    "interviews_vs_floor": (">=", 0.85),
    "prompt_tokens_vs_minimum": ("<=", 1.05),
    "verdict_vs_unforced": (">=", 1.4),
    "loglikelihood_vs_llama_loop": (">=", 5),
    "overhead_share": ("<=", 0.03),
    "strict_vs_free": (">=", 0.95),
}


class Bench:
    """One model file, its options, and how often everything is repeated."""

    def __init__(self, model: Path, quick: bool, gpu: bool) -> None:
        self.model, self.quick, self.gpu = model, quick, gpu
        self.repeats = 1 if quick else 3
        self.short_repeats = 1 if quick else 7  # of runs of seconds, in which other work of the machine weighs more
        self.tries = 1 if quick else 3
        self.threads = len(os.sched_getaffinity(0))

    def viva(self, what: str, count: int, *more: str, lanes: int = LANES, options: str = "") -> Line:
        """Our backend, in a process of its own."""
        layers = "&gpu_layers=-1" if self.gpu else ""
        name = f"llama:{self.model}?lanes={lanes}&ctx={CONTEXT}&threads={self.threads}{layers}{options}"
        note(f"viva {what} {count} {options}")
        return last_line([sys.executable, "llama_viva.py", what, name, str(count), *more], self.tries)

    def batched(self, prompt: int, tokens: int, lanes: int) -> tuple[float, float]:
        """llama-batched-bench's prompt and decode rates, tokens a second over all lanes."""
        note(f"llama-batched-bench, {lanes} lanes")
        size = ["-c", str(lanes * CONTEXT), "-b", "512", "-ub", "512", "-npp", str(prompt), "-ntg", str(tokens)]
        more = ["-npl", str(lanes), "-t", str(self.threads), "--output-format", "jsonl", "-no-kvu"]
        more += ["-ngl", "99"] if self.gpu else []
        out = finish([str(BATCHED), "-m", str(self.model), *size, *more], tries=self.tries)
        row = json.loads([line for line in out.splitlines() if line.startswith("{")][-1])
        return float(row["speed_pp"]), float(row["speed_tg"])

    def http(self, count: int, *which: str) -> Line:
        """A llama.cpp server over HTTP."""
        note(f"{' '.join(which)} {count}")
        size = ["--lanes", str(LANES), "--ctx", str(CONTEXT), "--threads", str(self.threads)]
        return last_line([sys.executable, "llama_http.py", str(self.model), str(count), *size, *which], self.tries)

    def loop(self, what: str, count: int) -> Line:
        """llama_cpp.Llama, one call after the other."""
        note(f"llama_cpp.Llama {what} {count}")
        return last_line([sys.executable, "llama_loop.py", what, str(self.model), str(count)], self.tries)


def decode(bench: Bench) -> dict[str, float]:
    """(a) Plain decode beside llama-batched-bench, in pairs."""
    figures, cells = {}, []
    for lanes in (1, 16) if bench.quick else (1, 16, 32):
        tokens = 64 if bench.quick else 128
        ours, theirs = [], []
        for _ in range(bench.short_repeats):
            if BATCHED.exists():
                theirs.append(bench.batched(64, tokens, lanes)[1])
            ours.append(bench.viva("decode", lanes, "--tokens", str(tokens), lanes=lanes)["tokens_per_s"])
        shown = [str(lanes), f"{median(ours):,.0f}"]
        if theirs:
            ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
            figures[f"decode_vs_batched_bench_{lanes}"] = median(ratios)
            shown += [f"{median(theirs):,.0f}", f"{median(ratios):.3f}", f"{min(ratios):.3f}–{max(ratios):.3f}"]
        cells.append(shown)
    header = ["lanes", "viva", "llama-batched-bench", "ratio", "from–to"]
    table.show(
        f"(a) Plain decode, tokens/s, {bench.short_repeats} pairs, their medians", header[: len(cells[0])], cells
    )
    return figures


def interviews(bench: Bench) -> dict[str, float]:
    """(b) KIEval-shaped interviews beside servers, the package in a loop, and the floor."""
    count = 4 if bench.quick else 32
    lines: dict[str, list[Line]] = {}
    for again in range(1 if bench.quick else 2):
        lines.setdefault("viva", []).append(bench.viva("interviews", count))
        lines.setdefault("viva strict=off", []).append(bench.viva("interviews", count, options="&strict=off"))
        if SERVER.exists():
            for name, options in {
                "llama-server": ["--cache-ram", "0", "-no-kvu"],
                "llama-server, as it comes": [],
            }.items():
                if not again and not (bench.quick and options == []):
                    lines.setdefault(name, []).append(bench.http(count, "--server", str(SERVER), *options))
        if XLLAMACPP.exists() and not (bench.quick or bench.gpu or again):
            lines.setdefault("xllamacpp", []).append(bench.http(count, "--python", str(XLLAMACPP)))
    if not bench.quick and not bench.gpu:
        lines["llama_cpp.Llama in a loop"] = [bench.loop("interviews", 4)]
    rate = {name: median(line["talks_per_s"] for line in some) for name, some in lines.items()}
    ours = lines["viva"][0]
    cells = []
    for name, some in lines.items():
        computed = f"{some[0]['prompt_tokens']:,}" if "prompt_tokens" in some[0] else "–"
        cells.append([name, f"{rate[name]:.3f}", f"{rate['viva'] / rate[name]:.2f}", computed])
    figures = {
        "overhead_share": median(line["overhead"] for line in lines["viva"]),
        "prompt_tokens_vs_minimum": ours["prompt_tokens"] / ours["fewest_prompt_tokens"],
        "strict_vs_free": rate["viva"] / rate["viva strict=off"],
    }
    servers = [rate[name] for name in rate if name.startswith("llama-server")]
    if servers:
        figures["interviews_vs_llama_server"] = rate["viva"] / max(servers)
    if BATCHED.exists():
        # What attention costs goes by the context: prompts and tokens as deep in it as the work's are on the average.
        depths = round(2 * ours["prompt_depth"]), round(ours["reply_depth"]) - 32
        fewest, generated = ours["fewest_prompt_tokens"], ours["generated"]
        floors = {"floor": depths} if bench.quick else {"floor": depths, "floor behind 512 tokens": (512, 512)}
        for name, (first, second) in floors.items():
            prompt = median(bench.batched(first, 1, LANES)[0] for _ in range(bench.repeats))
            tokens = median(bench.batched(second, 64, LANES)[1] for _ in range(bench.repeats))
            rate[name] = count / (fewest / prompt + generated / tokens)
            cells.append([name, f"{rate[name]:.3f}", f"{rate['viva'] / rate[name]:.2f}", f"{fewest:,}"])
            note(f"{name}: prompts of {first}, {prompt:.0f}/s; behind {second}, {tokens:.0f}/s")
        figures["interviews_vs_floor"] = rate["viva"] / rate["floor"]
        if not bench.quick:
            figures["interviews_vs_floor_behind_512"] = rate["viva"] / rate["floor behind 512 tokens"]
    header = ["program", "interviews/s", "viva is × as fast", "prompt tokens computed"]
    table.show(f"(b) {count} interviews of 3 rounds, {LANES} lanes", header, cells)
    return figures


def many(bench: Bench) -> dict[str, float]:
    """(b) 500 conversations in flight: memory within the budget, no growth with their number or as they go on.

    On a model of two layers instead of twelve: what is looked at does not depend on how long a token takes. With
    twelve the 500 are about an hour's work.
    """
    budget = 300
    few = Bench(model_file(bench.gpu, layers=2), bench.quick, bench.gpu)
    counts = (100, 500)
    lines = [few.viva("interviews", count, options=f"&kv_cache={budget}") for count in counts]
    cells = [
        [
            str(count),
            f"{line['talks_per_s']:.3f}",
            f"{line['kept_mb']:,.0f}",
            f"{line['half_way_rss_mb']:,.0f}",
            f"{line['peak_rss_mb']:,.0f}",
            f"{line['prompt_tokens'] / line['fewest_prompt_tokens']:.3f}",
        ]
        for count, line in zip(counts, lines, strict=True)
    ]
    header = ["in flight", "interviews/s", "idle KV, MB", "peak MB half way", "peak MB", "prompt tokens / fewest"]
    table.show(f"(b) Many at once, two layers, {LANES} lanes, {budget:,} MB for idle KV", header, cells)
    return {
        "kept_vs_budget": lines[-1]["kept_mb"] / budget,
        "memory_growth": lines[-1]["peak_rss_mb"] / lines[0]["peak_rss_mb"],
        "memory_growth_second_half": lines[-1]["peak_rss_mb"] / lines[-1]["half_way_rss_mb"],
        "many_conversations": counts[-1],
    }


def verdicts(bench: Bench) -> dict[str, float]:
    """(c) Evaluator turns with the verdict's schema, forced tokens as prompt or one by one; both with llama.cpp's flash
    attention too, which by default verdicts in lanes of this length do without.
    """
    count = 4 if bench.quick else LANES
    lines: dict[tuple[str, str], list[Line]] = {}
    for again in range(bench.repeats):
        for attention in ("auto",) if again or bench.quick else ("auto", "on"):
            for forced in ("on", "off"):
                line = bench.viva("verdicts", count, options=f"&forced={forced}&flash_attn={attention}")
                lines.setdefault((attention, forced), []).append(line)
    rate = {way: max(line["turns_per_s"] for line in some) for way, some in lines.items()}
    cells = []
    for (attention, forced), some in lines.items():
        told = [f"{some[0]['tokens']:,}", f"{some[0]['decoded']:,}"]
        how = "as prompt" if forced == "on" else "one by one"
        cells.append([attention, how, f"{rate[attention, forced]:.3f}", *told])
    header = ["flash attention", "forced tokens", "verdicts/s", "tokens", "of them decoded"]
    table.show(f"(c) {count} verdicts by the schema, {LANES} lanes, the best of all repetitions", header, cells)
    figures = {"verdict_vs_unforced": rate["auto", "on"] / rate["auto", "off"]}
    if not bench.quick:
        figures["verdict_vs_unforced_flash"] = rate["on", "on"] / rate["on", "off"]
    return figures


def likelihoods(bench: Bench) -> dict[str, float]:
    """(d) 5-shot log-likelihoods beside llama_cpp.Llama."""
    count = 16 if bench.quick else 200
    cells, figures = [], {}
    for what, shown in (("letters", "four letters"), ("options", "four options of 8 tokens")):
        ours = bench.viva(what, count)
        # The loop's cost per question is constant: a part of them tells its rate.
        fewer = max(2 if bench.quick else 4, count // (10 if what == "letters" else 40))
        theirs = bench.loop(what, fewer)
        same = sum(a == b for a, b in zip(ours["answers"], theirs["answers"], strict=False))
        ratio = ours["questions_per_s"] / theirs["questions_per_s"]
        figures["loglikelihood_vs_llama_loop" if what == "letters" else "options_vs_llama_loop"] = ratio
        row = [shown, f"{ours['questions_per_s']:.2f}", f"{theirs['questions_per_s']:.2f}", f"{ratio:.1f}"]
        cells.append([*row, f"{same} of {fewer}"])
    header = ["5-shot, of each question", "viva, questions/s", "llama_cpp.Llama", "ratio", "same answer"]
    table.show(f"(d) {count} questions", header, cells)
    return figures


def gpu_hours(bench: Bench) -> dict[str, float]:
    """What 200 interviews of five rounds take, from the measured rate of interviews of three."""
    line = bench.viva("interviews", 64, lanes=64)
    hours = 200 / line["talks_per_s"] * 5 / 3 / 3600
    table.show("GPU-hours", ["200 interviews of 5 rounds (from 64 of 3)"], [[f"{hours:.4f}"]])
    return {"gpu_hours_200_interviews": hours}


def model_file(gpu: bool, layers: int = 0) -> Path:
    """The random model, made once: 117 MB, or an 8B-shaped one for a GPU; or the same of fewer ``layers``."""
    path = HOME / (("bench-8b" if gpu else "bench") + (f"-{layers}.gguf" if layers else ".gguf"))
    if not path.exists():
        HOME.mkdir(exist_ok=True)
        note(f"making {path.name}")
        shape = dict(LARGE if gpu else SMALL)
        shape["layers"] = layers or shape["layers"]
        make_model(path, quantised=True, context=8192, quote_bias=3.0, **shape)
    return path


LARGE = {"width": 4096, "layers": 32, "heads": 32, "feed_forward": 14336, "vocab": 32000}
SMALL = {"width": 768, "layers": 12, "heads": 12, "feed_forward": 2048, "vocab": 16000}
PARTS = {"decode": decode, "interviews": interviews, "many": many, "verdicts": verdicts, "likelihoods": likelihoods}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="the llama.cpp loop beside llama.cpp's own programs")
    parser.add_argument("--quick", action="store_true", help="fewer conversations, one repetition, under a minute")
    parser.add_argument("--gpu", action="store_true", help="all layers on the GPU, an 8B-shaped model")
    parser.add_argument("--only", choices=list(PARTS), action="append", help="these parts alone, written to no file")
    given = parser.parse_args()
    for peer in (SERVER, BATCHED, XLLAMACPP):
        if not peer.exists():
            print(f"{peer.name} is left out: there is no {peer.relative_to(ROOT)}; `make peers` builds it")
    bench = Bench(model_file(given.gpu, layers=2 if given.quick else 0), given.quick, given.gpu)
    began = time.perf_counter()
    figures: dict[str, float] = {}
    try:
        for name, part in PARTS.items():
            if (given.only is None or name in given.only) and not (given.quick and name == "many"):
                figures |= part(bench)
        if given.gpu and given.only is None:
            figures |= gpu_hours(bench)
    except PeerFailed as failed:
        raise SystemExit(f"rollout: {failed}") from None
    if given.only is None:
        table.conclude("rollout-gpu" if given.gpu else "rollout", {k: round(v, 4) for k, v in figures.items()}, REACH)
    else:
        print(figures)
    print(f"took {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
