"""Packs what ``measure.py`` needs on a machine without a network into ``.peers/gpu`` (``make gpu-pack``).

That is: an archive of llama.cpp's sources, with the backends for CPU and CUDA alone and the two programs that are
measured, and of the Python package that binds it; and wheels of the packages that viva imports there. CMake, a compiler
and NumPy have to be on that machine.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import table

ROOT = Path(__file__).resolve().parents[2]
PACK = ROOT / ".peers" / "gpu"
SOURCES = (
    "CMakeLists.txt", "LICENSE", "cmake", "common", "ggml", "include", "licenses", "src", "vendor",
    "scripts/ui-assets.cmake", "tools/ui/CMakeLists.txt", "tools/ui/ui.h.in", "tools/ui/ui.cpp.in",
    "tools/batched-bench", "tools/mtmd", "tools/server",
)  # fmt: skip
BACKENDS = {"ggml-cpu", "ggml-cuda"}
TOOLS = "llama_add_compile_flags()\nadd_subdirectory(batched-bench)\nadd_subdirectory(mtmd)\nadd_subdirectory(ui)\n"
TOOLS += "add_subdirectory(server)\n"
WHEELS = re.findall(
    r"\S+",
    "aiohappyeyeballs aiohttp aiosignal annotated-types anyio asyncio-throttle attrs diskcache frozenlist gguf idna "
    "jinja2 markdown-it-py markupsafe mdurl multidict orjson propcache pydantic pydantic-core pygments pyyaml rich "
    "sniffio typing-extensions typing-inspection yarl",
)
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux_2_5_x86_64")


def pack_sources(sdist: Path, archive: Path) -> None:
    """Write the sources of an unpacked llama-cpp-python that are needed."""
    vendor = sdist / "vendor" / "llama.cpp"

    def select(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        path = Path(member.name)
        backend = path.name.startswith("ggml-") and path.parent.name == "src" and member.isdir()
        return None if (backend and path.name not in BACKENDS) or path.name == "__pycache__" else member

    with tarfile.open(archive, "w:xz") as tar:
        for name in SOURCES:
            tar.add(vendor / name, f"llama.cpp/{name}", filter=select)
        tools = tarfile.TarInfo("llama.cpp/tools/CMakeLists.txt")
        tools.size = len(TOOLS)
        tar.addfile(tools, io.BytesIO(TOOLS.encode()))
        for module in sorted((sdist / "llama_cpp").glob("*.py")):
            tar.add(module, f"llama_cpp/{module.name}")


def download_wheels(folder: Path, python: str) -> None:
    """Download the versions of ``WHEELS`` that are installed here, for another Python."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", python, "--dest", str(folder)]
    for platform in PLATFORMS:
        command += ["--platform", platform]
    subprocess.run([*command, *(f"{name}=={version(name)}" for name in WHEELS)], check=True)


def main() -> None:
    """Pack, and print the size."""
    parser = argparse.ArgumentParser(description="pack what benches/gpu/measure.py needs")
    parser.add_argument("sdist", type=Path, help="the unpacked sources of llama-cpp-python")
    parser.add_argument("--python", default="3.12", help="the version of Python there (default: 3.12)")
    options, cmake = parser.parse_known_args()
    shutil.rmtree(PACK, ignore_errors=True)
    PACK.mkdir(parents=True)
    pack_sources(options.sdist, PACK / "sources.tar.xz")
    download_wheels(PACK / "wheels", options.python)
    record = {**table.checkout(), "llama": options.sdist.name, "python": options.python, "cmake": cmake}
    (PACK / "pack.json").write_text(json.dumps(record, indent=2) + "\n")
    size = sum(path.stat().st_size for path in PACK.rglob("*") if path.is_file())
    print(f"{PACK}: {size / 1e6:.1f} MB, for Python {options.python}")


if __name__ == "__main__":
    main()
