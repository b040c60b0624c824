"""Stand-ins and simulated sweeps: places that slow down, beginnings that stand for the whole, prices, summaries."""

from __future__ import annotations

import asyncio
import re
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from viva.engine.clock import VirtualClock
from viva.engine.errors import ConfigurationError
from viva.sweeps.prices import price_of, require_prices
from viva.sweeps.queueing import Processor, bounds_of, with_bounds
from viva.sweeps.simulation import (
    PlannedCell,
    PlannedUnit,
    SimulatedCourse,
    SimulationWorld,
    extrapolate,
    model_error,
    predict,
    simulate_sweep,
)
from viva.sweeps.traces import PROCESSOR, SharedProcessor, Trace, TraceStep, fit_slowdown


@given(st.integers(1, 12), st.sampled_from([0.0, 0.1, 0.5, 1.0, 5.0]))
@settings(max_examples=30, deadline=None)
def test_calls_at_once_slow_each_other_down(count: int, slowing: float) -> None:
    clock = VirtualClock()

    async def main() -> None:
        place = Processor(clock, slowing)
        await asyncio.gather(*(place.work(2.0) for _ in range(count)))

    clock.run(main)
    assert clock.now() == pytest.approx(2.0 * (1.0 + slowing * (count - 1)))


def test_a_call_that_comes_later_slows_only_what_is_left() -> None:
    clock = VirtualClock()
    ends: list[float] = []

    async def call(place: Processor, after: float) -> None:
        await asyncio.sleep(after)
        await place.work(2.0)
        ends.append(clock.now())

    async def main() -> None:
        place = Processor(clock, 1.0)
        await asyncio.gather(call(place, 0.0), call(place, 1.0))

    clock.run(main)
    # The first has one second left when the second comes; both at half speed until it ends, then the second alone.
    assert ends == pytest.approx([3.0, 4.0])


@given(st.sampled_from([0.0, 0.1, 0.3, 1.0]), st.integers(0, 5))
@settings(max_examples=20, deadline=None)
def test_how_calls_slow_each_other_is_found_from_their_seconds(slowing: float, seed: int) -> None:
    draw = np.random.default_rng(seed)
    levels, tokens = draw.uniform(1, 30, 300), draw.integers(5, 200, 300).astype(float)
    kinds = [("a", "b")[place % 2] for place in range(300)]
    alone = (tokens + 1) ** 0.8 * np.where(np.array(kinds) == "a", 0.02, 0.1)
    seconds = alone * (1 + slowing * (levels - 1)) * np.exp(draw.normal(0, 0.1, 300))

    def work(c: float) -> np.ndarray:
        return np.asarray(seconds / (1 + c * (levels - 1)))

    assert fit_slowdown(work, tokens, kinds, shared=False) == pytest.approx(slowing, rel=0.35, abs=0.02)


@given(
    st.lists(st.tuples(st.floats(0.0, 5.0), st.floats(0.01, 3.0)), min_size=1, max_size=12),
    st.sampled_from([0.05, 0.65, 1.0, 5.0]),
)
@settings(max_examples=60, deadline=None)
def test_what_a_call_takes_alone_is_read_off_a_crowd_of_calls(calls: list[tuple[float, float]], slowing: float) -> None:
    clock = VirtualClock()
    spans = [(0.0, 0.0)] * len(calls)

    async def call(place: Processor, number: int) -> None:
        pause, alone = calls[number]
        await asyncio.sleep(pause)
        begin = clock.now()
        await place.work(alone)
        spans[number] = begin, clock.now()

    async def main() -> None:
        place = Processor(clock, slowing)
        await asyncio.gather(*(call(place, number) for number in range(len(calls))))

    clock.run(main)
    begins, ends = np.array(spans).T
    place = SharedProcessor(begins, ends)
    assert place.work(slowing) == pytest.approx([alone for _, alone in calls], rel=1e-4)
    assert place.work(0.0) == pytest.approx(ends - begins)
    assert 1 <= place.peak <= len(calls)


def _units(count: int) -> list[PlannedUnit]:
    talks = [
        Trace((TraceStep("one", -1, 1.0 + number / 10, 10, 5), TraceStep("two", 0, 0.5, 20, 5))) for number in range(7)
    ]
    return [PlannedUnit((PlannedCell("cell", {"one": "simulated:a?rpm=600", "two": "simulated:b"}, count, talks),),
                        frozenset())]  # fmt: skip


def test_the_beginning_of_a_long_sweep_stands_for_the_whole() -> None:
    world = SimulationWorld(slots=20)
    whole = simulate_sweep(_units(1200), world, 1)
    short, long = simulate_sweep(_units(150), world, 1), simulate_sweep(_units(300), world, 1)
    grown = extrapolate(short, long, 0.25)
    assert grown.seconds == pytest.approx(whole.seconds, rel=0.03)
    assert grown.full == pytest.approx(whole.full, rel=0.05)
    assert grown.models["simulated:b"].calls == whole.models["simulated:b"].calls == 1200


@given(st.floats(0.1, 100.0), st.floats(1.0, 10.0), st.floats(0.0, 1.0))
def test_what_is_not_known_of_local_models_falls_with_the_rounds_that_were_held(
    rounds: float, more: float, slowed: float
) -> None:
    def error(rounds: float, lost: float = slowed) -> float:
        return model_error([SimulatedCourse(100.0, slowed={PROCESSOR: 100.0 * lost})], 0.65, rounds)

    assert 0.03 <= error(more * rounds) <= error(rounds) <= error(0.0) <= 0.25
    assert error(rounds) <= error(rounds, 1.0)
    assert model_error([SimulatedCourse(100.0)], 0.0, rounds) == 0.03  # nothing is computed here


def test_steps_that_ran_side_by_side_do_so_again() -> None:
    talk = Trace(
        (TraceStep("one", -1, 1.0), TraceStep("one", 0, 2.0), TraceStep(None, 0, 3.0), TraceStep("one", 1, 4.0))
    )
    cell = PlannedCell("cell", {"one": "simulated:a"}, 1, [talk])
    course = simulate_sweep([PlannedUnit((cell,), frozenset())], SimulationWorld(slots=5), 1)
    assert course.seconds == pytest.approx(1.0 + 2.0 + 4.0)
    assert course.models["simulated:a"].calls == 3


def test_local_models_that_do_not_fit_beside_each_other_come_one_after_the_other() -> None:
    def unit(name: str) -> PlannedUnit:
        cell = PlannedCell(name, {"one": f"llama:{name}.gguf"}, 1, [Trace((TraceStep("one", -1, 10.0),))])
        return PlannedUnit((cell,), frozenset({name}))

    units = [unit("a"), unit("b"), unit("c")]
    assert simulate_sweep(units, SimulationWorld(slots=9), 1).seconds == pytest.approx(30.0)
    assert simulate_sweep(units, SimulationWorld(slots=9, local_models=3), 1).seconds == pytest.approx(10.0)


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=30), st.integers(0, 50))
def test_an_interval_holds_its_value(values: list[float], sample: int) -> None:
    found = predict(values, sample)
    assert 0.0 <= found.low <= found.value * (1 + 1e-9)
    assert found.high >= found.value * (1 - 1e-9)


@pytest.mark.parametrize("values", [[100.0], [98.0, 100.0, 102.0]])
def test_the_model_s_own_error_widens_an_interval_as_an_independent_one(values: list[float]) -> None:
    narrow, wide = predict(values, 30), predict(values, 30, 0.1)
    assert wide.value == narrow.value == 100.0
    half, own = narrow.high - narrow.value, 1.6449 * 10.0
    assert wide.high - wide.value == pytest.approx((half**2 + own**2) ** 0.5, rel=1e-4)


def test_prices_are_of_the_public_api_with_their_date(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    price = price_of("openai:gpt-4o-mini-2024-07-18?label=m")
    assert price is not None
    assert price.cost(1e6, 1e6) == pytest.approx(0.75)
    assert price.source.endswith("2026-04, according to several copies")
    tables = yaml.safe_load((files("viva.sweeps") / "models" / "prices.yaml").read_text())
    for table in tables:
        for name in table["models"]:  # each line has a date and says what kind of source it has
            known = price_of(f"{table['kind']}:{name}")
            assert known is not None
            assert re.search(r"; 20\d\d-\d\d, according to (several copies|one copy)$", known.source)
    own = price_of("openai:gpt-4o-mini?price_in=1&price_out=3")
    assert own is not None
    assert (own.prompt, own.completion, own.source) == (1.0, 3.0, "")
    free = price_of(f"llama:{tmp_path}/m.gguf")
    assert free is not None
    assert free.cost(1e6, 1e6) == 0.0
    assert price_of("openai:http://127.0.0.1:1/v1#gpt-4o-mini") is None
    assert price_of("openai:gpt-4o-mini-search-preview") is None
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    assert price_of("openai:gpt-4o-mini") is None
    with pytest.raises(ConfigurationError, match="price of openai:gpt-4o-mini is unknown"):
        require_prices(1.0, ["simulated:a", "openai:gpt-4o-mini"])
    require_prices(None, ["openai:gpt-4o-mini"])


def test_a_name_takes_other_bounds() -> None:
    name = with_bounds("openai:http://127.0.0.1:1/v1#m?rps=3&label=a%20b", {"rpm": 60, "concurrency": 2})
    assert bounds_of(name) == {"rpm": 60, "concurrency": 2}
    assert name.startswith("openai:http://127.0.0.1:1/v1#m?")
    assert "label=a+b" in name
