"""The programs of ``rollout.py`` and ``gpu/``: how each is run on a model file, and the file of the former."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from statistics import median

from running import ROOT, note
from turns import SECONDS, ProgramOutput, in_turns

sys.path.insert(0, str(ROOT / "tests" / "models"))
from tiny_gguf import make_model

# As our own backend has it, for everybody: without it a peer's threads are at the mercy of any other process.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
HOME = ROOT / ".peers"
SERVER = HOME / "llama" / "bin" / "llama-server"
BATCHED = HOME / "llama" / "bin" / "llama-batched-bench"
XLLAMACPP = HOME / "xllamacpp" / "bin" / "python"
CONTEXT = 2048
SHAPE = {"width": 768, "heads": 12, "feed_forward": 2048, "vocab": 16000}


class Bench:
    """One model file, its options, and the commands that run the programs on it; all layers on a GPU if ``gpu``."""

    def __init__(self, model: Path, quick: bool, gpu: bool = False, programs: Path = BATCHED.parent) -> None:
        self.model, self.quick, self.gpu, self.programs = model, quick, gpu, programs
        self.repeats = 1 if quick else 2
        self.lanes = 16 if quick else 32  # few talks would not fill two contexts
        self.threads = len(os.sched_getaffinity(0))

    def turns(self, commands: dict[str, list[str]]) -> dict[str, ProgramOutput]:
        """Run programs in turns."""
        for name in commands:
            note(name)
        return in_turns(commands, SECONDS)

    def viva(
        self, workload: str, count: int, *arguments: str, lanes: int = 0, context: int = CONTEXT, options: str = ""
    ) -> list[str]:
        """Our backend, in a process of its own."""
        layers = f"&gpu_layers={'all' if self.gpu else 0}"
        name = f"llama:{self.model}?lanes={lanes or self.lanes}&ctx={context}&threads={self.threads}{layers}{options}"
        return [sys.executable, "llama_viva.py", workload, name, str(count), *arguments]

    def batched(self, prompt: int, tokens: int, lanes: int, times: int = 1, context: int = CONTEXT) -> list[str]:
        """llama-batched-bench; ``rates`` reads what it says."""
        size = ["-c", str(lanes * context), "-b", "512", "-ub", "512", "-npp", str(prompt), "-ntg", str(tokens)]
        arguments = [
            "-npl",
            ",".join([str(lanes)] * times),
            "-t",
            str(self.threads),
            "--output-format",
            "jsonl",
            "-no-kvu",
        ]
        return [
            str(self.programs / BATCHED.name),
            "-m",
            str(self.model),
            *size,
            *arguments,
            *(["-ngl", "99"] if self.gpu else []),
        ]

    def http(self, count: int, *arguments: str) -> list[str]:
        """A llama.cpp server over HTTP."""
        size = ["--lanes", str(self.lanes), "--ctx", str(CONTEXT), "--threads", str(self.threads)]
        return [sys.executable, "llama_http.py", str(self.model), str(count), *size, *arguments]

    def loop(self, workload: str, count: int) -> list[str]:
        """llama_cpp.Llama, one call after the other."""
        return [sys.executable, "llama_loop.py", workload, str(self.model), str(count), "--threads", str(self.threads)]


def rates(program: ProgramOutput) -> tuple[float, float]:
    """llama-batched-bench's prompt and decode rates, in tokens per second of its own time; medians of its rows."""
    prompts, replies = [], []
    for ended, line in program.lines:
        if line.startswith("{"):
            row = json.loads(line)
            turned = ended - row["t_tg"]  # from prompts to replies; it prints when these are done
            prompts.append(row["pl"] * row["pp"] / program.own(turned - row["t_pp"], turned))
            replies.append(row["pl"] * row["tg"] / program.own(turned, ended))
    return median(prompts), median(replies)


def model_file(layers: int = 12) -> Path:
    """The random model, made once: 117 MB, or the same of fewer ``layers``."""
    path = HOME / f"bench-{layers}.gguf"
    if not path.exists():
        HOME.mkdir(exist_ok=True)
        note(f"making {path.name}")
        make_model(path, quantised=True, context=8192, quote_bias=3.0, layers=layers, **SHAPE)
    return path
