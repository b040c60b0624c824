"""Calls in the shape that the strict mode keeps: the same bits alone and in company, for each kind of weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_gguf import KINDS, make_adapter, make_model, requantised

from viva.engine.backends.llama.model_files import Adapter
from viva.engine.backends.llama.native import NativeContext, NativeModel
from viva.engine.backends.llama.scheduler import AT_LEAST_TWO, MULTIPLES_OF_FOUR, BatchShape
from viva.engine.backends.llama.sizing import EngineConfig, choose_config

LANES, CONTEXT = 16, 768
# What the lanes hold already: few tokens and many, around the sizes in which llama.cpp lays out its cache.
HELD = [5, 620, 33, 511, 420, 257, 255, 256, 600, 17, 130, 77, 512, 513, 300, 1]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("kinds") / "F16.gguf", width=256, layers=1)


@pytest.fixture(params=["F16", "Q8_0", *KINDS])
def model(request: pytest.FixtureRequest, source: Path, tmp_path: Path) -> Iterator[NativeModel]:
    path = source
    if request.param == "Q8_0":
        path = make_model(tmp_path / "Q8_0.gguf", width=256, layers=1, quantised=True)
    elif request.param != "F16":
        path = requantised(source, tmp_path / "other.gguf", request.param)
    native = NativeModel(path)
    assert request.param in native.weight_types
    yield native
    native.close()


class Bench:
    """Lanes with something in them, so that the same step can be taken beside any other lanes."""

    def __init__(self, model: NativeModel, flash_attention: str, adapters: Sequence[Adapter] = ()) -> None:
        config = EngineConfig(lanes=LANES, context=CONTEXT, threads=2, contexts=1, adapters=tuple(adapters))
        self.shape = choose_config(model, config).shape
        self.context = NativeContext(
            model,
            lanes=LANES,
            context=CONTEXT,
            batch=512,
            threads=2,
            flash_attention=flash_attention,
            adapters=adapters,
        )
        draw = np.random.default_rng(1)
        self.next = draw.integers(3, model.n_vocab, size=(LANES, 64)).astype(np.int32)
        for lane, held in enumerate(HELD):
            tokens = draw.integers(3, model.n_vocab, size=held).astype(np.int32)
            for start in range(0, held, 512):
                part = tokens[start : start + 512]
                positions = np.arange(start, start + len(part))
                self.context.decode(part, positions, [lane] * len(part), [0] * len(part))

    def block(self, lanes: range, count: int) -> list[tuple[bytes, bytes]]:
        """``count`` tokens for each lane in one call: the logits behind the last, and the lane's KV."""
        size = self.shape.padded_rows(count)
        return self._step(dict.fromkeys(lanes, count), size)

    def decode(self, lanes: list[int]) -> list[tuple[bytes, bytes]]:
        """One token for each of these lanes, a dummy for others below the highest."""
        padded_rows = self.shape.padded_rows(max(lanes) + 1)
        return self._step({lane: int(lane in lanes) for lane in range(padded_rows)}, 1)

    def _step(self, counts: dict[int, int], size: int) -> list[tuple[bytes, bytes]]:
        tokens, positions, lanes, wanted = [], [], [], []
        for lane, count in counts.items():
            tokens += [*self.next[lane, :count].tolist(), *[0] * (size - count)]
            positions += range(HELD[lane], HELD[lane] + size)
            lanes += [lane] * size
            wanted += [int(place == count - 1) for place in range(size)]
        asked = self.shape.with_spare_rows(wanted)
        logits = self.context.decode(tokens, positions, lanes, asked)
        assert logits is not None
        padded_rows = iter(logits[np.array(wanted, dtype=bool)[np.array(asked, dtype=bool)]].copy())
        found = []
        for lane, count in counts.items():
            self.context.forget(lane, HELD[lane] + count)
            if count:
                kept = np.zeros(self.context.saved_size(lane), dtype=np.uint8)
                self.context.save(lane, kept)
                found.append((next(padded_rows).tobytes(), kept.tobytes()))
            self.context.forget(lane, HELD[lane])
        return found


@pytest.mark.parametrize("flash_attention", ["on", "off"])
def test_a_row_is_the_same_alone_and_in_company(model: NativeModel, flash_attention: str) -> None:
    bench = Bench(model, flash_attention)
    for count in (1, 2, 5, 11, 31):
        alone = [bench.block(range(lane, lane + 1), count)[0] for lane in range(LANES)]
        for lanes in (range(3, 6), range(9, 16), range(LANES)):
            if len(lanes) * bench.shape.padded_rows(count) <= 512:
                assert bench.block(lanes, count) == [alone[lane] for lane in lanes]
    together = bench.decode(list(range(LANES)))
    for some in ([0], [1], [15], [2, 3], [0, 6, 9], [4, 5, 6, 7, 11]):
        assert bench.decode(some) == [together[lane] for lane in some]
    bench.context.close()


@pytest.mark.parametrize(("weights", "kind", "rank"), [("F16", "F32", 8), ("Q8_0", "F16", 3), ("Q4_K", "F32", 16)])
def test_a_row_with_adapters_is_the_same_alone_and_in_company_and_another_than_without(
    source: Path, tmp_path: Path, weights: str, kind: str, rank: int
) -> None:
    path = source
    if weights == "Q8_0":
        path = make_model(tmp_path / "Q8_0.gguf", width=256, layers=1, quantised=True)
    elif weights != "F16":
        path = requantised(source, tmp_path / "other.gguf", weights)
    files = [
        make_adapter(tmp_path / f"{seed}.gguf", seed=seed, rank=rank, width=256, layers=1, kind=kind) for seed in (1, 2)
    ]
    model = NativeModel(path)
    bench = Bench(model, "off", [Adapter(files[0]), Adapter(files[1], -0.5)])
    for count in (1, 5, 31):
        alone = [bench.block(range(lane, lane + 1), count)[0] for lane in range(LANES)]
        for lanes in (range(3, 6), range(LANES)):
            if len(lanes) * bench.shape.padded_rows(count) <= 512:
                assert bench.block(lanes, count) == [alone[lane] for lane in lanes]
    together = bench.decode(list(range(LANES)))
    for some in ([0], [15], [0, 6, 9], [4, 5, 6, 7, 11]):
        assert bench.decode(some) == [together[lane] for lane in some]
    plain = Bench(model, "off")  # beside it, on the same weights
    assert plain.decode([0, 1]) != together[:2]
    assert bench.decode([0, 1]) == together[:2]
    for each in (bench, plain):
        each.context.close()
    model.close()


@given(st.sampled_from([AT_LEAST_TWO, MULTIPLES_OF_FOUR]), st.lists(st.integers(0, 1), min_size=1, max_size=40))
def test_a_shape_adds_as_few_rows_as_it_can(shape: BatchShape, wanted: list[int]) -> None:
    padded_rows = shape.padded_rows(len(wanted))
    assert len(wanted) <= padded_rows >= shape.minimum
    assert padded_rows % shape.multiple == 0
    assert padded_rows == shape.minimum or padded_rows - len(wanted) < shape.multiple
    wanted += [0] * (padded_rows - len(wanted))
    if any(wanted):
        asked = shape.with_spare_rows(wanted)
        assert sum(asked) == shape.padded_rows(sum(wanted))
        assert all(more >= one for one, more in zip(wanted, asked, strict=True))


def test_lanes_fit_a_shape_or_are_alone() -> None:
    assert [lanes for lanes in range(1, 17) if MULTIPLES_OF_FOUR.fits(lanes)] == [1, 8, 12, 16]
    assert [lanes for lanes in range(1, 5) if AT_LEAST_TWO.fits(lanes)] == [1, 2, 3, 4]
