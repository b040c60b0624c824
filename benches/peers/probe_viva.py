"""Our probe as a program would run it, journal and report included; prints one line of JSON.

``--questions FILE`` also writes what was asked, rendered, one question a line, for a peer to be asked the same.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

from viva.engine.event_loop import gc_tuned
from viva.engine.journal_reader import History
from viva.engine.run_folder import RunFolder
from viva.orchestration.launch import new_run, recorded_results
from viva.scenarios.probes.few_shot import Shots
from viva.scenarios.probes.probe import ProbeSettings
from viva.scenarios.probes.probe_prompts import TEMPLATES, Questions
from viva.scenarios.probes.scenario import SCENARIO


def main() -> dict[str, Any]:
    """One measurement."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", help="a model's name")
    parser.add_argument("dataset")
    parser.add_argument("count", type=int)
    parser.add_argument("--method", choices=["letter", "text"], default="letter")
    parser.add_argument("--questions", type=Path)
    options = parser.parse_args()
    settings = ProbeSettings(
        dataset=options.dataset, candidate=[options.model], method=[options.method], n=options.count
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        launch = new_run("probe", settings, path)
        began = time.perf_counter()
        with gc_tuned():
            asyncio.run(launch.run())
        report = recorded_results(RunFolder.open(path)).report()
        wall = time.perf_counter() - began
        [figures] = report["candidates"].values()
        with History(path / "journal.sqlite") as history:
            sums = {
                conversation.result["item"]: conversation.result[options.method]["logprobs"]
                for conversation in history.ended()
            }
    prepared = SCENARIO.prepare(settings)
    items = [task.item for task in prepared.tasks]
    if options.questions is not None:
        shots = Shots.from_record(prepared.records["shots"]) if "shots" in prepared.records else None
        _write(options.questions, shots, items, options.method)
    return {
        "wall_s": wall,
        "items_per_s": len(items) / wall,
        "accuracy": {name: accuracy["value"] for name, accuracy in figures["accuracy"].items()},
        "logprobs": [sums[item.id] for item in items],
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _write(path: Path, shots: Shots | None, items: list[Any], method: str) -> None:
    questions = Questions(TEMPLATES.open("probe"))
    with path.open("w") as file:
        for item in items:
            examples = shots.for_item(item) if shots is not None else []
            reading = (questions.by_letter if method == "letter" else questions.by_text)(item, examples)
            line = {"context": reading.shared + reading.context, "gold": item.answer}
            line["choices"] = [text.removeprefix(" ") for text in reading.continuations]
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    print(json.dumps(main()))
