"""Local models with tools: calls under the grammar, at any concurrency, over turns, cut off, streamed, recorded."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest
from jsonschema import Draft202012Validator
from local_models import at_once, using
from small_runs import after_calls, results, small_run
from tiny_gguf import make_model
from tool_templates import HERMES, LLAMA, MISTRAL

from viva.engine.backends.llama.backend import LlamaBackend
from viva.engine.clock import RealClock
from viva.engine.conversation import Conversation
from viva.engine.errors import ConfigurationError
from viva.engine.events import CallFinished
from viva.engine.messages import Completion, Request, Sampling, View
from viva.engine.runner import Runner
from viva.engine.tools import Toolbox, ToolCall

T = TypeVar("T")
_TIMES = {
    "type": "object",
    "properties": {"zone": {"enum": ["utc", "cet", "한국"]}, "full": {"type": "boolean"}},
    "required": ["zone"],
}
_COUNT = {"type": "object", "properties": {"to": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["to"]}
TOOLS = Toolbox([{"name": "time", "parameters": _TIMES}, {"name": "times", "parameters": _COUNT}, {"name": "stop"}])
SCHEMAS: dict[str, Any] = {"time": _TIMES, "times": _COUNT, "stop": {"type": "object", "maxProperties": 0}}
KINDS = {"own": None, "hermes": HERMES, "mistral": MISTRAL, "llama": LLAMA}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model for each notation, of random weights that like to begin a call, and now and then to end their turn.

    One more begins with a call nearly always.
    """
    folder = tmp_path_factory.mktemp("models")
    made = {}
    for kind, template in [*KINDS.items(), ("eager", None)]:
        mark = {"mistral": "[TOOL_CALLS]", "llama": '{"name": "'}.get(kind, "<tool_call>")
        more = {} if template is None else {"template": template}
        made[kind] = make_model(
            folder / f"{kind}.gguf",
            seed=5,
            quantised=True,
            marks={mark: kind == "mistral"},
            biases={mark: {"llama": 5.6, "eager": 12.0}.get(kind, 3.0), "</s>": 2.4},
            quote_bias=3.0,
            **more,
        )
    return made


# One thread: two wait for each other by spinning, which takes long on a busy machine.
ONE = "ctx=2048&threads=1"


def asked(number: int, *, tools: Toolbox | None = TOOLS, view: View | None = None, **sampling: Any) -> Request:
    if view is None:
        view = View()
        view.append("system", "Be brief.")
        view.append("user", f"what is the time {number}")
    settings = Sampling(**{"temperature": 1.0, "max_tokens": 96} | sampling)
    return Request(view.messages, settings, number + 1, b"", f"talk-{number}", "candidate", 0, tools=tools)


def together(name: str, requests: list[Request]) -> list[Completion]:
    """The answers to requests asked all at once."""
    return using(name, lambda backend: at_once(len(requests), lambda place: backend.generate(requests[place])))


def well_formed(call: ToolCall) -> bool:
    return call.name in TOOLS.names and bool(Draft202012Validator(SCHEMAS[call.name]).is_valid(call.parsed()))


@pytest.mark.parametrize("kind", list(KINDS))
def test_calls_follow_the_functions_and_do_not_depend_on_company(models: dict[str, Path], kind: str) -> None:
    requests = [asked(number) for number in range(10)]
    answers = together(f"llama:{models[kind]}?{ONE}&lanes=5", requests)
    calls = [call for answer in answers for call in answer.calls or []]
    assert len(calls) >= 3
    assert all(map(well_formed, calls))
    assert len({(call.name, call.arguments) for call in calls}) > 1
    assert any(answer.calls is None for answer in answers)
    for answer in answers:
        assert [call.id for call in answer.calls or []] == [f"call-{n + 1}" for n in range(len(answer.calls or []))]
        if answer.finish == "stop":
            assert "<tool_call>" not in answer.text
            assert "[TOOL_CALLS]" not in answer.text
    for number in (0, 5, 9):
        [alone] = together(f"llama:{models[kind]}?{ONE}&lanes=2&kv_cache=0", [requests[number]])
        both = answers[number]
        assert (alone.text, alone.calls, alone.pieces) == (both.text, both.calls, both.pieces)


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_required_call_comes_first_and_a_single_one_alone(models: dict[str, Path], kind: str) -> None:
    one, some = Toolbox(TOOLS.specs, required=True, single=True), Toolbox(TOOLS.specs, required=True)
    requests = [asked(number, tools=tools, max_tokens=200) for number in range(6) for tools in (one, some)]
    answers = together(f"llama:{models[kind]}?{ONE}&lanes=6", requests)
    for tools, answer in zip((one, some) * 6, answers, strict=True):
        calls = answer.calls or []
        assert all(map(well_formed, calls))
        assert len(calls) >= 1
        if tools is one:
            assert (answer.text, len(calls), answer.finish) == ("", 1, "stop")

    assert one.digest != some.digest != TOOLS.digest


@pytest.mark.parametrize("kind", list(KINDS))
def test_what_is_streamed_is_the_text_without_the_calls(models: dict[str, Path], kind: str) -> None:
    async def main(backend: LlamaBackend) -> list[tuple[str, Completion, Completion]]:
        made = []
        for number in range(8):
            heard: list[str] = []
            request = asked(number)
            whole = await backend.generate(request)
            request.on_text = heard.append
            streamed = await backend.generate(request)
            made.append(("".join(heard), streamed, whole))
        return made

    made = using(f"llama:{models[kind]}?{ONE}&lanes=2", main)
    for heard, streamed, whole in made:
        assert heard == streamed.text == whole.text
        assert streamed.calls == whole.calls
    assert any(streamed.calls for _, streamed, _ in made)


@pytest.mark.parametrize("kind", ["own", "hermes", "mistral"])
def test_turns_of_calls_and_results_find_their_kv_again(models: dict[str, Path], kind: str) -> None:
    """What a model said is a prefix of its next prompt, to the token, and the store has it."""

    async def main(backend: LlamaBackend) -> list[tuple[int, int, Completion]]:
        view, made = View(), []
        view.append("system", "Be brief.")
        view.append("user", "what is the time")
        for turn in range(4):
            found = backend.statistics()["found"]
            completion = await backend.generate(asked(turn, view=view))
            made.append((backend.statistics()["found"] - found, completion.prompt_tokens, completion))
            calls = completion.calls or ()
            view.append("assistant", completion.text, completion.pieces, calls=calls)
            for call in calls:
                view.append("tool", f"noon {turn}", call_id=call.id, name=call.name)
            if not calls:
                view.append("user", f"and {turn}")
        return made

    made = using(f"llama:{models[kind]}?{ONE}&lanes=1", main)
    assert any(completion.calls for _, _, completion in made[:-1])
    for (_, prompt, before), (found, _, _) in pairwise(made):
        if kind != "mistral":  # its template moves the tools to the last user's message
            runs = (before.pieces or [])[
                : -1 if before.finish == "length" else None
            ]  # the last one is not computed then
            assert found >= prompt + sum(len(run) for _, run in runs)


def test_a_call_that_is_cut_off_is_text(models: dict[str, Path]) -> None:
    for length in (1, 3, 6):
        [cut] = together(f"llama:{models['eager']}?{ONE}", [asked(1, max_tokens=length)])
        assert (cut.finish, cut.calls) == ("length", None)
        assert cut.text.startswith("<tool_call>")
        assert cut.completion_tokens == length


def test_a_stop_string_ends_an_answer_with_calls_too(models: dict[str, Path]) -> None:
    name = f"llama:{models['eager']}?{ONE}"
    [whole] = together(name, [asked(1)])
    called = (whole.calls or [])[0]
    [stopped] = together(name, [asked(1, stop=("</tool_call>",))])
    assert (stopped.finish, stopped.calls) == ("stop", None)
    written = f'<tool_call>{{"name": "{called.name}", "arguments": {called.arguments}}}'
    assert stopped.text == written
    [inside] = together(name, [asked(1, stop=('"arguments"',))])
    assert inside.text == f'<tool_call>{{"name": "{called.name}", '


def test_a_mark_that_is_spelt_out_counts_too(models: dict[str, Path], tmp_path: Path) -> None:
    """A vocabulary without a token for the mark: each way of spelling it leads into the grammar."""
    path = make_model(tmp_path / "bare.gguf", seed=5)

    async def main(backend: LlamaBackend) -> None:
        use, model = backend.engine.tools, backend.engine.model
        grammar = use.grammar(TOOLS)
        for text in ("the <tool_call>", "<<tool_call>", "<tool_<tool_call>"):
            state = grammar.start
            for byte in text.encode():
                mask = use.masks.allowed(grammar, state)
                assert mask[6 + byte]
                assert mask[model.eos]
                state = grammar.advance(state, bytes([byte])) or state
            mask = use.masks.allowed(grammar, state)
            assert {model.pieces[token] for token in mask.nonzero()[0]} == {b"{"}

    using(f"llama:{path}?ctx=512", main)


def test_without_tools_nothing_changes(models: dict[str, Path]) -> None:
    """The templates that know tools leave talks without any as they were, and calls in their text are text."""

    async def main(backend: LlamaBackend) -> list[Completion]:
        return [await backend.generate(asked(number, tools=None)) for number in range(4)]

    answers = using(f"llama:{models['hermes']}?{ONE}", main)
    assert all(answer.calls is None for answer in answers)
    assert any("<tool_call>" in answer.text for answer in answers)


def test_a_schema_and_tools_together_are_refused(models: dict[str, Path]) -> None:
    async def main(backend: LlamaBackend) -> None:
        with pytest.raises(ConfigurationError, match="no JSON schema and tools in one request"):
            await backend.generate(asked(1, schema={"type": "integer"}))

    using(f"llama:{models['own']}?{ONE}", main)


async def tool_talk(conversation: Conversation, payload: Any) -> list[Any]:
    """Three turns, with a result for each call."""
    view, sampling, made = View(), Sampling(temperature=1.0, max_tokens=48), []
    view.append("system", "Be brief.")
    view.append("user", f"what is the time {payload}")
    for turn in range(3):
        completion = await conversation.generate("candidate", view, sampling, tools=TOOLS)
        calls = completion.calls or ()
        view.append("assistant", completion.text, completion.pieces, calls=calls)
        for call in calls:
            view.append("tool", json.dumps({"result": turn}), call_id=call.id, name=call.name)
        if not calls:
            view.append("user", "go on")
        made.append([completion.text, [call.to_record() for call in calls]])
    return made


def test_a_run_with_calls_resumes_and_says_the_same_in_other_company(models: dict[str, Path], tmp_path: Path) -> None:
    model = f"llama:{models['hermes']}?{ONE}"
    run: dict[str, Any] = {"converse": tool_talk, "count": 5, "clock": RealClock()}
    small_run(tmp_path / "cut", model=f"{model}&lanes=3", concurrency=3, prepare=after_calls(7, Runner.halt), **run)
    _, after = small_run(tmp_path / "cut", model=f"{model}&lanes=3", resume=True, **run)
    assert any(isinstance(event, CallFinished) and event.replayed for event in after)
    small_run(tmp_path / "whole", model=f"{model}&lanes=8", concurrency=5, **run)
    assert results(tmp_path / "cut") == results(tmp_path / "whole")
    said = [turn for _, _, turns in results(tmp_path / "whole") for turn in turns]
    assert any(calls for _, calls in said)
