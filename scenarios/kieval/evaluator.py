"""The evaluator: it reads each exchange with party markers, keeps its own verdicts, and may stop the interview.

An unreadable verdict is requested once more; a second failure leaves the round unscored. The evaluator's prompts are
the part `evaluator` of `prompts/kieval.yaml`; `pack_templates` lists the templates that a pack needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from viva.agents.agent import PackAgent, repair_view
from viva.agents.assistants.assistant import Assistant, AssistantResult, with_assistant_results
from viva.agents.prompts import PromptPack
from viva.agents.verdict_copies import CopyCounter, WordedVerdict
from viva.engine.conversation import Conversation
from viva.engine.errors import ConfigurationError, MalformedOutput
from viva.engine.messages import Completion, Sampling

from .simulated_interview import InterviewHint
from .verdicts import PartlyReadable, Verdict, bare_verdict, read_verdict, verdict_comments


@dataclass(slots=True)
class Assessment:
    """The outcome of a round: a verdict, or None with the `problem` that left it unscored.

    A partly readable verdict has a problem too: its missing scores are unscored. `failures` counts invalid texts (0, 1
    or 2).
    """

    verdict: Verdict | None
    failures: int = 0
    problem: str | None = None


def check_first_verdicts(pack: PromptPack) -> None:
    """Check that the initial verdicts in a pack are valid verdicts.

    Raises:
        ConfigurationError: One is not; the message names it.
    """
    for name in ("evaluator.first_right", "evaluator.first_wrong", "evaluator.first_unread"):
        if name in pack:
            try:
                read_verdict(pack.render(name))
            except MalformedOutput as error:
                raise ConfigurationError(f"prompt pack '{pack.name}', {name}: not a verdict: {error}") from None


# The kind of the first answer, and every score of the default verdict on it. An answer without a choice may be right
# or wrong; the points for 3 are closest to the mean of the points for 4 and 1.
_FIRST_VERDICTS = {True: ("right", 4), False: ("wrong", 1), None: ("unread", 3)}


def first_verdict(pack: PromptPack, *, right: bool | None) -> tuple[str, str]:
    """Return the pack's remark on the first answer, and the initial verdict on it.

    `right` is None for an answer that names no choice. In the default verdict all scores are 4 (right), 1 (wrong) or 3
    (no choice).
    """
    kind, score = _FIRST_VERDICTS[right]
    remark = pack.render(f"evaluator.{kind}") if f"evaluator.{kind}" in pack else ""
    verdict = f"evaluator.first_{kind}"
    return remark, pack.render(verdict) if verdict in pack else bare_verdict(score)


class Evaluator(PackAgent):
    """The judge.

    `copies` counts copied verdicts; `_opening`, unless empty, precedes the next exchange. If `plain`, an unreadable
    verdict is not requested again.
    """

    __slots__ = ("_opening", "_plain", "copies")

    def __init__(
        self,
        conversation: Conversation,
        role: str,
        pack: PromptPack,
        sampling: Sampling,
        hint: Any = None,
        *,
        plain: bool = False,
    ) -> None:
        super().__init__(conversation, role, pack, sampling, hint)
        self._plain = plain

    def begin(self, question: str, choices: str, answer: str, reply: str, *, right: bool | None) -> None:
        """Show the question and the initial verdict; `right` is None if the answer names no choice."""
        opening = self.pack.render("evaluator.opening", question=question, choices=choices, answer=answer, reply=reply)
        remark, verdict = first_verdict(self.pack, right=right)
        self.view.append("user", f"{opening}\n\n{remark}" if remark else opening)
        self.view.append("assistant", verdict)
        self._opening = ""
        self.copies = CopyCounter(WordedVerdict.from_texts(read_verdict(verdict).scores(), verdict_comments(verdict)))

    def begin_free(self, question: str, answer: str, reply: str) -> None:
        """Show a question without choices, its answer and the reply; there is no initial verdict."""
        self._opening = self.pack.render("evaluator.free_opening", question=question, answer=answer, reply=reply)
        self.copies = CopyCounter()

    async def assess(
        self, question: str, reply: str, assistants: Sequence[Assistant] = (), advice: Sequence[AssistantResult] = ()
    ) -> Assessment:
        """Return the verdict on one exchange; the evaluator reads the assistants' results (`advice`) on the reply."""
        exchange = self.pack.render("evaluator.exchange", question=question, reply=reply)
        if self._opening:
            exchange, self._opening = f"{self._opening}\n\n{exchange}", ""
        self.view.append("user", with_assistant_results(exchange, assistants, advice))
        # For simulated judges; real ones read the exchange.
        hint = None if self.hint is None else InterviewHint(self.hint.item, reply)
        completion = await self.conversation.generate(self.role, self.view, self.sampling, hint=hint)
        first = self._read(completion, reply)
        if first.problem is None or self._plain:
            self.view.append("assistant", completion.text, completion.pieces)
            return self._counted(first, completion, reply)
        # The repair is a side branch: later verdicts see only the repaired verdict.
        branch = repair_view(self.view, completion, self.pack.render("evaluator.repair", problem=first.problem))
        repaired = await self.conversation.generate(self.role, branch, self.sampling, hint=hint)
        # Without tokens: they were computed after the repair request, so a local model prefills the text here again.
        self.view.append("assistant", repaired.text)
        second = self._read(repaired, reply)
        second.failures += 1
        if second.verdict is None and first.verdict is not None:  # some scores are better than none
            return self._counted(Assessment(first.verdict, second.failures, first.problem), completion, reply)
        return self._counted(second, repaired, reply)

    def _counted(self, assessment: Assessment, completion: Completion, reply: str) -> Assessment:
        """Count the verdict of an assessment if it is a copy."""
        if assessment.verdict is not None:
            self.copies.add(assessment.verdict.scores(), verdict_comments(completion.text), reply)
        return assessment

    def _read(self, completion: Completion, reply: str) -> Assessment:
        """Parse a text of the judge about a reply; `failures` is 0 or 1."""
        if completion.refusal_reason is not None:
            return Assessment(None, 1, f"it holds nothing (the call ended by {completion.refusal_reason})")
        try:
            return Assessment(read_verdict(completion.text, judged=reply, truncated=completion.finish == "length"))
        except PartlyReadable as error:
            return Assessment(error.verdict, 1, str(error))
        except MalformedOutput as error:
            return Assessment(None, 1, str(error))
