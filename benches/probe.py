"""5-shot accuracy beside lm-evaluation-harness: the same questions in the same words, the same GGUF, in one run.

Two files: random weights, and SmolLM2, whose figures begin with ``smollm2_``; it is asked fewer questions. The harness
reads a model through its ``hf`` type with ``gguf_file`` (float32 weights, PyTorch on the CPU), the better of two batch
sizes; its cost per question is constant, so a part of the questions tells its rate. Its clock starts after loading;
ours counts loading, journal and report. ``--quick`` takes fewer questions.

Needs the ARC files (``VIVA_DATA``) and ``make peers``.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import table
from llama_programs import HOME, model_file, smollm2_file
from running import ROOT, Line, PeerFailed, last_line, note

HARNESS = HOME / "lmeval" / "bin" / "python"
DATA = Path(os.environ.get("VIVA_DATA", ROOT.parent / "shared" / "data"))
REACH: table.Reach = {
    "items_vs_lm_eval": (">=", 3),
    "peak_memory_ratio": ("<=", 1),
    "smollm2_items_vs_lm_eval": (">=", 3),
    "smollm2_peak_memory_ratio": ("<=", 1),
}
QUICK = (20, 4)  # questions of ours, and of them the harness's
RANDOM_LANES = "ctx=4096&lanes=4"
SMOLLM2_LANES = "ctx=2048&lanes=8"  # fewer would not be strict with its weights; its tokens are longer


def ours(model: str, count: int, method: str, questions: Path) -> Line:
    """Our probe."""
    note(f"viva probe, {method}, {count} questions")
    source = f"arc:{DATA / 'arc' / 'ARC-Challenge'}:test"
    command = [sys.executable, "probe_viva.py", model, source, str(count), "--method", method]
    return last_line([*command, "--questions", str(questions)])


def theirs(model: Path, questions: Path, count: int, batch: int) -> Line:
    """lm-evaluation-harness on the first of the same questions."""
    note(f"lm-evaluation-harness, {count} questions, batches of {batch}")
    fewer = questions.with_name(f"first-{count}.jsonl")
    fewer.write_text("".join(line + "\n" for line in questions.read_text().splitlines()[:count]))
    return last_line([str(HARNESS), "lm_eval_run.py", str(model), str(fewer), "--batch", str(batch)])


def compare(
    model: Path, lanes: str, method: str, counts: tuple[int, int], batches: tuple[int, ...]
) -> tuple[list[list[str]], dict[str, float]]:
    """One method on both sides: rows of the table, and the figures."""
    count, part = counts
    with tempfile.TemporaryDirectory() as folder:
        questions = Path(folder) / "questions.jsonl"
        mine = ours(f"llama:{model}?{lanes}", count, method, questions)
        tries = [theirs(model, questions, part, batch) for batch in batches]
    best = max(tries, key=lambda line: line["items_per_s"])
    pairs = list(zip(mine["logprobs"], best["logprobs"], strict=False))
    same = sum(max(range(len(a)), key=a.__getitem__) == max(range(len(b)), key=b.__getitem__) for a, b in pairs)
    apart = max(abs(x - y) for a, b in pairs for x, y in zip(a, b, strict=True))
    ratio = mine["items_per_s"] / best["items_per_s"]
    memory = mine["peak_rss_mb"] / best["peak_rss_mb"]
    rows = [
        [method, "viva", str(count), f"{mine['items_per_s']:.2f}", f"{mine['peak_rss_mb']:,.0f}", "", ""],
        ["", "lm-evaluation-harness", str(part), f"{best['items_per_s']:.2f}", f"{best['peak_rss_mb']:,.0f}"],
    ]
    rows[1] += [f"{same} of {len(pairs)}", f"{apart:.2f}"]
    return rows, {"items": ratio, "memory": memory, "same": same / len(pairs)}


def measure(name: str, model: Path, lanes: str, counts: tuple[int, int], quick: bool) -> dict[str, float]:
    """All methods on one model: a table, and the figures."""
    rows: list[list[str]] = []
    by_method = {}
    for method in ["letter"] if quick else ["letter", "text"]:
        lines, by_method[method] = compare(model, lanes, method, counts, (1,) if quick else (1, 8))
        rows += lines
    header = ["method", "program", "questions", "questions/s", "peak MB", "same choice", "furthest apart, nats"]
    table.show(f"5-shot ARC-Challenge, {name}", header, rows)
    letter = by_method["letter"]
    figures = {
        "items_vs_lm_eval": letter["items"],
        "peak_memory_ratio": letter["memory"],
        "same_choice": letter["same"],
    }
    if "text" in by_method:
        figures["text_items_vs_lm_eval"] = by_method["text"]["items"]
    return figures


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="5-shot accuracy beside lm-evaluation-harness")
    parser.add_argument("--quick", action="store_true", help="fewer questions, under a minute")
    options = parser.parse_args()
    if not (DATA / "arc").is_dir() or not HARNESS.exists():
        raise SystemExit(f"probe: needs {DATA / 'arc'} (see VIVA_DATA) and {HARNESS.relative_to(ROOT)} (make peers)")
    figures: dict[str, float] = {}
    try:
        counts = QUICK if options.quick else (500, 40)
        figures |= measure("random weights", model_file(), RANDOM_LANES, counts, options.quick)
        if (smollm2 := smollm2_file()) is not None:
            counts = QUICK if options.quick else (200, 20)
            real = measure("SmolLM2", smollm2, SMOLLM2_LANES, counts, options.quick)
            figures |= {f"smollm2_{name}": value for name, value in real.items()}
    except PeerFailed as failed:
        raise SystemExit(f"probe: {failed}") from None
    table.conclude("probe", {name: round(value, 4) for name, value in figures.items()}, REACH)


if __name__ == "__main__":
    main()
