"""Calls as the viewer's pages show them: timeline, requests to copy, log-probabilities, differing words."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from urllib.error import HTTPError
from urllib.request import urlopen

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_talks import Talks, talk
from viewed_runs import viewer

import viva
from viva.engine.conversation_replay import Exchange, Step
from viva.engine.messages import Completion, Message, Sampling
from viva.engine.steps import Computed
from viva.web.view.calls import curl_command, request_body, suite_case, timeline, tokens
from viva.web.view.conversations import word_changes

moments = st.floats(0, 1e9, allow_nan=False)
durations = st.floats(0, 1e4, allow_nan=False)


def call(at: float | None, seconds: float, role: str = "pupil", branch: str = "") -> Exchange:
    return Exchange(role, 1, Completion("x", latency=seconds), branch=branch, at=at)


@given(
    st.lists(
        st.one_of(
            st.builds(call, st.none() | moments, durations, st.sampled_from(["a", "b"]), st.sampled_from(["", "/pro"])),
            st.builds(lambda at, seconds: Step("s", 1, Computed(1), "", at, seconds), moments, durations),
        ),
        max_size=12,
    )
)
def test_bars_lie_on_the_axis_in_the_order_of_the_calls(entries: list[Exchange | Step]) -> None:
    drawn = timeline(entries, {})
    timed = [entry for entry in entries if entry.at is not None]
    if len(timed) < 2:
        assert drawn is None
        return
    assert drawn is not None
    bars = [bar for lane in drawn.lanes for bar in lane.bars]
    assert len(bars) == len(timed)
    assert all(bar.start >= -1e-6 and bar.start + bar.width <= 100 + 1e-6 and bar.width > 0 for bar in bars)
    assert drawn.busy <= drawn.seconds * (1 + 1e-9) + 1e-3
    for lane in drawn.lanes:
        assert [bar.start for bar in lane.bars] == sorted(bar.start for bar in lane.bars)
    assert all(pause > 0.49 * drawn.busy for pause in drawn.cut)


def test_a_pause_of_days_leaves_the_calls_visible() -> None:
    drawn = timeline([call(10, 2), call(13, 2), call(400_000, 3)], {})
    assert drawn is not None
    assert [round(pause) for pause in drawn.cut] == [399_984]
    assert min(bar.width for bar in drawn.lanes[0].bars) > 10


texts = st.text(max_size=200)


@given(st.lists(st.sampled_from(["no", "yes ", "\n", "tide", " 3.5", "é"]), max_size=60), st.data())
def test_pieces_of_two_texts_are_these_texts(words: list[str], data: st.DataObject) -> None:
    left = "".join(words)
    right = "".join(word for word in words if data.draw(st.booleans()))
    changes = word_changes(left, right)
    if changes is not None:
        assert "".join(text for text, _ in changes[0]) == left
        assert "".join(text for text, _ in changes[1]) == right
        kept = ["".join(text for text, changed in side if not changed) for side in changes]
        assert kept[0] == kept[1]


def test_texts_with_nothing_in_common_have_no_marks() -> None:
    assert word_changes("the tide rises at noon", "because of heat") is None
    assert word_changes("same", "same") is None
    assert word_changes("word " * 5000, "word " * 5001) is None, "too long to compare"


@given(texts.filter(lambda text: "\x00" not in text), st.integers(0, 2**31), st.sampled_from(["gpt-4o", "$(id)"]))
def test_a_copied_command_is_the_request_for_any_shell(text: str, seed: int, model: str) -> None:
    sampling = Sampling(temperature=0.5, max_tokens=7, stop=("';",), logprobs=3)
    exchange = Exchange("pupil", 1, None, (Message("user", text),), sampling=sampling, seed=seed)
    words = shlex.split(curl_command(exchange, f"openai:{model}").replace("\\\n", " ", 3))
    assert words[:3] == ["curl", "-g", "https://api.openai.com/v1/chat/completions"]
    sent = orjson.loads(words[-1])
    assert sent == orjson.loads(orjson.dumps(request_body(exchange, model)))
    assert (sent["messages"], sent["seed"], sent["top_logprobs"]) == ([{"role": "user", "content": text}], seed, 3)
    assert orjson.loads(suite_case(exchange, "a/x#1"))["messages"] == sent["messages"]


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("openai:http://foreign.example/v1#m", "http://foreign.example/v1/chat/completions"),
        ("openai:http://foreign.example/v1/#m", "http://foreign.example/v1/chat/completions"),
        ("openai:http://foreign.example/'; id #m", "'http://foreign.example/'\"'\"'; id /chat/completions'"),
        ("llama:model.gguf", "http://127.0.0.1:8000/v1/chat/completions"),
        ("no model name", "http://127.0.0.1:8000/v1/chat/completions"),
        (None, "http://127.0.0.1:8000/v1/chat/completions"),
    ],
)
def test_no_key_goes_to_an_address_that_a_run_names(name: str | None, address: str) -> None:
    command = curl_command(Exchange("pupil", 1, None, (Message("user", "x"),)), name)
    assert command.startswith(f"curl -g {address} \\\n")
    assert "KEY" not in command


@pytest.mark.parametrize(
    ("recorded", "levels"),
    [
        ([["a", 0.0, {}], ["b", math.log(0.6), {"c": -1.5}], ["d", -9.0, {}]], [0, 2, 4]),
        ([["a", None, {}], ["b"], [], ["c", "x", {}], ["d", -0.001, None]], [0]),
        ([["a", -math.inf, {}], ["b", 5.0, {}]], [4, 0]),
        (None, []),
    ],
)
def test_tokens_have_their_probabilities_and_damaged_ones_are_left_out(
    recorded: list[list[object]] | None, levels: list[int]
) -> None:
    assert [token.level for token in tokens(recorded)] == levels


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("talks")
    viva.run_sync(talk, models={"pupil": Talks()}, tasks=["tides"], out=root / "talks")
    with viewer(root, tmp_path_factory.mktemp("index")) as address:
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"{address}/c/none/1")  # is answered when the index is complete
        yield address


@pytest.mark.parametrize(
    "path", ["/call/talks/0/99", "/call/talks/0/0", "/call/none/0/1", "/call/talks/7/1", "/call/talks/0/x"]
)
def test_a_call_that_is_not_there_is_refused(site: str, path: str) -> None:
    with pytest.raises(HTTPError, match="404"):
        urlopen(f"{site}{path}")
