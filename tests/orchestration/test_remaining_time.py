"""The estimated end of a run: its interval in simulated runs whose real end is known, and what it needs to be given."""

from __future__ import annotations

import heapq
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viva.orchestration.run_progress import estimate_remaining

_SLOT = 10.0  # seconds


def _simulate(
    seed: int, total: int, slots: int, longest: int
) -> tuple[list[int], list[tuple[float, int]], list[float]]:
    """A run with a steady pace: each conversation's calls, (time, conversation) of every call, and when each began."""
    draw = random.Random(seed)
    lengths = [draw.randint(1, longest) for _ in range(total)]
    began = [0.0] * total
    calls: list[tuple[float, int]] = []
    queue = [(draw.lognormvariate(0.5, 0.6), number, 1) for number in range(slots)]
    heapq.heapify(queue)
    following = slots
    while queue:
        at, number, count = heapq.heappop(queue)
        calls.append((at, number))
        if count == lengths[number]:
            if following == total:
                continue
            number, count = following, 0
            began[number] = at
            following += 1
        heapq.heappush(queue, (at + draw.lognormvariate(0.5, 0.6), number, count + 1))
    return lengths, calls, began


@pytest.mark.parametrize(("total", "slots", "longest", "part"), [(200, 8, 11, 0.3), (200, 8, 11, 0.6), (60, 3, 5, 0.5)])
def test_the_interval_covers_the_real_end_of_most_steady_runs(
    total: int, slots: int, longest: int, part: float
) -> None:
    covered, ratios = 0, []
    for seed in range(60):
        lengths, calls, began = _simulate(seed, total, slots, longest)
        end = calls[-1][0]
        now = end * part
        made = Counter(number for at, number in calls if at <= now)
        begun = [number for number in range(total) if number < slots or (began[number] <= now and began[number] > 0)]
        ended = Counter(lengths[number] for number in begun if made[number] == lengths[number])
        open_calls = [made[number] for number in begun if made[number] < lengths[number]]
        count = min(int(now // _SLOT), 30)
        width = max(1, count // 10)
        first = int(now // _SLOT) - count // width * width
        windows = [0] * (count // width)
        for at, _ in calls:
            if 0 <= (slot := int(at // _SLOT) - first) < len(windows) * width:
                windows[slot // width] += 1
        estimate = estimate_remaining(ended, open_calls, total - len(begun), windows, width * _SLOT)
        assert estimate is not None
        covered += estimate.low <= end - now <= estimate.high
        ratios.append(estimate.seconds / (end - now))
    assert covered >= 51, "about 9 in 10; fewer than 85% would be too narrow"
    assert sorted(ratios)[30] == pytest.approx(1.0, abs=0.15)


_LENGTHS = st.dictionaries(st.integers(1, 30), st.integers(1, 50), min_size=1, max_size=6)


@given(_LENGTHS, st.lists(st.integers(0, 40), min_size=1, max_size=12), st.integers(1, 10_000),
       st.lists(st.integers(0, 500), min_size=4, max_size=10), st.sampled_from([10.0, 30.0]))  # fmt: skip
def test_the_interval_contains_the_estimate_and_pace_scales_it(
    ended: dict[int, int], open_calls: list[int], unstarted: int, windows: list[int], seconds: float
) -> None:
    estimate = estimate_remaining(ended, open_calls, unstarted, windows, seconds)
    if sum(ended.values()) < 10 or not sum(windows):
        assert estimate is None
        return
    assert estimate is not None
    assert 0.0 < estimate.low <= estimate.seconds <= estimate.high
    faster = estimate_remaining(ended, open_calls, unstarted, [2 * calls for calls in windows], seconds)
    more = estimate_remaining(ended, open_calls, unstarted + 1, windows, seconds)
    assert faster is not None
    assert more is not None
    assert faster.seconds == pytest.approx(estimate.seconds / 2)
    assert more.seconds > estimate.seconds


@pytest.mark.parametrize(
    ("ended", "open_calls", "unstarted", "windows"),
    [
        ({}, [1], 5, [3, 3, 3, 3]),
        ({4: 9}, [1], 5, [3, 3, 3, 3]),
        ({4: 20}, [1], 5, [3, 3, 3]),
        ({4: 20}, [1], 5, [0, 0, 0, 0]),
        ({4: 20}, [1], 0, [3, 3, 3, 3]),
        ({4: 20}, [], 5, [3, 3, 3, 3]),
        ({0: 20}, [0], 5, [3, 3, 3, 3]),
    ],
)
def test_too_little_is_no_estimate(
    ended: dict[int, int], open_calls: list[int], unstarted: int, windows: list[int]
) -> None:
    assert estimate_remaining(ended, open_calls, unstarted, windows, 10.0) is None
