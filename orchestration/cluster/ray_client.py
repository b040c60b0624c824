"""Ray Core as a sweep uses it: connected, tasks with resources, their results, what the machines have.

Ray is imported when a sweep connects; nobody else pays for it. Its usage statistics and its dashboard stay off. Tasks
are retried by Ray itself where a worker or a machine dies (``RAY_TASK_MAX_RETRIES``, three times by default).
What never belongs here: what tasks do (``task``), and which machine runs them (Ray decides).
"""

from __future__ import annotations

import logging
import os
import signal
import warnings
from collections.abc import Sequence
from typing import Any

from viva.engine.errors import ClusterError, ConfigurationError

from .demands import Amounts, Demand
from .task import Order, hold

EXTRA = "cluster"


class RayClient:
    """A connection to Ray at ``address``, as ``ray.init`` has it: ``auto`` is the running cluster that ``RAY_ADDRESS``
    names or that this machine is part of, ``local`` starts Ray on this machine until ``close``, else HOST:PORT.
    """

    def __init__(self, address: str) -> None:
        """Connect. In the main thread: processes that Ray starts end with the thread that started them.

        :raises ConfigurationError: Ray is not installed, or nothing answers at the address.
        """
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
        except ImportError:
            raise ConfigurationError(
                f"--ray: needs the package ray; install it with: pip install 'viva-exam[{EXTRA}]'"
            ) from None
        self._ray: Any = ray  # parts of it are not typed
        obeyed = signal.getsignal(signal.SIGTERM)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._connect(address)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            raise ConfigurationError(
                f"--ray {address}: cannot connect: {_first_line(error)}; start a cluster with `ray start --head`, or "
                "use --ray local"
            ) from None
        finally:
            signal.signal(signal.SIGTERM, obeyed)  # Ray puts one of its own there
        self._hold = ray.remote(hold)

    def _connect(self, address: str) -> None:
        how: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
        self._ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **how)

    def close(self) -> None:
        """Leave the cluster; tasks of ours that still run are ended by Ray."""
        self._ray.shutdown()

    def submit(self, order: Order, demand: Demand, name: str) -> Any:
        """Have Ray run a part where there is what it demands; returns the reference of its result."""
        rest = dict(demand.amounts)
        how = {
            "num_cpus": rest.pop("CPU", 0.0),
            "num_gpus": rest.pop("GPU", 0.0),
            "memory": rest.pop("memory", None),
            "resources": rest or None,
        }
        given = {option: value for option, value in how.items() if value is not None}
        return self._hold.options(name=name, **given).remote(order)

    def finished(self, tasks: Sequence[Any]) -> list[Any]:
        """Those of some tasks that have a result or have failed for good; does not wait."""
        if not tasks:
            return []
        ready: list[Any] = self._ray.wait(list(tasks), num_returns=len(tasks), timeout=0, fetch_local=False)[0]
        return ready

    def result(self, task: Any) -> dict[str, Any]:
        """What a finished task has given back.

        :raises ClusterError: it has failed: its workers died as often as Ray tries, it was cancelled, or our own code
            has a fault.
        """
        from ray.exceptions import RayError, RayTaskError

        try:
            found: dict[str, Any] = self._ray.get(task)
        except RayTaskError as error:
            raise ClusterError(f"the task failed: {type(error.cause).__name__}: {_first_line(error.cause)}") from None
        except RayError as error:
            said = f"{type(error).__name__}: {_first_line(error)}"
            raise ClusterError(f"Ray could not bring the task to its end: {said}") from None
        return found

    def cancel(self, task: Any, *, force: bool = False) -> None:
        """Withdraw a task that waits for resources; with ``force`` end one that runs, at once."""
        self._ray.cancel(task, force=force)

    def machines(self) -> list[Amounts]:
        """What each living machine of the cluster has in all."""
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]

    def free(self) -> Amounts:
        """What is free in the cluster as a whole."""
        found: dict[str, float] = self._ray.available_resources()
        return found


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__
