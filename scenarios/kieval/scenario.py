"""KIEval's side of the contract: from settings to what an interview needs, and from results to its report.

What never belongs here: the interview itself (``interview``), formulas (``score``), wording (``packs``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from viva.agents.assistants.names import assistants
from viva.agents.prompts import PromptPack
from viva.data.items import Item
from viva.data.selection import Dataset, open_dataset
from viva.engine.detectors import detector_makers
from viva.engine.errors import ConfigurationError
from viva.engine.messages import Sampling

from ..assistants import assistant_roles, check_texts, checked_facts
from ..contract import Converse, Prepared, Role, Scenario
from ..forecast import Use
from ..graded import GradedAnswer, Grading
from ..imported import Import
from ..probes.questions import TEMPLATES as PROBE_TEMPLATES
from ..probes.questions import Questions
from ..probes.shots import Shots, open_examples
from ..rated import TurnScores
from ..shown import RecordedConversation, ResultSummary, ShownConversation, sides_of
from .forecast import interview_use
from .interview import ANSWER, COMPARED, InterviewProtocol
from .manifest import KievalManifest
from .pack import TEMPLATES, check_free
from .rated import interview_scores
from .report import KievalAggregate
from .score import SCORERS, SUMMARIES, Interview
from .scoring import KievalScoring
from .settings import KievalSettings
from .shown import shown_interview, summary
from .verdicts import verdict_schema

if TYPE_CHECKING:
    from ..study.static import StaticFigures
    from .study.study import InterviewStudy

_SHOTS, _SHOTS_PACK = 5, "probe"


class Kieval(Scenario[KievalSettings, Item]):
    """Interviews on benchmark items (Yu et al. 2024)."""

    name = "kieval"
    summary = "Interviews on benchmark items, judged turn by turn (KIEval)."
    plural = "interviews"
    settings = KievalSettings
    roles = (Role("candidate", many=True), Role("interactor"), Role("evaluator", judge=True))
    scoring = KievalScoring
    templates = TEMPLATES
    manifest = KievalManifest
    judging = frozenset({"evaluator_tokens", "early_stop", "scorer", "decay", "assistant"})

    def roles_of(self, settings: KievalSettings) -> tuple[Role, ...]:
        return (*self.roles, *assistant_roles(settings.assistant))

    def prepare(self, settings: KievalSettings) -> Prepared[Item]:
        dataset: Dataset = open_dataset(
            settings.dataset,
            limit=settings.n,
            seed=settings.seed,
            skip_bad=settings.skip_bad_items,
            ids=settings.ids,
            shuffled=settings.shuffled,
            cluster=settings.cluster,
        )
        records: dict[str, Any] = {"dataset": dataset.to_record()}
        if settings.first_answer == "five-shot":
            if dataset.free:
                raise ConfigurationError(
                    f"first_answer: five-shot asks for a choice, and {dataset.free:,} questions of {dataset.name} have "
                    "none; give --first-answer text"
                )
            examples = open_examples(
                settings.dataset,
                settings.shots_from,
                without="give another --first-answer",
                skip_bad=settings.skip_bad_items,
            )
            shots = Shots.drawn(examples, _SHOTS, settings.seed)
            shots.check(dataset)
            records |= {"examples": examples.to_record(), "shots": shots.to_record()}
        if settings.assistant:
            asked = assistants(settings.assistant, ANSWER)
            check_texts(asked, COMPARED, ANSWER, "an interview")
            records["assistants"] = checked_facts(asked)
        return Prepared(dataset, records, dataset.notes)

    def protocol(self, settings: KievalSettings, pack: PromptPack | None, records: Mapping[str, Any]) -> Converse[Item]:
        assert pack is not None
        if records["dataset"].get("free"):
            check_free(pack)
        tokens = {
            "candidate": settings.candidate_tokens,
            "interactor": settings.interactor_tokens,
            "evaluator": settings.evaluator_tokens,
        }
        sampling = {
            role: Sampling(
                temperature=settings.temperature,
                max_tokens=count,
                schema=verdict_schema(count) if role == "evaluator" else None,
            )
            for role, count in tokens.items()
        }
        protocol = InterviewProtocol(
            pack,
            settings.rounds,
            settings.early_stop,
            settings.overlap,
            detector_makers(settings.detectors),
            sampling,
            settings.first_answer,
            assistants=assistants(settings.assistant, ANSWER),
            cluster=settings.cluster,
        )
        if "shots" in records:
            questions, shots = Questions(PROBE_TEMPLATES.open(_SHOTS_PACK)), Shots.from_record(records["shots"])
            protocol.examples = lambda item: questions.talk(item, shots.of(item))
        return protocol.hold

    def task(self, record: Any) -> Item:
        return Item(**record)

    def aggregate(self, manifest: dict[str, Any], scoring: KievalScoring) -> KievalAggregate:
        return KievalAggregate(scoring.scorer_of(manifest["settings"]), manifest)

    def score_of(self, settings: KievalSettings) -> Callable[[Any], float | None]:
        scorer = KievalScoring().scorer_of(settings.model_dump())
        return lambda result: scorer.score(Interview.from_record(result))

    def shown(self, recorded: RecordedConversation) -> ShownConversation:
        return shown_interview(recorded, sides_of(self.roles))

    def summary_of(self, settings: KievalSettings) -> Callable[[Any], ResultSummary]:
        scorer = KievalScoring().scorer_of(settings.model_dump())
        return lambda result: summary(result, scorer)

    def turn_scores(self, settings: KievalSettings) -> Callable[[Any], list[TurnScores]]:
        scorer = KievalScoring().scorer_of(settings.model_dump())
        return lambda result: interview_scores(result, scorer)

    def grading(self, settings: KievalSettings, *, by_round: bool = False) -> Grading:
        """Of interviews the score, 0–100, of rounds the overall score, 1–4. With each is known whether the item's
        question was ``right`` at first.
        """
        scorer = KievalScoring().scorer_of(settings.model_dump())

        def answers(key: str, label: str, item: Item, record: Any) -> Iterator[GradedAnswer]:
            interview = Interview.from_record(record)
            known = {} if interview.free else {"right": float(interview.right)}
            if not by_round:
                yield GradedAnswer(key, label, interview.cluster or item.id, scorer.score(interview), known=known)
                return
            for number, held in enumerate(scorer.rounds(interview), start=1):
                overall = None if held.scores is None else held.scores[-1]
                yield GradedAnswer(key, label, interview.cluster or item.id, overall, number, known)

        return Grading(1.0, 4.0, answers) if by_round else Grading(0.0, 100.0, answers)

    def in_random_order(self, cluster: str | None) -> dict[str, Any]:
        return {"shuffled": True} | ({"cluster": cluster} if cluster else {})

    def offers(self) -> dict[str, dict[str, str]]:
        return {"scorers": {name: SUMMARIES[name] for name in SCORERS}}

    def cluster_of(self, result: Any) -> str:
        return str(result.get("cluster", ""))

    def imports(self) -> tuple[Import, ...]:
        from .imported import DETAILS

        return (DETAILS,)

    def study(self, lent: StaticFigures | None = None) -> InterviewStudy:
        from .study.study import InterviewStudy

        return InterviewStudy(self, lent)

    def forecast(self, settings: KievalSettings, prepared: Prepared[Item], pack: PromptPack | None) -> dict[str, Use]:
        assert pack is not None
        examples: Callable[[Item], Any] = lambda item: None  # noqa: E731
        if "shots" in prepared.records:
            questions = Questions(PROBE_TEMPLATES.open(_SHOTS_PACK))
            shots = Shots.from_record(prepared.records["shots"])
            examples = lambda item: questions.talk(item, shots.of(item))  # noqa: E731
        return interview_use(settings, prepared.tasks, pack, examples)


SCENARIO = Kieval()
