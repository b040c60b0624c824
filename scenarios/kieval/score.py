"""The KIEval score: from the rounds of one interview to a number from 0 to 100, under named scorers.

`official`   as the authors' published numbers were computed: 1, 2, 3, 4 count 1, 3, 7, 10; round i weighs
               exp(-0.2 i); only rounds with a valid score count, and i is their index among the survivors.
`linear`     the same with score/4 in place of the mapping (KIEval, section 3.3).
`corrected`  the official mapping, weights by the true round; unscored rounds are left out without shifting the others;
               rounds lost to an early stop count 0. A detector's stop counts against the candidate whatever the
               switches; the evaluator's flags cost nothing if early stop is off.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import Field

from viva.data.items import cluster_name

from ..contract import Scoring, TurnScores

if TYPE_CHECKING:
    from viva.scoring.evidence.observations import Observations

ScorerName = Literal["official", "linear", "corrected"]
SCORERS: tuple[ScorerName, ...] = get_args(ScorerName)
SUMMARIES: dict[ScorerName, str] = {
    "official": "As in the published KIEval figures; only rounds with a score count.",
    "linear": "As official, but scores count linearly.",
    "corrected": "Unscored rounds keep their place in the weights; rounds lost to an early stop count 0.",
}
# Order of the scores in a round: the five aspects, then overall.
ASPECTS = ("accuracy", "logic", "relevance", "coherence", "conciseness", "overall")
ASPECT_TITLE = "The evaluator's scores by aspect, 0–100"  # one aspect is called accuracy, like the benchmark's figure
NO_LATER_ROUNDS = "interviews of this run ended at their stop flags; there are no rounds after them"
_DECAY = 0.2
_OFFICIAL = {0: 0.0, 1: 1.0, 2: 3.0, 3: 7.0, 4: 10.0}


@dataclass(slots=True)
class Round:
    """A round: six scores (None: unscored), the evaluator's stop reason, and the number of invalid texts.

    A score is None if the verdict lacks it; `problem` says what was wrong with the verdict.
    """

    scores: list[int | None] | None
    stop: str | None = None
    failures: int = 0
    problem: str | None = None


@dataclass(slots=True)
class SeedVerdicts:
    """The rounds of one interview as the evaluator judged them with another seed, and how they ended."""

    rounds: list[Round] = field(default_factory=list)
    ended_by: str = "rounds"
    reason: str = ""


@dataclass(slots=True)
class Interview:
    """An interview as it is recorded; `usage` maps a role to [calls, prompt tokens, completion tokens].

    `ended_by` is rounds (all were completed), evaluator, detector, budget, operator, transcript, candidate (it could
    not answer) or interactor (it asked nothing). `discarded` is the usage of questions that were asked ahead and
    discarded. `irregular` counts irregular answers by role and kind. `free` questions have no choices, so that the
    first answer is neither right nor wrong. `cluster` names the cluster of dependent items, empty if there is none.
    `copies` counts copied verdicts (`CopyCounter.to_record`); empty if they were not counted. `seeds` has the verdicts
    with the evaluator's second and further seeds; `rounds` are those with the first.
    """

    candidate: str
    item: str
    planned: int
    choice: int | None = None
    right: bool = False
    rounds: list[Round] = field(default_factory=list)
    ended_by: str = "rounds"
    reason: str = ""
    usage: dict[str, list[int]] = field(default_factory=dict)
    discarded: list[int] = field(default_factory=lambda: [0, 0, 0])
    irregular: dict[str, dict[str, int]] = field(default_factory=dict)
    free: bool = False
    cluster: str = ""
    copies: dict[str, Any] = field(default_factory=dict)
    seeds: list[SeedVerdicts] = field(default_factory=list)

    def to_record(self) -> dict[str, Any]:
        rounds = _round_records(self.rounds)
        record = {name: rounds if name == "rounds" else getattr(self, name) for name in _INTERVIEW_FIELDS}
        record |= {"irregular": self.irregular} if self.irregular else {}
        record |= {"free": True} if self.free else {}
        record |= {"copies": self.copies} if self.copies else {}
        seeds = [[_round_records(seed.rounds), seed.ended_by, seed.reason] for seed in self.seeds]
        record |= {"seeds": seeds} if seeds else {}
        return record | {"cluster": self.cluster} if self.cluster else record

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Interview:
        """Return the interview of a record; another record raises `KeyError` or `TypeError`."""
        interview = cls(**{name: record[name] for name in _INTERVIEW_FIELDS})
        interview.irregular = record.get("irregular", {})
        interview.free = bool(record.get("free", False))
        interview.cluster = record.get("cluster", "")
        interview.copies = record.get("copies", {})
        interview.rounds = [Round(*values) for values in record["rounds"]]
        interview.seeds = [
            SeedVerdicts([Round(*values) for values in rounds], ended_by, reason)
            for rounds, ended_by, reason in record.get("seeds", ())
        ]
        return interview

    def by_seed(self) -> list[Interview]:
        """Return the interview as judged with each seed of the evaluator, the first seed first."""
        others = (replace(self, rounds=s.rounds, ended_by=s.ended_by, reason=s.reason, seeds=[]) for s in self.seeds)
        return [self, *others]


def _round_records(rounds: Iterable[Round]) -> list[list[Any]]:
    return [[round_.scores, round_.stop, round_.failures, round_.problem] for round_ in rounds]


_OPTIONAL = ("irregular", "free", "cluster", "copies", "seeds")
_INTERVIEW_FIELDS = tuple(name for name in Interview.__dataclass_fields__ if name not in _OPTIONAL)


@dataclass(slots=True, frozen=True)
class Scorer:
    """A named scorer with its ablation switches (KIEval, Appendix D).

    Without `early_stop`, flags are ignored in interviews that continued after them; with it, an interview is cut at its
    first flag.
    """

    name: ScorerName = "official"
    decay: bool = True
    early_stop: bool = True

    def rounds(self, interview: Interview) -> list[Round]:
        """Return the rounds that count: all, or the rounds up to and including the first with a stop flag."""
        if self.early_stop:
            for index, round_ in enumerate(interview.rounds):
                if round_.stop is not None:
                    return interview.rounds[: index + 1]
        return interview.rounds

    def score(self, interview: Interview, aspect: int = 5) -> float | None:
        """Return the interview's score for one aspect (index into `ASPECTS`; 5 is overall), 0–100.

        None if no round was scored and no lost round counts: unscored is not the same as 0.
        """
        rounds = self.rounds(interview)
        values = [r.scores[aspect] if r.scores is not None else None for r in rounds]
        lost = 0
        flagged = interview.ended_by == "evaluator" or (bool(rounds) and rounds[-1].stop is not None)
        if interview.ended_by == "detector" or (self.early_stop and flagged):
            lost = max(0, interview.planned - len(rounds))
        return self.combine(values, lost)

    def combine(self, values: Sequence[int | None], lost: int = 0) -> float | None:
        """Return the weighted mean over rounds (None: unscored), followed by `lost` rounds."""
        if self.name == "corrected":
            scored = [(index, value) for index, value in enumerate(values) if value is not None]
            if not scored and not lost:
                return None
            missing = range(len(values), len(values) + lost)
            weights = [self._weight(index) for index, _ in scored]
            total = math.fsum([*weights, *(self._weight(index) for index in missing)])
        else:
            scored = list(enumerate(value for value in values if value is not None))
            if not scored:
                return None
            weights = [self._weight(index) for index, _ in scored]
            total = math.fsum(weights)
        weighted = math.fsum(weight * self._value(value) for weight, (_, value) in zip(weights, scored, strict=True))
        # Rounding may put the quotient out of the range of the values; a mean of equal values is that value.
        counted = [self._value(value) for _, value in scored] + [0.0] * lost
        return 10.0 * min(max(counted), max(min(counted), weighted / total))

    def _weight(self, index: int) -> float:
        return math.exp(-_DECAY * index) if self.decay else 1.0

    def _value(self, score: int) -> float:
        return 2.5 * score if self.name == "linear" else _OFFICIAL[score]

    def rule(self) -> str:
        """Return in a sentence how a score follows from the rounds' marks."""
        marks = [mark for mark in _OFFICIAL if mark]
        counts = ", ".join(f"{10.0 * self._value(mark):g}" for mark in marks)
        weights = f"each round weighs {1 - math.exp(-_DECAY):.0%} less than the one before" if self.decay else (
            "all rounds weigh the same")  # fmt: skip
        lost = "; rounds lost to an early stop count 0" if self.name == "corrected" else ""
        return (
            f"The score, 0–100, is the mean of the overall marks over the rounds: the marks "
            f"{', '.join(map(str, marks))} count {counts}, and {weights}{lost}."
        )

    def describe(self) -> str:
        """Return the scorer's name with its switches, as reports print it."""
        disabled = [name for name, on in (("no decay", self.decay), ("no early stop", self.early_stop)) if not on]
        return self.name + (f" ({', '.join(disabled)})" if disabled else "")


class KievalScoring(Scoring):
    """The scorer and its switches (KIEval, Appendix D)."""

    scorer: ScorerName | None = Field(
        default=None, description="How rounds are aggregated into a score: official, linear or corrected."
    )
    decay: bool | None = Field(default=None, description="Weight early rounds more, or all rounds equally.")
    early_stop: bool | None = Field(
        default=None,
        description="Cut interviews at the first stop flag, or ignore stop flags (only possible if interviews "
        "continued after them).",
    )

    def scorer_of(self, settings: Mapping[str, Any]) -> Scorer:
        overrides = {name: value for name, value in self.model_dump().items() if value is not None}
        return Scorer(*({**settings, **overrides}[name] for name in ("scorer", "decay", "early_stop")))

    def note(self, report: Mapping[str, Any]) -> str | None:
        if self.early_stop is False and report.get("recorded_with_early_stop"):
            return NO_LATER_ROUNDS
        return None


def interview_scores(result: Any, scorer: Scorer) -> list[TurnScores]:
    """Return the scores by aspect and overall: the interview 0–100, its rounds 1–4 as the evaluator gave them."""
    interview = Interview.from_record(result)
    turns = [TurnScores(None, {name: scorer.score(interview, at) for at, name in enumerate(ASPECTS)})]
    for number, round_ in enumerate(interview.rounds, 1):
        values = round_.scores or [None] * len(ASPECTS)
        scores = {name: None if value is None else float(value) for name, value in zip(ASPECTS, values, strict=True)}
        turns.append(TurnScores(number, scores))
    return turns


def observe(results: Iterable[Any]) -> Observations:
    """Return the official scores of one candidate's interviews by item, for the contamination court."""
    from viva.scoring.evidence.observations import Observations

    observations, scorer = Observations(), Scorer("official")
    for result in sorted(results, key=lambda result: str(result["item"])):
        score = scorer.score(Interview.from_record(result))
        if score is not None:
            cluster = result.get("cluster") or cluster_name(result["item"])
            observations.benchmark.add(result["item"], cluster, interview=score / 100)
    return observations
