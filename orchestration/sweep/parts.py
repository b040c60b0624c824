"""What a sweep can do with its candidates: a part for each registered scenario, by the name that its file gives it.

What never belongs here: the file itself (``file``) and cells (``cells``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from viva.scenarios.contract import Scenario, judge_role, many_role
from viva.scenarios.registry import AnyScenario, scenarios


@dataclass(frozen=True, slots=True)
class SweepPart:
    """``name`` is the file's field; ``candidate`` the setting of the models that are compared."""

    name: str
    scenario: AnyScenario
    candidate: str

    @property
    def of_the_grid(self) -> dict[str, str]:
        """The settings that the grid itself decides on, and the file's fields for them."""
        named = {self.scenario.data: "datasets", self.candidate: "candidates"}
        return named | {"seed": "seeds", "concurrency": "concurrency", "patience": "patience", "chaos": "chaos"}

    @property
    def fields(self) -> set[str]:
        """The names of its settings."""
        return set(self.scenario.settings.model_fields)

    def judge(self, given: dict[str, Any]) -> str | None:
        """The setting of the model that judges under these settings; None where nobody does."""
        settings = self.scenario.settings.model_construct(**given)
        role = judge_role(self.scenario.roles_of(settings))
        return None if role is None else role.name

    @property
    def scored(self) -> bool:
        """Whether a rule may end its runs early: they have a score for each conversation."""
        return type(self.scenario).score_of is not _NO_SCORE


_NO_SCORE = Scenario.score_of


@cache
def parts() -> dict[str, SweepPart]:
    """All parts by name; those without a judge first, for they cost least."""
    found = [which for which in scenarios() if sum(role.many for role in which.roles) == 1]
    found.sort(key=lambda which: (judge_role(which.roles) is not None, which.name))
    named = [(which.plural or which.name, which) for which in found]
    return {name: SweepPart(name, which, many_role(which.roles).name) for name, which in named}


def part_of(scenario: str) -> SweepPart:
    """The part of a scenario.

    :raises ValueError: there is none.
    """
    for part in parts().values():
        if part.scenario.name == scenario:
            return part
    raise ValueError(f"unknown scenario '{scenario}'")
