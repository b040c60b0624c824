"""A constant load by guidellm, in an environment of its own (``make guidellm``): its percentiles and what CPU it took.

Requests are given to it as a file, so that it needs no tokenizer and no network.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from running import ROOT, PeerFailed

GUIDELLM = ROOT / ".peers" / "guidellm" / "bin" / "guidellm"


def guidellm_figures(root: str, rate: float, count: int, percentiles: Sequence[str]) -> dict[str, float]:
    """Send so many requests, ``rate`` a second, to the endpoint at ``root``.

    :returns: seconds by ``percentiles`` (``p95``) from the dispatch, with ``due_`` before the name from when requests
        were due, and ``cpu``: CPU seconds of all its processes. :raises PeerFailed: it did not end well.
    """
    with tempfile.TemporaryDirectory() as folder:
        requests, report = Path(folder) / "asked.jsonl", Path(folder) / "report.json"
        requests.write_text(
            "".join(json.dumps({"prompt": f"Judge answer {number}."}) + "\n" for number in range(count))
        )
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [
                str(GUIDELLM), "run", "--disable-console",
                "--backend", f"kind=openai_http,target={root},model=judge,max_tokens=16",
                "--profile", f"kind=constant,rate={rate:g}",
                "--constraint", f"kind=max_requests,count={count}",
                "--data", f"kind=json_file,path={requests}",
                "--output", f"kind=json,path={report}",
            ],
            capture_output=True, text=True, check=False, env=os.environ | {"HF_HUB_OFFLINE": "1"},
        )  # fmt: skip
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode or not report.exists():
            raise PeerFailed(f"guidellm ended with {done.returncode}:\n{(done.stderr or done.stdout).strip()[-1500:]}")
        [benchmark] = json.loads(report.read_bytes())["benchmarks"]
    latency, due = (
        benchmark["metrics"][name]["successful"]["percentiles"]
        for name in ("request_latency", "request_scheduled_latency")
    )
    return {
        "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        **{name: float(latency[name]) for name in percentiles},
        **{f"due_{name}": float(due[name]) for name in percentiles},
    }
