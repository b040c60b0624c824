"""viva examines language models by talking with them. These are the public names; everything else may move.

Embedding: make a run with ``new_run`` (or ``resumed_run``, ``forked_run``), listen to its ``events``, await its
``run()``, and read results back with ``recorded_results``. Names load when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from viva.engine.clock import RealClock, VirtualClock
    from viva.engine.errors import VivaError
    from viva.engine.events import CallFinished, ConversationFailed, ConversationFinished, Event, Noted
    from viva.engine.folder import RunFolder
    from viva.scenarios.kieval.settings import KievalSettings
    from viva.orchestration.launch import Launch, forked_run, new_run, recorded_results, resumed_run
    from viva.scenarios.probes.settings import ProbeSettings

__all__ = [
    "CallFinished",
    "ConversationFailed",
    "ConversationFinished",
    "Event",
    "KievalSettings",
    "Launch",
    "Noted",
    "ProbeSettings",
    "RealClock",
    "RunFolder",
    "VirtualClock",
    "VivaError",
    "forked_run",
    "new_run",
    "recorded_results",
    "resumed_run",
]

_HOMES = {
    "viva.engine.clock": ("RealClock", "VirtualClock"),
    "viva.engine.errors": ("VivaError",),
    "viva.engine.events": ("CallFinished", "ConversationFailed", "ConversationFinished", "Event", "Noted"),
    "viva.engine.folder": ("RunFolder",),
    "viva.scenarios.kieval.settings": ("KievalSettings",),
    "viva.scenarios.probes.settings": ("ProbeSettings",),
    "viva.orchestration.launch": ("Launch", "forked_run", "new_run", "recorded_results", "resumed_run"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'viva' has no attribute '{name}'")
