"""The llama backend beside llama_cpp.Llama and an independent computation from full logits; errors; cancellation."""

from __future__ import annotations

import errno
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import anyio
import llama_cpp
import numpy as np
import pytest
from local_models import at_once, using
from small_runs import after_calls, small_run
from tiny_gguf import make_model

from viva.engine.backends.llama import kv_reuse
from viva.engine.backends.llama.backend import LlamaBackend
from viva.engine.backends.llama.chat_template import PLAIN_TEMPLATE
from viva.engine.backends.registry import build
from viva.engine.clock import RealClock
from viva.engine.conversation import Conversation
from viva.engine.detectors import RoleShift
from viva.engine.errors import ConfigurationError, ContextTooLong
from viva.engine.events import CallFinished
from viva.engine.likelihood import Reading
from viva.engine.messages import Completion, Message, Request, Sampling, View
from viva.engine.runner import Outcome, Runner

T = TypeVar("T")
TALKS = ["what is this", "how many people know the question", "write about the time"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "tiny.gguf", seed=3, quantised=True)


def asked(text: str, number: int = 0, **sampling: Any) -> Request:
    messages = [Message("system", "Be brief."), Message("user", text)]
    return Request(messages, Sampling(**sampling), number + 1, b"", f"talk-{number}", "candidate", 0)


def test_greedy_text_is_that_of_the_package(model: Path) -> None:
    async def main(backend: LlamaBackend) -> list[tuple[list[int], list[int]]]:
        made = []
        for text in TALKS:
            completion = await backend.generate(asked(text, max_tokens=48))
            prompt = backend.engine.chat.segments(asked(text).messages)
            made.append(
                (
                    [int(token) for segment in prompt for token in segment.tokens],
                    [token for _, ids in completion.pieces or [] for token in ids],
                )
            )
        return made

    reference = llama_cpp.Llama(str(model), n_ctx=512, verbose=False, logits_all=False)
    for prompt, said in using(f"llama:{model}?lanes=1&ctx=512", main):
        expected = []
        for token in reference.generate(prompt, temp=0.0, repeat_penalty=1.0):
            if token == reference.token_eos() or len(expected) == 48:
                break
            expected.append(token)
        assert said == expected
    reference.close()


def test_loglikelihoods_are_those_of_full_logits(model: Path) -> None:
    cases = [("the question is", " answer"), ("how many people", " would know the answer"), ("a", "b c d")]
    few_shot = "one question one answer. two question two answer. "

    async def main(backend: LlamaBackend) -> list[tuple[list[int], list[int], list[float], list[float]]]:
        made = []
        for context, said in cases:
            both = []
            for before in ("", few_shot):
                read = await backend.read(Reading(context, (said, " other", said), before))
                first, _, again = read.likelihoods or []
                assert first == again  # what was read in between has left no trace
                both.append(first.logprobs)
            made.append((backend.tokens(context), backend.tokens(said), *both))
        made.append((backend.tokens(few_shot), [], [], []))
        return made

    # The same attention kernel on both sides: the two that llama.cpp has differ by more than the tolerance.
    results = using(f"llama:{model}?lanes=4&ctx=512&flash_attn=off", main)
    *results, (shots, _, _, _) = results
    reference = llama_cpp.Llama(str(model), n_ctx=512, verbose=False, logits_all=True)
    for context, said, plain, shared in results:
        for before, got in (([], plain), (shots, shared)):
            tokens = [1, *before, *context, *said]
            reference.reset()
            reference.eval(tokens)
            rows = np.array(reference.scores[len(tokens) - len(said) - 1 : len(tokens) - 1], dtype=np.float64)
            logprobs = (
                rows
                - np.log(np.exp(rows - rows.max(1, keepdims=True)).sum(1, keepdims=True))
                - rows.max(1, keepdims=True)
            )
            assert got == pytest.approx([logprobs[i, token] for i, token in enumerate(said)], abs=1e-4)
    reference.close()


def test_no_talk_ever_sees_anothers_kv(model: Path) -> None:
    """Many talks at once through few lanes and a small store, against each talk alone in a fresh model."""
    texts = [f"{TALKS[n % 3]} {'people ' * (n % 7)}{n}" for n in range(24)]

    async def talk(backend: LlamaBackend, number: int) -> list[str]:
        view, said = View(), []
        view.append("system", "Be brief.")
        for turn in range(3):
            view.append("user", f"{texts[number]} {turn}")
            request = Request(view.messages, Sampling(max_tokens=12, temperature=1.0), number * 9 + turn + 1, b"")
            request.conversation = f"talk-{number}"
            completion = await backend.generate(request)
            view.append("assistant", completion.text, completion.pieces)
            said.append(completion.text)
        return said

    async def together(backend: LlamaBackend, order: Sequence[int]) -> dict[int, list[str]]:
        said = await at_once(len(order), lambda place: talk(backend, order[place]))
        return dict(zip(order, said, strict=True))

    numbers = list(range(len(texts)))
    everyone = using(f"llama:{model}?lanes=5&ctx=512&kv_cache=1", lambda backend: together(backend, numbers))
    random.Random(3).shuffle(numbers)
    assert using(f"llama:{model}?lanes=9&ctx=512", lambda backend: together(backend, numbers)) == everyone
    side_by_side = f"llama:{model}?lanes=8&threads=2&contexts=2&ctx=512&kv_cache=1"
    assert using(side_by_side, lambda backend: together(backend, numbers)) == everyone
    for number in range(0, len(texts), 5):

        async def alone(backend: LlamaBackend, number: int = number) -> list[str]:
            return await talk(backend, number)

        assert using(f"llama:{model}?lanes=4&ctx=512&kv_cache=0", alone) == everyone[number]


def test_streaming_says_the_same_and_cancelling_frees_the_lane(model: Path) -> None:
    async def main(backend: LlamaBackend) -> tuple[Completion, Completion, str, int]:
        pieces: list[str] = []
        plain = await backend.generate(asked("what is this", max_tokens=32))
        request = asked("what is this", max_tokens=32)
        request.on_text = pieces.append
        streamed = await backend.generate(request)
        with anyio.move_on_after(0.05):
            await backend.generate(asked("go on for ever", 5, max_tokens=100_000))
        await backend.generate(asked("what is this", 6, max_tokens=2))  # the only lane is free again
        return plain, streamed, "".join(pieces), int(backend.statistics()["running"])

    plain, streamed, text, running = using(f"llama:{model}?lanes=1&ctx=4096", main)
    assert plain.text == streamed.text == text
    assert streamed.first_token is not None
    assert running == 0


def test_what_is_kept_for_a_talk_goes_when_it_has_ended(model: Path) -> None:
    async def main(backend: LlamaBackend) -> list[tuple[int, int]]:
        kept = []
        for number in range(3):
            view = View()
            view.append("system", "Be brief.")
            for text in TALKS:
                view.append("user", text)
                sampling = Sampling(max_tokens=8)
                request = Request(view.messages, sampling, number + 1, b"", f"talk-{number}", "candidate", 0)
                completion = await backend.generate(request)
                view.append("assistant", completion.text, completion.pieces)
            told = backend.statistics()
            kept.append((told["states"], told["bytes"]))
            backend.ended(f"talk-{number}")
        return kept

    # The shared beginning, and of each talk its newest state.
    kept = using(f"llama:{model}?lanes=1&ctx=512", main)
    assert [states for states, _ in kept] == [2, 2, 2]
    assert len({size for _, size in kept}) == 1


def test_where_the_system_has_no_memory_to_keep_kv_in_a_talk_says_the_same(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(backend: LlamaBackend, short: bool) -> tuple[list[str], int]:
        view, said = View(), []
        with monkeypatch.context() as patch:
            if short:
                patch.setattr(kv_reuse, "_pages", no_memory)
            for text in TALKS:
                view.append("user", text)
                completion = await backend.generate(Request(view.messages, Sampling(max_tokens=8), 1, b"", "talk"))
                view.append("assistant", completion.text, completion.pieces)
                said.append(completion.text)
        return said, backend.statistics()["states"]

    def no_memory(size: int) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    name = f"llama:{model}?lanes=1&ctx=512"
    said, states = using(name, lambda backend: main(backend, False))
    assert states > 0
    assert using(name, lambda backend: main(backend, True)) == (said, 0)


def test_sampling_settings_come_with_the_request_or_with_the_model(model: Path) -> None:
    async def main(backend: LlamaBackend) -> list[str]:
        settings: list[dict[str, Any]] = [{}, {"temperature": 1.5}, {"temperature": 1.5, "top_k": 1}]
        settings += [{"temperature": 1.5, "min_p": 1.0}, {"frequency_penalty": 1000.0}]
        return [(await backend.generate(asked("what", max_tokens=24, **each))).text for each in settings]

    greedy, hot, best_only, above_all, never_again = using(f"llama:{model}?ctx=512", main)
    assert best_only == above_all == greedy
    assert len({greedy, hot, never_again}) == 3
    assert using(f"llama:{model}?ctx=512&top_k=1", main)[:4] == [greedy] * 4
    assert using(f"llama:{model}?ctx=512&repeat_penalty=50", main)[0] != greedy

    async def tokens(backend: LlamaBackend) -> list[int]:
        completion = await backend.generate(asked("what", max_tokens=24, frequency_penalty=1000.0))
        return [token for _, ids in completion.pieces or [] for token in ids]

    said = using(f"llama:{model}?ctx=512", tokens)
    assert len(set(said)) == len(said)


def test_the_expected_score_weighs_the_digits_as_the_model_does(model: Path) -> None:
    schema = {"type": "object", "properties": {"score": {"enum": [1, 2, 3, 4]}, "other": {"enum": [0, 5]}}}

    async def main(backend: LlamaBackend) -> tuple[Completion, list[int], list[bytes]]:
        request = asked("what", schema=schema, expected=True)
        prompt = [int(token) for run in backend.engine.chat.segments(request.messages) for token in run.tokens]
        return await backend.generate(request), prompt, backend.engine.model.pieces

    completion, tokens, pieces = using(f"llama:{model}?ctx=512&flash_attn=off", main)
    reference = llama_cpp.Llama(str(model), n_ctx=512, verbose=False, logits_all=True)
    means = []
    options = iter([range(1, 5), (0, 5)])
    (_, opening), *others = completion.pieces or []
    tokens += opening
    for _, run in others:
        # Each begins with a digit, by whichever of its spellings.
        reference.reset()
        reference.eval(tokens)
        row = np.exp(np.array(reference.scores[len(tokens) - 1], dtype=np.float64))
        weights = {value: sum(row[t] for t, p in enumerate(pieces) if p == b"%d" % value) for value in next(options)}
        means.append(sum(value * weight for value, weight in weights.items()) / sum(weights.values()))
        tokens += run
    reference.close()
    assert completion.expected == pytest.approx(means, abs=1e-4)


def test_names_of_one_file_share_its_weights_and_those_of_the_same_options_everything(model: Path) -> None:
    async def main() -> list[tuple[bool, bool]]:
        names = [f"llama:{model}?ctx=512", f"llama:{model}?ctx=512&label=again&top_k=4", f"llama:{model}?ctx=1024"]
        async with AsyncExitStack() as stack:
            engines = []
            for name in names:
                backend = await stack.enter_async_context(build(name, RealClock()))
                assert isinstance(backend, LlamaBackend)
                engines.append(backend.engine)
            first = engines[0]
            return [(other is first, other.model is first.model) for other in engines[1:]]

    assert anyio.run(main) == [(True, True), (False, True)]
    assert anyio.run(main) == [(True, True), (False, True)]  # what was put back can be taken up again


def test_free_text_and_answers_by_a_schema_share_lanes_and_are_the_same_as_ever(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each as among its like alone, within the cache, in one context and in two."""
    caplog.set_level(logging.INFO, "viva")
    schema = {"type": "object", "properties": {"note": {"type": "string", "maxLength": 40}, "score": {"enum": [1, 2]}}}
    schema |= {"required": ["note", "score"]}

    async def one(backend: LlamaBackend, number: int, by_schema: bool) -> str:
        sampling = {"schema": schema} if by_schema else {}
        request = asked(f"{TALKS[number % 3]} {number}", number, max_tokens=60, temperature=1.0, **sampling)
        return (await backend.generate(request)).text

    async def main(backend: LlamaBackend, *kinds: bool) -> tuple[list[str], dict[str, Any]]:
        made = await at_once(40, lambda number: one(backend, number, kinds[number % len(kinds)]))
        return made, backend.statistics()

    name = f"llama:{model}?ctx=2048&lanes=3&kv_cache=1"
    mixed, told = using(name, lambda backend: main(backend, True, False))
    assert 0 < told["bytes"] <= 1_000_000
    assert told["evictions"] > 0
    assert told["generated"] > 0
    side_by_side = f"llama:{model}?ctx=2048&lanes=6&threads=2&contexts=2&kv_cache=2"
    both, told = using(side_by_side, lambda backend: main(backend, True, False))
    assert both == mixed
    assert told["contexts"] == 2
    assert 0 < told["bytes"] <= 2_000_000
    assert "6 lanes x 2,048 tokens in 2 contexts side by side" in caplog.text
    for kind, first in ((True, 0), (False, 1)):
        alike, _ = using(name, lambda backend, kind=kind: main(backend, kind))
        assert mixed[first::2] == alike[first::2]


@pytest.mark.parametrize(
    ("options", "contexts"),
    [
        ("lanes=16&threads=2", 1),
        ("lanes=32&threads=1", 1),
        ("lanes=32&threads=2", 2),
        ("lanes=48&threads=3", 3),
        ("lanes=64&threads=2", 2),
        ("lanes=32&threads=2&contexts=1", 1),
        ("threads=2", 2),
    ],
)
def test_lanes_and_threads_are_dealt_out_to_contexts_where_each_is_left_with_enough(
    model: Path, options: str, contexts: int
) -> None:
    async def main(backend: LlamaBackend) -> int:
        assert (await backend.generate(asked(TALKS[0], max_tokens=8))).text
        return int(backend.statistics()["contexts"])

    assert using(f"llama:{model}?ctx=512&{options}", main) == contexts


@pytest.mark.parametrize("options", ["lanes=16&threads=2&contexts=4", "lanes=9&threads=2&contexts=2"])
def test_contexts_that_lanes_or_threads_do_not_go_into_are_refused(model: Path, options: str) -> None:
    async def main(backend: LlamaBackend) -> None:
        raise AssertionError("it was loaded")

    with pytest.raises(ConfigurationError, match=r"cannot be split into that many equal parts.* use contexts=1"):
        using(f"llama:{model}?ctx=512&{options}", main)


def test_a_prompt_longer_than_a_lane_is_context_too_long(model: Path) -> None:
    async def main(backend: LlamaBackend) -> None:
        with pytest.raises(ContextTooLong, match="raise \\?ctx="):
            await backend.generate(asked("people " * 600))

    using(f"llama:{model}?lanes=2&ctx=256", main)


def test_a_text_longer_than_a_small_context_was_asked_for_is_read_in_parts(model: Path) -> None:
    async def main(backend: LlamaBackend) -> list[float]:
        read = await backend.read(Reading("the answer is that " * 20, (" people" * 20,)))
        assert read.likelihoods is not None
        return read.likelihoods[0].logprobs

    small, large = (using(f"llama:{model}?lanes=1&ctx={ctx}", main) for ctx in (64, 512))
    assert small == pytest.approx(large, abs=0.2)  # other batches, other rounding


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path, data: path.write_bytes(b"not a model at all, just text"), "not a GGUF file"),
        (lambda path, data: path.write_bytes(data[: len(data) // 2]), "truncated"),
        (lambda path, data: path.write_bytes(data.replace(b"llama", b"llamo")), "llamo"),
        (lambda path, data: None, "no file"),
    ],
    ids=["text", "half", "architecture", "missing"],
)
def test_a_file_that_is_no_model_is_named_with_the_reason(
    model: Path, tmp_path: Path, make: Callable[[Path, bytes], Any], says: str
) -> None:
    path = tmp_path / "broken.gguf"
    make(path, model.read_bytes())
    with pytest.raises(ConfigurationError, match=says):
        using(f"llama:{path}", lambda backend: backend.check())


def test_a_run_told_to_stop_computes_what_has_a_lane_and_drops_what_is_queued(model: Path, tmp_path: Path) -> None:
    async def one_answer(conversation: Conversation, number: int) -> str:
        view = View()
        view.append("user", f"question {number}")
        return (await conversation.generate("candidate", view, Sampling(temperature=1.0, max_tokens=48))).text

    def run(**more: Any) -> tuple[Outcome, int]:
        name = f"llama:{model}?lanes=2&ctx=256"
        outcome, events = small_run(tmp_path, converse=one_answer, count=16, model=name, clock=RealClock(),
                                    concurrency=16, **more)  # fmt: skip
        return outcome, sum(isinstance(one, CallFinished) and not one.replayed for one in events)

    outcome, computed = run(prepare=after_calls(1, Runner.interrupt))
    assert (outcome.how, outcome.failed) == ("drained", 0)
    assert computed <= 4, "the first, the other lane, and what got a lane before the run was told to stop"
    outcome, rest = run(resume=True)
    assert (outcome.how, outcome.finished, computed + rest) == ("done", 16, 16)


@pytest.mark.parametrize("template", [None, "own"])
def test_a_model_without_a_chat_template_is_named_once_and_ends_at_the_next_heading(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, template: str | None
) -> None:
    """A model that writes the next heading forever is stopped there, unless it has a format of its own."""
    heading = "\n### User:"
    own = {} if template is None else {"template": "{% for m in messages %}{{ m['content'] }}{% endfor %}"}
    made = make_model(
        tmp_path / "base.gguf", marks={heading: False}, biases={heading: 1000.0}, **({"template": None} | own)
    )

    async def main(backend: LlamaBackend) -> list[Completion]:
        return [await backend.generate(asked(text, max_tokens=8)) for text in TALKS]

    with caplog.at_level(logging.WARNING, logger="viva"):
        completions = using(f"llama:{made}?lanes=1&ctx=512", main)
    warned = [record.getMessage() for record in caplog.records if "no chat template" in record.getMessage()]
    if template is None:
        assert [(completion.text, completion.finish) for completion in completions] == [("", "stop")] * len(TALKS)
        assert len(warned) == 1
        assert "base.gguf: no chat template: a base model?" in warned[0]
    else:
        assert [completion.finish for completion in completions] == ["length"] * len(TALKS)
        assert warned == []


def test_the_headings_of_the_fallback_format_are_role_shifts() -> None:
    messages = [Message(role, "x") for role in ("system", "user", "assistant")]
    headings = [f"### {message.role.capitalize()}:" for message in messages]
    for heading in headings:
        assert heading in PLAIN_TEMPLATE.replace("{{ message['role'] | capitalize }}", heading[4:-1])
        assert RoleShift().finish(f"It is so.\n\n{heading}\nWhy?") == "unpermitted_role_shift"
    assert RoleShift().finish("### Summary\nSystem: an arrangement of parts.\nassistant: a helper") is None


def test_texts_without_anything_before_them_are_read_as_if_alone(smollm2: Path) -> None:
    # This vocabulary puts no token before a text, so its first one cannot be predicted.
    texts = ("Which gas do plants take in?", "Plants take in which gas?", "Rain falls.")

    async def main(backend: LlamaBackend) -> list[Completion]:
        readings = [texts, *((text,) for text in texts)]
        return [await backend.read(Reading("", reading, moments=True)) for reading in readings]

    together, *alone = using(f"llama:{smollm2}?ctx=512&lanes=1", main)
    assert together.likelihoods == [likelihood for one in alone for likelihood in one.likelihoods or ()]
    assert together.prompt_tokens == sum(one.prompt_tokens for one in alone)
    assert all(len(likelihood.logprobs) > 1 for likelihood in together.likelihoods or ())
