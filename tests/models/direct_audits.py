"""Audits of simulated judges without journal and event loop: hundreds of whole audits in seconds.

The protocol, the persona, the readers of verdicts and the statistics are the real ones; a call is one function call.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from viva.engine import seeds
from viva.engine.backends.simulated import SimulatedBackend
from viva.engine.clock import VirtualClock
from viva.engine.messages import Completion, Request, Sampling, View
from viva.scenarios.audit.audit_cases import AuditCase, AuditSettings
from viva.scenarios.audit.audit_protocol import TEMPLATES, AuditProtocol, AuditTask, questions_for
from viva.scenarios.audit.audit_report import JudgeVerdicts, findings

PACK = TEMPLATES.open("audit")
FAMILY = "aster"


class DirectConversation:
    """What the protocol needs of a conversation, answered at once by a simulated model."""

    def __init__(self, model: SimulatedBackend, key: str, seed: int) -> None:
        self._model, self._line = model, seeds.ConversationSeeds(seed, key)
        self.label, self.usage, self.irregular = model.label, dict[str, Any](), dict[str, Any]()
        self._calls = 0

    def tell(self, lines: Callable[[], Any]) -> None:
        """Transcripts are not kept."""

    async def generate(
        self, role: str, view: View, sampling: Sampling, *, hint: Any = None, watch: Sequence[Any] = ()
    ) -> Completion:
        """The model's answer; the seed is that of the call in a real run."""
        seed = self._line.seed(role, self._calls)
        self._calls += 1
        request = Request(view.messages, sampling, seed, b"", hint=hint)
        text, _ = hint.simulated(self._model, request, seeds.draws(seed, "simulated"))
        return Completion(text)


def drawn_cases(count: int, seed: int) -> list[AuditCase]:
    """Cases of three-sentence answers, either of which may be the better one and of either family."""
    cases = []
    for number in range(count):
        draw = seeds.draws(seed, number, "case")
        words = [[f"Fact {number} {side} {at} holds for a reason." for at in range(3)] for side in "xy"]
        families = (FAMILY, "birch") if draw[0] < 0.5 else ("birch", FAMILY)
        answers = (" ".join(words[0]), " ".join(words[1]))
        cases.append(AuditCase(f"c{number}", f"What holds for {number}?", answers, families, int(draw[1] < 0.5)))
    return cases


def audited(cases: Sequence[AuditCase], seed: int, label: str = "judge", **options: Any) -> list[dict[str, Any]]:
    """All findings about one simulated judge of the family ``FAMILY``; ``options`` are those of the model."""
    model = SimulatedBackend(VirtualClock(), **options)
    model.label = label
    settings = AuditSettings(judge=[f"simulated:{label}"])
    hold = AuditProtocol(PACK, settings, {label: FAMILY}).run
    verdicts = JudgeVerdicts()
    for case in cases:
        for question in questions_for(settings.audits):
            task = AuditTask(case, question)
            conversation: Any = DirectConversation(model, f"{label}/{task.id}", seed)
            verdicts.add(finished(hold(conversation, task)))
    return findings({label: verdicts}, {label: FAMILY}, settings.audits)


def finished(coroutine: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    """The result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: dict[str, Any] = done.value
        return result
    raise AssertionError("the audit waited for something")
