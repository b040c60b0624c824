"""Harness of verifiers (v1 API) for a scenario; needs the package verifiers.

Calls of the compared role go to an endpoint that the package intercepts, so the package's trace has the trained model's
prompts and answers. Calls of other roles are only in the run folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, ClassVar

from verifiers.v1 import Harness, HarnessConfig, ModelContext, TaskData, Trace  # type: ignore[import-not-found]
from verifiers.v1.runtimes import ProgramResult, Runtime  # type: ignore[import-not-found]

from viva.engine.backends.endpoint_address import EndpointAddress
from viva.engine.backends.openai import OpenAIBackend
from viva.engine.clock import RealClock
from viva.orchestration.python_api import scenario_of
from viva.orchestration.rollouts import Reward, rollouts
from viva.scenarios.contract import compared_role

from .training_data import tasks_for


class ScenarioHarness(Harness[HarnessConfig]):  # type: ignore[misc]
    """Harness in which each launch is a run of one conversation.

    Subclass it in your own module and export the subclass in `__all__`; the module's name is the harness's id.

    `scenario`, `settings` and `reward_of` (there `reward`) are as for `viva.rollouts`. `models` are the models of the
    roles that are not compared. Run folders are created in `out`, named after their trace. The trace has the reward as
    `reward_name`, unless the conversation is unscored. `trace.info["viva"]` has the run folder, the conversation's key
    and what the scenario returned for the conversation (`value`).
    """

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    scenario: ClassVar[Any]
    models: ClassVar[Mapping[str, Any]] = {}
    settings: ClassVar[Mapping[str, Any]] = {}
    reward_of: ClassVar[Callable[[Any], Reward] | None] = None
    out: ClassVar[str | Path] = "runs"
    reward_name: ClassVar[str] = "conversation"

    def task(self, data: TaskData) -> Any:
        """Return the task for the scenario. Default: the text of the prompt."""
        return data.prompt_text

    async def launch(
        self,
        ctx: ModelContext,
        trace: Trace,
        runtime: Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: TaskData,
    ) -> ProgramResult:
        scenario = scenario_of(self.scenario)
        policy = OpenAIBackend(RealClock(), EndpointAddress(endpoint.rstrip("/"), ctx.model, secret))
        policy.label = "policy"
        folder = Path(self.out) / trace.id
        stream = rollouts(
            scenario,
            models={**self.models, compared_role(scenario.roles).name: policy},
            tasks=tasks_for(scenario, [self.task(data)], folder),
            reward=type(self).reward_of,
            out=folder,
            **self.settings,
        )
        async with aclosing(stream):  # after a timeout, too, no call stays in flight
            [rollout] = [rollout async for rollout in stream]
        trace.info["viva"] = {"run": str(stream.run.path), "key": rollout.key, "value": rollout.value}
        if rollout.error is not None:
            return ProgramResult(1, "", f"{rollout.error['type']}: {rollout.error['message']}")
        if rollout.reward is not None:
            trace.record_reward(self.reward_name, rollout.reward)
        return ProgramResult(0, "", "")
