"""Qualifications of simulated models without journal and event loop: hundreds of whole ones in seconds.

The protocol, the persona, the readers of verdicts and the statistics are the real ones; a call is one function call.
"""

from __future__ import annotations

from typing import Any

from direct_audits import DirectConversation, finished

from viva.engine.backends.simulated import SimulatedBackend
from viva.engine.clock import VirtualClock
from viva.scenarios.kieval.pack_templates import TEMPLATES
from viva.scenarios.kieval.qualification.qualification_cases import (
    ROLES,
    QualifySettings,
    RoleName,
    qualification_tasks,
    shipped_cases,
)
from viva.scenarios.kieval.qualification.qualification_protocol import QualificationProtocol
from viva.scenarios.kieval.qualification.qualification_report import QualifiedModel

PACK = TEMPLATES.open("kieval")


def qualified(role: RoleName, seed: int, *, brief: bool = False, **options: Any) -> QualifiedModel:
    """The turns of one simulated model in a role; ``options`` are those of the model."""
    model = SimulatedBackend(VirtualClock(), **options)
    model.label = "m"
    settings = QualifySettings(model=["simulated:m"])
    protocol = QualificationProtocol(PACK, {name: settings.sampling_of(name) for name in ROLES})
    results = QualifiedModel()
    for task in qualification_tasks(shipped_cases(), [role], brief=brief):
        conversation: Any = DirectConversation(model, f"m/{task.id}", seed)
        results.add(finished(protocol.run(conversation, task)))
    return results
