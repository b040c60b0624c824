"""Sampling: the next token of all lanes at once, each with its own settings, in a few passes without sorting."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ...messages import Sampling
from .native import Logits

_BLOCK_TOKENS = 128
_COLUMN = 64  # values in a column of a search for the highest ones
_MASK_SHARE = 8  # a mask that allows fewer tokens than one in so many is applied by ids
_PART = 1 << 19  # numbers to weigh; fewer take about as long as to wake a thread. To compare, eight times as many.
_FIRST_COUNT = 256  # tokens considered first for top_p


def draw(
    row: npt.NDArray[np.float32],
    number: float,
    *,
    temperature: float,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
    mask: npt.NDArray[np.bool_] | None = None,
) -> int:
    """Return the token that `number` in [0, 1) selects at a `temperature` above 0. The row must be contiguous.

    First `mask` removes tokens, then `top_k` (0: all) keeps the best, then `min_p` (0: off) keeps those with at least
    this share of the best one's probability, then `top_p` (1: all) keeps the best that make up this share of the
    remainder. On a tie the lower id ranks higher.

    Raises:
        FloatingPointError: The logits are not finite.
    """
    values, tokens = (row, None) if mask is None else _masked(row, mask)
    highest = values.max()
    check_finite(highest)
    if 0 < top_k < len(values):
        kept = np.sort(top_indices(values, top_k))
        values, tokens = values[kept], kept if tokens is None else tokens[kept]
    weights = np.subtract(values, highest, out=_scratch("weights", len(values), np.float32))
    if min_p > 0:
        kept = np.flatnonzero(weights >= math.log(min_p))
        weights, tokens = weights[kept], kept if tokens is None else tokens[kept]
    weights *= np.float32(1 / max(temperature, 1e-30))
    np.exp(weights, out=weights)
    # Sums of blocks first; then only the block that holds the token is searched.
    sums = np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK_TOKENS)).cumsum(dtype=np.float64)
    index = _draw_top_p(weights, top_p * sums[-1], number) if top_p < 1 else _draw(weights, sums, number)
    return index if tokens is None else int(tokens[index])


def _draw(weights: npt.NDArray[np.float32], sums: npt.NDArray[np.float64], number: float) -> int:
    """Return the index that `number` selects; `sums` are the cumulative sums of the blocks of `weights`."""
    target = number * sums[-1]
    block = min(int(np.searchsorted(sums, target, side="right")), len(sums) - 1)
    while block and sums[block] == sums[block - 1]:
        block -= 1
    start = block * _BLOCK_TOKENS
    before = float(sums[block - 1]) if block else 0.0
    return start + _index_at(weights[start : start + _BLOCK_TOKENS], target - before)


def _masked(
    row: npt.NDArray[np.float32], mask: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.intp] | None]:
    """Return the values of the tokens that a mask allows, and these tokens; None: all, those not allowed with -inf."""
    if np.count_nonzero(mask) * _MASK_SHARE < len(row):
        tokens = np.flatnonzero(mask)
        return row[tokens], tokens
    values = _scratch("masked", len(row), np.float32)
    values.fill(-np.inf)
    np.copyto(values, row, where=mask)
    return values, None


_buffers = threading.local()


def _scratch(name: str, size: int, kind: type[Any]) -> npt.NDArray[Any]:
    """Return this thread's buffer of this name.

    A new array of a large vocabulary's size would be new pages from the system each time, which take as long as to
    compute with it.
    """
    buffer: npt.NDArray[Any] | None = getattr(_buffers, name, None)
    if buffer is None or len(buffer) < size:
        buffer = np.empty(size, dtype=kind)
        setattr(_buffers, name, buffer)
    return buffer[:size]


def check_finite(highest: npt.NDArray[np.float32] | np.float32) -> None:
    """Raise `FloatingPointError` if the highest logit of a row (NaN if the row has one) is not finite."""
    if not np.isfinite(highest).all():
        raise FloatingPointError("its logits are not finite (NaN or infinite): damaged weights, or an overflow")


def top_indices(values: npt.NDArray[Any], count: int) -> npt.NDArray[np.intp]:
    """Return the indices of the `count` highest values, highest first; on a tie the lower index comes first."""
    if count <= 0:
        return np.empty(0, dtype=np.intp)
    if count < len(values):
        indices = _candidates(values, count)
        border = np.partition(values[indices], len(indices) - count)[len(indices) - count]
        indices = indices[values[indices] >= border]
    else:
        indices = np.arange(len(values))
    order = np.argsort(-values[indices], kind="stable")
    return indices[order[:count]]


def _candidates(values: npt.NDArray[Any], count: int) -> npt.NDArray[np.intp]:
    """Return indices, ascending, that include those of the `count` highest values.

    Values lie in columns, of which the `count` with the highest values have a value that is not below the border.
    """
    columns = len(values) // _COLUMN
    if columns <= 2 * count:
        return np.arange(len(values))
    table = values[: columns * _COLUMN].reshape(_COLUMN, columns)
    highest = table.max(axis=0)
    border = np.partition(highest, columns - count)[columns - count]
    chosen = np.flatnonzero(highest >= border)
    if len(chosen) > 2 * count:  # many equal values
        return np.arange(len(values))
    indices = (np.arange(_COLUMN)[:, None] * columns + chosen).ravel()
    return np.concatenate([indices, np.arange(columns * _COLUMN, len(values))])


def _draw_top_p(weights: npt.NDArray[np.float32], target: float, number: float) -> int:
    """Return the index that `number` selects among the best that make up `target`."""
    count = min(_FIRST_COUNT, len(weights))
    while True:
        indices = top_indices(weights, count)
        total = weights[indices].cumsum(dtype=np.float64)
        if total[-1] >= target or count == len(weights):
            break
        count = min(8 * count, len(weights))
    kept = min(int(np.searchsorted(total, target)) + 1, count)
    return int(indices[_index_at(weights[indices[:kept]], number * float(total[kept - 1]))])


def _index_at(weights: npt.NDArray[np.float32], target: float) -> int:
    """Return the index at which the running sum passes `target`; if rounding prevents it, the last with a weight."""
    total = weights.cumsum(dtype=np.float64)
    index = int(np.searchsorted(total, target, side="right"))
    return index if index < len(weights) else int(np.flatnonzero(weights)[-1])


Mask = npt.NDArray[np.bool_]
_OFF = Sampling()


@dataclass(slots=True)
class SamplerSettings:
    """Settings of one request, and `counts` of its tokens so far.

    `temperature` 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 are off. `repeat`, `frequency` and `presence` penalise
    tokens already generated (1, 0, 0 are off). `logprobs` is the number of alternatives to report with each token, None
    for no report. `expected` requests the mean of every score that a grammar offers as a choice. `has_penalties` and
    `is_greedy` (only the best token is needed) are computed once, because after a step of the model every lookup is
    slow; so is `needs_whole_row` (all tokens of a row are weighed).
    """

    seed: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repeat: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    logprobs: int | None = None
    expected: bool = False
    counts: dict[int, int] = field(default_factory=dict)
    has_penalties: bool = field(init=False)
    is_greedy: bool = field(init=False)
    needs_whole_row: bool = field(init=False)

    @classmethod
    def from_sampling(cls, seed: int, sampling: Sampling, defaults: Sampling = _OFF) -> SamplerSettings:
        """Return the settings of a request; `defaults` replace settings that it leaves at their default."""
        return cls(
            seed,
            sampling.temperature,
            sampling.top_p if sampling.top_p != 1.0 else defaults.top_p,
            sampling.top_k or defaults.top_k,
            sampling.min_p or defaults.min_p,
            sampling.repeat_penalty if sampling.repeat_penalty != 1.0 else defaults.repeat_penalty,
            sampling.frequency_penalty,
            sampling.presence_penalty,
            sampling.logprobs,
            sampling.expected,
        )

    def __post_init__(self) -> None:
        self.has_penalties = self.repeat != 1.0 or self.frequency != 0.0 or self.presence != 0.0
        self.is_greedy = self.temperature <= 0 and not self.has_penalties and self.logprobs is None
        draws_from_all = self.temperature > 0 and not self.top_k and not self.min_p
        self.needs_whole_row = draws_from_all or self.logprobs is not None


@dataclass(slots=True)
class SampledToken:
    """A sampled token, with its log-probability and the best alternatives if requested."""

    token: int
    logprob: float = 0.0
    top: list[tuple[int, float]] | None = None


def sample_tokens(
    logits: Logits,
    settings: list[SamplerSettings],
    positions: list[int],
    masks: list[Mask | None],
    threads: SamplingThreads | None = None,
) -> list[SampledToken]:
    """Sample the next token of each row.

    Log-probabilities come from the model's own distribution, before settings and masks. With `threads`, a large batch
    is sampled by several threads; the result is the same.

    Raises:
        ValueError: A mask allows no token.
        FloatingPointError: The logits of a row are not finite.
    """
    if threads is None or logits.size < 2 * _PART:
        return _sample_rows(logits, settings, positions, masks)
    parts = threads.parts(logits, _PART if any(own.needs_whole_row for own in settings) else 8 * _PART)
    if parts == 1:
        return _sample_rows(logits, settings, positions, masks)
    borders = [len(settings) * part // parts for part in range(parts + 1)]
    slices = [slice(start, end) for start, end in pairwise(borders)]
    return threads.run([
        partial(_sample_rows, logits[part], settings[part], positions[part], masks[part]) for part in slices
    ])  # fmt: skip


class SamplingThreads:
    """Threads that sample while the threads of llama.cpp have nothing to do: `count` with the calling one."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool: ThreadPoolExecutor | None = None

    def parts(self, logits: Logits, size: int) -> int:
        """Return among how many threads these rows are divided if each part should have `size` numbers."""
        return min(self._count, len(logits), max(1, logits.size // size))

    def run(self, work: list[Callable[[], list[SampledToken]]]) -> list[SampledToken]:
        """Do all parts of the work, the first on the calling thread; return their results in order."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._count - 1, thread_name_prefix="viva-sampling")
        others = [self._pool.submit(part) for part in work[1:]]
        try:
            results = work[0]()
        finally:
            wait(others)  # they read the logits, which the next step overwrites
        return results + [token for other in others for token in other.result()]

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=False)


def _sample_rows(
    logits: Logits, settings: list[SamplerSettings], positions: list[int], masks: list[Mask | None]
) -> list[SampledToken]:
    for own, mask in zip(settings, masks, strict=True):
        if mask is not None or not own.is_greedy:
            break
    else:  # the usual case: one pass over all rows
        tokens = logits.argmax(axis=1)
        check_finite(logits[np.arange(len(tokens)), tokens])
        return [SampledToken(token) for token in tokens.tolist()]
    return [
        _sample_row(logits[row], own, position, mask)
        for row, (own, position, mask) in enumerate(zip(settings, positions, masks, strict=True))
    ]


def uniform(seed: int, position: int) -> float:
    """Return a number in [0, 1) that depends on seed and position only (splitmix64)."""
    value = (seed * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03 + 0x632BE59BD9B4E019) & 0xFFFFFFFFFFFFFFFF
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        value = ((value ^ (value >> shift)) * factor) & 0xFFFFFFFFFFFFFFFF
    return ((value ^ (value >> 31)) >> 11) / (1 << 53)


def log_softmax(row: Logits, tokens: Sequence[int] | npt.NDArray[np.intp]) -> list[float]:
    """Return the log-probabilities of these tokens, computed in double precision."""
    highest = row.max()
    wide = np.subtract(row, highest, out=_scratch("wide", len(row), np.float64), dtype=np.float64)
    total = math.log(np.exp(wide, out=wide).sum())
    return [float(row[token]) - float(highest) - total for token in tokens]


def option_shares(row: Logits, options: Mapping[int, Sequence[int]]) -> dict[int, float]:
    """Return the relative probabilities of values, each represented by its tokens; the sum is 1."""
    highest = max(float(row[token]) for tokens in options.values() for token in tokens)
    weights = {
        value: math.fsum(math.exp(float(row[token]) - highest) for token in tokens) for value, tokens in options.items()
    }
    total = math.fsum(weights.values())
    return {value: weight / total for value, weight in weights.items()}


def _sample_row(row: Logits, settings: SamplerSettings, position: int, mask: Mask | None) -> SampledToken:
    if mask is not None and not mask.any():
        raise ValueError("the grammar allows no token here")
    original = row
    if settings.has_penalties and settings.counts:
        row = _apply_penalties(row, settings)
    if settings.temperature <= 0:
        values, tokens = (row, None) if mask is None else _masked(row, mask)
        token = int(values.argmax())
        token = token if tokens is None else int(tokens[token])
        check_finite(row[token])
    else:
        token = draw(
            row,
            uniform(settings.seed, position),
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=settings.top_k,
            min_p=settings.min_p,
            mask=mask,
        )
    if settings.logprobs is None:
        return SampledToken(token)
    top = top_indices(original, settings.logprobs).tolist()
    own, *others = log_softmax(original, [token, *top])
    return SampledToken(token, own, list(zip(top, others, strict=True)))


def _apply_penalties(row: Logits, settings: SamplerSettings) -> Logits:
    changed = _scratch("penalised", len(row), np.float32)
    changed[:] = row
    tokens = np.fromiter(settings.counts.keys(), dtype=np.int64)
    counts = np.fromiter(settings.counts.values(), dtype=np.float32)
    values = changed[tokens]
    values = np.where(values > 0, values / settings.repeat, values * settings.repeat)
    changed[tokens] = values - counts * settings.frequency - settings.presence
    return changed
