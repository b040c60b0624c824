"""``viva serve`` as OpenAI's own client sees it, beside the backend's own answers for the same messages and seeds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import openai
import pytest
from jsonschema import validate
from serving import serving

import viva
from viva.engine.backends.registry import build
from viva.engine.clock import RealClock
from viva.engine.messages import Completion, Message, Request, Sampling
from viva.engine.seeds import ConversationSeeds
from viva.web.openai.requests import ChatMessage

T = TypeVar("T")
ASKED: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "what is this"}]
MESSAGES = [Message("system", "Be brief."), Message("user", "what is this")]
SCHEMA = {
    "type": "object",
    "properties": {"grade": {"type": "integer", "minimum": 1, "maximum": 4}, "why": {"type": "string", "maxLength": 9}},
    "required": ["grade", "why"],
    "additionalProperties": False,
}
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"day": {"enum": ["mon", "tue"]}}, "required": ["day"]},
    },
}
CLOCK: Any = {"type": "function", "function": {"name": "clock"}}


@pytest.fixture(scope="module")
def client(served: Any) -> Iterator[openai.OpenAI]:
    server = served.server
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.token, max_retries=0) as client:
        yield client


def own(served: Any, main: Callable[[Any], Awaitable[T]]) -> T:
    """What the backend itself answers, in this process."""

    async def run() -> T:
        async with build(served.text, RealClock()) as backend:
            return await main(backend)

    return asyncio.run(run())


def answers(served: Any, *requests: Request) -> list[Completion]:
    async def main(backend: Any) -> list[Completion]:
        return [await backend.generate(request) for request in requests]

    return own(served, main)


def test_a_chat_is_answered_as_by_the_backend_itself(served: Any, client: openai.OpenAI) -> None:
    request = Request(MESSAGES, Sampling(temperature=1.0, max_tokens=40, top_p=0.9, top_k=30, logprobs=3), 5, b"")
    [expected] = answers(served, request)
    got = client.chat.completions.create(
        model="tiny", messages=ASKED, max_completion_tokens=40, seed=5, temperature=1.0, top_p=0.9, logprobs=True,
        top_logprobs=3, extra_body={"top_k": 30},
    )  # fmt: skip
    [choice] = got.choices
    assert choice.message.content == expected.text
    assert choice.finish_reason == expected.finish == "length"
    assert got.usage is not None
    assert (got.usage.prompt_tokens, got.usage.completion_tokens) == (expected.prompt_tokens, 40)
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    rows = [[one.token, one.logprob, {o.token: o.logprob for o in one.top_logprobs}] for one in choice.logprobs.content]
    assert rows == expected.logprobs
    again = client.chat.completions.create(model="tiny", messages=ASKED, max_tokens=40, seed=6, temperature=1.0)
    assert again.choices[0].message.content != expected.text
    assert again.system_fingerprint == got.system_fingerprint


def test_a_stream_says_the_same_in_pieces(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": ASKED, "max_tokens": 60, "seed": 9, "n": 2, "logprobs": True}
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].usage == whole.usage
    assert chunks[-1].choices == []
    for index in range(2):
        own = [chunk.choices[0] for chunk in chunks if chunk.choices and chunk.choices[0].index == index]
        assert own[0].delta.role == "assistant"
        assert "".join(one.delta.content or "" for one in own) == whole.choices[index].message.content
        assert [one.finish_reason for one in own if one.finish_reason] == [whole.choices[index].finish_reason]
        told = whole.choices[index].logprobs
        assert own[-1].logprobs is not None
        assert told is not None
        assert own[-1].logprobs.model_dump() == told.model_dump()
        assert len(own) > 20, "text comes as it is made"


def test_choices_have_seeds_of_their_own_that_follow_from_the_first(client: openai.OpenAI) -> None:
    def texts(n: int) -> list[str | None]:
        got = client.chat.completions.create(model="tiny", messages=ASKED, max_tokens=12, seed=4, n=n)
        assert [one.index for one in got.choices] == list(range(n))
        return [one.message.content for one in got.choices]

    three = texts(3)
    assert len(set(three)) == 3
    assert three == texts(3)
    assert three[:1] == texts(1)


def test_answers_follow_a_schema_or_are_some_object(served: Any, client: openai.OpenAI) -> None:
    [expected] = answers(served, Request(MESSAGES, Sampling(1.0, max_tokens=60, schema=SCHEMA), 5, b""))
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "grade", "schema": SCHEMA, "strict": True}}
    got = client.chat.completions.create(
        model="tiny", messages=ASKED, seed=5, max_tokens=60, response_format=wanted
    ).choices[0].message.content  # fmt: skip
    assert got == expected.text
    validate(json.loads(got), SCHEMA)
    some = client.chat.completions.create(
        model="tiny", messages=ASKED, seed=5, max_tokens=200, response_format={"type": "json_object"}
    ).choices[0]  # fmt: skip
    assert isinstance(json.loads(some.message.content or ""), dict)


def test_functions_are_called_where_that_is_asked_for(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": ASKED, "seed": 5, "max_tokens": 120, "temperature": 1.0}
    asked |= {"tools": [WEATHER, CLOCK], "parallel_tool_calls": False}
    named: Any = {"type": "function", "function": {"name": "weather"}}
    for choice, functions in (("required", {"weather", "clock"}), (named, {"weather"})):
        got = client.chat.completions.create(**asked, tool_choice=choice).choices[0]
        assert got.finish_reason == "tool_calls"
        assert got.message.content is None
        [call] = got.message.tool_calls or []
        assert call.type == "function"
        assert call.function.name in functions
    assert json.loads(call.function.arguments)["day"] in ("mon", "tue")
    chunks = list(client.chat.completions.create(**asked, tool_choice=named, stream=True))
    [streamed] = [one.choices[0].delta.tool_calls for one in chunks if one.choices[0].delta.tool_calls]
    assert streamed[0].function is not None
    assert streamed[0].function.arguments == call.function.arguments
    result: Any = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    after = [*ASKED, got.message.model_dump(exclude_none=True), result]
    said = client.chat.completions.create(**asked | {"messages": after, "max_tokens": 8}, tool_choice="none")
    assert said.choices[0].message.tool_calls is None


def test_plain_text_is_continued(served: Any, client: openai.OpenAI) -> None:
    sampling = Sampling(temperature=0.0, max_tokens=12, logprobs=1)
    prompts = ["what is", "the answer to"]
    expected = answers(served, *(Request((), sampling, 7, b"", prompt=prompt) for prompt in prompts))
    got = client.completions.create(model="tiny", prompt=prompts, max_tokens=12, temperature=0, seed=7, logprobs=1)
    assert [one.text for one in got.choices] == [one.text for one in expected]
    assert got.choices[1].logprobs is not None
    assert got.choices[1].logprobs.token_logprobs == [row[1] for row in expected[1].logprobs or []]
    stream = client.completions.create(
        model="tiny", prompt="what is", max_tokens=12, temperature=0, seed=7, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in stream) == expected[0].text
    with pytest.raises(openai.BadRequestError, match="chat/completions"):
        client.completions.create(model="sim", prompt="what is")


def test_answers_do_not_depend_on_who_else_asks(client: openai.OpenAI) -> None:
    def ask(seed: int) -> str | None:
        text = f"how many people {'know ' * (seed % 5)}"
        made = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": text}], max_tokens=24, seed=seed
        )
        return made.choices[0].message.content

    alone = [ask(seed) for seed in range(12)]
    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(ask, range(12))) == alone


def test_a_named_conversation_goes_as_in_a_run(
    served: Any, client: openai.OpenAI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @viva.scenario(many="pupil")
    async def asked_twice(conversation: viva.Conversation, topic: str) -> list[str]:
        """The second answer follows the tokens of the first, which are not those of its text."""
        pupil = viva.Agent(conversation, "pupil", "Be brief.", viva.Sampling(temperature=1.0, max_tokens=20))
        return [(await pupil.ask(f"{question} {topic}")).text for question in ("what is", "who knows")]

    def run(model: str, name: str) -> list[Any]:
        models = {"pupil": model}
        made = viva.run_sync(asked_twice, tasks=["time", "people"], models=models, seed=3, out=tmp_path / name)
        return [result.value for result in made.results()]

    said = run(f"{served.text}&label=tiny", "itself")
    line, messages = ConversationSeeds(3, "tiny/time"), [ASKED[0]]
    heard = []
    for turn, question in enumerate(("what is", "who knows")):
        messages.append({"role": "user", "content": f"{question} time"})
        got = client.chat.completions.create(
            model="tiny", messages=messages, max_tokens=20, seed=line.seed("pupil", turn), prompt_cache_key="one talk"
        )
        heard.append(got.choices[0].message.content)
        messages.append({"role": "assistant", "content": heard[-1]})
    assert heard == said[0]
    monkeypatch.setenv("SERVED_KEY", served.server.token)
    assert run(f"openai:{served.server.url}/v1#tiny?key_env=SERVED_KEY&cache_key=on", "over http") == said


def test_what_cannot_be_obeyed_is_refused_by_name(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": ASKED, "max_tokens": 4}
    with pytest.raises(openai.NotFoundError, match="served models: tiny, sim") as unknown:
        client.chat.completions.create(**asked | {"model": "other"})
    assert unknown.value.code == "model_not_found"
    refused: list[tuple[str, Any]] = [
        ("logit_bias", {"5": 1.0}),
        ("temperature", 3),
        ("top_logprobs", 2),
        ("stream_options", {"include_usage": True}),
    ]
    for name, value in refused:
        with pytest.raises(openai.BadRequestError) as error:
            client.chat.completions.create(**asked | {name: value})
        assert error.value.param == name
    with pytest.raises(openai.BadRequestError, match="leave it out"):
        client.chat.completions.create(**asked, extra_body={"mirostat": 2})
    picture = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    with pytest.raises(openai.BadRequestError, match="only text is supported, found a part of type 'image_url'"):
        client.chat.completions.create(**asked | {"messages": [{"role": "user", "content": picture}]})
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(**asked | {"messages": [{"role": "user", "content": "x" * 5000}]}, stream=True)
    assert long.value.code == "context_length_exceeded"
    assert [model.id for model in client.models.list()] == ["tiny", "sim"]
    assert client.models.retrieve("tiny").owned_by == "viva"


def test_line_22_a_part_of_any_type_that_has_text_is_text_in_requests_too() -> None:
    parts = [{"type": "input_text", "text": "Why "}, {"type": "output_text", "text": "B"}, "?", {"text": ""}]
    assert ChatMessage.model_validate({"role": "user", "content": parts}).text == "Why B?"
    for part in ({"type": "thinking", "text": "A?"}, {"type": "refusal", "refusal": "No."}, {}, 5, None):
        with pytest.raises(ValueError, match="only text is supported, found a part of type"):
            ChatMessage.model_validate({"role": "user", "content": [part]})


def test_an_answer_whose_client_has_gone_is_not_generated_to_its_end(chaos: Any, tmp_path: Path) -> None:
    server = chaos({"default": {"do": "slow", "delay": 600}})
    with serving(tmp_path, "--model", server.model("slow")) as front:
        for stream in (False, True):
            client = openai.OpenAI(base_url=f"{front.url}/v1", api_key="none", timeout=0.2, max_retries=0)
            with pytest.raises(openai.APITimeoutError):
                client.chat.completions.create(model="slow", messages=ASKED, stream=stream)
        assert len([one for one in server.log(requests=2, left=2) if one.get("left")]) == 2
