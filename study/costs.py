"""What a study's models used: tokens of one model's interviews, and what one, ten or a hundred models would cost.

KIEval, appendix E: judging one answer at a time makes costs linear in the number of models, so the projection is the
mean over the models of the study times their number (Table 9); tokens by role and dataset are Table 11.
What never belongs here: prices (they are in the models' names) and calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .cells import Filled
from .figures import rounded

MODELS = (1, 10, 100)
_COUNTS = ("calls", "prompt_tokens", "completion_tokens")


def costs(cells: Sequence[Filled]) -> dict[str, Any]:
    """Tokens by dataset and role for one model on average, and the projection.

    ``models`` and ``interviews`` say what the means are over: candidates that have a finished interview.
    """
    read = [one for one in cells if one.talks is not None and one.result is not None and one.result["interviews"]]
    by_dataset = {name: _mean_usage([o for o in read if o.cell.dataset == name]) for name in _datasets(read)}
    whole = _mean_usage(read)
    probes = [one for one in cells if one.recall is not None and one.ended]
    return {
        "models": len({one.cell.candidate for one in read}),
        "interviews": sum(one.result["interviews"] for one in read if one.result is not None),
        "seeds": sorted({one.cell.seed for one in read}),
        "datasets": by_dataset,
        "overall": whole,
        "probes": _mean_usage(probes),
        "priced": any(used["cost"] is not None for used in whole.values()),
        "projected": [
            {"models": count, "roles": {role: _times(used, count) for role, used in whole.items()}} for count in MODELS
        ],
    }


def _datasets(cells: Sequence[Filled]) -> list[str]:
    return list(dict.fromkeys(one.cell.dataset for one in cells))


def _mean_usage(cells: Sequence[Filled]) -> dict[str, dict[str, float | None]]:
    """By role, what one model used: totals over its cells, the mean over the models that have any.

    What a fork repeats from another run was used there.
    """
    models = {one.cell.candidate for one in cells}
    totals: dict[str, dict[str, float | None]] = {}
    for one in cells:
        for role, used in one.usage.items():
            if one.cell.repeats(role):
                continue
            total = totals.setdefault(role, dict.fromkeys((*_COUNTS, "cost"), 0.0))
            for name, value in used.items():
                so_far = total[name]
                total[name] = None if value is None or so_far is None else so_far + value
    return {
        role: {name: rounded(None if value is None else value / len(models)) for name, value in total.items()}
        for role, total in sorted(totals.items())
    }


def _times(used: dict[str, float | None], count: int) -> dict[str, float | None]:
    return {name: rounded(None if value is None else value * count) for name, value in used.items()}
