"""Load-test a judge from Python: does it give the same verdicts when many requests are in flight?

    python examples/judge_under_load.py

This file defines two judges; one of them calls everything a five when it is busy. Put names of real models in their
place.
"""

import asyncio
import hashlib
import json
from pathlib import Path

import viva
from viva.engine.permissions import grant
from viva.loadtest.load_report import report_of_test
from viva.loadtest.load_sentences import conclusions
from viva.loadtest.load_settings import LoadSettings
from viva.loadtest.run_load_test import new_load_test
from viva.loadtest.workload import WorkloadOptions


class Steady(viva.Backend):
    label, limit, in_flight = "steady", 1_000, 0

    async def generate(self, request: viva.Request) -> viva.Completion:
        self.in_flight += 1
        busy = self.in_flight > self.limit
        await asyncio.sleep(0.005)
        self.in_flight -= 1
        byte = hashlib.sha256(request.messages[-1].content.encode()).digest()[0]
        return viva.Completion(f"Rating: [[{5 if busy else 1 + byte % 10}]]")


class Tiring(Steady):
    label, limit = "tiring", 3


def main() -> None:
    system = {"role": "system", "content": 'Rate the answer from 1 to 10 in exactly this form: "[[rating]]".'}
    lines = []
    for number in range(60):
        user = {"role": "user", "content": f"Question {number}: why? Answer: because."}
        lines.append({"id": f"r{number}", "reader": "rating", "messages": [system, user]})
    Path("requests.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    grant(Path(__file__))  # the judges are in this file
    settings = LoadSettings(
        judges={name: f"python:{Path(__file__).resolve()}#{name}" for name in ("Steady", "Tiring")},
        concurrency=(2, 16),  # requests in flight; for requests per second use rates=(10, 40)
        requests=60,
        warm_up=0,
        cool_down=0,
    )
    launch = new_load_test(Path("runs/load"), "requests.jsonl", WorkloadOptions(), settings)
    test = asyncio.run(launch.run(lambda test: None))
    for sentence in conclusions(report_of_test(test, launch.work)):
        print(sentence)


if __name__ == "__main__":
    main()
