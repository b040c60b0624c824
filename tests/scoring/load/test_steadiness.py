"""Warm-ups, trends and queues without bound, on simulated queues whose state is known."""

from __future__ import annotations

import numpy as np
import pytest

from viva.scoring.load_latency import BatchMeans, QueueWatch, find_steady_state

_RATE = 40.0


def _queue(load: float, seed: int, count: int = 5000) -> tuple[np.ndarray, np.ndarray]:
    """Arrivals and ends of a queue with one server, in seconds."""
    draw = np.random.default_rng(seed)
    came = np.cumsum(draw.exponential(1 / _RATE, count))
    took = draw.exponential(load / _RATE, count)
    ended, free = np.empty(count), 0.0
    for number in range(count):
        free = ended[number] = max(free, came[number]) + took[number]
    return came, ended


def _found(came: np.ndarray, latencies: np.ndarray) -> object:
    series = BatchMeans()
    for time, latency in zip(came, latencies, strict=True):
        series.add(float(time), float(latency))
    return find_steady_state(series)


def _watched(came: np.ndarray, ended: np.ndarray, every: float = 0.5) -> float | None:
    """When the watch said that the queue grows without bound."""
    watch = QueueWatch()
    for number in range(64):
        watch.answered(float(ended[number] - came[number]))
    for time in np.arange(every, came[-1], every):
        arrived = int(np.searchsorted(came, time))
        watch.sample(float(time), arrived, arrived - int(np.searchsorted(np.sort(ended), time)))
        if watch.is_growing():
            return float(time)
    return None


@pytest.mark.parametrize("load", [0.3, 0.7, 0.9])
def test_a_queue_with_room_is_steady_and_never_called_over_saturated(load: float) -> None:
    for seed in range(20):
        came, ended = _queue(load, seed)
        assert _found(came, ended - came).steady is True  # type: ignore[attr-defined]
        assert _watched(came, ended) is None


def test_a_queue_beyond_its_capacity_is_caught_while_it_grows() -> None:
    for seed in range(20):
        came, ended = _queue(1.3, seed)
        assert _found(came, ended - came).steady is False  # type: ignore[attr-defined]
        caught = _watched(came, ended)
        assert caught is not None
        assert caught < came[-1] / 2


def test_a_slow_beginning_is_cut_off() -> None:
    draw = np.random.default_rng(5)
    came = np.arange(2000) / 10
    latencies = draw.exponential(0.2, 2000) + 5 * np.exp(-came / 5)
    found = _found(came, latencies)
    assert found.steady is True  # type: ignore[attr-defined]
    assert 10 < found.begin < 60  # type: ignore[attr-defined]


def test_few_requests_say_nothing() -> None:
    found = _found(np.arange(20.0), np.ones(20))
    assert (found.cut, found.steady) == (0, None)  # type: ignore[attr-defined]


def test_filling_up_and_a_server_that_stands_still_are_no_over_saturation() -> None:
    # Answers take 8 s: for as long the number in flight grows as fast as requests come.
    came = np.arange(0, 60, 0.1)
    assert _watched(came, came + 8.0) is None
    # All answers stop for 5 s, then come at once.
    ended = came + 0.2
    ended[(ended > 30) & (ended < 35)] = 35.0
    assert _watched(came, ended) is None


def test_memory_of_a_watch_and_of_a_series_is_bounded() -> None:
    watch, series = QueueWatch(), BatchMeans()
    for number in range(100_000):
        watch.sample(number * 0.5, number, 3)
        series.add(float(number), 1.0)
    assert len(watch._samples) < 256
    assert len(series.means) == len(series.begins) <= 4096
    assert not watch.is_growing()
