"""What would be different if: the same sweep in other worlds, each compared with the plan under the same draws.

What never belongs here: the plan itself, and words beyond a row's name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from viva.engine.errors import JournalError
from viva.engine.folder import RunFolder
from viva.engine.history import History
from viva.scenarios.registry import scenario
from viva.scoring.planning import items_for_half_width
from viva.scoring.stream import Mean

from ..sweep.parts import part_of
from .plan import Outlook, Plan
from .stations import bounds_of
from .summary import holds, named

_SIMULATIONS = 3
_WATCHED = 2  # times as many items as for an interval that is looked at once (``scoring.planning``)
_HALF_WIDTH = 5.0  # points, where the file has no rule
_FEWEST_SCORES = 10


@dataclass(slots=True, frozen=True)
class WhatIf:
    """A change and what it would make of the plan: seconds and cost (None where it is not known)."""

    change: str
    seconds: float
    cost: float | None


def what_ifs(plan: Plan) -> list[WhatIf]:
    """Changes that suggest themselves, each with the plan's figures times what it does under the same draws."""
    if not plan.cells:
        return []
    few = min(_SIMULATIONS, plan.simulations)
    base = plan.expected(plan.world, few)
    slots = plan.world.slots
    worlds = [(f"concurrency: {number} in place of {slots}", replace(plan.world, slots=number))
              for number in (2 * slots, max(1, slots // 2))]  # fmt: skip
    for hold in holds(plan.outlook.courses):
        if hold.model not in plan.models:  # of the sweep itself, or of the processor
            continue
        bounds = bounds_of(plan.world.renamed.get(hold.model, hold.model))
        if hold.bound in bounds:
            for times, words in ((2.0, "twice"), (0.5, "half")):
                change = f"{words} {named(hold.bound, bounds)} of {hold.model.partition('?')[0]}"
                worlds.append((change, plan.widened(hold.model, hold.bound, times)))
    rows = [_row(plan, change, base, plan.expected(world, few)) for change, world in worlds]
    half = {name: math.ceil(cell.left / 2) for name, cell in plan.cells.items()}
    rows.append(_row(plan, "half of the conversations", base, plan.expected(plan.world, few, half)))
    stopped = _early(plan)
    if stopped is not None:
        width, left = stopped
        change = f"until: {{half_width: {width:g}}}, as far as the scores so far tell"
        rows.append(_row(plan, change, base, plan.expected(plan.world, few, left)))
    cost = None if plan.outlook.cost is None else plan.outlook.cost.value
    if cost:
        rows.append(WhatIf("half of all prices", plan.outlook.seconds.value, cost / 2))
    return rows


def _row(plan: Plan, change: str, base: Outlook, other: Outlook) -> WhatIf:
    seconds = plan.outlook.seconds.value * _ratio(other.seconds.value, base.seconds.value)
    cost = None
    if plan.outlook.cost is not None and base.cost is not None and other.cost is not None:
        cost = plan.outlook.cost.value * _ratio(other.cost.value, base.cost.value)
    return WhatIf(change, seconds, cost)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 1.0


def _early(plan: Plan) -> tuple[float, dict[str, int]] | None:
    """The half width, and the conversations to come under a rule that ends cells at it; None where scores are few."""
    until = plan.file.until
    width = _HALF_WIDTH if until is None or until.half_width is None else until.half_width
    level = 0.95 if until is None else until.level
    left: dict[str, int] = {}
    for run in plan.sweep.runs:
        cell = run.cell
        if cell.name not in plan.cells or not part_of(cell.scenario).scored:
            continue
        score_of = scenario(cell.scenario).score_of(cell.settings)
        if score_of is None or not run.done:
            return None
        scores = Mean()
        try:
            with History(RunFolder.open(plan.sweep.out / cell.name).journal) as history:
                for ended in history.ended():
                    score = None if ended.failed else score_of(ended.result)
                    if score is not None:
                        scores.add(score)
        except JournalError:
            return None
        if scores.n < _FEWEST_SCORES or scores.variance is None:
            return None
        needed = _WATCHED * items_for_half_width(width, scores.variance, level)
        left[cell.name] = max(1, min(plan.cells[cell.name].left, needed - run.done))
    return (width, left) if left else None
