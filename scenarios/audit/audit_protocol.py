"""An audit of one judge on one case: variants with the same content, each in its own view.

Variants of an answer are longer with equal content, or a list with a heading. The judge's prompts are in
`prompts/audit.yaml`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from viva.agents.agent import Agent
from viva.agents.judge import PREFERENCE_SIGNS, SCALES, GradeScale, PairVerdict, grade_form
from viva.agents.prompts import PackTemplates, PromptPack
from viva.engine import seeds
from viva.engine.conversation import Conversation, ConversationStopped
from viva.engine.messages import Sampling

from ..run_aggregate import conversation_costs
from .audit_cases import AuditCase, AuditSettings
from .simulated_judge import AnswerHint, PairHint, answer_qualities

_SENTENCE = re.compile(r"(?<=[.!?。！？])\s+")


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences, roughly: at line ends and at sentence marks followed by white space."""
    return [part for line in text.splitlines() for part in _SENTENCE.split(line.strip()) if part]


def pad_answer(text: str, fillers: list[str], repetition: str, key: str) -> str:
    """Pad a text with words that add nothing: a filler before each sentence, and each sentence repeated.

    `repetition` has the placeholder `{sentence}`, which stands for the sentence without its final punctuation. `key`
    alone decides where each filler is used.
    """
    parts = []
    for at, sentence in enumerate(split_sentences(text)):
        filler = fillers[int(seeds.uniform(key, "filler", at) * len(fillers))]
        parts += [filler, sentence, repetition.replace("{sentence}", sentence.rstrip(".!?。！？"))]
    return " ".join(parts)


def to_markdown_list(text: str, heading: str) -> str:
    """Return the text as Markdown: a heading, and one bullet per sentence with its first word in bold."""
    lines = []
    for sentence in split_sentences(text):
        first, blank, remainder = sentence.partition(" ")
        lines.append(f"- **{first}**{blank}{remainder}")
    return f"## {heading}\n\n" + "\n".join(lines)


JUDGE = "judge"
# Questions about a case. Position and self-preference use the same verdicts.
Question = Literal["pair", "verbosity", "format", "labels", "retest"]
QUESTIONS: tuple[Question, ...] = get_args(Question)
BASE_SCALE = "1-10"  # the scale with which all other scales are compared

TEMPLATES = PackTemplates({
    "judge.system": frozenset[str](),
    "judge.pair": frozenset({"question", "answer_a", "answer_b"}),
    "judge.single": frozenset({"question", "answer", "scale"}),
    "padding.fillers": frozenset[str](),
    "padding.again": frozenset({"sentence"}),
    "format.heading": frozenset[str](),
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class AuditTask:
    """A question about a case."""

    case: AuditCase
    question: Question

    @property
    def id(self) -> str:
        return f"{self.question}/{self.case.id}"

    def to_record(self) -> dict[str, Any]:
        return {"question": self.question, "case": self.case.to_record()}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> AuditTask:
        return cls(AuditCase.from_record(record["case"]), record["question"])


def questions_for(audits: tuple[str, ...]) -> list[Question]:
    question_of = {"position": "pair", "self": "pair"}
    needed = {question_of.get(name, name) for name in audits}
    return [question for question in QUESTIONS if question in needed]


@dataclass(slots=True)
class AuditProtocol:
    """The audit conversations of a run; `families` maps a judge to its model family."""

    pack: PromptPack
    settings: AuditSettings
    families: Mapping[str, str]

    async def run(self, conversation: Conversation, task: AuditTask) -> dict[str, Any]:
        """Audit one case and return its record.

        The record's `said` maps each prompt variant to the verdict, or to None if the verdict could not be read.
        """
        record: dict[str, Any] = {"case": task.case.id, "question": task.question, "said": {}}
        conversation.tell(lambda: [("case", task.case.question)])
        try:
            await self._ask(conversation, task, record["said"])
        except ConversationStopped as stop:
            record["stopped"] = f"{stop.by}: {stop.reason}"
        case = task.case
        record |= {"families": list(case.families), "preferred": case.preferred, "answer": case.single}
        record |= {} if case.category is None else {"category": case.category}
        return record | conversation_costs(conversation)

    async def _ask(self, conversation: Conversation, task: AuditTask, verdicts: dict[str, Any]) -> None:
        case, quality = task.case, answer_qualities(task.case)
        own = tuple(family is not None and family == self.families.get(conversation.label) for family in case.families)
        at = case.single
        answer = case.answers[at]
        if task.question == "pair":
            variants = [ShownVariant(text, quality[i], False, own[i]) for i, text in enumerate(case.answers)]
            await self._both_orders(conversation, case, variants, verdicts)
        elif task.question in ("verbosity", "format"):
            plain = ShownVariant(answer, quality[at], False, False)
            variant = self._variant(task, answer)
            changed = ShownVariant(variant, quality[at], task.question == "format", False)
            await self._both_orders(conversation, case, [changed, plain], verdicts)
        elif task.question == "labels":
            for scale in SCALES.values():
                hint = AnswerHint(quality[at], scale)
                verdicts[scale.name] = await self._grade(conversation, case.question, answer, scale, hint)
        else:
            for number in range(self.settings.retests):
                hint = AnswerHint(quality[at], SCALES[BASE_SCALE])
                temperature = self.settings.retest_temperature
                verdicts[str(number + 1)] = await self._grade(
                    conversation, case.question, answer, SCALES[BASE_SCALE], hint, temperature
                )

    def _variant(self, task: AuditTask, answer: str) -> str:
        if task.question == "format":
            return to_markdown_list(answer, self.pack.render("format.heading"))
        fillers = [line.strip() for line in self.pack.render("padding.fillers").splitlines() if line.strip()]
        repetition = self.pack.render("padding.again", sentence="{sentence}")
        return pad_answer(answer, fillers, repetition, task.case.id)

    async def _both_orders(
        self, conversation: Conversation, case: AuditCase, variants: list[ShownVariant], verdicts: dict[str, Any]
    ) -> None:
        """Judge a pair in both orders.

        In `verdicts`, `first` is the verdict with `variants` in the given order, `second` the verdict in reverse order.
        A verdict is 1 if the answer shown first wins, -1 if the answer shown second wins, and 0 for a tie.
        """
        for name, (a, b) in (("first", variants), ("second", reversed(variants))):
            hint = PairHint((a.quality, b.quality), (a.length, b.length), (a.markdown, b.markdown), (a.own, b.own))
            content = self.pack.render("judge.pair", question=case.question, answer_a=a.text, answer_b=b.text)
            agent = self._agent(conversation, self.settings.temperature, hint)
            verdict = await agent.ask_for(PairVerdict, content, f"{a.text}\n{b.text}")
            verdicts[name] = None if verdict is None else PREFERENCE_SIGNS[verdict.verdict]

    async def _grade(
        self,
        conversation: Conversation,
        question: str,
        answer: str,
        scale: GradeScale,
        hint: AnswerHint,
        temperature: float | None = None,
    ) -> float | None:
        content = self.pack.render("judge.single", question=question, answer=answer, scale=scale.words())
        agent = self._agent(conversation, self.settings.temperature if temperature is None else temperature, hint)
        reply: Any = await agent.ask_for(grade_form(scale), content, answer)
        return None if reply is None else round(scale.grade(reply.score), 6)

    def _agent(self, conversation: Conversation, temperature: float, hint: Any) -> Agent:
        sampling = Sampling(temperature=temperature, max_tokens=self.settings.judge_tokens)
        return Agent(conversation, JUDGE, self.pack.render("judge.system"), sampling, hint)


@dataclass(frozen=True, slots=True)
class ShownVariant:
    """An answer as it is shown, with the facts that a simulated judge may use."""

    text: str
    quality: float
    markdown: bool
    own: bool

    @property
    def length(self) -> int:
        """The number of letters and digits: Markdown marks do not make an answer longer."""
        return sum(letter.isalnum() for letter in self.text)
