"""What is distributed: the sdist alone, a wheel without extras and without a compiler, a checkout without symlinks."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from tests.servers.process import Plan, Server

ROOT = Path(__file__).parents[1]
SITE = Path(sysconfig.get_path("purelib"))
ITEMS = ROOT / "scenarios" / "kieval" / "items" / "science.jsonl"
_IGNORED = shutil.ignore_patterns(
    ".*venv*", ".git", ".peers", ".inspect", "*.egg-info", "__pycache__", "runs", "build", ".*_cache", ".hypothesis"
)
_IN_GIT = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")


def _variables(path: Path | None = None) -> dict[str, str]:
    """The environment variables of a program that finds others in this folder alone, if one is given."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | ({"PATH": str(path)} if path else {})


def _run(*command: str | Path, cwd: Path, path: Path | None = None, code: int = 0) -> str:
    done = subprocess.run(command, cwd=cwd, env=_variables(path), capture_output=True, text=True, check=False)
    assert done.returncode == code, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def _environment(folder: Path) -> Path:
    """Make a virtual environment without packages; return its folder of packages."""
    _run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    return next(folder.glob("lib/python*/site-packages"))


def _install(environment: Path, *what: str | Path) -> None:
    pip = [sys.executable, "-m", "pip", "--python", environment / "bin" / "python", "--disable-pip-version-check"]
    _run(*pip, "install", "--quiet", "--no-deps", "--no-build-isolation", *what, cwd=environment)
    assert "No broken requirements" in _run(*pip, "check", cwd=environment)


def _editable(environment: Path, source: Path) -> str:
    """Install a source tree as `make venv` does, with the packages that are here; return the interpreter."""
    # Paths that other packages add to those here are not read, so the `viva` of this checkout is not found.
    (_environment(environment) / "others.pth").write_text(str(SITE))
    pip = [sys.executable, "-m", "pip", "--python", environment / "bin" / "python", "--quiet"]
    _run(*pip, "install", "--no-deps", "--no-build-isolation", "--ignore-installed", "-e", source, cwd=environment)
    python = str(environment / "bin" / "python")
    where = _run(python, "-c", "import viva.engine.budget as b; print(b.__file__)", cwd=environment).strip()
    assert where == str(source / "engine" / "budget.py")
    return python


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what `python -m build` makes: the sdist, and the wheel built from it."""
    base = tmp_path_factory.mktemp("build")
    source = shutil.copytree(ROOT, base / "source", ignore=_IGNORED)
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", base, source, cwd=base)
    shutil.rmtree(source)
    return base


@pytest.fixture(scope="module")
def unpacked(distributions: Path) -> Path:
    """The unpacked sdist."""
    [packed] = distributions.glob("*.tar.gz")
    with tarfile.open(packed) as archive:
        archive.extractall(distributions, filter="data")
    return packed.with_name(packed.name.removesuffix(".tar.gz"))


@_IN_GIT
def test_the_source_distribution_is_the_whole_checkout(unpacked: Path) -> None:
    tracked = set(_run("git", "ls-files", cwd=ROOT).splitlines())
    held = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    assert sorted(path for path in tracked - held if (ROOT / path).exists()) == []
    untracked = set(_run("git", "ls-files", "--others", "--exclude-standard", cwd=ROOT).splitlines())
    made = {path for path in held - tracked - untracked if not path.startswith("viva_exam.egg-info/")}
    assert made == {"PKG-INFO", "setup.cfg"}


def test_the_description_for_package_indexes_is_the_readme_without_pictures(unpacked: Path) -> None:
    description = (unpacked / "PKG-INFO").read_text(encoding="utf-8").partition("\n\n")[2]
    assert "# viva" in description
    assert "![" not in description
    assert description.rstrip().endswith((ROOT / "README.md").read_text(encoding="utf-8").rstrip()[-200:])


def test_tests_run_from_the_source_distribution_alone(unpacked: Path, tmp_path: Path) -> None:
    python = _editable(tmp_path / "env", unpacked)
    some = [
        "tests/test_house.py",
        "tests/engine/test_keys.py",
        "tests/data/test_named_benchmarks.py",
        "-k",
        "not bench_loads",
    ]
    assert " passed" in _run(
        python, "-m", "pytest", "-n0", "-o", "addopts=", "-p", "no:cacheprovider", *some, cwd=unpacked
    )


@_IN_GIT
def test_a_checkout_without_symlinks_runs(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    _run("git", "clone", "--quiet", "-c", "core.symlinks=false", ROOT, checkout, cwd=tmp_path)
    python = _editable(tmp_path / "env", checkout)
    printed = _run(python, "-m", "viva", "lab", "run", "-n", "1", "--rounds", "1", "--probed", "4", cwd=tmp_path)
    assert "pt-cheater" in printed


def test_the_debugger_stops_where_the_file_lies(tmp_path: Path) -> None:
    [line] = [number for number, text in enumerate((ROOT / "engine" / "budget.py").read_text().splitlines(), 1)
              if text.startswith("from __future__")]  # fmt: skip
    models = [f"--{role}=simulated:{role}" for role in ("candidate", "interactor", "evaluator")]
    command = ["run", "kieval", "--dataset", ITEMS, "-n", "1", *models, "--out", tmp_path / "run"]
    commands = [f"-c{one}" for one in (f"break engine/budget.py:{line}", "continue", "where", "quit")]
    printed = _run(sys.executable, "-m", "pdb", *commands, "-m", "viva", *command, cwd=ROOT)
    assert f"Breakpoint 1 at {ROOT}/engine/budget.py:{line}" in printed
    assert f"> {ROOT}/engine/budget.py({line})<module>()" in printed
    assert f"  {ROOT}/cli/start.py(" in printed


def _installed(distributions: Path, environment: Path, *extras: str) -> set[str]:
    """Make an environment with the wheel and the packages that it requires with these extras; return their names."""
    site = _environment(environment)
    open_, seen = ["viva-exam"], {"viva-exam"}
    while open_:
        name = open_.pop()
        held = distribution(name)
        if name != "viva-exam":
            for top in {file.parts[0] for file in held.files or () if file.parts[0] not in ("..", "__pycache__")}:
                (site / top).symlink_to(SITE / top)
        for text in held.requires or ():
            wanted = Requirement(text)
            chosen = ("", *extras) if name == "viva-exam" else ("",)
            if (wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in chosen)) and (
                needed := canonicalize_name(wanted.name)
            ) not in seen:
                seen.add(needed)
                open_.append(needed)
    [wheel] = distributions.glob("*.whl")
    _install(environment, wheel)
    return seen


@pytest.fixture(scope="module")
def plain(distributions: Path) -> Path:
    """The programs of an environment without extras."""
    seen = _installed(distributions, distributions / "plain")
    assert not {"llama-cpp-python", "gguf", "ray", "matplotlib", "pyarrow"} & seen
    return distributions / "plain" / "bin"


@contextmanager
def _serving(programs: Path, cwd: Path, *options: str) -> Iterator[str]:
    command = [programs / "viva", "serve", "--port", "0", *options]
    with subprocess.Popen(command, cwd=cwd, env=_variables(programs), stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"http://127\.0\.0\.1:\d+", server.stdout.readline().decode())
            assert found is not None
            yield found[0]
        finally:
            server.send_signal(signal.SIGTERM)


def test_without_extras_and_compiler_endpoints_are_examined_and_served(
    plain: Path, replanned: Callable[[Plan], Server], tmp_path: Path
) -> None:
    server = replanned({})

    def viva(*words: str | Path, code: int = 0) -> str:
        return _run(plain / "viva", *words, cwd=tmp_path, path=plain, code=code)

    assert shutil.which("cc", path=str(plain)) is None
    roles = [f"--{role}={server.model(role)}" for role in ("candidate", "interactor", "evaluator")]
    viva("run", "kieval", "--dataset", ITEMS, "-n", "3", "--rounds", "2", *roles, "--out", "runs/talks")
    told = json.loads(viva("report", "runs/talks", "--html", "report.html", "--csv", "report.csv", "--json"))
    assert told["candidates"]["candidate"]["interviews"] == 3
    assert "<html" in (tmp_path / "report.html").read_text()
    viva("suite", "init", "suite")
    viva("suite", "check", "suite/suite.yaml")
    judged = [f"--candidate={server.model('app')}", f"--grader={server.model('grader')}", "--out", "runs/suite"]
    viva("suite", "run", "suite/suite.yaml", *judged, code=1)  # the endpoint's answers do not pass the gate
    assert "Gate: 2 of 3 thresholds broken" in viva("report", "runs/suite")
    with _serving(plain, tmp_path, "--model", server.model("served", label="served"), "--runs", "runs") as url:
        asked = {"model": "served", "messages": [{"role": "user", "content": "Is two even?"}]}
        request = Request(
            f"{url}/v1/chat/completions", json.dumps(asked).encode(), {"Content-Type": "application/json"}
        )
        with urlopen(request, timeout=60) as answer:
            assert json.load(answer)["choices"][0]["message"]["content"]
        with urlopen(f"{url}/api/v1/runs", timeout=60) as answer:
            assert {"talks", "suite"} <= {Path(one["id"]).name for one in json.load(answer)["runs"]}


def test_the_page_of_the_demo_has_plots_with_the_extras_that_make_installs(distributions: Path, tmp_path: Path) -> None:
    commands = _run("make", "-n", "-W", "pyproject.toml", "demo", cwd=ROOT)
    [extras] = re.findall(r"--editable '\.\[(.*)\]'", commands)
    _installed(distributions, tmp_path / "demo", *extras.split(","))
    _run(tmp_path / "demo/bin/viva", "lab", "run", "-n", "8", "--rounds", "1", "--probed", "8", cwd=tmp_path)
    [page] = tmp_path.glob("runs/*/report.html")
    assert "<svg" in page.read_text(encoding="utf-8")


def test_without_its_extra_a_local_model_is_one_line_that_says_what_to_install(plain: Path, tmp_path: Path) -> None:
    model = f"llama:{ROOT / 'lab' / 'models' / 'clean-25.gguf'}"
    others = ["--interactor=simulated:i", "--evaluator=simulated:e"]
    for words in (
        ["run", "kieval", "--dataset", ITEMS, f"--candidate={model}", *others],
        ["run", "kieval", "--strict", "--dataset", ITEMS, f"--candidate={model}", *others],
        ["serve", "--model", model],
        ["demo"],
        ["lab", "build", "--out", "models"],
    ):
        done = subprocess.run(
            [plain / "viva", *words], cwd=tmp_path, env=_variables(), capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert "pip install 'viva-exam[local]'" in done.stderr, done.stderr
        assert "minutes" in done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "llama" in _run(plain / "viva", "list", "models", cwd=tmp_path)
