"""The llama.cpp loop beside llama.cpp's own programs, on one model file with the same threads, alternating.

Random weights in two layers, in six for decoding and likelihoods, whose steps would be too short; and SmolLM2, whose
figures begin with ``smollm2_``. Peers: ``llama-batched-bench`` and ``llama-server``, built by ``make peers`` from the
sources that the Python package was built from; ``llama_cpp.Llama`` in a loop; on random weights also ``xllamacpp`` (the
server in process), on SmolLM2 llama-cpp-python's server. A peer that is absent is left out with a message, and so is
SmolLM2. The programs of a row take turns of a quarter of a second (``turns``). ``--quick`` has two layers throughout,
fewer conversations and fewer repetitions.
"""

from __future__ import annotations

import argparse
import resource
import signal
import time
from statistics import median

import table
from llama_programs import BATCHED, SERVER, XLLAMACPP, Bench, model_file, rates, smollm2_file
from running import ROOT, Line, PeerFailed, last_line, note

from viva.engine.backends.llama.backend import flash_attention_record

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
    "smollm2_interviews_vs_llama_server": (">=", 1.3),
    "smollm2_verdict_cpu_vs_free_text": ("<=", 1.15),
}

VERDICTS = 16  # lanes
DECODE = 1024  # tokens a lane
# How many tokens stand before one of a prompt and one of a reply in interviews of one and of two rounds, on average.
DEPTHS = {1: (328, 548), 2: (451, 616)}
LAYERS = 6  # a step of theirs is long enough


def decode(bench: Bench) -> dict[str, float]:
    """(a) Plain decode beside llama-batched-bench, in pairs, in lanes little longer than the work.

    At one lane a pair is given more tokens, and there are more pairs: a step is so short that what else goes on in the
    host moves a pair by up to a tenth.
    """
    figures, cells = {}, []
    for lanes in (1, 16) if bench.quick else (1, 16, 32):
        length, pairs = 64, bench.repeats
        if lanes == 1:
            length, pairs = 2 * length, 1 if bench.quick else 3
        command = bench.viva("decode", lanes, "--tokens", str(length), lanes=lanes, context=DECODE)
        ours, theirs = [], []
        for _ in range(pairs):
            pair = {f"viva decode {lanes}": command}
            if BATCHED.exists():
                pair[f"llama-batched-bench {lanes}"] = bench.batched(64, length, lanes, context=DECODE)
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
    table.show(f"(a) Plain decode, {bench.name}, tokens/s, medians of the pairs", header[: len(cells[0])], cells)
    return figures


def interviews(bench: Bench) -> dict[str, float]:
    """(b) KIEval-shaped interviews beside llama-server and the floor: the fewest prompt tokens, and the replies, at
    llama-batched-bench's rates.

    Attention costs more the longer the context is, so llama-batched-bench's prompts and tokens are as deep in their
    context as those of the interviews on average.
    """
    count = 3 if bench.quick else 32
    programs = {"viva": bench.interviews(count), "viva strict=off": bench.interviews(count, "&strict=off")}
    if SERVER.exists():
        programs["llama-server"] = bench.http(count, "--server", str(SERVER))
    if XLLAMACPP.exists() and not bench.quick:
        programs["xllamacpp"] = bench.http(count, "--python", str(XLLAMACPP))
    floors = {}
    if BATCHED.exists():
        prompt_depth, reply_depth = DEPTHS[bench.rounds]
        lanes = min(count, bench.lanes)
        floors["floor, prompts"] = bench.batched(2 * prompt_depth, 1, max(1, lanes // 4))
        floors["floor, tokens"] = bench.batched(reply_depth - 32, 64, lanes)
    outputs = bench.turns(programs | floors)
    lines = {name: outputs[name].last_line() for name in programs}
    ours, times = lines["viva"], speedups(bench, lines)
    figures = {
        "overhead_share": ours["overhead"],
        "prompt_tokens_vs_minimum": ours["prompt_tokens"] / ours["fewest_prompt_tokens"],
        "strict_vs_free": times["viva strict=off"],
    }
    figures |= versus(times)
    if floors:
        prompt, token = rates(outputs["floor, prompts"])[0], rates(outputs["floor, tokens"])[1]
        floor = count / (ours["fewest_prompt_tokens"] / prompt + ours["generated"] / token)
        figures["interviews_vs_floor"] = ours["talks_per_s"] / floor
        cells = [[f"{floor:.3f}", f"{figures['interviews_vs_floor']:.2f}", f"{prompt:.0f}", f"{token:.0f}"]]
        header = ["interviews/s", "viva is × as fast", "prompt tokens/s", "tokens/s"]
        table.show("(b) The floor of these interviews, at llama-batched-bench's rates", header, cells)
        depths = (ours["prompt_depth"], ours["reply_depth"])
        if any(abs(depth / known - 1) > 0.05 for depth, known in zip(depths, DEPTHS[bench.rounds], strict=True)):
            note(f"the floor is that of other interviews: these have depths of {depths[0]:.0f} and {depths[1]:.0f}")
    return figures


def speedups(bench: Bench, lines: dict[str, Line]) -> dict[str, float]:
    """(b) Print a table of programs at interviews; return how many times as fast as each of them viva is."""
    times = {name: lines["viva"]["talks_per_s"] / line["talks_per_s"] for name, line in lines.items()}
    cells = []
    for name, line in lines.items():
        computed = f"{line['prompt_tokens']:,}" if "prompt_tokens" in line else "–"
        number = f"{line['talks_per_s'] * line['wall_s']:.0f}"
        cells.append([name, number, f"{line['talks_per_s']:.3f}", f"{times[name]:.2f}", computed])
    header = ["program", "interviews", "per second", "viva is × as fast", "prompt tokens computed"]
    rounds = "one round" if bench.rounds == 1 else f"{bench.rounds} rounds"
    title = f"(b) Interviews of {rounds}, {bench.name}, {bench.lanes} lanes"
    table.show(f"{title}, viva's flash attention {lines['viva']['flash_attention']}", header, cells)
    return times


def versus(times: dict[str, float]) -> dict[str, float]:
    """Return the figures of the peers in a table of interviews."""
    return {f"interviews_vs_{name.replace('-', '_')}": times[name] for name in times if not name.startswith("viva")}


def many_lanes(bench: Bench) -> dict[str, float]:
    """(b) Many conversations in flight: memory within the budget, no growth with their number or as they go on. Beside
    llama-server, where they are sixteen, with the same memory for what waits.
    """
    budget, counts = 150, (VERDICTS, 2 * VERDICTS)
    bench = Bench(bench.model, bench.quick, lanes=VERDICTS)
    lines, figures = [], {}
    for count in counts:
        commands = {f"{count} interviews in flight": bench.interviews(count, f"&kv_cache={budget}")}
        if SERVER.exists() and count == counts[0]:
            commands["llama-server"] = bench.http(count, "--server", str(SERVER), "--cache-ram", str(budget))
        ours, *servers = (program.last_line() for program in bench.turns(commands).values())
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
    table.show(f"(b) Many at once, {bench.lanes} lanes, {budget:,} MB for idle KV", header, cells)
    return figures | {
        "kept_vs_budget": lines[-1]["kept_mb"] / budget,
        "memory_growth": lines[-1]["peak_rss_mb"] / lines[0]["peak_rss_mb"],
        "memory_growth_second_half": lines[-1]["peak_rss_mb"] / lines[-1]["half_way_rss_mb"],
        "many_conversations": counts[-1],
    }


def verdicts(bench: Bench) -> dict[str, float]:
    """(c) Evaluator turns with the verdict's schema, forced tokens as prompt or one by one; with flash attention and
    without, or quickly with what the backend chooses by default.
    """
    count = 4 if bench.quick else VERDICTS
    default = flash_attention_record(bench.model_name(VERDICTS)) or "on"
    attentions = (default,) if bench.quick else ("on", "off")
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
            [
                f"{attention} (default)" if attention == default else attention,
                reading,
                f"{rate[attention, forced]:.3f}",
                f"{line['tokens']:,}",
                f"{line['decoded']:,}",
            ]
        )
    header = ["flash attention", "forced tokens", "verdicts/s", "tokens", "of them decoded"]
    table.show(f"(c) {count} verdicts by the schema, {VERDICTS} lanes", header, cells)
    figures = {"verdict_vs_unforced": rate[default, "on"] / rate[default, "off"]}
    if not bench.quick:
        figures["verdict_vs_unforced_flash"] = rate["on", "on"] / rate["on", "off"]
        figures["default_attention_vs_best"] = rate[default, "on"] / max(rate["on", "on"], rate["off", "on"])
    return figures


def likelihoods(bench: Bench) -> dict[str, float]:
    """(d) 5-shot log-likelihoods beside llama_cpp.Llama."""
    count = 8 if bench.quick else 40
    cells, figures = [], {}
    for workload, label in (("letters", "four letters"), ("options", "four options of 8 tokens")):
        # The loop's cost per question is constant: a part of them tells its rate, in about the time of all of ours.
        fewer = max(2, count // (5 if workload == "letters" else 20))
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
    table.show(f"(d) {count} questions, {bench.name}", header, cells)
    return figures


def smollm2(bench: Bench) -> dict[str, float]:
    """(b) on SmolLM2 beside servers, and (e) verdicts beside free text, which is all that is quick."""
    path = smollm2_file()
    if path is None:
        return {}
    bench = Bench(path, bench.quick, lanes=VERDICTS, name="SmolLM2")
    if bench.quick:
        return verdict_cost(bench)
    bench.rounds = 1
    programs = {"viva": bench.interviews(VERDICTS)}
    if SERVER.exists():
        programs["llama-server"] = bench.http(VERDICTS, "--server", str(SERVER))
    if XLLAMACPP.exists():
        programs["xllamacpp"] = bench.http(VERDICTS, "--python", str(XLLAMACPP))
    programs["llama-cpp-python"] = bench.http(1, "--package")  # one request at a time: one interview tells its rate
    lines = {name: program.last_line() for name, program in bench.turns(programs).items()}
    ours, times = lines["viva"], speedups(bench, lines)
    figures = versus(times)
    figures["prompt_tokens_vs_minimum"] = ours["prompt_tokens"] / ours["fewest_prompt_tokens"]
    return {f"smollm2_{name}": value for name, value in (figures | verdict_cost(bench)).items()}


def verdict_cost(bench: Bench) -> dict[str, float]:
    """(e) CPU time of a token of short verdicts, forced tokens included, and of free texts of the same lengths."""
    count = 2 if bench.quick else VERDICTS
    line = last_line(bench.viva("short-answers", count))
    answers = {"verdicts by the schema": line["verdicts"], "free text": line["free"]}
    cells = [
        [name, f"{costs['tokens']:,}", f"{costs['decoded']:,}", f"{costs['ms_per_token']:.2f}"]
        for name, costs in answers.items()
    ]
    header = ["answers", "tokens", "of them decoded", "CPU ms/token"]
    table.show(f"(e) {count} answers, {bench.name}, {bench.lanes} lanes", header, cells)
    verdict, free = (costs["ms_per_token"] for costs in answers.values())
    return {} if bench.quick else {"verdict_cpu_vs_free_text": verdict / free}  # few lanes are another measurement


def children_cpu() -> float:
    """Return the CPU seconds of all programs that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


PARTS = {
    "decode": decode,
    "interviews": interviews,
    "many": many_lanes,
    "verdicts": verdicts,
    "likelihoods": likelihoods,
    "smollm2": smollm2,
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
    layers = {} if options.quick else {"decode": LAYERS, "likelihoods": LAYERS}
    began = time.perf_counter()
    figures: dict[str, float] = {}
    durations: list[str] = []
    try:
        for name, part in PARTS.items():
            if (options.only is None or name in options.only) and not (options.quick and name == "many"):
                start, cpu = time.perf_counter(), children_cpu()
                figures |= part(Bench(model_file(layers.get(name, 2)), options.quick))
                wall = time.perf_counter() - start
                durations.append(f"{name} {wall:.0f} ({children_cpu() - cpu:.0f} of CPU)")
    except PeerFailed as failed:
        raise SystemExit(f"rollout: {failed}") from None
    if options.only is None:
        table.conclude("rollout", {k: round(v, 4) for k, v in figures.items()}, REACH)
    else:
        print(figures)
    print(f"took {time.perf_counter() - began:.0f} s: {', '.join(durations)}")


if __name__ == "__main__":
    main()
