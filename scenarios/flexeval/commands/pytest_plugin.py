"""Pytest plugin: `pytest --viva suite.yaml` runs a suite as one test per threshold, and one for all conversations.

The suite runs once, with its first test. pytest loads this module at every start, so imports of viva are deferred.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ..gate import ThresholdCheck
    from ..scenario import FlexEvalSettings
    from ..suite_report import SuiteAggregate


class ThresholdBroken(Exception):
    """Failure of a test: a threshold of the suite does not hold, or conversations failed."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--viva` and its options."""
    group = parser.getgroup("viva", "suites of conversations, metrics and thresholds")
    group.addoption("--viva", action="append", default=[], metavar="SUITE", help="run this suite (repeatable)")
    group.addoption("--viva-candidate", default=None, metavar="MODEL", help="system under test instead of the suite's")
    group.addoption(
        "--viva-baseline", default=None, metavar="RUN", help="baseline run folder for thresholds with fall or rise"
    )
    group.addoption(
        "--viva-python-tools",
        action="append",
        default=[],
        metavar="MODULE|FILE.py",
        help="Python code that suites may name",
    )
    group.addoption("--viva-out", default=None, metavar="FOLDER", help="where run folders go (default: runs)")


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Append the suites' tests to all other tests."""
    for name in config.getoption("--viva"):
        items.extend(SuiteNode.from_parent(session, name=Path(name).name, suite=name).collect())


class SuiteNode(pytest.Collector):
    """Collector of a suite's tests."""

    def __init__(self, suite: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.suite = suite
        self._results: SuiteAggregate | Exception | None = None

    def collect(self) -> Iterator[pytest.Item]:
        """Yield a test per threshold and system, and one for the conversations.

        Raises:
            pytest.UsageError: The suite cannot be read.
        """
        from viva.engine.errors import VivaError
        from viva.orchestration.prepared_run import PreparedRun

        from ..scenario import SCENARIO
        from ..spec import Suite

        try:
            prepared = PreparedRun(SCENARIO, self._settings())
        except VivaError as error:
            raise pytest.UsageError(f"--viva {self.suite}: {error}") from None
        thresholds = [threshold.name for threshold in Suite.model_validate(prepared.opened.records["suite"]).thresholds]
        for label in prepared.lineups:
            for name in dict.fromkeys(thresholds):
                yield ThresholdItem.from_parent(self, name=f"{label}: {name}", system=label, threshold=name)
        yield ConversationsItem.from_parent(self, name="every conversation finished")

    def _settings(self) -> FlexEvalSettings:
        from viva.engine.permissions import grant, grant_typed

        from .suite import suite_settings

        grant(*self.config.getoption("--viva-python-tools"))
        candidate = self.config.getoption("--viva-candidate")
        grant_typed(candidate or "")
        baseline = self.config.getoption("--viva-baseline")
        return suite_settings(self.suite, {"candidate": candidate and [candidate], "baseline": baseline})

    def results(self) -> SuiteAggregate:
        """Return the results, running the suite on the first call.

        Raises:
            VivaError: The run failed.
        """
        if self._results is None:
            self._results = self._run()
        if isinstance(self._results, Exception):
            raise self._results
        return self._results

    def _run(self) -> SuiteAggregate | Exception:
        from viva.engine.errors import VivaError
        from viva.orchestration.folders import fresh_folder
        from viva.orchestration.launch import new_run, recorded_results

        from ..result_files import write_results
        from ..scenario import SCENARIO
        from .suite_runs import SoftBudget

        out = self.config.getoption("--viva-out")
        try:
            launch = new_run(SCENARIO, self._settings(), fresh_folder("suite", Path(out) if out else Path("runs")))
            SoftBudget(launch)
            outcome = launch.clock.run(launch.run)
            if outcome.error is not None:
                return outcome.error
            write_results(launch.folder.path)
            return recorded_results(launch.folder)  # type: ignore[return-value]
        except VivaError as error:
            return error


class _Item(pytest.Item):
    """A test of a suite."""

    parent: SuiteNode

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return Path(self.parent.suite), None, f"{self.parent.name}: {self.name}"

    def repr_failure(self, excinfo: Any, style: Any = None) -> Any:
        from viva.engine.errors import VivaError

        if isinstance(excinfo.value, ThresholdBroken | VivaError):
            return f"E   {excinfo.value}"
        return super().repr_failure(excinfo, style)


class ThresholdItem(_Item):
    """Test of one threshold for one system."""

    def __init__(self, system: str, threshold: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._system, self._threshold = system, threshold

    def runtest(self) -> None:
        """Fail if the threshold does not hold."""
        checks: list[ThresholdCheck] = self.parent.results().gate()
        own_checks = [check for check in checks if check.system == self._system and check.name == self._threshold]
        broken = [check.describe() for check in own_checks if check.broken]
        if broken:
            raise ThresholdBroken("\n    ".join(broken))


class ConversationsItem(_Item):
    """Test that every conversation finished."""

    def runtest(self) -> None:
        """Fail if any conversation failed."""
        report = self.parent.results().report()
        failed = [
            f"{label}: {count} conversations failed: {reason}"
            for label, record in report["candidates"].items()
            for reason, count in record.get("failure_reasons", {}).items()
        ]
        if failed:
            raise ThresholdBroken("\n    ".join(failed))
