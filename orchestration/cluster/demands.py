"""What a part demands of a machine, for which model, and what of it is missing in a cluster.

What never belongs here: choosing a machine (Ray does), and asking Ray what its machines have (``ray_client``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..sweep.resources import Needs, label_of

Amounts = Mapping[str, float]  # by Ray's names: CPU, GPU, memory (bytes), and those that nodes were started with
_DEFAULT_CPUS = 1.0  # what Ray takes for a task that says nothing


@dataclass(frozen=True, slots=True)
class Demand:
    """``amounts`` is what one machine must have free, ``models`` the labels of the models that each amount is for; a
    CPU that no model asks for is the task's own.
    """

    amounts: dict[str, float]
    models: dict[str, list[str]] = field(default_factory=dict)

    def missing(self, machines: Sequence[Amounts]) -> str | None:
        """What no machine has, however idle it were, with the models that need it; None where one has all."""
        if any(_has_all(machine, self.amounts) for machine in machines):
            return None
        most = {name: max((machine.get(name, 0.0) for machine in machines), default=0.0) for name in self.amounts}
        lacking = [name for name, amount in self.amounts.items() if most[name] < amount]
        if not lacking:
            return f"no single machine has all of {', '.join(self._said(name) for name in self.amounts)}"
        said = [f"{self._said(name)}, and no machine has more than {_amount(name, most[name])}" for name in lacking]
        return "; ".join(said)

    def occupied(self, free: Amounts) -> str:
        """What is in use by others: the demanded amounts beside those that are free in the whole cluster."""
        said = [f"{self._said(name)}, free is {_amount(name, free.get(name, 0.0))}" for name in self.amounts]
        return "; ".join(said)

    def _said(self, name: str) -> str:
        of = self.models.get(name)
        who = f"for {', '.join(of)}" if of else "for the task itself"
        return f"{_named(name)} {_amount(name, self.amounts[name])} {who}"


def demand_of(models: Sequence[str], needs: Mapping[str, Needs]) -> Demand:
    """The sum of what models need that are loaded into one process; names of one label count once."""
    amounts: dict[str, float] = {}
    whose: dict[str, list[str]] = {}
    for label in dict.fromkeys(label_of(model) for model in models):
        for name, amount in needs[label].amounts().items() if label in needs else ():
            amounts[name] = amounts.get(name, 0.0) + amount
            whose.setdefault(name, []).append(label)
    if amounts.get("GPU", 0.0) > 1:  # Ray gives more than one as a whole
        amounts["GPU"] = float(-(-amounts["GPU"] // 1))
    if not any(label_of(model) in needs and needs[label_of(model)].num_cpus is not None for model in models):
        amounts["CPU"] = _DEFAULT_CPUS
    return Demand(amounts, whose)


def _has_all(machine: Amounts, wanted: Amounts) -> bool:
    return all(machine.get(name, 0.0) >= amount for name, amount in wanted.items())


def _named(name: str) -> str:
    return name if name in ("CPU", "GPU", "memory") else f"resource '{name}'"


def _amount(name: str, amount: float) -> str:
    return f"{amount / 2**30:.3g} GiB" if name == "memory" else f"{amount:g}"
