"""KIEval as a scenario: from settings to what an interview needs, its forecast, and its report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from viva.agents.assistants.assistant import AssistantResult, with_assistant_results
from viva.agents.assistants.registry import open_assistants
from viva.agents.prompts import PromptPack
from viva.data.dataset import Dataset, DatasetRecord, ManifestPart, open_dataset
from viva.data.items import Item
from viva.engine.detectors import detector_factories
from viva.engine.errors import ConfigurationError
from viva.engine.messages import Message, View

from ..assistant_roles import assistant_facts, assistant_roles, check_assistant_texts
from ..contract import (
    SCORE,
    Converse,
    GradeReader,
    ImportFormat,
    JudgeGrade,
    Prepared,
    Ranges,
    Role,
    Scenario,
    SupportsClusters,
    SupportsExams,
    SupportsFitnessChecks,
    SupportsForecast,
    SupportsGrading,
    SupportsImports,
    SupportsManifest,
    SupportsObservations,
    SupportsOpenings,
    SupportsPlugins,
    SupportsRandomOrder,
    SupportsReplacement,
    SupportsStudy,
    SupportsTurnScores,
    TurnScores,
    UsageForecast,
    estimate_tokens,
)
from ..fitness import FitnessCheck, is_testable
from ..probes.few_shot import Shots, open_examples
from ..probes.probe_prompts import TEMPLATES as PROBE_TEMPLATES
from ..probes.probe_prompts import Questions
from ..rendering import RecordedConversation, RenderedConversation, ResultSummary, role_sides
from .evaluator import first_verdict
from .interview import ANSWER_TEXT, COMPARISON_TEXTS, InterviewProtocol
from .interview_rendering import render_interview, summarize_interview
from .interview_report import KievalAggregate
from .kieval_settings import CHOICE_MODES, KievalSettings
from .pack_templates import TEMPLATES, check_free_templates
from .published import FIRST_TOKENS, check_shot_templates, is_dropped, published_examples, published_view
from .score import ASPECTS, SCORERS, SUMMARIES, Interview, KievalScoring, interview_scores
from .verdicts import verdict_schema

if TYPE_CHECKING:
    from viva.scoring.evidence.observations import Observations

    from ..study_sections import StaticFigures
    from .study.interview_study import InterviewStudy


class KievalManifest(ManifestPart):
    """The manifest fields of a run of interviews; `examples` are the source of five-shot examples."""

    dataset: DatasetRecord
    examples: DatasetRecord | None = None


def forecast_interviews(
    settings: KievalSettings, items: Iterable[Item], pack: PromptPack, examples: Callable[[Item], View | None]
) -> dict[str, UsageForecast]:
    """Return the usage of each role for all items of one candidate."""
    s = settings
    reply_tokens, question_tokens, verdict_tokens = s.candidate_tokens, s.interactor_tokens, s.evaluator_tokens
    system_tokens = {
        name: estimate_tokens(pack.render(f"{name}.system")) for name in ("candidate", "interactor", "evaluator")
    }
    follow_up = estimate_tokens(pack.render("interactor.reply", reply="")) + reply_tokens
    assistants = open_assistants(settings.assistant)
    advice = with_assistant_results(
        "", assistants, [AssistantResult(assistant.name, assistant.high) for assistant in assistants]
    )
    exchange = (
        estimate_tokens(pack.render("evaluator.exchange", question="", reply="") + advice)
        + question_tokens
        + reply_tokens
    )
    start = max(sum(map(estimate_tokens, first_verdict(pack, right=right))) for right in (True, False, None))
    rounds = range(s.rounds)
    total = {name: UsageForecast() for name in system_tokens} | {
        assistant.role: UsageForecast() for assistant in assistants if assistant.model is not None
    }
    for item in items:
        prefix = "free_" if item.free else ""
        values = {"question": item.question} | ({} if item.free else {"choices": item.labelled_choices()})
        question = system_tokens["candidate"] + estimate_tokens(pack.render(f"candidate.{prefix}question", **values))
        values |= {"answer": item.labelled_answer(), "reply": ""}
        # Roles see the first answer as text, or as the choice that it names (as text if it names none).
        choice = max((estimate_tokens(item.labelled_choice(index)) for index in range(len(item.choices))), default=0)
        first = {"text": reply_tokens, "choice": max(reply_tokens, choice)}.get(s.first_answer, choice)
        solving = examples(item)
        solved = question if solving is None else sum(estimate_tokens(message.content) for message in solving.messages)
        asks = (
            estimate_tokens(pack.render("interactor.free_system"))
            if prefix and "interactor.free_system" in pack
            else None
        )
        opening = system_tokens["interactor"] if asks is None else asks
        opening += estimate_tokens(pack.render(f"interactor.{prefix}opening", **values)) + first
        begun = (
            system_tokens["evaluator"] + estimate_tokens(pack.render(f"evaluator.{prefix}opening", **values)) + first
        )
        begun += 0 if item.free else start
        total["candidate"] += UsageForecast(
            s.rounds + 1,
            solved
            + sum(
                question + first + question_tokens + round_index * (reply_tokens + question_tokens)
                for round_index in rounds
            ),
            s.rounds * reply_tokens + (FIRST_TOKENS if s.first_answer == "published" else reply_tokens),
        )
        total["interactor"] += UsageForecast(
            s.rounds,
            sum(opening + round_index * (question_tokens + follow_up) for round_index in rounds),
            s.rounds * question_tokens,
        )
        judged = UsageForecast(
            s.rounds,
            sum(begun + (round_index + 1) * exchange + round_index * verdict_tokens for round_index in rounds),
            s.rounds * verdict_tokens,
        )
        total["evaluator"] += judged * s.judge_seeds
        for assistant in assistants:
            if assistant.model is not None:  # each reads the interview so far, which is much longer than a grade
                total[assistant.role] += UsageForecast(
                    s.rounds, sum((round_index + 1) * (question_tokens + reply_tokens) for round_index in rounds), 0
                )
    return total


_SHOTS, _SHOTS_PACK = 5, "probe"
_NO_LIST = (
    "as_published without ids: the authors interview only items that their examiner answers right; give --ids with "
    "their list (assets/validated_problems_*.json in github.com/zhuohaoyu/KIEval) or with that of viva validate"
)


class Kieval(
    Scenario[KievalSettings, Item],
    SupportsClusters,
    SupportsExams,
    SupportsFitnessChecks,
    SupportsForecast,
    SupportsGrading,
    SupportsImports,
    SupportsManifest,
    SupportsObservations,
    SupportsOpenings,
    SupportsPlugins,
    SupportsRandomOrder,
    SupportsReplacement,
    SupportsStudy,
    SupportsTurnScores,
):
    """Interviews on benchmark items (Yu et al. 2024)."""

    name = "kieval"
    summary = "Interviews on benchmark items, judged turn by turn (KIEval)."
    plural = "interviews"
    ranges: ClassVar[Ranges] = dict.fromkeys((SCORE, *ASPECTS), (0.0, 100.0))
    settings = KievalSettings
    roles = (Role("candidate", many=True), Role("interactor"), Role("evaluator", judge=True))
    scoring = KievalScoring
    templates = TEMPLATES
    manifest = KievalManifest
    judging = frozenset(
        {"evaluator_tokens", "evaluator_temperature", "judge_seeds", "early_stop", "scorer", "decay", "assistant"}
    )

    def roles_of(self, settings: KievalSettings) -> tuple[Role, ...]:
        return (*self.roles, *assistant_roles(settings.assistant))

    def prepare(self, settings: KievalSettings) -> Prepared[Item]:
        dataset: Dataset = open_dataset(
            settings.dataset,
            limit=settings.sample_size,
            seed=settings.seed,
            skip_bad=settings.skip_bad_items,
            ids=settings.ids,
            shuffled=settings.shuffled,
            cluster=settings.cluster,
            in_order=settings.in_order,
        )
        records: dict[str, Any] = {"dataset": dataset.to_record()}
        if settings.first_answer in CHOICE_MODES:
            if dataset.free:
                raise ConfigurationError(
                    f"first_answer: {settings.first_answer} asks for a choice, and {dataset.free:,} questions of "
                    f"{dataset.name} have none; give --first-answer text"
                )
            examples = open_examples(
                settings.dataset,
                settings.shots_from,
                without="give another --first-answer",
                skip_bad=settings.skip_bad_items,
            )
            if settings.first_answer == "published":
                shots = Shots(_SHOTS, {"": published_examples(examples)})
            else:
                shots = Shots.sample(examples, _SHOTS, settings.seed)
                shots.check(dataset)
            records |= {"examples": examples.to_record(), "shots": shots.to_record()}
        if settings.assistant:
            assistants = open_assistants(settings.assistant, ANSWER_TEXT)
            check_assistant_texts(assistants, COMPARISON_TEXTS, ANSWER_TEXT, "an interview")
            records["assistants"] = assistant_facts(assistants)
        notes = dataset.notes
        if settings.as_published and settings.ids is None:
            notes = [*notes, _NO_LIST]
        if settings.as_published and settings.n is not None and len(dataset) < settings.n:
            notes = [*notes, f"n: {settings.n} requested, there are {len(dataset)} items; all are used"]
        later = dataset.later_items() if settings.replace_unanswered else ()
        return Prepared(dataset, records, notes, later)

    def protocol(self, settings: KievalSettings, pack: PromptPack | None, records: Mapping[str, Any]) -> Converse[Item]:
        assert pack is not None
        if records["dataset"].get("free"):
            check_free_templates(pack)
        sampling = {role.name: settings.sampling_of(role.name) for role in self.roles}
        if not settings.plain_calls:
            schema = verdict_schema(settings.evaluator_tokens)
            sampling["evaluator"] = replace(sampling["evaluator"], schema=schema)
        protocol = InterviewProtocol(
            pack,
            settings.rounds,
            settings.early_stop,
            settings.overlap,
            detector_factories(settings.detectors),
            sampling,
            settings.first_answer,
            assistants=open_assistants(settings.assistant, ANSWER_TEXT),
            cluster=settings.cluster,
            plain=settings.plain_calls,
            judge_seeds=settings.judge_seeds,
        )
        protocol.examples = _examples(settings, pack, records)
        return protocol.run

    def dropped(self, settings: KievalSettings) -> Callable[[Any], bool] | None:
        return is_dropped if settings.replace_unanswered else None

    def task(self, record: Any) -> Item:
        return Item(**record)

    def aggregate(self, manifest: dict[str, Any], scoring: KievalScoring) -> KievalAggregate:
        return KievalAggregate(scoring.scorer_of(manifest["settings"]), manifest)

    def score_of(self, settings: KievalSettings) -> Callable[[Any], float | None]:
        scorer = KievalScoring().scorer_of(settings.model_dump())
        return lambda result: scorer.score(Interview.from_record(result))

    def exam_score(self, settings: KievalSettings) -> Callable[[Any], float | None]:
        score = self.score_of(settings)
        return lambda result: None if (points := score(result)) is None else points / 100.0

    def render_conversation(self, recorded: RecordedConversation) -> RenderedConversation:
        return render_interview(recorded, role_sides(self.roles))

    def summary_of(self, settings: KievalSettings) -> Callable[[Any], ResultSummary]:
        scorer = KievalScoring().scorer_of(settings.model_dump())
        return lambda result: summarize_interview(result, scorer)

    def score_rule(self, settings: KievalSettings) -> str:
        return KievalScoring().scorer_of(settings.model_dump()).rule()

    def turn_scores(self, settings: KievalSettings) -> Callable[[Any], list[TurnScores]]:
        scorer = KievalScoring().scorer_of(settings.model_dump())
        return lambda result: interview_scores(result, scorer)

    def grading(self, settings: KievalSettings, *, by_round: bool = False) -> GradeReader:
        """Return the reader of interview scores, 0–100, or of overall scores of rounds, 1–4.

        Each grade has the known number `right`: 1 if the first answer was right.
        """
        scorer = KievalScoring().scorer_of(settings.model_dump())

        def answers(key: str, label: str, item: Item, record: Any) -> Iterator[JudgeGrade]:
            interview = Interview.from_record(record)
            facts = {} if interview.free else {"right": float(interview.right)}
            if not by_round:
                yield JudgeGrade(key, label, interview.cluster or item.id, scorer.score(interview), known=facts)
                return
            for number, round_ in enumerate(scorer.rounds(interview), start=1):
                overall = None if round_.scores is None else round_.scores[-1]
                yield JudgeGrade(key, label, interview.cluster or item.id, overall, number, facts)

        return GradeReader(1.0, 4.0, answers) if by_round else GradeReader(0.0, 100.0, answers)

    def fitness_checks(self, settings: KievalSettings) -> list[FitnessCheck]:
        from .qualification.scenario import brief_check

        if not settings.qualify:
            return []
        checks = (("evaluator", settings.evaluator), ("interactor", settings.interactor))
        return [brief_check(role, model, settings) for role, model in checks if is_testable(model)]

    def in_random_order(self, cluster: str | None) -> dict[str, Any]:
        return {"shuffled": True} | ({"cluster": cluster} if cluster else {})

    def plugins(self) -> dict[str, dict[str, str]]:
        return {"scorers": {name: SUMMARIES[name] for name in SCORERS}}

    def cluster_of(self, result: Any) -> str:
        return str(result.get("cluster", ""))

    def observe(self, results: Iterable[Any]) -> Observations:
        from .score import observe

        return observe(results)

    def gathers_evidence(self, manifest: Mapping[str, Any]) -> bool:
        return False  # interviews only add to the evidence of probes

    def imports(self) -> tuple[ImportFormat, ...]:
        from .import_interviews import DETAILS_FORMAT

        return (DETAILS_FORMAT,)

    def study(self, lent: StaticFigures | None = None) -> InterviewStudy:
        from .study.interview_study import InterviewStudy

        return InterviewStudy(self, lent)

    def openings(self, settings: KievalSettings, task: Item, pack: PromptPack | None) -> dict[str, list[Message]]:
        assert pack is not None
        free = "free_" if task.free else ""
        values = {"question": task.question} | ({} if task.free else {"choices": task.labelled_choices()})
        question = pack.render(f"candidate.{free}question", **values)
        values |= {"answer": task.labelled_answer(), "reply": ""}
        asks = "free_system" if free and "interactor.free_system" in pack else "system"
        opening = pack.render(f"evaluator.{free}opening", **values)
        exchange = pack.render("evaluator.exchange", question="", reply="")
        judged = [Message("user", f"{opening}\n\n{exchange}")]
        if not free:
            verdict = Message(
                "assistant", min((first_verdict(pack, right=right)[1] for right in (True, False)), key=len)
            )
            judged = [Message("user", opening), verdict, Message("user", exchange)]
        prompts = {
            "candidate": [Message("user", question)],
            "interactor": [Message("user", pack.render(f"interactor.{free}opening", **values))],
            "evaluator": judged,
        }
        systems = {name: pack.render(f"{name}.{asks if name == 'interactor' else 'system'}") for name in prompts}
        return {
            name: [*([Message("system", systems[name])] if systems[name] else []), *messages]
            for name, messages in prompts.items()
        }

    def forecast(
        self, settings: KievalSettings, prepared: Prepared[Item], pack: PromptPack | None
    ) -> dict[str, UsageForecast]:
        assert pack is not None
        return forecast_interviews(settings, prepared.tasks, pack, _examples(settings, pack, prepared.records))


def _examples(settings: KievalSettings, pack: PromptPack, records: Mapping[str, Any]) -> Callable[[Item], View | None]:
    """Return a function from an item to the request for its first answer after solved examples; None without them."""
    if "shots" not in records:
        return lambda item: None
    if settings.first_answer == "published":
        check_shot_templates(pack)
        examples = [Item(**record) for record in records["shots"]["items"]]
        return lambda item: published_view(pack, item, examples)
    questions, shots = Questions(PROBE_TEMPLATES.open(_SHOTS_PACK)), Shots.from_record(records["shots"])
    return lambda item: questions.question_view(item, shots.for_item(item))


SCENARIO = Kieval()
