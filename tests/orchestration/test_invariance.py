"""`viva invariance`: what it says of models that are steady, depend on concurrency, or are random; what manifests
record."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from case_tables import case_table
from command import viva
from study_runs import interviewed
from tiny_gguf import make_model
from viva_process import ended, started

from viva.engine.permissions import grant

if TYPE_CHECKING:
    from tests.servers.process import Plan, Server

    Chaos = Callable[[Plan], Server]

# The requests alone, once more alone, and together have these numbers.
_FIRST, _AGAIN, _AMONG = range(32), range(32, 64), range(64, 96)
_OTHER, _SAME = {"do": "ok", "say": "another answer"}, {"do": "ok", "say": "Yes."}
MODELS = """
import asyncio, random
from viva import Backend
flying = 0

async def busy(messages):
    global flying
    flying += 1
    for _ in range(100):  # all that were sent together are here by then
        await asyncio.sleep(0)
    seen, text = flying, messages[-1]["content"]
    for _ in range(100):
        await asyncio.sleep(0)
    flying -= 1
    return text.upper() if seen > 1 else text

class Broken(Backend):
    async def generate(self, request):
        raise ValueError("no such luck")

def steady(messages):
    return messages[-1]["content"][::-1]

def dice(messages):
    return str(random.random())
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of kept results."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "viva" / "invariance"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    file = tmp_path / "models.py"
    file.write_text(MODELS)
    grant(file)
    return file


def _measured(*models: str, code: int = 0) -> dict[str, Any]:
    done = viva("invariance", *models, "--json")
    assert done.returncode == code, done.stderr
    assert ": 96 calls of up to 64 tokens\n" in done.stderr
    results: list[dict[str, Any]] = json.loads(done.stdout)["models"]
    return results[0]


def _age(entry: Path, days: float) -> None:
    then = time.time() - days * 86_400.0
    os.utime(entry, (then, then))


def _on(numbers: range, behaviour: Any) -> Plan:
    return {"schedule": {str(number): behaviour for number in numbers}}


@case_table(
    "plan, alone, among, words",
    [
        ({}, 0, 0, "byte for byte those of the request alone: with 95% confidence, fewer than 9% of such answers"),
        (_on(_AMONG[:5], _OTHER), 0, 5, "Answers depend on concurrent requests (p = 0.031)."),
        (_on(_AMONG[:4], _OTHER), 0, 4, "may also come from a model that is not quite deterministic alone (p = 0.062)"),
        ({"default": _SAME} | _on(_AMONG, _OTHER), 0, 32, "Answers depend on concurrent requests"),
        (_on(_AGAIN[:3], _OTHER), 3, 0, "the second figure says nothing about concurrent requests"),
        (_on(range(63, 96), _OTHER), 1, 32, "not deterministic even alone, and its answers also depend on concurrent"),
    ],
)  # fmt: skip
def test_a_sentence_claims_what_the_answers_of_an_endpoint_allow(
    replanned: Chaos, plan: Plan, alone: int, among: int, words: str
) -> None:
    result = _measured(replanned(plan).model("candidate"))
    assert (result["alone"], result["among"], result["at_once"]) == ([alone, 32], [among, 32], 32)
    assert result["compared"] == "texts"
    figures = f"{alone} of 32 requests got different answers; among 32 concurrent requests, {among} of 32 answers"
    assert figures in result["text"]
    assert words in result["text"]


def test_each_request_is_asked_twice_alone_and_once_among_all(replanned: Chaos) -> None:
    server = replanned({"record": True})
    _measured(server.model("candidate"))
    log = [json.dumps([entry["body"]["messages"], entry["body"]["seed"]]) for entry in server.log()]
    assert len(log) == 96
    assert log[:32] == log[32:64]
    assert sorted(log[:32]) == sorted(log[64:])
    assert len(set(log)) == 32
    for entry in server.log():
        assert (entry["body"]["temperature"], entry["body"]["max_tokens"]) == (0.0, 64)


@case_table(
    "plan, options, words",
    [
        ({"default": _SAME}, {}, "All 32 requests got the same answer"),
        ({"default": {"do": "ok", "say": " "}}, {}, "All its answers are empty"),
        ({}, {"concurrency": 1}, "one request at a time"),
    ],
)
def test_of_answers_that_show_nothing_nothing_is_claimed_or_kept(
    replanned: Chaos, cache: Path, plan: Plan, options: dict[str, Any], words: str
) -> None:
    result = _measured(replanned(plan).model("candidate", **options))
    assert words in result["flaw"]
    assert result["text"].endswith(result["flaw"])
    assert "%" not in result["text"]
    assert not cache.exists()


def test_only_requests_that_were_in_flight_together_count_as_concurrent(replanned: Chaos) -> None:
    limited = _measured(replanned({}).model("candidate", concurrency=4))
    assert limited["at_once"] == 4
    assert "among 4 concurrent requests" in limited["text"]
    refused = _measured(replanned(_on(_AMONG[-8:], "429")).model("candidate"))
    assert refused["at_once"] == 24
    assert "8 of the concurrent requests were refused first and repeated later" in refused["text"]


@case_table(
    "plan, code, words",
    [
        (_on(range(40, 41), "400"), 1, "this request makes no sense"),
        (_on(range(80, 81), "400"), 1, "this request makes no sense"),
        (_on(range(80, 96), "garbage"), 1, "candidate: "),
        ({"default": "401"}, 2, "incorrect API key"),
        ({"model_list": 401, "default": "401"}, 2, "incorrect API key"),
    ],
)
def test_an_endpoint_that_fails_ends_the_test_and_leaves_nothing(
    replanned: Chaos, cache: Path, plan: Plan, code: int, words: str
) -> None:
    done = viva("invariance", replanned(plan).model("candidate", retries=0), "--json")
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr.splitlines()[-1]
    assert not cache.exists()


def test_ctrl_c_ends_the_test_and_leaves_nothing(chaos: Chaos, cache: Path) -> None:
    server = chaos(_on(_AGAIN, "never"))
    process = started("invariance", server.model("candidate"))
    server.log(requests=33)
    process.send_signal(signal.SIGINT)
    code, printed, said = ended(process)
    assert (code, printed) == (130, b"")
    assert said.endswith("viva: interrupted\n")
    assert not cache.exists()


def test_models_of_other_kinds_are_told_apart(models: Path) -> None:
    done = viva("invariance", *(f"python:{models}#{name}" for name in ("busy", "steady", "dice")))
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    for name, alone, among in (("busy", 0, 32), ("steady", 0, 0), ("dice", 32, 32)):
        figures = f"{alone} of 32 requests got different answers; among 32 concurrent requests, {among} of 32 answers"
        assert f"{name}: Asked twice alone, {figures}" in said
    assert "Answers depend on concurrent requests (p = 2.3e-10)." in said
    assert "The model is not deterministic even alone, so the second figure says nothing" in said


def test_an_error_of_a_users_own_model_is_one_line(models: Path, cache: Path) -> None:
    done = viva("invariance", f"python:{models}#Broken?label=mine")
    assert (done.returncode, done.stdout) == (1, "")
    assert "viva: error: mine: raised ValueError: no such luck (" in done.stderr
    assert not cache.exists()


def test_every_kind_of_endpoint_can_be_tested(replanned: Chaos, tmp_path: Path) -> None:
    server = replanned({})
    pool = tmp_path / "pool.yaml"
    pool.write_text(json.dumps({"members": [server.model("candidate"), server.model("candidate", timeout=100)]}))
    names = [server.anthropic("a", max_tokens=70), server.gemini("g"), f"pool:{pool}?label=both"]
    done = viva("invariance", *names, "--json")
    assert done.returncode == 0, done.stderr
    assert "a: 96 calls of up to 70 tokens" in done.stderr
    for result in json.loads(done.stdout)["models"]:
        assert (result["alone"], result["among"], result["at_once"]) == ([0, 32], [0, 32], 32)


def test_a_local_model_keeps_its_promise_and_its_result_lasts(tmp_path: Path, cache: Path) -> None:
    file = make_model(tmp_path / "tiny.gguf", width=32, layers=1, heads=2)
    strict, loose = (f"llama:{file}?ctx=1024&strict={value}" for value in ("on", "off"))
    result = _measured(strict)
    assert (result["alone"], result["among"], result["at_once"]) == ([0, 32], [0, 32], 32)
    assert result["compared"] == "texts and log-probabilities"
    free = _measured(loose)
    assert free["alone"][1] == free["among"][1] == 32
    for entry in cache.iterdir():
        _age(entry, days=100)
    recorded = _recorded(tmp_path / "run", strict, loose.replace("?", "?label=loose&"))
    assert recorded == {strict: {name: result[name] for name in ("alone", "among", "at_once", "date")}}
    make_model(file, seed=2, width=32, layers=1, heads=2)  # another model in the same file
    assert _recorded(tmp_path / "second", strict) == {}


def _recorded(run: Path, *candidates: str) -> dict[str, Any]:
    """The field `invariance` of a new run's manifest."""
    from viva.orchestration.prepared_run import PreparedRun
    from viva.scenarios.kieval.kieval_settings import KievalSettings
    from viva.scenarios.kieval.scenario import SCENARIO

    models = {"candidate": list(candidates), "interactor": "simulated:i", "evaluator": "simulated:e"}
    items = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
    settings = KievalSettings.model_validate({"dataset": str(items), "n": 2, "rounds": 1, **models})
    recorded: dict[str, Any] = PreparedRun(SCENARIO, settings).manifest().get("invariance", {})
    return recorded


def test_a_manifest_records_the_result_and_no_resume_minds_it(tmp_path: Path, cache: Path) -> None:
    before = interviewed(tmp_path / "before", "simulated:c", n=2)
    manifest = (before / "manifest.json").read_bytes()
    assert "invariance" not in json.loads(manifest)
    result = _measured("simulated:c")
    after = interviewed(tmp_path / "after", "simulated:c", n=2)
    recorded = json.loads((after / "manifest.json").read_bytes())
    assert recorded["invariance"] == {
        "simulated:c": {name: result[name] for name in ("alone", "among", "at_once", "date")}
    }
    assert recorded["tier"] == json.loads(manifest)["tier"]
    # Runs that differ only in what was measured are the same.
    words: list[str | Path] = ["run", "kieval", "--config", "settings.yaml", "--out", before]
    (tmp_path / "settings.yaml").write_text(json.dumps(json.loads(manifest)["settings"]))
    again = viva(*words, cwd=tmp_path)
    assert "already contains this run" in again.stderr
    [entry] = cache.iterdir()
    entry.write_text(json.dumps({**_RIGHT, "among": [9, 32]}))  # measured again since, with another result
    for run in (before, after):
        kept = (run / "manifest.json").read_bytes()
        assert viva("resume", run).returncode == 0
        assert (run / "manifest.json").read_bytes() == kept
    assert viva("report", before, "--json").stdout == viva("report", after, "--json").stdout


def test_a_result_about_an_endpoint_is_valid_for_a_week(tmp_path: Path, replanned: Chaos, cache: Path) -> None:
    model = replanned({}).model("candidate")
    _measured(model)
    [entry] = cache.iterdir()
    assert list(_recorded(tmp_path, model)) == [model]
    assert _recorded(tmp_path, f"{model}?temperature=1") == {}, "another name is another model"
    _age(entry, days=6.9)
    assert list(_recorded(tmp_path, model)) == [model]
    _age(entry, days=7.1)
    assert _recorded(tmp_path, model) == {}
    _measured(model)  # the command measures again, whatever is known
    assert list(_recorded(tmp_path, model)) == [model]


_RIGHT = {"alone": [0, 32], "among": [1, 32], "at_once": 32, "date": "2026-11-27"}
_WRONG = [
    ("alone", [33, 32]),
    ("alone", [-1, 32]),
    ("alone", [True, 32]),
    ("alone", "0/32"),
    ("among", [0]),
    ("among", [0.5, 32]),
    ("at_once", 1),
    ("at_once", None),
    ("date", "yesterday"),
    ("date", 20261127),
]


_DAMAGED = [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 5000]
_DAMAGED += [json.dumps({**_RIGHT, name: value}).encode() for name, value in _WRONG]


@case_table("content", _DAMAGED)
def test_a_damaged_entry_of_the_cache_is_no_result(tmp_path: Path, cache: Path, content: bytes) -> None:
    if not cache.exists():
        _measured("simulated:c")
    [entry] = cache.iterdir()
    entry.write_bytes(content)
    assert _recorded(tmp_path, "simulated:c") == {}
    entry.write_text(json.dumps(_RIGHT | {"more": "by a later version"}))
    assert _recorded(tmp_path, "simulated:c") == {"simulated:c": _RIGHT}


@case_table("name, value", [*_WRONG, ("", 3), ("", None)])
def test_nonsense_in_a_manifest_is_an_error_that_names_the_field(tmp_path: Path, name: str, value: Any) -> None:
    run = interviewed(tmp_path / "run", "simulated:c", n=2)
    file = run / "manifest.json"
    manifest = json.loads(file.read_bytes())
    manifest["invariance"] = {"simulated:c": {**_RIGHT, name: value} if name else value}
    file.write_text(json.dumps(manifest))
    for command in ("report", "resume"):
        done = viva(command, run)
        assert done.returncode == 2
        field = f"invariance.simulated:c{f'.{name}' if name else ''}"
        assert f"{file}: field '{field}" in done.stderr
