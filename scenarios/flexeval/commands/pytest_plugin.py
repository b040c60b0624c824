"""The pytest plugin: ``pytest --viva suite.yaml`` runs a suite and has one test a threshold, and one for conversations.

The suite is run once, when its first test is; failures read like assertions. pytest loads this module at each start, so
it imports nothing of ours before a suite is asked for.
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
    """A threshold of the suite does not hold; the message is the check in a sentence."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--viva`` and what may be changed with it."""
    group = parser.getgroup("viva", "suites of conversations, metrics and thresholds")
    group.addoption("--viva", action="append", default=[], metavar="SUITE", help="run a suite; may be repeated")
    group.addoption("--viva-candidate", default=None, metavar="MODEL", help="system under test in place of the suite's")
    group.addoption("--viva-baseline", default=None, metavar="RUN", help="run folder that fall and rise compare with")
    group.addoption(
        "--viva-python-tools", action="append", default=[], metavar="MODULE|FILE.py", help="Python that suites may name"
    )
    group.addoption("--viva-out", default=None, metavar="FOLDER", help="where run folders go (default: runs)")


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add the suites' tests behind the others."""
    for name in config.getoption("--viva"):
        items.extend(SuiteNode.from_parent(session, name=Path(name).name, suite=name).collect())


class SuiteNode(pytest.Collector):
    """A suite; ``held`` is its run's results, there once its first test has run."""

    def __init__(self, suite: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.suite = suite
        self._results: SuiteAggregate | Exception | None = None

    def collect(self) -> Iterator[pytest.Item]:
        """One test for each threshold of each system, and one for the conversations.

        :raises pytest.UsageError: the suite cannot be read.
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
        yield ConversationsItem.from_parent(self, name="every conversation was held")

    def _settings(self) -> FlexEvalSettings:
        from viva.engine.permissions import grant, grant_typed

        from .suite import suite_settings

        grant(*self.config.getoption("--viva-python-tools"))
        candidate = self.config.getoption("--viva-candidate")
        grant_typed(candidate or "")
        baseline = self.config.getoption("--viva-baseline")
        return suite_settings(self.suite, {"candidate": candidate and [candidate], "baseline": baseline})

    def results(self) -> SuiteAggregate:
        """The results; the suite is run if it has not been.

        :raises VivaError: the run failed.
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
    """One threshold of one system."""

    def __init__(self, system: str, threshold: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._system, self._threshold = system, threshold

    def runtest(self) -> None:
        """:raises ThresholdBroken: it does not hold."""
        checks: list[ThresholdCheck] = self.parent.results().gate()
        own_checks = [check for check in checks if check.system == self._system and check.name == self._threshold]
        broken = [check.describe() for check in own_checks if check.broken]
        if broken:
            raise ThresholdBroken("\n    ".join(broken))


class ConversationsItem(_Item):
    """That every conversation was held."""

    def runtest(self) -> None:
        """:raises ThresholdBroken: some failed."""
        report = self.parent.results().report()
        failed = [
            f"{label}: {count} conversations failed: {reason}"
            for label, record in report["candidates"].items()
            for reason, count in record.get("failure_reasons", {}).items()
        ]
        if failed:
            raise ThresholdBroken("\n    ".join(failed))
