"""One audit of one judge on one case: the same thing put in ways that should not matter, each in a view of its own.

What never belongs here: what the verdicts show (``figures``), wording (the pack).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from viva.agents.agent import Agent
from viva.agents.grades import SCALES, SIGNS, GradeScale, PairVerdict, grade_form
from viva.agents.prompts import PackTemplates, PromptPack
from viva.engine.conversation import Conversation, ConversationStopped
from viva.engine.messages import Sampling

from .cases import AuditCase
from .persona import ShownAnswer, ShownPair, qualities
from .settings import AuditSettings
from .variants import listed, padded

JUDGE = "judge"
# What is asked about a case. Position and self-preference are read off the same verdicts.
Question = Literal["pair", "verbosity", "format", "labels", "retest"]
QUESTIONS: tuple[Question, ...] = get_args(Question)
BASE = "1-10"  # the scale that others are compared with

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
    """One question about one case."""

    case: AuditCase
    question: Question

    @property
    def id(self) -> str:
        return f"{self.question}/{self.case.id}"

    def to_record(self) -> dict[str, Any]:
        """Plain data; ``from_record`` reads it back."""
        return {"question": self.question, "case": self.case.to_record()}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> AuditTask:
        """The task of a record."""
        return cls(AuditCase.from_record(record["case"]), record["question"])


def questions_of(audits: tuple[str, ...]) -> list[Question]:
    """What has to be asked for these audits."""
    asked = {"position": "pair", "self": "pair"}
    wanted = {asked.get(name, name) for name in audits}
    return [question for question in QUESTIONS if question in wanted]


@dataclass(slots=True)
class AuditProtocol:
    """How a run's audits are held. ``families`` has by judge the family that it belongs to."""

    pack: PromptPack
    settings: AuditSettings
    families: Mapping[str, str]

    async def hold(self, conversation: Conversation, task: AuditTask) -> dict[str, Any]:
        """Ask; the record has ``said``, the verdicts by what was asked, None where one could not be read."""
        record: dict[str, Any] = {"case": task.case.id, "question": task.question, "said": {}}
        conversation.tell(lambda: [("case", task.case.question)])
        try:
            await self._ask(conversation, task, record["said"])
        except ConversationStopped as stop:
            record["stopped"] = f"{stop.by}: {stop.reason}"
        case = task.case
        record |= {"families": list(case.families), "preferred": case.preferred, "answer": case.single}
        record["usage"] = {role: used.to_record() for role, used in sorted(conversation.usage.items())}
        return record | ({"irregular": conversation.irregular} if conversation.irregular else {})

    async def _ask(self, conversation: Conversation, task: AuditTask, said: dict[str, Any]) -> None:
        case, quality = task.case, qualities(task.case)
        own = tuple(family is not None and family == self.families.get(conversation.label) for family in case.families)
        at = case.single
        answer = case.answers[at]
        if task.question == "pair":
            shown = [Shown(text, quality[i], False, own[i]) for i, text in enumerate(case.answers)]
            await self._both_orders(conversation, case, shown, said)
        elif task.question in ("verbosity", "format"):
            plain = Shown(answer, quality[at], False, False)
            other = self._variant(task, answer)
            changed = Shown(other, quality[at], task.question == "format", False)
            await self._both_orders(conversation, case, [changed, plain], said)
        elif task.question == "labels":
            for scale in SCALES.values():
                hint = ShownAnswer(quality[at], scale)
                said[scale.name] = await self._grade(conversation, case.question, answer, scale, hint)
        else:
            for number in range(self.settings.retests):
                hint = ShownAnswer(quality[at], SCALES[BASE])
                temperature = self.settings.retest_temperature
                said[str(number + 1)] = await self._grade(
                    conversation, case.question, answer, SCALES[BASE], hint, temperature
                )

    def _variant(self, task: AuditTask, answer: str) -> str:
        if task.question == "format":
            return listed(answer, self.pack.render("format.heading"))
        fillers = [line.strip() for line in self.pack.render("padding.fillers").splitlines() if line.strip()]
        again = self.pack.render("padding.again", sentence="{sentence}")
        return padded(answer, fillers, again, task.case.id)

    async def _both_orders(
        self, conversation: Conversation, case: AuditCase, shown: list[Shown], said: dict[str, Any]
    ) -> None:
        """``first`` and ``second``: the sign of the verdict where the first of ``shown`` stands first, and second; 1
        where that which stands first in the prompt wins, -1 where the other one does.
        """
        for name, (a, b) in (("first", shown), ("second", reversed(shown))):
            hint = ShownPair((a.quality, b.quality), (a.length, b.length), (a.markdown, b.markdown), (a.own, b.own))
            content = self.pack.render("judge.pair", question=case.question, answer_a=a.text, answer_b=b.text)
            agent = self._agent(conversation, self.settings.temperature, hint)
            verdict = await agent.ask_for(PairVerdict, content, f"{a.text}\n{b.text}")
            said[name] = None if verdict is None else SIGNS[verdict.verdict]

    async def _grade(
        self,
        conversation: Conversation,
        question: str,
        answer: str,
        scale: GradeScale,
        hint: ShownAnswer,
        temperature: float | None = None,
    ) -> float | None:
        content = self.pack.render("judge.single", question=question, answer=answer, scale=scale.words())
        agent = self._agent(conversation, self.settings.temperature if temperature is None else temperature, hint)
        found: Any = await agent.ask_for(grade_form(scale), content, answer)
        return None if found is None else round(scale.grade(found.score), 6)

    def _agent(self, conversation: Conversation, temperature: float, hint: Any) -> Agent:
        sampling = Sampling(temperature=temperature, max_tokens=self.settings.judge_tokens)
        return Agent(conversation, JUDGE, self.pack.render("judge.system"), sampling, hint)


@dataclass(frozen=True, slots=True)
class Shown:
    """An answer as it is shown, and what a simulated judge may know of it."""

    text: str
    quality: float
    markdown: bool
    own: bool

    @property
    def length(self) -> int:
        """Letters and digits: Markdown's marks make no answer longer."""
        return sum(letter.isalnum() for letter in self.text)
