"""What models need of a machine that loads them: GPUs, CPUs, memory, and resources with names of their own.

The words are Ray's, because a cluster of Ray is where they count; one process on one machine ignores them.
What never belongs here: how many lanes a model has (options of its name), and machines (``orchestration.cluster``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pydantic import BaseModel, ConfigDict, Field, StrictInt

from viva.engine.errors import ConfigurationError
from viva.scenarios.models import model_labels

_OF_RAY = ("CPU", "GPU", "memory", "object_store_memory")


class Needs(BaseModel):
    """``memory`` is in bytes; ``num_gpus`` may be a fraction below 1; ``resources`` are those that nodes were started
    with (``ray start --resources``). What is not said is left to Ray: one CPU a task.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    num_cpus: float | None = Field(default=None, ge=0)
    num_gpus: float | None = Field(default=None, ge=0)
    memory: StrictInt | None = Field(default=None, ge=1)
    resources: dict[str, float] = {}

    def amounts(self) -> dict[str, float]:
        """The amount of each resource, by Ray's name for it; zeros are left out."""
        own = {"CPU": self.num_cpus, "GPU": self.num_gpus, "memory": self.memory}
        return {name: float(amount) for name, amount in [*own.items(), *self.resources.items()] if amount}


def check_names(needs: Mapping[str, Needs], models: Iterable[str], shown: str) -> None:
    """See that each entry is of a model of the sweep, by its label, and that amounts are such as Ray takes.

    :raises ConfigurationError: it is not; the message names the entry.
    """
    labels = dict.fromkeys(label_of(model) for model in models)
    for label, need in needs.items():
        where = f"{shown}: resources.{label}"
        if label not in labels:
            raise ConfigurationError(f"{where}: no model of this sweep is called that; they are {', '.join(labels)}")
        for name, amount in need.resources.items():
            if name in _OF_RAY:
                raise ConfigurationError(f"{where}.resources.{name}: write num_cpus, num_gpus or memory beside it")
            if amount < 0:
                raise ConfigurationError(f"{where}.resources.{name}: expected 0 or more, found {amount:g}")
        if (need.num_gpus or 0) > 1 and need.num_gpus != int(need.num_gpus or 0):
            raise ConfigurationError(f"{where}.num_gpus: above 1 it is a whole number, found {need.num_gpus:g}")


def label_of(model: str) -> str:
    """A model's label, as tables and ``resources`` have it."""
    [label] = model_labels([model])
    return label
