"""Answers of models of transformers as their tokens come, without any model; what is said without the extra."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viva.engine.backends.hf_generation import HfGeneration
from viva.engine.backends.llama.sampler import SampledToken, SamplerSettings
from viva.engine.backends.registry import build
from viva.engine.clock import RealClock
from viva.engine.errors import ConfigurationError

_END = 256  # all other tokens are bytes
_LETTERS = "ab\n é你"


def _decode(tokens: list[int]) -> str:
    return bytes(tokens).decode("utf-8", "replace")


def _answer(tokens: list[int], stops: tuple[str, ...], most: int, heard: list[str]) -> HfGeneration:
    answer = HfGeneration([1], SamplerSettings(7, logprobs=1), most, _decode, stops, heard.append)
    for token in [*tokens, _END]:
        if not answer.ended:
            answer.take(SampledToken(token, -0.5, [(token % 256, -0.5)]), is_end=token == _END)
    return answer


@given(
    st.text(_LETTERS, max_size=20),
    st.lists(st.text(_LETTERS, min_size=1, max_size=3), max_size=2).map(tuple),
    st.integers(1, 60),
)
def test_an_answer_ends_before_the_first_stop_string_and_is_told_as_it_is(
    text: str, stops: tuple[str, ...], most: int
) -> None:
    heard: list[str] = []
    data = text.encode()
    answer = _answer(list(data), stops, most, heard)
    said = data[:most].decode("utf-8", "replace")
    # The first stop string is the one that is complete first; of those the one that begins first.
    ends = [said.index(stop) + len(stop) for stop in stops if stop in said]
    shown = said[: min(ends)] if ends else said
    expected = min((shown.index(stop) for stop in stops if stop in shown), default=len(shown))
    assert answer.text == shown[:expected]
    assert "".join(heard) == answer.text
    assert answer.finish == ("length" if not ends and len(data) >= most else "stop")
    assert answer.logprobs is not None
    assert len(answer.logprobs) <= len(answer.tokens) <= most


def test_rows_of_what_a_stop_string_took_are_gone() -> None:
    answer = _answer(list(b"one STOP two"), ("STOP",), 50, [])
    assert (answer.text, answer.finish) == ("one ", "stop")
    assert [row[0] for row in answer.logprobs or []] == ["o", "n", "e", " "]
    assert len(answer.tokens) == len("one STOP")


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    clock = RealClock()

    async def main() -> None:
        async with build("hf:some/model", clock):
            pass

    with pytest.raises(ConfigurationError, match=r"needs the packages torch and transformers.*viva-exam\[neural\]"):
        clock.run(main)
