"""docs/api.md as a user has it: every example runs and has sound types, in a wheel installed outside of the repo."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import viva

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE | re.DOTALL)
FILES = {name: body for _, body in BLOCKS for name in re.findall(r"\A# (\w+\.\w+)\n", body)}
SCRIPTS = ["compare", "train"]  # tests/docs runs them all, in the checkout
_LAST_LINE = {
    "compare": "examiner: ",
    "train": "a/rust ",
}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the examples, and beside it an environment with the wheel and what it needs, but no checkout."""
    base = tmp_path_factory.mktemp("api")
    leave_out = shutil.ignore_patterns(
        ".*venv*", ".git", ".peers", ".inspect", "*.egg-info", "runs", "build", ".*_cache"
    )
    source = shutil.copytree(ROOT, base / "source", ignore=leave_out)
    wheels = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(base), str(source)]
    subprocess.run(wheels, check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(base / "env")], check=True)
    site = next((base / "env").glob("lib/python*/site-packages"))
    (site / "others.pth").write_text(sysconfig.get_path("purelib"))  # what an editable install adds there is not read
    [wheel] = base.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", str(base / "env" / "bin" / "python")]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--force-reinstall", str(wheel)], check=True)
    shutil.rmtree(source)
    folder = base / "here"
    folder.mkdir()
    for name, body in FILES.items():
        (folder / name).write_text(body)
    (folder / "topics.jsonl").write_text('"tides"\n"rust"\n')
    shutil.copy(ROOT / "scenarios" / "kieval" / "items" / "science.jsonl", folder / "items.jsonl")
    return folder


def _run(here: Path, *command: str) -> str:
    place = here.parent / "env" / "bin"
    path = os.environ | {"PATH": f"{place}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=here, env=path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def test_every_example_runs_in_an_installed_wheel(here: Path) -> None:
    where = _run(here, "python", "-c", "import viva; print(viva.__file__)")
    assert Path(where.strip()).is_relative_to(here.parent / "env")
    for name in SCRIPTS:
        printed = _run(here, "python", f"{name}.py")
        assert printed.splitlines()[-1].startswith(_LAST_LINE[name]), (name, printed)
    for kind, body in BLOCKS:
        if kind == "sh":
            _run(here, "bash", "-euc", body)
    assert "for it." in (here / "runs" / "strict" / "manifest.json").read_text()
    assert {*SCRIPTS, "strict"} <= {Path(name).stem for name in FILES}


def test_the_wheel_holds_all_that_the_program_reads(here: Path) -> None:
    site = next((here.parent / "env").glob("lib/python*/site-packages"))
    rooms = sorted(path.parent for path in ROOT.glob("*/__init__.py") if path.parent.name != "viva")
    kept = {one.relative_to(ROOT) for room in rooms for one in room.rglob("*")
            if one.is_file() and one.parent.name != "__pycache__"}  # fmt: skip
    assert [str(one) for one in sorted(kept) if not (site / "viva" / one).exists()] == []
    assert (site / "viva" / "lab" / "models" / "clean-25.gguf").exists()


def test_every_example_has_sound_types(here: Path) -> None:
    scripts = [f"{Path(name).stem}.py" for name in FILES if name.endswith(".py")]
    python = str(here.parent / "env" / "bin" / "python")
    _run(here, sys.executable, "-m", "mypy", "--strict", "--python-executable", python, *scripts)
    (here / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    _run(here, sys.executable, "-m", "basedpyright", "--pythonpath", python, *scripts)


def test_every_promised_name_loads() -> None:
    in_reference = {name for names in viva._HOMES.values() for name in names} | {"__version__"}
    assert in_reference == set(viva.__all__) == set(dir(viva))
    assert all(getattr(viva, name) is not None for name in viva.__all__)
    assert viva.__version__
