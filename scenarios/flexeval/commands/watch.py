"""``viva suite watch``: score the new lines of a growing log until it is stopped.

What never belongs here: following the log (``watcher``).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer


def watch(
    log: Annotated[Path, typer.Argument(help="Growing log: OpenTelemetry spans, OpenAI requests or dialogs, by line.")],
    suite: Annotated[str, typer.Option("--suite", help="The suite whose metrics and thresholds count.")],
    out: Annotated[Path | None, typer.Option("--out", help="Run folder to make, or to go on with.")] = None,
    every: Annotated[float, typer.Option("--every", min=0.05, help="Seconds between two looks at the log.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Score what is there, and leave.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON when it ends.")] = False,
) -> None:  # fmt: skip
    """Score new lines of a growing log as they come; Ctrl-C ends it with the report.

    The conversations are scored as they stand; of one that goes on, what is new. The same command with the same --out
    goes on where it stopped.
    """
    from viva.cli.exit_codes import FAILED
    from viva.cli.output import print_json, print_tables
    from viva.cli.signals import obeying
    from viva.engine.collector import tuned_collector
    from viva.orchestration.folders import fresh_folder
    from viva.orchestration.launch import recorded_results

    from ..results import write_results
    from .run import verdict

    path = (out or fresh_folder("watch")).absolute()
    watcher, show = _watcher(log, suite, path)
    print(f"viva: watching {log}; run folder: {path}", file=sys.stderr)
    with tuned_collector():
        show.clock.run(lambda: obeying(lambda ready: watcher.follow(None if once else every, ready), show))
    for note in watcher.notes:
        print(f"viva: note: {note}", file=sys.stderr)
    write_results(path)
    aggregate: Any = recorded_results(show.folder)
    if json:
        print_json(aggregate.report())
    else:
        print_tables(aggregate.tables())
    if verdict(aggregate, None, path):
        sys.exit(FAILED)


class _Display:
    """Says after each batch what has come, and once that a threshold is broken by now."""

    def __init__(self, folder: Any, clock: Any) -> None:
        from viva.orchestration.launch import empty_results
        from viva.orchestration.run_progress import RunProgress

        self.folder, self.clock = folder, clock
        self.note = ""
        self._aggregate: Any = empty_results(folder)
        self._tally = RunProgress(self._aggregate)
        self._told: set[str] = set()

    def hear(self, event: Any) -> None:
        """The listener of every batch."""
        self._tally.hear(event)

    def batch_done(self, count: int) -> None:
        """Say what a batch has brought."""
        tally = self._tally
        said = f"{count:,} new, {tally.done:,} in all" + (f", {tally.failed:,} failed" if tally.failed else "")
        print(f"viva: {said}; {self._aggregate.headline()}", file=sys.stderr, flush=True)
        for check in self._aggregate.gate():
            name = f"{check.system} {check.name}"
            if check.broken and check.found is not None and name not in self._told:
                self._told.add(name)
                print(f"viva: BROKEN: {check.told()}", file=sys.stderr, flush=True)
            elif not check.broken and name in self._told:
                self._told.discard(name)
                print(f"viva: holds again: {check.told()}", file=sys.stderr, flush=True)

    async def show(self) -> None:
        """Nothing moves between batches."""
        import anyio

        await anyio.sleep_forever()


def _watcher(log: Path, suite: str, path: Path) -> tuple[Any, _Display]:
    """The watcher of a new folder, or of one that goes on.

    :raises ConfigurationError: the suite is wrong, or the folder holds another run.
    """
    from viva.engine.clock import RealClock
    from viva.engine.folder import RunFolder
    from viva.orchestration.launch import check_settings, check_unchanged
    from viva.orchestration.prepared_run import PreparedRun

    from ..scenario import SCENARIO
    from .run import suite_settings
    from .watcher import SPOOL, Watcher

    settings = suite_settings(suite, {"watched": str(path / SPOOL)})
    prepared = PreparedRun(SCENARIO, settings)
    if (path / "manifest.json").exists():
        folder = RunFolder.open(path)
        check_settings(folder, SCENARIO.name, settings)
        check_unchanged(folder, prepared)
    else:
        folder = RunFolder.create(path, prepared.manifest())
    clock = RealClock()
    display = _Display(folder, clock)
    return Watcher(log, folder, prepared, clock, display.hear, display.batch_done), display
