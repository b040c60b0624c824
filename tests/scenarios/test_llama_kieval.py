"""KIEval on local GGUF models: verdicts hold their schema, and transcripts are the same bytes at any concurrency."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from tiny_gguf import SHORT_PACK, make_model, requantised
from viva_process import completed, killed, started

from viva.engine.errors import ConfigurationError
from viva.orchestration.launch import new_run
from viva.scenarios.kieval.kieval_settings import KievalSettings

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"


def _model(path: Path, kind: str, seed: int) -> Path:
    source = make_model(path.with_suffix(".f16"), seed=seed, quote_bias=3.0, width=256, layers=1)
    return requantised(source, path, kind)


@pytest.fixture(params=["Q4_K"])  # test_batch_shape has the other kinds
def arguments(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    candidate = _model(tmp_path / "candidate.gguf", request.param, 1)
    panel = _model(tmp_path / "panel.gguf", request.param, 2)
    (tmp_path / "pack.yaml").write_text(SHORT_PACK)
    (tmp_path / "items.jsonl").write_text("".join(ITEMS.read_text().splitlines(keepends=True)[:8]))
    options = ["--dataset", str(tmp_path / "items.jsonl"), "--rounds", "3", "--pack", str(tmp_path / "pack.yaml")]
    options += ["--candidate-tokens", "40", "--interactor-tokens", "30", "--evaluator-tokens", "500"]
    # The candidate goes with llama.cpp's flash attention, the panel without it.
    options += ["--temperature", "0.7", "--candidate", f"llama:{candidate}?label=c&ctx=1024&lanes=16&flash_attn=on{{}}"]
    panel_name = f"llama:{panel}?ctx=2048&lanes=16&flash_attn=off{{}}"
    return [*options, "--interactor", panel_name, "--evaluator", panel_name]


def _run(arguments: list[str], folder: Path, extra: str, concurrency: int) -> bytes:
    given = [text.replace("{}", extra) for text in arguments]
    done = completed("run", "kieval", *given, "--concurrency", str(concurrency), "--json", "--out", folder)
    assert done.returncode == 0, done.stderr.decode()
    return _transcripts(folder)


def _transcripts(folder: Path) -> bytes:
    return completed("show", folder, "--json").stdout


def test_transcripts_are_the_same_at_any_concurrency_under_evictions_and_after_a_kill(
    arguments: list[str], tmp_path: Path
) -> None:
    whole = _run(arguments, tmp_path / "one", "", 1)
    report = orjson.loads(completed("report", tmp_path / "one", "--json").stdout)
    one = report["candidates"]["c"]
    assert report["tier"] == "C"
    assert one["scored"] == 8
    assert one["parse_failures"] == 0  # the grammar held in every verdict
    assert _run(arguments, tmp_path / "many", "", 64) == whole
    assert _run(arguments, tmp_path / "side by side", "&threads=2&contexts=2", 64) == whole
    # A store that holds a handful of states, and one that holds none: everything else is computed again.
    assert _run(arguments, tmp_path / "small", "&kv_cache=1", 7) == whole
    assert _run(arguments, tmp_path / "none", "&kv_cache=0", 64) == whole
    shuffled = _run([*arguments, "--shuffled"], tmp_path / "shuffled", "", 3)
    assert shuffled != whole  # another order, and the talks have their places in it
    assert _by_key(shuffled) == _by_key(whole)
    assert _killed_and_resumed([text.replace("{}", "") for text in arguments], tmp_path / "killed") == whole


def _by_key(transcripts: bytes) -> dict[str, object]:
    """What was said, without the place in the run."""
    talks = (orjson.loads(line) for line in transcripts.splitlines())
    return {talk["key"]: talk["talk"] for talk in talks}


def _killed_and_resumed(arguments: list[str], folder: Path) -> bytes:
    process = started("run", "kieval", *arguments, "--concurrency", "8", "--out", folder)
    assert killed(process, folder, 15) >= 15
    done = completed("resume", folder)
    assert done.returncode == 0, done.stderr.decode()
    return _transcripts(folder)


def test_a_fork_of_a_local_run_asks_only_the_evaluator(arguments: list[str], tmp_path: Path) -> None:
    _run(arguments, tmp_path / "run", "", 8)
    fork = ["run", "--fork", tmp_path / "run", "--judge", "simulated:other?noise=0", "--json"]
    done = completed(*fork, "--out", tmp_path / "fork")
    assert done.returncode == 0, done.stderr.decode()
    assert b"lanes" not in done.stderr  # no local model was loaded
    assert orjson.loads(done.stdout)["candidates"]["c"]["interviews"] == 8


def test_a_context_too_short_for_a_first_prompt_is_found_before_the_first_call(tmp_path: Path) -> None:
    """Each role's opening, with the longest item, is counted by the model itself; nobody is asked anything."""
    small = make_model(tmp_path / "small.gguf")
    items = tmp_path / "items.jsonl"
    rows = [{"id": name, "question": text, "choices": ["to see", "to say"], "answer": 0}
            for name, text in (("short", "what is it"), ("long", "what is it " * 300))]  # fmt: skip
    items.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    pack = tmp_path / "pack.yaml"
    pack.write_text(SHORT_PACK, "utf-8")
    roles = ("candidate", "interactor", "evaluator")
    for short in roles:
        models: dict[str, Any] = {role: f"llama:{small}?ctx={512 if role == short else 8192}&lanes=1" for role in roles}
        settings = KievalSettings(dataset=str(items), pack=str(pack), **models | {"candidate": [models["candidate"]]})
        launch = new_run("kieval", settings, tmp_path / short)
        with pytest.raises(ConfigurationError) as error:
            asyncio.run(launch.run())
        text = str(error.value)
        assert text.startswith(f"{short} llama:{small}?ctx=512&lanes=1: its first prompt has ")
        assert "(item long), and its context holds 512; raise ?ctx= to at least " in text
        assert not (tmp_path / short / "journal.sqlite").exists()
