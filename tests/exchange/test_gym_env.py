"""A scenario as a Gymnasium environment: Gymnasium's checker passes; the caller plays the compared role."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import viva
from viva.exchange.trainers.gym_env import InterviewEnv


@viva.scenario(many="pupil", one="tutor")
async def quiz(conversation: viva.Conversation, topic: str) -> dict[str, Any]:
    """Two questions; an answer that names the topic is right."""
    tutor = viva.Agent(conversation, "tutor")
    pupil = viva.Agent(conversation, "pupil", "You are a pupil.")
    first = await pupil.ask(f"What is {topic}? {(await tutor.ask('Begin.')).text}")
    if topic == "nothing":
        raise ValueError("no such topic")
    second = await pupil.ask(f"And why? {(await tutor.ask(first.text)).text}")
    return {"right": [float(topic in one.text) for one in (first, second)]}


def make(**more: Any) -> InterviewEnv:
    arguments: dict[str, Any] = {"tasks": ["tides", "rust"], "models": {"tutor": "simulated:t"}}
    return InterviewEnv(quiz, reward=lambda value: value["right"], **(arguments | more))


def test_gymnasiums_checker_passes_on_it_and_on_what_gymnasium_makes_of_it() -> None:
    gymnasium.register("viva/Quiz-v0", entry_point=make, max_episode_steps=50)
    env = gymnasium.make("viva/Quiz-v0")
    try:
        check_env(env.unwrapped)
    finally:
        env.close()
        del gymnasium.registry["viva/Quiz-v0"]


def test_an_episode_is_a_conversation_and_its_reward_is_the_scenarios(tmp_path: Path) -> None:
    env = make(out=tmp_path, render_mode="ansi")
    observation, info = env.reset(seed=3)
    assert observation.startswith("What is tides?")
    assert info["key"] == "policy/tides"
    assert [one["role"] for one in info["messages"]] == ["system", "user"]
    observation, reward, terminated, truncated, info = env.step("The tides are the sea's.")
    assert observation.startswith("And why?")
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert [one["role"] for one in info["messages"]] == ["system", "user", "assistant", "user"]
    assert "assistant: The tides are the sea's." in str(env.render())
    _, reward, terminated, truncated, info = env.step("I do not know.")
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info["value"] == {"right": [1.0, 0.0]}
    assert info["rewards"] == [1.0, 0.0]
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("Too late.")

    assert env.reset()[1]["key"] == "policy/rust"
    env.step("Half an answer.")
    assert env.reset()[0].startswith("What is tides?")  # rust is cancelled, and a new run begins
    env.close()
    first, second = sorted(tmp_path.iterdir())
    results = {result.key: result.error for result in viva.load(first).results()}
    assert results["policy/tides"] is None
    assert results["policy/rust"] is not None
    assert results["policy/rust"]["type"] == "ConversationCancelled"
    assert viva.load(second).manifest["seed"] != viva.load(first).manifest["seed"]


def test_a_conversation_that_fails_is_truncated_with_its_error(tmp_path: Path) -> None:
    env = make(tasks=["nothing"], out=tmp_path)
    env.reset(seed=1)
    _, reward, terminated, truncated, info = env.step("So.")
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert info["error"]["type"] == "ValueError"
    env.close()
    wrong = make(models={"teacher": "simulated:t"})
    with pytest.raises(viva.ConfigurationError, match="no role 'teacher'"):
        wrong.reset()
    wrong.close()
