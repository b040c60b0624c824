"""One conversation about a prompt: all candidates answer its turns, then the judges compare or grade the answers.

Each candidate has its own view. Each verdict is requested in a view and a branch of its own, so that verdicts do not
influence one another and run at once. The prompts are in `prompts/pairwise.yaml`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from viva.agents.agent import Agent
from viva.agents.judge import PREFERENCE_SIGNS, SCALES, PairVerdict, grade_form
from viva.agents.prompts import PackTemplates, PromptPack
from viva.engine import seeds
from viva.engine.backends.simulated import SENTENCES, SimulatedBackend, SimulatedReply
from viva.engine.cancellation import gather
from viva.engine.conversation import Conversation, ConversationStopped
from viva.engine.conversation_replay import Exchange
from viva.engine.messages import Request

from ..audit.simulated_judge import AnswerHint, PairHint
from ..rendering import Mark, RecordedConversation, RenderedConversation, Side, pending_turns, render_entry
from ..run_aggregate import conversation_costs
from .pairwise_settings import ADAPTIVE, PAIRS, JudgedPrompt, PairwiseSettings

CANDIDATE, JUDGE = "candidate", "judge"
SCALE = SCALES["1-10"]
TEMPLATES = PackTemplates({
    "candidate.system": frozenset[str](),
    "judge.system": frozenset[str](),
    "judge.pair": frozenset({"question", "answer_a", "answer_b", "reference"}),
    "judge.pair_later": frozenset({"dialog_a", "dialog_b", "reference"}),
    "judge.grade": frozenset({"question", "answer", "reference", "scale"}),
    "judge.grade_later": frozenset({"dialog", "reference", "scale"}),
    "judge.turn": frozenset({"number", "question", "answer"}),
    "judge.reference": frozenset({"number", "text"}),
})  # fmt: skip
_COVERED = re.compile(r"covers (\d+) of 1000 points")


def judge_role(number: int) -> str:
    """Return the role of a judge, counted from 0; the first one is `judge`."""
    return JUDGE if number == 0 else f"{JUDGE}-{number + 1}"


@dataclass(slots=True, frozen=True)
class CandidateHint:
    """The prompt's id and turn. A simulated candidate says how good its answer is, and simulated judges read it."""

    prompt: str
    turn: int

    def simulated(self, model: SimulatedBackend, request: Request, chance: list[float]) -> SimulatedReply:
        luck = seeds.uniform(model.label, self.prompt, self.turn, "quality")
        quality = 0.6 * model.knowledge + 0.4 * luck
        count = int(2 * model.verbosity * seeds.uniform(model.label, self.prompt, self.turn, "length") + 0.5)
        more = [SENTENCES[(self.turn + at) % len(SENTENCES)] for at in range(count)]
        return " ".join([f"This covers {round(1000 * quality)} of 1000 points.", *more]), None


def answer_quality(question: str, answer: str) -> float:
    """Return the quality, 0–1, that simulated judges see: as a simulated candidate said, else a hash of the text."""
    covered = _COVERED.search(answer)
    return min(1.0, int(covered[1]) / 1000) if covered else seeds.uniform(question, answer, "quality")


def answer_length(text: str) -> int:
    """Return the number of characters without white space at the ends."""
    return len(text.strip())


@dataclass(slots=True, frozen=True)
class PairwiseProtocol:
    """The conversations of a run; `planned` has the adaptive pairs by prompt, which the manifest records."""

    pack: PromptPack
    settings: PairwiseSettings
    planned: Mapping[str, Sequence[Sequence[int]]]

    async def run(self, conversation: Conversation, prompt: JudgedPrompt) -> dict[str, Any]:
        """Return the record of one prompt.

        `pairs` has an entry for each pair and turn, with each judge's verdicts in both orders: 1 if the answer shown
        first wins, -1 if the other one, 0 for a tie, None if unreadable. In the first order the first model's answer is
        shown first. `grades` has an entry for each model and turn, with each judge's grade, None if unreadable.
        """
        record: dict[str, Any] = {"prompt": prompt.id, "category": prompt.category}
        record |= {"models": self.settings.labels, "judges": self.settings.judge_labels}
        record |= {"lengths": None, "pairs": [], "grades": []}
        for number, text in enumerate(prompt.turns, 1):
            conversation.tell(lambda number=number, text=text: [(f"user, turn {number}", text)])  # type: ignore[misc]
        try:
            answers = await self._answers(conversation, prompt)
            record["lengths"] = [[answer_length(text) for text in texts] or None for texts in answers]
            if self.settings.mode == PAIRS:
                await self._compare_all(conversation, prompt, answers, record["pairs"])
            else:
                await self._grade_all(conversation, prompt, answers, record["grades"])
        except ConversationStopped as stop:
            record["stopped"] = f"{stop.by}: {stop.reason}"
        return record | conversation_costs(conversation)

    def pairs_of(self, prompt: str) -> list[tuple[int, int]]:
        """Return the pairs of models that are compared on a prompt."""
        if self.settings.pairs != ADAPTIVE:
            return self.settings.plain_pairs()
        return [(first, second) for first, second in self.planned[prompt]]

    async def _answers(self, conversation: Conversation, prompt: JudgedPrompt) -> list[list[str]]:
        """Return the answers of each candidate by turn; none of a candidate that is in no pair."""
        needed: Sequence[int] = range(len(self.settings.candidate))
        if self.settings.mode == PAIRS:
            needed = sorted({at for pair in self.pairs_of(prompt.id) for at in pair})
        answers: list[list[str]] = [[] for _ in self.settings.candidate]
        texts = await gather([partial(self._answer, conversation, at, prompt) for at in needed])
        for at, own in zip(needed, texts, strict=True):
            answers[at] = own
        return answers

    async def _answer(self, conversation: Conversation, at: int, prompt: JudgedPrompt) -> list[str]:
        system = self.pack.render("candidate.system")
        agent = Agent(conversation, f"{CANDIDATE}-{at + 1}", system, self.settings.sampling_of(CANDIDATE))
        texts = []
        for turn, question in enumerate(prompt.turns):
            agent.hint = CandidateHint(prompt.id, turn)
            texts.append((await agent.ask(question)).text)
        return texts

    async def _compare_all(
        self, conversation: Conversation, prompt: JudgedPrompt, answers: list[list[str]], entries: list[Any]
    ) -> None:
        plan = [(pair, turn) for pair in self.pairs_of(prompt.id) for turn in range(len(prompt.turns))]
        judges = range(len(self.settings.judge))
        calls = []
        for (first, second), turn in plan:
            branch = conversation.branch(f"{first + 1} and {second + 1}, turn {turn + 1}")
            for name, order in (("first", (first, second)), ("second", (second, first))):
                dialogs = [answers[at][: turn + 1] for at in order]
                part = branch.branch(name)
                calls += [partial(self._compare, part, judge, prompt, turn, dialogs) for judge in judges]
        verdicts: list[int | None] = [None] * len(calls)
        try:
            await _fill(verdicts, calls)
        finally:  # a stopped conversation keeps the verdicts that it has
            each = len(judges)
            for at, (pair, turn) in enumerate(plan):
                first_order = verdicts[2 * at * each : (2 * at + 1) * each]
                second_order = verdicts[(2 * at + 1) * each : (2 * at + 2) * each]
                both_orders = [list(both) for both in zip(first_order, second_order, strict=True)]
                entries.append({"models": list(pair), "turn": turn + 1, "verdicts": both_orders})

    async def _compare(
        self, conversation: Conversation, judge: int, prompt: JudgedPrompt, turn: int, dialogs: Sequence[Sequence[str]]
    ) -> int | None:
        """Return 1 if the answer shown first wins, -1 if the other one, 0 for a tie, None if unreadable."""
        last = [texts[-1] for texts in dialogs]
        first, second = (answer_quality(prompt.turns[turn], text) for text in last)
        lengths = answer_length(last[0]), answer_length(last[1])
        hint = PairHint((first, second), lengths, (False, False), (False, False))
        content = pair_prompt(self.pack, prompt, turn, dialogs)
        agent = self._judge(conversation, judge, hint)
        verdict = await agent.ask_for(PairVerdict, content, _judged(prompt, turn, *dialogs))
        return None if verdict is None else PREFERENCE_SIGNS[verdict.verdict]

    async def _grade_all(
        self, conversation: Conversation, prompt: JudgedPrompt, answers: list[list[str]], entries: list[Any]
    ) -> None:
        plan = [(at, turn) for at in range(len(answers)) for turn in range(len(prompt.turns))]
        judges = range(len(self.settings.judge))
        calls = []
        for at, turn in plan:
            part = conversation.branch(f"{at + 1}, turn {turn + 1}")
            calls += [partial(self._grade, part, judge, prompt, turn, answers[at][: turn + 1]) for judge in judges]
        grades: list[float | None] = [None] * len(calls)
        try:
            await _fill(grades, calls)
        finally:
            for number, (at, turn) in enumerate(plan):
                own = grades[number * len(judges) : (number + 1) * len(judges)]
                entries.append({"model": at, "turn": turn + 1, "verdicts": own})

    async def _grade(
        self, conversation: Conversation, judge: int, prompt: JudgedPrompt, turn: int, texts: Sequence[str]
    ) -> float | None:
        hint = AnswerHint(answer_quality(prompt.turns[turn], texts[-1]), SCALE)
        agent = self._judge(conversation, judge, hint)
        content = grade_prompt(self.pack, prompt, turn, texts)
        grade: Any = await agent.ask_for(grade_form(SCALE), content, _judged(prompt, turn, texts))
        return None if grade is None else SCALE.points(grade.score)

    def _judge(self, conversation: Conversation, judge: int, hint: Any) -> Agent:
        system, sampling = self.pack.render("judge.system"), self.settings.sampling_of(JUDGE)
        return Agent(conversation, judge_role(judge), system, sampling, hint)


async def _fill(results: list[Any], calls: Sequence[Callable[[], Awaitable[Any]]]) -> None:
    """Await all calls at once, and put each result at its position."""

    async def put(at: int) -> None:
        results[at] = await calls[at]()

    await gather([partial(put, at) for at in range(len(calls))])


def pair_prompt(pack: PromptPack, prompt: JudgedPrompt, turn: int, dialogs: Sequence[Sequence[str]]) -> str:
    """Return the request to compare two models' answers to a turn, in the order in which the judge sees them."""
    reference = _reference(pack, prompt, turn)
    if turn == 0:
        [first], [second] = dialogs
        answers = {"answer_a": first, "answer_b": second}
        return pack.render("judge.pair", question=prompt.turns[0], **answers, reference=reference)
    first, second = (_dialog(pack, prompt, texts) for texts in dialogs)
    return pack.render("judge.pair_later", dialog_a=first, dialog_b=second, reference=reference)


def grade_prompt(pack: PromptPack, prompt: JudgedPrompt, turn: int, texts: Sequence[str]) -> str:
    """Return the request to grade a model's answer to a turn."""
    reference, scale = _reference(pack, prompt, turn), SCALE.words()
    if turn == 0:
        return pack.render("judge.grade", question=prompt.turns[0], answer=texts[0], reference=reference, scale=scale)
    return pack.render("judge.grade_later", dialog=_dialog(pack, prompt, texts), reference=reference, scale=scale)


def _dialog(pack: PromptPack, prompt: JudgedPrompt, texts: Sequence[str]) -> str:
    return "\n".join(
        pack.render("judge.turn", number=str(number), question=question, answer=answer)
        for number, (question, answer) in enumerate(zip(prompt.turns, texts, strict=False), 1)
    )


def _reference(pack: PromptPack, prompt: JudgedPrompt, turn: int) -> str:
    return "".join(
        pack.render("judge.reference", number=str(number), text=text)
        for number, text in enumerate(prompt.references[: turn + 1], 1)
        if text
    )


def _judged(prompt: JudgedPrompt, turn: int, *dialogs: Sequence[str]) -> str:
    """Return all text by others in a judge's prompt; JSON quoted from it is no verdict."""
    return "\n".join([*prompt.turns[: turn + 1], *(text for texts in dialogs for text in texts), *prompt.references])


_BRANCH = re.compile(r"(\d+)(?: and (\d+))?, turn (\d+)(?:/(first|second))?")


def render_judging(recorded: RecordedConversation) -> RenderedConversation:
    """Return the turns of a conversation under the models' labels; a verdict's mark says what it is about."""
    result = recorded.result or {}
    names = {f"{CANDIDATE}-{at}": label for at, label in enumerate(result.get("models", ()), 1)}
    names |= {judge_role(at): label for at, label in enumerate(result.get("judges", ()))}
    roles = {entry.role for entry in (*recorded.entries, *recorded.unanswered) if isinstance(entry, Exchange)}
    sides: dict[str, Side] = {role: "compared" if role.startswith(CANDIDATE) else "judging" for role in roles}
    turns = []
    for entry in recorded.entries:
        turn = render_entry(entry, sides)
        if isinstance(entry, Exchange):
            turn.speaker = names.get(entry.role, entry.role)
            if match := _BRANCH.fullmatch(entry.branch):
                first, second, number, order = match.groups()
                labels = [names.get(f"{CANDIDATE}-{at}", str(at)) for at in (first, second) if at is not None]
                subject = ", then ".join(labels[::-1] if order == "second" else labels)
                turn.marks.append(Mark(f"{subject}, turn {number}"))
        turns.append(turn)
    return RenderedConversation([*turns, *pending_turns(recorded, sides)])
