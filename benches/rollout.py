"""The llama.cpp loop beside llama.cpp's own programs, on one model file with the same threads, alternating.

Peers: ``llama-batched-bench`` and ``llama-server``, built by ``make peers`` from the sources that the Python package
was built from; ``xllamacpp`` (the server in process); ``llama_cpp.Llama`` in a loop. A peer that is absent is left out
with a message. The programs of a row take turns of a quarter of a second (``turns``). ``--quick`` takes a model of two
layers instead of six, fewer conversations and fewer repetitions.
"""

from __future__ import annotations

import argparse
import signal
import time
from statistics import median

import table
from llama_programs import BATCHED, SERVER, XLLAMACPP, Bench, model_file, rates
from running import ROOT, Line, PeerFailed, note

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

VERDICTS = 16  # lanes
DECODE = 1024  # tokens a lane
LAYERS = 6  # twelve take about twice as long


def decode(bench: Bench) -> dict[str, float]:
    """(a) Plain decode beside llama-batched-bench, in pairs, in lanes little longer than the work.

    At one lane a pair is given more tokens, and there are more pairs: a step is so short that what else goes on in the
    host moves a pair by up to a tenth.
    """
    figures, cells = {}, []
    for lanes in (1, 16) if bench.quick else (1, 16, 32):
        tokens, pairs = 64 if bench.quick else 128, bench.repeats
        if lanes == 1:
            tokens, pairs = 2 * tokens, 1 if bench.quick else 5
        length = ("--tokens", str(tokens))
        ours, theirs = [], []
        for _ in range(pairs):
            pair = {f"viva decode {lanes}": bench.viva("decode", lanes, *length, lanes=lanes, context=DECODE)}
            if BATCHED.exists():
                pair[f"llama-batched-bench {lanes}"] = bench.batched(64, tokens, lanes, context=DECODE)
            first, *others = bench.turns(pair).values()
            ours.append(first.last_line()["tokens_per_s"])
            theirs += [rates(program)[1] for program in others]
        row = [str(lanes), f"{median(ours):,.0f}"]
        if theirs:
            ratios = [rate / other for rate, other in zip(ours, theirs, strict=True)]
            figures[f"decode_vs_batched_bench_{lanes}"] = median(ratios)
            row += [f"{median(theirs):,.0f}", f"{median(ratios):.3f}", f"{min(ratios):.3f}–{max(ratios):.3f}"]
        cells.append(row)
    header = ["lanes", "viva", "llama-batched-bench", "ratio", "from–to"]
    table.show("(a) Plain decode, tokens/s, medians of the pairs", header[: len(cells[0])], cells)
    return figures


def interviews(bench: Bench) -> dict[str, float]:
    """(b) KIEval-shaped interviews beside servers, the package in a loop, and the floor.

    In two groups, each with viva: all programs at once would need about the memory of a machine of 24 GB.
    """
    count = 3 if bench.quick else 32
    near = {
        "viva": bench.viva("interviews", count),
        "viva strict=off": bench.viva("interviews", count, options="&strict=off"),
    }
    far: dict[str, list[str]] = {}
    if SERVER.exists() and not bench.quick:
        near["llama-server, as it comes"] = bench.http(count, "--server", str(SERVER))
    if SERVER.exists():
        far["llama-server"] = bench.http(count, "--server", str(SERVER), "--cache-ram", "0", "-no-kvu")
    if XLLAMACPP.exists() and not bench.quick:
        far["xllamacpp"] = bench.http(count, "--python", str(XLLAMACPP))
    if not bench.quick:
        far["llama_cpp.Llama in a loop"] = bench.loop("interviews", 2)
    cells, lines, times = [], dict[str, Line](), dict[str, float]()
    for group in [near | far] if bench.quick else [near, {"viva": near["viva"]} | far]:
        last_lines = {name: program.last_line() for name, program in bench.turns(group).items()}
        for name, line in last_lines.items():
            times[name] = last_lines["viva"]["talks_per_s"] / line["talks_per_s"]
            computed = f"{line['prompt_tokens']:,}" if "prompt_tokens" in line else "–"
            cells.append([name, f"{line['talks_per_s']:.3f}", f"{times[name]:.2f}", computed])
        lines = last_lines | lines
    ours = lines["viva"]
    figures = {
        "overhead_share": ours["overhead"],
        "prompt_tokens_vs_minimum": ours["prompt_tokens"] / ours["fewest_prompt_tokens"],
        "strict_vs_free": times["viva strict=off"],
    }
    servers = [times[name] for name in times if name.startswith("llama-server")]
    if servers:
        figures["interviews_vs_llama_server"] = min(servers)
    header = ["program", "interviews/s", "viva is × as fast", "prompt tokens computed"]
    table.show(f"(b) {count} interviews of 3 rounds, {bench.lanes} lanes", header, cells)
    return figures | (floors(bench, count, ours) if BATCHED.exists() else {})


def floors(bench: Bench, count: int, line: Line) -> dict[str, float]:
    """(b) The interviews beside the floor: the fewest prompt tokens, and the replies, at llama-batched-bench's rates.

    Attention costs more the longer the context is, so llama-batched-bench's prompts and tokens are as deep in their
    context as those of the interviews on average.
    """
    first, second = round(2 * line["prompt_depth"]), round(line["reply_depth"]) - 32
    lanes = min(count, bench.lanes)
    commands = {
        "viva": bench.viva("interviews", count),
        f"floor, prompts of {first}": bench.batched(first, 1, max(1, lanes // 4), bench.repeats),
        f"floor, tokens behind {second}": bench.batched(second, 64, lanes, min(2, bench.repeats)),
    }
    ours, prompts, replies = bench.turns(commands).values()
    rate = ours.last_line()["talks_per_s"]
    prompt, token = rates(prompts)[0], rates(replies)[1]
    floor = count / (line["fewest_prompt_tokens"] / prompt + line["generated"] / token)
    cells = [["viva", f"{rate:.3f}", "1.00", "–", "–"]]
    cells.append(["floor", f"{floor:.3f}", f"{rate / floor:.2f}", f"{prompt:.0f}", f"{token:.0f}"])
    header = ["program", "interviews/s", "viva is × as fast", "prompt tokens/s", "tokens/s"]
    table.show(f"(b) {count} interviews beside llama-batched-bench's rates", header, cells)
    return {"interviews_vs_floor": rate / floor}


def many_lanes(bench: Bench) -> dict[str, float]:
    """(b) 200 conversations in flight: memory within the budget, no growth with their number or as they go on. With
    fifty, llama-server runs the same interviews with the same memory for idle conversations.

    On a model of two layers, because these figures do not depend on how long a token takes.
    """
    budget = 300
    small_bench = Bench(model_file(2), bench.quick)
    counts = (50, 200)
    lines, figures = [], {}
    for count in counts:
        commands = {
            f"{count} interviews in flight": small_bench.viva("interviews", count, options=f"&kv_cache={budget}")
        }
        if SERVER.exists() and count == counts[0]:
            commands["llama-server"] = small_bench.http(count, "--server", str(SERVER), "--cache-ram", str(budget))
        ours, *servers = (program.last_line() for program in small_bench.turns(commands).values())
        lines.append(ours)
        for theirs in servers:
            figures["many_vs_llama_server"] = ours["talks_per_s"] / theirs["talks_per_s"]
            note(f"llama-server: {theirs['talks_per_s']:.3f} interviews/s, {theirs['prompt_tokens']:,} prompt tokens")
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
    table.show(f"(b) Many at once, two layers, {bench.lanes} lanes, {budget:,} MB for idle KV", header, cells)
    return figures | {
        "kept_vs_budget": lines[-1]["kept_mb"] / budget,
        "memory_growth": lines[-1]["peak_rss_mb"] / lines[0]["peak_rss_mb"],
        "memory_growth_second_half": lines[-1]["peak_rss_mb"] / lines[-1]["half_way_rss_mb"],
        "many_conversations": counts[-1],
    }


def verdicts(bench: Bench) -> dict[str, float]:
    """(c) Evaluator turns with the verdict's schema, forced tokens as prompt or one by one; again with flash
    attention, which lanes of this length do not have by default.
    """
    count = 4 if bench.quick else VERDICTS
    attentions = ("auto",) if bench.quick else ("auto", "on")
    ways = [(attention, forced) for attention in attentions for forced in ("on", "off")]
    commands = {}
    for attention, forced in ways:
        options = f"&forced={forced}&flash_attn={attention}"
        commands[f"viva verdicts {options}"] = bench.viva("verdicts", count, lanes=VERDICTS, options=options)
    programs = bench.turns(commands)
    lines = {way: program.last_line() for way, program in zip(ways, programs.values(), strict=True)}
    rate = {way: line["turns_per_s"] for way, line in lines.items()}
    cells = []
    for (attention, forced), line in lines.items():
        reading = "as prompt" if forced == "on" else "one by one"
        cells.append(
            [attention, reading, f"{rate[attention, forced]:.3f}", f"{line['tokens']:,}", f"{line['decoded']:,}"]
        )
    header = ["flash attention", "forced tokens", "verdicts/s", "tokens", "of them decoded"]
    table.show(f"(c) {count} verdicts by the schema, {VERDICTS} lanes", header, cells)
    figures = {"verdict_vs_unforced": rate["auto", "on"] / rate["auto", "off"]}
    if not bench.quick:
        figures["verdict_vs_unforced_flash"] = rate["on", "on"] / rate["on", "off"]
    return figures


def likelihoods(bench: Bench) -> dict[str, float]:
    """(d) 5-shot log-likelihoods beside llama_cpp.Llama."""
    count = 8 if bench.quick else 80
    cells, figures = [], {}
    for workload, label in (("letters", "four letters"), ("options", "four options of 8 tokens")):
        # The loop's cost per question is constant: a part of them tells its rate, in about the time of all of ours.
        fewer = max(2 if bench.quick else 4, count // (5 if workload == "letters" else 20))
        both = {
            f"viva {workload}": bench.viva(workload, count),
            f"llama_cpp.Llama {workload}": bench.loop(workload, fewer),
        }
        ours, theirs = (program.last_line() for program in bench.turns(both).values())
        same = sum(a == b for a, b in zip(ours["answers"], theirs["answers"], strict=False))
        ratio = ours["questions_per_s"] / theirs["questions_per_s"]
        figures["loglikelihood_vs_llama_loop" if workload == "letters" else "options_vs_llama_loop"] = ratio
        row = [label, f"{ours['questions_per_s']:.2f}", f"{theirs['questions_per_s']:.2f}", f"{ratio:.1f}"]
        cells.append([*row, f"{same} of {fewer}"])
    header = ["5-shot, of each question", "viva, questions/s", "llama_cpp.Llama", "ratio", "same answer"]
    table.show(f"(d) {count} questions", header, cells)
    return figures


PARTS = {
    "decode": decode,
    "interviews": interviews,
    "many": many_lanes,
    "verdicts": verdicts,
    "likelihoods": likelihoods,
}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="the llama.cpp loop beside llama.cpp's own programs")
    parser.add_argument("--quick", action="store_true", help="fewer conversations, one repetition, under a minute")
    parser.add_argument("--only", choices=list(PARTS), action="append", help="these parts alone, written to no file")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # or the programs that wait for their turn outlive us
    for peer in (SERVER, BATCHED, XLLAMACPP):
        if not peer.exists():
            print(f"{peer.name} is left out: there is no {peer.relative_to(ROOT)}; `make peers` builds it")
    bench = Bench(model_file(2 if options.quick else LAYERS), options.quick)
    began = time.perf_counter()
    figures: dict[str, float] = {}
    try:
        for name, part in PARTS.items():
            if (options.only is None or name in options.only) and not (options.quick and name == "many"):
                figures |= part(bench)
    except PeerFailed as failed:
        raise SystemExit(f"rollout: {failed}") from None
    if options.only is None:
        table.conclude("rollout", {k: round(v, 4) for k, v in figures.items()}, REACH)
    else:
        print(figures)
    print(f"took {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
