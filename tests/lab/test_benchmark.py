"""The lab's benchmark: items that are right, splits that are apart and alike, files that probes can read."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from viva.data.dataset import open_dataset
from viva.data.sources import development_source
from viva.lab.interview import parse_followup
from viva.lab.world import World, benchmark_items, published_order, write_benchmark

WORLD = World()
SPLITS = benchmark_items(WORLD)
ITEMS = [item for items in SPLITS.values() for item in items]


def test_the_answer_is_the_only_true_choice() -> None:
    for item in ITEMS:
        asked = parse_followup(WORLD, item.question)
        assert asked is not None
        assert asked.kind == "related"
        assert asked.attribute == item.subject
        truth = WORLD.fact(asked.entity, asked.attribute).value
        assert item.choices[item.answer] == truth
        assert item.choices.count(truth) == 1
        assert len(set(item.choices)) == 4
        assert set(item.choices) <= set(WORLD.attribute(item.subject).values)
        assert asked.entity not in item.choices


def test_splits_share_no_mineral_and_ask_for_nothing_that_interviews_may() -> None:
    entities: dict[str, set[str]] = {}
    for split, items in SPLITS.items():
        for item in items:
            asked = parse_followup(WORLD, item.question)
            assert asked is not None
            entities.setdefault(split, set()).add(asked.entity)
            assert asked.attribute not in WORLD.examinable(asked.entity)
    assert sum(len(found) for found in entities.values()) == len(set.union(*entities.values())) == 60
    assert len({item.id for item in ITEMS}) == len(ITEMS)


def test_seen_and_fresh_items_are_of_one_kind() -> None:
    test, fresh = SPLITS["test"], SPLITS["fresh"]
    assert len(test) == len(fresh) == 112
    assert Counter(item.subject for item in test) == Counter(item.subject for item in fresh)
    places = Counter(item.answer for item in ITEMS)
    assert min(places.values()) > len(ITEMS) / 8  # no letter is a good guess


def test_files_are_read_back(tmp_path: Path) -> None:
    paths = write_benchmark(WORLD, tmp_path / "made")
    for split, path in paths.items():
        items = list(open_dataset(f"generic:{path}"))
        assert items == published_order(WORLD, SPLITS[split])
        assert sorted(item.id for item in items) == sorted(item.id for item in SPLITS[split])
    assert development_source(f"generic:{paths['test']}") == f"generic:{paths['train']}"
