"""viva examines language models by talking with them.

The names listed here are promised (docs/api.md); everything else may move. They load when they are first used.
"""

from __future__ import annotations

TYPE_CHECKING = False  # not from ``typing``, which would load before the command hears Ctrl-C (``cli/start.py``)
if TYPE_CHECKING:
    from typing import Any

    from viva.agents.agent import Agent
    from viva.agents.prompts import PackTemplates, PromptPack
    from viva.engine.backends.base import Backend
    from viva.engine.clock import RealClock, VirtualClock
    from viva.engine.conversation import Conversation, ConversationStopped
    from viva.engine.errors import BackendError, ConfigurationError, VivaError
    from viva.engine.events import CallFinished, Controlled, ConversationFailed, ConversationFinished, Event, Noted
    from viva.engine.likelihood import Likelihood, Reading
    from viva.engine.messages import Completion, Message, Request, Sampling, View
    from viva.engine.runner import Outcome
    from viva.engine.steps import Computed
    from viva.engine.tools import Toolbox, ToolCall
    from viva.orchestration.python_api import LiveRun, Result, Run, fork, load, resume, run, run_sync, start
    from viva.orchestration.rollouts import Rollout, Turn, rollouts
    from viva.orchestration.verification import Verification, verify
    from viva.reports.studies.court import CourtReport, court
    from viva.scenarios.contract import Aggregate, Prepared, Role, Scenario, Scoring, Task
    from viva.scenarios.function import scenario
    from viva.scenarios.run_settings import RunSettings

    __version__: str

_HOMES = {
    "viva.agents.agent": ("Agent",),
    "viva.agents.prompts": ("PackTemplates", "PromptPack"),
    "viva.engine.backends.base": ("Backend",),
    "viva.engine.clock": ("RealClock", "VirtualClock"),
    "viva.engine.conversation": ("Conversation", "ConversationStopped"),
    "viva.engine.errors": ("BackendError", "ConfigurationError", "VivaError"),
    "viva.engine.events": (
        "CallFinished",
        "Controlled",
        "ConversationFailed",
        "ConversationFinished",
        "Event",
        "Noted",
    ),
    "viva.engine.likelihood": ("Likelihood", "Reading"),
    "viva.engine.messages": ("Completion", "Message", "Request", "Sampling", "View"),
    "viva.engine.runner": ("Outcome",),
    "viva.engine.steps": ("Computed",),
    "viva.engine.tools": ("ToolCall", "Toolbox"),
    "viva.orchestration.python_api": ("LiveRun", "Result", "Run", "fork", "load", "resume", "run", "run_sync", "start"),
    "viva.orchestration.rollouts": ("Rollout", "Turn", "rollouts"),
    "viva.orchestration.verification": ("Verification", "verify"),
    "viva.reports.studies.court": ("CourtReport", "court"),
    "viva.scenarios.contract": ("Aggregate", "Prepared", "Role", "Scenario", "Scoring", "Task"),
    "viva.scenarios.function": ("scenario",),
    "viva.scenarios.run_settings": ("RunSettings",),
}

__all__ = [
    "Agent",
    "Aggregate",
    "Backend",
    "BackendError",
    "CallFinished",
    "Completion",
    "Computed",
    "ConfigurationError",
    "Controlled",
    "Conversation",
    "ConversationFailed",
    "ConversationFinished",
    "ConversationStopped",
    "CourtReport",
    "Event",
    "Likelihood",
    "LiveRun",
    "Message",
    "Noted",
    "Outcome",
    "PackTemplates",
    "Prepared",
    "PromptPack",
    "Reading",
    "RealClock",
    "Request",
    "Result",
    "Role",
    "Rollout",
    "Run",
    "RunSettings",
    "Sampling",
    "Scenario",
    "Scoring",
    "Task",
    "ToolCall",
    "Toolbox",
    "Turn",
    "Verification",
    "View",
    "VirtualClock",
    "VivaError",
    "__version__",
    "court",
    "fork",
    "load",
    "resume",
    "rollouts",
    "run",
    "run_sync",
    "scenario",
    "start",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("viva-exam")
    from importlib import import_module

    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'viva' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
