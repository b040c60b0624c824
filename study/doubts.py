"""What a reader should know of a study's figures before trusting them, as notes.

What never belongs here: in what cells differ (``sources``), and computing figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from viva.reports.text import percent
from viva.scenarios.kieval.interviews import MOST_UNANSWERED
from viva.scoring.signflips import MOST

from .following import FIRST_ANSWER

_LEVEL = 0.05
_NAMED = 5  # pairs; of more the note says how many


def doubts(following: Mapping[str, Any], compared: Sequence[Mapping[str, Any]]) -> list[str]:
    """Models that answer too seldom to be set beside others, and pairs whose p-values rest on few items."""
    answers = "first answers" if following["accuracy"] == FIRST_ANSWER else "generated answers"
    told = [
        f"{percent(one['unanswered_rate'])} of the {answers} of '{one['model']}' on '{one['dataset']}' name no choice "
        f"(more than {100 * MOST_UNANSWERED:.0f}%): its accuracy, which counts them as not right, is left out of "
        "correlations and lines"
        for one in following["left_out"]
    ]
    few = [one for one in compared if one["p"] is not None and one["n"] <= MOST]
    if few:
        told.append(
            f"{len(few)} of {len(compared)} comparisons rest on {MOST} items or fewer: their p counts how often chance "
            "gives such a difference if the two could be exchanged on each item, and is too small where one of them "
            "has few and large losses"
        )
    unsure = [one for one in few if one["p"] < _LEVEL and one["difference"]["low"] <= 0 <= one["difference"]["high"]]
    if unsure:
        named = [f"{one['first']} and {one['second']} on {one['dataset'] or 'all'}" for one in unsure[:_NAMED]]
        more = f" and {len(unsure) - _NAMED} more" if len(unsure) > _NAMED else ""
        told.append(
            f"p is below {_LEVEL} but the interval, which makes room for items not met, holds 0: "
            f"{'; '.join(named)}{more}: more items are needed to tell them apart"
        )
    return told
