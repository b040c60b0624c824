"""Results by item, alone and against another candidate's, with errors that know what the items have in common.

Items about one mineral lead to questions about the same facts, and another seed to the same items again: so the error
is over minerals.
What never belongs here: tables (``findings``), and the formula of an interview's score (``scoring``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from viva.engine.folder import RunFolder
from viva.engine.history import History
from viva.scenarios.kieval.score import SCORERS, Interview, Scorer
from viva.scoring.clusters import ClusteredMean, clustered_mean

from .interview_text import parse_followup
from .world import World

# figure -> candidate -> (mineral, item) -> value
ByItem = dict[str, dict[str, dict[tuple[str, str], float]]]


def by_item(world: World, probe: RunFolder, interviews: RunFolder) -> ByItem:
    """Each candidate's result on each item, in per cent: ``accuracy`` of the probe, ``kieval_…`` under each scorer.

    Items that failed, and interviews without a score, are left out.
    """
    found: ByItem = {"accuracy": {}, **{f"kieval_{scorer}": {} for scorer in SCORERS}}
    for folder, read in ((probe, _probed), (interviews, _interviewed)):
        with History(folder.journal) as history:
            for ended in history.ended():
                if ended.failed:
                    continue
                asked = parse_followup(world, ended.item["question"])
                key = (asked.entity if asked is not None else ended.item["id"], ended.item["id"])
                for figure, value in read(ended.result).items():
                    found[figure].setdefault(ended.result["candidate"], {})[key] = value
    return found


def difference(
    seeds: Sequence[Mapping[tuple[str, str], float]], others: Sequence[Mapping[tuple[str, str], float]]
) -> ClusteredMean | None:
    """The mean of one candidate's results less another's, on items that both have a result on; minerals are clusters.

    One mapping for each seed on both sides.
    """
    pairs = [
        (mineral, mine[mineral, item] - theirs[mineral, item])
        for mine, theirs in zip(seeds, others, strict=True)
        for mineral, item in sorted(mine.keys() & theirs.keys())
    ]
    return clustered_mean([value for _, value in pairs], [mineral for mineral, _ in pairs])


def _probed(result: dict[str, object]) -> dict[str, float]:
    told = result.get("text")
    return {"accuracy": 100.0 * bool(told["right"])} if isinstance(told, dict) else {}


def _interviewed(result: dict[str, object]) -> dict[str, float]:
    interview = Interview.from_record(result)
    scores = {f"kieval_{scorer}": Scorer(scorer).score(interview) for scorer in SCORERS}
    return {name: score for name, score in scores.items() if score is not None}
