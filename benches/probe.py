"""5-shot accuracy beside lm-evaluation-harness: the same questions in the same words, the same GGUF, in one run.

The harness reads the model through its ``hf`` type with ``gguf_file`` (float32 weights, PyTorch on the CPU), the better
of two batch sizes; its cost per question is constant, so a part of the questions tells its rate. Its clock starts
after loading; ours counts loading, journal and report. ``--quick`` takes fewer questions.

Needs the ARC files (``VIVA_DATA``) and ``make peers``.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import table
from llama_programs import HOME, model_file
from running import ROOT, Line, PeerFailed, last_line, note

HARNESS = HOME / "lmeval" / "bin" / "python"
DATA = Path(os.environ.get("VIVA_DATA", ROOT.parent / "shared" / "data"))
REACH: table.Reach = {"items_vs_lm_eval": (">=", 3), "peak_memory_ratio": ("<=", 1)}


def ours(model: Path, count: int, method: str, questions: Path) -> Line:
    """Our probe."""
    note(f"viva probe, {method}, {count} questions")
    name = f"llama:{model}?ctx=4096&lanes=4"
    source = f"arc:{DATA / 'arc' / 'ARC-Challenge'}:test"
    command = [sys.executable, "probe_viva.py", name, source, str(count), "--method", method]
    return last_line([*command, "--questions", str(questions)])


def theirs(model: Path, questions: Path, count: int, batch: int) -> Line:
    """lm-evaluation-harness on the first of the same questions."""
    note(f"lm-evaluation-harness, {count} questions, batches of {batch}")
    fewer = questions.with_name(f"first-{count}.jsonl")
    fewer.write_text("".join(line + "\n" for line in questions.read_text().splitlines()[:count]))
    return last_line([str(HARNESS), "lm_eval_run.py", str(model), str(fewer), "--batch", str(batch)])


def compare(model: Path, method: str, quick: bool) -> tuple[list[list[str]], dict[str, float]]:
    """One method on both sides: rows of the table, and the figures."""
    count, part = (20, 4) if quick else (500, 40)
    with tempfile.TemporaryDirectory() as folder:
        questions = Path(folder) / "questions.jsonl"
        mine = ours(model, count, method, questions)
        tries = [theirs(model, questions, part, batch) for batch in ((1,) if quick else (1, 8))]
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


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="5-shot accuracy beside lm-evaluation-harness")
    parser.add_argument("--quick", action="store_true", help="fewer questions, under a minute")
    options = parser.parse_args()
    if not (DATA / "arc").is_dir() or not HARNESS.exists():
        raise SystemExit(f"probe: needs {DATA / 'arc'} (see VIVA_DATA) and {HARNESS.relative_to(ROOT)} (make peers)")
    model = model_file()
    rows: list[list[str]] = []
    by_method = {}
    try:
        for method in ["letter"] if options.quick else ["letter", "text"]:
            lines, by_method[method] = compare(model, method, options.quick)
            rows += lines
    except PeerFailed as failed:
        raise SystemExit(f"probe: {failed}") from None
    header = ["method", "program", "questions", "questions/s", "peak MB", "same choice", "furthest apart, nats"]
    table.show("5-shot ARC-Challenge", header, rows)
    figures = {"items_vs_lm_eval": by_method["letter"]["items"], "peak_memory_ratio": by_method["letter"]["memory"]}
    figures["same_choice"] = by_method["letter"]["same"]
    if "text" in by_method:
        figures["text_items_vs_lm_eval"] = by_method["text"]["items"]
    table.conclude("probe", {name: round(value, 4) for name, value in figures.items()}, REACH)


if __name__ == "__main__":
    main()
