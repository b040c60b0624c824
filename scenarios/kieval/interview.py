"""The KIEval interview (Yu et al. 2024, Algorithm 1) as straight-line code, with its candidate and interactor.

The candidate answers the benchmark question once; all roles see the choice that it names or, for a question without
choices, its words, which the evaluator compares with the reference answer. Then, round by round, the interactor asks,
the candidate replies, the evaluator assesses. With `overlap` the next question is asked while the last reply is judged,
because it never depends on the verdict (the interactor never sees one); if the verdict stops the interview, that
question is discarded and its cost counted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any

from viva.agents.agent import PackAgent
from viva.agents.assistants.assistant import Assistant, Example, score_all
from viva.agents.choices import read_choice
from viva.agents.prompts import PromptPack
from viva.agents.questions import NO_QUESTION, question_fault, question_words
from viva.data.items import Item, format_item
from viva.engine.cancellation import gather
from viva.engine.conversation import Conversation, ConversationStopped
from viva.engine.detectors import Detector
from viva.engine.errors import TranscriptEnded
from viva.engine.messages import Completion, Pieces, Sampling, View

from .evaluator import Assessment, Evaluator
from .kieval_settings import CHOICE_MODES, FirstAnswerMode
from .published import FIRST_TOKENS, published_choice
from .score import Interview, Round, SeedVerdicts
from .simulated_interview import InterviewHint


class Candidate(PackAgent):
    """The model under examination."""

    __slots__ = ()

    async def solve(
        self, question: str, choices: str, view: View | None = None, sampling: Sampling | None = None
    ) -> Completion:
        """Answer the benchmark question, in the prompt of the pack or of `view`.

        `choices` is empty for a question without choices. The interview continues from the pack's prompt either way;
        `recall` sets the answer in it.
        """
        if choices:
            put = self.pack.render("candidate.question", question=question, choices=choices)
        else:
            put = self.pack.render("candidate.free_question", question=question)
        self.view.append("user", put)
        return await self.conversation.generate(
            self.role, self.view if view is None else view, sampling or self.sampling, hint=self.hint
        )

    def recall(self, answer: str, pieces: Pieces | None = None) -> None:
        """Set the answer that the candidate remembers as its own to the benchmark question."""
        self.view.append("assistant", answer, pieces)


_REMINDER = "interactor.not_asked"  # without it, only empty questions are requested once more


class Interactor(PackAgent):
    """The examiner's voice.

    `faults` counts its texts that asked nothing, by the names of `question_fault`; `last_fault` ended the interview. If
    `plain`, no text is requested again, and only an empty one ends the interview.
    """

    __slots__ = ("_plain", "_prompts", "_questions", "_replies", "faults", "last_fault")

    def __init__(
        self,
        conversation: Conversation,
        role: str,
        pack: PromptPack,
        sampling: Sampling,
        hint: Any,
        *,
        free: bool,
        plain: bool = False,
    ) -> None:
        """Create the interactor; `free` is True if the benchmark question has no choices."""
        system = "free_system" if free and f"{role}.free_system" in pack else "system"
        super().__init__(conversation, role, pack, sampling, hint, system)
        self._plain = plain
        self._prompts: list[str] = []
        self._questions: list[str] = []
        self._replies: list[str] = []
        self.faults: dict[str, int] = {}
        self.last_fault = NO_QUESTION

    def open(self, question: str, choices: str, answer: str, reply: str) -> Coroutine[Any, Any, str | None]:
        """Ask the first question, given the item and the reply to it; None if it asks nothing."""
        self._replies.append(reply)
        values = {"question": question, "answer": answer, "reply": reply}
        if choices:
            return self._question(self.pack.render("interactor.opening", choices=choices, **values))
        return self._question(self.pack.render("interactor.free_opening", **values))

    def follow_up(self, reply: str) -> Coroutine[Any, Any, str | None]:
        """Ask the next question, given the candidate's last reply; None if it asks nothing."""
        self._replies.append(reply)
        return self._question(self.pack.render("interactor.reply", reply=reply))

    async def _question(self, prompt: str) -> str | None:
        """Return the interactor's question, or None; one that asks nothing is requested once more."""
        self.view.append("user", prompt)
        self._prompts.append(prompt)
        completion = await self.conversation.generate(self.role, self.view, self.sampling, hint=self.hint)
        fault = self._fault(completion)
        if self._plain and fault == NO_QUESTION:
            return None
        if fault is not None and not self._plain:
            retry = self.view.without_last()
            reminder = "interactor.again" if fault == NO_QUESTION else _REMINDER
            text = self.pack.render(reminder) if reminder in self.pack else ""
            retry.append("user", f"{prompt}\n\n{text}" if text else prompt)
            completion = await self.conversation.generate(self.role, retry, self.sampling, hint=self.hint)
            if (fault := self._fault(completion)) is not None:
                self.last_fault = fault
                return None
        self._questions.append(completion.text)
        self.view.append("assistant", completion.text, completion.pieces)
        return completion.text

    def _fault(self, completion: Completion) -> str | None:
        """Return why a text asks nothing, None if it may ask something; count it unless it is empty."""
        if not completion.text.strip():
            return NO_QUESTION  # counted among the empty answers
        if _REMINDER not in self.pack:
            return None
        fault = question_fault(
            completion.text,
            prompts=self._prompts,
            replies=self._replies,
            earlier=self._questions,
            truncated=completion.finish == "length",
        )
        if fault is not None:
            self.faults[fault] = self.faults.get(fault, 0) + 1
        return fault


# Texts of an exchange that assistants may compare a reply with; `ANSWER_TEXT`, the right answer, is the default.
ANSWER_TEXT = "answer"
COMPARISON_TEXTS = (ANSWER_TEXT, "question", "dialogue")


@dataclass(slots=True)
class InterviewProtocol:
    """The interviews of a run.

    `examples` turns an item into a question after solved ones, for five-shot. `assistants` score each reply for the
    evaluator. `cluster` is the field of an item that defines clusters (`Item.cluster`). If `plain`, nothing is
    requested twice. Each of `judge_seeds` evaluators, the same model with another seed, judges the whole interview.
    """

    pack: PromptPack
    rounds: int
    early_stop: bool
    overlap: bool
    detectors: list[Callable[[], Detector]]
    sampling: dict[str, Sampling]
    first_answer: FirstAnswerMode = "choice"
    examples: Callable[[Item], View | None] = lambda item: None
    assistants: tuple[Assistant, ...] = ()
    cluster: str | None = None
    plain: bool = False
    judge_seeds: int = 1

    def run(self, conversation: Conversation, item: Item) -> Coroutine[Any, Any, dict[str, Any]]:
        return _Interview(conversation, self, item).run(item)


class _Interview:
    """A running interview."""

    __slots__ = (
        "_candidate",
        "_conversation",
        "_evaluators",
        "_exchanges",
        "_interactor",
        "_item",
        "_judging",
        "_last_reply",
        "_protocol",
        "_repeated",
        "interview",
    )

    def __init__(self, conversation: Conversation, protocol: InterviewProtocol, item: Item) -> None:
        pack, sampling = protocol.pack, protocol.sampling
        hint = InterviewHint(item)
        self._conversation, self._protocol, self._item = conversation, protocol, item
        self._exchanges: list[str] = []  # earlier exchanges, for assistants
        self._last_reply: list[str] = []  # the words of the last reply
        self._repeated = 0  # replies that repeat the previous one word for word
        self._candidate = Candidate(conversation, "candidate", pack, sampling["candidate"], hint)
        self._interactor = Interactor(
            conversation, "interactor", pack, sampling["interactor"], hint, free=item.free, plain=protocol.plain
        )
        # Without a seed in the options, a branch has its own seeds; the first evaluator is that of a run with one.
        self._evaluators = [
            Evaluator(
                conversation.branch(f"seed-{index + 1}") if index else conversation,
                "evaluator",
                pack,
                _with_seed(sampling["evaluator"], index),
                hint,
                plain=protocol.plain,
            )
            for index in range(protocol.judge_seeds)
        ]
        cluster = item.cluster(protocol.cluster)
        self.interview = Interview(conversation.label, item.id, protocol.rounds, free=item.free, cluster=cluster)
        self.interview.seeds = [SeedVerdicts() for _ in self._evaluators[1:]]
        self._judging = list(range(protocol.judge_seeds))  # evaluators that have not stopped the interview

    async def run(self, item: Item) -> dict[str, Any]:
        """Run the interview and return its record; an early end of any kind is part of it."""
        self._conversation.tell(lambda: [("benchmark", format_item(item))])
        try:
            await self._rounds(item)
        except ConversationStopped as stop:
            self._end(stop.by, stop.reason)
        except TranscriptEnded:
            # In a fork, the recorded interview went no further.
            self._end("transcript", "")
        usage = self._conversation.usage
        self.interview.usage = {role: usage[role].to_record() for role in sorted(usage)}
        self.interview.irregular = self._irregular_turns()
        if self.interview.rounds:
            self.interview.copies = self._evaluators[0].copies.to_record()
        return self.interview.to_record()

    async def _rounds(self, item: Item) -> None:
        question, choices, answer = item.question, item.labelled_choices(), item.labelled_answer()
        first = await self._first_answer(item)
        if first is None:
            return
        right = None if self.interview.choice is None else self.interview.right
        for evaluator in self._evaluators:
            if item.free:
                evaluator.begin_free(question, answer, first)
            else:
                evaluator.begin(question, choices, answer, first, right=right)
        next_question = await self._interactor.open(question, choices, answer, first)
        for remaining in range(self._protocol.rounds - 1, -1, -1):
            if next_question is None:
                self._end("interactor", self._interactor.last_fault)
                return
            reply = await self._candidate.ask(next_question, self._protocol.detectors)
            if self._end_if_refused(reply):
                return
            self._note_reply(reply.text)
            if self._protocol.overlap and remaining:
                assessments, following = await self._judge_and_ask(next_question, reply.text)
                if self._record_and_check_stop(assessments):
                    return
                next_question = following
                continue
            if self._record_and_check_stop(await self._assess(next_question, reply.text)):
                return
            if remaining:
                next_question = await self._interactor.follow_up(reply.text)

    def _assess(self, question: str, reply: str) -> Coroutine[Any, Any, list[Assessment]]:
        """Have each evaluator that is still judging judge a reply, after the assistants if there are any."""
        if self._protocol.assistants:
            return self._assess_with(self._protocol.assistants, question, reply)
        return gather([partial(self._evaluators[index].assess, question, reply) for index in self._judging])

    async def _assess_with(self, assistants: Sequence[Assistant], question: str, reply: str) -> list[Assessment]:
        texts = {
            ANSWER_TEXT: self._item.right_text,
            "question": question,
            "dialogue": "\n\n".join(self._exchanges),
        }
        example = Example(reply, texts, ANSWER_TEXT, ("dialogue", "question"))
        advice = await score_all(self._conversation, assistants, example)
        self._exchanges.append(f"{question}\n\n{reply}")
        return await gather(
            [partial(self._evaluators[index].assess, question, reply, assistants, advice) for index in self._judging]
        )

    async def _first_answer(self, item: Item) -> str | None:
        """Return the candidate's answer to the item as all roles see it; None if the interview ends here."""
        mode, interview = self._protocol.first_answer, self.interview
        view = self._protocol.examples(item) if mode in CHOICE_MODES else None
        sampling = replace(self._candidate.sampling, max_tokens=FIRST_TOKENS) if mode == "published" else None
        completion = await self._candidate.solve(item.question, item.labelled_choices(), view, sampling)
        if mode == "published":
            interview.choice = published_choice(completion.text, len(item.choices))
            interview.right = interview.choice == item.answer
        elif not item.free:
            interview.choice = read_choice(completion.text, item.choices, cut=completion.finish == "length")
            interview.right = interview.choice == item.answer
        if self._end_if_refused(completion):
            return None
        if interview.choice is not None and mode != "text":
            self._candidate.recall(item.labelled_choice(interview.choice))
            return item.labelled_choice(interview.choice)
        if mode in CHOICE_MODES:
            self._end("candidate", "unanswered")
            return None
        self._candidate.recall(completion.text, completion.pieces)
        return completion.text

    def _note_reply(self, text: str) -> None:
        words = question_words(text)
        self._repeated += bool(words) and words == self._last_reply
        self._last_reply = words

    def _end_if_refused(self, completion: Completion) -> bool:
        """End the interview if the candidate could not answer; return True if so."""
        reason = completion.refusal_reason
        if reason is not None:
            self._end("candidate", reason)
        return reason is not None

    def _record_and_check_stop(self, assessments: Sequence[Assessment]) -> bool:
        """Record a round's verdicts; return True if no evaluator goes on judging."""
        for index, assessment in zip(list(self._judging), assessments, strict=True):
            verdict = assessment.verdict
            scores = verdict.scores() if verdict is not None else None
            stop = verdict.stop if verdict is not None else None
            round_ = Round(scores, stop, assessment.failures, assessment.problem)
            judged = self._verdicts_of(index)
            judged.rounds.append(round_)
            if index == 0:
                self._conversation.note("verdict", round_)
            if stop is not None and self._protocol.early_stop:
                judged.ended_by, judged.reason = "evaluator", stop
                self._judging.remove(index)
                if not self._judging:
                    self._conversation.stop("evaluator", stop)
        return not self._judging

    def _verdicts_of(self, index: int) -> Interview | SeedVerdicts:
        return self.interview.seeds[index - 1] if index else self.interview

    async def _judge_and_ask(self, question: str, reply: str) -> tuple[list[Assessment], str | None]:
        """Judge the reply and ask the next question concurrently.

        The question is always awaited, so that its cost does not depend on which call was faster.
        """
        before = self._conversation.usage["interactor"].to_record()
        assessments: list[Assessment] = []

        async def judge() -> None:
            assessments.extend(await self._assess(question, reply))

        # The judge starts first, as without overlap: transcripts list calls by their start.
        parts: list[Callable[[], Awaitable[str | None]]] = [judge, partial(self._interactor.follow_up, reply)]
        _, following = await gather(parts)
        verdicts = [assessment.verdict for assessment in assessments]
        stopping = all(verdict is not None and verdict.stop is not None for verdict in verdicts)
        if stopping and self._protocol.early_stop:
            after = self._conversation.usage["interactor"].to_record()
            self.interview.discarded = [total - earlier for total, earlier in zip_longest(after, before, fillvalue=0)]
        return assessments, following

    def _irregular_turns(self) -> dict[str, dict[str, int]]:
        """Return irregular answers, including questions that ask nothing and replies that repeat the previous reply."""
        irregular = {role: dict(kinds) for role, kinds in self._conversation.irregular.items()}
        repeated = {"repeated": self._repeated} if self._repeated else {}
        for role, counts in (("candidate", repeated), ("interactor", self._interactor.faults)):
            if counts:
                irregular[role] = dict(sorted((irregular.get(role, {}) | counts).items()))
        return dict(sorted(irregular.items()))

    def _end(self, source: str, reason: str) -> None:
        for index in self._judging:  # an evaluator that stopped before keeps its end
            judged = self._verdicts_of(index)
            judged.ended_by, judged.reason = source, reason


def _with_seed(sampling: Sampling, index: int) -> Sampling:
    """Return the options of the evaluator with this index: a seed that all calls share differs by evaluator."""
    return sampling if sampling.seed is None or not index else replace(sampling, seed=sampling.seed + index)
