"""The engine on a CUDA machine without a network: builds llama.cpp, makes models, measures, writes ``gpu.json``.

``make gpu-pack`` packs what it takes along; the machine has Python, NumPy, CMake, a compiler and CUDA's. It ends within
``--limit`` seconds. Results are written after each part, to ``$OUT`` if that is set; another call continues with the
parts that are missing, as long as ``.peers/gpu-work`` is there. ``--device cpu --quick`` does the same with small
models on a machine without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACK = ROOT / ".peers" / "gpu"
WORK = ROOT / ".peers" / "gpu-work"
SITE = WORK / "site"
TARGETS = ("llama", "llama-batched-bench", "llama-server")


def prepare(device: str) -> dict[str, float]:
    """Unpack, install and build what is not there yet; return the seconds that each step took, in all calls."""
    if not (PACK / "pack.json").exists():
        raise SystemExit(f"there is no {PACK}: run `make gpu-pack` where there is a network, and carry the folder here")
    record = (PACK / "pack.json").read_text()
    stamp = WORK / "pack.json"
    if not stamp.exists() or stamp.read_text() != record:
        shutil.rmtree(WORK, ignore_errors=True)
        WORK.mkdir(parents=True)
        stamp.write_text(record)
    kept = WORK / f"took-{device}.json"
    took: dict[str, float] = json.loads(kept.read_text()) if kept.exists() else {}
    for step in (unpack, build):
        began, name = time.perf_counter(), f"{step.__name__}_s"
        step(device, json.loads(record)["cmake"])
        took[name] = round(took.get(name, 0.0) + time.perf_counter() - began, 1)
    kept.write_text(json.dumps(took))
    link(SITE / "llama_cpp" / "lib", WORK / f"build-{device}" / "bin")
    return took


def unpack(_device: str, _cmake: list[str]) -> None:
    """Unpack the sources, and make the packages importable in ``SITE``, viva from this checkout."""
    if SITE.exists():
        return
    with tarfile.open(PACK / "sources.tar.xz") as tar:
        tar.extractall(WORK, filter="data")
    packages = WORK / "packages"
    wheels = sorted(map(str, (PACK / "wheels").glob("*.whl")))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile", "--upgrade"]
    run([*pip, "--target", str(packages), *wheels], "pip.log")
    shutil.copytree(WORK / "llama_cpp", packages / "llama_cpp", dirs_exist_ok=True)
    for init in ROOT.glob("*/__init__.py"):
        if init.parent.name != "viva":
            link(packages / "viva" / init.parent.name, init.parent)
    for file in (ROOT / "viva").glob("*.py"):
        link(packages / "viva" / file.name, file)
    packages.rename(SITE)


def build(device: str, cmake: list[str]) -> None:
    """Build llama.cpp's library and its programs with all cores."""
    options = [*cmake, "-DBUILD_SHARED_LIBS=ON", "-DLLAMA_BUILD_APP=OFF"]
    if device == "cuda":
        options += ["-DGGML_CUDA=ON", "-DCMAKE_CUDA_ARCHITECTURES=native", "-DGGML_CUDA_NCCL=OFF", *cuda_options()]
    if shutil.which("ninja"):
        options += ["-G", "Ninja"]
    source, target = str(WORK / "llama.cpp"), str(WORK / f"build-{device}")
    run(["cmake", "-S", source, "-B", target, *options], "cmake.log")
    jobs = str(len(os.sched_getaffinity(0)))
    run(["cmake", "--build", target, "--parallel", jobs, "--target", *TARGETS], "build.log")


def cuda_options() -> list[str]:
    """Return where CMake finds CUDA's compiler and, as far as its folder lacks them, headers and libraries."""
    compiler = shutil.which("nvcc") or next(Path("/usr/local").glob("cuda*/bin/nvcc"), None)
    if compiler is None:
        raise SystemExit("there is no nvcc: `--device cuda` needs CUDA's compiler")
    toolkit = Path(compiler).resolve().parents[1]
    options = [f"-DCMAKE_CUDA_COMPILER={compiler}", f"-DCUDAToolkit_ROOT={toolkit}"]
    # Python's packages have CUDA's libraries too, without the names that a linker looks for.
    folders = [toolkit, *{Path(sysconfig.get_path(name)) / "nvidia" for name in ("purelib", "platlib")}]
    for name, variables in (("cudart", ("CUDA_CUDART", "CUDA_cudart_LIBRARY")), ("cublas", ("CUDA_cublas_LIBRARY",))):
        if not any(toolkit.rglob(f"lib{name}.so")):
            library = search(folders, f"lib{name}.so*")
            options += [f"-D{variable}={library}" for variable in variables]
    if not any(toolkit.rglob("cublas_v2.h")):
        options.append(f"-DCMAKE_CUDA_FLAGS=-I{search(folders, 'cublas_v2.h').parent}")
    if not any(toolkit.rglob("libcuda.so")):
        listed = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False).stdout.splitlines()
        driver = next((line.split()[-1] for line in listed if line.strip().startswith("libcuda.so")), None)
        options += [f"-DCUDA_cuda_driver_LIBRARY={driver}"] if driver else ["-DGGML_CUDA_NO_VMM=ON"]
    return options


def search(folders: list[Path], pattern: str) -> Path:
    """Return the first file of such a name below the folders, or exit."""
    for folder in folders:
        for path in folder.rglob(pattern):
            return path
    raise SystemExit(f"there is no {pattern} in {', '.join(map(str, folders))}")


def link(path: Path, target: Path) -> None:
    """Make a link, in place of another one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def run(command: list[str], log: str) -> None:
    """Run a step of the preparation with its output in a file; if it fails, print the file's end and exit."""
    with (WORK / log).open("w") as file:
        done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        print((WORK / log).read_text(errors="replace")[-6000:])
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}; its output is in {WORK / log}")


def main() -> None:
    """Prepare, measure, print."""
    began = time.monotonic()
    parser = argparse.ArgumentParser(description="measure the engine on a CUDA machine without a network")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--quick", action="store_true", help="small models and few lanes, to try the script")
    parser.add_argument("--limit", type=float, default=570, help="seconds until the end (default: 570)")
    parser.add_argument("--only", action="append", help="these parts alone; again if they are measured")
    options = parser.parse_args()
    took = prepare(options.device)
    print(", ".join(f"{name} {value}" for name, value in took.items()), flush=True)
    os.environ["PYTHONPATH"] = str(SITE)
    sys.path.insert(0, str(SITE))
    from parts import measure

    measure(options, took, began + options.limit)


if __name__ == "__main__":
    main()
