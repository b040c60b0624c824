"""The shape of the house: imports never climb, every package is installed, every room says what it is for."""

from __future__ import annotations

import ast
import importlib.util
import re
import runpy
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_ORDER = {  # each floor, and those that it may import from
    "engine": "",
    "agents": "engine",
    "scoring": "engine",
    "data": "engine scoring",
    "reports": "engine scoring",
    "scenarios": "engine agents scoring data reports",
    "orchestration": "engine agents scoring data reports scenarios",
    "sweeps": "engine agents scoring data reports scenarios orchestration",
    "grading": "engine agents scoring data reports scenarios orchestration",
    "loadtest": "engine agents scoring data reports scenarios orchestration sweeps",
    # Studies read the runs of many systems; what tables, plots and pages are made of lies below the systems.
    "reports/studies": "engine agents scoring data reports scenarios orchestration sweeps grading",
    "lab": "engine agents scoring data reports scenarios orchestration sweeps grading reports/studies",
    "web": "engine agents scoring data reports scenarios orchestration sweeps grading loadtest reports/studies",
    "exchange": "engine agents scoring data reports scenarios orchestration sweeps grading reports/studies",
    "cli": "engine agents scoring data reports scenarios orchestration sweeps grading loadtest reports/studies "
    "lab web exchange",
}
FLOORS: dict[str, set[str]] = {name: set(below.split()) for name, below in _ORDER.items()}
_SYSTEM = re.compile(
    r"kieval|functionchat|flexeval|lalaeval|\bfusion(eval)?\b|[\"'`.]probes?[\"'`.]|viva probe", re.IGNORECASE
)
FOLDERS = sorted({floor.split("/")[0] for floor in FLOORS})
MODULES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
_SYSTEMS = ("kieval", "probes", "functionchat", "flexeval", "fusion", "lalaeval")
_SYSTEMS_OWN = {path for name in _SYSTEMS for path in MODULES
                if path.is_relative_to(ROOT / "scenarios" / name)}  # fmt: skip


@cache
def _text(path: Path) -> str:
    return path.read_text()


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(_text(path))


def _floor(*parts: str) -> str:
    """Return the floor of a module, by its folders and name; a system's own commands belong to the command line."""
    if parts[0] == "scenarios" and "commands" in parts[:-1]:
        return "cli"
    return "/".join(parts[:2]) if "/".join(parts[:2]) in FLOORS else parts[0]


def _imported(path: Path) -> set[str]:
    """The floors that a module imports from, absolutely or relatively."""
    package = path.relative_to(ROOT).parts[:-1]
    found: set[str] = set()
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.Import):
            found |= {_floor(*alias.name.split(".")[1:]) for alias in node.names if alias.name.startswith("viva.")}
        elif isinstance(node, ast.ImportFrom):
            module = node.module.split(".") if node.module else []
            if node.level:
                module = ["viva", *package[: len(package) - node.level + 1], *module]
            if module[0] == "viva":
                found |= {_floor(*module[1:], alias.name) for alias in node.names}
    return found


def test_imports_never_climb() -> None:
    climbing = {}
    for path in MODULES:
        floor = _floor(*path.relative_to(ROOT).parts)
        if above := (_imported(path) & FLOORS.keys()) - FLOORS[floor] - {floor}:
            climbing[path] = above
    assert climbing == {}


def test_the_floor_check_sees_a_climbing_import(tmp_path: Path) -> None:
    assert _imported(ROOT / "cli" / "progress.py") >= {"engine", "orchestration"}
    assert "scenarios" in _imported(ROOT / "scenarios" / "kieval" / "scenario.py")


def test_every_folder_of_modules_is_a_package() -> None:
    # Packages are found from the folders: one without `__init__.py` would be missing in a wheel.
    assert {path.parent for path in MODULES} == {path.parent for path in MODULES if path.name == "__init__.py"}


# The lab tries one system out, and the public names are those of systems: both name them.
_NAMELESS = [path for path in MODULES if path.relative_to(ROOT).parts[0] != "lab" and path not in _SYSTEMS_OWN]


def test_no_room_but_its_own_names_a_system() -> None:
    lines = [(path, line) for path in _NAMELESS for line in _text(path).splitlines()]
    assert [one for one in lines if _SYSTEM.search(one[1])] == [], "only a system's own folder may name it"


def test_the_check_sees_a_named_system() -> None:
    for line in ("# as in KIEval", "from ..probes.report import x", 'if name == "probe":', "class FunctionChat:"):
        assert _SYSTEM.search(line), line
    assert not _SYSTEM.search("probe = ToolCall(); a diffusion model")


def test_every_room_says_what_it_is_for() -> None:
    rooms = [path for path in MODULES if path.name != "__init__.py"]
    assert [path for path in rooms if len(ast.get_docstring(_parsed(path)) or "") <= 60] == [], "says too little"
    assert [path for path in rooms if len(_text(path).splitlines()) > 800] == [], "holds more than one thing"


def test_every_floor_is_loaded_from_where_it_lies() -> None:
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert folders == {*FOLDERS, "viva"}, "setup.py takes each folder with an `__init__.py` for a part of the package"
    for floor in FOLDERS:
        found = importlib.util.find_spec(f"viva.{floor}")
        assert found is not None, f"viva.{floor} is not mapped: install again (make venv)"
        assert found.origin == str(ROOT / floor / "__init__.py")


def test_no_symlink_is_tracked() -> None:
    tracked = subprocess.run(["git", "ls-files", "--stage"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert [line for line in tracked.stdout.splitlines() if line.startswith("120000")] == []


def test_line_13_defaults_of_settings_are_given_by_name() -> None:
    # Type checkers know a default by its name alone: given by place it makes the setting look required.
    by_place = [
        f"{path}:{node.lineno}: write Field(default=…)"
        for path in MODULES
        if "pydantic" in _text(path)
        for node in ast.walk(_parsed(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Field" and node.args
    ]
    assert by_place == []


def test_every_bench_loads() -> None:
    # Nothing else imports them: a name that moves would be missed until somebody measures.
    benches = sorted(path.name for path in (ROOT / "benches").glob("*.py"))
    peers = [f"peers/{one.name}" for one in sorted((ROOT / "benches" / "peers").glob("*.py")) if _is_ours(one)]
    gpu = [f"gpu/{path.name}" for path in sorted((ROOT / "benches" / "gpu").glob("*.py"))]
    code = "import runpy, sys; sys.path[:0] = ['.', 'peers', 'gpu']\n"
    code += "\n".join(f"runpy.run_path({one!r}, run_name='loaded')" for one in [*benches, *peers, *gpu])
    subprocess.run([sys.executable, "-c", code], cwd=ROOT / "benches", check=True)


def test_each_bench_result_is_checked_against_code_that_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benches"))
    check = runpy.run_path(str(ROOT / "benches" / "check.py"), run_name="loaded")
    measured = check["MEASURED"]
    results = {path.stem for path in (ROOT / "benches" / "results").glob("*.json")}
    assert results <= measured.keys() <= results | check["NEEDS_GPU"]
    places = {place for listed in measured.values() for place in listed.split()}
    assert [place for place in sorted(places) if not (ROOT / place).exists()] == []


def _is_ours(peer: Path) -> bool:
    """Whether it needs no package of a peer's."""
    return "inspect" not in peer.name


def test_the_lowest_versions_and_every_named_python_are_tried_by_ci() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [job] = re.findall(r"python: \[(.*)\]", workflow := (ROOT / ".github/workflows/test.yml").read_text())
    tried = re.findall(r"\d+\.\d+", job)
    named = [found[1] for one in project["classifiers"] if (found := re.fullmatch(r".*Python :: (3\.\d+)", one))]
    assert tried == named == ["3.11", "3.12", "3.13", "3.14"]
    assert "make lowest" in workflow
    [built] = re.findall(r"LLAMA_VERSION := (.+)", (ROOT / "Makefile").read_text())
    extras = project["optional-dependencies"].values()
    everything = [*project["dependencies"], *(one for extra in extras for one in extra)]
    assert all("=" in one for one in everything), "a bound that `make lowest` can install"
    assert {one.partition(">=")[2] for one in everything if one.startswith("llama-cpp-python")} == {built}
