"""A scenario as a generator of SkyRL: its checks accept the rows, and its merging of turns makes our whole ones."""

from __future__ import annotations

import ast
import asyncio
import copy
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from tiny_gguf import make_model

import viva
from viva.exchange.trainers.policy import Policy
from viva.exchange.trainers.skyrl_generator import ScenarioGenerator

TRAIN = Path(__file__).parents[2] / ".peers" / "skyrl" / "skyrl" / "train"
has_skyrl = pytest.mark.skipif(not TRAIN.exists(), reason="SkyRL's sources are not there: `make trainers` gets them")


def theirs(file: str, *names: str) -> dict[str, Any]:
    """Functions and classes of one of SkyRL's files, which cannot be imported as a whole without torch."""
    tree = ast.parse((TRAIN / file).read_text())
    tree.body = [one for one in tree.body if getattr(one, "name", None) in names]
    assert len(tree.body) == len(names), f"{file} has no {names}"
    future = ast.parse("from __future__ import annotations\nfrom typing import *").body
    tree.body[:0] = future
    space: dict[str, Any] = {"np": np, "logger": logging.getLogger("skyrl"), "dataclass": dataclass}
    space["__name__"] = __name__
    exec(compile(tree, file, "exec"), space)
    return space


@dataclass
class TrajectoryID:
    """As SkyRL's own, where that is not there."""

    instance_id: str
    repetition_id: int

    def to_string(self) -> str:
        return f"{self.instance_id}_{self.repetition_id}"


@viva.scenario(many="policy")
async def talk(conversation: viva.Conversation, topic: str) -> dict[str, Any]:
    policy = viva.Agent(conversation, "policy", sampling=viva.Sampling(max_tokens=6, logprobs=0, temperature=1.0))
    first = await policy.ask(topic)
    if topic == "wrong":
        raise ValueError("no such topic")
    second = await policy.ask("More.")
    return {"rewards": None if topic == "unscored" else [0.25, 0.5], "texts": [first.text, second.text]}


def batch(*topics: str, samples: int = 2) -> dict[str, Any]:
    return {
        "prompts": [[{"role": "user", "content": topic}] for topic in topics for _ in range(samples)],
        "env_classes": ["viva"] * len(topics) * samples,
        "env_extras": None,
        "sampling_params": None,
        "trajectory_ids": [TrajectoryID(topic, number) for topic in topics for number in range(samples)],
        "batch_metadata": None,
    }


class Words(viva.Backend):
    """Answers three words, the second of which a grammar forced, and an end mark, which has no log-probability."""

    label = "words"

    async def generate(self, request: viva.Request) -> viva.Completion:
        ids = [10 + request.seed % 50, 20, 30 + request.seed % 7]
        logprobs: list[list[Any]] = [[f"w{one}", -one / 8, {}] for one in ids]
        pieces = [(True, ids[:1]), (False, ids[1:2]), (True, [ids[2], 2])]
        return viva.Completion(" ".join(f"w{one}" for one in ids), logprobs=logprobs, pieces=pieces)


def tokenize(messages: list[dict[str, Any]]) -> list[int]:
    """A chat template that goes on with the very tokens of the answers before."""
    roles, ids = {"system": 3, "user": 4, "assistant": 5}, [1]
    for message in messages:
        words = message["content"].split()
        ids += [roles[message["role"]], *(int(one[1:]) if one[1:].isdigit() else 6 for one in words), 2]
    return [*ids, roles["assistant"]]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, dict[str, Any]]:
    """The same batch as rows by turn and by conversation."""

    def output(step_wise: bool) -> dict[str, Any]:
        generator = ScenarioGenerator(
            talk,
            models={"policy": Policy(Words(), 3)},
            tokenize=tokenize,
            step_wise=step_wise,
            reward=lambda value: value["rewards"],
            out=tmp_path_factory.mktemp("runs"),
        )
        return asyncio.run(generator.generate(batch("tides", "unscored", "wrong")))

    return {step_wise: output(step_wise) for step_wise in (True, False)}


def test_rows_come_in_the_order_of_the_batch_with_masks_rewards_and_versions(
    outputs: dict[bool, dict[str, Any]],
) -> None:
    turns = outputs[True]
    ids = [(one.instance_id, one.repetition_id) for one in turns["trajectory_ids"]]
    assert ids == [("tides", 0)] * 2 + [("tides", 1)] * 2 + [("unscored", 0)] * 2 + [("unscored", 1)] * 2 + [
        ("wrong", 0), ("wrong", 1)
    ]  # fmt: skip
    assert turns["is_last_step"] == [False, True] * 4 + [True, True]
    assert [sum(rewards) for rewards in turns["rewards"]] == [0.25, 0.5] * 2 + [0.0] * 6
    for row, response in enumerate(turns["response_ids"]):
        mask, logprobs = turns["loss_masks"][row], turns["rollout_logprobs"][row]
        assert len(response) == len(mask) == len(logprobs) == len(turns["rewards"][row])
        assert mask == ([1, 0, 1, 0] if row < 4 else [0] * 4)  # what failed or is unscored is not trained on
        assert logprobs == [-response[0] / 8, -2.5, -response[2] / 8, 0.0]
    assert turns["stop_reasons"][-2:] == ["error", "error"]
    assert all(one["versions"] == ["3"] for one in turns["env_metrics"])
    assert turns["response_ids"][0] != turns["response_ids"][2]  # samples of one prompt have seeds of their own


@has_skyrl
def test_the_tokens_of_a_local_model_pass_skyrls_checks(tmp_path: Path) -> None:
    model = make_model(tmp_path / "tiny.gguf")
    vocabulary = llama_cpp.Llama(str(model), vocab_only=True, verbose=False)

    def ids(messages: list[dict[str, Any]]) -> list[int]:
        text = "".join(f"<|{one['role']}|>{one['content']}</s>" for one in messages) + "<|assistant|>"
        found: list[int] = vocabulary.tokenize(text.encode(), add_bos=True, special=True)
        return found

    name = f"llama:{model}?ctx=512&lanes=2"
    generator = ScenarioGenerator(talk, models={"policy": name}, tokenize=ids, step_wise=True, out=tmp_path,
                                  reward=lambda value: value["rewards"])  # fmt: skip
    output = asyncio.run(generator.generate(batch("tides")))
    checks = theirs("utils/trainer_utils.py", "validate_generator_output", "_validate_step_wise_fields")
    checks["validate_generator_output"](2, output, step_wise=True)
    assert sum(map(sum, output["loss_masks"])) > 8
    assert all(one < 0 for row in output["rollout_logprobs"] for one in row if one)


@has_skyrl
def test_skyrls_own_checks_accept_the_rows_and_its_merging_of_turns_gives_ours(
    outputs: dict[bool, dict[str, Any]],
) -> None:
    checks = theirs("utils/trainer_utils.py", "validate_generator_output", "_validate_step_wise_fields")
    checks["validate_generator_output"](6, outputs[True], step_wise=True)
    checks["validate_generator_output"](6, outputs[False])
    fields = theirs("generators/base.py", "GeneratorOutput")["GeneratorOutput"].__annotations__
    assert outputs[True].keys() <= fields.keys()
    broken = copy.deepcopy(outputs[True])
    broken["loss_masks"][0].append(1)
    with pytest.raises(AssertionError, match="same length"):
        checks["validate_generator_output"](6, broken, step_wise=True)

    merging = theirs("generators/utils.py", "_merge_single_trajectory", "_is_prefix")
    for number, first in enumerate(range(0, 8, 2)):
        rows = {name: value[first : first + 2] for name, value in outputs[True].items() if isinstance(value, list)}
        merged = merging["_merge_single_trajectory"](rows | {"rollout_metrics": None})
        for name in ("prompt_token_ids", "response_ids", "rewards", "loss_masks", "stop_reasons", "rollout_logprobs"):
            assert merged[name] == [outputs[False][name][number]], name


def test_a_batch_that_cannot_be_held_is_refused_and_a_model_without_tokens_named(tmp_path: Path) -> None:
    def generator(model: str) -> ScenarioGenerator:
        return ScenarioGenerator(talk, models={"policy": model}, tokenize=lambda messages: [1], out=tmp_path)

    uneven = batch("tides", "rust")
    uneven["trajectory_ids"][3] = TrajectoryID("tides", 2)
    with pytest.raises(viva.ConfigurationError, match="not sampled equally often"):
        asyncio.run(generator("simulated:a").generate(uneven))
    with pytest.raises(viva.ConfigurationError, match="returns no token ids"):
        asyncio.run(generator("simulated:a").generate(batch("tides")))


class Waiting(viva.Backend):
    """Never answers about ``tides``."""

    label = "w"

    def __init__(self) -> None:
        self.asked, self.in_flight = asyncio.Event(), 0

    async def generate(self, request: viva.Request) -> viva.Completion:
        if "tides" in request.conversation:
            self.in_flight += 1
            if self.in_flight == 2:
                self.asked.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.in_flight -= 1
        return viva.Completion("So.", pieces=[(True, [5, 7])])


def test_the_trainer_cancels_all_samples_of_a_prompt(tmp_path: Path) -> None:
    async def main() -> tuple[list[str], dict[str, Any]]:
        waiting = Waiting()
        generator = ScenarioGenerator(
            talk, models={"policy": waiting}, tokenize=lambda messages: [1, 2], step_wise=True,
            reward=lambda value: value["rewards"], out=tmp_path,
        )  # fmt: skip
        task = asyncio.create_task(generator.generate(batch("tides", "rust")))
        await waiting.asked.wait()
        cancelled = await generator.cancel("tides")
        assert waiting.in_flight == 0
        return cancelled, await task

    cancelled, output = asyncio.run(main())
    assert cancelled == ["w/tides", "w/tides#2"]
    assert output["stop_reasons"] == ["error", "error", *["stop"] * 4]
    assert output["response_ids"] == [[2], [2], *[[5, 7]] * 4]
    assert [sum(mask) for mask in output["loss_masks"]] == [0, 0, *[2] * 4]
    assert output["rollout_logprobs"] is None
