"""How conversations of a fork end: where the recorded one is over, `transcript`, and it is counted as such."""

from __future__ import annotations

from pathlib import Path

import orjson
from command import viva
from study_runs import interviewed


def test_a_forks_ends_are_among_the_reasons(tmp_path: Path) -> None:
    # The run's evaluator ends talks early; the fork's is never readable, so that talks would go on, but they are over.
    run = interviewed(tmp_path / "run", "simulated:c?knowledge=0.2", evaluator="simulated:e?noise=0")
    mute = ["--judge", "simulated:mute?malformed=1"]
    done = viva("run", "--fork", run, "--out", tmp_path / "fork", "--json", *mute)
    assert done.returncode == 0, done.stderr
    one = orjson.loads(done.stdout)["candidates"]["c"]
    assert one["ends"]["transcript"] > 0
    assert one["stop_reasons"]["transcript"] == one["ends"]["transcript"]
    assert sum(one["stop_reasons"].values()) == one["interviews"] - one["ends"].get("rounds", 0)
