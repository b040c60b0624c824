"""Talks under templates whose generation prompt is no prefix of the next turn: what is computed, and what is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from real_templates import FAMILIES
from tiny_gguf import CHAT_TEMPLATE, make_model

from viva.engine.backends.base import Backend
from viva.engine.backends.llama.backend import LlamaBackend
from viva.engine.backends.llama.kv_reuse import split_prompt
from viva.engine.backends.llama.native import Segment
from viva.engine.backends.registry import build
from viva.engine.clock import RealClock
from viva.engine.messages import Message, Request, Sampling, View
from viva.engine.thoughts import separate_thoughts

# The answer is opened by a mark that does not stand before answers of the past.
OPENING = CHAT_TEMPLATE.replace("<|assistant|>{% endif %}", "<|assistant|>draft: {% endif %}")
LONG = 40  # tokens of an answer
TURNS = 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("turns") / "model.gguf", seed=3, template=OPENING, biases={"</s>": -50.0})


async def talk(backend: Backend, number: int, **sampling: Any) -> list[Any]:
    view, said = View(), []
    view.append("system", "Be brief.")
    for turn in range(TURNS):
        view.append("user", f"{number} people {turn} {'and so on ' * (number % 3)}")
        settings = {"max_tokens": LONG, "logprobs": 0, **sampling}
        request = Request(view.messages, Sampling(**settings), turn + 1, b"", f"talk-{number}")
        completion = await backend.generate(request)
        view.append("assistant", completion.text, completion.pieces)
        said.append((completion.text, completion.logprobs))
    return said


def test_line_35_answers_are_computed_again_as_prompts_and_once_only(model: Path) -> None:
    async def main() -> tuple[dict[str, Any], int]:
        async with build(f"llama:{model}?lanes=1&ctx=2048", RealClock()) as backend:
            said = await talk(backend, 1)
            assert len(said) == TURNS
            return backend.statistics(), sum(len(logprobs) for _, logprobs in said)

    told, generated = anyio.run(main)
    assert generated == TURNS * LONG
    assert told["replayed"] == 0
    # Every token of a turn is computed once for its answer; the turn's text and answer once more for the next one.
    assert told["prompted"] < 2 * generated + 200


def test_line_35_what_is_said_does_not_depend_on_what_was_kept(model: Path) -> None:
    async def main(options: str, side_by_side: int) -> list[Any]:
        told: dict[int, list[Any]] = {}

        async def one(backend: Backend, number: int) -> None:
            async with limiter:
                told[number] = await talk(backend, number, temperature=1.0, max_tokens=16)

        limiter = anyio.CapacityLimiter(side_by_side)
        async with (
            build(f"llama:{model}?ctx=1024{options}", RealClock()) as backend,
            anyio.create_task_group() as group,
        ):
            for number in range(6):
                group.start_soon(one, backend, number)
        return [told[number] for number in range(6)]

    alone = anyio.run(main, "&lanes=2", 1)
    assert anyio.run(main, "&lanes=6&kv_cache=0", 6) == alone
    assert anyio.run(main, "&lanes=4&kv_cache=1", 6) == alone


def _tokens(*numbers: int, decoded: bool = False) -> Segment:
    return Segment(np.array(numbers, dtype=np.int32), decoded)


def test_runs_are_left_alone_where_a_generation_prompt_stays_in_the_talk() -> None:
    def write(messages: Any) -> list[Segment]:
        answer, other = _tokens(7, 8, 9, decoded=True), _tokens(3, 4)
        return [_tokens(1, 2), *(answer if message.role == "assistant" else other for message in messages)]

    split = split_prompt(write, [Message("user", "a"), Message("assistant", "b"), Message("user", "c")])
    assert (split.stable_segments, split.may_continue) == (0, True)
    assert [run.decoded for run in split.segments] == [False, False, True, False]


@pytest.mark.parametrize("name", ["harmony", "nemo", "qwen"])
def test_line_35_no_token_of_a_talk_is_computed_twice_where_answers_are_written_otherwise(
    tmp_path: Path, name: str
) -> None:
    """Thoughts are taken off, blanks trimmed, blanks put before: what stood before the answer is gone on from."""
    source, marks = FAMILIES[name]
    biases = {"</s>": -50.0, "▁": 7.0, "\n": 5.0, "<|message|>": 9.0, "<|channel|>": 9.0, "</think>": 6.0}
    biases = {token: bias for token, bias in biases.items() if token in marks or len(token) < 5}
    path = make_model(tmp_path / "model.gguf", seed=3, template=source, marks=marks, biases=biases)

    async def main() -> tuple[dict[str, Any], int]:
        total = 0
        async with build(f"llama:{path}?lanes=1&ctx=2048&threads=1", RealClock()) as backend:
            assert isinstance(backend, LlamaBackend)
            for number in range(3):
                view = View()
                for turn in range(TURNS):
                    view.append("user", f"{number} people {turn}")
                    sampling = Sampling(temperature=1.0, max_tokens=20 + number)
                    request = Request(view.messages, sampling, turn + 1, b"", f"talk-{number}")
                    completion = await backend.generate(request)
                    separate_thoughts(completion)
                    view.append("assistant", completion.text, completion.pieces)
                runs = backend.engine.chat.segments(view.messages[:-1])
                total += sum(len(run.tokens) for run in runs)
            return backend.statistics(), total

    told, total = anyio.run(main)
    assert told["replayed"] <= 3 * TURNS  # an answer's last token, which is not computed when it is chosen
    assert told["prompted"] <= total
