"""The conversations of a qualification: a model in one role, scripts in the others, and KIEval's agents and prompts.

Each of the model's turns is recorded with its flaws; verdicts also with the truth about the reply that they judge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from viva.agents.choices import read_choice
from viva.agents.prompts import PromptPack
from viva.agents.questions import NO_QUESTION, is_loop, question_fault, question_words, seems_to_ask
from viva.data.items import format_item
from viva.engine.conversation import Conversation, ConversationStopped
from viva.engine.detectors import RoleShift
from viva.engine.messages import Completion, Sampling

from ...run_aggregate import conversation_costs
from ..evaluator import Evaluator, first_verdict
from ..interview import Candidate, Interactor
from ..verdicts import verdict_schema
from .qualification_cases import QualificationTask
from .simulated_qualification import QualificationHint

MODEL = "model"  # the role in the journal, whatever role the model is tested in
_ASIDE_WORDS = 15  # more words after the last question mark are an answer, not a request to be brief


class _RecordingConversation:
    """A conversation in which every agent is `MODEL`; it keeps their completions. `hint` is for simulated models."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self.completions: list[Completion] = []
        self.hint: QualificationHint | None = None

    async def generate(self, role: str, *args: Any, **options: Any) -> Completion:
        completion = await self._conversation.generate(MODEL, *args, **options | {"hint": self.hint})
        self.completions.append(completion)
        return completion


@dataclass(slots=True)
class QualificationProtocol:
    """The qualification conversations of a run; `sampling` is by role."""

    pack: PromptPack
    sampling: Mapping[str, Sampling]

    async def run(self, conversation: Conversation, task: QualificationTask) -> dict[str, Any]:
        """Test the model in one conversation and return its record; `turns` has an entry for each of its turns."""
        record: dict[str, Any] = {"role": task.role, "case": task.case.id, "turns": []}
        conversation.tell(lambda: [("benchmark", format_item(task.case.item))])
        part = {"evaluator": self._judge, "interactor": self._question, "candidate": self._reply}[task.role]
        try:
            await part(conversation, task, record["turns"])
        except ConversationStopped as stop:
            record["stopped"] = f"{stop.by}: {stop.reason}"
        return record | conversation_costs(conversation)

    async def _judge(self, conversation: Conversation, task: QualificationTask, turns: list[dict[str, Any]]) -> None:
        case, item = task.case, task.case.item
        sampling = self.sampling["evaluator"]
        if task.forced:
            sampling = replace(sampling, schema=verdict_schema(sampling.max_tokens))
        recorder: Any = _RecordingConversation(conversation)
        judge = Evaluator(recorder, "evaluator", self.pack, sampling)
        right = case.first == case.answer
        judge.begin(
            item.question,
            item.labelled_choices(),
            item.labelled_answer(),
            item.labelled_choice(case.first),
            right=right,
        )
        initial = first_verdict(self.pack, right=right)[1]
        copies = 0
        for position, index in enumerate(task.exchanges, 1):
            exchange, calls = case.exchanges[index], len(recorder.completions)
            recorder.hint = QualificationHint("evaluator", case, exchange, position, initial)
            conversation.tell(lambda: [("exchange", f"{exchange.question}\n\n{exchange.reply}")])  # noqa: B023
            assessment = await judge.assess(exchange.question, exchange.reply)
            spent = recorder.completions[calls:]
            copies, earlier_copies = judge.copies.from_start + judge.copies.repeated, copies
            turns.append(
                {
                    "exchange": f"{case.id}/{index + 1}",
                    "position": position,
                    "forced": task.forced,
                    "first_right": right,
                    **{name: getattr(exchange, name) for name in ("kind", "length", "grade")},
                    "scores": None if assessment.verdict is None else assessment.verdict.scores(),
                    "stop": None if assessment.verdict is None else assessment.verdict.stop,
                    "failures": assessment.failures,
                    "copied": copies > earlier_copies,
                    **_speed(spent),
                }
            )

    async def _question(self, conversation: Conversation, task: QualificationTask, turns: list[dict[str, Any]]) -> None:
        case, item = task.case, task.case.item
        recorder: Any = _RecordingConversation(conversation)
        interactor = Interactor(recorder, "interactor", self.pack, self.sampling["interactor"], None, free=False)
        first = item.labelled_choice(case.first)
        replies = [first, case.follow_up]
        questions: list[str] = []
        for position, reply in enumerate(replies, 1):
            recorder.hint = QualificationHint("interactor", case, None, position, reply)
            calls = len(recorder.completions)
            if position == 1:
                question = await interactor.open(item.question, item.labelled_choices(), item.labelled_answer(), first)
            else:
                conversation.tell(lambda: [("candidate", case.follow_up)])
                question = await interactor.follow_up(reply)
            spent = recorder.completions[calls:]
            secret = item.right_text if case.first != case.answer else None
            prompts = [message.content for message in interactor.view.messages if message.role != "assistant"]
            flaws = question_flaws(spent[-1], prompts, replies[:position], questions, secret)
            turns.append({"position": position, "flaws": flaws, **_speed(spent)})
            if question is None:  # an interview ends here
                return
            questions.append(question)

    async def _reply(self, conversation: Conversation, task: QualificationTask, turns: list[dict[str, Any]]) -> None:
        case, item = task.case, task.case.item
        recorder: Any = _RecordingConversation(conversation)
        candidate = Candidate(recorder, "candidate", self.pack, self.sampling["candidate"])
        recorder.hint = QualificationHint("candidate", case)
        first = await candidate.solve(item.question, item.labelled_choices())
        choice = read_choice(first.text, list(item.choices), cut=first.finish == "length")
        flaws = [*reply_flaws(first, []), *(["no_choice"] if choice is None else [])]
        turns.append({"position": 0, "flaws": flaws, "right": choice == item.answer, **_speed([first])})
        if first.refusal_reason is not None:
            return
        candidate.recall(first.text if choice is None else item.labelled_choice(choice))
        texts: list[str] = []
        for position, exchange in enumerate(case.exchanges[:2], 1):
            recorder.hint = QualificationHint("candidate", case, exchange, position, texts[-1] if texts else "")
            conversation.tell(lambda: [("interactor", exchange.question)])  # noqa: B023
            reply = await candidate.ask(exchange.question)
            turns.append({"position": position, "flaws": reply_flaws(reply, texts), **_speed([reply])})
            texts.append(reply.text)


def _speed(completions: Sequence[Completion]) -> dict[str, Any]:
    """Return calls, tokens and seconds of a turn."""
    return {
        "calls": len(completions),
        "tokens": sum(completion.completion_tokens for completion in completions),
        "seconds": round(sum(completion.latency for completion in completions), 6),
    }


def question_flaws(
    completion: Completion, prompts: Sequence[str], replies: Sequence[str], earlier: Sequence[str], secret: str | None
) -> list[str]:
    """Return what is wrong with an interactor's turn.

    Args:
        completion: The turn.
        prompts: What it was sent.
        replies: The candidate's texts.
        earlier: Its own questions so far.
        secret: The right answer, if the candidate has not given it.
    """
    text, cut = completion.text.strip(), completion.finish == "length"
    if not text:
        return ["empty"]
    fault = question_fault(text, prompts=prompts, replies=replies, earlier=earlier, truncated=cut)
    if fault is None and not seems_to_ask(text):
        fault = NO_QUESTION
    flaws = [] if fault is None else [fault]
    marks = [position for position, letter in enumerate(text) if letter in "?？"]
    if marks and len(text[marks[-1] + 1 :].split()) >= _ASIDE_WORDS:
        flaws.append("answers_itself")
    if secret is not None and _plain(secret) in _plain(text):
        flaws.append("leak")
    if _plain(text) in map(_plain, earlier) and fault != "repeated_question":
        flaws.append("repeated_question")
    return [*flaws, *(["cut"] if cut else [])]


def reply_flaws(completion: Completion, earlier: Sequence[str]) -> list[str]:
    """Return what is wrong with a candidate's turn, whatever it says; `earlier` are its replies so far."""
    text = completion.text
    if not text.strip():
        return ["empty"]
    checks = {
        "role_shift": RoleShift().finish(text) is not None,
        "loop": is_loop(text),
        "repeated": _plain(text) in map(_plain, earlier),
        "cut": completion.finish == "length",
    }
    return [name for name, is_flawed in checks.items() if is_flawed]


def _plain(text: str) -> str:
    """Return the words of a text, without case and punctuation."""
    return " ".join(question_words(text))
