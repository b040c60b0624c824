"""Runs over one recording endpoint, each of which ends in a way of its own, for tests of what transcripts show.

A model's name is ROLE-CASE; every run holds one conversation at a time, so that arrival numbers are known. Some runs go
on in a process of their own, come to a request that is never answered, are killed, and resumed.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from small_dialogs import TOOLS, dialog_lines, write_lines
from study_runs import SCIENCE, dataset

from viva.orchestration.launch import Launch, forked_run, new_run, resumed_run
from viva.scenarios.functionchat.functionchat_settings import FunctionChatSettings
from viva.scenarios.kieval.kieval_settings import KievalSettings
from viva.scenarios.probes.probe import ProbeSettings

if TYPE_CHECKING:
    from process import Server

_ASPECTS = ("accuracy", "logic", "relevance", "coherence", "conciseness")
LOOP = "round and round it goes, " * 20
SEED = 7


def _verdict(**more: Any) -> str:
    scores = {aspect: {"comment": "", "score": 3} for aspect in _ASPECTS}
    return json.dumps(scores | {"overall_score": 3, "stop_conversation": False, "stop_reason": "none"} | more)


def _says(text: str) -> dict[str, Any]:
    return {"do": "ok", "say": text}


def _calls(name: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"do": "ok", "calls": [{"id": f"made-{name}", "type": "function", "function": function}]}


_STOP = _says(_verdict(stop_conversation=True, stop_reason="off_topic"))
_PASS = _says('{"reasoning": "fine", "verdict": "pass"}')
_ASKS = [_calls("next_tide", harbour="Oban"), _says("At six."), _says("You are welcome.")]
_USER = [_says("When is the tide at Oban?"), _says("Thank you!"), _says("[DONE]")]
_BY_MODEL: dict[str, Any] = {
    "evaluator-stopped": {"schedule": {"1": _STOP}},
    "candidate-detected": {"schedule": {"2": _says(LOOP)}},
    "evaluator-repaired": {"schedule": {"1": "garbage_verdict"}},
    "evaluator-overlap": {"schedule": {"1": "garbage_verdict", "6": _STOP}},
    "candidate-thinking": {"cycle": [_says("<think>Is it A?</think>A."), _says("Because.")]},
    "candidate-failed": {"schedule": {"2": "500"}},
    "evaluator-killed": {"schedule": {"3": "never"}},
    "interactor-silent": {"schedule": {"1": _says(" ")}},
    "candidate-probe-killed": {"schedule": {"13": "never"}},
    "candidate-turns": {"cycle": [_says("Wait."), *_ASKS[:1], _says("Yes.")]},
    "judge-turns": {"default": _PASS, "schedule": {"1": _says("Hard to say.")}},
    "judge-turns-fork": {"default": _PASS, "schedule": {"0": _says("Hm."), "1": _says("Hm.")}},
    "candidate-turns-killed": {"cycle": [_says("Wait."), *_ASKS[:1], _says("Yes.")]},
    "judge-turns-killed": {"default": _PASS, "schedule": {"1": "never"}},
    "candidate-turns-budget": {"default": _says("Wait.")},
    "candidate-user": {"cycle": _ASKS},
    "interactor-user": {"cycle": _USER},
    "candidate-user-budget": {"cycle": _ASKS},
    "interactor-user-budget": {"cycle": _USER},
    "candidate-user-killed": {"cycle": _ASKS, "schedule": {"4": "never"}},
    "interactor-user-killed": {"cycle": _USER},
}
PLAN = {"record": True, "by_model": _BY_MODEL}
INTERVIEWS: dict[str, dict[str, Any]] = {
    "finished": {},
    "stopped": {},
    "detected": {"detectors": ["repetition"]},
    "budget": {"conversation_calls": 5},
    "repaired": {},
    "overlap": {"overlap": True, "rounds": 3},
    "thinking": {"first_answer": "text"},
    "silent": {},
    "failed": {},
    "five-shot": {"first_answer": "five-shot", "rounds": 1},
}
_NAMES = {"kieval": "kieval", "probe": "probe", "turns": "functionchat", "user": "functionchat"}
# Several runs side by side in one process, which is killed.
_RUNS = """
import asyncio, json, sys
from pathlib import Path
from viva.orchestration.launch import new_run
from viva.scenarios.registry import get_scenario

async def main():
    told = json.loads(sys.argv[1])
    settings = [get_scenario(name).settings.model_validate_json(text) for name, text, _ in told]
    await asyncio.gather(*(new_run(name, s, Path(out)).run() for (name, _, out), s in zip(told, settings)))

asyncio.run(main())
"""
_METHODS = ["generate", "letter", "text", "loss"]
_TASK = {
    "id": "tide",
    "goal": "Learn when the tide is.",
    "tools": [TOOLS["next_tide"]["function"]],
    "results": [{"name": "next_tide", "result": {"high": "06:10"}}],
    "expected": [{"name": "next_tide"}],
}
_READ_OUT = {**_TASK, "id": "read", "says": ["The tide?", "Thanks."]}
del _READ_OUT["goal"]


class Making:
    """Makes the runs, each under the name of its case; ``folders`` has where they are."""

    def __init__(self, server: Server, place: Path) -> None:
        self._server, self.place = server, place
        self.folders: dict[str, Path] = {}
        self.killed: subprocess.Popen[bytes] | None = None
        dataset(place / "items.jsonl", 2)
        write_lines(place / "dialogs.jsonl", dialog_lines(1))
        (place / "tasks.yaml").write_text(json.dumps([_TASK, _READ_OUT]))

    def model(self, name: str) -> str:
        return self._server.model(name, retries=0)

    def settings(self, case: str, system: str, **more: Any) -> Any:
        model, items = lambda role: self.model(f"{role}-{case}"), str(self.place / "items.jsonl")
        given: dict[str, Any] = {"candidate": [model("candidate")], "seed": SEED, "concurrency": 1}
        if system == "kieval":
            given |= {"interactor": model("interactor"), "evaluator": model("evaluator"), "rounds": 2}
            if more.get("first_answer") == "five-shot":
                given |= {"shots_from": str(SCIENCE)}
            return KievalSettings(**given | {"dataset": items} | more)
        if system == "probe":
            given |= {"method": _METHODS, "shots": 2, "shots_from": str(SCIENCE)}
            return ProbeSettings(**given | {"dataset": items} | more)
        if system == "turns":
            given |= {"data": str(self.place / "dialogs.jsonl"), "judge": model("judge")}
        else:
            given |= {"data": str(self.place / "tasks.yaml"), "mode": "user", "interactor": model("interactor")}
        return FunctionChatSettings(**given | more)

    def run(self, case: str, system: str, **more: Any) -> None:
        self._carry(new_run(_NAMES[system], self.settings(case, system, **more), self._folder(case)))

    def fork(self, source: str, case: str, judge: str) -> None:
        self._carry(forked_run(self.folders[source], self._folder(case), changes={"evaluator": self.model(judge)}))

    def start(self, **systems: str) -> None:
        """Begin runs in a process of their own, each of which comes to a request that is never answered."""
        told = []
        for case, system in systems.items():
            settings = self.settings(case.replace("_", "-"), system).model_dump_json(exclude_defaults=True)
            told.append([_NAMES[system], settings, str(self._folder(case.replace("_", "-")))])
        self.killed = subprocess.Popen([sys.executable, "-c", _RUNS, json.dumps(told)], stderr=subprocess.DEVNULL)

    def kill_and_resume(self, *cases: str) -> None:
        """Once each of the runs has come to its unanswered request."""
        log: list[dict[str, Any]] = []
        while {case_of(entry["model"]) for entry in log if entry["behaviour"] == "never"} != set(cases):
            log = self._server.log(requests=len(log) + 1)
        assert self.end() == -signal.SIGKILL
        for case in cases:
            self._carry(resumed_run(self.folders[case]))

    def end(self) -> int | None:
        """Kill the process, if it still lives; its exit code."""
        if self.killed is None:
            return None
        self.killed.kill()
        return self.killed.wait()

    def _folder(self, case: str) -> Path:
        return self.folders.setdefault(case, self.place / "runs" / case)

    def _carry(self, launch: Launch) -> None:
        assert launch.clock.run(launch.run).how == "done"


def case_of(model: str) -> str:
    """The case that a model's name ends with."""
    return model.partition("-")[2]
