"""A scenario as a harness of verifiers, run by verifiers: its trace holds what the candidate was sent and said."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

import viva

PYTHON = Path(__file__).parents[2] / ".peers" / "verifiers" / "bin" / "python"
pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="verifiers is not there: `make trainers` installs it")

SCENARIO = """
import viva


@viva.scenario(many="pupil", one="tutor")
async def quiz(conversation: viva.Conversation, topic: str) -> dict[str, object]:
    tutor, pupil = viva.Agent(conversation, "tutor"), viva.Agent(conversation, "pupil", "You are a pupil.")
    first = await pupil.ask(f"What is {topic}? {(await tutor.ask('Begin.')).text}")
    second = await pupil.ask(f"And why? {(await tutor.ask(first.text)).text}")
    return {"score": None if topic == "salt" else 0.75, "texts": [first.text, second.text]}
"""
HARNESS = """
from quiz import quiz
from viva.exchange.trainers.verifiers_harness import ScenarioHarness


class QuizHarness(ScenarioHarness):
    scenario = quiz
    models = {"tutor": "simulated:t"}


__all__ = ["QuizHarness"]
"""
PROGRAM = """
import asyncio, json, sys
from verifiers.v1 import Agent, AgentConfig, Task, TaskData

url, topics = sys.argv[1], sys.argv[2:]
config = AgentConfig.model_validate({
    "harness": {"id": "quiz_harness"}, "runtime": {"type": "subprocess"}, "model": "candidate",
    "client": {"type": "eval", "base_url": url, "api_key_var": "NO_KEY"}, "sampling": {"temperature": 0.5},
    **json.loads(sys.stdin.read()),
})

async def main():
    async with Agent(config) as agent:
        traces = await asyncio.gather(*(agent.run(Task(TaskData(prompt=topic))) for topic in topics))
    for trace in traces:
        [branch] = trace.branches
        print(json.dumps({
            "ok": trace.ok, "reward": trace.reward, "rewards": list(trace.rewards), "info": trace.info, "id": trace.id,
            "messages": [[one.role, one.content] for one in branch.messages], "turns": trace.num_turns,
            "stop": trace.stop_condition, "errors": [error.message for error in trace.errors],
        }))

asyncio.run(main())
"""


class Endpoint:
    """A chat endpoint that says how many messages it was sent; the second question about ``wrong`` is refused."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []

    async def chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.bodies.append(body)
        if len(body["messages"]) == 4 and "What is wrong?" in body["messages"][1]["content"]:
            return web.json_response({"error": {"message": "this request makes no sense"}}, status=400)
        message = {"role": "assistant", "content": f"Answer to {len(body['messages'])} messages."}
        return web.json_response({
            "id": "one", "object": "chat.completion", "created": 1, "model": body["model"],
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14},
        })  # fmt: skip

    def traces(self, folder: Path, *topics: str, **config: Any) -> list[dict[str, Any]]:
        """verifiers' traces of these topics, in a process of its own."""
        (folder / "quiz.py").write_text(SCENARIO)
        (folder / "quiz_harness.py").write_text(HARNESS)
        (folder / "program.py").write_text(PROGRAM)
        return asyncio.run(self._traces(folder, topics, config))

    async def _traces(self, folder: Path, topics: tuple[str, ...], config: dict[str, Any]) -> list[dict[str, Any]]:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.chat)
        async with TestServer(app) as server:
            command = [str(PYTHON), "program.py", str(server.make_url("/v1")), *topics]
            process = await asyncio.create_subprocess_exec(
                *command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            printed, said = await process.communicate(json.dumps(config).encode())
        assert process.returncode == 0, said.decode()[-3000:]
        return [json.loads(line) for line in printed.decode().splitlines() if line.startswith("{")]


def test_the_candidate_answers_through_verifiers_endpoint_and_its_trace_has_the_turns_and_the_reward(
    tmp_path: Path,
) -> None:
    endpoint = Endpoint()
    *traces, refused = endpoint.traces(tmp_path, "tides", "rust", "salt", "wrong")
    for trace, topic in zip(traces, ["tides", "rust", "salt"], strict=True):
        assert (trace["ok"], trace["errors"]) == (True, [])
        run = viva.load(tmp_path / trace["info"]["viva"]["run"])
        [result] = run.results()
        assert (trace["turns"], result.task) == (2, topic)
        assert [role for role, _ in trace["messages"]] == ["system", "user", "assistant", "user", "assistant"]
        said = [text for role, text in trace["messages"] if role == "assistant"]
        assert said == result.value["texts"] == ["Answer to 2 messages.", "Answer to 4 messages."]
        assert trace["info"]["viva"]["value"] == result.value
        assert (trace["reward"], trace["rewards"]) == ((0, []) if topic == "salt" else (0.75, ["conversation"]))
    assert len(endpoint.bodies) == 8
    asked = {(body["model"], body["temperature"]) for body in endpoint.bodies}
    assert asked == {("candidate", 0.5)}  # as verifiers wants it
    # A conversation that fails fails the trace, with its error.
    assert (refused["ok"], refused["turns"], refused["rewards"]) == (False, 1, [])
    assert any("this request makes no sense" in error for error in refused["errors"])
