"""FlexEval on finished conversations, run by an interpreter that has ``python-flexeval``: seconds and memory as JSON.

Its four function metrics are those that the bench has ours compute: the length of each turn, its reading ease, whether
it is the assistant's, and its tool calls.
"""

from __future__ import annotations

import argparse
import json
import logging
import resource
import sqlite3
import time
from importlib.metadata import version
from pathlib import Path

METRICS = ("string_length", "flesch_reading_ease", "is_role", "count_tool_calls")


def main() -> None:
    """Run the evaluation once and print the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("conversations", type=Path)
    parser.add_argument("database", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    import flexeval
    from flexeval.schema import Config, Eval, EvalRun, FileDataSource, FunctionItem, Metrics

    logging.disable(logging.CRITICAL)
    items = [FunctionItem(name=name, kwargs={"role": "assistant"} if name == "is_role" else {}) for name in METRICS]
    run = EvalRun(
        data_sources=[FileDataSource(path=options.conversations)],
        database_path=options.database,
        eval=Eval(metrics=Metrics(function=items)),
        config=Config(max_n_conversation_threads=10_000_000, max_workers=options.workers),
    )
    began, used = time.perf_counter(), time.process_time()
    flexeval.run(run)
    seconds, cpu = time.perf_counter() - began, time.process_time() - used
    query = "SELECT evaluation_name, COUNT(*), SUM(metric_value) FROM metric GROUP BY evaluation_name"
    totals = {name: [count, total] for name, count, total in sqlite3.connect(options.database).execute(query)}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    line = {"seconds": seconds, "cpu": cpu, "peak_mb": peak, "values": totals, "version": version("python-flexeval")}
    print(json.dumps(line))


if __name__ == "__main__":
    main()
