"""What ``viva run probe`` refuses before anything is asked, or cannot do, and in which words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import command
import orjson
import pytest
from probing import ITEMS, PACK, make_items, probe, recorded
from viva_process import completed

if TYPE_CHECKING:
    from tests.servers.process import Server

Chaos = Callable[[dict[str, Any]], "Server"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], ["shots", "--shots-from", "--shots 0"]),
        (["--shots", "41", "--shots-from", str(ITEMS)], ["shots: 41", "40 items"]),
        (["--shots", "-1"], ["--shots", "found -1"]),
        (["--shots", "5", "--shots-from", "none.jsonl"], ["none.jsonl: cannot be read"]),
        (["--shots", "0", "--method", "lettre"], ["--method", "'letter', 'text', 'generate', 'loss'", "'lettre'"]),
        (["--shots", "0", "--against", str(ITEMS)], ["against", "--method loss"]),
        (["--method", "loss", "--against", "none.jsonl"], ["none.jsonl: cannot be read"]),
        (["--shots", "0", "--members", "both"], ["--members", "'both'"]),
        (["--shots", "0", "--members", "against"], ["members: there is no second set", "--against"]),
        (["--shots", "40", "--shots-from", str(ITEMS)], ["too few examples besides item", "fewer --shots"]),
        (["--shots", "0", "-n", "0"], ["-n", "found 0"]),
        (["--shots", "0", "--ids", "none.txt"], ["none.txt: cannot be read"]),
        (["--shots", "0", "--answer-tokens", "0"], ["--answer-tokens", "found 0"]),
        (["--shots", "0", "--pack", "none"], ["prompt pack 'none'", "probe"]),
        (["--shots", "0", "--pack", "kieval"], ["prompt pack 'kieval'", "letter.header"]),
        (["--shots", "0", "--candidate", "simulated:c?noise=0"], ["two models", "'c'", "label="]),
        (["--shots", "0", "--rounds", "3"], ["--rounds"]),
        (
            ["--method", "loss", "--candidate", "openai:http://127.0.0.1:9/v1#m?batch=on"],
            ["loss", "batch API", "leave batch=on out of openai:http://127.0.0.1:9/v1#m?batch=on", "--method generate"],
        ),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, options: list[str], words: list[str]) -> None:
    base = ["run", "probe", "--dataset", ITEMS, "--candidate", "simulated:c", "--out", tmp_path / "run"]
    done = command.viva(*base, *options)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    for word in words:
        assert word in done.stderr
    assert not (tmp_path / "run").exists()


def test_neither_dataset_nor_model_can_be_left_out() -> None:
    done = completed("run", "probe", "--method", "loss")
    assert (done.returncode, done.stderr) == (
        2,
        b"viva: error: --dataset is missing; --candidate is missing\n",
    )


def test_a_probe_has_no_evaluator_to_exchange_and_no_scorer(tmp_path: Path) -> None:
    probe(tmp_path / "run", "--dataset", ITEMS, "-n", "2", "--shots", "0", "--candidate", "simulated:c")
    fork = completed("run", "--fork", tmp_path / "run", "--judge", "simulated:e", "--out", tmp_path / "fork")
    score = completed("score", tmp_path / "run", "--scorer", "linear")
    assert (fork.returncode, score.returncode) == (2, 2)
    assert b"no judge to replace" in fork.stderr
    assert b"no option '--scorer'" in score.stderr


def test_a_changed_second_set_or_pack_cannot_be_resumed(tmp_path: Path) -> None:
    other = make_items(tmp_path / "other.jsonl", 5)
    (tmp_path / "pack.yaml").write_text(PACK.read_text())
    options = ["--dataset", ITEMS, "-n", "3", "--against", other, "--method", "loss", "--pack", tmp_path / "pack.yaml"]
    probe(tmp_path / "run", *options, "--candidate", "simulated:c")
    make_items(other, 5, seed=2)
    (tmp_path / "pack.yaml").write_text(PACK.read_text() + "# read again\n")
    done = completed("resume", tmp_path / "run")
    assert done.returncode == 2
    assert b"changed since the run began: pack, against, prompts" in done.stderr


def test_an_endpoint_that_cannot_echo_fails_each_item_with_the_reason(chaos: Chaos, tmp_path: Path) -> None:
    model = chaos({"default": "no_echo"}).model("m", label="m")
    done = completed(
        *("run", "probe", "--dataset", ITEMS, "-n", "3", "--shots", "0", "--candidate", model, "--json"),
        *("--out", tmp_path / "run"),
    )
    assert done.returncode == 3
    one = orjson.loads(done.stdout)["candidates"]["m"]
    assert (one["failed"], one["failures"], one["accuracy"]) == (3, {"Rejected": 3}, {})
    assert all("echo with logprobs" in result["message"] for result in recorded(tmp_path / "run").values())
