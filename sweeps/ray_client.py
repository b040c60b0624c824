"""Ray Core as used by a sweep: connection, tasks with resources, results, and resources of machines.

Ray is imported only when a sweep connects. Its usage statistics and dashboard stay off. Ray itself retries a task if
its worker or machine dies (`RAY_TASK_MAX_RETRIES`, default three).
"""

from __future__ import annotations

import logging
import os
import signal
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from viva.engine.errors import ClusterError, ConfigurationError

from .cluster_worker import TaskOrder, run_task
from .sweep_file import ModelResources, model_label

ResourceAmounts = Mapping[
    str, float
]  # amount by Ray's name: CPU, GPU, memory (bytes), and resources named when nodes were started
_DEFAULT_CPUS = 1.0  # Ray's default amounts for a task


@dataclass(frozen=True, slots=True)
class ResourceDemand:
    """Resources that one machine must have free for a task.

    `models` has, by resource, the labels of the models that need it; a CPU that no model requests is the task's own.
    """

    amounts: dict[str, float]
    models: dict[str, list[str]] = field(default_factory=dict)

    def missing(self, machines: Sequence[ResourceAmounts]) -> str | None:
        """Return the demand that no idle machine can meet, with the models that need it; None if a machine can."""
        if any(_has_all(machine, self.amounts) for machine in machines):
            return None
        largest = {name: max((machine.get(name, 0.0) for machine in machines), default=0.0) for name in self.amounts}
        insufficient = [name for name, amount in self.amounts.items() if largest[name] < amount]
        if not insufficient:
            return f"no single machine has all of {', '.join(self._describe(name) for name in self.amounts)}"
        messages = [
            f"{self._describe(name)}, and no machine has more than {_amount_text(name, largest[name])}"
            for name in insufficient
        ]
        return "; ".join(messages)

    def occupied(self, free: ResourceAmounts) -> str:
        """Describe each demanded amount and the amount that is free in the whole cluster."""
        messages = [f"{self._describe(name)}, {_amount_text(name, free.get(name, 0.0))} free" for name in self.amounts]
        return "; ".join(messages)

    def _describe(self, name: str) -> str:
        labels = self.models.get(name)
        purpose = f"for {', '.join(labels)}" if labels else "for the task itself"
        return f"{_resource_name(name)} {_amount_text(name, self.amounts[name])} {purpose}"


def total_demand(models: Sequence[str], needs: Mapping[str, ModelResources]) -> ResourceDemand:
    """Return the total demand of models in one process; models with the same label count once."""
    amounts: dict[str, float] = {}
    labels_by_resource: dict[str, list[str]] = {}
    for label in dict.fromkeys(model_label(model) for model in models):
        for name, amount in needs[label].amounts().items() if label in needs else ():
            amounts[name] = amounts.get(name, 0.0) + amount
            labels_by_resource.setdefault(name, []).append(label)
    if amounts.get("GPU", 0.0) > 1:  # above one, Ray accepts only whole numbers
        amounts["GPU"] = float(-(-amounts["GPU"] // 1))
    if not any(model_label(model) in needs and needs[model_label(model)].num_cpus is not None for model in models):
        amounts["CPU"] = _DEFAULT_CPUS
    return ResourceDemand(amounts, labels_by_resource)


def _has_all(machine: ResourceAmounts, amounts: ResourceAmounts) -> bool:
    return all(machine.get(name, 0.0) >= amount for name, amount in amounts.items())


def _resource_name(name: str) -> str:
    return name if name in ("CPU", "GPU", "memory") else f"resource '{name}'"


def _amount_text(name: str, amount: float) -> str:
    return f"{amount / 2**30:.3g} GiB" if name == "memory" else f"{amount:g}"


RAY_EXTRA = "cluster"


class RayClient:
    """Connection to Ray at `address`, as in `ray.init`.

    `address` is `auto` (the running cluster that `RAY_ADDRESS` names, or that contains this machine), `local` (Ray is
    started on this machine until `close`), or HOST:PORT.
    """

    def __init__(self, address: str) -> None:
        """Connect; call it in the main thread, because processes that Ray starts end with the thread that started them.

        Raises:
            ConfigurationError: Ray is not installed, or nothing answers at the address.
        """
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
        except ImportError:
            raise ConfigurationError(
                f"--ray: needs the package ray; install it with: pip install 'viva-exam[{RAY_EXTRA}]'"
            ) from None
        self._ray: Any = ray  # Ray is partly untyped
        handler = signal.getsignal(signal.SIGTERM)
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
            signal.signal(signal.SIGTERM, handler)  # Ray installs its own handler
        self._task = ray.remote(run_task)

    def _connect(self, address: str) -> None:
        options: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
        self._ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)

    def close(self) -> None:
        """Disconnect from the cluster; Ray ends our running tasks."""
        self._ray.shutdown()

    def submit(self, order: TaskOrder, demand: ResourceDemand, name: str) -> Any:
        """Submit a task to a machine that can meet its demand; return the reference to its result."""
        amounts = dict(demand.amounts)
        options = {
            "num_cpus": amounts.pop("CPU", 0.0),
            "num_gpus": amounts.pop("GPU", 0.0),
            "memory": amounts.pop("memory", None),
            "resources": amounts or None,
        }
        set_options = {option: value for option, value in options.items() if value is not None}
        return self._task.options(name=name, **set_options).remote(order)

    def finished(self, tasks: Sequence[Any]) -> list[Any]:
        """Return the tasks that have a result or have finally failed, without waiting."""
        if not tasks:
            return []
        ready: list[Any] = self._ray.wait(list(tasks), num_returns=len(tasks), timeout=0, fetch_local=False)[0]
        return ready

    def result(self, task: Any) -> dict[str, Any]:
        """Return the result of a finished task.

        Raises:
            ClusterError: The task failed: its workers died as often as Ray retries, it was cancelled, or our code has a
                fault.
        """
        from ray.exceptions import RayError, RayTaskError

        try:
            result: dict[str, Any] = self._ray.get(task)
        except RayTaskError as error:
            raise ClusterError(f"the task failed: {type(error.cause).__name__}: {_first_line(error.cause)}") from None
        except RayError as error:
            message = f"{type(error).__name__}: {_first_line(error)}"
            raise ClusterError(f"Ray could not finish the task: {message}") from None
        return result

    def cancel(self, task: Any, *, force: bool = False) -> None:
        """Withdraw a waiting task; with `force`, also end a running one."""
        self._ray.cancel(task, force=force)

    def machines(self) -> list[ResourceAmounts]:
        """Return the total resources of each live machine."""
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]

    def free(self) -> ResourceAmounts:
        """Return the resources that are free in the whole cluster."""
        amounts: dict[str, float] = self._ray.available_resources()
        return amounts


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__
